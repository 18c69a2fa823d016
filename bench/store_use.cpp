// SPDX-License-Identifier: Apache-2.0
#include "bench/store_use.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "protocol/units.hpp"
#include "runtime/spawn_store.hpp"

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kReadyTime{120};
constexpr std::chrono::seconds kEndTime{60};
constexpr std::size_t kShownLog = 1'024;
constexpr int kReadyFd = 3;

// The pid that a server writes into its lock file.
pid_t pid_in(const std::string& lock) {
  std::ifstream file(lock);
  long pid = 0;
  return file >> pid && pid > 0 ? static_cast<pid_t>(pid) : 0;
}

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

OwnStore::OwnStore(const std::string& folder, const Spec& spec) : socket_(folder + "/store"), log_(folder + "/log") {
  const auto program = runtime::find_store_program({});
  if (!program) throw Failed{program.error.text};
  const Descriptor log(open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  int ends[2];
  if (log.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) throw Failed{log_ + ": " + std::generic_category().message(errno)};
  const Descriptor listen(ends[0]);
  Descriptor tell(ends[1]);
  std::vector<std::string> arguments{"--socket",       socket_,
                                     "--memory",       std::to_string(whole_mib(spec.memory_bytes)),
                                     "--index-pages",  std::to_string(spec.index_pages),
                                     "--leased-bytes", std::to_string(whole_mib(spec.memory_bytes)),
                                     "--lease-time",   "60s",
                                     "--populate",     "yes",
                                     "--idle-exit",    "60s",  // should this process be killed
                                     "--ready-fd",     std::to_string(kReadyFd)};
  if (!spec.arena_file.empty()) arguments.insert(arguments.end(), {"--arena-file", spec.arena_file});
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
    pid_ = pid_in(via.substr(5) + ".lock");
    return;
  }
  folder_ = std::make_unique<TemporaryFolder>(std::filesystem::temp_directory_path().string());
  own_ = std::make_unique<OwnStore>(folder_->path(), spec);
}

}  // namespace kvonce::bench
