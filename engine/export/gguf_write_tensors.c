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
static struct gguf_planned *add(struct planner *p, enum model_tensor name, enum gguf_role role,
                                const struct weight_view *w, int ndim, const size_t shape[3])
{
    const enum gguf_as as_role[] = {[GGUF_LINEAR] = p->o->linear, [GGUF_EMBEDDING] = p->o->embedding,
                                    [GGUF_HEAD] = p->o->head, [GGUF_OTHER] = GGUF_AS_F32};
    struct gguf_planned *t = &p->p->tensors[p->p->count++];
    enum gguf_as as = as_role[role];
    size_t numbers = 1, cols = shape[ndim - 1];
    *t = (struct gguf_planned){.role = role, .type = type_for(as, w, cols), .ndim = ndim, .layout = GGUF_ROWS,
                               .matrix = *w};
    snprintf(t->name, sizeof t->name, "%s%s", p->prefix, tensor_names[name].gguf);
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

static void add_vector(struct planner *p, enum model_tensor name, const float *v)
{
    size_t n = layer_tensors[name].rows(&p->c->dims);
    struct weight_view w = {.type = WEIGHT_F32, .data = v, .rows = 1, .cols = n, .stride = n};
    add(p, name, GGUF_OTHER, &w, 1, (size_t[3]){n});
}

/* Adds W_uk or W_uv as a tensor [H, rows, cols]. W_uk is written transposed, so the groups of its MXFP4 codes cannot be
 * kept. */
static void add_heads(struct planner *p, enum model_tensor name, const struct mla *a)
{
    const struct dims *s = &p->c->dims;
    int is_keys = name == TENSOR_K_B_TRANSPOSED;
    const struct weight_view *w = is_keys ? &a->w_uk : &a->w_uv;
    struct weight_view source = *w;
    if (is_keys && is_mxfp4(w))
        source.type = WEIGHT_F32; /* only type_for reads this */
    struct gguf_planned *t = add(p, name, GGUF_LINEAR, &source, 3,
                                 (size_t[3]){s->H, layer_tensors[name].rows(s) / s->H, layer_tensors[name].cols(s)});
    t->matrix = *w;
    t->layout = is_keys ? GGUF_KEYS : GGUF_VALUES;
    t->head_stride = is_keys ? a->uk_stride : a->uv_stride;
}

/* Adds a tensor with a matrix of each expert. If these matrices are stored in different types, the tensor counts as
 * stored in F32, which represents all of them exactly. */
static void add_experts(struct planner *p, enum model_tensor name, const struct moe *m)
{
    size_t E = p->c->dims.E;
    struct weight_view first = *expert_matrix(name, m->experts), source = first;
    for (size_t e = 1; e < E; e++) {
        const struct weight_view *w = expert_matrix(name, &m->experts[e]);
        if (w->type != first.type || w->group_size != first.group_size)
            first.type = WEIGHT_F32; /* only type_for reads this */
    }
    struct gguf_planned *t = add(p, name, GGUF_LINEAR, &first, 3, (size_t[3]){E, first.rows, first.cols});
    t->matrix = source;
    t->layout = GGUF_EXPERTS;
    t->experts = m->experts;
    t->which = name;
}

/* llama.cpp's converter writes routers and weights_proj as F32, too. */
static enum gguf_role role_of(enum model_tensor t)
{
    if (t == TENSOR_MODULE_HEAD || t == TENSOR_LM_HEAD)
        return GGUF_HEAD;
    enum tensor_kind kind = layer_tensors[t].kind;
    return kind == KIND_LINEAR ? GGUF_LINEAR : kind == KIND_EMBEDDING ? GGUF_EMBEDDING : GGUF_OTHER;
}

/* `owner`: as in tensor_place. */
static void add_tensor(struct planner *p, enum model_tensor t, const void *owner)
{
    const struct layer *l = owner;
    const struct weight_view *w = tensor_matrix(t, owner, 0);
    if (layer_tensors[t].kind == KIND_VECTOR)
        add_vector(p, t, tensor_vector(t, owner));
    else if (t == TENSOR_K_B_TRANSPOSED || t == TENSOR_V_B_PROJ)
        add_heads(p, t, &l->self_attn);
    else if (layer_tensors[t].owner == OWNER_EXPERT)
        add_experts(p, t, &l->moe);
    else
        add(p, t, role_of(t), w, 2, (size_t[3]){w->rows, w->cols});
}

/* A layer whose indexer is not used (the convention mtp-indexer) has one. */
static void add_layer(struct planner *p, const struct layer *l)
{
    snprintf(p->prefix, sizeof p->prefix, "blk.%d.", l->index);
    for (enum tensor_group group = GROUP_ATTENTION; group <= GROUP_MLP; group++) {
        struct tensor_walk w = walk_layer(p->c, l->index, W_UK_TRANSPOSED);
        w.experts = 1;
        while (walk_next(&w))
            if (layer_tensors[w.tensor].group == group)
                add_tensor(p, w.tensor, l);
    }
}

static void add_module(struct planner *p, const struct mtp_module *module, int k)
{
    add_layer(p, &module->layer);
    for (struct tensor_walk w = walk_module(p->c); walk_next(&w);) {
        int head = w.tensor == TENSOR_MODULE_HEAD;
        enum mtp_copy copy = layer_tensors[w.tensor].optional ? model_mtp_copy(p->p->model, k, head)
                                                              : MTP_COPY_DIFFERENT;
        if (copy == MTP_COPY_DIFFERENT)
            add_tensor(p, w.tensor, module);
        p->copies[head] += copy == MTP_COPY_EQUAL;
    }
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
    add_tensor(p, TENSOR_LM_HEAD, p->p->model);
}

int gguf_plan_tensors(struct vb_quantize *plan, const struct gguf_write_options *o, vb_error *err)
{
    const struct vb_model *m = plan->model;
    struct planner p = {.p = plan, .c = &m->config, .o = o};
    size_t layers = m->config.dims.layers + (size_t)m->num_mtp;
    if (!(plan->tensors = vb_alloc(&plan->allocator, MODEL_TENSORS * (layers + 1), sizeof *plan->tensors)))
        return gguf_no_memory(m, err);
    add_tensor(&p, TENSOR_EMBED_TOKENS, m);
    for (int i = 0; i < m->config.num_hidden_layers; i++)
        add_layer(&p, &m->layers[i]);
    for (int k = 0; k < m->num_mtp; k++)
        add_module(&p, &m->mtp[k], k);
    p.prefix[0] = 0;
    add_tensor(&p, TENSOR_NORM, m);
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
