/* tools/training/output.c -- writes the trained model: the folder DIR/model, which opens as a checkpoint.
 *
 * A file of the model in which no tensor has changed becomes a symbolic link, or a copy with --copy-target. A file with
 * tensors that have changed (or belong to modules that are trained or no longer used) is written again without them.
 * Trained tensors have files of their own. So the result takes the space of what was trained and of the files that had
 * to be cut, however large the model is. A model in the single file model.safetensors is written as a single file
 * again, unless nothing in it has changed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cli/file.h"
#include "tools/training/training.h"

#define PATH_SIZE 4096
#define MOST_BYTES ((size_t)4 << 30) /* of a file with trained tensors: they are converted one file at a time */
#define MOST_OTHER (64 << 20)        /* files that are larger and no tensors are not copied */
#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

struct output_folder {
    const struct training *r;
    char dir[PATH_SIZE];    /* DIR/model.new */
    vb_tensors *source;
    json_t *files;          /* the files of the source; true: it has tensors that are dropped */
    json_t *weight_map;
    size_t bytes;           /* of all tensors */
    int layers;             /* num_hidden_layers */
    int is_single, cut;     /* the source is a single file; some file has to be written again */
    int trained[VB_MAX_DRAFT]; /* whether tensors of module k are trained */
    const char *from;          /* the folder of the other files */
    int whole, f32;            /* whether every weight is trained; whether all tensors are stored in F32 */
    int modules;               /* how many MTP modules the result has */
};

static int failed(const struct output_folder *o, const char *path)
{
    return cli_fail(o->r->c, EXIT_OTHER, "%s: %s", path, strerror(errno));
}

/* Whether a + "/" + b fits. */
static int join(const struct output_folder *o, char path[PATH_SIZE], const char *a, const char *b)
{
    return snprintf(path, PATH_SIZE, "%s/%s", a, b) < PATH_SIZE
               ? EXIT_DONE
               : cli_fail(o->r->c, EXIT_OTHER, "%.200s/%.200s: the path is too long", a, b);
}

int output_check(const struct cli *c, const char *model_dir)
{
    char path[PATH_SIZE], index[PATH_SIZE];
    struct stat st;
    if (!stat(model_dir, &st) && !S_ISDIR(st.st_mode))
        return cli_fail(c, EXIT_OTHER,
                        "%s is a file: --part %s wants a directory in the Hugging Face layout, and only EAGLE heads "
                        "are trained for files",
                        model_dir, c->train.part ? c->train.part : "modules");
    snprintf(path, sizeof path, "%s/" SINGLE, model_dir);
    snprintf(index, sizeof index, "%s/" INDEX, model_dir);
    if (!stat(model_dir, &st) && access(path, F_OK) && access(index, F_OK))
        return cli_fail(c, EXIT_OTHER, "%s: there is neither " SINGLE " nor " INDEX, model_dir);
    return EXIT_DONE;
}

/* ---- which tensors stay ------------------------------------------------------------------------------------------ */

/* The layer of a tensor's name; -1: none. */
static int layer_of(const char *name)
{
    int layer, end = 0;
    return sscanf(name, "model.layers.%d.%n", &layer, &end) == 1 && end ? layer : -1;
}

static int is_float(const vb_tensor *t)
{
    return !strcmp(t->dtype, "F32") || !strcmp(t->dtype, "F16") || !strcmp(t->dtype, "BF16");
}

/* Fills `trained`. Modules that were not trained are left out if they are quantized and everything else was trained:
 * the new config.json has no quantization_config. */
static void look_at_trained(struct output_folder *o)
{
    vb_tensor t;
    for (size_t i = 0; i < trainer_count(o->r->trainer); i++) {
        int module = layer_of(trainer_tensor(o->r->trainer, i)->name) - o->layers;
        if (module >= 0 && module < VB_MAX_DRAFT)
            o->trained[module] = 1;
    }
    for (size_t i = 0; o->whole && o->modules && vb_tensors_at(o->source, i, &t); i++) {
        int module = layer_of(t.name) - o->layers;
        if (module >= 0 && module < o->modules && !o->trained[module] && !is_float(&t)) {
            fprintf(stderr, "the MTP modules are left out: they were not trained, and stay quantized\n");
            o->modules = 0;
        }
    }
}

/* With --part model, every weight is trained, except those of modules if no depth is. */
static int is_dropped(const struct output_folder *o, const char *name)
{
    int layer = layer_of(name);
    if (layer < o->layers)
        return o->whole;
    int module = layer - o->layers;
    return module >= o->modules || o->trained[module];
}

/* Sorts the tensors of the source: fills files, weight_map (with those that stay) and bytes. */
static void look_at_source(struct output_folder *o)
{
    vb_tensor t;
    for (size_t i = 0; vb_tensors_at(o->source, i, &t); i++) {
        int dropped = is_dropped(o, t.name);
        o->cut |= dropped;
        if (dropped || !json_object_get(o->files, t.file))
            json_object_set_new(o->files, t.file, json_boolean(dropped));
        if (!dropped) {
            json_object_set_new(o->weight_map, t.name, json_string(t.file));
            o->bytes += t.bytes;
        }
    }
    o->is_single = json_object_size(o->files) == 1 && json_object_get(o->files, SINGLE);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* To the nearest BF16 number, and to the even one of two. */
static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* F32 with --type f32; else F32 where the checkpoint stores F32, and for the router's bias, whose steps are smaller
 * than BF16's. */
static int is_f32(const struct output_folder *o, const char *name)
{
    vb_tensor t;
    if (o->f32 || cli_ends_with(name, ".e_score_correction_bias"))
        return 1;
    return vb_tensors_find(o->source, name, &t) && !strcmp(t.dtype, "F32");
}

vb_tensor output_stored(const struct trained_tensor *t, int f32, void **memory)
{
    size_t count = t->rows * t->cols;
    vb_tensor out = {.name = t->name, .ndim = t->dimensions,
                     .shape = {(int64_t)(t->dimensions == 1 ? count : t->rows), (int64_t)t->cols}};
    *memory = NULL;
    if (f32) {
        out.dtype = "F32";
        out.data = t->w;
        out.bytes = count * sizeof *t->w;
        return out;
    }
    uint16_t *numbers = cli_must(malloc(count * sizeof *numbers + 1));
    for (size_t i = 0; i < count; i++)
        numbers[i] = bf16_of(t->w[i]);
    out.dtype = "BF16";
    out.data = *memory = numbers;
    out.bytes = count * sizeof *numbers;
    return out;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int show(void *label, size_t done, size_t total)
{
    cli_progress(label, done, total);
    return cli_stopped() != 0;
}

static int write_tensors(const struct output_folder *o, const char *name, const vb_tensor *list, size_t count)
{
    char path[PATH_SIZE], label[] = "writing the model";
    struct new_file file;
    vb_error err;
    int code = join(o, path, o->dir, name);
    if (code != EXIT_DONE)
        return code;
    if (new_file_begin(&file, path, 0, NULL, &err))
        return cli_error(o->r->c, &err);
    int rc = vb_tensors_write(file.fd, path, list, count, show, label, &err);
    cli_progress(label, 1, 1);
    rc = new_file_end(&file, rc, &err);
    return rc == VB_STOPPED ? cli_tell_stopped(o->r->c, path) : rc ? cli_error(o->r->c, &err) : EXIT_DONE;
}

/* The tensors of a file that stay, for writing. Returns how many. */
static size_t kept_of(const struct output_folder *o, const char *file, vb_tensor *list)
{
    vb_tensor t;
    size_t count = 0;
    for (size_t i = 0; o->source && vb_tensors_at(o->source, i, &t); i++)
        if (!strcmp(t.file, file) && !is_dropped(o, t.name))
            list[count++] = t;
    return count;
}

static size_t tensors_of_source(const struct output_folder *o)
{
    vb_tensor t;
    size_t count = 0;
    while (o->source && vb_tensors_at(o->source, count, &t))
        count++;
    return count;
}

/* Writes trained tensors first .. last-1 behind the `count` tensors of the list, into one file. */
static int write_trained(struct output_folder *o, const char *name, vb_tensor *list, size_t count, size_t first,
                         size_t last)
{
    void **memory = cli_must(calloc(last - first + 1, sizeof *memory));
    for (size_t i = first; i < last; i++) {
        const struct trained_tensor *t = trainer_tensor(o->r->trainer, i);
        list[count] = output_stored(t, is_f32(o, t->name), &memory[i - first]);
        json_object_set_new(o->weight_map, list[count].name, json_string(name));
        o->bytes += list[count++].bytes;
    }
    int code = count ? write_tensors(o, name, list, count) : EXIT_DONE;
    for (size_t i = 0; i < last - first; i++)
        free(memory[i]);
    free(memory);
    return code;
}

/* Copies some bytes. copy_file_range lets file systems share blocks, but fails between two file systems, and on some
 * network ones. */
static ssize_t copy_some(int in, int out, size_t most)
{
    ssize_t n = copy_file_range(in, NULL, out, NULL, most, 0);
    return n < 0 && (errno == EXDEV || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
               ? sendfile(out, in, NULL, most)
               : n;
}

static int copy_file(const struct output_folder *o, const char *from, const char *to)
{
    struct stat st;
    int code = EXIT_DONE, in = open(from, O_RDONLY | O_CLOEXEC),
        out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (in < 0 || fstat(in, &st))
        code = failed(o, from);
    else if (out < 0)
        code = failed(o, to);
    for (off_t left = code == EXIT_DONE ? st.st_size : 0; left > 0;) {
        ssize_t n = copy_some(in, out, left < 1 << 30 ? (size_t)left : 1 << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            code = n ? failed(o, to) : cli_fail(o->r->c, EXIT_OTHER, "%s: it became shorter while it was copied", from);
            break;
        }
        left -= n;
        if (cli_stopped()) {
            code = cli_tell_stopped(o->r->c, to);
            break;
        }
    }
    if (out >= 0 && (fsync(out) | close(out)) && code == EXIT_DONE)
        code = failed(o, to);
    if (in >= 0)
        close(in);
    return code;
}

/* Puts a file of the source into the result as it is, under another name. */
static int take_file(const struct output_folder *o, const char *file, const char *name)
{
    char from[PATH_SIZE], to[PATH_SIZE];
    int code = join(o, from, o->from, file);
    if (code == EXIT_DONE)
        code = join(o, to, o->dir, name);
    if (code != EXIT_DONE)
        return code;
    if (o->r->c->train.copy_target)
        return copy_file(o, from, to);
    return symlink(from, to) ? failed(o, to) : EXIT_DONE;
}

/* ---- the weights ------------------------------------------------------------------------------------------------- */

/* One file with everything. */
static int write_single(struct output_folder *o)
{
    size_t count = trainer_count(o->r->trainer);
    vb_tensor *list = cli_must(calloc(tensors_of_source(o) + count + 1, sizeof *list));
    int code = write_trained(o, SINGLE, list, kept_of(o, SINGLE, list), 0, count);
    free(list);
    return code;
}

static int write_index(const struct output_folder *o)
{
    char path[PATH_SIZE];
    json_t *index = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)o->bytes, "weight_map",
                              o->weight_map);
    cli_must(index);
    int code = join(o, path, o->dir, INDEX);
    if (code == EXIT_DONE && json_dump_file(index, path, JSON_INDENT(2)))
        code = failed(o, path);
    json_decref(index);
    return code;
}

/* The trained tensors, in files model-trained-00001.safetensors .. */
static int write_trained_files(struct output_folder *o)
{
    char name[64];
    size_t count = trainer_count(o->r->trainer);
    vb_tensor *list = cli_must(calloc(count + 1, sizeof *list));
    int code = EXIT_DONE, number = 0;
    for (size_t first = 0, last; first < count && code == EXIT_DONE; first = last) {
        size_t bytes = 0;
        for (last = first; last < count && (last == first || bytes < MOST_BYTES); last++)
            bytes += trainer_tensor(o->r->trainer, last)->rows * trainer_tensor(o->r->trainer, last)->cols *
                     sizeof(float);
        do
            snprintf(name, sizeof name, "model-trained-%05d.safetensors", ++number);
        while (json_object_get(o->files, name)); /* the source may be the result of another run */
        code = write_trained(o, name, list, 0, first, last);
    }
    free(list);
    return code;
}

static int write_many(struct output_folder *o)
{
    const char *file, *target = "model-target.safetensors";
    json_t *dropped, *value;
    vb_tensor *list = cli_must(calloc(tensors_of_source(o) + 1, sizeof *list));
    int code = EXIT_DONE;
    json_object_foreach(o->files, file, dropped)
    {
        if (code != EXIT_DONE)
            break;
        size_t kept = json_is_true(dropped) ? kept_of(o, file, list) : 0;
        if (kept)
            code = write_tensors(o, file, list, kept);
        else if (!json_is_true(dropped))
            code = take_file(o, file, o->is_single ? target : file);
    }
    free(list);
    if (o->is_single) { /* with an index beside it, no file is called model.safetensors */
        json_object_foreach(o->weight_map, file, value)
            json_string_set(value, target);
    }
    if (code == EXIT_DONE)
        code = write_trained_files(o);
    return code == EXIT_DONE ? write_index(o) : code;
}

/* ---- other files ------------------------------------------------------------------------------------------------- */

/* config.json with num_nextn_predict_layers. If it says the right number already, it is copied byte by byte. */
static int write_config(const struct output_folder *o)
{
    static const char key[] = "num_nextn_predict_layers";
    char from[PATH_SIZE], to[PATH_SIZE], *text;
    size_t size;
    vb_error err;
    int modules = o->modules, code = join(o, from, o->from, "config.json");
    if (code == EXIT_DONE)
        code = join(o, to, o->dir, "config.json");
    if (code != EXIT_DONE)
        return code;
    if (vb_read_file(NULL, from, &text, &size, &err))
        return cli_error(o->r->c, &err);
    json_t *config = json_read(text, size, from, &err);
    vb_free(NULL, text);
    if (!config)
        return cli_error(o->r->c, &err);
    int whole = o->whole, heads = o->source && has_heads(&o->r->c->train); /* whole: then no weight is quantized any
                                                                              more; DIR/initial has no heads */
    if (!heads && json_integer_value(json_object_get(config, key)) == modules &&
        !(whole && json_object_get(config, "quantization_config"))) {
        code = copy_file(o, from, to);
    } else {
        json_object_set_new(config, key, json_integer(modules));
        if (heads)
            heads_describe(o->r, config);
        if (whole)
            json_object_del(config, "quantization_config");
        if (json_dump_file(config, to, JSON_INDENT(2) | JSON_REAL_PRECISION(15)))
            code = failed(o, to);
    }
    json_decref(config);
    return code;
}

/* Tokenizer, template, code and so on; not weights, and not the card, which describes the other model. */
static int is_other(const char *name)
{
    static const char *const not[] = {".safetensors", ".index.json", ".bin", ".gguf", ".pth", ".pt", ".md", "~"};
    if (*name == '.' || !strcmp(name, "config.json"))
        return 0;
    for (size_t i = 0; i < sizeof not / sizeof *not; i++)
        if (cli_ends_with(name, not[i]))
            return 0;
    return 1;
}

static int copy_others(const struct output_folder *o)
{
    char from[PATH_SIZE], to[PATH_SIZE];
    struct stat st;
    int code = EXIT_DONE;
    DIR *dir = opendir(o->from);
    if (!dir)
        return failed(o, o->from);
    for (const struct dirent *e; code == EXIT_DONE && (e = readdir(dir));) {
        if (!is_other(e->d_name))
            continue;
        code = join(o, from, o->from, e->d_name);
        if (code == EXIT_DONE)
            code = join(o, to, o->dir, e->d_name);
        if (code == EXIT_DONE && !stat(from, &st) && S_ISREG(st.st_mode) && st.st_size <= MOST_OTHER)
            code = copy_file(o, from, to);
    }
    closedir(dir);
    return code;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

void output_remove(const char *path)
{
    char name[PATH_SIZE];
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
            snprintf(name, sizeof name, "%s/%s", path, e->d_name) < PATH_SIZE)
            unlink(name);
    if (dir)
        closedir(dir);
    rmdir(path);
}

static int num_layers(const struct training *r)
{
    vb_model_facts facts;
    vb_model_look(r->c->model, &facts);
    return facts.layers;
}

/* Makes the folder DIR/`name`, in the place of an older one. */
static int write_folder(struct output_folder *o, const char *name)
{
    char model[PATH_SIZE], part[32];
    snprintf(part, sizeof part, "%s.new", name);
    o->files = json_object();
    o->weight_map = json_object();
    int code = join(o, o->dir, o->r->dir, part);
    if (code == EXIT_DONE)
        code = join(o, model, o->r->dir, name);
    output_remove(o->dir);
    if (code == EXIT_DONE && mkdir(o->dir, 0777))
        code = failed(o, o->dir);
    if (code == EXIT_DONE && o->source) {
        look_at_trained(o);
        look_at_source(o);
    }
    if (code == EXIT_DONE)
        code = !o->source || (o->is_single && o->cut) ? write_single(o) : write_many(o);
    if (code == EXIT_DONE)
        code = write_config(o);
    if (code == EXIT_DONE)
        code = copy_others(o);
    json_decref(o->files);
    json_decref(o->weight_map);
    if (code == EXIT_DONE) {
        output_remove(model); /* of a run that has ended, and was then continued */
        if (rename(o->dir, model))
            code = failed(o, model);
    }
    if (code != EXIT_DONE)
        output_remove(o->dir);
    return code;
}

int output_write(struct training *r)
{
    const struct cli_training *t = &r->c->train;
    struct output_folder o = {.r = r, .from = r->model_dir, .layers = num_layers(r), .whole = is_whole(t),
                              .f32 = !strcmp(t->type, "f32"), .modules = trainer_modules(r->trainer)};
    vb_error err;
    if (vb_tensors_open(&o.source, r->model_dir, NULL, &err))
        return cli_error(r->c, &err);
    int code = write_folder(&o, "model");
    vb_tensors_close(o.source);
    return code;
}

int output_write_initial(struct training *r, const char *from)
{
    return write_folder(&(struct output_folder){.r = r, .from = from, .whole = 1, .f32 = 1,
                                                .modules = trainer_modules(r->trainer)},
                        "initial");
}
