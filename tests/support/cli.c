/* tests/support/cli.c -- for tests of the command's JSON output. */
#include "tests/support/cli.h"

const char *const checkpoints[TINY_COUNT] = {TINY_CHECKPOINTS(TINY_NAME)};
const int modules[TINY_COUNT] = {TINY_CHECKPOINTS(TINY_MODULES)};

int32_t token_at(const json_t *array, size_t i) { return (int32_t)json_integer_value(json_array_get(array, i)); }

size_t tokens_of(const json_t *j, int32_t *tokens, size_t most)
{
    const json_t *array = json_object_get(j, "tokens");
    assert_true(json_array_size(array) <= most);
    for (size_t i = 0; i < json_array_size(array); i++)
        tokens[i] = token_at(array, i);
    return json_array_size(array);
}

void expect_same(const json_t *a, const json_t *b, const char *key, const char *what)
{
    if (!json_equal(json_object_get(a, key), json_object_get(b, key)))
        fail_msg("%s: %s differs: %s and %s", what, key, json_dumps(json_object_get(a, key), JSON_ENCODE_ANY),
                 json_dumps(json_object_get(b, key), JSON_ENCODE_ANY));
}

void write_ids(char *spec, const char *prompt, const int32_t *tokens, size_t n)
{
    spec += sprintf(spec, "%s", prompt);
    for (size_t i = 0; i < n; i++)
        spec += sprintf(spec, ",%d", tokens[i]);
}

int is_plain_text(const char *text, size_t size)
{
    return !memchr(text, '\033', size) && !memchr(text, '\r', size) && !memchr(text, '\b', size);
}

void expect_draft(json_t *j, const char *draft, int draft_tokens, int depths)
{
    assert_string_equal(string(j, "draft"), draft);
    assert_int_equal(integer(j, "draft_tokens"), draft_tokens);
    assert_int_equal(json_array_size(json_object_get(json_object_get(j, "stats"), "accepted_by_depth")), depths);
    json_decref(j);
}
