/* tools/serve/reply.c -- whole answers, and events of a stream. */
#include "tools/serve/reply_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static const char *type_of(const struct failure *f)
{
    if (f->type)
        return f->type;
    switch (f->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "service_unavailable_error";
    default: return "invalid_request_error";
    }
}

static void put_or_null(struct serve_writer *w, const char *text)
{
    if (text && *text)
        writer_string(w, text, strlen(text));
    else
        writer_put(w, "null");
}

void reply_failure(struct serve_writer *w, const struct failure *f)
{
    writer_put(w, "{\"error\": {\"message\": ");
    writer_string(w, f->message, strlen(f->message));
    writer_format(w, ", \"type\": \"%s\", \"param\": ", type_of(f));
    put_or_null(w, f->param);
    writer_put(w, ", \"code\": ");
    put_or_null(w, f->code);
    writer_put(w, "}}");
}

const struct serve_choice *reply_failed(const struct serve_job *job)
{
    for (size_t i = 0; i < job->num_choices; i++)
        if (job->choices[i].over && job->choices[i].error.code)
            return &job->choices[i];
    return NULL;
}

/* ---- parts of an answer ------------------------------------------------------------------------------------------ */

static void put_head(struct serve_writer *w, const struct serve_job *job, int chunk)
{
    const char *object = job->api == API_COMPLETIONS ? "text_completion"
                         : chunk ? "chat.completion.chunk"
                         : "chat.completion";
    writer_format(w, "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, \"model\": ", job->id, object,
                  job->created);
    writer_string(w, job->server->name, strlen(job->server->name));
    writer_put(w, ", \"system_fingerprint\": ");
    writer_string(w, job->server->fingerprint, strlen(job->server->fingerprint));
}

static void put_usage(struct serve_writer *w, const struct serve_job *job)
{
    size_t said = 0, cached = 0;
    for (size_t i = 0; i < job->num_choices; i++) {
        said += job->choices[i].result.tokens;
        cached += job->choices[i].first == &job->choices[i] ? job->choices[i].result.cached_tokens : 0;
    }
    writer_format(w, ", \"usage\": {\"prompt_tokens\": %zu, \"completion_tokens\": %zu, \"total_tokens\": %zu, "
                  "\"prompt_tokens_details\": {\"cached_tokens\": "
                  "%zu}}", job->prompt_tokens, said, job->prompt_tokens + said, cached);
}

static void put_result(struct serve_writer *w, const struct serve_choice *choice)
{
    const vb_result *r = &choice->result;
    writer_format(w,
                  "{\"fingerprint\": \"%016" PRIx64 "\", \"seed\": %" PRIu64
                  ", \"drafted\": %zu, \"accepted\": %zu, \"cached_tokens\": %zu, "
                  "\"preemptions\": %zu, \"passes\": "
                  "%zu",
                  r->fingerprint, choice->sampling.seed, r->drafted, r->accepted, r->cached_tokens, r->preemptions,
                  r->forwards);
}

static const char *finish_of(const struct serve_choice *choice, const struct serve_cursor *at)
{
    int has_calls = at->parser && meaning_calls(at->parser) && !meaning_is_cut(at->parser);
    return choice->result.finish == VB_FINISH_STOP ? (has_calls ? "tool_calls" : "stop")
           : choice->result.finish == VB_FINISH_LENGTH ? "length"
           : "abort";
}

/* vLLM's stop_reason: the stop string, or the id of stop_token_ids that ended the answer. */
static void put_finish(struct serve_writer *w, const struct serve_choice *choice, const struct serve_cursor *at,
                       int final)
{
    const struct serve_job *job = choice->job;
    const vb_result *r = &choice->result;
    int32_t last = choice->count ? choice->said[choice->count - 1].token : -1;
    if (!final) {
        writer_put(w, ", \"finish_reason\": null");
        return;
    }
    writer_format(w, ", \"finish_reason\": \"%s\", \"stop_reason\": ", finish_of(choice, at));
    if (r->finish == VB_FINISH_STOP && r->stop_string) {
        const char *text = job->stop[r->stop_string - 1];
        writer_string(w, text, strlen(text));
        return;
    }
    for (int32_t i = 0; i < job->num_stop_tokens && r->finish == VB_FINISH_STOP; i++)
        if (job->stop_tokens[i] == last) {
            writer_format(w, "%d", last);
            return;
        }
    writer_put(w, "null");
}

/* The tokens from `from` on, with the depth of accepted drafts: which part of a text was drafted. */
static void put_tokens(struct serve_writer *w, const struct serve_choice *choice, size_t from, size_t to)
{
    writer_put(w, "\"tokens\": [");
    for (size_t i = from; i < to; i++) {
        const struct serve_token *t = &choice->said[i];
        writer_format(w, "%s{\"id\": %d, \"text\": ", i > from ? ", " : "", t->token);
        reply_token_name(w, choice->job->server, t->token);
        writer_format(w, ", \"draft\": %d, \"pass\": %u}", t->depth, t->pass);
    }
    writer_put(w, "]");
}

static void put_ids(struct serve_writer *w, const char *name, const int32_t *ids, size_t stride, size_t count)
{
    writer_format(w, ", \"%s\": [", name);
    for (size_t i = 0; i < count; i++) {
        int32_t id;
        memcpy(&id, (const char *)ids + i * stride, sizeof id);
        writer_format(w, "%s%d", i ? ", " : "", id);
    }
    writer_put(w, "]");
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The text from the cursor on, as far as it is safe, in whole characters. */
static void take_text(struct serve_writer *out, struct serve_choice *choice, struct serve_cursor *at, size_t to,
                      int final)
{
    size_t end = final ? choice->result.text_bytes : to ? choice->said[to - 1].safe : 0;
    end = end < choice->text_size ? end : choice->text_size;
    size_t size = end > at->bytes ? end - at->bytes : 0;
    char *text = malloc(3 * (size + 4) + 12);
    out->failed |= !text;
    if (!text)
        return;
    size_t used = size ? vb_utf8_push(&at->utf8, choice->text + at->bytes, size, text) : 0;
    if (final)
        used += vb_utf8_finish(&at->utf8, text + used);
    writer_bytes(out, text, used);
    at->bytes += size;
    free(text);
}

/* The prompt's text: as it was given, else that of its ids but BOS. */
static void put_prompt_text(struct serve_writer *out, const struct serve_choice *choice)
{
    const struct serve_prompt *p = choice->prompt;
    const vb_tokenizer *t = choice->job->server->tokenizer;
    vb_utf8 stream = {0};
    char text[1024];
    if (p->text) {
        writer_bytes(out, p->text, p->text_size);
        return;
    }
    for (size_t i = 0; t && i < p->count; i++) {
        size_t size = 0;
        const char *piece = i == 0 && p->tokens[0] == vb_bos_token(t) ? NULL : vb_piece(t, p->tokens[i], &size);
        for (size_t done = 0, part; piece && done < size; done += part) {
            part = size - done < 256 ? size - done : 256;
            writer_bytes(out, text, vb_utf8_push(&stream, piece + done, part, text));
        }
    }
    writer_bytes(out, text, vb_utf8_finish(&stream, text));
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

static void put_extras(struct serve_writer *w, struct serve_choice *choice, size_t from, size_t to, int begins,
                       int final, int whole)
{
    const struct serve_job *job = choice->job;
    if (job->return_tokens && begins)
        put_ids(w, "prompt_token_ids", choice->prompt->tokens, sizeof *choice->prompt->tokens, choice->prompt->count);
    if (job->return_tokens)
        put_ids(w, "token_ids", choice->said ? &choice->said[from].token : NULL, sizeof *choice->said, to - from);
    if (job->prompt_logprobs >= 0 && begins)
        reply_prompt_logprobs(w, choice);
    if (whole && job->num_choices == 1)
        return; /* the answer has it */
    if (!final && !job->return_tokens)
        return;
    writer_put(w, ", \"verbatim\": ");
    if (final)
        put_result(w, choice);
    if (job->return_tokens) {
        writer_put(w, final ? ", " : "{");
        put_tokens(w, choice, from, to);
    }
    writer_put(w, "}");
}

/* The end of a choice's object, after its text and log-probabilities up to token `to`. Closes `text`. */
static void end_choice(struct serve_writer *w, struct serve_writer *text, struct serve_choice *choice,
                       struct serve_cursor *at, size_t to, int final, int whole)
{
    put_finish(w, choice, at, final);
    put_extras(w, choice, at->tokens, to, !at->begun, final, whole);
    writer_put(w, "}");
    w->failed |= text->failed;
    writer_close(text);
    at->tokens = to;
    at->begun = 1;
}

static void put_completion(struct serve_writer *w, struct serve_choice *choice, struct serve_cursor *at, size_t to,
                           int final, int whole)
{
    struct serve_writer text = {0};
    const struct serve_job *job = choice->job;
    int begins = !at->begun, echo = job->echo && begins;
    if (echo)
        put_prompt_text(&text, choice);
    take_text(&text, choice, at, to, final);
    writer_format(w, "{\"index\": %d, \"text\": ", choice->index);
    writer_string(w, text.text, text.size);
    writer_put(w, ", \"logprobs\": ");
    if (job_wants_rows(job))
        reply_completion_logprobs(w, choice, at, to, echo);
    else
        writer_put(w, "null");
    end_choice(w, &text, choice, at, to, final, whole);
}

static void put_message(struct serve_writer *w, struct serve_choice *choice, struct serve_cursor *at, size_t to,
                        int final, int whole)
{
    struct serve_writer text = {0};
    const struct serve_job *job = choice->job;
    int begins = !at->begun;
    take_text(&text, choice, at, to, final);
    writer_format(w, "{\"index\": %d, \"%s\": {", choice->index, whole ? "message" : "delta");
    if (begins)
        writer_put(w, "\"role\": \"assistant\", ");
    reply_message(w, choice, at, text.text, text.size, final, whole);
    writer_put(w, whole ? ", \"refusal\": null}, \"logprobs\": " : "}, \"logprobs\": ");
    if (job_wants_rows(job))
        reply_chat_logprobs(w, choice, at->tokens, to);
    else
        writer_put(w, "null");
    end_choice(w, &text, choice, at, to, final, whole);
}

static void put_choice(struct serve_writer *w, struct serve_choice *choice, struct serve_cursor *at, size_t to,
                       int final, int whole)
{
    if (choice->job->api == API_CHAT)
        put_message(w, choice, at, to, final, whole);
    else
        put_completion(w, choice, at, to, final, whole);
}

/* ---- a whole answer ---------------------------------------------------------------------------------------------- */

/* Sums over the choices; the fingerprint and the seed are those of the first. */
static void put_verbatim(struct serve_writer *w, const struct serve_job *job)
{
    struct serve_choice sum = job->choices[0];
    for (size_t i = 1; i < job->num_choices; i++) {
        sum.result.drafted += job->choices[i].result.drafted;
        sum.result.accepted += job->choices[i].result.accepted;
        sum.result.cached_tokens += job->choices[i].result.cached_tokens;
        sum.result.preemptions += job->choices[i].result.preemptions;
        sum.result.forwards += job->choices[i].result.forwards;
    }
    writer_put(w, ", \"verbatim\": ");
    put_result(w, &sum);
    if (job->return_tokens && job->num_choices == 1) {
        writer_put(w, ", ");
        put_tokens(w, &job->choices[0], 0, job->choices[0].count);
    }
    writer_put(w, "}");
}

void reply_whole(struct serve_writer *w, struct serve_job *job)
{
    put_head(w, job, 0);
    writer_put(w, ", \"choices\": [");
    for (size_t i = 0; i < job->num_choices; i++) {
        struct serve_cursor at = {0};
        writer_put(w, i ? ", " : "");
        put_choice(w, &job->choices[i], &at, job->choices[i].count, 1, 1);
        meaning_close(at.parser);
    }
    writer_put(w, "]");
    put_usage(w, job);
    put_verbatim(w, job);
    writer_put(w, "}\n");
}

/* ---- a stream ---------------------------------------------------------------------------------------------------- */

static void put_event(struct serve_writer *w, struct serve_choice *choice, size_t to, int final)
{
    const struct serve_job *job = choice->job;
    writer_put(w, "data: ");
    put_head(w, job, 1);
    writer_put(w, ", \"choices\": [");
    put_choice(w, choice, &choice->sent, to, final, 0);
    writer_put(w, job->include_usage ? "], \"usage\": null}\n\n" : "]}\n\n");
    choice->sent.ended = final;
}

/* Behind the last published token of the pass that comes next. */
static size_t end_of_pass(const struct serve_choice *choice)
{
    size_t to = choice->sent.tokens;
    while (to < choice->published && choice->said[to].pass == choice->said[choice->sent.tokens].pass)
        to++;
    return to;
}

/* The prompt's rows belong to the first event. */
static int may_begin(const struct serve_choice *choice)
{
    return choice->sent.begun || !job_wants_prompt_rows(choice->job) || choice->first->prompt_done;
}

static void put_failed(struct serve_writer *w, const struct serve_choice *choice)
{
    struct failure f = {0};
    fail_by(&f, &choice->error);
    writer_put(w, "data: ");
    reply_failure(w, &f);
    writer_put(w, "\n\n");
}

/* The choice that failed: this one, or the one that has the rows of its prompt. NULL: none. */
static const struct serve_choice *failed_of(const struct serve_choice *choice)
{
    if (choice->over && choice->error.code)
        return choice;
    return !choice->sent.begun && job_wants_prompt_rows(choice->job) && choice->first->error.code ? choice->first
                                                                                                  : NULL;
}

static void choice_events(struct serve_writer *w, struct serve_choice *choice, size_t most)
{
    while (!choice->sent.ended && w->size < most && !w->failed && may_begin(choice)) {
        size_t to = end_of_pass(choice);
        int final = choice->over && to == choice->count;
        const struct serve_choice *failed = failed_of(choice);
        if (failed && (final || failed != choice)) {
            put_failed(w, failed);
            choice->sent.ended = 1;
        } else if (final || to > choice->sent.tokens) {
            put_event(w, choice, to, final);
        } else {
            return;
        }
    }
}

void reply_events(struct serve_writer *w, struct serve_job *job, size_t most, int *end)
{
    size_t ended = 0;
    for (size_t i = 0; i < job->num_choices; i++) {
        choice_events(w, &job->choices[i], most);
        ended += (size_t)job->choices[i].sent.ended;
    }
    *end = ended == job->num_choices;
    if (*end && job->include_usage) {
        writer_put(w, "data: ");
        put_head(w, job, 1);
        writer_put(w, ", \"choices\": []");
        put_usage(w, job);
        put_verbatim(w, job);
        writer_put(w, "}\n\n");
    }
    if (*end)
        writer_put(w, "data: [DONE]\n\n");
    if (!w->size && job->keep_alive)
        writer_put(w, ": keep-alive\n\n");
    job->keep_alive = 0;
}
