/* tests/kernels/checkasm_quantized.h -- declarations shared by the two source files of checkasm that test quantized
 * weights. */
#ifndef VB_CHECKASM_QUANTIZED_H
#define VB_CHECKASM_QUANTIZED_H

#include "simd/quantized.h"
#include "tests/kernels/checkasm.h"

/* Which scales random blocks get. FINITE: any finite f16; ANY: also infinities and NaN; UNIT: every scale is 1. */
enum scales { ORDINARY_SCALES, FINITE_SCALES, ANY_SCALES, UNIT_SCALES };

/* Writes random blocks of this type. If `extreme` is nonzero, most codes are at the ends of their range. */
void random_blocks(unsigned char *out, enum weight_type type, enum scales scales, int extreme, size_t blocks);

/* Sets what NVFP4 matrices have beside their blocks. */
void random_tensor_scale(struct weight_view *w, enum scales scales);

/* Makes a random group of inputs with the step d. If `extreme` is nonzero, every q is 127 or -127, and nearly all have
 * the same sign. */
void random_group(struct quantized_group *x, float d, int extreme);

/* Compares the scalar kernel, and the function that decodes single weights, with the definition of the type. */
void check_quantized_truth(enum weight_type type);
/* Checks a group that the scalar kernel has made: the rule for quantizing must give the same group. `packed`: the 32
 * inputs, in packed order. */
void quantize_truth(const struct quantized_group *got, const float *packed, const char *what);

#endif
