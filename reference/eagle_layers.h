/* reference/eagle_layers.h -- the parts of an EAGLE head, forward and backward. reference/eagle.h has the formulas of
 * the head, and backward_layers.h says how gradients are written here.
 *
 * H is the number of heads, G that of groups which share a key and a value, D the length of a head, d the width of the
 * EAGLE head and T that of the target's rows. */
#ifndef VB_REFERENCE_EAGLE_LAYERS_H
#define VB_REFERENCE_EAGLE_LAYERS_H

#include "reference/backward_layers.h"
#include "reference/eagle.h"

struct reference_eagle {
    struct reference *own;          /* the head's configuration, files and decoded matrices; it has no layers */
    const struct reference *target;
    int version, groups, dim, vocab; /* 1 or 3; G; D; V */
    struct eagle_norms norms;
    int three[3];                   /* EAGLE-3: the target's layers before which rows are taken, ascending */
    int32_t *tokens, *ids;          /* the target's token for each id of the head [V]; the id of each token, or -1.
                                       NULL: they are equal */
    int embeds;                     /* nonzero: the head's files have an embedding; else that of the target is used */
    struct matrix embed;            /* [target's V, d] */
    struct matrix feature_norms[3]; /* config_feature_norm: [3T] or three [T]; their tensors are NULL if there are
                                       none */
    struct matrix fc, fc_bias;      /* [d, 2d] or [d, 3T]; [d], its tensor is NULL if there is none */
    struct matrix q_proj, k_proj, v_proj, o_proj; /* [HD, c], [GD, c], [GD, c], [d, HD]: c is d, or 2d with EAGLE-3 */
    struct matrix input_norm, hidden_norm, norm;  /* [d], EAGLE-3 only */
    struct matrix post_attention_norm;            /* [d] */
    struct reference_mlp mlp;
    struct matrix head;             /* [V, d]; EAGLE-1: that of the target */
};

/* The rows of attention: values, or their gradients. q and k are rotated */
struct ref_grouped {
    double *q, *k, *v; /* [S,H,D], [S,G,D], [S,G,D] */
    int H, G, D;
};

/* Row s of the scores of head h, which belongs to group g = h / (H / G): q[s,h] . k[t,g] scale, or -infinity if row s
 * does not attend to row t. p [S,S] */
void ref_grouped_scores(struct reference_run *run, double *p, const struct ref_grouped *x, double scale, int h, int S);
/* heads[s,h] = sum_t p[s,t] v[t,g].  heads [S,H,D] */
void ref_grouped_mix(double *heads, const double *p, const struct ref_grouped *x, int h, int S);

/*     scores[s,t] = q[s,h] . k[t,g] scale,   p[s] = softmax(scores[s]),   heads[s,h] = sum_t p[s,t] v[t,g]
 *
 *     dp[s,t] = dheads[s,h] . v[t,g],   dv[t,g] = sum over the heads h of the group, sum_s p[s,t] dheads[s,h],
 *                                       dscores[s] as in ref_back_softmax
 *     dq[s,h] = scale sum_t dscores[s,t] k[t,g],   dk[t,g] = scale sum over the heads h of the group, sum_s
 *     dscores[s,t] q[s,h]
 * in two steps for each head: the first computes dp and dv, and the second dq and dk. p, dp, dscores [S,S] are 0 for t
 * > s. dheads [S,H,D] */
void ref_back_grouped_mix(double *dp, const struct ref_grouped *d, const double *dheads, const struct ref_grouped *x,
                          const double *p, int h, int S);
void ref_back_grouped_scores(const struct ref_grouped *d, const double *dscores, const struct ref_grouped *x,
                             double scale, int h, int S);

/* One computation with an EAGLE head on up to S rows. Of `back`, and of its run, only the fields are set that EAGLE
 * heads use. */
struct ref_eagle_run {
    const struct reference_eagle *e;
    struct reference_back back;
    struct reference_run target;    /* computes the target, and its output head */
    void *memory;                   /* holds the arrays below, and those of `back` */
    double *features;               /* [S,3T]: the input of W_fc, if there are norms before it */
    double *x, *middle;             /* [S,d]: the residual stream before and after attention */
    double *input;                  /* [S,c]: what attention reads */
    struct ref_grouped rows, drows;
    double *dx, *dinput, *dconcat, *dembed; /* [S,d], [S,c], [S,2d], [S,d] */
    double *dfeatures;              /* [3T] */
};

/* gradients NULL: there is no backward pass. */
int ref_eagle_run_open(struct ref_eagle_run *r, const struct reference_eagle *e,
                       const struct reference_options *options, struct reference_gradients *gradients, int S,
                       vb_error *err);
void ref_eagle_run_close(struct ref_eagle_run *r);

/* h^0 [S,d] from the target's rows [S, T or 3T] */
void ref_eagle_first(struct ref_eagle_run *r, double *h, const double *rows, int S);
/* y [S,d] and g [S,d], the input of the output head, from h [S,d] and the tokens that the rows read. Fills the arrays
 * of *r. g may be y. */
void ref_eagle_layer(struct ref_eagle_run *r, double *y, double *g, const int32_t *tok, const double *h, int S);
/* What the next depth, or the next row when the head drafts, takes: y or g */
static inline const double *ref_eagle_handed(const struct reference_eagle *e, const double *y, const double *g)
{
    return e->norms.norm_output ? g : y;
}
/* z [S,V] = W_head g */
void ref_eagle_logits(struct ref_eagle_run *r, double *z, const double *g, int S);

/* dh from dy and dg [S,d], after ref_eagle_layer has computed y [S,d] from tok and h. dy is changed. */
void ref_back_eagle_layer(struct ref_eagle_run *r, double *dh, double *dy, double *dg, const int32_t *tok,
                          const double *h, const double *y, int S);
/* Adds the gradients of fc and the norms before it from that of h^0, for EAGLE-3, after ref_eagle_first. scratch:
 * [S,3T] */
void ref_back_eagle_first(struct ref_eagle_run *r, double *dh, const double *rows, double *scratch, int S);
/* dg += transpose(W_head) dz, and the gradient of W_head if it belongs to the EAGLE head. dz [S,V] */
void ref_back_eagle_logits(struct ref_eagle_run *r, double *dg, double *dz, const double *g, int S);

#endif
