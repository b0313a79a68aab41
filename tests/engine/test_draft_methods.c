/* tests/engine/test_draft_methods.c -- the draft methods without MTP modules: what they propose, against a second
 * definition, and that nothing they could propose reaches the output. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/text/tokenizer.h"

#include <math.h>

#define PROMPT 30
#define TOKENS 60

/* A prompt that says things again, so that a look-up finds something. */
static void repetitive_tokens(const vb_model *m, uint64_t seed, int32_t *tokens, size_t n)
{
    random_tokens(m, seed, tokens, n);
    for (size_t i = n / 2; i < n; i++)
        tokens[i] = tokens[i - n / 2];
}

/* ---- ngram ------------------------------------------------------------------------------------------------------- */

/* The definition, from the longest n-gram down, from the latest place back; the copied text grows with the copy. */
static int look_up(const int32_t *tokens, size_t count, size_t min, size_t max, int32_t *draft, int K)
{
    int32_t text[600];
    memcpy(text, tokens, count * sizeof *tokens);
    for (size_t n = max; n >= min; n--)
        for (size_t start = count > n ? count - n : 0; start-- > 0;)
            if (!memcmp(text + start, text + count - n, n * sizeof *text)) {
                for (size_t i = 0; i < (size_t)K; i++)
                    draft[i] = text[count + i] = text[start + n + i];
                return K;
            }
    return 0;
}

static struct drafter *open_ngram(const vb_model *m, int32_t min, int32_t max)
{
    static vb_session_options asked; /* the drafter reads it when it is opened */
    struct drafter *d = NULL;
    static char settings[64];
    snprintf(settings, sizeof settings, min ? "ngram-min=%d" : "", min);
    if (max)
        snprintf(settings + strlen(settings), sizeof settings - strlen(settings), "%sngram-max=%d", min ? "," : "",
                 max);
    asked = (vb_session_options){.drafting.settings = settings};
    struct drafter_options o = {.asked = &asked, .context = 512, .most_observed = 512, .max_draft = VB_MAX_DRAFT};
    OK(draft_ngram.open(&d, m, &o, &err));
    return d;
}

static void check_look_up(struct drafter *d, const int32_t *tokens, size_t count, size_t min, size_t max)
{
    int32_t wanted[VB_MAX_DRAFT], found[VB_MAX_DRAFT];
    size_t failed = 0;
    for (int K = 1; K <= VB_MAX_DRAFT; K += 7) {
        int n = look_up(tokens, count, min, max, wanted, K), m = draft_ngram.propose(d, NULL, found, K, &failed);
        if (n != m || memcmp(wanted, found, (size_t)n * sizeof *wanted))
            fail_msg("after %zu tokens, n %zu to %zu, K %d: %d drafts, the first %d; wanted %d, the first %d", count,
                     min, max, K, m, m ? (int)found[0] : -1, n, n ? (int)wanted[0] : -1);
    }
    assert_int_equal(failed, 0);
}

TEST(ngram_proposes_what_followed_the_longest_and_then_the_latest_match)
{
    static const int32_t n[][2] = {{1, 1}, {1, 3}, {2, 4}, {3, 3}, {2, 64}, {5, 9}};
    vb_model *m = open_tiny("moonlight");
    uint64_t random = 1;
    int32_t tokens[400];
    for (size_t i = 0; i < COUNT(n); i++)
        for (size_t alphabet = 1; alphabet <= 7; alphabet += 2) {
            struct drafter *d = open_ngram(m, n[i][0], n[i][1]);
            for (size_t k = 0; k < COUNT(tokens); k++)
                tokens[k] = (int32_t)random_below(&random, alphabet);
            for (size_t count = 0; count < COUNT(tokens);) {
                size_t more = 1 + random_below(&random, 5),
                       back = random_below(&random, 4) ? 0 : random_below(&random, count + 1);
                count -= back; /* a cut: what comes then overwrites */
                for (size_t k = count; back && k < COUNT(tokens); k++)
                    tokens[k] = (int32_t)random_below(&random, alphabet);
                more = more < COUNT(tokens) - count ? more : COUNT(tokens) - count;
                draft_ngram.observe(d, NULL, count, tokens + count, NULL, more);
                count += more;
                if (count < 40 || back)
                    check_look_up(d, tokens, count, (size_t)n[i][0], (size_t)n[i][1]);
                if (back && random_below(&random, 8) == 0)
                    break;
            }
            draft_ngram.close(d);
        }
    vb_model_close(m);
}

static void expect_drafts(const vb_model *m, int32_t min, int32_t max, const int32_t *tokens, size_t count,
                          const int32_t *wanted, size_t n)
{
    struct drafter *d = open_ngram(m, min, max);
    int32_t draft[VB_MAX_DRAFT];
    size_t failed = 0;
    draft_ngram.observe(d, NULL, 0, tokens, NULL, count);
    assert_int_equal(draft_ngram.propose(d, NULL, draft, 5, &failed), n);
    if (n)
        assert_memory_equal(draft, wanted, n * sizeof *wanted);
    draft_ngram.close(d);
}

TEST(ngram_by_hand)
{
    static const int32_t text[] = {1, 2, 3, 9, 9, 1, 2, 3, 8, 2, 3, 7, 1, 2, 3}, of_three[] = {8, 2, 3, 7, 1},
                         of_two[] = {7, 1, 2, 3, 7}, again[] = {4, 5, 4, 5}, go_on[] = {4, 5, 4, 5, 4};
    vb_model *m = open_tiny("moonlight");
    expect_drafts(m, 0, 0, text, COUNT(text), of_three, 5);               /* 2 to 4: the latest 1 2 3 */
    expect_drafts(m, 0, 2, text, COUNT(text), of_two, 5);    /* the latest 2 3, and on behind it */
    expect_drafts(m, 4, 0, text, COUNT(text), NULL, 0);      /* no 7 1 2 3 before */
    expect_drafts(m, 0, 0, again, COUNT(again), go_on, 5);                /* what overlaps goes on */
    expect_drafts(m, 0, 0, text, 1, NULL, 0);
    vb_session *s;
    static const struct { const char *settings, *says;
    } wrong[] = {
                 {"ngram-min=5,ngram-max=3", "ngram-min is 5, more than ngram-max, which is 3"},
                 {"ngram-max=65", "ngram-max is 65, wanted a number from 1 to 64"},
                 {"ngram-min=-1", "ngram-min is -1, wanted"},
                 {"ngram-min=", "ngram-min is , wanted"},
                 {"ngram-min=2x", "ngram-min is 2x, wanted"},
                 {"ngram-min=18446744073709551617", "ngram-min is 18446744073709551617, wanted"},
                 {"ngram-mi=1", "unknown setting ngram-mi=1 of draft methods; known are ngram-min=2,ngram-max=4"},
                 {"ngram-min", "unknown setting ngram-min of"},
                 {"ngram-max=3,x=1", "unknown setting x=1"},
                 {",", "unknown setting "},
                 {"=1", "unknown setting =1"}};
    for (size_t i = 0; i < COUNT(wrong); i++)
        REFUSED(vb_session_open(&s, m,
                                &(vb_session_options){.context = 9,
                                                      .drafting = {.method = "ngram", .settings = wrong[i].settings}},
                                &err),
                VB_BAD_ARGUMENT, wrong[i].says);
    OK(vb_session_open(&s, m,
                       &(vb_session_options){.context = 9,
                                             .drafting = {.method = "ngram", .settings = "ngram-min=3,ngram-min=1,"}},
                       &err));
    vb_session_close(s);
    vb_model_close(m);
}

/* Each method says in one line what it is; its settings are accepted as they are listed. */
TEST(methods_are_listed)
{
    vb_draft_method method;
    vb_model *m = open_tiny("v3-mtp3");
    size_t n = 0;
    for (; vb_draft_methods(n, &method); n++) {
        vb_session *s;
        vb_session_options o = {.context = 20, .threads = 1,
                                .drafting = {.method = method.name, .tokens = 2, .settings = method.settings,
                                             .tree.topk = method.trees ? 2 : 0}};
        const char *needed = method.needs_model ? "wants a draft model"
                             : method.needs_head ? "wants the directory"
                             : "wants a function";
        assert_true(strlen(method.about) > 10 && strlen(method.about) < 90 && !strchr(method.about, '\n'));
        if (method.needs_model || method.needs_head || method.needs_callback) {
            REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, needed);
            continue;
        }
        OK(vb_session_open(&s, m, &o, &err));
        vb_session_close(s);
    }
    assert_int_equal(n, 10);
    vb_model_close(m);
}

/* ---- callback ---------------------------------------------------------------------------------------------------- */

/* A callback that says what it is told to, and checks what it is told. */
struct speaker {
    const vb_session *session;
    const int32_t *right; /* the timeline of plain decoding */
    int32_t V;
    enum {
        RIGHT,
        WRONG,
        OUTSIDE,
        NEGATIVE,
        TOO_MANY,
        NEGATIVE_COUNT,
        RIGHT_THEN_OUTSIDE,
        NOTHING,
        BY_CHANCE,
        MANNERS
    } manner;
    uint64_t random;
    size_t asked, nonsense;
};

static int speak(void *context, const int32_t *tokens, size_t count, int32_t *draft, int max)
{
    struct speaker *k = context;
    int manner = k->manner == BY_CHANCE ? (int)random_below(&k->random, BY_CHANCE) : (int)k->manner;
    size_t known;
    const int32_t *timeline = vb_tokens(k->session, &known);
    assert_int_equal(count, known);
    assert_memory_equal(tokens, timeline, count * sizeof *tokens);
    assert_true(max >= 1 && max <= VB_MAX_DRAFT);
    k->asked++;
    for (int i = 0; i < VB_MAX_DRAFT; i++) { /* also beyond max: there is room */
        int32_t right = k->right[count + (size_t)i];
        draft[i] = manner == WRONG ? (right + 1) % k->V
                   : manner == OUTSIDE ? k->V
                   : manner == NEGATIVE ? INT32_MIN
                   : right;
    }
    if (manner == RIGHT_THEN_OUTSIDE)
        draft[max / 2] = INT32_MAX;
    k->nonsense += manner == OUTSIDE || manner == NEGATIVE || manner == TOO_MANY || manner == NEGATIVE_COUNT ||
                   manner == RIGHT_THEN_OUTSIDE;
    return manner == TOO_MANY ? max + 1 + (int)k->asked * 1000
           : manner == NEGATIVE_COUNT ? -3
           : manner == NOTHING ? 0
           : max;
}

TEST(whatever_a_callback_says_the_output_is_the_same)
{
    static const char *const names[] = {"v3", "moonlight"};
    static struct record plain, r;
    char what[96];
    int32_t timeline[PROMPT + TOKENS + VB_MAX_DRAFT];
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_tiny(names[i]);
        memset(timeline, 0, sizeof timeline);
        random_tokens(m, 3, timeline, PROMPT);
        run_plain(m, NULL, timeline, PROMPT, TOKENS, &plain);
        memcpy(timeline + PROMPT, plain.token, TOKENS * sizeof *timeline);
        for (int K = 1; K <= VB_MAX_DRAFT; K += 7)
            for (int manner = 0; manner < MANNERS; manner++) {
                struct speaker k = {.right = timeline, .V = vb_vocab_size(m), .manner = manner};
                vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1, .drafting.method = "callback",
                                        .drafting.tokens = K, .drafting.callback = speak, .drafting.context = &k,
                                        .poison_cut_rows = 1};
                vb_session *s = open_session(m, &o, NULL, 0);
                k.session = s;
                OK(vb_append(s, timeline, PROMPT, &err));
                generate(s, TOKENS, &r);
                snprintf(what, sizeof what, "%s, K %d, manner %d", names[i], K, manner);
                check_same(what, &plain, &r);
                assert_true(k.asked > 0);
                assert_int_equal(r.result.draft_failures, k.nonsense);
                if (manner == RIGHT || manner == TOO_MANY)
                    assert_true(r.result.accepted == r.result.drafted && r.result.accepted > 0);
                else if (manner != RIGHT_THEN_OUTSIDE && manner != BY_CHANCE)
                    assert_int_equal(r.result.accepted, 0);
                vb_session_close(s);
            }
        vb_model_close(m);
    }
}

TEST(a_callback_is_asked_by_draft_too_and_must_be_there)
{
    vb_model *m = open_tiny("moonlight");
    int32_t right[40], next, drafts[VB_MAX_DRAFT], n;
    vb_session *s;
    vb_session_options o = {.context = 40, .threads = 1, .drafting.method = "callback"};
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, "callback wants a function");
    random_tokens(m, 4, right, COUNT(right));
    struct speaker k = {.right = right, .V = vb_vocab_size(m)};
    o.drafting.callback = speak;
    o.drafting.context = &k;
    s = open_session(m, &o, NULL, 0);
    k.session = s;
    OK(vb_append(s, right, 10, &err));
    OK(vb_draft(s, &next, drafts, &n, &err));
    assert_int_equal(n, 3); /* K, where no number was given */
    assert_memory_equal(drafts, right + 11, 3 * sizeof *drafts);
    vb_session_close(s);
    vb_model_close(m);
}

/* ---- draft-model ------------------------------------------------------------------------------------------------- */

TEST(a_draft_model_proposes_what_it_would_decode)
{
    static const char *const pairs[][2] = {{"v3", "v3"}, {"v3", "v2-lite"}, {"moonlight", "v3-mtp3"},
                                           {"glm", "moonlight"}};
    static struct record r, of_small;
    char what[96];
    int32_t prompt[PROMPT], next, drafts[VB_MAX_DRAFT], n;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        vb_model *m = open_tiny(pairs[i][0]), *small = open_tiny(pairs[i][1]);
        int32_t V = vb_vocab_size(m), of_both = V < vb_vocab_size(small) ? V : vb_vocab_size(small);
        for (uint64_t seed = 0; seed < 12; seed++) {
            vb_session_options o = {.context = 100, .threads = 1, .drafting.method = "draft-model",
                                    .drafting.model = small, .poison_cut_rows = 1, .drafting.tokens = 1 + (int)seed,
                                    .prefill_chunk = (int[]){0, 1, 7, 40}[seed % 4]};
            size_t count = seed ? 1 + random_below(&(uint64_t){seed}, PROMPT) : PROMPT, all;
            random_tokens(of_both == V ? m : small, seed, prompt, count);
            vb_session *s = open_session(m, &o, prompt, count);
            if (seed % 2) /* a history of rounds, cuts and appended tokens */
                generate(s, 1 + seed * 2, &r);
            if (seed % 3 == 1)
                OK(vb_truncate(s, 1 + count / 2, &err));
            if (seed % 3)
                OK(vb_append(s, prompt, 3 < count ? 3 : count, &err));
            OK(vb_draft(s, &next, drafts, &n, &err));
            assert_int_equal(n, o.drafting.tokens);
            const int32_t *timeline = vb_tokens(s, &all);
            int32_t read[100];
            for (size_t k = 0; k < all; k++) /* tokens that only the large model has */
                read[k] = timeline[k] < vb_vocab_size(small) ? timeline[k] : 0;
            run(small, &(vb_session_options){.context = 200, .threads = 1}, read, all, (size_t)n, &of_small);
            snprintf(what, sizeof what, "%s drafts for %s, seed %d", pairs[i][1], pairs[i][0], (int)seed);
            for (int k = 0; k < n; k++)
                assert_in_range(drafts[k], 0, of_both - 1);
            for (int k = 0; k < n; k++) {
                if (of_small.token[k] >= of_both)
                    break; /* only the small model has it: another one was drafted */
                if (drafts[k] != of_small.token[k])
                    fail_msg("%s: draft %d of %d is %d, decoding gives %d", what, k + 1, n, (int)drafts[k],
                             (int)of_small.token[k]);
            }
            assert_true(vb_draft_memory(s) > 100 * sizeof(float));
            vb_session_close(s);
        }
        vb_model_close(m);
        vb_model_close(small);
    }
}

TEST(beyond_a_draft_models_positions_nothing_is_drafted)
{
    static struct record plain, r;
    vb_model *m = open_tiny("v3"), *small = open_tiny("v2-lite"); /* 1280 and 256 */
    int32_t prompt[PROMPT];
    random_tokens(m, 2, prompt, PROMPT);
    for (size_t i = 0; i < PROMPT; i++)
        prompt[i] %= vb_vocab_size(small);
    run_plain(m, NULL, prompt, PROMPT, 300, &plain);
    vb_session_options o = {.context = 330, .threads = 1, .drafting.method = "draft-model", .drafting.model = small,
                            .drafting.tokens = 5, .poison_cut_rows = 1};
    vb_session *s = open_session(m, &o, prompt, PROMPT);
    generate(s, 300, &r);
    check_same("a small model of 256 positions", &plain, &r);
    size_t bytes = vb_draft_memory(s), drafted = r.result.drafted;
    generate(s, 0, &r);
    assert_true(drafted > 500 && drafted < 5 * 256);
    OK(vb_truncate(s, 100, &err)); /* and back again */
    generate(s, 60, &r);
    assert_memory_equal(r.token, plain.token + 100 - PROMPT, 60 * sizeof *r.token);
    assert_true(r.result.drafted > 0);
    vb_session_close(s);

    o.context = 1280; /* memory is bounded by what the small model can read */
    s = open_session(m, &o, NULL, 0);
    assert_true(vb_draft_memory(s) < bytes + bytes / 2);
    vb_session_close(s);
    o.drafting.model = NULL;
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, "draft-model wants a draft model");
    vb_model_close(m);
    vb_model_close(small);
}

TEST(tokenizers_match_when_every_token_does)
{
    static const char json[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2%s}, \"merges\": [\"a b\"]}, "
        "\"added_tokens\": [{\"id\": 4, \"content\": \"<%s>\", \"special\": true}], "
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"use_regex\": false}, \"decoder\": {\"type\": \"ByteLevel\"}}";
    static const char *const variants[][3] = {{"", "end", "{}"}, {", \"c\": 3", "end", "{}"}, {"", "END", "{}"},
                                              {"", "end", "{\"eos_token\": \"<end>\"}"}};
    static const char *const says[] = {NULL, "token 3 is no token in one and \"c\" in the other",
                                       "token 4 is \"<end>\" in one and \"<END>\" in the other",
                                       "EOS are -1 and -1 in one and -1 and 4"};
    struct vb_tokenizer *t[COUNT(variants)];
    char text[600];
    for (size_t i = 0; i < COUNT(variants); i++) {
        snprintf(text, sizeof text, json, variants[i][0], variants[i][1]);
        OK(tokenizer_parse(&t[i], text, strlen(text), variants[i][2], strlen(variants[i][2]), "test", NULL, &err));
    }
    for (size_t i = 0; i < COUNT(variants); i++) {
        OK(vb_tokenizers_match(t[i], t[i], &err));
        if (says[i])
            REFUSED(vb_tokenizers_match(t[0], t[i], &err), VB_BAD_ARGUMENT, says[i]);
    }
    for (size_t i = 0; i < COUNT(variants); i++)
        tokenizer_close(t[i]);
}

/* ---- p-min ------------------------------------------------------------------------------------------------------- */

/* Each row that a module's head reads, and what was drafted from it. */
struct watcher {
    double p, p_min;
    size_t stood, ended;
};

static double best_probability(const float *z, size_t V)
{
    double best = z[0], sum = 0;
    for (size_t i = 1; i < V; i++)
        best = (double)z[i] > best ? (double)z[i] : best;
    for (size_t i = 0; i < V; i++)
        sum += exp((double)z[i] - best);
    return 1 / sum;
}

static void watch_logits(void *context, const vb_tap *tap)
{
    if (strstr(tap->name, "shared_head.head.output"))
        ((struct watcher *)context)->p = best_probability(tap->data, tap->inner);
}

static void watch_choice(void *context, const vb_trace *t)
{
    struct watcher *w = context;
    if (t->kind != VB_TRACE_CHOOSE || t->depth < 0)
        return;
    if ((t->token < 0) != (w->p < w->p_min) && fabs(w->p - w->p_min) > 1e-5)
        fail_msg("a token of probability %f %s with p-min %f", w->p, t->token < 0 ? "ended the draft" : "was drafted",
                 w->p_min);
    w->stood += t->token >= 0;
    w->ended += t->token < 0;
}

TEST(a_draft_ends_before_the_first_token_below_p_min)
{
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep"};
    static struct record plain, r;
    const char *dir = have_tale() ? "golden/tale" : "golden/tiny/v3-mtp3";
    int32_t prompt[PROMPT];
    vb_model *m = open_model(dir);
    random_tokens(m, 5, prompt, PROMPT);
    run_plain(m, NULL, prompt, PROMPT, TOKENS, &plain);
    for (size_t i = 0; i < COUNT(methods); i++) {
        size_t drafted = SIZE_MAX;
        for (int tenths = 0; tenths <= 10; tenths += 2) {
            struct watcher w = {.p_min = (double)((float)tenths / 10)};
            vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1, .drafting.method = methods[i],
                                    .drafting.tokens = 5, .poison_cut_rows = 1, .drafting.p_min = (float)tenths / 10,
                                    .tap = watch_logits, .tap_context = &w, .trace = watch_choice, .trace_context = &w};
            run(m, &o, prompt, PROMPT, TOKENS, &r);
            check_same(methods[i], &plain, &r);
            assert_int_equal(r.result.draft_failures, 0);
            assert_true(r.result.drafted <= drafted && (w.ended > 0) == (tenths > 0));
            drafted = r.result.drafted;
        }
    }
    vb_session *s;
    REFUSED(vb_session_open(&s, m, &(vb_session_options){.context = 9, .drafting.p_min = 1.5f}, &err), VB_BAD_ARGUMENT,
            "p-min is 1.5");
    REFUSED(vb_session_open(&s, m, &(vb_session_options){.context = 9, .drafting.p_min = NAN}, &err), VB_BAD_ARGUMENT,
            "p-min");
    vb_model_close(m);
}

static int keep_probabilities(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)depth, (void)hidden;
    ((double *)context)[index] = best_probability(logits, 160);
    return 0;
}

TEST(a_draft_model_ends_its_draft_where_it_is_not_sure)
{
    vb_model *m = open_tiny("v3");
    assert_int_equal(vb_vocab_size(m), 160);
    for (uint64_t seed = 0; seed < 20; seed++) {
        int32_t text[200] = {0}, next, drafts[VB_MAX_DRAFT], longer[VB_MAX_DRAFT], n, all;
        double p[200];
        vb_session_options o = {.context = 100, .threads = 1, .drafting.method = "draft-model", .drafting.model = m,
                                .drafting.tokens = 9};
        random_tokens(m, seed, text, 12);
        vb_session *s = open_session(m, &o, text, 12);
        OK(vb_draft(s, &next, longer, &all, &err));
        assert_int_equal(all, 9);
        text[12] = next;
        memcpy(text + 13, longer, 9 * sizeof *longer);
        vb_session *whole = open_session(m, &(vb_session_options){.context = 100, .threads = 1}, text, 22);
        OK(vb_evaluate(whole, 0, keep_probabilities, p, &err)); /* row 12 + i chooses draft i */
        vb_session_close(s);
        o.drafting.p_min = (float)(p[12 + seed % 9] + (seed % 2 ? 1e-4 : -1e-4));
        int wanted = 0;
        while (wanted < 9 && p[12 + wanted] >= (double)o.drafting.p_min)
            wanted++;
        s = open_session(m, &o, text, 12);
        OK(vb_draft(s, &next, drafts, &n, &err));
        if (n != wanted || memcmp(drafts, longer, (size_t)n * sizeof *drafts))
            fail_msg("seed %d, p-min %f: %d drafts, wanted the first %d", (int)seed, (double)o.drafting.p_min, (int)n,
                     wanted);
        vb_session_close(s);
        vb_session_close(whole);
    }
    vb_model_close(m);
}

/* ---- every method ------------------------------------------------------------------------------------------------ */

TEST(every_method_gives_the_bits_of_plain_decoding_and_some_drafts_stand)
{
    static const char *const names[] = {"v3", "moonlight", "tale"};
    static const char *const methods[] = {"ngram", "draft-model"};
    static struct record plain, r;
    char what[128], dir[64];
    int32_t prompt[PROMPT];
    vb_model *other = open_tiny("v2-lite");
    for (size_t method = 0; method < COUNT(methods); method++) {
        size_t drafted = 0, accepted = 0;
        for (size_t i = 0; i < COUNT(names) - !have_tale(); i++) {
            snprintf(dir, sizeof dir, "golden/%s%s", i < 2 ? "tiny/" : "", names[i]);
            vb_model *m = open_model(dir), *rounded = NULL;
            /* now and then of another mind */
            OK(vb_model_open(&rounded, dir, &(vb_model_options){.precision = "bf16"}, &err));
            repetitive_tokens(m, 8, prompt, PROMPT);
            for (int temperature = 0; temperature < 2; temperature++) {
                vb_sampling sampling = {.temperature = (float)temperature, .seed = 3};
                run_plain(m, &sampling, prompt, PROMPT, TOKENS, &plain);
                for (int K = 1; K <= VB_MAX_DRAFT; K += i < 2 ? 1 : 3) { /* the bundled model is slower */
                    vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1,
                                            .drafting.method = methods[method], .drafting.tokens = K,
                                            .prefill_chunk = K % 3 * 7, .sampling = sampling, .padded = K % 4 == 0,
                                            .drafting.settings = K % 2 ? "ngram-min=2" : "ngram-min=1",
                                            .drafting.model = K % 2 ? rounded : other, .poison_cut_rows = 1};
                    run(m, &o, prompt, PROMPT, TOKENS, &r);
                    snprintf(what, sizeof what, "%s, %s, K %d, temperature %d", names[i], methods[method], K,
                             temperature);
                    check_same(what, &plain, &r);
                    assert_int_equal(r.result.draft_failures, 0);
                    drafted += r.result.drafted;
                    accepted += r.result.accepted;
                }
            }
            vb_model_close(m);
            vb_model_close(rounded);
        }
        print_message("%s: %zu drafts, %zu accepted\n", methods[method], drafted, accepted);
        assert_true(accepted > 0 && accepted < drafted);
    }
    vb_model_close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ngram_proposes_what_followed_the_longest_and_then_the_latest_match),
        cmocka_unit_test(ngram_by_hand),
        cmocka_unit_test(methods_are_listed),
        cmocka_unit_test(whatever_a_callback_says_the_output_is_the_same),
        cmocka_unit_test(a_callback_is_asked_by_draft_too_and_must_be_there),
        cmocka_unit_test(a_draft_model_proposes_what_it_would_decode),
        cmocka_unit_test(beyond_a_draft_models_positions_nothing_is_drafted),
        cmocka_unit_test(tokenizers_match_when_every_token_does),
        cmocka_unit_test(a_draft_ends_before_the_first_token_below_p_min),
        cmocka_unit_test(a_draft_model_ends_its_draft_where_it_is_not_sure),
        cmocka_unit_test(every_method_gives_the_bits_of_plain_decoding_and_some_drafts_stand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
