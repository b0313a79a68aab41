/* tests/support/traces.h -- files that tests of `trace` write, and lines that they read. */
#ifndef VB_TEST_TRACES_H
#define VB_TEST_TRACES_H

#include "tests/support/process.h"

/* Writes FOLDER/prompts.jsonl: one line for each prompt, with its token ids ("5,6,7") and its max_tokens. */
void write_token_prompts(const char *folder, const char *const *prompts, const char *const *max_tokens, size_t count);
/* Writes a list to a file, one line of JSON for each item. */
void write_json_lines(const char *path, const json_t *lines);
json_t *last_line(const json_t *lines); /* the last item of a list, which is not empty */

#endif
