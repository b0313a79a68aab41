/* tests/engine/test_session.c -- a session from the outside: where a run ends, cutting and appending, many sessions in
 * a pass, refused calls, the caller's floating-point environment. Runs in the repository's root. */
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"

#include <math.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#define PROMPT 17

static vb_model *model;
static int32_t prompt[200];

/* What a run is like under each way to draft; K 0: none. */
static struct way {
    const char *draft;
    int K;
} ways[3 * MOST_METHODS];
static size_t way_count;

static int open_v3(void **unused __attribute__((unused)))
{
    model = open_tiny("v3");
    random_tokens(model, 21, prompt, COUNT(prompt));
    struct methods methods = methods_for(model, ALL_METHODS);
    ways[way_count++] = (struct way){"none", 0};
    for (size_t i = 0; i < 3 * methods.count; i++)
        ways[way_count++] = (struct way){methods.name[i / 3], (int[]){1, 4, 15}[i % 3]};
    return 0;
}

static int close_v3(void **unused __attribute__((unused)))
{
    vb_model_close(model);
    return 0;
}

static vb_session *open_way(const struct way *w, int context, size_t count)
{
    vb_session_options o = {.context = context, .threads = 1, .poison_cut_rows = 1,
                            .drafting = drafting_of(model, w->draft, w->K ? w->K : -1)};
    return open_session(model, &o, prompt, count);
}

/* Drafts that are always right, as far as the test knows the text. */
struct right {
    const vb_session *session;
    const int32_t *timeline;
};

static void see_nothing(struct drafter *d, struct pass *w, size_t pos, const int32_t *tokens, const float *hidden,
                        size_t n)
{
    (void)d, (void)w, (void)pos, (void)tokens, (void)hidden, (void)n;
}

static int propose_right(struct drafter *d, struct pass *w, int32_t *draft, int max, size_t *failed)
{
    const struct right *r = (const struct right *)d;
    (void)w, (void)failed;
    memcpy(draft, r->timeline + r->session->count, (size_t)max * sizeof *draft);
    return max;
}

static const struct drafter_type always_right = {.name = "right", .observe = see_nothing, .propose = propose_right,
                                                 .rewind = no_rewind, .close = close_nothing};

/* ---- where a run ends -------------------------------------------------------------------------------------------- */

/* Runs to an end that lies inside an accepted run of 7 drafts; the session must be able to go on as if nothing was. */
struct stop {
    size_t at;             /* tokens after which it ends */
    size_t max_tokens, stop_after;
    int32_t end_token;     /* -1: ignore_eos */
    int context;           /* 0: enough */
    enum vb_finish finish;
};

static void check_stop(const char *what, const struct stop *stop, const struct record *plain)
{
    static struct record r, rest;
    int32_t timeline[PROMPT + 60];
    struct right right = {.timeline = timeline};
    int context = stop->context ? stop->context : PROMPT + 60;
    vb_session_options o = {.context = context, .threads = 1, .poison_cut_rows = 1};
    vb_session *s = open_session(model, &o, prompt, PROMPT);
    memcpy(timeline, prompt, PROMPT * sizeof *prompt);
    memcpy(timeline + PROMPT, plain->token, 60 * sizeof *timeline);
    right.session = s;
    give_drafter(s, &always_right, &right, 7);

    struct config *c = (struct config *)&model->config; /* any token can be made the end token */
    int32_t was = c->eos_token_ids[0];
    if (stop->end_token >= 0)
        c->eos_token_ids[0] = stop->end_token;
    r.stop_after = stop->stop_after;
    vb_generate_options g = recording(&r, s, stop->max_tokens);
    g.ignore_eos = stop->end_token < 0;
    OK(vb_generate(s, &g, &r.result, &err));
    c->eos_token_ids[0] = was;

    if (r.n != stop->at || r.result.tokens != stop->at || r.result.finish != stop->finish ||
        s->count != PROMPT + stop->at)
        fail_msg("%s: ended after %zu tokens (finish %d, timeline %zu), wanted %zu and finish %d", what, r.n,
                 (int)r.result.finish, s->count, stop->at, (int)stop->finish);
    check_same_prefix(what, plain, &r, stop->at);
    assert_memory_equal(s->tokens, timeline, (PROMPT + stop->at) * sizeof *timeline);
    assert_int_equal(s->cache.length, s->count - 1);
    if (!stop->context) { /* goes on where it stopped */
        struct record offset = {.n = 60 - stop->at};
        memcpy(offset.token, plain->token + stop->at, offset.n * sizeof *offset.token);
        memcpy(offset.row, plain->row + stop->at, offset.n * sizeof *offset.row);
        generate(s, 60 - stop->at, &rest);
        check_same_prefix(what, &offset, &rest, offset.n);
    }
    vb_session_close(s);
}

TEST(a_run_ends_inside_an_accepted_run_at_the_right_token)
{
    static struct record plain;
    char what[96];
    run_plain(model, NULL, prompt, PROMPT, 60, &plain);
    for (size_t at = 1; at <= 24; at++) {
        size_t first = 0;
        while (plain.token[first] != plain.token[at - 1])
            first++;
        const struct stop stops[] = {
            {.at = at, .max_tokens = at, .end_token = -1, .finish = VB_FINISH_LENGTH},
            {.at = at, .max_tokens = 60, .stop_after = at, .end_token = -1, .finish = VB_FINISH_STOPPED},
            {.at = first + 1, .max_tokens = 60, .end_token = plain.token[at - 1], .finish = VB_FINISH_STOP},
            {.at = at, .max_tokens = 60, .end_token = -1, .context = PROMPT + (int)at, .finish = VB_FINISH_LENGTH},
        };
        static const char *const names[] = {"length", "callback", "end token", "context"};
        for (size_t i = 0; i < COUNT(stops); i++) {
            snprintf(what, sizeof what, "%s at token %zu of runs of 8", names[i], at);
            check_stop(what, &stops[i], &plain);
        }
    }
}

TEST(an_end_token_wins_over_the_length_and_over_the_callback)
{
    static struct record plain;
    run_plain(model, NULL, prompt, PROMPT, 60, &plain);
    check_stop("all three", &(struct stop){.at = 1, .max_tokens = 1, .stop_after = 1, .end_token = plain.token[0],
                                           .finish = VB_FINISH_STOP}, &plain);
    check_stop("length and callback", &(struct stop){.at = 3, .max_tokens = 3, .stop_after = 3, .end_token = -1,
                                                     .finish = VB_FINISH_LENGTH}, &plain);
}

TEST(no_draft_is_longer_than_the_length_leaves_room_for)
{
    static struct record r;
    for (size_t w = 1; w < way_count; w++)
        for (size_t n = 1; n <= 5; n++) { /* the prompt's pass chooses one; a round of K drafts up to K + 1 more */
            vb_session *s = open_way(&ways[w], PROMPT + 60, PROMPT);
            generate(s, n, &r);
            for (size_t depth = 0; depth < VB_MAX_DRAFT; depth++)
                if (depth + 2 >= n && r.result.drafted_by_depth[depth])
                    fail_msg("%s %d: a draft of depth %zu in a run of %zu tokens", ways[w].draft, ways[w].K, depth + 1,
                             n);
            vb_session_close(s);
        }
}

TEST(n_0_computes_nothing_and_an_empty_prompt_is_refused)
{
    static struct record r;
    for (size_t i = 0; i < way_count; i++) {
        vb_session *s = open_way(&ways[i], 64, PROMPT);
        generate(s, 0, &r);
        assert_int_equal(r.result.tokens, 0);
        assert_int_equal(r.result.finish, VB_FINISH_LENGTH);
        assert_true(r.result.fingerprint == 0xcbf29ce484222325u);
        assert_int_equal(s->cached, 0);
        vb_session_close(s);

        int32_t next, drafts[VB_MAX_DRAFT], n;
        s = open_way(&ways[i], 64, 0);
        vb_generate_options g = {.max_tokens = 4};
        REFUSED(vb_generate(s, &g, &r.result, &err), VB_BAD_ARGUMENT, "empty");
        REFUSED(vb_draft(s, &next, drafts, &n, &err), VB_BAD_ARGUMENT, "empty");
        OK(vb_append(s, prompt, 1, &err)); /* and the session is still good */
        generate(s, 4, &r);
        vb_session_close(s);
    }
}

TEST(a_prompt_of_one_token_and_one_that_fills_the_context)
{
    static struct record plain, r;
    char what[64];
    for (size_t i = 0; i < way_count; i++) {
        run_plain(model, NULL, prompt, 1, 30, &plain);
        vb_session *s = open_way(&ways[i], 31, 1);
        generate(s, 100, &r);
        snprintf(what, sizeof what, "one token, %s, K %d", ways[i].draft, ways[i].K);
        check_same(what, &plain, &r);
        assert_int_equal(r.result.finish, VB_FINISH_LENGTH);
        vb_session_close(s);

        s = open_way(&ways[i], PROMPT, PROMPT);
        generate(s, 100, &r);
        assert_int_equal(r.n, 0);
        assert_int_equal(r.result.finish, VB_FINISH_LENGTH);
        int32_t next, drafts[VB_MAX_DRAFT], n;
        REFUSED(vb_draft(s, &next, drafts, &n, &err), VB_BAD_ARGUMENT, "full");
        REFUSED(vb_append(s, prompt, 1, &err), VB_BAD_ARGUMENT, "context");
        OK(vb_truncate(s, PROMPT - 1, &err));
        OK(vb_draft(s, &next, drafts, &n, &err));
        assert_int_equal(n, 0); /* the next token fills the context */
        vb_session_close(s);
    }
}

/* ---- cutting and appending --------------------------------------------------------------------------------------- */

/* n more tokens in this session, against a fresh plain one with the same timeline. */
static void check_goes_on(const char *what, vb_session *s, size_t n)
{
    static struct record plain, r;
    int32_t timeline[256];
    size_t count;
    const int32_t *tokens = vb_tokens(s, &count);
    memcpy(timeline, tokens, count * sizeof *tokens);
    run_plain(model, &s->options.sampling, timeline, count, n, &plain);
    generate(s, n, &r);
    check_same(what, &plain, &r);
}

TEST(cut_to_any_length_it_goes_on_like_a_fresh_session)
{
    static struct record r;
    char what[96];
    for (size_t i = 0; i < way_count; i++) {
        vb_session *s = open_way(&ways[i], 80, PROMPT);
        generate(s, 25, &r);
        for (size_t count = s->count, step = i == 3 ? 1 : 5; count > 0; count -= count > step ? step : count) {
            OK(vb_truncate(s, count, &err));
            snprintf(what, sizeof what, "%s, K %d, cut to %zu tokens", ways[i].draft, ways[i].K, count);
            check_goes_on(what, s, 6);
            OK(vb_truncate(s, count, &err));
        }
        size_t left;
        OK(vb_truncate(s, 0, &err));
        vb_tokens(s, &left);
        assert_int_equal(left, 0);
        OK(vb_append(s, prompt + 30, 9, &err));
        check_goes_on("cut to nothing, another prompt", s, 6);
        REFUSED(vb_truncate(s, s->count + 1, &err), VB_BAD_ARGUMENT, "cannot cut");
        vb_session_close(s);
    }
}

TEST(appended_after_a_run_it_goes_on_like_a_fresh_session)
{
    char what[96];
    for (size_t i = 0; i < way_count; i++)
        for (size_t n = 1; n <= 40; n = n * 2 + 1) {
            vb_session *s = open_way(&ways[i], 200, PROMPT);
            snprintf(what, sizeof what, "%s, K %d, %zu tokens appended", ways[i].draft, ways[i].K, n);
            check_goes_on(what, s, 9);
            OK(vb_append(s, prompt + 50, n, &err));
            check_goes_on(what, s, 9);
            OK(vb_append(s, prompt + 100, n, &err));
            check_goes_on(what, s, 1);
            check_goes_on(what, s, 9);
            vb_session_close(s);
        }
}

TEST(penalties_count_what_was_chosen_until_a_cut_makes_it_prompt)
{
    vb_session_options o = {.context = 120, .threads = 1, .drafting.method = "mtp-eagle", .drafting.tokens = 5,
                            .poison_cut_rows = 1,
                            .sampling = {.temperature = 0.7f, .seed = 4, .frequency_penalty = 0.8f,
                                         .repetition_penalty = 1.3f}};
    static struct record whole, part;
    vb_session *s = open_session(model, &o, prompt, PROMPT);
    run_plain(model, &o.sampling, prompt, PROMPT, 40, &whole);
    for (size_t n = 0; n < 40; n += 8) { /* in five calls: the counts go on */
        struct record expected = {.n = 8};
        memcpy(expected.token, whole.token + n, 8 * sizeof *expected.token);
        memcpy(expected.row, whole.row + n, 8 * sizeof *expected.row);
        generate(s, 8, &part);
        check_same_prefix("in five calls", &expected, &part, 8);
    }
    OK(vb_truncate(s, PROMPT + 20, &err));
    check_goes_on("after the cut", s, 20);
    vb_session_close(s);
}

/* The scores of a greedy choice, recomputed in double from the row and from what was said before. */
struct penalties {
    const vb_sampling *rule;
    unsigned char prompted[4096];
    int count[4096]; /* over the output */
    int moved;       /* tokens that are not the row's largest */
};

static int check_penalties(void *context, const vb_event *e)
{
    struct penalties *p = context;
    double best = -INFINITY, chosen = 0, largest = -INFINITY;
    for (int32_t t = 0; t < vb_vocab_size(model); t++) {
        double z = (double)e->logits[t], r = (double)p->rule->repetition_penalty;
        largest = z > largest ? z : largest;
        if (p->prompted[t] || p->count[t])
            z = z > 0 ? z / r : z * r;
        if (p->count[t])
            z -= (double)p->rule->presence_penalty + (double)p->rule->frequency_penalty * p->count[t];
        best = z > best ? z : best;
        chosen = t == e->token ? z : chosen;
    }
    if (chosen < best - 1e-5) /* logits are below 16 here: f32 rounds three times by at most 2^-21 */
        fail_msg("token %zu is %d with a score of %f, the best is %f", e->index, (int)e->token, chosen, best);
    p->moved += (double)e->logits[e->token] < largest;
    p->count[e->token]++;
    return 0;
}

TEST(each_token_is_the_best_after_the_penalties_of_those_before_it)
{
    vb_session_options o = {.context = 120, .threads = 1, .drafting.tokens = 5,
                            .sampling = {.repetition_penalty = 1.2f, .presence_penalty = 0.5f,
                                         .frequency_penalty = 0.25f}};
    for (size_t way = 0; way < 3; way++) {
        static struct penalties p;
        p = (struct penalties){.rule = &o.sampling};
        o.drafting.method = way ? mtp_method(way) : "none";
        for (size_t i = 0; i < PROMPT; i++)
            p.prompted[prompt[i]] = 1;
        vb_session *s = open_session(model, &o, prompt, PROMPT);
        vb_generate_options g = {.max_tokens = 60, .ignore_eos = 1, .callback = check_penalties, .context = &p};
        vb_result r;
        OK(vb_generate(s, &g, &r, &err));
        assert_true(p.moved > 5);
        vb_session_close(s);
    }
}

/* ---- many sessions in a pass ------------------------------------------------------------------------------------- */

TEST(sessions_with_different_options_share_passes_and_no_bit_changes)
{
    enum { SESSIONS = 40 }; /* more than a pass takes at K = 15, and more rows than it holds */
    static struct record plain[SESSIONS], r[SESSIONS];
    vb_session *sessions[SESSIONS];
    vb_generate_options options[SESSIONS];
    vb_result results[SESSIONS];
    char what[160];
    for (size_t i = 0; i < SESSIONS; i++) {
        size_t count = 1 + i * 7 % 60, n = i * 5 % 24;
        vb_session_options o = {.context = 100 - (int)(i % 3), .threads = 1, .prefill_chunk = 1 + (int)i * 11 % 50,
                                .drafting.method = mtp_method(i), .drafting.tokens = i % 4 ? (int)(i % 16) : -1,
                                .poison_cut_rows = 1,
                                .sampling = {.temperature = (float)(i % 2), .seed = i, .top_k = (int)(i % 3) * 10,
                                             .frequency_penalty = i % 5 ? 0.0f : 0.3f}};
        if (i % 4 && !(i % 16))
            o.drafting.tokens = -1;
        run_plain(model, &o.sampling, prompt + i, count, n, &plain[i]);
        sessions[i] = open_session(model, &o, prompt + i, count);
        options[i] = recording(&r[i], sessions[i], n);
    }
    OK(generate_together(sessions, SESSIONS, options, results, &err));
    for (size_t i = 0; i < SESSIONS; i++) {
        r[i].result = results[i];
        snprintf(what, sizeof what, "session %zu of %d (%s, K %d)", i, SESSIONS, sessions[i]->options.drafting.method,
                 sessions[i]->max_draft);
        check_same(what, &plain[i], &r[i]);
        vb_session_close(sessions[i]);
    }
}

TEST(calls_that_cannot_be_right_are_refused_and_change_nothing)
{
    static struct record plain, r;
    vb_model *other = open_tiny("glm");
    vb_session_options small = {.context = 32, .threads = 1}, large = {.context = 64, .threads = 1};
    vb_session *a = open_session(model, &small, prompt, PROMPT), *b = open_session(model, &large, prompt, PROMPT);
    vb_session *foreign = open_session(other, &small, prompt, 1);
    vb_generate_options g[3] = {{.max_tokens = 4}, {.max_tokens = 4}, {.max_tokens = 4}};
    vb_result results[3];
    REFUSED(generate_together((vb_session *[]){b, a, b}, 3, g, results, &err), VB_BAD_ARGUMENT, "in the batch already");
    REFUSED(generate_together((vb_session *[]){b, foreign}, 2, g, results, &err), VB_BAD_ARGUMENT, "another model");
    REFUSED(generate_together((vb_session *[]){a, b}, 2, g, results, &err), VB_BAD_ARGUMENT, "context");

    int32_t V = vb_vocab_size(model);
    REFUSED(vb_append(a, (int32_t[]){3, V}, 2, &err), VB_BAD_ARGUMENT, "outside the vocabulary");
    REFUSED(vb_append(a, (int32_t[]){-1}, 1, &err), VB_BAD_ARGUMENT, "outside the vocabulary");
    REFUSED(vb_append(a, prompt, 16, &err), VB_BAD_ARGUMENT, "context of 32");
    assert_int_equal(a->count, PROMPT);
    run_plain(model, NULL, prompt, PROMPT, 8, &plain);
    generate(a, 8, &r);
    check_same("after refused calls", &plain, &r);
    vb_session_close(a);
    vb_session_close(b);
    vb_session_close(foreign);
    vb_model_close(other);
}

TEST(options_out_of_range_are_refused)
{
    vb_session *s;
    vb_model *without = open_tiny("moonlight");
    static const struct {
        vb_session_options o;
        const char *part;
    } bad[] = {
        {{.context = -1}, "context"},
        {{.context = 1281}, "1280"},
        {{.threads = -1}, "threads"},
        {{.prefill_chunk = -2}, "chunk"},
        {{.isa = "mmx"}, "mmx"},
        {{.drafting.method = "guess"}, "guess"},
        {{.drafting.method = "mtp-eagle", .drafting.tokens = 16}, "16"},
        {{.sampling = {.temperature = 1e-6f}}, "temperature"},
#ifdef __x86_64__
        {{.isa = "neon"}, "neon"},
#else
        {{.isa = "avx2"}, "avx2"},
#endif
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        REFUSED(vb_session_open(&s, model, &bad[i].o, &err), VB_BAD_ARGUMENT, bad[i].part);
        assert_null(s);
    }
    for (int k = 0; k < 2; k++) {
        vb_session_options o = {.context = 8, .drafting.method = mtp_method((size_t)k)};
        REFUSED(vb_session_open(&s, without, &o, &err), VB_BAD_ARGUMENT, "has no MTP modules");
    }
    vb_model_close(without);
}

/* ---- the caller's floating-point environment --------------------------------------------------------------------- */

#ifdef __x86_64__
TEST(the_callers_rounding_flushing_and_traps_change_no_bit_and_are_restored)
{
    /* round down, towards zero, up; flush results and operands; traps for everything */
    static const unsigned settings[] = {0x1f80 | 0x2000, 0x1f80 | 0x6000, 0x1f80 | 0x4000, 0x1f80 | 0x8040, 0x0000,
                                        0xe040};
    static struct record plain, r;
    vb_sampling sampling = {.temperature = 0.9f, .seed = 8, .top_p = 0.9f, .min_p = 0.01f};
    unsigned usual = _mm_getcsr();
    run_plain(model, &sampling, prompt, PROMPT, 40, &plain);
    for (size_t i = 0; i < COUNT(settings); i++)
        for (size_t k = 0; k < 2; k++) {
            vb_session_options o = {.context = 80, .exact_threads = 1, .threads = 2, .drafting.method = mtp_method(k),
                                    .drafting.tokens = 6, .sampling = sampling, .poison_cut_rows = 1};
            char what[64];
            vb_model *m = NULL;
            vb_session *s = NULL;
            vb_result *result = &r.result;
            int32_t next, drafts[VB_MAX_DRAFT], n;
            r.stop_after = 0;
            _mm_setcsr(settings[i]);
            int code = vb_model_open(&m, "golden/tiny/v3", NULL, NULL);
            code = code ? code : vb_session_open(&s, m, &o, NULL);
            code = code ? code : vb_append(s, prompt, PROMPT, NULL);
            _mm_setcsr(usual);
            assert_int_equal(code, VB_OK);
            vb_generate_options g = recording(&r, s, 40);
            _mm_setcsr(settings[i]);
            code = vb_generate(s, &g, result, NULL);
            unsigned after = _mm_getcsr();
            code = code ? code : vb_draft(s, &next, drafts, &n, NULL);
            code = code ? code : vb_truncate(s, 5, NULL);
            code = code ? code : vb_generate(s, &(vb_generate_options){.max_tokens = 3}, &(vb_result){0}, NULL);
            unsigned at_last = _mm_getcsr();
            _mm_setcsr(usual);
            assert_int_equal(code, VB_OK);
            snprintf(what, sizeof what, "MXCSR %#x", settings[i]);
            check_same(what, &plain, &r);
            assert_int_equal(after, settings[i]);
            assert_int_equal(at_last, settings[i]);
            vb_session_close(s);
            vb_model_close(m);
        }
}
#else
TEST(the_callers_rounding_flushing_and_traps_change_no_bit_and_are_restored) { skip(); }
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_ends_inside_an_accepted_run_at_the_right_token),
        cmocka_unit_test(an_end_token_wins_over_the_length_and_over_the_callback),
        cmocka_unit_test(no_draft_is_longer_than_the_length_leaves_room_for),
        cmocka_unit_test(n_0_computes_nothing_and_an_empty_prompt_is_refused),
        cmocka_unit_test(a_prompt_of_one_token_and_one_that_fills_the_context),
        cmocka_unit_test(cut_to_any_length_it_goes_on_like_a_fresh_session),
        cmocka_unit_test(appended_after_a_run_it_goes_on_like_a_fresh_session),
        cmocka_unit_test(penalties_count_what_was_chosen_until_a_cut_makes_it_prompt),
        cmocka_unit_test(each_token_is_the_best_after_the_penalties_of_those_before_it),
        cmocka_unit_test(sessions_with_different_options_share_passes_and_no_bit_changes),
        cmocka_unit_test(calls_that_cannot_be_right_are_refused_and_change_nothing),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(the_callers_rounding_flushing_and_traps_change_no_bit_and_are_restored),
    };
    return cmocka_run_group_tests(tests, open_v3, close_v3);
}
