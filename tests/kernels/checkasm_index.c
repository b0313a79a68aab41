/* tests/kernels/checkasm_index.c -- the part of checkasm that compares the kernels of an indexer. */
#include "simd/decode.h"
#include "tests/kernels/checkasm.h"

#include <stdio.h>

#define FOR_EACH_TABLE(k) for (const struct kernels *k = next_table(NULL); k; k = next_table(k))

enum { MOST_KEYS = 300, MOST_HEADS = 140 };

/* Random rows, in any order. The codes can be any bytes if `kind` is WIDE. The last row ends at an unreadable page. */
static struct index_view random_keys(size_t count, size_t dim, int codes, enum kind kind)
{
    static int32_t slots[MOST_KEYS];
    size_t rows = count + below(3), size = codes ? dim + sizeof(float) : dim * sizeof(float);
    char *data = ending_at_a_page(SLOT_W, rows * size, 0);
    for (size_t i = 0; i < rows; i++) {
        random_numbers(data + i * size, codes ? WEIGHT_F8_E4M3 : WEIGHT_F32, kind, dim);
        if (codes)
            random_numbers(data + i * size + dim, WEIGHT_F32, kind, 1);
        if (codes && kind == WIDE)
            data[i * size + below(dim)] = (char)below(256);
    }
    for (size_t i = 0; i < count; i++)
        slots[i] = (int32_t)(below(2) ? i : below(rows));
    slots[below(count)] = (int32_t)rows - 1;
    return (struct index_view){data, slots, count, dim, codes};
}

/* Random queries of H heads; numbers of E4M3 if the keys have codes. */
static void random_queries(float *q, const struct index_view *keys, size_t H, enum kind kind)
{
    float one[INDEX_MAX_DIM];
    uint8_t code[INDEX_MAX_DIM];
    for (size_t h = 0; h < H; h++) {
        random_factors(one, kind, keys->dim, 1);
        random_numbers(code, WEIGHT_F8_E4M3, kind, keys->dim);
        for (size_t i = 0; keys->codes && i < keys->dim; i++)
            one[i] = e4m3_to_f32(code[i]);
        kernels_scalar.pack(q + h * keys->dim, one, keys->dim);
    }
}

static void check_index_scores(size_t count, size_t dim, size_t H, int codes, enum kind kind)
{
    struct index_view keys = random_keys(count, dim, codes, kind);
    float *q = ending_at_a_page(SLOT_X, H * dim * sizeof *q, 0), *w = ending_at_a_page(SLOT_X2, H * sizeof *w, 0);
    float *want = ending_at_a_page(SLOT_WANT, (count + 32) * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, (count + 32) * sizeof *got, 0);
    random_queries(q, &keys, H, kind);
    random_numbers(w, WEIGHT_F32, kind, H);
    fill_canary(want, count + 32);
    kernels_scalar.index_scores(want + 16, &keys, q, w, H, kernel_scratch());
    char what[120];
    snprintf(what, sizeof what, "%zu keys, D=%zu H=%zu%s %s", count, dim, H, codes ? " codes" : "", kind_names[kind]);
    FOR_EACH_TABLE(k)
    {
        fill_canary(got, count + 32);
        about_to_run(INDEX_SCORES, k, what);
        k->index_scores(got + 16, &keys, q, w, H, kernel_scratch());
        same_bits(INDEX_SCORES, k, what, got, want, count + 32);
    }
}

static void check_count_from(size_t n)
{
    uint32_t *x = ending_at_a_page(SLOT_X, n * sizeof *x, 0),
             bound[] = {0, 1, 0x7fffffff, 0x80000000, UINT32_MAX, (uint32_t)rng()};
    size_t width = below(32);
    for (size_t i = 0; i < n; i++)
        x[i] = (uint32_t)rng() >> width;
    bound[1] = n ? x[below(n)] : 1;
    for (size_t b = 0; b < sizeof bound / sizeof *bound; b++) {
        char what[120];
        snprintf(what, sizeof what, "n=%zu bound 0x%08x", n, bound[b]);
        FOR_EACH_TABLE(k)
        {
            about_to_run(COUNT_FROM, k, what);
            if (k->count_from(x, n, bound[b]) != kernels_scalar.count_from(x, n, bound[b]))
                failed(COUNT_FROM, k, what, "another count than scalar's");
        }
    }
}

void check_index_kernels(void)
{
    static const size_t counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 100, 255, 256, MOST_KEYS};
    static const size_t heads[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 64, 127, 128, 129, MOST_HEADS};
    size_t n_counts = sizeof counts / sizeof *counts, n_heads = sizeof heads / sizeof *heads;
    for (int kind = 0; kind < KINDS && wanted(INDEX_SCORES); kind++)
        for (size_t i = 0; i < (quick ? 4 : n_counts); i++)
            for (size_t dim = 32; dim <= INDEX_MAX_DIM; dim += 32)
                for (int codes = 0; codes < 2; codes++)
                    check_index_scores(quick ? 1 + below(below(4) ? 70 : MOST_KEYS) : counts[i], dim,
                                       heads[below(n_heads)], codes, (enum kind)kind);
    for (size_t n = 0; n < 300 && wanted(COUNT_FROM); n++)
        check_count_from(n < 200 ? n : below(5000));
}
