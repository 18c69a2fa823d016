// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/standard_streams.hpp"
#include "apps/kvonced/command_line.hpp"
#include "apps/kvonced/daemon.hpp"
#include "apps/kvonced/limits.hpp"
#include "apps/kvonced/signals.hpp"
#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"
#include "runtime/host_memory.hpp"
#include "runtime/spawn_store.hpp"

namespace {

using namespace kvonce::apps;

constexpr int kExitNotStarted = 2;

/// All of them, one a line.
int tell_errors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) std::fprintf(stderr, "kvonced: %s\n", kvonce::telemetry::printable(error).c_str());
  return kExitNotStarted;
}

/// Nobody listens any more: then nobody waits.
void pass_on(int to, std::string_view word) {
  if (to >= 0) static_cast<void>(!write(to, word.data(), word.size()));
}

/// The process that was called waits until the store is ready, or has said why it is not: it alone sees that a signal has ended it.
/// `to`: who is told the same; -1: nobody.
int await_ready(int from, int to, pid_t store) {
  std::string word;
  char part[64];
  for (;;) {
    const ssize_t got = read(from, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    word.append(part, static_cast<std::size_t>(got));
    if (word.ends_with('\n')) break;
  }
  pass_on(to, word);
  if (word.starts_with('r')) return 0;
  int status = 0;
  pid_t ended = -1;
  do {
    ended = waitpid(store, &status, 0);
  } while (ended < 0 && errno == EINTR);
  const std::string who = "the store (process " + std::to_string(store) + ") ";
  if (ended == store && WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    if (word.empty()) pass_on(to, std::string(kvonce::runtime::kKilled) + std::to_string(number) + "\n");
    return tell_errors({who + "was ended by signal " + std::to_string(number) + " (" + strsignal(number) + ") before it was ready"});
  }
  return !word.empty() ? tell_errors({who + "was told to end before it was ready"}) : kExitNotStarted;  // it has said why
}

/// Before any thread is there. In the child: nothing. In the process that was called: its exit status.
std::optional<int> detach(CommandLine& line) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return tell_errors({std::string("pipe: ") + std::strerror(errno)});
  const pid_t child = fork();
  if (child < 0) return tell_errors({std::string("fork: ") + std::strerror(errno)});
  if (child > 0) {
    close(ends[1]);
    if (line.start_lock_fd >= 0) close(line.start_lock_fd);  // the store's
    return await_ready(ends[0], line.ready_fd, child);
  }
  close(ends[0]);
  if (line.ready_fd >= 0) close(line.ready_fd);
  line.ready_fd = ends[1];
  setsid();
  umask(077);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) {
    dup2(null, STDIN_FILENO);
    if (null != STDIN_FILENO) close(null);
  }
  unsetenv("NOTIFY_SOCKET");  // of the one that called: this is another process
  if (chdir("/") != 0) return tell_errors({std::string("chdir: ") + std::strerror(errno)});
  return std::nullopt;
}

int dump(const CommandLine& line, const Settled& settled) {
  Settled shown = settled;
  shown.errors.insert(shown.errors.begin(), line.errors.begin(), line.errors.end());
  const std::string text = line.quiet ? std::string() : line.json ? dump_json(shown) : dump_text(shown);
  if (const std::string wrong = write_out(text); !wrong.empty()) return tell_errors({"the settings could not be written: " + wrong});
  return shown.errors.empty() ? 0 : tell_errors(shown.errors);
}

/// Of the socket that is this user's by default. To look at the settings has not made it.
std::string make_folder(const Settled& settled) {
  for (const SettledLine& line : settled.lines) {
    std::string why_not;
    if (line.setting->name == std::string_view("socket") && line.text.empty() && kvonce::runtime::auto_socket_path(&why_not).empty())
      return user_name(settled.lines, "socket") + ": there is no default: " + why_not;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  kvonce::apps::fill_standard_streams();
  CommandLine line = read_command_line(argc, argv);
  if (line.exit_status) return *line.exit_status;
  for (const std::string& warning : line.warnings) std::fprintf(stderr, "kvonced: warning: %s\n", kvonce::telemetry::printable(warning).c_str());
  const Settled settled = settle(line.sources);
  if (line.dump) return dump(line, settled);
  if (!line.errors.empty() || !settled.errors.empty()) {
    std::vector<std::string> errors = line.errors;
    errors.insert(errors.end(), settled.errors.begin(), settled.errors.end());
    return tell_errors(errors);
  }
  if (const std::string wrong = make_folder(settled); !wrong.empty()) return tell_errors({wrong});
  if (const std::string wrong = fit_limits(settled.settings); !wrong.empty()) return tell_errors({wrong});
  // Told here: populated memory that is not there ends with the kernel killing some process, not with a sentence.
  const std::uint64_t available = kvonce::runtime::available_memory();
  const kvonce::RuntimeConfig& wanted = settled.settings.runtime;
  // Where another store has the socket, that is what is told.
  const bool taken = kvonce::runtime::store_holder(settled.settings.socket).held;
  if (!taken && wanted.populate && wanted.arena_file.empty() && available != 0 && wanted.arena_bytes > available)
    return tell_errors({user_name(settled.lines, "memory") + " is " + kvonce::protocol::format_bytes(wanted.arena_bytes) + ", and " +
                        kvonce::protocol::format_bytes(available) + " are available: ask for less, or set populate to no to take it as pages come"});
  if (line.detach) {
    if (const std::optional<int> status = detach(line)) return *status;
  }
  Signals::block();
  begin_of_start();
  kvonce::telemetry::set_level(settled.settings.log_level);
  return run_daemon(line, settled.settings, settled.lines);
}
