/* tests/cli/test_cli_sampling.c -- the sampling options of the `verbatim` command, from outside: that each one reaches
 * the sampler, that no draft method changes what it gives, and what is refused. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root. The rule itself is tested in test_sampler.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/golden.h"
#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"

enum { USAGE = 2 };

static long long token(const json_t *run, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(run, "tokens"), i));
}

static int same_tokens(const json_t *a, const json_t *b)
{
    return json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens"));
}

/* 32 tokens with one option (or none), plainly and drafted: the same. */
static json_t *generate(const char *option, const char *value, const char *temperature)
{
    static const char *const methods[] = {"none", "mtp-vanilla", "eagle-keep"};
    json_t *runs[COUNT(methods)];
    for (size_t i = 0; i < COUNT(methods); i++)
        runs[i] = JSON("generate", V3, "--tokens", "5,6,7", "-n", "32", "--ignore-eos", "--draft", methods[i],
                       "--draft-tokens", "5", "--temperature", temperature, option ? option : "--seed",
                       option ? value : "0");
    for (size_t i = 1; i < COUNT(methods); i++) {
        if (!same_tokens(runs[0], runs[i]) || strcmp(string(runs[0], "fingerprint"), string(runs[i], "fingerprint")))
            fail_msg("%s %s, temperature %s: %s gives other tokens than none", option, value, temperature, methods[i]);
        json_decref(runs[i]);
    }
    return runs[0];
}

TEST(every_option_changes_the_choice_and_no_draft_does)
{
    static const char *const options[][3] = {
        {"--repetition-penalty", "1.5", "0"}, {"--presence-penalty", "3", "0"}, {"--frequency-penalty", "2", "0"},
        {"--presence-penalty", "-1.5", "1"}, {"--min-p", "0.2", "1"}, {"--logit-bias", "7:100", "0"},
        {"--logit-bias", "3:-2.5,9:4", "1"}};
    for (size_t i = 0; i < COUNT(options); i++) {
        json_t *with = generate(options[i][0], options[i][1], options[i][2]),
               *without = generate(NULL, NULL, options[i][2]);
        if (same_tokens(with, without))
            fail_msg("%s %s changes nothing", options[i][0], options[i][1]);
        json_decref(with);
        json_decref(without);
    }
    static const char *const off[][2] = {{"--repetition-penalty", "1"}, {"--repetition-penalty", "0"},
                                         {"--presence-penalty", "0"}, {"--frequency-penalty", "-0"}, {"--min-p", "0"},
                                         {"--logit-bias", "7:0"}};
    json_t *plain = generate(NULL, NULL, "1");
    for (size_t i = 0; i < COUNT(off); i++) {
        json_t *with = generate(off[i][0], off[i][1], "1");
        if (!same_tokens(with, plain))
            fail_msg("%s %s should be off", off[i][0], off[i][1]);
        json_decref(with);
    }
    json_decref(plain);
}

TEST(a_bias_elects_and_forbids)
{
    char forbidden[64];
    json_t *plain = generate(NULL, NULL, "0"), *j = generate("--logit-bias", "7:100", "0");
    for (size_t i = 0; i < 32; i++)
        assert_int_equal(token(j, i), 7);
    json_decref(j);
    snprintf(forbidden, sizeof forbidden, "%lld:-inf,%lld:-inf", token(plain, 0), (token(plain, 0) + 1) % 160);
    j = generate("--logit-bias", forbidden, "0");
    for (size_t i = 0; i < 32; i++)
        assert_true(token(j, i) != token(plain, 0));
    json_decref(j);
    json_decref(plain);
}

TEST(a_large_presence_penalty_says_nothing_twice)
{
    json_t *j = generate("--presence-penalty", "1000", "1");
    for (size_t i = 0; i < 32; i++)
        for (size_t k = 0; k < i; k++)
            assert_true(token(j, i) != token(j, k));
    json_decref(j);
}

TEST(verify_and_draft_take_the_options)
{
    json_t *j = JSON("verify", V3, "--tokens", "5,6,7", "-n", "12", "--threads", "1", "--draft", "mtp-eagle",
                     "--presence-penalty", "2", "--frequency-penalty", "0.5", "--repetition-penalty", "1.3",
                     "--logit-bias", "9:2", "--min-p", "0.05", "--temperature", "0.9");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    j = JSON("draft", V3, "--tokens", "5,6,7", "--draft", "mtp-eagle", "--logit-bias", "33:100");
    assert_int_equal(integer(j, "next"), 33);
    json_decref(j);
}

/* v3 with a tokenizer, whose ids are the model's. */
static void model_with_text(char model[64])
{
    make_dir(model);
    copy_files(V3, model);
    copy_files("golden/tokenizer", model);
}

TEST(the_text_ends_before_a_stop_string)
{
    char model[64], stop[8] = "", other[] = "not in the text";
    model_with_text(model);
    json_t *plain = JSON("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9"),
           *j;
    const char *text = string(plain, "text");
    for (size_t at = 4; !*stop; at++) /* two letters that stand together for the first time */
        if (text[at] > ' ' && text[at + 1] > ' ') {
            memcpy(stop, text + at, 2);
            if (strstr(text, stop) != text + at)
                *stop = 0;
        }
    size_t before = (size_t)(strstr(text, stop) - text);
    for (int drafted = 0; drafted < 2; drafted++) {
        const char *method = drafted ? "mtp-vanilla" : "none";
        j = JSON("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9", "--stop",
                 other, "--stop", stop, "--draft", method);
        if (strlen(string(j, "text")) != before || strncmp(string(j, "text"), text, before))
            fail_msg("--stop %s of %s gives %s", stop, text, string(j, "text"));
        assert_string_equal(string(j, "stop_string"), stop);
        assert_string_equal(string(j, "finish_reason"), "stop");
        struct said s = RUN("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9",
                            "--stop", stop, "--draft", method);
        assert_true(s.out_size == before + 1 && !memcmp(s.out, text, before));
        forget(&s);
        json_decref(j);
    }
    struct said s = RUN("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9",
                        "--stop", other);
    assert_true(s.out_size == json_string_length(json_object_get(plain, "text")) + 1 &&
                !memcmp(s.out, text, s.out_size - 1));
    forget(&s);
    j = JSON("verify", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9", "--stop", stop,
             "--threads", "1");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    json_decref(plain);
    expect_failure(RUN("generate", V3, "--tokens", "5", "--stop", "x"), 1, "tokenizer.json");
    expect_failure(RUN("generate", model, "--tokens", "5", "--stop", ""), USAGE, "--stop is empty");
    expect_failure(RUN("generate", model, "--tokens", "5", "--stop", "\xff"), USAGE, "--stop is not UTF-8");
    expect_failure(RUN("draft", model, "--tokens", "5", "--stop", "x"), USAGE, "--stop");
    const char *many[40] = {verbatim, "generate", model, "--tokens", "5"};
    for (int i = 0; i < 17; i++)
        many[5 + 2 * i] = "--stop", many[6 + 2 * i] = "x";
    expect_failure(run_to(PIPE, many), USAGE, "more than 16 times");
    remove_dir(model);
}

/* ---- acceptance -------------------------------------------------------------------------------------------------- */

static json_t *accepting(const char *model, const char *method, const char *temperature, const char *option,
                         const char *value, const char *more, const char *its_value)
{
    return JSON("generate", model, "--tokens", "5,6,7,8", "-n", "40", "--ignore-eos", "--draft", method,
                "--draft-tokens", "4", "--seed", "3", "--temperature", temperature, option, value, more, its_value);
}

TEST(rejection_takes_another_path_and_says_which)
{
    json_t *strict = accepting(V3, "mtp-eagle", "1", "--acceptance", "strict", "--top-k", "4");
    json_t *drawn = accepting(V3, "mtp-eagle", "1", "--acceptance", "rejection", "--top-k", "4");
    json_t *greedy = JSON("generate", V3, "--tokens", "5,6,7,8", "-n", "40", "--ignore-eos", "--draft", "mtp-eagle",
                          "--draft-tokens", "4", "--seed", "3", "--temperature", "1", "--acceptance", "rejection",
                          "--draft-sample-method", "greedy", "--top-k", "4");
    assert_string_equal(string(strict, "acceptance"), "strict");
    assert_string_equal(string(drawn, "acceptance"), "rejection");
    assert_true(json_is_false(json_object_get(drawn, "lossy")));
    assert_false(same_tokens(strict, drawn));
    assert_false(same_tokens(drawn, greedy));
    const json_t *why = json_object_get(json_object_get(drawn, "stats"), "first_reject");
    expect_keys(why, "other_token:i chance:i masked:i cut_off:i rank:i delta:i");
    assert_true(integer(why, "chance") + integer(why, "cut_off") > 0 && integer(why, "other_token") == 0);
    json_decref(drawn);
    json_decref(greedy);
    json_decref(strict);
    strict = accepting(V3, "none", "0", "--acceptance", "strict", "--top-k", "4"); /* at temperature 0 there is one
                                                                                      path */
    drawn = accepting(V3, "mtp-eagle", "0", "--acceptance", "rejection", "--top-k", "4");
    assert_true(same_tokens(strict, drawn));
    json_decref(drawn);
    json_decref(strict);
}

/* v3 with a tokenizer in which tokens 0 and 1 are <think> and </think>. */
static void model_that_thinks(char model[64])
{
    make_dir(model);
    copy_files("golden/tale", model);
    copy_files(V3, model); /* all but the tokenizer */
    write_text(model, "tokenizer_config.json", "{}");
    for (int i = 0; i < 2; i++) { /* among the added tokens, and in the vocabulary */
        replace_in(model, "tokenizer.json", "\"<|begin_of_sentence|>\"", "\"<think>\"");
        replace_in(model, "tokenizer.json", "\"<|end_of_sentence|>\"", "\"</think>\"");
    }
}

TEST(relaxed_says_that_it_is_lossy_every_time)
{
    char model[64];
    if (access("golden/tale/config.json", R_OK))
        skip();
    model_that_thinks(model);
#define RELAXED(prompt) \
    "generate", model, "--tokens", prompt, "-n", "40", "--ignore-eos", "--draft", "mtp-eagle", "--acceptance", \
        "relaxed", "--logit-bias", "1:-inf", "--relaxed-topk", "100", "--relaxed-delta", "1"
    json_t *j = JSON(RELAXED("5,0,7,8")), *other;
    const json_t *stats = json_object_get(j, "stats");
    assert_true(json_is_true(json_object_get(j, "lossy")) && integer(stats, "relaxed") > 0);
    assert_true(json_real_value(json_object_get(stats, "relaxed_nats")) > 0);
    static const char *const names[] = {"<think>,</think>", "0,1", "0,</think>"};
    for (size_t i = 0; i < COUNT(names); i++) {
        other = JSON(RELAXED("5,0,7,8"), "--thinking-tokens", names[i]);
        assert_true(same_tokens(j, other));
        json_decref(other);
    }
    struct said s = RUN(RELAXED("5,0,7,8"));
    expect_code(&s, 0);
    if (!strstr(s.err, "lossy") || !strstr(s.err, " of 40 tokens are not those of plain decoding"))
        fail_msg("stderr does not say that it is lossy: %s", s.err);
    forget(&s);
    json_decref(j);
    /* the thinking is over */
    j = JSON("generate", model, "--tokens", "5,0,1,8", "-n", "40", "--ignore-eos", "--logit-bias", "1:-inf,0:-inf");
    other = JSON("generate", model, "--tokens", "5,0,1,8", "-n", "40", "--ignore-eos", "--logit-bias", "1:-inf,0:-inf",
                 "--draft", "mtp-eagle", "--acceptance", "relaxed");
    assert_true(same_tokens(j, other));
    json_decref(other);
    json_decref(j);
    s = RUN("generate", model, "--tokens", "5,0,1,8", "-n", "40", "--ignore-eos", "--logit-bias", "1:-inf,0:-inf",
            "--draft", "mtp-eagle", "--acceptance", "relaxed");
    if (!strstr(s.err, "nothing was relaxed; all 40 tokens are those of plain decoding") || strstr(s.err, "lossy"))
        fail_msg("stderr does not say that nothing was relaxed: %s", s.err);
    forget(&s);
    expect_failure(RUN(RELAXED("5"), "--thinking-tokens", "a b c,7"), USAGE, "tokens here, wanted one");
    expect_failure(RUN(RELAXED("5"), "--thinking-tokens", " the, and"), USAGE, "outside the vocabulary of 160");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--acceptance", "relaxed"), USAGE, "wants a tokenizer");
    remove_dir(model);
}

TEST(verify_compares_with_what_acceptance_promises)
{
    json_t *j = JSON("verify", V3, "--tokens", "5,6,7,8", "-n", "16", "--draft", "eagle-reroll", "--acceptance",
                     "rejection", "--temperature", "1");
    assert_true(json_is_true(json_object_get(j, "equal")));
    assert_string_equal(string(j, "compared_with"), "the same draft method and K");
    json_decref(j);
    j = JSON("verify", V3, "--tokens", "5,6,7,8", "-n", "16", "--draft", "eagle-reroll", "--acceptance", "rejection");
    assert_true(json_is_true(json_object_get(j, "equal")));
    assert_string_equal(string(j, "compared_with"), "plain decoding");
    json_decref(j);
    j = JSON("verify", V3, "--tokens", "5,1,7,8", "-n", "16", "--draft", "mtp-vanilla", "--acceptance", "relaxed",
             "--thinking-tokens", "1,2", "--relaxed-delta", "1");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    struct said s = RUN("verify", V3, "--tokens", "5,1,7,8", "-n", "16", "--draft", "mtp-vanilla", "--acceptance",
                        "relaxed", "--thinking-tokens", "1,2", "--draft-tokens", "2");
    expect_code(&s, 0);
    if (!strstr(s.out, "compared with itself alone: it is lossy"))
        fail_msg("verify does not say that relaxed is lossy: %s", s.out);
    forget(&s);
}

TEST(acceptance_that_makes_no_sense_is_refused)
{
    static const char *const bad[][2] = {
        {"--acceptance", "lenient"}, {"--acceptance", ""}, {"--draft-sample-method", "greedy"},
        {"--relaxed-topk", "3"}, {"--relaxed-topk", "0"},
        {"--relaxed-delta", "0.5"}, {"--thinking-tokens", "1,2"}};
    static const char *const relaxed[][2] = {
        {"--relaxed-delta", "1.5"}, {"--relaxed-delta", "x"}, {"--relaxed-delta", "-0.1"},
        {"--thinking-tokens", "1"}, {"--thinking-tokens", "1,1"},
        {"--thinking-tokens", "1,2,3"}, {"--thinking-tokens", "1,160"}, {"--draft-sample-method", "greedy"}};
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_failure(RUN("generate", V3, "--tokens", "5", bad[i][0], bad[i][1]), USAGE, bad[i][0]);
    for (size_t i = 0; i < COUNT(relaxed); i++)
        expect_failure(RUN("generate", V3, "--tokens", "5", "--acceptance", "relaxed", relaxed[i][0], relaxed[i][1]),
                       USAGE, relaxed[i][0]);
    expect_failure(RUN("generate", V3, "--tokens", "5", "--acceptance", "rejection", "--draft-sample-method", "best"),
                   USAGE, "probabilistic, greedy");
}

TEST(what_makes_no_sense_is_refused)
{
    static const char *const bad[][2] = {
                                         {"--min-p", "1.5"},
                                         {"--min-p", "-0.1"},
                                         {"--min-p", "x"},
                                         {"--repetition-penalty", "-1"},
                                         {"--repetition-penalty", "inf"},
                                         {"--presence-penalty", "nan"},
                                         {"--presence-penalty", ""},
                                         {"--frequency-penalty", "1e99"},
                                         {"--logit-bias", ""},
                                         {"--logit-bias", "5"},
                                         {"--logit-bias", "5:"},
                                         {"--logit-bias", ":1"},
                                         {"--logit-bias", "5:1,"},
                                         {"--logit-bias", "5:1,,6:1"},
                                         {"--logit-bias", "-5:1"},
                                         {"--logit-bias", "5:inf"},
                                         {"--logit-bias", "5:nan"},
                                         {"--logit-bias", "99999999999:1"},
                                         {"--logit-bias", "5=1"}};
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_failure(RUN("generate", V3, "--tokens", "5", bad[i][0], bad[i][1]), USAGE, bad[i][0]);
    expect_failure(RUN("generate", V3, "--tokens", "5", "--logit-bias", "160:1"), USAGE, "below 160");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--logit-bias", "5:1,6:2,5:3"), USAGE,
                   "token 5 is given twice");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--logit-bias", "5:1,x"), USAGE, "\"x\"");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_changes_the_choice_and_no_draft_does),
        cmocka_unit_test(a_bias_elects_and_forbids),
        cmocka_unit_test(a_large_presence_penalty_says_nothing_twice),
        cmocka_unit_test(verify_and_draft_take_the_options),
        cmocka_unit_test(the_text_ends_before_a_stop_string),
        cmocka_unit_test(rejection_takes_another_path_and_says_which),
        cmocka_unit_test(relaxed_says_that_it_is_lossy_every_time),
        cmocka_unit_test(verify_compares_with_what_acceptance_promises),
        cmocka_unit_test(acceptance_that_makes_no_sense_is_refused),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
