/* tests/engine/test_truth.c -- the engine against the truth: NumPy's numbers in golden/truth, and reference/. Runs in
 * the repository's root.
 *
 * The bound is measured, not chosen: 20 runs of the reference whose every intermediate value is perturbed by up to half
 * an f32 ulp say how far an f32 program may be away on this input; the engine may be at most 8 times as far. */
#include "tests/support/engine_support.h"

#include <math.h>

#include "reference/reference.h"
#include "tests/support/references.h"
#include "tests/support/tiny.h"

#define MOST_TOKENS 128
#define PERTURBED_RUNS 20
#define TIMES 8.0

static const char *const names[] = {TINY_CHECKPOINTS(TINY_NAME) TINY_WITH_INDEXER(TINY_NAME) TINY_SHAPES(TINY_NAME)};

/* rows [n, V] and [n, d], of the engine or of the reference */
struct rows {
    double *logits, *hidden;
    size_t V, d, n;
};

static void rows_open(struct rows *r, size_t V, size_t d, size_t n)
{
    *r = (struct rows){calloc(n * V, sizeof(double)), calloc(n * d, sizeof(double)), V, d, n};
    assert_true(r->logits && r->hidden);
}

static void rows_close(struct rows *r)
{
    free(r->logits);
    free(r->hidden);
}

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct rows *r = context;
    (void)depth;
    assert_true(index < r->n);
    for (size_t v = 0; v < r->V; v++)
        r->logits[index * r->V + v] = (double)logits[v];
    for (size_t i = 0; i < r->d; i++)
        r->hidden[index * r->d + i] = (double)hidden[i];
    return 0;
}

/* how far so many perturbed runs are from the unperturbed one, at most; all attend to the positions that the latter
 * chooses */
static void measure_spread(const struct reference *ref, struct conventions conventions, uint64_t runs,
                           const int32_t *tokens, size_t n, double *logits, double *hidden)
{
    struct reference_options plain = {.conventions = conventions};
    struct rows exact, other;
    size_t V = (size_t)reference_config(ref)->vocab_size, d = (size_t)reference_config(ref)->hidden_size;
    rows_open(&exact, V, d, n);
    rows_open(&other, V, d, n);
    *logits = *hidden = 0;
    OK(reference_forward(ref, &plain, tokens, (int)n, exact.hidden, exact.logits, &err));
    int32_t *sets = reference_sets(ref, &plain, tokens, (int)n);
    for (uint64_t seed = 1; seed <= runs; seed++) {
        struct reference_options o = {.conventions = conventions, .perturb = seed, .sets = sets, .set_tokens = (int)n,
                                      .set_layers = reference_config(ref)->num_hidden_layers};
        OK(reference_forward(ref, &o, tokens, (int)n, other.hidden, other.logits, &err));
        *logits = fmax(*logits, distance(other.logits, exact.logits, n * V));
        *hidden = fmax(*hidden, distance(other.hidden, exact.hidden, n * d));
    }
    free(sets);
    rows_close(&exact);
    rows_close(&other);
}

static void check_within(const char *what, double is, double spread)
{
    if (getenv("VERBOSE"))
        print_message("%s: %.3g, perturbed references %.3g: %.2f times\n", what, is, spread, is / spread);
    if (!(is <= TIMES * spread))
        fail_msg("%s: %.3g away from the truth, perturbed references are %.3g away: %.1f times, allowed are %g", what,
                 is, spread, is / spread, TIMES);
}

TEST(logits_and_hidden_rows_are_as_near_to_the_truth_as_f32_allows)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        struct reference *ref;
        char dir[64], what[96];
        int32_t tokens[MOST_TOKENS];
        double logits, hidden;
        snprintf(dir, sizeof dir, "golden/tiny/%s", names[i]);
        OK(reference_open(&ref, dir, NULL, &err));
        json_t *told = golden_json(names[i]);
        struct golden g = golden_open(names[i]);
        size_t n = (size_t)read_tokens(json_object_get(told, "tokens"), tokens), count;
        measure_spread(ref, (struct conventions){{0}}, PERTURBED_RUNS, tokens, n, &logits, &hidden);
        for (const char *const *isa = isas_here(); *isa; isa++)
            for (int chunk = 0; chunk <= 7; chunk += 7) {
                struct rows r;
                vb_session_options o = {.context = (int32_t)n, .threads = 1, .isa = *isa, .prefill_chunk = chunk};
                rows_open(&r, (size_t)vb_vocab_size(m), (size_t)vb_hidden_size(m), n);
                vb_session *s = open_session(m, &o, tokens, n);
                OK(vb_evaluate(s, 0, take_row, &r, &err));
                snprintf(what, sizeof what, "%s, %s, chunk %d: logits", names[i], *isa, chunk);
                check_within(what, distance(r.logits, golden_data(&g, "logits", &count), n * r.V), logits);
                assert_int_equal(count, n * r.V);
                snprintf(what, sizeof what, "%s, %s, chunk %d: hidden", names[i], *isa, chunk);
                check_within(what, distance(r.hidden, golden_data(&g, "hidden", &count), n * r.d), hidden);
                assert_int_equal(count, n * r.d);
                vb_session_close(s);
                rows_close(&r);
            }
        golden_close(&g);
        json_decref(told);
        reference_close(ref);
        vb_model_close(m);
    }
}

/* Longer than one block of attention, and than two: blocks are joined by a rule of their own. */
TEST(long_timelines_are_as_near_to_the_reference_as_f32_allows)
{
    enum { LONG = 530 };
    static int32_t tokens[LONG];
    vb_model *m = open_tiny("v3");
    struct reference *ref;
    struct rows r, exact;
    double logits, hidden;
    vb_session_options o = {.context = LONG, .threads = 1, .prefill_chunk = 100};
    OK(reference_open(&ref, "golden/tiny/v3", NULL, &err));
    random_tokens(m, 31, tokens, LONG);
    measure_spread(ref, (struct conventions){{0}}, 3, tokens, LONG, &logits, &hidden);
    rows_open(&exact, (size_t)vb_vocab_size(m), (size_t)vb_hidden_size(m), LONG);
    rows_open(&r, exact.V, exact.d, LONG);
    OK(reference_forward(ref, NULL, tokens, LONG, exact.hidden, exact.logits, &err));
    vb_session *s = open_session(m, &o, tokens, LONG);
    OK(vb_evaluate(s, 0, take_row, &r, &err));
    check_within("530 tokens: logits", distance(r.logits, exact.logits, LONG * r.V), logits);
    check_within("530 tokens: hidden", distance(r.hidden, exact.hidden, LONG * r.d), hidden);
    vb_session_close(s);
    rows_close(&r);
    rows_close(&exact);
    reference_close(ref);
    vb_model_close(m);
}

TEST(greedy_tokens_are_the_truths)
{
    static struct record r;
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        json_t *told = golden_json(names[i]);
        int32_t tokens[MOST_TOKENS], greedy[64];
        size_t n = (size_t)read_tokens(json_object_get(told, "tokens"), tokens);
        size_t count = (size_t)read_tokens(json_object_get(told, "greedy"), greedy);
        assert_true(count >= 16);
        for (const char *const *isa = isas_here(); *isa; isa++)
            for (int k = -1; k < 2; k++) {
                vb_session_options o = {.context = (int32_t)(n + count), .threads = 1, .isa = *isa,
                                        .drafting.method = k < 0 || !vb_mtp_modules(m) ? "none"
                                                                                       : mtp_method((size_t)k)};
                run(m, &o, tokens, n, count, &r);
                for (size_t t = 0; t < count; t++)
                    if (r.token[t] != greedy[t])
                        fail_msg("%s, %s, %s: token %zu is %d, the truth is %d", names[i], *isa, o.drafting.method, t,
                                 (int)r.token[t], (int)greedy[t]);
            }
        json_decref(told);
        vb_model_close(m);
    }
}

TEST(drafts_are_the_truths)
{
    size_t checked = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        json_t *told = golden_json(names[i]), *at;
        int32_t tokens[MOST_TOKENS], want[VB_MAX_DRAFT], drafts[VB_MAX_DRAFT], next, n;
        size_t j;
        read_tokens(json_object_get(told, "tokens"), tokens);
        json_array_foreach(json_object_get(told, "drafts"), j, at)
            for (size_t method = 0; method < 2; method++)
                for (const char *const *isa = isas_here(); *isa && has_turn(j + method, 3); isa++) {
                    size_t count = (size_t)json_integer_value(json_object_get(at, "n"));
                    json_t *list = json_object_get(json_object_get(at, mtp_method(method)), "drafts");
                    int most = read_tokens(list, want);
                    assert_int_equal(most, 6);
                    int every_K = i < TINY_COUNT && strcmp(*isa, "scalar"); /* slow, and of the same bits (test_bits) */
                    for (int K = every_K ? 1 : most; K <= most; K++, checked++) { /* shorter drafts have less to
                                                                                     share */
                        vb_session_options o = {.context = (int32_t)count + 16, .threads = 1, .isa = *isa,
                                                .drafting.tokens = K, .drafting.method = mtp_method(method),
                                                .prefill_chunk = K % 2 ? 0 : 3};
                        vb_session *s = open_session(m, &o, tokens, count);
                        OK(vb_draft(s, &next, drafts, &n, &err));
                        assert_int_equal(next, json_integer_value(json_object_get(at, "next")));
                        assert_int_equal(n, K);
                        for (int k = 0; k < K; k++)
                            if (drafts[k] != want[k])
                                fail_msg("%s, %s, %s, K %d, after %zu tokens: draft %d is %d, the truth is %d",
                                         names[i], o.drafting.method, *isa, K, count, k + 1, (int)drafts[k],
                                         (int)want[k]);
                        vb_session_close(s);
                    }
                }
        json_decref(told);
        vb_model_close(m);
    }
    print_message("%zu drafts\n", checked);
    assert_true(checked >= 10 * 2 * 6); /* in a third of them, too */
}

/* Longer drafts than the golden has, and the model's own text: the reference says what they are. A tie within rounding
 * may fall the other way, so the engine's draft must be within the reference's rounding of the best. */
TEST(long_drafts_are_the_references)
{
    static const char *const with_mtp[] = {"v3", "v3-mtp3", "glm"};
    for (size_t i = 0; i < COUNT(with_mtp); i++) {
        vb_model *m = open_tiny(with_mtp[i]);
        struct reference *ref;
        char dir[64];
        int32_t tokens[24], next, drafts[VB_MAX_DRAFT], want[VB_MAX_DRAFT], n;
        size_t V = (size_t)vb_vocab_size(m);
        double *logits = calloc(VB_MAX_DRAFT * V, sizeof *logits);
        snprintf(dir, sizeof dir, "golden/tiny/%s", with_mtp[i]);
        OK(reference_open(&ref, dir, NULL, &err));
        for (uint64_t seed = 0; seed < 6; seed++)
            for (size_t method = 0; method < 2; method++) {
                vb_session_options o = {.context = 64, .threads = 1, .drafting.tokens = VB_MAX_DRAFT,
                                        .drafting.method = mtp_method(method)};
                size_t count = 1 + (size_t)seed * 4;
                random_tokens(m, seed, tokens, count);
                vb_session *s = open_session(m, &o, tokens, count);
                OK(vb_draft(s, &next, drafts, &n, &err));
                assert_int_equal(n, VB_MAX_DRAFT);
                OK(reference_draft(ref, NULL, tokens, (int)count, next, (enum reference_draft_method)method,
                                   VB_MAX_DRAFT, want, logits, &err));
                for (int k = 0; k < VB_MAX_DRAFT; k++) {
                    const double *row = logits + (size_t)k * V;
                    if (drafts[k] == want[k])
                        continue;
                    if (!(row[want[k]] - row[drafts[k]] < 1e-4 * fabs(row[want[k]])))
                        fail_msg("%s, %s after %zu tokens: draft %d is %d (%g), the reference has %d (%g)", with_mtp[i],
                                 o.drafting.method, count, k + 1, (int)drafts[k], row[drafts[k]], (int)want[k],
                                 row[want[k]]);
                    break; /* from here on the two go different ways */
                }
                vb_session_close(s);
            }
        free(logits);
        reference_close(ref);
        vb_model_close(m);
    }
}

/* One key of config.json or one convention changed; the logits of one row, which is the last one if the variant does
 * not name it. */
static void check_variant(const struct golden *g, const char *label, json_t *variant)
{
    const char *name = json_string_value(json_object_get(variant, "checkpoint")), *key;
    json_t *told = golden_json(name), *row = json_object_get(variant, "row"), *value;
    char dir[64], from[64], path[128], list[64] = "";
    int32_t tokens[MOST_TOKENS];
    double spread, hidden;
    struct conventions conventions = {{0}};
    struct reference *ref;
    struct rows r;
    snprintf(from, sizeof from, "golden/tiny/%s", name);
    copy_checkpoint(dir, from);
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *config = json_load_file(path, 0, NULL);
    json_object_update(config, json_object_get(variant, "config"));
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_object_foreach(json_object_get(variant, "conventions"), key, value)
        snprintf(list, sizeof list, "%s=%s", key, json_string_value(value));
    OK(conventions_parse(&conventions, list, &err));
    size_t n = (size_t)read_tokens(json_object_get(told, "tokens"), tokens), count,
           at = row ? (size_t)json_integer_value(row) : n - 1;
    OK(reference_open(&ref, dir, NULL, &err));
    measure_spread(ref, conventions, 5, tokens, n, &spread, &hidden); /* fewer: a smaller bound, if anything */
    vb_model *m;
    OK(vb_model_open(&m, dir, &(vb_model_options){.conventions = list}, &err));
    vb_session_options o = {.context = (int32_t)n, .threads = 1};
    rows_open(&r, (size_t)vb_vocab_size(m), (size_t)vb_hidden_size(m), n);
    vb_session *s = open_session(m, &o, tokens, n);
    OK(vb_evaluate(s, 0, take_row, &r, &err));
    check_within(label, distance(r.logits + at * r.V, golden_data(g, label, &count), r.V), spread);
    assert_int_equal(count, r.V);
    vb_session_close(s);
    rows_close(&r);
    vb_model_close(m);
    reference_close(ref);
    json_decref(config);
    json_decref(told);
    remove_dir(dir);
}

static void check_variants(const char *file, size_t count)
{
    json_t *variants = golden_json(file), *variant;
    struct golden g = golden_open(file);
    const char *label;
    size_t checked = 0;
    json_object_foreach(variants, label, variant)
        if (!json_object_get(json_object_get(variant, "config"), "index_topk_pattern")) { /* with fewer indexers,
                                                                                             tensors are left over */
            check_variant(&g, label, variant);
            checked++;
        }
    assert_int_equal(checked, count);
    golden_close(&g);
    json_decref(variants);
}

TEST(a_changed_key_or_convention_changes_the_logits_as_the_truth_says)
{
    check_variants("variants", 14);
    check_variants("indexer-variants", 17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_hidden_rows_are_as_near_to_the_truth_as_f32_allows),
        cmocka_unit_test(long_timelines_are_as_near_to_the_reference_as_f32_allows),
        cmocka_unit_test(greedy_tokens_are_the_truths),
        cmocka_unit_test(drafts_are_the_truths),
        cmocka_unit_test(long_drafts_are_the_references),
        cmocka_unit_test(a_changed_key_or_convention_changes_the_logits_as_the_truth_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
