/* engine/pass/forward.h -- one pass of rows through the transformer.
 *
 * Prefill, decoding and verification are the same function: rows of any sequences, each knowing its token, its index
 * in its timeline and the cache that its row goes to. What a row computes depends on its timeline alone. */
#ifndef VB_FORWARD_H
#define VB_FORWARD_H

#include "ops/op.h"
#include "ops/rope.h"
#include "engine/pass/kvcache.h"
#include "engine/model/model.h"

struct row {
    struct kvcache *cache;
    int32_t token;    /* its embedding is read */
    int32_t slot;     /* where its cache row is written */
    int32_t index;    /* it sees tokens 0..index of its timeline */
    int32_t position; /* RoPE */
    int32_t draft;    /* 0: committed; k: the k-th draft of its round; -1: padding; for taps and traces, */
    int32_t hidden_of, hidden_depth; /* as these two, of a module's row; vb_tap_row has them; */
    int32_t parent;   /* and this, of a draft in a tree: the number of the draft it follows, 0: none */
    const int32_t *slots; /* of the tokens that it sees, by index; NULL: the cache's. In a tree they are those of its ancestors */
};

/* All memory of a pass, made once: a step allocates nothing. */
struct workspace {
    const struct model *model;
    struct op_ctx cx;
    struct pace pace, module_pace; /* of the target's passes; of its MTP modules' */
    struct onednn **onednn;        /* NULL; or who computes prompts, one per thread: cx's in those passes (engine/session/prefill.h) */
    struct rope rope;
    float scale;
    size_t max_rows, context, max_logit_rows;
    float *x, *normed, *delta;     /* [rows, d]: residual stream, normalised, a sublayer's output */
    float *q_a, *q, *kv_a, *heads; /* [rows, q], [rows, H(n+r)], [rows, c+r], [rows, Hv] */
    float *cos_sin;                /* [rows, r] */
    float *concat;                 /* [rows, 2d], MTP */
    float *scores, *weights;       /* [rows, E], [rows, experts per token] */
    int32_t *experts, *ids;        /* [rows, experts per token], [rows] */
    struct timeline *seen;         /* [rows] */
    float *hidden;                 /* [rows, d] after model.norm: written by forward_target alone, */
    float *features;               /* as is this, [rows, d], which drafters take: hidden, or x before model.norm (MAIN_HIDDEN) */
    float *three;                  /* NULL, or as is this, [rows, 3d]: x before the layers of three_before, for EAGLE-3 */
    int three_before[3];
    float *logits;                 /* [max_logit_rows, V] */
    struct tapper *tapper;         /* NULL: nobody listens */
    int (*stop)(void *context);    /* NULL, or asked before each layer of the target */
    void *stop_context;
    int32_t *first_bad_layer;      /* [rows]: the first layer whose output is not finite, or -1 */
    void *blocks[32];
    size_t block_count;
    size_t bytes;                  /* of all blocks */
};

/* context: of the session; timelines may be a round longer, by drafts and padding. */
int workspace_open(struct workspace *w, const struct model *m, const struct kernels *k, int threads, size_t max_rows,
                   size_t max_logit_rows, size_t context, vb_error *err);

/* Which rows of the target a drafter takes: workspace.features, .hidden or .three. */
enum target_rows { ROWS_FEATURES, ROWS_HIDDEN, ROWS_THREE };
/* These rows of the newest pass, from row `first` on; *width: numbers in one. */
float *workspace_rows(const struct workspace *w, enum target_rows which, size_t first, size_t *width);
/* From now on passes write them; of ROWS_THREE, where the target has too few layers, nothing is done. */
int workspace_keep_rows(struct workspace *w, enum target_rows which, vb_error *err);
/* Before which layers of a target of L the rows of ROWS_THREE are taken, ascending. 0: they are not three (L too small). */
int target_three_layers(int L, int layer[3]);
/* From now on threads stand by for its passes; exact: all of them, even where fewer are faster. */
int workspace_gather_crew(struct workspace *w, const struct placement *placement, int exact, vb_error *err);
void workspace_close(struct workspace *w);

/* rows [S], S <= max_rows, of one timeline in ascending index; their slots are appended. -> hidden [S, d]. Returns 0; or -1 when
 * w->stop gave the pass up: the caller then cuts the caches. */
int forward_target(struct workspace *w, const struct row *rows, size_t S);

/* The module of an MTP depth over rows: x = eh_proj [RMSNorm_e(Emb(token)) ; RMSNorm_h(h)], one decoder layer y,
 * g = shared_head.norm(y), which its head takes; next: what the next depth takes, g or y (DRAFT_HIDDEN). All [S, d]; next may
 * be h. The cache has one layer. docs/SEMANTICS.md, "MTP module k". */
void forward_mtp(struct workspace *w, const struct mtp_module *module, int depth, const struct row *rows, const float *h,
                 float *g, float *next, size_t S);

/* logits [S, V] = head(hidden rows), not normalised again. */
void forward_head(struct workspace *w, const struct weight_view *head, float *logits, const float *hidden, size_t S);

/* Tells taps about logits [count, V] of rows first.. of the last pass. */
void forward_tap_logits(const struct workspace *w, const float *logits, size_t first, size_t count);

#endif
