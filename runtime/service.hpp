// SPDX-License-Identifier: Apache-2.0
//
// A Runtime's store for the other processes of its host: the listener, and what it tells those that it lets in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core.hpp"
#include "storage/arena.hpp"
#include "transport/link_server.hpp"

namespace kvonce::runtime {

class StoreService {
 public:
  /// `core` outlives it; its arena, layout and host must be there before start().
  explicit StoreService(Core& core) : core_(core) {}
  ~StoreService() { stop(); }
  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;

  /// Takes the socket's lock: before the memory, so that a second store of the same socket takes none, and whoever wants to end
  /// one that is starting finds it.
  Error reserve();
  Error start(std::uint64_t incarnation);
  void stop_accepting();
  /// All links end.
  void stop();

 private:
  Core& core_;
  std::string info_;
  std::optional<std::uint32_t> group_;
  std::shared_ptr<transport::SocketPath> place_;
  storage::Descriptor read_only_;
  std::unique_ptr<transport::LinkServer> server_;
};

}  // namespace kvonce::runtime
