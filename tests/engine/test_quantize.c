/* tests/engine/test_quantize.c -- a model written as a GGUF file: it gives the bits of its directory, its blocks are
 * those of ops/quantize, what cannot be said is refused or noted. An independent writer (support/gguf.h) is the witness
 * of where each number belongs. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <fcntl.h>

#include "engine/files/gguf.h"
#include "engine/export/gguf_write.h"
#include "ops/quantize.h"
#include "simd/decode.h"
#include "tests/support/gguf.h"
#include "tests/support/retype.h"
#include "tests/support/same_model.h"
#include "tests/support/tiny.h"
#include "tests/support/wide_checkpoint.h"

static const char *const models[] = {TINY_CHECKPOINTS(TINY_PATH) TINY_WITH_INDEXER(TINY_PATH)
                                         TINY_SHAPES(TINY_PATH) "golden/tale"};

static const struct gguf_write_options as_f32 = {GGUF_AS_F32, GGUF_AS_STORED, GGUF_AS_F32},
                                       as_bf16 = {GGUF_AS_BF16, GGUF_AS_STORED, GGUF_AS_BF16},
                                       as_q8_0 = {GGUF_AS_Q8_0, GGUF_AS_STORED, GGUF_AS_Q8_0},
                                       as_q4_0 = {GGUF_AS_Q4_0, GGUF_AS_STORED, GGUF_AS_Q4_0};

static struct vb_quantize *plan_of(const vb_model *m, const char *from, const struct gguf_write_options *o)
{
    struct vb_quantize *p = NULL;
    OK(gguf_plan_open(&p, m, from, o, &err));
    return p;
}

static void write_plan(struct vb_quantize *p, const char *path, int threads)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    OK(gguf_plan_write(p, fd, path, threads, NULL, NULL, &err));
    close(fd);
}

/* The model of FROM as DIR/q.gguf, whose path is returned. */
static const char *quantized(const char *dir, const char *from, const struct gguf_write_options *o)
{
    static char path[128];
    vb_model *m = open_model(from);
    struct vb_quantize *p = plan_of(m, from, o);
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    write_plan(p, path, 2);
    gguf_plan_close(p);
    vb_model_close(m);
    return path;
}

static const struct gguf_planned *find(const struct vb_quantize *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++)
        if (!strcmp(p->tensors[i].name, name))
            return &p->tensors[i];
    return NULL;
}

static int noted(const struct vb_quantize *p, const char *part)
{
    for (int i = 0; i < p->num_notes; i++)
        if (strstr(p->notes[i], part))
            return 1;
    return 0;
}

/* ---- bits ---- */

static vb_model *open_in(const char *path, const char *precision)
{
    vb_model *m = NULL;
    OK(vb_model_open(&m, path, &(vb_model_options){.precision = precision}, &err));
    return m;
}

/* FROM in one precision and the file at `path` in another: equal tokens, equal rows. */
static void check_runs(const char *from, const char *precision, const char *path, const char *of_file)
{
    char what[128];
    vb_model *a = open_in(from, precision), *b = open_in(path, of_file);
    snprintf(what, sizeof what, "%s, precision %s", from, precision);
    check_same_runs(what, a, b);
    vb_model_close(b);
    vb_model_close(a);
}

static void check_bits(const char *from, const char *path, const char *precision)
{
    check_runs(from, precision, path, precision);
}

/* In F32 whatever is stored; in BF16 what --precision bf16 rounds. */
TEST(f32_and_bf16_give_the_bits_of_the_directory)
{
    char dir[64];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(models) - !have_tale(); i++) {
        if (has_turn(i, 2))
            check_bits(models[i], quantized(dir, models[i], &as_f32), "f32");
        if (has_turn(i + 1, 2))
            check_bits(models[i], quantized(dir, models[i], &as_bf16), "bf16");
    }
    remove_dir(dir);
}

/* F32 with numbers that bf16 does not hold: Moonlight's head is tied, and in BF16 no longer is; those of V3's MTP
 * modules, copies in the original, are moved by other amounts. */
TEST(noisy_checkpoints_give_the_bits_of_the_directory)
{
    static const char *const from[] = {"golden/tiny/moonlight", "golden/tiny/v3"};
    char dir[64], noisy[64];
    size_t was, is;
    make_dir(dir);
    for (size_t i = 0; i < COUNT(from); i++) {
        retype(noisy, &(struct retype){.from = from[i], .linear = DTYPE_F32, .others = DTYPE_F32, .noise = 0x1p-8},
               &was, &is);
        check_bits(noisy, quantized(dir, noisy, &as_f32), "f32");
        check_bits(noisy, quantized(dir, noisy, &as_bf16), "bf16");
        vb_model *m = open_model(noisy), *g = open_model(quantized(dir, noisy, &as_bf16));
        if (m->num_mtp) {
            assert_int_equal(model_mtp_copy(m, 0, 0), MTP_COPY_DIFFERENT);
            assert_int_equal(model_mtp_copy(m, 0, 1), MTP_COPY_DIFFERENT);
            assert_int_equal(model_mtp_copy(g, 0, 1), MTP_COPY_DIFFERENT);
        }
        vb_model_close(g);
        vb_model_close(m);
        remove_dir(noisy);
    }
    remove_dir(dir);
}

/* What is quantized on disk, and what is quantized when it is opened. */
TEST(q8_0_and_q4_0_give_the_bits_of_precision_q8_and_q4)
{
    enum precision known;
    char dir[64];
    if (precision_parse(&known, NULL, "q8", NULL)) {
        print_message("skipped: there is no precision q8 yet\n");
        return;
    }
    make_dir(dir);
    for (size_t i = 0; i < COUNT(models) - !have_tale(); i++) {
        if (has_turn(i, 2))
            check_runs(models[i], "q8", quantized(dir, models[i], &as_q8_0), "f32");
        if (has_turn(i + 1, 2))
            check_runs(models[i], "q4", quantized(dir, models[i], &as_q4_0), "f32");
    }
    remove_dir(dir);
}

TEST(the_config_comes_back)
{
    char dir[64];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(models) - !have_tale(); i++) {
        vb_model *m = open_model(models[i]), *g = open_model(quantized(dir, models[i], &as_bf16));
        check_same_config(models[i], &m->config, &g->config);
        vb_model_close(g);
        vb_model_close(m);
    }
    remove_dir(dir);
}

/* Keys that Verbatim does not need, but without which llama.cpp does not open the file or stops in its first pass. */
TEST(keys_that_llama_cpp_needs_are_written)
{
    static const struct {
        const char *model, *key;
        int64_t value;
    } wanted[] = {
        {"golden/tiny/mistral4", "mistral4.attention.temperature_length", 24},
        {"golden/tiny/youtu", "deepseek2.expert_feed_forward_length", 104},
        {"golden/tiny/youtu", "deepseek2.expert_shared_count", 0},
        {"golden/tiny/youtu", "deepseek2.leading_dense_block_count", 3},
        {"golden/tiny/v32", "deepseek32.expert_gating_func", 2},
    };
    char dir[64];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(wanted); i++) {
        struct gguf *g;
        int64_t x = -1;
        OK(gguf_open(&g, quantized(dir, wanted[i].model, &as_bf16), NULL, &err));
        assert_true(gguf_integer(gguf_find(g, wanted[i].key), &x));
        assert_int_equal(x, wanted[i].value);
        assert_null(gguf_find(g, "deepseek2.expert_count")); /* 0 experts: llama.cpp wants no key */
        gguf_close(g);
    }
    remove_dir(dir);
}

/* ---- blocks ---- */

static float number_at(const struct gguf_tensor *t, size_t i)
{
    uint16_t half;
    float x;
    if (!strcmp(t->type->name, "F32")) {
        memcpy(&x, t->data + 4 * i, 4);
        return x;
    }
    memcpy(&half, t->data + 2 * i, 2);
    return !strcmp(t->type->name, "F16") ? f16_to_f32(half) : bf16_to_f32(half);
}

/* The witness has the same numbers in F32. */
static void check_tensor(const char *from, const struct gguf_tensor *t, const struct gguf_tensor *witness,
                         const char *quantized)
{
    size_t n = 1;
    int is_q = !strcmp(t->type->name, quantized);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)t->name.size, t->name.s);
    if (!witness || t->ndim != witness->ndim || memcmp(t->shape, witness->shape, sizeof t->shape))
        fail_msg("%s: %s has no counterpart", from, name);
    for (int d = 0; d < t->ndim; d++)
        n *= (size_t)t->shape[d];
    const float *w = (const float *)(const void *)witness->data;
    unsigned char *blocks = malloc(t->bytes);
    assert_non_null(blocks);
    if (is_q && !strcmp(quantized, "Q8_0"))
        assert_int_equal(op_quantize_q8_0(blocks, w, n), 0);
    else if (is_q)
        assert_int_equal(op_quantize_q4_0(blocks, w, n), 0);
    if (is_q && memcmp(blocks, t->data, t->bytes))
        fail_msg("%s: %s has other blocks than its rows", from, name);
    for (size_t i = 0; !is_q && i < n; i++)
        if (f32_to_bits(number_at(t, i)) != f32_to_bits(w[i]))
            fail_msg("%s: number %zu of %s is %a, should be %a", from, i, name, (double)number_at(t, i), (double)w[i]);
    int wanted = (t->ndim > 1 && !strstr(name, "ffn_gate_inp") && !strstr(name, "indexer.proj") &&
                  !strstr(name, "embd") && !strstr(name, "embed_tokens")) &&
                 t->shape[t->ndim - 1] % 32 == 0;
    if (is_q != wanted)
        fail_msg("%s: %s is %s", from, name, t->type->name);
    free(blocks);
}

TEST(every_tensor_holds_the_blocks_of_its_rows)
{
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/witness.gguf", dir);
    for (size_t i = 0; i < COUNT(models) - !have_tale(); i++)
        for (int q4 = 0; q4 < 2; q4++) {
            struct gguf *g, *witness;
            size_t count = 0;
            if (!has_turn(i + (size_t)q4, 2))
                continue;
            vb_model *m = open_model(models[i]);
            write_model(dir, "witness.gguf", m, &(struct gguf_choice){.all_f32 = 1});
            OK(gguf_open(&g, quantized(dir, models[i], q4 ? &as_q4_0 : &as_q8_0), NULL, &err));
            OK(gguf_open(&witness, path, NULL, &err));
            for (size_t k = 0; k < gguf_tensors(g); k++) {
                const struct gguf_tensor *t = gguf_tensor(g, k);
                char name[64];
                snprintf(name, sizeof name, "%.*s", (int)t->name.size, t->name.s);
                if (m->config.tie_word_embeddings && !strcmp(name, "output.weight")) /* a tensor of its own, because it
                                                                                        is quantized */
                    strcpy(name, "token_embd.weight");
                check_tensor(models[i], t, gguf_find_tensor(witness, name), q4 ? "Q4_0" : "Q8_0");
                count += t->type->numbers == 32;
            }
            /* 80 and 72 wide */
            assert_true(count > 0 || strstr(models[i], "moonlight") || strstr(models[i], "v2"));
            gguf_close(witness);
            gguf_close(g);
            vb_model_close(m);
        }
    remove_dir(dir);
}

/* One thread goes through the largest matrices of `wide` in two turns, three in one. */
static void check_threads(const char *from, const struct gguf_write_options *o)
{
    char dir[64], path[128], *bytes[3];
    size_t size[3];
    vb_model *m = open_model(from);
    struct vb_quantize *p = plan_of(m, from, o);
    make_dir(dir);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%d.gguf", dir, i);
        write_plan(p, path, i + 1);
        OK(vb_read_file(NULL, path, &bytes[i], &size[i], &err));
        assert_int_equal(size[i], p->header_bytes + p->data_bytes);
        assert_memory_equal(bytes[i], bytes[0], size[0]);
    }
    for (int i = 0; i < 3; i++)
        vb_free(NULL, bytes[i]);
    gguf_plan_close(p);
    vb_model_close(m);
    remove_dir(dir);
}

TEST(any_number_of_threads_writes_the_same_bytes)
{
    char wide[64];
    wide_checkpoint(wide);
    check_threads("golden/tiny/v3", &as_q4_0);
    check_threads(wide, &as_q8_0);
    check_threads(wide, &as_bf16);
    remove_dir(wide);
}

/* ---- which types ---- */

static const char *type_of(const struct vb_quantize *p, const char *name)
{
    const struct gguf_planned *t = find(p, name);
    return t ? t->type->name : "none";
}

static void check_types(const vb_model *m, const char *from, struct gguf_write_options o, const char *embedding,
                        const char *head)
{
    struct vb_quantize *p = plan_of(m, from, &o);
    assert_string_equal(type_of(p, "token_embd.weight"), embedding);
    assert_string_equal(type_of(p, "output.weight"), head);
    gguf_plan_close(p);
}

TEST(embedding_and_head_have_types_of_their_own)
{
    vb_model *m = open_tiny("v3-mtp3");
    const char *from = "golden/tiny/v3-mtp3";
    check_types(m, from, as_q8_0, "BF16", "Q8_0");
    check_types(m, from, (struct gguf_write_options){GGUF_AS_Q4_0, GGUF_AS_Q8_0, GGUF_AS_STORED}, "Q8_0", "BF16");
    check_types(m, from, (struct gguf_write_options){GGUF_AS_Q8_0, GGUF_AS_F32, GGUF_AS_Q4_0}, "F32", "Q4_0");
    struct vb_quantize *p = plan_of(m, from, &(struct gguf_write_options){GGUF_AS_Q4_0, GGUF_AS_Q8_0, GGUF_AS_F32});
    for (size_t i = 0; i < p->count; i++) {
        const struct gguf_planned *t = &p->tensors[i];
        const char *wanted = t->role == GGUF_EMBEDDING ? "Q8_0"
                             : t->role == GGUF_HEAD || t->role == GGUF_OTHER ? "F32"
                             : NULL;
        if (wanted && strcmp(t->type->name, wanted))
            fail_msg("%s is %s, wanted %s", t->name, t->type->name, wanted);
        if (t->kept != (t->role == GGUF_LINEAR && t->shape[t->ndim - 1] % 32 != 0))
            fail_msg("%s is%s said to be kept", t->name, t->kept ? "" : " not");
    }
    gguf_plan_close(p);
    vb_model_close(m);
}

TEST(a_tied_head_gets_a_tensor_of_its_own_when_its_numbers_change)
{
    static const struct {
        enum gguf_as embedding, head;
        const char *types[2];
    } cases[] = {
        {GGUF_AS_STORED, GGUF_AS_Q8_0, {"BF16", "Q8_0"}}, {GGUF_AS_STORED, GGUF_AS_F32, {"BF16", "none"}},
        {GGUF_AS_STORED, GGUF_AS_BF16, {"BF16", "none"}}, {GGUF_AS_Q8_0, GGUF_AS_Q8_0, {"Q8_0", "none"}},
        {GGUF_AS_Q8_0, GGUF_AS_STORED, {"Q8_0", "BF16"}}, {GGUF_AS_Q8_0, GGUF_AS_F32, {"Q8_0", "F32"}},
        {GGUF_AS_F32, GGUF_AS_STORED, {"F32", "BF16"}},
    };
    char dir[64];
    copy_checkpoint(dir, "golden/tiny/glm");
    vb_model *m = open_model(dir);
    m->config.tie_word_embeddings = 1; /* as if it were said and lm_head ignored */
    m->lm_head = m->embed_tokens;
    for (size_t i = 0; i < COUNT(cases); i++)
        check_types(m, dir, (struct gguf_write_options){GGUF_AS_Q8_0, cases[i].embedding, cases[i].head},
                    cases[i].types[0], cases[i].types[1]);
    vb_model_close(m);
    m = open_tiny("moonlight"); /* rows of 80 numbers: there is nothing to quantize */
    check_types(m, "golden/tiny/moonlight", as_q8_0, "BF16", "none");
    vb_model_close(m);
    remove_dir(dir);
}

TEST(copies_in_modules_are_left_out_and_noted)
{
    vb_model *m = open_tiny("v3");
    struct vb_quantize *p = plan_of(m, "golden/tiny/v3", &as_q8_0);
    assert_int_equal(model_mtp_copy(m, 0, 0), MTP_COPY_EQUAL);
    assert_null(find(p, "blk.3.nextn.embed_tokens.weight"));
    assert_null(find(p, "blk.3.nextn.shared_head_head.weight"));
    assert_non_null(find(p, "blk.3.nextn.eh_proj.weight"));
    assert_true(noted(p, "left out: embed_tokens of 1 of 1 MTP modules") &&
                noted(p, "left out: shared_head.head of 1 of 1"));
    gguf_plan_close(p);
    vb_model_close(m);
}

/* ---- what cannot be said ---- */

#define CANNOT(from, change, part)                                                                                 \
    do {                                                                                                           \
        vb_model *m = open_tiny(from);                                                                             \
        struct vb_quantize *p;                                                                                       \
        change;                                                                                                    \
        REFUSED(gguf_plan_open(&p, m, "golden/tiny/" from, &as_f32, &err), VB_UNSUPPORTED, part);                  \
        assert_null(p);                                                                                            \
        vb_model_close(m);                                                                                         \
    } while (0)

TEST(what_the_format_cannot_say_is_refused)
{
    CANNOT("v3", m->config.moe_layer_freq = 2, "moe_layer_freq 2 cannot be said in a GGUF file");
    CANNOT("v3", m->config.rope_interleave = 0, "rope_interleave 0 cannot be said");
    CANNOT("v3", m->config.rope_mscale_all_dim = 0.707,
           "mscale is 1 and mscale_all_dim 0.707: a GGUF file has one number for both");
    CANNOT("v3", m->config.scoring_func = SCORING_SOFTMAX, "scoring_func sigmoid and topk_method noaux_tc go together");
    CANNOT("v3", m->config.topk_method = TOPK_GREEDY, "scoring_func sigmoid and topk_method noaux_tc go together");
    CANNOT("v3", m->config.routed_scaling_factor = 2.5000000001, "routed_scaling_factor is 2.5000000001");
    CANNOT("v3", m->config.rms_norm_eps = 1e-60, "rms_norm_eps is 1e-60");
    CANNOT("v3", m->config.rope_mscale = m->config.rope_mscale_all_dim = 0.123456789012,
           "mscale_all_dim is 0.123456789012");
    CANNOT("glm5", m->config.indexer_rope_interleave = 0,
           "indexer_rope_interleave 0 with the shared layer 2 cannot be said in a GGUF file "
           "of architecture deepseek32");
    CANNOT("v32", m->config.first_k_dense_replace = 4,
           "a model without experts cannot be said in a GGUF file of architecture deepseek32");
    CANNOT("v32", m->config.scoring_func = SCORING_SOFTMAX,
           "in a GGUF file of architecture deepseek32 scoring_func sigmoid and");
}

/* `name` [row, col] of a copy of v3-mtp3 is not a number. */
static void check_broken(const char *name, size_t cols, size_t row, size_t col, int infinite,
                         const struct gguf_write_options *o, const char *wanted)
{
    char dir[64], path[128];
    copy_checkpoint(dir, "golden/tiny/v3-mtp3");
    break_tensor(dir, name, row * cols + col, 1, infinite);
    vb_model *m = open_model(dir);
    struct vb_quantize *p = plan_of(m, dir, o);
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    REFUSED(gguf_plan_write(p, fd, path, 2, NULL, NULL, &err), VB_BAD_CHECKPOINT, wanted);
    close(fd);
    gguf_plan_close(p);
    vb_model_close(m);
    remove_dir(dir);
}

TEST(a_weight_that_no_block_holds_is_named)
{
    static const char kv_b[] = "model.layers.1.self_attn.kv_b_proj.weight"; /* per head 16 rows of keys, 16 of values */
    check_broken("model.layers.0.mlp.down_proj.weight", 96, 17, 5, 0, &as_q8_0,
                 "model.layers.0.mlp.down_proj.weight [17,5] is nan, which Q8_0 cannot hold");
    check_broken("model.layers.2.mlp.experts.4.up_proj.weight", 64, 3, 60, 1, &as_q4_0,
                 "model.layers.2.mlp.experts.4.up_proj.weight [3,60] is inf, which Q4_0 cannot hold");
    check_broken(kv_b, 32, 32 + 16 + 7, 9, 0, &as_q8_0, "kv_b_proj.weight [55,9] is nan, which Q8_0");
    /* rows of 16 keys are kept */
    check_broken(kv_b, 32, 3, 9, 0, &as_q8_0, "kv_b_proj.weight [3,9] is nan, wanted a finite number");
    check_broken("lm_head.weight", 64, 100, 63, 0, &as_bf16, "lm_head.weight [100,63] is nan, wanted a finite number");
    check_broken("lm_head.weight", 64, 100, 63, 1, &as_f32, "lm_head.weight [100,63] is inf, wanted a finite number");
    check_broken("model.embed_tokens.weight", 64, 7, 1, 0, &as_q4_0,
                 "embed_tokens.weight [7,1] is nan, wanted a finite number");
    check_broken("model.layers.1.mlp.gate.weight", 64, 2, 31, 0, &as_q4_0,
                 "mlp.gate.weight [2,31] is nan, wanted a finite number");
    check_broken("model.norm.weight", 64, 0, 60, 0, &as_q4_0,
                 "output_norm.weight [0,60] is nan, wanted a finite number");
    check_broken("lm_head.weight", 64, 100, 63, 0, &as_q8_0, "lm_head.weight [100,63] is nan");
}

/* Of v2-lite's keys (n is 32) a column becomes a row. */
TEST(a_key_that_no_block_holds_is_named_where_it_is_stored)
{
    char dir[64], path[128];
    copy_checkpoint(dir, "golden/tiny/v2-lite");
    break_tensor(dir, "model.layers.2.self_attn.kv_b_proj.weight", (64 + 30) * 56 + 41, 1, 1);
    vb_model *m = open_model(dir);
    struct vb_quantize *p = plan_of(m, dir, &as_q8_0);
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    REFUSED(gguf_plan_write(p, fd, path, 2, NULL, NULL, &err), VB_BAD_CHECKPOINT,
            "model.layers.2.self_attn.kv_b_proj.weight [94,41] is inf");
    close(fd);
    gguf_plan_close(p);
    vb_model_close(m);
    remove_dir(dir);
}

/* ---- progress, memory, the disk ---- */

struct watch {
    size_t calls, last, total, stop_after;
};

static int watch_progress(void *context, size_t done, size_t total)
{
    struct watch *w = context;
    assert_true(done > w->last && done <= total && (!w->total || w->total == total));
    w->last = done;
    w->total = total;
    return ++w->calls == w->stop_after;
}

TEST(progress_comes_to_its_end_or_stops)
{
    char dir[64], path[128];
    vb_model *m = open_tiny("v3-mtp3");
    struct vb_quantize *p = plan_of(m, "golden/tiny/v3-mtp3", &as_q4_0);
    struct watch all = {0}, some = {.stop_after = 3};
    make_dir(dir);
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    OK(gguf_plan_write(p, fd, path, 1, watch_progress, &all, &err));
    assert_int_equal(all.last, all.total);
    assert_int_equal(all.calls, p->count);
    REFUSED(gguf_plan_write(p, fd, path, 1, watch_progress, &some, &err), VB_STOPPED, "stopped after");
    assert_int_equal(some.calls, 3);
    close(fd);
    fd = open("/dev/full", O_WRONLY);
    REFUSED(gguf_plan_write(p, fd, "/dev/full", 1, NULL, NULL, &err), VB_IO, "/dev/full: ");
    close(fd);
    gguf_plan_close(p);
    vb_model_close(m);
    remove_dir(dir);
}

/* From memory that runs out at each request in its turn; of many, some. */
static void fail_each(const char *from, long some)
{
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    vb_model *m = open_model(from);
    for (long fail = -1, all = 0; fail < all; fail += fail < some ? 1 : 1 + all / some) {
        struct counted c = {.fail = fail};
        struct vb_quantize *p = NULL;
        if (fail >= 0 && !has_turn((size_t)fail, 3))
            continue;
        vb_error err = {0};
        m->allocator_copy = (vb_allocator){counted_alloc, counted_free, &c}; /* what a plan takes is the model's */
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), code = gguf_plan_open(&p, m, from, &as_q8_0, &err);
        if (!code)
            code = gguf_plan_write(p, fd, path, 2, NULL, NULL, &err);
        gguf_plan_close(p);
        close(fd);
        if (code != (fail < 0 ? VB_OK : VB_NO_MEMORY) || c.alive ||
            (code && (!*err.message || strchr(err.message, '\n'))))
            fail_msg("%s, allocation %ld fails: code %d, \"%s\", %ld blocks are left", from, fail, code, err.message,
                     c.alive);
        all = fail < 0 ? c.requests : all;
    }
    m->allocator_copy = (vb_allocator){0};
    vb_model_close(m);
    remove_dir(dir);
}

TEST(every_allocation_fails_in_turn)
{
    fail_each("golden/tiny/v3", 1000);
    if (have_tale())
        fail_each("golden/tale", 20); /* comparing how words are cut takes its time */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_and_bf16_give_the_bits_of_the_directory),
        cmocka_unit_test(noisy_checkpoints_give_the_bits_of_the_directory),
        cmocka_unit_test(q8_0_and_q4_0_give_the_bits_of_precision_q8_and_q4),
        cmocka_unit_test(the_config_comes_back),
        cmocka_unit_test(keys_that_llama_cpp_needs_are_written),
        cmocka_unit_test(every_tensor_holds_the_blocks_of_its_rows),
        cmocka_unit_test(any_number_of_threads_writes_the_same_bytes),
        cmocka_unit_test(embedding_and_head_have_types_of_their_own),
        cmocka_unit_test(a_tied_head_gets_a_tensor_of_its_own_when_its_numbers_change),
        cmocka_unit_test(copies_in_modules_are_left_out_and_noted),
        cmocka_unit_test(what_the_format_cannot_say_is_refused),
        cmocka_unit_test(a_weight_that_no_block_holds_is_named),
        cmocka_unit_test(a_key_that_no_block_holds_is_named_where_it_is_stored),
        cmocka_unit_test(progress_comes_to_its_end_or_stops),
        cmocka_unit_test(every_allocation_fails_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
