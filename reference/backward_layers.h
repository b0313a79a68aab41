/* reference/backward_layers.h -- the backward pass of each operator, in double, in plain loops.
 *
 * L is the loss, and dX stands for the gradient of L with respect to X: dx[s,j] = dL / dx[s,j]. The letters of
 * docs/SEMANTICS.md name indices, and their capitals sizes, except that D is the width d of the model, I and J are the
 * rows and columns of a matrix, and W is the width of an MLP. Arrays are row-major. Every function ADDS to the
 * gradients that it computes, because a value that is used twice receives the sum of both gradients. The caller sets
 * them to 0 first. No two arguments overlap.
 *
 * The formulas follow from dL = sum over all x of dx times the change of x. The comment of each function has the
 * forward formula in its first line. The forward pass is in layers.c and moe.c. */
#ifndef VB_REFERENCE_BACKWARD_LAYERS_H
#define VB_REFERENCE_BACKWARD_LAYERS_H

#include "reference/backward.h"
#include "reference/layers.h"

/* --- backward_layers.c: arrays alone --- */

/*     y[s,i] = sum_j w[i,j] x[s,j]
 *     dx[s,j] = sum_i dy[s,i] w[i,j],     dw[i,j] = sum_s dy[s,i] x[s,j]
 * w, dw [I,J]   x, dx [S,J]   dy [S,I] */
void ref_back_linear(double *dx, double *dw, const double *dy, const double *w, const double *x, int S, int I, int J);

/*     y[s,d] = x[s,d] r[s] w[d],     r[s] = (mean_d(x[s,d]^2) + eps)^-1/2
 *     dw[d] = sum_s dy[s,d] x[s,d] r[s]
 *     dx[s,d] = r[s] w[d] dy[s,d] - r[s]^3 x[s,d] / D sum_j dy[s,j] w[j] x[s,j]      because dr/dx[s,d] = -r^3 x[s,d] /
 *     D
 * x, dx, dy [S,D]   w, dw [D] */
void ref_back_norm(double *dx, double *dw, const double *dy, const double *w, const double *x, int S, int D,
                   double eps);

/*     y0 = x0 cos - x1 sin,   y1 = x1 cos + x0 sin        for each pair (RoPE; cos and sin may have YaRN's factor)
 *     dx0 = dy0 cos + dy1 sin,   dx1 = dy1 cos - dy0 sin
 * The exception to the rule above: dx [S, vectors, R] holds dy first and is changed in place. cosine, sine [S,R/2].
 * interleave: the pairs are (2i, 2i+1), else (i, i + R/2). */
void ref_back_rope(double *dx, const double *cosine, const double *sine, int S, int vectors, int R, int interleave);

/*     p[i] = exp(x[i]) / sum_j exp(x[j])
 *     dx[i] = p[i] (dp[i] - sum_j p[j] dp[j])             because dp[i]/dx[j] = p[i] ([i = j] - p[j])
 * All [n]. */
void ref_back_softmax(double *dx, const double *dp, const double *p, int n);

/*     a[i] = SiLU(g[i]) u[i],     SiLU(g) = g sigma(g),     sigma(g) = 1 / (1 + exp(-g))
 *     du[i] = da[i] SiLU(g[i])
 *     dg[i] = da[i] u[i] sigma(g[i]) (1 + g[i] (1 - sigma(g[i])))
 * All [n]. */
void ref_back_swiglu(double *dg, double *du, const double *da, const double *g, const double *u, size_t n);

/*     x[s] = Emb(tok[s])
 *     dEmb[tok[s]] = dx[s], summed over all s with the same token
 * demb [V,D]   tok [S]   dx [S,D] */
void ref_back_embed(double *demb, const double *dx, const int32_t *tok, int S, int D);

/* Returns the sum over s of the cross entropy -log p[s,tok[s]] and, if dz is not NULL, adds its gradient times
 * `weight`:
 *     L = weight sum_s (log(sum_v exp(z[s,v])) - z[s,tok[s]])
 *     dz[s,v] = weight (p[s,v] - [v = tok[s]]),     p[s] = softmax(z[s])
 * z, dz [S,V]   tok [S]: a row whose token is negative has no loss; so in all losses */
double ref_cross_entropy(double *dz, const double *z, const int32_t *tok, int S, int V, double weight);

/* --- backward_losses.c: arrays alone --- */

/* Adds the terms of the rows to `sums` and, if dz is not NULL, the gradient of L to dz:
 *     L = weight sum_s (data (-log q[s,tok[s]]) + soft sum_v p[s,v] (-log q[s,v]) + top sum_{v in top(s)} p[s,v] (-log
 *     q[s,v])) q[s] = softmax(z[s]),   p[s] = softmax(target[s]), which is constant
 * Each term is a sum of numbers a[v] (-log q[v]), and -log q[v] = log(sum_u exp(z[u])) - z[v]. So its gradient is q
 * sum_v a[v] - a:
 *     dz[s,v] = weight (q[s,v] (data + soft + top sum_{u in top(s)} p[s,u]) - data [v = tok[s]] - (soft + top [v in
 *     top(s)]) p[s,v])
 * top(s) has the top_tokens tokens with the largest target[s,v]; of equal ones the lowest. z, dz, target [S,V]   tok
 * [S] */
void ref_soft_cross_entropy(struct reference_terms *sums, double *dz, const double *z, const double *target,
                            const int32_t *tok, int S, int V, const struct loss_terms *terms, double weight);

/* Returns the sum over s of mean_d l(x[s,d] - target[s,d]) and, if dx is not NULL, adds its gradient times `weight`:
 *     l(e) = e^2 / 2 if |e| < 1, else |e| - 1/2
 *     dx[s,d] = weight / D max(-1, min(1, x[s,d] - target[s,d]))
 * The target is constant. x, dx, target [S,D]   tok [S] */
double ref_smooth_l1(double *dx, const double *x, const double *target, const int32_t *tok, int S, int D,
                     double weight);

/* --- backward_depths.c: the rows of the depths of MTP modules and EAGLE heads --- */

/* The rows that a network computes for depth k: rows i < T-k-2 of depth k alone or, if depths are aligned, those of all
 * depths up to k, because rows of depth k attend to the others. `first` rows come before those of depth k. */
struct ref_depth_rows {
    int k, lowest, first, rows; /* lowest: the depth of the first row */
};
struct ref_depth_rows ref_depth_rows(const struct loss *loss, int T, int k);
/* Returns the largest number of rows of a pass for sequences of up to S + 1 tokens: S of the target, or those of a
 * depth. */
int ref_depth_most(const struct loss *loss, int S);

/* What the rows of a pass read. S is the number of rows of the longest sequence, R the largest number of rows of a
 * pass. */
struct ref_depths {
    const struct loss *loss;
    size_t S, width; /* width: d */
    double *taken;   /* [depths+1, S, d]: the hidden states that depth k takes, which depth k-1 hands on (or the
                        target) */
    double *in;      /* [R, d]: the rows of `taken` that the pass reads */
    int32_t *tok;    /* [R]: its tokens */
    int *places;     /* [R]: its indices */
    char *mask;      /* [R, R]: row s attends to row t <= s; not used if depths are not aligned */
};
/* Fills in, tok, places and mask, and tells the run which rows see which. Row i of depth m reads tok[i+m+1] and row i
 * of what depth m takes. */
void ref_depth_begin(struct ref_depths *p, struct reference_run *run, const struct ref_depth_rows *a,
                     const int32_t *tok, int T);
void ref_depth_end(struct reference_run *run);

/* labels [T]: the tokens of the sequence, or -1 for those that no row learns */
void ref_labels(int32_t *labels, const struct reference_sequence *q);
/* Counts the rows of all losses. Returns the number of rows of the longest sequence. */
int ref_count_rows(struct reference_losses *losses, int depths, const struct reference_sequence *sequences, int count);
/* Returns the loss that the options ask for. */
struct loss ref_loss_of(const struct reference_loss_options *o);

/* --- backward_attention.c --- */

/* The arrays of one attention layer: values of the forward pass, or their gradients. H heads; N, R, V as in
 * docs/SEMANTICS.md */
struct ref_heads {
    double *q_nope, *q_rope; /* [S,H,N], [S,H,R] */
    double *k_nope, *k_rope; /* [S,H,N], [S,R]: all heads share k_rope */
    double *v;               /* [S,H,V] */
};

/*     scores[s,t] = (q_nope[s] . k_nope[t] + q_rope[s] . k_rope[t]) scale,  t <= s
 *     p[s] = softmax(scores[s]),   heads[s] = sum_t p[s,t] v[t]
 *
 *     dv[t] = sum_s p[s,t] dheads[s],   dp[s,t] = dheads[s] . v[t],   dscores[s] as in ref_back_softmax
 *     dq_nope[s] = scale sum_t dscores[s,t] k_nope[t],   dk_nope[t] = scale sum_s dscores[s,t] q_nope[s];   q_rope,
 *     k_rope alike
 * in two steps for head h: ref_back_mix computes dp and dv, and ref_back_scores_of_head the rest. p, dp, dscores [S,S]
 * are 0 for t > s. dheads [S,H,V]. dscores are the gradients of the scores after the product with the scale. */
void ref_back_mix(double *dp, const struct ref_heads *d, const double *dheads, const struct ref_heads *x,
                  const double *p, int h, int S, const struct dims *dims);
void ref_back_scores_of_head(const struct ref_heads *d, const double *dscores, const struct ref_heads *x, double scale,
                             int h, int S, const struct dims *dims);

/* --- backward_moe.c: arrays alone --- */

/* The weights g of the chosen experts from the scores s (ref_expert_weights), where `factor` is 1 or
 * routed_scaling_factor:
 *     g[j] = factor s[j]                                               without norm_topk_prob:   ds[j] = factor dg[j]
 *     g[j] = factor s[j] / m,   m = sum_i s[i]                         with norm_topk_prob:
 *     ds[j] = factor (dg[j] - sum_i dg[i] s[i] / m) / m                because dm/ds[j] = 1
 * The choice of the experts is constant, so experts that were not chosen get no gradient from here. With convention
 * normaliser-eps, m = sum + 1e-20 has the same formula, and m = 2^-14, if the sum is smaller, does not depend on s:
 * ds[j] = factor dg[j] / m. dg [X]   experts [X]   s, ds [E] */
void ref_back_expert_weights(const struct reference_run *run, double *ds, const double *dg, const double *experts,
                             const double *s);

/* The scores s of all experts from the router's logits x, all [E]:
 *     s[e] = sigma(x[e])      dx[e] = ds[e] s[e] (1 - s[e])            sigmoid (V3)
 *     s = softmax(x)          dx as in ref_back_softmax                softmax (V2, Mistral 4) */
void ref_back_scores(const struct reference_run *run, double *dx, const double *ds, const double *s);

/* The sum of the chosen experts' outputs y[s,j] = expert_j(x[s]), eq. 12:
 *     out[s] = sum_j g[s,j] y[s,j]
 *     dg[s,j] = dout[s] . y[s,j],     dy[s,j] = g[s,j] dout[s]
 * dg, g [S,X]   dy, y [S,X,D]   dout [S,D] */
void ref_back_experts_sum(double *dg, double *dy, const double *dout, const double *g, const double *y, int S, int X,
                          int D);

/* --- the parts of a model, with the weights of its checkpoint. Each recomputes the values that it needs from its input
 * --- */

/* The gradients of a step, and memory for the intermediate gradients of S tokens. The fields of `run` hold the forward
 * pass. */
struct reference_back {
    struct reference_run run;
    struct reference_gradients *gradients;
    void (*hook)(void *context, const struct reference_value *gradient); /* NULL: none */
    void *hook_context;
    void *memory;                       /* holds all arrays below */
    double *w;                          /* a whole matrix, decoded */
    double *normed, *middle;            /* [S,D]: the input of attention, MLP or experts; the residual stream between
                                           the two */
    double *dnormed;                    /* [S,D] */
    double *q_a;                        /* [S,Q]: before its norm */
    double *dq_a, *dq_a_norm;           /* [S,Q]: before and after its norm */
    double *dq, *dkv_a;                 /* [S,H,N+R], [S,C+R] */
    double *c_kv, *dc_kv, *dlatent;     /* [S,C]: before the norm, and after it */
    struct ref_heads dheads_of;         /* the gradients of q_nope, q_rope, k_nope, k_rope and v */
    double *dkv, *dheads;               /* [S,H,N+V], [S,H,V] */
    double *dp, *dscores_of_head;       /* [S,S] */
    double *product, *dgate, *dup, *dproduct;   /* [S,W] */
    double *drouter, *dscores;          /* [S,E] */
    double *dweights, *drouted;         /* [S,X], [S,X,D] */
    double *expert_in, *dexpert_in, *dexpert_out; /* [S,D]: rows of the tokens that chose an expert */
};

int ref_back_open(struct reference_back *b, const struct reference *r, const struct reference_options *options,
                  struct reference_gradients *gradients, int S, vb_error *err);
void ref_back_close(struct reference_back *b);

/* Allocates one entry for each tensor of the n matrices in `list`, in the order of names; sorts the list. g->allocator
 * is set. */
int ref_gradients_of(struct reference_gradients *g, const struct matrix **list, size_t n, vb_error *err);

/* As ref_value and ref_show for a value of the forward pass, but for its gradient d. */
void ref_back_value(struct reference_back *b, const char *name, int index, int rows, int cols, double *d);
void ref_back_show(struct reference_back *b, const char *name, int index, int rows, int cols, const double *d);

/* Sets a[0..n) to 0. */
void ref_back_clear(double *a, size_t n);
/* A linear layer and a norm of the checkpoint, whose gradients are added to those of their tensors. */
void ref_back_matrix(struct reference_back *b, double *dx, const struct matrix *w, const double *dy, const double *x,
                     int S);
void ref_back_norm_of(struct reference_back *b, double *dx, const struct matrix *w, const double *dy, const double *x,
                      int S, double eps);

/* dx [S,D] from dout [S,D], where out = attention(x), mlp(x) or moe(x). index: as for ref_mlp. */
void ref_back_attention(struct reference_back *b, double *dx, const struct reference_attention *w, const double *dout,
                        const double *x, int S);
void ref_back_mlp(struct reference_back *b, double *dx, const struct reference_mlp *w, int index, const double *dout,
                  const double *x, int S);
void ref_back_moe(struct reference_back *b, double *dx, const struct reference_layer *w, const double *dout,
                  const double *x, int S);

/* x += attention(RMSNorm(x));  x += mlp(RMSNorm(x)):  x [S,D] is the layer's input, dx [S,D] is first the gradient of
 *                              its output
 * and then that of its input. */
void ref_back_layer(struct reference_back *b, double *dx, const struct reference_layer *w, const double *x, int S);

#endif
