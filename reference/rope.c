/* reference/rope.c -- RoPE and YaRN (arXiv 2309.00071): positions, angles and scales. */
#include "reference/layers.h"

#include <math.h>

/* Rotates pair number i of each vector, (x0, x1), at position p by the angle p f_i:
 *     y0 = x0 cos - x1 sin,   y1 = x1 cos + x0 sin
 * x is changed in place. */
void ref_rotate(struct reference_run *run, double *x, int S, int vectors, int width, int interleave)
{
    int half = run->c->qk_rope_head_dim / 2;
    for (int s = 0; s < S; s++)
        for (int h = 0; h < vectors; h++, x += width)
            for (int i = 0; i < half; i++) {
                double *x0 = x + (interleave ? 2 * i : i), *x1 = x + (interleave ? 2 * i + 1 : i + half);
                double cosine = run->cosine[(size_t)s * half + i], sine = run->sine[(size_t)s * half + i];
                double y0 = *x0 * cosine - *x1 * sine;
                *x1 = *x1 * cosine + *x0 * sine;
                *x0 = y0;
            }
}

void ref_rope(struct reference_run *run, double *x, int S, int vectors)
{
    ref_rotate(run, x, S, vectors, run->c->qk_rope_head_dim, run->c->rope_interleave);
}

/* Mistral 4 scales its queries by their position p, with L = original_max_position_embeddings:
 *     q = q (1 + llama_4_scaling_beta ln(1 + floor(p / L)))
 * Other models have beta 0. */
void ref_scale_queries(const struct reference_run *run, double *x, int S, size_t width)
{
    for (int s = 0; s < S; s++)
        for (size_t i = 0; i < width; i++)
            x[(size_t)s * width + i] *= run->query_scale[s];
}

/* -- angles -------------------------------------------------------------------------------------------------------- */

/* theta^(2i/R), so that pair i turns by the angle p / wave at position p */
static double wave(const struct config *c, int i) { return pow(c->rope_theta, 2.0 * i / c->qk_rope_head_dim); }

static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/* Returns the index i (not rounded) of the pair that makes `rotations` full turns over the original context L:
 *     theta^(-2i/R) L = 2 pi rotations */
static double yarn_correction_dim(const struct config *c, double rotations)
{
    double length = c->rope_original_max_position_embeddings;
    return c->qk_rope_head_dim * log(length / (rotations * 2 * M_PI)) / (2 * log(c->rope_theta));
}

/* ramp = (i - low) / (high - low), clamped to [0, 1]: 0 for pairs that turn fast, 1 for pairs that turn slowly */
static double yarn_ramp(const struct config *c, int i)
{
    double low = fmax(floor(yarn_correction_dim(c, c->rope_beta_fast)), 0);
    double high = fmin(ceil(yarn_correction_dim(c, c->rope_beta_slow)), c->qk_rope_head_dim - 1);
    return clamp((i - low) / (low == high ? 0.001 : high - low), 0, 1);
}

/* f_i = theta^(-2i/R). With YaRN, pairs that turn fast keep f_i, and pairs that turn slowly get f_i / factor:
 *     f_i / factor ramp + f_i (1 - ramp) */
static double rope_frequency(const struct reference_run *run, int i)
{
    const struct config *c = run->c;
    double f = 1 / wave(c, i), slow = 1 / (c->rope_factor * wave(c, i)), keep = 1 - yarn_ramp(c, i);
    return run->stretched ? slow * (1 - keep) + f * keep : f;
}

/* Returns YaRN's attention factor: m(mscale) = 0.1 mscale ln(factor) + 1, or 1 if factor <= 1. */
static double yarn_m(const struct config *c, double mscale)
{
    return c->rope_factor <= 1 ? 1 : 0.1 * mscale * log(c->rope_factor) + 1;
}

double ref_yarn_scale(const struct reference_run *run)
{
    const struct config *c = run->c;
    int always = ref_convention(run, YARN_SCALE) == 1, never = ref_convention(run, YARN_SCALE) == 2;
    double m = run->stretched && !never && (always || !c->rope_unscaled) ? yarn_m(c, c->rope_mscale_all_dim) : 1;
    return m * m;
}

/* -- angles in f32, as the official code and transformers compute them (convention rope-angle=f32) ----------------- */

static float rope_frequency_f32(const struct reference_run *run, int i)
{
    const struct config *c = run->c;
    float w = (float)pow(c->rope_theta, (float)(2.0 * i / c->qk_rope_head_dim)), keep = 1 - (float)yarn_ramp(c, i);
    return run->stretched ? 1 / (float)(c->rope_factor * w) * (1 - keep) + 1 / w * keep : 1 / w;
}

static void turn_f32(double *cosine, double *sine, double angle, double m)
{
    *cosine = (float)((float)cos((float)angle) * m);
    *sine = (float)((float)sin((float)angle) * m);
}

/* -- tables -------------------------------------------------------------------------------------------------------- */

static void turn(double *cosine, double *sine, double angle, double m)
{
    *cosine = cos(angle) * m;
    *sine = sin(angle) * m;
}

void ref_rope_tables(struct reference_run *run, int first, int S)
{
    const struct config *c = run->c;
    double m = run->stretched ? yarn_m(c, c->rope_mscale) / yarn_m(c, c->rope_mscale_all_dim) : 1;
    int half = c->qk_rope_head_dim / 2, f32 = ref_convention(run, ROPE_ANGLE);
    for (int i = 0; i < half; i++) {
        double f = f32 ? rope_frequency_f32(run, i) : rope_frequency(run, i);
        for (int s = 0; s < S; s++) {
            int position = first + (run->places ? run->places[s] : ref_index(run, s));
            size_t at = (size_t)s * (size_t)half + (size_t)i;
            (f32 ? turn_f32 : turn)(&run->cosine[at], &run->sine[at], position * f, m);
        }
    }
    for (int s = 0; s < S; s++)
        run->query_scale[s] =
            1 + c->query_beta * log(1 + floor((double)(first + s) / c->rope_original_max_position_embeddings));
}
