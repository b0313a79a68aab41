/* tests/kernels/checkasm_matrix.c -- the part of checkasm that compares matmul and fma_rows, for every type of
 * weights. */
#include "tests/kernels/checkasm.h"
#include "numbers/numbers.h"

#include <stdio.h>
#include <stdlib.h>

/* The same of packed codes: any codes, and scales that are `kind`. Bytes of columns beyond the last are unreadable. */
static struct weight_view random_i4_view(size_t rows, size_t cols, enum kind kind)
{
    struct weight_view w = {.type = WEIGHT_I4, .rows = rows, .cols = cols, .rounded = (int)below(2)};
    w.stride = packed_length(cols) + below(2) * 32;
    size_t bytes = rows ? ((rows - 1) * w.stride + cols + 1) / 2 : 0,
           scales = rows ? ((rows - 1) * w.stride + cols + 31) / 32 : 0;
    unsigned char *codes = ending_at_a_page(SLOT_W, bytes, below(2) ? below(8) : 0);
    uint16_t *scale = ending_at_a_page(SLOT_SCALE, scales * sizeof *scale, below(2));
    for (size_t i = 0; i < bytes; i++)
        codes[i] = (unsigned char)(kind == ZEROS ? 0x88 : below(256));
    random_numbers(scale, WEIGHT_BF16, kind, scales);
    w.data = codes;
    w.group_scale = scale;
    return w;
}

/* The same of E2M1 codes. Scales are any bytes (NaN is one of them), or small numbers. */
static struct weight_view random_f4_view(size_t rows, size_t cols, enum kind kind)
{
    struct weight_view w = random_i4_view(rows, cols, kind);
    w.type = WEIGHT_F4;
    w.group_size = below(2) ? 16 : 32;
    w.tensor_scale = 0.001f * (float)(1 + below(1000));
    w.divides = (int)below(2);
    size_t scales = rows ? ((rows - 1) * w.stride + packed_length(cols)) / w.group_size : 0;
    unsigned char *scale = ending_at_a_page(SLOT_SCALE, scales, below(2));
    for (size_t i = 0; i < scales; i++)
        scale[i] = (unsigned char)(kind == WIDE ? below(256) : w.group_size == 16 ? below(127) : 100 + below(40));
    w.group_scale = scale;
    return w;
}

/* A random view of rows x cols: odd addresses, rows apart, F8 and I8 scales of a tensor in whose middle the view lies.
 * The last weight, and the last scale, end at an unreadable page (or, for odd addresses, a few bytes before one). */
static struct weight_view random_view(enum weight_type type, size_t rows, size_t cols, enum kind kind)
{
    if (type == WEIGHT_I4)
        return random_i4_view(rows, cols, kind);
    if (type == WEIGHT_F4)
        return random_f4_view(rows, cols, kind);
    size_t size = type_size(type);
    struct weight_view w = {.type = type, .rows = rows, .cols = cols, .stride = cols + (below(2) ? below(40) : 0)};
    size_t numbers = rows ? (rows - 1) * w.stride + cols : 0;
    char *data = ending_at_a_page(SLOT_W, numbers * size, below(2) ? below(8) : 0);
    random_numbers(data, type, kind, numbers);
    w.data = data;
    if (weight_is_byte(type)) {
        static const size_t sizes[] = {1, 3, 32, 128};
        w.block_rows = sizes[below(4)];
        w.block_cols = 32 << below(3);
        w.scale_row = below(300);
        w.scale_col = below(10) * 32;
        size_t last_row = (max_size(rows, 1) - 1 + w.scale_row) / w.block_rows;
        size_t last_col = (max_size(cols, 1) - 1 + w.scale_col) / w.block_cols;
        w.scale_stride = last_col + 1 + below(3);
        size_t scales = last_row * w.scale_stride + last_col + 1;
        float *scale = ending_at_a_page(SLOT_SCALE, scales * sizeof *scale, 0);
        random_numbers(scale, WEIGHT_F32, kind == ZEROS || kind == WIDE ? UNIFORM : kind, scales);
        for (size_t i = 0; kind == VANISH && i < scales; i++)
            scale[i] = -scale[i];
        w.scale = scale;
    }
    return w;
}

/* The same of f32, each row packed like an x and padded with +0. */
static struct weight_view random_packed_view(size_t rows, size_t cols, enum kind kind)
{
    size_t length = packed_length(cols), stride = length + (below(2) ? below(40) : 0);
    size_t numbers = rows ? (rows - 1) * stride + length : 0;
    float *data = ending_at_a_page(SLOT_W, numbers * sizeof *data, 0), natural[8192];
    for (size_t i = 0; i < rows; i++) {
        random_numbers(natural, WEIGHT_F32, kind, cols);
        kernels_scalar.pack(data + i * stride, natural, cols);
    }
    return (struct weight_view){.type = WEIGHT_F32, .data = data, .rows = rows, .cols = cols, .stride = stride,
                                .packed = 1};
}

/* T vectors of n numbers, ld apart, the last ending at a page; what lies between them is NaN. */
static float *random_vectors(enum kind kind, size_t n, size_t ld, size_t T, size_t apart)
{
    float *x = ending_at_a_page(SLOT_X, ((T - 1) * ld + n) * sizeof *x, 0);
    for (size_t t = 0; t < T; t++)
        random_factors(x + t * ld, kind, n, apart);
    return x;
}

/* Numbers that packing puts beyond K become NaN. */
static void spoil_padding(float *x, size_t K)
{
    size_t chunk = K / DOT_CHUNK * DOT_CHUNK;
    for (size_t l = 0; K % DOT_CHUNK && l < 16; l++) {
        if (chunk + 2 * l + 1 >= K)
            memset(x + chunk + l, 0xff, sizeof *x);
        if (chunk + 2 * l >= K)
            memset(x + chunk + 16 + l, 0xff, sizeof *x);
    }
}

/* Every other view says what is read after it. Kernels may read it, and then say how far they came. */
static char next_rows[100000];

static struct weight_ahead *some_ahead(void)
{
    static struct weight_ahead ahead;
    ahead = (struct weight_ahead){next_rows, next_rows + below(sizeof next_rows)};
    return below(2) ? &ahead : NULL;
}

static void begin_ahead(const struct weight_view *w)
{
    if (w->ahead)
        w->ahead->at = next_rows;
}

static void check_ahead(enum kernel kernel, const struct kernels *k, const char *what, const struct weight_view *w)
{
    if (!w->ahead || (w->ahead->at >= next_rows && w->ahead->at <= w->ahead->end))
        return;
    printf("%s %s %s: prefetched beyond the end of what is ahead\n", kernel_names[kernel], k->name, what);
    exit(1);
}

static void check_matmul(enum weight_type type, size_t K, size_t rows, size_t T, enum kind kind)
{
    enum kernel kernel = (enum kernel)(MATMUL + type);
    if (!wanted(kernel))
        return;
    struct weight_view w = type == WEIGHT_F32 && below(3) == 0 ? random_packed_view(rows, K, kind)
                                                               : random_view(type, rows, K, kind);
    w.ahead = some_ahead();
    size_t n0 = below(2) ? below(rows) : 0, n1 = below(2) ? n0 + 1 + below(rows - n0) : rows;
    size_t ldx = packed_length(K) + below(2) * below(50), ldy = rows + below(5), size = (T - 1) * ldy + rows;
    float *x = random_vectors(kind, packed_length(K), ldx, T, 16);
    for (size_t t = 0; t < T; t++)
        spoil_padding(x + t * ldx, K);
    float *want = ending_at_a_page(SLOT_WANT, size * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, size * sizeof *got, 0);
    char what[160];
    snprintf(what, sizeof what, "K=%zu rows %zu..%zu of %zu T=%zu stride=%zu ldy=%zu %s%s", K, n0, n1, rows, T,
             w.stride, ldy, kind_names[kind], w.packed ? " packed" : "");
    fill_canary(want, size);
    kernels_scalar.matmul[type](want, ldy, &w, n0, n1, x, ldx, T, kernel_scratch());
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
        fill_canary(got, size);
        about_to_run(kernel, k, what);
        begin_ahead(&w);
        k->matmul[type](got, ldy, &w, n0, n1, x, ldx, T, kernel_scratch());
        same_bits(kernel, k, what, got, want, size);
        check_ahead(kernel, k, what, &w);
    }
}

/* y before the kernel runs: what no kernel writes, or the sums that fma_rows_onto continues */
static void fill_sums(float *y, size_t n, const float *sums)
{
    if (sums)
        memcpy(y, sums, n * sizeof *y);
    else
        fill_canary(y, n);
}

/* fma_rows, or fma_rows_onto */
static void check_rows_kernel(enum kernel kernel, enum weight_type type, size_t rows, size_t cols, size_t T,
                              enum kind kind)
{
    int onto = kernel >= FMA_ROWS_ONTO;
    if (!wanted(kernel))
        return;
    struct weight_view w = random_view(type, rows, cols, kind);
    w.ahead = some_ahead();
    size_t c0 = below(2) ? below((cols + 31) / 32) * 32 : 0, c1 = below(2) ? c0 + 1 + below(cols - c0) : cols;
    size_t ldx = rows + below(2) * below(50), ldy = cols + below(5), size = (T - 1) * ldy + cols;
    float *x = random_vectors(kind, rows, ldx, T, 1);
    float *want = ending_at_a_page(SLOT_WANT, size * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, size * sizeof *got, 0);
    char what[160];
    snprintf(what, sizeof what, "rows=%zu columns %zu..%zu of %zu T=%zu stride=%zu ldy=%zu %s", rows, c0, c1, cols, T,
             w.stride, ldy, kind_names[kind]);
    float *sums = onto ? ending_at_a_page(SLOT_X2, size * sizeof *sums, 0) : NULL;
    if (onto)
        random_numbers(sums, WEIGHT_F32, kind, size);
    fill_sums(want, size, sums);
    (onto ? kernels_scalar.fma_rows_onto : kernels_scalar.fma_rows)[type](want, ldy, &w, c0, c1, x, ldx, T,
                                                                          kernel_scratch());
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
        fill_sums(got, size, sums);
        about_to_run(kernel, k, what);
        begin_ahead(&w);
        (onto ? k->fma_rows_onto : k->fma_rows)[type](got, ldy, &w, c0, c1, x, ldx, T, kernel_scratch());
        same_bits(kernel, k, what, got, want, size);
        check_ahead(kernel, k, what, &w);
    }
}

static void check_fma_outer(size_t rows, size_t cols, size_t T, enum kind kind)
{
    struct weight_view w = random_view(WEIGHT_F32, rows, cols, kind);
    w.ahead = NULL;
    size_t ldx = T + below(2) * below(50), ldy = cols + below(5), size = (T - 1) * ldy + cols;
    float *x = ending_at_a_page(SLOT_X, ((rows ? rows - 1 : 0) * ldx + T) * sizeof *x, 0),
          *sums = ending_at_a_page(SLOT_X2, size * sizeof *sums, 0);
    float *want = ending_at_a_page(SLOT_WANT, size * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, size * sizeof *got, 0);
    char what[120];
    snprintf(what, sizeof what, "rows=%zu columns=%zu T=%zu stride=%zu ldx=%zu ldy=%zu %s", rows, cols, T, w.stride,
             ldx, ldy, kind_names[kind]);
    random_factors(x, kind, (rows ? rows - 1 : 0) * ldx + T, ldx);
    random_numbers(sums, WEIGHT_F32, kind, size);
    memcpy(want, sums, size * sizeof *want);
    kernels_scalar.fma_outer(want, ldy, &w, x, ldx, T, kernel_scratch());
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
        memcpy(got, sums, size * sizeof *got);
        about_to_run(FMA_OUTER, k, what);
        k->fma_outer(got, ldy, &w, x, ldx, T, kernel_scratch());
        same_bits(FMA_OUTER, k, what, got, want, size);
    }
}

static void check_fma_rows(enum weight_type type, size_t rows, size_t cols, size_t T, enum kind kind)
{
    check_rows_kernel((enum kernel)(FMA_ROWS + type), type, rows, cols, T, kind);
    check_rows_kernel((enum kernel)(FMA_ROWS_ONTO + type), type, rows, cols, T, kind);
}

/* Weights of 4 bits times narrow vectors, rounded to BF16 or not. */
static void check_packed_narrow(size_t K, size_t rows, size_t T, enum kind kind)
{
    size_t ldx = packed_length(K);
    struct weight_view w = below(2) ? random_i4_view(rows, K, kind) : random_f4_view(rows, K, kind);
    uint16_t *x = ending_at_a_page(SLOT_X, T * ldx * sizeof *x, 0);
    float *want = ending_at_a_page(SLOT_WANT, T * rows * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, T * rows * sizeof *got, 0);
    char what[80];
    random_numbers(x, WEIGHT_BF16, UNIFORM, T * ldx);
    snprintf(what, sizeof what, "%s K=%zu rows=%zu T=%zu rounded=%d", type_names[w.type], K, rows, T, w.rounded);
    kernels_scalar.matmul_bf16(want, rows, &w, 0, rows, x, ldx, T, kernel_scratch());
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
        about_to_run(MATMUL_NARROW, k, what);
        k->matmul_bf16(got, rows, &w, 0, rows, x, ldx, T, kernel_scratch());
        same_bits(MATMUL_NARROW, k, what, got, want, T * rows);
    }
}

void check_matrix_kernels(void)
{
    /* K, rows, T: ends of blocks, of panels of rows, of groups of tokens */
    static const struct { size_t K, rows, T; } large[] = {
        {1023, 5, 3},  {1024, 9, 6},   {1025, 4, 9},   {2047, 3, 5},   {2048, 8, 4},    {2049, 2, 17}, {3104, 7, 7},
        {7168, 4, 2},  {7999, 3, 1},   {64, 150, 17},  {96, 133, 13},  {33, 131, 29},   {32, 7, 130},  {40, 34, 255},
        {1056, 17, 14}, {1100, 21, 13}, {512, 128, 12}, {2080, 37, 19}, {1024, 129, 64}, {256, 1, 512}, {1, 300, 260},
    };
    for (size_t rows = 0; wanted(FMA_OUTER) && rows <= 300; rows += 1 + below(quick ? 40 : 9))
        check_fma_outer(rows, 1 + below(300), 1 + below(40), (enum kind)below(KINDS));
    for (size_t K = 1; wanted(MATMUL_NARROW) && K < 2200; K += 1 + below(quick ? 400 : 90))
        check_packed_narrow(K, 1 + below(9), 1 + below(16), (enum kind)below(KINDS));
    for (int type = 0; type < WEIGHT_TYPES; type++) {
        enum weight_type t = (enum weight_type)type;
        for (size_t K = 0; K <= 300; K++)
            for (size_t i = 0; i < (quick ? 1 : 4); i++) { /* lengths that differ by one meet the other kinds */
                enum kind kind = (enum kind)((2 * i + K) % KINDS);
                check_matmul(t, K, 1 + below(9), 1 + below(9), kind);
                if (quick && K > 70 && K % 7) /* the vectors of a longer row are those of a shorter one again */
                    continue;
                check_fma_rows(t, K % 70, 1 + K, 1 + below(9), kind);
                check_fma_rows(t, K, 1 + below(70), 1 + below(9), kind);
            }
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            size_t rows = quick && large[i].rows * large[i].T > 2000 ? 4 : large[i].rows;
            check_matmul(t, large[i].K, rows, large[i].T, (enum kind)below(KINDS));
            check_fma_rows(t, large[i].rows, large[i].K, quick ? 7 : large[i].T % 60, (enum kind)below(KINDS));
        }
        for (size_t rows = 1; rows <= 9; rows++)
            for (size_t T = 1; T <= 14; T++)
                check_matmul(t, 32 * (1 + below(3)), rows, T, (enum kind)((rows + T) % KINDS));
        for (int i = 0; i < (quick ? 3 : 40); i++) {
            check_matmul(t, below(8000), 1 + below(9), 1 + below(9), (enum kind)below(KINDS));
            check_fma_rows(t, below(400), 1 + below(700), 1 + below(17), (enum kind)below(KINDS));
        }
    }
}

/* Every F16, BF16, E4M3 and I8 code, NaN and infinities too, through whole chunks of both kernels and through tails.
 * For matmul each row is zero but for one code, so that the row's sum is that weight. */
static void check_codes(enum weight_type type, size_t K, float scale)
{
    size_t size = type_size(type), codes = weight_is_byte(type) ? 256 : 65536, T = 1;
    char *data = ending_at_a_page(SLOT_W, codes * K * size, 0);
    float *x = ending_at_a_page(SLOT_X, packed_length(K) * sizeof *x, 0);
    float *want = ending_at_a_page(SLOT_WANT, codes * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, codes * sizeof *got, 0);
    struct weight_view w = {.type = type, .data = data, .rows = codes, .cols = K, .stride = K};
    w.scale = &scale;
    w.block_rows = w.block_cols = 1 << 20;
    memset(data, 0, codes * K * size);
    for (uint32_t code = 0; code < codes; code++)
        memcpy(data + (code * K + code % K) * size, &code, size);
    for (size_t k = 0; k < packed_length(K); k++)
        x[k] = 1.0f;
    char what[120];
    snprintf(what, sizeof what, "every code at K=%zu, scale %g", K, scale);
    if (wanted((enum kernel)(MATMUL + type))) {
        kernels_scalar.matmul[type](want, codes, &w, 0, codes, x, packed_length(K), T, kernel_scratch());
        for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
            k->matmul[type](got, codes, &w, 0, codes, x, packed_length(K), T, kernel_scratch());
            same_bits((enum kernel)(MATMUL + type), k, what, got, want, codes);
        }
    }
    for (uint32_t code = 0; code < codes; code++)
        memcpy(data + code * size, &code, size);
    w.rows = 1;
    w.cols = w.stride = codes;
    if (wanted((enum kernel)(FMA_ROWS + type))) {
        size_t end = codes - 32 + K; /* leaves a tail unless K is 32 */
        kernels_scalar.fma_rows[type](want, codes, &w, 0, end, x, 1, T, kernel_scratch());
        for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
            k->fma_rows[type](got, codes, &w, 0, end, x, 1, T, kernel_scratch());
            same_bits((enum kernel)(FMA_ROWS + type), k, what, got, want, end);
        }
    }
}

void check_every_code(void)
{
    static const float scales[] = {1.0f, 0.0123f, 0x1.5p-130f, 0x1.5p120f};
    for (size_t K = 1; K <= 32; K += 31) {
        check_codes(WEIGHT_F16, K, 1.0f);
        check_codes(WEIGHT_BF16, K, 1.0f);
        for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
            check_codes(WEIGHT_F8_E4M3, K, scales[i]);
            check_codes(WEIGHT_I8, K, scales[i]);
        }
    }
}
