/* engine/train/train_eagle_pass.c -- the depths of an EAGLE head, forward and backward. engine/draft/eagle_net.c has
 * the same forward pass for drafting. */
#include "engine/train/train_eagle.h"

#include <stdio.h>
#include <string.h>

#include "numbers/numbers.h"
#include "ops/add.h"
#include "ops/backward/gqa.h"
#include "ops/backward/linear.h"
#include "ops/backward/mlp.h"
#include "ops/backward/rope.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rmsnorm.h"

static void clear(float *x, size_t n) { memset(x, 0, n * sizeof *x); }

static void norm(struct vb_trainer *t, float *y, size_t ldy, const float *x, const struct train_part *w, size_t S)
{
    size_t d = t->eagle->d;
    op_rmsnorm(&t->cx, y, ldy, x, d, train_vector(w), S, d, t->eagle->eps);
}

/* ---- rows ---- */

static void set_rows(struct vb_trainer *t, int k)
{
    struct train_eagle *e = t->eagle;
    struct eagle_depth *x = &e->depth[k];
    size_t ahead = (size_t)k + 1, s = 0;
    for (size_t q = 0; q < t->sequences; q++) {
        const struct training_sequence *text = t->batch[q];
        x->first[q] = s;
        for (size_t i = 0; i + ahead + 1 < text->count; i++, s++) {
            x->tokens[s] = text->tokens[i + ahead];
            x->labels[s] = train_is_label(text, i + ahead + 1) ? text->tokens[i + ahead + 1] : -1;
            op_rope_angles(x->cos_sin + s * e->D, &e->rope, (int64_t)(i + (size_t)k));
        }
    }
    x->first[t->sequences] = x->S = s;
}

/* ---- forward ---- */

/* e->fc_input from e->features */
static void norm_features(struct vb_trainer *t, size_t S)
{
    struct train_eagle *e = t->eagle;
    for (size_t i = 0; config_feature_norm(&e->norms, i); i++) {
        const struct train_part *w = &e->feature_norms[i];
        op_rmsnorm(&t->cx, e->fc_input + i * w->w.cols, t->width, e->features + i * w->w.cols, t->width,
                   train_vector(w), S, w->w.cols, e->eps);
    }
}

/* x->taken: the first rows of each sequence of the target, or of the depth before */
static void take(struct vb_trainer *t, int k)
{
    struct train_eagle *e = t->eagle;
    struct eagle_depth *x = &e->depth[k];
    int through_fc = !k && e->version == 3;
    float *to = through_fc ? e->features : x->taken;
    const float *from = !k ? t->hidden : e->norms.norm_output ? e->depth[k - 1].g : e->depth[k - 1].y;
    const size_t *first = k ? e->depth[k - 1].first : t->rows.first;
    size_t width = k ? e->d : t->width;
    for (size_t q = 0; q < t->sequences; q++)
        memcpy(to + x->first[q] * width, from + first[q] * width, train_rows_of(x->first, q) * width * sizeof *to);
    if (!through_fc)
        return;
    norm_features(t, x->S);
    op_linear(&t->cx, x->taken, e->fc_input, &e->fc.w, x->S);
}

/* x->concat and x->x; returns the input of attention */
static const float *begin(struct vb_trainer *t, struct eagle_depth *x)
{
    struct train_eagle *e = t->eagle;
    size_t S = x->S, d = e->d;
    op_embed(&t->cx, e->embedding, d, &e->embed, x->tokens, S);
    if (e->version == 3) {
        norm(t, x->concat, 2 * d, e->embedding, &e->input_norm, S);
        norm(t, x->concat + d, 2 * d, x->taken, &e->hidden_norm, S);
        for (size_t s = 0; s < S && e->norms.norm_before_residual; s++)
            memcpy(x->x + s * d, x->concat + s * 2 * d + d, d * sizeof(float));
        return x->concat;
    }
    for (size_t s = 0; s < S; s++) {
        memcpy(x->concat + s * 2 * d, e->embedding + s * d, d * sizeof(float));
        memcpy(x->concat + s * 2 * d + d, x->taken + s * d, d * sizeof(float));
    }
    op_linear(&t->cx, x->x, x->concat, &e->fc.w, S);
    for (size_t s = 0; s < S && e->fc_bias.w.data; s++)
        t->cx.k->axpy(x->x + s * d, 1.0f, train_vector(&e->fc_bias), d);
    return x->x;
}

struct turning {
    const struct train_eagle *e;
    struct eagle_depth *x;
};

static void turn_rows(void *arg, size_t first, size_t count)
{
    const struct turning *p = arg;
    const struct train_eagle *e = p->e;
    size_t GD = e->G * e->D;
    for (size_t s = first; s < first + count; s++) {
        const float *cos_sin = p->x->cos_sin + s * e->D;
        op_rope(p->x->q + s * e->H * e->D, e->H, e->D, cos_sin, &e->rope);
        op_rope(e->k_out + s * GD, e->G, e->D, cos_sin, &e->rope);
        memcpy(p->x->kv + s * 2 * GD, e->k_out + s * GD, GD * sizeof(float));
        memcpy(p->x->kv + s * 2 * GD + GD, e->v_out + s * GD, GD * sizeof(float));
    }
}

/* The slots that row i of sequence q attends to at depth k. Returns how many. */
static size_t slots_of(const struct vb_trainer *t, int32_t *slots, size_t q, size_t i, int k)
{
    const struct train_eagle *e = t->eagle;
    size_t n = 0;
    for (size_t j = 0; j <= i; j++)
        slots[n++] = (int32_t)(e->depth[0].first[q] + j);
    for (int m = 1; m <= k; m++)
        slots[n++] = (int32_t)((size_t)m * t->room + e->depth[m].first[q] + i);
    return n;
}

static void attend(struct vb_trainer *t, int k, size_t q)
{
    struct train_eagle *e = t->eagle;
    struct eagle_depth *x = &e->depth[k];
    size_t S = train_rows_of(x->first, q), HD = e->H * e->D, longest = t->longest + (size_t)t->o.depths;
    for (size_t i = 0, n; i < S; i += n) {
        size_t at = (x->first[q] + i) * HD;
        n = min_size(S - i, EAGLE_QUERIES);
        for (size_t j = 0; j < n; j++) {
            int32_t *slots = e->slots + j * longest;
            e->seen[j] = (struct timeline){e->kv, slots, slots_of(t, slots, q, i + j, k)};
        }
        op_gqa(&t->cx, x->attended + at, x->q + at, e->seen, &e->gqa, n);
    }
}

static void depth_forward(struct vb_trainer *t, int k)
{
    struct train_eagle *e = t->eagle;
    struct eagle_depth *x = &e->depth[k];
    size_t S = x->S, n = S * e->d;
    take(t, k);
    struct linear three[] = {{x->q, &e->q.w, 0}, {e->k_out, &e->k.w, 0}, {e->v_out, &e->v.w, 0}};
    op_linears(&t->cx, three, 3, begin(t, x), S);
    op_each_row(&t->cx, S, 2.0 * (double)((e->H + 2 * e->G) * e->D), turn_rows, &(struct turning){e, x});
    for (size_t q = 0; q < t->sequences; q++)
        attend(t, k, q);
    op_linear(&t->cx, e->delta, x->attended, &e->o.w, S);
    memcpy(x->middle, x->x, n * sizeof(float));
    op_add(&t->cx, x->middle, e->delta, n);
    norm(t, e->normed, e->d, x->middle, &e->post_norm, S);
    train_mlp_forward(t, e->delta, x->gate, x->up, e->product, e->normed, &e->mlp, S);
    memcpy(x->y, x->middle, n * sizeof(float));
    op_add(&t->cx, x->y, e->delta, n);
    if (e->version == 3)
        norm(t, x->g, e->d, x->y, &e->norm, S);
}

void train_eagle_forward(struct vb_trainer *t)
{
    for (int k = 0; k < t->o.depths; k++)
        set_rows(t, k);
    for (int k = 0; k < t->o.depths && t->eagle->depth[k].S; k++) /* a later depth has no more rows */
        depth_forward(t, k);
}

void train_eagle_where(const struct vb_trainer *t, char *where, size_t size)
{
    const struct train_eagle *e = t->eagle;
    if (!train_is_finite(e->version == 3 ? e->features : e->depth[0].taken, e->depth[0].S * t->width)) {
        snprintf(where, size, "the first numbers that are not finite are rows of the frozen model");
        return;
    }
    for (int k = 0; k < t->o.depths; k++)
        if (!train_is_finite(e->depth[k].g, e->depth[k].S * e->d)) {
            snprintf(where, size, "the first output that is not finite is that of depth %d of the EAGLE head", k);
            return;
        }
}

/* ---- losses ---- */

/* Sequence by sequence, because the target's rows are. */
void train_eagle_losses(struct vb_trainer *t, struct train_sums *sums, int backward)
{
    struct train_eagle *e = t->eagle;
    for (size_t q = 0; q < t->sequences; q++)
        for (int k = 0; k < t->o.depths; k++) {
            struct eagle_depth *x = &e->depth[k];
            size_t at = x->first[q] * e->d;
            struct train_predicted p = {.head = &e->lm_head, .h = x->g + at, .dh = backward ? x->dg + at : NULL,
                                        .labels = x->labels + x->first[q], .S = train_rows_of(x->first, q),
                                        .target = t->rows.first[q] + (size_t)k + 1, .sums = &sums->depth[k],
                                        .weight = sums->weight[k], .ids = e->ids, .tokens = e->tokens,
                                        .outside = &sums->outside[k]};
            train_predict(t, &p, train_is_soft(t));
        }
    for (int k = 0; k < t->o.depths; k++)
        train_features(t, k, e->depth[k].first, e->depth[k].labels, e->depth[k].y, NULL, &sums->features[k], 0);
}

/* ---- backward ---- */

static void back_norm(struct vb_trainer *t, float *dx, const float *dy, size_t ldy, const float *x,
                      const struct train_part *w, size_t S)
{
    train_back_norm(t, dx, dy, ldy, x, t->eagle->d, w, S, t->eagle->eps);
}

static void back_attend(struct vb_trainer *t, int k, size_t q)
{
    struct train_eagle *e = t->eagle;
    const struct eagle_depth *x = &e->depth[k], *zero = &e->depth[0];
    size_t HD = e->H * e->D, GD = e->G * e->D, at = x->first[q] * HD, from = zero->first[q];
    struct back_gqa_chain chain[VB_MAX_DRAFT];
    struct back_gqa a = {.heads = e->H, .groups = e->G, .dim = e->D, .row = 2 * GD, .scale = e->gqa.scale,
                         .q = x->q + at, .k = zero->kv + from * 2 * GD, .v = zero->kv + from * 2 * GD + GD,
                         .dy = e->dheads + at, .dq = e->dq + at, .dk = zero->dk + from * GD, .dv = zero->dv + from * GD,
                         .continued = 1, .depth = (size_t)k, .chain = chain};
    for (int m = 1; m <= k; m++) {
        const struct eagle_depth *y = &e->depth[m];
        const float *kv = y->kv + y->first[q] * 2 * GD;
        chain[m - 1] = (struct back_gqa_chain){kv, kv + GD, y->dk + y->first[q] * GD, y->dv + y->first[q] * GD};
    }
    if (train_rows_of(x->first, q))
        op_back_gqa(&t->cx, &a, train_rows_of(x->first, q));
}

static void turn_rows_back(void *arg, size_t first, size_t count)
{
    const struct turning *p = arg;
    const struct train_eagle *e = p->e;
    for (size_t s = first; s < first + count; s++) {
        op_back_rope(e->dq + s * e->H * e->D, e->H, e->D, p->x->cos_sin + s * e->D, &e->rope);
        op_back_rope(p->x->dk + s * e->G * e->D, e->G, e->D, p->x->cos_sin + s * e->D, &e->rope);
    }
}

/* e->dinput, the gradient of attention's input, from e->dy, that of its output */
static void back_attention(struct vb_trainer *t, int k)
{
    struct train_eagle *e = t->eagle;
    struct eagle_depth *x = &e->depth[k];
    size_t S = x->S;
    const float *input = e->version == 3 ? x->concat : x->x;
    clear(e->dheads, S * e->H * e->D);
    train_back_linear(t, e->dheads, e->dy, x->attended, &e->o, S);
    for (size_t q = 0; q < t->sequences; q++)
        back_attend(t, k, q);
    op_each_row(&t->cx, S, 2.0 * (double)((e->H + e->G) * e->D), turn_rows_back, &(struct turning){e, x});
    clear(e->dinput, S * e->q.w.cols);
    train_back_linear(t, e->dinput, e->dq, input, &e->q, S);
    train_back_linear(t, e->dinput, x->dk, input, &e->k, S);
    train_back_linear(t, e->dinput, x->dv, input, &e->v, S);
}

/* e->dtaken from e->dinput and e->dy; through says whether anybody reads it */
static void back_begin_1(struct vb_trainer *t, struct eagle_depth *x, int through)
{
    struct train_eagle *e = t->eagle;
    size_t S = x->S, d = e->d;
    op_add(&t->cx, e->dy, e->dinput, S * d);
    for (size_t s = 0; s < S && e->fc_bias.g; s++)
        t->cx.k->axpy(e->fc_bias.g, 1.0f, e->dy + s * d, d);
    op_back_linear_w(&t->cx, e->fc.g, e->dy, x->concat, S, d, 2 * d);
    if (!through)
        return;
    clear(e->dconcat, S * 2 * d);
    op_back_linear_x(&t->cx, e->dconcat, e->dy, &e->fc.w, S);
    for (size_t s = 0; s < S; s++)
        memcpy(e->dtaken + s * d, e->dconcat + s * 2 * d + d, d * sizeof(float));
}

/* The gradients of fc and of the norms before it, from e->dtaken of depth 0. The target's rows have none. */
static void back_fc(struct vb_trainer *t, size_t S)
{
    struct train_eagle *e = t->eagle;
    op_back_linear_w(&t->cx, e->fc.g, e->dtaken, e->fc_input, S, e->d, t->width);
    if (e->fc_input == e->features)
        return;
    clear(e->dfc_input, S * t->width);
    clear(e->dfeatures, S * t->width);
    op_back_linear_x(&t->cx, e->dfc_input, e->dtaken, &e->fc.w, S);
    for (size_t i = 0; config_feature_norm(&e->norms, i); i++) {
        size_t at = i * e->feature_norms[i].w.cols;
        train_back_norm(t, e->dfeatures + at, e->dfc_input + at, t->width, e->features + at, t->width,
                        &e->feature_norms[i], S, e->eps);
    }
}

static void back_begin_3(struct vb_trainer *t, int k)
{
    struct train_eagle *e = t->eagle;
    struct eagle_depth *x = &e->depth[k];
    size_t S = x->S, d = e->d;
    op_embed(&t->cx, e->embedding, d, &e->embed, x->tokens, S);
    clear(e->dnormed, S * d); /* the gradient of the embeddings, which are frozen */
    back_norm(t, e->dnormed, e->dinput, 2 * d, e->embedding, &e->input_norm, S);
    for (size_t s = 0; s < S && e->norms.norm_before_residual; s++)
        t->cx.k->axpy(e->dinput + s * 2 * d + d, 1.0f, e->dy + s * d, d);
    if (e->norms.norm_before_residual)
        clear(e->dtaken, S * d);
    else
        memcpy(e->dtaken, e->dy, S * d * sizeof(float));
    back_norm(t, e->dtaken, e->dinput + d, 2 * d, x->taken, &e->hidden_norm, S);
    if (!k)
        back_fc(t, S);
}

/* Sets e->dtaken. On entry, it is that of depth k + 1. */
static void depth_back(struct vb_trainer *t, int k, const struct train_sums *sums)
{
    struct train_eagle *e = t->eagle;
    struct eagle_depth *x = &e->depth[k], *next = &e->depth[k + 1];
    size_t S = x->S, d = e->d;
    struct mlp_weights weights = {.gate = &e->mlp.gate.w, .up = &e->mlp.up.w, .down = &e->mlp.down.w};
    double known = 0;
    clear(e->dy, S * d);
    float *dhanded = e->norms.norm_output ? x->dg : e->dy;
    for (size_t q = 0; q < t->sequences && k + 1 < t->o.depths && !t->loss.detached; q++)
        op_add(&t->cx, dhanded + x->first[q] * d, e->dtaken + next->first[q] * d, train_rows_of(next->first, q) * d);
    train_features(t, k, x->first, x->labels, x->y, e->dy, &known, sums->feature_weight[k]);
    if (e->version == 3)
        back_norm(t, e->dy, x->dg, d, x->y, &e->norm, S);
    else
        op_add(&t->cx, e->dy, x->dg, S * d);
    norm(t, e->normed, d, x->middle, &e->post_norm, S);
    clear(e->dnormed, S * d);
    op_back_mlp(&t->cx, e->dnormed, &e->mlp.g, NULL, e->dy, e->normed, x->gate, x->up, NULL, &weights, S);
    back_norm(t, e->dy, e->dnormed, d, x->middle, &e->post_norm, S);
    back_attention(t, k);
    if (e->version == 3)
        back_begin_3(t, k);
    else
        back_begin_1(t, x, k && !t->loss.detached);
}

void train_eagle_backward(struct vb_trainer *t, const struct train_sums *sums)
{
    struct train_eagle *e = t->eagle;
    for (int k = 0; k < t->o.depths; k++) {
        clear(e->depth[k].dk, e->depth[k].S * e->G * e->D);
        clear(e->depth[k].dv, e->depth[k].S * e->G * e->D);
    }
    for (int k = t->o.depths - 1; k >= 0; k--)
        if (e->depth[k].S)
            depth_back(t, k, sums);
}
