// SPDX-License-Identifier: Apache-2.0
#include "tests/process/fleet.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace kvonce::process_test {

namespace {

constexpr std::chrono::seconds kPatience{120};

std::string field_of(pid_t pid, const std::string& file, const std::string& name) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) return line.substr(name.size());
  return {};
}

}  // namespace

Folder::Folder(const std::string& in)
    : path_(((in.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(in)) / "kvonce-process-XXXXXX")
                .string()) {
  REQUIRE(mkdtemp(path_.data()) != nullptr);
}

Folder::~Folder() {
  std::error_code code;
  std::filesystem::remove_all(path_, code);
}

bool Folder::empty() const {
  std::error_code code;
  return std::filesystem::is_empty(path_, code);
}

Child::Child(const std::string& program, const std::vector<std::string>& arguments) {
  std::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> in{-1, -1};
  std::array<int, 2> out{-1, -1};
  REQUIRE(pipe2(in.data(), O_CLOEXEC) == 0);
  REQUIRE(pipe2(out.data(), O_CLOEXEC) == 0);
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test program that is killed leaves nobody behind
    if (getppid() != parent) _exit(127);
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execv(list.front(), list.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  in_fd_ = in[1];
  out_fd_ = out[0];
}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {in_fd_, out_fd_})
    if (fd >= 0) close(fd);
}

void Child::write(const std::string& text) const {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(in_fd_, text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    REQUIRE(wrote > 0);
    at += static_cast<std::size_t>(wrote);
  }
}

std::string Child::read_line() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    if (const auto end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd look{out_fd_, POLLIN, 0};
    REQUIRE_MESSAGE(left > 0, "no answer in time");
    if (poll(&look, 1, static_cast<int>(left)) <= 0) continue;
    std::array<char, 4'096> part;
    const ssize_t got = read(out_fd_, part.data(), part.size());
    REQUIRE_MESSAGE(got > 0, "the process has ended");
    pending_.append(part.data(), static_cast<std::size_t>(got));
  }
}

void Child::signal(int number) const { kill(pid_, number); }

bool Child::stopped() const { return field_of(pid_, "status", "State:").find('T') != std::string::npos; }

void Child::stop() {
  signal(SIGSTOP);
  REQUIRE(eventually([&] { return stopped(); }));
}

void Child::kill9() {
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int Child::finish() {
  if (in_fd_ >= 0) close(in_fd_);
  in_fd_ = -1;
  int status = 0;
  REQUIRE(eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }));
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::uint64_t Child::resident_bytes() const {
  // Without what it shares: the arena is no memory of its own.
  return std::stoull("0" +
                     [&] {
                       std::string text = field_of(pid_, "status", "RssAnon:");
                       return text.substr(std::min(text.size(), text.find_first_of("0123456789")));
                     }()) *
         1024;
}

Daemon::Daemon(const Folder& folder, std::vector<std::string> more)
    : Child(KVONCED_PROGRAM, [&] {
        std::vector<std::string> arguments{"--socket", folder / "store"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        // A flag that comes twice is refused. Samples are compared only where a test asks for it.
        for (const auto& [flag, value] : std::map<std::string, std::string>{{"--memory", "64MiB"},
                                                                            {"--populate", "no"},
                                                                            {"--index-pages", "16384"},
                                                                            {"--huge-pages", "no"},
                                                                            {"--log-level", "error"},
                                                                            {"--verify-sample", "0"}})
          if (std::find(arguments.begin(), arguments.end(), flag) == arguments.end())
            arguments.insert(arguments.end(), {flag, value});
        return arguments;
      }()) {
  const std::string line = read_line();
  REQUIRE_MESSAGE(line.find("is ready") != std::string::npos, line);
}

std::uint64_t Answer::operator[](const std::string& name) const {
  const auto at = fields.find(name);
  INFO(text);
  REQUIRE(at != fields.end());
  return std::stoull(at->second);
}

Rank::Rank(const Folder& folder, const std::string& start, const std::string& setup) : Rank() {
  const Answer started =
      ask("start " + (start.find("serve=") == std::string::npos ? "store=" + folder.store() + " " : "") + start);
  REQUIRE_MESSAGE(started.error.empty(), started.text);
  if (setup == "none") return;
  const Answer made = ask("setup " + setup);
  REQUIRE_MESSAGE(made.error.empty(), made.text);
}

Answer Rank::hear() {
  Answer answer;
  answer.text = read_line();
  std::istringstream words(answer.text);
  for (std::string field; words >> field;) {
    const auto at = field.find('=');
    if (at == std::string::npos) continue;
    if (field.starts_with("error=")) {
      answer.error = field.substr(6);
      break;
    }
    answer.fields[field.substr(0, at)] = field.substr(at + 1);
  }
  return answer;
}

std::uint64_t Rank::load_back(const std::string& what) {
  const Answer found = ask("lookup " + what);
  if (!found.error.empty()) return 0;
  const auto count = found["pages"];
  if (count == 0) return 0;
  const std::string lease = " lease=" + found.fields.at("lease");
  // The last field counts.
  const Answer loaded = ask("load " + what + lease + " count=" + std::to_string(count));
  CHECK_MESSAGE(loaded.error.empty(), loaded.text);
  CHECK_MESSAGE(loaded["wrong"] == 0, loaded.text);
  ask("release" + lease);
  return loaded["good"];
}

bool eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // leaves the processor to whom it waits for
  }
  return true;
}

}  // namespace kvonce::process_test
