/* engine/pass/offload.c -- moves the numbers of a pass between the CPU and a device. */
#include "engine/pass/offload.h"

#include <string.h>

#include "numbers/numbers.h"
#include "engine/pass/attend.h"
#include "engine/pass/indexing.h"
#include "engine/pass/layer.h"
#include "engine/pass/runner.h"
#include "ops/cuda/indexer.h"
#include "ops/cuda/operators.h"

static const struct runner runner_device;
static void offload_close(struct pass *p);

/* ---- memory ---- */

size_t offload_scratch(const struct pass *p)
{
    const struct dims *dims = &p->model->config.dims;
    size_t S = p->w.max_rows, longest = offload_longest(p->w.context);
    struct attention attention = {.heads = dims->H, .nope = dims->n, .rope = dims->r, .value = dims->v,
                                  .latent = dims->c, .cache = model_cache_layout(&p->model->config).type};
    size_t bytes = max_size(cuda_attention_scratch(&attention, S, longest), cuda_argmax_scratch(S, dims->V));
    return !p->model->device ? 0 : p->w.kept_most ? max_size(bytes, cuda_index_scratch(S, longest)) : bytes;
}

int offload_open(struct pass *p, vb_error *err)
{
    struct device *d = p->model->device;
    struct workspace *w = &p->w;
    struct offload *o = d ? workspace_take(w, 1, sizeof *o) : NULL;
    if (!d)
        return VB_OK;
    if (o)
        *o = (struct offload){.rows = workspace_take(w, w->max_rows, sizeof *o->rows),
                              .slots = workspace_take(w, w->max_rows * w->context, sizeof *o->slots),
                              .first_bad_layer = workspace_take(w, w->max_rows, sizeof *o->first_bad_layer),
                              .kept_rows = workspace_take(w, w->kept_most ? w->max_rows : 0, sizeof *o->kept_rows)};
    if (!o || !o->rows || !o->slots || !o->first_bad_layer || !o->kept_rows)
        return vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows over %zu tokens", w->max_rows, w->context);
    p->offload = o;
    p->runner = &runner_device;
    for (size_t i = 0; i < w->block_count; i++)
        if (device_add(d, w->blocks[i], w->block_bytes[i])) {
            offload_close(p);
            if (p->model->device_is_optional && !p->arithmetic.tensor_cores) {
                d->left_to_cpu = 1;
                return VB_OK;
            }
            return vb_fail(err, VB_NO_MEMORY,
                           "%s has no memory for passes of %zu rows over %zu tokens: %.1f of %.1f MB are free; offload "
                           "fewer layers, or take a shorter context",
                           d->name, w->max_rows, w->context, 1e-6 * (double)(d->memory - d->taken),
                           1e-6 * (double)d->memory);
        }
    o->device = d;
    return VB_OK;
}

static void offload_close(struct pass *p)
{
    struct offload *o = p->offload;
    for (size_t i = 0; i < OFFLOAD_SHAPES; i++)
        device_forget(p->model->device, o->shapes[i].recording);
    memset(o->shapes, 0, sizeof o->shapes);
    for (size_t i = 0; i < p->w.block_count; i++)
        device_remove(p->model->device, p->w.blocks[i]);
    o->device = NULL;
}

/* ---- cache rows ---- */

/* What the device has of a pool. */
struct device_pool {
    struct pool_twin twin;  /* the first member, so it has the same address */
    const vb_allocator *allocator;
    struct device *device;  /* has a copy of the rows of the layers from first_on_device on; NULL: there is none */
    size_t first_on_device, first_index_on_device; /* the latter: of the index cache */
    int on_device;          /* nonzero: this copy is up to date, and the pool's own rows are not */
    int too_large;          /* nonzero: the device has no memory for the rows */
};

static struct device_pool *device_pool(const struct kvpool *p) { return (struct device_pool *)(void *)p->twin; }

/* The part of a pool of which the device has a copy: the cache rows, or the index cache, of the layers that it
 * computes. */
struct pool_part {
    char *at;
    size_t bytes;
};

static size_t layer_bytes(const struct kvpool *p) { return p->capacity * p->row * 4; }
static size_t index_layer_bytes(const struct kvpool *p) { return p->capacity * p->layout.index_row; }

static struct pool_part cache_part(const struct kvpool *p)
{
    size_t first = device_pool(p)->first_on_device;
    return (struct pool_part){p->rows + first * layer_bytes(p), (p->layers - first) * layer_bytes(p)};
}

static struct pool_part index_part(const struct kvpool *p)
{
    size_t first = device_pool(p)->first_index_on_device;
    size_t layers = p->layout.index_layers > first ? p->layout.index_layers - first : 0;
    return (struct pool_part){layers ? p->index_rows + first * index_layer_bytes(p) : NULL,
                              layers * index_layer_bytes(p)};
}

static void remove_copy(struct kvpool *p)
{
    struct device_pool *x = device_pool(p);
    if (x->device) {
        device_remove(x->device, cache_part(p).at);
        device_remove(x->device, index_part(p).at);
    }
    x->device = NULL;
}

static void fetch_pool(struct kvpool *p)
{
    struct device_pool *x = device_pool(p);
    struct pool_part cache = cache_part(p), index = index_part(p);
    if (x->device && x->on_device) {
        device_read(x->device, cache.at, cache.bytes);
        device_read(x->device, index.at, index.bytes);
    }
    x->on_device = 0;
}

/* The next pass of the device writes all rows to it again. */
static void pool_changed(const struct kvcache *c, size_t first, size_t count) { (void)c, (void)first, (void)count; }

static void pool_closed(struct kvpool *p)
{
    remove_copy(p);
    vb_free(device_pool(p)->allocator, p->twin);
}

static const struct pool_twin_type device_twin = {fetch_pool, pool_changed, pool_closed};

static struct device_pool *twin_of(const struct pass *p, struct kvpool *pool)
{
    struct device_pool *x = pool->twin ? device_pool(pool) : vb_alloc(p->model->allocator, 1, sizeof *x);
    if (x && !pool->twin) {
        *x = (struct device_pool){.twin = {&device_twin}, .allocator = p->model->allocator};
        pool->twin = &x->twin;
    }
    return x;
}

/* The number of the first index cache among the layers from number `first` on. */
static size_t first_index(const struct pass *p, size_t first)
{
    const struct vb_model *m = p->model;
    size_t count = 0;
    for (size_t l = 0; l < first && !p->module; l++)
        count += m->layers[l].self_attn.has_indexer != 0;
    return count;
}

/* Copies the rows of the layers from `first` on to the device. If it has no memory for them, attention of these layers
 * stays on the CPU. */
static int has_room(const struct pass *p, struct kvpool *pool, size_t first)
{
    struct device *d = p->offload->device;
    struct device_pool *x = twin_of(p, pool);
    if (x && x->device && x->first_on_device == first)
        return 1;
    if (!x || x->too_large)
        return 0;
    fetch_pool(pool); /* another split was used before */
    remove_copy(pool);
    x->first_on_device = first;
    x->first_index_on_device = first_index(p, first);
    struct pool_part cache = cache_part(pool), index = index_part(pool);
    x->device = d;
    x->too_large = device_add(d, cache.at, cache.bytes) || device_add(d, index.at, index.bytes);
    d->left_to_cpu |= x->too_large;
    if (x->too_large)
        remove_copy(pool);
    return !x->too_large;
}

static void send_pool(struct kvpool *p)
{
    struct device_pool *x = device_pool(p);
    struct pool_part cache = cache_part(p), index = index_part(p);
    if (!x->on_device) {
        device_write(x->device, cache.at, cache.bytes);
        device_write(x->device, index.at, index.bytes);
    }
    x->on_device = 1;
}

/* ---- passes ---- */

/* The first cache layer whose attention the device computes; `layers` if there is none. */
static size_t first_layer(const struct pass *p)
{
    const struct vb_model *m = p->model;
    size_t l = (size_t)p->offload->cpu_layers;
    if (p->module)
        return l > m->config.dims.layers || !p->module->layer.attention_on_device;
    while (l < m->config.dims.layers && !m->layers[l].attention_on_device)
        l++;
    return l;
}

void offload_give_up(struct pass *p, struct kvpool *pool)
{
    p->model->device->left_to_cpu = 1;
    if (pool->twin) {
        device_pool(pool)->on_device = 0;
        remove_copy(pool);
    }
    offload_close(p);
}

int offload_reserve(struct pass *p, struct kvpool *pool, vb_error *err)
{
    p->module = NULL;
    if (!p->offload || !p->arithmetic.tensor_cores || first_layer(p) >= p->model->config.dims.layers ||
        has_room(p, pool, first_layer(p)))
        return VB_OK;
    return vb_fail(err, VB_NO_MEMORY,
                   "%s has no memory for a KV cache of %zu tokens, which precision tensor wants there; offload fewer "
                   "layers, or take a shorter context",
                   p->offload->device->name, pool->capacity);
}

static int may_use_device(const struct pass *p)
{
    const struct offload *o = p->offload;
    int may = o->device && !p->tapper && !p->cx.arithmetic->onednn &&
              o->cpu_layers <= p->model->config.num_hidden_layers;
    for (const struct row *row = p->rows; row < p->rows + p->S && may; row++)
        may = !row->expanded && !row->forced && !row->taken && !row->forced_kept && !row->taken_kept;
    return may;
}

static const int32_t *slots_of(const struct row *row) { return row->slots ? row->slots : row->cache->slots; }

/* For a row of a layer with sparse attention: which tokens it attends to. An earlier row of this pass may have chosen
 * them, or an earlier pass: then the device gets them now. */
static void send_kept_row(struct pass *p, size_t s)
{
    const struct row *rows = p->rows;
    struct offload *o = p->offload;
    struct row_place *all = &o->rows[s], *kept = &o->kept_rows[s];
    int sees_more = all->length > p->w.kept_most;
    size_t keeper = sees_more ? row_keeper(rows, s, s) : 0, given = sees_more && rows[s].use ? rows[s].use->count : 0;
    int32_t *slots = p->w.kept + s * p->w.kept_most;
    all->given = keeper || given;
    *kept = *all;
    if (keeper) {
        kept->slots = o->kept_rows[keeper - 1].slots;
        kept->length = o->kept_rows[keeper - 1].length;
    } else if (sees_more) {
        kept->slots = device_at(o->device, slots);
        kept->length = (uint32_t)(given ? given : p->w.kept_most);
    }
    if (given && !keeper)
        device_put(o->device, slots, rows[s].use->slots, given * sizeof *slots);
}

/* Tells the device where each row's cache rows are. Rows of one sequence share a list of slots. */
static void send_rows(struct pass *p)
{
    struct offload *o = p->offload;
    struct device *d = o->device;
    const struct row *rows = p->rows;
    const int32_t *slots = device_at(d, o->slots);
    size_t used = 0, longest = 0;
    for (size_t s = 0; s < p->S; s++) {
        const struct kvpool *pool = rows[s].cache->pool;
        const struct device_pool *x = device_pool(pool);
        struct pool_part cache = cache_part(pool), index = index_part(pool);
        size_t length = (size_t)(rows[s].index + 1 - rows[s].skipped);
        struct row_place *r = &o->rows[s];
        int shares = s && slots_of(&rows[s]) == slots_of(&rows[s - 1]) && length > o->rows[s - 1].length;
        size_t from = shares ? used - o->rows[s - 1].length : used;
        *r = (struct row_place){.rows = (char *)device_at(d, cache.at) - x->first_on_device * layer_bytes(pool),
                                 .layer_bytes = layer_bytes(pool), .slots = slots + from, .length = (uint32_t)length,
                                 .slot = rows[s].slot, .query_scale = query_scale(p, &rows[s]),
                                 .index_layer_bytes = index_layer_bytes(pool)};
        if (index.at)
            r->index_rows = (char *)device_at(d, index.at) - x->first_index_on_device * index_layer_bytes(pool);
        memcpy(o->slots + from, slots_of(&rows[s]), length * sizeof *slots);
        used = from + length;
        longest = max_size(longest, length);
        if (p->w.kept_most)
            send_kept_row(p, s);
    }
    o->longest = offload_longest(longest);
    device_write(d, o->slots, used * sizeof *slots);
    device_write(d, o->rows, p->S * sizeof *o->rows);
    if (p->w.kept_most)
        device_write(d, o->kept_rows, p->S * sizeof *o->kept_rows);
    device_write(d, p->w.cos_sin, p->S * p->rope.dim * sizeof *p->w.cos_sin);
}

const char *offload_failed(const struct pass *p)
{
    const struct offload *o = p->offload;
    const char *failure = o && o->device ? device_failure(o->device) : NULL;
    if (o && !failure && o->refused == REFUSED_PASS)
        return "a GPU's tensor cores should compute this pass, but the CPU computes passes with taps, with forced or "
               "recorded routes, and "
               "with prefill expanded or onednn";
    return o && !failure && o->refused == REFUSED_CACHE
               ? "a GPU's tensor cores should compute, and the GPU has no memory for the KV cache; offload fewer "
                 "layers, or take a shorter "
                 "context"
               : failure;
}

static void begin(struct pass *p)
{
    struct offload *o = p->offload;
    size_t first = first_layer(p), last = p->module ? 1 : p->model->config.dims.layers;
    o->x_is_there = 0;
    o->kept_is_there = 0;
    o->from = p->module ? 0 : (size_t)o->cpu_layers;
    o->parts = may_use_device(p);
    o->attention = o->parts && first < last;
    for (size_t s = 0; s < p->S && o->attention; s++)
        o->attention = has_room(p, p->rows[s].cache->pool, first);
    /* the CPU would compute other bits; those of drafts need not be the same */
    if ((p->cx.arithmetic->tensor_cores || p->cx.arithmetic->cublas) && !p->module)
        o->refused = !o->parts ? REFUSED_PASS : first < last && !o->attention ? REFUSED_CACHE : NOT_REFUSED;
    for (size_t s = 0; s < p->S; s++)
        if (o->attention)
            send_pool(p->rows[s].cache->pool);
        else
            kvpool_fetch(p->rows[s].cache->pool);
    if (o->attention)
        send_rows(p);
    if (o->parts && !p->module) {
        memset(o->first_bad_layer, -1, p->S * sizeof *o->first_bad_layer);
        device_write(o->device, o->first_bad_layer, p->S * sizeof *o->first_bad_layer);
    }
}

/* At the end of a pass of the target: p->w.first_bad_layer also counts the layers whose output the device has. */
static void note_bad_layers(struct pass *p)
{
    struct offload *o = p->offload;
    if (!o->parts)
        return;
    device_read(o->device, o->first_bad_layer, p->S * sizeof *o->first_bad_layer);
    for (size_t s = 0; s < p->S; s++) {
        int32_t there = o->first_bad_layer[s], here = p->w.first_bad_layer[s];
        if (there >= 0 && (here < 0 || there < here))
            p->w.first_bad_layer[s] = there;
    }
}

/* ---- on which side ---- */

static void show(struct pass *p, float *array, size_t count)
{
    device_read(p->offload->device, array, count * sizeof *array);
}

/* Whether rows of this pass may see more tokens than an indexer keeps. It depends on the shape of the pass alone:
 * single rows may see fewer. */
static int chooses(const struct pass *p)
{
    return p->w.kept_most && !p->l->self_attn.sees_all && p->offload->longest > p->w.kept_most;
}

/* The device gets the tokens that an indexer of the CPU chose, once in a pass. */
static void send_kept(struct pass *p)
{
    if (!p->offload->kept_is_there)
        device_write(p->offload->device, p->w.kept, p->S * p->w.kept_most * sizeof *p->w.kept);
    p->offload->kept_is_there = 1;
}

/* A layer without an indexer needs the choice of an earlier layer, which the CPU may have computed. */
static void choose_on_device(struct pass *p)
{
    const struct mla *a = &p->l->self_attn;
    struct indexer ix = index_of(p);
    struct device_index x = {.indexer = &ix, .rope = &p->index_rope, .cos_sin = p->w.cos_sin, .rows = p->offload->rows,
                             .layer = a->indexer.number, .longest = p->offload->longest};
    if (a->has_indexer)
        cuda_index_keys(&p->cx, p->w.index_k, a->indexer.k_norm, a->indexer.k_norm_bias, &x, p->S);
    if (!chooses(p))
        return;
    if (a->has_indexer) {
        op_enter(&p->cx, PART_INDEXER);
        p->cx.op->linear(&p->cx, p->w.index_q, p->w.q_a, &a->indexer.wq_b, p->S);
        index_head_weights(p, p->w.index_w, p->w.normed, p->S);
        cuda_index_choose(&p->cx, p->w.kept, p->w.index_q, p->w.index_w, &x, p->S);
        p->offload->kept_is_there = 1;
    }
    send_kept(p);
}

/* From here on, operators compute on the device if `on_device` is nonzero and the pass may use it. x moves there. */
static void place(struct pass *p, int on_device)
{
    struct offload *o = p->offload;
    size_t bytes = p->S * p->model->config.dims.d * sizeof *p->w.x;
    on_device = on_device && o->parts;
    if (on_device && !o->x_is_there)
        device_write(o->device, p->w.x, bytes);
    if (!on_device && o->x_is_there)
        device_read(o->device, p->w.x, bytes);
    o->x_is_there = on_device;
    operators_place(&p->cx, on_device ? o->device : NULL);
    p->side = runner_side(p);
    if (on_device)
        p->side = (struct side){.places = o->rows, .first_bad_layer = o->first_bad_layer,
                                .choose_tokens = choose_on_device, .show = show};
}

static void layer(struct pass *p)
{
    struct offload *o = p->offload;
    int may = p->cache_layer >= o->from;
    place(p, p->l->attention_on_device && o->attention && may);
    p->side.attended = o->attention && chooses(p) ? o->kept_rows : o->rows;
    p->side.longest = o->attention && chooses(p) ? p->w.kept_most : o->longest;
    layer_attention(p);
    place(p, p->l->mlp_on_device && may);
    layer_feed_forward(p);
}

/* ---- recordings ---- */

static int keeps_layers(const struct pass *p)
{
    int keeps = 0;
    for (size_t i = 0; i < p->keeps; i++)
        keeps |= p->keep[i].layer >= 0;
    return keeps;
}

static int is_whole(const struct pass *p)
{
    const struct vb_model *m = p->model;
    const struct offload *o = p->offload;
    int whole = o->parts && o->attention && !o->from && !keeps_layers(p);
    for (size_t l = 0; l < m->config.dims.layers && whole && !p->module; l++)
        whole = m->layers[l].attention_on_device && m->layers[l].mlp_on_device;
    return whole && (!p->module || p->module->layer.mlp_on_device);
}

/* If the device computes all layers of the pass, the layers of a pass of this shape are recorded once. Returns 1 if
 * there was such a recording: then it was replayed. Else the caller gives the layers to the operators and calls
 * end_recording. */
static int replay(struct pass *p)
{
    struct offload *o = p->offload;
    if (p->S > OFFLOAD_MOST_ROWS || p->cx.arithmetic->cublas || !is_whole(p))
        return 0;
    place(p, 1);
    for (size_t i = 0; i < OFFLOAD_SHAPES; i++) {
        const struct offload_shape *k = &o->shapes[i];
        if (k->recording && k->module == p->module && k->S == p->S && k->longest == o->longest) {
            device_replay(o->device, k->recording);
            return 1;
        }
    }
    device_record(o->device);
    o->records = 1;
    p->asks = 0;
    return 0;
}

static void end_recording(struct pass *p)
{
    struct offload *o = p->offload;
    struct offload_shape *k = &o->shapes[o->recorded % OFFLOAD_SHAPES];
    if (!o->records)
        return;
    o->records = 0;
    device_forget(o->device, k->recording);
    *k = (struct offload_shape){p->module, p->S, o->longest, device_recorded(o->device)};
    o->recorded += k->recording != NULL;
    device_replay(o->device, k->recording);
}

/* ---- the runner ---- */

static int target(struct pass *p)
{
    begin(p);
    runner_embedding(p);
    int stopped = runner_is_stopped(p);
    if (!stopped && !replay(p)) {
        stopped = runner_layers(p, layer);
        end_recording(p);
    }
    place(p, 0);
    note_bad_layers(p);
    if (!stopped)
        runner_norm(p);
    return stopped ? -1 : 0;
}

/* The input of eh_proj goes to the device, which computes x from it. */
static void place_module(struct pass *p)
{
    struct offload *o = p->offload;
    if (!p->l->attention_on_device || !o->parts)
        return;
    operators_place(&p->cx, o->device);
    o->x_is_there = 1;
    device_write(o->device, p->w.concat, p->S * 2 * p->model->config.dims.d * sizeof *p->w.concat);
}

/* Rows that keep the tokens to which they attended get them from the device, if it computed their attention. */
static void keep_tokens(struct pass *p)
{
    struct offload *o = p->offload;
    for (size_t s = 0; s < p->S && o->attention && !p->l->self_attn.sees_all; s++) {
        struct kept_tokens *keep = p->rows[s].keep;
        if (!keep)
            continue;
        keep->count = o->kept_rows[s].length;
        if (o->rows[s].length > p->w.kept_most)
            device_get(o->device, keep->slots, p->w.kept + s * p->w.kept_most, keep->count * sizeof *keep->slots);
        else
            memcpy(keep->slots, slots_of(&p->rows[s]), keep->count * sizeof *keep->slots);
    }
}

static void module(struct pass *p)
{
    begin(p);
    module_input(p);
    place_module(p);
    if (!replay(p)) {
        module_projection(p);
        layer(p);
        end_recording(p);
    }
    keep_tokens(p);
    place(p, 0);
    module_output(p);
}

/* ---- output heads ---- */

static int head_is_there(const struct pass *p, const struct weight_view *head)
{
    struct device *d = p->offload->device;
    return d && p->offload->cpu_layers <= p->model->config.num_hidden_layers && device_has(d, head->data) &&
           head->rows == p->model->config.dims.V;
}

/* Multiplies `hidden` by a head that the device has. Either logits or best is not NULL. */
static void compute_head(struct pass *p, const struct weight_view *head, float *logits, int32_t *best,
                         const float *hidden, size_t S)
{
    struct device *d = p->offload->device;
    struct workspace *w = &p->w;
    size_t dim = p->model->config.dims.d, V = head->rows;
    op_enter(&p->cx, PART_HEAD);
    operators_place(&p->cx, d);
    for (size_t s = 0, some; s < S; s += some) {
        some = min_size(S - s, min_size(w->max_logit_rows, w->max_rows));
        device_put(d, w->concat, hidden + s * dim, some * dim * sizeof *hidden);
        p->cx.op->linear(&p->cx, w->logits, w->concat, head, some);
        if (logits) {
            device_get(d, logits + s * V, w->logits, some * V * sizeof *logits);
        } else {
            p->cx.op->argmax(&p->cx, w->ids, w->logits, some, V);
            device_get(d, best + s, w->ids, some * sizeof *best);
        }
    }
    operators_place(&p->cx, NULL);
    op_enter(&p->cx, PART_OUTSIDE);
}

static void head(struct pass *p, const struct weight_view *head, float *logits, const float *hidden, size_t S)
{
    if (head_is_there(p, head))
        compute_head(p, head, logits, NULL, hidden, S);
    else
        runner_cpu.head(p, head, logits, hidden, S);
}

static void best(struct pass *p, const struct weight_view *head, int32_t *best, const float *hidden, size_t S)
{
    if (head_is_there(p, head))
        compute_head(p, head, NULL, best, hidden, S);
    else
        runner_cpu.best(p, head, best, hidden, S);
}

static void listed(struct pass *p, const vb_draft_vocab *vocab, int number, float *logits, const float *hidden,
                   size_t S)
{
    runner_cpu.listed(p, vocab, number, logits, hidden, S);
}

static const struct runner runner_device = {.target = target, .module = module, .head = head, .best = best,
                                            .listed = listed, .close = offload_close};
