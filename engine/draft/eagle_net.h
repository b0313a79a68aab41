/* engine/draft/eagle_net.h -- published EAGLE heads as networks that draft.
 *
 * An EAGLE head is one decoder layer of the Llama kind. It reads the embedding of a token and a hidden state of the
 * target, and drafts one token after the other, like MTP module 0 (engine/draft/mtp.h).
 *
 *     EAGLE-1   x = fc [ Emb(tok[i+1]) ; h_i ] (+ bias)          h_i: the target's row after model.norm, then the
 *               head's own y y = x + attention(x); y = y + mlp(norm(y))       no norm before attention
 *               logits = the target's lm_head(y), predicting tok[i+2]
 *
 *     EAGLE-3   h_i = fc [ three rows of the target's residual stream: before three layers (config_three_layers) ],
 *               then the head's own y x = h_i;  y = x + attention([ input_layernorm(Emb(tok[i+1])) ; hidden_norm(h_i)
 *                                               ]);  y = y + mlp(norm(y))
 *               logits = the head's lm_head(norm(y)) over its own vocabulary: id t means the target's token t + d2t[t]
 *
 *     norm_before_residual   x = hidden_norm(h_i)
 *     norm_before_fc         the three rows together pass input_norm before fc;  fc_norm: each of them passes its own
 *                            norm
 *     norm_output            after the target's rows, h_i is norm(y) of the row before
 *
 * So it computes what an MTP module computes, with another input and other attention: it is a model that has no main
 * layers and one module (engine/pass/layer.c), whose passes forward_mtp computes. Attention is grouped-query attention
 * (ops/gqa.h). RoPE rotates the pairs (j, j + D/2) at position i. Weights are used as they are stored, and activations
 * are f32. The precision of the session changes neither. The sources are Li et al. 2024 and 2025, and the code of
 * SafeAILab/EAGLE, commit cb7e084, eagle/model/cnets1.py and cnets.py; of the keys of config.json,
 * vllm-project/speculators, commit c05b95b, src/speculators/models/eagle3/.
 *
 * In the shapes below, d is the hidden size of the EAGLE head. */
#ifndef VB_DRAFT_EAGLE_NET_H
#define VB_DRAFT_EAGLE_NET_H

#include "engine/draft/drafter.h"
#include "engine/draft/net.h"

struct eagle_head {
    struct vb_model model;         /* its module is `module` */
    struct mtp_module module;      /* enorm is input_layernorm, hnorm is hidden_norm, and shared_head_norm is norm
                                      (EAGLE-3); eh_proj and eh_bias are fc (EAGLE-1). embed_tokens: in the head's files
                                      if they contain one, else the target's. head: the target's output head (EAGLE-1)
                                      or the lm_head in the head's files (EAGLE-3) */
    int version;                   /* 1 or 3 */
    struct eagle_norms norms;
    size_t target_width;           /* width of the target's hidden states */
    size_t vocab_size;             /* size of the head's vocabulary */
    const int32_t *d2t;            /* [vocab_size]: the target's token id for each token id of the head; NULL if both
                                      use the same ids */
    struct weight_view fc;         /* [d, 3 target_width], EAGLE-3 only */
    const float *feature_norms[3]; /* config_feature_norm: [3 target_width]; or [target_width] each; NULL after the
                                      last */
    void *blocks[8];
    size_t block_count;
};

/* Opens the EAGLE head in `dir`, which has a config.json and safetensors files. Returns an error if the EAGLE head has
 * more than one layer or an unknown tensor. Also returns an error if its hidden size, its vocabulary or its kind of
 * layer does not fit the target or the version. The message names the problem. The caller closes *out with
 * eagle_head_close. */
int eagle_head_open(struct eagle_head **out, const char *dir, int version, const struct vb_model *target,
                    vb_error *err);
void eagle_head_close(struct eagle_head *h);

/* Returns how many bytes of weights are read to draft one token. */
size_t eagle_head_bytes(const struct eagle_head *h);

/* An EAGLE head that one session uses, with memory for its passes. */
struct eagle {
    struct draft_net net; /* first member: pointers to it are cast to struct eagle */
    struct eagle_head *head;
    struct pass pass;
    float *features;      /* [rows, 3 target_width]: the input of fc after its norms; NULL if there are none */
};

/* Opens the EAGLE head in `dir` as a network that drafts. Its passes have at most o->most_observed rows. */
int eagle_net_open(struct draft_net **out, const char *dir, int version, const struct vb_model *target,
                   const struct drafter_options *o, vb_error *err);

int eagle_open(struct eagle *e, struct eagle_head *head, const struct drafter_options *o, vb_error *err);
void eagle_close(struct eagle *e); /* closes e->head too */

/* Only for EAGLE-3: computes h [n, d] = fc(features), with the norms before fc, for features [n, 3 target_width]. It
 * uses the threads of `target`. */
void eagle_features(struct eagle *e, const struct pass *target, float *h, const float *features, size_t n);
/* Runs the decoder layer on rows [S], S <= e->pass.w.max_rows. The caller has already appended the slots of the rows to
 * their caches. It reads hidden states h [S, d]. It writes the hidden states of the next rows to next [S, d], and the
 * input of lm_head to g [S, d]. `next` may be the same array as h. */
void eagle_pass(struct eagle *e, const struct pass *target, const struct row *rows, const float *h, float *g,
                float *next, size_t S);
/* Computes logits [S, vocab_size] = lm_head(g). */
void eagle_logits(struct eagle *e, const struct pass *target, float *logits, const float *g, size_t S);

#endif
