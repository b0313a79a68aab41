/* engine/tensors.c -- the public functions that read and write files of tensors. */
#include "engine/base/json.h"
#include "engine/base/options.h"
#include "engine/base/utf8.h"
#include "engine/files/checkpoint.h"
#include "simd/decode.h"
#include "simd/quantized.h"
#include "simd/fpenv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct vb_tensors {
    struct checkpoint *files;
    json_t *metadata; /* NULL: none */
    vb_allocator allocator;
};

_Static_assert(VB_TENSOR_DIMS == TENSOR_MAX_DIMS, "a tensor has as many dimensions here as there");

/* ---- reading ---- */

int vb_tensors_open(vb_tensors **out, const char *path, const vb_allocator *allocator, vb_error *err)
{
    struct vb_tensors *t = vb_alloc(allocator, 1, sizeof *t);
    *out = NULL;
    if (!t)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory to open it", path);
    t->allocator = allocator ? *allocator : (vb_allocator){0};
    int code = checkpoint_open_tensors(&t->files, path, allocator, err);
    if (!code)
        code = checkpoint_metadata(t->files, &t->metadata, err);
    if (code)
        vb_tensors_close(t);
    else
        *out = t;
    return code;
}

void vb_tensors_close(vb_tensors *t)
{
    if (!t)
        return;
    vb_allocator a = t->allocator;
    checkpoint_close(t->files);
    json_decref(t->metadata);
    vb_free(&a, t);
}

static int tell(const struct tensor *t, vb_tensor *out)
{
    if (!t)
        return 0;
    *out = (vb_tensor){.name = t->name, .dtype = t->dtype_name, .ndim = t->ndim, .data = t->data, .bytes = t->bytes,
                       .file = t->file, .quantized = dtype_is_quantized(t->dtype)};
    memcpy(out->shape, t->shape, sizeof out->shape);
    return 1;
}

int vb_tensors_at(const vb_tensors *t, size_t number, vb_tensor *out)
{
    return tell(number < checkpoint_count(t->files) ? checkpoint_at(t->files, number) : NULL, out);
}

int vb_tensors_find(const vb_tensors *t, const char *name, vb_tensor *out)
{
    return tell(checkpoint_find(t->files, name), out);
}

const char *vb_tensors_metadata(const vb_tensors *t, const char *key)
{
    return json_string_value(json_object_get(t->metadata, key));
}

/* ---- numbers ---- */

/* Of a shape; 0 when they are more than 64 bits hold, or an extent is negative. */
static int numbers_of(const vb_tensor *t, size_t *numbers)
{
    *numbers = 1;
    if (t->ndim < 0 || t->ndim > VB_TENSOR_DIMS)
        return 0;
    for (int32_t d = 0; d < t->ndim; d++)
        if (t->shape[d] < 0 || __builtin_mul_overflow(*numbers, (size_t)t->shape[d], numbers))
            return 0;
    return 1;
}

static float wide_number(const char *dtype, const char *data, size_t i)
{
    double f64;
    int64_t i64;
    int32_t i32;
    if (!strcmp(dtype, "F64"))
        return (float)*(double *)memcpy(&f64, data + i * sizeof f64, sizeof f64);
    if (!strcmp(dtype, "I64"))
        return (float)*(int64_t *)memcpy(&i64, data + i * sizeof i64, sizeof i64);
    return (float)*(int32_t *)memcpy(&i32, data + i * sizeof i32, sizeof i32);
}

static int is_wide(const char *dtype)
{
    return !strcmp(dtype, "F64") || !strcmp(dtype, "I64") || !strcmp(dtype, "I32");
}

/* WEIGHT_ALL_TYPES: none. */
static enum weight_type weight_type_of(const char *dtype)
{
    enum dtype stored;
    int type = WEIGHT_TYPES;
    if (safetensors_dtype(dtype, &stored))
        return (enum weight_type)stored; /* both enums have one order (engine/model/model.c) */
    if (!strcmp(dtype, "I4"))
        return WEIGHT_I4;
    if (!strcmp(dtype, "F4"))
        return WEIGHT_F4;
    while (type < WEIGHT_ALL_TYPES && strcmp(quantized_format((enum weight_type)type)->name, dtype))
        type++;
    return (enum weight_type)type;
}

int vb_tensor_f32(const vb_tensor *t, size_t first, size_t count, float *out, vb_error *err)
{
    size_t numbers;
    enum weight_type type = weight_type_of(t->dtype);
    if (OPTIONS_RESERVED(vb_tensor, t, err))
        return VB_BAD_ARGUMENT;
    if (!numbers_of(t, &numbers) || first > numbers || count > numbers - first)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: wanted %zu numbers from number %zu on, which it does not have",
                       t->name, count, first);
    if (type == WEIGHT_ALL_TYPES && !is_wide(t->dtype))
        return vb_fail(err, VB_UNSUPPORTED, "%s is %s, which is not read as f32", t->name, t->dtype);
    struct fpenv env = fpenv_enter();
    if (type == WEIGHT_ALL_TYPES) {
        for (size_t i = 0; i < count; i++)
            out[i] = wide_number(t->dtype, t->data, first + i);
    } else if (type == WEIGHT_F8_E4M3) {
        for (size_t i = 0; i < count; i++)
            out[i] = e4m3_to_f32(((const uint8_t *)t->data)[first + i]);
    } else if (type == WEIGHT_I8) {
        for (size_t i = 0; i < count; i++)
            out[i] = (float)((const int8_t *)t->data)[first + i];
    } else if (type == WEIGHT_I4) {
        for (size_t i = 0; i < count; i++)
            out[i] = (float)((((const uint8_t *)t->data)[(first + i) / 2] >> (first + i) % 2 * 4 & 15) - 8);
    } else if (type == WEIGHT_F4) { /* the scales are other tensors */
        for (size_t i = 0; i < count; i++)
            out[i] = 0.5f *
                     (float)quantized_e2m1[((const uint8_t *)t->data)[(first + i) / 2] >> (first + i) % 2 * 4 & 15];
    } else if (count) { /* rows are whole blocks: one after the other they are one row */
        struct weight_view view = {.type = type, .data = t->data, .rows = 1, .cols = numbers, .stride = numbers,
                                   .tensor_scale = 1.0f};
        decode_weights(out, &view, 0, first, count);
    }
    fpenv_leave(env);
    return VB_OK;
}

/* ---- writing ---- */

static int check(const vb_tensor *t, const char *file, const json_t *header, vb_error *err)
{
    enum dtype stored;
    size_t numbers, bytes, item = t->dtype ? safetensors_dtype(t->dtype, &stored) : 0,
                           n = t->name ? strlen(t->name) : 0;
    int printable = n > 0 && n <= TENSOR_MAX_NAME && utf8_valid(t->name, n) == n;
    for (size_t i = 0; printable && i < n; i++)
        printable = (unsigned char)t->name[i] >= 0x20 && t->name[i] != 0x7f;
    if (!printable || !strcmp(t->name, "__metadata__"))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "%s: a tensor's name is empty, longer than %d bytes, not printable or __metadata__", file,
                       TENSOR_MAX_NAME);
    if (json_object_get(header, t->name))
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: %s is there twice", file, t->name);
    if (!item)
        return vb_fail(err, VB_UNSUPPORTED, "%s: %s is %s, which safetensors files do not have", file, t->name,
                       t->dtype ? t->dtype : "of no type");
    if (!numbers_of(t, &numbers) || __builtin_mul_overflow(numbers, item, &bytes) || bytes != t->bytes)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: %s has %zu bytes, which are not those of its shape and dtype %s",
                       file, t->name, t->bytes, t->dtype);
    return VB_OK;
}

static int add_entry(json_t *header, const vb_tensor *t, size_t *size, const char *file, vb_error *err)
{
    size_t end;
    int code = OPTIONS_RESERVED(vb_tensor, t, err);
    if (!code)
        code = check(t, file, header, err);
    if (code)
        return code;
    if (__builtin_add_overflow(*size, t->bytes, &end) || end > INT64_MAX)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: its tensors are more than a file holds", file);
    json_t *shape = json_array();
    int failed = !shape;
    for (int32_t d = 0; d < t->ndim; d++)
        failed |= json_array_append_new(shape, json_integer(t->shape[d]));
    json_t *entry = json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets", (json_int_t)*size,
                              (json_int_t)end);
    *size = end;
    return json_object_set_new(header, t->name, entry) || failed
               ? vb_fail(err, VB_NO_MEMORY, "%s: no memory for its header", file)
               : VB_OK;
}

struct tensors_output {
    int fd;
    const char *name;
    size_t done, total; /* bytes of data */
    vb_progress_or_stop progress;
    void *context;
    vb_error *err;
};

static int write_bytes(const struct tensors_output *o, const char *bytes, size_t size)
{
    int failed = vb_write_all(o->fd, bytes, size);
    return failed ? vb_fail(o->err, VB_IO, "%s: %s", o->name, strerror(failed)) : VB_OK;
}

static int write_data(struct tensors_output *o, const vb_tensor *t)
{
    for (size_t at = 0, n; at < t->bytes; at += n) {
        n = t->bytes - at < (size_t)1 << 20 ? t->bytes - at : (size_t)1 << 20;
        int code = write_bytes(o, (const char *)t->data + at, n);
        if (code)
            return code;
        o->done += n;
        if (o->progress && o->progress(o->context, o->done, o->total))
            return vb_fail(o->err, VB_STOPPED, "%s: stopped by the caller", o->name);
    }
    return VB_OK;
}

/* 8 bytes of length, the header padded with spaces to a multiple of 8. */
static int write_header(const struct tensors_output *o, const json_t *header)
{
    size_t size = json_dumpb(header, NULL, 0, JSON_COMPACT), padded = (size + 7) / 8 * 8;
    char length[8], *text = size ? malloc(size) : NULL;
    if (!text || json_dumpb(header, text, size, JSON_COMPACT) != size) {
        free(text);
        return vb_fail(o->err, VB_NO_MEMORY, "%s: no memory for its header", o->name);
    }
    for (int i = 0; i < 8; i++)
        length[i] = (char)(padded >> 8 * i);
    int code = write_bytes(o, length, 8);
    if (!code)
        code = write_bytes(o, text, size);
    free(text);
    return code ? code : write_bytes(o, "       ", padded - size);
}

int vb_tensors_write(int fd, const char *name, const vb_tensor *tensors, size_t count, vb_progress_or_stop progress,
                     void *context, vb_error *err)
{
    struct tensors_output o = {.fd = fd, .name = name, .progress = progress, .context = context, .err = err};
    json_t *header = json_object();
    int code = header ? VB_OK : vb_fail(err, VB_NO_MEMORY, "%s: no memory for its header", name);
    for (size_t i = 0; i < count && !code; i++)
        code = add_entry(header, &tensors[i], &o.total, name, err);
    if (!code)
        code = write_header(&o, header);
    json_decref(header);
    for (size_t i = 0; i < count && !code; i++)
        code = write_data(&o, &tensors[i]);
    return code;
}
