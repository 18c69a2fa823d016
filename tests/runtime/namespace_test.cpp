// SPDX-License-Identifier: Apache-2.0
//
// Opening and closing namespaces: what a handle means, and that a store runs out of places only when all are open.
#include "tests/runtime/remote_fixture.hpp"

namespace runtime_test {
namespace {

kvonce::NamespaceHandle open(Runtime& runtime, const std::string& text) {
  const auto opened = runtime.open_namespace(text);
  REQUIRE_MESSAGE(opened, opened.error.text);
  return opened.value;
}

}  // namespace

TEST_CASE("a namespace that was closed as often as it was opened means nothing here any more") {
  auto runtime = serve(small_config());
  const auto ns = open(*runtime, "a");
  CHECK(open(*runtime, "a").id == ns.id);
  CHECK_FALSE(runtime->close_namespace(ns));
  CHECK(runtime->pools(ns));
  kvonce::GroupSpec spec;
  spec.name = "g";
  spec.pools.push_back({"kv", {}, {}, false});
  auto group = runtime->register_group(ns, spec);
  REQUIRE_MESSAGE(group, group.error.text);
  CHECK_FALSE(runtime->close_namespace(ns));
  CHECK(runtime->pools(ns).error.reason == Reason::unknown_namespace);
  CHECK(runtime->close_namespace(ns).reason == Reason::unknown_namespace);
  CHECK(runtime->register_group(ns, spec).error.reason == Reason::unknown_namespace);
  CHECK(runtime->remove_namespace(ns).error.reason == Reason::unknown_namespace);
  auto lookup = runtime->lookup(*group, std::vector<PageHash>(3));
  if (lookup) {
    (*lookup)->wait();
    CHECK((*lookup)->result().error);
  }
  // It is still with the store, and has another handle when it is opened again.
  auto again = runtime->find_namespace("a");
  REQUIRE(again);
  CHECK(again.value.id != ns.id);
  CHECK(runtime->pools(again.value).value.size() == 1);
  runtime->stop();
  CHECK(runtime->close_namespace(again.value).reason == Reason::closed);
}

TEST_CASE("more than 1,024 namespaces, one after the other, in an embedded store and over a link") {
  for (const std::uint32_t partitions : {1U, 3U}) {
    CAPTURE(partitions);
    const Place place;
    auto server = serve(serving(place, partitions));
    auto one = serve(connecting(place));
    const auto kept = open(*one, "kept");
    for (int i = 0; i < 1'100; ++i) {
      Runtime& runtime = i % 2 == 0 ? *server : *one;
      REQUIRE_FALSE(runtime.close_namespace(open(runtime, std::to_string(i))));
    }
    CHECK_FALSE(server->find_namespace("kept").error);
    CHECK(server->find_namespace("0").error.reason == Reason::unknown_namespace);
    CHECK_FALSE(server->find_namespace("1099").error);
    CHECK_FALSE(one->close_namespace(kept));
  }
}

TEST_CASE("all open is too many, until one is closed") {
  auto runtime = serve(small_config());
  std::vector<kvonce::NamespaceHandle> handles;
  for (int i = 0; i < 1'024; ++i) handles.push_back(open(*runtime, std::to_string(i)));
  const auto refused = runtime->open_namespace("more");
  CHECK(refused.error.reason == Reason::too_many);
  CHECK(refused.error.text.find("1024") != std::string::npos);
  CHECK_FALSE(runtime->close_namespace(handles[500]));
  CHECK(runtime->open_namespace("more"));
  CHECK(runtime->find_namespace("500").error.reason == Reason::unknown_namespace);
  CHECK(runtime->open_namespace("even more").error.reason == Reason::too_many);
}

}  // namespace runtime_test
