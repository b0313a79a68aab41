/* tools/trace/batch.c -- `verbatim trace --prompts`: computes the prompts of a file in one batch, and records its
 * passes. */
#include "tools/trace/batch.h"

#include <stdlib.h>
#include <string.h>

#include "tools/prompts/prompts.h"
#include "tools/trace/async.h"
#include "tools/trace/ranks.h"
#include "tools/trace/trace.h"

struct trace_sequence {
    struct record record;
    struct prompt prompt;
    size_t line;      /* its line in the file, from 0 */
    size_t chosen;    /* number of tokens chosen so far */
    int runs;         /* its rows are in the cache */
    int lost;         /* its rows were removed in this round */
    int finished;     /* it ended in this round */
    json_t *end;      /* its object in the last line of the trace */
};

/* One batch. With --dp there are several, and request i of rank r is sequence i * ranks + r. */
struct trace_rank {
    struct trace_batch *all;
    size_t number;
    vb_batch *batch;
    size_t left;      /* number of its sequences that have not ended */
    json_t *passes;   /* those of this round */
    json_t *newest[VB_MAX_DRAFT + 1]; /* as in struct record */
    json_t *target;   /* the target's pass of this round; NULL: none yet */
};

struct trace_batch {
    struct cli *c;
    struct prompt_file file;
    struct trace_sequence *sequences;
    size_t count;
    struct trace_rank rank[MOST_RANKS];
    size_t ranks;
    json_t *passes;
    size_t round;
    char where[300];
    int failed;       /* a sequence ended with an error */
};

/* ---- events ---- */

/* A part decodes if its first row is that of the newest token. Otherwise it computes a prompt, or rows that were
 * removed. */
static int decodes(const struct trace_sequence *s, const json_t *part)
{
    return s->chosen && json_integer_value(json_array_get(json_object_get(part, "index"), 0)) ==
                            (json_int_t)(s->prompt.count + s->chosen - 1);
}

static size_t sequence_of(const struct trace_rank *r, int64_t request)
{
    return (size_t)request * r->all->ranks + r->number;
}

static json_t *begin_pass(struct trace_rank *r, const vb_trace *t, const json_t *part)
{
    json_t *pass = json_pack("{s:I,s:O,s:O}", "round", (json_int_t)r->all->round, "pass", json_object_get(part, "pass"),
                             "depth", json_object_get(part, "depth"));
    if (json_object_get(part, "module"))
        json_object_set(pass, "module", json_object_get(part, "module"));
    json_object_set_new(pass, "parts", json_array());
    json_array_append_new(r->passes, cli_must(pass));
    r->newest[t->depth + 1] = pass;
    if (t->depth < 0)
        r->target = pass;
    return pass;
}

static void record(void *context, const vb_trace *t)
{
    struct trace_rank *r = context;
    size_t sequence = sequence_of(r, t->sequence);
    struct trace_sequence *s = &r->all->sequences[sequence];
    json_t *part = record_event(&s->record, t);
    s->chosen += t->kind == VB_TRACE_CHOOSE && t->depth < 0;
    s->lost |= t->kind == VB_TRACE_CUT && t->depth < 0 && !t->first;
    if (!part)
        return;
    json_object_set_new(part, "sequence", json_integer((json_int_t)sequence));
    if (t->depth < 0)
        json_object_set_new(part, "stage", json_string(decodes(s, part) ? "decode" : "prefill"));
    json_t *pass = t->first ? r->newest[t->depth + 1] : begin_pass(r, t, part);
    json_array_append_new(json_object_get(pass, "parts"), part);
}

static json_t *ending(const struct cli *c, size_t sequence, const vb_request_end *end)
{
    char fingerprint[17];
    if (end->code)
        return json_pack("{s:I,s:s}", "sequence", (json_int_t)sequence, "error", end->error->message);
    json_t *pieces, *tokens = trace_ids(c, end->tokens + end->prompt, end->count - end->prompt, &pieces);
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)end->result->fingerprint);
    return json_pack("{s:I,s:o,s:o,s:s,s:s,s:I,s:I,s:o}", "sequence", (json_int_t)sequence, "tokens", tokens, "pieces",
                     pieces, "finish_reason", end->result->finish == VB_FINISH_STOP ? "stop" : "length", "fingerprint",
                     fingerprint, "cached_tokens", (json_int_t)end->result->cached_tokens, "preemptions",
                     (json_int_t)end->result->preemptions, "stats",
                     cli_stats(end->result, cli_used_tokens(c, end->result)));
}

static void done(void *context, const vb_request_end *end)
{
    struct trace_rank *r = context;
    size_t sequence = sequence_of(r, end->id);
    struct trace_sequence *s = &r->all->sequences[sequence];
    s->end = cli_must(ending(r->all->c, sequence, end));
    s->finished = 1;
    r->all->failed |= end->code != 0;
}

/* Lists what happened to the rank's sequences in this round, in the target's pass. */
static void list_events(const struct trace_rank *r)
{
    const struct trace_batch *b = r->all;
    json_t *lists[BATCH_EVENTS];
    for (int e = 0; e < BATCH_EVENTS; e++)
        json_object_set_new(r->target, batch_event_names[e], lists[e] = json_array());
    for (size_t i = r->number; i < b->count; i += b->ranks) {
        struct trace_sequence *s = &b->sequences[i];
        int computed = 0;
        const json_t *part;
        size_t p;
        json_array_foreach(json_object_get(r->target, "parts"), p, part)
            computed |= json_integer_value(json_object_get(part, "sequence")) == (json_int_t)i;
        int happened[BATCH_EVENTS] = {computed && !s->runs, s->lost && !s->finished && !computed,
                                      s->finished && (computed || s->runs)};
        for (int e = 0; e < BATCH_EVENTS; e++)
            if (happened[e])
                json_array_append_new(lists[e], json_integer((json_int_t)i));
        s->runs = (s->runs || computed) && !s->lost && !s->finished;
        s->lost = s->finished = 0;
    }
}

/* ---- the run ---- */

static int read_lines(struct trace_batch *b)
{
    int code = EXIT_DONE;
    b->sequences = calloc(b->file.num_prompts + 1, sizeof *b->sequences);
    cli_must(b->sequences);
    for (size_t i = 0; i < b->file.num_lines && code == EXIT_DONE; i++) {
        struct trace_sequence *s = &b->sequences[b->count];
        if (!b->file.line[i].size)
            continue;
        snprintf(b->where, sizeof b->where, "%.200s: line %zu", b->file.name, i + 1);
        b->c->where = b->where;
        code = prompt_read(b->c, &b->file.line[i], &s->prompt);
        s->record.c = b->c;
        s->line = i;
        b->count += code == EXIT_DONE;
    }
    b->c->where = NULL;
    return code;
}

static int open_rank(struct trace_batch *b, struct trace_rank *r)
{
    struct cli *c = b->c;
    size_t longest = 1, sequences = 0, most = (size_t)(c->context > 0 ? c->context : vb_max_positions(c->model));
    vb_session_options session;
    vb_batch_options o = {.session = &session, .max_sequences = c->max_sequences ? c->max_sequences : 8,
                          .cache_tokens = c->cache_tokens};
    vb_error err;
    for (size_t i = r->number; i < b->count; i += b->ranks, sequences++) {
        size_t tokens = b->sequences[i].prompt.count + b->sequences[i].prompt.max_tokens;
        longest = tokens > longest ? tokens : longest;
    }
    int code = cli_session_options(c, 0, 0, &session);
    if (code == EXIT_DONE)
        code = prompts_context(c, longest < most ? longest : most, &session.context);
    o.max_sequences = sequences < (size_t)o.max_sequences ? (int32_t)sequences : o.max_sequences;
    session.trace = record;
    session.trace_context = r;
    if (code == EXIT_DONE && sequences && vb_batch_open(&r->batch, c->model, &o, &err))
        code = cli_error(c, &err);
    return code;
}

static int open_ranks(struct trace_batch *b)
{
    int code = EXIT_DONE;
    b->ranks = b->c->dp ? (size_t)b->c->dp : 1;
    for (size_t i = 0; i < b->ranks && code == EXIT_DONE; i++) {
        b->rank[i] = (struct trace_rank){.all = b, .number = i, .passes = json_array()};
        code = open_rank(b, &b->rank[i]);
    }
    return code;
}

static int add_requests(struct trace_batch *b)
{
    vb_error err;
    for (size_t i = 0; i < b->count; i++) {
        struct trace_sequence *s = &b->sequences[i];
        const struct prompt *q = &s->prompt;
        vb_drafting drafting = prompts_drafting(b->c, q);
        vb_generate_options options = {.max_tokens = q->max_tokens, .ignore_eos = b->c->ignore_eos, .fingerprint = 1,
                                       .tokenizer = b->c->tokenizer, .stop = q->stop, .stop_count = q->num_stops};
        vb_request asked = {.tokens = q->tokens, .count = q->count, .sampling = &q->sampling, .drafting = &drafting,
                            .routes = q->routes.tokens ? &q->routes : NULL, .options = &options, .done = done,
                            .context = &b->rank[i % b->ranks]};
        snprintf(b->where, sizeof b->where, "%.200s: line %zu", b->file.name, s->line + 1);
        b->c->where = b->where;
        if (vb_batch_add(b->rank[i % b->ranks].batch, &asked, NULL, &err))
            return cli_error(b->c, &err);
        b->rank[i % b->ranks].left = 1;
    }
    b->c->where = NULL;
    return EXIT_DONE;
}

/* The passes of one rank in this round. */
static int step(struct trace_rank *r)
{
    vb_error err;
    r->target = NULL;
    if (r->left && vb_batch_step(r->batch, &r->left, &err))
        return cli_error(r->all->c, &err);
    if (r->target)
        list_events(r);
    for (size_t i = 0; i < json_array_size(r->passes); i++)
        batch_pass_finish(json_array_get(r->passes, i));
    return EXIT_DONE;
}

/* All ranks compute a round, then all compute the next one. */
static int loop(struct trace_batch *b)
{
    int code = EXIT_DONE;
    for (int works = 1; works && code == EXIT_DONE; b->round++) {
        json_t *passes[MOST_RANKS];
        works = 0;
        for (size_t i = 0; i < b->ranks && code == EXIT_DONE; i++) {
            code = step(&b->rank[i]);
            passes[i] = b->rank[i].passes;
            works |= b->rank[i].left > 0;
        }
        if (b->ranks > 1 && code == EXIT_DONE)
            ranks_weave(b->passes, passes, b->ranks);
        else
            json_array_extend(b->passes, b->rank[0].passes);
        for (size_t i = 0; i < b->ranks; i++)
            json_array_clear(b->rank[i].passes);
    }
    return code;
}

/* ---- the first and the last line ---- */

static json_t *heading(const struct trace_batch *b, const vb_batch_state *state)
{
    json_t *sequences = json_array();
    for (size_t i = 0; i < b->count; i++) {
        const struct prompt *q = &b->sequences[i].prompt;
        json_t *pieces, *tokens = trace_ids(b->c, q->tokens, q->count, &pieces);
        json_array_append_new(sequences, json_pack("{s:I,s:O?,s:o,s:o}", "sequence", (json_int_t)i, "id", q->id,
                                                   "prompt", tokens, "prompt_pieces", pieces));
    }
    return json_pack("{s:s,s:s,s:i,s:s,s:b,s:I,s:I,s:o}", "event", "begin", "draft", cli_draft_name(b->c),
                     "draft_tokens", cli_draft_tokens(b->c), "conventions", b->c->conventions, "padded",
                     b->c->session.padded, "cache_tokens", (json_int_t)state->cache_tokens, "ranks",
                     (json_int_t)b->ranks, "sequences", sequences);
}

static json_t *summary(const struct trace_batch *b, const vb_batch_state *state)
{
    json_t *sequences = json_array();
    for (size_t i = 0; i < b->count; i++)
        json_array_append(sequences, b->sequences[i].end);
    json_t *end = json_pack("{s:s,s:o,s:I,s:I,s:I,s:I}", "event", "end", "sequences", sequences, "passes",
                            (json_int_t)state->passes, "preemptions", (json_int_t)state->preemptions, "shared_tokens",
                            (json_int_t)state->shared_tokens, "most_cache_tokens_used",
                            (json_int_t)state->most_cache_tokens_used);
    if (b->ranks > 1)
        json_object_set_new(cli_must(end), "ranks", ranks_summary(b->passes, b->ranks));
    return end;
}

/* The numbers of all ranks together. */
static vb_batch_state state_of(const struct trace_batch *b)
{
    vb_batch_state all = {0}, one;
    for (size_t i = 0; i < b->ranks; i++) {
        if (!b->rank[i].batch)
            continue;
        vb_batch_look(b->rank[i].batch, &one);
        all.passes += one.passes;
        all.preemptions += one.preemptions;
        all.shared_tokens += one.shared_tokens;
        all.cache_tokens += one.cache_tokens;
        all.most_cache_tokens_used += one.most_cache_tokens_used;
    }
    return all;
}

static void add_async(const struct trace_batch *b, size_t sequence)
{
    const struct prompt *q = &b->sequences[sequence].prompt;
    vb_drafting drafting = prompts_drafting(b->c, q);
    long long context = b->c->context > 0 ? b->c->context : vb_max_positions(b->c->model),
              end = (long long)(q->count + q->max_tokens);
    struct async_book book = {.drafts = vb_draft_tokens(b->c->model, &drafting), .prompt = (long long)q->count,
                              .tokens = (long long)q->count, .end = end < context ? end : context};
    json_t *pass, *part;
    size_t i, p;
    json_array_foreach(b->passes, i, pass)
        json_array_foreach(json_object_get(pass, "parts"), p, part)
            if (json_is_null(json_object_get(part, "depth")) &&
                json_integer_value(json_object_get(part, "sequence")) == (json_int_t)sequence)
                async_add(&book, part);
    async_end(&book);
}

static int show(struct trace_batch *b)
{
    for (size_t i = 0; trace_is_async(b->c) && i < b->count; i++)
        add_async(b, i);
    vb_batch_state state = state_of(b);
    json_t *begin = cli_must(heading(b, &state)), *end = cli_must(summary(b, &state));
    int code = trace_show(b->c, begin, b->passes, end);
    json_decref(begin);
    json_decref(end);
    return code;
}

int trace_batch(struct cli *c)
{
    struct trace_batch b = {.c = c, .passes = json_array()};
    c->n = c->n < 0 ? 16 : c->n;
    int code = prompt_file_read(c, &b.file, c->prompts);
    if (code == EXIT_DONE)
        code = trace_open(c);
    if (code == EXIT_DONE)
        code = read_lines(&b);
    if (code == EXIT_DONE)
        code = open_ranks(&b);
    if (code == EXIT_DONE)
        code = add_requests(&b);
    if (code == EXIT_DONE)
        code = loop(&b);
    if (code == EXIT_DONE)
        code = show(&b);
    for (size_t i = 0; i < b.ranks; i++) {
        vb_batch_close(b.rank[i].batch);
        json_decref(b.rank[i].passes);
    }
    for (size_t i = 0; i < b.count; i++) {
        record_close(&b.sequences[i].record);
        prompt_close(&b.sequences[i].prompt);
        json_decref(b.sequences[i].end);
    }
    free(b.sequences);
    prompt_file_close(&b.file);
    json_decref(b.passes);
    return code == EXIT_DONE && b.failed ? EXIT_OTHER : code;
}
