/* tests/engine/test_ranks_taps.c -- a tap callback on rank 0 of several ranks gets the names, shapes and bits that it
 * gets in one process. Runs in the repository's root. With --all: with more numbers of ranks. */
#include "tests/support/layout_checkpoint.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny.h"

static int all;

static void see(void *context, const vb_tap *t)
{
    struct notes *n = context;
    for (size_t i = 0; i < t->rows; i++) {
        const vb_tap_row *r = &t->row[i];
        int32_t of_row[] = {r->sequence, r->token, r->index, r->position, r->slot, r->draft, r->hidden_of,
                            r->hidden_depth, r->parent};
        note_bytes(n, of_row, sizeof of_row, "pass %d, %s, layer %d, depth %d, row %zu", (int)t->pass, t->name,
                   t->layer, t->depth, i);
        for (size_t a = 0; a < t->outer; a++)
            note_bytes(n, (const uint32_t *)t->data + i * t->stride + a * t->outer_stride, 4 * t->inner,
                       "pass %d, %s, layer %d, row %zu, %zu of %zu x %zu", (int)t->pass, t->name, t->layer, i, a,
                       t->outer, t->inner);
    }
}

struct taps {
    int scores, plain; /* plain: without taps */
    const char *prefill;
};

static void tap_a_run(vb_model *m, struct notes *n, void *context)
{
    const struct taps *t = context;
    int32_t prompt[13];
    vb_session_options o = {.context = 40, .threads = 1, .prefill_chunk = 6, .tap = t->plain ? NULL : see,
                            .tap_context = n, .tap_scores = t->scores, .prefill = t->prefill,
                            .drafting = {.method = vb_mtp_modules(m) ? "mtp-eagle" : "ngram", .tokens = 2}};
    random_tokens(m, 5, prompt, COUNT(prompt));
    vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
    note_run(n, s, 4, "run");
    vb_session_close(s);
}

static void check(const char *dir, vb_model_options o, struct taps t, int count)
{
    char what[200];
    struct group_options g = {.count = count, .threads = 1 + count % 2};
    for (int r = 0; r < count && count % 2; r++)
        g.weights[r] = 1 + (uint32_t)(r * r) % 3;
    snprintf(what, sizeof what, "%s, precision %s, %d ranks%s%s", dir, o.precision ? o.precision : "f32", count,
             t.scores ? ", with scores" : "", t.prefill ? ", expanded" : "");
    check_scenario(what, dir, &o, &g, tap_a_run, &t);
}

static const char *const precisions[] = {"f32", "bf16", "q8", "q4"};

/* Of 7 ranks, some have no attention head, and some no row of a matrix. */
TEST(taps_of_each_checkpoint_are_those_of_one_process)
{
    static const char *const paths[] = {TINY_CHECKPOINTS(TINY_PATH) TINY_WITH_INDEXER(TINY_PATH)
                                            TINY_SHAPES(TINY_PATH)};
    for (size_t i = 0; i < COUNT(paths); i++) {
        check(paths[i], (vb_model_options){.precision = precisions[i % 4]}, (struct taps){.scores = i % 2 == 0},
              2 + (int)i % 3);
        check(paths[i], (vb_model_options){.precision = precisions[(i + 1) % 4], .cache_type = i % 3 ? "bf16" : NULL},
              (struct taps){.scores = i % 2}, 7);
        for (int count = 2; all && count <= 8; count++)
            check(paths[i], (vb_model_options){.precision = precisions[(i + 2) % 4]},
                  (struct taps){.prefill = count % 2 ? "expanded" : NULL}, count);
    }
}

/* Each rank has a part of everything. */
TEST(taps_of_a_model_of_which_each_rank_has_a_share_are_those_of_one_process)
{
    for (size_t l = 0; l < LAYOUTS; l++) {
        char dir[64];
        layout_checkpoint(dir, (struct layout_checkpoint){.layout = (enum layout)l, .no_q_lora = l % 2});
        check(dir, (vb_model_options){.precision = precisions[l % 4]},
              (struct taps){.scores = l % 2 == 0, .prefill = l % 2 ? "expanded" : NULL}, 2 + (int)l % 4);
        remove_dir(dir);
    }
}

static void two_sessions(vb_model *m, struct notes *n, void *context)
{
    struct taps taps[] = {{.plain = 1}, {.scores = 1}, {.plain = 1}, {0}, {.plain = 1}};
    (void)context;
    for (size_t i = 0; i < COUNT(taps); i++)
        tap_a_run(m, n, &taps[i]);
}

TEST(a_session_without_taps_after_one_with_taps_has_the_same_bits)
{
    char dir[64];
    layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_FP8});
    check_scenario("with and without taps", dir, &(vb_model_options){.precision = "bf16"},
                   &(struct group_options){.count = 3}, two_sessions, NULL);
    remove_dir(dir);
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "--all");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taps_of_each_checkpoint_are_those_of_one_process),
        cmocka_unit_test(taps_of_a_model_of_which_each_rank_has_a_share_are_those_of_one_process),
        cmocka_unit_test(a_session_without_taps_after_one_with_taps_has_the_same_bits),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
