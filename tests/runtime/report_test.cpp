// SPDX-License-Identifier: Apache-2.0
//
// Counters that a process tells its store: what is refused here, and what reaches the store.
#include <algorithm>

#include "tests/runtime/remote_fixture.hpp"

namespace runtime_test {
namespace {

using Counters = std::vector<std::pair<std::string, std::uint64_t>>;

std::vector<kvonce::ClientReport> reports(Runtime& runtime) {
  const auto clients = runtime.clients();
  REQUIRE_MESSAGE(clients, clients.error.text);
  return clients.value.size() == 1 ? clients.value.front().reports : std::vector<kvonce::ClientReport>{};
}

}  // namespace

TEST_CASE("a report reaches the store with its label, names and values, in their order") {
  const Place place;
  auto server = serve(serving(place));
  auto one = serve(connecting(place));
  REQUIRE_FALSE(one->report("rank 1", {{"hit_tokens", ~0ULL}, {"asked_tokens", 0}}));
  REQUIRE_FALSE(one->report("", {{"x", 1}}));
  REQUIRE(eventually([&] { return reports(*server).size() == 2; }));
  const auto list = reports(*one);
  REQUIRE(list.size() == 2);
  CHECK(list[0].label.empty());
  CHECK(list[1].label == "rank 1");
  CHECK(list[1].counters == Counters{{"hit_tokens", ~0ULL}, {"asked_tokens", 0}});
}

TEST_CASE("a report out of bounds is refused here, with what was wrong, and the link lives on") {
  const Place place;
  auto server = serve(serving(place));
  auto one = serve(connecting(place));
  Counters many;
  for (int i = 0; i < 64; ++i) many.emplace_back(std::string(63, 'n') + static_cast<char>('0' + i), i);
  REQUIRE_FALSE(one->report(std::string(255, 'l'), many));
  CHECK(one->report(std::string(256, 'l'), {{"x", 1}}).text.find("256 bytes") != std::string::npos);
  CHECK(one->report("a\nb", {{"x", 1}}).reason == Reason::bad_argument);
  CHECK(one->report("a", {{"", 1}}).reason == Reason::bad_argument);
  CHECK(one->report("a", {{std::string(65, 'n'), 1}}).text.find("65 bytes") != std::string::npos);
  CHECK(one->report("a", {{"\xc3\xa4", 1}}).reason == Reason::bad_argument);
  many.emplace_back("one more", 1);
  CHECK(one->report("a", many).reason == Reason::too_many);
  for (int i = 1; i < 8; ++i) REQUIRE_FALSE(one->report("label " + std::to_string(i), {{"x", 1}}));
  CHECK(one->report("label 8", {{"x", 1}}).text.find("'label 8'") != std::string::npos);
  REQUIRE_FALSE(one->report("label 3", {{"x", 2}}));
  REQUIRE_FALSE(one->report("label 4", {}));  // forgotten: there is room again
  REQUIRE_FALSE(one->report("label 8", {{"x", 1}}));
  REQUIRE(eventually([&] {
    const auto list = reports(*server);
    return std::any_of(list.begin(), list.end(), [](const auto& report) { return report.label == "label 8"; });
  }));
  CHECK(reports(*server).size() == 8);
  CHECK(one->connected());
  CHECK(one->report("label 4", {{"x", 1}}).reason == Reason::too_many);
  one->stop();
  CHECK(one->report("label 3", {{"x", 1}}).reason == Reason::closed);
}

TEST_CASE("an embedded store keeps no reports of its own process") {
  auto runtime = serve(small_config());
  CHECK_FALSE(runtime->report("rank 0", {{"x", 1}}));
  CHECK(runtime->clients().value.empty());
}

}  // namespace runtime_test
