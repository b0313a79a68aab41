/* engine/train/train_target.c -- the rows of the frozen model that the trained part reads and learns from. They have
 * the bits of the engine with --prefill expanded. */
#include "engine/train/train_internal.h"
#include "engine/pass/forward.h"

#include <string.h>

#include "numbers/numbers.h"
#include "ops/rmsnorm.h"
#include "simd/fpenv.h"

#define ROWS ((size_t)512) /* of a pass */

struct target_pass {
    struct pass pass;
    struct kvpool pool;
    struct kvcache *caches; /* [sequences] */
    size_t sequences, rows;
    struct row *list;       /* [ROWS]: of the next pass */
    size_t *to;             /* [ROWS]: which rows of t->hidden and t->final they are */
};

void train_target_close(struct vb_trainer *t)
{
    struct target_pass *p = t->target;
    if (!p)
        return;
    for (size_t q = 0; q < p->sequences; q++)
        kvcache_close(&p->caches[q], &t->allocator);
    kvpool_close(&p->pool, &t->allocator);
    p->pass.cx.crew = NULL; /* the trainer's */
    pass_close(&p->pass);
    vb_free(&t->allocator, p->caches);
    vb_free(&t->allocator, p->list);
    vb_free(&t->allocator, p->to);
    vb_free(&t->allocator, p);
    t->target = NULL;
}

/* Makes room for t->room tokens and t->most sequences. After an error, the caller closes what was opened. */
static int open_pass(struct vb_trainer *t, vb_error *err)
{
    struct target_pass *p = t->target = vb_alloc(&t->allocator, 1, sizeof *p);
    int rc;
    if (!p)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the passes of the frozen model");
    p->list = vb_alloc(&t->allocator, ROWS, sizeof *p->list);
    p->to = vb_alloc(&t->allocator, ROWS, sizeof *p->to);
    p->caches = vb_alloc(&t->allocator, t->most, sizeof *p->caches);
    if (!p->list || !p->to || !p->caches)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the passes of the frozen model");
    if ((rc = pass_open(&p->pass, t->model, t->cx.k, t->cx.most_threads, ROWS, 1, t->longest, 1, err)) ||
        (rc = pass_keep_rows(&p->pass, t->takes, err)) ||
        (rc = kvpool_open(&p->pool, t->c->dims.layers, t->room, model_cache_layout(t->c), &t->allocator, err)))
        return rc;
    p->pass.cx.crew = t->crew;
    for (; p->sequences < t->most; p->sequences++)
        if ((rc = kvcache_open_in(&p->caches[p->sequences], &p->pool, t->longest, &t->allocator, err)))
            return rc;
    return VB_OK;
}

/* Copies a row of the target to where it is wanted. */
static void keep(const struct vb_trainer *t, enum target_rows which, float *to, size_t row)
{
    size_t width;
    const float *from = pass_rows(&t->target->pass, which, row, &width);
    memcpy(to, from, width * sizeof *to);
}

static void run_pass(struct vb_trainer *t)
{
    struct target_pass *p = t->target;
    if (!p->rows)
        return;
    forward_target(&p->pass, p->list, p->rows);
    train_threads(t); /* the pass may have chosen fewer */
    for (size_t i = 0; i < p->rows; i++) {
        keep(t, t->takes, t->hidden + p->to[i] * t->width, i);
        if (t->takes == ROWS_EAGLE3 && t->final)
            keep(t, ROWS_HIDDEN, t->final + p->to[i] * t->c->dims.d, i);
    }
    p->rows = 0;
}

int train_takes_final(const struct vb_trainer *t)
{
    return t->layers || t->takes == ROWS_HIDDEN || (t->takes == ROWS_FEATURES && !t->c->conventions.value[MAIN_HIDDEN]);
}

/* t->final from n rows that the part takes, from row `first` on, if these have the residual stream after the last
 * layer. */
static void norm_rows(struct vb_trainer *t, size_t first, size_t n)
{
    size_t d = t->c->dims.d, after = t->takes == ROWS_TRUNK ? d : 0;
    if (t->final && t->final != t->hidden && t->takes != ROWS_EAGLE3)
        op_rmsnorm(&t->cx, t->final + first * d, d, t->hidden + first * t->width + after, t->width, t->model->norm, n,
                   d, (float)t->c->rms_norm_eps);
}

/* No row of the part reads or learns from the last row of a sequence. The one before it predicts the last token: no row
 * reads it, but rows may learn from it. */
size_t train_unread(const struct vb_trainer *t) { return train_learns_from_target(t) ? 1 : 2; }

int train_target(struct vb_trainer *t, vb_error *err)
{
    size_t d = t->c->dims.d, unread = train_unread(t);
    int rc;
    for (size_t q = 0; q < t->sequences; q++) {
        const struct training_sequence *s = t->batch[q];
        size_t first = t->rows.first[q];
        if (s->hidden) {
            memcpy(t->hidden + first * t->width, s->hidden, (s->count - unread) * t->width * sizeof *t->hidden);
            if (t->takes == ROWS_EAGLE3 && t->final)
                memcpy(t->final + first * d, s->final, (s->count - unread) * d * sizeof *t->final);
            continue;
        }
        if (!t->target && (rc = open_pass(t, err))) {
            train_target_close(t);
            return rc;
        }
        struct kvcache *cache = &t->target->caches[q];
        for (size_t i = 0; i + unread < s->count; i++) {
            struct row row = {.cache = cache, .token = s->tokens[i], .slot = kvcache_append(cache), .index = (int32_t)i,
                              .position = (int32_t)i, .expanded = 1};
            t->target->list[t->target->rows] = row;
            t->target->to[t->target->rows++] = first + i;
            if (t->target->rows == ROWS)
                run_pass(t);
        }
    }
    if (t->target)
        run_pass(t);
    for (size_t q = 0; q < t->sequences; q++) {
        norm_rows(t, t->rows.first[q], t->batch[q]->count - unread);
        if (t->target)
            kvcache_truncate(&t->target->caches[q], 0);
    }
    return VB_OK;
}

/* ---- rows from the residual stream ---- */

size_t trainer_streams(const struct vb_trainer *t, int layers[4])
{
    int L = t->c->num_hidden_layers, final;
    size_t width, n = 0;
    enum target_rows takes = trainer_takes(t, &width, &final);
    if (takes == ROWS_EAGLE3) {
        config_three_layers(L, layers);
        n = 3;
    } else if (takes == ROWS_TRUNK) {
        layers[n++] = L - 1;
    }
    if (takes != ROWS_EAGLE3 || final)
        layers[n++] = L;
    return n;
}

static void norm_stream(struct vb_trainer *t, float *to, const float *from, size_t n)
{
    size_t d = t->c->dims.d;
    op_rmsnorm(&t->cx, to, d, from, d, t->model->norm, n, d, (float)t->c->rms_norm_eps);
}

void trainer_rows_of_streams(struct vb_trainer *t, float *hidden, float *final, const float *const *streams, size_t n)
{
    int layers[4];
    size_t d = t->c->dims.d, parts = t->width / d;
    struct fpenv env = fpenv_enter();
    train_threads(t);
    if (train_takes_final(t))
        norm_stream(t, hidden, streams[0], n);
    for (size_t s = 0; s < n && !train_takes_final(t); s++)
        for (size_t i = 0; i < parts; i++)
            memcpy(hidden + s * t->width + i * d, streams[i] + s * d, d * sizeof *hidden);
    if (final && trainer_streams(t, layers) == 4)
        norm_stream(t, final, streams[3], n);
    fpenv_leave(env);
}
