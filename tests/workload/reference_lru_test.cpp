// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/reference_lru.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include <doctest/doctest.h>

#include "apps/workload/presets.hpp"

using namespace kvonce::workload;

namespace {

TraceRequest prompt(std::vector<std::uint64_t> pages) {
  TraceRequest request;
  request.input_tokens = pages.size() * kTracePageTokens + 100;
  request.pages = std::move(pages);
  return request;
}

/// The rules once more, as slowly and plainly as can be: stamps in a map, the victim found by looking at everything.
class Naive {
public:
  explicit Naive(ReferenceSizes sizes) : sizes_(sizes) {}

  ReferenceOutcome request(const TraceRequest& request) {
    ++stamp_;
    const auto& pages = request.pages;
    std::size_t resident = 0;
    while (resident < pages.size() && stamps_.contains({pages[resident], 0})) ++resident;
    std::size_t restored = resident;
    if (sizes_.checkpoint_bytes != 0) {
      while (restored > 0 && !stamps_.contains({pages[restored - 1], 1})) --restored;
    }
    // Deeper is older within one request; a checkpoint comes after its own page.
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto depth = -static_cast<int>(i);
      stamps_[{pages[i], 0}] = {stamp_, depth, 0};
      const bool wanted = i + 1 == pages.size() || i + 1 == resident || i + 1 == restored;
      if (sizes_.checkpoint_bytes != 0 && wanted) stamps_[{pages[i], 1}] = {stamp_, depth, 1};
    }
    while (used() > sizes_.capacity_bytes) {
      const auto oldest = std::min_element(stamps_.begin(), stamps_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
      const auto [page, kind] = oldest->first;
      stamps_.erase(oldest);
      if (kind == 0) stamps_.erase({page, 1});
    }
    return {resident, restored};
  }
  std::uint64_t used() const {
    std::uint64_t sum = 0;
    for (const auto& [key, stamp] : stamps_) sum += key.second == 0 ? sizes_.page_bytes : sizes_.checkpoint_bytes;
    return sum;
  }

private:
  ReferenceSizes sizes_;
  int stamp_ = 0;
  std::map<std::pair<std::uint64_t, int>, std::tuple<int, int, int>> stamps_;
};

/// Prompts from a small random tree, so that they share, branch, repeat and shrink.
std::vector<TraceRequest> random_prompts(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<std::vector<std::uint64_t>> known{{}};
  std::uint64_t next_page = 1000;
  std::vector<TraceRequest> out;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::uint64_t> pages = known[random() % known.size()];
    if (!pages.empty() && random() % 3 == 0) pages.resize(1 + random() % pages.size());
    for (auto grow = random() % 5; grow > 0 && pages.size() < 30; --grow) pages.push_back(next_page++);
    known.push_back(pages);
    if (known.size() > 40) known.erase(known.begin() + random() % 20);
    out.push_back(prompt(std::move(pages)));
  }
  return out;
}

}  // namespace

TEST_CASE("without checkpoints every resident page is a stop") {
  ReferenceLru store({10, 0, 1000});
  CHECK(store.request(prompt({1, 2, 3})).restored_pages == 0);
  CHECK(store.request(prompt({1, 2, 3, 4})).restored_pages == 3);
  CHECK(store.request(prompt({1, 2, 9})).restored_pages == 2);
  CHECK(store.used_bytes() == 50);
  CHECK(store.totals().hit_tokens == 5 * kTracePageTokens);
  CHECK(store.totals().asked_tokens == 10 * kTracePageTokens + 300);
}

TEST_CASE("with checkpoints only a page that has one is a stop, and branching off leaves one behind") {
  ReferenceLru store({10, 5, 1000});
  store.request(prompt({1, 2, 3}));
  CHECK(store.has_checkpoint(3));
  CHECK_FALSE(store.has_checkpoint(2));
  auto outcome = store.request(prompt({1, 2, 8}));
  CHECK(outcome.resident_pages == 2);
  CHECK(outcome.restored_pages == 0);
  CHECK(store.has_checkpoint(2));
  outcome = store.request(prompt({1, 2, 9}));
  CHECK(outcome.restored_pages == 2);
}

TEST_CASE("the least recent chain goes from its end, and its beginning that others use stays") {
  ReferenceLru store({10, 0, 50});
  store.request(prompt({1, 2, 3}));
  store.request(prompt({1, 8, 9}));
  store.request(prompt({1, 8, 9, 10}));
  CHECK_FALSE(store.has_page(3));
  CHECK(store.has_page(2));
  CHECK(store.has_page(1));
  CHECK(store.totals().evicted_pages == 1);
}

TEST_CASE("a checkpoint that nobody restores from goes long before its page") {
  ReferenceLru store({10, 10, 60});
  store.request(prompt({1}));
  store.request(prompt({1, 2}));
  store.request(prompt({1, 2, 3}));  // restores after 2; the checkpoint after 1 is the oldest unit
  CHECK(store.used_bytes() == 60);
  store.request(prompt({1, 2, 3, 4}));
  CHECK_FALSE(store.has_checkpoint(1));
  CHECK_FALSE(store.has_checkpoint(2));
  CHECK(store.has_page(1));
  CHECK(store.has_page(2));
  CHECK(store.has_checkpoint(3));
  CHECK(store.has_checkpoint(4));
}

TEST_CASE("a page takes its checkpoint along") {
  ReferenceLru store({10, 1, 31});
  store.request(prompt({1, 2}));
  store.request(prompt({5, 6}));
  CHECK_FALSE(store.has_page(2));
  CHECK_FALSE(store.has_checkpoint(2));
  CHECK(store.totals().evicted_checkpoints == 1);
}

TEST_CASE("a request larger than the store keeps its beginning and loses its checkpoint") {
  ReferenceLru store({10, 5, 35});
  store.request(prompt({1, 2}));
  store.request(prompt({5, 6, 7, 8, 9}));
  CHECK(store.has_page(5));
  CHECK(store.has_page(7));
  CHECK_FALSE(store.has_page(8));
  CHECK_FALSE(store.has_checkpoint(9));
  CHECK_FALSE(store.has_page(1));
  CHECK(store.used_bytes() == 30);
}

TEST_CASE("the ring of recency and a search through stamps agree on random prompts") {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    const ReferenceSizes sizes{7, seed % 3 == 0 ? 0U : 5U * seed, 300 + 40 * seed};
    CAPTURE(seed);
    ReferenceLru store(sizes);
    Naive naive(sizes);
    for (const TraceRequest& request : random_prompts(seed, 400)) {
      const auto fast = store.request(request);
      const auto slow = naive.request(request);
      REQUIRE(fast.resident_pages == slow.resident_pages);
      REQUIRE(fast.restored_pages == slow.restored_pages);
      REQUIRE(store.used_bytes() == naive.used());
    }
    CHECK(store.totals().evicted_pages > 0);
  }
}

// The reference table ---------------------------------------------------------------------------------------------------------------

namespace {

struct Row {
  const char* trace;
  std::size_t requests_max;
  const char* model;
  KeyMode mode;
  double expected_percent[4];  // at 120, 240, 480, 960 GiB
  double tolerance_points;
};

constexpr std::size_t kAll = static_cast<std::size_t>(-1);
constexpr const char* kChat = "conversation_trace.jsonl.xz";
constexpr const char* kAgent = "agentic_trace.jsonl.xz";

void check_row(const std::filesystem::path& folder, const Row& row) {
  const auto found = find_preset(row.model, 8);
  REQUIRE(found.preset);
  const ModelPreset model = for_trace_pages(*found.preset);
  auto opened = open_trace((folder / row.trace).string(), 0);
  REQUIRE_MESSAGE(opened.source, opened.error);
  std::vector<ReferenceLru> stores;
  for (std::uint64_t gib = 120; gib <= 960; gib *= 2) {
    stores.emplace_back(ReferenceSizes{model.page_bytes(row.mode), model.checkpoint_bytes(row.mode), gib << 30});
  }
  for (std::size_t i = 0; i < row.requests_max; ++i) {
    const auto request = opened.source->next();
    if (!request) break;
    for (ReferenceLru& store : stores) store.request(*request);
  }
  REQUIRE_MESSAGE(opened.source->error().empty(), opened.source->error());
  for (std::size_t i = 0; i < stores.size(); ++i) {
    const double percent = 100.0 * stores[i].totals().hit_share();
    CAPTURE(row.trace);
    CAPTURE(row.model);
    CAPTURE(static_cast<int>(row.mode));
    CAPTURE(i);
    CAPTURE(percent);
    CHECK(std::abs(percent - row.expected_percent[i]) <= row.tolerance_points);
  }
}

const char* traces_folder() {
  const char* folder = std::getenv("KVONCE_TRACES");
  if (folder != nullptr && *folder == '\0') folder = nullptr;
  if (folder == nullptr) MESSAGE("skipped: KVONCE_TRACES does not name the folder of the recorded traces");
  return folder;
}

}  // namespace

TEST_CASE("recorded chat reproduces the reference table within a tenth of a point") {
  const char* folder = traces_folder();
  if (folder == nullptr) return;
  check_row(folder, {kChat, kAll, "kimi-k2", KeyMode::per_rank, {4.3, 4.5, 5.4, 8.3}, 0.1});
  check_row(folder, {kChat, kAll, "kimi-k2", KeyMode::per_shard, {8.3, 17.2, 26.0, 33.3}, 0.1});
  check_row(folder, {kChat, kAll, "kimi-k3-draft", KeyMode::per_rank, {4.4, 5.0, 6.9, 15.0}, 0.1});
  check_row(folder, {kChat, kAll, "kimi-k3-draft", KeyMode::per_shard, {5.6, 9.7, 18.9, 26.6}, 0.1});
}

TEST_CASE("the first recorded agent requests reproduce the reference table within a point") {
  const char* folder = traces_folder();
  if (folder == nullptr) return;
  check_row(folder, {kAgent, 4000, "kimi-k3-draft", KeyMode::per_rank, {8.0, 37.3, 90.7, 95.9}, 0.9});
  check_row(folder, {kAgent, 4000, "kimi-k3-draft", KeyMode::per_shard, {77.8, 95.9, 95.9, 96.0}, 0.9});
}

// Runs on request (--no-skip): some ten seconds.
TEST_CASE("all recorded agent requests reproduce the reference table within a point" * doctest::skip()) {
  const char* folder = traces_folder();
  if (folder == nullptr) return;
  check_row(folder, {kAgent, kAll, "kimi-k3-draft", KeyMode::per_rank, {8.1, 33.2, 79.9, 95.9}, 0.9});
  check_row(folder, {kAgent, kAll, "kimi-k3-draft", KeyMode::per_shard, {67.1, 95.7, 95.9, 95.9}, 0.9});
}
