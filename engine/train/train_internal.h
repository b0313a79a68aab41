/* engine/train/train_internal.h -- the trainer's own copy of a model: weights with their gradients, and the values of a
 * micro-batch that the backward pass needs. */
#ifndef VB_TRAIN_INTERNAL_H
#define VB_TRAIN_INTERNAL_H

#include "engine/train/trainer.h"
#include "engine/pass/pass.h"
#include "ops/attention.h"
#include "ops/backward/mlp.h"
#include "ops/backward/soft_cross_entropy.h"
#include "ops/router.h"

/* ---- weights (train_tensors.c) ---- */

/* A matrix or a vector (one row). */
struct train_part {
    struct weight_view w; /* the trainer's f32 copy, or the model's weights if it is frozen */
    float *g;             /* NULL: frozen */
};
static inline const float *train_vector(const struct train_part *p) { return p->w.data; }

struct train_mlp {
    struct train_part gate, up, down;
    struct mlp_gradients g;
};

struct train_layer {
    struct train_part input_norm, post_norm;
    struct train_part q, q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, o; /* q without q_lora_rank, else q_a, q_a_norm and
                                                                          q_b */
    int is_moe;
    struct train_mlp mlp;        /* dense layers */
    struct train_part router;          /* [E, d] */
    float *bias;                 /* [E] or NULL: e_score_correction_bias */
    int64_t *load;               /* [E]: how many tokens of the step chose each expert */
    struct train_mlp *experts, shared; /* [E] */
};

struct train_module {
    struct train_part enorm, hnorm, eh_proj, norm; /* norm: of shared_head */
    struct train_part embed, head;                 /* its own, or those of the trainer */
    int owns_embed, owns_head;
    struct train_layer layer;
};

/* ---- values of a micro-batch ---- */

/* The rows of the target, or of one depth: rows first[q] .. first[q + 1] - 1 belong to sequence q. */
struct train_rows {
    size_t S, *first;         /* [sequences + 1] */
    int32_t *tokens, *labels; /* [S]: tokens whose embeddings they read; tokens that they predict, or -1: they have no
                                 loss */
    struct row *list;         /* [S]: for the forward pass */
    size_t depth;             /* k: of aligned depths, each row attends to a tail of k rows, those of the depths 1..k at
                                 its place */
    int32_t *tail_slots;      /* [S, k]: their slots; NULL: depths are not aligned */
};
/* How many rows belong to sequence q. */
static inline size_t train_rows_of(const size_t *first, size_t q) { return first[q + 1] - first[q]; }

/* Keys and values of the rows of a layer, and their gradients. */
struct expanded_rows {
    float *kv, *k_rope;   /* [S, H(n+v)]: the output of kv_b_proj; [S, r]: rotated */
    float *dkv, *dk_rope;
};

/* What the forward pass of a layer keeps for its backward pass. */
struct kept_values {
    float *x;          /* [S, d]: the input of the layer */
    float *q_a;        /* [S, q]: before the norm */
    float *q;          /* [S, H(n+r)]: rotated and scaled */
    float *kv_a;       /* [S, c+r]: before the norm and RoPE; after them, they are in the cache of the rows */
    float *heads;      /* [S, Hv] */
    float *middle;     /* [S, d]: after attention */
    float *gate, *up;  /* [S, i]: of the dense MLP or the shared expert */
    float *scores;     /* [S, E]: the router's logits */
    size_t cache_layer; /* the layer's number in the cache */
};
#define KEPT_VALUES ((size_t)9) /* arrays of a layer */

struct train_depth {
    struct train_rows rows;
    struct kept_values kept;
    struct keep *keep;     /* [KEPT_VALUES + 1]: what its forward pass keeps */
    float *taken, *y, *g;  /* [S, d]: the hidden states that it takes; after its layer; after shared_head.norm */
    float *dg, *dembed;    /* [S, d]: gradients of g by its own loss, and of the embeddings */
};

/* Arrays that every layer uses in turn. */
struct train_shared {
    int32_t *slots;            /* [depths, S], or [S] without depths: 0, 1, 2 .. */
    float *dq_n, *dq_a;        /* [S, q] */
    float *dq;                 /* [S, H(n+r)] */
    float *latent, *dlatent;   /* [S, c] */
    float *dkv_a;              /* [S, c+r] */
    struct expanded_rows expanded;
    float *dheads;             /* [S, Hv] */
    float *dnormed;            /* [S, d] */
    float *dscores, *dweights; /* [S, E], [S, chosen] */
    float *dconcat;            /* [S, 2d] */
    float *dx, *dtaken;        /* [S, d] */
    float *z, *target_z;       /* [head_rows, V]; target_z only if rows learn from the target */
    float *decoded;            /* [DECODED_ROWS, d]: rows of a quantized head */
    float *some;               /* [head_rows, DECODED_ROWS]: columns of dz */
    size_t head_rows;
};
#define DECODED_ROWS ((size_t)256)

struct vb_trainer {
    const struct vb_model *model;
    const struct config *c;
    struct trainer_options o;
    struct trained_heads heads; /* a copy; t->o.heads points to it, or is NULL */
    struct vb_model *opened_heads; /* those that vb_trainer_open has opened, and vb_trainer_close closes; else NULL */
    struct loss loss;
    vb_allocator allocator;
    struct op_ctx cx;
    struct crew *crew;
    void *crew_memory;

    struct vb_model trained, trained_heads; /* views of the trainer's weights, for the forward pass (train_model.c): the
                                               target and its modules; parallel heads */
    struct pass pass;                       /* computes them, and has the memory of the backward pass for one layer */
    struct kvcache cache, depth_cache;      /* the latents of a micro-batch: [layers] of the target; one layer, of row s
                                               of depth k in slot k room + s */
    size_t forward_scratch;                 /* bytes that the operators of the forward pass need */

    enum target_rows takes; /* the rows of the frozen model that the trained part reads */
    size_t width;           /* the length of such a row */
    int modules, used; /* the trained model has so many; so many of them are computed */
    struct train_part embed, norm, head;
    struct train_layer *layers; /* NULL if the model is frozen */
    struct train_module *mtp;   /* [used]; of parallel heads, layer, norm and head are used, and the last two are the
                                   trainer's */
    struct train_eagle *eagle;  /* NULL unless an EAGLE head is trained (train_eagle.h) */
    float *tied;                /* [V, d]: with tied embeddings, the gradient as an embedding, until the end of the
                                   step; else NULL */
    struct trained_tensor *tensors; /* in the order of names */
    size_t count;
    struct train_block *blocks;
    int has_gradients;      /* nonzero: the newest trainer_gradients has succeeded */

    /* for micro-batches of up to `room` tokens, with up to `most` sequences, none of which has more than `longest`
     * tokens */
    size_t room, longest, most;
    void *values;                 /* holds all that follows */
    const struct training_sequence **batch; /* [sequences]: the micro-batch */
    size_t sequences;
    float *angles;                /* [longest + depths + 1, r] */
    struct train_rows rows;       /* of the target */
    struct kept_values *kept;     /* [layers] */
    struct keep *keep;            /* [KEPT_VALUES layers + 2]: what the forward pass of the target keeps */
    float *last;                  /* [S, d]: the output of the last layer; only with TRAIN_MODEL */
    float *hidden;                /* [S, width]: the rows of the frozen model that the part takes; with TRAIN_MODEL, [S,
                                     d] after model.norm */
    float *final;                 /* [S, d]: after model.norm. Perhaps the array `hidden`; NULL if no row learns from
                                     the target's logits */
    float *dhidden;               /* [S, d] */
    float *dtrunk;                /* [S, d]: of what parallel heads read, if the model is trained with them */
    struct train_depth *depth;    /* [depths] */
    struct expanded_rows *expanded; /* [depths]: if depths are aligned, those of module 0 */
    struct train_shared shared;
    struct target_pass *target;   /* computes rows of the frozen model (train_target.c) */
};

/* Wakes the trainer's threads, before it computes. */
void train_threads(struct vb_trainer *t);

/* Makes the trainer's weights. What was made is freed by train_free_tensors, also after an error. */
int train_make_tensors(struct vb_trainer *t, vb_error *err);
void train_free_tensors(struct vb_trainer *t);

/* What train_make_tensors fills in as it goes on. */
struct maker {
    struct vb_trainer *t;
    const struct vb_model *m;
    char prefix[64]; /* of the names of a layer */
    int is_new;      /* nonzero: this layer is new */
    int copied;      /* nonzero: this layer is new, and begins as a copy of the one that is named */
    size_t room;     /* tensors for which t->tensors has memory */
    vb_error *err;
};
/* Adds a trained tensor outside of layers: a matrix, or a vector of `cols` numbers with `rows` 0. Its first values are
 * `matrix` or `vector`, or new ones if both are NULL. */
int train_add(struct maker *b, struct train_part *out, const char *name, size_t rows, size_t cols,
              const struct weight_view *matrix, const float *vector);

/* Memory that train_free_tensors frees, filled with 0; NULL after an error. */
void *train_take(struct maker *b, size_t count, size_t size);

/* ---- train_model.c ---- */

/* Sets t->trained and t->trained_heads from the trainer's weights. */
int train_make_model(struct maker *b);
/* Opens the memory of the forward pass, for t->room tokens. After an error, too, train_close_pass closes it. */
int train_open_pass(struct vb_trainer *t, vb_error *err);
void train_close_pass(struct vb_trainer *t);
/* The model whose modules compute the depths. */
static inline const struct vb_model *train_drafts(const struct vb_trainer *t)
{
    return t->o.heads ? &t->trained_heads : &t->trained;
}

/* ---- train_step.c ---- */

/* Whether no number of x [n] is infinite or NaN. */
int train_is_finite(const float *x, size_t n);

/* ---- train_values.c ---- */

/* A block of memory from which arrays are taken. base NULL: only counts. */
struct carver {
    char *base;
    size_t used;
};
void *train_carve(struct carver *c, size_t count, size_t size);

/* Makes room for micro-batches of up to so many tokens and sequences. */
int train_reserve(struct vb_trainer *t, size_t tokens, size_t longest, size_t sequences, vb_error *err);

/* ---- train_layer.c ---- */

/* If depths are aligned: sets *e from what the forward pass of a depth has kept, and clears its gradients. Later depths
 * continue them. */
void train_layer_expand(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                        const struct kept_values *k, struct expanded_rows *e);
/* Computes out [S, d], and keeps gate and up [S, i]. It has the bits of op_mlp. product: scratch [S, i] */
void train_mlp_forward(struct vb_trainer *t, float *out, float *gate, float *up, float *product, const float *x,
                       const struct train_mlp *w, size_t S);
/* dx [S, d]: the gradient of the layer's output becomes that of its input. k->gate and k->up are overwritten. The
 * experts that the rows chose are added to l->load. */
void train_layer_back(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                      const struct kept_values *k, float *dx);
/* A linear layer and a norm of the trainer: dx is continued, and so is the gradient of the weights if they have one. */
void train_back_linear(struct vb_trainer *t, float *dx, const float *dy, const float *x, const struct train_part *w,
                       size_t S);
void train_back_norm(struct vb_trainer *t, float *dx, const float *dy, size_t ldy, const float *x, size_t ldx,
                     const struct train_part *w, size_t S, double eps);

/* ---- train_heads.c ---- */

/* The sum of the target's cross entropies, those of the terms of each depth, and the weights of these sums in the
 * loss. */
struct train_sums {
    double main;
    struct soft_sums depth[VB_MAX_DRAFT];
    double features[VB_MAX_DRAFT];
    int64_t outside[VB_MAX_DRAFT]; /* as in struct training_losses */
    float main_weight, weight[VB_MAX_DRAFT], feature_weight[VB_MAX_DRAFT];
};
/* Some rows of the target, or of one depth, and where their losses go. */
struct train_predicted {
    const struct train_part *head;
    const float *h;      /* [S, d], where d is the width of the head's rows */
    float *dh;           /* [S, d], written; NULL: no gradients */
    int32_t *labels;     /* [S]; changed if the head has a vocabulary of its own */
    size_t S, target;    /* target: the row of the target that row 0 learns from, if rows do */
    struct soft_sums *sums;
    float weight;
    const int32_t *tokens, *ids; /* a vocabulary of the head's own, as in struct train_eagle; NULL: that of the
                                    target */
    int64_t *outside;    /* counts labels outside of it; NULL without one */
};
/* Adds the losses of the rows to *sums, and to the gradient of the head. soft: they learn from the target's logits */
void train_predict(struct vb_trainer *t, const struct train_predicted *x, int soft);
/* Adds the losses of a micro-batch to *sums. If `backward` is nonzero, also sets t->dhidden and depth[k].dg, and adds
 * to the gradients of the output heads. */
void train_heads(struct vb_trainer *t, struct train_sums *sums, int backward);
/* Whether depth k is the k-th draft of module 0 after a row (CHAIN_ALIGNED). */
static inline int train_is_aligned(const struct vb_trainer *t) { return !t->eagle && t->loss.chain == CHAIN_ALIGNED; }
/* Whether rows of depths learn from the logits of the target. */
static inline int train_is_soft(const struct vb_trainer *t)
{
    return t->loss.terms.soft != 0 || t->loss.terms.top != 0;
}
/* Whether they learn from its logits or its hidden states. */
static inline int train_learns_from_target(const struct vb_trainer *t)
{
    return train_is_soft(t) || t->loss.terms.features != 0;
}
/* Adds the distances of what depth k hands on from the target's hidden states to *sum, and their gradients to dhanded
 * [S, d] (NULL: not). first and labels are those of its rows. */
void train_features(struct vb_trainer *t, int k, const size_t *first, const int32_t *labels, const float *handed,
                    float *dhanded, double *sum, float weight);

/* ---- train_pass.c ---- */

/* Whether the row that predicts token i has a loss. */
static inline int train_is_label(const struct training_sequence *s, size_t i)
{
    return !s->loss_mask || s->loss_mask[i];
}
/* Sets the rows of the target (k = -1) or of depth k, for t->batch. */
void train_set_rows(struct vb_trainer *t, struct train_rows *rows, int k);
/* The hidden states that depth k hands on to depth k + 1; k = -1: the target's. */
const float *train_handed(const struct vb_trainer *t, int k);
/* Computes all hidden states of a micro-batch, from t->rows and the rows of the depths. */
void train_forward(struct vb_trainer *t);
/* From the gradients that the losses gave (t->dhidden, depth[k].dg) to those of all weights. */
void train_backward(struct vb_trainer *t, const struct train_sums *sums);

/* ---- train_parallel.c ---- */

/* Whether options.part and options.heads agree, and the heads fit the model. */
int train_check_heads(const struct vb_model *m, const struct trainer_options *o, vb_error *err);

/* The rows of the target that parallel heads read. Sets *stride to their distance. */
const float *train_trunk(const struct vb_trainer *t, size_t *stride);
/* From depth[k].dg to the gradients of the head's weights, and to t->dtrunk, which is continued. */
void train_parallel_back(struct vb_trainer *t, int k);

/* ---- train_target.c ---- */

/* Computes t->hidden, and t->final where it is wanted: the rows of the frozen model. */
int train_target(struct vb_trainer *t, vb_error *err);
/* How many rows at the end of a sequence are not read, and so not computed. */
size_t train_unread(const struct vb_trainer *t);
/* Whether the rows that the part takes are after model.norm. */
int train_takes_final(const struct vb_trainer *t);
void train_target_close(struct vb_trainer *t);

#endif
