/* tests/test_cli_sampling.c -- the sampling options of the `verbatim` command, from outside: that each one reaches the
 * sampler, that no draft method changes what it gives, and what is refused. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root. The rule itself is tested in test_sampler.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/golden.h"
#include "support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"

enum { USAGE = 2 };

static long long token(const json_t *run, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(run, "tokens"), i));
}

static int same_tokens(const json_t *a, const json_t *b) { return json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens")); }

/* 32 tokens with one option (or none), plainly and drafted: the same. */
static json_t *generate(const char *option, const char *value, const char *temperature)
{
    static const char *const methods[] = {"none", "mtp-vanilla", "eagle-keep"};
    json_t *runs[COUNT(methods)];
    for (size_t i = 0; i < COUNT(methods); i++)
        runs[i] = JSON("generate", V3, "--tokens", "5,6,7", "-n", "32", "--ignore-eos", "--draft", methods[i], "--draft-tokens", "5",
                       "--temperature", temperature, option ? option : "--seed", option ? value : "0");
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
        json_t *with = generate(options[i][0], options[i][1], options[i][2]), *without = generate(NULL, NULL, options[i][2]);
        if (same_tokens(with, without))
            fail_msg("%s %s changes nothing", options[i][0], options[i][1]);
        json_decref(with);
        json_decref(without);
    }
    static const char *const off[][2] = {{"--repetition-penalty", "1"}, {"--repetition-penalty", "0"}, {"--presence-penalty", "0"},
                                         {"--frequency-penalty", "-0"}, {"--min-p", "0"}, {"--logit-bias", "7:0"}};
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
    json_t *j = JSON("verify", V3, "--tokens", "5,6,7", "-n", "12", "--threads", "1", "--draft", "mtp-eagle", "--presence-penalty", "2",
                     "--frequency-penalty", "0.5", "--repetition-penalty", "1.3", "--logit-bias", "9:2", "--min-p", "0.05",
                     "--temperature", "0.9");
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
    json_t *plain = JSON("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9"), *j;
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
        j = JSON("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9", "--stop", other, "--stop",
                 stop, "--draft", method);
        if (strlen(string(j, "text")) != before || strncmp(string(j, "text"), text, before))
            fail_msg("--stop %s of %s gives %s", stop, text, string(j, "text"));
        assert_string_equal(string(j, "stop_string"), stop);
        assert_string_equal(string(j, "finish_reason"), "stop");
        struct said s = RUN("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9", "--stop", stop,
                            "--draft", method);
        assert_true(s.out_size == before + 1 && !memcmp(s.out, text, before));
        forget(&s);
        json_decref(j);
    }
    struct said s = RUN("generate", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9", "--stop", other);
    assert_true(s.out_size == json_string_length(json_object_get(plain, "text")) + 1 && !memcmp(s.out, text, s.out_size - 1));
    forget(&s);
    j = JSON("verify", model, "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--logit-bias", "5:-9", "--stop", stop, "--threads", "1");
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

TEST(what_makes_no_sense_is_refused)
{
    static const char *const bad[][2] = {
        {"--min-p", "1.5"}, {"--min-p", "-0.1"}, {"--min-p", "x"}, {"--repetition-penalty", "-1"}, {"--repetition-penalty", "inf"},
        {"--presence-penalty", "nan"}, {"--presence-penalty", ""}, {"--frequency-penalty", "1e99"}, {"--logit-bias", ""},
        {"--logit-bias", "5"}, {"--logit-bias", "5:"}, {"--logit-bias", ":1"}, {"--logit-bias", "5:1,"}, {"--logit-bias", "5:1,,6:1"},
        {"--logit-bias", "-5:1"}, {"--logit-bias", "5:inf"}, {"--logit-bias", "5:nan"}, {"--logit-bias", "99999999999:1"},
        {"--logit-bias", "5=1"}};
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_failure(RUN("generate", V3, "--tokens", "5", bad[i][0], bad[i][1]), USAGE, bad[i][0]);
    expect_failure(RUN("generate", V3, "--tokens", "5", "--logit-bias", "160:1"), USAGE, "below 160");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--logit-bias", "5:1,6:2,5:3"), USAGE, "token 5 is given twice");
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
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
