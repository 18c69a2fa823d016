// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <iostream>
#include <sstream>

#include "tests/process/helper/program.hpp"

namespace kvonce::process_test {

Line::Line(const std::string& text) {
  std::istringstream words(text);
  words >> word_;
  for (std::string field; words >> field;) {
    const auto at = field.find('=');
    fields_.insert_or_assign(field.substr(0, at), at == std::string::npos ? std::string(1, '1') : field.substr(at + 1));
  }
}

std::string Line::text(const std::string& name, const std::string& otherwise) const {
  const auto at = fields_.find(name);
  return at == fields_.end() ? otherwise : at->second;
}

std::uint64_t Line::number(const std::string& name, std::uint64_t otherwise) const {
  const auto at = fields_.find(name);
  return at == fields_.end() ? otherwise : std::stoull(at->second, nullptr, 0);
}

}  // namespace kvonce::process_test

int main() {
  std::signal(SIGPIPE, SIG_IGN);
  kvonce::process_test::Program program;
  for (std::string line; std::getline(std::cin, line);)
    if (!program.obey(kvonce::process_test::Line(line))) break;
  return 0;
}
