/* engine/train/train_eagle.h -- training an EAGLE head of a frozen model (engine/draft/eagle_net.h has the network).
 *
 * Row i of depth k reads tok[i+k+1] and a hidden state, and predicts tok[i+k+2], as the rows of an MTP module do. Depth
 * 0 takes the rows of the target, through fc if the head is an EAGLE-3. Each later depth is aligned (docs/TRAINING.md):
 * it is the draft that the head makes after depth k - 1. Row i has the position i + k, takes y of row i of depth k - 1
 * (g with norm_output), and attends to rows 0..i of depth 0 and to row i of the depths 1..k.
 *
 * The forward pass has the bits of eagle_pass on a head with the same F32 weights. */
#ifndef VB_TRAIN_EAGLE_H
#define VB_TRAIN_EAGLE_H

#include "engine/draft/eagle_net.h"
#include "engine/train/train_internal.h"
#include "ops/gqa.h"

/* The values of a depth that its backward pass needs. w is the width of the input of attention: d, or 2d with
 * EAGLE-3. */
struct eagle_depth {
    size_t S, *first;         /* as in struct train_rows */
    int32_t *tokens, *labels;
    float *cos_sin;           /* [S, D] */
    float *taken;             /* [S, d]: the hidden states that it takes */
    float *concat;            /* [S, 2d]: EAGLE-1: [embedding ; taken]; EAGLE-3: both after their norms */
    float *x;                 /* [S, d]: the residual stream before attention; EAGLE-3 without norm_before_residual: the
                                 array `taken` */
    float *q, *kv;            /* [S, HD], [S, 2GD]: rotated; a row of kv has the keys and then the values */
    float *attended;          /* [S, HD] */
    float *middle;            /* [S, d]: after attention */
    float *gate, *up;         /* [S, i] */
    float *y, *g;             /* [S, d]: after the MLP; the input of the output head. EAGLE-1: the same array */
    float *dg;                /* [S, d]: the gradient of g by its own loss */
    float *dk, *dv;           /* [S, GD] */
};

struct train_eagle {
    int version;
    struct eagle_head *head;  /* the head that it began with; NULL: it is new */
    size_t d, H, G, D, intermediate;
    struct eagle_norms norms;
    size_t vocab_size;
    int32_t *tokens, *ids;    /* the target's token for each id of the head [vocab_size], and the other way round [V],
                                 -1: none. NULL: ids are tokens */
    float eps;
    struct rope rope;
    struct gqa gqa;
    struct weight_view embed; /* frozen */
    struct train_part feature_norms[3]; /* before fc (config_feature_norm) */
    struct train_part fc, fc_bias, q, k, v, o, input_norm, hidden_norm, post_norm, norm;
    struct train_part lm_head; /* EAGLE-1: that of the target, frozen */
    struct train_mlp mlp;

    struct eagle_depth depth[VB_MAX_DRAFT];
    float *features, *fc_input; /* [S, 3 target widths]: what an EAGLE-3 takes from the target, and after the norms
                                   before fc. Without norms, the same array */
    float *dfeatures, *dfc_input; /* [S, 3 target widths], if there are norms before fc */
    float *embedding;         /* [S, d] */
    float *kv;                /* [depths, room, 2GD]: the kv of all depths */
    float *k_out, *v_out;     /* [S, GD] */
    float *normed, *delta;    /* [S, d] */
    float *product;           /* [S, i] */
    float *dy, *dnormed, *dtaken; /* [S, d] */
    float *dq, *dheads;       /* [S, HD] */
    float *dinput, *dconcat;  /* [S, w], [S, 2d] */
    int32_t *slots;           /* [EAGLE_QUERIES, longest + depths] */
    struct timeline *seen;    /* [EAGLE_QUERIES] */
};
#define EAGLE_QUERIES ((size_t)64) /* rows whose lists of slots are made at once */

/* Checks the head, opens the one to begin with, and sets t->eagle, t->takes and t->width. */
int train_eagle_open(struct vb_trainer *t, const struct trainer_eagle *o, vb_error *err);
void train_eagle_close(struct vb_trainer *t);
/* Adds the trained tensors. */
int train_eagle_tensors(struct vb_trainer *t, struct maker *b);
void train_eagle_carve(struct carver *c, struct vb_trainer *t);
size_t train_eagle_scratch(const struct vb_trainer *t);

/* ---- train_eagle_pass.c: as train_forward, train_heads and train_backward ---- */

void train_eagle_forward(struct vb_trainer *t);
void train_eagle_losses(struct vb_trainer *t, struct train_sums *sums, int backward);
void train_eagle_backward(struct vb_trainer *t, const struct train_sums *sums);
/* Says which numbers are not finite, if one of them explains it: what depth 0 takes from the target, or the output of a
 * depth. */
void train_eagle_where(const struct vb_trainer *t, char *where, size_t size);

#endif
