// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/store_client.hpp"

#include <algorithm>
#include <cstdio>
#include <set>
#include <thread>

#include <unistd.h>

#include "apps/json_text.hpp"
#include "bench/store_use.hpp"
#include "protocol/shard_key_core.hpp"
#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"

namespace kvonce::apps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kNamePrefix = "name:";
constexpr std::string_view kGroupPrefix = "shell ";  // a pool's group is named by both
constexpr milliseconds kLookAgain{10};

std::string in_quotes(std::string_view text) { return '"' + std::string(text) + '"'; }

PageHash hash_of_name(std::string_view name) {
  const auto low = protocol::text_digest(std::string(name));
  const auto high = protocol::text_digest("kvonce page " + std::string(name));
  return PageHash{{low.low, low.high, high.low, high.high}};
}

/// Empty, or why there is no store to connect to. Nothing is started here.
std::string find_store(const StoreOptions& options, std::string& store, std::string& address) {
  store = options.store;
  if (store.starts_with("unix:") && store.size() > 5) {
    address = store;
  } else if (store.empty() || store == "auto") {
    std::string why_not;
    const std::string socket = runtime::auto_socket_path(&why_not);
    if (socket.empty()) return "there is no place for a store's socket: " + why_not;
    address = "unix:" + socket;
  } else {
    return "--store: " + in_quotes(store) + " is not allowed; allowed are auto and unix:PATH";
  }
  if (store == "auto") return {};
  store = address;
  const bool own = options.store.empty();
  std::string absent = bench::absent_store(address, own ? std::string("kvonced, or give --store auto") : "kvonced --socket " + address.substr(5));
  return absent.ends_with(" is no socket") ? "--store: " + absent : absent;
}

}  // namespace

void add_store_options(CLI::App& command, StoreOptions& options, bool with_namespace) {
  command.add_option("--store", options.store, "Which: this user's (default), auto: start that one if need be, or unix:PATH")
      ->option_text("STORE");
  if (with_namespace)
    command.add_option("--namespace", options.ns, "Text that the pages are under (default shell)")->option_text("TEXT");
  command.add_option("--timeout", options.timeout, "Most time to take (default 30s)")->option_text("TIME");
  add_output_options(command, options.output);
}

ParsedKeys parse_keys(const std::vector<std::string>& given) {
  ParsedKeys out;
  std::set<PageHash> seen;
  for (const std::string& text : given) {
    PageKey key{text, {}};
    if (text.starts_with(kNamePrefix) && text.size() > kNamePrefix.size()) {
      key.hash = hash_of_name(std::string_view(text).substr(kNamePrefix.size()));
    } else if (const auto hash = PageHash::from_hex(text)) {
      key.hash = *hash;
    } else {
      out.error = in_quotes(text) + " names no page; allowed are 64 hexadecimal digits and name:TEXT";
      return out;
    }
    if (!seen.insert(key.hash).second) {
      out.error = in_quotes(text) + " is given twice";
      return out;
    }
    out.keys.push_back(std::move(key));
  }
  return out;
}

StoreClient::Opened StoreClient::open(const StoreOptions& options, Use use) {
  Opened result;
  const auto timeout = protocol::parse_duration(options.timeout, milliseconds{1}, std::chrono::hours{1});
  if (!timeout) {
    result.error = "--timeout: " + timeout.error;
    return result;
  }
  auto client = std::make_unique<StoreClient>();
  client->timeout_text_ = options.timeout;
  client->deadline_ = Clock::now() + timeout.value;
  RuntimeConfig config;
  if (std::string wrong = find_store(options, config.store, client->address_); !wrong.empty()) {
    result.error = std::move(wrong);
    return result;
  }
  // Of its own: what one of these commands has leased goes with it, however it ends.
  config.engine_id = "kvonce-shell-" + std::to_string(getpid());
  config.read_only = use == Use::read;
  config.connect_timeout = std::max(milliseconds{1}, std::chrono::duration_cast<milliseconds>(timeout.value));
  auto started = Runtime::start(config);
  if (!started) {
    result.error = started.error.text;
    return result;
  }
  client->runtime_ = std::move(*started);
  result.client = std::move(client);
  return result;
}

milliseconds StoreClient::left() const {
  return std::max(milliseconds{1}, std::chrono::ceil<milliseconds>(deadline_ - Clock::now()));
}

Error StoreClient::wait(const Result<std::shared_ptr<AdminOperation>>& operation) const {
  if (operation.error) return operation.error;
  // The operation's own time is the same, and may be over a moment earlier.
  if (!operation.value->wait_for(left()) || operation.value->error().reason == Reason::deadline)
    return {Reason::deadline, "no answer within " + timeout_text_ + " (--timeout)"};
  return operation.value->error();
}

ShellPool::ShellPool(StoreClient& client, NamespaceHandle ns, const std::string& name, std::uint64_t object_bytes,
                     std::uint64_t rows)
    : client_(client), object_bytes_(object_bytes), bytes_(object_bytes * rows) {
  GroupSpec spec;
  spec.name = std::string(kGroupPrefix) + name;
  spec.pools.push_back({name, ShardCounts{}, HitPolicy::every_page(), false});
  auto group = client.runtime().register_group(ns, spec, client.left());
  if ((error_ = group.error)) return;
  group_ = *group;
  auto rank = client.runtime().add_rank(group_, {});
  if ((error_ = rank.error)) return;
  rank_ = std::move(*rank);
  PoolSpec pool;
  pool.name = name;
  pool.shard = Coordinates{};
  pool.components.push_back({"bytes", {{bytes_.data(), object_bytes, object_bytes}}});
  pool.rows = rows;
  auto handle = rank_->register_pool(pool, client.left());
  if ((error_ = handle.error)) return;
  pool_ = *handle;
}

ShellPool::Loaded ShellPool::load(const PageHash& page, std::uint64_t row, Clock::time_point until) {
  for (;;) {
    LookupOptions asked;
    asked.timeout = client_.left();
    const auto lookup = client_.runtime().lookup(group_, {page}, std::move(asked));
    if (!lookup) return {Reason::none, lookup.error};
    lookup.value->wait();
    const LookupResult& found = lookup.value->result();
    if (found.error) return {Reason::none, found.error};
    Reason reason = found.reason;
    if (found.lease) {
      LoadOptions options;
      options.timeout = client_.left();
      const auto load = rank_->load(found.lease, {{page, pool_, row}}, std::move(options));
      if (!load) return {Reason::none, load.error};
      load.value->wait();
      reason = load.value->results().front();
      static_cast<void>(client_.runtime().release(found.lease, client_.left()));  // it goes with this process, too
    }
    if (reason == Reason::store_lost || reason == Reason::deadline || reason == Reason::closed)
      return {Reason::none, {reason, "the page could not be read: " + std::string(to_string(reason))}};
    if ((reason != Reason::in_flight && reason != Reason::busy) || Clock::now() >= until) return {reason, {}};
    std::this_thread::sleep_for(std::max(kLookAgain, milliseconds{found.retry_after_ms}));
  }
}

std::string pool_name_error(const std::string& name) {
  constexpr std::size_t kMost = 255 - kGroupPrefix.size();
  if (!name.empty() && name.size() <= kMost) return {};
  return (name.empty() ? "is empty" : "the name is " + std::to_string(name.size()) + " bytes long") + std::string(": must be 1 to ") + std::to_string(kMost) + " bytes";
}

const KnownPool* find_shell_pool(const std::vector<KnownPool>& pools, const std::string& name) {
  for (const KnownPool& pool : pools) {
    if (pool.name == name && pool.shards.count() == 1) return &pool;
  }
  return nullptr;
}

void print_json(const nlohmann::ordered_json& value) {
  std::printf("%s\n", json_text(value).c_str());
}

}  // namespace kvonce::apps
