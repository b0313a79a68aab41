/* tools/cli/softmax.h -- what commands compute from a row of logits, in double. */
#ifndef VB_CLI_SOFTMAX_H
#define VB_CLI_SOFTMAX_H

#include <stddef.h>
#include <stdint.h>

/* The sum of exp(z_i - m), i ascending, where m is the largest z; *most = m. */
double sum_of_exp(const float *z, size_t n, double *most);
/* Writes the indices of the `count` largest numbers of z to best [count], the largest number first. Among equal
 * numbers, the lower index comes first. count <= n. */
void find_largest(const float *z, int32_t n, int32_t *best, int32_t count);

#endif
