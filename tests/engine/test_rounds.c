/* tests/engine/test_rounds.c -- sessions under random operations. Every method, padded or not, under random conventions
 * of drafting, must tell after each append, run, cut and draft what a plain session tells that did the same; cut rows
 * are NaN, so a draft that meets one is counted. ROUNDS=N runs N sessions instead of the usual 240. Runs in the
 * repository's root. */
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"

#include "engine/model/conventions.h"

static const char *const checkpoints[] = {"v3-mtp3", "v3"};
static vb_model *small; /* that drafts */
static const int lengths[] = {1, 2, 3, 5, 15};
static const int chunks[] = {1, 2, 7, 40, 0};

static int open_small(void **unused __attribute__((unused)))
{
    small = open_tiny(checkpoints[0]);
    return 0;
}

static int close_small(void **unused __attribute__((unused)))
{
    vb_model_close(small);
    return 0;
}

static size_t runs(void) { return getenv("ROUNDS") ? (size_t)atol(getenv("ROUNDS")) : 240; }

/* Each convention of drafting at any of its values. */
static void random_conventions(uint64_t *seed, char *list, size_t room)
{
    struct conventions c = {{0}};
    for (size_t i = 0; i < FIRST_TARGET_CONVENTION; i++)
        c.value[i] = (unsigned char)random_below(seed, 2);
    if (random_below(seed, 3) == 0)
        c = (struct conventions){{0}};
    conventions_list(&c, list, room);
}

static vb_model *open_under(const char *name, const char *list)
{
    char dir[64];
    vb_model *m = NULL;
    vb_model_options o = {.conventions = list};
    snprintf(dir, sizeof dir, "golden/tiny/%s", name);
    OK(vb_model_open(&m, dir, &o, &err));
    return m;
}

/* Which tokens are allowed depends on the two before and on their number, so a draft that it is not shown tells. */
static int mask_by_what_was_said(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    size_t before = (count ? (size_t)tokens[count - 1] : 0) + 3 * (count > 1 ? (size_t)tokens[count - 2] : 0) + count;
    for (size_t t = 0; t < *(const size_t *)context; t++)
        mask[t] = (t * 7 + before) % 3 != 0;
    return VB_OK;
}

/* Greedy, or sampled with penalties and with an end token that comes now and then; each with a mask or without. */
static vb_sampling random_sampling(uint64_t *seed)
{
    static size_t V = 128; /* of the smallest vocabulary here; tokens beyond are always allowed */
    static const int32_t end[] = {1};
    static const float likely[] = {2};
    vb_sampling greedy = {0};
    vb_sampling sampled = {.temperature = 0.7f, .seed = next_random(seed), .repetition_penalty = 1.2f,
                           .presence_penalty = 0.3f, .frequency_penalty = 0.2f, .top_k = 20, .min_p = 0.01f,
                           .bias_tokens = end, .bias_values = likely, .bias_count = 1};
    vb_sampling s = random_below(seed, 2) ? greedy : sampled;
    if (random_below(seed, 3) == 0) {
        s.mask = mask_by_what_was_said;
        s.mask_context = &V;
    }
    return s;
}

static vb_session_options random_options(uint64_t *seed, const vb_model *m, int32_t context,
                                         const vb_sampling *sampling)
{
    struct methods methods = methods_for(m, ALL_METHODS);
    vb_drafting drafting = drafting_of(m, methods.name[random_below(seed, methods.count)],
                                       lengths[random_below(seed, COUNT(lengths))]);
    drafting.model = small;
    return (vb_session_options){.context = context, .threads = 1, .drafting = drafting,
                                .padded = (int)random_below(seed, 2),
                                .prefill_chunk = chunks[random_below(seed, COUNT(chunks))], .sampling = *sampling,
                                .poison_cut_rows = 1};
}

/* Cuts and passes must fit together: every row that a cut takes was written, and lies behind those that stay. */
struct caches {
    size_t length[1 + VB_MAX_DRAFT]; /* by depth + 1 */
    int phantom;
    int zeros;    /* missing-hidden=zeros: once after a prompt, depth 0 takes its last row again in a dummy slot, and
                     then has the first one back */
    size_t aside; /* 1 + that row, while it is aside; else 0 */
    int skips;    /* chain-module=step: a module lacks the rows of drafts that other modules made */
    const char *what;
};

static void count_rows(void *context, const vb_trace *t)
{
    struct caches *c = context;
    size_t *length = &c->length[t->depth + 1], first = t->depth >= 0 && c->phantom ? 1 : 0;
    if (t->kind == VB_TRACE_PASS && t->depth == 0 && c->zeros && !c->aside && *length &&
        t->row[0].index + (int)first == (int)*length - 1)
        c->aside = (*length)--;
    if (t->kind == VB_TRACE_PASS)
        for (size_t i = 0; i < t->count; i++, ++*length)
            if (t->row[i].index + (int)first != (int)*length &&
                !(c->skips && t->row[i].draft && t->row[i].index + (int)first > (int)*length))
                fail_msg("%s: a row of index %d in depth %d after %zu rows", c->what, (int)t->row[i].index,
                         (int)t->depth, *length);
    if (t->kind == VB_TRACE_CUT) {
        if (t->first + t->count != *length)
            fail_msg("%s: rows %zu.. are cut, %zu of %zu in depth %d", c->what, t->first, t->count, *length,
                     (int)t->depth);
        *length = t->first;
        if (t->depth == 0 && c->aside && t->first + 1 == c->aside)
            *length = c->aside, c->aside = 0;
    }
}

static void check_timelines(const char *what, const vb_session *a, const vb_session *b)
{
    size_t n, m;
    const int32_t *of_a = vb_tokens(a, &n), *of_b = vb_tokens(b, &m);
    if (n != m || memcmp(of_a, of_b, n * sizeof *of_a))
        fail_msg("%s: timelines of %zu and %zu tokens differ", what, n, m);
}

/* Drafts of a session that has done nothing else. Those of eagle-reroll and eagle-keep depend on the rounds before. */
static void check_drafts(const char *what, const vb_model *m, const vb_session_options *options, const vb_session *s,
                         int32_t next, const int32_t *drafts, int32_t count)
{
    int32_t others[VB_MAX_DRAFT], other_count, other_next;
    size_t n;
    const int32_t *tokens = vb_tokens(s, &n);
    vb_session_options o = *options;
    o.trace = NULL;
    o.sampling = (vb_sampling){.bias_tokens = &next, .bias_values = &(float){1e6f}, .bias_count = 1};
    vb_session *fresh = open_session(m, &o, tokens, n - 1);
    OK(vb_draft(fresh, &other_next, others, &other_count, &err));
    assert_int_equal(next, other_next);
    if (count != other_count || memcmp(drafts, others, (size_t)count * sizeof *drafts))
        fail_msg("%s: %d drafts, not the %d of a new session", what, (int)count, (int)other_count);
    vb_session_close(fresh);
}

static int take_index(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct record *r = context;
    (void)depth, (void)hidden;
    assert_true(r->n < MOST_TOLD);
    r->index[r->n] = index;
    r->row[r->n++] = vb_fingerprint(VB_FINGERPRINT_START, logits, r->V);
    return 0;
}

/* One operation on both sessions. */
static void operate(const char *what, uint64_t *seed, const vb_model *m, const vb_session_options *o, vb_session *s,
                    vb_session *plain)
{
    static struct record a, b;
    int32_t tokens[64], next, drafts[VB_MAX_DRAFT], others[VB_MAX_DRAFT], count, none;
    size_t have = s->count, room = s->context - have, n;
    switch (have ? random_below(seed, 10) : 0) {
    case 0: /* append, as often as not to the last token of the context */
        n = random_below(seed, 4) ? random_below(seed, 20) : 60;
        n = n < room ? n : room;
        n = n || have ? n : 1;
        random_tokens(m, next_random(seed), tokens, n);
        OK(vb_append(s, tokens, n, &err));
        OK(vb_append(plain, tokens, n, &err));
        break;
    case 1: case 2: /* cut, a few tokens as often as not */
        n = random_below(seed, 2) ? random_below(seed, have + 1) : have - random_below(seed, have < 4 ? have : 4);
        OK(vb_truncate(s, n, &err));
        OK(vb_truncate(plain, n, &err));
        break;
    case 3:
        if (!room)
            break;
        OK(vb_draft(plain, &next, others, &none, &err));
        n = (size_t)next;
        OK(vb_draft(s, &next, drafts, &count, &err));
        assert_int_equal(next, n);
        n = room - 1 < (size_t)s->max_draft ? room - 1 : (size_t)s->max_draft;
        vb_draft_method method = method_named(o->drafting.method);
        assert_true((size_t)count == n || (count == 0 && may_find_nothing(&method)));
        if (!m->config.conventions.value[MISSING_HIDDEN] && !method.by_history)
            check_drafts(what, m, o, s, next, drafts, count);
        break;
    case 4: /* the rows not computed yet: at least the last token's */
        a = (struct record){.V = (size_t)vb_vocab_size(m)};
        b = a;
        n = s->cached;
        OK(vb_evaluate(s, 0, take_index, &a, &err));
        assert_int_equal(a.n, have - n);
        assert_true(a.n && a.index[a.n - 1] == have - 1);
        OK(vb_evaluate(plain, 0, take_index, &b, &err));
        assert_true(a.row[a.n - 1] == b.row[b.n - 1]);
        break;
    default: {
        n = random_below(seed, 4) ? 1 + random_below(seed, 5) : 60;
        size_t stop = random_below(seed, 4) ? 0 : 1 + random_below(seed, 4);
        int ignore = (int)random_below(seed, 2);
        a.stop_after = b.stop_after = stop;
        vb_generate_options ga = recording(&a, s, n), gb = recording(&b, plain, n);
        ga.ignore_eos = gb.ignore_eos = ignore;
        OK(vb_generate(plain, &gb, &b.result, &err));
        OK(vb_generate(s, &ga, &a.result, &err));
        check_same(what, &b, &a);
        assert_int_equal(a.result.finish, b.result.finish);
        assert_int_equal(a.result.draft_failures, 0);
    }
    }
    check_timelines(what, s, plain);
}

TEST(whatever_is_done_to_a_session_it_tells_what_a_plain_one_tells)
{
    vb_model *plain_models[COUNT(checkpoints)];
    for (size_t i = 0; i < COUNT(checkpoints); i++)
        plain_models[i] = open_tiny(checkpoints[i]);
    for (size_t run = 0; run < runs(); run++) {
        uint64_t seed = 1000 + run;
        char list[512], what[700];
        size_t which = run % COUNT(checkpoints);
        random_conventions(&seed, list, sizeof list);
        vb_model *m = open_under(checkpoints[which], list);
        assert_true(vb_vocab_size(m) >= 128);
        int32_t context = (int32_t)(2 + random_below(&seed, 80));
        vb_sampling sampling = random_sampling(&seed);
        vb_session_options o = random_options(&seed, m, context, &sampling),
                           p = {.context = context, .threads = 1, .sampling = sampling};
        const unsigned char *convention = m->config.conventions.value;
        int modules = method_named(o.drafting.method).needs_modules;
        struct caches caches = {.phantom = modules && convention[FIRST_ROW],
                                .zeros = modules && convention[MISSING_HIDDEN],
                                .skips = modules && convention[CHAIN_MODULE], .what = what};
        o.trace = count_rows;
        o.trace_context = &caches;
        vb_session *s = NULL, *plain = NULL;
        OK(vb_session_open(&s, m, &o, &err));
        OK(vb_session_open(&plain, plain_models[which], &p, &err));
        for (int step = 0; step < 24; step++) {
            snprintf(what, sizeof what, "run %zu, step %d (%s, %s, K %d, chunk %d, context %d%s; %s)", run, step,
                     checkpoints[which], o.drafting.method, (int)o.drafting.tokens, (int)o.prefill_chunk, (int)context,
                     o.padded ? ", padded" : "", list);
            operate(what, &seed, m, &o, s, plain);
        }
        vb_session_close(s);
        vb_session_close(plain);
        vb_model_close(m);
    }
    for (size_t i = 0; i < COUNT(checkpoints); i++)
        vb_model_close(plain_models[i]);
}

/* A timeline cut to nothing is a new one, whatever the rounds before left behind. */
TEST(after_a_cut_to_nothing_drafts_are_those_of_a_new_session)
{
    static struct record r;
    int32_t prompt[30], next, drafts[VB_MAX_DRAFT], count;
    for (size_t run = 0; run < runs() / 2; run++) {
        uint64_t seed = 9000 + run;
        char list[512], what[700];
        random_conventions(&seed, list, sizeof list);
        vb_model *m = open_under(checkpoints[run % 2], list);
        vb_session_options o = random_options(&seed, m, 64, &(vb_sampling){0});
        random_tokens(m, run, prompt, COUNT(prompt));
        vb_session *s = open_session(m, &o, prompt, 1 + random_below(&seed, COUNT(prompt)));
        generate(s, 1 + random_below(&seed, 30), &r);
        OK(vb_truncate(s, 0, &err));
        OK(vb_append(s, prompt, 1 + random_below(&seed, COUNT(prompt)), &err));
        OK(vb_draft(s, &next, drafts, &count, &err));
        snprintf(what, sizeof what, "run %zu (%s, K %d%s; %s)", run, o.drafting.method, (int)o.drafting.tokens,
                 o.padded ? ", padded" : "", list);
        check_drafts(what, m, &o, s, next, drafts, count);
        vb_session_close(s);
        vb_model_close(m);
    }
}

/* A prompt in two parts, with a single token of the model's between them: no draft is asked for before the second. */
TEST(a_prompt_in_parts_has_the_drafts_of_the_whole)
{
    static struct record r;
    int32_t prompt[30], next, drafts[VB_MAX_DRAFT], count;
    for (size_t run = 0; run < runs() / 2; run++) {
        uint64_t seed = 7000 + run;
        char list[512], what[700];
        random_conventions(&seed, list, sizeof list);
        vb_model *m = open_under(checkpoints[run % 2], list);
        vb_session_options o = random_options(&seed, m, 90, &(vb_sampling){0});
        random_tokens(m, run, prompt, COUNT(prompt));
        vb_session *s = open_session(m, &o, prompt, 1 + random_below(&seed, COUNT(prompt)));
        generate(s, 1, &r);
        OK(vb_append(s, prompt, 1 + random_below(&seed, COUNT(prompt)), &err));
        OK(vb_draft(s, &next, drafts, &count, &err));
        snprintf(what, sizeof what, "run %zu (%s, K %d%s; %s)", run, o.drafting.method, (int)o.drafting.tokens,
                 o.padded ? ", padded" : "", list);
        check_drafts(what, m, &o, s, next, drafts, count);
        vb_session_close(s);
        vb_model_close(m);
    }
}

/* Padding reads token 0: where that one's embedding is not a number, nothing else is touched. */
TEST(padding_that_is_not_finite_changes_nothing)
{
    static struct record padded, plain;
    char dir[64];
    int32_t prompt[12];
    copy_checkpoint(dir, "golden/tiny/v3-mtp3");
    break_tensor(dir, "model.embed_tokens.weight", 0, 64, 0);
    vb_model *m = open_model(dir);
    struct methods methods = methods_for(m, OF_MODULES);
    size_t compared = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        vb_session_options o = {.context = 40, .threads = 1, .drafting.method = methods.name[seed % methods.count],
                                .drafting.tokens = lengths[seed % 5], .padded = 1, .poison_cut_rows = 1};
        random_tokens(m, seed, prompt, COUNT(prompt));
        int reads_it = 0;
        for (size_t i = 0; i < COUNT(prompt); i++)
            reads_it |= prompt[i] == 0;
        vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
        vb_session *p = open_session(m, &(vb_session_options){.context = 40, .threads = 1}, prompt, COUNT(prompt));
        vb_generate_options of_s = recording(&padded, s, 28), of_p = recording(&plain, p, 28);
        vb_error err = {0};
        int code = vb_generate(p, &of_p, &plain.result, &err);
        assert_int_equal(vb_generate(s, &of_s, &padded.result, &err), code); /* token 0 may be chosen, too */
        check_same(o.drafting.method, &plain, &padded);
        compared += !reads_it && plain.n > 3;
        vb_session_close(s);
        vb_session_close(p);
    }
    assert_true(compared > 5);
    vb_model_close(m);
    remove_dir(dir);
}

TEST(sequences_of_a_batch_that_draft_in_their_own_ways_are_plain)
{
    enum { SEQUENCES = 6 };
    static struct record a[SEQUENCES], b;
    int32_t prompt[40];
    for (size_t run = 0; run < runs() / 8; run++) {
        uint64_t seed = 5000 + run;
        char list[512], what[700];
        random_conventions(&seed, list, sizeof list);
        vb_model *m = open_under(checkpoints[run % 2], list), *plain_model = open_tiny(checkpoints[run % 2]);
        vb_session *s[SEQUENCES], *plain[SEQUENCES];
        vb_session_options o[SEQUENCES];
        for (size_t i = 0; i < SEQUENCES; i++) {
            vb_sampling sampling = random_sampling(&seed);
            size_t n = 1 + random_below(&seed, COUNT(prompt));
            int32_t context = i ? (int32_t)(n + random_below(&seed, 80 - n)) : 80;
            o[i] = random_options(&seed, m, context, &sampling);
            o[i].drafting.method = random_below(&seed, 5) ? o[i].drafting.method : NULL;
            random_tokens(m, next_random(&seed), prompt, n);
            s[i] = open_session(m, &o[i], prompt, n);
            plain[i] = open_session(plain_model,
                                    &(vb_session_options){.context = context, .threads = 1, .sampling = sampling},
                                    prompt, n);
        }
        for (int step = 0; step < 4; step++) {
            vb_generate_options g[SEQUENCES];
            vb_result results[SEQUENCES];
            size_t wanted[SEQUENCES];
            for (size_t i = 0; i < SEQUENCES; i++) {
                wanted[i] = random_below(&seed, 30);
                a[i].stop_after = 0;
                g[i] = recording(&a[i], s[i], wanted[i]);
                g[i].ignore_eos = step % 2;
            }
            OK(generate_together(s, SEQUENCES, g, results, &err));
            for (size_t i = 0; i < SEQUENCES; i++) {
                snprintf(what, sizeof what, "run %zu, step %d, sequence %zu (%s, K %d%s; %s)", run, step, i,
                         o[i].drafting.method ? o[i].drafting.method : "none", (int)o[i].drafting.tokens,
                         o[i].padded ? ", padded" : "", list);
                b.stop_after = 0;
                vb_generate_options p = recording(&b, plain[i], wanted[i]);
                p.ignore_eos = step % 2;
                OK(vb_generate(plain[i], &p, &b.result, &err));
                a[i].result = results[i];
                check_same(what, &b, &a[i]);
                assert_int_equal(results[i].finish, b.result.finish);
                assert_int_equal(results[i].draft_failures, 0);
                check_timelines(what, s[i], plain[i]);
            }
        }
        for (size_t i = 0; i < SEQUENCES; i++)
            vb_session_close(s[i]), vb_session_close(plain[i]);
        vb_model_close(m);
        vb_model_close(plain_model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_done_to_a_session_it_tells_what_a_plain_one_tells),
        cmocka_unit_test(after_a_cut_to_nothing_drafts_are_those_of_a_new_session),
        cmocka_unit_test(a_prompt_in_parts_has_the_drafts_of_the_whole),
        cmocka_unit_test(padding_that_is_not_finite_changes_nothing),
        cmocka_unit_test(sequences_of_a_batch_that_draft_in_their_own_ways_are_plain),
    };
    return cmocka_run_group_tests(tests, open_small, close_small);
}
