// SPDX-License-Identifier: Apache-2.0
//
// One pool's rows, with bytes that follow from (page, salt), and a way to hold whoever copies them in the middle of a row.
#pragma once

#include <cstdint>
#include <optional>

#include <kvonce/pool.hpp>
#include <kvonce/types.hpp>

namespace kvonce::process_test {

/// The i-th page of a chain.
PageHash page_of(std::uint64_t chain, std::uint64_t i);

class RowMemory {
 public:
  RowMemory(std::uint64_t rows, std::uint64_t row_bytes, std::uint32_t layers);
  ~RowMemory();
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;

  std::uint64_t rows() const { return rows_; }
  std::uint64_t object_bytes() const { return row_bytes_ * layers_; }
  Component component(const std::string& name);
  void fill(std::uint64_t row, const PageHash& page, std::uint64_t salt);
  bool holds(std::uint64_t row, const PageHash& page, std::uint64_t salt) const;
  void clear(std::uint64_t row);

  /// Whoever touches this byte of the row's first layer from now on is held until let_go(). One place a process, once.
  bool hold(std::uint64_t row, std::uint64_t at);
  /// Waits until somebody is held; false: nobody within the time.
  static bool wait_held(int timeout_ms);
  static void let_go();

 private:
  std::uint64_t* words(std::uint32_t layer, std::uint64_t row) const;
  std::uint64_t rows_;
  std::uint64_t row_bytes_;
  std::uint32_t layers_;
  unsigned char* base_ = nullptr;
};

}  // namespace kvonce::process_test
