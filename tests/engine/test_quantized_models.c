/* tests/engine/test_quantized_models.c -- quantized weights in a model: what a GGUF file of every type computes, what a
 * directory computes in precisions q8 and q4, and that panels change no bit. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <fcntl.h>
#include <unistd.h>

#include "engine/export/gguf_write.h"
#include "engine/model/model_internal.h"
#include "ops/weights.h"
#include "tests/support/golden.h"
#include "tests/support/tiny.h"

#define EVERY_TYPE "golden/gguf/quantized.gguf"

static const char *const models[] = {TINY_CHECKPOINTS(TINY_PATH) "golden/tale"};

static vb_model *open_so(const char *path, const char *precision, const char *repack)
{
    vb_model *m = NULL;
    OK(vb_model_open(&m, path, &(vb_model_options){.precision = precision, .repack = repack}, &err));
    return m;
}

/* The model of FROM, quantized, as DIR/q.gguf, whose path is returned. */
static const char *quantized(const char *dir, const char *from, struct gguf_write_options o)
{
    static char path[128];
    vb_model *m = open_model(from);
    struct vb_quantize *p = NULL;
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    OK(gguf_plan_open(&p, m, from, &o, &err));
    OK(gguf_plan_write(p, fd, path, 1, NULL, NULL, &err));
    close(fd);
    gguf_plan_close(p);
    vb_model_close(m);
    return path;
}

/* ---- what is computed ---- */

struct rows {
    double logits[2][4][96], hidden[2][4][256];
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct rows *r = context;
    for (size_t v = 0; v < 96; v++)
        r->logits[depth + 1][index][v] = (double)logits[v];
    for (size_t i = 0; i < 256; i++)
        r->hidden[depth + 1][index][i] = (double)hidden[i];
    return 0;
}

/* prompts have at most 4 tokens; `part` is "1.module.logits" */
static void check_part(const struct golden *g, const json_t *fact, size_t prompt, const char *part, const double *ours)
{
    char name[64];
    size_t count;
    snprintf(name, sizeof name, "%zu.%s", prompt, part);
    const void *theirs = golden_data(g, name, &count);
    double spread = json_number_value(json_object_get(json_object_get(fact, "spread"), part));
    double away = distance(ours, theirs, count);
    assert_true(spread > 0);
    if (away > 8 * spread)
        fail_msg("%s: %g away from NumPy, perturbed runs of NumPy are up to %g", name, away, spread);
}

/* The bound is measured, as in tests/engine/test_truth.c: runs of NumPy whose every number is moved by up to half an
 * f32 ulp. The prompts stay away from the middle between two integers, so that all of them quantize x alike. */
static void check_truth(const vb_model *m)
{
    json_t *facts = golden_json("quantized"), *fact;
    struct golden g = golden_open("quantized");
    size_t prompt;
    json_array_foreach(facts, prompt, fact)
    {
        static struct rows r;
        int32_t tokens[4];
        size_t n = (size_t)read_tokens(json_object_get(fact, "tokens"), tokens);
        vb_session *s = open_session(m, &(vb_session_options){.threads = 1, .context = 8}, tokens, n);
        OK(vb_evaluate(s, 1, take_row, &r, &err));
        check_part(&g, fact, prompt, "logits", r.logits[0][0]);
        check_part(&g, fact, prompt, "hidden", r.hidden[0][0]);
        check_part(&g, fact, prompt, "module.logits", r.logits[1][0]);
        check_part(&g, fact, prompt, "module.hidden", r.hidden[1][0]);
        vb_session_close(s);
    }
    assert_int_equal(prompt, 4);
    golden_close(&g);
    json_decref(facts);
}

TEST(a_file_of_every_type_computes_what_numpy_says)
{
    vb_model *panels = open_so(EVERY_TYPE, NULL, NULL), *blocks = open_so(EVERY_TYPE, NULL, "off");
    check_truth(panels);
    check_truth(blocks);
    vb_model_close(blocks);
    vb_model_close(panels);
}

/* ---- the same bits ---- */

/* The best instruction set, or all, with threads, chunks, drafts, against plain decoding of a. */
static void check_settings(const char *what, const vb_model *a, const vb_model *b, int all)
{
    static const struct {
        int threads, chunk, K;
        const char *draft;
    } settings[] = {{1, 0, 0, "none"}, {2, 1, 0, "none"}, {3, 7, 0, "none"}, {2, 0, 3, "mtp-vanilla"},
                    {1, 5, 2, "mtp-eagle"}, {2, 0, 15, "eagle-keep"}};
    static struct record plain, other;
    int32_t prompt[20];
    char setting[128];
    random_tokens(a, 11, prompt, COUNT(prompt));
    run_plain(a, NULL, prompt, COUNT(prompt), 16, &plain);
    for (const char *const *first = isas_here(), *const *isa = first; *isa && (all || isa == first); isa++)
        for (size_t i = 0; i < COUNT(settings); i++) {
            vb_session_options o = {.isa = *isa, .exact_threads = 1, .threads = settings[i].threads,
                                    .prefill_chunk = settings[i].chunk, .drafting.method = settings[i].draft,
                                    .drafting.tokens = settings[i].K, .context = 64};
            if (settings[i].K && !vb_mtp_modules(b))
                continue;
            snprintf(setting, sizeof setting, "%s, %s, %d threads, chunk %d, %s", what, *isa, o.threads,
                     o.prefill_chunk, o.drafting.method);
            run(b, &o, prompt, COUNT(prompt), 16, &other);
            check_same(setting, &plain, &other);
        }
}

TEST(panels_or_blocks_the_bits_are_the_same_in_every_setting)
{
    vb_model *on = open_so(EVERY_TYPE, NULL, "on"), *off = open_so(EVERY_TYPE, NULL, "off");
    assert_true(on->repacked_bytes > 0);
    assert_int_equal(off->repacked_bytes, 0);
    check_settings("panels", on, on, 1);
    check_settings("blocks", on, off, 1);
    vb_model_close(off);
    vb_model_close(on);
}

/* In each of them what is quantized in the file stays so. */
TEST(of_a_quantized_file_other_precisions_change_what_is_not_quantized)
{
    static const char *const precisions[] = {"bf16", "q8", "q4"};
    for (size_t i = 0; i < COUNT(precisions); i++) {
        char what[32];
        vb_model *plain = open_so(EVERY_TYPE, NULL, NULL), *on = open_so(EVERY_TYPE, precisions[i], "on");
        vb_model *off = open_so(EVERY_TYPE, precisions[i], "off");
        const struct mla *a = &on->mtp[0].layer.self_attn; /* its q_b_proj and keys are F16, kv_a BF16 */
        assert_int_equal(a->q_a_proj.type, WEIGHT_Q5_K);
        assert_int_equal(a->q_b_proj.type, i == 0 ? WEIGHT_BF16 : i == 1 ? WEIGHT_Q8_0 : WEIGHT_Q4_0);
        assert_int_equal(a->w_uk.type, a->q_b_proj.type);
        assert_int_equal(a->w_uk.panels, i > 0);
        assert_int_equal(a->uk_transposed, i > 0);
        assert_int_equal(on->layers[1].self_attn.w_uk.type, WEIGHT_F32); /* of a quantized kv_b_proj */
        assert_int_equal(on->layers[1].self_attn.w_uv.type, WEIGHT_Q4_0);
        assert_int_equal(on->repacked_bytes, plain->repacked_bytes);
        assert_true(i ? on->quantized_bytes > 0 && !on->rounded_bytes : on->rounded_bytes > 0 && !on->quantized_bytes);
        snprintf(what, sizeof what, "precision %s", precisions[i]);
        check_settings(what, on, off, 0);
        vb_model_close(off);
        vb_model_close(on);
        vb_model_close(plain);
    }
}

TEST(a_directory_in_q8_or_q4_gives_the_bits_of_its_quantized_file)
{
    static const struct {
        const char *precision;
        struct gguf_write_options as;
    } ways[] = {{"q8", {GGUF_AS_Q8_0, GGUF_AS_STORED, GGUF_AS_Q8_0}},
                {"q4", {GGUF_AS_Q4_0, GGUF_AS_STORED, GGUF_AS_Q4_0}}};
    char dir[64], what[64];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(models) - !have_tale(); i++)
        for (size_t w = 0; w < COUNT(ways); w++) {
            static struct record plain, other;
            int32_t prompt[30];
            const char *path = quantized(dir, models[i], ways[w].as);
            vb_model *of[] = {open_so(models[i], ways[w].precision, "on"), open_so(models[i], ways[w].precision, "off"),
                              open_so(path, NULL, "on"), open_so(path, NULL, "off"),
                              open_so(path, ways[w].precision, NULL)};
            random_tokens(of[0], 3, prompt, COUNT(prompt));
            run_plain(of[0], NULL, prompt, COUNT(prompt), 12, &plain);
            for (size_t k = 1; k < COUNT(of); k++) {
                vb_session_options o = {.exact_threads = 1, .threads = 2,
                                        .drafting.method = vb_mtp_modules(of[k]) ? "mtp-vanilla" : "none",
                                        .context = 60};
                snprintf(what, sizeof what, "%s, %s, model %zu", models[i], ways[w].precision, k);
                run(of[k], &o, prompt, COUNT(prompt), 12, &other);
                check_same(what, &plain, &other);
            }
            for (size_t k = 0; k < COUNT(of); k++)
                vb_model_close(of[k]);
        }
    remove_dir(dir);
}

/* ---- what is bound ---- */

/* Every weight, as a number. */
static void check_numbers(const char *what, const struct weight_view *a, const struct weight_view *b)
{
    float x[1536], y[1536];
    assert_true(a->type == b->type && a->rows == b->rows && a->cols == b->cols && a->cols <= COUNT(x));
    assert_true((!a->panels || (uintptr_t)a->data % 64 == 0) && (!b->panels || (uintptr_t)b->data % 64 == 0));
    for (size_t i = 0; i < a->rows; i++) {
        decode_weights(x, a, i, 0, a->cols);
        decode_weights(y, b, i, 0, a->cols);
        if (memcmp(x, y, a->cols * sizeof *x))
            fail_msg("%s, row %zu: other numbers", what, i);
    }
}

static void check_mlp_numbers(const struct mlp *a, const struct mlp *b)
{
    check_numbers("gate_proj", &a->gate_proj, &b->gate_proj);
    check_numbers("up_proj", &a->up_proj, &b->up_proj);
    check_numbers("down_proj", &a->down_proj, &b->down_proj);
}

/* b's W_uk and W_uv may have other matrices between their heads. */
static void check_heads(const struct config *c, const struct mla *a, const struct mla *b)
{
    size_t keys = (size_t)(a->uk_transposed ? c->kv_lora_rank : c->qk_nope_head_dim), values = (size_t)c->v_head_dim;
    assert_int_equal(a->uk_transposed, b->uk_transposed);
    for (size_t h = 0; h < (size_t)c->num_attention_heads; h++) {
        struct weight_view x = weight_rows(&a->w_uk, h * a->uk_stride, keys),
                           y = weight_rows(&b->w_uk, h * b->uk_stride, keys);
        check_numbers("W_uk", &x, &y);
        x = weight_rows(&a->w_uv, h * a->uv_stride, values);
        y = weight_rows(&b->w_uv, h * b->uv_stride, values);
        check_numbers("W_uv", &x, &y);
    }
}

static void check_layer(const struct config *c, const struct layer *a, const struct layer *b)
{
    const struct mla *x = &a->self_attn, *y = &b->self_attn;
    if (c->q_lora_rank) {
        check_numbers("q_a_proj", &x->q_a_proj, &y->q_a_proj);
        check_numbers("q_b_proj", &x->q_b_proj, &y->q_b_proj);
    } else {
        check_numbers("q_proj", &x->q_proj, &y->q_proj);
    }
    check_numbers("kv_a_proj", &x->kv_a_proj_with_mqa, &y->kv_a_proj_with_mqa);
    check_numbers("o_proj", &x->o_proj, &y->o_proj);
    check_heads(c, x, y);
    if (!a->is_moe) {
        check_mlp_numbers(&a->mlp, &b->mlp);
        return;
    }
    check_numbers("gate", &a->moe.gate, &b->moe.gate);
    for (int e = 0; e < c->n_routed_experts; e++)
        check_mlp_numbers(&a->moe.experts[e], &b->moe.experts[e]);
    if (c->n_shared_experts)
        check_mlp_numbers(&a->moe.shared_experts, &b->moe.shared_experts);
}

static void check_all_numbers(const vb_model *a, const vb_model *b)
{
    check_numbers("embed_tokens", &a->embed_tokens, &b->embed_tokens);
    check_numbers("lm_head", &a->lm_head, &b->lm_head);
    for (int l = 0; l < a->config.num_hidden_layers; l++)
        check_layer(&a->config, &a->layers[l], &b->layers[l]);
    for (int k = 0; k < a->num_mtp; k++) {
        check_layer(&a->config, &a->mtp[k].layer, &b->mtp[k].layer);
        check_numbers("eh_proj", &a->mtp[k].eh_proj, &b->mtp[k].eh_proj);
        check_numbers("module's head", &a->mtp[k].head, &b->mtp[k].head);
        check_numbers("module's embedding", &a->mtp[k].embed_tokens, &b->mtp[k].embed_tokens);
    }
}

TEST(panels_hold_the_numbers_of_the_blocks)
{
    static const char *const precisions[] = {NULL, "bf16", "q8", "q4"};
    for (size_t p = 0; p < COUNT(precisions); p++)
        for (size_t i = 0; i <= COUNT(models) - !have_tale(); i++) {
            const char *from = i ? models[i - 1] : EVERY_TYPE;
            vb_model *on = open_so(from, precisions[p], NULL), *off = open_so(from, precisions[p], "off");
            check_all_numbers(on, off);
            vb_model_close(off);
            vb_model_close(on);
        }
}

static const struct tensor *stored(const vb_model *m, const char *name)
{
    const struct tensor *t = checkpoint_find(m->checkpoint, name);
    if (!t)
        fail_msg("%s is not stored", name);
    return t;
}

TEST(every_quantized_tensor_has_its_place)
{
    vb_model *on = open_so(EVERY_TYPE, NULL, NULL), *off = open_so(EVERY_TYPE, NULL, "off");
    const struct mla *a = &off->layers[0].self_attn, *old = &off->layers[1].self_attn,
                     *last = &off->mtp[0].layer.self_attn;
    const struct weight_view *o = &on->layers[1].self_attn.o_proj, *gate = &off->mtp[0].layer.moe.gate;

    assert_ptr_equal(a->w_uk.data, stored(off, "model.layers.0.self_attn.k_b_proj_transposed.weight")->data);
    assert_true(a->uk_transposed && a->uk_stride == 256 && a->w_uk.rows == 512 && a->w_uk.cols == 32);
    assert_ptr_equal(a->w_uv.data, stored(off, "model.layers.0.self_attn.v_b_proj.weight")->data);
    assert_true(a->w_uv.type == WEIGHT_Q4_K && a->uv_stride == 32 && a->w_uv.rows == 64);

    const struct tensor *kv_b = stored(off, "model.layers.1.self_attn.kv_b_proj.weight");
    assert_true(!old->uk_transposed && old->w_uk.type == WEIGHT_F32 && old->uk_stride == 32 && old->w_uk.rows == 64);
    assert_true(old->w_uv.type == WEIGHT_Q4_0 && old->uv_stride == 64);
    assert_ptr_equal(old->w_uv.data, (const char *)kv_b->data + 32 * (256 / 32 * 18));
    assert_true(on->layers[1].self_attn.w_uv.panels && on->layers[1].self_attn.uv_stride == 32);

    assert_true(!last->uk_transposed && last->w_uk.type == WEIGHT_F16 && last->uk_stride == 32 &&
                last->w_uv.type == WEIGHT_Q8_0);
    assert_int_equal(gate->type, WEIGHT_F32); /* the router's, Q8_0 in the file: never quantized arithmetic */
    assert_true(on->layers[0].self_attn.q_a_proj.type == WEIGHT_Q4_K && !on->layers[0].self_attn.q_a_proj.panels);
    assert_true(o->type == WEIGHT_Q8_0 && o->panels && stored(on, "model.layers.1.self_attn.o_proj.weight")->copied);
    assert_true(on->embed_tokens.type == WEIGHT_Q6_K &&
                on->embed_tokens.data == stored(on, "model.embed_tokens.weight")->data);
    assert_true(!stored(on, "model.embed_tokens.weight")->copied && on->lm_head.panels);

    size_t copies = 64 * 256 * 4 + 4 * 256 * 4; /* W_uk of the old layer, the router; norms are as small in both */
    assert_true(off->widened_bytes == on->widened_bytes && off->widened_bytes > copies &&
                off->widened_bytes < copies + 20000);
    assert_int_equal(off->copied_bytes, 64 * 256 * 4);
    assert_int_equal(on->copied_bytes, 64 * 256 * 4 + on->repacked_bytes);
    vb_model_close(off);
    vb_model_close(on);
}

/* Both the head and the embedding are one tensor: they are one copy, too, if it is quantized in the file. */
TEST(a_tied_head_and_its_embedding_share_panels)
{
    char dir[64], *config, *said;
    size_t size;
    copy_checkpoint(dir, "golden/tiny/glm");
    OK(vb_read_file(NULL, "golden/tiny/glm/config.json", &config, &size, &err));
    assert_non_null(said = strstr(config, "\"tie_word_embeddings\": false"));
    memcpy(said, "\"tie_word_embeddings\": true ", strlen("\"tie_word_embeddings\": false"));
    write_file(dir, "config.json", config, size);
    vb_free(NULL, config);
    const char *path = quantized(dir, dir, (struct gguf_write_options){GGUF_AS_Q8_0, GGUF_AS_Q8_0, GGUF_AS_Q8_0});
    vb_model *on = open_so(path, NULL, NULL), *off = open_so(path, NULL, "off"), *directory = open_so(dir, "q8", NULL);
    assert_true(on->config.tie_word_embeddings && on->lm_head.panels && on->embed_tokens.panels);
    assert_ptr_equal(on->embed_tokens.data, on->lm_head.data);
    assert_true(!off->lm_head.panels && off->lm_head.data == off->embed_tokens.data);
    assert_true(directory->lm_head.panels && directory->embed_tokens.type == WEIGHT_BF16);
    assert_false(stored(directory, "model.embed_tokens.weight")->copied);
    check_settings("tied", on, off, 0);
    vb_model_close(directory);
    vb_model_close(off);
    vb_model_close(on);
    remove_dir(dir);
}

/* ---- on the way ---- */

struct meter {
    size_t calls, done, total;
};

static void measure(void *context, size_t done, size_t total)
{
    struct meter *m = context;
    assert_true(done >= m->done && done <= total && (!m->calls || total == m->total));
    *m = (struct meter){m->calls + 1, done, total};
}

TEST(progress_comes_to_its_end_on_any_number_of_threads)
{
    vb_model *plain = open_so("golden/tiny/v3", "q8", NULL);
    for (int threads = 1; threads < 5; threads++) {
        struct meter meter = {0};
        vb_model *m = NULL;
        vb_model_options o = {.precision = "q8", .threads = threads, .progress = measure, .progress_context = &meter};
        OK(vb_model_open(&m, "golden/tiny/v3", &o, &err));
        assert_true(meter.calls && meter.done == meter.total && meter.total >= m->quantized_bytes);
        check_all_numbers(plain, m);
        vb_model_close(m);
    }
    vb_model_close(plain);
}

TEST(options_that_are_not_known_are_told)
{
    vb_model *m;
    REFUSED(vb_model_open(&m, EVERY_TYPE, &(vb_model_options){.repack = "yes"}, &err), VB_BAD_ARGUMENT,
            "unknown repack yes; known are on, off");
    REFUSED(vb_model_open(&m, EVERY_TYPE, &(vb_model_options){.threads = -1}, &err), VB_BAD_ARGUMENT,
            "threads is -1, wanted 1 to 4096");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_every_type_computes_what_numpy_says),
        cmocka_unit_test(panels_or_blocks_the_bits_are_the_same_in_every_setting),
        cmocka_unit_test(of_a_quantized_file_other_precisions_change_what_is_not_quantized),
        cmocka_unit_test(a_directory_in_q8_or_q4_gives_the_bits_of_its_quantized_file),
        cmocka_unit_test(panels_hold_the_numbers_of_the_blocks),
        cmocka_unit_test(every_quantized_tensor_has_its_place),
        cmocka_unit_test(a_tied_head_and_its_embedding_share_panels),
        cmocka_unit_test(progress_comes_to_its_end_on_any_number_of_threads),
        cmocka_unit_test(options_that_are_not_known_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
