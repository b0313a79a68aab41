/* tools/diff/explain.c -- where two arrays of rows differ, and common mistakes that would make the difference. */
#include "tools/diff/explain.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

#define MOST_BLOCKS 512 /* more are not tried in another order */
#define MOST_RANGES 6   /* of rows or columns that a sentence lists */
#define MOST_SHARDS 16

struct attempt {
    const struct explain_rows *e;
    unsigned char *off, *off_column; /* [rows], [width]: whether a number is out of tolerance */
    double *h;       /* [rows, width]: what a mistake makes of b */
    double least;    /* what the best explanation leaves of the squared difference in the rows that are off */
    char *text;
};

static int find_off(const struct explain_rows *e, unsigned char *row, unsigned char *column)
{
    int any = 0;
    memset(row, 0, e->rows);
    memset(column, 0, e->width);
    for (size_t r = 0; r < e->rows; r++)
        for (size_t i = 0; i < e->width; i++)
            if (!(fabs(e->a[r * e->width + i] - e->b[r * e->width + i]) <= e->tolerance[r]))
                any = row[r] = column[i] = 1;
    return any;
}

/* --- where --- */

static void say(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(char *text, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, EXPLAIN_ROOM - used, format, args);
    va_end(args);
}

/* Appends "rows 1-3, 7 of 9", or "all 9 rows". name_of: the numbers that are printed; NULL: 0, 1, 2... */
static void ranges(char *text, const char *what, const unsigned char *off, size_t n, const int32_t *name_of)
{
    size_t count = 0, told = 0;
    for (size_t i = 0; i < n; i++)
        count += off[i];
    if (count == n && n > 1) {
        say(text, "all %zu %ss", n, what);
        return;
    }
    say(text, "%s%s ", what, count == 1 ? "" : "s");
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (!off[i])
            continue;
        while (end < n && off[end] && (!name_of || name_of[end] == name_of[end - 1] + 1))
            end++;
        if (told++ == MOST_RANGES) {
            say(text, ", ...");
            break;
        }
        long first = name_of ? (long)name_of[i] : (long)i;
        say(text, end > i + 1 ? "%s%ld-%ld" : "%s%ld", told > 1 ? ", " : "", first, first + (long)(end - i) - 1);
    }
    say(text, " of %zu", n);
}

void explain_parts(char text[EXPLAIN_ROOM], const unsigned char *row, const int32_t *index, size_t rows,
                   unsigned char *column, size_t width, size_t block, const char *block_name)
{
    size_t blocks = block && width % block == 0 ? width / block : 0, parts = blocks > 1 ? blocks : width, off = 0;
    *text = '\0';
    for (size_t i = 0; blocks > 1 && i < width; i++) /* blocks may overlap their own columns: block i / block <= i */
        column[i / block] = i % block ? column[i / block] | column[i] : column[i];
    for (size_t i = 0; i < parts; i++)
        off += column[i];
    if (memchr(row, 1, rows))
        ranges(text, "row", row, rows, index);
    if (*text && off)
        say(text, "; ");
    if (blocks <= 1 && 2 * off > parts)
        say(text, "%zu of %zu columns", off, parts);
    else if (off)
        ranges(text, blocks > 1 ? block_name : "column", column, parts, NULL);
}

int explain_where(const struct explain_rows *e, char text[EXPLAIN_ROOM])
{
    unsigned char *row = cli_must(malloc(e->rows + 1)), *column = cli_must(malloc(e->width + 1));
    int any = find_off(e, row, column);
    *text = '\0';
    if (any)
        explain_parts(text, row, e->index, e->rows, column, e->width, e->block, e->block_name);
    free(row);
    free(column);
    return any;
}

/* --- why --- */

/* Compares a with t->h. If this explanation leaves less than all before, writes it. Returns whether it does. */
static int offer(struct attempt *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int offer(struct attempt *t, const char *format, ...)
{
    const struct explain_rows *e = t->e;
    double left = 0;
    va_list args;
    for (size_t r = 0; r < e->rows; r++)
        for (size_t i = 0; i < e->width && t->off[r]; i++) {
            double d = e->a[r * e->width + i] - t->h[r * e->width + i];
            left += isfinite(d) ? d * d : INFINITY;
        }
    if (!(left < 0.5 * t->least)) /* a later one must be clearly better */
        return 0;
    t->least = left;
    va_start(args, format);
    vsnprintf(t->text, EXPLAIN_ROOM, format, args);
    va_end(args);
    return 1;
}

static void start(struct attempt *t) { memcpy(t->h, t->e->b, t->e->rows * t->e->width * sizeof *t->h); }

static double factor_of(const struct attempt *t, size_t first, size_t end)
{
    const struct explain_rows *e = t->e;
    double ab = 0, bb = 0;
    for (size_t r = first; r < end; r++)
        for (size_t i = 0; i < e->width; i++)
            if (t->off[r] && t->off_column[i]) {
                ab += e->a[r * e->width + i] * e->b[r * e->width + i];
                bb += e->b[r * e->width + i] * e->b[r * e->width + i];
            }
    return bb > 0 ? ab / bb : 1;
}

static void multiply(struct attempt *t, size_t first, size_t end, double c)
{
    for (size_t r = first; r < end; r++)
        for (size_t i = 0; i < t->e->width; i++)
            if (t->off_column[i])
                t->h[r * t->e->width + i] *= c;
}

static void try_factors(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    double c = factor_of(t, 0, e->rows), low = INFINITY, high = -INFINITY;
    size_t columns = 0;
    for (size_t i = 0; i < e->width; i++)
        columns += t->off_column[i];
    start(t);
    multiply(t, 0, e->rows, c);
    offer(t, fabs(c) < 1e-9 ? "A is zero there" : "A is B times %.6g there", c);
    start(t);
    if (columns < 2) /* a factor for each row would explain anything */
        return;
    for (size_t r = 0; r < e->rows; r++) {
        c = factor_of(t, r, r + 1);
        multiply(t, r, r + 1, c);
        low = t->off[r] ? fmin(low, c) : low;
        high = t->off[r] ? fmax(high, c) : high;
    }
    offer(t, "each row of A is B times a factor, from %.6g to %.6g", low, high);
}

static int is_neighbour(const struct explain_rows *e, size_t r, int by)
{
    size_t other = r + (size_t)by;
    return other < e->rows && e->index[other] == e->index[r] + by;
}

/* Whether most of the rows that are off have a neighbour in this direction. The others are taken out of the
 * comparison. */
static int have_neighbours(struct attempt *t, int by)
{
    const struct explain_rows *e = t->e;
    size_t off = 0, known = 0;
    for (size_t r = 0; r < e->rows; r++) {
        off += t->off[r];
        known += t->off[r] && is_neighbour(e, r, by);
        if (!is_neighbour(e, r, by))
            memcpy(t->h + r * e->width, e->a + r * e->width, e->width * sizeof *t->h);
    }
    return 2 * known > off;
}

static void try_rows(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    for (int by = -1; by <= 1; by += 2) {
        for (size_t r = 0; r < e->rows; r++)
            if (is_neighbour(e, r, by))
                memcpy(t->h + r * e->width, e->b + (r + (size_t)by) * e->width, e->width * sizeof *t->h);
        if (have_neighbours(t, by))
            offer(t, "the rows are shifted by one: row i of A is row i%+d of B", by);
    }
}

static void try_columns(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    size_t by[4] = {1, e->width - 1, e->rope, e->rope ? e->width - e->rope : 0};
    for (size_t k = 0; k < 4; k++) {
        if (!by[k] || by[k] >= e->width || (k > 1 && e->block && e->block < e->width))
            continue;
        for (size_t i = 0; i < e->rows * e->width; i++)
            t->h[i] = e->b[i - i % e->width + (i % e->width + by[k]) % e->width];
        offer(t, "the columns are shifted: column i of A is column i%+ld of B",
              2 * by[k] > e->width ? (long)by[k] - (long)e->width : (long)by[k]);
    }
}

/* In the last `part` columns of each `block`: h[to] = b[from]. */
static void permute(struct attempt *t, size_t block, size_t part, size_t (*from)(size_t i, size_t part))
{
    const struct explain_rows *e = t->e;
    start(t);
    for (size_t k = 0; k < e->rows * e->width; k += block)
        for (size_t i = 0; i < part; i++)
            t->h[k + block - part + i] = e->b[k + block - part + from(i, part)];
}

static size_t to_halves(size_t i, size_t n) { return i < n / 2 ? 2 * i : 2 * (i - n / 2) + 1; }
static size_t to_pairs(size_t i, size_t n) { return i / 2 + i % 2 * (n / 2); }
static size_t swapped(size_t i, size_t n) { return (i + n / 2) % n; }

static void try_halves(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    size_t block = e->block ? e->block : e->width;
    if (e->rope && e->rope % 2 == 0 && e->width % block == 0) {
        permute(t, block, e->rope, to_halves);
        offer(t, "A stores the RoPE dimensions as two halves, B as pairs");
        permute(t, block, e->rope, to_pairs);
        offer(t, "A stores the RoPE dimensions as pairs, B as two halves");
        permute(t, block, e->rope, swapped);
        offer(t, "the halves of the RoPE dimensions are swapped");
    }
    if (e->width % 2 == 0) {
        permute(t, e->width, e->width, swapped);
        offer(t, "the two halves of the row are swapped");
    }
    if (block % 2 == 0 && block < e->width && e->width % block == 0) {
        permute(t, block, block, swapped);
        offer(t, "the two halves of each %s are swapped", e->block_name);
    }
}

struct turn { double c, s; };

/* The rotation of the pair at b[k], b[k + 1]. Rounding makes it a bit longer or shorter. */
static struct turn turn_at(const struct explain_rows *e, size_t k)
{
    const double *x = e->before_b + k, *y = e->b + k;
    double m = x[0] * x[0] + x[1] * x[1];
    return (struct turn){(x[0] * y[0] + x[1] * y[1]) / m, (x[0] * y[1] - x[1] * y[0]) / m};
}

static void turn(double out[2], const double in[2], struct turn by)
{
    out[0] = by.c * in[0] - by.s * in[1];
    out[1] = by.s * in[0] + by.c * in[1];
}

/* The angle of each pair is that between before_b and b. With it, turns the numbers p and p + rope / 2 of before_a.
 * paired: A is a dump that stores halves, whose numbers were brought into pairs before the comparison. */
static void try_turning_halves(struct attempt *t, int paired)
{
    const struct explain_rows *e = t->e;
    size_t n = e->rope;
    for (size_t k = 0; k < e->rows * e->width; k += n)
        for (size_t p = 0; p < n / 2; p++) {
            double out[2], in[2] = {e->before_a[k + p], e->before_a[k + p + n / 2]};
            turn(out, in, turn_at(e, k + 2 * p));
            t->h[k + (paired ? 2 * p : p)] = out[0];
            t->h[k + (paired ? 2 * p + 1 : p + n / 2)] = out[1];
        }
    offer(t, "A turns halves (columns p and p + %zu) where B turns pairs (columns 2p and 2p + 1)", n / 2);
}

static void try_turning(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    if (!e->before_a || !e->before_b || e->rope % 2 || !e->rope || e->width % e->rope)
        return;
    try_turning_halves(t, 0);
    try_turning_halves(t, 1);
    memcpy(t->h, e->before_a, e->rows * e->width * sizeof *t->h);
    offer(t, "A is not turned: it is the vector before RoPE");
    for (size_t k = 0; k < e->rows * e->width; k += 2) {
        struct turn by = turn_at(e, k);
        turn(t->h + k, e->before_a + k, (struct turn){by.c, -by.s});
    }
    offer(t, "A is turned in the other direction");
    for (int by = -1; by <= 1; by += 2) {
        for (size_t k = 0; k < e->rows * e->width; k += 2)
            if (is_neighbour(e, k / e->width, by))
                turn(t->h + k, e->before_a + k, turn_at(e, by < 0 ? k - e->width : k + e->width));
        if (have_neighbours(t, by))
            offer(t, "the positions are shifted by one: A turns row i by the angle of row i%+d", by);
    }
}

/* The block of b that is nearest to block i of a, in the rows that are off. */
static size_t nearest_block(const struct attempt *t, size_t i, size_t blocks)
{
    const struct explain_rows *e = t->e;
    double least = INFINITY;
    size_t best = i;
    for (size_t j = 0; j < blocks; j++) {
        double d = 0;
        for (size_t r = 0; r < e->rows && d < least; r++)
            for (size_t c = 0; c < e->block && t->off[r]; c++) {
                double x = e->a[r * e->width + i * e->block + c] - e->b[r * e->width + j * e->block + c];
                d += x * x;
            }
        if (d < least) {
            least = d;
            best = j;
        }
    }
    return best;
}

static void try_blocks(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    size_t blocks = e->block && e->width % e->block == 0 ? e->width / e->block : 0, told = 0, from[MOST_BLOCKS];
    char list[160] = "";
    if (blocks < 2 || blocks > MOST_BLOCKS)
        return;
    start(t);
    for (size_t i = 0; i < blocks; i++)
        from[i] = nearest_block(t, i, blocks);
    for (size_t i = 0; i < blocks; i++)
        for (size_t r = 0; r < e->rows; r++)
            memcpy(t->h + r * e->width + i * e->block, e->b + r * e->width + from[i] * e->block,
                   e->block * sizeof *t->h);
    for (size_t i = 0; i < blocks; i++)
        if (from[i] != i && told++ < 4)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s %zu of A is %s %zu of B",
                     told > 1 ? ", " : "", e->block_name, i, e->block_name, from[i]);
    if (told)
        offer(t, "the %ss are in another order: %s%s", e->block_name, list, told > 4 ? ", ..." : "");
}

/* --- linear layers --- */

static void try_transposed(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    const struct explain_matrix *m = e->matrix;
    memset(t->h, 0, e->rows * e->width * sizeof *t->h);
    for (size_t r = 0; r < e->rows; r++)
        for (size_t k = 0; k < m->inputs; k++)
            for (size_t i = 0; i < e->width; i++)
                t->h[r * e->width + i] += m->weights[k * e->width + i] * m->x[r * m->inputs + k];
    offer(t,
          m->inputs == e->width ? "the matrix is transposed"
                                : "the matrix is transposed: its numbers are read as [%zu, %zu]",
          m->inputs, e->width);
}

/* Adds `times` the part of W x that the inputs [first, end) make. */
static void add_part(struct attempt *t, size_t first, size_t end, double times)
{
    const struct explain_rows *e = t->e;
    const struct explain_matrix *m = e->matrix;
    for (size_t r = 0; r < e->rows; r++)
        for (size_t i = 0; i < e->width && t->off[r]; i++)
            for (size_t k = first; k < end; k++)
                t->h[r * e->width + i] += times * m->weights[i * m->inputs + k] * m->x[r * m->inputs + k];
}

static void try_shards(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    size_t inputs = e->matrix->inputs;
    if (inputs % 2 == 0) {
        memset(t->h, 0, e->rows * e->width * sizeof *t->h);
        for (size_t k = 0; k < e->rows * e->width; k++)
            for (size_t i = 0; i < inputs; i++)
                t->h[k] += e->matrix->weights[k % e->width * inputs + i] *
                           e->matrix->x[k / e->width * inputs + (i + inputs / 2) % inputs];
        offer(t, "the two halves of the input are swapped");
    }
    for (size_t n = 2; n <= MOST_SHARDS; n++)
        for (size_t k = 0; k < n && inputs % n == 0; k++) {
            start(t);
            add_part(t, k * inputs / n, (k + 1) * inputs / n, -1);
            offer(t, "shard %zu of %zu is missing: the inputs %zu to %zu", k, n, k * inputs / n,
                  (k + 1) * inputs / n - 1);
            start(t);
            add_part(t, k * inputs / n, (k + 1) * inputs / n, 1);
            offer(t, "shard %zu of %zu is added twice: the inputs %zu to %zu", k, n, k * inputs / n,
                  (k + 1) * inputs / n - 1);
        }
}

static void try_candidates(struct attempt *t)
{
    const struct explain_rows *e = t->e;
    char name[EXPLAIN_NAME];
    const double *h;
    for (size_t i = 0; e->candidate && (h = e->candidate(e->context, i, name)); i++)
        if (*name) {
            memcpy(t->h, h, e->rows * e->width * sizeof *t->h);
            offer(t, "%s", name);
        }
}

int explain_why(const struct explain_rows *e, char text[EXPLAIN_ROOM])
{
    struct attempt t = {.e = e, .text = text};
    size_t n = e->rows * e->width;
    t.off = cli_must(malloc(e->rows + 1));
    t.off_column = cli_must(malloc(e->width + 1));
    t.h = cli_must(malloc((n + 1) * sizeof *t.h));
    *text = '\0';
    if (find_off(e, t.off, t.off_column)) {
        double difference = 0, square = 0;
        for (size_t k = 0; k < n; k++) {
            difference += t.off[k / e->width] ? (e->a[k] - e->b[k]) * (e->a[k] - e->b[k]) : 0;
            square += t.off[k / e->width] ? e->a[k] * e->a[k] : 0;
        }
        /* if A is much smaller than B, almost nothing is left by what makes B small, whatever A is */
        t.least = 2 * EXPLAIN_LEAVES * (square > 0 && square < difference ? square : difference);
        try_factors(&t);
        try_rows(&t);
        try_blocks(&t);
        try_halves(&t);
        try_columns(&t);
        try_turning(&t);
        try_candidates(&t);
        if (e->matrix) {
            try_transposed(&t);
            try_shards(&t);
        }
    }
    free(t.off);
    free(t.off_column);
    free(t.h);
    return *text != '\0';
}
