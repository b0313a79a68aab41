/* ops/cuda/driver.h -- NVIDIA GPUs, through their driver.
 *
 * The driver's library, libcuda.so.1, is opened when a GPU is asked for. Nothing of CUDA is linked. The kernels are in
 * the program if it was built with `make CUDA=yes` (ops/cuda/image.c). */
#ifndef VB_CUDA_DRIVER_H
#define VB_CUDA_DRIVER_H

#include "ops/cuda/device.h"

/* Opens GPU number `number`, counted as CUDA counts them. The caller closes it with device_close. If it fails, it
 * returns NULL and writes a sentence to `message`. */
struct device *driver_open(int number, char *message, size_t size);

/* Returns whether a name is that of a GPU: "cuda", or "cuda:" and a number. Sets *number. */
int driver_parse(int *number, const char *name);

/* The fatbin with the kernels for all GPUs, or NULL if the program was built without them. */
const void *cuda_image(void);

#endif
