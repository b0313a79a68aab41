/* tests/support/differences.c -- compares a gradient with finite differences. */
#include "tests/support/differences.h"

#include "tests/support/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP 0x1p-16

double random_argument(uint64_t *state) { return ((double)random_below(state, 2047) - 1023) / 1024; }

void random_arguments(uint64_t *state, double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_argument(state);
}

struct direction { /* u [n] from entry `first` on; other entries are 0 */
    double *x;
    const double *kept; /* the arguments as they were */
    const signed char *u;
    size_t first, n;
};

static double at(const struct differences *d, const struct direction *along, double step, double *size)
{
    double sum = 0;
    for (size_t i = 0; i < along->n; i++)
        along->x[along->first + i] = along->kept[along->first + i] + step * along->u[i];
    double value = d->f(d->context, &sum);
    memcpy(along->x + along->first, along->kept + along->first, along->n * sizeof *along->x);
    *size = fmax(*size, sum);
    return value;
}

/* want: the derivative in the direction, from the gradient. norm: of the whole gradient */
static void check_direction(const struct differences *d, const struct direction *along, double want, double norm,
                            const char *where)
{
    double size = 0;
    double near = (at(d, along, STEP, &size) - at(d, along, -STEP, &size)) / (2 * STEP);
    double far = (at(d, along, 2 * STEP, &size) - at(d, along, -2 * STEP, &size)) / (4 * STEP);
    double bound = fabs(far - near) + d->roundings * 0x1p-53 * size / STEP;
    if (!(fabs(want - near) <= bound))
        fail_msg("%s, %s: the gradient says %.12g, differences say %.12g, bound %.2g", d->name, where, want, near,
                 bound);
    if (norm > 0 && !(bound <= 1e-5 * norm))
        fail_msg("%s, %s: the bound of the difference is %.2g, and the gradient's norm only %.2g", d->name, where,
                 bound, norm);
}

void check_differences(const struct differences *d, double *x, const double *g, size_t n, int each)
{
    static const signed char one = 1;
    uint64_t state = 21;
    double squares = 0;
    double *kept = malloc((n + 1) * sizeof *kept);
    signed char *u = malloc(n + 1);
    assert_true(kept && u);
    memcpy(kept, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        squares += g[i] * g[i];
    for (int direction = 0; direction < 2; direction++) {
        double want = 0;
        for (size_t i = 0; i < n; i++) {
            u[i] = next_random(&state) & 1 ? 1 : -1;
            want += u[i] * g[i];
        }
        check_direction(d, &(struct direction){x, kept, u, 0, n}, want, sqrt(squares), "a random direction");
    }
    for (size_t i = 0; i < n && each; i++) {
        char where[32];
        snprintf(where, sizeof where, "entry %zu", i);
        check_direction(d, &(struct direction){x, kept, &one, i, 1}, g[i], sqrt(squares), where);
    }
    free(kept);
    free(u);
}
