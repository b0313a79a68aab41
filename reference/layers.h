/* reference/layers.h -- the operators of the reference, and the memory that one computation uses. */
#ifndef VB_REFERENCE_LAYERS_H
#define VB_REFERENCE_LAYERS_H

#include "reference/reference.h"
#include "reference/weights.h"

/* A row that the indexer may keep. highest: of equal scores, the highest place is the best. */
struct place_score {
    double score;
    int place, highest;
};

/* The options of one call of a function in reference.h, and memory for the intermediate values of S tokens. Capital
 * letters in shapes are the sizes that docs/SEMANTICS.md lists, except D, which is the hidden size d. In addition, W
 * is the width of the widest MLP, X is the number of experts per token, and G is the number of groups of experts. */
struct reference_run {
    const struct reference *r;
    const struct config *c;
    struct reference_options options;
    uint64_t random;  /* state of the random generator for perturbations (reference_options.perturb) */
    int stretched;    /* nonzero if YaRN applies */
    /* For operators.c: every value except the one named `result` (NULL: none) is multiplied by 1 + u noise, where u is
     * random in [-1, 1). So is the x of a linear layer if its weights are finer than the arithmetic, or if noisy_x is
     * nonzero. */
    double noise;
    int noisy_x;
    double weight_unit; /* for operators.c: weights are rounded to numbers with this unit roundoff; 0: they are not */
    const char *result;
    int layer;        /* number of the layer that is computed now; -1 outside of the layers */
    void *memory;     /* holds all arrays below */

    double *row;                        /* one row of a matrix, decoded */
    double *rounded;                    /* [S, longest row]: the rounded input of a linear layer */
    double *w_uk, *w_uv;                /* [N, C], [V, C]: W_UK and W_UV of one head */
    double *cosine, *sine;              /* [S, R/2] */
    double *query_scale;                /* [S]: the factor of each token's queries (ref_scale_queries) */
    double *normed, *delta;             /* [S, D]: input of attention or MLP; output to be added to the residual
                                           stream */
    double *q_a, *q;                    /* [S, Q], [S, H, N+R] */
    double *q_nope, *q_rope;            /* [S, H, N], [S, H, R] */
    double *kv_a, *latent, *k_rope;     /* [S, C+R], [S, C], [S, R] */
    double *kv, *k_nope, *v;            /* [S, H, N+V], [S, H, N], [S, H, V] */
    double *scores, *mixed;             /* [S, S], [S, C]: for one head, the attention scores and the weighted sums of
                                           latents */
    double *heads;                      /* [S, H, V] */
    double *gate, *up;                  /* [S, W] */
    double *router, *choice, *groups;   /* [S, E], [S, E], [S, G] */
    double *experts, *weights;          /* [S, X]: the chosen experts, ascending, and their weights */
    double *expert_in, *expert_out;     /* [S, D]: input and output of one expert, for the tokens that chose it */
    /* For models with an indexer; HI and DI are index_n_heads and index_head_dim. sparse: whether the layer that is
     * computed now attends to the places of `kept` only. kept [S, S]: kept[s, t] is 1 if row s attends to row t; shared
     * layers use what the last full layer chose. last_row: rows after it attend to the places that it keeps (convention
     * mtp-set); -1: none do */
    int sparse, last_row;
    double *index_q, *index_k;          /* [S, HI, DI], [S, DI] */
    double *index_weights, *index_scales; /* [S, HI]: weights of the heads; scales of the queries' codes */
    double *index_scores, *index_sets;  /* [S, S], [S, index_topk] */
    double *index_moves, *index_scale_moves; /* [S, HI+1, DI], [S, HI]: for operators_indexer.c */
    struct place_score *candidates;       /* [S] */
    char *kept;                         /* [S, S] */
    double *routed;                     /* [S, X, D]: the output of each chosen expert */
    /* Row s of an MTP module, where s >= from, has index s + first + (s - from) * more, because the module lacks rows
     * before it; other rows have index s. If from is 0, all have index s. Only chain-module=step sets this. */
    struct { int from, first, more; } gap;
    /* For aligned depths (backward_model.c): the index of each row [S], and whether row s attends to row t <= s [S,S].
     * NULL: see gap; rows attend to all rows up to their own */
    const int *places;
    const char *mask;
    double *trunk;    /* [S, D]: see ref_target; NULL: nobody wants it */
    int trunk_layers; /* 0 .. num_hidden_layers */
    double *embed, *concat, *taken, *stream; /* [S, D], [S, 2D], [S, D], [S, D]: MTP */
    char *chosen;                       /* [max(E, G)] */
};

/* ref_run_open allocates the memory of a run for S tokens. If `options` is NULL, all options are 0. */
int ref_run_open(struct reference_run *run, const struct reference *r, const struct reference_options *options, int S,
                 vb_error *err);
void ref_run_close(struct reference_run *run);

/* The operators call ref_value for every intermediate value after its computation. It perturbs the value if
 * options.perturb is not 0, and then passes the value to the hook. */
void ref_value(struct reference_run *run, const char *name, int index, int rows, int cols, double *data);
void ref_noise(struct reference_run *run, double *x, size_t n); /* as run->noise says */
double ref_uniform(struct reference_run *run); /* a random number in [-1, 1), for perturbations */
/* Passes a value to the hook without perturbing it. The operators call it for values that are copies of other values,
 * because copying has no rounding error. */
void ref_show(struct reference_run *run, const char *name, int index, int rows, int cols, const double *data);

static inline int ref_index(const struct reference_run *run, int s)
{
    return run->gap.from && s >= run->gap.from ? s + run->gap.first + (s - run->gap.from) * run->gap.more : s;
}

/* Returns the value of a convention; 0 is its default. */
static inline int ref_convention(const struct reference_run *run, enum convention c)
{
    return run->options.conventions.value[c];
}

/* Returns whether experts outside of the kept groups have choice 0, not -inf. */
static inline int ref_masks_with_zero(const struct reference_run *run)
{
    return ref_convention(run, GROUP_MASK) || run->c->topk_method == TOPK_GROUP_LIMITED_TOP2;
}

/* Fills run->cosine, run->sine and run->query_scale for positions first .. first + S - 1. */
void ref_rope_tables(struct reference_run *run, int first, int S);
/* Rotates the pairs of x [S, vectors, R] by the tables. */
void ref_rope(struct reference_run *run, double *x, int S, int vectors);
/* Rotates the first R numbers of each vector of x [S, vectors, width]. interleave: the pairs are (2i, 2i+1), else (i, i
 * + R/2). */
void ref_rotate(struct reference_run *run, double *x, int S, int vectors, int width, int interleave);
/* Multiplies each row of x [S, width] by its factor in run->query_scale. */
void ref_scale_queries(const struct reference_run *run, double *x, int S, size_t width);
void ref_split(double *a, int A, double *b, int B, const double *x, size_t rows); /* a[i] = x[i, 0..A),  b[i] = x[i,
                                                                                                         A..A+B) */
void ref_embed(struct reference_run *run, double *x, const struct matrix *embed, const int32_t *tokens, int S);
void ref_norm(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S, double eps);
void ref_linear(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S);
/* y = W x. Neither x nor W is rounded in any precision. The router uses this function. */
void ref_product(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S);

/* Both compute run->heads from run->q_nope, q_rope, latent and k_rope: ref_attend with keys and values of each head,
 * and ref_attend_absorbed with the latents themselves. ref_round_queries rounds run->q_nope as the precision wants
 * it. */
void ref_attend(struct reference_run *run, const struct reference_attention *w, int S);
void ref_attend_absorbed(struct reference_run *run, const struct reference_attention *w, int S);
/* Computes run->scores [S,S] of head h from the same values, with keys or (absorbed) with the latents. Tokens t > s
 * have -infinity. */
void ref_head_scores(struct reference_run *run, const struct reference_attention *w, int h, int S, int absorbed);
void ref_softmax(double *p, int S); /* replaces the scores of each row, p [S,S], by their softmax over t <= s */
void ref_round_queries(struct reference_run *run, const struct reference_attention *w, int S);
double ref_latent_eps(const struct reference_run *run);
/* Returns the scale of the scores: (N+R)^-1/2, with YaRN times m^2. Mistral 4 does without m^2. */
double ref_attention_scale(const struct reference_run *run);
/* out = attention(x), both [S,D]. Fills the fields of `run` from q_a to heads; in scores it leaves those of the last
 * head. */
void ref_attention(struct reference_run *run, double *out, const struct reference_attention *w, const double *x, int S);

/* Chooses the positions that each row of a layer attends to (indexer.c): sets run->sparse and, in a full layer,
 * run->kept. x [S,D] is the input of attention, q_latent [S,Q] the normalised latents of the queries. */
void ref_positions(struct reference_run *run, const struct reference_indexer *w, const double *x,
                   const double *q_latent, int S);
/* The steps of ref_positions, which operators_indexer.c computes alone; indexer.c describes them. */
void ref_index_norm(struct reference_run *run, double *x, const struct reference_indexer *w, int S);
void ref_index_hadamard(double *x, size_t count, int D);
void ref_index_encode(struct reference_run *run, double *x, double *scale, size_t count, int D);
void ref_index_heads(struct reference_run *run, const struct matrix *w, const double *x, int S);
void ref_index_scores(struct reference_run *run, int S);
void ref_index_choose(struct reference_run *run, char *kept, const double *scores, int s);
double ref_index_round(const struct reference_run *run, double x); /* to BF16 with indexer-weights=bf16 */
int ref_index_pairs(const struct reference_run *run); /* whether the indexer's RoPE rotates adjacent numbers */
/* Returns whether row s attends to row t, for S rows. */
static inline int ref_sees(const struct reference_run *run, size_t s, size_t t, int S)
{
    return t <= s && (!run->sparse || run->kept[s * (size_t)S + t]) && (!run->mask || run->mask[s * (size_t)S + t]);
}

double ref_dot(const double *a, const double *b, int n);

/* The variance of the rounding of a sum of n terms in f32, whose result is `sum` and whose squared terms have the sum
 * `squares`. Each of the n partial sums is rounded by at most h = 2^-24 times its size, which has the variance h^2 / 3.
 * The k-th partial sum has the drift (k / n) sum, and moves around it by the root of (k / n) squares if the signs of
 * the terms are random. The squares of both, added for all k, give n (sum^2 / 9 + squares / 6) 2^-48. (Sums of many
 * short sums have a smaller variance.) */
double ref_sum_variance(double sum, double squares, size_t n);
/* The sum of a[i step_a] b[i step_b] for i < n. If run->noise is not 0, a random number of this variance is added. */
double ref_sum(struct reference_run *run, const double *a, size_t step_a, const double *b, size_t step_b, size_t n);

/* --- round.c: how linear layers round or quantize x and their weights --- */

enum form { AS_IS, TO_BF16, TO_GROUPS }; /* x is unchanged; rounded to BF16; or quantized in groups of 32 (rule 2) */
enum form ref_form(const struct reference_run *run, const struct matrix *w);
/* for W_UK; its x is q_nope */
enum form ref_keys_form(const struct reference_run *run, const struct reference_attention *w);
/* for W_UV; its x is `mixed` */
enum form ref_values_form(const struct reference_run *run, const struct reference_attention *w);
/* Rounds or quantizes n numbers of x as `form` says, and writes the result to y. y may be x. For AS_IS the function
 * does nothing. For TO_GROUPS, n and the length of each row in x are multiples of 32. */
void ref_round_x(struct reference_run *run, enum form form, double *y, const double *x, size_t n);

/* The scale of codes whose largest number has magnitude a: a power of two. */
double ref_code_scale(double a);
/* Rounds n <= 128 numbers x to products of an E4M3 code and one scale. Returns the scale, a power of two. */
double ref_round_codes(struct reference_run *run, double *x, int n);

/* Rounds latent and k_rope of S rows as convention latent-cache and options.cache_type say: to BF16, without replacing
 * small numbers by 0, or, with q8, the latent in groups of 32 (rule 2). */
void ref_round_cache(struct reference_run *run, int S);
/* Rounds n numbers x of the cache in the same way. slack [n] or NULL: the distance of two neighbours is added, because
 * a number that is near to their middle may become either. is_latent: with q8, n is a multiple of 32 and these are
 * latents. */
void ref_round_cached(struct reference_run *run, double *x, double *slack, size_t n, int is_latent);

void ref_coarsen(const struct reference_run *run, double *w, int n); /* rounds n weights as run->weight_unit says */
void ref_weights(struct reference_run *run, const struct matrix *w, int i); /* decodes row i of W to run->row */
void ref_keys(struct reference_run *run, const struct reference_attention *w, int h);   /* decodes W_UK of head h to
                                                                                           run->w_uk */
void ref_values(struct reference_run *run, const struct reference_attention *w, int h); /* decodes W_UV of head h to
                                                                                           run->w_uv */

/* The two kinds of feed-forward layer: a dense MLP, and experts (both in moe.c). x and out are [S,D]. */
void ref_mlp(struct reference_run *run, double *out, const struct reference_mlp *w, int index, const double *x, int S);
void ref_moe(struct reference_run *run, double *out, const struct reference_layer *w, const double *x, int S);

/* The steps of the router (moe.c). ref_gate_logits: run->router [S,E] = W x. ref_scores: replaces the logits x [E] of
 * one token by its scores. ref_group_score: the score of a group with `size` experts. ref_expert_weights: weights [X]
 * of the chosen experts [X]. */
void ref_gate_logits(struct reference_run *run, const struct matrix *w, const double *x, int S);
void ref_scores(const struct reference_run *run, double *x);
double ref_group_score(const struct config *c, const double *choice, int size);
void ref_expert_weights(const struct reference_run *run, double *weights, const double *experts, const double *scores);
double ref_weight_factor(const struct config *c); /* routed_scaling_factor, or 1 if the weights are not multiplied by
                                                     it */
double ref_normaliser(const struct reference_run *run, double sum); /* what norm_topk_prob divides by, from the sum of
                                                                       the scores */

/* Computes hidden [S,D] = RMSNorm(x), where x is the output of the last layer. `features` [S,D] are the hidden states
 * that the MTP modules read: `hidden`, or x with main-hidden=pre-norm. `features` may be NULL, and may be `hidden`. If
 * run->trunk is not NULL, it receives the residual stream before layer run->trunk_layers. */
void ref_target(struct reference_run *run, double *hidden, double *features, const int32_t *tokens, int S);
/* logits [S,V] = W_head hidden */
void ref_head(struct reference_run *run, double *logits, const struct matrix *w, const double *hidden, int S);
/* Runs MTP module `w` on rows 0..S-1, as model.c describes it at this function. */
void ref_mtp(struct reference_run *run, double *g, double *next, const struct reference_mtp_module *w, int depth,
             int ahead, const int32_t *tok, const double *h, int S);
/* Returns the index of the largest logit, and the lowest index if several are equal. Returns -1 if a logit is not
 * finite. */
int ref_argmax(const double *logits, int V);
int ref_check_tokens(const struct reference *r, const int32_t *tokens, int S, vb_error *err);

/* Adds attention, and then the MLP or the experts, to the residual stream x [S,D]. */
void ref_decoder_layer(struct reference_run *run, const struct reference_layer *w, double *x, int S);

/* Sets chosen[i] to 1 for the k largest of x[0..n), else to 0. Of equal values, the one with the lower index counts
 * as larger. NaN counts as smaller than every number. */
void ref_choose(char *chosen, const double *x, int n, int k);

#endif
