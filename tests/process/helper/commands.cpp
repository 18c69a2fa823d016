// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <iostream>
#include <sstream>

#include "runtime/core.hpp"
#include "runtime/store_faults.hpp"
#include "tests/process/helper/program.hpp"

namespace kvonce::process_test {

namespace {

std::string lease_text(const LeaseId& lease) { return std::to_string(lease.high) + ":" + std::to_string(lease.low); }

LeaseId lease_of(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return {};
  return {std::stoull(text.substr(0, colon)), std::stoull(text.substr(colon + 1))};
}

std::vector<PageHash> pages_of(const Line& line) {
  std::vector<PageHash> pages;
  for (std::uint64_t i = 0; i < line.number("count", 1); ++i)
    pages.push_back(page_of(line.number("chain"), line.number("first") + i));
  return pages;
}

}  // namespace

std::string error_text(const Error& error) {
  if (!error) return "ok=1";
  return "error=" + std::string(to_string(error.reason)) + " " + error.text;
}

bool Program::obey(const Line& line) {
  std::string answer;
  const std::string& word = line.word();
  if (word == "exit") return false;
  if (word == "start") answer = start(line);
  else if (word == "wild") answer = wild(line);
  else if (word == "forge") answer = forge(line);
  else if (!runtime_) answer = "error=closed not started";
  else if (word == "setup") answer = setup(line);
  else if (word == "leave") answer = leave();
  else if (word == "put") answer = put(line, true);
  else if (word == "begin_put") answer = put(line, false);
  else if (word == "wait") answer = wait(line);
  else if (word == "lookup") answer = lookup(line);
  else if (word == "load") answer = load(line, true);
  else if (word == "begin_load") answer = load(line, false);
  else if (word == "wait_load") answer = wait_load(line);
  else if (word == "exists") answer = exists(line);
  else if (word == "stat") answer = stat(line);
  else if (word == "stats") answer = stats();
  else if (word == "clients") answer = clients();
  else if (word == "report") answer = report(line);
  else if (word == "epoch") answer = epoch(line);
  else if (word == "admin") answer = admin(line);
  else if (word == "release") answer = release(line);
  else if (word == "namespace") answer = error_text(runtime_->open_namespace(line.text("ns", "model"), line.time("timeout", 10'000)).error);
  else if (word == "find") answer = error_text(runtime_->find_namespace(line.text("ns"), line.time("timeout", 10'000)).error);
  else if (word == "hold") answer = rows_->hold(line.number("row"), line.number("at")) ? "ok=1" : "error=no hold";
  else if (word == "held") answer = RowMemory::wait_held(60'000) ? "ok=1" : "error=deadline nobody is held";
  else if (word == "let_go") {
    RowMemory::let_go();
    answer = "ok=1";
  } else if (word == "blocked") answer = gate_.wait_taken() ? "ok=1" : "error=deadline nobody is blocked";
  else if (word == "unblock") {
    gate_.open();
    answer = "ok=1";
  } else if (word == "hang_up") answer = hang_up();
  else if (word == "state")
    answer = "connected=" + std::to_string(runtime_->connected() ? 1 : 0) +
             " incarnation=" + std::to_string(runtime_->incarnation()) +
             " moved=" + std::to_string(rank_ ? rank_->moved_bytes() : 0) +
             " restored=" + std::to_string(runtime_->store_start().restored_objects) +
             " warm=" + (runtime_->store_start().warm ? "1" : "0");
  else if (word == "wait_connected")
    answer = runtime_->wait_connected(std::chrono::seconds(60)) ? "ok=1" : "error=deadline not connected";
  else if (word == "drain") answer = error_text(runtime_->drain(std::chrono::seconds(30)));
  else if (word == "stop") {
    runtime_->stop();
    answer = "ok=1";
  } else if (word == "flood") answer = flood(line);
  else if (word == "write_arena") answer = write_arena();
  else if (word == "fork") answer = fork_child();
  else if (word == "fork_sleeper") answer = fork_sleeper();
  else if (word == "sender") answer = "sender=" + std::to_string(runtime_->impl().core->ranks.front().lock()->sender);
  else if (word == "inherited") answer = kept_by_exec() == kept_at_start_ ? "ok=1" : "error=more " + kept_by_exec();
  else answer = "error=bad_argument no such command: " + word;
  std::cout << answer << std::endl;
  return true;
}

std::string Program::start(const Line& line) {
  RuntimeConfig config;
  config.engine_id = line.text("engine", "engine");
  config.store = line.text("store", "embedded");
  config.serve = line.text("serve");
  config.arena_file = line.text("arena_file");
  config.read_only = line.has("ro");
  config.arena_bytes = line.number("arena", 64ULL << 20);
  config.capacity_bytes = line.number("capacity");
  config.index_pages = 16'384;
  config.huge_pages = false;
  config.partitions = static_cast<std::uint32_t>(line.number("partitions", 1));
  config.verify_sample = static_cast<std::uint32_t>(line.number("sample", 0));
  config.conflict_limit = static_cast<std::uint32_t>(line.number("conflicts", 3));
  config.grant_base = line.time("grant", 600'000);
  config.engine_grace = line.time("grace", 2'000);
  config.leased_bytes = line.number("leased");
  config.window_bytes = line.number("window", 8ULL << 20);
  config.least_rate = line.number("rate", 64ULL << 20);
  config.connect_timeout = line.time("connect", 60'000);
  config.caller_runs = !line.has("workers_run");
  // Copies on the movers: one that is held must not hold an actor.
  config.inline_copy_bytes = line.number("inline", 0);
  runtime::store_faults().free_quarantined = line.text("fault") == "free_quarantined";
  runtime::store_faults().evict_leased = line.text("fault") == "evict_leased";
  runtime::pool_faults().skip_load_verification = line.text("fault") == "skip_load_verification";
  auto started = Runtime::start(config);
  if (started) runtime_ = std::move(*started);
  return error_text(started.error);
}

std::string Program::setup(const Line& line) {
  const auto ns = runtime_->open_namespace(line.text("ns", "model"));
  if (!ns) return error_text(ns.error);
  ns_ = ns.value;
  const auto of = static_cast<std::uint16_t>(line.number("of", 1));
  GroupSpec spec;
  spec.name = "main";
  spec.ranks.tp = of;
  spec.pools.push_back({"latent", ShardCounts{}, HitPolicy::every_page(), false});
  const auto group = runtime_->register_group(ns_, spec);
  if (!group) return error_text(group.error);
  group_ = group.value;
  Coordinates at;
  at.tp = {static_cast<std::uint16_t>(line.number("rank")), of};
  const auto rank = runtime_->add_rank(group_, at);
  if (!rank) return error_text(rank.error);
  rank_ = rank.value;
  rows_ = std::make_unique<RowMemory>(line.number("rows", 64), line.number("bytes", 65'536),
                                      static_cast<std::uint32_t>(line.number("layers", 1)));
  PoolSpec pool;
  pool.name = "latent";
  pool.shard = Coordinates{};
  pool.components.push_back(rows_->component("kv"));
  pool.rows = rows_->rows();
  const auto registered = rank_->register_pool(pool);
  if (registered) pool_ = registered.value;
  return error_text(registered.error);
}

std::string Program::leave() {
  if (Error error = rank_->close()) return error_text(error);
  rank_.reset();
  return error_text(runtime_->close_namespace(ns_));
}

std::string Program::told(const PutOperation& put) const {
  std::array<std::uint64_t, kVerdictCount> verdicts{};
  Reason reason = Reason::none;
  for (const auto& result : put.results()) {
    ++verdicts[static_cast<std::size_t>(result.verdict)];
    if (result.reason != Reason::none) reason = result.reason;
  }
  std::ostringstream out;
  out << "good=" << put.succeeded();
  for (std::size_t v = 1; v < kVerdictCount; ++v) out << ' ' << to_string(static_cast<Verdict>(v)) << '=' << verdicts[v];
  out << " reason=" << to_string(reason);
  return out.str();
}

std::string Program::put(const Line& line, bool wait) {
  PutBatch batch;
  batch.pages = pages_of(line);
  const std::uint64_t first = line.number("first");
  if (first > 0) batch.parent = page_of(line.number("chain"), first - 1);
  batch.first_depth = static_cast<std::uint32_t>(first);
  for (std::uint64_t i = 0; i < batch.pages.size(); ++i) {
    const std::uint64_t row = line.number("row") + i;
    if (!line.has("keep")) rows_->fill(row, batch.pages[i], line.number("salt"));
    batch.items.push_back({static_cast<std::uint32_t>(i), pool_, row});
  }
  // A row can only be held when it has been filled.
  if (line.has("hold_at") && !rows_->hold(line.number("hold_row"), line.number("hold_at"))) return "error=no hold";
  PutOptions options;
  options.timeout = line.time("timeout", 120'000);
  if (line.has("never")) options.after = Event::make();
  if (line.has("block")) options.completion.callback = [this] { gate_.pass(); };
  auto started = rank_->put(std::move(batch), std::move(options));
  if (!started) return error_text(started.error);
  if (wait) {
    (*started)->wait();
    return told(**started);
  }
  puts_.push_back(std::move(*started));
  return "put=" + std::to_string(puts_.size() - 1);
}

std::string Program::wait(const Line& line) {
  const auto& put = puts_.at(line.number("put"));
  if (!put->wait_for(line.time("for", 60'000))) return "error=deadline still open";
  return told(*put);
}

std::string Program::lookup(const Line& line) {
  LookupOptions options;
  options.lease_time = line.time("lease", 0);
  options.timeout = line.time("timeout", 60'000);
  options.request_id = line.text("request");
  options.probe = line.has("probe");
  auto started = runtime_->lookup(group_, pages_of(line), std::move(options));
  if (!started) return error_text(started.error);
  (*started)->wait();
  const LookupResult& result = (*started)->result();
  if (result.error) return error_text(result.error);
  return "pages=" + std::to_string(result.restorable_pages) + " reason=" + std::string(to_string(result.reason)) +
         " lease=" + lease_text(result.lease);
}

std::string Program::told(const LoadOperation& load, const Line& line) const {
  std::uint64_t wrong = 0;
  Reason reason = Reason::none;
  const auto pages = pages_of(line);
  for (std::size_t i = 0; i < load.results().size(); ++i) {
    if (load.results()[i] != Reason::none) reason = load.results()[i];
    if (load.results()[i] == Reason::none && !rows_->holds(line.number("row") + i, pages[i], line.number("salt"))) ++wrong;
  }
  return "good=" + std::to_string(load.loaded()) + " wrong=" + std::to_string(wrong) +
         " reason=" + std::string(to_string(reason));
}

std::string Program::load(const Line& line, bool wait) {
  const auto pages = pages_of(line);
  std::vector<LoadItem> items;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    rows_->clear(line.number("row") + i);
    items.push_back({pages[i], pool_, line.number("row") + i});
  }
  if (line.has("hold_at") && !rows_->hold(line.number("hold_row"), line.number("hold_at"))) return "error=no hold";
  LoadOptions options;
  options.timeout = line.time("timeout", 120'000);
  auto started = rank_->load(lease_of(line.text("lease")), std::move(items), std::move(options));
  if (!started) return error_text(started.error);
  if (wait) {
    (*started)->wait();
    return told(**started, line);
  }
  loads_.push_back(std::move(*started));
  return "load=" + std::to_string(loads_.size() - 1);
}

std::string Program::wait_load(const Line& line) {
  const auto& load = loads_.at(line.number("load"));
  if (!load->wait_for(line.time("for", 60'000))) return "error=deadline still open";
  return told(*load, line);
}

std::string Program::exists(const Line& line) {
  const auto found = runtime_->exists(group_, "latent", 0, pages_of(line));
  if (!found) return error_text(found.error);
  return "pages=" + std::to_string(std::count(found.value.begin(), found.value.end(), 1));
}

std::string Program::stat(const Line& line) {
  const auto found = runtime_->stat(ns_, page_of(line.number("chain"), line.number("first")));
  if (!found) return error_text(found.error);
  return "found=" + std::to_string(found.value.found ? 1 : 0) + " objects=" + std::to_string(found.value.objects.size());
}

std::string Program::stats() {
  const Stats stats = runtime_->stats();
  std::ostringstream out;
  out << "objects=" << stats.objects_now << " stored_bytes=" << stats.stored_bytes << " claims=" << stats.claims_now
      << " leases=" << stats.leases_now << " leased_bytes=" << stats.leased_bytes_now
      << " quarantined=" << stats.quarantined_bytes_now << " promotions=" << stats.promotions
      << " evicted=" << stats.evicted_objects << " announced=" << stats.announced_items << " demotions=" << stats.demotions
      << " lent=" << stats.rows_lent_now << " arena=" << stats.arena_slot_bytes << " pages=" << stats.pages_now
      << " payload=" << stats.payload_bytes_now << " slots=" << stats.slot_bytes_now << " free=" << stats.free_bytes_now
      << " lookups=" << stats.lookups;
  return out.str();
}

std::string Program::clients() {
  const auto list = runtime_->clients();
  if (!list) return error_text(list.error);
  std::ostringstream out;
  out << "count=" << list.value.size();
  for (const ClientInfo& client : list.value)
    out << " grants" << client.pid << '=' << client.open_grants << " quarantined" << client.pid << '='
        << client.quarantined_bytes;
  for (const ClientInfo& client : list.value) {
    std::uint64_t counters = 0, sum = 0;
    for (const ClientReport& report : client.reports)
      for (const auto& counter : report.counters) {
        ++counters;
        sum += counter.second;
      }
    out << " counters" << client.pid << '=' << counters << " sum" << client.pid << '=' << sum;
  }
  return out.str();
}

std::string Program::report(const Line& line) {
  std::vector<std::pair<std::string, std::uint64_t>> counters;
  for (std::uint64_t i = 0; i < line.number("count"); ++i) counters.emplace_back("c" + std::to_string(i), line.number("value"));
  return error_text(runtime_->report(line.text("label"), std::move(counters)));
}

std::string Program::epoch(const Line& line) {
  const auto given = runtime_->epoch(line.text("name"));
  if (!given) return error_text(given.error);
  std::string hex;
  for (const unsigned byte : given.value) {
    hex += "0123456789abcdef"[byte >> 4U];
    hex += "0123456789abcdef"[byte & 15U];
  }
  return "value=" + hex;
}

std::string Program::admin(const Line& line) {
  const std::string what = line.text("what");
  const auto timeout = line.time("timeout", 60'000);
  auto started = what == "clear"       ? runtime_->clear({}, timeout)
                 : what == "flush"     ? runtime_->flush(AckLevel::memory, timeout)
                 : what == "namespace" ? runtime_->remove_namespace(ns_, {}, timeout)
                                       : runtime_->remove_pages(ns_, pages_of(line), {}, timeout);
  if (!started) return error_text(started.error);
  (*started)->wait();
  if ((*started)->error()) return error_text((*started)->error());
  return "count=" + std::to_string((*started)->count());
}

std::string Program::release(const Line& line) { 
  return error_text(runtime_->release(lease_of(line.text("lease")), line.time("timeout", 10'000)));
}

}  // namespace kvonce::process_test
