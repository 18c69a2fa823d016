// SPDX-License-Identifier: Apache-2.0
#include <kvonce/event.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

using kvonce::Event;
using Clock = std::chrono::steady_clock;

TEST_CASE("an event made of nothing is ready") {
  const Event event;
  CHECK(event.ready());
  CHECK(event.wait_until(Clock::time_point::min()));
  int calls = 0;
  CHECK(event.on_ready([&] { ++calls; }));
  CHECK(calls == 1);
}

TEST_CASE("an event fires once for all its copies") {
  const Event event = Event::make();
  const Event copy = event;
  CHECK_FALSE(copy.ready());
  CHECK_FALSE(copy.wait_until(Clock::now()));
  int calls = 0;
  CHECK(copy.on_ready([&] { ++calls; }));
  CHECK(calls == 0);
  event.signal();
  event.signal();
  CHECK(calls == 1);
  CHECK(copy.ready());
  CHECK(copy.wait_until(Clock::time_point::min()));
  CHECK(event.on_ready([&] { ++calls; }));
  CHECK(calls == 2);
}

TEST_CASE("a waiter is woken by the signal and sees what was written before it") {
  const Event event = Event::make();
  int value = 0;
  std::thread signaller([&] {
    value = 7;
    event.signal();
  });
  CHECK(event.wait_until(Clock::time_point::max()));
  CHECK(value == 7);
  signaller.join();
}

TEST_CASE("a polled event is asked until it says yes, and never again") {
  int asked = 0;
  bool answer = false;
  const Event event([&] {
    ++asked;
    return answer;
  });
  CHECK(event.polled());
  CHECK_FALSE(event.ready());
  event.signal();
  CHECK_FALSE(event.ready());
  CHECK_FALSE(event.wait_until(Clock::now()));
  CHECK_FALSE(event.on_ready([] {}));
  answer = true;
  CHECK(event.ready());
  const int asked_so_far = asked;
  CHECK(event.ready());
  CHECK(event.on_ready([] {}));
  CHECK(asked == asked_so_far);
}
