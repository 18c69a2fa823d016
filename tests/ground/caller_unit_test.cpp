// SPDX-License-Identifier: Apache-2.0
// A plain thread runs actors itself: on its own thread, never two threads in one actor, no message lost, leftovers finished.
#include "messages/caller_unit.hpp"

#include "messages/compat.hpp"
#include "messages/system_config.hpp"
#include "messages/tsan_order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ground_test {

struct Count {
  std::uint32_t sender = 0;
  std::uint32_t number = 0;
};

template <class Inspector>
auto inspect(Inspector& f, Count& x) {
  return kvonce::compat::fields(f, x, "Count", kvonce::compat::field("sender", x.sender),
                                kvonce::compat::field("number", x.number));
}

// Answered through a promise of the asker's, whose address it carries: a blocking actor's mailbox lies in the uninstrumented
// libcaf, and TSan would not see that the answer comes after the question.
struct AskTotal {
  std::uint64_t promise_address = 0;
};

template <class Inspector>
auto inspect(Inspector& f, AskTotal& x) {
  return kvonce::compat::fields(f, x, "AskTotal", kvonce::compat::field("promise_address", x.promise_address));
}

void answer(const AskTotal& question, std::uint64_t value) {
  reinterpret_cast<std::promise<std::uint64_t>*>(question.promise_address)->set_value(value);
}

template <class Handle>
std::uint64_t ask_total(const Handle& actor) {
  std::promise<std::uint64_t> promise;
  kvonce::compat::anon_tell(actor, AskTotal{reinterpret_cast<std::uint64_t>(&promise)});
  return promise.get_future().get();
}

enum class Trouble : std::uint8_t { kNone = 0, kFull = 1 };

std::string to_string(Trouble code) { return code == Trouble::kFull ? "the store is full" : "no trouble"; }

}  // namespace ground_test

KVONCE_BEGIN_TYPES(ground_test, 900)
KVONCE_TYPE(ground_test, ground_test::Count)
KVONCE_TYPE(ground_test, ground_test::AskTotal)
KVONCE_END_TYPES(ground_test)
KVONCE_ERROR_ENUM(ground_test::Trouble, "gtrouble")

namespace ground_test {

using kvonce::compat::ActorSystemConfig;
using kvonce::compat::CallerUnit;

using Counter = kvonce::compat::Interface<void(Count), void(AskTotal)>;

constexpr std::size_t kSenders = 4;

// What the actors saw. Written by whoever runs them, read by the test after the system's end.
struct Observed {
  std::atomic<int> inside{0};
  std::atomic<std::uint64_t> overlaps{0};
  std::atomic<std::uint64_t> messages{0};
  std::atomic<std::uint64_t> out_of_order{0};
  std::atomic<std::thread::id> last_thread{};
};

struct CounterState {
  // Not atomic on purpose: TSan reports when two threads run the actor without order.
  std::uint64_t messages = 0;
  std::array<std::uint32_t, kSenders> next{};
  Counter behind;
};

// Counts, and passes every message on to `behind` when there is one.
class CounterActor : public caf::stateful_actor<CounterState, kvonce::compat::TsanOrdered<Counter::base>> {
 public:
  CounterActor(caf::actor_config& config, Observed* seen, Counter behind) : stateful_actor(config), seen_(seen) {
    kvonce::compat::state_of(this).behind = std::move(behind);
  }

  Counter::behavior_type make_behavior() override {
    return {
        [this](const Count& message) { count(message); },
        [this](const AskTotal& question) { answer(question, kvonce::compat::state_of(this).messages); },
    };
  }

 private:
  void count(const Count& message) {
    if (seen_->inside.fetch_add(1, std::memory_order_relaxed) != 0) {
      ++seen_->overlaps;
    }
    auto& mine = kvonce::compat::state_of(this);
    ++mine.messages;
    if (message.number != mine.next[message.sender]) {
      ++seen_->out_of_order;
    }
    mine.next[message.sender] = message.number + 1;
    seen_->last_thread = std::this_thread::get_id();
    if (mine.behind) {
      kvonce::compat::tell(this, mine.behind, message);
    }
    ++seen_->messages;
    seen_->inside.fetch_sub(1, std::memory_order_relaxed);
  }

  Observed* seen_;
};

// Brings actors to rest for certain: a turn on this thread has ended with an empty mailbox. An answer alone does not do, the
// worker that gave it may still be leaving the actor. `sent` counts the messages of sender 0 to `front`.
void bring_to_rest(caf::actor_system& system, const Counter& front, const Counter& back, std::uint32_t& sent) {
  // A worker that is slow to leave costs some hundred tries on a loaded machine.
  for (int tries = 0; tries < 100'000; ++tries) {
    REQUIRE(ask_total(front) == sent);
    if (back) {
      REQUIRE(ask_total(back) == sent);
    }
    auto unit = CallerUnit::borrow(system);
    unit->tell(front, Count{0, sent++});
    if (unit->queued() == 0) {
      continue;
    }
    const auto outcome = unit->run({.jobs_max = 8, .duration_max = std::chrono::seconds{60}});
    if (outcome.jobs == (back ? 2U : 1U)) {
      return;
    }
  }
  FAIL("no message ever ran on this thread");
}

TEST_CASE("a message sent through a caller's unit is handled on the caller's thread") {
  ActorSystemConfig config;
  kvonce::compat::register_types<caf::id_block::ground_test>(config);
  caf::actor_system system{config};
  Observed seen_front;
  Observed seen_back;
  {
    const Counter back = system.spawn<CounterActor>(&seen_back, Counter{});
    const Counter front = system.spawn<CounterActor>(&seen_front, back);
    std::uint32_t sent = 0;
    bring_to_rest(system, front, back, sent);
    auto unit = CallerUnit::borrow(system);
    unit->tell(front, Count{0, sent++});
    CHECK(unit->queued() == 1);
    const auto outcome = unit->run({.jobs_max = 8, .duration_max = std::chrono::seconds{60}});
    CHECK(outcome.jobs == 2);
    CHECK(outcome.handed_over == 0);
    CHECK(seen_front.messages == sent);
    CHECK(seen_back.messages == sent);
    CHECK(seen_front.last_thread.load() == std::this_thread::get_id());
    CHECK(seen_back.last_thread.load() == std::this_thread::get_id());
  }
}

TEST_CASE("many callers and the scheduler share actors without overlap, loss or disorder") {
  constexpr std::uint32_t kMessages = 100'000 / kSenders;
  ActorSystemConfig config{{.worker_threads = 2}};
  kvonce::compat::register_types<caf::id_block::ground_test>(config);
  caf::actor_system system{config};
  Observed seen_front;
  Observed seen_back;
  std::atomic<std::uint64_t> jobs_here{0};
  {
    const Counter back = system.spawn<CounterActor>(&seen_back, Counter{});
    const Counter front = system.spawn<CounterActor>(&seen_front, back);
    // At rest, so that the first message of all is handled by its sender.
    std::uint32_t sent_before = 0;
    bring_to_rest(system, front, back, sent_before);
    std::vector<std::thread> senders;
    for (std::uint32_t sender = 0; sender < kSenders; ++sender) {
      senders.emplace_back([&, sender] {
        const std::uint32_t first = sender == 0 ? sent_before : 0;
        for (std::uint32_t number = 0; number < kMessages; ++number) {
          // Small limits, and jobs left alone, keep the actors moving between callers and workers.
          auto unit = CallerUnit::borrow(system);
          unit->tell(front, Count{sender, first + number});
          if (number % 5 == 4) {
            unit->leave();
          } else {
            jobs_here += unit->run({.jobs_max = 1 + number % 4}).jobs;
          }
        }
      });
    }
    for (auto& sender : senders) {
      sender.join();
    }
    // The asker's message comes last to `front`, and by then `front` has sent all that `back` will hear.
    CHECK(ask_total(front) == sent_before + kSenders * kMessages);
    CHECK(ask_total(back) == sent_before + kSenders * kMessages);
  }
  CHECK(seen_front.overlaps == 0);
  CHECK(seen_back.overlaps == 0);
  CHECK(seen_front.out_of_order == 0);
  CHECK(seen_back.out_of_order == 0);
  CHECK(jobs_here > 0);
}

TEST_CASE("what a caller leaves behind is finished by the scheduler") {
  ActorSystemConfig config;
  kvonce::compat::register_types<caf::id_block::ground_test>(config);
  caf::actor_system system{config};
  Observed seen;
  std::size_t left = 0;
  const Counter actor = system.spawn<CounterActor>(&seen, Counter{});
  std::uint32_t sent = 0;
  bring_to_rest(system, actor, Counter{}, sent);
  SUBCASE("when it gives the unit back without running anything") {
    auto unit = CallerUnit::borrow(system);
    unit->tell(actor, Count{0, sent++});
    left = unit->queued();
  }
  SUBCASE("when its limits end before the actor's mailbox is empty") {
    auto unit = CallerUnit::borrow(system);
    // More than one turn's worth (100 messages).
    for (int i = 0; i < 150; ++i) {
      unit->tell(actor, Count{0, sent++});
    }
    left = unit->run({.jobs_max = 1}).handed_over;
    CHECK(seen.messages >= sent - 50);
  }
  CHECK(left == 1);
  CHECK(ask_total(actor) == sent);
  CHECK(seen.out_of_order == 0);
}

TEST_CASE("an actor that ends in a caller's hands is let go, and its end is heard") {
  struct Watcher {
    kvonce::compat::WatchTable table;
  };
  ActorSystemConfig config;
  kvonce::compat::register_types<caf::id_block::ground_test>(config);
  caf::actor_system system{config};
  std::promise<int> all_down;
  std::atomic<int> reasons{0};
  using Plain = kvonce::compat::TsanOrdered<caf::event_based_actor>;
  auto first = system.spawn([](Plain*) -> caf::behavior { return {[](const AskTotal& question) { answer(question, 0); }}; });
  auto second = system.spawn([](Plain* self) -> caf::behavior {
    return {[self](const Count&) { self->quit(kvonce::compat::fail(Trouble::kFull)); }};
  });
  auto watcher = system.spawn([&](caf::stateful_actor<Watcher, Plain>* self) -> caf::behavior {
    auto& table = kvonce::compat::state_of(self).table;
    auto down = [&, self](const caf::error& reason) {
      reasons += kvonce::compat::code_of<Trouble>(reason) == Trouble::kFull ? 100 : 1;
      if (kvonce::compat::state_of(self).table.size() == 0) {
        all_down.set_value(reasons);
      }
    };
    table.watch(self, first, down);
    table.watch(self, second, down);
    return {[](const AskTotal& question) { answer(question, 0); }};
  });
  // Its answer shows that both watches are in place.
  ask_total(watcher);
  auto unit = CallerUnit::borrow(system);
  unit->tell(second, Count{});
  unit->tell(first, caf::exit_msg{first.address(), caf::exit_reason::kill});
  unit->run();
  unit.reset();
  CHECK(all_down.get_future().get() == 101);
}

}  // namespace ground_test
