/* tests/kernels/checkasm_quantized.c -- the part of checkasm that compares the kernels of quantized weights (rule 2):
 * every type, as blocks of a file and as panels. What scalar itself returns is held against the formats' definitions in
 * checkasm_quantized_truth.c. */
#include "tests/kernels/checkasm_quantized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* --- random weights --- */

/* Where a block has its f16 scales; -1: no second one. */
static const int scale_at[][2] = {{0, -1}, {0, -1}, {0, -1}, {0, 2}, {0, 2}, {0, 2}, {208, -1}, {-1, -1},
                                  {0, -1}, {0, -1}, {0, -1}, {0, -1}, {0, -1}, {0, -1}, {-1, -1}, {52, -1}, {64, -1},
    {0, 2}, {0, -1}, {0, -1}, {108, -1}, {80, 82}, {-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};

/* f16 of the size of trained weights' scales; any finite one, zeros, subnormals and negative ones among them;
 * anything */
static uint16_t random_scale(enum scales scales)
{
    uint16_t half = (uint16_t)rng();
    switch (scales) {
    case ORDINARY_SCALES: return (half & 0x83ff) | (uint16_t)((4 + below(8)) << 10);
    case FINITE_SCALES: return below(8) ? (uint16_t)((half & 0x83ff) | below(31) << 10) : half & 0x8001;
    case UNIT_SCALES: return 0x3c00;
    default: return below(16) ? (uint16_t)((half & 0x83ff) | below(31) << 10) : half | 0x7c00;
    }
}

void random_blocks(unsigned char *out, enum weight_type type, enum scales scales, int extreme, size_t blocks)
{
    static const unsigned char ends[] = {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f};
    size_t bytes = quantized_format(type)->bytes;
    for (size_t i = 0; i < blocks; i++, out += bytes) {
        int one = below(2) == 0;
        unsigned char same = ends[below(sizeof ends)];
        for (size_t b = 0; b < bytes; b++)
            out[b] = !extreme ? (unsigned char)rng() : one ? same : ends[below(sizeof ends)];
        for (int s = 0; s < 2; s++)
            if (scale_at[type - WEIGHT_TYPES][s] >= 0)
                memcpy(out + scale_at[type - WEIGHT_TYPES][s], &(uint16_t){random_scale(scales)}, 2);
        if (type == WEIGHT_IQ1_M) {
            unsigned d = random_scale(scales);
            for (unsigned n = 0; n < 4; n++)
                out[49 + 2 * n] = (unsigned char)((out[49 + 2 * n] & 15u) | (d >> 4 * n & 15) << 4);
        }
        if (type == WEIGHT_MXFP4) {
            static const unsigned char ends_of_range[] = {0, 1, 2, 252, 253, 254, 255};
            out[0] = scales == UNIT_SCALES ? 128
                     : scales == ORDINARY_SCALES ? (unsigned char)(110 + below(20))
                     : scales == FINITE_SCALES ? (unsigned char)below(145) /* up to 2^16, as f16: no dot overflows */
                     : below(4) ? ends_of_range[below(sizeof ends_of_range)]
                     : (unsigned char)rng();
        }
        if (type == WEIGHT_Q4_BF16) {
            float d = f16_to_f32(random_scale(scales)) * (scales == UNIT_SCALES ? 1.0f : 0x1.8p-30f);
            memcpy(out, (char *)&d + 2, 2);
        }
        for (int s = 0; type == WEIGHT_GGUF_NVFP4 && s < 4; s++)
            out[s] = scales == UNIT_SCALES ? 0x40
                     : scales == ORDINARY_SCALES ? (unsigned char)(8 + below(119))
                     : (unsigned char)rng();
        for (int half = 0; type == WEIGHT_NVFP4 && half < 2; half++) {
            unsigned char sign = scales == FINITE_SCALES && below(8) == 0 ? 128 : 0;
            out[half] = scales == UNIT_SCALES       ? 0x40 /* 2 */
                        : scales == ORDINARY_SCALES ? (unsigned char)(8 + below(119))
                        : scales == FINITE_SCALES   ? (unsigned char)(below(127) | sign)
                        : below(4)                  ? (unsigned char)rng()
                                                    : (unsigned char)(127 | below(2) << 7); /* NaN */
        }
        if (type == WEIGHT_Q8_F32 && i)
            memcpy(out, out - bytes, 4); /* the scale of the row */
        else if (type == WEIGHT_CACHE_Q8 || type == WEIGHT_Q8_F32)
            memcpy(out, &(float){f16_to_f32(random_scale(scales)) * (scales == UNIT_SCALES ? 1.0f : 0x1.5p-3f)}, 4);
    }
}

void random_tensor_scale(struct weight_view *w, enum scales scales)
{
    w->tensor_scale = scales == UNIT_SCALES ? 1.0f : 0.001f * (float)(1 + below(1000));
    w->divides = (int)below(2);
}

/* --- random x --- */

/* A group as quantize might have made it, or one whose sums are as large as can be. */
void random_group(struct quantized_group *x, float d, int extreme)
{
    int8_t same = below(2) ? 127 : -127;
    x->d = d;
    x->sum = x->upper = 0;
    for (size_t l = 0; l < QUANTIZED_GROUP; l++) {
        x->q[l] = extreme ? (below(16) ? same : (int8_t)-same) : (int8_t)((int)below(255) - 127);
        x->sum += x->q[l];
        x->upper += l < 16 ? 0 : x->q[l];
    }
    x->offset8 = -8 * x->sum;
    x->offset128 = -128 * x->sum;
}

/* Numbers for quantize: random_numbers' kinds, and then some of them turned into what is special there. */
static void random_inputs(float *x, size_t K, enum kind kind)
{
    static const float special[] = {0x1p-100f, 0x1.fffffep-101f, -0x1p-100f, 0x1.fffffep127f, -0x1.fffffep127f, -0.0f,
                                    0x1p-149f, INFINITY, -INFINITY, NAN};
    random_numbers(x, WEIGHT_F32, kind, K);
    for (size_t k = 0; k < K; k += QUANTIZED_GROUP) {
        size_t choice = below(6);
        for (size_t l = 0; choice == 0 && l < QUANTIZED_GROUP; l++) /* about the least that is not 0; -0 */
            x[k + l] = below(3) ? ldexpf((float)below(256) - 128.0f, -108) : -0.0f;
        for (size_t l = 0; choice == 1 && l < QUANTIZED_GROUP; l++) /* ties: q is halfway between two integers */
            x[k + l] = l ? (float)below(254) / 2.0f - 63.5f : 127.0f;
        if (choice == 2)
            x[k + below(QUANTIZED_GROUP)] = special[below(sizeof special / sizeof *special)];
    }
}

/* T rows of G groups, ldx apart, that end at a page; between them is what ending_at_a_page leaves. */
static struct quantized_group *random_x(size_t G, size_t ldx, size_t T, int choice)
{
    struct quantized_group *x = ending_at_a_page(SLOT_X, ((T - 1) * ldx + G) * sizeof *x, 4 * below(4));
    for (size_t t = 0; t < T; t++)
        for (size_t g = 0; g < G; g++) {
            float d;
            random_numbers(&d, WEIGHT_F32, choice == 0 ? UNIFORM : (enum kind)below(KINDS), 1);
            random_group(&x[t * ldx + g], fabsf(d), choice == 2);
            if (below(choice == 3 ? 8 : 400) == 0) {
                memset(&x[t * ldx + g], 0, sizeof *x);
                x[t * ldx + g].d = below(2) ? NAN : 0.0f;
            }
        }
    return x;
}

/* --- matmul_quantized --- */

struct shape {
    size_t rows, K, T;
};

/* One view, as the tables see it and, of panels, as the blocks that they were made of. */
struct pair_of_views {
    struct weight_view w, blocks;
};

static struct pair_of_views random_views(enum weight_type type, size_t rows, size_t K, int panels, unsigned char *kept,
                                         size_t room)
{
    const struct quantized_format *f = quantized_format(type);
    struct pair_of_views v = {.w = {.type = type, .rows = rows, .cols = K,
                                    .stride = K + (below(2) ? below(3) * f->numbers : 0)}};
    size_t pitch = v.w.stride / f->numbers * f->bytes, bytes = (rows - 1) * pitch + K / f->numbers * f->bytes;
    if (rows * pitch > room) {
        fprintf(stderr, "checkasm: a buffer of %zu bytes is too small\n", room);
        exit(1);
    }
    unsigned char *data = panels ? kept : ending_at_a_page(SLOT_W, bytes, below(2) ? below(8) : 0);
    enum scales scales = below(3) ? ORDINARY_SCALES : below(3) ? FINITE_SCALES : ANY_SCALES;
    int extreme = below(4) == 0;
    for (size_t r = 0; r < rows; r++)
        random_blocks(data + r * pitch, type, scales, extreme, K / f->numbers);
    v.w.data = data;
    random_tensor_scale(&v.w, scales);
    v.blocks = v.w;
    if (panels) {
        size_t size = panels_bytes(type, rows, K);
        unsigned char *p = ending_at_a_page(SLOT_W, size, 0);
        for (size_t r = 0; r < rows; r += PANEL_ROWS)
            panel_from_blocks(p + r / PANEL_ROWS * panel_bytes(type, K), &v.blocks, r);
        v.w.data = p;
        v.w.panels = 1;
        v.w.panel_row = below(3) ? below(rows) : 0;
        v.w.rows = v.blocks.rows = rows - v.w.panel_row;
        v.blocks.data = data + v.w.panel_row * pitch;
    }
    return v;
}

static void check_matmul(enum weight_type type, int panels, const struct shape *s)
{
    static unsigned char kept[4 << 20];
    enum kernel kernel = (enum kernel)(MATMUL_QUANTIZED + type - WEIGHT_TYPES);
    struct pair_of_views v = random_views(type, s->rows, s->K, panels, kept, sizeof kept);
    size_t rows = v.w.rows, G = s->K / QUANTIZED_GROUP;
    size_t n0 = below(2) ? below(rows) : 0, n1 = below(2) ? n0 + below(rows - n0 + 1) : rows;
    size_t ldx = G + below(2) * below(5), ldy = rows + below(5), size = (s->T - 1) * ldy + rows;
    int choice = (int)below(4);
    const struct quantized_group *x = random_x(G, ldx, s->T, choice);
    float *want = ending_at_a_page(SLOT_WANT, (size + 32) * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, (size + 32) * sizeof *got, 0);
    char what[200];
    snprintf(what, sizeof what,
             "%s K=%zu stride=%zu rows %zu..%zu of %zu from row %zu, T=%zu ldy=%zu x %d (16 canaries before)",
             panels ? "panels" : "blocks", s->K, v.w.stride, n0, n1, rows, v.w.panel_row, s->T, ldy, choice);
    fill_canary(want, size + 32);
    about_to_run(kernel, &kernels_scalar, what);
    kernels_scalar.matmul_quantized(want + 16, ldy, &v.blocks, n0, n1, x, ldx, s->T, kernel_scratch());
    for (const struct kernels *k = panels ? &kernels_scalar : next_table(NULL); k;
         k = next_table(k == &kernels_scalar ? NULL : k)) {
        fill_canary(got, size + 32);
        about_to_run(kernel, k, what);
        k->matmul_quantized(got + 16, ldy, &v.w, n0, n1, x, ldx, s->T, kernel_scratch());
        same_bits(kernel, k, what, got, want, size + 32);
    }
}

static void check_shapes(enum weight_type type, int panels)
{
    /* ends of panels, of blocks of 1024, of groups of panels and of x; odd numbers of groups where the type has them */
    static const struct shape shapes[] = {
        {16, 1024, 1}, {17, 1056, 2}, {64, 1024, 3}, {65, 1056, 4},
        {33, 2048, 5}, {1, 3072, 1}, {3, 3168, 7}, {49, 3104, 1},
        {80, 32, 12}, {81, 96, 13}, {128, 64, 14}, {129, 160, 15},
        {160, 1024, 13}, {20, 2080, 6}, {5, 7168, 2}, {40, 512, 64},
        {144, 96, 64}, {7, 3232, 64}, {200, 1056, 1}, {300, 256, 2},
        {131, 544, 11}, {48, 8192, 1}, {260, 32, 17}, {31, 992, 8},
    };
    size_t unit = quantized_format(type)->numbers;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct shape s = shapes[i];
        s.K = (s.K + unit - 1) / unit * unit;
        if (!quick || s.rows * s.K * s.T < 100000)
            check_matmul(type, panels, &s);
    }
    for (size_t T = 1; T <= 15; T++)
        for (size_t i = 0; i < (quick ? 4 : 30); i++)
            check_matmul(type, panels, &(struct shape){1 + below(90), unit * (1 + below(i % 8 ? 4 : 1400 / unit)), T});
    check_matmul(type, panels, &(struct shape){20, 0, 3}); /* +0 */
}

/* --- fma_rows_cache_q8 --- */

static void check_fma_rows_cache(size_t rows, size_t cols, size_t T)
{
    static unsigned char unused[1 << 20];
    const enum kernel kernel = FMA_ROWS_CACHE_Q8;
    struct weight_view w = random_views(WEIGHT_CACHE_Q8, rows, cols, 0, unused, sizeof unused).w;
    size_t c0 = below(2) ? below(cols / 32) * 32 : 0, c1 = below(2) ? c0 + 1 + below(cols - c0) : cols;
    size_t ldx = rows + below(2) * below(50), ldy = cols + below(5), size = (T - 1) * ldy + cols;
    float *x = ending_at_a_page(SLOT_X, ((T - 1) * ldx + rows) * sizeof *x, 0);
    float *want = ending_at_a_page(SLOT_WANT, size * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, size * sizeof *got, 0);
    char what[160];
    snprintf(what, sizeof what, "rows=%zu columns %zu..%zu of %zu T=%zu stride=%zu ldy=%zu", rows, c0, c1, cols, T,
             w.stride, ldy);
    for (size_t t = 0; t < T; t++)
        random_numbers(x + t * ldx, WEIGHT_F32, (enum kind)below(KINDS), rows);
    fill_canary(want, size);
    kernels_scalar.fma_rows_cache_q8(want, ldy, &w, c0, c1, x, ldx, T, kernel_scratch());
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
        fill_canary(got, size);
        about_to_run(kernel, k, what);
        k->fma_rows_cache_q8(got, ldy, &w, c0, c1, x, ldx, T, kernel_scratch());
        same_bits(kernel, k, what, got, want, size);
    }
}

/* --- quantize --- */

static int same_group(const struct quantized_group *a, const struct quantized_group *b)
{
    return (memcmp(a, b, sizeof *a) == 0) ||
           (isnan(a->d) && isnan(b->d) &&
            memcmp(&a->sum, &b->sum, sizeof *a - offsetof(struct quantized_group, sum)) == 0);
}

static void check_quantize(size_t K, enum kind kind)
{
    size_t G = K / QUANTIZED_GROUP, bytes = (G + 2) * sizeof(struct quantized_group);
    float *x = ending_at_a_page(SLOT_X, K * sizeof *x, 4 * below(4));
    struct quantized_group *want = ending_at_a_page(SLOT_WANT, bytes, 0),
                           *got = ending_at_a_page(SLOT_GOT, bytes, 4 * below(4));
    char what[60];
    random_inputs(x, K, kind);
    kernels_scalar.quantize(want + 1, x, K);
    snprintf(what, sizeof what, "K=%zu %s", K, kind_names[kind]);
    for (size_t g = 0; g < G; g++)
        quantize_truth(&want[g + 1], x + g * QUANTIZED_GROUP, what);
    for (const struct kernels *k = next_table(NULL); k; k = next_table(k)) {
        memset(got, 0xee, bytes);
        memcpy(want, got, sizeof *want);
        memcpy(want + G + 1, got, sizeof *want);
        about_to_run(QUANTIZE, k, what);
        k->quantize(got + 1, x, K);
        for (size_t g = 0; g < G + 2; g++)
            if (!same_group(&got[g], &want[g]))
                failed(QUANTIZE, k, what, "differs from scalar, or writes elsewhere");
    }
}

void check_quantized_kernels(void)
{
    for (size_t K = 0; wanted(QUANTIZE) && K <= 32 * 40; K += 32)
        for (int kind = 0; kind < KINDS; kind++)
            check_quantize(K, (enum kind)kind);
    for (size_t i = 0; wanted(FMA_ROWS_CACHE_Q8) && i < (quick ? 60 : 600); i++)
        check_fma_rows_cache(1 + below(i % 3 ? 40 : 300), 32 * (1 + below(20)), 1 + below(20));
    for (int type = WEIGHT_TYPES; type < WEIGHT_KINDS; type++) {
        if (!wanted((enum kernel)(MATMUL_QUANTIZED + type - WEIGHT_TYPES)))
            continue;
        check_quantized_truth((enum weight_type)type);
        check_shapes((enum weight_type)type, 0);
        if (weight_has_panels((enum weight_type)type))
            check_shapes((enum weight_type)type, 1);
    }
}
