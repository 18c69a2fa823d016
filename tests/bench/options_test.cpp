// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "bench/jobs.hpp"
#include "bench/options.hpp"

using namespace kvonce::bench;

namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the defaults of every job are allowed") {
  for (const Job job : {Job::put, Job::get, Job::exists, Job::lookup, Job::idle, Job::memory, Job::allocator, Job::coalesce}) {
    CAPTURE(to_string(job));
    CHECK(check(defaults(job)).empty());
  }
}

TEST_CASE("a number out of range is told with its option, its value and what is allowed") {
  Options options = defaults(Job::put);
  options.ranks = 0;
  CHECK(check(options) == "--ranks is 0: allowed are 1 to 64");
  options = defaults(Job::put);
  options.ranks = 65;
  CHECK(check(options) == "--ranks is 65: allowed are 1 to 64");
  options = defaults(Job::put);
  options.page_bytes = kPageBytesMax + 1;
  CHECK(says(check(options), "--page-bytes is 268,435,457"));
  options = defaults(Job::get);
  options.batch = 65'537;
  CHECK(says(check(options), "--batch is 65,537: allowed are 1 to 65,536"));
  options = defaults(Job::put);
  options.depth = 0;
  CHECK(says(check(options), "--depth is 0"));
  options = defaults(Job::put);
  options.repeat = 0;
  CHECK(says(check(options), "--repeat is 0"));
}

TEST_CASE("a job that needs more memory than there is says how much, and runs nothing") {
  Options options = defaults(Job::put);
  options.ranks = 64;
  options.pages = kPagesMax;
  options.page_bytes = 1 << 20;
  if (available_memory() == 0) return;
  const Outcome outcome = run(options);
  CHECK(says(outcome.error, "PiB") != says(outcome.error, "TiB"));
  CHECK(says(outcome.error, "is available"));
  CHECK(outcome.result.empty());
}

TEST_CASE("where the store is, and by which way bytes go, are told as one") {
  Options options = defaults(Job::put);
  options.expect_path = "memcpy";
  CHECK(check(options).empty());
  options.expect_path = "shm";
  CHECK(says(check(options), "--expect-path is shm, but page bytes go by memcpy"));
  options.via = "spawn";
  CHECK(check(options).empty());
  options.expect_path = "memcpy";
  CHECK(says(check(options), "but page bytes go by shm"));
  options.expect_path = "";
  options.via = "tcp:1";
  CHECK(check(options) == "--via is 'tcp:1': allowed are spawn and unix:PATH");
  options = defaults(Job::allocator);
  options.via = "spawn";
  CHECK(says(check(options), "--via is not for allocator: this benchmark has no --via"));
  options = defaults(Job::coalesce);
  options.kills = 1;
  options.page_bytes = 4'096;
  CHECK(says(check(options), "--page-bytes is 4,096: with --kills at least 64 KiB"));
}

TEST_CASE("a lookup of an unknown model or a number of ranks that no model has is refused") {
  Options options = defaults(Job::lookup);
  options.preset = "gpt-9";
  CHECK(says(check(options), "--preset: preset \"gpt-9\" is unknown"));
  options = defaults(Job::lookup);
  options.ranks = 3;
  CHECK(says(check(options), "--ranks: 3 ranks are not allowed"));
  options = defaults(Job::lookup);
  options.pages = 65'537;
  CHECK(says(check(options), "--pages is 65,537"));
  options = defaults(Job::lookup);
  options.pages = 63;
  CHECK(says(check(options), "--pages is 63: with a checkpoint at every 64th page (--checkpoint-pages)"));
  options.pages = 64;
  CHECK(check(options).empty());
  options.pages = 1;
  options.preset = "kimi-k2";  // every page can be restored
  CHECK(check(options).empty());
}

TEST_CASE("a job that asks nothing is refused") {
  for (const Job job : {Job::exists, Job::lookup, Job::allocator}) {
    Options options = defaults(job);
    options.operations = 0;
    CHECK(says(check(options), "--operations is 0: allowed are 1 to 1,000,000,000"));
  }
}
