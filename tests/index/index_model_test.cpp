// SPDX-License-Identifier: Apache-2.0
//
// The index against a plain map, and its limits.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <vector>

#include "tests/index/index_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

constexpr NamespaceId kNs = 3;
constexpr PoolId kModelPools = 3;
constexpr std::uint32_t kModelShards[kModelPools] = {1, 2, 5};

struct ModelMember {
  MemberId id = kNone;
  MemberState state = MemberState::claimed;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  std::uint32_t claim = 0;
  Epoch epoch = 0;
  AckLevel level = AckLevel::memory;
  storage::Slot slot{};
};
struct ModelPage {
  RecordId record = kNone;
  std::uint32_t depth = 0;
  std::uint64_t parent = ~0ULL;  // number of the page
  std::uint32_t children = 0;
  std::map<MemberId, ModelMember> members;

  ModelMember* visible(PoolId pool, std::uint32_t shard) {
    for (auto& [id, m] : members)
      if (m.pool == pool && m.shard == shard && m.state != MemberState::zombie) return &m;
    return nullptr;
  }
};

class Model {
 public:
  Model(const IndexLimits& limits, std::uint64_t pages, std::uint64_t seed) : f_(limits), limits_(limits), pages_(pages), rng_(seed) {
    for (PoolId pool = 0; pool < kModelPools; ++pool) f_.index.set_pool(kNs, pool, kModelShards[pool], HitPolicy::every_page(), 4);
  }

  void step() {
    const std::uint64_t page = rng_() % pages_;
    const auto at = model_.find(page);
    if (at == model_.end()) {
      insert(page);
      return;
    }
    ModelPage& m = at->second;
    switch (rng_() % 8) {
      case 0: {
        if (m.children != 0) break;
        while (!m.members.empty()) drop(m, m.members.begin()->first);
        f_.index.erase(m.record);
        if (m.parent != ~0ULL) --model_.at(m.parent).children;
        model_.erase(at);
        break;
      }
      case 1: {
        if (!m.members.empty()) drop(m, any(m).id);
        break;
      }
      case 2: {
        if (m.members.empty()) break;
        ModelMember& member = any(m);
        if (member.state != MemberState::published) break;
        f_.index.make_zombie(m.record, member.id);
        member.state = MemberState::zombie;
        break;
      }
      case 3: {
        if (m.members.empty()) break;
        ModelMember& member = any(m);
        if (member.state != MemberState::published) break;
        member.level = AckLevel::disk;
        f_.index.set_level(m.record, member.id, member.level);
        break;
      }
      case 4:
      case 5: {
        if (m.members.empty()) break;
        ModelMember& member = any(m);
        if (member.state != MemberState::claimed) break;
        publish(m, member);
        break;
      }
      default: {
        const auto pool = static_cast<PoolId>(rng_() % kModelPools);
        const auto shard = static_cast<std::uint32_t>(rng_() % kModelShards[pool]);
        if (m.visible(pool, shard) != nullptr) break;
        ModelMember member;
        member.pool = pool;
        member.shard = shard;
        member.claim = static_cast<std::uint32_t>(rng_());
        member.id = f_.index.add_claimed(m.record, pool, shard, member.claim);
        REQUIRE((member.id == kNone) == (members_ == limits_.max_members));
        if (member.id == kNone) break;
        ++members_;
        REQUIRE(m.members.emplace(member.id, member).second);
      }
    }
  }

  void check() {
    REQUIRE(f_.index.records() == model_.size());
    const IndexReader reader = f_.index.reader();
    std::vector<PageHash> hashes;
    for (std::uint64_t page = 0; page < pages_; ++page) {
      hashes.push_back(page_of(page));
      const auto at = model_.find(page);
      PageView view;
      const RecordId record = f_.index.find(kNs, hashes.back());
      REQUIRE(f_.index.find(kNs + 1, hashes.back()) == kNone);
      if (at == model_.end()) {
        REQUIRE(record == kNone);
        REQUIRE(reader.page(kNs, hashes.back(), &view) == ReadStatus::absent);
      } else {
        REQUIRE(record == at->second.record);
        check(at->second, hashes.back());
        REQUIRE(reader.page(kNs, hashes.back(), &view) == ReadStatus::found);
        REQUIRE(view.depth == at->second.depth);
        REQUIRE(view.full_pools == f_.index.full_pools(record));
      }
    }
    std::set<RecordId> walked;
    f_.index.for_each([&](RecordId record) { walked.insert(record); });
    REQUIRE(walked.size() == model_.size());
    for (auto& [page, m] : model_) REQUIRE(walked.count(m.record) == 1);
    std::vector<std::uint8_t> there(hashes.size(), 9);
    for (PoolId pool = 0; pool < kModelPools; ++pool)
      for (std::uint32_t shard = 0; shard < kModelShards[pool]; ++shard) {
        reader.exists(kNs, pool, shard, hashes, there.data());
        for (std::uint64_t page = 0; page < pages_; ++page) {
          const auto at = model_.find(page);
          const ModelMember* member = at == model_.end() ? nullptr : at->second.visible(pool, shard);
          REQUIRE(there[page] == (member != nullptr && member->state == MemberState::published ? 1 : 0));
        }
      }
  }

  std::uint64_t refused_blocks = 0, refused_pages = 0;

 private:
  void insert(std::uint64_t page) {
    ModelPage m;
    m.depth = static_cast<std::uint32_t>(rng_() % 5000);
    if (!model_.empty() && rng_() % 4 != 0) {
      const auto parent = model_.lower_bound(rng_() % pages_);
      if (parent != model_.end()) m.parent = parent->first;
    }
    m.record = f_.index.insert(kNs, page_of(page), m.parent == ~0ULL ? kNone : model_.at(m.parent).record, m.depth);
    REQUIRE((m.record == kNone) == (model_.size() == limits_.max_pages));
    if (m.record == kNone) {
      ++refused_pages;
      return;
    }
    if (m.parent != ~0ULL) ++model_.at(m.parent).children;
    for (unsigned which = 0; which < PageIndex::kRecordFields; ++which) {
      REQUIRE(f_.index.field(m.record, which) == (which < 4 ? kNone : 0U));
      f_.index.set_field(m.record, which, static_cast<std::uint32_t>(page) + which);
    }
    model_.emplace(page, m);
  }

  void publish(ModelPage& m, ModelMember& member) {
    member.epoch = ++epoch_;
    member.slot = slot_from(rng_(), rng_() % 2 ? 1 : storage::kMaxExtents);
    const bool done = f_.index.publish(m.record, member.id, member.epoch, member.slot, AckLevel::memory);
    REQUIRE(done == (member.slot.count == 1 || blocks_ < limits_.max_extent_blocks));
    if (!done) {
      ++refused_blocks;
      return;
    }
    blocks_ += member.slot.count > 1;
    member.state = MemberState::published;
  }

  void drop(ModelPage& m, MemberId id) {
    const ModelMember& member = m.members.at(id);
    blocks_ -= member.state != MemberState::claimed && member.slot.count > 1;
    f_.index.drop_member(m.record, id);
    m.members.erase(id);
    --members_;
  }

  ModelMember& any(ModelPage& m) {
    auto at = m.members.begin();
    std::advance(at, static_cast<long>(rng_() % m.members.size()));
    return at->second;
  }

  void check(ModelPage& m, const PageHash& page) {
    const PageIndex& index = f_.index;
    REQUIRE(index.hash(m.record) == page);
    REQUIRE(index.ns(m.record) == kNs);
    REQUIRE(index.depth(m.record) == m.depth);
    REQUIRE(index.children(m.record) == m.children);
    REQUIRE(index.parent(m.record) == (m.parent == ~0ULL ? kNone : model_.at(m.parent).record));
    std::set<MemberId> chain;
    for (MemberId id = index.first_member(m.record); id != kNone; id = index.next_member(id)) chain.insert(id);
    REQUIRE(chain.size() == m.members.size());
    std::uint64_t full = 0;
    for (PoolId pool = 0; pool < kModelPools; ++pool) {
      std::uint32_t published = 0;
      for (std::uint32_t shard = 0; shard < kModelShards[pool]; ++shard) {
        const ModelMember* member = m.visible(pool, shard);
        REQUIRE(index.find_member(m.record, pool, shard) == (member == nullptr ? kNone : member->id));
        const bool there = member != nullptr && member->state == MemberState::published;
        published += there;
        ObjectLocation where{};
        REQUIRE(index.reader().locate(kNs, page, pool, shard, &where) == (there ? ReadStatus::found : ReadStatus::absent));
        if (!there) continue;
        REQUIRE(where.epoch == member->epoch);
        REQUIRE(where.level == member->level);
        REQUIRE(same(where.slot, member->slot));
      }
      if (published == kModelShards[pool]) full |= std::uint64_t{1} << pool;
    }
    REQUIRE(index.full_pools(m.record) == full);
    for (auto& [id, member] : m.members) {
      REQUIRE(chain.count(id) == 1);
      const PageIndex::MemberRef ref = index.member(id);
      REQUIRE(ref.state == member.state);
      REQUIRE(ref.pool == member.pool);
      REQUIRE(ref.shard == member.shard);
      if (member.state == MemberState::claimed)
        REQUIRE(index.claim_of(id) == member.claim);
      else
        REQUIRE(same(index.slot_of(id), member.slot));
    }
  }

  Fixture f_;
  IndexLimits limits_;
  std::uint64_t pages_;
  std::mt19937_64 rng_;
  std::map<std::uint64_t, ModelPage> model_;
  std::uint32_t members_ = 0, blocks_ = 0;
  Epoch epoch_ = 0;
};

}  // namespace

TEST_CASE("the index answers as a plain map does, after any sequence of changes") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    Model model({200, 400, 60}, 400, seed);
    for (int round = 0; round < 100; ++round) {
      for (int i = 0; i < 500; ++i) model.step();
      model.check();
    }
    CHECK(model.refused_blocks > 0);
    CHECK(model.refused_pages > 0);
  }
}

TEST_CASE("every record can be used at the stated load, and a full index says so") {
  Fixture f({20'000, 1, 0});
  for (std::uint64_t i = 0; i < 20'000; ++i) REQUIRE(f.index.insert(1, page_of(i), kNone, 0) != kNone);
  CHECK(f.index.insert(1, page_of(20'000), kNone, 0) == kNone);
  for (std::uint64_t i = 0; i < 20'000; ++i) REQUIRE(f.index.find(1, page_of(i)) != kNone);
  CHECK(f.index.find(1, page_of(20'000)) == kNone);
  f.index.erase(f.index.find(1, page_of(5)));
  CHECK(f.index.insert(1, page_of(20'000), kNone, 0) != kNone);
  CHECK(f.index.find(1, page_of(5)) == kNone);
}

TEST_CASE("keys that share one home bucket are found behind it, and leave no trace when they go") {
  Fixture f({9'000, 1, 0});
  const std::uint32_t home = f.sections.bucket_count - 1;  // so that the probe wraps round
  std::vector<PageHash> crowd;
  const std::size_t most = std::size_t{layout::kMaxProbe} * layout::kBucketEntries;
  for (std::uint64_t i = 0; crowd.size() <= most; ++i)
    if (layout::home_bucket(mix_page(0, page_of(i)), f.sections.bucket_count) == home) crowd.push_back(page_of(i));
  for (std::size_t i = 0; i < most; ++i) REQUIRE(f.index.insert(0, crowd[i], kNone, 0) != kNone);
  // The crowd is bounded, and a refusal changes nothing.
  CHECK(f.index.insert(0, crowd[most], kNone, 0) == kNone);
  CHECK(f.index.records() == most);
  CHECK(f.index.reader().page(0, crowd[most], nullptr) == ReadStatus::absent);
  for (std::size_t i = 0; i < most; i += 7) REQUIRE(f.index.reader().page(0, crowd[i], nullptr) == ReadStatus::found);

  std::mt19937_64 rng(9);
  std::shuffle(crowd.begin(), crowd.begin() + static_cast<long>(most), rng);
  for (std::size_t i = 0; i < most; ++i) {
    f.index.erase(f.index.find(0, crowd[i]));
    if (i % 97 == 0)
      for (std::size_t j = 0; j < most; j += 61) REQUIRE((f.index.find(0, crowd[j]) != kNone) == (j > i));
  }
  for (std::uint32_t b = 0; b < f.sections.bucket_count; ++b) {
    const layout::Bucket& bucket = f.at<layout::Bucket>(f.sections.buckets)[b];
    REQUIRE(bucket.tags_low == 0);
    REQUIRE(bucket.tags_overflow == 0);
  }
}

TEST_CASE("a record's sequence moves with every change that readers can see, and reuse does not reset it") {
  Fixture f({4, 8, 2});
  f.index.set_pool(0, 0, 1, HitPolicy::every_page(), 0);
  const RecordId record = f.index.insert(0, page_of(1), kNone, 0);
  std::uint32_t last = 0;
  const auto moved = [&] {
    const std::uint32_t now = f.hot(record).seq;
    const bool yes = now % 2 == 0 && now > last;
    last = now;
    return yes;
  };
  CHECK(moved());
  const MemberId member = f.index.add_claimed(record, 0, 0, 12);
  CHECK(moved());
  CHECK(f.index.publish(record, member, 5, slot_from(1), AckLevel::memory));
  CHECK(moved());
  f.index.set_level(record, member, AckLevel::replicated);
  CHECK(moved());
  f.index.make_zombie(record, member);
  CHECK(moved());
  f.index.drop_member(record, member);
  CHECK(moved());
  f.index.erase(record);
  CHECK(moved());
  CHECK(f.index.insert(0, page_of(2), kNone, 0) == record);
  CHECK(moved());
}

TEST_CASE("children follow the parents that become known later") {
  Fixture f({4, 1, 0});
  const RecordId root = f.index.insert(0, page_of(1), kNone, 0);
  const RecordId child = f.index.insert(0, page_of(2), kNone, 1);
  f.index.set_parent(child, root);
  f.index.set_parent(child, root);
  CHECK(f.index.children(root) == 1);
  const RecordId other = f.index.insert(0, page_of(3), kNone, 0);
  f.index.set_parent(child, other);
  CHECK(f.index.children(root) == 0);
  CHECK(f.index.children(other) == 1);
  f.index.erase(child);
  CHECK(f.index.children(other) == 0);
}

TEST_CASE("a pool with another number of shards is full by the new number") {
  Fixture f({4, 8, 0});
  f.index.set_pool(2, 5, 1, HitPolicy::trailing(3), 7);
  const RecordId record = f.index.insert(2, page_of(1), kNone, 0);
  const RecordId elsewhere = f.index.insert(1, page_of(1), kNone, 0);
  CHECK(f.index.add_claimed(record, 6, 0, 0) == kNone);  // not registered
  const MemberId first = f.index.add_claimed(record, 5, 0, 0);
  CHECK(f.index.publish(record, first, 1, slot_from(1, 1), AckLevel::memory));
  CHECK(f.index.full_pools(record) == 1U << 5);
  f.index.set_pool(2, 5, 2, HitPolicy::trailing(3), 8);
  CHECK(f.index.full_pools(record) == 0);
  const MemberId second = f.index.add_claimed(record, 5, 1, 0);
  CHECK(f.index.publish(record, second, 2, slot_from(2, 1), AckLevel::memory));
  CHECK(f.index.full_pools(record) == 1U << 5);
  CHECK(f.index.full_pools(elsewhere) == 0);
  const IndexReader::PoolView view = f.index.reader().pool(2, 5);
  CHECK(view.shards == 2);
  CHECK(view.policy == HitPolicy::trailing(3));
  CHECK(view.generation == 8);
  CHECK(f.index.reader().generation(2, 5) == 8);
}

TEST_CASE("a slot that cannot be written down is refused and changes nothing") {
  Fixture f({1, 1, 1});
  f.index.set_pool(0, 0, 1, HitPolicy::every_page(), 0);
  const RecordId record = f.index.insert(0, page_of(1), kNone, 0);
  const MemberId member = f.index.add_claimed(record, 0, 0, 3);
  storage::Slot slot;
  slot.count = 0;
  CHECK_FALSE(f.index.publish(record, member, 1, slot, AckLevel::memory));
  slot.count = storage::kMaxExtents + 1;
  CHECK_FALSE(f.index.publish(record, member, 1, slot, AckLevel::memory));
  slot.count = 1;
  for (const storage::Extent& extent :
       {storage::Extent{32, 64}, storage::Extent{64, 65}, storage::Extent{64ULL << 40, 64}, storage::Extent{0, 64ULL << 24}}) {
    slot.extents[0] = extent;
    CHECK_FALSE(f.index.publish(record, member, 1, slot, AckLevel::memory));
  }
  CHECK(f.index.claim_of(member) == 3);
  slot.extents[0] = {64ULL * layout::kMaxOffsetGranules, 64ULL * layout::kMaxExtentGranules};
  CHECK(f.index.publish(record, member, 1, slot, AckLevel::memory));
  CHECK(same(f.index.slot_of(member), slot));
}
