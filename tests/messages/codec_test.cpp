// SPDX-License-Identifier: Apache-2.0
//
// Every message once through CAF's own serialisation, and the packed bytes cut and broken in every place.
#include "messages/actors.hpp"
#include "messages/system_config.hpp"

#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

namespace codec_test {

using namespace kvonce;            // NOLINT
using namespace kvonce::messages;  // NOLINT
using namespace kvonce::protocol;  // NOLINT

namespace {

PageHash page(std::uint64_t n) { return {{n, n + 1, n + 2, ~n}}; }

/// A value of each message with every list filled, handed to `f` one after another.
template <class F>
void for_each_message(F f) {
  PageReady ready{1, 2, AckLevel::disk, 3, true, page(4), {{page(5), 1, kExternalParent}, {page(6), 2, 0}}, {{1, 2, 3, 4}}};
  f(ready);
  f(PutBatch{1, 2, 3, AckLevel::disk, 4, true, page(5), {{page(6), 7, kNoParent}}, {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}}});
  f(GrantResults{1, {{2, 3, GrantOutcome::failed, 4, 5}, {6, 7, GrantOutcome::landed, 0, 2}}, {8, 9}, {{PageHash{{1, 2, 3, 4}}, 5, 6, 7, 8}}});
  f(Withdraw{1, {{2, 3}, {4, 5}}});
  f(ChecksumAnswers{1, {{2, 3, 4}}, {5, 6, 7}});
  StoreReply reply;
  reply.partition = 3;
  reply.grants = {{1, 2, 3, 4, 5, 6}};
  reply.extents = {{64, 128}, {256, 64}};
  reply.verdicts = {{1, 2, Verdict::rejected, Reason::busy, 10}};
  reply.asks = {{1, 2, 3}};
  reply.redirects = {{1, 2, 3, 4}};
  f(reply);
  f(LookupAsk{1, 2, 3, true, {4, 5}, {6, 7}, true, 8, 9, 12, {page(10), page(11)}});
  LookupAnswer answer;
  answer.token = 1;
  answer.stops = {1, 2, 3};
  answer.leased_stops = {2};
  answer.lease = {4, 5};
  answer.reason = Reason::group_incomplete;
  answer.every_stop = true;
  answer.optional_missing = 6;
  f(answer);
  f(PartLookupAsk{1, 2, 3, 4, {5, 6}, {7}, {page(8)}});
  f(PartLookupAnswer{1, 2, {{3, 4, Reason::evicted, 5, 6}}, {{7, 8, 9, 10}, {11, 12, 13, 14}}});
  PartNarrow narrow;
  narrow.lease = {1, 2};
  narrow.stop = 3;
  narrow.stops = {4, 5};
  f(narrow);
  f(LeaseCall{{1, 2}, 3, 4});
  f(LoadBegin{1, 2, 3, {4, 5}, 6});
  f(LoadBegun{1, Reason::lease_expired, 2});
  f(LoadEnd{1, 2, {3, 4}});
  f(RemoveAsk{1, RemoveAsk::What::all, 2, 3, 4, {page(5)}});
  f(RemoveAnswer{1, 2, Reason::none});
  f(FlushAsk{1, AckLevel::disk});
  f(FlushAnswer{1, Reason::level_unavailable});
  f(AttachSender{1, 2, 3});
  f(AttachPool{1, 2, 3, 4, false});
  f(NamespaceAsk{"a model"});
  f(EpochAsk{"weights 3", {4, 5}});
  f(NamespaceClose{7});
  PoolInfo info;
  info.name = "latent";
  info.shards = {2, 1, 4};
  info.policy = HitPolicy::trailing(3);
  info.size = PoolInfo::Size::known;
  info.range_bytes = {10, 20};
  info.object_bytes = 30;
  info.splittable = true;
  f(PoolAsk{1, info, {8, 1, 1}});
  f(GroupAsk{1, "group", {{"latent", {1, 1, 1}, {8, 1, 1}, HitPolicy::every_page(), true}}});
  f(From{1, 2});
  f(ToPartition{3});
  RegisterAnswer registered;
  registered.error = {Reason::bad_argument, "why"};
  registered.pools = {{1, true}, {2, false}};
  registered.known = {{1, "latent", {8, 1, 1}, 30}};
  registered.epoch = {6, 7};
  f(RegisterReply{1, registered});
  f(LeaseReply{1, Reason::lease_unknown});
  f(Rekeyed{1, true, 2, 3, 4, 5});
  f(StoreLost{1});
  CatalogUpdate update;
  update.kind = CatalogUpdate::Kind::group;
  update.text = "text";
  update.info = info;
  update.group_info.name = "g";
  update.group_info.pools = {{1, false}};
  f(CatalogUpdates{1, {update, update}});
  f(CatalogAck{1, 2});
  f(NamespaceUseAsk{1});
  f(NamespaceUseAnswer{1, 2, {0, 1, 2}});
  f(NamespaceEmpty{1, 2});
  f(KeyConflict{1, 2, false, {3, 4}, {5, 6}});
  f(SenderGone{1});
  f(ClientGone{1});
}

}  // namespace

TEST_CASE("every message comes back from CAF's bytes as it was") {
  compat::ActorSystemConfig config;
  register_messages(config);
  caf::actor_system system{config};
  int count = 0;
  for_each_message([&](const auto& message) {
    using T = std::decay_t<decltype(message)>;
    T sent = message;
    std::vector<char> bytes;
    caf::binary_serializer sink{system, bytes};
    CHECK(!sink(sent));
    T received{};
    caf::binary_deserializer source{system, bytes};
    CHECK(!source(received));
    CHECK(encode(received) == encode(message));
    // As one element of a message whose type is looked up by its registered name.
    caf::message wrapped = caf::make_message(sent);
    bytes.clear();
    caf::binary_serializer sink_of_any{system, bytes};
    CHECK(!sink_of_any(wrapped));
    caf::message unwrapped;
    caf::binary_deserializer source_of_any{system, bytes};
    CHECK(!source_of_any(unwrapped));
    REQUIRE(unwrapped.match_elements<T>());
    CHECK(encode(unwrapped.get_as<T>(0)) == encode(message));
    ++count;
  });
  CHECK(count == 40);
}

TEST_CASE("cut bytes, bytes too many and bytes at random are refused or read as some message, and never crash") {
  std::mt19937_64 random{7};
  for_each_message([&](const auto& message) {
    using T = std::decay_t<decltype(message)>;
    const std::string good = encode(message);
    for (std::size_t length = 0; length < good.size(); ++length) {
      T read{};
      CHECK(!decode(std::string_view(good).substr(0, length), read));
    }
    T longer{};
    CHECK(!decode(good + 'x', longer));
    for (int i = 0; i < 2000; ++i) {
      std::string bad = good;
      for (int k = 0; k < 1 + i % 4; ++k) bad[random() % bad.size()] = static_cast<char>(random());
      T read{};
      if (decode(bad, read)) CHECK(encode(read) == bad);
    }
  });
}

TEST_CASE("a length that promises more than has arrived allocates nothing") {
  Withdraw withdraw{1, {{2, 3}}};
  std::string bytes = encode(withdraw);
  bytes[8] = bytes[9] = bytes[10] = static_cast<char>(0xff);  // the list's count
  Withdraw read;
  CHECK(!decode(bytes, read));
  CHECK(read.items.capacity() == 0);
}

TEST_CASE("enumerators that do not exist are refused") {
  LoadBegun begun{1, Reason::none, 2};
  std::string bytes = encode(begun);
  bytes[8] = static_cast<char>(kReasonCount);
  LoadBegun read;
  CHECK(!decode(bytes, read));
  bytes[8] = static_cast<char>(kReasonCount - 1);
  CHECK(decode(bytes, read));
}

}  // namespace codec_test
