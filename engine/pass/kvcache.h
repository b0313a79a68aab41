/* engine/pass/kvcache.h -- the latent cache: per layer and token one row [normalised latent c | rotated rope part r], f32,
 * packed as ops/attention.h reads it.
 *
 * A timeline is a list of tokens by index; slots[index] says which row of a pool holds the token. Rows are appended and cut
 * only at the end, and never changed: timelines that begin alike may hold the same rows, which are free again when nobody
 * holds them. A cache has a pool of its own, or shares one with others. */
#ifndef VB_KVCACHE_H
#define VB_KVCACHE_H

#include "engine/base/support.h"
#include "engine/pass/trace.h"

struct kvpool {
    size_t layers, capacity;
    size_t row;       /* floats of a row: packed_length(c + r) */
    float *rows;      /* [layers, capacity, row] */
    int32_t *free;    /* [capacity]: a stack, of which num_free are there; slots 0, 1, .. come off it first */
    int32_t *holders; /* [capacity]: caches that hold the row */
    size_t num_free;
};

struct kvcache {
    struct kvpool *pool, own;
    size_t capacity;                /* the longest timeline */
    size_t length;                  /* tokens whose rows are there */
    int32_t *slots;                 /* [capacity] */
    int32_t sequence;               /* whose it is, for taps */
    int poison;                     /* rows beyond a cut become NaN */
    struct tracer *tracer;          /* is told of cuts; NULL: nobody */
    int depth;                      /* of MTP, or -1: the target's */
    int first_row;                  /* index of its first row, as taps and traces tell it: 0, or -1: FIRST_ROW's phantom */
};

/* width: c + r */
int kvpool_open(struct kvpool *p, size_t layers, size_t capacity, size_t width, const vb_allocator *a, vb_error *err);
void kvpool_close(struct kvpool *p, const vb_allocator *a);
static inline size_t kvpool_bytes(const struct kvpool *p)
{
    return p->capacity * (p->layers * p->row * sizeof *p->rows + sizeof *p->free + sizeof *p->holders);
}

/* With a pool of its own; and in a pool that outlives it. */
int kvcache_open(struct kvcache *c, size_t layers, size_t capacity, size_t width, const vb_allocator *a, vb_error *err);
int kvcache_open_in(struct kvcache *c, struct kvpool *pool, size_t capacity, const vb_allocator *a, vb_error *err);
void kvcache_close(struct kvcache *c, const vb_allocator *a);

/* [capacity of the pool, row] */
static inline float *kvcache_layer(const struct kvcache *c, size_t layer)
{
    return c->pool->rows + layer * c->pool->capacity * c->pool->row;
}
static inline float *kvcache_row(const struct kvcache *c, size_t layer, int32_t slot)
{
    return kvcache_layer(c, layer) + (size_t)slot * c->pool->row;
}

static inline size_t kvcache_bytes(const struct kvcache *c) { return kvpool_bytes(&c->own) + c->capacity * sizeof *c->slots; }

/* Makes room for token index `length`: returns its slot. A pool that is shared must have a free one. */
int32_t kvcache_append(struct kvcache *c);
/* An empty cache holds the first n rows of another one of the same pool; or, of another pool, copies of them. */
void kvcache_begin_as(struct kvcache *c, const struct kvcache *other, size_t n);
/* Of rows that stand for a tree, from index `base` on: the n at base + path[i], path ascending, become those of indices base + i.
 * Nothing is copied. */
void kvcache_take_path(struct kvcache *c, size_t base, const int32_t *path, size_t n);
/* The last row leaves the timeline and stays as it is, in the slot that is returned, until it is put back behind what is there then. */
int32_t kvcache_put_aside(struct kvcache *c);
void kvcache_put_back(struct kvcache *c, int32_t slot);
/* Keeps the first n tokens. n beyond the length changes nothing. */
void kvcache_truncate(struct kvcache *c, size_t n);

#endif
