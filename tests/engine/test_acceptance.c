/* tests/engine/test_acceptance.c -- which drafts stand: relaxed acceptance and the reasons counted, by hand; rejection
 * on models. That rejection keeps the distribution is proved in test_rejection.c. Runs in the repository's root. */
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"
#include "tests/support/toy_session.h"

#include <math.h>

/* ---- by hand, on random rows ------------------------------------------------------------------------------------- */

enum { BEGIN = 1, END = 2, END_OF_TEXT = 3 };

struct trial {
    vb_sampling o;
    int V, K;
    size_t prompt;
    int32_t timeline[TOY_ROOM], draft[VB_MAX_DRAFT];
    float rows[(VB_MAX_DRAFT + 1) * TOY_V];
    uint64_t mask_seed;
};

static int is_masked(const struct trial *t, const int32_t *tokens, size_t count, int32_t token)
{
    uint64_t state = t->mask_seed + (uint64_t)token * 1009 + count * 31 + (count ? (uint64_t)tokens[count - 1] : 0);
    return t->o.mask && token != BEGIN && next_random(&state) % 4 == 0;
}

static int mask_some(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    const struct trial *t = context;
    for (int32_t v = 0; v < t->V; v++)
        if (is_masked(t, tokens, count, v))
            mask[v] = 0;
    return VB_OK;
}

/* The row after presence penalty and mask, over the tokens that follow the prompt. */
static void adjusted(const struct trial *t, const float *row, const int32_t *tokens, size_t count, float *z)
{
    for (int v = 0; v < t->V; v++) {
        z[v] = row[v];
        for (size_t i = t->prompt; i < count; i++)
            if (tokens[i] == v) {
                z[v] = z[v] - t->o.presence_penalty;
                break;
            }
        if (is_masked(t, tokens, count, v))
            z[v] = -INFINITY;
    }
}

static size_t rank_of(const float *z, int V, int32_t token)
{
    size_t rank = 0;
    for (int v = 0; v < V; v++)
        rank += z[v] > z[token] || (z[v] == z[token] && v < token);
    return rank;
}

static int thinking(const int32_t *tokens, size_t count)
{
    int open = 0;
    for (size_t i = 0; i < count; i++)
        open = tokens[i] == BEGIN ? 1 : tokens[i] == END ? 0 : open;
    return open;
}

struct by_hand {
    size_t n, relaxed, reasons[VB_REJECT_REASONS], accepted, rejected_at;
    double nats;
    int unsure; /* a probability lies on the limit */
};

/* The round as docs/SEMANTICS.md ("Verification") words it. The target's own token comes from a sampler that knows the
 * timeline. */
static struct by_hand round_by_hand(const struct trial *t, int32_t *tokens)
{
    struct by_hand h = {.rejected_at = VB_MAX_DRAFT};
    struct sampler *s;
    size_t topk = t->o.relaxed_topk ? (size_t)t->o.relaxed_topk : 10;
    double delta = t->o.relaxed_delta > 0 ? (double)t->o.relaxed_delta : 0.6;
    int relaxes = t->o.acceptance && !strcmp(t->o.acceptance, "relaxed");
    OK(sampler_open(&s, &t->o, (size_t)t->V, NULL, &err));
    for (size_t i = 0; i < t->prompt; i++)
        sampler_saw_prompt(s, tokens[i]);
    for (size_t i = 0; i <= (size_t)t->K; i++) {
        const float *row = t->rows + i * (size_t)t->V;
        float z[TOY_V];
        size_t count = t->prompt + i;
        int32_t own = sampler_choose(s, row, tokens, count), draft = i < (size_t)t->K ? t->draft[i] : -1, token = own;
        if (draft >= 0 && draft != own) {
            double total = 0;
            adjusted(t, row, tokens, count, z);
            int32_t best = argmax(z, (size_t)t->V);
            for (int v = 0; v < t->V; v++)
                total += exp((double)z[v] - (double)z[best]);
            double p = exp((double)z[draft] - (double)z[best]) / total, p_best = 1 / total;
            size_t rank = rank_of(z, t->V, draft);
            int why = VB_REJECT_OTHER_TOKEN;
            if (z[draft] == -INFINITY)
                why = VB_REJECT_MASKED;
            else if (relaxes && thinking(tokens, count) && draft != BEGIN && draft != END && draft != END_OF_TEXT) {
                why = rank >= topk ? VB_REJECT_RANK : p >= p_best - delta ? VB_REJECT_REASONS : VB_REJECT_DELTA;
                h.unsure |= rank < topk && fabs(p - (p_best - delta)) < 1e-6;
            } else if (t->o.temperature > 0 && t->o.top_k && rank >= (size_t)t->o.top_k)
                why = VB_REJECT_CUT_OFF;
            if (why == VB_REJECT_REASONS) {
                token = draft;
                h.relaxed++;
                h.nats += log(p_best / p);
            } else {
                h.reasons[why]++;
                h.rejected_at = i;
            }
        }
        h.accepted += draft >= 0 && token == draft;
        tokens[count] = token;
        sampler_saw_output(s, token);
        h.n++;
        if (token != draft)
            break;
    }
    sampler_close(s, NULL);
    return h;
}

static void random_trial(struct trial *t, uint64_t *random, int relaxes)
{
    *t = (struct trial){.V = 8 + (int)random_below(random, TOY_V - 8), .K = 1 + (int)random_below(random, 6),
                        .mask_seed = next_random(random)};
    double spread = random_below(random, 2) ? 6 : 2;
    for (int i = 0; i < (t->K + 1) * t->V; i++)
        t->rows[i] = (float)(spread * ((double)(next_random(random) >> 11) * 0x1p-53));
    t->prompt = 1 + random_below(random, 20);
    for (size_t i = 0; i < t->prompt; i++)
        t->timeline[i] = (int32_t)(random_below(random, 4) ? 4 + random_below(random, (size_t)t->V - 4)
                                                           : random_below(random, 4));
    for (int k = 0; k < t->K; k++) { /* likely ones: the best, the second.. of their rows; or any */
        const float *row = t->rows + k * t->V;
        size_t rank = random_below(random, random_below(random, 3) ? 3 : (size_t)t->V);
        t->draft[k] = 0;
        while (rank_of(row, t->V, t->draft[k]) != rank)
            t->draft[k]++;
    }
    t->o = (vb_sampling){.temperature = random_below(random, 2) ? 0 : 0.8f, .seed = next_random(random),
                         .presence_penalty = random_below(random, 2) ? 0 : 1.5f,
                         .top_k = (int32_t)(random_below(random, 2) ? 0 : 5)};
    if (random_below(random, 2)) {
        t->o.mask = mask_some;
        t->o.mask_context = t;
    }
    if (relaxes) {
        t->o.acceptance = "relaxed";
        t->o.relaxed_topk = (int32_t)(int[]){0, 1, 2, 3, 100}[random_below(random, 5)];
        t->o.relaxed_delta = (float[]){0, 1e-30f, 0.01f, 0.1f, 0.3f, 1}[random_below(random, 6)];
        t->o.thinking_begin = BEGIN;
        t->o.thinking_end = END;
    }
}

TEST(drafts_stand_and_fall_as_counted_by_hand)
{
    static struct toy toy;
    static struct trial t;
    size_t relaxed = 0, reasons[VB_REJECT_REASONS] = {0}, accepted = 0;
    uint64_t random = 17;
    for (int i = 0; i < 40000; i++) {
        int32_t tokens[TOY_ROOM];
        random_trial(&t, &random, i % 4 > 0);
        memcpy(tokens, t.timeline, sizeof tokens);
        struct by_hand h = round_by_hand(&t, tokens);
        toy_open(&toy, &t.o, t.V, t.K);
        toy.model.config.eos_token_ids[0] = END_OF_TEXT;
        toy.model.config.num_eos = 1;
        toy_start(&toy, t.timeline, t.prompt, 100);
        memcpy(toy.logits, t.rows, sizeof t.rows);
        size_t n = toy_round(&toy, t.draft, t.K);
        const vb_result *r = &toy.result;
        if (!h.unsure) {
            if (n != h.n || memcmp(tokens, toy.tokens, (t.prompt + n) * sizeof *tokens))
                fail_msg("trial %d: %zu tokens, by hand %zu; the first is %d, by hand %d", i, n, h.n,
                         (int)toy.tokens[t.prompt], (int)tokens[t.prompt]);
            if (r->relaxed != h.relaxed || r->accepted != h.accepted || fabs(r->relaxed_nats - h.nats) > 1e-4)
                fail_msg("trial %d: %zu accepted, %zu relaxed, %g nats; by hand %zu, %zu, %g", i, r->accepted,
                         r->relaxed, r->relaxed_nats, h.accepted, h.relaxed, h.nats);
            for (int why = 0; why < VB_REJECT_REASONS; why++)
                if (r->first_reject[why] != h.reasons[why])
                    fail_msg("trial %d: %zu rejected for reason %d, by hand %zu", i, r->first_reject[why], why,
                             h.reasons[why]);
            for (size_t k = 0; k < VB_MAX_DRAFT; k++)
                assert_int_equal(r->rejected_by_depth[k], k == h.rejected_at);
        }
        relaxed += r->relaxed;
        accepted += r->accepted;
        for (int why = 0; why < VB_REJECT_REASONS; why++)
            reasons[why] += r->first_reject[why];
        toy_close(&toy);
    }
    print_message("%zu accepted, %zu of them relaxed; rejected: %zu another token, %zu masked, %zu cut off, %zu rank, "
                  "%zu delta\n",
                  accepted, relaxed, reasons[VB_REJECT_OTHER_TOKEN], reasons[VB_REJECT_MASKED],
                  reasons[VB_REJECT_CUT_OFF], reasons[VB_REJECT_RANK], reasons[VB_REJECT_DELTA]);
    assert_true(relaxed > 1000 && accepted > relaxed + 1000);
    for (int why = 0; why < VB_REJECT_REASONS; why++)
        assert_true(why == VB_REJECT_CHANCE ? reasons[why] == 0 : reasons[why] > 500);
}

/* A module that says what the target says: q is p to the last bit if both count the drafts before, ask the mask with
 * them, and leave the same candidates. */
TEST(drafts_drawn_from_the_targets_own_rows_always_stand)
{
    static struct toy toy;
    static struct trial t;
    uint64_t random = 23;
    size_t different = 0;
    for (int i = 0; i < 5000; i++) {
        int32_t draft[VB_MAX_DRAFT];
        random_trial(&t, &random, 0);
        t.o.acceptance = "rejection";
        t.o.temperature = 0.9f;
        t.o.frequency_penalty = random_below(&random, 2) ? 0.7f : 0;
        t.o.repetition_penalty = random_below(&random, 2) ? 1.4f : 0;
        t.o.top_p = random_below(&random, 2) ? 0.8f : 0;
        t.o.min_p = random_below(&random, 2) ? 0.1f : 0;
        toy_open(&toy, &t.o, t.V, t.K);
        toy_start(&toy, t.timeline, t.prompt, 100);
        memcpy(toy.logits, t.rows, sizeof t.rows);
        assert_true(acceptance_draws(toy.session.acceptance));
        acceptance_round(toy.session.acceptance);
        for (int k = 0; k < t.K; k++) {
            draft[k] = acceptance_draw(toy.session.acceptance, t.rows + k * t.V, toy.tokens, t.prompt, k + 1);
            toy.tokens[t.prompt + (size_t)k] = draft[k];
            different += draft[k] != argmax(t.rows + k * t.V, (size_t)t.V);
        }
        size_t n = toy_round(&toy, draft, t.K);
        if (n != (size_t)t.K + 1 || toy.result.accepted != (size_t)t.K)
            fail_msg("trial %d: %zu of %d drafts stand", i, toy.result.accepted, t.K);
        toy_close(&toy);
    }
    assert_true(different > 2000);
}

/* ---- on models --------------------------------------------------------------------------------------------------- */

static struct methods methods;

static vb_session_options drafting(const char *method, int K, const vb_sampling *sampling)
{
    return (vb_session_options){.context = 80, .threads = 1, .drafting.method = method, .drafting.tokens = K,
                                .sampling = *sampling, .poison_cut_rows = 1};
}

TEST(rejection_at_temperature_0_and_relaxed_outside_of_thinking_are_strict)
{
    static struct record plain, r;
    int32_t prompt[20], never[] = {126, 127};
    vb_model *m = open_tiny("v3-mtp3");
    random_tokens(m, 5, prompt, COUNT(prompt));
    for (size_t i = 0; i < COUNT(prompt); i++)
        prompt[i] %= 126;
    for (int how = 0; how < 4; how++) {
        vb_sampling o = {.presence_penalty = 0.4f, .repetition_penalty = 1.1f, .bias_tokens = never,
                         .bias_values = (float[]){-INFINITY, -INFINITY}, .bias_count = 2, .seed = 6};
        o.temperature = how == 3 ? 0.9f : 0;
        run_plain(m, &o, prompt, COUNT(prompt), 50, &plain);
        o.acceptance = how < 2 ? "rejection" : "relaxed";
        o.draft_sample_method = how == 1 ? "greedy" : NULL;
        o.thinking_begin = never[0]; /* never said */
        o.thinking_end = never[1];
        for (size_t i = 0; i < methods.count; i++)
            for (int K = 1; K < 8; K += 3) {
                vb_session_options s = drafting(methods.name[i], K, &o);
                run(m, &s, prompt, COUNT(prompt), 50, &r);
                check_same(methods.name[i], &plain, &r);
                assert_int_equal(r.result.relaxed, 0);
            }
    }
    vb_model_close(m);
}

/* What is near enough stands whatever the target would have said: with delta 1 and all ranks, every draft. */
TEST(relaxed_drafts_stand_between_the_thinking_tokens_alone)
{
    static struct record r;
    int32_t prompt[20];
    vb_model *m = open_tiny("v3");
    random_tokens(m, 8, prompt, COUNT(prompt));
    for (size_t i = 0; i < COUNT(prompt); i++)
        prompt[i] = prompt[i] == BEGIN || prompt[i] == END ? 9 : prompt[i];
    for (int open = 0; open < 2; open++) {
        prompt[7] = open ? BEGIN : END;
        vb_sampling o = {.acceptance = "relaxed", .relaxed_topk = 1000, .relaxed_delta = 1, .thinking_begin = BEGIN,
                         .thinking_end = END};
        vb_session_options s = drafting("mtp-vanilla", 4, &o);
        run(m, &s, prompt, COUNT(prompt), 50, &r);
        size_t end = 0, relaxed_where_it_should_not_be = 0;
        while (end < r.n && r.token[end] != END)
            end++;
        if (open && end == r.n) {
            assert_int_equal(r.result.accepted, r.result.drafted);
            assert_int_equal(r.result.accepted_by_depth[3], r.result.drafted_by_depth[3]);
            assert_true(r.result.relaxed > 10 && r.result.relaxed_nats > 0);
        }
        relaxed_where_it_should_not_be = open ? 0 : r.result.relaxed;
        assert_int_equal(relaxed_where_it_should_not_be, 0);
    }
    vb_model_close(m);
}

/* The drafts lead, and nothing else: the same tokens and rows on any threads, chunks, instruction sets, beside any
 * neighbours. */
TEST(rejection_gives_the_same_bits_in_any_setting_of_one_draft_method)
{
    enum { SEQUENCES = 3 };
    static struct record alone[SEQUENCES], r[SEQUENCES];
    int32_t prompt[SEQUENCES][30];
    vb_model *m = open_tiny("v3-mtp3");
    size_t drawn_differently = 0;
    for (size_t i = 0; i < SEQUENCES; i++)
        random_tokens(m, 40 + i, prompt[i], 30);
    for (size_t method = 0; method < methods.count; method++)
        for (int greedy = 0; greedy < 2; greedy++) {
            vb_session_options o[SEQUENCES];
            for (size_t i = 0; i < SEQUENCES; i++) {
                vb_sampling sampling = {.temperature = 1, .seed = 3 + i, .acceptance = "rejection", .top_k = 12,
                                        .frequency_penalty = 0.3f, .draft_sample_method = greedy ? "greedy" : NULL};
                o[i] = drafting(methods.name[(method + i) % methods.count], 2 + (int)i, &sampling);
                run(m, &o[i], prompt[i], 30, 40, &alone[i]);
            }
            for (int setting = 0; setting < 4; setting++) {
                vb_session *s[SEQUENCES];
                vb_generate_options g[SEQUENCES];
                vb_result results[SEQUENCES];
                size_t isas = 0;
                while (isas_here()[isas])
                    isas++;
                for (size_t i = 0; i < SEQUENCES; i++) {
                    vb_session_options other = o[i];
                    other.threads = 1 + setting % 3;
                    other.exact_threads = 1;
                    other.prefill_chunk = (int[]){0, 1, 7, 64}[setting];
                    other.isa = isas_here()[(size_t)setting % isas];
                    other.padded = setting == 2;
                    s[i] = open_session(m, &other, prompt[i], 30);
                    r[i].stop_after = 0;
                    g[i] = recording(&r[i], s[i], 40);
                }
                OK(generate_together(s, SEQUENCES, g, results, &err));
                for (size_t i = 0; i < SEQUENCES; i++) {
                    r[i].result = results[i];
                    check_same(o[i].drafting.method, &alone[i], &r[i]);
                    assert_int_equal(results[i].accepted, alone[i].result.accepted);
                    vb_session_close(s[i]);
                }
            }
            drawn_differently += !greedy && alone[0].result.first_reject[VB_REJECT_CHANCE] > 0;
        }
    assert_true(drawn_differently > 0);
    vb_model_close(m);
}

/* ---- frequencies, as a cross-check ------------------------------------------------------------------------------- */

enum { DEEP = 4, BRANCH = 3 }; /* tokens of an output, each one of the 3 best */

struct exact {
    double joint[81]; /* 3^4, by rank */
    int32_t best[1 + 3 + 9 + 27][BRANCH];
};

static size_t node_of(const int *rank, size_t depth)
{
    size_t first = 0, width = 1, node = 0;
    for (size_t i = 0; i < depth; i++) {
        node = node * BRANCH + (size_t)rank[i];
        first += width;
        width *= BRANCH;
    }
    return first + node;
}

static int take_last(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)depth, (void)index, (void)hidden;
    memcpy(context, logits, 1024 * sizeof *logits);
    return 0;
}

/* Top-k 3 at temperature 1: the probability of each output, from plain rows. */
static void enumerate(const vb_model *m, const int32_t *prompt, size_t count, struct exact *x)
{
    static float logits[1024];
    for (size_t code = 0; code < 81; code++) {
        int rank[DEEP] = {(int)code / 27, (int)code / 9 % 3, (int)code / 3 % 3, (int)code % 3};
        x->joint[code] = 1;
        for (size_t i = 0; i < DEEP; i++) {
            int32_t tokens[40];
            memcpy(tokens, prompt, count * sizeof *tokens);
            for (size_t k = 0; k < i; k++)
                tokens[count + k] = x->best[node_of(rank, k)][rank[k]];
            vb_session *s = open_session(m, &(vb_session_options){.context = 64, .threads = 1}, tokens, count + i);
            OK(vb_evaluate(s, 0, take_last, logits, &err));
            vb_session_close(s);
            double total = 0, w[BRANCH];
            for (int k = 0; k < BRANCH; k++) {
                int32_t best = argmax(logits, (size_t)vb_vocab_size(m));
                x->best[node_of(rank, i)][k] = best;
                total += w[k] = exp((double)logits[best]);
                logits[best] = -INFINITY;
            }
            x->joint[code] *= w[rank[i]] / total;
        }
    }
}

/* How often each output came, over many seeds. */
static double chi_square(const vb_model *m, const int32_t *prompt, size_t count, const struct exact *x,
                         const char *method, const char *sample, size_t runs, size_t *degrees, vb_result *sum)
{
    size_t counts[81] = {0}, rest = 0;
    double chi = 0, rest_expected = 0;
    for (size_t seed = 0; seed < runs; seed++) {
        static struct record r;
        size_t code = 0;
        int rank[DEEP];
        vb_sampling sampling = {.temperature = 1, .top_k = BRANCH, .seed = 1000 + seed, .acceptance = "rejection",
                                .draft_sample_method = sample};
        vb_session_options o = drafting(method, 2, &sampling);
        run(m, &o, prompt, count, DEEP, &r);
        for (size_t i = 0; i < DEEP; i++) {
            const int32_t *best = x->best[node_of(rank, i)];
            for (rank[i] = 0; rank[i] < BRANCH && best[rank[i]] != r.token[i];)
                rank[i]++;
            assert_true(rank[i] < BRANCH);
            code = code * BRANCH + (size_t)rank[i];
        }
        counts[code]++;
        sum->accepted += r.result.accepted;
        sum->drafted += r.result.drafted;
    }
    *degrees = 0;
    for (size_t code = 0; code < 81; code++) {
        double expected = (double)runs * x->joint[code];
        if (expected < 5) {
            rest += counts[code];
            rest_expected += expected;
            continue;
        }
        chi += ((double)counts[code] - expected) * ((double)counts[code] - expected) / expected;
        ++*degrees;
    }
    if (rest_expected > 0)
        chi += ((double)rest - rest_expected) * ((double)rest - rest_expected) / rest_expected;
    else
        --*degrees;
    return chi;
}

TEST(frequencies_under_rejection_are_those_of_plain_decoding)
{
    static const char *const samples[] = {"probabilistic", "greedy"};
    struct exact x;
    int32_t prompt[5];
    vb_model *m = open_tiny("v3-mtp3");
    random_tokens(m, 3, prompt, COUNT(prompt));
    enumerate(m, prompt, COUNT(prompt), &x);
    for (size_t method = 0; method < methods.count; method++)
        for (int sample = 0; sample < 2; sample++) {
            size_t degrees;
            vb_result sum = {0};
            double chi = chi_square(m, prompt, COUNT(prompt), &x, methods.name[method], samples[sample], 1500, &degrees,
                                    &sum);
            double limit = (double)degrees + 4 * sqrt(2 * (double)degrees); /* one in some thousands */
            print_message("%s, %s: chi-square %.1f, %zu degrees of freedom, %zu of %zu drafts accepted\n",
                          methods.name[method], samples[sample], chi, degrees, sum.accepted, sum.drafted);
            if (chi > limit)
                fail_msg("%s, %s: chi-square is %g, wanted at most %g", methods.name[method], samples[sample], chi,
                         limit);
            assert_true(sum.accepted > 0 && sum.accepted < sum.drafted);
        }
    vb_model_close(m);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

TEST(what_makes_no_sense_is_refused)
{
    const struct {
        vb_sampling o;
        const char *part;
    } bad[] = {
        {{.acceptance = "lenient"}, "unknown acceptance lenient; known are strict, rejection, relaxed"},
        {{.draft_sample_method = "best"}, "unknown draft sample method best; known are probabilistic, greedy"},
        {{.acceptance = "relaxed"}, "two thinking tokens"},
        {{.acceptance = "relaxed", .thinking_begin = 4, .thinking_end = 4}, "two thinking tokens"},
        {{.acceptance = "relaxed", .thinking_begin = 4, .thinking_end = 160}, "below 160"},
        {{.acceptance = "relaxed", .thinking_begin = -1, .thinking_end = 5}, "two thinking tokens"},
        {{.acceptance = "relaxed", .thinking_begin = 4, .thinking_end = 5, .relaxed_topk = -1}, "relaxed top-k"},
        {{.acceptance = "relaxed", .thinking_begin = 4, .thinking_end = 5, .relaxed_delta = -0.1f}, "relaxed delta"},
        {{.acceptance = "relaxed", .thinking_begin = 4, .thinking_end = 5, .relaxed_delta = NAN}, "relaxed delta"},
    };
    vb_model *m = open_tiny("v3");
    for (size_t i = 0; i < COUNT(bad); i++) {
        vb_session *s;
        vb_session_options o = {.context = 20, .sampling = bad[i].o};
        REFUSED(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, bad[i].part);
    }
    vb_model_close(m);
}

int main(void)
{
    methods = methods_for(NULL, OF_MODULES);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_stand_and_fall_as_counted_by_hand),
        cmocka_unit_test(drafts_drawn_from_the_targets_own_rows_always_stand),
        cmocka_unit_test(rejection_at_temperature_0_and_relaxed_outside_of_thinking_are_strict),
        cmocka_unit_test(relaxed_drafts_stand_between_the_thinking_tokens_alone),
        cmocka_unit_test(rejection_gives_the_same_bits_in_any_setting_of_one_draft_method),
        cmocka_unit_test(frequencies_under_rejection_are_those_of_plain_decoding),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
