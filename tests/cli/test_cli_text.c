/* tests/cli/test_cli_text.c -- the `verbatim` command where text goes in or comes out: tokenize, prompts, generated
 * text; and the bundled model of golden/tale (skipped without it). Runs the program itself (argv[1], or ../verbatim
 * beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define TOKENIZER "golden/tokenizer"
#define V3 "golden/tiny/v3"
#define TALE "golden/tale"

/* "5,6,7": ids as --tokens and --decode take them */
static char *ids_of(const json_t *array, size_t count)
{
    char *spec = calloc(count + 1, 12), *p = spec;
    assert_non_null(spec);
    for (size_t i = 0; i < count; i++)
        p += sprintf(p, i ? ",%lld" : "%lld", (long long)json_integer_value(json_array_get(array, i)));
    return spec;
}

/* The text is what `generate` prints, and a newline. */
static void expect_printed(struct said s, const json_t *text)
{
    size_t size = json_string_length(text);
    expect_code(&s, 0);
    if (s.out_size != size + 1 || memcmp(s.out, json_string_value(text), size) || s.out[size] != '\n')
        fail_msg("%s: printed \"%s\", with --json \"%s\"", s.command, s.out, json_string_value(text));
    forget(&s);
}

static void expect_decoded(const char *dir, const json_t *ids, size_t count, const char *text, size_t size)
{
    char *spec = ids_of(ids, count);
    json_t *j = JSON("tokenize", dir, "--decode", spec), *got = json_object_get(j, "text");
    expect_keys(j, "text:s");
    if (json_string_length(got) != size || memcmp(json_string_value(got), text, size))
        fail_msg("%s is \"%s\", wanted \"%s\"", spec, json_string_value(got), text);
    expect_printed(RUN("tokenize", dir, "--decode", spec), got);
    json_decref(j);
    free(spec);
}

/* ---- tokenize ---------------------------------------------------------------------------------------------------- */

TEST(tokenize_gives_ids_and_decode_the_same_text)
{
    static const char *const texts[] = {"hello <|end|>", "", " two  spaces, 12345\n",
                                        "na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x98\x80"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        json_t *ids = JSON("tokenize", TOKENIZER, texts[i]), *id;
        size_t k;
        assert_true(json_is_array(ids));
        json_array_foreach(ids, k, id)
            assert_true(json_is_integer(id));
        assert_int_equal(json_array_size(ids) > 0, texts[i][0] != 0);
        char *spec = ids_of(ids, json_array_size(ids));
        struct said s = RUN("tokenize", TOKENIZER, texts[i]);
        expect_code(&s, 0);
        assert_int_equal(s.out_size, strlen(spec) + 1);
        assert_memory_equal(s.out, spec, strlen(spec));
        expect_decoded(TOKENIZER, ids, json_array_size(ids), texts[i], strlen(texts[i]));
        forget(&s);
        free(spec);
        json_decref(ids);
    }
}

static int has_id(const json_t *ids, long long wanted)
{
    size_t i;
    json_t *id;
    json_array_foreach((json_t *)(uintptr_t)ids, i, id)
        if (json_integer_value(id) == wanted)
            return 1;
    return 0;
}

TEST(special_tokens_are_recognised_unless_told_otherwise)
{
    json_t *with = JSON("tokenize", TOKENIZER, "a<|end|>"),
           *without = JSON("tokenize", TOKENIZER, "--no-special", "a<|end|>");
    json_t *bos = JSON("tokenize", TOKENIZER, "--bos", "a<|end|>");
    assert_true(has_id(with, 1) && !has_id(without, 1));
    assert_true(!has_id(with, 0)); /* exactly this text */
    assert_int_equal(json_integer_value(json_array_get(bos, 0)), 0);
    assert_int_equal(json_array_size(bos), json_array_size(with) + 1);
    json_decref(with);
    json_decref(without);
    json_decref(bos);
}

TEST(the_most_frequent_ids_come_first)
{
    json_t *a = JSON("tokenize", TOKENIZER, "a"), *b = JSON("tokenize", TOKENIZER, "b"),
           *c = JSON("tokenize", TOKENIZER, "<|end|>");
    json_t *ids = JSON("tokenize", TOKENIZER, "b<|end|>a<|end|>b<|end|>b<|end|>", "--most-frequent", "2");
    assert_int_equal(json_array_size(ids), 2);
    assert_true(json_equal(json_array_get(ids, 0), json_array_get(c, 0)));
    assert_true(json_equal(json_array_get(ids, 1), json_array_get(b, 0)));
    json_decref(ids);
    ids = JSON("tokenize", TOKENIZER, "b<|end|>a<|end|>b<|end|>b<|end|>", "--most-frequent", "1000");
    assert_int_equal(json_array_size(ids), 3);
    assert_true(json_equal(json_array_get(ids, 2), json_array_get(a, 0)));
    json_decref(ids);
    json_decref(a);
    json_decref(b);
    json_decref(c);
}

TEST(a_files_bytes_are_taken_as_they_are)
{
    static const char bytes[] = "\xef\xbb\xbf one\r\n\0two\r\n"; /* a byte order mark, a 0 */
    char dir[64], file[128];
    make_dir(dir);
    write_file(dir, "text", bytes, sizeof bytes - 1);
    snprintf(file, sizeof file, "%s/text", dir);
    json_t *ids = JSON("tokenize", TOKENIZER, "--file", file);
    expect_decoded(TOKENIZER, ids, json_array_size(ids), bytes, sizeof bytes - 1);
    json_decref(ids);
    ids = JSON("tokenize", TOKENIZER, "\xf0\x9f\x98\x80");
    assert_true(json_array_size(ids) > 1);
    expect_decoded(TOKENIZER, ids, json_array_size(ids) - 1, "\xef\xbf\xbd", 3); /* a character without its end */
    json_decref(ids);
    remove_dir(dir);
}

TEST(text_that_is_not_utf8_and_ids_that_are_no_tokens_are_refused)
{
    static const char *const wrong[] = {"ab\xff", "\xc0\xaf", "\xed\xa0\x80", "ab\xe2\x82"};
    char dir[64], model[64], file[128];
    make_dir(dir);
    make_dir(model);
    copy_files(V3, model);
    copy_files(TOKENIZER, model);
    snprintf(file, sizeof file, "%s/text", dir);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        write_text(dir, "text", wrong[i]);
        expect_failure(RUN("tokenize", TOKENIZER, wrong[i]), 1, "UTF-8");
        expect_failure(RUN("tokenize", TOKENIZER, "--file", file), 1, file);
        expect_failure(RUN("generate", model, "--prompt-file", file), 1, file);
        expect_failure(RUN("generate", model, "--prompt", wrong[i]), 1, "--prompt");
    }
    expect_failure(RUN("tokenize", TOKENIZER, "--decode", "5,100000"), 2, "100000");
    expect_failure(RUN("tokenize", TOKENIZER, "--decode", "5,x"), 2, "\"x\"");
    expect_failure(RUN("generate", model, "--prompt-file", "golden/no-such-prompt"), 1, "no-such-prompt");
    expect_failure(RUN("generate", model, "--prompt", "<think>"), 2, "outside the vocabulary of 160");
    write_text(dir, "text", "");
    expect_failure(RUN("generate", model, "--prompt-file", file, "--no-bos"), 2, "empty");
    expect_failure(RUN("generate", model, "--prompt", "", "--no-bos"), 2, "empty");
    expect_failure(RUN("generate", model, "--prompt=", "--no-bos"), 2, "empty");
    expect_failure(RUN("generate", model, "--prompt", "x", "--bos", "--no-bos"), 2, "--no-bos");
    replace_in(model, "tokenizer.json", "{", "[");
    expect_failure(RUN("generate", model, "--prompt", "x"), 1, "tokenizer.json");
    json_t *j = JSON("generate", model, "--tokens", "5", "-n", "1"); /* needs no tokenizer */
    assert_true(json_is_null(json_object_get(j, "text")));
    json_decref(j);
    remove_dir(dir);
    remove_dir(model);
}

/* ---- generate ---------------------------------------------------------------------------------------------------- */

static void expect_prompt_tokens(json_t *j, size_t wanted)
{
    if (integer(j, "prompt_tokens") != (long long)wanted)
        fail_msg("%lld prompt tokens, wanted %zu", integer(j, "prompt_tokens"), wanted);
    json_decref(j);
}

TEST(bos_is_as_the_tokenizer_says_unless_told_otherwise)
{
    char model[64], file[128], text[64];
    make_dir(model);
    copy_files(V3, model);
    copy_files(TOKENIZER, model);
    write_text(model, "prompt", "hello");
    snprintf(file, sizeof file, "%s/prompt", model);
    json_t *ids = JSON("tokenize", model, "hello");
    size_t n = json_array_size(ids);
    expect_prompt_tokens(JSON("generate", model, "-n", "0", "--prompt", "hello"), n + 1); /* add_bos_token is true */
    expect_prompt_tokens(JSON("generate", model, "-n", "0", "--prompt", "hello", "--bos"), n + 1);
    expect_prompt_tokens(JSON("generate", model, "-n", "0", "--prompt-file", file), n + 1);
    expect_prompt_tokens(JSON("generate", model, "-n", "0", "--prompt", "hello", "--no-bos"), n);
    expect_prompt_tokens(JSON("generate", model, "-n", "0", "--tokens", "73,70"), 2);
    replace_in(model, "tokenizer_config.json", "\"add_bos_token\": true", "\"add_bos_token\": false");
    expect_prompt_tokens(JSON("generate", model, "-n", "0", "--prompt", "hello"), n);
    expect_prompt_tokens(JSON("generate", model, "-n", "0", "--prompt", "hello", "--bos"), n + 1);

    char *spec = ids_of(ids, n); /* the same prompt, three ways */
    json_t *j = JSON("generate", model, "-n", "12", "--tokens", spec, "--ignore-eos");
    expect_printed(RUN("generate", model, "-n", "12", "--prompt", "hello", "--ignore-eos"), json_object_get(j, "text"));
    expect_printed(RUN("generate", model, "-n", "12", "--prompt-file", file, "--ignore-eos"),
                   json_object_get(j, "text"));
    snprintf(text, sizeof text, "--prompt=%s", "hello");
    expect_printed(RUN("generate", text, "-n=12", model, "--ignore-eos"), json_object_get(j, "text"));
    json_decref(j);
    json_decref(ids);
    free(spec);
    remove_dir(model);
}

TEST(the_end_token_is_a_token_and_not_text)
{
    char model[64], edit[64];
    make_dir(model);
    copy_files(V3, model);
    copy_files(TOKENIZER, model);
    json_t *plain = JSON("generate", model, "--tokens", "5,6,7", "-n", "8", "--ignore-eos"),
           *ids = json_object_get(plain, "tokens");
    expect_decoded(TOKENIZER, ids, 8, string(plain, "text"), strlen(string(plain, "text")));
    for (size_t end = 3; end < 8; end += 4) { /* within the text, and its last token */
        snprintf(edit, sizeof edit, "{\"eos_token_id\": %lld}",
                 (long long)json_integer_value(json_array_get(ids, end)));
        write_text(model, "generation_config.json", edit);
        json_t *j = JSON("generate", model, "--tokens", "5,6,7", "-n", "8", "--draft", "mtp-vanilla", "--draft-tokens",
                         "3");
        assert_string_equal(string(j, "finish_reason"), "stop");
        assert_int_equal(json_array_size(json_object_get(j, "tokens")), end + 1);
        expect_decoded(TOKENIZER, ids, end, string(j, "text"), strlen(string(j, "text")));
        expect_printed(RUN("generate", model, "--tokens", "5,6,7", "-n", "8"), json_object_get(j, "text"));
        json_decref(j);
        j = JSON("generate", model, "--tokens", "5,6,7", "-n", "8", "--ignore-eos"); /* ends nothing: as written */
        assert_true(json_equal(json_object_get(j, "text"), json_object_get(plain, "text")));
        expect_printed(RUN("generate", model, "--tokens", "5,6,7", "-n", "8", "--ignore-eos"),
                       json_object_get(plain, "text"));
        json_decref(j);
    }
    json_decref(plain);
    remove_dir(model);
}

/* ---- the bundled model ------------------------------------------------------------------------------------------- */

static void need_tale(void)
{
    if (access(TALE "/config.json", R_OK))
        skip();
}

TEST(tale_tells_the_same_story_with_any_draft)
{
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle"};
    need_tale();
    json_t *plain = JSON("generate", TALE, "--prompt", "Once upon a time", "-n", "48"),
           *text = json_object_get(plain, "text");
    assert_true(json_string_length(text) > 48);
    expect_printed(RUN("generate", TALE, "--prompt", "Once upon a time", "-n", "48"), text);
    for (size_t m = 0; m < COUNT(methods); m++) {
        json_t *j = JSON("generate", TALE, "--prompt", "Once upon a time", "-n", "48", "--draft", methods[m]);
        assert_true(json_equal(json_object_get(j, "text"), text));
        assert_true(json_equal(json_object_get(j, "tokens"), json_object_get(plain, "tokens")));
        assert_true(json_equal(json_object_get(j, "fingerprint"), json_object_get(plain, "fingerprint")));
        double per_forward = json_number_value(json_object_get(json_object_get(j, "stats"), "tokens_per_forward"));
        if (per_forward < 1.5) /* trained modules are right more often than not; untrained or misread ones are near 1 */
            fail_msg("%s: %f tokens per forward", methods[m], per_forward);
        json_decref(j);
        expect_printed(RUN("generate", TALE, "--prompt", "Once upon a time", "-n", "48", "--draft", methods[m]), text);
    }
    json_decref(plain);
}

TEST(tale_passes_verify_and_shows_the_demo)
{
    need_tale();
    json_t *j = JSON("verify", TALE, "--prompt", "Once upon a time", "-n", "10", "--threads", "1", "--isa", "best");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    struct said s = RUN("demo", TALE, "--prompt", "Once upon a time", "-n", "24");
    expect_code(&s, 0);
    if (s.err_size || !strstr(s.out, "identical") || strchr(s.out, '\033'))
        fail_msg("demo: %s%s", s.out, s.err);
    forget(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenize_gives_ids_and_decode_the_same_text),
        cmocka_unit_test(special_tokens_are_recognised_unless_told_otherwise),
        cmocka_unit_test(the_most_frequent_ids_come_first),
        cmocka_unit_test(a_files_bytes_are_taken_as_they_are),
        cmocka_unit_test(text_that_is_not_utf8_and_ids_that_are_no_tokens_are_refused),
        cmocka_unit_test(bos_is_as_the_tokenizer_says_unless_told_otherwise),
        cmocka_unit_test(the_end_token_is_a_token_and_not_text),
        cmocka_unit_test(tale_tells_the_same_story_with_any_draft),
        cmocka_unit_test(tale_passes_verify_and_shows_the_demo),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
