// SPDX-License-Identifier: Apache-2.0
//
// One message with descriptors over a Unix socket of kind SOCK_SEQPACKET.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/fd.hpp"

namespace kvonce::transport {

inline constexpr std::size_t kMaxDescriptors = 8;  // that are taken from one message; the kernel drops the rest

enum class Received : std::uint8_t { message, nothing_yet, closed };

struct LocalMessage {
  Received received = Received::closed;
  std::string bytes;
  bool bytes_cut = false;             // it was longer than max_bytes
  bool descriptors_cut = false;       // it had more than kMaxDescriptors, or this process has no room for them
  std::vector<UniqueFd> descriptors;  // close-on-exec
};

// Does not block.
LocalMessage receive_message(int socket, std::size_t max_bytes);
// Does not block; false when the message did not go out whole. errno says why.
bool send_message(int socket, std::string_view bytes, std::span<const int> descriptors = {});

}  // namespace kvonce::transport
