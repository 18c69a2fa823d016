// SPDX-License-Identifier: Apache-2.0
#include "bench/store_use.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"
#include "runtime/spawn_store.hpp"

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kReadyTime{120};
constexpr std::chrono::seconds kEndTime{60};
constexpr std::size_t kShownLog = 1'024;
constexpr int kReadyFd = 3;

std::uint64_t whole_mib(std::uint64_t bytes) { return (bytes + (2ULL << 20) - 1) / (2ULL << 20) * (2ULL << 20); }

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& parent) : path_(parent + "/kvonce-bench-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr)
    throw Failed{"no folder can be made in " + parent + ": " + std::generic_category().message(errno)};
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code code;
  std::filesystem::remove_all(path_, code);
}

std::vector<std::string> OwnStore::Spec::settings() const {
  const std::string memory = std::to_string(whole_mib(memory_bytes));
  std::vector<std::string> flags{"--memory",   memory, "--index-pages", std::to_string(index_pages), "--leased-bytes", memory, "--lease-time", "60s",
                                 "--populate", "yes"};
  if (!arena_file.empty()) flags.insert(flags.end(), {"--arena-file", arena_file});
  return flags;
}

OwnStore::OwnStore(const std::string& folder, const std::vector<std::string>& settings) : socket_(folder + "/store"), log_(folder + "/log") {
  const auto program = runtime::find_store_program({});
  if (!program) throw Failed{program.error.text};
  const Descriptor log(open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  int ends[2];
  if (log.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) throw Failed{log_ + ": " + std::generic_category().message(errno)};
  const Descriptor listen(ends[0]);
  Descriptor tell(ends[1]);
  std::vector<std::string> arguments{"--socket", socket_, "--config", "/dev/null", "--ready-fd", std::to_string(kReadyFd),
                                     // Should this process be killed. The time, should the system not tell of its end.
                                     "--parent", std::to_string(getpid()), "--idle-exit", "60s"};
  if (std::find(settings.begin(), settings.end(), "--arena-file") == settings.end()) arguments.insert(arguments.end(), {"--arena-file", ""});
  arguments.insert(arguments.end(), settings.begin(), settings.end());
  const auto begin = Clock::now();
  process_ = ChildProcess::start(program.value, arguments, {{log.get(), STDOUT_FILENO}, {log.get(), STDERR_FILENO}, {tell.get(), kReadyFd}});
  tell.reset();
  char first = '\0';
  const auto deadline = begin + kReadyTime;
  while (true) {
    Interrupts::check();
    pollfd wait{listen.get(), POLLIN, 0};
    if (poll(&wait, 1, 50) > 0) break;
    if (Clock::now() >= deadline)
      throw Failed{program.value + " is not ready after " + std::to_string(kReadyTime.count()) + " s; " + log_text()};
  }
  if (read(listen.get(), &first, 1) != 1) throw Failed{program.value + " ended before it was ready; " + log_text()};
  seconds_to_ready_ = std::chrono::duration<double>(Clock::now() - begin).count();
}

OwnStore::~OwnStore() {
  int status = 0;
  process_.signal(SIGTERM);
  static_cast<void>(process_.wait_until(Clock::now() + kEndTime, status));
}

void OwnStore::end() {
  int status = 0;
  if (!process_.running()) return;
  process_.signal(SIGTERM);
  if (!process_.wait_until(Clock::now() + kEndTime, status)) throw Failed{"kvonced did not end; " + log_text()};
  if (status != 0) throw Failed{"kvonced " + end_text(status) + "; " + log_text()};
}

std::string OwnStore::ready_line() const {
  std::ifstream file(log_);
  std::string line;
  while (std::getline(file, line))
    if (line.find(" is ready on ") != std::string::npos) return line;
  return {};
}

std::string OwnStore::log_text() const {
  std::ifstream file(log_);
  std::ostringstream text;
  text << file.rdbuf();
  std::string shown = text.str();
  if (shown.size() > kShownLog) shown.erase(0, shown.size() - kShownLog);
  while (!shown.empty() && shown.back() == '\n') shown.pop_back();
  return shown.empty() ? "its log is empty" : "its log ends with: " + shown;
}

StoreUse::StoreUse(const std::string& via, const OwnStore::Spec& spec) : via_(via) {
  if (via != "spawn") {
    pid_ = static_cast<pid_t>(runtime::store_holder(via.substr(5)).pid);
    const auto capacity = store_capacity(via);
    if (!capacity) throw Failed{capacity.error.text};
    if (capacity.value < spec.payload_bytes) {
      throw Failed{"the store at " + via + " keeps at most " + protocol::format_bytes(capacity.value) + ", and this benchmark needs " +
                   protocol::format_bytes(spec.payload_bytes) + " at once: take fewer or smaller pages, or a larger store"};
    }
    return;
  }
  start(spec.settings());
}

StoreUse::StoreUse(const std::vector<std::string>& settings) { start(settings); }

void StoreUse::start(const std::vector<std::string>& settings) {
  folder_ = std::make_unique<TemporaryFolder>(std::filesystem::temp_directory_path().string());
  own_ = std::make_unique<OwnStore>(folder_->path(), settings);
}

std::string absent_store(const std::string& address, const std::string& start) {
  const std::string socket = address.substr(5);
  if (runtime::store_listens(socket)) return {};
  // Nothing can be told of what may not be entered or connected to; the attempt to connect says why.
  if (access(socket.c_str(), R_OK | W_OK) != 0 && errno == EACCES) return {};
  if (const auto holder = runtime::store_holder(socket); holder.held) {
    return "the store on " + address + " does not listen" + (holder.pid == 0 ? "" : ": process " + std::to_string(holder.pid)) +
           " is starting or ending it; try again";
  }
  std::error_code code;
  if (const auto status = std::filesystem::status(socket, code); std::filesystem::exists(status) && !std::filesystem::is_socket(status))
    return socket + " is no socket";
  return "no store runs on " + address + "; start one with " + start;
}

Result<std::uint64_t> store_capacity(const std::string& address) {
  if (std::string absent = absent_store(address, "kvonced --socket " + address.substr(5)); !absent.empty())
    return {.value = 0, .error = {Reason::store_lost, std::move(absent)}};
  RuntimeConfig config;
  config.engine_id = "kvonce asks " + std::to_string(getpid());
  config.store = address;
  config.read_only = true;
  Result<std::uint64_t> result;
  auto started = Runtime::start(config);
  if (!started) {
    result.error = started.error;
    return result;
  }
  result.value = started.value->stats().capacity_bytes;
  if (result.value == 0) result.error = {Reason::store_lost, "the store at " + address + " does not answer"};
  return result;
}

}  // namespace kvonce::bench
