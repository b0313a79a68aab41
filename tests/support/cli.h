/* tests/support/cli.h -- what tests of the command's JSON share. */
#ifndef VB_TEST_CLI_H
#define VB_TEST_CLI_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/golden.h"
#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define TINY "golden/tiny/"
#define V3 TINY "v3"

static const char *const checkpoints[] __attribute__((unused)) = {"v3", "v3-mtp3", "v2", "v2-lite", "moonlight", "glm"};
static const int modules[] __attribute__((unused)) = {1, 3, 0, 0, 0, 1};

#define GENERATE_KEYS "prompt_tokens:i tokens:a text:%c finish_reason:s stop_string:n fingerprint:s draft:s draft_tokens:i draft_topk:i acceptance:s lossy:b stats:o"
#define DRAFT_KEYS \
    "drafted:i accepted:i accepted_by_depth:a drafted_by_depth:a rejected_by_depth:a first_reject:o relaxed:i relaxed_nats:r "
#define STATS_KEYS \
    "forwards:i tokens_per_forward:R " DRAFT_KEYS "prefill_tokens_per_second:R decode_tokens_per_second:R"
#define RUN_KEYS "load_seconds:r copy_seconds:r copied_bytes:i time_to_first_token_seconds:r draft_seconds:r " \
    "draft_memory_bytes:i peak_memory_bytes:i threads:o numa:n" /* of generate alone */

static inline int32_t token_at(const json_t *array, size_t i) { return (int32_t)json_integer_value(json_array_get(array, i)); }

/* The new tokens of `generate --json`, at most `most`. */
static inline size_t tokens_of(const json_t *j, int32_t *tokens, size_t most)
{
    const json_t *array = json_object_get(j, "tokens");
    assert_true(json_array_size(array) <= most);
    for (size_t i = 0; i < json_array_size(array); i++)
        tokens[i] = token_at(array, i);
    return json_array_size(array);
}

static inline void expect_same(const json_t *a, const json_t *b, const char *key, const char *what)
{
    if (!json_equal(json_object_get(a, key), json_object_get(b, key)))
        fail_msg("%s: %s differs: %s and %s", what, key, json_dumps(json_object_get(a, key), JSON_ENCODE_ANY),
                 json_dumps(json_object_get(b, key), JSON_ENCODE_ANY));
}

/* "5,6,7" and the first n of tokens, as --tokens takes them */
static inline void write_ids(char *spec, const char *prompt, const int32_t *tokens, size_t n)
{
    spec += sprintf(spec, "%s", prompt);
    for (size_t i = 0; i < n; i++)
        spec += sprintf(spec, ",%d", tokens[i]);
}

static inline int is_plain_text(const char *text, size_t size)
{
    return !memchr(text, '\033', size) && !memchr(text, '\r', size) && !memchr(text, '\b', size);
}

static inline double real(const json_t *object, const char *key) { return json_real_value(json_object_get(object, key)); }

static inline void expect_draft(json_t *j, const char *draft, int draft_tokens, int depths)
{
    assert_string_equal(string(j, "draft"), draft);
    assert_int_equal(integer(j, "draft_tokens"), draft_tokens);
    assert_int_equal(json_array_size(json_object_get(json_object_get(j, "stats"), "accepted_by_depth")), depths);
    json_decref(j);
}

#endif
