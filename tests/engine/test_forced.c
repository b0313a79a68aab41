/* tests/engine/test_forced.c -- drafts that the test chooses: all right, all wrong, right up to a place, of any length.
 * The output never changes, the counters are those counted by hand, and a drafter is told exactly the committed tokens
 * and the target's hidden states, never those of a rejected draft. Runs in the repository's root. */
#include "tests/support/engine_support.h"

/* ---- the drafter ------------------------------------------------------------------------------------------------- */

#define MOST_OBSERVED 300

struct forced {
    const vb_session *session;
    const int32_t *right; /* the timeline that plain decoding gives, by index */
    size_t right_count, V;
    int right_up_to;      /* the drafts after that many are wrong; VB_MAX_DRAFT: all are right */
    int random;           /* instead: any length up to the one asked for, each draft right or wrong by chance */
    int32_t wrong;        /* what a wrong draft is; -1: the token after the right one */
    uint64_t state;
    /* counted by hand, as the drafts are made */
    size_t drafted, accepted, rounds, drafted_by_depth[VB_MAX_DRAFT], accepted_by_depth[VB_MAX_DRAFT];
    /* what it was told */
    size_t known;
    int32_t tokens[MOST_OBSERVED];
    uint64_t hidden[MOST_OBSERVED];
};

static void forced_observe(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens,
                           const float *hidden, size_t n)
{
    struct forced *f = (struct forced *)d;
    size_t width = (size_t)vb_hidden_size(f->session->model);
    (void)pass;
    assert_true(n > 0 && pos <= f->known && pos + n <= MOST_OBSERVED);
    for (size_t j = 0; j < n; j++) {
        f->tokens[pos + j] = tokens[j];
        if (pos + j > 0)
            f->hidden[pos + j - 1] = vb_fingerprint(VB_FINGERPRINT_START, hidden + j * width, width);
    }
    f->known = pos + n;
}

static int forced_propose(struct drafter *d, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct forced *f = (struct forced *)d;
    size_t count = f->session->count;
    int n = f->random ? (int)random_below(&f->state, (size_t)max + 1) : max, stands = 1;
    (void)pass, (void)failed;
    assert_true(max >= 1 && max <= f->session->max_draft && count + (size_t)max <= f->right_count);
    assert_int_equal(f->known, count); /* it knows the whole timeline and no more */
    for (int i = 0; i < n; i++) {
        int right = f->random ? random_below(&f->state, 4) > 0 : i < f->right_up_to;
        int32_t token = f->right[count + (size_t)i];
        draft[i] = right ? token : f->wrong >= 0 ? f->wrong : (token + 1) % (int32_t)f->V;
        stands &= draft[i] == token;
        f->drafted_by_depth[i]++;
        f->accepted_by_depth[i] += (size_t)stands;
        f->accepted += (size_t)stands;
    }
    f->drafted += (size_t)n;
    f->rounds++;
    return n;
}

static const struct drafter_type forced_type = {.name = "forced", .observe = forced_observe, .propose = forced_propose,
                                                .rewind = no_rewind, .close = close_nothing};

/* ---- a plain run and its drafted twin ---------------------------------------------------------------------------- */

#define PROMPT 21
#define TOKENS 60

struct twin {
    vb_model *model;
    vb_sampling sampling;
    int32_t timeline[PROMPT + TOKENS + VB_MAX_DRAFT];
    struct record plain;
};

static void twin_open(struct twin *t, const char *name, const vb_sampling *sampling)
{
    t->model = open_tiny(name);
    t->sampling = sampling ? *sampling : (vb_sampling){0};
    random_tokens(t->model, 77, t->timeline, PROMPT);
    run_plain(t->model, &t->sampling, t->timeline, PROMPT, TOKENS, &t->plain);
    memcpy(t->timeline + PROMPT, t->plain.token, TOKENS * sizeof *t->timeline);
}

static vb_session *open_forced(struct twin *t, struct forced *f, int K, int chunk)
{
    vb_session_options o = {.context = PROMPT + TOKENS, .prefill_chunk = chunk, .threads = 1, .sampling = t->sampling,
                            .poison_cut_rows = 1};
    vb_session *s = open_session(t->model, &o, t->timeline, PROMPT);
    f->session = s;
    f->right = t->timeline;
    f->right_count = PROMPT + TOKENS;
    f->V = (size_t)vb_vocab_size(t->model);
    give_drafter(s, &forced_type, f, K);
    return s;
}

static void check_counts(const char *what, const vb_result *r, const struct forced *f)
{
    if (r->drafted != f->drafted || r->accepted != f->accepted)
        fail_msg("%s: drafted %zu, accepted %zu; by hand %zu and %zu", what, r->drafted, r->accepted, f->drafted,
                 f->accepted);
    for (int k = 0; k < VB_MAX_DRAFT; k++)
        if (r->drafted_by_depth[k] != f->drafted_by_depth[k] || r->accepted_by_depth[k] != f->accepted_by_depth[k])
            fail_msg("%s: depth %d: drafted %zu, accepted %zu; by hand %zu and %zu", what, k + 1,
                     r->drafted_by_depth[k], r->accepted_by_depth[k], f->drafted_by_depth[k], f->accepted_by_depth[k]);
}

/* Depths in events: a token is draft k+1 of its round, or the target's own (0), which ends the round. */
static void check_depths(const char *what, const struct record *r)
{
    for (size_t i = 1, expected = 1; i < r->n; i++) {
        if (r->depth[i] && (size_t)r->depth[i] != expected)
            fail_msg("%s: token %zu has draft depth %d, wanted %zu or 0", what, i, r->depth[i], expected);
        expected = r->depth[i] ? expected + 1 : 1;
    }
    assert_int_equal(r->depth[0], 0);
}

/* ---- output and counters ----------------------------------------------------------------------------------------- */

/* Each round: k drafts of which min(k, j) are right, and one token more, never beyond n. */
static void count_by_hand(int K, int j, size_t n, size_t *forwards, size_t *drafted, size_t *accepted)
{
    size_t chosen = 1; /* by the last row of the prompt */
    *forwards = *drafted = *accepted = 0;
    while (chosen < n) {
        size_t left = n - chosen, k = left - 1 < (size_t)K ? left - 1 : (size_t)K,
               right = k < (size_t)j ? k : (size_t)j;
        ++*forwards;
        *drafted += k;
        *accepted += right;
        chosen += right + 1;
    }
}

TEST(drafts_right_up_to_any_depth_change_nothing_and_are_counted)
{
    static const char *const names[] = {"v3", "v3-mtp3", "glm5", "v2-lite"};
    static struct twin t;
    static struct record r;
    char what[128];
    for (size_t i = 0; i < COUNT(names); i++) {
        twin_open(&t, names[i], NULL);
        for (int K = 1; K <= VB_MAX_DRAFT; K += i ? 7 : K < 4 ? 1 : K < 7 ? 3 : 8)
            for (int j = 0; j <= K; j++) {
                struct forced f = {.right_up_to = j, .wrong = -1};
                size_t forwards, drafted, accepted;
                vb_session *s = open_forced(&t, &f, K, 0);
                generate(s, TOKENS, &r);
                snprintf(what, sizeof what, "%s, K %d, drafts right up to %d", names[i], K, j);
                check_same(what, &t.plain, &r);
                check_counts(what, &r.result, &f);
                check_depths(what, &r);
                count_by_hand(K, j, TOKENS, &forwards, &drafted, &accepted);
                if (r.result.forwards != forwards || r.result.drafted != drafted || r.result.accepted != accepted)
                    fail_msg("%s: forwards %zu, drafted %zu, accepted %zu; by hand %zu, %zu, %zu", what,
                             r.result.forwards, r.result.drafted, r.result.accepted, forwards, drafted, accepted);
                assert_int_equal(r.result.prefill_tokens, PROMPT);
                assert_int_equal(r.result.draft_failures, 0);
                assert_int_equal(r.result.finish, VB_FINISH_LENGTH);
                vb_session_close(s);
            }
        vb_model_close(t.model);
    }
}

TEST(drafts_of_any_length_right_or_wrong_by_chance_change_nothing)
{
    static struct twin t;
    static struct record r;
    char what[128];
    size_t accepted = 0, drafted = 0;
    for (int temperature = 0; temperature < 2; temperature++) {
        vb_sampling sampling = {.temperature = (float)temperature, .seed = 5, .top_k = 40, .top_p = 0.95f};
        twin_open(&t, "v3", &sampling);
        for (uint64_t trial = 0; trial < 40; trial++) {
            struct forced f = {.random = 1, .wrong = -1, .state = trial};
            int K = 1 + (int)(trial % VB_MAX_DRAFT), chunk = (int[]){0, 1, 7, 20}[trial % 4];
            vb_session *s = open_forced(&t, &f, K, chunk);
            generate(s, TOKENS, &r);
            snprintf(what, sizeof what, "temperature %d, trial %d, K %d, chunk %d", temperature, (int)trial, K, chunk);
            check_same(what, &t.plain, &r);
            check_counts(what, &r.result, &f);
            check_depths(what, &r);
            drafted += r.result.drafted;
            accepted += r.result.accepted;
            vb_session_close(s);
        }
        vb_model_close(t.model);
    }
    assert_true(accepted > drafted / 8 && accepted < drafted);
}

TEST(counters_do_not_depend_on_how_the_prompt_was_cut)
{
    static struct twin t;
    static struct record r[PROMPT + 2];
    twin_open(&t, "v3-mtp3", NULL);
    for (int chunk = 0; chunk <= PROMPT + 1; chunk++) {
        struct forced f = {.right_up_to = 2, .wrong = -1};
        vb_session *s = open_forced(&t, &f, 4, chunk);
        generate(s, TOKENS, &r[chunk]);
        const vb_result *a = &r[0].result, *b = &r[chunk].result;
        if (a->forwards != b->forwards || a->drafted != b->drafted || a->accepted != b->accepted ||
            b->prefill_tokens != PROMPT)
            fail_msg("chunk %d: forwards %zu, drafted %zu, accepted %zu, prompt %zu; in one pass %zu, %zu, %zu, %d",
                     chunk, b->forwards, b->drafted, b->accepted, b->prefill_tokens, a->forwards, a->drafted,
                     a->accepted, PROMPT);
        vb_session_close(s);
    }
    vb_model_close(t.model);
}

/* Allows only tokens t with (t + last token + count) odd, so that what is before a row matters to it. */
static int parity_mask(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    for (size_t t = 0; t < *(const size_t *)context; t++)
        mask[t] = (t + (size_t)tokens[count - 1] + count) % 2 == 1;
    return VB_OK;
}

TEST(penalties_and_masks_see_the_accepted_drafts_before_a_row)
{
    static struct twin t;
    static struct record r;
    static size_t V = 160;
    int32_t tokens[] = {3, 77, 120};
    float values[] = {2.5f, -3.0f, 1.0f};
    const vb_sampling settings[] = {
        {.frequency_penalty = 0.7f},
        {.presence_penalty = 2.0f},
        {.repetition_penalty = 1.6f},
        {.mask = parity_mask, .mask_context = &V},
        {.bias_tokens = tokens, .bias_values = values, .bias_count = 3},
        {.temperature = 0.8f, .seed = 9, .frequency_penalty = 0.5f, .presence_penalty = 0.5f,
         .repetition_penalty = 1.2f, .min_p = 0.02f, .top_p = 0.9f, .top_k = 30, .mask = parity_mask,
         .mask_context = &V},
    };
    char what[128];
    for (size_t i = 0; i < COUNT(settings); i++) {
        twin_open(&t, "v3", &settings[i]);
        assert_int_equal(vb_vocab_size(t.model), V);
        for (int right_up_to = 0; right_up_to <= 6; right_up_to += 2) {
            struct forced f = {.right_up_to = right_up_to, .wrong = -1};
            vb_session *s = open_forced(&t, &f, 6, 0);
            generate(s, TOKENS, &r);
            snprintf(what, sizeof what, "sampling %zu, drafts right up to %d of 6", i, right_up_to);
            check_same(what, &t.plain, &r);
            check_counts(what, &r.result, &f);
            vb_session_close(s);
        }
        vb_model_close(t.model);
    }
}

/* ---- what a drafter is told -------------------------------------------------------------------------------------- */

static int hash_hidden(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct forced *f = context;
    (void)depth;
    size_t width = (size_t)vb_hidden_size(f->session->model);
    (void)logits;
    f->hidden[index] = vb_fingerprint(VB_FINGERPRINT_START, hidden, width);
    return 0;
}

TEST(a_drafter_is_told_the_committed_tokens_and_their_hidden_rows)
{
    static struct twin t;
    static struct record r;
    twin_open(&t, "v3", NULL);
    struct forced truth = {0};
    vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1};
    vb_session *whole = open_session(t.model, &o, t.timeline, PROMPT + TOKENS);
    truth.session = whole;
    OK(vb_evaluate(whole, 0, hash_hidden, &truth, &err));
    for (int j = 0; j <= 5; j++)
        for (int chunk = 0; chunk <= 7; chunk += 7) {
            struct forced f = {.right_up_to = j, .wrong = -1};
            vb_session *s = open_forced(&t, &f, 5, chunk);
            for (size_t n = 0; n < TOKENS; n += r.n) /* in several calls, one of them cut back */
                generate(s, TOKENS - n < 17 ? TOKENS - n : 17, &r);
            OK(vb_truncate(s, PROMPT + 5, &err));
            generate(s, TOKENS - 5, &r);
            assert_int_equal(f.known, PROMPT + TOKENS);
            for (size_t i = 0; i < f.known; i++)
                if (f.tokens[i] != t.timeline[i])
                    fail_msg("drafts right up to %d, chunk %d: told token %d at index %zu, the timeline has %d", j,
                             chunk, (int)f.tokens[i], i, (int)t.timeline[i]);
            for (size_t i = 0; i + 1 < f.known; i++)
                if (f.hidden[i] != truth.hidden[i])
                    fail_msg("drafts right up to %d, chunk %d: the hidden state told for index %zu has other bits", j,
                             chunk, i);
            vb_session_close(s);
        }
    vb_session_close(whole);
    vb_model_close(t.model);
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

static size_t nan_numbers(const struct kvcache *c, size_t index)
{
    size_t n = 0;
    for (size_t layer = 0; layer < c->pool->layers; layer++) {
        const float *row = kvcache_row(c, layer, c->slots[index]);
        for (size_t i = 0; i < c->pool->row; i++)
            n += row[i] != row[i];
    }
    return n;
}

TEST(rows_of_rejected_drafts_are_poisoned_and_no_other)
{
    static struct twin t;
    static struct record r;
    twin_open(&t, "v3", NULL);
    for (int j = 0; j < 4; j++) {
        struct forced f = {.right_up_to = j, .wrong = -1};
        vb_session *s = open_forced(&t, &f, 6, 0);
        generate(s, 30, &r);
        assert_int_equal(s->cache.length, s->count - 1);
        for (size_t i = 0; i < s->cache.length; i++)
            assert_int_equal(nan_numbers(&s->cache, i), 0);
        generate(s, 8, &r); /* a round of 6 drafts at the least */
        OK(vb_truncate(s, PROMPT + 10, &err));
        for (size_t i = s->cache.length; i < PROMPT + 36; i++)
            if (nan_numbers(&s->cache, i) != s->cache.pool->layers * s->cache.pool->row)
                fail_msg("drafts right up to %d: row %zu, beyond the cut at %zu, is not poisoned", j, i,
                         s->cache.length);
        vb_session_close(s);
    }
    vb_model_close(t.model);
}

TEST(a_rejected_draft_leaves_no_bit_behind_even_when_its_rows_are_not_finite)
{
    static struct twin t;
    static struct record r;
    char dir[64];
    uint32_t used[8] = {0};
    int32_t never = 0;
    twin_open(&t, "v3-mtp3", NULL);
    for (size_t i = 0; i < PROMPT + TOKENS; i++)
        used[t.timeline[i] / 32] |= 1u << t.timeline[i] % 32;
    while (used[never / 32] >> never % 32 & 1)
        never++;
    assert_true(never < vb_vocab_size(t.model));
    size_t d = (size_t)vb_hidden_size(t.model);
    vb_model_close(t.model);
    copy_checkpoint(dir, "golden/tiny/v3-mtp3");
    break_tensor(dir, "model.embed_tokens.weight", (size_t)never * d, d, 0);
    t.model = open_model(dir);
    for (int j = 0; j <= 4; j++) {
        struct forced f = {.right_up_to = j, .wrong = never};
        char what[64];
        vb_session *s = open_forced(&t, &f, 5, 0);
        generate(s, TOKENS, &r);
        snprintf(what, sizeof what, "NaN drafts after %d right ones", j);
        check_same(what, &t.plain, &r);
        check_counts(what, &r.result, &f);
        vb_session_close(s);
    }
    vb_model_close(t.model);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_right_up_to_any_depth_change_nothing_and_are_counted),
        cmocka_unit_test(drafts_of_any_length_right_or_wrong_by_chance_change_nothing),
        cmocka_unit_test(counters_do_not_depend_on_how_the_prompt_was_cut),
        cmocka_unit_test(penalties_and_masks_see_the_accepted_drafts_before_a_row),
        cmocka_unit_test(a_drafter_is_told_the_committed_tokens_and_their_hidden_rows),
        cmocka_unit_test(rows_of_rejected_drafts_are_poisoned_and_no_other),
        cmocka_unit_test(a_rejected_draft_leaves_no_bit_behind_even_when_its_rows_are_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
