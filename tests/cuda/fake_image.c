/* tests/cuda/fake_image.c -- takes the place of ops/cuda/image.c: kernels that only the fake driver accepts
 * (fake_driver.c). */
#include "ops/cuda/driver.h"

const void *cuda_image(void) { return "none"; }
