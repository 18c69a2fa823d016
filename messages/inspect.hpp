// SPDX-License-Identifier: Apache-2.0
//
// Inspection of the wire structs for CAF: one text field with the packed bytes of codec.hpp, because a list of structs
// costs one virtual call per scalar otherwise, and because lengths have to be checked before anything is allocated.
#pragma once

#include "messages/codec.hpp"
#include "messages/compat.hpp"

namespace kvonce::messages {

template <class Inspector, class T>
auto inspect_packed(Inspector& f, T& x) {
#if KVONCE_CAF_MODERN
  if constexpr (Inspector::is_loading) {
    std::string packed;
    if (!compat::fields(f, x, "packed", compat::field("bytes", packed))) return false;
    if (decode(packed, x)) return true;
    f.emplace_error(caf::sec::end_of_stream);
    return false;
  } else {
    std::string packed = encode(x);
    return compat::fields(f, x, "packed", compat::field("bytes", packed));
  }
#else
  if constexpr (Inspector::writes_state) {
    std::string packed;
    auto error = compat::fields(f, x, "packed", packed);
    using Result = decltype(error);
    if (error) return error;
    if (!decode(packed, x)) return Result{caf::sec::end_of_stream};
    return error;
  } else {
    std::string packed = encode(x);
    return compat::fields(f, x, "packed", packed);
  }
#endif
}

}  // namespace kvonce::messages

namespace kvonce::protocol {

template <class Inspector, messages::Packed T>
auto inspect(Inspector& f, T& x) {
  return messages::inspect_packed(f, x);
}

}  // namespace kvonce::protocol
