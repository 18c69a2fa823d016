// SPDX-License-Identifier: Apache-2.0
//
// The server and the client on real sockets, in one process and in two.
#include "link_fixture.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "transport/local_message.hpp"
#include "transport/peer_process.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::transport::link_test {
namespace fs = std::filesystem;

TEST_CASE("while whoever it serves has enough to do, a server takes no frames, lets clients in and out, and goes on when it is woken") {
  const TempDir dir;
  std::atomic<bool> full{false};
  std::atomic<int> said{0};
  TestServer server{dir.path("s"), [&](LinkServerConfig&, LinkServerCallbacks& callbacks) {
                      callbacks.full = [&] { return full.load() && ++said > 0; };
                    }};
  const Connected first = connect(dir.path("s"), 1);
  REQUIRE(first.link);
  CHECK(echoes(*first.link, "before"));
  full = true;
  server.server().wake();
  while (said == 0) std::this_thread::yield();
  const auto taken = server.seen.get().frames;
  REQUIRE(first.link->send("held"));
  // Another comes, says something, and goes: the server has looked at everything by then.
  {
    const Connected second = connect(dir.path("s"), 2);
    REQUIRE(second.link);
    REQUIRE(server.has_opened(2));
    REQUIRE(second.link->send("held too"));
  }
  const Connected third = connect(dir.path("s"), 3);
  REQUIRE(third.link);
  CHECK(server.seen.get().frames == taken);
  full = false;
  server.server().wake();
  CHECK(server.seen.wait_until([taken](const Seen& seen) { return seen.frames >= taken + 2; }));
  CHECK(server.has_closed(1));
  CHECK(echoes(*third.link, "after"));
}

TEST_CASE("whoever has enough to do is asked between clients, and each of them has its turn") {
  const TempDir dir;
  constexpr std::uint64_t kClients = 4;
  std::atomic<bool> open{false};
  std::atomic<std::uint64_t> room{0};
  std::atomic<int> said{0};
  TestServer server{dir.path("s"), [&](LinkServerConfig& config, LinkServerCallbacks& callbacks) {
                      config.frames_per_turn = 8;
                      callbacks.full = [&] { return room == 0 && !open && ++said > 0; };
                      callbacks.frame = [&, told = callbacks.frame](Link& link, std::string_view frame) {
                        if (room > 0) --room;
                        return told(link, frame);
                      };
                    }};
  server.server().wake();
  while (said == 0) std::this_thread::yield();
  std::vector<Connected> clients;
  for (std::uint64_t i = 1; i <= kClients; ++i) {
    clients.push_back(connect(dir.path("s"), i));
    REQUIRE(clients.back().link);
    for (int frame = 0; frame < 100; ++frame) REQUIRE(clients.back().link->send("from " + std::to_string(i)));
  }
  REQUIRE(server.has_opened(kClients));
  // Room for one client's turn at a time: all get theirs.
  for (std::uint64_t round = 1; round <= 2 * kClients; ++round) {
    room = 8;
    server.server().wake();
    REQUIRE(server.seen.wait_until([round](const Seen& seen) { return seen.frames >= 8 * round; }));
    CHECK(server.seen.get().frames == 8 * round);
  }
  for (const Connected& client : clients) {
    std::uint64_t answers = 0;
    while (client.link->receive([&answers](std::string_view) { return ++answers > 0; }, 100) > 0) {}
    CHECK(answers == 16);
  }
  open = true;
  server.server().wake();
  CHECK(server.seen.wait_until([](const Seen& seen) { return seen.frames == 100 * kClients; }));
}

TEST_CASE("a client connects, is greeted, and frames go both ways whole and in order") {
  const std::size_t before = open_descriptors();
  {
    const TempDir dir;
    TestServer server{dir.path("s")};
    REQUIRE(server.started.server);
    const Connected connected = connect(dir.path("s"), 7);
    REQUIRE_MESSAGE(connected.link, connected.error.text);
    CHECK(connected.arena_fd == -1);
    CHECK(connected.link->welcome().incarnation == 42);
    CHECK(connected.link->welcome().info == "for rank 3");
    CHECK(connected.link->welcome().ring_bytes == kDefaultRingBytes);
    CHECK(connected.link->peer().pid == static_cast<std::uint32_t>(::getpid()));
    CHECK(echoes(*connected.link, "a frame"));
    CHECK(echoes(*connected.link, std::string(kMaxFrameBytes, 'x')));
    CHECK_FALSE(connected.link->send(""));
    CHECK_FALSE(connected.link->send(std::string(kMaxFrameBytes + 1, 'x')));
    CHECK(echoes(*connected.link, "still there"));
    REQUIRE(server.has_opened(1));
    const Seen seen = server.seen.get();
    CHECK(seen.opened[0]->hello().engine_id == "an engine");
    CHECK(seen.opened[0]->peer().pid == static_cast<std::uint32_t>(::getpid()));
    CHECK(seen.opened[0]->peer().uid == ::geteuid());
    CHECK(seen.opened[0]->peer().start_time == own_start_time());
    CHECK(own_start_time() != 0);
    CHECK(seen.turns > 0);
    connected.link->close();
    REQUIRE(server.has_closed(1));
    CHECK(server.seen.get().closed[0].second == LinkEnd::peer_closed);
    CHECK(connected.link->end() == LinkEnd::closed_here);
    CHECK_FALSE(connected.link->send("too late"));
    // The process lives, so nothing is said to be gone.
    CHECK(server.counts([](const LinkServerStats& stats) { return stats.awaiting_exit == 1 && stats.open == 0; }));
    CHECK(server.seen.get().gone.empty());
    server.server().stop();
    CHECK(dir.entries().empty());
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("the arena's descriptor is handed over, and stays the server's own") {
  const TempDir dir;
  const UniqueFd arena{::memfd_create("arena", MFD_CLOEXEC)};
  REQUIRE(::ftruncate(arena.get(), 8192) == 0);
  TestServer server{dir.path("s"), [&](LinkServerConfig&, LinkServerCallbacks& callbacks) {
                      callbacks.greet = [&arena](const Hello&, const PeerProcess&) {
                        Greeting greeting;
                        greeting.welcome.emplace();
                        greeting.arena_fd = arena.get();
                        return greeting;
                      };
                    }};
  const Connected connected = connect(dir.path("s"), 7);
  REQUIRE(connected.link);
  REQUIRE(connected.arena_fd >= 0);
  const UniqueFd received{connected.arena_fd};
  struct stat ours {};
  struct stat theirs {};
  REQUIRE(::fstat(arena.get(), &ours) == 0);
  REQUIRE(::fstat(received.get(), &theirs) == 0);
  CHECK(ours.st_ino == theirs.st_ino);
  CHECK((::fcntl(received.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a reader's thread gets all frames, then the end") {
  const TempDir dir;
  auto server = std::make_unique<TestServer>(dir.path("s"));
  Connected connected = connect(dir.path("s"), 7);
  REQUIRE(connected.link);
  struct Got {
    std::uint64_t frames = 0;
    bool in_order = true;
    std::optional<LinkEnd> end;
  };
  Watched<Got> got;
  LinkReader reader{connected.link,
                    [&](std::string_view frame) {
                      got.change([&](Got& g) {
                        g.in_order = g.in_order && frame == std::to_string(g.frames);
                        ++g.frames;
                      });
                      return true;
                    },
                    {},
                    [&](LinkEnd end) { got.change([&](Got& g) { g.end = end; }); }};
  constexpr std::uint64_t kFrames = 20'000;
  for (std::uint64_t i = 0; i < kFrames; ++i) REQUIRE(connected.link->send(std::to_string(i)));
  CHECK(got.wait_until([](const Got& g) { return g.frames == kFrames; }));
  CHECK(got.get().in_order);
  server.reset();
  CHECK(got.wait_until([](const Got& g) { return g.end.has_value(); }));
  CHECK(got.get().end == LinkEnd::peer_closed);
  reader.stop();
}

TEST_CASE("what a client sent before it closed is still read") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks&) { config.frames_per_turn = 3; }};
  Connected connected = connect(dir.path("s"), 7);
  REQUIRE(connected.link);
  for (int i = 0; i < 1000; ++i) REQUIRE(connected.link->send("frame " + std::to_string(i)));
  connected.link->close();
  REQUIRE(server.has_closed(1));
  CHECK(server.seen.get().frames == 1000);
  CHECK(server.seen.get().last_frame == "frame 999");
}

TEST_CASE("a frame that the server does not take ends that link alone") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig&, LinkServerCallbacks& callbacks) {
                      callbacks.frame = [](Link& link, std::string_view frame) { return frame != "bad" && link.send(frame); };
                    }};
  Connected good = connect(dir.path("s"), 1);
  Connected bad = connect(dir.path("s"), 2);
  REQUIRE(good.link);
  REQUIRE(bad.link);
  CHECK(bad.link->send("bad"));
  REQUIRE(server.has_closed(1));
  CHECK(server.seen.get().closed[0] == std::pair{std::uint64_t{2}, LinkEnd::broken});
  CHECK_FALSE(echoes(*bad.link, "anybody?"));
  CHECK(echoes(*good.link, "still here"));
}

TEST_CASE("the server closes a link from another thread") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  Connected connected = connect(dir.path("s"), 1);
  REQUIRE(connected.link);
  REQUIRE(server.has_opened(1));
  server.seen.get().opened[0]->close();
  REQUIRE(server.has_closed(1));
  CHECK(server.seen.get().closed[0].second == LinkEnd::closed_here);
  CHECK_FALSE(echoes(*connected.link, "anybody?"));
  CHECK(connected.link->end() == LinkEnd::peer_closed);
}

TEST_CASE("wake runs a turn when nothing else happens") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t turns = server.seen.get().turns;
    server.server().wake();
    REQUIRE(server.seen.wait_until([turns](const Seen& s) { return s.turns > turns; }));
  }
}

TEST_CASE("wrong paths are refused by a sentence that names them") {
  const TempDir dir;
  const auto error_of = [](std::string path) {
    TestServer server{std::move(path)};
    CHECK_FALSE(server.started.server);
    CHECK(server.started.error.reason == Reason::bad_argument);
    return server.started.error.text;
  };
  CHECK(error_of("") == "The path of the socket is empty.");
  const std::string longer = dir.path(std::string(200, 'x'));
  CHECK(error_of(longer).find(longer + " is " + std::to_string(longer.size()) + " bytes long; the system allows 107.") !=
        std::string::npos);
  CHECK(error_of(dir.path("none/s")).find(dir.path("none")) != std::string::npos);
  std::ofstream{dir.path("file")} << "precious";
  CHECK(error_of(dir.path("file")).find("is no socket; it is left as it is") != std::string::npos);
  CHECK(fs::file_size(dir.path("file")) == 8);
  fs::create_directory(dir.path("open"));
  REQUIRE(::chmod(dir.path("open").c_str(), 0777) == 0);
  CHECK(error_of(dir.path("open/s")).find("is writable by everybody") != std::string::npos);
  REQUIRE(::chmod(dir.path("open").c_str(), 01777) == 0);
  TestServer sticky{dir.path("open/s")};
  CHECK_MESSAGE(sticky.started.server, sticky.started.error.text);
  if (::geteuid() == 0) {
    fs::create_directory(dir.path("other"));
    REQUIRE(::chown(dir.path("other").c_str(), 12'345, 12'345) == 0);
    CHECK(error_of(dir.path("other/s")).find("belongs to user 12345") != std::string::npos);
  }
  const Connected nobody = connect(dir.path("none"), 1);
  CHECK(nobody.error.reason == Reason::store_lost);
  CHECK(nobody.error.text.find("does not exist") != std::string::npos);
  CHECK(connect(longer, 1).error.reason == Reason::bad_argument);
  CHECK(connect(dir.path("file"), 1).error.reason != Reason::none);
  CHECK(connect_link(dir.path("s"), Hello{}, patiently()).error.reason == Reason::bad_argument);
}

TEST_CASE("the socket is its owner's alone, or the group's too") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  TestServer shared{dir.path("g"), [](LinkServerConfig& config, LinkServerCallbacks&) { config.allowed_gid = ::getegid(); }};
  REQUIRE(server.started.server);
  REQUIRE(shared.started.server);
  struct stat status {};
  REQUIRE(::stat(dir.path("s").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE(::stat(dir.path("g").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0660);
  CHECK(status.st_gid == ::getegid());
}

TEST_CASE("who may connect: the same user, or a member of the allowed group") {
  PeerProcess peer;
  peer.pid = 1;
  peer.uid = 1000;
  peer.gid = 1000;
  const std::vector<std::uint32_t> groups{20, 30};
  CHECK(check_credentials(peer, groups, 1000, std::nullopt).empty());
  CHECK(check_credentials(peer, groups, 1001, std::nullopt) == "User 1000 may not connect: this server is for user 1001 only.");
  CHECK(check_credentials(peer, groups, 1001, 1000).empty());
  CHECK(check_credentials(peer, groups, 1001, 30).empty());
  CHECK(check_credentials(peer, groups, 1001, 40) ==
        "User 1000 may not connect: this server is for user 1001 and members of group 40.");
  CHECK_FALSE(check_credentials(peer, groups, 0, std::nullopt).empty());
}

TEST_CASE("a second server on a path is told whose it is; the first goes on, and a third comes after it") {
  const TempDir dir;
  {
    TestServer first{dir.path("s")};
    REQUIRE(first.started.server);
    TestServer second{dir.path("s")};
    CHECK_FALSE(second.started.server);
    CHECK(second.started.error.text ==
          "Another server (process " + std::to_string(::getpid()) + ") already serves " + dir.path("s") + ".");
    const Connected connected = connect(dir.path("s"), 1);
    REQUIRE(connected.link);
    CHECK(echoes(*connected.link, "hello"));
  }
  CHECK(dir.entries().empty());
  TestServer third{dir.path("s")};
  CHECK(third.started.server);
}

TEST_CASE("peer: server" * doctest::skip()) {
  TestServer server{PeerProgram::argument()};
  REQUIRE(server.started.server);
  PeerProgram::say('r');
  PeerProgram::wait_for_word();
}

TEST_CASE("the socket of a server that was killed is replaced") {
  const TempDir dir;
  PeerProgram dead{"server", dir.path("s")};
  REQUIRE(dead.says('r'));
  const std::string pid = std::to_string(dead.pid());
  {
    TestServer second{dir.path("s")};
    CHECK(second.started.error.text.find("process " + pid) != std::string::npos);
  }
  Connected lost = connect(dir.path("s"), 1);
  REQUIRE(lost.link);
  CHECK(lost.link->peer().pid == static_cast<std::uint32_t>(dead.pid()));
  Watched<std::optional<LinkEnd>> end;
  LinkReader reader{lost.link, {}, {}, [&](LinkEnd e) { end.change([&](auto& x) { x = e; }); }};
  dead.kill();
  CHECK(end.wait_until([](const auto& e) { return e == LinkEnd::peer_closed; }));
  CHECK(dir.entries().size() == 2);  // the socket and its lock
  CHECK(connect(dir.path("s"), 2).error.text.find("the one that made it is gone") != std::string::npos);
  TestServer server{dir.path("s")};
  REQUIRE_MESSAGE(server.started.server, server.started.error.text);
  const Connected connected = connect(dir.path("s"), 3);
  REQUIRE(connected.link);
  CHECK(echoes(*connected.link, "hello"));
}

TEST_CASE("a link is open once for each client id, and an id may come back at once") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  for (int round = 0; round < 200; ++round) {
    Connected first = connect(dir.path("s"), 7);
    REQUIRE_MESSAGE(first.link, first.error.text);
    if (round % 20 == 0) {
      const Connected second = connect(dir.path("s"), 7);
      CHECK_FALSE(second.link);
      REQUIRE(second.refuse);
      CHECK(second.refuse->reason == RefuseReason::duplicate);
      CHECK(second.refuse->release == "9.9-test");
      CHECK(echoes(*first.link, "first"));
    }
    first.link->close();
  }
  REQUIRE(server.has_closed(200));
  // The end of one life is told before the beginning of the next.
  const Seen seen = server.seen.get();
  for (std::size_t i = 0; i < seen.order.size(); ++i) CHECK(seen.order[i] == (i % 2 == 0 ? "opened 7" : "closed 7"));
}

TEST_CASE("limits of clients, draining, and a server that is not ready refuse by name") {
  const TempDir dir;
  TestServer server{dir.path("s"), [](LinkServerConfig& config, LinkServerCallbacks& callbacks) {
                      config.max_clients = 2;
                      callbacks.greet = [greet = callbacks.greet](const Hello& hello, const PeerProcess& peer) {
                        if (hello.client != 99) return greet(hello, peer);
                        Greeting greeting;
                        greeting.refuse = {RefuseReason::not_ready, 0, {}, "The arena is being filled."};
                        return greeting;
                      };
                    }};
  const Connected early = connect(dir.path("s"), 99);
  REQUIRE(early.refuse);
  CHECK(early.refuse->reason == RefuseReason::not_ready);
  CHECK(early.error.text == "The server at " + dir.path("s") + " refused: The arena is being filled.");
  const Connected first = connect(dir.path("s"), 1);
  const Connected second = connect(dir.path("s"), 2);
  REQUIRE(first.link);
  REQUIRE(second.link);
  const Connected third = connect(dir.path("s"), 3);
  REQUIRE(third.refuse);
  CHECK(third.refuse->reason == RefuseReason::too_many);
  second.link->close();
  REQUIRE(server.has_closed(1));
  server.server().stop_accepting();
  // Its thread looks at that before it takes the next connection.
  const Connected late = connect(dir.path("s"), 4);
  REQUIRE(late.refuse);
  CHECK(late.refuse->reason == RefuseReason::draining);
  CHECK(echoes(*first.link, "goes on"));
}

// -- processes -------------------------------------------------------------------------------------------------------------

TEST_CASE("peer: client" * doctest::skip()) {
  Connected connected = connect(PeerProgram::argument(), 7);
  REQUIRE(connected.link);
  CHECK(connected.link->peer().pid != static_cast<std::uint32_t>(::getpid()));
  for (int i = 0; i < 1000; ++i) REQUIRE(echoes(*connected.link, "frame " + std::to_string(i)));
  PeerProgram::say('c');
  PeerProgram::wait_for_word();
  connected.link->close();
  PeerProgram::say('d');
  PeerProgram::wait_for_word();
}

TEST_CASE("a connection that ends fences nothing; the end of the process does") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  PeerProgram client{"client", dir.path("s")};
  REQUIRE(client.says('c'));
  CHECK(server.seen.get().opened[0]->peer().pid == static_cast<std::uint32_t>(client.pid()));
  client.go_on();
  REQUIRE(client.says('d'));
  REQUIRE(server.has_closed(1));
  CHECK(server.server().stats().awaiting_exit == 1);
  CHECK(server.seen.get().gone.empty());
  client.go_on();
  CHECK(client.join() == 0);
  CHECK(server.seen.wait_until([](const Seen& s) { return s.gone.size() == 1; }));
  CHECK(server.seen.get().order == std::vector<std::string>{"opened 7", "closed 7", "gone 7"});
  CHECK(server.counts([](const LinkServerStats& stats) { return stats.awaiting_exit == 0; }));
}

TEST_CASE("a client that is killed is closed, then gone") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  PeerProgram client{"client", dir.path("s")};
  REQUIRE(client.says('c'));
  client.kill();
  CHECK(server.seen.wait_until([](const Seen& s) { return s.gone.size() == 1; }));
  CHECK(server.seen.get().order == std::vector<std::string>{"opened 7", "closed 7", "gone 7"});
}

TEST_CASE("another process's descriptor is refused") {
  const TempDir dir;
  TestServer server{dir.path("s")};
  PeerProgram other{"client", dir.path("s")};
  REQUIRE(other.says('c'));
  const UniqueFd socket = raw_connect(dir.path("s"));
  const UniqueFd pidfd = open_pidfd(static_cast<std::uint32_t>(other.pid()));
  REQUIRE(pidfd);
  const int handed[] = {pidfd.get()};
  REQUIRE(send_message(socket.get(), encode(hello_of(8)), handed));
  const Refuse refuse = raw_answer(socket.get());
  CHECK(refuse.reason == RefuseReason::credentials);
  CHECK(refuse.text == "The descriptor that came with the hello is of process " + std::to_string(other.pid()) +
                           "; that of process " + std::to_string(::getpid()) + ", which connected, is expected.");
  const UniqueFd again = raw_connect(dir.path("s"));
  const UniqueFd file{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  const int wrong[] = {file.get()};
  REQUIRE(send_message(again.get(), encode(hello_of(8)), wrong));
  CHECK(raw_answer(again.get()).text.find("is no process descriptor") != std::string::npos);
}

}  // namespace kvonce::transport::link_test
