/* engine/pass/kvcache.h -- the KV cache, which holds latents (MLA).
 *
 * Each layer has one row per token: [normalised latent c | rotated rope part r], stored as ops/kv_rows.h says. Rows of
 * EAGLE heads hold keys and values instead (ops/gqa.h). In models with sparse attention, each full layer also has an
 * index cache: one row per token, for the indexer (ops/indexer.h). The two rows of a token have the same slot. Rows are
 * stored in a pool (struct kvpool). A cache (struct kvcache) belongs to one sequence, and slots[index] is the row of
 * the pool that holds the token with that index.
 *
 * Rows are only appended or removed at the end of a sequence, and a row never changes after it was written. Therefore
 * sequences that begin with the same tokens can share the rows of these tokens. A row becomes free when no cache holds
 * it any more. A cache has a pool of its own, or several caches share one pool. */
#ifndef VB_KVCACHE_H
#define VB_KVCACHE_H

#include "engine/base/support.h"
#include "engine/pass/trace.h"
#include "ops/kv_rows.h"

struct kvcache;

struct kvpool {
    size_t layers, capacity;
    struct kv_layout layout;
    size_t row;       /* words of 4 bytes in a row, with its padding */
    char *rows;       /* [layers, capacity, row] */
    char *index_rows; /* [layout.index_layers, capacity, layout.index_row]; NULL without an indexer */
    int32_t *free;    /* [capacity]: a stack of the num_free free slots. A new pool returns slots 0, 1, 2 and so on, in
                         this order */
    int32_t *holders; /* [capacity]: number of caches that hold the row */
    size_t num_free;
    struct pool_twin *twin; /* whoever else has a copy of the rows: other ranks, or a device; NULL: nobody */
};

/* A copy of a pool's rows somewhere else, which passes keep up to date. */
struct pool_twin {
    const struct pool_twin_type *type;
};
struct pool_twin_type {
    void (*fetch)(struct kvpool *p); /* something else than a pass will read or write rows: brings them all back */
    void (*changed)(const struct kvcache *c, size_t first, size_t count); /* it wrote the rows of these tokens */
    void (*closed)(struct kvpool *p);
};

struct kvcache {
    struct kvpool *pool, own;
    size_t capacity;                /* largest number of tokens that the cache can hold */
    size_t length;                  /* number of tokens that the cache holds now */
    int32_t *slots;                 /* [capacity] */
    size_t changed_from;            /* slots before this index are as at the last call of slot_list (slot_lists.h) */
    int32_t sequence;               /* number of the sequence, for taps */
    int poison;                     /* nonzero: rows that are removed are filled with NaN (for tests) */
    struct tracer *tracer;          /* receives an event when rows are removed; NULL: no event is reported */
    int depth;                      /* the MTP depth that the cache belongs to, or -1 for the target */
    int first_row;                  /* index of the first row in taps and traces: 0, or -1 with first-row=phantom */
    size_t base;                    /* added to the indices of rows in taps and traces */
};

int kvpool_open(struct kvpool *p, size_t layers, size_t capacity, struct kv_layout layout, const vb_allocator *a,
                vb_error *err);
void kvpool_close(struct kvpool *p, const vb_allocator *a);
static inline size_t kvpool_bytes(const struct kvpool *p)
{
    return p->capacity * (p->layers * p->row * 4 + p->layout.index_layers * p->layout.index_row + sizeof *p->free +
                          sizeof *p->holders);
}

/* Call these before and after something other than a pass reads or writes rows: all of them, and those of tokens
 * [first, first + count) of a cache. */
static inline void kvpool_fetch(struct kvpool *p)
{
    if (p->twin)
        p->twin->type->fetch(p);
}
void kvcache_changed(const struct kvcache *c, size_t first, size_t count);

/* kvcache_open makes a cache with a pool of its own. kvcache_open_in makes one in a pool that must outlive it. */
int kvcache_open(struct kvcache *c, size_t layers, size_t capacity, struct kv_layout layout, const vb_allocator *a,
                 vb_error *err);
int kvcache_open_in(struct kvcache *c, struct kvpool *pool, size_t capacity, const vb_allocator *a, vb_error *err);
void kvcache_close(struct kvcache *c, const vb_allocator *a);

/* Returns the rows of one layer: [capacity of the pool, row]. */
static inline void *kvcache_layer(const struct kvcache *c, size_t layer)
{
    return c->pool->rows + layer * c->pool->capacity * c->pool->row * 4;
}
static inline void *kvcache_row(const struct kvcache *c, size_t layer, int32_t slot)
{
    return (char *)kvcache_layer(c, layer) + (size_t)slot * c->pool->row * 4;
}

/* The same for the index cache. `layer` is the number of the layer among those that have one. */
static inline void *kvcache_index_layer(const struct kvcache *c, size_t layer)
{
    return c->pool->index_rows + layer * c->pool->capacity * c->pool->layout.index_row;
}
static inline void *kvcache_index_row(const struct kvcache *c, size_t layer, int32_t slot)
{
    return (char *)kvcache_index_layer(c, layer) + (size_t)slot * c->pool->layout.index_row;
}

static inline size_t kvcache_bytes(const struct kvcache *c)
{
    return kvpool_bytes(&c->own) + c->capacity * sizeof *c->slots;
}

/* Appends one token and returns its slot. The cache must not be full, and its pool must have a free slot. */
int32_t kvcache_append(struct kvcache *c);
/* Makes an empty cache begin with the first n rows of cache `other`. If both caches use the same pool, they share these
 * rows; else the rows are copied. */
void kvcache_begin_as(struct kvcache *c, const struct kvcache *other, size_t n);
/* Keeps the rows of the accepted path in a tree of drafts. The rows of the tree begin at index `base`. For each i < n,
 * the row at index base + path[i] moves to index base + i. The numbers in `path` are ascending. The function exchanges
 * slots and copies no row. */
void kvcache_take_path(struct kvcache *c, size_t base, const int32_t *path, size_t n);
/* kvcache_put_aside removes the last token but keeps its row, and returns the row's slot. kvcache_put_back appends this
 * row to the cache again. */
int32_t kvcache_put_aside(struct kvcache *c);
void kvcache_put_back(struct kvcache *c, int32_t slot);
/* Removes all tokens except the first n. If the cache has n tokens or fewer, nothing changes. */
void kvcache_truncate(struct kvcache *c, size_t n);

#endif
