/* tests/support/prompts.c -- for tests of `generate --prompts`. */
#include "tests/support/prompts.h"

char in[80], out[80];

int make_prompts_dir(void **unused)
{
    make_test_dir(unused);
    snprintf(in, sizeof in, "%s/in.jsonl", dir);
    snprintf(out, sizeof out, "%s/out.jsonl", dir);
    return 0;
}

size_t answers_in(const char *text, json_t *answer[MOST])
{
    size_t count = 0;
    memset(answer, 0, MOST * sizeof *answer);
    for (const char *end; *text; text = end + 1, count++) {
        assert_non_null(end = strchr(text, '\n'));
        json_t *j = json_loadb(text, (size_t)(end - text), 0, NULL);
        if (!j)
            fail_msg("not JSON: %.200s", text);
        long long i = integer(j, "index");
        assert_true(i >= 0 && i < MOST && !answer[i]);
        answer[i] = j;
    }
    return count;
}

size_t read_answers(json_t *answer[MOST])
{
    size_t size;
    char *text = bytes_of(out, &size);
    size_t count = answers_in(text, answer);
    free(text);
    return count;
}

void drop_answers(json_t *answer[MOST])
{
    for (size_t i = 0; i < MOST; i++)
        json_decref(answer[i]);
}

void write_few(void)
{
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [8]}\n{\"tokens\": [9, 10], \"id\": \"x\"}\n");
}
