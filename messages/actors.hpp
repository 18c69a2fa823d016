// SPDX-License-Identifier: Apache-2.0
//
// Every typed actor interface, each signature with a line of prose. Structs of protocol/wire.hpp and catalog.hpp may
// travel between processes; those of local.hpp never do.
//
//   engine -> PoolActor --PageReady--> ShardKeyActor --PutBatch--> StoreActor(partition) --StoreReply--> PoolActor
//
// What a rank has to say to a store after a PageReady goes through the ShardKeyActor as well, so that it arrives after it.
#pragma once

#include "messages/compat.hpp"
#include "messages/inspect.hpp"
#include "messages/local.hpp"

namespace kvonce::messages {

/// Who asks: answers go to this client's ShardKeyActor under this number.
struct From {
  protocol::ClientId client = 0;
  std::uint64_t token = 0;
};
/// The partition that a message is for.
struct ToPartition {
  std::uint32_t partition = 0;
};
struct RegisterReply {
  std::uint64_t token = 0;
  protocol::RegisterAnswer answer;
};
struct LeaseReply {
  std::uint64_t token = 0;
  Reason reason = Reason::none;
};
/// The keys of a pool have changed (ok), or cannot be had.
struct Rekeyed {
  std::uint32_t pool = 0;
  bool ok = false;
  protocol::NamespaceId ns = 0;
  protocol::PoolId store_pool = 0;
  protocol::Generation generation = 0;
  std::uint32_t shard = 0;
};
struct StoreLost {
  std::uint32_t partition = 0;
};
struct CatalogUpdates {
  std::uint64_t number = 0;
  std::vector<protocol::CatalogUpdate> updates;
};
struct CatalogAck {
  std::uint32_t partition = 0;
  std::uint64_t number = 0;
};
/// Registrar -> partition, when all places of namespaces are taken: what have you of each?
struct NamespaceUseAsk {
  std::uint64_t round = 0;
};
struct NamespaceUseAnswer {
  std::uint32_t partition = 0;
  std::uint64_t round = 0;
  std::vector<std::uint32_t> use;  // protocol::NamespaceUse by place
};
/// Partition -> registrar: nothing is left here of a retired namespace.
struct NamespaceEmpty {
  std::uint32_t partition = 0;
  protocol::NamespaceId ns = 0;
};
struct SenderGone {
  protocol::SenderId sender = 0;
};
struct ClientGone {
  protocol::ClientId client = 0;
  bool fenced = false;  // it writes to no slot any more
};
/// Later news of a client that has gone: its process has ended, or says that it writes to no slot.
struct ClientFenced {
  protocol::ClientId client = 0;
};
/// The same of a process that was connected in an earlier life of the store.
struct ProcessFenced {
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;
};

KVONCE_FIELDS(From, x.client, x.token)
KVONCE_FIELDS(ToPartition, x.partition)
KVONCE_FIELDS(RegisterReply, x.token, x.answer)
KVONCE_FIELDS(LeaseReply, x.token, x.reason)
KVONCE_FIELDS(Rekeyed, x.pool, x.ok, x.ns, x.store_pool, x.generation, x.shard)
KVONCE_FIELDS(StoreLost, x.partition)
KVONCE_FIELDS(CatalogUpdates, x.number, x.updates)
KVONCE_FIELDS(CatalogAck, x.partition, x.number)
KVONCE_FIELDS(NamespaceUseAsk, x.round)
KVONCE_FIELDS(NamespaceUseAnswer, x.partition, x.round, x.use)
KVONCE_FIELDS(NamespaceEmpty, x.partition, x.ns)
KVONCE_FIELDS(SenderGone, x.sender)
KVONCE_FIELDS(ClientGone, x.client, x.fenced)
KVONCE_FIELDS(ClientFenced, x.client)
KVONCE_FIELDS(ProcessFenced, x.pid, x.start_time)

template <class Inspector, Packed T>
auto inspect(Inspector& f, T& x) {
  return inspect_packed(f, x);
}

/// One rank and page group of an engine: its lent rows, grants being copied, verdicts and loads.
using PoolActor = compat::Interface<
    void(protocol::StoreReply),  // a store's grants, verdicts, checksum questions and redirects
    void(protocol::LoadBegun),   // the home partition has pinned what the lease covers, or says why not
    void(Rekeyed),               // keys per rank are set: announce again what was redirected
    void(StoreLost),             // a store has ended: waits end, running loads go on from the mapping
    void(FlushMark),             // to be sent on to the ShardKeyActor behind everything put so far
    void(AddPool),               // local: number a registered pool
    void(UnregisterPool),        // local: answer when no row of it is lent any more
    void(PutCommand),            // local: the engine's batch of ready pages
    void(LoadCommand),           // local: the engine wants rows filled
    void(CancelCommand),         // local: end what has not begun
    void(CloseRank),             // local: end everything, then oneself
    void(StoreFound),            // local: there is a store again; its index and slots lie here
    void(CopyAdvanced),          // local: layer groups are in place
    void(CopyEnded),             // local: a copy has come to its end
    void(Tick)>;                 // local: a deadline may have passed

/// One per process: turns (rank, pool, page) into canonical keys and knows which partition owns them.
using ShardKeyActor = compat::Interface<
    void(protocol::PageReady),                     // pages of a rank are ready: canonicalize, split, pass on
    void(ToPartition, protocol::GrantResults),     // copies that landed or were abandoned
    void(ToPartition, protocol::ChecksumAnswers),  // checksums of a rank's own bytes
    void(protocol::Withdraw),                      // a rank no longer waits
    void(protocol::LoadBegin),                     // pin what a lease covers
    void(protocol::LoadEnd),                       // and unpin it
    void(RekeyAsk),                                // a pool was demoted: get keys per rank
    void(SetKeying),                               // a rank has numbered a new pool
    void(PoolGone),                                // a rank has unregistered a pool
    void(FlushMark),                               // back from a rank
    void(RankClosed),                              // a rank has ended, its copies too
    void(RegisterReply),                           // the registrar's answer
    void(protocol::LookupAnswer),                  // the home partition's answer
    void(LeaseReply),                              // to narrow and release
    void(protocol::RemoveAnswer),                  // one partition has removed
    void(protocol::FlushAnswer),                   // one partition has decided everything that it had
    void(OpenNamespace),                           // local: a namespace text is to be registered
    void(CloseNamespace),                          // local: a namespace is used no more
    void(AskEpoch),                                // local: the value of an epoch's name is wanted
    void(RegisterGroup),                           // local: a page group is to be registered
    void(RegisterPool),                            // local: a rank's pool is to be registered
    void(LookupCommand),                           // local: a lookup for the engine, sent to its home partition
    void(LeaseCommand),                            // local: narrow or release, sent to the lease's home partition
    void(AdminCommand),                            // local: remove and flush, on all partitions
    void(struct AttachRank),                       // local: a new PoolActor
    void(struct StoresFound),                      // local: there is a store (again): introduce everything to it
    void(CloseProcess),                            // local: answer everything `closed`, then end
    void(Tick)>;                                   // local: the time that the core asked for has come

/// A rank introduces itself: replies to `sender` go to `pool`.
struct SenderJoin {
  protocol::AttachSender sender;
  PoolActor pool;
};
/// A process introduces itself: answers to `client` go to `keys`.
struct ClientJoin {
  protocol::ClientId client = 0;
  protocol::EngineId engine = 0;
  std::uint32_t pid = 0;           // of the process, and when it started: what fences its writes
  std::uint64_t start_time = 0;
  ShardKeyActor keys;
};
/// Local: a new rank of this process.
struct AttachRank {
  protocol::SenderId sender = 0;
  PoolActor pool;
};

/// One partition of a store: page records, claims, leases, eviction. Partition 0 is the registrar of the catalog.
using StoreActor = compat::Interface<
    void(ClientJoin),                     // a process has connected
    void(ClientGone),                     // and left
    void(ClientFenced),                   // and writes nothing any more
    void(ProcessFenced),                  // likewise, a process of an earlier life of the store
    void(SenderJoin),                     // a rank of it
    void(SenderGone),                     // has ended, its copies too
    void(protocol::AttachPool),           // a rank holds (or no longer holds) this shard
    void(From, protocol::NamespaceAsk),   // registrar: make or find a namespace
    void(From, protocol::NamespaceClose), // registrar: the process uses it no more; no answer
    void(From, protocol::PoolAsk),        // registrar: make or find a pool
    void(From, protocol::GroupAsk),       // registrar: make or find a page group
    void(From, protocol::EpochAsk),       // registrar: give out or find an epoch's value
    void(CatalogUpdates),                 // registrar -> partition: apply in order, acknowledge
    void(CatalogAck),                     // partition -> registrar
    void(NamespaceUseAsk),                // registrar -> partition: what have you of each namespace
    void(NamespaceUseAnswer),             // partition -> registrar
    void(NamespaceEmpty),                 // partition -> registrar: nothing is left of a retired one
    void(protocol::KeyConflict),          // partition -> registrar: a key differs within one engine
    void(protocol::PutBatch),             // announced objects under canonical keys
    void(protocol::GrantResults),         // landed, abandoned, failed
    void(protocol::Withdraw),             // a sender no longer waits
    void(protocol::ChecksumAnswers),      // verification of samples
    void(From, protocol::LookupAsk),      // home partition: which prefix lengths are restorable
    void(protocol::PartLookupAsk),        // home -> partition: pin and report your pages
    void(protocol::PartLookupAnswer),     // partition -> home
    void(protocol::PartNarrow),           // home -> partition: keep only this of the lease
    void(From, protocol::LeaseCall),      // narrow or (stop 0) release
    void(protocol::LoadBegin),            // pin; the lease's home answers the sender
    void(protocol::LoadEnd),              // unpin
    void(From, protocol::RemoveAsk),      // key, pages, namespace or everything
    void(From, protocol::FlushAsk),       // answered when what is accepted by now is decided
    void(struct Siblings),                // local: the other partitions
    void(StatsAsk),                       // local: counters of this partition
    void(WritesAsk),                      // local: who may be writing to its slots
    void(IntakeMark),                     // local: how far it has come with what links brought
    void(Freeze),                         // local: no new grants
    void(SnapshotAsk),                    // local: write down what the next life needs, and end
    void(WantEvents),                     // local: stored and evicted events are wanted, or no more
    void(EndStore),                       // local: end, after what was sent before
    void(Continue),                       // local: background work goes on
    void(Tick)>;                          // local: the time that the core asked for has come

/// All partitions by number, oneself included.
struct Siblings {
  std::vector<StoreActor> partitions;
};
/// Local: the partitions of a store that was found, by number, and where its index and slots lie.
struct StoresFound {
  std::vector<StoreActor> partitions;
  std::shared_ptr<const actors::ArenaView> arena;
};

template <class Inspector>
auto inspect(Inspector& f, SenderJoin& x) {
  return compat::fields(f, x, "SenderJoin", compat::field("sender", x.sender), compat::field("pool", x.pool));
}
template <class Inspector>
auto inspect(Inspector& f, ClientJoin& x) {
  return compat::fields(f, x, "ClientJoin", compat::field("client", x.client), compat::field("engine", x.engine),
                        compat::field("pid", x.pid), compat::field("start_time", x.start_time), compat::field("keys", x.keys));
}

/// Makes every message type known to a system that is being configured.
void register_messages(caf::actor_system_config& config);

}  // namespace kvonce::messages

KVONCE_LOCAL_TYPE(kvonce::messages::PutCommand)
KVONCE_LOCAL_TYPE(kvonce::messages::LoadCommand)
KVONCE_LOCAL_TYPE(kvonce::messages::CancelCommand)
KVONCE_LOCAL_TYPE(kvonce::messages::AddPool)
KVONCE_LOCAL_TYPE(kvonce::messages::UnregisterPool)
KVONCE_LOCAL_TYPE(kvonce::messages::CloseRank)
KVONCE_LOCAL_TYPE(kvonce::messages::CopyAdvanced)
KVONCE_LOCAL_TYPE(kvonce::messages::CopyEnded)
KVONCE_LOCAL_TYPE(kvonce::messages::OpenNamespace)
KVONCE_LOCAL_TYPE(kvonce::messages::CloseNamespace)
KVONCE_LOCAL_TYPE(kvonce::messages::AskEpoch)
KVONCE_LOCAL_TYPE(kvonce::messages::RegisterGroup)
KVONCE_LOCAL_TYPE(kvonce::messages::RegisterPool)
KVONCE_LOCAL_TYPE(kvonce::messages::SetKeying)
KVONCE_LOCAL_TYPE(kvonce::messages::PoolGone)
KVONCE_LOCAL_TYPE(kvonce::messages::RekeyAsk)
KVONCE_LOCAL_TYPE(kvonce::messages::FlushMark)
KVONCE_LOCAL_TYPE(kvonce::messages::RankClosed)
KVONCE_LOCAL_TYPE(kvonce::messages::LookupCommand)
KVONCE_LOCAL_TYPE(kvonce::messages::LeaseCommand)
KVONCE_LOCAL_TYPE(kvonce::messages::AdminCommand)
KVONCE_LOCAL_TYPE(kvonce::messages::AttachRank)
KVONCE_LOCAL_TYPE(kvonce::messages::CloseProcess)
KVONCE_LOCAL_TYPE(kvonce::messages::StoreFound)
KVONCE_LOCAL_TYPE(kvonce::messages::StoresFound)
KVONCE_LOCAL_TYPE(kvonce::messages::WritesAsk)
KVONCE_LOCAL_TYPE(kvonce::messages::IntakeMark)
KVONCE_LOCAL_TYPE(kvonce::messages::Freeze)
KVONCE_LOCAL_TYPE(kvonce::messages::SnapshotAsk)
KVONCE_LOCAL_TYPE(kvonce::messages::Siblings)
KVONCE_LOCAL_TYPE(kvonce::messages::StatsAsk)
KVONCE_LOCAL_TYPE(kvonce::messages::WantEvents)
KVONCE_LOCAL_TYPE(kvonce::messages::EndStore)
KVONCE_LOCAL_TYPE(kvonce::messages::Tick)
KVONCE_LOCAL_TYPE(kvonce::messages::Continue)

// The qualified names are the wire contract.
KVONCE_BEGIN_TYPES(kvonce_messages, 0)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::PutBatch)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::GrantResults)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::Withdraw)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::ChecksumAnswers)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::StoreReply)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::PageReady)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::LookupAsk)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::LookupAnswer)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::PartLookupAsk)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::PartLookupAnswer)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::PartNarrow)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::LeaseCall)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::LoadBegin)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::LoadBegun)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::LoadEnd)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::RemoveAsk)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::RemoveAnswer)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::FlushAsk)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::FlushAnswer)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::AttachSender)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::AttachPool)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::NamespaceAsk)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::NamespaceClose)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::PoolAsk)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::GroupAsk)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::EpochAsk)
KVONCE_TYPE(kvonce_messages, kvonce::messages::From)
KVONCE_TYPE(kvonce_messages, kvonce::messages::ToPartition)
KVONCE_TYPE(kvonce_messages, kvonce::messages::RegisterReply)
KVONCE_TYPE(kvonce_messages, kvonce::messages::LeaseReply)
KVONCE_TYPE(kvonce_messages, kvonce::messages::Rekeyed)
KVONCE_TYPE(kvonce_messages, kvonce::messages::StoreLost)
KVONCE_TYPE(kvonce_messages, kvonce::messages::CatalogUpdates)
KVONCE_TYPE(kvonce_messages, kvonce::messages::CatalogAck)
KVONCE_TYPE(kvonce_messages, kvonce::messages::NamespaceUseAsk)
KVONCE_TYPE(kvonce_messages, kvonce::messages::NamespaceUseAnswer)
KVONCE_TYPE(kvonce_messages, kvonce::messages::NamespaceEmpty)
KVONCE_TYPE(kvonce_messages, kvonce::protocol::KeyConflict)
KVONCE_TYPE(kvonce_messages, kvonce::messages::SenderGone)
KVONCE_TYPE(kvonce_messages, kvonce::messages::ClientGone)
KVONCE_TYPE(kvonce_messages, kvonce::messages::ClientFenced)
KVONCE_TYPE(kvonce_messages, kvonce::messages::ProcessFenced)
KVONCE_TYPE(kvonce_messages, kvonce::messages::SenderJoin)
KVONCE_TYPE(kvonce_messages, kvonce::messages::ClientJoin)
KVONCE_TYPE(kvonce_messages, kvonce::messages::PoolActor)
KVONCE_TYPE(kvonce_messages, kvonce::messages::ShardKeyActor)
KVONCE_TYPE(kvonce_messages, kvonce::messages::StoreActor)
KVONCE_END_TYPES(kvonce_messages)
