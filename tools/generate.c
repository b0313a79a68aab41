/* tools/generate.c -- `verbatim generate`: continues a prompt. */
#include <stdlib.h>

#include "tools/cli/answer.h"
#include "tools/cli/routes.h"
#include "tools/prompts/prompts.h"

static int report(struct answer *a, const vb_session *s, size_t prompt, const vb_result *r, int code)
{
    if (code != EXIT_OTHER && a->c->json)
        return cli_print_json(answer_json(a, s, prompt, r)) == EXIT_DONE ? code : EXIT_OTHER;
    if (code != EXIT_OTHER && !ferror(stdout)) /* else main says so */
        answer_statistics(a, s, prompt, r);
    return code;
}

/* The session before the first new token: a prompt, a loaded session, or both; *count tokens. */
static int open_timeline(struct cli *c, long long n, vb_session **session, size_t *count)
{
    int32_t *prompt = NULL;
    vb_error err;
    int code = EXIT_DONE;
    *count = 0;
    c->no_bos |= c->load && !c->bos; /* the text goes on */
    if (!c->load || c->prompt || c->prompt_file || c->tokens || c->chat)
        code = cli_prompt(c, &prompt, count);
    if (code == EXIT_DONE)
        code = cli_routes_in(c, c->load ? 0 : *count, SIZE_MAX);
    if (code == EXIT_DONE)
        code = c->load ? cli_load_session(c, *count, n, session) : cli_session(c, *count, n, session);
    if (code == EXIT_DONE && *count && vb_append(*session, prompt, *count, &err))
        code = cli_error(c, &err);
    if (code == EXIT_DONE)
        vb_tokens(*session, count);
    free(prompt);
    return code;
}

static int run(struct cli *c)
{
    size_t count;
    long long n = c->n < 0 ? 128 : c->n;
    vb_session *session = NULL;
    vb_result result = {.fingerprint = VB_FINGERPRINT_START};
    if (c->prompts)
        return prompts_run(c);
    int code = cli_check_file(c, "--save-session", c->save);
    if (code == EXIT_DONE)
        code = cli_check_routes_out(c);
    if (code == EXIT_DONE)
        code = cli_open(c);
    c->session.progress = answer_show_prefill;
    c->session.stop = answer_stop;
    if (code == EXIT_DONE)
        code = open_timeline(c, n, &session, &count);
    if (code == EXIT_DONE) {
        struct answer answer = {.c = c};
        code = answer_generate(&answer, session, (size_t)n, &result);
        int ended = code == EXIT_DONE || code == EXIT_INTERRUPTED;
        int saved = c->save && ended ? cli_save_session(c, session, c->save) : EXIT_DONE;
        if (saved == EXIT_DONE && ended)
            saved = cli_routes_out_of(c, session);
        if (saved == EXIT_DONE)
            code = report(&answer, session, count, &result, code);
        else
            json_decref(answer.logprobs), code = saved;
    }
    vb_session_close(session);
    return code;
}

static const struct note notes[] = {
    {"--json", "Print one JSON object on stdout with the keys prompt_tokens, tokens, text, finish_reason, stop_string, "
               "fingerprint, "
               "draft, draft_tokens, draft_topk, acceptance, lossy and stats. With --prompts, print the statistics as "
               "an object; -o is then required for the answers."},
    {NULL, NULL}};

const struct command command_generate = {
    "generate", "continue a prompt",
    "MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) [OPTIONS]\n"
    "MODEL --chat [--system TEXT] [--messages FILE] [--prompt TEXT | --prompt-file FILE] [OPTIONS]\n"
    "MODEL --prompts FILE [-o FILE] [--max-sequences N] [--cache-tokens N] [OPTIONS]\n"
    "MODEL --session FILE [--prompt TEXT | --prompt-file FILE | --tokens IDS] [OPTIONS]",
    "Prints the text on stdout while it is generated. On a terminal, accepted drafts are green. At the end, a line of "
    "statistics is\n"
    "printed on stderr. Ctrl-C stops the run before the next layer of the model is computed, and the exit code is then "
    "130.\n",
    TAKES_MODEL | TAKES_LOGPROBS | TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH |
        TAKES_STATS | TAKES_PREFILL | TAKES_STOP | TAKES_ACCEPTANCE | TAKES_SESSION | TAKES_SAVE | TAKES_PROMPTS |
        TAKES_ROUTES,
    run, notes, 0, NULL};
