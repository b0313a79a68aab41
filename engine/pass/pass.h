/* engine/pass/pass.h -- what passes have in hand: operators, threads, memory, callbacks, and the pass that is being
 * computed.
 *
 * A session has a struct pass, or the sequences of a batch share one. The functions in engine/pass/forward.h compute
 * passes with it. */
#ifndef VB_PASS_H
#define VB_PASS_H

#include "engine/pass/row.h"
#include "engine/pass/watch.h"
#include "engine/pass/workspace.h"
#include "ops/arithmetic.h"
#include "ops/op.h"
#include "ops/rope.h"

struct pass;
struct tapper;

/* Numbers that passes keep for somebody: after value `value` of layer `layer`, row s of the array that holds it is
 * copied to `to` + s * pitch. */
struct keep {
    enum pass_value value;
    int layer; /* number in the checkpoint; -1 for a value outside of the layers */
    float *to;
    size_t pitch;
};
#define PASS_KEEPS 8 /* for drafters */

/* Where the operators of the next steps compute. */
struct side {
    const struct row_place *places;   /* [S]: where the cache rows of each row are */
    const struct row_place *attended; /* [S]: the tokens to which each row attends; not used by the CPU */
    size_t longest;                    /* the longest list of them has so many, or fewer; not used by the CPU */
    int32_t *first_bad_layer;          /* [S] */
    void (*choose_tokens)(struct pass *p);                 /* sparse attention (engine/pass/indexing.h) */
    void (*show)(struct pass *p, float *array, size_t count); /* makes numbers of an array of the workspace readable for
                                                                 the CPU */
};

/* Who computes a pass: this process alone, a device for parts of it, or other processes too. */
struct runner {
    int (*target)(struct pass *p);  /* returns -1 if `stop` ended the pass, else 0 */
    void (*module)(struct pass *p);
    void (*head)(struct pass *p, const struct weight_view *head, float *logits, const float *hidden, size_t S);
    void (*best)(struct pass *p, const struct weight_view *head, int32_t *best, const float *hidden, size_t S);
    void (*listed)(struct pass *p, const vb_draft_vocab *vocab, int module, float *logits, const float *hidden,
                   size_t S);
    void (*close)(struct pass *p);
};

struct pass {
    const struct vb_model *model;
    struct workspace w;
    struct op_ctx cx;
    struct pace pace, module_pace; /* choose the number of threads for passes of the target, and of its MTP modules */
    struct arithmetic arithmetic;  /* how linear layers multiply: cx has its address */
    struct arithmetic by_library;  /* with prefill onednn or cublas: how they multiply between prefill_begin and
                                      prefill_end */
    struct onednn **onednn;        /* with prefill onednn: [threads], one oneDNN object for each thread; else NULL */
    struct rope rope, index_rope;  /* index_rope: the indexer's: the angles of `rope`, perhaps other pairs */
    float scale;                   /* of attention scores */
    const struct runner *runner;
    struct offload *offload;       /* of a runner that uses a device (engine/pass/offload.h); else NULL */
    struct pass_watcher *watchers, prefetch;
    struct tapper *tapper;         /* NULL if no tap callback was set */
    int (*stop)(void *context);    /* called before each layer of the target; a nonzero result ends the pass; may be
                                      NULL */
    void *stop_context;
    int asks;                      /* nonzero: `stop` is called before each layer of this pass */
    uint32_t number;               /* with several ranks: the number by which rank 0 names this struct */
    int draft_stopped;             /* nonzero: `stop` ended a pass of a draft model; session_draft_stopped clears this
                                      flag */
    const struct keep *keep;       /* [keeps]: for_drafters, or the list of whoever runs the pass */
    size_t keeps;
    struct keep for_drafters[PASS_KEEPS];

    /* the pass that is being computed */
    const struct row *rows;           /* [S] */
    size_t S;
    const struct mtp_module *module;  /* NULL: the target */
    int depth;                        /* the MTP depth; -1: the target */
    const float *taken;               /* [S, d]: of a module: the hidden states that it takes */
    float *given;                     /* [S, d]: of a module: receives the input of its output head */
    const struct layer *l;            /* the present layer */
    int layer;                        /* its number in the checkpoint; -1: outside of the layers */
    size_t cache_layer;               /* its number in the cache */
    struct side side;
    enum pass_value only;             /* compute this value alone, from its inputs (operators.h); NO_VALUE: all */
};

/* Sets what passes need besides memory: workspace_open makes it, and cx has no scratch yet. `context` is as in
 * pass_open. */
void pass_set_up(struct pass *p, const struct vb_model *m, const struct kernels *k, int threads, size_t context);
/* Opens what passes of up to max_rows rows need (workspace_open), for kernels k and this many threads. `expands` is
 * nonzero if rows may have attention in the expanded form. The caller closes it with pass_close. */
int pass_open(struct pass *p, const struct vb_model *m, const struct kernels *k, int threads, size_t max_rows,
              size_t max_logit_rows, size_t context, int expands, vb_error *err);
void pass_close(struct pass *p);
/* Starts the group of threads (the crew) that computes the passes (ops/crew.h). If `exact` is nonzero, passes use all
 * threads, even if fewer threads would be faster. */
int pass_gather_crew(struct pass *p, const struct placement *placement, int exact, vb_error *err);

/* Names the array of target rows that a drafter reads. */
enum target_rows { ROWS_FEATURES, ROWS_HIDDEN, ROWS_EAGLE3, ROWS_TRUNK };
/* Returns the rows of array `which` that the newest pass wrote, from row `first` on. Sets *width to the length of a
 * row. */
float *pass_rows(const struct pass *p, enum target_rows which, size_t first, size_t *width);
/* Makes later passes of the target write the array `which`. Does nothing for ROWS_EAGLE3 if the target has too few
 * layers. */
int pass_keep_rows(struct pass *p, enum target_rows which, vb_error *err);

/* The number of attention heads that this process computes, and the first of them. */
static inline struct op_share pass_heads(const struct pass *p)
{
    const struct dims *dims = &p->model->config.dims;
    return op_own(&p->cx, dims->H, attention_head_unit(dims->v));
}

#endif
