// SPDX-License-Identifier: Apache-2.0
//
// Whether the books add up (P7): ledger, allocator, index, pins, claims, candidates. For tests; slow on purpose.
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

namespace {
std::string differ(const char* what, std::uint64_t book, std::uint64_t truth) {
  return std::string(what) + ": the books say " + std::to_string(book) + ", a scan says " + std::to_string(truth);
}
}  // namespace

std::string PageIndex::audit() const {
  std::vector<bool> free(record_high_water_, false);
  std::uint32_t count = 0;
  for (RecordId record = free_record_; record != kNone; record = field(record, 0)) {
    if (record >= record_high_water_) return "the list of free records leads out of the index";
    if (in_use(record)) return "a record in use is on the list of free ones";
    if (free[record]) return "the list of free records is a circle";
    free[record] = true;
    ++count;
  }
  if (count + records_ != record_high_water_) return differ("free records", record_high_water_ - records_, count);
  std::vector<bool> seen(member_high_water_, false);
  std::string wrong;
  std::uint32_t members_seen = 0;
  const auto see = [&](MemberId id, const char* where) {
    if (id >= member_high_water_ || seen[id]) {
      wrong = std::string("a member is named twice, or does not exist: ") + where;
      return false;
    }
    seen[id] = true;
    ++members_seen;
    return true;
  };
  for (MemberId id = free_member_; id != kNone && see(id, "free"); id = next_member(id)) {
  }
  for_each([&](RecordId record) {
    for (MemberId id = first_member(record); wrong.empty() && id != kNone && see(id, "in use"); id = next_member(id)) {
    }
    const RecordId up = parent(record);
    if (up == record || (up != kNone && !in_use(up))) wrong = "a record's parent is itself, or no record";
  });
  if (wrong.empty() && members_seen != member_high_water_) wrong = differ("members", member_high_water_, members_seen);
  return wrong;
}

std::string StoreCore::Impl::audit() const {
  if (const std::string wrong = index.audit(); !wrong.empty()) return wrong;
  std::uint64_t objects = 0, payload = 0, slots = 0, reserved = 0, reserved_slot_bytes = 0, claimed_members = 0, records = 0;
  std::unordered_map<RecordId, std::uint32_t> page_pins, checkpoint_pins, children;
  for (const auto& [id, lease] : part_leases)
    for (const auto& page : lease.pages) {
      page_pins[page.record] += page.page ? 1 : 0;
      checkpoint_pins[page.record] += page.checkpoint ? 1 : 0;
    }
  for (const auto& [operation, persist] : persists) ++(persist.trailing ? checkpoint_pins : page_pins)[persist.record];
  index.for_each([&](RecordId record) {
    if (index.parent(record) != kNone) ++children[index.parent(record)];
  });
  std::string wrong;
  index.for_each([&](RecordId record) {
    ++records;
    if (!wrong.empty()) return;
    const NamespaceId ns = index.ns(record);
    std::uint32_t page_claims = 0, checkpoint_claims = 0;
    bool pages = false, checkpoints = false;
    for (const MemberId m : index.members(record)) {
      const auto member = index.member(m);
      const bool checkpoint = trailing(ns, member.pool);
      if (member.state == MemberState::claimed) {
        ++claimed_members;
        ++(checkpoint ? checkpoint_claims : page_claims);
        const Claim& claim = claims[index.claim_of(m)];
        if (!claim.in_use || claim.record != record || claim.member != m) wrong = "a claimed member's claim does not name it";
        continue;
      }
      const storage::SlotShape* shape = catalog.shape(ns, member.pool);
      if (shape == nullptr) {
        wrong = "an object of a pool without a shape";
        return;
      }
      const std::uint64_t slot_bytes = index.slot_of(m).bytes();
      if (member.state == MemberState::published) {
        ++objects;
        payload += shape->payload_bytes();
        slots += slot_bytes;
        (checkpoint ? checkpoints : pages) = true;
        const SlotHeader* header = header_of(index.slot_of(m), *shape);
        if (!slot_is(header, member.epoch, slot_incarnation)) wrong = "a readable object's slot header is another's";
      } else {
        reserved += shape->payload_bytes();
        reserved_slot_bytes += slot_bytes;
        if (pins(record, checkpoint) == 0) wrong = "a removed object keeps its slot although nobody pins it";
      }
    }
    if (pins(record, false) != page_pins[record]) wrong = differ("page pins of a record", pins(record, false), page_pins[record]);
    if (pins(record, true) != checkpoint_pins[record])
      wrong = differ("checkpoint pins of a record", pins(record, true), checkpoint_pins[record]);
    if (claimed(record, false) != page_claims) wrong = differ("page claims of a record", claimed(record, false), page_claims);
    if (claimed(record, true) != checkpoint_claims)
      wrong = differ("checkpoint claims of a record", claimed(record, true), checkpoint_claims);
    if (index.children(record) != children[record]) wrong = differ("children of a record", index.children(record), children[record]);
    const bool checkpoint_candidate = checkpoints && checkpoint_claims == 0 && pins(record, true) == 0;
    const bool page_candidate = pages && page_claims == 0 && checkpoint_claims == 0 && pins(record, false) == 0 &&
                                pins(record, true) == 0 && children[record] == 0;
    if (order.is_page_candidate(record) != page_candidate) wrong = "a page set's place in the eviction order is wrong";
    if (order.is_checkpoint_candidate(record) != checkpoint_candidate) wrong = "a checkpoint set's place in the eviction order is wrong";
    if (index.first_member(record) == kNone && children[record] == 0 && page_pins[record] == 0 && checkpoint_pins[record] == 0)
      wrong = "an empty record was not given back";
    if (checkpoints && !pages && order.stamp(record) == 0) wrong = "a checkpoint's page is unknown to the eviction order";
  });
  if (!wrong.empty()) return wrong;
  std::uint64_t open = 0;
  for (const Claim& claim : claims) {
    if (!claim.in_use) continue;
    ++open;
    for (const OpenGrant& grant : claim.grants) {
      reserved += catalog.shape(grant.ns, grant.pool)->payload_bytes();
      reserved_slot_bytes += grant.slot.bytes();
    }
    if (claim.grants.empty() == claim.listed) return "a claim's place in the list of granted claims is wrong";
  }
  std::uint64_t quarantined = 0;
  for (const auto& [epoch, grant] : quarantine) {
    reserved += catalog.shape(grant.ns, grant.pool)->payload_bytes();
    reserved_slot_bytes += grant.slot.bytes();
    quarantined += grant.slot.bytes();
  }
  if (records != index.records()) return differ("records", index.records(), records);
  if (objects != resident_objects) return differ("readable objects", resident_objects, objects);
  if (payload != resident_payload) return differ("payload bytes", resident_payload, payload);
  if (slots != resident_slots) return differ("slot bytes", resident_slots, slots);
  if (reserved != reserved_payload) return differ("reserved payload bytes", reserved_payload, reserved);
  if (reserved_slot_bytes != reserved_slots) return differ("reserved slot bytes", reserved_slots, reserved_slot_bytes);
  if (quarantined != quarantined_bytes) return differ("quarantined bytes", quarantined_bytes, quarantined);
  if (slots + reserved_slot_bytes != allocator.used_bytes()) return differ("allocator's used bytes", allocator.used_bytes(), slots + reserved_slot_bytes);
  if (open != open_claims) return differ("open claims", open_claims, open);
  if (claimed_members != open) return differ("claimed members", open, claimed_members);
  if (config.capacity_bytes != 0 && payload + reserved > config.capacity_bytes)
    return differ("capacity (at most)", config.capacity_bytes, payload + reserved);
  for (const Sender& sender : senders) {
    std::uint64_t of_lanes = 0;
    for (const Lane& lane : sender.lanes) of_lanes += lane.open_bytes;
    if (of_lanes != sender.open_bytes) return differ("a sender's bytes of open grants", sender.open_bytes, of_lanes);
  }
  std::uint64_t leased = 0, lease_count = 0, lease_pages = 0;
  std::map<EngineAndGroup, std::vector<std::pair<LeaseBook::NodeId, std::vector<std::uint32_t>>>> in_books;
  for (const auto& [id, lease] : leases) {
    if (lease.end == LeaseBook::kNoNode)
      leased += lease.bytes;
    else
      in_books[{lease.engine, lease.group}].emplace_back(lease.end, lease.stops);
    ++lease_count;
    lease_pages += lease.stop;
  }
  if (in_books.size() != lease_books.size()) return differ("books of leases", lease_books.size(), in_books.size());
  for (const auto& [key, book] : lease_books) {
    if (std::string why = book.audit(in_books[key]); !why.empty()) return why;
    leased += book.bytes();
  }
  std::uint64_t engines_leased = 0, engines_leases = 0, engines_pages = 0;
  for (const auto& [id, engine] : engines) {
    engines_leased += engine.leased_bytes;
    engines_leases += engine.leases;
    engines_pages += engine.lease_pages;
  }
  if (leased != engines_leased) return differ("leased bytes", engines_leased, leased);
  if (lease_pages != engines_pages) return differ("pages of leases", engines_pages, lease_pages);
  if (lease_count != engines_leases) return differ("leases", engines_leases, lease_count);
  return {};
}

}  // namespace kvonce::protocol
