/* tests/engine/test_reference_losses.c -- published losses of MTP modules, of whole models: against PyTorch's autograd
 * (golden/truth), against finite differences, and against the drafts that they are for. Runs in the repository's
 * root. */
#include "tests/support/autograd.h"
#include "tests/support/golden.h"
#include "tests/support/small_step.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

/* part: a name of engine/base/loss.h, or "soft"; perhaps "masked" before it */
static struct loss loss_of_part(const char *part, int depths)
{
    part += strncmp(part, "masked ", 7) ? 0 : 7;
    int soft = !strcmp(part, "soft");
    struct loss loss;
    vb_error err = {0};
    if (loss_named(&loss, soft ? "megatron" : part, depths, soft ? 0.3 : -1, &err))
        fail_msg("%s", err.message);
    if (soft)
        loss.terms = (struct loss_terms){.data = 0.6, .soft = 0.4};
    return loss;
}

TEST(gradients_of_published_losses_are_those_of_autograd)
{
    static const char *const names[] = {"v3-mtp3", "glm"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char file[64];
        const char *part;
        json_t *value;
        snprintf(file, sizeof file, "%s.losses", names[i]);
        json_t *golden = golden_json(file);
        assert_int_equal(json_object_size(golden), i ? 3 : 10);
        json_object_foreach(golden, part, value) {
            if (strcmp(part, "sequences") && strcmp(part, "loss_masks")) {
                struct loss loss = loss_of_part(part, (int)json_array_size(json_object_get(value, "losses")) - 1);
                check_autograd(names[i], part, golden, &(struct reference_loss_options){.loss = &loss});
            }
        }
        json_decref(golden);
    }
}

/* What rows learn from the target is constant, so with such terms the differences are those of the tensors of modules
 * alone. */
static void check_sequences(const struct small_checkpoint *c, const char *conventions, const struct loss *loss,
                            const struct reference_sequence *list)
{
    struct small m;
    struct reference_gradients g;
    vb_error err = {0};
    char start[32] = "";
    small_open(&m, c);
    m.options.loss = loss;
    m.list = list;
    if (conventions_parse(&m.options.conventions, conventions, &err) || reference_gradients_open(&g, m.r, &err))
        fail_msg("%s: %s", c->name, err.message);
    m.error = small_rounding_error(&m, small_perturbed, small_losses(&m, &g).total);
    if (loss->terms.data != 1)
        snprintf(start, sizeof start, "model.layers.%d.", m.r->config.num_hidden_layers);
    small_check_tensors(&m, &g, start, c->name);
    reference_gradients_close(&g);
    small_close(&m);
}

static void check_loss(const struct small_checkpoint *c, const char *conventions, const struct loss *loss)
{
    check_sequences(c, conventions, loss, small_sequences);
}

/* A published loss. terms NULL: its own; else these */
static struct loss loss_with(const char *name, int depths, const struct loss_terms *terms)
{
    struct loss loss = loss_of_part(name, depths);
    loss.terms = terms ? *terms : loss.terms;
    loss.detached = 0; /* differences see what flows from depth to depth */
    return loss;
}

TEST(gradients_of_published_losses_are_those_of_differences)
{
    static const struct loss_terms data = {.data = 1},
                                   all = {.data = 0.5, .soft = 0.25, .top = 0.75, .features = 0.5, .top_tokens = 3};
    struct loss unrolled = loss_with("fastmtp", 3, NULL), aligned = loss_with("eagle3", 3, &data),
                hass = loss_with("hass", 3, &all);
    struct loss modules = loss_with("sum", 3, &all);
    hass.main = 0.5;
    for (const struct small_checkpoint *c = small_checkpoints; c->name; c++)
        if (c->modules) {
            check_loss(c, NULL, &unrolled);
            check_loss(c, NULL, &aligned);
            check_loss(c, NULL, &hass);
            check_loss(c, NULL, &modules);
        }
    check_loss(&small_checkpoints[0],
               "main-hidden=pre-norm,draft-hidden=pre-norm,concat=hidden-embedding,draft-position=token", &aligned);
    check_loss(&small_checkpoints[0], "draft-hidden=pre-norm", &hass);
    modules.main = 0.5;
    check_sequences(&small_checkpoints[0], NULL, &hass, small_masked);
    check_sequences(&small_checkpoints[0], "main-hidden=pre-norm", &modules, small_masked);
}

/* -- parallel heads ------------------------------------------------------------------------------------------------ */

static void check_heads(const struct small_checkpoint *c, const struct loss *loss, const char *start)
{
    struct small m;
    struct reference_gradients g;
    small_open(&m, c);
    m.options.loss = loss;
    small_gradients_open(&m, &g);
    m.error = small_rounding_error(&m, small_perturbed, small_losses(&m, &g).total);
    small_check_tensors(&m, &g, start, c->name);
    reference_gradients_close(&g);
    small_close(&m);
}

TEST(gradients_of_parallel_heads_are_those_of_autograd)
{
    struct loss sum = loss_with("sum", 3, NULL), soft = sum;
    json_t *golden = golden_json("heads.losses");
    for (int k = 0; k < 3; k++)
        soft.depth[k] = 0.5;
    soft.terms = (struct loss_terms){.data = 0.6, .soft = 0.4};
    check_autograd("v3", "before", golden, &(struct reference_loss_options){.loss = &sum});
    check_autograd("v3", "after", golden, &(struct reference_loss_options){.loss = &sum});
    check_autograd("v3", "soft", golden, &(struct reference_loss_options){.loss = &soft});
    json_decref(golden);
}

/* With soft targets, whose gradients do not flow into the target, the tensors of heads alone. */
TEST(gradients_of_parallel_heads_are_those_of_differences)
{
    for (const struct small_checkpoint *c = small_with_heads; c->name; c++) {
        struct loss sum = loss_with("sum", c->heads, NULL), soft = sum;
        soft.terms = (struct loss_terms){.data = 0.5, .soft = 0.25, .top = 0.75, .top_tokens = 3};
        check_heads(c, &sum, "");
        check_heads(c, &soft, "extra_heads.");
    }
}

/* Heads of a detached loss leave the gradients of the target as they are without heads. */
TEST(detached_heads_have_no_gradients_in_the_trunk)
{
    struct small m;
    struct reference_gradients with, without;
    struct loss sum = loss_with("sum", 2, NULL), none = loss_with("sum", 0, NULL);
    const char *of_layer = "model.layers.0.self_attn.o_proj.weight";
    small_open(&m, &small_with_heads[0]);
    small_gradients_open(&m, &with);
    small_gradients_open(&m, &without);
    m.options.loss = &none;
    small_losses(&m, &without);
    for (int detached = 0; detached < 2; detached++) {
        reference_gradients_close(&with);
        small_gradients_open(&m, &with);
        sum.detached = detached;
        m.options.loss = &sum;
        small_losses(&m, &with);
        const struct reference_gradient *a = reference_gradient(&with, of_layer),
                                        *b = reference_gradient(&without, of_layer);
        assert_int_equal(!memcmp(a->data, b->data, (size_t)a->rows * (size_t)a->cols * sizeof *a->data), detached);
    }
    reference_gradients_close(&with);
    reference_gradients_close(&without);
    small_close(&m);
}

/* -- aligned depths and drafts ------------------------------------------------------------------------------------- */

struct seen_logits {
    int first_layer, row;
    double rows[VB_MAX_DRAFT][SMALL_V];
};

static void keep_logits(void *context, const struct reference_value *v)
{
    struct seen_logits *seen = context;
    if (!strcmp(v->name, "logits") && v->layer >= seen->first_layer)
        memcpy(seen->rows[v->layer - seen->first_layer], v->data + seen->row * SMALL_V, sizeof *seen->rows);
}

/* If a text goes on as mtp-eagle drafts, row N-1 of depth k has the logits of draft k, to the bit: its sums have more
 * terms, but these are 0. */
static void check_drafts(const struct small_checkpoint *c, const char *conventions, enum loss_chain chain, int same)
{
    enum { N = 6,
           K = 4 };
    int32_t tokens[N + 1 + K];
    double logits[K * SMALL_V];
    struct small m;
    struct loss loss = loss_with("eagle3", K, NULL);
    struct seen_logits seen = {.row = N - 1};
    const struct reference_sequence list = {tokens, N + 1 + K, NULL};
    vb_error err = {0};
    small_open(&m, c);
    loss.chain = chain;
    seen.first_layer = m.r->config.num_hidden_layers;
    m.options = (struct reference_loss_options){.loss = &loss, .hook = keep_logits, .hook_context = &seen};
    m.list = &list;
    m.count = 1;
    memcpy(tokens, small_text, (N + 1) * sizeof *small_text);
    if (conventions_parse(&m.options.conventions, conventions, &err))
        fail_msg("%s", err.message);
    struct reference_options options = {.conventions = m.options.conventions};
    if (reference_draft(m.r, &options, small_text, N, small_text[N], REFERENCE_MTP_EAGLE, K, tokens + N + 1, logits,
                        &err))
        fail_msg("%s", err.message);
    small_losses(&m, NULL);
    for (size_t k = 0; k < K; k++)
        for (size_t v = 0; v < SMALL_V; v++) {
            double have = seen.rows[k][v], want = logits[k * SMALL_V + v];
            if (same || k == 0 ? have != want : fabs(have - want) < 1e-6)
                fail_msg("%s, %s: logit %zu of draft %zu is %.17g, and %.17g in a training step", c->name,
                         conventions ? conventions : "default", v, k, want, have);
        }
    small_close(&m);
}

TEST(aligned_depths_are_the_drafts_of_mtp_eagle)
{
    for (const struct small_checkpoint *c = small_checkpoints; c->name; c++)
        if (c->modules) {
            check_drafts(c, NULL, CHAIN_ALIGNED, 1);
            check_drafts(c, NULL, CHAIN_UNROLLED, 0); /* the keys of its rows come from the depth itself */
        }
    check_drafts(&small_checkpoints[0], "main-hidden=pre-norm,draft-hidden=pre-norm,draft-position=token",
                 CHAIN_ALIGNED, 1);
}

TEST(losses_that_are_not_possible_are_refused_in_one_sentence)
{
    struct small m;
    struct reference_losses losses;
    vb_error err = {0};
    struct loss hass = loss_of_part("hass", 2);
    struct reference_loss_options *options = &m.options;
    small_open(&m, &small_checkpoints[0]);
    options->loss = &hass;
    hass.terms.top_tokens = SMALL_V + 1;
    assert_int_equal(reference_backward(m.r, options, small_sequences, 1, &losses, NULL, &err), VB_BAD_ARGUMENT);
    assert_string_equal(err.message, "a loss of the top 13 tokens, wanted 1 to 12");
    hass.terms.top_tokens = 1;
    options->conventions.value[CHAIN_MODULE] = 1;
    assert_int_equal(reference_backward(m.r, options, small_sequences, 1, &losses, NULL, &err), VB_BAD_ARGUMENT);
    assert_string_equal(err.message, "chain-module=step is not computed with aligned depths, wanted first");
    small_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_published_losses_are_those_of_autograd),
        cmocka_unit_test(gradients_of_published_losses_are_those_of_differences),
        cmocka_unit_test(gradients_of_parallel_heads_are_those_of_autograd),
        cmocka_unit_test(gradients_of_parallel_heads_are_those_of_differences),
        cmocka_unit_test(detached_heads_have_no_gradients_in_the_trunk),
        cmocka_unit_test(aligned_depths_are_the_drafts_of_mtp_eagle),
        cmocka_unit_test(losses_that_are_not_possible_are_refused_in_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
