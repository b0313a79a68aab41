/* tools/answer.c -- the tokens of a run, printed and reported. */
#include "answer.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- Ctrl-C -------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void answer_watch_interrupt(int reading)
{
    struct sigaction action = {.sa_handler = note_interrupt, .sa_flags = (int)(reading ? SA_RESETHAND : SA_RESETHAND | SA_RESTART)};
    sigaction(SIGINT, &action, NULL);
}

int answer_interrupted(void)
{
    int was = interrupted;
    interrupted = 0;
    return was;
}

/* ---- printing ------------------------------------------------------------------------------------------------------ */

static void write_bytes(const char *bytes, size_t size)
{
    fwrite(bytes, 1, size, stdout);
    fflush(stdout);
}

int answer_token(void *context, const vb_event *e)
{
    struct answer *p = context;
    size_t size;
    char out[4096];
    if (!p->first_token)
        p->first_token = cli_seconds();
    if (p->logprobs)
        json_array_append_new(p->logprobs, answer_logprobs(e->logits, vb_vocab_size(p->c->model), e->token, (int32_t)p->c->logprobs));
    if (p->c->json)
        return interrupted; /* all at once, in the end */
    if (!p->c->tokenizer) { /* no text: ids, as --tokens takes them */
        printf(p->printed++ ? ",%d" : "%d", e->token);
        fflush(stdout);
        return ferror(stdout) || interrupted;
    }
    const char *piece = tokenizer_piece(p->c->tokenizer, e->token, &size);
    if (!piece || (vb_is_end_token(p->c->model, e->token) && !p->c->ignore_eos))
        return interrupted;
    if (p->colour && e->draft_depth)
        fputs("\033[32m", stdout);
    for (size_t done = 0; done < size; done += 1024) {
        size_t n = size - done < 1024 ? size - done : 1024;
        write_bytes(out, utf8_stream_push(&p->stream, piece + done, n, out));
    }
    if (p->colour && e->draft_depth)
        fputs("\033[0m", stdout);
    return ferror(stdout) || interrupted; /* nobody reads, or nobody wants to: stop */
}

static const char *finish_name(enum vb_finish finish)
{
    return finish == VB_FINISH_STOP ? "stop" : finish == VB_FINISH_LENGTH ? "length" : interrupted ? "interrupted" : "stopped";
}

/* The most memory that the process had at once, mapped pages of the weights included. */
static json_int_t peak_memory(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (json_int_t)usage.ru_maxrss * 1024;
}

/* {nodes, ...} or null: --numa is off */
static json_t *placement(const struct cli *c)
{
    vb_placement p;
    if (!vb_model_placement(c->model, &p))
        return json_null();
    return json_pack("{s:i,s:I,s:I,s:I,s:f,s:s}", "nodes", p.nodes, "pages", (json_int_t)p.pages, "in_place",
                     (json_int_t)p.in_place, "moved", (json_int_t)p.moved, "seconds", p.seconds, "why_not", p.why_not);
}

/* What is about the run and not about the decoding. */
static json_t *all_stats(const struct cli *c, const vb_result *r, double first_token)
{
    json_t *stats = cli_stats(r, cli_draft_tokens(c));
    json_object_set_new(stats, "load_seconds", json_real(c->open_seconds));
    json_object_set_new(stats, "time_to_first_token_seconds", first_token > 0.0 ? json_real(first_token - c->started) : json_null());
    json_object_set_new(stats, "peak_memory_bytes", json_integer(peak_memory()));
    json_object_set_new(stats, "numa", placement(c));
    return stats;
}

json_t *answer_json(struct answer *a, const vb_session *s, size_t prompt, const vb_result *r)
{
    const struct cli *c = a->c;
    size_t count;
    char fingerprint[17];
    const int32_t *tokens = vb_tokens(s, &count);
    json_t *ids = json_array();
    for (size_t i = prompt; i < count; i++)
        json_array_append_new(ids, json_integer(tokens[i]));
    size_t size;
    char *text = cli_text(c, tokens + prompt, count - prompt, &size);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, r->fingerprint);
    json_t *out = json_pack("{s:I,s:o,s:o,s:s,s:s,s:s,s:i,s:o}", "prompt_tokens", (json_int_t)prompt, "tokens", ids, "text",
                            text ? json_stringn(text, size) : json_null(), "finish_reason", finish_name(r->finish), "fingerprint",
                            fingerprint, "draft", cli_draft_name(c), "draft_tokens", cli_draft_tokens(c), "stats",
                            all_stats(c, r, a->first_token));
    if (a->logprobs)
        json_object_set_new(out, "logprobs", a->logprobs);
    a->logprobs = NULL;
    free(text);
    return out;
}

void answer_statistics(const struct answer *a, size_t prompt, const vb_result *r)
{
    const struct cli *c = a->c;
    double first_token = a->first_token;
    double after_first = r->tokens ? (double)r->tokens - 1.0 : 0.0;
    fprintf(stderr, "%zu prompt tokens", prompt);
    if (r->prefill_seconds > 0.0)
        fprintf(stderr, " (%.1f/s)", (double)r->prefill_tokens / r->prefill_seconds);
    fprintf(stderr, ", %zu new", r->tokens);
    if (r->decode_seconds > 0.0)
        fprintf(stderr, " (%.1f/s)", after_first / r->decode_seconds);
    if (cli_draft_tokens(c) && r->forwards)
        fprintf(stderr, ", %s K=%d: %.2f tokens per forward, %zu of %zu drafts accepted", cli_draft_name(c),
                cli_draft_tokens(c), after_first / (double)r->forwards, r->accepted, r->drafted);
    fprintf(stderr, "; %s\n", finish_name(r->finish));
    if (!c->stats)
        return;
    fprintf(stderr, "opened in %.1f ms; ", 1e3 * c->open_seconds);
    if (first_token > 0.0)
        fprintf(stderr, "time to first token %.1f ms; ", 1e3 * (first_token - c->started));
    fprintf(stderr, "%zu passes after the prompt in %.1f ms; peak memory %.1f MB\n", r->forwards, 1e3 * r->decode_seconds,
            1e-6 * (double)peak_memory());
    for (int k = 0; k < cli_draft_tokens(c); k++)
        if (r->drafted_by_depth[k])
            fprintf(stderr, "depth %d: %zu of %zu accepted (%.1f %%)\n", k + 1, r->accepted_by_depth[k],
                    r->drafted_by_depth[k], 100.0 * (double)r->accepted_by_depth[k] / (double)r->drafted_by_depth[k]);
    if (r->draft_failures)
        fprintf(stderr, "%zu drafts ended at a row of logits that was not finite\n", r->draft_failures);
}

void answer_show_prefill(void *unused, size_t done, size_t total)
{
    (void)unused;
    cli_progress("reading the prompt", done, total);
}

/* ---- a run --------------------------------------------------------------------------------------------------------- */

void answer_end(struct answer *a, const vb_result *r)
{
    char rest[16];
    if (a->c->json)
        return;
    write_bytes(rest, utf8_stream_finish(&a->stream, rest));
    if (r->tokens)
        putchar('\n');
    fflush(stdout);
}

int answer_generate(struct answer *a, vb_session *session, size_t n, vb_result *result)
{
    vb_error err;
    vb_generate_options o = {.max_tokens = n, .ignore_eos = a->c->ignore_eos, .fingerprint = a->c->json, .callback = answer_token,
                             .context = a};
    answer_watch_interrupt(0);
    a->colour = isatty(STDOUT_FILENO);
    a->logprobs = a->c->logprobs >= 0 ? json_array() : NULL;
    int failed = vb_generate(session, &o, result, &err);
    answer_end(a, result);
    if (failed) {
        json_decref(a->logprobs);
        return cli_error(a->c, &err), EXIT_OTHER;
    }
    return interrupted && result->finish == VB_FINISH_STOPPED ? EXIT_INTERRUPTED : EXIT_DONE;
}
