// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/command.hpp"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <string>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "telemetry/log.hpp"

namespace kvonce::apps {
namespace {

volatile std::sig_atomic_t interrupts = 0;
pthread_t main_thread;
int null_input = -1;

// Only calls that are safe in a signal handler. A read of standard input that has begun is ended by the signal when it reaches
// the thread that reads; one that is about to begin finds /dev/null in its place. So no trace that comes slowly can hold up the
// end.
void on_interrupt(int number) {
  if (pthread_equal(pthread_self(), main_thread) == 0) {
    pthread_kill(main_thread, number);
    return;
  }
  if (interrupts != 0)
    _exit(128 + number);
  interrupts = 1;
  if (null_input >= 0)
    dup2(null_input, STDIN_FILENO);
}

}  // namespace

std::string not_empty(const std::string& text) { return text.empty() ? "is empty: must be 1 to 255 bytes" : ""; }

void add_output_options(CLI::App& command, OutputOptions& options) {
  command
      .add_option_function<std::string>(
          "--format", [&options](const std::string& text) { options.format = text == "json" ? OutputFormat::json : OutputFormat::text; },
          "text or json")
      ->option_text("text|json")
      ->check(CLI::IsMember({"text", "json"}));
  command.add_flag_callback(
      "--json", [&options] { options.format = OutputFormat::json; }, "Same as --format json");
  command.add_flag("-q,--quiet", options.quiet, "No output but errors: the exit status tells");
}

void print_line(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  std::va_list again;
  va_copy(again, values);
  const int bytes = std::vsnprintf(nullptr, 0, format, values);
  std::string line(static_cast<std::size_t>(bytes < 0 ? 0 : bytes), '\0');
  std::vsnprintf(line.data(), line.size() + 1, format, again);
  va_end(again);
  va_end(values);
  line = telemetry::printable(line) + '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
}

int tell_error(std::string_view command, std::string_view text) {
  std::fprintf(stderr, "kvonce%s%.*s: %s\n", command.empty() ? "" : " ", static_cast<int>(command.size()), command.data(),
               telemetry::printable(text).c_str());
  return kExitUsage;
}

void catch_interrupts() {
  main_thread = pthread_self();
  null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a blocked read has to end
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() noexcept {
  return interrupts != 0;
}

}  // namespace kvonce::apps
