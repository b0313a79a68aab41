/* tools/diff/bias.c -- slopes, their standard deviation under rounding, and the verdict `biased`. bias.h derives
 * them. */
#include "tools/diff/bias.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/diff/diff.h"

struct sample { /* the slope of one row in one perturbed run, minus 1 */
    int32_t sequence, index, run;
    double slope;
};

struct tap_noise {
    struct sample *samples;
    size_t count, room;
};

struct bias_noise {
    json_t *places; /* the index in `taps` for each "DEPTH NAME" */
    struct tap_noise *taps;
    size_t count;
    int runs;
};

struct bias_row *bias_add(struct bias *b, int32_t sequence, int32_t index, const double *x, const double *y, size_t n)
{
    struct bias_row r = {.sequence = sequence, .index = index};
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]) && isfinite(y[i])) {
            r.xx += x[i] * x[i];
            r.xy += x[i] * y[i];
            r.yy += y[i] * y[i];
            r.own += (x[i] - y[i]) * (x[i] - y[i]) * y[i] * y[i];
            r.third += (x[i] - y[i]) * y[i] * y[i] * y[i];
            r.fourth += y[i] * y[i] * y[i] * y[i];
        }
    if (!(r.yy > 0) || !isfinite(r.yy) || !isfinite(r.own))
        return NULL;
    if (b->count == b->room)
        b->rows = cli_must(realloc(b->rows, (b->room = 2 * b->room + 8) * sizeof *b->rows));
    b->rows[b->count++] = r;
    return &b->rows[b->count - 1];
}

void bias_close(struct tap *taps, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(taps[i].bias.rows);
}

/* --- the noise of perturbed runs --- */

static struct tap_noise *noise_of(const struct bias_noise *n, const struct diff_series *s)
{
    char key[NAMING_ROOM + 16];
    snprintf(key, sizeof key, "%d %.300s", s->depth, s->name);
    const json_t *at = json_object_get(n->places, key);
    return at ? &n->taps[json_integer_value(at)] : NULL;
}

static struct tap_noise *add_noise(struct bias_noise *n, const struct diff_series *s)
{
    char key[NAMING_ROOM + 16];
    struct tap_noise *found = noise_of(n, s);
    if (found)
        return found;
    snprintf(key, sizeof key, "%d %.300s", s->depth, s->name);
    n->taps = cli_must(realloc(n->taps, (n->count + 1) * sizeof *n->taps));
    n->taps[n->count] = (struct tap_noise){0};
    json_object_set_new(n->places, key, json_integer((json_int_t)n->count));
    return &n->taps[n->count++];
}

void bias_learn(struct bias_noise **noise, const struct comparison *r, int run)
{
    if (!*noise) {
        *noise = cli_must(calloc(1, sizeof **noise));
        (*noise)->places = json_object();
    }
    (*noise)->runs = run > (*noise)->runs ? run : (*noise)->runs;
    for (size_t i = 0; i < r->count; i++) {
        const struct bias *b = &r->taps[i].bias;
        struct tap_noise *t = b->count ? add_noise(*noise, r->taps[i].a) : NULL;
        for (size_t k = 0; k < b->count; k++) {
            const struct bias_row *row = &b->rows[k];
            if (t->count == t->room)
                t->samples = cli_must(realloc(t->samples, (t->room = 2 * t->room + 64) * sizeof *t->samples));
            t->samples[t->count++] = (struct sample){row->sequence, row->index, run - 1, (row->xy - row->yy) / row->yy};
        }
    }
}

void bias_forget(struct bias_noise *n)
{
    for (size_t i = 0; n && i < n->count; i++)
        free(n->taps[i].samples);
    if (n) {
        json_decref(n->places);
        free(n->taps);
    }
    free(n);
}

/* --- a tap --- */

static const struct bias_row *row_at(const struct bias *b, int32_t sequence, int32_t index, size_t *hint)
{
    for (size_t i = 0; i < b->count; i++) {
        size_t k = (*hint + i) % b->count;
        if (b->rows[k].sequence == sequence && b->rows[k].index == index) {
            *hint = k + 1;
            return &b->rows[k];
        }
    }
    return NULL;
}

double bias_deviation(double slope, double norm)
{
    return slope > 0 ? fmax(fmin(slope, norm), 0) : fmin(fmax(slope, norm), 0);
}

double bias_variance(const struct bias_sum *s)
{
    double b = s->square > 0 ? s->along / s->square : 0;
    return fmax(s->own - 2 * b * s->third + b * b * s->fourth, s->known);
}

void bias_mark(const struct bias_sum *sums, size_t n, unsigned char *off)
{
    double times = 1 + sqrt(2 * log((double)n + 1));
    for (size_t i = 0; i < n; i++)
        off[i] = sums[i].along * sums[i].along > times * times * bias_variance(&sums[i]);
}

/* The deviations of single rows, in units of what rounding explains: the root of the quotient of two sums of
 * squares. */
static double of_rows(const struct bias *b, const struct bias_noise *n, const struct tap_noise *t, double scale,
                      double common)
{
    double found = 0, explained = 0;
    size_t hint = 0;
    for (size_t i = 0; i < b->count; i++) {
        const struct bias_row *r = &b->rows[i];
        double d = bias_deviation((r->xy - r->yy) / r->yy, sqrt(r->xx / r->yy) - 1);
        found += d * d;
        explained += r->own / r->yy / r->yy + common;
    }
    for (size_t i = 0; i < t->count; i++)
        if (row_at(b, t->samples[i].sequence, t->samples[i].index, &hint))
            explained += scale * scale * t->samples[i].slope * t->samples[i].slope / n->runs;
    return found > 0 ? sqrt(found / explained) : 0;
}

/* The variance of the slope of the whole tap in the perturbed runs; the larger one of the two estimates. */
static double inherited(const struct bias *b, const struct bias_noise *n, const struct tap_noise *t, double all)
{
    double *together = cli_must(calloc((size_t)n->runs + 1, sizeof *together)), apart = 0, joint = 0;
    size_t hint = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct bias_row *row = row_at(b, t->samples[i].sequence, t->samples[i].index, &hint);
        double part = row ? row->yy / all * t->samples[i].slope : 0;
        together[t->samples[i].run] += part;
        apart += part * part / n->runs;
    }
    for (int k = 0; k < n->runs; k++)
        joint += together[k] * together[k] / n->runs;
    free(together);
    return fmax(apart, joint);
}

static void judge(struct tap *t, const struct bounds *bounds)
{
    struct bias *b = &t->bias;
    double xx = 0, xy = 0, yy = 0, own = 0, scale = diff_unit(bounds->arithmetic) / 0x1p-24;
    double common = (double)bounds->longest / 16 * 0x1p-48; /* variance of an error that all numbers of a row share */
    const struct tap_noise *noise = bounds->noise ? noise_of(bounds->noise, t->a) : NULL;
    for (size_t i = 0; i < b->count; i++) {
        xx += b->rows[i].xx;
        xy += b->rows[i].xy;
        yy += b->rows[i].yy;
        own += b->rows[i].own + common * b->rows[i].yy * b->rows[i].yy;
    }
    if (!(yy > 0) || !noise)
        return;
    b->slope = (xy - yy) / yy;
    b->norm = sqrt(xx / yy) - 1;
    b->sigma = sqrt(own / yy / yy + scale * scale * inherited(b, bounds->noise, noise, yy));
    b->sigmas = fabs(bias_deviation(b->slope, b->norm)) / b->sigma;
    b->row_sigmas = of_rows(b, bounds->noise, noise, scale, common);
    b->judged = isfinite(b->sigmas);
}

void bias_judge(struct comparison *r, const struct bounds *bounds)
{
    for (struct tap *t = r->taps; t < r->taps + r->count; t++) {
        const struct bias *b = &t->bias;
        if (t->verdict == NOT_COMPARED || t->dtype == DIFF_INTEGERS || bounds->turned)
            continue;
        judge(t, bounds);
        int together = b->sigmas > BIAS_SIGMAS, apart = b->row_sigmas > BIAS_ROW_SIGMAS(b->count);
        if (!b->judged || (!together && !apart) || t->verdict == STRUCTURAL)
            continue;
        if (together)
            snprintf(t->why, sizeof t->why,
                     "the slope of A on B is 1%+.2e, the norm ratio 1%+.2e: %.1f times what rounding explains",
                     b->slope, b->norm, b->sigmas);
        else
            snprintf(t->why, sizeof t->why,
                     "each row of A has a factor of its own: the slopes of the %zu rows deviate from 1 %.1f times as "
                     "much as rounding explains",
                     b->count, b->row_sigmas);
        t->verdict = BIASED;
        r->biased = r->biased ? r->biased : t;
        r->verdict = r->verdict > BIASED ? r->verdict : BIASED;
    }
}
