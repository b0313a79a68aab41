/* tests/engine/test_not_finite.c -- weights that are NaN or infinite. A row that has to choose a token and is not
 * finite ends the run: the tokens before it are delivered, the message names position and first layer. A row that was
 * to propose a draft ends that draft alone, and is counted. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <math.h>

#define PROMPT 19
#define TOKENS 40

/* A checkpoint of golden/tiny with broken weights, and what the whole one says. */
struct broken {
    char dir[64];
    vb_model *model;
    int32_t prompt[PROMPT];
    struct record plain;
};

static void broken_begin(struct broken *b, const char *name)
{
    char from[64];
    snprintf(from, sizeof from, "golden/tiny/%s", name);
    copy_checkpoint(b->dir, from);
    vb_model *whole = open_model(from);
    random_tokens(whole, 90, b->prompt, PROMPT);
    run_plain(whole, NULL, b->prompt, PROMPT, TOKENS, &b->plain);
    vb_model_close(whole);
}

static void broken_open(struct broken *b, const char *tensor, size_t first, size_t n, int infinite)
{
    break_tensor(b->dir, tensor, first, n, infinite);
    b->model = open_model(b->dir);
}

static void broken_end(struct broken *b)
{
    vb_model_close(b->model);
    remove_dir(b->dir);
}

/* The first token of the output that is in neither prompt nor output before it; its place at least `from`. */
static size_t first_new_token(const struct broken *b, size_t from)
{
    for (size_t i = from; i < TOKENS; i++) {
        int seen = 0;
        for (size_t j = 0; j < PROMPT; j++)
            seen |= b->prompt[j] == b->plain.token[i];
        for (size_t j = 0; j < i; j++)
            seen |= b->plain.token[j] == b->plain.token[i];
        if (!seen)
            return i;
    }
    fail_msg("no new token in the output");
    return 0;
}

/* Drafts that are right, though they lead to rows that are not finite. */
struct right {
    const vb_session *session;
    const struct broken *of;
};

static void see_nothing(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                        size_t n)
{
    (void)d, (void)pass, (void)pos, (void)tokens, (void)hidden, (void)n;
}

static int propose_right(struct drafter *d, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    const struct right *r = (const struct right *)d;
    (void)pass, (void)failed;
    memcpy(draft, r->of->plain.token + (r->session->count - PROMPT), (size_t)max * sizeof *draft);
    return max;
}

static const struct drafter_type always_right = {.name = "right", .observe = see_nothing, .propose = propose_right,
                                                 .rewind = no_rewind, .close = close_nothing};

/* A run that must end at token `at` (0: the first one) of the output, with a message that holds `part`. K < 0: right
 * drafts. */
static void check_ends(const struct broken *b, const char *draft, int K, size_t at, const char *part)
{
    static struct record r;
    char what[128], position[64];
    vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1, .drafting.method = draft,
                            .drafting.tokens = K < 0 ? -1 : K, .poison_cut_rows = 1};
    struct right right = {.of = b};
    vb_session *s = open_session(b->model, &o, b->prompt, PROMPT);
    right.session = s;
    if (K < 0)
        give_drafter(s, &always_right, &right, -K);
    vb_generate_options g = recording(&r, s, TOKENS);
    snprintf(what, sizeof what, "%s, K %d, token %zu", draft, K, at);
    snprintf(position, sizeof position, "token %zu ", PROMPT + at);
    REFUSED(vb_generate(s, &g, &r.result, &err), VB_NOT_FINITE, position);
    if (r.n != at || r.result.tokens != at || s->count != PROMPT + at)
        fail_msg("%s: %zu tokens were delivered, the timeline has %zu", what, r.n, s->count);
    check_same_prefix(what, &b->plain, &r, at);
    g = recording(&r, s, TOKENS); /* and again, from there */
    REFUSED(vb_generate(s, &g, &r.result, &err), VB_NOT_FINITE, part);
    assert_int_equal(r.n, 0);
    if (at > 3) { /* the tokens before it can be had again */
        OK(vb_truncate(s, PROMPT + 1, &err));
        vb_generate_options few = recording(&r, s, at - 1);
        OK(vb_generate(s, &few, &r.result, &err));
        assert_memory_equal(s->tokens + PROMPT, b->plain.token, at * sizeof *s->tokens);
    }
    vb_session_close(s);
}

static void check_ends_in_every_way(const struct broken *b, size_t at, const char *part)
{
    check_ends(b, "none", 0, at, part);
    for (int K = 1; K <= 15; K += 7) {
        check_ends(b, "none", -K, at, part);
        check_ends(b, "mtp-vanilla", K, at, part);
        check_ends(b, "mtp-eagle", K, at, part);
    }
}

TEST(a_token_with_a_broken_embedding_ends_the_run_where_its_row_would_choose)
{
    static const char *const names[] = {"v3", "v3-mtp3", "glm5"};
    static struct broken b;
    for (size_t i = 0; i < COUNT(names); i++)
        for (int infinite = 0; infinite < 2; infinite++) {
            broken_begin(&b, names[i]);
            size_t at = first_new_token(&b, 6);
            vb_model *m = open_model(b.dir);
            size_t d = (size_t)vb_hidden_size(m);
            vb_model_close(m);
            broken_open(&b, "model.embed_tokens.weight", (size_t)b.plain.token[at] * d + 5, 1, infinite);
            check_ends_in_every_way(&b, at + 1, "the first such layer is 0");
            broken_end(&b);
        }
}

TEST(the_message_names_the_first_layer_that_broke)
{
    static struct broken b;
    static const struct {
        const char *tensor, *part;
    } cases[] = {
        {"model.layers.0.self_attn.kv_a_layernorm.weight", "the first such layer is 0"},
        {"model.layers.1.input_layernorm.weight", "the first such layer is 1"},
        {"model.layers.2.post_attention_layernorm.weight", "the first such layer is 2"},
        {"model.norm.weight", "every layer was"},
        {"lm_head.weight", "every layer was, so it is lm_head"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        broken_begin(&b, "v3");
        broken_open(&b, cases[i].tensor, 3, 1, 0);
        check_ends_in_every_way(&b, 0, cases[i].part);
        broken_end(&b);
    }
}

static int ignore_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)depth, (void)context, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* In a shared pass, too: a neighbour whose modules catch up on more rows than it brings to the pass, before the broken
 * row is looked at. */
TEST(the_message_is_right_when_a_neighbours_modules_run_first)
{
    static struct broken b;
    int32_t tokens[30];
    broken_begin(&b, "v3");
    vb_model *m = open_model(b.dir);
    size_t d = (size_t)vb_hidden_size(m);
    vb_model_close(m);
    broken_open(&b, "model.embed_tokens.weight", 99 * d, 1, 0);
    for (size_t i = 0; i < COUNT(tokens); i++)
        tokens[i] = (int32_t)(i * 5 % 90);
    vb_session_options o = {.context = 64, .threads = 1, .prefill_chunk = 10, .drafting.method = "mtp-vanilla",
                            .drafting.tokens = 3};
    vb_session *pair[] = {open_session(b.model, &o, tokens, 8), open_session(b.model, &o, tokens, 4)};
    OK(vb_evaluate(pair[0], 0, ignore_row, NULL, &err)); /* 8 rows wait for the modules, then 10 more come */
    OK(vb_append(pair[0], tokens + 8, 14, &err));
    OK(vb_append(pair[1], (int32_t[]){99}, 1, &err));
    vb_generate_options g[2] = {{.max_tokens = 9, .ignore_eos = 1}, {.max_tokens = 9, .ignore_eos = 1}};
    vb_result results[2];
    REFUSED(generate_together(pair, 2, g, results, &err), VB_NOT_FINITE,
            "token 5 are not finite; the first such layer is 0");
    vb_session_close(pair[0]);
    vb_session_close(pair[1]);
    broken_end(&b);
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

static void check_drafts_fail(const struct broken *b, const char *draft, int K, int first_draft_too)
{
    static struct record r;
    char what[96];
    vb_session_options o = {.context = PROMPT + TOKENS, .threads = 1, .drafting.method = draft, .drafting.tokens = K,
                            .poison_cut_rows = 1};
    run(b->model, &o, b->prompt, PROMPT, TOKENS, &r);
    snprintf(what, sizeof what, "%s, K %d, broken module", draft, K);
    check_same(what, &b->plain, &r);
    if (first_draft_too &&
        (r.result.drafted || r.result.forwards != TOKENS - 1 || r.result.draft_failures != TOKENS - 2))
        fail_msg("%s: %zu drafts, %zu forwards, %zu failures", what, r.result.drafted, r.result.forwards,
                 r.result.draft_failures);
    if (!first_draft_too && (!r.result.drafted || !r.result.draft_failures || r.result.drafted_by_depth[1]))
        fail_msg("%s: %zu drafts, %zu of depth 2, %zu failures", what, r.result.drafted, r.result.drafted_by_depth[1],
                 r.result.draft_failures);
}

TEST(a_draft_row_that_is_not_finite_ends_the_draft_and_never_the_run)
{
    static struct broken b;
    static const char *const tensors[] = {"model.layers.3.enorm.weight",
                                          "model.layers.3.self_attn.kv_a_layernorm.weight",
                                          "model.layers.3.shared_head.norm.weight"};
    for (size_t i = 0; i < COUNT(tensors); i++) {
        broken_begin(&b, "v3");
        broken_open(&b, tensors[i], 2, 1, (int)i % 2);
        for (int K = 1; K <= 15; K += 7) {
            check_drafts_fail(&b, "mtp-vanilla", K, 1);
            check_drafts_fail(&b, "mtp-eagle", K, 1);
        }
        broken_end(&b);
    }
}

TEST(a_broken_second_module_leaves_the_first_drafts_standing)
{
    static struct broken b;
    broken_begin(&b, "v3-mtp3");
    broken_open(&b, "model.layers.4.hnorm.weight", 2, 1, 0);
    for (int K = 2; K <= 14; K += 4)
        check_drafts_fail(&b, "mtp-vanilla", K, 0);
    broken_end(&b);
}

TEST(draft_proposes_nothing_when_its_rows_are_not_finite)
{
    static struct broken b;
    broken_begin(&b, "v3");
    broken_open(&b, "model.layers.3.enorm.weight", 0, 1, 0);
    for (size_t k = 0; k < 2; k++) {
        vb_session_options o = {.context = 64, .threads = 1, .drafting.method = mtp_method(k), .drafting.tokens = 3};
        vb_session *s = open_session(b.model, &o, b.prompt, PROMPT);
        int32_t next, drafts[VB_MAX_DRAFT], n;
        OK(vb_draft(s, &next, drafts, &n, &err));
        assert_int_equal(next, b.plain.token[0]);
        assert_int_equal(n, 0);
        vb_session_close(s);
    }
    broken_end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_with_a_broken_embedding_ends_the_run_where_its_row_would_choose),
        cmocka_unit_test(the_message_names_the_first_layer_that_broke),
        cmocka_unit_test(the_message_is_right_when_a_neighbours_modules_run_first),
        cmocka_unit_test(a_draft_row_that_is_not_finite_ends_the_draft_and_never_the_run),
        cmocka_unit_test(a_broken_second_module_leaves_the_first_drafts_standing),
        cmocka_unit_test(draft_proposes_nothing_when_its_rows_are_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
