// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonced/limits.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>

#include <sys/resource.h>
#include <unistd.h>

#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

// Of descriptors: its own, some clients, and the copies that are handed over.
constexpr rlim_t kLeastDescriptors = 64;
constexpr rlim_t kDescriptorsPerClient = 5;
// Of address space: program, libraries, stacks and heaps of the threads, as measured with some room.
constexpr std::uint64_t kOwnBytes = std::uint64_t{384} << 20;
constexpr std::uint64_t kBytesPerThread = std::uint64_t{72} << 20;

std::terminate_handler usual = nullptr;

[[noreturn]] void end_with_sentence() {
  std::string text = "kvonced: the store could not be started: ";
  try {
    if (const auto problem = std::current_exception()) std::rethrow_exception(problem);
    text += "the system gives this process no more threads";  // what else leaves no exception
  } catch (const std::exception& problem) {
    text += problem.what();
  } catch (...) {
    text += "an unknown problem";
  }
  text += " (limits: ulimit -a; of a container: its memory and pids)\n";
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  _exit(2);
}

}  // namespace

std::string fit_limits(const Settings& settings) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    const rlim_t wanted = kLeastDescriptors + kDescriptorsPerClient * settings.runtime.max_clients;
    if (limit.rlim_cur < wanted && limit.rlim_cur != limit.rlim_max) {
      limit.rlim_cur = std::min(wanted, limit.rlim_max);
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < kLeastDescriptors) {
      return "this process may open " + std::to_string(limit.rlim_cur) + " files (ulimit -n); a store needs " +
             std::to_string(kLeastDescriptors) + ", and " + std::to_string(kDescriptorsPerClient) + " for each client: raise the limit";
    }
  }
  const std::uint64_t needed = settings.runtime.arena_bytes + kOwnBytes + kBytesPerThread * (settings.runtime.scheduler_threads - 1);
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < needed) {
    return "this process may have " + protocol::format_bytes(limit.rlim_cur) + " of address space (ulimit -v); a store with " +
           protocol::format_bytes(settings.runtime.arena_bytes) + " of memory needs " + protocol::format_bytes(needed) +
           ": raise the limit, or ask for less --memory";
  }
  return {};
}

void begin_of_start() { usual = std::set_terminate(end_with_sentence); }
void end_of_start() { std::set_terminate(usual); }

}  // namespace kvonce::apps
