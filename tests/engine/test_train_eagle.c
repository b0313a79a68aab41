/* tests/engine/test_train_eagle.c -- training EAGLE heads: rows with the bits of the drafter, gradients against the
 * reference, the same bits however a step is computed, and what is refused. Runs in the repository's root. */
#include "engine/base/hash64.h"
#include "engine/train/train_eagle.h"
#include "reference/eagle.h"
#include "tests/support/engine_support.h"
#include "tests/support/files.h"
#include "tests/support/references.h"
#include "tests/support/small_eagle.h"
#include "tests/support/training.h"

#include <math.h>

static const char *const heads[] = {"golden/eagle/eagle1-v3", "golden/eagle/eagle3-v3"};
static const enum trained_part parts[] = {TRAIN_EAGLE, TRAIN_EAGLE3};

/* A loss by name, with D depths. */
static struct loss loss_of(const char *name, int depths)
{
    struct loss loss;
    OK(loss_named(&loss, name, depths, -1, &err));
    return loss;
}

/* A draft vocabulary. */
static void some_tokens(int32_t tokens[40])
{
    for (int32_t i = 0; i < 40; i++)
        tokens[i] = 4 * i + i % 3;
}

/* -- the drafter's bits -------------------------------------------------------------------------------------------- */

enum { T = 13, D = 3, WIDTH = 64 };

struct drafting {
    struct eagle e;
    struct kvcache cache;
    struct pass w;
};

static void drafting_open(struct drafting *x, const char *dir, int version, const struct vb_model *m)
{
    struct eagle_head *head;
    int known;
    struct drafter_options o = {.kernels = kernels_select("best", &known), .threads = 1, .most_observed = T};
    *x = (struct drafting){.w = {.model = m}};
    OK(eagle_head_open(&head, dir, version, m, &err));
    OK(eagle_open(&x->e, head, &o, &err));
    OK(kvcache_open(&x->cache, 1, T + D, x->e.net.cache, NULL, &err));
}

static void drafting_close(struct drafting *x)
{
    kvcache_close(&x->cache, NULL);
    eagle_close(&x->e);
}

static void run_row(struct drafting *x, size_t i, int32_t token, const float *h, float *g, float *y)
{
    struct row row = {.cache = &x->cache, .token = token, .index = (int32_t)i, .position = (int32_t)i,
                      .slot = kvcache_append(&x->cache)};
    eagle_pass(&x->e, &x->w, &row, h, g, y, 1);
}

/* y: what the next row takes */
static void check_row(const struct train_eagle *e, int k, size_t i, const float *g, const float *y)
{
    const struct eagle_depth *have = &e->depth[k];
    if (memcmp((e->norms.norm_output ? have->g : have->y) + i * WIDTH, y, WIDTH * sizeof *y) ||
        memcmp(have->g + i * WIDTH, g, WIDTH * sizeof *g))
        fail_msg("EAGLE-%d: row %zu of depth %d has other bits than the drafter's", e->version, i, k);
}

/* The rows of a text, and for each of them the drafts after it, as if the text went on as they say. */
static void check_drafter(const char *dir, int version)
{
    static float h[T * WIDTH], g[T * WIDTH], y[T * WIDTH];
    float next[WIDTH], of_next[WIDTH];
    struct loss loss = loss_of(version == 3 ? "eagle3" : "hass", D);
    struct training_step s;
    struct training_losses losses;
    struct drafting x;
    vb_model *m = open_tiny("v3");
    training_step(&s, m, parts[version == 3], D);
    s.options.loss = &loss;
    s.options.eagle = &(struct trainer_eagle){.dir = dir};
    struct vb_trainer *t = training_open(m, &s);
    OK(trainer_losses(t, &(struct training_sequence){.tokens = s.tokens, .count = T}, 1, &losses, &err));
    drafting_open(&x, dir, version, m);
    if (version == 3)
        eagle_features(&x.e, &x.w, h, t->hidden, T - 2);
    else
        memcpy(h, t->hidden, (T - 2) * WIDTH * sizeof *h);
    for (size_t i = 0; i < T - 2; i++)
        run_row(&x, i, s.tokens[i + 1], h + i * WIDTH, g + i * WIDTH, y + i * WIDTH);
    for (size_t i = T - 2; i-- > 0;) {
        check_row(t->eagle, 0, i, g + i * WIDTH, y + i * WIDTH);
        kvcache_truncate(&x.cache, i + 1);
        memcpy(next, y + i * WIDTH, sizeof next);
        for (int k = 1; k < D && i + (size_t)k + 2 < T; k++) {
            run_row(&x, i + (size_t)k, s.tokens[i + (size_t)k + 1], next, of_next, next);
            check_row(t->eagle, k, i, of_next, next);
        }
    }
    drafting_close(&x);
    trainer_close(t);
    vb_model_close(m);
}

TEST(rows_have_the_bits_of_the_drafter)
{
    check_drafter(heads[0], 1);
    check_drafter(heads[1], 3);
    for (size_t v = 0; v < eagle_variant_count; v++) {
        char dir[64];
        eagle_variant(dir, &eagle_variants[v]);
        check_drafter(dir, 3);
        remove_dir(dir);
    }
}

/* -- gradients ----------------------------------------------------------------------------------------------------- */

enum { RUNS = 8 };

/* The gradients of the reference, and how far perturbed runs move them (tests/engine/test_train.c has the bound). */
struct truth {
    struct reference *r;
    struct reference_eagle *e;
    struct reference_gradients exact, moved;
    struct reference_losses losses;
    struct reference_sequence list[TRAINING_SEQUENCES];
    double *spread, longest;
};

static void truth_open(struct truth *x, int version, const struct training_step *s)
{
    struct reference_loss_options options = {.loss = s->options.loss};
    struct reference_losses losses;
    *x = (struct truth){.r = open_tiny_reference("v3")};
    OK(reference_eagle_open(&x->e, heads[version == 3], version, x->r, &err));
    for (size_t q = 0; q < TRAINING_SEQUENCES; q++)
        x->list[q] = (struct reference_sequence){s->list[q].tokens, (int)s->list[q].count, s->list[q].loss_mask};
    OK(reference_eagle_gradients_open(&x->exact, x->e, &err));
    OK(reference_eagle_backward(x->e, &options, x->list, TRAINING_SEQUENCES, &x->losses, &x->exact, &err));
    x->spread = doubles(x->exact.count);
    for (options.perturb = 1; options.perturb <= RUNS; options.perturb++) {
        OK(reference_eagle_gradients_open(&x->moved, x->e, &err));
        OK(reference_eagle_backward(x->e, &options, x->list, TRAINING_SEQUENCES, &losses, &x->moved, &err));
        for (size_t i = 0; i < x->exact.count; i++) {
            const struct reference_gradient *g = &x->exact.of[i];
            x->spread[i] = fmax(x->spread[i],
                                distance(x->moved.of[i].data, g->data, (size_t)g->rows * (size_t)g->cols));
            x->longest = fmax(x->longest, fmax(g->rows, g->cols));
        }
        reference_gradients_close(&x->moved);
    }
}

static void truth_close(struct truth *x)
{
    free(x->spread);
    reference_gradients_close(&x->exact);
    reference_eagle_close(x->e);
    reference_close(x->r);
}

static double check_tensor(const char *name, const struct truth *x, const struct trained_tensor *t)
{
    const struct reference_gradient *want = reference_gradient(&x->exact, t->name);
    size_t n = training_numbers(t);
    assert_non_null(want);
    double *have = doubles(n),
           bound = 8 * x->spread[want - x->exact.of] + sqrt(fmax(x->longest, TRAINING_TOKENS)) * 0x1p-24, far;
    for (size_t j = 0; j < n; j++)
        have[j] = t->g[j];
    far = distance(have, want->data, n);
    if (!(far <= bound) || !(bound < 1e-3))
        fail_msg("%s: the gradient of %s is %.3g away from the reference, bound %.3g", name, t->name, far, bound);
    free(have);
    return far / bound;
}

static void check_losses(const char *name, const struct training_losses *have, const struct truth *x,
                         const struct loss *loss)
{
    const struct reference_losses *want = &x->losses;
    double bound = 1e-5 * fmax(1, fabs(want->total)); /* perturbed runs move it by less than 10^-6 of it */
    if (!(fabs(have->total - want->total) <= bound))
        fail_msg("%s: the loss is %.9g, wanted %.9g", name, have->total, want->total);
    for (int k = 0; k < loss->depths; k++)
        if (!(fabs(have->by_depth[k] - want->by_depth[k]) <= bound) ||
            (loss->terms.soft != 0 && !(fabs(have->terms[k].soft - want->terms[k].soft) <= bound)) ||
            have->depth_rows[k] != want->depth_rows[k])
            fail_msg("%s: the loss of depth %d is %.9g of %ld rows, wanted %.9g of %ld", name, k, have->by_depth[k],
                     (long)have->depth_rows[k], want->by_depth[k], want->depth_rows[k]);
}

/* The embedding stays as it is; every other tensor of the head is trained. */
static void check_gradients(int version, const char *name, int depths, int masked)
{
    struct loss loss = loss_of(name, depths);
    struct training_step s;
    struct truth x;
    double most = 0;
    size_t i = 0;
    vb_model *m = open_tiny("v3");
    training_step(&s, m, parts[version == 3], depths);
    if (masked)
        training_mask(&s);
    s.options.loss = &loss;
    s.options.eagle = &(struct trainer_eagle){.dir = heads[version == 3]};
    truth_open(&x, version, &s);
    struct vb_trainer *t = training_open(m, &s);
    struct training_losses losses = training_gradients(t, &s);
    check_losses(name, &losses, &x, &loss);
    for (; i < trainer_count(t); i++)
        most = fmax(most, check_tensor(name, &x, trainer_tensor(t, i)));
    assert_int_equal(i + 1, x.exact.count);
    print_message("EAGLE-%d, %s, %d depths: %.2g of the bound\n", version, name, depths, most);
    trainer_close(t);
    vb_model_close(m);
    truth_close(&x);
}

TEST(gradients_are_those_of_the_reference)
{
    check_gradients(1, "eagle", 1, 0);
    check_gradients(1, "hass", 3, 1);
    check_gradients(3, "eagle3", 3, 1);
    check_gradients(3, "sum", 1, 0);
}

/* -- the same bits ------------------------------------------------------------------------------------------------- */

static uint64_t bits_of_steps(const struct vb_model *m, const struct training_step *s)
{
    uint64_t hash = 0;
    struct vb_trainer *t = training_open(m, s);
    for (int64_t step = 1; step <= 2; step++) {
        struct training_losses losses = training_gradients(t, s);
        hash = hash64(hash, &losses, sizeof losses);
        for (size_t i = 0; i < trainer_count(t); i++)
            hash = hash64(hash, trainer_tensor(t, i)->g, training_numbers(trainer_tensor(t, i)) * sizeof(float));
        OK(trainer_update(t, step, 1e-3, NULL, &err));
    }
    for (size_t i = 0; i < trainer_count(t); i++)
        hash = hash64(hash, trainer_tensor(t, i)->w, training_numbers(trainer_tensor(t, i)) * sizeof(float));
    trainer_close(t);
    return hash;
}

static void check_bits(const char *name, enum trained_part part, int depths, const struct trainer_eagle *head)
{
    static const size_t cuts[] = {0, 1, 40, 4096};
    struct loss loss = loss_of(name, depths);
    struct training_step s;
    vb_model *m = open_tiny("v3");
    training_step(&s, m, part, depths);
    training_mask(&s);
    s.options.loss = &loss;
    s.options.eagle = head;
    s.options.max_norm = 0.5;
    uint64_t want = bits_of_steps(m, &s);
    for (size_t isa = 0; vb_isa(isa); isa++)
        for (int threads = 1; threads <= 3; threads++) {
            s.options.isa = vb_isa(isa);
            s.options.threads = threads;
            s.options.micro_tokens = cuts[threads];
            if (bits_of_steps(m, &s) != want)
                fail_msg("%s: two steps have other bits with %s, %d threads and micro-batches of %zu tokens", name,
                         vb_isa(isa), threads, cuts[threads]);
        }
    vb_model_close(m);
}

TEST(steps_have_the_same_bits_however_they_are_computed)
{
    int32_t tokens[40];
    some_tokens(tokens);
    check_bits("eagle", TRAIN_EAGLE, 1, &(struct trainer_eagle){.dir = heads[0]});
    check_bits("hass", TRAIN_EAGLE, 2, &(struct trainer_eagle){.heads = 4, .groups = 2, .dim = 16, .intermediate = 40});
    check_bits("eagle3", TRAIN_EAGLE3, 3,
               &(struct trainer_eagle){.heads = 2, .groups = 1, .dim = 32, .intermediate = 40, .tokens = tokens,
                                       .vocab_size = 40});
}

/* -- what is refused ----------------------------------------------------------------------------------------------- */

static void refused(const struct vb_model *m, enum trained_part part, const char *name, int depths,
                    const struct trainer_eagle *head, const char *message)
{
    struct loss loss = loss_of(name, depths);
    struct training_step s;
    struct vb_trainer *t;
    vb_error err;
    training_step(&s, m, part, depths);
    s.options.loss = &loss;
    s.options.eagle = head;
    assert_int_not_equal(trainer_open(&t, m, &s.options, &err), VB_OK);
    if (!strstr(err.message, message))
        fail_msg("\"%s\" does not say \"%s\"", err.message, message);
}

TEST(heads_that_cannot_be_trained_are_refused_in_one_sentence)
{
    struct trainer_eagle good = {.heads = 4, .groups = 2, .dim = 16, .intermediate = 40}, bad = good, few = good;
    vb_model *m = open_tiny("v3");
    refused(m, TRAIN_EAGLE, "eagle", 1, NULL, "no head is given");
    refused(m, TRAIN_EAGLE, "eagle", 2, &good, "not aligned");
    refused(m, TRAIN_EAGLE, "eagle", 0, &good, "0 depths");
    refused(m, TRAIN_EAGLE3, "hass", 2, &good, "wanted a loss of tokens");
    refused(m, TRAIN_EAGLE, "eagle", 1, &(struct trainer_eagle){.dir = heads[1]}, "is an EAGLE-3 head");
    refused(m, TRAIN_EAGLE, "eagle", 1, &(struct trainer_eagle){.dir = "golden/eagle/none"}, "golden/eagle/none");
    bad.groups = 3;
    refused(m, TRAIN_EAGLE, "eagle", 1, &bad, "wanted heads that the groups divide");
    refused(m, TRAIN_EAGLE3, "eagle3", 1, &(struct trainer_eagle){.norms = {.norm_before_fc = 1, .fc_norm = 1}},
            "wanted at most one of them");
    few.tokens = (int32_t[]){5, 9, 7};
    few.vocab_size = 3;
    refused(m, TRAIN_EAGLE3, "eagle3", 2, &few, "token 2 of the draft vocabulary is 7");
    vb_model_close(m);
    m = training_model("golden/tiny/v3", "yarn=max-len");
    refused(m, TRAIN_EAGLE, "eagle", 1, &good, "yarn=max-len is not computed in training, wanted config");
    vb_model_close(m);
}

TEST(numbers_that_are_not_finite_are_named)
{
    struct loss loss = loss_of("eagle3", 2);
    struct training_step s;
    struct training_losses losses;
    vb_error err;
    vb_model *m = open_tiny("v3");
    training_step(&s, m, TRAIN_EAGLE3, 2);
    s.options.loss = &loss;
    s.options.eagle = &(struct trainer_eagle){.dir = heads[1]};
    struct vb_trainer *t = training_open(m, &s);
    training_tensor(t, "midlayer.mlp.up_proj.weight")->w[3] = NAN;
    assert_int_equal(trainer_gradients(t, s.list, TRAINING_SEQUENCES, &losses, &err), VB_NOT_FINITE);
    assert_non_null(strstr(err.message,
                           "depth 0 of the EAGLE head, and midlayer.mlp.up_proj.weight has a weight that is not"));
    trainer_close(t);
    vb_model_close(m);
}

/* If the best token is not in the head's vocabulary, a row has no loss; but it has one if nobody knows the best
 * token. */
TEST(rows_of_a_target_that_are_nan_are_not_left_out)
{
    static float hidden[6 * 3 * WIDTH], final[6 * WIDTH];
    struct loss loss = loss_of("eagle3", 1);
    struct training_step s;
    struct training_losses losses;
    vb_model *m = open_tiny("v3");
    training_step(&s, m, TRAIN_EAGLE3, 1);
    s.options.loss = &loss;
    s.options.eagle = &(struct trainer_eagle){.heads = 2, .dim = 32, .intermediate = 40, .tokens = (int32_t[]){5, 9},
                                              .vocab_size = 2};
    struct vb_trainer *t = training_open(m, &s);
    struct training_sequence text = {.tokens = s.tokens, .count = 6, .hidden = hidden, .final = final};
    OK(trainer_losses(t, &text, 1, &losses, &err));
    for (size_t i = 0; i < COUNT(final); i++)
        final[i] = NAN;
    REFUSED(trainer_losses(t, &text, 1, &losses, &err), VB_NOT_FINITE, "a loss is not finite");
    trainer_close(t);
    vb_model_close(m);
}

TEST(every_failed_allocation_is_an_error_and_nothing_leaks)
{
    struct counted counted = {.fail = -1};
    const vb_allocator allocator = {counted_alloc, counted_free, &counted};
    struct loss loss = loss_of("eagle3", 2);
    struct training_step s;
    struct vb_model *m;
    OK(model_open(&m, "golden/tiny/v3", &allocator, &err));
    training_step(&s, m, TRAIN_EAGLE3, 2);
    s.options.loss = &loss;
    s.options.threads = 2;
    s.options.eagle = &(struct trainer_eagle){.heads = 2, .dim = 32, .intermediate = 40, .tokens = (int32_t[]){5, 9},
                                              .vocab_size = 2};
    training_fails_without_memory(m, &s, &counted);
    s.options.eagle = &(struct trainer_eagle){.dir = heads[1]};
    training_fails_without_memory(m, &s, &counted);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_the_drafter),
        cmocka_unit_test(gradients_are_those_of_the_reference),
        cmocka_unit_test(steps_have_the_same_bits_however_they_are_computed),
        cmocka_unit_test(heads_that_cannot_be_trained_are_refused_in_one_sentence),
        cmocka_unit_test(numbers_that_are_not_finite_are_named),
        cmocka_unit_test(rows_of_a_target_that_are_nan_are_not_left_out),
        cmocka_unit_test(every_failed_allocation_is_an_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
