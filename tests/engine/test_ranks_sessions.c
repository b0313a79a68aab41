/* tests/engine/test_ranks_sessions.c -- sessions, batches and files on several ranks have the bits that they have in
 * one process. Runs in the repository's root. With --all: on more models and groups. */
#include "tests/support/batch.h"
#include "tests/support/layout_checkpoint.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny.h"

static int all;

static const struct group_options two = {.count = 2}, three = {.count = 3, .weights = {2, 1, 3}},
                                  five = {.count = 5, .weights = {1, 1, 1, 1, 1}, .threads = 2};

static void check(const char *what, const char *dir, const vb_model_options *o, scenario *compute, void *context)
{
    static const vb_model_options plain;
    check_scenario(what, dir, o ? o : &plain, &three, compute, context);
    if (all) {
        check_scenario(what, dir, o ? o : &plain, &two, compute, context);
        check_scenario(what, dir, o ? o : &plain, &five, compute, context);
    }
}

static vb_session_options some_options(const char *method, int K)
{
    return (vb_session_options){.context = 90, .threads = 1, .prefill_chunk = 6,
                                .drafting = {.method = method, .tokens = K}, .poison_cut_rows = 1};
}

/* ---- draft methods ---- */

static void draft_with(vb_model *m, struct notes *n, void *context)
{
    const vb_session_options *of = context;
    vb_session_options o = *of;
    int32_t prompt[17];
    o.drafting.model = o.drafting.model ? o.drafting.model : m;
    random_tokens(m, 8, prompt, COUNT(prompt));
    prompt[0] = 3; /* starts a thinking part, which acceptance relaxed needs */
    vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
    note_run(n, s, 18, "first");
    OK(vb_append(s, prompt, 9, &err));
    note_run(n, s, 5, "second");
    vb_session_close(s);
}

/* The drafts, and which of them are accepted, are those of one process, too. */
TEST(every_draft_method_drafts_the_same)
{
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep", "ngram",
                                          "draft-model"};
    vb_model *small = open_tiny("v2-lite"); /* has no group: rank 0 computes it alone */
    char what[120];
    for (size_t i = 0; i < 2 * COUNT(methods); i++) {
        vb_session_options o = some_options(methods[i / 2], 1 + (int)i);
        o.padded = i % 4 == 1;
        o.sampling = (vb_sampling){.temperature = i % 2 ? 0.9f : 0.0f, .seed = i, .top_k = i % 2 ? 50 : 0};
        if (i == 11)
            o.drafting.model = small;
        else if (i % 4 == 3 && strncmp(methods[i / 2], "eagle", 5))
            o.sampling.acceptance = i % 8 == 3 ? "rejection" : "relaxed", o.sampling.thinking_begin = 3,
            o.sampling.thinking_end = 4;
        snprintf(what, sizeof what, "%s, %d drafts, %s", o.drafting.method, o.drafting.tokens,
                 o.sampling.acceptance ? o.sampling.acceptance : "strict");
        check(what, i % 2 ? "golden/tiny/v3-mtp3" : "golden/tiny/glm5", NULL, draft_with, &o);
    }
    vb_model_close(small);
}

/* Records the confidence of each draft, which depends on the bits of the logits from which it was drafted. */
static void draft_between(vb_model *m, struct notes *n, void *context)
{
    const vb_session_options *of = context;
    vb_session_options o = of ? *of : some_options("mtp-eagle", 4);
    int32_t prompt[23], next, drafts[VB_MAX_NODES], parents[VB_MAX_NODES], count;
    double confidence[VB_MAX_NODES];
    o.drafting.tree.topk = 3;
    random_tokens(m, 8, prompt, COUNT(prompt));
    vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
    OK(vb_draft_tree(s, &next, drafts, parents, confidence, &count, &err));
    note(n, (uint64_t)next, "token");
    note_bytes(n, drafts, (size_t)count * sizeof *drafts, "%d drafts", count);
    note_bytes(n, parents, (size_t)count * sizeof *parents, "their parents");
    note_bytes(n, confidence, (size_t)count * sizeof *confidence, "their confidences");
    OK(vb_truncate(s, 11, &err));
    OK(vb_append(s, prompt, 7, &err));
    OK(vb_prefill(s, &err));
    note_run(n, s, 7, "after a cut");
    OK(vb_truncate(s, 20, &err));
    note_run(n, s, 7, "after another cut");
    vb_session_close(s);
}

TEST(heads_of_the_target_draft_the_same)
{
    static const char *const methods[] = {"eagle", "eagle3", "parallel-heads"};
    static const char *const precisions[] = {"f32", "bf16", "q8"};
    for (size_t i = 0; i < 18; i++) {
        vb_session_options o = some_options(methods[i % 3], 2 + (int)i % 4);
        o.drafting.head = head_of(methods[i % 3]);
        o.drafting.tree.topk = i >= 9 ? 3 : 0;
        check(methods[i % 3], "golden/tiny/v3", &(vb_model_options){.precision = precisions[i / 3 % 3]},
              i < 9 ? draft_with : draft_between, &o);
    }
}

TEST(trees_of_drafts_are_the_same)
{
    for (size_t i = 0; i < 4; i++) {
        vb_session_options o = some_options("mtp-eagle", 3);
        o.drafting.tree = (vb_tree_shape){.topk = 2 + (int)i % 3, .nodes = i % 2 ? 9 : 0};
        o.sampling = (vb_sampling){.temperature = i / 2 ? 0.8f : 0.0f, .seed = 4};
        check("trees", i % 2 ? "golden/tiny/v32" : "golden/tiny/v3", NULL, draft_with, &o);
    }
}

TEST(cuts_and_single_drafts_are_the_same)
{
    static const char *const dirs[] = {"golden/tiny/v3", "golden/tiny/glm5"};
    for (size_t i = 0; i < COUNT(dirs); i++)
        check("cuts", dirs[i], &(vb_model_options){.precision = i ? "bf16" : NULL, .cache_type = i ? NULL : "bf16"},
              draft_between, NULL);
}

/* A draft model may be computed by the same group of ranks. */
static void draft_by_the_group(vb_model *m, struct notes *n, void *context)
{
    vb_model *other = NULL;
    vb_model_options o = {.precision = "q8", .ranks = m->ranks};
    vb_session_options so = some_options("draft-model", 3);
    (void)context;
    OK(vb_model_open(&other, "golden/tiny/v2", &o, &err));
    so.drafting.model = other;
    draft_with(m, n, &so);
    vb_model_close(other);
}

TEST(a_draft_model_on_the_same_ranks_drafts_the_same)
{
    check("two models", "golden/tiny/v3", NULL, draft_by_the_group, NULL);
}

/* ---- draft vocabularies ---- */

/* Which tokens may be drafted: some, the first ones, the last one, those of which the middle one of three ranks has
 * none. */
static vb_draft_vocab *vocab_of(vb_model *m, int which)
{
    vb_draft_vocab *v;
    int32_t V = vb_vocab_size(m), *list = calloc((size_t)V, sizeof *list);
    size_t n = 0;
    assert_non_null(list);
    for (int32_t t = 0; t < V; t++)
        if (which == 0 ? t % 32 == 0 || t % 5 == 1 : which == 1 ? t < 21
                                                 : which == 2   ? t == V - 1
                                                                : t < 5 || t > V - 30)
            list[n++] = t;
    OK(vb_draft_vocab_open(&v, m, list, n, &err));
    free(list);
    return v;
}

static void draft_listed(vb_model *m, struct notes *n, void *context)
{
    const int *which = context;
    vb_draft_vocab *vocab = vocab_of(m, *which);
    vb_session_options o = some_options(*which % 2 ? "mtp-vanilla" : "mtp-eagle", 3);
    o.drafting.vocab = vocab;
    if (*which % 2 == 0) /* mtp-vanilla drafts no trees */
        draft_between(m, n, &o);
    draft_with(m, n, &o);
    vb_draft_vocab_close(vocab);
}

/* The confidences that draft_between notes show the bits of the logits of the listed tokens. */
TEST(tokens_of_a_list_are_drafted_the_same)
{
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"};
    char dir[64];
    for (int which = 0; which < 4; which++)
        for (size_t p = (size_t)which % 2; p < (all ? 4 : 3); p += all ? 1 : 2)
            check("a list", which % 2 ? "golden/tiny/v3-mtp3" : "golden/tiny/glm5",
                  &(vb_model_options){.precision = precisions[p]}, draft_listed, &which);
    layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_FP8}); /* its module has a head of its own */
    check("FP8", dir, NULL, draft_listed, &(int){0});
    remove_dir(dir);
}

/* ---- evaluation, routes ---- */

struct seen_rows {
    struct notes *n;
    size_t V, d;
};

static int see_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct seen_rows *r = context;
    note_bytes(r->n, logits, r->V * sizeof *logits, "logits of row %zu of depth %d", index, depth);
    note_bytes(r->n, hidden, r->d * sizeof *hidden, "hidden state of row %zu of depth %d", index, depth);
    return 0;
}

#define EVALUATED 40

/* Rows of all depths, with routes that were recorded and changed. */
static void evaluate(vb_model *m, struct notes *n, void *context)
{
    int32_t tokens[EVALUATED];
    struct seen_rows seen = {n, (size_t)vb_vocab_size(m), (size_t)vb_hidden_size(m)};
    vb_session_options o = {.context = EVALUATED, .threads = 1, .prefill_chunk = 18, .prefill = context, };
    vb_routes r;
    vb_model_routes(m, &r);
    o.record_routes = r.top_k > 0;
    o.record_kept = r.index_topk > 0;
    random_tokens(m, 8, tokens, EVALUATED);
    for (int round = 0; round < 2; round++) {
        vb_session *s = open_session(m, &o, tokens, EVALUATED);
        OK(vb_evaluate(s, vb_mtp_modules(m) ? 3 : 0, see_row, &seen, &err));
        assert_int_equal(vb_session_routes(s, &r), r.top_k > 0);
        size_t experts = r.experts ? r.tokens * (size_t)(r.layers * r.top_k) : 0,
               kept = r.kept ? r.tokens * (size_t)(r.layers * r.index_topk) : 0;
        note_bytes(n, r.experts, experts * sizeof *r.experts, "%zu experts", experts);
        note_bytes(n, r.kept, kept * sizeof *r.kept, "%zu kept tokens", kept);
        int32_t *copies[2] = {malloc(experts * 4 + 4), malloc(kept * 4 + 4)};
        for (size_t i = 0; i < experts; i++) /* each token takes the experts of the token after it */
            copies[0][i] = r.experts[(i + (size_t)(r.layers * r.top_k)) % experts];
        if (kept)
            memcpy(copies[1], r.kept, kept * 4);
        for (size_t t = 0; t < (kept ? r.tokens : 0); t++) /* and attends to the first tokens */
            for (int i = 0; i < r.layers * r.index_topk; i++) {
                int32_t *set = copies[1] + t * (size_t)(r.layers * r.index_topk) + i;
                *set = i % r.index_topk <= (int)t ? i % r.index_topk : -1;
            }
        vb_session_close(s);
        free((void *)(uintptr_t)o.routes.experts);
        free((void *)(uintptr_t)o.routes.kept);
        o.routes = r;
        o.routes.experts = experts ? copies[0] : NULL;
        o.routes.kept = kept ? copies[1] : NULL;
        if (!experts)
            free(copies[0]);
        if (!kept)
            free(copies[1]);
    }
    free((void *)(uintptr_t)o.routes.experts);
    free((void *)(uintptr_t)o.routes.kept);
}

TEST(rows_of_evaluations_and_routes_are_the_same)
{
    static const char *const paths[] = {TINY_CHECKPOINTS(TINY_PATH) TINY_WITH_INDEXER(TINY_PATH)
                                            TINY_SHAPES(TINY_PATH)};
    for (size_t i = 0; i < COUNT(paths); i++)
        check(paths[i], paths[i], NULL, evaluate, i % 2 ? "expanded" : NULL);
    char dir[64];
    layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_FP8}); /* the MTP module of this layout has its
                                                                                 own output head */
    check("FP8", dir, &(vb_model_options){.precision = "bf16"}, evaluate, NULL);
    remove_dir(dir);
}

/* ---- batches ---- */

#define JOBS 7

static void run_batch(vb_model *m, struct notes *n, void *context)
{
    static const char *const methods[] = {"mtp-eagle", "ngram", "none", "mtp-vanilla"};
    static struct job job[JOBS];
    vb_session_options session = {.context = 60, .threads = 1, .prefill_chunk = 9, .prefill = context,
                                  .record_routes = 1};
    vb_batch_options o = {.session = &session, .max_sequences = 4, .cache_tokens = 85, .keep_finished = 2};
    vb_batch *b = open_batch_of(m, &o);
    vb_draft_vocab *vocabs[] = {vb_mtp_modules(m) ? vocab_of(m, 0) : NULL, vb_mtp_modules(m) ? vocab_of(m, 3) : NULL};
    int32_t shared[40];
    random_tokens(m, 4, shared, COUNT(shared));
    memset(job, 0, sizeof job);
    for (size_t i = 0; i < JOBS; i++) {
        job[i].sampling = (vb_sampling){.temperature = i % 2 ? 1.0f : 0.0f, .seed = i};
        job[i].drafting = (vb_drafting){.method = methods[i % (vb_mtp_modules(m) ? 4 : 3)], .tokens = 1 + (int)i % 3,
                                        .vocab = i > 2 ? vocabs[i % 2] : NULL};
        if (!vb_mtp_modules(m) && i % 3 == 0)
            job[i].drafting.method = "none";
        job[i].options = (vb_generate_options){.max_tokens = 10 + 3 * i, .ignore_eos = 1};
        job_prompt(&job[i], shared, 20);
        for (size_t t = 8 + i; t < 20; t++) /* prompts begin with the same tokens */
            job[i].prompt[t] = (int32_t)((i * 7 + t) % job[i].count + 3);
        job[i].tells = i == 5;
        add_job(b, m, &job[i]);
    }
    run_batch_to_its_end(b);
    for (size_t i = 0; i < JOBS; i++) { /* and conversations that go on */
        assert_int_equal(job[i].ended, 1);
        note_bytes(n, job[i].tokens, job[i].total * sizeof *job[i].tokens, "tokens of job %zu", i);
        note(n, job[i].result.fingerprint, "fingerprint of job %zu", i);
        note(n, job[i].result.drafted << 32 | job[i].result.accepted, "drafts of job %zu", i);
        note(n, job[i].result.cached_tokens, "tokens that job %zu found", i);
        note_bytes(n, job[i].rows, job[i].told * sizeof *job[i].rows, "rows of the prompt of job %zu", i);
    }
    static struct job again;
    again = (struct job){.options = {.max_tokens = 6, .ignore_eos = 1},
                         .drafting.method = job[JOBS - 1].drafting.method, .drafting.tokens = 2};
    job_prompt(&again, job[JOBS - 1].tokens, job[JOBS - 1].total);
    add_job(b, m, &again);
    run_batch_to_its_end(b);
    vb_batch_state state = look(b);
    note(n, again.result.fingerprint, "fingerprint of the conversation");
    note(n, state.preemptions, "preemptions");
    note(n, state.shared_tokens, "shared tokens");
    if (!state.preemptions || !state.shared_tokens || !again.result.cached_tokens)
        fail_msg("%zu preemptions, %zu shared tokens, and %zu tokens that the conversation found", state.preemptions,
                 state.shared_tokens, again.result.cached_tokens);
    vb_batch_close(b);
    vb_draft_vocab_close(vocabs[0]);
    vb_draft_vocab_close(vocabs[1]);
}

TEST(batches_with_preemption_and_shared_rows_are_the_same)
{
    static const char *const paths[] = {"golden/tiny/v3-mtp3", "golden/tiny/glm5", "golden/tiny/v2-lite"};
    static const char *const caches[] = {"f32", "bf16", "f32"};
    for (size_t i = 0; i < COUNT(paths); i++)
        check(paths[i], paths[i], &(vb_model_options){.cache_type = caches[i]}, run_batch, i == 1 ? "expanded" : NULL);
}

/* ---- files ---- */

/* Saves a session on some ranks, and loads it on others. */
static void hand_over(const char *dir, const vb_model_options *o, const char *method, int without_hidden,
                      const struct group_options *saves, const struct group_options *loads)
{
    struct notes alone = {0}, together = {0};
    char place[64], file[96], what[200];
    make_dir(place);
    snprintf(file, sizeof file, "%s/session", place);
    snprintf(what, sizeof what, "%s, %s, %s hidden states, from %d to %d ranks", dir, method,
             without_hidden ? "without" : "with", saves ? saves->count : 1, loads ? loads->count : 1);
    for (int on_ranks = 0; on_ranks < 2; on_ranks++)
        for (int loaded = 0; loaded < 2; loaded++) {
            const struct group_options *g = on_ranks ? loaded ? loads : saves : NULL;
            struct group *group = NULL;
            vb_model_options mo = *o;
            vb_session_options so = some_options(method, 3);
            vb_file_options fo = {.without_hidden = without_hidden, .replace = 1};
            vb_model *m = NULL;
            vb_session *s = NULL;
            int32_t prompt[20];
            mo.ranks = g ? group_open(&group, g) : NULL;
            OK(vb_model_open(&m, dir, &mo, &err));
            random_tokens(m, 12, prompt, COUNT(prompt));
            if (loaded)
                OK(vb_session_load(&s, m, &so, file, NULL, &err));
            else
                s = open_session(m, &so, prompt, COUNT(prompt));
            note_run(on_ranks ? &together : &alone, s, 9, loaded ? "after" : "before");
            if (!loaded)
                OK(vb_session_save(s, file, &fo, &err));
            vb_session_close(s);
            vb_model_close(m);
            if (group)
                group_close(group);
        }
    check_notes(what, &alone, &together);
    free(alone.note);
    free(together.note);
    remove_dir(place);
}

TEST(a_saved_session_goes_on_with_any_number_of_ranks)
{
    static const char *const paths[] = {"golden/tiny/v3-mtp3", "golden/tiny/glm5", "golden/tiny/v3-mtp3",
                                        "golden/tiny/v32"};
    static const char *const caches[] = {"f32", "f32", "q8", "bf16"}, *const methods[] = {"mtp-eagle", "mtp-vanilla",
                                                                                          "eagle-keep", "none"};
    for (size_t i = 0; i < 8; i++) {
        const char *cache = i % 4 == 2 && i < 4 ? "bf16" : caches[i % 4];
        vb_model_options o = {.cache_type = strcmp(cache, "q8") ? cache : "bf16",
                              .conventions = i >= 4 ? "first-row=phantom" : NULL};
        hand_over(paths[i % 4], &o, methods[(i + i / 4) % 4], (int)i / 2 % 2,
                  (const struct group_options *[]){&two, &three, NULL}[i % 3],
                  (const struct group_options *[]){NULL, &five, &two, &three}[i % 4]);
    }
}

/* ---- long contexts ---- */

/* Several blocks of the cache, passes of many rows, and threads that share the few heads of a rank. */
static void read_much(vb_model *m, struct notes *n, void *context)
{
    static int32_t prompt[530];
    vb_session_options o = {.context = 600, .threads = 3, .exact_threads = 1, .prefill_chunk = 300, .prefill = context,
                            .drafting = {.method = vb_mtp_modules(m) ? "mtp-vanilla" : "ngram", .tokens = 3}};
    random_tokens(m, 6, prompt, COUNT(prompt));
    vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
    note_run(n, s, 9, "after a long prompt");
    vb_session_close(s);
}

TEST(long_prompts_on_several_threads_have_the_same_bits)
{
    static const char *const paths[] = {"golden/tiny/v3", "golden/tiny/mistral4", "golden/tiny/v32"};
    for (size_t i = 0; i < COUNT(paths); i++)
        check_scenario(paths[i], paths[i],
                       &(vb_model_options){.cache_type = i == 1 ? "bf16" : NULL, .precision = i ? "q8" : NULL},
                       &(struct group_options){.count = 2 + (int)i % 2, .threads = 3 - (int)i}, read_much,
                       i % 2 ? "expanded" : NULL);
}

/* ---- numbers that are not finite ---- */

static void find_bad_row(vb_model *m, struct notes *n, void *context)
{
    int32_t prompt[15];
    vb_session_options o = some_options("mtp-eagle", 2);
    vb_result r;
    vb_error err = {0};
    (void)context;
    random_tokens(m, 4, prompt, COUNT(prompt));
    vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
    assert_int_equal(vb_generate(s, &(vb_generate_options){.max_tokens = 3}, &r, &err), VB_NOT_FINITE);
    note_bytes(n, err.message, strlen(err.message), "%.60s", err.message);
    vb_session_close(s);
}

/* The weight that is not finite is in the share of one rank only. */
TEST(logits_that_are_not_finite_are_reported_the_same)
{
    static const char *const tensors[] = {"model.layers.1.self_attn.o_proj.weight",
                                          "model.layers.0.mlp.down_proj.weight", "lm_head.weight"};
    for (size_t i = 0; i < COUNT(tensors); i++) {
        char dir[64];
        layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_BF16});
        break_tensor(dir, tensors[i], i ? 0 : (LAYOUT_D - 1) * LAYOUT_HEADS * LAYOUT_VALUE, 5, i == 1);
        check(tensors[i], dir, &(vb_model_options){.precision = i == 2 ? "bf16" : NULL}, find_bad_row, NULL);
        remove_dir(dir);
    }
}

/* ---- stops ---- */

struct stopper {
    long asked, every;
};

static int stop(void *context)
{
    struct stopper *s = context;
    return ++s->asked % s->every == 0;
}

/* Runs until there are `count` tokens more, whatever stops them. */
static void insist(vb_session *s, size_t count, struct notes *n)
{
    vb_generate_options g = {.ignore_eos = 1, .fingerprint = 1};
    size_t total, wanted;
    vb_tokens(s, &total);
    for (wanted = total + count; total < wanted; vb_tokens(s, &total)) {
        vb_result r;
        g.max_tokens = wanted - total;
        OK(vb_generate(s, &g, &r, &err));
    }
    note_bytes(n, vb_tokens(s, &total), wanted * sizeof(int32_t), "tokens");
}

static void stop_often(vb_model *m, struct notes *n, void *context)
{
    struct stopper stopper = {.every = *(const long *)context};
    int32_t prompt[45];
    vb_session_options o = some_options(vb_mtp_modules(m) ? "mtp-eagle" : "ngram", 2);
    random_tokens(m, 3, prompt, COUNT(prompt));
    o.prefill_chunk = 20; /* passes of 20, 20 and 4 rows */
    if (m->ranks) { /* a single process calls `stop` at other places */
        o.stop = stop;
        o.stop_context = &stopper;
    }
    vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
    insist(s, 20, n);
    assert_true(!m->ranks || stopper.asked >= stopper.every);
    o.stop = NULL;
    OK(vb_truncate(s, 50, &err));
    stopper.every = 1 << 20;
    note_run(n, s, 5, "after the stops");
    vb_session_close(s);
}

TEST(passes_that_are_stopped_hang_nowhere_and_change_no_bit)
{
    for (long every = 5; every < 12; every++) /* a pass of many rows asks 4 times */
        check("stopped", every % 2 ? "golden/tiny/v3" : "golden/tiny/v2-lite", NULL, stop_often, &every);
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "--all");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_draft_method_drafts_the_same),
        cmocka_unit_test(heads_of_the_target_draft_the_same),
        cmocka_unit_test(trees_of_drafts_are_the_same),
        cmocka_unit_test(cuts_and_single_drafts_are_the_same),
        cmocka_unit_test(a_draft_model_on_the_same_ranks_drafts_the_same),
        cmocka_unit_test(tokens_of_a_list_are_drafted_the_same),
        cmocka_unit_test(rows_of_evaluations_and_routes_are_the_same),
        cmocka_unit_test(batches_with_preemption_and_shared_rows_are_the_same),
        cmocka_unit_test(a_saved_session_goes_on_with_any_number_of_ranks),
        cmocka_unit_test(logits_that_are_not_finite_are_reported_the_same),
        cmocka_unit_test(long_prompts_on_several_threads_have_the_same_bits),
        cmocka_unit_test(passes_that_are_stopped_hang_nowhere_and_change_no_bit),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
