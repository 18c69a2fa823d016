// SPDX-License-Identifier: Apache-2.0
//
// kvonce get: a page of a store becomes a file.
#include <cstdio>

#include "apps/kvonce/byte_file.hpp"
#include "apps/kvonce/store_client.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

constexpr std::string_view kGetCommand = "get";

struct GetOptions {
  StoreOptions store;
  std::string page;
  std::string pool = "bytes";
  std::string output;  // empty: standard output
};

struct Got {
  std::string error;
  Reason reason = Reason::none;  // why the page cannot be had
  std::uint64_t bytes = 0;
};

std::string sentence(Reason reason) {
  switch (reason) {
    case Reason::absent: return "it was never stored, was removed, or is forgotten";
    case Reason::evicted: return "it was stored, and has been evicted lately";
    case Reason::in_flight: return "it is still being written";
    case Reason::busy: return "the store is busy";
    case Reason::group_incomplete: return "the page is there, but not in this pool (kvonce stat tells which has it)";
    case Reason::removed: return "it was removed";
    case Reason::checksum_mismatch: return "its bytes are not those that were written, so they are not handed out";
    default: return std::string(to_string(reason));
  }
}

int tell_got(const StoreClient& client, const GetOptions& options, const PageKey& key, const Got& got) {
  const bool found = got.reason == Reason::none;
  const int status = found ? kExitDone : kExitSomeFailed;
  if (options.store.output.quiet) return status;
  if (options.store.output.format == OutputFormat::json) {
    nlohmann::ordered_json out{{"store", client.address()}, {"namespace", options.store.ns}, {"pool", options.pool},
                               {"page", key.given},         {"hash", key.hash.to_hex()},     {"found", found}};
    if (found) {
      out["object_bytes"] = got.bytes;
      out["file"] = options.output;
    } else {
      out["reason"] = to_string(got.reason);
    }
    print_json(out);
  } else if (!found) {
    tell_error(kGetCommand, key.given + " is not there: " + sentence(got.reason));
  } else if (!options.output.empty() && options.output != "-") {
    print_line("%s: %s B, verified, in %s", key.given.c_str(), protocol::format_count(got.bytes).c_str(),
                options.output.c_str());
  }
  return status;
}

/// Of a pool that has nothing: whether another has the page.
Got without_pool(StoreClient& client, NamespaceHandle ns, const PageKey& key) {
  auto stat = client.runtime().stat(ns, key.hash);
  if (!stat) return {stat.error.text, {}, 0};
  return {{}, stat->objects.empty() ? Reason::absent : Reason::group_incomplete, 0};
}

Got get_page(StoreClient& client, const GetOptions& options, const PageKey& key) {
  const auto ns = client.runtime().find_namespace(options.store.ns, client.left());
  if (ns.error.reason == Reason::unknown_namespace) return {{}, Reason::absent, 0};
  if (!ns) return {ns.error.text, {}, 0};
  const auto pools = client.runtime().pools(ns.value);
  if (!pools) return {pools.error.text, {}, 0};
  const KnownPool* const known = find_shell_pool(pools.value, options.pool);
  if (known == nullptr || known->object_bytes == 0) {
    for (const KnownPool& pool : pools.value) {
      if (pool.name != options.pool || pool.shards.count() == 1) continue;
      return {"pool \"" + pool.name + "\" of namespace \"" + options.store.ns + "\" lies in " +
                  std::to_string(pool.shards.count()) + " shards: get reads what put has written; stat tells of others",
              {},
              0};
    }
    return without_pool(client, ns.value, key);
  }
  ShellPool pool(client, ns.value, options.pool, known->object_bytes, 1);
  if (pool.error().reason == Reason::bad_argument) {
    return {"pool \"" + options.pool + "\" of namespace \"" + options.store.ns +
                "\" is not of the kind that put writes: get cannot read it; stat tells of it",
            {},
            0};
  }
  if (pool.error()) return {pool.error().text, {}, 0};
  const ShellPool::Loaded loaded = pool.load(key.hash, 0, std::chrono::steady_clock::now() + client.left());
  if (loaded.error) return {loaded.error.text, {}, 0};
  Got got{{}, loaded.reason, known->object_bytes};
  if (loaded.reason != Reason::none) return got;
  const bool to_output = options.output.empty() || options.output == "-";
  if (to_output && options.store.output.quiet) return got;
  got.error = write_file(to_output ? "-" : options.output, {pool.row(0), known->object_bytes});
  return got;
}

int run_get(const GetOptions& options) {
  const ParsedKeys keys = parse_keys({options.page});
  if (!keys.error.empty()) return tell_error(kGetCommand, keys.error);
  if (options.store.output.format == OutputFormat::json && !options.store.output.quiet &&
      (options.output.empty() || options.output == "-"))
    return tell_error(kGetCommand, "--json: the bytes go to standard output already; give them a file with -o");
  const auto opened = StoreClient::open(options.store, StoreClient::Use::read);
  if (!opened.client) return tell_error(kGetCommand, opened.error);
  const Got got = get_page(*opened.client, options, keys.keys.front());
  if (!got.error.empty()) return tell_error(kGetCommand, got.error);
  return tell_got(*opened.client, options, keys.keys.front(), got);
}

}  // namespace

void add_get_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<GetOptions>();
  CLI::App* const command = app.add_subcommand("get", "Read a page into a file or to standard output; exit status 1: not there");
  command->add_option("PAGE", options->page, "64 hexadecimal digits, or name:TEXT")->option_text(" ")->required();
  command->add_option("-o,--output", options->output, "File for the bytes, made only when the page is there (default -)")
      ->option_text("FILE");
  command->add_option("--pool", options->pool, "Pool that put has written (default bytes)")->option_text("NAME")->check(pool_name_error);
  add_store_options(*command, options->store, true);
  command->callback([options, &choice] { choice.run = [options] { return run_get(*options); }; });
}

}  // namespace kvonce::apps
