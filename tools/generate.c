/* tools/generate.c -- `verbatim generate`: continues a prompt. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"

/* Writes the text as it comes; on a terminal, accepted drafts are green. What may become a stop string is held back. */
struct printer {
    const struct cli *c;
    struct utf8_stream stream;
    int colour, printed;
    double first_token; /* when it came, by cli_seconds(); 0: none yet */
    char *held;         /* the text's bytes that are not written yet, and for each whether a draft brought it */
    char *drafted;
    size_t count, room, written;
};

static void hold(struct printer *p, const char *bytes, size_t size, int draft)
{
    if (p->count + size > p->room) {
        p->room = 2 * (p->count + size);
        p->held = realloc(p->held, p->room);
        p->drafted = realloc(p->drafted, p->room);
        if (!p->held || !p->drafted)
            abort();
    }
    memcpy(p->held + p->count, bytes, size);
    memset(p->drafted + p->count, draft, size);
    p->count += size;
}

/* Writes the text up to that many bytes. */
static void write_up_to(struct printer *p, size_t text_bytes)
{
    char out[4096];
    size_t n = text_bytes - p->written, end;
    for (size_t i = 0; i < n; i = end) {
        int green = p->colour && p->drafted[i];
        for (end = i + 1; end < n && end < i + 1024 && p->drafted[end] == p->drafted[i];)
            end++;
        fputs(green ? "\033[32m" : "", stdout);
        fwrite(out, 1, utf8_stream_push(&p->stream, p->held + i, end - i, out), stdout);
        fputs(green ? "\033[0m" : "", stdout);
    }
    fflush(stdout);
    memmove(p->held, p->held + n, n ? p->count - n : 0);
    memmove(p->drafted, p->drafted + n, n ? p->count - n : 0);
    p->count -= n;
    p->written += n;
}

static void finish_text(struct printer *p, const vb_result *r)
{
    char rest[16];
    if (p->c->tokenizer)
        write_up_to(p, r->text_bytes);
    fwrite(rest, 1, utf8_stream_finish(&p->stream, rest), stdout);
    if (r->tokens)
        putchar('\n');
    fflush(stdout);
}

static int print_token(void *context, const vb_event *e)
{
    struct printer *p = context;
    size_t size;
    if (!p->first_token)
        p->first_token = cli_seconds();
    if (p->c->json)
        return 0; /* all at once, in the end */
    if (!p->c->tokenizer) { /* no text: ids, as --tokens takes them */
        printf(p->printed++ ? ",%d" : "%d", e->token);
        fflush(stdout);
        return ferror(stdout) != 0;
    }
    const char *piece = tokenizer_piece(p->c->tokenizer, e->token, &size);
    if (piece && (!vb_is_end_token(p->c->model, e->token) || p->c->ignore_eos))
        hold(p, piece, size, e->draft_depth > 0);
    write_up_to(p, e->text_bytes);
    return ferror(stdout) != 0; /* nobody reads: stop */
}

static const char *finish_name(enum vb_finish finish)
{
    return finish == VB_FINISH_STOP ? "stop" : finish == VB_FINISH_LENGTH ? "length" : "stopped";
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
    json_object_set_new(stats, "copy_seconds", json_real(c->model->copy_seconds));
    json_object_set_new(stats, "copied_bytes", json_integer((json_int_t)c->model->copied_bytes));
    json_object_set_new(stats, "time_to_first_token_seconds", first_token > 0.0 ? json_real(first_token - c->started) : json_null());
    json_object_set_new(stats, "peak_memory_bytes", json_integer(peak_memory()));
    json_object_set_new(stats, "numa", placement(c));
    return stats;
}

static int print_json(struct cli *c, const vb_session *s, size_t prompt, const vb_result *r, double first_token)
{
    size_t count;
    char fingerprint[17];
    const int32_t *tokens = vb_tokens(s, &count);
    json_t *ids = json_array();
    for (size_t i = prompt; i < count; i++)
        json_array_append_new(ids, json_integer(tokens[i]));
    size_t size;
    char *text = cli_text(c, tokens + prompt, count - prompt, r->text_bytes, &size);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, r->fingerprint);
    json_t *out = json_pack("{s:I,s:o,s:o,s:s,s:s?,s:s,s:s,s:i,s:o}", "prompt_tokens", (json_int_t)prompt, "tokens", ids, "text",
                            text ? json_stringn(text, size) : json_null(), "finish_reason", finish_name(r->finish), "stop_string",
                            r->stop_string ? c->sampling.stop[r->stop_string - 1] : NULL, "fingerprint", fingerprint, "draft", cli_draft_name(c), "draft_tokens", cli_draft_tokens(c), "stats",
                            all_stats(c, r, first_token));
    free(text);
    return cli_print_json(out);
}

static void print_statistics(const struct cli *c, size_t prompt, const vb_result *r, double first_token)
{
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
    if (c->model->copied_bytes)
        fprintf(stderr, "in %.1f ms of them %.1f MB of weights were copied; ", 1e3 * c->model->copy_seconds,
                1e-6 * (double)c->model->copied_bytes);
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

static void show_prefill(void *label, size_t done, size_t total) { cli_progress(label, done, total); }

static int decode(struct cli *c, vb_session *session, size_t prompt, long long n)
{
    vb_error err;
    vb_result result = {.fingerprint = VB_FINGERPRINT_START};
    struct printer printer = {.c = c, .colour = isatty(STDOUT_FILENO)};
    vb_generate_options o = {.max_tokens = (size_t)n, .ignore_eos = c->ignore_eos, .fingerprint = c->json,
                             .callback = print_token, .context = &printer};
    int code = cli_stops(c, &o);
    if (code != EXIT_DONE)
        return code;
    int failed = vb_generate(session, &o, &result, &err);
    if (!c->json)
        finish_text(&printer, &result);
    free(printer.held);
    free(printer.drafted);
    if (failed)
        cli_error(c, &err), code = EXIT_OTHER;
    else if (c->save)
        code = cli_save_session(c, session, c->save);
    if (code != EXIT_DONE)
        return code;
    if (c->json)
        code = print_json(c, session, prompt, &result, printer.first_token);
    else if (!ferror(stdout)) /* else main says so */
        print_statistics(c, prompt, &result, printer.first_token);
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
    if (c->prompt || c->prompt_file || c->tokens)
        code = cli_prompt(c, &prompt, count);
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
    int code = cli_check_session_file(c, "--save-session", c->save);
    if (code == EXIT_DONE)
        code = cli_open(c);
    c->session.progress = show_prefill;
    c->session.progress_context = "reading the prompt";
    if (code == EXIT_DONE)
        code = open_timeline(c, n, &session, &count);
    if (code == EXIT_DONE)
        code = decode(c, session, count, n);
    vb_session_close(session);
    return code;
}

const struct command command_generate = {
    "generate", "continue a prompt",
    "usage: verbatim generate MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) [OPTIONS]\n"
    "usage: verbatim generate MODEL --session FILE [--prompt TEXT | ...] [OPTIONS]\n\n"
    "The text goes to stdout as it comes (accepted drafts are green on a terminal), one line of statistics to stderr.\n\n"
    "  --prompt TEXT          the prompt, as it stands: no chat template is applied\n"
    "  --prompt-file FILE     its bytes, as they are\n"
    "  --tokens IDS           5,6,7 or @FILE (integers separated by commas or white space); never with BOS\n"
    "  --bos, --no-bos        put BOS in front or not; otherwise tokenizer_config.json's add_bos_token says\n"
    "  --session FILE         go on from a saved session (verbatim session --help), with the prompt, if there is one, behind it\n"
    "  --save-session FILE    save the session when the text is done; one that exists is not replaced without --force\n"
    "  --without-hidden       save it without hidden rows\n"
    "  -n N                   new tokens at most (128)\n"
    "  --ignore-eos           go on after an end token\n"
    "  --draft METHOD         none, mtp-vanilla, mtp-eagle, eagle-reroll, eagle-keep (none); changes\n"
    "                         the speed, never the output\n"
    "  --draft-tokens K       longest draft, 0 to 15 (the number of MTP modules); 0 is none\n"
    "  --speculative-config JSON, --plugin-params JSON, --spec_decode_algo MTP [--spec_decode_max_draft_len K]\n"
    "  [--use_mtp_vanilla], --spec-type draft-mtp [--spec-draft-n-max K]\n"
    "                         the same in the words of vLLM (methods mtp, deepseek_mtp), MindIE, TensorRT-LLM, llama.cpp:\n"
    "                         all are mtp-eagle, with --use_mtp_vanilla mtp-vanilla; stderr says what was chosen\n"
    "  --padded               passes of a round are filled up to K+1 rows, as systems with fixed shapes do; same output\n"
    "  --convention LIST      NAME=VALUE,...: how other implementations do it; verbatim conventions lists them. Those of\n"
    "                         drafting change no output\n"
    "  --as SYSTEM            all conventions of vllm-2025, sglang, mindie, llama.cpp, ...\n"
    "  --temperature T        0 takes the most likely token (0)\n"
    "  --top-k N, --top-p P   0 and 1 are off (0, 1)\n"
    "  --min-p P              leaves out tokens less likely than P times the likeliest; 0 is off (0)\n"
    "  --seed N               of the random numbers (0)\n"
    "  --repetition-penalty R    of tokens in prompt or output: z > 0 ? z/R : z*R; 0 and 1 are off (1)\n"
    "  --presence-penalty X, --frequency-penalty X   minus X, minus X times its count, for a token in the output (0, 0)\n"
    "  --logit-bias ID:VALUE,..  added to logits before all else; -inf forbids a token\n"
    "  --stop TEXT            end with the token that completes TEXT in the output, which then ends before it; may be repeated\n"
    "  --threads N            (the processors this process may use)\n"
    "  --isa NAME             best, scalar, avx2, avx512, neon (best)\n"
    "  --precision MODE       f32; bf16: what linear layers take is rounded to bf16, faster prompts; q8, q4: their weights are\n"
    "                         quantised to 8 or 4 bits, faster tokens (f32)\n"
    "  --repack WHETHER       on, off (on): quantised weights are put into a faster order when the model is opened; same output\n"
    "  --prefill-chunk N      rows of the prompt in one pass (512)\n"
    "  --prefill WHO          contract, or onednn: for speed, the prompt goes through oneDNN's linear layers in chunks of 512,\n"
    "                         with BF16 weights rounded as in --precision bf16. Other bits, and others on another kind of\n"
    "                         machine; drafts, threads and ISA change none of them (contract)\n"
    "  --context N            tokens that the caches hold (prompt + n)\n"
    "  --numa MODE            off, interleave, bind (off): where threads and pages of weights go on a machine with several\n"
    "                         memories; reads all weights first; same output\n"
    "  --mlock                lock the weights into memory: reads them all first; a warning where the limit is too low\n"
    "  --stats                more statistics, on stderr: by depth, load time, copies of weights, time to first token, peak\n"
    "                         memory, --numa\n"
    "  --json                 one object on stdout: prompt_tokens, tokens, text, finish_reason, stop_string, fingerprint,\n"
    "                         draft, draft_tokens, stats\n",
    TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH | TAKES_STATS | TAKES_PREFILL | TAKES_STOP |
        TAKES_SESSION | TAKES_SAVE | TAKES_SAVE_AFTER, run};
