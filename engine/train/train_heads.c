/* engine/train/train_heads.c -- output heads and the losses of their rows.
 *
 * A head that the target and several depths use takes their rows sequence by sequence: those of the target, then those
 * of depth 0, and so on. So the order of the sum does not depend on how the step is cut into micro-batches. */
#include "engine/train/train_internal.h"

#include <math.h>
#include <string.h>

#include "numbers/numbers.h"
#include "ops/backward/cross_entropy.h"
#include "ops/backward/linear.h"
#include "ops/backward/smooth_l1.h"
#include "ops/linear.h"
#include "ops/weights.h"
#include "simd/decode.h"

struct decoding {
    const struct weight_view *w;
    size_t first;
    float *out; /* [rows, cols] */
};

static void decode_rows(void *arg, size_t first, size_t count)
{
    const struct decoding *p = arg;
    for (size_t i = first; i < first + count; i++)
        decode_weights(p->out + i * p->w->cols, p->w, p->first + i, 0, p->w->cols);
}

/* dh [S, d] += dz [S, V] W, as op_back_linear_x computes it. The rows of a quantized W are decoded, some at a time: the
 * sums over them are continued. */
static void back_frozen(struct vb_trainer *t, float *dh, const float *dz, const struct weight_view *w, size_t S)
{
    float *decoded = t->shared.decoded, *some = t->shared.some;
    for (size_t v = 0, n; v < w->rows; v += n) {
        n = min_size(w->rows - v, DECODED_ROWS);
        op_each_row(&t->cx, n, 4.0 * (double)w->cols, decode_rows, &(struct decoding){w, v, decoded});
        for (size_t s = 0; s < S; s++)
            memcpy(some + s * n, dz + s * w->rows + v, n * sizeof *some);
        op_back_linear_x(&t->cx, dh, some,
                         &(struct weight_view){.type = WEIGHT_F32, .data = decoded, .rows = n, .cols = w->cols,
                                               .stride = w->cols},
                         S);
    }
}

/* t->shared.target_z = the logits of n rows of the target, from row `first` on */
static void target_logits(struct vb_trainer *t, size_t first, size_t n)
{
    op_linear(&t->cx, t->shared.target_z, t->final + first * t->c->dims.d, &t->head.w, n);
}

/* The token with the largest logit, and of equal ones that with the lowest id. If a logit is NaN: the last one that
 * is. */
static size_t best_of(const float *z, size_t V)
{
    size_t best = 0;
    for (size_t v = 1; v < V; v++)
        if (z[v] > z[best] || isnan(z[v]))
            best = v;
    return best;
}

/* The head's id of the best of the target's logits z, or -1. If this is NaN, any id, so that the row has a loss, which
 * is NaN, too. */
static int32_t id_of_best(const struct train_predicted *x, const float *z, size_t V)
{
    size_t best = best_of(z, V);
    return isnan(z[best]) ? 0 : x->ids[best];
}

/* From tokens to ids of a draft vocabulary. If rows learn from the target, the label is the target's best token instead
 * of the text's, and the target's logits z [n, V] become those of the vocabulary alone; else z is NULL. A row whose
 * label is outside of the vocabulary has no loss. */
static void narrow(const struct vb_trainer *t, const struct train_predicted *x, float *z, int32_t *labels, size_t n)
{
    size_t V = t->c->dims.V, count = x->head->w.rows;
    for (size_t s = 0; s < n; s++) {
        const float *row = z ? z + s * V : NULL;
        if (labels[s] >= 0) {
            labels[s] = row ? id_of_best(x, row, V) : x->ids[labels[s]];
            *x->outside += labels[s] < 0;
        }
        for (size_t i = 0; row && i < count; i++) /* to places that were read before: tokens are ascending */
            z[s * count + i] = row[x->tokens[i]];
    }
}

/* The losses of n rows from row s on, whose logits are z; z becomes their gradient. soft: they learn from the target's
 * logits */
static void row_losses(struct vb_trainer *t, const struct train_predicted *x, float *z, size_t s, size_t n, int soft)
{
    const struct loss_terms *l = &t->loss.terms;
    struct soft_terms terms = {(float)l->data, (float)l->soft, (float)l->top, (size_t)l->top_tokens};
    size_t V = x->head->w.rows;
    if (soft)
        target_logits(t, x->target + s, n);
    if (x->ids)
        narrow(t, x, soft ? t->shared.target_z : NULL, x->labels + s, n);
    if (soft) {
        op_soft_cross_entropy(&t->cx, x->sums, z, z, t->shared.target_z, x->labels + s, &terms, x->weight, n, V);
    } else {
        op_cross_entropy(&t->cx, &x->sums->data, z, z, x->labels + s, x->weight, n, V);
    }
}

void train_predict(struct vb_trainer *t, const struct train_predicted *x, int soft)
{
    size_t d = x->head->w.cols, S = x->S;
    float *z = t->shared.z;
    for (size_t s = 0, n; s < S; s += n) {
        n = min_size(S - s, t->shared.head_rows);
        op_linear(&t->cx, z, x->h + s * d, &x->head->w, n);
        row_losses(t, x, z, s, n, soft);
        if (!x->dh)
            continue;
        memset(x->dh + s * d, 0, n * d * sizeof *x->dh);
        if (weight_is_quantized(x->head->w.type))
            back_frozen(t, x->dh + s * d, z, &x->head->w, n);
        else
            op_back_linear_x(&t->cx, x->dh + s * d, z, &x->head->w, n);
        if (x->head->g)
            op_back_linear_w(&t->cx, x->head->g, z, x->h + s * d, n, x->head->w.rows, d);
    }
}

/* The rows of the sequences [from, to) of the target (k = -1), or of depth k. */
static void predict_sequences(struct vb_trainer *t, int k, size_t from, size_t to, struct train_sums *sums,
                              int backward)
{
    struct train_depth *x = k < 0 ? NULL : &t->depth[k];
    const struct train_rows *rows = x ? &x->rows : &t->rows;
    struct soft_sums main = {.data = sums->main};
    size_t first = rows->first[from], at = first * t->c->dims.d;
    float *dh = x ? x->dg : t->dhidden;
    struct train_predicted p = {.head = x ? &t->mtp[k % t->used].head : &t->head, .h = (x ? x->g : t->hidden) + at,
                                .dh = backward ? dh + at : NULL, .labels = rows->labels + first,
                                .S = rows->first[to] - first, .target = t->rows.first[from] + (size_t)(k + 1),
                                .sums = x ? &sums->depth[k] : &main, .weight = x ? sums->weight[k] : sums->main_weight};
    train_predict(t, &p, x && train_is_soft(t));
    sums->main = main.data;
}

void train_features(struct vb_trainer *t, int k, const size_t *first, const int32_t *labels, const float *handed,
                    float *dhanded, double *sum, float weight)
{
    size_t d = t->c->dims.d;
    for (size_t q = 0; q < t->sequences && t->loss.terms.features != 0; q++) {
        size_t at = first[q], S = train_rows_of(first, q);
        if (S)
            op_smooth_l1(&t->cx, sum, dhanded ? dhanded + at * d : NULL, handed + at * d,
                         train_handed(t, -1) + (t->rows.first[q] + (size_t)(k + 1)) * d, labels + at, weight, S, d);
    }
}

/* Rows that learn from the target are computed sequence by sequence, because the target's rows for them are. */
void train_heads(struct vb_trainer *t, struct train_sums *sums, int backward)
{
    int alone = train_is_soft(t);
    for (int k = 0; k < t->used; k++)
        alone |= t->head.g && !t->mtp[k].owns_head;
    for (size_t q = 0, n = alone ? 1 : t->sequences; q < t->sequences; q += n)
        for (int k = t->layers ? -1 : 0; k < t->o.depths; k++)
            predict_sequences(t, k, q, q + n, sums, backward);
    for (int k = 0; k < t->o.depths; k++)
        train_features(t, k, t->depth[k].rows.first, t->depth[k].rows.labels, train_handed(t, k), NULL,
                       &sums->features[k], 0);
}
