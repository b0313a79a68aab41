/* reference/noise.c -- what stands beside each formula: its value goes to the hook, and in perturbed or noisy runs it
 * is moved at random first. */
#include "reference/layers.h"

#include <math.h>
#include <string.h>

double ref_uniform(struct reference_run *run) /* SplitMix64 */
{
    uint64_t z = run->random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1.0;
}

/* -- values -------------------------------------------------------------------------------------------------------- */

void ref_show(struct reference_run *run, const char *name, int index, int rows, int cols, const double *data)
{
    struct reference_value value = {name, run->layer, index, rows, cols, data};
    if (run->options.hook)
        run->options.hook(run->options.hook_context, &value);
}

void ref_noise(struct reference_run *run, double *x, size_t n)
{
    for (size_t i = 0; i < n && run->noise > 0; i++)
        x[i] *= 1.0 + ref_uniform(run) * run->noise;
}

void ref_value(struct reference_run *run, const char *name, int index, int rows, int cols, double *data)
{
    size_t n = (size_t)rows * (size_t)cols;
    if (!name)
        return;
    for (size_t i = 0; i < n && run->options.perturb; i++)
        data[i] *= 1.0 + ref_uniform(run) * 0x1p-24;
    if (!run->result || strcmp(name, run->result))
        ref_noise(run, data, n);
    ref_show(run, name, index, rows, cols, data);
}

void ref_stream(struct reference_run *run, const double *x, int S)
{
    if (run->watch)
        run->watch(run->watch_context, run->layer, x, S);
}

/* -- sums ---------------------------------------------------------------------------------------------------------- */

double ref_dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

double ref_sum_variance(double sum, double squares, size_t n)
{
    return (double)n * (sum * sum / 9 + squares / 6) * 0x1p-48;
}

double ref_sum(struct reference_run *run, const double *a, size_t step_a, const double *b, size_t step_b, size_t n)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        double product = a[i * step_a] * b[i * step_b];
        sum += product;
        squares += product * product;
    }
    if (run->noise == 0)
        return sum;
    /* 3: the variance of a uniform number in [-1, 1) is 1/3 */
    return sum + ref_uniform(run) * sqrt(3 * ref_sum_variance(sum, squares, n));
}

/* DeepSeek's script rounds both dot products before it adds them. */
double ref_two_dots(struct reference_run *run, const double *a, const double *b, size_t n, const double *c,
                    const double *d, size_t m)
{
    double first = ref_sum(run, a, 1, b, 1, n), second = ref_sum(run, c, 1, d, 1, m);
    ref_noise(run, &first, 1);
    ref_noise(run, &second, 1);
    return first + second;
}
