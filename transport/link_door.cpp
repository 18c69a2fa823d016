// SPDX-License-Identifier: Apache-2.0
#include "transport/link_door.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "transport/local_message.hpp"
#include "transport/peer_process.hpp"

namespace kvonce::transport {
namespace {

constexpr int kAcceptsPerTurn = 32;  // then the established links get their turn
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::size_t kRememberedNonces = 65'536;
constexpr std::size_t kCountedProcesses = 1024;
constexpr int kSendBufferBytes = 256 << 10;  // room for a whole welcome

UniqueFd open_spare() { return UniqueFd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}; }

}  // namespace

LinkDoor::LinkDoor(const LinkServerConfig& config, PollSet& polls, LinkCounters& counters, IsConnected is_connected, Enter enter)
    : config_(config),
      polls_(polls),
      counters_(counters),
      is_connected_(std::move(is_connected)),
      enter_(std::move(enter)),
      spare_(open_spare()) {}

bool LinkDoor::open(int listener) {
  listener_ = listener;
  return polls_.add(listener_, EPOLLIN, {PollKind::listener, 0});
}

void LinkDoor::close() {
  if (listener_ >= 0 && !paused_until_) polls_.remove(listener_);
  listener_ = -1;
  paused_until_.reset();
  while (!pending_.empty()) drop(pending_.begin());
}

void LinkDoor::on_listener(TimePoint now) {
  for (int i = 0; i < kAcceptsPerTurn && listener_ >= 0 && !paused_until_; ++i) {
    if (!accept_one(now)) break;
  }
}

bool LinkDoor::accept_one(TimePoint now) {
  UniqueFd socket{::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!socket) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      shed(now);
      return true;
    }
    return errno == EINTR || errno == ECONNABORTED;
  }
  counters_.change([](LinkServerStats& stats) { ++stats.accepted; });
  PeerProcess peer;
  if (!read_peer(socket.get(), peer)) {
    refuse(std::move(socket), {RefuseReason::credentials, kWireVersion, {}, "The system does not tell who is connecting."});
    return true;
  }
  std::string wrong = check_credentials(peer, peer_groups(socket.get()), ::geteuid(), config_.allowed_gid);
  if (!wrong.empty()) {
    count_failure(peer, now);
    refuse(std::move(socket), {RefuseReason::credentials, kWireVersion, {}, std::move(wrong)});
    return true;
  }
  if (allowance(peer.pid, now).left < 1) {
    refuse(std::move(socket), {RefuseReason::too_many,
                               kWireVersion,
                               {},
                               "Process " + std::to_string(peer.pid) + " has failed to connect more than " +
                                   std::to_string(config_.failures_burst) + " times in a row; it may try again in a while."});
    return true;
  }
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
  if (try_hello(socket, peer, now)) return true;  // most have sent it by now
  const std::uint64_t id = next_id_++;
  if (!polls_.add(socket.get(), EPOLLIN | EPOLLRDHUP, {PollKind::pending, id})) {
    refuse(std::move(socket), {RefuseReason::not_ready, kWireVersion, {}, "This server cannot wait for one more connection."});
    return true;
  }
  pending_.emplace(id, Pending{std::move(socket), peer, now + config_.handshake_time});
  if (pending_.size() > std::max<std::size_t>(config_.max_pending, 1)) {
    const auto oldest = pending_.begin();
    UniqueFd given_up = std::move(oldest->second.socket);
    polls_.remove(given_up.get());
    pending_.erase(oldest);
    counters_.change([](LinkServerStats& stats) { ++stats.dropped; });
    refuse(std::move(given_up), {RefuseReason::too_many,
                                 kWireVersion,
                                 {},
                                 "More than " + std::to_string(config_.max_pending) +
                                     " connections are waiting for their hello to come; the oldest has to give way."});
  }
  count_pending();
  return true;
}

void LinkDoor::shed(TimePoint now) {
  spare_.reset();
  UniqueFd socket{::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (socket) {
    counters_.change([](LinkServerStats& stats) { ++stats.accepted, ++stats.shed; });
    static_cast<void>(send_message(
        socket.get(), encode(Refuse{RefuseReason::not_ready, kWireVersion, config_.release,
                                    "This server is out of descriptors for the moment; its limit (ulimit -n) is too low."})));
  } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
    // Somebody else in this process took the spare one. The listener stays readable, so it is left alone for a while.
    polls_.remove(listener_);
    paused_until_ = now + kAcceptPause;
  }
  socket.reset();
  spare_ = open_spare();
}

void LinkDoor::on_pending(std::uint64_t id, TimePoint now) {
  const auto at = pending_.find(id);
  if (at == pending_.end()) return;
  const int fd = at->second.socket.get();
  polls_.remove(fd);
  UniqueFd socket = std::move(at->second.socket);
  if (try_hello(socket, at->second.peer, now)) {
    pending_.erase(id);
    count_pending();
    return;
  }
  at->second.socket = std::move(socket);
  if (!polls_.add(fd, EPOLLIN | EPOLLRDHUP, {PollKind::pending, id})) drop(at);
}

bool LinkDoor::try_hello(UniqueFd& socket, const PeerProcess& peer, TimePoint now) {
  LocalMessage message = receive_message(socket.get(), kMaxHelloBytes);
  if (message.received == Received::nothing_yet) return false;
  if (message.received == Received::closed) {
    count_failure(peer, now);
    counters_.change([](LinkServerStats& stats) { ++stats.hung_up; });
    socket.reset();
    return true;
  }
  const auto refused = [&](RefuseReason reason, std::string text) {
    if (reason != RefuseReason::draining && reason != RefuseReason::not_ready) count_failure(peer, now);
    refuse(std::move(socket), {reason, kWireVersion, {}, std::move(text)});
    return true;
  };
  DecodedHello decoded = decode_hello(message.bytes);
  if (!decoded.hello) return refused(decoded.refuse.reason, std::move(decoded.refuse.text));
  if (message.bytes_cut) {
    return refused(RefuseReason::bad_hello,
                   "The hello is longer than the limit of " + std::to_string(kMaxHelloBytes) + " bytes.");
  }
  if (message.descriptors_cut && message.descriptors.size() < kMaxDescriptors) {
    return refused(RefuseReason::not_ready,
                   "This server is out of descriptors for the moment; its limit (ulimit -n) is too low.");
  }
  if (message.descriptors_cut || message.descriptors.size() > 1) {
    return refused(RefuseReason::bad_hello,
                   "More than one descriptor came with the hello; one is allowed, of the client's process.");
  }
  if (Refuse refusal = judge(*decoded.hello); refusal.reason != RefuseReason::none) {
    return refused(refusal.reason, std::move(refusal.text));
  }
  std::string wrong;
  UniqueFd handed = message.descriptors.empty() ? UniqueFd{} : std::move(message.descriptors.front());
  UniqueFd pidfd = peer_pidfd(socket.get(), peer, std::move(handed), wrong);
  if (!wrong.empty()) return refused(RefuseReason::credentials, std::move(wrong));
  enter_({std::move(socket), std::move(*decoded.hello), peer, std::move(pidfd)});
  return true;
}

Refuse LinkDoor::judge(const Hello& hello) const {
  if (draining_) { return {RefuseReason::draining, kWireVersion, {}, "This server is stopping and takes no more clients."}; }
  if (used_.contains({hello.client, hello.nonce})) {
    return {
        RefuseReason::duplicate, kWireVersion, {}, "This hello has been used before; every attempt needs a nonce of its own."};
  }
  if (is_connected_(hello.client)) {
    return {RefuseReason::duplicate,
            kWireVersion,
            {},
            "A client with the id " + std::to_string(hello.client) + " is connected already; an id may be connected once."};
  }
  return {};
}

void LinkDoor::on_time(TimePoint now) {
  if (paused_until_ && *paused_until_ <= now) {
    paused_until_.reset();
    if (listener_ >= 0 && !polls_.add(listener_, EPOLLIN, {PollKind::listener, 0})) paused_until_ = now + kAcceptPause;
  }
  while (!pending_.empty() && pending_.begin()->second.deadline <= now) {
    const auto at = pending_.begin();
    count_failure(at->second.peer, now);
    UniqueFd socket = std::move(at->second.socket);
    polls_.remove(socket.get());
    pending_.erase(at);
    counters_.change([](LinkServerStats& stats) { ++stats.expired; });
    refuse(std::move(socket), {RefuseReason::bad_hello,
                               kWireVersion,
                               {},
                               "No hello came within " + std::to_string(config_.handshake_time.count()) + " ms."});
    count_pending();
  }
}

std::optional<LinkDoor::TimePoint> LinkDoor::next_time() const {
  std::optional<TimePoint> next = paused_until_;
  if (!pending_.empty() && (!next || pending_.begin()->second.deadline < *next)) next = pending_.begin()->second.deadline;
  return next;
}

void LinkDoor::refuse(UniqueFd socket, Refuse refuse) {
  refuse.wire = kWireVersion;
  if (refuse.release.empty()) refuse.release = config_.release;
  if (refuse.reason == RefuseReason::none || static_cast<std::uint32_t>(refuse.reason) >= kRefuseReasonCount) {
    refuse.reason = RefuseReason::not_ready;
  }
  counters_.change([&refuse](LinkServerStats& stats) { ++stats.refused[static_cast<std::uint32_t>(refuse.reason)]; });
  static_cast<void>(send_message(socket.get(), encode(refuse)));  // whoever is gone does not want to hear it
}

void LinkDoor::remember(const Hello& hello) {
  if (!used_.emplace(hello.client, hello.nonce).second) return;
  used_in_order_.emplace_back(hello.client, hello.nonce);
  if (used_in_order_.size() > kRememberedNonces) {
    used_.erase(used_in_order_.front());
    used_in_order_.pop_front();
  }
}

void LinkDoor::drop(std::map<std::uint64_t, Pending>::iterator at) {
  if (at->second.socket) polls_.remove(at->second.socket.get());
  pending_.erase(at);
  count_pending();
}

LinkDoor::Allowance& LinkDoor::allowance(std::uint32_t pid, TimePoint now) {
  const double most = std::max<double>(config_.failures_burst, 1);
  auto [at, is_new] = failures_.try_emplace(pid, Allowance{most, now});
  Allowance& allowance = at->second;
  if (!is_new) {
    const std::chrono::duration<double> passed = now - allowance.at;
    allowance.left = std::min(most, allowance.left + passed.count() * config_.failures_per_s);
    allowance.at = now;
  } else if (failures_.size() > kCountedProcesses) {
    // Whoever has not failed lately is forgotten first. Should that not help, a flood from so many processes is under way that
    // counting them apart has lost its sense.
    std::erase_if(failures_, [&](const auto& one) {
      const std::chrono::duration<double> passed = now - one.second.at;
      return one.first != pid && one.second.left + passed.count() * config_.failures_per_s >= most;
    });
    if (failures_.size() > kCountedProcesses) {
      failures_.erase(failures_.begin()->first == pid ? std::next(failures_.begin()) : failures_.begin());
    }
  }
  return allowance;
}

void LinkDoor::count_failure(const PeerProcess& peer, TimePoint now) {
  Allowance& of_peer = allowance(peer.pid, now);
  of_peer.left = std::max(0.0, of_peer.left - 1);
}

void LinkDoor::count_pending() {
  counters_.change([this](LinkServerStats& stats) { stats.pending = static_cast<std::uint32_t>(pending_.size()); });
}

}  // namespace kvonce::transport
