/* tests/engine/test_tokenizer_errors.c -- what the tokenizer refuses, word for word. */
#include "engine/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void make_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

TEST(a_directory_without_tokenizer_json_is_refused_by_what_it_has)
{
    char dir[] = "/tmp/verbatim-tokenizer-XXXXXX", path[512];
    struct vb_tokenizer *t;
    vb_error err;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tokenizer_open(&t, dir, NULL, &err), VB_IO);
    assert_non_null(strstr(err.message, "/tokenizer.json: No such file or directory"));
    make_file(dir, "tiktoken.model", "IQ== 0\n");
    assert_int_equal(tokenizer_open(&t, dir, NULL, &err), VB_IO);
    assert_non_null(strstr(err.message, "/tiktoken.model: no tokenizer_config.json beside it"));
    assert_null(t);
    make_file(dir, "tokenizer_config.json", "{\"tokenizer_class\":\"TikTokenTokenizer\"}");
    assert_int_equal(tokenizer_open(&t, dir, NULL, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, "/tiktoken.model: there is no token for byte 0x00"));
    make_file(dir, "tokenizer.json", "{}"); /* goes first */
    assert_int_equal(tokenizer_open(&t, dir, NULL, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, "/tokenizer.json: there is no model"));
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"tiktoken.model", "tokenizer_config.json", "tokenizer.json"};
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        remove(path);
    }
    remove(dir);
}

/* The smallest file there is, with one member changed: '...' for "...". */
static int parse_changed(const char *member, const char *value, const char *config, vb_error *err)
{
    json_t *root = json_loads("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]},"
                              "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                              "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[]}", 0, NULL);
    char text[1024];
    snprintf(text, sizeof text, "%s", value);
    for (char *s = text; *s; s++)
        if (*s == '\'')
            *s = '"';
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!json)
        fail_msg("the test's JSON is wrong: %s", text);
    if (!strncmp(member, "model.", 6))
        json_object_set_new(json_object_get(root, "model"), member + 6, json);
    else
        json_object_set_new(root, member, json);
    char *dumped = json_dumps(root, 0);
    struct vb_tokenizer *t = NULL;
    err->code = VB_OK;
    err->message[0] = 0;
    int rc = tokenizer_parse(&t, dumped, strlen(dumped), config, config ? strlen(config) : 0, "t.json", NULL, err);
    assert_true((rc == VB_OK) == (t != NULL));
    assert_int_equal(rc, err->code);
    tokenizer_close(t);
    free(dumped);
    json_decref(root);
    return rc;
}

TEST(a_file_that_is_wrong_or_not_implemented_is_told_in_one_sentence)
{
    static const struct {
        const char *member, *value;
        int code;
        const char *message;
    } cases[] = {
        {"model", "null", -3, "t.json: there is no model"},
        {"model.type", "'WordPiece'", -4, "t.json: the model WordPiece is not implemented"},
        {"model.vocab", "[]", -3, "t.json: model.vocab is not an object"},
        {"model.vocab", "{'a':-1}", -3, "t.json: token \"a\" has no id from 0 to 16777215"},
        {"model.vocab", "{'a':16777216}", -3, "t.json: token \"a\" has no id from 0 to 16777215"},
        {"model.vocab", "{'a\\n':'x'}", -3, "t.json: token \"a?\" has no id from 0 to 16777215"},
        {"model.vocab", "{'a':0,'b':1,'ab':1}", -3, "t.json: token \"ab\" has id 1, which another token has"},
        {"model.merges", "{}", -3, "t.json: model.merges is not an array"},
        {"model.merges", "['a b','a b b']", -3, "t.json: merge 1 is \"a b b\", wanted two parts"},
        {"model.merges", "['ab']", -3, "t.json: merge 0 is \"ab\", wanted two parts"},
        {"model.merges", "[['a','b','c']]", -3, "t.json: merge 0 is neither \"a b\" nor [\"a\", \"b\"]"},
        {"model.merges", "[['a',7]]", -3, "t.json: merge 0 is neither \"a b\" nor [\"a\", \"b\"]"},
        {"model.merges", "[7]", -3, "t.json: merge 0 is neither \"a b\" nor [\"a\", \"b\"]"},
        {"model.merges", "['x a']", -3, "t.json: merge 0 names \"x\", which the vocabulary does not have"},
        {"model.merges", "['a x']", -3, "t.json: merge 0 names \"x\", which the vocabulary does not have"},
        {"model.merges", "['b a']", -3, "t.json: merge 0 makes \"ba\", which the vocabulary does not have"},
        {"model.merges", "[]", 0, ""},
        {"model.dropout", "0.1", -4, "t.json: model.dropout is not implemented"},
        {"model.dropout", "0", 0, ""},
        {"model.continuing_subword_prefix", "'##'", -4, "t.json: model.continuing_subword_prefix is not implemented"},
        {"model.continuing_subword_prefix", "''", 0, ""},
        {"model.end_of_word_suffix", "'</w>'", -4, "t.json: model.end_of_word_suffix is not implemented"},
        {"model.ignore_merges", "1", -3, "t.json: model.ignore_merges is not a boolean"},
        {"normalizer", "{'type':'NFC'}", -4, "t.json: the normalizer NFC is not implemented"},
        {"normalizer", "{'type':'Sequence','normalizers':[{'type':'Prepend'}]}", -4,
         "t.json: the normalizer Prepend is not implemented"},
        {"normalizer", "{'type':'Sequence','normalizers':[7]}", -3, "t.json: normalizer 0 is not an object"},
        {"normalizer", "{'type':'Sequence','normalizers':[]}", 0, ""},
        {"normalizer", "7", -3, "t.json: the normalizer has no type"},
        {"decoder", "{'type':'Metaspace'}", -4, "t.json: the decoder Metaspace is not implemented"},
        {"decoder", "null", -4, "t.json: the decoder null is not implemented"},
        {"pre_tokenizer", "null", -4, "t.json: not a byte-level tokenizer (no pre-tokenizer ByteLevel)"},
        {"pre_tokenizer", "{'type':'Metaspace'}", -4, "t.json: the pre-tokenizer Metaspace is not implemented"},
        {"pre_tokenizer", "{'type':'Sequence'}", -3, "t.json: the pre-tokenizer Sequence has no list"},
        {"pre_tokenizer", "{}", -3, "t.json: a pre-tokenizer without a type"},
        {"pre_tokenizer", "{'type':'Sequence','pretokenizers':[{'type':'ByteLevel'},{'type':'Digits'}]}", -4,
         "t.json: the pre-tokenizer Digits stands behind ByteLevel"},
        {"pre_tokenizer", "{'type':'Split'}", -3, "t.json: a Split without a pattern (Regex or String) or a behavior"},
        {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'a'},'behavior':'Odd'}", -4,
         "t.json: Split has the behavior \"Odd\", which is not implemented"},
        {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'(a'},'behavior':'Isolated'}", -3,
         "t.json: PCRE2 does not take the pattern \"(a\": missing closing parenthesis"},
        {"pre_tokenizer", "{'type':'Digits','individual_digits':2}", -3,
         "t.json: pre_tokenizer Digits.individual_digits is not a boolean"},
        {"added_tokens", "{}", -3, "t.json: added_tokens is not an array"},
        {"added_tokens", "[{'id':5}]", -3, "t.json: added_tokens[0] is not an object with an id and a content"},
        {"added_tokens", "[{'id':5,'content':''}]", -3,
         "t.json: added_tokens[0] is not an object with an id and a content"},
        {"added_tokens", "[{'id':-1,'content':'x'}]", -3, "t.json: added token \"x\" has id -1, wanted 0 to 16777215"},
        {"added_tokens", "[{'id':7,'content':'x'},{'id':8,'content':'x'}]", -3,
         "t.json: added token \"x\" is there twice"},
        {"added_tokens", "[{'id':7,'content':'x'},{'id':7,'content':'y'}]", -3,
         "t.json: token \"y\" has id 7, which another token has"},
        {"added_tokens", "[{'id':7,'content':'a'}]", -3, "t.json: added token \"a\" has id 7, the vocabulary says 0"},
        {"added_tokens", "[{'id':0,'content':'a','special':1}]", -3,
         "t.json: added_tokens[0].special is not a boolean"},
        {"added_tokens", "[{'id':0,'content':'a'},{'id':9,'content':'<s>'}]", 0, ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        vb_error err;
        int rc = parse_changed(cases[i].member, cases[i].value, NULL, &err);
        if (rc != cases[i].code || strcmp(err.message, cases[i].message))
            fail_msg("%s %s gives %d \"%s\", wanted %d \"%s\"", cases[i].member, cases[i].value, rc, err.message,
                     cases[i].code, cases[i].message);
    }
}

TEST(text_that_is_not_json_is_told_with_its_line)
{
    struct vb_tokenizer *t;
    vb_error err;
    static const struct {
        const char *text, *message;
    } cases[] = {{"{\"a\":\n 1,}", "t.json: line 2, column 4: it is not JSON"},
                 {"", "t.json: line 1, column 0: it ends too early"},
                 {"[]", "t.json: not a JSON object"},
                 {"{\"\xff\":1}", "t.json: line 1, column 2: it is not UTF-8"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(tokenizer_parse(&t, cases[i].text, strlen(cases[i].text), NULL, 0, "t.json", NULL, &err),
                         VB_BAD_CHECKPOINT);
        assert_string_equal(err.message, cases[i].message);
    }
}

TEST(a_wrong_config_is_refused)
{
    static const struct {
        const char *config, *message;
    } cases[] = {
        {"{\"bos_token\":\"<s>\"}", "tokenizer_config.json: bos_token is \"<s>\", which is no token"},
        {"{\"eos_token\":7}", "tokenizer_config.json: eos_token is neither a string nor an object with a content"},
        {"{\"eos_token\":{}}", "tokenizer_config.json: eos_token is neither a string nor an object with a content"},
        {"{\"add_bos_token\":true}", "tokenizer_config.json: add_bos_token is true and there is no bos_token"},
        {"{\"add_bos_token\":\"yes\"}", "tokenizer_config.json: the top.add_bos_token is not a boolean"},
        {"{", "tokenizer_config.json: line 1, column 1: it ends too early"},
    };
    vb_error err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(parse_changed("added_tokens", "[]", cases[i].config, &err), VB_BAD_CHECKPOINT);
        assert_string_equal(err.message, cases[i].message);
    }
    assert_int_equal(parse_changed("added_tokens", "[]", "{\"bos_token\":null,\"add_bos_token\":false}", &err), VB_OK);
}

/* What Oniguruma and PCRE2 read differently, and what no known tokenizer uses. */
TEST(patterns_that_mean_another_thing_to_pcre2_are_refused_by_name)
{
    static const struct {
        const char *pattern, *what;
    } cases[] = {
        {"\\\\w+", "\\w"},
        {"a\\\\b", "\\b"},
        {"\\\\h", "\\h"},
        {"\\\\R", "\\R"},
        {"(a)\\\\1", "\\1"},
        {"[a[b]]", "["},
        {"[[:alpha:]]", "["},
        {"[a&&b]", "&&"},
        {"[]a]", "]"},
        {"[\\\\s-a]", "-a"},
        {"[a-\\\\d]", "]"},
        {"[a-c-e]", "-e"},
        {"[\\\\w]", "\\w"},
        {"a{,3}", "{,3}"},
        {"a{1,3}+", "{1,3}+"},
        {"a{3}?", "{3}?"},
        {"(?i)a", "(?i)"},
        {"(?m:.)", "(?m:"},
        {"(?<n>a)", "(?<n"},
        {"(?i:st)", "(?i:st"},
        {"(?i:\\\\s)", "(?i:\\"},
        {"\\\\p{Hani}", "\\p{Hani}"},
        {"[\\\\P{Han}]", "\\P{Han}"},
        {"[a&&[b]c]", "]c"},
        {"[^a&&[b]]", "&&"},
        {"[&&[b]]", "&&"},
        {"[a&&[b&&[c]]]", "&&"},
        {"\\\\p{^Greek}", "\\p{^Greek}"},
        {"[\\\\P{L}]", "\\P{L}"},
        {"\\\\pL", "\\pL"},
        {"\\\\xe9", "\\xe9"},
        {"\\\\u12", "\\u12"},
        {"\\\\", "\\"},
        {"\\\\Z", "\\Z"},
        {"\\\\p{C}", "\\p{C}"},
        {"[\\\\p{Cn}]", "\\p{Cn}"},
        {"[a", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        vb_error err;
        char value[256], want[64];
        snprintf(value, sizeof value, "{'type':'Split','behavior':'Isolated','pattern':{'Regex':'%s'}}",
                 cases[i].pattern);
        snprintf(want, sizeof want, "\" uses %s, which is not implemented", cases[i].what);
        int rc = parse_changed("pre_tokenizer", value, NULL, &err);
        if (rc != VB_UNSUPPORTED || !strstr(err.message, want))
            fail_msg("%s gives %d \"%s\", wanted \"...%s\"", cases[i].pattern, rc, err.message, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_without_tokenizer_json_is_refused_by_what_it_has),
        cmocka_unit_test(a_file_that_is_wrong_or_not_implemented_is_told_in_one_sentence),
        cmocka_unit_test(text_that_is_not_json_is_told_with_its_line),
        cmocka_unit_test(a_wrong_config_is_refused),
        cmocka_unit_test(patterns_that_mean_another_thing_to_pcre2_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("tokenizer errors", tests, NULL, NULL);
}
