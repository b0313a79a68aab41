/* tests/engine/test_quantized.c -- quantized weights: the engine computes what the reference does, of every type of a
 * GGUF file and whatever is mixed in it, and in the precisions q8 and q4 that quantize other weights. Runs in the
 * repository's root. */
#include "tests/support/engine_support.h"

#include <math.h>

#include "reference/reference.h"
#include "tests/support/golden.h"
#include "tests/support/gguf.h"
#include "tests/support/quantized.h"

#define LONG 40
#define SHORT 3
#define PROMPTS 12
#define BOUNDED 3 /* prompts whose spread is measured */
#define RUNS 7

/* ---- rows of logits ---------------------------------------------------------------------------------------------- */

struct rows {
    double *at; /* [1 + depths, n, V]: the target's, then each module's */
    size_t n, V, all;
    int depths;
};

static struct rows new_rows(const vb_model *m, size_t n)
{
    int depths = vb_mtp_modules(m);
    size_t V = (size_t)vb_vocab_size(m), all = (size_t)(1 + depths) * n * V;
    struct rows r = {calloc(all, sizeof(double)), n, V, all, depths};
    assert_non_null(r.at);
    return r;
}

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct rows *r = context;
    (void)hidden;
    for (size_t v = 0; v < r->V; v++)
        r->at[(((size_t)depth + 1) * r->n + index) * r->V + v] = (double)logits[v];
    return 0;
}

static int expanded; /* nonzero: all rows are computed with prefill expanded */

static void engine_rows(const vb_model *m, const int32_t *tokens, struct rows *r)
{
    vb_session_options o = {.context = (int32_t)r->n, .threads = 1, .prefill_chunk = 7,
                            .prefill = expanded ? "expanded" : NULL};
    vb_session *s = open_session(m, &o, tokens, r->n);
    memset(r->at, 0, r->all * sizeof *r->at);
    OK(vb_evaluate(s, r->depths, take_row, r, &err));
    vb_session_close(s);
}

static void take_logits(void *context, const struct reference_value *v)
{
    struct rows *r = context;
    if (!strcmp(v->name, "logits") && v->layer < 0)
        memcpy(r->at, v->data, (size_t)v->rows * r->V * sizeof *r->at);
}

static void reference_rows(const struct reference *ref, struct reference_options o, const int32_t *tokens,
                           struct rows *r)
{
    o.hook = take_logits;
    o.hook_context = r;
    o.expanded = expanded ? (int)r->n : 0;
    OK(reference_modules(ref, &o, tokens, (int)r->n, r->depths, r->at + r->n * r->V, &err));
}

/* ---- how far they may be apart ----------------------------------------------------------------------------------- */

struct subject {
    const char *path, *precision;
    vb_model *m;
    struct reference *ref;
    struct reference_options exact;
};

static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

/* How far perturbed runs are: the median, for in some of them a token goes to another expert, and they tell nothing. */
static double spread_of(const struct subject *s, struct reference_options o, const int32_t *tokens,
                        const struct rows *exact)
{
    struct rows r = new_rows(s->m, exact->n);
    double far[RUNS];
    for (size_t run = 0; run < RUNS; run++) {
        o.perturb = run + 1;
        reference_rows(s->ref, o, tokens, &r);
        far[run] = distance(r.at, exact->at, r.all);
    }
    free(r.at);
    qsort(far, RUNS, sizeof *far, by_size);
    return far[RUNS / 2];
}

/* A whole text. Of some ten thousand numbers that are rounded to a step of their group, one or another lies so near to
 * a tie that f32's error turns it, which moves the sums by a step times a weight, and so turns others: here, and in the
 * reference's perturbed runs, which move what they round by more than f32 errs (reference.h). The bound is 8 times
 * their spread. */
static void compare_text(const struct subject *s)
{
    int32_t tokens[LONG];
    struct rows exact = new_rows(s->m, LONG), r = new_rows(s->m, LONG);
    random_tokens(s->m, 11, tokens, LONG);
    reference_rows(s->ref, s->exact, tokens, &exact);
    double spread = spread_of(s, s->exact, tokens, &exact);
    engine_rows(s->m, tokens, &r);
    double within = distance(r.at, exact.at, r.all) / spread;
    if (getenv("VERBOSE"))
        print_message("%-30s %-4s %d tokens: engine %.2f times the spread %.3g\n", s->path, s->precision, LONG, within,
                      spread);
    if (!(within <= 8.0))
        fail_msg("%s, %s: the engine is %.3g times as far from the reference as perturbed references, allowed are 8",
                 s->path, s->precision, within);
    free(exact.at);
    free(r.at);
}

/* Many prompts of three tokens. In most of them no rounding is turned: some thousand numbers are rounded, and one in
 * some thirty thousand lies within f32's error, 2^-22 of its group's largest, of one of the ties, 2^-7 of it apart.
 * There the engine is as near as f32 brings it, 8 spreads of a reference that rounds no x, a thousand times nearer than
 * rounding moves the result. A rounding that is missing, one too many, or a wrong sum moves every prompt: so a third is
 * enough. */
static void compare_prompts(const struct subject *s)
{
    int32_t tokens[SHORT];
    size_t near = 0;
    double nearest_change = INFINITY, bound = 0, far[PROMPTS];
    struct rows exact = new_rows(s->m, SHORT), plain = new_rows(s->m, SHORT), r = new_rows(s->m, SHORT);
    struct reference_options as_is = s->exact;
    as_is.x_as_is = 1;
    for (uint64_t p = 0; p < PROMPTS; p++) {
        random_tokens(s->m, 100 + p, tokens, SHORT);
        reference_rows(s->ref, s->exact, tokens, &exact);
        reference_rows(s->ref, as_is, tokens, &plain);
        if (p < BOUNDED)
            bound = fmax(bound, 8.0 * spread_of(s, as_is, tokens, &plain));
        engine_rows(s->m, tokens, &r);
        far[p] = distance(r.at, exact.at, r.all);
        nearest_change = fmin(nearest_change, distance(plain.at, exact.at, r.all));
    }
    for (size_t p = 0; p < PROMPTS; p++)
        near += far[p] <= bound;
    if (getenv("VERBOSE"))
        print_message("%-30s %-4s %zu of %d prompts within %.3g; rounding x changes each by %.3g or more\n", s->path,
                      s->precision, near, PROMPTS, bound, nearest_change);
    if (near < PROMPTS / 3)
        fail_msg("%s, %s: only %zu of %d prompts are within %.3g of the reference, what f32 may cost", s->path,
                 s->precision, near, PROMPTS, bound);
    if (!(nearest_change > 100.0 * bound)) /* else it would not be seen whether the engine rounds at all */
        fail_msg("%s, %s: a prompt is changed by %.3g only, rounding in f32 by up to %.3g", s->path, s->precision,
                 nearest_change, bound);
    free(exact.at);
    free(plain.at);
    free(r.at);
}

/* with_text: nonzero to also run a long text, not only the short prompts */
static void compare_some(const char *path, const char *precision, int with_text)
{
    struct subject s = {.path = path, .precision = precision};
    vb_model_options o = {.precision = precision};
    OK(vb_model_open(&s.m, path, &o, &err));
    OK(reference_open(&s.ref, path, NULL, &err));
    OK(precision_parse(&s.exact.precision, NULL, precision, &err));
    if (with_text)
        compare_text(&s);
    compare_prompts(&s);
    reference_close(s.ref);
    vb_model_close(s.m);
}

static void compare(const char *path, const char *precision) { compare_some(path, precision, 1); }

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void compare_file(const struct quantized_model *q, const char *precision, int with_text)
{
    char dir[64], path[96], name[32];
    make_dir(dir);
    snprintf(name, sizeof name, "%s.gguf", q->name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    write_quantized(dir, name, *q);
    compare_some(path, precision, with_text);
    remove_dir(dir);
}

/* Short prompts alone: for every type, checkasm compares the kernels of more rows with those of one. */
TEST(the_engine_computes_what_the_reference_does_of_every_type)
{
    for (size_t i = 3; i < COUNT(block_types); i++) {
        const char *name = block_types[i].name;
        if (!has_turn(i, 2))
            continue;
        compare_file(&(struct quantized_model){.name = name, .types = {name}, .k_b = name, .v_b = name,
                                               .large = block_types[i].numbers > 32}, "f32", 0);
    }
}

/* As converters mix them; attention's two parts in each form, and the rest that is not quantized in each precision. */
TEST(the_engine_computes_what_the_reference_does_of_mixed_types)
{
    static const struct quantized_model models[] = {
        {.name = "unsplit", .types = {"Q8_0", "Q4_0", "Q5_1"}, .embedding = "Q5_1", .gate = "Q8_0"},
        {.name = "half-1", .types = {"Q5_0", "BF16", "Q4_0"}, .k_b = "Q5_1", .v_b = "BF16"},
        {.name = "half-2", .types = {"F16", "Q8_0", "F32"}, .k_b = "F16", .v_b = "Q5_0", .embedding = "Q8_0",
         .tied = 1},
        {.name = "large", .types = {"Q4_K", "Q6_K", "F32", "Q5_K"}, .k_b = "Q8_0", .v_b = "Q6_K", .embedding = "Q6_K",
         .tied = 1, .large = 1},
        {.name = "unsplit-large", .types = {"Q5_K", "Q4_K", "BF16"}, .embedding = "Q4_K", .gate = "Q6_K", .large = 1},
    };
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"};
    for (size_t i = 0; i < COUNT(models); i++)
        for (size_t k = 0; k < (models[i].large || !models[i].k_b ? 2 : COUNT(precisions)); k++)
            if (has_turn(i + k, 2))
                compare_file(&models[i], precisions[k], 1);
}

/* ---- the file that NumPy has computed too ------------------------------------------------------------------------ */

#define EVERY_TYPE "golden/gguf/quantized.gguf"

static void check_part(const struct golden *g, size_t prompt, const char *part, const double *ours)
{
    char name[64];
    size_t count;
    snprintf(name, sizeof name, "%zu.%s", prompt, part);
    const void *theirs = golden_data(g, name, &count);
    double away = distance(ours, theirs, count);
    if (getenv("VERBOSE"))
        print_message("%s: %.3g away\n", name, away);
    if (!(away <= 1e-9))
        fail_msg("%s: %.3g of the largest value away from NumPy, allowed is 1e-9", name, away);
}

TEST(the_reference_computes_what_numpy_does_of_a_file_of_every_type)
{
    json_t *facts = golden_json("quantized"), *fact;
    struct golden g = golden_open("quantized");
    struct reference *ref;
    size_t prompt, V, D;
    OK(reference_open(&ref, EVERY_TYPE, NULL, &err));
    V = (size_t)reference_config(ref)->vocab_size;
    D = (size_t)reference_config(ref)->hidden_size;
    json_array_foreach(facts, prompt, fact)
    {
        int32_t tokens[8];
        int n = read_tokens(json_object_get(fact, "tokens"), tokens);
        double *logits = calloc((size_t)n * V, sizeof *logits), *hidden = calloc((size_t)n * D, sizeof *hidden);
        assert_true(logits && hidden);
        OK(reference_forward(ref, NULL, tokens, n, hidden, logits, &err));
        check_part(&g, prompt, "logits", logits);
        check_part(&g, prompt, "hidden", hidden);
        OK(reference_modules(ref, NULL, tokens, n, 1, logits, &err));
        check_part(&g, prompt, "module.logits", logits);
        free(logits);
        free(hidden);
    }
    assert_true(prompt > 1);
    reference_close(ref);
    golden_close(&g);
    json_decref(facts);
}

TEST(the_engine_computes_what_the_reference_does_of_that_file_in_every_precision)
{
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"};
    for (size_t i = 0; i < COUNT(precisions); i++)
        compare(EVERY_TYPE, precisions[i]);
}

/* Latents are quantized for values; keys are computed from decoded weights, and neither queries nor latents are
 * quantized for them. */
TEST(with_prefill_expanded_the_engine_computes_what_the_reference_does)
{
    expanded = 1;
    compare(EVERY_TYPE, "f32");
    compare("golden/tiny/v3-mtp3", "q4");
    compare_file(&(struct quantized_model){.name = "half", .types = {"Q5_0", "BF16", "Q4_0"}, .k_b = "Q5_1",
                                           .v_b = "BF16"},
                 "bf16", 1);
    expanded = 0;
}

/* ---- other checkpoints ------------------------------------------------------------------------------------------- */

/* Of their odd widths some are no multiple of 32 (in v2 and moonlight all): what is summed over them stays as it is
 * stored. */
TEST(the_engine_computes_what_the_reference_does_in_q8_and_q4)
{
    static const char *const names[] = {"v3-mtp3", "v3", "v2-lite", "glm"};
    char path[64];
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "golden/tiny/%s", names[i]);
        compare(path, has_turn(i, 2) ? "q8" : "q4");
        if (has_turn(i, 2) && has_turn(i + 1, 2))
            compare(path, "q4");
    }
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

#define DRAFTED 12 /* tokens before a draft */
#define K 4

/* A draft is only an argmax: those are compared whose margin is above what a turned rounding does, and no later
 * ones. */
static size_t compare_drafts(const struct subject *s, uint64_t seed, size_t method)
{
    int32_t tokens[DRAFTED], next, have[VB_MAX_DRAFT], want[K], n;
    size_t V = (size_t)vb_vocab_size(s->m), equal = 0;
    double *logits = calloc(K * V, sizeof *logits);
    assert_non_null(logits);
    random_tokens(s->m, seed, tokens, DRAFTED);
    vb_session_options o = {.context = DRAFTED + K + 1, .threads = 1, .drafting.method = mtp_method(method),
                            .drafting.tokens = K};
    vb_session *session = open_session(s->m, &o, tokens, DRAFTED);
    OK(vb_draft(session, &next, have, &n, &err));
    vb_session_close(session);
    enum reference_draft_method m = method ? REFERENCE_MTP_EAGLE : REFERENCE_MTP_VANILLA;
    OK(reference_draft(s->ref, &s->exact, tokens, DRAFTED, next, m, K, want, logits, &err));
    for (int k = 0; k < K; k++, equal++) {
        double best = logits[(size_t)k * V + (size_t)want[k]], second = -INFINITY;
        for (size_t v = 0; v < V; v++)
            if (v != (size_t)want[k])
                second = fmax(second, logits[(size_t)k * V + v]);
        if (best - second < 0.05 * fabs(best))
            break;
        if (have[k] != want[k])
            fail_msg("%s, %s, %s: draft %d is %d, the reference has %d", s->path, s->precision, mtp_method(method),
                     k + 1, (int)have[k], (int)want[k]);
    }
    free(logits);
    return equal;
}

TEST(drafts_in_q8_and_q4_are_those_of_the_reference)
{
    static const char *const names[] = {"golden/tiny/v3-mtp3", "golden/tiny/v3", "golden/tiny/glm"};
    static const char *const precisions[] = {"q8", "q4"};
    for (size_t i = 0; i < COUNT(names) * COUNT(precisions); i++) {
        struct subject s = {.path = names[i / 2], .precision = precisions[i % 2]};
        vb_model_options o = {.precision = s.precision};
        size_t equal = 0;
        if (!has_turn(i / 2 + i, 2))
            continue;
        OK(vb_model_open(&s.m, s.path, &o, &err));
        OK(reference_open(&s.ref, s.path, NULL, &err));
        OK(precision_parse(&s.exact.precision, NULL, s.precision, &err));
        for (uint64_t seed = 0; seed < 8; seed++)
            for (size_t method = 0; method < 2; method++)
                equal += compare_drafts(&s, seed, method);
        if (getenv("VERBOSE"))
            print_message("%-30s %-4s %zu drafts compared, of %d\n", s.path, s.precision, equal, 16 * K);
        assert_true(equal > 16);
        reference_close(s.ref);
        vb_model_close(s.m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_engine_computes_what_the_reference_does_of_every_type),
        cmocka_unit_test(the_engine_computes_what_the_reference_does_of_mixed_types),
        cmocka_unit_test(the_reference_computes_what_numpy_does_of_a_file_of_every_type),
        cmocka_unit_test(the_engine_computes_what_the_reference_does_of_that_file_in_every_precision),
        cmocka_unit_test(with_prefill_expanded_the_engine_computes_what_the_reference_does),
        cmocka_unit_test(the_engine_computes_what_the_reference_does_in_q8_and_q4),
        cmocka_unit_test(drafts_in_q8_and_q4_are_those_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
