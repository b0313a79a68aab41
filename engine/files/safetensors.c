/* engine/files/safetensors.c -- reads the header of a safetensors file. The header is not trusted: every number is
 * checked against the size of the file before it is used. Every error message names the file and the tensor. */
#include "engine/files/checkpoint.h"
#include "engine/base/json.h"

#include <stdlib.h>
#include <string.h>

#define MAX_HEADER 100000000 /* limit of the file format */

static const struct {
    const char *name;
    enum dtype dtype;
    size_t size;
} dtypes[] = {
    {"F32", DTYPE_F32, 4},      {"F16", DTYPE_F16, 2},   {"BF16", DTYPE_BF16, 2},  {"F8_E4M3", DTYPE_F8_E4M3, 1},
    {"F64", DTYPE_OTHER, 8},    {"I64", DTYPE_OTHER, 8}, {"U64", DTYPE_OTHER, 8},  {"I32", DTYPE_OTHER, 4},
    {"U32", DTYPE_OTHER, 4},    {"I16", DTYPE_OTHER, 2}, {"U16", DTYPE_OTHER, 2},  {"I8", DTYPE_I8, 1},
    {"U8", DTYPE_OTHER, 1},     {"BOOL", DTYPE_OTHER, 1}, {"F8_E5M2", DTYPE_OTHER, 1}, {"F8_E8M0", DTYPE_OTHER, 1},
};

size_t safetensors_dtype(const char *name, enum dtype *dtype)
{
    *dtype = DTYPE_OTHER;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(name, dtypes[i].name)) {
            *dtype = dtypes[i].dtype;
            return dtypes[i].size;
        }
    return 0;
}

struct header {
    const char *file;
    size_t data_begin, data_size; /* of the data section: offset in the file, and size in bytes */
    vb_error *err;
};

/* Checks that a name is printable, not empty and not too long. Every name is checked before it is written to a message.
 * The JSON parser has already checked UTF-8. */
static int check_name(const struct header *h, const char *name, size_t length)
{
    int printable = length > 0 && length <= TENSOR_MAX_NAME;
    for (size_t i = 0; printable && i < length; i++)
        printable = (unsigned char)name[i] >= 0x20 && name[i] != 0x7f;
    if (printable)
        return VB_OK;
    return vb_fail(h->err, VB_BAD_CHECKPOINT, "%s: a tensor's name is empty, longer than %d bytes or not printable",
                   h->file, TENSOR_MAX_NAME);
}

static int bad(const struct header *h, const char *name, const char *key, const json_t *value, const char *wanted)
{
    char shown[JSON_SHOWN];
    return vb_fail(h->err, VB_BAD_CHECKPOINT, "%s: %s: %s is %s, wanted %s", h->file, name, key,
                   json_show(value, shown), wanted);
}

static int is_dtype_name(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    return n && n < sizeof((struct tensor *)0)->dtype_name && strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == n;
}

/* Reads dtype and shape, and computes the size of the tensor in bytes. For an unknown dtype, any size is accepted,
 * because no operator reads the tensor. */
static int read_shape(const struct header *h, struct tensor *t, const json_t *dtype, const json_t *shape, size_t *want)
{
    size_t numbers = 1;
    const char *name = json_string_value(dtype);
    if (!is_dtype_name(name))
        return bad(h, t->name, "dtype", dtype, "a name such as BF16");
    strcpy(t->dtype_name, name);
    size_t item = safetensors_dtype(name, &t->dtype);
    if (!json_is_array(shape) || json_array_size(shape) > TENSOR_MAX_DIMS)
        return bad(h, t->name, "shape", shape, "a list of up to four numbers");
    t->ndim = (int)json_array_size(shape);
    for (int d = 0; d < t->ndim; d++) {
        const json_t *extent = json_array_get(shape, (size_t)d);
        t->shape[d] = json_integer_value(extent);
        if (!json_is_integer(extent) || t->shape[d] < 0)
            return bad(h, t->name, "shape", shape, "whole numbers from 0");
        if (__builtin_mul_overflow(numbers, (size_t)t->shape[d], &numbers))
            return bad(h, t->name, "shape", shape, "a product that 64 bits hold");
    }
    if (__builtin_mul_overflow(numbers, item, want))
        return bad(h, t->name, "shape", shape, "a size in bytes that 64 bits hold");
    if (!item)
        *want = SIZE_MAX;
    return VB_OK;
}

static int read_entry(const struct header *h, struct safetensors_entry *e, const char *name, const json_t *info)
{
    struct tensor *t = &e->tensor;
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    size_t want = 0;
    *t = (struct tensor){.name = name, .file = h->file};
    if (!json_is_object(info))
        return bad(h, name, "its entry", info, "an object");
    int rc = read_shape(h, t, json_object_get(info, "dtype"), json_object_get(info, "shape"), &want);
    if (rc)
        return rc;
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return bad(h, name, "data_offsets", offsets, "[begin, end]");
    e->begin = (size_t)json_integer_value(begin);
    e->end = (size_t)json_integer_value(end);
    t->bytes = e->end - e->begin;
    if (e->end > h->data_size)
        return vb_fail(h->err, VB_BAD_CHECKPOINT,
                       "%s: %s ends at byte %zu of the data, the file holds %zu: it was cut short", h->file, name,
                       e->end, h->data_size);
    if (want != SIZE_MAX && want != t->bytes)
        return vb_fail(h->err, VB_BAD_CHECKPOINT, "%s: %s has %zu bytes, its shape and dtype %s make %zu", h->file,
                       name, t->bytes, t->dtype_name, want);
    return VB_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* an empty tensor may begin at the same offset as another tensor */
}

/* Checks that every byte of the data belongs to exactly one tensor, as the format requires. Otherwise the header does
 * not fit the data. */
static int check_cover(const struct header *h, const struct safetensors_entry *e, size_t count)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (e[i].begin < at)
            return vb_fail(h->err, VB_BAD_CHECKPOINT, "%s: %s overlaps %s", h->file, e[i].tensor.name,
                           e[i - 1].tensor.name);
        if (e[i].begin > at)
            return vb_fail(h->err, VB_BAD_CHECKPOINT, "%s: there is a hole of %zu bytes before %s", h->file,
                           e[i].begin - at, e[i].tensor.name);
        at = e[i].end;
    }
    if (at != h->data_size)
        return vb_fail(h->err, VB_BAD_CHECKPOINT, "%s: its tensors end at byte %zu of the data, the file holds %zu",
                       h->file, at, h->data_size);
    return VB_OK;
}

/* Reads all entries of the header and sorts them by offset. */
static int read_entries(const struct header *h, json_t *root, struct safetensors_entry *e, size_t *count)
{
    const char *name;
    json_t *info;
    int rc;
    json_object_foreach(root, name, info)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        if ((rc = check_name(h, name, strlen(name))) || (rc = read_entry(h, &e[*count], name, info)))
            return rc;
        ++*count;
    }
    qsort(e, *count, sizeof *e, by_offset);
    return check_cover(h, e, *count);
}

int safetensors_parse(const char *data, size_t size, size_t file_size, const char *file,
                      int (*each)(void *context, const struct safetensors_entry *e, vb_error *err), void *context,
                      const vb_allocator *a, vb_error *err)
{
    uint64_t n = 0;
    size_t count = 0;
    struct safetensors_entry *entries = NULL;
    json_t *root;
    int rc = VB_OK;

    if (size < 8)
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %zu bytes are no safetensors file", file, size);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | (unsigned char)data[i];
    if (n > MAX_HEADER || n > size - 8)
        return vb_fail(err, VB_BAD_CHECKPOINT,
                       "%s: its header of %llu bytes does not fit a file of %zu: it was cut short, or is no "
                       "safetensors file",
                       file, (unsigned long long)n, file_size);
    struct header h = {file, 8 + (size_t)n, file_size - 8 - (size_t)n, err};

    if (!(root = json_read(data + 8, (size_t)n, file, err)))
        return err ? err->code : VB_BAD_CHECKPOINT;
    if (!json_is_object(root))
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: its header is not an object", file);
    else if (!(entries = vb_alloc(a, json_object_size(root) + 1, sizeof *entries)))
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for its %zu tensors", file, json_object_size(root));
    else
        rc = read_entries(&h, root, entries, &count);
    for (size_t i = 0; !rc && i < count; i++) {
        entries[i].begin += h.data_begin;
        entries[i].end += h.data_begin;
        rc = each(context, &entries[i], err);
    }
    vb_free(a, entries);
    json_decref(root);
    return rc;
}
