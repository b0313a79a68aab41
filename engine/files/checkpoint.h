/* engine/files/checkpoint.h -- the files of a checkpoint: safetensors or GGUF, one or many, mapped; copied is only what a GGUF file
 * holds in another order than it is used (checkpoint_gguf.c). Names are those of the Hugging Face layout.
 *
 * A checkpoint knows names, shapes, dtypes and bytes; engine/model knows what they mean. Every tensor is consumed
 * exactly once (checkpoint_take) or explained (checkpoint_ignore): what is left over is an error of the load report. */
#ifndef VB_CHECKPOINT_H
#define VB_CHECKPOINT_H

#include "engine/base/support.h"

enum dtype { /* the order of enum weight_type; from Q8_0 on in GGUF files only */
    DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3,
    DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
    DTYPE_OTHER
};
static inline int dtype_is_quantised(enum dtype dtype) { return dtype >= DTYPE_Q8_0 && dtype < DTYPE_OTHER; }

#define TENSOR_MAX_DIMS 4
#define TENSOR_MAX_NAME 255

struct tensor {
    const char *name;
    enum dtype dtype;
    char dtype_name[16];           /* as written in the file: "BF16", "I64" */
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS];
    const void *data;              /* in the mapping or a copy, at any address; NULL for a list without weights */
    size_t bytes;
    const char *file;              /* the shard's name, for messages */
    int taken;                     /* how often it was consumed */
    int copied;                    /* what is read of it from now on is a copy of the model's */
    const char *ignored;           /* why it is not used, or NULL */
};

struct checkpoint;

/* `dir` is a directory, or a GGUF file (gguf.h). In a directory:
 * DIR/model.safetensors, or else the shards of DIR/model.safetensors.index.json (its weight_map and the shards' headers
 * must agree, both ways). Memory-maps each file read-only; nothing is read but headers. A missing or truncated shard,
 * overlapping or out-of-range offsets, a byte count that differs from shape * dtype, a duplicate name are errors naming
 * file and tensor. A file that another program cuts short while it is mapped ends the process with SIGBUS. */
int checkpoint_open(struct checkpoint **out, const char *dir, const vb_allocator *a, vb_error *err);

/* A checkpoint of names, dtypes and shapes without data: for a test that binds the published list of DeepSeek-R1.
 * Names and file names are copied. */
int checkpoint_from_list(struct checkpoint **out, const struct tensor *list, size_t count, const vb_allocator *a,
                         vb_error *err);
void checkpoint_close(struct checkpoint *c);

/* The tensor of this name, or NULL. By hash; a hundred thousand names are looked up in a few milliseconds. */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);
/* Finds and marks as consumed; NULL when there is none; a second time is a bug (assert). */
const struct tensor *checkpoint_take(struct checkpoint *c, const char *name);
/* Marks as explained: `why` is a string constant. */
void checkpoint_ignore(struct checkpoint *c, const struct tensor *t, const char *why);

/* Marks as copied, see struct tensor. */
void checkpoint_set_copied(struct checkpoint *c, const struct tensor *t);
/* Lets the pages of these bytes go, if they are mapped: they are no longer counted as this process's memory, and come back
 * when they are read again. */
void checkpoint_release(const struct checkpoint *c, const void *data, size_t bytes);

/* Locks the mappings into memory until they are closed, without the tensors that are copied; and `more` bytes of the model's.
 * All or none. An error names RLIMIT_MEMLOCK when that is why. */
int checkpoint_lock(const struct checkpoint *c, const void *copies, size_t more, vb_error *err);
void checkpoint_unlock(const void *copies, size_t more); /* those, before they are freed */

size_t checkpoint_count(const struct checkpoint *c);
const struct tensor *checkpoint_at(const struct checkpoint *c, size_t i); /* sorted by name */
/* The tensors whose names begin with `prefix` are *first .. *first + the result - 1 of that order. */
size_t checkpoint_with_prefix(const struct checkpoint *c, const char *prefix, size_t *first);
const char *checkpoint_dir(const struct checkpoint *c); /* "the list" for a list */
size_t checkpoint_copied(const struct checkpoint *c);   /* bytes of the tensors that are not mapped */

/* A checksum of names, types and shapes of all tensors, of all bytes of vectors (which opening a model reads anyway), and of
 * 64 bytes at each of 256 places that are spread evenly over the matrices. It costs milliseconds, and 256 reads where nothing was
 * read yet. It differs for a model trained further, of another size or another quantisation; an edit of a few numbers inside one
 * matrix may leave it as it is. */
uint64_t checkpoint_fingerprint(const struct checkpoint *c);

/* The header of one safetensors file, from memory: `data` are the file's first bytes, `size` of `file_size` in all.
 *
 *     8 bytes: n, little-endian | n bytes: JSON {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, ...} | data
 *
 * Calls `each` for every tensor, in the order of the data, with offsets relative to the file's start in begin and end,
 * after all of them were found to cover the data exactly: no overlap, no hole, nothing after the last.
 * `each` returns 0 or a negative code that ends the parse. `__metadata__` is skipped. */
struct safetensors_entry {
    struct tensor tensor; /* name (valid during the call), dtype, shape, bytes; data NULL, file as given */
    size_t begin, end;
};
int safetensors_parse(const char *data, size_t size, size_t file_size, const char *file,
                      int (*each)(void *context, const struct safetensors_entry *e, vb_error *err), void *context,
                      const vb_allocator *a, vb_error *err);

#endif
