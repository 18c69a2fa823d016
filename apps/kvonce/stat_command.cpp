// SPDX-License-Identifier: Apache-2.0
//
// kvonce stat: what a store holds and who uses it, or what it knows of one page.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>

#include "apps/kvonce/store_client.hpp"
#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"

namespace kvonce::apps {
namespace {

using nlohmann::ordered_json;
using protocol::format_bytes;
using protocol::format_count;

struct StatOptions {
  StoreOptions store;
  std::string page;
};

struct StoreView {
  std::uint32_t pid = 0;
  std::uint64_t incarnation = 0;
  StoreStart start;
  Stats stats;
  std::vector<ClientInfo> clients;
};

/// A name rather than a number: most readers of JSON keep 53 bits.
std::string in_hex(std::uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, value);
  return text.data();
}

ordered_json misses_json(const Stats& stats) {
  ordered_json out = ordered_json::object();
  for (std::size_t r = 1; r < kReasonCount; ++r) {
    if (stats.misses[r] != 0) out[std::string(to_string(static_cast<Reason>(r)))] = stats.misses[r];
  }
  return out;
}

ordered_json store_json(const StoreClient& client, const StoreView& view) {
  const Stats& s = view.stats;
  ordered_json out{{"store", client.address()}, {"pid", view.pid}, {"incarnation", in_hex(view.incarnation)}};
  out["start"] = {
      {"warm", view.start.warm}, {"why_cold", view.start.why_cold}, {"restored_objects", view.start.restored_objects}};
  out["memory"] = {{"capacity_bytes", s.capacity_bytes},
                   {"slot_space_bytes", s.arena_slot_bytes},
                   {"free_bytes", s.free_bytes_now},
                   {"slot_bytes", s.slot_bytes_now},
                   {"payload_bytes", s.payload_bytes_now},
                   {"leased_bytes", s.leased_bytes_now},
                   {"quarantined_bytes", s.quarantined_bytes_now}};
  out["pages"] = s.pages_now;
  out["objects"] = s.objects_now;
  out["claims"] = s.claims_now;
  out["leases"] = s.leases_now;
  out["unverified_pools"] = s.unverified_pools_now;
  out["since_start"] = {{"announced_objects", s.announced_items},
                        {"announced_bytes", s.announced_bytes},
                        {"stored_objects", s.stored_objects},
                        {"stored_bytes", s.stored_bytes},
                        {"evicted_objects", s.evicted_objects},
                        {"evicted_bytes", s.evicted_bytes},
                        {"evicted_page_sets", s.evicted_page_sets},
                        {"evicted_checkpoint_sets", s.evicted_checkpoint_sets},
                        {"lookups", s.lookups},
                        {"lookup_asked_pages", s.lookup_pages_asked},
                        {"lookup_hit_pages", s.lookup_pages_hit},
                        {"promotions", s.promotions},
                        {"samples", s.samples},
                        {"divergent", s.divergent},
                        {"conflicts", s.conflicts},
                        {"demotions", s.demotions},
                        {"unverified", s.unverified},
                        {"misses", misses_json(s)}};
  out["clients"] = ordered_json::array();
  for (const ClientInfo& c : view.clients) {
    ordered_json reports = ordered_json::object();
    for (const ClientReport& report : c.reports) {
      ordered_json& counters = reports[report.label] = ordered_json::object();
      for (const auto& [name, value] : report.counters) counters[name] = value;
    }
    out["clients"].push_back({{"pid", c.pid},
                              {"engine", c.engine_id},
                              {"ranks", c.ranks},
                              {"read_only", c.read_only},
                              {"open_grants", c.open_grants},
                              {"quarantined_bytes", c.quarantined_bytes},
                              {"reports", std::move(reports)}});
  }
  return out;
}

void print_store(const StoreClient& client, const StoreView& view) {
  const Stats& s = view.stats;
  const auto line = [](const char* name, const std::string& value) { print_line("%-9s %s", name, value.c_str()); };
  line("store", client.address() + (view.pid == 0 ? "" : ", process " + std::to_string(view.pid)));
  line("start", view.start.warm ? "warm: " + format_count(view.start.restored_objects, "object") + (view.start.restored_objects == 1 ? " was back" : " were back")
                                : "cold" + (view.start.why_cold.empty() ? "" : ": " + view.start.why_cold));
  std::string memory = format_bytes(s.payload_bytes_now) + " of payload in " + format_bytes(s.slot_bytes_now) + ", " +
                       format_bytes(s.free_bytes_now) + " free of " + format_bytes(s.arena_slot_bytes);
  if (s.capacity_bytes < s.arena_slot_bytes) memory += "; at most " + format_bytes(s.capacity_bytes) + " of payload";
  line("memory", memory);
  line("pages", format_count(s.pages_now) + " with " + format_count(s.objects_now, "object") + "; " + format_count(s.claims_now, "claim") + ", " +
                    format_count(s.leases_now, "lease") + " open");
  line("stored", format_count(s.stored_objects, "object") + ", " + format_bytes(s.stored_bytes) + ", of " +
                     format_bytes(s.announced_bytes) + " announced; evicted " + format_count(s.evicted_objects) + ", " +
                     format_bytes(s.evicted_bytes));
  line("lookups", format_count(s.lookups) + ", with " + format_count(s.lookup_pages_hit) + " of " +
                      format_count(s.lookup_pages_asked, "page") + " there");
  if (s.conflicts + s.demotions + s.promotions + s.quarantined_bytes_now != 0) {
    line("faults", format_count(s.promotions, "writer") + " replaced, " + format_count(s.conflicts, "key") + " with differing bytes, " +
                       format_count(s.demotions, "pool") + " demoted, " +
                       format_bytes(s.quarantined_bytes_now) + " quarantined");
  }
  line("clients", view.clients.empty() ? "none" : format_count(view.clients.size()));
  for (const ClientInfo& c : view.clients) {
    std::string text = "pid " + std::to_string(c.pid) + ", engine " + c.engine_id + ", " + format_count(c.ranks, "rank") + ", " +
                       format_count(c.open_grants, "open grant");
    if (c.quarantined_bytes != 0) text += ", " + format_bytes(c.quarantined_bytes) + " quarantined";
    if (c.read_only) text += ", only reads";
    line("", text);
    for (const ClientReport& report : c.reports) {
      text = "  " + (report.label.empty() ? "counters" : report.label) + ":";
      for (const auto& [name, value] : report.counters) text += (text.back() == ':' ? " " : ", ") + name + " " + format_count(value);
      line("", text);
    }
  }
}

int stat_store(StoreClient& client, const StatOptions& options, bool with_pools) {
  StoreView view;
  auto clients = client.runtime().clients(client.left());
  if (!clients) return tell_error("stat", clients.error.text);
  view.clients = std::move(clients.value);
  std::erase_if(view.clients, [&](const ClientInfo& other) { return other.engine_id == client.engine_id(); });
  view.stats = client.runtime().stats();
  if (view.stats.arena_slot_bytes == 0) return tell_error("stat", "the store at " + client.address() + " does not answer");
  view.pid = runtime::store_holder(client.socket()).pid;
  view.incarnation = client.runtime().incarnation();
  view.start = client.runtime().store_start();
  std::vector<KnownPool> pools;
  int status = kExitDone;
  if (with_pools) {
    const auto ns = client.runtime().find_namespace(options.store.ns, client.left());
    if (ns.error.reason == Reason::unknown_namespace) status = kExitSomeFailed;
    else if (!ns) return tell_error("stat", ns.error.text);
    else {
      auto found = client.runtime().pools(ns.value);
      if (!found) return tell_error("stat", found.error.text);
      pools = std::move(found.value);
    }
  }
  if (options.store.output.quiet) return status;
  if (options.store.output.format == OutputFormat::json) {
    ordered_json out = store_json(client, view);
    if (with_pools) {
      out["namespace"] = options.store.ns;
      out["pools"] = ordered_json::array();
      for (const KnownPool& pool : pools)
        out["pools"].push_back({{"pool", pool.name}, {"shards", pool.shards.count()}, {"object_bytes", pool.object_bytes}});
    }
    print_json(out);
    return status;
  }
  print_store(client, view);
  if (with_pools && status != kExitDone) print_line("there is no namespace \"%s\"", options.store.ns.c_str());
  for (const KnownPool& pool : pools) {
    print_line("%-9s %s, %u %s, objects of %s", "pool", pool.name.c_str(), pool.shards.count(),
                pool.shards.count() == 1 ? "shard" : "shards",
                pool.object_bytes == 0 ? "no known size" : format_bytes(pool.object_bytes).c_str());
  }
  return status;
}

int stat_page(StoreClient& client, const StatOptions& options) {
  const ParsedKeys keys = parse_keys({options.page});
  const PageKey& key = keys.keys.front();
  PageStat page;
  const auto ns = client.runtime().find_namespace(options.store.ns, client.left());
  if (!ns && ns.error.reason != Reason::unknown_namespace) return tell_error("stat", ns.error.text);
  if (ns) {
    auto stat = client.runtime().stat(ns.value, key.hash);
    if (!stat) return tell_error("stat", stat.error.text);
    page = std::move(stat.value);
  }
  // A page without objects is one that is being written.
  const bool found = page.found && !page.objects.empty();
  const int status = found ? kExitDone : kExitSomeFailed;
  if (options.store.output.quiet) return status;
  if (options.store.output.format == OutputFormat::json) {
    ordered_json out{{"store", client.address()},
                     {"namespace", options.store.ns},
                     {"page", key.given},
                     {"hash", key.hash.to_hex()},
                     {"found", found}};
    if (found) {
      out["depth_pages"] = page.depth;
      out["objects"] = ordered_json::array();
      for (const PageStat::Object& object : page.objects) {
        out["objects"].push_back(
            {{"pool", object.pool}, {"shard", object.shard}, {"object_bytes", object.bytes}, {"level", to_string(object.level)}});
      }
    }
    print_json(out);
    return status;
  }
  if (!found) {
    print_line("%s: not there", key.given.c_str());
    return status;
  }
  print_line("%s: %s, at depth %s of its prefix", key.given.c_str(), format_count(page.objects.size(), "object").c_str(),
              format_count(page.depth).c_str());
  for (const PageStat::Object& object : page.objects) {
    print_line("  pool %s, shard %u: %s B, level %s", object.pool.c_str(), object.shard, format_count(object.bytes).c_str(),
                std::string(to_string(object.level)).c_str());
  }
  return status;
}

int run_stat(const StatOptions& options, bool namespace_given) {
  if (!options.page.empty()) {
    const ParsedKeys keys = parse_keys({options.page});
    if (!keys.error.empty()) return tell_error("stat", keys.error);
  }
  const auto opened = StoreClient::open(options.store, StoreClient::Use::read);
  if (!opened.client) return tell_error("stat", opened.error);
  return options.page.empty() ? stat_store(*opened.client, options, namespace_given) : stat_page(*opened.client, options);
}

}  // namespace

void add_stat_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<StatOptions>();
  CLI::App* const command = app.add_subcommand("stat", "Tell what a store holds and who uses it, or what it knows of a page");
  command->add_option("PAGE", options->page, "64 hexadecimal digits, or name:TEXT; without: the store")->option_text(" ")->check(not_empty);
  add_store_options(*command, options->store, true);
  command->callback([options, command, &choice] {
    const bool namespace_given = command->count("--namespace") != 0;
    choice.run = [options, namespace_given] { return run_stat(*options, namespace_given); };
  });
}

}  // namespace kvonce::apps
