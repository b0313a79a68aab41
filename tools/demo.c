/* tools/demo.c -- `verbatim demo`: one prompt, three ways to decode, the same bits. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/cli.h"

static const char *const methods[] = {"none", "mtp-vanilla", "mtp-eagle"};
#define METHODS 3

struct demo_run {
    vb_result result;
    const struct cli *c;
    struct utf8_stream stream;
    int colour;
};

/* Accepted drafts are green on a terminal, in [brackets] elsewhere. */
static int show(void *context, const vb_event *e)
{
    struct demo_run *d = context;
    size_t size;
    char out[1024];
    const char *piece = tokenizer_piece(d->c->tokenizer, e->token, &size);
    if (!piece || size > 256 || vb_is_end_token(d->c->model, e->token))
        return 0;
    fputs(!e->draft_depth ? "" : d->colour ? "\033[32m" : "[", stdout);
    fwrite(out, 1, utf8_stream_push(&d->stream, piece, size, out), stdout);
    fputs(!e->draft_depth ? "" : d->colour ? "\033[0m" : "]", stdout);
    fflush(stdout);
    return 0;
}

static int decode(struct cli *c, const char *method, const int32_t *prompt, size_t count, struct demo_run *d)
{
    vb_session *session = NULL;
    vb_error err;
    size_t n = (size_t)(c->n < 0 ? 160 : c->n);
    *d = (struct demo_run){.c = c, .colour = isatty(STDOUT_FILENO)};
    vb_generate_options o = {.max_tokens = n, .ignore_eos = c->ignore_eos, .fingerprint = 1,
                             .callback = c->json ? NULL : show, .context = d};
    c->session.draft = method;
    int code = cli_session(c, count, (long long)n, &session);
    if (code == EXIT_DONE && (vb_append(session, prompt, count, &err) || vb_generate(session, &o, &d->result, &err)))
        code = cli_error(c, &err);
    vb_session_close(session);
    return code;
}

static void print_table(struct cli *c, const struct demo_run *runs, int same)
{
    printf("%-12s  %-14s  %-28s  %-8s  %s\n", "draft", "tokens/forward", "accepted, by depth", "tokens/s", "fingerprint");
    for (int m = 0; m < METHODS; m++) {
        const vb_result *r = &runs[m].result;
        char depths[64] = "";
        c->session.draft = methods[m];
        for (int k = 0; k < cli_draft_tokens(c) && k < 5; k++)
            snprintf(depths + strlen(depths), sizeof depths - strlen(depths), k ? "  %.0f %%" : "%.0f %%",
                     r->drafted_by_depth[k] ? 100.0 * (double)r->accepted_by_depth[k] / (double)r->drafted_by_depth[k] : 0.0);
        printf("%-12s  %14.2f  %-28s  %8.1f  %016" PRIx64 "\n", methods[m],
               r->forwards ? ((double)r->tokens - 1.0) / (double)r->forwards : 0.0, depths,
               r->decode_seconds > 0.0 ? ((double)r->tokens - 1.0) / r->decode_seconds : 0.0, r->fingerprint);
    }
    puts(same ? "\nidentical, bit for bit: every logit of every token chosen has the same 32 bits" : "\nDIFFERENT");
}

static int print_json(struct cli *c, const struct demo_run *runs, int same)
{
    json_t *list = json_array();
    for (int m = 0; m < METHODS; m++) {
        char fingerprint[17];
        c->session.draft = methods[m];
        snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, runs[m].result.fingerprint);
        json_array_append_new(list, json_pack("{s:s,s:i,s:s,s:o}", "draft", methods[m], "draft_tokens", cli_draft_tokens(c),
                                              "fingerprint", fingerprint, "stats",
                                              cli_stats(&runs[m].result, cli_draft_tokens(c))));
    }
    return cli_print_json(json_pack("{s:b,s:o}", "equal", same, "runs", list));
}

static void print_heading(const struct cli *c, const char *method, const int32_t *prompt, size_t count)
{
    size_t size, bos = count && prompt[0] == tokenizer_bos(c->tokenizer); /* not a part of the text */
    char *text = cli_text(c, prompt + bos, count - bos, SIZE_MAX, &size);
    printf("--- %s%s\n", method, !strcmp(method, "none") ? ": one token per pass"
                                 : isatty(STDOUT_FILENO)  ? ": accepted drafts are green"
                                                          : ": accepted drafts in [brackets]");
    fwrite(text, 1, size, stdout);
    free(text);
}

static int run(struct cli *c)
{
    struct demo_run runs[METHODS];
    int32_t *prompt = NULL;
    size_t count;
    int code = cli_open(c), same = 1;
    if (code == EXIT_DONE && !vb_mtp_modules(c->model))
        code = cli_fail(c, EXIT_USAGE, "%s has no MTP modules, which the demo shows", c->model_dir);
    if (code == EXIT_DONE && !c->tokenizer)
        code = cli_error(c, &c->tokenizer_error);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &prompt, &count);
    for (int m = 0; m < METHODS && code == EXIT_DONE; m++) {
        if (!c->json)
            print_heading(c, methods[m], prompt, count);
        code = decode(c, methods[m], prompt, count, &runs[m]);
        if (!c->json)
            puts("\n");
        same &= code == EXIT_DONE && runs[m].result.fingerprint == runs[0].result.fingerprint;
    }
    if (code == EXIT_DONE && c->json)
        code = print_json(c, runs, same);
    else if (code == EXIT_DONE)
        print_table(c, runs, same);
    if (code == EXIT_DONE && !same)
        code = EXIT_DIFFERENCE;
    free(prompt);
    return code;
}

const struct command command_demo = {
    "demo", "one prompt decoded plainly, with MTP-Vanilla and with MTP-Eagle",
    "usage: verbatim demo MODEL --prompt TEXT [OPTIONS]\n\n"
    "Streams the text three times, accepted drafts visible, then compares speed, acceptance and fingerprints.\n"
    "Exits with 3 when the fingerprints differ.\n\n"
    "  -n N                   new tokens (160)\n"
    "  --json                 {\"equal\": ..., \"runs\": [{draft, draft_tokens, fingerprint, stats}]}, without the text\n"
    "  --temperature, --top-k, --top-p, --min-p, --seed, --repetition-penalty, --presence-penalty, --frequency-penalty,\n"
    "  --logit-bias, --prompt-file, --tokens, --bos, --no-bos, --ignore-eos, --threads, --isa,\n"
    "  --precision, --repack, --prefill-chunk, --prefill, --context, --convention, --as, --numa, --mlock    as for generate\n",
    TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_LENGTH | TAKES_PREFILL, run};
