/* tests/engine/test_sampler.c -- rule 8 of the contract: how a token is chosen from a row of logits. Published vectors
 * for the random numbers; for the choice, a second implementation that sorts and sums as the rule is worded, over
 * thousands of rows with ties. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <math.h>

#include "engine/choose/sampler.h"

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* Random123, kat_vectors: "philox4x32 10" */
TEST(philox_gives_the_published_words)
{
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        uint32_t word[4];
        philox4x32(word, known[i].counter, known[i].key);
        for (int j = 0; j < 4; j++)
            if (word[j] != known[i].word[j])
                fail_msg("vector %zu, word %d: %08x, published is %08x", i, j, word[j], known[i].word[j]);
    }
}

/* u = ((word1 << 32 | word0) >> 11) 2^-53, counter = (index low, index high, stream, 0), key = seed */
static double uniform_by_rule(uint64_t seed, uint64_t index, uint32_t stream)
{
    uint32_t counter[4] = {(uint32_t)(index & 0xffffffff), (uint32_t)(index >> 32), stream, 0}, word[4];
    philox4x32(word, counter, (uint32_t[2]){(uint32_t)(seed & 0xffffffff), (uint32_t)(seed >> 32)});
    return ldexp((double)((((uint64_t)word[1] << 32) + word[0]) / 2048), -53);
}

TEST(a_random_number_depends_on_seed_index_and_stream_as_the_rule_says)
{
    static const uint64_t values[] = {0, 1, 2, 0xffffffff, 0x100000000, 0xfedcba9876543210, UINT64_MAX};
    double seen[COUNT(values) * COUNT(values) * 4];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(values); i++)
        for (size_t j = 0; j < COUNT(values); j++)
            for (uint32_t stream = 0; stream < 4; stream++) {
                double u = random_at(values[i], values[j], (enum random_stream)stream);
                assert_true(u >= 0 && u < 1 && u == uniform_by_rule(values[i], values[j], stream));
                for (size_t k = 0; k < n; k++)
                    assert_true(seen[k] != u);
                seen[n++] = u;
            }
    assert_int_equal(RANDOM_TARGET, 0);
    assert_int_equal(RANDOM_DRAFT, 1);
    assert_int_equal(RANDOM_ACCEPTANCE, 2);
    assert_int_equal(RANDOM_RESIDUAL, 3);
}

/* ---- argmax ------------------------------------------------------------------------------------------------------ */

TEST(argmax_takes_the_lowest_index_and_zeros_are_equal)
{
    assert_int_equal(argmax((float[]){1, 3, 3, 2}, 4), 1);
    assert_int_equal(argmax((float[]){-0.0f, 0.0f}, 2), 0);
    assert_int_equal(argmax((float[]){0.0f, -0.0f}, 2), 0);
    assert_int_equal(argmax((float[]){-5}, 1), 0);
    assert_int_equal(argmax((float[]){-3, -2, -2}, 3), 1);
    assert_int_equal(argmax((float[]){1e-45f, 3e-45f, 0}, 3), 1);
    assert_int_equal(argmax((float[]){-INFINITY, -INFINITY, -1}, 3), 2);
}

TEST(finite_rows_are_told_from_others)
{
    float z[67];
    for (size_t i = 0; i < COUNT(z); i++)
        z[i] = i % 2 ? 3.4e38f : -3.4e38f;
    assert_true(all_finite(z, COUNT(z)));
    for (size_t i = 0; i < COUNT(z); i++)
        for (int k = 0; k < 3; k++) {
            float was = z[i];
            z[i] = (float[]){NAN, INFINITY, -INFINITY}[k];
            assert_false(all_finite(z, COUNT(z)));
            z[i] = was;
        }
    assert_true(all_finite(z, 0));
}

/* ---- the choice, as the rule is worded --------------------------------------------------------------------------- */

#define MOST_V 300

struct case_of {
    vb_sampling o;
    size_t V, prompt, count; /* count: tokens of the timeline, the prompt's among them */
    int32_t tokens[64];
    float logits[MOST_V];
    int32_t bias_tokens[8];
    float bias_values[8];
    uint64_t mask_seed;
    int mask_out_of; /* one in so many is masked; 1: all */
};

static int masked(const struct case_of *c, size_t t, const int32_t *tokens, size_t count)
{
    uint64_t state = c->mask_seed + t * 1000 + (count ? (uint64_t)tokens[count - 1] : 7) + count;
    return next_random(&state) % (uint64_t)c->mask_out_of == 0;
}

static int mask_tokens(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    const struct case_of *c = context;
    for (size_t t = 0; t < c->V; t++)
        if (masked(c, t, tokens, count))
            mask[t] = 0;
    return VB_OK;
}

struct candidate {
    float z;
    int token, kept;
    double w;
};

static int by_value_then_index(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    return a->z > b->z ? -1 : a->z < b->z ? 1 : a->token - b->token;
}

static int by_index(const void *x, const void *y)
{
    return ((const struct candidate *)x)->token - ((const struct candidate *)y)->token;
}

static int choose_by_rule(const struct case_of *c, size_t *left)
{
    const vb_sampling *o = &c->o;
    struct candidate list[MOST_V];
    size_t n = 0, k;
    double total = 0, sum = 0, w_max = 0;
    *left = 0;
    for (size_t t = 0; t < c->V; t++) {
        int in_any = 0, in_output = 0;
        float z = c->logits[t];
        for (int i = 0; i < o->bias_count; i++)
            if (o->bias_tokens[i] == (int32_t)t)
                z = z + o->bias_values[i];
        for (size_t i = 0; i < c->count; i++) {
            in_any |= c->tokens[i] == (int32_t)t;
            in_output += i >= c->prompt && c->tokens[i] == (int32_t)t;
        }
        if (o->repetition_penalty != 0 && o->repetition_penalty != 1 && in_any)
            z = z > 0 ? z / o->repetition_penalty : z * o->repetition_penalty;
        if (in_output) {
            z -= o->presence_penalty;
            float times = o->frequency_penalty * (float)in_output;
            z -= times;
        }
        if ((o->mask && masked(c, t, c->tokens, c->count)) || z == -INFINITY)
            continue;
        list[n++] = (struct candidate){z, (int)t, 1, 0};
    }
    if (n == 0)
        return -1;
    qsort(list, n, sizeof *list, by_value_then_index);
    if (o->temperature == 0)
        return list[0].token;
    for (size_t i = 0; i < n; i++) /* dividing can make two values equal: sort anew */
        list[i].z = list[i].z / o->temperature;
    qsort(list, n, sizeof *list, by_value_then_index);
    if (o->top_k && n > (size_t)o->top_k)
        n = (size_t)o->top_k;
    for (size_t i = 0; i < n; i++) {
        list[i].w = (double)kernel_expf(list[i].z - list[0].z);
        total += list[i].w;
        w_max = fmax(w_max, list[i].w);
    }
    if (o->top_p > 0 && o->top_p < 1) {
        for (k = 0, sum = 0; k < n; k++)
            if ((sum += list[k].w) >= (double)o->top_p * total) {
                k++;
                break;
            }
        n = k;
    }
    for (size_t i = 0; i < n; i++)
        list[i].kept = list[i].w >= (double)o->min_p * w_max;
    qsort(list, n, sizeof *list, by_index);
    total = sum = 0;
    for (size_t i = 0; i < n; i++)
        if (list[i].kept) {
            total += list[i].w;
            ++*left;
        }
    double u = uniform_by_rule(o->seed, c->count, 0);
    int last = -1;
    for (size_t i = 0; i < n; i++)
        if (list[i].kept) {
            last = list[i].token;
            if ((sum += list[i].w) > u * total)
                break;
        }
    return last;
}

/* ---- random cases ------------------------------------------------------------------------------------------------ */

static float any_of(uint64_t *random, const float *values, size_t n) { return values[random_below(random, n)]; }
#define ANY_OF(random, ...) any_of(random, (const float[]){__VA_ARGS__}, COUNT(((const float[]){__VA_ARGS__})))

static void random_case(struct case_of *c, uint64_t *random)
{
    size_t kind = random_below(random, 6);
    *c = (struct case_of){.V = 1 + random_below(random, random_below(random, 3) ? MOST_V : 8)};
    for (size_t t = 0; t < c->V; t++) {
        float x = (float)((double)(next_random(random) >> 11) * 0x1p-52 - 1.0);
        c->logits[t] = kind == 0   ? 8 * x
                       : kind == 1 ? roundf(4 * x) / 2                  /* many ties */
                       : kind == 2 ? (x > 0.9f ? 5.0f : -5.0f)          /* two values */
                       : kind == 3 ? (x > 0 ? 0.0f : -0.0f)             /* zeros of both signs */
                       : kind == 4 ? 300 * x                            /* weights that underflow */
                                   : x * 1e-40f;                        /* subnormals */
    }
    c->count = random_below(random, COUNT(c->tokens));
    c->prompt = random_below(random, c->count + 1);
    for (size_t i = 0; i < c->count; i++)
        c->tokens[i] = (int32_t)random_below(random, c->V < 20 ? c->V : 20);
    c->o = (vb_sampling){.temperature = ANY_OF(random, 0, 1e-5f, 0.1f, 0.7f, 1, 1, 1, 3, 100),
                         .top_k = (int32_t)ANY_OF(random, 0, 0, 0, 1, 2, 3, 10, 50, (float)c->V, (float)(c->V - 1),
                                                  1000),
                         .top_p = ANY_OF(random, 0, 0, 1, 1e-9f, 0.1f, 0.5f, 0.5f, 0.9f, 0.999f, 0.99999994f),
                         .min_p = ANY_OF(random, 0, 0, 0, 1e-30f, 0.01f, 0.36787945f, 0.5f, 1),
                         .repetition_penalty = ANY_OF(random, 0, 0, 1, 1.3f, 0.5f),
                         .presence_penalty = ANY_OF(random, 0, 0, 0.5f, -1),
                         .frequency_penalty = ANY_OF(random, 0, 0, 0.3f, -0.7f), .seed = next_random(random)};
    if (random_below(random, 3) == 0) {
        c->o.mask = mask_tokens;
        c->o.mask_context = c;
        c->mask_seed = next_random(random) >> 20;
        c->mask_out_of = 1 + (int)random_below(random, 4);
    }
    c->o.bias_count = (int32_t)(random_below(random, 3) ? 0 : random_below(random, 4));
    for (int32_t i = 0; i < c->o.bias_count; i++) {
        c->bias_tokens[i] = (int32_t)((random_below(random, c->V) / 4 * 4 + (size_t)i) % c->V);
        for (int32_t j = 0; j < i; j++)
            if (c->bias_tokens[j] == c->bias_tokens[i])
                c->o.bias_count = i; /* each token once */
        c->bias_values[i] = ANY_OF(random, 3, -2, 0.25f, 40, -INFINITY);
    }
    c->o.bias_tokens = c->bias_tokens;
    c->o.bias_values = c->bias_values;
}

static int choose(const struct case_of *c)
{
    struct sampler *s;
    OK(sampler_open(&s, &c->o, c->V, NULL, &err));
    for (size_t i = 0; i < c->count; i++)
        i < c->prompt ? sampler_saw_prompt(s, c->tokens[i]) : sampler_saw_output(s, c->tokens[i]);
    int token = sampler_choose(s, c->logits, c->tokens, c->count);
    if (sampler_choose(s, c->logits, c->tokens, c->count) != token)
        fail_msg("choosing twice from one row gives two tokens");
    sampler_restart(s);
    for (size_t i = 0; i < c->count; i++)
        i < c->prompt ? sampler_saw_prompt(s, c->tokens[i]) : sampler_saw_output(s, c->tokens[i]);
    if (sampler_choose(s, c->logits, c->tokens, c->count) != token)
        fail_msg("a sampler that was started anew chooses another token");
    sampler_close(s, NULL);
    return token;
}

static void check_case(const struct case_of *c, const char *name, size_t *left)
{
    const vb_sampling *o = &c->o;
    int want = choose_by_rule(c, left), have = choose(c);
    if (have != want)
        fail_msg("%s: token %d, by the rule %d (V %zu, T %g, top-k %d, top-p %g, min-p %g, repetition %g, presence %g, "
                 "frequency %g, %d biases, %s, %zu "
                 "candidates)", name, have, want, c->V, (double)o->temperature, (int)o->top_k,
                 (double)o->top_p, (double)o->min_p, (double)o->repetition_penalty, (double)o->presence_penalty,
                 (double)o->frequency_penalty, (int)o->bias_count, o->mask ? "masked" : "no mask", *left);
}

TEST(the_choice_is_that_of_the_rule_on_thousands_of_rows)
{
    static struct case_of c;
    uint64_t random = 8;
    size_t none = 0, sampled = 0, left;
    char name[32];
    for (int i = 0; i < 30000; i++) {
        random_case(&c, &random);
        snprintf(name, sizeof name, "row %d", i);
        check_case(&c, name, &left);
        none += choose_by_rule(&c, &left) < 0;
        sampled += left > 1;
    }
    print_message("%zu rows without a candidate, %zu with a real choice\n", none, sampled);
    assert_true(none > 100 && sampled > 5000);
}

/* Where a limit falls exactly on a candidate, and just beside it. */
TEST(limits_that_fall_on_a_candidate_keep_what_the_rule_keeps)
{
    static struct case_of c;
    size_t left;
    static const struct {
        float top_p, min_p;
        int top_k;
        size_t left;
    } cases[] = {
        {0, 0, 0, 4},     {0.25f, 0, 0, 1},       {0.25000003f, 0, 0, 2}, {0.5f, 0, 0, 2},  {0.75f, 0, 0, 3},
        {0.7500001f, 0, 0, 4}, {0.99999994f, 0, 0, 4}, {1, 0, 0, 4},      {1e-30f, 0, 0, 1}, {0, 1, 0, 4},
        {0, 0, 1, 1},     {0, 0, 3, 3},           {0, 0, 4, 4},           {0, 0, 5, 4},     {0.5f, 0, 2, 1},
        {0.50000006f, 0, 2, 2},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (uint64_t seed = 0; seed < 200; seed++) { /* four equal candidates: each weighs exactly a quarter */
            char name[64];
            c = (struct case_of){.V = 4, .logits = {2, 2, 2, 2}};
            c.o = (vb_sampling){.temperature = 1, .top_p = cases[i].top_p, .min_p = cases[i].min_p,
                                .top_k = cases[i].top_k, .seed = seed};
            snprintf(name, sizeof name, "limit %zu, seed %d", i, (int)seed);
            check_case(&c, name, &left);
            assert_int_equal(left, cases[i].left);
        }
    float half = logf(0.5f); /* min-p on either side of a weight */
    double w = (double)kernel_expf(half);
    for (int k = -1; k <= 1; k++) {
        c = (struct case_of){.V = 3, .logits = {half, 0, -20}};
        c.o = (vb_sampling){.temperature = 1, .min_p = k < 0 ? nextafterf((float)w, 0)
                                                       : k ? nextafterf((float)w, 1)
                                                       : (float)w};
        check_case(&c, "min-p", &left);
        assert_int_equal(left, k <= 0 ? 2 : 1);
    }
}

TEST(a_tiny_temperature_chooses_among_the_best_alone)
{
    static struct case_of c;
    size_t left, counts[4] = {0};
    for (uint64_t seed = 0; seed < 400; seed++) {
        c = (struct case_of){.V = 4, .logits = {1, 1.001f, 0.5f, 1.001f}, .o = {.temperature = 1e-5f, .seed = seed}};
        check_case(&c, "T 1e-5", &left);
        counts[choose(&c)]++;
    }
    assert_true(counts[0] == 0 && counts[2] == 0 && counts[1] > 150 && counts[3] > 150);
}

TEST(frequencies_are_those_of_the_softmax)
{
    enum { V = 16, N = 40000 };
    static const float temperatures[] = {0.5f, 1, 2};
    float z[V];
    struct sampler *s;
    for (size_t t = 0; t < COUNT(temperatures); t++) {
        vb_sampling o = {.temperature = temperatures[t], .seed = 12345 + t};
        double p[V], total = 0, chi = 0;
        size_t counts[V] = {0};
        for (int i = 0; i < V; i++) {
            z[i] = 2.5f * sinf((float)(i * i));
            total += p[i] = exp((double)z[i] / (double)temperatures[t]);
        }
        OK(sampler_open(&s, &o, V, NULL, &err));
        for (size_t index = 0; index < N; index++)
            counts[sampler_choose(s, z, NULL, index)]++;
        sampler_close(s, NULL);
        for (int i = 0; i < V; i++) {
            double expected = N * p[i] / total;
            chi += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
        }
        if (chi > 37.7) /* one in a thousand, at 15 degrees of freedom */
            fail_msg("temperature %g: chi-square is %g", (double)temperatures[t], chi);
    }
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

TEST(options_out_of_range_are_refused_by_name)
{
    struct sampler *s;
    int32_t five = 5, beyond = 10, negative = -1;
    float one = 1, nan_value = NAN, infinite = INFINITY, minus_infinite = -INFINITY;
    const struct {
        vb_sampling o;
        const char *part;
    } bad[] = {
        {{.temperature = 9e-6f}, "temperature"},
        {{.temperature = -1}, "temperature"},
        {{.temperature = NAN}, "temperature"},
        {{.temperature = INFINITY}, "temperature"},
        {{.top_k = -1}, "top-k"},
        {{.top_p = -0.1f}, "top-p"},
        {{.top_p = 1.01f}, "top-p"},
        {{.top_p = NAN}, "top-p"},
        {{.min_p = 2}, "min-p"},
        {{.min_p = -1}, "min-p"},
        {{.min_p = NAN}, "min-p"},
        {{.repetition_penalty = -1}, "repetition"},
        {{.repetition_penalty = NAN}, "repetition"},
        {{.repetition_penalty = INFINITY}, "repetition"},
        {{.presence_penalty = NAN}, "presence"},
        {{.frequency_penalty = INFINITY}, "frequency"},
        {{.bias_tokens = &beyond, .bias_values = &one, .bias_count = 1}, "bias"},
        {{.bias_tokens = &negative, .bias_values = &one, .bias_count = 1}, "bias"},
        {{.bias_tokens = &five, .bias_values = &nan_value, .bias_count = 1}, "bias"},
        {{.bias_tokens = &five, .bias_values = &infinite, .bias_count = 1}, "bias"},
    };
    const vb_sampling good[] = {
        {0}, {.temperature = 1e-5f}, {.temperature = 1e30f}, {.top_p = 1}, {.min_p = 1}, {.top_k = INT32_MAX},
        {.presence_penalty = -2}, {.bias_tokens = &five, .bias_values = &minus_infinite, .bias_count = 1},
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        REFUSED(sampler_open(&s, &bad[i].o, 10, NULL, &err), VB_BAD_ARGUMENT, bad[i].part);
    for (size_t i = 0; i < COUNT(good); i++) {
        OK(sampler_open(&s, &good[i], 10, NULL, &err));
        sampler_close(s, NULL);
    }
}

/* ---- in a session ------------------------------------------------------------------------------------------------ */

static int forbid_all_from(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    (void)tokens;
    if (count >= *(const size_t *)context)
        memset(mask, 0, 160);
    return VB_OK;
}

TEST(no_candidate_left_is_an_error_at_its_token)
{
    static struct record plain, r;
    int32_t prompt[] = {5, 6, 7, 8};
    size_t limit = 9;
    vb_model *m = open_tiny("v3");
    run_plain(m, NULL, prompt, 4, 10, &plain);
    for (int temperature = 0; temperature < 2; temperature++)
        for (size_t k = 0; k < 2; k++) {
            vb_session_options o = {.context = 40, .threads = 1, .drafting.method = mtp_method(k), .drafting.tokens = 7,
                                    .sampling = {.mask = forbid_all_from, .mask_context = &limit,
                                                 .temperature = (float)temperature}};
            vb_session *s = open_session(m, &o, prompt, 4);
            r.stop_after = 0;
            vb_generate_options g = recording(&r, s, 10);
            REFUSED(vb_generate(s, &g, &r.result, &err), VB_BAD_ARGUMENT, "no candidate is left for token 9");
            assert_int_equal(r.n, 5);
            assert_int_equal(s->count, 9);
            if (!temperature)
                check_same_prefix("before the error", &plain, &r, 5);
            vb_session_close(s);
        }
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_words),
        cmocka_unit_test(a_random_number_depends_on_seed_index_and_stream_as_the_rule_says),
        cmocka_unit_test(argmax_takes_the_lowest_index_and_zeros_are_equal),
        cmocka_unit_test(finite_rows_are_told_from_others),
        cmocka_unit_test(the_choice_is_that_of_the_rule_on_thousands_of_rows),
        cmocka_unit_test(limits_that_fall_on_a_candidate_keep_what_the_rule_keeps),
        cmocka_unit_test(a_tiny_temperature_chooses_among_the_best_alone),
        cmocka_unit_test(frequencies_are_those_of_the_softmax),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
        cmocka_unit_test(no_candidate_left_is_an_error_at_its_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
