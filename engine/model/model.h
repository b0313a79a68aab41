/* engine/model/model.h -- a model: config and weights, every tensor bound by name to the place where it is used.
 *
 * Weights stay in the mapped file (struct weight_view points into it). Vectors (norms, the router's bias) are widened
 * to f32 at open: a few kilobytes. A model is read-only once open and may be shared by threads. */
#ifndef VB_MODEL_H
#define VB_MODEL_H

#include "engine/files/checkpoint.h"
#include "engine/model/config.h"
#include "simd/kernels.h"

struct mla {                                  /* multi-head latent attention, docs/SEMANTICS.md, "Attention (MLA)" */
    struct weight_view q_proj;                /* [H(n+r), d], when q_lora_rank is 0 */
    struct weight_view q_a_proj, q_b_proj;    /* [q, d], [H(n+r), q] else */
    const float *q_a_layernorm;               /* [q] */
    struct weight_view kv_a_proj_with_mqa;    /* [c+r, d]: latent first, rope part last */
    const float *kv_a_layernorm;              /* [c] */
    struct weight_view w_uk, w_uv;            /* of kv_b_proj [H(n+v), c]: each begins with the first row of head 0, and */
    size_t uk_stride, uv_stride;              /* of a head's rows to the next head's: n + v when both lie in kv_b_proj, which
                                                 w_uk then is, else n and v. n rows of w_uk: the keys; v of w_uv: the values */
    int uk_transposed;                        /* w_uk is quantised, and summed over n: [H c, n], c rows of a head, uk_stride c */
    struct weight_view o_proj;                /* [d, Hv] */
};

struct mlp {
    struct weight_view gate_proj, up_proj, down_proj; /* [i, d], [i, d], [d, i] */
};

struct moe {
    struct weight_view gate;                  /* [E, d] */
    const float *e_score_correction_bias;     /* [E], NULL unless topk_method is noaux_tc */
    struct mlp *experts;                      /* E of them */
    struct mlp shared_experts;                /* rows 0 when n_shared_experts is 0 */
};

struct layer {
    const float *input_layernorm, *post_attention_layernorm; /* [d] */
    struct mla self_attn;
    int is_moe;
    struct mlp mlp; /* dense layers */
    struct moe moe; /* the others */
};

struct mtp_module {                           /* docs/SEMANTICS.md, "MTP module k" */
    const float *enorm, *hnorm;               /* [d] */
    struct weight_view eh_proj;               /* [d, 2d], columns: embedding, then hidden */
    struct layer layer;
    const float *shared_head_norm;            /* [d] */
    struct weight_view embed_tokens, head;    /* the module's own when stored, else the main model's */
};

struct model {
    struct config config;                     /* its conventions are those in force */
    struct checkpoint *checkpoint;
    const vb_allocator *allocator;            /* a copy lives in allocator_copy */
    vb_allocator allocator_copy;
    struct weight_view embed_tokens;          /* [V, d] */
    struct layer *layers;                     /* num_hidden_layers of them */
    const float *norm;                        /* [d] */
    struct weight_view lm_head;               /* [V, d]; embed_tokens when tied */
    struct mtp_module *mtp;                   /* num_mtp of them: layers num_hidden_layers.. of the checkpoint */
    int num_mtp;
    struct model_copy *copies;                /* matrices that are not read as they are stored (model_internal.h), */
    size_t num_copies;
    const void *copied;                       /* and the memory of all of them */
    size_t copied_bytes;
    double copy_seconds;                      /* that making them took, reading included */
    size_t widened_bytes;                     /* memory of what was widened to f32: vectors, W_uk out of a quantised kv_b_proj,
                                                 a quantised router; and of FP8 scales that a file with an unpadded header holds
                                                 at an odd address: copied, for C's sake */
    size_t rounded_bytes;                     /* of matrices rounded to BF16, in precision bf16 */
    size_t quantised_bytes;                   /* of those quantised, in precision q8 and q4 */
    size_t repacked_bytes;                    /* of those quantised in the file, and put into panels */
    unsigned char *magnitudes;                /* precision bf16: what kernels learn of each matrix; the only thing of a
                                                 model that changes, and only from not knowing to knowing */
    size_t magnitudes_used;
    struct numa *numa;                        /* numa.h; NULL: off */
    struct model_block *blocks;               /* every allocation that the pointers above lead to */
};

/* Opens the checkpoint of DIR and binds it. Every tensor is checked: name, shape, dtype, and that nothing is left over.
 * Not used, and explained (checkpoint_ignore): rotary_emb.inv_freq, which config.json gives; lm_head when the embedding is
 * tied to it; whole MTP layers beyond num_nextn_predict_layers. MTP layers that config.json promises and nothing stores
 * (many copies drop them) leave num_mtp smaller than that; one stored in part is an error. */
int model_open(struct model **out, const char *dir, const vb_allocator *a, vb_error *err);

/* In bf16 every matrix of a linear layer is BF16: what is stored otherwise is rounded to nearest once, into a copy. In q8 and
 * q4 it is Q8_0 or Q4_0 where the sum's length is a multiple of 32, along n in W_uk. What is quantised in the file stays so
 * in every precision; so do embed_tokens and the router's gate as they are stored. Q8_0 and Q4_0 become panels
 * (simd/quantised.h), a copy, unless from_file. The bits are the same with or without. */
struct model_options {
    const struct conventions *conventions; /* NULL: the defaults */
    enum precision precision;
    int from_file;
    int threads;                           /* that copies are made by; 0: the processors of the affinity mask */
    void (*progress)(void *context, size_t done, size_t total); /* bytes of copies made so far; NULL: silent */
    void *progress_context;
};
int model_open_under(struct model **out, const char *dir, const struct model_options *o, const vb_allocator *a, vb_error *err);
void model_close(struct model *m);

/* Binds a checkpoint (taken over, also on failure) to a config. Works on a list without weights: data stays NULL. */
int model_bind(struct model **out, const struct config *config, struct checkpoint *checkpoint, const vb_allocator *a,
               vb_error *err);

/* For `inspect`: weights stored, scales not counted, MTP's byte-equal copies not counted (on a list without weights: copies
 * of equal shape and dtype); and those that one token of the target touches: the embedding as one row, chosen experts
 * only, MTP excluded. The first compares the copies, which reads both when they are equal. */
int64_t model_parameters(const struct model *m);
int64_t model_active_parameters(const struct model *m);

/* Whether module k stores its own embed_tokens (head 0) or shared_head.head (head 1), and whether its bytes are those of
 * the main one. Without weights: whether shape and dtype are. */
enum mtp_copy { MTP_COPY_ABSENT, MTP_COPY_EQUAL, MTP_COPY_DIFFERENT };
enum mtp_copy model_mtp_copy(const struct model *m, int k, int head);

/* `inspect --check`: reads every byte. FP8 codes that are NaN, BF16/F16/F32 weights and scales that are not finite are
 * errors naming file, tensor and index. `progress` (may be NULL) is told the bytes done and the bytes in all. */
int model_check(const struct model *m, void (*progress)(void *context, size_t done, size_t total), void *context,
                vb_error *err);

#endif
