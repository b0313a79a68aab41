/* engine/files/checkpoint.h -- the tensors of a checkpoint, stored in one or more safetensors or GGUF files.
 *
 * Files are memory-mapped. Only some matrices of GGUF files are copied, because attention needs them transposed
 * (checkpoint_gguf.c). Tensors of GGUF files get the names that they have in the Hugging Face layout.
 *
 * A checkpoint knows the name, shape, dtype and bytes of each tensor; engine/model knows their meaning. When the engine
 * opens a model, it uses each tensor exactly once (checkpoint_take), or records why the tensor is not used
 * (checkpoint_ignore). If the engine does neither for a tensor, opening the model fails. */
#ifndef VB_CHECKPOINT_H
#define VB_CHECKPOINT_H

#include "engine/base/support.h"

enum dtype { /* in the order of enum weight_type (simd/kernels.h); I4 and F4 are packed codes of 4 bits;
              Q8_0 and the types after it occur only in GGUF files */
             DTYPE_F32,
             DTYPE_F16,
             DTYPE_BF16,
             DTYPE_F8_E4M3,
             DTYPE_I4,
             DTYPE_F4,
             DTYPE_I8,
             DTYPE_Q8_0,
             DTYPE_Q4_0,
             DTYPE_Q5_0,
             DTYPE_Q5_1,
             DTYPE_Q4_K,
             DTYPE_Q5_K,
             DTYPE_Q6_K,
             DTYPE_MXFP4,
             DTYPE_IQ2_XXS,
             DTYPE_IQ2_XS,
             DTYPE_IQ2_S,
             DTYPE_IQ3_XXS,
             DTYPE_IQ3_S,
             DTYPE_IQ1_S,
             DTYPE_IQ1_M,
             DTYPE_TQ1_0,
             DTYPE_TQ2_0,
             DTYPE_Q4_1,
             DTYPE_IQ4_NL,
             DTYPE_IQ4_XS,
             DTYPE_Q3_K,
             DTYPE_Q2_K,
             DTYPE_GGUF_NVFP4,
             DTYPE_OTHER
};
static inline int dtype_is_quantized(enum dtype dtype) { return dtype >= DTYPE_Q8_0 && dtype < DTYPE_OTHER; }

#define TENSOR_MAX_DIMS 4
#define TENSOR_MAX_NAME 255

struct tensor {
    const char *name;
    enum dtype dtype;
    char dtype_name[16];           /* the dtype as the file names it, for example "BF16" or "I64"; "I4" or "F4" for
                                      packed codes */
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS];
    const void *data;              /* in the mapping or in a copy, maybe not aligned; NULL if the checkpoint has no
                                      weights */
    size_t bytes;
    const char *file;              /* name of the file that stores the tensor, for messages */
    int taken;                     /* how often checkpoint_take returned it: 0 or 1 */
    int copied;                    /* 1: the model has made its own copy and no longer reads `data` */
    const char *ignored;           /* the reason why the tensor is not used, or NULL */
};

struct checkpoint;

/* Opens a checkpoint. `dir` is a GGUF file (gguf.h), or a directory with model.safetensors or with shards that
 * model.safetensors.index.json lists. If a directory has both, model.safetensors is used. If it has neither,
 * consolidated.safetensors or the shards of consolidated.safetensors.index.json are opened, which are the names of
 * Mistral's own files; or else files with the names of ModelSlim (checkpoint.c).
 *
 * Each file is memory-mapped read-only, and only its header is read. The function returns an error, with a message that
 * names the file and the tensor, in these cases: a shard is missing or cut short; offsets overlap or lie outside the
 * file; a byte count does not follow from shape and dtype; a name occurs twice; weight_map in the index differs from
 * the shards' headers.
 *
 * If another program shortens a mapped file, the next read of the missing part raises SIGBUS and ends the process. */
int checkpoint_open(struct checkpoint **out, const char *dir, const vb_allocator *a, vb_error *err);

/* Returns whether `dir` has one of the files that checkpoint_open opens. */
int checkpoint_is_there(const char *dir);

/* Does what checkpoint_open does, but also opens a single safetensors file: if `dir` is a file that does not begin with
 * "GGUF", it is read as safetensors. */
int checkpoint_open_tensors(struct checkpoint **out, const char *dir, const vb_allocator *a, vb_error *err);
/* Sets *out to the entry __metadata__ if the checkpoint is a single safetensors file that has this entry, and else to
 * NULL. The caller releases *out with json_decref. */
struct json_t;
int checkpoint_metadata(const struct checkpoint *c, struct json_t **out, vb_error *err);

/* Creates a checkpoint from a list of names, dtypes and shapes, without any weights. A test uses this to open a model
 * from the published tensor list of DeepSeek-R1. Tensor and file names are copied. */
int checkpoint_from_list(struct checkpoint **out, const struct tensor *list, size_t count, const vb_allocator *a,
                         vb_error *err);
void checkpoint_close(struct checkpoint *c);

/* Returns the tensor of this name, or NULL. The function uses a hash table: 100,000 lookups take a few milliseconds. */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);
/* Returns the tensor of this name and marks it as used, or returns NULL. A caller must not take a tensor twice; an
 * assert checks this. */
const struct tensor *checkpoint_take(struct checkpoint *c, const char *name);
/* Records why a tensor is not used. `why` is a string constant, which is not copied. */
void checkpoint_ignore(struct checkpoint *c, const struct tensor *t, const char *why);

/* Sets the field `copied` of a tensor, see struct tensor. */
void checkpoint_set_copied(struct checkpoint *c, const struct tensor *t);
/* Releases the mapped pages of these bytes (MADV_DONTNEED), so that they no longer count as memory of this process. The
 * kernel reads them again at the next access. Memory that is not mapped from a file is left alone. */
void checkpoint_release(const struct checkpoint *c, const void *data, size_t bytes);

/* Turns the kernel's read-ahead for the mapped files off (MADV_RANDOM: it reads only the pages that are used) or on
 * again. It is on after checkpoint_open. */
void checkpoint_read_ahead(const struct checkpoint *c, int on);
/* Lets the kernel read these bytes into the page cache (MADV_WILLNEED), and does not wait for them. Nothing is read
 * that is in the page cache already. Errors are ignored: the bytes are then read when they are used. Memory that is not
 * mapped from a file is left alone. */
void checkpoint_prefetch(const struct checkpoint *c, const void *data, size_t bytes);

/* Locks into memory (mlock) all mapped tensors that the model has not copied, and the `more` bytes at `copies`, which
 * are the model's copies. Mappings stay locked until checkpoint_close. If anything cannot be locked, nothing stays
 * locked, and the error message says whether the limit RLIMIT_MEMLOCK is the cause. */
int checkpoint_lock(const struct checkpoint *c, const void *copies, size_t more, vb_error *err);
void checkpoint_unlock(const void *copies, size_t more); /* unlocks the model's copies; to be called before they are
                                                            freed */

size_t checkpoint_count(const struct checkpoint *c);
const struct tensor *checkpoint_at(const struct checkpoint *c, size_t i); /* tensor i in the order of names */
/* Returns how many tensors have names that begin with `prefix`. These tensors are consecutive in the order of names,
 * and *first is the index of the first of them. */
size_t checkpoint_with_prefix(const struct checkpoint *c, const char *prefix, size_t *first);
const char *checkpoint_dir(const struct checkpoint *c); /* checkpoint_open's path, or "the list" after
                                                           checkpoint_from_list */
size_t checkpoint_copied(const struct checkpoint *c);   /* bytes of tensors that checkpoint_open had to copy */

/* Returns a checksum that distinguishes checkpoints, without reading all bytes of the checkpoint. The checksum covers
 * the names, types and shapes of all tensors, all bytes of vectors (which opening a model reads anyway), and 64 bytes
 * at each of 256 places that are spread evenly over the matrices. If the files are in the page cache, the computation
 * takes milliseconds. Otherwise it takes 256 disk reads. The checksum differs for a model that was trained further, has
 * another size or is quantized in another way. The checksum may be the same if only a few numbers of one matrix
 * differ. */
uint64_t checkpoint_fingerprint(const struct checkpoint *c);
/* Returns a hash of the sizes of the files and of the times of their last change. */
uint64_t checkpoint_stamp(const struct checkpoint *c);

/* Parses the header of a safetensors file. The file has `file_size` bytes, and its first `size` bytes are at `data`. A
 * safetensors file has three parts:
 *
 *     8 bytes: n, little-endian | n bytes: JSON {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, ...} | data
 *
 * First all tensors are checked: they must cover the data exactly, without an overlap, without a hole, and without
 * bytes after the last tensor. Then `each` is called for every tensor, in the order of the data. If `each` returns a
 * negative error code, safetensors_parse stops and returns this code. The entry `__metadata__` is skipped. `file` is
 * the name for error messages. */
struct safetensors_entry {
    struct tensor tensor; /* name (valid only during the call), dtype, shape, bytes and file are set; data is NULL */
    size_t begin, end;    /* where the tensor's bytes begin and end, counted from the start of the file */
};
int safetensors_parse(const char *data, size_t size, size_t file_size, const char *file,
                      int (*each)(void *context, const struct safetensors_entry *e, vb_error *err), void *context,
                      const vb_allocator *a, vb_error *err);

/* Finds a dtype by the name that safetensors files have for it. Returns the size of one number in bytes, or 0 if
 * safetensors files have no such dtype. *dtype is DTYPE_OTHER if no operator reads the dtype, or if there is no such
 * dtype. */
size_t safetensors_dtype(const char *name, enum dtype *dtype);

#endif
