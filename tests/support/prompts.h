/* tests/support/prompts.h -- a file of prompts, its answers, and three short prompts. Include after process.h. */
#ifndef VB_TEST_PROMPTS_H
#define VB_TEST_PROMPTS_H

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"
#define MOST 64

static char dir[64], in[80], out[80];

static inline int make(void **unused)
{
    (void)unused;
    make_dir(dir);
    snprintf(in, sizeof in, "%s/in.jsonl", dir);
    snprintf(out, sizeof out, "%s/out.jsonl", dir);
    return 0;
}

static inline int clear(void **unused)
{
    (void)unused;
    remove_dir(dir);
    return 0;
}

static inline char *bytes_of(const char *path, size_t *size)
{
    struct said file = {.out = calloc(1, 1)};
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    while (take(fd, &file.out, &file.out_size))
        ;
    close(fd);
    *size = file.out_size;
    return file.out;
}

/* The lines of a file, by their index; returns how many. */
static inline size_t answers_in(const char *text, json_t *answer[MOST])
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

static inline size_t read_answers(json_t *answer[MOST])
{
    size_t size;
    char *text = bytes_of(out, &size);
    size_t count = answers_in(text, answer);
    free(text);
    return count;
}

static inline void drop(json_t *answer[MOST])
{
    for (size_t i = 0; i < MOST; i++)
        json_decref(answer[i]);
}

#define FEW_RUN "generate", V3, "-n", "5", "--prompts", in, "-o", out

static inline void write_few(void)
{
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [8]}\n{\"tokens\": [9, 10], \"id\": \"x\"}\n");
}

#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, make, clear)

#endif
