#include "engine/pass/plan.h"

#include <math.h>

#include "ops/attention.h"
#include "ops/linear.h"

struct planning {
    const struct vb_model *m;
    const struct op_ranks *ranks;
    int rank;
    const struct mla *mla; /* of the present layer */
    double rows, depth;
    struct plan_cost *pass;
    struct plan_memory *memory;
};

/* ---- who has which rows ---- */

static size_t own(const struct planning *p, size_t count, size_t unit)
{
    struct op_share share = op_share_of(p->ranks, p->rank, count, unit);
    return share.end - share.begin;
}

static size_t own_heads(const struct planning *p)
{
    return own(p, p->m->config.dims.H, attention_head_unit(p->m->config.dims.v));
}

static double own_bytes(const struct planning *p, const struct read *r)
{
    size_t H = p->m->config.dims.H;
    return read_bytes(&r->w, r->share == SHARE_WHOLE ? r->w.rows
                             : r->share == SHARE_BY_HEADS ? own_heads(p) * (r->w.rows / H)
                             : own(p, r->w.rows, OP_ROW_GROUP));
}

/* ---- a pass ---- */

double plan_experts(const struct config *c, double rows)
{
    double E = c->n_routed_experts, k = c->num_experts_per_tok;
    return E > 0 ? E * (1 - pow(1 - k / E, rows)) : 0;
}

/* Returns the bytes of K numbers that travel as the input of a linear layer. They are rounded as the layer wants
 * them. */
static double travelling(const struct config *c, const struct weight_view *next, size_t K)
{
    if (weight_is_quantized(next->type))
        return (double)(K / QUANTIZED_GROUP * OP_GROUP_BYTES);
    return (double)op_packed_bytes(c->precision == PRECISION_BF16 ? OP_BF16 : OP_F32, K);
}

static void begin_gather(struct planning *p) { p->pass->gathers += p->ranks->count > 1; }

/* Adds rows of `bytes` bytes to the present gather. A row has `count` numbers, of which this rank has `mine`. */
static void add_to_gather(struct planning *p, double rows, double bytes, size_t mine, size_t count)
{
    if (p->ranks->count == 1)
        return;
    p->pass->gathered += rows * bytes;
    p->pass->received += rows * bytes * (1 - (double)mine / (double)count);
}

static void gather_floats(struct planning *p, double rows, size_t count)
{
    begin_gather(p);
    add_to_gather(p, rows, 4 * (double)count, own(p, count, OP_ROW_GROUP), count);
}

static void gather_h(struct planning *p, const struct mlp *m, double rows)
{
    size_t width = m->down_proj.cols;
    add_to_gather(p, rows, travelling(&p->m->config, &m->down_proj, width), own(p, width, OP_ROW_GROUP), width);
}

static void add_read(void *context, const struct read *r)
{
    struct planning *p = context;
    if (r->part != PART_INDEXER || reads_chosen(&p->m->config, p->mla, p->depth))
        p->pass->read += own_bytes(p, r) * (r->routed ? plan_experts(&p->m->config, p->rows) : 1);
}

static void add_cache(struct planning *p)
{
    const struct config *c = &p->m->config;
    int chosen = reads_chosen(c, p->mla, p->depth);
    if (own_heads(p))
        p->pass->read += read_latents(c, chosen ? c->index_topk : p->depth);
    if (chosen && p->mla->has_indexer)
        p->pass->read += read_keys(c, p->depth);
}

static void add_layer(struct planning *p, const struct layer *l)
{
    const struct config *c = &p->m->config;
    size_t numbers = c->dims.H * c->dims.v;
    p->mla = &l->self_attn;
    reads_of_layer(c, l, add_read, p);
    add_cache(p);
    begin_gather(p);
    add_to_gather(p, p->rows, travelling(c, &l->self_attn.o_proj, numbers), own_heads(p), c->dims.H);
    gather_floats(p, p->rows, c->dims.d);
    begin_gather(p);
    if (l->is_moe)
        gather_h(p, &l->moe.experts[0], p->rows * c->num_experts_per_tok);
    if (!l->is_moe || c->n_shared_experts)
        gather_h(p, l->is_moe ? &l->moe.shared_experts : &l->mlp, p->rows);
    gather_floats(p, p->rows, c->dims.d);
}

static void add_rows_of(struct planning *p, const struct weight_view *w, double rows)
{
    p->pass->read += read_bytes(w, own(p, w->rows, OP_ROW_GROUP));
    gather_floats(p, rows, w->rows);
}

struct plan_cost plan_target(const struct vb_model *m, const struct op_ranks *ranks, int rank, double rows,
                             double depth, double heads)
{
    struct plan_cost pass = {0};
    struct planning p = {.m = m, .ranks = ranks, .rank = rank, .rows = rows, .depth = depth, .pass = &pass};
    for (size_t l = 0; l < m->config.dims.layers; l++)
        add_layer(&p, &m->layers[l]);
    if (heads > 0)
        add_rows_of(&p, &m->lm_head, heads);
    return pass;
}

struct plan_cost plan_module(const struct vb_model *m, const struct op_ranks *ranks, int rank, double rows,
                             double depth)
{
    struct plan_cost pass = {0};
    struct planning p = {.m = m, .ranks = ranks, .rank = rank, .rows = rows, .depth = depth, .pass = &pass};
    add_rows_of(&p, &m->mtp[0].eh_proj, rows);
    add_layer(&p, &m->mtp[0].layer);
    add_rows_of(&p, &m->mtp[0].head, 1);
    return pass;
}

/* ---- memory ---- */

static void keep_read(void *context, const struct read *r)
{
    struct planning *p = context;
    double bytes = own_bytes(p, r) * (r->routed ? p->m->config.n_routed_experts : 1);
    *(r->share == SHARE_WHOLE ? &p->memory->whole : &p->memory->own) += bytes;
}

/* Vectors are f32 in memory. */
static void keep_layer(struct planning *p, const struct layer *l)
{
    const struct config *c = &p->m->config;
    reads_of_layer(c, l, keep_read, p);
    for (struct tensor_walk w = walk_layer(c, l->index, W_UK_AND_W_UV); walk_next(&w);)
        if (layer_tensors[w.tensor].kind == KIND_VECTOR &&
            (layer_tensors[w.tensor].group != GROUP_INDEXER || l->self_attn.has_indexer))
            p->memory->whole += 4 * (double)layer_tensors[w.tensor].rows(&c->dims);
}

static void keep_rows_of(struct planning *p, const struct weight_view *w)
{
    p->memory->own += read_bytes(w, own(p, w->rows, OP_ROW_GROUP));
}

static void keep_module(struct planning *p, double context)
{
    const struct vb_model *m = p->m;
    const struct config *c = &m->config;
    struct kv_layout layout = model_mtp_cache_layout(c);
    keep_layer(p, &m->mtp[0].layer);
    keep_rows_of(p, &m->mtp[0].eh_proj);
    p->memory->whole += 3 * 4 * (double)c->dims.d;
    if (model_mtp_stores(m, 0, 1))
        keep_rows_of(p, &m->mtp[0].head);
    if (model_mtp_stores(m, 0, 0))
        p->memory->whole += read_bytes(&m->mtp[0].embed_tokens, c->dims.V);
    p->memory->cache += context * (double)(kv_row_bytes(&layout) + layout.index_layers * layout.index_row);
}

struct plan_memory plan_memory(const struct vb_model *m, const struct op_ranks *ranks, int rank, double context,
                               int drafts)
{
    const struct config *c = &m->config;
    struct plan_memory memory = {.cache = context * (double)model_cache_bytes(c, c->cache_type)};
    struct planning p = {.m = m, .ranks = ranks, .rank = rank, .memory = &memory};
    for (size_t l = 0; l < c->dims.layers; l++)
        keep_layer(&p, &m->layers[l]);
    memory.whole += read_bytes(&m->embed_tokens, c->dims.V) + 4 * (double)c->dims.d;
    if (!c->tie_word_embeddings || m->lm_head.type != m->embed_tokens.type)
        keep_rows_of(&p, &m->lm_head);
    if (drafts)
        keep_module(&p, context);
    return memory;
}
