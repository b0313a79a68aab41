/* engine/model/model.h -- an open model: its configuration, and a pointer to each of its weights.
 *
 * Matrices stay in the mapped files, to which struct weight_view points, unless an option requires a copy. Vectors (the
 * weights of norms, the router's bias) are converted to f32 when the model is opened; they need a few kilobytes. An
 * open model is read-only, and threads may share it. docs/SEMANTICS.md explains the letters in shapes such as [H(n+r),
 * d]. */
#ifndef VB_MODEL_H
#define VB_MODEL_H

#include "engine/base/mapping.h"
#include "engine/files/checkpoint.h"
#include "engine/model/config.h"
#include "ops/indexer.h"
#include "ops/kv_rows.h"
#include "ops/router.h"
#include "simd/kernels.h"

struct mla {                                  /* weights of multi-head latent attention; see docs/SEMANTICS.md,
                                                 "Attention (MLA)". Grouped-query attention has q_proj, k_proj, v_proj
                                                 and o_proj */
    struct weight_view q_proj;                /* [H(n+r), d], only if q_lora_rank is 0 */
    struct weight_view k_proj, v_proj;        /* [Gr, d], [Gv, d], only of grouped-query attention */
    struct weight_view q_a_proj, q_b_proj;    /* [q, d] and [H(n+r), q], only if q_lora_rank is not 0 */
    const float *q_a_layernorm;               /* [q] */
    struct weight_view kv_a_proj_with_mqa;    /* [c+r, d]: rows of the latent first, rows of the RoPE part last */
    const float *kv_a_layernorm;              /* [c] */
    /* kv_b_proj [H(n+v), c] has n rows of W_uk (for keys) and then v rows of W_uv (for values) for each head. w_uk
     * begins at the first key row of head 0, and w_uv at the first value row of head 0. */
    struct weight_view w_uk, w_uv;
    size_t uk_stride, uv_stride;              /* number of rows from the start of one attention head to the start of the
                                                 next. If both views lie in kv_b_proj, both strides are n + v, and w_uk
                                                 contains all rows of kv_b_proj. If W_uk and W_uv are separate matrices,
                                                 the strides are n and v */
    int uk_transposed;                        /* 1: w_uk is quantized along n, so its shape is [H c, n], and uk_stride
                                                 is c */
    struct weight_view o_proj;                /* [d, Hv] */
    int has_indexer;                          /* 1 in the full layers of a model with sparse attention */
    int sees_all;                             /* 1: rows attend to all tokens in a model with sparse attention
                                                 (convention mtp-indexer=none, for MTP layers) */
    struct {                                  /* see docs/SEMANTICS.md, "Sparse attention (DSA)"; H is index_n_heads */
        struct weight_view wq_b, wk;          /* [HD, q], [D, d] */
        const float *k_norm, *k_norm_bias;    /* [D] */
        struct weight_view weights_proj;      /* [H, d] */
        size_t number;                        /* number of this layer among the full ones, whose index cache is number
                                                 0, 1 and so on; 0 in an MTP layer */
    } indexer;
};

struct mlp { /* a gated feed-forward layer with intermediate size i */
    struct weight_view gate_proj, up_proj, down_proj; /* [i, d], [i, d], [d, i] */
};

struct moe {
    struct weight_view gate;                  /* [E, d] */
    const float *e_score_correction_bias;     /* [E]; NULL unless topk_method is noaux_tc */
    struct mlp *experts;                      /* array of E experts */
    struct mlp shared_experts;                /* matrices with 0 rows if n_shared_experts is 0 */
};

struct layer {
    enum attention_kind kind; /* config_attention */
    int index;                /* its number in the checkpoint */
    const float *input_layernorm, *post_attention_layernorm; /* [d] */
    struct mla self_attn;
    unsigned char *prefetched;              /* with ranks: [1 + E], see prefetch.h; else NULL */
    int is_moe;
    int attention_on_device, mlp_on_device; /* nonzero: a device computes this part (offload.h) */
    struct mlp mlp; /* used if is_moe is 0 */
    struct moe moe; /* used if is_moe is 1 */
};

struct mtp_module {                           /* weights of one MTP module; see docs/SEMANTICS.md, "MTP module k".
                                                 Parallel heads and EAGLE heads have some of them
                                                 (engine/pass/layer.c) */
    const float *enorm, *hnorm;               /* [d] */
    struct weight_view eh_proj;               /* [d, 2d]: first d columns for the embedding, then d for the hidden
                                                 state */
    const float *eh_bias;                     /* [d], which is added to its output; NULL: nothing is */
    int norm_before_residual;                 /* of an EAGLE-3 head: struct eagle_norms */
    struct layer layer;
    const float *shared_head_norm;            /* [d] */
    struct weight_view embed_tokens, head;    /* the module's own matrices if it stores them, else those of the main
                                                 model */
};

/* What a device computes (offload.h). */
struct offload_plan {
    int first_layer;     /* layers [first_layer, num_hidden_layers) */
    int first_attention; /* of layers [first_attention, first_layer) all but the feed-forward part with experts */
    int ends;        /* the head and the MTP modules */
    int without_experts;
};

/* What became of the file of copies (option repack_cache): not asked for or not usable; it will be written; mapped;
 * written. */
enum copy_cache { CACHE_UNUSED, CACHE_WANTED, CACHE_MAPPED, CACHE_WRITTEN };

struct vb_model {
    struct config config;                     /* includes the conventions and the precision in use */
    struct checkpoint *checkpoint;
    const vb_allocator *allocator;            /* points to allocator_copy */
    vb_allocator allocator_copy;
    struct weight_view embed_tokens;          /* [V, d] */
    struct layer *layers;                     /* array of num_hidden_layers layers */
    const float *norm;                        /* [d] */
    struct weight_view lm_head;               /* [V, d]; the same matrix as embed_tokens if tie_word_embeddings is
                                                 true */
    struct mtp_module *mtp;                   /* array of num_mtp modules; module k is layer num_hidden_layers + k of
                                                 the file */
    int num_mtp;
    struct model_copy *copies;                /* the copies of matrices, and how each was made from a stored matrix
                                                 (model_internal.h) */
    size_t num_copies;
    const void *copied;                       /* one block of memory with all these copies */
    size_t copied_bytes;
    double copy_seconds;                      /* time that making the copies took, including reading the file */
    enum copy_cache cache;
    int cache_replace;                        /* 1: a damaged or an older file of copies is replaced */
    struct mapping *cache_file;               /* with CACHE_MAPPED, the file that contains the copies */
    char cache_note[256];                     /* why a file of copies could not be used or written; empty: no reason */
    struct vb_ranks *ranks;                      /* the processes that compute this model together (ranks.h); NULL: this
                                                    one alone */
    struct device *device;                    /* computes parts of the model (offload.h); NULL: no device does */
    int owns_device;                          /* nonzero: model_close closes it */
    int device_is_optional;                   /* device "auto": a session goes on without the device if its passes do
                                                 not fit there */
    struct offload_plan offload;              /* what it computes */
    size_t device_memory, device_weights;     /* bytes of its memory that were free when it was opened, and bytes of
                                                 weights that were copied to it */
    char device_note[256];                    /* why there is none, although device "auto" was asked for; or empty */
    uint32_t number;                          /* with `ranks`: the number by which rank 0 names the model */
    size_t stored_bytes;                      /* size of the matrices that are used as stored; with `ranks`, of this
                                                 rank's share of them */
    size_t widened_bytes;                     /* size of the copies that were converted to f32, in bytes: vectors, W_uk
                                                 of a quantized kv_b_proj, a quantized router. FP8 scales that are not
                                                 aligned in the file are copied too, and are included */
    size_t rounded_bytes;                     /* size of the copies that precision bf16 has rounded to BF16, in bytes */
    size_t quantized_bytes;                   /* size of the copies that precision q8 or q4 has quantized, in bytes */
    size_t repacked_bytes;                    /* size of the copies of matrices that were quantized in the file and are
                                                 only reordered (panels), in bytes */
    unsigned char *magnitudes;                /* for precision bf16: one value of enum magnitudes per matrix. Kernels
                                                 set these values. Each value changes once, from unknown to known.
                                                 Nothing else in an open model changes, except `prefetched` of its
                                                 layers */
    size_t magnitudes_used;
    struct numa *numa;                        /* placement of weights on NUMA nodes (numa.h); NULL: off */
    struct model_block *blocks;               /* list of all memory that the model owns and model_close frees */
};

/* Opens a checkpoint and connects each of its tensors with its place in the model. It is an error if a tensor is
 * missing, is not used, or has the wrong shape or dtype.
 *
 * The following tensors may be unused: rotary_emb.inv_freq, which is computed from config.json; lm_head if the
 * embedding is also the head; MTP layers after the first num_nextn_predict_layers. Many published copies of models lack
 * MTP layers that config.json announces; num_mtp is then smaller than num_nextn_predict_layers. It is an error if the
 * file stores only some tensors of an MTP layer. */
int model_open(struct vb_model **out, const char *dir, const vb_allocator *a, vb_error *err);

/* Options for opening a model.
 *
 * Precision bf16 makes every matrix of a linear layer BF16: a matrix stored in another type is rounded to nearest,
 * once, into a copy. Precision q8 quantizes each of these matrices to Q8_0, and precision q4 to Q4_0, if the length of
 * its rows is a multiple of 32. I4 and F4 matrices stay as they are in bf16. In q8 and q4 they become Q4_BF16, NVFP4 or
 * MXFP4, and in q8 I8 matrices become Q8_F32; these types keep codes and scales (simd/quantized.h). W_uk is quantized
 * along n. In every precision, matrices that are quantized in the file stay as they are, and so do embed_tokens and the
 * router's matrix.
 *
 * Q8_0, Q4_0 and IQ4_NL matrices are also reordered into panels (simd/quantized.h), in a copy, unless from_file is 1.
 * Results have the same bits with and without panels. */
struct offload_options;
struct model_options {
    const struct conventions *conventions; /* NULL: the defaults */
    enum precision precision;
    int tensor_cores; /* as in struct config */
    enum cache_type cache_type;
    int from_file;
    const char *repack_cache;              /* a directory for files of copies (copy_cache.c); NULL: copies are not
                                              kept */
    int shapes_only;                       /* 1: matrices get the types and shapes that they have in this precision, but
                                              no copies are made. No pass can be computed with such a model */
    struct vb_ranks *ranks;                   /* see struct vb_model */
    const struct offload_options *offload; /* NULL: no device */
    const struct vb_model *heads_of;          /* for model_open_heads; else NULL */
    int threads;                           /* threads that make the copies; 0: as many as the affinity mask allows */
    void (*progress)(void *context, size_t done, size_t total); /* `done`: the number of bytes that were copied so far;
                                                                   may be NULL */
    void *progress_context;
};
int model_open_under(struct vb_model **out, const char *dir, const struct model_options *o, const vb_allocator *a,
                     vb_error *err);
void model_close(struct vb_model *m);

/* Opens the parallel heads in `dir`, which draft for `target` (docs/SEMANTICS.md). Head i is mtp[i], of which only
 * `layer` is the head's own: embedding, norm and output head are the target's. There are no main layers. Matrices are
 * used as stored, activations are f32, and this process computes the heads alone. Sets *trunk_layers as in struct
 * heads_config. Returns an error if the heads do not fit the target. The target must outlive the heads. */
int model_open_heads(struct vb_model **out, int *trunk_layers, const char *dir, const struct vb_model *target,
                     vb_error *err);

/* Opens a model for its shapes alone, with the option shapes_only (shapes.c). `path` is a model, a config.json under
 * any name, or a directory with a config.json and no weights. In the last two cases, *from_config becomes 1, and
 * model_list_shapes makes the tensors from `type`. If there are weights, `type` must be NULL. */
int model_open_shapes(struct vb_model **out, const char *path, const char *type, const struct model_options *o,
                      int *from_config, const vb_allocator *a, vb_error *err);
/* Makes a checkpoint without weights that has all tensors of a model with this configuration, as such models are
 * published. `type`:
 *   "f32", "bf16", "q8_0", "q4_0"   all linear layers have this type
 *   "fp8", "int8"                   the same, but output heads and eh_proj are BF16; FP8 has blocks of 128 x 128 unless
 *                                   config.json gives others
 *   "int4"                          only the routed experts of main layers have this type
 *   "nvfp4", "mxfp4"                only the MLPs of main layers have this type
 *   NULL                            as quantization_config says; without it, BF16
 * Other tensors are BF16, and the router's bias is F32. Each MTP module has its own embedding and output head. Sets the
 * fields fp8, int8 and int4 of *c accordingly. */
int model_list_shapes(struct checkpoint **out, struct config *c, const char *type, const vb_allocator *a,
                      vb_error *err);

/* Returns the layout of the cache rows of all main layers, or of an MTP module, which has a cache of its own. */
struct kv_layout model_cache_layout(const struct config *c);
struct kv_layout model_mtp_cache_layout(const struct config *c);
/* Returns the indexer of a model with sparse attention, with its conventions. */
struct indexer model_indexer(const struct config *c);
/* Returns how the routers of a model choose; of *moe, only the bias is read. */
struct router model_router(const struct config *c, const struct moe *moe);
/* Returns how many bytes the target's cache takes for one token if the cache had this type, with the index cache; 0 if
 * it cannot have this type. */
size_t model_cache_bytes(const struct config *c, enum cache_type type);

/* Makes a model from a configuration and an open checkpoint, with default options. The model takes over the
 * checkpoint. If the function fails, it closes the checkpoint. The checkpoint may have no weights
 * (checkpoint_from_list); the data pointers of the model are then NULL. */
int model_bind(struct vb_model **out, const struct config *config, struct checkpoint *checkpoint, const vb_allocator *a,
               vb_error *err);

/* Count the parameters of a model, for `verbatim inspect`.
 *
 * model_parameters counts all stored weights except scales. An MTP module's embedding or output head is not counted if
 * it equals the main model's matrix. To find this out, the function compares the bytes of both matrices, and may read
 * them completely. If the model has no weights, the function compares shapes and dtypes instead.
 *
 * model_active_parameters counts the weights that are used for one token: one row of the embedding, the chosen experts,
 * and all other matrices and vectors of the main model. MTP modules are not counted. */
int64_t model_parameters(const struct vb_model *m);
int64_t model_active_parameters(const struct vb_model *m);

/* model_mtp_stores returns whether module k stores its own embed_tokens (head = 0) or shared_head.head (head = 1).
 * model_mtp_copy also returns whether this matrix has the same bytes as the main model's matrix. If the model has no
 * weights, it compares shape and dtype instead of the bytes. */
int model_mtp_stores(const struct vb_model *m, int k, int head);
enum mtp_copy { MTP_COPY_ABSENT, MTP_COPY_EQUAL, MTP_COPY_DIFFERENT };
enum mtp_copy model_mtp_copy(const struct vb_model *m, int k, int head);

/* Reads all weights and checks that they are finite, for `verbatim inspect --check`. Returns VB_BAD_CHECKPOINT if an
 * FP8 code is NaN, or if an F32, F16 or BF16 weight or scale is not finite. The message names the file, the tensor
 * and the index. `progress` is called with the bytes read so far and in total; it may be NULL. */
int model_check(const struct vb_model *m, void (*progress)(void *context, size_t done, size_t total), void *context,
                vb_error *err);

/* Sets *out to a hash of all weights that the model uses: name, dtype, shape and bytes of each tensor as the file
 * stores it. Copies that a precision made are not hashed, because they follow from the stored tensors. The function
 * reads the whole checkpoint. Pages of tensors that the model has copied are released afterwards. The result does not
 * depend on `threads` (0: as many as the affinity mask allows). */
int model_hash_weights(const struct vb_model *m, int threads, uint64_t *out, vb_error *err);

#endif
