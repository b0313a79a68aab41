/* engine/draft/eagle_net.h -- EAGLE's heads as they are published: one decoder layer of the Llama kind that reads embeddings beside the
 * target's features, and drafts token after token like MTP module 0 (engine/draft/mtp.h).
 *
 *     EAGLE-1   x = fc [ Emb(tok[i+1]) ; h_i ] (+ bias)          h_i: the target's row after model.norm, then the head's own y
 *               y = x + attention(x); y = y + mlp(norm(y))       no norm before attention
 *               logits = the target's lm_head(y), predicting tok[i+2]
 *
 *     EAGLE-3   h_i = fc [ three rows of the target's residual stream: before layers 2, L/2 and L-3 ], then the head's own y
 *               x = h_i;  y = x + attention([ input_layernorm(Emb(tok[i+1])) ; hidden_norm(h_i) ]);  y = y + mlp(norm(y))
 *               logits = the head's lm_head(norm(y)) over its own vocabulary: id t means the target's token t + d2t[t]
 *
 * Attention has grouped queries (ops/gqa.h), RoPE in halves at position i. (Li et al. 2024, 2025; SafeAILab/EAGLE cb7e084,
 * eagle/model/cnets1.py and cnets.py.) Weights are used as stored, activations are f32 in every precision. */
#ifndef VB_DRAFT_EAGLE_NET_H
#define VB_DRAFT_EAGLE_NET_H

#include "ops/gqa.h"
#include "engine/draft/drafter.h"
#include "engine/draft/net.h"

struct eagle_head {
    struct checkpoint *checkpoint;
    const vb_allocator *allocator;
    int version;                   /* 1 or 3 */
    struct config config;          /* what config.json says of d, H, sizes, RoPE; rope_interleave is 0 */
    size_t groups, dim;            /* key and value heads G, and the width of each D */
    size_t target_width;           /* d of the target */
    size_t vocab_size;             /* of its head */
    const int32_t *d2t;            /* [vocab_size]: the target's token for each; NULL: the same one */
    struct weight_view embed_tokens, lm_head; /* its own where stored, else the target's */
    struct weight_view fc;         /* [d, 2d] or [d, 3 target_width] */
    struct weight_view q_proj, k_proj, v_proj, o_proj; /* [HD, d or 2d], [GD, ..], [GD, ..], [d, HD] */
    struct mlp mlp;
    const float *fc_bias;          /* [d], NULL: none */
    const float *input_layernorm, *hidden_norm, *norm; /* [d], EAGLE-3 */
    const float *post_attention_layernorm;
    void *blocks[8];
    size_t block_count;
};

/* DIR/config.json and the safetensors beside it. Refused by name: more than one layer, another width, vocabulary or kind of
 * layer than the target and the version ask for, and a tensor that is not known. */
int eagle_head_open(struct eagle_head **out, const char *dir, int version, const struct model *target, vb_error *err);
void eagle_head_close(struct eagle_head *h);

/* *version: 1 or 3: which kind of head is in DIR; 0: none that can be read. VB_NO_MEMORY is its only error. */
int eagle_head_version(int *version, const char *dir, const vb_allocator *a, vb_error *err);
/* Bytes of weights that a drafted token reads. */
size_t eagle_head_bytes(const struct eagle_head *h);

/* A head at work in one session. */
struct eagle {
    struct draft_net net; /* the struct is handed around as this */
    struct eagle_head *head;
    struct op_ctx cx;
    struct pace pace;
    struct rope rope;
    struct gqa gqa;
    size_t max_rows;
    float *input;                      /* [rows, 2d]: what fc or attention reads */
    float *x, *normed, *delta;         /* [rows, d] */
    float *q, *k, *v, *attended;       /* [rows, HD], [rows, GD], [rows, GD], [rows, HD] */
    float *cos_sin;                    /* [rows, D] */
    int32_t *ids;
    struct timeline *seen;
    void *blocks[16];
    size_t block_count;
};

/* The head in DIR as a network that drafts, in passes of up to o->most_observed rows. */
int eagle_net_open(struct draft_net **out, const char *dir, int version, const struct model *target, const struct drafter_options *o,
                   vb_error *err);

int eagle_open(struct eagle *e, struct eagle_head *head, const struct drafter_options *o, vb_error *err);
void eagle_close(struct eagle *e); /* and its head */

static inline size_t eagle_width(const struct eagle *e) { return e->head->config.dims.d; }

/* EAGLE-3: h [n, d] = fc features [n, 3 target_width]. target: whose threads may help. */
void eagle_features(struct eagle *e, const struct workspace *target, float *h, const float *features, size_t n);
/* rows [S], S <= max_rows, appended to their caches of one layer: h [S, d] -> next [S, d], which is y, and g [S, d],
 * which the head reads. next may be h. */
void eagle_pass(struct eagle *e, const struct workspace *target, const struct row *rows, const float *h, float *g, float *next, size_t S);
/* logits [S, vocab_size] = lm_head(g) */
void eagle_logits(struct eagle *e, const struct workspace *target, float *logits, const float *g, size_t S);

#endif
