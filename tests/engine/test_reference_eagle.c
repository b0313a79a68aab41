/* tests/engine/test_reference_eagle.c -- EAGLE heads of the reference: drafts against the official code and that of
 * speculators, gradients against PyTorch's autograd (golden/truth) and finite differences, aligned depths against the
 * drafts that they are for, and the engine's passes against the reference. Runs in the repository's root. */
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

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

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

/* `values` is F32. */
static double distance_of_floats(const double *have, const void *values, size_t n)
{
    double *wide = doubles(n), far;
    for (size_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, (const char *)values + i * sizeof x, sizeof x);
        wide[i] = (double)x;
    }
    far = distance(have, wide, n);
    free(wide);
    return far;
}

/* Its code takes norms and angles in float32, too (golden/scripts/make_eagle_norms.py). */
TEST(norms_of_speculators_are_those_of_its_code)
{
    static struct drafted d;
    struct reference *r = open_tiny_reference("v3");
    struct golden g = golden_open("eagle3-norms");
    read_rows(&d, &g);
    for (size_t v = 0; v < eagle_variant_count; v++) {
        char dir[64], name[64];
        size_t n;
        eagle_variant(dir, &eagle_variants[v]);
        struct reference_eagle *e = open_head(dir, 3, r);
        draft(&d, e, 0);
        snprintf(name, sizeof name, "%s.chosen", eagle_variants[v].name);
        assert_memory_equal(d.drafts, golden_data(&g, name, &n), sizeof d.drafts);
        snprintf(name, sizeof name, "%s.hidden", eagle_variants[v].name);
        const void *hidden = golden_data(&g, name, &n), *logits;
        assert_true(distance_of_floats(d.hidden, hidden, n) < 3e-6);
        snprintf(name, sizeof name, "%s.logits", eagle_variants[v].name);
        logits = golden_data(&g, name, &n);
        assert_int_equal(n, (ROWS + STEPS) * reference_eagle_sizes(e).vocab);
        assert_true(distance_of_floats(d.logits, logits, n) < 3e-6);
        reference_eagle_close(e);
        remove_dir(dir);
    }
    golden_close(&g);
    reference_close(r);
}

/* The engine's pass over the rows, and passes of one row for the drafts: y and logits as in struct drafted */
static void engine_drafts(struct drafted *out, const vb_model *m, const char *dir, int version)
{
    struct eagle_head *head;
    struct eagle e;
    struct kvcache cache;
    struct row rows[ROWS];
    struct pass w = {.model = m};
    static float h[ROWS * 64], g[ROWS * 64], logits[ROWS * 160];
    int known;
    struct drafter_options o = {.kernels = kernels_select("best", &known), .threads = 1, .most_observed = ROWS};
    OK(eagle_head_open(&head, dir, version, m, &err));
    OK(eagle_open(&e, head, &o, &err));
    OK(kvcache_open(&cache, 1, ROWS + STEPS, e.net.cache, NULL, &err));
    if (version == 3)
        eagle_features(&e, &w, h, out->features, ROWS);
    else
        memcpy(h, out->features, sizeof h);
    for (int32_t at = 0; at < ROWS + STEPS; at += at ? 1 : ROWS) {
        int32_t S = at ? 1 : ROWS;
        for (int32_t i = 0; i < S; i++)
            rows[i] = (struct row){.cache = &cache, .token = at ? out->drafts[at - ROWS] : out->tokens[i],
                                   .index = at + i, .position = at + i, .slot = kvcache_append(&cache)};
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
static void check_engine(const vb_model *m, const struct reference *r, const char *name, const char *dir, int version,
                         const char *file)
{
    static struct drafted exact, other;
    struct golden g = golden_open(file);
    struct reference_eagle *e = open_head(dir, version, r);
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
    engine_drafts(&other, m, dir, version);
    if (!(distance(other.hidden, exact.hidden, y) <= 8 * hidden) ||
        !(distance(other.logits, exact.logits, n) <= 8 * logits))
        fail_msg("%s: y and logits are %.2g and %.2g away from the reference, perturbed references %.2g and %.2g", name,
                 distance(other.hidden, exact.hidden, y), distance(other.logits, exact.logits, n), hidden, logits);
    reference_eagle_close(e);
    golden_close(&g);
}

TEST(the_engines_passes_are_as_near_to_the_reference_as_f32_allows)
{
    struct reference *r = open_tiny_reference("v3");
    vb_model *m = open_tiny("v3");
    for (size_t v = 0; v < 2; v++)
        check_engine(m, r, files[v], heads[v], versions[v], files[v]);
    for (size_t v = 0; v < eagle_variant_count; v++) {
        char dir[64];
        eagle_variant(dir, &eagle_variants[v]);
        check_engine(m, r, eagle_variants[v].name, dir, 3, "eagle3-norms");
        remove_dir(dir);
    }
    vb_model_close(m);
    reference_close(r);
}

/* ---- autograd ---------------------------------------------------------------------------------------------------- */

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

/* name: of the loss, as above */
static void check_part(const struct reference_eagle *e, const char *file, const char *part, json_t *golden,
                       const char *name)
{
    struct loss loss = loss_of_part(name,
                                    (int)json_array_size(json_object_get(json_object_get(golden, part), "losses")) - 1);
    struct reference_loss_options options = {.loss = &loss};
    struct autograd_step s;
    struct reference_losses losses;
    struct reference_gradients g;
    autograd_read(&s, part, golden);
    OK(reference_eagle_gradients_open(&g, e, &err));
    OK(reference_eagle_backward(e, &options, s.list, s.count, &losses, &g, &err));
    autograd_compare(file, part, golden, &loss.terms, &losses, &g);
    reference_gradients_close(&g);
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
        json_object_foreach(golden, part, value)
            if (strcmp(part, "sequences") && strcmp(part, "loss_masks"))
                check_part(e, files[v], part, golden, part);
        reference_eagle_close(e);
        json_decref(golden);
    }
    reference_close(r);
}

TEST(gradients_of_norms_of_speculators_are_those_of_autograd)
{
    struct reference *r = open_tiny_reference("v3");
    json_t *golden = golden_json("eagle3-norms.gradients");
    for (size_t v = 0; v < eagle_variant_count; v++) {
        char dir[64];
        eagle_variant(dir, &eagle_variants[v]);
        struct reference_eagle *e = open_head(dir, 3, r);
        check_part(e, "eagle3-norms", eagle_variants[v].name, golden, "eagle3");
        reference_eagle_close(e);
        remove_dir(dir);
    }
    json_decref(golden);
    reference_close(r);
}

/* ---- finite differences ------------------------------------------------------------------------------------------ */

/* An EAGLE head whose tensors the test changes, and its target. A small checkpoint has two layers, so an EAGLE-3 head
 * has a target of golden/tiny. */
struct moved {
    struct small target;
    struct reference *r;
    struct reference_eagle *e;
    char dir[64];
    struct reference_loss_options options;
    const struct reference_sequence *list;
    double error; /* of the loss, by rounding */
    float *weights;
    double *x;
    size_t n;
};

static const struct small_eagle small_heads[] = {
    {.version = 1, .target_width = 8, .target_vocab = SMALL_V, .d = 8, .heads = 4, .groups = 2, .dim = 4,
     .intermediate = 7, .bias = 1, .embeds = 1},
    {.version = 1, .target_width = 8, .target_vocab = SMALL_V, .d = 8, .heads = 3, .groups = 1, .dim = 2,
     .intermediate = 5,
     .keys = "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":16,\"beta_fast\":4,"
             "\"beta_slow\":1},"},
    {.version = 3, .target_width = 64, .target_vocab = 160, .d = 6, .heads = 2, .groups = 1, .dim = 4,
     .intermediate = 5, .vocab = 40, .embeds = 1},
    {.version = 3, .target_width = 64, .target_vocab = 160, .d = 6, .heads = 2, .groups = 1, .dim = 4,
     .intermediate = 5, .embeds = 1, .keys = "\"norm_before_residual\":true,"},
    {.version = 3, .target_width = 64, .target_vocab = 160, .d = 6, .heads = 2, .groups = 1, .dim = 4,
     .intermediate = 5, .embeds = 1, .feature_norms = 1,
     .keys = "\"norm_before_residual\":true,\"norm_before_fc\":true,\"norm_output\":true,"},
    {.version = 3, .target_width = 64, .target_vocab = 160, .d = 6, .heads = 2, .groups = 1, .dim = 4,
     .intermediate = 5, .embeds = 1, .feature_norms = 3, .keys = "\"fc_norm\":true,"},
};

static struct reference_losses losses_of(const struct moved *m, struct reference_gradients *g)
{
    struct reference_losses losses;
    OK(reference_eagle_backward(m->e, &m->options, m->list, SMALL_SEQUENCES, &losses, g, &err));
    return losses;
}

static double moved_loss(void *context, double *size)
{
    const struct moved *m = context;
    for (size_t i = 0; i < m->n; i++)
        m->weights[i] = (float)m->x[i];
    *size = m->error * 0x1p53;
    return losses_of(m, NULL).total;
}

static void moved_open(struct moved *m, const struct small_eagle *c)
{
    *m = (struct moved){.list = small_sequences};
    if (c->version == 1)
        small_open(&m->target, &small_checkpoints[0]);
    m->r = c->version == 1 ? m->target.r : open_tiny_reference("v3");
    small_eagle(m->dir, c, 11);
    m->e = open_head(m->dir, c->version, m->r);
    for (size_t i = 0; i < checkpoint_count(m->e->own->checkpoint); i++) {
        /* the file is mapped read-only */
        struct tensor *t = (struct tensor *)(uintptr_t)checkpoint_at(m->e->own->checkpoint, i);
        void *copy = malloc(t->bytes);
        assert_non_null(copy);
        t->data = memcpy(copy, t->data, t->bytes);
    }
}

static void moved_close(struct moved *m)
{
    for (size_t i = 0; i < checkpoint_count(m->e->own->checkpoint); i++)
        free((void *)(uintptr_t)checkpoint_at(m->e->own->checkpoint, i)->data);
    reference_eagle_close(m->e);
    remove_dir(m->dir);
    if (m->target.r)
        small_close(&m->target);
    else
        reference_close(m->r);
}

/* A perturbed run changes every value by up to 2^-24, and here a value is a sum of at most 192 terms (3 T, in fc) and
 * some more steps. As in small_rounding_error, takes 8 times what 8 perturbed runs show. */
static double rounding_error(struct moved *m, double exact)
{
    double most = 0;
    for (m->options.perturb = 1; m->options.perturb <= 8; m->options.perturb++)
        most = fmax(most, fabs(losses_of(m, NULL).total - exact));
    m->options.perturb = 0;
    return 8 * most * 0x1p24 * 200 * 0x1p-53;
}

static void check_moved(const struct small_eagle *c, const struct loss *loss, const struct reference_sequence *list)
{
    struct moved m;
    struct reference_gradients g;
    moved_open(&m, c);
    m.options.loss = loss;
    m.list = list;
    OK(reference_eagle_gradients_open(&g, m.e, &err));
    m.error = rounding_error(&m, losses_of(&m, &g).total);
    assert_int_equal(g.count, 9 + c->feature_norms + c->bias + c->embeds + (c->version == 3 ? 4 : 0));
    for (size_t i = 0; i < g.count; i++) {
        char what[128];
        snprintf(what, sizeof what, "EAGLE-%d, %s", c->version, g.of[i].name);
        m.n = (size_t)g.of[i].rows * (size_t)g.of[i].cols;
        m.weights = (float *)(uintptr_t)checkpoint_find(m.e->own->checkpoint, g.of[i].name)->data;
        m.x = doubles(m.n);
        for (size_t j = 0; j < m.n; j++)
            m.x[j] = (double)m.weights[j];
        check_differences(&(struct differences){what, moved_loss, &m, 1}, m.x, g.of[i].data, m.n, 0);
        for (size_t j = 0; j < m.n; j++)
            m.weights[j] = (float)m.x[j];
        free(m.x);
    }
    reference_gradients_close(&g);
    moved_close(&m);
}

/* A loss whose gradients flow from depth to depth, which differences see */
static struct loss loss_with(const char *name, int depths, struct loss_terms terms)
{
    struct loss loss;
    OK(loss_named(&loss, name, depths, -1, &err));
    loss.terms = terms;
    loss.detached = 0;
    return loss;
}

TEST(gradients_are_those_of_differences)
{
    struct loss_terms all = {.data = 0.5, .soft = 0.25, .top = 0.75, .features = 0.5, .top_tokens = 3}, some = all;
    some.features = 0;
    struct loss aligned = loss_with("hass", 3, all), unrolled = loss_with("fastmtp", 2, all);
    struct loss aligned3 = loss_with("eagle3", 3, some), unrolled3 = loss_with("fastmtp", 3, some);
    for (size_t i = 0; i < COUNT(small_heads); i++) {
        check_moved(&small_heads[i], small_heads[i].version == 1 ? &aligned : &aligned3, small_sequences);
        check_moved(&small_heads[i], small_heads[i].version == 1 ? &unrolled : &unrolled3, small_masked);
    }
}

/* ---- aligned depths and drafts ----------------------------------------------------------------------------------- */

struct seen_rows {
    int first_layer, row;
    size_t vocab;
    double logits[STEPS][160], target[192 * ROWS];
    size_t target_rows;
};

static void keep(void *context, const struct reference_value *v)
{
    struct seen_rows *seen = context;
    if (!strcmp(v->name, "logits") && v->layer >= seen->first_layer)
        memcpy(seen->logits[v->layer - seen->first_layer], v->data + (size_t)seen->row * seen->vocab,
               seen->vocab * sizeof(double));
}

/* The target's rows that the head reads, by the values that reference_forward shows: after the norm, or the inputs of
 * layers 0, 1 and 2 */
static void see_target(void *context, const struct reference_value *v)
{
    struct seen_rows *seen = context;
    size_t T = (size_t)v->cols, at = !strcmp(v->name, "embed") ? 0 : (size_t)v->layer + 1;
    int is_last = !strcmp(v->name, "residual") && ++seen->row % 2 == 0; /* the second of a layer is its output */
    if (seen->target_rows == 1 ? !strcmp(v->name, "norm") : at < 3 && (!strcmp(v->name, "embed") || is_last))
        for (size_t s = 0; s < (size_t)v->rows; s++)
            memcpy(seen->target + (s * seen->target_rows + (seen->target_rows == 1 ? 0 : at)) * T, v->data + s * T,
                   T * sizeof(double));
}

/* If a text goes on as the head drafts, row N-1 of depth k has the logits of draft k: its sums have more terms, but
 * these are 0. */
static void check_aligned(const struct reference *r, const char *name, const char *dir, int version)
{
    enum { N = 7 };
    static struct seen_rows seen;
    static double logits[(N + STEPS) * 160];
    struct reference_eagle *e = open_head(dir, version, r);
    int32_t tokens[N + 1 + STEPS] = {5, 6, 7, 70, 9, 33, 17, 2};
    struct loss loss = loss_with(version == 3 ? "eagle3" : "hass", STEPS, (struct loss_terms){.data = 1});
    struct reference_options forward = {.hook = see_target, .hook_context = &seen};
    struct reference_losses losses;
    seen = (struct seen_rows){.first_layer = 3, .vocab = (size_t)reference_eagle_sizes(e).vocab,
                              .target_rows = version == 3 ? 3 : 1};
    OK(reference_forward(r, &forward, tokens, N, NULL, NULL, &err));
    OK(reference_eagle_draft(e, NULL, seen.target, tokens + 1, N, STEPS, tokens + N + 1, NULL, logits, &err));
    seen.row = N - 1;
    struct reference_sequence text = {tokens, N + 1 + STEPS, NULL};
    OK(reference_eagle_backward(e, &(struct reference_loss_options){.loss = &loss, .hook = keep, .hook_context = &seen},
                                &text, 1, &losses, NULL, &err));
    for (size_t k = 0; k < STEPS; k++)
        for (size_t i = 0; i < seen.vocab; i++)
            if (seen.logits[k][i] != logits[(N - 1 + k) * seen.vocab + i])
                fail_msg("%s: logit %zu of draft %zu is %.17g, and %.17g in a training step", name, i, k,
                         logits[(N - 1 + k) * seen.vocab + i], seen.logits[k][i]);
    reference_eagle_close(e);
}

TEST(aligned_depths_are_the_drafts)
{
    struct reference *r = open_tiny_reference("v3");
    for (size_t v = 0; v < 2; v++)
        check_aligned(r, files[v], heads[v], versions[v]);
    for (size_t v = 0; v < eagle_variant_count; v++) {
        char dir[64];
        eagle_variant(dir, &eagle_variants[v]);
        check_aligned(r, eagle_variants[v].name, dir, 3);
        remove_dir(dir);
    }
    reference_close(r);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

TEST(losses_and_heads_that_do_not_fit_are_refused)
{
    struct reference *r = open_tiny_reference("v3");
    struct reference_eagle *e = open_head(heads[1], 3, r), *other;
    struct reference_losses losses;
    struct loss loss = loss_with("eagle", 1, (struct loss_terms){.features = 1});
    struct reference_loss_options o = {.loss = &loss};
    char dir[64];
    REFUSED(reference_eagle_backward(e, &o, small_sequences, 1, &losses, NULL, &err), VB_BAD_ARGUMENT, "features");
    loss.terms = (struct loss_terms){.top = 1, .top_tokens = 97};
    REFUSED(reference_eagle_backward(e, &o, small_sequences, 1, &losses, NULL, &err), VB_BAD_ARGUMENT,
            "top 97 tokens, wanted 1 to 96");
    loss.terms = (struct loss_terms){.data = 1};
    REFUSED(reference_eagle_backward(e, &o, small_sequences + 2, 2, &losses, NULL, &err), VB_BAD_ARGUMENT,
            "at least three tokens");
    loss.depths = 0;
    REFUSED(reference_eagle_backward(e, &o, small_sequences, 1, &losses, NULL, &err), VB_BAD_ARGUMENT, "0 depths");
    REFUSED(reference_eagle_open(&other, heads[0], 3, r, &err), VB_BAD_CHECKPOINT, "fc.weight");
    small_eagle(dir,
                &(struct small_eagle){.version = 1, .target_width = 8, .target_vocab = 160, .d = 8, .heads = 1,
                                      .groups = 1, .dim = 4, .intermediate = 4},
                1);
    REFUSED(reference_eagle_open(&other, dir, 1, r, &err), VB_BAD_ARGUMENT, "8 numbers; those of");
    remove_dir(dir);
    reference_eagle_close(e);
    reference_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_those_of_the_official_code),
        cmocka_unit_test(norms_of_speculators_are_those_of_its_code),
        cmocka_unit_test(the_engines_passes_are_as_near_to_the_reference_as_f32_allows),
        cmocka_unit_test(losses_and_gradients_are_those_of_autograd),
        cmocka_unit_test(gradients_of_norms_of_speculators_are_those_of_autograd),
        cmocka_unit_test(gradients_are_those_of_differences),
        cmocka_unit_test(aligned_depths_are_the_drafts),
        cmocka_unit_test(losses_and_heads_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
