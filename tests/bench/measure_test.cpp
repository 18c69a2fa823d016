// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <kvonce/runtime.hpp>

#include "bench/drive.hpp"
#include "bench/measure.hpp"
#include "bench/rows.hpp"

using namespace kvonce::bench;
using Json = nlohmann::ordered_json;

TEST_CASE("a row is a page's only when every byte of it is") {
  for (const std::size_t bytes : {1U, 7U, 4'096U, 5'001U}) {
    CAPTURE(bytes);
    std::vector<std::byte> row(bytes + 1, std::byte{0x5a});
    fill_row(row.data(), bytes, 11, 3);
    CHECK(row.back() == std::byte{0x5a});
    CHECK(row_is(row.data(), bytes, 11, 3));
    CHECK_FALSE(row_is(row.data(), bytes, 12, 3));
    CHECK_FALSE(row_is(row.data(), bytes, 11, 4));
    for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) {
      row[at] ^= std::byte{1};
      CHECK_FALSE(row_is(row.data(), bytes, 11, 3));
      row[at] ^= std::byte{1};
    }
  }
}

TEST_CASE("keys of one run, and of two runs, are all different") {
  const auto first = make_keys(fresh_seed(), 1'000);
  const auto second = make_keys(fresh_seed(), 1'000);
  std::set<kvonce::PageHash> all(first.begin(), first.end());
  all.insert(second.begin(), second.end());
  CHECK(all.size() == 2'000);
}

TEST_CASE("quantiles take the nearest rank") {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  CHECK(quantile(samples, 0.5) == 50);
  CHECK(quantile(samples, 0.99) == 99);
  CHECK(quantile(samples, 1) == 100);
  std::vector<double> one{7};
  CHECK(quantile(one, 0.5) == 7);
  std::vector<double> none;
  CHECK(quantile(none, 0.5) == 0);
}

TEST_CASE("of several runs, rates are medians and counts those of one run") {
  const std::vector<Json> runs{{{"seconds", 3.0}, {"rate", 10.0}, {"verdicts", {{"stored", 1}, {"joined", 9}}}},
                               {{"seconds", 1.0}, {"rate", 30.0}, {"verdicts", {{"stored", 5}, {"joined", 5}}}},
                               {{"seconds", 2.0}, {"rate", 50.0}, {"verdicts", {{"stored", 8}, {"joined", 2}}}}};
  const Json median = median_of(runs, "seconds");
  CHECK(median["seconds"] == 2.0);
  CHECK(median["rate"] == 30.0);
  CHECK(median["verdicts"]["stored"] == 8);
  CHECK(median["verdicts"]["joined"] == 2);
}

namespace {

struct FakeOperation {
  void wait() const {}
};

}  // namespace

TEST_CASE("every rank submits every batch once, and never more in flight than asked for") {
  for (const bool lockstep : {false, true}) {
    std::atomic<int> open{0};
    std::atomic<int> most{0};
    std::vector<std::atomic<int>> submitted(3 * 20);
    const Driven driven = drive(
        {1, 20, 4, lockstep},
        [&](std::size_t rank, std::size_t batch, kvonce::Completion completion) {
          ++submitted[rank * 20 + batch];
          most = std::max(most.load(), ++open);
          completion.callback();
          kvonce::Result<std::shared_ptr<FakeOperation>> out;
          out.value = std::make_shared<FakeOperation>();
          return out;
        },
        [&](std::size_t, const FakeOperation&) { --open; });
    CHECK(open == 0);
    CHECK(most == 4);
    CHECK(driven.error.empty());
    CHECK(driven.ack_us.size() == 20);
    for (std::size_t i = 0; i < 20; ++i) CHECK(submitted[i] == 1);
  }
}

TEST_CASE("a refused call is told and keeps no other rank waiting at the barrier") {
  const Driven driven = drive(
      {3, 5, 1, true},
      [&](std::size_t rank, std::size_t batch, const kvonce::Completion&) {
        kvonce::Result<std::shared_ptr<FakeOperation>> out;
        if (rank == 1 && batch == 2)
          out.error = {kvonce::Reason::bad_argument, "no such pool"};
        else
          out.value = std::make_shared<FakeOperation>();
        return out;
      },
      [](std::size_t, const FakeOperation&) {});
  CHECK(driven.error == "no such pool");
  CHECK(driven.ack_us.size() == 14);
}
