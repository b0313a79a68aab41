/* reference/layers.h -- one computation, and the operators it is made of. */
#ifndef VB_REFERENCE_LAYERS_H
#define VB_REFERENCE_LAYERS_H

#include "reference/reference.h"
#include "reference/weights.h"

/* One call of reference.h: what it was asked for, and room for the values of S tokens. Letters: docs/SEMANTICS.md; capitals are
 * extents, W the widest MLP, X experts per token, G groups. */
struct reference_run {
    const struct reference *r;
    const struct config *c;
    struct reference_options options;
    uint64_t random;  /* state of the perturbation's generator */
    int stretched;    /* YaRN is in force */
    int layer;        /* of the values computed now, -1 outside the layers */
    void *memory;     /* all of the following */

    double *row;                        /* one row of a matrix, decoded */
    double *rounded;                    /* [S, widest]: x of a linear layer that rounds it */
    double *w_uk, *w_uv;                /* [N, C], [V, C]: of one head */
    double *cosine, *sine;              /* [S, R/2] */
    double *normed, *delta;             /* [S, D]: a block's input, and what it adds to the residual stream */
    double *q_a, *q;                    /* [S, Q], [S, H, N+R] */
    double *q_nope, *q_rope;            /* [S, H, N], [S, H, R] */
    double *kv_a, *latent, *k_rope;     /* [S, C+R], [S, C], [S, R] */
    double *kv, *k_nope, *v;            /* [S, H, N+V], [S, H, N], [S, H, V] */
    double *scores, *mixed;             /* [S, S], [S, C], of one head */
    double *heads;                      /* [S, H, V] */
    double *gate, *up;                  /* [S, W] */
    double *router, *choice, *groups;   /* [S, E], [S, E], [S, G] */
    double *experts, *weights;          /* [S, X]: the chosen experts, ascending, and their weights */
    double *expert_in, *expert_out;     /* [S, D]: the tokens of one expert, gathered */
    double *routed;                     /* [S, X, D]: the output of each chosen expert */
    double *embed, *concat, *taken, *stream; /* [S, D], [S, 2D], [S, D], [S, D]: MTP */
    char *chosen;                       /* [max(E, G)] */
};

/* Every value that has been computed passes through here: perturbed, if that is asked for, and shown to the hook. */
void ref_value(struct reference_run *run, const char *name, int index, int rows, int cols, double *data);
double ref_uniform(struct reference_run *run); /* in [-1, 1), of the perturbation */
/* shown only: values that are no result of arithmetic */
void ref_show(struct reference_run *run, const char *name, int index, int rows, int cols, const double *data);

/* whether a convention is not at its default */
static inline int ref_convention(const struct reference_run *run, enum convention c) { return run->options.conventions.value[c]; }

/* cosines and sines of positions first.. */
void ref_rope_tables(struct reference_run *run, int first, int S);
void ref_embed(struct reference_run *run, double *x, const struct matrix *embed, const int32_t *tokens, int S);
void ref_norm(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S, double eps);
void ref_linear(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S);
/* y = W x whatever the precision: the router's gate */
void ref_product(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S);

double ref_dot(const double *a, const double *b, int n);

/* --- what a linear layer makes of x and of its weights: round.c --- */

enum form { AS_IS, TO_BF16, TO_GROUPS }; /* of x */
enum form ref_form(const struct reference_run *run, const struct matrix *w);
enum form ref_keys_form(const struct reference_run *run, const struct reference_attention *w);   /* of W_UK: q_nope */
enum form ref_values_form(const struct reference_run *run, const struct reference_attention *w); /* of W_UV: the weighted sum of latents */
/* n numbers; groups: n and what is one x are whole groups of 32. y may be x. */
void ref_round_x(struct reference_run *run, enum form form, double *y, const double *x, size_t n);

void ref_weights(struct reference_run *run, const struct matrix *w, int i); /* run->row = row i of W */
void ref_keys(struct reference_run *run, const struct reference_attention *w, int h);   /* run->w_uk of head h */
void ref_values(struct reference_run *run, const struct reference_attention *w, int h); /* run->w_uv */

/* The two kinds of feed-forward block, x, out [S,D]: moe.c. */
void ref_mlp(struct reference_run *run, double *out, const struct reference_mlp *w, int index, const double *x, int S);
void ref_moe(struct reference_run *run, double *out, const struct reference_layer *w, const double *x, int S);

/* x [S,D] += attention, then += MLP or experts; x is the residual stream. */
void ref_decoder_layer(struct reference_run *run, const struct reference_layer *w, double *x, int S);

/* Marks the k largest of x[0..n) in chosen: value descending, then index ascending; a NaN ranks below everything. */
void ref_choose(char *chosen, const double *x, int n, int k);

#endif
