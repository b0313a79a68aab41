/* engine/pass/lead.c -- the messages of passes, as rank 0 writes them; engine/follow.c reads them. */
#include "engine/pass/lead.h"
#include "engine/model/ranks.h"
#include "engine/pass/vocab.h"

#define ASKED_ROWS 16 /* in a pass of more rows, `stop` is called before each layer, and its result costs an exchange of
                         one byte */

/* Returns the group of ranks that this process leads, or NULL. */
static struct vb_ranks *led(const struct vb_model *m) { return m->ranks && !m->ranks->op.rank ? m->ranks : NULL; }

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
static void put_rows(struct vb_ranks *r, const struct workspace *w, const struct row *rows, size_t S, size_t layers)
{
    const struct dims *dims = &w->model->config.dims;
    ranks_put_number(r, S);
    for (size_t s = 0; s < S; s++) {
        const struct row *row = &rows[s];
        ranks_put(r,
                  (int32_t[]){(int32_t)row->cache->pool->number, row->token, row->slot, row->index, row->position,
                              row->skipped, row->expanded},
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

static struct vb_ranks *begin(const struct workspace *w, enum ranks_message message)
{
    struct vb_ranks *r = led(w->model);
    if (!r)
        return NULL;
    r->op.wide = w->tapper != NULL;
    r->op.scores = w->cx.probe && w->cx.probe->scores;
    ranks_put_number(r, message);
    ranks_put_number(r, w->number);
    ranks_put_number(r, (uint64_t)r->op.wide);
    ranks_put_number(r, (uint64_t)r->op.scores);
    return r;
}

int lead_target(struct workspace *w, const struct row *rows, size_t S)
{
    if (!led(w->model))
        return 0;
    if (w->stop && w->stop(w->stop_context))
        return -1;
    struct vb_ranks *r = begin(w, RANKS_TARGET);
    r->passes++;
    w->asks = w->stop && S > ASKED_ROWS;
    ranks_put_number(r, (uint64_t)w->asks);
    put_rows(r, w, rows, S, w->model->config.dims.layers);
    ranks_send(r);
    return 0;
}

void lead_mtp(const struct workspace *w, const struct mtp_module *module, int depth, const struct row *rows,
              const float *h, size_t S)
{
    struct vb_ranks *r = begin(w, RANKS_MTP);
    if (!r)
        return;
    ranks_put_number(r, (uint64_t)(module - w->model->mtp));
    ranks_put_number(r, (uint64_t)depth);
    put_rows(r, w, rows, S, 1);
    ranks_put(r, h, S * w->model->config.dims.d * sizeof *h);
    ranks_send(r);
}

void lead_head(const struct workspace *w, const struct weight_view *head, const vb_draft_vocab *vocab, int bf16,
               const float *hidden, size_t S)
{
    const struct vb_model *m = w->model;
    size_t d = m->config.dims.d, number = 0;
    struct vb_ranks *r = begin(w, RANKS_HEAD);
    if (!r)
        return;
    while (head != (number ? &m->mtp[number - 1].head : &m->lm_head))
        number++;
    int is_here = hidden >= w->hidden && hidden < w->hidden + w->max_rows * d; /* then the other ranks have these rows,
                                                                                  too */
    ranks_put_number(r, number);
    ranks_put_number(r, vocab ? vocab->number : 0);
    ranks_put_number(r, (uint64_t)bf16);
    ranks_put_number(r, S);
    ranks_put_number(r, is_here ? (uint64_t)(hidden - w->hidden) : UINT64_MAX);
    if (!is_here)
        ranks_put(r, hidden, S * d * sizeof *hidden);
    ranks_send(r);
}

/* ---- memory ---- */

int lead_workspace(struct workspace *w, int exact, vb_error *err)
{
    struct vb_ranks *r = led(w->model);
    if (!r)
        return VB_OK;
    ranks_put_number(r, RANKS_WORK);
    ranks_put_number(r, w->number = ++r->numbered);
    const uint64_t sizes[] = {w->model->number, w->max_rows, w->max_logit_rows, w->context - VB_MAX_DRAFT - 1,
                              (uint64_t)w->expands, (uint64_t)exact};
    ranks_put(r, sizes, sizeof sizes);
    ranks_send(r);
    return ranks_agree(r, VB_OK, err);
}

static void put_end(struct vb_ranks *r, enum ranks_message message, uint32_t number)
{
    ranks_put_number(r, message);
    ranks_put_number(r, number);
    ranks_send(r);
}

void lead_no_workspace(struct workspace *w)
{
    if (w->number && led(w->model))
        put_end(w->model->ranks, RANKS_NO_WORK, w->number);
    w->number = 0;
}

int lead_pool(struct kvpool *pool, struct vb_ranks *r, vb_error *err)
{
    if (!r || r->op.rank)
        return VB_OK;
    pool->ranks = r;
    pool->number = ++r->numbered;
    ranks_put_number(r, RANKS_POOL);
    ranks_put_number(r, pool->number);
    const struct kv_layout *l = &pool->layout;
    const uint64_t sizes[] = {pool->layers, pool->capacity, (uint64_t)l->type, l->latent, l->rope, l->index_layers,
                              l->index_row};
    ranks_put(r, sizes, sizeof sizes);
    ranks_send(r);
    return ranks_agree(r, VB_OK, err);
}

void lead_no_pool(struct kvpool *pool)
{
    if (pool->ranks)
        put_end(pool->ranks, RANKS_NO_POOL, pool->number);
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

void lead_rows(const struct kvcache *c, size_t first, size_t count)
{
    const struct kvpool *p = c->pool;
    if (!p->ranks || !count)
        return;
    ranks_put_number(p->ranks, RANKS_ROWS);
    ranks_put_number(p->ranks, p->number);
    put_numbers(p->ranks, c->slots + first, count);
    for (size_t layer = 0; layer < p->layers; layer++)
        for (size_t i = first; i < first + count; i++)
            ranks_put(p->ranks, kvcache_row(c, layer, c->slots[i]), p->row * 4);
    for (size_t layer = 0; layer < p->layout.index_layers; layer++)
        for (size_t i = first; i < first + count; i++)
            ranks_put(p->ranks, kvcache_index_row(c, layer, c->slots[i]), p->layout.index_row);
    ranks_send(p->ranks);
}
