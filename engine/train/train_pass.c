/* engine/train/train_pass.c -- the target and the depths of a micro-batch, forward and backward (docs/SEMANTICS.md,
 * "MTP module k"). */
#include "engine/train/train_internal.h"

#include <string.h>

#include "numbers/numbers.h"
#include "ops/add.h"
#include "ops/backward/embed.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rmsnorm.h"

/* How far RoPE's position of row i of depth k is from i. */
static size_t shift_of(const struct vb_trainer *t, int k)
{
    int by_token = t->c->conventions.value[DRAFT_POSITION] && !t->o.heads;
    return k < 0 ? 0 : train_is_aligned(t) ? (size_t)(k + by_token) : by_token ? (size_t)(k + 1) : 0;
}

/* Row s of an aligned depth is row i of sequence q: it attends to the rows 0..i of depth 0, and to row i of the depths
 * 1..k. */
static void align(const struct vb_trainer *t, struct train_rows *rows, size_t s, size_t q, size_t i)
{
    rows->places[s].slot = (int32_t)(rows->depth * t->room + s);
    rows->seen[s].slots = t->shared.slots + t->depth[0].rows.first[q];
    for (size_t m = 1; m <= rows->depth; m++)
        rows->tail_slots[s * rows->depth + m - 1] = (int32_t)(m * t->room + t->depth[m].rows.first[q] + i);
}

void train_set_rows(struct vb_trainer *t, struct train_rows *rows, int k)
{
    size_t r = t->c->dims.r, ahead = (size_t)(k + 1), shift = shift_of(t, k), s = 0;
    for (size_t q = 0; q < t->sequences; q++) {
        const struct training_sequence *x = t->batch[q];
        rows->first[q] = s;
        for (size_t i = 0; i + ahead + 1 < x->count; i++, s++) {
            rows->tokens[s] = x->tokens[i + ahead];
            rows->labels[s] = train_is_label(x, i + ahead + 1) ? x->tokens[i + ahead + 1] : -1;
            memcpy(rows->cos_sin + s * r, t->angles + (i + shift) * r, r * sizeof *rows->cos_sin);
            rows->places[s] = (struct row_place){.rows = t->shared.cache, .slot = (int32_t)s,
                                                  .query_scale = config_query_scale(t->c, (int)(i + shift))};
            rows->seen[s] = (struct timeline){t->shared.cache, t->shared.slots + rows->first[q], i + 1};
            if (rows->tail_slots)
                align(t, rows, s, q, i);
        }
    }
    rows->first[t->sequences] = rows->S = s;
}

/* Depth k takes the first rows of each sequence of the depth before, or of the target: all but the last. */
struct taking {
    const struct train_rows *from, *to;
};

static struct taking taking_of(const struct vb_trainer *t, int k)
{
    return (struct taking){k ? &t->depth[k - 1].rows : &t->rows, &t->depth[k].rows};
}

/* ---- forward ---- */

const float *train_handed(const struct vb_trainer *t, int k)
{
    if (k < 0)
        return t->layers && t->c->conventions.value[MAIN_HIDDEN] ? t->last : t->hidden;
    return t->c->conventions.value[DRAFT_HIDDEN] ? t->depth[k].y : t->depth[k].g;
}

/* t->shared.embedding and t->shared.concat, the inputs of enorm and of eh_proj */
static void combine(struct vb_trainer *t, const struct train_depth *x, const struct train_module *w)
{
    size_t S = x->rows.S, d = t->c->dims.d;
    float eps = (float)t->c->rms_norm_eps, *embedding = t->shared.embedding, *concat = t->shared.concat;
    int swapped = t->c->conventions.value[CONCAT];
    op_embed(&t->cx, embedding, d, &w->embed.w, x->rows.tokens, S);
    op_rmsnorm(&t->cx, concat + (swapped ? d : 0), 2 * d, embedding, d, train_vector(&w->enorm), S, d, eps);
    op_rmsnorm(&t->cx, concat + (swapped ? 0 : d), 2 * d, x->taken, d, train_vector(&w->hnorm), S, d, eps);
}

static void depth_forward(struct vb_trainer *t, int k)
{
    struct train_depth *x = &t->depth[k];
    const struct train_module *w = &t->mtp[k % t->used];
    struct taking taking = taking_of(t, k);
    size_t d = t->c->dims.d;
    for (size_t q = 0; q < t->sequences; q++)
        memcpy(x->taken + taking.to->first[q] * d, train_handed(t, k - 1) + taking.from->first[q] * d,
               train_rows_of(taking.to->first, q) * d * sizeof *x->taken);
    combine(t, x, w);
    op_linear(&t->cx, x->kept.x, t->shared.concat, &w->eh_proj.w, x->rows.S);
    train_layer_forward(t, &w->layer, &x->rows, &x->kept, x->y);
    op_rmsnorm(&t->cx, x->g, d, x->y, d, train_vector(&w->norm), x->rows.S, d, (float)t->c->rms_norm_eps);
}

void train_forward(struct vb_trainer *t)
{
    size_t d = t->c->dims.d, layers = t->c->dims.layers;
    if (t->layers) {
        op_embed(&t->cx, t->kept[0].x, d, &t->embed.w, t->rows.tokens, t->rows.S);
        for (size_t l = 0; l < layers; l++)
            train_layer_forward(t, &t->layers[l], &t->rows, &t->kept[l], l + 1 < layers ? t->kept[l + 1].x : t->last);
        op_rmsnorm(&t->cx, t->hidden, d, t->last, d, train_vector(&t->norm), t->rows.S, d, (float)t->c->rms_norm_eps);
    }
    for (int k = 0; k < t->o.depths && t->depth[k].rows.S; k++) /* a later depth has no more rows */
        t->o.heads ? train_parallel_forward(t, k) : depth_forward(t, k);
}

/* ---- backward ---- */

/* Adds dtaken, the gradient of what depth k takes, to dx, that of the rows that it takes them from. */
static void give_back(struct vb_trainer *t, float *dx, int k)
{
    struct taking taking = taking_of(t, k);
    size_t d = t->c->dims.d;
    for (size_t q = 0; q < t->sequences; q++)
        op_add(&t->cx, dx + taking.from->first[q] * d, t->shared.dtaken + taking.to->first[q] * d,
               train_rows_of(taking.to->first, q) * d);
}

/* Sets dtaken. On entry, it is that of depth k + 1. */
static void depth_back(struct vb_trainer *t, int k, const struct train_sums *sums)
{
    struct train_depth *x = &t->depth[k];
    struct train_module *w = &t->mtp[k % t->used];
    struct train_shared *y = &t->shared;
    size_t S = x->rows.S, d = t->c->dims.d;
    double eps = t->c->rms_norm_eps;
    int swapped = t->c->conventions.value[CONCAT];
    float *dhanded = t->c->conventions.value[DRAFT_HIDDEN] ? y->dx : x->dg;
    double known = 0;
    memset(y->dx, 0, S * d * sizeof *y->dx);
    if (k + 1 < t->o.depths && !t->loss.detached)
        give_back(t, dhanded, k + 1);
    train_features(t, k, x->rows.first, x->rows.labels, train_handed(t, k), dhanded, &known, sums->feature_weight[k]);
    train_back_norm(t, y->dx, x->dg, d, x->y, d, &w->norm, S, eps);
    train_layer_count(&w->layer, &x->kept, t->c->dims.chosen, S);
    train_layer_back(t, &w->layer, &x->rows, &x->kept, y->dx);
    combine(t, x, w);
    memset(y->dconcat, 0, S * 2 * d * sizeof *y->dconcat);
    train_back_linear(t, y->dconcat, y->dx, y->concat, &w->eh_proj, S);
    memset(y->dtaken, 0, S * d * sizeof *y->dtaken);
    train_back_norm(t, y->dtaken, y->dconcat + (swapped ? 0 : d), 2 * d, x->taken, d, &w->hnorm, S, eps);
    memset(x->dembed, 0, S * d * sizeof *x->dembed);
    train_back_norm(t, x->dembed, y->dconcat + (swapped ? d : 0), 2 * d, y->embedding, d, &w->enorm, S, eps);
}

static void embed_back(struct vb_trainer *t, float *g, const struct train_rows *rows, const float *dx, size_t from,
                       size_t to)
{
    size_t first = rows->first[from], d = t->c->dims.d;
    if (g)
        op_back_embed(&t->cx, g, dx + first * d, rows->tokens + first, rows->first[to] - first, d);
}

/* As the output heads: an embedding with several uses takes their rows sequence by sequence. */
static void embeddings_back(struct vb_trainer *t)
{
    int shared = 0;
    float *main = t->tied ? t->tied : t->embed.g;
    for (int k = 0; k < t->used && !t->o.heads; k++)
        shared |= t->embed.g && !t->mtp[k].owns_embed;
    for (size_t q = 0, n = shared ? 1 : t->sequences; q < t->sequences; q += n) {
        embed_back(t, main, &t->rows, t->shared.dx, q, q + n);
        for (int k = 0; k < t->o.depths && !t->o.heads; k++) {
            const struct train_module *w = &t->mtp[k % t->used];
            embed_back(t, w->owns_embed ? w->embed.g : main, &t->depth[k].rows, t->depth[k].dembed, q, q + n);
        }
    }
}

void train_backward(struct vb_trainer *t, const struct train_sums *sums)
{
    size_t d = t->c->dims.d, S = t->rows.S;
    if (t->layers && t->o.heads)
        memset(t->dtrunk, 0, S * d * sizeof *t->dtrunk);
    for (int k = 0; k < t->o.depths && t->depth[k].rows.S && train_is_aligned(t); k++)
        train_layer_expand(t, &t->mtp[0].layer, &t->depth[k].rows, &t->depth[k].kept, &t->expanded[k]);
    for (int k = t->o.depths - 1; k >= 0; k--)
        if (t->depth[k].rows.S)
            t->o.heads ? train_parallel_back(t, k) : depth_back(t, k, sums);
    if (t->layers) {
        float *dx = t->shared.dx;
        size_t trunk = t->o.heads ? t->c->dims.layers - !t->heads.after_last : SIZE_MAX; /* dtrunk is of the output of
                                                                                            so many layers */
        memset(dx, 0, S * d * sizeof *dx);
        if (trunk == t->c->dims.layers)
            op_add(&t->cx, dx, t->dtrunk, S * d);
        if (t->o.depths && !t->o.heads && !t->loss.detached)
            give_back(t, t->c->conventions.value[MAIN_HIDDEN] ? dx : t->dhidden, 0);
        train_back_norm(t, dx, t->dhidden, d, t->last, d, &t->norm, S, t->c->rms_norm_eps);
        for (size_t l = t->c->dims.layers; l-- > 0;) {
            train_layer_count(&t->layers[l], &t->kept[l], t->c->dims.chosen, S);
            train_layer_back(t, &t->layers[l], &t->rows, &t->kept[l], dx);
            if (l == trunk) /* dx is now the gradient of the layer's input */
                op_add(&t->cx, dx, t->dtrunk, S * d);
        }
    }
    embeddings_back(t);
}
