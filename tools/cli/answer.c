/* tools/cli/answer.c -- prints the tokens of a run, and its statistics. */
#include "tools/cli/answer.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- Ctrl-C ------------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void answer_watch_interrupt(int reading)
{
    struct sigaction action = {.sa_handler = note_interrupt,
                               .sa_flags = (int)(reading ? SA_RESETHAND : SA_RESETHAND | SA_RESTART)},
                     was;
    /* SIGINT is ignored under nohup and in background jobs of some shells */
    if (!sigaction(SIGINT, NULL, &was) && was.sa_handler != SIG_IGN)
        sigaction(SIGINT, &action, NULL);
}

int answer_stop(void *unused)
{
    (void)unused;
    return interrupted;
}

int answer_interrupted(void)
{
    int was = interrupted;
    interrupted = 0;
    return was;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void hold(struct answer *a, const char *bytes, size_t size, int draft)
{
    if (a->count + size > a->room) {
        a->room = 2 * (a->count + size);
        a->held = cli_must(realloc(a->held, a->room));
        a->drafted = cli_must(realloc(a->drafted, a->room));
    }
    memcpy(a->held + a->count, bytes, size);
    memset(a->drafted + a->count, draft, size);
    a->count += size;
}

/* Prints the text up to byte `text_bytes`. */
static void write_up_to(struct answer *a, size_t text_bytes)
{
    char out[4096];
    size_t n = text_bytes - a->written, end;
    for (size_t i = 0; i < n; i = end) {
        int green = a->colour && a->drafted[i];
        for (end = i + 1; end < n && end < i + 1024 && a->drafted[end] == a->drafted[i];)
            end++;
        fputs(green ? "\033[32m" : "", stdout);
        fwrite(out, 1, vb_utf8_push(&a->stream, a->held + i, end - i, out), stdout);
        fputs(green ? "\033[0m" : "", stdout);
    }
    fflush(stdout);
    memmove(a->held, a->held + n, n ? a->count - n : 0);
    memmove(a->drafted, a->drafted + n, n ? a->count - n : 0);
    a->count -= n;
    a->written += n;
}

int answer_token(void *context, const vb_event *e)
{
    struct answer *a = context;
    const struct cli *c = a->c;
    size_t size;
    if (!a->first_token)
        a->first_token = cli_seconds();
    if (a->logprobs)
        json_array_append_new(a->logprobs,
                              answer_logprobs(e->logits, vb_vocab_size(c->model), e->token, (int32_t)c->logprobs));
    if (c->json)
        return interrupted; /* with --json, the text is printed after the run */
    if (!c->tokenizer) { /* without a tokenizer, print token ids in the format of --tokens */
        printf(a->printed++ ? ",%d" : "%d", e->token);
        fflush(stdout);
        return ferror(stdout) || interrupted;
    }
    const char *piece = vb_piece(c->tokenizer, e->token, &size);
    if (piece && (!vb_is_end_token(c->model, e->token) || c->ignore_eos))
        hold(a, piece, size, e->draft_depth > 0);
    write_up_to(a, e->text_bytes);
    return ferror(stdout) || interrupted; /* stop the run if stdout cannot be written, or after Ctrl-C */
}

static const char *finish_name(enum vb_finish finish)
{
    return finish == VB_FINISH_STOP ? "stop"
           : finish == VB_FINISH_LENGTH ? "length"
           : interrupted ? "interrupted"
           : "stopped";
}

/* Returns the largest amount of memory that the process has used, including the mapped pages of the weights. */
static json_int_t peak_memory(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (json_int_t)usage.ru_maxrss * 1024;
}

/* Returns {nodes, ...}, or JSON null if --numa is off. */
static json_t *placement(const struct cli *c)
{
    vb_placement p;
    if (!vb_model_placement(c->model, &p))
        return json_null();
    return json_pack("{s:i,s:I,s:I,s:I,s:f,s:s}", "nodes", p.nodes, "pages", (json_int_t)p.pages, "in_place",
                     (json_int_t)p.in_place, "moved", (json_int_t)p.moved, "seconds", p.seconds, "why_not", p.why_not);
}

static json_t *threads(const vb_session *s)
{
    vb_thread_use use;
    vb_session_threads(s, &use);
    return json_pack("{s:i,s:f,s:I,s:I,s:f}", "most", use.most, "mean", use.mean, "passes", (json_int_t)use.passes,
                     "left_out", (json_int_t)use.left_out, "waited_seconds", use.waited);
}

/* Returns the statistics of the decoding, and adds those of the run: load times, memory and so on. */
static json_t *all_stats(const struct cli *c, const vb_session *s, const vb_result *r, double first_token)
{
    json_t *stats = cli_stats(r, cli_used_tokens(c, r));
    json_object_set_new(stats, "load_seconds", json_real(c->open_seconds));
    json_object_set_new(stats, "copy_seconds", json_real(cli_facts(c).copy_seconds));
    json_object_set_new(stats, "copied_bytes", json_integer((json_int_t)cli_facts(c).copied_bytes));
    json_object_set_new(stats, "time_to_first_token_seconds",
                        first_token > 0.0 ? json_real(first_token - c->started) : json_null());
    json_object_set_new(stats, "draft_seconds", json_real(r->draft_seconds));
    json_object_set_new(stats, "draft_memory_bytes", json_integer((json_int_t)vb_draft_memory(s)));
    json_object_set_new(stats, "peak_memory_bytes", json_integer(peak_memory()));
    json_object_set_new(stats, "threads", threads(s));
    json_object_set_new(stats, "numa", placement(c));
    cli_add_ranks(c, stats);
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
    char *text = cli_text(c, tokens + prompt, count - prompt, r->text_bytes, &size);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, r->fingerprint);
    json_t *out = json_pack("{s:I,s:o,s:o,s:s,s:s?,s:s,s:s,s:i,s:i,s:s,s:b,s:o}", "prompt_tokens", (json_int_t)prompt,
                            "tokens", ids, "text", text ? json_stringn(text, size) : json_null(), "finish_reason",
                            finish_name(r->finish), "stop_string",
                            r->stop_string ? c->sampling.stop[r->stop_string - 1] : NULL, "fingerprint", fingerprint,
                            "draft", cli_draft_name(c), "draft_tokens", cli_used_tokens(c, r), "draft_topk",
                            c->session.drafting.tree.topk > 1 ? c->session.drafting.tree.topk : 1, "acceptance",
                            cli_acceptance(c), "lossy", cli_is_relaxed(c), "stats", all_stats(c, s, r, a->first_token));
    if (a->logprobs)
        json_object_set_new(out, "logprobs", a->logprobs);
    a->logprobs = NULL;
    free(text);
    return out;
}

static void print_by_depth(const struct cli *c, const vb_result *r)
{
    size_t rejected = 0;
    for (int k = 0; k < cli_draft_tokens(c); k++)
        if (r->drafted_by_depth[k])
            fprintf(stderr, "depth %d: %zu of %zu accepted (%.1f %%), the first rejected of %zu rounds\n", k + 1,
                    r->accepted_by_depth[k], r->drafted_by_depth[k],
                    100.0 * (double)r->accepted_by_depth[k] / (double)r->drafted_by_depth[k], r->rejected_by_depth[k]);
    for (int why = 0; why < VB_REJECT_REASONS; why++)
        if (r->first_reject[why])
            fprintf(stderr, "%s%s %zu",
                    rejected++ ? ", " : "first rejected, why: ", cli_reject_name((enum vb_reject)why),
                    r->first_reject[why]);
    fputs(rejected ? "\n" : "", stderr);
}

/* With relaxed acceptance, which is lossy, always reports how many tokens it changed. */
static void tell_acceptance(const struct cli *c, const vb_result *r)
{
    if (!cli_is_relaxed(c))
        return;
    if (r->relaxed)
        fprintf(stderr,
                "--acceptance relaxed is lossy: %zu of %zu tokens are not those of plain decoding (%.3f nats below the "
                "best, on average); the "
                "text after them differs too\n",
                r->relaxed, r->tokens, r->relaxed_nats / (double)r->relaxed);
    else
        fprintf(stderr, "--acceptance relaxed: nothing was relaxed; all %zu tokens are those of plain decoding\n",
                r->tokens);
}

void answer_statistics(const struct answer *a, const vb_session *s, size_t prompt, const vb_result *r)
{
    const struct cli *c = a->c;
    double after_first = r->tokens ? (double)r->tokens - 1.0 : 0.0;
    fprintf(stderr, "%zu prompt tokens", prompt);
    if (r->prefill_seconds > 0.0)
        fprintf(stderr, " (%.1f/s)", (double)r->prefill_tokens / r->prefill_seconds);
    fprintf(stderr, ", %zu new", r->tokens);
    if (r->decode_seconds > 0.0)
        fprintf(stderr, " (%.1f/s)", after_first / r->decode_seconds);
    char topk[20] = "", K[64];
    vb_thread_use use;
    snprintf(K, sizeof K, "%d", cli_draft_tokens(c));
    if (c->draft_tokens == CLI_AUTO)
        snprintf(K, sizeof K, "auto (at most %d used, %.1f on average)", cli_used_tokens(c, r),
                 r->forwards ? (double)r->drafted / (double)r->forwards : 0.0);
    if (c->session.drafting.tree.topk > 1)
        snprintf(topk, sizeof topk, " topk=%d", c->session.drafting.tree.topk);
    if (cli_draft_tokens(c) && r->forwards)
        fprintf(stderr, ", %s K=%s%s%s%s: %.2f tokens per forward, %zu of %zu drafts accepted", cli_draft_name(c), K,
                topk, strcmp(cli_acceptance(c), "strict") ? " " : "",
                strcmp(cli_acceptance(c), "strict") ? cli_acceptance(c) : "", after_first / (double)r->forwards,
                r->accepted, r->drafted);
    fprintf(stderr, "; %s\n", finish_name(r->finish));
    tell_acceptance(c, r);
    if (!c->stats)
        return;
    fprintf(stderr, "opened in %.1f ms; ", 1e3 * c->open_seconds);
    vb_model_facts facts = cli_facts(c);
    if (facts.copied_bytes)
        fprintf(stderr, "in %.1f ms of them %.1f MB of weights were %s; ", 1e3 * facts.copy_seconds,
                1e-6 * (double)facts.copied_bytes, facts.repack_cache == 1 ? "mapped from a file of copies" : "copied");
    if (a->first_token > 0.0)
        fprintf(stderr, "time to first token %.1f ms; ", 1e3 * (a->first_token - c->started));
    fprintf(stderr, "%zu passes after the prompt in %.1f ms; peak memory %.1f MB\n", r->forwards,
            1e3 * r->decode_seconds, 1e-6 * (double)peak_memory());
    vb_session_threads(s, &use);
    fprintf(stderr, "%.1f of %d threads computed, on average", use.mean, use.most);
    if (use.left_out)
        fprintf(stderr, "; the cores were busy: a thread was left out %zu times, after %.1f ms of waiting",
                use.left_out, 1e3 * use.waited);
    fputc('\n', stderr);
    if (cli_draft_tokens(c))
        fprintf(stderr, "drafting took %.1f ms of them; its caches take %.1f MB\n", 1e3 * r->draft_seconds,
                1e-6 * (double)vb_draft_memory(s));
    print_by_depth(c, r);
    cli_tell_ranks(c, 1);
    if (r->draft_failures)
        fprintf(stderr, "%zu drafts ended at a row of logits that was not finite\n", r->draft_failures);
}

void answer_show_prefill(void *unused, size_t done, size_t total)
{
    (void)unused;
    cli_progress("reading the prompt", done, total);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* Prints the rest of the text and a newline. */
static void end_text(struct answer *a, const vb_result *r)
{
    char rest[16];
    if (a->c->tokenizer)
        write_up_to(a, r->text_bytes);
    fwrite(rest, 1, vb_utf8_finish(&a->stream, rest), stdout);
    if (r->tokens)
        putchar('\n');
    fflush(stdout);
}

int answer_generate(struct answer *a, vb_session *session, size_t n, vb_result *result)
{
    vb_error err;
    vb_generate_options o = {.max_tokens = n, .ignore_eos = a->c->ignore_eos, .fingerprint = a->c->json,
                             .callback = answer_token, .context = a};
    int code = cli_stops(a->c, &o);
    if (code != EXIT_DONE)
        return code;
    answer_watch_interrupt(0);
    a->colour = cli_terminal(STDOUT_FILENO);
    a->logprobs = a->c->logprobs >= 0 ? json_array() : NULL;
    int failed = vb_generate(session, &o, result, &err);
    if (interrupted)
        cli_progress("", 1, 1); /* erases the progress of the prompt */
    if (!a->c->json)
        end_text(a, result);
    free(a->held);
    free(a->drafted);
    a->held = a->drafted = NULL;
    if (failed) {
        json_decref(a->logprobs);
        return cli_error(a->c, &err), EXIT_OTHER;
    }
    return interrupted && result->finish == VB_FINISH_STOPPED ? EXIT_INTERRUPTED : EXIT_DONE;
}
