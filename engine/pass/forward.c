/* engine/pass/forward.c -- computes passes layer by layer (engine/pass/layer.c). */
#include "engine/pass/forward.h"

#include "engine/pass/attend.h"
#include "engine/pass/indexing.h"
#include "engine/pass/layer.h"
#include "engine/pass/runner.h"
#include "engine/pass/step.h"
#include "engine/pass/tap.h"
#include "engine/pass/vocab.h"
#include "ops/linear.h"
#include "ops/operators.h"
#include "ops/ranks.h"

#include <string.h>

/* ---- rows ---- */

static struct row_place place_of(const struct pass *p, const struct row *row)
{
    const struct kvcache *cache = row->cache;
    return (struct row_place){.rows = kvcache_layer(cache, 0),
                               .layer_bytes = cache->pool->capacity * cache->pool->row * 4,
                               .slots = row->slots ? row->slots : cache->slots,
                               .length = (uint32_t)(row->index + 1 - row->skipped), .slot = row->slot,
                               .query_scale = query_scale(p, row)};
}

static void no_show(struct pass *p, float *array, size_t count) { (void)p, (void)array, (void)count; }

struct side runner_side(const struct pass *p)
{
    return (struct side){.places = p->w.places, .first_bad_layer = p->w.first_bad_layer, .choose_tokens = index_tokens,
                         .show = no_show};
}

void runner_begin(struct pass *p, const struct row *rows, size_t S, const struct mtp_module *module, int depth)
{
    p->rows = rows;
    p->S = S;
    p->module = module;
    p->depth = depth;
    p->l = module ? &module->layer : NULL;
    p->layer = module ? p->model->config.num_hidden_layers + (int)(module - p->model->mtp) : -1;
    p->cache_layer = 0;
    p->side = runner_side(p);
    for (size_t s = 0; s < S; s++) {
        p->w.ids[s] = rows[s].token;
        op_rope_angles(p->w.cos_sin + s * p->rope.dim, &p->rope, rows[s].position);
        p->w.places[s] = place_of(p, &rows[s]);
    }
}

/* ---- the target ---- */

int runner_is_stopped(struct pass *p)
{
    if (!p->asks)
        return 0;
    unsigned char answer = p->stop && p->stop(p->stop_context);
    op_spread(&p->cx, 0, &answer, 1); /* of several ranks, the first asks for all of them */
    return answer;
}

void runner_embedding(struct pass *p)
{
    for (size_t s = 0; s < p->S; s++) /* passes of MTP modules don't reset this: it is still needed for other sequences
                                         of the target's pass */
        p->w.first_bad_layer[s] = -1;
    embed_tokens(p, EMBEDDING);
}

int runner_layers(struct pass *p, void (*layer)(struct pass *p))
{
    const struct vb_model *m = p->model;
    for (size_t l = 0; l < m->config.dims.layers; l++) {
        if (l && runner_is_stopped(p))
            return 1;
        p->l = &m->layers[l];
        p->layer = (int)l;
        p->cache_layer = l;
        pass_watch(p, LAYER_BEGINS);
        layer(p);
        p->cx.op->first_not_finite(&p->cx, p->side.first_bad_layer, p->w.x, (int32_t)l, p->S, m->config.dims.d);
        pass_watch(p, LAYER_ENDS);
    }
    return 0;
}

void runner_norm(struct pass *p)
{
    p->l = NULL;
    p->layer = -1;
    norm(p, FINAL_NORM);
}

static int target(struct pass *p)
{
    runner_embedding(p);
    if (runner_is_stopped(p) || runner_layers(p, decoder_layer))
        return -1;
    runner_norm(p);
    return 0;
}

/* ---- MTP modules ---- */

static void module(struct pass *p)
{
    module_input(p);
    pass_watch(p, LAYER_BEGINS);
    module_layer(p);
    module_output(p);
}

/* ---- output heads ---- */

static void head(struct pass *p, const struct weight_view *w, float *logits, const float *hidden, size_t S)
{
    op_enter(&p->cx, PART_HEAD);
    p->cx.op->linear_divided(&p->cx, logits, p->model->config.dims.V, hidden, 0, w, S);
    op_enter(&p->cx, PART_OUTSIDE);
}

static void best(struct pass *p, const struct weight_view *head, int32_t *best, const float *hidden, size_t S)
{
    forward_head(p, head, p->w.logits, hidden, S);
    p->cx.op->argmax(&p->cx, best, p->w.logits, S, p->model->config.dims.V);
}

static void listed(struct pass *p, const vb_draft_vocab *vocab, int module, float *logits, const float *hidden,
                   size_t S)
{
    op_enter(&p->cx, PART_HEAD);
    op_linear_cut(&p->cx, logits, vocab->cuts, hidden, &vocab->heads[module], S);
    op_enter(&p->cx, PART_OUTSIDE);
}

static void nothing(struct pass *p) { (void)p; }

const struct runner runner_cpu = {.target = target, .module = module, .head = head, .best = best,
                                  .listed = listed, .close = nothing};

/* ---- passes ---- */

static struct op_pass begin_pass(struct pass *p, const struct row *rows, size_t S, const struct mtp_module *module,
                                 int depth)
{
    struct op_pass pass = op_begin_pass(&p->cx, module ? &p->module_pace : &p->pace, S);
    op_enter(&p->cx, PART_SMALL);
    runner_begin(p, rows, S, module, depth);
    if (p->tapper)
        tapper_pass(p->tapper, p);
    pass_watch(p, PASS_BEGINS);
    return pass;
}

static void end_pass(struct pass *p, const struct op_pass *pass)
{
    pass_watch(p, PASS_ENDS);
    op_enter(&p->cx, PART_OUTSIDE);
    op_end_pass(&p->cx, pass);
}

int forward_target(struct pass *p, const struct row *rows, size_t S)
{
    struct op_pass pass = begin_pass(p, rows, S, NULL, -1);
    if (!p->cx.ranks)
        p->asks = p->stop != NULL;
    if (p->runner->target(p))
        return -1; /* op_end_pass is not called, so the duration of this pass is not recorded */
    end_pass(p, &pass);
    return 0;
}

void forward_mtp(struct pass *p, const struct mtp_module *module, int depth, const struct row *rows, const float *h,
                 float *g, float *next, size_t S)
{
    struct op_pass pass = begin_pass(p, rows, S, module, depth);
    p->taken = h;
    p->given = g;
    p->runner->module(p);
    const float *handed = p->model->config.conventions.value[DRAFT_HIDDEN] ? p->w.x : g;
    if (next && next != handed)
        memcpy(next, handed, S * p->model->config.dims.d * sizeof *handed);
    end_pass(p, &pass);
}

void forward_head(struct pass *p, const struct weight_view *head, float *logits, const float *hidden, size_t S)
{
    p->runner->head(p, head, logits, hidden, S);
}

void forward_head_best(struct pass *p, const struct weight_view *head, int32_t *best, const float *hidden, size_t S)
{
    p->runner->best(p, head, best, hidden, S);
}

void forward_listed(struct pass *p, const vb_draft_vocab *vocab, int module, float *logits, const float *hidden,
                    size_t S)
{
    p->runner->listed(p, vocab, module, logits, hidden, S);
}

void forward_tap_logits(const struct pass *p, const float *logits, size_t vocab_size, size_t first, size_t count)
{
    if (p->tapper)
        tapper_logits(p->tapper, logits, vocab_size, first, count);
}
