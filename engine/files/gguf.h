/* engine/files/gguf.h -- reads and checks the header of GGUF files, version 3.
 *
 * Values and tensors point into the mapped files; nothing is copied. All numbers in a file are little-endian:
 *
 *     "GGUF" | u32 version | u64 number of tensors | u64 number of keys | keys | tensor infos | padding | data
 *
 * These parts have the following formats:
 *
 *     text: u64 number of bytes | the bytes
 *
 *     key: text (its name) | u32 type | value, which for an array is: u32 type of the items | u64 count | items
 *
 *     tensor info: text (its name) | u32 dimensions | u64 extents, innermost first | u32 type | u64 offset in the data
 *
 * The start of the data and every offset in it are multiples of the value of the key general.alignment. If the file has
 * no such key, the start and the offsets are multiples of 32. A model may consist of a set of files, named
 * NAME-00001-of-0000N.gguf and so on. The first file has the metadata, and every file has some of the tensors. In each
 * file of a set, the key split.no is the number of the file and split.count is the number of files. The files
 * config_gguf.c, checkpoint_gguf.c and text/gguf.c interpret the contents. */
#ifndef VB_GGUF_H
#define VB_GGUF_H

#include "engine/files/checkpoint.h"

enum gguf_type { /* types of metadata values, with the numbers that the file format gives them */
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
    GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPES
};

struct gguf_text { /* a string in the mapped file; no 0 byte ends it */
    const char *s;
    size_t size;
};

struct gguf_value {
    struct gguf_text key; /* only printable characters */
    enum gguf_type type;  /* type of the value; for an array, the type of its items */
    int is_array;
    uint64_t count; /* number of items; 1 for a single value */
    const unsigned char *data, *end;
};

struct gguf_tensor {
    struct gguf_text name; /* only printable characters, at most TENSOR_MAX_NAME bytes */
    const struct gguf_tensor_type *type;
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS]; /* outermost extent first, the reverse of the file's order; each at least 1 */
    const unsigned char *data;
    size_t bytes;
    const char *file;
};

/* How a tensor stores its numbers. Each row consists of blocks, and a block holds `numbers` numbers in `bytes`
 * bytes. */
struct gguf_tensor_type {
    const char *name;
    unsigned id, numbers, bytes;
    enum dtype dtype; /* DTYPE_OTHER: Verbatim has no kernels for this type */
};

/* A key of Verbatim's own, for index_share_for_mtp_iteration of config.json, because GGUF has none. BOOL; missing:
 * false. */
#define GGUF_INDEX_SHARE "verbatim.index_share_for_mtp_iteration"

/* Returns the tensor types that Verbatim has kernels for, as "F32, F16, ...". */
const char *gguf_supported_types(char *text, size_t size);

struct gguf;

/* Returns 1 if `path` is treated as a GGUF file: it is a regular file, or nothing exists there and the name ends in
 * ".gguf". */
int gguf_is_path(const char *path);

/* Opens a GGUF file; if it is the first file of a set, opens the whole set. Only headers are read. The function checks
 * counts, lengths, types, extents and offsets. It finds tensors that occur twice, overlap, leave a hole, or end beyond
 * the file. It also finds files of a set that are missing or belong to another set.
 *
 * Returns VB_UNSUPPORTED if the file is big-endian, has another version than 3, or has an array of arrays or an unknown
 * type of tensor. Returns VB_BAD_CHECKPOINT for every other fault of a header. The message names the file and the key
 * or tensor. */
int gguf_open(struct gguf **out, const char *path, const vb_allocator *a, vb_error *err);
/* Parses the bytes of one GGUF file, which must not be part of a set. The caller must keep `data` until gguf_close. */
int gguf_parse(struct gguf **out, const void *data, size_t size, const char *file, const vb_allocator *a,
               vb_error *err);
void gguf_close(struct gguf *g);

const char *gguf_path(const struct gguf *g); /* the path given to gguf_open */
const char *gguf_name(const struct gguf *g); /* the name of the file (of the first file of a set), for messages */
/* Returns the mappings and hands their ownership to the caller. checkpoint_from_gguf calls this, because the tensors of
 * a checkpoint point into the mappings. */
struct mapping *gguf_take_mappings(struct gguf *g);

const struct gguf_value *gguf_find(const struct gguf *g, const char *key); /* returns NULL if there is no such key */
size_t gguf_keys(const struct gguf *g);
const struct gguf_value *gguf_key(const struct gguf *g, size_t i); /* key i, sorted by name */
size_t gguf_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i); /* tensor i, sorted by name */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* returns NULL if there is none */

/* Each of the next four functions reads a single value. The result is 1, or 0 if v is NULL or has another type.
 * gguf_integer accepts integers of every width. gguf_real accepts floats and integers, and returns the value times
 * 10^shift (shift >= 0).
 *
 * A 32-bit float in a file was usually converted from a decimal number. Therefore gguf_real returns the shortest
 * decimal number that rounds to the float. For example, the float nearest to 0.707 has the exact value
 * 0.70700001716613769531, and gguf_real returns 0.707 for it. */
int gguf_integer(const struct gguf_value *v, int64_t *out);
int gguf_real(const struct gguf_value *v, int shift, double *out);
int gguf_bool(const struct gguf_value *v, int *out);
int gguf_string(const struct gguf_value *v, struct gguf_text *out);
/* Returns item i of an array of integers or booleans. */
int64_t gguf_item(const struct gguf_value *v, uint64_t i);
/* Returns the string at *at in an array of strings and advances *at to the next one. Set *at to v->data before the
 * first call. */
struct gguf_text gguf_next_string(const unsigned char **at);
/* Returns the name of the value's type for messages: "U32", "array of STRING", or "missing" if v is NULL. */
const char *gguf_show_type(const struct gguf_value *v, char text[32]);

/* Creates a checkpoint from an open GGUF file (defined in checkpoint_gguf.c). Tensors get their names in the Hugging
 * Face layout. On success, the mappings of g belong to the checkpoint. The caller closes g in every case; after a
 * failure, no mapping is left then. */
int checkpoint_from_gguf(struct checkpoint **out, struct gguf *g, const vb_allocator *a, vb_error *err);

#endif
