/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank puts two pages of a prompt, looks the prompt up, and loads them into other rows, layer by layer.
 * Usage: pages [STORE]; STORE is "embedded" (default), "unix:PATH" or "auto".
 */
#include <kvonce/kvonce.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, ROWS = 8, ROW_BYTES = 4096, PAGES = 2 };

static unsigned char keys[LAYERS][ROWS * ROW_BYTES], values[LAYERS][ROWS * ROW_BYTES];
static kvonce_error error;

/* Every call answers 0, or says in `error` what was wrong. */
static void need(kvonce_reason reason, const char* what) {
  if (reason == KVONCE_REASON_NONE) return;
  fprintf(stderr, "%s: %s: %s\n", what, kvonce_reason_text((int)reason), error.text);
  exit(1);
}

int main(int count_of_arguments, char** arguments) {
  kvonce_runtime_options options;
  kvonce_runtime_options_init(&options);
  options.engine_id = "example";
  options.store = count_of_arguments > 1 ? arguments[1] : "embedded";
  options.arena_bytes = 64U << 20U;
  kvonce_runtime* runtime = NULL;
  need(kvonce_runtime_start(&options, &runtime, &error), "start");

  /* What else decides the bytes, and the pools that a prefix needs together: here one, the same on all ranks. */
  uint32_t ns = 0, group = 0, pool = 0;
  need(kvonce_namespace_open(runtime, "my-model, bf16, 64 tokens a page", &ns, &error), "namespace");
  const kvonce_shards replicated = {1, 1, 1};
  const kvonce_group_pool pools[] = {{.name = "kv", .shards = &replicated}};
  const kvonce_group_options group_options = {
      .size = sizeof group_options, .name = "main", .pools = pools, .pool_count = 1, .ranks = {1, 1, 1}};
  need(kvonce_group_register(runtime, ns, &group_options, &group, &error), "group");

  /* This process's rank and its memory: a row of every layer of K and V is one page. */
  const kvonce_coordinates alone = {{0, 1}, {0, 1}, {0, 1}};
  kvonce_rank* rank = NULL;
  need(kvonce_rank_add(runtime, group, &alone, &rank, &error), "rank");
  kvonce_layer k[LAYERS], v[LAYERS];
  for (int l = 0; l < LAYERS; ++l) {
    k[l] = (kvonce_layer){keys[l], ROW_BYTES, ROW_BYTES};
    v[l] = (kvonce_layer){values[l], ROW_BYTES, ROW_BYTES};
  }
  const kvonce_component components[] = {{"k", k, LAYERS}, {"v", v, LAYERS}};
  const kvonce_pool_options pool_options = {
      .size = sizeof pool_options, .name = "kv", .shard = &alone, .components = components, .component_count = 2, .rows = ROWS};
  need(kvonce_pool_register(rank, &pool_options, &pool, &error), "pool");

  /* Pages 0 and 1 lie in rows 0 and 1. */
  for (int l = 0; l < LAYERS; ++l)
    for (int i = 0; i < PAGES * ROW_BYTES; ++i) keys[l][i] = (unsigned char)(l + i), values[l][i] = (unsigned char)(l - i);
  kvonce_page pages[PAGES];
  for (int p = 0; p < PAGES; ++p) memset(pages[p].bytes, 'a' + p, sizeof pages[p].bytes); /* your chained hashes */
  const kvonce_item from[PAGES] = {{0, pool, 0}, {1, pool, 1}};
  kvonce_operation* put = NULL;
  need(kvonce_put(rank, pages, PAGES, from, PAGES, NULL, &put, &error), "put");
  need(kvonce_operation_wait(put, KVONCE_NO_TIMEOUT, &error), "wait for the put");
  kvonce_put_result verdicts[PAGES];
  need(kvonce_put_results(put, verdicts, PAGES, NULL, NULL, &error), "verdicts");
  for (int p = 0; p < PAGES; ++p) printf("page %d: %s\n", p, kvonce_verdict_text(verdicts[p].verdict));
  kvonce_operation_free(put);

  /* How much of a prompt can be restored? The answer holds a lease on it. */
  kvonce_operation* lookup = NULL;
  need(kvonce_lookup(runtime, group, pages, PAGES, NULL, &lookup, &error), "lookup");
  need(kvonce_operation_wait(lookup, KVONCE_NO_TIMEOUT, &error), "wait for the lookup");
  kvonce_lookup_result found = {.size = sizeof found};
  need(kvonce_lookup_get_result(lookup, &found, &error), "lookup");
  kvonce_operation_free(lookup);
  printf("restorable: %u of %d pages\n", found.restorable_pages, PAGES);

  /* Into rows 4 and 5; the first layers can be used while the last ones are still copied. */
  const kvonce_item to[PAGES] = {{0, pool, 4}, {1, pool, 5}};
  const kvonce_load_options load_options = {.size = sizeof load_options, .layers_per_group = 1};
  kvonce_operation* load = NULL;
  need(kvonce_load(rank, &found.lease, pages, PAGES, to, PAGES, &load_options, &load, &error), "load");
  for (uint32_t layer = 1; layer <= LAYERS; ++layer) {
    need(kvonce_load_wait_layers(load, layer, KVONCE_NO_TIMEOUT, &error), "wait for a layer");
    if (kvonce_load_layers_done(load) < layer) break; /* the load has ended without it: the results say why */
    printf("layer %u is there\n", layer - 1);
  }
  need(kvonce_operation_wait(load, KVONCE_NO_TIMEOUT, &error), "wait for the load");
  uint8_t reasons[PAGES];
  uint64_t loaded = 0;
  need(kvonce_load_results(load, reasons, PAGES, NULL, &loaded, &error), "results");
  kvonce_operation_free(load);
  need(kvonce_lease_release(runtime, &found.lease, &error), "release");

  int same = loaded == PAGES;
  for (int l = 0; l < LAYERS; ++l)
    same = same && memcmp(keys[l], keys[l] + 4 * ROW_BYTES, PAGES * ROW_BYTES) == 0 &&
           memcmp(values[l], values[l] + 4 * ROW_BYTES, PAGES * ROW_BYTES) == 0;
  printf("loaded bytes are %s\n", same ? "the same" : "different");
  kvonce_rank_free(rank);
  kvonce_runtime_free(runtime);
  return same ? 0 : 1;
}
