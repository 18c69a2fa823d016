// SPDX-License-Identifier: Apache-2.0
#include "python/src/options.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/units.hpp"
#include "python/src/errors.hpp"
#include "python/src/values.hpp"

namespace kvonce::python {
namespace {

using Text = std::string RuntimeConfig::*;
using Flag = bool RuntimeConfig::*;
using Number = std::uint32_t RuntimeConfig::*;
using Whole = int RuntimeConfig::*;
using Huge = HugePages RuntimeConfig::*;
using Time = std::chrono::milliseconds RuntimeConfig::*;
/// Bytes, or bytes per second: as an int or a text.
struct Size {
  std::uint64_t RuntimeConfig::*field;
};
struct Count {
  std::uint64_t RuntimeConfig::*field;
};

struct Option {
  const char* name;
  std::variant<Text, Flag, Number, Whole, Huge, Time, Size, Count> field;
};

#define KVONCE_FIELD(name) \
  Option { #name, &RuntimeConfig::name }
#define KVONCE_SIZE(name)                \
  Option {                               \
#name, Size { &RuntimeConfig::name } \
  }
const std::vector<Option>& options() {
  static const std::vector<Option> kOptions{
      KVONCE_FIELD(connect_timeout),
      KVONCE_FIELD(read_only),
      KVONCE_FIELD(serve),
      KVONCE_FIELD(serve_group),
      KVONCE_FIELD(max_clients),
      KVONCE_FIELD(engine_grace),
      KVONCE_FIELD(arena_file),
      KVONCE_FIELD(numa_node),
      KVONCE_SIZE(auto_bytes),
      KVONCE_FIELD(auto_idle),
      KVONCE_FIELD(kvonced_path),
      KVONCE_SIZE(arena_bytes),
      KVONCE_SIZE(capacity_bytes),
      Option{"index_pages", Count{&RuntimeConfig::index_pages}},
      KVONCE_FIELD(populate),
      KVONCE_FIELD(huge_pages),
      KVONCE_FIELD(partitions),
      KVONCE_FIELD(ghost_entries),
      KVONCE_FIELD(policy),
      KVONCE_FIELD(checksums),
      KVONCE_SIZE(window_bytes),
      KVONCE_FIELD(grant_base),
      KVONCE_SIZE(least_rate),
      KVONCE_FIELD(verify_sample),
      KVONCE_FIELD(verify_window),
      KVONCE_FIELD(conflict_limit),
      KVONCE_FIELD(demote),
      KVONCE_FIELD(lease_time),
      KVONCE_SIZE(leased_bytes),
      KVONCE_FIELD(leased_stops),
      KVONCE_FIELD(scheduler_threads),
      KVONCE_FIELD(mover_threads),
      KVONCE_FIELD(copy_kernel),
      KVONCE_SIZE(inline_copy_bytes),
      KVONCE_FIELD(caller_runs),
  };
  return kOptions;
}
#undef KVONCE_FIELD
#undef KVONCE_SIZE

/// Least number of letters that are changed, added or taken away.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = corner + (a[i] == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, corner + 1});
    }
  }
  return row.back();
}

[[noreturn]] void refuse(const std::string& name) {
  // With those that are arguments of its own.
  std::vector<std::string> names{"engine_id", "store"};
  for (const Option& option : options()) names.emplace_back(option.name);
  const auto nearest = std::min_element(names.begin(), names.end(), [&name](const std::string& a, const std::string& b) {
    return distance(name, a) < distance(name, b);
  });
  const std::string none = "Runtime has no option '" + name + "'";
  // One that shares less than half of its letters is no help.
  if (distance(name, *nearest) * 2 >= std::max(name.size(), nearest->size())) raise_bad(none + "; help(kvonce.Runtime) lists them");
  raise_bad(none + "; the nearest is '" + *nearest + "'");
}

/// Sets fields of the config from Python values.
struct Setter {
  RuntimeConfig& config;
  const std::string& name;
  nb::handle value;

  [[noreturn]] void wrong(const std::string& allowed) const { raise_bad(name + " is " + shown(value) + ": must be " + allowed); }

  /// What RuntimeConfig::check() allows, where it refuses `refused`; else `otherwise`.
  template <class T>
  std::string range(T RuntimeConfig::*field, T refused, const std::string& otherwise) const {
    RuntimeConfig probe = config;
    probe.*field = refused;
    const std::string text = probe.check().text;
    const std::string_view before = ": must be ";
    const std::size_t at = text.find(before);
    return at == std::string::npos || !text.starts_with(name + " is ") ? otherwise : text.substr(at + before.size());
  }
  template <class T>
  void number(T RuntimeConfig::*field, const std::string& what) const {
    constexpr std::uint64_t kMost = std::numeric_limits<T>::max();
    std::uint64_t number = 0;
    if (PyLong_Check(value.ptr()) == 0 || PyBool_Check(value.ptr())) {
      if (!nb::try_cast(value, number, false) || PyBool_Check(value.ptr())) {
        PyErr_Clear();
        wrong(what);
      }
    } else if (!nb::try_cast(value, number, false) || number > kMost) {
      // Too large or small for the field itself.
      PyErr_Clear();
      const std::string allowed = range(field, std::numeric_limits<T>::max(), "0 to " + protocol::format_count(kMost));
      wrong(what.starts_with("a whole number") ? "a whole number, " + allowed : allowed);
    }
    config.*field = static_cast<T>(number);
  }
  void operator()(Text field) const {
    if (!nb::try_cast(value, config.*field)) wrong("a text");
  }
  void operator()(Flag field) const {
    if (!PyBool_Check(value.ptr())) wrong("True or False");
    config.*field = value.is(Py_True);
  }
  void operator()(Number field) const {
    number(field, "a whole number, 0 or more");
  }
  void operator()(Whole field) const {
    if (PyBool_Check(value.ptr()) || !nb::try_cast(value, config.*field, false)) {
      PyErr_Clear();
      wrong(PyLong_Check(value.ptr()) != 0 && !PyBool_Check(value.ptr()) ? range(field, std::numeric_limits<int>::max(), "a whole number")
                                                                          : "a whole number");
    }
  }
  void operator()(Huge field) const {
    static const char* const kAllowed = "True, False, 'off', 'transparent' or 'reserved'";
    if (PyBool_Check(value.ptr())) {
      config.*field = HugePages(value.is(Py_True));
      return;
    }
    std::string text;
    if (!nb::try_cast(value, text)) wrong(kAllowed);
    if (text == "off") config.*field = HugePages::off;
    else if (text == "transparent") config.*field = HugePages::transparent;
    else if (text == "reserved") config.*field = HugePages::reserved;
    else wrong(kAllowed);
  }
  void operator()(Time field) const {
    double seconds = 0;
    if (PyBool_Check(value.ptr()) || !nb::try_cast(value, seconds)) {
      PyErr_Clear();
      wrong("seconds");
    }
    const std::string allowed = range(field, std::chrono::milliseconds{std::chrono::hours{1'000}}, kAnyTime);
    if (!std::isfinite(seconds) || seconds < 0 || seconds > kMostSeconds) wrong("seconds, " + allowed);
    config.*field = milliseconds(seconds, name.c_str(), kAnyTime);
  }
  void operator()(Count field) const { number(field.field, "a whole number, 0 or more"); }
  void operator()(Size field) const {
    if (PyUnicode_Check(value.ptr()) == 0) {
      return number(field.field, "bytes as a whole number, or a text as '1GiB'");
    }
    const auto parsed = protocol::parse_bytes(text_of(value, name), 0, ~std::uint64_t{0});
    if (!parsed) raise_bad(name + " is " + shown(value) + ": " + parsed.error);
    config.*(field.field) = parsed.value;
  }
};

}  // namespace

RuntimeConfig read_options(const std::string& engine_id, const std::string& store, const nb::kwargs& given) {
  RuntimeConfig config;
  config.engine_id = engine_id;
  config.store = store;
  for (const auto& [key, value] : given) {
    const std::string name = text_of(key, "the name of an option");
    const auto found =
        std::find_if(options().begin(), options().end(), [&](const Option& option) { return name == option.name; });
    if (found == options().end()) refuse(name);
    std::visit(Setter{config, name, value}, found->field);
  }
  return config;
}

}  // namespace kvonce::python
