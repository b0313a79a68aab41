/* tests/cli/test_speculative.c -- drafting configured in the words of vLLM, vllm-ascend, MindIE, TensorRT-LLM and
 * llama.cpp. The command lines are those of their documents. Runs the program itself in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MTP3 "golden/tiny/v3-mtp3"
#define V3 "golden/tiny/v3"
#define SGLANG(words) "--draft-words", "sglang", words
#define TENSORRT(words) "--draft-words", "tensorrt-llm", words
#define LLAMA(words) "--draft-words", "llama.cpp", words
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

#define REFUSED(part, ...) expect_failure(RUN("generate", MTP3, "--tokens", "5,6,7", __VA_ARGS__), 2, part)

TEST(each_system_is_understood)
{
    CHOSEN("mtp-eagle", 1, "--speculative-config: --draft mtp-eagle --draft-tokens 1", /* vLLM */
           "--speculative-config", "{\"method\": \"deepseek_mtp\", \"num_speculative_tokens\": 1}");
    /* vllm-ascend */
    CHOSEN("mtp-eagle", 2,
           "--speculative-config: --draft mtp-eagle --draft-tokens 2; nothing here depends on enforce_eager",
           "--speculative-config", "{\"num_speculative_tokens\":2,\"method\":\"mtp\",\"enforce_eager\":true}");
    CHOSEN("eagle-reroll", 1, "--plugin-params: --draft eagle-reroll --draft-tokens 1", /* MindIE */
           "--plugin-params", "{\"plugin_type\":\"mtp\",\"num_speculative_tokens\": 1}");
    CHOSEN("mtp-eagle", 15, "--draft-words tensorrt-llm: --draft mtp-eagle --draft-tokens 15",
           TENSORRT("--spec_decode_algo MTP --spec_decode_max_draft_len 15"));
    CHOSEN("mtp-vanilla", 3, "--draft-words tensorrt-llm: --draft mtp-vanilla --draft-tokens 3",
           TENSORRT("--spec_decode_algo MTP --spec_decode_max_draft_len=3 --use_mtp_vanilla"));
    CHOSEN("mtp-eagle", 3,
           "--draft-words tensorrt-llm: --draft mtp-eagle --draft-tokens 3 --acceptance relaxed --relaxed-topk 10 "
           "--relaxed-delta 0.6",
           TENSORRT("--spec_decode_algo MTP --spec_decode_max_draft_len 3 --use_relaxed_acceptance_for_thinking "
                    "--relaxed_topk 10 "
                    "--relaxed_delta 0.6"),
           "--thinking-tokens", "126,127"); /* no thinking: as strict */
    CHOSEN("mtp-eagle", 2, "--draft-words llama.cpp: --draft mtp-eagle --draft-tokens 2",
           LLAMA("--spec-type draft-mtp --spec-draft-n-max 2"));
    CHOSEN("none", 0, "--draft-words llama.cpp: --draft none --draft-tokens 0", LLAMA("--spec-type none"));
    CHOSEN("mtp-eagle", 2, "--draft-words sglang: --draft mtp-eagle --draft-tokens 2",
           SGLANG("--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 "
                  "--speculative-num-draft-tokens 3"));
    CHOSEN("mtp-eagle", 2, "--draft-words sglang: --draft mtp-eagle --draft-tokens 2 --draft-topk 4 --draft-nodes 7",
           SGLANG("--speculative-algorithm NEXTN --speculative-num-steps 2 --speculative-eagle-topk 4 "
                  "--speculative-num-draft-tokens 8"));
}

TEST(other_methods_than_the_modules_are_understood)
{
    CHOSEN("ngram", 3, "--speculative-config: --draft ngram --draft-tokens 3 --ngram-min 2 --ngram-max 4",
           "--speculative-config",
           "{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"prompt_lookup_min\":2,\"prompt_lookup_max\":4}");
    CHOSEN("ngram", 3, "--speculative-config: --draft ngram --draft-tokens 3 --ngram-min 5 --ngram-max 5",
           "--speculative-config", "{\"method\":\"ngram\",\"num_speculative_tokens\":3}");
    CHOSEN("ngram", 3, "--speculative-config: --draft ngram --draft-tokens 3 --ngram-min 4 --ngram-max 4",
           "--speculative-config", "{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"prompt_lookup_max\":4}");
    CHOSEN("ngram", 4, "--draft-words tensorrt-llm: --draft ngram --draft-tokens 4 --ngram-min 1 --ngram-max 2",
           TENSORRT("--spec_decode_algo ngram --spec_decode_max_draft_len 4 --max_matching_ngram_size 2"));
    CHOSEN("ngram", 11, "--draft-words sglang: --draft ngram --draft-tokens 11 --ngram-min 1 --ngram-max 12",
           SGLANG("--speculative-algorithm NGRAM"));
    CHOSEN("draft-model", 2, "--speculative-config: --draft draft-model --draft-tokens 2 --draft-model " MTP3,
           "--speculative-config", "{\"method\":\"draft_model\",\"model\":\"" MTP3 "\",\"num_speculative_tokens\":2}");
    CHOSEN("draft-model", 2, "--draft-words tensorrt-llm: --draft draft-model --draft-tokens 2 --draft-model " MTP3,
           TENSORRT("--spec_decode_algo draft_target --spec_decode_max_draft_len 2 --draft_model_dir " MTP3));
    CHOSEN("draft-model", 2, "--draft-words sglang: --draft draft-model --draft-tokens 2 --draft-model " MTP3,
           SGLANG("--speculative-algorithm STANDALONE --speculative-num-steps 2 --speculative-draft-model-path " MTP3));
    CHOSEN("draft-model", 2,
           "--draft-words llama.cpp: --draft draft-model --draft-tokens 2 --draft-p-min 0.5 --draft-model " MTP3,
           LLAMA("--spec-type draft-simple --spec-draft-n-max 2 --spec-draft-p-min 0.5 -md " MTP3));
    /* the model itself is no second one */
    CHOSEN("mtp-eagle", 1, "--speculative-config: --draft mtp-eagle --draft-tokens 1", "--speculative-config",
           "{\"method\":\"mtp\",\"model\":\"" MTP3 "\",\"num_speculative_tokens\":1}");
    CHOSEN("mtp-eagle", 3, "--draft-words sglang: --draft mtp-eagle --draft-tokens 3",
           SGLANG("--speculative-algorithm EAGLE --speculative-draft-model-path " MTP3));
    REFUSED("--draft_model_dir is missing, the directory of what drafts with the method eagle3",
            TENSORRT("--spec_decode_algo EAGLE3"));
    REFUSED("model is missing, the directory of what drafts with the method draft-model", "--speculative-config",
            "{\"method\":\"draft_model\"}");
    REFUSED("ngram takes no second model", "--speculative-config", "{\"method\":\"ngram\",\"model\":\"x\"}");
    REFUSED("prompt_lookup_max is of the method ngram", "--speculative-config",
            "{\"method\":\"mtp\",\"prompt_lookup_max\":3}");
    REFUSED("prompt_lookup_max is 0, wanted", "--speculative-config", "{\"method\":\"ngram\",\"prompt_lookup_max\":0}");
}

/* The line on stderr and the method in force, with the heads that golden/ has. */
static void check_head(const char *method, const char *line, const char *option, const char *first, const char *second)
{
    char begin[200];
    struct said s = RUN("generate", V3, "--tokens", "5,6,7", "-n", "6", option, first,
                        second ? second : "--ignore-eos");
    expect_code(&s, 0);
    snprintf(begin, sizeof begin, "verbatim: %s\n", line);
    if (strncmp(s.err, begin, strlen(begin)) || !strstr(s.err, method))
        fail_msg("%s: stderr is %s, wanted %s", s.command, s.err, begin);
    forget(&s);
}
#define HEAD1 "golden/eagle/eagle1-v3"
#define HEAD3 "golden/eagle/eagle3-v3"

TEST(heads_are_understood)
{
    check_head("eagle3 K=2", "--speculative-config: --draft eagle3 --draft-tokens 2 --draft-model " HEAD3,
               "--speculative-config", "{\"method\":\"eagle3\",\"model\":\"" HEAD3 "\",\"num_speculative_tokens\":2}",
               NULL);
    check_head("eagle K=2", "--speculative-config: --draft eagle --draft-tokens 2 --draft-model " HEAD1,
               "--speculative-config", "{\"method\":\"eagle\",\"model\":\"" HEAD1 "\",\"num_speculative_tokens\":2}",
               NULL);
    check_head("eagle K=3", "--draft-words sglang: --draft eagle --draft-tokens 3 --draft-model " HEAD1,
               SGLANG("--speculative-algorithm EAGLE --speculative-draft-model-path " HEAD1));
    check_head("eagle3 K=4", "--draft-words sglang: --draft eagle3 --draft-tokens 4 --draft-model " HEAD3,
               SGLANG("--speculative-algorithm EAGLE3 --speculative-num-steps 4 "
                      "--speculative-draft-model-path " HEAD3));
    check_head("eagle3 K=1", "--draft-words tensorrt-llm: --draft eagle3 --draft-tokens 1 --draft-model " HEAD3,
               TENSORRT("--spec_decode_algo EAGLE3 --draft_model_dir " HEAD3));
    check_head("eagle3 K=3", "--draft-words llama.cpp: --draft eagle3 --draft-tokens 3 --draft-model " HEAD3,
               LLAMA("--spec-type draft-eagle3 --spec-draft-model " HEAD3));
}

TEST(a_padded_drafter_batch_pads)
{
    CHOSEN("mtp-eagle", 2, "--speculative-config: --draft mtp-eagle --draft-tokens 2 --padded", "--speculative-config",
           "{\"method\":\"mtp\",\"num_speculative_tokens\":2,\"disable_padded_drafter_batch\":false}");
    CHOSEN("mtp-eagle", 2, "--speculative-config: --draft mtp-eagle --draft-tokens 2", "--speculative-config",
           "{\"method\":\"mtp\",\"num_speculative_tokens\":2,\"disable_padded_drafter_batch\":true}");
    REFUSED("disable_padded_drafter_batch is 1, wanted true or false", "--speculative-config",
            "{\"method\":\"mtp\",\"disable_padded_drafter_batch\":1}");
}

/* The defaults of the systems: one draft per module in vLLM and MindIE, 3 in SGLang and llama.cpp, 1 in
 * TensorRT-LLM. */
TEST(no_length_is_the_default_of_the_system)
{
    CHOSEN("mtp-eagle", 3, "--speculative-config: --draft mtp-eagle --draft-tokens 3", "--speculative-config",
           "{\"method\":\"mtp\"}");
    CHOSEN("eagle-reroll", 3, "--plugin-params: --draft eagle-reroll --draft-tokens 3", "--plugin-params",
           "{\"plugin_type\":\"mtp\"}");
    CHOSEN("mtp-eagle", 3, "--draft-words llama.cpp: --draft mtp-eagle --draft-tokens 3",
           LLAMA("--spec-type draft-mtp"));
    CHOSEN("mtp-eagle", 3, "--draft-words sglang: --draft mtp-eagle --draft-tokens 3",
           SGLANG("--speculative-algorithm NEXTN"));
    CHOSEN("mtp-eagle", 1, "--draft-words tensorrt-llm: --draft mtp-eagle --draft-tokens 1",
           TENSORRT("--spec_decode_algo MTP"));
    CHOSEN("mtp-eagle", 2, "--draft-words tensorrt-llm: --draft mtp-eagle --draft-tokens 2",
           TENSORRT("--spec_decode_algo MTP"), "--draft-tokens", "2");
}

TEST(what_is_said_twice_has_to_agree)
{
    CHOSEN("mtp-eagle", 2, "--draft-words llama.cpp: --draft mtp-eagle --draft-tokens 2",
           LLAMA("--spec-type draft-mtp"), "--draft", "mtp-eagle", "--draft-tokens", "2", "--speculative-config",
           "{\"method\":\"mtp\",\"num_speculative_tokens\":2}");
    REFUSED("--draft-words llama.cpp means --draft mtp-eagle, --draft says mtp-vanilla", "--draft", "mtp-vanilla",
            LLAMA("--spec-type draft-mtp"));
    REFUSED("--draft-words llama.cpp means --draft none, --plugin-params says eagle-reroll", LLAMA("--spec-type none"),
            "--plugin-params", "{\"plugin_type\":\"mtp\"}");
    REFUSED("--spec-draft-n-max is 2, --draft-tokens is 3", "--draft-tokens", "3",
            LLAMA("--spec-type draft-mtp --spec-draft-n-max 2"));
    REFUSED("--spec_decode_max_draft_len is 1, --speculative-config's num_speculative_tokens is 2",
            "--speculative-config", "{\"method\":\"mtp\",\"num_speculative_tokens\":2}",
            TENSORRT("--spec_decode_algo MTP --spec_decode_max_draft_len 1"));
    REFUSED("--draft-words tensorrt-llm means --draft mtp-vanilla, --draft says mtp-eagle", "--draft", "mtp-eagle",
            TENSORRT("--spec_decode_algo MTP --use_mtp_vanilla"));
    REFUSED("--draft-words sglang means --draft-topk 4, which is given as 2", "--draft-topk", "2",
            SGLANG("--speculative-algorithm EAGLE --speculative-eagle-topk 4"));
    REFUSED("--speculative-config means --ngram-max 4, which is given as 3", "--ngram-max", "3", "--speculative-config",
            "{\"method\":\"ngram\",\"prompt_lookup_max\":4}");
    REFUSED("means --draft-model " V3 ", which is given as x", "--draft-model", "x",
            LLAMA("--spec-type draft-simple -md " V3));
    json_t *j = chosen((const char *const[]){GENERATE, LLAMA("--spec-type draft-mtp"), "--draft-tokens", "auto", NULL},
                       "verbatim: --draft-words llama.cpp: --draft mtp-eagle --draft-tokens auto\n");
    assert_true(integer(j, "draft_tokens") < 15); /* what was used: 6 tokens leave no room for more */
    json_decref(j);
}

TEST(unknown_methods_and_lengths_are_refused_with_the_valid_ones)
{
    static const char *const lengths[] = {"16", "-1", "\"1\"", "1.0", "null", "99999999999999999999"};
    char config[96];
    REFUSED("unknown method medusa; known are deepseek_mtp, mtp, ngram, eagle, eagle3, draft_model",
            "--speculative-config", "{\"method\":\"medusa\"}");
    REFUSED("unknown method la; known are mtp", "--plugin-params", "{\"plugin_type\":\"la\"}");
    REFUSED("unknown method AUTO; known are MTP, EAGLE3, NGRAM, DRAFT_TARGET", TENSORRT("--spec_decode_algo AUTO"));
    REFUSED("unknown method ngram-mod; known are draft-mtp, draft-eagle3, draft-simple, none",
            LLAMA("--spec-type ngram-mod"));
    REFUSED("unknown method DFLASH; known are EAGLE, NEXTN, EAGLE3, NGRAM, STANDALONE",
            SGLANG("--speculative-algorithm DFLASH"));
    REFUSED("--spec_decode_max_draft_len is 16, wanted an integer from 0 to 15",
            TENSORRT("--spec_decode_algo MTP --spec_decode_max_draft_len 16"));
    REFUSED("--spec-draft-n-max is 2x, wanted", LLAMA("--spec-type draft-mtp --spec-draft-n-max 2x"));
    REFUSED("--spec-draft-p-min is 2, wanted a number from 0 to 1",
            LLAMA("--spec-type draft-mtp --spec-draft-p-min 2"));
    REFUSED("--speculative-eagle-topk is 99, wanted",
            SGLANG("--speculative-algorithm EAGLE --speculative-eagle-topk 99"));
    REFUSED("--speculative-num-draft-tokens is 30, wanted",
            SGLANG("--speculative-algorithm NGRAM --speculative-num-draft-tokens 30"));
    for (size_t i = 0; i < COUNT(lengths); i++) {
        snprintf(config, sizeof config, "{\"method\":\"mtp\",\"num_speculative_tokens\":%s}", lengths[i]);
        REFUSED("wanted an integer from 0 to 15", "--speculative-config", config);
    }
}

TEST(json_that_is_wrong_is_refused)
{
    REFUSED("--speculative-config: line 1", "--speculative-config", "{\"method\":");
    REFUSED("--speculative-config: not a JSON object", "--speculative-config", "[]");
    REFUSED("method is missing", "--speculative-config", "{}");
    REFUSED("plugin_type is missing", "--plugin-params", "{\"num_speculative_tokens\":1}");
    REFUSED("method is [1], wanted a string", "--speculative-config", "{\"method\":[1]}");
    REFUSED("unknown key \"acceptance\\u0007\"; known are method, ", "--speculative-config",
            "{\"acceptance\\u0007\":1}");
    REFUSED("where Python writes True, False", "--speculative-config",
            "{\"method\": \"mtp\", \"enforce_eager\": True}");
    REFUSED("where Python writes True, False", "--plugin-params", "{'plugin_type': 'mtp'}");
    struct said s = RUN("generate", MTP3, "--tokens", "5", "--speculative-config", "{\"method\": \"True\" 3");
    assert_null(strstr(s.err, "Python"));
    forget(&s);
}

TEST(words_without_their_partner_are_refused)
{
    REFUSED("--draft-words wants a system and, quoted as one argument, its words", "--draft-words", "sglang");
    REFUSED("unknown system trtllm; known are sglang, tensorrt-llm, llama.cpp", "--draft-words", "trtllm", "x");
    REFUSED("vLLM's words are --speculative-config", "--draft-words", "vllm", "x");
    REFUSED("MindIE's words are --plugin-params", "--draft-words", "mindie", "x");
    REFUSED("unknown word --spec-type; known are --speculative-algorithm", SGLANG("--spec-type draft-mtp"));
    REFUSED("--spec_decode_algo is missing", TENSORRT("--spec_decode_max_draft_len 1"));
    REFUSED("--spec-type is missing", LLAMA(""));
    REFUSED("--spec-type wants a value", LLAMA("--spec-type"));
    REFUSED("--use_mtp_vanilla takes no value", TENSORRT("--spec_decode_algo MTP --use_mtp_vanilla=1"));
    REFUSED("--use_mtp_vanilla wants --spec_decode_algo MTP", TENSORRT("--spec_decode_algo NGRAM --use_mtp_vanilla"));
    REFUSED("--max_matching_ngram_size wants --spec_decode_algo NGRAM",
            TENSORRT("--spec_decode_algo MTP --max_matching_ngram_size 3"));
    REFUSED("--relaxed_topk wants --use_relaxed_acceptance_for_thinking",
            TENSORRT("--spec_decode_algo MTP --relaxed_topk 10"));
    REFUSED("--relaxed_delta wants --use_relaxed_acceptance_for_thinking",
            TENSORRT("--spec_decode_algo MTP --relaxed_delta 0.6"));
    REFUSED("wants --spec_decode_algo MTP", TENSORRT("--spec_decode_algo NGRAM --use_relaxed_acceptance_for_thinking"));
#define RELAXED "--spec_decode_algo MTP --use_relaxed_acceptance_for_thinking"
    REFUSED("and --acceptance is given: wanted one", TENSORRT(RELAXED), "--acceptance", "strict");
    REFUSED("and --relaxed-topk is given: wanted one", TENSORRT(RELAXED), "--relaxed-topk", "3");
    REFUSED("--relaxed_topk is 0, wanted", TENSORRT(RELAXED " --relaxed_topk 0"));
    REFUSED("--relaxed-delta is 2, wanted", TENSORRT(RELAXED " --relaxed_delta 2"));
    REFUSED("--relaxed-delta is x, wanted", TENSORRT(RELAXED " --relaxed_delta x"));
    REFUSED("--speculative-ngram-max-match-window-size wants --speculative-algorithm NGRAM",
            SGLANG("--speculative-algorithm EAGLE --speculative-ngram-max-match-window-size 3"));
}

/* As MindIE's documentation writes it: text within JSON. */
TEST(the_config_of_mindies_service_is_read)
{
    char dir[64], path[80], argument[96];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(argument, sizeof argument, "@%s", path);
    write_text(dir, "config.json",
               "{\"Version\": \"1.0.0\", \"ServerConfig\": {\"port\": 1025}, \"BackendConfig\": "
               "{\"ModelDeployConfig\": {\"maxSeqLen\": 2560, "
               "\"ModelConfig\": [{\"plugin_params\": "
               "\"{\\\"plugin_type\\\":\\\"mtp\\\",\\\"num_speculative_tokens\\\": 2}\", \"modelName\": \"x\"}]}}}");
    CHOSEN("eagle-reroll", 2, "--plugin-params: --draft eagle-reroll --draft-tokens 2", "--plugin-params", argument);
    write_text(dir, "config.json", "{\"plugin_type\":\"mtp\",\"num_speculative_tokens\": 1}");
    CHOSEN("eagle-reroll", 1, "--plugin-params: --draft eagle-reroll --draft-tokens 1", "--plugin-params", argument);
    write_text(dir, "config.json", "{\"BackendConfig\": {\"ModelDeployConfig\": {\"ModelConfig\": [{}, 3]}}}");
    REFUSED("has no BackendConfig.ModelDeployConfig.ModelConfig[].plugin_params", "--plugin-params", argument);
    write_text(dir, "config.json",
               "{\"BackendConfig\": {\"ModelDeployConfig\": {\"ModelConfig\": [{\"plugin_params\": \"{\"}]}}}");
    REFUSED("--plugin-params: line 1", "--plugin-params", argument);
    unlink(path);
    expect_failure(RUN("generate", MTP3, "--tokens", "5", "--plugin-params", argument), 1, path);
    remove_dir(dir);
}

/* --as has the system's method too, where none is named and the model has what it needs. */
TEST(as_chooses_the_systems_method)
{
    static const char *const systems[][2] = {{"mindie", "eagle-reroll"}, {"tensorrt-llm", "mtp-eagle"},
                                             {"sglang", "mtp-eagle"}, {"llama.cpp", "mtp-eagle"},
                                             {"vllm-2026", "mtp-eagle"}, {"paper", "mtp-vanilla"},
                                             {"transformers", "none"}, {"official", "none"}, {"official-v3.2", "none"}};
    for (size_t i = 0; i < COUNT(systems); i++) {
        json_t *j = JSON("generate", MTP3, "--tokens", "5,6,7", "-n", "6", "--as", systems[i][0], "--draft-tokens",
                         "2");
        assert_string_equal(string(j, "draft"), systems[i][1]);
        json_decref(j);
    }
    json_t *j = JSON("generate", MTP3, "--tokens", "5,6,7", "-n", "6", "--as", "mindie", "--draft", "ngram");
    assert_string_equal(string(j, "draft"), "ngram");
    json_decref(j);
    j = JSON("generate", MTP3, "--tokens", "5,6,7", "-n", "6", "--as", "mindie", "--draft", "none");
    assert_string_equal(string(j, "draft"), "none");
    json_decref(j);
    /* no modules */
    struct said s = RUN("generate", "golden/tiny/v2", "--tokens", "5,6,7", "-n", "6", "--as", "mindie", "--json");
    expect_code(&s, 0);
    assert_int_equal(s.err_size, 0);
    forget(&s);
    s = RUN("generate", MTP3, "--tokens", "5,6,7", "-n", "6", "--as", "mindie"); /* JSON has a key for it */
    assert_ptr_equal(strstr(s.err, "verbatim: --as mindie: --draft eagle-reroll\n"), s.err);
    forget(&s);
    json_t *all = JSON("verify", MTP3, "--tokens", "5,6,7", "-n", "2", "--as", "mindie", "--draft-tokens", "1",
                       "--threads", "1", "--isa", "best");
    assert_true(json_array_size(json_object_get(all, "rows")) > 4); /* every method */
    json_decref(all);
}

/* Every command that takes --draft. */
TEST(verify_draft_and_trace_take_them_too)
{
    static const char line[] = "verbatim: --draft-words llama.cpp: --draft mtp-eagle --draft-tokens 2\n";
    json_t *j = chosen((const char *const[]){verbatim, "draft", MTP3, "--tokens", "5,6,7", "--json",
                                             LLAMA("--spec-type draft-mtp --spec-draft-n-max 2"), NULL}, line);
    assert_int_equal(json_array_size(json_object_get(j, "drafts")), 2);
    json_decref(j);
    j = chosen((const char *const[]){verbatim, "verify", MTP3, "--tokens", "5,6,7", "-n", "3", "--threads", "1",
                                     "--isa", "best", "--json", LLAMA("--spec-type draft-mtp --spec-draft-n-max 2"),
                                     NULL},
               line);
    assert_true(json_is_true(json_object_get(j, "equal")));
    json_decref(j);
    struct said s = RUN("trace", MTP3, "--tokens", "5,6,7", "-n", "6",
                        LLAMA("--spec-type draft-mtp --spec-draft-n-max 2"));
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "draft 2:"));
    forget(&s);
    expect_failure(RUN("trace", MTP3, "--tokens", "5", TENSORRT(RELAXED)), 2, "strict acceptance alone");
    expect_failure(RUN("tokenize", MTP3, "x", LLAMA("--spec-type draft-mtp")), 2, "has no option --draft-words");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_system_is_understood),
        cmocka_unit_test(other_methods_than_the_modules_are_understood),
        cmocka_unit_test(heads_are_understood),
        cmocka_unit_test(a_padded_drafter_batch_pads),
        cmocka_unit_test(no_length_is_the_default_of_the_system),
        cmocka_unit_test(what_is_said_twice_has_to_agree),
        cmocka_unit_test(unknown_methods_and_lengths_are_refused_with_the_valid_ones),
        cmocka_unit_test(json_that_is_wrong_is_refused),
        cmocka_unit_test(words_without_their_partner_are_refused),
        cmocka_unit_test(the_config_of_mindies_service_is_read),
        cmocka_unit_test(as_chooses_the_systems_method),
        cmocka_unit_test(verify_draft_and_trace_take_them_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
