/* tests/kernels/checkasm_bench.c -- `checkasm --bench`: what a call of each kernel takes, on one thread, next to what
 * the machine can read and multiply in the same minute. Rounds alternate between all lines, medians are printed and the
 * clock is the thread's CPU time: shared machines drift. Where a decode step would find its weights in memory, they are
 * read from WEIGHT_BYTES in turn, more than the caches hold. */
#include "simd/machine.h"
#include "simd/quantized.h"
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { ROUNDS = 7, LINES = 600, INDEX_KEYS = 256 };
#define WEIGHT_BYTES ((size_t)768 << 20)
#define STREAM_BYTES ((size_t)64 << 20) /* of them in one measurement */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *huge_pages(size_t bytes)
{
    size_t two_mb = 2 << 20;
    unsigned char *p = mmap(NULL, bytes + two_mb, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("checkasm: mmap");
        exit(1);
    }
    p += -(uintptr_t)p & (two_mb - 1);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* --- what the machine can do --- */

static volatile uint64_t sink; /* proves that the loads happen */

static double read_bandwidth(const void *data, size_t bytes)
{
    double start = seconds();
    sink = machine_read(data, bytes);
    return (double)bytes / (seconds() - start);
}

static double fma_peak(const char *isa)
{
    double start = seconds(), done = machine_fma(isa, 2000000);
    return done / (seconds() - start);
}

/* --- the lines --- */

struct line {
    enum kernel kernel;
    const struct kernels *k;
    size_t K, rows, T;  /* K or n; rows and T of matrix kernels */
    int streaming;      /* walks through WEIGHT_BYTES of weights, as a decode step does */
    int panels;         /* quantized weights, packed */
    double time[ROUNDS]; /* seconds per call */
    double read[ROUNDS]; /* bytes per second that plain reading reaches just before, if streaming */
};

static struct line lines[LINES];
static size_t n_lines;

static void add(enum kernel kernel, size_t K, size_t rows, size_t T, int streaming)
{
    if (!wanted(kernel))
        return;
    for (const struct kernels *const *k = kernel_tables; *k && n_lines < LINES; k++)
        if (kernels_runs_here(*k) && !(*k == &kernels_scalar && rows * K * T > 5000000))
            lines[n_lines++] = (struct line){kernel, *k, K, rows, T, streaming && *k != &kernels_scalar, 0, {0}, {0}};
}

static enum weight_type type_of(enum kernel kernel)
{
    return kernel == FMA_ROWS_CACHE_Q8 ? WEIGHT_CACHE_Q8
           : kernel == FMA_OUTER      ? WEIGHT_F32
           : kernel >= MATMUL_QUANTIZED ? (enum weight_type)(kernel - MATMUL_QUANTIZED + WEIGHT_TYPES)
           : kernel == MATMUL_NARROW  ? WEIGHT_BF16
                                      : (enum weight_type)(kernel % WEIGHT_TYPES);
}

/* The same of quantized weights, as blocks and, of types that have them, as panels. */
static void add_quantized(enum weight_type type, size_t K, size_t rows, size_t T, int streaming)
{
    for (int panels = 0; panels <= weight_has_panels(type); panels++) {
        size_t from = n_lines;
        add((enum kernel)(MATMUL_QUANTIZED + type - WEIGHT_TYPES), K, rows, T, streaming);
        for (; from < n_lines; from++)
            lines[from].panels = panels;
    }
}

static unsigned char *weights;
static struct quantized_group *groups;
static float *x, *y, *scale;
static int32_t slots[INDEX_KEYS]; /* 0, 1, 2, ... */

static void call(const struct line *l, const unsigned char *data)
{
    enum kernel kernel = l->kernel;
    size_t ldx = packed_length(l->K);
    struct weight_view w = {.data = data, .rows = l->rows, .cols = l->K, .stride = l->K};
    w.scale = scale;
    w.group_scale = data + l->rows * l->K / 2; /* I4, F4 */
    w.group_size = 16;
    w.tensor_scale = 1.0f;
    w.block_rows = w.block_cols = 128;
    w.scale_stride = (l->K + 127) / 128;
    float sum;
    unsigned char ordinary = MAGNITUDES_ORDINARY;
    if (kernel < FMA_ROWS) {
        w.type = (enum weight_type)(kernel - MATMUL);
        l->k->matmul[w.type](y, l->rows, &w, 0, l->rows, x, ldx, l->T, kernel_scratch());
    } else if (kernel == MATMUL_NARROW) {
        w.type = WEIGHT_BF16;
        w.magnitudes = &ordinary;
        l->k->matmul_bf16(y, l->rows, &w, 0, l->rows, (const uint16_t *)(const void *)x, ldx, l->T, kernel_scratch());
    } else if (kernel == FMA_OUTER) {
        l->k->fma_outer(y, l->K, &w, x, l->T, l->T, kernel_scratch());
    } else if (kernel == FMA_ROWS_CACHE_Q8) {
        w.type = WEIGHT_CACHE_Q8;
        l->k->fma_rows_cache_q8(y, l->K, &w, 0, l->K, x, l->rows, l->T, kernel_scratch());
    } else if (kernel >= MATMUL_QUANTIZED && kernel < FMA_ROWS_CACHE_Q8) {
        w.type = type_of(kernel);
        w.panels = l->panels;
        l->k->matmul_quantized(y, l->rows, &w, 0, l->rows, groups, l->K / QUANTIZED_GROUP, l->T, kernel_scratch());
    } else if (kernel >= FMA_ROWS_ONTO && kernel < MATMUL_NARROW) {
        w.type = (enum weight_type)(kernel - FMA_ROWS_ONTO);
        l->k->fma_rows_onto[w.type](y, l->K, &w, 0, l->K, x, l->rows, l->T, kernel_scratch());
    } else if (kernel < FMA_ROWS_ONTO) {
        w.type = (enum weight_type)(kernel - FMA_ROWS);
        l->k->fma_rows[w.type](y, l->K, &w, 0, l->K, x, l->rows, l->T, kernel_scratch());
    } else if (kernel == DOT) {
        y[0] = l->k->dot(x, y + 65536, l->K);
    } else if (kernel == PACK) {
        l->k->pack(y, x, l->K);
    } else if (kernel == NARROW) {
        l->k->narrow((uint16_t *)(void *)y, x, l->K);
    } else if (kernel == QUANTIZE) {
        l->k->quantize((struct quantized_group *)(void *)y, x, l->K);
    } else if (kernel == SOFTMAX) {
        l->k->softmax_block(y, x, l->K, &sum);
    } else if (kernel == EXP) {
        l->k->exp(y, x, l->K);
    } else if (kernel == SILU_MUL) {
        l->k->silu_mul(y, x, x + l->K, l->K);
    } else if (kernel == INDEX_SCORES) {
        struct index_view keys = {data, slots, l->rows, l->K, 1};
        l->k->index_scores(y, &keys, x, x, l->T, kernel_scratch());
    } else if (kernel == COUNT_FROM) {
        sink = l->k->count_from((const uint32_t *)(const void *)x, l->K, 0x80000000);
    } else {
        fprintf(stderr, "checkasm: `call` of checkasm_bench.c does not know %s\n", kernel_names[kernel]);
        exit(1);
    }
}

static size_t weight_bytes(const struct line *l)
{
    if (l->kernel >= DOT)
        return 0;
    enum weight_type type = type_of(l->kernel);
    if (!weight_is_quantized(type))
        return weight_is_packed(type) ? l->rows * l->K / 32 * 18 : l->rows * l->K * type_size(type);
    const struct quantized_format *f = quantized_format(type);
    return l->panels ? panels_bytes(type, l->rows, l->K) : l->rows * l->K / f->numbers * f->bytes;
}

/* the next STREAM_BYTES of the weights: every measurement finds them cold */
static unsigned char *next_stream(void)
{
    static size_t position;
    position = (position + STREAM_BYTES) % WEIGHT_BYTES;
    return weights + position;
}

static double time_line(const struct line *l)
{
    size_t bytes = weight_bytes(l), calls = l->streaming ? STREAM_BYTES / bytes : 1;
    double start, time;
    if (l->streaming) {
        const unsigned char *data = next_stream();
        start = seconds();
        for (size_t i = 0; i < calls; i++)
            call(l, data + i * bytes);
        return (seconds() - start) / (double)calls;
    }
    for (call(l, weights);; calls *= 4) {
        start = seconds();
        for (size_t i = 0; i < calls; i++)
            call(l, weights);
        time = seconds() - start;
        if (time > 2e-3)
            return time / (double)calls;
    }
}

static int by_size(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return v[n / 2];
}

int bench(void)
{
    static const size_t few[] = {1, 2, 3, 4, 5, 8};
    static double bandwidth[LINES * ROUNDS], peak[MOST_KERNEL_TABLES][ROUNDS];
    size_t n_bandwidth = 0;
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        add((enum kernel)(MATMUL + WEIGHT_BF16), 7168, 2048, few[i], 1);
    add((enum kernel)(MATMUL + WEIGHT_BF16), 2048, 7168, 1, 1);
    add((enum kernel)(MATMUL + WEIGHT_BF16), 2048, 7168, 4, 1);
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        add(MATMUL_NARROW, 7168, 2048, few[i], 1);
    add(MATMUL_NARROW, 2048, 512, 64, 0);
    add(MATMUL_NARROW, 7168, 512, 512, 0);
    for (int type = 0; type < WEIGHT_TYPES; type++) {
        for (size_t T = 1; T <= 4 && type != WEIGHT_BF16; T += 3)
            add((enum kernel)(MATMUL + type), 7168, 2048, T, 1);
        add((enum kernel)(MATMUL + type), 2048, 512, 64, 0);
        add((enum kernel)(MATMUL + type), 7168, 512, 512, 0);
    }
    for (int type = WEIGHT_TYPES; type < WEIGHT_KINDS; type++) {
        for (size_t T = 1; type != WEIGHT_CACHE_Q8 && T <= 4; T += 3)
            add_quantized((enum weight_type)type, 7168, 2048, T, 1);
        if (type != WEIGHT_CACHE_Q8)
            add_quantized((enum weight_type)type, 2048, 512, 512, 0);
    }
    add(MATMUL, 576, 256, 16, 0); /* attention scores: 256 cached rows, 16 heads */
    for (int type = 0; type < WEIGHT_TYPES; type++)
        for (size_t T = 1; T <= 4; T += 3)
            add((enum kernel)(FMA_ROWS + type), 512, 128 * 16, T, 1); /* W_uk, 16 heads side by side */
    add(FMA_ROWS, 512, 256, 16, 0);                                  /* attention values */
    add(FMA_OUTER, 512, 512, 2048, 0);                               /* gradients of a matrix [2048, 512], 512
                                                                        tokens, */
    add(FMA_ROWS_ONTO, 512, 2048, 512, 0);                           /* and of its input */
    add((enum kernel)(MATMUL_QUANTIZED + WEIGHT_CACHE_Q8 - WEIGHT_TYPES), 512, 256, 16, 0); /* with cache type q8:
                                                                                               scores of the latents, */
    add(FMA_ROWS_CACHE_Q8, 512, 256, 16, 0);                         /* and values */
    add((enum kernel)(MATMUL + WEIGHT_BF16), 576, 256, 16, 0);       /* with cache type bf16 */
    add((enum kernel)(FMA_ROWS + WEIGHT_BF16), 512, 256, 16, 0);
    add(DOT, 7168, 1, 1, 0);
    add(PACK, 7168, 1, 1, 0);
    add(NARROW, 7168, 1, 1, 0);
    add(QUANTIZE, 7168, 1, 1, 0);
    add(SOFTMAX, 256, 1, 1, 0);
    add(EXP, 4096, 1, 1, 0);
    add(SILU_MUL, 4096, 1, 1, 0);
    add(INDEX_SCORES, 128, INDEX_KEYS, 64, 0); /* 64 heads of an indexer */
    add(COUNT_FROM, 16384, 1, 1, 0);

    weights = huge_pages(WEIGHT_BYTES);
    size_t floats = (size_t)512 * 7168;
    x = huge_pages(floats * sizeof *x);
    y = huge_pages(floats * sizeof *y);
    scale = huge_pages(1 << 20);
    groups = huge_pages(floats / QUANTIZED_GROUP * sizeof *groups);
    for (int32_t i = 0; i < INDEX_KEYS; i++)
        slots[i] = i;
    rng_state = 1;
    random_numbers(x, WEIGHT_F32, UNIFORM, floats);
    random_numbers(y, WEIGHT_F32, UNIFORM, floats);
    kernels_scalar.quantize(groups, x, floats);
    random_numbers(scale, WEIGHT_F32, UNIFORM, (1 << 20) / 4);
    /* ordinary numbers for every type: bytes 0x38..0x3f are exponents near 0 in all of them */
    for (size_t i = 0; i < WEIGHT_BYTES; i += 8)
        memcpy(weights + i, &(uint64_t){(rng() & 0x8707870787078707u) | 0x3838383838383838u}, 8);

    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; kernel_tables[i]; i++)
            peak[i][round] = kernels_runs_here(kernel_tables[i]) ? fma_peak(kernel_tables[i]->name) : 0;
        for (size_t i = 0; i < n_lines; i++) {
            if (lines[i].streaming)
                bandwidth[n_bandwidth++] = lines[i].read[round] = read_bandwidth(next_stream(), STREAM_BYTES / 2);
            lines[i].time[round] = time_line(&lines[i]);
        }
    }

    printf("read %.1f GB/s", median(bandwidth, n_bandwidth) / 1e9);
    for (size_t i = 0; kernel_tables[i]; i++)
        if (kernels_runs_here(kernel_tables[i]))
            printf(", %s fma %.0f GFLOP/s", kernel_tables[i]->name, median(peak[i], ROUNDS) / 1e9);
    printf(" (one thread, medians of %d rounds)\n", ROUNDS);
    for (size_t i = 0; i < n_lines; i++) {
        struct line *l = &lines[i];
        double t = median(l->time, ROUNDS), flops = 2.0 * (double)(l->K * l->rows * l->T);
        size_t table = 0;
        while (kernel_tables[table] != l->k)
            table++;
        char name[40];
        snprintf(name, sizeof name, "%s%s", kernel_names[l->kernel], l->panels ? " panels" : "");
        printf("%-8s%-8s%-20s", l->k->name, l->k->variant ? l->k->variant : "", name);
        if (l->kernel < DOT || l->kernel == INDEX_SCORES)
            printf("%5zu x %4zu T=%-4zu%12.0f ns%8.1f GFLOP/s %3.0f%% of fma%s", l->rows, l->K, l->T, t * 1e9,
                   flops / t / 1e9, 100 * flops / t / peak[table][ROUNDS / 2], l->streaming ? "" : "\n");
        else
            printf("%5zu%21s%8.0f ns%8.2f ns per number\n", l->K, "", t * 1e9, t * 1e9 / (double)l->K);
        if (l->kernel < DOT && l->streaming)
            printf("%7.1f GB/s %3.0f%% of read\n", (double)weight_bytes(l) / t / 1e9,
                   100 * (double)weight_bytes(l) / t / median(l->read, ROUNDS));
    }
    return 0;
}
