// SPDX-License-Identifier: Apache-2.0
//
// Makes a copy out of this process's rows stand still in the middle of a row, for whoever wants to end the process just then.
// A page of memory in the row may not be read; who reads it is held in the signal handler until the gate opens. The store, its
// library and the copying know nothing of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/board.hpp"

namespace kvonce::bench {

/// One in a process.
class Gate {
 public:
  Gate(Board& board, std::size_t rank);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// From now on, reading the system's page at any of these addresses waits for the board's gates_opened >= round.
  /// False when the system refuses.
  bool close(std::uint32_t round, const std::vector<std::byte*>& pages);
  /// All pages may be read again.
  void open();

 private:
  std::vector<std::byte*> pages_;
};

}  // namespace kvonce::bench
