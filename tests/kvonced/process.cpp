// SPDX-License-Identifier: Apache-2.0
#include "tests/kvonced/process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/auto_store.hpp"

extern char** environ;

namespace kvonce::kvonced_test {
namespace {

constexpr std::chrono::seconds kPatience{60};

int exit_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

int abstract_or_path(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (name.size() >= sizeof address.sun_path) return 0;
  std::memcpy(address.sun_path, name.data(), name.size());
  const bool abstract = name.starts_with('@');
  if (abstract) address.sun_path[0] = '\0';
  return static_cast<int>(offsetof(sockaddr_un, sun_path) + name.size() + (abstract ? 0 : 1));
}

}  // namespace

RunFolder::RunFolder() {
  std::signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::string name = (std::filesystem::temp_directory_path() / "kvonced-test-XXXXXX").string();
  if (mkdtemp(name.data()) != nullptr) path_ = name;
  setenv("XDG_RUNTIME_DIR", path_.c_str(), 1);
  for (const char* const variable : {"KVONCED_CONFIG", "KVONCE_KVONCED", "NOTIFY_SOCKET"}) unsetenv(variable);
}

RunFolder::~RunFolder() {
  if (const auto holder = runtime::store_holder(socket()); holder.held && holder.pid != 0 && static_cast<pid_t>(holder.pid) != getpid()) {
    const auto pid = static_cast<pid_t>(holder.pid);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  while (waitpid(-1, nullptr, WNOHANG) > 0) {}
  unsetenv("XDG_RUNTIME_DIR");
  std::error_code code;
  if (!path_.empty()) std::filesystem::remove_all(path_, code);
}

Process::Process(const std::string& program, const std::vector<std::string>& arguments, const Environment& environment) {
  std::array<int, 2> in{-1, -1};
  std::array<int, 2> to_out{-1, -1};
  std::array<int, 2> to_err{-1, -1};
  if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(to_out.data(), O_CLOEXEC) != 0 || pipe2(to_err.data(), O_CLOEXEC) != 0) return;
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(to_out[1], STDOUT_FILENO);
    dup2(to_err[1], STDERR_FILENO);
    for (const auto& [name, value] : environment) value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    execv(list.front(), list.data());
    _exit(127);
  }
  close(in[0]);
  close(to_out[1]);
  close(to_err[1]);
  in_fd_ = in[1];
  out_fd_ = to_out[0];
  err_fd_ = to_err[0];
}

Process::Process(Process&& other) noexcept
    : out(std::move(other.out)), err(std::move(other.err)), pid_(std::exchange(other.pid_, -1)), in_fd_(std::exchange(other.in_fd_, -1)),
      out_fd_(std::exchange(other.out_fd_, -1)), err_fd_(std::exchange(other.err_fd_, -1)) {}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {in_fd_, out_fd_, err_fd_}) {
    if (fd >= 0) close(fd);
  }
}

bool Process::wait_stream(int fd, std::string& seen, const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (seen.find(text) == std::string::npos) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd wait{fd, POLLIN, 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return false;
    std::array<char, 4'096> part;
    const ssize_t got = read(fd, part.data(), part.size());
    if (got <= 0) return false;
    seen.append(part.data(), static_cast<std::size_t>(got));
  }
  return true;
}

void Process::signal(int number) const { kill(pid_, number); }

void Process::close_input() {
  if (in_fd_ >= 0) close(in_fd_);
  in_fd_ = -1;
}

int Process::finish() {
  close_input();
  const std::string never(1, '\0');
  std::thread errors([&] { wait_stream(err_fd_, err, never); });
  wait_stream(out_fd_, out, never);
  errors.join();
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return exit_status(status);
}

Ended run(const std::string& program, const std::vector<std::string>& arguments, const Environment& environment) {
  Process process(program, arguments, environment);
  Ended ended;
  ended.status = process.finish();
  ended.out = process.out;
  ended.err = process.err;
  return ended;
}

std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> arguments{"--memory", "64MiB", "--populate", "no"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

bool eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});  // leaves the processor to whom it waits for
  }
  return true;
}

void write_file(const std::string& path, const std::string& text, int mode) {
  std::ofstream(path, std::ios::trunc) << text;
  chmod(path.c_str(), static_cast<mode_t>(mode));
}

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::size_t occurrences(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

HeldLock::HeldLock(const std::string& path, const std::string& text)
    : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)), held_(fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0) {
  if (held_ && !text.empty()) held_ = ftruncate(fd_, 0) == 0 && pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

HeldLock::~HeldLock() {
  if (fd_ >= 0) close(fd_);
}

FullPipe::FullPipe(const std::string& path)
    : fd_(mkfifo(path.c_str(), 0600) == 0 ? open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1) {
  const std::string much(65'536, 'x');
  while (write(fd_, much.data(), much.size()) > 0) {}
  while (write(fd_, much.data(), 1) > 0) {}
}

FullPipe::~FullPipe() {
  if (fd_ >= 0) close(fd_);
}

BoundSocket::BoundSocket(const std::string& name, int type) : fd_(socket(AF_UNIX, type | SOCK_CLOEXEC, 0)), ready_(false) {
  sockaddr_un address;
  const int size = abstract_or_path(name, address);
  ready_ = bind(fd_, reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(size)) == 0 &&
           (type == SOCK_DGRAM || listen(fd_, 16) == 0);
}

BoundSocket::~BoundSocket() { close(fd_); }

std::string BoundSocket::receive() const {
  pollfd wait{fd_, POLLIN, 0};
  if (poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) <= 0) return {};
  std::array<char, 4'096> text;
  const ssize_t got = recv(fd_, text.data(), text.size(), 0);
  return got <= 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(got));
}

int connect_to(const std::string& path) {
  sockaddr_un address;
  const int size = abstract_or_path(path, address);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(size)) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace kvonce::kvonced_test
