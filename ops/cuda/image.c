/* ops/cuda/image.c -- the kernels as nvcc has compiled them, if this program was built with `make CUDA=yes`. */
#include "ops/cuda/driver.h"

#ifdef VB_CUDA_IMAGE
__asm__(".section .rodata\n"
        ".balign 64\n"
        "vb_cuda_image:\n"
        ".incbin \"" VB_CUDA_IMAGE "\"\n"
        ".previous\n");
extern const char vb_cuda_image[];

const void *cuda_image(void) { return vb_cuda_image; }
#else
const void *cuda_image(void) { return NULL; }
#endif
