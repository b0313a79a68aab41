#include "rope.h"

#include <assert.h>
#include <math.h>

#include "mistake.h"

double rope_mscale(double factor, double scale) { return factor <= 1.0 ? 1.0 : 0.1 * scale * kernel_log(factor) + 1.0; }

/* The dimension whose wave turns `rotations` times over the original context. */
static double correction_dim(double rotations, double dim, double theta, double context)
{
    return dim * kernel_log(context / (rotations * 6.283185307179586)) / (2.0 * kernel_log(theta));
}

static void blend_yarn(struct rope *rope, double theta, const struct rope_yarn *y)
{
    double dim = (double)rope->dim;
    double low = floor(correction_dim(y->beta_fast, dim, theta, y->original_max_position_embeddings));
    double high = ceil(correction_dim(y->beta_slow, dim, theta, y->original_max_position_embeddings));
    low = low < 0.0 ? 0.0 : low;
    high = high > dim - 1.0 ? dim - 1.0 : high;
    if (low == high)
        high += 0.001;
    for (size_t i = 0; i < rope->dim / 2; i++) {
        double ramp = ((double)i - low) / (high - low);
        ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp; /* 0: fast waves, as trained; 1: slow waves, stretched */
        ramp = MISTAKE(yarn_without_ramp) ? 1.0 : ramp;
        rope->frequency[i] = rope->frequency[i] / y->factor * ramp + rope->frequency[i] * (1.0 - ramp);
    }
    rope->attention_factor = rope_mscale(y->factor, y->mscale) / rope_mscale(y->factor, y->mscale_all_dim);
}

void rope_init(struct rope *rope, size_t dim, int interleave, double theta, const struct rope_yarn *yarn)
{
    assert(dim % 2 == 0 && dim <= ROPE_MAX_DIM);
    rope->dim = dim;
    rope->interleave = MISTAKE(rope_in_halves) ? 0 : interleave;
    rope->attention_factor = 1.0;
    for (size_t i = 0; i < dim / 2; i++)
        rope->frequency[i] = kernel_pow(theta, -(2.0 * (double)i / (double)dim));
    if (yarn)
        blend_yarn(rope, theta, yarn);
}

void op_rope_angles(float *cos_sin, const struct rope *rope, int64_t p)
{
    size_t half = rope->dim / 2;
    for (size_t i = 0; i < half; i++) {
        double angle = (double)p * rope->frequency[i];
        cos_sin[i] = (float)(kernel_cos(angle) * rope->attention_factor);
        cos_sin[half + i] = (float)(kernel_sin(angle) * rope->attention_factor);
    }
}

void op_rope(float *x, size_t heads, size_t stride, const float *cos_sin, const struct rope *rope)
{
    size_t half = rope->dim / 2, first = rope->interleave ? 2 : 1, second = rope->interleave ? 1 : half;
    for (size_t h = 0; h < heads; h++, x += stride)
        for (size_t i = 0; i < half; i++) {
            float c = cos_sin[i], s = cos_sin[half + i];
            float *a = x + first * i, *b = a + second, a0 = *a, b0 = *b;
            *a = a0 * c - b0 * s;
            *b = a0 * s + b0 * c;
        }
}
