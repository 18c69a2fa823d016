// SPDX-License-Identifier: Apache-2.0
//
// The link itself: two ends in one process, no server.
#include "link_fixture.hpp"

#include "transport/ring.hpp"

#include <poll.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

namespace kvonce::transport::link_test {
namespace {

const auto kTakeAll = [](std::string_view) { return true; };

}  // namespace

TEST_CASE("what has no room waits in the backlog and follows in order") {
  LinkPair pair;
  for (int i = 0; i < 2000; ++i) REQUIRE(pair.client->send("frame " + std::to_string(i)));
  CHECK(pair.client->backlog_bytes() > 0);
  int next = 0;
  while (next < 2000) {
    const int taken = pair.server->receive(
        [&](std::string_view frame) {
          CHECK(frame == "frame " + std::to_string(next));
          ++next;
          return true;
        },
        100);
    REQUIRE(taken >= 0);
    pair.client->flush();
  }
  CHECK(pair.client->backlog_bytes() == 0);
  CHECK(pair.client->flush());
}

TEST_CASE("a peer that never reads ends the link as stalled, at the limit of the backlog") {
  LinkPair pair{kMinRingBytes, 10'000};
  const std::string frame(1000, 'x');
  int sent = 0;
  while (pair.server->send(frame)) ++sent;
  CHECK(pair.server->end() == LinkEnd::stalled);
  CHECK(sent == 14);                           // 4 KiB in the ring, not more than 10,000 bytes behind it
  CHECK(pair.client->end() == LinkEnd::open);  // it finds out by its socket
  struct pollfd look {
    pair.client->socket_fd(), POLLRDHUP, 0
  };
  CHECK(::poll(&look, 1, 0) == 1);
  CHECK_FALSE(pair.server->send("more"));
  CHECK(pair.server->receive(kTakeAll, 1) == 0);
}

TEST_CASE("a peer that damages the ring ends its own link as broken") {
  const auto end_after = [](auto damage) {
    LinkPair pair;
    REQUIRE(pair.client->send("good"));
    REQUIRE(pair.server->receive(kTakeAll, 8) == 1);
    damage(pair);
    pair.server->receive(kTakeAll, 8);
    pair.server->send(std::string(kMinRingBytes, 'x'));
    return pair.server->end();
  };
  CHECK(end_after([](LinkPair&) {}) == LinkEnd::open);
  CHECK(end_after([](LinkPair& pair) { pair.spy.to_server().control->head = 1U << 30U; }) == LinkEnd::broken);
  CHECK(end_after([](LinkPair& pair) { pair.spy.to_server().control->head = 1; }) == LinkEnd::broken);
  CHECK(end_after([](LinkPair& pair) { pair.spy.to_client().control->tail = 1U << 30U; }) == LinkEnd::broken);
  CHECK(end_after([](LinkPair& pair) {
          const std::uint32_t length = 0xffffffff;
          std::memcpy(pair.spy.to_server().data + 8, &length, sizeof(length));
          pair.spy.to_server().control->head = 8 + 100;
        }) == LinkEnd::broken);
}

TEST_CASE("a frame is looked at only after it was copied") {
  LinkPair pair;
  REQUIRE(pair.client->send("harmless"));
  CHECK(pair.server->receive(
            [&](std::string_view frame) {
              std::memset(pair.spy.to_server().data, 'X', kMinRingBytes);
              return frame == "harmless";
            },
            1) == 1);
  CHECK(pair.server->end() == LinkEnd::open);
}

TEST_CASE("one reader at a time") {
  LinkPair pair;
  REQUIRE(pair.client->send("one"));
  REQUIRE(pair.client->send("two"));
  int inner = 0;
  CHECK(pair.server->receive(
            [&](std::string_view) {
              inner = pair.server->receive(kTakeAll, 1);
              std::thread([&] { CHECK(pair.server->receive(kTakeAll, 1) == -1); }).join();
              return true;
            },
            1) == 1);
  CHECK(inner == -1);
  CHECK(pair.server->receive(kTakeAll, 8) == 1);
}

TEST_CASE("closing from within take stops the reading") {
  LinkPair pair;
  for (int i = 0; i < 5; ++i) REQUIRE(pair.client->send("x"));
  int taken = 0;
  pair.server->receive(
      [&](std::string_view) {
        ++taken;
        pair.server->close();
        return true;
      },
      5);
  CHECK(taken == 1);
  CHECK(pair.server->end() == LinkEnd::closed_here);
  pair.server->close();
  pair.server->finish(LinkEnd::broken);
  CHECK(pair.server->end() == LinkEnd::closed_here);
  pair.server->retire();
  CHECK_FALSE(pair.server->send("x"));
  CHECK(pair.server->receive(kTakeAll, 1) == 0);
  CHECK(pair.server->socket_fd() == -1);
  // The other end's bell has nobody to hear it, which must not raise a signal.
  CHECK(pair.client->send("x"));
}

TEST_CASE("the bell rings for a sleeper, and for whoever waits for room") {
  LinkPair pair;
  const auto rung = [](Link& link) {
    struct pollfd look {
      link.bell_fd(), POLLIN, 0
    };
    return ::poll(&look, 1, 0) == 1;
  };
  CHECK(pair.client->prepare_sleep());
  REQUIRE(pair.server->send("a"));
  CHECK(rung(*pair.client));
  pair.client->drain_bell();
  CHECK_FALSE(rung(*pair.client));
  REQUIRE(pair.server->send("b"));
  CHECK_FALSE(rung(*pair.client));
  CHECK_FALSE(pair.client->prepare_sleep());
  while (pair.client->backlog_bytes() == 0) REQUIRE(pair.client->send(std::string(100, 'c')));
  CHECK_FALSE(rung(*pair.client));
  while (pair.server->receive(kTakeAll, 64) > 0) {}
  CHECK(rung(*pair.client));
  CHECK(pair.client->flush());
}

TEST_CASE("many threads send, one reads: each thread's frames stay in order") {
  LinkPair pair{64U << 10U};
  constexpr int kThreads = 4;
  constexpr int kFrames = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kFrames; ++i) {
        const std::uint32_t frame[2] = {static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(i)};
        REQUIRE(pair.client->send({reinterpret_cast<const char*>(frame), sizeof(frame)}));
      }
    });
  }
  std::array<std::uint32_t, kThreads> next{};
  int taken = 0;
  bool in_order = true;
  while (taken < kThreads * kFrames) {
    pair.client->flush();
    const int count = pair.server->receive(
        [&](std::string_view bytes) {
          std::uint32_t frame[2] = {};
          if (bytes.size() != sizeof(frame)) return false;
          std::memcpy(frame, bytes.data(), sizeof(frame));
          in_order = in_order && frame[1] == next[frame[0]]++;
          return true;
        },
        64);
    REQUIRE(count >= 0);
    REQUIRE(pair.server->end() == LinkEnd::open);
    taken += count;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(in_order);
}

TEST_CASE("closing while others send and read is safe") {
  for (int round = 0; round < 50; ++round) {
    LinkPair pair;
    std::thread sender([&] {
      while (pair.client->send("frame")) {}
    });
    std::thread reader([&] {
      while (pair.server->end() == LinkEnd::open) pair.server->receive(kTakeAll, 8);
    });
    pair.client->close();
    pair.client->retire();
    pair.server->close();
    pair.server->retire();
    sender.join();
    reader.join();
  }
}

}  // namespace kvonce::transport::link_test
