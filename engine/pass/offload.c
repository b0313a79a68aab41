/* engine/pass/offload.c -- moves the numbers of a pass between the CPU and a device. */
#include "engine/pass/offload.h"

#include <string.h>

#include "engine/base/numbers.h"
#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "engine/pass/forward_internal.h"

/* ---- workspaces ---- */

int offload_open(struct workspace *w, vb_error *err)
{
    struct device *d = w->model->device;
    size_t slots = w->max_rows * w->context;
    if (!d)
        return VB_OK;
    w->offload.rows = workspace_take(w, w->max_rows, sizeof *w->offload.rows);
    w->offload.slots = workspace_take(w, slots, sizeof *w->offload.slots);
    w->offload.first_bad_layer = workspace_take(w, w->max_rows, sizeof *w->offload.first_bad_layer);
    w->offload.kept_rows = workspace_take(w, w->kept_most ? w->max_rows : 0, sizeof *w->offload.kept_rows);
    if (!w->offload.rows || !w->offload.slots || !w->offload.first_bad_layer || !w->offload.kept_rows)
        return vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows over %zu tokens", w->max_rows, w->context);
    for (size_t i = 0; i < w->block_count; i++)
        if (device_add(d, w->blocks[i], w->block_bytes[i])) {
            offload_close(w);
            if (w->model->device_is_optional && !w->cx.tensor_cores) {
                d->left_to_cpu = 1;
                return VB_OK;
            }
            return vb_fail(err, VB_NO_MEMORY,
                           "%s has no memory for passes of %zu rows over %zu tokens: %.1f of %.1f MB are free; offload "
                           "fewer layers, or take a "
                           "shorter "
                           "context",
                           d->name, w->max_rows, w->context, 1e-6 * (double)(d->memory - d->taken),
                           1e-6 * (double)d->memory);
        }
    w->offload.device = d;
    return VB_OK;
}

void offload_close(struct workspace *w)
{
    for (size_t i = 0; w->model->device && i < OFFLOAD_SHAPES; i++)
        device_forget(w->model->device, w->offload.shapes[i].recording);
    memset(w->offload.shapes, 0, sizeof w->offload.shapes);
    for (size_t i = 0; w->model->device && i < w->block_count; i++)
        device_remove(w->model->device, w->blocks[i]);
    w->offload.device = NULL;
}

/* ---- cache rows ---- */

/* A part of a pool that has a twin: the cache rows, or the index cache, of the layers that the device computes. */
struct pool_part {
    char *at;
    size_t bytes;
};

static size_t layer_bytes(const struct kvpool *p) { return p->capacity * p->row * 4; }
static size_t index_layer_bytes(const struct kvpool *p) { return p->capacity * p->layout.index_row; }

static struct pool_part cache_part(const struct kvpool *p)
{
    return (struct pool_part){p->rows + p->first_on_device * layer_bytes(p),
                              (p->layers - p->first_on_device) * layer_bytes(p)};
}

static struct pool_part index_part(const struct kvpool *p)
{
    size_t layers = p->layout.index_layers > p->first_index_on_device
                        ? p->layout.index_layers - p->first_index_on_device
                        : 0;
    return (struct pool_part){layers ? p->index_rows + p->first_index_on_device * index_layer_bytes(p) : NULL,
                              layers * index_layer_bytes(p)};
}

/* The number of the first index cache among the layers from number `first` on. */
static size_t first_index(const struct workspace *w, const struct mtp_module *module, size_t first)
{
    const struct vb_model *m = w->model;
    size_t count = 0;
    for (size_t l = 0; l < first && !module; l++)
        count += m->layers[l].self_attn.has_indexer != 0;
    return count;
}

/* Gives the rows of the layers from `first` on a twin. If the device has no memory for them, attention of these layers
 * stays on the CPU. */
static int has_room(struct kvpool *p, struct device *d, size_t first, size_t first_of_index)
{
    if (p->device && p->first_on_device == first)
        return 1;
    if (p->too_large)
        return 0;
    offload_fetch_pool(p); /* another split was used before */
    offload_close_pool(p);
    p->first_on_device = first;
    p->first_index_on_device = first_of_index;
    struct pool_part cache = cache_part(p), index = index_part(p);
    p->device = d;
    p->too_large = device_add(d, cache.at, cache.bytes) || device_add(d, index.at, index.bytes);
    d->left_to_cpu |= p->too_large;
    if (p->too_large)
        offload_close_pool(p);
    return !p->too_large;
}

void offload_fetch_pool(struct kvpool *p)
{
    struct pool_part cache = cache_part(p), index = index_part(p);
    if (p->device && p->on_device) {
        device_read(p->device, cache.at, cache.bytes);
        device_read(p->device, index.at, index.bytes);
    }
    p->on_device = 0;
}

static void send_pool(struct kvpool *p)
{
    struct pool_part cache = cache_part(p), index = index_part(p);
    if (!p->on_device) {
        device_write(p->device, cache.at, cache.bytes);
        device_write(p->device, index.at, index.bytes);
    }
    p->on_device = 1;
}

void offload_close_pool(struct kvpool *p)
{
    if (p->device) {
        device_remove(p->device, cache_part(p).at);
        device_remove(p->device, index_part(p).at);
    }
    p->device = NULL;
}

/* ---- passes ---- */

/* The first cache layer whose attention the device computes; `layers` if there is none. */
static size_t first_layer(const struct workspace *w, const struct mtp_module *module)
{
    const struct vb_model *m = w->model;
    size_t l = (size_t)w->offload.cpu_layers;
    if (module)
        return l > m->config.dims.layers || !module->layer.attention_on_device;
    while (l < m->config.dims.layers && !m->layers[l].attention_on_device)
        l++;
    return l;
}

void offload_give_up(struct workspace *w, struct kvpool *p)
{
    w->model->device->left_to_cpu = 1;
    p->on_device = 0;
    offload_close_pool(p);
    offload_close(w);
}

int offload_reserve(const struct workspace *w, struct kvpool *p, vb_error *err)
{
    size_t first = first_layer(w, NULL);
    if (!w->cx.tensor_cores || first >= w->model->config.dims.layers ||
        has_room(p, w->offload.device, first, first_index(w, NULL, first)))
        return VB_OK;
    return vb_fail(err, VB_NO_MEMORY,
                   "%s has no memory for a KV cache of %zu tokens, which precision tensor wants there; offload fewer "
                   "layers, or take a shorter context",
                   w->offload.device->name, p->capacity);
}

static int may_use_device(const struct workspace *w, const struct row *rows, size_t S)
{
    int may = w->offload.device && !w->tapper && !w->cx.onednn &&
              w->offload.cpu_layers <= w->model->config.num_hidden_layers;
    for (size_t s = 0; s < S && may; s++)
        may = !rows[s].expanded && !rows[s].forced && !rows[s].taken && !rows[s].forced_kept && !rows[s].taken_kept;
    return may;
}

static const int32_t *slots_of(const struct row *row) { return row->slots ? row->slots : row->cache->slots; }

/* For a row of a layer with sparse attention: which tokens it attends to. An earlier row of this pass may have chosen
 * them, or an earlier pass: then the device gets them now. */
static void send_kept_row(struct workspace *w, const struct row *rows, size_t s)
{
    struct device *d = w->offload.device;
    struct device_row *all = &w->offload.rows[s], *kept = &w->offload.kept_rows[s];
    int sees_more = all->length > w->kept_most;
    size_t keeper = sees_more ? row_keeper(rows, s, s) : 0, given = sees_more && rows[s].use ? rows[s].use->count : 0;
    int32_t *slots = w->kept + s * w->kept_most;
    all->given = keeper || given;
    *kept = *all;
    if (keeper) {
        kept->slots = w->offload.kept_rows[keeper - 1].slots;
        kept->length = w->offload.kept_rows[keeper - 1].length;
    } else if (sees_more) {
        kept->slots = device_at(d, slots);
        kept->length = (uint32_t)(given ? given : w->kept_most);
    }
    if (given && !keeper)
        device_put(d, slots, rows[s].use->slots, given * sizeof *slots);
}

/* Tells the device where each row's cache rows are. Rows of one sequence share a list of slots. */
static void send_rows(struct workspace *w, const struct row *rows, size_t S)
{
    struct device *d = w->offload.device;
    const int32_t *slots = device_at(d, w->offload.slots);
    size_t used = 0, longest = 0;
    for (size_t s = 0; s < S; s++) {
        const struct kvpool *p = rows[s].cache->pool;
        struct pool_part cache = cache_part(p), index = index_part(p);
        size_t length = (size_t)(rows[s].index + 1 - rows[s].skipped);
        struct device_row *r = &w->offload.rows[s];
        int shares = s && slots_of(&rows[s]) == slots_of(&rows[s - 1]) && length > w->offload.rows[s - 1].length;
        size_t from = shares ? used - w->offload.rows[s - 1].length : used;
        *r = (struct device_row){.rows = (char *)device_at(d, cache.at) - p->first_on_device * layer_bytes(p),
                                 .layer_bytes = layer_bytes(p), .slots = slots + from, .length = (uint32_t)length,
                                 .slot = rows[s].slot, .query_scale = forward_query_scale(w, &rows[s]),
                                 .index_layer_bytes = index_layer_bytes(p)};
        if (index.at)
            r->index_rows = (char *)device_at(d, index.at) - p->first_index_on_device * index_layer_bytes(p);
        memcpy(w->offload.slots + from, slots_of(&rows[s]), length * sizeof *slots);
        used = from + length;
        longest = max_size(longest, length);
        if (w->kept_most)
            send_kept_row(w, rows, s);
    }
    w->offload.longest = offload_longest(longest);
    device_write(d, w->offload.slots, used * sizeof *slots);
    device_write(d, w->offload.rows, S * sizeof *w->offload.rows);
    if (w->kept_most)
        device_write(d, w->offload.kept_rows, S * sizeof *w->offload.kept_rows);
    device_write(d, w->cos_sin, S * w->rope.dim * sizeof *w->cos_sin);
}

const char *offload_failed(const struct workspace *w)
{
    const char *failure = w->offload.device ? device_failure(w->offload.device) : NULL;
    if (!failure && w->offload.refused == REFUSED_PASS)
        return "a GPU's tensor cores should compute this pass, but the CPU computes passes with taps, with forced or "
               "recorded routes, and with prefill expanded or onednn";
    return !failure && w->offload.refused == REFUSED_CACHE
               ? "a GPU's tensor cores should compute, and the GPU has no memory for the KV cache; offload fewer "
                 "layers, or take a shorter context"
               : failure;
}

void offload_begin(struct workspace *w, const struct mtp_module *module, const struct row *rows, size_t S)
{
    struct device *d = w->offload.device;
    size_t first = first_layer(w, module), last = module ? 1 : w->model->config.dims.layers;
    if (!w->model->device)
        return;
    w->offload.x_is_there = 0;
    w->offload.kept_is_there = 0;
    w->offload.from = module ? 0 : (size_t)w->offload.cpu_layers;
    w->offload.parts = may_use_device(w, rows, S);
    w->offload.attention = w->offload.parts && first < last;
    for (size_t s = 0; s < S && w->offload.attention; s++)
        w->offload.attention = has_room(rows[s].cache->pool, d, first, first_index(w, module, first));
    if ((w->cx.tensor_cores || w->cx.cublas) && !module) /* the CPU would compute other bits; those of drafts need not
                                                            be the same */
        w->offload.refused = !w->offload.parts ? REFUSED_PASS
                             : first < last && !w->offload.attention ? REFUSED_CACHE
                             : NOT_REFUSED;
    for (size_t s = 0; s < S; s++)
        if (w->offload.attention)
            send_pool(rows[s].cache->pool);
        else
            offload_fetch_pool(rows[s].cache->pool);
    if (w->offload.attention)
        send_rows(w, rows, S);
    if (w->offload.parts && !module) {
        memset(w->offload.first_bad_layer, -1, S * sizeof *w->offload.first_bad_layer);
        device_write(d, w->offload.first_bad_layer, S * sizeof *w->offload.first_bad_layer);
    }
}

void offload_note_bad_layers(struct workspace *w, size_t S)
{
    if (!w->offload.parts)
        return;
    device_read(w->offload.device, w->offload.first_bad_layer, S * sizeof *w->offload.first_bad_layer);
    for (size_t s = 0; s < S; s++) {
        int32_t there = w->offload.first_bad_layer[s], here = w->first_bad_layer[s];
        if (there >= 0 && (here < 0 || there < here))
            w->first_bad_layer[s] = there;
    }
}

void offload_place(struct workspace *w, int on_device, size_t S)
{
    struct device *d = w->offload.device;
    size_t bytes = S * w->model->config.dims.d * sizeof *w->x;
    on_device = on_device && w->offload.parts;
    if (on_device && !w->offload.x_is_there)
        device_write(d, w->x, bytes);
    if (!on_device && w->offload.x_is_there)
        device_read(d, w->x, bytes);
    w->offload.x_is_there = on_device;
    w->cx.device = on_device ? d : NULL;
}

/* ---- recordings ---- */

static int is_whole(const struct workspace *w, const struct mtp_module *module)
{
    const struct vb_model *m = w->model;
    int whole = w->offload.parts && w->offload.attention && !w->offload.from && !w->three && !w->two;
    for (size_t l = 0; l < m->config.dims.layers && whole && !module; l++)
        whole = m->layers[l].attention_on_device && m->layers[l].mlp_on_device;
    return whole && (!module || module->layer.mlp_on_device);
}

int offload_replay(struct workspace *w, const struct mtp_module *module, size_t S)
{
    if (S > OFFLOAD_MOST_ROWS || w->cx.cublas || !is_whole(w, module))
        return 0;
    offload_place(w, 1, S);
    for (size_t i = 0; i < OFFLOAD_SHAPES; i++) {
        const struct offload_shape *k = &w->offload.shapes[i];
        if (k->recording && k->module == module && k->S == S && k->longest == w->offload.longest) {
            device_replay(w->offload.device, k->recording);
            return 1;
        }
    }
    device_record(w->offload.device);
    w->offload.records = 1;
    return 0;
}

void offload_recorded(struct workspace *w, const struct mtp_module *module, size_t S)
{
    struct offload_shape *k = &w->offload.shapes[w->offload.recorded % OFFLOAD_SHAPES];
    if (!w->offload.records)
        return;
    w->offload.records = 0;
    device_forget(w->offload.device, k->recording);
    *k = (struct offload_shape){module, S, w->offload.longest, device_recorded(w->offload.device)};
    w->offload.recorded += k->recording != NULL;
    device_replay(w->offload.device, k->recording);
}

/* ---- parts on both sides ---- */

void offload_send_kept(struct workspace *w, size_t S)
{
    if (!w->offload.kept_is_there)
        device_write(w->offload.device, w->kept, S * w->kept_most * sizeof *w->kept);
    w->offload.kept_is_there = 1;
}

void offload_keep(struct workspace *w, const struct row *rows, size_t S)
{
    for (size_t s = 0; s < S && w->offload.attention; s++) {
        struct kept_tokens *keep = rows[s].keep;
        if (!keep)
            continue;
        keep->count = w->offload.kept_rows[s].length;
        if (w->offload.rows[s].length > w->kept_most)
            device_get(w->offload.device, keep->slots, w->kept + s * w->kept_most, keep->count * sizeof *keep->slots);
        else
            memcpy(keep->slots, slots_of(&rows[s]), keep->count * sizeof *keep->slots);
    }
}

void offload_show_x(struct workspace *w, size_t S)
{
    if (w->offload.x_is_there)
        device_read(w->offload.device, w->x, S * w->model->config.dims.d * sizeof *w->x);
}

void offload_concat(struct workspace *w, int on_device, size_t S)
{
    if (!on_device || !w->offload.parts)
        return;
    w->cx.device = w->offload.device;
    w->offload.x_is_there = 1;
    device_write(w->cx.device, w->concat, S * 2 * w->model->config.dims.d * sizeof *w->concat);
}

/* ---- output heads ---- */

static int head_is_there(const struct workspace *w, const struct weight_view *head)
{
    struct device *d = w->offload.device;
    return d && w->offload.cpu_layers <= w->model->config.num_hidden_layers && device_has(d, head->data) &&
           head->rows == w->model->config.dims.V;
}

/* Either logits or best is not NULL. */
static int compute_head(struct workspace *w, const struct weight_view *head, float *logits, int32_t *best,
                        const float *hidden, size_t S)
{
    struct device *d = w->offload.device;
    size_t dim = w->model->config.dims.d, V = head->rows;
    if (!head_is_there(w, head))
        return 0;
    w->cx.device = d;
    for (size_t s = 0, some; s < S; s += some) {
        some = min_size(S - s, min_size(w->max_logit_rows, w->max_rows));
        device_put(d, w->concat, hidden + s * dim, some * dim * sizeof *hidden);
        op_linear(&w->cx, w->logits, w->concat, head, some);
        if (logits) {
            device_get(d, logits + s * V, w->logits, some * V * sizeof *logits);
        } else {
            op_argmax(&w->cx, w->ids, w->logits, some, V);
            device_get(d, best + s, w->ids, some * sizeof *best);
        }
    }
    w->cx.device = NULL;
    return 1;
}

int offload_head(struct workspace *w, const struct weight_view *head, float *logits, const float *hidden, size_t S)
{
    return compute_head(w, head, logits, NULL, hidden, S);
}

int offload_head_best(struct workspace *w, const struct weight_view *head, int32_t *best, const float *hidden, size_t S)
{
    return compute_head(w, head, NULL, best, hidden, S);
}
