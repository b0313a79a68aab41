/* tools/chat.c -- `verbatim chat`: a conversation in which each line of input is one turn.
 *
 * Each turn renders the whole conversation again. The session keeps the tokens with which the new rendering begins, so
 * only the tokens after them are computed. The two can differ: the template may drop the reasoning of an earlier turn,
 * and the text of an answer may be encoded as other tokens than those that were generated. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/answer.h"
#include "tools/cli/line.h"

#define CONTEXT 8192 /* tokens, where --context says nothing: caches are allocated whole */

struct chat {
    struct cli *c;
    vb_session *session;
    json_t *messages;
    size_t context;
};

/* Replaces the tokens of the session by these tokens. Tokens that both begin with are not computed again. */
static int replace_timeline(struct chat *t, const int32_t *ids, size_t count)
{
    size_t had, same = 0;
    const int32_t *tokens = vb_tokens(t->session, &had);
    vb_error err;
    if (count > t->context)
        return cli_fail(t->c, EXIT_USAGE, "the conversation has %zu tokens, the context %zu", count, t->context);
    while (same < had && same < count && tokens[same] == ids[same])
        same++;
    return vb_truncate(t->session, same, &err) || vb_append(t->session, ids + same, count - same, &err)
               ? cli_error(t->c, &err)
               : EXIT_DONE;
}

/* *count: the number of tokens of the conversation so far */
static int read_conversation(struct chat *t, size_t *count)
{
    char *text;
    size_t size;
    int32_t *ids = NULL;
    int code = cli_render(t->c, t->messages, &text, &size);
    if (code == EXIT_DONE)
        code = cli_encode(t->c, "the chat template's text", text, size, 1, &ids, count);
    vb_text_free(text);
    if (code == EXIT_DONE)
        code = replace_timeline(t, ids, *count);
    free(ids);
    return code;
}

static int keep_answer(struct chat *t, size_t prompt, const vb_result *r)
{
    size_t count, size;
    const int32_t *tokens = vb_tokens(t->session, &count);
    char *text = cli_text(t->c, tokens + prompt, count - prompt, r->text_bytes, &size);
    int code = cli_add_message(t->c, t->messages, "assistant", text, size);
    free(text);
    return code;
}

static int answer_turn(struct chat *t)
{
    struct answer answer = {.c = t->c};
    vb_result result = {.fingerprint = VB_FINGERPRINT_START};
    size_t count = 0, n = t->c->n < 0 ? INT32_MAX : (size_t)t->c->n;
    t->c->started = cli_seconds();
    int code = read_conversation(t, &count);
    if (code == EXIT_DONE)
        code = answer_generate(&answer, t->session, n, &result);
    if (code != EXIT_DONE && code != EXIT_INTERRUPTED)
        return code;
    if (t->c->json) {
        json_t *out = answer_json(&answer, t->session, count, &result);
        json_object_set_new(out, "prefill_tokens", json_integer((json_int_t)result.prefill_tokens));
        if (cli_print_json(out) != EXIT_DONE)
            return EXIT_OTHER;
    } else {
        answer_statistics(&answer, t->session, result.prefill_tokens, &result);
    }
    int kept = keep_answer(t, count, &result);
    if (code == EXIT_INTERRUPTED && line_is_interactive() && answer_interrupted())
        code = EXIT_DONE; /* Ctrl-C ends the answer, but not the conversation */
    return kept == EXIT_DONE ? code : kept;
}

/* If the last message of --messages is unanswered, it is answered first. */
static int waits_for_answer(const struct chat *t)
{
    size_t n = json_array_size(t->messages);
    const char *role = n ? json_string_value(json_object_get(json_array_get(t->messages, n - 1), "role")) : NULL;
    return role && (!strcmp(role, "user") || !strcmp(role, "tool"));
}

static int converse(struct chat *t)
{
    int code = EXIT_DONE;
    while (code == EXIT_DONE) {
        if (!waits_for_answer(t)) {
            size_t size;
            answer_watch_interrupt(1);
            char *line = line_read("> ", &size);
            if (!line)
                return answer_interrupted() ? EXIT_INTERRUPTED : EXIT_DONE;
            if (size)
                code = cli_add_message(t->c, t->messages, "user", line, size);
            free(line);
        }
        if (code == EXIT_DONE && waits_for_answer(t))
            code = answer_turn(t);
    }
    return code;
}

static int run(struct cli *c)
{
    struct chat t = {.c = c};
    int code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_open_template(c);
    if (code == EXIT_DONE)
        code = cli_messages(c, &t.messages);
    c->session.progress = answer_show_prefill;
    c->session.stop = answer_stop;
    if (code == EXIT_DONE)
        code = cli_session(c, 0, CONTEXT, &t.session);
    if (code == EXIT_DONE) {
        int32_t most = vb_max_positions(c->model);
        t.context = (size_t)(c->context > 0 ? c->context : most < CONTEXT ? most : CONTEXT);
        code = converse(&t);
    }
    vb_session_close(t.session);
    json_decref(t.messages);
    return code;
}

static const struct note notes[] = {
    {"--context",
     "Set the maximum number of tokens in the conversation (default 8192, or the model's maximum if that is smaller)."},
    {"-n", "Generate at most N tokens per answer (default: as many as the context allows)."},
    {"--json", "Print a JSON object for each answer. The object has all keys of `generate --json`. The additional key "
               "prefill_tokens is "
               "the number of prompt tokens that were computed for this answer."},
    {NULL, NULL}};

const struct command command_chat = {
    "chat", "talk to the model; each line of input is a message",
    "MODEL [OPTIONS]",
    "Reads a line from the user, prints the model's answer, and repeats this until the end of the input (Ctrl-D). The "
    "checkpoint's\n"
    "chat template builds the prompt. Only the part of the conversation that is not yet in the KV cache is computed. "
    "On a terminal,\n"
    "you can edit the line, and the arrow keys bring back earlier lines. Ctrl-C during an answer stops the answer. "
    "Ctrl-C between\n"
    "two answers ends the program with exit code 130. After each answer, a line of statistics is printed on stderr.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_CHAT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH | TAKES_STATS |
        TAKES_LOGPROBS | TAKES_STOP | TAKES_ACCEPTANCE,
    run, notes, 0, NULL};
