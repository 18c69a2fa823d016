// SPDX-License-Identifier: Apache-2.0
//
// Watches one run from outside: keeps its own books of what was announced, granted, told, leased and removed, and says
// which promise is broken by what the cores do. Knows the cores' messages and readers, none of their tables.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "protocol/shard_key_core.hpp"
#include "protocol/store_core.hpp"
#include "tests/sim/sim.hpp"

namespace kvonce::sim {

using namespace protocol;

class Peer;
class StoreNode;

struct KeyHash {
  std::size_t operator()(const CanonicalKey& k) const noexcept {
    return static_cast<std::size_t>(mix64(mix_page(k.ns, k.page), (std::uint64_t{k.pool} << 40) ^
                                                                      (std::uint64_t{k.shard} << 20) ^ k.generation));
  }
};
/// Names one announcement towards a store.
struct ItemName {
  SenderId sender = 0;
  std::uint64_t batch = 0;
  std::uint32_t item = 0;
  friend bool operator==(const ItemName&, const ItemName&) = default;
};
struct ItemNameHash {
  std::size_t operator()(const ItemName& n) const noexcept {
    return static_cast<std::size_t>(mix64(n.sender ^ n.item, n.batch));
  }
};

class Checkers {
 public:
  explicit Checkers(Sim& sim) : sim_(sim) {}
  void watch(StoreNode& node) { node_ = &node; }

  // -- at the store, before a message is handled --------------------------------------------------------------------
  /// warm: what the store held is still there, and who could write may still write.
  void new_life(Epoch first_epoch, bool warm);
  void joined(std::uint32_t partition, const Peer& peer);
  void before_put(std::uint32_t partition, const PutBatch& batch);
  void before_results(std::uint32_t partition, const GrantResults& results);
  void before_withdraw(std::uint32_t partition, const Withdraw& withdraw);
  void before_checksums(std::uint32_t partition, const ChecksumAnswers& answers);
  void before_leave(std::uint32_t partition, const Peer& peer, bool fenced);
  /// `pages`: all that the lookup is of; the ask may have fewer.
  void before_lookup(std::uint32_t partition, SenderId asker, const LookupAsk& ask, const std::vector<PageHash>& pages);
  void before_remove(std::uint32_t partition, SenderId asker, const RemoveAsk& ask);
  void before_flush(std::uint32_t partition, SenderId asker, const FlushAsk& ask);
  void before_release(const LeaseCall& call, bool whole);
  void after_release(const LeaseCall& call, Reason reason);
  void fenced(ClientId client);
  void demoted(const CatalogUpdate& update);

  // -- namespaces (checkers_namespaces.cpp) ---------------------------------------------------------------------------
  /// At the registrar, when it decides, and at each partition, before it applies the update.
  void changed(const CatalogUpdate& update);
  /// After a warm restart: which namespaces the registrar has.
  void restored_namespaces();
  void applied(std::uint32_t partition, const CatalogUpdate& update);
  void opening_arrived(std::uint64_t number, const NamespaceAsk& ask);
  void opening_answered(std::uint64_t number, ClientId client, const RegisterAnswer& answer);
  void opening_dropped(std::uint64_t number) { openings_.erase(number); }
  void registrar_closed(ClientId client, NamespaceId ns);
  void registrar_left(ClientId client);
  /// Something of the namespace reaches a partition.
  void touched(NamespaceId ns);
  /// As the client sees it: from when it heard that the namespace is open until it says that it uses it no more, or is cut off.
  void uses(const Peer& peer, NamespaceId ns);
  void leaves(ClientId client, NamespaceId ns) { uses_.erase({ns, client}); }
  void leaves(ClientId client);
  /// kNoNamespace: none has been freed.
  NamespaceId some_freed_namespace(Random& random) const;

  // -- what ranks break --------------------------------------------------------------------------------------------------
  /// Bytes of the arena that something broke on purpose.
  void tainted(std::uint64_t offset, std::uint64_t bytes);

  // -- at the store, after it ------------------------------------------------------------------------------------------
  void after_call(std::uint32_t partition, const StoreActions& out);

  // -- at the ranks ----------------------------------------------------------------------------------------------------
  /// A verdict reaches its engine. `keys`: all keys under which the item may have been announced.
  void delivered(const Peer& peer, const std::vector<CanonicalKey>& keys, Verdict verdict, Reason reason, Time announced);

  /// Everything at once; `last` after the last event of the run.
  void scan(bool last);
  Epoch highest_epoch() const { return highest_epoch_; }
  /// For forgers: a lease of another engine (zero: there is none), and whether a grant is the sender's own.
  LeaseId some_lease(EngineId not_of, Random& random) const;
  bool owns_grant(SenderId sender, Epoch epoch) const;

 private:
  struct Waiting {
    ItemName name;
    AckLevel level = AckLevel::memory;
    Time since = 0;
    bool cannot_copy = false;
    bool claiming = true;  // not stored yet, as far as anybody could see
    bool met = false;      // stored at the asked level when it was announced
  };
  struct GrantRecord {
    CanonicalKey key;
    Epoch epoch = 0;
    ItemName name;
    ClientId client = 0;
    std::uint32_t claim = 0;
    std::uint32_t partition = 0;
    std::uint64_t bytes = 0;
    Time at = 0;
    Time valid_until = 0;    // at the earliest
    Time patient_until = 0;  // at the latest: deadlines double with each promotion of a claim
    bool open = true;     // neither done, abandoned nor given up by its sender's end
    bool removed = false; // its key was removed since
    bool orphan = false;  // nobody waits for it any more
    std::vector<storage::Extent> extents;
  };
  struct KeyBook {
    std::vector<Waiting> waiting;
    std::vector<Epoch> grants;        // since the key was last absent
    Time writing_until = 0;           // last moment at which a grant was valid
    std::uint64_t grants_ever = 0;
    std::uint32_t claim_grants = 0;   // since the present claim began
  };
  struct Presence {  // of one object, by the store's own events
    bool present = false;
    Time since = 0;
    Time gone_at = 0;
    SenderId writer = 0;
  };
  struct PageBook {
    std::set<PageHash> children;      // pages that the store knows to continue this one
    bool evicted = false;             // and nothing of it stored since
    bool ever_evicted = false;
    bool ever_removed = false;
  };
  struct LeaseBook {
    EngineId engine = 0;
    NamespaceId ns = 0;
    std::vector<PageHash> pages;
    std::uint32_t stop = 0;
    std::uint64_t every = 0;                                    // pools with every page
    std::vector<std::pair<PoolId, std::uint32_t>> trailing;     // (pool, n)
    std::vector<std::uint32_t> stops;
    Time expires = 0;
  };
  struct RequestBook {
    std::uint32_t restorable = 0;
    LeaseId lease;
    Time until = 0;
  };
  struct AskBook {
    LookupAsk ask;
    Time at = 0;
    bool retired = false;  // its namespace was, where it was asked
  };
  struct OpeningBook {
    NamespaceAsk ask;
    Time at = 0;
    std::uint64_t frees = 0;      // that there had been when it came
    std::set<NamespaceId> held;   // by some partition, or open, then
  };
  struct NamespaceState {
    Time touched = 0, closed = 0;  // last
    std::set<ClientId> open;       // as the registrar has heard
  };
  struct VerifyBook {
    ItemName name;
    Epoch epoch = 0;
    CanonicalKey key;
  };

  // checkers_puts.cpp
  void on_grant(std::uint32_t partition, SenderId sender, const Grant& grant, const StoreReply& reply);
  void on_verdict(std::uint32_t partition, SenderId sender, const ItemVerdict& verdict,
                  std::uint64_t open_before);
  void close_grant(GrantRecord& grant);
  void stop_waiting(const ItemName& name, const CanonicalKey& key);
  void check_progress(std::uint32_t partition, const CanonicalKey& key, KeyBook& book);
  bool sender_writes(SenderId sender, std::uint32_t partition, Time* last) const;
  void count_verdict(const ItemVerdict& verdict);

  // checkers_reads.cpp
  void on_lookup_answer(std::uint32_t partition, SenderId asker, const LookupAnswer& answer);
  void compare_with_model(std::uint32_t partition, const AskBook& book, const LookupAnswer& answer);
  void check_missing(std::uint32_t partition, const AskBook& book, const LookupAnswer& answer);
  void check_missing_checkpoint(std::uint32_t partition, const AskBook& book, const LookupAnswer& answer);
  void check_same_request(const AskBook& book, const LookupAnswer& answer);
  void note_lease(const AskBook& book, const LookupAnswer& answer);
  bool full(std::uint32_t partition, NamespaceId ns, const PageHash& page, PoolId pool) const;
  bool in_flight(const CanonicalKey& key) const;
  bool is_leased(const ObjectEvent& event) const;

  // checkers_namespaces.cpp
  void new_life_of_namespaces();
  void check_retired(const CatalogUpdate& update);
  void check_freed(NamespaceId ns);
  void check_refused(const OpeningBook& opening, Reason reason);
  void watch_opening(std::uint64_t number, Time since);
  bool is_retired(std::uint32_t partition, NamespaceId ns) const { return retired_.contains({partition, ns}); }

  // checkers_books.cpp
  void on_event(std::uint32_t partition, const ObjectEvent& event, const StoreActions& out);
  void check_evicted(std::uint32_t partition, const ObjectEvent& event);
  void check_object(std::uint32_t partition, const CanonicalKey& key, const ObjectLocation& at);
  void check_books(std::uint32_t partition);
  bool is_tainted(const ObjectLocation& at) const;
  bool readable(std::uint32_t partition, const CanonicalKey& key, ObjectLocation* at) const;
  std::optional<ContentKey> content_key(std::uint32_t partition, const CanonicalKey& key) const;
  CanonicalKey key_of(const ObjectEvent& event) const;
  static std::uint64_t item_key(SenderId sender, const CanonicalKey& key) { return mix64(sender, KeyHash{}(key)); }
  std::string text(const CanonicalKey& key) const;
  std::uint32_t owner(const CanonicalKey& key) const;

  Sim& sim_;
  StoreNode* node_ = nullptr;

  // Of the present life.
  std::unordered_map<CanonicalKey, KeyBook, KeyHash> keys_;
  std::unordered_map<ItemName, CanonicalKey, ItemNameHash> items_;
  std::map<Epoch, GrantRecord> grants_;                       // those whose writer may still write
  std::unordered_map<CanonicalKey, Presence, KeyHash> present_;  // generation 0: events name none
  std::map<std::pair<NamespaceId, PageHash>, PageBook> pages_;
  std::unordered_map<LeaseId, LeaseBook> leases_;
  std::map<std::tuple<EngineId, std::uint64_t, std::uint64_t>, RequestBook> requests_;
  std::map<std::pair<SenderId, std::uint64_t>, AskBook> asks_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, VerifyBook> verifications_;  // (partition, ask)
  std::unordered_set<ItemName, ItemNameHash> differing_;
  std::map<std::pair<std::uint32_t, EngineId>, std::uint32_t> engine_clients_;
  std::unordered_map<SenderId, EngineId> engines_;
  std::unordered_map<SenderId, ClientId> clients_;
  std::map<std::pair<std::uint32_t, SenderId>, std::uint64_t> open_items_;
  std::map<std::pair<std::uint32_t, SenderId>, std::vector<ItemName>> sender_items_;
  std::set<std::pair<std::uint32_t, SenderId>> connected_;
  std::vector<std::tuple<std::uint64_t, std::uint64_t, Epoch>> taints_;  // offset, bytes, newest epoch then
  std::map<std::pair<SenderId, std::uint32_t>, Time> idle_since_;  // (sender, partition): its last grant ended
  std::vector<GrantRecord> landed_now_;                             // by the message that is being handled
  std::map<std::uint32_t, std::uint64_t> no_space_;    // by partition: the store's count
  std::map<std::uint32_t, Time> no_space_until_;       // when it was last seen to grow
  Time last_disturbance_ = 0;  // a removal, unpublishing or demotion
  std::uint64_t granted_bytes_ = 0;
  Epoch first_epoch_ = 1;
  std::set<std::pair<std::uint32_t, std::pair<SenderId, std::uint64_t>>> flushes_, removes_;

  std::map<NamespaceId, NamespaceState> namespaces_;       // that have a place
  std::vector<NamespaceId> freed_;
  std::set<std::pair<std::uint32_t, NamespaceId>> retired_;  // by partition that has heard of it; freed ones too
  std::set<std::pair<NamespaceId, ClientId>> uses_;
  std::map<GroupId, NamespaceId> groups_;
  std::map<std::uint64_t, OpeningBook> openings_;
  Time round_progress_ = 0;  // last time that an opening was answered or a place freed

  // Of all lives.
  std::unordered_map<std::uint64_t, Time> told_;          // by (sender, key): newest success that a store has told
  std::unordered_map<std::uint64_t, Time> decided_;       // likewise, any verdict
  Epoch highest_epoch_ = 0;
  std::uint64_t calls_ = 0;
};

}  // namespace kvonce::sim
