/* engine/export/gguf_write_tensors.c -- lists the tensors of a GGUF file, with their types and the matrices from which
 * they are made. The file is the counterpart of checkpoint_gguf.c, which reads the same names. */
#include "engine/export/gguf_write_internal.h"

#include <stdio.h>
#include <string.h>

static const struct gguf_written_type
    type_f32 = {"F32", 0, 1, 4, GGUF_AS_F32}, type_f16 = {"F16", 1, 1, 2, GGUF_AS_STORED},
    type_bf16 = {"BF16", 30, 1, 2, GGUF_AS_BF16}, type_q8_0 = {"Q8_0", 8, 32, 34, GGUF_AS_Q8_0},
    type_q4_0 = {"Q4_0", 2, 32, 18, GGUF_AS_Q4_0}, type_mxfp4 = {"MXFP4", 39, 32, 17, GGUF_AS_MXFP4};

struct planner {
    struct vb_quantize *p;
    const struct config *c;
    const struct gguf_write_options *o;
    char prefix[40]; /* "blk.3." */
    int copies[2];   /* number of modules whose embedding [0] or output head [1] is left out */
    size_t nvfp4;    /* number of tensors of NVFP4 weights that are quantized to another type */
};

static const struct gguf_written_type *stored_type(const struct weight_view *w)
{
    return w->type == WEIGHT_BF16 ? &type_bf16 : w->type == WEIGHT_F16 ? &type_f16 : &type_f32; /* also for FP8 */
}

/* Returns whether GGUF's type MXFP4 can store the codes and scales of a matrix. */
static int is_mxfp4(const struct weight_view *w) { return w->type == WEIGHT_F4 && w->group_size == QUANTIZED_GROUP; }

/* Returns the type in which a matrix is written. Its rows have `cols` numbers. */
static const struct gguf_written_type *type_for(enum gguf_as as, const struct weight_view *w, size_t cols)
{
    static const struct gguf_written_type *const types[] = {NULL, &type_f32, &type_bf16, &type_q8_0, &type_q4_0};
    if ((as == GGUF_AS_Q8_0 || as == GGUF_AS_Q4_0) && is_mxfp4(w))
        return &type_mxfp4;
    return as == GGUF_AS_STORED || cols % types[as]->numbers ? stored_type(w) : types[as];
}

/* Adds a tensor with layout GGUF_ROWS. The last extent of its shape is the length of a row. For another layout, the
 * caller changes the fields of the result. */
static struct gguf_planned *add(struct planner *p, const char *name, enum gguf_role role, enum gguf_as as,
                                const struct weight_view *w, int ndim, const size_t shape[3])
{
    struct gguf_planned *t = &p->p->tensors[p->p->count++];
    size_t numbers = 1, cols = shape[ndim - 1];
    *t = (struct gguf_planned){.role = role, .type = type_for(as, w, cols), .ndim = ndim, .layout = GGUF_ROWS,
                               .matrix = *w};
    snprintf(t->name, sizeof t->name, "%s%s", p->prefix, name);
    p->nvfp4 += w->type == WEIGHT_F4 && !is_mxfp4(w) && (as == GGUF_AS_Q8_0 || as == GGUF_AS_Q4_0);
    memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    t->kept = (as == GGUF_AS_Q8_0 || as == GGUF_AS_Q4_0) && t->type->as != as && t->type != &type_mxfp4;
    for (int d = 0; d < ndim; d++)
        numbers *= shape[d];
    t->offset = p->p->data_bytes;
    t->bytes = numbers / t->type->numbers * t->type->bytes;
    p->p->data_bytes = (t->offset + t->bytes + 31) & ~(size_t)31;
    return t;
}

static void add_matrix(struct planner *p, const char *name, enum gguf_role role, enum gguf_as as,
                       const struct weight_view *w)
{
    add(p, name, role, as, w, 2, (size_t[3]){w->rows, w->cols});
}

static void add_linear(struct planner *p, const char *name, const struct weight_view *w)
{
    add_matrix(p, name, GGUF_LINEAR, p->o->linear, w);
}

static void add_vector(struct planner *p, const char *name, const float *v, int count)
{
    size_t n = (size_t)count;
    struct weight_view w = {.type = WEIGHT_F32, .data = v, .rows = 1, .cols = n, .stride = n};
    add(p, name, GGUF_OTHER, GGUF_AS_F32, &w, 1, (size_t[3]){n});
}

/* Adds W_uk or W_uv as a tensor [H, rows, cols]. W_uk is written transposed, so the groups of its MXFP4 codes cannot be
 * kept. */
static void add_heads(struct planner *p, const char *name, const struct weight_view *w, size_t stride,
                      enum gguf_layout layout, int rows, int cols)
{
    size_t shape[3] = {p->c->dims.H, (size_t)rows, (size_t)cols};
    struct weight_view source = *w;
    if (layout == GGUF_KEYS && is_mxfp4(w))
        source.type = WEIGHT_F32; /* only type_for reads this */
    struct gguf_planned *t = add(p, name, GGUF_LINEAR, p->o->linear, &source, 3, shape);
    t->matrix = *w;
    t->layout = layout;
    t->head_stride = stride;
}

/* llama.cpp's converter writes weights_proj as F32, too. A layer whose indexer is not used (the convention mtp-indexer)
 * has one. */
static void add_indexer(struct planner *p, const struct mla *a)
{
    int D = p->c->index_head_dim;
    if (!a->has_indexer && !a->sees_all)
        return;
    add_linear(p, "indexer.attn_q_b.weight", &a->indexer.wq_b);
    add_linear(p, "indexer.attn_k.weight", &a->indexer.wk);
    add_vector(p, "indexer.k_norm.weight", a->indexer.k_norm, D);
    add_vector(p, "indexer.k_norm.bias", a->indexer.k_norm_bias, D);
    add_matrix(p, "indexer.proj.weight", GGUF_OTHER, GGUF_AS_F32, &a->indexer.weights_proj);
}

static void add_attention(struct planner *p, const struct mla *a)
{
    const struct config *c = p->c;
    int n = c->qk_nope_head_dim, v = c->v_head_dim, latent = c->kv_lora_rank;
    if (c->q_lora_rank) {
        add_linear(p, "attn_q_a.weight", &a->q_a_proj);
        add_vector(p, "attn_q_a_norm.weight", a->q_a_layernorm, c->q_lora_rank);
        add_linear(p, "attn_q_b.weight", &a->q_b_proj);
    } else {
        add_linear(p, "attn_q.weight", &a->q_proj);
    }
    add_linear(p, "attn_kv_a_mqa.weight", &a->kv_a_proj_with_mqa);
    add_vector(p, "attn_kv_a_norm.weight", a->kv_a_layernorm, c->kv_lora_rank);
    add_heads(p, "attn_k_b.weight", &a->w_uk, a->uk_stride, GGUF_KEYS, latent, n);
    add_heads(p, "attn_v_b.weight", &a->w_uv, a->uv_stride, GGUF_VALUES, v, latent);
    add_linear(p, "attn_output.weight", &a->o_proj);
    add_indexer(p, a);
}

static void add_mlp(struct planner *p, const char *ending, const struct mlp *m)
{
    const struct weight_view *views[] = {&m->gate_proj, &m->up_proj, &m->down_proj};
    static const char *const names[] = {"gate", "up", "down"};
    for (int i = 0; i < 3; i++) {
        char name[40];
        snprintf(name, sizeof name, "ffn_%s%s.weight", names[i], ending);
        add_linear(p, name, views[i]);
    }
}

/* Adds three tensors: the gate matrices of all experts, the up matrices, and the down matrices. If matrices of one
 * tensor are stored in different types, the tensor counts as stored in F32, which represents all of them exactly. */
static void add_experts(struct planner *p, const struct moe *m)
{
    static const char *const names[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"};
    size_t E = p->c->dims.E;
    for (int i = 0; i < 3; i++) {
        struct weight_view first = *gguf_expert_matrix(m->experts, 0, i), source = first;
        for (size_t e = 1; e < E; e++)
            if (gguf_expert_matrix(m->experts, e, i)->type != first.type ||
                gguf_expert_matrix(m->experts, e, i)->group_size != first.group_size)
                first.type = WEIGHT_F32; /* only type_for reads this */
        struct gguf_planned *t = add(p, names[i], GGUF_LINEAR, p->o->linear, &first, 3,
                                     (size_t[3]){E, first.rows, first.cols});
        t->matrix = source;
        t->layout = GGUF_EXPERTS;
        t->experts = m->experts;
        t->which = i;
    }
}

static void add_layer(struct planner *p, const struct layer *l, int index)
{
    const struct config *c = p->c;
    snprintf(p->prefix, sizeof p->prefix, "blk.%d.", index);
    add_vector(p, "attn_norm.weight", l->input_layernorm, c->hidden_size);
    add_attention(p, &l->self_attn);
    add_vector(p, "ffn_norm.weight", l->post_attention_layernorm, c->hidden_size);
    if (!l->is_moe) {
        add_mlp(p, "", &l->mlp);
        return;
    }
    add_matrix(p, "ffn_gate_inp.weight", GGUF_OTHER, GGUF_AS_F32, &l->moe.gate);
    if (l->moe.e_score_correction_bias)
        add_vector(p, "exp_probs_b.bias", l->moe.e_score_correction_bias, c->n_routed_experts);
    add_experts(p, &l->moe);
    if (c->n_shared_experts)
        add_mlp(p, "_shexp", &l->moe.shared_experts);
}

static void add_module(struct planner *p, const struct mtp_module *module, int k)
{
    int d = p->c->hidden_size;
    enum mtp_copy embedding = model_mtp_copy(p->p->model, k, 0), head = model_mtp_copy(p->p->model, k, 1);
    add_layer(p, &module->layer, p->c->num_hidden_layers + k);
    add_vector(p, "nextn.enorm.weight", module->enorm, d);
    add_vector(p, "nextn.hnorm.weight", module->hnorm, d);
    add_linear(p, "nextn.eh_proj.weight", &module->eh_proj);
    add_vector(p, "nextn.shared_head_norm.weight", module->shared_head_norm, d);
    if (embedding == MTP_COPY_DIFFERENT)
        add_matrix(p, "nextn.embed_tokens.weight", GGUF_EMBEDDING, p->o->embedding, &module->embed_tokens);
    if (head == MTP_COPY_DIFFERENT)
        add_matrix(p, "nextn.shared_head_head.weight", GGUF_HEAD, p->o->head, &module->head);
    p->copies[0] += embedding == MTP_COPY_EQUAL;
    p->copies[1] += head == MTP_COPY_EQUAL;
}

/* Adds the output head. A tied head is left out if it would have the same numbers as the embedding in the file: if both
 * have the same type, or if the embedding keeps its stored type and the head would be F32. */
static void add_head(struct planner *p, const struct gguf_planned *embedding)
{
    const struct weight_view *w = &p->p->model->lm_head;
    const struct gguf_written_type *type = type_for(p->o->head, w, w->cols);
    int exact = embedding->type == stored_type(w) && type == &type_f32;
    if (p->c->tie_word_embeddings && (type == embedding->type || exact)) {
        gguf_note(p->p, "the output head is the embedding (tie_word_embeddings), %s", embedding->type->name);
        return;
    }
    add_matrix(p, "output.weight", GGUF_HEAD, p->o->head, w);
}

int gguf_plan_tensors(struct vb_quantize *plan, const struct gguf_write_options *o, vb_error *err)
{
    const struct vb_model *m = plan->model;
    struct planner p = {.p = plan, .c = &m->config, .o = o};
    size_t layers = m->config.dims.layers + (size_t)m->num_mtp;
    if (!(plan->tensors = vb_alloc(&plan->allocator, 32 * layers + 3, sizeof *plan->tensors)))
        return gguf_no_memory(m, err);
    add_matrix(&p, "token_embd.weight", GGUF_EMBEDDING, o->embedding, &m->embed_tokens);
    for (int i = 0; i < m->config.num_hidden_layers; i++)
        add_layer(&p, &m->layers[i], i);
    for (int k = 0; k < m->num_mtp; k++)
        add_module(&p, &m->mtp[k], k);
    p.prefix[0] = 0;
    add_vector(&p, "output_norm.weight", m->norm, m->config.hidden_size);
    add_head(&p, &plan->tensors[0]);
    if (p.nvfp4)
        gguf_note(plan,
                  "%zu tensors of NVFP4 weights are quantized again, so results differ from those of --precision q8 "
                  "and q4",
                  p.nvfp4);
    for (int i = 0; i < 2; i++)
        if (p.copies[i])
            gguf_note(plan, "left out: %s of %d of %d MTP modules, byte for byte the main one",
                      i ? "shared_head.head" : "embed_tokens", p.copies[i], m->num_mtp);
    return VB_OK;
}
