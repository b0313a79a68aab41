/* tests/engine/test_batch.c -- continuous batching: whatever the neighbours, the moment of admission, prefixes that are
 * shared and caches that are taken away, a request's tokens and bits are those of a session that is alone. */
#include "tests/support/engine_support.h"

#define REQUESTS 12
#define MOST 200 /* tokens of a request */

static vb_model *small; /* of draft-model */
static const char *prefill; /* of a schedule */

/* ---- random schedules -------------------------------------------------------------------------------------------- */

struct wanted {
    vb_sampling sampling;
    const char *draft;
    int draft_tokens, topk;
    int32_t prompt[MOST];
    size_t count, max_tokens, step; /* step: of the batch at which it comes */
    int ignore_eos, cancelled, tells; /* tells: the prompt's rows are asked for */
    int32_t stops[2];
    size_t num_stops;
    /* by itself */
    int32_t tokens[MOST];
    size_t total;
    vb_result result;
    vb_session *session; /* that it brings, with a cache of its own */
};

struct schedule {
    struct wanted *w;
    const char *what;
    size_t ended;
    int64_t id[REQUESTS];
};

struct entry {
    struct schedule *s;
    size_t number, told; /* rows of its prompt */
};

/* Some prompts begin like an earlier one's, some are an earlier one's beginning. */
static void random_prompt(struct wanted *all, size_t i, uint64_t *seed, int32_t V)
{
    struct wanted *w = &all[i];
    size_t same = 0;
    w->count = 1 + random_below(seed, 90);
    if (i && random_below(seed, 3)) {
        const struct wanted *other = &all[random_below(seed, i)];
        same = 1 + random_below(seed, other->count);
        same = same < w->count ? same : w->count;
        memcpy(w->prompt, other->prompt, same * sizeof *w->prompt);
    }
    for (size_t t = same; t < w->count; t++)
        w->prompt[t] = (int32_t)random_below(seed, (size_t)V);
}

/* alike: all draw drafts by one method, so that what a drafter takes over from another one shows. */
static void random_request(const vb_model *m, struct wanted *all, size_t i, int alike, uint64_t *seed)
{
    static const char *const drawing[] = {"mtp-vanilla", "mtp-eagle", "ngram", "draft-model"};
    static const char *const methods[] = {"none", "mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep", "ngram",
                                          "draft-model"};
    struct wanted *w = &all[i];
    vb_sampling sampled = {.temperature = 0.8f, .seed = next_random(seed), .top_k = 30, .repetition_penalty = 1.1f,
                           .frequency_penalty = 0.2f};
    *w = (struct wanted){.max_tokens = 1 + random_below(seed, 90), .step = random_below(seed, 20),
                         .ignore_eos = random_below(seed, 4) > 0};
    random_prompt(all, i, seed, vb_vocab_size(m));
    if (alike || random_below(seed, 2))
        w->sampling = sampled;
    w->draft_tokens = alike ? 3 : 1 + (int)random_below(seed, 5);
    if (alike || (random_below(seed, 4) == 0 && w->sampling.temperature > 0.0f)) {
        w->sampling.acceptance = "rejection";
        w->draft = drawing[alike ? (size_t)alike % 2 : random_below(seed, COUNT(drawing))];
    } else {
        w->draft = methods[random_below(seed, COUNT(methods))];
    }
    if (!vb_mtp_modules(m) && strcmp(w->draft, "ngram"))
        w->draft = "none", w->sampling.acceptance = NULL;
    w->cancelled = random_below(seed, 10) == 0;
    w->tells = i % 4 != 3 && random_below(seed, 4) == 0;
    w->num_stops = random_below(seed, 4) ? 0 : 2;
    for (size_t k = 0; k < w->num_stops; k++)
        w->stops[k] = (int32_t)random_below(seed, (size_t)vb_vocab_size(m));
}

static vb_generate_options generate_options(const struct wanted *w)
{
    return (vb_generate_options){.max_tokens = w->max_tokens, .ignore_eos = w->ignore_eos, .fingerprint = 1,
                                 .stop_tokens = w->stops, .stop_token_count = w->num_stops};
}

/* With rejection the drafts lead; else what is expected is plain decoding. */
static void run_alone(const vb_model *m, struct wanted *w)
{
    int leads = w->sampling.acceptance != NULL;
    vb_session *s = NULL;
    vb_session_options o = {.context = MOST, .threads = 1, .prefill = prefill, .sampling = w->sampling,
                            .drafting.method = leads ? w->draft : "none",
                            .drafting.tokens = leads ? w->draft_tokens : 0, .drafting.model = small};
    vb_generate_options g = generate_options(w);
    OK(vb_session_open(&s, m, &o, &err));
    OK(vb_append(s, w->prompt, w->count, &err));
    OK(vb_generate(s, &g, &w->result, &err));
    const int32_t *tokens = vb_tokens(s, &w->total);
    memcpy(w->tokens, tokens, w->total * sizeof *tokens);
    vb_session_close(s);
}

static void check_tokens(const struct entry *p, const vb_request_end *e)
{
    const struct wanted *w = &p->s->w[p->number];
    if (e->code)
        fail_msg("%s: request %zu: %s", p->s->what, p->number, e->error->message);
    assert_int_equal(e->prompt, w->count);
    size_t same = 0;
    while (same < e->count && same < w->total && e->tokens[same] == w->tokens[same])
        same++;
    if (w->cancelled && e->result->finish == VB_FINISH_STOPPED) {
        assert_int_equal(same, e->count); /* what it had is right */
        return;
    }
    if (p->told != (w->tells ? w->count - 1 : 0))
        fail_msg("%s: request %zu: %zu rows of a prompt of %zu", p->s->what, p->number, p->told, w->count);
    if (e->count != w->total || same != w->total || e->result->finish != w->result.finish ||
        e->result->tokens != w->result.tokens)
        fail_msg("%s: request %zu (%s, K %d): %zu tokens, the first %zu of them right; wanted %zu", p->s->what,
                 p->number, w->draft, w->draft_tokens, e->count, same, w->total);
    if (e->result->fingerprint != w->result.fingerprint)
        fail_msg("%s: request %zu (%s, K %d): the tokens are right, their logits are not", p->s->what, p->number,
                 w->draft, w->draft_tokens);
}

static void check_end(void *context, const vb_request_end *e)
{
    struct entry *p = context;
    p->s->ended++;
    assert_int_equal(e->id, p->s->id[p->number]);
    check_tokens(p, e);
    vb_session_close(p->s->w[p->number].session);
}

static int see_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct entry *p = context;
    (void)depth, (void)logits, (void)hidden;
    assert_int_equal(index, p->told);
    p->told++;
    return 0;
}

static int now_and_then(void *context) { return random_below(context, 25) == 0; }

static vb_batch *random_batch(const vb_model *m, uint64_t *seed)
{
    static const int chunks[] = {1, 3, 16, 64, 200};
    vb_batch *b = NULL;
    vb_session_options session = {.context = MOST, .threads = 1,
                                  .prefill_chunk = chunks[random_below(seed, COUNT(chunks))], .prefill = prefill,
                                  .drafting.model = small, .padded = random_below(seed, 4) == 0, .poison_cut_rows = 1,
                                  .stop = random_below(seed, 3) ? NULL : now_and_then, .stop_context = seed};
    vb_batch_options o = {.session = &session, .keep_finished = random_below(seed, 2) ? (int)random_below(seed, 8) : 0,
                          .max_sequences = 1 + (int)random_below(seed, 8), .keep_apart = random_below(seed, 4) == 0,
                          .cache_tokens = 200 + (int)random_below(seed, 200)};
    OK(vb_batch_open(&b, m, &o, &err));
    return b;
}

static void add(const vb_model *m, vb_batch *b, struct schedule *s, struct entry *p)
{
    const struct wanted *w = &s->w[p->number];
    vb_generate_options options = generate_options(w);
    vb_request q = {.tokens = w->prompt, .count = w->count, .sampling = &w->sampling,
                    .drafting = &(vb_drafting){.method = w->draft, .tokens = w->draft_tokens, .model = small},
                    .options = &options, .prompt_row = w->tells ? see_row : NULL, .done = check_end,
                    .context = p};
    if (p->number % 4 == 3) {
        vb_session_options o = {.context = MOST, .threads = 1, .prefill_chunk = 7, .prefill = prefill,
                                .sampling = w->sampling, .drafting.method = w->draft,
                                .drafting.tokens = w->draft_tokens, .drafting.model = small, .poison_cut_rows = 1};
        s->w[p->number].session = open_session(m, &o, w->prompt, w->count);
        q = (vb_request){.session = w->session, .options = q.options, .done = check_end, .context = p};
    }
    OK(vb_batch_add(b, &q, &s->id[p->number], &err));
}

/* Some request pauses, some goes on. Those that are over, and those to come, know nothing of it. */
static void pause_and_resume(vb_batch *b, const struct schedule *s, int all_resume, uint64_t *seed)
{
    if (random_below(seed, 4) == 0)
        vb_batch_pause(b, s->id[random_below(seed, REQUESTS)]);
    for (size_t i = 0; i < REQUESTS; i++)
        if (all_resume || random_below(seed, 30) == 0)
            vb_batch_resume(b, s->id[i]);
}

/* A step, which may be given up. */
static void step(vb_batch *b, size_t *left)
{
    vb_error err;
    int code = vb_batch_step(b, left, &err);
    if (code && code != VB_STOPPED)
        fail_msg("%s", err.message);
}

/* One schedule; what the batch says of itself afterwards goes to *all. */
static void run_schedule(const vb_model *m, uint64_t *seed, const char *what, vb_batch_state *all)
{
    static struct wanted w[REQUESTS];
    struct entry places[REQUESTS];
    struct schedule s = {.w = w, .what = what};
    size_t left = 1, added = 0;
    vb_batch_state state;
    int alike = random_below(seed, 3) ? 0 : 1 + (int)random_below(seed, 2);
    prefill = random_below(seed, 2) ? "expanded" : NULL;
    for (size_t i = 0; i < REQUESTS; i++) {
        random_request(m, w, i, alike, seed);
        run_alone(m, &w[i]);
        places[i] = (struct entry){&s, i, 0};
        s.id[i] = -1;
    }
    vb_batch *b = random_batch(m, seed);
    for (size_t now = 0; left || added < REQUESTS || state.paused; now++) {
        for (size_t i = 0; i < REQUESTS; i++)
            if (w[i].step == now)
                add(m, b, &s, &places[i]), added++;
            else if (w[i].cancelled && w[i].step + 7 == now)
                vb_batch_cancel(b, s.id[i]); /* unless it is done */
        pause_and_resume(b, &s, !left, seed);
        step(b, &left);
        vb_batch_look(b, &state);
        assert_int_equal(state.waiting + state.running + state.done, added);
        assert_int_equal(left, state.waiting + state.running - state.paused);
        if (now > 20000)
            fail_msg("%s: no end", what);
    }
    assert_int_equal(s.ended, REQUESTS);
    assert_int_equal(state.cache_tokens_used > 0, state.kept > 0);
    assert_true(state.most_cache_tokens_used <= state.cache_tokens);
    all->preemptions += state.preemptions;
    all->shared_tokens += state.shared_tokens;
    all->passes += state.passes;
    vb_batch_close(b);
}

TEST(no_schedule_reaches_a_bit)
{
    static const char *const names[] = {"golden/tiny/v3-mtp3", "golden/tiny/glm5", "golden/tiny/v2-lite"};
    static const char *const caches[] = {"q8", "bf16", "f32"};
    int rounds = getenv("VERBATIM_LONG") ? 400 : 20;
    vb_batch_state all = {0};
    for (size_t i = 0; i < COUNT(names); i++) {
        vb_model *m = open_cached(names[i], caches[i]);
        small = m; /* drafts what the target would have said, or nearly */
        for (int round = 0; round < (i ? rounds : 2 * rounds); round++) {
            char what[64];
            uint64_t seed = 1000 * i + (uint64_t)round;
            if (!has_turn((size_t)round, 2))
                continue;
            snprintf(what, sizeof what, "%s, schedule %d", names[i], round);
            run_schedule(m, &seed, what, &all);
        }
        vb_model_close(m);
    }
    printf("%zu passes, %zu sequences gave their rows back, %zu tokens' rows were another's\n", all.passes,
           all.preemptions, all.shared_tokens);
    assert_true(all.preemptions > 10 && all.shared_tokens > 100);
}

/* ---- one thing at a time ----------------------------------------------------------------------------------------- */

struct ended {
    size_t count;
    int code[8];
    vb_error error[8];
    vb_result result[8];
    size_t tokens[8];
};

static void note_end(void *context, const vb_request_end *e)
{
    struct ended *all = context;
    all->code[e->id] = e->code;
    if (e->error)
        all->error[e->id] = *e->error;
    all->result[e->id] = *e->result;
    all->tokens[e->id] = e->count;
    all->count++;
}

static vb_batch *open_batch(const vb_model *m, const vb_batch_options *o)
{
    vb_batch *b = NULL;
    OK(vb_batch_open(&b, m, o, &err));
    return b;
}

TEST(what_prompts_begin_with_is_there_once)
{
    vb_model *m = open_tiny("v3");
    vb_session_options session = {.context = 200, .threads = 1, .drafting.method = "mtp-eagle", .drafting.tokens = 2};
    vb_batch_options o = {.session = &session, .max_sequences = 8};
    int32_t prompt[101];
    for (int apart = 0; apart < 2; apart++) {
        struct ended all = {0};
        vb_batch_state state;
        o.keep_apart = apart;
        vb_batch *b = open_batch(m, &o);
        for (int i = 0; i < 100; i++)
            prompt[i] = i % 90 + 3;
        for (int i = 0; i < 8; i++) {
            prompt[100] = 10 + i;
            vb_generate_options options = {.max_tokens = 40, .ignore_eos = 1};
            vb_request q = {.tokens = prompt, .count = 101, .options = &options, .done = note_end, .context = &all};
            OK(vb_batch_add(b, &q, NULL, &err));
        }
        OK(vb_batch_run(b, &err));
        vb_batch_look(b, &state);
        assert_int_equal(all.count, 8);
        if (apart) {
            assert_int_equal(state.shared_tokens, 0);
            assert_true(state.most_cache_tokens_used >= 8 * 101);
        } else {
            assert_int_equal(state.shared_tokens, 7 * 99); /* the drafter wants the hidden state before the first that
                                                              differs */
            assert_true(state.most_cache_tokens_used <= 101 + 7 * 2 + 8 * (40 + 3));
        }
        vb_batch_close(b);
    }
    vb_model_close(m);
}

/* However short the context is: a pass has room for the prompts of all. */
TEST(short_prompts_share_a_pass)
{
    vb_model *m = open_tiny("v3");
    int32_t prompt[] = {5, 6, 7, 8, 9};
    struct ended all = {0};
    vb_batch_state state;
    vb_session_options session = {.context = 7, .threads = 1};
    vb_batch *b = open_batch(m, &(vb_batch_options){.session = &session, .keep_apart = 1});
    for (int i = 0; i < 8; i++) {
        vb_generate_options options = {.max_tokens = 2, .ignore_eos = 1};
        vb_request q = {.tokens = prompt, .count = 5, .options = &options, .done = note_end, .context = &all};
        OK(vb_batch_add(b, &q, NULL, &err));
    }
    OK(vb_batch_run(b, &err));
    vb_batch_look(b, &state);
    assert_int_equal(all.count, 8);
    assert_int_equal(state.passes, 2); /* the prompts; the second token */
    vb_batch_close(b);
    vb_model_close(m);
}

static size_t rows_used(const vb_batch *b)
{
    vb_batch_state state;
    vb_batch_look(b, &state);
    return state.cache_tokens_used;
}

static int count_chosen(void *context, const vb_event *e)
{
    (void)e;
    ++*(size_t *)context;
    return 0;
}

/* Two prompts arrive while three sequences decode. Each pass computes a token of every decoding sequence, and CHUNK
 * tokens of prompts in all. */
TEST(who_decodes_waits_for_one_chunk_of_a_prompt_at_most)
{
    enum { DECODING = 3, CHUNK = 16, LONG = 150, PASSES = (2 * LONG + CHUNK - 1) / CHUNK };
    for (int K = 0; K < 3; K++) {
        vb_model *m = open_tiny("v3");
        vb_drafting drafting = {.method = "mtp-eagle", .tokens = K};
        int32_t prompt[2 * LONG];
        size_t chosen[DECODING + 2] = {0}, left;
        vb_session_options session = {.context = 200, .threads = 1, .prefill_chunk = CHUNK};
        vb_batch *b = open_batch(m, &(vb_batch_options){.session = &session, .max_sequences = DECODING + 2});
        random_tokens(m, 3, prompt, 2 * LONG);
        for (int i = 0; i < DECODING + 2; i++) {
            int decodes = i < DECODING;
            vb_generate_options options = {.max_tokens = decodes ? 198 : 1, .ignore_eos = 1, .callback = count_chosen,
                                           .context = &chosen[i]};
            vb_request q = {.tokens = prompt + (decodes ? i : (i - DECODING) * LONG), .count = decodes ? 2 : LONG,
                            .options = &options};
            q.drafting = decodes && K ? &drafting : NULL;
            OK(vb_batch_add(b, &q, NULL, &err));
            if (i == DECODING - 1)
                OK(vb_batch_step(b, &left, &err));
        }
        for (size_t pass = 1; pass <= PASSES; pass++) {
            size_t before[DECODING], used = rows_used(b), others = 0;
            memcpy(before, chosen, sizeof before);
            OK(vb_batch_step(b, &left, &err));
            for (int i = 0; i < DECODING; i++) {
                assert_true(chosen[i] > before[i] && (K || chosen[i] == before[i] + 1));
                others += chosen[i] - before[i];
            }
            if (!K && pass * CHUNK < LONG)
                assert_int_equal(rows_used(b) - used, others + CHUNK);
            assert_int_equal(chosen[DECODING], pass * CHUNK >= LONG);
            assert_int_equal(chosen[DECODING + 1], pass == PASSES);
        }
        vb_batch_close(b);
        vb_model_close(m);
    }
}

/* Allows nothing from the third new token on. */
static int mask_all(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    (void)tokens;
    if (count >= 5)
        memset(mask, 0, *(const size_t *)context);
    return VB_OK;
}

TEST(an_error_ends_its_request_and_no_other)
{
    vb_model *m = open_tiny("v3");
    size_t V = (size_t)vb_vocab_size(m);
    int32_t prompt[] = {5, 6, 7};
    vb_sampling wrong = {.temperature = -1.0f}, none = {.mask = mask_all, .mask_context = &V};
    struct ended all = {0};
    vb_batch *b = open_batch(m, &(vb_batch_options){.session = &(vb_session_options){.context = 64, .threads = 1}});
    vb_generate_options options = {.max_tokens = 10, .ignore_eos = 1, .fingerprint = 1};
    vb_request q = {.tokens = prompt, .count = 3, .options = &options, .done = note_end, .context = &all};
    vb_request bad = q, masked = q, reroll = q, empty = q;
    bad.sampling = &wrong;
    masked.sampling = &none;
    vb_sampling rejection = {.temperature = 1.0f, .acceptance = "rejection"};
    reroll.sampling = &rejection;
    reroll.drafting = &(vb_drafting){.method = "eagle-reroll"};
    empty.options = NULL;
    const vb_request *const requests[] = {&q, &bad, &masked, &reroll, &empty, &q};
    for (size_t i = 0; i < COUNT(requests); i++)
        OK(vb_batch_add(b, requests[i], NULL, &err));
    OK(vb_batch_run(b, &err));
    assert_int_equal(all.count, 6);
    assert_int_equal(all.code[0], VB_OK);
    assert_int_equal(all.code[1], VB_BAD_ARGUMENT);
    assert_non_null(strstr(all.error[1].message, "temperature is -1"));
    assert_int_equal(all.code[2], VB_BAD_ARGUMENT);
    assert_non_null(strstr(all.error[2].message, "no candidate is left for token 5"));
    assert_int_equal(all.tokens[2], 5);
    assert_int_equal(all.code[3], VB_BAD_ARGUMENT);
    assert_non_null(strstr(all.error[3].message, "acceptance rejection with eagle-reroll"));
    assert_int_equal(all.code[4], VB_OK);
    assert_int_equal(all.tokens[4], 3);
    assert_int_equal(all.result[0].tokens, 10);
    assert_int_equal(all.result[5].fingerprint, all.result[0].fingerprint);
    vb_batch_close(b);
    vb_model_close(m);
}

/* Each request that ends brings the next one. */
struct chain {
    vb_batch *b;
    vb_request q;
    int left, ended;
};

static void add_next(void *context, const vb_request_end *e)
{
    struct chain *c = context;
    (void)e;
    c->ended++;
    if (c->left-- > 0)
        OK(vb_batch_add(c->b, &c->q, NULL, &err));
}

TEST(an_end_may_add_a_request_and_a_batch_may_be_closed_in_the_middle)
{
    vb_model *m = open_tiny("glm");
    int32_t prompt[] = {5, 6, 7};
    vb_session_options session = {.context = 64, .threads = 1};
    struct chain c = {.left = 4, .b = open_batch(m, &(vb_batch_options){.session = &session, .max_sequences = 2})};
    size_t left;
    c.q = (vb_request){.tokens = prompt, .count = 3,
                       .options = &(vb_generate_options){.max_tokens = 3, .ignore_eos = 1},
                       .done = add_next, .context = &c};
    OK(vb_batch_add(c.b, &c.q, NULL, &err));
    OK(vb_batch_run(c.b, &err));
    assert_int_equal(c.ended, 5);
    assert_false(vb_batch_cancel(c.b, 3)); /* done long ago */
    for (int i = 0; i < 5; i++)
        OK(vb_batch_add(c.b, &c.q, NULL, &err));
    OK(vb_batch_step(c.b, &left, &err));
    assert_int_equal(left, 5);
    assert_true(vb_batch_cancel(c.b, 9)); /* it waits */
    assert_int_equal(c.ended, 6);
    vb_batch_close(c.b);
    vb_model_close(m);
}

TEST(what_cannot_be_is_refused)
{
    vb_model *m = open_tiny("v3");
    vb_batch *b;
    int32_t prompt[70] = {5, 6, 7}, outside[] = {5, 1 << 20};
#define OPEN(...) vb_batch_open(&b, m, &(vb_batch_options){__VA_ARGS__}, &err)
    REFUSED(OPEN(.session = &(vb_session_options){.context = -1}), VB_BAD_ARGUMENT, "context is -1");
    REFUSED(OPEN(.session = &(vb_session_options){.prefill = "onednn"}), VB_BAD_ARGUMENT,
            "prefill is onednn; a batch has contract and expanded alone");
    REFUSED(OPEN(.session = &(vb_session_options){.isa = "mmx"}), VB_BAD_ARGUMENT, "unknown instruction set mmx");
    REFUSED(OPEN(.max_sequences = 65), VB_BAD_ARGUMENT, "65 sequences at once, wanted 1 to 64");
    REFUSED(OPEN(.session = &(vb_session_options){.context = 64}, .cache_tokens = 16), VB_BAD_ARGUMENT,
            "the cache is of 16 tokens, wanted 17");
    b = open_batch(m, &(vb_batch_options){.session = &(vb_session_options){.context = 64, .threads = 1},
                                          .cache_tokens = 60});
#define ADD(...) vb_batch_add(b, &(vb_request){__VA_ARGS__}, NULL, &err)
    REFUSED(ADD(.tokens = prompt, .count = 0), VB_BAD_ARGUMENT, "the prompt is empty");
    REFUSED(ADD(.tokens = prompt, .count = 70), VB_BAD_ARGUMENT,
            "a prompt of 70 tokens does not fit into a context of 64");
    REFUSED(ADD(.tokens = outside, .count = 2), VB_BAD_ARGUMENT, "token 1 is 1048576, outside the vocabulary");
    REFUSED(ADD(.tokens = prompt, .count = 3, .options = &(vb_generate_options){.max_tokens = 42}), VB_BAD_ARGUMENT,
            "a prompt of 3 tokens and 42 new ones do not fit into a cache of 44");
    OK(ADD(.tokens = prompt, .count = 3, .options = &(vb_generate_options){.max_tokens = 41, .ignore_eos = 1}));
    OK(vb_batch_run(b, &err));
    vb_batch_close(b);
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_schedule_reaches_a_bit),
        cmocka_unit_test(what_prompts_begin_with_is_there_once),
        cmocka_unit_test(short_prompts_share_a_pass),
        cmocka_unit_test(who_decodes_waits_for_one_chunk_of_a_prompt_at_most),
        cmocka_unit_test(an_error_ends_its_request_and_no_other),
        cmocka_unit_test(an_end_may_add_a_request_and_a_batch_may_be_closed_in_the_middle),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
