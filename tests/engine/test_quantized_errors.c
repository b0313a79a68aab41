/* tests/engine/test_quantized_errors.c -- quantized weights that are wrong, each one sentence: types, shapes, scales,
 * numbers that no block holds. Runs in the repository's root. */
#include "tests/support/quantized.h"
#include "tests/support/engine_support.h"

#include "engine/files/gguf.h"
#include "tests/support/gguf.h"

#define EVERY_TYPE "golden/gguf/quantized.gguf"

/* ---- the golden file, with one tensor of another kind ---- */

struct change { /* takes the place of tensor `instead`, or `name`, if there is one; else it is added */
    const char *name;
    uint32_t type;
    int ndim;
    size_t shape[4]; /* outermost first */
    size_t bytes;    /* of zeros */
    int code;
    const char *message, *instead;
};

static size_t end_of_keys(const struct gguf *g, const char *bytes)
{
    size_t end = 24;
    for (size_t i = 0; i < gguf_keys(g); i++) {
        size_t here = (size_t)((const char *)gguf_key(g, i)->end - bytes);
        end = here > end ? here : end;
    }
    return end;
}

static void put_change(struct gguf_writer *w, const struct change *c)
{
    void *zeros = calloc(1, c->bytes + 1);
    assert_non_null(zeros);
    tensor(w, c->name, c->type, c->ndim, c->shape, zeros, c->bytes);
    free(zeros);
}

static void put_same(struct gguf_writer *w, const struct gguf_tensor *t)
{
    size_t shape[4];
    char name[TENSOR_MAX_NAME + 1];
    for (int d = 0; d < t->ndim; d++)
        shape[d] = (size_t)t->shape[d];
    snprintf(name, sizeof name, "%.*s", (int)t->name.size, t->name.s);
    tensor(w, name, t->type->id, t->ndim, shape, t->data, t->bytes);
}

static int is_called(const struct gguf_tensor *t, const char *name)
{
    return t->name.size == strlen(name) && !memcmp(t->name.s, name, t->name.size);
}

static void write_changed(const char *dir, const struct change *c, size_t count)
{
    struct gguf_writer w = {0};
    struct gguf *g;
    char *bytes;
    size_t size;
    OK(vb_read_file(NULL, EVERY_TYPE, &bytes, &size, &err));
    OK(gguf_parse(&g, bytes, size, "f", NULL, &err));
    put(&w.keys, bytes + 24, end_of_keys(g, bytes) - 24);
    w.n_keys = gguf_keys(g);
    for (size_t i = 0; i < gguf_tensors(g); i++) {
        size_t k = 0;
        while (k < count && !is_called(gguf_tensor(g, i), c[k].instead ? c[k].instead : c[k].name))
            k++;
        if (k == count)
            put_same(&w, gguf_tensor(g, i));
    }
    for (size_t k = 0; k < count; k++)
        put_change(&w, &c[k]);
    gguf_write(&w, dir, "f.gguf");
    gguf_close(g);
    vb_free(NULL, bytes);
}

static int open_path(const char *path, const char *precision, vb_error *err)
{
    vb_model *m;
    int rc = vb_model_open(&m, path, &(vb_model_options){.precision = precision}, err);
    if (!rc)
        vb_model_close(m);
    return rc;
}

enum { Q8_0 = 8, Q4_0 = 2, Q5_0 = 6, Q4_K = 12, Q6_K = 14 };

TEST(a_tensor_of_another_type_or_shape_is_told)
{
    static const struct change cases[] = {
        {"blk.0.attn_q_a.weight", Q8_0, 2, {64, 256}, 64 * 8 * 34, 0, NULL, NULL}, /* any supported type will do */
        {"blk.0.attn_q_a.weight", Q6_K, 2, {64, 256}, 64 * 210, 0, NULL, NULL},
        {"blk.0.attn_output.weight", Q4_K, 2, {256, 64}, 0, VB_BAD_CHECKPOINT,
         "f.gguf: blk.0.attn_output.weight has rows of 64 numbers, Q4_K has blocks of 256", NULL},
        {"blk.0.attn_output.weight", Q8_0, 2, {256, 48}, 0, VB_BAD_CHECKPOINT,
         "f.gguf: blk.0.attn_output.weight has rows of 48 numbers, Q8_0 has blocks of 32", NULL},
        {"blk.0.attn_output.weight", Q8_0, 2, {256, 32}, 256 * 34, VB_BAD_CHECKPOINT,
         "f.gguf: model.layers.0.self_attn.o_proj.weight is [256,32], the metadata says [256,64]", NULL},
        {"blk.0.attn_output.weight", Q8_0, 2, {(size_t)1 << 62, 32}, 0, VB_BAD_CHECKPOINT,
         "f.gguf: blk.0.attn_output.weight has more bytes than 64 bits hold", NULL},
        {"blk.0.attn_output.weight", Q6_K, 2, {8, (size_t)1 << 62}, 0, VB_BAD_CHECKPOINT,
         "f.gguf: blk.0.attn_output.weight has more bytes than 64 bits hold", NULL},
        {"blk.0.attn_norm.weight", Q8_0, 1, {256}, 8 * 34, VB_UNSUPPORTED,
         "f.gguf: model.layers.0.input_layernorm.weight is Q8_0, wanted F32, F16 or BF16", NULL},
        {"blk.1.exp_probs_b.bias", Q8_0, 1, {32}, 34, VB_BAD_CHECKPOINT,
         "f.gguf: model.layers.1.mlp.gate.e_score_correction_bias is [32], the metadata says [4]", NULL},
        {"blk.0.attn_k_b.weight", Q8_0, 3, {2, 128, 64}, 2 * 128 * 68, VB_BAD_CHECKPOINT,
         "f.gguf: blk.0.attn_k_b.weight has a latent of 128 numbers, attn_v_b one of 256", NULL},
        {"blk.0.attn_k_b.weight", Q8_0, 3, {2, 256, 64}, 2 * 256 * 68, VB_BAD_CHECKPOINT,
         "f.gguf: model.layers.0.self_attn.k_b_proj_transposed.weight is [512,64], the metadata says [512,32]", NULL},
        {"blk.0.attn_k_b.weight", Q8_0, 3, {4, 256, 32}, 4 * 256 * 34, VB_BAD_CHECKPOINT,
         "f.gguf: blk.0.attn_k_b.weight is not one matrix for each of 2 heads", NULL},
        {"blk.0.attn_k_b.weight", Q8_0, 1, {32}, 34, VB_BAD_CHECKPOINT,
         "f.gguf: blk.0.attn_k_b.weight is not one matrix for each of 2 heads", NULL},
        {"blk.0.attn_v_b.weight", Q4_K, 3, {2, 64, 256}, 2 * 64 * 144, VB_BAD_CHECKPOINT,
         "f.gguf: model.layers.0.self_attn.v_b_proj.weight is [128,256], the metadata says [64,256]", NULL},
        {"blk.1.ffn_up_exps.weight", Q4_K, 2, {128, 256}, 128 * 144, VB_BAD_CHECKPOINT,
         "f.gguf: blk.1.ffn_up_exps.weight is not one matrix for each of up to 65536 experts", NULL},
        /* names that this program gives to what it makes of a pair: no file has them */
        {"model.layers.1.self_attn.v_b_proj.weight", Q8_0, 2, {64, 256}, 64 * 8 * 34, VB_BAD_CHECKPOINT,
         "f.gguf: model.layers.1.self_attn.k_b_proj.weight is missing", NULL},
        {"model.layers.0.self_attn.k_b_proj_transposed.weight", TYPE_F32, 2, {512, 32}, 512 * 32 * 4, VB_BAD_CHECKPOINT,
         "f.gguf: model.layers.0.self_attn.k_b_proj_transposed.weight is there twice, also in f.gguf", NULL},
        {"model.layers.1.self_attn.k_b_proj.weight", Q8_0, 2, {64, 256}, 64 * 8 * 34, VB_BAD_CHECKPOINT,
         "f.gguf: model.layers.1.self_attn.k_b_proj.weight has no place in the model of the metadata (tensors left "
         "over: 1)", NULL},
    };
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    for (size_t i = 0; i < COUNT(cases); i++) {
        vb_error err = {0};
        write_changed(dir, &cases[i], 1);
        int rc = open_path(path, NULL, &err);
        if (rc != cases[i].code || (rc && !strstr(err.message, cases[i].message)))
            fail_msg("case %zu: code %d \"%s\", wanted %d \"%s\"", i, rc, err.message, cases[i].code, cases[i].message);
    }
    remove_dir(dir);
}

/* A file whose tensors have the names of the binder: no quantized matrix where numbers are wanted, and the other way
 * round. */
TEST(parts_of_kv_b_have_the_types_that_kernels_take)
{
    static const struct change cases[][2] = {
        {{"model.layers.1.self_attn.k_b_proj_transposed.weight", TYPE_F32, 2, {512, 32}, 512 * 32 * 4, VB_UNSUPPORTED,
          "f.gguf: model.layers.1.self_attn.k_b_proj_transposed.weight is F32, wanted a quantized type",
          "blk.1.attn_kv_b.weight"},
         {"model.layers.1.self_attn.v_b_proj.weight", Q8_0, 2, {64, 256}, 64 * 8 * 34, 0, NULL, NULL}},
        {{"model.layers.1.self_attn.k_b_proj.weight", Q8_0, 2, {64, 256}, 64 * 8 * 34, VB_UNSUPPORTED,
          "f.gguf: model.layers.1.self_attn.k_b_proj.weight is Q8_0, wanted no quantized type",
          "blk.1.attn_kv_b.weight"},
         {"model.layers.1.self_attn.v_b_proj.weight", Q8_0, 2, {64, 256}, 64 * 8 * 34, 0, NULL, NULL}},
    };
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_changed(dir, cases[i], 2);
        REFUSED(open_path(path, NULL, &err), cases[i][0].code, cases[i][0].message);
    }
    remove_dir(dir);
}

/* Every type of ggml that has no kernels here is refused, by its name. */
TEST(types_without_kernels_are_refused_by_name)
{
    static const struct {
        uint32_t id;
        size_t numbers, bytes;
        const char *name;
    } types[] = {
        {9, 32, 36, "Q8_1"}, {15, 256, 292, "Q8_K"},
        {41, 128, 18, "Q1_0"}, {42, 64, 18, "Q2_0"}, {24, 1, 1, "I8"}, {25, 1, 2, "I16"},
        {26, 1, 4, "I32"}, {27, 1, 8, "I64"}, {28, 1, 8, "F64"},
    };
    char dir[64], path[128], wanted[256];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    for (size_t i = 0; i < COUNT(types); i++) {
        struct change c = {"blk.0.ffn_gate.weight", types[i].id, 2, {256, 256},
                           256 * 256 / types[i].numbers * types[i].bytes, 0, NULL, NULL};
        write_changed(dir, &c, 1);
        snprintf(wanted, sizeof wanted, "f.gguf: blk.0.ffn_gate.weight is %s; supported are F32, F16, BF16, Q4_0, ",
                 types[i].name);
        REFUSED(open_path(path, NULL, &err), VB_UNSUPPORTED, wanted);
    }
    remove_dir(dir);
}

/* ---- numbers that are none ---- */

struct spot { /* a byte pair in a tensor of the golden file */
    const char *gguf;
    size_t at;
    const char *message;
};

static void write_patched(const char *dir, const struct spot *s)
{
    struct gguf *g;
    char *bytes;
    size_t size;
    OK(vb_read_file(NULL, EVERY_TYPE, &bytes, &size, &err));
    OK(gguf_parse(&g, bytes, size, "f", NULL, &err));
    const struct gguf_tensor *t = gguf_find_tensor(g, s->gguf);
    assert_non_null(t);
    assert_true(s->at + 2 <= t->bytes);
    memcpy(bytes + ((const char *)t->data - bytes) + s->at, "\x00\x7e", 2);
    gguf_close(g);
    write_file(dir, "f.gguf", bytes, size);
    vb_free(NULL, bytes);
}

TEST(a_scale_that_is_no_number_is_told_with_its_block)
{
    static const struct spot spots[] = {
        {"output.weight", 34 * 8 * 5 + 34 * 2, "f.gguf: lm_head.weight, block 2 of row 5: its scale d is not finite"},
        {"blk.1.attn_q_a.weight", 18 * 8 * 63 + 18 * 7,
         "f.gguf: model.layers.1.self_attn.q_a_proj.weight, block 7 of row 63: its scale d is not finite"},
        {"blk.0.attn_output.weight", 22,
         "f.gguf: model.layers.0.self_attn.o_proj.weight, block 1 of row 0: its scale d is not finite"},
        {"blk.1.attn_q_b.weight", 24 * 2 + 2,
         "f.gguf: model.layers.1.self_attn.q_b_proj.weight, block 0 of row 1: its minimum m is not finite"},
        {"blk.1.ffn_up_exps.weight", 144 * (32 + 3) + 2,
         "f.gguf: model.layers.1.mlp.experts.1.up_proj.weight, block 0 of row 3: its scale dmin is not finite"},
        {"blk.0.ffn_up.weight", 176 * 9,
         "f.gguf: model.layers.0.mlp.up_proj.weight, block 0 of row 9: its scale d is not finite"},
        {"token_embd.weight", 210 * 95 + 208,
         "f.gguf: model.embed_tokens.weight, block 0 of row 95: its scale d is not finite"},
        {"blk.0.attn_k_b.weight", 34 * 300,
         "f.gguf: model.layers.0.self_attn.k_b_proj_transposed.weight, block 0 of row 300: its scale d is not finite"},
    };
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    for (size_t i = 0; i < COUNT(spots); i++) {
        vb_model *m;
        write_patched(dir, &spots[i]);
        OK(vb_model_open(&m, path, NULL, &err));
        REFUSED(model_check(m, NULL, NULL, &err), VB_BAD_CHECKPOINT, spots[i].message);
        vb_model_close(m);
    }
    vb_model *m = open_model(EVERY_TYPE);
    OK(model_check(m, NULL, NULL, &err));
    vb_model_close(m);
    remove_dir(dir);
}

/* The exponent of d is in two of the four pieces: all its bits are ones, or all but one. */
TEST(a_scale_of_iq1_m_that_is_no_number_is_told_with_its_block)
{
    static const unsigned char pieces[][2] = {{0xc0, 0x70}, {0x80, 0x70}, {0x40, 0x70}, {0xc0, 0x60}, {0xc0, 0x30},
                                              {0xf0, 0xf0}};
    char dir[64], path[128], *bytes;
    size_t size;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    write_quantized(dir, "f.gguf", (struct quantized_model){.name = "f", .types = {"IQ1_M"}, .large = 1});
    for (size_t i = 0; i < COUNT(pieces); i++) {
        struct gguf *g;
        vb_model *m;
        OK(vb_read_file(NULL, path, &bytes, &size, &err));
        OK(gguf_parse(&g, bytes, size, "f", NULL, &err));
        const struct gguf_tensor *t = gguf_find_tensor(g, "blk.0.attn_output.weight");
        assert_true(t && t->shape[1] == 256);
        unsigned char *block = (unsigned char *)bytes + ((const char *)t->data - bytes) + 56 * 5;
        block[53] = (unsigned char)((block[53] & 15) | pieces[i][0]);
        block[55] = (unsigned char)((block[55] & 15) | pieces[i][1]);
        gguf_close(g);
        write_file(dir, "f.gguf", bytes, size);
        vb_free(NULL, bytes);
        OK(vb_model_open(&m, path, NULL, &err));
        if ((pieces[i][0] & 0xc0) == 0xc0 && (pieces[i][1] & 0x70) == 0x70)
            REFUSED(model_check(m, NULL, NULL, &err), VB_BAD_CHECKPOINT,
                    "f.gguf: model.layers.0.self_attn.o_proj.weight, block 0 of row 5: its scale d is not finite");
        else
            OK(model_check(m, NULL, NULL, &err));
        vb_model_close(m);
    }
    remove_dir(dir);
}

/* 12 * 2^(252 - 128) is the largest weight that f32 holds. */
TEST(an_exponent_of_mxfp4_that_is_too_large_is_told_with_its_block)
{
    char dir[64], path[128], *bytes;
    size_t size;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    write_quantized(dir, "f.gguf",
                    (struct quantized_model){.name = "f", .types = {"MXFP4"}, .k_b = "MXFP4", .v_b = "MXFP4"});
    for (int exponent = 252; exponent < 256; exponent++) {
        struct gguf *g;
        vb_model *m;
        char wanted[200];
        OK(vb_read_file(NULL, path, &bytes, &size, &err));
        OK(gguf_parse(&g, bytes, size, "f", NULL, &err));
        const struct gguf_tensor *t = gguf_find_tensor(g, "blk.0.attn_output.weight");
        assert_true(t && t->shape[1] == 32);
        bytes[(const char *)t->data - bytes + 17 * 5] = (char)exponent;
        gguf_close(g);
        write_file(dir, "f.gguf", bytes, size);
        vb_free(NULL, bytes);
        OK(vb_model_open(&m, path, NULL, &err));
        snprintf(wanted, sizeof wanted,
                 "f.gguf: model.layers.0.self_attn.o_proj.weight, block 0 of row 5: its scale has the exponent %d, "
                 "wanted at most 252",
                 exponent);
        if (exponent > 252)
            REFUSED(model_check(m, NULL, NULL, &err), VB_BAD_CHECKPOINT, wanted);
        else
            OK(model_check(m, NULL, NULL, &err));
        vb_model_close(m);
    }
    remove_dir(dir);
}

/* A NaN in a block reaches the logits, whoever asks for them, on every instruction set, from panels and from blocks. */
TEST(a_scale_that_is_no_number_ends_the_run)
{
    static const struct spot spots[] = {{"output.weight", 0, ""}, {"blk.0.attn_k_b.weight", 34 * 300, ""},
                                        {"blk.0.ffn_up.weight", 176 * 9 + 2, ""}};
    static const int32_t prompt[] = {1, 2, 3};
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    for (size_t i = 0; i < COUNT(spots); i++)
        for (int off = 0; off < 2; off++)
            for (const char *const *isa = isas_here(); *isa; isa++) {
                vb_model *m;
                write_patched(dir, &spots[i]);
                OK(vb_model_open(&m, path, &(vb_model_options){.repack = off ? "off" : "on"}, &err));
                vb_session *s = open_session(m, &(vb_session_options){.isa = *isa, .context = 16}, prompt,
                                             COUNT(prompt));
                vb_result r;
                REFUSED(vb_generate(s, &(vb_generate_options){.max_tokens = 4, .ignore_eos = 1}, &r, &err),
                        VB_NOT_FINITE, "not finite");
                vb_session_close(s);
                vb_model_close(m);
            }
    remove_dir(dir);
}

/* ---- numbers that no block holds ---- */

TEST(a_weight_that_no_block_holds_is_named_where_it_is_stored)
{
    static const struct {
        const char *from, *name;
        size_t first;
        int infinite;
        const char *message;
    } cases[] = {
        {"golden/tiny/glm", "lm_head.weight", 64 * 5 + 40, 0, "lm_head.weight [5,40] is nan, which Q8_0 cannot hold"},
        {"golden/tiny/v3-mtp3", "lm_head.weight", 3, 1, "lm_head.weight [0,3] is inf, which Q8_0 cannot hold"},
        {"golden/tiny/v3", "model.layers.1.self_attn.kv_b_proj.weight", 48 * (56 + 31) + 47, 0,
         "model.layers.1.self_attn.kv_b_proj.weight [87,47] is nan, which Q8_0 cannot hold"}, /* key 31 of head 1 */
        {"golden/tiny/v3", "model.layers.2.mlp.experts.3.up_proj.weight", 64 * 9 + 63, 0,
         "model.layers.2.mlp.experts.3.up_proj.weight [9,63] is nan, which Q8_0 cannot hold"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int threads = 1; threads < 4; threads++) {
            char dir[64];
            vb_model *m;
            vb_model_options o = {.precision = "q8", .threads = threads};
            copy_checkpoint(dir, cases[i].from);
            break_tensor(dir, cases[i].name, cases[i].first, 1, cases[i].infinite);
            REFUSED(vb_model_open(&m, dir, &o, &err), VB_BAD_CHECKPOINT, cases[i].message);
            o.repack = "off";
            REFUSED(vb_model_open(&m, dir, &o, &err), VB_BAD_CHECKPOINT, cases[i].message);
            assert_null(m);
            remove_dir(dir);
        }
}

/* Each expert gets its own number of the list. */
static void check_expert_scales(const char *path, const char *list)
{
    struct gguf *g;
    struct checkpoint *c;
    char name[96];
    OK(gguf_open(&g, path, NULL, &err));
    OK(checkpoint_open(&c, path, NULL, &err));
    const struct gguf_tensor *all = gguf_find_tensor(g, list);
    assert_true(all && all->shape[0] == 4 &&
                memcmp(all->data, (const char *)all->data + sizeof(float), sizeof(float)) != 0);
    for (int e = 0; e < 4; e++) {
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.down_proj.weight_scale_2", e);
        const struct tensor *t = checkpoint_find(c, name);
        if (!t || t->bytes != sizeof(float) ||
            memcmp(t->data, (const char *)all->data + (size_t)e * sizeof(float), sizeof(float)))
            fail_msg("%s is not number %d of %s", name, e, list);
    }
    checkpoint_close(c);
    gguf_close(g);
}

/* A number for the whole matrix; a number for each expert. */
TEST(scales_of_nvfp4_matrices_that_are_wrong_are_refused)
{
    static const char list[] = "blk.1.ffn_down_exps.scale";
    char dir[64], path[128], *bytes;
    size_t size;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    for (int i = 0; i < 3; i++) {
        struct gguf *g;
        vb_model *m;
        write_quantized(dir, "f.gguf",
                        (struct quantized_model){.name = "f", .types = {"NVFP4"}, .k_b = "NVFP4", .v_b = "NVFP4",
                                                 .large = 1});
        OK(vb_read_file(NULL, path, &bytes, &size, &err));
        OK(gguf_parse(&g, bytes, size, "f", NULL, &err));
        const struct gguf_tensor *t = gguf_find_tensor(g, "blk.0.attn_v_b.scale");
        assert_non_null(t);
        if (i == 0)
            memset(bytes + ((const char *)t->data - bytes), 0, sizeof(float));
        char *name = memmem(bytes, size, list, sizeof list - 1);
        assert_true(name && name[sizeof list - 1 + 4] == 4);
        if (i == 1)
            name[sizeof list - 1 + 4] = 3; /* experts */
        gguf_close(g);
        write_file(dir, "f.gguf", bytes, size);
        vb_free(NULL, bytes);
        if (i == 2) {
            OK(vb_model_open(&m, path, NULL, &err));
            OK(model_check(m, NULL, NULL, &err));
            vb_model_close(m);
            check_expert_scales(path, list);
        } else {
            REFUSED(vb_model_open(&m, path, NULL, &err), VB_BAD_CHECKPOINT,
                    i ? "f.gguf: blk.1.ffn_down_exps.scale is not one F32 number for each expert"
                      : "f.gguf: model.layers.0.self_attn.v_b_proj.weight_scale_2 is 0, wanted a finite number above "
                        "0");
        }
    }
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_of_another_type_or_shape_is_told),
        cmocka_unit_test(parts_of_kv_b_have_the_types_that_kernels_take),
        cmocka_unit_test(types_without_kernels_are_refused_by_name),
        cmocka_unit_test(a_scale_that_is_no_number_is_told_with_its_block),
        cmocka_unit_test(a_scale_of_iq1_m_that_is_no_number_is_told_with_its_block),
        cmocka_unit_test(an_exponent_of_mxfp4_that_is_too_large_is_told_with_its_block),
        cmocka_unit_test(scales_of_nvfp4_matrices_that_are_wrong_are_refused),
        cmocka_unit_test(a_scale_that_is_no_number_ends_the_run),
        cmocka_unit_test(a_weight_that_no_block_holds_is_named_where_it_is_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
