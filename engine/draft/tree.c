/* engine/draft/tree.c -- growing and pruning: numbers only, no model. */
#include "engine/draft/tree.h"

#include <assert.h>

int tree_child(const struct draft_tree *t, int node, int after)
{
    int i = after > node ? after + 1 : node + 1;
    while (i < t->count && t->parent[i] != node)
        i++;
    return i < t->count ? i : -1;
}

int tree_open(struct tree_builder *b, int topk, int most, int depth, const vb_allocator *a, vb_error *err)
{
    *b = (struct tree_builder){.topk = topk, .most = most, .room = topk + (depth - 1) * topk * topk};
    b->node = vb_alloc(a, (size_t)b->room, sizeof *b->node);
    return b->node ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory for a tree of %d drafts", b->room);
}

void tree_close(struct tree_builder *b, const vb_allocator *a)
{
    vb_free(a, b->node);
    b->node = NULL;
}

void tree_begin(struct tree_builder *b) { b->count = b->level = b->frontier_count = 0; }

void tree_grow(struct tree_builder *b, int parent, const int32_t *tokens, const double *p, int n)
{
    int32_t depth = parent < 0 ? 1 : b->node[parent].depth + 1;
    double before = parent < 0 ? 1.0 : b->node[parent].confidence;
    assert(n <= b->topk && b->count + n <= b->room);
    for (int i = 0; i < n; i++)
        b->node[b->count++] = (struct tree_node){.token = tokens[i], .parent = parent, .depth = depth,
                                                 .confidence = before * p[i]};
}

/* Puts node i into best[0..count), sorted, of at most `most`: behind its equals, which were created before. Returns the
 * count. */
static int insert(const struct tree_builder *b, int *best, int count, int most, int i)
{
    int at = count;
    while (at > 0 && b->node[best[at - 1]].confidence < b->node[i].confidence)
        at--;
    if (at == most)
        return count;
    count += count < most;
    for (int k = count - 1; k > at; k--)
        best[k] = best[k - 1];
    best[at] = i;
    return count;
}

int tree_advance(struct tree_builder *b)
{
    int n = 0;
    for (int i = b->level; i < b->count; i++)
        n = insert(b, b->frontier, n, b->topk, i);
    b->level = b->count;
    return b->frontier_count = n;
}

void tree_prune(const struct tree_builder *b, struct draft_tree *t)
{
    int best[VB_MAX_NODES], n = 0;
    assert(b->most <= VB_MAX_NODES);
    for (int i = 0; i < b->count; i++)
        n = insert(b, best, n, b->most, i);
    t->count = n;
    for (int i = 0; i < n; i++) {
        const struct tree_node *node = &b->node[best[i]];
        t->token[i] = node->token;
        t->depth[i] = node->depth;
        t->confidence[i] = node->confidence;
        t->parent[i] = -1;
        for (int k = 0; k < i; k++)
            if (best[k] == node->parent)
                t->parent[i] = k;
        assert(t->depth[i] == 1 || t->parent[i] >= 0);
    }
}
