// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "protocol/shard_key_core.hpp"

namespace kvonce::protocol {
namespace {

PageHash page(std::uint64_t number) { return PageHash{{number, number * 7919, 3, 5}}; }

PageReady chain(std::uint32_t pages) {
  PageReady ready;
  ready.sender = 7;
  ready.batch = 3;
  ready.level = AckLevel::disk;
  ready.time_left = 99;
  ready.has_parent = true;
  ready.parent = page(1000);
  for (std::uint32_t i = 0; i < pages; ++i) {
    ready.pages.push_back({page(i), 10 + i, i == 0 ? kExternalParent : i - 1});
    ready.items.push_back({i, i, 0, 4096});
  }
  return ready;
}
using Parts = std::vector<std::pair<std::uint32_t, PutBatch>>;

}  // namespace

TEST_CASE("with one partition the whole chain goes there under the rank's key") {
  ShardKeyCore keys(Placement::local(1));
  keys.set_pool(7, 0, {2, 5, 1, 3});
  Parts parts;
  std::vector<ItemVerdict> rejected;
  PageReady ready = chain(4);
  const ChainPage* pages = ready.pages.data();
  keys.canonicalize(std::move(ready), parts, rejected);
  REQUIRE(parts.size() == 1);
  const PutBatch& batch = parts[0].second;
  CHECK(batch.pages.data() == pages);  // moved
  CHECK(batch.sender == 7);
  CHECK(batch.batch == 3);
  CHECK(batch.ns == 2);
  CHECK(batch.level == AckLevel::disk);
  CHECK(batch.time_left == 99);
  CHECK(batch.has_parent);
  CHECK(batch.parent == page(1000));
  REQUIRE(batch.items.size() == 4);
  CHECK(batch.items[2].pool == 5);
  CHECK(batch.items[2].generation == 1);
  CHECK(batch.items[2].shard == 3);
  CHECK(batch.items[2].bytes == 4096);
  CHECK(rejected.empty());
}

TEST_CASE("a batch is split by the pages' owners, and parents stay only where both live together") {
  ShardKeyCore keys(Placement::local(3));
  keys.set_pool(7, 0, {2, 5, 1, 3});
  Parts parts;
  std::vector<ItemVerdict> rejected;
  keys.canonicalize(chain(64), parts, rejected);
  CHECK(parts.size() == 3);
  std::size_t items = 0, kept = 0, cut = 0;
  for (const auto& [partition, batch] : parts) {
    CHECK(batch.has_parent == (keys.home(2, page(1000)) == partition));
    for (const PutItem& item : batch.items) {
      ++items;
      REQUIRE(item.page < batch.pages.size());
      const ChainPage& at = batch.pages[item.page];
      CHECK(at.hash == page(item.item));
      CHECK(at.depth == 10 + item.item);
      CHECK(keys.home(2, at.hash) == partition);
      if (item.item == 0) {
        CHECK(at.parent == (batch.has_parent ? kExternalParent : kNoParent));
      } else if (keys.home(2, page(item.item - 1)) == partition) {
        REQUIRE(at.parent < batch.pages.size());
        CHECK(batch.pages[at.parent].hash == page(item.item - 1));
        ++kept;
      } else {
        CHECK(at.parent == kNoParent);
        ++cut;
      }
    }
  }
  CHECK(items == 64);
  CHECK(kept > 0);
  CHECK(cut > 0);
}

TEST_CASE("items of unknown pools and pages come back rejected, their neighbours go on") {
  ShardKeyCore keys(Placement::local(2));
  keys.set_pool(7, 1, {2, 5, 0, 0});
  PageReady ready = chain(3);
  ready.items[0].pool = 1;
  ready.items[2].pool = 1;
  ready.items[2].page = 9;
  Parts parts;
  std::vector<ItemVerdict> rejected;
  keys.canonicalize(std::move(ready), parts, rejected);
  REQUIRE(rejected.size() == 2);
  CHECK(rejected[0].item == 1);
  CHECK(rejected[0].verdict == Verdict::rejected);
  CHECK(rejected[0].reason == Reason::unknown_pool);
  CHECK(rejected[1].item == 2);
  CHECK(rejected[1].reason == Reason::bad_argument);
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].second.items.size() == 1);
}

TEST_CASE("pools of several namespaces give one batch each") {
  ShardKeyCore keys(Placement::local(1));
  keys.set_pool(7, 0, {2, 5, 0, 0});
  keys.set_pool(7, 1, {4, 6, 0, 0});
  PageReady ready = chain(2);
  ready.items[1].pool = 1;
  Parts parts;
  std::vector<ItemVerdict> rejected;
  keys.canonicalize(std::move(ready), parts, rejected);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].second.ns == 2);
  CHECK(parts[1].second.ns == 4);
  CHECK(parts[1].second.items[0].pool == 6);
}

TEST_CASE("a pool's key is replaced after a demotion and forgotten with its sender") {
  ShardKeyCore keys(Placement::local(1));
  CHECK(keys.keying(7, 0) == nullptr);
  keys.set_pool(7, 2, {2, 5, 0, 0});
  CHECK(keys.keying(7, 0) == nullptr);
  keys.set_pool(7, 2, {2, 6, 0, 3});
  REQUIRE(keys.keying(7, 2) != nullptr);
  CHECK(keys.keying(7, 2)->pool == 6);
  keys.set_pool(7, 0xfffffff0U, {2, 6, 0, 3});  // forged: no table of that size is made
  CHECK(keys.keying(7, 0xfffffff0U) == nullptr);
  keys.forget_sender(7);
  CHECK(keys.keying(7, 2) == nullptr);
}

TEST_CASE("digests tell groups, hash lists and texts apart") {
  const std::vector<PageHash> pages{page(1), page(2)};
  CHECK(lookup_digest(1, pages) == lookup_digest(1, pages));
  CHECK_FALSE(lookup_digest(1, pages) == lookup_digest(2, pages));
  CHECK_FALSE(lookup_digest(1, pages) == lookup_digest(1, {page(1)}));
  CHECK_FALSE(lookup_digest(1, pages) == lookup_digest(1, {page(2), page(1)}));
  CHECK(text_digest("a") == text_digest("a"));
  CHECK_FALSE(text_digest("a") == text_digest("b"));
}

TEST_CASE("page hashes are read from 32 bytes or 64 hexadecimal digits, and errors name the length") {
  std::string bytes(32, '\0');
  bytes[0] = '\x01';
  bytes[31] = '\xab';
  const auto raw = parse_page_hash(bytes);
  REQUIRE(raw);
  const std::string hex = raw->to_hex();
  CHECK(hex == "01" + std::string(60, '0') + "ab");
  CHECK(parse_page_hash(hex) == raw);
  CHECK(PageHash::from_hex("01" + std::string(60, '0') + "AB") == raw);
  CHECK(PageHash::from_bytes("short") == std::nullopt);
  std::string error;
  CHECK_FALSE(parse_page_hash("abc", &error));
  CHECK(error == "a page hash of 3 bytes; allowed are 32 raw bytes or 64 hexadecimal digits");
  CHECK_FALSE(parse_page_hash(std::string(60, '0') + "0g00", &error));
  CHECK(error.find("byte 61 is no hexadecimal digit") != std::string::npos);
  CHECK_FALSE(parse_page_hash("", nullptr));
}

TEST_CASE("every verdict, reason and level has a name, and values from nowhere do not read beyond the list") {
  CHECK(to_string(Verdict::already_stored) == "already_stored");
  CHECK(to_string(Verdict::unknown) == "unknown");
  CHECK(to_string(Reason::none) == "none");
  CHECK(to_string(Reason::row_out_of_range) == "row_out_of_range");
  CHECK(to_string(Reason::checksum_mismatch) == "checksum_mismatch");
  CHECK(to_string(Reason::bad_argument) == "bad_argument");
  CHECK(to_string(AckLevel::replicated) == "replicated");
  CHECK(to_string(static_cast<Reason>(200)) == "invalid");
  CHECK(to_string(static_cast<Verdict>(200)) == "invalid");
}

}  // namespace kvonce::protocol
