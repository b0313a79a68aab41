/* tests/cli/test_trace_against.c -- `verbatim trace --against LOG`: a log that says what the trace says agrees, and
 * each change of a number is found in its round. Runs the program itself (argv[1], or ../verbatim beside this one) in
 * the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/traces.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MODEL "golden/tiny/v3-mtp3", "--tokens", "14,6,7", "--ignore-eos", "--threads", "1"
#define DRAFTS "--draft", "mtp-eagle", "--draft-tokens", "2"

static char folder[64], path[96];

static int make_folder(void **unused)
{
    (void)unused;
    make_dir(folder);
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    return 0;
}

static int drop_folder(void **unused)
{
    (void)unused;
    remove_dir(folder);
    return 0;
}

static json_t *trace_lines(void) { return json_lines(RUN("trace", MODEL, DRAFTS, "-n", "8", "--json")); }

static void expect_agreement(const char *passes)
{
    struct said s = RUN("trace", MODEL, DRAFTS, "-n", "8", "--against", path);
    expect_code(&s, 0);
    if (strncmp(s.out, passes, strlen(passes)) != 0)
        fail_msg("wanted %s, found %s", passes, s.out);
    forget(&s);
}

/* What --json says of the first difference. A wrong slot shows at the latest where the right row has this slot, up to 2
 * lines later. */
static void expect_difference(const char *key, long long line, long long round)
{
    struct said s = RUN("trace", MODEL, DRAFTS, "-n", "8", "--against", path, "--json");
    json_t *out = json_loads(s.out, 0, NULL), *d = json_object_get(out, "difference");
    expect_code(&s, 3);
    long long later = strcmp(key, "slots") ? 0 : integer(d, "line") - line;
    if (!d || strcmp(string(d, "key"), key) != 0 || integer(d, "line") != line + later || later < 0 || later > 2 ||
        (!later && integer(d, "round") != round))
        fail_msg("wanted %s in line %lld, round %lld; found %s", key, line, round, s.out);
    json_decref(out);
    forget(&s);
}

/* Rows of padding get slot -1, as vLLM has it. */
static void pad_slots(json_t *lines)
{
    for (size_t i = 0; i < json_array_size(lines); i++) {
        json_t *pass = json_array_get(lines, i), *draft = json_object_get(pass, "draft");
        for (size_t k = 0; k < json_array_size(draft); k++)
            if (json_integer_value(json_array_get(draft, k)) < 0)
                json_array_set_new(json_object_get(pass, "slots"), k, json_integer(-1));
    }
}

TEST(its_own_lines_agree)
{
    static const char *const methods[][6] = {{"--draft", "none", "-n", "6", "--seed", "1"},
                                             {"--draft", "mtp-vanilla", "-n", "7", "--draft-tokens", "3"},
                                             {"--draft", "mtp-eagle", "-n", "8", "--as", "mindie"},
                                             {"--draft", "ngram", "-n", "12", "--ngram-min", "1"}};
    for (size_t i = 0; i < COUNT(methods); i++) {
        const char *const *m = methods[i];
        json_t *lines = json_lines(RUN("trace", MODEL, m[0], m[1], m[2], m[3], m[4], m[5], "--padded", "--json"));
        pad_slots(lines);
        write_json_lines(path, lines);
        struct said s = RUN("trace", MODEL, m[0], m[1], m[2], m[3], m[4], m[5], "--padded", "--against", path);
        expect_code(&s, 0);
        assert_non_null(strstr(s.out, " passes agree in round, pass"));
        forget(&s);
        json_decref(lines);
    }
}

/* The same log with fewer keys, with other slots, and with the passes of the target alone. */
TEST(a_log_may_say_less)
{
    static const char *const less[] = {"round", "pieces", "hidden", "parents", "cut", "cut_before", "hidden_kept",
                                       "index", "draft", "chosen", "module", "context_length"};
    json_t *lines = trace_lines(), *targets = json_array();
    for (size_t i = 1; i + 1 < json_array_size(lines); i++) {
        json_t *pass = json_array_get(lines, i), *slots = json_array(), *old = json_object_get(pass, "slots");
        for (size_t k = 0; k < COUNT(less); k++)
            json_object_del(pass, less[k]);
        for (size_t k = 0; k < json_array_size(old); k++) /* blocks of 4 in another order */
            json_array_append_new(slots, json_integer((json_integer_value(json_array_get(old, k)) / 4 ^ 3) * 4 +
                                                      json_integer_value(json_array_get(old, k)) % 4));
        json_object_set_new(pass, "slots", slots);
        if (!strcmp(string(pass, "pass"), "target"))
            json_array_append_new(targets, json_pack("{s:O,s:O}", "positions", json_object_get(pass, "positions"),
                                                     "accepted", json_object_get(pass, "accepted")));
    }
    write_json_lines(path, lines);
    expect_agreement("12 passes agree in pass, depth, accepted, input_ids, positions, slots, lm_head_indices\n");
    write_json_lines(path, targets);
    expect_agreement("5 passes agree in accepted, positions\n");
    write_text(folder, "log.jsonl",
               "\n{\"accepted\": 0, \"unknown\": {}}\n  \n{\"drafts\": [67, 112], \"tokens\": [38], \"depth\": "
               "null}\n");
    expect_agreement("2 passes agree in accepted, drafts, tokens\n");
    json_decref(lines);
    json_decref(targets);
}

TEST(a_log_may_be_longer)
{
    json_t *lines = json_lines(RUN("trace", MODEL, DRAFTS, "-n", "12", "--json"));
    json_array_remove(lines, json_array_size(lines) - 1);
    json_array_remove(lines, 0);
    size_t more = json_array_size(lines) - 12;
    char note[200];
    json_t *last = json_array_get(lines, 11); /* a run that ends sooner may verify fewer drafts */
    json_object_clear(last);
    json_object_set_new(last, "round", json_integer(4));
    write_json_lines(path, lines);
    struct said s = RUN("trace", MODEL, DRAFTS, "-n", "8", "--against", path);
    snprintf(note, sizeof note, "log.jsonl has %zu more passes than this run of 12", more);
    if (s.exit_code || !strstr(s.out, note))
        fail_msg("%s\nwanted %s", s.out, note);
    forget(&s);
    json_decref(lines);
}

TEST(each_changed_number_is_found)
{
    static const char *const keys[] = {"round", "depth", "accepted", "context_length", "input_ids", "index",
                                       "positions", "slots", "lm_head_indices"};
    json_t *lines = trace_lines();
    for (size_t i = 2; i + 1 < json_array_size(lines); i += 3)
        for (size_t k = 0; k < COUNT(keys); k++) {
            json_t *pass = json_array_get(lines, i), *value = json_object_get(pass, keys[k]),
                   *old = json_deep_copy(value);
            long long round = integer(pass, "round");
            if (json_is_null(value) || !value)
                continue;
            if (json_is_array(value))
                json_array_set_new(value, json_array_size(value) - 1,
                                   json_integer(json_integer_value(json_array_get(value, json_array_size(value) - 1)) ^
                                                1));
            else
                json_object_set_new(pass, keys[k], json_integer(json_integer_value(value) + 1));
            write_json_lines(path, lines);
            expect_difference(keys[k], (long long)i + 1, round);
            json_object_set_new(pass, keys[k], old);
        }
    json_t *pass = json_array_get(lines, 3);
    json_object_set_new(pass, "tokens", json_pack("[i]", 1));
    write_json_lines(path, lines);
    expect_difference("tokens", 4, integer(pass, "round"));
    json_decref(lines);
}

TEST(the_round_is_shown)
{
    write_text(folder, "log.jsonl", "{\"positions\": [0, 1, 2]}\n{\"positions\": [4, 5, 6]}\n");
    struct said s = RUN("trace", MODEL, DRAFTS, "-n", "8", "--against", path);
    expect_code(&s, 3);
    assert_non_null(strstr(s.out, "round 1, pass of the target: positions is [4, 5, 6] in line 2 of "));
    assert_non_null(strstr(s.out, ", and [3, 4, 5] here\n"));
    assert_non_null(strstr(s.out, "\n1      target "));
    assert_null(strstr(s.out, "\n2      target "));
    forget(&s);
}

TEST(a_log_that_cannot_be_read_is_one_sentence)
{
    static const struct { const char *text, *word;
    } bad[] = {
               {"", "no line has one of the keys"},
               {"{\"round\": 1}\n", "no line has one of the keys"},
               {"{}\n[1]\n", "line 2 is no JSON object"},
               {"{\"positions\": [0]\n", "line 1 is no JSON object"},
               {"{\"positions\": [0, \"1\"]}\n", "positions must be a list of integers"},
               {"{\"accepted\": [1]}\n", "accepted must be an integer"},
               {"{\"pass\": 1}\n", "pass must be \"target\" or \"module\""}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        write_text(folder, "log.jsonl", bad[i].text);
        expect_failure(RUN("trace", MODEL, DRAFTS, "-n", "2", "--against", path), 1, bad[i].word);
    }
    expect_failure(RUN("trace", MODEL, DRAFTS, "-n", "2", "--against", "no/such/log"), 1,
                   "no/such/log: cannot be read");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_own_lines_agree),
        cmocka_unit_test(a_log_may_say_less),
        cmocka_unit_test(a_log_may_be_longer),
        cmocka_unit_test(each_changed_number_is_found),
        cmocka_unit_test(the_round_is_shown),
        cmocka_unit_test(a_log_that_cannot_be_read_is_one_sentence),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
