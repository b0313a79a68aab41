/* tools/cli/softmax.c -- the sum under a softmax. */
#include "tools/cli/softmax.h"

#include <math.h>

double sum_of_exp(const float *z, size_t n, double *most)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = (double)z[i] > max ? (double)z[i] : max;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)z[i] - max);
    *most = max;
    return sum;
}
