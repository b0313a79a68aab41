/* engine/draft/net.h -- the interface of networks that draft one token after the other.
 *
 * There are two kinds of networks: the model's MTP modules (engine/draft/mtp_net.c) and published EAGLE heads
 * (engine/draft/eagle_net.c). This header describes how a row is computed. engine/draft/mtp.h decides which rows are
 * computed, and when.
 *
 * Row i of depth k reads a hidden state and the embedding of a token. It writes one row to a cache, which has one
 * layer. The rows of a pass may belong to several sequences, because each row names its own cache. */
#ifndef VB_DRAFT_NET_H
#define VB_DRAFT_NET_H

#include "engine/pass/pass.h"

struct draft_net {
    const struct draft_net_type *type;
    size_t width;       /* length of a hidden state, both of the input and of the output */
    size_t vocab_size;  /* length of a row of logits */
    struct kv_layout cache; /* how the network's cache stores a row */
    size_t rows_before; /* number of cache rows before row 0: 1 with convention first-row=phantom, else 0 */
    size_t bytes;       /* bytes of memory for the network's passes; 0 if the target's struct pass computes them */
    struct vb_ranks *ranks; /* model.ranks of the model to which the network's layers belong; NULL: only this process
                               computes it */
    int other_tokens;   /* nonzero if the network's vocabulary differs from the target's; `token` is then not NULL */
};

struct draft_net_type {
    /* Appends a slot for row i of depth `depth` to the cache, and returns a description of this row. The row reads
     * `token`, which is token i + `ahead` of the sequence. */
    struct row (*row)(const struct draft_net *net, struct kvcache *cache, int depth, size_t i, size_t ahead,
                      int32_t token);
    /* Computes the row before row 0 if rows_before is 1 and the cache is empty; otherwise does nothing. This row reads
     * `token`, which is token `ahead` - 1 of the sequence. The member is NULL if rows_before is always 0 for networks
     * of this type. */
    void (*first_row)(struct draft_net *net, struct pass *pass, struct kvcache *cache, int depth, size_t ahead,
                      int32_t token);
    /* Returns the largest number of rows in a pass. */
    size_t (*most_rows)(const struct draft_net *net, const struct pass *pass);
    /* Computes rows [S] from hidden states h [S, width]. Writes g [S, width], which `logits` reads, and next [S,
     * width], which is the input of the next depth or of the next draft. `next` may be the same array as h. The
     * function uses the scratch memory and the threads of w. */
    void (*pass)(struct draft_net *net, struct pass *pass, int depth, const struct row *rows, const float *h,
                 float *g, float *next, size_t S);
    /* Computes logits [S, vocab_size] from g [S, width]. The tap callback receives these logits as rows [first, first +
     * S) of the newest pass. */
    void (*logits)(struct draft_net *net, struct pass *pass, int depth, float *logits, const float *g, size_t first,
                   size_t S);
    /* Computes best [S], the token of the network's vocabulary with the largest logit for each row of g [S, width], or
     * -1 if a logit is not finite. S <= pass->w.max_logit_rows. Returns 0 if this is not possible without
     * showing the logits to somebody; then nothing was done. NULL if it never is. */
    int (*best)(struct draft_net *net, struct pass *pass, int depth, int32_t *best, const float *g, size_t S);
    /* Converts a token id of the network's vocabulary to the target's id of the same token. NULL if the network and the
     * target use the same ids. */
    int32_t (*token)(const struct draft_net *net, int32_t drafted);
    /* Computes the hidden states h [n, width] for depth 0 from n rows of the target. NULL if depth 0 reads the target's
     * rows unchanged. */
    void (*take)(struct draft_net *net, struct pass *pass, float *h, const float *of_target, size_t n);
    /* Returns whether two networks of one target have the same weights and the same vocabulary. NULL if they always
     * do. */
    int (*is_same)(const struct draft_net *a, const struct draft_net *b);
    uint64_t (*fingerprint)(const struct draft_net *net); /* returns a hash of the network's own weights; NULL if the
                                                             network has no weights of its own */
    size_t (*weight_bytes)(const struct draft_net *net);  /* returns how many bytes of weights are read for one draft,
                                                             with those of the output head; NULL if the network has no
                                                             weights of its own */
    void (*close)(struct draft_net *net); /* frees everything, including *net */
};

/* Opens the model's MTP modules as a network. Depth k uses module k mod (number of modules). If `vocab` is not NULL,
 * the network's token i is token vocab->tokens[i] of the target. */
int mtp_net_open(struct draft_net **out, const struct vb_model *m, const vb_draft_vocab *vocab, vb_error *err);

#endif
