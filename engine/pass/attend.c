#include "engine/pass/attend.h"

#include "engine/pass/step.h"
#include "ops/cache_rows.h"
#include "ops/expanded.h"
#include "ops/gqa.h"
#include "ops/operators.h"

#include <string.h>

struct attention attention_of(const struct pass *p)
{
    const struct config *c = &p->model->config;
    const struct mla *a = &p->l->self_attn;
    struct op_share heads = pass_heads(p);
    return (struct attention){.heads = heads.end - heads.begin, .row_heads = c->dims.H, .nope = c->dims.n,
                              .rope = c->dims.r, .value = c->dims.v, .latent = c->dims.c, .w_uk = a->w_uk,
                              .w_uv = a->w_uv, .uk_stride = a->uk_stride, .uv_stride = a->uv_stride,
                              .uk_transposed = a->uk_transposed, .scale = p->scale, .cache = model_cache_layout(c).type,
                              .layer = p->cache_layer, .places = p->side.attended, .longest = p->side.longest};
}

float query_scale(const struct pass *p, const struct row *row)
{
    const struct config *c = &p->model->config;
    return c->query_beta > 0 ? config_query_scale(c, (int)row->position) : 1.0f;
}

/* ---- the cache ---- */

/* The attention heads that this process rotates: all of them if somebody may want to see them. */
static struct op_share rotated_heads(const struct pass *p)
{
    return p->cx.ranks && p->cx.ranks->taps_all ? (struct op_share){0, p->model->config.dims.H} : pass_heads(p);
}

static void see_tokens(struct pass *p)
{
    for (size_t s = 0; s < p->S; s++)
        p->w.seen[s] = (struct timeline){kvcache_layer(p->rows[s].cache, p->cache_layer), p->w.places[s].slots,
                                         p->w.places[s].length};
}

void cache_rows(struct pass *p)
{
    const struct config *c = &p->model->config;
    size_t n = c->dims.n, r = c->dims.r, latent = c->dims.c;
    struct op_share heads = rotated_heads(p);
    struct cache_rows rows = {.heads = heads.end - heads.begin, .ldq = c->dims.H * (n + r), .nope = n, .rope = &p->rope,
                              .layout = p->rows->cache->pool->layout, .layer = p->cache_layer,
                              .round_latent = c->index_topk && c->conventions.value[LATENT_CACHE],
                              .read_back = p->tapper || p->only != NO_VALUE};
    if (p->only != NO_VALUE && p->only != Q_ROPE && p->only != LATENT && p->only != K_ROPE)
        return;
    op_enter(&p->cx, PART_SMALL);
    p->cx.op->rmsnorm(&p->cx, p->w.kv_a, latent + r, p->w.kv_a, latent + r, p->l->self_attn.kv_a_layernorm, p->S,
                      latent, (float)c->latent_eps);
    p->cx.op->cache_rows(&p->cx, p->w.q + heads.begin * (n + r), p->w.kv_a, p->w.cos_sin, p->side.places, &rows, p->S);
    see_tokens(p);
    step_ends(p, Q_ROPE);
    step_ends(p, LATENT);
    step_ends(p, K_ROPE);
}

/* ---- attention ---- */

/* Returns whether a row has attention in the expanded form. A row for which tokens were chosen has the absorbed
 * form. */
static int is_expanded(const struct pass *p, size_t s)
{
    return p->rows[s].expanded && p->w.seen[s].length == (size_t)p->rows[s].index + 1;
}

/* Neighbouring rows with the same form of attention are computed together. */
static int have_one_form(const struct pass *p, size_t s, size_t other)
{
    return is_expanded(p, s) == is_expanded(p, other) && p->rows[s].tail == p->rows[other].tail;
}

static void attend_by_form(struct pass *p, struct attention *a)
{
    size_t ldq = a->row_heads * (a->nope + a->rope), ldy = a->row_heads * a->value, first = pass_heads(p).begin;
    const float *q = p->w.q + first * (a->nope + a->rope);
    float *y = p->w.heads + first * a->value;
    for (size_t s = 0, count; s < p->S; s += count) {
        for (count = 1; s + count < p->S && have_one_form(p, s, s + count);)
            count++;
        a->tail = p->rows[s].tail;
        a->tail_slots = p->rows[s].tail_slots;
        (is_expanded(p, s) ? op_expanded : p->cx.op->attention)(&p->cx, y + s * ldy, q + s * ldq, p->w.seen + s, a,
                                                                count, p->w.context);
    }
}

void attend(struct pass *p)
{
    struct attention a = attention_of(p);
    if (!step_begins(p, ATTENTION_HEADS))
        return;
    if (a.heads || p->cx.ranks->scores) /* a rank may have no heads */
        attend_by_form(p, &a);
    step_ends(p, ATTENTION_HEADS);
}

/* ---- grouped-query attention ---- */

void cache_keys(struct pass *p)
{
    const struct dims *dims = &p->model->config.dims;
    size_t H = dims->H, G = dims->G, D = dims->r;
    if (p->only != NO_VALUE && p->only != Q_ROPE && p->only != K_ROPE)
        return;
    op_enter(&p->cx, PART_SMALL);
    for (size_t s = 0; s < p->S; s++) {
        const float *cos_sin = p->w.cos_sin + s * D;
        float *keys = p->w.kv_a + s * dims->row;
        op_rope(p->w.q + s * H * D, H, D, cos_sin, &p->rope);
        op_rope(keys, G, D, cos_sin, &p->rope);
        memcpy(kvcache_row(p->rows[s].cache, p->cache_layer, p->rows[s].slot), keys, dims->row * sizeof *keys);
    }
    see_tokens(p);
    step_ends(p, Q_ROPE);
    step_ends(p, K_ROPE);
}

void attend_grouped(struct pass *p)
{
    const struct dims *dims = &p->model->config.dims;
    struct gqa a = {.heads = dims->H, .groups = dims->G, .dim = dims->v, .row = p->rows->cache->pool->row,
                    .scale = p->scale};
    if (!step_begins(p, ATTENTION_HEADS))
        return;
    op_gqa(&p->cx, p->w.heads, p->w.q, p->w.seen, &a, p->S);
    step_ends(p, ATTENTION_HEADS);
}
