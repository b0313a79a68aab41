/* tools/diff/bound.c -- computes the bound: the largest relative difference of a value that rounding can explain.
 *
 * With a model, the bound is measured, as in tests/engine/test_truth.c. The reference runs once exactly, and `runs`
 * times with perturbations: every intermediate value is multiplied by 1 + u 2^-24, where u is random and |u| < 1. So
 * each value moves by up to half an ulp of F32. The relative change of a row is its largest change divided by the
 * largest number in the row. The spread of a tap is the largest relative change over all rows and runs. The bound is
 * MEASURED_TIMES times the spread, because a few random runs do not find the largest possible change. Rows that depend
 * on a choice that a perturbation changed are left out, because they are another computation. In precision bf16, the
 * perturbed runs also round numbers near a tie to the other neighbour (reference.h). An engine that adds in f32 may do
 * the same, and the effect is much larger than half an ulp.
 *
 * With quantized weights, the input x of a linear layer is quantized in groups of 32 numbers. Then there are two
 * spreads, for the following reason. The quantized values of a group are multiples of d = m / 127, where m is the
 * largest number of the group. Rounding in f32 moves a number by about 2^-22 m, so that about one number in 30,000 is
 * near enough to a tie to be rounded to the other neighbour. This changes every sum that contains the number by d times
 * a weight. About 4 such changes in a sum of K = 192 terms are as large as the effect of quantizing all its terms.
 * Therefore MEASURED_TIMES such changes cannot be the bound: an engine that does not quantize x at all would be within
 * it.
 *
 *   The first spread is measured as above, with a reference that does not quantize x.
 *
 *   The second spread is measured with a reference that quantizes x, after moving each number by up to 2^-18 m
 *   (reference.h). A number that an engine may round to the other neighbour is rounded to it in a run with a
 *   probability of about 1/2, so all runs miss it with a probability of 2^-runs. A run changes the rounding of about 16
 *   times as many numbers as an engine does. So the second spread includes the complete effect of such a number.
 *   TURNED_TIMES times the second spread are added to the bound, because other changes in the same run may have
 *   cancelled a part of the effect.
 *
 * Without a model, the bound is an estimate. k independent roundings with unit roundoff u make a relative error that
 * grows like sqrt(k) u. k is ROUNDINGS_PER_LAYER for each layer: norm 2, q_a, norm 2, q_b, RoPE, score, softmax, sum,
 * o_proj, add, norm 2, gate, SiLU, down, sum, add. The bound is A_PRIORI_TIMES times sqrt(k) u. This estimate does not
 * know how much a model amplifies errors, or which sums nearly cancel. It is an order of magnitude and not a proof. A
 * sum that nearly cancels makes a row of small numbers, with errors as large as those of other rows. So the largest
 * number of a row, to which the bound is relative, counts at least as the median of the largest numbers of all rows of
 * the tap.
 *
 * Both bounds are for values that were computed in F32. If an engine computes in BF16 or F16, they are multiplied by
 * the quotient of its unit roundoff and 2^-24, because the effect of a small perturbation is linear in its size. Unless
 * --arithmetic says otherwise, the least precise dtype in a dump counts as the dtype of the computation.
 *
 * Two terms are added to both bounds. The first is for the order of sums, since the perturbed runs perturb only the
 * result of a sum: if K terms are added one after the other in F32, the relative error is about sqrt(K) 2^-24.
 * (Products of BF16 numbers are also added in F32.) The estimate counts SUMS_PER_LAYER such sums in each layer, one
 * after the other: norm, q_a, norm, q_b, W_UK, score, softmax, sum of values, o_proj, norm, gate, down. A sum has one
 * term for each number of the row that it reads. So K is the length of the longest row in the dump. Rows of logits are
 * not counted, because no sum reads them. Rows of attention scores, which are as long as the context, are not counted
 * either; this makes the bound smaller. The second term is the error of one rounding: both values are rounded to the
 * less precise of their two dtypes before they are compared. No bound is larger than MOST, because two unrelated rows
 * have a relative difference of about 1.
 *
 * An engine may store F32 and quantize x to 8 bits in its own way, as llama.cpp does. Use --arithmetic bf16 for such an
 * engine. The reason: 8-bit values are multiples of m / 127, so quantizing moves a number by up to m / 254. Relative to
 * m, this is 0.8 % more than 2^-8, the largest relative error of rounding to BF16.
 *
 * On the tiny checkpoints, the engine needs at most 0.29 of the measured bound and 0.41 of the estimated one. Hugging
 * Face transformers needs 0.47 in F32 and 0.31 in BF16. tests/cli/test_diff.c prints such figures. In precision q8, 60
 * prompts of 20 tokens were compared. In one of them, the two sides rounded a number to different neighbours; the
 * difference that followed was 0.87 of the bound. */
#include "tools/diff/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/dump/dump.h"

#define MEASURED_TIMES 8.0
#define TURNED_TIMES 2.0
#define A_PRIORI_TIMES 16.0
#define ROUNDINGS_PER_LAYER 20
#define SUMS_PER_LAYER 12
#define MOST 0.25
#define PROJECTED_TIMES 4.0 /* stats.c */

double diff_unit(enum diff_dtype dtype)
{
    static const double units[] = {0x1p-8, 0x1p-11, 0x1p-24, 0x1p-53, 0};
    return units[dtype];
}

/* The number of layers on the path to the value, its own included. */
static int layers_before(const struct bounds *b, const struct diff_series *s)
{
    return s->rank < 0 ? 0 : s->rank == 1 << 20 ? b->layers + 1 : s->layer + 1 + (s->depth >= 0);
}

static double a_priori(const struct bounds *b, const struct diff_series *s)
{
    return sqrt(ROUNDINGS_PER_LAYER * (double)layers_before(b, s) + 1);
}

static const char *key_of(const struct diff_series *s, char key[NAMING_ROOM + 16])
{
    snprintf(key, NAMING_ROOM + 16, "%d %.300s", s->depth, s->name);
    return key;
}

static const char *stats_key_of(const struct diff_series *s, char key[NAMING_ROOM + 16])
{
    snprintf(key, NAMING_ROOM + 16, "stats %d %.300s", s->depth, s->name);
    return key;
}

/* key: of the spread; once: how much the terms for single roundings count. */
static double bound(const struct bounds *b, const struct diff_series *s, enum diff_dtype coarser, const char *key,
                    double once)
{
    double f32 = diff_unit(DIFF_F32), u = diff_unit(b->arithmetic);
    const json_t *measured = json_object_get(b->spread, key);
    double steps = measured ? MEASURED_TIMES * json_real_value(measured) / f32 : A_PRIORI_TIMES * a_priori(b, s);
    double turned = TURNED_TIMES * json_real_value(json_object_get(b->turned, key));
    double sums = measured ? 1 : SUMS_PER_LAYER * (double)layers_before(b, s) + 1; /* one after the other */
    return fmin(steps * u + turned + once * (sqrt(sums * (double)b->longest) * f32 + diff_unit(coarser)), MOST);
}

double bounds_of(const struct bounds *b, const struct diff_series *s, enum diff_dtype coarser)
{
    char key[NAMING_ROOM + 16];
    return bound(b, s, coarser, key_of(s, key), 1);
}

double bounds_of_stats(const struct bounds *b, const struct diff_series *s, enum diff_dtype coarser)
{
    char key[NAMING_ROOM + 16];
    return bound(b, s, coarser, stats_key_of(s, key), PROJECTED_TIMES);
}

static int one_run(struct cli *c, const char *dir, const int32_t *ids, size_t count, uint64_t seed, int scores,
                   struct diff_side *side)
{
    struct dump dump;
    size_t tensors;
    char path[512];
    vb_routes shape;
    vb_model_routes(c->model, &shape); /* an indexer's choices are judged by its scores */
    snprintf(path, sizeof path, "%s/run.safetensors", dir);
    int code = dump_begin(c, &dump, path, scores || shape.index_topk ? "*" : NULL);
    dump.no_attention_scores = !scores;
    dump.no_hashes = 1;
    if (code != EXIT_DONE)
        return code;
    code = dump_values(c, &dump, ids, count, seed);
    if (code != EXIT_DONE)
        dump_abandon(&dump);
    else
        code = dump_end(&dump, &tensors);
    struct cli reading = *c;
    reading.sequence = -1; /* --sequence and --naming are about the user's dump */
    reading.naming = NULL;
    if (code == EXIT_DONE)
        code = diff_read(&reading, side, path, NULL, -1);
    unlink(path);
    snprintf(path, sizeof path, "%s/run.jsonl", dir);
    unlink(path);
    return code;
}

static void widen_key(json_t *spread, const char *key, double relative)
{
    double before = json_real_value(json_object_get(spread, key));
    json_object_set_new(spread, key, json_real(fmax(before, relative)));
}

static void widen(json_t *spread, const struct comparison *r)
{
    char key[NAMING_ROOM + 16];
    for (size_t i = 0; i < r->count; i++) {
        const struct tap *t = &r->taps[i];
        if (t->rows && isfinite(t->relative) && t->a->dtype != DIFF_INTEGERS)
            widen_key(spread, key_of(t->a, key), t->relative);
        if (t->projected > 0)
            widen_key(spread, stats_key_of(t->a, key), t->projected);
    }
}

/* Whether convention indexer-codes has this value in a list of conventions. */
static int ends_codes(const char *conventions, const char *value)
{
    const char *at = strstr(conventions, "indexer-codes=");
    size_t n = strlen(value);
    return at && !strncmp(at + 14, value, n) && (!at[14 + n] || at[14 + n] == ',' || at[14 + n] == ' ');
}

int diff_dump(struct cli *c, const int32_t *ids, size_t count, uint64_t seed, int scores, struct diff_side *side)
{
    const char *tmp = getenv("TMPDIR");
    char dir[400];
    snprintf(dir, sizeof dir, "%.300s/verbatim-diff-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return cli_fail(c, EXIT_OTHER, "%s: cannot be made: a model's values are written there first", dir);
    int code = one_run(c, dir, ids, count, seed, scores, side); /* the file is mapped into memory, so it may be
                                                                   deleted */
    rmdir(dir);
    side->has_steps = 0; /* its steps are not those of the other side */
    side->kind = c->reference ? "reference" : "engine";
    side->path = c->model_dir;
    side->followed = (c->session.routes.experts ? CHOICE_EXPERTS : 0) | (c->session.routes.kept ? CHOICE_KEPT : 0);
    side->bf16_scores = strstr(cli_facts(c).conventions, "indexer-scores=bf16") != NULL;
    side->latest_first = strstr(cli_facts(c).conventions, "indexer-ties=highest") != NULL;
    int plain = strstr(cli_facts(c).conventions, "indexer-codes=none") != NULL;
    side->index_codes = (plain || ends_codes(cli_facts(c).conventions, "hadamard") ? INDEX_WITHOUT_CODES : 0) |
                        (plain || ends_codes(cli_facts(c).conventions, "fp8") ? INDEX_WITHOUT_HADAMARD : 0);
    if (side->followed & CHOICE_EXPERTS && code == EXIT_DONE)
        json_array_append_new(side->notes, json_sprintf("%s took the experts that the other side chose", c->model_dir));
    if (side->followed & CHOICE_KEPT && code == EXIT_DONE)
        json_array_append_new(side->notes,
                              json_sprintf("%s attended to the tokens that the other side kept", c->model_dir));
    return code;
}

struct measure {
    struct cli reference;
    const int32_t *ids;
    size_t count;
    int runs, scores;
    const struct diff_side *like;
    size_t done, all; /* the number of runs, of both measurements together */
};

static int measure(struct measure *m, json_t *spread, struct bias_noise **noise)
{
    struct diff_side exact = {0}, other = {0};
    int code = diff_dump(&m->reference, m->ids, m->count, 0, m->scores, &exact);
    exact.like = m->like;
    for (int run = 1; run <= m->runs && code == EXIT_DONE; run++) {
        struct comparison r;
        code = diff_dump(&m->reference, m->ids, m->count, (uint64_t)run, m->scores, &other);
        if (code == EXIT_DONE) {
            diff_compare(&r, &other, &exact, NULL);
            widen(spread, &r);
            if (noise)
                bias_learn(noise, &r, run);
            comparison_close(&r);
        }
        diff_close(&other);
        cli_progress("measuring the bound", ++m->done, m->all);
    }
    diff_close(&exact);
    return code;
}

int bounds_groups(const struct cli *c, int *groups)
{
    const char *precision = cli_facts(c).precision;
    vb_tensors *tensors;
    vb_tensor t;
    vb_error err;
    *groups = !strcmp(precision, "q8") || !strcmp(precision, "q4") || !strcmp(cli_facts(c).cache_type, "q8");
    if (vb_tensors_open(&tensors, c->model_dir, NULL, &err))
        return cli_error(c, &err);
    for (size_t i = 0; vb_tensors_at(tensors, i, &t); i++)
        *groups |= t.quantized;
    vb_tensors_close(tensors);
    return EXIT_DONE;
}

int bounds_measure(struct cli *c, struct bounds *b, int runs, const int32_t *ids, size_t count, int scores)
{
    struct measure m = {.reference = *c, .ids = ids, .count = count, .runs = runs, .scores = scores, .like = b->like};
    int groups, code = bounds_groups(c, &groups), both = code == EXIT_DONE && groups && b->arithmetic == DIFF_F32;
    m.reference.reference = 1;
    m.all = (size_t)runs * (both ? 2 : 1);
    b->spread = json_object();
    if (both) {
        b->turned = json_object();
        code = measure(&m, b->turned, NULL);
    }
    m.reference.x_as_is = both || b->arithmetic != DIFF_F32;
    if (code == EXIT_DONE)
        code = measure(&m, b->spread, &b->noise);
    b->runs = runs;
    return code;
}

void bounds_close(struct bounds *b)
{
    json_decref(b->spread);
    json_decref(b->turned);
    bias_forget(b->noise);
}
