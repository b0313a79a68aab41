/* tests/engine/test_train_eagle_shapes.c -- the trainer's EAGLE heads against the reference, within a bound from its
 * perturbed runs: heads of many shapes, losses, and texts. Runs in the repository's root. */
#include "reference/eagle.h"
#include "tests/support/engine_support.h"
#include "tests/support/files.h"
#include "tests/support/references.h"
#include "tests/support/small_eagle.h"
#include "tests/support/training.h"

#include <math.h>

enum { RUNS = 4 };

struct truth {
    struct reference *r;
    struct reference_eagle *e;
    struct reference_gradients exact, moved;
    struct reference_losses losses;
    struct reference_sequence list[TRAINING_SEQUENCES];
    int count;
    struct reference_loss_options options;
    double *spread; /* for each gradient: the largest distance of a perturbed run */
};

static void truth_open(struct truth *x, const char *dir, int version, const char *target, const struct training_step *s,
                       int count)
{
    struct reference_losses losses;
    *x = (struct truth){.r = open_tiny_reference(target), .count = count, .options.loss = s->options.loss};
    for (int q = 0; q < count; q++)
        x->list[q] = (struct reference_sequence){s->list[q].tokens, (int)s->list[q].count, s->list[q].loss_mask};
    OK(conventions_parse(&x->options.conventions, s->conventions, &err));
    OK(reference_eagle_open(&x->e, dir, version, x->r, &err));
    OK(reference_eagle_gradients_open(&x->exact, x->e, &err));
    OK(reference_eagle_backward(x->e, &x->options, x->list, count, &x->losses, &x->exact, &err));
    x->spread = doubles(x->exact.count);
    for (x->options.perturb = 1; x->options.perturb <= RUNS; x->options.perturb++) {
        OK(reference_eagle_gradients_open(&x->moved, x->e, &err));
        OK(reference_eagle_backward(x->e, &x->options, x->list, count, &losses, &x->moved, &err));
        for (size_t i = 0; i < x->exact.count; i++) {
            const struct reference_gradient *g = &x->exact.of[i];
            x->spread[i] = fmax(x->spread[i],
                                distance(x->moved.of[i].data, g->data, (size_t)g->rows * (size_t)g->cols));
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

/* The bound of test_train.c: 8 times what the perturbed runs move, and the rounding errors of the longest sum, whose
 * terms are at most 192 numbers of the target's rows. Returns how much of it is needed. */
static double check_tensor(const char *name, const struct truth *x, const struct trained_tensor *have)
{
    const struct reference_gradient *want = reference_gradient(&x->exact, have->name);
    if (!want)
        fail_msg("%s: %s is trained, and has no gradient in the reference", name, have->name);
    size_t n = (size_t)want->rows * (size_t)want->cols;
    double *wide = doubles(n), norm = 0, far = 0, bound = 8 * x->spread[want - x->exact.of] + sqrt(192) * 0x1p-24;
    assert_int_equal(n, training_numbers(have));
    for (size_t j = 0; j < n; j++) {
        wide[j] = (double)have->g[j];
        norm += want->data[j] * want->data[j];
        far = fmax(far, fabs(wide[j]));
    }
    if (norm > 0)
        far = distance(wide, want->data, n);
    else
        bound = 0;
    free(wide);
    if (!(far <= bound) || !(bound < 1e-3))
        fail_msg("%s: the gradient of %s is %.3g away from the reference, bound %.3g", name, have->name, far, bound);
    return bound > 0 ? far / bound : 0;
}

static void check_losses(const char *name, const struct training_losses *have, const struct reference_losses *want,
                         const struct loss *loss)
{
    double bound = 1e-5; /* a loss is about log V; perturbed runs move it by less than 10^-6 */
    for (int k = 0; k < loss->depths; k++) {
        const struct training_terms *a = &have->terms[k];
        const struct reference_terms *b = &want->terms[k];
        if (have->depth_rows[k] != want->depth_rows[k] || fabs(have->by_depth[k] - want->by_depth[k]) > bound)
            fail_msg("%s: the loss of depth %d is %.9g of %ld rows, wanted %.9g of %ld", name, k, have->by_depth[k],
                     (long)have->depth_rows[k], want->by_depth[k], want->depth_rows[k]);
        if (loss->terms.soft != 0 &&
            (fabs(a->soft - b->soft) > bound || fabs(a->entropy - b->entropy) > bound || fabs(a->top - b->top) > bound))
            fail_msg("%s, depth %d: soft %.9g, entropy %.9g, top %.9g, wanted %.9g, %.9g, %.9g", name, k, a->soft,
                     a->entropy, a->top, b->soft, b->entropy, b->top);
        if ((loss->terms.data != 0 && fabs(a->data - b->data) > bound) || fabs(a->features - b->features) > bound)
            fail_msg("%s, depth %d: data %.9g, features %.9g, wanted %.9g, %.9g", name, k, a->data, a->features,
                     b->data, b->features);
    }
    if (fabs(have->total - want->total) > bound)
        fail_msg("%s: the total loss is %.9g, wanted %.9g", name, have->total, want->total);
}

/* count: the step's sequences are the first of the list; trained: how many tensors must be compared */
static void check_step(const char *name, const char *dir, int version, const char *target, const struct loss *loss,
                       struct training_step *s, const vb_model *m, int count, size_t trained)
{
    struct truth x;
    struct training_losses losses;
    double most = 0;
    s->options.loss = loss;
    s->options.eagle = &(struct trainer_eagle){.dir = dir};
    truth_open(&x, dir, version, target, s, count);
    struct vb_trainer *t = training_open(m, s);
    OK(trainer_gradients(t, s->list, (size_t)count, &losses, &err));
    check_losses(name, &losses, &x.losses, loss);
    for (size_t i = 0; i < trainer_count(t); i++)
        most = fmax(most, check_tensor(name, &x, trainer_tensor(t, i)));
    assert_int_equal(trainer_count(t), trained);
    print_message("%s, %d depths: %.2g of the bound\n", name, loss->depths, most);
    trainer_close(t);
    truth_close(&x);
}

/* A published loss, perhaps with other terms, which all flow from depth to depth */
static struct loss loss_of(const char *name, int depths, const struct loss_terms *terms)
{
    struct loss loss;
    OK(loss_named(&loss, name, depths, -1, &err));
    if (terms)
        loss.terms = *terms;
    return loss;
}

static const struct shape {
    const char *name, *target;
    unsigned losses; /* bit i: loss i of check_shape */
    struct small_eagle head;
    const char *conventions; /* of the target, which is only run forward; those of drafting have no effect */
} shapes[] = {
    {"EAGLE-1, 4 heads in 2 groups, bias", "v3", 15,
     {.version = 1, .d = 64, .heads = 4, .groups = 2, .dim = 10, .intermediate = 40, .bias = 1}, NULL},
    {"EAGLE-1, 3 heads in one group, an embedding of its own", "v3-mtp3", 9,
     {.version = 1, .d = 64, .heads = 3, .groups = 1, .dim = 34, .intermediate = 33, .embeds = 1}, NULL},
    {"EAGLE-1, a target with tied embeddings, YaRN in the head", "moonlight", 6,
     {.version = 1, .d = 80, .heads = 2, .groups = 2, .dim = 16, .intermediate = 48,
      .keys = "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":16,\"beta_fast\":"
              "4,\"beta_slow\":1},"},
     NULL},
    {"EAGLE-3, a narrow head, a vocabulary with gaps", "v3", 15,
     {.version = 3, .d = 18, .heads = 6, .groups = 3, .dim = 6, .intermediate = 20, .vocab = 37, .embeds = 1}, NULL},
    {"EAGLE-3, all tokens, the target's embedding", "glm", 5,
     {.version = 3, .d = 64, .heads = 5, .groups = 1, .dim = 8, .intermediate = 24}, NULL},
    {"EAGLE-1, a target with sparse attention", "v32", 1,
     {.version = 1, .d = 64, .heads = 4, .groups = 2, .dim = 8, .intermediate = 24}, NULL},
    {"EAGLE-3, a target with sparse attention", "glm5", 2,
     {.version = 3, .d = 64, .heads = 4, .groups = 2, .dim = 8, .intermediate = 24, .vocab = 50}, NULL},
    {"EAGLE-1, a target with gate=bf16", "v2-lite", 1,
     {.version = 1, .d = 64, .heads = 4, .groups = 2, .dim = 8, .intermediate = 24},
     "gate=bf16,first-row=phantom,first-embedding=zeroed,module-hidden=target"},
    {"EAGLE-1, a target with latent-cache=fp8", "glm5", 2,
     {.version = 1, .d = 64, .heads = 4, .groups = 2, .dim = 8, .intermediate = 24}, "latent-cache=fp8"},
    {"EAGLE-3, norm_before_residual", "v3", 5,
     {.version = 3, .d = 64, .heads = 4, .groups = 2, .dim = 8, .intermediate = 24, .vocab = 50,
      .keys = "\"norm_before_residual\":true,"},
     NULL},
    {"EAGLE-3, norm_before_fc, norm_output", "v3", 3,
     {.version = 3, .d = 64, .heads = 4, .groups = 2, .dim = 8, .intermediate = 24, .feature_norms = 1,
      .keys = "\"norm_before_fc\":true,\"norm_output\":true,"},
     NULL},
    {"EAGLE-3, a narrow head, all other norms", "v3", 9,
     {.version = 3, .d = 20, .heads = 4, .groups = 2, .dim = 8, .intermediate = 24, .vocab = 50, .embeds = 1,
      .feature_norms = 3, .keys = "\"norm_before_residual\":true,\"fc_norm\":true,\"norm_output\":true,"},
     NULL},
    {"EAGLE-3, one head, a vocabulary of 11 tokens", "v2-lite", 10,
     {.version = 3, .d = 64, .heads = 1, .groups = 1, .dim = 2, .intermediate = 8, .vocab = 11}, NULL},
};

static void check_shape(const struct shape *shape)
{
    static const struct loss_terms soft = {.soft = 0.5, .top = 0.75, .top_tokens = 5},
                                   features = {.soft = 0.5, .top = 0.75, .features = 0.5, .top_tokens = 5};
    int three = shape->head.version == 3;
    char dir[64], path[64];
    struct training_step s;
    struct small_eagle head = shape->head;
    snprintf(path, sizeof path, "golden/tiny/%s", shape->target);
    vb_model *m = training_model(path, shape->conventions);
    head.target_width = (int)m->config.dims.d;
    head.target_vocab = (int)m->config.dims.V;
    size_t trained = 9 + (size_t)(head.feature_norms + head.bias) + (three ? 4 : 0);
    small_eagle(dir, &head, 7);
    struct loss losses[] = {loss_of(three ? "eagle3" : "hass", 3, NULL),
                            loss_of("eagle3", 2, three ? &soft : &features), loss_of("fastmtp", 1, NULL),
                            loss_of("hass", 4, &soft)};
    for (size_t i = 0; i < COUNT(losses); i++) {
        if (!(shape->losses >> i & 1))
            continue;
        training_step(&s, m, three ? TRAIN_EAGLE3 : TRAIN_EAGLE, losses[i].depths);
        s.conventions = shape->conventions;
        if (i % 2)
            training_mask(&s);
        check_step(shape->name, dir, head.version, shape->target, &losses[i], &s, m, TRAINING_SEQUENCES, trained);
    }
    vb_model_close(m);
    remove_dir(dir);
}

TEST(gradients_of_heads_of_many_shapes_are_those_of_the_reference)
{
    for (size_t i = 0; i < COUNT(shapes); i++)
        check_shape(&shapes[i]);
}

/* One text of three tokens has one row, of depth 0; with more depths than a text has rows, later depths have none. */
TEST(short_texts_have_the_gradients_of_the_reference)
{
    static const size_t lengths[] = {3, 4, 5, 2};
    const struct small_eagle each[] = {shapes[0].head, shapes[3].head};
    vb_model *m = training_model("golden/tiny/v3", NULL);
    for (size_t i = 0; i < COUNT(each); i++)
        for (int count = 1; count <= 4; count += 3) {
            struct loss loss = loss_of(i ? "eagle3" : "hass", VB_MAX_DRAFT, NULL);
            struct small_eagle head = each[i];
            struct training_step s;
            char dir[64];
            head.target_width = 64;
            head.target_vocab = 160;
            head.vocab = i ? 120 : 0;
            small_eagle(dir, &head, 9);
            training_step(&s, m, i ? TRAIN_EAGLE3 : TRAIN_EAGLE, loss.depths);
            for (int q = 0; q < count; q++)
                s.list[q].count = lengths[q];
            for (int q = 0, at = 0; q < count; at += (int)lengths[q++])
                s.list[q].tokens = s.tokens + at;
            check_step("short texts", dir, head.version, "v3", &loss, &s, m, count, i ? 13 : 10);
            remove_dir(dir);
        }
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_heads_of_many_shapes_are_those_of_the_reference),
        cmocka_unit_test(short_texts_have_the_gradients_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
