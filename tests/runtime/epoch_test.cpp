// SPDX-License-Identifier: Apache-2.0
//
// Weight epochs as runtimes see them: embedded, over a link, and over the store's death.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/remote_fixture.hpp"

namespace runtime_test {
namespace {

using Value = std::array<std::uint8_t, 16>;

Value value(Runtime& runtime, const std::string& name) {
  const auto given = runtime.epoch(name);
  REQUIRE_MESSAGE(given, given.error.text);
  CHECK(given.value != Value{});
  return given.value;
}
std::unique_ptr<Runtime> start(const RuntimeConfig& config) { return serve(config); }

}  // namespace

TEST_CASE("an embedded store gives each name its value, and another one in its next life") {
  auto one = start(small_config());
  const Value first = value(*one, "weights 1");
  CHECK(value(*one, "weights 1") == first);
  CHECK(value(*one, "weights 2") != first);
  one->stop();
  CHECK(value(*start(small_config()), "weights 1") != first);
}

TEST_CASE("processes of one engine agree, others have values of their own") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    const Place place;
    auto server = start(serving(place, partitions));
    auto one = start(connecting(place));
    RuntimeConfig reading = connecting(place);
    reading.read_only = true;
    auto two = start(reading);
    auto stranger = start(connecting(place, "another engine"));
    const Value first = value(*one, "weights 1");
    CHECK(value(*two, "weights 1") == first);
    CHECK(value(*two, "weights 2") == value(*one, "weights 2"));
    CHECK(value(*stranger, "weights 1") != first);
    CHECK(value(*server, "weights 1") != first);
  }
}

TEST_CASE("values outlive a process, not their engine") {
  const Place place;
  RuntimeConfig config = serving(place);
  config.engine_grace = milliseconds(0);
  auto server = start(config);
  auto one = start(connecting(place));
  auto two = start(connecting(place));
  const Value first = value(*one, "w");
  one->stop();
  REQUIRE(eventually([&] { return server->clients().value.size() == 1; }));
  CHECK(value(*two, "w") == first);
  two->stop();
  REQUIRE(eventually([&] { return server->clients().value.empty(); }));
  CHECK(value(*start(connecting(place)), "w") != first);
}

TEST_CASE("a store that comes back is told the values that its last life gave out") {
  const Place place;
  auto server = start(serving(place));
  auto one = start(connecting(place));
  const Value first = value(*one, "w");
  server->stop();
  CHECK(eventually([&] { return !one->connected(); }));
  CHECK(one->epoch("w").error.reason == Reason::store_lost);
  server = start(serving(place));
  REQUIRE(one->wait_connected(std::chrono::seconds(60)));
  // Before a process that knows nothing asks: the first one is connected only when its values are told.
  auto two = start(connecting(place));
  CHECK(value(*two, "w") == first);
  CHECK(value(*one, "w") == first);
}

TEST_CASE("bad questions for an epoch are answered at once, by name") {
  auto runtime = start(small_config());
  CHECK(runtime->epoch("").error.text.find("0 bytes") != std::string::npos);
  CHECK(runtime->epoch(std::string(256, 'x')).error.reason == Reason::bad_argument);
  CHECK(runtime->epoch("w", milliseconds(0)).error.text.find("timeout") != std::string::npos);
  CHECK(runtime->epoch("w", milliseconds(3'600'001)).error.reason == Reason::bad_argument);
  CHECK(runtime->epoch(std::string(255, 'x')));
  for (int i = 1; i < 1024; ++i) REQUIRE(runtime->epoch(std::to_string(i)));
  CHECK(runtime->epoch("more"));
  CHECK(runtime->epoch(std::string(255, 'x')).error.reason == Reason::too_many);  // dropped for it
  const pid_t child = fork();
  if (child == 0) _exit(runtime->epoch("w").error.text.find("fork") != std::string::npos ? 0 : 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  runtime->stop();
  CHECK(runtime->epoch("w").error.reason == Reason::closed);
}

}  // namespace runtime_test
