/* tools/cli/softmax.c -- the sum of a softmax, and the largest logits. */
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

void find_largest(const float *z, int32_t n, int32_t *best, int32_t count)
{
    int32_t found = 0;
    for (int32_t i = 0; i < n && count; i++) {
        int32_t at = found < count ? found : count;
        if (at == count && z[best[count - 1]] >= z[i])
            continue;
        for (at -= at == count; at > 0 && z[best[at - 1]] < z[i]; at--)
            best[at] = best[at - 1];
        best[at] = i;
        found += found < count;
    }
}
