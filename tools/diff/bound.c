/* tools/diff/bound.c -- how far rounding may take a value from where another order of the same operations takes it.
 *
 * Measured, where a model is at hand, as in tests/engine/test_truth.c: the reference runs once as it is and `runs` times with every
 * intermediate value multiplied by 1 + u 2^-24, |u| < 1, another draw each time. What a tap's rows then move, relative to
 * the largest number in the row and at most over rows and runs, is its spread: how this model on these tokens amplifies
 * half an ulp. The bound is MEASURED_TIMES spreads: the largest of a few draws is not the largest there is. Rows behind a
 * choice that a perturbation turned are left out: they are another computation. In precision bf16 the perturbed runs also turn
 * roundings near a tie (reference.h), which is far more than half an ulp does, and what an engine in f32 sums may do.
 *
 * Where x is rounded to groups of 32 (quantised weights), two steps of a group are d = m / 127 apart, m its largest, and f32
 * has moved a number by some 2^-22 m: one in some thirty thousand lies so near to a tie that it is turned. It then moves every
 * sum that it is in by d times a weight, about 4 such in K = 192 terms being what all their roundings do together. That is
 * nothing of first order: 8 times it would hide that nothing was rounded at all. So there are two measures. The first is as
 * above, of a reference that rounds no x. The second is of one that does, and moves each number by up to 2^-18 m before
 * (reference.h): whichever one an engine may turn, a run turns with a probability of about 1/2, so that all of them miss it once
 * in 2^runs; and a run turns some 16 times as many as an engine does. What a turned number does is thus in the second spread,
 * once and whole. TURNED_TIMES of that are added, since others that the same run turned may have cancelled a part.
 *
 * A priori, without a model: k roundings of unit roundoff u that fall independently make a relative error that grows like
 * sqrt(k) u. k is ROUNDINGS_PER_LAYER for each layer passed: norm 2, q_a, norm 2, q_b, RoPE, score, softmax, sum, o_proj,
 * add, norm 2, gate, SiLU, down, sum, add come one after the other. The bound is A_PRIORI_TIMES that. It does not know how a
 * model amplifies, nor rows that nearly cancel: an order of magnitude, not a proof.
 *
 * Both are for values computed in F32. Where an engine computes in BF16 or F16 they are scaled by its unit roundoff over
 * 2^-24: to first order what a perturbation does is linear in it. The coarsest dtype in a dump is taken for the one that
 * all of it was computed in, unless --arithmetic says otherwise.
 *
 * To either is added what a sum may lose that was perturbed only as a whole: K terms added one after the other in F32 (BF16
 * products are added so as well) err like sqrt(K) 2^-24 of what such sums give. K is the widest row but of logits and
 * attention scores: sums are as long as the rows they read. And one rounding of the dtype that both are told in: u. No bound
 * is more than MOST: two unrelated rows differ by order 1.
 *
 * An engine that stores F32 and rounds x to groups of 8 bits in a way of its own (llama.cpp) is told by BF16's arithmetic: half a
 * step is m / 254, within 1 % of BF16's 2^-8.
 *
 * On the tiny checkpoints the engine needs at most 0.29 of the measured bound (0.41 of the a priori one), Hugging Face
 * transformers 0.47 in F32 and 0.31 in BF16. tests/cli/test_diff.c prints such figures. Of the second measure, in q8, it needed at
 * most 0.87 where one of 60 prompts of 20 tokens had a rounding turned. */
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
#define MOST 0.25

static double unit(enum diff_dtype dtype)
{
    static const double units[] = {0x1p-8, 0x1p-11, 0x1p-24, 0x1p-53, 0};
    return units[dtype];
}

static double a_priori(const struct bounds *b, const struct diff_series *s)
{
    int passed = s->rank < 0 ? 0 : s->rank == 1 << 20 ? b->layers + 1 : s->layer + 1 + (s->depth >= 0);
    return sqrt(ROUNDINGS_PER_LAYER * (double)passed + 1);
}

static const char *key_of(const struct diff_series *s, char key[NAMING_ROOM + 16])
{
    snprintf(key, NAMING_ROOM + 16, "%d %.300s", s->depth, s->name);
    return key;
}

double bounds_of(const struct bounds *b, const struct diff_series *s, enum diff_dtype coarser)
{
    char key[NAMING_ROOM + 16];
    double f32 = unit(DIFF_F32), u = unit(b->arithmetic);
    const json_t *measured = json_object_get(b->spread, key_of(s, key));
    double steps = measured ? MEASURED_TIMES * json_real_value(measured) / f32 : A_PRIORI_TIMES * a_priori(b, s);
    double turned = TURNED_TIMES * json_real_value(json_object_get(b->turned, key));
    return fmin(steps * u + turned + sqrt((double)b->longest) * f32 + unit(coarser), MOST);
}

static int one_run(struct cli *c, const char *dir, const int32_t *ids, size_t count, uint64_t seed, int scores,
                   struct diff_side *side)
{
    struct dump dump;
    size_t tensors;
    char path[512];
    snprintf(path, sizeof path, "%s/run.safetensors", dir);
    int code = dump_begin(c, &dump, path, scores ? "*,*attn.scores*" : NULL);
    if (code != EXIT_DONE)
        return code;
    code = dump_values(c, &dump, ids, count, seed);
    if (code != EXIT_DONE)
        dump_abandon(&dump);
    else
        code = dump_end(&dump, &tensors);
    if (code == EXIT_DONE)
        code = diff_read(c, side, path, NULL, -1);
    unlink(path);
    snprintf(path, sizeof path, "%s/run.jsonl", dir);
    unlink(path);
    return code;
}

static void widen(json_t *spread, const struct comparison *r)
{
    char key[NAMING_ROOM + 16];
    for (size_t i = 0; i < r->count; i++) {
        const struct tap *t = &r->taps[i];
        double before = json_real_value(json_object_get(spread, key_of(t->a, key)));
        if (t->rows && isfinite(t->relative) && t->a->dtype != DIFF_INTEGERS)
            json_object_set_new(spread, key, json_real(fmax(before, t->relative)));
    }
}

int diff_dump(struct cli *c, const int32_t *ids, size_t count, uint64_t seed, int scores, struct diff_side *side)
{
    const char *tmp = getenv("TMPDIR");
    char dir[400];
    snprintf(dir, sizeof dir, "%.300s/verbatim-diff-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return cli_fail(c, EXIT_OTHER, "%s: cannot be made: a model's values are written there first", dir);
    int code = one_run(c, dir, ids, count, seed, scores, side); /* mapped: its file may go */
    rmdir(dir);
    side->kind = c->reference ? "reference" : "engine";
    side->path = c->model_dir;
    return code;
}

struct measure {
    struct cli reference;
    const int32_t *ids;
    size_t count;
    int runs, scores;
    size_t done, all; /* runs of both measures */
};

static int measure(struct measure *m, json_t *spread)
{
    struct diff_side exact = {0}, other = {0};
    int code = diff_dump(&m->reference, m->ids, m->count, 0, m->scores, &exact);
    for (int run = 1; run <= m->runs && code == EXIT_DONE; run++) {
        struct comparison r;
        code = diff_dump(&m->reference, m->ids, m->count, (uint64_t)run, m->scores, &other);
        if (code == EXIT_DONE) {
            diff_compare(&r, &other, &exact, NULL);
            widen(spread, &r);
            comparison_close(&r);
        }
        diff_close(&other);
        cli_progress("measuring the bound", ++m->done, m->all);
    }
    diff_close(&exact);
    return code;
}

/* Whether x of some matrix is rounded to groups of 32. */
static int find_groups(const struct cli *c, int *groups)
{
    const char *precision = cli_facts(c).precision;
    vb_tensors *tensors;
    vb_tensor t;
    vb_error err;
    *groups = !strcmp(precision, "q8") || !strcmp(precision, "q4");
    if (vb_tensors_open(&tensors, c->model_dir, NULL, &err))
        return cli_error(c, &err);
    for (size_t i = 0; vb_tensors_at(tensors, i, &t); i++)
        *groups |= t.quantised;
    vb_tensors_close(tensors);
    return EXIT_DONE;
}

int bounds_measure(struct cli *c, struct bounds *b, int runs, const int32_t *ids, size_t count, int scores)
{
    struct measure m = {.reference = *c, .ids = ids, .count = count, .runs = runs, .scores = scores};
    int groups, code = find_groups(c, &groups), both = code == EXIT_DONE && groups && b->arithmetic == DIFF_F32;
    m.reference.reference = 1;
    m.all = (size_t)runs * (both ? 2 : 1);
    b->spread = json_object();
    if (both) {
        b->turned = json_object();
        code = measure(&m, b->turned);
    }
    m.reference.x_as_is = both || b->arithmetic != DIFF_F32;
    if (code == EXIT_DONE)
        code = measure(&m, b->spread);
    b->runs = runs;
    return code;
}

void bounds_close(struct bounds *b)
{
    json_decref(b->spread);
    json_decref(b->turned);
}
