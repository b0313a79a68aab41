/* tests/engine/test_expanded.c -- `prefill` expanded: which rows have the expanded form of attention, however a
 * timeline came about, and what is refused. That nothing else reaches a bit is shown by test_properties.c,
 * test_batch*.c and test_session_save.c too. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/session/prefill.h"

#define MOST 200
#define WIDEST 1024

/* The outputs of attention in layer 0, by index. They depend on the tokens up to the index, and on the form of
 * attention, alone. */
struct seen {
    size_t width;
    int there[MOST];
    float row[MOST][WIDEST];
};

static void look(void *context, const vb_tap *tap)
{
    struct seen *k = context;
    if (strcmp(tap->name, "model.layers.0.self_attn.o_proj.input"))
        return;
    k->width = tap->inner;
    assert_true(k->width <= WIDEST);
    for (size_t r = 0; r < tap->rows; r++) {
        int32_t index = tap->row[r].index;
        k->there[index] = 1;
        memcpy(k->row[index], (const float *)tap->data + r * tap->stride, k->width * sizeof(float));
    }
}

static int no_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* What every row of these tokens gives in one form. */
static void evaluate_all(const vb_model *m, const char *prefill, const int32_t *tokens, size_t count, struct seen *k)
{
    vb_session_options o = {.context = MOST, .threads = 1, .prefill = prefill, .tap = look, .tap_context = k};
    memset(k, 0, sizeof *k);
    vb_session *s = open_session(m, &o, tokens, count);
    OK(vb_evaluate(s, 0, no_row, NULL, &err));
    vb_session_close(s);
}

/* Of the rows that k has seen, those in [first, end) have the expanded form, or the absorbed one. Row 0 attends to one
 * token: with weights that are not quantized, both forms have the same bits there. */
static void check_forms(const vb_session *s, const struct seen *k, const char *what, size_t first, size_t end,
                        int expanded)
{
    static struct seen both[2];
    size_t count, right = 0;
    const int32_t *tokens = vb_tokens(s, &count);
    evaluate_all(s->model, NULL, tokens, count, &both[0]);
    evaluate_all(s->model, "expanded", tokens, count, &both[1]);
    for (size_t i = first > 1 ? first : 1; i < end; i++) {
        size_t bytes = k->width * sizeof(float);
        assert_true(k->there[i] && memcmp(both[0].row[i], both[1].row[i], bytes));
        if (memcmp(k->row[i], both[expanded].row[i], bytes))
            fail_msg("%s: row %zu is %s, wanted %s", what, i,
                     memcmp(k->row[i], both[!expanded].row[i], bytes) ? "neither" : "of the other form",
                     expanded ? "expanded" : "absorbed");
        right++;
    }
    assert_true(right > 0);
}

TEST(rows_of_the_original_prompt_are_expanded_and_no_others)
{
    static struct seen k;
    static struct record r;
    static const char *const names[] = {"glm", "v3-mtp3", "v2-lite"};
    for (size_t i = 0; i < COUNT(names); i++) {
        int32_t text[MOST];
        vb_model *m = open_tiny(names[i]);
        vb_session_options o = {.context = MOST, .threads = 1, .prefill = "expanded", .prefill_chunk = i ? 16 : 0,
                                .tap = look, .tap_context = &k,
                                .drafting.method = vb_mtp_modules(m) ? mtp_method(i) : "none", .poison_cut_rows = 1};
        memset(&k, 0, sizeof k);
        random_tokens(m, i, text, MOST);
        vb_session *s = open_session(m, &o, text, 20);
        OK(vb_prefill(s, &err));
        OK(vb_append(s, text + 20, 20, &err)); /* in two pieces */
        generate(s, 10, &r);
        check_forms(s, &k, "the prompt", 0, 40, 1);
        check_forms(s, &k, "decoding", 40, 49, 0);
        OK(vb_append(s, text + 40, 30, &err));
        generate(s, 5, &r);
        check_forms(s, &k, "text appended later", 49, 84, 0);

        memset(&k, 0, sizeof k);
        OK(vb_truncate(s, 45, &err)); /* behind the prompt */
        generate(s, 6, &r);
        check_forms(s, &k, "after a cut behind the prompt", 44, 50, 0);
        OK(vb_truncate(s, 41, &err)); /* the rewind of a drafter reaches back into it */
        generate(s, 6, &r);
        check_forms(s, &k, "after a cut behind the prompt", 40, 46, 0);

        memset(&k, 0, sizeof k);
        OK(vb_truncate(s, 30, &err)); /* inside: what is appended now is of the prompt too */
        OK(vb_append(s, text + 100, 20, &err));
        generate(s, 6, &r);
        check_forms(s, &k, "after a cut inside the prompt", 30, 50, 1);
        check_forms(s, &k, "after a cut inside the prompt", 50, 55, 0);
        vb_session_close(s);
        vb_model_close(m);
    }
}

/* A session ends as one that had all tokens at once, and never any others. */
TEST(cuts_leave_nothing_behind)
{
    static struct record want, r;
    int32_t text[120];
    vb_model *m = open_tiny("v3-mtp3");
    vb_session_options o = {.context = MOST, .threads = 1, .prefill = "expanded", .drafting.method = "mtp-eagle",
                            .poison_cut_rows = 1};
    random_tokens(m, 4, text, COUNT(text));
    run(m, &o, text, 60, 20, &want);
    vb_session *s = open_session(m, &o, text, 90);
    generate(s, 20, &r);
    OK(vb_truncate(s, 50, &err));
    OK(vb_append(s, text + 50, 10, &err));
    generate(s, 20, &r);
    check_same("cut, appended to", &want, &r);
    OK(vb_truncate(s, 60, &err));
    generate(s, 20, &r);
    check_same("cut behind the prompt", &want, &r);
    vb_session_close(s);
    vb_model_close(m);
}

static void load_fails(const vb_model *m, vb_session_options o, const char *file, const char *prefill, const char *part)
{
    vb_session *s;
    o.prefill = prefill;
    REFUSED(vb_session_load(&s, m, &o, file, NULL, &err), VB_BAD_ARGUMENT, part);
}

TEST(a_prompt_that_is_not_done_goes_on_in_the_same_way_alone)
{
    static struct record want, r;
    char dir[64], file[96];
    int32_t text[50];
    vb_model *m = open_tiny("v3");
    vb_session_options o = {.context = 80, .threads = 1, .prefill = "expanded", .drafting.method = "mtp-vanilla"};
    vb_session *t = NULL;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    random_tokens(m, 6, text, COUNT(text));
    run(m, &o, text, 50, 20, &want);
    vb_session *s = open_session(m, &o, text, 50);
    OK(vb_prefill(s, &err));
    OK(vb_session_save(s, file, NULL, &err));
    load_fails(m, o, file, "contract",
               "was saved with prefill expanded, with rows of the prompt still due; here it is contract");
    OK(vb_session_load(&t, m, &o, file, NULL, &err));
    generate(t, 20, &r);
    check_same("loaded", &want, &r);
    vb_session_info info;
    OK(vb_session_info_read(&info, file, 1, NULL, &err));
    assert_string_equal(info.prefill, "expanded");
    vb_session_close(t);

    vb_batch *b; /* a batch whose passes have no such rows cannot take it, until the prompt is done */
    vb_batch_options contract = {.session = &(vb_session_options){.context = 80, .threads = 1}};
    vb_request q = {.session = s, .options = &(vb_generate_options){.max_tokens = 3, .ignore_eos = 1}};
    OK(vb_batch_open(&b, m, &contract, &err));
    REFUSED(vb_batch_add(b, &q, NULL, &err), VB_BAD_ARGUMENT, "due by prefill expanded, which the batch does not have");
    generate(s, 5, &r);
    OK(vb_batch_add(b, &q, NULL, &err));
    OK(vb_batch_run(b, &err));
    vb_batch_close(b);
    size_t count;
    const int32_t *tokens = vb_tokens(s, &count);
    assert_int_equal(count, 58);
    assert_memory_equal(tokens + 50, want.token, 8 * sizeof *tokens);
    vb_session_close(s);
    vb_model_close(m);
    remove_dir(dir);
}

TEST(a_session_has_one_kind_of_prefill)
{
    vb_model *m = open_tiny("v3");
    vb_session *s;
    vb_session_options o = {.context = 20, .threads = 1, .prefill = "expanded,onednn"};
    REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT,
            "unknown prefill expanded,onednn; known are contract, expanded, onednn and cublas");
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_the_original_prompt_are_expanded_and_no_others),
        cmocka_unit_test(cuts_leave_nothing_behind),
        cmocka_unit_test(a_prompt_that_is_not_done_goes_on_in_the_same_way_alone),
        cmocka_unit_test(a_session_has_one_kind_of_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
