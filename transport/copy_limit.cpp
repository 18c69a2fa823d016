// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_limit.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "transport/checksum.hpp"
#include "transport/kernels.hpp"

namespace kvonce::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHugePage = 2U << 20U;
constexpr double kTurnSeconds = 0.03;  // some tens of MiB per thread: several times the cache

// Populated memory; the kernel is asked for huge pages.
class Buffer {
 public:
  Buffer(std::size_t bytes, bool shared) : mapped_((bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    int file = -1;
    if (shared) {
      file = memfd_create("kvonce-copy-limit", MFD_CLOEXEC);
      if (file < 0) return;
      if (ftruncate(file, static_cast<off_t>(mapped_)) != 0) {
        close(file);
        return;
      }
      flags = MAP_SHARED;
    }
    void* const got = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, flags, file, 0);
    if (file >= 0) close(file);
    if (got == MAP_FAILED) return;
    mapping_ = got;
    // A failing advice leaves small pages: slower, still right.
    static_cast<void>(madvise(got, mapped_, MADV_HUGEPAGE));
    std::memset(got, 1, mapped_);
    const auto begin = reinterpret_cast<std::uintptr_t>(got);
    base_ = static_cast<std::byte*>(got) + (kHugePage - begin % kHugePage) % kHugePage;
  }
  ~Buffer() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool ok() const { return mapping_ != nullptr; }
  std::byte* base() const { return base_; }

 private:
  std::size_t mapped_;
  void* mapping_ = nullptr;
  std::byte* base_ = nullptr;
};

struct Buffers {
  Buffers(std::size_t bytes_each, CopyMemory memory)
      : from(bytes_each, memory == CopyMemory::shared_source), to(bytes_each, memory == CopyMemory::shared_target) {}
  bool ok() const { return from.ok() && to.ok(); }
  const std::byte* source() const { return from.base(); }
  std::byte* target() const { return to.base(); }
  Buffer from, to;
};

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Round {
  double seconds = 0;
  double cpu_seconds = 0;
  std::uint64_t blocks = 0;
};

Round run_round(const Buffers& buffers, const BlockCopy& copy_block, std::size_t block_bytes,
                std::size_t blocks_per_thread, unsigned threads, double seconds) {
  struct alignas(64) PerThread {
    double cpu_seconds = 0;
    std::uint64_t blocks = 0;
  };
  std::vector<PerThread> results(threads);
  std::atomic<unsigned> ready{0};
  std::atomic<bool> stop{false};
  const auto body = [&](unsigned index) {
    const std::size_t begin = index * blocks_per_thread * block_bytes;
    ready.fetch_add(1);
    while (ready.load() != threads && !stop.load()) std::this_thread::yield();
    const double cpu_begin = thread_cpu_seconds();
    std::uint64_t blocks = 0;
    std::size_t at = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      const std::size_t offset = begin + at * block_bytes;
      copy_block(buffers.target() + offset, buffers.source() + offset, block_bytes);
      ++blocks;
      if (++at == blocks_per_thread) at = 0;
    }
    results[index] = {thread_cpu_seconds() - cpu_begin, blocks};
  };
  std::vector<std::thread> workers;
  workers.reserve(threads);
  for (unsigned index = 0; index < threads; ++index) workers.emplace_back(body, index);
  while (ready.load() != threads) std::this_thread::yield();
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop.store(true);
  for (auto& worker : workers) worker.join();
  Round total;
  total.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  for (const auto& result : results) {
    total.cpu_seconds += result.cpu_seconds;
    total.blocks += result.blocks;
  }
  return total;
}

CopyRate rate_of(const Round& round, const char* name, std::size_t block_bytes, unsigned threads) {
  CopyRate rate{0, 0, 0, name, threads};
  if (round.blocks == 0 || round.seconds <= 0) return rate;
  const double bytes = static_cast<double>(round.blocks) * static_cast<double>(block_bytes);
  rate.gib_per_s = bytes / round.seconds / static_cast<double>(1U << 30U);
  rate.cpu_us_per_block = round.cpu_seconds * 1e6 / static_cast<double>(round.blocks);
  return rate;
}

}  // namespace

std::vector<CopyRate> measure_copy_rates(std::span<const CopyCandidate> candidates, std::size_t block_bytes,
                                         std::size_t working_set_bytes, unsigned threads, double seconds, CopyMemory memory) {
  std::vector<CopyRate> medians;
  for (const auto& candidate : candidates) medians.push_back({0, 0, 0, candidate.name, threads});
  if (candidates.empty() || block_bytes == 0 || threads == 0) return medians;
  const std::size_t blocks_each = working_set_bytes / threads / block_bytes;
  if (blocks_each == 0) return medians;
  const Buffers buffers(working_set_bytes, memory);
  if (!buffers.ok()) return medians;
  const double per_candidate = seconds / static_cast<double>(candidates.size());
  const auto turns = static_cast<unsigned>(std::clamp(per_candidate / kTurnSeconds, 1.0, 1000.0));
  std::vector<std::vector<CopyRate>> taken(candidates.size());
  for (unsigned turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Round round =
          run_round(buffers, candidates[i].copy_block, block_bytes, blocks_each, threads, per_candidate / turns);
      taken[i].push_back(rate_of(round, candidates[i].name, block_bytes, threads));
    }
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    std::sort(taken[i].begin(), taken[i].end(), [](const CopyRate& a, const CopyRate& b) { return a.gib_per_s < b.gib_per_s; });
    medians[i] = taken[i][taken[i].size() / 2];
    medians[i].peak_gib_per_s = taken[i].back().gib_per_s;
  }
  return medians;
}

std::vector<CopyCandidate> copy_limit_candidates() {
  std::vector<CopyCandidate> all;
  all.push_back({"memcpy", [](std::byte* target, const std::byte* source, std::size_t bytes) {
                   std::memcpy(target, source, bytes);
                 }});
#ifdef KVONCE_TRANSPORT_X86_KERNELS
  const auto stream = [](const detail::KernelFunctions& functions) {
    return [copy_stripes = functions.copy](std::byte* target, const std::byte* source, std::size_t bytes) {
      copy_stripes(target, source, bytes / detail::kStripe, detail::Store::stream);
    };
  };
  if (kernel_supported(Kernel::avx512)) all.push_back({"stream-avx512", stream(detail::kAvx512Kernel)});
  if (kernel_supported(Kernel::avx2)) all.push_back({"stream-avx2", stream(detail::kAvx2Kernel)});
#endif
  return all;
}

CopyRate measure_copy_limit(std::size_t block_bytes, std::size_t working_set_bytes, unsigned threads,
                            double seconds, CopyMemory memory) {
  block_bytes = (block_bytes + detail::kStripe - 1) / detail::kStripe * detail::kStripe;
  const auto rates = measure_copy_rates(copy_limit_candidates(), block_bytes, working_set_bytes, threads, seconds, memory);
  return *std::max_element(rates.begin(), rates.end(),
                           [](const CopyRate& a, const CopyRate& b) { return a.gib_per_s < b.gib_per_s; });
}

}  // namespace kvonce::transport
