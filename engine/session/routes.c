/* engine/session/routes.c -- checks, copies and compares routes. */
#include "engine/session/routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash64.h"

void vb_model_routes(const vb_model *m, vb_routes *out)
{
    int has_moe = config_has_layers(&m->config, 1);
    *out = (vb_routes){.layers = m->config.num_hidden_layers, .top_k = has_moe ? (int32_t)m->config.dims.chosen : 0};
}

int vb_is_moe_layer(const vb_model *m, int32_t layer)
{
    return layer >= 0 && layer < m->config.num_hidden_layers && config_layer_is_moe(&m->config, layer);
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
static int take_layer(const struct model *m, int32_t *to, const int32_t *experts, size_t token, int32_t layer, vb_error *err)
{
    int32_t n = (int32_t)m->config.dims.chosen, E = (int32_t)m->config.dims.E;
    for (int32_t i = 0; i < n && !all_missing(experts, n); i++)
        if (experts[i] < 0 || experts[i] >= E)
            return vb_fail(err, VB_BAD_ARGUMENT, "the routes send token %zu in layer %d to expert %d, wanted 0 to %d", token, layer, experts[i],
                           E - 1);
    if (!sort(to, experts, n))
        return vb_fail(err, VB_BAD_ARGUMENT, "the routes send token %zu in layer %d to the same expert twice", token, layer);
    return VB_OK;
}

/* Whether a layer of routes is a MoE layer; those after the target's are the MTP depths. */
static int is_moe(const struct model *m, int32_t layer)
{
    int32_t depth = layer - m->config.num_hidden_layers;
    return depth < 0 ? vb_is_moe_layer(m, layer) : m->mtp[depth % m->num_mtp].layer.is_moe;
}

int routes_copy(int32_t **copy, const struct model *m, const vb_routes *r, vb_error *err)
{
    vb_routes wanted;
    vb_model_routes(m, &wanted);
    int32_t most = wanted.layers + (m->num_mtp ? VB_MAX_DRAFT : 0);
    size_t row = (size_t)r->layers * (size_t)wanted.top_k;
    int code = VB_OK;
    *copy = NULL;
    if (!r->experts || !r->tokens)
        return VB_OK;
    if (!wanted.top_k)
        return vb_fail(err, VB_BAD_ARGUMENT, "there are routes, but the model has no MoE layer");
    if (r->layers < wanted.layers || r->layers > most || r->top_k != wanted.top_k)
        return vb_fail(err, VB_BAD_ARGUMENT, "the routes have the shape [%zu, %d, %d], wanted %d layers and %d experts per token", r->tokens,
                       r->layers, r->top_k, wanted.layers, wanted.top_k);
    *copy = vb_alloc(m->allocator, r->tokens, row * sizeof **copy);
    if (!*copy)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the routes of %zu tokens", r->tokens);
    memset(*copy, 0xff, r->tokens * row * sizeof **copy); /* -1 */
    for (size_t t = 0; t < r->tokens && !code; t++)
        for (int32_t l = 0; l < r->layers && !code; l++)
            if (is_moe(m, l))
                code = take_layer(m, *copy + t * row + (size_t)(l * r->top_k), r->experts + t * row + (size_t)(l * r->top_k), t, l, err);
    if (!code)
        return VB_OK;
    vb_free(m->allocator, *copy);
    *copy = NULL;
    return code;
}

int routes_open(struct vb_session *s, size_t rows, vb_error *err)
{
    vb_routes *r = &s->options.routes, shape;
    vb_model_routes(s->model, &shape);
    int code = routes_copy(&s->forced, s->model, r, err);
    r->experts = s->forced;
    if (code || !s->options.record_routes)
        return code;
    if (!shape.top_k)
        return vb_fail(err, VB_BAD_ARGUMENT, "routes cannot be recorded: the model has no MoE layer");
    s->taken = vb_alloc(s->model->allocator, rows, routes_row_bytes(s));
    return s->taken ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory for the routes of %zu tokens", rows);
}

void routes_close(struct vb_session *s)
{
    vb_free(s->model->allocator, s->forced);
    vb_free(s->model->allocator, s->taken);
}

int vb_session_routes(const vb_session *s, vb_routes *out)
{
    *out = (vb_routes){0};
    if (!s->taken)
        return 0;
    vb_model_routes(s->model, out);
    out->experts = s->taken;
    out->tokens = s->routed;
    return 1;
}

/* Whether nothing is forced for a token in the target's layers. */
static int is_free(const struct model *m, const vb_routes *r, size_t token)
{
    const int32_t *experts = routes_forced(r, token);
    return !experts || all_missing(experts, m->config.num_hidden_layers * r->top_k);
}

size_t routes_alike(const struct model *m, const vb_routes *a, const vb_routes *b, size_t tokens)
{
    size_t t = 0;
    for (; t < tokens && (a->experts || b->experts); t++) {
        const int32_t *x = routes_forced(a, t), *y = routes_forced(b, t);
        size_t numbers = (size_t)(m->config.num_hidden_layers * a->top_k);
        if (x && y ? memcmp(x, y, numbers * sizeof *x) : !(is_free(m, a, t) && is_free(m, b, t)))
            return t;
    }
    return tokens;
}

void routes_hash(const struct model *m, const vb_routes *r, size_t tokens, char hash[ROUTES_HASH])
{
    uint64_t h = 0;
    int any = 0;
    for (size_t t = 0; t < tokens; t++) {
        if (is_free(m, r, t))
            continue;
        h = hash64(h + t + 1, routes_forced(r, t), (size_t)(m->config.num_hidden_layers * r->top_k) * sizeof *r->experts);
        any = 1;
    }
    snprintf(hash, ROUTES_HASH, any ? "%016" PRIx64 : "none", h);
}
