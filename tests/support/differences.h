/* tests/support/differences.h -- compares a gradient with finite differences.
 *
 * The central difference D(h) = (f(x + h u) - f(x - h u)) / 2h differs from the derivative of f in the direction u for
 * two reasons:
 *
 *     truncation   D(h) = f' + h^2/6 f''' + h^4/120 f''''' + ..., so D(2h) - D(h) = h^2/2 f''' + h^4/8 f''''' + ...:
 *                  three times the first term of the error of D(h), and fifteen times the second
 *     rounding     if f is computed with an error of at most e, D(h) has an error of at most e / h
 *
 * The bound is |D(2h) - D(h)| + e / h, with h = 2^-16. e is `roundings` * 2^-53 * size, where `size` is the sum of the
 * magnitudes of the terms whose sum f is, and `roundings` says how many roundings change such a term, one after the
 * other. Arguments are multiples of 2^-10 with magnitudes below 2 (random_argument), so that x + h u is exact in double
 * and in f32. */
#ifndef VB_TEST_DIFFERENCES_H
#define VB_TEST_DIFFERENCES_H

#include "tests/support/test.h"

struct differences {
    const char *name;                              /* for messages */
    double (*f)(void *context, double *size);      /* computes f from the arguments, and adds the magnitudes of its
                                                      terms to *size */
    void *context;
    double roundings;
};

/* Compares g [n], the gradient of f with respect to the arguments x [n], in two random directions with all entries 1 or
 * -1. each: also every entry alone. x has its old values afterwards. Fails too if a bound is above 1e-5 of the norm of
 * g, because it would then hide mistakes. */
void check_differences(const struct differences *d, double *x, const double *g, size_t n, int each);

double random_argument(uint64_t *state); /* in (-1, 1) */
void random_arguments(uint64_t *state, double *x, size_t n);

#endif
