/* tests/cli/test_prefill_cli.c -- --prefill onednn on the command line: its rows beside the reference's, verify, and
 * what is refused. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define TALE "golden/tale"

/* A run says whether oneDNN is here. */
static void need_onednn(void)
{
    struct said s = RUN("generate", TALE, "--tokens", "5", "-n", "0", "--prefill", "onednn");
    int missing = s.exit_code != 0;
    if (missing) {
        printf("skipped: %s", s.err);
        expect_code(&s, 1);
        assert_non_null(strstr(s.err, "prefill onednn"));
    }
    forget(&s);
    if (missing)
        skip();
}

/* Every tensor of a prompt that oneDNN read, judged by `verbatim diff`: its bound is what the reference moves when
 * values are perturbed as an engine that computes in BF16 would (tools/diff/bound.c). */
TEST(with_bf16_weights_every_tensor_is_within_rounding_of_the_reference)
{
    static const char *const of[] = {TINY "glm", TINY "v3-mtp3", TINY "moonlight", TINY "v2-lite", TALE};
    need_onednn();
    for (size_t i = 0; i < COUNT(of); i++) {
        DUMP(a, of[i], "--tokens", TOKENS, "-n", "1", "--prefill", "onednn");
        json_t *j = DIFF(0, a, of[i], "--reference", "--arithmetic", "bf16");
        expect_verdict(of[i], j, "rounding");
        assert_string_equal(string(tap(j, "lm_head.output"), "verdict"), "rounding");
        json_decref(j);
        EXPECT(0, "rounding", a, of[i], "--precision", "bf16", "--arithmetic", "bf16"); /* the same rounding, another
                                                                                           order */
        DUMP(b, of[i], "--tokens", TOKENS, "-n", "1", "--prefill", "contract");
        EXPECT(3, "rounding", a, b, "--arithmetic", "bf16", "--bits"); /* it did read the prompt */
    }
}

TEST(verify_varies_all_but_the_chunk)
{
    need_onednn();
    json_t *j = JSON("verify", TALE, "--tokens", TOKENS, "-n", "12", "--prefill", "onednn", "--draft", "mtp-vanilla"),
           *row;
    size_t i, threads = 0, isas = 0, drafted = 0;
    assert_true(json_is_true(json_object_get(j, "equal")));
    assert_string_equal(string(j, "prefill"), "onednn");
    const char *isa = string(json_array_get(json_object_get(j, "rows"), 0), "isa");
    json_array_foreach(json_object_get(j, "rows"), i, row) {
        assert_int_equal(integer(row, "chunk"), 512);
        threads += integer(row, "threads") == 3;
        isas += strcmp(string(row, "isa"), isa) != 0;
        drafted += integer(row, "draft_tokens") > 0;
    }
    assert_true(threads && isas && drafted);
    json_decref(j);
    struct said s = RUN("verify", TALE, "--tokens", TOKENS, "-n", "2", "--prefill", "onednn", "--draft", "mtp-vanilla");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "identical, bit for bit; with --prefill onednn chunks are 512 and were not varied"));
    forget(&s);
    j = JSON("verify", TALE, "--tokens", "5", "-n", "1", "--draft", "mtp-eagle", "--draft-tokens", "1");
    assert_string_equal(string(j, "prefill"), "contract");
    json_decref(j);
}

TEST(what_is_wrong_is_said_in_a_sentence)
{
    expect_failure(RUN("generate", TALE, "--tokens", "5", "--prefill", "mkl"), 2,
                   "unknown prefill mkl; known are contract, expanded, onednn and cublas");
    expect_failure(RUN("generate", TALE, "--tokens", "5", "--prefill", "onednn", "--prefill-chunk", "64"), 2,
                   "prefill chunk is 64; with prefill onednn it is 512");
    expect_failure(RUN("generate", TINY "v3", "--tokens", "5", "--prefill", "onednn"), 1,
                   "q_a_proj of layer 0 is F8_E4M3; prefill onednn wants all weights BF16, as precision bf16 makes "
                   "them, or all F32");
    expect_failure(RUN("logits", TALE, "--tokens", "5", "-o", a, "--prefill", "onednn"), 2,
                   "verbatim logits does not have --prefill onednn");
    expect_failure(RUN("dump", TALE, "--tokens", "5", "-o", a, "--prefill", "onednn"), 2, "--prefill onednn wants -n");
    need_onednn();
    struct said s = RUN("generate", TINY "v3", "--tokens", "5", "-n", "2", "--prefill", "onednn", "--precision",
                        "bf16");
    expect_code(&s, 0);
    forget(&s);
#ifdef __x86_64__
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1); /* a CPU for which oneDNN has no BF16 */
    s = RUN("generate", TALE, "--tokens", "5", "--prefill", "onednn");
    unsetenv("ONEDNN_MAX_CPU_ISA");
    expect_failure(s, 1, "prefill onednn, weights BF16: oneDNN cannot multiply");
#endif
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(with_bf16_weights_every_tensor_is_within_rounding_of_the_reference),
        IN_DIR(verify_varies_all_but_the_chunk),
        IN_DIR(what_is_wrong_is_said_in_a_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
