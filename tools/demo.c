/* tools/demo.c -- `verbatim demo`: decodes one prompt in several ways, checks that the bits are equal, and measures the
 * times. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/cli.h"
#include "tools/demo.h"

static const struct demo_way {
    const char *method;
    int draft_tokens; /* -1: the default of the method; the text is printed, too */
} ways[] = {{"none", -1}, {"mtp-eagle", 1}, {"mtp-eagle", -1}, {"mtp-vanilla", -1}};
#define WAYS 4

struct demo_run { /* whose text is shown */
    const struct cli *c;
    vb_utf8 stream;
    int colour;
};

/* Prints accepted drafts in green on a terminal, and in [brackets] elsewhere. */
static int show(void *context, const vb_event *e)
{
    struct demo_run *d = context;
    size_t size;
    char out[1024];
    const char *piece = vb_piece(d->c->tokenizer, e->token, &size);
    if (!piece || size > 256 || vb_is_end_token(d->c->model, e->token))
        return 0;
    fputs(!e->draft_depth ? "" : d->colour ? "\033[32m" : "[", stdout);
    fwrite(out, 1, vb_utf8_push(&d->stream, piece, size, out), stdout);
    fputs(!e->draft_depth ? "" : d->colour ? "\033[0m" : "]", stdout);
    fflush(stdout);
    return 0;
}

/* One of the ways with one prompt: its session, and the times of its rounds. */
struct demo_line {
    vb_session *session;
    vb_result result;
    double tokens_per_second[DEMO_ROUNDS];
};

struct demo_prompt {
    int32_t *ids;
    size_t count;
    int held_out;   /* the prompt of --held-out: it is measured, but its text is not printed */
    int rounds, same;
    struct demo_line line[WAYS];
};

static void choose(struct cli *c, int w)
{
    c->session.drafting.method = ways[w].method;
    c->draft_tokens = ways[w].draft_tokens;
}

struct demo_spread demo_spread(const double *numbers, int count)
{
    double sorted[DEMO_ROUNDS];
    for (int i = 0, k; i < count; i++) {
        for (k = i; k > 0 && sorted[k - 1] > numbers[i]; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = numbers[i];
    }
    return (struct demo_spread){(sorted[(count - 1) / 2] + sorted[count / 2]) / 2, sorted[0], sorted[count - 1]};
}

json_t *demo_numbers(const double *numbers, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_real(numbers[i]));
    return list;
}

/* Continues the prompt from the beginning. If `shown` is nonzero, prints the text as it is generated, which takes
 * time. */
static int decode(struct cli *c, const struct demo_prompt *p, struct demo_line *line, int shown)
{
    struct demo_run d = {.c = c, .colour = cli_terminal(STDOUT_FILENO)};
    vb_error err;
    vb_generate_options o = {.max_tokens = (size_t)(c->n < 0 ? 160 : c->n), .ignore_eos = c->ignore_eos,
                             .fingerprint = 1, .callback = shown ? show : NULL, .context = &d};
    line->result = (vb_result){0};
    if (vb_truncate(line->session, 0, &err) || vb_append(line->session, p->ids, p->count, &err) ||
        vb_generate(line->session, &o, &line->result, &err))
        return cli_error(c, &err);
    return EXIT_DONE;
}

static double rate_of(const vb_result *r)
{
    return r->tokens > 1 && r->decode_seconds > 0.0 ? ((double)r->tokens - 1.0) / r->decode_seconds : 0.0;
}

/* Of the medians of the tokens per second, those without drafts are the unit. */
static double speed_up(const struct demo_prompt *p, int w)
{
    double plain = demo_spread(p->line[0].tokens_per_second, p->rounds).median;
    return plain > 0.0 ? demo_spread(p->line[w].tokens_per_second, p->rounds).median / plain : 0.0;
}

static void print_table(struct cli *c, const struct demo_prompt *p)
{
    printf("%-18s  %-14s  %-18s  %-27s  %-8s  %s\n", "draft", "tokens/forward", "accepted, by depth",
           "tokens/s (median, spread)", "speed-up", "fingerprint");
    for (int w = 0; w < WAYS; w++) {
        const vb_result *r = &p->line[w].result;
        struct demo_spread rate = demo_spread(p->line[w].tokens_per_second, p->rounds);
        char draft[40], depths[64] = "", spread[48], faster[16] = "";
        choose(c, w);
        snprintf(draft, sizeof draft, w ? "%s, K = %d" : "%s", ways[w].method, cli_draft_tokens(c));
        for (int k = 0; k < cli_draft_tokens(c) && k < 5; k++)
            snprintf(depths + strlen(depths), sizeof depths - strlen(depths), k ? "  %.0f %%" : "%.0f %%",
                     r->drafted_by_depth[k] ? 100.0 * (double)r->accepted_by_depth[k] / (double)r->drafted_by_depth[k]
                                            : 0.0);
        snprintf(spread, sizeof spread, "(%.0f to %.0f)", rate.least, rate.most);
        if (w)
            snprintf(faster, sizeof faster, "%.2fx", speed_up(p, w));
        printf("%-18s  %14.2f  %-18s  %8.0f %-18s  %8s  %016" PRIx64 "\n", draft,
               r->forwards ? ((double)r->tokens - 1.0) / (double)r->forwards : 0.0, depths, rate.median, spread, faster,
               r->fingerprint);
    }
    puts(p->same ? "\nidentical, bit for bit: every logit of every token chosen has the same 32 bits" : "\nDIFFERENT");
}

static json_t *prompt_json(struct cli *c, const struct demo_prompt *p)
{
    json_t *list = json_array();
    for (int w = 0; w < WAYS; w++) {
        const struct demo_line *line = &p->line[w];
        char fingerprint[17];
        choose(c, w);
        snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, line->result.fingerprint);
        json_array_append_new(list,
                              json_pack("{s:s,s:i,s:s,s:o,s:o,s:f}", "draft", ways[w].method, "draft_tokens",
                                        cli_draft_tokens(c), "fingerprint", fingerprint, "stats",
                                        cli_stats(&line->result, cli_draft_tokens(c)), "tokens_per_second",
                                        demo_numbers(line->tokens_per_second, p->rounds), "speed_up", speed_up(p, w)));
    }
    return list;
}

static void print_heading(const struct cli *c, const char *method, const struct demo_prompt *p)
{
    size_t size, bos = p->count && p->ids[0] == vb_bos_token(c->tokenizer); /* not a part of the text */
    char *text = cli_text(c, p->ids + bos, p->count - bos, SIZE_MAX, &size);
    printf("--- %s%s\n", method, !strcmp(method, "none") ? ": one token per pass"
                                 : cli_terminal(STDOUT_FILENO)  ? ": accepted drafts are green"
                                                          : ": accepted drafts in [brackets]");
    fwrite(text, 1, size, stdout);
    free(text);
}

/* Runs each way once to show the text, which also warms up. Then measures the ways in turns, so that disturbances of
 * the machine affect all of them in the same way. */
static int run_prompt(struct cli *c, struct demo_prompt *p)
{
    int code = cli_prompt(c, &p->ids, &p->count);
    for (int w = 0; w < WAYS && code == EXIT_DONE; w++) {
        int shown = !c->json && !p->held_out && ways[w].draft_tokens < 0;
        choose(c, w);
        if (shown)
            print_heading(c, ways[w].method, p);
        code = cli_session(c, p->count, c->n < 0 ? 160 : c->n, &p->line[w].session);
        if (code == EXIT_DONE)
            code = decode(c, p, &p->line[w], shown);
        if (shown)
            puts("\n");
    }
    p->same = 1;
    for (int round = 0; round < p->rounds; round++)
        for (int w = 0; w < WAYS && code == EXIT_DONE; w++) {
            code = decode(c, p, &p->line[w], 0);
            p->line[w].tokens_per_second[round] = rate_of(&p->line[w].result);
            p->same &= code == EXIT_DONE && p->line[w].result.fingerprint == p->line[0].result.fingerprint;
        }
    for (int w = 0; w < WAYS; w++)
        vb_session_close(p->line[w].session);
    if (code == EXIT_DONE && !c->json) {
        if (p->held_out)
            printf("\n--- the prompt of --held-out\n");
        print_table(c, p);
    }
    return code;
}

static int check(struct cli *c)
{
    int code = cli_open(c);
    if (code == EXIT_DONE && c->rounds > DEMO_ROUNDS)
        code = cli_fail(c, EXIT_USAGE, "--rounds is %lld, at most %d", c->rounds, DEMO_ROUNDS);
    if (code == EXIT_DONE && !vb_mtp_modules(c->model))
        code = cli_fail(c, EXIT_USAGE, "%s has no MTP modules, which the demo shows", c->model_dir);
    if (code == EXIT_DONE && !c->tokenizer)
        code = cli_error(c, &c->tokenizer_error);
    return code;
}

static int run(struct cli *c)
{
    struct demo_prompt first = {0}, second = {.held_out = 1};
    json_t *large = NULL;
    int code = check(c), same = 1;
    first.rounds = second.rounds = c->rounds > 0 ? (int)c->rounds : 5;
    if (code == EXIT_DONE)
        code = run_prompt(c, &first);
    if (code == EXIT_DONE && c->held_out) {
        c->prompt = c->held_out;
        c->prompt_file = c->tokens = NULL;
        code = run_prompt(c, &second);
    }
    if (code == EXIT_DONE && c->large) {
        if (!c->json)
            puts("");
        code = demo_large(c, first.rounds, c->json ? &large : NULL);
    }
    same = first.same && (!c->held_out || second.same) && code != EXIT_DIFFERENCE;
    if ((code == EXIT_DONE || code == EXIT_DIFFERENCE) && c->json) {
        json_t *out = json_pack("{s:b,s:o}", "equal", same, "runs", prompt_json(c, &first));
        if (c->held_out)
            json_object_set_new(out, "held_out", prompt_json(c, &second));
        if (large)
            json_object_set(out, "large", large);
        if (cli_print_json(out) != EXIT_DONE)
            code = EXIT_OTHER;
    }
    json_decref(large);
    free(first.ids);
    free(second.ids);
    return code == EXIT_DONE && !same ? EXIT_DIFFERENCE : code;
}

static const struct note notes[] = {
    {"--rounds",
     "Measure each method N times, at most 64 (default 5). The table shows the median, the minimum and the maximum."},
    {"--json", "Print {\"equal\": ..., \"runs\": [{draft, draft_tokens, fingerprint, stats, tokens_per_second, "
               "speed_up}], ...} instead "
               "of the text."},
    {NULL, NULL}};

const struct command command_demo = {
    "demo",
    "decode one prompt without drafts, with mtp-vanilla, and with mtp-eagle, and compare the three runs",
    "MODEL --prompt TEXT [OPTIONS]",
    "Decodes the prompt with each of the three methods and prints the text each time, with accepted drafts in green. "
    "Then decodes\n"
    "the prompt several more times without printing the text, also with mtp-eagle and a single draft token, and "
    "compares speed,\n"
    "acceptance and fingerprints. A fingerprint is a hash of all logits from which tokens were chosen. The exit code "
    "is 3 if the\n"
    "fingerprints differ.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_LENGTH | TAKES_PREFILL | TAKES_DEMO,
    run,
    notes,
    0,
    NULL};
