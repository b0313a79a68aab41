/* tools/dump/stats.c -- computes statistics of rows, and writes them as JSON. */
#include "tools/dump/stats.h"
#include "numbers/numbers.h"

#include <math.h>
#include <sha2.h>
#include <stdint.h>
#include <string.h>

static void find_top(const double *x, size_t n, struct stats_row *s)
{
    size_t best = 0, second = n > 1;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) {
            second = best;
            best = i;
        } else if (i == 1 || x[i] > x[second]) {
            second = i;
        }
    s->has_top = n > 1 && isfinite(x[best]) && isfinite(x[second]) && !s->nans;
    double top[4] = {(double)best, x[best], (double)second, x[second]};
    memcpy(s->top, top, sizeof top);
}

void stats_of(const double *x, size_t n, struct stats_row *s)
{
    double sum = 0, squares = 0;
    size_t finite = 0;
    *s = (struct stats_row){.min = 0};
    for (size_t i = 0; i < n; i++) {
        s->nans += isnan(x[i]) != 0;
        s->infinities += isinf(x[i]) != 0;
        if (!isfinite(x[i]))
            continue;
        s->min = finite ? fmin(s->min, x[i]) : x[i];
        s->max = finite ? fmax(s->max, x[i]) : x[i];
        finite++;
        sum += x[i];
        squares += x[i] * x[i];
        uint64_t bits = splitmix64_at(0, i);
        for (int p = 0; p < STATS_PROJECTIONS; p++)
            s->projection[p] += bits >> p & 1 ? -x[i] : x[i];
    }
    s->mean = finite ? sum / (double)finite : 0;
    s->rms = finite ? sqrt(squares / (double)finite) : 0;
    for (int p = 0; p < STATS_PROJECTIONS; p++)
        s->projection[p] /= sqrt((double)n);
    find_top(x, n, s);
}

void stats_hash(const void *row, size_t bytes, char sha256[17])
{
    char digest[SHA256_DIGEST_STRING_LENGTH];
    SHA256Data(row, bytes, digest);
    memcpy(sha256, digest, 16);
    sha256[16] = '\0';
}

static json_t *number(double x)
{
    return isnan(x) ? json_string("NaN") : isinf(x) ? json_string(x > 0 ? "Infinity" : "-Infinity") : json_real(x);
}

static void append(json_t *line, const char *key, json_t *value)
{
    json_t *list = json_object_get(line, key);
    if (!list)
        json_object_set_new(line, key, list = json_array());
    json_array_append_new(list, value);
}

static void add_whole(json_t *line, const double *x, size_t n, int integers)
{
    json_t *values = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(values, integers ? json_integer((json_int_t)x[i]) : number(x[i]));
    append(line, "values", values);
}

static void add_row(json_t *line, const struct stats_row *s, int is_logits)
{
    json_t *projections = json_array();
    for (int p = 0; p < STATS_PROJECTIONS; p++)
        json_array_append_new(projections, json_real(s->projection[p]));
    append(line, "min", json_real(s->min));
    append(line, "max", json_real(s->max));
    append(line, "mean", json_real(s->mean));
    append(line, "rms", json_real(s->rms));
    append(line, "projections", projections);
    append(line, "nan", json_integer((json_int_t)s->nans));
    append(line, "inf", json_integer((json_int_t)s->infinities));
    if (is_logits)
        append(line, "top",
               s->has_top ? json_pack("[I,f,I,f]", (json_int_t)s->top[0], s->top[1], (json_int_t)s->top[2], s->top[3])
                          : json_null());
}

/* Removes a list of zeros. */
static void drop_zeros(json_t *line, const char *key)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(line, key), i, one)
        if (json_integer_value(one))
            return;
    json_object_del(line, key);
}

void stats_add(json_t *line, const double *x, const void *data, size_t rows, size_t n, size_t item, int integers,
               int is_logits)
{
    for (size_t r = 0; r < rows; r++) {
        struct stats_row s;
        stats_hash((const char *)data + r * n * item, n * item, s.sha256);
        append(line, "row_sha256", json_string(s.sha256));
        if (integers || n <= STATS_WHOLE) {
            add_whole(line, x + r * n, n, integers);
        } else {
            stats_of(x + r * n, n, &s);
            add_row(line, &s, is_logits);
        }
    }
    drop_zeros(line, "nan");
    drop_zeros(line, "inf");
}
