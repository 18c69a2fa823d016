// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/store_fixture.hpp"

#include <algorithm>

#include <doctest/doctest.h>

namespace kvonce::cli_test {
namespace {

std::vector<std::string> with_defaults(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"--populate", "no"});
  if (std::find(settings.begin(), settings.end(), "--memory") == settings.end())
    settings.insert(settings.end(), {"--memory", "64MiB"});
  return settings;
}

}  // namespace

LiveStore::LiveStore(const RunFolder&, std::vector<std::string> settings)
    : process_(KVONCED_PROGRAM, with_defaults(std::move(settings))) {
  ready_ = process_.wait_out("is ready on");
}

nlohmann::json run_json(std::vector<std::string> arguments, int exit_status) {
  arguments.push_back("--json");
  const ProgramResult result = run_program(arguments);
  INFO(result.out);
  INFO(result.err);
  CHECK(result.exit_status == exit_status);
  CHECK(result.err.empty());
  nlohmann::json out = result.json();
  CHECK(out.is_object());
  return out;
}

std::string bytes_of(std::size_t count, int seed) {
  std::string out(count, '\0');
  auto state = static_cast<unsigned>(seed) * 2'654'435'761U + 1;
  for (char& c : out) {
    state = state * 1'664'525U + 1'013'904'223U;
    c = static_cast<char>(state >> 24);
  }
  return out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace kvonce::cli_test
