// SPDX-License-Identifier: Apache-2.0
//
// What a broken or hostile process can do to a server over its socket, before and after it was let in.
#include "link_fixture.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "transport/local_message.hpp"
#include "transport/peer_process.hpp"
#include "transport/ring.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::transport::link_test {
namespace {

std::uint64_t refused(const LinkServerStats& stats, RefuseReason reason) {
  return stats.refused[static_cast<std::uint32_t>(reason)];
}
const auto kUnlimitedFailures = [](LinkServerConfig& config, LinkServerCallbacks&) { config.failures_burst = 1'000'000; };

// A hello that is wrong in one of many ways.
std::string garbage(std::mt19937_64& random) {
  std::string bytes = encode(hello_of(random() | 1U));
  switch (random() % 6) {
    case 0: bytes.resize(1 + random() % (bytes.size() - 1)); break;
    case 1: bytes.append(1 + random() % 60'000, 'x'); break;
    case 2: {
      const auto bomb = static_cast<std::uint32_t>(random() | 0x80000000U);
      std::memcpy(bytes.data() + 16, &bomb, sizeof(bomb));
      break;
    }
    case 3: {
      const auto version = static_cast<std::uint32_t>(2 + random() % 1000);
      std::memcpy(bytes.data() + 8, &version, sizeof(version));
      break;
    }
    case 4: {
      const std::uint32_t bomb = 0xfffffff0U;
      std::memcpy(bytes.data() + 20, &bomb, sizeof(bomb));
      break;
    }
    default:
      bytes.assign(1 + random() % 300, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
  }
  return bytes;
}

// Everything that is left of a raw connection: waits until the other side has closed it.
bool ends(int socket) {
  const auto end = patiently();
  while (std::chrono::steady_clock::now() < end) {
    if (receive_message(socket, kMaxWelcomeBytes).received == Received::closed) return true;
    struct pollfd look {
      socket, POLLIN, 0
    };
    ::poll(&look, 1, 1000);
  }
  return false;
}

}  // namespace

TEST_CASE("garbage in place of a hello is refused, leaks nothing and bothers nobody") {
  const TempDir dir;
  TestServer server{dir.path("s"), kUnlimitedFailures};
  const Connected good = connect(dir.path("s"), 1);
  REQUIRE(good.link);
  const std::size_t before = open_descriptors();
  std::mt19937_64 random{23};
  for (int i = 0; i < 1000; ++i) {
    const UniqueFd socket = raw_connect(dir.path("s"));
    REQUIRE(socket);
    const UniqueFd file{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    const std::array<int, 8> many{file.get(), file.get(), file.get(), file.get(), file.get(), file.get(), file.get(), file.get()};
    REQUIRE(send_message(socket.get(), garbage(random), std::span(many).first(i % 9)));
    const Refuse refuse = raw_answer(socket.get());
    CHECK((refuse.reason == RefuseReason::bad_hello || refuse.reason == RefuseReason::version));
    CHECK(refuse.text.back() == '.');
    if (i % 100 == 0) CHECK(echoes(*good.link, "meanwhile"));
  }
  CHECK(descriptors_return_to(before));
  const LinkServerStats stats = server.server().stats();
  CHECK(refused(stats, RefuseReason::bad_hello) > 500);
  CHECK(refused(stats, RefuseReason::version) > 50);
  CHECK(stats.pending == 0);
  CHECK(stats.open == 1);
}

TEST_CASE("more descriptors than one, however many, are closed and refused") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  const std::size_t before = open_descriptors();
  for (const std::size_t count : {2U, 8U, 9U, 100U, 253U}) {
    const UniqueFd socket = raw_connect(dir.path("s"));
    const UniqueFd file{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    const std::vector<int> handed(count, file.get());
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    const std::string bytes = encode(hello_of(5));
    struct iovec part {
      const_cast<char*>(bytes.data()), bytes.size()
    };
    struct msghdr header {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    struct cmsghdr* at = CMSG_FIRSTHDR(&header);
    at->cmsg_level = SOL_SOCKET;
    at->cmsg_type = SCM_RIGHTS;
    at->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(at), handed.data(), count * sizeof(int));
    REQUIRE(::sendmsg(socket.get(), &header, 0) == static_cast<ssize_t>(bytes.size()));
    const Refuse refuse = raw_answer(socket.get());
    CHECK(refuse.reason == RefuseReason::bad_hello);
    CHECK(refuse.text == "More than one descriptor came with the hello; one is allowed, of the client's process.");
  }
  CHECK(descriptors_return_to(before));
}

TEST_CASE("a hello that was used is refused, also after its connection ended") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  const Hello hello = hello_of(7);
  Connected first = connect_link(dir.path("s"), hello, patiently());
  REQUIRE(first.link);
  first.link->close();
  REQUIRE(server.has_closed(1));
  const Connected again = connect_link(dir.path("s"), hello, patiently());
  REQUIRE(again.refuse);
  CHECK(again.refuse->reason == RefuseReason::duplicate);
  CHECK(again.refuse->text == "This hello has been used before; every attempt needs a nonce of its own.");
  CHECK(connect(dir.path("s"), 7).link);
}

TEST_CASE("whoever says nothing is refused when the time for it is over, and others come in meanwhile") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks&) {
                      config.handshake_time = std::chrono::milliseconds{30};
                    }};
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(raw_connect(dir.path("s")));
  const Connected connected = connect(dir.path("s"), 1);
  REQUIRE(connected.link);
  for (const UniqueFd& socket : silent) {
    const Refuse refuse = raw_answer(socket.get());
    CHECK(refuse.text == "No hello came within 30 ms.");
    CHECK(ends(socket.get()));
  }
  CHECK(server.server().stats().expired == 10);
  // The last refusal is out before its connection is counted off.
  for (const auto end = patiently(); server.server().stats().pending != 0 && std::chrono::steady_clock::now() < end;) std::this_thread::yield();
  CHECK(server.server().stats().pending == 0);
  CHECK(echoes(*connected.link, "hello"));
}

TEST_CASE("of too many that say nothing the oldest give way") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks&) {
                      config.max_pending = 4;
                      config.handshake_time = std::chrono::hours{1};
                    }};
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(raw_connect(dir.path("s")));
  CHECK(server.counts([](const LinkServerStats& stats) { return stats.dropped == 46; }));
  CHECK(raw_answer(silent[0].get()).reason == RefuseReason::too_many);
  CHECK(raw_answer(silent[45].get()).reason == RefuseReason::too_many);
  CHECK(server.server().stats().pending == 4);
  const Connected connected = connect(dir.path("s"), 1);
  REQUIRE(connected.link);
  CHECK(echoes(*connected.link, "hello"));
  // The youngest may still speak.
  REQUIRE(send_message(silent[49].get(), encode(hello_of(2))));
  CHECK(server.has_opened(2));
}

TEST_CASE("a process that fails again and again is refused unread; others are not") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks&) {
                      config.failures_burst = 5;
                      config.failures_per_s = 0;
                    }};
  for (int i = 0; i < 5; ++i) {
    const UniqueFd socket = raw_connect(dir.path("s"));
    REQUIRE(send_message(socket.get(), "garbage"));
    CHECK(raw_answer(socket.get()).reason == RefuseReason::bad_hello);
  }
  const Connected refused_now = connect(dir.path("s"), 1);
  REQUIRE(refused_now.refuse);
  CHECK(refused_now.refuse->reason == RefuseReason::too_many);
  PeerProgram other{"client", dir.path("s")};
  CHECK(other.says('c'));
}

// Opens connections, with garbage or nothing in them: 10,000 one after another, then as many at a time as it can.
TEST_CASE("peer: flood" * doctest::skip()) {
  PeerProgram::say('f');
  std::mt19937_64 random{29};
  for (int i = 0; i < 10'000; ++i) {
    const UniqueFd socket = raw_connect(PeerProgram::argument());
    if (socket && i % 2 == 0) send_message(socket.get(), garbage(random));
  }
  PeerProgram::say('1');
  std::vector<UniqueFd> many;
  for (int i = 0; i < 900; ++i) {
    many.push_back(raw_connect(PeerProgram::argument()));
    if (many.back() && i % 3 == 0) send_message(many.back().get(), garbage(random));
  }
  PeerProgram::say('2');
  PeerProgram::wait_for_word();
}

TEST_CASE("10,000 connections one after another, and many at once, cost others nothing but their time") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  const Connected good = connect(dir.path("s"), 1);
  REQUIRE(good.link);
  const std::size_t before = open_descriptors() + 2;  // and the pipes to the other process
  PeerProgram flood{"flood", dir.path("s")};
  REQUIRE(flood.says('f'));
  std::thread serving([&] { CHECK(flood.says('1')); });
  for (std::uint64_t i = 0; i < 20; ++i) {
    CHECK(echoes(*good.link, "meanwhile"));
    const Connected comer = connect(dir.path("s"), 100 + i);
    CHECK_MESSAGE(comer.link, comer.error.text);
    if (comer.link) CHECK(echoes(*comer.link, "hello"));
  }
  serving.join();
  REQUIRE(flood.says('2'));
  CHECK(server.server().stats().pending <= 64);
  {
    const Connected late = connect(dir.path("s"), 200);
    REQUIRE(late.link);
    CHECK(echoes(*late.link, "hello"));
  }
  flood.go_on();
  CHECK(flood.join() == 0);
  CHECK(server.has_closed(21));
  CHECK(server.counts([](const LinkServerStats& stats) { return stats.pending == 0 && stats.accepted >= 10'000; }));
  CHECK(descriptors_return_to(before));
}

TEST_CASE("a server that is out of descriptors says so, does not spin, and goes on when it has some") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  const Connected good = connect(dir.path("s"), 1);
  REQUIRE(good.link);
  CHECK(echoes(*good.link, "hello"));  // the server is done with what it needed to let it in
  // The client's socket is made before the descriptors run out.
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 5; ++i) sockets.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  struct sockaddr_un address {};
  socklen_t bytes = 0;
  REQUIRE(make_address(dir.path("s"), address, bytes).empty());
  struct rlimit limit {};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  struct rlimit lower = limit;
  lower.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 256);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
  std::vector<UniqueFd> all;
  for (;;) {
    UniqueFd one{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    if (!one) break;
    all.push_back(std::move(one));
  }
  for (const UniqueFd& socket : sockets) {
    CHECK(::connect(socket.get(), reinterpret_cast<const struct sockaddr*>(&address), bytes) == 0);
    const Refuse refuse = raw_answer(socket.get());
    CHECK(refuse.reason == RefuseReason::not_ready);
    CHECK(refuse.text.find("out of descriptors") != std::string::npos);
  }
  CHECK(echoes(*good.link, "still served"));
  CHECK(server.server().stats().shed == 5);
  // Room for the connection itself, but not for all that belongs to it; the refusal may be there before the hello is sent.
  for (std::size_t room = 1; room <= 8; ++room) {
    all.pop_back();
    UniqueFd socket = raw_connect(dir.path("s"));
    if (!socket) continue;
    static_cast<void>(send_message(socket.get(), encode(hello_of(50 + room))));
    CHECK(raw_answer(socket.get()).reason == RefuseReason::not_ready);
    break;
  }
  all.clear();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const Connected later = connect(dir.path("s"), 2);
  REQUIRE_MESSAGE(later.link, later.error.text);
  CHECK(echoes(*later.link, "hello"));
}

// -- after the hand-over ---------------------------------------------------------------------------------------------------

TEST_CASE("a client that never reads ends as stalled, and the others do not notice") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks&) {
                      config.ring_bytes = kMinRingBytes;
                      config.backlog_limit = 50'000;
                    }};
  const Connected good = connect(dir.path("s"), 1);
  const Connected bad = connect(dir.path("s"), 2);
  REQUIRE(good.link);
  REQUIRE(bad.link);
  REQUIRE(server.has_opened(2));
  // Its frames are answered until the answers have no room; from then on it is not read from.
  const std::string frame(1000, 'x');
  std::uint64_t sent = 0;
  while (bad.link->backlog_bytes() < 20'000) {
    REQUIRE(bad.link->send(frame));
    ++sent;
  }
  CHECK(echoes(*good.link, "meanwhile"));
  CHECK(server.seen.get().closed.empty());
  CHECK(server.seen.get().frames < sent);
  // The server has more to say to it than it takes.
  const std::shared_ptr<Link> there = server.seen.get().opened[1];
  REQUIRE(there->hello().client == 2);
  while (there->send(frame)) {}
  REQUIRE(server.has_closed(1));
  CHECK(server.seen.get().closed[0] == std::pair{std::uint64_t{2}, LinkEnd::stalled});
  CHECK(echoes(*good.link, "still here"));
}

TEST_CASE("bytes on the socket of an open link end it") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  const Connected connected = connect(dir.path("s"), 2);
  REQUIRE(connected.link);
  const std::size_t before = open_descriptors();
  const int handed[] = {0, 1, 2};
  REQUIRE(send_message(connected.link->socket_fd(), encode(hello_of(3)), handed));
  REQUIRE(server.has_closed(1));
  CHECK(server.seen.get().closed[0].second == LinkEnd::broken);
  CHECK(descriptors_return_to(before));
}

// As a client of its own making: it has all that a client gets, and does with it what it likes.
struct RawClient {
  explicit RawClient(const std::string& path, std::uint64_t client) {
    socket = raw_connect(path);
    REQUIRE(send_message(socket.get(), encode(hello_of(client))));
    LocalMessage message;
    const auto end = patiently();
    while ((message = receive_message(socket.get(), kMaxWelcomeBytes)).received == Received::nothing_yet &&
           std::chrono::steady_clock::now() < end) {
      struct pollfd look {
        socket.get(), POLLIN, 0
      };
      ::poll(&look, 1, 1000);
    }
    const DecodedAnswer answer = decode_answer(message.bytes);
    REQUIRE(answer.welcome);
    REQUIRE(message.descriptors.size() == 3);
    memory = RingMemory::map(message.descriptors[0].get(), answer.welcome->ring_bytes);
    REQUIRE(memory);
    bell = std::move(message.descriptors[1]);
    own_bell = std::move(message.descriptors[2]);
    memory_fd = std::move(message.descriptors[0]);
  }
  void ring() const {
    const std::uint64_t one = 1;
    REQUIRE(::write(bell.get(), &one, sizeof(one)) == sizeof(one));
  }
  UniqueFd socket;
  UniqueFd bell;
  UniqueFd own_bell;
  UniqueFd memory_fd;
  RingMemory memory;
};

TEST_CASE("a client that damages its rings ends its own link alone") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks&) { config.ring_bytes = kMinRingBytes; }};
  const Connected good = connect(dir.path("s"), 1);
  REQUIRE(good.link);
  std::size_t ended = 0;
  const auto ends_after = [&](auto damage) {
    const RawClient client{dir.path("s"), fresh_number()};
    damage(client);
    client.ring();
    CHECK(server.has_closed(++ended));
    CHECK(server.seen.get().closed.back().second == LinkEnd::broken);
    CHECK(ends(client.socket.get()));
    CHECK(echoes(*good.link, "still here"));
  };
  const auto put = [](const RawClient& client, std::uint32_t length, std::uint64_t head) {
    std::memcpy(client.memory.to_server().data, &length, sizeof(length));
    client.memory.to_server().control->head = head;
  };
  ends_after([&](const RawClient& client) { put(client, 1, ~std::uint64_t{0}); });
  ends_after([&](const RawClient& client) { put(client, 1, kMinRingBytes + 1); });
  ends_after([&](const RawClient& client) { put(client, 0, 8); });
  ends_after([&](const RawClient& client) { put(client, 0xffffffffU, 8); });
  ends_after([&](const RawClient& client) { put(client, static_cast<std::uint32_t>(kMaxFrameBytes) + 1, 8); });
  ends_after([&](const RawClient& client) {
    client.memory.to_client().control->tail = ~std::uint64_t{0} / 2;
    CHECK(server.has_opened(ended + 2));
    CHECK_FALSE(server.seen.get().opened.back()->send(std::string(kMinRingBytes, 'x')));  // no room that makes sense
  });
}

TEST_CASE("a client can neither shrink the rings nor block the server by its bells") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks&) { config.ring_bytes = kMinRingBytes; }};
  const Connected good = connect(dir.path("s"), 1);
  REQUIRE(good.link);
  const RawClient client{dir.path("s"), 2};
  CHECK(::ftruncate(client.memory_fd.get(), 0) != 0);
  // Holes are allowed, and read as zeros.
  CHECK(::fallocate(client.memory_fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 12'288) == 0);
  // Both bells are made blocking; the server's is filled up, and the client's is never emptied.
  for (const UniqueFd* bell : {&client.bell, &client.own_bell}) {
    REQUIRE(::fcntl(bell->get(), F_SETFL, ::fcntl(bell->get(), F_GETFL) & ~O_NONBLOCK) == 0);
  }
  for (int i = 0; i < 100; ++i) client.ring();
  RingWriter writer{client.memory.to_server()};
  RingReader reader{client.memory.to_client()};
  const std::uint32_t length = 4;
  for (int i = 0; i < 20'000; ++i) {
    // Each answer rings, as the client says that it sleeps.
    client.memory.to_client().control->reader_sleeps = 1;
    const std::string_view header{reinterpret_cast<const char*>(&length), sizeof(length)};
    while (writer.write(header) == 0) std::this_thread::yield();
    while (writer.write("ping") == 0) std::this_thread::yield();
    if (writer.publish()) client.ring();
    while (reader.read([](std::string_view frame) { return frame == "ping"; }, 4) == 0) std::this_thread::yield();
  }
  CHECK_FALSE(reader.broken());
  CHECK(server.seen.get().frames == 20'000);
  CHECK(echoes(*good.link, "still here"));
}

TEST_CASE("a client that floods gets its share of each turn, not more") {
  const TempDir dir;
  // The order in which frames are taken, by client.
  Watched<std::vector<std::uint64_t>> order;
  TestServer server{dir.path("s"), [&order](LinkServerConfig& config, LinkServerCallbacks& callbacks) {
                      config.frames_per_turn = 4;
                      callbacks.frame = [&order](Link& link, std::string_view) {
                        order.change([&](auto& o) { o.push_back(link.hello().client); });
                        return true;
                      };
                    }};
  const Connected flood = connect(dir.path("s"), 1);
  const Connected quiet = connect(dir.path("s"), 2);
  REQUIRE(flood.link);
  REQUIRE(quiet.link);
  std::atomic<bool> stop{false};
  std::thread flooding([&] {
    while (!stop) {
      if (flood.link->backlog_bytes() == 0) flood.link->send("x");
      else flood.link->flush();
    }
  });
  CHECK(order.wait_until([](const auto& o) { return o.size() > 1000; }));
  for (int i = 0; i < 10; ++i) {
    REQUIRE(quiet.link->send("y"));
    CHECK(order.wait_until([i](const auto& o) { return std::count(o.begin(), o.end(), std::uint64_t{2}) > i; }));
  }
  stop = true;
  flooding.join();
}

}  // namespace kvonce::transport::link_test
