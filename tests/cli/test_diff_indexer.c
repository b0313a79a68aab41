/* tests/cli/test_diff_indexer.c -- `verbatim diff --local` judges the operators of the indexer of sparse attention:
 * what is right is within its bounds, and each mistake is named where it is made. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define LONGER "5,6,7,70,9,33,17,2,88,41,3,99,54,120,77,11,63,28,90,14"
#define KEPT "model.layers.1.self_attn.indexer.kept"
#define SCORES "model.layers.1.self_attn.indexer.scores"
#define TOKENS_IN_ALL 20
#define TOPK 8 /* of the tiny checkpoint glm5 */

/* The operators of indexers that are wrong, without layers, each once, in the order of computation. Releases j. */
static void expect_wrong(const char *case_name, json_t *j, const char *wanted)
{
    char told[256] = "";
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(json_object_get(j, "local_a"), "operators"), i, o) {
        char name[64];
        snprintf(name, sizeof name, "%.60s ", string(o, "operator"));
        assert_string_not_equal(string(o, "verdict"), "not judged");
        if (!strcmp(string(o, "verdict"), "structural") && !strstr(told, name))
            snprintf(told + strlen(told), sizeof told - strlen(told), "%s", name);
    }
    if (strcmp(told, wanted))
        fail_msg("%s: wrong are %s, expected %s", case_name, told, wanted);
    json_decref(j);
}

/* The engine's values, the reference's, and those of the engine that BF16 rounds, are right in both models. */
TEST(the_indexers_operators_are_within_their_bounds)
{
    static const char *const models[] = {TINY "v32", TINY "glm5"}, *const precisions[] = {"--precision=f32",
                                                                                          "--precision=bf16"};
    for (size_t m = 0; m < COUNT(models); m++)
        for (size_t p = 0; p < COUNT(precisions); p++) {
            DUMP(a, models[m], "--tokens", LONGER, "--taps=*,*.indexer.scores", precisions[p]);
            expect_wrong(models[m], DIFF(0, a, models[m], "--local", "--reference", precisions[p]), "");
            DUMP(b, models[m], "--tokens", LONGER, precisions[p]); /* without scores, the choice is judged together with
                                                                      them */
            expect_wrong(models[m], DIFF(0, b, models[m], "--local", "--reference", precisions[p]), "");
        }
}

/* What other programs do is a mistake here. The dump is computed with the convention, and judged without it. */
TEST(a_mistake_in_the_indexer_is_named_where_it_is_made)
{
    static const struct { const char *convention, *wrong; } cases[] = {
        {"--convention=indexer-rope=halves", "indexer-rope-k indexer-rope-q "}, /* glm5 has pairs */
        {"--convention=indexer-codes=fp8", "indexer-weights indexer-scores "},  /* other vectors have other scales */
        {"--convention=indexer-codes=hadamard", "indexer-weights indexer-scores "},
        {"--convention=indexer-weights=bf16", "indexer-weights_proj indexer-weights "},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        DUMP(a, TINY "glm5", "--tokens", LONGER, "--taps=*,*.indexer.scores", cases[i].convention);
        expect_wrong(cases[i].convention, DIFF(3, a, TINY "glm5", "--local"), cases[i].wrong);
        expect_wrong(cases[i].convention, DIFF(0, a, TINY "glm5", "--local", cases[i].convention), "");
    }
}

/* Exchanges the kept token with the lowest score of the last row for the best other one, and lowers the other's score
 * to that of the kept one minus `part` of its size. */
static void exchange(const char *path, float part)
{
    struct edited e = edit(path);
    size_t n, worst = 0, best = TOKENS_IN_ALL;
    float *c = floats(&e, SCORES, &n) + (TOKENS_IN_ALL - 1) * TOKENS_IN_ALL;
    int32_t *kept = (int32_t *)golden_data(&e.g, KEPT, &n) + (TOKENS_IN_ALL - 1) * TOPK;
    assert_int_equal(n, TOKENS_IN_ALL * TOPK);
    for (size_t i = 1; i < TOPK; i++)
        worst = c[kept[i]] < c[kept[worst]] ? i : worst;
    for (size_t t = 0; t < TOKENS_IN_ALL; t++) {
        int in = 0;
        for (size_t i = 0; i < TOPK; i++)
            in |= kept[i] == (int32_t)t;
        best = !in && (best == TOKENS_IN_ALL || c[t] > c[best]) ? t : best;
    }
    c[best] = c[kept[worst]] - part * fabsf(c[kept[worst]]);
    kept[worst] = (int32_t)best;
    save(&e);
}

TEST(a_kept_token_is_wrong_only_if_its_score_is_lower_than_rounding_explains)
{
    static const struct { float part; int is_wrong; } cases[] = {{0, 0}, {0x1p-24f, 0}, {0x1p-20f, 1}};
    size_t judged = 0;
    for (size_t i = 0; i < COUNT(cases); i++) {
        DUMP(a, TINY "glm5", "--tokens", LONGER, "--taps=" KEPT "," SCORES);
        exchange(a, cases[i].part);
        json_t *j = DIFF(3, a, TINY "glm5", "--local"), *o; /* the score that was changed is wrong */
        size_t k;
        json_array_foreach(json_object_get(json_object_get(j, "local_a"), "operators"), k, o)
            if (!strcmp(string(o, "tap"), KEPT)) {
                assert_int_equal(!strcmp(string(o, "verdict"), "structural"), cases[i].is_wrong);
                assert_int_equal(integer(o, "wrong_rows"), cases[i].is_wrong);
                judged++;
            }
        json_decref(j);
    }
    assert_int_equal(judged, COUNT(cases));
}

TEST(too_few_kept_tokens_and_tokens_that_come_later_are_wrong)
{
    for (int later = 0; later < 2; later++) {
        DUMP(a, TINY "glm5", "--tokens", LONGER, "--taps=" KEPT "," SCORES);
        struct edited e = edit(a);
        size_t n;
        int32_t *kept = golden_data(&e.g, KEPT, &n);
        kept[10 * TOPK + 3] = later ? 11 : kept[10 * TOPK + 4]; /* of index 10: the next token; a token twice */
        save(&e);
        struct said s = RUN("diff", a, TINY "glm5", "--local");
        expect_code(&s, 3);
        assert_non_null(strstr(s.out, "index 10: 7 different tokens up to its own are kept, wanted 8"));
        forget(&s);
    }
}

/* In BF16, the largest number of a query is rounded beyond a power of two, so the scale of its codes doubles: this is a
 * tie-flip. The weight of another query is doubled by the test. The largest number of that query is not near a power of
 * two, so this is structural. */
TEST(a_scale_near_a_power_of_two_is_a_tie)
{
    static const char
        tokens[] = "83,36,98,49,105,92,124,111,98,87,122,71,7,111,63,103,124,35,87,10,119,24,18,51,64,115,35,52,73,17",
        weights[] = "model.layers.1.self_attn.indexer.weights";
    for (int changed = 0; changed < 2; changed++) {
        size_t n;
        DUMP(a, TINY "v32", "--tokens", tokens, "--precision=bf16");
        struct edited e = edit(a);
        if (changed)
            floats(&e, weights, &n)[3 * 3] *= 2; /* of index 3, the first of three heads */
        save(&e);
        json_t *j = DIFF(3, a, TINY "v32", "--arithmetic", "bf16", "--runs", "4");
        expect_verdict(changed ? "a weight is doubled" : "bf16", tap(j, weights), changed ? "structural" : "tie-flip");
        expect_verdict("all values", j, changed ? "structural" : "tie-flip");
        assert_non_null(strstr(string(tap(j, weights), "why"),
                               changed ? "index 3, column 0 is" : "the scale of the query's codes is 2^"));
        json_decref(j);
    }
}

/* Changes a number in the last row of the value `what`. If `what` is KEPT, a kept token becomes the first token that is
 * not kept. Otherwise the sign of the largest BF16 number changes. */
static void change_last_row(const char *path, const char *what)
{
    struct edited e = edit(path);
    size_t n, width = width_of(&e, what);
    if (strstr(what, ".kept")) {
        int32_t *kept = (int32_t *)golden_data(&e.g, what, &n) + n - width, first = 0;
        for (size_t round = 0; round < width; round++)
            for (size_t i = 0; i < width; i++)
                first += kept[i] == first;
        kept[0] = first;
    } else {
        uint16_t *row = (uint16_t *)golden_data(&e.g, what, &n) + n - width, *most = row;
        for (size_t i = 1; i < width; i++)
            most = (row[i] & 0x7fff) > (*most & 0x7fff) ? row + i : most;
        *most ^= 0x8000;
    }
    save(&e);
}

/* Dumps of transformers in bfloat16, without Hadamard transform and codes. What it computes is right, until a number is
 * changed. */
TEST(dumps_of_transformers_are_right_until_a_number_is_changed)
{
    static const struct { const char *model, *dump, *tokens;
    } dumps[] = {
        {TINY "glm5", "golden/truth/glm5.hf-dump-bfloat16.safetensors", "5,6,7,70,9,33,17,2,11,12,3,44,45,20"},
        {TINY "v32", "golden/truth/v32.hf-dump-bfloat16.safetensors",
         "5,6,7,70,9,33,17,2,11,12,3,44,45,20,21,8,60,61,15,99,4"}};
    static const char *const changes[] = {KEPT,
                                          "model.layers.1.self_attn.indexer.wk.output",
                                          "model.layers.1.self_attn.indexer.k_norm.output",
                                          "model.layers.1.self_attn.indexer.wq_b.output",
                                          "model.layers.1.self_attn.indexer.weights_proj.output"};
    for (size_t d = 0; d < COUNT(dumps); d++) {
        json_t *j = DIFF(0, dumps[d].dump, dumps[d].model, "--local", "--as", "transformers", "--tokens",
                         dumps[d].tokens),
               *o;
        size_t i, indexers = 0;
        json_array_foreach(json_object_get(json_object_get(j, "local_a"), "operators"), i, o)
            indexers += !strncmp(string(o, "operator"), "indexer-", 8);
        assert_int_equal(indexers, 2 * COUNT(changes)); /* of two layers */
        expect_wrong(dumps[d].dump, j, "");
        for (i = 0; i < COUNT(changes); i++) {
            copy_dump(dumps[d].dump, a, 0);
            change_last_row(a, changes[i]);
            j = DIFF(3, a, dumps[d].model, "--local", "--as", "transformers", "--tokens", dumps[d].tokens);
            char told[64] = "";
            json_t *wrong = json_object_get(json_object_get(j, "local_a"), "first");
            snprintf(told, sizeof told, "%s", json_string_value(wrong));
            if (strcmp(told, changes[i]))
                fail_msg("%s: the first wrong tap is %s, expected %s", dumps[d].dump, told, changes[i]);
            json_decref(j);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(the_indexers_operators_are_within_their_bounds),
        IN_DIR(a_mistake_in_the_indexer_is_named_where_it_is_made),
        IN_DIR(a_kept_token_is_wrong_only_if_its_score_is_lower_than_rounding_explains),
        IN_DIR(too_few_kept_tokens_and_tokens_that_come_later_are_wrong),
        IN_DIR(a_scale_near_a_power_of_two_is_a_tie),
        IN_DIR(dumps_of_transformers_are_right_until_a_number_is_changed),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
