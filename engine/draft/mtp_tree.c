/* engine/draft/mtp_tree.c -- trees of drafts by one module or head. A level of the tree is one pass; each of its rows
 * sees the committed rows of the cache and those of its own ancestors: what the same drafts as a chain would see, so it
 * has their bits. */
#include "engine/draft/mtp.h"

#include <string.h>

int mtp_tree_open(struct mtp_state *s, vb_error *err)
{
    const vb_allocator *a = s->model->allocator;
    const struct drafter_options *o = &s->options;
    struct mtp_tree *t = &s->tree;
    int lists = slot_lists_open(&t->slots, (size_t)o->topk, s->depths[0].cache.capacity, a);
    t->logits = vb_alloc(a, (size_t)o->topk * s->net->vocab_size, sizeof *t->logits);
    if (!t->logits || !lists)
        return vb_fail(err, VB_NO_MEMORY, "no memory for levels of %d drafts", o->topk);
    return tree_open(&t->builder, o->topk, o->nodes, o->max_draft, a, err);
}

void mtp_tree_close(struct mtp_state *s)
{
    const vb_allocator *a = s->model->allocator;
    vb_free(a, s->tree.logits);
    slot_lists_close(&s->tree.slots, a);
    tree_close(&s->tree.builder, a);
}

size_t mtp_tree_bytes(const struct mtp_state *s)
{
    const struct mtp_tree *t = &s->tree;
    size_t topk = (size_t)t->builder.topk, V = s->net->vocab_size;
    return topk * V * sizeof *t->logits + slot_lists_bytes(&t->slots) +
           (size_t)t->builder.room * sizeof *t->builder.node;
}

/* The children of a node, whose row of logits is there. */
static void grow(struct mtp_state *s, int node, const float *logits, size_t *failed)
{
    struct tree_builder *b = &s->tree.builder;
    int32_t tokens[VB_MAX_TOPK];
    double p[VB_MAX_TOPK];
    int n = drafter_best(&s->options, logits, s->net->vocab_size, b->topk, tokens, p, failed);
    for (int i = 0; i < n; i++)
        tokens[i] = mtp_token(s, tokens[i]);
    tree_grow(b, node, tokens, p, n);
}

/* Row j of the level's pass: the node takes the hidden state that its parent's row gave; N rows of the cache are
 * final. */
static void prepare(struct mtp_state *s, size_t j, struct tree_node *node, size_t N, size_t last)
{
    const struct tree_node *all = s->tree.builder.node;
    size_t d = s->net->width, i = N + (size_t)node->depth - 1;
    size_t from = node->parent < 0 ? last : (size_t)all[node->parent].row, before = N - s->base + s->net->rows_before;
    struct row row = mtp_state_row(s, 0, i, node->token);
    node->slot = row.slot;
    node->row = (int32_t)j;
    int32_t *slots = slot_list(&s->tree.slots, &s->depths[0].cache, j, before);
    for (const struct tree_node *a = node; a; a = a->parent < 0 ? NULL : &all[a->parent])
        slots[before + (size_t)a->depth - 1] = a->slot;
    row.slots = slots;
    row.draft = node->depth;
    row.hidden_of = (int32_t)i - 1;
    row.hidden_depth = 0;
    s->rows[j] = row;
    memcpy(s->h + j * d, s->next + from * d, d * sizeof *s->h);
}

/* One level: the frontier's rows, and what may follow them. */
static void expand(struct mtp_state *s, struct pass *pass, size_t N, size_t last, size_t *failed)
{
    struct tree_builder *b = &s->tree.builder;
    size_t n = (size_t)b->frontier_count, V = s->net->vocab_size;
    int32_t rows[VB_MAX_TOPK];
    for (size_t j = 0; j < n; j++) {
        prepare(s, j, &b->node[b->frontier[j]], N, last);
        rows[j] = b->frontier[j];
    }
    mtp_pass(s, pass, 0, 0, n);
    s->head_row = n - 1;
    s->net->type->logits(s->net, pass, 0, s->tree.logits, s->g, 0, n);
    for (size_t j = 0; j < n; j++)
        grow(s, rows[j], s->tree.logits + j * V, failed);
}

/* Each node of a level has what the row of its parent proposes. */
static void tree_of_rows(struct mtp_state *s, struct pass *pass, struct draft_tree *tree, int depth, size_t *failed)
{
    struct tree_builder *b = &s->tree.builder;
    size_t before = mtp_row_count(s, 0);
    int32_t best;
    int any = mtp_round(s, pass, &best, 1, failed);
    size_t N = mtp_row_count(s, 0), first = before < N ? before : N - 1; /* of the rows that mtp_round computed */
    if (any) {
        grow(s, -1, s->logits, failed);
        for (int level = 1; level < depth && tree_advance(b); level++)
            expand(s, pass, N, N - 1 - first, failed);
        tree_prune(b, tree);
    }
    for (int i = 1; i < tree->count; i++) /* of the first mtp_round has told */
        trace_choose(s->options.tracer, 0, s->head_row, tree->token[i], i + 1);
    mtp_cut(s, 0, N);
    mtp_round_ends(s);
}

/* Level k+1 of a tree whose drafts are made at once: the best tokens of depth k, after each node of the frontier.
 * Returns whether there are any. */
static int grow_alike(struct mtp_state *s, const float *logits, int k, size_t *failed)
{
    struct tree_builder *b = &s->tree.builder;
    int32_t tokens[VB_MAX_TOPK];
    double p[VB_MAX_TOPK];
    int n = k && !tree_advance(b)
                ? 0
                : drafter_best(&s->options, logits, s->net->vocab_size, b->topk, tokens, p, failed);
    for (int i = 0; i < (k ? b->frontier_count : 1); i++)
        tree_grow(b, k ? b->frontier[i] : -1, tokens, p, n);
    return n > 0;
}

static void tree_at_once(struct mtp_state *s, struct pass *pass, struct draft_tree *tree, int depth, size_t *failed)
{
    size_t V = s->net->vocab_size;
    mtp_catch_up(s);
    int levels = (int)mtp_proposing_rows(s, pass, depth), k = 0;
    if (!levels)
        return;
    s->net->type->logits(s->net, pass, 0, pass->w.logits, s->proposing, 0, (size_t)levels);
    while (k < levels && grow_alike(s, pass->w.logits + (size_t)k * V, k, failed))
        k++;
    tree_prune(&s->tree.builder, tree);
    for (int i = 0; i < tree->count; i++)
        trace_choose(s->options.tracer, tree->depth[i] - 1, s->head_row, tree->token[i], i + 1);
}

void mtp_propose_tree(struct drafter *d, struct pass *pass, struct draft_tree *tree, int depth, size_t *failed)
{
    struct mtp_state *s = &mtp_of(d)->state;
    tree_begin(&s->tree.builder);
    tree->count = 0;
    if (s->method.order == ALL_AT_ONCE)
        tree_at_once(s, pass, tree, depth, failed);
    else
        tree_of_rows(s, pass, tree, depth, failed);
}
