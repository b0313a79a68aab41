/* engine/model/model.c -- finds each tensor by its name and stores it at its place in struct vb_model. Names, shapes
 * and places are in two tables (engine/files/tensor_names.c, engine/model/layer_tensors.c). Only this file knows the
 * allowed dtypes. */
#include "engine/model/model_internal.h"
#include "engine/model/layer_tensors.h"
#include "ops/round.h"
#include "ops/weights.h"
#include "simd/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *keep(struct vb_model *m, struct model_block *block)
{
    block->next = m->blocks;
    m->blocks = block;
    return block + 1;
}

void *model_alloc(const struct binder *b, size_t count, size_t size)
{
    struct model_block *block = NULL;
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= SIZE_MAX - sizeof *block)
        block = vb_alloc(b->m->allocator, 1, sizeof *block + bytes);
    if (block)
        return keep(b->m, block);
    vb_fail(b->err, VB_NO_MEMORY, "%s: no memory for %zu times %zu bytes", checkpoint_dir(b->m->checkpoint), count,
            size);
    return NULL;
}

void *model_alloc_unset(const struct binder *b, size_t bytes)
{
    struct model_block *block = bytes <= SIZE_MAX - sizeof *block
                                    ? vb_alloc_unset(b->m->allocator, sizeof *block + bytes)
                                    : NULL;
    return block ? keep(b->m, block) : NULL;
}

static const char *show_shape(char text[96], const int64_t *shape, int ndim)
{
    size_t n = (size_t)snprintf(text, 96, "[");
    for (int d = 0; d < ndim; d++)
        n += (size_t)snprintf(text + n, 96 - n, "%s%lld", d ? "," : "", (long long)shape[d]);
    snprintf(text + n, 96 - n, "]");
    return text;
}

int model_take(const struct binder *b, const struct tensor **out, const char *part, const char *suffix, int ndim,
               size_t rows, size_t cols)
{
    char name[TENSOR_MAX_NAME + 1], has[96], wants[96];
    int64_t shape[2] = {(int64_t)rows, (int64_t)cols};
    snprintf(name, sizeof name, "%s%s%s", b->prefix, part, suffix);
    const struct tensor *t = checkpoint_take(b->m->checkpoint, name);
    if (!t)
        return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is missing", checkpoint_dir(b->m->checkpoint), name);
    if (t->ndim != ndim || memcmp(t->shape, shape, (size_t)ndim * sizeof *shape))
        return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, %s says %s", t->file, name,
                       show_shape(has, t->shape, t->ndim), config_origin(b->c), show_shape(wants, shape, ndim));
    *out = t;
    return VB_OK;
}

static int is_stored(const struct binder *b, const char *part)
{
    char name[TENSOR_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s%s", b->prefix, part);
    return checkpoint_find(b->m->checkpoint, name) != NULL;
}

_Static_assert((int)DTYPE_F8_E4M3 == WEIGHT_F8_E4M3 && (int)DTYPE_I4 == WEIGHT_I4 && (int)DTYPE_F4 == WEIGHT_F4 &&
                   (int)DTYPE_I8 == WEIGHT_I8 && (int)DTYPE_Q8_0 == WEIGHT_Q8_0 &&
                   (int)DTYPE_GGUF_NVFP4 == WEIGHT_GGUF_NVFP4 && (int)DTYPE_OTHER == WEIGHT_ALL_TYPES,
               "both lists are in one order");

static int weight_type(const struct tensor *t, enum weight_type *type)
{
    *type = (enum weight_type)t->dtype;
    return t->dtype != DTYPE_OTHER;
}

/* What the tables say about a tensor. */
struct wanted {
    char name[64], part[64]; /* part: without ".weight" at its end */
    size_t rows, cols, unit; /* unit: as tensor_share_unit */
};

static struct wanted want(const struct binder *b, enum model_tensor t, size_t expert)
{
    const struct layer_tensor *x = &layer_tensors[t];
    struct wanted out = {.rows = x->rows(&b->c->dims), .cols = x->cols ? x->cols(&b->c->dims) : 0,
                         .unit = tensor_share_unit(b->c, t)};
    tensor_name(out.name, sizeof out.name, tensor_names[t].hf, expert, NULL);
    snprintf(out.part, sizeof out.part, "%.*s", (int)(strlen(out.name) - strlen(".weight")), out.name);
    return out;
}

static int bind_matrix(struct binder *b, struct weight_view *w, const struct tensor **out, const struct wanted *x)
{
    const struct tensor *t;
    enum weight_type type;
    const char *part = x->part;
    int rc = model_take(b, &t, part, ".weight", 2, x->rows, x->cols);
    if (rc)
        return rc;
    *out = t;
    if (!weight_type(t, &type))
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is %s, wanted F32, F16, BF16, F8_E4M3 or I8", t->file, t->name,
                       t->dtype_name);
    *w = (struct weight_view){.type = type, .data = t->data, .rows = x->rows, .cols = x->cols, .stride = x->cols};
    if (type == WEIGHT_I4)
        return model_bind_groups(b, w, part, t->file);
    if (type == WEIGHT_F4)
        return model_bind_floats_of_4_bits(b, w, part, t->file);
    if (type == WEIGHT_GGUF_NVFP4)
        return model_bind_tensor_scale(b, w, part);
    if (type == WEIGHT_I8)
        return model_bind_row_scales(b, w, part, t->file);
    return type == WEIGHT_F8_E4M3 ? model_bind_scale(b, w, part, t->file) : VB_OK;
}

/* Counts the scales of codes of 4 bits, too. Those of FP8 and int8 matrices, less than 1 % of the bytes, are not
 * counted. */
static void count_stored(struct binder *b, const struct weight_view *w)
{
    b->newest_bytes = weight_bytes(w) + weight_group_scale_bytes(w);
    b->m->stored_bytes += b->newest_bytes;
}

/* Binds this rank's share of a matrix. */
static int bind_share(struct binder *b, struct weight_view *w, const struct tensor **t, const struct wanted *x)
{
    int rc = bind_matrix(b, w, t, x);
    if (rc || !w->data)
        return rc;
    struct op_share own = model_own_share(b, x->rows, x->unit);
    *w = weight_rows(w, own.begin, own.end - own.begin);
    count_stored(b, w);
    return VB_OK;
}

static int bind_linear(struct binder *b, struct weight_view *w, const struct wanted *x)
{
    const struct tensor *t;
    int rc = bind_share(b, w, &t, x);
    return rc ? rc : model_plan_linear(b, w, t);
}

static int bind_embedding(struct binder *b, struct weight_view *w, const struct wanted *x)
{
    const struct tensor *t;
    int rc = bind_matrix(b, w, &t, x);
    if (!rc)
        count_stored(b, w);
    return rc;
}

/* Takes a vector and converts it to f32. */
static int bind_vector(struct binder *b, const float **out, const struct wanted *x)
{
    const struct tensor *t = NULL;
    enum weight_type type;
    size_t count = x->rows;
    int rc = model_take(b, &t, x->name, "", 1, count, 0);
    if (rc)
        return rc;
    if (!weight_type(t, &type) || type >= WEIGHT_F8_E4M3)
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is %s, wanted F32, F16 or BF16", t->file, t->name,
                       t->dtype_name);
    if (!t->data) /* the checkpoint has no weights (checkpoint_from_list) */
        return VB_OK;
    struct weight_view w = {.type = type, .data = t->data, .rows = 1, .cols = count, .stride = count};
    float *wide = model_alloc(b, count, sizeof *wide);
    if (!wide)
        return VB_NO_MEMORY;
    decode_weights(wide, &w, 0, 0, count);
    b->m->widened_bytes += count * sizeof *wide;
    *out = wide;
    return VB_OK;
}

/* Takes kv_b_proj [H(n+v), c]. For each attention head, it has n rows of W_uk and then v rows of W_uv. */
static int bind_kv_b(struct binder *b, struct mla *a, const struct wanted *x)
{
    size_t n = b->c->dims.n, v = b->c->dims.v;
    const struct tensor *t;
    int rc = bind_share(b, &a->w_uk, &t, x);
    a->w_uv = a->w_uk;
    a->w_uv.rows -= a->w_uv.rows ? n : 0;
    a->uk_stride = a->uv_stride = n + v;
    return rc ? rc : model_plan_kv_b(b, a, t);
}

/* Takes W_uk if it is a tensor of its own. A quantized W_uk must be transposed, so that its blocks run along n. A W_uk
 * that is not quantized must not be transposed. There are no kernels for the other two cases. */
static int bind_keys(struct binder *b, struct mla *a, const struct wanted *x, int transposed)
{
    const struct tensor *t = NULL;
    a->uk_transposed = transposed;
    a->uk_stride = x->rows / b->c->dims.H;
    a->uv_stride = b->c->dims.v;
    int rc = bind_share(b, &a->w_uk, &t, x);
    if (!rc && weight_is_quantized(a->w_uk.type) != transposed)
        rc = vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is %s, wanted %s type", t->file, t->name, t->dtype_name,
                     transposed ? "a quantized" : "no quantized");
    if (rc)
        return rc;
    return transposed ? model_plan_linear(b, &a->w_uk, t) : model_plan_keys(b, a, t);
}

/* Returns how W_uk and W_uv are stored. They are two tensors in a GGUF file in which at least one of them is quantized
 * (checkpoint_gguf.c). */
static enum tensor_form form_of(const struct binder *b)
{
    if (!is_stored(b, tensor_names[TENSOR_V_B_PROJ].hf))
        return ONE_KV_B;
    return is_stored(b, tensor_names[TENSOR_K_B_TRANSPOSED].hf) ? W_UK_TRANSPOSED : W_UK_AND_W_UV;
}

/* Takes a matrix whose input is never rounded or quantized. If the file has it quantized, it is converted to f32. If
 * `to_bf16` is not 0, a matrix that is not BF16 is rounded to BF16. */
static int bind_exact(struct binder *b, struct weight_view *w, const struct wanted *x, int to_bf16)
{
    const struct tensor *t;
    int rc = bind_matrix(b, w, &t, x), rounded = to_bf16 && w->type != WEIGHT_BF16;
    if (rc)
        return rc;
    if (!rounded && !weight_is_quantized(w->type))
        count_stored(b, w);
    if ((!w->data && !b->o->shapes_only) || (!rounded && !weight_is_quantized(w->type)))
        return VB_OK;
    float *copy = b->o->shapes_only ? NULL : model_alloc(b, w->rows * w->cols, sizeof *copy);
    if (!copy && !b->o->shapes_only)
        return VB_NO_MEMORY;
    checkpoint_prefetch(b->m->checkpoint, w->data, weight_bytes(w));
    for (size_t i = 0; copy && i < w->rows; i++)
        decode_weights(copy + i * w->cols, w, i, 0, w->cols);
    if (rounded && copy)
        op_round_bf16(copy, copy, w->rows * w->cols);
    checkpoint_set_copied(b->m->checkpoint, t);
    b->m->widened_bytes += w->rows * w->cols * sizeof *copy;
    *w = (struct weight_view){.type = WEIGHT_F32, .data = copy, .rows = w->rows, .cols = w->cols, .stride = w->cols};
    return VB_OK;
}

/* Sets what an indexer needs beside its tensors. */
static void set_indexer(const struct config *c, struct mla *a, int layer)
{
    a->has_indexer = c->index_topk && !config_layer_is_shared(c, layer);
    for (int i = 0; a->has_indexer && layer < c->num_hidden_layers && i < layer; i++)
        a->indexer.number += !config_layer_is_shared(c, i);
    a->sees_all = a->has_indexer && layer >= c->num_hidden_layers && c->conventions.value[MTP_INDEXER];
    a->has_indexer = a->has_indexer && !a->sees_all;
}

/* Takes a tensor of `owner`, a struct layer, mtp_module or vb_model. */
static int bind_tensor(struct binder *b, void *owner, enum model_tensor t, size_t expert)
{
    const struct layer_tensor *x = &layer_tensors[t];
    struct wanted wanted = want(b, t, expert);
    struct layer *l = owner;
    void *to = tensor_place(t, owner, expert);
    if (x->optional && !is_stored(b, wanted.name))
        return VB_OK;
    if (t == TENSOR_KV_B_PROJ)
        return bind_kv_b(b, &l->self_attn, &wanted);
    if (t == TENSOR_K_B_PROJ || t == TENSOR_K_B_TRANSPOSED)
        return bind_keys(b, &l->self_attn, &wanted, t == TENSOR_K_B_TRANSPOSED);
    switch (x->kind) {
    case KIND_VECTOR: return bind_vector(b, to, &wanted);
    case KIND_LINEAR: return bind_linear(b, to, &wanted);
    case KIND_EXACT: return bind_exact(b, to, &wanted, b->c->conventions.value[x->rounds]);
    default: return bind_embedding(b, to, &wanted);
    }
}

static int bind_tensors(struct binder *b, void *owner, struct tensor_walk w)
{
    int rc = VB_OK;
    while (!rc && walk_next(&w))
        rc = bind_tensor(b, owner, w.tensor, w.expert);
    return rc;
}

static void set_layer(struct binder *b, int index)
{
    int head = b->o->heads_of ? index - b->c->num_hidden_layers : -1;
    snprintf(b->prefix, sizeof b->prefix, head < 0 ? "model.layers.%d." : PARALLEL_HEADS "%d.",
             head < 0 ? index : head);
}

int model_bind_layer(struct binder *b, struct layer *l, int index)
{
    size_t E = b->c->dims.E;
    set_layer(b, index);
    b->on_device = index < b->c->num_hidden_layers ? index >= b->offload.first_attention : b->offload.ends;
    l->kind = config_attention(b->c, index);
    l->index = index;
    l->is_moe = config_layer_is_moe(b->c, index);
    set_indexer(b->c, &l->self_attn, index);
    if ((b->m->ranks && !(l->prefetched = model_alloc(b, 1 + (l->is_moe ? E : 0), 1))) ||
        (l->is_moe && !(l->moe.experts = model_alloc(b, E, sizeof *l->moe.experts))))
        return VB_NO_MEMORY;
    return bind_tensors(b, l, walk_layer(b->c, index, form_of(b)));
}

static int bind_mtp(struct binder *b, struct mtp_module *module, int index)
{
    set_layer(b, index);
    if (is_stored(b, "rot.weight") || (b->c->rotated && !strcmp(b->c->architecture, "GlmMoeDsaForCausalLM")))
        return vb_fail(b->err, VB_UNSUPPORTED,
                       "%s: MTP layer %d wants hidden states that are rotated by %srot.weight, which is not supported; "
                       "set num_nextn_predict_layers to 0 in %s to do without "
                       "it",
                       checkpoint_dir(b->m->checkpoint), index, b->prefix, config_origin(b->c));
    int rc = model_bind_layer(b, &module->layer, index);
    return rc ? rc : bind_tensors(b, module, walk_module(b->c));
}

/* A module that does not store its own embedding or output head uses that of the main model. */
static void share_outside(struct vb_model *m)
{
    for (int k = 0; k < m->num_mtp; k++) {
        if (!m->mtp[k].embed_tokens.rows)
            m->mtp[k].embed_tokens = m->embed_tokens;
        if (!m->mtp[k].head.rows)
            m->mtp[k].head = m->lm_head;
    }
}

static int bind_outside(struct binder *b)
{
    struct vb_model *m = b->m;
    b->prefix[0] = 0;
    int rc = bind_tensors(b, m, walk_model(b->c));
    if (rc || !b->c->tie_word_embeddings)
        return rc;
    m->lm_head = m->embed_tokens; /* the function takes this rank's share of the head */
    return model_plan_tied_head(b, &m->lm_head, &m->embed_tokens,
                                checkpoint_find(m->checkpoint, tensor_names[TENSOR_EMBED_TOKENS].hf));
}

/* Returns the number of MTP layers: num_nextn_predict_layers, minus the last ones of which the checkpoint stores no
 * tensor. */
static int count_mtp(struct binder *b)
{
    size_t first;
    int count = b->c->num_nextn_predict_layers;
    for (; count > 0; count--) {
        set_layer(b, b->c->num_hidden_layers + count - 1);
        if (checkpoint_with_prefix(b->m->checkpoint, b->prefix, &first))
            break;
    }
    return count;
}

int model_layer_of(const char *name)
{
    static const char prefix[] = "model.layers.";
    long layer = strncmp(name, prefix, sizeof prefix - 1) ? -1 : strtol(name + sizeof prefix - 1, NULL, 10);
    return layer < 0 || layer > INT32_MAX ? -1 : (int)layer;
}

static int is_vision(const char *name)
{
    static const char *const prefixes[] = {"vision_tower.", "mm_projector.", "multi_modal_projector.",
                                           "model.vision_tower.", "vision_encoder.", "vision_language_adapter.",
                                           "patch_merger.", "pre_mm_projector_norm.", "model.multi_modal_projector."};
    size_t i = 0;
    while (i < sizeof prefixes / sizeof *prefixes && strncmp(name, prefixes[i], strlen(prefixes[i])))
        i++;
    return i < sizeof prefixes / sizeof *prefixes;
}

/* Returns why the model may leave *t unused, or NULL if it must not. A layer after the last one may be unused only if
 * it is an MTP layer. Otherwise config.json may have too small a number of layers. */
static const char *explain(struct binder *b, const struct tensor *t)
{
    static const char *const scales[] = {".input_scale", ".input_global_scale", ".k_scale", ".v_scale",
                                         ".kv_cache_scale", ".kv_cache_offset", ".fa_q.scale", ".fa_k.scale",
                                         ".fa_v.scale", ".fa_q.offset", ".fa_k.offset", ".fa_v.offset"};
    int layer = model_layer_of(t->name), is_head = !strncmp(t->name, PARALLEL_HEADS, sizeof PARALLEL_HEADS - 1);
    if (is_head != (b->o->heads_of != NULL))
        return is_head ? "of a parallel head, which draft method parallel-heads computes"
                       : "of the model for which the heads are";
    if (vb_ends_with(t->name, ".rotary_emb.inv_freq"))
        return "computed from config.json";
    if (is_vision(t->name))
        return "a part of the vision tower: only text is computed";
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (vb_ends_with(t->name, scales[i]))
            return "a scale of activations or of the KV cache, which are not quantized by it here";
    if (b->c->fp8 && !b->c->fp8_block_rows && vb_ends_with(t->name, "activation_scale"))
        return "a scale of activations, which are not quantized here";
    if (b->c->gguf && (vb_ends_with(t->name, ".attn_k_b.weight") || vb_ends_with(t->name, ".attn_v_b.weight")))
        return "a part of attn_kv_b, which is stored too";
    if (b->c->gguf && layer >= 0 && config_layer_is_shared(b->c, layer) && strstr(t->name, ".self_attn.indexer."))
        return "the layer shares what the last full layer before it chooses"; /* published files repeat that layer's
                                                                                 indexer */
    if (b->c->tie_word_embeddings && !strcmp(t->name, "lm_head.weight"))
        return "tie_word_embeddings is true: embed_tokens is the head";
    if (layer >= b->c->num_hidden_layers + b->m->num_mtp) {
        set_layer(b, layer);
        if (is_stored(b, "eh_proj.weight") && is_stored(b, "enorm.weight") && is_stored(b, "hnorm.weight"))
            return "an MTP layer beyond num_nextn_predict_layers";
    }
    return NULL;
}

/* Checks every tensor that was not taken. Records the reason why it is unused, or returns an error if there is no
 * reason. */
static int account(struct binder *b)
{
    struct checkpoint *c = b->m->checkpoint;
    const struct tensor *left = NULL;
    size_t count = 0;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_at(c, i);
        const char *why = t->taken ? NULL : explain(b, t);
        if (why) {
            checkpoint_ignore(c, t, why);
        } else if (!t->taken) {
            left = left ? left : t;
            count++;
        }
    }
    if (!left)
        return VB_OK;
    return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s has no place in the model of %s (tensors left over: %zu)",
                   left->file, left->name, config_origin(b->c), count);
}

/* llama.cpp's converter can write the MTP layers to a file of their own. */
static int refuse_drafter(struct binder *b)
{
    size_t first;
    set_layer(b, 0);
    if (!b->m->num_mtp || checkpoint_with_prefix(b->m->checkpoint, b->prefix, &first))
        return VB_OK;
    return vb_fail(b->err, VB_UNSUPPORTED, "%s: it has MTP layers only, wanted the file of the whole model",
                   checkpoint_dir(b->m->checkpoint));
}

/* Binds the layers, and what is before and after them. */
static int bind_layers(struct binder *b)
{
    struct vb_model *m = b->m;
    int rc = refuse_drafter(b), layers = b->c->num_hidden_layers;
    if (!rc)
        rc = bind_outside(b);
    if (!rc && (!(m->layers = model_alloc(b, (size_t)layers, sizeof *m->layers)) ||
                !(m->mtp = model_alloc(b, (size_t)m->num_mtp, sizeof *m->mtp))))
        rc = VB_NO_MEMORY;
    for (int i = 0; !rc && i < layers; i++)
        rc = model_bind_layer(b, &m->layers[i], i);
    for (int k = 0; !rc && k < m->num_mtp; k++)
        rc = bind_mtp(b, &m->mtp[k], layers + k);
    return rc;
}

static int bind_all(struct binder *b)
{
    struct vb_model *m = b->m;
    int rc = VB_NO_MEMORY;
    struct offload_options none = {0};
    m->num_mtp = b->o->heads_of ? 0 : count_mtp(b);
    b->offload = offload_choose(b->o->offload ? b->o->offload : &none, b->c, m->checkpoint);
    b->on_device = b->offload.ends;
    if (m->ranks) /* binding reads vectors, and beside them there are rows of other ranks */
        checkpoint_read_ahead(m->checkpoint, 0);
    if ((m->magnitudes = model_alloc(b, checkpoint_count(m->checkpoint) + 1, 1))) /* + 1 for a tied output head */
        rc = b->o->heads_of ? model_bind_heads(b) : bind_layers(b);
    checkpoint_read_ahead(m->checkpoint, 1);
    if (!rc && !(rc = account(b)) && !(rc = model_make_copies(b)))
        share_outside(m);
    if (!rc && b->o->offload)
        rc = offload_model(m, &b->offload, b->o->offload->device, b->o->progress, b->o->progress_context, b->err);
    return rc;
}

int model_bind_under(struct vb_model **out, const struct config *config, struct checkpoint *checkpoint,
                     const struct model_options *o, const vb_allocator *a, vb_error *err)
{
    struct vb_model *m = vb_alloc(a, 1, sizeof *m);
    if (m)
        m->ranks = o->ranks;
    if (!m) {
        vb_fail(err, VB_NO_MEMORY, "%s: no memory to open it", checkpoint_dir(checkpoint));
        checkpoint_close(checkpoint);
        return VB_NO_MEMORY;
    }
    m->config = *config;
    m->checkpoint = checkpoint;
    if (a)
        m->allocator_copy = *a;
    m->allocator = &m->allocator_copy;
    struct binder b = {.m = m, .c = &m->config, .o = o, .err = err};
    int rc = bind_all(&b);
    if (rc)
        model_close(m);
    else
        *out = m;
    return rc;
}

int model_bind(struct vb_model **out, const struct config *config, struct checkpoint *checkpoint, const vb_allocator *a,
               vb_error *err)
{
    return model_bind_under(out, config, checkpoint, &(struct model_options){0}, a, err);
}

int model_set_options(struct config *c, const char *dir, const struct model_options *o, vb_error *err)
{
    if (o->conventions)
        config_follow(c, o->conventions);
    c->precision = o->precision;
    c->tensor_cores = o->tensor_cores;
    c->cache_type = o->cache_type;
    if (!cache_type_fits(c, o->cache_type))
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: kv_lora_rank is %d, cache type %s wants a multiple of 32", dir,
                       c->kv_lora_rank, cache_type_name(o->cache_type));
    return VB_OK;
}

int model_open_under(struct vb_model **out, const char *dir, const struct model_options *o, const vb_allocator *a,
                     vb_error *err)
{
    struct config config;
    struct checkpoint *checkpoint;
    int rc = config_read(&config, dir, a, err);
    if (!rc && !(rc = model_set_options(&config, dir, o, err)))
        rc = checkpoint_open(&checkpoint, dir, a, err);
    return rc ? rc : model_bind_under(out, &config, checkpoint, o, a, err);
}

int model_open(struct vb_model **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    return model_open_under(out, dir, &(struct model_options){0}, a, err);
}

void model_close(struct vb_model *m)
{
    if (!m)
        return;
    vb_allocator a = m->allocator_copy;
    if (m->copied)
        checkpoint_unlock(m->copied, m->copied_bytes);
    mapping_close_all(&m->cache_file, &a);
    vb_free(&a, m->copies);
    while (m->blocks) {
        struct model_block *block = m->blocks;
        m->blocks = block->next;
        vb_free(&a, block);
    }
    checkpoint_close(m->checkpoint);
    if (m->owns_device)
        device_close(m->device);
    vb_free(&a, m->numa);
    vb_free(&a, m);
}

int vb_is_end_token(const vb_model *model, int32_t token)
{
    for (int i = 0; i < model->config.num_eos; i++)
        if (model->config.eos_token_ids[i] == token)
            return 1;
    return 0;
}
