/* tests/kernels/checkasm_bf16.c -- the part of checkasm that compares the kernels of precision bf16: rounding, and the
 * product whose instruction flushes subnormals where the contract does not. */
#include "tests/kernels/checkasm.h"

#include <math.h>
#include <stdio.h>

/* What the weights of a case are: numbers whose products come close to the smallest that the guard allows, the same
 * with one weight below it, or random_numbers' kinds. */
enum { AT_THE_GUARD = KINDS, ONE_BELOW, ALL_BELOW, WEIGHTS };

static const uint16_t least = (127 - 56) << 7; /* 2^-56 as bf16 */

static void fill_weights(uint16_t *w, int choice, size_t n)
{
    if (choice < KINDS) {
        random_numbers(w, WEIGHT_BF16, (enum kind)choice, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        w[i] = (uint16_t)(least + below(choice == ALL_BELOW ? 128 : 4 << 7)) | (uint16_t)(below(2) << 15);
    for (size_t i = 0; choice == ALL_BELOW && i < n; i++)
        w[i] = (uint16_t)(w[i] - (20 << 7));
    if (choice == ONE_BELOW && n)
        w[below(n)] = (uint16_t)(least - 1 - below(least - 1));
}

/* A whole row of one sign, and each product's opposite behind it: what is left over is as small as can be. */
static void fill_x(uint16_t *x, int choice, size_t K)
{
    float natural[8192], packed[8192];
    random_numbers(natural, WEIGHT_F32, choice < KINDS ? (enum kind)choice : UNIFORM, K);
    for (size_t i = 0; choice >= KINDS && i < K; i++)
        natural[i] = ldexpf(natural[i] < 0 ? -1.0f - (float)below(128) / 128 : 1.0f + (float)below(128) / 128,
                            -56 + (int)below(2));
    kernels_scalar.pack(packed, natural, K);
    kernels_scalar.narrow(x, packed, K);
}

static int has_tiny(const struct weight_view *w)
{
    for (size_t i = 0; i < w->rows; i++)
        for (size_t k = 0; k < w->cols; k++) {
            uint16_t magnitude = ((const uint16_t *)w->data)[i * w->stride + k] & 0x7fff;
            if (magnitude && magnitude < least)
                return 1;
        }
    return 0;
}

static void check_product(size_t K, size_t rows, size_t T, int choice)
{
    size_t stride = K + (below(2) ? below(40) : 0), n0 = below(2) ? below(rows) : 0,
           n1 = below(2) ? n0 + 1 + below(rows - n0) : rows;
    size_t numbers = (rows - 1) * stride + K, ldx = packed_length(K) + below(2) * below(50);
    size_t ldy = rows + below(5), size = (T - 1) * ldy + rows;
    uint16_t *data = ending_at_a_page(SLOT_W, numbers * sizeof *data, 0);
    uint16_t *x = ending_at_a_page(SLOT_X, ((T - 1) * ldx + packed_length(K)) * sizeof *x, 0);
    float *want = ending_at_a_page(SLOT_WANT, size * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, size * sizeof *got, 0);
    char what[160];
    fill_weights(data, choice, numbers);
    struct weight_view w = {.type = WEIGHT_BF16, .data = data, .rows = rows, .cols = K, .stride = stride};
    for (size_t t = 0; t < T; t++) {
        fill_x(x + t * ldx, choice, K);
        for (size_t k = K; k < packed_length(K); k++)
            x[t * ldx + k] = 0xffff; /* what stands beyond K is not trusted */
    }
    snprintf(what, sizeof what, "K=%zu rows %zu..%zu of %zu T=%zu stride=%zu weights %d", K, n0, n1, rows, T, stride,
             choice);
    fill_canary(want, size);
    kernels_scalar.matmul_bf16(want, ldy, &w, n0, n1, x, ldx, T, kernel_scratch());
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k))
        for (int known = 0; known < 3; known++) { /* nothing kept, not yet known, known */
            unsigned char magnitudes = known < 2 ? MAGNITUDES_UNKNOWN
                                       : has_tiny(&w) ? MAGNITUDES_TINY
                                       : MAGNITUDES_ORDINARY;
            w.magnitudes = known ? &magnitudes : NULL;
            fill_canary(got, size);
            about_to_run(MATMUL_NARROW, k, what);
            k->matmul_bf16(got, ldy, &w, n0, n1, x, ldx, T, kernel_scratch());
            same_bits(MATMUL_NARROW, k, what, got, want, size);
            if (known == 1 && magnitudes == MAGNITUDES_TINY && !has_tiny(&w))
                failed(MATMUL_NARROW, k, what, "ordinary weights are said to be tiny");
        }
}

/* It is rule 1 on widened numbers, and nothing else. */
static void check_against_matmul(size_t K, size_t T)
{
    uint16_t weights[3 * 2100], x[4 * 2112];
    float packed[4 * 2112], want[12], got[12];
    fill_weights(weights, AT_THE_GUARD, 3 * K);
    for (size_t t = 0; t < T; t++) {
        fill_x(x + t * packed_length(K), AT_THE_GUARD, K);
        for (size_t k = 0; k < packed_length(K); k++) {
            size_t at = k / 32 * 32 + (k % 2 ? 0 : 16) + k % 32 / 2;
            uint32_t bits = (uint32_t)x[t * packed_length(K) + k] << 16;
            memcpy(&packed[t * packed_length(K) + at], &bits, sizeof bits);
        }
    }
    struct weight_view w = {.type = WEIGHT_BF16, .data = weights, .rows = 3, .cols = K, .stride = K};
    kernels_scalar.matmul[WEIGHT_BF16](want, 3, &w, 0, 3, packed, packed_length(K), T, kernel_scratch());
    kernels_scalar.matmul_bf16(got, 3, &w, 0, 3, x, packed_length(K), T, kernel_scratch());
    same_bits(MATMUL_NARROW, &kernels_scalar, "against matmul", got, want, 3 * T);
}

/* Round to nearest even by the definition: of the two bf16 beside x the nearer, of equals the even one. */
static uint16_t narrow_by_definition(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t low = (uint16_t)(bits >> 16), high = (uint16_t)(low + 1);
    if (isnan(x))
        return low | 0x40;
    double at = fabs((double)x), below_x, above_x;
    float f;
    memcpy(&f, &(uint32_t){(uint32_t)(low & 0x7fff) << 16}, sizeof f);
    below_x = (double)f;
    memcpy(&f, &(uint32_t){(uint32_t)(high & 0x7fff) << 16}, sizeof f);
    above_x = isinf(f) ? 0x1p128 : (double)f; /* overflow: as if there were a next number */
    uint16_t y = isinf(x) || at - below_x < above_x - at || (at - below_x == above_x - at && low % 2 == 0) ? low : high;
    memcpy(&f, &(uint32_t){(uint32_t)(y & 0x7fff) << 16}, sizeof f);
    return (double)f < 0x1p-56 ? 0 : y;
}

static void check_narrow(size_t K, size_t slack)
{
    size_t n = packed_length(K);
    float *x = ending_at_a_page(SLOT_X, n * sizeof *x, slack * 4);
    uint16_t *want = ending_at_a_page(SLOT_WANT, (n + 64) * sizeof *want, 0),
             *got = ending_at_a_page(SLOT_GOT, (n + 64) * sizeof *got, 0);
    char what[40];
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)rng(), choice = (uint32_t)below(8);
        if (choice == 0)
            bits = (bits & 0xffff0000) | 0x8000;                   /* ties */
        else if (choice == 1)
            bits = (bits & 0x80ffffff) | (uint32_t)(34 + below(3)) << 24; /* about 2^-56 */
        else if (choice == 2)
            bits = bits & 1 ? bits | 0x7f7f0000 : bits & 0x807fffff; /* about the largest; subnormal */
        memcpy(x + i, &bits, sizeof bits);
    }
    memset(want, 0xee, (n + 64) * sizeof *want);
    kernels_scalar.narrow(want + 32, x, K);
    for (size_t k = 0; k < n; k++) {
        size_t at = k / 32 * 32 + (k % 2 ? 0 : 16) + k % 32 / 2;
        if (want[32 + k] != (k < K ? narrow_by_definition(x[at]) : 0))
            failed(NARROW, &kernels_scalar, "by its definition", "another rounding");
    }
    snprintf(what, sizeof what, "K=%zu", K);
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
        memset(got, 0xee, (n + 64) * sizeof *got);
        about_to_run(NARROW, k, what);
        k->narrow(got + 32, x, K);
        if (memcmp(got, want, (n + 64) * sizeof *got))
            failed(NARROW, k, what, "differs from scalar, or writes elsewhere");
    }
}

void check_bf16_kernels(void)
{
    static const struct { size_t K, rows, T;
    } large[] = {
        {1024, 9, 6}, {1025, 4, 9}, {2048, 8, 4}, {2049, 2, 17},
        {7168, 4, 2}, {64, 150, 17}, {7168, 5, 12}, {33, 131, 29},
        {1056, 17, 14}, {512, 128, 12}, {1024, 129, 64}, {256, 1, 512},
    };
    for (size_t K = 0; wanted(NARROW) && K <= 300; K++)
        for (size_t slack = 0; slack < 4; slack++)
            check_narrow(K, slack);
    if (!wanted(MATMUL_NARROW))
        return;
    for (int choice = 0; choice < WEIGHTS; choice++) {
        for (size_t K = 1; K <= 130; K += quick ? 13 : 1)
            check_product(K, 1 + below(9), 1 + below(14), choice);
        for (size_t i = 0; i < sizeof large / sizeof *large; i++)
            if (!quick || large[i].rows * large[i].T * large[i].K < 200000)
                check_product(large[i].K, large[i].rows, large[i].T, choice);
    }
    for (size_t K = 1; K <= 2080; K += 77)
        check_against_matmul(K, 1 + below(4));
}
