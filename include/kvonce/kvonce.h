/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of kvonce, for C11 and C++. No other header of kvonce is needed. docs/c.md shows whole programs.
 *
 * Calls: one that can fail answers KVONCE_REASON_NONE, or a reason; then it fills `error` (may be NULL) with the reason and a
 * sentence that names what was wrong, the value, and what is allowed, and leaves its out parameters alone. None throws, none ends
 * the process. All may be made from any thread; none that waits from a callback.
 *
 * Options: a struct whose first field is `size` is versioned. `kvonce_put_options options = {sizeof options};` is what NULL is:
 * the defaults (only kvonce_runtime_options needs its init). A struct that is smaller than its first version, or larger than this
 * library's with a tail that is not zero, is refused. Reserved fields are 0. Flags are 0 or 1.
 *
 * Handles: opaque pointers, made by _start, _create, _add or a call, ended by _free (NULL: no effect), not to be used after it.
 * What was made of a runtime may outlive it: ranks answer `closed` then, operations are done and keep their results; queues and
 * events belong to no runtime. Numbers (namespaces, groups, pools) are good for the life of their runtime or rank, or until they
 * are closed or unregistered.
 *
 * Results: are copied into memory of the caller. Lists are asked with a capacity: at most so many entries are written, `count`
 * (may be NULL) tells how many there are. Texts in results end with a zero byte and are cut at the stated size.
 *
 * Rows: from kvonce_put until its operation is done a row must not change; from kvonce_load until then it may be written. Freeing
 * an operation ends neither: it only gives up the result.
 *
 * Time: a call that waits takes timeout_ms, in its options where it has some, and answers `deadline` after it. Those without one
 * answer within 10 s (kvonce_runtime_stats 2 s, operations of remove and clear 30 s), with `deadline` too.
 *
 * Fork: in a child every call on a handle of the parent answers `closed` at once, and _free does nothing.
 */
#ifndef KVONCE_KVONCE_H
#define KVONCE_KVONCE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVONCE_C_API __attribute__((visibility("default")))
#else
#define KVONCE_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- words
 * -------------------------------------------------------------------------------------------------------------------------- */

/* Numbers never change their meaning; a later release may add some at the end. */
typedef enum kvonce_level { KVONCE_LEVEL_MEMORY = 0, KVONCE_LEVEL_DISK = 1, KVONCE_LEVEL_REPLICATED = 2 } kvonce_level;

typedef enum kvonce_verdict {
  KVONCE_VERDICT_NONE = 0,           /* not decided yet (never delivered) */
  KVONCE_VERDICT_STORED = 1,         /* stored, from this sender's bytes */
  KVONCE_VERDICT_JOINED = 2,         /* stored, from another sender's bytes */
  KVONCE_VERDICT_ALREADY_STORED = 3, /* was stored at the asked level before; nothing moved */
  KVONCE_VERDICT_REJECTED = 4,       /* not taken; see reason and retry_after_ms */
  KVONCE_VERDICT_CONFLICT = 5,       /* not the object that is registered under this key (another size) */
  KVONCE_VERDICT_FAILED = 6,         /* could not be stored; see reason */
  KVONCE_VERDICT_UNKNOWN = 7         /* own deadline passed, or the store was lost, before the outcome was known */
} kvonce_verdict;

typedef enum kvonce_reason {
  KVONCE_REASON_NONE = 0,
  KVONCE_REASON_ABSENT = 1,              /* never stored here, or forgotten */
  KVONCE_REASON_EVICTED = 2,             /* was stored and has been evicted lately */
  KVONCE_REASON_IN_FLIGHT = 3,           /* being written right now */
  KVONCE_REASON_BUSY = 4,                /* a limit is reached for the moment */
  KVONCE_REASON_GROUP_INCOMPLETE = 5,    /* the page is there, but a pool or shard of its group is not */
  KVONCE_REASON_STORE_LOST = 6,          /* the store has ended or was stopped */
  KVONCE_REASON_DEADLINE = 7,            /* the caller's deadline passed */
  KVONCE_REASON_NO_SPACE = 8,            /* nothing (more) can be evicted for it; or memory or descriptors cannot be had */
  KVONCE_REASON_REMOVED = 9,             /* removed or cleared while it was being written or read */
  KVONCE_REASON_UNVERIFIED = 10,         /* this rank's bytes differ from another rank's for the same key */
  KVONCE_REASON_LEVEL_UNAVAILABLE = 11,  /* the store does not have the asked level */
  KVONCE_REASON_UNKNOWN_NAMESPACE = 12,  /* the namespace is not registered */
  KVONCE_REASON_UNKNOWN_POOL = 13,       /* the pool is not registered, or has no bytes */
  KVONCE_REASON_WRONG_SIZE = 14,         /* the object's size is not the registered pool's */
  KVONCE_REASON_ROW_OUT_OF_RANGE = 15,   /* the row lies outside the pool's buffers */
  KVONCE_REASON_LEASE_UNKNOWN = 16,      /* no such lease: forged, of another engine, or of another life of the store */
  KVONCE_REASON_LEASE_EXPIRED = 17,      /* the lease's deadline has passed, or it was released */
  KVONCE_REASON_CHECKSUM_MISMATCH = 18,  /* the bytes read are not those that were written; never handed out */
  KVONCE_REASON_GENERATION_CHANGED = 19, /* the pool was demoted to per-rank keys in the meantime */
  KVONCE_REASON_CANCELED = 20,           /* canceled by the caller */
  KVONCE_REASON_COPY_FAILED = 21,        /* the copy could not be made */
  KVONCE_REASON_PERSIST_FAILED = 22,     /* the asked level could not be reached */
  KVONCE_REASON_CLOSED = 23,             /* the runtime, rank or pool is closed or closing, or the parent's before a fork */
  KVONCE_REASON_TOO_MANY = 24,           /* above a stated limit */
  KVONCE_REASON_BAD_ARGUMENT = 25        /* the call itself is wrong; the error's text names what */
} kvonce_reason;

typedef enum kvonce_operation_kind {
  KVONCE_OPERATION_PUT = 0,
  KVONCE_OPERATION_LOAD = 1,
  KVONCE_OPERATION_LOOKUP = 2,
  KVONCE_OPERATION_FLUSH = 3,
  KVONCE_OPERATION_REMOVE = 4
} kvonce_operation_kind;

typedef enum kvonce_store_event_kind {
  KVONCE_STORE_EVENT_STORED = 0,
  KVONCE_STORE_EVENT_EVICTED = 1,
  KVONCE_STORE_EVENT_REMOVED = 2
} kvonce_store_event_kind;

typedef enum kvonce_memory { KVONCE_MEMORY_HOST = 0, KVONCE_MEMORY_HIP = 1 } kvonce_memory;

#define KVONCE_BATCH_MAX 65536U /* pages, and items, of one call */
#define KVONCE_EVERY_LAYER 0xffffffffU
#define KVONCE_NO_TIMEOUT UINT64_MAX   /* of waits: until the operation's own deadline */
#define KVONCE_NAME_BYTES 256          /* of texts in results, the zero byte included */
#define KVONCE_REPORT_COUNTERS_MAX 64U /* of one kvonce_runtime_report */
#define KVONCE_REPORT_LABELS_MAX 8U    /* of one process */
#define KVONCE_TEXT_BYTES 1020

/* Static texts such as "already_stored"; of an unknown number "?". */
KVONCE_C_API const char* kvonce_level_text(int level);
KVONCE_C_API const char* kvonce_verdict_text(int verdict);
KVONCE_C_API const char* kvonce_reason_text(int reason);
KVONCE_C_API const char* kvonce_operation_kind_text(int kind);
KVONCE_C_API const char* kvonce_store_event_kind_text(int kind);
/* 1 for stored, joined and already_stored: the page is readable at the level that was asked for. */
KVONCE_C_API int kvonce_verdict_is_success(int verdict);
/* Version, commit, CAF version, build: a static text. */
KVONCE_C_API const char* kvonce_version(void);

/* Owned by the caller, overwritten by each call that fails. */
typedef struct kvonce_error {
  uint32_t reason; /* kvonce_reason */
  char text[KVONCE_TEXT_BYTES];
} kvonce_error;

/* The engine's chained hash of one page. */
typedef struct kvonce_page {
  uint8_t bytes[32];
} kvonce_page;
/* From exactly 64 hexadecimal digits. */
KVONCE_C_API kvonce_reason kvonce_page_from_hex(const char* hex, kvonce_page* page, kvonce_error* error);
KVONCE_C_API void kvonce_page_to_hex(const kvonce_page* page, char hex[65]);

/* All zero: none. */
typedef struct kvonce_lease {
  uint64_t high;
  uint64_t low;
} kvonce_lease;

/* `index` of `of` on each axis. A replicated axis is {0, 1}. */
typedef struct kvonce_axis {
  uint16_t index;
  uint16_t of;
} kvonce_axis;
typedef struct kvonce_coordinates {
  kvonce_axis tp, pp, cp;
} kvonce_coordinates;
typedef struct kvonce_shards {
  uint16_t tp, pp, cp;
} kvonce_shards;

typedef struct kvonce_runtime kvonce_runtime;
typedef struct kvonce_rank kvonce_rank;
typedef struct kvonce_operation kvonce_operation;
typedef struct kvonce_queue kvonce_queue;
typedef struct kvonce_event kvonce_event;

/* ---- runtime
 * ------------------------------------------------------------------------------------------------------------------------ */

/* As kvonce::RuntimeConfig (include/kvonce/config.hpp), where each field's range stands. Texts: NULL is the default. Set it up by
 * kvonce_runtime_options_init: the defaults of its numbers are not zero. */
typedef struct kvonce_runtime_options {
  size_t size;
  const char* engine_id; /* names the running engine whose processes share leases and epochs; needed */
  const char* store;     /* "embedded" (default), "unix:PATH", or "auto": this user's kvonced, started when none answers */
  const char* serve;     /* "unix:PATH": where other processes connect to an embedded store */
  const char* serve_group;
  const char* arena_file;
  const char* kvonced_path;
  const char* policy;
  const char* copy_kernel;
  uint64_t connect_timeout_ms, engine_grace_ms, auto_idle_ms, grant_base_ms, verify_window_ms, lease_time_ms;
  uint64_t auto_bytes, arena_bytes, capacity_bytes, index_pages, window_bytes, least_rate, leased_bytes, inline_copy_bytes;
  uint32_t max_clients, partitions, ghost_entries, verify_sample, conflict_limit, leased_stops, scheduler_threads, mover_threads;
  int32_t numa_node;                                            /* -1: wherever the system puts it */
  uint32_t read_only, populate, checksums, demote, caller_runs; /* flags */
  uint32_t huge_pages; /* 0: off, 1: where the system has some, 2: those that are kept aside, or the store does not start */
  uint32_t reserved;   /* 0 */
} kvonce_runtime_options;
KVONCE_C_API void kvonce_runtime_options_init_sized(kvonce_runtime_options* options, size_t size);
#define kvonce_runtime_options_init(options) kvonce_runtime_options_init_sized((options), sizeof *(options))

/* Starts, and with a store of another process connects. Nothing is left behind on failure. */
KVONCE_C_API kvonce_reason kvonce_runtime_start(const kvonce_runtime_options* options, kvonce_runtime** runtime,
                                                kvonce_error* error);
/* Open operations end with closed; later calls answer `closed`. Idempotent. Refused in a callback, which it would wait for. */
KVONCE_C_API kvonce_reason kvonce_runtime_stop(kvonce_runtime* runtime, uint64_t timeout_ms, kvonce_error* error);
/* Stops first, within 5 s. Not from a callback. */
KVONCE_C_API void kvonce_runtime_free(kvonce_runtime* runtime);

/* 0 while the store is lost: calls end with store_lost, and a connection is tried again and again. */
KVONCE_C_API int kvonce_runtime_connected(const kvonce_runtime* runtime);
/* Random number of this life of the store; 0 while it is lost. */
KVONCE_C_API uint64_t kvonce_runtime_incarnation(const kvonce_runtime* runtime);
/* `deadline` when the time (at most 1 h) passed first. */
KVONCE_C_API kvonce_reason kvonce_runtime_wait_connected(const kvonce_runtime* runtime, uint64_t timeout_ms, kvonce_error* error);
/* Before the stop of a store that others use: see docs/embedding.md. */
KVONCE_C_API kvonce_reason kvonce_runtime_drain(kvonce_runtime* runtime, uint64_t timeout_ms, kvonce_error* error);

typedef struct kvonce_store_start {
  size_t size;
  uint64_t restored_objects;
  uint64_t warm; /* 1: with the pages of its last life */
  char why_cold[KVONCE_TEXT_BYTES + 4];
} kvonce_store_start;
KVONCE_C_API kvonce_reason kvonce_runtime_store_start(const kvonce_runtime* runtime, kvonce_store_start* start,
                                                      kvonce_error* error);

typedef struct kvonce_client {
  char engine_id[KVONCE_NAME_BYTES];
  uint64_t open_grants;
  uint64_t quarantined_bytes;
  uint32_t pid;
  uint32_t ranks;
  uint32_t read_only;
  uint32_t reserved;
} kvonce_client;
/* The processes that are connected to the store. */
KVONCE_C_API kvonce_reason kvonce_runtime_clients(const kvonce_runtime* runtime, kvonce_client* clients, size_t capacity,
                                                  size_t* count, kvonce_error* error);

/* One counter that a process has told of itself. */
typedef struct kvonce_counter {
  const char* name; /* 1 to 64 bytes of printable ASCII */
  uint64_t value;
} kvonce_counter;
/* Gives counters of this process to the store, for kvonce_runtime_reports and `kvonce stat` to show. They replace those of the
 * same label (0 to 255 bytes of printable ASCII, say "rank 3"), and go with the connection: tell them again from time to time. 0
 * counters: the label is forgotten. More than KVONCE_REPORT_COUNTERS_MAX counters or KVONCE_REPORT_LABELS_MAX labels: `too_many`.
 * Sends, and waits for nothing; `store_lost` while the store is. An embedded store, which only its own process asks, keeps none.
 */
KVONCE_C_API kvonce_reason kvonce_runtime_report(kvonce_runtime* runtime, const char* label, const kvonce_counter* counters,
                                                 size_t count, kvonce_error* error);

typedef struct kvonce_reported {
  char engine_id[KVONCE_NAME_BYTES];
  char label[KVONCE_NAME_BYTES];
  char name[KVONCE_NAME_BYTES];
  uint64_t value;
  uint32_t pid;
  uint32_t client; /* its place in the list of kvonce_runtime_clients that this was taken from */
} kvonce_reported;
/* The counters of all processes that are connected to the store: by client, label, and in the order that each was told in. Those
 * of clients at the end are left out where the list becomes too long. */
KVONCE_C_API kvonce_reason kvonce_runtime_reports(const kvonce_runtime* runtime, kvonce_reported* reported, size_t capacity,
                                                  size_t* count, kvonce_error* error);

/* As kvonce::Stats: counters since the start unless named _now; bytes are payload bytes unless said. */
typedef struct kvonce_stats {
  size_t size;
  uint64_t verdicts[16]; /* by kvonce_verdict */
  uint64_t misses[64];   /* by kvonce_reason */
  uint64_t announced_items, announced_bytes;
  uint64_t moved_bytes; /* copied from rows into slots, repeats included */
  uint64_t stored_objects, stored_bytes;
  uint64_t loaded_items, loaded_bytes, load_failures;
  uint64_t promotions, conflicts, divergent, demotions, samples, unverified;
  uint64_t lookups, lookup_pages_asked, lookup_pages_hit;
  uint64_t evicted_objects, evicted_bytes, evicted_page_sets, evicted_checkpoint_sets;
  uint64_t objects_now, pages_now, payload_bytes_now, slot_bytes_now, capacity_bytes, arena_slot_bytes, free_bytes_now;
  uint64_t claims_now, leases_now, leased_bytes_now, quarantined_bytes_now, rows_lent_now, unverified_pools_now;
  uint64_t events_dropped;
  uint64_t store_answered; /* 1 or 0: the store is lost or slow, and what it counts is left out or is less than it is */
} kvonce_stats;
/* Set `size` before. */
KVONCE_C_API kvonce_reason kvonce_runtime_stats(const kvonce_runtime* runtime, kvonce_stats* stats, kvonce_error* error);

typedef struct kvonce_store_event {
  const char* pool; /* good during the call */
  kvonce_page page;
  uint32_t kind; /* kvonce_store_event_kind */
  uint32_t ns;
  uint32_t shard;
  uint32_t reserved;
} kvonce_store_event;
/* Stored, evicted and removed objects, in batches, on a thread of kvonce. NULL ends it: no call comes after this one has
 * returned. */
KVONCE_C_API kvonce_reason kvonce_runtime_subscribe(kvonce_runtime* runtime,
                                                    void (*callback)(const kvonce_store_event* events, size_t count,
                                                                     void* argument),
                                                    void* argument, kvonce_error* error);

/* 16 random bytes that the store gives out once per (engine id, name of 1 to 255 bytes): all processes of one engine get the
 * same. Names weights in a namespace's text. timeout 1 ms to 1 h; 0: 5 s. */
KVONCE_C_API kvonce_reason kvonce_runtime_epoch(kvonce_runtime* runtime, const char* name, uint64_t timeout_ms, uint8_t value[16],
                                                kvonce_error* error);

/* ---- namespaces, groups, ranks, pools
 * ----------------------------------------------------------------------------------------------- */

/* The text (1 to 4,096 bytes) says all that decides the bytes besides hash, pool and shard. */
KVONCE_C_API kvonce_reason kvonce_namespace_open(kvonce_runtime* runtime, const char* text, uint32_t* ns, kvonce_error* error);
/* One that nobody has opened is unknown_namespace, and is not made. */
KVONCE_C_API kvonce_reason kvonce_namespace_find(kvonce_runtime* runtime, const char* text, uint32_t* ns, kvonce_error* error);
/* This process uses the namespace no more; to be called as often as it was opened or found here. After the last time its number
 * and the groups made of it mean nothing; `busy` while pools of ranks are registered in it. What is stored stays. A store has
 * room for 1,024 namespaces: when a new one needs the place, the one goes, with its objects, that no connected process has had
 * open for longest. `unknown_namespace`: not open here. Answers also while the store is lost. */
KVONCE_C_API kvonce_reason kvonce_namespace_close(kvonce_runtime* runtime, uint32_t ns, kvonce_error* error);

typedef struct kvonce_known_pool {
  char name[KVONCE_NAME_BYTES];
  uint64_t object_bytes; /* 0: not known yet, or without bytes */
  kvonce_shards shards;
  uint16_t reserved;
} kvonce_known_pool;
KVONCE_C_API kvonce_reason kvonce_namespace_pools(const kvonce_runtime* runtime, uint32_t ns, kvonce_known_pool* pools,
                                                  size_t capacity, size_t* count, kvonce_error* error);

/* One pool of a page group, described without memory. */
typedef struct kvonce_group_pool {
  const char* name;
  const kvonce_shards* shards; /* NULL: as many as there are ranks; {1, 1, 1}: replicated, the same bytes on all ranks */
  uint32_t trailing_pages;     /* 0: every page of a prefix; n: the last n before its end (at most 65,535) */
  uint32_t optional;           /* flag: a prefix is restorable without it */
} kvonce_group_pool;
typedef struct kvonce_group_options {
  size_t size;
  const char* name; /* 1 to 255 bytes, unique within the namespace */
  const kvonce_group_pool* pools;
  size_t pool_count;   /* 1 to 64 */
  kvonce_shards ranks; /* ranks of the engine on each axis */
  uint16_t reserved;   /* 0 */
  uint64_t timeout_ms; /* 1 ms to 1 h; 0: 10 s */
} kvonce_group_options;
KVONCE_C_API kvonce_reason kvonce_group_register(kvonce_runtime* runtime, uint32_t ns, const kvonce_group_options* options,
                                                 uint32_t* group, kvonce_error* error);

/* One rank of the engine in this process: its pools, puts and loads. */
KVONCE_C_API kvonce_reason kvonce_rank_add(kvonce_runtime* runtime, uint32_t group, const kvonce_coordinates* at,
                                           kvonce_rank** rank, kvonce_error* error);
/* Unregisters all pools and ends the rank. `deadline`: it is still closing, its rows must stay; call again.
 * In a callback it only begins: the rows are back when the last operation is done. */
KVONCE_C_API kvonce_reason kvonce_rank_close(kvonce_rank* rank, uint64_t timeout_ms, kvonce_error* error);
/* Closes first, within 30 s. */
KVONCE_C_API void kvonce_rank_free(kvonce_rank* rank);
/* Bytes that this rank has moved into the store. */
KVONCE_C_API uint64_t kvonce_rank_moved_bytes(const kvonce_rank* rank);

/* Row r of a layer starts at base + r * row_stride; row_bytes of it belong to the object. */
typedef struct kvonce_layer {
  void* base;
  uint64_t row_stride;
  uint64_t row_bytes;
} kvonce_layer;
typedef struct kvonce_component {
  const char* name;
  const kvonce_layer* layers;
  size_t layer_count;
} kvonce_component;
typedef struct kvonce_pool_options {
  size_t size;
  const char* name;                /* one of the group's pools */
  const kvonce_coordinates* shard; /* NULL: by rank on every axis */
  const kvonce_component* components;
  size_t component_count; /* 0: a pool without bytes */
  uint64_t rows;          /* rows of every layer, named 0 .. rows-1 */
  uint32_t memory;        /* kvonce_memory */
  int32_t device;
  uint64_t timeout_ms; /* 1 ms to 1 h; 0: 10 s */
} kvonce_pool_options;
KVONCE_C_API kvonce_reason kvonce_pool_register(kvonce_rank* rank, const kvonce_pool_options* options, uint32_t* pool,
                                                kvonce_error* error);
/* Refuses new work for the pool and waits until no row of it is lent. `deadline`: still closing; call again. */
KVONCE_C_API kvonce_reason kvonce_pool_unregister(kvonce_rank* rank, uint32_t pool, uint64_t timeout_ms, kvonce_error* error);

/* ---- events and completions
 * --------------------------------------------------------------------------------------------------------- */

/* What a copy waits for before it touches its first byte. Fires once and stays fired. */
KVONCE_C_API kvonce_reason kvonce_event_create(kvonce_event** event, kvonce_error* error);
/* Fires when `query` first answers non-zero; asked from any thread, one at a time, never again after that. It must be quick, and
 * good until then, or until all operations that wait for it are done. */
KVONCE_C_API kvonce_reason kvonce_event_create_polled(int (*query)(void* argument), void* argument, kvonce_event** event,
                                                      kvonce_error* error);
KVONCE_C_API kvonce_reason kvonce_event_signal(kvonce_event* event, kvonce_error* error);
KVONCE_C_API int kvonce_event_ready(const kvonce_event* event);
/* Operations that wait for it keep it. */
KVONCE_C_API void kvonce_event_free(kvonce_event* event);

/* Where news of an operation's end goes, besides the operation itself. All zero: nowhere. */
typedef struct kvonce_completion {
  kvonce_queue* queue;
  uint64_t user_data;
  void (*callback)(void* argument); /* on a thread of kvonce, or the calling one: it must not block */
  void* argument;
} kvonce_completion;
typedef struct kvonce_queue_entry {
  uint64_t operation; /* kvonce_operation_id */
  uint64_t user_data;
  uint32_t kind; /* kvonce_operation_kind */
  uint32_t reserved;
} kvonce_queue_entry;
/* Holds `limit` entries (0: 65,536); an operation that finds it full is counted in dropped, and known to be done by itself. */
KVONCE_C_API kvonce_reason kvonce_queue_create(size_t limit, kvonce_queue** queue, kvonce_error* error);
/* Never blocks. `count` entries were written. */
KVONCE_C_API kvonce_reason kvonce_queue_poll(kvonce_queue* queue, kvonce_queue_entry* entries, size_t capacity, size_t* count,
                                             kvonce_error* error);
/* Waits for at least one; count 0 when the time passed first. */
KVONCE_C_API kvonce_reason kvonce_queue_wait(kvonce_queue* queue, kvonce_queue_entry* entries, size_t capacity,
                                             uint64_t timeout_ns, size_t* count, kvonce_error* error);
/* An eventfd that is readable while entries are there, owned by the queue; -1 without a queue. */
KVONCE_C_API int kvonce_queue_fd(const kvonce_queue* queue);
KVONCE_C_API uint64_t kvonce_queue_dropped(const kvonce_queue* queue);
/* Operations that are to tell it keep it: their entries are lost with it. */
KVONCE_C_API void kvonce_queue_free(kvonce_queue* queue);

/* ---- puts and loads
 * ----------------------------------------------------------------------------------------------------------------- */

typedef struct kvonce_item {
  uint32_t page; /* index into the call's pages */
  uint32_t pool; /* of kvonce_pool_register */
  uint64_t row;
} kvonce_item;

typedef struct kvonce_put_options {
  size_t size;
  const kvonce_page* parent; /* of the first page, when it continues a prefix */
  const kvonce_event* after; /* no byte of a row is read before it has fired */
  kvonce_completion completion;
  uint64_t timeout_ms;  /* 1 ms to 1 h; 0: 30 s */
  uint32_t first_depth; /* pages before the first one in its prefix */
  uint32_t level;       /* kvonce_level */
} kvonce_put_options;
/* Pages of one chain (each page's parent is the one before it) that are ready in this rank's rows: 1 to 65,536 items. */
KVONCE_C_API kvonce_reason kvonce_put(kvonce_rank* rank, const kvonce_page* pages, size_t page_count, const kvonce_item* items,
                                      size_t item_count, const kvonce_put_options* options, kvonce_operation** operation,
                                      kvonce_error* error);

typedef struct kvonce_load_options {
  size_t size;
  const kvonce_event* after; /* no byte of a row is written before it has fired */
  kvonce_completion completion;
  void (*progress)(uint32_t layers_done, void* argument); /* as kvonce_completion.callback; NULL: none */
  void* progress_argument;
  uint64_t timeout_ms; /* 1 ms to 1 h; 0: 30 s */
  uint32_t layer_begin;
  uint32_t layer_end;        /* exclusive; 0 or KVONCE_EVERY_LAYER: to the last */
  uint32_t layers_per_group; /* progress is told per so many layers; 0: one group */
  uint32_t reserved;         /* 0 */
} kvonce_load_options;
/* Fills rows from what the lease covers: 1 to 65,536 items. Two with one row and different pages: bad_argument. */
KVONCE_C_API kvonce_reason kvonce_load(kvonce_rank* rank, const kvonce_lease* lease, const kvonce_page* pages, size_t page_count,
                                       const kvonce_item* items, size_t item_count, const kvonce_load_options* options,
                                       kvonce_operation** operation, kvonce_error* error);

/* ---- lookups, leases
 * ---------------------------------------------------------------------------------------------------------------- */

typedef struct kvonce_lookup_options {
  size_t size;
  const char* request_id; /* all who ask with one get one answer; at most 4,096 bytes; NULL: none */
  kvonce_completion completion;
  uint64_t timeout_ms;    /* 1 ms to 1 h; 0: 5 s */
  uint64_t lease_time_ms; /* 0: the store's default */
  uint64_t probe;         /* flag: no lease, does not count as use */
} kvonce_lookup_options;
/* At most 65,536 pages, a prefix from its first page on. */
KVONCE_C_API kvonce_reason kvonce_lookup(kvonce_runtime* runtime, uint32_t group, const kvonce_page* pages, size_t page_count,
                                         const kvonce_lookup_options* options, kvonce_operation** operation, kvonce_error* error);
/* Gives back what lies behind `stop` pages (0: everything). */
KVONCE_C_API kvonce_reason kvonce_lease_narrow(kvonce_runtime* runtime, const kvonce_lease* lease, uint32_t stop,
                                               kvonce_error* error);
/* Releasing twice is no error. */
KVONCE_C_API kvonce_reason kvonce_lease_release(kvonce_runtime* runtime, const kvonce_lease* lease, kvonce_error* error);

/* One byte per page: 1 readable, 0 not. Reads the index in shared memory: nobody is asked. */
KVONCE_C_API kvonce_reason kvonce_exists(const kvonce_runtime* runtime, uint32_t group, const char* pool, uint32_t shard,
                                         const kvonce_page* pages, size_t page_count, uint8_t* found, kvonce_error* error);
KVONCE_C_API kvonce_reason kvonce_rank_exists(const kvonce_rank* rank, uint32_t pool, const kvonce_page* pages, size_t page_count,
                                              uint8_t* found, kvonce_error* error);

typedef struct kvonce_stored_object {
  char pool[KVONCE_NAME_BYTES];
  uint64_t bytes;
  uint32_t shard;
  uint32_t level; /* kvonce_level */
} kvonce_stored_object;
/* What is stored of one page; `depth` (may be NULL): pages before it in its prefix. `absent` when nothing is known of it. */
KVONCE_C_API kvonce_reason kvonce_stat(const kvonce_runtime* runtime, uint32_t ns, const kvonce_page* page, uint32_t* depth,
                                       kvonce_stored_object* objects, size_t capacity, size_t* count, kvonce_error* error);

/* ---- removing and flushing; `completion` may be NULL
 * -------------------------------------------------------------------------------- */

KVONCE_C_API kvonce_reason kvonce_remove_key(kvonce_runtime* runtime, uint32_t group, const char* pool, uint32_t shard,
                                             const kvonce_page* page, const kvonce_completion* completion,
                                             kvonce_operation** operation, kvonce_error* error);
KVONCE_C_API kvonce_reason kvonce_remove_pages(kvonce_runtime* runtime, uint32_t ns, const kvonce_page* pages, size_t page_count,
                                               const kvonce_completion* completion, kvonce_operation** operation,
                                               kvonce_error* error);
KVONCE_C_API kvonce_reason kvonce_remove_namespace(kvonce_runtime* runtime, uint32_t ns, const kvonce_completion* completion,
                                                   kvonce_operation** operation, kvonce_error* error);
KVONCE_C_API kvonce_reason kvonce_clear(kvonce_runtime* runtime, const kvonce_completion* completion,
                                        kvonce_operation** operation, kvonce_error* error);
/* Done when everything accepted before has been decided at that level. timeout 1 ms to 1 h; 0: 30 s. */
KVONCE_C_API kvonce_reason kvonce_flush(kvonce_runtime* runtime, uint32_t level, uint64_t timeout_ms,
                                        const kvonce_completion* completion, kvonce_operation** operation, kvonce_error* error);

/* ---- operations
 * --------------------------------------------------------------------------------------------------------------------- */

KVONCE_C_API int kvonce_operation_kind_of(const kvonce_operation* operation); /* kvonce_operation_kind; -1 of NULL */
KVONCE_C_API uint64_t kvonce_operation_id(const kvonce_operation* operation); /* never 0; 0 of NULL */
KVONCE_C_API int kvonce_operation_done(const kvonce_operation* operation);
/* Until it is done: NONE, whatever came of it. `deadline` when the time passed first. */
KVONCE_C_API kvonce_reason kvonce_operation_wait(const kvonce_operation* operation, uint64_t timeout_ns, kvonce_error* error);
/* Of a put or load: ends what is not decided; the operation is done after the last touch of its rows. No effect on others. */
KVONCE_C_API kvonce_reason kvonce_operation_cancel(kvonce_operation* operation, kvonce_error* error);
KVONCE_C_API void kvonce_operation_free(kvonce_operation* operation);

/* Each of the following is for one kind of operation, and in_flight while it is not done. */
typedef struct kvonce_put_result {
  uint8_t verdict; /* kvonce_verdict */
  uint8_t reason;  /* kvonce_reason */
  uint16_t reserved;
  uint32_t retry_after_ms; /* of rejected with busy or no_space */
} kvonce_put_result;
/* One per item, in order. `succeeded` (may be NULL): items that are stored now, by whomever. */
KVONCE_C_API kvonce_reason kvonce_put_results(const kvonce_operation* operation, kvonce_put_result* results, size_t capacity,
                                              size_t* count, uint64_t* succeeded, kvonce_error* error);
/* One kvonce_reason per item, in order: 0 is loaded and verified. `loaded` (may be NULL): how many. */
KVONCE_C_API kvonce_reason kvonce_load_results(const kvonce_operation* operation, uint8_t* reasons, size_t capacity,
                                               size_t* count, uint64_t* loaded, kvonce_error* error);
/* All items' layers below this are in place and verified (items that failed are named at the end). 0 of anything but a load. */
KVONCE_C_API uint32_t kvonce_load_layers_done(const kvonce_operation* operation);
/* Until so many layers are in place, or the load is done: look at kvonce_load_layers_done then. */
KVONCE_C_API kvonce_reason kvonce_load_wait_layers(const kvonce_operation* operation, uint32_t layers, uint64_t timeout_ns,
                                                   kvonce_error* error);

/* Which prefix lengths are restorable, and why no more. Set `size` before. */
typedef struct kvonce_lookup_result {
  size_t size;
  kvonce_lease lease; /* zero: nothing leased */
  uint64_t lease_left_ms;
  uint32_t restorable_pages; /* deepest legal stop */
  uint32_t resident_pages;   /* leading pages with all their every-page pools; >= restorable_pages */
  uint32_t every_stop;       /* 1: each length up to restorable_pages is legal */
  uint32_t first_missing;    /* the first page that is not restorable ... */
  uint32_t reason;           /* ... and why (kvonce_reason; 0: all are) */
  uint32_t missing_shard;    /* of group_incomplete: the first shard of missing_pool that is not readable */
  uint32_t retry_after_ms;   /* of busy */
  uint32_t reserved;
  uint64_t stop_count;             /* of kvonce_lookup_stops */
  uint64_t leased_stop_count;      /* of kvonce_lookup_leased_stops */
  uint64_t optional_missing_count; /* of kvonce_lookup_optional_missing */
  /* Of group_incomplete: what that page lacks. Where the pages go on but no stop does: what the stop lacks, of those behind the
   * prefix, that lacks the fewest objects of trailing pools (of equals the first). */
  char missing_pool[KVONCE_NAME_BYTES];
} kvonce_lookup_result;
/* The answer, or why there is none (unknown group, store_lost, deadline). */
KVONCE_C_API kvonce_reason kvonce_lookup_get_result(const kvonce_operation* operation, kvonce_lookup_result* result,
                                                    kvonce_error* error);
/* All legal stops, ascending, unless every_stop. */
KVONCE_C_API kvonce_reason kvonce_lookup_stops(const kvonce_operation* operation, uint32_t* stops, size_t capacity, size_t* count,
                                               kvonce_error* error);
/* Those whose trailing pools the lease covers. */
KVONCE_C_API kvonce_reason kvonce_lookup_leased_stops(const kvonce_operation* operation, uint32_t* stops, size_t capacity,
                                                      size_t* count, kvonce_error* error);
/* The index-th optional pool that does not cover the whole prefix. */
KVONCE_C_API kvonce_reason kvonce_lookup_optional_missing(const kvonce_operation* operation, size_t index,
                                                          char name[KVONCE_NAME_BYTES], kvonce_error* error);
/* Of flush, remove and clear: its error, and the objects removed (`count` may be NULL). */
KVONCE_C_API kvonce_reason kvonce_admin_result(const kvonce_operation* operation, uint64_t* count, kvonce_error* error);

#ifdef __cplusplus
}
#endif

#endif
