// SPDX-License-Identifier: Apache-2.0
// Rules of the house that a machine can check.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLinesMax = 600;

const fs::path kRoot{KVONCE_SOURCE_DIR};

struct SourceFile {
  std::string name;  // relative to the repository
  std::vector<std::string> lines;
};

bool is_source(const fs::path& path) {
  static const std::set<std::string> kEndings{".cpp", ".hpp", ".h", ".c", ".py", ".sh", ".cmake"};
  return kEndings.contains(path.extension().string()) || path.filename() == "CMakeLists.txt";
}

SourceFile read(const fs::path& path) {
  SourceFile file{fs::relative(path, kRoot).string(), {}};
  std::ifstream in{path};
  for (std::string line; std::getline(in, line);) {
    file.lines.push_back(std::move(line));
  }
  return file;
}

std::vector<SourceFile> sources_under(const std::vector<std::string>& folders) {
  std::vector<SourceFile> files;
  for (const auto& folder : folders) {
    if (!fs::exists(kRoot / folder)) {
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator{kRoot / folder}) {
      if (entry.is_regular_file() && is_source(entry.path())) {
        files.push_back(read(entry.path()));
      }
    }
  }
  return files;
}

const std::vector<SourceFile>& all_sources() {
  static const auto kFiles = [] {
    std::vector<std::string> folders;
    for (const auto& entry : fs::directory_iterator{kRoot}) {
      const auto name = entry.path().filename().string();
      if (entry.is_directory() && name != "build" && name != ".git" && name != ".venv" && name != ".cache") {
        folders.push_back(name);
      }
    }
    auto files = sources_under(folders);
    files.push_back(read(kRoot / "CMakeLists.txt"));
    return files;
  }();
  return kFiles;
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool has_word(std::string_view line, std::string_view word) {
  for (auto at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
    const auto end = at + word.size();
    if ((at == 0 || !is_word_character(line[at - 1])) && (end == line.size() || !is_word_character(line[end]))) {
      return true;
    }
  }
  return false;
}

// An absolute path into a machine's own folders: the text after something that cannot be part of a longer path.
bool has_path(std::string_view line, std::string_view path) {
  for (auto at = line.find(path); at != std::string_view::npos; at = line.find(path, at + 1)) {
    if (at == 0 || (!is_word_character(line[at - 1]) && line[at - 1] != '.' && line[at - 1] != '}' && line[at - 1] != '/')) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("nothing of CAF is included where the logic lies") {
  const auto files = sources_under({"include", "protocol", "storage", "transport"});
  CHECK(files.size() > 3);
  for (const auto& file : files) {
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const auto& line = file.lines[i];
      if (line.find("#include") == std::string::npos) {
        continue;
      }
      for (const std::string_view banned : {"<caf/", "\"caf/", "\"messages/compat", "\"messages/caller_unit", "\"actors/", "\"runtime/"}) {
        INFO(file.name, ":", i + 1, ": ", line);
        CHECK(line.find(banned) == std::string::npos);
      }
    }
  }
}

TEST_CASE("each source begins with its licence") {
  CHECK(all_sources().size() > 10);
  for (const auto& file : all_sources()) {
    INFO(file.name);
    REQUIRE(!file.lines.empty());
    // The second line where the first one names the interpreter.
    const auto& line = file.lines[0].starts_with("#!") && file.lines.size() > 1 ? file.lines[1] : file.lines[0];
    CHECK(line.find("SPDX-License-Identifier: Apache-2.0") != std::string::npos);
  }
}

TEST_CASE("no source is longer than one subject needs") {
  for (const auto& file : all_sources()) {
    INFO(file.name);
    CHECK(file.lines.size() <= kLinesMax);
  }
}

TEST_CASE("nothing is left for later in a source, and no machine's own paths are named") {
  // Spelled in two parts, so that this file passes its own test.
  const std::vector<std::string> words{std::string{"TO"} + "DO", std::string{"FIX"} + "ME", std::string{"X"} + "XX"};
  const std::vector<std::string> paths{std::string{"/wo"} + "rk/", std::string{"/tm"} + "p/", std::string{"/ro"} + "ot/"};
  for (const auto& file : all_sources()) {
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const auto& line = file.lines[i];
      for (const auto& word : words) {
        if (has_word(line, word)) {
          FAIL_CHECK(file.name, ":", i + 1, ": ", line);
        }
      }
      for (const auto& path : paths) {
        if (has_path(line, path)) {
          FAIL_CHECK(file.name, ":", i + 1, ": ", line);
        }
      }
    }
  }
}

TEST_CASE("the program on the embedding page is the one that is compiled and run") {
  std::string page, program;
  for (const std::string& line : read(kRoot / "docs/embedding.md").lines) page += line + "\n";
  const SourceFile example = read(kRoot / "examples/embedding.cpp");
  REQUIRE(example.lines.size() > 10);
  for (std::size_t i = 1; i < example.lines.size(); ++i) program += example.lines[i] + "\n";
  CHECK(page.find("```cpp\n" + program + "```") != std::string::npos);
  // Short enough to be read at once: lines besides blank ones, comments and includes.
  const auto counts = [](const std::string& line) {
    const std::size_t at = line.find_first_not_of(' ');
    return at != std::string::npos && line.compare(at, 2, "//") != 0 && line[at] != '#';
  };
  CHECK(std::count_if(example.lines.begin(), example.lines.end(), counts) <= 30);
}

TEST_CASE("the style test sees what it is there to see") {
  CHECK(has_word("// TO" "DO: later", std::string{"TO"} + "DO"));
  CHECK_FALSE(has_word("auto xTO" "DO = 1;", std::string{"TO"} + "DO"));
  CHECK(has_path("open(\"/tm" "p/x\")", std::string{"/tm"} + "p/"));
  CHECK_FALSE(has_path("include(frame/tm" "p/x)", std::string{"/tm"} + "p/"));
}
