// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_memory.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace kvonce::runtime {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  if (!std::getline(in, text)) return std::nullopt;
  return number(text);  // "max" is no number: no limit
}

/// The number that follows `key` at the start of a line.
std::optional<std::uint64_t> field_in(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find_first_of("0123456789", key.size());
    if (at != std::string::npos) return number(std::string_view(line).substr(at));
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* used;
  const char* reclaimable;  // counted as used, but given up on demand
};
constexpr GroupFiles kVersion2{"/memory.max", "/memory.current", "inactive_file "};
constexpr GroupFiles kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};

std::uint64_t left_in(const std::string& group, const GroupFiles& files) {
  const auto limit = number_in(group + files.limit);
  if (!limit) return kUnlimited;
  const std::uint64_t used = number_in(group + files.used).value_or(0);
  const std::uint64_t reclaimable = std::min(field_in(group + "/memory.stat", files.reclaimable).value_or(0), used);
  const std::uint64_t taken = used - reclaimable;
  return *limit > taken ? *limit - taken : 0;
}

/// The least over a group and all that it lies in. In a container the path named may not be there, but its root is the group.
std::uint64_t left_on_path(const std::string& mount, std::string path, const GroupFiles& files) {
  std::uint64_t least = left_in(mount, files);
  while (path.size() > 1) {
    least = std::min(least, left_in(mount + path, files));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

std::uint64_t available_memory(const std::string& root) {
  const auto kib = field_in(root + "/proc/meminfo", "MemAvailable:");
  std::uint64_t least = kib ? *kib * 1024 : kUnlimited;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/path", or "0::/path" for version 2
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string path = line.substr(second + 1);
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    if (controllers == ",,") {
      least = std::min(least, left_on_path(root + "/sys/fs/cgroup", path, kVersion2));
      least = std::min(least, left_on_path(root + "/sys/fs/cgroup/unified", path, kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, left_on_path(root + "/sys/fs/cgroup/memory", path, kVersion1));
    }
  }
  return least == kUnlimited ? 0 : least;
}

std::uint64_t default_store_bytes(std::uint64_t available) {
  constexpr std::uint64_t kUnit = std::uint64_t{2} << 20;
  return available / 4 / kUnit * kUnit;
}

}  // namespace kvonce::runtime
