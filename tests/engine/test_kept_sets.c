/* tests/engine/test_kept_sets.c -- forced kept sets of sparse attention. Sets that equal the indexer's change no bit.
 * With other sets, the engine is as near to the reference with these sets as f32 allows, and no bit depends on chunks,
 * drafts, threads, batches or saved files. Runs in the repository's root. */
#include "tests/support/batch.h"
#include "tests/support/references.h"
#include "tests/support/tiny.h"

#include <math.h>

static const char *const names[] = {TINY_WITH_INDEXER(TINY_NAME)};

#define PROMPT 29
#define NEW 14
#define TOKENS (PROMPT + NEW)

/* Sets of TOKENS tokens; the layer after the target's is MTP depth 0. */
struct sets {
    vb_routes routes;
    int32_t *kept;
    size_t chosen, seen; /* counted by see_set: sets that had to be chosen; sets that were reported */
    int compares;        /* see_set compares with `kept`; 0: it writes to `kept` */
};

static struct sets sets_of(const vb_model *m)
{
    struct sets s = {0};
    vb_model_routes(m, &s.routes);
    s.routes.layers++;
    s.routes.tokens = TOKENS;
    size_t bytes = TOKENS * (size_t)(s.routes.layers * s.routes.index_topk) * sizeof *s.kept;
    s.routes.kept = s.kept = malloc(bytes);
    assert_non_null(s.kept);
    memset(s.kept, 0xff, bytes);
    return s;
}

static int32_t *set_at(const struct sets *s, size_t token, int layer)
{
    return s->kept + (token * (size_t)s->routes.layers + (size_t)layer) * (size_t)s->routes.index_topk;
}

/* Each token keeps itself and random earlier tokens, in random order. */
static struct sets random_sets(const vb_model *m, uint64_t seed)
{
    struct sets s = sets_of(m);
    for (size_t t = 0; t < TOKENS; t++)
        for (int l = 0; l < s.routes.layers; l++) {
            int32_t all[TOKENS], *set = set_at(&s, t, l);
            for (size_t i = 0; i <= t; i++)
                all[i] = (int32_t)i;
            for (size_t i = 0; i < (size_t)s.routes.index_topk && i <= t; i++) {
                size_t other = i + (size_t)random_below(&seed, t + 1 - i);
                set[i] = all[other];
                all[other] = all[i];
            }
        }
    return s;
}

static void see_set(void *context, const vb_tap *tap)
{
    struct sets *s = context;
    if (!strstr(tap->name, ".indexer.kept"))
        return;
    for (size_t r = 0; r < tap->rows; r++, s->seen++) {
        const int32_t *have = (const int32_t *)tap->data + r * tap->stride;
        int32_t *set = set_at(s, (size_t)tap->row[r].index, tap->layer);
        s->chosen += tap->row[r].index >= s->routes.index_topk;
        for (size_t i = 0; i < tap->inner; i++) {
            int found = 0;
            for (size_t j = 0; j < tap->inner; j++)
                found |= set[j] == have[i];
            if (s->compares && (!found || (i && have[i] <= have[i - 1])))
                fail_msg("%s, index %d: token %d is kept, or not in ascending order", tap->name, tap->row[r].index,
                         have[i]);
        }
        if (!s->compares)
            memcpy(set, have, tap->inner * sizeof *set);
    }
}

struct rows {
    double logits[2][TOKENS * 512]; /* of the target and of MTP depth 0 */
    size_t V;
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct rows *r = context;
    (void)hidden;
    for (size_t v = 0; v < r->V; v++)
        r->logits[depth + 1][index * r->V + v] = (double)logits[v];
    return 0;
}

static void evaluate(const vb_model *m, vb_session_options o, const int32_t *tokens, struct rows *r)
{
    o.context = TOKENS;
    o.threads = 2;
    r->V = (size_t)vb_vocab_size(m);
    assert_true(r->V <= 512);
    memset(r->logits, 0, sizeof r->logits);
    vb_session *s = open_session(m, &o, tokens, TOKENS);
    OK(vb_evaluate(s, 1, take_row, r, &err));
    vb_session_close(s);
}

TEST(the_sets_that_were_chosen_change_no_bit)
{
    static struct rows plain, forced;
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        struct sets own = sets_of(m);
        int32_t tokens[TOKENS];
        random_tokens(m, 3 + i, tokens, TOKENS);
        evaluate(m, (vb_session_options){.tap = see_set, .tap_context = &own}, tokens, &plain);
        assert_true(own.chosen > 60);
        for (int chunk = 0; chunk <= 5; chunk += 5) {
            evaluate(m, (vb_session_options){.routes = own.routes, .prefill_chunk = chunk}, tokens, &forced);
            assert_memory_equal(plain.logits, forced.logits, sizeof plain.logits);
        }
        free(own.kept);
        vb_model_close(m);
    }
}

/* Compares with the reference. The unit is the distance by which perturbations move the reference. */
TEST(other_sets_are_those_of_the_reference)
{
    static struct rows plain, got, exact, other;
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        struct reference *ref = open_tiny_reference(names[i]);
        struct sets sets = random_sets(m, i);
        int32_t tokens[TOKENS];
        double spread = 0;
        random_tokens(m, 3 + i, tokens, TOKENS);
        evaluate(m, (vb_session_options){.threads = 1}, tokens, &plain);
        sets.compares = 1;
        evaluate(m, (vb_session_options){.routes = sets.routes, .tap = see_set, .tap_context = &sets}, tokens, &got);
        assert_true(sets.chosen > 60 && sets.seen > sets.chosen);
        struct sets ascending = sets_of(m); /* as the reference wants them */
        vb_session_options o = {.routes = sets.routes, .tap = see_set, .tap_context = &ascending, .prefill_chunk = 7};
        evaluate(m, o, tokens, &other);
        assert_memory_equal(got.logits, other.logits, sizeof got.logits);
        struct reference_options options = {.sets = ascending.kept, .set_tokens = TOKENS,
                                            .set_layers = sets.routes.layers};
        size_t n = TOKENS * got.V;
        OK(reference_forward(ref, &options, tokens, TOKENS, NULL, exact.logits[0], &err));
        for (options.perturb = 1; options.perturb <= 4; options.perturb++) {
            OK(reference_forward(ref, &options, tokens, TOKENS, NULL, other.logits[0], &err));
            spread = fmax(spread, distance(other.logits[0], exact.logits[0], n));
        }
        double within = distance(got.logits[0], exact.logits[0], n) / spread,
               changes = distance(plain.logits[0], exact.logits[0], n) / spread;
        if (!(within <= 8.0) || !(changes > 100.0))
            fail_msg("%s: the engine is %.3g times as far from the reference as perturbed references, allowed are 8; "
                     "the sets change %.3g",
                     names[i], within, changes);
        free(sets.kept);
        free(ascending.kept);
        reference_close(ref);
        vb_model_close(m);
    }
}

TEST(with_forced_sets_no_bit_depends_on_drafts_chunks_or_batches)
{
    static struct record plain, forced, got;
    for (size_t i = 0; i < COUNT(names); i++) {
        static const char *const methods[] = {"ngram", "mtp-eagle", "mtp-vanilla", "mtp-eagle"};
        vb_model *m = open_tiny(names[i]);
        struct sets sets = random_sets(m, i);
        int32_t prompt[PROMPT];
        random_tokens(m, 3 + i, prompt, PROMPT);
        vb_session_options o = {.context = TOKENS + 1, .threads = 1, .routes = sets.routes};
        run_plain(m, NULL, prompt, PROMPT, NEW, &plain);
        run(m, &o, prompt, PROMPT, NEW, &forced);
        assert_true(forced.row[0] != plain.row[0]);
        for (int k = 0; k < 4; k++) {
            vb_session_options v = o;
            v.poison_cut_rows = 1;
            v.threads = 1 + k % 3;
            v.prefill_chunk = (int32_t[]){1, 4, 0, 9}[k];
            v.drafting.method = methods[k];
            v.drafting.tokens = 3;
            if (k == 3)
                v.drafting.tree = (vb_tree_shape){.topk = 3, .nodes = 7};
            run(m, &v, prompt, PROMPT, NEW, &got);
            check_same(methods[k], &got, &forced);
        }
        free(sets.kept);
        vb_model_close(m);
    }
}

struct ended {
    uint64_t fingerprint;
    size_t cached;
};

static void keep_end(void *context, const vb_request_end *e)
{
    *(struct ended *)context = (struct ended){e->result->fingerprint, e->result->cached_tokens};
    assert_int_equal(e->code, 0);
}

TEST(batches_share_rows_up_to_the_first_other_set)
{
    static struct record wanted[3];
    struct ended end[4];
    vb_model *m = open_tiny("glm5");
    struct sets sets = random_sets(m, 1), other = random_sets(m, 1);
    int32_t prompt[PROMPT], *set = set_at(&other, 17, 0), moved = 0;
    random_tokens(m, 3, prompt, PROMPT);
    for (int32_t i = 0; i < other.routes.index_topk; i++) /* a token that is not in the set */
        for (int32_t k = 0; k < other.routes.index_topk; k++)
            moved = set[k] == moved ? moved + 1 : moved;
    set[0] = moved;
    const vb_routes *routes[] = {&sets.routes, &other.routes, NULL, &sets.routes};
    vb_session_options o = {.context = TOKENS + 1, .threads = 1};
    for (int i = 0; i < 3; i++) {
        o.routes = routes[i] ? *routes[i] : (vb_routes){0};
        run(m, &o, prompt, PROMPT, NEW, &wanted[i]);
    }
    o.routes = (vb_routes){0};
    vb_batch *b = open_batch_of(m, &(vb_batch_options){.session = &o, .max_sequences = 2, .keep_finished = 4});
    for (int i = 0; i < 4; i++) {
        vb_generate_options options = {.max_tokens = NEW, .ignore_eos = 1, .fingerprint = 1};
        vb_request q = {.tokens = prompt, .count = PROMPT, .routes = routes[i], .done = keep_end, .context = &end[i],
                        .options = &options};
        OK(vb_batch_add(b, &q, NULL, &err));
        run_batch_to_its_end(b);
        if (end[i].fingerprint != wanted[i % 3].result.fingerprint)
            fail_msg("request %d: another fingerprint than alone", i);
    }
    assert_true(end[1].cached > 8 && end[1].cached <= 17);
    assert_true(end[2].cached <= (size_t)sets.routes.index_topk); /* up to there, all tokens are kept */
    assert_true(end[3].cached > 17);
    vb_batch_close(b);
    free(sets.kept);
    free(other.kept);
    vb_model_close(m);
}

/* Compares recorded sets with those that taps reported, for all tokens but the last. */
static void check_recorded(const char *what, const vb_model *m, const vb_routes *got, const struct sets *wanted)
{
    size_t topk = (size_t)wanted->routes.index_topk;
    assert_int_equal(got->index_topk, topk);
    assert_int_equal(got->tokens, TOKENS - 1);
    assert_null(got->experts);
    for (size_t t = 0; t < got->tokens; t++)
        for (int l = 0; l < got->layers; l++)
            for (size_t i = 0; i < topk; i++) {
                int32_t have = got->kept[(t * (size_t)got->layers + (size_t)l) * topk + i];
                if (have != (vb_has_indexer(m, l) ? set_at(wanted, t, l)[i] : -1))
                    fail_msg("%s: token %zu, layer %d: number %zu of the recorded set is %d", what, t, l, i, have);
            }
}

struct batch_end {
    const vb_model *m;
    const struct sets *wanted;
    size_t cached;
};

static void check_end(void *context, const vb_request_end *e)
{
    struct batch_end *end = context;
    assert_int_equal(e->code, 0);
    check_recorded("batch", end->m, &e->routes, end->wanted);
    end->cached = e->result->cached_tokens;
}

TEST(recorded_sets_are_those_to_which_tokens_attended)
{
    static struct rows rows;
    static struct record got;
    for (size_t i = 0; i < COUNT(names); i++) {
        static const char *const methods[] = {NULL, "ngram", "mtp-eagle"};
        vb_model *m = open_tiny(names[i]);
        struct sets own = sets_of(m);
        int32_t tokens[TOKENS];
        vb_routes recorded;
        random_tokens(m, 3 + i, tokens, PROMPT);
        run_plain(m, NULL, tokens, PROMPT, NEW, &got);
        memcpy(tokens + PROMPT, got.token, NEW * sizeof *tokens);
        evaluate(m, (vb_session_options){.tap = see_set, .tap_context = &own}, tokens, &rows);
        vb_session_options o = {.context = TOKENS + 1, .threads = 1, .record_kept = 1, .poison_cut_rows = 1};
        for (int k = 0; k < 4; k++) {
            vb_session_options v = o;
            v.prefill_chunk = (int32_t[]){0, 4, 7, 3}[k];
            v.drafting.method = methods[k < 3 ? k : 2];
            v.drafting.tokens = k ? 3 : 0;
            if (k == 3)
                v.drafting.tree = (vb_tree_shape){.topk = 3, .nodes = 7};
            vb_session *s = open_session(m, &v, tokens, PROMPT);
            generate(s, NEW, &got);
            assert_true(vb_session_routes(s, &recorded));
            check_recorded(k == 3 ? "tree" : methods[k] ? methods[k] : "plain", m, &recorded, &own);
            vb_session_close(s);
        }
        struct batch_end end = {m, &own, 0};
        vb_batch *b = open_batch_of(m, &(vb_batch_options){.session = &o, .max_sequences = 2, .keep_finished = 4});
        vb_generate_options options = {.max_tokens = NEW, .ignore_eos = 1};
        vb_request q = {.tokens = tokens, .count = PROMPT, .done = check_end, .context = &end, .options = &options};
        for (int k = 0; k < 2; k++) { /* the second shares rows of the first */
            OK(vb_batch_add(b, &q, NULL, &err));
            run_batch_to_its_end(b);
        }
        assert_true(end.cached > 8);
        vb_batch_close(b);
        free(own.kept);
        vb_model_close(m);
    }
    vb_session *s;
    vb_model *dense = open_tiny("v3");
    REFUSED(vb_session_open(&s, dense, &(vb_session_options){.record_kept = 1}, &err), VB_BAD_ARGUMENT,
            "kept sets cannot be recorded: the model has no indexer");
    vb_model_close(dense);
}

TEST(a_session_is_loaded_with_the_sets_of_its_rows)
{
    static struct record plain, got;
    char dir[64], file[128];
    vb_model *m = open_tiny("v32");
    struct sets sets = random_sets(m, 2);
    int32_t prompt[PROMPT];
    vb_session_options o = {.context = TOKENS + 1, .routes = sets.routes};
    vb_session *s;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    random_tokens(m, 7, prompt, PROMPT);
    run(m, &o, prompt, PROMPT, NEW, &plain);
    s = open_session(m, &o, prompt, PROMPT);
    generate(s, 5, &got);
    OK(vb_session_save(s, file, NULL, &err));
    vb_session_close(s);
    OK(vb_session_load(&s, m, &o, file, NULL, &err));
    generate(s, NEW - 5, &got);
    drop(&plain, 5);
    check_same_prefix("a loaded session", &got, &plain, NEW - 5);
    vb_session_close(s);
    memset(set_at(&sets, 20, 0), 0xff, (size_t)sets.routes.index_topk * sizeof *sets.kept);
    REFUSED(vb_session_load(&s, m, &o, file, NULL, &err), VB_BAD_ARGUMENT,
            "was saved with other forced routes for its 33 computed tokens");
    remove_dir(dir);
    free(sets.kept);
    vb_model_close(m);
}

TEST(invalid_sets_are_refused)
{
    vb_model *m = open_tiny("glm5"), *dense = open_tiny("v3");
    struct sets sets = random_sets(m, 2);
    vb_session_options o = {.context = TOKENS, .routes = sets.routes};
    vb_session *s;
    int32_t *set = set_at(&sets, 20, 1), was = set[2], *last = &set[sets.routes.index_topk - 1], was_last = *last;
    REFUSED(vb_session_open(&s, dense, &o, &err), VB_BAD_ARGUMENT, "there are kept sets, but the model has no indexer");
    o.routes.index_topk--;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "the kept sets have the shape [43, 5, 7], wanted 4 layers and index_topk = 8");
    o.routes.index_topk++;
    set[2] = 21;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "the kept set of token 20 in layer 1 contains token 21, wanted 0 to 20");
    set[2] = -2;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "the kept set of token 20 in layer 1 contains token -2, wanted 0 to 20");
    char twice[96];
    set[2] = set[3];
    snprintf(twice, sizeof twice, "the kept set of token 20 in layer 1 contains token %d twice", set[3]);
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, twice);
    set[2] = was;
    *last = -1;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "the kept set of token 20 in layer 1 has 7 numbers and then -1, wanted 8 of the 21 tokens that it can see");
    *last = was_last;
    set_at(&sets, 3, 0)[0] = -1;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "the kept set of token 3 in layer 0 has 0 numbers and then -1, wanted 4");
    set_at(&sets, 20, 2)[0] = 99; /* a shared layer: the numbers have no meaning */
    memset(set_at(&sets, 3, 0), 0xff, (size_t)sets.routes.index_topk * sizeof *sets.kept);
    OK(vb_session_open(&s, m, &o, &err));
    vb_session_close(s);
    free(sets.kept);
    vb_model_close(m);
    vb_model_close(dense);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sets_that_were_chosen_change_no_bit),
        cmocka_unit_test(other_sets_are_those_of_the_reference),
        cmocka_unit_test(with_forced_sets_no_bit_depends_on_drafts_chunks_or_batches),
        cmocka_unit_test(batches_share_rows_up_to_the_first_other_set),
        cmocka_unit_test(recorded_sets_are_those_to_which_tokens_attended),
        cmocka_unit_test(a_session_is_loaded_with_the_sets_of_its_rows),
        cmocka_unit_test(invalid_sets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
