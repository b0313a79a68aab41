/* tests/engine/test_train_errors.c -- what training refuses, each in one sentence: models, options, heads and steps;
 * and failed allocations. Runs in the repository's root. */
#include "tests/support/engine_support.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/training.h"

#include <math.h>

static void refuse(const struct vb_model *m, const struct trainer_options *o, int rc, const char *part)
{
    struct vb_trainer *t = NULL;
    REFUSED(trainer_open(&t, m, o, &err), rc, part);
}

TEST(what_cannot_be_trained_is_refused_in_one_sentence)
{
    struct training_step s;
    struct trainer_options o;
    struct vb_model *v3 = training_model("golden/tiny/v3", NULL), *v2 = training_model("golden/tiny/v2", NULL), *m;
    int from_config;
    training_step(&s, v3, TRAIN_MODEL, 1);
    refuse(v2, &s.options, VB_BAD_ARGUMENT, "golden/tiny/v2 has no MTP modules, wanted a number of new ones");
    o = s.options, o.part = TRAIN_MODULES, o.depths = 0;
    refuse(v3, &o, VB_BAD_ARGUMENT, "0 MTP depths, wanted 1 to");
    o = s.options, o.modules = 2;
    refuse(v3, &o, VB_BAD_ARGUMENT, "2 MTP modules, of which some are new, and 1 depths");
    o = s.options, o.adamw.beta2 = 1;
    refuse(v3, &o, VB_BAD_ARGUMENT, "beta2 is 1, wanted a number from 0 to below 1");
    o = s.options, o.max_norm = NAN;
    refuse(v3, &o, VB_BAD_ARGUMENT, "max_norm is nan");
    o = s.options, o.isa = "sse9";
    refuse(v3, &o, VB_BAD_ARGUMENT, "unknown instruction set sse9");
    struct loss loss;
    OK(loss_named(&loss, "hass", 1, -1, &err));
    o = s.options;
    o.loss = &loss;
    o.modules = 2;
    refuse(v3, &o, VB_BAD_ARGUMENT,
           "2 MTP modules, of which some are new, and 1 depths, which train no others than the first 1");
    loss.chain = CHAIN_UNROLLED;
    refuse(v3, &o, VB_BAD_ARGUMENT,
           "2 MTP modules, of which some are new, and 1 depths, which train no others than the first 1");
    o.modules = 0;
    loss.terms.top_tokens = 0;
    refuse(v3, &o, VB_BAD_ARGUMENT, "a loss of the top 0 tokens, wanted 1 to ");
    loss.depth[0] = INFINITY;
    refuse(v3, &o, VB_BAD_ARGUMENT, "a loss has a weight that is not finite");
    m = training_model("golden/tiny/v32", NULL);
    refuse(m, &s.options, VB_UNSUPPORTED, "index_topk is 16, and gradients are not computed for sparse attention");
    vb_model_close(m);
    m = training_model("golden/gguf/quantized.gguf", NULL);
    o = s.options, o.depths = 0;
    refuse(m, &o, VB_UNSUPPORTED,
           "W_UK and W_UV of model.layers.0.self_attn are two tensors, and training wants one tensor kv_b_proj");
    vb_model_close(m);
    m = training_model("golden/tiny/v3", "chain-module=step");
    o = s.options, o.loss = &loss;
    loss.chain = CHAIN_ALIGNED;
    loss.depth[0] = loss.terms.top_tokens = 1;
    refuse(m, &o, VB_BAD_ARGUMENT, "chain-module=step is not computed with aligned depths, wanted first");
    vb_model_close(m);
    m = training_model("golden/tiny/v3", "first-row=phantom");
    refuse(m, &s.options, VB_BAD_ARGUMENT, "first-row=phantom is not computed in training, wanted none");
    vb_model_close(m);
    OK(model_open_shapes(&m, "golden/tiny/v3/config.json", "f32", &(struct model_options){0}, &from_config, NULL,
                         &err));
    refuse(m, &s.options, VB_BAD_ARGUMENT,
           "it has no weights, and training from them is asked for, wanted a new model");
    vb_model_close(m);
    vb_model_close(v3);
    vb_model_close(v2);
}

TEST(heads_that_cannot_be_trained_are_refused_in_one_sentence)
{
    struct training_step s;
    struct trainer_options o;
    struct loss loss;
    struct vb_model *m = training_model("golden/tiny/v3", NULL);
    training_step(&s, m, TRAIN_HEADS, 3);
    refuse(m, &s.options, VB_BAD_ARGUMENT, "parallel heads are to be trained, and none are given");
    training_heads_open(&s, m, "golden/heads/parallel-v3");
    refuse(m, &s.options, VB_UNSUPPORTED,
           "golden/heads/parallel-v3: num_attention_heads of the heads is 2, that of golden/tiny/v3 is 3; heads are "
           "trained if their layers have the sizes");
    o = s.options, o.depths = 2;
    refuse(m, &o, VB_BAD_ARGUMENT, "2 parallel heads, golden/heads/parallel-v3 has 3");
    o = s.options, o.part = TRAIN_MODULES;
    refuse(m, &o, VB_BAD_ARGUMENT, "parallel heads are given, and modules are trained");
    training_heads_close(&s);
    s.heads.stored = NULL;
    o = s.options, o.depths = 0;
    refuse(m, &o, VB_BAD_ARGUMENT, "0 parallel heads, wanted 1 to ");
    o = s.options, o.part = TRAIN_MODEL, o.new_model = s.heads.copied = 1;
    refuse(m, &o, VB_BAD_ARGUMENT, "the heads of a new model are copies, wanted new ones");
    OK(loss_named(&loss, "hass", 3, -1, &err));
    o = s.options, o.loss = &loss;
    refuse(m, &o, VB_BAD_ARGUMENT, "a loss wants module 0 at every depth, and each parallel head has one depth");
    loss.chain = CHAIN_MODULES;
    refuse(m, &o, VB_BAD_ARGUMENT, "a loss compares features, and parallel heads have none");
    vb_model_close(m);
}

TEST(wrong_steps_are_refused_in_one_sentence)
{
    struct training_step s;
    struct training_losses losses;
    struct vb_model *m = training_model("golden/tiny/v3", NULL);
    const struct training_sequence one = {.tokens = (int32_t[]){1}, .count = 1},
                                   outside = {.tokens = (int32_t[]){1, 160}, .count = 2};
    float hidden[64] = {0}, rows[3 * 64] = {NAN};
    training_step(&s, m, TRAIN_MODEL, 1);
    assert_int_equal(m->config.vocab_size, 160);
    struct vb_trainer *t = training_open(m, &s);
    REFUSED(trainer_update(t, 1, 0.1, NULL, &err), VB_BAD_ARGUMENT, "there are no gradients yet");
    OK(trainer_losses(t, s.list, 2, &losses, &err));
    REFUSED(trainer_update(t, 1, 0.1, NULL, &err), VB_BAD_ARGUMENT, "there are no gradients yet");
    REFUSED(trainer_gradients(t, &one, 1, &losses, &err), VB_BAD_ARGUMENT,
            "no sequence of the 1 has a token to predict, wanted at least 2 tokens");
    REFUSED(trainer_gradients(t, &outside, 1, &losses, &err), VB_BAD_ARGUMENT,
            "token 1 of sequence 0 is 160, the vocabulary has 160");
    training_mask(&s);
    REFUSED(trainer_gradients(t, &s.list[1], 1, &losses, &err), VB_BAD_ARGUMENT,
            "no sequence of the 1 has a token to predict");
    s.list[1].hidden = hidden;
    REFUSED(trainer_gradients(t, s.list, 2, &losses, &err), VB_BAD_ARGUMENT,
            "sequence 1 has hidden states, and the whole model is trained");
    s.list[1].hidden = NULL;
    training_gradients(t, &s);
    REFUSED(trainer_update(t, 0, 0.1, NULL, &err), VB_BAD_ARGUMENT, "step 0 with the learning rate 0.1");
    uint64_t before = training_bits(t);
    trainer_tensor(t, 3)->g[5] = INFINITY;
    REFUSED(trainer_update(t, 1, 0.1, NULL, &err), VB_NOT_FINITE, trainer_tensor(t, 3)->name);
    training_gradients(t, &s);
    assert_true(training_bits(t) == before); /* the refused step changed nothing */
    training_tensor(t, "model.layers.1.self_attn.o_proj.weight")->w[7] = NAN;
    REFUSED(trainer_gradients(t, s.list, 2, &losses, &err), VB_NOT_FINITE,
            "the first output that is not finite is that of layer 1, and model.layers.1.self_attn.o_proj.weight has a "
            "weight that is not");
    REFUSED(trainer_update(t, 1, 0.1, NULL, &err), VB_BAD_ARGUMENT, "or the newest ones failed");
    trainer_close(t);
    training_step(&s, m, TRAIN_MODULES, 1);
    s.options.adamw.eps = 1e-50; /* 0 in f32 */
    t = training_open(m, &s);
    training_gradients(t, &s);
    REFUSED(trainer_update(t, 1, 0.1, NULL, &err), VB_BAD_ARGUMENT,
            "eps is 1e-50, and weights without a gradient would become NaN");
    s.list[3].hidden = rows;
    REFUSED(trainer_gradients(t, s.list, TRAINING_SEQUENCES, &losses, &err), VB_NOT_FINITE,
            "the first numbers that are not finite are rows of the frozen model");
    trainer_close(t);
    vb_model_close(m);
}

TEST(every_failed_allocation_is_an_error_and_nothing_leaks)
{
    struct counted counted = {.fail = -1};
    const vb_allocator allocator = {counted_alloc, counted_free, &counted};
    struct training_step s;
    struct vb_model *m;
    char dir[64];
    small_checkpoint(dir, &small_checkpoints[0]);
    OK(model_open(&m, dir, &allocator, &err));
    training_step(&s, m, TRAIN_MODULES, 2);
    s.options.threads = 2;
    long opened = counted.requests;
    training_fails_without_memory(m, &s, &counted);
    assert_true(counted.requests > opened + 100);
    model_close(m);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_trained_is_refused_in_one_sentence),
        cmocka_unit_test(heads_that_cannot_be_trained_are_refused_in_one_sentence),
        cmocka_unit_test(wrong_steps_are_refused_in_one_sentence),
        cmocka_unit_test(every_failed_allocation_is_an_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
