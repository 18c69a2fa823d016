// SPDX-License-Identifier: Apache-2.0
//
// Over CAF's network layer, on a connected Unix socket that is handed to it: the fastest that it can be had on one host.
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/io/basp_broker.hpp>
#include <caf/io/network/default_multiplexer.hpp>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <set>

#include "bench/link_compare/compare.hpp"
#include "messages/actors.hpp"
#include "messages/system_config.hpp"

namespace kvonce::bench::link_compare {
namespace {

using Clock = std::chrono::steady_clock;
using AnswerActor = compat::Interface<protocol::FlushAnswer(protocol::FlushAsk), protocol::StoreReply(protocol::PutBatch)>;

constexpr std::uint16_t kPort = 1;  // a name only: no port is opened
constexpr std::chrono::seconds kPatience{30};

class Config : public compat::ActorSystemConfig {
 public:
  Config() {
    load<caf::io::middleman>();
    messages::register_messages(*this);
    set("middleman.workers", std::size_t{0});
  }
};

caf::actor basp_of(caf::actor_system& system) { return system.middleman().named_broker<caf::io::basp_broker>(caf::atom("BASP")); }

AnswerActor::behavior_type answerer() {
  return {
      [](const protocol::FlushAsk& ask) {
        return protocol::FlushAnswer{ask.token, Reason::none};
      },
      [](const protocol::PutBatch& batch) { return batch_answer(batch); },
  };
}

void serve(int socket, const std::function<void()>& serve_requests) {
  Config config;
  caf::actor_system system{config};
  const auto actor = system.spawn(answerer);
  caf::anon_send(basp_of(system), caf::publish_atom::value, system.middleman().backend().new_scribe(socket), kPort,
                 caf::actor_cast<caf::strong_actor_ptr>(actor), system.message_types(caf::detail::type_list<AnswerActor>{}));
  serve_requests();
  std::_Exit(0);  // nothing is worth an orderly end of the network layer here
}

struct AskState {
  std::uint64_t left_to_ask = 0;
  std::uint64_t left_to_hear = 0;
};

// The next question is sent in the handler of an answer.
struct Asking {
  AnswerActor whom;
  bool in_batches = false;
  std::uint64_t keys = 0;
  std::uint64_t in_flight = 1;
  std::uint64_t count = 0;
  std::vector<double>* latency_us = nullptr;
  std::promise<void>* done = nullptr;
};

void ask(caf::stateful_actor<AskState>* self, const Asking& asking) {
  if (self->state.left_to_ask == 0) return;
  const std::uint64_t number = self->state.left_to_ask--;
  const auto heard = [self, asking] {
    if (--self->state.left_to_hear == 0) {
      asking.done->set_value();
      self->quit();
      return;
    }
    ask(self, asking);
  };
  const auto failed = [](caf::error&) {
    std::fprintf(stderr, "a question over BASP was not answered\n");
    std::_Exit(2);
  };
  if (asking.in_batches) {
    self->request(asking.whom, kPatience, batch_ask(number, asking.keys))
        .then([heard](const protocol::StoreReply&) { heard(); }, failed);
    return;
  }
  const auto asked = Clock::now();
  self->request(asking.whom, kPatience, small_ask(number))
      .then(
          [heard, asked, asking](const protocol::FlushAnswer&) {
            asking.latency_us->push_back(std::chrono::duration<double, std::micro>(Clock::now() - asked).count());
            heard();
          },
          failed);
}

caf::behavior asker(caf::stateful_actor<AskState>* self, const Asking& asking) {
  self->state.left_to_ask = self->state.left_to_hear = asking.count;
  for (std::uint64_t i = 0; i < asking.in_flight; ++i) ask(self, asking);
  return {[](caf::unit_t) {}};
}

}  // namespace

Result measure_basp(const Load& load) {
  Partner partner{serve};
  partner.wait_until_ready();
  Config config;
  caf::actor_system system{config};
  AnswerActor whom;
  {
    caf::scoped_actor self{system};
    self->request(basp_of(system), kPatience, caf::connect_atom::value,
                  system.middleman().backend().new_scribe(partner.give_socket()), kPort)
        .receive([&](caf::node_id&, caf::strong_actor_ptr& found,
                     std::set<std::string>&) { whom = caf::actor_cast<AnswerActor>(found); },
                 [](caf::error&) {});
  }
  if (!whom) {
    std::fprintf(stderr, "BASP does not connect\n");
    std::_Exit(2);
  }
  Result result;
  const auto part = [&](bool in_batches, std::uint64_t count) {
    Figures figures;
    std::promise<void> done;
    Asking asking;
    asking.whom = whom;
    asking.in_batches = in_batches;
    asking.keys = load.keys_per_batch;
    asking.in_flight = in_batches ? load.batches_in_flight : 1;
    asking.count = count;
    asking.latency_us = &figures.latency_us;
    asking.done = &done;
    const double cpu = process_cpu_seconds() + partner.cpu_seconds();
    const auto begun = Clock::now();
    system.spawn(asker, asking);
    done.get_future().wait();
    figures.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    figures.cpu_seconds = process_cpu_seconds() + partner.cpu_seconds() - cpu;
    figures.messages = count;
    return figures;
  };
  part(false, load.round_trips / 10 + 1);
  result.round_trips = part(false, load.round_trips);
  part(true, load.batches / 10 + load.batches_in_flight);
  result.batches = part(true, load.batches);
  caf::anon_send_exit(whom, caf::exit_reason::user_shutdown);
  return result;
}

}  // namespace kvonce::bench::link_compare
