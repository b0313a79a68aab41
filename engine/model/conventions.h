/* engine/model/conventions.h -- named switches for the points on which implementations of these models differ.
 *
 * Draft conventions change which tokens are drafted, but never the output. Target conventions change the output, so
 * results can be compared only if they were computed with the same target conventions. Value 0 of each convention is
 * the default. The table in conventions.c lists which implementation uses which value, and docs/SEMANTICS.md explains
 * each convention. */
#ifndef VB_CONVENTIONS_H
#define VB_CONVENTIONS_H

#include "engine/verbatim.h"

enum convention {
    /* draft conventions; h_i is the target's hidden state of token i; k is the number of the MTP module, from 0 */
    MAIN_HIDDEN,     /* the target's hidden state that MTP modules use. 0 (post-norm): after model.norm; 1 (pre-norm):
                        before it */
    DRAFT_HIDDEN,    /* a module's hidden state that the next module uses. 0 (post-norm): after shared_head.norm; 1
                        (pre-norm): before it */
    CONCAT,          /* order of eh_proj's input. 0: embedding, hidden state; 1: hidden state, embedding */
    DRAFT_POSITION,  /* RoPE position of the module's row made of h_i and token i+k+1. 0 (hidden): i; 1 (token):
                        i+k+1 */
    FIRST_EMBEDDING, /* embedding of the row at position 0. 0 (kept): unchanged; 1 (zeroed): replaced by zeros */
    FIRST_ROW,       /* 0 (none): no additional row; 1 (phantom): a module's cache begins with an additional row. Its
                        inputs are token k and a hidden state whose elements are all zero */
    PREFILL_DRAFT,   /* the drafts made right after the prompt. 0 (used): they are verified; 1 (discarded): they are
                        made again in the first round */
    MISSING_HIDDEN,  /* 0 (sent): nothing is missing; 1 (zeros): acts as if another machine had computed the prompt and
                        had not sent the last hidden state. The first draft then uses zeros instead of this hidden
                        state, and the cache row computed from the zeros is not kept. The modules' other cache rows for
                        the prompt are kept */
    MODULE_HIDDEN,   /* the hidden state that row i of module k > 0 takes. 0 (module): the output of module k-1 in row
                        i; 1 (target): h_{i+k}, that of the token before token i+k+1. If the target has not computed
                        h_{i+k} yet, the output of the row that proposed token i+k+1 replaces it */
    CHAIN_MODULE,    /* the module that makes draft k+1 if all drafts are one chain (mtp-eagle). 0 (first): module 0; 1
                        (step): module k mod D. Each module then has a cache of its own, in which row i reads h_i and
                        token i+1, and row N-1+k follows row N-1 */
    MTP_INDEXER,     /* models with an indexer: 0 (own): an MTP layer attends to the positions that its own indexer
                        chooses; 1 (none): to all positions */
    MTP_SET,         /* models with an indexer: the positions that draft steps after the first attend to. 0 (config):
                        index_share_for_mtp_iteration decides; 1 (own): each step chooses; 2 (first): those of the first
                        step */
    /* target conventions */
    LATENT_EPS,      /* eps of q_a_layernorm and kv_a_layernorm. 0: 1e-6; 1 (config): rms_norm_eps */
    GROUP_MASK,      /* score of the experts outside the selected groups. 0 (inf): minus infinity; 1 (zero): zero */
    NORMALISER_EPS,  /* divisor for norm_topk_prob. 0: the sum; 1: the sum + 1e-20; 2: the sum, but at least 2^-14 */
    YARN,            /* 0 (config): YaRN is used if config.json has it; 1 (max-len): only if, in addition, the session's
                        context is longer than original_max_position_embeddings */
    YARN_SCALE,      /* YaRN's factor m^2 of attention scores. 0 (config): applied, except for Mistral 4 without
                        apply_yarn_scaling; 1 (always): applied; 2 (never): not applied */
    ROPE_ANGLE,      /* 0 (f64): angles in double; 1 (f32): frequency, angle, cosine and sine are each rounded to f32 */
    GATE,            /* 0 (f32): the router computes in f32; 1 (bf16): the router's input, matrix, logits, scores and
                        weights are rounded to bf16 */
    /* models with an indexer (docs/SEMANTICS.md, "Sparse attention (DSA)") */
    INDEXER_ROPE,    /* pairs that the indexer's RoPE rotates. 0 (config): indexer_rope_interleave decides; 1 (pairs):
                        (2i, 2i+1); 2 (halves): (i, i + r/2) */
    INDEXER_CODES,   /* what becomes of the indexer's queries and keys after RoPE. 0 (hadamard-fp8): a Hadamard
                        transform, then rounding to FP8 codes; 1 (fp8): codes alone; 2 (hadamard): the transform alone;
                        3 (none): neither */
    INDEXER_WEIGHTS, /* the weight of each indexer head. 0 (f32): computed in f32; 1 (bf16): x, the matrix, the product
                        and the product times H^-1/2 are rounded to bf16 */
    INDEXER_SCORES,  /* 0 (f32): positions are ordered by f32 scores; 1 (bf16): by scores rounded to bf16 */
    INDEXER_TIES,    /* the position kept of several with equal scores. 0 (lowest): the lowest; 1 (highest): the
                        highest */
    LATENT_CACHE,    /* 0 (as-is): latents are cached as they are; 1 (fp8): rounded to FP8 codes with a scale per 128
                        numbers */
    CONVENTIONS
};
#define FIRST_TARGET_CONVENTION LATENT_EPS

struct conventions {
    unsigned char value[CONVENTIONS];
};

/* Sets the conventions that `list` names, from left to right, for example "as=vllm-2025,main-hidden=pre-norm".
 * as=SYSTEM sets the conventions of another system. NULL and "" change nothing. Returns VB_BAD_ARGUMENT for an unknown
 * name or value, and the message lists the known ones. */
int conventions_parse(struct conventions *c, const char *list, vb_error *err);

/* Writes the conventions that differ from the defaults to `list`, as conventions_parse reads them. The text is cut to
 * `room` bytes; 512 bytes are always enough. */
void conventions_list(const struct conventions *c, char *list, size_t room);
/* These two functions write only the draft conventions or only the target conventions, in the same form. */
void conventions_list_draft(const struct conventions *c, char *list, size_t room);
void conventions_list_target(const struct conventions *c, char *list, size_t room);

/* Returns the description of convention i, or NULL if i >= CONVENTIONS. `values` ends with NULL, and its first entry is
 * the default. `who` says which implementations use which value. */
struct convention_row {
    const char *name, *values[5], *who;
    int of_indexer; /* 1: it changes nothing in a model without an indexer */
};
const struct convention_row *convention_row(size_t i);

/* Returns the description of system i, or NULL if there is no system i. `name` is what users write for SYSTEM in
 * as=SYSTEM. `list` is the list of the system's conventions for conventions_parse, and `draft` is the system's draft
 * method. `evidence` says which part of the system's code or documentation shows these conventions. */
struct convention_preset {
    const char *name, *list, *draft, *evidence;
};
const struct convention_preset *convention_preset(size_t i);

#endif
