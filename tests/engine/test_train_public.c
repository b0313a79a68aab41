/* tests/engine/test_train_public.c -- the public functions of training steps: the bits and numbers of the trainer,
 * defaults, and errors. Runs in the repository's root. */
#include "tests/support/engine_support.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/training.h"

#include <math.h>

static vb_train_sequence sequences[TRAINING_SEQUENCES];

static vb_trainer *open_public(const struct training_step *s, const vb_model *m, const vb_trainer_options *options)
{
    vb_trainer *t;
    for (size_t q = 0; q < TRAINING_SEQUENCES; q++)
        sequences[q] = (vb_train_sequence){.tokens = s->list[q].tokens, .count = s->list[q].count,
                                           .loss_mask = s->list[q].loss_mask};
    OK(vb_trainer_open(&t, m, options, &err));
    return t;
}

/* Two steps of both have the same losses and the same numbers in all tensors. */
static void check_steps(const char *dir, struct training_step *s, vb_model *m, const vb_trainer_options *options)
{
    vb_trainer *t = open_public(s, m, options);
    struct vb_trainer *inner = training_open(m, s);
    vb_train_tensor x;
    for (int step = 1; step <= 2; step++) {
        vb_train_losses losses;
        double norm, want;
        struct training_losses wanted = training_gradients(inner, s);
        OK(vb_trainer_gradients(t, sequences, TRAINING_SEQUENCES, &losses, &err));
        if (losses.total != wanted.total || losses.main != wanted.main || losses.rows != wanted.rows ||
            memcmp(losses.by_depth, wanted.by_depth, sizeof losses.by_depth) ||
            memcmp(losses.depth_rows, wanted.depth_rows, sizeof losses.depth_rows))
            fail_msg("%s, step %d: loss %.17g, of the trainer %.17g", dir, step, losses.total, wanted.total);
        assert_int_equal(losses.depths, s->options.loss ? s->options.loss->depths : s->options.depths);
        OK(vb_trainer_update(t, step, 1e-3, &norm, &err));
        OK(trainer_update(inner, step, 1e-3, &want, &err));
        assert_true(norm == want);
    }
    size_t count = 0;
    for (; vb_trainer_tensor(t, count, &x); count++) {
        const struct trained_tensor *y = trainer_tensor(inner, count);
        assert_string_equal(x.name, y->name);
        assert_int_equal(x.count, y->rows * y->cols);
        assert_int_equal(x.shape[0] * x.shape[1], x.count);
        assert_int_equal(x.decays, y->decays);
        if (memcmp(x.w, y->w, x.count * sizeof *x.w) || !x.g != !y->g ||
            (x.g && memcmp(x.m, y->m, x.count * sizeof *x.m)))
            fail_msg("%s: %s has other numbers than in the trainer", dir, x.name);
    }
    assert_int_equal(count, trainer_count(inner));
    vb_trainer_close(t);
    trainer_close(inner);
}

TEST(public_steps_have_the_bits_of_the_trainer)
{
    struct training_step s;
    struct loss loss;
    unsigned char mask[30] = {0, 1, 1, 0, 1};
    vb_model *m = training_model("golden/tiny/v3-mtp3", NULL);
    training_step(&s, m, TRAIN_MODEL, 2);
    s.options.max_norm = 0.5;
    s.options.bias_update_speed = 0.01;
    s.list[0].loss_mask = mask;
    check_steps("v3-mtp3", &s, m,
                &(vb_trainer_options){.part = "model", .depths = 2, .loss_factor = 0.3, .beta2 = 0.95,
                                      .weight_decay = 0.1, .clip_norm = 0.5, .bias_update_rate = 0.01, .threads = 2});
    OK(loss_named(&loss, "fastmtp", 3, -1, &err));
    loss.terms.soft = 0.25;
    loss.terms.data = 0.75;
    training_step(&s, m, TRAIN_MODULES, 3);
    s.options.loss = &loss;
    s.options.modules = 1;
    s.options.new_modules = 1;
    s.options.seed = 5;
    s.options.ends = ENDS_OWN;
    check_steps("v3-mtp3's modules", &s, m,
                &(vb_trainer_options){.loss = "fastmtp", .soft_targets = 0.25, .depths = 3, .modules = 1,
                                      .new_weights = 1, .seed = 5, .ends = "own", .beta2 = 0.95, .weight_decay = 0.1,
                                      .clip_norm = -1});
    training_step(&s, m, TRAIN_MODEL, 1);
    s.options.new_model = s.options.modules = 1;
    s.options.adamw.weight_decay = 0;
    check_steps("a new model", &s, m,
                &(vb_trainer_options){.part = "model", .depths = 1, .modules = 1, .new_weights = 1, .loss_factor = 0.3,
                                      .beta2 = 0.95, .weight_decay = -1, .clip_norm = -1, .bias_update_rate = -1});
    vb_model_close(m);
}

/* docs/TRAINING.md and `train --help` say the same defaults. */
TEST(options_that_are_zero_have_the_defaults_of_the_command)
{
    struct training_step s;
    struct loss loss;
    vb_model *m = training_model("golden/tiny/v3-mtp3", NULL), *v2 = training_model("golden/tiny/v2", NULL);
    training_step(&s, m, TRAIN_MODULES, 3);
    s.options.mtp_loss_scaling_factor = 0.1;
    s.options.adamw = (struct adamw){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    s.options.max_norm = 1;
    check_steps("v3-mtp3", &s, m, NULL);
    s.options.part = TRAIN_MODEL;
    s.options.bias_update_speed = 0.001;
    check_steps("v3-mtp3", &s, m, &(vb_trainer_options){.part = "model"});
    s.options.depths = 0;
    check_steps("v3-mtp3 without modules", &s, m, &(vb_trainer_options){.part = "model", .depths = -1});
    training_step(&s, v2, TRAIN_MODULES, 1);
    s.options.mtp_loss_scaling_factor = 0.1;
    s.options.adamw = (struct adamw){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    s.options.max_norm = s.options.modules = 1;
    check_steps("v2, which has no modules", &s, v2, NULL);
    OK(loss_named(&loss, "eagle3", 3, -1, &err));
    s.options.loss = &loss;
    check_steps("v2, one module for three depths", &s, v2, &(vb_trainer_options){.loss = "eagle3", .depths = 3});
    vb_model_close(m);
    vb_model_close(v2);
}

/* Options of the trainer that are those of the command's defaults, for a part that trains heads. */
static void step_of_heads(struct training_step *s, const vb_model *m, enum trained_part part, const struct loss *loss,
                          const struct trainer_eagle *eagle)
{
    training_step(s, m, part, loss->depths);
    s->options.loss = loss;
    s->options.eagle = eagle;
    s->options.seed = 7;
    s->options.max_norm = 1;
    s->options.adamw = (struct adamw){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
}

TEST(public_steps_train_eagle_heads)
{
    static const int32_t tokens[] = {1, 5, 6, 7, 30, 31, 40, 66};
    struct training_step s;
    struct loss eagle, eagle3;
    vb_model *m = training_model("golden/tiny/v3", NULL);
    OK(loss_named(&eagle, "eagle", 1, -1, &err));
    OK(loss_named(&eagle3, "eagle3", 3, -1, &err));
    step_of_heads(&s, m, TRAIN_EAGLE, &eagle, &(struct trainer_eagle){.dir = "golden/eagle/eagle1-v3"});
    check_steps("eagle1-v3", &s, m, &(vb_trainer_options){.part = "eagle", .head = "golden/eagle/eagle1-v3"});
    step_of_heads(&s, m, TRAIN_EAGLE, &eagle, &(struct trainer_eagle){0});
    check_steps("a new EAGLE head", &s, m, &(vb_trainer_options){.part = "eagle", .seed = 7});
    step_of_heads(&s, m, TRAIN_EAGLE3, &eagle3, &(struct trainer_eagle){.dir = "golden/eagle/eagle3-v3"});
    check_steps("eagle3-v3", &s, m, &(vb_trainer_options){.part = "eagle3", .head = "golden/eagle/eagle3-v3"});
    step_of_heads(&s, m, TRAIN_EAGLE3, &eagle3, &(struct trainer_eagle){.tokens = tokens, .vocab_size = COUNT(tokens)});
    check_steps("a new EAGLE-3 head", &s, m,
                &(vb_trainer_options){.part = "eagle3", .seed = 7, .draft_tokens = tokens,
                                      .draft_vocab_size = COUNT(tokens)});
    vb_model_close(m);
}

TEST(public_steps_train_parallel_heads)
{
    struct training_step s;
    struct loss loss;
    char dir[64];
    small_checkpoint(dir, &small_with_heads[0]);
    vb_model *m = training_model(dir, NULL);
    OK(loss_named(&loss, "sum", small_with_heads[0].heads, -1, &err));
    step_of_heads(&s, m, TRAIN_HEADS, &loss, NULL);
    training_heads_open(&s, m, dir);
    check_steps("stored parallel heads", &s, m, &(vb_trainer_options){.part = "parallel-heads", .head = dir});
    training_heads_close(&s);
    OK(loss_named(&loss, "sum", 3, -1, &err));
    step_of_heads(&s, m, TRAIN_HEADS, &loss, NULL);
    for (int copied = 0; copied < 2; copied++) {
        training_heads_open(&s, m, NULL);
        s.heads.copied = copied;
        check_steps("new parallel heads", &s, m,
                    &(vb_trainer_options){.part = "parallel-heads", .new_weights = !copied, .seed = 7});
    }
    vb_model_close(m);
    remove_dir(dir);
}

static void check_refused(const vb_model *m, const vb_trainer_options *o, const char *message)
{
    vb_trainer *t = (vb_trainer *)&t;
    REFUSED(vb_trainer_open(&t, m, o, &err), VB_BAD_ARGUMENT, message);
    assert_null(t);
}

TEST(wrong_options_are_refused_in_one_sentence)
{
    vb_model *m = training_model("golden/tiny/v3", NULL);
    check_refused(m, &(vb_trainer_options){.part = "head"},
                  "part is head, wanted modules, model, eagle, eagle3 or parallel-heads");
    check_refused(m, &(vb_trainer_options){.ends = "both"}, "ends is both, wanted stored, shared or own");
    check_refused(m, &(vb_trainer_options){.soft_targets = 1.5}, "soft_targets is 1.5, wanted a number from 0 to 1");
    check_refused(m, &(vb_trainer_options){.soft_targets = 0.5, .loss = "eagle"},
                  "soft_targets is 0.5, and the loss eagle has weights of its own");
    check_refused(m, &(vb_trainer_options){.loss = "medusa"}, "medusa");
    check_refused(m, &(vb_trainer_options){.depths = -1}, "depths");
    check_refused(m, &(vb_trainer_options){.beta1 = NAN}, "beta1 is nan");
    check_refused(m, &(vb_trainer_options){.head = "x"}, "head is x, and part modules trains no head");
    check_refused(m, &(vb_trainer_options){.part = "eagle", .head = "x", .new_weights = 1},
                  "head is x, and new_weights asks for a new one");
    check_refused(m, &(vb_trainer_options){.part = "eagle", .draft_vocab_size = 1},
                  "draft_tokens are for a new EAGLE-3 head, and part eagle trains none");
    check_refused(m, &(vb_trainer_options){.part = "eagle3", .draft_vocab_size = 1},
                  "draft_vocab_size is 1, and draft_tokens are not given");
    check_refused(m, &(vb_trainer_options){.part = "parallel-heads", .modules = 2},
                  "modules is for MTP modules, and part parallel-heads trains none");
    check_refused(m, &(vb_trainer_options){.part = "eagle", .ends = "own"},
                  "ends is for MTP modules, and part eagle trains none");
    check_refused(m, &(vb_trainer_options){.part = "eagle3", .loss = "eagle"}, "wanted a loss of tokens");
    vb_trainer_close(NULL);
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(public_steps_have_the_bits_of_the_trainer),
        cmocka_unit_test(options_that_are_zero_have_the_defaults_of_the_command),
        cmocka_unit_test(public_steps_train_eagle_heads),
        cmocka_unit_test(public_steps_train_parallel_heads),
        cmocka_unit_test(wrong_options_are_refused_in_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
