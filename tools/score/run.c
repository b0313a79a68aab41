/* tools/score/run.c -- `verbatim score`: computes a file of texts in one batch (engine/session/batch.c), and appends
 * one line of scores for each text. Only a few texts are parsed at a time. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/answer.h"
#include "tools/cli/routes.h"
#include "tools/score/score.h"

struct scores_request {
    struct scores_request *next;
    struct scores *all;
    size_t line;
    struct score_line text;
    json_t *logprobs, *at_temperature, *ranks, *entropies, *top; /* arrays; top is NULL without --logprobs */
};

struct scores {
    struct cli *c;
    struct prompt_file file;
    struct answers answers;
    char settings[SETTINGS_SIZE], where[300];
    vb_batch *batch;
    struct scores_request *running; /* the requests that the batch has */
    size_t next, longest, tokens, answered;
    int32_t V;
    int code, interrupted;
    double seconds;
};

static void be_at(struct scores *s, size_t line)
{
    snprintf(s->where, sizeof s->where, "%.200s: line %zu", s->file.name, line + 1);
    s->c->where = s->where;
}

/* ---- before anything starts -------------------------------------------------------------------------------------- */

static int check_lines(struct scores *s)
{
    size_t most = s->c->context > 0 ? (size_t)s->c->context : (size_t)vb_max_positions(s->c->model);
    int32_t ignored;
    int code = prompts_context(s->c, 0, &ignored);
    for (size_t i = 0; i < s->file.num_lines && code == EXIT_DONE; i++) {
        struct score_line l;
        be_at(s, i);
        if (!s->file.line[i].size)
            continue;
        code = score_line_read(s->c, &s->file.line[i], &l);
        if (code != EXIT_DONE)
            break;
        if (l.count > most)
            code = cli_fail(s->c, EXIT_USAGE, "it has %zu tokens, the context %zu", l.count, most);
        s->file.line[i].most = l.count;
        s->longest = l.count > s->longest ? l.count : s->longest;
        score_line_close(&l);
        cli_progress("checking the texts", i + 1, s->file.num_lines);
    }
    s->c->where = NULL;
    return code;
}

static int open_batch(struct scores *s)
{
    vb_error err;
    vb_session_options session = s->c->session;
    vb_batch_options o = {.session = &session, .max_sequences = s->c->max_sequences,
                          .cache_tokens = s->c->cache_tokens};
    session.stop = answer_stop;
    session.record_routes = s->c->with_routes;
    int code = prompts_context(s->c, s->longest, &session.context);
    if (code != EXIT_DONE)
        return code;
    return vb_batch_open(&s->batch, s->c->model, &o, &err) ? cli_error(s->c, &err) : EXIT_DONE;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct scores_request *r = context;
    (void)depth, (void)hidden;
    if (index + 1 < r->text.first)
        return 0;
    struct token_score t = score_token(logits, r->all->V, r->text.tokens[index + 1], r->text.temperature);
    json_array_append_new(r->logprobs, json_real(t.logprob));
    json_array_append_new(r->ranks, json_integer(t.rank));
    json_array_append_new(r->entropies, json_real(t.entropy));
    if (r->text.temperature > 0)
        json_array_append_new(r->at_temperature, json_real(t.at_temperature));
    if (r->top)
        json_array_append_new(r->top, score_top(logits, r->all->V, (int32_t)r->all->c->logprobs));
    return 0;
}

static json_t *answer(const struct scores_request *r, const vb_request_end *end)
{
    char key[KEY_SIZE];
    json_t *id = r->text.id ? json_incref((json_t *)(uintptr_t)r->text.id) : json_null(), *ids = json_array();
    prompt_key(&r->all->file.line[r->line], r->all->settings, key);
    json_t *j = json_pack("{s:I,s:s,s:o}", "index", (json_int_t)r->line, "request", key, "id", id);
    if (end->code) {
        json_object_set_new(j, "error", json_string(end->error->message));
        json_decref(ids);
        return j;
    }
    for (size_t i = 0; i < r->text.count; i++)
        json_array_append_new(ids, json_integer(r->text.tokens[i]));
    json_object_set_new(j, "tokens", ids);
    json_object_set(j, "logprobs", r->logprobs);
    if (r->text.temperature > 0) {
        json_object_set_new(j, "temperature", json_real((double)r->text.temperature));
        json_object_set(j, "logprobs_at_temperature", r->at_temperature);
    }
    json_object_set(j, "ranks", r->ranks);
    json_object_set(j, "entropies", r->entropies);
    if (r->top)
        json_object_set(j, "top", r->top);
    if (end->routes.experts) {
        vb_routes routes = end->routes;
        routes.tokens = r->text.count - 1; /* whether the last token was computed depends on the chunks */
        char *text = routes_base64(&routes, ROUTES_EXPERTS);
        json_object_set_new(j, "routed_experts", json_string(text));
        free(text);
    }
    return j;
}

static void drop(struct scores_request *r)
{
    struct scores_request **at = &r->all->running;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    score_line_close(&r->text);
    json_t *const arrays[] = {r->logprobs, r->at_temperature, r->ranks, r->entropies, r->top};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        json_decref(arrays[i]);
    free(r);
}

static void done(void *context, const vb_request_end *end)
{
    struct scores_request *r = context;
    struct scores *s = r->all;
    /* a lack of memory is no property of the text: the next run computes the text again */
    if (s->code == EXIT_DONE && end->code == VB_NO_MEMORY) {
        s->code = cli_error(s->c, end->error);
    } else if (s->code == EXIT_DONE) {
        s->code = answers_write(s->c, &s->answers, answer(r, end));
        s->answered++;
        s->tokens += r->text.count;
        cli_progress("score", s->answers.kept + s->answered, s->file.num_prompts);
    }
    drop(r);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int add_line(struct scores *s, size_t line)
{
    struct scores_request *r = cli_must(calloc(1, sizeof *r));
    vb_error err;
    *r = (struct scores_request){.next = s->running, .all = s, .line = line, .logprobs = json_array(),
                                 .at_temperature = json_array(), .ranks = json_array(), .entropies = json_array(),
                                 .top = s->c->logprobs > 0 ? json_array() : NULL};
    s->running = r;
    be_at(s, line);
    int code = score_line_read(s->c, &s->file.line[line], &r->text);
    vb_request asked = {.tokens = r->text.tokens, .count = r->text.count,
                        .routes = r->text.routes.tokens ? &r->text.routes : NULL, .prompt_row = take_row, .done = done,
                        .context = r};
    if (code == EXIT_DONE && vb_batch_add(s->batch, &asked, NULL, &err))
        code = cli_error(s->c, &err);
    if (code != EXIT_DONE)
        drop(r);
    s->c->where = NULL;
    return code;
}

/* Adds as many texts as may run at the same time. */
static int fill(struct scores *s)
{
    int code = EXIT_DONE;
    vb_batch_state state;
    vb_batch_look(s->batch, &state);
    size_t most = s->c->max_sequences ? (size_t)s->c->max_sequences : 8;
    for (size_t waiting = state.waiting; code == EXIT_DONE && s->next < s->file.num_lines && waiting < most; s->next++)
        if (s->file.line[s->next].size && !s->file.line[s->next].answered) {
            code = add_line(s, s->next);
            waiting++;
        }
    return code;
}

static int loop(struct scores *s)
{
    size_t left = 1;
    vb_error err;
    double start = cli_seconds();
    answer_watch_interrupt(0);
    while (left && s->code == EXIT_DONE && !s->interrupted && !ferror(stdout)) {
        s->code = fill(s);
        if (s->code == EXIT_DONE && vb_batch_step(s->batch, &left, &err) && err.code != VB_STOPPED)
            s->code = cli_error(s->c, &err);
        left += s->next < s->file.num_lines;
        s->interrupted = left && answer_interrupted();
    }
    s->seconds = cli_seconds() - start;
    return s->code;
}

static int report(const struct scores *s)
{
    size_t there = s->answers.kept + s->answered;
    if (s->c->json &&
        cli_print_json(json_pack("{s:I,s:I,s:I,s:I,s:I,s:f,s:b}", "texts", (json_int_t)s->file.num_prompts, "kept",
                                 (json_int_t)s->answers.kept, "scored", (json_int_t)s->answered, "errors",
                                 (json_int_t)s->answers.errors, "tokens", (json_int_t)s->tokens, "seconds", s->seconds,
                                 "interrupted", s->interrupted)) != EXIT_DONE)
        return EXIT_OTHER;
    if (!s->c->json)
        fprintf(stderr, "%zu of %zu texts, %zu tokens in %.1f s\n", there, s->file.num_prompts, s->tokens, s->seconds);
    if (!s->c->json && s->interrupted)
        fprintf(stderr, "interrupted; the same command continues\n");
    if (!s->c->json && s->answers.errors)
        fprintf(stderr, "%zu texts ended with an error, which is in their lines\n", s->answers.errors);
    return s->interrupted ? EXIT_INTERRUPTED : s->answers.errors ? EXIT_OTHER : EXIT_DONE;
}

static int run(struct cli *c)
{
    struct scores s = {.c = c, .answers = {.fd = -1}};
    int code = cli_without_prefill(c, "onednn");
    if (code == EXIT_DONE) /* texts share rows, whose bits would depend on their chunks */
        code = cli_without_prefill(c, "cublas");
    if (code == EXIT_DONE && !c->file)
        code = cli_fail(c, EXIT_USAGE, "--file is missing; see verbatim score --help");
    if (code == EXIT_DONE)
        code = prompt_file_read(c, &s.file, c->file);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        s.V = vb_vocab_size(c->model), code = check_lines(&s);
    if (code == EXIT_DONE)
        code = prompt_settings(c, s.settings);
    if (code == EXIT_DONE)
        code = answers_open(c, &s.answers, &s.file, s.settings);
    if (code == EXIT_DONE && s.answers.kept < s.file.num_prompts) {
        code = open_batch(&s);
        if (code == EXIT_DONE)
            code = loop(&s);
    }
    int closed = answers_close(c, &s.answers);
    code = code == EXIT_DONE ? closed : code;
    if (code == EXIT_DONE)
        code = report(&s);
    vb_batch_close(s.batch);
    while (s.running)
        drop(s.running);
    prompt_file_close(&s.file);
    return code;
}

static const struct note notes[] = {
    {"--file", "Score the texts in FILE (if FILE is -, in stdin). Each line is a JSON object with prompt, and "
               "optionally response, id, temperature, "
               "routed_experts and indexer_topk. prompt and response are texts or arrays of token ids. The tokens of "
               "the response are scored, or, without response, all tokens of the prompt but the first. routed_experts "
               "are forced routes, as in --routes-in of logits, and indexer_topk forced kept sets, as in --kept-in."},
    {"-o", "Append one line of scores for each text to FILE (default: stdout). Texts whose scores are already in FILE "
           "are not computed "
           "again, so you can repeat the same command after Ctrl-C or a crash to continue."},
    {"--logprobs",
     "Add the key top: for each token, the N most likely tokens with their log-probabilities, 0 to 1000 (default 0)."},
    {"--temperature", "Also compute the log-probabilities after the logits are divided by T (default 0: do not). A "
                      "line may have its own "
                      "temperature."},
    {"--max-sequences", "Compute at most N texts at the same time, 1 to 64 (default 8)."},
    {"--cache-tokens", "Set the total size of the KV cache in tokens, shared by all texts."},
    {"--json", "Print an object with the keys texts, kept, scored, errors, tokens, seconds and interrupted. -o is then "
               "required."},
    {NULL, NULL}};

const struct command command_score = {
    "score", "compute the log-probabilities of given tokens, for many texts",
    "MODEL --file FILE [-o FILE] [OPTIONS]",
    "Prints one JSON object for each text, with the keys index, request, id, tokens, logprobs, ranks and entropies, "
    "and on request\n"
    "temperature, logprobs_at_temperature, top and routed_experts. logprobs, ranks, entropies and top describe the "
    "last tokens of the\n"
    "text, those that are scored. The numbers do not depend on batch, chunks or threads. `diff` compares two such "
    "files, or one with\n"
    "the log-probabilities of another engine.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_PREFILL | TAKES_SCORE, run, notes, 0, NULL};
