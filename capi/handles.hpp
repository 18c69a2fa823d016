// SPDX-License-Identifier: Apache-2.0
//
// What stands behind the handles of kvonce.h, and how its calls check what they are given. No exception leaves a call.
#pragma once

#include <kvonce/kvonce.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <kvonce/runtime.hpp>

#include "runtime/core.hpp"

// A handle that was made before a fork is the parent's: `forks` tells.
struct kvonce_runtime {
  std::uint64_t forks = kvonce::runtime::fork_count();
  std::unique_ptr<kvonce::Runtime> runtime;
};
struct kvonce_rank {
  std::uint64_t forks = kvonce::runtime::fork_count();
  std::shared_ptr<kvonce::Rank> rank;
};
struct kvonce_operation {
  std::uint64_t forks = kvonce::runtime::fork_count();
  std::shared_ptr<kvonce::Operation> operation;
};
struct kvonce_queue {
  std::uint64_t forks = kvonce::runtime::fork_count();
  std::shared_ptr<kvonce::CompletionQueue> queue;
};
struct kvonce_event {
  std::uint64_t forks = kvonce::runtime::fork_count();
  kvonce::Event event;
};

namespace kvonce::capi {

/// Fills the caller's error, cut at a whole character.
kvonce_reason tell(kvonce_error* to, const Error& error) noexcept;

Error bad(std::string text);
Error null(const char* what);

/// Runs a call's work, which answers an Error.
template <class Work>
kvonce_reason guarded(kvonce_error* error, const Work& work) noexcept {
  try {
    return tell(error, work());
  } catch (const std::bad_alloc&) { return tell(error, {Reason::no_space, "no memory"}); } catch (const std::exception& problem) {
    // Threads, descriptors: what the system did not give.
    try {
      return tell(error, {Reason::no_space, problem.what()});
    } catch (...) { return KVONCE_REASON_NO_SPACE; }
  }
}

template <class Handle>
bool is_parents(const Handle& handle) noexcept {
  return handle.forks != runtime::fork_count();
}
/// Empty when the handle can be used here.
template <class Handle>
Error check(const Handle* handle, const char* what) {
  if (handle == nullptr) return null(what);
  if (is_parents(*handle))
    return {Reason::closed, std::string("the ") + what + " was made before a fork; the child has to start its own runtime"};
  return {};
}
/// Ends a handle. In a child nothing of the parent's may be touched.
template <class Handle>
void free_handle(Handle* handle) noexcept {
  if (handle != nullptr && !is_parents(*handle)) delete handle;
}
/// True when it may be read for a single number.
template <class Handle>
bool usable(const Handle* handle) noexcept {
  return handle != nullptr && !is_parents(*handle);
}

inline constexpr std::size_t kMaxStructBytes = 64U << 10U;

Error check_size(const char* what, std::size_t size, std::size_t first_size);
Error check_tail(const char* what, std::size_t size, std::size_t known, const void* begin);

/// Reads a versioned struct over the defaults in `out`. `first_size` is that of the struct's first version.
template <class T>
Error read_options(const T* given, const char* what, T* out, std::size_t first_size = sizeof(T)) {
  if (given == nullptr) return {};
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (Error error = check_size(what, size, first_size)) return error;
  if (Error error = check_tail(what, size, sizeof(T), given)) return error;
  std::memcpy(static_cast<void*>(out), given, std::min(size, sizeof(T)));
  return {};
}
/// Writes a versioned struct as far as the caller's goes; what the caller's has more becomes zero.
template <class T>
Error write_result(const T& result, T* to, const char* what, std::size_t first_size = sizeof(T)) {
  std::size_t size = 0;
  std::memcpy(&size, to, sizeof size);
  if (Error error = check_size(what, size, first_size)) return error;
  T sized = result;
  sized.size = size;
  std::memcpy(static_cast<void*>(to), &sized, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<std::byte*>(to) + sizeof(T), 0, size - sizeof(T));
  return {};
}

Error check_reserved(const char* what, std::uint64_t value);
/// A flag is 0 or 1.
Error check_flag(const std::string& name, std::uint64_t value);
/// `least` to 65,536 entries at `list`.
Error check_list(const char* call, const char* what, const void* list, std::size_t count, std::size_t least);

/// Milliseconds that no clock overflows on; what is out of range is refused by whoever is asked.
std::chrono::milliseconds to_ms(std::uint64_t ms) noexcept;
std::chrono::milliseconds to_ms_or(std::uint64_t ms, std::chrono::milliseconds otherwise) noexcept;
std::chrono::nanoseconds to_ns(std::uint64_t ns) noexcept;

PageHash to_page(const kvonce_page& page) noexcept;
std::vector<PageHash> to_pages(const kvonce_page* pages, std::size_t count);
Coordinates to_coordinates(const kvonce_coordinates& at) noexcept;
ShardCounts to_shards(const kvonce_shards& shards) noexcept;
kvonce_shards from_shards(const ShardCounts& shards) noexcept;
inline LeaseId to_lease(const kvonce_lease& lease) noexcept { return {lease.high, lease.low}; }

/// Empty, or the queue is the parent's.
Error to_completion(const kvonce_completion* from, Completion* to);

/// With a zero byte at its end, cut at a whole character.
void copy_text(char* to, std::size_t bytes, std::string_view text) noexcept;

/// The first `capacity` of a list.
template <class From, class To, class Convert>
Error copy_list(const From& from, To* to, std::size_t capacity, std::size_t* count, const Convert& convert) {
  if (to == nullptr && capacity != 0)
    return bad("the list is NULL, its capacity " + std::to_string(capacity) + ": must be 0 then");
  const std::size_t fit = std::min(capacity, from.size());
  for (std::size_t i = 0; i < fit; ++i) convert(from[i], &to[i]);
  if (count != nullptr) *count = from.size();
  return {};
}

/// The handle of an operation that was started, or why there is none.
template <class Op>
Error give(Result<std::shared_ptr<Op>>&& started, kvonce_operation** operation, std::unique_ptr<kvonce_operation> handle) {
  if (!started) return std::move(started.error);
  handle->operation = std::move(started.value);
  *operation = handle.release();
  return {};
}

}  // namespace kvonce::capi
