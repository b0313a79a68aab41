/* tools/diff/local_bias.c -- finds operators whose result is off by a factor that is smaller than a rounding.
 * local_bias.h derives the standard deviation. */
#include "tools/diff/local_bias.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"
#include "tools/diff/local.h"

struct local_bias *local_bias_open(const struct local_bias_shape *shape)
{
    struct local_bias *b = cli_must(calloc(1, sizeof *b));
    b->shape = *shape;
    b->along = cli_must(calloc((size_t)(shape->runs + 1) * shape->rows * shape->parts + 1, sizeof *b->along));
    b->together = cli_must(calloc((size_t)shape->runs + 1, sizeof *b->together));
    b->columns = cli_must(calloc(shape->width + 1, sizeof *b->columns));
    return b;
}

void local_bias_close(struct local_bias *b)
{
    if (!b)
        return;
    free(b->bias.rows);
    free(b->along);
    free(b->together);
    free(b->columns);
    free(b);
}

void local_bias_sequence(struct local_bias *b)
{
    memset(b->along, 0, (size_t)(b->shape.runs + 1) * b->shape.rows * b->shape.parts * sizeof *b->along);
}

void local_bias_noise(struct local_bias *b, int run, const double *noisy, const double *exact)
{
    size_t n = b->shape.rows * b->shape.width, part = b->shape.width / b->shape.parts;
    double *along = b->along + (size_t)run * b->shape.rows * b->shape.parts;
    for (size_t i = 0; i < n; i++)
        along[i / part] += isfinite(exact[i]) && isfinite(noisy[i]) ? (noisy[i] - exact[i]) * exact[i] : 0;
    for (size_t c = 0; c < b->shape.width && run == b->shape.runs; c++) {
        double sum = 0;
        for (size_t i = c; i < n; i += b->shape.width)
            sum += isfinite(exact[i]) && isfinite(noisy[i]) ? (noisy[i] - exact[i]) * exact[i] : 0;
        b->columns[c].known += sum * sum;
    }
}

/* Numbers at the same place of each head were multiplied by the same cosine and sine. */
static void add_turned(struct local_bias *b, const double *x, const double *y)
{
    size_t part = b->shape.width / b->shape.parts;
    for (size_t i = 0; i < part; i++) {
        double e = 0, s = 0;
        for (size_t k = i; k < b->shape.width; k += part)
            if (isfinite(x[k]) && isfinite(y[k])) {
                e += (x[k] - y[k]) * y[k];
                s += y[k] * y[k];
            }
        b->turned[0] += e * e;
        b->turned[1] += e * s;
        b->turned[2] += s * s;
    }
}

void local_bias_row(struct local_bias *b, int32_t sequence, size_t row, const double *x, const double *y,
                    const double *last, const double *inner, double shared)
{
    size_t part = b->shape.width / b->shape.parts;
    for (size_t k = 0; k < b->shape.parts; k++) {
        struct bias_row *r = bias_add(&b->bias, sequence, (int32_t)row - 1, x + k * part, y + k * part, part);
        if (!r)
            continue;
        r->part = (int32_t)k;
        for (size_t i = k * part; i < (k + 1) * part; i++)
            r->last += isfinite(x[i]) && isfinite(y[i]) ? last[i] * y[i] * y[i] : 0;
        for (int run = 0; run <= b->shape.runs; run++) {
            double along = b->along[((size_t)run * b->shape.rows + row) * b->shape.parts + k];
            r->inner += along * along / (run < b->shape.runs ? b->shape.runs : 1);
            b->together[run] += along;
        }
        r->inner += shared * r->yy * r->yy;
    }
    for (size_t i = 0; i < b->shape.width; i++)
        if (isfinite(x[i]) && isfinite(y[i])) {
            struct bias_sum *c = &b->columns[i];
            double e = x[i] - y[i], square = y[i] * y[i];
            c->along += e * y[i];
            c->square += square;
            c->own += e * e * square;
            c->third += e * y[i] * square;
            c->fourth += square * square;
            c->known += (last[i] + inner[i]) * square;
        }
    if (b->shape.turns)
        add_turned(b, x, y);
}

/* --- the standard deviation --- */

static double own_of(const struct bias_row *r, double slope)
{
    return r->own - 2 * slope * r->third + slope * slope * r->fourth;
}

/* The variance of sum((x - y) y) that roundings explain, for all numbers whose sum(y^2) is `all`. slope: of all
 * numbers, minus 1. */
static double variance(const struct local_bias *b, double slope, double all)
{
    double own = 0, last = 0, apart = 0, joint = 0, shared = 0, columns = 0;
    size_t period = b->shape.turns ? b->shape.width / b->shape.parts : b->shape.width;
    for (const struct bias_row *r = b->bias.rows; r < b->bias.rows + b->bias.count; r++) {
        own += own_of(r, slope);
        last += r->last;
        apart += r->inner;
        shared += r->yy * r->yy;
    }
    for (int run = 0; run <= b->shape.runs; run++)
        joint += b->together[run] * b->together[run] / (run < b->shape.runs ? b->shape.runs : 1);
    for (size_t i = 0; i < period; i++) {
        double left = 0;
        for (size_t k = i; k < b->shape.width; k += period)
            left += b->columns[k].along - slope * b->columns[k].square;
        columns += left * left;
    }
    double turned = b->turned[0] - 2 * slope * b->turned[1] + slope * slope * b->turned[2];
    return fmax(fmax(own, last), fmax(columns, turned)) + fmax(apart, joint) + b->shape.of_row * shared +
           b->shape.of_all * all * all;
}

/* Few numbers and 8 runs tell little about one row, so the mean of all rows counts too. */
struct means {
    double times, inner; /* how much larger `own` is than `last`; the mean variance of `inner` */
};

/* The variance that the numbers of a row show around the slope of the row. */
static double shown_by(const struct bias_row *r)
{
    struct bias_sum s = {.along = r->xy - r->yy, .square = r->yy, .own = r->own, .third = r->third,
                         .fourth = r->fourth};
    return bias_variance(&s);
}

static struct means means_of(const struct bias *t)
{
    struct means m = {.times = 1};
    double own = 0, last = 0;
    for (const struct bias_row *r = t->rows; r < t->rows + t->count; r++) {
        own += shown_by(r);
        last += r->last;
        m.inner += r->inner / r->yy / r->yy / (double)t->count;
    }
    m.times = own > last && last > 0 ? own / last : 1;
    return m;
}

/* The variance of the slope of one row or head. */
static double variance_of(const struct local_bias *b, const struct bias_row *r, struct means m)
{
    double yy = r->yy * r->yy;
    return fmax(shown_by(r), m.times * r->last) / yy + fmax(r->inner / yy, m.inner) + b->shape.of_row + b->shape.of_all;
}

static void judge_parts(struct local_bias *b)
{
    struct bias *t = &b->bias;
    struct means m = means_of(t);
    double found = 0, explained = 0;
    if (b->shape.width / b->shape.parts < LOCAL_BIAS_FEW)
        return;
    for (size_t i = 0; i < t->count; i++) {
        const struct bias_row *r = &t->rows[i];
        double d = bias_deviation((r->xy - r->yy) / r->yy, sqrt(r->xx / r->yy) - 1), v = variance_of(b, r, m);
        found += d * d;
        explained += v;
    }
    t->row_sigmas = found > 0 ? sqrt(found / explained) : 0;
}

static void judge_columns(struct local_bias *b)
{
    double squares = 0;
    for (size_t i = 0; i < b->shape.width && !b->shape.turns && b->bias.count >= LOCAL_BIAS_FEW; i++) {
        const struct bias_sum *s = &b->columns[i];
        double v = bias_variance(s) + b->shape.of_all * s->square * s->square;
        squares += v > 0 ? s->along * s->along / v / (double)b->shape.width : 0;
    }
    b->column_sigmas = sqrt(squares);
}

int local_bias_judge(struct local_bias *b, char *why, size_t room)
{
    struct bias *t = &b->bias;
    double xx = 0, xy = 0, yy = 0;
    for (size_t i = 0; i < t->count; i++) {
        xx += t->rows[i].xx;
        xy += t->rows[i].xy;
        yy += t->rows[i].yy;
    }
    if (!(yy > 0))
        return 0;
    t->slope = (xy - yy) / yy;
    t->norm = sqrt(xx / yy) - 1;
    t->sigma = sqrt(variance(b, t->slope, yy)) / yy;
    t->sigmas = fabs(bias_deviation(t->slope, t->norm)) / t->sigma;
    judge_parts(b);
    judge_columns(b);
    t->judged = isfinite(t->sigmas);
    if (!t->judged)
        return 0;
    const char *what = b->shape.parts > 1 ? "head" : "row";
    if (t->sigmas > LOCAL_BIAS_SIGMAS)
        snprintf(why, room,
                 "the slope on the expected values is 1%+.2e, the norm ratio 1%+.2e: %.1f times what rounding explains",
                 t->slope, t->norm, t->sigmas);
    else if (t->row_sigmas > LOCAL_BIAS_ROWS(t->count) || b->column_sigmas > LOCAL_BIAS_ROWS(b->shape.width))
        snprintf(why, room,
                 "the slopes of single %ss deviate from 1 %.1f times as much as rounding explains, those of columns "
                 "%.1f times",
                 what, t->row_sigmas, b->column_sigmas);
    else
        return 0;
    return 1;
}

/* --- where --- */

/* Adds up what belongs to each row, or to each head: the rows of b->bias, which are sorted by rows. Returns how many
 * there are. */
static size_t add_up(const struct local_bias *b, int heads, struct bias_sum *sums, int32_t *sequence, int32_t *index)
{
    const struct bias *t = &b->bias;
    struct means m = means_of(t);
    size_t n = heads ? b->shape.parts : 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct bias_row *r = &t->rows[i];
        if (!heads && (!n || r->index != index[n - 1] || r->sequence != sequence[n - 1])) {
            sequence[n] = r->sequence;
            index[n++] = r->index;
        }
        struct bias_sum *s = &sums[heads ? (size_t)r->part : n - 1];
        s->along += r->xy - r->yy;
        s->square += r->yy;
        s->known += variance_of(b, r, m) * r->yy * r->yy;
    }
    return n;
}

void local_bias_where(struct local_bias *b, const char *part_name, char text[EXPLAIN_ROOM])
{
    size_t count = b->bias.count, width = b->shape.parts > 1 ? b->shape.parts : b->shape.width, most = 0;
    struct bias_sum *sums = cli_must(calloc(count + 1, sizeof *sums)),
                    *heads = cli_must(calloc(b->shape.parts + 1, sizeof *heads));
    int32_t *sequence = cli_must(calloc(count + 1, sizeof *sequence)),
            *index = cli_must(calloc(count + 1, sizeof *index));
    unsigned char *row = cli_must(calloc(count + 1, 1)), *column = cli_must(calloc(width + 1, 1));
    size_t rows = add_up(b, 0, sums, sequence, index);
    add_up(b, 1, heads, sequence, index);
    bias_mark(sums, rows, row);
    bias_mark(b->shape.parts > 1 ? heads : b->columns, width, column);
    for (size_t i = 0; i < rows; i++)
        if (sums[i].along * sums[i].along * sums[most].known > sums[most].along * sums[most].along * sums[i].known)
            most = i;
    b->sequence = sequence[most];
    b->index = index[most];
    explain_parts(text, row, index, rows, column, width, *part_name ? 1 : 0, part_name);
    if (!*text)
        snprintf(text, EXPLAIN_ROOM, "rounding explains each single row and %s", *part_name ? part_name : "column");
    free(sums);
    free(heads);
    free(sequence);
    free(index);
    free(row);
    free(column);
}
