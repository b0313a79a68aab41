/* tests/support/cli.h -- for tests of the command's JSON output: its keys, its tokens, and the tiny checkpoints. */
#ifndef VB_TEST_CLI_H
#define VB_TEST_CLI_H

#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/tiny.h"

#define TINY "golden/tiny/"
#define V3 TINY "v3"

/* The checkpoints in golden/tiny, and the number of MTP modules of each. */
extern const char *const checkpoints[TINY_COUNT];
extern const int modules[TINY_COUNT];

/* Keys for expect_keys. GENERATE_KEYS is a format: %c is the type of "text". Only `generate` prints the keys in
 * RUN_KEYS. */
#define GENERATE_KEYS \
    "prompt_tokens:i tokens:a text:%c finish_reason:s stop_string:n fingerprint:s draft:s draft_tokens:i " \
    "draft_topk:i acceptance:s lossy:b stats:o"
#define DRAFT_KEYS \
    "drafted:i accepted:i accepted_by_depth:a drafted_by_depth:a rejected_by_depth:a first_reject:o relaxed:i " \
    "relaxed_nats:r "
#define STATS_KEYS \
    "forwards:i tokens_per_forward:R " DRAFT_KEYS "prefill_tokens_per_second:R decode_tokens_per_second:R"
#define RUN_KEYS "load_seconds:r copy_seconds:r copied_bytes:i time_to_first_token_seconds:r draft_seconds:r " \
    "draft_memory_bytes:i peak_memory_bytes:i threads:o numa:n"

int32_t token_at(const json_t *array, size_t i);

/* Copies the new tokens of `generate --json` to `tokens`, and returns the number of tokens. The test fails if there are
 * more than `most`. */
size_t tokens_of(const json_t *j, int32_t *tokens, size_t most);

/* Both objects must have the same value under `key`; `what` names the case in the message. */
void expect_same(const json_t *a, const json_t *b, const char *key, const char *what);

/* Writes an argument for --tokens: `prompt` ("5,6,7"), then the first n of `tokens`. */
void write_ids(char *spec, const char *prompt, const int32_t *tokens, size_t n);

/* Whether the text has no escape sequence, carriage return or backspace. */
int is_plain_text(const char *text, size_t size);

/* The output must name this draft method and length, and count accepted drafts for `depths` depths. Releases j. */
void expect_draft(json_t *j, const char *draft, int draft_tokens, int depths);

#endif
