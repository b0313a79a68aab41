/* tools/cli/softmax.h -- what commands compute from a row of logits, in double. */
#ifndef VB_CLI_SOFTMAX_H
#define VB_CLI_SOFTMAX_H

#include <stddef.h>

/* The sum of exp(z_i - m), i ascending, where m is the largest z; *most = m. */
double sum_of_exp(const float *z, size_t n, double *most);

#endif
