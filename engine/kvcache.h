/* engine/kvcache.h -- the latent cache: per layer and token one row [normalised latent c | rotated rope part r], f32,
 * packed as ops/attention.h reads it.
 *
 * A timeline is a list of tokens by index; slots[index] says which row holds the token. Rows are appended and cut
 * only at the end. */
#ifndef VB_KVCACHE_H
#define VB_KVCACHE_H

#include "support.h"
#include "trace.h"

struct kvcache {
    size_t layers, capacity;
    size_t row;                     /* floats of a row: packed_length(c + r) */
    size_t length;                  /* tokens whose rows are there */
    float *rows;                    /* [layers, capacity, row] */
    int32_t *slots;                 /* [capacity] */
    int32_t sequence;               /* whose it is, for taps */
    int poison;                     /* rows beyond a cut become NaN */
    struct tracer *tracer;          /* is told of cuts; NULL: nobody */
    int depth;                      /* of MTP, or -1: the target's */
    int first_row;                  /* index of its first row, as taps and traces tell it: 0, or -1: FIRST_ROW's phantom */
};

/* width: c + r */
int kvcache_open(struct kvcache *c, size_t layers, size_t capacity, size_t width, const vb_allocator *a, vb_error *err);
void kvcache_close(struct kvcache *c, const vb_allocator *a);

static inline float *kvcache_layer(const struct kvcache *c, size_t layer) { return c->rows + layer * c->capacity * c->row; }

static inline size_t kvcache_bytes(const struct kvcache *c)
{
    return c->capacity * (c->layers * c->row * sizeof *c->rows + sizeof *c->slots);
}

/* Makes room for token index `length`: returns its slot. */
int32_t kvcache_append(struct kvcache *c);
/* Keeps the first n tokens. n beyond the length changes nothing. */
void kvcache_truncate(struct kvcache *c, size_t n);

#endif
