/* engine/model/shapes.c -- a model without its weights: the names, types and shapes of all tensors, derived from
 * config.json alone. */
#include "engine/model/model_internal.h"
#include "engine/model/layer_tensors.h"
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

/* ---- the tensors of a model ---- */

/* In files with quantized weights, W_uk is transposed, so that its blocks run along n. */
static enum tensor_form form_of(const struct shapes *s)
{
    const struct dims *k = &s->c->dims;
    int fits = k->n % QUANTIZED_GROUP == 0 && k->c % QUANTIZED_GROUP == 0;
    return dtype_is_quantized(s->types->linear) && fits ? W_UK_TRANSPOSED : ONE_KV_B;
}

static enum dtype type_of(const struct shapes *s, enum model_tensor t, int is_main)
{
    const struct layer_tensor *x = &layer_tensors[t];
    enum dtype linear = s->types->linear;
    if (t == TENSOR_ROUTER_BIAS)
        return DTYPE_F32;
    if (x->kind != KIND_LINEAR || (t == TENSOR_KV_B_PROJ && dtype_is_quantized(linear)) ||
        (x->without_scales && (linear == DTYPE_F8_E4M3 || linear == DTYPE_I8)))
        return DTYPE_BF16;
    return !is_main || x->group != GROUP_MLP ? linear
           : x->owner == OWNER_EXPERT ? s->types->routed
           : s->types->mlp;
}

static void add_tensors(struct shapes *s, struct tensor_walk w)
{
    char name[64];
    while (walk_next(&w)) {
        const struct layer_tensor *x = &layer_tensors[w.tensor];
        enum dtype dtype = type_of(s, w.tensor, w.layer < s->c->num_hidden_layers);
        tensor_name(name, sizeof name, tensor_names[w.tensor].hf, w.expert, NULL);
        if (x->kind == KIND_VECTOR) {
            add(s, name, "", dtype, 1, x->rows(&s->c->dims), 0);
            continue;
        }
        name[strlen(name) - strlen(".weight")] = 0;
        matrix(s, name, dtype, x->rows(&s->c->dims), x->cols(&s->c->dims));
    }
}

static void add_all(struct shapes *s)
{
    int main = s->c->num_hidden_layers;
    s->count = 0;
    s->prefix[0] = 0;
    add_tensors(s, walk_model(s->c));
    for (int layer = 0; layer < main + s->c->num_nextn_predict_layers; layer++) {
        snprintf(s->prefix, sizeof s->prefix, "model.layers.%d.", layer);
        add_tensors(s, walk_layer(s->c, layer, form_of(s)));
        if (layer >= main)
            add_tensors(s, walk_module(s->c));
    }
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
