/* tests/kernels/checkasm_quantised.h -- what the two parts of checkasm share that are about quantised weights. */
#ifndef VB_CHECKASM_QUANTISED_H
#define VB_CHECKASM_QUANTISED_H

#include "simd/quantised.h"
#include "tests/kernels/checkasm.h"

/* UNIT: every f16 is 1; ANY: infinities and NaN as well */
enum scales { ORDINARY_SCALES, FINITE_SCALES, ANY_SCALES, UNIT_SCALES };

/* blocks of this type; extreme: bytes whose codes lie at the ends of their range */
void random_blocks(unsigned char *out, enum weight_type type, enum scales scales, int extreme, size_t blocks);

/* a group with this d; extreme: q of 127 and -127, nearly all of one sign */
void random_group(struct quantised_group *x, float d, int extreme);

/* scalar against the definition of the type, and its decoder of single weights */
void check_quantised_truth(enum weight_type type);
/* scalar's group against the rule; x: its 32 numbers, packed */
void quantise_truth(const struct quantised_group *got, const float *packed, const char *what);

#endif
