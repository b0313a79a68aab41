/* ops/rope.h -- rotary position embedding, with YaRN.
 *
 *     y[2i]   = x[2i] c_i - x[2i+1] s_i        c_i = cos(p f_i) * a,   s_i = sin(p f_i) * a
 *     y[2i+1] = x[2i] s_i + x[2i+1] c_i        each product rounded, no fma
 *
 *   p: position   f_i = theta^(-2i/r), under YaRN a blend of f_i and f_i / factor   a: YaRN's factor on cos and sin
 *
 * Angles, frequencies, cos and sin are double, by SLEEF; c_i and s_i are rounded to f32 once. With `interleave` 0 the
 * pairs are (i, i + r/2). (Su et al. 2021; Peng et al. 2023, YaRN; docs/SEMANTICS.md, "Attention (MLA)": ramp
 * between floor and ceil of the correction dims, ends clamped to [0, r-1], equal ends: high + 0.001.) */
#ifndef VB_ROPE_H
#define VB_ROPE_H

#include "ops/op.h"

#define ROPE_MAX_DIM 1024

struct rope {
    size_t dim;          /* r, even, at most ROPE_MAX_DIM */
    int interleave;
    int f32_angles;      /* angles, cosines and sines are rounded to f32 at each step, as the frequencies have been */
    double frequency[ROPE_MAX_DIM / 2];
    double attention_factor; /* a: m(mscale) / m(mscale_all_dim) under YaRN, else 1 */
};

struct rope_yarn {
    double factor, beta_fast, beta_slow, mscale, mscale_all_dim, original_max_position_embeddings;
};

/* yarn NULL: plain RoPE. */
void rope_init(struct rope *rope, size_t dim, int interleave, double theta, const struct rope_yarn *yarn);
/* The same as programs do it that hold frequencies and angles in f32: every step is rounded. */
void rope_init_f32(struct rope *rope, size_t dim, int interleave, double theta, const struct rope_yarn *yarn);

/* YaRN's m(scale) = 0.1 scale ln(factor) + 1, or 1 when factor <= 1. */
double rope_mscale(double factor, double scale);

/* cos_sin [r]: c_0..c_{r/2-1}, s_0..s_{r/2-1} of position p. */
void op_rope_angles(float *cos_sin, const struct rope *rope, int64_t p);

/* Rotates `heads` vectors of r floats, `stride` floats apart, in place. */
void op_rope(float *x, size_t heads, size_t stride, const float *cos_sin, const struct rope *rope);

#endif
