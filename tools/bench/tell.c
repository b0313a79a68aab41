/* tools/bench/tell.c -- prints the results: medians, ratios of times in the same round, and shares of the machine's
 * limits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cuda/device.h"
#include "ops/onednn.h"
#include "ops/weights.h"
#include "tools/bench/bench.h"

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(const double *numbers, int rounds, double q)
{
    double sorted[BENCH_ROUNDS];
    memcpy(sorted, numbers, (size_t)rounds * sizeof *sorted);
    qsort(sorted, (size_t)rounds, sizeof *sorted, compare_doubles);
    return sorted[(size_t)(q * (rounds - 1) + 0.5)];
}

double bench_median(const struct bench_item *i, int rounds) { return bench_quantile(i->seconds, rounds, 0.5); }

/* Returns the median, over the rounds, of the ratio of the times of two items. Each time is first divided by the amount
 * of work in its item (over_by or under_by). */
static double ratio(const struct bench *b, const struct bench_item *over, double over_by,
                    const struct bench_item *under, double under_by)
{
    double of_round[BENCH_ROUNDS];
    for (int r = 0; r < b->rounds; r++)
        of_round[r] = over->seconds[r] / over_by / (under->seconds[r] / under_by);
    return bench_quantile(of_round, b->rounds, 0.5);
}

/* --- comparisons of two items --- */

static const struct bench_item *plain_decoding(const struct bench *b)
{
    for (size_t k = 0; k < b->count; k++)
        if (b->item[k].kind == BENCH_GENERATE)
            return &b->item[k];
    return NULL;
}

double bench_speed_up(const struct bench *b, const struct bench_item *i)
{
    const struct bench_item *plain = plain_decoding(b);
    return ratio(b, plain, (double)plain->tokens, i, (double)i->tokens);
}

double bench_limit(const struct bench *b, const struct bench_item *i)
{
    const struct bench_item *plain = plain_decoding(b);
    return plain->work.bytes / (double)plain->tokens / (i->work.bytes / (double)i->tokens);
}

/* Returns the item of the same kind, depth and matrix that has `rows` rows, this type, and this value of `onednn`; or
 * NULL. */
static const struct bench_item *sister(const struct bench *b, const struct bench_item *i, size_t rows, int onednn,
                                       enum weight_type type)
{
    for (size_t k = 0; k < b->count; k++) {
        const struct bench_item *other = &b->item[k];
        if (other->kind == i->kind && other->rows == rows && other->depth == i->depth && other->outputs == i->outputs &&
            other->inputs == i->inputs && other->onednn == onednn && other->type == type)
            return other;
    }
    return NULL;
}

/* Returns how many times as long as the item with one row this item takes, or 0 if this comparison is not useful. */
static double of_one_row(const struct bench *b, const struct bench_item *i)
{
    const struct bench_item *one = sister(b, i, 1, i->onednn, i->type);
    if (!one || one == i || (i->kind != BENCH_PASS && i->kind != BENCH_LINEAR) || i->rows == BENCH_MOST_ROWS)
        return 0;
    return ratio(b, i, (double)i->calls, one, (double)one->calls);
}

/* Returns the speed of Verbatim divided by the speed of oneDNN, or 0 if there is no item to compare with. With many
 * rows, where the speed of arithmetic matters, oneDNN computes in f32, as Verbatim does. With few rows, where reading
 * matters, both read weights of the same type. */
static double of_onednn(const struct bench *b, const struct bench_item *i)
{
    const struct bench_item *theirs = i->kind != BENCH_LINEAR || i->onednn ? NULL
        : sister(b, i, i->rows, 1, i->rows == BENCH_MOST_ROWS ? WEIGHT_F32 : i->type);
    return theirs ? ratio(b, theirs, (double)theirs->calls, i, (double)i->calls) : 0;
}

/* --- the machine's limits --- */

/* Shares of the time of an item. read: the time to read its bytes at the read bandwidth. fma: the time to do its
 * operations at the peak speed of fma. */
struct shares {
    double read, fma, ceiling; /* ceiling: the larger of the shares that apply */
    double integer;            /* for a quantized matrix: the time to do its operations at the peak of int8 or int4; 0
                                  for others */
    /* if a GPU computes parts of the item: the time to read their bytes as fast as its memory copies, and at the peak
     * that its driver says. `read` is then about the other bytes, `ceiling` about both, and fma is 0 */
    double gpu, gpu_peak;
};

/* Returns the median, over the rounds, of the speed of an item divided by the speed of the machine just before it. */
static double share(const struct bench *b, const struct bench_item *i, double work, const double *machine)
{
    double of_round[BENCH_ROUNDS];
    for (int r = 0; r < b->rounds; r++)
        of_round[r] = machine[r] > 0 ? work / i->seconds[r] / machine[r] : 0;
    return bench_quantile(of_round, b->rounds, 0.5);
}

/* The kind of peak that limits a quantized matrix: products of its codes, of eight or of four bits, with bytes of x. */
static enum bench_kind peak_of(const struct bench_item *i) { return BENCH_FMA + bench_loop_of(i->type, 0); }

/* Returns the peak speed of a kind divided by the peak speed of fma, or 0 if that kind was not measured. */
static double over_fma(const struct bench *b, enum bench_kind kind)
{
    double rate[BENCH_KINDS] = {0};
    for (size_t k = 0; k < b->count && b->item[k].kind < BENCH_PREFILL; k++)
        rate[b->item[k].kind] = b->item[k].work.bytes / bench_median(&b->item[k], b->rounds);
    return rate[kind] / rate[BENCH_FMA];
}

/* Returns the peak bandwidth of the GPU's memory, or 0 if it is not known. */
static double gpu_peak(const struct bench *b) { return b->c->model->device ? b->c->model->device->peak_bandwidth : 0; }

static struct shares shares_of(const struct bench *b, const struct bench_item *i)
{
    struct shares s = {.read = share(b, i, i->work.bytes - i->work.gpu_bytes, i->read),
                       .fma = share(b, i, i->work.flops, i->fma)};
    double peak = gpu_peak(b);
    if (i->work.gpu_bytes > 0) {
        s.fma = 0;
        s.gpu = share(b, i, i->work.gpu_bytes, i->gpu);
        s.gpu_peak = peak > 0 ? i->work.gpu_bytes / bench_median(i, b->rounds) / peak : 0;
        s.ceiling = s.gpu > 0 ? s.read + s.gpu : 0;
        return s;
    }
    if (i->kind == BENCH_LINEAR && weight_is_quantized(i->type) && over_fma(b, peak_of(i)) > 0)
        s.integer = s.fma / over_fma(b, peak_of(i));
    s.ceiling = fmax(s.read, s.integer > 0 ? s.integer : s.fma);
    return s;
}

/* Returns whether the item was faster than its bytes can be read from memory, by more than noise. Its weights then came
 * from the CPU caches, and its share of the read bandwidth has no meaning. */
static int in_cache(const struct bench_item *i, double share_of_bytes)
{
    return share_of_bytes > 1.1 && bench_pass_bytes(i) <= BENCH_BEYOND_CACHES;
}

static double efficiency(const struct bench *b, const struct bench_item *i)
{
    return bench_speed_up(b, i) / bench_limit(b, i);
}

static double tokens_per_second(const struct bench *b, const struct bench_item *i)
{
    return (double)(i->kind == BENCH_GENERATE || i->kind == BENCH_BATCH ? i->tokens : i->rows) /
           bench_median(i, b->rounds);
}

/* --- the table --- */

static void print_machine(const struct bench_item *i, double seconds)
{
    if (i->kind == BENCH_READ || i->kind == BENCH_GPU)
        printf("%10.1f GB/s\n", i->work.bytes / seconds / 1e9);
    else
        printf("%10.0f %s\n", i->work.bytes / seconds / 1e9, i->kind >= BENCH_INT8 ? "Gop/s" : "GFLOP/s");
}

static void print_op(const struct bench *b, const struct bench_item *i, double seconds, struct shares s)
{
    int reads = i->kind == BENCH_LINEAR && i->rows < BENCH_MOST_ROWS, bytes = !reads && s.integer > 0;
    double one = of_one_row(b, i), theirs = of_onednn(b, i);
    printf("%10.1f %-7s %8.1f %8.0f %% of %s", (reads ? i->work.bytes : i->work.flops) / seconds / 1e9,
           reads ? "GB/s"
           : bytes ? "Gop/s"
           : "GFLOP/s",
           i->work.bytes / (double)i->calls / 1e6,
           100 * (reads ? s.read
                  : bytes ? s.integer
                  : s.fma),
           reads ? "read" : bench_kinds[bytes ? peak_of(i) : BENCH_FMA]);
    if (one > 0)
        printf(", %.2f times 1 row", one);
    if (theirs > 0)
        printf(", %.2f of oneDNN%s", theirs, i->rows == BENCH_MOST_ROWS ? " f32" : "");
    putchar('\n');
}

static void print_gpu_share(const struct bench *b, const struct bench_item *i, struct shares s)
{
    if (i->work.gpu_bytes > 0)
        printf(", GPU %.1f GB/s", i->work.gpu_bytes / bench_median(i, b->rounds) / 1e9);
    if (s.gpu > 0)
        printf(", %.0f %% of copying", 100 * s.gpu);
    if (s.gpu_peak > 0)
        printf(", %.0f %% of its peak", 100 * s.gpu_peak);
}

static void print_passes(const struct bench *b, const struct bench_item *i, struct shares s)
{
    double one = of_one_row(b, i);
    printf("%10.1f %-7s %8.1f ", tokens_per_second(b, i), "tok/s", bench_pass_bytes(i) / 1e6);
    if (in_cache(i, fmax(s.read, s.gpu)))
        printf("%10s", "in cache");
    else if (s.ceiling > 0)
        printf("%8.0f %%", 100 * s.ceiling);
    else
        printf("%10s", "-");
    print_gpu_share(b, i, s);
    if (one > 0)
        printf(", %.2f times 1 row", one);
    if (i->kind == BENCH_GENERATE && i->K > 0) {
        printf(", %.2f per forward, %.2fx, ", (double)i->tokens / (double)i->forwards, bench_speed_up(b, i));
        if (in_cache(i, efficiency(b, i)))
            printf("in cache (the limit of memory is %.2fx)", bench_limit(b, i));
        else
            printf("%.0f %% of its limit %.2fx", 100 * efficiency(b, i), bench_limit(b, i));
    }
    putchar('\n');
}

static void print_batch(const struct bench *b, const struct bench_item *i)
{
    printf("%10.1f %-7s", tokens_per_second(b, i), "tok/s");
    if (plain_decoding(b))
        printf(" %19.2f times one sequence", bench_speed_up(b, i));
    putchar('\n');
}

static void print_gpu(const struct bench *b)
{
    vb_device_facts f;
    vb_device_look(b->c->model, &f);
    if (!*f.name)
        return;
    printf("%s computes %d of %d layers%s; ", f.name, (int)f.layers, (int)f.all_layers,
           f.heads ? ", the head and the MTP modules" : "");
    if (gpu_peak(b) > 0)
        printf("the peak of its memory is %.0f GB/s, as its driver says\n", gpu_peak(b) / 1e9);
    else
        printf("its driver does not say the peak of its memory\n");
}

static void print_table(const struct bench *b)
{
    printf("%d rounds in turns, %d threads, %s; medians, and the middle half of the rounds; ", b->rounds, b->threads,
           b->isa);
    printf("%s%s\n",
           b->onednn ? "oneDNN " : "no lines of oneDNN: ", b->onednn ? onednn_version(b->onednn) : b->no_onednn);
    if (b->onednn && b->no_onednn_bf16)
        printf("no lines of oneDNN with BF16 weights: %s\n", b->no_onednn_bf16);
    print_gpu(b);
    putchar('\n');
    printf("%-32s %10s %7s %18s %8s %10s\n", "", "ms", "+- %", "", "MB", "of ceiling");
    for (size_t k = 0; k < b->count; k++) {
        const struct bench_item *i = &b->item[k];
        double median = bench_median(i, b->rounds), calls = i->calls ? (double)i->calls : 1;
        double spread = 50 *
                        (bench_quantile(i->seconds, b->rounds, 0.75) - bench_quantile(i->seconds, b->rounds, 0.25)) /
                        median;
        printf("%-32s %10.3f %7.1f ", i->name, 1e3 * median / calls, spread);
        if (i->kind < BENCH_PREFILL)
            print_machine(i, median);
        else if (i->kind == BENCH_LINEAR || i->kind == BENCH_ATTENTION)
            print_op(b, i, median, shares_of(b, i));
        else if (i->kind == BENCH_BATCH)
            print_batch(b, i);
        else
            print_passes(b, i, shares_of(b, i));
    }
}

/* --- JSON --- */

static void set(json_t *j, const char *key, double value)
{
    json_object_set_new(j, key, value > 0 ? json_real(value) : json_null());
}

static void add_op(const struct bench *b, json_t *j, const struct bench_item *i)
{
    json_object_set_new(j, "calls", json_integer((json_int_t)i->calls));
    if (i->kind != BENCH_LINEAR)
        return;
    json_object_set_new(j, "outputs", json_integer((json_int_t)i->outputs));
    json_object_set_new(j, "inputs", json_integer((json_int_t)i->inputs));
    json_object_set_new(j, "by", json_string(i->onednn ? "onednn" : "verbatim"));
    int quantized = weight_is_quantized(i->type), bf16 = i->onednn ? i->type == WEIGHT_BF16 : b->arithmetic.bf16;
    json_object_set_new(j, "weights",
                        json_string(quantized ? quantized_format(i->type)->name
                                    : i->type == WEIGHT_F32 ? "f32"
                                    : "bf16"));
    json_object_set_new(j, "activations", json_string(quantized ? "int8" : bf16 ? "bf16" : "f32"));
    set(j, "of_onednn", of_onednn(b, i));
}

static void add_generated(const struct bench *b, json_t *j, const struct bench_item *i)
{
    json_object_set_new(j, "draft", json_string(i->draft));
    json_object_set_new(j, "draft_tokens", json_integer(i->K > 0 ? i->K : 0));
    json_object_set_new(j, "draft_topk", json_integer(i->topk > 1 ? i->topk : 1));
    json_object_set_new(j, "forced", i->force < 0 ? json_null() : json_real(i->force));
    set(j, "tokens_per_forward", (double)i->tokens / (double)i->forwards);
    json_object_set_new(j, "tokens", json_integer((json_int_t)i->tokens));
    json_object_set_new(j, "forwards", json_integer((json_int_t)i->forwards));
    set(j, "speed_up", bench_speed_up(b, i));
    set(j, "limit", bench_limit(b, i));
    set(j, "efficiency", efficiency(b, i));
}

static json_t *item_json(const struct bench *b, const struct bench_item *i)
{
    double median = bench_median(i, b->rounds);
    json_t *j = json_pack("{s:s,s:s,s:f,s:f,s:f}", "name", i->name, "kind", bench_kinds[i->kind], "seconds", median,
                          "quarter", bench_quantile(i->seconds, b->rounds, 0.25), "three_quarters",
                          bench_quantile(i->seconds, b->rounds, 0.75));
    if (i->kind < BENCH_PREFILL) {
        set(j, "per_second", i->work.bytes / median);
        return j;
    }
    if (i->kind == BENCH_BATCH) {
        json_object_set_new(j, "sequences", json_integer((json_int_t)i->rows));
        json_object_set_new(j, "tokens", json_integer((json_int_t)i->tokens));
        set(j, "tokens_per_second", tokens_per_second(b, i));
        set(j, "speed_up", plain_decoding(b) ? bench_speed_up(b, i) : 0);
        return j;
    }
    struct shares s = shares_of(b, i);
    json_object_set_new(j, "in_cache", json_boolean(in_cache(i, fmax(s.read, s.gpu))));
    set(j, "bytes", i->work.bytes);
    set(j, "gpu_bytes", i->work.gpu_bytes);
    set(j, "gpu_bytes_per_second", i->work.gpu_bytes / median);
    set(j, "of_gpu_copy", s.gpu);
    set(j, "of_gpu_peak", s.gpu_peak);
    set(j, "flops", i->work.flops);
    set(j, "of_read", s.read);
    set(j, "of_fma", s.fma);
    set(j, "of_int8", peak_of(i) == BENCH_INT8 ? s.integer : 0);
    set(j, "of_int4", peak_of(i) == BENCH_INT4 ? s.integer : 0);
    set(j, "of_ceiling", s.ceiling);
    if (i->kind == BENCH_LINEAR || i->kind == BENCH_ATTENTION)
        add_op(b, j, i);
    else
        set(j, "tokens_per_second", tokens_per_second(b, i));
    if (i->kind == BENCH_GENERATE) {
        add_generated(b, j, i);
        return j;
    }
    json_object_set_new(j, "rows", json_integer((json_int_t)i->rows));
    if (i->kind == BENCH_PREFILL) {
        json_object_set_new(j, "by", json_string(i->onednn ? "onednn" : "verbatim"));
        json_object_set_new(j, "prefill", json_string(i->onednn ? "onednn" : i->expanded ? "expanded" : "contract"));
    }
    json_object_set_new(j, "depth", json_integer((json_int_t)i->depth));
    set(j, "of_one_row", of_one_row(b, i));
    return j;
}

static json_t *gpu_json(const struct bench *b)
{
    vb_device_facts f;
    vb_device_look(b->c->model, &f);
    json_t *j = *f.name ? json_pack("{s:s,s:i,s:b}", "name", f.name, "layers", (int)f.layers, "heads", (int)f.heads)
                        : json_null();
    if (*f.name)
        set(j, "peak_bytes_per_second", gpu_peak(b));
    return j;
}

int bench_tell(struct bench *b)
{
    if (b->c->plan)
        return bench_tell_plan(b);
    if (!b->c->json) {
        print_table(b);
        return EXIT_DONE;
    }
    json_t *rows = json_array();
    for (size_t k = 0; k < b->count; k++)
        json_array_append_new(rows, item_json(b, &b->item[k]));
    return cli_print_json(json_pack("{s:i,s:i,s:s,s:o,s:s?,s:s?,s:s?,s:o}", "rounds", b->rounds, "threads", b->threads,
                                    "isa", b->isa, "gpu", gpu_json(b), "onednn",
                                    b->onednn ? onednn_version(b->onednn) : NULL, "no_onednn", b->no_onednn,
                                    "no_onednn_bf16", b->no_onednn_bf16, "rows", rows));
}
