/* tools/dump/file.c -- collects the rows of a pass by name. For each name, writes a tensor and a line of the
 * manifest. */
#include "tools/cli/filter.h"
#include "tools/dump/dump.h"
#include "tools/dump/stats.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dump_tensor {
    struct dump_tensor *next, *previous;
    char *name;
    int32_t layer, depth;
    /* inner: the largest number of columns so far (scores of tokens have more columns from row to row) */
    size_t rows, room, outer, inner;
    enum dump_dtype dtype;
    vb_tap_row *row;
    size_t *width;                   /* the number of columns of each row */
    char *data;                      /* the numbers of all rows, without padding */
    size_t size, data_room;
};

static const size_t dtype_size[] = {4, 8, 4};
static const char *const dtype_name[] = {"F32", "F64", "I32"};

static void split_globs(struct dump *d, const char *taps)
{
    for (const char *p = taps; p && *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        d->globs = cli_must(realloc(d->globs, (d->glob_count + 1) * sizeof *d->globs));
        d->matched = cli_must(realloc(d->matched, (d->glob_count + 1) * sizeof *d->matched));
        d->globs[d->glob_count] = cli_must(strndup(p, strcspn(p, ",")));
        d->matched[d->glob_count++] = 0;
    }
}

/* Begins a file of statistics: there is only one file. */
static int begin_stats(struct dump *d, const char *path)
{
    size_t length = strlen(path);
    d->stats = 1;
    d->path = cli_must(strdup(path));
    d->manifest_path = cli_must(strdup(path));
    if (length < 7 || strcmp(path + length - 6, ".jsonl"))
        return cli_fail(d->c, EXIT_USAGE, "--stats writes JSON lines, and -o is %s: wanted a name that ends in .jsonl",
                        path);
    return EXIT_DONE;
}

/* Finds the paths of the two files. If the directory for them does not exist yet, sets d->directory to its path. */
static void find_paths(struct dump *d, const char *path)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(path), n = sizeof suffix - 1;
    struct stat st;
    int is_file = length > n && !strcmp(path + length - n, suffix);
    while (!is_file && length > 1 && path[length - 1] == '/')
        length--;
    d->path = cli_must(malloc(length + 32));
    sprintf(d->path, is_file ? "%.*s" : "%.*s/dump%s", (int)length, path, suffix);
    size_t stem = strlen(d->path) - n;
    d->manifest_path = cli_must(malloc(stem + 8));
    sprintf(d->manifest_path, "%.*s.jsonl", (int)stem, d->path);
    if (!is_file && stat(path, &st))
        d->directory = cli_must(strndup(path, length));
}

static void add_line(struct dump *d, json_t *line, size_t flags)
{
    char *text = cli_must(json_dumps(line, JSON_COMPACT | flags));
    d->manifest_size += (size_t)fprintf(d->manifest.f, "%s\n", text);
    free(text);
    json_decref(line);
}

int dump_begin(const struct cli *c, struct dump *d, const char *path, const char *taps)
{
    *d = (struct dump){.c = c, .pass = (uint64_t)-1, .named = cli_must(json_object()), .tensors.data.fd = -1,
                       .manifest.fd = -1};
    int code = EXIT_DONE, stats = c->stats && c->command->takes & TAKES_TAPS;
    split_globs(d, taps);
    if (stats)
        code = begin_stats(d, path);
    else
        find_paths(d, path);
    const char *beside = d->directory ? d->directory : d->path;
    code = code == EXIT_DONE ? cli_check_file(c, "-o", d->path) : code;
    if (code == EXIT_DONE)
        code = cli_check_file(c, "-o", d->manifest_path);
    int error = code == EXIT_DONE ? tensors_begin(&d->tensors, beside) : 0, fd = -1;
    if (code == EXIT_DONE && !error && (fd = new_file_without_name(beside, NULL)) < 0)
        error = errno;
    if (error)
        code = cli_fail(c, EXIT_OTHER, "%s: %s", d->path, strerror(error));
    if (code != EXIT_DONE)
        dump_abandon(d);
    else
        cli_must(cli_stream_open(&d->manifest, fd));
    if (code == EXIT_DONE && stats)
        add_line(d, json_pack("{s:s,s:i}", "format", "verbatim-stats", "version", 1), 0);
    return code;
}

int dump_wants_scores(const struct dump *d, int layers, int heads)
{
    char name[80];
    for (size_t i = 0; i < d->glob_count; i++)
        for (int n = 0; n < layers * heads; n++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.scores.%d", n / heads, n % heads);
            if (!fnmatch(d->globs[i], name, 0))
                return 1;
            snprintf(name, sizeof name, "model.layers.%d.self_attn.indexer.scores", n / heads);
            if (!fnmatch(d->globs[i], name, 0))
                return 1;
        }
    return 0;
}

static int wanted(struct dump *d, const char *name)
{
    int any = d->glob_count == 0;
    if (d->no_attention_scores && strstr(name, ".self_attn.scores."))
        return 0;
    for (size_t i = 0; i < d->glob_count; i++)
        if (!fnmatch(d->globs[i], name, 0))
            d->matched[i] = any = 1;
    return any;
}

/* --- one pass --- */

static void free_tensor(struct dump_tensor *t)
{
    free(t->name);
    free(t->row);
    free(t->width);
    free(t->data);
    free(t);
}

/* Pads all rows to the same width: with -infinity, the score of a masked token, or with token -1. */
static void pad(struct dump_tensor *t)
{
    size_t size = dtype_size[t->dtype], row = t->outer * t->inner * size;
    char *padded = cli_must(malloc(t->rows * row + 1)), *from = t->data;
    for (size_t r = 0; r < t->rows; r++) {
        memcpy(padded + r * row, from, t->width[r] * size);
        from += t->width[r] * size;
        for (size_t i = t->width[r]; i < t->inner; i++) {
            if (t->dtype == DUMP_F64)
                ((double *)(void *)(padded + r * row))[i] = -INFINITY;
            else if (t->dtype == DUMP_I32)
                ((int32_t *)(void *)(padded + r * row))[i] = -1;
            else
                ((float *)(void *)(padded + r * row))[i] = -INFINITY;
        }
    }
    free(t->data);
    t->data = padded;
    t->size = t->rows * row;
}

static json_t *accepted(const struct dump *d, const struct dump_tensor *t, const vb_tap_row *row)
{
    if (t->depth >= 0 || row->draft == 0)
        return json_null();
    for (size_t i = 0; i < d->emitted_count; i++)
        if (d->emitted[i].index == (size_t)row->index && d->emitted[i].draft == row->draft)
            return json_true();
    return json_false();
}

/* Returns the decoding step to which values of this depth belong now. A pass of a module makes drafts for the next step
 * of the target. */
static int64_t step_of(const struct dump *d, int32_t depth)
{
    return d->step + (depth >= 0 && d->prompt_done && d->decodes);
}

static json_t *manifest_line(const struct dump *d, const struct dump_tensor *t, const char *key)
{
    char digest[SHA256_DIGEST_STRING_LENGTH];
    json_t *lists[8], *shape = json_array(), *line;
    const char *last = strrchr(t->name, '.');
    int has_rope = !strcmp(last, ".q_rope") || !strcmp(last, ".k_rope") ||
                   strstr(t->name, "kv_a_proj_with_mqa.output") || strstr(t->name, "q_b_proj.output") ||
                   strstr(t->name, "q_proj.output");
    for (size_t i = 0; i < 8; i++)
        lists[i] = json_array();
    for (size_t r = 0; r < t->rows; r++) {
        const vb_tap_row *row = &t->row[r];
        int32_t numbers[] = {row->sequence, row->token, row->index, row->position, row->slot, row->draft};
        for (size_t i = 0; i < 6; i++)
            json_array_append_new(lists[i], json_integer(numbers[i]));
        json_array_append_new(lists[6], accepted(d, t, row));
        json_array_append_new(lists[7], row->draft > 0 && t->depth < 0 ? json_integer(row->parent) : json_null());
    }
    json_array_append_new(shape, json_integer((json_int_t)t->rows));
    if (t->outer > 1)
        json_array_append_new(shape, json_integer((json_int_t)t->outer));
    json_array_append_new(shape, json_integer((json_int_t)t->inner));
    int hashed = !d->no_hashes && !d->stats; /* statistics have a hash of each row */
    if (hashed)
        SHA256Data((const uint8_t *)t->data, t->size, digest);
    line = json_pack("{s:s,s:s,s:o,s:o,s:I,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s,s:o,s:o*}", "tensor", key,
                     "name", t->name, "layer", t->layer < 0 ? json_null() : json_integer(t->layer), "mtp_depth",
                     t->depth < 0 ? json_null() : json_integer(t->depth), "step", (json_int_t)step_of(d, t->depth),
                     "pass", (json_int_t)d->pass, "sequence", lists[0], "token", lists[1], "index", lists[2],
                     "position", lists[3], "slot", lists[4], "draft", lists[5], "accepted", lists[6], "parent",
                     lists[7], "shape", shape, "dtype", dtype_name[t->dtype], "layout",
                     has_rope ? json_string(d->layout) : json_null(), "sha256", hashed ? json_string(digest) : NULL);
    return cli_must(line);
}

/* Finds the name of a tensor in the file. If --names gives the same name to two values, sets d->error, because one of
 * the values would be lost. */
static void name_of(struct dump *d, const struct dump_tensor *t, char name[NAMING_ROOM])
{
    snprintf(name, NAMING_ROOM, "%s", t->name);
    if (!d->naming)
        return;
    naming_to(d->naming, t->name, d->layers, name);
    const char *before = json_string_value(json_object_get(d->named, name));
    if (before && strcmp(before, t->name) && !d->error[0])
        snprintf(d->error, sizeof d->error, "--names: %s and %s would both be %s", before, t->name, name);
    json_object_set_new(d->named, name, json_string(t->name));
}

static int is_logits(const char *name)
{
    return strstr(name, "lm_head.output") || strstr(name, "shared_head.head.output");
}

/* Removes what `diff` does not read, to keep the file small. */
static void shorten(const struct dump_tensor *t, json_t *line)
{
    static const char *const unread[] = {"position", "slot", "parent", "draft", "accepted"};
    int drafts = 0;
    for (size_t r = 0; r < t->rows; r++)
        drafts |= t->row[r].draft != 0;
    for (size_t i = 0; i < (drafts ? 3 : 5); i++)
        json_object_del(line, unread[i]);
}

/* Writes the statistics of a tensor, with as many digits as they need: whole rows of F32 are read back exactly with
 * 9. */
static void add_stats(struct dump *d, const struct dump_tensor *t, const char *key)
{
    size_t width = t->outer * t->inner, n = t->rows * width;
    double *x = cli_must(malloc((n + 1) * sizeof *x));
    for (size_t i = 0; i < n; i++)
        x[i] = t->dtype == DUMP_F64   ? ((const double *)(const void *)t->data)[i]
               : t->dtype == DUMP_F32 ? (double)((const float *)(const void *)t->data)[i]
                                      : ((const int32_t *)(const void *)t->data)[i];
    json_t *line = manifest_line(d, t, key);
    shorten(t, line);
    stats_add(line, x, t->data, t->rows, width, dtype_size[t->dtype], t->dtype == DUMP_I32, is_logits(t->name));
    add_line(d, line, JSON_REAL_PRECISION(t->dtype != DUMP_F64 ? 9 : width <= STATS_WHOLE ? 17 : 12));
    json_object_set_new(d->tensors.names, key, json_true());
    free(x);
}

/* Writes all tensors of a pass. In the first pass that has the tensor, its name in the file is the plain name; in later
 * passes it is NAME@PASS. */
static void flush(struct dump *d)
{
    for (struct dump_tensor *t = d->first, *next; t; t = next) {
        size_t shape[3] = {t->rows, t->outer, t->inner}, rank = 3;
        char name[NAMING_ROOM], key[NAMING_ROOM + 32];
        next = t->next;
        name_of(d, t, name);
        strcpy(key, name);
        if (json_object_get(d->tensors.names, key))
            sprintf(key, "%s@%llu", name, (unsigned long long)d->pass);
        if (t->size != t->rows * t->outer * t->inner * dtype_size[t->dtype])
            pad(t);
        if (t->outer == 1) {
            shape[1] = t->inner;
            rank = 2;
        }
        if (d->stats) {
            add_stats(d, t, key);
        } else {
            tensors_add(&d->tensors, key, dtype_name[t->dtype], shape, rank, t->data, t->size);
            add_line(d, manifest_line(d, t, key), 0);
        }
        if ((d->tensors.data.error || d->manifest.error) && !d->error[0])
            snprintf(d->error, sizeof d->error, "%s: %s", d->path,
                     strerror(d->tensors.data.error ? d->tensors.data.error : d->manifest.error));
        free_tensor(t);
        d->tensor_count++;
    }
    d->first = d->last = NULL;
    d->emitted_count = 0;
}

static void begin_pass(struct dump *d, const struct dump_rows *r)
{
    flush(d);
    d->pass = r->pass;
    if (r->depth >= 0)
        return;
    if (d->prompt_done)
        d->step++;
    else if ((size_t)r->row[r->rows - 1].index + 1 == d->prompt)
        d->prompt_done = 1;
}

/* Finds the tensor of these rows, or adds one. The search begins with the newest tensor, because the rows of one name
 * come in calls that follow each other closely. */
static struct dump_tensor *tensor_of(struct dump *d, const struct dump_rows *r)
{
    for (struct dump_tensor *t = d->last; t; t = t->previous)
        if (!strcmp(t->name, r->name))
            return t;
    struct dump_tensor *t = cli_must(calloc(1, sizeof *t));
    t->name = cli_must(strdup(r->name));
    t->layer = r->layer;
    t->depth = r->depth;
    t->outer = r->outer;
    t->dtype = r->dtype;
    t->previous = d->last;
    if (d->last)
        d->last->next = t;
    else
        d->first = t;
    d->last = t;
    return t;
}

void dump_rows(struct dump *d, const struct dump_rows *r)
{
    if (r->pass != d->pass)
        begin_pass(d, r);
    if (!filter_has(d->c->layers, r->layer) || !filter_has(d->c->steps, step_of(d, r->depth)) || !wanted(d, r->name))
        return;
    struct dump_tensor *t = tensor_of(d, r);
    size_t size = dtype_size[r->dtype], bytes = r->rows * r->outer * r->inner * size;
    if (t->rows + r->rows > t->room) {
        t->room = 2 * t->room + r->rows;
        t->row = cli_must(realloc(t->row, t->room * sizeof *t->row));
        t->width = cli_must(realloc(t->width, t->room * sizeof *t->width));
    }
    if (t->size + bytes > t->data_room) {
        t->data_room = 2 * t->data_room + bytes;
        t->data = cli_must(realloc(t->data, t->data_room));
    }
    for (size_t i = 0; i < r->rows; i++)
        for (size_t o = 0; o < r->outer; o++, t->size += r->inner * size)
            memcpy(t->data + t->size, (const char *)r->data + (i * r->stride + o * r->outer_stride) * size,
                   r->inner * size);
    for (size_t i = 0; i < r->rows; i++, t->rows++) {
        t->row[t->rows] = r->row[i];
        t->width[t->rows] = r->outer * r->inner;
    }
    t->inner = t->inner > r->inner ? t->inner : r->inner;
}

void dump_emitted(struct dump *d, size_t index, int draft)
{
    if (d->emitted_count < sizeof d->emitted / sizeof *d->emitted)
        d->emitted[d->emitted_count++] = (struct dump_emitted){index, draft};
}

static int check_globs(const struct dump *d)
{
    for (size_t i = 0; i < d->glob_count; i++)
        if (!d->matched[i])
            return cli_fail(d->c, EXIT_USAGE,
                            "--taps %s: no intermediate value has such a name; docs/ORACLE.md lists them", d->globs[i]);
    if (!d->tensor_count && (d->c->layers || d->c->steps))
        return cli_fail(d->c, EXIT_USAGE, "--layers, --steps and --taps leave no value to write");
    return EXIT_DONE;
}

static int write_stats(struct dump *d)
{
    struct cli_file file;
    if (!cli_file_begin(d->c, &file, d->path))
        return EXIT_OTHER;
    vb_error err;
    int error = cli_stream_copy(&d->manifest, file.stream.f, d->manifest_size, NULL);
    return cli_file_end(d->c, &file, error ? (vb_fail(&err, VB_IO, "%s: %s", d->path, strerror(error)), &err) : NULL);
}

/* Writes both files. Neither file gets its name before both are complete. In the end, both files exist, or neither
 * does. */
static int write_both(struct dump *d)
{
    const struct cli *c = d->c;
    struct cli_file file, manifest;
    vb_error err;
    if (!cli_file_begin(c, &file, d->path))
        return EXIT_OTHER;
    if (!cli_file_begin(c, &manifest, d->manifest_path)) {
        cli_file_drop(&file);
        return EXIT_OTHER;
    }
    int failed = tensors_write(&d->tensors, file.stream.fd, d->path, &err);
    int error = failed ? 0 : cli_stream_copy(&d->manifest, manifest.stream.f, d->manifest_size, NULL);
    if (error)
        failed = vb_fail(&err, VB_IO, "%s: %s", d->path, strerror(error));
    int code = failed ? cli_file_end(c, &file, &err) : cli_file_name(c, &file);
    if (code != EXIT_DONE) {
        cli_file_drop(&manifest);
        return code;
    }
    code = cli_file_end(c, &manifest, NULL);
    if (code != EXIT_DONE)
        cli_file_drop(&file);
    return code == EXIT_DONE ? cli_file_end(c, &file, NULL) : code;
}

int dump_end(struct dump *d, size_t *tensors)
{
    int made = 0;
    flush(d);
    *tensors = d->tensor_count;
    int code = d->error[0] ? cli_fail(d->c, EXIT_OTHER, "%s", d->error) : check_globs(d);
    if (code == EXIT_DONE && d->directory && !(made = !mkdir(d->directory, 0777)) && errno != EEXIST)
        code = cli_fail(d->c, EXIT_OTHER, "%s: %s", d->directory, strerror(errno));
    if (code == EXIT_DONE)
        code = d->stats ? write_stats(d) : write_both(d);
    if (code != EXIT_DONE && made)
        rmdir(d->directory);
    dump_abandon(d);
    return code;
}

void dump_abandon(struct dump *d)
{
    for (struct dump_tensor *t = d->first, *next; t; t = next) {
        next = t->next;
        free_tensor(t);
    }
    cli_stream_close(&d->manifest);
    if (d->manifest.fd >= 0)
        close(d->manifest.fd);
    tensors_close(&d->tensors);
    for (size_t i = 0; i < d->glob_count; i++)
        free(d->globs[i]);
    free(d->globs);
    free(d->matched);
    json_decref(d->named);
    free(d->path);
    free(d->manifest_path);
    free(d->directory);
    *d = (struct dump){.pass = (uint64_t)-1, .tensors.data.fd = -1, .manifest.fd = -1};
}
