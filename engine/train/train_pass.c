/* engine/train/train_pass.c -- the target and the depths of a micro-batch, forward and backward (docs/SEMANTICS.md,
 * "MTP module k"). */
#include "engine/train/train_internal.h"

#include <string.h>

#include "engine/pass/forward.h"
#include "engine/pass/layer.h"
#include "engine/pass/runner.h"
#include "numbers/numbers.h"
#include "ops/add.h"
#include "ops/backward/embed.h"

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
    int32_t *slots = rows->tail_slots + s * rows->depth;
    rows->list[s].slots = t->shared.slots + t->depth[0].rows.first[q];
    rows->list[s].tail = rows->depth;
    rows->list[s].tail_slots = slots;
    for (size_t m = 1; m <= rows->depth; m++)
        slots[m - 1] = (int32_t)(m * t->room + t->depth[m].rows.first[q] + i);
}

void train_set_rows(struct vb_trainer *t, struct train_rows *rows, int k)
{
    size_t ahead = (size_t)(k + 1), shift = shift_of(t, k), s = 0;
    const int32_t *slots = t->shared.slots + (k < 0 ? 0 : (size_t)k * t->room);
    for (size_t q = 0; q < t->sequences; q++) {
        const struct training_sequence *x = t->batch[q];
        rows->first[q] = s;
        for (size_t i = 0; i + ahead + 1 < x->count; i++, s++) {
            rows->tokens[s] = x->tokens[i + ahead];
            rows->labels[s] = train_is_label(x, i + ahead + 1) ? x->tokens[i + ahead + 1] : -1;
            rows->list[s] = (struct row){.cache = k < 0 ? &t->cache : &t->depth_cache, .token = rows->tokens[s],
                                         .slot = slots[s], .index = (int32_t)i, .position = (int32_t)(i + shift),
                                         .expanded = 1, .slots = slots + rows->first[q]};
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
    return (struct taking){k && !t->o.heads ? &t->depth[k - 1].rows : &t->rows, &t->depth[k].rows};
}

/* ---- forward ---- */

const float *train_handed(const struct vb_trainer *t, int k)
{
    if (k < 0)
        return t->layers && t->c->conventions.value[MAIN_HIDDEN] ? t->last : t->hidden;
    return t->c->conventions.value[DRAFT_HIDDEN] ? t->depth[k].y : t->depth[k].g;
}

static struct pass *pass_of(struct vb_trainer *t, const struct vb_model *m, const struct keep *keep, size_t keeps)
{
    t->pass.model = m;
    t->pass.keep = keep;
    t->pass.keeps = keeps;
    return &t->pass;
}

static const struct mtp_module *module_of(const struct vb_trainer *t, int k)
{
    return &train_drafts(t)->mtp[k % t->used];
}

static void depth_forward(struct vb_trainer *t, int k)
{
    struct train_depth *x = &t->depth[k];
    struct taking taking = taking_of(t, k);
    size_t d = t->c->dims.d, stride = d;
    const float *from = t->o.heads ? train_trunk(t, &stride) : train_handed(t, k - 1);
    for (size_t q = 0; q < t->sequences; q++)
        for (size_t i = 0; i < train_rows_of(taking.to->first, q); i++)
            memcpy(x->taken + (taking.to->first[q] + i) * d, from + (taking.from->first[q] + i) * stride,
                   d * sizeof *from);
    forward_mtp(pass_of(t, train_drafts(t), x->keep, KEPT_VALUES + 1), module_of(t, k), k, x->rows.list, x->taken, x->g,
                NULL, x->rows.S);
}

void train_forward(struct vb_trainer *t)
{
    if (t->layers)
        forward_target(pass_of(t, &t->trained, t->keep, KEPT_VALUES * t->c->dims.layers + 2), t->rows.list, t->rows.S);
    for (int k = 0; k < t->o.depths && t->depth[k].rows.S; k++) /* a later depth has no more rows */
        depth_forward(t, k);
    train_threads(t); /* the passes may have chosen fewer */
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

/* Computes the input of eh_proj again, and returns it. The embeddings are then in t->pass.w.x. */
static const float *input_again(struct vb_trainer *t, int k)
{
    struct pass *p = pass_of(t, &t->trained, NULL, 0);
    runner_begin(p, t->depth[k].rows.list, t->depth[k].rows.S, module_of(t, k), k);
    p->taken = t->depth[k].taken;
    module_input(p);
    return p->w.concat;
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
    train_layer_back(t, &w->layer, &x->rows, &x->kept, y->dx);
    const float *concat = input_again(t, k), *embedding = t->pass.w.x;
    memset(y->dconcat, 0, S * 2 * d * sizeof *y->dconcat);
    train_back_linear(t, y->dconcat, y->dx, concat, &w->eh_proj, S);
    memset(y->dtaken, 0, S * d * sizeof *y->dtaken);
    train_back_norm(t, y->dtaken, y->dconcat + (swapped ? 0 : d), 2 * d, x->taken, d, &w->hnorm, S, eps);
    memset(x->dembed, 0, S * d * sizeof *x->dembed);
    train_back_norm(t, x->dembed, y->dconcat + (swapped ? d : 0), 2 * d, embedding, d, &w->enorm, S, eps);
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
            train_layer_back(t, &t->layers[l], &t->rows, &t->kept[l], dx);
            if (l == trunk) /* dx is now the gradient of the layer's input */
                op_add(&t->cx, dx, t->dtrunk, S * d);
        }
    }
    embeddings_back(t);
}
