// SPDX-License-Identifier: Apache-2.0
#include "link_fixture.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "transport/local_message.hpp"
#include "transport/peer_process.hpp"
#include "transport/ring.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::transport::link_test {

namespace fs = std::filesystem;

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "kvonce-link-XXXXXX").string();
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  name_ = pattern;
}
TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(name_, ignored);
}
std::vector<std::string> TempDir::entries() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{name_}) names.push_back(entry.path().filename().string());
  return names;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator{"/proc/self/fd"}) ++count;
  return count;
}
bool descriptors_return_to(std::size_t count) {
  const auto end = patiently();
  while (open_descriptors() > count) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TestServer::TestServer(std::string path, std::function<void(LinkServerConfig&, LinkServerCallbacks&)> adjust) {
  LinkServerConfig config;
  config.path = std::move(path);
  config.release = "9.9-test";
  LinkServerCallbacks callbacks;
  callbacks.greet = [](const Hello& hello, const PeerProcess&) {
    Greeting greeting;
    greeting.welcome.emplace();
    greeting.welcome->incarnation = 42;
    greeting.welcome->info = "for " + hello.info;
    return greeting;
  };
  callbacks.opened = [this](const std::shared_ptr<Link>& link) {
    seen.change([&](Seen& s) {
      s.opened.push_back(link);
      s.order.push_back("opened " + std::to_string(link->hello().client));
    });
  };
  callbacks.frame = [this](Link& link, std::string_view frame) {
    seen.change([&](Seen& s) {
      ++s.frames;
      s.last_frame = frame;
    });
    static_cast<void>(link.send(frame));  // false once the client has gone, which is no fault of the frame
    return true;
  };
  callbacks.turn_over = [this] { seen.change([](Seen& s) { ++s.turns; }); };
  callbacks.closed = [this](const std::shared_ptr<Link>& link, LinkEnd end) {
    seen.change([&](Seen& s) {
      s.closed.emplace_back(link->hello().client, end);
      s.order.push_back("closed " + std::to_string(link->hello().client));
    });
  };
  callbacks.gone = [this](const std::shared_ptr<Link>& link) {
    seen.change([&](Seen& s) {
      s.gone.push_back(link->hello().client);
      s.order.push_back("gone " + std::to_string(link->hello().client));
    });
  };
  if (adjust) adjust(config, callbacks);
  started = LinkServer::start(std::move(config), std::move(callbacks));
}

bool TestServer::counts(const std::function<bool(const LinkServerStats&)>& enough) {
  const auto end = patiently();
  while (!enough(server().stats())) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

std::uint64_t fresh_number() {
  static std::atomic<std::uint64_t> next{std::random_device{}()};
  return next.fetch_add(1) * 2 + 1;
}

Hello hello_of(std::uint64_t client) {
  Hello hello;
  hello.release = "9.9-test";
  hello.client = client;
  hello.engine = 5;
  hello.engine_id = "an engine";
  hello.nonce = fresh_number();
  hello.info = "rank 3";
  return hello;
}

Connected connect(const std::string& path, std::uint64_t client) { return connect_link(path, hello_of(client), patiently()); }

bool echoes(Link& link, std::string_view frame) {
  if (!link.send(frame)) return false;
  std::string got;
  bool is_there = false;
  const auto end = patiently();
  while (!is_there && std::chrono::steady_clock::now() < end) {
    link.flush();
    const int taken = link.receive(
        [&](std::string_view bytes) {
          got = bytes;
          is_there = true;
          return true;
        },
        1);
    if (taken > 0) break;
    if (link.end() != LinkEnd::open) return false;
    if (!link.prepare_sleep()) continue;
    std::array<struct pollfd, 2> look{{{link.bell_fd(), POLLIN, 0}, {link.socket_fd(), POLLIN | POLLRDHUP, 0}}};
    ::poll(look.data(), look.size(), 1000);
    link.cancel_sleep();
    if (look[0].revents != 0) link.drain_bell();
    if (look[1].revents != 0) link.finish(LinkEnd::peer_closed);
  }
  return is_there && got == frame;
}

UniqueFd raw_connect(const std::string& path) {
  struct sockaddr_un address {};
  socklen_t bytes = 0;
  REQUIRE(make_address(path, address, bytes).empty());
  UniqueFd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (::connect(socket.get(), reinterpret_cast<const struct sockaddr*>(&address), bytes) != 0) return {};
  return socket;
}

Refuse raw_answer(int socket) {
  const auto end = patiently();
  for (;;) {
    const LocalMessage message = receive_message(socket, kMaxWelcomeBytes);
    if (message.received == Received::message) return decode_answer(message.bytes).refuse.value_or(Refuse{});
    if (message.received == Received::closed || std::chrono::steady_clock::now() > end) return {};
    struct pollfd look {
      socket, POLLIN, 0
    };
    ::poll(&look, 1, 1000);
  }
}

// -- other processes -------------------------------------------------------------------------------------------------------

namespace {
constexpr int kPeerIn = 60;  // descriptors in the other process
constexpr int kPeerOut = 61;
}  // namespace

PeerProgram::PeerProgram(const std::string& role, const std::string& argument) {
  int to[2] = {-1, -1};
  int from[2] = {-1, -1};
  REQUIRE(::pipe2(to, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(from, O_CLOEXEC) == 0);
  to_ = UniqueFd{to[1]};
  from_ = UniqueFd{from[0]};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], kPeerIn);
  posix_spawn_file_actions_adddup2(&actions, from[1], kPeerOut);
  std::string program = "/proc/self/exe";
  std::string filter = "--test-case=peer: " + role;
  std::string no_skip = "--no-skip";
  std::array<char*, 4> arguments{program.data(), filter.data(), no_skip.data(), nullptr};
  std::string variable = "KVONCE_TEST_PEER=" + argument;
  std::vector<char*> environment;
  for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
  environment.push_back(variable.data());
  environment.push_back(nullptr);
  const int result = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(to[0]);
  ::close(from[1]);
  REQUIRE(result == 0);
}
PeerProgram::~PeerProgram() { kill(); }
bool PeerProgram::says(char expected) {
  char word = 0;
  return ::read(from_.get(), &word, 1) == 1 && word == expected;
}
void PeerProgram::go_on() {
  const char word = 'g';
  REQUIRE(::write(to_.get(), &word, 1) == 1);
}
void PeerProgram::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  join();
}
int PeerProgram::join() {
  if (pid_ <= 0) return -1;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
std::string PeerProgram::argument() {
  const char* text = std::getenv("KVONCE_TEST_PEER");  // NOLINT(concurrency-mt-unsafe): nobody changes the environment
  return text == nullptr ? "" : text;
}
void PeerProgram::say(char word) { REQUIRE(::write(kPeerOut, &word, 1) == 1); }
bool PeerProgram::wait_for_word() {
  char word = 0;
  return ::read(kPeerIn, &word, 1) == 1;
}

// -- a link without a server -----------------------------------------------------------------------------------------------

LinkPair::LinkPair(std::uint64_t ring_bytes, std::uint64_t backlog_limit) {
  int sockets[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
  int pipe_ends[2] = {-1, -1};
  REQUIRE(::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) == 0);
  UniqueFd memory;
  LinkParts of_server;
  LinkParts of_client;
  of_server.is_server = true;
  of_server.memory = RingMemory::create(ring_bytes, memory);
  of_client.memory = RingMemory::map(memory.get(), ring_bytes);
  spy = RingMemory::map(memory.get(), ring_bytes);
  REQUIRE(of_server.memory);
  REQUIRE(of_client.memory);
  of_server.socket = UniqueFd{sockets[0]};
  of_client.socket = UniqueFd{sockets[1]};
  of_server.own_bell = UniqueFd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  of_client.peer_bell = UniqueFd{::dup(of_server.own_bell.get())};
  of_server.peer_bell = UniqueFd{pipe_ends[1]};
  of_client.own_bell = UniqueFd{pipe_ends[0]};
  of_server.kept = UniqueFd{::dup(pipe_ends[0])};
  of_server.backlog_limit = of_client.backlog_limit = backlog_limit;
  of_server.welcome.ring_bytes = of_client.welcome.ring_bytes = ring_bytes;
  server = std::make_unique<Link>(std::move(of_server));
  client = std::make_unique<Link>(std::move(of_client));
}

}  // namespace kvonce::transport::link_test
