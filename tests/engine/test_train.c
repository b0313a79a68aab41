/* tests/engine/test_train.c -- the trainer's gradients: against the reference within a bound from its perturbed runs, and with the same bits however
 * they are computed. Runs in the repository's root. */
#include "engine/train/trainer.h"
#include "reference/backward.h"
#include "tests/support/engine_support.h"
#include "tests/support/references.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/tiny.h"

#include <math.h>

enum { SEQUENCES = 5,
       TOKENS = 80,
       RUNS = 8 };

static const size_t lengths[SEQUENCES] = {30, 9, 1, 3, 37};

/* A training step, and how it is computed. */
struct step {
    int32_t tokens[TOKENS];
    struct training_sequence list[SEQUENCES];
    struct trainer_options options;
    const char *conventions;
};

static void set_step(struct step *s, const struct model *m, enum trained_part part, int depths)
{
    *s = (struct step){.options = {.part = part, .depths = depths, .mtp_loss_scaling_factor = 0.3, .threads = 1}};
    s->options.adamw = (struct adamw){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    random_tokens(m, 17, s->tokens, TOKENS);
    for (size_t q = 0, at = 0; q < SEQUENCES; at += lengths[q++])
        s->list[q] = (struct training_sequence){.tokens = s->tokens + at, .count = lengths[q]};
}

static struct trainer *open_trainer(const struct model *m, const struct step *s)
{
    struct trainer *t;
    OK(trainer_open(&t, m, &s->options, &err));
    return t;
}

static struct training_losses gradients_of(struct trainer *t, const struct step *s)
{
    struct training_losses losses;
    OK(trainer_gradients(t, s->list, SEQUENCES, &losses, &err));
    return losses;
}

/* -- against the reference ----------------------------------------------------------------------------------------- */

struct truth {
    struct reference *r;
    struct reference_gradients exact, moved;
    struct reference_losses losses;
    struct reference_sequence list[SEQUENCES];
    struct reference_loss_options options;
    double *spread; /* for each gradient: the largest distance of a perturbed run */
    double longest; /* the terms of the longest sum */
};

static void truth_open(struct truth *x, const char *dir, const struct step *s)
{
    struct reference_losses losses;
    *x = (struct truth){.r = open_reference(dir),
                        .options = {.depths = s->options.depths, .mtp_loss_scaling_factor = s->options.mtp_loss_scaling_factor}};
    OK(conventions_parse(&x->options.conventions, s->conventions, &err));
    for (size_t q = 0; q < SEQUENCES; q++)
        x->list[q] = (struct reference_sequence){s->list[q].tokens, (int)s->list[q].count};
    OK(reference_gradients_open(&x->exact, x->r, &err));
    OK(reference_backward(x->r, &x->options, x->list, SEQUENCES, &x->losses, &x->exact, &err));
    x->spread = doubles(x->exact.count);
    for (x->options.perturb = 1; x->options.perturb <= RUNS; x->options.perturb++) {
        OK(reference_gradients_open(&x->moved, x->r, &err));
        OK(reference_backward(x->r, &x->options, x->list, SEQUENCES, &losses, &x->moved, &err));
        for (size_t i = 0; i < x->exact.count; i++) {
            const struct reference_gradient *g = &x->exact.of[i];
            size_t n = (size_t)g->rows * (size_t)g->cols;
            x->spread[i] = fmax(x->spread[i], distance(x->moved.of[i].data, g->data, n));
            x->longest = fmax(x->longest, fmax(g->rows, g->cols));
        }
        reference_gradients_close(&x->moved);
    }
}

static void truth_close(struct truth *x)
{
    free(x->spread);
    reference_gradients_close(&x->exact);
    reference_close(x->r);
}

/* As bound.c of `diff` does: 8 times what the perturbed runs move, which perturb the results of sums, and the rounding errors of the
 * longest sum, whose terms are the rows of a matrix or the tokens. Returns how much of the bound is needed. */
static double check_tensor(const char *name, const struct truth *x, size_t i, const float *g)
{
    const struct reference_gradient *want = &x->exact.of[i];
    size_t n = (size_t)want->rows * (size_t)want->cols;
    double *have = doubles(n), norm = 0, bound = 8 * x->spread[i] + sqrt(fmax(x->longest, TOKENS)) * 0x1p-24;
    for (size_t j = 0; j < n; j++) {
        have[j] = g[j];
        norm += want->data[j] * want->data[j];
    }
    double far = norm > 0 ? distance(have, want->data, n) : 0;
    for (size_t j = 0; j < n && norm == 0; j++)
        far = fmax(far, fabs(have[j]));
    if (!(far <= bound) || !(bound < 1e-3))
        fail_msg("%s: the gradient of %s is %.3g away from the reference, bound %.3g", name, want->name, far, bound);
    free(have);
    return far / bound;
}

static void check_losses(const char *name, const struct training_losses *have, const struct truth *x, int whole)
{
    const struct reference_losses *want = &x->losses;
    double bound = 1e-5; /* a loss is about log V; perturbed runs move it by less than 10^-6 */
    if ((whole && fabs(have->main - want->main) > bound) || have->rows != (whole ? want->rows : 0))
        fail_msg("%s: the main loss is %.9g of %ld rows, wanted %.9g of %ld", name, have->main, (long)have->rows, want->main, want->rows);
    for (int k = 0; k < x->options.depths; k++)
        if (fabs(have->by_depth[k] - want->by_depth[k]) > bound || have->depth_rows[k] != want->depth_rows[k])
            fail_msg("%s: the loss of depth %d is %.9g of %ld rows, wanted %.9g of %ld", name, k, have->by_depth[k], (long)have->depth_rows[k],
                     want->by_depth[k], want->depth_rows[k]);
}

static vb_model *open_with(const char *dir, const char *conventions)
{
    vb_model *m;
    struct conventions c = {0};
    OK(conventions_parse(&c, conventions, &err));
    OK(model_open_under((struct model **)&m, dir, &(struct model_options){.conventions = &c}, NULL, &err));
    return m;
}

static void check_checkpoint(const char *dir, const char *name, const char *conventions, enum trained_part part, int depths)
{
    struct step s;
    struct truth x;
    double most = 0;
    size_t compared = 0;
    vb_model *m = open_with(dir, conventions);
    set_step(&s, m, part, depths);
    s.conventions = conventions;
    truth_open(&x, dir, &s);
    struct trainer *t = open_trainer(m, &s);
    struct training_losses losses = gradients_of(t, &s);
    check_losses(name, &losses, &x, part == TRAIN_MODEL);
    for (size_t i = 0; i < trainer_count(t); i++) {
        const struct trained_tensor *have = trainer_tensor(t, i);
        const struct reference_gradient *want = reference_gradient(&x.exact, have->name);
        if (have->g)
            most = fmax(most, check_tensor(name, &x, (size_t)(want - x.exact.of), have->g));
        compared += have->g != NULL;
    }
    if (part == TRAIN_MODEL && compared != x.exact.count)
        fail_msg("%s: %zu tensors are trained, %zu have gradients in the reference", name, compared, x.exact.count);
    print_message("%s, %s, %d depths: %.2g of the bound\n", name, part == TRAIN_MODEL ? "model" : "modules", depths, most);
    trainer_close(t);
    vb_model_close(m);
    truth_close(&x);
}

TEST(gradients_of_whole_models_are_those_of_the_reference)
{
    static const char *const paths[] = {TINY_CHECKPOINTS(TINY_PATH)};
    static const int modules[] = {TINY_CHECKPOINTS(TINY_MODULES)};
    for (size_t i = 0; i < TINY_COUNT; i++)
        check_checkpoint(paths[i], paths[i], NULL, TRAIN_MODEL, modules[i]);
}

TEST(gradients_of_modules_are_those_of_the_reference)
{
    check_checkpoint("golden/tiny/v3-mtp3", "v3-mtp3", NULL, TRAIN_MODULES, 3);
    check_checkpoint("golden/tiny/v3", "v3", NULL, TRAIN_MODULES, 3);
    check_checkpoint("golden/tiny/glm", "glm", NULL, TRAIN_MODULES, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_whole_models_are_those_of_the_reference),
        cmocka_unit_test(gradients_of_modules_are_those_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
