/* tests/cuda/checkcuda_engine.c -- models of which an emulated device computes parts: the same bits as without it, for
 * every split. */
#include "engine/model/offload.h"
#include "engine/pass/forward.h"
#include "tests/cuda/checked_device.h"
#include "tests/support/engine_support.h"
#include "tests/support/layout_checkpoint.h"
#include "tests/support/quantized.h"
#include "tests/support/tiny.h"
#include "tests/support/turn.h"

#define TOKENS 5
#define PROMPT 9 /* two passes of at most 8 rows */
#define DRAFTED 4 /* rounds whose drafts are compared */

static const struct {
    const char *name;
    int modules;
} tiny[] = {
#define X(name, modules) {"golden/tiny/" name, modules},
    TINY_CHECKPOINTS(X) TINY_WITH_INDEXER(X)
#undef X
};

static struct device *device;

/* Opens a model of which the device computes parts. */
static vb_model *offloaded_with(const char *dir, const char *conventions, enum precision precision,
                                enum cache_type cache, int layers, int without_experts)
{
    device = open_checked_device();
    struct offload_options offload = {device, layers, without_experts};
    struct conventions parsed = {{0}};
    struct model_options o = {.conventions = &parsed, .precision = precision, .cache_type = cache, .offload = &offload,
                              .threads = 1};
    struct vb_model *m;
    OK(conventions_parse(&parsed, conventions, &err));
    OK(model_open_under(&m, dir, &o, NULL, &err));
    return m;
}

static vb_model *offloaded(const char *dir, enum precision precision, enum cache_type cache, int layers,
                           int without_experts)
{
    return offloaded_with(dir, NULL, precision, cache, layers, without_experts);
}

static void close_offloaded(vb_model *m)
{
    vb_model_close(m);
    close_checked_device(device);
}

static vb_model *on_cpu(const char *dir, const char *precision, const char *cache)
{
    vb_model *m;
    OK(vb_model_open(&m, dir, &(vb_model_options){.precision = precision, .cache_type = cache, .threads = 1}, &err));
    return m;
}

static const vb_session_options one_thread = {.context = 64, .threads = 1, .prefill_chunk = 8};

/* Tokens and drafts of a few rounds. Wrong drafts would not change what is generated. */
static size_t proposals(const vb_model *m, const vb_session_options *o, const int32_t *prompt, size_t tokens,
                        int32_t *list)
{
    vb_session *s = open_session(m, o, prompt, tokens);
    size_t n = 0;
    for (int i = 0; i < DRAFTED; i++) {
        int32_t count;
        if (i)
            OK(vb_append(s, prompt + i, 3, &err)); /* the modules then have several rows to compute */
        OK(vb_draft(s, &list[n], &list[n + 1], &count, &err));
        n += 1 + (size_t)count;
    }
    vb_session_close(s);
    return n;
}

static void compare_proposals(const char *what, const vb_model *a, const vb_model *b, const vb_session_options *o,
                              const int32_t *prompt, size_t tokens)
{
    int32_t want[DRAFTED * (1 + VB_MAX_DRAFT)], got[DRAFTED * (1 + VB_MAX_DRAFT)];
    size_t n = proposals(a, o, prompt, tokens, want), m = proposals(b, o, prompt, tokens, got);
    if (n < 4 || n != m || memcmp(want, got, n * sizeof *want) != 0)
        fail_msg("%s: %zu tokens and drafts on the CPU, %zu with the device, and they differ or are too few", what, n,
                 m);
}

static void compare(const char *what, const vb_model *a, const vb_model *b, const vb_session_options *o)
{
    static struct record want, got;
    int32_t prompt[PROMPT];
    random_tokens(a, 7, prompt, PROMPT);
    run(a, &one_thread, prompt, PROMPT, TOKENS, &want);
    run(b, o, prompt, PROMPT, TOKENS, &got);
    check_same(what, &want, &got);
    if (o->drafting.method)
        compare_proposals(what, a, b, o, prompt, PROMPT);
}

static void every_split_has_the_bits_of_the_cpu(__attribute__((unused)) void **state)
{
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++) {
        if (!has_turn(i, 2))
            continue;
        vb_model *a = on_cpu(tiny[i].name, "f32", "f32");
        int layers = a->config.num_hidden_layers;
        for (int n = 1; n <= layers + 1; n = n == 2 ? layers + 1 : n + 1) {
            vb_session_options o = one_thread;
            char what[128];
            snprintf(what, sizeof what, "%s, %d layers", tiny[i].name, n);
            vb_model *b = offloaded(tiny[i].name, PRECISION_F32, CACHE_TYPE_F32, n, n == 2);
            o.drafting.method = n > layers && tiny[i].modules ? "mtp-eagle" : NULL;
            compare(what, a, b, &o);
            assert_true(!is_emulated() || n == 2 || emulator_launches(device) > 0);
            close_offloaded(b);
        }
        vb_model_close(a);
    }
}

static void precisions_and_caches_have_the_bits_of_the_cpu(__attribute__((unused)) void **state)
{
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"}, *const caches[] = {"f32", "bf16", "q8"};
    static const enum precision precision[] = {PRECISION_F32, PRECISION_BF16, PRECISION_Q8, PRECISION_Q4};
    static const enum cache_type cache[] = {CACHE_TYPE_F32, CACHE_TYPE_BF16, CACHE_TYPE_Q8};
    for (size_t p = 0; p < 4; p++)
        for (size_t c = 0; c < 3; c++) {
            if ((p && c && p != c) || !has_turn(p + c, 2))
                continue;
            vb_session_options o = one_thread;
            char what[64];
            snprintf(what, sizeof what, "precision %s, cache %s", precisions[p], caches[c]);
            vb_model *a = on_cpu("golden/tiny/v3-mtp3", precisions[p], caches[c]),
                     *b = offloaded("golden/tiny/v3-mtp3", precision[p], cache[c], OFFLOAD_AUTO, 0);
            o.drafting.method = mtp_method(p);
            compare(what, a, b, &o);
            assert_true(!is_emulated() || emulator_replays(device) > 0);
            close_offloaded(b);
            vb_model_close(a);
        }
}

/* Prompt, tokens and drafts of a model with this precision, all of whose layers are on the device. Device memory that a
 * kernel reads beyond a matrix contains garbage or cannot be read, so this also shows that all its bytes are there. */
static void compare_all_layers(const char *path, const char *name, const char *precision)
{
    enum precision p;
    char what[96];
    vb_session_options o = one_thread;
    o.drafting.method = "mtp-eagle";
    snprintf(what, sizeof what, "%s, precision %s", name, precision);
    OK(precision_parse(&p, NULL, precision, &err));
    vb_model *a = on_cpu(path, precision, "f32"),
             *b = offloaded(path, p, CACHE_TYPE_F32, a->config.num_hidden_layers + 1, 0);
    compare(what, a, b, &o);
    assert_true(b->mtp[0].layer.mlp_on_device && (!is_emulated() || emulator_replays(device) > 0));
    close_offloaded(b);
    vb_model_close(a);
}

static void every_type_of_gguf_files_has_the_bits_of_the_cpu(__attribute__((unused)) void **state)
{
    static const struct quantized_model models[] = {
        {.name = "small", .types = {"Q4_0", "Q5_1", "Q8_0", "IQ4_NL"}, .k_b = "MXFP4", .v_b = "Q4_1",
         .embedding = "Q5_0", .gate = "Q8_0"},
        {.name = "small-mixed", .types = {"MXFP4", "F16", "Q5_0", "Q4_1"}, .k_b = "BF16", .v_b = "Q5_1",
         .embedding = "IQ4_NL", .gate = "F32", .tied = 1},
        {.name = "iq2", .types = {"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"}, .large = 1},
        {.name = "iq1", .types = {"IQ1_M", "IQ3_S", "IQ1_S", "Q4_K"}, .k_b = "IQ3_S", .v_b = "IQ1_S", .large = 1},
        {.name = "k", .types = {"Q2_K", "Q3_K", "Q6_K", "Q5_K"}, .k_b = "Q4_K", .v_b = "BF16", .embedding = "Q3_K",
         .gate = "Q6_K", .tied = 1, .large = 1},
        {.name = "rest", .types = {"TQ1_0", "NVFP4", "TQ2_0", "IQ4_XS"}, .k_b = "NVFP4", .v_b = "TQ2_0",
         .embedding = "Q4_K", .large = 1},
    };
    char dir[64], path[96], file[32];
    make_dir(dir);
    for (size_t i = 0; i < COUNT(models); i++) {
        if (!has_turn(i, 2))
            continue;
        snprintf(file, sizeof file, "%s.gguf", models[i].name);
        snprintf(path, sizeof path, "%s/%s", dir, file);
        write_quantized(dir, file, models[i]);
        compare_all_layers(path, models[i].name, "f32");
    }
    remove_dir(dir);
    for (size_t t = 0; t < COUNT(block_types); t++) {
        size_t found = 0;
        for (size_t i = 0; i < COUNT(models); i++) {
            const struct quantized_model *q = &models[i];
            const char *const types[] = {q->types[0], q->types[1], q->types[2], q->types[3], q->k_b, q->gate};
            for (size_t k = 0; k < COUNT(types); k++)
                found += types[k] && !strcmp(types[k], block_types[t].name);
        }
        if (!found)
            fail_msg("no model has matrices of type %s", block_types[t].name);
    }
    assert_int_equal(COUNT(block_types), WEIGHT_ALL_TYPES - WEIGHT_TYPES + 3); /* and F32, F16, BF16 */
}

static void every_layout_has_the_bits_of_the_cpu(__attribute__((unused)) void **state)
{
    for (int l = 0; l < LAYOUTS; l++)
        for (int q8 = 0; q8 <= (l != LAYOUT_BF16); q8++) {
            if (!has_turn((size_t)(l + q8), 2))
                continue;
            char dir[64];
            layout_checkpoint(dir, (struct layout_checkpoint){.layout = (enum layout)l, .no_q_lora = q8,
                                                              .tied = l % 3 == 1});
            compare_all_layers(dir, layout_names[l], q8 ? "q8" : "f32");
            remove_dir(dir);
        }
}

/* Two sessions with splits of their own decode alone. Then a batch computes them together, with the split of the
 * first. */
static void check_other_splits(const char *dir)
{
    static struct record want[2], got[2];
    vb_model *a = on_cpu(dir, "f32", "f32"), *b = offloaded(dir, PRECISION_F32, CACHE_TYPE_F32, OFFLOAD_AUTO, 0);
    vb_session *alone[2], *together[2];
    vb_generate_options options[2];
    vb_result results[2];
    int32_t prompt[20];
    random_tokens(a, 7, prompt, 20);
    for (int i = 0; i < 2; i++) {
        vb_session_options o = one_thread;
        alone[i] = open_session(a, &o, prompt + i, 12);
        generate(alone[i], 6, &want[i]);
        o.cpu_layers = i ? 1 : 2;
        together[i] = open_session(b, &o, prompt + i, 12);
        generate(together[i], 6, &got[i]);
        check_same("alone", &want[i], &got[i]);
        generate(alone[i], 6, &want[i]);
        memset(&got[i], 0, sizeof got[i]);
        options[i] = recording(&got[i], together[i], 6);
    }
    assert_true(!is_emulated() || emulator_launches(device) > 100);
    OK(generate_together(together, 2, options, results, &err));
    for (int i = 0; i < 2; i++) {
        got[i].result = results[i];
        check_same("together", &want[i], &got[i]);
        vb_session_close(alone[i]);
        vb_session_close(together[i]);
    }
    close_offloaded(b);
    vb_model_close(a);
}

static void sessions_with_other_splits_share_passes(__attribute__((unused)) void **state)
{
    check_other_splits("golden/tiny/v3");
    check_other_splits("golden/tiny/glm5");
}

/* Passes that decode are recorded. The first ones have a block of 256 tokens, the later ones two. */
static void a_timeline_that_needs_more_blocks_has_the_bits_of_the_cpu(__attribute__((unused)) void **state)
{
    static struct record want, got;
    vb_session_options o = {.context = 300, .threads = 1, .prefill_chunk = 128};
    vb_model *a = on_cpu("golden/tiny/v3", "f32", "f32"),
             *b = offloaded("golden/tiny/v3", PRECISION_F32, CACHE_TYPE_F32, OFFLOAD_AUTO, 0);
    int32_t prompt[253];
    random_tokens(a, 7, prompt, COUNT(prompt));
    run(a, &o, prompt, COUNT(prompt), 8, &want);
    run(b, &o, prompt, COUNT(prompt), 8, &got);
    check_same("beyond 256 tokens", &want, &got);
    assert_true(!is_emulated() || emulator_replays(device) >= 7);
    close_offloaded(b);
    vb_model_close(a);
}

/* Timelines that are longer than what an indexer keeps: some of the first passes attend to all tokens. glm5 has a layer
 * without an indexer, and its modules attend in later draft steps to what was chosen in the first one. */
static void sparse_attention_has_the_bits_of_the_cpu(__attribute__((unused)) void **state)
{
    static const struct {
        const char *dir, *conventions, *method, *cache;
        int layers;
    } cases[] = {
        {"golden/tiny/v32", NULL, "mtp-eagle", "f32", OFFLOAD_AUTO},
        {"golden/tiny/v32", "latent-cache=fp8,indexer-weights=bf16,indexer-scores=bf16", NULL, "f32", 2},
        {"golden/tiny/v32", "indexer-codes=none,indexer-ties=highest", "mtp-vanilla", "bf16", OFFLOAD_AUTO},
        {"golden/tiny/v32", "as=llama.cpp", "mtp-eagle", "q8", OFFLOAD_AUTO},
        {"golden/tiny/glm5", NULL, "mtp-eagle", "f32", OFFLOAD_AUTO},
        {"golden/tiny/glm5", "indexer-codes=fp8", NULL, "f32", 1},
        {"golden/tiny/glm5", NULL, NULL, "f32", 2},
        {"golden/tiny/glm5", "mtp-set=own,indexer-rope=halves", "mtp-eagle", "bf16", 3},
    };
    static struct record want, got;
    for (size_t i = 0; i < COUNT(cases); i++) {
        vb_session_options o = {.context = 300, .threads = 1, .prefill_chunk = 32};
        enum cache_type cache;
        char what[128];
        vb_model *a;
        int32_t prompt[251];
        if (!has_turn(i, 2))
            continue;
        OK(cache_type_parse(&cache, cases[i].cache, &err));
        OK(vb_model_open(&a, cases[i].dir,
                         &(vb_model_options){.conventions = cases[i].conventions, .cache_type = cases[i].cache,
                                             .threads = 1},
                         &err));
        vb_model *b = offloaded_with(cases[i].dir, cases[i].conventions, PRECISION_F32, cache, cases[i].layers, 0);
        for (int is_long = 0; is_long < 2; is_long++) {
            size_t n = !is_long ? 3 : i % 4 ? 40 : COUNT(prompt); /* the longest ones need a second block of 256
                                                                     tokens */
            snprintf(what, sizeof what, "%s, case %zu, prompt of %zu tokens", cases[i].dir, i, n);
            random_tokens(a, 7, prompt, COUNT(prompt));
            run(a, &o, prompt, n, 14, &want);
            o.drafting = (vb_drafting){.method = cases[i].method, .tokens = cases[i].method ? 8 : 0};
            run(b, &o, prompt, n, 14, &got);
            check_same(what, &want, &got);
            if (cases[i].method)
                compare_proposals(what, a, b, &o, prompt, n);
            o.drafting = (vb_drafting){0};
        }
        assert_true(b->layers[b->config.num_hidden_layers - 1].attention_on_device &&
                    (!is_emulated() || emulator_launches(device) > 100));
        assert_true(!is_emulated() || cases[i].layers != OFFLOAD_AUTO || emulator_replays(device) > 10);
        close_offloaded(b);
        vb_model_close(a);
    }
}

/* g of the last two of 42 rows of a module. The first of them keeps the tokens that the second one uses; before, the
 * list has other tokens. */
static void rows_that_share_a_choice(const struct vb_model *m, float *g)
{
    enum { N = 42 };
    size_t d = m->config.dims.d;
    uint64_t seed = 3;
    int32_t first_tokens[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct kept_tokens kept = {first_tokens, COUNT(first_tokens)};
    struct pass w;
    struct kvcache cache;
    struct row rows[N];
    float *h = calloc(3 * N * d, sizeof *h), *earlier = h + N * d, *next = earlier + N * d;
    OK(pass_open(&w, m, kernels_select("best", NULL), 1, N, 1, 64, 0, &err));
    OK(kvcache_open(&cache, 1, 64, model_mtp_cache_layout(&m->config), NULL, &err));
    for (size_t i = 0; i < N * d; i++)
        h[i] = (float)random_below(&seed, 2001) * 0.001f - 1.0f;
    for (int32_t i = 0; i < N; i++)
        rows[i] = (struct row){.cache = &cache, .token = 3 + i * 7 % 90, .index = i, .position = i,
                               .slot = kvcache_append(&cache)};
    rows[N - 2].keep = &kept;
    rows[N - 1].use = &kept;
    forward_mtp(&w, m->mtp, 0, rows, h, earlier, next, N - 2);
    forward_mtp(&w, m->mtp, 0, rows + N - 2, h + (N - 2) * d, g, next, 2);
    assert_int_equal(kept.count, COUNT(first_tokens));
    assert_true(first_tokens[7] != 7); /* others were chosen */
    kvcache_close(&cache, NULL);
    pass_close(&w);
    free(h);
}

static void a_row_attends_to_what_an_earlier_row_of_its_pass_chose(__attribute__((unused)) void **state)
{
    float want[2 * 512], got[2 * 512];
    vb_model *a = on_cpu("golden/tiny/glm5", "f32", "f32"),
             *b = offloaded("golden/tiny/glm5", PRECISION_F32, CACHE_TYPE_F32, OFFLOAD_AUTO, 0);
    assert_true(a->config.dims.d <= 512 && a->config.index_topk == 8);
    rows_that_share_a_choice(a, want);
    rows_that_share_a_choice(b, got);
    if (memcmp(want, got, 2 * a->config.dims.d * sizeof *want) != 0)
        fail_msg("rows with a shared choice have other bits than on the CPU");
    close_offloaded(b);
    vb_model_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_split_has_the_bits_of_the_cpu),
                                       cmocka_unit_test(precisions_and_caches_have_the_bits_of_the_cpu),
                                       cmocka_unit_test(every_type_of_gguf_files_has_the_bits_of_the_cpu),
                                       cmocka_unit_test(every_layout_has_the_bits_of_the_cpu),
                                       cmocka_unit_test(sparse_attention_has_the_bits_of_the_cpu),
                                       cmocka_unit_test(a_row_attends_to_what_an_earlier_row_of_its_pass_chose),
                                       cmocka_unit_test(a_timeline_that_needs_more_blocks_has_the_bits_of_the_cpu),
                                       cmocka_unit_test(sessions_with_other_splits_share_passes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
