/* tools/serve/serve.c -- `verbatim serve`: opens the model, starts the engine's thread and HTTP, and waits for a
 * signal. */
#include "tools/serve/serve.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/serve/allowed.h"
#include "tools/serve/fingerprint.h"
#include "tools/serve/http.h"
#include "tools/serve/meaning.h"
#include "tools/serve/json_memory.h"
#include "tools/serve/metrics.h"
#include "tools/serve/request.h"
#include "tools/serve/worker.h"

#define DEFAULT_CACHE 65536 /* tokens, where all sequences together could use more */
#define MOST_KEY 4096

/* ---- failures ---------------------------------------------------------------------------------------------------- */

int fail_with(struct failure *f, int status, const char *code, const char *field, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    *f = (struct failure){.status = status, .code = code};
    snprintf(f->param, sizeof f->param, "%s", field);
    vsnprintf(f->message, sizeof f->message, format, args);
    va_end(args);
    return status;
}

int fail_by(struct failure *f, const vb_error *err)
{
    return fail_with(f, err->code == VB_BAD_ARGUMENT ? 400 : 500, NULL, "", "%s", err->message);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

void server_log(struct server *s, const char *text, size_t size)
{
    pthread_mutex_lock(&s->lock);
    FILE *to = s->log ? s->log : stderr;
    fwrite(text, 1, size, to);
    fflush(to);
    pthread_mutex_unlock(&s->lock);
}

/* Opens --log, or opens it anew; where that fails the one before goes on. */
static int open_log(struct server *s)
{
    FILE *file = s->c->log ? fopen(s->c->log, "ae") : NULL;
    if (s->c->log && !file)
        return cli_fail(s->c, EXIT_OTHER, "--log %.256s: %s", s->c->log, strerror(errno));
    pthread_mutex_lock(&s->lock);
    FILE *before = s->log;
    s->log = file;
    pthread_mutex_unlock(&s->lock);
    if (before)
        fclose(before);
    return EXIT_DONE;
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* What a signal's handler needs: where to say it, and whether one came before. */
static volatile sig_atomic_t listening, stopping;
static int wake_pipe[2] = {-1, -1};

static void note_signal(int number)
{
    int error = errno;
    if (number == SIGHUP) {
        if (write(wake_pipe[1], "h", 1) < 0)
            _exit(EXIT_OTHER);
        errno = error;
        return;
    }
    if (!listening || stopping)
        _exit(number == SIGINT ? EXIT_INTERRUPTED : 128 + number);
    stopping = 1;
    if (write(wake_pipe[1], "s", 1) < 0)
        _exit(EXIT_OTHER);
    errno = error;
}

static int watch_signals(const struct cli *c)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    if (pipe(wake_pipe))
        return cli_fail(c, EXIT_OTHER, "no pipe: %s", strerror(errno));
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (c->log)
        sigaction(SIGHUP, &action, NULL);
    return EXIT_DONE;
}

/* Until the server is to stop. */
static void wait_for_signal(struct server *s)
{
    char byte = 'h';
    while (byte == 'h') {
        struct pollfd one = {.fd = wake_pipe[0], .events = POLLIN}; /* ThreadSanitizer delivers signals inside of poll,
                                                                       and not of read */
        if (poll(&one, 1, -1) == 1 && read(wake_pipe[0], &byte, 1) == 1 && byte == 'h')
            open_log(s);
    }
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* The last part of the path, without .gguf. */
static const char *name_of(struct server *s, char room[256])
{
    if (s->c->served_name)
        return s->c->served_name;
    snprintf(room, 256, "%s", s->c->model_dir);
    size_t size = strlen(room);
    while (size > 1 && room[size - 1] == '/')
        room[--size] = '\0';
    if (size > 5 && !strcmp(room + size - 5, ".gguf"))
        room[size - 5] = '\0';
    const char *slash = strrchr(room, '/');
    return slash && slash[1] ? slash + 1 : room;
}

/* The most tokens of a sequence, and of the cache. */
static void choose_sizes(struct server *s)
{
    struct cli *c = s->c;
    long long most = vb_max_positions(c->model),
              spare = 1 + (c->session.drafting.tree.topk > 1 ? VB_MAX_NODES : VB_MAX_DRAFT);
    long long context = c->context > 0 && c->context < most ? c->context : most;
    s->max_sequences = c->max_sequences ? c->max_sequences : 8;
    if (!c->cache_tokens) {
        long long all = s->max_sequences * (context + spare),
                  least = context + spare > DEFAULT_CACHE ? context + spare : DEFAULT_CACHE;
        c->cache_tokens = all < least ? all : least;
    }
    if (context > c->cache_tokens - spare)
        context = c->cache_tokens - spare;
    s->context = context > 0 ? (size_t)context : 1;
}

static int read_key(struct server *s)
{
    const char *path = s->c->key_file;
    if (!path)
        return EXIT_DONE;
    vb_error err;
    if (vb_read_input(NULL, path, &s->key, &s->key_size, &err))
        return cli_fail(s->c, EXIT_OTHER, "--api-key-file %s", err.message);
    while (s->key_size && strchr(" \t\r\n", s->key[s->key_size - 1]))
        s->key[--s->key_size] = '\0';
    if (!s->key_size || s->key_size > MOST_KEY || strlen(s->key) != s->key_size || strpbrk(s->key, " \t\r\n"))
        return cli_fail(s->c, EXIT_USAGE, "--api-key-file %.256s: wanted one key, a line without blanks", path);
    return EXIT_DONE;
}

static void choose_drafting(struct server *s)
{
    const struct cli *c = s->c;
    s->drafting = c->session.drafting;
    s->drafting.method = cli_draft_name(c);
    s->drafting.tokens = cli_draft_tokens(c);
    s->drafting.automatic = c->draft_tokens == CLI_AUTO;
}

/* The token that is this text; -1: it is not one token. */
static int32_t find_token(const struct server *s, const char *text)
{
    int32_t id;
    size_t count;
    vb_error err;
    int found = s->tokenizer && !vb_encode(s->tokenizer, text, strlen(text), &id, 1, &count, &err) && count == 1 &&
                id < s->vocabulary;
    return found ? id : -1;
}

/* Finds the markers of tool calls that are special tokens: mark [VOCABULARY_MARKS]. Returns their number. */
static size_t find_marks(struct server *s, int32_t *mark)
{
    size_t count = 0;
    for (int i = MARK_CALLS; i < MEANING_MARKS; i++) {
        const char *text = meaning_mark(s->meaning.calls, (enum meaning_mark)i);
        int32_t token = text ? find_token(s, text) : -1;
        if (token < 0 || !s->special[token] || count == VOCABULARY_MARKS)
            continue;
        s->mark_byte[i] = (unsigned char)(VOCABULARY_MARK + count);
        mark[count++] = token;
    }
    return count;
}

/* Where drafts reach the output, they may depend on nothing but the request and the server's options. A session shows
 * what the library refuses. */
static int check_acceptance(struct server *s)
{
    struct cli *c = s->c;
    vb_session_options o = c->session;
    vb_draft_method method;
    vb_session *session;
    vb_error err;
    int code = cli_thinking(c);
    if (code != EXIT_DONE || !server_drafts_lead(s))
        return code;
    o.sampling = c->session.sampling; /* cli_thinking has changed it */
    o.sampling.temperature = 1.0f; /* that of requests */
    o.drafting = s->drafting;
    o.context = s->context < 64 ? (int32_t)s->context : 64;
    if (!vb_draft_method_find(&method, s->drafting.method, NULL) && method.by_history)
        return cli_fail(c, EXIT_USAGE,
                        "--acceptance %s with %s: the drafts of a server's requests may not depend on the rounds "
                        "before",
                        cli_acceptance(c), method.name);
    if (vb_session_open(&session, c->model, &o, &err))
        return cli_error(c, &err);
    vb_session_close(session);
    return EXIT_DONE;
}

int server_drafts_lead(const struct server *s) { return cli_is_relaxed(s->c) || cli_is_rejection(s->c); }

/* The tokens' texts, as response_format wants them. */
static int read_pieces(struct server *s)
{
    size_t ends = 0, marks = 0;
    int32_t mark[VOCABULARY_MARKS];
    int32_t *end = calloc((size_t)s->vocabulary, sizeof *end);
    for (int32_t t = 0; end && t < s->vocabulary; t++)
        if (vb_is_end_token(s->c->model, t))
            end[ends++] = t;
    int rc = end ? VB_OK : VB_NO_MEMORY;
    if (!rc && s->tokenizer)
        rc = vocabulary_special(&s->special, s->tokenizer, s->vocabulary);
    if (!rc && s->tokenizer)
        marks = find_marks(s, mark);
    if (!rc && s->tokenizer && ends)
        rc = vocabulary_open(&s->pieces, s->tokenizer, s->vocabulary, s->special, end, ends, mark, marks);
    free(end);
    if (rc)
        return cli_fail(s->c, EXIT_OTHER,
                        rc == VB_NO_MEMORY ? "no memory for the vocabulary"
                                           : "the tokenizer cannot read the texts of its own tokens");
    return EXIT_DONE;
}

static int open_model(struct server *s, char name[256])
{
    struct cli *c = s->c;
    int code = cli_open(c);
    if (code != EXIT_DONE)
        return code;
    if (c->context > vb_max_positions(c->model))
        return cli_fail(c, EXIT_USAGE, "--context is %lld, max_position_embeddings is %d", c->context,
                        vb_max_positions(c->model));
    vb_template *chat = NULL;
    if (c->tokenizer && !vb_template_open(&chat, c->model_dir, NULL, &s->chat_error))
        c->template = chat;
    else if (!c->tokenizer)
        s->chat_error = c->tokenizer_error;
    s->chat = chat;
    s->tokenizer = c->tokenizer;
    s->vocabulary = vb_vocab_size(c->model);
    s->name = name_of(s, name);
    choose_sizes(s);
    choose_drafting(s);
    if (s->chat)
        meaning_of_template(vb_template_source(s->chat, NULL), &s->meaning);
    conversation_probe(s);
    code = check_acceptance(s);
    if (code == EXIT_DONE)
        code = read_pieces(s);
    return code == EXIT_DONE ? fingerprint_server(s) : code;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static void close_server(struct server *s, struct http *http)
{
    http_close(http);
    worker_close(s->worker);
    metrics_close(s->metrics);
    vocabulary_close(s->pieces);
    for (size_t i = 0; i < SERVE_MOST_UNKNOWN; i++)
        free(s->unknown[i]);
    free(s->special);
    vb_free(NULL, s->key);
    if (s->log)
        fclose(s->log);
    pthread_mutex_destroy(&s->lock);
}

static int serve(struct server *s, struct http **http)
{
    char name[256];
    int port, code = read_key(s);
    if (code == EXIT_DONE)
        code = open_log(s);
    if (code == EXIT_DONE)
        code = watch_signals(s->c);
    if (code == EXIT_DONE)
        code = http_open(http, s, &port);
    if (code == EXIT_DONE)
        code = open_model(s, name);
    if (code == EXIT_DONE)
        code = worker_open(&s->worker, s);
    if (code != EXIT_DONE)
        return code;
    listening = 1;
    atomic_store(&s->state, SERVER_READY);
    int is_ip6 = s->c->host && strchr(s->c->host, ':');
    fprintf(stderr, "listening on http://%s%s%s:%d\n", is_ip6 ? "[" : "", s->c->host ? s->c->host : "127.0.0.1",
            is_ip6 ? "]" : "", port);
    if (s->c->group_size > 1) /* the signals of a launcher reach all ranks, and some launchers then end them within a
                                 second */
        fprintf(stderr, "rank 0 is process %ld; a signal to it alone stops the server as described in --help\n",
                (long)getpid());
    wait_for_signal(s);
    fputs("stopping: requests that run are finished; another signal ends at once\n", stderr);
    atomic_store(&s->state, SERVER_STOPPING);
    worker_finish(s->worker);
    http_drain(*http);
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    struct http *http = NULL;
    struct server s = {.c = c, .max_waiting = c->max_waiting < 0 ? 256 : (int32_t)c->max_waiting,
                       .created = (long long)time(NULL)};
    if (http_missing())
        return cli_fail(c, EXIT_OTHER, "%s", http_missing());
    json_memory_use();
    pthread_mutex_init(&s.lock, NULL);
    atomic_init(&s.state, SERVER_OPENING);
    int code = metrics_open(&s.metrics) ? serve(&s, &http) : cli_fail(c, EXIT_OTHER, "no memory for the server");
    close_server(&s, http);
    return code;
}

static const struct note notes[] = {
    {"--context",
     "Set the maximum number of tokens of one request, prompt and output together (default: the model's maximum)."},
    {"--max-sequences", "Compute at most N sequences at the same time, 1 to 64 (default 8). Other sequences wait."},
    {"--cache-tokens", "Set the total size of the KV cache in tokens, shared by all sequences (default: enough for "
                       "--max-sequences requests of the "
                       "maximum length, but at most 65536, or the length of one such request). When the cache is full, "
                       "the newest sequence is preempted and recomputed later."},
    {"--prefill", "Choose how the prompts of all requests are computed: contract or expanded (default contract). "
                  "expanded is faster for long "
                  "prompts, above all with a larger --prefill-chunk, and its results have other bits. The fingerprint "
                  "of the server names it. If a prompt repeats an earlier answer, the tokens of this answer are "
                  "computed again."},
    {"--prefill-chunk", "Compute at most N tokens of prompts in one pass (default 512). A smaller N makes the gaps in "
                        "running streams shorter while "
                        "a long prompt is computed, and the prompt slower. The output is the same for every N."},
    {"--draft", "Choose the draft method of requests that do not choose one (default none); `verbatim help --draft` "
                "lists the methods. Drafting "
                "changes the speed but not the output."},
    {"--acceptance", "Choose the rule by which the model accepts drafts, for all requests (default strict, which "
                     "changes no output). With relaxed "
                     "and rejection, the drafts influence the output, so --draft-tokens auto is refused. `verbatim "
                     "help --acceptance` explains the rules."},
    {NULL, NULL}};

const struct command command_serve = {
    "serve", "answer requests over HTTP in the format of the OpenAI API",
    "MODEL [--host HOST] [--port PORT] [--max-sequences N] [--cache-tokens N] [--api-key-file FILE] [OPTIONS]",
    "Serves /v1/chat/completions, /v1/completions and /v1/models, and /tokenize, /detokenize, /apply-template, "
    "/tokenizer_info, /health,\n"
    "/version and /metrics. A web page for conversations is at /. Several requests share each forward pass. The answer "
    "to a request is\n"
    "the same as the output of `verbatim generate`, and does not depend on other requests. When the server is ready, "
    "it prints a line\n"
    "with its address on stderr. On SIGTERM or Ctrl-C, it refuses new requests, completes the running ones, and ends. "
    "A second signal\n"
    "ends it immediately.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_DRAFT | TAKES_ACCEPTANCE | TAKES_SERVE | TAKES_PREFILL, run, notes, 0, NULL};
