/* engine/model/conventions.h -- where implementations disagree, as named switches.
 *
 * Draft conventions change what is proposed, never what is put out. Target conventions change the output: they are part
 * of what a fingerprint belongs to. Value 0 of each is the default. conventions.c has the table, with who does what. */
#ifndef VB_CONVENTIONS_H
#define VB_CONVENTIONS_H

#include "engine/verbatim.h"

enum convention {
    /* draft */
    MAIN_HIDDEN,     /* 0 post-norm: modules take the target's hidden row after model.norm; 1 pre-norm: before it */
    DRAFT_HIDDEN,    /* 0 post-norm: the next depth takes a module's row after shared_head.norm; 1 pre-norm: before it */
    CONCAT,          /* 0 embedding-hidden: eh_proj [embedding; hidden]; 1 hidden-embedding */
    DRAFT_POSITION,  /* 0 hidden: RoPE position of the pair (h_i, tok[i+k+1]) is i; 1 token: i+k+1 */
    FIRST_EMBEDDING, /* 0 kept; 1 zeroed where the position is 0 */
    FIRST_ROW,       /* 0 none; 1 phantom: a module's cache begins with the pair (zeros, tok[k]), one place before row 0 */
    PREFILL_DRAFT,   /* 0 used; 1 discarded: modules draft after the prompt too, and again in the first round */
    MISSING_HIDDEN,  /* 0 sent; 1 zeros: as if the prompt had been computed elsewhere and its last hidden row not been sent. The first draft
                        takes zeros for it, in a dummy slot; the modules' rows of the prompt are those computed elsewhere */
    /* target */
    LATENT_EPS,      /* of q_a_layernorm and kv_a_layernorm: 0 1e-6; 1 config: rms_norm_eps */
    GROUP_MASK,      /* choices outside the kept groups: 0 inf: out; 1 zero: worth 0, elected before a negative one */
    NORMALISER_EPS,  /* norm_topk_prob divides by: 0 the sum; 1 the sum + 1e-20; 2 the larger of the sum and 2^-14 */
    YARN,            /* 0 config: whenever config.json has it; 1 max-len: only where the session's context is longer than
                        original_max_position_embeddings */
    ROPE_ANGLE,      /* 0 f64; 1 f32: frequencies, angles, cosines and sines rounded at each step */
    GATE,            /* 0 f32; 1 bf16: x, W, logits, sigmoid scores and weights of the router rounded to bf16 */
    CONVENTIONS
};
#define FIRST_TARGET_CONVENTION LATENT_EPS

struct conventions {
    unsigned char value[CONVENTIONS];
};

/* Sets what `list` names, from left to right: "as=vllm-2025,main-hidden=pre-norm". NULL and "" change nothing. A name or
 * value that is not known is VB_BAD_ARGUMENT; the sentence lists those that are. */
int conventions_parse(struct conventions *c, const char *list, vb_error *err);

/* The list that sets these: what differs from the defaults. Cut off at room, which 512 never is. */
void conventions_list(const struct conventions *c, char *list, size_t room);
/* The same for the conventions of one kind. */
void conventions_list_draft(const struct conventions *c, char *list, size_t room);
void conventions_list_target(const struct conventions *c, char *list, size_t room);

/* Row of the table; NULL past CONVENTIONS. values end with NULL; the first is the default. `who` follows which. */
struct convention_row {
    const char *name, *values[4], *who;
};
const struct convention_row *convention_row(size_t i);

/* A system of the field as a list for conventions_parse, and the draft method that it uses: row i, or NULL. */
struct convention_preset {
    const char *name, *list, *draft, *evidence;
};
const struct convention_preset *convention_preset(size_t i);

#endif
