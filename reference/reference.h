/* reference/reference.h -- the executable specification: the formulas of the DeepSeek-V3 report in plain double loops.
 *
 * Read it with the report open. The reference has no KV cache, no threads and no vector code. The only code that it
 * shares with the engine is the code that reads config.json and the headers of files. Every call computes every row of
 * every layer from the tokens. Attention has the naive form, with keys and values expanded per head; the engine uses
 * the absorbed form. Where implementations disagree, the reference follows options.conventions. The value 0 of each
 * convention is its default (engine/model/conventions.h).
 *
 * In precision bf16, W and x of a linear layer are rounded to the nearest BF16 number, ties to even. A weight that is
 * stored in another type is converted to f32 before it is rounded. After this rounding, numbers of x smaller than 2^-56
 * in magnitude become 0. The router's matrix (gate) and the router's input are not rounded. Norms, RoPE, attention
 * scores and cached latents are not rounded either, because they are not linear layers. W_UK and W_UV count as linear
 * layers: the x of W_UK is the nope part of the query, and the x of W_UV is the weighted sum of latents. The latent is
 * not rounded when keys are computed as W_UK times the latent.
 *
 * With cache type bf16 (option `cache_type`), the latent after its norm and the rotated k_rope are rounded to the
 * nearest BF16 number, ties to even. With q8, the latent is quantized in groups of 32 by rule 2 instead, and so is the
 * query that is multiplied by latents: q_nope times W_UK, except in expanded rows. The values latent and k_rope are the
 * rounded numbers.
 *
 * With prefill expanded (option `expanded`), keys and values of the prompt's rows are computed from the latents. Then
 * the x of W_UV is the latent, and the x of W_UK, also the latent, is not rounded in any precision; the query is no x.
 * If no x is rounded or quantized, the results are the same numbers as without this option.
 *
 * A matrix is quantized if a GGUF file stores it quantized, or if precision q8 or q4 quantizes it (round.c). The x of a
 * quantized matrix is quantized too, in groups of 32, by rule 2 of simd/kernels.h, which computes d and q in f32. W has
 * the values that its blocks encode (blocks.c). As in precision bf16, the x of W_UK is the nope part of the query, and
 * the x of W_UV is the weighted sum of latents. If a file stores a matrix quantized, every precision uses the stored
 * blocks.
 *
 * In three cases a quantized matrix is converted to f32, and its x is not quantized: the embedding, since only single
 * rows of it are read; the matrix of the router (gate); and W_UK, if kv_b_proj is quantized along c.
 *
 * A reference is read-only once it is open. Arrays are row-major. S is the number of tokens, D is hidden_size, and V is
 * vocab_size. */
#ifndef VB_REFERENCE_H
#define VB_REFERENCE_H

#include "engine/model/config.h"

/* An intermediate value, which is passed to the hook after its computation. The list below gives the names of all
 * values in the order of their computation, and the length of a row in brackets. A value has one row per token unless
 * two sizes are given. X is the number of experts per token and W the width of an MLP; docs/SEMANTICS.md has the other
 * letters.
 *
 * A layer computes input_layernorm [D], attention (see below), residual [D], post_attention_layernorm [D], an MLP or
 * experts (see below), and residual [D] again.
 *
 * Attention computes q_a and q_a_norm [Q] if the model has a q_lora_rank, q [H(N+R)], kv_a [C+R], latent [C] after its
 * norm, q_rope [S*H, R], k_rope [R], and kv [H(N+V)]. RoPE writes each rotated pair to the two places of the original
 * pair, so q_rope and k_rope have the order of the checkpoint. For each head (`index`), attention computes scores [S]
 * and probabilities [S]. The score of row s for token t is -inf if row s does not attend to t. If the x of W_UV is
 * rounded, attention also computes mixed [C] per head, the weighted sum of latents. Except in expanded rows, the output
 * of attention then does not use the values in kv.
 * At the end, attention computes heads [HV] and attention [D].
 *
 * In a full layer of a model with an indexer, attention computes these values after k_rope, where HI and DI are
 * index_n_heads and index_head_dim: index_wk and index_k_norm [DI], index_k [DI] after RoPE, index_wq_b [HI DI],
 * index_weights_proj [HI], index_q [HI DI] after RoPE, index_weights [HI], which include the scales of the queries'
 * codes and DI^-1/2, index_scores [S], which are -inf if t > s, index_set [min(index_topk, S)]: the rows that row s
 * attends to, ascending, and -1 after the last one, and, of rows s >= index_topk only, index_margin [1]: the lowest
 * score that is kept minus the highest other one.
 *
 * An MLP computes gate, up, silu and product [W], and down [D]. `index` is the number of the expert, and the rows are
 * those of the tokens that chose it. In a dense layer and in the shared expert, `index` is -1.
 *
 * A layer with experts computes router_logits and router_scores [E], router_choice [E] if it has a bias (before groups
 * are masked), router_groups [n_group], router_kept [topk_group], router_experts [X] and router_weights [X].
 * router_kept and router_experts are ascending. The MLP of each expert follows, then experts [S*X, D] in the order of
 * router_experts, experts_sum [D], the MLP of the shared expert, and moe [D], which includes the shared expert.
 *
 * Outside of the layers (layer -1) there are embed [D], norm [D], and logits [V] for the rows that the call needs.
 *
 * For MTP depth k, `layer` is num_hidden_layers + k, even if the model has only k modules or fewer. In that case,
 * module k mod (number of modules) is used. Each depth has the values embed and taken [D] (`taken` has the hidden
 * states that the depth reads), enorm and hnorm [D], concat [2D], eh_proj [D], the values of a layer, shared_head_norm
 * [D] and logits [V]. For every draft, the reference runs the MTP module again on all rows of the sequence. With
 * first-row=phantom there is one more row before the others, for which no logits are computed. */
struct reference_value {
    const char *name;
    int layer; /* number of the layer, or -1 outside of the layers */
    int index; /* head or expert, or -1 */
    int rows, cols;
    const double *data; /* [rows, cols], valid during the call */
};

struct reference_options { /* with all members 0, the reference computes in precision f32, with the default conventions
                              and without perturbation */
    /* A seed for perturbed runs; 0 switches them off. A perturbed run multiplies every intermediate value by 1 + u
     * 2^-24, where u is a random number in [-1, 1). The factor 1 + u 2^-24 imitates a rounding error of half an ulp of
     * f32. The spread of several perturbed runs shows how far the results of an f32 program may be from the reference
     * on the same input, so tests can use a multiple of it as a bound. The same seed gives the same bits. If two
     * experts have nearly equal scores, a perturbed run may choose another expert than the unperturbed run, as an f32
     * program may.
     *
     * In precision bf16, a perturbed run first moves a number by up to 2^-18 of itself, and then rounds it to BF16. The
     * error of an f32 program at this point is about a tenth of 2^-18. Such an error matters if a number is near to the
     * middle between two BF16 numbers: an f32 program may then round it up while the reference rounds it down, or the
     * reverse. Some of the perturbed runs also round such a number differently. So the spread of the perturbed runs
     * includes the effect of this rounding.
     *
     * Where x is quantized in groups of 32, each number is first moved by up to 2^-18 of the largest number in its
     * group. The group's scale d is not changed. In an f32 program, a small number of a row can have an error as large
     * as that of the largest numbers of the row. Quantizing rounds each number to a multiple of d. If the distance of a
     * number from the middle between two multiples is less than about 2^-22 times the largest number of the group, an
     * f32 program may choose one multiple and the reference the other. A perturbed run then chooses each of the two
     * multiples with a probability of about 1/2. The two multiples differ by d. The same holds for the codes of an
     * indexer, whose groups have 128 numbers. */
    uint64_t perturb;
    int x_as_is; /* nonzero: no x and no cached row is rounded to BF16 or quantized. Perturbed runs then show only the
                    error of f32 itself. They do not show how much the results change if some x is rounded to another
                    BF16 number, or to another integer, than in the reference. The codes of an indexer and, with
                    latent-cache=fp8, latents are still rounded, but the numbers are not moved before it */
    enum precision precision;
    enum cache_type cache_type;
    int expanded; /* the target's first `expanded` rows are computed as with prefill expanded; of MTP modules, no row
                     is */
    const int32_t *routes;          /* [route_tokens, route_layers, X]: the experts that tokens take in a layer, in
                                       ascending order; those of a token and layer whose first is -1 are chosen. Layer
                                       num_hidden_layers + k is MTP depth k, and its row i is token i. The weights come
                                       from the scores of these experts. NULL: all are chosen */
    int route_tokens, route_layers;
    const int32_t *sets;            /* [set_tokens, set_layers, index_topk]: the rows that a token attends to in a
                                       layer, ascending, and -1 after the last one; those of a token and layer whose
                                       first is -1 are chosen. Layers are counted as in routes; those of shared layers
                                       are not used. NULL: all are chosen */
    int set_tokens, set_layers;
    struct conventions conventions; /* even with rope-angle=f32, the frequencies of another program may differ from the
                                       reference's, since its pow may differ by one ulp */
    int context;                    /* length of the context for yarn=max-len; 0: the number of tokens of the call */
    void (*hook)(void *context, const struct reference_value *value); /* NULL: none */
    void *hook_context;
};

enum reference_draft_method { REFERENCE_MTP_VANILLA, REFERENCE_MTP_EAGLE };

struct reference;

/* Opens the checkpoint `dir`. The caller closes *out with reference_close. Returns VB_BAD_CHECKPOINT if a tensor is
 * missing, has a wrong shape, or has a type that is not supported. The reference supports F32, F16, BF16 and
 * F8_E4M3, and for matrices also the quantized types of GGUF. */
int reference_open(struct reference **out, const char *dir, const vb_allocator *a, vb_error *err);
void reference_close(struct reference *r);
const struct config *reference_config(const struct reference *r);

/* Computes the target model on S tokens: hidden [S,D] after model.norm, and logits [S,V]. `hidden`, `logits` or both
 * may be NULL. If `options` is NULL, all options are 0. Returns VB_BAD_ARGUMENT if a token is outside of the
 * vocabulary or S < 1. Returns VB_NO_MEMORY if there is no memory. */
int reference_forward(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int S,
                      double *hidden, double *logits, vb_error *err);

/* Computes the MTP modules on a text, without drafts. Depth k, counted from 0, has rows i < S-k-1. Row i of depth 0
 * reads tok[i+1] and the target's hidden state i. Row i of a greater depth k reads tok[i+k+1] and row i of the output
 * of depth k-1, or, with module-hidden=target, the target's hidden state i + k. The logits of row i predict tok[i+k+2].
 * `logits` is [depths, S, V], and the function writes only the rows
 * that exist. `logits` may be NULL if only the hook is wanted. The hook also receives the target's values and logits.
 * Depth k uses module k mod (number of modules).
 *
 * Returns VB_BAD_ARGUMENT if `depths` is not in 0..VB_MAX_DRAFT, or if it is not 0 and the model has no MTP modules.
 * Returns the errors of reference_forward too. */
int reference_modules(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int S,
                      int depths, double *logits, vb_error *err);

/* Opens the parallel heads in `dir` (docs/SEMANTICS.md), which draft for `target`. Head i has the number
 * num_hidden_layers + i. The result is for reference_heads and reference_config alone; the caller closes it with
 * reference_close. */
int reference_heads_open(struct reference **out, const char *dir, const struct reference *target, vb_error *err);
/* Computes the target, and all heads on its rows. Row i of head k predicts tok[i+k+2]. `logits` is [heads, S, V]; NULL
 * if only the hook is wanted. The hook receives the target's values, and of each head `trunk` [D], the rows that it
 * reads, the values of a layer, shared_head_norm [D] and logits [V]. Heads are computed in precision f32 with a cache
 * of type f32, as the engine does; of the options for experts and sets, none applies to them. */
int reference_heads(const struct reference *target, const struct reference *heads,
                    const struct reference_options *options, const int32_t *tokens, int S, double *logits,
                    vb_error *err);

/* Computes the drafts that follow tok[0..N-1] = tokens and tok[N] = next (docs/SEMANTICS.md, "MTP module k" and
 * "State"). drafts [K] predict tok[N+1..N+K]. Row k of draft_logits [K,V] has the logits from which drafts[k] was
 * chosen; draft_logits may be NULL. Returns VB_BAD_ARGUMENT if K is not in 0..VB_MAX_DRAFT or the model has no MTP
 * modules. Returns VB_NOT_FINITE if a draft's logit is not finite. */
int reference_draft(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int N,
                    int32_t next, enum reference_draft_method method, int K, int32_t *drafts, double *draft_logits,
                    vb_error *err);

/* Greedy autoregressive decoding: writes the `count` tokens that follow the prompt to out. Decoding does not stop at an
 * EOS token. For every new token, all rows are computed again. Returns VB_NOT_FINITE if one of the logits from which a
 * token must be chosen is not finite. */
int reference_generate(const struct reference *r, const struct reference_options *options, const int32_t *prompt, int S,
                       int count, int32_t *out, vb_error *err);

#endif
