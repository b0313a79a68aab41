/* engine/draft/net.h -- the interface of networks that draft one token after the other.
 *
 * There are two: the model's MTP modules (engine/draft/mtp_net.c) and published EAGLE heads (engine/draft/eagle_net.c).
 * This header describes how a row is computed. engine/draft/mtp.h decides which rows are computed, and when.
 *
 * Row i of depth k reads a hidden row and the embedding of a token, and writes one row to its cache, which has one
 * layer. The rows of a pass may belong to several sequences, because each row names its own cache. */
#ifndef VB_DRAFT_NET_H
#define VB_DRAFT_NET_H

#include "engine/pass/forward.h"

struct draft_net {
    const struct draft_net_type *type;
    size_t width;       /* numbers in a hidden row, of the input and of the output */
    size_t vocab_size;  /* numbers in a row of logits */
    size_t cache_width; /* numbers in a cache row */
    size_t rows_before; /* cache rows before row 0: 1 with convention first-row=phantom, else 0 */
    size_t bytes;       /* memory of its passes; 0 if they run in the target's workspace */
    int other_tokens;   /* nonzero if its vocabulary is not the target's */
};

struct draft_net_type {
    /* Returns row i of depth `depth` for `token`, and appends its slot to the cache. */
    struct row (*row)(const struct draft_net *net, struct kvcache *cache, int depth, size_t i, int32_t token);
    /* Computes the row before row 0, if the network has one (rows_before) and the cache is empty. NULL if it never has
     * one. */
    void (*first_row)(struct draft_net *net, struct workspace *w, struct kvcache *cache, int depth, int32_t token);
    /* Returns the most rows that a pass can have. */
    size_t (*most_rows)(const struct draft_net *net, const struct workspace *w);
    /* Computes rows [S] from hidden rows h [S, width]. It writes g [S, width], which `logits` reads, and next [S,
     * width], which is the input of the next depth or draft. next may be h. It uses w as scratch, and w's threads. */
    void (*pass)(struct draft_net *net, struct workspace *w, int depth, const struct row *rows, const float *h, float *g, float *next,
                 size_t S);
    /* Computes logits [S, vocab_size] from g [S, width]. Taps receive them as rows [first, first + S) of the last pass. */
    void (*logits)(struct draft_net *net, struct workspace *w, int depth, float *logits, const float *g, size_t first, size_t S);
    /* Converts a token of the network's vocabulary to one of the target's. NULL if they are the same. */
    int32_t (*token)(const struct draft_net *net, int32_t drafted);
    /* Computes the hidden rows h [n, width] for depth 0 from n rows of the target. NULL if they are the target's rows
     * themselves. */
    void (*take)(struct draft_net *net, struct workspace *w, float *h, const float *of_target, size_t n);
    /* Returns whether two networks have the same weights. NULL if all weights are part of the target model. */
    int (*is_same)(const struct draft_net *a, const struct draft_net *b);
    uint64_t (*fingerprint)(const struct draft_net *net); /* hash of its own weights; NULL if all are part of the target model */
    size_t (*weight_bytes)(const struct draft_net *net);  /* bytes of its own weights that one draft reads; NULL if none */
    void (*close)(struct draft_net *net); /* frees everything, including *net */
};

/* Opens the model's MTP modules as a network. Depth k uses module k mod (number of modules). */
int mtp_net_open(struct draft_net **out, const struct model *m, vb_error *err);

#endif
