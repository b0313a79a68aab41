/* ops/rope.h -- rotary position embedding, with YaRN.
 *
 *     y[2i]   = x[2i] c_i - x[2i+1] s_i        c_i = cos(p f_i) * a,   s_i = sin(p f_i) * a
 *     y[2i+1] = x[2i] s_i + x[2i+1] c_i        f_i = theta^(-2i/r)
 *
 * p is the position, and r is the length of the rotated vector. Each product is rounded; there is no fma. Without YaRN,
 * a = 1. With YaRN, f_i is replaced by a blend of f_i and f_i / factor, and `a` is attention_factor. Frequencies,
 * angles, cos and sin are computed in double, with SLEEF. c_i and s_i are rounded to f32 once. If `interleave` is 0,
 * the pairs are (i, i + r/2) instead of (2i, 2i+1).
 *
 * The sources are Su et al. 2021 and, for YaRN, Peng et al. 2023. docs/SEMANTICS.md, "Attention (MLA)", has YaRN's
 * formulas, and defines the function dim. YaRN's blend is a ramp from floor(dim(beta_fast)) to ceil(dim(beta_slow)),
 * clamped to [0, r-1]. If both ends of the ramp are equal, its upper end is raised by 0.001. */
#ifndef VB_ROPE_H
#define VB_ROPE_H

#include "ops/op.h"

#define ROPE_MAX_DIM 1024

struct rope {
    size_t dim;          /* the length r: even, at most ROPE_MAX_DIM */
    int interleave;
    int f32_angles;      /* set by rope_init_f32; nonzero: angles, cosines and sines are rounded to f32 */
    double frequency[ROPE_MAX_DIM / 2];
    double attention_factor; /* the factor `a` above. With YaRN: m(mscale) / m(mscale_all_dim); without: 1 */
};

struct rope_yarn {
    double factor, beta_fast, beta_slow, mscale, mscale_all_dim, original_max_position_embeddings;
};

/* Fills *rope. If yarn is NULL, *rope describes RoPE without YaRN. */
void rope_init(struct rope *rope, size_t dim, int interleave, double theta, const struct rope_yarn *yarn);
/* Like rope_init, but every step is rounded to f32. Other programs compute frequencies and angles in f32 (convention
 * rope-angle). */
void rope_init_f32(struct rope *rope, size_t dim, int interleave, double theta, const struct rope_yarn *yarn);

/* Returns YaRN's m(scale) = 0.1 scale ln(factor) + 1, or 1 if factor <= 1. */
double rope_mscale(double factor, double scale);

/* Fills cos_sin [r] with c_0..c_{r/2-1} and s_0..s_{r/2-1} for position p. */
void op_rope_angles(float *cos_sin, const struct rope *rope, int64_t p);

/* Rotates `heads` vectors of r floats, `stride` floats apart, in place. */
void op_rope(float *x, size_t heads, size_t stride, const float *cos_sin, const struct rope *rope);

#endif
