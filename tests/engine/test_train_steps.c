/* tests/engine/test_train_steps.c -- training steps: the same bits however they are computed, what an update changes,
 * and new weights. Runs in the repository's root. */
#include "engine/base/hash64.h"
#include "engine/choose/random.h"
#include "reference/backward.h"
#include "tests/support/engine_support.h"
#include "tests/support/references.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/training.h"

#include <math.h>

/* -- the same bits ------------------------------------------------------------------------------------------------- */

static void step_once(struct vb_trainer *t, const struct training_step *s, int64_t step, double lr)
{
    training_gradients(t, s);
    OK(trainer_update(t, step, lr, NULL, &err));
}

/* Two steps, with the losses of the second. */
static uint64_t bits_of_steps(const struct vb_model *m, const struct training_step *s)
{
    struct vb_trainer *t = training_open(m, s);
    step_once(t, s, 1, 1e-3);
    struct training_losses losses = training_gradients(t, s);
    uint64_t hash = hash64(training_bits(t), &losses, sizeof losses);
    trainer_close(t);
    return hash;
}

static void check_ways(const char *dir, const struct vb_model *m, struct training_step *s)
{
    static const size_t cuts[] = {0, 1, 40, 4096};
    s->options.max_norm = 0.5;
    s->options.bias_update_speed = 1e-3;
    if (s->options.loss)
        training_mask(s);
    uint64_t want = bits_of_steps(m, s);
    for (size_t isa = 0; vb_isa(isa); isa++)
        for (int threads = 1; threads <= 3; threads++) {
            s->options.isa = vb_isa(isa);
            s->options.threads = threads;
            s->options.micro_tokens = cuts[threads];
            if (bits_of_steps(m, s) != want)
                fail_msg("%s: two steps have other bits with %s, %d threads and micro-batches of %zu tokens", dir,
                         vb_isa(isa), threads, cuts[threads]);
        }
}

static void check_bits(const char *dir, enum trained_part part, int depths, int modules, enum module_ends ends,
                       const struct loss *loss)
{
    struct training_step s;
    struct vb_model *m = training_model(dir, NULL);
    training_step(&s, m, part, depths);
    s.options.loss = loss;
    s.options.modules = modules;
    s.options.ends = ends;
    check_ways(dir, m, &s);
    vb_model_close(m);
}

/* Two new heads. */
static void check_bits_of_heads(const char *dir, enum trained_part part, const struct loss *loss, int after_last,
                                int dense)
{
    struct training_step s;
    struct vb_model *m = training_model(dir, NULL);
    training_step(&s, m, part, 2);
    training_heads_open(&s, m, NULL);
    s.options.loss = loss;
    s.heads.copied = part == TRAIN_MODEL || loss;
    s.heads.after_last = after_last;
    s.heads.dense = dense;
    check_ways(dir, m, &s);
    vb_model_close(m);
}

TEST(steps_have_the_same_bits_for_all_threads_micro_batches_and_instruction_sets)
{
    char dir[64];
    struct loss loss;
    check_bits("golden/tiny/v3-mtp3", TRAIN_MODEL, 3, 0, ENDS_SHARED, NULL);
    check_bits("golden/tiny/v3", TRAIN_MODEL, 2, 0, ENDS_STORED, NULL);   /* module 0 at two depths */
    check_bits("golden/tiny/v3", TRAIN_MODULES, 2, 2, ENDS_OWN, NULL);    /* module 1 is new */
    check_bits("golden/tiny/v2", TRAIN_MODULES, 1, 1, ENDS_SHARED, NULL);
    OK(loss_named(&loss, "hass", 3, -1, &err));
    loss.chain = CHAIN_MODULES;
    loss.main = loss.terms.data = 0.5;
    check_bits("golden/tiny/v3-mtp3", TRAIN_MODEL, 3, 0, ENDS_OWN, &loss);
    check_bits("golden/tiny/glm", TRAIN_MODULES, 3, 0, ENDS_STORED, &loss);
    loss.chain = CHAIN_ALIGNED;
    check_bits("golden/tiny/glm", TRAIN_MODULES, 3, 0, ENDS_STORED, &loss);
    check_bits("golden/tiny/v3", TRAIN_MODEL, 3, 0, ENDS_SHARED, &loss);
    small_checkpoint(dir, &small_checkpoints[1]); /* tied embeddings, which new modules use too */
    check_bits(dir, TRAIN_MODEL, 2, 2, ENDS_SHARED, NULL);
    remove_dir(dir);
    OK(loss_named(&loss, "sum", 2, -1, &err));
    loss.terms.soft = 0.5;
    check_bits_of_heads("golden/tiny/v3", TRAIN_HEADS, &loss, 0, 0);
    check_bits_of_heads("golden/tiny/glm", TRAIN_HEADS, NULL, 1, 1);
    check_bits_of_heads("golden/tiny/v2", TRAIN_MODEL, &loss, 0, 1);
    check_bits_of_heads("golden/tiny/v3", TRAIN_MODEL, NULL, 1, 0);
}

/* The heads of a model that is trained, too, read its rows from the layers' values, those of a frozen one from its
 * pass. All weights are F32. */
TEST(heads_have_the_same_gradients_with_a_frozen_model_as_with_a_trained_one)
{
    for (const struct small_checkpoint *c = small_with_heads; c->name; c++) {
        char dir[64];
        struct training_step s;
        struct loss loss;
        small_checkpoint(dir, c);
        struct vb_model *m = training_model(dir, NULL);
        training_step(&s, m, TRAIN_HEADS, c->heads);
        training_heads_open(&s, m, dir);
        OK(loss_named(&loss, "sum", c->heads, -1, &err));
        loss.terms.soft = 0.5;
        s.options.loss = &loss;
        struct vb_trainer *frozen = training_open(m, &s);
        s.options.part = TRAIN_MODEL;
        struct vb_trainer *whole = training_open(m, &s);
        training_gradients(frozen, &s);
        training_gradients(whole, &s);
        for (size_t i = 0; i < trainer_count(frozen); i++) {
            const struct trained_tensor *a = trainer_tensor(frozen, i), *b = training_tensor(whole, a->name);
            assert_true(!strncmp(a->name, "extra_heads.", 12));
            if (a->g && memcmp(a->g, b->g, training_numbers(a) * sizeof *a->g))
                fail_msg("%s: %s has another gradient if the model is frozen", c->name, a->name);
        }
        trainer_close(frozen);
        trainer_close(whole);
        training_heads_close(&s);
        vb_model_close(m);
        remove_dir(dir);
    }
}

static int keep_hidden(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    float *all = context;
    (void)logits;
    if (depth < 0)
        memcpy(all + index * 64, hidden, 64 * sizeof *hidden);
    return 0;
}

/* unread: rows at the end of a sequence that are not read */
static void check_hidden(const struct loss *loss, size_t unread)
{
    struct training_step s;
    struct vb_model *m = training_model("golden/tiny/v3", NULL);
    static float hidden[TRAINING_SEQUENCES][40 * 64];
    assert_int_equal(m->config.dims.d, 64);
    training_step(&s, m, TRAIN_MODULES, 1);
    s.options.loss = loss;
    uint64_t want = bits_of_steps(m, &s);
    for (size_t q = 0; q < TRAINING_SEQUENCES; q += 2) {
        vb_session *session = open_session(m, &(vb_session_options){.prefill = "expanded", .threads = 1},
                                           s.list[q].tokens, s.list[q].count);
        OK(vb_evaluate(session, 0, keep_hidden, hidden[q], &err));
        vb_session_close(session);
        for (size_t i = s.list[q].count < 2 ? 0 : (s.list[q].count - unread) * 64; i < s.list[q].count * 64; i++)
            hidden[q][i] = NAN;
        s.list[q].hidden = hidden[q];
    }
    assert_true(bits_of_steps(m, &s) == want);
    hidden[0][64]++;
    assert_true(bits_of_steps(m, &s) != want);
    vb_model_close(m);
}

TEST(hidden_states_that_are_given_have_the_same_result_as_those_that_are_computed)
{
    struct loss loss;
    check_hidden(NULL, 2);
    OK(loss_named(&loss, "eagle", 1, -1, &err));
    check_hidden(&loss, 1);
}

/* The gradient of a shared head is the sum of those of the copies, each of which has the error of adding up its
 * rows. */
static void check_sum(struct vb_trainer *shared, struct vb_trainer *own, const char *name, const char *const *copies)
{
    const struct trained_tensor *sum = training_tensor(shared, name), *first = training_tensor(own, name);
    for (size_t i = 0; i < training_numbers(sum); i++) {
        double want = first->g[i], size = fabs(want);
        for (const char *const *copy = copies; *copy; copy++) {
            double part = training_tensor(own, *copy)->g[i];
            want += part;
            size += fabs(part);
        }
        if (!(fabs(sum->g[i] - want) <= 1e-4 * size + 1e-9))
            fail_msg("number %zu of the gradient of %s is %g, the copies' sum is %g", i, name, sum->g[i], want);
    }
}

TEST(a_shared_embedding_and_head_have_the_gradients_of_all_copies)
{
    static const char *const embeddings[] = {"model.layers.3.embed_tokens.weight", "model.layers.4.embed_tokens.weight",
                                             NULL};
    static const char *const heads[] = {"model.layers.3.shared_head.head.weight",
                                        "model.layers.4.shared_head.head.weight", NULL};
    struct training_step s;
    struct vb_model *m = training_model("golden/tiny/v3-mtp3", NULL);
    assert_int_equal(m->config.num_hidden_layers, 3);
    training_step(&s, m, TRAIN_MODEL, 2);
    s.options.ends = ENDS_SHARED;
    struct vb_trainer *shared = training_open(m, &s);
    s.options.ends = ENDS_OWN;
    s.options.new_modules = 0;
    struct vb_trainer *own = training_open(m, &s);
    for (size_t i = 0; i < COUNT(heads) - 1; i++) { /* the file's own may be others */
        struct trained_tensor *x = training_tensor(own, embeddings[i]), *y = training_tensor(own, heads[i]);
        memcpy(x->w, training_tensor(own, "model.embed_tokens.weight")->w, training_numbers(x) * sizeof *x->w);
        memcpy(y->w, training_tensor(own, "lm_head.weight")->w, training_numbers(y) * sizeof *y->w);
    }
    struct training_losses a = training_gradients(shared, &s), b = training_gradients(own, &s);
    assert_memory_equal(&a, &b, sizeof a);
    check_sum(shared, own, "model.embed_tokens.weight", embeddings);
    check_sum(shared, own, "lm_head.weight", heads);
    trainer_close(shared);
    trainer_close(own);
    vb_model_close(m);
}

/* -- updates ------------------------------------------------------------------------------------------------------- */

/* After one step, m / sqrt(v) is the sign of the gradient, unless the gradient is tiny. */
TEST(the_first_step_moves_weights_against_their_gradients_by_the_learning_rate)
{
    enum { LR = 1000 };
    struct training_step s;
    double squares = 0, norm;
    struct vb_model *m = training_model("golden/tiny/v3", NULL);
    training_step(&s, m, TRAIN_MODEL, 1);
    s.options.adamw.eps = 1e-30;
    struct vb_trainer *t = training_open(m, &s), *before = training_open(m, &s);
    training_gradients(t, &s);
    OK(trainer_update(t, 1, 1.0 / LR, &norm, &err));
    for (size_t i = 0; i < trainer_count(t); i++) {
        const struct trained_tensor *x = trainer_tensor(t, i), *old = trainer_tensor(before, i);
        assert_int_equal(x->decays, x->rows > 1);
        for (size_t j = 0; x->g && j < training_numbers(x); j++) {
            double g = x->g[j], w = old->w[j], want = w - (x->decays ? 0.1 * w : 0) / LR - (g > 0 ? 1.0 : -1.0) / LR;
            squares += g * g;
            if (fabs(g) > 1e-12 && !(fabs(x->w[j] - want) <= 1e-6 * (fabs(w) + 1.0 / LR)))
                fail_msg("number %zu of %s was %g and is %g after a step, wanted %g; its gradient is %g", j, x->name, w,
                         x->w[j], want, g);
        }
    }
    assert_true(fabs(norm - sqrt(squares)) <= 1e-12 * norm);
    trainer_close(t);
    trainer_close(before);
    vb_model_close(m);
}

struct loads {
    double of[8][64]; /* for each layer and expert */
};

static void count_experts(void *context, const struct reference_value *v)
{
    struct loads *loads = context;
    for (int i = 0; !strcmp(v->name, "router_experts") && i < v->rows * v->cols; i++)
        loads->of[v->layer][(int)v->data[i]]++;
}

TEST(the_bias_of_each_expert_moves_towards_the_mean_load)
{
    struct loads loads = {0};
    struct training_step s;
    struct reference_losses losses;
    struct reference_sequence list[TRAINING_SEQUENCES];
    struct reference *r = open_reference("golden/tiny/v3");
    struct vb_model *m = training_model("golden/tiny/v3", NULL);
    struct reference_loss_options options = {.hook = count_experts, .hook_context = &loads};
    training_step(&s, m, TRAIN_MODEL, 0);
    for (size_t q = 0; q < TRAINING_SEQUENCES; q++)
        list[q] = (struct reference_sequence){s.list[q].tokens, (int)s.list[q].count, NULL};
    OK(reference_backward(r, &options, list, TRAINING_SEQUENCES, &losses, NULL, &err));
    s.options.bias_update_speed = 0.25;
    struct vb_trainer *t = training_open(m, &s), *before = training_open(m, &s);
    step_once(t, &s, 1, 0);
    int E = m->config.n_routed_experts, moved = 0;
    for (int l = 0; l < m->config.num_hidden_layers; l++) {
        double mean = (double)(losses.rows * m->config.num_experts_per_tok) / E;
        char name[80];
        if (!config_layer_is_moe(&m->config, l))
            continue;
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.e_score_correction_bias", l);
        const struct trained_tensor *x = training_tensor(t, name), *old = training_tensor(before, name);
        for (int e = 0; e < E; e++) {
            double load = loads.of[l][e], want = load < mean ? 0.25 : load > mean ? -0.25 : 0;
            if (fabs(x->w[e] - old->w[e] - want) > 1e-6)
                fail_msg("layer %d: the bias of expert %d moves by %g, wanted %g: its load is %g, the mean %g", l, e,
                         x->w[e] - old->w[e], want, load, mean);
            moved += want != 0;
        }
    }
    assert_true(moved > 10);
    trainer_close(t);
    trainer_close(before);
    reference_close(r);
    vb_model_close(m);
}

TEST(weights_and_moments_that_are_put_back_continue_a_run)
{
    struct training_step s;
    struct vb_model *m = training_model("golden/tiny/v3", NULL);
    training_step(&s, m, TRAIN_MODULES, 1);
    struct vb_trainer *t = training_open(m, &s), *resumed = training_open(m, &s);
    step_once(t, &s, 1, 1e-3);
    for (size_t i = 0; i < trainer_count(t); i++) {
        struct trained_tensor *from = trainer_tensor(t, i), *to = trainer_tensor(resumed, i);
        size_t bytes = training_numbers(from) * sizeof(float);
        assert_string_equal(from->name, to->name);
        memcpy(to->w, from->w, bytes);
        if (from->g) {
            memcpy(to->m, from->m, bytes);
            memcpy(to->v, from->v, bytes);
        }
    }
    step_once(t, &s, 2, 1e-3);
    step_once(resumed, &s, 2, 1e-3);
    assert_true(training_bits(t) == training_bits(resumed));
    trainer_close(t);
    trainer_close(resumed);
    vb_model_close(m);
}

/* -- new weights, and losses --------------------------------------------------------------------------------------- */

TEST(new_weights_depend_on_the_seed_and_the_name_alone)
{
    float a[2][35], b[2][35], c[2][35], large = 0, mean = 0;
    static float many[64 * 64];
    trainer_initial(a[0], "model.layers.0.mlp.up_proj.weight", 5, 7, 2, 1);
    trainer_initial(b[0], "model.layers.0.mlp.up_proj.weight", 5, 7, 2, 1);
    trainer_initial(c[0], "model.layers.1.mlp.up_proj.weight", 5, 7, 2, 1);
    trainer_initial(c[1], "model.layers.0.mlp.up_proj.weight", 5, 7, 2, 2);
    assert_memory_equal(a[0], b[0], sizeof a[0]);
    assert_true(memcmp(a[0], c[0], sizeof a[0]) && memcmp(a[0], c[1], sizeof a[0]));
    for (uint32_t i = 0; i < 35; i++) { /* the formula of trainer.h */
        uint64_t hash = hash64(0, "model.layers.0.mlp.up_proj.weight", 33);
        uint32_t word[4];
        philox4x32(word, (uint32_t[]){i / 4, 0, (uint32_t)hash, (uint32_t)(hash >> 32)}, (uint32_t[]){1, 0});
        assert_true(a[0][i] == (float)(1 / sqrt(7)) * (2 * ((float)(word[i % 4] >> 8) * 0x1p-24f) - 1));
    }
    trainer_initial(many, "model.layers.0.mlp.up_proj.weight", 64, 64, 2, 3);
    for (size_t i = 0; i < COUNT(many); i++) {
        large = fmaxf(large, fabsf(many[i]));
        mean += many[i] / (float)COUNT(many);
    }
    assert_true(large <= 0.125f && large > 0.124f && fabsf(mean) < 0.005f); /* 1 / sqrt(64); the standard error of the
                                                                               mean is 0.0011 */
    trainer_initial(many, "model.layers.0.mlp.down_proj.weight", 64, 64, 2, 3);
    assert_true(many[0] == 0 && many[4095] == 0);
    trainer_initial(many, "model.norm.weight", 1, 64, 1, 3);
    assert_true(many[0] == 1 && many[63] == 1);
}

/* Steps on the same texts. Returns the losses of the first and of the last step. */
static void train(const struct vb_model *m, const struct training_step *s, int steps, double lr, double *first,
                  double *last)
{
    struct vb_trainer *t = training_open(m, s);
    for (int i = 1; i <= steps; i++) {
        *last = training_gradients(t, s).total;
        *first = i == 1 ? *last : *first;
        OK(trainer_update(t, i, lr, NULL, &err));
    }
    trainer_close(t);
}

TEST(a_new_model_begins_at_the_entropy_of_its_vocabulary_and_learns)
{
    struct training_step s;
    struct vb_model *m;
    double first, last;
    int from_config;
    OK(model_open_shapes(&m, "golden/tiny/v3/config.json", "f32", &(struct model_options){0}, &from_config, NULL,
                         &err));
    training_step(&s, m, TRAIN_MODEL, 1);
    s.options.new_model = 1;
    s.options.ends = ENDS_SHARED;
    s.options.max_norm = 1;
    train(m, &s, 12, 0.01, &first, &last);
    double entropy = log((double)m->config.vocab_size) * 1.3; /* main and 0.3 times depth 0; the head is small */
    print_message("new model: %.3f, then %.3f; the entropy is %.3f\n", first, last, entropy);
    assert_true(fabs(first - entropy) < 0.05 * entropy && last < 0.8 * first);
    vb_model_close(m);
}

/* quantized: whether the output head is, whose rows are then decoded */
static void check_modules(const char *dir, int modules, enum module_ends ends, int quantized)
{
    struct training_step s;
    double first, last;
    struct vb_model *m = training_model(dir, NULL);
    training_step(&s, m, TRAIN_MODULES, modules);
    s.options.modules = modules;
    s.options.new_modules = 1;
    s.options.ends = ends;
    assert_int_equal(weight_is_quantized(m->lm_head.type), quantized);
    train(m, &s, 15, 0.01, &first, &last);
    print_message("%s, %d new modules: %.3f, then %.3f\n", dir, modules, first, last);
    assert_true(last < 0.8 * first);
    vb_model_close(m);
}

TEST(new_modules_of_models_of_any_type_learn)
{
    check_modules("golden/tiny/v2", 2, ENDS_SHARED, 0);
    check_modules("golden/gguf/quantized.gguf", 1, ENDS_SHARED, 1);
    check_modules("golden/gguf/quantized.gguf", 1, ENDS_OWN, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_have_the_same_bits_for_all_threads_micro_batches_and_instruction_sets),
        cmocka_unit_test(heads_have_the_same_gradients_with_a_frozen_model_as_with_a_trained_one),
        cmocka_unit_test(hidden_states_that_are_given_have_the_same_result_as_those_that_are_computed),
        cmocka_unit_test(a_shared_embedding_and_head_have_the_gradients_of_all_copies),
        cmocka_unit_test(the_first_step_moves_weights_against_their_gradients_by_the_learning_rate),
        cmocka_unit_test(the_bias_of_each_expert_moves_towards_the_mean_load),
        cmocka_unit_test(weights_and_moments_that_are_put_back_continue_a_run),
        cmocka_unit_test(new_weights_depend_on_the_seed_and_the_name_alone),
        cmocka_unit_test(a_new_model_begins_at_the_entropy_of_its_vocabulary_and_learns),
        cmocka_unit_test(new_modules_of_models_of_any_type_learn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
