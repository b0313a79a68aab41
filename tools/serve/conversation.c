/* tools/serve/conversation.c -- a conversation as ids: checked, rendered by the checkpoint's template, encoded.
 *
 * A template writes special tokens as text, and so may a message. To keep them apart, a mark is put into those of
 * messages before rendering: behind the first character, so that the tokenizer does not recognise them. Afterwards the
 * stretches of text between the template's own special tokens lose their marks and are encoded as plain text. */
#include <stdlib.h>
#include <string.h>

#include "tools/serve/conversation_internal.h"

#define MARK_SIZE 3
#define MOST_MESSAGES 4096

struct conversation {
    const struct server *s;
    char mark[MARK_SIZE + 1]; /* a noncharacter of Unicode that nothing contains that the template reads; "": no
                                 marks */
    int marked;               /* some were put in */
};

/* ---- special tokens in messages ---------------------------------------------------------------------------------- */

/* One of U+FDD0 to U+FDEF that neither text contains. */
static int choose_mark(struct conversation *k, const char *said, const char *more, struct failure *f)
{
    for (unsigned char last = 0x90; last <= 0xaf; last++) {
        memcpy(k->mark, (const char[]){'\xef', '\xb7', (char)last, '\0'}, sizeof k->mark);
        if (!strstr(said, k->mark) && !strstr(more, k->mark))
            return 0;
    }
    return fail_with(f, 400, NULL, "messages", "the messages contain every noncharacter from U+FDD0 to U+FDEF");
}

/* Whether a text of `size` bytes was recognised as a special token into which a mark fits. */
static int is_special(const struct server *s, int32_t id, size_t size)
{
    return size > 1 && id < s->vocabulary && s->special[id];
}

static size_t first_character(const char *text, size_t size)
{
    size_t n = 1;
    while (n < size && ((unsigned char)text[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* The text with a mark in each special token. Those that the marks themselves reveal (one within another) are found by
 * the next round. */
static int mark_once(struct conversation *k, const char *text, size_t size, struct serve_writer *out, int *found,
                     struct failure *f)
{
    struct serve_prompt ids = {0};
    size_t at = 0, from = 0;
    *found = 0;
    if (request_encode(k->s, text, size, 1, 0, &ids, f))
        return f->status;
    for (size_t i = 0; i < ids.count; i++) {
        size_t piece = 0;
        if (!vb_piece(k->s->tokenizer, ids.tokens[i], &piece) || at + piece > size)
            break;
        if (is_special(k->s, ids.tokens[i], piece)) {
            size_t cut = at + first_character(text + at, piece);
            writer_bytes(out, text + from, cut - from);
            writer_bytes(out, k->mark, MARK_SIZE);
            from = cut;
            *found = 1;
        }
        at += piece;
    }
    writer_bytes(out, text + from, size - from);
    request_drop_prompt(&ids);
    return out->failed ? fail_with(f, 500, NULL, "messages", "no memory for the conversation") : 0;
}

static json_t *mark_text(struct conversation *k, const json_t *text, struct failure *f)
{
    struct serve_writer now = {0};
    int found = 1;
    writer_bytes(&now, json_string_value(text), json_string_length(text));
    for (int round = 0; round < 8 && found && now.size && !f->status; round++) {
        struct serve_writer next = {0};
        mark_once(k, now.text, now.size, &next, &found, f);
        k->marked |= found;
        writer_close(&now);
        now = next;
    }
    json_t *out = f->status || now.failed ? NULL : json_stringn(now.size ? now.text : "", now.size);
    if (!out && !f->status)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    writer_close(&now);
    return out;
}

static json_t *mark_all(struct conversation *k, const json_t *value, struct failure *f);

/* A key is data, too, in the arguments of a tool call. */
static int set_marked(struct conversation *k, json_t *object, const char *key, const json_t *member, struct failure *f)
{
    json_t *name = json_string(key), *marked = name ? mark_text(k, name, f) : NULL;
    int failed = !marked || json_object_set_new(object, json_string_value(marked), mark_all(k, member, f));
    json_decref(name);
    json_decref(marked);
    return failed;
}

/* A new array or object with each member marked; NULL: f says why, or there is no memory. */
static json_t *mark_members(struct conversation *k, const json_t *value, struct failure *f)
{
    const char *key;
    size_t i;
    json_t *member, *given = (json_t *)(uintptr_t)value, *out = json_is_array(value) ? json_array() : json_object();
    int failed = !out;
    if (json_is_array(value)) {
        json_array_foreach(given, i, member)
            failed = failed || json_array_append_new(out, mark_all(k, member, f));
    } else {
        json_object_foreach(given, key, member)
            failed = failed || set_marked(k, out, key, member, f);
    }
    if (!failed)
        return out;
    json_decref(out);
    if (!f->status)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    return NULL;
}

/* The value with a mark in each special token of its strings and keys. */
static json_t *mark_all(struct conversation *k, const json_t *value, struct failure *f)
{
    if (json_is_string(value))
        return mark_text(k, value, f);
    if (json_is_array(value) || json_is_object(value))
        return mark_members(k, value, f);
    return json_incref((json_t *)(uintptr_t)value);
}

/* Chooses the mark, and puts it into the messages. */
static void mark_messages(struct conversation *k, json_t **messages, const json_t *variables, struct failure *f)
{
    char *said = json_dumps(*messages, JSON_COMPACT), *more = json_dumps(variables, JSON_COMPACT);
    if (!said || !more) {
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    } else if (!choose_mark(k, said, more, f)) {
        json_t *marked = mark_all(k, *messages, f);
        json_decref(*messages);
        *messages = marked;
    }
    free(said);
    free(more);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* A text, or parts of type text, joined. */
static json_t *content_of(size_t number, const json_t *content, struct failure *f)
{
    struct serve_writer all = {0};
    size_t i;
    json_t *part;
    if (!content)
        return json_null();
    if (json_is_string(content))
        return json_incref((json_t *)(uintptr_t)content);
    if (!json_is_array(content)) {
        fail_with(f, 400, NULL, "messages", "message %zu has a content that is neither a text nor an array of parts",
                  number);
        return NULL;
    }
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") || !json_is_string(text)) {
            fail_with(f, 400, NULL, "messages", "message %zu has a part of type %.32s, wanted text", number,
                      type ? type : "unknown");
            break;
        }
        writer_bytes(&all, json_string_value(text), json_string_length(text));
    }
    json_t *joined = f->status || all.failed ? NULL : json_stringn(all.size ? all.text : "", all.size);
    if (!joined && !f->status)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    writer_close(&all);
    return joined;
}

/* Templates know no role developer: it is what used to be called system. */
static json_t *message_of(const struct server *s, size_t number, const json_t *message, struct failure *f)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) {
        fail_with(f, 400, NULL, "messages", "message %zu is not an object with a role", number);
        return NULL;
    }
    json_t *content = content_of(number, request_member(message, "content"), f);
    json_t *out = content ? json_copy((json_t *)(uintptr_t)message) : NULL;
    int failed = !out || json_object_set(out, "content", content);
    if (!failed && !strcmp(role, "developer"))
        failed = json_object_set_new(out, "role", json_string("system"));
    json_decref(content);
    if (!failed) {
        conversation_drop_nulls(out);
        failed = conversation_convert_calls(s, number, out, f);
    }
    if (!failed)
        return out;
    json_decref(out);
    if (!f->status)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    return NULL;
}

static json_t *messages_of(const struct server *s, const json_t *body, struct failure *f)
{
    const json_t *messages = request_member(body, "messages");
    size_t i;
    json_t *message, *out;
    if (!json_is_array(messages) || !json_array_size(messages)) {
        fail_with(f, 400, NULL, "messages",
                  messages ? "messages is not an array that holds messages" : "messages is missing");
        return NULL;
    }
    if (json_array_size(messages) > MOST_MESSAGES) {
        fail_with(f, 400, NULL, "messages", "there are %zu messages, wanted at most %d", json_array_size(messages),
                  MOST_MESSAGES);
        return NULL;
    }
    out = json_array();
    json_array_foreach(messages, i, message) {
        json_t *copy = message_of(s, i, message, f);
        if (!copy || json_array_append_new(out, copy))
            break;
    }
    if (out && json_array_size(out) == json_array_size(messages))
        return out;
    json_decref(out);
    if (!f->status)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    return NULL;
}

/* What else the template sees: chat_template_kwargs, tools, documents, reasoning_effort. */
static json_t *variables_of(const json_t *body, struct failure *f)
{
    static const char *const names[] = {"tools", "documents", "reasoning_effort"};
    const json_t *given = request_member(body, "chat_template_kwargs"), *choice = request_member(body, "tool_choice");
    int no_tools = json_is_string(choice) && !strcmp(json_string_value(choice), "none");
    if (given && !json_is_object(given)) {
        request_wrong(f, "chat_template_kwargs", given, "an object");
        return NULL;
    }
    json_t *out = given ? json_copy((json_t *)(uintptr_t)given) : json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = request_member(body, names[i]);
        if (value && !(i == 0 && (no_tools || !json_array_size(value))))
            json_object_set(out, names[i], (json_t *)(uintptr_t)value);
    }
    if (!out)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    return out;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

static void without_marks(const struct conversation *k, const char *text, size_t size, struct serve_writer *out)
{
    while (size) {
        const char *mark = *k->mark ? memmem(text, size, k->mark, MARK_SIZE) : NULL;
        size_t n = mark ? (size_t)(mark - text) : size, skip = mark ? n + MARK_SIZE : n;
        writer_bytes(out, text, n);
        text += skip;
        size -= skip;
    }
}

/* A stretch of text between special tokens, appended to p. */
static int add_stretch(const struct conversation *k, const char *text, size_t size, struct serve_prompt *p,
                       struct failure *f)
{
    struct serve_writer plain = {0};
    struct serve_prompt ids = {0};
    without_marks(k, text, size, &plain);
    int status = plain.failed ? fail_with(f, 500, NULL, "messages", "no memory for the conversation") : 0;
    if (!status && plain.size)
        status = request_encode(k->s, plain.text, plain.size, 0, 0, &ids, f);
    if (!status && ids.count)
        memcpy(p->tokens + p->count, ids.tokens, ids.count * sizeof *p->tokens); /* room: a token for every byte of the
                                                                                    text */
    p->count += status ? 0 : ids.count;
    request_drop_prompt(&ids);
    writer_close(&plain);
    return status;
}

static int encode_marked(const struct conversation *k, const char *text, size_t size, struct serve_prompt *p,
                         struct failure *f)
{
    struct serve_prompt ids = {0};
    size_t at = 0, from = 0;
    if (request_encode(k->s, text, size, 1, 0, &ids, f))
        return f->status;
    *p = (struct serve_prompt){.tokens = malloc((size + 1) * sizeof *p->tokens)};
    if (!p->tokens)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    for (size_t i = 0; i < ids.count && !f->status; i++) {
        size_t piece = 0;
        if (!vb_piece(k->s->tokenizer, ids.tokens[i], &piece) || at + piece > size)
            fail_with(f, 400, NULL, "messages",
                      "this tokenizer changes the text, and the messages contain special tokens");
        else if (is_special(k->s, ids.tokens[i], piece) && !add_stretch(k, text + from, at - from, p, f)) {
            p->tokens[p->count++] = ids.tokens[i];
            from = at + piece;
        }
        at += piece;
    }
    if (!f->status)
        add_stretch(k, text + from, size - from, p, f);
    request_drop_prompt(&ids);
    return f->status;
}

static int render(struct conversation *k, const json_t *messages, const json_t *variables, int add_generation_prompt,
                  struct serve_writer *out, struct failure *f)
{
    vb_error err;
    char *text = NULL;
    size_t size = 0;
    char *said = json_dumps(messages, JSON_COMPACT), *more = json_dumps(variables, JSON_COMPACT);
    if (!said || !more)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    else if (vb_template_render(k->s->chat, k->s->tokenizer, said, strlen(said), add_generation_prompt, more, &text,
                                &size, &err))
        fail_with(f, err.code == VB_NO_MEMORY ? 500 : 400, NULL, "messages", "%s", err.message);
    else
        conversation_put_numbers(k->s, text, size, out);
    if (out->failed)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    vb_text_free(text);
    free(said);
    free(more);
    return f->status;
}

/* Renders and encodes; p->text is what the template made, without marks. `allow`: special tokens in messages are
 * special tokens. */
static int encode(struct conversation *k, const json_t *body, int allow, struct serve_prompt *p, struct failure *f)
{
    int add_generation_prompt = 1;
    struct serve_writer plain = {0}, text = {0};
    json_t *messages = messages_of(k->s, body, f), *variables = messages ? variables_of(body, f) : NULL;
    if (!f->status)
        request_flag(body, "add_generation_prompt", &add_generation_prompt, f);
    if (!f->status && !allow)
        mark_messages(k, &messages, variables, f);
    if (!f->status && !render(k, messages, variables, add_generation_prompt, &text, f)) {
        if (k->marked)
            encode_marked(k, text.text, text.size, p, f);
        else
            request_encode(k->s, text.text ? text.text : "", text.size, 1, 0, p, f);
        without_marks(k, text.text, text.size, &plain);
    }
    json_decref(messages);
    json_decref(variables);
    writer_close(&text);
    if (!f->status && plain.failed)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    p->text = plain.text;
    p->text_size = plain.size;
    if (!f->status && !p->count)
        fail_with(f, 400, NULL, "messages", "the template makes an empty prompt of the messages");
    return f->status;
}

int conversation_encode(const struct server *s, const json_t *body, struct serve_prompt *p, struct failure *f)
{
    struct conversation k = {.s = s};
    int allow = 0;
    *p = (struct serve_prompt){0};
    if (!s->chat)
        return fail_with(f, 400, NULL, "messages", "%s", s->chat_error.message);
    if (request_flag(body, "allow_special_tokens", &allow, f))
        return f->status;
    if (encode(&k, body, allow, p, f))
        request_drop_prompt(p);
    return f->status;
}
