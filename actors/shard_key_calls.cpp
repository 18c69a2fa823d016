// SPDX-License-Identifier: Apache-2.0
//
// The ShardKeyActor's other half: what this process asks its store, and what becomes of the answers.
#include <algorithm>

#include "actors/shard_key_actor_state.hpp"
#include "protocol/epoch_book.hpp"
#include "runtime/operation_impl.hpp"

namespace kvonce::actors {

using protocol::LookupAnswer;
using protocol::Time;

namespace {

// A pool can be demoted once, so a group with its 64 pools is described again at most so often.
constexpr std::uint32_t kMaxRedirects = 64;

}  // namespace

Error error_of(Reason reason) {
  switch (reason) {
    case Reason::none: return {};
    case Reason::closed: return {reason, "the runtime was stopped"};
    case Reason::store_lost: return {reason, "the store has ended"};
    case Reason::deadline: return {reason, "no answer within the call's time"};
    default: return {reason, std::string(to_string(reason))};
  }
}

// -- registration ------------------------------------------------------------------------------------------------------

template <class Ask>
void ShardKeyState::ask_registrar(const Ask& ask, Registered then) {
  if (lost_ || closed_) {
    protocol::RegisterAnswer answer;
    answer.error = error_of(closed_ ? Reason::closed : Reason::store_lost);
    then(answer);
    return;
  }
  const std::uint64_t token = next_token_++;
  registering_.emplace(token, std::move(then));
  compat::tell(self_, stores_.front(), messages::From{setup_->client, token}, ask);
}
template void ShardKeyState::ask_registrar(const protocol::PoolAsk&, Registered);

void ShardKeyState::on_register_reply(messages::RegisterReply& reply) {
  for (const protocol::KnownPool& pool : reply.answer.known)
    setup_->directory->add_pool(reply.answer.ns, pool.pool, {pool.name, pool.shards, pool.object_bytes});
  if (const auto node = registering_.extract(reply.token)) node.mapped()(reply.answer);
}

void ShardKeyState::on_open_namespace(const messages::OpenNamespace& command) {
  if (const Error error = error_of(unready())) {
    command.answer->fill({error, 0});
    return;
  }
  const protocol::NamespaceAsk ask{command.text, command.find_only};
  ++opens_[command.text];
  ask_registrar(ask, [this, slot = command.answer, text = command.text](protocol::RegisterAnswer& answer) {
    if (answer.error) {
      if (const auto at = opens_.find(text); at != opens_.end() && --at->second == 0) opens_.erase(at);
      slot->fill({answer.error, 0});
      return;
    }
    const std::uint32_t handle = setup_->directory->add_namespace(text, answer.ns);
    // Whoever gave up has nothing to close it by.
    if (!slot->fill({Error{}, handle})) on_close_namespace({handle, std::make_shared<messages::Slot<Error>>()});
  });
}

void ShardKeyState::on_close_namespace(const messages::CloseNamespace& command) {
  const auto text = setup_->directory->namespace_text(command.ns_handle);
  if (!text) {
    command.answer->fill(Error{Reason::unknown_namespace, "close_namespace: the namespace is closed already"});
    return;
  }
  const auto opens = opens_.find(*text);
  const bool last = opens == opens_.end() || opens->second <= 1;
  const auto used = std::find_if(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool.second.ns_handle == command.ns_handle; });
  if (last && used != pools_.end()) {
    command.answer->fill(Error{Reason::busy, "close_namespace: pool '" + used->second.ask.pool.name + "' of a rank is still registered in it"});
    return;
  }
  if (!last) {
    --opens->second;
  } else {
    if (opens != opens_.end()) opens_.erase(opens);
    const auto ns = setup_->directory->namespace_at(command.ns_handle);
    setup_->directory->close_namespace(command.ns_handle);
    // A store that is lost has forgotten who has it open.
    if (ns && !lost_ && !closed_) compat::tell(self_, stores_.front(), messages::From{setup_->client, 0}, protocol::NamespaceClose{*ns});
  }
  command.answer->fill(Error{});
}

void ShardKeyState::know_epoch(const std::string& epoch, protocol::Digest128 value) {
  if (epochs_.insert_or_assign(epoch, value).second) epoch_order_.push_back(epoch);
  if (epoch_order_.size() <= protocol::kMaxEpochsPerEngine) return;
  epochs_.erase(epoch_order_.front());
  epoch_order_.pop_front();
}

void ShardKeyState::on_ask_epoch(const messages::AskEpoch& command) {
  if (const Error error = error_of(unready())) {
    command.answer->fill({error, {}});
    return;
  }
  const auto known = epochs_.find(command.name);
  const protocol::EpochAsk ask{command.name, known == epochs_.end() ? protocol::Digest128{} : known->second};
  ask_registrar(ask, [this, slot = command.answer, epoch = command.name](protocol::RegisterAnswer& answer) {
    if (!answer.error) know_epoch(epoch, answer.epoch);
    slot->fill({answer.error, answer.epoch});
  });
}

runtime::GroupRecord ShardKeyState::record_of(const protocol::GroupAsk& ask, ShardCounts ranks,
                                              const protocol::RegisterAnswer& answer) const {
  runtime::GroupRecord record;
  record.ask = ask;
  record.ns_handle = setup_->directory->handle_of(ask.ns);
  record.ranks = ranks;
  record.id = answer.group;
  for (std::size_t i = 0; i < ask.pools.size() && i < answer.pools.size(); ++i) {
    const protocol::PoolId pool = answer.pools[i].pool;
    const std::uint32_t shards = arena_ == nullptr || arena_->readers.empty() ? 0 : arena_->readers.front().pool(ask.ns, pool).shards;
    const bool as_asked = shards == 0 || shards == ask.pools[i].shards.count();
    record.pools.push_back(pool);
    record.shards.push_back(as_asked ? ask.pools[i].shards : ask.pools[i].ranks);
    setup_->directory->add_pool(ask.ns, pool, {ask.pools[i].name, record.shards.back(), 0});
  }
  return record;
}

void ShardKeyState::on_register_group(const messages::RegisterGroup& received) {
  messages::RegisterGroup command = received;
  const auto ns = setup_->directory->namespace_at(command.ns_handle);
  const Error error = unready() != Reason::none ? error_of(unready())
                      : ns                      ? Error{}
                                                : Error{Reason::unknown_namespace, "register_group: the namespace is not known to the store"};
  if (error) {
    command.answer->fill({error, 0});
    return;
  }
  command.ask.ns = *ns;
  ask_registrar(command.ask, [this, command](protocol::RegisterAnswer& answer) {
    if (answer.error) {
      command.answer->fill({answer.error, 0});
      return;
    }
    command.answer->fill({{}, setup_->directory->add_group(record_of(command.ask, command.ranks, answer))});
  });
}

void ShardKeyState::refresh_group(std::uint32_t index, std::function<void(const Error&)> then) {
  const runtime::GroupPtr group = setup_->directory->group(index);
  ask_registrar(group->ask, [this, index, group, then = std::move(then)](protocol::RegisterAnswer& answer) {
    if (!answer.error) setup_->directory->replace_group(index, record_of(group->ask, group->ranks, answer));
    then(answer.error);
  });
}

// -- lookups -----------------------------------------------------------------------------------------------------------

void ShardKeyState::on_lookup(messages::LookupCommand& command) {
  OpenLookup open{std::move(command.operation), command.group, 0, std::move(command.ask), 0, !unsearched_.contains(command.group)};
  if (unready() != Reason::none) {
    fail_lookup(open, unready());
    return;
  }
  const std::uint64_t token = next_token_++;
  auto& kept = lookups_.emplace(token, std::move(open)).first->second;
  send_lookup(token, kept);
  timer_.arm(self_, runtime::to_time(kept.operation->impl().deadline), runtime::now());
}

void ShardKeyState::send_lookup(std::uint64_t token, OpenLookup& open) {
  const auto& impl = open.operation->impl();
  const runtime::GroupPtr group = setup_->directory->group(open.group);
  protocol::LookupAsk ask = open.ask;
  ask.token = token;
  ask.engine = setup_->engine;
  ask.group = group->id;
  if (ask.has_request) ask.digest = protocol::lookup_digest(group->id, impl.pages);
  ask.pages_asked = static_cast<std::uint32_t>(impl.pages.size());
  open.sent = open.search ? protocol::pages_to_ask(search_of(*group), impl.pages) : impl.pages.size();
  ask.pages.assign(impl.pages.begin(), impl.pages.begin() + static_cast<std::ptrdiff_t>(open.sent));
  const Time deadline = runtime::to_time(impl.deadline);
  const Time now = runtime::now();
  ask.time_left = deadline > now ? deadline - now : 0;
  const std::uint32_t home = core_.home(group->ask.ns, ask.pages.front());
  compat::tell(self_, stores_[home], messages::From{setup_->client, token}, std::move(ask));
}

protocol::LookupSearch ShardKeyState::search_of(const runtime::GroupRecord& group) const {
  protocol::LookupSearch search;
  if (arena_ == nullptr || arena_->readers.empty()) return search;
  search.readers = arena_->readers;
  search.placement = &core_.placement();
  search.ns = group.ask.ns;
  for (std::size_t i = 0; i < group.pools.size() && i < group.ask.pools.size(); ++i) {
    if (group.ask.pools[i].optional) continue;
    const auto pool = arena_->readers.front().pool(search.ns, group.pools[i]);
    if (pool.shards != 0 && !pool.policy.is_trailing()) search.every_page |= std::uint64_t{1} << group.pools[i];
  }
  return search;
}

void ShardKeyState::on_lookup_answer(const LookupAnswer& answer) {
  const auto at = lookups_.find(answer.token);
  if (at == lookups_.end()) {
    // Nobody waits any more: what it leased would only take space. Unless other ranks have it as well.
    if (answer.lease && !answer.kept)
      compat::tell(self_, stores_[protocol::ShardKeyCore::home_of(answer.lease) % stores_.size()],
                   messages::From{setup_->client, 0}, protocol::LeaseCall{answer.lease, setup_->engine, 0});
    return;
  }
  OpenLookup& open = at->second;
  if (answer.search_again && open.redirects++ < kMaxRedirects) {
    // What the search found missing has come since; or the store does not ask for it at all (a pool without bytes).
    const runtime::GroupPtr group = setup_->directory->group(open.group);
    const auto& pages = open.operation->impl().pages;
    if (open.sent < pages.size() && !protocol::is_resident(search_of(*group), pages[open.sent - 1])) unsearched_.insert(open.group);
    open.search = false;
    send_lookup(answer.token, open);
    return;
  }
  if (answer.redirect && open.redirects++ < kMaxRedirects) {
    // A pool of the group was demoted: the group is described again, the caller notices nothing.
    refresh_group(open.group, [this, token = answer.token](const Error& error) {
      const auto again = lookups_.find(token);
      if (again == lookups_.end()) return;
      if (!error) {
        send_lookup(token, again->second);
        return;
      }
      fail_lookup(again->second, error.reason);
      lookups_.erase(token);
    });
    return;
  }
  const auto node = lookups_.extract(at);
  if (answer.search_again || answer.redirect) {
    // Too many turns: there are pages, and they are not for this call to find.
    LookupAnswer busy;
    busy.token = answer.token;
    busy.reason = Reason::busy;
    busy.retry_after_ms = protocol::kBusyRetryMs;
    end_lookup(node.mapped(), busy);
    return;
  }
  end_lookup(node.mapped(), answer);
}

void ShardKeyState::end_lookup(OpenLookup& open, const LookupAnswer& answer) {
  auto& impl = open.operation->impl();
  if (!impl.claim()) {
    if (answer.lease && !answer.kept)
      compat::tell(self_, stores_[protocol::ShardKeyCore::home_of(answer.lease) % stores_.size()],
                   messages::From{setup_->client, 0}, protocol::LeaseCall{answer.lease, setup_->engine, 0});
    return;
  }
  LookupResult& result = impl.lookup;
  result.error = error_of(answer.error);
  result.restorable_pages = answer.restorable_pages;
  result.resident_pages = answer.resident_pages;
  result.every_stop = answer.every_stop;
  result.stops = answer.stops;
  result.leased_stops = answer.leased_stops;
  result.lease = answer.lease;
  result.lease_left = std::chrono::milliseconds(answer.lease_left / protocol::kMillisecond);
  result.first_missing = answer.first_missing;
  result.reason = answer.reason;
  result.retry_after_ms = answer.retry_after_ms;
  if (answer.reason == Reason::group_incomplete || answer.optional_missing != 0) {
    const runtime::GroupPtr group = setup_->directory->group(open.group);
    if (answer.reason == Reason::group_incomplete) {
      result.missing_pool = group->name_of(answer.missing_pool);
      result.missing_shard = answer.missing_shard;
    }
    for (std::size_t i = 0; i < group->pools.size(); ++i)
      if ((answer.optional_missing >> group->pools[i] & 1U) != 0) result.optional_missing.push_back(group->ask.pools[i].name);
  }
  impl.error = result.error;
  impl.finish();
}

void ShardKeyState::fail_lookup(OpenLookup& open, Reason reason) {
  auto& impl = open.operation->impl();
  if (!impl.claim()) return;
  impl.error = impl.lookup.error = error_of(reason);
  impl.lookup.reason = reason;
  impl.finish();
}

void ShardKeyState::on_lease(const messages::LeaseCommand& command) {
  const std::uint32_t home = protocol::ShardKeyCore::home_of(command.call.lease);
  if (unready() != Reason::none || home >= stores_.size()) {
    command.answer->fill(unready() != Reason::none ? unready() : Reason::lease_unknown);
    return;
  }
  const std::uint64_t token = next_token_++;
  lease_calls_.emplace(token, command.answer);
  protocol::LeaseCall call = command.call;
  call.engine = setup_->engine;
  compat::tell(self_, stores_[home], messages::From{setup_->client, token}, call);
}

void ShardKeyState::on_lease_reply(messages::LeaseReply reply) {
  if (const auto node = lease_calls_.extract(reply.token)) node.mapped()->fill(reply.reason);
}

// -- remove and flush --------------------------------------------------------------------------------------------------

void ShardKeyState::on_admin(messages::AdminCommand& command) {
  OpenAdmin open;
  open.operation = std::move(command.operation);
  open.level = command.level;
  if (unready() != Reason::none) {
    open.error = unready();
    end_admin(open);
    return;
  }
  const std::uint64_t token = next_token_++;
  OpenAdmin& kept = admins_.emplace(token, std::move(open)).first->second;
  timer_.arm(self_, runtime::to_time(kept.operation->impl().deadline), runtime::now());
  if (command.is_flush) {
    // Everything accepted before has to reach the stores first: each rank sends the mark back behind what it has.
    kept.marking = true;
    for (const auto& [sender, rank] : ranks_) {
      kept.marks.insert(sender);
      compat::tell(self_, rank, messages::FlushMark{token, 0});
    }
    if (kept.marks.empty()) start_flush(token, kept);
    return;
  }
  protocol::RemoveAsk& ask = command.remove;
  ask.token = token;
  if (command.ns_handle != 0xffffffffU) {
    const auto ns = setup_->directory->namespace_at(command.ns_handle);
    if (!ns) {
      kept.error = Reason::unknown_namespace;
      end_admin(admins_.extract(token).mapped());
      return;
    }
    ask.ns = *ns;
  }
  using What = protocol::RemoveAsk::What;
  if (ask.what == What::ns || ask.what == What::all) {
    kept.left = static_cast<std::uint32_t>(stores_.size());
    for (const auto& store : stores_) compat::tell(self_, store, messages::From{setup_->client, token}, ask);
    return;
  }
  std::vector<std::vector<PageHash>> parts(stores_.size());
  for (const PageHash& page : ask.pages) parts[core_.home(ask.ns, page)].push_back(page);
  kept.left = static_cast<std::uint32_t>(std::count_if(parts.begin(), parts.end(), [](const auto& p) { return !p.empty(); }));
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].empty()) continue;
    ask.pages = std::move(parts[p]);
    compat::tell(self_, stores_[p], messages::From{setup_->client, token}, ask);
  }
  if (kept.left == 0) end_admin(admins_.extract(token).mapped());
}

void ShardKeyState::on_flush_mark(messages::FlushMark mark) {
  if (mark.token == lost_token_) {
    on_lost_mark(mark.sender);
    return;
  }
  const auto at = admins_.find(mark.token);
  if (at == admins_.end() || !at->second.marking) return;
  at->second.marks.erase(mark.sender);
  if (at->second.marks.empty()) start_flush(mark.token, at->second);
}

void ShardKeyState::start_flush(std::uint64_t token, OpenAdmin& open) {
  open.marking = false;
  open.left = static_cast<std::uint32_t>(stores_.size());
  for (const auto& store : stores_)
    compat::tell(self_, store, messages::From{setup_->client, token}, protocol::FlushAsk{token, open.level});
}

void ShardKeyState::on_admin_answer(std::uint64_t token, Reason error, std::uint64_t removed) {
  const auto at = admins_.find(token);
  if (at == admins_.end() || at->second.marking) return;
  OpenAdmin& open = at->second;
  open.count += removed;
  if (error != Reason::none) open.error = error;
  if (open.left > 1) {
    --open.left;
    return;
  }
  end_admin(admins_.extract(at).mapped());
}

void ShardKeyState::end_admin(OpenAdmin& open) {
  auto& impl = open.operation->impl();
  if (!impl.claim()) return;
  impl.error = error_of(open.error);
  // A kvonced and an embedded store keep pages in memory.
  if (open.error == Reason::level_unavailable)
    impl.error.text += ": the store keeps nothing at level " + std::string(to_string(open.level)) + "; it has memory only";
  impl.count = open.count;
  impl.finish();
}

// -- ends --------------------------------------------------------------------------------------------------------------

void ShardKeyState::on_store_down() {
  if (closed_ || lost_) return;
  lost_ = true;
  again_left_ = 0;
  // From the first partition's loss on nothing of this life is believed.
  for (const auto& store : stores_) watches_.unwatch(self_, store);
  lost_token_ = next_token_++;
  lost_marks_.clear();
  for (const auto& [sender, rank] : ranks_) {
    lost_marks_.insert(sender);
    compat::tell(self_, rank, messages::StoreLost{0});
    compat::tell(self_, rank, messages::FlushMark{lost_token_, 0});
  }
  fail_all(Reason::store_lost);
  arena_ = setup_->arena;  // the memory of a store that is gone may be what the next one needs
  if (lost_marks_.empty() && setup_->lost) setup_->lost();
}

void ShardKeyState::on_lost_mark(protocol::SenderId sender) {
  if (lost_marks_.erase(sender) != 0 && lost_marks_.empty() && setup_->lost) setup_->lost();
}

void ShardKeyState::fail_all(Reason reason) {
  for (auto& [token, then] : std::exchange(registering_, {})) {
    protocol::RegisterAnswer answer;
    answer.error = error_of(reason);
    then(answer);
  }
  for (auto& [token, open] : std::exchange(lookups_, {})) fail_lookup(open, reason);
  for (auto& [token, slot] : std::exchange(lease_calls_, {})) slot->fill(reason);
  for (auto& [token, open] : std::exchange(admins_, {})) {
    open.error = reason;
    end_admin(open);
  }
}

void ShardKeyState::on_close() {
  closed_ = true;
  for (const auto& store : stores_) watches_.unwatch(self_, store);
  to_all(messages::ClientGone{setup_->client, true});
  fail_all(Reason::closed);
  self_->quit();
}

void ShardKeyState::on_tick(messages::Tick tick) {
  timer_.arrived(tick);
  const Time now = runtime::now();
  Time next = protocol::kNever;
  const auto over = [&](const Operation& operation) {
    const Time deadline = runtime::to_time(operation.impl().deadline);
    if (deadline > now) next = std::min(next, deadline);
    return deadline <= now;
  };
  for (auto at = lookups_.begin(); at != lookups_.end();) {
    if (!over(*at->second.operation)) {
      ++at;
      continue;
    }
    fail_lookup(at->second, Reason::deadline);
    at = lookups_.erase(at);
  }
  for (auto at = admins_.begin(); at != admins_.end();) {
    if (!over(*at->second.operation)) {
      ++at;
      continue;
    }
    at->second.error = Reason::deadline;
    end_admin(at->second);
    at = admins_.erase(at);
  }
  timer_.arm(self_, next, now);
}

}  // namespace kvonce::actors
