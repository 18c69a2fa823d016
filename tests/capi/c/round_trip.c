/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call does what its C++ sister does.
 */
#include "check.h"

#include <poll.h>
#include <stdatomic.h>

static kvonce_lookup_result look_up(fixture* f, unsigned count, const kvonce_lookup_options* options) {
  kvonce_page pages[ROWS];
  for (unsigned i = 0; i < count; ++i) pages[i] = page_of(i);
  kvonce_operation* lookup = NULL;
  kvonce_lookup_result result = {.size = sizeof result};
  OK(kvonce_lookup(f->runtime, f->group, pages, count, options, &lookup, &last_error));
  CHECK(kvonce_operation_kind_of(lookup) == KVONCE_OPERATION_LOOKUP);
  OK(kvonce_operation_wait(lookup, KVONCE_NO_TIMEOUT, &last_error));
  OK(kvonce_lookup_get_result(lookup, &result, &last_error));
  size_t stops = 9;
  uint32_t stop = 0;
  OK(kvonce_lookup_stops(lookup, &stop, 1, &stops, &last_error));
  CHECK(stops == result.stop_count);
  OK(kvonce_lookup_leased_stops(lookup, &stop, 1, &stops, &last_error));
  CHECK(stops == result.leased_stop_count);
  char name[KVONCE_NAME_BYTES];
  if (result.restorable_pages > 0) {
    CHECK(result.optional_missing_count == 1);
    OK(kvonce_lookup_optional_missing(lookup, 0, name, &last_error));
    CHECK(strcmp(name, "draft") == 0);
  }
  EXPECT(KVONCE_REASON_BAD_ARGUMENT, "optional pool 7", kvonce_lookup_optional_missing(lookup, 7, name, &last_error));
  kvonce_operation_free(lookup);
  return result;
}

static void lookups_and_loads(fixture* f) {
  put_pages(f, 8);
  kvonce_lookup_options options = {.size = sizeof options, .request_id = "request 1", .lease_time_ms = 60000};
  const kvonce_lookup_result found = look_up(f, 10, &options);
  CHECK(found.restorable_pages == 8);
  CHECK(found.resident_pages == 8);
  CHECK(found.every_stop == 1);
  CHECK(found.first_missing == 8);
  CHECK(found.reason == KVONCE_REASON_ABSENT);
  CHECK(found.lease_left_ms > 0);
  const kvonce_lookup_result again = look_up(f, 10, &options);
  CHECK(again.lease.high == found.lease.high && again.lease.low == found.lease.low);

  kvonce_page pages[8];
  kvonce_item items[8];
  for (unsigned i = 0; i < 8; ++i) {
    pages[i] = page_of(i);
    items[i] = (kvonce_item){i, f->pool, 8 + i};
  }
  memset(f->rows, 0, sizeof f->rows);
  const kvonce_load_options by_layer = {.size = sizeof by_layer, .layers_per_group = 1};
  kvonce_operation* load = NULL;
  OK(kvonce_load(f->rank, &found.lease, pages, 8, items, 8, &by_layer, &load, &last_error));
  for (uint32_t l = 1; l <= LAYERS; ++l) {
    OK(kvonce_load_wait_layers(load, l, KVONCE_NO_TIMEOUT, &last_error));
    CHECK(kvonce_load_layers_done(load) >= l);
  }
  OK(kvonce_operation_wait(load, KVONCE_NO_TIMEOUT, &last_error));
  CHECK(kvonce_operation_done(load) == 1);
  CHECK(kvonce_operation_id(load) != 0);
  uint8_t reasons[8];
  uint64_t loaded = 0;
  size_t count = 0;
  memset(reasons, 9, sizeof reasons);
  OK(kvonce_load_results(load, reasons, 3, &count, &loaded, &last_error));
  CHECK(count == 8 && loaded == 8);
  CHECK(reasons[2] == 0 && reasons[3] == 9);
  for (unsigned i = 0; i < 8; ++i) CHECK(row_holds(f, 8 + i, i));
  kvonce_operation_free(load);

  OK(kvonce_lease_narrow(f->runtime, &found.lease, 3, &last_error));
  OK(kvonce_load(f->rank, &found.lease, pages, 8, items, 8, NULL, &load, &last_error));
  OK(kvonce_operation_wait(load, KVONCE_NO_TIMEOUT, &last_error));
  OK(kvonce_load_results(load, NULL, 0, NULL, &loaded, &last_error));
  CHECK(loaded >= 3);
  kvonce_operation_free(load);
  OK(kvonce_lease_release(f->runtime, &found.lease, &last_error));
  OK(kvonce_lease_release(f->runtime, &found.lease, &last_error));
  OK(kvonce_load(f->rank, &found.lease, pages, 8, items, 8, NULL, &load, &last_error));
  OK(kvonce_operation_wait(load, KVONCE_NO_TIMEOUT, &last_error));
  OK(kvonce_load_results(load, reasons, 8, NULL, &loaded, &last_error));
  CHECK(loaded == 0 && reasons[0] == KVONCE_REASON_LEASE_EXPIRED);
  kvonce_operation_free(load);
  const kvonce_lease forged = {12345, 67890};
  EXPECT(KVONCE_REASON_LEASE_UNKNOWN, "narrow", kvonce_lease_narrow(f->runtime, &forged, 1, &last_error));
  const kvonce_lookup_options probe = {.size = sizeof probe, .probe = 1};
  const kvonce_lookup_result probed = look_up(f, 4, &probe);
  CHECK(probed.restorable_pages == 4 && probed.lease.high == 0 && probed.lease.low == 0);
}

static void what_is_there(fixture* f) {
  kvonce_page pages[3] = {page_of(0), page_of(7), page_of(100)};
  uint8_t found[3] = {9, 9, 9};
  OK(kvonce_exists(f->runtime, f->group, "kv", 0, pages, 3, found, &last_error));
  CHECK(found[0] == 1 && found[1] == 1 && found[2] == 0);
  OK(kvonce_rank_exists(f->rank, f->pool, pages + 1, 2, found, &last_error));
  CHECK(found[0] == 1 && found[1] == 0);
  OK(kvonce_exists(f->runtime, f->group, "kv", 0, NULL, 0, NULL, &last_error));
  EXPECT(KVONCE_REASON_UNKNOWN_POOL, "'what'", kvonce_exists(f->runtime, f->group, "what", 0, pages, 3, found, &last_error));
  kvonce_stored_object objects[2];
  size_t count = 0;
  uint32_t depth = 0;
  OK(kvonce_stat(f->runtime, f->ns, &pages[1], &depth, objects, 2, &count, &last_error));
  CHECK(count == 1 && depth == 7);
  CHECK(strcmp(objects[0].pool, "kv") == 0 && objects[0].bytes == LAYERS * ROW_BYTES);
  EXPECT(KVONCE_REASON_ABSENT, "nothing is known", kvonce_stat(f->runtime, f->ns, &pages[2], NULL, NULL, 0, &count, &last_error));
  kvonce_known_pool known[4];
  OK(kvonce_namespace_pools(f->runtime, f->ns, known, 4, &count, &last_error));
  CHECK(count == 2);
  CHECK(strcmp(known[0].name, "kv") == 0 && known[0].object_bytes == LAYERS * ROW_BYTES && known[0].shards.tp == 1);
  uint32_t ns = 99;
  OK(kvonce_namespace_find(f->runtime, "model", &ns, &last_error));
  CHECK(ns == f->ns);
  kvonce_stats stats = {.size = sizeof stats};
  OK(kvonce_runtime_stats(f->runtime, &stats, &last_error));
  CHECK(stats.verdicts[KVONCE_VERDICT_STORED] == 8);
  CHECK(stats.objects_now == 8 && stats.stored_bytes == 8ULL * LAYERS * ROW_BYTES);
  CHECK(kvonce_rank_moved_bytes(f->rank) == stats.moved_bytes);
  CHECK(kvonce_runtime_connected(f->runtime) == 1);
  CHECK(kvonce_runtime_incarnation(f->runtime) != 0);
  OK(kvonce_runtime_wait_connected(f->runtime, 1, &last_error));
  OK(kvonce_runtime_clients(f->runtime, NULL, 0, &count, &last_error));
  CHECK(count == 0);
  kvonce_store_start start = {.size = sizeof start};
  OK(kvonce_runtime_store_start(f->runtime, &start, &last_error));
  CHECK(start.warm == 0);
  uint8_t one[16], two[16], other[16];
  OK(kvonce_runtime_epoch(f->runtime, "weights 1", 0, one, &last_error));
  OK(kvonce_runtime_epoch(f->runtime, "weights 1", 1000, two, &last_error));
  OK(kvonce_runtime_epoch(f->runtime, "weights 2", 0, other, &last_error));
  CHECK(memcmp(one, two, 16) == 0 && memcmp(one, other, 16) != 0);
}

/* Opened here twice and found once: only the third close ends it, and not while a pool is registered in it. */
static void closing(fixture* f) {
  uint32_t ns = 99, again = 99;
  OK(kvonce_namespace_open(f->runtime, "model", &ns, &last_error));
  OK(kvonce_namespace_close(f->runtime, ns, &last_error));
  OK(kvonce_namespace_close(f->runtime, f->ns, &last_error)); /* of what_is_there */
  EXPECT(KVONCE_REASON_BUSY, "pool 'kv'", kvonce_namespace_close(f->runtime, f->ns, &last_error));
  OK(kvonce_namespace_open(f->runtime, "other", &ns, &last_error));
  OK(kvonce_namespace_close(f->runtime, ns, &last_error));
  EXPECT(KVONCE_REASON_UNKNOWN_NAMESPACE, "close_namespace", kvonce_namespace_close(f->runtime, ns, &last_error));
  EXPECT(KVONCE_REASON_UNKNOWN_NAMESPACE, "pools", kvonce_namespace_pools(f->runtime, ns, NULL, 0, NULL, &last_error));
  /* The store has it still. */
  OK(kvonce_namespace_find(f->runtime, "other", &again, &last_error));
  OK(kvonce_namespace_close(f->runtime, again, &last_error));
}

static atomic_int calls, told, polls, layers;
static void count_call(void* argument) { atomic_fetch_add((atomic_int*)argument, 1); }
static void count_layers(uint32_t done, void* argument) { atomic_store((atomic_int*)argument, (int)done); }
static int third_time(void* argument) { return atomic_fetch_add((atomic_int*)argument, 1) >= 2; }
static void count_events(const kvonce_store_event* events, size_t count, void* argument) {
  for (size_t i = 0; i < count; ++i)
    if (strcmp(events[i].pool, "kv") == 0 && events[i].kind == KVONCE_STORE_EVENT_REMOVED)
      atomic_fetch_add((atomic_int*)argument, 1);
}

/* A wait inside a callback is refused, not a deadlock. */
static fixture* called;
static kvonce_operation* waited;
static kvonce_reason answered, stopped;
static void wait_inside(void* argument) {
  (void)argument;
  answered = kvonce_operation_wait(waited, KVONCE_NO_TIMEOUT, NULL);
  stopped = kvonce_runtime_stop(called->runtime, 1000, NULL);
  atomic_fetch_add(&calls, 1);
}

static void completions(fixture* f) {
  kvonce_queue* queue = NULL;
  OK(kvonce_queue_create(2, &queue, &last_error));
  kvonce_event* event = NULL;
  OK(kvonce_event_create(&event, &last_error));
  CHECK(kvonce_event_ready(event) == 0);
  kvonce_page page = page_of(200);
  const kvonce_item item = {0, f->pool, 0};
  const kvonce_page parent = page_of(7);
  fill_row(f, 0, 1);
  kvonce_put_options options = {.size = sizeof options,
                                .parent = &parent,
                                .first_depth = 8,
                                .after = event,
                                .completion = {.queue = queue, .user_data = 42, .callback = count_call, .argument = &calls}};
  kvonce_operation* put = NULL;
  OK(kvonce_put(f->rank, &page, 1, &item, 1, &options, &put, &last_error));
  EXPECT(KVONCE_REASON_DEADLINE, "not done", kvonce_operation_wait(put, 1, &last_error));
  EXPECT(KVONCE_REASON_IN_FLIGHT, "not done", kvonce_put_results(put, NULL, 0, NULL, NULL, &last_error));
  kvonce_queue_entry entries[3];
  size_t count = 9;
  OK(kvonce_queue_poll(queue, entries, 3, &count, &last_error));
  CHECK(count == 0);
  OK(kvonce_queue_wait(queue, entries, 3, 1000, &count, &last_error));
  CHECK(count == 0 && atomic_load(&calls) == 0);
  fill_row(f, 0, 200);
  OK(kvonce_event_signal(event, &last_error));
  CHECK(kvonce_event_ready(event) == 1);
  struct pollfd wanted = {.fd = kvonce_queue_fd(queue), .events = POLLIN};
  CHECK(poll(&wanted, 1, 60000) == 1);
  OK(kvonce_queue_wait(queue, entries, 3, 60000000000, &count, &last_error));
  CHECK(count == 1 && entries[0].user_data == 42 && entries[0].kind == KVONCE_OPERATION_PUT);
  CHECK(entries[0].operation == kvonce_operation_id(put));
  finish(put);
  CHECK(poll(&wanted, 1, 0) == 0);
  EXPECT(KVONCE_REASON_BAD_ARGUMENT, "room for none", kvonce_queue_poll(queue, entries, 0, &count, &last_error));
  kvonce_event_free(event);

  /* A polled event; a queue that is too small for what ends. */
  OK(kvonce_event_create_polled(third_time, &polls, &event, &last_error));
  kvonce_operation* flushes[3];
  const kvonce_completion to_queue = {.queue = queue, .user_data = 1};
  for (int i = 0; i < 3; ++i) {
    OK(kvonce_flush(f->runtime, KVONCE_LEVEL_MEMORY, 0, &to_queue, &flushes[i], &last_error));
    OK(kvonce_operation_wait(flushes[i], KVONCE_NO_TIMEOUT, &last_error));
    OK(kvonce_admin_result(flushes[i], NULL, &last_error));
    kvonce_operation_free(flushes[i]);
  }
  CHECK(kvonce_queue_dropped(queue) == 1);
  options = (kvonce_put_options){.size = sizeof options, .after = event};
  page = page_of(201);
  OK(kvonce_put(f->rank, &page, 1, &item, 1, &options, &put, &last_error));
  kvonce_event_free(event); /* the put keeps it */
  finish(put);
  CHECK(atomic_load(&polls) == 3);
  kvonce_queue_free(queue);

  /* Canceled: nothing is stored, and the row is free. */
  OK(kvonce_event_create(&event, &last_error));
  page = page_of(202);
  options = (kvonce_put_options){.size = sizeof options, .after = event};
  OK(kvonce_put(f->rank, &page, 1, &item, 1, &options, &put, &last_error));
  OK(kvonce_operation_cancel(put, &last_error));
  OK(kvonce_operation_wait(put, KVONCE_NO_TIMEOUT, &last_error));
  kvonce_put_result result;
  OK(kvonce_put_results(put, &result, 1, NULL, NULL, &last_error));
  CHECK(result.verdict == KVONCE_VERDICT_UNKNOWN && result.reason == KVONCE_REASON_CANCELED);

  /* From a callback nothing may be waited for. */
  called = f;
  waited = put;
  atomic_store(&calls, 0);
  const kvonce_completion inside = {.callback = wait_inside};
  kvonce_operation* flush = NULL;
  OK(kvonce_flush(f->runtime, KVONCE_LEVEL_MEMORY, 0, &inside, &flush, &last_error));
  finish(flush);
  while (atomic_load(&calls) == 0) poll(NULL, 0, 1);
  CHECK(answered == KVONCE_REASON_BAD_ARGUMENT && stopped == KVONCE_REASON_BAD_ARGUMENT);
  kvonce_operation_free(put);
  kvonce_event_free(event);

  /* Progress of a load. */
  const kvonce_lookup_result found = look_up(f, 4, NULL);
  const kvonce_page first = page_of(0);
  const kvonce_load_options load_options = {.size = sizeof load_options,
                                            .layers_per_group = 2,
                                            .layer_begin = 0,
                                            .layer_end = 2,
                                            .progress = count_layers,
                                            .progress_argument = &layers};
  kvonce_operation* load = NULL;
  OK(kvonce_load(f->rank, &found.lease, &first, 1, &item, 1, &load_options, &load, &last_error));
  finish(load);
  CHECK(atomic_load(&layers) == 2);
  OK(kvonce_lease_release(f->runtime, &found.lease, &last_error));
}

static void removing(fixture* f) {
  OK(kvonce_runtime_subscribe(f->runtime, count_events, &told, &last_error));
  kvonce_operation* operation = NULL;
  uint64_t removed = 0;
  const kvonce_page one = page_of(0);
  const kvonce_page two[2] = {page_of(1), page_of(2)};
  OK(kvonce_remove_key(f->runtime, f->group, "kv", 0, &one, NULL, &operation, &last_error));
  OK(kvonce_operation_wait(operation, KVONCE_NO_TIMEOUT, &last_error));
  OK(kvonce_admin_result(operation, &removed, &last_error));
  CHECK(removed == 1);
  kvonce_operation_free(operation);
  OK(kvonce_remove_pages(f->runtime, f->ns, two, 2, NULL, &operation, &last_error));
  OK(kvonce_operation_wait(operation, KVONCE_NO_TIMEOUT, &last_error));
  OK(kvonce_admin_result(operation, &removed, &last_error));
  CHECK(removed == 2);
  kvonce_operation_free(operation);
  for (int waits = 0; atomic_load(&told) < 3 && waits < 60000; ++waits) poll(NULL, 0, 1);
  CHECK(atomic_load(&told) == 3);
  OK(kvonce_runtime_subscribe(f->runtime, NULL, NULL, &last_error));
  OK(kvonce_remove_namespace(f->runtime, f->ns, NULL, &operation, &last_error));
  finish(operation);
  put_pages(f, 4);
  OK(kvonce_clear(f->runtime, NULL, &operation, &last_error));
  finish(operation);
  kvonce_stats stats = {.size = sizeof stats};
  OK(kvonce_runtime_stats(f->runtime, &stats, &last_error));
  CHECK(stats.objects_now == 0);
  CHECK(atomic_load(&told) == 3);
  OK(kvonce_pool_unregister(f->rank, f->pool, 60000, &last_error));
  OK(kvonce_rank_close(f->rank, 60000, &last_error));
  OK(kvonce_namespace_close(f->runtime, f->ns, &last_error));
}

void test_round_trip(void) {
  static fixture f;
  fixture_start(&f);
  lookups_and_loads(&f);
  what_is_there(&f);
  closing(&f);
  completions(&f);
  removing(&f);
  fixture_end(&f);
}
