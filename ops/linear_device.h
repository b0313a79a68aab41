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

/* A matrix for each head: rows [h * w_step, h * w_step + rows) of w multiply x of head h. For s < S and n < rows,
 *
 *     y[s*ldy + h*y_step + n] = dot(row h*w_step + n of w, x[s*ldx + h*x_step ...])
 *
 * y and x are addresses of the device. x is f32, in natural order. For precision bf16, the caller has rounded it. A quantised w quantises it. */
struct device_heads {
    const struct weight_view *w;
    size_t heads, w_step, rows;
    float *y;
    size_t ldy, y_step;
    const float *x;
    size_t ldx, x_step;
};
void device_linear_heads(struct op_ctx *cx, const struct device_heads *p, size_t S);

#endif
