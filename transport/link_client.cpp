// SPDX-License-Identifier: Apache-2.0
#include "transport/link_client.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/link_parts.hpp"
#include "transport/local_message.hpp"
#include "transport/peer_process.hpp"
#include "transport/poll_set.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFramesPerTurn = 64;

std::string system_text(int number) { return std::strerror(number); }  // NOLINT(concurrency-mt-unsafe): glibc's is

Connected failed(Reason reason, std::string text) {
  Connected connected;
  connected.error = {reason, std::move(text)};
  return connected;
}

// At least 1 ms while there is any time, at most an hour.
int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
}

// Whoever may replace the socket could stand in for the server: it must be of our user or root, or the owner of the directory.
bool may_be_server(const PeerProcess& server, const std::string& path) {
  if (server.uid == ::geteuid() || server.uid == 0) return true;
  struct stat status {};
  return ::stat(directory_of(path).c_str(), &status) == 0 && status.st_uid == server.uid && (status.st_mode & S_IWOTH) == 0;
}

Connected connect_to(const std::string& path, Clock::time_point deadline, UniqueFd& socket) {
  struct sockaddr_un address {};
  socklen_t bytes = 0;
  std::string wrong = make_address(path, address, bytes);
  if (!wrong.empty()) return failed(Reason::bad_argument, std::move(wrong));
  socket = UniqueFd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!socket) return failed(Reason::store_lost, "No socket can be made: " + system_text(errno) + ".");
  for (;;) {
    // Connecting waits while the server's queue is full; there is no other way to wait for that.
    const int left = milliseconds_until(deadline);
    if (left == 0) return failed(Reason::deadline, "The server at " + path + " did not take the connection in time.");
    const struct timeval limit { left / 1000, left % 1000 * 1000 };
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (::connect(socket.get(), reinterpret_cast<const struct sockaddr*>(&address), bytes) == 0) return {};
    if (errno == EINTR || errno == EAGAIN) continue;
    const int why = errno;
    if (why == ENOENT) return failed(Reason::store_lost, "No server is there: the socket " + path + " does not exist.");
    if (why == ECONNREFUSED) {
      return failed(Reason::store_lost, "No server answers at " + path + ": the one that made it is gone.");
    }
    const bool wrong_place = why == EACCES || why == ENOTDIR || why == ELOOP || why == EPROTOTYPE || why == ENOTSOCK;
    return failed(wrong_place ? Reason::bad_argument : Reason::store_lost,
                  "The server at " + path + " cannot be connected to: " + system_text(why) + ".");
  }
}

Connected wait_for_answer(const std::string& path, const UniqueFd& socket, Clock::time_point deadline, LocalMessage& message) {
  for (;;) {
    message = receive_message(socket.get(), kMaxWelcomeBytes);
    if (message.received == Received::message) return {};
    if (message.received == Received::closed) {
      return failed(Reason::store_lost, "The server at " + path + " closed the connection without an answer.");
    }
    const int left = milliseconds_until(deadline);
    if (left == 0) return failed(Reason::deadline, "The server at " + path + " did not answer in time.");
    struct pollfd look {
      socket.get(), POLLIN, 0
    };
    ::poll(&look, 1, left);
  }
}

}  // namespace

std::uint64_t own_start_time() { return start_time_of(0); }

Connected connect_link(const std::string& path, const Hello& hello, Clock::time_point deadline, std::uint64_t backlog_limit) {
  if (std::string wrong = check_hello(hello); !wrong.empty()) return failed(Reason::bad_argument, std::move(wrong));
  LinkParts parts;
  parts.backlog_limit = backlog_limit;
  parts.hello = hello;
  if (parts.hello.pid == 0) parts.hello.pid = static_cast<std::uint32_t>(::getpid());
  if (parts.hello.start_time == 0) parts.hello.start_time = own_start_time();
  if (Connected error = connect_to(path, deadline, parts.socket); error.error) return error;
  if (!read_peer(parts.socket.get(), parts.peer) || !may_be_server(parts.peer, path)) {
    return failed(Reason::bad_argument, "The socket " + path + " is served by user " + std::to_string(parts.peer.uid) +
                                            ", who is neither this user nor root nor the owner of its directory.");
  }
  const UniqueFd own = open_pidfd(0);
  const int handed[] = {own.get()};
  // A server that refuses at once may have closed by now; what it said is still there to be read.
  const bool sent = send_message(parts.socket.get(), encode(parts.hello), std::span<const int>{handed, own ? 1U : 0U});
  const int why = sent ? 0 : errno;
  if (!sent && why != EPIPE && why != ECONNRESET) {
    return failed(Reason::store_lost, "The hello to " + path + " cannot be sent: " + system_text(why) + ".");
  }
  LocalMessage message;
  if (Connected error = wait_for_answer(path, parts.socket, deadline, message); error.error) return error;
  DecodedAnswer answer = decode_answer(message.bytes);
  if (answer.refuse) {
    Connected refused = failed(Reason::closed, "The server at " + path + " refused: " + answer.refuse->text);
    refused.refuse = std::move(answer.refuse);
    return refused;
  }
  if (!answer.welcome) return failed(answer.version ? Reason::bad_argument : Reason::store_lost, std::move(answer.error));
  const std::size_t expected = answer.welcome->has_arena ? 4 : 3;
  if (message.descriptors_cut || message.descriptors.size() != expected) {
    return failed(Reason::store_lost, "The server at " + path + " handed over " + std::to_string(message.descriptors.size()) +
                                          " descriptors of " + std::to_string(expected) +
                                          "; this process may be out of them (ulimit -n).");
  }
  auto next = message.descriptors.begin();
  UniqueFd arena = answer.welcome->has_arena ? std::move(*next++) : UniqueFd{};
  const UniqueFd memory = std::move(*next++);
  parts.memory = RingMemory::map(memory.get(), answer.welcome->ring_bytes);
  if (!parts.memory) {
    return failed(Reason::store_lost, "The rings of the server at " + path + " cannot be mapped, or are not what was announced.");
  }
  parts.peer_bell = std::move(*next++);
  parts.own_bell = std::move(*next++);
  std::string unused;
  parts.process = peer_pidfd(parts.socket.get(), parts.peer, UniqueFd{}, unused);
  parts.welcome = std::move(*answer.welcome);
  Connected connected;
  connected.link = std::make_shared<Link>(std::move(parts));
  connected.arena_fd = arena.release();
  return connected;
}

// -- LinkReader ------------------------------------------------------------------------------------------------------------

class LinkReader::Impl {
 public:
  Impl(std::shared_ptr<Link> link, Frame frame, TurnOver turn_over, Ended ended, std::chrono::microseconds spin)
      : link_(std::move(link)),
        frame_(std::move(frame)),
        turn_over_(std::move(turn_over)),
        ended_(std::move(ended)),
        spin_(spin) {
    if (!polls_.open() || !polls_.add(link_->socket_fd(), EPOLLIN | EPOLLRDHUP, {kSocket, 0}) ||
        !polls_.add(link_->bell_fd(), EPOLLIN, {kBell, 0}) ||
        (link_->process_fd() >= 0 && !polls_.add(link_->process_fd(), EPOLLIN, {kProcess, 0}))) {
      throw std::system_error(errno, std::generic_category(), "waiting for a link");
    }
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    link_->close();
    if (std::this_thread::get_id() != thread_.get_id() && thread_.joinable()) thread_.join();
  }

 private:
  static constexpr std::uint32_t kSocket = 0, kBell = 1, kProcess = 2;

  void run() {
    ::prctl(PR_SET_NAME, "kvonce-link");
    const auto take = [this](std::string_view frame) { return !frame_ || frame_(frame); };
    Clock::time_point spin_until{};
    while (link_->end() == LinkEnd::open) {
      link_->flush();
      if (read(take) > 0) {
        if (spin_.count() != 0) spin_until = Clock::now() + spin_;
      } else if ((spin_.count() == 0 || Clock::now() >= spin_until) && link_->prepare_sleep()) {
        look(polls_.wait(-1));
        link_->cancel_sleep();
      }
    }
    // What came before the end; a server that goes on writing does not keep us here.
    const std::uint64_t frames_max = link_->welcome().ring_bytes / 4;
    for (std::uint64_t frames = 0; link_->end() == LinkEnd::peer_closed && frames < frames_max;) {
      const int taken = read(take);
      if (taken >= 0 && taken < kFramesPerTurn) break;
      frames += static_cast<std::uint64_t>(std::max(taken, 0));
    }
    polls_.remove(link_->socket_fd());
    polls_.remove(link_->bell_fd());
    if (link_->process_fd() >= 0) polls_.remove(link_->process_fd());
    link_->retire();
    if (ended_) ended_(link_->end());
  }

  int read(const std::function<bool(std::string_view)>& take) {
    const int taken = link_->receive(take, kFramesPerTurn);
    if (taken > 0 && turn_over_) turn_over_();
    return taken;
  }

  void look(std::span<const struct epoll_event> events) {
    for (const struct epoll_event& event : events) {
      switch (PollSet::tag_of(event).kind) {
        case kBell: link_->drain_bell(); break;
        case kProcess: link_->finish(LinkEnd::peer_closed); break;
        default:
          link_->finish((event.events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0 ? LinkEnd::peer_closed : LinkEnd::broken);
          break;
      }
    }
  }

  std::shared_ptr<Link> link_;
  Frame frame_;
  TurnOver turn_over_;
  Ended ended_;
  std::chrono::microseconds spin_;
  PollSet polls_;
  std::thread thread_;
};

LinkReader::LinkReader(std::shared_ptr<Link> link, Frame frame, TurnOver turn_over, Ended ended, std::chrono::microseconds spin)
    : impl_(std::make_unique<Impl>(std::move(link), std::move(frame), std::move(turn_over), std::move(ended), spin)) {}
LinkReader::~LinkReader() { stop(); }
void LinkReader::stop() { impl_->stop(); }

}  // namespace kvonce::transport
