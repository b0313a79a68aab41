/* tools/cli/softmax.h -- what commands compute from a row of logits, in double. */
#ifndef VB_CLI_SOFTMAX_H
#define VB_CLI_SOFTMAX_H

#include <stddef.h>
#include <stdint.h>

/* The sum of exp(z_i - m), i ascending, where m is the largest z; *most = m. */
double sum_of_exp(const float *z, size_t n, double *most);
/* best [count] = the indices of the `count` <= n largest z, the larger first; of equals, the lower index first. */
void find_largest(const float *z, int32_t n, int32_t *best, int32_t count);

#endif
