/* tools/bench/plan.c -- `bench --plan`: which part of a pass is how far above its limit, and what limits it.
 *
 * The floor of a part is the larger of two times: its bytes divided by the read bandwidth, and its operations divided
 * by the peak speed of the instructions that do them. A clock in the pass measures each part (ops/clock.h). It also
 * tells how long threads waited: for a region to begin, for its last task, or because only one thread had work. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"

#define SHORT 16         /* tokens before a short pass */
#define USUAL_DEPTH 2048
#define PROMPT 512
#define VERIFIED 4       /* rows of a pass that verifies three drafts */

/* --- the passes --- */

int bench_check_plan(struct bench *b)
{
    struct cli *c = b->c;
    long long most = c->context > 0 ? c->context : vb_max_positions(c->model);
    if (!c->plan && c->depth)
        return cli_fail(c, EXIT_USAGE, "--depth belongs to --plan, which is not given");
    if (c->plan && (c->only || c->svg))
        return cli_fail(c, EXIT_USAGE, "--plan measures its own passes; %s does not fit with it",
                        c->only ? "--only" : "--svg");
    if (c->plan && c->model->device)
        return cli_fail(c, EXIT_USAGE,
                        "--plan measures the parts of passes on the CPU; it does not fit with --device %s", c->device);
    if (c->depth && c->depth + 2 > most)
        return cli_fail(c, EXIT_USAGE, "--depth is %lld: with two tokens more it is beyond %s, which is %lld", c->depth,
                        c->context > 0 ? "--context" : "max_position_embeddings", most);
    return EXIT_DONE;
}

static void measure_parts(struct bench_item *i, size_t rows, size_t depth)
{
    i->rows = rows;
    i->depth = depth;
    i->times = calloc(BENCH_ROUNDS, sizeof *i->times);
    cli_must(i->times);
}

static void add_pass(struct bench *b, size_t rows, size_t depth)
{
    if (bench_fits(b, depth + rows + 1))
        measure_parts(bench_add(b, BENCH_PASS, rows > 1 ? "%zu rows after %zu" : "%zu row after %zu", rows, depth),
                      rows, depth);
}

static void add_prompt(struct bench *b, size_t rows, int expanded)
{
    struct bench_item *i = bench_add(b, BENCH_PREFILL, "prompt of %zu%s", rows, expanded ? ", expanded" : "");
    i->expanded = expanded;
    measure_parts(i, rows, 0);
}

void bench_choose_plan(struct bench *b)
{
    size_t prompt = b->text_count - 1 < PROMPT ? b->text_count - 1 : PROMPT;
    add_pass(b, 1, SHORT);
    add_pass(b, 1, b->c->depth ? (size_t)b->c->depth : USUAL_DEPTH);
    add_pass(b, VERIFIED, SHORT);
    if (vb_mtp_modules(b->c->model) && bench_fits(b, SHORT + 2)) {
        struct bench_item *i = bench_add(b, BENCH_PASS, "MTP module, 1 row after %d", SHORT);
        i->module = 1;
        measure_parts(i, 1, SHORT);
    }
    add_prompt(b, prompt, 0);
    add_prompt(b, prompt, 1);
}

/* --- the lines --- */

struct peaks { /* bytes per second, and operations per second */
    double read, loop[BENCH_LOOPS];
    enum bench_kind kind[BENCH_LOOPS]; /* the instructions that reach this peak: those of the loop, or fma */
};

struct plan_line { /* a part of a pass; times are in seconds */
    const char *name, *bound;
    struct bench_work work;
    double bytes, arithmetic, floor, waiting, seconds;
    size_t regions;
    enum bench_loop loop; /* the instructions that need most of the time `arithmetic` */
};

struct plan_pass {
    const struct bench_item *item;
    struct peaks peaks;
    double seconds, median, floor, waiting;
    struct plan_line line[PASS_PARTS]; /* the largest gap first */
    size_t lines;
};

static double gap_of(const struct plan_line *l) { return l->seconds - l->floor; }

static const char *name_of(const struct config *c, enum pass_part part)
{
    switch (part) {
    case PART_Q_A: return c->q_lora_rank ? "q_a_proj and kv_a_proj" : "q_proj and kv_a_proj";
    case PART_Q_B: return "q_b_proj";
    case PART_INDEXER: return "indexer";
    case PART_ATTENTION: return "attention";
    case PART_O: return "o_proj";
    case PART_DENSE: return "dense MLP";
    case PART_ROUTER: return "router";
    case PART_EXPERTS: return c->n_shared_experts ? "experts and shared expert" : "experts";
    case PART_EH: return "eh_proj";
    case PART_HEAD: return "head";
    case PART_SMALL: return "small operators";
    default: return "outside of the pass";
    }
}

/* The fastest round of an item that measures the machine: operations per second, or 0 if that was not measured. */
static double peak_of(const struct bench *b, enum bench_kind kind)
{
    double most = 0;
    for (size_t k = 0; k < b->count; k++) {
        const struct bench_item *i = &b->item[k];
        if (i->kind == kind)
            most = fmax(most, i->work.bytes / bench_quantile(i->seconds, b->rounds, 0));
        if (kind == BENCH_FMA && i->times)
            most = fmax(most, bench_quantile(i->fma, b->rounds, 1));
    }
    return most;
}

/* The peaks are the fastest of all rounds too. So a floor is the least time that this machine has shown to be possible.
 * Products of BF16 pairs are slower than fma on some CPUs, and the kernels then use fma. The kernels also use fma if
 * there are no integer instructions for products. */
static struct peaks peaks_of(const struct bench *b, const struct bench_item *i)
{
    struct peaks p = {.read = bench_quantile(i->read, b->rounds, 1)};
    for (int loop = 0; loop < BENCH_LOOPS; loop++) {
        double fma = peak_of(b, BENCH_FMA),
               own = loop != LOOP_BF16 || b->cx.k->learns_magnitudes ? peak_of(b, BENCH_FMA + loop) : 0;
        p.loop[loop] = fmax(fma, own);
        p.kind[loop] = own >= fma ? BENCH_FMA + loop : BENCH_FMA;
    }
    return p;
}

/* All times of a pass are those of one round, so that they add up. It is the fastest one, which other programs
 * disturbed least. */
static int fastest_round(const struct bench *b, const struct bench_item *i)
{
    int best = 0;
    for (int r = 1; r < b->rounds; r++)
        if (i->seconds[r] < i->seconds[best])
            best = r;
    return best;
}

/* Outside of regions, one thread computes and the others wait. */
static double waiting_of(const struct op_clock_part *p, int threads)
{
    return p->seconds - (p->busy + p->seconds - p->inside) / threads;
}

/* Something binds a part if it needs at least a tenth of the part's time. */
static const char *bound_of(const struct plan_line *l, const struct peaks *peaks)
{
    double most = fmax(l->waiting, fmax(l->bytes, l->arithmetic));
    if (most < 0.1 * l->seconds)
        return "other work";
    return most == l->waiting ? "waiting" : most == l->bytes ? "bytes" : bench_kinds[peaks->kind[l->loop]];
}

static struct plan_line line_of(const struct bench *b, const struct bench_item *i, const struct peaks *peaks,
                                enum pass_part part)
{
    const struct op_clock_part *measured = &i->times[fastest_round(b, i)].part[part];
    struct plan_line l = {.name = name_of(&b->c->model->config, part), .work = i->parts.part[part]};
    double most = 0;
    l.bytes = l.work.bytes / peaks->read;
    for (int loop = 0; loop < BENCH_LOOPS; loop++) {
        double seconds = l.work.of_loop[loop] / peaks->loop[loop];
        l.arithmetic += seconds;
        if (seconds > most)
            l.loop = loop;
        most = fmax(most, seconds);
    }
    l.floor = fmax(l.bytes, l.arithmetic);
    l.seconds = measured->seconds;
    l.waiting = waiting_of(measured, b->threads);
    l.regions = measured->regions;
    l.bound = bound_of(&l, peaks);
    return l;
}

static int larger_gap_first(const void *a, const void *b)
{
    double x = gap_of(a), y = gap_of(b);
    return (x < y) - (x > y);
}

static struct plan_pass pass_of(const struct bench *b, const struct bench_item *i)
{
    struct plan_pass p = {.item = i, .peaks = peaks_of(b, i), .median = bench_median(i, b->rounds)};
    for (int part = 0; part < PASS_PARTS; part++) {
        struct plan_line l = line_of(b, i, &p.peaks, part);
        if (l.seconds <= 0 && l.floor <= 0)
            continue;
        p.seconds += l.seconds;
        p.floor += l.floor;
        p.waiting += l.waiting;
        p.line[p.lines++] = l;
    }
    qsort(p.line, p.lines, sizeof *p.line, larger_gap_first);
    return p;
}

/* --- the first sentence --- */

/* The largest gap, as a share of the time of its pass: a prompt needs many more milliseconds than a token. */
static const struct plan_line *next_gap(const struct plan_pass *passes, size_t count, const struct plan_pass **in)
{
    double most = -1;
    *in = passes;
    for (size_t k = 0; k < count; k++)
        if (gap_of(&passes[k].line[0]) / passes[k].seconds > most) {
            most = gap_of(&passes[k].line[0]) / passes[k].seconds;
            *in = &passes[k];
        }
    return &(*in)->line[0];
}

static void print_gap(const struct plan_pass *p, const struct plan_line *l)
{
    printf("%s, %s: %.3g ms above its floor of %.3g ms (%.0f %% of the pass), bound by %s.\n", l->name, p->item->name,
           1e3 * gap_of(l), 1e3 * l->floor, 100 * gap_of(l) / p->seconds, l->bound);
}

/* --- the tables --- */

static void print_peaks(const struct plan_pass *p)
{
    printf("Peaks: read %.1f GB/s, fma %.0f GFLOP/s", p->peaks.read / 1e9, p->peaks.loop[LOOP_FMA] / 1e9);
    for (int loop = LOOP_BF16; loop < BENCH_LOOPS; loop++)
        if (p->peaks.kind[loop] == (enum bench_kind)(BENCH_FMA + loop))
            printf(", %s %.0f %s", bench_kinds[BENCH_FMA + loop], p->peaks.loop[loop] / 1e9,
                   loop == LOOP_BF16 ? "GFLOP/s" : "Gop/s");
    printf(".\n");
}

static void print_line(const struct plan_line *l)
{
    printf("%-26s %9.1f %9.1f %9.3f %9.3f %9.3f %9.3f %9.3f ", l->name, l->work.bytes / 1e6, l->work.flops / 1e6,
           1e3 * l->bytes, 1e3 * l->arithmetic, 1e3 * l->floor, 1e3 * l->waiting, 1e3 * l->seconds);
    if (l->floor > 0)
        printf("%8.2f", l->seconds / l->floor);
    else
        printf("%8s", "");
    printf(" %7zu  %s\n", l->regions, l->bound);
}

static void print_pass(const struct plan_pass *p)
{
    struct plan_line all = {.name = "all", .bound = "", .floor = p->floor, .waiting = p->waiting,
                            .seconds = p->seconds};
    for (size_t k = 0; k < p->lines; k++) {
        const struct plan_line *l = &p->line[k];
        all.work.bytes += l->work.bytes;
        all.work.flops += l->work.flops;
        all.bytes += l->bytes;
        all.arithmetic += l->arithmetic;
        all.regions += l->regions;
    }
    printf("\n%s: %.3f ms (median of the rounds %.3f), sum of the floors %.3f ms, waiting %.3f ms\n", p->item->name,
           1e3 * p->seconds, 1e3 * p->median, 1e3 * p->floor, 1e3 * p->waiting);
    print_peaks(p);
    printf("%-26s %9s %9s %9s %9s %9s %9s %9s %8s %7s  %s\n", "ms", "MB", "Mop", "bytes", "ops", "floor", "waiting",
           "measured", "x floor", "regions", "bound by");
    for (size_t k = 0; k < p->lines; k++)
        print_line(&p->line[k]);
    print_line(&all);
}

/* --- JSON --- */

static json_t *line_json(const struct plan_line *l)
{
    return json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:s}", "name", l->name, "bytes", l->work.bytes, "flops",
                     l->work.flops, "bytes_seconds", l->bytes, "flops_seconds", l->arithmetic, "floor", l->floor,
                     "waiting", l->waiting, "seconds", l->seconds, "gap", gap_of(l), "regions", (json_int_t)l->regions,
                     "bound", l->bound);
}

static json_t *pass_json(const struct plan_pass *p)
{
    const struct bench_item *i = p->item;
    json_t *parts = json_array(), *peaks = json_pack("{s:f}", "read", p->peaks.read);
    for (size_t k = 0; k < p->lines; k++)
        json_array_append_new(parts, line_json(&p->line[k]));
    for (int loop = 0; loop < BENCH_LOOPS; loop++)
        json_object_set_new(peaks, bench_kinds[BENCH_FMA + loop],
                            p->peaks.kind[loop] == (enum bench_kind)(BENCH_FMA + loop) ? json_real(p->peaks.loop[loop])
                                                                                       : json_null());
    return json_pack("{s:s,s:I,s:I,s:s,s:b,s:f,s:f,s:f,s:f,s:o,s:o}", "name", i->name, "rows", (json_int_t)i->rows,
                     "depth", (json_int_t)i->depth, "prefill", i->expanded ? "expanded" : "contract", "module",
                     i->module, "seconds", p->seconds, "median", p->median, "floor", p->floor, "waiting", p->waiting,
                     "peaks", peaks, "parts", parts);
}

static int print_json(const struct bench *b, const struct plan_pass *passes, size_t count)
{
    const struct plan_pass *in;
    const struct plan_line *next = next_gap(passes, count, &in);
    json_t *list = json_array();
    for (size_t k = 0; k < count; k++)
        json_array_append_new(list, pass_json(&passes[k]));
    return cli_print_json(json_pack("{s:i,s:i,s:s,s:{s:s,s:s,s:f,s:f,s:s},s:o}", "rounds", b->rounds, "threads",
                                    b->threads, "isa", b->isa, "next", "pass", in->item->name, "name", next->name,
                                    "gap", gap_of(next), "floor", next->floor, "bound", next->bound, "passes", list));
}

int bench_tell_plan(const struct bench *b)
{
    struct plan_pass *passes = calloc(b->count, sizeof *passes);
    const struct plan_pass *in;
    size_t count = 0;
    cli_must(passes);
    for (size_t k = 0; k < b->count; k++)
        if (b->item[k].times)
            passes[count++] = pass_of(b, &b->item[k]);
    int code = EXIT_DONE;
    if (b->c->json) {
        code = print_json(b, passes, count);
    } else {
        const struct plan_line *next = next_gap(passes, count, &in);
        printf("The next gap: ");
        print_gap(in, next);
        printf("%d rounds in turns, %d threads, %s; each pass in its fastest round.\n", b->rounds, b->threads, b->isa);
        for (size_t k = 0; k < count; k++)
            print_pass(&passes[k]);
    }
    free(passes);
    return code;
}
