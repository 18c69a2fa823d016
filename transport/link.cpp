// SPDX-License-Identifier: Apache-2.0
#include "transport/link.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "transport/link_parts.hpp"
#include "transport/ring.hpp"

namespace kvonce::transport {

const char* to_string(LinkEnd end) {
  switch (end) {
    case LinkEnd::open: return "open";
    case LinkEnd::closed_here: return "closed_here";
    case LinkEnd::peer_closed: return "peer_closed";
    case LinkEnd::broken: return "broken";
    case LinkEnd::stalled: return "stalled";
  }
  return "unknown";
}

// Order of locks: reading_, send_mutex_, end_mutex_.
class LinkState {
 public:
  explicit LinkState(LinkParts&& parts)
      : parts_(std::move(parts)),
        writer_(parts_.is_server ? parts_.memory.to_client() : parts_.memory.to_server()),
        reader_(parts_.is_server ? parts_.memory.to_server() : parts_.memory.to_client()) {}

  const LinkParts& parts() const { return parts_; }
  LinkEnd end() const { return end_.load(std::memory_order_acquire); }
  std::size_t backlog_bytes() const { return backlog_bytes_.load(std::memory_order_relaxed); }

  bool send(std::string_view frame) {
    if (frame.empty() || frame.size() > kMaxFrameBytes) return false;
    const auto bytes = static_cast<std::uint32_t>(frame.size());
    const std::string_view header{reinterpret_cast<const char*>(&bytes), sizeof(bytes)};
    const std::lock_guard lock(send_mutex_);
    if (end() != LinkEnd::open) return false;
    if (backlog_.size() != backlog_at_) {  // the owner moves it on when the bell rings
      backlog_.append(header).append(frame);
    } else {
      const std::size_t header_written = writer_.write(header);
      const std::size_t frame_written = header_written == header.size() ? writer_.write(frame) : 0;
      if (writer_.publish()) ring();
      if (frame_written != frame.size()) {
        backlog_.append(header.substr(header_written)).append(frame.substr(frame_written));
        pump();
      }
    }
    if (writer_.broken()) finish(LinkEnd::broken);
    set_backlog_bytes();
    if (backlog_bytes() > parts_.backlog_limit) finish(LinkEnd::stalled);
    return end() == LinkEnd::open;
  }

  bool flush() {
    if (backlog_bytes() == 0) return true;
    const std::lock_guard lock(send_mutex_);
    if (retired_) return true;
    pump();
    if (writer_.broken()) finish(LinkEnd::broken);
    set_backlog_bytes();
    return backlog_bytes() == 0;
  }

  int receive(const std::function<bool(std::string_view)>& take, int max_frames) {
    if (reading_.exchange(true, std::memory_order_acquire)) return -1;
    int taken = 0;
    if (readable()) {
      taken = reader_.read([this, &take](std::string_view frame) { return readable() && take(frame); }, max_frames);
      if (reader_.broken()) finish(LinkEnd::broken);
      if (reader_.writer_waits()) ring();
    }
    stop_reading();
    return taken;
  }

  bool prepare_sleep() {
    start_reading();
    const bool may_sleep = !readable() || reader_.prepare_sleep();
    stop_reading();
    return may_sleep;
  }
  void cancel_sleep() {
    start_reading();
    if (readable()) reader_.cancel_sleep();
    stop_reading();
  }

  void drain_bell() {
    char bytes[256];
    while (::read(parts_.own_bell.get(), bytes, sizeof(bytes)) == static_cast<ssize_t>(sizeof(bytes))) {}
  }

  void finish(LinkEnd why) {
    const std::lock_guard lock(end_mutex_);
    if (end() != LinkEnd::open) return;
    end_.store(why, std::memory_order_release);
    if (::getpid() == pid_) ::shutdown(parts_.socket.get(), SHUT_RDWR);
  }

  void retire() {
    start_reading();
    {
      const std::lock_guard send_lock(send_mutex_);
      const std::lock_guard end_lock(end_mutex_);
      retired_ = true;
      parts_.socket.reset();
      parts_.own_bell.reset();
      parts_.peer_bell.reset();
      parts_.kept.reset();
      parts_.process.reset();
      parts_.memory = RingMemory{};
      std::string{}.swap(backlog_);
      backlog_at_ = 0;
      set_backlog_bytes();
    }
    stop_reading();
  }

 private:
  // Called by whoever has reading_. A link that the other end closed still has what it sent before.
  bool readable() const {
    const LinkEnd now = end();
    return !retired_ && (now == LinkEnd::open || now == LinkEnd::peer_closed);
  }
  void start_reading() {
    while (reading_.exchange(true, std::memory_order_acquire)) reading_.wait(true, std::memory_order_relaxed);
  }
  void stop_reading() {
    reading_.store(false, std::memory_order_release);
    reading_.notify_all();
  }

  void pump() {
    do {
      const std::size_t written = writer_.write(std::string_view(backlog_).substr(backlog_at_));
      backlog_at_ += written;
      if (written != 0 && writer_.publish()) ring();
      if (backlog_at_ == backlog_.size()) {
        std::string{}.swap(backlog_);
        backlog_at_ = 0;
        return;
      }
    } while (writer_.wait_for_room() && !writer_.broken());
    if (backlog_at_ > backlog_.size() / 2) {
      backlog_.erase(0, backlog_at_);
      backlog_at_ = 0;
    }
  }
  void set_backlog_bytes() { backlog_bytes_.store(backlog_.size() - backlog_at_, std::memory_order_relaxed); }

  // A bell that cannot be rung is full, and so has been rung.
  void ring() {
    const std::uint64_t one = 1;
    const int saved = errno;
    if (::write(parts_.peer_bell.get(), &one, sizeof(one)) < 0) errno = saved;
  }

  LinkParts parts_;
  const pid_t pid_ = ::getpid();  // a forked child that destroys its copy must not end the connection of its parent
  std::atomic<LinkEnd> end_{LinkEnd::open};
  std::mutex end_mutex_;

  std::mutex send_mutex_;
  RingWriter writer_;
  std::string backlog_;  // bytes of the ring's stream that had no room; begins at backlog_at_
  std::size_t backlog_at_ = 0;
  std::atomic<std::size_t> backlog_bytes_{0};

  std::atomic<bool> reading_{false};
  RingReader reader_;
  bool retired_ = false;  // written with all three locks
};

Link::Link(LinkParts&& parts) : state_(std::make_unique<LinkState>(std::move(parts))) {}
Link::~Link() { state_->finish(LinkEnd::closed_here); }

bool Link::send(std::string_view frame) { return state_->send(frame); }
int Link::receive(const std::function<bool(std::string_view)>& take, int max_frames) { return state_->receive(take, max_frames); }
void Link::close() { state_->finish(LinkEnd::closed_here); }
LinkEnd Link::end() const { return state_->end(); }
const Hello& Link::hello() const { return state_->parts().hello; }
const Welcome& Link::welcome() const { return state_->parts().welcome; }
const PeerProcess& Link::peer() const { return state_->parts().peer; }
std::size_t Link::backlog_bytes() const { return state_->backlog_bytes(); }
int Link::socket_fd() const { return state_->parts().socket.get(); }
int Link::process_fd() const { return state_->parts().process.get(); }
int Link::bell_fd() const { return state_->parts().own_bell.get(); }
void Link::drain_bell() { state_->drain_bell(); }
bool Link::prepare_sleep() { return state_->prepare_sleep(); }
void Link::cancel_sleep() { state_->cancel_sleep(); }
bool Link::flush() { return state_->flush(); }
void Link::finish(LinkEnd end) { state_->finish(end); }
void Link::retire() { state_->retire(); }

}  // namespace kvonce::transport
