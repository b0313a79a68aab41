/* engine/train/train_step.c -- a step: its sequences, cut into micro-batches, and its losses. */
#include "engine/train/train_eagle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "numbers/numbers.h"
#include "ops/add.h"
#include "simd/fpenv.h"

/* Fewer tokens than these have no row: the target's loss wants two tokens, that of depth 0 three. */
static size_t fewest(const struct vb_trainer *t) { return t->layers ? 2 : 3; }

static int check_sequences(const struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
                           vb_error *err)
{
    size_t width;
    int final;
    trainer_takes(t, &width, &final);
    for (size_t q = 0; q < count; q++) {
        if (sequences[q].count > t->c->dims.positions)
            return vb_fail(err, VB_BAD_ARGUMENT,
                           "sequence %zu has %zu tokens, wanted at most max_position_embeddings, which is %zu", q,
                           sequences[q].count, t->c->dims.positions);
        if (sequences[q].hidden && t->layers)
            return vb_fail(err, VB_BAD_ARGUMENT,
                           "sequence %zu has hidden states, and the whole model is trained, which computes its own", q);
        if (sequences[q].hidden && final && !sequences[q].final)
            return vb_fail(err, VB_BAD_ARGUMENT,
                           "sequence %zu has rows that the part reads, but none after model.norm, which it learns from",
                           q);
        for (size_t i = 0; i < sequences[q].count; i++)
            if (sequences[q].tokens[i] < 0 || (size_t)sequences[q].tokens[i] >= t->c->dims.V)
                return vb_fail(err, VB_BAD_ARGUMENT, "token %zu of sequence %zu is %d, the vocabulary has %zu", i, q,
                               sequences[q].tokens[i], t->c->dims.V);
    }
    return VB_OK;
}

static void count_rows(const struct vb_trainer *t, struct training_losses *losses,
                       const struct training_sequence *sequences, size_t count)
{
    for (size_t q = 0; q < count; q++)
        for (size_t i = 1; i < sequences[q].count; i++) {
            int is_label = train_is_label(&sequences[q], i);
            losses->rows += t->layers && is_label;
            for (int k = 0; k < t->o.depths && (size_t)k + 2 <= i; k++)
                losses->depth_rows[k] += is_label;
        }
}

/* Whether depths take turns with the gradients of a module or, if parallel heads are trained with the model, of
 * model.norm. */
static int takes_turns(const struct vb_trainer *t)
{
    return t->o.heads ? t->layers != NULL : t->o.depths > (t->eagle ? 1 : t->used);
}

/* Returns how many sequences from number `first` on are computed together, and sets *tokens to the number of their
 * tokens. If depths take turns, each sequence is computed alone, so that the order of the sums does not depend on the
 * cut. */
static size_t cut(const struct vb_trainer *t, const struct training_sequence *sequences, size_t first, size_t count,
                  size_t *tokens)
{
    size_t n = first;
    *tokens = 0;
    while (n < count && (n == first || (*tokens + sequences[n].count <= t->o.micro_tokens && !takes_turns(t))))
        *tokens += sequences[n++].count;
    return n - first;
}

static int reserve(struct vb_trainer *t, const struct training_sequence *sequences, size_t count, vb_error *err)
{
    size_t room = 0, longest = 0, most = 0, tokens, n;
    for (size_t q = 0; q < count; q++)
        longest = max_size(longest, sequences[q].count);
    for (size_t q = 0; q < count; q += n) {
        n = cut(t, sequences, q, count, &tokens);
        room = max_size(room, tokens);
        most = max_size(most, n);
    }
    if (room > t->room || longest > t->longest || most > t->most)
        train_target_close(t); /* it is as large */
    return train_reserve(t, room, longest, most, err);
}

/* ---- what is not finite ---- */

int train_is_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return 0;
    return 1;
}

/* Returns the number of the first layer whose output is not finite, or -1. MTP depth k counts as layer
 * num_hidden_layers + k. */
static int bad_layer(const struct vb_trainer *t)
{
    size_t layers = t->layers ? t->c->dims.layers : 0, d = t->c->dims.d;
    for (size_t l = 0; l < layers; l++)
        if (!train_is_finite(l + 1 < layers ? t->kept[l + 1].x : t->last, t->rows.S * d))
            return (int)l;
    for (int k = 0; k < t->o.depths; k++)
        if (!train_is_finite(t->depth[k].g, t->depth[k].rows.S * d))
            return t->c->num_hidden_layers + k;
    return -1;
}

/* Whether what depth 0 takes from the frozen model has an infinity or a NaN. */
static int took_bad_rows(const struct vb_trainer *t)
{
    const struct train_depth *x = &t->depth[0];
    return !t->layers && !train_is_finite(x->taken, x->rows.S * t->c->dims.d);
}

static void find_bad_layer(const struct vb_trainer *t, char *where, size_t size)
{
    int layer = bad_layer(t), L = t->c->num_hidden_layers;
    if (took_bad_rows(t))
        snprintf(where, size, "the first numbers that are not finite are rows of the frozen model");
    else if (layer >= 0)
        snprintf(where, size, "the first output that is not finite is that of %s %d",
                 layer < L ? "layer"
                 : t->o.heads ? "parallel head"
                 : "MTP layer",
                 layer >= L && t->o.heads ? layer - L : layer);
}

static int not_finite(const struct vb_trainer *t, vb_error *err)
{
    char where[96] = "no layer's output is infinite or NaN, but logits are";
    (t->eagle ? train_eagle_where : find_bad_layer)(t, where, sizeof where);
    for (size_t i = 0; i < t->count; i++)
        if (!train_is_finite(t->tensors[i].w, t->tensors[i].rows * t->tensors[i].cols))
            return vb_fail(err, VB_NOT_FINITE, "a loss is not finite: %s, and %s has a weight that is not", where,
                           t->tensors[i].name);
    return vb_fail(err, VB_NOT_FINITE, "a loss is not finite: %s", where);
}

/* ---- a step ---- */

/* The loss of a depth from its terms, or its sum from theirs. A term without a weight may not be finite. */
static double depth_loss(const struct vb_trainer *t, const struct soft_sums *x, double features)
{
    const struct loss_terms *l = &t->loss.terms;
    return (l->data != 0 ? l->data * x->data : 0) + (l->soft != 0 ? l->soft * x->soft : 0) +
           (l->top != 0 ? l->top * x->top : 0) + (l->features != 0 ? l->features * features : 0);
}

static int micro_batch(struct vb_trainer *t, struct train_sums *sums, int backward, vb_error *err)
{
    int rc;
    train_set_rows(t, &t->rows, -1);
    for (int k = 0; k < t->o.depths && !t->eagle; k++)
        train_set_rows(t, &t->depth[k].rows, k);
    if (!t->layers && (rc = train_target(t, err)))
        return rc;
    (t->eagle ? train_eagle_forward : train_forward)(t);
    (t->eagle ? train_eagle_losses : train_heads)(t, sums, backward);
    double sum = sums->main;
    for (int k = 0; k < t->o.depths; k++)
        sum += depth_loss(t, &sums->depth[k], sums->features[k]);
    if (!isfinite(sum))
        return not_finite(t, err);
    if (backward)
        (t->eagle ? train_eagle_backward : train_backward)(t, sums);
    return VB_OK;
}

static void clear_layer(const struct vb_trainer *t, struct train_layer *l)
{
    if (l->load)
        memset(l->load, 0, t->c->dims.E * sizeof *l->load);
}

static void clear(struct vb_trainer *t)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->tensors[i].g)
            memset(t->tensors[i].g, 0, t->tensors[i].rows * t->tensors[i].cols * sizeof(float));
    if (t->tied)
        memset(t->tied, 0, t->c->dims.V * t->c->dims.d * sizeof *t->tied);
    for (size_t l = 0; t->layers && l < t->c->dims.layers; l++)
        clear_layer(t, &t->layers[l]);
    for (int k = 0; k < t->used; k++)
        clear_layer(t, &t->mtp[k].layer);
}

static void set_weights(const struct vb_trainer *t, const struct training_losses *losses, struct train_sums *sums)
{
    sums->main_weight = losses->rows ? (float)(t->loss.main / (double)losses->rows) : 0.0f;
    for (int k = 0; k < t->o.depths; k++)
        if (losses->depth_rows[k]) {
            double weight = t->loss.depth[k] / (double)losses->depth_rows[k];
            sums->weight[k] = (float)weight;
            sums->feature_weight[k] = (float)(weight * t->loss.terms.features / (double)t->c->dims.d);
        }
}

static void set_losses(const struct vb_trainer *t, struct training_losses *losses, const struct train_sums *sums)
{
    losses->main = losses->rows ? sums->main / (double)losses->rows : 0;
    losses->total = t->loss.main * losses->main;
    for (int k = 0; k < t->o.depths; k++) {
        double rows = losses->depth_rows[k] ? (double)losses->depth_rows[k] : 1;
        struct soft_sums x = {sums->depth[k].data / rows, sums->depth[k].soft / rows, sums->depth[k].top / rows,
                              sums->depth[k].entropy / rows};
        losses->terms[k] = (struct training_terms){x.data, x.soft, x.top, sums->features[k] / rows, x.entropy};
        losses->by_depth[k] = depth_loss(t, &x, losses->terms[k].features);
        losses->total += t->loss.depth[k] * losses->by_depth[k];
        losses->outside[k] = sums->outside[k];
    }
}

static int run(struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
               struct training_losses *losses, int backward, vb_error *err)
{
    struct train_sums sums = {0};
    size_t n, tokens;
    int rc = check_sequences(t, sequences, count, err);
    *losses = (struct training_losses){0};
    count_rows(t, losses, sequences, count);
    if (!rc && !losses->rows && !losses->depth_rows[0])
        rc = vb_fail(err, VB_BAD_ARGUMENT,
                     "no sequence of the %zu has a token to predict, wanted at least %zu tokens in one, and labels in "
                     "its loss mask",
                     count, fewest(t));
    if (rc || (rc = reserve(t, sequences, count, err)))
        return rc;
    set_weights(t, losses, &sums);
    if (backward)
        clear(t);
    for (size_t q = 0; q < count && !rc; q += n) {
        n = cut(t, sequences, q, count, &tokens);
        t->sequences = 0;
        for (size_t i = q; i < q + n; i++)
            if (sequences[i].count >= fewest(t))
                t->batch[t->sequences++] = &sequences[i];
        if (t->sequences)
            rc = micro_batch(t, &sums, backward, err);
    }
    if (!rc && backward && t->tied)
        op_add(&t->cx, t->embed.g, t->tied, t->c->dims.V * t->c->dims.d);
    set_losses(t, losses, &sums);
    return rc;
}

/* Whole rows of a sequence of the micro-batch; those that are not read become 0. */
static void give_rows(const struct vb_trainer *t, float *to, const float *from, size_t width, size_t q, size_t count)
{
    size_t computed = count - train_unread(t);
    memcpy(to, from + t->rows.first[q] * width, computed * width * sizeof *to);
    memset(to + computed * width, 0, (count - computed) * width * sizeof *to);
}

static int rows(struct vb_trainer *t, const struct training_sequence *sequences, size_t count, float *const *hidden,
                float *const *final, vb_error *err)
{
    size_t n, tokens;
    int rc = check_sequences(t, sequences, count, err);
    if (rc || (rc = reserve(t, sequences, count, err)))
        return rc;
    for (size_t q = 0; q < count && !rc; q += n) {
        n = cut(t, sequences, q, count, &tokens);
        t->sequences = 0;
        for (size_t i = q; i < q + n; i++)
            t->batch[t->sequences++] = &sequences[i];
        train_set_rows(t, &t->rows, -1);
        rc = train_target(t, err);
        for (size_t i = 0; i < n && !rc; i++) {
            give_rows(t, hidden[q + i], t->hidden, t->width, i, sequences[q + i].count);
            if (final)
                give_rows(t, final[q + i], t->final, t->c->dims.d, i, sequences[q + i].count);
        }
    }
    return rc;
}

int trainer_rows(struct vb_trainer *t, const struct training_sequence *sequences, size_t count, float *const *hidden,
                 float *const *final, vb_error *err)
{
    for (size_t q = 0; q < count; q++)
        if (t->layers || sequences[q].hidden || sequences[q].count < fewest(t))
            return vb_fail(err, VB_BAD_ARGUMENT,
                           "the rows of sequence %zu are not those of a frozen model, are given, or are fewer than %zu",
                           q, fewest(t));
    struct fpenv env = fpenv_enter();
    train_threads(t);
    int rc = rows(t, sequences, count, hidden, final, err);
    fpenv_leave(env);
    return rc;
}

static int compute(struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
                   struct training_losses *losses, int backward, vb_error *err)
{
    struct fpenv env = fpenv_enter();
    train_threads(t);
    int rc = run(t, sequences, count, losses, backward, err);
    if (backward)
        t->has_gradients = !rc;
    fpenv_leave(env);
    return rc;
}

int trainer_gradients(struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
                      struct training_losses *losses, vb_error *err)
{
    return compute(t, sequences, count, losses, 1, err);
}

int trainer_losses(struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
                   struct training_losses *losses, vb_error *err)
{
    return compute(t, sequences, count, losses, 0, err);
}
