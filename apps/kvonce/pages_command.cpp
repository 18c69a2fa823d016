// SPDX-License-Identifier: Apache-2.0
//
// kvonce exists, rm, clear, flush: commands on many pages, or on a store as a whole.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "apps/kvonce/store_client.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

using nlohmann::ordered_json;
using protocol::format_count;

struct PagesOptions {
  StoreOptions store;
  std::vector<std::string> pages;
  std::string pool;              // exists; empty: any
  bool whole_namespace = false;  // rm
  bool yes = false;              // clear
  std::string level = "memory";  // flush
};

struct FoundPages {
  std::string error;
  std::vector<bool> found;
  std::uint64_t count = 0;
};

/// Whether each page has an object (of the pool, when one is named).
FoundPages find_pages(const Runtime& runtime, NamespaceHandle ns, const std::vector<PageKey>& keys, const std::string& pool) {
  FoundPages out;
  for (const PageKey& key : keys) {
    const auto stat = runtime.stat(ns, key.hash);
    if (!stat) {
      out.error = stat.error.text;
      return out;
    }
    const auto& objects = stat.value.objects;
    const bool found = std::any_of(objects.begin(), objects.end(),
                                   [&](const PageStat::Object& object) { return pool.empty() || object.pool == pool; });
    out.found.push_back(found);
    out.count += found ? 1 : 0;
  }
  return out;
}

ordered_json pages_json(const std::vector<PageKey>& keys, const std::vector<bool>& found) {
  ordered_json out = ordered_json::array();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool there = found[i];
    out.push_back({{"page", keys[i].given}, {"hash", keys[i].hash.to_hex()}, {"found", there}});
  }
  return out;
}

/// Nothing, without error: nobody has opened it yet, so nothing is in it.
Result<std::optional<NamespaceHandle>> find_namespace(StoreClient& client, const std::string& text) {
  Result<std::optional<NamespaceHandle>> result;
  const auto found = client.runtime().find_namespace(text, client.left());
  if (found) result.value = found.value;
  else if (found.error.reason != Reason::unknown_namespace) result.error = found.error;
  return result;
}

int run_exists(const PagesOptions& options) {
  const ParsedKeys parsed = parse_keys(options.pages);
  if (!parsed.error.empty()) return tell_error("exists", parsed.error);
  const auto opened = StoreClient::open(options.store, StoreClient::Use::read);
  if (!opened.client) return tell_error("exists", opened.error);
  StoreClient& client = *opened.client;
  const auto ns = find_namespace(client, options.store.ns);
  if (!ns) return tell_error("exists", ns.error.text);
  FoundPages pages;
  if (ns.value) pages = find_pages(client.runtime(), *ns.value, parsed.keys, options.pool);
  if (!pages.error.empty()) return tell_error("exists", pages.error);
  pages.found.resize(parsed.keys.size());
  if (!options.store.output.quiet) {
    if (options.store.output.format == OutputFormat::json) {
      ordered_json out{{"store", client.address()}, {"namespace", options.store.ns}};
      if (!options.pool.empty()) out["pool"] = options.pool;
      out["found_pages"] = pages.count;
      out["missing_pages"] = parsed.keys.size() - pages.count;
      out["pages"] = pages_json(parsed.keys, pages.found);
      print_json(out);
    } else {
      for (std::size_t i = 0; i < parsed.keys.size(); ++i)
        print_line("%s: %s", parsed.keys[i].given.c_str(), pages.found[i] ? "yes" : "no");
    }
  }
  return pages.count == parsed.keys.size() ? kExitDone : kExitSomeFailed;
}

/// "unknown namespace" and no removed objects are told alike in both forms.
int tell_removed(const StoreClient& client, const PagesOptions& options, bool known, std::uint64_t objects,
                 const ParsedKeys& parsed, const FoundPages& pages) {
  const bool complete = options.whole_namespace ? known : pages.count == parsed.keys.size();
  if (!options.store.output.quiet && options.store.output.format == OutputFormat::json) {
    ordered_json out{{"store", client.address()}, {"namespace", options.store.ns}, {"removed_objects", objects}};
    if (!options.whole_namespace) {
      out["missing_pages"] = parsed.keys.size() - pages.count;
      out["pages"] = pages_json(parsed.keys, pages.found);
    }
    print_json(out);
  } else if (!options.store.output.quiet) {
    for (std::size_t i = 0; i < parsed.keys.size(); ++i)
      print_line("%s: %s", parsed.keys[i].given.c_str(), pages.found[i] ? "removed" : "not there");
    if (options.whole_namespace && known)
      print_line("%s of \"%s\" removed", format_count(objects, "object").c_str(), options.store.ns.c_str());
    if (options.whole_namespace && !known) print_line("there is no namespace \"%s\"", options.store.ns.c_str());
  }
  return complete ? kExitDone : kExitSomeFailed;
}

int run_remove(const PagesOptions& options) {
  if (options.pages.empty() != options.whole_namespace)
    return tell_error("rm", "give pages, or --namespace-all to remove a whole namespace (kvonce rm --help)");
  const ParsedKeys parsed = parse_keys(options.pages);
  if (!parsed.error.empty()) return tell_error("rm", parsed.error);
  if (parsed.keys.size() > kMaxBatchItems) {
    return tell_error(
        "rm", format_count(parsed.keys.size()) + " pages; allowed are at most " + format_count(kMaxBatchItems) + " at a time");
  }
  const auto opened = StoreClient::open(options.store, StoreClient::Use::write);
  if (!opened.client) return tell_error("rm", opened.error);
  StoreClient& client = *opened.client;
  const auto ns = find_namespace(client, options.store.ns);
  if (!ns) return tell_error("rm", ns.error.text);
  FoundPages pages;
  std::uint64_t objects = 0;
  if (ns.value) {
    pages = find_pages(client.runtime(), *ns.value, parsed.keys, {});
    if (!pages.error.empty()) return tell_error("rm", pages.error);
    std::vector<PageHash> hashes;
    for (const PageKey& key : parsed.keys) hashes.push_back(key.hash);
    const auto removed = options.whole_namespace ? client.runtime().remove_namespace(*ns.value, {}, client.left())
                                                 : client.runtime().remove_pages(*ns.value, std::move(hashes), {}, client.left());
    if (const Error error = client.wait(removed)) return tell_error("rm", error.text);
    objects = removed.value->count();
  }
  pages.found.resize(parsed.keys.size());
  return tell_removed(client, options, ns.value.has_value(), objects, parsed, pages);
}

int run_clear(const PagesOptions& options) {
  if (!options.yes) return tell_error("clear", "this removes every page of every namespace of the store: confirm with --yes");
  const auto opened = StoreClient::open(options.store, StoreClient::Use::write);
  if (!opened.client) return tell_error("clear", opened.error);
  const auto cleared = opened.client->runtime().clear({}, opened.client->left());
  if (const Error error = opened.client->wait(cleared)) return tell_error("clear", error.text);
  if (!options.store.output.quiet) {
    if (options.store.output.format == OutputFormat::json)
      print_json({{"store", opened.client->address()}, {"removed_objects", cleared.value->count()}});
    else
      print_line("%s removed from %s", format_count(cleared.value->count(), "object").c_str(), opened.client->address().c_str());
  }
  return kExitDone;
}

int run_flush(const PagesOptions& options) {
  const std::string& level = options.level;
  const AckLevel wanted = level == "memory" ? AckLevel::memory : level == "disk" ? AckLevel::disk : AckLevel::replicated;
  const auto opened = StoreClient::open(options.store, StoreClient::Use::write);
  if (!opened.client) return tell_error("flush", opened.error);
  const auto begun = std::chrono::steady_clock::now();
  const auto flushed = opened.client->runtime().flush(wanted, opened.client->left());
  if (const Error error = opened.client->wait(flushed)) {
    return tell_error("flush", error.reason == Reason::level_unavailable
                                   ? "--level: the store at " + opened.client->address() + " keeps nothing at level " + level +
                                         "; it has memory only"
                                   : error.text);
  }
  if (options.store.output.quiet) return kExitDone;
  if (options.store.output.format == OutputFormat::json) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    print_json({{"store", opened.client->address()}, {"level", level}, {"seconds", seconds}});
  } else {
    print_line("all that was announced to %s before is decided at level %s", opened.client->address().c_str(), level.c_str());
  }
  return kExitDone;
}

}  // namespace

void add_exists_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<PagesOptions>();
  CLI::App* const command = app.add_subcommand("exists", "Tell which pages a store has; exit status 0: all, 1: not all");
  command->add_option("PAGE", options->pages, "64 hexadecimal digits each, or name:TEXT")->option_text("...")->required();
  command->add_option("--pool", options->pool, "Count only objects of this pool (default: of any)")->option_text("NAME")->check(not_empty);
  add_store_options(*command, options->store, true);
  command->callback([options, &choice] { choice.run = [options] { return run_exists(*options); }; });
}

void add_remove_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<PagesOptions>();
  CLI::App* const command = app.add_subcommand("rm", "Remove pages with all their objects; exit status 1: some were not there");
  command->add_option("PAGE", options->pages, "64 hexadecimal digits each, or name:TEXT")->option_text("...");
  command->add_flag("--namespace-all", options->whole_namespace, "Instead of pages: everything in the namespace");
  add_store_options(*command, options->store, true);
  command->callback([options, &choice] { choice.run = [options] { return run_remove(*options); }; });
}

void add_clear_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<PagesOptions>();
  CLI::App* const command = app.add_subcommand("clear", "Remove everything from a store");
  command->add_flag("--yes", options->yes, "Needed: it is everybody's pages");
  add_store_options(*command, options->store, false);
  command->callback([options, &choice] { choice.run = [options] { return run_clear(*options); }; });
}

void add_flush_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<PagesOptions>();
  CLI::App* const command = app.add_subcommand("flush", "Wait until all that was announced to a store is decided");
  command->add_option("--level", options->level, "How durable: memory (default), disk or replicated")
      ->option_text("LEVEL")
      ->check(CLI::IsMember({"memory", "disk", "replicated"}));
  add_store_options(*command, options->store, false);
  command->callback([options, &choice] { choice.run = [options] { return run_flush(*options); }; });
}

}  // namespace kvonce::apps
