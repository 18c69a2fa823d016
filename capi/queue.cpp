// SPDX-License-Identifier: Apache-2.0
//
// Events and completion queues.
#include "capi/handles.hpp"

#include <array>

#include "runtime/operation_impl.hpp"

using namespace kvonce;        // NOLINT: the C API speaks all of its words
using namespace kvonce::capi;  // NOLINT

namespace {

Error take(CompletionQueue& queue, kvonce_queue_entry* entries, std::size_t capacity, std::size_t* count,
           std::chrono::nanoseconds time) {
  std::array<CompletionQueue::Entry, 64> some;
  *count = 0;
  while (*count < capacity) {
    const std::span<CompletionQueue::Entry> room(some.data(), std::min(some.size(), capacity - *count));
    // Only the first time, and then for the first entry.
    const std::size_t got = *count == 0 && time.count() > 0 ? queue.wait(room, time) : queue.poll(room);
    for (std::size_t i = 0; i < got; ++i)
      entries[(*count)++] = {some[i].operation, some[i].user_data, static_cast<std::uint32_t>(some[i].kind), 0};
    if (got < room.size()) break;
  }
  return {};
}

Error check_take(const kvonce_queue* queue, const kvonce_queue_entry* entries, std::size_t capacity, const std::size_t* count) {
  if (Error error = check(queue, "queue")) return error;
  if (entries == nullptr) return null("list of entries");
  if (count == nullptr) return null("count");
  return capacity == 0 ? bad("the list of entries has room for none") : Error{};
}

}  // namespace

extern "C" {

kvonce_reason kvonce_event_create(kvonce_event** event, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (event == nullptr) return null("event's place");
    auto made = std::make_unique<kvonce_event>();
    made->event = Event::make();
    *event = made.release();
    return {};
  });
}

kvonce_reason kvonce_event_create_polled(int (*query)(void* argument), void* argument, kvonce_event** event,
                                         kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (event == nullptr) return null("event's place");
    if (query == nullptr) return null("query");
    auto made = std::make_unique<kvonce_event>();
    made->event = Event([query, argument] { return query(argument) != 0; });
    *event = made.release();
    return {};
  });
}

kvonce_reason kvonce_event_signal(kvonce_event* event, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(event, "event")) return wrong;
    event->event.signal();
    return {};
  });
}

int kvonce_event_ready(const kvonce_event* event) {
  int ready = 0;
  guarded(nullptr, [&]() -> Error {
    ready = usable(event) && event->event.ready() ? 1 : 0;
    return {};
  });
  return ready;
}

void kvonce_event_free(kvonce_event* event) { free_handle(event); }

kvonce_reason kvonce_queue_create(size_t limit, kvonce_queue** queue, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (queue == nullptr) return null("queue's place");
    auto made = std::make_unique<kvonce_queue>();
    made->queue = limit == 0 ? CompletionQueue::create() : CompletionQueue::create(limit);
    if (made->queue->fd() < 0) return {Reason::no_space, "no descriptor for the queue's eventfd"};
    *queue = made.release();
    return {};
  });
}

kvonce_reason kvonce_queue_poll(kvonce_queue* queue, kvonce_queue_entry* entries, size_t capacity, size_t* count,
                                kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check_take(queue, entries, capacity, count)) return wrong;
    return take(*queue->queue, entries, capacity, count, {});
  });
}

kvonce_reason kvonce_queue_wait(kvonce_queue* queue, kvonce_queue_entry* entries, size_t capacity, uint64_t timeout_ns,
                                size_t* count, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check_take(queue, entries, capacity, count)) return wrong;
    if (in_callback()) return bad("kvonce_queue_wait waits, and must not be called from a callback");
    return take(*queue->queue, entries, capacity, count, to_ns(timeout_ns));
  });
}

int kvonce_queue_fd(const kvonce_queue* queue) { return usable(queue) ? queue->queue->fd() : -1; }
uint64_t kvonce_queue_dropped(const kvonce_queue* queue) { return usable(queue) ? queue->queue->dropped() : 0; }
void kvonce_queue_free(kvonce_queue* queue) { free_handle(queue); }

}  // extern "C"
