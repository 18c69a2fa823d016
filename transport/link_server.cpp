// SPDX-License-Identifier: Apache-2.0
#include "transport/link_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/link_door.hpp"
#include "transport/link_parts.hpp"
#include "transport/local_message.hpp"
#include "transport/peer_process.hpp"
#include "transport/poll_set.hpp"
#include "transport/ring.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::transport {
namespace {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

constexpr int kTurnsBetweenPolls = 8;                   // while frames keep coming; then sockets and new clients are looked at
constexpr std::chrono::milliseconds kProcessLook{100};  // only where the kernel has no pidfd, at processes whose links have ended
// Ended links whose process lives on are remembered until it ends. No sound client comes near these.
constexpr std::size_t kEndedLinksOfProcess = 4096;
constexpr std::size_t kEndedLinks = 65'536;

std::string sentence(const char* what) {
  return std::string("This server cannot take one more client: ") + what + ": " + std::strerror(errno) + ".";  // NOLINT
}

}  // namespace

class LinkServer::Impl {
 public:
  Impl(LinkServerConfig config, LinkServerCallbacks callbacks)
      : config_(std::move(config)),
        callbacks_(std::move(callbacks)),
        door_(
            config_, polls_, counters_, [this](std::uint64_t client) { return is_connected(client); },
            [this](Visitor&& visitor) { enter(std::move(visitor)); }) {}

  std::string start() {
    config_.ring_bytes = RingMemory::round_up(config_.ring_bytes);
    config_.frames_per_turn = std::clamp<std::uint32_t>(config_.frames_per_turn, 1, 1U << 20U);
    path_ = config_.place ? std::move(config_.place) : std::make_shared<SocketPath>();
    if (path_->path().empty()) {
      if (std::string wrong = path_->take(config_.path, config_.allowed_gid); !wrong.empty()) return wrong;
    }
    if (std::string wrong = path_->listen(); !wrong.empty()) return wrong;
    wake_fd_ = UniqueFd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!wake_fd_ || !polls_.open() || !polls_.add(wake_fd_.get(), EPOLLIN | EPOLLET, {PollKind::wake, 0}) ||
        !door_.open(path_->socket())) {
      return std::string("The server's thread has nothing to wait on: ") + std::strerror(errno) + ".";  // NOLINT
    }
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      return std::string("The server's thread cannot be started: ") + error.what() + ".";
    }
    return {};
  }

  void stop_accepting() {
    draining_.store(true, std::memory_order_relaxed);
    wake();
  }
  void stop() {
    const std::lock_guard lock(stop_mutex_);
    if (!thread_.joinable()) return;
    stopping_.store(true, std::memory_order_release);
    ring();
    thread_.join();
    path_->remove();
  }
  void wake() {
    if (!asked_.exchange(true, std::memory_order_acq_rel)) ring();
  }

  LinkServerStats stats() const { return counters_.get(); }
  const std::string& path() const { return config_.path; }

 private:
  // A process that has, or had, links. One that is not to be seen is there once for each link.
  struct Process {
    std::uint64_t id = 0;
    PeerProcess peer;
    UniqueFd pidfd;  // -1: looked at by its start time, where that is known
    std::uint32_t open_links = 0;
    bool gone = false;
    std::vector<std::shared_ptr<Link>> ended;
  };
  struct Connection {
    std::uint64_t id = 0;
    std::shared_ptr<Link> link;
    std::uint64_t process = 0;
    bool ready = false;             // in ready_
    bool hung_up = false;           // by the other end: what it sent before is still read
    std::uint64_t frames_left = 0;  // then; as many as a ring can hold
    bool over = false;              // closed, to be forgotten
  };

  void ring() {
    const std::uint64_t one = 1;
    while (::write(wake_fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {}
  }

  void run() {
    ::prctl(PR_SET_NAME, "kvonce-link");
    int turns_unpolled = 0;
    TimePoint spin_until{};
    while (!stopping_.load(std::memory_order_acquire)) {
      // Looked at after asked_ was: a wake() since then ends the poll at once.
      const bool full = callbacks_.full && callbacks_.full();
      if (full || ready_.empty() || turns_unpolled == 0 || turns_unpolled >= kTurnsBetweenPolls) {
        poll(full || ready_.empty() ? timeout_ms() : 0);
        turns_unpolled = 0;
      }
      const bool moved = turn(full);
      if (full) continue;
      if (moved) {
        ++turns_unpolled;
        if (config_.spin.count() != 0) spin_until = Clock::now() + config_.spin;
      } else if (ready_.size() > config_.spin_clients || Clock::now() >= spin_until) {
        turns_unpolled = 0;
        fall_asleep();
      } else {
        turns_unpolled = 0;  // who is asleep rings a bell that has to be heard
        std::this_thread::yield();
      }
    }
    end_all();
  }

  // -- waiting ---------------------------------------------------------------------------------------------------------------

  int timeout_ms() const {
    std::optional<TimePoint> next = door_.next_time();
    if (process_look_ && (!next || *process_look_ < *next)) next = process_look_;
    if (!next) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 60'000));
  }

  void poll(int timeout_ms) {
    const auto events = polls_.wait(timeout_ms);
    // With nothing pending there is no clock to look at.
    const bool timed = door_.next_time() || process_look_;
    const TimePoint now = events.empty() && !timed ? TimePoint{} : Clock::now();
    if (draining_.load(std::memory_order_relaxed)) door_.begin_draining();
    for (const struct epoll_event& event : events) {
      const PollSet::Tag tag = PollSet::tag_of(event);
      switch (tag.kind) {
        case PollKind::wake: break;  // asked_ and stopping_ are looked at anyway
        case PollKind::listener: door_.on_listener(now); break;
        case PollKind::pending: door_.on_pending(tag.id, now); break;
        case PollKind::socket: on_socket(tag.id, event.events); break;
        case PollKind::bell:
          if (const auto at = connections_.find(tag.id); at != connections_.end()) make_ready(*at->second);
          break;
        case PollKind::process: on_process(tag.id); break;
        default: break;
      }
    }
    if (timed) {
      door_.on_time(now);
      if (process_look_ && *process_look_ <= now) look_at_processes(now);
    }
  }

  void on_socket(std::uint64_t id, std::uint32_t events) {
    const auto at = connections_.find(id);
    if (at == connections_.end() || at->second->over) return;
    Connection& connection = *at->second;
    const bool was_open = connection.link->end() == LinkEnd::open;
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0) {
      if (was_open) hang_up(connection);
    } else if (was_open) {
      connection.link->finish(LinkEnd::broken);  // nothing is said over the socket any more
    }
    make_ready(connection);
  }

  void hang_up(Connection& connection) {
    connection.link->finish(LinkEnd::peer_closed);
    if (connection.link->end() != LinkEnd::peer_closed) return;
    connection.hung_up = true;
    connection.frames_left = config_.ring_bytes / 4;
    polls_.remove(connection.link->socket_fd());  // or it would tell of its end again and again
  }

  void make_ready(Connection& connection) {
    if (connection.ready || connection.over) return;
    connection.ready = true;
    ready_.push_back(&connection);
  }

  // -- a turn ----------------------------------------------------------------------------------------------------------------

  // Each ready link gets its frames. True when there was anything to do. full: ends are seen to, and frames stay where they are.
  bool turn(bool full) {
    bool moved = false;
    // The one that finds no more taken is the first of the next turn.
    const std::size_t first = ready_.empty() ? 0 : first_ % ready_.size();
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      const std::size_t at = (first + i) % ready_.size();
      if (!full && i > 0 && callbacks_.full && callbacks_.full()) {
        full = true;
        first_ = at;
      }
      if (!ready_[at]->over) moved = serve(*ready_[at], full) || moved;
    }
    if (std::exchange(any_over_, false)) {
      std::erase_if(ready_, [](const Connection* connection) { return connection->over; });
      std::erase_if(connections_, [](const auto& one) { return one.second->over; });
    }
    if (parked_) {
      std::erase_if(ready_, [](const Connection* connection) { return !connection->ready; });
      parked_ = false;
    }
    const bool asked = asked_.load(std::memory_order_relaxed) && asked_.exchange(false, std::memory_order_acq_rel);
    if ((moved || asked || std::exchange(turn_due_, false)) && callbacks_.turn_over) callbacks_.turn_over();
    turn_due_ = false;
    return moved;
  }

  // True when frames were taken, or the connection is over.
  bool serve(Connection& connection, bool full = false) {
    Link& link = *connection.link;
    if (link.end() == LinkEnd::open) {
      if (!link.flush() && link.end() == LinkEnd::open) {
        // Whoever does not read is not read from. Its bell rings when there is room.
        connection.ready = false;
        parked_ = true;
        return false;
      }
    }
    if (link.end() != LinkEnd::open && !connection.hung_up) {
      close(connection);
      return true;
    }
    if (full) return false;
    const int most = static_cast<int>(config_.frames_per_turn);
    const int taken =
        link.receive([this, &link](std::string_view frame) { return !callbacks_.frame || callbacks_.frame(link, frame); }, most);
    if (connection.hung_up) {
      connection.frames_left -= std::min<std::uint64_t>(connection.frames_left, static_cast<std::uint64_t>(std::max(taken, 0)));
      if (taken < most || connection.frames_left == 0) close(connection);
      return true;
    }
    if (link.end() != LinkEnd::open) {
      close(connection);
      return true;
    }
    return taken > 0;
  }

  void fall_asleep() {
    std::erase_if(ready_, [](Connection* connection) {
      if (connection->hung_up || connection->link->end() != LinkEnd::open) return false;
      connection->ready = !connection->link->prepare_sleep();
      return !connection->ready;
    });
  }

  // -- coming and going ------------------------------------------------------------------------------------------------------

  // A client may come back before the end of its last connection was looked at: then that is done first.
  bool is_connected(std::uint64_t client) {
    const auto at = by_client_.find(client);
    if (at == by_client_.end()) return false;
    Connection& connection = *connections_.at(at->second);
    if (connection.link->end() == LinkEnd::open) {
      struct pollfd look {
        connection.link->socket_fd(), POLLRDHUP, 0
      };
      if (::poll(&look, 1, 0) != 1 || (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) return true;
      hang_up(connection);
    }
    while (!connection.over) serve(connection);
    return false;
  }

  void enter(Visitor&& visitor) {
    const auto refuse = [&](RefuseReason reason, std::string text) {
      door_.refuse(std::move(visitor.socket), {reason, kWireVersion, {}, std::move(text)});
    };
    if (by_client_.size() >= config_.max_clients) {
      return refuse(RefuseReason::too_many,
                    "This server has " + std::to_string(by_client_.size()) + " clients, as many as it may have (max_clients).");
    }
    Process* known = find_process(visitor.peer);
    if ((known != nullptr && known->ended.size() >= kEndedLinksOfProcess) || ended_links_ >= kEndedLinks) {
      return refuse(RefuseReason::too_many, "Process " + std::to_string(visitor.peer.pid) +
                                                " has connected and gone too many times; it has to be started anew.");
    }
    Greeting greeting;
    if (callbacks_.greet) greeting = callbacks_.greet(visitor.hello, visitor.peer);
    if (!greeting.welcome) {
      if (greeting.refuse.text.empty()) greeting.refuse.text = "This server does not take clients at the moment.";
      return door_.refuse(std::move(visitor.socket), std::move(greeting.refuse));
    }

    LinkParts parts;
    parts.is_server = true;
    UniqueFd memory;
    parts.memory = RingMemory::create(config_.ring_bytes, memory);
    if (!parts.memory) return refuse(RefuseReason::not_ready, sentence("no memory for its rings"));
    parts.own_bell = UniqueFd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    int pipe_ends[2] = {-1, -1};
    if (!parts.own_bell || ::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) {
      return refuse(RefuseReason::not_ready, sentence("no bell for it"));
    }
    parts.kept = UniqueFd{pipe_ends[0]};
    parts.peer_bell = UniqueFd{pipe_ends[1]};
    parts.backlog_limit = config_.backlog_limit;
    parts.hello = std::move(visitor.hello);
    parts.peer = visitor.peer;
    parts.welcome = std::move(*greeting.welcome);
    parts.welcome.wire = kWireVersion;
    parts.welcome.ring_bytes = config_.ring_bytes;
    parts.welcome.has_arena = greeting.arena_fd >= 0;

    const std::uint64_t id = next_id_++;
    const int socket = visitor.socket.get();
    const int bell = parts.own_bell.get();
    std::vector<int> descriptors;
    if (parts.welcome.has_arena) descriptors.push_back(greeting.arena_fd);
    descriptors.insert(descriptors.end(), {memory.get(), bell, parts.kept.get()});
    Process* process = known != nullptr ? known : add_process(visitor.peer, std::move(visitor.pidfd));
    const bool waited_for = process != nullptr && polls_.add(socket, EPOLLIN | EPOLLRDHUP, {PollKind::socket, id}) &&
                            polls_.add(bell, EPOLLIN | EPOLLET, {PollKind::bell, id});
    if (!waited_for || !send_message(socket, encode(parts.welcome), descriptors)) {
      const int why = errno;
      polls_.remove(bell);
      polls_.remove(socket);
      if (process != nullptr) forget_if_unused(*process);
      errno = why;
      return refuse(RefuseReason::not_ready, sentence("the connection cannot be handed over"));
    }
    door_.remember(parts.hello);
    by_client_.emplace(parts.hello.client, id);
    parts.socket = std::move(visitor.socket);
    auto connection = std::make_unique<Connection>();
    connection->id = id;
    connection->process = process->id;
    connection->link = std::make_shared<Link>(std::move(parts));
    ++process->open_links;
    Connection& opened = *connections_.emplace(id, std::move(connection)).first->second;
    count();
    counters_.change([](LinkServerStats& stats) { ++stats.welcomed; });
    make_ready(opened);
    turn_due_ = true;
    if (callbacks_.opened) callbacks_.opened(opened.link);
  }

  void close(Connection& connection) {
    connection.over = true;
    any_over_ = true;
    const std::shared_ptr<Link> link = std::move(connection.link);
    if (!connection.hung_up) polls_.remove(link->socket_fd());
    polls_.remove(link->bell_fd());
    link->retire();
    by_client_.erase(link->hello().client);
    turn_due_ = true;
    const auto at = processes_.find(connection.process);
    Process& process = at->second;
    --process.open_links;
    const bool watched = process.pidfd || (process.peer.pid != 0 && process.peer.start_time != 0);
    if (watched && !process.gone) {
      process.ended.push_back(link);
      ++ended_links_;
      if (!process.pidfd && !process_look_) process_look_ = Clock::now() + kProcessLook;
    }
    const bool gone = process.gone;
    forget_if_unused(process);
    count();
    if (callbacks_.closed) callbacks_.closed(link, link->end());
    if (gone && callbacks_.gone) callbacks_.gone(link);
  }

  // -- processes -------------------------------------------------------------------------------------------------------------

  Process* find_process(const PeerProcess& peer) {
    if (peer.pid == 0 || peer.start_time == 0) return nullptr;
    const auto at = process_ids_.find({peer.pid, peer.start_time});
    return at == process_ids_.end() ? nullptr : &processes_.at(at->second);
  }

  Process* add_process(const PeerProcess& peer, UniqueFd pidfd) {
    const std::uint64_t id = next_id_++;
    if (pidfd && !polls_.add(pidfd.get(), EPOLLIN, {PollKind::process, id})) return nullptr;
    Process& process = processes_[id];
    process.id = id;
    process.peer = peer;
    process.pidfd = std::move(pidfd);
    if (peer.pid != 0 && peer.start_time != 0) process_ids_[{peer.pid, peer.start_time}] = id;
    return &process;
  }

  void forget_if_unused(Process& process) {
    if (process.open_links != 0 || !process.ended.empty()) return;
    if (process.pidfd && !process.gone) polls_.remove(process.pidfd.get());
    process_ids_.erase({process.peer.pid, process.peer.start_time});
    processes_.erase(process.id);
  }

  // The kernel says that it has ended. A descriptor of its sockets may live on in a child; its links end all the same.
  void on_process(std::uint64_t id) {
    const auto at = processes_.find(id);
    if (at == processes_.end() || at->second.gone) return;
    Process& process = at->second;
    process.gone = true;
    if (process.pidfd) polls_.remove(process.pidfd.get());
    if (process.open_links != 0) {
      for (auto& [unused, connection] : connections_) {
        if (connection->over || connection->process != id) continue;
        if (connection->link->end() == LinkEnd::open) hang_up(*connection);
        make_ready(*connection);
      }
    }
    const std::vector<std::shared_ptr<Link>> ended = std::move(process.ended);
    process.ended.clear();
    ended_links_ -= ended.size();
    forget_if_unused(process);
    count();
    turn_due_ = true;
    for (const std::shared_ptr<Link>& link : ended) {
      if (callbacks_.gone) callbacks_.gone(link);
    }
  }

  // Where the kernel has no pidfd.
  void look_at_processes(TimePoint now) {
    std::vector<std::uint64_t> gone;
    bool any_left = false;
    for (const auto& [id, process] : processes_) {
      if (process.pidfd || process.ended.empty()) continue;
      if (start_time_of(process.peer.pid) != process.peer.start_time) gone.push_back(id);
      else any_left = true;
    }
    process_look_.reset();
    if (any_left) process_look_ = now + kProcessLook;
    for (const std::uint64_t id : gone) on_process(id);
  }

  void count() {
    counters_.change([this](LinkServerStats& stats) {
      stats.open = static_cast<std::uint32_t>(by_client_.size());
      stats.awaiting_exit = static_cast<std::uint32_t>(ended_links_);
    });
  }

  void end_all() {
    door_.close();
    for (auto& [id, connection] : connections_) {
      if (connection->over) continue;
      connection->link->finish(LinkEnd::closed_here);
      close(*connection);
    }
    ready_.clear();
    connections_.clear();
    if (callbacks_.turn_over) callbacks_.turn_over();
    for (auto& [id, process] : processes_) {
      if (process.pidfd && !process.gone) polls_.remove(process.pidfd.get());
    }
    processes_.clear();
    process_ids_.clear();
    ended_links_ = 0;
    count();
  }

  LinkServerConfig config_;
  LinkServerCallbacks callbacks_;
  PollSet polls_;
  LinkCounters counters_;
  std::shared_ptr<SocketPath> path_;
  LinkDoor door_;
  UniqueFd wake_fd_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> draining_{false};
  std::atomic<bool> asked_{false};
  std::mutex stop_mutex_;
  std::thread thread_;

  // Of the server's thread alone:
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<std::uint64_t, std::uint64_t> by_client_;  // client -> connection, those that are open
  std::vector<Connection*> ready_;
  std::size_t first_ = 0;  // of ready_, in the next turn
  bool any_over_ = false;  // some of connections_ are to be forgotten
  bool parked_ = false;    // some of ready_ are to be taken out
  bool turn_due_ = false;  // turn_over is owed
  std::unordered_map<std::uint64_t, Process> processes_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> process_ids_;  // (pid, start time) -> process
  std::size_t ended_links_ = 0;
  std::optional<TimePoint> process_look_;
};

LinkServer::LinkServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LinkServer::~LinkServer() { stop(); }

LinkServer::Started LinkServer::start(LinkServerConfig config, LinkServerCallbacks callbacks) {
  auto impl = std::make_unique<Impl>(std::move(config), std::move(callbacks));
  if (std::string wrong = impl->start(); !wrong.empty()) return {nullptr, {Reason::bad_argument, std::move(wrong)}};
  return {std::unique_ptr<LinkServer>(new LinkServer(std::move(impl))), {}};
}

void LinkServer::stop_accepting() { impl_->stop_accepting(); }
void LinkServer::stop() { impl_->stop(); }
void LinkServer::wake() { impl_->wake(); }
LinkServerStats LinkServer::stats() const { return impl_->stats(); }
const std::string& LinkServer::path() const { return impl_->path(); }

}  // namespace kvonce::transport
