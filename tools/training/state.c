/* tools/training/state.c -- the run folder: its state, and the tokens of its documents.
 *
 * state.safetensors has, for each trained tensor NAME, the tensors w.NAME, m.NAME and v.NAME (F32: weight and AdamW's
 * moments), and
 *
 *   run     U8   a JSON object: format, step, tokens, place, options, the path and the fingerprint of the model, the
 *           hash of the data
 *   curves  F64  [rows, columns] of curves.csv
 *   sums    F64  what the steps since the newest row have added up to
 *   hash    I64  [1]: the hash of all other tensors
 *
 * data.safetensors has tokens (I32) and ends (I64) of the documents to train on, held_out.tokens and held_out.ends, and
 * hash; if not all tokens are labels, also loss_mask (U8), and likewise held_out.loss_mask; with --hidden-states also
 * files (U8: a name and a zero byte for each document, only the zero byte for a text) and file_hashes (I64), and
 * likewise held_out.files and held_out.file_hashes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash64.h"
#include "tools/cli/file.h"
#include "tools/training/training.h"

#define FORMAT 1
#define PATH_SIZE 4096
#define SUMS (2 + VB_MAX_DRAFT + 2)

static void path_of(const struct training *r, const char *name, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%s/%s", r->dir, name);
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

/* A file that a process left incomplete when it was killed. */
static int is_part(const char *name)
{
    static const char *const files[] = {"data.safetensors.", "state.safetensors.", "curves.csv.", "curves.svg.",
                                        "result.json.", "megatron.safetensors."};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strncmp(name, files[i], strlen(files[i])))
            return cli_ends_with(name, ".part");
    return 0;
}

static void remove_parts(const struct training *r)
{
    char path[PATH_SIZE];
    DIR *dir = opendir(r->dir);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (is_part(e->d_name)) {
            path_of(r, e->d_name, path);
            unlink(path);
        }
    if (dir)
        closedir(dir);
}

/* Whether a folder is empty, or has only what a process leaves that is killed before its run begins. */
static int is_empty(const char *path)
{
    int empty = 1;
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        empty &= !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, "lock") ||
                 is_part(e->d_name);
    if (dir)
        closedir(dir);
    return dir && empty;
}

/* Whether a process was killed there after it had written the data, and before the first state. */
static int is_left(const struct training *r)
{
    char state[PATH_SIZE], data[PATH_SIZE], lock[PATH_SIZE];
    path_of(r, "state.safetensors", state);
    path_of(r, "data.safetensors", data);
    path_of(r, "lock", lock);
    return access(state, F_OK) && !access(data, F_OK) && !access(lock, F_OK);
}

static int make_folder(struct training *r)
{
    r->dir = r->c->out;
    r->made = !mkdir(r->dir, 0777);
    int exists = !r->made && errno == EEXIST;
    if (r->made || (exists && is_empty(r->dir)))
        return EXIT_DONE;
    if (exists && is_left(r))
        return cli_fail(r->c, EXIT_OTHER, "-o %s: a run was ended there before its first state; remove the folder",
                        r->dir);
    return exists ? cli_fail(r->c, EXIT_OTHER, "-o %s: it exists and is not an empty folder; --resume continues a run",
                             r->dir)
                  : cli_fail(r->c, EXIT_OTHER, "-o %s: %s", r->dir, strerror(errno));
}

static int find_folder(struct training *r)
{
    static const char *const files[] = {"data.safetensors", "state.safetensors"};
    char path[PATH_SIZE];
    r->dir = r->c->train.resume;
    for (int i = 0; i < 2; i++) {
        path_of(r, files[i], path);
        if (access(path, F_OK))
            return cli_fail(r->c, EXIT_OTHER, "--resume %s: there is no %s, so there is no run to continue%s", r->dir,
                            files[i], i ? ": it was ended before its first state; remove the folder" : "");
    }
    return EXIT_DONE;
}

int state_folder(struct training *r)
{
    char path[PATH_SIZE];
    int code = r->c->train.resume ? find_folder(r) : make_folder(r);
    if (code != EXIT_DONE)
        return code;
    path_of(r, "lock", path);
    r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (r->lock < 0)
        return cli_fail(r->c, EXIT_OTHER, "%s: %s", path, strerror(errno));
    if (flock(r->lock, LOCK_EX | LOCK_NB)) {
        close(r->lock);
        r->lock = -1;
        return cli_fail(r->c, EXIT_OTHER, "%s: another process trains in this folder", r->dir);
    }
    remove_parts(r);
    return EXIT_DONE;
}

/* Without a state, nobody can continue the run: takes back what it has written. */
static void remove_run(const struct training *r)
{
    static const char *const files[] = {"hidden_states.safetensors", "data.safetensors", "lock"};
    char path[PATH_SIZE];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        path_of(r, files[i], path);
        unlink(path);
    }
    if (r->initial_dir)
        output_remove(r->initial_dir);
    if (r->made)
        rmdir(r->dir);
}

void state_close(struct training *r)
{
    char path[PATH_SIZE];
    if (r->lock < 0)
        return;
    path_of(r, "state.safetensors", path);
    if (access(path, F_OK) && !r->c->train.resume)
        remove_run(r);
    close(r->lock);
    r->lock = -1;
}

/* ---- files of tensors with a hash -------------------------------------------------------------------------------- */

static vb_tensor tensor(const char *name, const char *dtype, size_t rows, size_t cols, size_t size, const void *data)
{
    return (vb_tensor){.name = name, .dtype = dtype, .ndim = cols ? 2 : 1, .shape = {(int64_t)rows, (int64_t)cols},
                       .data = data, .bytes = rows * (cols ? cols : 1) * size};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const vb_tensor *)a)->name, ((const vb_tensor *)b)->name);
}

/* The hash of names and data, in the order of names, without the tensor "hash" itself. */
static uint64_t add_hash(uint64_t hash, const vb_tensor *t)
{
    return strcmp(t->name, "hash") ? hash64(hash64(hash, t->name, strlen(t->name)), t->data, t->bytes) : hash;
}

/* Sorts the list, which has room for one more tensor. */
static int write_file(const struct training *r, const char *name, vb_tensor *list, size_t count, uint64_t *hash)
{
    char path[PATH_SIZE];
    struct new_file file;
    vb_error err;
    path_of(r, name, path);
    qsort(list, count, sizeof *list, by_name);
    *hash = FORMAT;
    for (size_t i = 0; i < count; i++)
        *hash = add_hash(*hash, &list[i]);
    list[count] = tensor("hash", "I64", 1, 0, sizeof *hash, hash);
    if (new_file_begin(&file, path, 1, NULL, &err))
        return cli_error(r->c, &err);
    int rc = vb_tensors_write(file.fd, path, list, count + 1, NULL, NULL, &err);
    return new_file_end(&file, rc, &err) ? cli_error(r->c, &err) : EXIT_DONE;
}

struct state_reader {
    const struct training *r;
    char path[PATH_SIZE];
    vb_tensors *tensors;
    uint64_t hash;
};

/* Opens a file and compares its hash. */
static int reader_open(struct state_reader *f, const struct training *r, const char *name)
{
    vb_error err;
    vb_tensor t;
    uint64_t hash;
    *f = (struct state_reader){.r = r, .hash = FORMAT};
    path_of(r, name, f->path);
    if (vb_tensors_open(&f->tensors, f->path, NULL, &err))
        return cli_error(r->c, &err);
    if (!vb_tensors_find(f->tensors, "hash", &t) || t.bytes != sizeof hash)
        return cli_fail(r->c, EXIT_OTHER, "%s: there is no tensor hash, or it has another size", f->path);
    memcpy(&hash, t.data, sizeof hash);
    for (size_t i = 0; vb_tensors_at(f->tensors, i, &t); i++)
        f->hash = add_hash(f->hash, &t);
    return hash == f->hash
               ? EXIT_DONE
               : cli_fail(r->c, EXIT_OTHER, "%s: it is damaged: its contents have another hash than it says", f->path);
}

static int reader_find(struct state_reader *f, const char *name, const char *dtype, vb_tensor *out)
{
    if (!vb_tensors_find(f->tensors, name, out))
        return cli_fail(f->r->c, EXIT_OTHER, "%s: there is no tensor %s", f->path, name);
    return strcmp(out->dtype, dtype)
               ? cli_fail(f->r->c, EXIT_OTHER, "%s: %s is %s, wanted %s", f->path, name, out->dtype, dtype)
               : EXIT_DONE;
}

/* ---- the tokens -------------------------------------------------------------------------------------------------- */

/* Two tensors with the files of documents; the caller frees *names and *hashes. Returns 2. */
static size_t file_tensors(vb_tensor *list, const struct documents *d, int held, char **names, uint64_t **hashes)
{
    size_t size = 0;
    *hashes = cli_must(calloc(d->count + 1, sizeof **hashes));
    for (size_t i = 0; i < d->count; i++)
        size += 1 + (d->file[i].name ? strlen(d->file[i].name) : 0);
    char *p = *names = cli_must(calloc(size + 1, 1));
    for (size_t i = 0; i < d->count; i++) {
        (*hashes)[i] = d->file[i].hash;
        p = stpcpy(p, d->file[i].name ? d->file[i].name : "") + 1;
    }
    list[0] = tensor(held ? "held_out.files" : "files", "U8", size, 0, 1, *names);
    list[1] = tensor(held ? "held_out.file_hashes" : "file_hashes", "I64", d->count, 0, 8, *hashes);
    return 2;
}

static int read_files(struct state_reader *f, int held, struct documents *d)
{
    vb_tensor names, hashes;
    int code = reader_find(f, held ? "held_out.files" : "files", "U8", &names);
    if (code == EXIT_DONE)
        code = reader_find(f, held ? "held_out.file_hashes" : "file_hashes", "I64", &hashes);
    if (code != EXIT_DONE)
        return code;
    const char *p = names.data, *end = p + names.bytes;
    for (size_t i = 0; i < d->count; i++) {
        size_t length = strnlen(p, (size_t)(end - p));
        if (hashes.bytes != 8 * d->count || p + length == end || memchr(p, '/', length))
            return cli_fail(f->r->c, EXIT_OTHER, "%s: it has no name and hash of a file for document %zu", f->path, i);
        d->file[i].name = length ? cli_must(strdup(p)) : NULL;
        memcpy(&d->file[i].hash, (const char *)hashes.data + 8 * i, 8);
        p += length + 1;
    }
    return EXIT_DONE;
}

int state_save_data(struct training *r)
{
    const struct documents *d = &r->data, *h = &r->held;
    uint64_t hash;
    size_t count = 4;
    char *names[2] = {NULL};
    uint64_t *hashes[2] = {NULL};
    vb_tensor list[11] = {tensor("tokens", "I32", d->tokens, 0, sizeof *d->ids, d->ids),
                          tensor("ends", "I64", d->count, 0, sizeof *d->end, d->end),
                          tensor("held_out.tokens", "I32", h->tokens, 0, sizeof *h->ids, h->ids),
                          tensor("held_out.ends", "I64", h->count, 0, sizeof *h->end, h->end)};
    if (d->is_masked)
        list[count++] = tensor("loss_mask", "U8", d->tokens, 0, 1, d->mask);
    if (h->is_masked)
        list[count++] = tensor("held_out.loss_mask", "U8", h->tokens, 0, 1, h->mask);
    for (int i = 0; i < 2 && r->c->train.hidden_states; i++)
        count += file_tensors(list + count, i ? h : d, i, &names[i], &hashes[i]);
    int code = write_file(r, "data.safetensors", list, count, &hash);
    for (int i = 0; i < 2; i++) {
        free(names[i]);
        free(hashes[i]);
    }
    if (code == EXIT_DONE)
        r->data_hash = hash;
    return code;
}

/* Reads documents; whoever made the file may have made it wrong, with a right hash. */
static int read_documents(struct state_reader *f, const char *tokens, const char *ends, const char *mask,
                          struct documents *d)
{
    const struct cli *c = f->r->c;
    vb_tensor t, e, m;
    int code = reader_find(f, tokens, "I32", &t);
    if (code == EXIT_DONE)
        code = reader_find(f, ends, "I64", &e);
    d->is_masked = code == EXIT_DONE && vb_tensors_find(f->tensors, mask, &m);
    if (code != EXIT_DONE)
        return code;
    if (d->is_masked && (strcmp(m.dtype, "U8") || m.bytes != t.bytes / sizeof *d->ids))
        return cli_fail(c, EXIT_OTHER, "%s: %s is %s with %zu bytes, wanted U8 with one for each token", f->path, mask,
                        m.dtype, m.bytes);
    d->tokens = t.bytes / sizeof *d->ids;
    d->count = e.bytes / sizeof *d->end;
    d->ids = cli_must(malloc(t.bytes + 1));
    d->end = cli_must(malloc(e.bytes + 1));
    memcpy(d->ids, t.data, t.bytes);
    memcpy(d->end, e.data, e.bytes);
    d->mask = cli_must(malloc(d->tokens + 1));
    d->file = cli_must(calloc(d->count + 1, sizeof *d->file));
    for (size_t i = 0; i < d->tokens; i++)
        d->mask[i] = !d->is_masked || ((const unsigned char *)m.data)[i];
    for (size_t i = 0; i < d->count; i++)
        if (d->end[i] > d->tokens || (i && d->end[i] < d->end[i - 1]))
            return cli_fail(c, EXIT_OTHER, "%s: %s[%zu] is %zu, wanted ascending numbers up to %zu", f->path, ends, i,
                            d->end[i], d->tokens);
    for (size_t i = 0; i < d->tokens; i++)
        if (d->ids[i] < 0 || d->ids[i] >= vb_vocab_size(c->model))
            return cli_fail(c, EXIT_OTHER, "%s: token %zu is %d, the vocabulary has %d", f->path, i, d->ids[i],
                            vb_vocab_size(c->model));
    return EXIT_DONE;
}

int state_load_data(struct training *r)
{
    struct state_reader f;
    int code = reader_open(&f, r, "data.safetensors");
    if (code == EXIT_DONE)
        code = read_documents(&f, "tokens", "ends", "loss_mask", &r->data);
    if (code == EXIT_DONE)
        code = read_documents(&f, "held_out.tokens", "held_out.ends", "held_out.loss_mask", &r->held);
    for (int i = 0; i < 2 && r->c->train.hidden_states && code == EXIT_DONE; i++)
        code = read_files(&f, i, i ? &r->held : &r->data);
    r->data_hash = f.hash;
    vb_tensors_close(f.tensors);
    return code;
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

static json_t *hexadecimal(uint64_t number)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)number);
    return json_string(text);
}

static json_t *head_of(const struct training *r)
{
    return json_pack("{s:i,s:s,s:I,s:I,s:{s:I,s:I},s:s,s:o,s:o,s:O}", "format", FORMAT, "verbatim", vb_version(),
                     "step", (json_int_t)r->step, "tokens", (json_int_t)r->tokens, "place", "epoch",
                     (json_int_t)r->place.epoch, "next", (json_int_t)r->place.next, "model", r->model_dir,
                     "model_fingerprint", hexadecimal(r->model_hash), "data", hexadecimal(r->data_hash), "options",
                     r->options);
}

/* The names w.NAME, m.NAME and v.NAME, one after the other. */
static char *names_of(const struct training *r)
{
    size_t count = trainer_count(r->trainer);
    char *names = cli_must(malloc(3 * count * 260 + 1));
    for (size_t i = 0; i < 3 * count; i++)
        snprintf(names + i * 260, 260, "%c.%s", "wmv"[i % 3], trainer_tensor(r->trainer, i / 3)->name);
    return names;
}

static void sums_of(const struct curves *k, double sums[SUMS])
{
    memcpy(sums, k->sum, sizeof k->sum);
    sums[SUMS - 2] = k->norm;
    sums[SUMS - 1] = k->steps;
}

int state_save(struct training *r)
{
    size_t count = trainer_count(r->trainer), n = 0;
    vb_tensor *list = cli_must(calloc(3 * count + 4, sizeof *list));
    char *names = names_of(r), *head;
    double sums[SUMS];
    uint64_t hash;
    json_t *object = head_of(r);
    cli_must(object);
    head = cli_must(json_dumps(object, JSON_COMPACT));
    json_decref(object);
    sums_of(&r->curves, sums);
    for (size_t i = 0; i < 3 * count; i++) {
        const struct trained_tensor *t = trainer_tensor(r->trainer, i / 3);
        const float *data = i % 3 == 0 ? t->w : i % 3 == 1 ? t->m : t->v;
        if (data)
            list[n++] = tensor(names + i * 260, "F32", t->rows, t->cols, sizeof *data, data);
    }
    list[n++] = tensor("run", "U8", strlen(head), 0, 1, head);
    list[n++] = tensor("curves", "F64", r->curves.rows, CURVE_COLUMNS, sizeof *r->curves.row, r->curves.row);
    list[n++] = tensor("sums", "F64", SUMS, 0, sizeof *sums, sums);
    int code = write_file(r, "state.safetensors", list, n, &hash);
    free(head);
    free(names);
    free(list);
    return code;
}

/* The object of tensor "run". */
static int parse_head(const struct cli *c, const char *path, const vb_tensor *t, json_t **out)
{
    vb_error err;
    char shown[JSON_SHOWN];
    *out = json_read_exact(t->data, t->bytes, path, &err);
    if (!*out)
        return cli_error(c, &err);
    const json_t *format = json_object_get(*out, "format"), *place = json_object_get(*out, "place");
    if (json_integer_value(format) != FORMAT)
        return cli_fail(c, EXIT_OTHER, "%s: format is %s, this program reads format %d", path, json_show(format, shown),
                        FORMAT);
    if (!json_is_integer(json_object_get(*out, "step")) || !json_is_integer(json_object_get(*out, "tokens")) ||
        !json_is_integer(json_object_get(place, "epoch")) || !json_is_integer(json_object_get(place, "next")) ||
        !json_is_string(json_object_get(*out, "model")) ||
        !json_is_string(json_object_get(*out, "model_fingerprint")) || !json_is_string(json_object_get(*out, "data")) ||
        !json_is_object(json_object_get(*out, "options")))
        return cli_fail(c, EXIT_OTHER, "%s: a key of its tensor run is missing or has another type", path);
    return EXIT_DONE;
}

int state_head(const struct training *r, json_t **out)
{
    struct state_reader f;
    vb_tensor t;
    *out = NULL;
    int code = reader_open(&f, r, "state.safetensors");
    if (code == EXIT_DONE)
        code = reader_find(&f, "run", "U8", &t);
    if (code == EXIT_DONE)
        code = parse_head(r->c, f.path, &t, out);
    vb_tensors_close(f.tensors);
    return code;
}

/* Copies a tensor into memory that is as large. */
static int read_into(struct state_reader *f, const char *name, const char *dtype, size_t rows, size_t cols, void *to,
                     size_t size)
{
    vb_tensor t;
    int code = reader_find(f, name, dtype, &t);
    if (code != EXIT_DONE)
        return code;
    if (t.bytes != rows * cols * size)
        return cli_fail(f->r->c, EXIT_OTHER, "%s: %s has %zu bytes, wanted %zu x %zu numbers", f->path, name, t.bytes,
                        rows, cols);
    memcpy(to, t.data, t.bytes);
    return EXIT_DONE;
}

static int load_tensors(struct state_reader *f, struct training *r)
{
    size_t count = trainer_count(r->trainer);
    char *names = names_of(r);
    int code = EXIT_DONE;
    for (size_t i = 0; i < 3 * count && code == EXIT_DONE; i++) {
        const struct trained_tensor *t = trainer_tensor(r->trainer, i / 3);
        float *to = i % 3 == 0 ? t->w : i % 3 == 1 ? t->m : t->v;
        if (to)
            code = read_into(f, names + i * 260, "F32", t->rows, t->cols, to, sizeof *to);
    }
    free(names);
    return code;
}

static int load_curves(struct state_reader *f, struct training *r)
{
    double sums[SUMS];
    vb_tensor t;
    struct curves *k = &r->curves;
    int code = reader_find(f, "curves", "F64", &t);
    if (code == EXIT_DONE)
        code = read_into(f, "sums", "F64", SUMS, 1, sums, sizeof *sums);
    if (code != EXIT_DONE)
        return code;
    if (t.ndim != 2 || t.shape[1] != CURVE_COLUMNS)
        return cli_fail(f->r->c, EXIT_OTHER, "%s: curves has not %d columns", f->path, CURVE_COLUMNS);
    k->rows = k->room = (size_t)t.shape[0];
    k->row = cli_must(realloc(k->row, t.bytes + 1));
    memcpy(k->row, t.data, t.bytes);
    memcpy(k->sum, sums, sizeof k->sum);
    k->norm = sums[SUMS - 2];
    k->steps = sums[SUMS - 1];
    return EXIT_DONE;
}

/* The data and the model must be those with which the run began. */
static int compare_head(const struct training *r, const char *path, const json_t *head)
{
    json_t *data = hexadecimal(r->data_hash), *model = hexadecimal(r->model_hash);
    int other_data = !json_equal(data, json_object_get(head, "data")),
        other_model = !json_equal(model, json_object_get(head, "model_fingerprint"));
    json_decref(data);
    json_decref(model);
    if (other_data)
        return cli_fail(r->c, EXIT_OTHER, "%s belongs to other data than %s/data.safetensors", path, r->dir);
    return other_model ? cli_fail(r->c, EXIT_OTHER,
                                  "%s is not the model with which the run in %s began (%s), or the conventions differ",
                                  r->model_dir, r->dir, json_string_value(json_object_get(head, "model")))
                       : EXIT_DONE;
}

int state_load(struct training *r)
{
    struct state_reader f;
    vb_tensor t;
    json_t *head = NULL;
    int code = reader_open(&f, r, "state.safetensors");
    if (code == EXIT_DONE)
        code = reader_find(&f, "run", "U8", &t);
    if (code == EXIT_DONE)
        code = parse_head(r->c, f.path, &t, &head);
    if (code == EXIT_DONE)
        code = compare_head(r, f.path, head);
    if (code == EXIT_DONE)
        code = load_tensors(&f, r);
    if (code == EXIT_DONE)
        code = load_curves(&f, r);
    if (code == EXIT_DONE) {
        const json_t *place = json_object_get(head, "place");
        r->step = json_integer_value(json_object_get(head, "step"));
        r->tokens = (uint64_t)json_integer_value(json_object_get(head, "tokens"));
        r->place = (struct order_place){(uint64_t)json_integer_value(json_object_get(place, "epoch")),
                                        (size_t)json_integer_value(json_object_get(place, "next"))};
    }
    json_decref(head);
    vb_tensors_close(f.tensors);
    if (code == EXIT_DONE && r->step > r->c->train.train_iters)
        code = cli_fail(r->c, EXIT_USAGE, "--train-iters is %lld, the run in %s has %lld steps already",
                        r->c->train.train_iters, r->dir, (long long)r->step);
    return code;
}
