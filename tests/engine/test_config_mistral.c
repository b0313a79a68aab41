/* tests/engine/test_config_mistral.c -- config.json of Mistral 4: defaults, the scale of queries, and refusals. */
#include "engine/model/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

#define ROPE \
    "\"type\":\"yarn\",\"factor\":128,\"original_max_position_embeddings\":8192,\"mscale\":1,\"mscale_all_dim\":1"
#define BETA ",\"llama_4_scaling_beta\":0.1"

/* Reads a config of Mistral 4 whose rope_parameters and other keys are given. */
static int parse(struct config *c, const char *rope, const char *keys, vb_error *err)
{
    char json[1024];
    memset(c, 0xee, sizeof *c);
    snprintf(json, sizeof json, "{\"model_type\":\"mistral4\",\"rope_parameters\":{%s}%s%s}", rope, *keys ? "," : "",
             keys);
    return config_parse(c, json, strlen(json), NULL, 0, "config.json", err);
}

/* The defaults are written again from transformers' Mistral4Config. */
TEST(what_the_file_does_not_say_is_the_default_of_its_class)
{
    struct config c;
    vb_error err;
    assert_int_equal(parse(&c, ROPE BETA, "", &err), VB_OK);
    assert_string_equal(c.architecture, "Mistral4ForCausalLM");
    assert_true(c.vocab_size == 131072 && c.hidden_size == 4096 && c.intermediate_size == 12288 &&
                c.moe_intermediate_size == 2048);
    assert_true(c.num_hidden_layers == 36 && c.num_attention_heads == 32 && c.n_shared_experts == 1 &&
                c.n_routed_experts == 128);
    assert_true(c.routed_scaling_factor == 1 && c.kv_lora_rank == 256 && c.q_lora_rank == 1024 &&
                c.qk_rope_head_dim == 64);
    assert_true(c.v_head_dim == 128 && c.qk_nope_head_dim == 64 && c.n_group == 1 && c.topk_group == 1 &&
                c.num_experts_per_tok == 4);
    assert_true(c.first_k_dense_replace == 0 && c.norm_topk_prob && c.max_position_embeddings == 1048576 &&
                c.rms_norm_eps == 1e-6);
    assert_true(c.bos_token_id == 1 && c.num_eos == 1 && c.eos_token_ids[0] == 2 && !c.tie_word_embeddings &&
                c.rope_interleave);
    assert_true(c.scoring_func == SCORING_SOFTMAX && c.topk_method == TOPK_GROUP_LIMITED_TOP2 &&
                !c.num_nextn_predict_layers);
    assert_true(c.rope_yarn && c.query_beta == 0.1 && c.rope_unscaled && c.rope_beta_fast == 32 &&
                c.rope_beta_slow == 1);
}

/* The scale is 1 before the original context ends. It grows with the logarithm of the number of contexts. */
TEST(queries_are_scaled_by_their_position)
{
    struct config c;
    vb_error err;
    assert_int_equal(parse(&c, ROPE BETA, "", &err), VB_OK);
    assert_true(config_query_scale(&c, 0) == 1.0f && config_query_scale(&c, 8191) == 1.0f);
    for (int contexts = 1; contexts < 128; contexts++)
        for (int inside = 0; inside < 8192; inside += 8191)
            assert_true(config_query_scale(&c, 8192 * contexts + inside) == (float)(1 + 0.1 * log(1 + contexts)));
}

/* YaRN's m^2 is not applied, although mscale_all_dim is 1, unless the file or a convention says so. */
TEST(scores_are_scaled_as_the_file_says)
{
    static const struct {
        const char *more, *convention;
        int scaled;
    } cases[] = {{"", NULL, 0}, {",\"apply_yarn_scaling\":false", NULL, 0}, {",\"apply_yarn_scaling\":true", NULL, 1},
                 {"", "yarn-scale=always", 1}, {",\"apply_yarn_scaling\":true", "yarn-scale=never", 0}};
    double m = 0.1 * log(128) + 1, plain = 1 / sqrt(128);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config c;
        vb_error err;
        struct conventions conventions = {0};
        char rope[512];
        snprintf(rope, sizeof rope, ROPE BETA "%s", cases[i].more);
        assert_int_equal(parse(&c, rope, "", &err), VB_OK);
        assert_int_equal(conventions_parse(&conventions, cases[i].convention, &err), VB_OK);
        config_follow(&c, &conventions);
        assert_true(fabs(config_attention_scale_f64(&c) / (cases[i].scaled ? plain * m * m : plain) - 1) < 1e-15);
    }
}

TEST(what_is_wrong_is_told_in_one_sentence)
{
    static const struct {
        const char *rope, *keys;
        int code;
        const char *message;
    } cases[] = {
        {"", "", VB_BAD_CHECKPOINT, "config.json: rope_parameters is {}, wanted an object with llama_4_scaling_beta"},
        {ROPE, "", VB_BAD_CHECKPOINT,
         "config.json: rope_parameters.llama_4_scaling_beta is missing, wanted a number from 0 to 1000"},
        {ROPE ",\"llama_4_scaling_beta\":-1", "", VB_BAD_CHECKPOINT,
         "config.json: rope_parameters.llama_4_scaling_beta is -1, wanted a number from 0 to 1000"},
        {"\"rope_type\":\"default\"" BETA, "", VB_UNSUPPORTED,
         "config.json: rope_parameters.rope_type \"default\" is not supported, only yarn"},
        {ROPE BETA ",\"apply_yarn_scaling\":1", "", VB_BAD_CHECKPOINT,
         "config.json: rope_parameters.apply_yarn_scaling is 1, wanted true or false"},
        {ROPE BETA ",\"partial_rotary_factor\":1", "", VB_UNSUPPORTED,
         "config.json: rope_parameters.partial_rotary_factor 1 is not supported, only 0.5"},
        {ROPE BETA, "\"n_group\":128", VB_UNSUPPORTED,
         "config.json: topk_method group_limited_top2 with groups of one expert is not supported"},
    };
    struct config c;
    vb_error err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(parse(&c, cases[i].rope, cases[i].keys, &err), cases[i].code);
        assert_string_equal(err.message, cases[i].message);
    }
    /* other families have no such key */
    static const char deepseek[] = "{\"model_type\":\"deepseek_v3\",\"rope_scaling\":{" ROPE BETA "}}";
    assert_int_equal(config_parse(&c, deepseek, sizeof deepseek - 1, NULL, 0, "config.json", &err), VB_UNSUPPORTED);
    assert_string_equal(err.message, "config.json: rope_scaling has a key that is not known: \"llama_4_scaling_beta\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_file_does_not_say_is_the_default_of_its_class),
        cmocka_unit_test(queries_are_scaled_by_their_position),
        cmocka_unit_test(scores_are_scaled_as_the_file_says),
        cmocka_unit_test(what_is_wrong_is_told_in_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
