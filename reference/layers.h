/* reference/layers.h -- the formulas of the model, as functions on the arrays of a run (run.h), and what stands beside
 * them: rounding, and other forms of the same sums. Functions that take the `name` of a value show their result under
 * it (ref_value); NULL: they do not. */
#ifndef VB_REFERENCE_LAYERS_H
#define VB_REFERENCE_LAYERS_H

#include "reference/run.h"

/* --- model.c --- */

/* Computes hidden [S,D], the hidden states of the target after model.norm. */
void ref_target(struct reference_run *run, double *hidden, const int32_t *tok, int S);
/* Does the same (run.c), and sets features [S,D] to the hidden states that MTP modules read: `hidden`, or with
 * main-hidden=pre-norm what model.norm reads. */
void ref_target_features(struct reference_run *run, double *hidden, double *features, const int32_t *tok, int S);
/* logits [S,V] = W_head hidden */
void ref_head(struct reference_run *run, double *logits, const struct matrix *w, const double *hidden, int S);
/* Runs MTP module `w` on rows 0..S-1, as model.c describes it at this function. */
void ref_mtp(struct reference_run *run, double *g, double *next, const struct reference_mtp_module *w, int depth,
             int ahead, const int32_t *tok, const double *h, int S);
/* Sets run->embed and run->taken, which MTP module `w` reads, and returns the number of rows: S, or S + 1 with
 * first-row=phantom. */
int ref_mtp_rows(struct reference_run *run, const struct reference_mtp_module *w, int depth, int ahead,
                 const int32_t *tok, const double *h, int S);
/* run->concat [S,2D] = [e ; h], in the order of convention `concat` */
void ref_concat(struct reference_run *run, const double *e, const double *h, int S);

/* --- drafts.c --- */

/* Returns the index of the largest logit, and the lowest index if several are equal. Returns -1 if a logit is not
 * finite. */
int ref_argmax(const double *logits, int V);

/* --- layers.c --- */

void ref_embed(struct reference_run *run, double *x, const struct matrix *embed, const int32_t *tokens, int S);
void ref_norm(struct reference_run *run, const char *name, double *y, const struct matrix *w, const double *x, int S,
              double eps);
void ref_linear(struct reference_run *run, const char *name, double *y, const struct matrix *w, const double *x, int S);
/* y = W x. Neither x nor W is rounded in any precision. The router uses this function. */
void ref_product(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S);
void ref_softmax(double *p, int S); /* replaces the scores of each row, p [S,S], by their softmax over t <= s */
void ref_probabilities(struct reference_run *run, double *p, int h, int S); /* does so, and shows both, of head h */
void ref_split(double *a, int A, double *b, int B, const double *x, size_t rows); /* [a[i] ; b[i]] = x[i] */
void ref_join(double *out, const double *a, size_t A, const double *b, size_t B, size_t rows); /* the reverse */
void ref_add(struct reference_run *run, double *out, const double *a, const double *b, int S); /* out may be a */
/* Adds attention, and then the MLP or the experts, to the residual stream x [S,D]. */
void ref_decoder_layer(struct reference_run *run, const struct reference_layer *w, double *x, int S);

/* --- rope.c --- */

/* Fills run->cosine, run->sine and run->query_scale for positions first .. first + S - 1. */
void ref_rope_tables(struct reference_run *run, int first, int S);
/* Rotates the pairs of x [S, vectors, R] by the tables. */
void ref_rope(struct reference_run *run, double *x, int S, int vectors);
/* Rotates the first R numbers of each vector of x [S, vectors, width]. interleave: the pairs are (2i, 2i+1), else (i, i
 * + R/2). */
void ref_rotate(struct reference_run *run, double *x, int S, int vectors, int width, int interleave);
/* Multiplies each row of x [S, width] by its factor in run->query_scale. */
void ref_scale_queries(const struct reference_run *run, double *x, int S, size_t width);
/* Returns YaRN's factor of attention scores: m^2, or 1. Mistral 4 does without it. */
double ref_yarn_scale(const struct reference_run *run);

/* --- attention.c --- */

/* out = attention(x), both [S,D]. Fills the fields of `run` from q_a to heads; in scores it leaves those of the last
 * head. */
void ref_attention(struct reference_run *run, double *out, const struct reference_attention *w, const double *x, int S);
/* Computes run->heads from run->q_nope, q_rope, latent and k_rope, with keys and values of each head. */
void ref_attend(struct reference_run *run, const struct reference_attention *w, int S);
int ref_sees(const struct reference_run *run, size_t s, size_t t, size_t S); /* whether row s attends to row t */
double ref_q_dot_k(struct reference_run *run, size_t h, size_t s, size_t t);
double ref_attention_scale(const struct reference_run *run); /* (N+R)^-1/2, times ref_yarn_scale */
double ref_latent_eps(const struct reference_run *run);

/* --- absorbed.c: other forms of the same sums --- */

/* Does what ref_attend does, with the latents instead of keys and values. */
void ref_attend_absorbed(struct reference_run *run, const struct reference_attention *w, int S);
/* Whether attention rounds numbers besides the x of its projections. Then ref_attend_rounded computes head h. */
int ref_rounds_attention(const struct reference_run *run, const struct reference_attention *w);
void ref_attend_rounded(struct reference_run *run, const struct reference_attention *w, int h, int S);
/* Computes run->scores [S,S] of head h from the same values, with keys or (absorbed) with the latents. Tokens t > s
 * have -infinity. */
void ref_head_scores(struct reference_run *run, const struct reference_attention *w, int h, int S, int absorbed);
void ref_round_queries(struct reference_run *run, const struct reference_attention *w, int S); /* q_nope, x of W_UK */
/* Returns the x of W_UV [S,C]: the latents, rounded in expanded rows. */
const double *ref_x_of_values(struct reference_run *run, const struct reference_attention *w, int S);

/* --- indexer.c --- */

/* Chooses the positions that each row of a layer attends to (indexer.c): sets run->sparse and, in a full layer,
 * run->kept. x [S,D] is the input of attention, q_latent [S,Q] the normalised latents of the queries. */
void ref_positions(struct reference_run *run, const struct reference_indexer *w, const double *x,
                   const double *q_latent, int S);
/* The steps of ref_positions, which operators_indexer.c computes alone; indexer.c describes them. */
void ref_index_norm(struct reference_run *run, const char *name, double *x, const struct reference_indexer *w, int S);
void ref_index_hadamard(double *x, size_t count, int D);
void ref_index_encode(struct reference_run *run, double *x, double *scale, size_t count, int D);
void ref_index_heads(struct reference_run *run, const char *name, const struct matrix *w, const double *x, int S);
void ref_index_scores(struct reference_run *run, const char *name, int S);
void ref_index_choose(struct reference_run *run, char *kept, const double *scores, int s);
double ref_index_round(const struct reference_run *run, double x); /* to BF16 with indexer-weights=bf16 */
int ref_index_pairs(const struct reference_run *run); /* whether the indexer's RoPE rotates adjacent numbers */

/* --- moe.c --- */

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
/* Returns whether experts outside of the kept groups have choice 0, not -inf. */
static inline int ref_masks_with_zero(const struct reference_run *run)
{
    return ref_convention(run, GROUP_MASK) || run->c->topk_method == TOPK_GROUP_LIMITED_TOP2;
}

/* Sets chosen[i] to 1 for the k largest of x[0..n), else to 0. Of equal values, the one with the lower index counts
 * as larger. NaN counts as smaller than every number. */
void ref_choose(char *chosen, const double *x, int n, int k);

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

/* Returns the x of the linear layer w from x [S, cols]: x itself, or run->rounded. */
const double *ref_x(struct reference_run *run, const struct matrix *w, const double *x, int S);
void ref_round_gate(const struct reference_run *run, double *x, int n);
/* y = W x without noise. bf16: W, x and y are rounded to BF16. */
void ref_product_exact(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S, int bf16);

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

#endif
