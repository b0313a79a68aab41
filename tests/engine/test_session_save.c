/* tests/engine/test_session_save.c -- a session that was saved and loaded goes on, bit for bit, as the one that was
 * not. Files that are wrong are test_session_file.c's. */
#include "tests/support/methods.h"
#include "tests/support/engine_support.h"

#include "engine/draft/mtp.h"
#include "engine/session/prefill.h"
#include "ops/onednn.h"

static struct methods methods, of_modules;
static const char *const models[] = {"golden/tiny/v3-mtp3", "golden/tiny/glm5"};
static char dir[64], file[128];

static int make_place(void **unused)
{
    (void)unused;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    return 0;
}

static int remove_place(void **unused)
{
    (void)unused;
    remove_dir(dir);
    return 0;
}

static void save(vb_session *s, int without_hidden)
{
    vb_file_options o = {.without_hidden = without_hidden, .replace = 1};
    OK(vb_session_save(s, file, &o, &err));
}

static vb_session *load(const vb_model *m, const vb_session_options *o)
{
    vb_session *s = NULL;
    OK(vb_session_load(&s, m, o, file, NULL, &err));
    return s;
}

/* One of: greedy; sampled; every penalty. */
static vb_sampling some_sampling(size_t kind, uint64_t seed)
{
    vb_sampling s = {.temperature = kind ? 0.9f : 0.0f, .seed = seed};
    if (kind == 2)
        s.repetition_penalty = 1.3f, s.presence_penalty = 0.4f, s.frequency_penalty = 0.3f, s.top_k = 40,
        s.top_p = 0.95f;
    return s;
}

static vb_session_options some_options(const vb_model *m, uint64_t *random, int32_t context)
{
    static const int32_t chunks[] = {0, 1, 3, 17};
    const char *const *isas = isas_here();
    struct methods some = methods_for(m, WITH_NONE);
    size_t known = 0;
    while (isas[known])
        known++;
    return (vb_session_options){.context = context, .exact_threads = 1, .threads = 1 + (int32_t)random_below(random, 3),
                                .prefill_chunk = chunks[random_below(random, 4)],
                                .isa = isas[random_below(random, known)],
                                .drafting = drafting_of(m, some.name[random_below(random, some.count)],
                                                        1 + (int32_t)random_below(random, 4)),
                                .padded = (int)random_below(random, 2), .poison_cut_rows = 1};
}

static void tell(char what[256], const vb_session_options *o)
{
    size_t used = strlen(what);
    snprintf(what + used, 256 - used, "; %s K %d, %d threads, %s, chunk %d%s", o->drafting.method, o->drafting.tokens,
             o->threads, o->isa, o->prefill_chunk, o->padded ? ", padded" : "");
}

#define BEFORE 14 /* tokens at most before the file, */
#define AFTER 16  /* and those after it */

static void one_hand_over(const vb_model *m, uint64_t *random)
{
    static struct record plain, before, saved, loaded;
    int32_t prompt[48];
    size_t count = 1 + random_below(random, COUNT(prompt)), n = random_below(random, BEFORE),
           kind = random_below(random, 3);
    int hidden = (int)random_below(random, 2), prefill = (int)random_below(random, 2);
    vb_sampling sampling = some_sampling(kind, *random);
    vb_session_options here = some_options(m, random, (int32_t)(count + n + AFTER));
    vb_session_options there = some_options(m, random, (int32_t)(count + n + AFTER + random_below(random, 9)));
    char what[256];
    here.sampling = there.sampling = sampling;
    here.prefill = there.prefill = random_below(random, 2) ? "expanded" : NULL;
    random_tokens(m, *random, prompt, count);
    snprintf(what, sizeof what, "%zu + %zu tokens, sampling %zu, %s hidden states", count, n, kind,
             hidden ? "with" : "without");
    tell(what, &here);
    tell(what, &there);

    vb_session_options alone = {.context = (int32_t)(count + n + AFTER), .threads = 1, .sampling = sampling,
                                .prefill = here.prefill};
    run(m, &alone, prompt, count, n + AFTER, &plain);
    vb_session *s = open_session(m, &here, prompt, count);
    if (prefill)
        OK(vb_prefill(s, &err));
    generate(s, n, &before);
    check_same_prefix(what, &plain, &before, n);
    save(s, !hidden);
    drop(&plain, n);
    there.prefill = n && random_below(random, 2) ? NULL : there.prefill; /* no row of the prompt is due */
    vb_session *t = load(m, &there);
    generate(t, AFTER, &loaded);
    check_same_prefix(what, &plain, &loaded, AFTER);
    generate(s, AFTER, &saved); /* and who was saved has not noticed */
    check_same_prefix(what, &plain, &saved, AFTER);
    vb_session_close(s);
    vb_session_close(t);
}

TEST(output_after_a_load_is_what_would_have_followed)
{
    static const char *const caches[2 * COUNT(models)] = {"f32", "f32", "q8", "bf16"};
    for (size_t i = 0; i < 2 * COUNT(models); i++) {
        vb_model *m = open_cached(models[i % COUNT(models)], caches[i]);
        for (uint64_t trial = 0; trial < 40; trial++) {
            uint64_t random = 7 + 40 * i + trial;
            if (has_turn(trial, 2))
                one_hand_over(m, &random);
        }
        vb_model_close(m);
    }
}

/* ---- drafts ---- */

static void check_same_drafts(const char *what, const struct record *a, const struct record *b)
{
    check_same(what, a, b);
    for (size_t i = 0; i < a->n; i++)
        if (a->depth[i] != b->depth[i])
            fail_msg("%s: token %zu is of draft depth %d, without the file it was %d", what, i, b->depth[i],
                     a->depth[i]);
    if (memcmp(a->result.drafted_by_depth, b->result.drafted_by_depth, sizeof a->result.drafted_by_depth) ||
        a->result.forwards != b->result.forwards)
        fail_msg("%s: %zu drafts in %zu passes, without the file %zu in %zu", what, b->result.drafted,
                 b->result.forwards, a->result.drafted, a->result.forwards);
}

static vb_model *open_under(const char *name, const char *conventions)
{
    vb_model *m = NULL;
    vb_model_options o = {.conventions = conventions};
    OK(vb_model_open(&m, name, &o, &err));
    return m;
}

/* Prompt lengths on both sides of where the modules' rows are computed at once; a save before anything, after a prompt,
 * within decoding, and after a cut. */
TEST(drafts_after_a_load_with_hidden_rows_are_those_that_would_have_followed)
{
    static const char *const conventions[] = {NULL, "as=mindie", "as=llama.cpp", "missing-hidden=zeros", "as=vllm-2025",
                                              "module-hidden=target,chain-module=step"};
    static const size_t counts[] = {1, 2, 5, 17, 40}, steps[] = {0, 1, 2, 9};
    static struct record before, saved, loaded;
    size_t drafts = 0;
    for (size_t i = 0; i < COUNT(conventions); i++) {
        vb_model *m = open_under("golden/tale", conventions[i]);
        for (size_t j = 0; j < methods.count; j++)
            for (size_t k = i % 3; k < COUNT(counts) * COUNT(steps); k += 3) {
                size_t count = counts[k % COUNT(counts)], n = steps[k / COUNT(counts)];
                int32_t prompt[40];
                char what[256];
                vb_session_options o = {.context = 96, .threads = 1,
                                        .drafting = drafting_of(m, methods.name[j], k % 2 ? 3 : 1 + (int)(k % 5)),
                                        .padded = k % 3 == 0,
                                        .poison_cut_rows = 1};
                snprintf(what, sizeof what, "%s, %zu + %zu tokens", conventions[i] ? conventions[i] : "no convention",
                         count, n);
                o.isa = "best";
                tell(what, &o);
                random_tokens(m, k, prompt, count);
                vb_session *s = open_session(m, &o, prompt, count);
                generate(s, n, &before);
                if (n == 9 && count > 2) /* a cut, and other tokens in its place */
                    OK(vb_truncate(s, count + 2, &err) || vb_append(s, prompt, count % 3, &err));
                save(s, 0);
                vb_session *t = load(m, &o);
                generate(s, 12, &saved);
                generate(t, 12, &loaded);
                check_same_drafts(what, &saved, &loaded);
                drafts += saved.result.drafted;
                vb_session_close(s);
                vb_session_close(t);
            }
        vb_model_close(m);
    }
    print_message("%zu drafts\n", drafts);
    assert_true(drafts > 2000);
}

/* Of a prompt of one token, whose only hidden state is missing for the first draft. */
TEST(the_row_of_a_missing_hidden_state_is_the_same_after_a_load)
{
    static struct record first, saved, loaded;
    vb_model *m = open_under("golden/tale", "missing-hidden=zeros");
    for (int32_t token = 300; token < 340; token++) {
        vb_session_options o = {.context = 40, .threads = 1, .drafting.method = "eagle-reroll", .drafting.tokens = 3};
        vb_session *s = open_session(m, &o, &token, 1);
        generate(s, 1, &first);
        save(s, 0);
        vb_session *t = load(m, &o);
        generate(s, 20, &saved);
        generate(t, 20, &loaded);
        check_same_drafts("a prompt of one token", &saved, &loaded);
        vb_session_close(s);
        vb_session_close(t);
    }
    vb_model_close(m);
}

/* Trees of drafts, and published heads: K = 3, the same with and without hidden states for the output, and with them
 * for the drafts. */
TEST(trees_and_heads_go_on_too)
{
    static const struct {
        const char *model, *draft, *head;
        int32_t topk;
    } kinds[] = {{"golden/tale", "mtp-eagle", NULL, 2}, {"golden/tiny/v3", "eagle", "golden/eagle/eagle1-v3", 0},
                 {"golden/tiny/v3", "eagle3", "golden/eagle/eagle3-v3", 0},
                 {"golden/tiny/v3", "eagle3", "golden/eagle/eagle3-v3", 3},
                 {"golden/tiny/v3", "parallel-heads", "golden/heads/parallel-v3", 0},
                 {"golden/tiny/v3", "parallel-heads", "golden/heads/parallel-v3", 3}};
    static struct record plain, before, saved, loaded;
    for (size_t i = 0; i < COUNT(kinds); i++) {
        vb_model *m = open_model(kinds[i].model);
        for (size_t count = 2; count < 40; count += 9)
            for (int way = 0; way < 3; way++) { /* with hidden states; without; saved by another method */
                int32_t prompt[40];
                vb_session_options o = {.context = 80, .threads = 1, .drafting.method = kinds[i].draft,
                                        .drafting.head = kinds[i].head, .drafting.tokens = 3,
                                        .drafting.tree.topk = kinds[i].topk, .poison_cut_rows = 1};
                vb_session_options other = {.context = 80, .threads = 1, .drafting.method = "ngram"};
                random_tokens(m, count, prompt, count);
                run_plain(m, NULL, prompt, count, 27, &plain);
                vb_session *s = open_session(m, way == 2 ? &other : &o, prompt, count);
                generate(s, count % 2 + 1, &before);
                save(s, way == 1);
                vb_session *t = load(m, &o);
                generate(t, 20, &loaded);
                generate(s, 20, &saved);
                drop(&plain, count % 2 + 1);
                check_same_prefix(kinds[i].draft, &plain, &loaded, 20);
                if (way == 0)
                    check_same_drafts(kinds[i].draft, &saved, &loaded);
                vb_session_close(s);
                vb_session_close(t);
            }
        vb_model_close(m);
    }
}

/* mtp-vanilla has a cache for each draft: those that a smaller K wants are in the file of a larger one. */
TEST(a_smaller_K_drafts_from_what_a_larger_one_has_saved)
{
    static struct record r, plain, loaded;
    vb_model *m = open_model("golden/tale");
    for (size_t count = 2; count < 40; count += 9)
        for (int32_t K = 1; K < 4; K++) {
            int32_t prompt[40];
            vb_session_options o = {.context = 80, .threads = 1, .drafting.method = "mtp-vanilla",
                                    .drafting.tokens = 4},
                               small = o;
            small.drafting.tokens = K;
            random_tokens(m, count, prompt, count);
            vb_session *s = open_session(m, &o, prompt, count), *t = open_session(m, &small, prompt, count);
            generate(s, 7, &r);
            generate(t, 7, &r);
            save(s, 0);
            vb_session_close(s);
            s = load(m, &small);
            generate(s, 20, &loaded);
            generate(t, 20, &plain);
            check_same_drafts("a smaller K", &plain, &loaded);
            vb_session_close(s);
            vb_session_close(t);
        }
    vb_model_close(m);
}

/* The newest token's successors in the vocabulary. */
static int speak(void *context, const int32_t *tokens, size_t count, int32_t *draft, int max)
{
    for (int i = 0; i < max; i++)
        draft[i] = (tokens[count - 1] + i + 1) % *(const int32_t *)context;
    return max;
}

/* Methods to which the tokens say all have nothing in a file, and go on as if there had been none. */
TEST(methods_that_need_the_tokens_alone_lose_nothing)
{
    static const char *const kinds[] = {"ngram", "callback", "draft-model"};
    static struct record before, saved, loaded;
    vb_model *m = open_model("golden/tale"), *same = open_model("golden/tale");
    int32_t V = vb_vocab_size(m), prompt[40];
    random_tokens(m, 1, prompt, 10);
    for (size_t i = 10; i < 40; i++) /* something for ngram to find */
        prompt[i] = prompt[i - 10];
    for (size_t i = 0; i < COUNT(kinds); i++) {
        vb_session_options o = {.context = 110, .threads = 1, .drafting.method = kinds[i], .drafting.tokens = 3,
                                .drafting.callback = speak, .drafting.context = &V,
                                .drafting.model = i == 2 ? same : NULL, .prefill_chunk = 13};
        vb_session_info info;
        vb_session *s = open_session(m, &o, prompt, 40);
        generate(s, 15, &before);
        OK(vb_append(s, prompt, 20, &err)); /* which ngram has seen */
        save(s, 0);
        OK(vb_session_info_read(&info, file, 1, NULL, &err));
        assert_int_equal(info.drafter_bytes, 0);
        vb_session *t = load(m, &o);
        generate(s, 25, &saved);
        generate(t, 25, &loaded);
        check_same_drafts(kinds[i], &saved, &loaded);
        assert_true(saved.result.drafted > 0);
        vb_session_close(s);
        vb_session_close(t);
    }
    vb_model_close(m);
    vb_model_close(same);
}

/* Sessions of a batch: one loaded, one that was not. */
TEST(a_loaded_session_shares_passes_with_others)
{
    static struct record r[2], plain[2], before;
    vb_model *m = open_model("golden/tiny/v3-mtp3");
    vb_session_options o = {.context = 60, .exact_threads = 1, .threads = 2, .drafting.method = "mtp-eagle",
                            .drafting.tokens = 2};
    int32_t prompt[2][20];
    vb_session *s[2];
    vb_result result[2];
    vb_generate_options what[2];
    for (int i = 0; i < 2; i++) {
        random_tokens(m, (uint64_t)i + 1, prompt[i], 20);
        run_plain(m, NULL, prompt[i], 20, 25, &plain[i]);
        s[i] = open_session(m, &o, prompt[i], 20);
    }
    generate(s[0], 5, &before);
    save(s[0], 1);
    vb_session_close(s[0]);
    s[0] = load(m, &o);
    drop(&plain[0], 5);
    for (int i = 0; i < 2; i++)
        what[i] = recording(&r[i], s[i], 20);
    OK(generate_together(s, 2, what, result, &err));
    for (int i = 0; i < 2; i++) {
        check_same_prefix(i ? "beside a loaded one" : "loaded, in a batch", &plain[i], &r[i], 20);
        vb_session_close(s[i]);
    }
    vb_model_close(m);
}

/* Which drafts stand may be a part of what is said; then it is the same too. */
TEST(other_ways_of_acceptance_go_on_the_same_with_the_same_drafts)
{
    static struct record before, saved, loaded;
    vb_model *m = open_model("golden/tale");
    size_t accepted = 0;
    for (size_t j = 0; j < methods.count; j++)
        for (int kind = 0; kind < 3; kind++) {
            int32_t prompt[20];
            vb_session_options o = {.context = 96, .threads = 1, .drafting = drafting_of(m, methods.name[j], 3),
                                    .poison_cut_rows = 1,
                                    .sampling = {.temperature = 0.8f, .seed = 3,
                                                 .acceptance = kind == 2 ? "relaxed" : "rejection",
                                                 .draft_sample_method = kind == 1 ? "greedy" : NULL,
                                                 .thinking_begin = 7, .thinking_end = 8}};
            random_tokens(m, j, prompt, 20);
            prompt[3] = 7;
            vb_session *s = open_session(m, &o, prompt, 20);
            generate(s, 10, &before);
            save(s, 0);
            vb_session *t = load(m, &o);
            generate(s, 30, &saved);
            generate(t, 30, &loaded);
            check_same_drafts(methods.name[j], &saved, &loaded);
            accepted += saved.result.accepted;
            vb_session_close(s);
            vb_session_close(t);
        }
    vb_model_close(m);
    assert_true(accepted > 30);
}

/* ---- without hidden states ---- */

/* The rows of the modules' caches that are final, all depths, as bits. */
static uint64_t final_rows(const vb_session *s, size_t rows)
{
    const struct mtp_state *state = &mtp_of(s->drafter)->state;
    uint64_t h = VB_FINGERPRINT_START;
    for (int k = 0; k < state->num_depths; k++) {
        const struct kvcache *c = &state->depths[k].cache;
        size_t n = rows > (size_t)k ? rows - (size_t)k : 0;
        assert_true(mtp_row_count(state, k) >= n);
        for (size_t i = 0; i < n; i++)
            h = vb_fingerprint(h, kvcache_row(c, 0, c->slots[i]), c->pool->row);
    }
    return h;
}

struct first_draft {
    int passes, zeros;      /* of module 0 in the first round; its row without a hidden state, -1: none */
    int32_t slot, index;    /* of that row */
};

static void look_at_first_draft(void *context, const vb_trace *t)
{
    struct first_draft *f = context;
    if (t->kind != VB_TRACE_PASS || t->depth != 0 || t->round != 0 || f->passes++)
        return;
    for (size_t i = 0; i < t->count; i++)
        if (t->row[i].hidden_of < 0 && t->row[i].draft == 0)
            f->zeros = (int)i, f->slot = t->row[i].slot, f->index = t->row[i].index;
}

/* After the first token was chosen the row behind the newest hidden state proposes: without it the row takes zeros, in
 * a slot of its own, beside that of the row that was computed when it was known; two rounds later every row of the
 * modules is the one that it would have been. */
TEST(without_hidden_rows_the_first_draft_takes_zeros_and_a_dummy_slot)
{
    static struct record first, saved, loaded;
    vb_model *m = open_model("golden/tale");
    for (size_t j = 0; j < of_modules.count; j++)
        for (size_t count = 3; count < 40; count += 9) {
            int32_t prompt[40];
            struct first_draft f = {.zeros = -1};
            vb_session_options o = {.context = 80, .threads = 1, .drafting = drafting_of(m, of_modules.name[j], 3),
                                    .poison_cut_rows = 1};
            vb_session_options traced = o;
            traced.trace = look_at_first_draft;
            traced.trace_context = &f;
            random_tokens(m, count, prompt, count);
            vb_session *s = open_session(m, &o, prompt, count);
            generate(s, 1, &first);
            save(s, 1);
            vb_session *t = load(m, &traced);
            const struct kvcache *cache = &mtp_of(t->drafter)->state.depths[0].cache;
            int32_t its_own = cache->slots[count - 1];
            uint64_t rows = final_rows(t, count);
            if (!method_named(of_modules.name[j]).by_history) /* else rows depend on how far a round has come */
                assert_true(rows == final_rows(s, count));
            generate(t, 2, &loaded);
            assert_int_equal(f.zeros, 0);
            assert_int_equal(f.index, count - 1);
            assert_int_not_equal(f.slot, its_own);
            assert_int_equal(cache->slots[count - 1], its_own);
            assert_true(rows == final_rows(t, count)); /* zeros have left nothing behind */
            generate(s, 2, &saved);
            check_same_prefix(of_modules.name[j], &saved, &loaded, 2);
            if (!method_named(of_modules.name[j]).by_history) { /* rows do not depend on the rounds before */
                int32_t next[2], draft[2][VB_MAX_DRAFT], n[2];
                OK(vb_draft(s, &next[0], draft[0], &n[0], &err));
                OK(vb_draft(t, &next[1], draft[1], &n[1], &err));
                assert_int_equal(next[0], next[1]);
                assert_int_equal(n[0], n[1]);
                assert_memory_equal(draft[0], draft[1], (size_t)n[0] * sizeof *draft[0]);
                assert_true(final_rows(s, count + 2) == final_rows(t, count + 2));
            }
            vb_session_close(s);
            vb_session_close(t);
        }
    vb_model_close(m);
}

/* A prompt alone: its last token is read after the load, so no hidden state is missing, and drafts are the same either
 * way. */
TEST(after_a_prompt_alone_drafts_are_the_same_without_hidden_rows)
{
    static struct record plain, loaded;
    vb_model *m = open_model("golden/tale");
    for (size_t j = 0; j < of_modules.count; j++)
        for (size_t count = 2; count < 40; count += 7) {
            int32_t prompt[40];
            vb_session_options o = {.context = 80, .threads = 1, .drafting = drafting_of(m, of_modules.name[j], 3),
                                    .prefill_chunk = 11};
            random_tokens(m, count, prompt, count);
            vb_session *s = open_session(m, &o, prompt, count);
            OK(vb_prefill(s, &err));
            assert_int_equal(s->cached, count - 1);
            save(s, 1);
            vb_session_close(s);
            vb_session *t = load(m, &o);
            generate(t, 20, &loaded);
            run(m, &o, prompt, count, 20, &plain);
            check_same_drafts(of_modules.name[j], &plain, &loaded);
            vb_session_close(t);
        }
    vb_model_close(m);
}

/* ---- histories ---- */

/* Saved and loaded again and again, each time under other options, with cuts and text in between. */
TEST(many_hand_overs_are_as_good_as_none)
{
    static struct record whole, part;
    for (uint64_t trial = 1; trial <= 12; trial++) {
        uint64_t random = trial;
        vb_model *m = open_model(models[trial % 2]);
        vb_sampling sampling = some_sampling(trial % 3, trial);
        vb_session_options o = some_options(m, &random, 200);
        vb_session_options none = {.context = 200, .threads = 1, .sampling = sampling};
        int32_t text[200];
        random_tokens(m, trial, text, 30);
        o.sampling = sampling;
        vb_session *s = open_session(m, &o, text, 30), *plain = open_session(m, &none, text, 30);
        for (int step = 0; step < 12; step++) {
            size_t n = random_below(&random, 7), count, also;
            char what[256] = "";
            o = some_options(m, &random, 200);
            o.sampling = sampling;
            tell(what, &o);
            save(s, (int)random_below(&random, 2));
            vb_session_close(s);
            s = load(m, &o);
            generate(s, n, &part);
            generate(plain, n, &whole);
            check_same(what, &whole, &part);
            vb_tokens(s, &count);
            if (random_below(&random, 3) == 0) {
                size_t keep = count - random_below(&random, count < 5 ? count : 5);
                OK(vb_truncate(s, keep, &err) || vb_truncate(plain, keep, &err));
            } else if (random_below(&random, 2)) {
                OK(vb_append(s, text, 5, &err) || vb_append(plain, text, 5, &err));
            }
            assert_memory_equal(vb_tokens(s, &count), vb_tokens(plain, &also), count * sizeof(int32_t));
            assert_int_equal(count, also);
        }
        vb_session_close(s);
        vb_session_close(plain);
        vb_model_close(m);
    }
}

/* ---- oneDNN ---- */

TEST(a_prompt_by_onednn_is_handed_over_when_it_is_done)
{
    static struct record plain, before, loaded;
    vb_model *m = open_model("golden/tale");
    vb_session_options o = {.context = 700, .threads = 1, .prefill = "onednn", .drafting.method = "mtp-eagle"},
                       contract = o;
    int32_t prompt[600];
    vb_session *s = NULL, *t = NULL;
    vb_error why;
    contract.prefill = NULL;
    random_tokens(m, 5, prompt, 600);
    if (vb_session_open(&s, m, &o, &why)) {
        print_message("skipped: %s\n", why.message);
        vb_model_close(m);
        return;
    }
    OK(vb_append(s, prompt, 600, &err));
    OK(vb_prefill(s, &err));
    assert_int_equal(s->cached, PREFILL_CHUNK); /* whole chunks only */
    save(s, 0);
    REFUSED(vb_session_load(&t, m, &contract, file, NULL, &err), VB_BAD_ARGUMENT, "rows of the prompt still due");
    t = load(m, &o);
    generate(t, 10, &loaded);
    run(m, &o, prompt, 600, 10, &plain);
    check_same("onednn, within the prompt", &plain, &loaded);
    vb_session_close(t);
    generate(s, 4, &before);
    save(s, 0);
    drop(&plain, 4);
    for (int i = 0; i < 2; i++) { /* what generates needs no oneDNN */
        t = load(m, i ? &contract : &o);
        generate(t, 6, &loaded);
        check_same_prefix(i ? "loaded without onednn" : "onednn", &plain, &loaded, 6);
        vb_session_close(t);
    }
    vb_session_close(s);
    vb_model_close(m);
}

int main(void)
{
    methods = methods_for(NULL, ALL_METHODS);
    of_modules = methods_for(NULL, OF_MODULES);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_after_a_load_is_what_would_have_followed),
        cmocka_unit_test(drafts_after_a_load_with_hidden_rows_are_those_that_would_have_followed),
        cmocka_unit_test(the_row_of_a_missing_hidden_state_is_the_same_after_a_load),
        cmocka_unit_test(trees_and_heads_go_on_too),
        cmocka_unit_test(a_smaller_K_drafts_from_what_a_larger_one_has_saved),
        cmocka_unit_test(methods_that_need_the_tokens_alone_lose_nothing),
        cmocka_unit_test(a_loaded_session_shares_passes_with_others),
        cmocka_unit_test(other_ways_of_acceptance_go_on_the_same_with_the_same_drafts),
        cmocka_unit_test(without_hidden_rows_the_first_draft_takes_zeros_and_a_dummy_slot),
        cmocka_unit_test(after_a_prompt_alone_drafts_are_the_same_without_hidden_rows),
        cmocka_unit_test(many_hand_overs_are_as_good_as_none),
        cmocka_unit_test(a_prompt_by_onednn_is_handed_over_when_it_is_done),
    };
    return cmocka_run_group_tests(tests, make_place, remove_place);
}
