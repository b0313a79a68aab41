/* reference/weights.h -- decodes stored numbers, and lists where each tensor is used.
 *
 * The reference has decoders of its own, which follow the definition of each format and share no code with the engine.
 * A row is decoded when it is needed. The rows of a small model are decoded when it is opened, since a test or `diff`
 * makes many passes over it. Shapes [rows, cols] use the letters of the table in docs/SEMANTICS.md, but in upper case
 * (kv_lora_rank is c there and C here). D is hidden_size, and W is the width of an MLP. */
#ifndef VB_REFERENCE_WEIGHTS_H
#define VB_REFERENCE_WEIGHTS_H

#include "engine/files/checkpoint.h"
#include "engine/model/config.h"

double ref_f16(uint16_t code);  /* IEEE binary16 */
double ref_bf16(uint16_t code); /* the upper half of an IEEE binary32 */
double ref_e4m3(uint8_t code);  /* FP8 E4M3FN: bias 7, no infinities, 0x7f and 0xff are NaN */
double ref_to_bf16(double x);   /* the nearest BF16 number, ties to even; infinite if x is beyond the largest */
double ref_to_e4m3(double x);   /* the nearest E4M3 number, ties to even; numbers beyond 448 become 448 */
double ref_to_f16(double x);    /* the nearest f16 number, ties to even; infinite if x is beyond the largest */

/* Two ways to decode number i of a quantized tensor (blocks.c). ref_quantized returns scale * code - minimum without
 * rounding; sums use this value. ref_decoded rounds the product scale * code to f32, subtracts the minimum, and
 * rounds the difference to f32; code that needs a single number uses this value. */
double ref_quantized(const struct tensor *t, size_t i);
float ref_decoded(const struct tensor *t, size_t i);
/* The same as ref_quantized for NVFP4 tensors of GGUF files, whose scales are multiplied by `total`; scale * total is
 * rounded to f32. */
double ref_scaled(const struct tensor *t, size_t i, double total);

/* A stored matrix [rows, cols]; a vector is one row. */
struct matrix {
    const struct tensor *tensor;
    const struct tensor *scale; /* for F8_E4M3, I8, I4 and F4: [ceil(rows/block_rows), ceil(cols/block_cols)]; else
                                   NULL */
    const struct tensor *tensor_scale; /* for NVFP4, maybe also in GGUF files: one number for the whole matrix; else
                                          NULL */
    int divides;                /* nonzero if scales are divided by it */
    int rows, cols, block_rows, block_cols;
    const double *decoded;      /* [rows, cols] in a small model, else NULL: what ref_quantized_row returns if the
                                   tensor is quantized, else what ref_row returns */
};

/* Sets out[j] = w[i,j] for j < cols. An F8_E4M3, I8 or I4 weight is code * scale, rounded to f32 once.
 * simd/kernels.h defines F4 (struct weight_view). A quantized weight is
 * decoded with ref_decoded. */
void ref_row(const struct matrix *w, int i, double *out);
/* Does what ref_row does, but for quantized matrices only, and decodes with ref_quantized. */
void ref_quantized_row(const struct matrix *w, int i, double *out);
static inline int ref_is_quantized(const struct matrix *w) { return dtype_is_quantized(w->tensor->dtype); }

/* Whether an arithmetic with this unit roundoff cannot represent the weights of w: it rounds them too. */
int ref_is_finer(const struct matrix *w, double unit);

struct reference_indexer {                        /* H and D: index_n_heads and index_head_dim; D' is hidden_size */
    struct matrix wq_b, wk;                       /* [HD, Q], [D, D'] */
    struct matrix k_norm, k_norm_bias;            /* [D] */
    struct matrix weights_proj;                   /* [H, D'] */
};

struct reference_attention {
    struct matrix q_proj;                         /* [H(N+R), D], only if q_lora_rank is 0 */
    struct matrix q_a_proj, q_a_norm, q_b_proj;   /* [Q, D], [Q], [H(N+R), Q], only if q_lora_rank is not 0 */
    struct matrix kv_a_proj, kv_a_norm;           /* [C+R, D], [C] */
    struct matrix kv_b_proj;                      /* [H(N+V), C]; its tensor is NULL if the file stores W_UK and W_UV
                                                     separately */
    struct matrix k_b_proj, k_b_transposed;       /* a separate W_UK: [H N, C], or quantized and transposed per head, [H
                                                     C, N] */
    struct matrix v_b_proj;                       /* a separate W_UV: [H V, C]; the tensor of a missing matrix is
                                                     NULL */
    struct matrix o_proj;                         /* [D, HV] */
    struct reference_indexer indexer;             /* only in full layers of a model with index_topk */
};

struct reference_mlp {
    struct matrix gate_proj, up_proj, down_proj; /* [W, D], [W, D], [D, W] */
};

struct reference_layer {
    struct matrix input_norm, post_attention_norm; /* [D] */
    struct reference_attention attention;
    int is_moe;
    struct reference_mlp mlp;             /* only in a dense layer; the members below are for layers with experts */
    struct matrix router, bias; /* [E, D]; [E], only with topk_method noaux_tc */
    struct reference_mlp *experts;        /* [E] */
    struct reference_mlp shared;          /* only if n_shared_experts > 0 */
};

struct reference_mtp_module {
    struct matrix enorm, hnorm, eh_proj; /* [D], [D], [D, 2D] */
    struct reference_layer layer;
    struct matrix norm;        /* shared_head.norm [D] */
    struct matrix embed, head; /* [V, D]: the module's own matrices if the checkpoint has them, else the target's */
};

struct reference {
    vb_allocator allocator;
    struct config config;
    struct checkpoint *checkpoint;
    double *decoded;                 /* the decoded matrices of a small model, else NULL */
    struct matrix embed, norm, head; /* [V, D], [D], [V, D] */
    struct reference_layer *layers;            /* [num_hidden_layers]; NULL for parallel heads */
    struct reference_mtp_module *mtp;          /* [num_nextn_predict_layers]; of parallel heads, `layer` alone */
    int trunk_layers;                          /* of parallel heads as in struct heads_config; else 0 */
};

/* Finds tensors in r->checkpoint. After the first failure, whose code is in rc, further calls do nothing. */
struct reference_binder {
    struct reference *r;
    vb_error *err;
    int rc;
    size_t decoded, room; /* numbers used of r->decoded, and its size */
};
void ref_bind_begin(struct reference_binder *b); /* takes memory for the decoded weights if the model is small */
/* Sets *w to the matrix [rows, cols] with the name `prefix` + `name`. */
void ref_bind(struct reference_binder *b, struct matrix *w, int rows, int cols, const char *prefix, const char *name);

/* The grids of GGUF's IQ types: each integer is a row of eight indices of two bits, or of four in four bits each
 * (blocks.c). */
extern const uint16_t ref_grid_iq2_xxs[256], ref_grid_iq2_xs[512], ref_grid_iq2_s[1024], ref_grid_iq1[2048];
extern const uint16_t ref_grid_iq3_xxs[256], ref_grid_iq3_s[512];

#endif
