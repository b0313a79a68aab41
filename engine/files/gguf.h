/* engine/files/gguf.h -- GGUF, version 3: a file's metadata and tensors, checked and pointed at.
 *
 *     "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensor infos | padding | data              (little-endian)
 *
 *     text         u64 n | n bytes
 *     key          text name | u32 type | value; an array is u32 item type | u64 count | items
 *     tensor info  text name | u32 ndim | u64 extents, innermost first | u32 type | u64 offset in the data
 *
 * The data and every offset in it are multiples of general.alignment (32 if not given). A model may be a set of files,
 * NAME-00001-of-0000N.gguf and so on: the first has the metadata, all have tensors, split.* says which is which.
 * Three readers understand what is in it: config_gguf.c, checkpoint_gguf.c, text/gguf.c. */
#ifndef VB_GGUF_H
#define VB_GGUF_H

#include "engine/files/checkpoint.h"

enum gguf_type { /* of a value, as the file numbers them */
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
    GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPES
};

struct gguf_text { /* in the file, not ended by a 0 */
    const char *s;
    size_t size;
};

struct gguf_value {
    struct gguf_text key; /* printable */
    enum gguf_type type;  /* of the value; of an array's items */
    int is_array;
    uint64_t count; /* of items; 1 for a single value */
    const unsigned char *data, *end;
};

struct gguf_tensor {
    struct gguf_text name; /* printable, at most TENSOR_MAX_NAME bytes */
    const struct gguf_tensor_type *type;
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS]; /* outermost first, as everywhere here; each at least 1 */
    const unsigned char *data;
    size_t bytes;
    const char *file;
};

/* Numbers lie in blocks along a row: `numbers` of them in `bytes`. dtype is DTYPE_OTHER for what has no kernels here. */
struct gguf_tensor_type {
    const char *name;
    unsigned id, numbers, bytes;
    enum dtype dtype;
};

struct gguf;

/* Whether MODEL is a GGUF file: a regular file, or a name that ends in .gguf and is no directory's. */
int gguf_is_path(const char *path);

/* Opens a file, or with the first file of a set all of it. Nothing is read but headers. All that is wrong with a header is
 * one sentence naming the file, and the key or tensor: counts, lengths, types, extents, offsets; tensors that are there
 * twice, overlap, leave a hole or end behind the file; files of a set that are missing or of another set. */
int gguf_open(struct gguf **out, const char *path, const vb_allocator *a, vb_error *err);
/* One file from memory, which must stay. */
int gguf_parse(struct gguf **out, const void *data, size_t size, const char *file, const vb_allocator *a, vb_error *err);
void gguf_close(struct gguf *g);

const char *gguf_path(const struct gguf *g); /* as given */
const char *gguf_name(const struct gguf *g); /* of the (first) file, for messages */
/* Gives the mappings away: to a checkpoint, whose tensors point into them. */
struct mapping *gguf_take_mappings(struct gguf *g);

const struct gguf_value *gguf_find(const struct gguf *g, const char *key); /* or NULL */
size_t gguf_keys(const struct gguf *g);
const struct gguf_value *gguf_key(const struct gguf *g, size_t i); /* sorted by name */
size_t gguf_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i); /* sorted by name */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* or NULL */

/* Single values: 1, or 0 when the value has another type. An integer of any width; a float or an integer. A 32-bit float
 * was a decimal once: it is taken as the shortest one that rounds to it, times 10^`shift` (from 0), so that the 0.707 of a config.json
 * is 0.707 again and not 0.70700001716613769531. */
int gguf_integer(const struct gguf_value *v, int64_t *out);
int gguf_real(const struct gguf_value *v, int shift, double *out);
int gguf_bool(const struct gguf_value *v, int *out);
int gguf_string(const struct gguf_value *v, struct gguf_text *out);
/* Item i of an array of integers. */
int64_t gguf_item(const struct gguf_value *v, uint64_t i);
/* The strings of an array one after the other: *at is v->data at first. */
struct gguf_text gguf_next_string(const unsigned char **at);
/* "U32", "array of STRING", "missing" for NULL. */
const char *gguf_show_type(const struct gguf_value *v, char text[32]);

/* checkpoint_gguf.c: the tensors under their names in the Hugging Face layout. Takes g's mappings. */
int checkpoint_from_gguf(struct checkpoint **out, struct gguf *g, const vb_allocator *a, vb_error *err);

#endif
