/* tools/serve/conversation_calls.c -- earlier tool calls in a conversation, in the form that the chat template wants.
 *
 * OpenAI's clients send the arguments of a call as a text, and null as the content of an answer that only calls. Some
 * templates write the text as it is; others want an object, or an empty text as content. What a template wants is found
 * when the model is opened: it renders a short conversation in each form.
 *
 * jansson holds integers of 64 bits and doubles. In an object, another number is a text while the template renders: a
 * random mark, the number and NUMBER_END. Behind the template the number takes the place of that text and of the
 * quotation marks around it. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "tools/serve/conversation_internal.h"
#include "tools/serve/meaning_internal.h"

#define NUMBER_END "!"

/* ---- what the template wants ------------------------------------------------------------------------------------- */

/* The conversation in one form. The caller frees *text; NULL: the template refuses this form. */
static void render_probe(const struct server *s, int as_objects, int with_text, char **text)
{
    vb_error err;
    char messages[512];
    size_t size;
    snprintf(messages, sizeof messages,
             "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": %s, \"tool_calls\": "
             "[{\"id\": \"i\", "
             "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": %s}}]}]",
             with_text ? "\"\"" : "null", as_objects ? "{\"verbatim\": 1}" : "\"{\\\"verbatim\\\": 1}\"");
    if (vb_template_render(s->chat, s->tokenizer, messages, strlen(messages), 1, NULL, text, &size, &err))
        *text = NULL;
}

void conversation_probe(struct server *s)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) == sizeof random)
        snprintf(s->number_mark, sizeof s->number_mark, "n%016llx:", (unsigned long long)random);
    for (int form = 0; form < 4 && s->chat; form++) {
        int as_objects = form & 1, with_text = form >> 1;
        char *text;
        render_probe(s, as_objects, with_text, &text);
        int fits = text && strstr(text, "verbatim") && !strstr(text, "\\\"verbatim") && !strstr(text, "None");
        vb_text_free(text);
        if (fits) {
            s->calls_as_objects = as_objects;
            s->calls_with_text = with_text;
            return;
        }
    }
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* A value as json_dumps writes it, but for its numbers. */
static void put_json(struct serve_writer *w, const json_t *value)
{
    int is_object = json_is_object(value), many = 0;
    const char *key;
    json_t *member;
    size_t i;
    char number[64];
    if (json_is_number(value)) { /* a client's 0.1 stays 0.1 */
        writer_bytes(w, number, meaning_shortest(value, number));
    } else if (is_object || json_is_array(value)) {
        writer_put(w, is_object ? "{" : "[");
        json_array_foreach(value, i, member) {
            writer_put(w, many++ ? ", " : "");
            put_json(w, member);
        }
        json_object_foreach((json_t *)(uintptr_t)value, key, member) {
            writer_put(w, many++ ? ", " : "");
            writer_string(w, key, strlen(key));
            writer_put(w, ": ");
            put_json(w, member);
        }
        writer_put(w, is_object ? "}" : "]");
    } else {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        writer_put(w, text ? text : "");
        w->failed |= !text;
        free(text);
    }
}

/* Whether the text is a number that jansson cannot hold. */
static int is_large_number(const char *text, size_t size)
{
    json_t *held = json_loadb(text, size, JSON_DECODE_ANY, NULL);
    json_decref(held);
    return !held && meaning_is_json(text, size);
}

/* Parses the text of an object, with texts in place of large numbers. *no_memory: whether the text could not be
 * copied. */
static json_t *load_arguments(const struct server *s, const char *text, int *no_memory)
{
    struct serve_writer w = {0};
    struct json_scan scan = {0};
    for (size_t n; *text; text += n) {
        n = json_scan_in_string(&scan) ? 0 : strspn(text, "+-.0123456789eE");
        int is_large = n && *s->number_mark && is_large_number(text, n);
        n = n ? n : 1;
        writer_put(&w, is_large ? "\"" : "");
        writer_put(&w, is_large ? s->number_mark : "");
        writer_bytes(&w, text, n);
        writer_put(&w, is_large ? NUMBER_END "\"" : "");
        for (size_t i = 0; i < n; i++)
            json_scan_byte(&scan, text[i]);
    }
    json_t *out = w.failed ? NULL : json_loadb(w.text, w.size, JSON_ALLOW_NUL, NULL);
    *no_memory = w.failed;
    writer_close(&w);
    return out;
}

void conversation_put_numbers(const struct server *s, const char *text, size_t size, struct serve_writer *out)
{
    size_t mark_size = strlen(s->number_mark);
    const char *end = text + size, *mark, *last;
    while (mark_size && (mark = memmem(text, (size_t)(end - text), s->number_mark, mark_size)) &&
           (last = memchr(mark, *NUMBER_END, (size_t)(end - mark)))) {
        int is_quoted = mark > text && mark[-1] == '"' && last + 1 < end && last[1] == '"';
        writer_bytes(out, text, (size_t)(mark - text) - (size_t)is_quoted);
        writer_bytes(out, mark + mark_size, (size_t)(last - mark) - mark_size);
        text = last + 1 + is_quoted;
    }
    writer_bytes(out, text, (size_t)(end - text));
}

/* The arguments in the form that is wanted; NULL: f says why. */
static json_t *arguments_of(const struct server *s, size_t number, const json_t *arguments, struct failure *f)
{
    if (json_is_object(arguments) && !s->calls_as_objects) {
        struct serve_writer text = {0};
        put_json(&text, arguments);
        json_t *out = text.failed ? NULL : json_stringn(text.text, text.size);
        writer_close(&text);
        if (!out)
            fail_with(f, 500, NULL, "messages", "no memory for the conversation");
        return out;
    }
    if (!json_is_string(arguments) || !s->calls_as_objects)
        return json_incref((json_t *)(uintptr_t)arguments);
    const char *text = json_string_length(arguments) ? json_string_value(arguments) : "{}";
    int no_memory;
    json_t *out = load_arguments(s, text, &no_memory);
    if (json_is_object(out))
        return out;
    json_decref(out);
    if (no_memory)
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    else
        fail_with(f, 400, NULL, "messages",
                  "message %zu has a tool call whose arguments are not the text of a JSON object", number);
    return NULL;
}

static int convert_call(const struct server *s, size_t number, json_t *call, struct failure *f)
{
    json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    if (!json_is_object(function))
        return fail_with(f, 400, NULL, "messages", "message %zu has a tool call without a function", number);
    json_t *converted = arguments && !json_is_null(arguments) ? arguments_of(s, number, arguments, f)
                        : s->calls_as_objects ? json_object()
                        : json_string("{}");
    if (!f->status && json_object_set_new(function, "arguments", converted))
        fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    if (!f->status && !json_object_get(call, "type"))
        json_object_set_new(call, "type", json_string("function"));
    return f->status;
}

int conversation_convert_calls(const struct server *s, size_t number, json_t *message, struct failure *f)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!calls)
        return 0;
    if (!json_is_array(calls))
        return fail_with(f, 400, NULL, "messages", "message %zu has tool_calls that are no array", number);
    if (!json_array_size(calls)) {
        json_object_del(message, "tool_calls");
        return 0;
    }
    json_t *copy = json_deep_copy(calls);
    if (!copy || json_object_set_new(message, "tool_calls", copy))
        return fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    json_array_foreach(copy, i, call)
        if (convert_call(s, number, call, f))
            return f->status;
    if (s->calls_with_text && json_is_null(json_object_get(message, "content")))
        json_object_set_new(message, "content", json_string(""));
    return 0;
}

void conversation_drop_nulls(json_t *message)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value)
        if (json_is_null(value) && strcmp(key, "content") != 0)
            json_object_del(message, key);
}
