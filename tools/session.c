/* tools/session.c -- `verbatim session`: saves a computed prompt, which can be continued on another machine, and shows
 * the contents of such a file. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

static void show_prefill(void *label, size_t done, size_t total) { cli_progress(label, done, total); }

/* ---- writing ---- */

static int save(struct cli *c)
{
    int32_t *prompt = NULL;
    size_t count;
    vb_session *session = NULL;
    vb_session_info info;
    vb_error err;
    int code = cli_check_file(c, "-o", c->out);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &prompt, &count);
    c->session.progress = show_prefill;
    c->session.progress_context = "reading the prompt";
    if (code == EXIT_DONE)
        code = cli_session(c, count, 0, &session);
    if (code == EXIT_DONE && (vb_append(session, prompt, count, &err) || vb_prefill(session, &err)))
        code = cli_error(c, &err);
    if (code == EXIT_DONE)
        code = cli_save_session(c, session, c->out);
    if (code == EXIT_DONE && vb_session_info_read(&info, c->out, 0, NULL, &err))
        code = cli_error(c, &err);
    if (code == EXIT_DONE && c->json)
        code = cli_print_json(json_pack("{s:s,s:I,s:I,s:I}", "file", c->out, "bytes", (json_int_t)info.bytes, "tokens",
                                        (json_int_t)info.tokens, "computed", (json_int_t)info.computed));
    else if (code == EXIT_DONE)
        printf("%s: %zu tokens, of which %zu are computed, %.3f MB\n", c->out, info.tokens, info.computed,
               1e-6 * (double)info.bytes);
    vb_session_close(session);
    free(prompt);
    return code;
}

/* ---- reading ---- */

static int print_info(const struct cli *c, const vb_session_info *i)
{
    if (c->json)
        return cli_print_json(json_pack("{s:s,s:i,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:b,s:I}",
                                        "file", c->model_dir, "version", (int)i->version, "bytes", (json_int_t)i->bytes,
                                        "tokens", (json_int_t)i->tokens, "computed", (json_int_t)i->computed, "context",
                                        (json_int_t)i->context, "checkpoint", i->checkpoint, "architecture",
                                        i->architecture, "precision", i->precision, "cache_type", i->cache_type,
                                        "conventions", i->conventions, "weights", i->weights, "prefill", i->prefill,
                                        "routes", i->routes, "draft", i->draft, "draft_conventions",
                                        i->draft_conventions, "with_hidden", i->with_hidden, "drafter_bytes",
                                        (json_int_t)i->drafter_bytes));
    printf("%s: a session of version %u, %.3f MB, undamaged\n", c->model_dir, i->version, 1e-6 * (double)i->bytes);
    printf("  model        %s: %s, precision %s, cache type %s, weights %s\n", i->checkpoint, i->architecture,
           i->precision, i->cache_type, i->weights);
    printf("  conventions  %s\n", i->conventions);
    printf("  tokens       %zu, of which %zu are computed, prefill %s; its context was %zu\n", i->tokens, i->computed,
           i->prefill, i->context);
    if (strcmp(i->routes, "none"))
        printf("  routes       forced, %s\n", i->routes);
    printf("  drafts       %s", i->draft);
    if (i->drafter_bytes)
        printf(", %.3f MB %s the target's hidden states%s%s", 1e-6 * (double)i->drafter_bytes,
               i->with_hidden ? "with" : "without", *i->draft_conventions ? "; " : "", i->draft_conventions);
    putchar('\n');
    return EXIT_DONE;
}

static int info(struct cli *c)
{
    vb_session_info i;
    vb_error err;
    char label[] = "reading";
    vb_file_options o = {.progress = cli_file_progress, .progress_context = label};
    if (!c->model_dir)
        return cli_fail(c, EXIT_USAGE, "FILE is missing; see verbatim session --help");
    int failed = vb_session_info_read(&i, c->model_dir, 1, &o, &err);
    cli_progress(label, 1, 1);
    return failed ? cli_error(c, &err) : print_info(c, &i);
}

/* ---- the command ---- */

static const struct note notes[] = {
    {"-o", "Write the session to FILE. FILE appears only when it is complete. An existing file is replaced only with "
           "--force."},
    {"--draft", "Also save the state of this draft method (default none)."},
    {"--json", "Print an object. The keys of `save` are file, bytes, tokens and computed (the number of tokens that "
               "have cache rows). "
               "The action `info` adds the keys version, context, checkpoint, architecture, precision, cache_type, "
               "conventions, weights, prefill, routes, draft, draft_conventions, with_hidden and drafter_bytes."},
    {NULL, NULL}};

static const struct command session_save = {
    "session save",
    "",
    "",
    "",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_PROMPT | TAKES_DRAFT | TAKES_PREFILL | TAKES_OUT | TAKES_SAVE,
    save,
    notes,
    0,
    NULL};
static const struct command session_info = {"session info", "", "", "", TAKES_NO_MODEL, info, notes, 0, NULL};
static const struct command *const actions[] = {&session_save, &session_info, NULL};

const struct command command_session = {
    "session", "save a computed prompt to a file for generate --session, or show the contents of such a file",
    "save MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) -o FILE [OPTIONS]\n"
    "info FILE [--json]",
    "`session save` computes the prompt and writes a file from which `generate MODEL --session FILE` continues. "
    "`generate` may run\n"
    "on another machine, and with another number of threads, instruction set or draft method. The output has the same "
    "bits.\n"
    "(`generate --save-session FILE` also saves the generated text.)\n"
    "`session info` shows the contents of FILE and checks that the file is undamaged. The only option of `session "
    "info` is --json.\n"
    "`session save` has all options below.\n",
    0, NULL, notes, 0, actions};
