/* tools/chat.c -- `verbatim chat`: a conversation, a line of input a turn.
 *
 * Each turn renders the whole conversation anew and keeps of the session's timeline what the rendering begins with, so only
 * what differs is computed: the template may drop what an earlier turn thought, and text may come back as other tokens than it
 * was generated as. */
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

/* The timeline becomes these tokens; what both begin with stays computed. */
static int replace_timeline(struct chat *t, const int32_t *ids, size_t count)
{
    size_t had, same = 0;
    const int32_t *tokens = vb_tokens(t->session, &had);
    vb_error err;
    if (count > t->context)
        return cli_fail(t->c, EXIT_USAGE, "the conversation has %zu tokens, the context %zu", count, t->context);
    while (same < had && same < count && tokens[same] == ids[same])
        same++;
    return vb_truncate(t->session, same, &err) || vb_append(t->session, ids + same, count - same, &err) ? cli_error(t->c, &err)
                                                                                                          : EXIT_DONE;
}

/* *count: tokens of the conversation so far */
static int read_conversation(struct chat *t, size_t *count)
{
    char *text;
    size_t size;
    int32_t *ids = NULL;
    int code = cli_render(t->c, t->messages, &text, &size);
    if (code == EXIT_DONE)
        code = cli_encode(t->c, "the chat template's text", text, size, 1, &ids, count);
    vb_free(NULL, text);
    if (code == EXIT_DONE)
        code = replace_timeline(t, ids, *count);
    vb_free(NULL, ids);
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
        code = EXIT_DONE; /* the answer ends, the conversation goes on */
    return kept == EXIT_DONE ? code : kept;
}

/* What the messages of --messages leave unanswered comes first. */
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

const struct command command_chat = {
    "chat", "talk to the model; each line is a message",
    "usage: verbatim chat MODEL [OPTIONS]\n\n"
    "Reads a line, answers it, and so on to the end of the input (Ctrl-D). The checkpoint's chat template makes the prompt; caches\n"
    "are kept, so that of a turn's prompt only what differs from the last one is computed. On a terminal the line can be edited,\n"
    "and the arrows bring back earlier ones. Ctrl-C ends an answer, and between answers the conversation (exit code 130).\n"
    "After each answer a line of statistics on stderr; its prompt tokens are those computed for this turn.\n\n"
    "  --system TEXT          a system message in front\n"
    "  --messages FILE        a JSON array of messages, with which the conversation begins\n"
    "  --chat-template-kwargs JSON    more variables of the template: {\"thinking\": true}\n"
    "  -n N                   tokens of an answer at most (as the context allows)\n"
    "  --context N            tokens of the conversation at most; its caches are allocated at once (8192, or what the model has)\n"
    "  --json                 an object for each answer, as generate's, and prefill_tokens: computed for this turn's prompt\n"
    "  --draft METHOD, --draft-tokens K, --draft-p-min, --ngram-min, --ngram-max, --draft-settings,\n"
    "  --draft-model, --draft-precision,\n"
    "  --speculative-config and so on, --padded, --acceptance, --draft-sample-method, --relaxed-topk, --relaxed-delta,\n"
    "  --thinking-tokens, --temperature, --top-k, --top-p, --min-p, --seed, --repetition-penalty, --presence-penalty,\n"
    "  --frequency-penalty, --logit-bias, --stop, --ignore-eos, --stats, --logprobs, --threads, --isa, --precision, --repack,\n"
    "  --prefill-chunk, --convention, --as, --numa, --mlock    as for generate\n",
    TAKES_COMPUTE | TAKES_CHAT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH | TAKES_STATS | TAKES_LOGPROBS | TAKES_STOP |
        TAKES_ACCEPTANCE,
    run};
