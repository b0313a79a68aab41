/* tests/cli/test_trace_ranks.c -- `verbatim trace --dp N`: ranks whose passes are padded to the same number of rows
 * compute the same tokens as each sequence alone. Runs the program itself (argv[1], or ../verbatim beside this one) in
 * the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/traces.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MODEL "golden/tiny/v3-mtp3", "--ignore-eos", "--threads", "1", "--draft-tokens", "2"
#define SEQUENCES 5

static const char *const prompts[SEQUENCES] = {"14,6,7", "5,6,7,8,9,10,11", "40,41", "33", "70,9,33,2"};
static const char *const lengths[SEQUENCES] = {"14", "3", "9", "12", "2"};

static char folder[64], file[96], path[96];

static int make_folder(void **unused)
{
    (void)unused;
    make_dir(folder);
    write_token_prompts(folder, prompts, lengths, SEQUENCES);
    snprintf(file, sizeof file, "%s/prompts.jsonl", folder);
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    return 0;
}

static int drop_folder(void **unused)
{
    (void)unused;
    remove_dir(folder);
    return 0;
}

static long long rows(const json_t *pass) { return (long long)json_array_size(json_object_get(pass, "input_ids")); }

static void expect(const json_t *pass, const char *what, long long is, long long wanted)
{
    if (is != wanted)
        fail_msg("%s is %lld, wanted %lld: %s", what, is, wanted, json_dumps(pass, JSON_COMPACT));
}

struct count {
    long long passes, dummies, rows, padded;
};

/* Passes that the ranks compute at the same time: one of each rank, in the order of the ranks. */
static void check_together(const json_t *lines, size_t at, long long ranks, struct count *counts)
{
    const json_t *first = json_array_get(lines, at);
    long long most = 0;
    for (long long r = 0; r < ranks; r++) {
        const json_t *pass = json_array_get(lines, at + (size_t)r);
        most = rows(pass) > most ? rows(pass) : most;
    }
    assert_true(most > 0);
    for (long long r = 0; r < ranks; r++) {
        const json_t *pass = json_array_get(lines, at + (size_t)r), *sequence;
        size_t i;
        expect(pass, "rank", integer(pass, "rank"), r);
        expect(pass, "round", integer(pass, "round"), integer(first, "round"));
        expect(pass, "the model that runs", !strcmp(string(pass, "pass"), string(first, "pass")), 1);
        expect(pass, "rows", integer(pass, "rows"), rows(pass));
        expect(pass, "padded_to", integer(pass, "padded_to"), most);
        expect(pass, "dummy", json_is_true(json_object_get(pass, "dummy")), !rows(pass));
        json_array_foreach(json_object_get(pass, "sequences"), i, sequence)
            expect(pass, "the rank of a sequence", json_integer_value(sequence) % ranks, r);
        counts[r].passes++;
        counts[r].dummies += !rows(pass);
        counts[r].rows += rows(pass);
        counts[r].padded += most;
    }
}

static void compare_with_alone(const json_t *lines)
{
    for (size_t s = 0; s < SEQUENCES; s++) {
        json_t *alone = JSON("generate", MODEL, "--tokens", prompts[s], "-n", lengths[s], "--draft", "none");
        const json_t *ours = json_array_get(json_object_get(last_line(lines), "sequences"), s);
        assert_int_equal(integer(ours, "sequence"), s);
        assert_string_equal(string(ours, "fingerprint"), string(alone, "fingerprint"));
        assert_true(json_equal(json_object_get(ours, "tokens"), json_object_get(alone, "tokens")));
        json_decref(alone);
    }
}

/* 7 ranks: two have no sequence at all. */
TEST(all_ranks_have_as_many_rows)
{
    static const char *const numbers[] = {"2", "3", "7"}, *const methods[] = {"mtp-eagle", "mtp-vanilla", "none"};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        long long ranks = numbers[i][0] - '0', dummies = 0;
        struct count counts[8] = {{0}};
        struct said s = RUN("trace", MODEL, "--prompts", file, "--dp", numbers[i], "--prefill-chunk", "4", "--draft",
                            methods[i], "--json");
        write_text(folder, "log.jsonl", s.out);
        json_t *lines = json_lines(s);
        for (size_t at = 1; at + 1 < json_array_size(lines); at += (size_t)ranks)
            check_together(lines, at, ranks, counts);
        for (long long r = 0; r < ranks; r++) {
            const json_t *said = json_array_get(json_object_get(last_line(lines), "ranks"), (size_t)r);
            expect(said, "rank", integer(said, "rank"), r);
            expect(said, "passes", integer(said, "passes"), counts[r].passes);
            expect(said, "dummy_passes", integer(said, "dummy_passes"), counts[r].dummies);
            expect(said, "rows", integer(said, "rows"), counts[r].rows);
            expect(said, "rows_with_padding", integer(said, "rows_with_padding"), counts[r].padded);
            expect(said, "a rank without sequences computes rows", r >= SEQUENCES && counts[r].rows, 0);
            dummies += counts[r].dummies;
        }
        assert_true(dummies > 0);
        compare_with_alone(lines);
        s = RUN("trace", MODEL, "--prompts", file, "--dp", numbers[i], "--prefill-chunk", "4", "--draft", methods[i],
                "--against", path);
        expect_code(&s, 0);
        forget(&s);
        json_decref(lines);
    }
}

TEST(the_table_names_ranks_and_dummy_passes)
{
    struct said s = RUN("trace", MODEL, "--prompts", file, "--dp", "2", "--draft", "mtp-eagle");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "round  pass      rank  seq  stage    input ids "));
    assert_non_null(strstr(s.out, "started 0 2 4; 9 rows, padded to 9\n"));
    assert_non_null(strstr(s.out, "started 1 3; 8 rows, padded to 9\n"));
    assert_non_null(strstr(s.out, "dummy pass, padded to 3\n"));
    forget(&s);
    expect_failure(RUN("trace", MODEL, "--tokens", "5", "--dp", "2"), 2, "--dp wants --prompts");
    expect_failure(RUN("trace", MODEL, "--prompts", file, "--dp", "0"), 2, "--dp is 0, wanted an integer from 1 to 64");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_have_as_many_rows),
        cmocka_unit_test(the_table_names_ranks_and_dummy_passes),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
