// SPDX-License-Identifier: Apache-2.0
//
// What the commands on a store that runs have in common: which store, which namespace, how long, and how pages are named.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <kvonce/runtime.hpp>
#include <nlohmann/json.hpp>

#include "apps/kvonce/command.hpp"

namespace kvonce::apps {

struct StoreOptions {
  std::string store;  ///< "unix:PATH" or "auto"; empty: this user's, if it runs
  std::string ns = "shell";
  std::string timeout = "30s";
  OutputOptions output;
};
/// `options` must outlive the parsing and the run.
void add_store_options(CLI::App& command, StoreOptions& options, bool with_namespace);

/// A page as it is given: 64 hexadecimal digits, or name:TEXT, which stands for the digest of TEXT.
struct PageKey {
  std::string given;
  PageHash hash;
};
struct ParsedKeys {
  std::vector<PageKey> keys;
  std::string error;  ///< names what is not understood, or given twice
};
ParsedKeys parse_keys(const std::vector<std::string>& given);

/// A connection to a store for one command.
class StoreClient {
 public:
  enum class Use { read, write };
  struct Opened {
    std::unique_ptr<StoreClient> client;
    std::string error;
  };
  /// A permanent error is told at once, also that no store runs.
  static Opened open(const StoreOptions& options, Use use);

  Runtime& runtime() { return *runtime_; }
  /// "unix:PATH", also of one that was found.
  const std::string& address() const { return address_; }
  std::string socket() const { return address_.substr(5); }
  /// Of the command's time; at least 1 ms, which then soon has passed.
  std::chrono::milliseconds left() const;
  bool time_is_over() const { return std::chrono::steady_clock::now() >= deadline_; }
  /// Done, or the error.
  Error wait(const Result<std::shared_ptr<AdminOperation>>& operation) const;
  const std::string& engine_id() const { return runtime_->config().engine_id; }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::string address_;
  std::string timeout_text_;
  std::chrono::steady_clock::time_point deadline_;
};

/// The rows and the pool of a rank of its own, for objects of `object_bytes` that this program alone reads and writes.
class ShellPool {
 public:
  /// `client` must outlive it. Empty error(): it can be used.
  ShellPool(StoreClient& client, NamespaceHandle ns, const std::string& name, std::uint64_t object_bytes, std::uint64_t rows);
  const Error& error() const { return error_; }
  std::byte* row(std::uint64_t number) { return bytes_.data() + number * object_bytes_; }
  Rank& rank() { return *rank_; }
  PoolHandle handle() const { return pool_; }

  struct Loaded {
    Reason reason = Reason::none;  ///< why it is not in the row
    Error error;                   ///< no answer
  };
  /// Verified by the checksums that were made when the object was put. What is being written, or cannot be had for the moment, is
  /// waited for until `until`.
  Loaded load(const PageHash& page, std::uint64_t row, std::chrono::steady_clock::time_point until);

 private:
  StoreClient& client_;
  std::uint64_t object_bytes_;
  Error error_;
  GroupHandle group_;
  PoolHandle pool_;
  std::vector<std::byte> bytes_;  // goes after the rank that reads and writes it
  std::shared_ptr<Rank> rank_;
};

/// For CLI::Option::check: a name that put can write a pool under.
std::string pool_name_error(const std::string& name);

/// The one that put writes and get reads: in one shard. Null: none of that name.
const KnownPool* find_shell_pool(const std::vector<KnownPool>& pools, const std::string& name);

void print_json(const nlohmann::ordered_json& value);

void add_put_command(CLI::App& app, CommandChoice& choice);
void add_get_command(CLI::App& app, CommandChoice& choice);
void add_exists_command(CLI::App& app, CommandChoice& choice);
void add_remove_command(CLI::App& app, CommandChoice& choice);
void add_clear_command(CLI::App& app, CommandChoice& choice);
void add_flush_command(CLI::App& app, CommandChoice& choice);
void add_stat_command(CLI::App& app, CommandChoice& choice);

}  // namespace kvonce::apps
