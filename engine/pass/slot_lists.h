/* engine/pass/slot_lists.h -- lists of the slots to which the rows of draft trees attend.
 *
 * The rows of a chain attend to cache->slots. The row of a tree's node attends to the tokens before the tree, to its
 * ancestors and to itself, so each node needs a list of its own. Most of it is a copy of cache->slots. The copy is kept
 * for later trees, and only slots that are new or have changed are copied again. */
#ifndef VB_SLOT_LISTS_H
#define VB_SLOT_LISTS_H

#include "engine/pass/kvcache.h"

struct slot_lists {
    int32_t *slots;  /* [count, width] */
    size_t *copied;  /* [count]: the number of slots in each list that were copied from the cache */
    size_t count, width;
};

/* Allocates `count` lists of up to `width` slots. Returns whether there was enough memory. */
int slot_lists_open(struct slot_lists *l, size_t count, size_t width, const vb_allocator *a);
void slot_lists_close(struct slot_lists *l, const vb_allocator *a);
static inline size_t slot_lists_bytes(const struct slot_lists *l)
{
    return l->count * l->width * sizeof *l->slots;
}

/* Returns list i [width], whose first n slots are those of the cache. The caller sets the slots from index n on; they
 * are lost with the next call for list i. A set of lists belongs to one cache, and a cache to at most one set. */
int32_t *slot_list(struct slot_lists *l, struct kvcache *c, size_t i, size_t n);

#endif
