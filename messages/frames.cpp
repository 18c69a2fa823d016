// SPDX-License-Identifier: Apache-2.0
#include "messages/frames.hpp"

#include <utility>

namespace kvonce::messages {

FrameAssembler::Status FrameAssembler::take(std::string_view frame, FrameHead* head, std::string_view* payload) {
  if (frame.size() < sizeof(FrameHead)) return Status::broken;
  std::memcpy(head, frame.data(), sizeof *head);
  if (head->more > 1 || head->reserved != 0) return Status::broken;
  const std::string_view part = frame.substr(sizeof(FrameHead));
  if (part.size() > kMaxPartBytes) return Status::broken;
  const auto at = open_.find(head->message);
  if (at == open_.end() && head->more == 0) {
    *payload = part;
    return Status::whole;
  }
  if (at == open_.end() && open_.size() >= kMaxOpenMessages) return Status::broken;
  if (open_bytes_ + part.size() > kMaxMessageBytes) return Status::broken;
  std::string& kept = at == open_.end() ? open_[head->message] : at->second;
  kept.append(part);
  open_bytes_ += part.size();
  if (head->more == 1) return Status::part;
  open_bytes_ -= kept.size();
  whole_ = std::move(kept);
  open_.erase(head->message);
  *payload = whole_;
  return Status::whole;
}

}  // namespace kvonce::messages
