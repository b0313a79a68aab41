/* engine/train/train_heads.c -- output heads and cross entropies.
 *
 * A head that the target and several depths use takes their rows sequence by sequence: those of the target, then those of depth 0, and so
 * on. So the order of the sum does not depend on how the step is cut into micro-batches. */
#include "engine/train/train_internal.h"

#include <string.h>

#include "engine/base/numbers.h"
#include "ops/backward/cross_entropy.h"
#include "ops/backward/linear.h"
#include "ops/linear.h"
#include "ops/weights.h"
#include "simd/decode.h"

/* dh [S, d] += dz [S, V] W, as op_back_linear_x computes it. The rows of a quantised W are decoded, some at a time: the sums over them
 * are continued. */
static void back_frozen(struct trainer *t, float *dh, const float *dz, const struct weight_view *w, size_t S)
{
    float *decoded = t->shared.decoded, *some = t->shared.some;
    for (size_t v = 0, n; v < w->rows; v += n) {
        n = min_size(w->rows - v, DECODED_ROWS);
        for (size_t i = 0; i < n; i++)
            decode_weights(decoded + i * w->cols, w, v + i, 0, w->cols);
        for (size_t s = 0; s < S; s++)
            memcpy(some + s * n, dz + s * w->rows + v, n * sizeof *some);
        op_back_linear_x(&t->cx, dh, some, &(struct weight_view){.type = WEIGHT_F32, .data = decoded, .rows = n, .cols = w->cols, .stride = w->cols}, S);
    }
}

static void predict(struct trainer *t, const struct train_part *head, const float *h, float *dh, const int32_t *labels, size_t S, double *loss, float weight)
{
    size_t d = t->c->dims.d;
    float *z = t->shared.z;
    for (size_t s = 0, n; s < S; s += n) {
        n = min_size(S - s, t->shared.head_rows);
        op_linear(&t->cx, z, h + s * d, &head->w, n);
        op_cross_entropy(&t->cx, loss, z, z, labels + s, weight, n, t->c->dims.V);
        if (!dh)
            continue;
        memset(dh + s * d, 0, n * d * sizeof *dh);
        if (weight_is_quantised(head->w.type))
            back_frozen(t, dh + s * d, z, &head->w, n);
        else
            op_back_linear_x(&t->cx, dh + s * d, z, &head->w, n);
        if (head->g)
            op_back_linear_w(&t->cx, head->g, z, h + s * d, n, t->c->dims.V, d);
    }
}

/* The rows of the sequences [from, to) of the target (k = -1), or of depth k. */
static void predict_sequences(struct trainer *t, int k, size_t from, size_t to, struct train_sums *sums, int backward)
{
    struct train_depth *x = k < 0 ? NULL : &t->depth[k];
    const struct train_rows *rows = x ? &x->rows : &t->rows;
    size_t first = rows->first[from], S = rows->first[to] - first, at = first * t->c->dims.d;
    float *dh = x ? x->dg : t->dhidden;
    predict(t, x ? &t->mtp[k % t->used].head : &t->head, (x ? x->g : t->hidden) + at, backward ? dh + at : NULL, rows->labels + first, S,
            &sums->loss[k + 1], sums->weight[k + 1]);
}

void train_heads(struct trainer *t, struct train_sums *sums, int backward)
{
    int shared = 0;
    for (int k = 0; k < t->used; k++)
        shared |= t->head.g && !t->mtp[k].owns_head;
    for (size_t q = 0, n = shared ? 1 : t->sequences; q < t->sequences; q += n)
        for (int k = t->layers ? -1 : 0; k < t->o.depths; k++)
            predict_sequences(t, k, q, q + n, sums, backward);
}
