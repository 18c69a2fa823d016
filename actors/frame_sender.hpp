// SPDX-License-Identifier: Apache-2.0
//
// Typed messages into a link: what both kinds of proxies send through.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "messages/frames.hpp"
#include "transport/link.hpp"

namespace kvonce::actors {

class FrameSender {
 public:
  explicit FrameSender(std::shared_ptr<transport::Link> link) : link_(std::move(link)) {}

  /// Any thread, never blocks. False: the link has ended.
  template <class T>
  bool send(messages::FrameKind kind, std::uint32_t partition, std::uint64_t id, const T& message) {
    messages::FrameHead head;
    head.kind = static_cast<std::uint8_t>(kind);
    head.partition = static_cast<std::uint8_t>(partition);
    head.id = id;
    return messages::send_frames(head, next_.fetch_add(1, std::memory_order_relaxed), message,
                                 [this](std::string_view frame) { return link_->send(frame); });
  }

  /// Of what was sent and the other end has not taken.
  std::size_t backlog_bytes() const { return link_->backlog_bytes(); }

 private:
  std::shared_ptr<transport::Link> link_;
  std::atomic<std::uint32_t> next_{0};
};

}  // namespace kvonce::actors
