/* tests/engine/test_plan.c -- a model without weights has the tensors of its checkpoint, and plans for ranks follow
 * from the shapes. Runs in the repository's root. */
#include "engine/pass/plan.h"

#include <jansson.h>
#include <math.h>

#include "ops/weights.h"
#include "tests/support/engine_support.h"
#include "tests/support/lists.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny.h"

#define MOST_READS 4096

static const char *const tiny[] = {TINY_CHECKPOINTS(TINY_PATH) TINY_WITH_INDEXER(TINY_PATH) TINY_SHAPES(TINY_PATH)};

static const uint64_t one[] = {0, 1}, two[] = {0, 1, 2}, unequal[] = {0, 2, 3, 4},
                      many[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static const struct op_ranks alone = {.count = 1, .before = one},
                             splits[] = {{.count = 2, .before = two}, {.count = 3, .before = unequal},
                                         {.count = 12, .before = many}};

static struct vb_model *shapes_of(const char *path, const char *type, const struct model_options *o)
{
    struct vb_model *m;
    vb_error err;
    int from_config;
    if (model_open_shapes(&m, path, type, o, &from_config, NULL, &err))
        fail_msg("%s: %s", path, err.message);
    return m;
}

/* Writes the config of a published model to DIR/config.json. */
static void write_published(const char *dir, const char *name)
{
    json_error_t why;
    json_t *all = json_load_file("golden/published/configs.json", 0, &why), *c = json_object_get(all, name);
    if (!c)
        fail_msg("golden/published/configs.json has no %s", name);
    char *text = json_dumps(c, 0);
    write_text(dir, "config.json", text);
    free(text);
    json_decref(all);
}

static struct vb_model *published(const char *name, const char *type, enum precision precision)
{
    char dir[64];
    make_dir(dir);
    write_published(dir, name);
    struct vb_model *m = shapes_of(dir, type, &(struct model_options){.precision = precision});
    remove_dir(dir);
    return m;
}

/* ---- shapes ---- */

static int is_extra(const struct config *c, const char *name) /* a tensor that published files have, but this file
                                                                 lacks */
{
    char prefix[40];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", c->num_hidden_layers);
    return strncmp(name, "model.layers.", 13) == 0 && atoi(name + 13) >= c->num_hidden_layers &&
           (ends_with(name, ".embed_tokens.weight") || ends_with(name, ".shared_head.head.weight"));
}

TEST(tensors_made_from_config_json_are_those_of_the_checkpoint)
{
    for (size_t i = 0; i < COUNT(tiny); i++) {
        struct config c;
        struct checkpoint *real, *made;
        vb_error err;
        if (config_read(&c, tiny[i], NULL, &err) || checkpoint_open(&real, tiny[i], NULL, &err) ||
            model_list_shapes(&made, &c, NULL, NULL, &err))
            fail_msg("%s: %s", tiny[i], err.message);
        for (size_t k = 0; k < checkpoint_count(made); k++) {
            const struct tensor *t = checkpoint_at(made, k), *same = checkpoint_find(real, t->name);
            if (!same && is_extra(&c, t->name))
                continue;
            if (!same || same->ndim != t->ndim || memcmp(same->shape, t->shape, (size_t)t->ndim * sizeof *t->shape))
                fail_msg("%s: %s %s", tiny[i], t->name, same ? "has another shape" : "is not in the checkpoint");
        }
        for (size_t k = 0; k < checkpoint_count(real); k++)
            if (!checkpoint_find(made, checkpoint_at(real, k)->name) &&
                !ends_with(checkpoint_at(real, k)->name, ".inv_freq") &&
                !(c.tie_word_embeddings && !strcmp(checkpoint_at(real, k)->name, "lm_head.weight")))
                fail_msg("%s: %s was not made", tiny[i], checkpoint_at(real, k)->name);
        checkpoint_close(made);
        checkpoint_close(real);
    }
}

struct reads {
    struct read read[MOST_READS];
    size_t count;
};

static void keep(void *context, const struct read *r)
{
    struct reads *all = context;
    assert_true(all->count < MOST_READS);
    all->read[all->count++] = *r;
}

static void reads_of(struct reads *all, const struct vb_model *m)
{
    all->count = 0;
    for (size_t l = 0; l < m->config.dims.layers; l++)
        reads_of_layer(&m->config, &m->layers[l], keep, all);
    for (int k = 0; k < m->num_mtp; k++)
        reads_of_layer(&m->config, &m->mtp[k].layer, keep, all);
}

static void same_views(const char *path, enum precision precision)
{
    static struct reads a, b;
    struct model_options o = {.precision = precision};
    struct vb_model *real, *shapes = shapes_of(path, NULL, &o);
    vb_error err;
    if (model_open_under(&real, path, &o, NULL, &err))
        fail_msg("%s: %s", path, err.message);
    reads_of(&a, real);
    reads_of(&b, shapes);
    assert_int_equal(a.count, b.count);
    for (size_t i = 0; i < a.count; i++) {
        const struct weight_view *x = &a.read[i].w, *y = &b.read[i].w;
        if (x->type != y->type || x->rows != y->rows || x->cols != y->cols || x->panels != y->panels ||
            x->stride != y->stride)
            fail_msg("%s, precision %d, matrix %zu: type %d [%zu,%zu], without copies %d [%zu,%zu]", path, precision, i,
                     x->type, x->rows, x->cols, y->type, y->rows, y->cols);
    }
    assert_true(real->rounded_bytes == shapes->rounded_bytes && real->quantized_bytes == shapes->quantized_bytes);
    assert_true(!shapes->copied && shapes->lm_head.type == real->lm_head.type);
    model_close(real);
    model_close(shapes);
}

TEST(matrices_have_the_types_that_they_have_in_an_open_model)
{
    for (size_t i = 0; i < COUNT(tiny); i++)
        for (int precision = PRECISION_F32; precision <= PRECISION_Q4; precision++)
            same_views(tiny[i], (enum precision)precision);
}

TEST(a_lack_of_memory_is_told_and_nothing_is_left)
{
    char dir[64];
    make_dir(dir);
    write_published(dir, "DeepSeek-V2-Lite");
    long fail = 0, done = 0;
    for (; !done; fail += fail < 30 ? 1 : 97) { /* each of the first 30 allocations, and then every 97th of thousands */
        struct counted counted = {.fail = fail};
        vb_allocator a = {counted_alloc, counted_free, &counted};
        struct vb_model *m = NULL;
        vb_error err;
        int from_config, rc = model_open_shapes(&m, dir, "q8_0", &(struct model_options){.precision = PRECISION_Q4},
                                                &from_config, &a, &err);
        done = !rc && counted.requests <= fail;
        if (!done)
            assert_int_equal(rc, VB_NO_MEMORY);
        else
            model_close(m);
        assert_int_equal(counted.alive, 0);
    }
    assert_true(fail > 30);
    remove_dir(dir);
}

/* ---- shares ---- */

static double near(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static void check_split(const char *path, const struct vb_model *m, const struct op_ranks *s)
{
    struct plan_memory all = plan_memory(m, &alone, 0, 40, m->num_mtp > 0);
    double own = 0, mine = 0, gathered = 0;
    for (int r = 0; r < s->count; r++) {
        struct plan_memory memory = plan_memory(m, s, r, 40, m->num_mtp > 0);
        struct plan_cost pass = plan_target(m, s, r, 3, 40, 3);
        assert_true(memory.whole == all.whole && memory.cache == all.cache);
        assert_int_equal((int)pass.gathers, 4 * m->config.num_hidden_layers + 1);
        own += memory.own;
        mine += pass.gathered - pass.received;
        gathered = pass.gathered;
    }
    if (!near(own, all.own) || !near(mine, gathered))
        fail_msg("%s on %d ranks: they own %.0f of %.0f bytes and send %.0f of %.0f", path, s->count, own, all.own,
                 mine, gathered);
}

TEST(all_ranks_together_have_each_row_once)
{
    for (size_t i = 0; i < COUNT(tiny); i++)
        for (int precision = PRECISION_F32; precision <= PRECISION_Q4; precision++) {
            struct vb_model *m = shapes_of(tiny[i], NULL,
                                           &(struct model_options){.precision = (enum precision)precision});
            for (size_t k = 0; k < COUNT(splits); k++) /* a head of the tiny checkpoints need not end where a panel of
                                                          16 rows ends */
                if (precision < PRECISION_Q8)
                    check_split(tiny[i], m, &splits[k]);
            struct plan_cost pass = plan_target(m, &alone, 0, 1, 40, 1);
            assert_true(pass.gathers == 0 && pass.gathered == 0 && pass.received == 0);
            model_close(m);
        }
    for (int precision = PRECISION_Q8; precision <= PRECISION_Q4; precision++) {
        struct vb_model *m = published("DeepSeek-V3", NULL, (enum precision)precision);
        for (size_t k = 0; k < COUNT(splits); k++)
            check_split("DeepSeek-V3", m, &splits[k]);
        model_close(m);
    }
}

/* ---- what ranks do ---- */

#define STEPS 5

struct ran { /* the work of the ranks in a period, and their memory at its end */
    double gathers, bytes, weights[3];
    vb_result result;
};

/* Decodes STEPS tokens on three ranks with shares 2, 1, 1, with drafts of one token if a method is given. */
static struct ran run_ranks(const char *path, const char *precision, const char *method)
{
    struct group_options g = {.count = 3, .weights = {2, 1, 1}};
    struct group *group;
    struct ran ran = {0};
    vb_rank_facts before[3], after[3];
    vb_session *s;
    vb_model *m;
    vb_ranks *ranks = group_open(&group, &g);
    OK(vb_model_open(&m, path, &(vb_model_options){.precision = precision, .ranks = ranks}, &err));
    OK(vb_session_open(&s, m,
                       &(vb_session_options){.context = 40, .threads = 1,
                                             .drafting = {.method = method, .tokens = method != NULL}},
                       &err));
    OK(vb_append(s, (int32_t[]){5, 6, 7}, 3, &err));
    OK(vb_generate(s, &(vb_generate_options){.max_tokens = 1, .ignore_eos = 1}, &ran.result, &err));
    vb_ranks_facts(ranks, before);
    OK(vb_generate(s, &(vb_generate_options){.max_tokens = STEPS, .ignore_eos = 1}, &ran.result, &err));
    vb_ranks_facts(ranks, after);
    vb_session_close(s);
    vb_model_close(m);
    group_close(group);
    ran.gathers = (double)(after[0].gathers - before[0].gathers);
    ran.bytes = (double)(after[0].bytes - before[0].bytes);
    for (int r = 0; r < 3; r++)
        ran.weights[r] = (double)after[r].weight_bytes;
    return ran;
}

/* The exchanges of a run are the sum of those that the plan has for its passes. If all matrices are used as stored,
 * without scales, and there is at most one MTP module, the sizes of two ranks' weights also differ as planned. */
static void check_run(const char *path, const char *name, enum precision precision)
{
    struct ran ran = run_ranks(path, name, NULL);
    struct vb_model *shapes = shapes_of(path, NULL, &(struct model_options){.precision = precision});
    const struct op_ranks *split = &splits[1];
    struct plan_cost pass = plan_target(shapes, split, 0, 1, 20, 1);
    assert_int_equal(ran.result.tokens, STEPS);
    if (ran.gathers != STEPS * pass.gathers || ran.bytes != STEPS * pass.gathered)
        fail_msg("%s, %s: %.0f gathers of %.0f bytes for %d tokens, planned %.0f of %.0f for each", path, name,
                 ran.gathers, ran.bytes, STEPS, pass.gathers, pass.gathered);
    for (int r = 1; r < 3 && precision == PRECISION_F32 && !shapes->config.fp8 && shapes->num_mtp < 2; r++) {
        struct plan_memory a = plan_memory(shapes, split, 0, 0, shapes->num_mtp),
                           b = plan_memory(shapes, split, r, 0, shapes->num_mtp);
        if (ran.weights[0] - ran.weights[r] != a.own - b.own)
            fail_msg("%s: rank 0 has %.0f bytes of weights and rank %d has %.0f, planned %.0f and %.0f", path,
                     ran.weights[0], r, ran.weights[r], a.own, b.own);
    }
    model_close(shapes);
}

/* Each draft is a pass of the module, and each forward pass of the target verifies one. */
TEST(ranks_that_draft_exchange_what_is_planned)
{
    struct vb_model *m = shapes_of("golden/tiny/v3", NULL, &(struct model_options){0});
    struct ran ran = run_ranks("golden/tiny/v3", "f32", "mtp-eagle");
    struct plan_cost pass = plan_target(m, &splits[1], 0, 2, 20, 2), module = plan_module(m, &splits[1], 0, 1, 20);
    double drafted = (double)ran.result.drafted, forwards = (double)ran.result.forwards;
    assert_true(drafted > 1 && module.gathers == 6 &&
                ran.gathers == forwards * pass.gathers + drafted * module.gathers);
    model_close(m);
}

TEST(ranks_exchange_what_is_planned)
{
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"};
    for (size_t i = 0; i < COUNT(tiny); i++)
        for (int precision = PRECISION_F32; precision <= PRECISION_Q4; precision++)
            check_run(tiny[i], precisions[precision], (enum precision)precision);
}

/* Two rows choose 2 of 4 experts each. The expected number of different experts is the mean over all 36 pairs of
 * choices. */
TEST(the_expected_number_of_experts_is_the_mean_over_all_choices)
{
    struct config c = {.n_routed_experts = 4, .num_experts_per_tok = 2};
    int pairs = 0, different = 0;
    for (unsigned a = 0; a < 16; a++)
        for (unsigned b = 0; b < 16; b++)
            if (__builtin_popcount(a) == 2 && __builtin_popcount(b) == 2) {
                pairs++;
                different += __builtin_popcount(a | b);
            }
    assert_int_equal(pairs, 36);
    assert_true(fabs(plan_experts(&c, 2) - (double)different / pairs) < 1e-12);
    assert_true(plan_experts(&c, 1) == 2);
}

/* ---- DeepSeek-V3 ---- */

static void check_gathers(const char *model, const char *type, enum precision precision, double gathers, double bytes,
                          double vocabulary)
{
    struct vb_model *m = published(model, type, precision);
    for (size_t k = 0; k < COUNT(splits); k++) {
        struct plan_cost layers = plan_target(m, &splits[k], 0, 1, 1000, 0),
                         all = plan_target(m, &splits[k], 0, 1, 1000, 1);
        if (layers.gathers != gathers || layers.gathered != bytes || all.gathers != gathers + 1 ||
            all.gathered != bytes + 4 * vocabulary)
            fail_msg("%s: %.0f gathers of %.0f bytes, with the head %.0f of %.0f; wanted %.0f of %.0f", model,
                     layers.gathers, layers.gathered, all.gathers, all.gathered, gathers, bytes);
    }
    /* rank r of 2 equal ranks receives half */
    struct plan_cost half = plan_target(m, &splits[0], 1, 1, 1000, 1);
    assert_true(half.received == half.gathered / 2);
    model_close(m);
}

/* A layer of V3 gathers, per token: the values of 128 heads of 128; 7168 outputs of o_proj; h of 8 experts and the
 * shared one of 2048 each, or of a dense layer of 18432, which is as much; 7168 outputs of the MLP. In precision bf16,
 * the inputs of o_proj and of down_proj travel as 2 bytes, and with weights of Q8_0 and Q4_0 as groups of 32 numbers in
 * 36 bytes. */
TEST(gathers_of_deepseek_v3_are_those_of_its_shapes)
{
    enum { HEADS = 128 * 128, D = 7168, H = 9 * 2048, L = 61, V = 129280 };
    assert_int_equal(H, 18432);
    check_gathers("DeepSeek-V3", NULL, PRECISION_F32, 244, 4.0 * L * (HEADS + D + H + D), V);
    check_gathers("DeepSeek-V3", "bf16", PRECISION_F32, 244, 11993088, V);
    check_gathers("DeepSeek-V3", NULL, PRECISION_BF16, 244, L * (2.0 * (HEADS + H) + 4.0 * 2 * D), V);
    check_gathers("DeepSeek-V3", "bf16", PRECISION_BF16, 244, 7745536, V);
    check_gathers("DeepSeek-V3", NULL, PRECISION_Q4, 244, L * (36.0 / 32 * (HEADS + H) + 4.0 * 2 * D), V);
    check_gathers("DeepSeek-V3", "q8_0", PRECISION_F32, 244, 5887232, V);
}

/* The figures of the report: 671 B parameters, 37 B of them for a token. In FP8, the embedding, the head and the
 * routers have two bytes. */
TEST(a_token_of_deepseek_v3_reads_37_gb)
{
    struct vb_model *m = published("DeepSeek-V3", NULL, PRECISION_F32);
    struct plan_cost pass = plan_target(m, &alone, 0, 1, 1, 1);
    double parameters = (double)model_active_parameters(m) - 7168, head = 129280.0 * 7168, routers = 58.0 * 256 * 7168;
    /* a scale of four bytes for 128 x 128 weights, and vectors, are less than a thousandth */
    assert_true(pass.read > parameters + head + routers && pass.read < 1.001 * (parameters + head + routers));
    struct plan_memory memory = plan_memory(m, &alone, 0, 4096, 0);
    double module = 11.6e9, all = (double)model_parameters(m) - module;
    assert_true(fabs(memory.own + memory.whole - (all + 2 * head)) < 0.002 * all);
    /* 576 numbers of 4 bytes for each of 61 layers */
    assert_true(memory.cache == 4096.0 * 61 * 576 * 4);
    model_close(m);
}

TEST(heads_are_not_cut_and_a_rank_may_have_none)
{
    struct vb_model *m = published("DeepSeek-V3", NULL, PRECISION_F32);
    uint64_t before[301];
    for (size_t r = 0; r <= 300; r++)
        before[r] = r;
    struct op_ranks s = {.count = 300, .before = before};
    size_t with = 0;
    for (int r = 0; r < 300; r++) {
        double read = plan_target(m, &s, r, 1, 4096, 0).read, shorter = plan_target(m, &s, r, 1, 2048, 0).read;
        with += read > shorter; /* a rank without attention heads reads no cache */
        assert_true(read == shorter || read - shorter == 2048.0 * 61 * 576 * 4);
    }
    assert_int_equal(with, 128);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_made_from_config_json_are_those_of_the_checkpoint),
        cmocka_unit_test(matrices_have_the_types_that_they_have_in_an_open_model),
        cmocka_unit_test(a_lack_of_memory_is_told_and_nothing_is_left),
        cmocka_unit_test(all_ranks_together_have_each_row_once),
        cmocka_unit_test(ranks_exchange_what_is_planned),
        cmocka_unit_test(ranks_that_draft_exchange_what_is_planned),
        cmocka_unit_test(the_expected_number_of_experts_is_the_mean_over_all_choices),
        cmocka_unit_test(gathers_of_deepseek_v3_are_those_of_its_shapes),
        cmocka_unit_test(a_token_of_deepseek_v3_reads_37_gb),
        cmocka_unit_test(heads_are_not_cut_and_a_rank_may_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
