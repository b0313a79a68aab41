/* tools/trace/trace.c -- `verbatim trace`: shows what each round of drafting and verification computes.
 *
 * The engine reports passes, chosen tokens, hidden rows passed to the draft method, and truncations of caches
 * (vb_trace). Each pass becomes one JSON object, which also has the tokens that were chosen from the pass and the
 * truncations after it. The table, the JSON lines and the web page show these objects. */
#include "tools/trace/trace.h"

#include <stdlib.h>
#include <string.h>

#include "tools/trace/async.h"
#include "tools/trace/batch.h"

/* loaded: how many of the tokens have cache rows that --session has loaded. */
static json_t *heading(const struct cli *c, const int32_t *ids, size_t count, size_t loaded)
{
    json_t *pieces, *tokens = trace_ids(c, ids, count, &pieces);
    json_t *begin = json_pack("{s:s,s:s,s:i,s:s,s:b,s:o,s:o}", "event", "begin", "draft", cli_draft_name(c),
                              "draft_tokens", cli_draft_tokens(c), "conventions", c->conventions, "padded",
                              c->session.padded, "prompt", tokens, "prompt_pieces", pieces);
    if (c->load)
        json_object_set_new(cli_must(begin), "loaded", json_integer((json_int_t)loaded));
    return begin;
}

static json_t *ending(const struct cli *c, const int32_t *ids, const vb_result *r)
{
    char fingerprint[17];
    json_t *pieces, *tokens = trace_ids(c, ids, r->tokens, &pieces);
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)r->fingerprint);
    return json_pack("{s:s,s:o,s:o,s:s,s:s,s:o}", "event", "end", "tokens", tokens, "pieces", pieces, "finish_reason",
                     r->finish == VB_FINISH_STOP ? "stop" : "length", "fingerprint", fingerprint, "stats",
                     cli_stats(r, cli_draft_tokens(c)));
}

int trace_show(struct cli *c, const json_t *begin, const json_t *passes, const json_t *end)
{
    size_t i;
    json_t *pass;
    int code = c->html ? trace_html(c, begin, passes, end) : EXIT_DONE;
    if (code == EXIT_DONE && c->against)
        return trace_against(c, passes);
    if (code != EXIT_DONE || (c->html && !c->json))
        return code;
    if (!c->json) {
        trace_table(stdout, passes);
        if (trace_is_async(c)) {
            putchar('\n');
            async_table(stdout, passes);
        }
        if (c->as && !strcmp(c->as, "mindie") && cli_draft_tokens(c))
            puts("MindIE's documentation shows the positions of the module's first pass in round 0 from 0; its code "
                 "counts them from 1, as here.");
        return EXIT_DONE;
    }
    json_dumpf(begin, stdout, JSON_COMPACT);
    putchar('\n');
    json_array_foreach(passes, i, pass) {
        json_dumpf(pass, stdout, JSON_COMPACT);
        putchar('\n');
    }
    json_dumpf(end, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    return EXIT_DONE;
}

int trace_is_async(const struct cli *c) { return c->schedule && !strcmp(c->schedule, "async"); }

int trace_open(struct cli *c)
{
    if (c->schedule && !trace_is_async(c) && strcmp(c->schedule, "sync"))
        return cli_fail(c, EXIT_USAGE, "--schedule is %s, wanted sync or async", c->schedule);
    if (trace_is_async(c) && (c->session.drafting.tree.topk > 1 || c->draft_tokens == CLI_AUTO))
        return cli_fail(c, EXIT_USAGE, "--schedule async plans as many drafts in each round: not with %s",
                        c->draft_tokens == CLI_AUTO ? "--draft-tokens auto" : "--draft-topk");
    int code = cli_check_file(c, "--html", c->html);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (!c->draft_given && code == EXIT_DONE && vb_mtp_modules(c->model))
        c->session.drafting.method = "mtp-eagle";
    return code;
}

/* The passes of one sequence. */
struct recorder {
    struct record record;
    json_t *passes;
};

static void record(void *context, const vb_trace *t)
{
    struct recorder *r = context;
    json_t *pass = record_event(&r->record, t);
    if (pass)
        json_array_append_new(r->passes, pass);
}

/* Opens the session before the first new token: a prompt, a loaded session, or both. *loaded: as for heading. */
static int open_session(struct cli *c, long long n, vb_session **session, size_t *loaded)
{
    int32_t *prompt = NULL;
    size_t count = 0;
    vb_session_info info = {0};
    vb_error err;
    int code = EXIT_DONE;
    c->no_bos |= c->load && !c->bos; /* the text goes on */
    if (!c->load || c->prompt || c->prompt_file || c->tokens || c->chat)
        code = cli_prompt(c, &prompt, &count);
    if (code == EXIT_DONE && c->load && vb_session_info_read(&info, c->load, 0, NULL, &err))
        code = cli_error(c, &err);
    *loaded = info.computed;
    if (code == EXIT_DONE)
        code = c->load ? cli_load_session(c, count, n, session) : cli_session(c, count, n, session);
    if (code == EXIT_DONE && count && vb_append(*session, prompt, count, &err))
        code = cli_error(c, &err);
    free(prompt);
    return code;
}

static void add_async(const struct cli *c, const json_t *passes, size_t prompt, long long n)
{
    long long context = c->context > 0 ? c->context : vb_max_positions(c->model);
    long long end = (long long)prompt + n;
    struct async_book book = {.drafts = cli_draft_tokens(c), .prompt = (long long)prompt, .tokens = (long long)prompt,
                              .end = end < context ? end : context};
    json_t *pass;
    size_t i;
    json_array_foreach(passes, i, pass)
        if (json_is_null(json_object_get(pass, "depth")))
            async_add(&book, pass);
    async_end(&book);
}

static int trace_one(struct cli *c)
{
    struct recorder r = {.record.c = c, .passes = json_array()};
    vb_session *session = NULL;
    vb_error err;
    size_t count, loaded, all;
    long long n = c->n >= 0 ? c->n : 16;
    int code = trace_open(c);
    c->session.trace = record;
    c->session.trace_context = &r;
    if (code == EXIT_DONE)
        code = open_session(c, n, &session, &loaded);
    if (code == EXIT_DONE) {
        vb_result result;
        vb_generate_options g = {.max_tokens = (size_t)n, .ignore_eos = c->ignore_eos, .fingerprint = 1};
        const int32_t *ids = vb_tokens(session, &count);
        json_t *begin = heading(c, ids, count, loaded);
        if (vb_generate(session, &g, &result, &err)) {
            code = cli_error(c, &err);
        } else {
            json_t *end = ending(c, vb_tokens(session, &all) + count, &result);
            if (trace_is_async(c))
                add_async(c, r.passes, count, n);
            code = trace_show(c, begin, r.passes, end);
            json_decref(end);
        }
        json_decref(begin);
    }
    vb_session_close(session);
    record_close(&r.record);
    json_decref(r.passes);
    return code;
}

static int run(struct cli *c) { return c->prompts ? trace_batch(c) : trace_one(c); }

static const struct note notes[] = {
    {"--draft", "Use this draft method (default: mtp-eagle if the model has MTP modules, else none)."},
    {"--prompts", "Trace a batch. Each line of FILE is a prompt, as for generate --prompts. The tokens and the "
                  "fingerprint of each sequence "
                  "are those of a trace of it alone."},
    {"--json", "Print JSON lines: one for the beginning, one for each pass, one for the end. With --html, the web page "
               "is written as "
               "well. With --against, print one object: agrees, compared, left and difference."},
    {NULL, NULL}};

const struct command command_trace = {
    "trace",
    "show what each round computes: token ids, cache slots, positions, hidden states, drafts and removed cache rows",
    "MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) [OPTIONS]\n"
    "MODEL --session FILE [--prompt TEXT | --prompt-file FILE | --tokens IDS] [OPTIONS]\n"
    "MODEL --prompts FILE [--max-sequences N] [--cache-tokens N] [--dp N] [OPTIONS]",
    "Prints one line for each pass of the model (called target) or of an MTP module. In a round, tokens are drafted "
    "and one\n"
    "pass verifies them. Round 0 computes the prompt, or the first chunk of the prompt. The table has these columns.\n"
    "  `round`, `pass`        The number of the round, and whether the target or a module runs.\n"
    "  `input ids`            The input tokens of the pass. Tokens in (brackets) are padding.\n"
    "  `slots`, `positions`   The cache row and the RoPE position of each token.\n"
    "  `context`              The number of tokens to which the last row can attend.\n"
    "  `head`                 The rows for which logits are computed.\n"
    "  `hidden rows`          Where each row's hidden state comes from: h3 is row 3 of the target, m2 is row 2 of the "
    "module itself,\n"
    "                         m0:2 is row 2 of draft depth 0, and 0 is a row of zeros.\n"
    "  `result`               The tokens that were chosen, and the cache rows that were removed afterwards.\n"
    "With --prompts, the prompts of a file share passes. The table then has one line for each sequence of a pass "
    "(`seq`; `stage` says\n"
    "whether the sequence is at its prompt or decodes), and then the lists of the pass, as other engines log them: "
    "q_lens (rows of\n"
    "each sequence), lm_head_indices (rows of the pass), drafts (of all sequences, one after another), accepted, and "
    "the sequences\n"
    "that were started, preempted and finished.\n"
    "With --dp N, the prompts are distributed over N ranks (`rank`) that compute each pass together with the same "
    "number of rows.\n"
    "With --schedule async, a second table shows what an asynchronous scheduler plans in each round before it knows "
    "the result of the\n"
    "round before (docs/ORACLE.md explains the columns).\n"
    "With --against, the passes are compared with another engine's log, and the first difference is printed.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH | TAKES_TRACE |
        TAKES_PREFILL,
    run,
    notes,
    DRAFTS_UNASKED,
    NULL};
