/* tests/cli/test_cli_verify.c -- `verbatim draft` and `verbatim verify`, from outside: what is proposed, which settings
 * are compared, and what is said of them. */
#include "tests/support/methods.h"
#include "tests/support/cli.h"

TEST(draft_proposes_what_the_specification_does)
{
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle"};
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        json_t *truth = golden_json(checkpoints[i]), *cases = json_object_get(truth, "drafts");
        int32_t prompt[128];
        char dir[64], spec[1024];
        read_tokens(json_object_get(truth, "tokens"), prompt);
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        for (size_t m = 0; m < COUNT(methods) && modules[i]; m++) {
            json_t *wanted = json_array_get(cases, 5 + m),
                   *drafts = json_object_get(json_object_get(wanted, methods[m]), "drafts");
            sprintf(spec, "%d", prompt[0]);
            write_ids(spec + strlen(spec), "", prompt + 1, (size_t)integer(wanted, "n") - 1);
            json_t *j = JSON("draft", dir, "--tokens", spec, "--draft", methods[m], "--draft-tokens", "6");
            expect_keys(j, "next:i drafts:a");
            expect_same(j, wanted, "next", spec);
            if (!json_equal(json_object_get(j, "drafts"), drafts))
                fail_msg("%s %s after %s: %s", dir, methods[m], spec, json_dumps(j, 0));
            json_decref(j);
        }
        json_decref(truth);
    }
    json_t *j = JSON("draft", V3, "--tokens", "5,6", "--draft", "mtp-eagle", "--draft-tokens", "0");
    assert_int_equal(json_array_size(json_object_get(j, "drafts")), 0);
    json_decref(j);
    struct said s = RUN("draft", V3, "--tokens", "5,6", "--draft", "mtp-eagle", "--draft-tokens", "2");
    expect_code(&s, 0);
    assert_true(s.err_size == 0 && s.out_size > 0 && is_plain_text(s.out, s.out_size));
    forget(&s);
}

/* The rows with these values; NULL and -1: any. */
static int count_rows(const json_t *rows, const char *draft, int K, int threads, int chunk, const char *isa)
{
    size_t i;
    json_t *r;
    int n = 0;
    json_array_foreach((json_t *)(uintptr_t)rows, i, r)
        n += (!draft || !strcmp(string(r, "draft"), draft)) && (K < 0 || integer(r, "draft_tokens") == K) &&
             (threads < 0 || integer(r, "threads") == threads) && (chunk < 0 || integer(r, "chunk") == chunk) &&
             (!isa || !strcmp(string(r, "isa"), isa));
    return n;
}

static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};

/* Instruction sets that `generate` takes here; the mask of those. */
static int isas_of_this_machine(void)
{
    int mask = 0;
    for (size_t i = 0; i < COUNT(isas); i++) {
        struct said s = RUN("generate", V3, "--tokens", "5", "-n", "1", "--isa", isas[i]);
        if (s.exit_code != 2)
            expect_code(&s, 0);
        mask |= (s.exit_code == 0) << i;
        forget(&s);
    }
    assert_true(mask & 1);
    return mask;
}

TEST(verify_varies_each_setting_alone_and_then_eight_combinations)
{
    struct methods methods = methods_for(NULL, OF_THE_MODEL);
    size_t rows_of_methods = 6 * methods.count; /* five lengths, and auto */
    static const int lengths[] = {1, 2, 3, 7, 15}, chunks[] = {1, 7, 64};
    int here = isas_of_this_machine(), other_isas = 0, other_threads = 0;
    json_t *plain = JSON("generate", V3, "--tokens", "5,6,7,8,9,10,11,12", "-n", "12");
    json_t *j = JSON("verify", V3, "--tokens", "5,6,7,8,9,10,11,12", "-n", "12"), *rows = json_object_get(j, "rows"),
           *r;
    expect_keys(j, "equal:b prefill:s compared_with:s rows:a");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_t *first = json_array_get(rows, 0);
    const char *isa = string(first, "isa");
    int threads = (int)integer(first, "threads"), chunk = (int)integer(first, "chunk");
    assert_string_equal(string(first, "draft"), "none");
    assert_int_equal(integer(first, "draft_tokens"), 0);
    assert_int_equal(chunk, 512);
    size_t i;
    json_array_foreach(rows, i, r) {
        expect_keys(r, "draft:s gpu_layers:i draft_tokens:i auto:b draft_topk:i threads:i chunk:i isa:s fingerprint:s "
                       "equal:b first_difference:n stats:o");
        expect_keys(json_object_get(r, "stats"), STATS_KEYS);
        assert_int_equal(json_array_size(json_object_get(json_object_get(r, "stats"), "accepted_by_depth")),
                         integer(r, "draft_tokens"));
        assert_true(json_is_true(json_object_get(r, "equal")));
        expect_same(r, plain, "fingerprint", "verify");
    }
    for (size_t m = 0; m < methods.count; m++)
        for (size_t k = 0; k < COUNT(lengths); k++)
            if (!count_rows(rows, methods.name[m], lengths[k], threads, chunk, isa))
                fail_msg("no row for %s with K = %d", methods.name[m], lengths[k]);
    for (size_t k = 0; k < COUNT(chunks); k++)
        if (!count_rows(rows, "none", 0, threads, chunks[k], isa))
            fail_msg("no row for chunk %d", chunks[k]);
    for (size_t k = 0; k < COUNT(isas); k++) {
        int listed = count_rows(rows, "none", 0, threads, chunk, isas[k]);
        if (!listed != !(here >> k & 1))
            fail_msg("%s: %d rows", isas[k], listed);
        other_isas += (here >> k & 1) && strcmp(isas[k], isa);
    }
    for (int t = 1; t <= 3; t++)
        other_threads += t != threads && count_rows(rows, "none", 0, t, chunk, isa) > 0;
    assert_true(other_threads >= 2);
    int trees = 0;
    json_array_foreach(rows, i, r)
        trees += i < 1 + rows_of_methods + 2 && integer(r, "draft_topk") > 1 &&
                 !strcmp(string(r, "draft"), "mtp-eagle");
    assert_int_equal(trees, 2);
    assert_int_equal(json_array_size(rows), 1 + rows_of_methods + 2 + other_threads + 3 + other_isas + 8);
    json_decref(j);
    json_decref(plain);
}

/* The number of methods that draft from the text alone. */
static size_t methods_of_the_text(void)
{
    return methods_for(NULL, OF_THE_MODEL).count - methods_for(NULL, OF_MODULES).count;
}

TEST(a_draft_model_drafts_wherever_a_method_does)
{
    json_t *plain = JSON("generate", V3, "--tokens", "5,6,7", "-n", "20", "--ignore-eos");
    json_t *j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "20", "--ignore-eos", "--draft", "draft-model",
                     "--draft-model", V3),
           *stats;
    expect_same(plain, j, "fingerprint", "draft-model");
    expect_draft(j, "draft-model", 3, 3);
    j = JSON("generate", V3, "--tokens", "5,6,7", "-n", "20", "--ignore-eos", "--draft", "draft-model", "--draft-model",
             V3);
    stats = json_object_get(j, "stats");
    assert_true(integer(stats, "drafted") > 10 && integer(stats, "accepted") == integer(stats, "drafted"));
    assert_true(integer(stats, "draft_memory_bytes") > 1000 && real(stats, "draft_seconds") > 0);
    json_decref(j);
    j = JSON("draft", V3, "--tokens", "5,6,7", "--draft", "draft-model", "--draft-model", V3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(token_at(json_object_get(j, "drafts"), i), token_at(json_object_get(plain, "tokens"), i + 1));
    json_decref(j);
    j = JSON("verify", TINY "moonlight", "--tokens", "5,6,7", "-n", "8", "--draft-model", TINY "moonlight",
             "--draft-precision", "bf16", "--threads", "1", "--isa", "scalar", "--prefill-chunk", "7");
    assert_true(json_is_true(json_object_get(j, "equal")));
    assert_int_equal(count_rows(json_object_get(j, "rows"), "draft-model", 15, -1, -1, NULL) > 0, 1);
    assert_int_equal(json_array_size(json_object_get(j, "rows")), 1 + 6 * (1 + methods_of_the_text()) + 8);
    json_decref(j);
    json_decref(plain);
}

TEST(verify_keeps_to_what_the_command_line_fixes)
{
    int here = isas_of_this_machine(), sets = 0;
    json_t *j = JSON("verify", V3, "--tokens", "5,6", "-n", "3", "--draft", "mtp-eagle", "--draft-tokens", "3",
                     "--threads", "2", "--isa", "scalar", "--temperature", "1");
    json_t *rows = json_object_get(j, "rows");
    int all = (int)json_array_size(rows);
    assert_int_equal(all, 1 + 1 + 2 + 3 + 8); /* plain, eagle, trees of it, three other chunks, combinations */
    assert_int_equal(count_rows(rows, NULL, -1, 2, -1, "scalar"), all);
    assert_int_equal(count_rows(rows, "none", 0, -1, -1, NULL) + count_rows(rows, "mtp-eagle", 3, -1, -1, NULL), all);
    json_decref(j);
    j = JSON("verify", V3, "--tokens", "5,6", "-n", "3", "--draft", "none", "--threads", "1", "--all");
    for (size_t k = 0; k < COUNT(isas); k++)
        sets += here >> k & 1;
    assert_int_equal(json_array_size(json_object_get(j, "rows")), 4 * sets);
    json_decref(j);
    j = JSON("verify", V3, "--tokens", "5,6", "-n", "3", "--draft-tokens", "2", "--threads", "1", "--isa", "scalar",
             "--all");
    assert_int_equal(json_array_size(json_object_get(j, "rows")),
                     (1 + methods_for(NULL, OF_THE_MODEL).count + 2) * 4);
    json_decref(j);
    j = JSON("verify", V3, "--tokens", "5,6", "-n", "0", "--draft", "none", "--threads", "1");
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
}

TEST(verify_says_identical_for_every_checkpoint)
{
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        char dir[64];
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        struct said s = RUN("verify", dir, "--tokens", "5,6,7,8,9,10,11,12,13", "-n", "10", "--ignore-eos", "--seed",
                            "3", "--threads", i ? "1" : "2", "--temperature", i % 2 ? "0.7" : "0");
        expect_code(&s, 0);
        if (s.err_size || !is_plain_text(s.out, s.out_size) || !strstr(s.out, "identical"))
            fail_msg("%s: %s%s", dir, s.out, s.err);
        if (!modules[i] != !strstr(s.out, "mtp-"))
            fail_msg("%s: %d modules, but %s", dir, modules[i], s.out);
        forget(&s);
    }
}

TEST(verify_says_identical_in_bf16_and_generate_what_it_is)
{
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        char dir[64];
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        json_t *j = JSON("verify", dir, "--tokens", "5,6,7,8,9,10,11,12,13", "-n", "10", "--ignore-eos", "--precision",
                         "bf16");
        assert_true(json_is_true(json_object_get(j, "equal")));
        json_t *row = json_array_get(json_object_get(j, "rows"), 0);
        json_t *g = JSON("generate", dir, "--tokens", "5,6,7,8,9,10,11,12,13", "-n", "10", "--ignore-eos",
                         "--precision", "bf16");
        json_t *f32 = JSON("generate", dir, "--tokens", "5,6,7,8,9,10,11,12,13", "-n", "10", "--ignore-eos");
        expect_same(row, g, "fingerprint", dir);
        assert_false(json_equal(json_object_get(g, "fingerprint"), json_object_get(f32, "fingerprint")));
        json_decref(j);
        json_decref(g);
        json_decref(f32);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft_proposes_what_the_specification_does),
        cmocka_unit_test(verify_varies_each_setting_alone_and_then_eight_combinations),
        cmocka_unit_test(a_draft_model_drafts_wherever_a_method_does),
        cmocka_unit_test(verify_keeps_to_what_the_command_line_fixes),
        cmocka_unit_test(verify_says_identical_for_every_checkpoint),
        cmocka_unit_test(verify_says_identical_in_bf16_and_generate_what_it_is),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
