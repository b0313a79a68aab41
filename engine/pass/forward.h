/* engine/pass/forward.h -- one forward pass of rows through the transformer.
 *
 * A row is one token on its way through the model. The same function (forward_target) does prefill, decoding and the
 * verification of drafts. The rows of a pass may belong to several sequences. A row (struct row) names its token, the
 * token's index in its sequence, and the KV cache that it writes to. The results of a row depend only on the tokens
 * to which it attends. Sizes in brackets use the letters of docs/SEMANTICS.md; `rows` is max_rows. */
#ifndef VB_FORWARD_H
#define VB_FORWARD_H

#include "ops/op.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "engine/pass/kvcache.h"
#include "engine/model/model.h"

/* The tokens that the indexer of an MTP module chose for a row (convention mtp-set). */
struct kept_tokens {
    int32_t *slots; /* [index_topk] */
    size_t count;   /* 0: none were kept yet */
};

struct row {
    struct kvcache *cache;
    int32_t token;    /* the token whose embedding the row reads */
    int32_t slot;     /* the slot in the cache to which the row writes */
    int32_t index;    /* index of the token in its sequence; the row attends to tokens 0..index */
    int32_t position; /* RoPE position */
    int32_t skipped;  /* how many of the tokens 0..index have no row in the cache; they are just before this row. With
                         convention chain-module=step, a module does not compute the rows of the steps that other
                         modules make */
    int32_t draft;    /* only for taps and traces. 0: committed token; k: the k-th draft of its round; -1: padding */
    int32_t hidden_of, hidden_depth; /* for taps and traces: in a pass of an MTP module, where the hidden state comes
                                        from that is the input of this row (engine/verbatim.h) */
    int32_t expanded; /* nonzero: attention has the expanded form (ops/expanded.h). Then it has this form for all rows
                         of tokens 0..index */
    int32_t parent;   /* for taps and traces: number of the draft that this row's draft follows; 0: the draft follows no
                         other draft */
    const int32_t *forced; /* [layers, experts per token]: the experts that each layer must take, in ascending order; a
                              layer whose first number is -1 chooses; NULL: all layers choose. For rows of an MTP
                              module, [1, experts per token] */
    const int32_t *forced_kept; /* [layers, index_topk]: the tokens to which attention must attend, in ascending order,
                                   as places in the timeline of the row; a layer whose first number is -1 chooses; NULL:
                                   all choose. For rows of an MTP module, [1, index_topk] */
    int32_t *taken;        /* [layers, experts per token]: for rows of the target: receives the experts of each MoE
                              layer; NULL: nobody wants them */
    int32_t *taken_kept;   /* [layers, index_topk]: the same for the tokens to which attention attends, and -1 in layers
                              without an indexer */
    struct kept_tokens *keep;      /* receives the tokens to which attention attends; NULL: nobody wants them */
    const struct kept_tokens *use; /* if the row sees more than index_topk tokens, it attends to these; NULL or none:
                                      its indexer chooses */
    const int32_t *slots; /* [index + 1]: slots of the tokens to which the row attends. If the row's token is a draft in
                             a tree, the row attends to the committed tokens, to the draft's ancestors and to the draft
                             itself. NULL: cache->slots */
};

/* Returns the number, from 1, of the row of the pass that writes the set that row `s` uses; 0: there is none. */
static inline size_t row_keeper(const struct row *rows, size_t S, size_t s)
{
    size_t keeper = 0;
    while (rows[s].use && keeper < S && rows[keeper].keep != rows[s].use)
        keeper++;
    return rows[s].use && keeper < S ? keeper + 1 : 0;
}

#define OFFLOAD_SHAPES 32
/* What a pass needs if a device computes parts of it (offload.h). */
struct offload {
    struct device *device;   /* NULL: no device */
    struct device_row *rows; /* [rows]: as workspace.places, with addresses of the device */
    struct device_row *kept_rows; /* [rows], with an indexer: as `rows`, but a row that sees more than kept_most tokens
                                     has the slots of the chosen ones */
    int32_t *first_bad_layer; /* [rows]: as workspace.first_bad_layer, of the layers whose output the device has */
    int32_t *slots;          /* [rows, context]: the slots of all rows of a pass, one list behind the other */
    size_t longest;          /* at least the length of the longest list: 256 times a power of two */
    int cpu_layers;          /* the CPU computes the first cpu_layers layers in any case; more than there are:
                                everything */
    int parts, attention;    /* nonzero: the device computes parts of this pass, and attention too */
    enum { NOT_REFUSED, REFUSED_PASS, REFUSED_CACHE } refused; /* why the device's tensor cores could not compute this
                                                                  pass, as they should have */
    size_t from;             /* the device computes no layer before this one in this pass */
    int x_is_there;          /* nonzero: workspace.x is on the device */
    int kept_is_there;       /* nonzero: the device has workspace.kept of this pass */
    struct offload_shape {   /* of passes that were recorded (device_record) */
        const struct mtp_module *module;
        size_t S, longest;
        void *recording;
    } shapes[OFFLOAD_SHAPES];
    int records;             /* nonzero: a pass is being recorded */
    size_t recorded;         /* how many recordings were made; the newest OFFLOAD_SHAPES are kept */
};
#define OFFLOAD_MOST_ROWS 16 /* passes with more rows are not recorded: starting kernels takes little of their time */

/* All memory of a pass. It is allocated once, so that passes allocate nothing. */
struct workspace {
    const struct vb_model *model;
    struct op_ctx cx;
    struct pace pace, module_pace; /* choose the number of threads for passes of the target (pace) and of its MTP
                                      modules (module_pace) */
    struct onednn **onednn;        /* with prefill onednn: [threads], one oneDNN object for each thread; cx uses them
                                      only between prefill_begin and prefill_end. Otherwise NULL */
    int cublas;                    /* with prefill cublas: 1; cx uses it only there, too */
    struct rope rope;
    float scale;
    size_t max_rows, context, max_logit_rows;
    int expands;                   /* nonzero: passes may have rows with attention in the expanded form */
    float *x, *normed, *delta;     /* [rows, d]: the residual stream, its RMSNorm, and the output of attention or MLP */
    float *q_a, *q, *kv_a, *heads; /* [rows, q], [rows, H(n+r)], [rows, c+r], [rows, Hv] */
    float *cos_sin;                /* [rows, r] */
    float *concat;                 /* [rows, 2d]: the input of eh_proj (MTP) */
    float *scores, *weights;       /* [rows, E], [rows, experts per token] */
    const int32_t **forced;        /* [rows]: of the present layer, router.forced or indexer.forced */
    struct rope index_rope;        /* the indexer's: the angles of `rope`, perhaps other pairs */
    size_t kept_most;              /* tokens to which a row attends at most; 0: the model has no indexer */
    float *index_k, *index_q, *index_w; /* [rows, D], [rows, HD], [rows, H]: key, queries and weights of an indexer */
    int32_t *kept;                 /* [rows, kept_most]: slots of the tokens that the last indexer chose for each row */
    int32_t *experts, *ids;        /* [rows, experts per token]: the chosen experts; [rows]: token ids */
    struct device_row *places;     /* [rows]: where the cache rows of each row are; addresses of the CPU */
    struct timeline *seen, *index_seen; /* [rows]: tokens to which attention, or an indexer, attends */
    float *hidden;                 /* [rows, d] after model.norm. Only forward_target writes `hidden`, `features`,
                                      `three` and `two` */
    float *features;               /* [rows, d]: the rows that drafters read. Convention main-hidden selects whether
                                      this is the array `hidden` or a copy of x before model.norm */
    float *three;                  /* [rows, 3d] for EAGLE-3: x before each of the layers in three_before; NULL if no
                                      drafter needs it */
    int three_before[3];
    float *two;                    /* [rows, 2d] for parallel heads: x before the last layer and x after it; NULL if no
                                      drafter needs it */
    float *logits;                 /* [max_logit_rows, V] */
    struct tapper *tapper;         /* NULL if no tap callback was set */
    int (*stop)(void *context);    /* called before each layer of the target; a nonzero result ends the pass; may be
                                      NULL */
    void *stop_context;
    int asks;                      /* nonzero, with several ranks: rank 0 tells the others before each layer whether
                                      `stop` ended the pass */
    uint32_t number;               /* with several ranks: the number by which rank 0 names the workspace */
    int draft_stopped;             /* nonzero: `stop` ended a pass of a draft model; session_draft_stopped clears this
                                      flag */
    int32_t *first_bad_layer;      /* [rows]: the first layer whose output is not finite, or -1 */
    struct offload offload;
    void *blocks[40];
    size_t block_bytes[40], block_count;
    size_t bytes;                  /* total size of all blocks */
};

/* Allocates everything for passes of up to max_rows rows. `context` is the largest number of committed tokens in a
 * sequence. During a round, drafts and padding may make a sequence longer than that. `expands` is nonzero if rows of
 * the passes may have attention in the expanded form. The caller frees the workspace with workspace_close. */
int workspace_open(struct workspace *w, const struct vb_model *m, const struct kernels *k, int threads, size_t max_rows,
                   size_t max_logit_rows, size_t context, int expands, vb_error *err);

/* Names the array of target rows that a drafter reads: workspace.features, workspace.hidden, workspace.three or
 * workspace.two. */
enum target_rows { ROWS_FEATURES, ROWS_HIDDEN, ROWS_THREE, ROWS_TWO };
/* Returns the rows of array `which` that the newest pass wrote, from row `first` on. Sets *width to the length of a
 * row. */
float *workspace_rows(const struct workspace *w, enum target_rows which, size_t first, size_t *width);
/* Makes later passes write the array `which`. Does nothing for ROWS_THREE, the rows before the layers that
 * config_three_layers names, if the target has too few layers. */
int workspace_keep_rows(struct workspace *w, enum target_rows which, vb_error *err);
/* Starts the group of threads (the crew) that computes the passes (ops/crew.h). If `exact` is nonzero, passes use all
 * threads, even if fewer threads would be faster. */
int workspace_gather_crew(struct workspace *w, const struct placement *placement, int exact, vb_error *err);
void workspace_close(struct workspace *w);
/* Allocates memory that workspace_close frees. Returns NULL if there is none. */
void *workspace_take(struct workspace *w, size_t count, size_t size);

/* The parts of a pass that a clock in workspace.cx.clock distinguishes (ops/clock.h). Time after a pass belongs to
 * PART_OUTSIDE. */
enum pass_part {
    PART_OUTSIDE,
    PART_Q_A,       /* q_a_proj or q_proj, kv_a_proj_with_mqa, and an indexer's wk, which share their parallel
                       regions */
    PART_Q_B,
    PART_INDEXER,   /* wq_b, weights_proj, scores and choice of an indexer; wk belongs to PART_Q_A */
    PART_ATTENTION, /* q_abs, scores, softmax, values, W_uv; in the expanded form also keys and values */
    PART_O,
    PART_DENSE,     /* the MLP of a layer without experts */
    PART_ROUTER,    /* mlp.gate and the choice of experts */
    PART_EXPERTS,   /* the chosen experts and the shared experts, which share their parallel regions */
    PART_EH,        /* eh_proj of an MTP module */
    PART_HEAD,      /* the output head */
    PART_SMALL,     /* everything else in a pass: embedding, norms, RoPE, writing cache rows, residual sums */
    PASS_PARTS
};

/* Returns how the routers of a model choose; of *moe, only the bias is read. */
struct router forward_router(const struct config *c, const struct moe *moe);

/* Runs the target on rows [S], S <= max_rows, and writes w->hidden [S, d]. The rows of one sequence are in ascending
 * order of index, and the caller has appended their slots to the cache of the sequence. Returns 0, or -1 if w->stop
 * ended the pass. After -1, the caller removes the rows from the caches. */
int forward_target(struct workspace *w, const struct row *rows, size_t S);

/* Runs the MTP module of one depth on S rows (docs/SEMANTICS.md, "MTP module k"). It computes x = eh_proj
 * [RMSNorm_e(Emb(token)) ; RMSNorm_h(h)], y = decoder_layer(x), and g = shared_head.norm(y). The output head of the
 * module reads g. `next` is the input of the next depth. It is a copy of g, or of y with convention
 * draft-hidden=pre-norm. h, g and next are [S, d], and `next` may be the same array as h. The cache of each
 * row's sequence has one layer. Of a parallel head (mtp_is_head), x is h, and no embedding is read. */
void forward_mtp(struct workspace *w, const struct mtp_module *module, int depth, const struct row *rows,
                 const float *h, float *g, float *next, size_t S);

/* Computes logits [S, V] = head(hidden). The hidden states are normalised already. */
void forward_head(struct workspace *w, const struct weight_view *head, float *logits, const float *hidden, size_t S);
/* Computes best [S]: the tokens with the largest of these logits (ops/argmax.h), for S <= max_logit_rows. w->logits is
 * overwritten, or its twin: a device that has the head sends only the tokens back. */
void forward_head_best(struct workspace *w, const struct weight_view *head, int32_t *best, const float *hidden,
                       size_t S);
/* Computes logits [S, vocab->count]: the same for the tokens of a list alone, with the head of the MTP module of this
 * number. */
void forward_listed(struct workspace *w, const vb_draft_vocab *vocab, int module, float *logits, const float *hidden,
                    size_t S);

/* Reports logits [count, vocab_size] to the tap callback. These logits belong to rows [first, first + count) of the
 * newest pass. */
void forward_tap_logits(const struct workspace *w, const float *logits, size_t vocab_size, size_t first, size_t count);

#endif
