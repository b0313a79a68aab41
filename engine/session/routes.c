/* engine/session/routes.c -- checks, copies and compares routes. */
#include "engine/session/routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash64.h"

void vb_model_routes(const vb_model *m, vb_routes *out)
{
    int has_moe = config_has_layers(&m->config, 1);
    *out = (vb_routes){.layers = m->config.num_hidden_layers, .top_k = has_moe ? (int32_t)m->config.dims.chosen : 0,
                        .index_topk = m->config.index_topk};
}

int vb_is_moe_layer(const vb_model *m, int32_t layer)
{
    return layer >= 0 && layer < m->config.num_hidden_layers && config_layer_is_moe(&m->config, layer);
}

int vb_has_indexer(const vb_model *m, int32_t layer)
{
    return layer >= 0 && layer < m->config.num_hidden_layers && m->layers[layer].self_attn.has_indexer;
}

/* Copies the experts of one token in one layer to `to`, in ascending order. Returns 0 if an expert is there twice. */
static int sort(int32_t *to, const int32_t *from, int32_t n)
{
    for (int32_t i = 0, at; i < n; i++) {
        for (at = i; at > 0 && to[at - 1] > from[i]; at--)
            to[at] = to[at - 1];
        to[at] = from[i];
        if (at > 0 && to[at - 1] == from[i] && from[i] >= 0)
            return 0;
    }
    return 1;
}

static int all_missing(const int32_t *experts, int32_t n)
{
    while (n > 0 && experts[n - 1] == -1)
        n--;
    return n == 0;
}

/* Checks the experts of one token in a MoE layer, and sorts them. */
static int take_layer(const struct vb_model *m, int32_t *to, const int32_t *experts, size_t token, int32_t layer,
                      vb_error *err)
{
    int32_t n = (int32_t)m->config.dims.chosen, E = (int32_t)m->config.dims.E;
    for (int32_t i = 0; i < n && !all_missing(experts, n); i++)
        if (experts[i] < 0 || experts[i] >= E)
            return vb_fail(err, VB_BAD_ARGUMENT, "the routes send token %zu in layer %d to expert %d, wanted 0 to %d",
                           token, layer, experts[i], E - 1);
    if (!sort(to, experts, n))
        return vb_fail(err, VB_BAD_ARGUMENT, "the routes send token %zu in layer %d to the same expert twice", token,
                       layer);
    return VB_OK;
}

/* Whether a layer of routes is a MoE layer; those after the target's are the MTP depths. */
static int is_moe(const struct vb_model *m, int32_t layer)
{
    int32_t depth = layer - m->config.num_hidden_layers;
    return depth < 0 ? vb_is_moe_layer(m, layer) : m->mtp[depth % m->num_mtp].layer.is_moe;
}

static int by_number(const void *p, const void *q)
{
    int32_t a = *(const int32_t *)p, b = *(const int32_t *)q;
    return (a > b) - (a < b);
}

/* Checks the set of one token in a layer with an indexer, and sorts it. The token can see `seen` rows. */
static int take_set(int32_t *to, const int32_t *set, int32_t topk, int32_t seen, size_t token, int32_t layer,
                    vb_error *err)
{
    int32_t want = seen < topk ? seen : topk, n = 0;
    if (all_missing(set, topk))
        return VB_OK;
    while (n < topk && set[n] != -1)
        n++;
    if (n != want || !all_missing(set + n, topk - n))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "the kept set of token %zu in layer %d has %d numbers and then -1, wanted %d of the %d tokens "
                       "that it "
                       "can see",
                       token, layer, n, want, seen);
    for (int32_t i = 0; i < n; i++)
        if (set[i] < 0 || set[i] >= seen)
            return vb_fail(err, VB_BAD_ARGUMENT,
                           "the kept set of token %zu in layer %d contains token %d, wanted 0 to %d", token, layer,
                           set[i], seen - 1);
    memcpy(to, set, (size_t)n * sizeof *to);
    qsort(to, (size_t)n, sizeof *to, by_number);
    for (int32_t i = 1; i < n; i++)
        if (to[i] == to[i - 1])
            return vb_fail(err, VB_BAD_ARGUMENT, "the kept set of token %zu in layer %d contains token %d twice", token,
                           layer, to[i]);
    if (n < topk || n == seen)
        memset(to, 0xff, (size_t)topk * sizeof *to); /* all are kept anyway */
    return VB_OK;
}

static int has_indexer(const struct vb_model *m, int32_t layer)
{
    int32_t depth = layer - m->config.num_hidden_layers;
    return depth < 0 ? vb_has_indexer(m, layer) : m->mtp[depth % m->num_mtp].layer.self_attn.has_indexer;
}

static int take_token(vb_routes *copy, const struct vb_model *m, const vb_routes *r, size_t t, vb_error *err)
{
    int code = VB_OK;
    for (int32_t l = 0; l < r->layers && !code; l++) {
        int phantom = l >= m->config.num_hidden_layers && m->config.conventions.value[FIRST_ROW];
        size_t at = t * (size_t)r->layers + (size_t)l, expert = at * (size_t)r->top_k,
               place = at * (size_t)r->index_topk;
        if (r->experts && is_moe(m, l))
            code = take_layer(m, (int32_t *)(uintptr_t)copy->experts + expert, r->experts + expert, t, l, err);
        if (!code && r->kept && has_indexer(m, l))
            code = take_set((int32_t *)(uintptr_t)copy->kept + place, r->kept + place, r->index_topk,
                            (int32_t)t + 1 + phantom, t, l, err);
    }
    return code;
}

/* Returns an array of -1. */
static int32_t *nothing(const struct vb_model *m, size_t tokens, size_t row)
{
    int32_t *all = vb_alloc(m->allocator, tokens, row * sizeof *all);
    if (all)
        memset(all, 0xff, tokens * row * sizeof *all);
    return all;
}

static int check_shape(const struct vb_model *m, const vb_routes *r, vb_error *err)
{
    vb_routes wanted;
    vb_model_routes(m, &wanted);
    int32_t most = wanted.layers + (m->num_mtp ? VB_MAX_DRAFT : 0);
    int fits = r->layers >= wanted.layers && r->layers <= most;
    if (r->experts && !wanted.top_k)
        return vb_fail(err, VB_BAD_ARGUMENT, "there are routes, but the model has no MoE layer");
    if (r->experts && !(fits && r->top_k == wanted.top_k))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "the routes have the shape [%zu, %d, %d], wanted %d layers and %d experts per token", r->tokens,
                       r->layers, r->top_k, wanted.layers, wanted.top_k);
    if (r->kept && !wanted.index_topk)
        return vb_fail(err, VB_BAD_ARGUMENT, "there are kept sets, but the model has no indexer");
    if (r->kept && !(fits && r->index_topk == wanted.index_topk))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "the kept sets have the shape [%zu, %d, %d], wanted %d layers and index_topk = %d", r->tokens,
                       r->layers, r->index_topk, wanted.layers, wanted.index_topk);
    return r->tokens <= m->config.dims.positions
               ? VB_OK
               : vb_fail(err, VB_BAD_ARGUMENT, "there are routes of %zu tokens, max_position_embeddings is %zu",
                         r->tokens, m->config.dims.positions);
}

int routes_copy(vb_routes *copy, const struct vb_model *m, const vb_routes *r, vb_error *err)
{
    *copy = (vb_routes){0};
    if ((!r->experts && !r->kept) || !r->tokens)
        return VB_OK;
    int code = check_shape(m, r, err);
    if (code)
        return code;
    *copy = (vb_routes){.tokens = r->tokens, .layers = r->layers, .top_k = r->top_k,
                        .index_topk = r->kept ? r->index_topk : 0};
    if (r->experts)
        copy->experts = nothing(m, r->tokens, (size_t)r->layers * (size_t)r->top_k);
    if (r->kept)
        copy->kept = nothing(m, r->tokens, (size_t)r->layers * (size_t)r->index_topk);
    if ((r->experts && !copy->experts) || (r->kept && !copy->kept))
        code = vb_fail(err, VB_NO_MEMORY, "no memory for the routes of %zu tokens", r->tokens);
    for (size_t t = 0; t < r->tokens && !code; t++)
        code = take_token(copy, m, r, t, err);
    if (code)
        routes_free(m, copy);
    return code;
}

void routes_free(const struct vb_model *m, vb_routes *copy)
{
    vb_free(m->allocator, (void *)(uintptr_t)copy->experts);
    vb_free(m->allocator, (void *)(uintptr_t)copy->kept);
    *copy = (vb_routes){0};
}

/* The numbers in a row of s->taken and of s->taken_kept. */
static size_t row_of_taken(const struct vb_session *s)
{
    return s->model->config.dims.layers * s->model->config.dims.chosen;
}
static size_t row_of_kept(const struct vb_session *s)
{
    return s->model->config.dims.layers * s->model->config.dims.index_topk;
}

int routes_open(struct vb_session *s, size_t rows, vb_error *err)
{
    vb_routes given = s->options.routes, shape;
    vb_model_routes(s->model, &shape);
    int code = routes_copy(&s->options.routes, s->model, &given, err);
    s->has_routes = 1; /* now the session's own */
    if (!code && s->options.record_routes && !shape.top_k)
        code = vb_fail(err, VB_BAD_ARGUMENT, "routes cannot be recorded: the model has no MoE layer");
    if (!code && s->options.record_kept && !shape.index_topk)
        code = vb_fail(err, VB_BAD_ARGUMENT, "kept sets cannot be recorded: the model has no indexer");
    if (!code && s->options.record_routes &&
        !(s->taken = vb_alloc(s->model->allocator, rows, row_of_taken(s) * sizeof *s->taken)))
        code = vb_fail(err, VB_NO_MEMORY, "no memory for the routes of %zu tokens", rows);
    if (!code && s->options.record_kept &&
        !(s->taken_kept = vb_alloc(s->model->allocator, rows, row_of_kept(s) * sizeof *s->taken_kept)))
        code = vb_fail(err, VB_NO_MEMORY, "no memory for the kept sets of %zu tokens", rows);
    return code;
}

void routes_record(const struct vb_session *s, struct row *row, size_t index)
{
    row->taken = s->taken ? s->taken + index * row_of_taken(s) : NULL;
    row->taken_kept = s->taken_kept ? s->taken_kept + index * row_of_kept(s) : NULL;
}

void routes_take_row(struct vb_session *s, size_t to, const struct vb_session *other, size_t from)
{
    size_t taken = row_of_taken(s), kept = row_of_kept(s);
    if (s->taken)
        memmove(s->taken + to * taken, other->taken + from * taken, taken * sizeof *s->taken);
    if (s->taken_kept)
        memmove(s->taken_kept + to * kept, other->taken_kept + from * kept, kept * sizeof *s->taken_kept);
}

void routes_unknown(struct vb_session *s, size_t rows)
{
    if (s->taken)
        memset(s->taken, 0xff, rows * row_of_taken(s) * sizeof *s->taken);
    if (s->taken_kept)
        memset(s->taken_kept, 0xff, rows * row_of_kept(s) * sizeof *s->taken_kept);
}

void routes_close(struct vb_session *s)
{
    if (s->has_routes)
        routes_free(s->model, &s->options.routes);
    vb_free(s->model->allocator, s->taken);
    vb_free(s->model->allocator, s->taken_kept);
}

int vb_session_routes(const vb_session *s, vb_routes *out)
{
    *out = (vb_routes){0};
    if (!s->taken && !s->taken_kept)
        return 0;
    vb_model_routes(s->model, out);
    out->experts = s->taken;
    out->kept = s->taken_kept;
    out->tokens = s->routed;
    return 1;
}

/* Compares `numbers` numbers of a token. NULL, where nothing is forced, equals numbers that are all -1. */
static int same(const int32_t *x, const int32_t *y, size_t numbers)
{
    if (x && y)
        return !memcmp(x, y, numbers * sizeof *x);
    return (!x || all_missing(x, (int32_t)numbers)) && (!y || all_missing(y, (int32_t)numbers));
}

static size_t numbers_of(const struct vb_model *m, int32_t width)
{
    return (size_t)m->config.num_hidden_layers * (size_t)width;
}

size_t routes_alike(const struct vb_model *m, const vb_routes *a, const vb_routes *b, size_t tokens)
{
    size_t t = 0, experts = numbers_of(m, (int32_t)m->config.dims.chosen),
           kept = numbers_of(m, (int32_t)m->config.dims.index_topk);
    while (t < tokens && (a->experts || b->experts || a->kept || b->kept)) {
        if (!same(routes_forced(a, t), routes_forced(b, t), experts) ||
            !same(routes_kept(a, t), routes_kept(b, t), kept))
            return t;
        t++;
    }
    return tokens;
}

void routes_hash(const struct vb_model *m, const vb_routes *r, size_t tokens, char hash[ROUTES_HASH])
{
    size_t experts = numbers_of(m, (int32_t)m->config.dims.chosen),
           kept = numbers_of(m, (int32_t)m->config.dims.index_topk);
    uint64_t h = 0;
    int any = 0;
    for (size_t t = 0; t < tokens; t++) {
        if (!same(routes_forced(r, t), NULL, experts)) {
            h = hash64(h + t + 1, routes_forced(r, t), experts * sizeof *r->experts);
            any = 1;
        }
        if (!same(routes_kept(r, t), NULL, kept)) {
            h = hash64(~h + t + 1, routes_kept(r, t), kept * sizeof *r->kept);
            any = 1;
        }
    }
    snprintf(hash, ROUTES_HASH, any ? "%016" PRIx64 : "none", h);
}
