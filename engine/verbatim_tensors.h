/* engine/verbatim_tensors.h -- reading and writing files of tensors; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_TENSORS_H
#define VERBATIM_TENSORS_H

#define VB_TENSOR_DIMS 4 /* the largest number of dimensions */

typedef struct vb_tensor {
    const char *name;
    const char *dtype; /* the name that safetensors files use for the type: "F32", "BF16", "F8_E4M3", "I64"; in GGUF
                          files also "Q8_0", "Q4_K" ...; "I4", "F4": packed codes in a model's directory */
    int32_t ndim;      /* number of dimensions; 0: the tensor is a single number */
    int64_t shape[VB_TENSOR_DIMS]; /* outermost dimension first */
    const void *data;  /* row-major and little-endian; the address need not be aligned */
    size_t bytes;
    const char *file;  /* the file that holds the tensor; vb_tensors_write does not read it */
    int quantized;     /* 1: the data consist of blocks of 32 or 256 quantized numbers, as GGUF defines them */
    uint64_t reserved[2];
} vb_tensor;

/* Opens the tensors at `path`: a safetensors file, a GGUF file, or the directory of a checkpoint,
 * whose shards become one list. The tensors of a GGUF file get the names that they have in the Hugging Face layout.
 * Files are mapped, and only their headers are read. `allocator` may be NULL; otherwise it must outlive the tensors.
 * Threads may share the tensors.
 *
 * Returns VB_IO if a file is missing. Returns VB_BAD_CHECKPOINT if a header is invalid or does not fit its file. On an
 * error *out is NULL. */
typedef struct vb_tensors vb_tensors;
int vb_tensors_open(vb_tensors **out, const char *path, const vb_allocator *allocator, vb_error *err);
/* Unmaps the files. After that, the names and the data of the tensors are invalid. `tensors` may be NULL. */
void vb_tensors_close(vb_tensors *tensors);

/* vb_tensors_at finds the tensor with this number, and vb_tensors_find finds the tensor with this name. Both functions
 * fill *out and return 1. If there is no such tensor, they return 0. Tensors are numbered from 0 in the order of their
 * names. The memory of out->name and out->data belongs to `tensors`. */
int vb_tensors_at(const vb_tensors *tensors, size_t number, vb_tensor *out);
int vb_tensors_find(const vb_tensors *tensors, const char *name, vb_tensor *out);
/* Returns the value of `key` in the __metadata__ of a safetensors file. Returns NULL if the file has no such key, if it
 * is a GGUF file, or if there are several files. */
const char *vb_tensors_metadata(const vb_tensors *tensors, const char *key);

/* Converts `count` numbers of a tensor to f32. The first of them is number `first` of the tensor, counted from 0 in
 * row-major order. The tensor's type may be F32, F16, BF16, F8_E4M3, I8, I4, F4, any quantized type that vb_model_open
 * supports, F64, I64 or I32. Numbers of type F64, I64 and I32 are rounded to f32. Numbers of type F8_E4M3, I8, I4 (code
 * - 8) and F4 (E2M1) are not multiplied by their scales, because the scales are in another tensor. Returns
 *   VB_UNSUPPORTED if the tensor has another type.
 * Returns VB_BAD_ARGUMENT if the tensor has fewer than first + count numbers. */
int vb_tensor_f32(const vb_tensor *tensor, size_t first, size_t count, float *out, vb_error *err);

/* Writes a safetensors file with `count` tensors, in the order of the array. `fd` is an empty file that is open for
 * writing. Error messages call the file `name`. `progress` may be NULL. The caller closes `fd`. After an error, the
 * caller deletes the incomplete file.
 *
 * Returns VB_BAD_ARGUMENT if two tensors have the same name, if a name is not printable UTF-8 of 1 to 255 bytes, or if
 * a tensor's `bytes` does not fit its shape and dtype. Returns VB_UNSUPPORTED if the dtype of a tensor does not exist
 * in safetensors files. Returns VB_IO if the file cannot be written. */
int vb_tensors_write(int fd, const char *name, const vb_tensor *tensors, size_t count, vb_progress_or_stop progress,
                     void *context, vb_error *err);

#endif
