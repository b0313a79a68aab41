/* tests/engine/test_reference_gradients.c -- losses and gradients of whole models: against PyTorch's autograd
 * (golden/truth), against finite differences on the small checkpoints of tests/support/small_checkpoint.h, and what
 * cannot be computed. Runs in the repository's root. */
#include "reference/backward.h"
#include "reference/weights.h"
#include "tests/support/autograd.h"
#include "tests/support/differences.h"
#include "tests/support/files.h"
#include "tests/support/golden.h"
#include "tests/support/references.h"
#include "tests/support/small_step.h"

/* -- autograd ------------------------------------------------------------------------------------------------------ */

/* part: "main", the loss of the target, or "mtp", with its modules */
static void check_part(const char *name, const char *part)
{
    char file[64];
    snprintf(file, sizeof file, "%s.gradients", name);
    json_t *golden = golden_json(file);
    struct reference_loss_options options = {
        .depths = (int)json_array_size(json_object_get(json_object_get(golden, part), "losses")) - 1,
        .mtp_loss_scaling_factor = json_real_value(json_object_get(golden, "mtp_loss_scaling_factor"))};
    check_autograd(name, part, golden, &options);
    json_decref(golden);
}

TEST(gradients_of_the_target_are_those_of_transformers)
{
    static const char *const names[] = {"v3", "v3-mtp3", "glm", "v2", "v2-lite", "moonlight", "mistral4"};
    for (size_t i = 0; i < COUNT(names); i++)
        check_part(names[i], "main");
}

TEST(gradients_of_megatrons_loss_with_mtp_modules_are_those_of_autograd)
{
    static const char *const names[] = {"v3", "v3-mtp3", "glm"};
    for (size_t i = 0; i < COUNT(names); i++)
        check_part(names[i], "mtp");
}

/* -- finite differences -------------------------------------------------------------------------------------------- */

/* -log softmax(z)[token], in other words than ref_cross_entropy's */
static double nats(const double *z, int32_t token)
{
    double sum = 0;
    for (int v = 0; v < SMALL_V; v++)
        sum += exp(z[v] - z[token]);
    return log(sum);
}

/* The total loss from the logits of reference_forward and reference_modules, with the perturbation of `perturb`. */
static double loss_by_logits(const struct small *m, uint64_t perturb)
{
    struct reference_options options = {.perturb = perturb, .conventions = m->options.conventions};
    static double main_logits[8 * SMALL_V], logits[VB_MAX_DRAFT * 8 * SMALL_V];
    double sums[VB_MAX_DRAFT + 1] = {0}, mean = 0;
    long rows[VB_MAX_DRAFT + 1] = {0};
    int depths = m->options.depths;
    vb_error err = {0};
    for (int q = 0; q < m->count; q++) {
        const int32_t *tok = m->list[q].tokens;
        int T = m->list[q].count;
        if (reference_forward(m->r, &options, tok, T, NULL, main_logits, &err) ||
            (depths && reference_modules(m->r, &options, tok, T, depths, logits, &err)))
            fail_msg("%s", err.message);
        for (int k = -1; k < depths; k++)
            for (int i = 0; i < T - k - 2; i++) {
                if (m->list[q].loss_mask && !m->list[q].loss_mask[i + k + 2])
                    continue;
                rows[k + 1]++;
                sums[k + 1] += nats((k < 0 ? main_logits : logits + k * T * SMALL_V) + i * SMALL_V, tok[i + k + 2]);
            }
    }
    for (int k = 0; k < depths; k++)
        mean += rows[k + 1] ? sums[k + 1] / (double)rows[k + 1] / depths : 0;
    return sums[0] / (double)rows[0] + m->options.mtp_loss_scaling_factor * mean;
}

static void check_sequences(const struct small_checkpoint *c, const char *conventions, int depths,
                            const struct reference_sequence *list)
{
    struct small m;
    struct reference_gradients g;
    vb_error err = {0};
    small_open(&m, c);
    m.options.depths = depths;
    m.list = list;
    if (conventions_parse(&m.options.conventions, conventions, &err) || reference_gradients_open(&g, m.r, &err))
        fail_msg("%s: %s", c->name, err.message);
    double loss = small_losses(&m, &g).total, want = loss_by_logits(&m, 0);
    m.error = small_rounding_error(&m, loss_by_logits, want);
    if (!(fabs(loss - want) <= 2 * m.error))
        fail_msg("%s: the loss is %.17g, and %.17g by the logits, bound %.2g", c->name, loss, want, 2 * m.error);
    small_check_tensors(&m, &g, "", c->name);
    reference_gradients_close(&g);
    small_close(&m);
}

static void check_model(const struct small_checkpoint *c, const char *conventions, int depths)
{
    check_sequences(c, conventions, depths, small_sequences);
}

TEST(gradients_with_loss_masks_are_those_of_differences)
{
    check_sequences(&small_checkpoints[0], NULL, 3, small_masked);
}

TEST(gradients_of_small_models_are_those_of_differences)
{
    for (const struct small_checkpoint *c = small_checkpoints; c->name; c++)
        check_model(c, NULL, c->modules ? c->modules + 1 : 0); /* one depth more than modules: the first is used
                                                                  twice */
}

TEST(gradients_with_other_conventions_are_those_of_differences)
{
    check_model(&small_checkpoints[0],
                "main-hidden=pre-norm,concat=hidden-embedding,draft-position=token,latent-eps=config", 2);
    check_model(&small_checkpoints[0], "draft-hidden=pre-norm,normaliser-eps=6.1e-5,yarn-scale=never", 3);
}

/* -- gradients of values ------------------------------------------------------------------------------------------- */

struct value_gradient {
    char name[32];
    int layer, index, occurrence; /* occurrence: how many values of the same name, layer and index come before it, 0 or
                                     1 */
    size_t n;
    double *data;
};

struct values {
    struct small m;
    struct value_gradient list[400];
    size_t count;
    const struct value_gradient *moved; /* the hook adds m.x to this value, the one before which `seen` values are like
                                           it */
    int seen;
    long owed; /* values that came without their gradients, so far */
};

static int is_same(const struct value_gradient *g, const struct reference_value *v)
{
    return !strcmp(g->name, v->name) && g->layer == v->layer && g->index == v->index;
}

static void keep_gradient(void *context, const struct reference_value *v)
{
    struct values *all = context;
    struct value_gradient *g = &all->list[all->count++];
    assert_true(all->count <= COUNT(all->list) && strlen(v->name) < sizeof g->name);
    *g = (struct value_gradient){.layer = v->layer, .index = v->index, .n = (size_t)v->rows * (size_t)v->cols};
    strcpy(g->name, v->name);
    g->data = doubles(g->n);
    memcpy(g->data, v->data, g->n * sizeof *g->data);
    for (struct value_gradient *before = all->list; before < g; before++) /* gradients come in reverse order */
        before->occurrence += is_same(before, v);
}

static int has_gradient(const char *name)
{
    static const char *const without[] = {"silu", "mixed", "router_choice", "router_groups", "router_kept",
                                          "router_experts"};
    for (size_t i = 0; i < COUNT(without); i++)
        if (!strcmp(name, without[i]))
            return 0;
    return 1;
}

/* The layers compute with the array that the hook receives. */
static void move_value(void *context, const struct reference_value *v)
{
    struct values *all = context;
    all->owed += has_gradient(v->name);
    if (!all->moved || !is_same(all->moved, v) || all->seen++ != all->moved->occurrence)
        return;
    for (size_t i = 0; i < all->moved->n; i++)
        ((double *)v->data)[i] += all->m.x[i];
}

static double loss_with_moved_value(void *context, double *size)
{
    struct values *all = context;
    all->seen = 0;
    *size = all->m.error * 0x1p53;
    return small_losses(&all->m, NULL).total;
}

static void check_values(const struct small_checkpoint *c, const char *conventions, const struct loss *loss)
{
    static struct values all;
    struct reference_gradients g;
    vb_error err = {0};
    all = (struct values){0};
    struct small *m = &all.m;
    small_open(m, c);
    m->count = 1;
    m->options.depths = c->modules;
    m->options.loss = loss;
    m->options.hook = move_value;
    m->options.gradient_hook = keep_gradient;
    m->options.hook_context = &all;
    if (conventions_parse(&m->options.conventions, conventions, &err) || reference_gradients_open(&g, m->r, &err))
        fail_msg("%s: %s", c->name, err.message);
    double total = small_losses(m, &g).total;
    if (all.owed != (long)all.count)
        fail_msg("%s: %zu gradients of %ld values", c->name, all.count, all.owed);
    m->error = small_rounding_error(m, loss ? small_perturbed : loss_by_logits, total);
    for (size_t i = 0; i < all.count; i++) {
        char name[128];
        all.moved = &all.list[i];
        m->x = doubles(all.moved->n);
        snprintf(name, sizeof name, "%s, %s of layer %d, index %d, number %d", c->name, all.moved->name,
                 all.moved->layer, all.moved->index, all.moved->occurrence);
        check_differences(&(struct differences){name, loss_with_moved_value, &all, 1}, m->x, all.moved->data,
                          all.moved->n, 0);
        if (!all.seen)
            fail_msg("%s: there is a gradient of it, but no such value", name);
        free(m->x);
    }
    for (size_t i = 0; i < all.count; i++)
        free(all.list[i].data);
    reference_gradients_close(&g);
    small_close(m);
}

TEST(gradients_of_values_are_those_of_differences)
{
    for (const struct small_checkpoint *c = small_checkpoints; c->name; c++)
        check_values(c, NULL, NULL);
    check_values(&small_checkpoints[0], "main-hidden=pre-norm,draft-hidden=pre-norm,concat=hidden-embedding", NULL);
    struct loss aligned;
    vb_error err = {0};
    assert_int_equal(loss_named(&aligned, "eagle3", 2, -1, &err), VB_OK);
    aligned.terms = (struct loss_terms){.data = 1}; /* what rows learn from the target is constant, which differences
                                                       don't know */
    aligned.main = 1;
    check_values(&small_checkpoints[0], NULL, &aligned);
}

/* -- perturbed runs ------------------------------------------------------------------------------------------------ */

/* Every tensor of a perturbed run has moved, by less than 10^4 * 2^-24 of its norm: as many roundings as BOUND counts,
 * but each of 2^-24. */
TEST(perturbed_gradients_move_as_rounding_to_f32_would_move_them)
{
    struct small m;
    struct reference_gradients exact, moved, again;
    vb_error err = {0};
    small_open(&m, &small_checkpoints[0]);
    m.options.depths = 2;
    if (reference_gradients_open(&exact, m.r, &err) || reference_gradients_open(&moved, m.r, &err) ||
        reference_gradients_open(&again, m.r, &err))
        fail_msg("%s", err.message);
    small_losses(&m, &exact);
    m.options.perturb = 7;
    small_losses(&m, &moved);
    small_losses(&m, &again);
    for (size_t i = 0; i < exact.count; i++) {
        size_t n = (size_t)exact.of[i].rows * (size_t)exact.of[i].cols;
        double norm = 0, far = 0;
        for (size_t j = 0; j < n; j++) {
            norm += exact.of[i].data[j] * exact.of[i].data[j];
            far = fmax(far, fabs(exact.of[i].data[j] - moved.of[i].data[j]));
        }
        if (!(far <= 1e4 * 0x1p-24 * sqrt(norm)) || (far == 0 && norm > 0))
            fail_msg("a perturbed run moves the gradient of %s by %g, its norm is %g", exact.of[i].name, far,
                     sqrt(norm));
        if (memcmp(moved.of[i].data, again.of[i].data, n * sizeof(double)))
            fail_msg("two runs with one seed have different gradients of %s", exact.of[i].name);
    }
    reference_gradients_close(&exact);
    reference_gradients_close(&moved);
    reference_gradients_close(&again);
    small_close(&m);
}

/* -- what cannot be computed --------------------------------------------------------------------------------------- */

static void check_refusal(const struct reference *r, const struct reference_loss_options *options,
                          const struct reference_sequence *list, int count, int want_rc, const char *want)
{
    struct reference_losses losses;
    vb_error err = {0};
    int rc = reference_backward(r, options, list, count, &losses, NULL, &err);
    if (rc != want_rc || strcmp(err.message, want))
        fail_msg("error %d, \"%s\"; wanted %d, \"%s\"", rc, err.message, want_rc, want);
}

TEST(wrong_steps_are_refused_in_one_sentence)
{
    static const int32_t outside[] = {1, SMALL_V};
    const struct reference_sequence one_token = {small_text, 1, NULL}, wrong = {outside, 2, NULL};
    struct reference_loss_options options = {.depths = 1};
    struct small with, without;
    small_open(&with, &small_checkpoints[0]);
    small_open(&without, &small_checkpoints[2]);
    check_refusal(without.r, &options, small_sequences, 1, VB_BAD_ARGUMENT, "1 MTP depths, wanted 0 to 0");
    check_refusal(with.r, &options, &one_token, 1, VB_BAD_ARGUMENT,
                  "no sequence of the 1 has a token to predict, wanted at least two tokens in one, and labels in its "
                  "loss mask");
    check_refusal(with.r, &options, &wrong, 1, VB_BAD_ARGUMENT, "token 1 is 12, the vocabulary has 12");
    options.conventions.value[FIRST_ROW] = 1;
    check_refusal(with.r, &options, small_sequences, 1, VB_BAD_ARGUMENT,
                  "first-row=phantom has no backward pass, wanted none");
    options.conventions.value[FIRST_ROW] = 0;
    float *norm = (float *)checkpoint_find(with.r->checkpoint, "model.norm.weight")->data;
    norm[3] = NAN;
    check_refusal(with.r, &options, small_sequences, 2, VB_NOT_FINITE, "the loss of sequence 0 is not finite");
    small_close(&with);
    small_close(&without);
}

TEST(models_without_a_backward_pass_are_refused)
{
    struct reference *r = open_tiny_reference("v32");
    struct reference_gradients g;
    vb_error err = {0};
    assert_int_equal(reference_gradients_open(&g, r, &err), VB_UNSUPPORTED);
    assert_string_equal(err.message,
                        "golden/tiny/v32: index_topk is 16, and gradients are not computed for sparse attention");
    reference_gradients_close(&g);
    reference_close(r);
    if (reference_open(&r, "golden/gguf/quantized.gguf", NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(reference_gradients_open(&g, r, &err), VB_UNSUPPORTED);
    assert_string_equal(err.message, "golden/gguf/quantized.gguf: "
                                     "W_UK and W_UV are two tensors, and gradients are computed for one tensor "
                                     "kv_b_proj");
    reference_gradients_close(&g);
    reference_close(r);
}

TEST(every_failed_allocation_is_an_error_and_nothing_leaks)
{
    struct counted counted = {.fail = -1};
    const vb_allocator allocator = {counted_alloc, counted_free, &counted};
    struct loss loss;
    struct reference_loss_options options = {.loss = &loss};
    char dir[64];
    struct reference *r;
    vb_error err = {0};
    assert_int_equal(loss_named(&loss, "hass", 2, -1, &err), VB_OK);
    small_checkpoint(dir, &small_checkpoints[0]);
    if (reference_open(&r, dir, &allocator, &err))
        fail_msg("%s", err.message);
    long opened = counted.requests, alive = counted.alive;
    for (int rc = VB_NO_MEMORY, n = 0; rc; n++) {
        struct reference_gradients g;
        struct reference_losses losses;
        counted.fail = counted.requests + n;
        rc = reference_gradients_open(&g, r, &err);
        if (!rc)
            rc = reference_backward(r, &options, small_sequences, 1, &losses, &g, &err);
        reference_gradients_close(&g);
        assert_int_equal(counted.alive, alive);
        if (rc && rc != VB_NO_MEMORY)
            fail_msg("with allocation %d failing: %s", n, err.message);
    }
    assert_true(counted.requests > opened + 100); /* each gradient is an allocation */
    reference_close(r);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_the_target_are_those_of_transformers),
        cmocka_unit_test(gradients_of_megatrons_loss_with_mtp_modules_are_those_of_autograd),
        cmocka_unit_test(gradients_of_small_models_are_those_of_differences),
        cmocka_unit_test(gradients_with_loss_masks_are_those_of_differences),
        cmocka_unit_test(gradients_with_other_conventions_are_those_of_differences),
        cmocka_unit_test(gradients_of_values_are_those_of_differences),
        cmocka_unit_test(perturbed_gradients_move_as_rounding_to_f32_would_move_them),
        cmocka_unit_test(wrong_steps_are_refused_in_one_sentence),
        cmocka_unit_test(models_without_a_backward_pass_are_refused),
        cmocka_unit_test(every_failed_allocation_is_an_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
