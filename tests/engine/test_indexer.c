/* tests/engine/test_indexer.c -- sparse attention in the engine: the tokens that it keeps are those of NumPy; while all
 * tokens are kept, every bit is that of the model without its indexer; under every convention the engine is as near to
 * the reference as f32 allows. test_bits, test_properties, test_batch, test_trees, test_session_save and others show
 * that nothing else reaches a bit. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <math.h>

#include "reference/reference.h"
#include "tests/support/golden.h"
#include "tests/support/tiny.h"

static const char *const names[] = {TINY_WITH_INDEXER(TINY_NAME)};

#define MOST 128

static int no_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* ---- kept tokens ---- */

struct sets {
    const struct golden *g;
    size_t rows, chosen; /* rows that were compared, and those among them that had to choose */
    size_t margins;
    int topk;
};

/* Compares the kept tokens of a layer with sets.L of the golden, which pads them with -1. */
static void compare_sets(void *context, const vb_tap *tap)
{
    struct sets *sets = context;
    char name[64];
    size_t count;
    if (strstr(tap->name, ".indexer.margin"))
        for (size_t r = 0; r < tap->rows; r++, sets->margins++)
            assert_true(((const float *)tap->data)[r * tap->stride] >= 0.0f);
    if (!strstr(tap->name, ".indexer.kept"))
        return;
    snprintf(name, sizeof name, "sets.%d", tap->layer);
    const char *want = golden_data(sets->g, name, &count);
    size_t width = json_array_size(json_object_get(json_object_get(sets->g->header, name), "shape")) == 2
                       ? (size_t)json_integer_value(json_array_get(json_object_get(json_object_get(sets->g->header,
                                                                                                   name),
                                                                                   "shape"),
                                                                   1))
                       : 0;
    assert_true(tap->integers && width >= (size_t)sets->topk);
    for (size_t r = 0; r < tap->rows; r++, sets->rows++) {
        size_t index = (size_t)tap->row[r].index;
        assert_int_equal(tap->inner, index + 1 < (size_t)sets->topk ? index + 1 : (size_t)sets->topk);
        for (size_t i = 0; i < tap->inner; i++) {
            int64_t place;
            int32_t have = ((const int32_t *)tap->data)[r * tap->stride + i];
            memcpy(&place, want + sizeof place * (index * width + i), sizeof place);
            if (have != place)
                fail_msg("%s, index %zu: token %zu that is kept is %d, NumPy's is %d", tap->name, index, i, (int)have,
                         (int)place);
        }
        sets->chosen += index >= (size_t)sets->topk;
    }
}

TEST(kept_tokens_are_those_of_numpy)
{
    for (size_t i = 0; i < COUNT(names); i++)
        for (int chunk = 0; chunk <= 7; chunk += 7) {
            vb_model *m = open_tiny(names[i]);
            struct golden g = golden_open(names[i]);
            struct sets sets = {.g = &g, .topk = m->config.index_topk};
            json_t *told = golden_json(names[i]);
            int32_t tokens[MOST];
            size_t n = (size_t)read_tokens(json_object_get(told, "tokens"), tokens);
            vb_session_options o = {.context = (int32_t)n, .threads = 2, .prefill_chunk = chunk, .tap = compare_sets,
                                    .tap_context = &sets, .tap_scores = chunk > 0};
            vb_session *s = open_session(m, &o, tokens, n);
            OK(vb_evaluate(s, 1, no_row, NULL, &err));
            vb_session_close(s);
            assert_true(sets.chosen > 100 && sets.rows > sets.chosen);
            assert_int_equal(sets.margins, sets.chosen);
            golden_close(&g);
            json_decref(told);
            vb_model_close(m);
        }
}

/* ---- while all tokens are kept ---- */

static void forget_indexer(struct mla *a) { a->has_indexer = 0; }

TEST(while_all_tokens_are_kept_the_bits_are_those_without_an_indexer)
{
    static struct record with, without, kept;
    for (size_t i = 0; i < COUNT(names); i++) {
        int32_t prompt[24];
        vb_model *m = open_tiny(names[i]), *other = open_tiny(names[i]), *sparse = open_tiny(names[i]);
        m->config.index_topk = 100;
        config_set_dims(&m->config);
        other->config.index_topk = 0;
        config_set_dims(&other->config);
        for (size_t l = 0; l < other->config.dims.layers; l++)
            forget_indexer(&other->layers[l].self_attn);
        forget_indexer(&other->mtp[0].layer.self_attn);
        random_tokens(m, i, prompt, COUNT(prompt));
        for (int t = 0; t < 3; t++) {
            vb_session_options o = {.context = 100, .threads = 1, .prefill = t ? "expanded" : NULL,
                                    .drafting = {.method = t == 2 ? "mtp-eagle" : "mtp-vanilla", .tokens = 3}};
            run(m, &o, prompt, COUNT(prompt), 60, &with);
            run(other, &o, prompt, COUNT(prompt), 60, &without);
            run(sparse, &o, prompt, COUNT(prompt), 60, &kept);
            check_same(names[i], &with, &without);
            assert_memory_equal(with.depth, without.depth, with.n * sizeof *with.depth);
            assert_true(memcmp(with.row, kept.row, sizeof *with.row)); /* the checkpoint itself keeps fewer tokens */
        }
        vb_model_close(m);
        vb_model_close(other);
        vb_model_close(sparse);
    }
}

/* ---- conventions ---- */

struct rows {
    double *logits;
    size_t V;
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct rows *r = context;
    (void)depth, (void)hidden;
    for (size_t v = 0; v < r->V; v++)
        r->logits[index * r->V + v] = (double)logits[v];
    return 0;
}

/* Sets number i of all target conventions of an indexer that are not a default; 0 past the last. */
static int setting(size_t i, char list[64])
{
    for (size_t c = FIRST_TARGET_CONVENTION; c < CONVENTIONS; c++)
        for (int v = 1; convention_row(c)->of_indexer && convention_row(c)->values[v]; v++)
            if (i-- == 0) {
                snprintf(list, 64, "%s=%s", convention_row(c)->name, convention_row(c)->values[v]);
                return 1;
            }
    return 0;
}

/* Compares the engine with the reference. Returns how far the convention moves the reference, in units of the spread of
 * perturbed references with the default conventions. */
static double compare_setting(const char *name, const char *list, const int32_t *tokens, size_t n)
{
    char dir[64];
    struct reference *ref;
    vb_model *m;
    double spread = 0;
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    OK(reference_open(&ref, dir, NULL, &err));
    OK(vb_model_open(&m, dir, &(vb_model_options){.conventions = list}, &err));
    size_t V = (size_t)vb_vocab_size(m);
    double *exact = calloc(n * V, sizeof *exact), *plain = calloc(n * V, sizeof *plain),
           *other = calloc(n * V, sizeof *other);
    assert_true(exact && plain && other);
    struct reference_options o = {.conventions = {{0}}};
    struct rows r = {other, V};
    OK(reference_forward(ref, &o, tokens, (int)n, NULL, plain, &err));
    for (o.perturb = 1; o.perturb <= 4; o.perturb++) {
        OK(reference_forward(ref, &o, tokens, (int)n, NULL, other, &err));
        spread = fmax(spread, distance(other, plain, n * V));
    }
    o.perturb = 0;
    OK(conventions_parse(&o.conventions, list, &err));
    OK(reference_forward(ref, &o, tokens, (int)n, NULL, exact, &err));
    for (int chunk = 0; chunk <= 9; chunk += 9) {
        vb_session *s = open_session(m,
                                     &(vb_session_options){.context = (int32_t)n, .threads = 1, .prefill_chunk = chunk},
                                     tokens, n);
        OK(vb_evaluate(s, 0, take_row, &r, &err));
        vb_session_close(s);
        double within = distance(other, exact, n * V) / spread;
        if (!(within <= 8.0))
            fail_msg("%s, %s: the engine is %.3g times as far from the reference as perturbed references, allowed are "
                     "8",
                     name, list, within);
    }
    double changes = distance(plain, exact, n * V) / spread;
    free(exact);
    free(plain);
    free(other);
    vb_model_close(m);
    reference_close(ref);
    return changes;
}

TEST(under_every_convention_the_engine_is_as_near_to_the_reference_as_f32_allows)
{
    char list[64];
    for (size_t i = 0, c = 0; setting(c, list); c++) {
        double changes = 0;
        for (i = 0; i < COUNT(names); i++) {
            json_t *told = golden_json(names[i]);
            int32_t tokens[MOST];
            size_t n = (size_t)read_tokens(json_object_get(told, "tokens"), tokens);
            changes = fmax(changes, compare_setting(names[i], list, tokens, n));
            json_decref(told);
        }
        if (!(changes > 100.0))
            fail_msg("%s changes no checkpoint by more than %.3g times the rounding", list, changes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_tokens_are_those_of_numpy),
        cmocka_unit_test(while_all_tokens_are_kept_the_bits_are_those_without_an_indexer),
        cmocka_unit_test(under_every_convention_the_engine_is_as_near_to_the_reference_as_f32_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
