/* tools/diff/read_stats.c -- reads a file that `dump --stats` has written (tools/dump/stats.h). Files are not
 * trusted. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/diff/read.h"
#include "tools/dump/stats.h"

/* Opens a regular file; NULL if there is none. */
static FILE *open_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd >= 0 ? cli_must(fdopen(fd, "rb")) : NULL;
}

/* Reads the first bytes only: a dump of tensors is one very long line, or none. */
int diff_is_stats(const char *path)
{
    char begin[256] = "";
    FILE *f = open_file(path);
    size_t n = f ? fread(begin, 1, sizeof begin - 1, f) : 0;
    if (f)
        fclose(f);
    begin[n] = '\0';
    begin[strcspn(begin, "\n")] = '\0';
    return begin[0] == '{' && strstr(begin, "\"format\"") && strstr(begin, "\"verbatim-stats\"");
}

/* The finite number in item i of a list; NAN if there is none. */
static double real_at(const json_t *line, const char *key, size_t i)
{
    const json_t *x = json_array_get(json_object_get(line, key), i);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

/* How many numbers of a row are of a kind, by the list `key`; -1 if the list is wrong. */
static json_int_t count_at(const json_t *line, const char *key, size_t i, size_t width)
{
    const json_t *list = json_object_get(line, key), *x = json_array_get(list, i);
    if (!list)
        return 0;
    return json_is_integer(x) && json_integer_value(x) >= 0 && (size_t)json_integer_value(x) <= width
               ? json_integer_value(x)
               : -1;
}

static const char *row_fault(const json_t *line, size_t i, size_t width, struct stats_row *s)
{
    const json_t *projections = json_array_get(json_object_get(line, "projections"), i),
                 *top = json_array_get(json_object_get(line, "top"), i);
    json_int_t nans = count_at(line, "nan", i, width), infinities = count_at(line, "inf", i, width);
    double sum = 0;
    *s = (struct stats_row){.min = real_at(line, "min", i), .max = real_at(line, "max", i),
                            .mean = real_at(line, "mean", i), .rms = real_at(line, "rms", i),
                            .has_top = json_array_size(top) == 4};
    for (size_t p = 0; p < STATS_PROJECTIONS; p++) {
        const json_t *x = json_array_get(projections, p);
        s->projection[p] = json_is_number(x) ? json_number_value(x) : NAN;
        sum += fabs(s->projection[p]);
    }
    for (size_t k = 0; k < 4 && s->has_top; k++) {
        const json_t *x = json_array_get(top, k);
        s->top[k] = json_is_number(x) && (k % 2 || json_is_integer(x)) ? json_number_value(x) : NAN;
        sum += fabs(s->top[k]);
    }
    if (json_array_size(projections) != STATS_PROJECTIONS || !isfinite(s->min) || !isfinite(s->max) ||
        !isfinite(s->mean) || !(s->rms >= 0) || !isfinite(s->rms + sum) || nans < 0 || infinities < 0 ||
        s->min > s->max)
        return "min, max, mean, rms, projections, nan, inf or top of a row is missing or no number";
    s->nans = (size_t)nans;
    s->infinities = (size_t)infinities;
    return NULL;
}

static const char *hash_fault(const json_t *line, size_t i, char sha256[17])
{
    const char *text = json_string_value(json_array_get(json_object_get(line, "row_sha256"), i));
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return "row_sha256 of a row is missing, or not 16 hexadecimal digits";
    strcpy(sha256, text);
    return NULL;
}

/* Copies `values` to data, in the dtype of the tensor. */
static const char *values_fault(const json_t *line, enum diff_dtype dtype, size_t item, size_t rows, size_t width,
                                char *data)
{
    for (size_t r = 0; r < rows; r++) {
        const json_t *row = json_array_get(json_object_get(line, "values"), r);
        if (!json_is_array(row) || json_array_size(row) != width)
            return "values has a row of another length";
        for (size_t i = 0; i < width; i++, data += item) {
            const json_t *x = json_array_get(row, i);
            const char *text = json_is_string(x) ? json_string_value(x) : "";
            double number = !strcmp(text, "NaN") ? NAN : !strcmp(text, "Infinity") ? INFINITY : -INFINITY;
            if ((!json_is_number(x) && strcmp(text, "NaN") && strcmp(text, "Infinity") && strcmp(text, "-Infinity")) ||
                (dtype == DIFF_INTEGERS && !json_is_integer(x)))
                return "values has something that is no number";
            number = json_is_number(x) ? json_number_value(x) : number;
            json_int_t whole = json_integer_value(x);
            if (dtype == DIFF_INTEGERS && item == 4 && (whole > INT32_MAX || whole < INT32_MIN))
                return "values has an integer beyond 32 bits";
            uint64_t bits = dtype == DIFF_INTEGERS ? (uint64_t)whole : diff_bits(dtype, diff_round(dtype, number));
            memcpy(data, &bits, item);
        }
    }
    return NULL;
}

/* Fills the entry from `shape` and `dtype`. */
static const char *shape_fault(const json_t *line, struct diff_entry *e, enum diff_dtype *dtype, size_t *item,
                               size_t *width)
{
    const json_t *shape = json_object_get(line, "shape");
    const char *name = json_string_value(json_object_get(line, "dtype"));
    *item = name ? diff_dtype_of(name, dtype) : 0;
    e->name = json_string_value(json_object_get(line, "tensor"));
    e->dtype_name = name;
    e->ndim = (int)json_array_size(shape);
    *width = 1;
    if (!*item)
        return "dtype is missing, or unknown";
    if (e->ndim < 1 || e->ndim > VB_TENSOR_DIMS)
        return "shape is missing, or has too many numbers";
    for (int d = 0; d < e->ndim; d++) {
        const json_t *n = json_array_get(shape, (size_t)d);
        if (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > 1 << 24 || *width > 1 << 24)
            return "shape has a number that is not from 1 to 16777216";
        e->shape[d] = json_integer_value(n);
        *width *= d ? (size_t)e->shape[d] : 1;
    }
    return *width > 1 << 24 ? "the rows are too wide" : NULL;
}

static const char *tensor_fault(struct diff_reader *r, const json_t *line, struct diff_entry *e)
{
    enum diff_dtype dtype = DIFF_F32;
    size_t item = 0, width = 0;
    const char *fault = diff_line_fault(line, NULL);
    fault = fault ? fault : shape_fault(line, e, &dtype, &item, &width);
    if (!fault && (json_object_get(line, "rows") || json_object_get(line, "row_dims")))
        fault = "statistics have no rows and row_dims: every row is listed";
    fault = fault ? fault : diff_line_fault(line, e); /* sequence, token and index have as many items as there are
                                                         rows */
    if (fault)
        return fault;
    size_t rows = (size_t)e->shape[0];
    if (json_object_get(line, "values")) {
        if (width > 1 << 16)
            return "values has rows that are too wide";
        e->data = diff_own(r->side, cli_must(calloc(rows * width, item)));
        return values_fault(line, dtype, item, rows, width, (char *)(uintptr_t)e->data);
    }
    struct stats_row *stats = diff_own(r->side, cli_must(calloc(rows, sizeof *stats)));
    e->stats = stats;
    for (size_t i = 0; i < rows && !fault; i++) {
        fault = row_fault(line, i, width, &stats[i]);
        fault = fault ? fault : hash_fault(line, i, stats[i].sha256);
    }
    return fault;
}

static int read_line(struct diff_reader *r, const json_t *line, size_t number)
{
    struct diff_entry e = {0};
    const char *fault = json_is_object(line) ? NULL : "it is not a JSON object: is the file cut short?";
    if (!fault && number == 1)
        fault = json_integer_value(json_object_get(line, "version")) == 1 ? NULL : "version is not 1";
    else if (!fault)
        fault = tensor_fault(r, line, &e);
    if (fault)
        return cli_fail(r->c, EXIT_OTHER, "%s: line %zu: %s", r->path, number, fault);
    return number == 1 ? EXIT_DONE : diff_take_line(r, &e, line);
}

int diff_read_stats(struct diff_reader *r)
{
    char *text = NULL;
    size_t room = 0, number = 0;
    int code = EXIT_DONE;
    FILE *f = open_file(r->path);
    r->side->has_manifest = r->side->is_stats = 1;
    for (ssize_t n; f && code == EXIT_DONE && (n = getline(&text, &room, f)) > 0;) {
        struct json_trouble why;
        json_t *line = json_load_any_number(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
        code = read_line(r, line, ++number);
        json_decref(line);
    }
    if (f)
        fclose(f);
    free(text);
    return code == EXIT_DONE && number < 2 ? cli_fail(r->c, EXIT_OTHER, "%s: it lists no tensor", r->path) : code;
}
