/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

int checks_failed = 0;
kvonce_error last_error;

kvonce_page page_of(unsigned number) {
  kvonce_page page;
  for (unsigned i = 0; i < sizeof page.bytes; ++i) page.bytes[i] = (uint8_t)(number * 37U + i * (number + 3U));
  return page;
}

static unsigned char byte_of(unsigned page, unsigned layer, unsigned at) { return (unsigned char)(page * 7U + layer * 31U + at); }

void fill_row(fixture* f, unsigned row, unsigned page) {
  for (unsigned l = 0; l < LAYERS; ++l)
    for (unsigned i = 0; i < ROW_BYTES; ++i) f->rows[l][row * ROW_BYTES + i] = byte_of(page, l, i);
}

int row_holds(const fixture* f, unsigned row, unsigned page) {
  for (unsigned l = 0; l < LAYERS; ++l)
    for (unsigned i = 0; i < ROW_BYTES; ++i)
      if (f->rows[l][row * ROW_BYTES + i] != byte_of(page, l, i)) return 0;
  return 1;
}

void fixture_start(fixture* f) {
  memset(f, 0, sizeof *f);
  kvonce_runtime_options options;
  kvonce_runtime_options_init(&options);
  options.engine_id = "c-test";
  options.arena_bytes = 16U << 20U;
  options.index_pages = 4096;
  options.huge_pages = 0;
  OK(kvonce_runtime_start(&options, &f->runtime, &last_error));
  if (f->runtime == NULL) exit(1);
  OK(kvonce_namespace_open(f->runtime, "model", &f->ns, &last_error));
  const kvonce_shards replicated = {1, 1, 1};
  const kvonce_group_pool pools[] = {{.name = "kv", .shards = &replicated},
                                     {.name = "draft", .shards = &replicated, .optional = 1}};
  const kvonce_group_options group = {.size = sizeof group, .name = "main", .pools = pools, .pool_count = 2, .ranks = {1, 1, 1}};
  OK(kvonce_group_register(f->runtime, f->ns, &group, &f->group, &last_error));
  const kvonce_coordinates alone = {{0, 1}, {0, 1}, {0, 1}};
  OK(kvonce_rank_add(f->runtime, f->group, &alone, &f->rank, &last_error));
  if (f->rank == NULL) exit(1);
  kvonce_layer layers[LAYERS];
  for (unsigned l = 0; l < LAYERS; ++l) layers[l] = (kvonce_layer){f->rows[l], ROW_BYTES, ROW_BYTES};
  const kvonce_component component = {"kv", layers, LAYERS};
  const kvonce_pool_options pool = {
      .size = sizeof pool, .name = "kv", .shard = &alone, .components = &component, .component_count = 1, .rows = ROWS};
  OK(kvonce_pool_register(f->rank, &pool, &f->pool, &last_error));
}

void fixture_end(fixture* f) {
  kvonce_rank_free(f->rank);
  kvonce_runtime_free(f->runtime);
}

void finish(kvonce_operation* operation) {
  OK(kvonce_operation_wait(operation, KVONCE_NO_TIMEOUT, &last_error));
  kvonce_operation_free(operation);
}

void put_pages(fixture* f, unsigned count) {
  kvonce_page pages[ROWS];
  kvonce_item items[ROWS];
  for (unsigned i = 0; i < count; ++i) {
    pages[i] = page_of(i);
    items[i] = (kvonce_item){i, f->pool, i};
    fill_row(f, i, i);
  }
  kvonce_operation* put = NULL;
  OK(kvonce_put(f->rank, pages, count, items, count, NULL, &put, &last_error));
  OK(kvonce_operation_wait(put, KVONCE_NO_TIMEOUT, &last_error));
  uint64_t succeeded = 0;
  OK(kvonce_put_results(put, NULL, 0, NULL, &succeeded, &last_error));
  CHECK(succeeded == count);
  kvonce_operation_free(put);
}

int main(void) {
  test_bad_input();
  test_round_trip();
  test_ends();
  if (checks_failed != 0) fprintf(stderr, "%d checks failed\n", checks_failed);
  return checks_failed == 0 ? 0 : 1;
}
