/* tests/cli/test_trace_async.c -- `verbatim trace --schedule async`: the books of asynchronous schedulers follow from
 * the passes, and change no token. Runs the program itself (argv[1], or ../verbatim beside this one) in the
 * repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/traces.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MODEL "golden/tiny/v3-mtp3", "--ignore-eos", "--threads", "1"

static long long item(const json_t *pass, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(pass, key), i));
}
static size_t size(const json_t *pass, const char *key) { return json_array_size(json_object_get(pass, key)); }
static int is_pass_of_target(const json_t *line) { return json_is_null(json_object_get(line, "depth")); }

static void expect(const json_t *pass, const char *what, long long is, long long wanted)
{
    if (is != wanted)
        fail_msg("%s is %lld, wanted %lld: %s", what, is, wanted, json_dumps(pass, JSON_COMPACT));
}

/* The scheduler's knowledge of a sequence when it plans a round: all results except that of the round in flight,
 * `before`. */
struct known {
    long long prompt, drafts, produced; /* produced: output tokens, that of `before` included */
    const json_t *before;
    int loaded; /* the sequence begins with a round that decodes */
};

/* The counts of a round that decodes have closed forms. */
static void check_round(const struct known *k, const json_t *pass)
{
    const json_t *plan = json_object_get(pass, "async");
    long long first = item(pass, "index", 0), in_flight = (long long)size(k->before, "chosen");
    long long rejected = in_flight ? integer(json_object_get(k->before, "async"), "rejected") : 0;
    long long tokens = k->prompt + k->produced - in_flight, computed = first + rejected;
    expect(pass, "num_tokens", integer(plan, "num_tokens"), tokens);
    expect(pass, "num_computed_tokens", integer(plan, "num_computed_tokens"), computed);
    expect(pass, "num_output_placeholders", integer(plan, "num_output_placeholders"),
           in_flight ? 1 + computed - tokens : 0);
    expect(pass, "correction", integer(plan, "correction"), -rejected);
    expect(pass, "planned rows", (long long)size(plan, "planned_ids"), 1 + k->drafts);
    for (size_t i = 0; i < size(plan, "planned_ids"); i++) {
        expect(pass, "a planned id", item(plan, "planned_ids", i), !in_flight && !i ? item(pass, "input_ids", 0) : -1);
        expect(pass, "a planned position", item(plan, "planned_positions", i), computed + (long long)i);
    }
    expect(pass, "rejected", integer(plan, "rejected"), k->drafts - integer(pass, "accepted"));
    /* the committed rows: those of known results, and without drafts the row that is planned */
    expect(pass, "kv_committed_len", integer(plan, "kv_committed_len"),
           k->drafts ? tokens - (tokens > k->prompt || k->loaded) : computed + 1);
    if (integer(plan, "kv_allocated_len") < item(pass, "index", size(pass, "index") - 1) + 1 ||
        integer(plan, "reserved") < computed + 1 + k->drafts)
        expect(pass, "rows that nobody has reserved", 1, 0);
}

static void check_prompt(const json_t *pass)
{
    const json_t *plan = json_object_get(pass, "async");
    assert_true(json_equal(json_object_get(plan, "planned_ids"), json_object_get(pass, "input_ids")));
    assert_true(json_equal(json_object_get(plan, "planned_positions"), json_object_get(pass, "positions")));
    expect(pass, "rejected", integer(plan, "rejected"), 0);
}

/* Returns the number of plans in vain, 0 or 1. passes: those of the target, of one sequence. */
static size_t check_sequence(const json_t *passes, long long prompt, long long drafts)
{
    struct known k = {.prompt = prompt, .drafts = drafts};
    const json_t *pass, *after = NULL;
    size_t i;
    json_array_foreach(passes, i, pass) {
        k.loaded |= !k.before && item(pass, "draft", size(pass, "draft") - 1) > 0;
        if ((k.produced || k.loaded) && item(pass, "index", 0) == k.prompt + k.produced - 1)
            check_round(&k, pass);
        else
            check_prompt(pass);
        k.produced += (long long)size(pass, "chosen");
        k.before = pass;
        after = json_object_get(json_object_get(pass, "async"), "after");
        expect(pass, "num_tokens with the result", integer(after, "num_tokens"), k.prompt + k.produced);
    }
    /* at the end nothing is in flight: the books are those of a synchronous scheduler */
    expect(k.before, "num_computed_tokens at the end", integer(after, "num_computed_tokens"),
           k.prompt + k.produced - 1);
    expect(k.before, "num_output_placeholders at the end", integer(after, "num_output_placeholders"), 0);
    return json_object_get(json_object_get(k.before, "async"), "planned_in_vain") != NULL;
}


TEST(the_books_follow_from_the_passes)
{
    static const char *const methods[] = {"mtp-eagle", "mtp-vanilla", "eagle-reroll", "ngram", "none"},
                             *const K[] = {"1", "2", "5"}, *const n[] = {"12", "13", "14"};
    size_t in_vain = 0, runs = 0;
    for (size_t m = 0; m < COUNT(methods); m++)
        for (size_t i = 0; i < COUNT(K) && (i == 0 || m + 1 < COUNT(methods)); i++, runs++) {
            json_t *lines = json_lines(RUN("trace", MODEL, "--tokens", "14,6,7,80,9", "--prefill-chunk", "3", "-n",
                                           n[i], "--draft", methods[m], "--draft-tokens",
                                           m + 1 < COUNT(methods) ? K[i] : "0", "--schedule", "async", "--json"));
            json_t *sync = json_lines(RUN("trace", MODEL, "--tokens", "14,6,7,80,9", "--prefill-chunk", "3", "-n", n[i],
                                          "--draft", "none", "--json")),
                   *passes = json_array(), *line;
            size_t l;
            json_array_foreach(lines, l, line)
                if (json_object_get(line, "async"))
                    json_array_append(passes, line);
            in_vain += check_sequence(passes, 5, m + 1 < COUNT(methods) ? K[i][0] - '0' : 0);
            assert_string_equal(string(last_line(lines), "fingerprint"), string(last_line(sync), "fingerprint"));
            assert_true(json_equal(json_object_get(last_line(lines), "tokens"),
                                   json_object_get(last_line(sync), "tokens")));
            json_decref(passes);
            json_decref(sync);
            json_decref(lines);
        }
    print_message("%zu runs, %zu with a plan in vain\n", runs, in_vain);
    assert_true(in_vain > 0 && in_vain < runs);
}

TEST(the_context_may_end_the_sequence)
{
    json_t *lines = json_lines(RUN("trace", MODEL, "--tokens", "14,6,7,80,9", "--context", "17", "-n", "50", "--draft",
                                   "mtp-eagle", "--draft-tokens", "3", "--schedule", "async", "--json")),
           *passes = json_array(), *line;
    size_t i;
    json_array_foreach(lines, i, line)
        if (json_object_get(line, "async"))
            json_array_append(passes, line);
    assert_int_equal(json_array_size(json_object_get(last_line(lines), "tokens")), 12);
    check_sequence(passes, 5, 3);
    json_decref(passes);
    json_decref(lines);
}

/* The first token from place `from` on that does not occur before. */
static json_int_t new_token(const json_t *tokens, size_t from)
{
    for (size_t i = from;; i++) {
        json_int_t token = json_integer_value(json_array_get(tokens, i));
        size_t j = 0;
        assert_true(i < json_array_size(tokens));
        while (json_integer_value(json_array_get(tokens, j)) != token)
            j++;
        if (j == i)
            return token;
    }
}

/* golden/tiny/v3 in a directory of its own, with that end token. */
static void make_model_that_ends(const char *dir, json_int_t end)
{
    char path[200], *source = realpath("golden/tiny/v3", NULL);
    assert_non_null(source);
    assert_int_equal(mkdir(dir, 0700), 0);
    json_t *config = json_pack("{s:I}", "eos_token_id", end);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    for (int i = 0; i < 2; i++) {
        char target[4200];
        snprintf(target, sizeof target, "%s/%s", source, i ? "config.json" : "model.safetensors");
        snprintf(path, sizeof path, "%s/%s", dir, i ? "config.json" : "model.safetensors");
        assert_int_equal(symlink(target, path), 0);
    }
    free(source);
}

/* An end token is known one round too late. */
TEST(an_end_token_leaves_a_plan_in_vain)
{
    char dir[64], model[80];
    json_t *all = JSON("generate", "golden/tiny/v3", "--tokens", "5,6,7", "--ignore-eos", "-n", "200");
    make_dir(dir);
    snprintf(model, sizeof model, "%s/model", dir);
    make_model_that_ends(model, new_token(json_object_get(all, "tokens"), 9));
    json_t *j = JSON("generate", model, "--tokens", "5,6,7", "--threads", "1", "-n", "200", "--draft", "none");
    json_t *lines = json_lines(RUN("trace", model, "--tokens", "5,6,7", "--threads", "1", "-n", "200", "--draft",
                                   "none", "--schedule", "async", "--json"));
    assert_string_equal(string(last_line(lines), "finish_reason"), "stop");
    assert_string_equal(string(last_line(lines), "fingerprint"), string(j, "fingerprint"));
    assert_non_null(json_object_get(json_object_get(json_array_get(lines, json_array_size(lines) - 2), "async"),
                                    "planned_in_vain"));
    json_decref(all);
    json_decref(j);
    json_decref(lines);
    remove_dir(model);
    remove_dir(dir);
}

/* A session that was saved after decoding begins with a round that verifies drafts. */
TEST(a_loaded_session_has_a_book)
{
    char folder[64], file[96];
    make_dir(folder);
    snprintf(file, sizeof file, "%s/a.session", folder);
    json_t *saved = JSON("generate", MODEL, "--tokens", "14,6,7", "-n", "4", "--draft", "mtp-eagle", "--draft-tokens",
                         "2", "--save-session", file);
    json_t *lines = json_lines(RUN("trace", MODEL, "--session", file, "-n", "12", "--draft", "mtp-eagle",
                                   "--draft-tokens", "2", "--schedule", "async", "--json"));
    json_t *passes = json_array(), *line;
    size_t i;
    json_array_foreach(lines, i, line)
        if (json_object_get(line, "async"))
            json_array_append(passes, line);
    assert_true(item(json_array_get(passes, 0), "draft", 1) > 0);
    check_sequence(passes, 7, 2);
    json_decref(passes);
    json_decref(lines);
    json_decref(saved);
    remove_dir(folder);
}

/* The sequences of a batch each have a book, and a sequence that is preempted begins a new one. */
TEST(each_sequence_of_a_batch_has_a_book)
{
    static const long long prompt[] = {3, 7, 2};
    char folder[64], file[96];
    make_dir(folder);
    write_text(folder, "p.jsonl",
               "{\"tokens\": [14,6,7], \"max_tokens\": 20}\n{\"tokens\": [5,6,7,8,9,10,11], \"max_tokens\": "
               "20}\n{\"tokens\": [40,41], \"draft\": \"mtp-vanilla\", \"draft_tokens\": 3}\n");
    snprintf(file, sizeof file, "%s/p.jsonl", folder);
    json_t *lines = json_lines(RUN("trace", MODEL, "--prompts", file, "--cache-tokens", "46", "--prefill-chunk", "5",
                                   "--draft", "mtp-eagle", "--draft-tokens", "2", "--schedule", "async", "--json"));
    assert_true(integer(last_line(lines), "preemptions") > 0);
    for (long long s = 0; s < 3; s++) {
        json_t *passes = json_array(), *line, *part;
        size_t i, p;
        json_array_foreach(lines, i, line)
            json_array_foreach(json_object_get(line, "parts"), p, part)
                if (is_pass_of_target(part) && integer(part, "sequence") == s)
                    json_array_append(passes, part);
        check_sequence(passes, prompt[s], s == 2 ? 3 : 2);
        json_decref(passes);
    }
    json_decref(lines);
    remove_dir(folder);
}

/* Logs of another engine may have its books: each changed number is found, and without --schedule async they are not
 * compared. */
TEST(books_are_compared_with_a_log)
{
#define DRAFTS "--tokens", "14,6,7", "-n", "9", "--draft", "mtp-eagle", "--draft-tokens", "2"
    static const char *const keys[] = {"planned_ids", "planned_positions", "num_computed_tokens",
                                       "num_output_placeholders", "rejected", "kv_committed_len", "kv_allocated_len"};
    char folder[64], file[96], text[400];
    make_dir(folder);
    snprintf(file, sizeof file, "%s/log.jsonl", folder);
    json_t *lines = json_lines(RUN("trace", MODEL, DRAFTS, "--schedule", "async", "--json")), *plans = json_array(),
           *line;
    size_t i;
    json_array_foreach(lines, i, line)
        if (json_object_get(line, "async"))
            json_array_append(plans, json_object_get(line, "async"));
    for (size_t k = 0; k < COUNT(keys); k++)
        for (int wrong = 0; wrong < 2; wrong++) {
            json_t *values[3];
            for (size_t v = 0; v < 3; v++)
                values[v] = json_deep_copy(json_object_get(json_array_get(plans, v), keys[k]));
            if (wrong && json_is_array(values[2]))
                json_array_set_new(values[2], 0, json_integer(77));
            else if (wrong)
                json_integer_set(values[2], json_integer_value(values[2]) + 1);
            for (size_t v = 0, at = 0; v < 3; v++) {
                char *shown = json_dumps(values[v], JSON_ENCODE_ANY);
                at += (size_t)snprintf(text + at, sizeof text - at, "{\"%s\": %s, \"accepted\": %s}\n", keys[k], shown,
                                       v == 2 ? "1" : "0");
                free(shown);
                json_decref(values[v]);
            }
            write_text(folder, "log.jsonl", text);
            struct said s = RUN("trace", MODEL, DRAFTS, "--schedule", "async", "--against", file);
            if (s.exit_code != (wrong ? 3 : 0) || (wrong && !strstr(s.out, keys[k])))
                fail_msg("%s%s: %s", keys[k], wrong ? " changed" : "", s.out);
            forget(&s);
            s = RUN("trace", MODEL, DRAFTS, "--against", file);
            expect_code(&s, 0);
            forget(&s);
        }
    json_decref(plans);
    json_decref(lines);
    remove_dir(folder);
}

TEST(the_table_and_what_is_refused)
{
    struct said s = RUN("trace", MODEL, "--tokens", "14,6,7", "-n", "12", "--draft", "mtp-eagle", "--draft-tokens", "2",
                        "--schedule", "async");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "\nround    planned ids  planned   positions "));
    assert_non_null(strstr(s.out, "\n2        -1 -1 -1     6 7 8     4 5 6  "));
    assert_non_null(strstr(s.out, "\nin vain               15 16 17\n"));
    forget(&s);
    expect_failure(RUN("trace", MODEL, "--tokens", "14", "--schedule", "soon"), 2,
                   "--schedule is soon, wanted sync or async");
    expect_failure(RUN("trace", MODEL, "--tokens", "14", "--schedule", "async", "--draft-tokens", "auto"), 2,
                   "not with --draft-tokens auto");
    expect_failure(RUN("trace", MODEL, "--tokens", "14", "--schedule", "async", "--draft-topk", "2"), 2,
                   "not with --draft-topk");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_books_follow_from_the_passes),
        cmocka_unit_test(the_context_may_end_the_sequence),
        cmocka_unit_test(an_end_token_leaves_a_plan_in_vain),
        cmocka_unit_test(a_loaded_session_has_a_book),
        cmocka_unit_test(each_sequence_of_a_batch_has_a_book),
        cmocka_unit_test(books_are_compared_with_a_log),
        cmocka_unit_test(the_table_and_what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
