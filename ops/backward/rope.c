#include "ops/backward/rope.h"

static inline void rotate_back(float *x, size_t half, size_t step, size_t second, const float *cos_sin)
{
    for (size_t i = 0; i < half; i++) {
        float c = cos_sin[i], s = cos_sin[half + i];
        float *a = x + step * i, *b = a + second, dy0 = *a, dy1 = *b;
        *a = dy0 * c + dy1 * s;
        *b = dy1 * c - dy0 * s;
    }
}

void op_back_rope(float *x, size_t heads, size_t stride, const float *cos_sin, const struct rope *rope)
{
    for (size_t h = 0, half = rope->dim / 2; h < heads; h++, x += stride)
        if (rope->interleave)
            rotate_back(x, half, 2, 1, cos_sin);
        else
            rotate_back(x, half, 1, half, cos_sin);
}
