/* engine/pass/pass.c -- opens what passes have in hand. */
#include "engine/pass/pass.h"

#include "numbers/numbers.h"
#include "engine/model/ranks.h"
#include "engine/pass/offload.h"
#include "engine/pass/runner.h"
#include "ops/crew.h"
#include "ops/operators.h"

_Static_assert(PASS_PARTS <= OP_CLOCK_PARTS, "a clock has room for all parts");

static void keep(struct pass *p, enum pass_value v, int layer, float *to, size_t pitch)
{
    p->for_drafters[p->keeps++] = (struct keep){v, layer, to, pitch};
}

void pass_set_up(struct pass *p, const struct vb_model *m, const struct kernels *k, int threads, size_t context)
{
    const struct config *c = &m->config;
    const unsigned char *convention = c->conventions.value;
    struct rope_yarn yarn = {c->rope_factor, c->rope_beta_fast, c->rope_beta_slow, c->rope_mscale,
                             c->rope_mscale_all_dim, (double)c->rope_original_max_position_embeddings};
    struct config effective = *c;
    if (convention[YARN] && context <= (size_t)c->rope_original_max_position_embeddings)
        effective.rope_yarn = 0;

    *p = (struct pass){.model = m, .runner = &runner_cpu, .scale = config_attention_scale(&effective),
                       .only = NO_VALUE};
    p->keep = p->for_drafters;
    p->cx.k = k;
    p->cx.threads = p->cx.most_threads = threads;
    p->cx.op = &operators_cpu;
    p->cx.arithmetic = &p->arithmetic;
    p->arithmetic = (struct arithmetic){.bf16 = c->precision == PRECISION_BF16, .tensor_cores = c->tensor_cores};
    p->cx.ranks = m->ranks ? &m->ranks->op : NULL;
    (convention[ROPE_ANGLE] ? rope_init_f32 : rope_init)(&p->rope, c->dims.r, c->rope_interleave, c->rope_theta,
                                                         effective.rope_yarn ? &yarn : NULL);
    p->index_rope = p->rope;
    p->index_rope.interleave = convention[INDEXER_ROPE] ? convention[INDEXER_ROPE] == 1 : c->indexer_rope_interleave;
    if (m->ranks) {
        p->prefetch = watch_prefetch();
        p->watchers = &p->prefetch;
    }
}

int pass_open(struct pass *p, const struct vb_model *m, const struct kernels *k, int threads, size_t max_rows,
              size_t max_logit_rows, size_t context, int expands, vb_error *err)
{
    const struct config *c = &m->config;
    pass_set_up(p, m, k, threads, context);
    int code = workspace_open(&p->w, m, max_rows, max_logit_rows, context, expands, err);
    if (code)
        return code;
    p->cx.scratch_size = max_size(workspace_scratch(&p->w, m, threads), offload_scratch(p)) + 4096;
    p->cx.scratch = workspace_take(&p->w, p->cx.scratch_size, 1);
    p->cx.kernel_scratch = workspace_take(&p->w, (size_t)threads, KERNEL_SCRATCH);
    if (!p->cx.scratch || !p->cx.kernel_scratch)
        code = vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows over %zu tokens", max_rows, context);
    if (p->w.features != p->w.hidden)
        keep(p, FINAL_NORM_INPUT, -1, p->w.features, c->dims.d);
    if (!code)
        code = offload_open(p, err);
    if (code)
        pass_close(p);
    return code;
}

int pass_gather_crew(struct pass *p, const struct placement *placement, int exact, vb_error *err)
{
    p->cx.placement = placement;
    if (p->cx.threads < 2)
        return VB_OK;
    void *memory = workspace_take(&p->w, 1, crew_bytes(p->cx.threads));
    if (!memory)
        return vb_fail(err, VB_NO_MEMORY, "no memory for %d threads", p->cx.threads);
    p->cx.crew = crew_open(memory, p->cx.threads, placement, exact);
    return VB_OK;
}

void pass_close(struct pass *p)
{
    if (p->runner)
        p->runner->close(p);
    crew_close(p->cx.crew);
    p->cx.crew = NULL;
    workspace_close(&p->w);
    p->runner = NULL;
}

/* ---- rows for drafters ---- */

int pass_keep_rows(struct pass *p, enum target_rows which, vb_error *err)
{
    size_t d = p->model->config.dims.d;
    int layers = p->model->config.num_hidden_layers, before[3];
    float **rows = which == ROWS_TRUNK ? &p->w.trunk_rows : &p->w.eagle3_rows;
    size_t count = which == ROWS_TRUNK ? 2 : which == ROWS_EAGLE3 && config_three_layers(layers, before) ? 3 : 0;
    if (!count || *rows)
        return VB_OK;
    *rows = workspace_take(&p->w, p->w.max_rows * count * d, sizeof **rows);
    if (!*rows)
        return vb_fail(err, VB_NO_MEMORY, "no memory for features of %zu rows", p->w.max_rows);
    for (size_t i = 0; i < count && which == ROWS_EAGLE3; i++)
        keep(p, LAYER_INPUT, before[i], *rows + i * d, count * d);
    if (which == ROWS_TRUNK) {
        keep(p, LAYER_INPUT, layers - 1, *rows, count * d);
        keep(p, FINAL_NORM_INPUT, -1, *rows + d, count * d);
    }
    return VB_OK;
}

float *pass_rows(const struct pass *p, enum target_rows which, size_t first, size_t *width)
{
    size_t d = p->model->config.dims.d;
    float *const array[] = {[ROWS_FEATURES] = p->w.features, [ROWS_HIDDEN] = p->w.hidden,
                            [ROWS_EAGLE3] = p->w.eagle3_rows, [ROWS_TRUNK] = p->w.trunk_rows};
    *width = which == ROWS_EAGLE3 ? 3 * d : which == ROWS_TRUNK ? 2 * d : d;
    return array[which] + first * *width;
}
