/* tests/support/failing.h -- lets one allocation fail, in a test that is linked with
 * -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc (WRAP in tests/tests.mk). Those of shared libraries do not fail. */
#ifndef VB_TEST_FAILING_H
#define VB_TEST_FAILING_H

#include <stddef.h>

static long failing = -1; /* the allocation that fails, from 0; -1: none */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
static int fails(void) { return failing >= 0 && failing-- == 0; }
void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *block, size_t size) { return fails() ? NULL : __real_realloc(block, size); }

#endif
