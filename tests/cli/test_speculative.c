/* tests/cli/test_speculative.c -- drafting configured in the words of vLLM, vllm-ascend, MindIE, TensorRT-LLM and llama.cpp. The
 * command lines are those of their documents. Runs the program itself in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MTP3 "golden/tiny/v3-mtp3"
#define GENERATE verbatim, "generate", MTP3, "--tokens", "5,6,7", "-n", "6", "--json"

/* Exit code 0; stdout as JSON, and on stderr the one line that tells what was chosen. */
static json_t *chosen(const char *const *arguments, const char *line)
{
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 0);
    if (strcmp(s.err, line))
        fail_msg("%s: stderr is \"%s\", wanted \"%s\"", s.command, s.err, line);
    json_t *j = parsed(&s);
    forget(&s);
    return j;
}

static void expect_draft(json_t *j, const char *draft, int draft_tokens)
{
    json_t *plain = JSON("generate", MTP3, "--tokens", "5,6,7", "-n", "6");
    assert_string_equal(string(j, "draft"), draft);
    assert_int_equal(integer(j, "draft_tokens"), draft_tokens);
    assert_string_equal(string(j, "fingerprint"), string(plain, "fingerprint"));
    json_decref(plain);
    json_decref(j);
}

#define CHOSEN(draft, K, line, ...) \
    expect_draft(chosen((const char *const[]){GENERATE, __VA_ARGS__, NULL}, "verbatim: " line "\n"), draft, K)

TEST(each_system_is_understood)
{
    CHOSEN("mtp-eagle", 1, "--speculative-config: --draft mtp-eagle --draft-tokens 1", /* vLLM */
           "--speculative-config", "{\"method\": \"deepseek_mtp\", \"num_speculative_tokens\": 1}");
    CHOSEN("mtp-eagle", 2, "--speculative-config: --draft mtp-eagle --draft-tokens 2; nothing here depends on enforce_eager",
           "--speculative_config", "{\"num_speculative_tokens\":2,\"method\":\"mtp\",\"enforce_eager\":true}"); /* vllm-ascend */
    CHOSEN("mtp-eagle", 1, "--plugin-params: --draft mtp-eagle --draft-tokens 1", /* MindIE */
           "--plugin-params", "{\"plugin_type\":\"mtp\",\"num_speculative_tokens\": 1}");
    CHOSEN("mtp-eagle", 15, "--spec_decode_algo: --draft mtp-eagle --draft-tokens 15", /* TensorRT-LLM */
           "--spec_decode_algo", "MTP", "--spec_decode_max_draft_len", "15");
    CHOSEN("mtp-vanilla", 3, "--spec_decode_algo: --draft mtp-vanilla --draft-tokens 3",
           "--spec_decode_algo", "MTP", "--spec_decode_max_draft_len", "3", "--use_mtp_vanilla");
    CHOSEN("mtp-eagle", 3, "--spec_decode_algo: --draft mtp-eagle --draft-tokens 3 --acceptance relaxed", /* no thinking: as strict */
           "--spec_decode_algo", "MTP", "--spec_decode_max_draft_len", "3", "--use_relaxed_acceptance_for_thinking", "--relaxed_topk", "10",
           "--relaxed_delta", "0.6", "--thinking-tokens", "126,127");
    CHOSEN("mtp-eagle", 2, "--spec-type: --draft mtp-eagle --draft-tokens 2", /* llama.cpp */
           "--spec-type", "draft-mtp", "--spec-draft-n-max", "2");
    CHOSEN("mtp-eagle", 15, "--spec-type: --draft mtp-eagle --draft-tokens auto", "--spec-type", "draft-mtp", "--draft-tokens", "auto");
    CHOSEN("none", 0, "--spec-type: --draft none --draft-tokens 0", "--spec-type", "none");
}

TEST(no_length_is_one_draft_per_module)
{
    CHOSEN("mtp-eagle", 3, "--speculative-config: --draft mtp-eagle --draft-tokens 3", "--speculative-config",
           "{\"method\":\"mtp\"}");
    CHOSEN("mtp-eagle", 3, "--spec-type: --draft mtp-eagle --draft-tokens 3", "--spec-type", "draft-mtp");
}

TEST(what_is_said_twice_has_to_agree)
{
    CHOSEN("mtp-eagle", 2, "--spec-type: --draft mtp-eagle --draft-tokens 2", "--spec-type", "draft-mtp", "--draft", "mtp-eagle",
           "--draft-tokens", "2", "--speculative-config", "{\"method\":\"mtp\",\"num_speculative_tokens\":2}");
#define REFUSED(part, ...) \
    expect_failure(RUN("generate", MTP3, "--tokens", "5,6,7", __VA_ARGS__), 2, part)
    REFUSED("--spec-type means --draft mtp-eagle, --draft says mtp-vanilla", "--draft", "mtp-vanilla", "--spec-type", "draft-mtp");
    REFUSED("--spec-type means --draft none, --plugin-params says mtp-eagle", "--spec-type", "none", "--plugin-params",
            "{\"plugin_type\":\"mtp\"}");
    REFUSED("--spec-draft-n-max is 2, --draft-tokens is 3", "--draft-tokens", "3", "--spec-type", "draft-mtp", "--spec-draft-n-max", "2");
    REFUSED("--spec_decode_max_draft_len is 1, --speculative-config's num_speculative_tokens is 2", "--speculative-config",
            "{\"method\":\"mtp\",\"num_speculative_tokens\":2}", "--spec_decode_algo", "MTP", "--spec_decode_max_draft_len", "1");
    REFUSED("--spec_decode_algo means --draft mtp-vanilla, --draft says mtp-eagle", "--draft", "mtp-eagle", "--spec_decode_algo",
            "MTP", "--use_mtp_vanilla");
}

TEST(unknown_methods_and_lengths_are_refused_with_the_valid_ones)
{
    static const char *const lengths[] = {"16", "-1", "\"1\"", "1.0", "null", "99999999999999999999"};
    char config[96];
    REFUSED("unknown method medusa; known are deepseek_mtp, mtp", "--speculative-config", "{\"method\":\"medusa\"}");
    REFUSED("unknown method la; known are mtp", "--plugin-params", "{\"plugin_type\":\"la\"}");
    REFUSED("unknown method EAGLE3; known are MTP", "--spec_decode_algo", "EAGLE3");
    REFUSED("unknown method ngram-mod; known are draft-mtp, none", "--spec-type", "ngram-mod");
    REFUSED("--spec_decode_max_draft_len is 16, wanted an integer from 0 to 15", "--spec_decode_algo", "MTP",
            "--spec_decode_max_draft_len", "16");
    REFUSED("--spec-draft-n-max is 2x, wanted", "--spec-type", "draft-mtp", "--spec-draft-n-max", "2x");
    for (size_t i = 0; i < COUNT(lengths); i++) {
        snprintf(config, sizeof config, "{\"method\":\"mtp\",\"num_speculative_tokens\":%s}", lengths[i]);
        REFUSED(i < 5 ? "wanted an integer from 0 to 15" : "out of range", "--speculative-config", config);
    }
}

TEST(json_that_is_wrong_is_refused)
{
    REFUSED("--speculative-config: line 1", "--speculative-config", "{\"method\":");
    REFUSED("--speculative-config: not a JSON object", "--speculative-config", "[]");
    REFUSED("method is missing", "--speculative-config", "{}");
    REFUSED("plugin_type is missing", "--plugin-params", "{\"num_speculative_tokens\":1}");
    REFUSED("method is [1], wanted a string", "--speculative-config", "{\"method\":[1]}");
    REFUSED("unknown key \"acceptance\\u0007\"; known are method and", "--speculative-config", "{\"acceptance\\u0007\":1}");
}

TEST(options_without_their_partner_are_refused)
{
    REFUSED("--spec_decode_max_draft_len wants --spec_decode_algo", "--spec_decode_max_draft_len", "1");
    REFUSED("--spec-draft-n-max wants --spec-type", "--spec-draft-n-max", "1");
    REFUSED("--use_mtp_vanilla wants --spec_decode_algo", "--use_mtp_vanilla");
    REFUSED("--relaxed_topk wants --use_relaxed_acceptance_for_thinking", "--relaxed_topk", "10");
    REFUSED("--relaxed_delta wants --use_relaxed_acceptance_for_thinking", "--relaxed_delta", "0.6");
    REFUSED("wants --spec_decode_algo MTP", "--use_relaxed_acceptance_for_thinking");
    REFUSED("says what --acceptance says too: wanted one", "--spec_decode_algo", "MTP", "--use_relaxed_acceptance_for_thinking", "--acceptance", "strict");
    REFUSED("says what --relaxed-topk says too: wanted one", "--spec_decode_algo", "MTP", "--use_relaxed_acceptance_for_thinking", "--relaxed-topk", "3");
    REFUSED("--relaxed_topk is 0, wanted", "--spec_decode_algo", "MTP", "--use_relaxed_acceptance_for_thinking", "--relaxed_topk", "0");
    REFUSED("--relaxed-delta is 2, wanted", "--spec_decode_algo", "MTP", "--use_relaxed_acceptance_for_thinking", "--relaxed_delta", "2");
    REFUSED("--relaxed-delta is x, wanted", "--spec_decode_algo", "MTP", "--use_relaxed_acceptance_for_thinking", "--relaxed_delta", "x");
}

/* Every command that takes --draft. */
TEST(verify_draft_and_trace_take_them_too)
{
    static const char line[] = "verbatim: --spec-type: --draft mtp-eagle --draft-tokens 2\n";
    json_t *j = chosen((const char *const[]){verbatim, "draft", MTP3, "--tokens", "5,6,7", "--json", "--spec-type", "draft-mtp",
                                             "--spec-draft-n-max", "2", NULL}, line);
    assert_int_equal(json_array_size(json_object_get(j, "drafts")), 2);
    json_decref(j);
    j = chosen((const char *const[]){verbatim, "verify", MTP3, "--tokens", "5,6,7", "-n", "3", "--threads", "1", "--isa", "best", "--json",
                                     "--spec-type", "draft-mtp", "--spec-draft-n-max", "2", NULL}, line);
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    struct said s = RUN("trace", MTP3, "--tokens", "5,6,7", "-n", "6", "--spec-type", "draft-mtp", "--spec-draft-n-max", "2");
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "draft 2:"));
    forget(&s);
    expect_failure(RUN("trace", MTP3, "--tokens", "5", "--spec_decode_algo", "MTP", "--use_relaxed_acceptance_for_thinking"), 2,
                   "strict acceptance alone");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_system_is_understood),
        cmocka_unit_test(no_length_is_one_draft_per_module),
        cmocka_unit_test(what_is_said_twice_has_to_agree),
        cmocka_unit_test(unknown_methods_and_lengths_are_refused_with_the_valid_ones),
        cmocka_unit_test(json_that_is_wrong_is_refused),
        cmocka_unit_test(options_without_their_partner_are_refused),
        cmocka_unit_test(verify_draft_and_trace_take_them_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
