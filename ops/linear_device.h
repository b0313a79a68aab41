/* ops/linear_device.h -- linear layers on a device (ops/cuda/device.h), for the operators in ops/.
 *
 * All addresses of arrays are the host's; the kernels use their twins. The arguments of the kernels that are started depend on shapes and
 * addresses alone. */
#ifndef VB_LINEAR_DEVICE_H
#define VB_LINEAR_DEVICE_H

#include "ops/linear.h"

/* Returns the view with addresses of the device. The matrix is not packed and does not consist of panels. */
struct weight_view device_view(struct device *d, const struct weight_view *w);

/* op_linears, for op_ctx.device. */
void device_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S);

#endif
