/* SPDX-License-Identifier: Apache-2.0
 *
 * What callers get wrong: every wrong call is answered by its reason and a sentence, and changes nothing.
 */
#include "check.h"

#define BAD KVONCE_REASON_BAD_ARGUMENT

static void null_handles(fixture* f) {
  const kvonce_page page = page_of(1);
  const kvonce_item item = {0, f->pool, 0};
  const kvonce_lease lease = {1, 2};
  kvonce_operation* operation = NULL;
  uint32_t number = 77;
  uint8_t found = 9, value[16];
  size_t count = 5;
  kvonce_stats stats = {.size = sizeof stats};
  EXPECT(BAD, "runtime is NULL", kvonce_namespace_open(NULL, "x", &number, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_namespace_pools(NULL, 0, NULL, 0, &count, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_stop(NULL, 1, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_wait_connected(NULL, 1, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_drain(NULL, 1, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_stats(NULL, &stats, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_clients(NULL, NULL, 0, &count, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_report(NULL, "x", NULL, 0, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_reports(NULL, NULL, 0, &count, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_namespace_close(NULL, 0, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_subscribe(NULL, NULL, NULL, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_runtime_epoch(NULL, "w", 0, value, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_lookup(NULL, f->group, &page, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_lease_release(NULL, &lease, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_exists(NULL, f->group, "kv", 0, &page, 1, &found, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_stat(NULL, f->ns, &page, NULL, NULL, 0, &count, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_remove_pages(NULL, f->ns, &page, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_clear(NULL, NULL, &operation, &last_error));
  EXPECT(BAD, "runtime is NULL", kvonce_flush(NULL, 0, 0, NULL, &operation, &last_error));
  EXPECT(BAD, "rank is NULL", kvonce_put(NULL, &page, 1, &item, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "rank is NULL", kvonce_load(NULL, &lease, &page, 1, &item, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "rank is NULL", kvonce_rank_close(NULL, 1, &last_error));
  EXPECT(BAD, "rank is NULL", kvonce_pool_unregister(NULL, 0, 1, &last_error));
  EXPECT(BAD, "rank is NULL", kvonce_rank_exists(NULL, 0, &page, 1, &found, &last_error));
  EXPECT(BAD, "operation is NULL", kvonce_operation_wait(NULL, 1, &last_error));
  EXPECT(BAD, "operation is NULL", kvonce_operation_cancel(NULL, &last_error));
  EXPECT(BAD, "operation is NULL", kvonce_put_results(NULL, NULL, 0, &count, NULL, &last_error));
  EXPECT(BAD, "operation is NULL", kvonce_load_wait_layers(NULL, 1, 1, &last_error));
  EXPECT(BAD, "operation is NULL", kvonce_lookup_stops(NULL, NULL, 0, &count, &last_error));
  EXPECT(BAD, "operation is NULL", kvonce_admin_result(NULL, NULL, &last_error));
  EXPECT(BAD, "event is NULL", kvonce_event_signal(NULL, &last_error));
  EXPECT(BAD, "queue is NULL", kvonce_queue_poll(NULL, NULL, 0, &count, &last_error));
  kvonce_event* event = NULL;
  EXPECT(BAD, "query is NULL", kvonce_event_create_polled(NULL, NULL, &event, &last_error));
  EXPECT(BAD, "event's place is NULL", kvonce_event_create(NULL, &last_error));
  EXPECT(BAD, "queue's place is NULL", kvonce_queue_create(0, NULL, &last_error));
  CHECK(event == NULL);
  /* Numbers of nothing. */
  CHECK(kvonce_runtime_connected(NULL) == 0);
  CHECK(kvonce_runtime_incarnation(NULL) == 0);
  CHECK(kvonce_rank_moved_bytes(NULL) == 0);
  CHECK(kvonce_operation_kind_of(NULL) == -1);
  CHECK(kvonce_operation_id(NULL) == 0);
  CHECK(kvonce_operation_done(NULL) == 0);
  CHECK(kvonce_load_layers_done(NULL) == 0);
  CHECK(kvonce_event_ready(NULL) == 0);
  CHECK(kvonce_queue_fd(NULL) == -1);
  CHECK(kvonce_queue_dropped(NULL) == 0);
  kvonce_runtime_free(NULL);
  kvonce_rank_free(NULL);
  kvonce_operation_free(NULL);
  kvonce_event_free(NULL);
  kvonce_queue_free(NULL);
  /* No place for the answer, no list. */
  EXPECT(BAD, "namespace's place is NULL", kvonce_namespace_open(f->runtime, "x", NULL, &last_error));
  EXPECT(BAD, "text is NULL", kvonce_namespace_open(f->runtime, NULL, &number, &last_error));
  EXPECT(BAD, "operation's place is NULL", kvonce_put(f->rank, &page, 1, &item, 1, NULL, NULL, &last_error));
  EXPECT(BAD, "pages are NULL", kvonce_put(f->rank, NULL, 1, &item, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "items are NULL", kvonce_put(f->rank, &page, 1, NULL, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "lease is NULL", kvonce_load(f->rank, NULL, &page, 1, &item, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "answer's place is NULL", kvonce_exists(f->runtime, f->group, "kv", 0, &page, 1, NULL, &last_error));
  EXPECT(BAD, "pool's name is NULL", kvonce_exists(f->runtime, f->group, NULL, 0, &page, 1, &found, &last_error));
  EXPECT(BAD, "label is NULL", kvonce_runtime_report(f->runtime, NULL, NULL, 0, &last_error));
  EXPECT(BAD, "counters are NULL", kvonce_runtime_report(f->runtime, "x", NULL, 1, &last_error));
  EXPECT(BAD, "list is NULL", kvonce_runtime_reports(f->runtime, NULL, 1, &count, &last_error));
  EXPECT(BAD, "list is NULL", kvonce_namespace_pools(f->runtime, f->ns, NULL, 1, &count, &last_error));
  EXPECT(BAD, "epoch's name is NULL", kvonce_runtime_epoch(f->runtime, NULL, 0, value, &last_error));
  /* Nothing was touched, and no error's place is no crash. */
  CHECK(operation == NULL);
  CHECK(number == 77);
  CHECK(found == 9);
  CHECK(count == 5);
  CHECK(kvonce_namespace_open(NULL, NULL, NULL, NULL) == BAD);
}

static void wrong_sizes(fixture* f) {
  kvonce_runtime_options options;
  kvonce_runtime_options_init(&options);
  options.engine_id = "x";
  kvonce_runtime* runtime = NULL;
  options.size = 0;
  EXPECT(BAD, "size is 0 bytes", kvonce_runtime_start(&options, &runtime, &last_error));
  options.size = sizeof options - 8;
  EXPECT(BAD, "at least", kvonce_runtime_start(&options, &runtime, &last_error));
  options.size = (size_t)-1;
  EXPECT(BAD, "at most", kvonce_runtime_start(&options, &runtime, &last_error));
  options.size = sizeof options;
  options.reserved = 3;
  EXPECT(BAD, "reserved is 3", kvonce_runtime_start(&options, &runtime, &last_error));
  options.reserved = 0;
  options.huge_pages = 3;
  EXPECT(BAD, "huge_pages is 3", kvonce_runtime_start(&options, &runtime, &last_error));
  options.huge_pages = 0;
  options.store = "nowhere";
  EXPECT(BAD, "'nowhere'", kvonce_runtime_start(&options, &runtime, &last_error));
  EXPECT(BAD, "engine_id", kvonce_runtime_start(NULL, &runtime, &last_error));
  options.store = NULL;
  options.lease_time_ms = UINT64_MAX;
  EXPECT(BAD, "lease_time", kvonce_runtime_start(&options, &runtime, &last_error));
  CHECK(runtime == NULL);

  /* From a newer caller: fields that this library does not have are zero, or refused. */
  struct {
    kvonce_put_options options;
    uint64_t later[2];
  } newer = {.options = {.size = sizeof newer}};
  const kvonce_page page = page_of(900);
  const kvonce_item item = {0, f->pool, 0};
  kvonce_operation* put = NULL;
  OK(kvonce_put(f->rank, &page, 1, &item, 1, &newer.options, &put, &last_error));
  if (put != NULL) finish(put);
  newer.later[1] = 1;
  put = NULL;
  EXPECT(BAD, "this release does not have", kvonce_put(f->rank, &page, 1, &item, 1, &newer.options, &put, &last_error));
  CHECK(put == NULL);

  /* Results, too. */
  kvonce_stats stats = {.size = 8};
  EXPECT(BAD, "size is 8 bytes", kvonce_runtime_stats(f->runtime, &stats, &last_error));
  struct {
    kvonce_stats stats;
    uint64_t later;
  } more = {.stats = {.size = sizeof more}, .later = 5};
  OK(kvonce_runtime_stats(f->runtime, &more.stats, &last_error));
  CHECK(more.later == 0);
  CHECK(more.stats.size == sizeof more);
  CHECK(more.stats.announced_items >= 1);
}

/* Every number that has a range reaches the field of its name: out of range it is refused by that name. */
static void wrong_options(void) {
#define FIELD(field, name) \
  { name " is ", offsetof(kvonce_runtime_options, field), sizeof(((kvonce_runtime_options*)NULL)->field) }
  static const struct {
    const char* told;
    size_t at, bytes;
  } fields[] = {
      FIELD(connect_timeout_ms, "connect_timeout"),
      FIELD(engine_grace_ms, "engine_grace"),
      FIELD(auto_idle_ms, "auto_idle"),
      FIELD(grant_base_ms, "grant_base"),
      FIELD(verify_window_ms, "verify_window"),
      FIELD(lease_time_ms, "lease_time"),
      FIELD(auto_bytes, "auto_bytes"),
      FIELD(arena_bytes, "arena_bytes"),
      FIELD(capacity_bytes, "capacity_bytes"),
      FIELD(index_pages, "index_pages"),
      FIELD(window_bytes, "window_bytes"),
      FIELD(least_rate, "least_rate"),
      FIELD(leased_bytes, "leased_bytes"),
      FIELD(inline_copy_bytes, "inline_copy_bytes"),
      FIELD(max_clients, "max_clients"),
      FIELD(partitions, "partitions"),
      FIELD(ghost_entries, "ghost_entries"),
      FIELD(conflict_limit, "conflict_limit"),
      FIELD(leased_stops, "leased_stops"),
      FIELD(scheduler_threads, "scheduler_threads"),
      FIELD(mover_threads, "mover_threads"),
  };
#undef FIELD
  kvonce_runtime_options options;
  kvonce_runtime* runtime = NULL;
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    kvonce_runtime_options_init(&options);
    options.engine_id = "x";
    memset((char*)&options + fields[i].at, 0xff, fields[i].bytes);
    EXPECT(BAD, fields[i].told, kvonce_runtime_start(&options, &runtime, &last_error));
  }
  kvonce_runtime_options_init(&options);
  options.engine_id = "x";
  options.numa_node = -2;
  EXPECT(BAD, "numa_node is -2", kvonce_runtime_start(&options, &runtime, &last_error));
  options.numa_node = -1;
  uint32_t* const flags[] = {&options.read_only, &options.populate, &options.checksums, &options.demote, &options.caller_runs};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; ++i) {
    const uint32_t before = *flags[i];
    *flags[i] = i == 0 ? 77 : 2;
    EXPECT(BAD, i == 0 ? "read_only is 77: must be 0 or 1" : "is 2: must be 0 or 1",
           kvonce_runtime_start(&options, &runtime, &last_error));
    *flags[i] = before;
  }
  options.read_only = 1;
  EXPECT(BAD, "read_only", kvonce_runtime_start(&options, &runtime, &last_error));
  options.read_only = 0;
  options.serve = "s";
  EXPECT(BAD, "serve is 's'", kvonce_runtime_start(&options, &runtime, &last_error));
  options.serve = NULL;
  options.policy = "p";
  EXPECT(BAD, "policy is 'p'", kvonce_runtime_start(&options, &runtime, &last_error));
  options.policy = NULL;
  options.copy_kernel = "k";
  EXPECT(BAD, "copy_kernel is 'k'", kvonce_runtime_start(&options, &runtime, &last_error));
  CHECK(runtime == NULL);
}

static void wrong_batches(fixture* f) {
  static kvonce_page pages[KVONCE_BATCH_MAX + 1];
  static kvonce_item items[KVONCE_BATCH_MAX + 1];
  const kvonce_lease lease = {1, 2};
  kvonce_operation* operation = NULL;
  const size_t too_many = KVONCE_BATCH_MAX + 1;
  EXPECT(BAD, "0 items", kvonce_put(f->rank, pages, 1, items, 0, NULL, &operation, &last_error));
  EXPECT(BAD, "0 pages", kvonce_put(f->rank, pages, 0, items, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "0 items", kvonce_load(f->rank, &lease, pages, 1, items, 0, NULL, &operation, &last_error));
  EXPECT(KVONCE_REASON_TOO_MANY, "65537 items", kvonce_put(f->rank, pages, 1, items, too_many, NULL, &operation, &last_error));
  EXPECT(KVONCE_REASON_TOO_MANY, "65537 pages", kvonce_put(f->rank, pages, too_many, items, 1, NULL, &operation, &last_error));
  EXPECT(KVONCE_REASON_TOO_MANY, "65537 items",
         kvonce_load(f->rank, &lease, pages, 1, items, too_many, NULL, &operation, &last_error));
  EXPECT(KVONCE_REASON_TOO_MANY, "65537 pages",
         kvonce_lookup(f->runtime, f->group, pages, too_many, NULL, &operation, &last_error));
  const kvonce_lookup_options probe = {.size = sizeof probe, .probe = 2};
  EXPECT(BAD, "probe is 2: must be 0 or 1", kvonce_lookup(f->runtime, f->group, pages, 1, &probe, &operation, &last_error));
  EXPECT(KVONCE_REASON_TOO_MANY, "65537 pages",
         kvonce_remove_pages(f->runtime, f->ns, pages, too_many, NULL, &operation, &last_error));
  EXPECT(KVONCE_REASON_TOO_MANY, "pages", kvonce_put(f->rank, pages, (size_t)-1, items, 1, NULL, &operation, &last_error));
  items[0] = (kvonce_item){1, f->pool, 0};
  EXPECT(BAD, "names page 1", kvonce_put(f->rank, pages, 1, items, 1, NULL, &operation, &last_error));
  EXPECT(BAD, "names page 1", kvonce_load(f->rank, &lease, pages, 1, items, 1, NULL, &operation, &last_error));
  items[0] = (kvonce_item){0, f->pool, 0};
  kvonce_put_options put = {.size = sizeof put, .level = 3};
  EXPECT(BAD, "level is 3", kvonce_put(f->rank, pages, 1, items, 1, &put, &operation, &last_error));
  put = (kvonce_put_options){.size = sizeof put, .timeout_ms = 3600001};
  EXPECT(BAD, "timeout", kvonce_put(f->rank, pages, 1, items, 1, &put, &operation, &last_error));
  put.timeout_ms = UINT64_MAX;
  EXPECT(BAD, "timeout", kvonce_put(f->rank, pages, 1, items, 1, &put, &operation, &last_error));
  const kvonce_load_options load = {.size = sizeof load, .layer_begin = 2, .layer_end = 2};
  EXPECT(BAD, "layers 2 to 2", kvonce_load(f->rank, &lease, pages, 1, items, 1, &load, &operation, &last_error));
  EXPECT(BAD, "level is 9", kvonce_flush(f->runtime, 9, 0, NULL, &operation, &last_error));
  CHECK(operation == NULL);

  /* One bad item is that item's, not the batch's. */
  uint32_t const wrong_pool = 41;
  for (unsigned i = 0; i < 3; ++i) {
    pages[i] = page_of(500 + i);
    items[i] = (kvonce_item){i, i == 1 ? wrong_pool : f->pool, i == 2 ? 1000000 : i};
  }
  OK(kvonce_put(f->rank, pages, 3, items, 3, NULL, &operation, &last_error));
  OK(kvonce_operation_wait(operation, KVONCE_NO_TIMEOUT, &last_error));
  kvonce_put_result results[3];
  size_t count = 0;
  OK(kvonce_put_results(operation, results, 3, &count, NULL, &last_error));
  CHECK(count == 3);
  CHECK(results[0].verdict == KVONCE_VERDICT_STORED);
  CHECK(results[1].reason == KVONCE_REASON_UNKNOWN_POOL);
  CHECK(results[2].reason == KVONCE_REASON_ROW_OUT_OF_RANGE);
  /* A put's results are no load's. */
  EXPECT(BAD, "is a put: must be a load", kvonce_load_results(operation, NULL, 0, &count, NULL, &last_error));
  EXPECT(BAD, "must be a lookup", kvonce_lookup_stops(operation, NULL, 0, &count, &last_error));
  EXPECT(BAD, "must be a flush", kvonce_admin_result(operation, NULL, &last_error));
  CHECK(kvonce_load_layers_done(operation) == 0);
  kvonce_operation_free(operation);
}

static void wrong_descriptions(fixture* f) {
  uint32_t number = 77;
  const kvonce_group_pool two[] = {{.name = "kv"}, {.name = NULL}};
  kvonce_group_options group = {.size = sizeof group, .name = "g", .pools = two, .pool_count = 2, .ranks = {1, 1, 1}};
  EXPECT(BAD, "pool 1 is NULL", kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  group.pools = NULL;
  EXPECT(BAD, "is NULL", kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  group.pool_count = 0;
  EXPECT(BAD, "0 pools", kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  group.pool_count = (size_t)-1;
  EXPECT(BAD, "1 to 64", kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  const kvonce_group_pool deep = {.name = "kv", .trailing_pages = 65536};
  group = (kvonce_group_options){.size = sizeof group, .name = "g", .pools = &deep, .pool_count = 1, .ranks = {1, 1, 1}};
  EXPECT(BAD, "trailing_pages is 65536", kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  const kvonce_group_pool half = {.name = "kv", .optional = 2};
  group.pools = &half;
  EXPECT(BAD, "pool 'kv': optional is 2: must be 0 or 1", kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  EXPECT(BAD, "options is NULL", kvonce_group_register(f->runtime, f->ns, NULL, &number, &last_error));
  const kvonce_group_pool kv = {.name = "kv"};
  group.pools = &kv;
  group.timeout_ms = 3600001;
  EXPECT(BAD, "register_group: timeout is 3600001 ms", kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  /* A program of the time before the field: what stands behind its struct is not read. */
  group.size = offsetof(kvonce_group_options, timeout_ms);
  uint32_t older = 0;
  OK(kvonce_group_register(f->runtime, f->ns, &group, &older, &last_error));
  group.size = sizeof group;
  group.timeout_ms = 0;
  EXPECT(KVONCE_REASON_UNKNOWN_NAMESPACE, "99", kvonce_group_register(f->runtime, 99, &group, &number, &last_error));
  EXPECT(KVONCE_REASON_UNKNOWN_NAMESPACE, "99", kvonce_namespace_pools(f->runtime, 99, NULL, 0, NULL, &last_error));
  EXPECT(KVONCE_REASON_UNKNOWN_NAMESPACE, "99", kvonce_namespace_close(f->runtime, 99, &last_error));
  EXPECT(KVONCE_REASON_UNKNOWN_NAMESPACE, "nobody", kvonce_namespace_find(f->runtime, "nobody", &number, &last_error));

  kvonce_rank* rank = NULL;
  const kvonce_coordinates beside = {{1, 2}, {0, 1}, {0, 1}};
  EXPECT(BAD, "no rank of group", kvonce_rank_add(f->runtime, f->group, &beside, &rank, &last_error));
  EXPECT(BAD, "coordinates is NULL", kvonce_rank_add(f->runtime, f->group, NULL, &rank, &last_error));
  CHECK(rank == NULL);

  const kvonce_layer layer = {f->rows[0], ROW_BYTES, ROW_BYTES}, narrow = {f->rows[0], 8, ROW_BYTES};
  kvonce_component component = {"kv", &layer, 1};
  kvonce_pool_options pool = {.size = sizeof pool, .name = "other", .components = &component, .component_count = 1, .rows = 1};
  pool.timeout_ms = 3600001;
  EXPECT(BAD, "register_pool: timeout is 3600001 ms", kvonce_pool_register(f->rank, &pool, &number, &last_error));
  pool.size = offsetof(kvonce_pool_options, timeout_ms);
  EXPECT(BAD, "'other' is not in group", kvonce_pool_register(f->rank, &pool, &number, &last_error));
  pool.size = sizeof pool;
  pool.timeout_ms = 0;
  pool.name = "draft";
  pool.memory = 2;
  EXPECT(BAD, "memory is 2", kvonce_pool_register(f->rank, &pool, &number, &last_error));
  pool.memory = KVONCE_MEMORY_HIP;
  EXPECT(BAD, "host memory only", kvonce_pool_register(f->rank, &pool, &number, &last_error));
  pool.memory = KVONCE_MEMORY_HOST;
  component.layers = NULL;
  EXPECT(BAD, "its layers are NULL", kvonce_pool_register(f->rank, &pool, &number, &last_error));
  component.layers = &narrow;
  EXPECT(BAD, "'draft'", kvonce_pool_register(f->rank, &pool, &number, &last_error));
  component.name = NULL;
  EXPECT(BAD, "its name is NULL", kvonce_pool_register(f->rank, &pool, &number, &last_error));
  EXPECT(BAD, "pool handle 12", kvonce_pool_unregister(f->rank, 12, 1000, &last_error));
  CHECK(number == 77);

  kvonce_page page;
  EXPECT(BAD, "3 characters", kvonce_page_from_hex("abc", &page, &last_error));
  EXPECT(BAD, "text is NULL", kvonce_page_from_hex(NULL, &page, &last_error));
  char hex[65];
  page = page_of(3);
  kvonce_page_to_hex(&page, hex);
  kvonce_page back;
  OK(kvonce_page_from_hex(hex, &back, &last_error));
  CHECK(memcmp(&page, &back, sizeof page) == 0);

  uint8_t value[16];
  EXPECT(BAD, "0 bytes", kvonce_runtime_epoch(f->runtime, "", 0, value, &last_error));
  char long_name[300];
  memset(long_name, 'x', 299);
  long_name[299] = 0;
  EXPECT(BAD, "299 bytes", kvonce_runtime_epoch(f->runtime, long_name, 0, value, &last_error));
}

static void wrong_reports(fixture* f) {
  kvonce_counter counters[2] = {{"asked", 1}, {NULL, 2}};
  EXPECT(BAD, "counter 1 is NULL", kvonce_runtime_report(f->runtime, "x", counters, 2, &last_error));
  counters[1].name = "";
  EXPECT(BAD, "0 bytes", kvonce_runtime_report(f->runtime, "x", counters, 2, &last_error));
  counters[1].name = "two\nlines";
  EXPECT(BAD, "printable", kvonce_runtime_report(f->runtime, "x", counters, 2, &last_error));
  EXPECT(BAD, "printable", kvonce_runtime_report(f->runtime, "\xc3\xa9", counters, 1, &last_error));
  char text[257];
  memset(text, 'x', 256);
  text[256] = 0;
  EXPECT(BAD, "256 bytes", kvonce_runtime_report(f->runtime, text, counters, 1, &last_error));
  EXPECT(KVONCE_REASON_TOO_MANY, "65 counters",
         kvonce_runtime_report(f->runtime, "x", counters, KVONCE_REPORT_COUNTERS_MAX + 1, &last_error));
  for (unsigned i = 0; i <= KVONCE_REPORT_LABELS_MAX; ++i) {
    snprintf(text, sizeof text, "label %u", i);
    if (i < KVONCE_REPORT_LABELS_MAX) OK(kvonce_runtime_report(f->runtime, text, counters, 1, &last_error));
    else EXPECT(KVONCE_REASON_TOO_MANY, "'label 8'", kvonce_runtime_report(f->runtime, text, counters, 1, &last_error));
  }
}

static void long_texts(fixture* f) {
  /* A sentence with a whole namespace text in it is cut, and ends. */
  char text[5000];
  memset(text, 'n', sizeof text - 1);
  text[sizeof text - 1] = 0;
  uint32_t ns = 0;
  EXPECT(BAD, "4999 bytes", kvonce_namespace_open(f->runtime, text, &ns, &last_error));
  kvonce_runtime_options options;
  kvonce_runtime_options_init(&options);
  options.engine_id = "x";
  options.store = text;
  kvonce_runtime* runtime = NULL;
  CHECK(kvonce_runtime_start(&options, &runtime, &last_error) == BAD);
  CHECK(strlen(last_error.text) == KVONCE_TEXT_BYTES - 1);
  /* Not in the middle of a character: an e with an accent has two bytes. */
  for (size_t i = 1; i + 1 < sizeof text - 1; i += 2) memcpy(text + i, "\xc3\xa9", 2);
  for (int shift = 0; shift < 2; ++shift) {
    options.store = text + shift;
    CHECK(kvonce_runtime_start(&options, &runtime, &last_error) == BAD);
    CHECK(((unsigned char)last_error.text[strlen(last_error.text) - 1] & 0xc0U) != 0xc0U);
  }
}

void test_bad_input(void) {
  static fixture f;
  fixture_start(&f);
  null_handles(&f);
  wrong_sizes(&f);
  wrong_options();
  wrong_batches(&f);
  wrong_descriptions(&f);
  wrong_reports(&f);
  long_texts(&f);
  /* After all of that the fixture works. */
  put_pages(&f, ROWS);
  fixture_end(&f);
}
