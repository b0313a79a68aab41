/* engine/verbatim_tensors.h -- reading and writing files of tensors; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_TENSORS_H
#define VERBATIM_TENSORS_H

#define VB_TENSOR_DIMS 4 /* the largest number of dimensions */

typedef struct vb_tensor {
    const char *name;
    const char *dtype; /* as safetensors files name it: "F32", "BF16", "F8_E4M3", "I64"; in GGUF files also "Q8_0", "Q4_K" ... */
    int32_t ndim;      /* number of dimensions; 0: the tensor is a single number */
    int64_t shape[VB_TENSOR_DIMS]; /* outermost dimension first */
    const void *data;  /* row-major and little-endian; the address need not be aligned */
    size_t bytes;
    const char *file;  /* the file that holds the tensor; vb_tensors_write does not read it */
    int quantised;     /* 1: the data are blocks of 32 or 256 numbers, as GGUF defines them */
} vb_tensor;

/* Opens the tensors at `path`: a safetensors file, a GGUF file of architecture deepseek2, or the directory of a checkpoint,
 * whose shards become one list. The tensors of a GGUF file get the names that they have in the Hugging Face layout. Files
 * are mapped, and only their headers are read. `allocator` may be NULL; otherwise it must outlive the tensors. Threads may
 * share the tensors.
 *
 * A missing file is VB_IO. VB_BAD_CHECKPOINT means that a header is invalid or does not fit the file. On an error *out is
 * NULL. */
typedef struct vb_tensors vb_tensors;
int vb_tensors_open(vb_tensors **out, const char *path, const vb_allocator *allocator, vb_error *err);
/* Unmaps the files; names and data become invalid. `tensors` may be NULL. */
void vb_tensors_close(vb_tensors *tensors);

/* Both fill *out with a tensor and return 1, or return 0 if there is no such tensor. `number` is counted from 0, in the order of
 * the names. The memory of name and data belongs to `tensors`. */
int vb_tensors_at(const vb_tensors *tensors, size_t number, vb_tensor *out);
int vb_tensors_find(const vb_tensors *tensors, const char *name, vb_tensor *out);
/* The value of `key` in the __metadata__ of a safetensors file, or NULL. If there are several files the result is NULL. */
const char *vb_tensors_metadata(const vb_tensors *tensors, const char *key);

/* Converts `count` numbers of a tensor to f32, from number `first` in row-major order on. The tensor's type may be F32, F16,
 * BF16, F8_E4M3, any quantised type that vb_model_open supports, F64, I64 or I32. The last three are rounded to f32. F8_E4M3
 * numbers are not multiplied by their scales, which are a tensor of their own. Another type is VB_UNSUPPORTED. A number
 * outside the tensor is VB_BAD_ARGUMENT. */
int vb_tensor_f32(const vb_tensor *tensor, size_t first, size_t count, float *out, vb_error *err);

/* Writes `count` tensors, in this order, as a safetensors file to `fd`, an empty file that is open for writing. `name` is the
 * file's name for error messages. `progress` may be NULL. The caller closes `fd`, and deletes an incomplete file after an
 * error.
 *
 * VB_BAD_ARGUMENT means that two tensors have the same name, that a name is not printable UTF-8 of 1 to 255 bytes, or that
 * `bytes` does not follow from shape and dtype. VB_UNSUPPORTED means that safetensors files have no such dtype. VB_IO means
 * that the file cannot be written. */
int vb_tensors_write(int fd, const char *name, const vb_tensor *tensors, size_t count, vb_progress_or_stop progress, void *context,
                     vb_error *err);

#endif
