// SPDX-License-Identifier: Apache-2.0
//
// kvonce stop: ends a kvonced of this host in order.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/json_text.hpp"
#include "apps/kvonce/command.hpp"
#include "apps/kvonce/stop_store.hpp"
#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"

namespace kvonce::apps {
namespace {

struct StopOptions {
  std::string store = "auto";
  std::string timeout = "30s";
  OutputOptions output;
};

int run_stop(const StopOptions& options) {
  const auto timeout = protocol::parse_duration(options.timeout, std::chrono::milliseconds{1}, std::chrono::hours{1});
  if (!timeout) return tell_error("stop", "--timeout: " + timeout.error);
  std::string socket;
  if (options.store == "auto") {
    std::string why_not;
    socket = runtime::auto_socket_path(&why_not);
    if (socket.empty()) return tell_error("stop", why_not);
  } else if (options.store.starts_with("unix:") && options.store.size() > 5) {
    socket = options.store.substr(5);
  } else {
    return tell_error("stop", "--store: \"" + options.store + "\" is not allowed; allowed are auto and unix:PATH");
  }
  std::error_code code;
  if (const auto found = std::filesystem::status(socket, code); std::filesystem::exists(found) && !std::filesystem::is_socket(found))
    return tell_error("stop", "--store: " + socket + " is no socket");
  const StoppedStore stopped = stop_store(socket, std::chrono::duration_cast<std::chrono::milliseconds>(timeout.value));
  if (!stopped.error.empty()) return tell_error("stop", stopped.error);
  if (!options.output.quiet) {
    if (options.output.format == OutputFormat::json) {
      const nlohmann::ordered_json out{{"store", "unix:" + socket}, {"was_running", stopped.was_running}, {"pid", stopped.pid}};
      std::printf("%s\n", json_text(out).c_str());
    } else if (stopped.was_running) {
      print_line("kvonced with pid %u on unix:%s has ended", stopped.pid, socket.c_str());
    } else {
      print_line("no store runs on unix:%s", socket.c_str());
    }
  }
  return stopped.was_running ? kExitDone : kExitSomeFailed;
}

}  // namespace

void add_stop_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<StopOptions>();
  CLI::App* const command = app.add_subcommand("stop", "End a kvonced of this host in order; exit status 1: none runs");
  command->add_option("--store", options->store, "Which: auto, this user's, or unix:PATH [auto]")->option_text("STORE");
  command->add_option("--timeout", options->timeout, "Most time to wait until it is gone [30s]")->option_text("TIME");
  add_output_options(*command, options->output);
  command->callback([options, &choice] { choice.run = [options] { return run_stop(*options); }; });
}

}  // namespace kvonce::apps
