#include "ops/backward/adamw.h"

#include <math.h>

#define BLOCK 4096

struct squares {
    double *sums; /* one for each block */
    const float *g;
    size_t n;
};

static void blocks_of_squares(void *arg, size_t first, size_t count)
{
    const struct squares *p = arg;
    for (size_t b = first; b < first + count; b++) {
        size_t n = p->n - b * BLOCK < BLOCK ? p->n - b * BLOCK : BLOCK, whole = n / 16 * 16;
        const float *g = p->g + b * BLOCK;
        double a[16] = {0};
        for (size_t i = 0; i < whole; i += 16)
            for (size_t l = 0; l < 16; l++)
                a[l] = a[l] + (double)g[i + l] * (double)g[i + l];
        for (size_t l = 0; l < n - whole; l++)
            a[l] = a[l] + (double)g[whole + l] * (double)g[whole + l];
        for (size_t h = 8; h; h /= 2)
            for (size_t l = 0; l < h; l++)
                a[l] = a[l] + a[l + h];
        p->sums[b] = a[0];
    }
}

static size_t blocks_of(size_t n) { return (n + BLOCK - 1) / BLOCK; }

size_t op_squares_scratch(size_t n) { return op_scratch_bytes(2 * blocks_of(n)); }

void op_squares(struct op_ctx *cx, double *squares, const float *g, size_t n)
{
    size_t mark = op_mark(cx);
    struct squares p = {(double *)(void *)op_take(cx, 2 * blocks_of(n)), g, n};
    op_each_row(cx, blocks_of(n), BLOCK, blocks_of_squares, &p);
    for (size_t b = 0; b < blocks_of(n); b++)
        *squares = *squares + p.sums[b];
    op_give(cx, mark);
}

float op_clip(double squares, double max_norm)
{
    double clip = max_norm / (sqrt(squares) + 1e-6);
    return clip < 1.0 ? (float)clip : 1.0f;
}

struct adamw_step op_adamw_step(const struct adamw *a, int64_t t)
{
    double power1 = kernel_pow(a->beta1, (double)t), power2 = kernel_pow(a->beta2, (double)t);
    return (struct adamw_step){(float)a->beta1, (float)(1.0 - a->beta1), (float)a->beta2, (float)(1.0 - a->beta2),
                               (float)a->eps, (float)(1.0 - a->lr * a->weight_decay), (float)(a->lr / (1.0 - power1)),
                               (float)sqrt(1.0 - power2)};
}

struct adamw_pass {
    float *w, *m, *v;
    const float *g;
    struct adamw_step a;
    float clip;
    size_t n;
};

static void blocks_of_weights(void *arg, size_t first, size_t count)
{
    const struct adamw_pass *p = arg;
    const struct adamw_step a = p->a;
    size_t end = (first + count) * BLOCK < p->n ? (first + count) * BLOCK : p->n;
    for (size_t i = first * BLOCK; i < end; i++) {
        float g = p->g[i] * p->clip, m = fmaf(a.beta1, p->m[i], a.rest1 * g),
              v = fmaf(a.beta2, p->v[i], a.rest2 * g * g);
        p->w[i] = p->w[i] * a.decay - a.step * (m / (sqrtf(v) / a.root + a.eps));
        p->m[i] = m;
        p->v[i] = v;
    }
}

void op_adamw(const struct op_ctx *cx, float *w, float *m, float *v, const float *g, const struct adamw_step *a,
              float clip, size_t n)
{
    struct adamw_pass p = {w, m, v, g, *a, clip, n};
    op_each_row(cx, blocks_of(n), 16.0 * BLOCK, blocks_of_weights, &p);
}
