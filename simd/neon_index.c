/* simd/neon_index.c -- kernel `index_scores`. */
#include "simd/neon.h"

typedef float32x4_t vec;
#define LANES 4
#define VECTORS 4
#define HEADS 4
#define vec_zero() vdupq_n_f32(0.0f)
#define vec_load(p) vld1q_f32(p)
#define vec_store(p, x) vst1q_f32(p, x)
#define vec_all(x) vdupq_n_f32(x)
#define vec_add(a, b) vaddq_f32(a, b)
#define vec_fma(a, b, c) vfmaq_f32(c, a, b)
#define vec_relu(x) vbslq_f32(vcgtq_f32(vdupq_n_f32(0.0f), x), vdupq_n_f32(0.0f), x)
#define vec_term(k, q, a) vec_fma(k, q, a)
#include "simd/index_tile.h"

/* Transposes 4 x 4 numbers. Rows of `in` are ld numbers apart, and rows of `out` KEYS numbers. */
static void transpose_4(float *out, const float *in, size_t ld)
{
    float32x4x2_t ab = vtrnq_f32(vld1q_f32(in), vld1q_f32(in + ld)),
                  cd = vtrnq_f32(vld1q_f32(in + 2 * ld), vld1q_f32(in + 3 * ld));
    for (size_t m = 0; m < 2; m++) {
        vst1q_f32(out + m * KEYS, vcombine_f32(vget_low_f32(ab.val[m]), vget_low_f32(cd.val[m])));
        vst1q_f32(out + (2 + m) * KEYS, vcombine_f32(vget_high_f32(ab.val[m]), vget_high_f32(cd.val[m])));
    }
}

static void transpose(float *out, const float *rows, size_t terms)
{
    for (size_t j = 0; j < KEYS; j += LANES)
        for (size_t i = 0; i < terms; i += LANES)
            transpose_4(out + i * KEYS + j, rows + j * terms + i, terms);
}

void neon_index_scores(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                       void *scratch)
{
    static const struct index_loops loops = {.keys = KEYS, .transpose = transpose, .sums = sums_of_tile};
    tiled_index_scores(&loops_neon, &loops, score, keys, q, w, H, scratch);
}
