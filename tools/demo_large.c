/* tools/demo_large.c -- measures drafting on a model whose weights come from memory, as those of real models do.
 *
 * Generates a checkpoint that is larger than the CPU caches. Its weights are random, so drafts of its module would
 * never be accepted. Therefore they are replaced by correct tokens as often as the drafts of a good module are correct.
 * The measurement shows the cost of the passes: a pass of the target over K + 1 rows instead of one, and the passes of
 * the module. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/forced.h"
#include "tools/cli/cli.h"
#include "tools/demo.h"

/* behind so many, a few drafts forced to 0.8 give 1.78, 2.29 and 2.91 tokens a pass; infinitely many 1.80, 2.44,
 * 2.95 */
#define PROMPT 25
#define NEW 33 /* the first comes with the prompt */
#define MOST_K 3
#define FORCED 0.8

static const char *const precisions[] = {"q8", "bf16"};
#define PRECISIONS 2

struct demo_model_line { /* of the table: K drafts */
    vb_session *session;
    vb_result result; /* of the last run */
    double bytes;     /* that its passes read */
    double seconds[DEMO_ROUNDS];
};

struct large {
    struct cli *c;
    vb_model *model;
    const char *precision;
    int rounds;
    int32_t prompt[PROMPT], plain[PROMPT + NEW]; /* plain: what plain decoding made of it */
    struct demo_model_line line[MOST_K + 1];
};

static int stop_when_asked(void *context, const vb_event *event)
{
    (void)context, (void)event;
    return cli_stopped() != 0;
}

/* Continues the prompt. Keeps the tokens of the first line (plain decoding), because forced drafts need them. */
static int decode(struct large *l, vb_session *session, struct demo_model_line *line, vb_error *err)
{
    vb_generate_options o = {.max_tokens = NEW, .ignore_eos = 1, .fingerprint = 1, .callback = stop_when_asked};
    line->result = (vb_result){0};
    if (vb_truncate(session, 0, err) || vb_append(session, l->prompt, PROMPT, err) ||
        vb_generate(session, &o, &line->result, err))
        return 1;
    if (line == l->line)
        memcpy(l->plain, vb_tokens(session, &(size_t){0}), (PROMPT + line->result.tokens) * sizeof *l->plain);
    return 0;
}

static int open_session(struct large *l, int K, vb_tap_callback tap, void *tap_context, vb_session **out, vb_error *err)
{
    vb_session_options o = {.context = PROMPT + NEW, .threads = l->c->session.threads, .isa = l->c->session.isa,
                            .drafting = {.method = K ? "mtp-eagle" : NULL, .tokens = K}, .tap = tap,
                            .tap_context = tap_context};
    int failed = vb_session_open(out, l->model, &o, err);
    if (!failed && K)
        bench_force(*out, l->plain, PROMPT + NEW, FORCED);
    return failed;
}

/* A run that is not timed. It counts the bytes that are read, and loads the weights into memory. */
static int count_bytes(struct large *l, int K, vb_error *err)
{
    struct bench_counter *counter = bench_counter_open(l->model, NULL, PROMPT);
    vb_session *session = NULL;
    int failed = open_session(l, K, bench_count, counter, &session, err) || decode(l, session, &l->line[K], err);
    vb_session_close(session);
    l->line[K].bytes = bench_counter_close(counter).bytes;
    return failed;
}

static int measure(struct large *l, vb_error *err)
{
    int failed = 0;
    for (int K = 0; K <= MOST_K && !failed && !cli_stopped(); K++)
        failed = count_bytes(l, K, err) || open_session(l, K, NULL, NULL, &l->line[K].session, err);
    for (int round = 0; round < l->rounds && !failed; round++)
        for (int K = 0; K <= MOST_K && !failed && !cli_stopped(); K++) {
            cli_progress(l->precision, (size_t)round * (MOST_K + 1) + (size_t)K, (size_t)l->rounds * (MOST_K + 1));
            failed = decode(l, l->line[K].session, &l->line[K], err);
            l->line[K].seconds[round] = l->line[K].result.decode_seconds;
        }
    cli_progress(l->precision, 1, 1);
    for (int K = 0; K <= MOST_K; K++)
        vb_session_close(l->line[K].session);
    return failed;
}

static struct demo_spread tokens_per_second(const struct large *l, int K)
{
    double rates[DEMO_ROUNDS];
    for (int r = 0; r < l->rounds; r++)
        rates[r] = (NEW - 1) / l->line[K].seconds[r];
    return demo_spread(rates, l->rounds);
}

/* Returns the speed-up over plain decoding in the same round, as the median over the rounds. */
static double speed_up(const struct large *l, int K)
{
    double ratios[DEMO_ROUNDS];
    for (int r = 0; r < l->rounds; r++)
        ratios[r] = l->line[0].seconds[r] / l->line[K].seconds[r];
    return demo_spread(ratios, l->rounds).median;
}

/* Returns the speed-up that is possible if time depends only on the bytes that are read. */
static double limit(const struct large *l, int K) { return l->line[0].bytes / l->line[K].bytes; }

static int is_same(const struct large *l)
{
    int same = 1;
    for (int K = 1; K <= MOST_K; K++)
        same &= l->line[K].result.fingerprint == l->line[0].result.fingerprint;
    return same;
}

static void print_lines(const struct large *l)
{
    for (int K = 0; K <= MOST_K; K++) {
        struct demo_spread rate = tokens_per_second(l, K);
        const vb_result *r = &l->line[K].result;
        char method[24] = "none", spread[48];
        if (K)
            snprintf(method, sizeof method, "mtp-eagle, K = %d", K);
        snprintf(spread, sizeof spread, "(%.1f to %.1f)", rate.least, rate.most);
        printf("%-9s  %-16s  %8.1f %-16s  %14.2f  %10.0f", l->precision, method, rate.median, spread,
               (double)(r->tokens - 1) / (double)r->forwards, l->line[K].bytes / (double)r->forwards / 1e6);
        if (K)
            printf("  %7.2fx  %4.2fx", speed_up(l, K), limit(l, K));
        putchar('\n');
    }
}

static json_t *lines_json(const struct large *l)
{
    json_t *lines = json_array();
    for (int K = 0; K <= MOST_K; K++) {
        const struct demo_model_line *line = &l->line[K];
        char fingerprint[17];
        double rates[DEMO_ROUNDS];
        for (int r = 0; r < l->rounds; r++)
            rates[r] = (NEW - 1) / line->seconds[r];
        snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, line->result.fingerprint);
        json_array_append_new(lines, json_pack("{s:s,s:i,s:I,s:I,s:f,s:f,s:f,s:s,s:o}", "precision", l->precision,
                                               "draft_tokens", K, "tokens", (json_int_t)line->result.tokens - 1,
                                               "forwards", (json_int_t)line->result.forwards, "bytes", line->bytes,
                                               "speed_up", speed_up(l, K), "limit", limit(l, K), "fingerprint",
                                               fingerprint, "tokens_per_second", demo_numbers(rates, l->rounds)));
    }
    return lines;
}

static void print_heading(const struct demo_checkpoint *made)
{
    printf("A model that caches do not hold: %.0f MB in BF16, %d dense layers with multi-head latent attention and one "
           "MTP module,\n"
           "made of random numbers for this table and removed again. Random drafts are never right, so right ones are "
           "put in\n"
           "their place with probability %.1f: the acceptance is forced, the time is measured. The limit is the "
           "speed-up if\n"
           "nothing took time but reading weights.\n\n",
           made->bytes / 1e6, made->layers, FORCED);
    printf("%-9s  %-16s  %-25s  %14s  %10s  %8s  %s\n", "precision", "draft", "tokens/s (median, spread)",
           "tokens/forward", "MB/forward", "speed-up", "limit");
}

static int one_precision(struct large *l, json_t *lines, int *same)
{
    vb_error err = {0};
    int code = measure(l, &err) ? cli_error(l->c, &err) : demo_go_on(l->c);
    if (code != EXIT_DONE)
        return code;
    *same &= is_same(l);
    json_t *of_one = lines_json(l);
    json_array_extend(lines, of_one);
    json_decref(of_one);
    if (!l->c->json)
        print_lines(l);
    fflush(stdout);
    return EXIT_DONE;
}

/* The files are removed before the measurement. Mapped memory stays valid. */
static int open_both(struct cli *c, struct demo_checkpoint *made, vb_model *model[PRECISIONS])
{
    vb_error err;
    int code = demo_checkpoint_make(c, made);
    if (code != EXIT_DONE)
        return code;
    for (int p = 0; p < PRECISIONS && code == EXIT_DONE; p++) {
        vb_model_options o = {.precision = precisions[p], .threads = c->session.threads};
        code = vb_model_open(&model[p], made->dir, &o, &err) ? cli_error(c, &err) : demo_go_on(c);
    }
    demo_checkpoint_remove(made);
    return code;
}

int demo_large(struct cli *c, int rounds, json_t **out)
{
    struct demo_checkpoint made;
    vb_model *model[PRECISIONS] = {NULL, NULL};
    json_t *lines = json_array();
    int same = 1;
    cli_listen_to_signals();
    int code = open_both(c, &made, model);
    if (code == EXIT_DONE && !c->json)
        print_heading(&made);
    for (int p = 0; p < PRECISIONS && code == EXIT_DONE; p++) {
        struct large l = {.c = c, .model = model[p], .precision = precisions[p], .rounds = rounds};
        for (int i = 0; i < PROMPT; i++)
            l.prompt[i] = 7 + 31 * i;
        code = one_precision(&l, lines, &same);
    }
    if (code == EXIT_DONE && !c->json)
        puts(same ? "\nidentical, bit for bit, in each precision" : "\nDIFFERENT");
    for (int p = 0; p < PRECISIONS; p++)
        if (model[p])
            vb_model_close(model[p]);
    if (out)
        *out = json_pack("{s:b,s:f,s:f,s:O}", "equal", same, "forced", FORCED, "checkpoint_bytes", made.bytes, "lines",
                         lines);
    json_decref(lines);
    return code == EXIT_DONE && !same ? EXIT_DIFFERENCE : code;
}
