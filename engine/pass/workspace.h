/* engine/pass/workspace.h -- the memory of passes: one array for each value that a step leaves for the next one.
 *
 * It is allocated once, for the largest pass, so that passes allocate nothing. Sizes in brackets use the letters of
 * docs/SEMANTICS.md; `rows` is max_rows. */
#ifndef VB_WORKSPACE_H
#define VB_WORKSPACE_H

#include "engine/model/model.h"
#include "engine/model/values.h"
#include "ops/attention.h"

struct workspace {
    const vb_allocator *allocator;
    size_t max_rows, context, max_logit_rows;
    int expands;                   /* nonzero: passes may have rows with attention in the expanded form */
    size_t tail;                   /* the longest tail of a row; 0, unless the caller of workspace_open sets it, before
                                      workspace_scratch */
    float *x, *normed, *delta;     /* [rows, d]: the residual stream, its RMSNorm, and the output of attention or MLP */
    float *q_a, *q, *kv_a, *heads; /* [rows, q], [rows, H(n+r)], [rows, c+r], [rows, Hv]. GQA: in kv_a, keys [Gr] and
                                      then values [Gv] */
    float *cos_sin;                /* [rows, r] */
    float *concat;                 /* [rows, 2d]: the input of eh_proj (MTP) */
    float *scores, *weights;       /* [rows, E], [rows, experts per token] */
    const int32_t **forced;        /* [rows]: of the present layer, router.forced or indexer.forced */
    size_t kept_most;              /* tokens to which a row attends at most; 0: the model has no indexer */
    float *index_k, *index_q, *index_w; /* [rows, D], [rows, HD], [rows, H]: key, queries and weights of an indexer */
    int32_t *kept;                 /* [rows, kept_most]: slots of the tokens that the last indexer chose for each row */
    int32_t *experts, *ids;        /* [rows, experts per token]: the chosen experts; [rows]: token ids */
    struct row_place *places;     /* [rows]: where the cache rows of each row are */
    struct timeline *seen, *index_seen; /* [rows]: tokens to which attention, or an indexer, attends */
    float *hidden;                 /* [rows, d] after model.norm; not in models without main layers */
    float *features;               /* [rows, d]: the rows that drafters read. Convention main-hidden selects whether
                                      this is the array `hidden` or a copy of x before model.norm */
    float *eagle3_rows;            /* [rows, 3d]: x before three layers (config_three_layers); NULL if no drafter needs
                                      it */
    float *trunk_rows;             /* [rows, 2d]: x before the last layer and x after it; NULL if no drafter needs it */
    float *logits;                 /* [max_logit_rows, V] */
    int32_t *first_bad_layer;      /* [rows]: the first layer whose output is not finite, or -1 */
    void *blocks[40];
    size_t block_bytes[40], block_count;
    size_t bytes;                  /* total size of all blocks */
};

/* Allocates the arrays for passes of up to max_rows rows. `context` is the largest number of committed tokens in a
 * sequence. During a round, drafts and padding may make a sequence longer than that. The caller frees them with
 * workspace_close. */
int workspace_open(struct workspace *w, const struct vb_model *m, size_t max_rows, size_t max_logit_rows,
                   size_t context, int expands, vb_error *err);
void workspace_close(struct workspace *w);
/* Allocates memory that workspace_close frees. Returns NULL if there is none. */
void *workspace_take(struct workspace *w, size_t count, size_t size);
/* Returns the largest amount of scratch memory that an operator needs in these passes, on so many threads. */
size_t workspace_scratch(const struct workspace *w, const struct vb_model *m, int threads);

#endif
