// SPDX-License-Identifier: Apache-2.0
//
// Faults that are best kept out by looking at the sources: clocks that can be set, waits without end, fixed ports, kills by name.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Hit {
  std::string file;
  std::size_t line = 0;
  std::string text;
};

/// Lines of the folders' files that match; comments do not count.
std::vector<Hit> find(const std::vector<std::string>& folders, const std::string& pattern, std::size_t* files_seen = nullptr) {
  const std::regex wanted(pattern);
  const fs::path root{KVONCE_SOURCE_DIR};
  std::vector<Hit> hits;
  for (const auto& folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || entry.path().filename() == "source_test.cpp") continue;
      if (files_seen != nullptr) ++*files_seen;
      std::ifstream in(entry.path());
      std::string line;
      for (std::size_t number = 1; std::getline(in, line); ++number) {
        const std::string code = line.substr(0, line.find("//"));
        if (std::regex_search(code, wanted)) hits.push_back({fs::relative(entry.path(), root).string(), number, line});
      }
    }
  }
  return hits;
}

void check_none(const std::vector<Hit>& hits) {
  for (const Hit& hit : hits) FAIL_CHECK(hit.file, ":", hit.line, ": ", hit.text);
}

const std::vector<std::string> kProduct{"include", "protocol", "storage", "transport", "messages", "actors", "runtime", "telemetry", "capi", "python"};

}  // namespace

TEST_CASE("no lease, deadline or stamp hangs on a clock that somebody can set") {
  const std::string wall = R"(system_clock|utc_clock|high_resolution_clock|CLOCK_REALTIME|gettimeofday|\btime\s*\(\s*(nullptr|NULL|0)\s*\)|\blocaltime|\bgmtime)";
  std::size_t files = 0;
  check_none(find(kProduct, wall, &files));
  CHECK(files > 50);
  // The logic reads no clock at all: `now` comes with each event.
  check_none(find({"protocol", "storage"}, R"(_clock::now|clock_gettime)"));
  CHECK(!find({"runtime"}, R"(steady_clock::now)").empty());  // the search finds what is there
}

TEST_CASE("no actor waits for another without an end") {
  auto hits = find({"actors", "runtime", "messages", "telemetry"}, R"(\binfinite\b|\bkForever\b)");
  std::erase_if(hits, [](const Hit& hit) { return hit.file == "messages/compat.hpp"; });  // where the word is defined
  check_none(hits);
}

TEST_CASE("nothing is ended by its name, and no port is fixed") {
  check_none(find({"tests", "tools", "cmake", "apps", "bench", "examples"}, R"(\b(pkill|killall|fuser)\b)"));
  check_none(find({"tests", "tools", "apps", "bench", "runtime", "actors", "messages"},
                  R"(htons\s*\(\s*[1-9]|sin6?_port\s*=\s*[1-9]|(publish|bind)\s*\([^)]*,\s*[1-9][0-9]{3,4}\b|--port[= ][1-9]|(127\.0\.0\.1|localhost):[1-9])"));
}
