/* engine/train/train_internal.h -- the trainer's own copy of a model: weights with their gradients, and the values of a micro-batch that the
 * backward pass needs. */
#ifndef VB_TRAIN_INTERNAL_H
#define VB_TRAIN_INTERNAL_H

#include "engine/train/trainer.h"
#include "engine/pass/forward.h"
#include "ops/attention.h"
#include "ops/backward/mlp.h"
#include "ops/router.h"

/* ---- weights (train_tensors.c) ---- */

/* A matrix or a vector (one row). */
struct train_part {
    struct weight_view w; /* the trainer's f32 copy, or the model's weights if it is frozen */
    float *g;             /* NULL: frozen */
};
static inline const float *part_vector(const struct train_part *p) { return p->w.data; }

struct train_mlp {
    struct train_part gate, up, down;
    struct mlp_gradients g;
};

struct train_layer {
    struct train_part input_norm, post_norm;
    struct train_part q, q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, o; /* q without q_lora_rank, else q_a, q_a_norm and q_b */
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
    int32_t *tokens, *labels; /* [S]: tokens whose embeddings they read; tokens that they predict */
    float *cos_sin;           /* [S, r] */
    struct device_row *places; /* [S] */
    struct timeline *seen;    /* [S] */
};

/* What the forward pass of a layer keeps for its backward pass. */
struct kept_values {
    float *x;          /* [S, d]: the input of the layer */
    float *q_a;        /* [S, q]: before the norm */
    float *q;          /* [S, H(n+r)]: rotated and scaled */
    float *kv_a, *kv_n; /* [S, c+r]: before the norm and RoPE, and after them */
    float *heads;      /* [S, Hv] */
    float *middle;     /* [S, d]: after attention */
    float *gate, *up;  /* [S, i]: of the dense MLP or the shared expert */
    float *scores, *weights; /* [S, E], [S, chosen]: the router's logits, and the weights of the chosen experts */
    int32_t *experts;  /* [S, chosen] */
};

struct train_depth {
    struct train_rows rows;
    struct kept_values kept;
    float *taken, *y, *g;  /* [S, d]: the hidden states that it takes; after its layer; after shared_head.norm */
    float *dg, *dembed;    /* [S, d]: gradients of g by its own loss, and of the embeddings */
};

/* Arrays that every layer uses in turn. */
struct train_shared {
    void *cache;               /* [S] cache rows of one layer */
    int32_t *slots;            /* [S]: 0, 1, 2 .. */
    float *normed, *delta;     /* [S, d] */
    float *q_n, *dq_n, *dq_a;  /* [S, q] */
    float *dq;                 /* [S, H(n+r)] */
    float *latent, *dlatent;   /* [S, c] */
    float *k_rope, *dk_rope;   /* [S, r] */
    float *dkv_a;              /* [S, c+r] */
    float *kv, *dkv;           /* [S, H(n+v)] */
    float *dheads;             /* [S, Hv] */
    float *dnormed;            /* [S, d] */
    float *product;            /* [S, i] */
    float *dscores, *dweights; /* [S, E], [S, chosen] */
    float *concat, *dconcat;   /* [S, 2d] */
    float *embedding;          /* [S, d] */
    float *dx, *dtaken;        /* [S, d] */
    float *z;                  /* [head_rows, V] */
    float *decoded;            /* [DECODED_ROWS, d]: rows of a quantised head */
    float *some;               /* [head_rows, DECODED_ROWS]: columns of dz */
    size_t head_rows;
};
#define DECODED_ROWS ((size_t)256)

struct trainer {
    const struct model *model;
    const struct config *c;
    struct trainer_options o;
    vb_allocator allocator;
    struct op_ctx cx;
    struct crew *crew;
    void *crew_memory;
    struct rope rope;
    float scale;

    int modules, used; /* the trained model has so many; so many of them are computed */
    struct train_part embed, norm, head;
    struct train_layer *layers; /* NULL with TRAIN_MODULES */
    struct train_module *mtp;   /* [used] */
    float *tied;                /* [V, d]: with tied embeddings, the gradient as an embedding, until the end of the step; else NULL */
    struct trained_tensor *tensors; /* in the order of names */
    size_t count;
    struct train_block *blocks;

    /* for micro-batches of up to `room` tokens, with up to `most` sequences, none of which has more than `longest` tokens */
    size_t room, longest, most;
    void *values;                 /* holds all that follows */
    float *angles;                /* [longest + depths + 1, r] */
    struct train_rows rows;       /* of the target */
    struct kept_values *kept;     /* [layers] */
    float *last, *hidden;         /* [S, d]: the output of the last layer; after model.norm, or what module 0 takes with TRAIN_MODULES */
    float *dhidden;               /* [S, d] */
    struct train_depth *depth;    /* [depths] */
    struct train_shared shared;
    struct target_pass *target;   /* computes hidden states of the frozen model (train_target.c) */
};

/* Wakes the trainer's threads, before it computes. */
void train_threads(struct trainer *t);

/* Makes the trainer's weights. What was made is freed by train_free_tensors, also after an error. */
int train_make_tensors(struct trainer *t, vb_error *err);
void train_free_tensors(struct trainer *t);

#endif
