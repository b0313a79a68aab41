/* tests/engine/test_gguf.c -- a GGUF file gives the bits of the directory whose weights it holds, whatever converter
 * wrote it, and the ids of its tokenizer.json. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/files/gguf.h"
#include "engine/text/tokenizer_internal.h"
#include "ops/quantize.h"
#include "simd/decode.h"
#include "tests/support/gguf.h"
#include "tests/support/same_model.h"
#include "tests/support/tiny.h"

static const char *const models[] = {TINY_CHECKPOINTS(TINY_NAME) TINY_WITH_INDEXER(TINY_NAME) TINY_SHAPES(TINY_NAME)};

static vb_model *open_file(const char *dir, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return open_model(path);
}

TEST(a_file_gives_the_bits_of_its_directory)
{
    static const struct gguf_choice choices[] = {
        {0}, {.all_f32 = 1}, {.unsplit = 1}, {.flat = 1, .alignment = 8}, {.mixed = 1}, {.fused = 1},
        {.all_f32 = 1, .unsplit = 1, .no_gating = 1, .alignment = 256},
    };
    char dir[64], what[64];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(models); i++) {
        vb_model *m = open_tiny(models[i]);
        for (size_t k = 0; k < COUNT(choices); k++) {
            write_model(dir, "m.gguf", m, &choices[k]);
            vb_model *g = open_file(dir, "m.gguf");
            snprintf(what, sizeof what, "%s, choice %zu", models[i], k);
            check_same_runs(what, m, g);
            vb_model_close(g);
        }
        vb_model_close(m);
    }
    remove_dir(dir);
}

TEST(nothing_but_kv_b_is_copied)
{
    char dir[64];
    vb_model *m = open_tiny("v3-mtp3");
    make_dir(dir);
    write_model(dir, "split.gguf", m, &(struct gguf_choice){0});
    write_model(dir, "whole.gguf", m, &(struct gguf_choice){.unsplit = 1});
    vb_model *split = open_file(dir, "split.gguf"), *whole = open_file(dir, "whole.gguf");
    const struct config *c = &m->config;
    size_t one = (size_t)(c->num_attention_heads * (c->qk_nope_head_dim + c->v_head_dim) * c->kv_lora_rank) * 2;
    assert_int_equal(checkpoint_copied(split->checkpoint), one * (size_t)(c->num_hidden_layers + m->num_mtp));
    assert_int_equal(checkpoint_copied(whole->checkpoint), 0);
    vb_model_close(whole);
    vb_model_close(split);
    vb_model_close(m);
    remove_dir(dir);
}

/* Both are stored: the whole one is taken. */
TEST(parts_beside_the_whole_are_explained)
{
    char dir[64];
    vb_model *m = open_tiny("v2-lite");
    struct gguf_choice split = {0}, whole = {.unsplit = 1};
    struct gguf_writer w = {0};
    make_dir(dir);
    put_config(&w, m, &split);
    put_model(&w, m, &split);
    for (int i = 0; i < m->config.num_hidden_layers; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "blk.%d.", i);
        put_matrix(&w, prefix, "attn_kv_b", &m->layers[i].self_attn.w_uk, whole.all_f32);
    }
    gguf_write(&w, dir, "m.gguf");
    vb_model *g = open_file(dir, "m.gguf");
    const struct tensor *t = checkpoint_find(g->checkpoint, "blk.0.attn_k_b.weight");
    assert_non_null(t);
    assert_string_equal(t->ignored, "a part of attn_kv_b, which is stored too");
    assert_int_equal(checkpoint_copied(g->checkpoint), 0);
    check_same_runs("both", m, g);
    vb_model_close(g);
    vb_model_close(m);
    remove_dir(dir);
}

/* Files of GLM-5.2 were published in which every layer has an indexer: the shared ones have that of the last full layer
 * before them. */
TEST(indexers_of_shared_layers_are_left_out)
{
    char dir[64], prefix[32];
    struct gguf_choice o = {0};
    struct gguf_writer w = {0};
    vb_model *m = open_tiny("glm5");
    const struct mla *full = &m->layers[1].self_attn;
    make_dir(dir);
    put_config(&w, m, &o);
    put_model(&w, m, &o);
    for (int i = 2; i < 4; i++) {
        assert_true(config_layer_is_shared(&m->config, i));
        snprintf(prefix, sizeof prefix, "blk.%d.indexer.", i);
        put_matrix(&w, prefix, "attn_q_b", &full->indexer.wq_b, 0);
        put_matrix(&w, prefix, "attn_k", &full->indexer.wk, 0);
        put_vector(&w, prefix, "k_norm.weight", full->indexer.k_norm, 128);
        put_vector(&w, prefix, "k_norm.bias", full->indexer.k_norm_bias, 128);
        put_matrix(&w, prefix, "proj", &full->indexer.weights_proj, 1);
    }
    gguf_write(&w, dir, "m.gguf");
    vb_model *g = open_file(dir, "m.gguf");
    const struct tensor *t = checkpoint_find(g->checkpoint, "model.layers.3.self_attn.indexer.wk.weight");
    assert_non_null(t);
    assert_string_equal(t->ignored, "the layer shares what the last full layer before it chooses");
    check_same_runs("repeated indexers", m, g);
    vb_model_close(g);
    vb_model_close(m);
    remove_dir(dir);
}

/* The converter can leave out MTP layers that the metadata counts. */
TEST(mtp_layers_of_the_metadata_may_be_missing)
{
    static const char *const names[] = {"glm5", "v3"};
    char dir[64];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(names); i++) {
        struct gguf_choice o = {0};
        struct gguf_writer w = {0};
        vb_model *m = open_tiny(names[i]);
        put_config(&w, m, &o);
        m->num_mtp = 0;
        put_model(&w, m, &o);
        gguf_write(&w, dir, "m.gguf");
        vb_model *g = open_file(dir, "m.gguf");
        assert_int_equal(g->config.num_nextn_predict_layers, 1);
        check_same_runs(names[i], m, g); /* also that neither has modules */
        vb_model_close(g);
        vb_model_close(m);
    }
    remove_dir(dir);
}

/* llama.cpp quantizes indexer.proj with all other matrices. Its products are computed in f32 all the same. */
TEST(a_quantized_weights_proj_is_computed_in_f32)
{
    static unsigned char blocks[8][34 * 64];
    char dir[64];
    vb_model *m = open_tiny("glm5");
    size_t used = 0;
    for (int i = 0; i <= m->config.num_hidden_layers; i++) {
        struct mla *a = i < m->config.num_hidden_layers ? &m->layers[i].self_attn : &m->mtp[0].layer.self_attn;
        struct weight_view *v = &a->indexer.weights_proj;
        float wide[64 * 8];
        if (!a->has_indexer)
            continue;
        assert_true(used < COUNT(blocks) && v->rows * v->cols <= COUNT(wide));
        for (size_t row = 0; row < v->rows; row++)
            decode_weights(wide + row * v->cols, v, row, 0, v->cols);
        assert_int_equal(op_quantize_q8_0(blocks[used], wide, v->rows * v->cols), 0);
        *v = (struct weight_view){.type = WEIGHT_Q8_0, .data = blocks[used++], .rows = v->rows, .cols = v->cols,
                                  .stride = v->cols};
    }
    assert_int_equal(used, 3); /* two full layers and the MTP layer */
    make_dir(dir);
    write_model(dir, "q8_0.gguf", m, &(struct gguf_choice){0});
    write_model(dir, "f32.gguf", m, &(struct gguf_choice){.all_f32 = 1});
    vb_model *q = open_file(dir, "q8_0.gguf"), *f = open_file(dir, "f32.gguf");
    assert_string_equal(checkpoint_find(q->checkpoint, "model.layers.0.self_attn.indexer.weights_proj.weight")
                            ->dtype_name,
                        "Q8_0");
    assert_int_equal(q->layers[0].self_attn.indexer.weights_proj.type, WEIGHT_F32);
    check_same_runs("weights_proj in Q8_0", f, q);
    vb_model_close(f);
    vb_model_close(q);
    vb_model_close(m);
    remove_dir(dir);
}

/* ---- the config ---- */

TEST(every_constant_is_the_one_of_config_json)
{
    char dir[64];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(models); i++) {
        vb_model *m = open_tiny(models[i]);
        write_model(dir, "m.gguf", m, &(struct gguf_choice){0});
        vb_model *g = open_file(dir, "m.gguf");
        check_same_config(models[i], &m->config, &g->config);
        vb_model_close(g);
        vb_model_close(m);
    }
    remove_dir(dir);
}

/* What published config.json files have, as float32 and back. */
TEST(a_float_is_the_decimal_that_it_was)
{
    static const double decimals[] = {0.0, 1e-6, 1e-5, 0.707, 1.0, 2.5, 2.446, 2.827, 1.8, 16.0, 40.0, 64.0, 10000,
                                      50000, 1e6, 0.1, 0.333, 1e-20, 1e30, -0.25, 3.1415927, 1e-45, 8388608, 123456.7};
    for (size_t i = 0; i < COUNT(decimals); i++) {
        float f = (float)decimals[i], tenth = (float)(0.1 * decimals[i]);
        struct gguf_value v = {.type = GGUF_F32, .count = 1, .data = (const unsigned char *)&f};
        double x = -1;
        assert_true(gguf_real(&v, 0, &x));
        check_same_real("as it is", "a number", decimals[i], x);
        v.data = (const unsigned char *)&tenth;
        if (decimals[i] == 0 || (decimals[i] > 1e-10 && decimals[i] < 1e10)) { /* subnormals have lost digits */
            assert_true(gguf_real(&v, 1, &x));
            check_same_real("ten times a tenth", "a number", decimals[i], x);
        }
    }
}

TEST(without_group_keys_there_are_no_groups_and_it_is_known)
{
    char dir[64];
    make_dir(dir);
    vb_model *m = open_tiny("v3");
    assert_true(m->config.n_group > 1);
    write_model(dir, "m.gguf", m, &(struct gguf_choice){.no_groups = 1});
    vb_model *g = open_file(dir, "m.gguf");
    assert_true(g->config.no_groups);
    assert_int_equal(g->config.n_group, 1);
    assert_int_equal(g->config.topk_group, 1);
    assert_int_equal(g->config.topk_method, TOPK_NOAUX_TC);
    vb_model_close(g);
    vb_model_close(m);
    m = open_tiny("v2");
    write_model(dir, "m.gguf", m, &(struct gguf_choice){.no_groups = 1});
    g = open_file(dir, "m.gguf");
    assert_true(g->config.no_groups);
    assert_int_equal(g->config.topk_method, TOPK_GREEDY);
    vb_model_close(g);
    vb_model_close(m);
    remove_dir(dir);
}

/* The config that a file says of which only the metadata is written. */
static void said_config(struct config *c, const vb_model *m, const struct gguf_choice *o)
{
    struct gguf_writer w = {0};
    struct gguf *g;
    size_t size;
    put_config(&w, m, o);
    char *bytes = gguf_bytes(&w, &size);
    OK(gguf_parse(&g, bytes, size, "f", NULL, &err));
    OK(config_from_gguf(c, g, &err));
    gguf_close(g);
    free(bytes);
}

/* As in llama.cpp: a file of GLM-5.2 is known by its context length. Its config.json has index_topk_freq 4 and
 * index_skip_topk_offset 3. */
TEST(without_the_list_of_full_layers_the_context_length_decides)
{
    static const char pattern[] = "FFFSSSFSSSFS";
    vb_model *m = open_tiny("glm5");
    struct config c;
    m->config.num_hidden_layers = (int)sizeof pattern - 1;
    for (int i = 0; i < 3; i++) {
        m->config.max_position_embeddings = i ? 1048576 : 1048575;
        said_config(&c, m, &(struct gguf_choice){.no_types = i < 2});
        assert_int_equal(c.num_hidden_layers, m->config.num_hidden_layers);
        for (int layer = 0; layer < c.num_hidden_layers; layer++)
            assert_int_equal(config_layer_is_shared(&c, layer), i == 2 ? config_layer_is_shared(&m->config, layer)
                                                                       : i == 1 && pattern[layer] == 'S');
    }
    vb_model_close(m);
}

/* ---- sets of files ---- */

static void put_split(struct gguf_writer *w, int number, int count, int tensors)
{
    key_number(w, "split.no", U16, (uint64_t)number);
    key_number(w, "split.count", U16, (uint64_t)count);
    key_number(w, "split.tensors.count", I32, (uint64_t)tensors);
}

static void refused(const char *dir, const char *name, const char *part)
{
    char path[128];
    vb_model *g;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    REFUSED(vb_model_open(&g, path, NULL, &err), VB_BAD_CHECKPOINT, part);
}

TEST(a_set_of_files_is_one_model)
{
    char dir[64], path[128], name[128];
    struct gguf_choice o = {0};
    struct gguf_writer w = {0};
    vb_model *m = open_tiny("v2-lite"), *g;
    int layers = m->config.num_hidden_layers, total = 0;
    make_dir(dir);
    for (int round = 0; round < 2; round++) { /* the first counts the tensors */
        int tensors = 0;
        for (int part = 0; part <= layers; part++) { /* keys alone, then a layer each, the last with what is outside */
            if (!part)
                put_config(&w, m, &o);
            put_split(&w, part, layers + 1, total);
            if (part)
                put_layer(&w, &m->config, &m->layers[part - 1], part - 1, &o);
            if (part == layers) {
                put_matrix(&w, "", "token_embd", &m->embed_tokens, 0);
                put_matrix(&w, "", "output", &m->lm_head, 0);
                put_vector(&w, "", "output_norm.weight", m->norm, (size_t)m->config.hidden_size);
            }
            tensors += (int)w.n_tensors;
            snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", part + 1, layers + 1);
            gguf_write(&w, dir, name);
        }
        total = tensors;
    }
    g = open_file(dir, "m-00001-of-00004.gguf");
    check_same_runs("a set", m, g);
    vb_model_close(g);

    refused(dir, "m-00002-of-00004.gguf", "m-00002-of-00004.gguf: it is file 2 of a set of 4, wanted the first");
    put_split(&w, 1, 4, total);
    put_layer(&w, &m->config, &m->layers[1], 1, &o);
    gguf_write(&w, dir, "m-00002-of-00004.gguf");
    refused(dir, "m-00001-of-00004.gguf", "m-00003-of-00004.gguf: blk.1.attn_k");
    put_split(&w, 2, 4, total);
    gguf_write(&w, dir, "m-00002-of-00004.gguf");
    refused(dir, "m-00001-of-00004.gguf",
            "m-00002-of-00004.gguf: it is file 3 of a set of 4, wanted what its name says");
    put_split(&w, 1, 5, total);
    gguf_write(&w, dir, "m-00002-of-00004.gguf");
    refused(dir, "m-00001-of-00004.gguf",
            "m-00002-of-00004.gguf: it is of a set of 5 files, m-00001-of-00004.gguf of one of 4");
    put_split(&w, 1, 4, total);
    gguf_write(&w, dir, "m-00002-of-00004.gguf");
    refused(dir, "m-00001-of-00004.gguf", "split.tensors.count says");
    snprintf(path, sizeof path, "%s/m-00002-of-00004.gguf", dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/m-00001-of-00004.gguf", dir);
    REFUSED(vb_model_open(&g, path, NULL, &err), VB_IO, "m-00002-of-00004.gguf: No such file");
    snprintf(name, sizeof name, "%s/other.gguf", dir);
    assert_int_equal(rename(path, name), 0);
    refused(dir, "other.gguf",
            "other.gguf: it is the first of 4 files, and its name does not end in -00001-of-00004.gguf");
    vb_model_close(m);
    remove_dir(dir);
}

/* ---- the tokenizer ---- */

static struct vb_tokenizer *open_tokenizer(const char *tokenizer, const char *pre, size_t size)
{
    struct gguf_writer w = {0};
    struct vb_tokenizer *t = NULL;
    struct gguf *g;
    size_t n;
    key_u32(&w, "tokenizer.ggml.bos_token_id", 0);
    key_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    put_tokenizer(&w, tokenizer, pre, size);
    char *bytes = gguf_bytes(&w, &n);
    OK(gguf_parse(&g, bytes, n, "t.gguf", NULL, &err));
    OK(tokenizer_parse_gguf(&t, g, NULL, &err));
    gguf_close(g);
    free(bytes);
    return t;
}

TEST(a_tokenizer_gives_the_ids_of_its_tokenizer_json)
{
    struct vb_tokenizer *json = NULL, *gguf = open_tokenizer("golden/tale", "deepseek-v3", 1100);
    OK(tokenizer_open(&json, "golden/tale", NULL, &err));
    check_same_tokenizer(json, gguf, 1100);
    tokenizer_close(gguf);
    tokenizer_close(json);
}

/* Compares the words of a text with a list of them. */
static void check_words(const char *name, const struct vb_tokenizer *t, const char *text, const json_t *words)
{
    int32_t *sizes;
    size_t count, at = 0, i;
    json_t *word;
    OK(tokenizer_words(t, text, strlen(text), &sizes, &count, &err));
    json_array_foreach(words, i, word) {
        if (i >= count || sizes[i] != (int32_t)json_string_length(word) ||
            memcmp(text + at, json_string_value(word), (size_t)sizes[i]))
            fail_msg("%s: word %zu of \"%s\" should be \"%s\"", name, i, text, json_string_value(word));
        at += (size_t)sizes[i];
    }
    assert_int_equal(count, i);
    vb_free(NULL, sizes);
}

/* Truth: the words that Hugging Face's `tokenizers` makes with the published patterns. */
TEST(each_name_cuts_words_in_its_way)
{
    static const struct {
        const char *name, *as;
    } names[] = {
        {"gpt-2", "gpt-2"},
        {"gigachat", "gpt-2"},
        {"deepseek-v3", "deepseek-v3"},
        {"joyai-llm", "deepseek-v3"},
        {"glm4", "glm4"},
        {"kimi-k2", "kimi-k2"},
        {"tekken", "tekken"},
        {"youtu", "youtu"},
        {"kanana2", "kanana2"},
    };
    json_t *root = json_load_file("golden/tokenizer/words.json", 0, NULL), *one;
    size_t k;
    assert_non_null(root);
    for (size_t i = 0; i < COUNT(names); i++) {
        struct vb_tokenizer *t = open_tokenizer("golden/tokenizer", names[i].name, 900);
        json_t *cases = json_object_get(json_object_get(root, names[i].as), "cases");
        assert_true(json_array_size(cases) > 40);
        json_array_foreach(cases, k, one)
            check_words(names[i].name, t, json_string_value(json_array_get(one, 0)), json_array_get(one, 1));
        tokenizer_close(t);
    }
    json_decref(root);
}

/* The names differ in how many digits make a word: the trained vocabulary has tokens of several. */
TEST(each_name_has_its_ids)
{
    static const struct {
        const char *name, *text;
        size_t tokens;
    } cases[] = {
        {"deepseek-v3", "19", 1},
        {"deepseek-llm", "19", 2},
        {"gpt-2", "19", 1},
        {"glm4", "19", 1},
        {"tekken", "19", 2},
        {"youtu", "19", 2},
        {"kanana2", "19", 1},
        {"deepseek-v3", ".h", 1},
        {"deepseek-llm", ".h", 2},
        {"gpt-2", ".h", 2},
        {"glm4", ".h", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct vb_tokenizer *t = open_tokenizer("golden/tokenizer", cases[i].name, 900);
        int32_t *ids;
        size_t n;
        OK(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), 1, &ids, &n, &err));
        if (n != cases[i].tokens)
            fail_msg("%s: \"%s\" makes %zu tokens, wanted %zu", cases[i].name, cases[i].text, n, cases[i].tokens);
        vb_free(NULL, ids);
        tokenizer_close(t);
    }
}

TEST(a_model_with_a_tokenizer_is_one_file)
{
    char dir[64], path[128];
    struct vb_tokenizer *t = NULL;
    vb_model *m = open_tiny("v2-lite");
    make_dir(dir);
    write_model(dir, "m.gguf", m, &(struct gguf_choice){0});
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    REFUSED(tokenizer_open(&t, path, NULL, &err), VB_IO, "m.gguf: it has no tokenizer");
    vb_model_close(m);
    if (have_tale()) {
        m = open_model("golden/tale");
        write_model(dir, "m.gguf", m, &(struct gguf_choice){.tokenizer = "golden/tale"});
        OK(tokenizer_open(&t, path, NULL, &err));
        vb_model *g = open_model(path);
        check_same_runs("golden/tale", m, g);
        vb_model_close(g);
        vb_model_close(m);
        tokenizer_close(t);
    }
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_the_bits_of_its_directory),
        cmocka_unit_test(nothing_but_kv_b_is_copied),
        cmocka_unit_test(parts_beside_the_whole_are_explained),
        cmocka_unit_test(indexers_of_shared_layers_are_left_out),
        cmocka_unit_test(mtp_layers_of_the_metadata_may_be_missing),
        cmocka_unit_test(a_quantized_weights_proj_is_computed_in_f32),
        cmocka_unit_test(every_constant_is_the_one_of_config_json),
        cmocka_unit_test(a_float_is_the_decimal_that_it_was),
        cmocka_unit_test(without_group_keys_there_are_no_groups_and_it_is_known),
        cmocka_unit_test(without_the_list_of_full_layers_the_context_length_decides),
        cmocka_unit_test(a_set_of_files_is_one_model),
        cmocka_unit_test(a_tokenizer_gives_the_ids_of_its_tokenizer_json),
        cmocka_unit_test(each_name_cuts_words_in_its_way),
        cmocka_unit_test(each_name_has_its_ids),
        cmocka_unit_test(a_model_with_a_tokenizer_is_one_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
