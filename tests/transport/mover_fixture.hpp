// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "transport/mover.hpp"

namespace mover_test {

using namespace kvonce::transport;
using kvonce::Event;
using namespace std::chrono_literals;

// A wait that only ends a test that would hang otherwise.
inline TimePoint soon() { return std::chrono::steady_clock::now() + 60s; }

inline const TimePoint kStart = TimePoint{} + 1h;  // where injected clocks begin

// Source and target of some equal items, one range each.
class Pages {
 public:
  Pages(std::size_t count, std::size_t bytes) : bytes_(bytes), source_(count * bytes), target_(count * bytes) {
    for (std::size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i * 31 + i / 251 + 1);
  }
  std::byte* source(std::size_t page) { return source_.data() + page * bytes_; }
  std::byte* target(std::size_t page) { return target_.data() + page * bytes_; }
  CopyBatch batch() {
    CopyBatch batch;
    for (std::size_t page = 0; page < source_.size() / bytes_; ++page) {
      batch.items.push_back({static_cast<std::uint32_t>(page), 1, page});
      batch.ranges.push_back({source(page), target(page), bytes_});
    }
    return batch;
  }
  bool copied(std::size_t page) { return std::memcmp(source(page), target(page), bytes_) == 0; }
  bool untouched(std::size_t page, std::size_t from = 0) {
    return std::all_of(target(page) + from, target(page) + bytes_, [](std::byte byte) { return byte == std::byte{}; });
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
};

// Memory that ends the test when it is read, until it is opened.
class ForbiddenPage {
 public:
  static constexpr std::size_t kBytes = 4096;
  ForbiddenPage()
      : memory_(static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(memory_ != MAP_FAILED);
  }
  ~ForbiddenPage() { munmap(memory_, kBytes); }
  ForbiddenPage(const ForbiddenPage&) = delete;
  ForbiddenPage& operator=(const ForbiddenPage&) = delete;
  void open() { REQUIRE(mprotect(memory_, kBytes, PROT_READ | PROT_WRITE) == 0); }
  std::byte* data() const { return memory_; }

 private:
  std::byte* memory_;
};

inline CopyBatch one_item(const std::byte* source, std::byte* target, std::size_t bytes) {
  CopyBatch batch;
  batch.items.push_back({0, 1, 0});
  batch.ranges.push_back({source, target, bytes});
  return batch;
}

// Occupies one mover thread until released.
class Blocker {
 public:
  explicit Blocker(Mover& mover) {
    CopyBatch batch = pages_.batch();
    batch.check = [begun = begun_, release = release_](std::size_t, std::span<const std::uint64_t>) {
      begun.signal();
      return release.wait_until(soon());
    };
    operation_ = mover.submit(std::move(batch)).operation;
    REQUIRE(operation_ != nullptr);
    REQUIRE(begun_.wait_until(soon()));
  }
  ~Blocker() { release(); }
  void release() {
    release_.signal();
    CHECK(operation_->wait_until(soon()));
  }
  void release_without_waiting() { release_.signal(); }

 private:
  Pages pages_{1, 64};
  Event begun_ = Event::make();
  Event release_ = Event::make();
  std::shared_ptr<Operation> operation_;
};

}  // namespace mover_test
