#include "ops/rope.h"

#include <assert.h>
#include <math.h>

double rope_mscale(double factor, double scale) { return factor <= 1.0 ? 1.0 : 0.1 * scale * kernel_log(factor) + 1.0; }

/* Returns the pair index i (not rounded) at which a pair makes `rotations` full turns over the original context. */
static double correction_dim(double rotations, double dim, double theta, double context)
{
    return dim * kernel_log(context / (rotations * 6.283185307179586)) / (2.0 * kernel_log(theta));
}

/* Sets ramp[i] for each pair: 0 for fast pairs, which keep their frequency; 1 for slow pairs, whose frequency is
 * divided by `factor`. */
static void yarn_ramp(double *ramp, size_t pairs, double dim, double theta, const struct rope_yarn *y)
{
    double low = floor(correction_dim(y->beta_fast, dim, theta, y->original_max_position_embeddings));
    double high = ceil(correction_dim(y->beta_slow, dim, theta, y->original_max_position_embeddings));
    low = low < 0.0 ? 0.0 : low;
    high = high > dim - 1.0 ? dim - 1.0 : high;
    if (low == high)
        high += 0.001;
    for (size_t i = 0; i < pairs; i++) {
        double x = ((double)i - low) / (high - low);
        ramp[i] = x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x;
    }
}

static double yarn_attention_factor(const struct rope_yarn *y)
{
    return rope_mscale(y->factor, y->mscale) / rope_mscale(y->factor, y->mscale_all_dim);
}

void rope_init(struct rope *rope, size_t dim, int interleave, double theta, const struct rope_yarn *yarn)
{
    assert(dim % 2 == 0 && dim <= ROPE_MAX_DIM);
    rope->dim = dim;
    rope->interleave = interleave;
    rope->f32_angles = 0;
    rope->attention_factor = yarn ? yarn_attention_factor(yarn) : 1.0;
    for (size_t i = 0; i < dim / 2; i++)
        rope->frequency[i] = kernel_pow(theta, -(2.0 * (double)i / (double)dim));
    if (!yarn)
        return;
    double ramp[ROPE_MAX_DIM / 2];
    yarn_ramp(ramp, dim / 2, (double)dim, theta, yarn);
    for (size_t i = 0; i < dim / 2; i++)
        rope->frequency[i] = rope->frequency[i] / yarn->factor * ramp[i] + rope->frequency[i] * (1.0 - ramp[i]);
}

void rope_init_f32(struct rope *rope, size_t dim, int interleave, double theta, const struct rope_yarn *yarn)
{
    double ramp[ROPE_MAX_DIM / 2];
    rope_init(rope, dim, interleave, theta, yarn);
    rope->f32_angles = 1;
    if (yarn)
        yarn_ramp(ramp, dim / 2, (double)dim, theta, yarn);
    for (size_t i = 0; i < dim / 2; i++) {
        float wave = (float)kernel_pow(theta, (float)(2.0 * (double)i / (double)dim)), frequency = 1.0f / wave;
        if (yarn) {
            float keep = 1.0f - (float)ramp[i], slow = 1.0f / (float)(yarn->factor * wave);
            float stretched = slow * (1.0f - keep), kept = frequency * keep;
            frequency = stretched + kept;
        }
        rope->frequency[i] = frequency;
    }
}

void op_rope_angles(float *cos_sin, const struct rope *rope, int64_t p)
{
    size_t half = rope->dim / 2;
    for (size_t i = 0; i < half; i++) {
        double angle = (double)p * rope->frequency[i];
        if (rope->f32_angles)
            angle = (float)angle;
        double c = kernel_cos(angle), s = kernel_sin(angle);
        if (rope->f32_angles)
            c = (float)c, s = (float)s;
        cos_sin[i] = (float)(c * rope->attention_factor);
        cos_sin[half + i] = (float)(s * rope->attention_factor);
    }
}

/* Pair i consists of numbers step * i and step * i + second. The callers pass constants, so that the compiler can
 * vectorise the loop. */
static inline void rotate(float *x, size_t half, size_t step, size_t second, const float *cos_sin)
{
    for (size_t i = 0; i < half; i++) {
        float c = cos_sin[i], s = cos_sin[half + i];
        float *a = x + step * i, *b = a + second, a0 = *a, b0 = *b;
        *a = a0 * c - b0 * s;
        *b = a0 * s + b0 * c;
    }
}

void op_rope(float *x, size_t heads, size_t stride, const float *cos_sin, const struct rope *rope)
{
    for (size_t h = 0, half = rope->dim / 2; h < heads; h++, x += stride)
        if (rope->interleave)
            rotate(x, half, 2, 1, cos_sin);
        else
            rotate(x, half, 1, half, cos_sin);
}
