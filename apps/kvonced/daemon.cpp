// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonced/daemon.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvonce/runtime.hpp>
#include <kvonce/version.hpp>

#include "apps/kvonced/limits.hpp"
#include "apps/kvonced/notify.hpp"
#include "apps/kvonced/signals.hpp"
#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"
#include "runtime/spawn_store.hpp"
#include "runtime/start_interrupt.hpp"
#include "transport/handshake.hpp"

namespace kvonce::apps {
namespace {

using std::chrono::milliseconds;
using telemetry::Level;
using telemetry::say;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kStopTime{5'000};
// Beyond drain and stop, until the end is forced: writing the snapshot, giving the memory back.
constexpr milliseconds kEndMargin{10'000};
constexpr milliseconds kOneWish{500};
constexpr milliseconds kIdleLookMax{1'000};
constexpr milliseconds kIdleLookMin{10};

std::string start_text(const Settings& settings, const StoreStart& start) {
  if (start.warm) {
    return "warm start: " + protocol::format_count(start.restored_objects, "object") + (start.restored_objects == 1 ? " is back" : " are back");
  }
  if (settings.runtime.arena_file.empty()) return "cold start: no arena-file";
  return "cold start: " + (start.why_cold.empty() ? std::string("nothing of an earlier life is there") : start.why_cold);
}

std::string ready_text(const Settings& settings, const StoreStart& start) {
  const std::uint32_t partitions = settings.runtime.partitions;
  return "kvonced " + version() + " is ready on unix:" + settings.socket + ": " + protocol::format_bytes(settings.runtime.arena_bytes) +
         " of memory, " + std::to_string(partitions) + (partitions == 1 ? " partition, " : " partitions, ") + start_text(settings, start);
}

void tell(int ready_fd, std::string_view word) {
  static_cast<void>(!write(ready_fd, word.data(), word.size()));  // nobody listens any more: then nobody waits
  close(ready_fd);
}

/// To the one that started this process, the service manager, and whoever reads standard output.
void tell_ready(const CommandLine& line, const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  if (line.detach || line.ready_fd >= 0) {
    // Nothing more is said there: whoever reads it to its end (a shell's $(...), a pipe) need not wait for the store's.
    if (const int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) {
      dup2(null, STDOUT_FILENO);
      close(null);
    }
  }
  if (!notify_manager("READY=1\nSTATUS=" + text)) say(Level::warning, "NOTIFY_SOCKET is set, but the service manager could not be told");
  if (line.start_lock_fd >= 0) close(line.start_lock_fd);
  if (line.ready_fd < 0) return;
  tell(line.ready_fd, "ready " + std::to_string(transport::kWireVersion) + "\n");
}

class Daemon {
 public:
  Daemon(const CommandLine& line, Settings settings, std::vector<SettledLine> settled)
      : line_(line),
        settings_(std::move(settings)),
        settled_(std::move(settled)),
        signals_(end_time(), kOneWish, [] { runtime::start_interrupted().store(true); }, line.parent) {}

  int run() {
    return run_store();
  }

 private:
  int run_store() {
    if (!signals_.ready()) {
      std::fprintf(stderr, "kvonced: %s\n", signals_.problem().c_str());
      return 2;
    }
    auto starting = start_lock();
    auto started = Runtime::start(settings_.runtime);
    if (!started && signals_.end_signal() != 0) {
      say(Level::info, std::string(signal_name()) + ": ended before the store was ready");
      if (line_.ready_fd >= 0) tell(line_.ready_fd, runtime::kToldToEnd);
      if (signals_.parent_gone()) remove_folder();
      return 0;
    }
    if (!started) {
      const std::string text = in_words_of_settings(started.error.text, settled_) + what_helps(started.error.text);
      std::fprintf(stderr, "kvonced: %s\n", telemetry::printable(text).c_str());
      return 2;
    }
    starting.reset();
    end_of_start();
    Runtime& runtime = **started;
    tell_of_small_pages();
    tell_ready(line_, ready_text(settings_, runtime.store_start()));
    serve(runtime);
    notify_manager("STOPPING=1");
    const Error left = runtime.drain(std::max(settings_.drain_time, milliseconds{1}));
    if (left) say(Level::error, "the store did not end in full order: " + left.text);
    runtime.stop(kStopTime);
    started.value.reset();
    say(Level::info, "ended");
    if (signals_.parent_gone()) remove_folder();
    return left ? kExitIncomplete : 0;
  }

  /// Behind the sentence that names the process which has the socket or the arena's file.
  std::string what_helps(const std::string& error) const {
    if (error.find(" already serves ") != std::string::npos)
      return " What helps: kvonce stop --store unix:" + settings_.socket + " ends it, or another --socket for this one";
    if (error.find(" is in use by ") != std::string::npos)
      return ". What helps: kvonce stop --store unix:PATH, with the socket of the other store, ends it, or another --arena-file for this one";
    return {};
  }

  /// Of the socket, as whoever made it for this store alone would: when nothing but this store's log and arena is in it. The socket and
  /// its lock have gone in order, or are another store's.
  void remove_folder() const {
    namespace fs = std::filesystem;
    const fs::path folder = fs::path(settings_.socket).parent_path();
    if (const fs::path arena = settings_.runtime.arena_file; !arena.empty() && arena.parent_path() == folder) remove_arena(arena.string());
    std::error_code code;
    struct stat log {};
    struct stat found {};
    std::vector<fs::path> own;
    if (fstat(STDERR_FILENO, &log) == 0 && S_ISREG(log.st_mode))
      for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
        if (lstat(entry->path().c_str(), &found) == 0 && found.st_dev == log.st_dev && found.st_ino == log.st_ino) own.push_back(entry->path());
    for (const fs::path& file : own) unlink(file.c_str());
    rmdir(folder.c_str());
  }

  /// Not where another store has taken it.
  static void remove_arena(const std::string& arena) {
    const std::string name = arena + ".lock";
    const int lock = open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) return;
    struct stat locked {};
    struct stat named {};
    if (flock(lock, LOCK_EX | LOCK_NB) == 0 && fstat(lock, &locked) == 0 && lstat(name.c_str(), &named) == 0 && locked.st_ino == named.st_ino)
      for (const char* const ending : {"", ".new", ".snapshot", ".snapshot.new", ".lock"}) unlink((arena + ending).c_str());
    close(lock);
  }

  /// The kernel takes the wish for huge pages without a word, also where it never gives any.
  void tell_of_small_pages() const {
    if (settings_.runtime.huge_pages != HugePages::transparent) return;
    std::ifstream in("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    std::string allowed;
    if (std::getline(in, allowed) && allowed.find("[never]") == std::string::npos && allowed.find("[deny]") == std::string::npos) return;
    say(Level::info, "huge-pages is transparent, but this system gives no huge pages to shared memory"
                     " (/sys/kernel/mm/transparent_hugepage/shmem_enabled): the store has small ones");
  }

  /// So that engines with store = "auto" wait for a store of this user's that somebody else has begun to start.
  std::unique_ptr<runtime::StartLock> start_lock() const {
    if (line_.start_lock_fd >= 0 || settings_.socket != runtime::auto_socket_path(nullptr)) return nullptr;
    auto lock = std::make_unique<runtime::StartLock>(settings_.socket);
    lock->take();  // or another is starting too: which of them gets the socket is decided there
    return lock;
  }

  const char* signal_name() const { return signals_.parent_gone() ? "the parent has ended" : signals_.end_signal() == SIGINT ? "SIGINT" : "SIGTERM"; }
  milliseconds end_time() const { return settings_.drain_time + kStopTime + kEndMargin; }

  void serve(Runtime& runtime) {
    Clock::time_point busy = Clock::now();
    for (;;) {
      const milliseconds idle = settings_.idle_exit;
      const milliseconds look = idle.count() == 0 ? milliseconds{-1} : std::clamp(idle / 4, kIdleLookMin, kIdleLookMax);
      const Signals::Request request = signals_.wait(look);
      if (request == Signals::Request::end) {
        say(Level::info, std::string(signal_name()) + ": ending; open copies have " +
                             std::to_string(settings_.drain_time.count()) + " ms");
        return;
      }
      if (request == Signals::Request::reload) {
        reload();
        busy = Clock::now();
      }
      if (settings_.idle_exit.count() == 0) continue;
      const auto clients = runtime.clients();
      if (clients.error || !clients.value.empty()) {
        busy = Clock::now();
      } else if (Clock::now() - busy >= settings_.idle_exit) {
        signals_.begin_end();
        say(Level::info, "no clients for " + std::to_string(settings_.idle_exit.count()) + " ms (idle-exit): ending");
        return;
      }
    }
  }

  void reload() {
    notify_reloading();
    if (line_.sources.file_path.empty()) {
      say(Level::warning, "SIGHUP: no config file was named at the start, so there is nothing to read again");
    } else {
      read_again();
    }
    notify_manager("READY=1");
  }

  void read_again() {
    Sources sources = line_.sources;
    std::vector<std::string> errors;
    sources.file = read_config_file(sources.file_path, errors);
    Settled next = settle(sources);
    errors.insert(errors.end(), next.errors.begin(), next.errors.end());
    if (!errors.empty()) {
      for (const std::string& error : errors) say(Level::error, "SIGHUP: nothing is changed: " + error);
      return;
    }
    std::string applied;
    std::string later;
    for (std::size_t i = 0; i < settled_.size(); ++i) {
      // As written: a share of the memory is another number of bytes each time.
      if (next.lines[i].text == settled_[i].text) continue;
      std::string& list = next.lines[i].setting->reloads ? applied : later;
      list += (list.empty() ? "" : ", ") + std::string(next.lines[i].setting->name) + " = " + next.lines[i].settled;
      if (next.lines[i].setting->reloads) settled_[i] = next.lines[i];
    }
    settings_.idle_exit = next.settings.idle_exit;
    settings_.drain_time = next.settings.drain_time;
    settings_.log_level = next.settings.log_level;
    telemetry::set_level(settings_.log_level);
    signals_.set_end_time(end_time());
    say(Level::info, "SIGHUP: " + line_.sources.file_path + " is read again; " + (applied.empty() ? "nothing has changed" : applied));
    if (!later.empty()) say(Level::warning, "SIGHUP: needs a restart to take effect: " + later);
  }

  const CommandLine& line_;
  Settings settings_;
  std::vector<SettledLine> settled_;
  Signals signals_;
};

}  // namespace

int run_daemon(const CommandLine& line, const Settings& settings, const std::vector<SettledLine>& settled) {
  return Daemon(line, settings, settled).run();
}

}  // namespace kvonce::apps
