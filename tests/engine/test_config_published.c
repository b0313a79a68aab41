/* tests/engine/test_config_published.c -- the published config.json files: those of our models mean what their authors say, the
 * others are refused in one sentence. They lie in ../shared/assets; without them these tests are skipped. Runs in the
 * repository's root. */
#include "engine/model/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define PUBLISHED "../shared/assets/configs/"

static int read_published(struct config *c, const char *name, vb_error *err)
{
    char path[256], *text;
    size_t size;
    snprintf(path, sizeof path, PUBLISHED "%s", name);
    if (!vb_file_exists(path)) {
        print_message("skipped: %s is not here\n", path);
        skip();
    }
    assert_int_equal(vb_read_file(NULL, path, &text, &size, err), VB_OK);
    int rc = config_parse(c, text, size, NULL, 0, "config.json", err);
    vb_free(NULL, text);
    return rc;
}

TEST(the_published_models_are_what_their_authors_say)
{
    static const struct {
        const char *name;
        int layers, mtp, q, E, groups, fp8;
        double theta, yarn_factor, scale;
    } models[] = {
        {"deepseek-ai--DeepSeek-R1.config.json", 61, 1, 1536, 256, 8, 1, 10000, 40, 0.1352337788608801},
        {"deepseek-ai--DeepSeek-R1.hub.config.json", 61, 1, 1536, 256, 8, 1, 10000, 40, 0.1352337788608801},
        {"deepseek-ai--DeepSeek-V3.config.json", 61, 1, 1536, 256, 8, 1, 10000, 40, 0.1352337788608801},
        {"deepseek-ai--DeepSeek-V3.1.config.json", 61, 1, 1536, 256, 8, 1, 10000, 40, 0.1352337788608801},
        {"ome.deepseek_v3.json", 61, 1, 1536, 256, 8, 0, 10000, 40, 0.1352337788608801},
        {"deepseek-ai--DeepSeek-V2.5.transcribed.config.json", 60, 0, 1536, 160, 8, 0, 10000, 40, 0.1352337788608801},
        {"deepseek-ai--DeepSeek-V2-Lite-Chat.transcribed.config.json", 27, 0, 0, 64, 1, 0, 10000, 40, 0.1147213867929261},
        {"moonshotai--Kimi-K2-Instruct.config.json", 61, 0, 1536, 384, 1, 1, 50000, 32, 0.1308607999629501},
        {"moonshotai--Moonlight-16B-A3B.transcribed.config.json", 27, 0, 0, 64, 1, 0, 50000, 1, 0.07216878364870323},
        {"zai-org--GLM-4.7-Flash.vllm-test.transcribed.config.json", 47, 1, 768, 64, 1, 0, 1e6, 1, 0.0625},
    };
    for (size_t i = 0; i < COUNT(models); i++) {
        struct config c;
        vb_error err;
        if (read_published(&c, models[i].name, &err))
            fail_msg("%s: %s", models[i].name, err.message);
        assert_int_equal(c.num_hidden_layers, models[i].layers);
        assert_int_equal(c.num_nextn_predict_layers, models[i].mtp);
        assert_int_equal(c.q_lora_rank, models[i].q);
        assert_int_equal(c.n_routed_experts, models[i].E);
        assert_int_equal(c.n_group, models[i].groups);
        assert_int_equal(c.fp8, models[i].fp8);
        assert_true(c.rope_theta == models[i].theta && c.rope_factor == models[i].yarn_factor);
        assert_int_equal(c.rope_yarn, models[i].yarn_factor > 1);
        assert_true(fabs(config_attention_scale_f64(&c) / models[i].scale - 1.0) < 1e-11);
    }
}

/* Files that leave keys out: Hugging Face would run them with the class defaults, which are not the models' own. */
TEST(abridged_files_have_the_defaults_of_their_class)
{
    struct config c, whole;
    vb_error err;
    assert_int_equal(read_published(&c, "zai-org--GLM-4.7-Flash.config.json", &err), VB_OK);
    assert_int_equal(read_published(&whole, "zai-org--GLM-4.7-Flash.vllm-test.transcribed.config.json", &err), VB_OK);
    assert_true(c.rope_theta == 10000 && whole.rope_theta == 1000000); /* the class cannot know GLM's own */
    assert_true(c.num_nextn_predict_layers == 0 && whole.num_nextn_predict_layers == 1);
    assert_true(c.num_eos == 1 && whole.num_eos == 3);
    c.rope_theta = whole.rope_theta;
    c.num_nextn_predict_layers = whole.num_nextn_predict_layers;
    c.num_eos = whole.num_eos;
    memcpy(c.eos_token_ids, whole.eos_token_ids, sizeof c.eos_token_ids);
    const char *key, *same_key;
    char value[32], same[32];
    int from_default;
    for (size_t i = 0; config_row(&c, i, &key, value, &from_default); i++) {
        config_row(&whole, i, &same_key, same, &from_default);
        if (strcmp(value, same))
            fail_msg("%s: %s and %s", key, value, same);
    }
    assert_int_equal(read_published(&c, "moonshotai--Kimi-K2-Thinking.config.json", &err), VB_OK);
    assert_true(c.n_group == 8 && !c.rope_yarn); /* the model's own: 1 and YaRN, which this file leaves out */
}

TEST(other_architectures_are_refused_in_one_sentence)
{
    static const char others[] = "is not supported, only DeepseekV2ForCausalLM, DeepseekV3ForCausalLM and "
                                 "Glm4MoeLiteForCausalLM";
    static const struct {
        const char *name, *message;
    } files[] = {
        {"Qwen--Qwen3-Next-80B-A3B-Thinking.config.json", "architecture \"Qwen3NextForCausalLM\" "},
        {"XiaomiMiMo--MiMo-7B-Base.config.json", "architecture \"MiMoForCausalLM\" "},
        {"XiaomiMiMo--MiMo-V2-Flash.config.json", "architecture \"MiMoV2FlashForCausalLM\" "},
        {"zai-org--GLM-4.7-FP8.config.json", "architecture \"Glm4MoeForCausalLM\" "},
        {"deepseek-ai--DeepSeek-V3.2.config.json", "architecture DeepseekV32ForCausalLM is not supported: the sparse attention "
         "indexer of DeepSeek-V3.2 is not computed here"},
        {"deepseek-ai--DeepSeek-V4-Flash.config.json", "architecture DeepseekV4ForCausalLM is not supported: the compressed "
         "sparse attention and hyper-connections of DeepSeek-V4 are not computed here"},
        {"deepseek-ai--DeepSeek-V4-Pro.config.json", "architecture DeepseekV4ForCausalLM is not supported: the compressed "
         "sparse attention and hyper-connections of DeepSeek-V4 are not computed here"},
        {"zai-org--GLM-5.config.json", "architecture GlmMoeDsaForCausalLM is not supported: the sparse attention indexer of "
         "GLM-5 is not computed here"},
        {"zai-org--GLM-5.1.config.json", "architecture GlmMoeDsaForCausalLM is not supported: the sparse attention indexer of "
         "GLM-5 is not computed here"},
        {"moonshotai--Kimi-K2.5.config.json", "architecture KimiK25ForConditionalGeneration is not supported: a model of "
         "images and text; its text model alone would be DeepseekV3ForCausalLM"},
    };
    static const char *const unnamed[] = {
        "deepseek-reference-inference.config_16B.json", "deepseek-reference-inference.config_236B.json",
        "deepseek-reference-inference.config_671B.json", "deepseek-reference-inference.config_v3.1.json",
    };
    struct config c;
    vb_error err;
    char wants[512];
    for (size_t i = 0; i < COUNT(files); i++) {
        int open_ended = files[i].message[strlen(files[i].message) - 1] == ' ';
        snprintf(wants, sizeof wants, "config.json: %s%s", files[i].message, open_ended ? others : "");
        assert_int_equal(read_published(&c, files[i].name, &err), VB_UNSUPPORTED);
        assert_string_equal(err.message, wants);
    }
    for (size_t i = 0; i < COUNT(unnamed); i++) {
        assert_int_equal(read_published(&c, unnamed[i], &err), VB_BAD_CHECKPOINT);
        assert_string_equal(err.message, "config.json: it has neither architectures nor model_type");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_models_are_what_their_authors_say),
        cmocka_unit_test(abridged_files_have_the_defaults_of_their_class),
        cmocka_unit_test(other_architectures_are_refused_in_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
