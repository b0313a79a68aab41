/* tests/engine/test_config.c -- what config.json means: every key, the class defaults, and every refusal by its
 * message. */
#include "engine/model/config.h"
#include "simd/kernels.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* a complete file; each test changes one thing */
static const char base[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\",\"vocab_size\":160,"
    "\"hidden_size\":64,\"num_hidden_layers\":3,\"num_nextn_predict_layers\":1,\"max_position_embeddings\":1280,"
    "\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
    "\"q_lora_rank\":40,\"kv_lora_rank\":48,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,\"v_head_dim\":24,"
    "\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":32,"
    "\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,\"mscale_all_dim\":1.0},\"intermediate_size\":192,"
    "\"moe_intermediate_size\":16,\"n_routed_experts\":12,\"n_shared_experts\":1,\"num_experts_per_tok\":3,"
    "\"n_group\":4,\"topk_group\":2,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"norm_topk_prob\":true,"
    "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"attention_bias\":false,"
    "\"hidden_act\":\"silu\",\"bos_token_id\":0,\"eos_token_id\":1,\"quantization_config\":{\"quant_method\":\"fp8\","
    "\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}}";

static int parse(struct config *c, const char *json, vb_error *err)
{
    memset(c, 0xee, sizeof *c);
    err->code = VB_OK;
    err->message[0] = 0;
    int rc = config_parse(c, json, strlen(json), NULL, 0, "config.json", err);
    assert_int_equal(rc, err->code);
    return rc;
}

/* base with "a.b" set to a JSON text, or removed when the text is NULL; the caller frees */
static char *changed(const char *path, const char *value)
{
    json_t *root = json_loads(base, 0, NULL), *at = root;
    const char *dot = strchr(path, '.'), *key = dot ? dot + 1 : path;
    char outer[64] = "";
    assert_non_null(root);
    if (dot) {
        memcpy(outer, path, (size_t)(dot - path));
        at = json_object_get(root, outer);
        assert_non_null(at);
    }
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        json_object_set_new(at, key, v);
    } else {
        json_object_del(at, key);
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static void expect(const char *json, int code, const char *message)
{
    struct config c;
    vb_error err;
    int rc = parse(&c, json, &err);
    forget_place(err.message);
    if (rc != code || strcmp(err.message, message))
        fail_msg("code %d \"%s\", wanted %d \"%s\", for %s", rc, err.message, code, message, json);
}

static void expect_change(const char *path, const char *value, int code, const char *message)
{
    char *json = changed(path, value);
    expect(json, code, message);
    free(json);
}

static struct config with(const char *path, const char *value)
{
    struct config c;
    vb_error err;
    char *json = changed(path, value);
    if (parse(&c, json, &err))
        fail_msg("%s = %s: %s", path, value ? value : "(removed)", err.message);
    free(json);
    return c;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

TEST(every_key_is_read_into_its_field)
{
    struct config c;
    vb_error err;
    assert_int_equal(parse(&c, base, &err), VB_OK);
    assert_string_equal(c.architecture, "DeepseekV3ForCausalLM");
    assert_string_equal(c.model_type, "deepseek_v3");
    const struct {
        int has, wants;
    } v[] = {
        {c.vocab_size, 160},
        {c.hidden_size, 64},
        {c.num_hidden_layers, 3},
        {c.num_nextn_predict_layers, 1},
        {c.max_position_embeddings, 1280},
        {c.tie_word_embeddings, 0},
        {c.num_attention_heads, 4},
        {c.q_lora_rank, 40},
        {c.kv_lora_rank, 48},
        {c.qk_nope_head_dim, 32},
        {c.qk_rope_head_dim, 16},
        {c.v_head_dim, 24},
        {c.rope_interleave, 1},
        {c.rope_yarn, 1},
        {c.rope_original_max_position_embeddings, 32},
        {c.intermediate_size, 192},
        {c.moe_intermediate_size, 16},
        {c.n_routed_experts, 12},
        {c.n_shared_experts, 1},
        {c.num_experts_per_tok, 3},
        {c.n_group, 4},
        {c.topk_group, 2},
        {c.first_k_dense_replace, 1},
        {c.moe_layer_freq, 1},
        {c.norm_topk_prob, 1},
        {(int)c.scoring_func, SCORING_SIGMOID},
        {(int)c.topk_method, TOPK_NOAUX_TC},
        {c.fp8, 1},
        {c.fp8_block_rows, 128},
        {c.fp8_block_cols, 128},
        {c.bos_token_id, 0},
        {c.num_eos, 1},
        {c.eos_token_ids[0], 1},
    };
    for (size_t i = 0; i < COUNT(v); i++)
        if (v[i].has != v[i].wants)
            fail_msg("value %zu of the list is %d, wanted %d", i, v[i].has, v[i].wants);
    assert_true(c.rms_norm_eps == 1e-6 && c.latent_eps == 1e-6 && c.rope_theta == 10000 &&
                c.routed_scaling_factor == 2.5);
    assert_true(c.rope_factor == 40 && c.rope_beta_fast == 32 && c.rope_beta_slow == 1 && c.rope_mscale == 1);
    assert_true(c.rope_mscale_all_dim == 1);
}

/* The class defaults of transformers 5.23, written again from the classes and not from the table of config.c. */
TEST(what_the_file_does_not_say_is_the_default_of_its_class)
{
    static const struct {
        const char *json;
        int V, d, layers, mtp, positions, H, q, n, v, i, moe, E, shared, chosen, groups, chosen_groups, dense, norm,
            bos, eos;
        double factor, eps;
        enum scoring_func scoring;
        enum topk_method method;
    } classes[] = {
        {"{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"num_experts_per_tok\":6}", 102400, 4096, 32, 0, 2048, 32,
         1536, 128, 128, 11008, 1407, 64, 2, 6, 1, 1, 0, 0, 1, 2, 1.0, 1e-6, SCORING_SOFTMAX, TOPK_GREEDY},
        {"{\"architectures\":[\"DeepseekV3ForCausalLM\"]}", 129280, 7168, 61, 1, 4096, 128, 1536, 128, 128, 18432, 2048,
         256, 1, 8, 8, 4, 3, 1, 0, 1, 2.5, 1e-6, SCORING_SIGMOID, TOPK_NOAUX_TC},
        {"{\"model_type\":\"glm4_moe_lite\"}", 154880, 2048, 47, 0, 202752, 20, 768, 192, 256, 10240, 1536, 64, 1, 4, 1,
         1, 1, 1, 0, 1, 1.8, 1e-5, SCORING_SIGMOID, TOPK_NOAUX_TC},
        {"{\"architectures\":[\"DeepseekV32ForCausalLM\"]}", 129280, 7168, 61, 1, 163840, 128, 1536, 128, 128, 18432,
         2048, 256, 1, 8, 8, 4, 3, 1, 0, 1, 2.5, 1e-6, SCORING_SIGMOID, TOPK_NOAUX_TC},
        {"{\"model_type\":\"glm_moe_dsa\"}", 154880, 6144, 78, 1, 202752, 64, 2048, 192, 256, 12288, 2048, 256, 1, 8, 1,
         1, 3, 1, 0, 1, 2.5, 1e-5, SCORING_SIGMOID, TOPK_NOAUX_TC},
    };
    for (size_t k = 0; k < COUNT(classes); k++) {
        struct config c;
        vb_error err;
        if (parse(&c, classes[k].json, &err))
            fail_msg("%s", err.message);
        assert_int_equal(c.vocab_size, classes[k].V);
        assert_int_equal(c.hidden_size, classes[k].d);
        assert_int_equal(c.num_hidden_layers, classes[k].layers);
        assert_int_equal(c.num_nextn_predict_layers, classes[k].mtp);
        assert_int_equal(c.max_position_embeddings, classes[k].positions);
        assert_int_equal(c.num_attention_heads, classes[k].H);
        assert_int_equal(c.q_lora_rank, classes[k].q);
        assert_int_equal(c.kv_lora_rank, 512);
        assert_int_equal(c.qk_nope_head_dim, classes[k].n);
        assert_int_equal(c.qk_rope_head_dim, 64);
        assert_int_equal(c.v_head_dim, classes[k].v);
        assert_int_equal(c.intermediate_size, classes[k].i);
        assert_int_equal(c.moe_intermediate_size, classes[k].moe);
        assert_int_equal(c.n_routed_experts, classes[k].E);
        assert_int_equal(c.n_shared_experts, classes[k].shared);
        assert_int_equal(c.num_experts_per_tok, classes[k].chosen);
        assert_int_equal(c.n_group, classes[k].groups);
        assert_int_equal(c.topk_group, classes[k].chosen_groups);
        assert_int_equal(c.first_k_dense_replace, classes[k].dense);
        assert_int_equal(c.norm_topk_prob, classes[k].norm);
        assert_int_equal(c.bos_token_id, classes[k].bos);
        assert_int_equal(c.eos_token_ids[0], classes[k].eos);
        assert_true(c.routed_scaling_factor == classes[k].factor && c.rms_norm_eps == classes[k].eps);
        assert_true(c.scoring_func == classes[k].scoring && c.topk_method == classes[k].method);
        assert_true(c.rope_theta == 10000 && c.rope_interleave && !c.rope_yarn && !c.fp8 && !c.tie_word_embeddings);
    }
    expect("{\"architectures\":[\"DeepseekV2ForCausalLM\"]}", VB_BAD_CHECKPOINT,
           "config.json: num_experts_per_tok is missing, and DeepseekV2ForCausalLM has no default for it");
}

TEST(the_table_says_what_is_a_default)
{
    struct config c = with("moe_layer_freq", NULL);
    const char *key;
    char value[32];
    int from_default, rows = 0, defaults = 0;
    for (size_t i = 0; config_row(&c, i, &key, value, &from_default); i++, rows++) {
        defaults += from_default;
        assert_int_equal(from_default, !strcmp(key, "moe_layer_freq") || !strcmp(key, "rope_interleave"));
        if (!strcmp(key, "scoring_func"))
            assert_string_equal(value, "sigmoid");
        if (!strcmp(key, "rms_norm_eps"))
            assert_string_equal(value, "1e-06");
        if (!strcmp(key, "hidden_size"))
            assert_string_equal(value, "64");
    }
    assert_int_equal(rows, 29);
    assert_int_equal(defaults, 2);
}

TEST(null_means_none_where_none_is_a_value)
{
    assert_int_equal(with("q_lora_rank", "null").q_lora_rank, 0);
    assert_int_equal(with("n_shared_experts", "null").n_shared_experts, 0);
    assert_int_equal(with("num_nextn_predict_layers", "null").num_nextn_predict_layers, 0);
    assert_int_equal(with("bos_token_id", "null").bos_token_id, -1);
    assert_int_equal(with("eos_token_id", "null").num_eos, 0);
    assert_int_equal(with("rope_scaling", "null").rope_yarn, 0);
    assert_int_equal(with("quantization_config", "null").fp8, 0);
    expect_change("hidden_size", "null", VB_BAD_CHECKPOINT,
                  "config.json: hidden_size is null, wanted a whole number from 1 to 16777216");
    expect_change("n_group", "null", VB_BAD_CHECKPOINT, "config.json: n_group is missing, and topk_method is noaux_tc");
}

TEST(rope_is_read_from_the_old_key_and_the_new_one)
{
    struct config c = with("rope_scaling", "null");
    assert_true(!c.rope_yarn && c.rope_factor == 1 && c.rope_theta == 10000);

    char *text = changed("rope_scaling", NULL);
    json_t *root = json_loads(text, 0, NULL);
    json_object_del(root, "rope_theta");
    json_object_set_new(root, "rope_parameters",
                        json_loads("{\"rope_type\":\"yarn\",\"rope_theta\":50000.0,\"factor\":64.0,"
                                   "\"original_max_position_embeddings\":4096,\"beta_fast\":null,\"truncate\":true,"
                                   "\"attention_factor\":null,\"partial_rotary_factor\":1.0}",
                                   0, NULL));
    char *newer = json_dumps(root, 0);
    vb_error err;
    if (parse(&c, newer, &err))
        fail_msg("%s", err.message);
    assert_true(c.rope_yarn && c.rope_theta == 50000 && c.rope_factor == 64 && c.rope_beta_fast == 32 &&
                c.rope_beta_slow == 1);
    assert_true(c.rope_mscale == 1 && c.rope_mscale_all_dim == 0 && c.rope_original_max_position_embeddings == 4096);
    free(newer);

    json_object_set_new(root, "rope_theta", json_integer(10000));
    newer = json_dumps(root, 0);
    expect(newer, VB_BAD_CHECKPOINT,
           "config.json: rope_parameters.rope_theta is 50000.0, wanted what rope_theta says outside");
    free(newer);
    json_decref(root);
    free(text);
    assert_int_equal(with("rope_interleave", "false").rope_interleave, 0);
    assert_int_equal(with("rope_scaling.original_max_position_embeddings", NULL).rope_original_max_position_embeddings,
                     1280);
}

TEST(the_scale_of_attention_has_m_squared_under_yarn)
{
    struct config c = with("rope_scaling", "null");
    assert_true(config_attention_scale_f64(&c) == 1.0 / sqrt(48.0));
    c = with("rope_scaling.mscale_all_dim", "0.707");
    double m = 0.1 * 0.707 * kernel_log(40.0) + 1.0;
    assert_true(config_attention_scale_f64(&c) == 1.0 / sqrt(48.0) * m * m);
    assert_true(fabs(m - (0.0707 * log(40.0) + 1.0)) < 1e-15);
    assert_true(config_attention_scale(&c) == (float)config_attention_scale_f64(&c));
    c = with("rope_scaling.mscale_all_dim", NULL);
    assert_true(config_attention_scale_f64(&c) == 1.0 / sqrt(48.0));
    c = with("rope_scaling.factor", "0.5"); /* m = 1 */
    assert_true(config_attention_scale_f64(&c) == 1.0 / sqrt(48.0));
}

TEST(layers_are_dense_first_and_then_sparse)
{
    struct config c = with("first_k_dense_replace", "2");
    assert_false(config_layer_is_moe(&c, 1));
    assert_true(config_layer_is_moe(&c, 2) && config_layer_is_moe(&c, 3));
    c = with("moe_layer_freq", "2");
    assert_false(config_layer_is_moe(&c, 1));
    assert_true(config_layer_is_moe(&c, 2));
    assert_false(config_layer_is_moe(&c, 3));

    char *text = changed("first_k_dense_replace", NULL);
    json_t *root = json_loads(text, 0, NULL);
    json_object_set_new(root, "mlp_layer_types", json_loads("[\"dense\",\"dense\",\"sparse\"]", 0, NULL));
    char *listed = json_dumps(root, 0);
    vb_error err;
    if (parse(&c, listed, &err))
        fail_msg("%s", err.message);
    assert_int_equal(c.first_k_dense_replace, 2);
    free(listed);
    json_decref(root);
    free(text);
    expect_change("mlp_layer_types", "[\"dense\",\"dense\",\"sparse\"]", VB_BAD_CHECKPOINT,
                  "config.json: mlp_layer_types is [\"dense\",\"dense\",\"sparse\"], wanted what first_k_dense_replace "
                  "and moe_layer_freq say");
    expect_change("mlp_layer_types", "[\"dense\",\"sparse\",\"dense\"]", VB_UNSUPPORTED,
                  "config.json: mlp_layer_types [\"dense\",\"sparse\",\"dense\"] is not supported, only dense layers "
                  "first, then sparse ones");
    expect_change("mlp_layer_types", "[\"dense\"]", VB_BAD_CHECKPOINT,
                  "config.json: mlp_layer_types is [\"dense\"], wanted a list of num_hidden_layers names");
    expect_change("mlp_layer_types", "[\"dense\",\"sparse\",7]", VB_BAD_CHECKPOINT,
                  "config.json: mlp_layer_types is [\"dense\",\"sparse\",7], wanted a list of \"dense\" and "
                  "\"sparse\"");
}

TEST(end_tokens_come_from_generation_config_first)
{
    static const char several[] = "{\"eos_token_id\":[7,8,9],\"temperature\":0.6}", silent[] = "{\"do_sample\":true}";
    struct config c;
    vb_error err;
    assert_int_equal(config_parse(&c, base, strlen(base), several, strlen(several), "config.json", &err), VB_OK);
    assert_int_equal(c.num_eos, 3);
    assert_int_equal(c.eos_token_ids[2], 9);
    assert_int_equal(config_parse(&c, base, strlen(base), silent, strlen(silent), "config.json", &err), VB_OK);
    assert_true(c.num_eos == 1 && c.eos_token_ids[0] == 1);
    c = with("eos_token_id", "[3,5]");
    assert_true(c.num_eos == 2 && c.eos_token_ids[1] == 5);

    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"{\"eos_token_id\":-1}",
         "generation_config.json: eos_token_id is -1, wanted a whole number from 0 to 2147483647"},
        {"[]", "generation_config.json: it is not an object"},
        {"{", "generation_config.json: it ends too early"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        int rc = config_parse(&c, base, strlen(base), wrong[i].text, strlen(wrong[i].text), "config.json", &err);
        forget_place(err.message);
        assert_int_equal(rc, VB_BAD_CHECKPOINT);
        assert_string_equal(err.message, wrong[i].message);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

TEST(what_is_not_computed_is_refused_by_name)
{
    static const struct {
        const char *path, *value, *message;
    } cases[] = {
        {"attention_bias", "true", "there is no support for bias in attention (attention_bias is true)"},
        {"mlp_bias", "true", "there is no support for bias in the feed-forward layers (mlp_bias is true)"},
        {"index_topk", "2048",
         "there is no support for a sparse attention indexer, as in DeepSeek-V3.2 (index_topk is 2048)"},
        {"index_kpool", "4", "there is no support for pooled keys of an indexer (index_kpool is 4)"},
        {"zero_expert_num", "128", "there is no support for zero experts, as in LongCat (zero_expert_num is 128)"},
        {"hc_mult", "4", "there is no support for hyper-connections, as in DeepSeek-V4 (hc_mult is 4)"},
        {"swiglu_limit", "10.0", "there is no support for a limited SwiGLU (swiglu_limit is 10.0)"},
        {"use_mla", "false", "use_mla false is not supported, only true"},
        {"hidden_act", "\"gelu\"", "hidden_act \"gelu\" is not supported, only silu"},
        {"hidden_act", "\"a\\nb\"", "hidden_act \"a\\nb\" is not supported, only silu"},
        {"hidden_act", "\"a name so long that a message would be nothing else if all of it were shown in it\"",
         "hidden_act \"a name so long that a message would be nothing else if all ... is not supported, only silu"},
        {"scoring_func", "\"sqrtsoftplus\"", "scoring_func \"sqrtsoftplus\" is not supported, only softmax, sigmoid"},
        {"topk_method", "\"auction\"",
         "topk_method \"auction\" is not supported, only greedy, group_limited_greedy, noaux_tc, group_limited_top2"},
        {"rope_scaling.type", "\"linear\"", "rope_scaling.rope_type \"linear\" is not supported, only default, yarn"},
        {"rope_scaling.type", "\"dynamic\"", "rope_scaling.rope_type \"dynamic\" is not supported, only default, yarn"},
        {"rope_scaling.type", "\"llama3\"", "rope_scaling.rope_type \"llama3\" is not supported, only default, yarn"},
        {"rope_scaling.type", "\"longrope\"",
         "rope_scaling.rope_type \"longrope\" is not supported, only default, yarn"},
        {"rope_scaling.mrope_section", "[1]", "rope_scaling has a key that is not known: \"mrope_section\""},
        {"rope_scaling.attention_factor", "1.5",
         "rope_scaling.attention_factor 1.5 is not supported, only m(mscale) / m(mscale_all_dim), here 1"},
        {"rope_scaling.truncate", "false", "rope_scaling.truncate false is not supported, only true"},
        {"rope_scaling.partial_rotary_factor", "0.5",
         "rope_scaling.partial_rotary_factor 0.5 is not supported, only 1"},
        {"partial_rotary_factor", "0.25", "partial_rotary_factor 0.25 is not supported, only 1"},
        {"quantization_config.quant_method", "\"awq\"",
         "quantization_config.quant_method \"awq\" is not supported, only fp8"},
        {"quantization_config.quant_method", NULL,
         "quantization_config.quant_method missing is not supported, only fp8"},
        {"quantization_config.fmt", "\"e5m2\"", "quantization_config.fmt \"e5m2\" is not supported, only e4m3"},
        {"quantization_config.activation_scheme", "\"static\"",
         "quantization_config.activation_scheme \"static\" is not supported, only dynamic"},
        {"quantization_config.weight_block_size", "true",
         "quantization_config.weight_block_size true is not supported, only a list of two numbers"},
        {"quantization_config.weight_block_size", "[128,48]",
         "quantization_config.weight_block_size [128,48] is not supported, only columns that are a multiple of 32"},
        {"n_group", "12", "topk_method noaux_tc with groups of one expert is not supported"},
        {"num_attention_heads", "16777216",
         "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim) is 805306368, the most is 268435456"},
        {"architectures", "[\"LlamaForCausalLM\"]", "architecture \"LlamaForCausalLM\" is not supported, only "
         "DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM, DeepseekV32ForCausalLM, "
         "GlmMoeDsaForCausalLM, Mistral4ForCausalLM and YoutuForCausalLM"},
        {"model_type", "\"deepseek_v32\"",
         "model_type \"deepseek_v32\" with architecture \"DeepseekV3ForCausalLM\" is not supported"},
        {"model_type", "\"deepseek_v2\"",
         "model_type \"deepseek_v2\" with architecture \"DeepseekV3ForCausalLM\" is not supported"},
        {"architectures", "[\"LongcatFlashForCausalLM\"]",
         "architecture LongcatFlashForCausalLM is not supported: the zero experts of LongCat are not computed here"},
    };
    char message[512];
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(message, sizeof message, "config.json: %s", cases[i].message);
        expect_change(cases[i].path, cases[i].value, VB_UNSUPPORTED, message);
    }
}

TEST(what_changes_nothing_is_not_refused)
{
    with("rope_scaling.attention_factor", "1.0");
    with("rope_scaling.truncate", "true");
    with("rope_scaling.rope_type", "\"yarn\"");
    with("partial_rotary_factor", "1.0");
    with("index_topk", "null");
    with("attention_bias", "null");
    with("quantization_config.scale_fmt", "\"ue8m0\"");
    with("quantization_config.weight_block_size", NULL);
    with("rope_scaling", "{}");
    with("num_key_value_heads", NULL);
    with("model_type", "\"kimi_k2\"");
    with("a key of tomorrow", "[1,2,3]");
}

TEST(what_is_wrong_is_told_with_key_and_value)
{
    static const struct {
        const char *path, *value, *message;
    } cases[] = {
        {"hidden_size", "0", "hidden_size is 0, wanted a whole number from 1 to 16777216"},
        {"hidden_size", "-64", "hidden_size is -64, wanted a whole number from 1 to 16777216"},
        {"hidden_size", "64.0", "hidden_size is 64.0, wanted a whole number from 1 to 16777216"},
        {"hidden_size", "\"64\"", "hidden_size is \"64\", wanted a whole number from 1 to 16777216"},
        {"hidden_size", "9223372036854775807",
         "hidden_size is 9223372036854775807, wanted a whole number from 1 to 16777216"},
        {"num_hidden_layers", "10001", "num_hidden_layers is 10001, wanted a whole number from 1 to 10000"},
        {"num_experts_per_tok", "0", "num_experts_per_tok is 0, wanted a whole number from 1 to 65536"},
        {"tie_word_embeddings", "1", "tie_word_embeddings is 1, wanted true or false"},
        {"rms_norm_eps", "0", "rms_norm_eps is 0, wanted a number from 1e-30 to 1"},
        {"rope_theta", "1", "rope_theta is 1, wanted a number from 1.001 to 1e+15"},
        {"routed_scaling_factor", "null", "routed_scaling_factor is null, wanted a number from 0 to 1e+30"},
        {"qk_rope_head_dim", "15", "qk_rope_head_dim is 15, wanted an even number"},
        {"num_key_value_heads", "1", "num_key_value_heads is 1, wanted num_attention_heads"},
        {"n_group", "5", "n_routed_experts 12 is not a multiple of n_group 5"},
        {"topk_group", "5", "topk_group is 5, n_group only 4"},
        {"num_experts_per_tok", "7", "num_experts_per_tok is 7, topk_group 2 groups of 3 hold fewer"},
        {"scoring_func", "3", "scoring_func is 3, wanted a string"},
        {"rope_scaling", "3", "rope_scaling is 3, wanted an object"},
        {"rope_scaling.type", "3", "rope_scaling.rope_type is 3, wanted a string"},
        {"rope_scaling.type", NULL, "rope_scaling.rope_type is missing, wanted a name beside factor"},
        {"rope_scaling.rope_type", "\"default\"", "rope_scaling.type is \"yarn\", wanted what rope_type says"},
        {"rope_scaling.factor", NULL, "rope_scaling.factor is missing, wanted a number from 0.001 to 1000000000"},
        {"rope_scaling.factor", "0", "rope_scaling.factor is 0, wanted a number from 0.001 to 1000000000"},
        {"rope_scaling.beta_fast", "\"x\"",
         "rope_scaling.beta_fast is \"x\", wanted a number from 0.001 to 1000000000"},
        {"rope_parameters", "{\"rope_type\":\"default\"}",
         "rope_parameters is {\"rope_type\":\"default\"}, wanted what rope_scaling says"},
        {"original_max_position_embeddings", "4096",
         "original_max_position_embeddings is 4096, wanted what the rope parameters say"},
        {"quantization_config", "true", "quantization_config is true, wanted an object"},
        {"quantization_config.weight_block_size", "[0,128]",
         "quantization_config.weight_block_size is 0, wanted a whole number from 1 to 16777216"},
        {"eos_token_id", "[1,\"2\"]", "eos_token_id is \"2\", wanted a whole number from 0 to 2147483647"},
    };
    char message[512];
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(message, sizeof message, "config.json: %s", cases[i].message);
        expect_change(cases[i].path, cases[i].value, VB_BAD_CHECKPOINT, message);
    }
    expect("", VB_BAD_CHECKPOINT, "config.json: it ends too early");
    expect("[]", VB_BAD_CHECKPOINT, "config.json: it is not an object");
    expect("{}", VB_BAD_CHECKPOINT, "config.json: it has neither architectures nor model_type");
    expect("{\"a\":1,\"a\":2}", VB_BAD_CHECKPOINT, "config.json: a key is there twice");
    expect_change("hidden_size", "1e30", VB_BAD_CHECKPOINT,
                  "config.json: hidden_size is 1e30, wanted a whole number from 1 to 16777216");
    expect("not json", VB_BAD_CHECKPOINT, "config.json: it is not JSON");
}

TEST(greedy_has_no_groups)
{
    static const char v2[] = "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"num_experts_per_tok\":%d,\"n_group\":%s,"
                             "\"topk_group\":1,\"topk_method\":\"%s\"}";
    char json[256];
    struct config c;
    vb_error err;
    snprintf(json, sizeof json, v2, 6, "null", "greedy");
    assert_int_equal(parse(&c, json, &err), VB_OK);
    assert_true(c.n_group == 1 && c.topk_group == 1);
    snprintf(json, sizeof json, v2, 6, "null", "group_limited_greedy");
    expect(json, VB_BAD_CHECKPOINT, "config.json: n_group is missing, and topk_method is group_limited_greedy");
    snprintf(json, sizeof json, v2, 65, "1", "greedy");
    expect(json, VB_BAD_CHECKPOINT, "config.json: num_experts_per_tok is 65, n_routed_experts only 64");
    snprintf(json, sizeof json, v2, 0, "1", "greedy"); /* wrong, where the class has no default to fall back on */
    expect(json, VB_BAD_CHECKPOINT, "config.json: num_experts_per_tok is 0, wanted a whole number from 1 to 65536");
    snprintf(json, sizeof json, v2, 1, "64", "group_limited_greedy"); /* a group of one: its maximum is that one */
    assert_int_equal(parse(&c, json, &err), VB_OK);
}

TEST(a_directory_without_config_is_told)
{
    char dir[64], wants[256];
    struct config c;
    vb_error err;
    make_dir(dir);
    assert_int_equal(config_read(&c, dir, NULL, &err), VB_IO);
    snprintf(wants, sizeof wants, "%s/config.json: No such file or directory", dir);
    assert_string_equal(err.message, wants);
    write_text(dir, "config.json", base);
    assert_int_equal(config_read(&c, dir, NULL, &err), VB_OK);
    assert_int_equal(c.num_eos, 1);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[1,2]}");
    assert_int_equal(config_read(&c, dir, NULL, &err), VB_OK);
    assert_int_equal(c.num_eos, 2);
    for (long fail = 0;; fail++) {
        struct counted counted = {.fail = fail};
        vb_allocator a = {counted_alloc, counted_free, &counted};
        int rc = config_read(&c, dir, &a, &err);
        assert_int_equal(counted.alive, 0);
        if (!rc)
            break;
        assert_int_equal(rc, VB_NO_MEMORY);
    }
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_read_into_its_field),
        cmocka_unit_test(what_the_file_does_not_say_is_the_default_of_its_class),
        cmocka_unit_test(the_table_says_what_is_a_default),
        cmocka_unit_test(null_means_none_where_none_is_a_value),
        cmocka_unit_test(rope_is_read_from_the_old_key_and_the_new_one),
        cmocka_unit_test(the_scale_of_attention_has_m_squared_under_yarn),
        cmocka_unit_test(layers_are_dense_first_and_then_sparse),
        cmocka_unit_test(end_tokens_come_from_generation_config_first),
        cmocka_unit_test(what_is_not_computed_is_refused_by_name),
        cmocka_unit_test(what_changes_nothing_is_not_refused),
        cmocka_unit_test(what_is_wrong_is_told_with_key_and_value),
        cmocka_unit_test(greedy_has_no_groups),
        cmocka_unit_test(a_directory_without_config_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
