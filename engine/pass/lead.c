/* engine/pass/lead.c -- the messages of passes, as rank 0 writes them; engine/follow.c reads them. */
#include "engine/pass/lead.h"
#include "engine/model/ranks.h"
#include "engine/pass/runner.h"
#include "engine/pass/vocab.h"

#define ASKED_ROWS 16 /* in a pass of more rows, `stop` is called before each layer, and its result costs an exchange of
                         one byte */

/* Returns the group of ranks that this process leads, or NULL. */
static struct vb_ranks *led(const struct vb_model *m) { return m->ranks && !m->ranks->op.rank ? m->ranks : NULL; }

/* What rank 0 knows of a pool of which the other ranks have a copy. */
struct led_pool {
    struct pool_twin twin; /* the first member, so it has the same address */
    struct vb_ranks *ranks;
    uint32_t number;       /* by which rank 0 names the pool */
};

static const struct led_pool *led_pool(const struct kvpool *p)
{
    return (const struct led_pool *)(const void *)p->twin;
}

/* ---- rows ---- */

static size_t length_of(const struct row *row) { return (size_t)(row->index + 1 - row->skipped); }
static const int32_t *slots_of(const struct row *row) { return row->slots ? row->slots : row->cache->slots; }

/* Writes slots as runs of consecutive numbers. */
static void put_slots(struct vb_ranks *r, const int32_t *slots, size_t count)
{
    size_t runs = 0;
    for (size_t i = 0; i < count; i++)
        runs += !i || slots[i] != slots[i - 1] + 1;
    ranks_put_number(r, runs);
    for (size_t i = 0, n; i < count; i += n) {
        for (n = 1; i + n < count && slots[i + n] == slots[i] + (int32_t)n;)
            n++;
        ranks_put(r, (int32_t[]){slots[i], (int32_t)n}, 2 * sizeof *slots);
    }
}

/* The rows from `row` on that share one list of slots: writes their number, and the slots of the longest. Returns their
 * number. */
static size_t put_timeline(struct vb_ranks *r, const struct row *row, size_t S)
{
    size_t n = 1, longest = length_of(row);
    for (; n < S && slots_of(&row[n]) == slots_of(row); n++)
        longest = length_of(&row[n]) > longest ? length_of(&row[n]) : longest;
    ranks_put_number(r, n);
    put_slots(r, slots_of(row), longest);
    return n;
}

/* Writes `count` numbers, or the count 0 if `numbers` is NULL. */
static void put_numbers(struct vb_ranks *r, const int32_t *numbers, size_t count)
{
    ranks_put_number(r, numbers ? count : 0);
    if (numbers)
        ranks_put(r, numbers, count * sizeof *numbers);
}

/* `layers`: the layers for which row.forced and row.forced_kept have numbers. */
static void put_rows(struct vb_ranks *r, const struct pass *p, size_t layers)
{
    const struct dims *dims = &p->model->config.dims;
    const struct row *rows = p->rows;
    size_t S = p->S;
    ranks_put_number(r, S);
    for (size_t s = 0; s < S; s++) {
        const struct row *row = &rows[s];
        ranks_put(r,
                  (int32_t[]){(int32_t)led_pool(row->cache->pool)->number, row->token, row->slot, row->index,
                              row->position, row->skipped, row->expanded},
                  7 * sizeof(int32_t));
        put_numbers(r, row->forced, layers * dims->chosen);
        put_numbers(r, row->forced_kept, layers * dims->index_topk);
        put_numbers(r, row->use ? row->use->slots : NULL, row->use ? row->use->count : 0);
        ranks_put_number(r, row_keeper(rows, S, s));
    }
    for (size_t s = 0; s < S;)
        s += put_timeline(r, rows + s, S - s);
}

/* ---- passes ---- */

static struct vb_ranks *begin(const struct pass *p, enum ranks_message message)
{
    struct vb_ranks *r = p->model->ranks;
    r->op.taps_all = p->tapper != NULL;
    r->op.scores = p->cx.probe && p->cx.probe->scores;
    ranks_put_number(r, message);
    ranks_put_number(r, p->number);
    ranks_put_number(r, (uint64_t)r->op.taps_all);
    ranks_put_number(r, (uint64_t)r->op.scores);
    return r;
}

static int target(struct pass *p)
{
    if (p->stop && p->stop(p->stop_context))
        return -1;
    struct vb_ranks *r = begin(p, RANKS_TARGET);
    r->passes++;
    p->asks = p->stop && p->S > ASKED_ROWS;
    ranks_put_number(r, (uint64_t)p->asks);
    put_rows(r, p, p->model->config.dims.layers);
    ranks_send(r);
    return runner_cpu.target(p);
}

static void module(struct pass *p)
{
    struct vb_ranks *r = begin(p, RANKS_MTP);
    ranks_put_number(r, (uint64_t)(p->module - p->model->mtp));
    ranks_put_number(r, (uint64_t)p->depth);
    put_rows(r, p, 1);
    ranks_put(r, p->taken, p->S * p->model->config.dims.d * sizeof *p->taken);
    ranks_send(r);
    runner_cpu.module(p);
}

void lead_head(const struct pass *p, const struct weight_view *head, const vb_draft_vocab *vocab,
               const struct arithmetic *how, const float *hidden, size_t S)
{
    const struct vb_model *m = p->model;
    size_t d = m->config.dims.d, number = 0;
    if (!led(m))
        return;
    struct vb_ranks *r = begin(p, RANKS_HEAD);
    while (head != (number ? &m->mtp[number - 1].head : &m->lm_head))
        number++;
    int is_here = hidden >= p->w.hidden && hidden < p->w.hidden + p->w.max_rows * d; /* then the other ranks have these
                                                                                        rows, too */
    ranks_put_number(r, number);
    ranks_put_number(r, vocab ? vocab->number : 0);
    ranks_put_number(r, (uint64_t)how->bf16);
    ranks_put_number(r, S);
    ranks_put_number(r, is_here ? (uint64_t)(hidden - p->w.hidden) : UINT64_MAX);
    if (!is_here)
        ranks_put(r, hidden, S * d * sizeof *hidden);
    ranks_send(r);
}

static void head(struct pass *p, const struct weight_view *head, float *logits, const float *hidden, size_t S)
{
    lead_head(p, head, NULL, p->cx.arithmetic, hidden, S);
    runner_cpu.head(p, head, logits, hidden, S);
}

static void best(struct pass *p, const struct weight_view *head, int32_t *best, const float *hidden, size_t S)
{
    runner_cpu.best(p, head, best, hidden, S);
}

static void listed(struct pass *p, const vb_draft_vocab *vocab, int module, float *logits, const float *hidden,
                   size_t S)
{
    lead_head(p, &p->model->mtp[module].head, vocab, p->cx.arithmetic, hidden, S);
    runner_cpu.listed(p, vocab, module, logits, hidden, S);
}

/* ---- memory ---- */

static void put_end(struct vb_ranks *r, enum ranks_message message, uint32_t number)
{
    ranks_put_number(r, message);
    ranks_put_number(r, number);
    ranks_send(r);
}

static void close_pass(struct pass *p) { put_end(p->model->ranks, RANKS_NO_WORK, p->number); }

static const struct runner leader = {.target = target, .module = module, .head = head, .best = best, .listed = listed,
                                     .close = close_pass};

int lead_pass(struct pass *p, int exact, vb_error *err)
{
    struct vb_ranks *r = led(p->model);
    if (!r)
        return VB_OK;
    p->runner = &leader;
    ranks_put_number(r, RANKS_WORK);
    ranks_put_number(r, p->number = ++r->numbered);
    const uint64_t sizes[] = {p->model->number, p->w.max_rows, p->w.max_logit_rows, p->w.context - VB_MAX_DRAFT - 1,
                              (uint64_t)p->w.expands, (uint64_t)exact};
    ranks_put(r, sizes, sizeof sizes);
    ranks_send(r);
    return ranks_agree(r, VB_OK, err);
}

static void changed(const struct kvcache *c, size_t first, size_t count)
{
    const struct kvpool *p = c->pool;
    struct vb_ranks *r = led_pool(p)->ranks;
    if (!count)
        return;
    ranks_put_number(r, RANKS_ROWS);
    ranks_put_number(r, led_pool(p)->number);
    put_numbers(r, c->slots + first, count);
    for (size_t layer = 0; layer < p->layers; layer++)
        for (size_t i = first; i < first + count; i++)
            ranks_put(r, kvcache_row(c, layer, c->slots[i]), p->row * 4);
    for (size_t layer = 0; layer < p->layout.index_layers; layer++)
        for (size_t i = first; i < first + count; i++)
            ranks_put(r, kvcache_index_row(c, layer, c->slots[i]), p->layout.index_row);
    ranks_send(r);
}

static void fetch(struct kvpool *p) { (void)p; }

static void closed(struct kvpool *p)
{
    struct vb_ranks *r = led_pool(p)->ranks;
    put_end(r, RANKS_NO_POOL, led_pool(p)->number);
    vb_free(&r->allocator, p->twin);
}

static const struct pool_twin_type led_twin = {fetch, changed, closed};

int lead_pool(struct kvpool *pool, struct vb_ranks *r, vb_error *err)
{
    if (!r || r->op.rank)
        return VB_OK;
    struct led_pool *led = vb_alloc(&r->allocator, 1, sizeof *led);
    if (!led)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a cache of %zu tokens", pool->capacity);
    *led = (struct led_pool){{&led_twin}, r, ++r->numbered};
    pool->twin = &led->twin;
    ranks_put_number(r, RANKS_POOL);
    ranks_put_number(r, led->number);
    const struct kv_layout *l = &pool->layout;
    const uint64_t sizes[] = {pool->layers, pool->capacity, (uint64_t)l->type, l->latent, l->rope, l->index_layers,
                              l->index_row};
    ranks_put(r, sizes, sizeof sizes);
    ranks_send(r);
    return ranks_agree(r, VB_OK, err);
}

int lead_vocab(vb_draft_vocab *v, vb_error *err)
{
    struct vb_ranks *r = led(v->model);
    if (!r)
        return VB_OK;
    ranks_put_number(r, RANKS_VOCAB);
    ranks_put_number(r, v->number = ++r->numbered);
    ranks_put_number(r, v->model->number);
    ranks_put_number(r, v->count);
    ranks_put(r, v->tokens, v->count * sizeof *v->tokens);
    ranks_send(r);
    return ranks_agree(r, VB_OK, err);
}

void lead_no_vocab(vb_draft_vocab *v)
{
    if (v->number)
        put_end(v->model->ranks, RANKS_NO_VOCAB, v->number);
}
