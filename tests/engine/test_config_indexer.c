/* tests/engine/test_config_indexer.c -- the keys of an indexer in config.json: defaults, which layers are shared, and
 * refusals. */
#include "engine/model/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Reads a config of `model_type` with the given keys. */
static int parse(struct config *c, const char *model_type, const char *keys, vb_error *err)
{
    char json[1024];
    memset(c, 0xee, sizeof *c);
    snprintf(json, sizeof json, "{\"model_type\":\"%s\"%s%s}", model_type, *keys ? "," : "", keys);
    return config_parse(c, json, strlen(json), NULL, 0, "config.json", err);
}

TEST(what_the_file_does_not_say_is_the_default_of_its_class)
{
    struct config c;
    vb_error err;
    assert_int_equal(parse(&c, "deepseek_v32", "", &err), VB_OK);
    assert_true(c.index_topk == 2048 && c.index_n_heads == 64 && c.index_head_dim == 128 && !c.indexer_rope_interleave);
    assert_int_equal(c.index_share_for_mtp_iteration, 0);
    assert_true(c.dims.index_topk == 2048 && c.dims.index_heads == 64 && c.dims.index_dim == 128);
    assert_int_equal(parse(&c, "glm_moe_dsa", "", &err), VB_OK);
    assert_true(c.index_topk == 2048 && c.index_n_heads == 32 && c.index_head_dim == 128 && c.indexer_rope_interleave);
    assert_int_equal(c.index_share_for_mtp_iteration, 0);
    for (int layer = 0; layer < 80; layer++)
        assert_int_equal(config_layer_is_shared(&c, layer), 0);
    assert_int_equal(parse(&c, "deepseek_v3", "", &err), VB_OK);
    assert_true(!c.index_topk && !c.index_n_heads && !c.dims.index_topk && !config_layer_is_shared(&c, 1));
    assert_int_equal(parse(&c, "glm_moe_dsa",
                           "\"index_topk\":16,\"index_n_heads\":3,\"index_head_dim\":128,\"indexer_rope_interleave\":"
                           "false,\"index_share_for_mtp_iteration\":true",
                           &err),
                     VB_OK);
    assert_true(c.index_topk == 16 && c.index_n_heads == 3 && c.index_head_dim == 128 && !c.indexer_rope_interleave);
    assert_int_equal(c.index_share_for_mtp_iteration, 1);
}

/* The kinds are written again from transformers' GlmMoeDsaConfig. */
TEST(shared_layers_are_named_or_follow_from_the_schedule)
{
    static const struct {
        const char *keys, *kinds;
    } cases[] = {
        {"", "FFFFFFFFFFFF"},
        {"\"index_topk_freq\":1,\"index_skip_topk_offset\":0", "FFFFFFFFFFFF"},
        {"\"index_topk_freq\":4,\"index_skip_topk_offset\":3", "FFFSSSFSSSFS"},
        {"\"index_topk_freq\":4", "FFSSSFSSSFSS"},
        {"\"index_topk_freq\":3,\"index_skip_topk_offset\":1", "FSSFSSFSSFSS"},
        {"\"index_topk_freq\":0", "FFFFFFFFFFFF"},
        {"\"index_topk_freq\":4,\"index_topk_pattern\":\"FSFSFSFFFSSS\"", "FSFSFSFFFSSS"},
        {"\"index_topk_pattern\":[\"full\",\"shared\",\"full\",\"shared\",\"full\",\"full\",\"full\",\"full\",\"full\","
         "\"full\",\"full\","
         "\"shared\"]",
         "FSFSFFFFFFFS"},
        {"\"index_topk_pattern\":\"FFFFFFFFFFFF\",\"indexer_types\":[\"full\",\"full\",\"full\",\"full\",\"full\","
         "\"full\",\"full\","
         "\"full\",\"full\",\"full\",\"shared\",\"shared\"]",
         "FFFFFFFFFFSS"},
        {"\"index_topk_pattern\":null,\"indexer_types\":null,\"index_topk_freq\":6", "FFSSSSSFSSSS"},
    };
    struct config c;
    vb_error err;
    uint64_t first = 0;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char keys[512], kinds[16] = "";
        snprintf(keys, sizeof keys, "\"num_hidden_layers\":12%s%s", *cases[i].keys ? "," : "", cases[i].keys);
        if (parse(&c, "glm_moe_dsa", keys, &err))
            fail_msg("%s: %s", keys, err.message);
        for (int layer = 0; layer < 12; layer++)
            kinds[layer] = config_layer_is_shared(&c, layer) ? 'S' : 'F';
        if (strcmp(kinds, cases[i].kinds))
            fail_msg("%s: layers are %s, wanted %s", keys, kinds, cases[i].kinds);
        assert_int_equal(config_layer_is_shared(&c, 12), 0); /* the MTP layer */
        if (!i)
            first = config_hash(&c);
        assert_int_equal(config_hash(&c) == first, !strchr(cases[i].kinds, 'S'));
    }
}

TEST(what_is_wrong_is_told_with_key_and_value)
{
    static const struct {
        const char *keys, *message;
        int code;
    } cases[] = {
        {"\"index_topk\":0", "index_topk is 0, wanted a whole number from 1 to 16777216", VB_BAD_CHECKPOINT},
        {"\"index_topk\":null", "index_topk is null, wanted a whole number from 1 to 16777216", VB_BAD_CHECKPOINT},
        {"\"index_n_heads\":0", "index_n_heads is 0, wanted a whole number from 1 to 65536", VB_BAD_CHECKPOINT},
        {"\"index_head_dim\":64", "index_head_dim 64 is not supported, only 128", VB_UNSUPPORTED},
        {"\"index_head_dim\":256", "index_head_dim 256 is not supported, only 128", VB_UNSUPPORTED},
        {"\"index_head_dim\":0", "index_head_dim is 0, wanted a whole number from 1 to 1024", VB_BAD_CHECKPOINT},
        {"\"qk_rope_head_dim\":192", "qk_rope_head_dim is 192, index_head_dim only 128", VB_BAD_CHECKPOINT},
        {"\"q_lora_rank\":null", "an indexer without q_lora_rank is not supported", VB_UNSUPPORTED},
        {"\"indexer_rope_interleave\":1", "indexer_rope_interleave is 1, wanted true or false", VB_BAD_CHECKPOINT},
        {"\"indexer_types\":[\"full\",\"full\"]",
         "indexer_types is [\"full\",\"full\"], wanted a list of num_hidden_layers names", VB_BAD_CHECKPOINT},
        {"\"indexer_types\":\"FSS\"", "indexer_types is \"FSS\", wanted a list of num_hidden_layers names",
         VB_BAD_CHECKPOINT},
        {"\"indexer_types\":[\"full\",\"half\",\"full\"]",
         "indexer_types is [\"full\",\"half\",\"full\"], wanted a list of \"full\" and "
         "\"shared\"",
         VB_BAD_CHECKPOINT},
        {"\"indexer_types\":[\"full\",1,\"full\"]",
         "indexer_types is [\"full\",1,\"full\"], wanted a list of \"full\" and \"shared\"", VB_BAD_CHECKPOINT},
        {"\"indexer_types\":[\"shared\",\"full\",\"full\"]",
         "indexer_types is [\"shared\",\"full\",\"full\"], wanted a full layer first", VB_BAD_CHECKPOINT},
        {"\"index_topk_pattern\":\"FXF\"", "index_topk_pattern is \"FXF\", wanted one F or S per layer",
         VB_BAD_CHECKPOINT},
        {"\"index_topk_pattern\":\"FS\"", "index_topk_pattern is \"FS\", wanted one F or S per layer",
         VB_BAD_CHECKPOINT},
        {"\"index_topk_pattern\":\"SFF\"", "index_topk_pattern is \"SFF\", wanted a full layer first",
         VB_BAD_CHECKPOINT},
        {"\"index_topk_freq\":-1", "index_topk_freq is -1, wanted a whole number from 0 to 10000", VB_BAD_CHECKPOINT},
        {"\"index_topk_freq\":4,\"index_skip_topk_offset\":0", "index_skip_topk_offset is 0, wanted a full layer first",
         VB_BAD_CHECKPOINT},
    };
    struct config c;
    vb_error err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char keys[512], wants[512];
        snprintf(keys, sizeof keys, "\"num_hidden_layers\":3,%s", cases[i].keys);
        snprintf(wants, sizeof wants, "config.json: %s", cases[i].message);
        int rc = parse(&c, "deepseek_v32", keys, &err);
        if (rc != cases[i].code || strcmp(err.message, wants))
            fail_msg("%s: code %d \"%s\", wanted %d \"%s\"", keys, rc, rc ? err.message : "", cases[i].code, wants);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_file_does_not_say_is_the_default_of_its_class),
        cmocka_unit_test(shared_layers_are_named_or_follow_from_the_schedule),
        cmocka_unit_test(what_is_wrong_is_told_with_key_and_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
