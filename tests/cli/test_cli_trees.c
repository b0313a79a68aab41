/* tests/cli/test_cli_trees.c -- the `verbatim` command with trees of drafts, and with published heads. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define V3 "golden/tiny/v3"
#define PROMPT V3, "--tokens", "5,6,7"

static const struct method {
    const char *name, *head;
} methods[] = {{"mtp-eagle", NULL}, {"eagle", "golden/eagle/eagle1-v3"}, {"eagle3", "golden/eagle/eagle3-v3"}};

#define METHOD(m) "--draft", (m).name, (m).head ? "--draft-model" : "--threads", (m).head ? (m).head : "1"
#define TREE "--draft-tokens", "4", "--draft-topk", "3", "--draft-nodes", "20"

static long long at(const json_t *array, size_t i) { return json_integer_value(json_array_get(array, i)); }

static void check_tree(const json_t *j, size_t nodes)
{
    const json_t *parents = json_object_get(j, "parents"), *confidences = json_object_get(j, "confidences");
    expect_keys((json_t *)(uintptr_t)j, "next:i drafts:a parents:a confidences:a");
    assert_int_equal(json_array_size(json_object_get(j, "drafts")), nodes);
    for (size_t i = 0; i < nodes; i++) {
        assert_in_range(at(parents, i), 0, i);
        assert_true(!i || json_real_value(json_array_get(confidences, i)) <=
                              json_real_value(json_array_get(confidences, i - 1)));
    }
}

TEST(trees_are_drafted_wherever_a_method_is)
{
    json_t *plain = JSON("generate", PROMPT, "-n", "20", "--ignore-eos");
    for (size_t m = 0; m < COUNT(methods); m++) {
        json_t *j = JSON("generate", PROMPT, "-n", "20", "--ignore-eos", METHOD(methods[m]), TREE),
               *stats = json_object_get(j, "stats");
        size_t rows = 0, i;
        json_t *row;
        assert_int_equal(json_integer_value(json_object_get(j, "draft_topk")), 3);
        assert_true(json_integer_value(json_object_get(stats, "drafted")) > 100);
        assert_string_equal(json_string_value(json_object_get(j, "fingerprint")),
                            json_string_value(json_object_get(plain, "fingerprint")));
        json_decref(j);
        j = JSON("draft", PROMPT, METHOD(methods[m]), TREE);
        check_tree(j, 20);
        json_decref(j);
        j = JSON("verify", PROMPT, "-n", "8", "--draft-topk", "4", "--draft-tokens", "5", METHOD(methods[m]), "--isa",
                 "scalar", "--prefill-chunk", "7");
        assert_true(json_is_true(json_object_get(j, "equal")));
        json_array_foreach(json_object_get(j, "rows"), i, row)
            rows += json_integer_value(json_object_get(row, "draft_topk")) == 4;
        assert_true(rows > 0);
        json_decref(j);
    }
    json_decref(plain);
}

/* A trace's rows and the manifest's say which draft each one follows, and the manifest which were accepted. */
TEST(traces_and_manifests_tell_of_nodes)
{
    char dir[64], path[128];
    size_t drafts = 0, branches = 0, accepted = 0;
    struct said s = RUN("trace", PROMPT, "-n", "9", "--ignore-eos", "--draft-topk", "3", "--draft-tokens", "3",
                        "--json");
    expect_code(&s, 0);
    for (char *line = strtok(s.out, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *pass = json_loads(line, 0, NULL), *draft = json_object_get(pass, "draft"),
               *parents = json_object_get(pass, "parents");
        for (size_t i = 0; i < json_array_size(draft) && json_is_null(json_object_get(pass, "depth")); i++) {
            drafts += at(draft, i) > 0;
            assert_true(at(draft, i) ? at(parents, i) < at(draft, i) : at(parents, i) == 0);
            branches += at(draft, i) > 0 && at(parents, i) != at(draft, i) - 1;
        }
        json_decref(pass);
    }
    forget(&s);
    assert_true(drafts > 20 && branches > 10);

    make_dir(dir);
    snprintf(path, sizeof path, "%s/taps.safetensors", dir);
    s = RUN("dump", PROMPT, "-n", "25", "--ignore-eos", "--draft", "mtp-eagle", "--draft-topk", "4", "--draft-tokens",
            "4", "-o", path, "--taps", "model.norm.output");
    expect_code(&s, 0);
    forget(&s);
    snprintf(path, sizeof path, "%s/taps.jsonl", dir);
    FILE *f = fopen(path, "r");
    static char line[65536];
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *tap = json_loads(line, 0, NULL), *draft = json_object_get(tap, "draft"),
               *stood = json_object_get(tap, "accepted");
        const json_t *parent = json_object_get(tap, "parent"), *index = json_object_get(tap, "index");
        int64_t last = 0, last_index = 0;
        for (size_t i = 0; i < json_array_size(draft); i++) {
            if (json_is_true(json_array_get(stood, i))) { /* a path: each follows the one before */
                assert_int_equal(at(parent, i), last);
                assert_int_equal(at(index, i), last_index + 1);
                accepted++;
                last = at(draft, i);
            }
            if (!at(draft, i) || json_is_true(json_array_get(stood, i)))
                last_index = at(index, i);
        }
        json_decref(tap);
    }
    fclose(f);
    assert_true(accepted > 8);
    remove_dir(dir);
}

TEST(what_contradicts_itself_is_refused)
{
    static const char *const cases[][8] = {
        {"--draft-topk is of a draft method", "--draft-topk", "3"},
        {"--draft-nodes is of a draft method", "--draft", "none", "--draft-nodes", "3"},
        {"ngram drafts chains", "--draft", "ngram", "--draft-topk", "3"},
        {"wanted an integer from 1 to 16", "--draft", "mtp-eagle", "--draft-topk", "17"},
        {"wanted an integer from 1 to 64", "--draft", "mtp-eagle", "--draft-topk", "2", "--draft-nodes", "65"},
        {"draft nodes is 2, wanted 3", "--draft", "mtp-eagle", "--draft-topk", "2", "--draft-tokens=3",
         "--draft-nodes=2"},
        {"--draft-nodes is of trees", "--draft", "mtp-eagle", "--draft-nodes", "8"},
        {"auto is of chains", "--draft", "mtp-eagle", "--draft-topk", "2", "--draft-tokens", "auto"},
        {"padded passes are of chains", "--draft", "mtp-eagle", "--draft-topk", "2", "--padded"},
        {"acceptance rejection is of chains", "--draft", "mtp-eagle", "--draft-topk", "2", "--acceptance", "rejection"},
        {"is an EAGLE-1 head, draft method eagle3 wants the other kind", "--draft", "eagle3", "--draft-model",
         "golden/eagle/eagle1-v3"},
        {"the weights of eagle are used as stored", "--draft", "eagle", "--draft-model", "golden/eagle/eagle1-v3",
         "--draft-precision", "bf16"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *const *c = cases[i];
        const char *arguments[] = {verbatim, "generate", PROMPT, c[1], c[2], c[3], c[4], c[5], c[6], c[7], NULL};
        expect_failure(run_to(PIPE, arguments), 2, c[0]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_drafted_wherever_a_method_is),
        cmocka_unit_test(traces_and_manifests_tell_of_nodes),
        cmocka_unit_test(what_contradicts_itself_is_refused),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
