// SPDX-License-Identifier: Apache-2.0
//
// The same typed messages between two processes of this host, once over CAF's network layer, once over the control link.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocol/wire.hpp"
#include "transport/fd.hpp"

namespace kvonce::bench::link_compare {

struct Load {
  std::uint64_t round_trips = 20'000;
  std::uint64_t batches = 40'000;
  std::uint64_t keys_per_batch = 32;
  std::uint64_t batches_in_flight = 64;
  std::chrono::microseconds spin{0};  // of both ends of the link
};

// Of one way, and one kind of message. A message here is a question together with its answer.
struct Figures {
  std::vector<double> latency_us;
  double seconds = 0;
  double cpu_seconds = 0;  // of both processes
  std::uint64_t messages = 0;
};

struct Result {
  Figures round_trips;  // one at a time, a few bytes
  Figures batches;      // many in flight, of some keys each
};

Result measure_basp(const Load& load);
Result measure_link(const Load& load);

// CPU time of this process so far, user and system; seconds.
double process_cpu_seconds();

// What is asked and answered; the same for both.
protocol::FlushAsk small_ask(std::uint64_t number);
protocol::PutBatch batch_ask(std::uint64_t number, std::uint64_t keys);
protocol::StoreReply batch_answer(const protocol::PutBatch& batch);

// The process that answers. It is forked before this one has any threads, runs `body` until it is told to stop, and tells the
// CPU time of its own when asked.
class Partner {
 public:
  // `body` starts what answers and calls `serve_requests`, which returns when the partner is to stop.
  using Body = std::function<void(int socket, const std::function<void()>& serve_requests)>;
  explicit Partner(const Body& body);
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  int socket() const { return socket_.get(); }  // this end of a pair; the body has the other
  int give_socket() { return socket_.release(); }
  void wait_until_ready();
  double cpu_seconds();

 private:
  double ask(char word);

  pid_t pid_ = -1;
  transport::UniqueFd socket_;
  transport::UniqueFd control_;
};

}  // namespace kvonce::bench::link_compare
