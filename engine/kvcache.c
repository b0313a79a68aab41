/* engine/kvcache.c -- append and cut. */
#include "kvcache.h"

#include <assert.h>
#include <string.h>

#include "../ops/mistake.h"
#include "../simd/kernels.h"

int kvcache_open(struct kvcache *c, size_t layers, size_t capacity, size_t width, const vb_allocator *a, vb_error *err)
{
    *c = (struct kvcache){.layers = layers, .capacity = capacity, .row = packed_length(width), .depth = -1};
    c->rows = vb_alloc(a, layers * c->row, capacity * sizeof *c->rows);
    c->slots = vb_alloc(a, capacity, sizeof *c->slots);
    if (!c->rows || !c->slots) {
        kvcache_close(c, a);
        return vb_fail(err, VB_NO_MEMORY, "no memory for a cache of %zu layers, %zu tokens, %zu numbers each", layers,
                       capacity, width);
    }
    for (size_t i = 0; i < capacity; i++)
        c->slots[i] = (int32_t)i;
    return VB_OK;
}

void kvcache_close(struct kvcache *c, const vb_allocator *a)
{
    vb_free(a, c->rows);
    vb_free(a, c->slots);
    c->rows = NULL;
    c->slots = NULL;
}

int32_t kvcache_append(struct kvcache *c)
{
    assert(c->length < c->capacity);
    return c->slots[c->length++];
}

void kvcache_take_path(struct kvcache *c, size_t base, const int32_t *path, size_t n)
{
    for (size_t i = 0; i < n; i++) { /* path[i] >= i, and those to come stand behind */
        int32_t *to = c->slots + base + i, *from = c->slots + base + path[i], slot = *to;
        *to = *from;
        *from = slot;
    }
}

void kvcache_truncate(struct kvcache *c, size_t n)
{
    for (size_t i = n; c->poison && i < c->length; i++)
        for (size_t layer = 0; layer < c->layers; layer++)
            memset(kvcache_layer(c, layer) + (size_t)c->slots[i] * c->row, 0xff, c->row * sizeof *c->rows);
    if (n >= c->length)
        return;
    trace_cut(c->tracer, c->depth, n, c->length - n);
    c->length = n + MISTAKE(cut_row_kept);
}
