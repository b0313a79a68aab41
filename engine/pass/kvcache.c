/* engine/pass/kvcache.c -- appends tokens to a KV cache and removes them. */
#include "engine/pass/kvcache.h"
#include "numbers/numbers.h"

#include <assert.h>
#include <string.h>

int kvpool_open(struct kvpool *p, size_t layers, size_t capacity, struct kv_layout layout, const vb_allocator *a,
                vb_error *err)
{
    *p = (struct kvpool){.layers = layers, .capacity = capacity, .layout = layout, .row = kv_row_bytes(&layout) / 4,
                         .num_free = capacity};
    p->rows = vb_alloc(a, layers * p->row, capacity * 4);
    p->index_rows = layout.index_layers ? vb_alloc(a, layout.index_layers * layout.index_row, capacity) : NULL;
    p->free = vb_alloc(a, capacity, sizeof *p->free);
    p->holders = vb_alloc(a, capacity, sizeof *p->holders);
    if (!p->rows || !p->free || !p->holders || (layout.index_layers && !p->index_rows)) {
        kvpool_close(p, a);
        return vb_fail(err, VB_NO_MEMORY, "no memory for a cache of %zu layers, %zu tokens, %zu numbers each", layers,
                       capacity, layout.latent + layout.rope);
    }
    for (size_t i = 0; i < capacity; i++)
        p->free[i] = (int32_t)(capacity - 1 - i);
    return VB_OK;
}

void kvpool_close(struct kvpool *p, const vb_allocator *a)
{
    if (p->twin)
        p->twin->type->closed(p);
    vb_free(a, p->rows);
    vb_free(a, p->index_rows);
    vb_free(a, p->free);
    vb_free(a, p->holders);
    *p = (struct kvpool){0};
}

int kvcache_open_in(struct kvcache *c, struct kvpool *pool, size_t capacity, const vb_allocator *a, vb_error *err)
{
    *c = (struct kvcache){.pool = pool, .capacity = capacity, .depth = -1};
    c->slots = vb_alloc(a, capacity, sizeof *c->slots);
    return c->slots ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory for a timeline of %zu tokens", capacity);
}

int kvcache_open(struct kvcache *c, size_t layers, size_t capacity, struct kv_layout layout, const vb_allocator *a,
                 vb_error *err)
{
    int code = kvcache_open_in(c, &c->own, capacity, a, err);
    return code ? code : kvpool_open(&c->own, layers, capacity, layout, a, err);
}

static void let_go(struct kvcache *c, int32_t slot)
{
    struct kvpool *p = c->pool;
    if (--p->holders[slot])
        return;
    for (size_t layer = 0; c->poison && layer < p->layers; layer++)
        memset(kvcache_row(c, layer, slot), 0xff, p->row * 4);
    for (size_t layer = 0; c->poison && layer < p->layout.index_layers; layer++)
        memset(kvcache_index_row(c, layer, slot), 0xff, p->layout.index_row);
    p->free[p->num_free++] = slot;
}

void kvcache_close(struct kvcache *c, const vb_allocator *a)
{
    while (c->length && c->pool != &c->own)
        let_go(c, c->slots[--c->length]);
    kvpool_close(&c->own, a);
    vb_free(a, c->slots);
    c->slots = NULL;
}

int32_t kvcache_append(struct kvcache *c)
{
    struct kvpool *p = c->pool;
    assert(c->length < c->capacity && p->num_free);
    int32_t slot = p->free[--p->num_free];
    p->holders[slot] = 1;
    return c->slots[c->length++] = slot;
}

void kvcache_take_path(struct kvcache *c, size_t base, const int32_t *path, size_t n)
{
    c->changed_from = min_size(c->changed_from, base);
    for (size_t i = 0; i < n; i++) { /* path[i] >= i, and `path` is ascending, so an exchange never moves a row that is
                                        still needed at its place */
        int32_t *to = c->slots + base + i, *from = c->slots + base + path[i], slot = *to;
        *to = *from;
        *from = slot;
    }
}

int32_t kvcache_put_aside(struct kvcache *c)
{
    assert(c->length);
    c->changed_from = min_size(c->changed_from, c->length - 1);
    return c->slots[--c->length];
}

void kvcache_put_back(struct kvcache *c, int32_t slot)
{
    assert(c->length < c->capacity);
    c->slots[c->length++] = slot;
}

void kvcache_truncate(struct kvcache *c, size_t n)
{
    if (n >= c->length)
        return;
    trace_cut(c->tracer, c->depth, c->base + n, c->length - n);
    c->changed_from = min_size(c->changed_from, n);
    while (c->length > n) /* the newest first, so that the next tokens get the same slots again */
        let_go(c, c->slots[--c->length]);
}

void kvcache_begin_as(struct kvcache *c, const struct kvcache *other, size_t n)
{
    struct kvpool *from = other->pool;
    assert(c->length == 0 && n <= other->length && n <= c->capacity);
    if (c->pool != from) {
        kvpool_fetch(from);
        kvpool_fetch(c->pool);
    }
    for (size_t i = 0; i < n; i++) {
        int32_t slot = other->slots[i];
        if (c->pool == from) {
            c->pool->holders[slot]++;
            c->slots[c->length++] = slot;
            continue;
        }
        int32_t copy = kvcache_append(c);
        for (size_t layer = 0; layer < from->layers; layer++)
            memcpy(kvcache_row(c, layer, copy), kvcache_row(other, layer, slot), from->row * 4);
        for (size_t layer = 0; layer < from->layout.index_layers; layer++)
            memcpy(kvcache_index_row(c, layer, copy), kvcache_index_row(other, layer, slot), from->layout.index_row);
    }
    if (c->pool != from)
        kvcache_changed(c, 0, n);
}

void kvcache_changed(const struct kvcache *c, size_t first, size_t count)
{
    if (c->pool->twin)
        c->pool->twin->type->changed(c, first, count);
}
