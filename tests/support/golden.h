/* tests/support/golden.h -- reads golden/truth: arrays from safetensors files, other facts from JSON files.
 *
 * Safetensors files are parsed here without the engine's parser, because these tests check the engine. */
#ifndef VB_TEST_GOLDEN_H
#define VB_TEST_GOLDEN_H

#include "engine/base/support.h"
#include "tests/support/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A safetensors file in memory. */
struct golden {
    char *bytes;
    size_t size;
    json_t *header;
};

/* golden_read reads the file at `path`, and golden_open reads golden/truth/FILE.safetensors. Close the result with
 * golden_close. */
struct golden golden_read(const char *path);
struct golden golden_open(const char *file);
void golden_close(struct golden *g);

/* Returns a pointer to the first number of a tensor, which may be unaligned. *count: how many numbers there are. Their
 * type is the tensor's dtype, which in golden/truth is F64 unless the README there says otherwise. */
void *golden_data(const struct golden *g, const char *name, size_t *count);

/* Reads golden/truth/FILE.json. The caller releases it with json_decref. */
json_t *golden_json(const char *file);

/* Copies an array of token ids to `out`; returns how many there are. */
int read_tokens(json_t *array, int32_t *out);

/* max |a - b| / max |b|, where b are the `count` doubles at `golden` (any address). A NaN in a gives infinity. */
double distance(const double *a, const void *golden, size_t count);

#endif
