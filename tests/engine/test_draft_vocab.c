/* tests/engine/test_draft_vocab.c -- a draft vocabulary: drafts come from the list and are the best of its tokens,
 * logits of drafts have the bits that the whole head gives, and the output does not change. Runs in the repository's
 * root. */
#include "engine/pass/vocab.h"
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"

#define LISTED 37 /* no multiple of 16: the last panel is not full */
#define PROMPT 20

static int is_listed(const int32_t *list, size_t n, int32_t token)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == token)
            return 1;
    return 0;
}

/* Fills list with n different tokens in a random order. */
static void make_list(const vb_model *m, uint64_t seed, int32_t *list, size_t n)
{
    for (size_t have = 0; have < n;) {
        random_tokens(m, seed++, &list[have], 1);
        have += !is_listed(list, have, list[have]);
    }
}

/* ---- logits of drafts ---- */

struct head_rows {
    size_t count, width;
    float row[4][512];
};

static void note_head(void *context, const vb_tap *tap)
{
    struct head_rows *h = context;
    if (!strstr(tap->name, "shared_head.head.output"))
        return;
    assert_true(tap->inner <= COUNT(h->row[0]));
    h->width = tap->inner;
    for (size_t i = 0; i < tap->rows && h->count < COUNT(h->row); i++)
        memcpy(h->row[h->count++], (const float *)tap->data + i * tap->stride, tap->inner * sizeof(float));
}

/* Returns the first draft after the prompt, and notes the logits from which it was chosen. */
static int32_t first_draft(const vb_model *m, const vb_draft_vocab *vocab, const char *isa, const int32_t *prompt,
                           struct head_rows *h)
{
    vb_session_options o = {.isa = isa, .tap = note_head, .tap_context = h,
                            .drafting = {.method = "mtp-vanilla", .tokens = 1, .vocab = vocab}};
    vb_session *s = open_session(m, &o, prompt, PROMPT);
    int32_t next, drafts[VB_MAX_DRAFT], count;
    OK(vb_draft(s, &next, drafts, &count, &err));
    assert_int_equal(count, 1);
    vb_session_close(s);
    return drafts[0];
}

static void logits_are_those_of_the_whole_head(const char *dir, const char *precision, const char *repack)
{
    vb_model *m;
    OK(vb_model_open(&m, dir, &(vb_model_options){.precision = precision, .repack = repack}, &err));
    for (size_t i = 0; isas_here()[i]; i++) {
        int32_t prompt[PROMPT], list[LISTED];
        struct head_rows whole = {0}, part = {0};
        vb_draft_vocab *vocab;
        random_tokens(m, 100 + i, prompt, PROMPT);
        make_list(m, 200 + i, list, LISTED);
        OK(vb_draft_vocab_open(&vocab, m, list, LISTED, &err));
        assert_true(vb_draft_vocab_bytes(vocab) > 0);
        first_draft(m, NULL, isas_here()[i], prompt, &whole);
        int32_t draft = first_draft(m, vocab, isas_here()[i], prompt, &part), best = vocab->tokens[0];
        assert_int_equal(whole.width, vb_vocab_size(m));
        assert_int_equal(part.width, LISTED);
        for (size_t j = 0; j < LISTED; j++) {
            int32_t token = vocab->tokens[j];
            if (memcmp(&part.row[0][j], &whole.row[0][token], sizeof(float)))
                fail_msg("%s, %s, %s: token %d has logit %a, of the whole head %a", dir, precision, isas_here()[i],
                         token, (double)part.row[0][j], (double)whole.row[0][token]);
            best = whole.row[0][token] > whole.row[0][best] ? token : best;
        }
        assert_int_equal(draft, best);
        vb_draft_vocab_close(vocab);
    }
    vb_model_close(m);
}

static void drafts_are_the_best_of_the_list(void **state)
{
    static const char *const dirs[] = {"golden/tiny/v3", "golden/tiny/glm"}, *const precisions[] = {"f32", "bf16", "q8",
                                                                                                    "q4"};
    (void)state;
    for (size_t d = 0; d < COUNT(dirs); d++)
        for (size_t p = 0; p < COUNT(precisions); p++) {
            logits_are_those_of_the_whole_head(dirs[d], precisions[p], "on");
            if (p > 1)
                logits_are_those_of_the_whole_head(dirs[d], precisions[p], "off");
        }
}

/* ---- outputs ---- */

static vb_draft_vocab *open_vocab(const vb_model *m, const int32_t *list, size_t n)
{
    vb_draft_vocab *vocab;
    OK(vb_draft_vocab_open(&vocab, m, list, n, &err));
    return vocab;
}

static void no_bit_of_the_output_changes(void **state)
{
    struct methods methods = methods_for(NULL, OF_MODULES);
    vb_model *m = open_tiny("v3-mtp3");
    int32_t prompt[PROMPT], list[LISTED];
    struct record plain, drafted;
    (void)state;
    random_tokens(m, 1, prompt, PROMPT);
    make_list(m, 2, list, LISTED);
    run_plain(m, NULL, prompt, PROMPT, 30, &plain);
    memcpy(list, plain.token, 4 * sizeof *list); /* some drafts are right */
    for (size_t i = 0; i < LISTED; i++)
        while (is_listed(list, i, list[i]))
            random_tokens(m, 3 + (uint64_t)list[i], &list[i], 1);
    vb_draft_vocab *vocab = open_vocab(m, list, LISTED);
    for (size_t i = 0; i < 2 * methods.count; i++) {
        vb_session_options o = {.drafting = {.method = methods.name[i / 2], .tokens = 3, .vocab = vocab}};
        if (i % 2 && strcmp(o.drafting.method, "mtp-eagle"))
            continue;
        o.drafting.tree = (vb_tree_shape){.topk = i % 2 ? 3 : 0, .nodes = i % 2 ? 6 : 0};
        run(m, &o, prompt, PROMPT, 30, &drafted);
        check_same(o.drafting.method, &plain, &drafted);
        assert_true(drafted.result.drafted > 0);
    }
    vb_draft_vocab_close(vocab);
    vb_model_close(m);
}

/* Drafts of all methods are tokens of the list. */
static void only_listed_tokens_are_drafted(void **state)
{
    vb_model *m = open_tiny("v3-mtp3");
    int32_t prompt[PROMPT], list[LISTED], next, drafts[VB_MAX_NODES], parents[VB_MAX_NODES], count;
    double confidences[VB_MAX_NODES];
    (void)state;
    make_list(m, 7, list, LISTED);
    vb_draft_vocab *vocab = open_vocab(m, list, LISTED);
    for (uint64_t seed = 0; seed < 8; seed++) {
        vb_session_options o = {.drafting = {.method = mtp_method(seed), .tokens = 3, .vocab = vocab},
                                .sampling = {.temperature = seed & 4 ? 1.0f : 0.0f,
                                             .acceptance = seed & 4 ? "rejection" : NULL}};
        o.drafting.tree.topk = (seed & 7) == 3 ? 4 : 0;
        random_tokens(m, 50 + seed, prompt, PROMPT);
        vb_session *s = open_session(m, &o, prompt, PROMPT);
        OK(vb_draft_tree(s, &next, drafts, parents, confidences, &count, &err));
        assert_true(count >= 3);
        for (int32_t i = 0; i < count; i++)
            assert_true(is_listed(list, LISTED, drafts[i]));
        vb_session_close(s);
    }
    vb_draft_vocab_close(vocab);
    vb_model_close(m);
}

/* ---- acceptance mode rejection ---- */

/* A list of all tokens changes nothing: the rows that drafts are drawn from are put together from the list's rows. */
static void a_list_of_all_tokens_changes_no_draw(void **state)
{
    vb_model *m = open_tiny("v3-mtp3");
    int32_t prompt[PROMPT], V = vb_vocab_size(m), *all = calloc((size_t)V, sizeof *all);
    assert_non_null(all);
    (void)state;
    for (int32_t i = 0; i < V; i++)
        all[i] = V - 1 - i;
    vb_draft_vocab *vocab = open_vocab(m, all, (size_t)V);
    assert_int_equal(vb_draft_vocab_bytes(vocab), 0);
    random_tokens(m, 3, prompt, PROMPT);
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct record without, with;
        vb_session_options o = {.drafting = {.method = mtp_method(seed), .tokens = 3},
                                .sampling = {.temperature = 0.9f, .top_k = 20, .seed = seed,
                                             .acceptance = "rejection"}};
        run(m, &o, prompt, PROMPT, 24, &without);
        o.drafting.vocab = vocab;
        run(m, &o, prompt, PROMPT, 24, &with);
        check_same("rejection", &without, &with);
        assert_int_equal(without.result.accepted, with.result.accepted);
    }
    vb_draft_vocab_close(vocab);
    vb_model_close(m);
    free(all);
}

/* ---- first rows ---- */

/* Kernels note whether a BF16 matrix has tiny weights. Passes over the first rows must not note it for the whole
 * head. */
static void first_rows_say_nothing_about_the_whole_head(void **state)
{
    vb_model *m;
    (void)state;
    OK(vb_model_open(&m, "golden/tiny/v3-mtp3", &(vb_model_options){.precision = "bf16"}, &err));
    vb_draft_vocab *vocab = open_vocab(m, (int32_t[]){2, 0, 1}, 3);
    assert_int_equal(vb_draft_vocab_bytes(vocab), 0);
    for (int k = 0; k < m->num_mtp; k++) {
        assert_ptr_equal(vocab->heads[k].data, m->mtp[k].head.data);
        assert_non_null(vocab->heads[k].magnitudes);
        for (int j = 0; j < m->num_mtp; j++)
            assert_ptr_not_equal(vocab->heads[k].magnitudes, m->mtp[j].head.magnitudes);
    }
    vb_draft_vocab_close(vocab);
    vb_model_close(m);
}

/* ---- batches ---- */

/* Sessions with different lists share passes, but not heads. */
static void sessions_with_different_lists_share_passes(void **state)
{
    vb_model *m = open_tiny("v3");
    int32_t prompt[PROMPT], first[LISTED], second[LISTED];
    struct record alone[3], together[3];
    vb_session *sessions[3];
    vb_generate_options options[3];
    vb_result results[3];
    (void)state;
    random_tokens(m, 11, prompt, PROMPT);
    make_list(m, 12, first, LISTED);
    make_list(m, 13, second, LISTED);
    vb_draft_vocab *vocabs[3] = {open_vocab(m, first, LISTED), NULL, open_vocab(m, second, LISTED)};
    for (size_t i = 0; i < 3; i++) {
        vb_session_options o = {.context = 64, .drafting = {.method = "mtp-eagle", .tokens = 2, .vocab = vocabs[i]}};
        run(m, &o, prompt, PROMPT, 20, &alone[i]);
        sessions[i] = open_session(m, &o, prompt, PROMPT);
        options[i] = recording(&together[i], sessions[i], 20);
    }
    OK(generate_together(sessions, 3, options, results, &err));
    for (size_t i = 0; i < 3; i++) {
        check_same_prefix("together", &alone[i], &together[i], 20);
        assert_int_equal(alone[i].result.drafted, results[i].drafted);
        assert_int_equal(alone[i].result.accepted, results[i].accepted);
        vb_session_close(sessions[i]);
        vb_draft_vocab_close(vocabs[i]);
    }
    vb_model_close(m);
}

/* ---- errors ---- */

static void wrong_lists_are_refused(void **state)
{
    vb_model *m = open_tiny("v3"), *other = open_tiny("v3-mtp3"), *without = open_tiny("v2");
    int32_t V = vb_vocab_size(m);
    vb_draft_vocab *vocab;
    vb_session *s;
    (void)state;
    REFUSED(vb_draft_vocab_open(&vocab, m, (int32_t[]){0}, 0, &err), VB_BAD_ARGUMENT, "0 tokens, wanted 1 to");
    REFUSED(vb_draft_vocab_open(&vocab, m, (int32_t[]){5, V}, 2, &err), VB_BAD_ARGUMENT, "token 1 is");
    REFUSED(vb_draft_vocab_open(&vocab, m, (int32_t[]){5, -1}, 2, &err), VB_BAD_ARGUMENT, "token 1 is -1");
    REFUSED(vb_draft_vocab_open(&vocab, m, (int32_t[]){5, 7, 5}, 3, &err), VB_BAD_ARGUMENT, "token 5 is listed twice");
    REFUSED(vb_draft_vocab_open(&vocab, without, (int32_t[]){5}, 1, &err), VB_BAD_ARGUMENT, "has none");
    assert_null(vocab);
    OK(vb_draft_vocab_open(&vocab, m, (int32_t[]){5}, 1, &err));
    vb_session_options o = {.drafting = {.method = "mtp-eagle", .vocab = vocab}};
    REFUSED(vb_session_open(&s, other, &o, &err), VB_BAD_ARGUMENT, "another model");
    vb_draft_vocab_close(vocab);
    vb_model_close(m);
    vb_model_close(other);
    vb_model_close(without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_the_best_of_the_list), cmocka_unit_test(no_bit_of_the_output_changes),
        cmocka_unit_test(only_listed_tokens_are_drafted), cmocka_unit_test(a_list_of_all_tokens_changes_no_draw),
        cmocka_unit_test(first_rows_say_nothing_about_the_whole_head),
        cmocka_unit_test(sessions_with_different_lists_share_passes), cmocka_unit_test(wrong_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
