/* tools/bench.c -- `verbatim bench`: what a checkpoint's passes take beside what the machine allows, measured in turns.
 *
 * Every round runs every line once, the machine's own lines among them, so that a drift of the clock or of a neighbour meets all
 * alike; medians over rounds. A pass's least time is the larger of its bytes over the read bandwidth and its operations
 * over the peak of fma, both of this run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../simd/machine.h"
#include "bench.h"

#define READ_BYTES ((size_t)512 << 20)
#define MOST_ITEMS 64

static int no_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* --- one run of a line --- */

struct share { /* of the machine's lines, one task per thread */
    const struct bench *b;
    enum bench_kind kind;
    double done[256];
};

static void one_share(void *arg, size_t task, int thread)
{
    struct share *s = arg;
    const struct bench *b = s->b;
    size_t part = b->bytes / (size_t)b->threads & ~(size_t)255;
    (void)thread;
    if (s->kind == BENCH_READ)
        s->done[task] = machine_read((const char *)b->data + task * part, part) ? (double)part : (double)part + 1e-9;
    else
        s->done[task] = s->kind == BENCH_FMA ? machine_fma(b->isa, 1000000) : machine_bf16(1000000);
}

/* bytes read, or operations done */
static double run_machine(const struct bench *b, enum bench_kind kind)
{
    struct op_ctx cx = {.threads = b->threads, .thread_cost = 1};
    struct share s = {.b = b, .kind = kind};
    double done = 0;
    op_parallel(&cx, (size_t)b->threads, 1e9, one_share, &s);
    for (int i = 0; i < b->threads; i++)
        done += s.done[i];
    return done;
}

static int run_prefill(struct bench *b, struct bench_item *i, vb_error *err)
{
    vb_session_options o = b->c->session;
    vb_session *s = NULL;
    vb_result r;
    vb_generate_options g = {.max_tokens = 1, .ignore_eos = 1};
    o.context = (int32_t)i->rows + 1;
    int failed = vb_session_open(&s, b->c->model, &o, err) || vb_append(s, b->text, i->rows, err);
    double start = cli_seconds();
    failed = failed || vb_generate(s, &g, &r, err);
    i->seconds[b->rounds] = cli_seconds() - start;
    vb_session_close(s);
    return failed;
}

/* The cache holds `depth` rows; the pass brings `rows` more, all with logits, and they are cut again. */
static int run_pass(struct bench *b, struct bench_item *i, vb_error *err)
{
    vb_session_options o = b->c->session;
    int failed = 0;
    if (!i->session) {
        o.context = (int32_t)(i->depth + i->rows + 1);
        failed = vb_session_open(&i->session, b->c->model, &o, err) || vb_append(i->session, b->text, i->depth + 1, err) ||
                 vb_evaluate(i->session, 0, no_row, NULL, err);
    }
    failed = failed || vb_append(i->session, b->text + i->depth + 1, i->rows - 1, err);
    double start = cli_seconds();
    failed = failed || vb_evaluate(i->session, 0, no_row, NULL, err);
    i->seconds[b->rounds] = cli_seconds() - start;
    return failed || vb_truncate(i->session, i->depth + 1, err);
}

static int run_generate(struct bench *b, struct bench_item *i, vb_error *err)
{
    vb_session_options o = b->c->session;
    vb_session *s = NULL;
    vb_result r;
    vb_generate_options g = {.max_tokens = b->length, .ignore_eos = 1};
    o.context = (int32_t)(b->prompt + b->length);
    o.draft = i->draft;
    o.draft_tokens = i->K;
    int failed = vb_session_open(&s, b->c->model, &o, err);
    if (!failed && i->force >= 0)
        bench_force(s, b->plain, b->prompt + b->length, i->force);
    failed = failed || vb_append(s, b->text, b->prompt, err) || vb_generate(s, &g, &r, err);
    if (!failed) {
        i->seconds[b->rounds] = r.decode_seconds;
        i->tokens = r.tokens - 1; /* the first comes with the prompt */
        i->forwards = r.forwards;
        if (!b->plain[b->prompt]) /* the first line is plain decoding: what forced drafts know */
            memcpy(b->plain, vb_tokens(s, &(size_t){0}), (b->prompt + b->length) * sizeof *b->plain);
    }
    vb_session_close(s);
    return failed;
}

static int run_item(struct bench *b, struct bench_item *i, vb_error *err)
{
    if (i->kind == BENCH_PREFILL)
        return run_prefill(b, i, err);
    if (i->kind == BENCH_PASS)
        return run_pass(b, i, err);
    if (i->kind == BENCH_GENERATE)
        return run_generate(b, i, err);
    double start = cli_seconds(), done = run_machine(b, i->kind);
    i->seconds[b->rounds] = cli_seconds() - start;
    i->work.bytes = done;
    return 0;
}

/* --- the lines --- */

static struct bench_item *add(struct bench *b, enum bench_kind kind, const char *format, ...)
{
    va_list args;
    struct bench_item *i = &b->item[b->count++];
    *i = (struct bench_item){.kind = kind, .force = -1};
    va_start(args, format);
    vsnprintf(i->name, sizeof i->name, format, args);
    va_end(args);
    return i;
}

static void add_generate(struct bench *b, const char *draft, int K, double force)
{
    struct bench_item *i = force < 0 ? add(b, BENCH_GENERATE, K ? "%s, K %d" : "%s", draft, K)
                                     : add(b, BENCH_GENERATE, "%s, K %d, forced %.2g", draft, K, force);
    i->draft = draft;
    i->K = K ? K : -1;
    i->force = force;
    i->rows = (size_t)K + 1;
}

static int fits(const struct bench *b, size_t tokens) { return tokens <= b->text_count; }

static void choose_items(struct bench *b)
{
    static const size_t prefill[] = {128, 512, 2048}, depth[] = {16, 512, 2048}, rows[] = {2, 3, 4, 8, 16};
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle"};
    add(b, BENCH_READ, "read bandwidth");
    add(b, BENCH_FMA, "fma peak");
    if (machine_bf16(1) > 0)
        add(b, BENCH_BF16, "bf16 peak");
    for (size_t k = 0; k < sizeof prefill / sizeof *prefill; k++)
        if (fits(b, prefill[k] + 1))
            add(b, BENCH_PREFILL, "prefill %zu", prefill[k])->rows = prefill[k];
    for (size_t k = 0; k < sizeof depth / sizeof *depth; k++)
        if (fits(b, depth[k] + 2)) {
            struct bench_item *i = add(b, BENCH_PASS, "1 row after %zu", depth[k]);
            i->rows = 1;
            i->depth = depth[k];
        }
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (fits(b, depth[0] + rows[k] + 1)) {
            struct bench_item *i = add(b, BENCH_PASS, "%zu rows after %zu", rows[k], depth[0]);
            i->rows = rows[k];
            i->depth = depth[0];
        }
    add_generate(b, "none", 0, -1);
    for (size_t m = 0; m < 2 && vb_mtp_modules(b->c->model); m++)
        for (int K = 1; K <= 3; K++)
            add_generate(b, methods[m], K, -1);
    for (int K = 1; K <= 3 && vb_mtp_modules(b->c->model); K++)
        for (int p = 0; p <= 10; p += 2)
            if (b->c->force_accept < 0 ? p >= 6 : p == 0)
                add_generate(b, "mtp-eagle", K, b->c->force_accept < 0 ? p / 10.0 : b->c->force_accept);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const struct bench_item *i, int rounds, double q)
{
    double sorted[BENCH_ROUNDS];
    memcpy(sorted, i->seconds, (size_t)rounds * sizeof *sorted);
    qsort(sorted, (size_t)rounds, sizeof *sorted, compare_doubles);
    return sorted[(size_t)(q * (rounds - 1) + 0.5)];
}

double bench_median(const struct bench_item *i, int rounds) { return quantile(i, rounds, 0.5); }

/* The least time of a line on this machine; 0 where it is not known. */
static double least_seconds(const struct bench *b, const struct bench_item *i)
{
    double read = 0, peak = 0;
    for (size_t k = 0; k < b->count; k++) {
        double rate = b->item[k].work.bytes / bench_median(&b->item[k], b->rounds);
        read = b->item[k].kind == BENCH_READ ? rate : read;
        peak = b->item[k].kind == BENCH_FMA ? rate : peak;
    }
    return read > 0 && peak > 0 ? fmax(i->work.bytes / read, i->work.flops / peak) : 0;
}

/* --- telling --- */

static const struct bench_item *plain_decoding(const struct bench *b)
{
    for (size_t k = 0; k < b->count; k++)
        if (b->item[k].kind == BENCH_GENERATE)
            return &b->item[k];
    return NULL;
}

static double tokens_per_second(const struct bench *b, const struct bench_item *i)
{
    return (double)(i->kind == BENCH_GENERATE ? i->tokens : i->rows) / bench_median(i, b->rounds);
}

/* Speed-up over plain decoding, median of the rounds' own ratios. */
static double speed_up(const struct bench *b, const struct bench_item *i)
{
    const struct bench_item *plain = plain_decoding(b);
    struct bench_item ratio = *i;
    for (int r = 0; r < b->rounds; r++)
        ratio.seconds[r] = (plain->seconds[r] / (double)plain->tokens) / (i->seconds[r] / (double)i->tokens);
    return bench_median(&ratio, b->rounds);
}

static void print_table(const struct bench *b)
{
    printf("%d rounds in turns, %d threads, %s; medians, and the middle half of the rounds\n\n", b->rounds, b->threads, b->isa);
    printf("%-30s %12s %10s %16s %9s %9s\n", "", "ms", "+- %", "", "MB/pass", "of ceiling");
    for (size_t k = 0; k < b->count; k++) {
        const struct bench_item *i = &b->item[k];
        double ms = 1e3 * bench_median(i, b->rounds), least = least_seconds(b, i);
        double spread = 50 * (quantile(i, b->rounds, 0.75) - quantile(i, b->rounds, 0.25)) / bench_median(i, b->rounds);
        printf("%-30s %12.3f %10.1f ", i->name, ms, spread);
        if (i->kind == BENCH_READ)
            printf("%10.1f GB/s\n", i->work.bytes / ms / 1e6);
        else if (i->kind == BENCH_FMA || i->kind == BENCH_BF16)
            printf("%8.0f GFLOP/s\n", i->work.bytes / ms / 1e6);
        else if (i->kind == BENCH_GENERATE)
            printf("%10.1f tok/s  %5.2f per forward, %5.2fx\n", tokens_per_second(b, i), (double)i->tokens / (double)i->forwards,
                   speed_up(b, i));
        else
            printf("%10.1f tok/s %9.1f %8.0f %%\n", tokens_per_second(b, i), i->work.bytes / 1e6,
                   100 * least * 1e3 / ms);
    }
}

static json_t *item_json(const struct bench *b, const struct bench_item *i)
{
    static const char *const kinds[] = {"read", "fma", "bf16", "prefill", "pass", "generate"};
    double median = bench_median(i, b->rounds);
    json_t *j = json_pack("{s:s,s:s,s:f,s:f,s:f}", "name", i->name, "kind", kinds[i->kind], "seconds", median, "quarter",
                          quantile(i, b->rounds, 0.25), "three_quarters", quantile(i, b->rounds, 0.75));
    if (i->kind < BENCH_PREFILL) {
        json_object_set_new(j, "per_second", json_real(i->work.bytes / median));
        return j;
    }
    json_object_set_new(j, "tokens_per_second", json_real(tokens_per_second(b, i)));
    if (i->kind == BENCH_GENERATE) {
        json_object_set_new(j, "draft", json_string(i->draft));
        json_object_set_new(j, "draft_tokens", json_integer(i->K > 0 ? i->K : 0));
        json_object_set_new(j, "forced", i->force < 0 ? json_null() : json_real(i->force));
        json_object_set_new(j, "tokens_per_forward", json_real((double)i->tokens / (double)i->forwards));
        json_object_set_new(j, "speed_up", json_real(speed_up(b, i)));
        return j;
    }
    json_object_set_new(j, "rows", json_integer((json_int_t)i->rows));
    json_object_set_new(j, "depth", json_integer((json_int_t)i->depth));
    json_object_set_new(j, "bytes", json_real(i->work.bytes));
    json_object_set_new(j, "flops", json_real(i->work.flops));
    json_object_set_new(j, "of_ceiling", json_real(least_seconds(b, i) / median));
    return j;
}

static int tell(struct bench *b)
{
    if (!b->c->json) {
        print_table(b);
        return EXIT_DONE;
    }
    json_t *rows = json_array();
    for (size_t k = 0; k < b->count; k++)
        json_array_append_new(rows, item_json(b, &b->item[k]));
    return cli_print_json(json_pack("{s:i,s:i,s:s,s:o}", "rounds", b->rounds, "threads", b->threads, "isa", b->isa, "rows", rows));
}

/* --- the command --- */

static int measure(struct bench *b)
{
    vb_error err = {0};
    int code = EXIT_DONE, wanted = b->c->rounds > 0 ? (int)b->c->rounds : 9;
    for (size_t k = 0; k < b->count && code == EXIT_DONE; k++) {
        struct bench_item *i = &b->item[k];
        if (i->kind == BENCH_PREFILL)
            code = bench_pass_work(b, b->text, 0, i->rows, 0, &i->work);
        else if (i->kind == BENCH_PASS)
            code = bench_pass_work(b, b->text, i->depth, i->rows, 1, &i->work);
    }
    /* the first round only warms up: pages, caches, the continuation that forced drafts know */
    for (int round = -1; round < wanted && code == EXIT_DONE; round++)
        for (size_t k = 0; k < b->count && code == EXIT_DONE; k++) {
            b->rounds = round < 0 ? 0 : round;
            cli_progress("bench", (size_t)(round + 1) * b->count + k, (size_t)(wanted + 1) * b->count);
            if (run_item(b, &b->item[k], &err))
                code = cli_error(b->c, &err);
        }
    cli_progress("bench", 1, 1);
    b->rounds = wanted;
    return code;
}

static int prepare(struct bench *b)
{
    struct cli *c = b->c;
    uint64_t seed = c->session.sampling.seed + 1;
    const struct kernels *k = kernels_select(c->session.isa, NULL);
    vb_session *probe = NULL;
    int code = cli_session(c, 1, 1, &probe); /* refuses what is wrong with the options */
    if (code != EXIT_DONE)
        return code;
    b->threads = probe->work.cx.threads < 256 ? probe->work.cx.threads : 256;
    b->isa = k->name;
    vb_session_close(probe);
    c->session.threads = b->threads;
    c->session.draft = NULL;
    size_t most = (size_t)(c->context > 0 ? c->context : vb_max_positions(c->model));
    b->text_count = most < 2048 + 32 ? most : 2048 + 32;
    b->length = c->n > 1 ? (size_t)c->n : 64;
    b->prompt = 16;
    if (b->prompt + b->length > most)
        return cli_fail(c, EXIT_USAGE, "-n is %zu: with 16 tokens before it is beyond %s, which is %zu", b->length,
                        c->context > 0 ? "--context" : "max_position_embeddings", most);
    b->text = calloc(b->text_count, sizeof *b->text);
    b->plain = calloc(b->prompt + b->length, sizeof *b->plain);
    b->item = calloc(MOST_ITEMS, sizeof *b->item);
    b->bytes = READ_BYTES;
    b->data = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!b->text || !b->plain || !b->item || b->data == MAP_FAILED)
        return cli_fail(c, EXIT_OTHER, "no memory for %zu bytes to read", b->bytes);
    memset(b->data, 1, b->bytes);
    for (size_t i = 0; i < b->text_count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        b->text[i] = (int32_t)((seed >> 33) % (uint64_t)vb_vocab_size(c->model));
    }
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    struct bench b = {.c = c};
    int code = cli_open(c);
    if (code == EXIT_DONE && c->rounds > BENCH_ROUNDS)
        code = cli_fail(c, EXIT_USAGE, "--rounds is %lld, at most %d", c->rounds, BENCH_ROUNDS);
    if (code == EXIT_DONE)
        code = prepare(&b);
    if (code == EXIT_DONE) {
        choose_items(&b);
        code = measure(&b);
    }
    if (code == EXIT_DONE && c->svg)
        code = bench_svg(&b, c->svg);
    if (code == EXIT_DONE)
        code = tell(&b);
    for (size_t k = 0; k < b.count; k++)
        vb_session_close(b.item[k].session);
    if (b.data && b.data != MAP_FAILED)
        munmap(b.data, b.bytes);
    free(b.item);
    free(b.text);
    free(b.plain);
    return code;
}

const struct command command_bench = {
    "bench", "what passes take beside what the machine allows; the speed-up of drafting",
    "usage: verbatim bench MODEL [OPTIONS]\n\n"
    "Measures in turns, round after round: the machine's read bandwidth and peak of fma (and of BF16 pairs), prefill of 128, 512\n"
    "and 2048 tokens, one row after 16, 512 and 2048 tokens, passes of 2 to 16 rows, plain decoding, and each MTP method at K = 1,\n"
    "2, 3 as it comes and with forced acceptance: the modules draft, then each draft is made right with that probability.\n"
    "Tokens are random. Medians; the ceiling is the larger of bytes over bandwidth and operations over fma peak, each\n"
    "expert that the pass's rows chose counted once.\n\n"
    "  --rounds N             after one that warms up (9), at most 64\n"
    "  --force-accept P       only this probability, instead of 0.6, 0.8 and 1\n"
    "  -n N                   tokens decoded in a run (64)\n"
    "  --context N            nothing longer than this: 600 leaves out the lines of 2048 tokens\n"
    "  --svg OUT.svg          a picture of speed-up against acceptance for each K, with the limit\n"
    "  --seed N               of the tokens\n"
    "  --json                 {\"rows\": [{name, kind, seconds, quarter, three_quarters, tokens_per_second, ...}]}\n"
    "--threads, --isa, --precision, --numa, --mlock, --prefill-chunk: as for generate.\n",
    TAKES_COMPUTE | TAKES_LENGTH | TAKES_SAMPLING | TAKES_BENCH, run};
