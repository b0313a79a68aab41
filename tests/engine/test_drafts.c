/* tests/engine/test_drafts.c -- a round's drafts are those of `draft` on the same tokens, bit for bit in effect: what a
 * session has been through (rounds, rejected drafts, cuts, appended tokens, short rounds) leaves no trace in what it
 * proposes.
 *
 * A spying drafter type stands between a session and its real drafter and notes what was proposed after which tokens;
 * then a fresh session reads the same tokens and is asked. Runs in the repository's root.
 *     test_drafts [--all]     --all: every prefill chunk with every K */
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"

static int all;

/* ---- the spy ----------------------------------------------------------------------------------------------------- */

#define MOST_ROUNDS 200

struct proposed {
    size_t count; /* tokens of the timeline */
    int32_t tokens[256], draft[VB_MAX_DRAFT];
    int max, n;
};

static struct spy {
    const struct drafter_type *real;
    vb_session *session;
    struct proposed seen[MOST_ROUNDS];
    size_t rounds;
} spy;

static void spy_observe(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                        size_t n)
{
    spy.real->observe(d, pass, pos, tokens, hidden, n);
}

static int spy_propose(struct drafter *d, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    int n = drafter_propose_one(spy.real, d, pass, draft, max, failed);
    assert_true(spy.rounds < MOST_ROUNDS && spy.session->count <= COUNT(spy.seen->tokens));
    struct proposed *p = &spy.seen[spy.rounds++];
    *p = (struct proposed){.count = spy.session->count, .max = max, .n = n};
    memcpy(p->tokens, spy.session->tokens, p->count * sizeof *p->tokens);
    memcpy(p->draft, draft, (size_t)n * sizeof *draft);
    return n;
}

static size_t spy_rewind(const struct drafter *d) { return spy.real->rewind(d); }
static void spy_close(struct drafter *d) { spy.real->close(d); }

static struct drafter_type spy_type = {.name = "spy", .observe = spy_observe, .propose = spy_propose,
                                             .rewind = spy_rewind, .close = spy_close};

static vb_session *open_spied(const vb_model *m, const vb_session_options *o)
{
    vb_session *s = open_session(m, o, NULL, 0);
    assert_non_null(s->type);
    spy.real = s->type;
    spy.session = s;
    spy.rounds = 0;
    s->type = &spy_type;
    spy_type.takes = spy.real->takes;
    return s;
}

/* ---- `draft` on the same tokens ---------------------------------------------------------------------------------- */

/* vb_draft after tokens[0..count), whose last is made the target's choice by a bias. */
static int fresh_drafts(const vb_model *m, const vb_session_options *of, const int32_t *tokens, size_t count,
                        int32_t *drafts)
{
    vb_session_options o = *of;
    float much = 1e30f;
    int32_t next, n;
    o.sampling = (vb_sampling){.bias_tokens = &tokens[count - 1], .bias_values = &much, .bias_count = 1};
    o.prefill_chunk = 0;
    vb_session *s = open_session(m, &o, tokens, count - 1);
    OK(vb_draft(s, &next, drafts, &n, &err));
    assert_int_equal(next, tokens[count - 1]);
    vb_session_close(s);
    return n;
}

static void check_proposals(const vb_model *m, const char *what, const vb_session_options *o)
{
    vb_draft_method method = method_named(o->drafting.method);
    for (size_t i = 0; i < spy.rounds; i++) {
        const struct proposed *p = &spy.seen[i];
        int32_t drafts[VB_MAX_DRAFT];
        if (p->count < 2)
            continue; /* `draft` needs a prompt and the token after it */
        int n = fresh_drafts(m, o, p->tokens, p->count, drafts);
        if ((p->n != p->max && (p->n || !may_find_nothing(&method))) || n < p->n)
            fail_msg("%s, round %zu after %zu tokens: %d drafts of %d, fresh: %d", what, i, p->count, p->n, p->max, n);
        for (int k = 0; k < p->n; k++)
            if (drafts[k] != p->draft[k])
                fail_msg("%s, round %zu after %zu tokens: draft %d of %d is %d, in a fresh session %d", what, i,
                         p->count, k + 1, p->n, (int)p->draft[k], (int)drafts[k]);
    }
}

static const char *const names[] = {"v3", "v3-mtp3", "glm5"};
static vb_model *small; /* that drafts */

static vb_drafting drafting_by(const vb_model *m, const char *method, int K)
{
    vb_drafting drafting = drafting_of(m, method, K);
    drafting.model = small;
    drafting.settings = "ngram-min=1";
    return drafting;
}

TEST(a_rounds_drafts_are_those_of_draft_on_the_same_tokens)
{
    static const int chunk[] = {1, 7, 0};
    static struct record r;
    char what[128];
    int32_t prompt[23];
    size_t rounds = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        struct methods methods = methods_for(m, BY_TOKENS);
        random_tokens(m, 5, prompt, COUNT(prompt));
        for (int K = 1; K <= VB_MAX_DRAFT; K++)
            for (size_t method = 0; method < methods.count; method++)
                for (int c = 0; c < 3; c++) {
                    vb_session_options o = {.context = 80, .prefill_chunk = chunk[c], .threads = 1,
                                            .drafting = drafting_by(m, methods.name[method], K), .poison_cut_rows = 1};
                    if (!all && (c != (K + (int)(method + i)) % 3 || !has_turn((size_t)K / 3 + method + i, 2)))
                        continue;
                    vb_session *s = open_spied(m, &o);
                    OK(vb_append(s, prompt, COUNT(prompt), &err));
                    generate(s, 26, &r);
                    snprintf(what, sizeof what, "%s, %s, K %d, chunk %d", names[i], o.drafting.method, K,
                             o.prefill_chunk);
                    check_proposals(m, what, &o);
                    rounds += spy.rounds;
                    vb_session_close(s);
                }
        vb_model_close(m);
    }
    print_message("%zu rounds\n", rounds);
    assert_true(rounds > 500);
}

TEST(the_context_ends_a_round_early_and_its_drafts_are_still_those_of_draft)
{
    static struct record r;
    int32_t prompt[20];
    vb_model *m = open_tiny("v3-mtp3");
    struct methods methods = methods_for(m, BY_TOKENS);
    random_tokens(m, 6, prompt, COUNT(prompt));
    for (size_t method = 0; method < methods.count; method++) {
        vb_session_options o = {.context = 30, .threads = 1, .drafting = drafting_by(m, methods.name[method], 7),
                                .poison_cut_rows = 1};
        vb_session *s = open_spied(m, &o);
        OK(vb_append(s, prompt, COUNT(prompt), &err));
        generate(s, 100, &r);
        assert_int_equal(r.n, 10);
        assert_int_equal(s->count, 30);
        assert_true(spy.rounds > 0 && spy.seen[spy.rounds - 1].max < 7);
        check_proposals(m, o.drafting.method, &o);
        vb_session_close(s);
    }
    vb_model_close(m);
}

/* ---- any history ------------------------------------------------------------------------------------------------- */

/* The same operations on a session with drafts and on one without; lengths that vary make K vary between rounds. */
struct history {
    vb_session *drafting, *plain;
    uint64_t random;
    char told[700]; /* what was done, for the message */
    size_t length;
};

static void tell(struct history *h, const char *what, size_t n)
{
    int written = snprintf(h->told + h->length, sizeof h->told - h->length, " %s %zu", what, n);
    h->length += (size_t)written;
    assert_true(h->length < sizeof h->told);
}

static int see_nothing(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)depth, (void)context, (void)index, (void)logits, (void)hidden;
    return 0;
}

static void one_step(struct history *h, const char *name)
{
    static struct record a, b;
    char what[1200];
    vb_session *d = h->drafting, *p = h->plain;
    size_t count = d->count, room = d->context - count, n;
    int32_t tokens[64], next[2], drafts[VB_MAX_DRAFT], number;
    switch (random_below(&h->random, 8)) {
    case 0: /* append a few, or more than a round leaves */
        n = random_below(&h->random, random_below(&h->random, 2) ? 40 : 4);
        n = n < room ? n : room;
        random_tokens(d->model, h->random, tokens, n);
        tell(h, "append", n);
        OK(vb_append(d, tokens, n, &err));
        OK(vb_append(p, tokens, n, &err));
        break;
    case 1: /* cut anywhere, or a little */
        n = random_below(&h->random, 2) ? random_below(&h->random, count) + 1
                                        : count - random_below(&h->random, count < 5 ? count : 5);
        tell(h, "truncate", n);
        OK(vb_truncate(d, n, &err));
        OK(vb_truncate(p, n, &err));
        break;
    case 2:
        tell(h, "evaluate", count);
        OK(vb_evaluate(d, 0, see_nothing, NULL, &err));
        break;
    case 3:
        if (!room)
            break;
        tell(h, "draft", count);
        OK(vb_draft(d, &next[0], drafts, &number, &err));
        OK(vb_draft(p, &next[1], drafts, &number, &err));
        assert_int_equal(next[0], next[1]);
        break;
    default:
        n = random_below(&h->random, 3) ? random_below(&h->random, 6) : 20;
        tell(h, "generate", n);
        generate(d, n, &a);
        generate(p, n, &b);
        snprintf(what, sizeof what, "%.200s:%s", name, h->told);
        check_same(what, &b, &a);
    }
    assert_int_equal(d->count, p->count);
    assert_memory_equal(d->tokens, p->tokens, d->count * sizeof *d->tokens);
}

TEST(no_history_of_cuts_and_appends_shows_in_drafts_or_output)
{
    static const int lengths[] = {1, 2, 3, 5, 15, 7};
    static struct history h;
    char what[1200];
    size_t rounds = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        struct methods methods = methods_for(m, BY_TOKENS);
        for (size_t trial = 0; trial < methods.count * (all ? 15 : 3); trial++) {
            vb_session_options o = {.context = 120, .prefill_chunk = (int[]){0, 1, 7, 16}[trial / 3 % 4], .threads = 1,
                                    .drafting = drafting_by(m, methods.name[trial % methods.count],
                                                            lengths[trial / 2 % 6]),
                                    .poison_cut_rows = 1};
            vb_session_options none = {.context = 120, .threads = 1, .poison_cut_rows = 1};
            int32_t prompt[12];
            if (!has_turn(trial + i, 3))
                continue;
            h = (struct history){.random = 100 * i + trial};
            h.drafting = open_spied(m, &o);
            h.plain = open_session(m, &none, NULL, 0);
            random_tokens(m, trial, prompt, COUNT(prompt));
            OK(vb_append(h.drafting, prompt, COUNT(prompt), &err));
            OK(vb_append(h.plain, prompt, COUNT(prompt), &err));
            snprintf(what, sizeof what, "%s, %s, K %d, chunk %d", names[i], o.drafting.method, o.drafting.tokens,
                     o.prefill_chunk);
            for (int step = 0; step < 30; step++)
                one_step(&h, what);
            snprintf(what, sizeof what, "%s, %s, K %d, chunk %d:%s", names[i], o.drafting.method, o.drafting.tokens,
                     o.prefill_chunk, h.told);
            check_proposals(m, what, &o);
            rounds += spy.rounds;
            vb_session_close(h.drafting);
            vb_session_close(h.plain);
        }
        vb_model_close(m);
    }
    print_message("%zu rounds\n", rounds);
    assert_true(rounds > 300);
}

/* The second cut is deeper than the first, and nothing was computed between them. */
TEST(two_cuts_in_a_row_are_as_the_second_alone)
{
    static const int lengths[] = {1, 3, 7};
    static struct record r;
    int32_t prompt[30], other[8], drafts[2][VB_MAX_DRAFT], next, n[2];
    vb_model *m = open_tiny("v3-mtp3");
    struct methods methods = methods_for(m, BY_TOKENS);
    random_tokens(m, 7, prompt, COUNT(prompt));
    random_tokens(m, 8, other, COUNT(other));
    for (size_t i = 0; i < methods.count * COUNT(lengths) * 3; i++) {
        size_t first = 27, second = first - 1 - i % 3, count;
        vb_session_options o = {.context = 60, .threads = 1, .poison_cut_rows = 1,
                                .drafting = drafting_by(m, methods.name[i / 9], lengths[i / 3 % 3])};
        vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
        generate(s, 6, &r);
        OK(vb_truncate(s, first, &err));
        OK(vb_truncate(s, second, &err));
        OK(vb_append(s, other, COUNT(other), &err));
        generate(s, 1, &r);
        OK(vb_draft(s, &next, drafts[0], &n[0], &err));
        const int32_t *tokens = vb_tokens(s, &count); /* with `next` */
        n[1] = fresh_drafts(m, &o, tokens, count, drafts[1]);
        if (n[0] != n[1] || memcmp(drafts[0], drafts[1], (size_t)n[0] * sizeof **drafts))
            fail_msg("%s, K %d, cut to %zu and %zu: %d drafts are not the %d of a new session", o.drafting.method,
                     o.drafting.tokens, first, second, n[0], n[1]);
        vb_session_close(s);
    }
    vb_model_close(m);
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "--all");
    small = open_tiny("v3");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rounds_drafts_are_those_of_draft_on_the_same_tokens),
        cmocka_unit_test(the_context_ends_a_round_early_and_its_drafts_are_still_those_of_draft),
        cmocka_unit_test(no_history_of_cuts_and_appends_shows_in_drafts_or_output),
        cmocka_unit_test(two_cuts_in_a_row_are_as_the_second_alone),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vb_model_close(small);
    return failed;
}
