/* tools/training/dumps.c -- --hidden-states: documents whose tokens and hidden states are in files
 * (tools/training/hidden.h). */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash64.h"
#include "tools/training/training.h"

#define PATH_SIZE 4096
#define MOST_COLUMNS 64

/* An open file. Row s of stream i begins at number (s * columns + column[i]) * d of tensor stream[i]. */
struct dump_file {
    const struct training *r;
    char path[PATH_SIZE];
    vb_tensors *tensors;
    vb_tensor stream[4];
    size_t columns, column[4], streams; /* streams: 0 before the trainer is open, so that only tokens are read */
    size_t count; /* tokens */
    int32_t *ids;
    int layers[4]; /* trainer_streams */
};

static size_t width_of(const struct dump_file *f) { return (size_t)vb_hidden_size(f->r->c->model); }

static int layers_of(const struct dump_file *f) { return f->r->c->model->config.num_hidden_layers; }

static int fail_file(const struct dump_file *f, const vb_error *err)
{
    return cli_fail(f->r->c, EXIT_OTHER, "%s", err->message);
}

static const char *shape_of(const vb_tensor *t, char text[96])
{
    size_t n = 0;
    for (int i = 0; i < t->ndim && n < 80; i++)
        n += (size_t)snprintf(text + n, 96 - n, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    return n ? text : "";
}

static int is_float(const vb_tensor *t)
{
    return !strcmp(t->dtype, "F32") || !strcmp(t->dtype, "BF16") || !strcmp(t->dtype, "F16");
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* --hidden-states-layers. Returns how many numbers there are, or 0, which is reported. */
static size_t read_layers(const struct cli *c, int column[MOST_COLUMNS])
{
    size_t n = 0;
    for (const char *p = c->train.hidden_layers; n < MOST_COLUMNS; p++) {
        char *end;
        long number = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || number < 0 || number > 100000)
            break;
        column[n++] = (int)number;
        if (!*end)
            return n;
        p = end;
    }
    cli_fail(c, EXIT_USAGE, "--hidden-states-layers is %.64s, wanted numbers of layers, separated by commas",
             c->train.hidden_layers);
    return 0;
}

/* The layers of the columns, as speculators asks vLLM for them: the last is the stream after all layers, and the others
 * are those that the part reads. -1: not known */
static void guess_layers(const struct dump_file *f, int column[MOST_COLUMNS])
{
    size_t n = f->streams, C = f->columns;
    int all = layers_of(f);
    for (size_t i = 0; i < C; i++)
        column[i] = -1;
    for (size_t i = 0; i < n && n > 1 && (C == n || (C == n + 1 && f->layers[n - 1] != all)); i++)
        column[i] = f->layers[i];
    if (C > n || n == 1)
        column[C - 1] = all;
}

static int find_columns(struct dump_file *f)
{
    const struct cli *c = f->r->c;
    int column[MOST_COLUMNS];
    if (f->columns > MOST_COLUMNS)
        return cli_fail(c, EXIT_OTHER, "%s: hidden_states has %zu layers, wanted at most %d", f->path, f->columns,
                        MOST_COLUMNS);
    guess_layers(f, column);
    size_t given = c->train.hidden_layers ? read_layers(c, column) : f->columns;
    if (!given)
        return EXIT_USAGE;
    if (given != f->columns)
        return cli_fail(c, EXIT_OTHER, "%s: hidden_states has %zu layers, and --hidden-states-layers names %zu",
                        f->path, f->columns, given);
    for (size_t i = 0; i < f->streams; i++) {
        size_t k = f->columns;
        while (k > 0 && column[k - 1] != f->layers[i])
            k--;
        if (!k)
            return cli_fail(c, EXIT_OTHER,
                            "%s: hidden_states has %zu layers, and none is known to be the residual stream before "
                            "layer %d (%d: after the last), which is "
                            "trained on: give --hidden-states-layers",
                            f->path, f->columns, f->layers[i], layers_of(f));
        f->column[i] = k - 1;
    }
    return EXIT_DONE;
}

/* ---- a file of vLLM's ExampleHiddenStatesConnector --------------------------------------------------------------- */

static int read_ids(struct dump_file *f)
{
    vb_tensor t;
    if (!vb_tensors_find(f->tensors, "token_ids", &t))
        return cli_fail(f->r->c, EXIT_OTHER, "%s: it has hidden_states, but no token_ids", f->path);
    size_t size = !strcmp(t.dtype, "I64") ? 8 : !strcmp(t.dtype, "I32") ? 4 : 0;
    if (!size || t.ndim != 1)
        return cli_fail(f->r->c, EXIT_OTHER, "%s: token_ids is %s with %d dimensions, wanted I64 or I32 with one",
                        f->path, t.dtype, (int)t.ndim);
    if (t.bytes / size != f->count)
        return cli_fail(f->r->c, EXIT_OTHER, "%s: token_ids has %zu tokens, and hidden_states %zu rows", f->path,
                        t.bytes / size, f->count);
    for (size_t i = 0; i < f->count; i++) {
        int64_t id = 0;
        int32_t small;
        memcpy(size == 8 ? (void *)&id : (void *)&small, (const char *)t.data + i * size, size);
        id = size == 8 ? id : small;
        f->ids[i] = id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
    }
    return EXIT_DONE;
}

static int open_vllm(struct dump_file *f, const vb_tensor *t)
{
    char shape[96];
    int last = t->ndim - 1;
    if (!is_float(t))
        return cli_fail(f->r->c, EXIT_OTHER, "%s: hidden_states is %s, wanted F32, BF16 or F16", f->path, t->dtype);
    if (last < 1 || last > 2 || t->shape[last] != vb_hidden_size(f->r->c->model) || t->shape[1] < 1)
        return cli_fail(f->r->c, EXIT_OTHER, "%s: hidden_states is [%s], wanted [tokens, layers, %d]", f->path,
                        shape_of(t, shape), vb_hidden_size(f->r->c->model));
    f->columns = last == 2 ? (size_t)t->shape[1] : 1;
    f->count = (size_t)t->shape[0];
    f->ids = cli_must(malloc((f->count + 1) * sizeof *f->ids));
    for (size_t i = 0; i < f->streams; i++)
        f->stream[i] = *t;
    int code = read_ids(f);
    return code == EXIT_DONE && f->streams ? find_columns(f) : code;
}

/* ---- a file of `dump` -------------------------------------------------------------------------------------------- */

/* The tokens of the rows of a tensor, from the manifest beside the file. */
static int read_manifest(struct dump_file *f, const char *tensor)
{
    char path[PATH_SIZE + 8], *text;
    size_t size;
    vb_error err;
    int code = EXIT_DONE, found = 0;
    snprintf(path, sizeof path, "%.*s.jsonl", (int)(strlen(f->path) - strlen(".safetensors")), f->path);
    if (vb_read_input(NULL, path, &text, &size, &err))
        return fail_file(f, &err);
    for (const char *p = text, *end = text + size, *newline; p < end && code == EXIT_DONE && !found; p = newline + 1) {
        newline = memchr(p, '\n', (size_t)(end - p));
        newline = newline ? newline : end;
        json_t *line = json_read(p, (size_t)(newline - p), path, &err);
        const char *name = json_string_value(json_object_get(line, "tensor"));
        const json_t *ids = json_object_get(line, "token"), *index = json_object_get(line, "index");
        if (!line)
            code = fail_file(f, &err);
        else if (name && !strcmp(name, tensor)) {
            found = 1;
            if (json_array_size(ids) != f->count || json_array_size(index) != f->count)
                code = cli_fail(f->r->c, EXIT_OTHER,
                                "%s: %s has tokens and indices for %zu and %zu rows, the tensor has %zu", path, tensor,
                                json_array_size(ids), json_array_size(index), f->count);
            for (size_t i = 0; i < f->count && code == EXIT_DONE; i++) {
                json_int_t id = json_integer_value(json_array_get(ids, i)),
                           place = json_integer_value(json_array_get(index, i));
                if ((size_t)place != i)
                    code = cli_fail(f->r->c, EXIT_OTHER,
                                    "%s: row %zu of %s is token %lld of the text, wanted the rows of one text in order",
                                    path, i, tensor, (long long)place);
                f->ids[i] = id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
            }
        }
        json_decref(line);
    }
    vb_free(NULL, text);
    return code != EXIT_DONE || found ? code : cli_fail(f->r->c, EXIT_OTHER, "%s: it has no line for %s", path, tensor);
}

/* The tensor of the residual stream before a layer. */
static void tap_of(const struct dump_file *f, int layer, char name[64])
{
    if (layer == layers_of(f))
        strcpy(name, "model.norm.input");
    else
        snprintf(name, 64, "model.layers.%d.input_layernorm.input", layer);
}

static int is_tap(const vb_tensor *t)
{
    return !strcmp(t->name, "model.norm.input") ||
           (!strncmp(t->name, "model.layers.", 13) && cli_ends_with(t->name, ".input_layernorm.input"));
}

/* Takes the tokens from a tap, perhaps of a layer that is not read: until the trainer is open, it is not known which
 * are. */
static int open_own(struct dump_file *f)
{
    char name[64], shape[96];
    vb_tensor rows;
    size_t number = 0;
    while (vb_tensors_at(f->tensors, number, &rows) && !(is_tap(&rows) && rows.ndim == 2))
        number++;
    int found = vb_tensors_find(f->tensors, "model.norm.input", &rows) || vb_tensors_at(f->tensors, number, &rows);
    for (size_t i = 0; i < f->streams; i++) {
        tap_of(f, f->layers[i], name);
        if (!vb_tensors_find(f->tensors, name, &f->stream[i]))
            return cli_fail(f->r->c, EXIT_OTHER,
                            "%s: it has neither hidden_states, as vLLM writes them, nor %s, as dump --taps does",
                            f->path, name);
        const vb_tensor *t = &f->stream[i];
        if (!is_float(t) || t->ndim != 2 || t->shape[1] != vb_hidden_size(f->r->c->model) ||
            t->shape[0] != rows.shape[0])
            return cli_fail(f->r->c, EXIT_OTHER, "%s: %s is %s [%s], wanted F32, BF16 or F16 [%lld,%d]", f->path, name,
                            t->dtype, shape_of(t, shape), (long long)rows.shape[0], vb_hidden_size(f->r->c->model));
    }
    if (!found || rows.ndim != 2)
        return cli_fail(f->r->c, EXIT_OTHER,
                        "%s: it has neither hidden_states, as vLLM writes them, nor model.norm.input, as dump --taps "
                        "does",
                        f->path);
    f->columns = 1;
    f->count = (size_t)rows.shape[0];
    f->ids = cli_must(malloc((f->count + 1) * sizeof *f->ids));
    return read_manifest(f, rows.name);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void close_file(struct dump_file *f)
{
    vb_tensors_close(f->tensors);
    free(f->ids);
}

/* The caller closes it, also after an error. */
static int open_file(struct dump_file *f, const struct training *r, const char *name)
{
    const struct cli *c = r->c;
    vb_error err;
    vb_tensor t;
    *f = (struct dump_file){.r = r};
    snprintf(f->path, sizeof f->path, "%s/%s", c->train.hidden_states, name);
    f->streams = r->trainer ? trainer_streams(r->trainer, f->layers) : 0;
    if (vb_tensors_open(&f->tensors, f->path, NULL, &err))
        return fail_file(f, &err);
    int code = vb_tensors_find(f->tensors, "hidden_states", &t) ? open_vllm(f, &t) : open_own(f);
    for (size_t i = 0; i < f->count && code == EXIT_DONE; i++)
        if (f->ids[i] < 0 || f->ids[i] >= vb_vocab_size(c->model))
            code = cli_fail(c, EXIT_OTHER, "%s: token %zu is %d, the vocabulary of %s has %d", f->path, i, f->ids[i],
                            c->model_dir, vb_vocab_size(c->model));
    return code;
}

/* Writes rows [first, first + count) of stream i to out [count, d]. */
static int read_rows(const struct dump_file *f, size_t i, size_t first, size_t count, float *out)
{
    size_t d = width_of(f);
    vb_error err;
    for (size_t s = 0; s < count; s++) {
        float *row = out + s * d;
        if (vb_tensor_f32(&f->stream[i], ((first + s) * f->columns + f->column[i]) * d, d, row, &err))
            return cli_fail(f->r->c, EXIT_OTHER, "%s: %s", f->path, err.message);
        for (size_t k = 0; k < d; k++)
            if (!isfinite(row[k]))
                return cli_fail(f->r->c, EXIT_OTHER,
                                "%s: %s: number %zu of the hidden state of token %zu is not finite", f->path,
                                f->stream[i].name, k, first + s);
    }
    return EXIT_DONE;
}

/* Of the tokens and of all tensors that may be read. */
static uint64_t hash_of(const struct dump_file *f)
{
    uint64_t hash = hash64(f->columns, f->ids, f->count * sizeof *f->ids);
    vb_tensor t;
    for (size_t i = 0; vb_tensors_at(f->tensors, i, &t); i++)
        if (is_tap(&t) || !strcmp(t.name, "hidden_states"))
            hash = hash64(hash64(hash, t.name, strlen(t.name)), t.data, t.bytes);
    return hash;
}

/* Looks at all rows that will be read; at none if the trainer is not open. */
static int check_rows(const struct dump_file *f)
{
    float *row = cli_must(malloc(width_of(f) * sizeof *row));
    int code = EXIT_DONE;
    for (size_t i = 0; i < f->streams && code == EXIT_DONE; i++)
        for (size_t s = 0; s < f->count && code == EXIT_DONE; s++)
            code = read_rows(f, i, s, 1, row);
    free(row);
    return code;
}

/* Appends the document of a file. */
static int add_file(struct training *r, const char *name)
{
    struct dump_file f;
    int code = open_file(&f, r, name);
    if (code == EXIT_DONE)
        code = check_rows(&f);
    if (code == EXIT_DONE) {
        documents_add(&r->data, f.ids, NULL, f.count);
        r->data.file[r->data.count - 1] = (struct document_file){cli_must(strdup(name)), hash_of(&f)};
    }
    close_file(&f);
    return code;
}

static int is_dump(const struct dirent *e) { return cli_ends_with(e->d_name, ".safetensors"); }
static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

int dumps_read(struct training *r)
{
    const struct cli *c = r->c;
    struct dirent **list;
    int unused[MOST_COLUMNS];
    if (c->train.hidden_layers && !read_layers(c, unused))
        return EXIT_USAGE;
    int count = scandir(c->train.hidden_states, &list, is_dump, by_name), code = EXIT_DONE;
    if (count < 0)
        return cli_fail(c, EXIT_OTHER, "%s: %s", c->train.hidden_states, strerror(errno));
    if (!count)
        code = cli_fail(c, EXIT_OTHER, "%s: it has no files whose names end with .safetensors", c->train.hidden_states);
    for (int i = 0; i < count; i++) {
        if (code == EXIT_DONE)
            code = add_file(r, list[i]->d_name);
        free(list[i]);
        cli_progress(c->train.hidden_states, (size_t)i + 1, (size_t)count);
    }
    free(list);
    return code;
}

static int check(const struct training *r, const struct documents *d)
{
    int code = EXIT_DONE;
    for (size_t i = 0; i < d->count && code == EXIT_DONE; i++) {
        struct dump_file f;
        if (!d->file[i].name)
            continue;
        code = open_file(&f, r, d->file[i].name);
        if (code == EXIT_DONE && hash_of(&f) != d->file[i].hash)
            code = cli_fail(r->c, EXIT_OTHER, "%s: it has changed since the run in %s began", f.path, r->dir);
        if (code == EXIT_DONE)
            code = check_rows(&f);
        close_file(&f);
    }
    return code;
}

int dumps_check(const struct training *r)
{
    int code = check(r, &r->data);
    return code == EXIT_DONE ? check(r, &r->held) : code;
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

static size_t document_of(const struct documents *d, size_t token)
{
    size_t low = 0, high = d->count;
    while (low + 1 < high) {
        size_t middle = (low + high) / 2;
        if (d->end[middle - 1] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Computes the rows of `count` tokens of a file, from token `first` on. */
static int rows_of(const struct dump_file *f, size_t first, struct training_sequence *x)
{
    const float *streams[4];
    float *stream = cli_must(malloc(f->streams * x->count * width_of(f) * sizeof *stream + 1));
    size_t width;
    int final, code = EXIT_DONE;
    trainer_takes(f->r->trainer, &width, &final);
    for (size_t i = 0; i < f->streams && code == EXIT_DONE; i++) {
        streams[i] = stream + i * x->count * width_of(f);
        code = read_rows(f, i, first, x->count, stream + i * x->count * width_of(f));
    }
    if (code == EXIT_DONE) {
        float *hidden = cli_must(malloc(x->count * width * sizeof *hidden + 1)),
              *norm = final ? cli_must(malloc(x->count * width_of(f) * sizeof *norm + 1)) : NULL;
        trainer_rows_of_streams(f->r->trainer, hidden, norm, streams, x->count);
        x->hidden = hidden;
        x->final = norm;
    }
    free(stream);
    return code;
}

int dumps_give(const struct training *r, int held, const size_t *numbers, struct training_sequence *list, size_t count)
{
    const struct documents *d = held ? &r->held : &r->data;
    const struct order *o = held ? &r->held_order : &r->order;
    int code = EXIT_DONE;
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        size_t first = o->piece[numbers[i]].first, document = document_of(d, first);
        struct dump_file f;
        if (!d->file[document].name)
            continue;
        code = open_file(&f, r, d->file[document].name);
        if (code == EXIT_DONE)
            code = rows_of(&f, first - (document ? d->end[document - 1] : 0), &list[i]);
        close_file(&f);
    }
    return code;
}

void dumps_release(struct training_sequence *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free((float *)(uintptr_t)list[i].hidden);
        free((float *)(uintptr_t)list[i].final);
    }
}
