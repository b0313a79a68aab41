/* engine/model.c -- every tensor bound by name to the place where it is used, once. What a name means, which shape it
 * has and which dtypes it may have is written here and nowhere else. */
#include "model.h"
#include "../ops/mistake.h"
#include "../ops/round.h"
#include "../ops/weights.h"
#include "../simd/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything a model owns is in one list, so that closing half a model is closing a model. */
struct model_block {
    struct model_block *next;
    char pad[64 - sizeof(struct model_block *)]; /* what follows is 64-byte aligned, as vb_alloc made it */
};

struct binder {
    struct model *m;
    const struct config *c;
    vb_error *err;
    char prefix[64]; /* "model.layers.3." */
};

static void *model_alloc(const struct binder *b, size_t count, size_t size)
{
    struct model_block *block = NULL;
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= SIZE_MAX - sizeof *block)
        block = vb_alloc(b->m->allocator, 1, sizeof *block + bytes);
    if (!block) {
        vb_fail(b->err, VB_NO_MEMORY, "%s: no memory for %zu times %zu bytes", checkpoint_dir(b->m->checkpoint), count, size);
        return NULL;
    }
    block->next = b->m->blocks;
    b->m->blocks = block;
    return block + 1;
}

static const char *show_shape(char text[96], const int64_t *shape, int ndim)
{
    size_t n = (size_t)snprintf(text, 96, "[");
    for (int d = 0; d < ndim; d++)
        n += (size_t)snprintf(text + n, 96 - n, "%s%lld", d ? "," : "", (long long)shape[d]);
    snprintf(text + n, 96 - n, "]");
    return text;
}

/* Consumes PREFIX PART SUFFIX, which must have these extents (ndim of them). */
static int take(const struct binder *b, const struct tensor **out, const char *part, const char *suffix, int ndim, size_t rows,
                size_t cols)
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

/* The scales of an FP8 matrix: one for each block, those at the edges partial. */
static int bind_scale(struct binder *b, struct weight_view *w, const char *part, const char *file)
{
    const struct tensor *t;
    if (!b->c->fp8)
        return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s%s.weight is F8_E4M3, config.json has no quantization_config", file,
                       b->prefix, part);
    w->block_rows = (size_t)b->c->fp8_block_rows;
    w->block_cols = (size_t)b->c->fp8_block_cols;
    w->scale_stride = (w->cols + w->block_cols - 1) / w->block_cols;
    int rc = take(b, &t, part, ".weight_scale_inv", 2, (w->rows + w->block_rows - 1) / w->block_rows, w->scale_stride);
    if (rc)
        return rc;
    if (t->dtype != DTYPE_F32)
        return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted F32", t->file, t->name, t->dtype_name);
    w->scale = t->data;
    if ((uintptr_t)t->data % sizeof(float)) {
        float *copy = model_alloc(b, 1, t->bytes);
        if (!copy)
            return VB_NO_MEMORY;
        w->scale = memcpy(copy, t->data, t->bytes);
        b->m->widened_bytes += t->bytes;
    }
    return VB_OK;
}

static int weight_type(const struct tensor *t, enum weight_type *type)
{
    switch (t->dtype) {
    case DTYPE_F32: *type = WEIGHT_F32; return 1;
    case DTYPE_F16: *type = WEIGHT_F16; return 1;
    case DTYPE_BF16: *type = WEIGHT_BF16; return 1;
    case DTYPE_F8_E4M3: *type = WEIGHT_F8_E4M3; return 1;
    default: return 0;
    }
}

static int bind_matrix(struct binder *b, struct weight_view *w, const char *part, size_t rows, size_t cols)
{
    const struct tensor *t;
    enum weight_type type;
    int rc = take(b, &t, part, ".weight", 2, rows, cols);
    if (rc)
        return rc;
    if (!weight_type(t, &type))
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is %s, wanted F32, F16, BF16 or F8_E4M3", t->file, t->name,
                       t->dtype_name);
    *w = (struct weight_view){.type = type, .data = t->data, .rows = rows, .cols = cols, .stride = cols};
    return type == WEIGHT_F8_E4M3 ? bind_scale(b, w, part, t->file) : VB_OK;
}

/* The matrix of a linear layer: in precision bf16, BF16. */
static int round_linear(struct binder *b, struct weight_view *w)
{
    if (b->c->precision != PRECISION_BF16 || !w->data)
        return VB_OK;
    if (w->type != WEIGHT_BF16) {
        uint16_t *copy = model_alloc(b, w->rows * w->cols, sizeof *copy);
        if (!copy)
            return VB_NO_MEMORY;
        for (size_t i = 0; i < w->rows; i++)
            for (size_t j = 0, n; j < w->cols; j += n) {
                float some[256];
                n = w->cols - j < 256 ? w->cols - j : 256;
                decode_weights(some, w, i, j, n);
                if (!MISTAKE(weights_truncated))
                    op_round_bf16(some, some, n);
                for (size_t k = 0; k < n; k++)
                    copy[i * w->cols + j + k] = (uint16_t)(f32_to_bits(some[k]) >> 16);
            }
        b->m->rounded_bytes += w->rows * w->cols * sizeof *copy;
        *w = (struct weight_view){.type = WEIGHT_BF16, .data = copy, .rows = w->rows, .cols = w->cols, .stride = w->cols};
    }
    w->magnitudes = &b->m->magnitudes[b->m->magnitudes_used++];
    return VB_OK;
}

static int bind_linear(struct binder *b, struct weight_view *w, const char *part, size_t rows, size_t cols)
{
    int rc = bind_matrix(b, w, part, rows, cols);
    return rc ? rc : round_linear(b, w);
}

/* A vector, widened to f32. `part` is the whole rest of the name: the router's bias is not a ".weight". */
static int bind_vector(struct binder *b, const float **out, const char *part, size_t count)
{
    const struct tensor *t = NULL;
    enum weight_type type;
    int rc = take(b, &t, part, "", 1, count, 0);
    if (rc)
        return rc;
    if (!weight_type(t, &type) || type == WEIGHT_F8_E4M3)
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is %s, wanted F32, F16 or BF16", t->file, t->name, t->dtype_name);
    if (!t->data) /* a list without weights */
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

/* kv_b_proj [H(n+v), c]: per head n rows of W_uk, then v rows of W_uv */
static int bind_kv_b(struct binder *b, struct mla *a)
{
    const struct config *c = b->c;
    size_t n = (size_t)c->qk_nope_head_dim, v = (size_t)c->v_head_dim, rows = (size_t)c->num_attention_heads * (n + v);
    struct weight_view kv_b = {0};
    int rc = bind_linear(b, &kv_b, "self_attn.kv_b_proj", rows, (size_t)c->kv_lora_rank);
    a->w_uk = a->w_uv = kv_b;
    a->w_uv.rows = rows - n;
    if (kv_b.data) /* not in a list without weights */
        a->w_uv = weight_rows(&kv_b, n, rows - n);
    a->uk_stride = a->uv_stride = n + v;
    return rc;
}

static int bind_mla(struct binder *b, struct mla *a)
{
    const struct config *c = b->c;
    size_t d = (size_t)c->hidden_size, H = (size_t)c->num_attention_heads, q = (size_t)c->q_lora_rank;
    size_t latent = (size_t)c->kv_lora_rank, n = (size_t)c->qk_nope_head_dim, r = (size_t)c->qk_rope_head_dim;
    size_t v = (size_t)c->v_head_dim;
    int rc;
    if (!q && (rc = bind_linear(b, &a->q_proj, "self_attn.q_proj", H * (n + r), d)))
        return rc;
    if (q && ((rc = bind_linear(b, &a->q_a_proj, "self_attn.q_a_proj", q, d)) ||
              (rc = bind_vector(b, &a->q_a_layernorm, "self_attn.q_a_layernorm.weight", q)) ||
              (rc = bind_linear(b, &a->q_b_proj, "self_attn.q_b_proj", H * (n + r), q))))
        return rc;
    if ((rc = bind_linear(b, &a->kv_a_proj_with_mqa, "self_attn.kv_a_proj_with_mqa", latent + r, d)) ||
        (rc = bind_vector(b, &a->kv_a_layernorm, "self_attn.kv_a_layernorm.weight", latent)) ||
        (rc = bind_kv_b(b, a)))
        return rc;
    return bind_linear(b, &a->o_proj, "self_attn.o_proj", d, H * v);
}

/* `part` is "mlp", "mlp.shared_experts" or "mlp.experts.17". */
static int bind_mlp(struct binder *b, struct mlp *m, const char *part, size_t width)
{
    size_t d = (size_t)b->c->hidden_size;
    char gate[64], up[64], down[64];
    int rc;
    snprintf(gate, sizeof gate, "%s.gate_proj", part);
    snprintf(up, sizeof up, "%s.up_proj", part);
    snprintf(down, sizeof down, "%s.down_proj", part);
    if ((rc = bind_linear(b, &m->gate_proj, gate, width, d)) || (rc = bind_linear(b, &m->up_proj, up, width, d)))
        return rc;
    return bind_linear(b, &m->down_proj, down, d, width);
}

/* Convention gate=bf16, and the file has more digits: a copy of the router's matrix, rounded. */
static int round_gate(struct binder *b, struct weight_view *w)
{
    if (!b->c->conventions.value[GATE] || w->type == WEIGHT_BF16 || !w->data)
        return VB_OK;
    float *copy = model_alloc(b, w->rows * w->cols, sizeof *copy);
    if (!copy)
        return VB_NO_MEMORY;
    for (size_t i = 0; i < w->rows; i++)
        decode_weights(copy + i * w->cols, w, i, 0, w->cols);
    op_round_bf16(copy, copy, w->rows * w->cols);
    b->m->widened_bytes += w->rows * w->cols * sizeof *copy;
    *w = (struct weight_view){.type = WEIGHT_F32, .data = copy, .rows = w->rows, .cols = w->cols, .stride = w->cols};
    return VB_OK;
}

static int bind_moe(struct binder *b, struct moe *m)
{
    const struct config *c = b->c;
    size_t E = (size_t)c->n_routed_experts, width = (size_t)c->moe_intermediate_size;
    char part[40];
    int rc = bind_matrix(b, &m->gate, "mlp.gate", E, (size_t)c->hidden_size);
    if (!rc)
        rc = round_gate(b, &m->gate);
    if (!rc && c->topk_method == TOPK_NOAUX_TC)
        rc = bind_vector(b, &m->e_score_correction_bias, "mlp.gate.e_score_correction_bias", E);
    if (!rc && !(m->experts = model_alloc(b, E, sizeof *m->experts)))
        rc = VB_NO_MEMORY;
    for (size_t e = 0; !rc && e < E; e++) {
        snprintf(part, sizeof part, "mlp.experts.%zu", e);
        rc = bind_mlp(b, &m->experts[e], part, width);
    }
    if (!rc && c->n_shared_experts)
        rc = bind_mlp(b, &m->shared_experts, "mlp.shared_experts", width * (size_t)c->n_shared_experts);
    return rc;
}

static void set_layer(struct binder *b, int index)
{
    snprintf(b->prefix, sizeof b->prefix, "model.layers.%d.", index);
}

static int bind_layer(struct binder *b, struct layer *l, int index)
{
    size_t d = (size_t)b->c->hidden_size;
    int rc;
    set_layer(b, index);
    l->is_moe = config_layer_is_moe(b->c, index);
    if ((rc = bind_vector(b, &l->input_layernorm, "input_layernorm.weight", d)) ||
        (rc = bind_vector(b, &l->post_attention_layernorm, "post_attention_layernorm.weight", d)) ||
        (rc = bind_mla(b, &l->self_attn)))
        return rc;
    return l->is_moe ? bind_moe(b, &l->moe) : bind_mlp(b, &l->mlp, "mlp", (size_t)b->c->intermediate_size);
}

static int is_stored(const struct binder *b, const char *part)
{
    char name[TENSOR_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s%s", b->prefix, part);
    return checkpoint_find(b->m->checkpoint, name) != NULL;
}

static int bind_mtp(struct binder *b, struct mtp_module *module, int index)
{
    size_t d = (size_t)b->c->hidden_size, V = (size_t)b->c->vocab_size;
    int rc;
    if ((rc = bind_layer(b, &module->layer, index)) || (rc = bind_vector(b, &module->enorm, "enorm.weight", d)) ||
        (rc = bind_vector(b, &module->hnorm, "hnorm.weight", d)) ||
        (rc = bind_linear(b, &module->eh_proj, "eh_proj", d, 2 * d)) ||
        (rc = bind_vector(b, &module->shared_head_norm, "shared_head.norm.weight", d)))
        return rc;
    module->embed_tokens = b->m->embed_tokens;
    module->head = b->m->lm_head;
    if (is_stored(b, "embed_tokens.weight") && (rc = bind_matrix(b, &module->embed_tokens, "embed_tokens", V, d)))
        return rc;
    return is_stored(b, "shared_head.head.weight") ? bind_linear(b, &module->head, "shared_head.head", V, d) : VB_OK;
}

static int bind_outside(struct binder *b)
{
    size_t d = (size_t)b->c->hidden_size, V = (size_t)b->c->vocab_size;
    int rc;
    b->prefix[0] = 0;
    if ((rc = bind_matrix(b, &b->m->embed_tokens, "model.embed_tokens", V, d)) ||
        (rc = bind_vector(b, &b->m->norm, "model.norm.weight", d)))
        return rc;
    b->m->lm_head = b->m->embed_tokens;
    return b->c->tie_word_embeddings ? round_linear(b, &b->m->lm_head) : bind_linear(b, &b->m->lm_head, "lm_head", V, d);
}

/* The MTP layers there are: those that config.json promises, without the last ones of which no tensor is stored. */
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

static int layer_of(const char *name)
{
    static const char prefix[] = "model.layers.";
    long layer = strncmp(name, prefix, sizeof prefix - 1) ? -1 : strtol(name + sizeof prefix - 1, NULL, 10);
    return layer < 0 || layer > INT32_MAX ? -1 : (int)layer;
}

static int ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Why a tensor that nothing took may be there, or NULL. A layer beyond the last is explained only when it is an MTP
 * layer: a config.json with too few layers must not pass. */
static const char *explain(struct binder *b, const struct tensor *t)
{
    int layer = layer_of(t->name);
    if (ends_with(t->name, ".rotary_emb.inv_freq"))
        return "computed from config.json";
    if (b->c->gguf && (ends_with(t->name, ".attn_k_b.weight") || ends_with(t->name, ".attn_v_b.weight")))
        return "a part of attn_kv_b, which is stored too";
    if (b->c->tie_word_embeddings && !strcmp(t->name, "lm_head.weight"))
        return "tie_word_embeddings is true: embed_tokens is the head";
    if (layer >= b->c->num_hidden_layers + b->m->num_mtp) {
        set_layer(b, layer);
        if (is_stored(b, "eh_proj.weight") && is_stored(b, "enorm.weight") && is_stored(b, "hnorm.weight"))
            return "an MTP layer beyond num_nextn_predict_layers";
    }
    return NULL;
}

/* Every tensor was taken, or is explained, or is an error. */
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

static int bind_all(struct binder *b)
{
    struct model *m = b->m;
    int rc = VB_NO_MEMORY, layers = b->c->num_hidden_layers;
    if ((m->magnitudes = model_alloc(b, checkpoint_count(m->checkpoint) + 1, 1))) /* each tensor, and a tied head */
        rc = bind_outside(b);
    m->num_mtp = count_mtp(b);
    if (!rc && (!(m->layers = model_alloc(b, (size_t)layers, sizeof *m->layers)) ||
                !(m->mtp = model_alloc(b, (size_t)m->num_mtp, sizeof *m->mtp))))
        rc = VB_NO_MEMORY;
    for (int i = 0; !rc && i < layers; i++)
        rc = bind_layer(b, &m->layers[i], i);
    for (int k = 0; !rc && k < m->num_mtp; k++)
        rc = bind_mtp(b, &m->mtp[k], layers + k);
    return rc ? rc : account(b);
}

int model_bind(struct model **out, const struct config *config, struct checkpoint *checkpoint, const vb_allocator *a,
               vb_error *err)
{
    struct model *m = vb_alloc(a, 1, sizeof *m);
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
    struct binder b = {m, &m->config, err, ""};
    int rc = bind_all(&b);
    if (rc)
        model_close(m);
    else
        *out = m;
    return rc;
}

int model_open_under(struct model **out, const char *dir, const struct conventions *conventions, enum precision precision,
                     const vb_allocator *a, vb_error *err)
{
    struct config config;
    struct checkpoint *checkpoint;
    int rc = config_read(&config, dir, a, err);
    if (!rc && conventions)
        config_follow(&config, conventions);
    config.precision = precision;
    if (!rc)
        rc = checkpoint_open(&checkpoint, dir, a, err);
    return rc ? rc : model_bind(out, &config, checkpoint, a, err);
}

int model_open(struct model **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    return model_open_under(out, dir, NULL, PRECISION_F32, a, err);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    vb_allocator a = m->allocator_copy;
    while (m->blocks) {
        struct model_block *block = m->blocks;
        m->blocks = block->next;
        vb_free(&a, block);
    }
    checkpoint_close(m->checkpoint);
    vb_free(&a, m->numa);
    vb_free(&a, m);
}

static int64_t numbers_of(const struct tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

/* A weight of the model: taken, and not a scale of others. */
static int is_weight(const struct tensor *t)
{
    return t->taken && !ends_with(t->name, "_scale_inv");
}

static int same_tensor(const struct tensor *a, const struct tensor *b)
{
    if (!a || !b)
        return a == b;
    return a->dtype == b->dtype && a->bytes == b->bytes && (!a->data || !memcmp(a->data, b->data, a->bytes));
}

/* What is stored is compared, whatever a precision makes of it. */
enum mtp_copy model_mtp_copy(const struct model *m, int k, int head)
{
    static const char *const suffixes[] = {"weight", "weight_scale_inv"};
    const char *main = head && !m->config.tie_word_embeddings ? "lm_head" : "model.embed_tokens";
    for (size_t i = 0; i < 2; i++) {
        char name[64], main_name[64];
        snprintf(name, sizeof name, "model.layers.%d.%s.%s", m->config.num_hidden_layers + k,
                 head ? "shared_head.head" : "embed_tokens", suffixes[i]);
        snprintf(main_name, sizeof main_name, "%s.%s", main, suffixes[i]);
        const struct tensor *own = checkpoint_find(m->checkpoint, name);
        if (!i && !own)
            return MTP_COPY_ABSENT;
        if (!same_tensor(own, checkpoint_find(m->checkpoint, main_name)))
            return MTP_COPY_DIFFERENT;
    }
    return MTP_COPY_EQUAL;
}

int64_t model_parameters(const struct model *m)
{
    int64_t total = 0, table = (int64_t)m->config.vocab_size * m->config.hidden_size;
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (is_weight(t))
            total += numbers_of(t);
    }
    for (int k = 0; k < m->num_mtp; k++)
        for (int head = 0; head < 2; head++)
            if (model_mtp_copy(m, k, head) == MTP_COPY_EQUAL)
                total -= table;
    return total;
}

int64_t model_active_parameters(const struct model *m)
{
    const struct config *c = &m->config;
    int64_t always = c->hidden_size, experts = 0; /* one row of embed_tokens */
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (!is_weight(t) || layer_of(t->name) >= c->num_hidden_layers)
            continue;
        if (strstr(t->name, ".mlp.experts."))
            experts += numbers_of(t);
        else if (c->tie_word_embeddings || strcmp(t->name, "model.embed_tokens.weight")) /* tied: it is also the head */
            always += numbers_of(t);
    }
    return always + experts / c->n_routed_experts * c->num_experts_per_tok;
}
