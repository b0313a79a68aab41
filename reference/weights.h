/* reference/weights.h -- what stored numbers are worth, and where each tensor is used.
 *
 * Decoding is this directory's own, by the definition of each format; the engine has another. Nothing is copied: a row
 * is decoded when it is needed. */
#ifndef VB_REFERENCE_WEIGHTS_H
#define VB_REFERENCE_WEIGHTS_H

#include "engine/files/checkpoint.h"
#include "engine/model/config.h"

double ref_f16(uint16_t code);  /* IEEE binary16 */
double ref_bf16(uint16_t code); /* the upper half of an IEEE binary32 */
double ref_e4m3(uint8_t code);  /* FP8 E4M3FN: bias 7, no infinities, 0x7f and 0xff are NaN */
double ref_to_bf16(double x);   /* the nearest number that bf16 holds, ties to even; infinite beyond its largest */
double ref_to_f16(double x);    /* that f16 holds */

/* Number i of a quantised tensor, blocks.c: exactly, scale * code - minimum, as sums see it; and as a number by itself, which is
 * rounded to f32: fl32(scale * code), then the difference. */
double ref_quantised(const struct tensor *t, size_t i);
float ref_decoded(const struct tensor *t, size_t i);

/* A stored matrix [rows, cols]; a vector is one row. */
struct matrix {
    const struct tensor *tensor;
    const struct tensor *scale; /* F8_E4M3: [ceil(rows/block_rows), ceil(cols/block_cols)] F32, else NULL */
    int rows, cols, block_rows, block_cols;
};

/* out[j] = w[i,j], j < cols. For F8_E4M3 the weight is e4m3 * scale, rounded once to f32; a quantised one is ref_decoded. */
void ref_row(const struct matrix *w, int i, double *out);
/* The same, of a quantised matrix: ref_quantised. */
void ref_quantised_row(const struct matrix *w, int i, double *out);
static inline int ref_is_quantised(const struct matrix *w) { return dtype_is_quantised(w->tensor->dtype); }

struct reference_attention {
    struct matrix q_proj;                         /* [H(N+R), D], when q_lora_rank is 0; else */
    struct matrix q_a_proj, q_a_norm, q_b_proj;   /* [Q, D], [Q], [H(N+R), Q] */
    struct matrix kv_a_proj, kv_a_norm;           /* [C+R, D], [C] */
    struct matrix kv_b_proj;                      /* [H(N+V), C]; or, in a GGUF file that has quantised one of its two parts, */
    struct matrix k_b_proj, k_b_transposed;       /* W_UK: [H N, C], or of each head the transpose, [H C, N], quantised; and */
    struct matrix v_b_proj;                       /* W_UV: [H V, C]. A matrix that is not there has no tensor */
    struct matrix o_proj;                         /* [D, HV] */
};

struct reference_mlp {
    struct matrix gate_proj, up_proj, down_proj; /* [W, D], [W, D], [D, W] */
};

struct reference_layer {
    struct matrix input_norm, post_attention_norm; /* [D] */
    struct reference_attention attention;
    int is_moe;
    struct reference_mlp mlp;             /* a dense layer; else */
    struct matrix router, bias; /* [E, D]; [E] with noaux_tc */
    struct reference_mlp *experts;        /* E of them */
    struct reference_mlp shared;          /* when n_shared_experts > 0 */
};

struct reference_mtp_module {
    struct matrix enorm, hnorm, eh_proj; /* [D], [D], [D, 2D] */
    struct reference_layer layer;
    struct matrix norm;        /* shared_head.norm [D] */
    struct matrix embed, head; /* [V, D], the module's own when stored, else the target's */
};

struct reference {
    vb_allocator allocator;
    struct config config;
    struct checkpoint *checkpoint;
    struct matrix embed, norm, head; /* [V, D], [D], [V, D] */
    struct reference_layer *layers;            /* num_hidden_layers */
    struct reference_mtp_module *mtp;          /* num_nextn_predict_layers */
};

#endif
