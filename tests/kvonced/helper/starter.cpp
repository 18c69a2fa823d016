// SPDX-License-Identifier: Apache-2.0
//
// What an engine process does with store = "auto", as far as finding or starting the store: says that it is there, waits until its
// standard input ends, then finds or starts, and tells what came of it as JSON.
//   kvonced_starter CONNECT_TIMEOUT_MS [KVONCED_PATH]
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/auto_store.hpp"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  // An engine has descriptors that exec would pass on, ignores signals and blocks others: none of it may reach the store.
  int inherited[2];
  if (pipe(inherited) != 0) return 2;
  const int kept = fcntl(inherited[1], F_DUPFD, 50);  // out of the way of the few that the store is given
  close(inherited[1]);
  std::signal(SIGHUP, SIG_IGN);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);

  std::puts("here");
  std::fflush(stdout);
  char ignored[16];
  while (read(STDIN_FILENO, ignored, sizeof ignored) > 0) {}

  kvonce::RuntimeConfig config;
  config.connect_timeout = std::chrono::milliseconds(std::atol(argv[1]));
  config.auto_bytes = 64ULL << 20;
  if (argc > 2) config.kvonced_path = argv[2];
  const auto store = kvonce::runtime::find_or_start_store(config, std::chrono::steady_clock::now() + config.connect_timeout);

  close(kept);
  fcntl(inherited[0], F_SETFL, O_NONBLOCK);
  const bool alone = read(inherited[0], ignored, 1) == 0;  // the end: nobody else has the other end
  const bool childless = waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
  const nlohmann::json out{{"store", store.value}, {"error", store.error.text}, {"descriptors_kept", alone}, {"childless", childless}};
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return store ? 0 : 1;
}
