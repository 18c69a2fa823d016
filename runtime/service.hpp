// SPDX-License-Identifier: Apache-2.0
//
// A Runtime's store for the other processes of its host: the listener, and what it tells those that it lets in.
#pragma once

#include <memory>
#include <mutex>

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

  Error start(std::uint64_t incarnation);
  void stop_accepting();
  /// All links end.
  void stop();

 private:
  Core& core_;
  std::string info_;
  storage::Descriptor read_only_;
  std::unique_ptr<transport::LinkServer> server_;
};

}  // namespace kvonce::runtime
