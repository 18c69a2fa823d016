/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of what has ended: a stopped runtime, a freed one, a closed rank, the parent's after a fork; a store of another
 * process.
 */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#define CLOSED KVONCE_REASON_CLOSED

/* Every call that asks the runtime answers `closed`, with `part` in its sentence. */
static void all_closed(fixture* f, kvonce_operation* operation, const char* part) {
  const kvonce_page page = page_of(1);
  const kvonce_item item = {0, f->pool, 0};
  const kvonce_lease lease = {1, 2};
  kvonce_operation* none = NULL;
  uint32_t number = 0;
  uint8_t found = 0, value[16];
  kvonce_stats stats = {.size = sizeof stats};
  const kvonce_group_pool pool = {.name = "kv"};
  const kvonce_group_options group = {.size = sizeof group, .name = "late", .pools = &pool, .pool_count = 1, .ranks = {1, 1, 1}};
  const kvonce_coordinates alone = {{0, 1}, {0, 1}, {0, 1}};
  kvonce_rank* rank = NULL;
  EXPECT(CLOSED, part, kvonce_namespace_open(f->runtime, "x", &number, &last_error));
  EXPECT(CLOSED, part, kvonce_namespace_find(f->runtime, "x", &number, &last_error));
  EXPECT(CLOSED, part, kvonce_namespace_pools(f->runtime, f->ns, NULL, 0, NULL, &last_error));
  EXPECT(CLOSED, part, kvonce_namespace_close(f->runtime, f->ns, &last_error));
  EXPECT(CLOSED, part, kvonce_group_register(f->runtime, f->ns, &group, &number, &last_error));
  EXPECT(CLOSED, part, kvonce_rank_add(f->runtime, f->group, &alone, &rank, &last_error));
  EXPECT(CLOSED, part, kvonce_lookup(f->runtime, f->group, &page, 1, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_lease_release(f->runtime, &lease, &last_error));
  EXPECT(CLOSED, part, kvonce_lease_narrow(f->runtime, &lease, 1, &last_error));
  EXPECT(CLOSED, part, kvonce_exists(f->runtime, f->group, "kv", 0, &page, 1, &found, &last_error));
  EXPECT(CLOSED, part, kvonce_stat(f->runtime, f->ns, &page, NULL, NULL, 0, NULL, &last_error));
  EXPECT(CLOSED, part, kvonce_remove_key(f->runtime, f->group, "kv", 0, &page, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_remove_pages(f->runtime, f->ns, &page, 1, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_remove_namespace(f->runtime, f->ns, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_clear(f->runtime, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_flush(f->runtime, 0, 0, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_epoch(f->runtime, "w", 0, value, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_clients(f->runtime, NULL, 0, NULL, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_report(f->runtime, "x", NULL, 0, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_reports(f->runtime, NULL, 0, NULL, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_stats(f->runtime, &stats, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_subscribe(f->runtime, NULL, NULL, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_wait_connected(f->runtime, 60000, &last_error));
  EXPECT(CLOSED, part, kvonce_runtime_drain(f->runtime, 60000, &last_error));
  EXPECT(CLOSED, part, kvonce_put(f->rank, &page, 1, &item, 1, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_load(f->rank, &lease, &page, 1, &item, 1, NULL, &none, &last_error));
  EXPECT(CLOSED, part, kvonce_rank_exists(f->rank, f->pool, &page, 1, &found, &last_error));
  EXPECT(CLOSED, part, kvonce_pool_unregister(f->rank, f->pool, 60000, &last_error));
  CHECK(none == NULL && rank == NULL);
  CHECK(kvonce_runtime_connected(f->runtime) == 0);
  CHECK(kvonce_runtime_incarnation(f->runtime) == 0);
  (void)operation;
}

static kvonce_operation* waiting_put(fixture* f, kvonce_event* event, kvonce_queue* queue) {
  const kvonce_page page = page_of(50);
  const kvonce_item item = {0, f->pool, 0};
  const kvonce_put_options options = {.size = sizeof options, .after = event, .completion = {.queue = queue}};
  kvonce_operation* put = NULL;
  OK(kvonce_put(f->rank, &page, 1, &item, 1, &options, &put, &last_error));
  return put;
}

static void stopped(void) {
  static fixture f;
  fixture_start(&f);
  put_pages(&f, 2);
  kvonce_event* event = NULL;
  OK(kvonce_event_create(&event, &last_error));
  kvonce_operation* put = waiting_put(&f, event, NULL);
  OK(kvonce_runtime_stop(f.runtime, 60000, &last_error));
  OK(kvonce_runtime_stop(f.runtime, 60000, &last_error));
  CHECK(kvonce_operation_done(put) == 1);
  all_closed(&f, put, "stopped");
  /* The runtime goes first, its rank and its operation after it. */
  kvonce_runtime_free(f.runtime);
  kvonce_put_result result;
  OK(kvonce_put_results(put, &result, 1, NULL, NULL, &last_error));
  CHECK(result.verdict == KVONCE_VERDICT_UNKNOWN && result.reason == CLOSED);
  OK(kvonce_operation_cancel(put, &last_error));
  const kvonce_page page = page_of(1);
  const kvonce_item item = {0, f.pool, 0};
  kvonce_operation* none = NULL;
  EXPECT(CLOSED, "stopped", kvonce_put(f.rank, &page, 1, &item, 1, NULL, &none, &last_error));
  OK(kvonce_rank_close(f.rank, 1000, &last_error));
  kvonce_rank_free(f.rank);
  kvonce_operation_free(put);
  kvonce_event_free(event);
}

static void closed_rank(void) {
  static fixture f;
  fixture_start(&f);
  OK(kvonce_rank_close(f.rank, 60000, &last_error));
  OK(kvonce_rank_close(f.rank, 60000, &last_error));
  const kvonce_page page = page_of(1);
  const kvonce_item item = {0, f.pool, 0};
  const kvonce_lease lease = {1, 2};
  kvonce_operation* none = NULL;
  EXPECT(CLOSED, "rank is closed", kvonce_put(f.rank, &page, 1, &item, 1, NULL, &none, &last_error));
  EXPECT(CLOSED, "rank is closed", kvonce_load(f.rank, &lease, &page, 1, &item, 1, NULL, &none, &last_error));
  CHECK(none == NULL);
  fixture_end(&f);
}

static void forked(void) {
  static fixture f;
  fixture_start(&f);
  kvonce_event* event = NULL;
  kvonce_queue* queue = NULL;
  OK(kvonce_event_create(&event, &last_error));
  OK(kvonce_queue_create(0, &queue, &last_error));
  kvonce_operation* put = waiting_put(&f, event, queue);
  fflush(stderr);
  const pid_t child = fork();
  if (child == 0) {
    checks_failed = 0;
    all_closed(&f, put, "fork");
    kvonce_queue_entry entry;
    size_t count = 0;
    EXPECT(CLOSED, "fork", kvonce_runtime_stop(f.runtime, 1, &last_error));
    EXPECT(CLOSED, "fork", kvonce_rank_close(f.rank, 60000, &last_error));
    EXPECT(CLOSED, "fork", kvonce_operation_wait(put, KVONCE_NO_TIMEOUT, &last_error));
    EXPECT(CLOSED, "fork", kvonce_operation_cancel(put, &last_error));
    EXPECT(CLOSED, "fork", kvonce_put_results(put, NULL, 0, &count, NULL, &last_error));
    EXPECT(CLOSED, "fork", kvonce_event_signal(event, &last_error));
    EXPECT(CLOSED, "fork", kvonce_queue_wait(queue, &entry, 1, 60000000000, &count, &last_error));
    CHECK(kvonce_operation_done(put) == 0);
    CHECK(kvonce_event_ready(event) == 0);
    CHECK(kvonce_queue_fd(queue) == -1);
    kvonce_operation_free(put);
    kvonce_queue_free(queue);
    kvonce_event_free(event);
    fixture_end(&f);
    /* A runtime of its own. */
    static fixture own;
    fixture_start(&own);
    put_pages(&own, 4);
    fixture_end(&own);
    _exit(checks_failed == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  /* The parent has noticed nothing. */
  fill_row(&f, 0, 50);
  OK(kvonce_event_signal(event, &last_error));
  finish(put);
  put_pages(&f, 4);
  kvonce_event_free(event);
  kvonce_queue_free(queue);
  fixture_end(&f);
}

/* Until the store knows `wanted` counters: a report waits for nothing. */
static size_t reports_of(const kvonce_runtime* runtime, size_t wanted, kvonce_reported* reported, size_t capacity) {
  size_t count = 0;
  for (int waits = 0; waits < 60000; ++waits) {
    OK(kvonce_runtime_reports(runtime, reported, capacity, &count, &last_error));
    if (count == wanted) break;
    usleep(1000);
  }
  return count;
}

/* What two processes count of themselves, as each and the server see it. */
static void told_counters(kvonce_runtime* server, kvonce_runtime* one, kvonce_runtime* two) {
  const kvonce_counter first[] = {{"hit_tokens", UINT64_MAX}, {"asked_tokens", 0}};
  const kvonce_counter second = {"asked_tokens", 7};
  kvonce_reported reported[4];
  memset(reported, 0xff, sizeof reported);
  OK(kvonce_runtime_report(one, "rank 1", first, 2, &last_error));
  CHECK(reports_of(server, 2, reported, 4) == 2);
  CHECK(strcmp(reported[0].engine_id, "guest") == 0 && reported[0].pid == (uint32_t)getpid());
  CHECK(strcmp(reported[0].label, "rank 1") == 0 && strcmp(reported[0].name, "hit_tokens") == 0);
  CHECK(reported[0].value == UINT64_MAX);
  CHECK(strcmp(reported[1].name, "asked_tokens") == 0 && reported[1].value == 0);
  CHECK(reported[1].client == reported[0].client);
  OK(kvonce_runtime_report(two, "", &second, 1, &last_error));
  memset(reported, 0xff, sizeof reported);
  CHECK(reports_of(one, 3, reported, 1) == 3);
  CHECK(reported[0].client < 2 && reported[1].client == UINT32_MAX);
  CHECK(reports_of(one, 3, reported, 4) == 3);
  CHECK(reported[2].client != reported[0].client || reported[1].client != reported[0].client);
  for (int i = 0; i < 3; ++i) CHECK(reported[i].label[0] != 0 || reported[i].value == 7);
  /* Forgotten. */
  OK(kvonce_runtime_report(one, "rank 1", NULL, 0, &last_error));
  CHECK(reports_of(two, 1, reported, 4) == 1);
  CHECK(reported[0].label[0] == 0 && reported[0].value == 7);
}

/* Two runtimes in one process: one serves, one connects. */
static void served(void) {
  char folder[] = "kvonce-c-XXXXXX";
  CHECK(mkdtemp(folder) != NULL);
  char where[64];
  snprintf(where, sizeof where, "unix:%s/store", folder);
  kvonce_runtime_options options;
  kvonce_runtime_options_init(&options);
  options.engine_id = "host";
  options.serve = where;
  options.arena_bytes = 16U << 20U;
  options.huge_pages = 0;
  kvonce_runtime* server = NULL;
  OK(kvonce_runtime_start(&options, &server, &last_error));
  kvonce_runtime_options_init(&options);
  options.engine_id = "guest";
  options.store = where;
  options.connect_timeout_ms = 60000;
  kvonce_runtime* one = NULL;
  kvonce_runtime* two = NULL;
  OK(kvonce_runtime_start(&options, &one, &last_error));
  OK(kvonce_runtime_start(&options, &two, &last_error));
  uint8_t first[16], second[16];
  OK(kvonce_runtime_epoch(one, "w", 0, first, &last_error));
  OK(kvonce_runtime_epoch(two, "w", 0, second, &last_error));
  CHECK(memcmp(first, second, 16) == 0);
  kvonce_client clients[4];
  size_t count = 0;
  OK(kvonce_runtime_clients(one, clients, 4, &count, &last_error));
  CHECK(count == 2 && strcmp(clients[0].engine_id, "guest") == 0 && clients[0].pid == (uint32_t)getpid());
  CHECK(kvonce_runtime_incarnation(one) == kvonce_runtime_incarnation(server));
  told_counters(server, one, two);
  OK(kvonce_runtime_drain(server, 60000, &last_error));
  kvonce_runtime_free(server);
  for (int waits = 0; kvonce_runtime_connected(one) && waits < 60000; ++waits) usleep(1000);
  EXPECT(KVONCE_REASON_STORE_LOST, "lost", kvonce_runtime_report(one, "rank 0", NULL, 0, &last_error));
  EXPECT(KVONCE_REASON_STORE_LOST, "lost", kvonce_runtime_clients(one, NULL, 0, &count, &last_error));
  EXPECT(KVONCE_REASON_DEADLINE, "not back", kvonce_runtime_wait_connected(one, 1, &last_error));
  kvonce_runtime_free(one);
  kvonce_runtime_free(two);
  CHECK(rmdir(folder) == 0);
}

void test_ends(void) {
  stopped();
  closed_rank();
  forked();
  served();
}
