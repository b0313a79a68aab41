/* engine/train/train_tensors.c -- the trainer's weights: which tensors it trains, their names, and their first
 * values. */
#include "engine/train/train_eagle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash64.h"
#include "engine/choose/random.h"
#include "engine/model/layer_tensors.h"
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

void *train_take(struct maker *b, size_t count, size_t size)
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

static void *take(struct maker *b, size_t count, size_t size) { return train_take(b, count, size); }

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

int train_add(struct maker *b, struct train_part *out, const char *name, size_t rows, size_t cols,
              const struct weight_view *matrix, const float *vector)
{
    return add_part(b, out, name, rows ? rows : 1, cols, rows ? 2 : 1,
                    &(struct first_values){.matrix = matrix, .vector = vector, .is_new = b->is_new});
}

/* ---- the places of tensors ---- */

/* Offsets in struct train_layer, in train_mlp (experts), train_module, or vb_trainer. */
static const size_t places[MODEL_TENSORS] = {
#define IN(member) offsetof(struct train_layer, member)
    [TENSOR_INPUT_NORM] = IN(input_norm), [TENSOR_POST_ATTENTION_NORM] = IN(post_norm), [TENSOR_Q_PROJ] = IN(q),
    [TENSOR_Q_A_PROJ] = IN(q_a), [TENSOR_Q_A_NORM] = IN(q_a_norm), [TENSOR_Q_B_PROJ] = IN(q_b),
    [TENSOR_KV_A_PROJ] = IN(kv_a), [TENSOR_KV_A_NORM] = IN(kv_a_norm), [TENSOR_KV_B_PROJ] = IN(kv_b),
    [TENSOR_O_PROJ] = IN(o), [TENSOR_GATE_PROJ] = IN(mlp.gate), [TENSOR_UP_PROJ] = IN(mlp.up),
    [TENSOR_DOWN_PROJ] = IN(mlp.down), [TENSOR_ROUTER] = IN(router), [TENSOR_SHARED_GATE_PROJ] = IN(shared.gate),
    [TENSOR_SHARED_UP_PROJ] = IN(shared.up), [TENSOR_SHARED_DOWN_PROJ] = IN(shared.down),
#undef IN
#define IN(owner, member) offsetof(struct owner, member)
    [TENSOR_EXPERT_GATE_PROJ] = IN(train_mlp, gate), [TENSOR_EXPERT_UP_PROJ] = IN(train_mlp, up),
    [TENSOR_EXPERT_DOWN_PROJ] = IN(train_mlp, down), [TENSOR_ENORM] = IN(train_module, enorm),
    [TENSOR_HNORM] = IN(train_module, hnorm), [TENSOR_EH_PROJ] = IN(train_module, eh_proj),
    [TENSOR_MODULE_NORM] = IN(train_module, norm), [TENSOR_MODULE_EMBED_TOKENS] = IN(train_module, embed),
    [TENSOR_MODULE_HEAD] = IN(train_module, head), [TENSOR_EMBED_TOKENS] = IN(vb_trainer, embed),
    [TENSOR_NORM] = IN(vb_trainer, norm), [TENSOR_LM_HEAD] = IN(vb_trainer, head),
#undef IN
};

static struct train_part *place(void *owner, enum model_tensor t, size_t expert)
{
    struct train_layer *l = owner;
    char *at = layer_tensors[t].owner == OWNER_EXPERT ? (char *)&l->experts[expert] : owner;
    return (struct train_part *)(void *)(at + places[t]);
}

/* Adds a tensor of `to`, a struct train_layer, train_module or vb_trainer. `from`: the owner of its first values, as
 * for tensor_place. It is not read if the layer is new. */
static int add_tensor(struct maker *b, void *to, enum model_tensor t, size_t expert, const void *from)
{
    const struct layer_tensor *x = &layer_tensors[t];
    const struct dims *s = &b->t->c->dims;
    struct first_values first = {.is_new = b->is_new || b->copied};
    struct train_layer *l = to;
    struct trained_tensor *bias;
    char name[64];
    tensor_name(name, sizeof name, tensor_names[t].hf, expert, NULL);
    if (x->kind != KIND_VECTOR) {
        first.matrix = b->is_new ? NULL : tensor_matrix(t, from, expert);
        return add_part(b, place(to, t, expert), name, x->rows(s), x->cols(s), 2, &first);
    }
    first.vector = b->is_new ? NULL : tensor_vector(t, from);
    if (t != TENSOR_ROUTER_BIAS)
        return add_part(b, place(to, t, expert), name, 1, x->rows(s), 1, &first);
    int rc = add(b, &bias, name, 1, x->rows(s), 1, 0, &first);
    l->bias = rc ? NULL : bias->w;
    return rc;
}

/* ---- layers ---- */

static void set_gradients(struct train_mlp *w) { w->g = (struct mlp_gradients){w->gate.g, w->up.g, w->down.g}; }

static int layer(struct maker *b, struct train_layer *l, int index, int is_moe, const struct layer *from)
{
    const struct dims *s = &b->t->c->dims;
    const struct mla *a = &from->self_attn;
    struct tensor_walk w = walk_layer(b->t->c, index, ONE_KV_B);
    int rc = VB_OK;
    l->is_moe = w.is_moe = is_moe;
    if (!b->is_new && (a->uk_transposed || a->uk_stride != s->n + s->v || a->w_uk.rows != s->H * (s->n + s->v)))
        return vb_fail(b->err, VB_UNSUPPORTED,
                       "%s: W_UK and W_UV of %sself_attn are two tensors, and training wants one tensor kv_b_proj",
                       checkpoint_dir(b->m->checkpoint), b->prefix);
    if (is_moe && (!(l->experts = take(b, s->E, sizeof *l->experts)) || !(l->load = take(b, s->E, sizeof *l->load))))
        return VB_NO_MEMORY;
    while (!rc && walk_next(&w))
        rc = add_tensor(b, l, w.tensor, w.expert, from);
    set_gradients(&l->mlp);
    set_gradients(&l->shared);
    for (size_t e = 0; is_moe && e < s->E; e++)
        set_gradients(&l->experts[e]);
    return rc;
}

/* ---- modules ---- */

/* The embedding or the output head of module k: its own, or that of the model. */
static int end(struct maker *b, struct train_module *w, enum model_tensor t, int k, const struct mtp_module *from)
{
    const struct vb_trainer *trainer = b->t;
    int is_head = t == TENSOR_MODULE_HEAD, is_stored = !b->is_new && model_mtp_stores(b->m, k, is_head);
    int owns = trainer->o.ends == ENDS_OWN || (trainer->o.ends == ENDS_STORED && is_stored);
    const struct train_part *shared = is_head ? &trainer->head : &trainer->embed;
    *(is_head ? &w->owns_head : &w->owns_embed) = owns;
    *place(w, t, 0) = *shared;
    if (!owns)
        return VB_OK;
    return add_part(b, place(w, t, 0), tensor_names[t].hf, trainer->c->dims.V, trainer->c->dims.d, 2,
                    &(struct first_values){.matrix = is_stored ? tensor_matrix(t, from, 0) : &shared->w,
                                           .is_new = !is_stored});
}

static int module(struct maker *b, struct train_module *w, int k)
{
    const struct mtp_module none = {0}, *from = &none;
    struct vb_trainer *t = b->t;
    int index = t->c->num_hidden_layers + k;
    snprintf(b->prefix, sizeof b->prefix, "model.layers.%d.", index);
    b->is_new = t->o.new_model || t->o.new_modules || k >= b->m->num_mtp;
    if (!b->is_new)
        from = &b->m->mtp[k];
    int rc = layer(b, &w->layer, index, config_layer_is_moe(t->c, index), &from->layer);
    for (struct tensor_walk x = walk_module(t->c); !rc && walk_next(&x);)
        rc = layer_tensors[x.tensor].optional ? end(b, w, x.tensor, k, from) : add_tensor(b, w, x.tensor, 0, from);
    return rc;
}

/* ---- parallel heads ---- */

static int head(struct maker *b, struct train_module *w, int k)
{
    const struct vb_trainer *t = b->t;
    const struct vb_model *stored = t->heads.stored;
    const struct layer *last = &b->m->layers[t->c->num_hidden_layers - 1];
    int index = t->c->num_hidden_layers + k;
    snprintf(b->prefix, sizeof b->prefix, "extra_heads.%d.", k);
    w->norm = t->norm;
    w->head = t->head;
    if (stored) {
        b->is_new = 0;
        return layer(b, &w->layer, index, config_layer_is_moe(&stored->config, index), &stored->mtp[k].layer);
    }
    b->is_new = !t->heads.copied;
    b->copied = t->heads.copied;
    return layer(b, &w->layer, index, last->is_moe && !t->heads.dense, last);
}

/* ---- all ---- */

/* The embedding, the last norm and the output head. */
static int outside(struct maker *b)
{
    struct vb_trainer *t = b->t;
    int rc = VB_OK;
    b->is_new = t->o.new_model;
    for (struct tensor_walk w = walk_model(t->c); !rc && walk_next(&w);)
        rc = add_tensor(b, t, w.tensor, 0, b->m);
    if (rc || !t->c->tie_word_embeddings)
        return rc;
    t->head = t->embed;
    return (t->tied = take(b, t->c->dims.V * t->c->dims.d, sizeof *t->tied)) ? VB_OK : VB_NO_MEMORY;
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
        rc = layer(&b, &t->layers[i], i, config_layer_is_moe(t->c, i), &t->model->layers[i]);
    }
    if (!rc && !(t->mtp = take(&b, (size_t)t->used, sizeof *t->mtp)))
        rc = VB_NO_MEMORY;
    for (int k = 0; !rc && k < t->used; k++)
        rc = t->o.heads ? head(&b, &t->mtp[k], k) : module(&b, &t->mtp[k], k);
    if (!rc && t->count)
        qsort(t->tensors, t->count, sizeof *t->tensors, by_name);
    return rc ? rc : train_make_model(&b);
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
