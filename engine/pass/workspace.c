/* engine/pass/workspace.c -- the memory of passes, sized once for the largest pass. */
#include "engine/pass/workspace.h"

#include <assert.h>

#include "numbers/numbers.h"
#include "ops/attention.h"
#include "ops/expanded.h"
#include "ops/gqa.h"
#include "ops/indexer.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/router.h"

static size_t attention_scratch(const struct workspace *w, const struct config *c, int threads)
{
    size_t S = w->max_rows;
    struct gqa grouped = {.heads = c->dims.H, .groups = c->dims.G, .dim = c->dims.v};
    struct attention mla = {.heads = c->dims.H, .nope = c->dims.n, .rope = c->dims.r,
                            .value = c->dims.v, .latent = c->dims.c, .cache = model_cache_layout(c).type,
                            .tail = w->tail};
    if (config_attention(c, 0) == ATTENTION_GQA)
        return op_gqa_scratch(&grouped, threads);
    size_t absorbed = op_attention_scratch(&mla, S, w->context, threads);
    return w->expands ? max_size(absorbed, op_expanded_scratch(&mla, S, w->context, threads)) : absorbed;
}

size_t workspace_scratch(const struct workspace *w, const struct vb_model *m, int threads)
{
    const struct config *c = &m->config;
    size_t d = c->dims.d, H = c->dims.H, q = c->dims.q, S = w->max_rows;
    size_t widest = max_size(max_size(2 * d, H * c->dims.v), max_size(q, c->dims.features));
    size_t bytes = max_size(op_linear_scratch(S, widest), attention_scratch(w, c, threads));
    if (w->kept_most)
        bytes = max_size(bytes, op_index_scratch(S, w->context, threads));
    if (config_has_layers(c, 0))
        bytes = max_size(bytes, op_mlp_scratch(S, d, c->dims.dense));
    if (config_has_layers(c, 1)) {
        size_t i = c->dims.expert, shared = i * c->dims.shared;
        struct router router = {.experts = c->dims.E, .groups = c->dims.groups};
        bytes = max_size(bytes, op_moe_scratch(S, d, i, shared, router.experts, c->dims.chosen));
        bytes = max_size(bytes, op_router_scratch(&router));
    }
    return bytes;
}

void *workspace_take(struct workspace *w, size_t count, size_t size)
{
    assert(w->block_count < sizeof w->blocks / sizeof *w->blocks);
    void *p = vb_alloc(w->allocator, count ? count : 1, size);
    w->block_bytes[w->block_count] = count * size;
    w->blocks[w->block_count++] = p;
    w->bytes += count * size;
    return p;
}

int workspace_open(struct workspace *w, const struct vb_model *m, size_t max_rows, size_t max_logit_rows,
                   size_t context, int expands, vb_error *err)
{
    const struct config *c = &m->config;
    const struct dims *dims = &c->dims;
    size_t d = dims->d, S = max_rows, H = dims->H, n = dims->n, r = dims->r;
    size_t experts = config_has_layers(c, 1) ? dims->E : 0, chosen = experts ? dims->chosen : 0;

    *w = (struct workspace){.allocator = m->allocator, .max_rows = S, .context = context + VB_MAX_DRAFT + 1,
                            .max_logit_rows = max_logit_rows, .expands = expands};
    w->kept_most = min_size(dims->index_topk, w->context);
    w->x = workspace_take(w, S * d, sizeof(float));
    w->normed = workspace_take(w, S * d, sizeof(float));
    w->delta = workspace_take(w, S * d, sizeof(float));
    w->q_a = workspace_take(w, S * dims->q, sizeof(float));
    w->q = workspace_take(w, S * H * (n + r), sizeof(float));
    w->kv_a = workspace_take(w, S * dims->row, sizeof(float));
    w->heads = workspace_take(w, S * H * dims->v, sizeof(float));
    w->cos_sin = workspace_take(w, S * r, sizeof(float));
    w->concat = workspace_take(w, S * 2 * d, sizeof(float));
    w->index_k = workspace_take(w, S * dims->index_dim, sizeof(float));
    w->index_q = workspace_take(w, S * dims->index_heads * dims->index_dim, sizeof(float));
    w->index_w = workspace_take(w, S * dims->index_heads, sizeof(float));
    w->kept = workspace_take(w, S * w->kept_most, sizeof(int32_t));
    w->scores = workspace_take(w, S * experts, sizeof(float));
    w->weights = workspace_take(w, S * chosen, sizeof(float));
    w->experts = workspace_take(w, S * chosen, sizeof(int32_t));
    w->forced = workspace_take(w, experts || w->kept_most ? S : 0, sizeof *w->forced);
    w->ids = workspace_take(w, S, sizeof(int32_t));
    w->places = workspace_take(w, S, sizeof *w->places);
    w->seen = workspace_take(w, S, sizeof(struct timeline));
    w->index_seen = workspace_take(w, w->kept_most ? S : 0, sizeof(struct timeline));
    w->hidden = workspace_take(w, dims->layers ? S * d : 0, sizeof(float));
    w->features = c->conventions.value[MAIN_HIDDEN] ? workspace_take(w, S * d, sizeof(float)) : w->hidden;
    w->logits = workspace_take(w, max_logit_rows * dims->V, sizeof(float));
    w->first_bad_layer = workspace_take(w, S, sizeof(int32_t));
    for (size_t i = 0; i < w->block_count; i++)
        if (!w->blocks[i]) {
            workspace_close(w);
            return vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows over %zu tokens", S, context);
        }
    return VB_OK;
}

void workspace_close(struct workspace *w)
{
    for (size_t i = 0; i < w->block_count; i++)
        vb_free(w->allocator, w->blocks[i]);
    w->block_count = 0;
}
