// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "bench/link_compare/compare.hpp"

namespace kvonce::bench::link_compare {

double process_cpu_seconds() {
  struct timespec now {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

protocol::FlushAsk small_ask(std::uint64_t number) { return {number, AckLevel::memory}; }

protocol::PutBatch batch_ask(std::uint64_t number, std::uint64_t keys) {
  protocol::PutBatch batch;
  batch.sender = 1;
  batch.batch = number;
  batch.ns = 1;
  batch.pages.resize(keys);
  batch.items.resize(keys);
  for (std::uint32_t i = 0; i < keys; ++i) {
    batch.pages[i].hash.words = {number, i, ~number, i};
    batch.items[i].item = i;
    batch.items[i].page = i;
    batch.items[i].bytes = 4096;
  }
  return batch;
}

protocol::StoreReply batch_answer(const protocol::PutBatch& batch) {
  protocol::StoreReply reply;
  reply.verdicts.resize(batch.items.size());
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    reply.verdicts[i].batch = batch.batch;
    reply.verdicts[i].item = batch.items[i].item;
    reply.verdicts[i].verdict = Verdict::already_stored;
  }
  return reply;
}

Partner::Partner(const Body& body) {
  int sockets[2];
  int controls[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0 ||
      ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, controls) != 0 || (pid_ = ::fork()) < 0) {
    std::perror("a partner process cannot be started");
    std::exit(2);
  }
  socket_ = transport::UniqueFd{sockets[pid_ == 0 ? 1 : 0]};
  control_ = transport::UniqueFd{controls[pid_ == 0 ? 1 : 0]};
  ::close(sockets[pid_ == 0 ? 0 : 1]);
  ::close(controls[pid_ == 0 ? 0 : 1]);
  if (pid_ != 0) return;
  body(socket_.release(), [this] {
    char word = 0;
    while (::recv(control_.get(), &word, 1, 0) == 1) {
      const double seconds = process_cpu_seconds();
      if (::send(control_.get(), &seconds, sizeof(seconds), MSG_NOSIGNAL) < 0) break;
    }
  });
  std::_Exit(0);
}

Partner::~Partner() {
  control_.reset();
  socket_.reset();
  ::waitpid(pid_, nullptr, 0);
}

double Partner::ask(char word) {
  double seconds = 0;
  if (::send(control_.get(), &word, 1, MSG_NOSIGNAL) != 1 || ::recv(control_.get(), &seconds, sizeof(seconds), 0) <= 0) {
    std::fprintf(stderr, "the partner process has ended\n");
    std::exit(2);
  }
  return seconds;
}
void Partner::wait_until_ready() { ask('r'); }
double Partner::cpu_seconds() { return ask('c'); }

}  // namespace kvonce::bench::link_compare
