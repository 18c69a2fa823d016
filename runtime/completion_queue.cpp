// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/operation_impl.hpp"

namespace kvonce {

CompletionQueue::Impl::Impl(std::size_t limit_)
    : limit(std::max<std::size_t>(limit_, 1)), fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

CompletionQueue::Impl::~Impl() {
  if (fd >= 0) close(fd);
}

void CompletionQueue::Impl::push(const Entry& entry) noexcept {
  {
    const std::lock_guard lock(mutex);
    if (count == ring.size()) {
      // Full: a bigger ring, oldest first again. Entries are small and the ring never shrinks.
      const std::size_t size = std::min(limit, std::max<std::size_t>(64, ring.size() * 2));
      if (size == ring.size()) {
        dropped.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      std::vector<Entry> bigger(size);
      for (std::size_t i = 0; i < count; ++i) bigger[i] = ring[(first + i) % ring.size()];
      ring = std::move(bigger);
      first = 0;
    }
    ring[(first + count) % ring.size()] = entry;
    if (++count == 1 && fd >= 0) eventfd_write(fd, 1);
  }
  filled.notify_one();
}

CompletionQueue::CompletionQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CompletionQueue::~CompletionQueue() = default;

std::shared_ptr<CompletionQueue> CompletionQueue::create(std::size_t limit) {
  return std::shared_ptr<CompletionQueue>(new CompletionQueue(std::make_unique<Impl>(limit)));
}

std::size_t CompletionQueue::poll(std::span<Entry> entries) {
  const std::lock_guard lock(impl_->mutex);
  const std::size_t taken = std::min(entries.size(), impl_->count);
  for (std::size_t i = 0; i < taken; ++i) entries[i] = impl_->ring[(impl_->first + i) % impl_->ring.size()];
  if (taken == 0) return 0;
  impl_->first = (impl_->first + taken) % impl_->ring.size();
  impl_->count -= taken;
  if (impl_->count == 0 && impl_->fd >= 0) {
    eventfd_t value = 0;
    eventfd_read(impl_->fd, &value);
  }
  return taken;
}

std::size_t CompletionQueue::wait(std::span<Entry> entries, std::chrono::nanoseconds time) {
  if (entries.empty()) return 0;
  const auto until = std::chrono::steady_clock::now() +
                     std::clamp<std::chrono::nanoseconds>(time, std::chrono::nanoseconds::zero(), std::chrono::hours(24));
  while (true) {
    if (const std::size_t taken = poll(entries); taken != 0) return taken;
    std::unique_lock lock(impl_->mutex);
    if (!impl_->filled.wait_until(lock, until, [this] { return impl_->count != 0; })) return 0;
  }
}

int CompletionQueue::fd() const noexcept { return impl_->fd; }
std::uint64_t CompletionQueue::dropped() const noexcept { return impl_->dropped.load(std::memory_order_relaxed); }

}  // namespace kvonce
