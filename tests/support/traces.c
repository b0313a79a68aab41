/* tests/support/traces.c -- files that tests of `trace` write, and lines that they read. */
#include "tests/support/traces.h"

#include "tests/support/files.h"

void write_token_prompts(const char *folder, const char *const *prompts, const char *const *max_tokens, size_t count)
{
    char text[1000] = "";
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "{\"tokens\": [%s], \"max_tokens\": %s}\n", prompts[i],
                 max_tokens[i]);
    }
    assert_true(strlen(text) < sizeof text - 1);
    write_text(folder, "prompts.jsonl", text);
}

void write_json_lines(const char *path, const json_t *lines)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        json_dumpf(json_array_get(lines, i), f, JSON_COMPACT | JSON_ENCODE_ANY);
        fputc('\n', f);
    }
    fclose(f);
}

json_t *last_line(const json_t *lines) { return json_array_get(lines, json_array_size(lines) - 1); }
