#include "engine/pass/slot_lists.h"
#include "numbers/numbers.h"

#include <assert.h>
#include <string.h>

int slot_lists_open(struct slot_lists *l, size_t count, size_t width, const vb_allocator *a)
{
    *l = (struct slot_lists){.count = count, .width = width};
    l->slots = vb_alloc(a, count * width, sizeof *l->slots);
    l->copied = vb_alloc(a, count, sizeof *l->copied);
    return l->slots && l->copied;
}

void slot_lists_close(struct slot_lists *l, const vb_allocator *a)
{
    vb_free(a, l->slots);
    vb_free(a, l->copied);
    *l = (struct slot_lists){0};
}

int32_t *slot_list(struct slot_lists *l, struct kvcache *c, size_t i, size_t n)
{
    int32_t *list = l->slots + i * l->width;
    assert(i < l->count && n <= l->width && n <= c->length);
    for (size_t j = 0; c->changed_from != SIZE_MAX && j < l->count; j++)
        l->copied[j] = min_size(l->copied[j], c->changed_from);
    c->changed_from = SIZE_MAX;
    size_t same = min_size(l->copied[i], n);
    memcpy(list + same, c->slots + same, (n - same) * sizeof *list);
    l->copied[i] = n;
    return list;
}
