/* engine/model/model_scales.c -- finds the scales of FP8 and int8 matrices and of matrices with codes of 4 bits. */
#include "engine/model/model_internal.h"
#include "simd/decode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Sets w->scale to the numbers of t, which must be F32 or BF16. They stay in the file if they can be read there as
 * f32. */
static int set_scale(struct binder *b, struct weight_view *w, const struct tensor *t)
{
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16)
        return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted F32 or BF16", t->file, t->name, t->dtype_name);
    w->scale = t->data;
    if (t->data && (t->dtype == DTYPE_BF16 || (uintptr_t)t->data % sizeof(float))) {
        size_t count = (size_t)(t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1));
        float *copy = model_alloc(b, count, sizeof *copy);
        if (!copy)
            return VB_NO_MEMORY;
        const struct weight_view stored = {.type = (enum weight_type)t->dtype, .data = t->data, .rows = 1,
                                           .cols = count, .stride = count};
        decode_weights(copy, &stored, 0, 0, count);
        w->scale = copy;
        b->m->widened_bytes += count * sizeof *copy;
    }
    return VB_OK;
}

int model_bind_scale(struct binder *b, struct weight_view *w, const char *part, const char *file)
{
    const struct tensor *t;
    if (!b->c->fp8)
        return vb_fail(b->err, VB_BAD_CHECKPOINT,
                       "%s: %s%s.weight is F8_E4M3, config.json has no quantization_config for FP8 weights", file,
                       b->prefix, part);
    w->block_rows = b->c->fp8_block_rows ? (size_t)b->c->fp8_block_rows : w->rows;
    w->block_cols = b->c->fp8_block_cols ? (size_t)b->c->fp8_block_cols
                                         : (w->cols + DOT_CHUNK - 1) / DOT_CHUNK * DOT_CHUNK;
    w->scale_stride = (w->cols + w->block_cols - 1) / w->block_cols;
    int rc = model_take(b, &t, part, ".weight_scale_inv", 2, (w->rows + w->block_rows - 1) / w->block_rows,
                        w->scale_stride);
    return rc ? rc : set_scale(b, w, t);
}

/* Takes a tensor with a number for each row of the matrix: [rows, 1] or [rows]. */
static int take_rows(struct binder *b, const struct tensor **out, const char *part, const char *suffix, size_t rows)
{
    char name[TENSOR_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s%s%s", b->prefix, part, suffix);
    const struct tensor *t = checkpoint_find(b->m->checkpoint, name);
    return model_take(b, out, part, suffix, t && t->ndim == 1 ? 1 : 2, rows, 1);
}

int model_bind_row_scales(struct binder *b, struct weight_view *w, const char *part, const char *file)
{
    static const char offsets[] = ".weight_offset";
    const struct tensor *t;
    char name[TENSOR_MAX_NAME + 1];
    if (!b->c->int8)
        return vb_fail(b->err, VB_BAD_CHECKPOINT,
                       "%s: %s%s.weight is I8, wanted quant_model_description.json, or a quantization_config of int8 "
                       "weights in %s", file,
                       b->prefix, part, config_origin(b->c));
    w->block_rows = w->scale_stride = 1;
    w->block_cols = (w->cols + DOT_CHUNK - 1) / DOT_CHUNK * DOT_CHUNK;
    int rc = take_rows(b, &t, part, ".weight_scale", w->rows);
    if (rc || (rc = set_scale(b, w, t)))
        return rc;
    snprintf(name, sizeof name, "%s%s%s", b->prefix, part, offsets);
    if (!checkpoint_find(b->m->checkpoint, name))
        return VB_OK;
    if ((rc = take_rows(b, &t, part, offsets, w->rows)))
        return rc;
    for (size_t i = 0; t->data && i < t->bytes; i++)
        if (((const unsigned char *)t->data)[i])
            return vb_fail(b->err, VB_UNSUPPORTED,
                           "%s: %s is not 0 for row %zu, only symmetric quantization is supported", t->file, t->name,
                           i / (t->bytes / w->rows));
    return VB_OK;
}

/* Checks weight_shape [rows, cols], which repeats the shape of the matrix whose codes are packed. */
static int check_packed_shape(struct binder *b, const struct weight_view *w, const char *part)
{
    const struct tensor *t;
    int64_t shape[2];
    int32_t narrow[2];
    int rc = model_take(b, &t, part, ".weight_shape", 1, 2, 0), wide = !rc && !strcmp(t->dtype_name, "I64");
    if (rc || (!wide && strcmp(t->dtype_name, "I32")))
        return rc ? rc
                  : vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted I32 or I64", t->file, t->name,
                            t->dtype_name);
    if (!t->data) /* the checkpoint has no weights (checkpoint_from_list) */
        return VB_OK;
    memcpy(wide ? (void *)shape : narrow, t->data, wide ? sizeof shape : sizeof narrow);
    for (int d = 0; !wide && d < 2; d++)
        shape[d] = narrow[d];
    if (shape[0] == (int64_t)w->rows && shape[1] == (int64_t)w->cols)
        return VB_OK;
    return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is [%lld,%lld], the packed matrix is [%zu,%zu]", t->file, t->name,
                   (long long)shape[0], (long long)shape[1], w->rows, w->cols);
}

int model_bind_groups(struct binder *b, struct weight_view *w, const char *part, const char *file)
{
    const struct tensor *t;
    if (!b->c->int4)
        return vb_fail(b->err, VB_BAD_CHECKPOINT,
                       "%s: %s%s has weight_packed, config.json has no quantization_config for it", file, b->prefix,
                       part);
    if (w->cols % DOT_CHUNK)
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s%s has weight_packed with %zu columns, wanted a multiple of 32",
                       file, b->prefix, part, w->cols);
    int rc = model_take(b, &t, part, ".weight_scale", 2, w->rows, w->cols / DOT_CHUNK);
    if (rc)
        return rc;
    if (t->dtype != DTYPE_BF16)
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is %s, wanted BF16", t->file, t->name, t->dtype_name);
    w->group_scale = t->data;
    return check_packed_shape(b, w, part);
}

/* Takes the scale t of a whole NVFP4 matrix: weight_scale_2, which multiplies (ModelOpt), or weight_global_scale, which
 * divides (compressed-tensors). It is one number, with or without dimensions. */
static int bind_tensor_scale(struct binder *b, struct weight_view *w, const char *part)
{
    char name[TENSOR_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s%s.weight_global_scale", b->prefix, part);
    const struct tensor *t = checkpoint_take(b->m->checkpoint, name);
    w->divides = t != NULL;
    if (!t) {
        snprintf(name, sizeof name, "%s%s.weight_scale_2", b->prefix, part);
        t = checkpoint_take(b->m->checkpoint, name);
    }
    if (!t)
        return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is missing, and so is weight_global_scale",
                       checkpoint_dir(b->m->checkpoint), name);
    if (t->dtype != DTYPE_F32 || t->bytes != sizeof(float))
        return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %s with %zu bytes, wanted one F32 number", t->file, name,
                       t->dtype_name, t->bytes);
    if (!t->data) /* the checkpoint has no weights (checkpoint_from_list) */
        return VB_OK;
    memcpy(&w->tensor_scale, t->data, sizeof w->tensor_scale);
    if (isfinite(w->tensor_scale) && w->tensor_scale > 0)
        return VB_OK;
    return vb_fail(b->err, VB_BAD_CHECKPOINT, "%s: %s is %g, wanted a finite number above 0", t->file, name,
                   (double)w->tensor_scale);
}

int model_bind_tensor_scale(struct binder *b, struct weight_view *w, const char *part)
{
    char name[TENSOR_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s%s.weight_scale_2", b->prefix, part);
    w->tensor_scale = 1.0f;
    return checkpoint_find(b->m->checkpoint, name) ? bind_tensor_scale(b, w, part) : VB_OK;
}

int model_bind_floats_of_4_bits(struct binder *b, struct weight_view *w, const char *part, const char *file)
{
    char name[TENSOR_MAX_NAME + 1];
    const struct tensor *t;
    if (w->cols % DOT_CHUNK)
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s%s has codes of 4 bits with %zu columns, wanted a multiple of 32",
                       file, b->prefix, part, w->cols);
    snprintf(name, sizeof name, "%s%s.weight_scale", b->prefix, part);
    t = checkpoint_find(b->m->checkpoint, name);
    int exponents = t && (!strcmp(t->dtype_name, "U8") || !strcmp(t->dtype_name, "F8_E8M0"));
    if (t && !exponents && t->dtype != DTYPE_F8_E4M3)
        return vb_fail(b->err, VB_UNSUPPORTED, "%s: %s is %s, wanted F8_E4M3 (NVFP4), or U8 or F8_E8M0 (MXFP4)",
                       t->file, name, t->dtype_name);
    w->group_size = exponents ? 32 : 16;
    int rc = model_take(b, &t, part, ".weight_scale", 2, w->rows, w->cols / w->group_size);
    if (rc)
        return rc;
    w->group_scale = t->data;
    return exponents ? VB_OK : bind_tensor_scale(b, w, part);
}
