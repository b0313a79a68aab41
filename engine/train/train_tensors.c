/* engine/train/train_tensors.c -- the trainer's weights: which tensors it trains, their names, and their first
 * values. */
#include "engine/train/train_eagle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash64.h"
#include "engine/choose/random.h"
#include "simd/decode.h"

/* All memory of the weights is in one linked list. */
struct train_block {
    struct train_block *next;
    char pad[64 - sizeof(struct train_block *)]; /* keeps the memory after this header aligned to 64 bytes */
};

/* Where the first values of a tensor are: in a matrix or a vector of the model, or nowhere, if it is new. */
struct first_values {
    const struct weight_view *matrix;
    const float *vector;
    int is_new;
};

static void *take(struct maker *b, size_t count, size_t size)
{
    size_t bytes;
    struct train_block *block = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= SIZE_MAX - sizeof *block)
        block = vb_alloc(&b->t->allocator, 1, sizeof *block + bytes);
    if (!block) {
        vb_fail(b->err, VB_NO_MEMORY, "no memory for %zu times %zu bytes of weights to train", count, size);
        return NULL;
    }
    block->next = b->t->blocks;
    b->t->blocks = block;
    return block + 1;
}

/* ---- first values ---- */

void trainer_initial(float *w, const char *name, size_t rows, size_t cols, int dimensions, uint64_t seed)
{
    uint64_t hash = hash64(0, name, strlen(name));
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, word[4];
    float a = (float)(1.0 / sqrt((double)cols));
    if (vb_ends_with(name, "embed_tokens.weight"))
        a = (float)sqrt(3.0);
    else if (vb_ends_with(name, "head.weight"))
        a = (float)(0.02 * sqrt(3.0));
    else if (vb_ends_with(name, "o_proj.weight") || vb_ends_with(name, "down_proj.weight"))
        a = 0.0f;
    for (size_t i = 0; i < rows * cols; i++) {
        if (i % 4 == 0 && dimensions == 2)
            philox4x32(word,
                       (uint32_t[]){(uint32_t)(i / 4), (uint32_t)((uint64_t)i >> 34), (uint32_t)hash,
                                    (uint32_t)(hash >> 32)},
                       key);
        if (dimensions == 2)
            w[i] = a * (2.0f * ((float)(word[i % 4] >> 8) * 0x1p-24f) - 1.0f);
        else
            w[i] = vb_ends_with(name, "e_score_correction_bias") ? 0.0f : 1.0f;
    }
}

static void fill(const struct maker *b, const struct trained_tensor *x, const struct first_values *from)
{
    if (from->matrix && from->matrix->data)
        for (size_t i = 0; i < x->rows; i++)
            decode_weights(x->w + i * x->cols, from->matrix, i, 0, x->cols);
    else if (from->vector)
        memcpy(x->w, from->vector, x->cols * sizeof *x->w);
    else
        trainer_initial(x->w, x->name, x->rows, x->cols, x->dimensions, b->t->o.seed);
}

/* ---- one tensor ---- */

static int grow(struct maker *b)
{
    struct vb_trainer *t = b->t;
    if (t->count < b->room)
        return VB_OK;
    size_t room = b->room ? 2 * b->room : 64;
    struct trained_tensor *tensors = vb_alloc(&t->allocator, room, sizeof *tensors);
    if (!tensors)
        return vb_fail(b->err, VB_NO_MEMORY, "no memory for a list of %zu tensors to train", room);
    if (t->count)
        memcpy(tensors, t->tensors, t->count * sizeof *tensors);
    vb_free(&t->allocator, t->tensors);
    t->tensors = tensors;
    b->room = room;
    return VB_OK;
}

/* Adds a tensor, with its first values. `part` is the middle of its name. Without gradients, it is a state like the
 * router's bias. */
static int add(struct maker *b, struct trained_tensor **out, const char *part, size_t rows, size_t cols, int dimensions,
               int gradients, const struct first_values *from)
{
    int rc = grow(b);
    size_t n = rows * cols;
    if (rc)
        return rc;
    struct trained_tensor *x = *out = &b->t->tensors[b->t->count];
    char name[TENSOR_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s%s", b->prefix, part);
    *x = (struct trained_tensor){.rows = rows, .cols = cols, .dimensions = dimensions, .decays = dimensions == 2,
                                 .is_new = from->is_new};
    if (!(x->name = take(b, strlen(name) + 1, 1)) || !(x->w = take(b, n, sizeof *x->w)))
        return VB_NO_MEMORY;
    memcpy((char *)x->name, name, strlen(name) + 1);
    if (gradients && (!(x->g = take(b, n, sizeof *x->g)) || !(x->m = take(b, n, sizeof *x->m)) ||
                      !(x->v = take(b, n, sizeof *x->v))))
        return VB_NO_MEMORY;
    b->t->count++;
    fill(b, x, from);
    return VB_OK;
}

static int add_part(struct maker *b, struct train_part *out, const char *part, size_t rows, size_t cols, int dimensions,
                    const struct first_values *from)
{
    struct trained_tensor *x;
    int rc = add(b, &x, part, rows, cols, dimensions, 1, from);
    if (!rc)
        *out = (struct train_part){{.type = WEIGHT_F32, .data = x->w, .rows = rows, .cols = cols, .stride = cols},
                                   x->g};
    return rc;
}

/* `w` or `v`: where the model has it. It is not read if the layer is new. */
static int matrix(struct maker *b, struct train_part *out, const char *part, size_t rows, size_t cols,
                  const struct weight_view *w)
{
    return add_part(b, out, part, rows, cols, 2,
                    &(struct first_values){.matrix = b->is_new ? NULL : w, .is_new = b->is_new || b->copied});
}

int train_add(struct maker *b, struct train_part *out, const char *name, size_t rows, size_t cols,
              const struct weight_view *matrix, const float *vector)
{
    return add_part(b, out, name, rows ? rows : 1, cols, rows ? 2 : 1,
                    &(struct first_values){.matrix = matrix, .vector = vector, .is_new = b->is_new});
}

static int vector(struct maker *b, struct train_part *out, const char *part, size_t n, const float *v)
{
    return add_part(b, out, part, 1, n, 1,
                    &(struct first_values){.vector = b->is_new ? NULL : v, .is_new = b->is_new || b->copied});
}

/* ---- layers ---- */

static int attention(struct maker *b, struct train_layer *l, const struct mla *a)
{
    const struct dims *s = &b->t->c->dims;
    size_t query = s->H * (s->n + s->r), kv = s->H * (s->n + s->v);
    int rc = VB_OK;
    if (!b->is_new && (a->uk_transposed || a->uk_stride != s->n + s->v || a->w_uk.rows != kv))
        return vb_fail(b->err, VB_UNSUPPORTED,
                       "%s: W_UK and W_UV of %sself_attn are two tensors, and training wants one tensor kv_b_proj",
                       checkpoint_dir(b->m->checkpoint), b->prefix);
    if (!s->q)
        rc = matrix(b, &l->q, "self_attn.q_proj.weight", query, s->d, &a->q_proj);
    else if (!(rc = matrix(b, &l->q_a, "self_attn.q_a_proj.weight", s->q, s->d, &a->q_a_proj)) &&
             !(rc = vector(b, &l->q_a_norm, "self_attn.q_a_layernorm.weight", s->q, a->q_a_layernorm)))
        rc = matrix(b, &l->q_b, "self_attn.q_b_proj.weight", query, s->q, &a->q_b_proj);
    if (rc ||
        (rc = matrix(b, &l->kv_a, "self_attn.kv_a_proj_with_mqa.weight", s->c + s->r, s->d, &a->kv_a_proj_with_mqa)) ||
        (rc = vector(b, &l->kv_a_norm, "self_attn.kv_a_layernorm.weight", s->c, a->kv_a_layernorm)) ||
        (rc = matrix(b, &l->kv_b, "self_attn.kv_b_proj.weight", kv, s->c, &a->w_uk)))
        return rc;
    return matrix(b, &l->o, "self_attn.o_proj.weight", s->d, s->H * s->v, &a->o_proj);
}

/* `part` is "mlp", "mlp.shared_experts" or "mlp.experts.17". */
static int feed_forward(struct maker *b, struct train_mlp *w, const char *part, size_t width, const struct mlp *from)
{
    size_t d = b->t->c->dims.d;
    char gate[64], up[64], down[64];
    int rc;
    snprintf(gate, sizeof gate, "%s.gate_proj.weight", part);
    snprintf(up, sizeof up, "%s.up_proj.weight", part);
    snprintf(down, sizeof down, "%s.down_proj.weight", part);
    if ((rc = matrix(b, &w->gate, gate, width, d, &from->gate_proj)) ||
        (rc = matrix(b, &w->up, up, width, d, &from->up_proj)) ||
        (rc = matrix(b, &w->down, down, d, width, &from->down_proj)))
        return rc;
    w->g = (struct mlp_gradients){w->gate.g, w->up.g, w->down.g};
    return VB_OK;
}

static int experts(struct maker *b, struct train_layer *l, const struct moe *from)
{
    const struct config *c = b->t->c;
    const struct mlp none = {0};
    size_t E = c->dims.E;
    struct trained_tensor *bias;
    char part[40];
    int rc = matrix(b, &l->router, "mlp.gate.weight", E, c->dims.d, &from->gate);
    if (rc || !(l->experts = take(b, E, sizeof *l->experts)) || !(l->load = take(b, E, sizeof *l->load)))
        return rc ? rc : VB_NO_MEMORY;
    if (c->topk_method == TOPK_NOAUX_TC) {
        if ((rc = add(b, &bias, "mlp.gate.e_score_correction_bias", 1, E, 1, 0,
                      &(struct first_values){.vector = b->is_new ? NULL : from->e_score_correction_bias,
                                             .is_new = b->is_new || b->copied})))
            return rc;
        l->bias = bias->w;
    }
    for (size_t e = 0; !rc && e < E; e++) {
        snprintf(part, sizeof part, "mlp.experts.%zu", e);
        rc = feed_forward(b, &l->experts[e], part, c->dims.expert, b->is_new ? &none : &from->experts[e]);
    }
    if (!rc && c->n_shared_experts)
        rc = feed_forward(b, &l->shared, "mlp.shared_experts", c->dims.expert * c->dims.shared, &from->shared_experts);
    return rc;
}

static int layer(struct maker *b, struct train_layer *l, int is_moe, const struct layer *from)
{
    size_t d = b->t->c->dims.d;
    int rc;
    l->is_moe = is_moe;
    if ((rc = vector(b, &l->input_norm, "input_layernorm.weight", d, from->input_layernorm)) ||
        (rc = vector(b, &l->post_norm, "post_attention_layernorm.weight", d, from->post_attention_layernorm)) ||
        (rc = attention(b, l, &from->self_attn)))
        return rc;
    return l->is_moe ? experts(b, l, &from->moe) : feed_forward(b, &l->mlp, "mlp", b->t->c->dims.dense, &from->mlp);
}

/* ---- modules ---- */

/* The embedding or the output head of module k: its own, or that of the model. */
static int end(struct maker *b, struct train_part *out, int *owns, const char *name, int k,
               const struct train_part *shared, const struct weight_view *stored)
{
    const struct vb_trainer *t = b->t;
    int is_stored = !b->is_new && model_mtp_stores(b->m, k, name[0] == 's');
    *owns = t->o.ends == ENDS_OWN || (t->o.ends == ENDS_STORED && is_stored);
    *out = *shared;
    if (!*owns)
        return VB_OK;
    return add_part(b, out, name, t->c->dims.V, t->c->dims.d, 2,
                    &(struct first_values){.matrix = is_stored ? stored : &shared->w, .is_new = !is_stored});
}

static int module(struct maker *b, struct train_module *w, int k)
{
    const struct mtp_module none = {0}, *from = &none;
    struct vb_trainer *t = b->t;
    size_t d = t->c->dims.d;
    int rc, index = t->c->num_hidden_layers + k;
    snprintf(b->prefix, sizeof b->prefix, "model.layers.%d.", index);
    b->is_new = t->o.new_model || t->o.new_modules || k >= b->m->num_mtp;
    if (!b->is_new)
        from = &b->m->mtp[k];
    if ((rc = layer(b, &w->layer, config_layer_is_moe(t->c, index), &from->layer)) ||
        (rc = vector(b, &w->enorm, "enorm.weight", d, from->enorm)) ||
        (rc = vector(b, &w->hnorm, "hnorm.weight", d, from->hnorm)) ||
        (rc = matrix(b, &w->eh_proj, "eh_proj.weight", d, 2 * d, &from->eh_proj)) ||
        (rc = vector(b, &w->norm, "shared_head.norm.weight", d, from->shared_head_norm)) ||
        (rc = end(b, &w->embed, &w->owns_embed, "embed_tokens.weight", k, &t->embed, &from->embed_tokens)))
        return rc;
    return end(b, &w->head, &w->owns_head, "shared_head.head.weight", k, &t->head, &from->head);
}

/* ---- parallel heads ---- */

static int head(struct maker *b, struct train_module *w, int k)
{
    const struct vb_trainer *t = b->t;
    const struct vb_model *stored = t->heads.stored;
    const struct layer *last = &b->m->layers[t->c->num_hidden_layers - 1];
    snprintf(b->prefix, sizeof b->prefix, "extra_heads.%d.", k);
    w->norm = t->norm;
    w->head = t->head;
    if (stored) {
        b->is_new = 0;
        return layer(b, &w->layer, config_layer_is_moe(&stored->config, t->c->num_hidden_layers + k),
                     &stored->mtp[k].layer);
    }
    b->is_new = !t->heads.copied;
    b->copied = t->heads.copied;
    return layer(b, &w->layer, last->is_moe && !t->heads.dense, last);
}

/* ---- all ---- */

/* The embedding, the last norm and the output head. */
static int outside(struct maker *b)
{
    struct vb_trainer *t = b->t;
    size_t V = t->c->dims.V, d = t->c->dims.d;
    int rc;
    b->is_new = t->o.new_model;
    if ((rc = matrix(b, &t->embed, "model.embed_tokens.weight", V, d, &b->m->embed_tokens)) ||
        (rc = vector(b, &t->norm, "model.norm.weight", d, b->m->norm)))
        return rc;
    if (!t->c->tie_word_embeddings)
        return matrix(b, &t->head, "lm_head.weight", V, d, &b->m->lm_head);
    t->head = t->embed;
    return (t->tied = take(b, V * d, sizeof *t->tied)) ? VB_OK : VB_NO_MEMORY;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct trained_tensor *)a)->name, ((const struct trained_tensor *)b)->name);
}

int train_make_tensors(struct vb_trainer *t, vb_error *err)
{
    struct maker b = {.t = t, .m = t->model, .err = err};
    int rc = VB_OK, layers = t->c->num_hidden_layers;
    t->embed.w = t->model->embed_tokens;
    t->head.w = t->model->lm_head;
    t->norm.w = (struct weight_view){.type = WEIGHT_F32, .data = t->model->norm, .rows = 1, .cols = t->c->dims.d,
                                     .stride = t->c->dims.d};
    if (t->eagle)
        rc = train_eagle_tensors(t, &b);
    if (t->o.part == TRAIN_MODEL && !(rc = outside(&b)) && !(t->layers = take(&b, (size_t)layers, sizeof *t->layers)))
        rc = VB_NO_MEMORY;
    for (int i = 0; !rc && t->layers && i < layers; i++) {
        snprintf(b.prefix, sizeof b.prefix, "model.layers.%d.", i);
        rc = layer(&b, &t->layers[i], config_layer_is_moe(t->c, i), &t->model->layers[i]);
    }
    if (!rc && !(t->mtp = take(&b, (size_t)t->used, sizeof *t->mtp)))
        rc = VB_NO_MEMORY;
    for (int k = 0; !rc && k < t->used; k++)
        rc = t->o.heads ? head(&b, &t->mtp[k], k) : module(&b, &t->mtp[k], k);
    if (!rc && t->count)
        qsort(t->tensors, t->count, sizeof *t->tensors, by_name);
    return rc;
}

void train_free_tensors(struct vb_trainer *t)
{
    while (t->blocks) {
        struct train_block *block = t->blocks;
        t->blocks = block->next;
        vb_free(&t->allocator, block);
    }
    vb_free(&t->allocator, t->tensors);
}
