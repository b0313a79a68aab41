/* ops/cuda/cublas.h -- cuBLAS, NVIDIA's library of matrix products, for ops/cuda/driver.c.
 *
 * The library is opened when it is asked for: libcublas.so.13, .12 or .11, the first one that can be used. Nothing of
 * CUDA is linked. The order of its sums is its own, so its results have other bits than docs/ARITHMETIC.md defines.
 * They may change with its version and with the kind of GPU. */
#ifndef VB_CUBLAS_H
#define VB_CUBLAS_H

#include "ops/cuda/device.h"

struct cublas;

/* cuBLAS works in this stream, with this memory of the device. The GPU's context is the thread's present one. Returns
 * NULL after it has written a sentence. */
struct cublas *cublas_open(void *stream, void *memory, size_t bytes, char *message, size_t size);
void cublas_close(struct cublas *c); /* NULL is allowed */
/* Returns NULL, or what cuBLAS says about its failure. */
const char *cublas_gemm(const struct cublas *c, const struct gemm *g);

#endif
