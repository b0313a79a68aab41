/* tests/engine/test_ranks_bytes.c -- what ranks exchange and have in memory is what docs/RANKS.md says and `verbatim
 * plan` computes. Runs in the repository's root. */
#include "engine/pass/plan.h"
#include "tests/support/layout_checkpoint.h"
#include "tests/support/ranks.h"

#define TOKENS 7

static const char *const precisions[] = {"f32", "bf16", "q8", "q4"};

struct opened {
    struct group *group;
    vb_ranks *ranks;
    vb_model *m;
    int count;
    vb_rank_facts before[MOST_GROUP], after[MOST_GROUP];
};

static struct opened open_on(const char *dir, const char *precision, const struct group_options *g)
{
    struct opened o = {.count = g->count};
    o.ranks = group_open(&o.group, g);
    OK(vb_model_open(&o.m, dir, &(vb_model_options){.precision = precision, .ranks = o.ranks}, &err));
    return o;
}

static void close_on(struct opened *o)
{
    vb_model_close(o->m);
    group_close(o->group);
}

/* Returns the exchanges since facts[0]. They are the same on all ranks. */
static void look_at(struct opened *o, const char *what, double gathers, double bytes)
{
    vb_ranks_facts(o->ranks, o->after);
    for (int r = 0; r < o->count; r++) {
        double seen[] = {(double)(o->after[r].gathers - o->before[r].gathers),
                         (double)(o->after[r].bytes - o->before[r].bytes)};
        if (seen[0] != gathers || seen[1] != bytes)
            fail_msg("%s: %.0f exchanges of %.0f bytes on rank %d, wanted %.0f of %.0f", what, seen[0], seen[1], r,
                     gathers, bytes);
        char host[] = {'h', 'o', 's', 't', '-', (char)('0' + r), 0};
        assert_string_equal(o->after[r].host, host);
        assert_true(o->after[r].seconds >= o->before[r].seconds && o->after[r].resident_bytes > 0);
    }
    memcpy(o->before, o->after, sizeof o->before);
}

static vb_session *open_ready(struct opened *o, size_t tokens)
{
    int32_t prompt[TOKENS];
    random_tokens(o->m, 9, prompt, tokens);
    vb_session *s = open_session(o->m, &(vb_session_options){.context = 64, .threads = 1}, prompt, tokens);
    vb_ranks_facts(o->ranks, o->before);
    return s;
}

/* ---- by hand ---- */

/* Bytes of a number that is exchanged as the input of a matrix. */
static double travelling(size_t p) { return p == 0 ? 4 : p == 1 ? 2 : 36.0 / 32; }

static double layer_bytes(int is_moe, double w)
{
    double h = is_moe ? (LAYOUT_CHOSEN + 1) * LAYOUT_EXPERT : LAYOUT_DENSE;
    return LAYOUT_HEADS * LAYOUT_VALUE * w + 4 * LAYOUT_D + h * w + 4 * LAYOUT_D;
}

static int see_nothing(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

TEST(exchanges_are_those_of_the_formula)
{
    static const struct group_options groups[] = {{.count = 2}, {.count = 3, .weights = {1, 3, 2}}, {.count = 8}};
    char dir[64], what[100];
    layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_BF16});
    for (size_t p = 0; p < COUNT(precisions); p++)
        for (size_t g = 0; g < COUNT(groups); g++) {
            struct opened o = open_on(dir, precisions[p], &groups[g]);
            struct record r;
            double dense = layer_bytes(0, travelling(p)), moe = layer_bytes(1, travelling(p)), head = 4 * LAYOUT_V;
            snprintf(what, sizeof what, "%s, %d ranks", precisions[p], groups[g].count);
            vb_session *s = open_ready(&o, 1);
            generate(s, TOKENS, &r); /* as many rows of the target, each with logits */
            look_at(&o, what, TOKENS * 9, TOKENS * (dense + moe + head));
            vb_session_close(s);
            s = open_ready(&o, TOKENS);
            OK(vb_evaluate(s, 1, see_nothing, NULL, &err)); /* two passes: the module's has a row less */
            look_at(&o, what, 9 + 6, TOKENS * (dense + moe + head) + (TOKENS - 1) * (4 * LAYOUT_D + moe + head));
            vb_session_close(s);
            look_at(&o, what, 0, 0);
            close_on(&o);
        }
    remove_dir(dir);
}

/* ---- memory ---- */

static struct op_ranks split_of(const struct group_options *g, uint64_t before[MOST_GROUP + 1])
{
    for (int r = 0; r < g->count; r++)
        before[r + 1] = before[r] + (g->weights[0] ? g->weights[r] : 1);
    return (struct op_ranks){.count = g->count, .before = before};
}

/* The weights of a rank are its rows of the matrices that are divided, and what every rank has. test_plan compares
 * exchanges with the plan. */
TEST(each_rank_has_as_many_bytes_of_weights_as_planned)
{
    /* FP8 scales are not counted */
    static const char *const paths[] = {"golden/tiny/glm", "golden/tiny/v2", "golden/tiny/v2-lite",
                                        "golden/tiny/mistral4", "golden/tiny/moonlight", "golden/tiny/glm5",
                                        "golden/tiny/gigachat", "golden/tiny/youtu", NULL};
    static const enum layout layouts[] = {LAYOUT_BF16, LAYOUT_I4, LAYOUT_NVFP4, LAYOUT_MXFP4};
    static const struct group_options groups[] = {{.count = 2}, {.count = 3, .weights = {2, 1, 1}}, {.count = 5}};
    for (size_t i = 0; i < COUNT(paths) + 7; i++) {
        char dir[64];
        int is_made = i + 1 >= COUNT(paths);
        const char *precision = precisions[i % 2]; /* copies in q8 and q4 have other sizes: of kv_b, one part is
                                                      copied */
        const struct group_options *g = &groups[i % COUNT(groups)];
        uint64_t before[MOST_GROUP + 1] = {0};
        struct op_ranks split = split_of(g, before);
        vb_model *alone = NULL;
        if (is_made)
            layout_checkpoint(dir, (struct layout_checkpoint){.layout = layouts[i % 4], .no_q_lora = i % 2,
                                                              .tied = i % 3 == 0});
        else
            snprintf(dir, sizeof dir, "%s", paths[i]);
        OK(vb_model_open(&alone, dir, &(vb_model_options){.precision = precision}, &err));
        struct opened o = open_on(dir, precision, g);
        vb_ranks_facts(o.ranks, o.after);
        for (int rank = 0; rank < g->count; rank++) {
            struct plan_memory memory = plan_memory(alone, &split, rank, 1, alone->num_mtp);
            if ((double)o.after[rank].weight_bytes != memory.own + memory.whole)
                fail_msg("%s, %s: rank %d has %zu bytes of weights, the plan says %.0f and %.0f", dir, precision, rank,
                         o.after[rank].weight_bytes, memory.own, memory.whole);
        }
        vb_model_close(o.m);
        vb_ranks_facts(o.ranks, o.after);
        assert_int_equal(o.after[g->count - 1].weight_bytes, 0);
        group_close(o.group);
        vb_model_close(alone);
        if (is_made)
            remove_dir(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_are_those_of_the_formula),
        cmocka_unit_test(each_rank_has_as_many_bytes_of_weights_as_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
