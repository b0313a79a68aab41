/* tools/prompts/prompts.c -- `verbatim generate --prompts`: computes a file of prompts in one batch
 * (engine/session/batch.c). Only a few prompts are parsed at a time; the others wait as text. */
#include "tools/prompts/prompts.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tools/cli/answer.h"

#define MOST_METHODS 16

struct prompts_request {
    struct prompts_request *next;
    struct prompts *all;
    size_t line;
    struct prompt prompt;
};

struct prompts {
    struct cli *c;
    struct prompt_file file;
    struct answers answers;
    char settings[SETTINGS_SIZE], where[300];
    char tried[MOST_METHODS + 1][VB_MAX_DRAFT + 2]; /* draft methods and draft lengths for which a session can be
                                                       opened */
    vb_batch *batch;
    vb_batch_state state;
    struct prompts_request *running; /* the requests that the batch has, running or waiting */
    size_t next;             /* the next line to be added */
    int32_t max_sequences, context;
    size_t draft_bytes;      /* of a sequence, at most */
    size_t answered, prompt_tokens, tokens, forwards, drafted, accepted; /* of this run */
    int longest_draft;
    double started, shown, seconds;
    int code, interrupted;
};

/* On stderr, unless a program listens. */
static void tell(const struct prompts *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(const struct prompts *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!p->c->json)
        vfprintf(stderr, format, args);
    va_end(args);
}

static int limit(const struct cli *c) { return c->context > 0 ? (int)c->context : vb_max_positions(c->model); }

static double rate(double count, double seconds) { return seconds > 0.0 ? count / seconds : 0.0; }

/* ---- before anything starts -------------------------------------------------------------------------------------- */

static vb_session_options session_options(const struct cli *c)
{
    vb_session_options o = c->session;
    o.stop = answer_stop;
    o.drafting.method = cli_draft_name(c);
    o.drafting.tokens = cli_draft_tokens(c);
    o.drafting.automatic = c->draft_tokens == CLI_AUTO;
    return o;
}

vb_drafting prompts_drafting(const struct cli *c, const struct prompt *q)
{
    vb_drafting d = session_options(c).drafting;
    d.method = q->draft ? q->draft : d.method;
    d.tokens = q->draft || q->draft_tokens ? q->draft_tokens : d.tokens;
    return d;
}

/* Opens a session as the batch will, with a context of so many tokens: what is wrong with methods and options comes out
 * now. */
static int try_session(const struct cli *c, const struct prompt *q, int32_t context, size_t *draft_bytes)
{
    vb_session_options o = session_options(c);
    vb_session *s;
    vb_error err;
    vb_draft_method method;
    o.context = context;
    if (q) {
        o.sampling = q->sampling;
        o.drafting = prompts_drafting(c, q);
    }
    if (!vb_draft_method_find(&method, o.drafting.method, NULL) && method.by_history && o.drafting.tokens >= 0 &&
        (cli_is_rejection(c) || cli_is_relaxed(c)))
        return cli_fail(c, EXIT_USAGE,
                        "--acceptance %s with %s: many prompts at once want a method whose drafts do not depend on the "
                        "rounds before",
                        cli_acceptance(c), method.name);
    if (vb_session_open(&s, c->model, &o, &err))
        return cli_error(c, &err);
    if (draft_bytes)
        *draft_bytes = vb_draft_memory(s);
    vb_session_close(s);
    return EXIT_DONE;
}

static int check_draft(struct prompts *p, const struct prompt *q)
{
    vb_draft_method known;
    size_t method = 0;
    if (!q->draft && !q->draft_tokens)
        return EXIT_DONE;
    if (q->draft && strcmp(q->draft, "none"))
        for (method = 1; vb_draft_methods(method - 1, &known) && strcmp(known.name, q->draft);)
            method++;
    else if (!q->draft)
        method = MOST_METHODS; /* the command line's */
    char *tried = &p->tried[method < MOST_METHODS ? method : MOST_METHODS][q->draft_tokens + 1];
    int code = *tried ? EXIT_DONE : try_session(p->c, q, 1, NULL);
    *tried = 1;
    return code;
}

static int check_line(struct prompts *p, struct prompt_line *line)
{
    struct prompt q;
    int most = limit(p->c), code = prompt_read(p->c, line, &q);
    if (code != EXIT_DONE)
        return code;
    line->most = q.count + q.max_tokens < (size_t)most ? q.count + q.max_tokens : (size_t)most;
    if (q.count > (size_t)most)
        code = cli_fail(p->c, EXIT_USAGE, "the prompt has %zu tokens, the context %d", q.count, most);
    else
        code = check_draft(p, &q);
    if (code == EXIT_DONE && (json_object_get(q.json, "routes_in") || json_object_get(q.json, "kept_in")))
        line->routes = prompt_routes_hash(&q);
    prompt_close(&q);
    return code;
}

/* Sets the prefix of error messages to this line. */
static void be_at(struct prompts *p, size_t line)
{
    snprintf(p->where, sizeof p->where, "%.200s: line %zu", p->file.name, line + 1);
    p->c->where = p->where;
}

static int check_lines(struct prompts *p)
{
    const struct cli *c = p->c;
    int32_t ignored;
    int code = prompts_context(c, 0, &ignored);
    if (c->context > vb_max_positions(c->model))
        return cli_fail(c, EXIT_USAGE, "--context is %lld, max_position_embeddings is %d", c->context,
                        vb_max_positions(c->model));
    for (size_t i = 0; i < p->file.num_lines && code == EXIT_DONE; i++) {
        if (i % 64 == 0)
            cli_progress("checking the prompts", i, p->file.num_lines);
        be_at(p, i);
        if (p->file.line[i].size)
            code = check_line(p, &p->file.line[i]);
    }
    cli_progress("checking the prompts", 1, 1);
    p->c->where = NULL;
    return code;
}

static int check_options(struct cli *c)
{
    vb_generate_options o;
    int code = cli_thinking(c);
    if (code == EXIT_DONE)
        code = cli_stops(c, &o);
    return code == EXIT_DONE ? try_session(c, NULL, 1, NULL) : code;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static json_t *answer(const struct prompts_request *r, const vb_request_end *end)
{
    const struct cli *c = r->all->c;
    const vb_result *result = end->result;
    char key[KEY_SIZE], fingerprint[17];
    json_t *id = r->prompt.id ? json_incref((json_t *)(uintptr_t)r->prompt.id) : json_null(), *ids;
    prompt_key(&r->all->file.line[r->line], r->all->settings, key);
    if (end->code)
        return json_pack("{s:I,s:s,s:o,s:s}", "index", (json_int_t)r->line, "request", key, "id", id, "error",
                         end->error->message);
    ids = json_array();
    for (size_t i = end->prompt; i < end->count; i++)
        json_array_append_new(ids, json_integer(end->tokens[i]));
    size_t size = 0;
    char *text = cli_text(c, end->tokens + end->prompt, end->count - end->prompt, result->text_bytes, &size);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, result->fingerprint);
    json_t *out = json_pack("{s:I,s:s,s:o,s:I,s:o,s:o,s:s,s:s?,s:s}", "index", (json_int_t)r->line, "request", key,
                            "id", id, "prompt_tokens", (json_int_t)end->prompt, "tokens", ids, "text",
                            text ? json_stringn(text, size) : json_null(), "finish_reason",
                            result->finish == VB_FINISH_STOP ? "stop" : "length", "stop_string",
                            result->stop_string ? r->prompt.stop[result->stop_string - 1] : NULL, "fingerprint",
                            fingerprint);
    free(text);
    return out;
}

static void drop(struct prompts_request *r)
{
    struct prompts_request **at = &r->all->running;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    prompt_close(&r->prompt);
    free(r);
}

static void erase_progress(void)
{
    if (cli_terminal(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

static void done(void *context, const vb_request_end *end)
{
    struct prompts_request *r = context;
    struct prompts *p = r->all;
    /* the prompt is not to blame: it is computed again by the next run */
    if (p->code == EXIT_DONE && end->code == VB_NO_MEMORY) {
        p->code = cli_error(p->c, end->error);
    } else if (p->code == EXIT_DONE) {
        if (!p->answers.path && cli_terminal(STDOUT_FILENO))
            erase_progress();
        p->code = answers_write(p->c, &p->answers, answer(r, end));
        p->answered++;
        p->prompt_tokens += end->prompt;
        p->forwards += end->result->forwards;
        p->drafted += end->result->drafted;
        int used = cli_used_tokens(p->c, end->result);
        p->longest_draft = used > p->longest_draft ? used : p->longest_draft;
        p->accepted += end->result->accepted;
    }
    drop(r);
}

static int count_token(void *context, const vb_event *e)
{
    struct prompts_request *r = context;
    (void)e;
    r->all->tokens++;
    return 0;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int add_line(struct prompts *p, size_t line)
{
    struct prompts_request *r = calloc(1, sizeof *r);
    vb_error err;
    if (!r)
        return cli_fail(p->c, EXIT_OTHER, "no memory for a request");
    be_at(p, line);
    *r = (struct prompts_request){.next = p->running, .all = p, .line = line};
    p->running = r;
    int code = prompt_read(p->c, &p->file.line[line], &r->prompt);
    struct prompt *q = &r->prompt;
    vb_drafting drafting = prompts_drafting(p->c, q);
    vb_generate_options options = {.max_tokens = q->max_tokens, .ignore_eos = p->c->ignore_eos, .fingerprint = 1,
                                   .callback = count_token, .context = r, .tokenizer = p->c->tokenizer,
                                   .stop = q->stop, .stop_count = q->num_stops};
    vb_request asked = {.tokens = q->tokens, .count = q->count, .sampling = &q->sampling, .drafting = &drafting,
                        .routes = q->routes.tokens ? &q->routes : NULL, .options = &options, .done = done,
                        .context = r};
    if (code == EXIT_DONE && vb_batch_add(p->batch, &asked, NULL, &err))
        code = cli_error(p->c, &err);
    if (code != EXIT_DONE)
        drop(r);
    p->c->where = NULL;
    return code;
}

/* As many in line as may run: what is beyond waits as text. */
static int fill(struct prompts *p)
{
    int code = EXIT_DONE;
    vb_batch_look(p->batch, &p->state);
    for (size_t waiting = p->state.waiting;
         code == EXIT_DONE && p->next < p->file.num_lines && waiting < (size_t)p->max_sequences; p->next++)
        if (p->file.line[p->next].size && !p->file.line[p->next].answered) {
            code = add_line(p, p->next);
            waiting++;
        }
    return code;
}

static void show_progress(struct prompts *p)
{
    double now = cli_seconds();
    char bar[31] = "..............................";
    size_t there = p->answers.kept + p->answered, all = p->file.num_prompts;
    if (!cli_terminal(STDERR_FILENO) || now - p->shown < 0.1)
        return;
    p->shown = now;
    memset(bar, '#', there * (sizeof bar - 1) / all);
    fprintf(stderr, "\r\033[K[%s] %zu of %zu prompts, %.1f tokens/s", bar, there, all,
            rate((double)p->tokens, now - p->started));
}

static int loop(struct prompts *p)
{
    size_t left = 1;
    vb_error err;
    p->started = cli_seconds();
    answer_watch_interrupt(0);
    signal(SIGXFSZ, SIG_IGN); /* writing beyond a file size limit is then an ordinary error */
    while (left && p->code == EXIT_DONE && !p->interrupted && !ferror(stdout)) {
        p->code = fill(p);
        if (p->code == EXIT_DONE && vb_batch_step(p->batch, &left, &err) && err.code != VB_STOPPED)
            p->code = cli_error(p->c, &err), p->code = EXIT_OTHER;
        show_progress(p);
        left += p->next < p->file.num_lines; /* all that the batch had may be done while others wait here */
        p->interrupted = left && answer_interrupted();
    }
    erase_progress();
    p->seconds = cli_seconds() - p->started;
    vb_batch_look(p->batch, &p->state);
    return p->code;
}

int prompts_context(const struct cli *c, size_t longest, int32_t *context)
{
    *context = (int32_t)longest;
    if (!strstr(cli_facts(c).conventions, "yarn=max-len"))
        return EXIT_DONE;
    *context = (int32_t)c->context;
    return c->context > 0 ? EXIT_DONE
                          : cli_fail(c, EXIT_USAGE,
                                     "--context is missing: with convention yarn=max-len, the results depend on it");
}

/* The longest prompt that is left tells how large the context has to be; the batch then says whether its cache can hold
 * it. */
static int open_batch(struct prompts *p)
{
    const struct cli *c = p->c;
    size_t longest = 0, left = p->file.num_prompts - p->answers.kept;
    vb_error err;
    for (size_t i = 0; i < p->file.num_lines; i++)
        if (!p->file.line[i].answered &&
            p->file.line[i].most > p->file.line[longest].most * !p->file.line[longest].answered)
            longest = i;
    p->max_sequences = c->max_sequences ? c->max_sequences : 8;
    if ((size_t)p->max_sequences > left)
        p->max_sequences = (int32_t)left;
    int code = prompts_context(c, p->file.line[longest].most, &p->context);
    if (code == EXIT_DONE)
        code = cli_draft_tokens(c) ? try_session(c, NULL, p->context, &p->draft_bytes) : EXIT_DONE;
    if (code != EXIT_DONE)
        return code;
    vb_session_options session = session_options(c);
    vb_batch_options o = {.session = &session, .max_sequences = p->max_sequences,
                          .cache_tokens = c->cache_tokens};
    session.context = p->context;
    if (vb_batch_open(&p->batch, c->model, &o, &err))
        return cli_error(c, &err);
    size_t begin = p->next;
    code = add_line(p, longest); /* and out again */
    p->next = begin;
    if (code == EXIT_DONE) {
        struct prompts_request *r = p->running;
        r->all->code = EXIT_OTHER; /* `done` shall write nothing */
        vb_batch_cancel(p->batch, 0);
        p->code = EXIT_DONE;
    }
    return code;
}

static void tell_bounds(struct prompts *p)
{
    vb_batch_look(p->batch, &p->state);
    tell(p, "%zu prompts, %d at once; cache of %zu tokens %.1f MB, passes %.1f MB",
         p->file.num_prompts - p->answers.kept, p->max_sequences, p->state.cache_tokens,
         1e-6 * (double)p->state.cache_bytes, 1e-6 * (double)p->state.pass_bytes);
    if (p->draft_bytes)
        tell(p, ", drafts at most %.1f MB", 1e-6 * (double)p->draft_bytes * p->max_sequences);
    tell(p, "\n");
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static json_t *statistics(const struct prompts *p)
{
    const vb_batch_state *s = &p->state;
    json_t *j = json_pack("{s:I,s:I,s:I,s:I,s:b}", "prompts", (json_int_t)p->file.num_prompts, "kept",
                          (json_int_t)p->answers.kept, "answered", (json_int_t)p->answered, "errors",
                          (json_int_t)p->answers.errors, "interrupted", p->interrupted);
    json_t *run = json_pack("{s:I,s:I,s:f,s:f,s:I,s:I,s:I,s:I,s:s,s:i}", "prompt_tokens", (json_int_t)p->prompt_tokens,
                            "tokens", (json_int_t)p->tokens, "seconds", p->seconds, "tokens_per_second",
                            rate((double)p->tokens, p->seconds), "passes", (json_int_t)s->passes, "forwards",
                            (json_int_t)p->forwards, "drafted", (json_int_t)p->drafted, "accepted",
                            (json_int_t)p->accepted, "draft", cli_draft_name(p->c), "draft_tokens",
                            p->c->draft_tokens == CLI_AUTO ? p->longest_draft : cli_draft_tokens(p->c));
    json_t *memory = json_pack("{s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "max_sequences", p->max_sequences, "preemptions",
                               (json_int_t)s->preemptions, "shared_tokens", (json_int_t)s->shared_tokens,
                               "cache_tokens", (json_int_t)s->cache_tokens, "most_cache_tokens_used",
                               (json_int_t)s->most_cache_tokens_used, "cache_bytes", (json_int_t)s->cache_bytes,
                               "pass_bytes", (json_int_t)s->pass_bytes, "draft_bytes",
                               (json_int_t)p->draft_bytes * p->max_sequences);
    json_object_update(j, run);
    json_object_update(j, memory);
    cli_add_ranks(p->c, j);
    json_decref(run);
    json_decref(memory);
    return j;
}

static void tell_statistics(const struct prompts *p)
{
    const vb_batch_state *s = &p->state;
    struct rusage usage;
    tell(p, "%zu of %zu prompts: %zu prompt tokens, %zu new in %.1f s (%.1f/s); ", p->answers.kept + p->answered,
         p->file.num_prompts, p->prompt_tokens, p->tokens, p->seconds, rate((double)p->tokens, p->seconds));
    if (p->drafted)
        tell(p, "%zu of %zu drafts accepted; ", p->accepted, p->drafted);
    tell(p, "%zu preemptions, %zu tokens shared, cache at most %zu of %zu tokens\n", s->preemptions, s->shared_tokens,
         s->most_cache_tokens_used, s->cache_tokens);
    if (p->c->stats && !getrusage(RUSAGE_SELF, &usage))
        tell(p, "opened in %.1f ms; %zu passes; peak memory %.1f MB\n", 1e3 * p->c->open_seconds, s->passes,
             1.024e-3 * (double)usage.ru_maxrss);
    cli_tell_ranks(p->c, 1);
    if (cli_is_relaxed(p->c))
        tell(p, "--acceptance relaxed is lossy: these are not the tokens of plain decoding\n");
    if (p->answers.errors)
        tell(p, "%zu prompts ended with an error, which stands in place of their answers\n", p->answers.errors);
}

/* The exit code of a run that ended as it should, or by Ctrl-C. */
static int report(struct prompts *p)
{
    if (p->c->json && cli_print_json(statistics(p)) != EXIT_DONE)
        return EXIT_OTHER;
    if (ferror(stdout))
        return EXIT_DONE; /* main says so */
    tell_statistics(p);
    if (p->interrupted && p->answers.path)
        tell(p, "interrupted: %zu of %zu answers are in %s; the same command goes on\n", p->answers.kept + p->answered,
             p->file.num_prompts, p->answers.path);
    else if (p->interrupted)
        tell(p, "interrupted: with -o FILE the same command would go on\n");
    return p->interrupted ? EXIT_INTERRUPTED : p->answers.errors ? EXIT_OTHER : EXIT_DONE;
}

static void finish(struct prompts *p)
{
    vb_batch_close(p->batch);
    while (p->running)
        drop(p->running);
    prompt_file_close(&p->file);
}

int prompts_run(struct cli *c)
{
    struct prompts p = {.c = c, .answers = {.fd = -1}};
    int code = prompt_file_read(c, &p.file, c->prompts);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        code = check_options(c);
    if (code == EXIT_DONE)
        code = check_lines(&p);
    if (code == EXIT_DONE)
        code = prompt_settings(c, p.settings);
    if (code == EXIT_DONE)
        code = answers_open(c, &p.answers, &p.file, p.settings);
    if (code == EXIT_DONE && p.answers.kept)
        tell(&p, "resuming: %zu of %zu are there\n", p.answers.kept, p.file.num_prompts);
    if (code == EXIT_DONE && p.answers.kept < p.file.num_prompts) {
        code = open_batch(&p);
        if (code == EXIT_DONE) {
            tell_bounds(&p);
            code = loop(&p);
        }
    }
    int closed = answers_close(c, &p.answers);
    code = code == EXIT_DONE ? closed : code;
    if (code == EXIT_DONE)
        code = report(&p);
    finish(&p);
    return code;
}
