/* engine/pass/workspace.c -- the memory of a pass, sized once for the largest pass. */
#include "engine/pass/lead.h"
#include "engine/pass/offload.h"
#include "engine/model/ranks.h"
#include "engine/base/numbers.h"

#include <assert.h>
#include <string.h>

#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/attention_device.h"
#include "ops/crew.h"
#include "ops/expanded.h"
#include "ops/indexer_device.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/router.h"

_Static_assert(PASS_PARTS <= OP_CLOCK_PARTS, "a clock has room for all parts");

/* Returns the largest amount of scratch memory that any operator needs in a pass of S rows. */
static size_t scratch_bytes(const struct workspace *w, size_t S)
{
    const struct config *c = &w->model->config;
    size_t d = c->dims.d, H = c->dims.H, q = c->dims.q;
    size_t heads = H * c->dims.v;
    size_t widest = max_size(max_size(2 * d, heads), q);
    struct attention attention = {.heads = H, .nope = c->dims.n, .rope = c->dims.r,
                                  .value = c->dims.v, .latent = c->dims.c, .cache = model_cache_layout(c).type};
    size_t bytes = max_size(op_linear_scratch(S, widest),
                            op_attention_scratch(&attention, S, w->context, w->cx.threads));
    if (w->model->device)
        bytes = max_size(bytes, max_size(device_attention_scratch(&attention, S, offload_longest(w->context)),
                                         op_argmax_scratch(S, c->dims.V)));
    if (w->expands)
        bytes = max_size(bytes, op_expanded_scratch(&attention, S, w->context, w->cx.threads));
    if (w->kept_most)
        bytes = max_size(bytes, op_index_scratch(S, w->context, w->cx.threads));
    if (w->kept_most && w->model->device)
        bytes = max_size(bytes, device_index_scratch(S, offload_longest(w->context)));
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
    void *p = vb_alloc(w->model->allocator, count ? count : 1, size);
    w->block_bytes[w->block_count] = count * size;
    w->blocks[w->block_count++] = p;
    w->bytes += count * size;
    return p;
}

int workspace_open(struct workspace *w, const struct vb_model *m, const struct kernels *k, int threads, size_t max_rows,
                   size_t max_logit_rows, size_t context, int expands, vb_error *err)
{
    const struct config *c = &m->config;
    size_t d = c->dims.d, S = max_rows, H = c->dims.H;
    size_t n = c->dims.n, r = c->dims.r;
    size_t experts = config_has_layers(c, 1) ? c->dims.E : 0, chosen = experts ? c->dims.chosen : 0;
    struct rope_yarn yarn = {c->rope_factor, c->rope_beta_fast, c->rope_beta_slow, c->rope_mscale,
                             c->rope_mscale_all_dim, (double)c->rope_original_max_position_embeddings};

    const unsigned char *convention = c->conventions.value;
    struct config effective = *c;
    if (convention[YARN] && context <= (size_t)c->rope_original_max_position_embeddings)
        effective.rope_yarn = 0;

    *w = (struct workspace){.model = m, .max_rows = S, .context = context + VB_MAX_DRAFT + 1,
                            .max_logit_rows = max_logit_rows, .expands = expands,
                            .scale = config_attention_scale(&effective)};
    w->cx.k = k;
    w->cx.threads = w->cx.most_threads = threads;
    w->cx.bf16 = c->precision == PRECISION_BF16;
    w->cx.tensor_cores = c->tensor_cores;
    w->cx.ranks = m->ranks ? &m->ranks->op : NULL;
    (convention[ROPE_ANGLE] ? rope_init_f32 : rope_init)(&w->rope, r, c->rope_interleave, c->rope_theta,
                                                         effective.rope_yarn ? &yarn : NULL);
    w->index_rope = w->rope;
    w->index_rope.interleave = convention[INDEXER_ROPE] ? convention[INDEXER_ROPE] == 1 : c->indexer_rope_interleave;
    w->kept_most = min_size(c->dims.index_topk, w->context);
    w->cx.scratch_size = scratch_bytes(w, S) + 4096;

    w->x = workspace_take(w, S * d, sizeof(float));
    w->normed = workspace_take(w, S * d, sizeof(float));
    w->delta = workspace_take(w, S * d, sizeof(float));
    w->q_a = workspace_take(w, S * c->dims.q, sizeof(float));
    w->q = workspace_take(w, S * H * (n + r), sizeof(float));
    w->kv_a = workspace_take(w, S * (c->dims.c + r), sizeof(float));
    w->heads = workspace_take(w, S * H * c->dims.v, sizeof(float));
    w->cos_sin = workspace_take(w, S * r, sizeof(float));
    w->concat = workspace_take(w, S * 2 * d, sizeof(float));
    w->index_k = workspace_take(w, S * c->dims.index_dim, sizeof(float));
    w->index_q = workspace_take(w, S * c->dims.index_heads * c->dims.index_dim, sizeof(float));
    w->index_w = workspace_take(w, S * c->dims.index_heads, sizeof(float));
    w->kept = workspace_take(w, S * w->kept_most, sizeof(int32_t));
    w->scores = workspace_take(w, S * experts, sizeof(float));
    w->weights = workspace_take(w, S * chosen, sizeof(float));
    w->experts = workspace_take(w, S * chosen, sizeof(int32_t));
    w->forced = workspace_take(w, experts || w->kept_most ? S : 0, sizeof *w->forced);
    w->ids = workspace_take(w, S, sizeof(int32_t));
    w->places = workspace_take(w, S, sizeof *w->places);
    w->seen = workspace_take(w, S, sizeof(struct timeline));
    w->index_seen = workspace_take(w, w->kept_most ? S : 0, sizeof(struct timeline));
    w->hidden = workspace_take(w, S * d, sizeof(float));
    w->features = convention[MAIN_HIDDEN] ? workspace_take(w, S * d, sizeof(float)) : w->hidden;
    w->logits = workspace_take(w, max_logit_rows * c->dims.V, sizeof(float));
    w->first_bad_layer = workspace_take(w, S, sizeof(int32_t));
    w->cx.scratch = workspace_take(w, w->cx.scratch_size, 1);
    w->cx.kernel_scratch = workspace_take(w, (size_t)threads, KERNEL_SCRATCH);
    for (size_t i = 0; i < w->block_count; i++)
        if (!w->blocks[i]) {
            workspace_close(w);
            return vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows over %zu tokens", S, context);
        }
    int code = offload_open(w, err);
    if (code)
        workspace_close(w);
    return code;
}

int workspace_keep_rows(struct workspace *w, enum target_rows which, vb_error *err)
{
    size_t width = (which == ROWS_TWO ? 2 : 3) * w->model->config.dims.d;
    float **rows = which == ROWS_TWO ? &w->two : &w->three;
    if ((which != ROWS_THREE && which != ROWS_TWO) || *rows ||
        (which == ROWS_THREE && !config_three_layers(w->model->config.num_hidden_layers, w->three_before)))
        return VB_OK;
    *rows = workspace_take(w, w->max_rows * width, sizeof(float));
    return *rows ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory for features of %zu rows", w->max_rows);
}

float *workspace_rows(const struct workspace *w, enum target_rows which, size_t first, size_t *width)
{
    size_t d = w->model->config.dims.d;
    float *const array[] = {[ROWS_FEATURES] = w->features, [ROWS_HIDDEN] = w->hidden, [ROWS_THREE] = w->three,
                            [ROWS_TWO] = w->two};
    *width = which == ROWS_THREE ? 3 * d : which == ROWS_TWO ? 2 * d : d;
    return array[which] + first * *width;
}

int workspace_gather_crew(struct workspace *w, const struct placement *placement, int exact, vb_error *err)
{
    w->cx.placement = placement;
    if (w->cx.threads < 2)
        return VB_OK;
    void *memory = workspace_take(w, 1, crew_bytes(w->cx.threads));
    if (!memory)
        return vb_fail(err, VB_NO_MEMORY, "no memory for %d threads", w->cx.threads);
    w->cx.crew = crew_open(memory, w->cx.threads, placement, exact);
    return VB_OK;
}

void workspace_close(struct workspace *w)
{
    lead_no_workspace(w);
    crew_close(w->cx.crew);
    w->cx.crew = NULL;
    if (w->model)
        offload_close(w);
    for (size_t i = 0; i < w->block_count; i++)
        vb_free(w->model->allocator, w->blocks[i]);
    w->block_count = 0;
}
