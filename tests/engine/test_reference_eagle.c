/* tests/engine/test_reference_eagle.c -- EAGLE heads of the reference: drafts against the official code, gradients against PyTorch's autograd
 * (golden/truth) and finite differences, aligned depths against the drafts that they are for, and the engine's passes against the
 * reference. Runs in the repository's root. */
#include "tests/support/autograd.h"
#include "tests/support/differences.h"
#include "tests/support/engine_support.h"
#include "tests/support/files.h"
#include "tests/support/golden.h"
#include "tests/support/references.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/small_eagle.h"
#include "tests/support/small_step.h"

#include "engine/draft/eagle_net.h"
#include "reference/eagle_layers.h"

static const char *const heads[] = {"golden/eagle/eagle1-v3", "golden/eagle/eagle3-v3"};
static const char *const files[] = {"eagle1", "eagle3"};
static const int versions[] = {1, 3};

static struct reference_eagle *open_head(const char *dir, int version, const struct reference *target)
{
    struct reference_eagle *e;
    OK(reference_eagle_open(&e, dir, version, target, &err));
    return e;
}

/* ---- drafts ------------------------------------------------------------------------------------------------------- */

enum { ROWS = 12,
       STEPS = 4 };

struct drafted {
    float features[ROWS * 192];
    double rows[ROWS * 192];
    int32_t tokens[ROWS], drafts[STEPS];
    double hidden[(ROWS + STEPS) * 64], logits[(ROWS + STEPS) * 160];
};

static void read_rows(struct drafted *d, const struct golden *g)
{
    size_t n;
    const void *features = golden_data(g, "features", &n);
    memcpy(d->features, features, n * sizeof *d->features);
    for (size_t i = 0; i < n; i++)
        d->rows[i] = (double)d->features[i];
    memcpy(d->tokens, golden_data(g, "tokens", &n), sizeof d->tokens);
}

static void draft(struct drafted *d, const struct reference_eagle *e, uint64_t perturb)
{
    struct reference_options o = {.perturb = perturb};
    OK(reference_eagle_draft(e, &o, d->rows, d->tokens, ROWS, STEPS, d->drafts, d->hidden, d->logits, &err));
}

/* The official code takes norms, softmax and angles in float32 (golden/README.md). */
TEST(drafts_are_those_of_the_official_code)
{
    static struct drafted d;
    struct reference *r = open_tiny_reference("v3");
    for (size_t v = 0; v < 2; v++) {
        struct golden g = golden_open(files[v]);
        struct reference_eagle *e = open_head(heads[v], versions[v], r);
        size_t n;
        read_rows(&d, &g);
        draft(&d, e, 0);
        assert_memory_equal(d.drafts, golden_data(&g, "chosen", &n), sizeof d.drafts);
        const void *hidden = golden_data(&g, "hidden", &n), *logits;
        assert_true(distance(d.hidden, hidden, n) < 3e-6);
        logits = golden_data(&g, "logits", &n);
        assert_int_equal(n, (ROWS + STEPS) * reference_eagle_sizes(e).vocab);
        assert_true(distance(d.logits, logits, n) < 3e-6);
        reference_eagle_close(e);
        golden_close(&g);
    }
    reference_close(r);
}

/* The engine's pass over the rows, and passes of one row for the drafts: y and logits as in struct drafted */
static void engine_drafts(struct drafted *out, const vb_model *m, size_t v)
{
    struct eagle_head *head;
    struct eagle e;
    struct kvcache cache;
    struct row rows[ROWS];
    struct workspace w = {.model = m};
    static float h[ROWS * 64], g[ROWS * 64], logits[ROWS * 160];
    int known;
    struct drafter_options o = {.kernels = kernels_select("best", &known), .threads = 1, .most_observed = ROWS};
    OK(eagle_head_open(&head, heads[v], versions[v], m, &err));
    OK(eagle_open(&e, head, &o, &err));
    OK(kvcache_open(&cache, 1, ROWS + STEPS, e.net.cache, NULL, &err));
    if (versions[v] == 3)
        eagle_features(&e, &w, h, out->features, ROWS);
    else
        memcpy(h, out->features, sizeof h);
    for (int32_t at = 0; at < ROWS + STEPS; at += at ? 1 : ROWS) {
        int32_t S = at ? 1 : ROWS;
        for (int32_t i = 0; i < S; i++)
            rows[i] = (struct row){.cache = &cache, .token = at ? out->drafts[at - ROWS] : out->tokens[i], .index = at + i, .position = at + i,
                                   .slot = kvcache_append(&cache)};
        eagle_pass(&e, &w, rows, h, g, h, (size_t)S);
        eagle_logits(&e, &w, logits, g, (size_t)S);
        for (size_t i = 0; i < (size_t)S * 64; i++)
            out->hidden[(size_t)at * 64 + i] = (double)h[i];
        for (size_t i = 0; i < (size_t)S * head->vocab_size; i++)
            out->logits[(size_t)at * head->vocab_size + i] = (double)logits[i];
        memmove(h, h + (size_t)(S - 1) * 64, 64 * sizeof *h); /* the next row takes y of the last */
    }
    kvcache_close(&cache, NULL);
    eagle_close(&e);
}

/* As `diff` does, takes 8 times the distance of 8 perturbed runs as the bound for an f32 program. */
TEST(the_engines_passes_are_as_near_to_the_reference_as_f32_allows)
{
    static struct drafted exact, other;
    struct reference *r = open_tiny_reference("v3");
    vb_model *m = open_tiny("v3");
    for (size_t v = 0; v < 2; v++) {
        struct golden g = golden_open(files[v]);
        struct reference_eagle *e = open_head(heads[v], versions[v], r);
        size_t n = (ROWS + STEPS) * (size_t)reference_eagle_sizes(e).vocab, y = (ROWS + STEPS) * 64;
        double logits = 0, hidden = 0;
        read_rows(&exact, &g);
        draft(&exact, e, 0);
        other = exact;
        for (uint64_t seed = 1; seed <= 8; seed++) {
            draft(&other, e, seed);
            hidden = fmax(hidden, distance(other.hidden, exact.hidden, y));
            logits = fmax(logits, distance(other.logits, exact.logits, n));
        }
        memcpy(other.drafts, exact.drafts, sizeof other.drafts);
        engine_drafts(&other, m, v);
        if (!(distance(other.hidden, exact.hidden, y) <= 8 * hidden) || !(distance(other.logits, exact.logits, n) <= 8 * logits))
            fail_msg("EAGLE-%d: y and logits are %.2g and %.2g away from the reference, perturbed references %.2g and %.2g", versions[v],
                     distance(other.hidden, exact.hidden, y), distance(other.logits, exact.logits, n), hidden, logits);
        reference_eagle_close(e);
        golden_close(&g);
    }
    vb_model_close(m);
    reference_close(r);
}

/* ---- autograd ----------------------------------------------------------------------------------------------------- */

/* part: a name of engine/base/loss.h, or "mixed"; perhaps "masked" before it */
static struct loss loss_of_part(const char *part, int depths)
{
    part += strncmp(part, "masked ", 7) ? 0 : 7;
    int mixed = !strcmp(part, "mixed");
    struct loss loss;
    OK(loss_named(&loss, mixed ? "hass" : part, depths, -1, &err));
    if (mixed)
        loss.terms = (struct loss_terms){.data = 0.5, .soft = 0.25, .top = 0.75, .top_tokens = 10};
    return loss;
}

TEST(losses_and_gradients_are_those_of_autograd)
{
    struct reference *r = open_tiny_reference("v3");
    for (size_t v = 0; v < 2; v++) {
        char file[32];
        const char *part;
        json_t *value;
        snprintf(file, sizeof file, "%s.gradients", files[v]);
        json_t *golden = golden_json(file);
        struct reference_eagle *e = open_head(heads[v], versions[v], r);
        assert_int_equal(json_object_size(golden), 6);
        json_object_foreach(golden, part, value) {
            if (!strcmp(part, "sequences") || !strcmp(part, "loss_masks"))
                continue;
            struct loss loss = loss_of_part(part, (int)json_array_size(json_object_get(value, "losses")) - 1);
            struct reference_loss_options options = {.loss = &loss};
            struct autograd_step s;
            struct reference_losses losses;
            struct reference_gradients g;
            autograd_read(&s, part, golden);
            OK(reference_eagle_gradients_open(&g, e, &err));
            OK(reference_eagle_backward(e, &options, s.list, s.count, &losses, &g, &err));
            autograd_compare(files[v], part, golden, &loss.terms, &losses, &g);
            reference_gradients_close(&g);
        }
        reference_eagle_close(e);
        json_decref(golden);
    }
    reference_close(r);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_those_of_the_official_code),
        cmocka_unit_test(the_engines_passes_are_as_near_to_the_reference_as_f32_allows),
        cmocka_unit_test(losses_and_gradients_are_those_of_autograd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
