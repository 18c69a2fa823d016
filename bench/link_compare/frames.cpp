// SPDX-License-Identifier: Apache-2.0
//
// Over the control link, with the same frames as the store speaks.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>

#include "bench/link_compare/compare.hpp"
#include "messages/frames.hpp"
#include "transport/link_client.hpp"
#include "transport/link_server.hpp"

namespace kvonce::bench::link_compare {
namespace {

using namespace transport;  // NOLINT
using Clock = std::chrono::steady_clock;
using messages::FrameAssembler;
using messages::FrameHead;
using messages::FrameKind;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(2);
}

template <class T>
bool say(Link& link, FrameKind kind, std::uint64_t id, const T& x) {
  FrameHead head;
  head.kind = static_cast<std::uint8_t>(kind);
  head.id = id;
  return messages::send_frames(head, 0, x, [&link](std::string_view frame) { return link.send(frame); });
}

// Hands whole messages to `f(head, payload)`.
template <class F>
bool take_message(FrameAssembler& assembler, std::string_view frame, F f) {
  FrameHead head;
  std::string_view payload;
  const auto status = assembler.take(frame, &head, &payload);
  return status == FrameAssembler::Status::part || (status == FrameAssembler::Status::whole && f(head, payload));
}

bool answer(Link& link, FrameAssembler& assembler, std::string_view frame) {
  return take_message(assembler, frame, [&link](const FrameHead& head, std::string_view payload) {
    if (static_cast<FrameKind>(head.kind) == FrameKind::flush_ask) {
      protocol::FlushAsk ask;
      if (!messages::decode(payload, ask)) return false;
      return say(link, FrameKind::flush_answer, head.id, protocol::FlushAnswer{ask.token, Reason::none});
    }
    protocol::PutBatch batch;
    return messages::decode(payload, batch) && say(link, FrameKind::store_reply, head.id, batch_answer(batch));
  });
}

void serve(const std::string& path, const Load& load, const std::function<void()>& serve_requests) {
  LinkServerConfig config;
  config.path = path;
  config.spin = load.spin;
  FrameAssembler assembler;
  LinkServerCallbacks callbacks;
  callbacks.greet = [](const Hello&, const PeerProcess&) {
    Greeting greeting;
    greeting.welcome.emplace();
    return greeting;
  };
  callbacks.frame = [&assembler](Link& link, std::string_view frame) { return answer(link, assembler, frame); };
  LinkServer::Started started = LinkServer::start(std::move(config), std::move(callbacks));
  if (!started.server) fail(started.error.text);
  serve_requests();
  started.server->stop();
}

// Asks from the thread that reads, as an actor would: the next question is sent in the handler of an answer.
class Asker {
 public:
  Asker(Link& link, const Load& load) : link_(link), load_(load) {}

  void begin(bool in_batches, std::uint64_t count) {
    in_batches_ = in_batches;
    left_to_ask_ = left_to_hear_ = count;
    latency_us_.clear();
    latency_us_.reserve(in_batches ? 0 : count);
    done_ = std::promise<void>{};
    for (std::uint64_t i = 0; i < (in_batches ? load_.batches_in_flight : 1); ++i) ask();
  }
  std::future<void> done() { return done_.get_future(); }

  bool hear(std::string_view frame) {
    return take_message(assembler_, frame, [this](const FrameHead&, std::string_view payload) {
      if (in_batches_) {
        protocol::StoreReply reply;
        if (!messages::decode(payload, reply)) return false;
      } else {
        protocol::FlushAnswer reply;
        if (!messages::decode(payload, reply)) return false;
        latency_us_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - asked_).count());
      }
      if (--left_to_hear_ == 0) done_.set_value();
      ask();
      return true;
    });
  }
  std::vector<double> take_latency() { return std::move(latency_us_); }

 private:
  void ask() {
    if (left_to_ask_ == 0) return;
    const std::uint64_t number = left_to_ask_--;
    if (in_batches_) {
      say(link_, FrameKind::put_batch, 1, batch_ask(number, load_.keys_per_batch));
    } else {
      asked_ = Clock::now();
      say(link_, FrameKind::flush_ask, 1, small_ask(number));
    }
  }

  Link& link_;
  const Load& load_;
  FrameAssembler assembler_;
  bool in_batches_ = false;
  std::uint64_t left_to_ask_ = 0;
  std::uint64_t left_to_hear_ = 0;
  Clock::time_point asked_;
  std::vector<double> latency_us_;
  std::promise<void> done_;
};

}  // namespace

Result measure_link(const Load& load) {
  std::string folder = (std::filesystem::temp_directory_path() / "kvonce-compare-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) fail("a temporary folder cannot be made");
  const std::string path = folder + "/s";
  Result result;
  {
    Partner partner{[&](int, const std::function<void()>& serve_requests) { serve(path, load, serve_requests); }};
    partner.wait_until_ready();
    Hello hello;
    std::random_device random;
    hello.client = random() | 1ULL;
    hello.nonce = random();
    hello.engine_id = "compare";
    Connected connected = connect_link(path, hello, Clock::now() + std::chrono::seconds{10});
    if (!connected.link) fail(connected.error.text);
    Asker asker{*connected.link, load};
    LinkReader reader{connected.link,
                      [&asker](std::string_view frame) { return asker.hear(frame); },
                      {},
                      [](LinkEnd end) {
                        if (end != LinkEnd::closed_here) fail(std::string("the link has ended: ") + transport::to_string(end));
                      },
                      load.spin};
    // Nothing is under way between two parts, so the first question of each may be asked from here.
    const auto part = [&](bool in_batches, std::uint64_t count) {
      Figures figures;
      const double cpu = process_cpu_seconds() + partner.cpu_seconds();
      const auto begun = Clock::now();
      asker.begin(in_batches, count);
      asker.done().wait();
      figures.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
      figures.cpu_seconds = process_cpu_seconds() + partner.cpu_seconds() - cpu;
      figures.latency_us = asker.take_latency();
      figures.messages = count;
      return figures;
    };
    part(false, load.round_trips / 10 + 1);
    result.round_trips = part(false, load.round_trips);
    part(true, load.batches / 10 + load.batches_in_flight);
    result.batches = part(true, load.batches);
    reader.stop();
  }
  std::filesystem::remove_all(folder);
  return result;
}

}  // namespace kvonce::bench::link_compare
