/* tests/engine/test_ranks.c -- several ranks compute the same bits as one process. The ranks are threads of this
 * program (tests/support/ranks.h). The expected results come from runs without ranks. Runs in the repository's root. */
#include "tests/support/batch.h"
#include "tests/support/engine_support.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny.h"

#define PROMPT 21
#define TOKENS 14

static const char *const paths[] = {TINY_CHECKPOINTS(TINY_PATH) TINY_WITH_INDEXER(TINY_PATH) TINY_SHAPES(TINY_PATH)};
static const int modules[] = {TINY_CHECKPOINTS(TINY_MODULES) TINY_WITH_INDEXER(TINY_MODULES) TINY_SHAPES(TINY_MODULES)};

static vb_model *open_on(vb_ranks *ranks, const char *dir, const char *precision, const char *cache)
{
    vb_model *m = NULL;
    vb_model_options o = {.precision = precision, .cache_type = cache, .ranks = ranks};
    OK(vb_model_open(&m, dir, &o, &err));
    return m;
}

/* Runs a prompt on a group of ranks, and compares the run with the same run in one process. */
static void check_run(const char *what, const struct group_options *g, const char *dir, const char *precision,
                      const char *cache, const vb_session_options *o)
{
    static struct record alone, together;
    struct group *group;
    int32_t prompt[PROMPT];
    vb_session_options plain = {.threads = 1, .prefill = o->prefill, .sampling = o->sampling};
    vb_model *m = open_on(NULL, dir, precision, cache);
    random_tokens(m, 7, prompt, PROMPT);
    run(m, &plain, prompt, PROMPT, TOKENS, &alone);
    vb_model_close(m);
    m = open_on(group_open(&group, g), dir, precision, cache);
    run(m, o, prompt, PROMPT, TOKENS, &together);
    vb_model_close(m);
    group_close(group);
    check_same(what, &alone, &together);
}

/* ---- every checkpoint, in turn with every other setting ---- */

TEST(each_checkpoint_has_the_same_bits_on_several_ranks)
{
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"}, *const caches[] = {"f32", "bf16"};
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "ngram", "eagle-keep"};
    const char *const *isas = isas_here();
    int num_isas = 0;
    char what[200];
    while (isas[num_isas])
        num_isas++;
    for (int i = 0; i < 2 * (int)COUNT(paths); i++) {
        int p = i % (int)COUNT(paths);
        const char *method = modules[p] ? methods[(size_t)i % COUNT(methods)] : "ngram";
        struct group_options g = {.count = 2 + i % 3, .threads = 1 + i % 2};
        for (int r = 0; r < g.count; r++) {
            g.weights[r] = i % 4 == 3 ? 1 + (uint32_t)(i + r) % 3 : 1;
            g.isa[r] = isas[(i + r) % num_isas];
        }
        vb_session_options o = {.threads = 1 + i % 2, .isa = isas[i % num_isas], .prefill_chunk = i % 2 ? 5 : 0,
                                .prefill = i % 5 == 4 ? "expanded" : NULL,
                                .drafting = {.method = method, .tokens = 1 + i % 5,
                                             .settings = strcmp(method, "ngram") ? NULL : "ngram-min=1"},
                                .sampling = {.temperature = i % 2 ? 1.0f : 0.0f, .seed = 3}};
        const char *precision = precisions[(i + i / (int)COUNT(paths)) % 4];
        snprintf(what, sizeof what, "%s, %s, %d ranks, %s, rank 0 has %s", paths[p], precision, g.count, method, o.isa);
        check_run(what, &g, paths[p], precision, caches[i % 2], &o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_checkpoint_has_the_same_bits_on_several_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
