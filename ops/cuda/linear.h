/* ops/cuda/linear.h -- linear layers on a device: what other operators, and models, need of them.
 *
 * All addresses of arrays are the host's; the kernels use their twins. The arguments of the kernels that are started
 * depend on shapes and addresses alone. */
#ifndef VB_CUDA_LINEAR_H
#define VB_CUDA_LINEAR_H

#include "ops/cuda/device.h"
#include "ops/linear.h"

/* Returns the view with addresses of the device. The matrix is not packed and does not consist of panels. */
struct weight_view device_view(struct device *d, const struct weight_view *w);

/* Gives a twin to the table that kernels need for weights of this type, if there is one: the grid of an IQ type. The
 * program does this before it gives twins to weights, for each type that it has. Returns 0, or -1 if the device has no
 * memory. */
int device_add_tables(struct device *d, enum weight_type type);

/* A matrix for each head: rows [h * w_step, h * w_step + rows) of w multiply x of head h. For s < S and n < rows,
 *
 *     y[s*ldy + h*y_step + n] = dot(row h*w_step + n of w, x[s*ldx + h*x_step ...])
 *
 * y and x are addresses of the device. x is f32, in natural order. For precision bf16, the caller has rounded it. A
 * quantized w quantizes it. */
struct device_heads {
    const struct weight_view *w;
    size_t heads, w_step, rows;
    float *y;
    size_t ldy, y_step;
    const float *x;
    size_t ldx, x_step;
};
void cuda_linear_heads(struct op_ctx *cx, const struct device_heads *p, size_t S);

/* --- the steps of a linear layer --- */

/* Rows of x as kernels read them: addresses of the device. */
struct device_x {
    const float *rows;                    /* [S,K], rounded if precision bf16 wants this */
    const struct quantized_group *groups; /* [S,K/32], or NULL */
    size_t K, S;
    const uint16_t *narrow;               /* [S,K] in BF16, rows narrow_length(K) numbers apart, for matrices that are
                                             not quantized; or NULL */
    int tensor_cores;                     /* with `narrow`. 0: device_gemm multiplies it by W; else the kernels of
                                             ops/cuda/tensor.cu do */
};
/* Returns the bit of the form of x that w needs, as for op_take_packed. With cuBLAS or tensor cores, it is OP_BF16
 * unless w is quantized. */
unsigned device_form(const struct arithmetic *how, const struct weight_view *w);
/* Converts x [S,K] to the forms that are needed, in scratch memory (op_packed_scratch). */
struct device_x device_convert(struct op_ctx *cx, const struct arithmetic *how, unsigned forms, const float *x,
                               size_t S, size_t K);
/* y is an address of the device. */
struct matmul_part device_part(struct device *d, const struct weight_view *w, float *y, size_t ldy);
/* Which kernels multiply. */
enum device_family { BY_RULE_1, BY_RULE_2, BY_TENSOR_CORES, DEVICE_FAMILIES };
/* The number of rows of x in a tile, if x has S rows. */
size_t device_tile_rows(const struct device *d, size_t S, enum device_family family);
/* Tiles of experts: matmul_args explains the list. */
struct device_tiles {
    const struct expert_tile *list;
    const int32_t *x_row;
    size_t rows, count; /* rows: of a tile, a number that device_tile_rows returns for the matrices */
    size_t expert_step;
};
/* BF16 rows for device_gemm: the numbers from one row to the next, and the scratch memory of S rows. Row i is row
 * rows[i] of x [.,K], an address of the device, or row i if `rows` is NULL. */
static inline size_t narrow_length(size_t K) { return (K + 7) / 8 * 8; }
uint16_t *device_narrow(struct op_ctx *cx, const float *x, const int32_t *rows, size_t S, size_t K);
/* Multiplies a matrix that is not quantized by S such rows. */
void device_product(struct device *d, const struct matmul_part *part, const uint16_t *x, size_t S);
/* Multiplies at most MATMUL_PARTS matrices by x. `tiles` is NULL, or the parts have experts. */
void device_multiply(struct device *d, const struct matmul_part *parts, size_t count, const struct device_x *x,
                     const struct device_tiles *tiles);

#endif
