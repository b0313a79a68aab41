/* tests/ops/checkops_backward.h -- for tests of ops/backward/: a step of several sequences, and its cuts into
 * micro-batches. */
#ifndef VB_CHECKOPS_BACKWARD_H
#define VB_CHECKOPS_BACKWARD_H

#include "tests/ops/checkops.h"

/* The sequences of a step: sequence i has the tokens [step_first[i], step_first[i + 1]). */
#define STEP_SEQUENCES 5
#define STEP_TOKENS 70
static const size_t step_first[STEP_SEQUENCES + 1] = {0, 3, 4, 37, 49, STEP_TOKENS};

/* Micro-batches: cut c has the sequences [step_cuts[c][i], step_cuts[c][i + 1]). */
#define STEP_CUTS 3
static const size_t step_cuts[STEP_CUTS][STEP_SEQUENCES + 1] = {{0, 5, 5, 5, 5, 5}, {0, 2, 5, 5, 5, 5},
                                                                {0, 1, 2, 3, 4, 5}};

/* A loop over the micro-batches of cut c: tokens [s, s + S). */
#define FOR_EACH_MICRO_BATCH(c, s, S) \
    for (size_t s##_ = 0, s, S; \
         s##_ < STEP_SEQUENCES && (s = step_first[step_cuts[c][s##_]], S = step_first[step_cuts[c][s##_ + 1]] - s); \
         s##_++)

/* All kernel tables, threads and cuts. */
#define FOR_EACH_SETTING(k, threads, cut)                          \
    FOR_EACH_TABLE(k)                                              \
    for (int threads = 1; threads <= 3; threads++)                 \
        for (size_t cut = 0; cut < STEP_CUTS; cut++)               \
            if (CASE("%s %s, %d threads, cut %zu", k->name, k->variant ? k->variant : "", threads, cut), 1)

static inline double *doubles_of(const float *x, size_t n)
{
    double *y = guarded(n * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* The magnitudes of numbers: what computes a sum with them computes the sum of its terms' magnitudes. */
static inline double *magnitudes_of(const float *x, size_t n)
{
    double *y = doubles_of(x, n);
    for (size_t i = 0; i < n; i++)
        y[i] = fabs(y[i]);
    return y;
}

/* |got - want| <= gamma(roundings) size, and 2^-140 for results below the normal numbers */
static inline void check_rounded(const float *got, const double *want, const double *size, double roundings, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_within(got[i], want[i], rounding_gamma(roundings) * size[i] + 0x1p-140, 0, i);
}

#endif
