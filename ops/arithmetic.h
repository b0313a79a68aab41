/* ops/arithmetic.h -- how linear layers multiply. Whoever begins a pass chooses it (op_ctx.arithmetic). */
#ifndef VB_ARITHMETIC_H
#define VB_ARITHMETIC_H

struct onednn;

/* At most one of the last three members is set. With it, results have other bits than docs/ARITHMETIC.md defines. */
struct arithmetic {
    int bf16; /* precision bf16: the inputs of linear layers are rounded to BF16 */
    /* NULL, or an array with one struct onednn for each thread: oneDNN computes the sums, in an order that it chooses.
     * Then every W is BF16 if bf16 is set, else F32. Operators of the CPU only. */
    struct onednn *const *onednn;
    int cublas;       /* a device's library of matrix products (ops/cuda/device.h) computes the sums for every W that is
                         not quantized, in an order that it chooses */
    int tensor_cores; /* a device's tensor cores compute the sums for every W that is not quantized, in a fixed order
                         (ops/cuda/tensor.cu), but do not round as the contract says: precision tensor */
};

/* Inputs are never rounded, and sums have the order of the contract. The router's gate needs this in every pass. */
extern const struct arithmetic arithmetic_exact;

#endif
