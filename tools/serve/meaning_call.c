/* tools/serve/meaning_call.c -- name and arguments of one call: see meaning.h. */
#include <stdlib.h>
#include <string.h>

#include "tools/serve/meaning_internal.h"

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void trim(const char **text, size_t *size)
{
    while (*size && meaning_is_blank(**text))
        (*text)++, (*size)--;
    while (*size && meaning_is_blank((*text)[*size - 1]))
        (*size)--;
}

/* functions.NAME:NUMBER -> NAME and NUMBER, as far as they are there. */
static void split_kimi_name(const char **name, size_t *size, long *number)
{
    size_t digits = 0;
    long value = 0;
    while (digits < *size && digits < 9 && (*name)[*size - 1 - digits] >= '0' && (*name)[*size - 1 - digits] <= '9')
        digits++;
    if (digits && digits < *size && (*name)[*size - 1 - digits] == ':') {
        for (size_t i = *size - digits; i < *size; i++)
            value = 10 * value + ((*name)[i] - '0');
        *number = value;
        *size -= digits + 1;
    }
    if (*size >= 10 && !memcmp(*name, "functions.", 10)) {
        *name += 10;
        *size -= 10;
    }
}

int meaning_name(enum meaning_calls calls, const struct meaning_call *call, const char **name, size_t *size,
                 long *number)
{
    *name = call->text.text + call->head;
    *size = call->head_end - call->head;
    *number = -1;
    if (calls == MEANING_DEEPSEEK_V3) {
        *name = call->text.text + call->body;
        const char *end = memchr(*name, '\n', call->text.size - call->body);
        *size = end ? (size_t)(end - *name) : 0;
    }
    trim(name, size);
    if (calls == MEANING_DEEPSEEK_V32) { /* NAME"> */
        if (*size < 2 || memcmp(*name + *size - 2, "\">", 2) != 0)
            return 0;
        *size -= 2;
    }
    if (calls == MEANING_KIMI_K2)
        split_kimi_name(name, size, number);
    for (size_t i = 0; i < *size; i++)
        if ((unsigned char)(*name)[i] <= ' ' || strchr("\"'`\\<>{}\x7f", (*name)[i]))
            return 0;
    return *size > 0 && *size <= MEANING_NAME && vb_utf8_valid(*name, *size) == *size;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* What is around the JSON text belongs to the format. */
static int is_around(enum meaning_calls calls, const char *before, size_t before_size, const char *behind,
                     size_t behind_size)
{
    const char *line = calls == MEANING_DEEPSEEK_V3 ? memchr(before, '\n', before_size) : before;
    if (!line)
        return 0;
    before_size -= (size_t)(line - before);
    trim(&line, &before_size);
    trim(&behind, &behind_size);
    if (calls != MEANING_DEEPSEEK_V3)
        return !before_size && !behind_size;
    return before_size == 7 && !memcmp(line, "```json", 7) && behind_size == 3 && !memcmp(behind, "```", 3);
}

int meaning_arguments(enum meaning_calls calls, struct meaning_call *call, const char **json, size_t *size)
{
    const char *text = call->text.text;
    if (meaning_has_pairs(calls)) {
        writer_put(&call->arguments, call->arguments.size ? "}" : "{}");
        *json = call->arguments.text;
        *size = call->arguments.size;
        return call->arguments.failed ? VB_NO_MEMORY : 1;
    }
    *json = text + call->json;
    *size = call->json_end - call->json;
    return call->is_begun && json_scan_is_whole(&call->scan) && vb_utf8_valid(*json, *size) == *size &&
           is_around(calls, text + call->body, call->json - call->body, text + call->json_end,
                     call->text.size - call->json_end);
}

/* ---- values of GLM ----------------------------------------------------------------------------------------------- */

static const json_t *parameters_of(const json_t *tools, const char *name, size_t size)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function"),
                     *its = json_object_get(function, "name");
        if (json_is_string(its) && json_string_length(its) == size && !memcmp(json_string_value(its), name, size))
            return json_object_get(function, "parameters");
    }
    return NULL;
}

int meaning_wants_string(const json_t *tools, const char *name, size_t size, const char *key)
{
    const char *type;
    const json_t *properties = json_object_get(parameters_of(tools, name, size), "properties");
    type = json_string_value(json_object_get(json_object_get(properties, key), "type"));
    return type && !strcmp(type, "string");
}

int meaning_is_json(const char *text, size_t size)
{
    struct json_scan scan = {0};
    for (size_t i = 0; i < size; i++)
        json_scan_byte(&scan, text[i]);
    return json_scan_is_whole(&scan) && vb_utf8_valid(text, size) == size;
}

int meaning_add_value(const json_t *tools, struct meaning_call *call)
{
    struct serve_writer *w = &call->arguments;
    const char *key = call->text.text + call->key, *value = call->text.text + call->value, *json = value;
    const char *tool = "";
    long number;
    size_t tool_size = 0, key_size = call->key_end - call->key, value_size = call->text.size - call->value,
           json_size = value_size;
    trim(&key, &key_size);
    trim(&json, &json_size);
    char *name = strndup(key, key_size);
    writer_put(w, w->size ? ", " : "{");
    writer_string(w, key, key_size);
    writer_put(w, ": ");
    if (!meaning_name(MEANING_GLM, call, &tool, &tool_size, &number))
        tool_size = 0;
    if (name && !meaning_wants_string(tools, tool, tool_size, name) && meaning_is_json(json, json_size))
        writer_bytes(w, json, json_size);
    else
        writer_string(w, value, value_size);
    int done = name && !w->failed;
    free(name);
    return done;
}

/* ---- parameters of DeepSeek-V3.2 --------------------------------------------------------------------------------- */

int meaning_add_parameter(struct meaning_call *call)
{
    static const char *const kinds[] = {"\" string=\"false\">", "\" string=\"true\">"};
    struct serve_writer *w = &call->arguments;
    const char *key = call->text.text + call->key, *end = call->text.text + call->text.size, *value = NULL;
    size_t key_size = (size_t)(end - key);
    int is_string = 0;
    for (int i = 0; i < 2; i++) { /* the first of both ends the key */
        const char *found = memmem(key, key_size, kinds[i], strlen(kinds[i]));
        if (found) {
            is_string = i;
            key_size = (size_t)(found - key);
            value = found + strlen(kinds[i]);
        }
    }
    size_t size = value ? (size_t)(end - value) : 0;
    if (value && !is_string)
        trim(&value, &size);
    if (!value || (!is_string && !meaning_is_json(value, size)))
        return 0;
    writer_put(w, w->size ? ", " : "{");
    writer_string(w, key, key_size);
    writer_put(w, ": ");
    if (is_string)
        writer_string(w, value, size);
    else
        writer_bytes(w, value, size);
    return w->failed ? VB_NO_MEMORY : 1;
}
