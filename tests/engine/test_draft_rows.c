/* tests/engine/test_draft_rows.c -- the rows that drafts are chosen from, number by number: a draft is only an argmax,
 * which many a mistake leaves as it is. Runs in the repository's root.
 *
 * The bound is test_truth's: references perturbed by up to half an f32 ulp say how far an f32 program may be away. */
#include "tests/support/engine_support.h"

#include "reference/reference.h"
#include "tests/support/golden.h"

#define MOST_TOKENS 128
#define PERTURBED_RUNS 6 /* fewer than there: a smaller bound, if anything */
#define TIMES 8.0
#define K 6 /* drafts in the goldens */

static const char *const names[] = {"v3", "v3-mtp3", "glm5"};

/* What taps tell of a proposal. */
struct seen {
    size_t V, drafts, rows;
    double logits[K * 256];
};

static void see(void *context, const vb_tap *tap)
{
    struct seen *s = context;
    if (tap->depth < 0)
        return;
    for (size_t i = 0; i < tap->rows; i++, s->rows++)
        if (tap->row[i].position != tap->row[i].index)
            fail_msg("%s, depth %d: the row of h_%d has position %d; wanted that of its hidden state", tap->name,
                     (int)tap->depth, (int)tap->row[i].index, (int)tap->row[i].position);
    if (!strstr(tap->name, ".shared_head.head.output"))
        return;
    assert_true(tap->rows == 1 && tap->inner == s->V && s->drafts < K);
    for (size_t v = 0; v < s->V; v++)
        s->logits[s->drafts * s->V + v] = (double)((const float *)tap->data)[v];
    s->drafts++;
}

/* how far so many perturbed proposals are from the unperturbed one, at most, while they draft the same */
static double spread_of(const struct reference *ref, const int32_t *tokens, size_t n, int32_t next, size_t method,
                        size_t V)
{
    double *exact = calloc(2 * K * V, sizeof *exact), *other = exact + K * V, spread = 0;
    enum reference_draft_method m = (enum reference_draft_method)method;
    int32_t drafts[K], others[K];
    assert_non_null(exact);
    OK(reference_draft(ref, NULL, tokens, (int)n, next, m, K, drafts, exact, &err));
    for (uint64_t seed = 1; seed <= PERTURBED_RUNS; seed++) {
        struct reference_options o = {.perturb = seed};
        OK(reference_draft(ref, &o, tokens, (int)n, next, m, K, others, other, &err));
        assert_memory_equal(drafts, others, sizeof drafts);
        spread = fmax(spread, distance(other, exact, K * V));
    }
    free(exact);
    return spread;
}

TEST(rows_that_choose_drafts_are_as_near_to_the_truth_as_f32_allows)
{
    static struct seen seen;
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        struct reference *ref;
        char dir[64], name[64];
        int32_t tokens[MOST_TOKENS], next, drafts[VB_MAX_DRAFT], n;
        snprintf(dir, sizeof dir, "golden/tiny/%s", names[i]);
        OK(reference_open(&ref, dir, NULL, &err));
        json_t *told = golden_json(names[i]);
        struct golden g = golden_open(names[i]);
        size_t count = (size_t)read_tokens(json_object_get(told, "tokens"), tokens), size, V = (size_t)vb_vocab_size(m);
        for (size_t method = 0; method < 2; method++) {
            double spread = -1;
            for (int chunk = 0; chunk <= 7; chunk += 7) {
                vb_session_options o = {.context = (int32_t)count + 16, .threads = 1,
                                        .drafting.method = mtp_method(method), .drafting.tokens = K,
                                        .prefill_chunk = chunk, .tap = see, .tap_context = &seen};
                seen = (struct seen){.V = V};
                vb_session *s = open_session(m, &o, tokens, count);
                OK(vb_draft(s, &next, drafts, &n, &err));
                assert_int_equal(n, K);
                assert_int_equal(seen.drafts, K);
                snprintf(name, sizeof name, "%s.logits", mtp_method(method));
                spread = spread < 0 ? spread_of(ref, tokens, count, next, method, V) : spread;
                double is = distance(seen.logits, golden_data(&g, name, &size), K * V);
                assert_int_equal(size, K * V);
                if (getenv("VERBOSE"))
                    print_message("%s, %s, chunk %d: %.3g, perturbed references %.3g: %.2f times\n", names[i],
                                  o.drafting.method, chunk, is, spread, is / spread);
                if (!(is <= TIMES * spread))
                    fail_msg("%s, %s, chunk %d: %.3g away from the truth, perturbed references are %.3g away", names[i],
                             o.drafting.method, chunk, is, spread);
                vb_session_close(s);
            }
        }
        golden_close(&g);
        json_decref(told);
        reference_close(ref);
        vb_model_close(m);
    }
}

/* RoPE's angles depend on differences alone, so that the same shift everywhere leaves every value within rounding. */
TEST(rows_of_modules_turn_by_the_position_of_their_hidden_row)
{
    static struct seen seen;
    static struct record r;
    int32_t prompt[30];
    for (size_t i = 0; i < COUNT(names); i++)
        for (size_t method = 0; method < 2; method++) {
            vb_model *m = open_tiny(names[i]);
            vb_session_options o = {.context = 64, .threads = 1, .drafting.method = mtp_method(method),
                                    .drafting.tokens = 1, .tap = see, .tap_context = &seen};
            random_tokens(m, 8, prompt, COUNT(prompt));
            vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
            seen.rows = 0;
            for (int round = 0; round < 5; round++) {
                seen.V = (size_t)vb_vocab_size(m);
                seen.drafts = 0;
                generate(s, 3, &r);
            }
            assert_true(seen.rows > COUNT(prompt));
            vb_session_close(s);
            vb_model_close(m);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_choose_drafts_are_as_near_to_the_truth_as_f32_allows),
        cmocka_unit_test(rows_of_modules_turn_by_the_position_of_their_hidden_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
