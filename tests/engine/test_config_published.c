/* tests/engine/test_config_published.c -- published config.json files: those of our models mean what their authors say,
 * the others are refused in one sentence. golden/published/configs.json has their keys and values
 * (golden/scripts/make_published.py); where the published files themselves are, in ../shared/assets, the same is asked
 * of them. Runs in the repository's root. */
#include "engine/model/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define STAND_INS "golden/published/configs.json"
#define PUBLISHED "../shared/assets/configs/"

enum source { STAND_IN, FILE_OF_AUTHOR, SOURCES };

struct published {
    const char *stand_in, *file; /* a member of STAND_INS; the published file */
};

static int is_here(const struct published *p, enum source from)
{
    char path[256];
    snprintf(path, sizeof path, PUBLISHED "%s", p->file);
    return from == STAND_IN || vb_file_exists(path);
}

static char *text_of(const struct published *p, enum source from)
{
    char path[256], *text;
    size_t size;
    vb_error err;
    if (from == FILE_OF_AUTHOR) {
        snprintf(path, sizeof path, PUBLISHED "%s", p->file);
        assert_int_equal(vb_read_file(NULL, path, &text, &size, &err), VB_OK);
        return text;
    }
    json_error_t why;
    json_t *all = json_load_file(STAND_INS, 0, &why), *one = json_object_get(all, p->stand_in);
    if (!one)
        fail_msg(STAND_INS ": %s: %s", p->stand_in, all ? "it is not there" : why.text);
    text = json_dumps(one, 0);
    json_decref(all);
    return text;
}

static int read_config(struct config *c, const struct published *p, enum source from, vb_error *err)
{
    char *text = text_of(p, from);
    int rc = config_parse(c, text, strlen(text), NULL, 0, "config.json", err);
    if (from == STAND_IN)
        free(text);
    else
        vb_free(NULL, text);
    return rc;
}

TEST(the_published_models_are_what_their_authors_say)
{
    static const struct {
        struct published of;
        int layers, mtp, q, E, groups, fp8;
        double theta, yarn_factor, scale;
    } models[] = {
        {{"DeepSeek-V3", "deepseek-ai--DeepSeek-R1.config.json"}, 61, 1, 1536, 256, 8, 1, 10000, 40,
         0.1352337788608801},
        {{"DeepSeek-R1", "deepseek-ai--DeepSeek-R1.hub.config.json"}, 61, 1, 1536, 256, 8, 1, 10000, 40,
         0.1352337788608801},
        {{"DeepSeek-V3", "deepseek-ai--DeepSeek-V3.config.json"}, 61, 1, 1536, 256, 8, 1, 10000, 40,
         0.1352337788608801},
        {{"DeepSeek-V3.1", "deepseek-ai--DeepSeek-V3.1.config.json"}, 61, 1, 1536, 256, 8, 1, 10000, 40,
         0.1352337788608801},
        {{"DeepSeek-V3 without FP8", "ome.deepseek_v3.json"}, 61, 1, 1536, 256, 8, 0, 10000, 40, 0.1352337788608801},
        {{"DeepSeek-V2.5", "deepseek-ai--DeepSeek-V2.5.transcribed.config.json"}, 60, 0, 1536, 160, 8, 0, 10000, 40,
         0.1352337788608801},
        {{"DeepSeek-V2-Lite", "deepseek-ai--DeepSeek-V2-Lite-Chat.transcribed.config.json"}, 27, 0, 0, 64, 1, 0, 10000,
         40, 0.1147213867929261},
        {{"Kimi-K2", "moonshotai--Kimi-K2-Instruct.config.json"}, 61, 0, 1536, 384, 1, 1, 50000, 32,
         0.1308607999629501},
        {{"Kimi-K2.5", "moonshotai--Kimi-K2.5.config.json"}, 61, 0, 1536, 384, 1, 0, 50000, 64, 0.1446796258026893},
        {{"Moonlight", "moonshotai--Moonlight-16B-A3B.transcribed.config.json"}, 27, 0, 0, 64, 1, 0, 50000, 1,
         0.07216878364870323},
        {{"GLM-4.7-Flash", "zai-org--GLM-4.7-Flash.vllm-test.transcribed.config.json"}, 47, 1, 768, 64, 1, 0, 1e6, 1,
         0.0625},
        {{"DeepSeek-V3.2", "deepseek-ai--DeepSeek-V3.2.config.json"}, 61, 1, 1536, 256, 8, 1, 10000, 40,
         0.1352337788608801},
        {{"GLM-5", "zai-org--GLM-5.config.json"}, 78, 1, 2048, 256, 1, 0, 1e6, 1, 0.0625},
        {{"GLM-5", "zai-org--GLM-5.1.config.json"}, 78, 1, 2048, 256, 1, 0, 1e6, 1, 0.0625},
        {{"GLM-5.2", "zai-org--GLM-5.2.config.json"}, 78, 1, 2048, 256, 1, 0, 8e6, 1, 0.0625},
    };
    for (size_t k = 0; k < COUNT(models) * SOURCES; k++) {
        size_t i = k / SOURCES;
        enum source from = k % SOURCES;
        struct config c;
        vb_error err;
        if (!is_here(&models[i].of, from))
            continue;
        if (read_config(&c, &models[i].of, from, &err))
            fail_msg("%s: %s", models[i].of.stand_in, err.message);
        assert_int_equal(c.num_hidden_layers, models[i].layers);
        assert_int_equal(c.num_nextn_predict_layers, models[i].mtp);
        assert_int_equal(c.q_lora_rank, models[i].q);
        assert_int_equal(c.n_routed_experts, models[i].E);
        assert_int_equal(c.n_group, models[i].groups);
        assert_int_equal(c.fp8, models[i].fp8);
        assert_int_equal(c.int4, !strcmp(models[i].of.stand_in, "Kimi-K2.5"));
        assert_true(c.rope_theta == models[i].theta && c.rope_factor == models[i].yarn_factor);
        assert_int_equal(c.rope_yarn, models[i].yarn_factor > 1);
        assert_true(fabs(config_attention_scale_f64(&c) / models[i].scale - 1.0) < 1e-11);
        int glm_5 = !strncmp(models[i].of.stand_in, "GLM-5", 5),
            has_indexer = glm_5 || !strcmp(models[i].of.stand_in, "DeepSeek-V3.2");
        assert_int_equal(c.index_topk, has_indexer ? 2048 : 0);
        assert_int_equal(c.index_n_heads, has_indexer ? glm_5 ? 32 : 64 : 0);
        assert_int_equal(c.index_head_dim, has_indexer ? 128 : 0);
        assert_int_equal(c.indexer_rope_interleave, glm_5);
    }
}

/* Files that leave keys out: Hugging Face would run them with the class defaults, which are not the models' own. */
static void check_abridged(enum source from)
{
    static const struct published flash = {"GLM-4.7-Flash, abridged", "zai-org--GLM-4.7-Flash.config.json"},
        whole_flash = {"GLM-4.7-Flash", "zai-org--GLM-4.7-Flash.vllm-test.transcribed.config.json"},
        thinking = {"Kimi-K2-Thinking, abridged", "moonshotai--Kimi-K2-Thinking.config.json"};
    struct config c, whole;
    vb_error err;
    if (!is_here(&flash, from) || !is_here(&whole_flash, from) || !is_here(&thinking, from))
        return;
    assert_int_equal(read_config(&c, &flash, from, &err), VB_OK);
    assert_int_equal(read_config(&whole, &whole_flash, from, &err), VB_OK);
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
    assert_int_equal(read_config(&c, &thinking, from, &err), VB_OK);
    assert_true(c.n_group == 8 && !c.rope_yarn); /* the model's own: 1 and YaRN, which this file leaves out */
}

TEST(abridged_files_have_the_defaults_of_their_class)
{
    check_abridged(STAND_IN);
    check_abridged(FILE_OF_AUTHOR);
}

TEST(other_architectures_are_refused_in_one_sentence)
{
    static const char others[] = "is not supported, only DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, "
                                 "Glm4MoeLiteForCausalLM, DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM, "
                                 "Mistral4ForCausalLM and YoutuForCausalLM";
    static const struct {
        struct published of;
        const char *message;
    } files[] = {
        {{"Qwen3-Next", "Qwen--Qwen3-Next-80B-A3B-Thinking.config.json"}, "architecture Qwen3NextForCausalLM is not "
         "supported: the linear attention of Qwen3-Next is not computed here"},
        {{"MiMo", "XiaomiMiMo--MiMo-7B-Base.config.json"}, "architecture \"MiMoForCausalLM\" "},
        {{"MiMo-V2", "XiaomiMiMo--MiMo-V2-Flash.config.json"}, "architecture \"MiMoV2FlashForCausalLM\" "},
        {{"GLM-4.7", "zai-org--GLM-4.7-FP8.config.json"}, "architecture \"Glm4MoeForCausalLM\" "},
        {{"DeepSeek-V4", "deepseek-ai--DeepSeek-V4-Flash.config.json"},
         "architecture DeepseekV4ForCausalLM is not supported: the compressed "
         "sparse attention and hyper-connections of DeepSeek-V4 are not computed here"},
        {{"DeepSeek-V4", "deepseek-ai--DeepSeek-V4-Pro.config.json"},
         "architecture DeepseekV4ForCausalLM is not supported: the compressed "
         "sparse attention and hyper-connections of DeepSeek-V4 are not computed here"},
    };
    static const struct published unnamed[] = {
        {"DeepSeek's script", "deepseek-reference-inference.config_16B.json"},
        {"DeepSeek's script", "deepseek-reference-inference.config_236B.json"},
        {"DeepSeek's script", "deepseek-reference-inference.config_671B.json"},
        {"DeepSeek's script", "deepseek-reference-inference.config_v3.1.json"},
    };
    struct config c;
    vb_error err;
    char wants[512];
    for (size_t k = 0; k < COUNT(files) * SOURCES; k++) {
        size_t i = k / SOURCES;
        int open_ended = files[i].message[strlen(files[i].message) - 1] == ' ';
        snprintf(wants, sizeof wants, "config.json: %s%s", files[i].message, open_ended ? others : "");
        if (!is_here(&files[i].of, k % SOURCES))
            continue;
        assert_int_equal(read_config(&c, &files[i].of, k % SOURCES, &err), VB_UNSUPPORTED);
        assert_string_equal(err.message, wants);
    }
    for (size_t k = 0; k < COUNT(unnamed) * SOURCES; k++) {
        if (!is_here(&unnamed[k / SOURCES], k % SOURCES))
            continue;
        assert_int_equal(read_config(&c, &unnamed[k / SOURCES], k % SOURCES, &err), VB_BAD_CHECKPOINT);
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
