// SPDX-License-Identifier: Apache-2.0
//
// A Runtime that serves and Runtimes that connect to it, in one process.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/runtime/fixture.hpp"

namespace runtime_test {

/// A folder with the socket in it.
struct Place {
  std::string folder = (std::filesystem::temp_directory_path() / "kvonce-remote-XXXXXX").string();
  Place() { REQUIRE(mkdtemp(folder.data()) != nullptr); }
  ~Place() {
    std::error_code code;
    // Empty: whoever served has cleaned up behind itself.
    CHECK(std::filesystem::is_empty(folder, code));
    std::filesystem::remove_all(folder, code);
  }
  std::string socket() const { return "unix:" + folder + "/store"; }
};

inline RuntimeConfig serving(const Place& place, std::uint32_t partitions = 1) {
  RuntimeConfig config = small_config();
  config.engine_id = "host";
  config.serve = place.socket();
  config.partitions = partitions;
  return config;
}
inline RuntimeConfig connecting(const Place& place, const std::string& engine = "test-engine") {
  RuntimeConfig config = small_config();
  config.engine_id = engine;
  config.store = place.socket();
  // A try to connect that the machine's load makes slow is no failure.
  config.connect_timeout = std::chrono::seconds(60);
  return config;
}
inline std::unique_ptr<Runtime> serve(const RuntimeConfig& config) {
  auto started = Runtime::start(config);
  REQUIRE_MESSAGE(started, started.error.text);
  return std::move(*started);
}

/// Looks again and again, for 60 s at most.
template <class Holds>
bool eventually(const Holds& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

inline void check_load(Engine& engine, std::size_t rank, std::uint64_t chain, std::size_t count, std::uint64_t salt = 0) {
  const auto found = engine.lookup(chain, count);
  CHECK_MESSAGE(found.restorable_pages == count, to_string(found.reason));
  engine.ranks[rank].rows->clear();
  const auto load = engine.load(rank, found.lease, chain, count);
  load->wait();
  CHECK(load->loaded() == count);
  for (std::size_t i = 0; i < count; ++i) CHECK(engine.ranks[rank].rows->holds(i, page_of(chain, i), salt));
  CHECK(!engine.runtime->release(found.lease));
}

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace runtime_test
