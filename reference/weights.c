/* reference/weights.c -- decodes stored numbers, and finds the tensor of each weight by its name (table "Checkpoint" in
 * docs/SEMANTICS.md). */
#include "reference/weights.h"
#include "reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DECODED_ONCE ((size_t)1 << 22) /* weights; a model with no more is small: decoded, it takes 32 MB at most */

/* -- decoding ----------------------------------------------------------------------------------------------------- */

/* Returns 2^exponent, for an exponent from -1022 to 1023. Products with it are those of ldexp, which takes ten times as
 * long. */
static double power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns (-1)^sign (1 + fraction/2^f) 2^(exponent - bias), or (-1)^sign (fraction/2^f) 2^(1 - bias) if `exponent` is
 * 0. f is fraction_bits. */
static double small_float(int sign, int exponent, int fraction, int fraction_bits, int bias)
{
    double value = exponent ? ((1 << fraction_bits) + fraction) * power_of_two(exponent - bias - fraction_bits)
                            : fraction * power_of_two(1 - bias - fraction_bits);
    return sign ? -value : value;
}

double ref_f16(uint16_t code)
{
    int sign = code >> 15, exponent = code >> 10 & 31, fraction = code & 1023;
    if (exponent == 31)
        return fraction ? NAN : sign ? -INFINITY : INFINITY;
    return small_float(sign, exponent, fraction, 10, 15);
}

double ref_bf16(uint16_t code)
{
    int sign = code >> 15, exponent = code >> 7 & 255, fraction = code & 127;
    if (exponent == 255)
        return fraction ? NAN : sign ? -INFINITY : INFINITY;
    return small_float(sign, exponent, fraction, 7, 127);
}

double ref_e4m3(uint8_t code)
{
    int sign = code >> 7, exponent = code >> 3 & 15, fraction = code & 7;
    if (exponent == 15 && fraction == 7)
        return NAN;
    return small_float(sign, exponent, fraction, 3, 7);
}

/* Rounds x to `bits` significant bits. The last of these bits is worth at least 2^least. If the rounded magnitude is
 * `infinite` or more, the result is infinite. */
static double to_small_float(double x, int bits, int least, double infinite)
{
    int exponent;
    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent) */
    int last = exponent - bits > least ? exponent - bits : least;
    double rounded = nearbyint(x * power_of_two(-last)) * power_of_two(last);
    return fabs(rounded) < infinite ? rounded : copysign(INFINITY, x);
}

double ref_to_bf16(double x) { return to_small_float(x, 8, -133, 0x1p128); }
double ref_to_e4m3(double x) { return to_small_float(x < -448 ? -448 : x > 448 ? 448 : x, 4, -9, INFINITY); }
double ref_to_f16(double x) { return to_small_float(x, 11, -24, 0x1p16); }

/* Returns element `at` of a tensor. memcpy is used because the data of a mapped file may be unaligned. */
static double element(const struct tensor *t, size_t at)
{
    const uint8_t *bytes = t->data;
    uint16_t half;
    uint32_t word;
    float single;
    switch (t->dtype) {
    case DTYPE_F32:
        memcpy(&single, bytes + 4 * at, sizeof single);
        return single;
    case DTYPE_F16:
        memcpy(&half, bytes + 2 * at, sizeof half);
        return ref_f16(half);
    case DTYPE_BF16:
        memcpy(&half, bytes + 2 * at, sizeof half);
        return ref_bf16(half);
    case DTYPE_F8_E4M3:
        return ref_e4m3(bytes[at]);
    case DTYPE_I8:
        return bytes[at] < 128 ? bytes[at] : bytes[at] - 256;
    case DTYPE_F4: {
        static const double numbers[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        unsigned code = bytes[at / 2] >> at % 2 * 4 & 15;
        return code & 8 ? -numbers[code & 7] : numbers[code];
    }
    case DTYPE_I4:
        memcpy(&word, bytes + at / 8 * 4, sizeof word);
        return (double)(word >> at % 8 * 4 & 15) - 8;
    default:
        return ref_decoded(t, at);
    }
}

/* Returns code * scale. MXFP4: the scale is 2^(e-127). NVFP4: E4M3 times or divided by a number for the whole matrix;
 * double holds every product here exactly, and a quotient rounded to double and then to f32 is the quotient rounded to
 * f32. */
static double float_of_4_bits(const struct matrix *w, double code, size_t group)
{
    if (!w->tensor_scale) {
        int e = ((const uint8_t *)w->scale->data)[group];
        return e == 255 ? NAN : (float)(code * ldexp(1, e - 127));
    }
    double scale = element(w->scale, group), t = element(w->tensor_scale, 0);
    return w->divides ? (float)(code * (float)(scale / t)) : (float)(code * scale * t);
}

static void decode_row(const struct matrix *w, int i, double *out)
{
    for (int j = 0; j < w->cols; j++)
        out[j] = element(w->tensor, (size_t)i * w->cols + j);
    if (w->tensor->dtype == DTYPE_GGUF_NVFP4 && w->tensor_scale)
        for (int j = 0; j < w->cols; j++)
            out[j] = (float)ref_scaled(w->tensor, (size_t)i * w->cols + j, element(w->tensor_scale, 0));
    if (!w->scale)
        return;
    int blocks = (w->cols + w->block_cols - 1) / w->block_cols;
    for (int j = 0; w->tensor->dtype == DTYPE_F4 && j < w->cols; j++)
        out[j] = float_of_4_bits(w, out[j], (size_t)i * blocks + j / w->block_cols);
    if (w->tensor->dtype == DTYPE_F4)
        return;
    for (int j = 0; j < w->cols; j++) /* double holds the product exactly (8 + 24 bits at most): the only rounding is to
                                         f32 */
        out[j] = (float)(out[j] * element(w->scale, (size_t)(i / w->block_rows) * blocks + j / w->block_cols));
}

static void decode_quantized_row(const struct matrix *w, int i, double *out)
{
    for (int j = 0; j < w->cols; j++)
        out[j] = w->tensor_scale
                     ? ref_scaled(w->tensor, (size_t)i * (size_t)w->cols + (size_t)j, element(w->tensor_scale, 0))
                     : ref_quantized(w->tensor, (size_t)i * (size_t)w->cols + (size_t)j);
}

static void copy_decoded(const struct matrix *w, int i, double *out)
{
    memcpy(out, w->decoded + (size_t)i * (size_t)w->cols, (size_t)w->cols * sizeof *out);
}

void ref_row(const struct matrix *w, int i, double *out)
{
    if (w->decoded && !ref_is_quantized(w))
        copy_decoded(w, i, out);
    else
        decode_row(w, i, out);
}

void ref_quantized_row(const struct matrix *w, int i, double *out)
{
    if (w->decoded)
        copy_decoded(w, i, out);
    else
        decode_quantized_row(w, i, out);
}

int ref_is_finer(const struct matrix *w, double unit)
{
    enum dtype dtype = w->tensor->dtype;
    return w->scale || ref_is_quantized(w) || (dtype == DTYPE_F32 && unit > 0x1p-13) ||
           (dtype == DTYPE_F16 && unit > 0x1p-10);
}

/* -- binding ------------------------------------------------------------------------------------------------------ */

void ref_bind_begin(struct reference_binder *b)
{
    size_t count = 0;
    for (size_t i = 0; i < checkpoint_count(b->r->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(b->r->checkpoint, i);
        size_t numbers = 1;
        for (int k = 0; k < t->ndim; k++)
            numbers *= (size_t)t->shape[k];
        if (numbers > DECODED_ONCE || (count += numbers) > DECODED_ONCE)
            return;
    }
    if (!(b->r->decoded = vb_alloc(&b->r->allocator, count, sizeof *b->r->decoded)))
        b->rc = vb_fail(b->err, VB_NO_MEMORY, "no memory for %zu decoded weights", count);
    b->room = count;
}

/* Two matrices may be bound to one tensor. If there is no room for the second, its rows are decoded when they are
 * needed. So are those of F32 tensors: to decode them is to copy them, and a test of gradients changes them between two
 * passes. */
static void decode(struct reference_binder *b, struct matrix *w)
{
    size_t rows = (size_t)w->rows, cols = (size_t)w->cols;
    if (w->tensor->dtype == DTYPE_F32 || b->room - b->decoded < rows * cols)
        return;
    double *out = b->r->decoded + b->decoded;
    for (size_t i = 0; i < rows; i++) {
        if (ref_is_quantized(w))
            decode_quantized_row(w, (int)i, out + i * cols);
        else
            decode_row(w, (int)i, out + i * cols);
    }
    b->decoded += rows * cols;
    w->decoded = out;
}

/* Returns the tensor if it has the expected shape. A tensor with one dimension counts as one row. */
static const struct tensor *find(struct reference_binder *b, const char *name, int rows, int cols)
{
    const struct tensor *t = checkpoint_find(b->r->checkpoint, name);
    if (!t) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is missing", checkpoint_dir(b->r->checkpoint), name);
        return NULL;
    }
    if (t->ndim != 1 && t->ndim != 2) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s has %d dimensions, wanted 1 or 2", t->file, name, t->ndim);
        return NULL;
    }
    int64_t have_rows = t->ndim == 1 ? 1 : t->shape[0], have_cols = t->shape[t->ndim - 1];
    if (have_rows != rows || have_cols != cols) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is [%lld,%lld], config.json says [%d,%d]", t->file, name,
                        (long long)have_rows, (long long)have_cols, rows, cols);
        return NULL;
    }
    return t;
}

static void bind_floats_of_4_bits(struct reference_binder *b, struct matrix *w, const char *name)
{
    char scale_name[272], other[272];
    snprintf(scale_name, sizeof scale_name, "%s_scale", name);
    const struct tensor *t = checkpoint_find(b->r->checkpoint, scale_name);
    int nvfp4 = t && t->dtype == DTYPE_F8_E4M3;
    w->block_rows = 1;
    w->block_cols = nvfp4 ? 16 : 32;
    if (w->cols % 32) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s has %d columns, wanted a multiple of 32", w->tensor->file,
                        name, w->cols);
        return;
    }
    w->scale = find(b, scale_name, w->rows, w->cols / w->block_cols);
    if (!w->scale || !nvfp4)
        return;
    snprintf(scale_name, sizeof scale_name, "%s_scale_2", name);
    snprintf(other, sizeof other, "%s_global_scale", name);
    w->divides = checkpoint_find(b->r->checkpoint, other) != NULL;
    w->tensor_scale = find(b, w->divides ? other : scale_name, 1, 1);
    if (w->tensor_scale && w->tensor_scale->dtype != DTYPE_F32)
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted F32", w->tensor->file, scale_name,
                        w->tensor_scale->dtype_name);
}

/* Finds the numbers of the rows of an I8 matrix: [rows, 1] or [rows]. */
static const struct tensor *find_rows(struct reference_binder *b, const char *name, int rows)
{
    const struct tensor *t = checkpoint_find(b->r->checkpoint, name);
    return t && t->ndim == 1 ? find(b, name, 1, rows) : find(b, name, rows, 1);
}

static void bind_rows_of_8_bits(struct reference_binder *b, struct matrix *w, const char *name)
{
    char other[272];
    w->block_rows = 1;
    w->block_cols = w->cols;
    snprintf(other, sizeof other, "%s_scale", name);
    if (!b->r->config.int8)
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT,
                        "%s: %s is I8, and neither a quantization_config nor quant_model_description.json says so",
                        w->tensor->file, name);
    else if ((w->scale = find_rows(b, other, w->rows)) && w->scale->dtype != DTYPE_F32 && w->scale->dtype != DTYPE_BF16)
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted F32 or BF16", w->scale->file, other,
                        w->scale->dtype_name);
    snprintf(other, sizeof other, "%s_offset", name);
    const struct tensor *offset = b->rc || !checkpoint_find(b->r->checkpoint, other) ? NULL
                                                                                     : find_rows(b, other, w->rows);
    for (int i = 0; offset && i < w->rows; i++)
        if (offset->dtype == DTYPE_OTHER || element(offset, (size_t)i) != 0) {
            b->rc = vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is not 0 for row %d", offset->file, other, i);
            return;
        }
}

static void bind_name(struct reference_binder *b, struct matrix *w, int rows, int cols, const char *name)
{
    const struct config *c = &b->r->config;
    char scale_name[272];
    const struct tensor *t = b->rc ? NULL : find(b, name, rows, cols);
    if (!t)
        return;
    *w = (struct matrix){.tensor = t, .rows = rows, .cols = cols};
    if (t->dtype == DTYPE_OTHER) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT,
                        "%s: %s is %s, wanted F32, F16, BF16, F8_E4M3, I8 or a quantized type of GGUF", t->file, name,
                        t->dtype_name);
    } else if (dtype_is_quantized(t->dtype) && t->ndim == 1) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted F32, F16 or BF16", t->file, name,
                        t->dtype_name);
    } else if (t->dtype == DTYPE_GGUF_NVFP4) {
        snprintf(scale_name, sizeof scale_name, "%s_scale_2", name);
        w->tensor_scale = checkpoint_find(b->r->checkpoint, scale_name) ? find(b, scale_name, 1, 1) : NULL;
    } else if (t->dtype == DTYPE_F8_E4M3 && !c->fp8) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is F8_E4M3, config.json has no quantization_config for it",
                        t->file, name);
    } else if (t->dtype == DTYPE_I4 && (!c->int4 || cols % 32)) {
        b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT,
                        "%s: %s is packed, wanted a quantization_config for it and a multiple of 32 columns", t->file,
                        name);
    } else if (t->dtype == DTYPE_I4) {
        w->block_rows = 1;
        w->block_cols = 32;
        snprintf(scale_name, sizeof scale_name, "%s_scale", name);
        w->scale = find(b, scale_name, rows, cols / 32);
        if (w->scale && w->scale->dtype != DTYPE_BF16)
            b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted BF16", w->scale->file, scale_name,
                            w->scale->dtype_name);
    } else if (t->dtype == DTYPE_I8) {
        bind_rows_of_8_bits(b, w, name);
    } else if (t->dtype == DTYPE_F4) {
        bind_floats_of_4_bits(b, w, name);
    } else if (t->dtype == DTYPE_F8_E4M3) {
        w->block_rows = c->fp8_block_rows ? c->fp8_block_rows : rows;
        w->block_cols = c->fp8_block_cols ? c->fp8_block_cols : cols;
        snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
        w->scale = find(b, scale_name, (rows + w->block_rows - 1) / w->block_rows,
                        (cols + w->block_cols - 1) / w->block_cols);
        if (w->scale && w->scale->dtype != DTYPE_F32 && w->scale->dtype != DTYPE_BF16)
            b->rc = vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted F32 or BF16", w->scale->file, scale_name,
                            w->scale->dtype_name);
    }
    if (!b->rc)
        decode(b, w);
}

void ref_bind(struct reference_binder *b, struct matrix *w, int rows, int cols, const char *prefix, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    bind_name(b, w, rows, cols, full);
}

/* Finds a matrix of which MTP modules may store a copy: the module's own copy, or else the target's matrix. */
static void bind_copy(struct reference_binder *b, struct matrix *w, const struct matrix *main, const char *prefix,
                      const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    *w = *main;
    if (checkpoint_find(b->r->checkpoint, full))
        bind_name(b, w, main->rows, main->cols, full);
}

static int is_stored(const struct reference_binder *b, const char *prefix, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return checkpoint_find(b->r->checkpoint, full) != NULL;
}

static void bind_indexer(struct reference_binder *b, struct reference_indexer *w, const char *layer)
{
    const struct config *c = &b->r->config;
    int D = c->index_head_dim, H = c->index_n_heads;
    ref_bind(b, &w->wq_b, H * D, c->q_lora_rank, layer, "self_attn.indexer.wq_b.weight");
    ref_bind(b, &w->wk, D, c->hidden_size, layer, "self_attn.indexer.wk.weight");
    ref_bind(b, &w->k_norm, 1, D, layer, "self_attn.indexer.k_norm.weight");
    ref_bind(b, &w->k_norm_bias, 1, D, layer, "self_attn.indexer.k_norm.bias");
    ref_bind(b, &w->weights_proj, H, c->hidden_size, layer, "self_attn.indexer.weights_proj.weight");
}

static void bind_attention(struct reference_binder *b, struct reference_attention *w, const char *layer)
{
    const struct config *c = &b->r->config;
    int D = c->hidden_size, H = c->num_attention_heads, N = c->qk_nope_head_dim, R = c->qk_rope_head_dim;
    int V = c->v_head_dim, C = c->kv_lora_rank, Q = c->q_lora_rank;
    if (Q) {
        ref_bind(b, &w->q_a_proj, Q, D, layer, "self_attn.q_a_proj.weight");
        ref_bind(b, &w->q_a_norm, 1, Q, layer, "self_attn.q_a_layernorm.weight");
        ref_bind(b, &w->q_b_proj, H * (N + R), Q, layer, "self_attn.q_b_proj.weight");
    } else {
        ref_bind(b, &w->q_proj, H * (N + R), D, layer, "self_attn.q_proj.weight");
    }
    ref_bind(b, &w->kv_a_proj, C + R, D, layer, "self_attn.kv_a_proj_with_mqa.weight");
    ref_bind(b, &w->kv_a_norm, 1, C, layer, "self_attn.kv_a_layernorm.weight");
    if (is_stored(b, layer, "self_attn.v_b_proj.weight")) {
        int turned = is_stored(b, layer, "self_attn.k_b_proj_transposed.weight");
        if (turned)
            ref_bind(b, &w->k_b_transposed, H * C, N, layer, "self_attn.k_b_proj_transposed.weight");
        else
            ref_bind(b, &w->k_b_proj, H * N, C, layer, "self_attn.k_b_proj.weight");
        ref_bind(b, &w->v_b_proj, H * V, C, layer, "self_attn.v_b_proj.weight");
    } else {
        ref_bind(b, &w->kv_b_proj, H * (N + V), C, layer, "self_attn.kv_b_proj.weight");
    }
    ref_bind(b, &w->o_proj, D, H * V, layer, "self_attn.o_proj.weight");
}

static void bind_mlp(struct reference_binder *b, struct reference_mlp *w, int W, const char *prefix)
{
    int D = b->r->config.hidden_size;
    ref_bind(b, &w->gate_proj, W, D, prefix, "gate_proj.weight");
    ref_bind(b, &w->up_proj, W, D, prefix, "up_proj.weight");
    ref_bind(b, &w->down_proj, D, W, prefix, "down_proj.weight");
}

static void bind_layer(struct reference_binder *b, struct reference_layer *w, int l)
{
    const struct config *c = &b->r->config;
    int D = c->hidden_size, E = c->n_routed_experts;
    char layer[64], prefix[128];
    if (b->r->trunk_layers)
        snprintf(layer, sizeof layer, "extra_heads.%d.", l - c->num_hidden_layers);
    else
        snprintf(layer, sizeof layer, "model.layers.%d.", l);
    ref_bind(b, &w->input_norm, 1, D, layer, "input_layernorm.weight");
    bind_attention(b, &w->attention, layer);
    if (c->index_topk && !config_layer_is_shared(c, l))
        bind_indexer(b, &w->attention.indexer, layer);
    ref_bind(b, &w->post_attention_norm, 1, D, layer, "post_attention_layernorm.weight");

    w->is_moe = config_layer_is_moe(c, l);
    if (!w->is_moe) {
        snprintf(prefix, sizeof prefix, "%smlp.", layer);
        bind_mlp(b, &w->mlp, c->intermediate_size, prefix);
        return;
    }
    ref_bind(b, &w->router, E, D, layer, "mlp.gate.weight");
    if (c->topk_method == TOPK_NOAUX_TC)
        ref_bind(b, &w->bias, 1, E, layer, "mlp.gate.e_score_correction_bias");
    if (!b->rc && !(w->experts = vb_alloc(&b->r->allocator, (size_t)E, sizeof *w->experts)))
        b->rc = vb_fail(b->err, VB_NO_MEMORY, "no memory for the list of %d experts", E);
    for (int e = 0; e < E && !b->rc; e++) {
        snprintf(prefix, sizeof prefix, "%smlp.experts.%d.", layer, e);
        bind_mlp(b, &w->experts[e], c->moe_intermediate_size, prefix);
    }
    snprintf(prefix, sizeof prefix, "%smlp.shared_experts.", layer);
    if (c->n_shared_experts)
        bind_mlp(b, &w->shared, c->moe_intermediate_size * c->n_shared_experts, prefix);
}

static void bind_mtp(struct reference_binder *b, struct reference_mtp_module *w, int l)
{
    int D = b->r->config.hidden_size;
    char layer[64];
    snprintf(layer, sizeof layer, "model.layers.%d.", l);
    bind_copy(b, &w->embed, &b->r->embed, layer, "embed_tokens.weight");
    ref_bind(b, &w->enorm, 1, D, layer, "enorm.weight");
    ref_bind(b, &w->hnorm, 1, D, layer, "hnorm.weight");
    ref_bind(b, &w->eh_proj, D, 2 * D, layer, "eh_proj.weight");
    bind_layer(b, &w->layer, l);
    ref_bind(b, &w->norm, 1, D, layer, "shared_head.norm.weight");
    bind_copy(b, &w->head, &b->r->head, layer, "shared_head.head.weight");
}

/* Returns num_nextn_predict_layers, minus the last MTP layers of which the checkpoint stores no tensor. Checkpoints
 * that transformers has saved have none. */
static int stored_modules(const struct reference *r)
{
    char layer[64];
    size_t first;
    int count = r->config.num_nextn_predict_layers;
    for (; count > 0; count--) {
        snprintf(layer, sizeof layer, "model.layers.%d.", r->config.num_hidden_layers + count - 1);
        if (checkpoint_with_prefix(r->checkpoint, layer, &first))
            break;
    }
    return count;
}

/* -- open and close ----------------------------------------------------------------------------------------------- */

int reference_open(struct reference **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    *out = NULL;
    struct reference *r = vb_alloc(a, 1, sizeof *r);
    struct reference_binder b = {.r = r, .err = err};
    if (!r)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for the reference", dir);
    if (a)
        r->allocator = *a;

    struct config *c = &r->config;
    if ((b.rc = config_read(c, dir, &r->allocator, err)) ||
        (b.rc = checkpoint_open(&r->checkpoint, dir, &r->allocator, err)))
        goto fail;
    c->num_nextn_predict_layers = stored_modules(r);
    r->layers = vb_alloc(&r->allocator, c->dims.layers, sizeof *r->layers);
    r->mtp = vb_alloc(&r->allocator, (size_t)c->num_nextn_predict_layers, sizeof *r->mtp);
    if (!r->layers || !r->mtp) {
        b.rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for the list of layers", dir);
        goto fail;
    }
    ref_bind_begin(&b);
    ref_bind(&b, &r->embed, c->vocab_size, c->hidden_size, "model.", "embed_tokens.weight");
    for (int l = 0; l < c->num_hidden_layers; l++)
        bind_layer(&b, &r->layers[l], l);
    ref_bind(&b, &r->norm, 1, c->hidden_size, "model.", "norm.weight");
    if (c->tie_word_embeddings)
        r->head = r->embed;
    else
        ref_bind(&b, &r->head, c->vocab_size, c->hidden_size, "", "lm_head.weight");
    for (int k = 0; k < c->num_nextn_predict_layers; k++)
        bind_mtp(&b, &r->mtp[k], c->num_hidden_layers + k);
    if (b.rc)
        goto fail;
    *out = r;
    return VB_OK;

fail:
    reference_close(r);
    return b.rc;
}

int reference_heads_open(struct reference **out, const char *dir, const struct reference *target, vb_error *err)
{
    *out = NULL;
    struct reference *r = vb_alloc(&target->allocator, 1, sizeof *r);
    struct reference_binder b = {.r = r, .err = err};
    struct heads_config heads;
    if (!r)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for the reference", dir);
    r->allocator = target->allocator;
    struct config *c = &r->config;
    if ((b.rc = config_read_heads(c, &heads, dir, &r->allocator, err)) ||
        (b.rc = checkpoint_open(&r->checkpoint, dir, &r->allocator, err)))
        goto fail;
    if (c->hidden_size != target->config.hidden_size || c->num_hidden_layers != target->config.num_hidden_layers) {
        b.rc = vb_fail(err, VB_BAD_ARGUMENT, "%s: heads for %d layers of width %d, the target has %d of width %d", dir,
                       c->num_hidden_layers, c->hidden_size, target->config.num_hidden_layers,
                       target->config.hidden_size);
        goto fail;
    }
    r->trunk_layers = heads.trunk_layers;
    if (!(r->mtp = vb_alloc(&r->allocator, (size_t)heads.count, sizeof *r->mtp)))
        b.rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for the list of heads", dir);
    else
        ref_bind_begin(&b);
    for (int k = 0; k < heads.count && !b.rc; k++)
        bind_layer(&b, &r->mtp[k].layer, c->num_hidden_layers + k);
    if (b.rc)
        goto fail;
    *out = r;
    return VB_OK;

fail:
    reference_close(r);
    return b.rc;
}

void reference_close(struct reference *r)
{
    if (!r)
        return;
    vb_allocator a = r->allocator;
    for (int l = 0; r->layers && l < r->config.num_hidden_layers; l++)
        vb_free(&a, r->layers[l].experts);
    for (int k = 0; r->mtp && k < r->config.num_nextn_predict_layers; k++)
        vb_free(&a, r->mtp[k].layer.experts);
    vb_free(&a, r->layers);
    vb_free(&a, r->mtp);
    vb_free(&a, r->decoded);
    checkpoint_close(r->checkpoint);
    vb_free(&a, r);
}

const struct config *reference_config(const struct reference *r) { return &r->config; }
