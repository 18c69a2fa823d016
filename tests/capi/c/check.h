/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks for tests that are written in C: a failed one is told and counted, and the test goes on.
 */
#ifndef KVONCE_TESTS_CAPI_CHECK_H
#define KVONCE_TESTS_CAPI_CHECK_H

#include <kvonce/kvonce.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int checks_failed;
extern kvonce_error last_error;

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      ++checks_failed;                                                       \
      fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
    }                                                                        \
  } while (0)

/* The call answers this reason and, unless it is NONE, a sentence with `part` in it. `error` is the call's &last_error. */
#define EXPECT(wanted, part, call)                                                                                    \
  do {                                                                                                                \
    memset(&last_error, 0, sizeof last_error);                                                                        \
    const int got_reason = (int)(call);                                                                               \
    const int told_well =                                                                                             \
        got_reason == 0 || (last_error.reason == (uint32_t)got_reason && strstr(last_error.text, part) != NULL);      \
    if (got_reason != (int)(wanted) || !told_well) {                                                                  \
      ++checks_failed;                                                                                                \
      fprintf(stderr, "%s:%d: %s: %s '%s', not %s '%s'\n", __FILE__, __LINE__, #call, kvonce_reason_text(got_reason), \
              last_error.text, kvonce_reason_text((int)(wanted)), part);                                              \
    }                                                                                                                 \
  } while (0)
#define OK(call) EXPECT(KVONCE_REASON_NONE, "", call)

enum { ROWS = 16, LAYERS = 4, ROW_BYTES = 512 };

/* One rank of an engine with an embedded store, and a pool of 4 layers of 16 rows of 512 bytes. */
typedef struct fixture {
  kvonce_runtime* runtime;
  kvonce_rank* rank;
  uint32_t ns, group, pool;
  unsigned char rows[LAYERS][ROWS * ROW_BYTES];
} fixture;

void fixture_start(fixture* f);
/* The runtime is stopped or freed by the test itself where that is what it tests. */
void fixture_end(fixture* f);
kvonce_page page_of(unsigned number);
void fill_row(fixture* f, unsigned row, unsigned page);
int row_holds(const fixture* f, unsigned row, unsigned page);
/* Puts `count` pages from row 0 on, and waits. */
void put_pages(fixture* f, unsigned count);
/* Waits, and frees it. */
void finish(kvonce_operation* operation);

void test_bad_input(void);
void test_round_trip(void);
void test_ends(void);

#endif
