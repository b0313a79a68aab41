/* engine/draft/net.h -- a network that drafts token after token: the model's MTP modules (engine/draft/mtp_net.c) or a published EAGLE
 * head (engine/draft/eagle_net.c). engine/draft/mtp.h says which rows it computes when; this file, what computing one means.
 *
 * Row i of depth k takes a hidden row and the embedding of a token, and writes one row to its cache, which has one layer. A pass takes
 * rows of any number of sequences: each names its own cache. */
#ifndef VB_DRAFT_NET_H
#define VB_DRAFT_NET_H

#include "engine/pass/forward.h"

struct draft_net {
    const struct draft_net_type *type;
    size_t width;       /* numbers in a hidden row, those that it takes and those that it gives */
    size_t vocab_size;  /* numbers in a row of logits */
    size_t cache_width; /* numbers in a cache row */
    size_t rows_before; /* cache rows before row 0: 1 under convention first-row=phantom, else 0 */
    size_t bytes;       /* memory of its passes; 0: they run in the target's workspace */
    int other_tokens;   /* its logits are not over the target's vocabulary */
};

struct draft_net_type {
    /* Row i of depth `depth`, which takes `token`, appended to the cache. */
    struct row (*row)(const struct draft_net *net, struct kvcache *cache, int depth, size_t i, int32_t token);
    /* The row before row 0, if the cache is empty and wants one. NULL: there is none. */
    void (*first_row)(struct draft_net *net, struct workspace *w, struct kvcache *cache, int depth, int32_t token);
    /* How many rows a pass takes at most. */
    size_t (*most_rows)(const struct draft_net *net, const struct workspace *w);
    /* rows [S] and what they take, h [S, width] -> g [S, width], which logits reads, and next [S, width], which the next depth or draft
     * takes. next may be h. w is scratch, and its threads help. */
    void (*pass)(struct draft_net *net, struct workspace *w, int depth, const struct row *rows, const float *h, float *g, float *next,
                 size_t S);
    /* g [S, width] -> logits [S, vocab_size]; taps hear of them as rows `first`.. of the last pass. */
    void (*logits)(struct draft_net *net, struct workspace *w, int depth, float *logits, const float *g, size_t first, size_t S);
    /* The target's token for one that the logits name. NULL: the same. */
    int32_t (*token)(const struct draft_net *net, int32_t drafted);
    /* The rows h [n, width] that depth 0 takes, from the target's. NULL: these. */
    void (*take)(struct draft_net *net, struct workspace *w, float *h, const float *of_target, size_t n);
    /* Whether both have the same weights. NULL: they are the target's. */
    int (*is_same)(const struct draft_net *a, const struct draft_net *b);
    uint64_t (*fingerprint)(const struct draft_net *net); /* of weights that are not the target's. NULL: it has none */
    size_t (*weight_bytes)(const struct draft_net *net);  /* of such weights, those that a drafted token reads. NULL: none */
    void (*close)(struct draft_net *net); /* which has the memory of the struct too */
};

/* The model's MTP modules: depth k has module k mod D. */
int mtp_net_open(struct draft_net **out, const struct model *m, vb_error *err);

#endif
