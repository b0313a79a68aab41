/* reference/reference.h -- the executable specification: the formulas of the DeepSeek-V3 report in plain double loops.
 *
 * Read it with the report open. No cache, no threads, no vector code, nothing shared with the engine but the reading of
 * config.json and of the files' headers: every call computes every row of every layer from the tokens. Attention is the
 * naive form (keys and values expanded per head), where the engine uses the absorbed one. Where implementations disagree
 * it does what the options' conventions say; all zero, the defaults of engine/model/conventions.h.
 *
 * Precision bf16: a linear layer multiplies numbers that bf16 holds. W is rounded to the nearest, ties to even (what is not
 * BF16 has its value in f32 first); x likewise, then what is below 2^-56 is 0. The router's gate is left out of it, as is all
 * that is no linear layer: norms, RoPE, scores, latents as they are kept. Of attention x of W_UK is the query's nope part (so
 * keys are W_UK times the latent as it is), and x of W_UV the weighted sum of latents.
 *
 * Quantised matrices, of a GGUF file or made by precision q8 and q4 (round.c says which): x is rounded to groups of 32 by rule 2
 * of simd/kernels.h, whose d and q are f32 numbers by definition; W is what its blocks are worth (blocks.c). x of W_UK and of
 * W_UV are those of precision bf16. A quantised matrix of which single rows are read (the embedding), the router's gate, and W_UK
 * out of a kv_b_proj that is quantised along c, are numbers of f32, and their x is not rounded to groups. What a file has
 * quantised stays so in every precision.
 *
 * A reference is read-only once open. Arrays are row-major; S tokens, D = hidden_size, V = vocab_size. */
#ifndef VB_REFERENCE_H
#define VB_REFERENCE_H

#include "engine/model/config.h"

/* One named intermediate value, as it is computed. X experts per token, W the width of an MLP; [S, .] is left out.
 *   a layer     input_layernorm [D]; attention; residual [D]; post_attention_layernorm [D]; MLP or experts; residual
 *   attention   q_a, q_a_norm [Q] (with q_lora_rank), q [H(N+R)], kv_a [C+R], latent [C] (after its norm),
 *               q_rope [S*H, R], k_rope [R] (rotated in place: pairs stay where the checkpoint has them),
 *               kv [H(N+V)]; per head (index) scores [S] (-inf where t > s), probabilities [S], and where x of W_UV is rounded,
 *               so that values are not those of kv, mixed [C]: the weighted sum of latents; heads [HV], attention [D]
 *   an MLP      gate, up, silu, product [W], down [D]; index: the expert, and its rows are those tokens that chose it;
 *               -1 for a dense layer and the shared expert
 *   experts     router_logits, router_scores [E], router_choice [E] (with a bias; not masked), router_groups [n_group],
 *               router_kept [topk_group], router_experts [X] (both ascending), router_weights [X]; the MLP of each expert; experts [S*X, D] in the
 *               order of router_experts, experts_sum [D]; the MLP of the shared expert, moe [D] (with it)
 *   layer -1    embed [D], norm [D], logits [V] (of the rows asked for)
 *   MTP         depth k is layer num_hidden_layers + k, also when module k mod D stands in: embed, enorm, hnorm [D],
 *               concat [2D], eh_proj [D]; a layer; shared_head_norm [D], logits [V]. A draft runs a module on all its
 *               rows at every step. first-row=phantom: one row more, before the others, which no head reads. */
struct reference_value {
    const char *name;
    int layer; /* -1 outside the layers */
    int index; /* head or expert, or -1 */
    int rows, cols;
    const double *data; /* [rows, cols], valid during the call */
};

struct reference_options { /* all zero: the specification itself */
    /* A seed other than 0 multiplies every intermediate value by 1 + u 2^-24, u uniform in [-1, 1) and drawn in the
     * order of computation: "perturbed by half an f32 ulp". The spread of such runs measures how far an f32 program may
     * be from this one on the same input: a bound can be a multiple of it instead of a number out of the air. The same
     * seed gives the same bits. A near-tie in routing may fall the other way: f32 programs do that too.
     * In precision bf16 a number that is rounded is moved by up to 2^-18 of itself first, some ten times what f32 has cost
     * by then: one that lies so near to a tie of bf16 may fall either way in an f32 program, and does in some of the runs, so
     * that their spread has in it what a turned rounding does.
     * Where x is rounded to groups of 32, each number is moved by up to 2^-18 of the group's largest before it is rounded, but
     * not the step d itself. What f32 has cost is relative to a row's largest numbers, whatever the size of one: a tie that an
     * f32 program may turn lies within some 2^-22 of the group's largest. In a run a number so near is on the other side of its
     * tie with a probability of about 1/2, and then d away, as it is in a program that turned it. */
    uint64_t perturb;
    int x_as_is; /* no x is rounded, whatever the weights: perturbed runs tell what f32 costs where no rounding is turned */
    enum precision precision;
    struct conventions conventions; /* rope-angle=f32: pow in outside programs may differ by an ulp */
    int context;                    /* for yarn=max-len; 0: the tokens of the call */
    void (*hook)(void *context, const struct reference_value *value); /* NULL: none */
    void *hook_context;
};

enum reference_draft_method { REFERENCE_MTP_VANILLA, REFERENCE_MTP_EAGLE };

struct reference;

/* Opens DIR. A missing tensor, another shape, a dtype other than F32, F16, BF16, F8_E4M3 and, of matrices, GGUF's quantised
 * ones are VB_BAD_CHECKPOINT. */
int reference_open(struct reference **out, const char *dir, const vb_allocator *a, vb_error *err);
void reference_close(struct reference *r);
const struct config *reference_config(const struct reference *r);

/* The target. hidden [S,D] after model.norm and logits [S,V], either may be NULL; options NULL: all zero. A token
 * outside the vocabulary or S < 1 is VB_BAD_ARGUMENT. */
int reference_forward(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int S,
                      double *hidden, double *logits, vb_error *err);

/* MTP modules that read the text itself: row i of depth k takes tok[i+k+1] and what depth k-1 gave for row i (h^0 is the
 * target's), i < S-k-1, and predicts tok[i+k+2]. logits [depths, S, V], rows beyond those are not written; may be NULL,
 * for the hook's sake, which is told of the target and its logits too. depths is 0..VB_MAX_DRAFT; depth k is module k mod D. Errors as above. */
int reference_modules(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int S,
                      int depths, double *logits, vb_error *err);

/* What is proposed after tok[0..N-1] = tokens and tok[N] = next (docs/SEMANTICS.md, "MTP module k" and "State"): drafts [K]
 * predict tok[N+1..N+K]; draft_logits [K,V], row k the one that chose drafts[k], may be NULL. K is 0..VB_MAX_DRAFT.
 * A model without MTP modules is VB_BAD_ARGUMENT, a draft logit that is not finite VB_NOT_FINITE. */
int reference_draft(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int N,
                    int32_t next, enum reference_draft_method method, int K, int32_t *drafts, double *draft_logits,
                    vb_error *err);

/* Greedy autoregressive decoding: out [count] continues the prompt; the end token does not stop it. Everything is
 * recomputed for every token. A logit that is not finite in a row that chooses is VB_NOT_FINITE. */
int reference_generate(const struct reference *r, const struct reference_options *options, const int32_t *prompt, int S,
                       int count, int32_t *out, vb_error *err);

#endif
