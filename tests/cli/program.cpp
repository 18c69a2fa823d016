// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/program.hpp"

#include <array>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvonce::cli_test {
namespace {

std::vector<char*> argument_list(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words)
    out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

/// The child's side: `input`, `out` and `err` become its standard streams. Everything else is closed at exec (O_CLOEXEC).
pid_t spawn(const std::vector<std::string>& arguments, int input, int out, int err) {
  std::vector<std::string> words{KVONCE_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> list = argument_list(words);
  const pid_t child = fork();
  if (child == 0) {
    dup2(input, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(list.front(), list.data());
    _exit(127);
  }
  return child;
}

std::string read_all(int from) {
  std::string out;
  std::array<char, 65'536> part;
  for (;;) {
    const ssize_t got = read(from, part.data(), part.size());
    if (got <= 0)
      return out;  // a terminal's other end gone is EIO
    out.append(part.data(), static_cast<std::size_t>(got));
  }
}

void write_all(int to, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = ::write(to, text.data() + done, text.size() - done);
    if (put <= 0)
      return;  // the program has ended: what it says is the test's business
    done += static_cast<std::size_t>(put);
  }
}

int exit_status(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Pipe {
  Pipe() { ready = pipe2(ends.data(), O_CLOEXEC) == 0; }
  std::array<int, 2> ends{-1, -1};
  bool ready = false;
};

}  // namespace

ProgramResult run_program(const std::vector<std::string>& arguments, const std::string& input) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe in;
  Pipe out;
  Pipe err;
  if (!in.ready || !out.ready || !err.ready)
    return {};
  const pid_t child = spawn(arguments, in.ends[0], out.ends[1], err.ends[1]);
  close(in.ends[0]);
  close(out.ends[1]);
  close(err.ends[1]);
  ProgramResult result;
  std::thread feeder([&] {
    write_all(in.ends[1], input);
    close(in.ends[1]);
  });
  std::thread listener([&] { result.err = read_all(err.ends[0]); });
  result.out = read_all(out.ends[0]);
  feeder.join();
  listener.join();
  close(out.ends[0]);
  close(err.ends[0]);
  result.exit_status = exit_status(child);
  return result;
}

std::string prompt_line(std::size_t first, std::size_t pages) {
  std::string ids;
  for (std::size_t i = first; i < first + pages; ++i)
    ids += std::to_string(i) + ',';
  // The partial page's id never comes again.
  return R"({"timestamp":0,"input_length":)" + std::to_string(pages * 512 + 100) + R"(,"output_length":10,"hash_ids":[)" + ids +
         std::to_string(1'000'000 + first + pages) + "]}\n";
}

std::string growing_trace(std::size_t requests) {
  std::string out;
  for (std::size_t i = 0; i < requests; ++i)
    out += prompt_line(0, i + 1);
  return out;
}

LiveProgram::LiveProgram(const std::vector<std::string>& arguments) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe in;
  Pipe out;
  int terminal_end = -1;
  openpty(&terminal_, &terminal_end, nullptr, nullptr, nullptr);
  fcntl(terminal_, F_SETFD, FD_CLOEXEC);
  fcntl(terminal_end, F_SETFD, FD_CLOEXEC);
  process_ = spawn(arguments, in.ends[0], out.ends[1], terminal_end);
  close(in.ends[0]);
  close(out.ends[1]);
  close(terminal_end);
  input_ = in.ends[1];
  out_ = out.ends[0];
}

LiveProgram::~LiveProgram() {
  if (process_ > 0)
    finish();
}

void LiveProgram::write(const std::string& text) {
  write_all(input_, text);
}

bool LiveProgram::wait_for_terminal(const std::string& text) {
  std::array<char, 4'096> part;
  while (seen_.find(text) == std::string::npos) {
    const ssize_t got = read(terminal_, part.data(), part.size());
    if (got <= 0)
      return false;
    seen_.append(part.data(), static_cast<std::size_t>(got));
  }
  return true;
}

void LiveProgram::signal(int number) {
  kill(process_, number);
}

ProgramResult LiveProgram::finish() {
  ProgramResult result;
  result.out = read_all(out_);
  result.err = seen_ + read_all(terminal_);
  close(input_);
  close(out_);
  close(terminal_);
  result.exit_status = exit_status(process_);
  process_ = -1;
  return result;
}

}  // namespace kvonce::cli_test
