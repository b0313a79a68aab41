/* tests/cli/test_kept_cli.c -- the options --kept-in and --kept-out. All file formats store the same sets. If the sets
 * that the indexer chose are forced, no byte of the output changes. Sets in a line of --prompts or of `score` have the
 * same effect as --kept-in. Runs the program itself (argv[1], or ../verbatim relative to this program) in the
 * repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/cli_files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define GLM5 "golden/tiny/glm5"
#define IDS "5,6,7,70,9,33,17,2,11,12,3,44,45,20,21,8"
#define NUM_TOKENS 16
#define LAYERS 4 /* of golden/tiny/glm5: 0 and 1 have an indexer */
#define TOPK 8
#define NUMBERS ((size_t)NUM_TOKENS * LAYERS * TOPK)

static void put(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

/* Writes the logits, and the sets to a file. */
static void chosen(const char *logits, const char *sets)
{
    done(RUN("logits", GLM5, "--tokens", IDS, "-o", logits, "--kept-out", sets, "--force"));
}

/* The file of sets in NumPy's format, its header, and its numbers, which the caller may change. */
static char *npy_of(const char *path, size_t *size, int32_t **numbers)
{
    char *bytes = bytes_of(path, size);
    assert_true(*size > NUMBERS * 4 && strstr(bytes + 10, "'descr': '<i4'") &&
                strstr(bytes + 10, "'shape': (16, 4, 8)"));
    *numbers = (int32_t *)(void *)(bytes + *size - NUMBERS * 4); /* the header is a multiple of 64 */
    return bytes;
}

TEST(all_formats_hold_the_same_sets)
{
    const char *names[] = {"sets.npy", "sets.json", "sets.safetensors"}, *logits = in_dir(0, "logits.safetensors"),
               *got = in_dir(1, "got.safetensors");
    for (int i = 0; i < 3; i++) {
        const char *sets = in_dir(2 + i, names[i]), *again = in_dir(5, "again.npy");
        chosen(logits, sets);
        done(RUN("logits", GLM5, "--tokens", IDS, "-o", got, "--kept-in", sets, "--kept-out", again, "--force",
                 "--threads", "2", "--prefill-chunk", "3"));
        expect_equal_files(got, logits);
        expect_equal_files(again, in_dir(2, names[0]));
    }
    size_t size;
    int32_t *n;
    char *bytes = npy_of(in_dir(2, names[0]), &size, &n);
    for (int32_t t = 0; t < NUM_TOKENS; t++)
        for (int i = 0; i < TOPK; i++) { /* layer 0 chooses if it sees more than TOPK tokens; layer 2 has no indexer */
            int32_t at = n[(t * LAYERS) * TOPK + i];
            assert_true(t < TOPK ? at == (i <= t ? i : -1)
                                 : at >= 0 && at <= t && (!i || at > n[(t * LAYERS) * TOPK + i - 1]));
            assert_int_equal(n[(t * LAYERS + 2) * TOPK + i], -1);
        }
    free(bytes);
}

/* Writes sets in which token 12 attends to the first tokens in layer 0. */
static void put_other_sets(const char *from, const char *to)
{
    size_t size;
    int32_t *n;
    char *bytes = npy_of(from, &size, &n);
    for (int i = 0; i < TOPK; i++)
        n[12 * LAYERS * TOPK + i] = TOPK - 1 - i;
    put(to, bytes, size);
    free(bytes);
}

TEST(generate_eval_prompts_and_score_take_sets)
{
    static char lines[6000], list[4000];
    const char *sets = in_dir(0, "sets.npy"), *other = in_dir(1, "other.npy"), *got = in_dir(2, "got.npy"),
               *prompts = in_dir(3, "prompts.jsonl");
    const char *answers = in_dir(4, "answers.jsonl"), *both = in_dir(5, "routes.npy");
    chosen(in_dir(6, "logits.safetensors"), sets);
    put_other_sets(sets, other);
    json_t *plain = JSON("generate", GLM5, "--tokens", IDS, "-n", "9", "--ignore-eos", "--routes-out", both);
    json_t *same = JSON("generate", GLM5, "--tokens", IDS, "-n", "9", "--ignore-eos", "--kept-in", sets, "--routes-in",
                        both);
    json_t *forced = JSON("generate", GLM5, "--tokens", IDS, "-n", "9", "--ignore-eos", "--kept-in", other);
    json_t *drafts = JSON("generate", GLM5, "--tokens", IDS, "-n", "9", "--ignore-eos", "--kept-in", other, "--draft",
                          "mtp-eagle", "--draft-tokens", "3", "--draft-topk", "2", "--kept-out", got);
    expect_same(plain, same, "fingerprint", "the indexer's own sets, and the router's own experts");
    expect_same(forced, drafts, "fingerprint", "drafts");
    assert_string_not_equal(string(plain, "fingerprint"), string(forced, "fingerprint"));

    /* the same sets as nested arrays, with layers that have an indexer only */
    size_t size;
    int32_t *n;
    char *bytes = npy_of(other, &size, &n), *to = list;
    for (size_t t = 0; t < NUM_TOKENS; t++)
        for (size_t l = 0; l < LAYERS; l++)
            for (size_t i = 0; l != 2 && l != 3 && i < TOPK; i++)
                to += sprintf(to, "%s%d%s",
                              i ? ","
                              : l ? "],["
                              : t ? "]],[["
                              : "[[[",
                              n[(t * LAYERS + l) * TOPK + i],
                              t + 1 == NUM_TOKENS && l == 1 && i + 1 == TOPK ? "]]]" : "");
    free(bytes);
    snprintf(lines, sizeof lines,
             "{\"tokens\": [" IDS "], \"kept_in\": \"%s\"}\n{\"tokens\": [" IDS
             "], \"indexer_topk\": %s}\n{\"tokens\": [" IDS "]}\n",
             other, list);
    put(prompts, lines, strlen(lines));
    done(RUN("generate", GLM5, "--prompts", prompts, "-o", answers, "-n", "9", "--ignore-eos"));
    char *text = bytes_of(answers, &size);
    int count = 0;
    for (char *at = text; at < text + size; at = strchr(at, '\n') + 1, count++) {
        json_t *one = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(one);
        expect_same(one, integer(one, "index") == 2 ? plain : forced, "fingerprint", "a line of prompts");
        json_decref(one);
    }
    assert_int_equal(count, 3);
    free(text);
    json_decref(plain), json_decref(same), json_decref(forced), json_decref(drafts);

    plain = JSON("eval", GLM5, "--tokens", IDS, "--kept-out", got, "--force");
    same = JSON("eval", GLM5, "--tokens", IDS, "--kept-in", sets);
    forced = JSON("eval", GLM5, "--tokens", IDS, "--kept-in", other);
    expect_equal_files(got, sets);
    expect_same(plain, same, "main_loss", "the indexer's own sets");
    double loss = real(forced, "main_loss"), sum = 0;
    assert_true(loss != real(plain, "main_loss"));
    json_decref(plain), json_decref(same), json_decref(forced);
    snprintf(lines, sizeof lines, "{\"prompt\": [" IDS "], \"indexer_topk\": %s}\n", list);
    put(prompts, lines, strlen(lines));
    const char *scores = in_dir(7, "scores.jsonl");
    done(RUN("score", GLM5, "--file", prompts, "-o", scores));
    text = bytes_of(scores, &size);
    json_t *score = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    for (size_t i = 0; i < NUM_TOKENS - 1; i++)
        sum -= json_real_value(json_array_get(json_object_get(score, "logprobs"), i));
    if (!(fabs(sum / (NUM_TOKENS - 1) - loss) < 6e-9)) /* nine digits are printed */
        fail_msg("score: %.12g, eval: %.12g", sum / (NUM_TOKENS - 1), loss);
    json_decref(score);
    free(text);
}

TEST(sets_that_do_not_fit_are_refused)
{
    const char *path = in_dir(0, "sets.json"), *out = in_dir(1, "logits.safetensors");
    static const struct {
        const char *text, *why;
    } bad[] =
        {{"{\"indexer_topk\": [[[0]]]}", "the kept sets have the shape [1, 1, 1], wanted 4 layers and index_topk = 8"},
         {"{\"routed_experts\": [[[0]]]}", "it has no key indexer_topk"},
         {"{\"indexer_topk\": 3}", "indexer_topk is neither an array nor a text"},
         {"{\"meta_info\": {\"indexer_topk\": \"AAAA\"}}", "indexer_topk has 3 bytes, wanted int32 [tokens, 4, 8]"},
         {"{\"indexer_topk\": "
          "[[[0,-1,-1,-1,-1,-1,-1,-1],[0,-1,-1,-1,-1,-1,-1,-1]],[[0,-1,-1,-1,-1,-1,-1,-1],[0,1,-1,-1,-1,-1,-1,-1]]]}",
          "the kept set of token 1 in layer 0 has 1 numbers and then -1, wanted 2"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(path, bad[i].text, strlen(bad[i].text));
        expect_failure(RUN("logits", GLM5, "--tokens", "5,6", "-o", out, "--kept-in", path), i == 4 ? 2 : 1,
                       bad[i].why);
    }
    expect_failure(RUN("logits", GLM5, "--tokens", "5,6,7,8", "-o", out, "--kept-in", path), 1,
                   "it has kept sets of 2 tokens, the text has 4");
    expect_failure(RUN("logits", V3, "--tokens", "5,6", "-o", out, "--kept-in", path), 1,
                   "there are kept sets, but the model has no indexer");
    expect_failure(RUN("logits", V3, "--tokens", "5,6", "-o", out, "--kept-out", in_dir(2, "s.npy")), 2,
                   "kept sets cannot be recorded: the model has no indexer");
    expect_failure(RUN("logits", GLM5, "--tokens", "5,6", "-o", out, "--kept-out", "s.txt"), 2,
                   "--kept-out is s.txt, wanted a name that ends in");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(all_formats_hold_the_same_sets),
        IN_DIR(generate_eval_prompts_and_score_take_sets),
        IN_DIR(sets_that_do_not_fit_are_refused),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
