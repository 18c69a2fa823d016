// SPDX-License-Identifier: Apache-2.0
//
// Frames that are put together to messages. The input is a list of [bytes, one byte][frame].
#include "messages/frames.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "target.hpp"

using namespace kvonce::messages;  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FrameAssembler assembler;
  std::string_view left{reinterpret_cast<const char*>(data), size};
  std::size_t whole_bytes = 0;
  while (!left.empty()) {
    const std::size_t bytes = std::min<std::size_t>(static_cast<std::uint8_t>(left[0]), left.size() - 1);
    FrameHead head;
    std::string_view payload;
    const auto status = assembler.take(left.substr(1, bytes), &head, &payload);
    if (status == FrameAssembler::Status::broken) break;
    if (status == FrameAssembler::Status::whole) {
      whole_bytes += std::string(payload).size();
      KVONCE_FUZZ_CHECK(whole_bytes <= size && head.more == 0);
    }
    left.remove_prefix(1 + bytes);
  }
  return 0;
}
