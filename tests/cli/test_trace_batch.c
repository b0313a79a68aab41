/* tests/cli/test_trace_batch.c -- `verbatim trace --prompts`: each sequence of a batch is traced as it is alone, and
 * the lists of a pass follow from its parts. Runs the program itself (argv[1], or ../verbatim beside this one) in the
 * repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/traces.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MODEL "golden/tiny/v3-mtp3"
#define SEQUENCES 5
#define SLOTS 200

/* Prompts without a common beginning: otherwise sequences share rows, which then no pass computes. */
static const char *const prompts[SEQUENCES] = {"14,6,7", "5,6,7,8,9,10,11,12,13,14,15", "40,41", "33",
                                               "70,9,33,2,90,17,18"};
static const char *const lengths[SEQUENCES] = {"27", "19", "28", "29", "23"};

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

#define COMMON "trace", MODEL, "--ignore-eos", "--threads", "1", "--json"

static int is_pass_of_target(const json_t *line) { return json_is_null(json_object_get(line, "depth")); }
static long long item(const json_t *object, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(object, key), i));
}

/* ---- a sequence of a batch, and alone ---- */

/* Whether a pass of the target verifies what the newest token begins. */
static int is_round(const json_t *pass)
{
    return json_array_size(json_object_get(pass, "chosen")) && integer(pass, "round") > 0;
}

/* The parts of a sequence that choose tokens, the first one left out: it ends the prompt. */
static json_t *rounds_of(const json_t *lines, long long sequence)
{
    json_t *rounds = json_array(), *line, *part;
    size_t i, p;
    json_array_foreach(lines, i, line)
        json_array_foreach(json_object_get(line, "parts"), p, part)
            if (integer(part, "sequence") == sequence && is_pass_of_target(part) &&
                json_array_size(json_object_get(part, "chosen")))
                json_array_append(rounds, part);
    json_array_remove(rounds, 0);
    return rounds;
}

static void compare_with_alone(const json_t *batch, const char *method, size_t sequence, const char *more)
{
    static const char *const keys[] = {"input_ids", "index", "positions", "draft", "parents", "context_length",
                                       "lm_head_indices", "chosen", "accepted"};
    json_t *alone = json_lines(RUN(COMMON, "--draft", method, "--tokens", prompts[sequence], "-n", lengths[sequence],
                                   more)),
           *line;
    const json_t *ours = json_array_get(json_object_get(last_line(batch), "sequences"), sequence),
                 *its = last_line(alone);
    if (strcmp(string(ours, "fingerprint"), string(its, "fingerprint")) != 0 ||
        !json_equal(json_object_get(ours, "tokens"), json_object_get(its, "tokens")))
        fail_msg("%s, sequence %zu: the batch computes other tokens or logits than a run alone", method, sequence);
    json_t *rounds = rounds_of(batch, (long long)sequence);
    size_t i, at = 0;
    json_array_foreach(alone, i, line) {
        if (json_object_get(line, "event") || !is_pass_of_target(line) || !is_round(line))
            continue;
        const json_t *part = json_array_get(rounds, at++);
        for (size_t k = 0; k < COUNT(keys); k++)
            if (!json_equal(json_object_get(part, keys[k]), json_object_get(line, keys[k])))
                fail_msg("%s, sequence %zu, round %lld alone: %s differs in the batch", method, sequence,
                         integer(line, "round"), keys[k]);
    }
    assert_int_equal(at, json_array_size(rounds));
    json_decref(rounds);
    json_decref(alone);
}

/* ---- the lists, and the slots ---- */

static void expect_list(const json_t *pass, const char *key, json_t *wanted)
{
    if (!json_equal(json_object_get(pass, key), wanted)) {
        char *is = json_dumps(json_object_get(pass, key), JSON_ENCODE_ANY), *want = json_dumps(wanted, JSON_ENCODE_ANY);
        fail_msg("round %lld: %s is %s, wanted %s", integer(pass, "round"), key, is, want);
    }
    json_decref(wanted);
}

/* Every row of a pass is a row of one of its parts, in their order. */
static void check_lists(const json_t *pass)
{
    static const char *const keys[] = {"input_ids", "index", "slots", "positions", "draft"};
    const json_t *parts = json_object_get(pass, "parts"), *part;
    json_t *q_lens = json_array(), *head = json_array(), *drafts = json_array(), *accepted = json_array(),
           *sequences = json_array();
    size_t p, row = 0;
    json_array_foreach(parts, p, part) {
        size_t n = json_array_size(json_object_get(part, "input_ids"));
        json_array_append_new(q_lens, json_integer((json_int_t)n));
        json_array_append(accepted, json_object_get(part, "accepted"));
        json_array_append(sequences, json_object_get(part, "sequence"));
        for (size_t i = 0; i < json_array_size(json_object_get(part, "lm_head_indices")); i++)
            json_array_append_new(head, json_integer(item(part, "lm_head_indices", i) + (json_int_t)row));
        for (size_t i = 0; i < n; i++, row++) {
            if (item(part, "draft", i) > 0)
                json_array_append_new(drafts, json_integer(item(part, "input_ids", i)));
            for (size_t k = 0; k < COUNT(keys); k++)
                assert_int_equal(item(pass, keys[k], row), item(part, keys[k], i));
        }
    }
    expect_list(pass, "q_lens", q_lens);
    expect_list(pass, "sequences", sequences);
    expect_list(pass, "lm_head_indices", head);
    if (is_pass_of_target(pass)) {
        expect_list(pass, "drafts", drafts);
        expect_list(pass, "accepted", accepted);
    } else {
        json_decref(drafts);
        json_decref(accepted);
    }
}

/* The rows of the pool, as the passes say: the sequence that holds the row, or -1; and its length. */
struct pool {
    long long holder[SLOTS], slot[SEQUENCES][SLOTS], length[SEQUENCES];
    int runs[SEQUENCES];
};

static void cut(struct pool *p, long long s, long long length)
{
    for (; p->length[s] > length; p->length[s]--)
        p->holder[p->slot[s][p->length[s] - 1]] = -1;
}

static int lists(const json_t *pass, const char *key, long long sequence)
{
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(pass, key), i, one)
        if (json_integer_value(one) == sequence)
            return 1;
    return 0;
}

/* Returns how many sequences were preempted. */
static size_t follow_pool(struct pool *p, const json_t *pass)
{
    const json_t *part, *c;
    size_t i, j, preempted = json_array_size(json_object_get(pass, "preempted"));
    for (long long s = 0; s < SEQUENCES; s++)
        if (lists(pass, "preempted", s)) {
            assert_true(p->runs[s]);
            cut(p, s, 0);
            p->runs[s] = 0;
        }
    json_array_foreach(json_object_get(pass, "parts"), i, part) {
        long long s = integer(part, "sequence");
        assert_int_equal(lists(pass, "started", s), !p->runs[s]);
        p->runs[s] = 1;
        for (j = 0; j < json_array_size(json_object_get(part, "slots")); j++) {
            long long slot = item(part, "slots", j);
            if (slot < 0 || slot >= SLOTS || p->holder[slot] >= 0 || item(part, "index", j) != p->length[s])
                fail_msg("round %lld: sequence %lld gets slot %lld, which sequence %lld holds, for row %lld after %lld "
                         "rows",
                         integer(pass, "round"), s, slot, slot >= 0 && slot < SLOTS ? p->holder[slot] : -1,
                         item(part, "index", j), p->length[s]);
            p->holder[slot] = s;
            p->slot[s][p->length[s]++] = slot;
        }
    }
    json_array_foreach(json_object_get(pass, "parts"), i, part)
        json_array_foreach(json_object_get(part, "cut"), j, c)
            if (json_is_null(json_object_get(c, "depth")))
                cut(p, integer(part, "sequence"), integer(c, "first"));
    for (long long s = 0; s < SEQUENCES; s++)
        if (lists(pass, "finished", s)) {
            cut(p, s, 0);
            p->runs[s] = 0;
        }
    return preempted;
}

static void check_passes(const json_t *lines)
{
    static struct pool p;
    const json_t *pass;
    size_t i, preempted = 0;
    memset(&p, 0, sizeof p);
    for (size_t slot = 0; slot < SLOTS; slot++)
        p.holder[slot] = -1;
    json_array_foreach(lines, i, pass) {
        if (json_object_get(pass, "event"))
            continue;
        check_lists(pass);
        preempted += is_pass_of_target(pass) ? follow_pool(&p, pass) : 0;
    }
    assert_int_equal(preempted, integer(last_line(lines), "preemptions"));
    for (size_t s = 0; s < SEQUENCES; s++)
        assert_int_equal(p.runs[s], 0);
}

/* A small cache, so that sequences are preempted; small chunks, so that prompts take several passes beside decoding
 * sequences. */
TEST(each_sequence_is_traced_as_it_is_alone)
{
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep", "none"};
    size_t preempted = 0, together = 0;
    for (size_t m = 0; m < COUNT(methods); m++) {
        const char *padded = m % 2 ? "--padded" : "--ignore-eos";
        json_t *lines = json_lines(RUN(COMMON, "--draft", methods[m], "--prompts", file, "--prefill-chunk", "4",
                                       "--cache-tokens", m ? "46" : "70", "--max-sequences", "4", padded)),
               *line;
        size_t i;
        check_passes(lines);
        for (size_t s = 0; s < SEQUENCES; s++)
            compare_with_alone(lines, methods[m], s, padded);
        preempted += (size_t)integer(last_line(lines), "preemptions");
        json_array_foreach(lines, i, line)
            together += json_array_size(json_object_get(line, "parts")) > 2;
        write_json_lines(path, lines);
        struct said s = RUN(COMMON, "--draft", methods[m], "--prompts", file, "--prefill-chunk", "4", "--cache-tokens",
                            m ? "46" : "70", "--max-sequences", "4", padded, "--against", path);
        expect_code(&s, 0);
        forget(&s);
        json_decref(lines);
    }
    print_message("%zu preemptions, %zu passes of more than two sequences\n", preempted, together);
    assert_true(preempted > 0 && together > 50);
}

/* ---- against another engine's log ---- */

#define SMALL COMMON, "--draft", "mtp-eagle", "--draft-tokens", "2", "--prompts", file

TEST(each_changed_list_is_found)
{
    static const char *const keys[] = {"round", "sequences", "q_lens", "context_lengths", "input_ids", "positions",
                                       "index", "lm_head_indices", "accepted", "drafts", "num_drafts", "tokens",
                                       "num_tokens"};
    json_t *lines = json_lines(RUN(SMALL));
    for (size_t k = 0; k < COUNT(keys); k++) {
        size_t at = 4 + k % 3;
        while (!is_pass_of_target(json_array_get(lines, at)) ||
               !json_array_size(json_object_get(json_array_get(lines, at), "drafts")))
            at++;
        json_t *pass = json_array_get(lines, at), *value = json_object_get(pass, keys[k]), *old = json_deep_copy(value);
        if (json_is_array(value))
            json_array_set_new(value, 0, json_integer(json_integer_value(json_array_get(value, 0)) ^ 1));
        else
            json_object_set_new(pass, keys[k], json_integer(json_integer_value(value) + 1));
        write_json_lines(path, lines);
        struct said s = RUN(SMALL, "--against", path);
        json_t *out = json_loads(s.out, 0, NULL), *d = json_object_get(out, "difference");
        expect_code(&s, 3);
        if (!d || strcmp(string(d, "key"), keys[k]) != 0 || integer(d, "line") != (long long)at + 1)
            fail_msg("wanted %s in line %zu, found %s", keys[k], at + 1, s.out);
        json_decref(out);
        forget(&s);
        json_object_set_new(pass, keys[k], old);
    }
    json_decref(lines);
}

/* Another engine may place rows elsewhere, but no two rows at the same place. */
TEST(slots_may_differ_but_not_collide)
{
    json_t *lines = json_lines(RUN(SMALL)), *pass;
    size_t i, at = 0;
    json_array_foreach(lines, i, pass) {
        json_t *slots = json_object_get(pass, "slots");
        for (size_t j = 0; j < json_array_size(slots); j++)
            json_array_set_new(slots, j, json_integer((json_integer_value(json_array_get(slots, j)) ^ 5) + 64));
        json_object_del(pass, "parts");
        at = !at && is_pass_of_target(pass) && json_array_size(slots) > 9 ? i : at;
    }
    write_json_lines(path, lines);
    struct said s = RUN(SMALL, "--against", path);
    expect_code(&s, 0);
    forget(&s);
    json_t *slots = json_object_get(json_array_get(lines, at), "slots");
    json_array_set(slots, 8, json_array_get(slots, 1)); /* rows of two sequences */
    write_json_lines(path, lines);
    s = RUN("trace", MODEL, "--ignore-eos", "--draft", "mtp-eagle", "--draft-tokens", "2", "--prompts", file,
            "--against", path);
    expect_code(&s, 3);
    assert_non_null(strstr(s.out, "(a slot of the log holds another row of a sequence)"));
    forget(&s);
    json_decref(lines);
}

static void reverse(json_t *list)
{
    for (size_t i = 1; i < json_array_size(list); i++) {
        json_t *one = json_incref(json_array_get(list, i));
        json_array_remove(list, i);
        json_array_insert_new(list, 0, one);
    }
}

/* Another engine may order the sequences of a batch in another way, if it says how. */
TEST(sequences_may_have_another_order)
{
    json_t *lines = json_lines(RUN(SMALL)), *pass;
    size_t i, reversed = 0;
    json_array_foreach(lines, i, pass) {
        json_t *parts = json_object_get(pass, "parts"), *part, *q_lens = json_array(), *sequences = json_array(),
               *positions = json_array();
        size_t p, row;
        reversed += json_array_size(parts) > 2;
        if (parts)
            reverse(parts);
        json_array_foreach(parts, p, part) {
            json_array_append_new(q_lens,
                                  json_integer((json_int_t)json_array_size(json_object_get(part, "positions"))));
            json_array_append(sequences, json_object_get(part, "sequence"));
            for (row = 0; row < json_array_size(json_object_get(part, "positions")); row++)
                json_array_append_new(positions, json_integer(item(part, "positions", row)));
        }
        json_array_set_new(lines, i,
                           json_pack("{s:O*,s:O*,s:o,s:o,s:o}", "event", json_object_get(pass, "event"), "pass",
                                     json_object_get(pass, "pass"), "q_lens", q_lens, "sequences", sequences,
                                     "positions", positions));
    }
    assert_true(reversed > 3);
    write_json_lines(path, lines);
    struct said s = RUN(SMALL, "--against", path);
    expect_code(&s, 0);
    forget(&s);
    json_decref(lines);
}

/* ---- the table, and what is refused ---- */

TEST(the_table_has_a_line_for_each_sequence)
{
    struct said s = RUN("trace", MODEL, "--ignore-eos", "--draft", "mtp-eagle", "--draft-tokens", "2", "--prompts",
                        file);
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "round  pass      seq  stage    input ids "));
    assert_non_null(strstr(s.out, "\n  q_lens 3 11 2 1 7; lm_head_indices 2 13 15 16 23; started 0 1 2 3 4\n"));
    assert_non_null(strstr(s.out, "; drafts 67 112 "));
    assert_non_null(strstr(s.out, "; finished 3"));
    forget(&s);
}

TEST(what_does_not_go_together_is_one_sentence)
{
    expect_failure(RUN("trace", MODEL, "--prompts", file, "--tokens", "5"), 2,
                   "--prompts and --tokens do not go together");
    expect_failure(RUN("trace", MODEL, "--tokens", "5", "--max-sequences", "2"), 2, "--max-sequences wants --prompts");
    expect_failure(RUN("trace", MODEL, "--prompts", "no/such/file"), 1, "no/such/file");
    write_text(folder, "bad.jsonl", "{\"tokens\": [5]}\n\n{\"tokens\": [999]}\n");
    char bad[96];
    snprintf(bad, sizeof bad, "%s/bad.jsonl", folder);
    expect_failure(RUN("trace", MODEL, "--prompts", bad), 2, "line 3: token 0 is 999");
    expect_failure(RUN("trace", MODEL, "--prompts", file, "--cache-tokens", "20"), 2, "line 1: a prompt of 3 tokens");
    write_text(folder, "log.jsonl", "{\"accepted\": 1}\n");
    expect_failure(RUN("trace", MODEL, "--prompts", file, "--against", path), 1, "accepted must be a list of integers");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sequence_is_traced_as_it_is_alone),
        cmocka_unit_test(each_changed_list_is_found),
        cmocka_unit_test(slots_may_differ_but_not_collide),
        cmocka_unit_test(sequences_may_have_another_order),
        cmocka_unit_test(the_table_has_a_line_for_each_sequence),
        cmocka_unit_test(what_does_not_go_together_is_one_sentence),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
