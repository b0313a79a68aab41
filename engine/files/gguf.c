/* engine/files/gguf.c -- reads the header of a GGUF file. The header is not trusted: every number is checked against
 * the size of the file before it is used, and every name is checked before it is written to a message. */
#include "engine/files/gguf.h"
#include "numbers/numbers.h"
#include "engine/base/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILES 99999 /* largest number that fits the five digits in a file name */

/* The sizes are those of ggml's block structures. To support another type, write its kernels and replace DTYPE_OTHER
 * here. */
static const struct gguf_tensor_type tensor_types[] = {
    {"F32", 0, 1, 4, DTYPE_F32},
    {"F16", 1, 1, 2, DTYPE_F16},
    {"BF16", 30, 1, 2, DTYPE_BF16},
    {"Q4_0", 2, 32, 18, DTYPE_Q4_0},
    {"Q4_1", 3, 32, 20, DTYPE_Q4_1},
    {"Q5_0", 6, 32, 22, DTYPE_Q5_0},
    {"Q5_1", 7, 32, 24, DTYPE_Q5_1},
    {"Q8_0", 8, 32, 34, DTYPE_Q8_0},
    {"Q8_1", 9, 32, 36, DTYPE_OTHER},
    {"Q2_K", 10, 256, 84, DTYPE_Q2_K},
    {"Q3_K", 11, 256, 110, DTYPE_Q3_K},
    {"Q4_K", 12, 256, 144, DTYPE_Q4_K},
    {"Q5_K", 13, 256, 176, DTYPE_Q5_K},
    {"Q6_K", 14, 256, 210, DTYPE_Q6_K},
    {"Q8_K", 15, 256, 292, DTYPE_OTHER},
    {"IQ2_XXS", 16, 256, 66, DTYPE_IQ2_XXS},
    {"IQ2_XS", 17, 256, 74, DTYPE_IQ2_XS},
    {"IQ3_XXS", 18, 256, 98, DTYPE_IQ3_XXS},
    {"IQ1_S", 19, 256, 50, DTYPE_IQ1_S},
    {"IQ4_NL", 20, 32, 18, DTYPE_IQ4_NL},
    {"IQ3_S", 21, 256, 110, DTYPE_IQ3_S},
    {"IQ2_S", 22, 256, 82, DTYPE_IQ2_S},
    {"IQ4_XS", 23, 256, 136, DTYPE_IQ4_XS},
    {"IQ1_M", 29, 256, 56, DTYPE_IQ1_M},
    {"TQ1_0", 34, 256, 54, DTYPE_TQ1_0},
    {"TQ2_0", 35, 256, 66, DTYPE_TQ2_0},
    {"MXFP4", 39, 32, 17, DTYPE_MXFP4},
    {"NVFP4", 40, 64, 36, DTYPE_GGUF_NVFP4},
    {"Q1_0", 41, 128, 18, DTYPE_OTHER},
    {"Q2_0", 42, 64, 18, DTYPE_OTHER},
    {"I8", 24, 1, 1, DTYPE_OTHER},
    {"I16", 25, 1, 2, DTYPE_OTHER},
    {"I32", 26, 1, 4, DTYPE_OTHER},
    {"I64", 27, 1, 8, DTYPE_OTHER},
    {"F64", 28, 1, 8, DTYPE_OTHER},
};

const char *gguf_supported_types(char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types && at < size; i++)
        if (tensor_types[i].dtype != DTYPE_OTHER)
            at += (size_t)snprintf(text + at, size - at, "%s%s", at ? ", " : "", tensor_types[i].name);
    return text;
}

static const size_t value_bytes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct list { /* a list of values or tensors. It grows while they are read, because the count in the header may be
                 wrong */
    void *items;
    size_t count, room;
};

struct gguf {
    vb_allocator allocator;
    char *path;
    struct mapping *mappings;
    char **files; /* names for messages */
    size_t num_files;
    struct list values, tensors;
};

struct cursor {
    struct gguf *g;
    const unsigned char *data;
    size_t size, at;
    const char *file;
    uint64_t alignment;
    vb_error *err;
};

/* ---- reading ---- */

static int cut_short(const struct cursor *c, const char *what)
{
    return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: its %zu bytes end within %s: it was cut short", c->file, c->size,
                   what);
}

static uint64_t little(const unsigned char *data, size_t size)
{
    uint64_t x = 0;
    for (size_t i = size; i-- > 0;)
        x = x << 8 | data[i];
    return x;
}

static int take_number(struct cursor *c, size_t size, const char *what, uint64_t *out)
{
    if (size > c->size - c->at)
        return cut_short(c, what);
    *out = little(c->data + c->at, size);
    c->at += size;
    return VB_OK;
}

static int take_text(struct cursor *c, const char *what, struct gguf_text *out)
{
    uint64_t n = 0;
    int rc = take_number(c, 8, what, &n);
    if (rc)
        return rc;
    if (n > c->size - c->at)
        return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: %s has a text of %llu bytes, of the file %zu are left", c->file,
                       what, (unsigned long long)n, c->size - c->at);
    *out = (struct gguf_text){(const char *)c->data + c->at, (size_t)n};
    c->at += (size_t)n;
    return VB_OK;
}

static int take_name(struct cursor *c, const char *what, struct gguf_text *out)
{
    int rc = take_text(c, what, out);
    int printable = !rc && out->size > 0 && out->size <= TENSOR_MAX_NAME;
    for (size_t i = 0; printable && i < out->size; i++)
        printable = out->s[i] >= 0x20 && out->s[i] < 0x7f;
    if (rc || printable)
        return rc;
    return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: the name of %s is empty, longer than %d bytes or not printable",
                   c->file, what, TENSOR_MAX_NAME);
}

static int append(struct cursor *c, struct list *l, const void *item, size_t size)
{
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        char *more = vb_alloc(&c->g->allocator, room, size);
        if (!more)
            return vb_fail(c->err, VB_NO_MEMORY, "%s: no memory for its header", c->file);
        if (l->count)
            memcpy(more, l->items, l->count * size);
        vb_free(&c->g->allocator, l->items);
        l->items = more;
        l->room = room;
    }
    memcpy((char *)l->items + l->count++ * size, item, size);
    return VB_OK;
}

/* ---- keys ---- */

static int by_text(struct gguf_text a, struct gguf_text b)
{
    int order = memcmp(a.s, b.s, min_size(a.size, b.size));
    return order ? order : a.size < b.size ? -1 : a.size > b.size;
}

static int by_key(const void *a, const void *b)
{
    return by_text(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

/* Checks the v->count items of an array and skips them. */
static int take_items(struct cursor *c, struct gguf_value *v, const char *what)
{
    struct gguf_text text;
    size_t bytes;
    int rc = VB_OK;
    v->data = c->data + c->at;
    if (v->type == GGUF_STRING) {
        for (uint64_t i = 0; !rc && i < v->count; i++) /* a wrong count ends this loop at the end of the file, since
                                                          each item has at least eight bytes */
            rc = take_text(c, what, &text);
    } else if (__builtin_mul_overflow((size_t)v->count, value_bytes[v->type], &bytes) || bytes > c->size - c->at) {
        return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: %s has %llu items, which its %zu bytes do not hold", c->file,
                       what, (unsigned long long)v->count, c->size);
    } else {
        c->at += bytes;
    }
    v->end = c->data + c->at;
    return rc;
}

static int take_value(struct cursor *c, struct gguf_value *v)
{
    char what[TENSOR_MAX_NAME + 1];
    uint64_t type = 0;
    int rc;
    *v = (struct gguf_value){.count = 1};
    if ((rc = take_name(c, "a key", &v->key)))
        return rc;
    snprintf(what, sizeof what, "%.*s", (int)v->key.size, v->key.s);
    if ((rc = take_number(c, 4, what, &type)))
        return rc;
    v->is_array = type == GGUF_ARRAY;
    if (v->is_array && ((rc = take_number(c, 4, what, &type)) || (rc = take_number(c, 8, what, &v->count))))
        return rc;
    if (type >= GGUF_TYPES)
        return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: %s has type %llu, which GGUF does not have", c->file, what,
                       (unsigned long long)type);
    if (type == GGUF_ARRAY)
        return vb_fail(c->err, VB_UNSUPPORTED, "%s: %s is an array of arrays, which is not supported", c->file, what);
    v->type = (enum gguf_type)type;
    if ((rc = take_items(c, v, what)))
        return rc;
    if (v->type == GGUF_BOOL && !v->is_array && *v->data > 1)
        return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: %s is a boolean of value %d", c->file, what, *v->data);
    return VB_OK;
}

static const struct gguf_value *find_value(const struct list *values, const char *key)
{
    struct gguf_value wanted = {.key = {key, strlen(key)}};
    return values->count ? bsearch(&wanted, values->items, values->count, sizeof wanted, by_key) : NULL;
}

/* Reads `count` keys into *values and sorts them. A key that occurs twice is an error. Sets c->alignment, which is 32
 * if the file has no key for it. */
static int take_values(struct cursor *c, struct list *values, uint64_t count)
{
    struct gguf_value v;
    int64_t alignment = 32;
    int rc = VB_OK;
    for (uint64_t i = 0; !rc && i < count; i++)
        if (!(rc = take_value(c, &v)))
            rc = append(c, values, &v, sizeof v);
    if (rc)
        return rc;
    const struct gguf_value *all = values->items, *given;
    if (values->count)
        qsort(values->items, values->count, sizeof v, by_key);
    for (size_t i = 1; i < values->count; i++)
        if (!by_key(&all[i - 1], &all[i]))
            return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: the key %.*s is there twice", c->file, (int)all[i].key.size,
                           all[i].key.s);
    if ((given = find_value(values, "general.alignment")) &&
        (!gguf_integer(given, &alignment) || alignment < 1 || (alignment & (alignment - 1))))
        return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: general.alignment is no power of two", c->file);
    c->alignment = (uint64_t)alignment;
    return VB_OK;
}

/* ---- tensors ---- */

static int by_name(const void *a, const void *b)
{
    return by_text(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static int complain(const struct cursor *c, const struct gguf_tensor *t, const char *what)
{
    return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: %.*s %s", c->file, (int)t->name.size, t->name.s, what);
}

static int take_shape(struct cursor *c, struct gguf_tensor *t)
{
    uint64_t ndim = 0, extent = 0;
    int rc = take_number(c, 4, "a tensor's info", &ndim);
    if (rc)
        return rc;
    if (ndim < 1 || ndim > TENSOR_MAX_DIMS)
        return complain(c, t, "has not one to four dimensions");
    t->ndim = (int)ndim;
    for (int d = t->ndim - 1; d >= 0; d--) { /* in the file, the innermost extent comes first */
        if ((rc = take_number(c, 8, "a tensor's info", &extent)))
            return rc;
        if (!extent || extent > INT64_MAX)
            return complain(c, t, "has an extent of 0 or more than 63 bits");
        t->shape[d] = (int64_t)extent;
    }
    return VB_OK;
}

/* Reads the type of a tensor, and computes the tensor's size in bytes from type and shape. */
static int take_type(struct cursor *c, struct gguf_tensor *t)
{
    uint64_t id = 0;
    size_t row = (size_t)t->shape[t->ndim - 1];
    int rc = take_number(c, 4, "a tensor's info", &id);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++)
        if (tensor_types[i].id == id)
            t->type = &tensor_types[i];
    if (!t->type)
        return vb_fail(c->err, VB_UNSUPPORTED, "%s: %.*s has the type of number %llu, which is not known", c->file,
                       (int)t->name.size, t->name.s, (unsigned long long)id);
    if (row % t->type->numbers)
        return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: %.*s has rows of %zu numbers, %s has blocks of %u", c->file,
                       (int)t->name.size, t->name.s, row, t->type->name, t->type->numbers);
    t->bytes = row / t->type->numbers;
    int overflow = __builtin_mul_overflow(t->bytes, (size_t)t->type->bytes, &t->bytes);
    for (int d = 0; d + 1 < t->ndim; d++)
        overflow |= __builtin_mul_overflow(t->bytes, (size_t)t->shape[d], &t->bytes);
    return overflow ? complain(c, t, "has more bytes than 64 bits hold") : VB_OK;
}

/* Reads the info of a tensor. The place of the data section is not known yet. Until then, t->data is the start of the
 * file plus the offset in the data section. */
static int take_tensor(struct cursor *c, struct gguf_tensor *t)
{
    uint64_t offset = 0;
    int rc;
    *t = (struct gguf_tensor){.file = c->file};
    if ((rc = take_name(c, "a tensor", &t->name)) || (rc = take_shape(c, t)) || (rc = take_type(c, t)) ||
        (rc = take_number(c, 8, "a tensor's info", &offset)))
        return rc;
    if (offset % c->alignment)
        return vb_fail(c->err, VB_BAD_CHECKPOINT,
                       "%s: %.*s begins at byte %llu of the data, which is no multiple of %llu", c->file,
                       (int)t->name.size, t->name.s, (unsigned long long)offset, (unsigned long long)c->alignment);
    if (offset > c->size || t->bytes > c->size - offset)
        return vb_fail(c->err, VB_BAD_CHECKPOINT,
                       "%s: %.*s takes %zu bytes from byte %llu of the data on, the file has %zu: it was "
                       "cut "
                       "short",
                       c->file, (int)t->name.size, t->name.s, t->bytes, (unsigned long long)offset, c->size);
    t->data = c->data + offset;
    return VB_OK;
}

/* Sets the address of each tensor, and checks that nothing but padding is between the tensors. If bytes belong to no
 * tensor or to two tensors, the header does not fit the data. */
static int place_tensors(const struct cursor *c, struct gguf_tensor *t, size_t count)
{
    uint64_t begin = c->at + (c->alignment - c->at % c->alignment) % c->alignment;
    const unsigned char *end = c->data;
    if (count)
        qsort(t, count, sizeof *t, by_place);
    for (size_t i = 0; i < count; i++) {
        if (t[i].data < end)
            return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: %.*s overlaps %.*s", c->file, (int)t[i].name.size,
                           t[i].name.s, (int)t[i - 1].name.size, t[i - 1].name.s);
        if ((size_t)(t[i].data - end) >= c->alignment)
            return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: there is a hole of %zu bytes before %.*s", c->file,
                           (size_t)(t[i].data - end), (int)t[i].name.size, t[i].name.s);
        end = t[i].data + t[i].bytes;
        if (begin > c->size || (size_t)(end - c->data) > c->size - begin)
            return vb_fail(c->err, VB_BAD_CHECKPOINT,
                           "%s: %.*s ends at byte %zu of the data, the file holds %zu: it was cut "
                           "short",
                           c->file, (int)t[i].name.size, t[i].name.s, (size_t)(end - c->data),
                           begin > c->size ? 0 : c->size - (size_t)begin);
    }
    for (size_t i = 0; i < count; i++)
        t[i].data += begin;
    return VB_OK;
}

/* ---- files ---- */

static int take_header(struct cursor *c, uint64_t *tensors, uint64_t *keys)
{
    uint64_t version = 0;
    int rc;
    if (c->size < 4 || memcmp(c->data, "GGUF", 4))
        return vb_fail(c->err, VB_BAD_CHECKPOINT, "%s: it does not begin with \"GGUF\": it is no GGUF file", c->file);
    c->at = 4;
    if ((rc = take_number(c, 4, "the header", &version)))
        return rc;
    if (version == 0x03000000)
        return vb_fail(c->err, VB_UNSUPPORTED, "%s: it is a big-endian GGUF file, which is not supported", c->file);
    if (version != 3)
        return vb_fail(c->err, VB_UNSUPPORTED, "%s: it is GGUF of version %llu, only version 3 is supported", c->file,
                       (unsigned long long)version);
    if ((rc = take_number(c, 8, "the header", tensors)) || (rc = take_number(c, 8, "the header", keys)))
        return rc;
    return VB_OK;
}

/* Reads the header of one file. Its keys are added to *values, and its tensors are appended to c->g->tensors. */
static int take_file(struct cursor *c, struct list *values)
{
    uint64_t tensors = 0, keys = 0;
    size_t first = c->g->tensors.count, count;
    struct gguf_tensor t;
    int rc = take_header(c, &tensors, &keys);
    if (!rc)
        rc = take_values(c, values, keys);
    for (uint64_t i = 0; !rc && i < tensors; i++)
        if (!(rc = take_tensor(c, &t)))
            rc = append(c, &c->g->tensors, &t, sizeof t);
    count = c->g->tensors.count - first;
    return rc || !count ? rc : place_tensors(c, (struct gguf_tensor *)c->g->tensors.items + first, count);
}

/* The values of split.* in one file. A file without these keys is a set of one file. */
struct split {
    int64_t number, count, tensors;
};

static int read_split(const struct list *values, const char *file, struct split *s, vb_error *err)
{
    const struct gguf_value *number = find_value(values, "split.no"), *count = find_value(values, "split.count");
    const struct gguf_value *tensors = find_value(values, "split.tensors.count");
    *s = (struct split){0, 1, -1};
    if ((number && !gguf_integer(number, &s->number)) || (count && !gguf_integer(count, &s->count)) ||
        (tensors && !gguf_integer(tensors, &s->tensors)) || s->number < 0 || s->count < 0 || s->count > MAX_FILES)
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: split.no, split.count or split.tensors.count is not a count", file);
    s->count += !s->count;
    return VB_OK;
}

static int no_memory(const struct gguf *g, vb_error *err)
{
    return vb_fail(err, VB_NO_MEMORY, "%s: no memory to open it", g->path);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Reads the header of file `index` of a set; g->files already has its name. Only the keys of the first file are
 * kept. */
static int take_part(struct gguf *g, const void *data, size_t size, size_t index, struct split *set, vb_error *err)
{
    struct cursor c = {.g = g, .data = data, .size = size, .file = g->files[index], .err = err};
    struct list others = {0};
    struct split s;
    int rc = take_file(&c, index ? &others : &g->values);
    if (!rc)
        rc = read_split(index ? &others : &g->values, c.file, &s, err);
    if (!rc && !index)
        *set = s;
    if (!rc && (size_t)s.number != index)
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: it is file %lld of a set of %lld, wanted %s", c.file,
                     (long long)s.number + 1, (long long)s.count, index ? "what its name says" : "the first");
    if (!rc && s.count != set->count)
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: it is of a set of %lld files, %s of one of %lld", c.file,
                     (long long)s.count, g->files[0], (long long)set->count);
    vb_free(&g->allocator, others.items);
    return rc;
}

/* Called after all files have been read. Sorts the tensors by name. A name that occurs twice is an error. */
static int finish(struct gguf *g, const struct split *set, vb_error *err)
{
    struct gguf_tensor *t = g->tensors.items;
    if (g->tensors.count)
        qsort(t, g->tensors.count, sizeof *t, by_name);
    for (size_t i = 1; i < g->tensors.count; i++)
        if (!by_name(&t[i - 1], &t[i]))
            return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %.*s is there twice, also in %s", t[i].file,
                           (int)t[i].name.size, t[i].name.s, t[i - 1].file);
    if (set->tensors >= 0 && (size_t)set->tensors != g->tensors.count)
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: the set has %zu tensors, split.tensors.count says %lld",
                       g->files[0], g->tensors.count, (long long)set->tensors);
    return VB_OK;
}

static int create(struct gguf **out, const char *path, const vb_allocator *a, vb_error *err)
{
    struct gguf *g = vb_alloc(a, 1, sizeof *g);
    *out = NULL;
    if (!g)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory to open it", path);
    if (a)
        g->allocator = *a;
    if ((g->path = vb_strdup(a, path)) && (g->files = vb_alloc(a, 1, sizeof *g->files)) &&
        (g->files[0] = vb_strdup(a, base_name(path)))) {
        g->num_files = 1;
        *out = g;
        return VB_OK;
    }
    gguf_close(g);
    return vb_fail(err, VB_NO_MEMORY, "%s: no memory to open it", path);
}

int gguf_parse(struct gguf **out, const void *data, size_t size, const char *file, const vb_allocator *a, vb_error *err)
{
    struct split set;
    int rc = create(out, file, a, err);
    if (rc)
        return rc;
    if (!(rc = take_part(*out, data, size, 0, &set, err)) && set.count > 1)
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: it is one of %lld files", (*out)->files[0], (long long)set.count);
    if (!rc)
        rc = finish(*out, &set, err);
    if (rc) {
        gguf_close(*out);
        *out = NULL;
    }
    return rc;
}

static int open_part(struct gguf *g, const char *path, size_t index, struct split *set, vb_error *err)
{
    int rc = mapping_open(&g->mappings, path, g->files[index], "GGUF", &g->allocator, err);
    return rc ? rc : take_part(g, g->mappings->data, g->mappings->size, index, set, err);
}

/* Opens the other files of a set. They are in the directory of NAME-00001-of-0000N.gguf, and their names differ only in
 * the first number. */
static int open_others(struct gguf *g, struct split *set, vb_error *err)
{
    size_t n = strlen(g->path), count = (size_t)set->count;
    char ending[64], *path = vb_strdup(&g->allocator, g->path);
    char **files = vb_alloc(&g->allocator, count, sizeof *files);
    int rc = path && files ? VB_OK : no_memory(g, err);
    if (files) {
        files[0] = g->files[0];
        vb_free(&g->allocator, g->files);
        g->files = files;
    }
    snprintf(ending, sizeof ending, "-00001-of-%05zu.gguf", count);
    size_t m = strlen(ending);
    if (!rc && (n < m || strcmp(g->path + n - m, ending)))
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: it is the first of %zu files, and its name does not end in %s",
                     g->files[0], count, ending);
    for (size_t i = 1; !rc && i < count; i++) {
        snprintf(ending, sizeof ending, "-%05zu-of-%05zu.gguf", i + 1, count);
        memcpy(path + n - m, ending, m);
        if (!(g->files[i] = vb_strdup(&g->allocator, base_name(path))))
            rc = no_memory(g, err);
        g->num_files = i + 1;
        if (!rc)
            rc = open_part(g, path, i, set, err);
    }
    vb_free(&g->allocator, path);
    return rc;
}

int gguf_open(struct gguf **out, const char *path, const vb_allocator *a, vb_error *err)
{
    struct split set;
    int rc = create(out, path, a, err);
    if (rc)
        return rc;
    if (!(rc = open_part(*out, path, 0, &set, err)) && set.count > 1)
        rc = open_others(*out, &set, err);
    if (!rc)
        rc = finish(*out, &set, err);
    if (rc) {
        gguf_close(*out);
        *out = NULL;
    }
    return rc;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    vb_allocator a = g->allocator;
    mapping_close_all(&g->mappings, &a);
    for (size_t i = 0; g->files && i < g->num_files; i++)
        vb_free(&a, g->files[i]);
    vb_free(&a, g->files);
    vb_free(&a, g->values.items);
    vb_free(&a, g->tensors.items);
    vb_free(&a, g->path);
    vb_free(&a, g);
}

/* ---- asking: gguf_value.c has the rest ---- */

const char *gguf_path(const struct gguf *g) { return g->path; }
const char *gguf_name(const struct gguf *g) { return g->files[0]; }
size_t gguf_keys(const struct gguf *g) { return g->values.count; }
const struct gguf_value *gguf_key(const struct gguf *g, size_t i) { return (struct gguf_value *)g->values.items + i; }
const struct gguf_value *gguf_find(const struct gguf *g, const char *key) { return find_value(&g->values, key); }
size_t gguf_tensors(const struct gguf *g) { return g->tensors.count; }
const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i)
{
    return (struct gguf_tensor *)g->tensors.items + i;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct gguf_tensor wanted = {.name = {name, strlen(name)}};
    return g->tensors.count ? bsearch(&wanted, g->tensors.items, g->tensors.count, sizeof wanted, by_name) : NULL;
}

struct mapping *gguf_take_mappings(struct gguf *g)
{
    struct mapping *m = g->mappings;
    g->mappings = NULL;
    return m;
}
