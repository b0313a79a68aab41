/* tests/engine/test_json.c -- reading JSON: numbers too large for us, texts too large for the memory, and the
 * locale. */
#include "engine/base/decimal.h"
#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/template/template.h"
#include "engine/text/tokenizer.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define VERY_LARGE_INTEGER "1000000000000000019884624838656" /* transformers writes it where no length is known */

static json_t *read_text(const char *text)
{
    vb_error err = {0};
    json_t *value = json_read(text, strlen(text), "t.json", &err);
    if (!value)
        fail_msg("%s is refused: %s", text, err.message);
    return value;
}

TEST(a_number_that_is_too_large_becomes_a_real_number_of_about_its_size)
{
    static const struct {
        const char *text;
        double wanted;
    } cases[] = {
        {VERY_LARGE_INTEGER, 1e30},
        {"-" VERY_LARGE_INTEGER, -1e30},
        {"9223372036854775808", 9223372036854775808.0},
        {"-9223372036854775809", -9223372036854775809.0},
        {"18446744073709551615", 18446744073709551615.0},
        {"1e999", 1e308},
        {"-1e999", -1e308},
        {"123.5E+400", 1e308},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"a\":[%s,1,%s], \"b\\\" 99999999999999999999\":%s}", cases[i].text,
                 cases[i].text, cases[i].text);
        json_t *root = read_text(text), *a = json_object_get(root, "a");
        double first = json_real_value(json_array_get(a, 0)), last = json_real_value(json_array_get(a, 2));
        assert_int_equal(json_array_size(a), 3);
        assert_int_equal(json_integer_value(json_array_get(a, 1)), 1);
        assert_true(json_is_real(json_array_get(a, 0)));
        if (fabs(first - cases[i].wanted) > 1e-14 * fabs(cases[i].wanted) || first != last)
            fail_msg("%s is %.17g, wanted %.17g", cases[i].text, first, cases[i].wanted);
        assert_true(json_is_real(json_object_get(root, "b\" 99999999999999999999")));
        json_decref(root);
    }
}

TEST(a_number_with_a_thousand_digits_is_read)
{
    char text[1100];
    memset(text, '7', sizeof text);
    memcpy(text, "{\"a\":-", 6);
    memcpy(text + sizeof text - 2, "}", 2);
    json_t *root = read_text(text);
    assert_true(json_real_value(json_object_get(root, "a")) == -1e308);
    json_decref(root);
}

TEST(numbers_that_fit_stay_what_they_are_beside_one_that_does_not)
{
    json_t *root =
        read_text("{\"n\":[9223372036854775807,-9223372036854775808,0.1,-0.0,1e308,99999999999999999999,4.9e-324]}");
    json_t *n = json_object_get(root, "n");
    assert_true(json_integer_value(json_array_get(n, 0)) == INT64_MAX &&
                json_integer_value(json_array_get(n, 1)) == INT64_MIN);
    assert_true(json_real_value(json_array_get(n, 2)) == 0.1 && json_real_value(json_array_get(n, 4)) == 1e308);
    assert_true(json_real_value(json_array_get(n, 6)) > 0.0);
    json_decref(root);
}

TEST(what_looks_like_a_number_is_not_made_one)
{
    static const char *const cases[] = {"{\"a\":1e999,\"b\":-inf}", "{\"a\":1e999,\"b\":-infinity}",
                                        "{\"a\":1e999,\"b\":0x1p99999}", "{\"a\":1e999,\"b\":1e999e9}",
                                        "{\"a\":1e999,\"b\":00999999999999999999999}", "{\"a\":1e999,",
                                        "{\"a\":1e999,\"b", "{\"a\":1e999,\"b\\", "{\"a\":1e999,-"};
    for (size_t i = 0; i < COUNT(cases); i++) {
        vb_error err;
        char *exact = strndup(cases[i], strlen(cases[i])); /* so that a sanitizer sees a step too far */
        assert_null(json_read(exact, strlen(exact), "t.json", &err));
        assert_int_equal(err.code, VB_BAD_CHECKPOINT);
        free(exact);
    }
}

TEST(a_text_whose_numbers_are_shown_again_is_refused)
{
    vb_error err;
    assert_null(json_read_exact("{\"a\": 99999999999999999999}", 27, "messages.json", &err));
    forget_place(err.message);
    assert_string_equal(err.message, "messages.json: a number is out of range");
}

TEST(a_tokenizer_without_a_length_is_read)
{
    static const char
        text[] = "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},\"model\":{"
                 "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},"
                 "\"truncation\":{\"max_length\":" VERY_LARGE_INTEGER "},\"added_tokens\":[]}";
    static const char config[] = "{\"model_max_length\":" VERY_LARGE_INTEGER "}";
    struct vb_tokenizer *t;
    vb_error err = {0};
    if (tokenizer_parse(&t, text, sizeof text - 1, config, sizeof config - 1, "t.json", NULL, &err))
        fail_msg("%s", err.message);
    tokenizer_close(t);
}

static void expect_tokenizer(const char *text, const char *message)
{
    struct vb_tokenizer *t;
    vb_error err = {0};
    assert_int_equal(tokenizer_parse(&t, text, strlen(text), NULL, 0, "t.json", NULL, &err), VB_BAD_CHECKPOINT);
    assert_string_equal(err.message, message);
}

TEST(an_id_that_is_too_large_is_refused_by_name)
{
    expect_tokenizer("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":" VERY_LARGE_INTEGER
                     "},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"}}",
                     "t.json: token \"a\" has no id from 0 to 16777215");
    expect_tokenizer("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{\"type\":"
                     "\"ByteLevel\"},"
                     "\"added_tokens\":[{\"id\":" VERY_LARGE_INTEGER ",\"content\":\"x\"}]}",
                     "t.json: added token \"x\" has id 1e30, wanted 0 to 16777215");
}

/* ---- a bound ---- */

TEST(a_text_with_too_many_values_is_refused_before_it_is_read)
{
    size_t n = 2 * (size_t)JSON_MOST_VALUES;
    char *text = malloc(n + 2);
    vb_error err;
    assert_non_null(text);
    memset(text, ',', n);
    for (size_t i = 1; i < n; i += 2)
        text[i] = '0';
    text[0] = '[';
    text[n] = ']';
    assert_int_equal(json_values(text, n + 1), JSON_MOST_VALUES + 1);
    assert_null(json_read(text, n + 1, "model.safetensors", &err));
    assert_string_equal(err.message, "model.safetensors: line 1, column 0: it has more than 4194304 values");
    memset(text + n - 2, ' ', 2); /* one less */
    json_t *value = json_read(text, n + 1, "model.safetensors", &err);
    assert_int_equal(json_array_size(value), JSON_MOST_VALUES - 1);
    json_decref(value);
    free(text);
}

TEST(commas_in_strings_are_no_values)
{
    assert_int_equal(json_values("[\",,:[\\\",{\"]", 12), 2);
    assert_int_equal(json_values("{\"a\\\\\":1,\"b\":[]}", 16), 6);
    assert_int_equal(json_values("\"", 1), 1);
    assert_int_equal(json_values("\"\\", 2), 1);
}

/* ---- messages ---- */

TEST(a_message_is_utf8_without_control_characters)
{
    static const struct {
        const char *name, *wanted;
    } cases[] = {{"caf\xc3\xa9", "caf\xc3\xa9: it is empty"},
                 {"a\xff\xfe" "b", "a\xef\xbf\xbd\xef\xbf\xbd" "b: it is empty"},
                 {"\xe2\x82", "\xef\xbf\xbd: it is empty"},
                 {"a\nb\x1b[31m\x7f", "a?b?[31m?: it is empty"},
                 {"\xc2\x9b" "31m \xe2\x80\xa8", "?31m ?: it is empty"}};
    vb_error err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(vb_fail(&err, VB_IO, "%s: it is empty", cases[i].name), VB_IO);
        assert_string_equal(err.message, cases[i].wanted);
    }
    vb_fail(&err, VB_IO, "%s, twice", err.message);
    assert_string_equal(err.message, "?31m ?: it is empty, twice");
}

TEST(a_long_message_ends_with_a_whole_character)
{
    char name[1024];
    vb_error err;
    for (size_t before = 0; before < 4; before++)
        for (int kind = 0; kind < 2; kind++) {
            memset(name, 'a', sizeof name);
            for (size_t i = before; i + 3 < sizeof name; i += kind ? 1 : 3)
                memcpy(name + i, kind ? "\xff" : "\xe2\x82\xac", kind ? 1 : 3);
            name[sizeof name - 1] = '\0';
            vb_fail(&err, VB_IO, "%s", name);
            size_t n = strlen(err.message);
            assert_true(n < sizeof err.message && n + 4 >= sizeof err.message);
            assert_int_equal(utf8_valid(err.message, n), n);
            assert_null(strstr(err.message + n - 3, kind ? "\xe2" : "\xef\xbf\xbd"));
        }
}

/* ---- the locale ---- */

/* 0: there is no such locale here and none can be made. */
static int speak_german(const char *dir)
{
    char command[256];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", dir);
    return !system(command) && !setenv("LOCPATH", dir, 1) && setlocale(LC_ALL, "de_DE.UTF-8") &&
           localeconv()->decimal_point[0] == ',';
}

static void render(char out[512], const char *source)
{
    struct vb_template *t;
    json_t *variables = json_object();
    vb_error err = {0};
    char *text = NULL;
    size_t size;
    if (!template_parse(&t, source, strlen(source), "t", NULL, &err) &&
        !template_render(t, variables, &text, &size, &err))
        snprintf(out, 512, "%s", text);
    else
        snprintf(out, 512, "%s", err.message);
    vb_free(NULL, text);
    template_close(t);
    json_decref(variables);
}

TEST(numbers_have_a_point_in_every_locale)
{
    char dir[] = "/tmp/verbatim-locale-XXXXXX", text[32], command[64], rendered[512], *end;
    vb_error err;
    assert_non_null(mkdtemp(dir));
    int german = speak_german(dir);
    double half = decimal_parse("0.5,", &end);
    decimal_print(text, sizeof text, "%.1f", 2.5);
    vb_fail(&err, VB_BAD_ARGUMENT, "%g", 1.5);
    json_t *json = german ? read_text("{\"a\":0.5,\"b\":1e999}") : NULL;
    render(rendered, "{{ 0.5 + 0.125 }} {{ 2.5e-7 }} {{ '[0.75]' | from_json }}");
    double read = json_real_value(json_object_get(json, "a"));
    json_decref(json);
    setlocale(LC_ALL, "C");
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    if (!german) {
        print_message("skipped: no German locale here, and localedef cannot make one; not proven: numbers in such a "
                      "locale\n");
        skip();
    }
    assert_true(half == 0.5 && read == 0.5 && *end == ',');
    assert_string_equal(text, "2.5");
    assert_string_equal(rendered, "0.625 2.5e-07 [0.75]");
    assert_string_equal(err.message, "1.5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_that_is_too_large_becomes_a_real_number_of_about_its_size),
        cmocka_unit_test(a_number_with_a_thousand_digits_is_read),
        cmocka_unit_test(numbers_that_fit_stay_what_they_are_beside_one_that_does_not),
        cmocka_unit_test(what_looks_like_a_number_is_not_made_one),
        cmocka_unit_test(a_text_whose_numbers_are_shown_again_is_refused),
        cmocka_unit_test(a_tokenizer_without_a_length_is_read),
        cmocka_unit_test(an_id_that_is_too_large_is_refused_by_name),
        cmocka_unit_test(a_text_with_too_many_values_is_refused_before_it_is_read),
        cmocka_unit_test(commas_in_strings_are_no_values),
        cmocka_unit_test(a_message_is_utf8_without_control_characters),
        cmocka_unit_test(a_long_message_ends_with_a_whole_character),
        cmocka_unit_test(numbers_have_a_point_in_every_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
