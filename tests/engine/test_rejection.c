/* tests/engine/test_rejection.c -- rejection sampling gives the distribution of plain decoding: exactly, in rational
 * arithmetic.
 *
 * The engine's own verification runs on rows whose distributions are eighths, under every value of every random number:
 * a number is one of G equal cells, G such that the probability of whatever may happen is a multiple of 1/G. The
 * probabilities of all ways to an output, added as integers, must be those of choosing token after token. Numbers that
 * are asked for twice (a draft made anew for the same index) are the same both times, as with random_at. Linked with
 * --wrap=random_at. */
#include "tests/support/engine_support.h"
#include "tests/support/toy_session.h"

#include <math.h>

#include "simd/kernels.h"

typedef unsigned __int128 u128;

#define EIGHTHS 8
#define MOST_V 6
#define MOST_L 5
#define MOST_CALLS 16
#define UNIT 840 /* lcm of 1..8: every call's probabilities are multiples of 1/UNIT */

/* ---- distributions in eighths ------------------------------------------------------------------------------------ */

struct shape {
    int V, K;
    size_t L;       /* tokens of the output */
    int drawn;      /* drafts are drawn from q; else they are q's best */
    int mask;       /* one token of each row, with the largest logit of all, is forbidden by a mask */
    uint64_t seed;  /* of the tables */
};

static float logit_of[EIGHTHS + 1][EIGHTHS + 1]; /* [a][m]: expf gives a/m exactly */

static float logit_that_gives(float weight)
{
    float below = logf(weight), above = below;
    for (int i = 0; i < 1000; i++) {
        if (kernel_expf(below) == weight)
            return below;
        if (kernel_expf(above) == weight)
            return above;
        below = nextafterf(below, -INFINITY);
        above = nextafterf(above, INFINITY);
    }
    fail_msg("no logit has a weight of %g", (double)weight);
    return 0;
}

static void find_logits(void)
{
    static const int largest[] = {2, 4, 8};
    for (size_t k = 0; k < COUNT(largest); k++)
        for (int m = largest[k], a = 1; a <= m; a++)
            if (m < EIGHTHS || a == m) /* with the largest 8 the others are 0 */
                logit_of[a][m] = logit_that_gives((float)a / (float)m);
    for (int m = 0; m <= EIGHTHS; m++)
        logit_of[0][m] = -200.0f;
    assert_true(kernel_expf(-200.0f) == 0.0f);
}

static uint64_t mix(uint64_t seed, const int32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        seed = (seed ^ (uint64_t)(tokens[i] + 1)) * 0x9e3779b97f4a7c15u;
        next_random(&seed);
    }
    return seed;
}

static int forbidden(const struct shape *s, const int32_t *tokens, size_t count)
{
    uint64_t random = mix(s->seed ^ 0xabcdef, tokens, count);
    return s->mask ? (int)random_below(&random, (size_t)s->V) : -1;
}

/* After these tokens: eighths[t] that sum to 8, the largest 2, 4 or 8, so that weights relative to it are exact; of the
 * target or of the module. Returns the largest. */
static int table(const struct shape *s, int of_module, const int32_t *tokens, size_t count, int *eighths)
{
    static struct { uint64_t random; int V, out, largest, eighths[MOST_V]; } known[4096]; /* asked for again and
                                                                                             again */
    uint64_t random = mix(s->seed + (of_module ? 77 : 0), tokens, count);
    int out = forbidden(s, tokens, count), largest, slot = (int)(random >> 52);
    if (known[slot].random == random && known[slot].V == s->V && known[slot].out == out) {
        memcpy(eighths, known[slot].eighths, sizeof known[slot].eighths);
        return known[slot].largest;
    }
    known[slot].random = random;
    do {
        largest = 0;
        memset(eighths, 0, MOST_V * sizeof *eighths);
        for (int i = 0, t; i < EIGHTHS; i++) {
            do
                t = (int)random_below(&random, (size_t)s->V);
            while (t == out);
            eighths[t]++;
        }
        for (int t = 0; t < s->V; t++)
            largest = eighths[t] > largest ? eighths[t] : largest;
    } while (largest != 2 && largest != 4 && largest != 8);
    known[slot].V = s->V;
    known[slot].out = out;
    known[slot].largest = largest;
    memcpy(known[slot].eighths, eighths, sizeof known[slot].eighths);
    return largest;
}

static void row(const struct shape *s, int of_module, const int32_t *tokens, size_t count, float *logits)
{
    int eighths[MOST_V], largest = table(s, of_module, tokens, count, eighths);
    for (int t = 0; t < s->V; t++)
        logits[t] = logit_of[eighths[t]][largest];
    if (s->mask)
        logits[forbidden(s, tokens, count)] = 1.0f;
}

static int mask_forbidden(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    mask[forbidden(context, tokens, count)] = 0;
    return VB_OK;
}

/* ---- random numbers that the test chooses ------------------------------------------------------------------------ */

struct call {
    uint64_t index;
    enum random_stream stream;
    int cell, cells; /* u = (cell + 1/2) / cells */
};

static struct {
    struct call call[MOST_CALLS];
    size_t count;         /* the numbers that are chosen */
    struct call pending;  /* the one that was asked for beyond them */
    jmp_buf *stop;        /* where that ends the run; NULL: the engine's own numbers */
} script;

double __real_random_at(uint64_t seed, uint64_t index, enum random_stream stream);
double __wrap_random_at(uint64_t seed, uint64_t index, enum random_stream stream);
double __wrap_random_at(uint64_t seed, uint64_t index, enum random_stream stream)
{
    if (!script.stop)
        return __real_random_at(seed, index, stream);
    for (size_t i = 0; i < script.count; i++)
        if (script.call[i].index == index && script.call[i].stream == stream)
            return ((double)script.call[i].cell + 0.5) / script.call[i].cells;
    script.pending = (struct call){index, stream, 0, 0};
    longjmp(*script.stop, 1);
}

/* ---- all outputs, with their probabilities ----------------------------------------------------------------------- */

struct enumeration {
    struct shape shape;
    struct toy toy;
    u128 whole;                  /* UNIT^calls */
    size_t calls;                /* on any way */
    u128 joint[6 * 6 * 6 * 6 * 6]; /* by output */
    struct totals {
        size_t runs, ways, rejected, accepted_deep; /* accepted_deep: of depth K */
    } total;
};

static const int32_t prompt[] = {0};

/* Decodes with the script: 1 at the end, 0 when a number is missing. */
static int decode(struct enumeration *e)
{
    const struct shape *s = &e->shape;
    struct vb_session *session = &e->toy.session;
    jmp_buf stop;
    e->total.runs++;
    toy_start(&e->toy, prompt, 1, s->L);
    script.stop = &stop;
    int missing = setjmp(stop);
    while (!missing && e->toy.result.tokens < s->L) {
        size_t left = s->L - e->toy.result.tokens, count = session->count;
        int drafts = e->toy.result.tokens == 0 ? 0 : (int)left - 1 < s->K ? (int)left - 1 : s->K;
        int32_t draft[VB_MAX_DRAFT];
        acceptance_round(session->acceptance);
        for (int k = 0; k < drafts; k++) { /* each follows those before it */
            row(s, 1, session->tokens, count + (size_t)k, e->toy.logits);
            draft[k] = s->drawn ? acceptance_draw(session->acceptance, e->toy.logits, session->tokens, count, k + 1)
                                : argmax(e->toy.logits, (size_t)s->V);
            session->tokens[count + (size_t)k] = draft[k];
        }
        for (int k = 0; k <= drafts; k++)
            row(s, 0, session->tokens, count + (size_t)k, e->toy.logits + k * s->V);
        toy_round(&e->toy, draft, drafts);
    }
    script.stop = NULL;
    return !missing;
}

/* What came of the script so far: where it stands, and the tokens chosen. */
struct outcome {
    struct call pending;
    size_t n;
    int32_t token[MOST_L];
};

static struct outcome outcome_of(struct enumeration *e, int cell)
{
    struct outcome o;
    memset(&o, 0, sizeof o);
    script.call[script.count - 1].cell = cell;
    int end = decode(e);
    if (!end) {
        o.pending.index = script.pending.index;
        o.pending.stream = script.pending.stream;
    }
    o.pending.cells = end;
    o.n = e->toy.result.tokens;
    memcpy(o.token, e->toy.tokens + 1, o.n * sizeof *o.token);
    return o;
}

static void explore(struct enumeration *e, u128 weight);

/* Cells first..last of the newest number: where the first and the last come to the same, so do those between, since a
 * larger number never makes a smaller choice. */
static void explore_cells(struct enumeration *e, int first, int last, u128 weight)
{
    struct call *c = &script.call[script.count - 1];
    struct outcome a = outcome_of(e, first), b = outcome_of(e, last);
    if (!memcmp(&a, &b, sizeof a)) {
        c->cell = first;
        explore(e, weight * (u128)(last - first + 1) * (u128)(UNIT / c->cells));
    } else {
        explore_cells(e, first, (first + last) / 2, weight);
        explore_cells(e, (first + last) / 2 + 1, last, weight);
    }
}

/* Adds `weight` (of UNIT^(numbers chosen)) to the outputs that the script leads to. */
static void explore(struct enumeration *e, u128 weight)
{
    static const int cells[] = {[RANDOM_TARGET] = EIGHTHS, [RANDOM_DRAFT] = EIGHTHS, [RANDOM_ACCEPTANCE] = 24,
                                [RANDOM_RESIDUAL] = UNIT};
    if (decode(e)) {
        size_t code = 0;
        for (size_t i = 0; i < e->shape.L; i++)
            code = code * (size_t)e->shape.V + (size_t)e->toy.tokens[1 + i];
        for (size_t i = script.count; i < e->calls; i++)
            weight *= UNIT;
        e->joint[code] += weight;
        e->total.ways++;
        for (int k = 0; k < e->shape.K; k++)
            e->total.rejected += e->toy.result.rejected_by_depth[k];
        e->total.accepted_deep += e->toy.result.accepted_by_depth[e->shape.K - 1];
        return;
    }
    assert_true(script.count < e->calls && script.count < MOST_CALLS);
    struct call c = script.pending;
    c.cells = cells[c.stream];
    script.call[script.count++] = c;
    if (c.stream == RANDOM_DRAFT) /* may be asked for again: each cell for itself */
        for (int cell = 0; cell < c.cells; cell++) {
            script.call[script.count - 1].cell = cell;
            explore(e, weight * (u128)(UNIT / c.cells));
        }
    else
        explore_cells(e, 0, c.cells - 1, weight);
    script.count--;
}

/* UNIT^calls times the probability of the output under plain decoding. */
static u128 autoregressive(const struct enumeration *e, size_t code, int32_t *tokens)
{
    u128 probability = e->whole;
    for (size_t i = e->shape.L; i-- > 0; code /= (size_t)e->shape.V)
        tokens[1 + i] = (int32_t)(code % (size_t)e->shape.V);
    tokens[0] = prompt[0];
    for (size_t i = 0; i < e->shape.L; i++) {
        int eighths[MOST_V];
        table(&e->shape, 0, tokens, 1 + i, eighths);
        probability = probability / EIGHTHS * (u128)eighths[tokens[1 + i]];
    }
    return probability;
}

static void check_shape(const struct shape *shape, struct totals *total)
{
    static struct enumeration e;
    memset(&e, 0, sizeof e);
    e.shape = *shape;
    vb_sampling o = {.temperature = 1, .acceptance = "rejection",
                     .draft_sample_method = shape->drawn ? "probabilistic" : "greedy"};
    if (shape->mask) {
        o.mask = mask_forbidden;
        o.mask_context = &e.shape;
    }
    toy_open(&e.toy, &o, shape->V, shape->K);
    e.calls = 1 + 3 * (shape->L - 1); /* per token, but for the first: a draft, its acceptance, another token */
    e.whole = 1;
    for (size_t i = 0; i < e.calls; i++) {
        assert_true(e.whole < ((u128)1 << 127) / UNIT);
        e.whole *= UNIT;
    }
    script.count = 0;
    explore(&e, 1);
    size_t outputs = 1;
    u128 all = 0;
    for (size_t i = 0; i < shape->L; i++)
        outputs *= (size_t)shape->V;
    for (size_t code = 0; code < outputs; code++) {
        int32_t tokens[1 + MOST_L];
        u128 want = autoregressive(&e, code, tokens);
        if (e.joint[code] != want)
            fail_msg("V %d, K %d, L %zu, %s%s, seed %d: output %d %d %d.. has probability %.17g, plain decoding gives "
                     "it %.17g",
                     shape->V, shape->K, shape->L, shape->drawn ? "drawn" : "not drawn", shape->mask ? ", masked" : "",
                     (int)shape->seed, (int)tokens[1], (int)tokens[2], shape->L > 2 ? (int)tokens[3] : -1,
                     (double)e.joint[code] / (double)e.whole, (double)want / (double)e.whole);
        all += e.joint[code];
    }
    assert_true(all == e.whole);
    total->ways += e.total.ways;
    total->rejected += e.total.rejected;
    total->accepted_deep += e.total.accepted_deep;
    total->runs += e.total.runs;
    toy_close(&e.toy);
}

TEST(the_joint_distribution_of_the_output_is_that_of_plain_decoding_exactly)
{
    static const struct {
        struct shape shape;
        uint64_t seeds;
    } shapes[] = {{{.V = 3, .K = 1, .L = 3}, 10}, {{.V = 3, .K = 2, .L = 4}, 5}, {{.V = 3, .K = 3, .L = 5}, 1},
                  {{.V = 4, .K = 2, .L = 4}, 2},  {{.V = 5, .K = 1, .L = 3}, 5}, {{.V = 5, .K = 2, .L = 4}, 1}};
    size_t distributions = 0;
    find_logits();
    for (size_t i = 0; i < COUNT(shapes); i++) {
        struct totals total = {0};
        for (int how = 0; how < 4; how++)
            for (uint64_t seed = 1; seed <= shapes[i].seeds; seed++) {
                struct shape s = shapes[i].shape;
                if (!has_turn((size_t)(how / 2) + seed, 2))
                    continue;
                s.drawn = how % 2;
                s.mask = how / 2;
                s.seed = seed;
                s.V += s.mask; /* so many tokens are allowed */
                check_shape(&s, &total);
                distributions++;
            }
        print_message("V %d, K %d, L %zu: %zu ways to the outputs, %zu runs\n", shapes[i].shape.V, shapes[i].shape.K,
                      shapes[i].shape.L, total.ways, total.runs);
        assert_true(total.rejected > 0 && total.accepted_deep > 0);
    }
    print_message("%zu joint distributions\n", distributions);
}

/* ---- one token, and the formulas that are wrong ------------------------------------------------------------------ */

enum formula {
    THE_ENGINES,
    REST_WITH_Q_OF_ONE,     /* a draft that was not drawn, and then max(p - q, 0) with q = 1 for every token */
    REST_NOT_REDUCED,       /* another token from p itself */
    ACCEPTED_AS_IF_UNDRAWN, /* a drawn draft accepted with p(d) */
    FORMULAS
};

/* Of UNIT numbers u, how many accept d. */
static int64_t accepted(enum formula formula, const double *p, const double *q, int32_t d)
{
    int64_t n = 0;
    for (int j = 0; j < UNIT; j++) {
        double u = ((double)j + 0.5) / UNIT;
        n += formula == ACCEPTED_AS_IF_UNDRAWN ? u * EIGHTHS < p[d]
                                               : rejection_accepts(p, EIGHTHS, q, q ? EIGHTHS : 1, d, u);
    }
    return n;
}

static double rest_of(enum formula formula, double *rest, const double *p, const double *q, int32_t d, size_t V)
{
    double total = 0;
    if (formula != REST_WITH_Q_OF_ONE && formula != REST_NOT_REDUCED)
        return rejection_rest(rest, p, EIGHTHS, q, q ? EIGHTHS : 1, d, V);
    for (size_t t = 0; t < V; t++)
        total += rest[t] = formula == REST_NOT_REDUCED ? p[t] : p[t] > EIGHTHS ? p[t] - EIGHTHS : 0;
    return total;
}

/* Whether the token has distribution p, in integers. *no_rest: a draft was turned down and nothing weighs anything. */
static int gives_p(enum formula formula, const double *p, const double *q, int32_t best, size_t V, int *no_rest)
{
    u128 have[MOST_V] = {0}, whole = 1;
    *no_rest = 0;
    for (int round = 0; round < 2; round++) /* first the product of all denominators, then the sums */
        for (size_t d = 0; d < V; d++) {
            double rest[MOST_V], drawn = q ? q[d] : (int32_t)d == best ? EIGHTHS : 0;
            int64_t stands = drawn > 0 ? accepted(formula, p, q, (int32_t)d) : UNIT;
            double total = drawn > 0 && stands < UNIT ? rest_of(formula, rest, p, q, (int32_t)d, V) : 1;
            *no_rest |= total == 0;
            if (total == 0)
                return 0;
            if (round == 0) {
                whole *= (u128)total;
                continue;
            }
            have[d] += whole * (u128)drawn * (u128)stands;
            for (size_t t = 0; t < V && stands < UNIT; t++)
                have[t] += whole / (u128)total * (u128)drawn * (u128)(UNIT - stands) * (u128)rest[t];
        }
    for (size_t t = 0; t < V; t++)
        if (have[t] != whole * UNIT * (u128)p[t])
            return 0;
    return 1;
}

TEST(the_formula_gives_p_and_the_wrong_ones_do_not)
{
    size_t right[FORMULAS] = {0}, empty[FORMULAS] = {0}, rejecting = 0, drawn = 0, count = 4000;
    for (uint64_t seed = 1; seed <= count; seed++) {
        uint64_t random = seed;
        size_t V = 3 + random_below(&random, 3);
        double p[MOST_V] = {0}, q[MOST_V] = {0};
        for (int i = 0; i < EIGHTHS; i++) {
            p[random_below(&random, V)]++;
            q[random_below(&random, V)]++;
        }
        int32_t best = 0;
        for (size_t t = 1; t < V; t++)
            best = q[t] > q[best] ? (int32_t)t : best;
        for (int f = 0; f < FORMULAS; f++) {
            int no_rest;
            const double *of = f == REST_WITH_Q_OF_ONE || (f != ACCEPTED_AS_IF_UNDRAWN && seed % 2) ? NULL : q;
            right[f] += (size_t)gives_p((enum formula)f, p, of, best, V, &no_rest);
            empty[f] += (size_t)no_rest;
            drawn += f == THE_ENGINES && of;
        }
        rejecting += p[best] < EIGHTHS;
    }
    assert_int_equal(right[THE_ENGINES], count);
    assert_int_equal(empty[THE_ENGINES], 0);
    assert_int_equal(empty[REST_WITH_Q_OF_ONE], rejecting); /* all zero, whenever a draft is turned down */
    assert_int_equal(right[REST_WITH_Q_OF_ONE], count - rejecting);
    assert_true(drawn == count / 2 && rejecting > count / 2);
    if (right[REST_NOT_REDUCED] > count / 10 || right[ACCEPTED_AS_IF_UNDRAWN] > count / 10)
        fail_msg("wrong formulas gave p %zu and %zu times of %zu", right[REST_NOT_REDUCED],
                 right[ACCEPTED_AS_IF_UNDRAWN], count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_formula_gives_p_and_the_wrong_ones_do_not),
        cmocka_unit_test(the_joint_distribution_of_the_output_is_that_of_plain_decoding_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
