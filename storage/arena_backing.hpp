// SPDX-License-Identifier: Apache-2.0
//
// The descriptors behind an arena: memfds, named files and their locks. Private to storage/arena*.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "storage/arena.hpp"

namespace kvonce::storage::backing {

// "what 'name': reason of errno".
std::string failed(const std::string& what, int error);

struct Memory {
  Descriptor fd;
  std::uint64_t bytes = 0;
  std::uint64_t page_bytes = 0;  // unit of its mappings
};

// At least `bytes`, in whole pages; sealed against every change of its size. An empty result and `error`: there is none.
std::optional<Memory> make_memfd(std::uint64_t bytes, bool reserved_huge_pages, std::string* error);

// The lock of a named file is taken, its directory checked. `publish` gives a new file its name.
class NamedFile {
 public:
  static std::optional<NamedFile> lock(const std::string& path, std::string* error);

  std::uint64_t page_bytes() const { return page_bytes_; }
  // So that a size that cannot be had is refused before memory is taken. May remove the old file.
  std::optional<std::string> make_room(std::uint64_t bytes);
  // A new file under another name; of its memory nothing is taken yet.
  std::optional<Descriptor> make(std::uint64_t bytes, std::string* error);
  // Takes all of its memory, so that no access can fail for the lack of it.
  std::optional<std::string> allocate(int fd, std::uint64_t bytes, const std::function<bool()>& canceled);
  std::optional<std::string> publish();
  void discard();  // the new file, before it is published
  std::optional<Descriptor> open_existing(std::uint64_t bytes, const std::function<bool()>& canceled, std::string* error);
  Descriptor take_lock() { return std::move(lock_); }
  Descriptor take_own_lock() { return std::move(own_lock_); }

 private:
  NamedFile() = default;
  // The lock of the file that has the name now. PATH.lock is held; it is another one when somebody removed the first.
  std::optional<std::string> lock_named();
  std::string path_;
  std::string name_;  // within the directory
  Descriptor directory_;
  Descriptor lock_;
  Descriptor own_lock_;
  std::uint64_t page_bytes_ = 0;
};

// Why somebody else's descriptor cannot be mapped as an arena of `bytes`; nothing when it can.
std::optional<std::string> check_foreign(int fd, std::uint64_t bytes, bool sealed, std::uint64_t* page_bytes);

// Has the pages of [base, base + bytes) on one NUMA node.
std::optional<std::string> bind_to_node(void* base, std::uint64_t bytes, int node);

}  // namespace kvonce::storage::backing
