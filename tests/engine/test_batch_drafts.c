/* tests/engine/test_batch_drafts.c -- drafts in a batch: sequences that share the passes of their modules and heads
 * draft what they would draft alone; so do those that begin with rows which a finished sequence left. Runs in the
 * repository's root. */
#include "tests/support/batch.h"
#include "tests/support/methods.h"

#define JOBS 8

static struct job jobs[JOBS], alone[JOBS];

static vb_model *open_with(const char *name, const char *conventions)
{
    vb_model *m = NULL;
    char dir[64];
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    OK(vb_model_open(&m, dir, &(vb_model_options){.conventions = conventions}, &err));
    return m;
}

/* ---- shared passes ----------------------------------------------------------------------------------------------- */

struct telling {
    uint64_t hash;
    size_t count;
};

/* All that a trace tells but the number of the round, and the place of the rows in a shared pass. */
static void hash_trace(void *context, const vb_trace *t)
{
    struct telling *all = context;
    int32_t values[] = {(int32_t)t->kind, t->depth, t->kind == VB_TRACE_PASS ? 0 : (int32_t)t->first, (int32_t)t->count,
                        t->token, t->draft};
    float words[COUNT(values)];
    memcpy(words, values, sizeof values);
    all->hash = vb_fingerprint(all->hash, words, COUNT(values));
    for (size_t i = 0; t->kind == VB_TRACE_PASS && i < t->count; i++) {
        float row[sizeof t->row[i] / sizeof(float)];
        memcpy(row, &t->row[i], sizeof row);
        all->hash = vb_fingerprint(all->hash, row, COUNT(row));
    }
    all->count++;
}

/* Eight sessions, some of which the batch opens; all by one method, or by two. */
static void check_together(const vb_model *m, const char *what, uint64_t *seed, size_t first_method,
                           size_t second_method, int padded)
{
    vb_session_options like = {.context = 80, .threads = 1, .prefill_chunk = 16 * JOBS, .padded = padded,
                               .poison_cut_rows = 1, .drafting.tree.topk = 2}; /* room for trees */
    vb_batch_options o = {.session = &like, .max_sequences = JOBS, .keep_apart = 1};
    vb_batch *b = open_batch_of(m, &o);
    struct methods methods = methods_for(m, ALL_METHODS);
    struct telling told[JOBS] = {0}, told_alone[JOBS] = {0};
    vb_session *brought[JOBS] = {NULL};
    for (size_t i = 0; i < JOBS; i++) {
        struct job *j = &jobs[i];
        *j = (struct job){.options = {.max_tokens = 8 + random_below(seed, 30), .ignore_eos = 1},
                          .drafting = drafting_of(m, methods.name[random_below(seed, 3) ? first_method : second_method],
                                                  1 + (int)random_below(seed, random_below(seed, 3) ? 4 : 15))};
        vb_draft_method method = method_named(j->drafting.method);
        j->drafting.p_min = random_below(seed, 3) ? 0.0f : 0.02f;
        if (random_below(seed, 2))
            j->sampling = (vb_sampling){.temperature = 0.8f, .seed = next_random(seed)};
        if (random_below(seed, 2) && !method.by_history)
            j->sampling.acceptance = "rejection";
        else if (!padded && random_below(seed, 2) && !m->config.conventions.value[CHAIN_MODULE] &&
                 method.trees)
            j->drafting.tree = (vb_tree_shape){.topk = 2 + (int)random_below(seed, 3)};
        j->count = 1 + random_below(seed, 16);
        random_tokens(m, next_random(seed), j->prompt, j->count);
        alone[i] = *j;
        run_job_alone(m, &alone[i], &like);
        if (random_below(seed, 2)) {
            add_job(b, m, j);
            continue;
        }
        vb_session_options so = like;
        vb_result r;
        j->options.fingerprint = 1;
        so.context = (int32_t)(j->count + j->options.max_tokens);
        so.drafting = j->drafting;
        so.sampling = j->sampling;
        so.trace = hash_trace;
        so.trace_context = &told_alone[i];
        vb_session *s = open_session(m, &so, j->prompt, j->count);
        OK(vb_generate(s, &j->options, &r, &err));
        vb_session_close(s);
        so.trace_context = &told[i];
        brought[i] = open_session(m, &so, j->prompt, j->count);
        OK(vb_batch_add(b, &(vb_request){.session = brought[i], .options = &j->options, .done = job_end, .context = j},
                        &j->id, &err));
    }
    OK(vb_batch_run(b, &err));
    for (size_t i = 0; i < JOBS; i++) {
        char one[160];
        snprintf(one, sizeof one, "%s, %s, K %d, request %zu", what, jobs[i].drafting.method, jobs[i].drafting.tokens,
                 i);
        check_job(one, &jobs[i], &alone[i]);
        check_drafts(one, &jobs[i].result, &alone[i].result);
        if (told[i].count != told_alone[i].count || told[i].hash != told_alone[i].hash)
            fail_msg("%s: the trace differs from that of a session alone (%zu events, %zu)", one, told[i].count,
                     told_alone[i].count);
        vb_session_close(brought[i]);
    }
    vb_batch_close(b);
}

TEST(drafts_proposed_together_are_those_proposed_alone)
{
    static const struct {
        const char *model, *conventions;
    } cases[] = {{"v3", NULL}, {"v3-mtp3", NULL}, {"glm5", NULL},
                 {"v3-mtp3", "first-row=phantom,draft-position=token"},
                 {"v3-mtp3", "missing-hidden=zeros,main-hidden=pre-norm"},
                 {"v3-mtp3", "prefill-draft=discarded,draft-hidden=pre-norm"},
                 {"v3-mtp3", "module-hidden=target,chain-module=step"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        vb_model *m = open_with(cases[i].model, cases[i].conventions);
        size_t number = methods_for(m, ALL_METHODS).count;
        for (size_t k = 0; k < 4 * number; k++) {
            char what[160];
            uint64_t seed = 1000 * i + k;
            if (!has_turn(i + k, 3))
                continue;
            snprintf(what, sizeof what, "%s, %s, round %zu", cases[i].model,
                     cases[i].conventions ? cases[i].conventions : "the defaults", k);
            check_together(m, what, &seed, k % number, random_below(&seed, number), k / number % 2 == 1);
        }
        vb_model_close(m);
    }
}

/* The second head is broken: its drafts end at once. Who has the first one does not notice, and who has the second does
 * not take it. */
TEST(another_head_has_passes_of_its_own)
{
    char broken[64];
    vb_model *m = open_tiny("v3");
    vb_session_options like = {.context = 60, .threads = 1};
    vb_batch *b = open_batch_of(m, &(vb_batch_options){.session = &like});
    copy_checkpoint(broken, head_of("eagle"));
    break_tensor(broken, "layers.0.post_attention_layernorm.weight", 0, 1, 0);
    for (int32_t i = 0; i < JOBS; i++) {
        jobs[i] = (struct job){.options = {.max_tokens = 20, .ignore_eos = 1},
                               .drafting = {.method = "eagle", .tokens = 3}};
        jobs[i].drafting.head = i / 2 % 2 ? broken : head_of("eagle");
        job_prompt(&jobs[i], (int32_t[]){5 + i, 6, 7}, 3);
        alone[i] = jobs[i];
        run_job_alone(m, &alone[i], &like);
        assert_int_equal(alone[i].result.draft_failures > 0, i / 2 % 2);
        add_job(b, m, &jobs[i]);
    }
    OK(vb_batch_run(b, &err));
    for (size_t i = 0; i < JOBS; i++) {
        check_job("two heads", &jobs[i], &alone[i]);
        check_drafts("two heads", &jobs[i].result, &alone[i].result);
        assert_int_equal(jobs[i].result.draft_failures, alone[i].result.draft_failures);
    }
    vb_batch_close(b);
    vb_model_close(m);
    remove_dir(broken);
}

/* ---- sequences that are kept ------------------------------------------------------------------------------------- */

static int rules[64]; /* of the callback: which tokens follow which */

static int draft_by_rule(void *context, const int32_t *tokens, size_t count, int32_t *draft, int max)
{
    const int *alive = context;
    assert_int_equal(*alive, 1);
    for (int i = 0; i < max; i++)
        draft[i] = rules[(size_t)(tokens[count - 1] + i) % COUNT(rules)];
    return max;
}

/* A conversation: each turn's prompt is what was said so far and a little more. */
static void talk(const vb_model *m, const char *what, const struct job *like, const vb_batch_options *o, int exact)
{
    vb_batch *b = open_batch_of(m, o);
    int32_t text[LONGEST] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    size_t count = 10, prompt = 0;
    for (int turn = 0; turn < 4; turn++) {
        struct job *j = &jobs[0];
        *j = *like;
        job_prompt(j, text, count);
        alone[0] = *j;
        run_job_alone(m, &alone[0], o->session);
        add_job(b, m, j);
        OK(vb_batch_run(b, &err));
        check_job(what, j, &alone[0]);
        if (exact)
            check_drafts(what, &j->result, &alone[0].result);
        /* all rows of the text so far, but the last token's, those of the drafter's rewind, and the one that chooses;
         * of rows that were output, and belong to the prompt now, attention has another form with prefill expanded */
        size_t most = o->session->prefill ? prompt : count - 1, least = o->session->prefill ? prompt : count - 3;
        if (turn ? j->result.cached_tokens + 2 + VB_MAX_DRAFT < least || j->result.cached_tokens > most
                 : j->result.cached_tokens > 0)
            fail_msg("%s, turn %d: %zu tokens of %zu were there", what, turn, j->result.cached_tokens, count);
        assert_true(look(b).kept >= 1 && look(b).kept <= (o->session->prefill ? 3 : 1));
        assert_int_equal(look(b).shared_tokens > 0, turn > 0);
        memcpy(text, j->tokens, j->total * sizeof *text);
        prompt = count;
        count = j->total;
        for (int i = 0; i < 3; i++)
            text[count++] = 20 + 3 * turn + i;
    }
    vb_batch_close(b);
}

TEST(a_conversation_goes_on_with_the_rows_that_were_kept)
{
    struct methods all = methods_for(NULL, WITH_NONE);
    static const char *const names[] = {"v3", "v3-mtp3", "glm5", "v3-mtp3", "v3-mtp3", "v3-mtp3", "v3-mtp3"};
    static const char *const conventions[] = {NULL, NULL, NULL, "first-row=phantom,draft-position=token",
                                              "missing-hidden=zeros,main-hidden=pre-norm",
                                              "prefill-draft=discarded,draft-hidden=pre-norm",
                                              "module-hidden=target,chain-module=step"};
    int alive = 1;
    for (size_t i = 0; i < COUNT(rules); i++)
        rules[i] = (int)(i * 37 % 100);
    for (size_t n = 0; n < COUNT(names); n++) {
        vb_model *m = open_with(names[n], conventions[n]);
        for (size_t i = 0; i < all.count * (n < 3 ? 6 : 3); i++) {
            const char *method = all.name[i % all.count];
            int by_history = method_named(method).by_history;
            char what[160];
            if (!can_draft(m, method) || !has_turn(n + i, 3))
                continue; /* the heads are those of v3 */
            struct job j = {.options = {.max_tokens = 1 + (i * 7) % 30, .ignore_eos = 1},
                            .drafting = drafting_of(m, method, 1 + (int)(i / all.count)),
                            .sampling = {.temperature = 0.8f, .seed = i,
                                         .acceptance = by_history ? NULL : "rejection"}};
            j.drafting.callback = draft_by_rule;
            j.drafting.context = &alive;
            vb_session_options options = {.context = 200, .threads = 1, .drafting = j.drafting, .poison_cut_rows = 1,
                                          .prefill = i / all.count % 2 ? "expanded" : NULL};
            vb_batch_options o = {.session = &options, .keep_finished = 3};
            snprintf(what, sizeof what, "%s, %s, %s, K %d%s", names[n],
                     conventions[n] ? conventions[n] : "the defaults", method, j.drafting.tokens,
                     options.prefill ? ", prefill expanded" : "");
            talk(m, what, &j, &o, !by_history);
        }
        vb_model_close(m);
    }
}

static size_t cached_by(const char *method, vb_batch *b, const vb_model *m, int32_t first, int32_t last,
                        const vb_session_options *like)
{
    struct job *j = &jobs[0];
    *j = (struct job){.options = {.max_tokens = 4, .ignore_eos = 1}, .drafting = {.method = method, .tokens = 2}};
    job_prompt(j, (int32_t[]){first, 6, 7, 8, 9, 10, 11, last}, 8);
    alone[0] = *j;
    run_job_alone(m, &alone[0], like);
    add_job(b, m, j);
    OK(vb_batch_run(b, &err));
    check_job("one of many", j, &alone[0]);
    return j->result.cached_tokens;
}

static size_t cached(vb_batch *b, const vb_model *m, int32_t first, int32_t last, const vb_session_options *like)
{
    return cached_by("mtp-eagle", b, m, first, last, like);
}

/* A module's rows come from a sequence with the same draft method, though one with another method begins more alike. */
TEST(rows_are_taken_from_a_sequence_with_the_same_draft_method)
{
    vb_model *m = open_tiny("v3");
    vb_batch_options o = {.session = &(vb_session_options){.context = 40, .threads = 1}, .keep_finished = 3};
    vb_batch *b = open_batch_of(m, &o);
    assert_int_equal(cached_by("mtp-eagle", b, m, 20, 12, o.session), 0);
    assert_int_equal(cached_by("ngram", b, m, 20, 13, o.session), 6); /* its drafter takes the tokens, whosever rows
                                                                          they are */
    assert_int_equal(cached_by("none", b, m, 20, 14, o.session), 6);
    assert_int_equal(cached_by("mtp-eagle", b, m, 20, 14, o.session), 6);
    vb_batch_close(b);
    vb_model_close(m);
}

TEST(the_sequence_used_longest_ago_goes_first)
{
    vb_model *m = open_tiny("v3");
    vb_batch_options o = {.session = &(vb_session_options){.context = 40, .threads = 1}, .keep_finished = 3};
    vb_batch *b = open_batch_of(m, &o);
    static const struct {
        int32_t first;
        int there;
    } order[] = {{20, 0}, {21, 0}, {22, 0}, {20, 1}, /* 21 22 20 */ {23, 0}, /* 22 20 23 */ {20, 1}, {22, 1},
                 /* 23 20 22 */ {21, 0},
                 /* 20 22 21 */ {23, 0}, {20, 0}, /* 21 23 20 */ {21, 1}, {23, 1}};
    for (size_t i = 0; i < COUNT(order); i++) {
        size_t rows = cached(b, m, order[i].first, 12, o.session);
        if ((rows > 0) != order[i].there)
            fail_msg("request %zu, which begins with %d: %zu tokens were there", i, order[i].first, rows);
        assert_true(look(b).kept == (i < 3 ? i + 1 : 3));
    }
    vb_batch_close(b);
    vb_model_close(m);
}

/* A sequence of which only the beginning is used stays beside the one that used it. */
TEST(a_sequence_that_was_used_goes_after_those_that_were_not)
{
    vb_model *m = open_tiny("v3");
    vb_batch_options o = {.session = &(vb_session_options){.context = 40, .threads = 1}, .keep_finished = 3};
    vb_batch *b = open_batch_of(m, &o);
    assert_int_equal(cached(b, m, 20, 12, o.session), 0);
    assert_int_equal(cached(b, m, 21, 12, o.session), 0);
    assert_int_equal(cached(b, m, 20, 13, o.session), 6); /* of seven that are equal: the drafter wants the hidden
                                                              state before the other */
    assert_int_equal(cached(b, m, 22, 12, o.session), 0); /* in the place of the second one */
    assert_int_equal(look(b).kept, 3);
    assert_int_equal(cached(b, m, 20, 12, o.session), 7);
    assert_int_equal(cached(b, m, 21, 12, o.session), 0);
    vb_batch_close(b);
    vb_model_close(m);
}

TEST(kept_rows_are_given_back_when_they_are_needed)
{
    vb_model *m = open_tiny("v3");
    vb_session_options session = {.context = 100, .threads = 1, .poison_cut_rows = 1};
    vb_batch_options o = {.session = &session, .keep_finished = 64, .cache_tokens = 130};
    vb_batch *b = open_batch_of(m, &o);
    size_t most = 0;
    for (int32_t i = 0; i < 30; i++) {
        cached(b, m, 20 + i, 12, o.session);
        vb_batch_state state = look(b);
        most = state.kept > most ? state.kept : most;
        assert_true(state.cache_tokens_used <= state.cache_tokens &&
                    state.most_cache_tokens_used <= state.cache_tokens);
    }
    assert_true(most >= 5 && look(b).kept >= 5); /* 11 rows each, beside a prompt of 8 with two rounds of 16 */
    for (int i = 0; i < 2; i++) { /* these two fill the cache */
        jobs[i] = (struct job){.options = {.max_tokens = 80, .ignore_eos = 1},
                               .drafting = {.method = "mtp-vanilla", .tokens = 3}};
        job_prompt(&jobs[i], (int32_t[]){49, 6, 7, 8, 9, 90 + i}, 6);
        alone[i] = jobs[i];
        run_job_alone(m, &alone[i], o.session);
        add_job(b, m, &jobs[i]);
    }
    OK(vb_batch_run(b, &err));
    check_job("beside kept rows", &jobs[0], &alone[0]);
    check_job("beside kept rows", &jobs[1], &alone[1]);
    assert_int_equal(look(b).preemptions, 1);
    assert_true(look(b).kept <= 2);
    vb_batch_close(b);
    vb_model_close(m);
}

/* Two equal requests: one is paused, loses its rows, and takes all of them over from the other, which is ahead by then.
 * Its drafter must not propose from a hidden state that the other one's has dropped. */
TEST(a_sequence_takes_its_rows_over_from_its_twin)
{
    static const char *const drafting[] = {"mtp-eagle", "mtp-vanilla", "eagle", "ngram"};
    vb_model *m = open_tiny("v3");
    for (size_t k = 0; k < COUNT(drafting); k++) {
        vb_session_options session = {.context = 100, .threads = 1, .poison_cut_rows = 1};
        vb_batch_options o = {.session = &session, .cache_tokens = 140};
        vb_batch *b = open_batch_of(m, &o);
        size_t left;
        for (int i = 0; i < 3; i++) {
            jobs[i] = (struct job){.options = {.max_tokens = i < 2 ? 60 : 1, .ignore_eos = 1},
                                   .drafting = drafting_of(m, drafting[k], 3)};
            jobs[i].count = i < 2 ? 10 : 70;
            random_tokens(m, i < 2 ? 3 : 4, jobs[i].prompt, jobs[i].count);
            alone[i] = jobs[i];
            run_job_alone(m, &alone[i], o.session);
        }
        add_job(b, m, &jobs[0]);
        add_job(b, m, &jobs[1]);
        for (int i = 0; i < 8; i++)
            OK(vb_batch_step(b, &left, &err));
        assert_true(vb_batch_pause(b, jobs[1].id));
        add_job(b, m, &jobs[2]);
        while (!jobs[2].ended)
            OK(vb_batch_step(b, &left, &err));
        assert_int_equal(look(b).preemptions, 1);
        assert_false(jobs[0].ended);
        size_t shared = look(b).shared_tokens;
        assert_true(vb_batch_resume(b, jobs[1].id));
        OK(vb_batch_run(b, &err));
        assert_true(look(b).shared_tokens > shared);
        for (int i = 0; i < 3; i++)
            check_job(drafting[k], &jobs[i], &alone[i]);
        vb_batch_close(b);
    }
    vb_model_close(m);
}

/* A request's own draft model is closed in `done`, and its callback's context is gone then. */
struct guest {
    struct job *job;
    vb_model *model;
    int *alive;
};

static void guest_leaves(void *context, const vb_request_end *e)
{
    struct guest *g = context;
    job_end(g->job, e);
    vb_model_close(g->model);
    *g->alive = 0;
    free(g->alive);
}

TEST(what_a_request_brought_is_not_used_after_its_end)
{
    static const char *const all[] = {"draft-model", "callback", "mtp-eagle", "eagle"};
    vb_model *m = open_tiny("v3");
    for (size_t i = 0; i < COUNT(all); i++) {
        vb_session_options session = {.context = 60, .threads = 1, .drafting = {.method = "ngram"}};
        vb_batch_options o = {.session = &session, .keep_finished = 4};
        vb_batch *b = open_batch_of(m, &o);
        for (int turn = 0; turn < 3; turn++) {
            struct job *j = &jobs[0];
            struct guest g = {.job = j, .model = open_tiny("v3"), .alive = malloc(sizeof *g.alive)};
            char *head = malloc(64);
            *g.alive = 1;
            snprintf(head, 64, "%s", head_of("eagle"));
            *j = (struct job){.options = {.max_tokens = 12, .ignore_eos = 1},
                              .sampling = {.temperature = 0.8f, .acceptance = "rejection", .seed = 4}};
            j->drafting = (vb_drafting){.method = all[i], .tokens = 3, .model = g.model, .head = head,
                                        .callback = draft_by_rule, .context = g.alive};
            job_prompt(j, (int32_t[]){5, 6, 7, 8, 9, 10, 11, 12, 13, 14 + turn}, 10);
            alone[0] = *j;
            run_job_alone(m, &alone[0], o.session);
            vb_drafting *drafting = malloc(sizeof *drafting);
            *drafting = j->drafting;
            j->options.fingerprint = 1;
            OK(vb_batch_add(b,
                            &(vb_request){.tokens = j->prompt, .count = j->count, .sampling = &j->sampling,
                                          .drafting = drafting, .options = &j->options, .done = guest_leaves,
                                          .context = &g},
                            &j->id, &err));
            free(drafting);
            OK(vb_batch_run(b, &err));
            free(head);
            check_job(all[i], j, &alone[0]);
            check_drafts(all[i], &j->result, &alone[0].result);
            assert_int_equal(look(b).kept, i < 2 ? 0 : turn + 1);
            assert_int_equal(j->result.cached_tokens > 0, i >= 2 && turn > 0);
        }
        vb_batch_close(b);
    }
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_proposed_together_are_those_proposed_alone),
        cmocka_unit_test(another_head_has_passes_of_its_own),
        cmocka_unit_test(a_conversation_goes_on_with_the_rows_that_were_kept),
        cmocka_unit_test(rows_are_taken_from_a_sequence_with_the_same_draft_method),
        cmocka_unit_test(the_sequence_used_longest_ago_goes_first),
        cmocka_unit_test(a_sequence_that_was_used_goes_after_those_that_were_not),
        cmocka_unit_test(kept_rows_are_given_back_when_they_are_needed),
        cmocka_unit_test(a_sequence_takes_its_rows_over_from_its_twin),
        cmocka_unit_test(what_a_request_brought_is_not_used_after_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
