/* engine/model/shapes.c -- a model without its weights: the names, types and shapes of all tensors, derived from
 * config.json alone. */
#include "engine/model/model_internal.h"
#include "ops/weights.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_ROOM 96

/* The types of linear layers, of the MLPs of main layers, and of their routed experts. The rows with types of 4 bits
 * follow the published files of Kimi (INT4), NVIDIA (NVFP4) and AMD (MXFP4). */
static const struct shape_types {
    const char *name;
    enum dtype linear, mlp, routed;
    size_t group; /* F4: the number of weights that share a scale */
} all_types[] = {{"f32", DTYPE_F32, DTYPE_F32, DTYPE_F32, 0},
                 {"bf16", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 0},
                 {"fp8", DTYPE_F8_E4M3, DTYPE_F8_E4M3, DTYPE_F8_E4M3, 0},
                 {"int8", DTYPE_I8, DTYPE_I8, DTYPE_I8, 0},
                 {"int4", DTYPE_BF16, DTYPE_BF16, DTYPE_I4, 0},
                 {"nvfp4", DTYPE_BF16, DTYPE_F4, DTYPE_F4, 16},
                 {"mxfp4", DTYPE_BF16, DTYPE_F4, DTYPE_F4, 32},
                 {"q8_0", DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0, 0},
                 {"q4_0", DTYPE_Q4_0, DTYPE_Q4_0, DTYPE_Q4_0, 0}};

struct shapes {
    const struct config *c;
    const struct shape_types *types;
    struct tensor *list;      /* NULL: tensors are only counted */
    char (*names)[NAME_ROOM]; /* names[i] is the name of list[i] */
    size_t count;
    char prefix[64];          /* of the current layer, such as "model.layers.3." */
};

/* ---- adding tensors ---- */

static void add(struct shapes *s, const char *part, const char *suffix, enum dtype dtype, int ndim, size_t rows,
                size_t cols)
{
    if (s->list) {
        struct tensor *t = &s->list[s->count];
        *t = (struct tensor){.name = s->names[s->count], .dtype = dtype, .ndim = ndim,
                             .shape = {(int64_t)rows, (int64_t)cols}, .file = "config.json"};
        snprintf(s->names[s->count], NAME_ROOM, "%s%s%s", s->prefix, part, suffix);
        if (dtype != DTYPE_OTHER) {
            struct weight_view w = {.type = (enum weight_type)dtype, .rows = rows, .cols = ndim > 1 ? cols : 1};
            t->bytes = weight_bytes(&w);
            snprintf(t->dtype_name, sizeof t->dtype_name, "%s", weight_type_name(w.type));
        }
    }
    s->count++;
}

static void vector(struct shapes *s, const char *part, enum dtype dtype, size_t count)
{
    add(s, part, "", dtype, 1, count, 0);
}

/* Adds a tensor whose type no operator reads. */
static void other(struct shapes *s, const char *part, const char *suffix, const char *dtype_name, int ndim, size_t rows,
                  size_t cols)
{
    add(s, part, suffix, DTYPE_OTHER, ndim, rows, cols);
    if (s->list)
        strcpy(s->list[s->count - 1].dtype_name, dtype_name);
}

static void add_scales(struct shapes *s, const char *part, enum dtype dtype, size_t rows, size_t cols)
{
    const struct config *c = s->c;
    if (dtype == DTYPE_F8_E4M3) {
        size_t down = c->fp8_block_rows ? (size_t)c->fp8_block_rows : rows,
               across = c->fp8_block_cols ? (size_t)c->fp8_block_cols : cols;
        add(s, part, ".weight_scale_inv", DTYPE_F32, 2, (rows + down - 1) / down, (cols + across - 1) / across);
    } else if (dtype == DTYPE_I8) {
        add(s, part, ".weight_scale", DTYPE_F32, 2, rows, 1);
    } else if (dtype == DTYPE_I4) {
        add(s, part, ".weight_scale", DTYPE_BF16, 2, rows, cols / QUANTIZED_GROUP);
        other(s, part, ".weight_shape", "I64", 1, 2, 0);
    } else if (dtype == DTYPE_F4 && s->types->group == QUANTIZED_GROUP) {
        other(s, part, ".weight_scale", "U8", 2, rows, cols / s->types->group);
    } else if (dtype == DTYPE_F4) {
        add(s, part, ".weight_scale", DTYPE_F8_E4M3, 2, rows, cols / s->types->group);
        add(s, part, ".weight_scale_2", DTYPE_F32, 0, 1, 0);
    }
}

static void matrix(struct shapes *s, const char *part, enum dtype dtype, size_t rows, size_t cols)
{
    if ((dtype_is_quantized(dtype) || dtype == DTYPE_I4 || dtype == DTYPE_F4) && cols % QUANTIZED_GROUP)
        dtype = DTYPE_BF16;
    add(s, part, ".weight", dtype, 2, rows, cols);
    add_scales(s, part, dtype, rows, cols);
}

/* Returns the type of output heads and of eh_proj, which published files with FP8 and INT8 leave in BF16. */
static enum dtype outside(const struct shapes *s)
{
    return s->types->linear == DTYPE_F8_E4M3 || s->types->linear == DTYPE_I8 ? DTYPE_BF16 : s->types->linear;
}

/* ---- the tensors of a layer ---- */

/* In files with quantized weights, W_uk is transposed, so that its blocks run along n. */
static void add_heads(struct shapes *s)
{
    const struct dims *k = &s->c->dims;
    if (!dtype_is_quantized(s->types->linear) || k->n % QUANTIZED_GROUP || k->c % QUANTIZED_GROUP) {
        matrix(s, "self_attn.kv_b_proj", dtype_is_quantized(s->types->linear) ? DTYPE_BF16 : s->types->linear,
               k->H * (k->n + k->v), k->c);
        return;
    }
    matrix(s, "self_attn.k_b_proj_transposed", s->types->linear, k->H * k->c, k->n);
    matrix(s, "self_attn.v_b_proj", s->types->linear, k->H * k->v, k->c);
}

static void add_attention(struct shapes *s, int layer)
{
    const struct dims *k = &s->c->dims;
    if (k->q) {
        matrix(s, "self_attn.q_a_proj", s->types->linear, k->q, k->d);
        vector(s, "self_attn.q_a_layernorm.weight", DTYPE_BF16, k->q);
        matrix(s, "self_attn.q_b_proj", s->types->linear, k->H * (k->n + k->r), k->q);
    } else {
        matrix(s, "self_attn.q_proj", s->types->linear, k->H * (k->n + k->r), k->d);
    }
    matrix(s, "self_attn.kv_a_proj_with_mqa", s->types->linear, k->c + k->r, k->d);
    vector(s, "self_attn.kv_a_layernorm.weight", DTYPE_BF16, k->c);
    add_heads(s);
    if (s->c->index_topk && !config_layer_is_shared(s->c, layer)) {
        matrix(s, "self_attn.indexer.wq_b", s->types->linear, k->index_heads * k->index_dim, k->q);
        matrix(s, "self_attn.indexer.wk", s->types->linear, k->index_dim, k->d);
        vector(s, "self_attn.indexer.k_norm.weight", DTYPE_BF16, k->index_dim);
        vector(s, "self_attn.indexer.k_norm.bias", DTYPE_BF16, k->index_dim);
        matrix(s, "self_attn.indexer.weights_proj", DTYPE_BF16, k->index_heads, k->d);
    }
    matrix(s, "self_attn.o_proj", s->types->linear, k->d, k->H * k->v);
}

static void add_mlp(struct shapes *s, const char *part, enum dtype dtype, size_t width)
{
    char name[64];
    snprintf(name, sizeof name, "%s.gate_proj", part);
    matrix(s, name, dtype, width, s->c->dims.d);
    snprintf(name, sizeof name, "%s.up_proj", part);
    matrix(s, name, dtype, width, s->c->dims.d);
    snprintf(name, sizeof name, "%s.down_proj", part);
    matrix(s, name, dtype, s->c->dims.d, width);
}

static void add_moe(struct shapes *s, int is_main)
{
    const struct dims *k = &s->c->dims;
    char part[40];
    matrix(s, "mlp.gate", DTYPE_BF16, k->E, k->d);
    if (s->c->topk_method == TOPK_NOAUX_TC)
        vector(s, "mlp.gate.e_score_correction_bias", DTYPE_F32, k->E);
    for (size_t e = 0; e < k->E; e++) {
        snprintf(part, sizeof part, "mlp.experts.%zu", e);
        add_mlp(s, part, is_main ? s->types->routed : s->types->linear, k->expert);
    }
    if (k->shared)
        add_mlp(s, "mlp.shared_experts", is_main ? s->types->mlp : s->types->linear, k->expert * k->shared);
}

static void add_layer(struct shapes *s, int layer)
{
    size_t d = s->c->dims.d;
    int is_main = layer < s->c->num_hidden_layers;
    snprintf(s->prefix, sizeof s->prefix, "model.layers.%d.", layer);
    vector(s, "input_layernorm.weight", DTYPE_BF16, d);
    vector(s, "post_attention_layernorm.weight", DTYPE_BF16, d);
    add_attention(s, layer);
    if (config_layer_is_moe(s->c, layer))
        add_moe(s, is_main);
    else
        add_mlp(s, "mlp", is_main ? s->types->mlp : s->types->linear, s->c->dims.dense);
    if (is_main)
        return;
    vector(s, "enorm.weight", DTYPE_BF16, d);
    vector(s, "hnorm.weight", DTYPE_BF16, d);
    matrix(s, "eh_proj", outside(s), d, 2 * d);
    vector(s, "shared_head.norm.weight", DTYPE_BF16, d);
    matrix(s, "embed_tokens", DTYPE_BF16, s->c->dims.V, d);
    matrix(s, "shared_head.head", outside(s), s->c->dims.V, d);
}

static void add_all(struct shapes *s)
{
    const struct dims *k = &s->c->dims;
    s->count = 0;
    s->prefix[0] = 0;
    matrix(s, "model.embed_tokens", DTYPE_BF16, k->V, k->d);
    vector(s, "model.norm.weight", DTYPE_BF16, k->d);
    if (!s->c->tie_word_embeddings)
        matrix(s, "lm_head", outside(s), k->V, k->d);
    for (int layer = 0; layer < s->c->num_hidden_layers + s->c->num_nextn_predict_layers; layer++)
        add_layer(s, layer);
}

/* ---- opening ---- */

/* Chooses the types: those called `type` or, if it is NULL, those of quantization_config. Changes *c accordingly. */
static int choose_types(struct shapes *s, struct config *c, const char *type, vb_error *err)
{
    const char *own = c->fp8 ? "fp8"
                      : c->int8 ? "int8"
                      : c->int4 ? "int4"
                      : c->fp4_group == 16 ? "nvfp4"
                      : c->fp4_group ? "mxfp4"
                      : "bf16";
    const struct shape_types *t = all_types, *end = all_types + sizeof all_types / sizeof *all_types;
    while (t < end && strcmp(t->name, type ? type : own))
        t++;
    if (t == end)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "the type of the weights is %s, wanted f32, bf16, fp8, int8, int4, nvfp4, mxfp4, q8_0 or q4_0",
                       type);
    s->types = t;
    if (t->linear == DTYPE_F8_E4M3 && !c->fp8)
        c->fp8_block_rows = c->fp8_block_cols = 128;
    c->fp8 = t->linear == DTYPE_F8_E4M3;
    c->int8 = t->linear == DTYPE_I8;
    c->int4 = t->routed == DTYPE_I4;
    return VB_OK;
}

int model_list_shapes(struct checkpoint **out, struct config *c, const char *type, const vb_allocator *a, vb_error *err)
{
    struct shapes s = {.c = c};
    int rc = choose_types(&s, c, type, err);
    if (rc)
        return rc;
    add_all(&s);
    s.names = vb_alloc(a, s.count, sizeof *s.names);
    s.list = vb_alloc(a, s.count, sizeof *s.list);
    if (s.list && s.names) {
        add_all(&s);
        rc = checkpoint_from_list(out, s.list, s.count, a, err);
    } else {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for the names of %zu tensors", s.count);
    }
    vb_free(a, s.list);
    vb_free(a, s.names);
    return rc;
}

/* Reads the file `path`, a config.json under any name. */
static int read_config_file(struct config *c, const char *path, const vb_allocator *a, vb_error *err)
{
    char *text;
    size_t size;
    int rc = vb_read_file(a, path, &text, &size, err);
    if (rc)
        return rc;
    rc = config_parse(c, text, size, NULL, 0, path, err);
    vb_free(a, text);
    return rc;
}

/* Returns whether `path` is a file, but not a GGUF file. */
static int is_config_file(const char *path)
{
    char begin[4] = "";
    struct stat st;
    FILE *f = !stat(path, &st) && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    size_t size = f ? fread(begin, 1, sizeof begin, f) : 0;
    if (!f)
        return 0;
    fclose(f);
    return size < sizeof begin || memcmp(begin, "GGUF", sizeof begin) != 0;
}

int model_open_shapes(struct vb_model **out, const char *path, const char *type, const struct model_options *o,
                      int *from_config, const vb_allocator *a, vb_error *err)
{
    struct model_options shapes = *o;
    struct checkpoint *checkpoint;
    struct config c;
    int is_file = is_config_file(path),
        rc = is_file ? read_config_file(&c, path, a, err) : config_read(&c, path, a, err);
    shapes.shapes_only = 1;
    if (rc || (rc = model_set_options(&c, path, o, err)))
        return rc;
    *from_config = is_file || !checkpoint_is_there(path);
    if (!*from_config && type)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: its weights have types, and the type %s is given", path, type);
    rc = *from_config ? model_list_shapes(&checkpoint, &c, type, a, err) : checkpoint_open(&checkpoint, path, a, err);
    return rc ? rc : model_bind_under(out, &c, checkpoint, &shapes, a, err);
}
