/* SPDX-License-Identifier: Apache-2.0
 *
 * An event loop hears of many puts by one descriptor: each put waits for the "kernel" that fills its row, and ends in a queue.
 */
#include <kvonce/kvonce.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, ROW_BYTES = 65536 };

static unsigned char rows[ROWS * ROW_BYTES];
static kvonce_error error;

static void need(kvonce_reason reason, const char* what) {
  if (reason == KVONCE_REASON_NONE) return;
  fprintf(stderr, "%s: %s: %s\n", what, kvonce_reason_text((int)reason), error.text);
  exit(1);
}

int main(void) {
  kvonce_runtime_options options;
  kvonce_runtime_options_init(&options);
  options.engine_id = "example loop";
  options.arena_bytes = 64U << 20U;
  kvonce_runtime* runtime = NULL;
  need(kvonce_runtime_start(&options, &runtime, &error), "start");
  uint32_t ns = 0, group = 0, pool = 0;
  need(kvonce_namespace_open(runtime, "loop", &ns, &error), "namespace");
  const kvonce_group_pool pools[] = {{.name = "kv"}};
  const kvonce_group_options group_options = {
      .size = sizeof group_options, .name = "main", .pools = pools, .pool_count = 1, .ranks = {1, 1, 1}};
  need(kvonce_group_register(runtime, ns, &group_options, &group, &error), "group");
  const kvonce_coordinates alone = {{0, 1}, {0, 1}, {0, 1}};
  kvonce_rank* rank = NULL;
  need(kvonce_rank_add(runtime, group, &alone, &rank, &error), "rank");
  const kvonce_layer layer = {rows, ROW_BYTES, ROW_BYTES};
  const kvonce_component component = {"kv", &layer, 1};
  const kvonce_pool_options pool_options = {
      .size = sizeof pool_options, .name = "kv", .components = &component, .component_count = 1, .rows = ROWS};
  need(kvonce_pool_register(rank, &pool_options, &pool, &error), "pool");

  kvonce_queue* queue = NULL;
  need(kvonce_queue_create(0, &queue, &error), "queue");
  kvonce_operation* puts[ROWS];
  kvonce_event* filled[ROWS];
  for (uint32_t r = 0; r < ROWS; ++r) {
    need(kvonce_event_create(&filled[r], &error), "event");
    kvonce_page page;
    memset(page.bytes, 'A' + (int)r, sizeof page.bytes);
    const kvonce_item item = {0, pool, r};
    const kvonce_put_options put_options = {
        .size = sizeof put_options, .after = filled[r], .completion = {.queue = queue, .user_data = r}};
    need(kvonce_put(rank, &page, 1, &item, 1, &put_options, &puts[r], &error), "put");
  }
  for (uint32_t r = 0; r < ROWS; ++r) {
    memset(rows + r * ROW_BYTES, 'A' + (int)r, ROW_BYTES); /* no byte of the row was read before this */
    need(kvonce_event_signal(filled[r], &error), "signal");
    kvonce_event_free(filled[r]);
  }

  uint64_t stored = 0;
  for (int left = ROWS; left > 0;) {
    struct pollfd wanted = {.fd = kvonce_queue_fd(queue), .events = POLLIN};
    if (poll(&wanted, 1, 30000) <= 0) return fprintf(stderr, "nothing came within 30 s\n"), 1;
    kvonce_queue_entry entries[4];
    size_t count = 0;
    need(kvonce_queue_poll(queue, entries, 4, &count, &error), "poll");
    for (size_t i = 0; i < count; ++i, --left) {
      kvonce_operation* const put = puts[entries[i].user_data];
      uint64_t succeeded = 0;
      need(kvonce_put_results(put, NULL, 0, NULL, &succeeded, &error), "results");
      stored += succeeded;
      kvonce_operation_free(put);
    }
  }
  printf("%llu of %d pages are stored\n", (unsigned long long)stored, ROWS);
  kvonce_rank_free(rank);
  kvonce_runtime_free(runtime);
  kvonce_queue_free(queue);
  return stored == ROWS ? 0 : 1;
}
