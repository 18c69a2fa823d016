// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/trace_reader.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include <unistd.h>

#include <doctest/doctest.h>
#include <lzma.h>

#include "apps/workload/trace_line.hpp"

using namespace kvonce::workload;

namespace {

constexpr const char* kGood = R"({"timestamp": 10, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]})";

class TempFile {
public:
  TempFile(const std::string& suffix, std::string_view content) {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() / ("kvonce-trace-" + std::to_string(::getpid()) + '-' + std::to_string(count++) + suffix)).string();
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }

private:
  std::string path_;
};

/// Reads to the end and returns how many requests there were before the end or error.
std::size_t drain(TraceSource& source) {
  std::size_t count = 0;
  while (source.next()) ++count;
  return count;
}

std::string compressed(std::string_view text) {
  std::vector<std::uint8_t> out(lzma_stream_buffer_bound(text.size()));
  std::size_t used = 0;
  REQUIRE(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), out.data(),
                                  &used, out.size()) == LZMA_OK);
  return {reinterpret_cast<const char*>(out.data()), used};
}

std::string line_error(std::string_view line) {
  TraceRequest request;
  std::string error;
  CAPTURE(line);
  CHECK_FALSE(parse_trace_line(line, request, error));
  return error;
}

std::string many_lines(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += R"({"timestamp": )" + std::to_string(i) + R"(, "input_length": 1024, "output_length": 3, "hash_ids": [)" + std::to_string(i * 15838) +
            ", " + std::to_string(i * 104730 + 1) + "]}\n";
  }
  return text;
}

}  // namespace

TEST_CASE("a request has its full pages only") {
  TraceRequest request;
  std::string error;
  REQUIRE(parse_trace_line(kGood, request, error));
  CHECK(request.timestamp_ms == 10);
  CHECK(request.input_tokens == 1100);
  CHECK(request.output_tokens == 3);
  CHECK(request.pages == std::vector<std::uint64_t>{7, 8});
  CHECK_FALSE(request.session);
}

TEST_CASE("sessions, unknown fields, the largest id and any spacing are understood") {
  TraceRequest request;
  std::string error;
  REQUIRE(parse_trace_line("\t{\"session\":5,\"type\":\"a\\\"}b\",\"extra\":{\"x\":[1,-2.5e+3,{\"y\":null},[]],\"z\":{}},\"ok\":true,\"hash_ids\":"
                           "[ 18446744073709551615 ],\"output_length\":0,\"input_length\":600,\"timestamp\":0} \r",
                           request, error));
  CHECK(request.session == 5);
  CHECK(request.pages == std::vector<std::uint64_t>{18446744073709551615ULL});
  REQUIRE(parse_trace_line(R"({"timestamp":1,"session":null,"input_length":1,"output_length":1,"hash_ids":[]})", request, error));
  CHECK_FALSE(request.session);
  CHECK(request.pages.empty());
}

TEST_CASE("a value that is not allowed is told with its field, the value and what is allowed") {
  const auto with = [](std::string_view field, std::string_view value) {
    std::string line = R"({"timestamp": 10, "session": 1, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]})";
    const std::size_t name = line.find('"' + std::string(field) + '"');
    const std::size_t begin = line.find(": ", name) + 2;
    const std::size_t end = field == "hash_ids" ? line.size() - 1 : line.find(',', begin);
    return line.replace(begin, end - begin, value);
  };
  struct Case {
    std::string_view field, value, shown;
  };
  for (const Case& one : {Case{"input_length", "-1", "-1"}, Case{"input_length", "1.5", "1.5"}, Case{"input_length", "\"7\"", "\"7\""},
                          Case{"input_length", "1e3", "1e3"}, Case{"input_length", "1000000001", "1000000001"}, Case{"input_length", "null", "null"},
                          Case{"input_length", "007", "007"}, Case{"output_length", "-5", "-5"}, Case{"timestamp", "-1", "-1"},
                          Case{"timestamp", "1.0", "1.0"}, Case{"session", "\"a\"", "\"a\""}, Case{"hash_ids", "[7, 8.0]", "8.0"},
                          Case{"hash_ids", "[7, -8]", "-8"}, Case{"hash_ids", "[7, \"8\"]", "\"8\""}, Case{"hash_ids", "[7, 1e2]", "1e2"},
                          Case{"hash_ids", "[7, 18446744073709551616]", "18446744073709551616"}, Case{"hash_ids", "[7, null]", "null"},
                          Case{"hash_ids", "{}", "{"}, Case{"hash_ids", "7", "7"}, Case{"hash_ids", "[7, [8]]", "[8"},
                          Case{"hash_ids", "[7]", "1 id"}, Case{"hash_ids", "[1,2,3,4]", "4 ids"}}) {
    const std::string error = line_error(with(one.field, one.value));
    CAPTURE(error);
    CHECK(error.find("field \"" + std::string(one.field) + "\": " + std::string(one.shown) + " is not allowed; allowed is ") == 0);
  }
}

TEST_CASE("a missing or doubled field is named") {
  CHECK(line_error(R"({"input_length": 1, "output_length": 3, "hash_ids": []})").find("\"timestamp\" is missing") != std::string::npos);
  CHECK(line_error(R"({"timestamp": 1, "input_length": 1, "output_length": 3})").find("\"hash_ids\" is missing") != std::string::npos);
  CHECK(line_error("{}").find("is missing") != std::string::npos);
  CHECK(line_error(R"({"timestamp": 1, "timestamp": 2})").find("a second one") != std::string::npos);
}

TEST_CASE("what is not JSON is told with its column") {
  for (const std::string_view line : {"hello", "[1]", "7", R"({"timestamp" 1})", R"({timestamp: 1})", R"({"a": tru})", R"({"a": 01})", R"({"a": 1.})",
                                      R"({"a": 1,})", R"({"a": "b" "c"})", R"({"a": [1 2]})", R"({"a": [1,]})"}) {
    CHECK(line_error(line).find("not JSON at column ") == 0);
  }
  CHECK(line_error(std::string(kGood) + "x").find("not JSON at column ") == 0);
  CHECK(line_error(R"({"a": )" + std::string(5000, '[')).find("not JSON at column ") == 0);
}

TEST_CASE("a line that is cut anywhere is refused as cut") {
  const std::string_view good = kGood;
  for (std::size_t length = 1; length < good.size(); ++length) {
    CAPTURE(length);
    CHECK(line_error(good.substr(0, length)).find("the line is cut") == 0);
  }
}

TEST_CASE("random damage to a line never crashes the reader and never yields fewer pages than the prompt has") {
  std::mt19937 random(1);
  const std::string_view good = kGood;
  for (int round = 0; round < 20'000; ++round) {
    std::string line(good);
    for (unsigned i = 0; i <= random() % 3; ++i) line[random() % line.size()] = static_cast<char>(random() % 128);
    TraceRequest request;
    std::string error;
    if (parse_trace_line(line, request, error)) {
      REQUIRE(request.pages.size() == request.input_tokens / kTracePageTokens);
    } else {
      REQUIRE_FALSE(error.empty());
    }
  }
}

TEST_CASE("blank lines and a missing last newline are no fault") {
  const TempFile file(".jsonl", "\n" + std::string(kGood) + "\r\n  \n\n" + kGood);
  auto opened = open_trace_file(file.path());
  REQUIRE(opened.source);
  CHECK(drain(*opened.source) == 2);
  CHECK(opened.source->error().empty());
}

TEST_CASE("reading stops for good at a bad line, and the error has file and line") {
  const TempFile file(".jsonl", std::string(kGood) + "\n\n{\"timestamp\": -1}\n" + kGood + "\n");
  auto opened = open_trace_file(file.path());
  CHECK(drain(*opened.source) == 1);
  CHECK(opened.source->error().find(file.path() + ":3: field \"timestamp\": -1 is not allowed") == 0);
  CHECK_FALSE(opened.source->next());
}

TEST_CASE("an xz trace yields what the plain one does, over many buffers") {
  const std::string text = many_lines(20'000);
  const TempFile plain(".jsonl", text);
  const TempFile packed(".jsonl.xz", compressed(text));
  auto a = open_trace_file(plain.path());
  auto b = open_trace_file(packed.path());
  std::size_t count = 0;
  for (;;) {
    const auto left = a.source->next();
    const auto right = b.source->next();
    REQUIRE(left.has_value() == right.has_value());
    if (!left) break;
    REQUIRE(left->timestamp_ms == count);
    REQUIRE(left->pages == right->pages);
    ++count;
  }
  CHECK(count == 20'000);
  CHECK(a.source->error().empty());
  CHECK(b.source->error().empty());
}

TEST_CASE("several xz streams in one file are read as one") {
  const TempFile file(".xz", compressed(many_lines(3)) + compressed(many_lines(4)));
  auto opened = open_trace_file(file.path());
  CHECK(drain(*opened.source) == 7);
  CHECK(opened.source->error().empty());
}

TEST_CASE("damaged xz data is an error, not an early end") {
  const std::string whole = compressed(many_lines(20'000));
  std::string flipped = whole;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x20);
  // Text comes out of the decoder before its checksum does, so a flipped bit may be told as a bad line instead.
  struct Case {
    std::string content, reason;
  };
  for (const Case& one : {Case{flipped, ""}, Case{whole.substr(0, whole.size() / 2), "ends early"}, Case{whole.substr(0, whole.size() - 1), "ends early"},
                          Case{many_lines(1), "not an xz file"}, Case{whole + std::string(64, 't'), "corrupt"}, Case{"", "ends early"}}) {
    const TempFile file(".xz", one.content);
    auto opened = open_trace_file(file.path());
    REQUIRE(opened.source);
    drain(*opened.source);
    CAPTURE(opened.source->error());
    CHECK(opened.source->error().find(file.path()) == 0);
    CHECK(opened.source->error().find(one.reason) != std::string::npos);
  }
}

TEST_CASE("files that cannot be read or hold nothing are told with their name") {
  const auto absent = open_trace_file("/no/such/trace.jsonl");
  CHECK_FALSE(absent.source);
  CHECK(absent.error == "/no/such/trace.jsonl: cannot be opened: No such file or directory");
  CHECK(open_trace_file("").error.find("path is empty") != std::string::npos);

  const TempFile empty(".jsonl", "");
  auto opened = open_trace_file(empty.path());
  CHECK(drain(*opened.source) == 0);
  CHECK(opened.source->error().find("holds no request") != std::string::npos);

  auto folder = open_trace_file(std::filesystem::temp_directory_path().string());
  if (folder.source) {
    CHECK(drain(*folder.source) == 0);
    CHECK(folder.source->error().find("cannot be read") != std::string::npos);
  }
}

TEST_CASE("ids that contradict one another are refused with the line") {
  const auto error_of = [](const std::vector<std::string>& lists) {
    std::string text;
    for (const std::string& ids : lists) {
      const auto count = 1 + std::count(ids.begin(), ids.end(), ',');
      text += R"({"timestamp":1,"output_length":1,"input_length":)" + std::to_string(count * 512) + ",\"hash_ids\":[" + ids + "]}\n";
    }
    const TempFile file(".jsonl", text);
    const OpenedTrace opened = open_trace_file(file.path());
    REQUIRE(opened.source);
    const std::size_t read = drain(*opened.source);
    CHECK((opened.source->error().empty() ? read == lists.size() : read == lists.size() - 1));
    return opened.source->error();
  };
  CHECK(error_of({"1,2,3", "1,2,3,4", "1,5,6", "7,8", "1"}).empty());
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"1,1"}, {"7", "9,7"}, {"9,7", "7"}, {"7,8,9", "6,8"}, {"7,8", "8,7"}, {"1,2,3,2"}}) {
    const std::string error = error_of(wrong);
    CAPTURE(error);
    CHECK(error.find(".jsonl:" + std::to_string(wrong.size()) + ": field \"hash_ids\": id ") != std::string::npos);
  }
  CHECK(error_of({"7", "9,7"}).find("id 7 follows 9, and before it began a prompt") != std::string::npos);
}
