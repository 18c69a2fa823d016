// SPDX-License-Identifier: Apache-2.0
#include "transport/ring.hpp"

#include "transport/handshake.hpp"
#include "transport/link.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace kvonce::transport {
namespace {

struct Ring {
  explicit Ring(std::uint64_t bytes = kMinRingBytes) {
    UniqueFd fd;
    memory = RingMemory::create(bytes, fd);
    REQUIRE(memory);
  }
  RingPlace place() { return memory.to_server(); }
  RingControl& control() { return *memory.to_server().control; }
  RingMemory memory;
};

std::string framed(std::string_view frame) {
  const auto bytes = static_cast<std::uint32_t>(frame.size());
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)).append(frame);
}

}  // namespace

TEST_CASE("frames come out as they went in, round and round the ring") {
  Ring ring;
  RingWriter writer{ring.place()};
  RingReader reader{ring.place()};
  std::mt19937_64 random{3};
  std::uint64_t taken = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const std::string frame = std::string(1 + random() % 700, static_cast<char>(i)) + std::to_string(i);
    const std::string bytes = framed(frame);
    REQUIRE(writer.write(bytes) == bytes.size());
    CHECK_FALSE(writer.publish());
    const int got = reader.read(
        [&](std::string_view seen) {
          CHECK(seen == frame);
          ++taken;
          return true;
        },
        8);
    REQUIRE(got == 1);
  }
  CHECK(taken == 20'000);
  CHECK_FALSE(writer.broken());
  CHECK_FALSE(reader.broken());
}

TEST_CASE("a frame longer than the ring passes piece by piece") {
  Ring ring;
  RingWriter writer{ring.place()};
  RingReader reader{ring.place()};
  std::string frame(kMaxFrameBytes, '\0');
  for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<char>(i * 7 / 3);
  const std::string bytes = framed(frame);
  std::size_t written = 0;
  int taken = 0;
  bool same = false;
  while (taken == 0) {
    written += writer.write(std::string_view(bytes).substr(written));
    writer.publish();
    taken = reader.read([&](std::string_view seen) { return same = seen == frame; }, 1);
    REQUIRE_FALSE(reader.broken());
  }
  CHECK(written == bytes.size());
  CHECK(same);
}

TEST_CASE("no more than max_frames are taken, and one that is not liked ends it") {
  Ring ring;
  RingWriter writer{ring.place()};
  RingReader reader{ring.place()};
  for (int i = 0; i < 10; ++i) writer.write(framed("x"));
  writer.publish();
  CHECK(reader.read([](std::string_view) { return true; }, 4) == 4);
  CHECK(reader.read([](std::string_view) { return false; }, 4) == 1);
  CHECK(reader.broken());
  CHECK(reader.read([](std::string_view) { return true; }, 4) == 0);
}

TEST_CASE("the bell is asked for only by a reader that sleeps, once") {
  Ring ring;
  RingWriter writer{ring.place()};
  RingReader reader{ring.place()};
  const auto take = [](std::string_view) { return true; };
  writer.write(framed("a"));
  CHECK_FALSE(writer.publish());
  CHECK_FALSE(reader.prepare_sleep());  // there is something to read
  CHECK(reader.read(take, 8) == 1);
  CHECK(reader.prepare_sleep());
  writer.write(framed("b"));
  CHECK(writer.publish());
  writer.write(framed("c"));
  CHECK_FALSE(writer.publish());
  CHECK(reader.read(take, 8) == 2);
  CHECK(reader.prepare_sleep());
  reader.cancel_sleep();
  writer.write(framed("d"));
  CHECK_FALSE(writer.publish());
}

TEST_CASE("a writer without room is told when half of the ring is free") {
  Ring ring;
  RingWriter writer{ring.place()};
  RingReader reader{ring.place()};
  const std::string frame = framed(std::string(252, 'x'));  // 16 of them fill the ring
  for (int i = 0; i < 16; ++i) REQUIRE(writer.write(frame) == frame.size());
  writer.publish();
  CHECK(writer.write(frame) == 0);
  CHECK_FALSE(writer.wait_for_room());
  const auto take = [](std::string_view) { return true; };
  CHECK(reader.read(take, 7) == 7);
  CHECK_FALSE(reader.writer_waits());  // 9 are left
  CHECK(reader.read(take, 1) == 1);
  CHECK(reader.writer_waits());
  CHECK_FALSE(reader.writer_waits());
  CHECK(writer.write(frame) == frame.size());
  CHECK(writer.wait_for_room());  // there is some: nobody is told
  CHECK_FALSE(reader.writer_waits());
}

TEST_CASE("indices that make no sense break the reader") {
  const auto broken_by = [](auto damage) {
    Ring ring;
    RingWriter writer{ring.place()};
    RingReader reader{ring.place()};
    writer.write(framed("1234"));
    writer.publish();
    CHECK(reader.read([](std::string_view) { return true; }, 8) == 1);
    // Good frames wherever one looks.
    for (std::uint64_t at = 0; at < kMinRingBytes; at += 8) std::memcpy(ring.place().data + at, framed("1234").data(), 8);
    damage(ring);
    CHECK_FALSE(reader.prepare_sleep());
    CHECK(reader.read([](std::string_view) { return true; }, 8) == 0);
    return reader.broken();
  };
  CHECK(broken_by([](Ring& ring) { ring.control().head = 8 + kMinRingBytes + 8; }));
  CHECK(broken_by([](Ring& ring) { ring.control().head = 7; }));
  CHECK(broken_by([](Ring& ring) { ring.control().head = 0; }));
  CHECK(broken_by([](Ring& ring) { ring.control().head = ~std::uint64_t{0}; }));
  CHECK(broken_by([](Ring& ring) { ring.control().head = std::uint64_t{1} << 63U; }));
}

TEST_CASE("lengths that are not allowed break the reader, and allocate nothing") {
  for (const std::uint32_t length : {0U, static_cast<std::uint32_t>(kMaxFrameBytes) + 1, 0x7fffffffU, 0xffffffffU}) {
    Ring ring;
    RingWriter writer{ring.place()};
    RingReader reader{ring.place()};
    writer.write(std::string_view(reinterpret_cast<const char*>(&length), sizeof(length)));
    writer.publish();
    CHECK(reader.read([](std::string_view) { return true; }, 8) == 0);
    CHECK(reader.broken());
  }
}

TEST_CASE("indices that make no sense break the writer") {
  const auto broken_by = [](std::uint64_t tail) {
    Ring ring;
    RingWriter writer{ring.place()};
    const std::string half(kMinRingBytes / 2, 'x');
    writer.write(half);
    writer.publish();
    ring.control().tail = tail;
    writer.write(half);
    CHECK(writer.write("one more") == 0);
    CHECK(writer.wait_for_room() == writer.broken());
    return writer.broken();
  };
  CHECK(broken_by(kMinRingBytes + 1));
  CHECK(broken_by(~std::uint64_t{0}));
  CHECK_FALSE(broken_by(0));
}

TEST_CASE("random damage never leads outside of the ring") {
  std::mt19937_64 random{11};
  for (int round = 0; round < 2000; ++round) {
    Ring ring;
    RingWriter writer{ring.place()};
    RingReader reader{ring.place()};
    for (int step = 0; step < 20; ++step) {
      switch (random() % 6) {
        case 0: ring.control().head = random() % (3 * kMinRingBytes); break;
        case 1: ring.control().tail = random() % (3 * kMinRingBytes); break;
        case 2: ring.control().reader_sleeps = static_cast<std::uint32_t>(random()); break;
        case 3: ring.control().writer_waits = static_cast<std::uint32_t>(random()); break;
        case 4: {
          const std::uint64_t noise = random();
          std::memcpy(ring.place().data + random() % (kMinRingBytes - 8), &noise, sizeof(noise));
          break;
        }
        default: writer.write(framed(std::string(1 + random() % 3000, 'y'))); writer.publish();
      }
      reader.read([](std::string_view frame) { return !frame.empty() && frame.size() <= kMaxFrameBytes; }, 4);
      reader.writer_waits();
      if (reader.prepare_sleep()) reader.cancel_sleep();
      writer.wait_for_room();
    }
  }
}

TEST_CASE("ring memory can neither shrink nor grow, and what is not sealed is not mapped") {
  UniqueFd fd;
  const RingMemory memory = RingMemory::create(kMinRingBytes, fd);
  REQUIRE(memory);
  CHECK(::ftruncate(fd.get(), 0) != 0);
  CHECK(::ftruncate(fd.get(), 1 << 20) != 0);
  CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  CHECK(RingMemory::map(fd.get(), kMinRingBytes));
  CHECK_FALSE(RingMemory::map(fd.get(), 2 * kMinRingBytes));
  CHECK_FALSE(RingMemory::map(fd.get(), kMinRingBytes + 1));
  CHECK_FALSE(RingMemory::map(fd.get(), 0));
  const UniqueFd loose{::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  REQUIRE(::ftruncate(loose.get(), 1 << 20) == 0);
  CHECK_FALSE(RingMemory::map(loose.get(), kMinRingBytes));
  CHECK_FALSE(RingMemory::map(-1, kMinRingBytes));
  CHECK(RingMemory::round_up(0) == kMinRingBytes);
  CHECK(RingMemory::round_up(5000) == 8192);
  CHECK(RingMemory::round_up(~std::uint64_t{0}) == kMaxRingBytes);
}

TEST_CASE("two threads that sleep and wake each other lose nothing") {
  // No bell but a word that each side waits on: a wake-up that is lost hangs this test.
  Ring ring;
  constexpr std::uint64_t kFrames = 50'000;
  std::atomic<std::uint32_t> for_reader{0};
  std::atomic<std::uint32_t> for_writer{0};
  const auto ring_bell = [](std::atomic<std::uint32_t>& bell) {
    bell.fetch_add(1);
    bell.notify_one();
  };
  std::thread writing([&] {
    RingWriter writer{ring.place()};
    std::mt19937_64 random{5};
    for (std::uint64_t i = 0; i < kFrames; ++i) {
      const std::string bytes = framed(std::to_string(i) + std::string(random() % 60, '.'));
      std::size_t written = 0;
      while (written < bytes.size()) {
        const std::uint32_t rung = for_writer.load();
        const std::size_t count = writer.write(std::string_view(bytes).substr(written));
        written += count;
        if (count != 0 && writer.publish()) ring_bell(for_reader);
        if (written < bytes.size() && !writer.wait_for_room()) for_writer.wait(rung);
      }
    }
  });
  RingReader reader{ring.place()};
  std::uint64_t next = 0;
  bool in_order = true;
  while (next < kFrames) {
    const std::uint32_t rung = for_reader.load();
    const int taken = reader.read(
        [&](std::string_view frame) {
          in_order = in_order && frame.substr(0, frame.find('.')) == std::to_string(next);
          ++next;
          return true;
        },
        16);
    if (reader.writer_waits()) ring_bell(for_writer);
    REQUIRE_FALSE(reader.broken());
    if (taken == 0 && reader.prepare_sleep()) {
      for_reader.wait(rung);
      reader.cancel_sleep();
    }
  }
  writing.join();
  CHECK(in_order);
}

TEST_CASE("two threads that answer each other frame by frame never both sleep") {
  // One frame is under way at a time, so a wake-up that is lost hangs this test.
  Ring ring;
  constexpr std::uint64_t kRounds = 50'000;
  struct Side {
    RingWriter writer;
    RingReader reader;
    std::atomic<std::uint32_t>& own_bell;
    std::atomic<std::uint32_t>& other_bell;
    void say(std::uint64_t number) {
      REQUIRE(writer.write(framed(std::to_string(number))) != 0);
      if (!writer.publish()) return;
      other_bell.fetch_add(1);
      other_bell.notify_one();
    }
    std::uint64_t hear() {
      std::uint64_t number = 0;
      for (;;) {
        const std::uint32_t rung = own_bell.load();
        const auto take = [&number](std::string_view frame) {
          number = std::stoull(std::string(frame));
          return true;
        };
        if (reader.read(take, 1) == 1) return number;
        if (!reader.prepare_sleep()) continue;
        own_bell.wait(rung);
        reader.cancel_sleep();
      }
    }
  };
  std::atomic<std::uint32_t> bells[2] = {0, 0};
  Side one{RingWriter{ring.memory.to_server()}, RingReader{ring.memory.to_client()}, bells[0], bells[1]};
  Side two{RingWriter{ring.memory.to_client()}, RingReader{ring.memory.to_server()}, bells[1], bells[0]};
  std::thread answering([&] {
    for (std::uint64_t i = 0; i < kRounds; ++i) two.say(two.hear() + 1);
  });
  bool right = true;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    one.say(i);
    right = one.hear() == i + 1 && right;
  }
  answering.join();
  CHECK(right);
}

}  // namespace kvonce::transport
