// SPDX-License-Identifier: Apache-2.0
//
// The messages of the handshake, as a server and as a client read them.
#include "transport/handshake.hpp"

#include <string_view>

#include "target.hpp"

using namespace kvonce::transport;  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  const DecodedHello hello = decode_hello(bytes);
  KVONCE_FUZZ_CHECK(hello.hello.has_value() == (hello.refuse.reason == RefuseReason::none));
  if (hello.hello) {
    KVONCE_FUZZ_CHECK(check_hello(*hello.hello).empty());
    // What follows the known fields is left out.
    const std::string again = encode(*hello.hello);
    KVONCE_FUZZ_CHECK(again.size() <= size && again.substr(20) == bytes.substr(20, again.size() - 20));
  } else {
    KVONCE_FUZZ_CHECK(hello.refuse.text.size() <= kMaxRefuseTextBytes && hello.refuse.text.ends_with('.'));
  }
  const DecodedAnswer answer = decode_answer(bytes);
  KVONCE_FUZZ_CHECK(int{answer.welcome.has_value()} + int{answer.refuse.has_value()} + int{!answer.error.empty()} == 1);
  if (answer.welcome) {
    const std::string again = encode(*answer.welcome);
    KVONCE_FUZZ_CHECK(again.size() <= size && again.substr(20) == bytes.substr(20, again.size() - 20));
  }
  if (answer.refuse) KVONCE_FUZZ_CHECK(decode_answer(encode(*answer.refuse)).refuse.has_value());
  return 0;
}
