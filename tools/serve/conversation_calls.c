/* tools/serve/conversation_calls.c -- earlier tool calls in a conversation, in the form that the chat template wants.
 *
 * OpenAI's clients send the arguments of a call as a text, and null as the content of an answer that only calls. Some templates write
 * the text as it is; others want an object, or an empty text as content. What a template wants is found when the model is opened: it
 * renders a short conversation in each form. */
#include <stdlib.h>
#include <string.h>

#include "tools/serve/conversation_internal.h"
#include "tools/serve/writer.h"

/* ---- what the template wants --------------------------------------------------------------------------------------- */

/* The conversation in one form. The caller frees *text; NULL: the template refuses this form. */
static void render_probe(const struct server *s, int as_objects, int with_text, char **text)
{
    vb_error err;
    char messages[512];
    size_t size;
    snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": %s, \"tool_calls\": [{\"id\": \"i\", "
             "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": %s}}]}]", with_text ? "\"\"" : "null",
             as_objects ? "{\"verbatim\": 1}" : "\"{\\\"verbatim\\\": 1}\"");
    if (vb_template_render(s->chat, s->tokenizer, messages, strlen(messages), 1, NULL, text, &size, &err))
        *text = NULL;
}

void conversation_probe(struct server *s)
{
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

/* ---- messages ------------------------------------------------------------------------------------------------------ */

/* The number with the fewest digits: a client's 0.1 stays 0.1. */
static void put_real(struct serve_writer *w, const json_t *value)
{
    char text[64];
    size_t n = 0;
    int is_same = 0;
    for (size_t digits = 15; digits <= 17 && !is_same; digits++) {
        n = json_dumpb(value, text, sizeof text, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        json_t *again = json_loadb(text, n, JSON_DECODE_ANY, NULL);
        is_same = json_equal(again, value);
        json_decref(again);
    }
    writer_bytes(w, text, n);
}

/* A value as json_dumps writes it, but for its numbers. */
static void put_json(struct serve_writer *w, const json_t *value)
{
    int is_object = json_is_object(value), many = 0;
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_real(value)) {
        put_real(w, value);
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
    json_t *out = json_loadb(text, strlen(text), JSON_ALLOW_NUL, NULL);
    if (json_is_object(out))
        return out;
    json_decref(out);
    fail_with(f, 400, NULL, "messages", "message %zu has a tool call whose arguments are not the text of a JSON object", number);
    return NULL;
}

static int convert_call(const struct server *s, size_t number, json_t *call, struct failure *f)
{
    json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    if (!json_is_object(function))
        return fail_with(f, 400, NULL, "messages", "message %zu has a tool call without a function", number);
    json_t *converted = arguments && !json_is_null(arguments) ? arguments_of(s, number, arguments, f) : s->calls_as_objects ? json_object() : json_string("{}");
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
