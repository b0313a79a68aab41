/* tools/diff/read.c -- reads a dump of Verbatim or of another engine, as rows with Verbatim's names. Files are not
 * trusted: vb_tensors_open checks the header, and this file checks the manifest. */
#include "tools/cli/filter.h"
#include "tools/cli/naming_file.h"
#include "tools/diff/read.h"
#include "tools/dump/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>


static void note(struct diff_side *side, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(struct diff_side *side, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_array_append_new(side->notes, json_string(text));
}

/* --- the file --- */

static int by_place_in_file(const void *a, const void *b)
{
    const struct diff_entry *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Copies the list of tensors, and sorts it by their places in the file. */
static void take_entries(struct diff_reader *r)
{
    vb_tensor t;
    while (vb_tensors_at(r->side->file, r->count, &t))
        r->count++;
    r->entries = cli_must(malloc((r->count + 1) * sizeof *r->entries));
    for (size_t i = 0; i < r->count; i++) {
        vb_tensors_at(r->side->file, i, &t);
        r->entries[i] = (struct diff_entry){.name = t.name, .dtype_name = t.dtype, .ndim = t.ndim, .data = t.data,
                                            .bytes = t.bytes};
        memcpy(r->entries[i].shape, t.shape, sizeof t.shape);
    }
    qsort(r->entries, r->count, sizeof *r->entries, by_place_in_file);
}

static int map_file(struct diff_reader *r)
{
    char magic[4];
    struct stat st;
    /* a pipe is refused; without O_NONBLOCK, opening it would wait for a writer */
    int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        int code = cli_fail(r->c, EXIT_OTHER, "%s: cannot be read: %s", r->path,
                            fd < 0 ? strerror(errno) : "not a file");
        if (fd >= 0)
            close(fd);
        return code;
    }
    ssize_t n = read(fd, magic, sizeof magic);
    close(fd);
    if (!st.st_size)
        return cli_fail(r->c, EXIT_OTHER, "%s: cannot be read: it is empty", r->path);
    if (n == sizeof magic && !memcmp(magic, "GGUF", sizeof magic))
        return cli_fail(r->c, EXIT_OTHER, "%s: a GGUF file is no dump", r->path);
    vb_error err = {0};
    if (vb_tensors_open(&r->side->file, r->path, NULL, &err))
        return cli_error(r->c, &err);
    take_entries(r);
    return EXIT_DONE;
}

size_t diff_dtype_of(const char *name, enum diff_dtype *dtype)
{
    static const struct { const char *name; enum diff_dtype dtype; size_t item; } known[] = {
        {"F64", DIFF_F64, 8}, {"F32", DIFF_F32, 4}, {"F16", DIFF_F16, 2}, {"BF16", DIFF_BF16, 2},
        {"I32", DIFF_INTEGERS, 4}, {"I64", DIFF_INTEGERS, 8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) {
            *dtype = known[i].dtype;
            return known[i].item;
        }
    return 0;
}

/* Returns whether the tensor has numbers that diff can read. If not, adds a note. */
static int is_readable(struct diff_reader *r, const struct diff_entry *e, enum diff_dtype *dtype)
{
    if (!diff_dtype_of(e->dtype_name, dtype))
        note(r->side, "%s is %s: diff reads F64, F32, F16, BF16, I64 and I32", e->name, e->dtype_name);
    else if (!e->bytes)
        note(r->side, "%s is empty: left out", e->name);
    else
        return 1;
    return 0;
}

/* --- rows --- */

static void write_shape(const struct diff_entry *e, char shape[64])
{
    size_t used = 0;
    for (int d = 0; d < e->ndim; d++)
        used += (size_t)snprintf(shape + used, 64 - used, "%s%lld", d ? "," : "[", (long long)e->shape[d]);
    snprintf(shape + used, 64 - used, "%s]", e->ndim ? "" : "[");
}

/* How many dimensions of a tensor count its rows. */
static int row_dims(const json_t *line)
{
    const json_t *dims = json_object_get(line, "row_dims");
    return dims ? (int)json_integer_value(dims) : 1;
}

/* Finds the number of rows and their width. The first extent is the number of rows. Without a manifest, the shape may
 * begin with one or more extents of 1, for a batch of one; they are skipped. A tensor with a single extent is then one
 * row. */
static void shape_of(const struct diff_entry *e, const json_t *line, size_t *rows, size_t *width)
{
    int d = 0, first = row_dims(line);
    *rows = *width = 1;
    while (!line && d + 2 < e->ndim && e->shape[d] == 1)
        d++;
    int one = e->ndim == 0 || (e->ndim == 1 && !line);
    for (int i = one ? 0 : d; i < e->ndim; i++)
        *(!one && i < d + first ? rows : width) *= (size_t)e->shape[i];
}

static int fill(struct diff_reader *r, const struct diff_entry *e, struct diff_series *s, const json_t *line)
{
    enum diff_dtype dtype = DIFF_F32;
    size_t rows, width, item = diff_dtype_of(e->dtype_name, &dtype);
    const char *data = e->data;
    const json_t *picked = json_object_get(line, "rows");
    shape_of(e, line, &rows, &width);
    rows = picked ? json_array_size(picked) : rows;
    int scores = naming_of_context(s->name);
    if (s->item &&
        ((width != s->width && (!scores || e->stats)) || item != s->item || s->is_stats != (e->stats != NULL))) {
        note(r->side, "%s is %zu numbers wide, in another pass %zu: left out", e->name, width, s->width);
        return EXIT_DONE;
    }
    s->dtype = dtype;
    s->item = item;
    s->width = width > s->width ? width : s->width;
    s->known_rows = line != NULL;
    s->is_stats = e->stats != NULL;
    write_shape(e, s->shape);
    if (line)
        s->layout = json_string_value(json_object_get(line, "layout"));
    s->layout = !s->layout ? NULL : !strcmp(s->layout, "halves") ? "halves" : "interleaved";
    const json_t *step = json_object_get(line, json_is_integer(json_object_get(line, "step")) ? "step" : "pass");
    r->side->has_steps |= json_is_integer(step);
    int outside = json_is_integer(step) && !filter_has(r->c->steps, json_integer_value(step));
    for (size_t i = 0; i < rows; i++) {
        struct diff_row row = {.index = (int32_t)i, .token = -1, .outside = outside, .width = width,
                               .data = data ? data + i * width * item : NULL};
        if (picked && data)
            row.data = data + (size_t)json_integer_value(json_array_get(picked, i)) * width * item;
        if (e->stats) {
            row.width = 0;
            row.data = (const char *)&e->stats[i];
        }
        if (line) {
            row.sequence = (int32_t)json_integer_value(json_array_get(json_object_get(line, "sequence"), i));
            if (r->c->sequence >= 0 && row.sequence != r->c->sequence)
                continue;
            row.sequence = r->c->sequence >= 0 ? 0 : row.sequence;
            row.index = (int32_t)json_integer_value(json_array_get(json_object_get(line, "index"), i));
            row.token = (int32_t)json_integer_value(json_array_get(json_object_get(line, "token"), i));
            json_int_t draft = json_integer_value(json_array_get(json_object_get(line, "draft"), i));
            row.chosen = json_integer_value(json_object_get(line, "step")) > 0;
            int rejected = draft > 0 && json_is_false(json_array_get(json_object_get(line, "accepted"), i));
            if (rejected)
                local_reject(r->side, s, line, i, &row);
            if (draft < 0 || rejected || (draft > 0 && s->depth >= 0))
                continue; /* leave out padding, rejected drafts, and rows of a module that were computed from drafts */
            diff_add_row(s, row);
        } else {
            if (s->count == s->room)
                s->rows = cli_must(realloc(s->rows, (s->room = rows) * sizeof *s->rows));
            s->rows[s->count++] = row;
        }
    }
    return EXIT_DONE;
}

/* --- with a manifest --- */

static int bad_line(struct diff_reader *r, const char *manifest, size_t number, const char *what)
{
    return cli_fail(r->c, EXIT_OTHER, "%s: line %zu: %s", manifest, number, what);
}

const char *diff_line_fault(const json_t *line, const struct diff_entry *e)
{
    static const char *const lists[] = {"sequence", "token", "index"};
    if (!json_is_string(json_object_get(line, "tensor")) || !json_is_string(json_object_get(line, "name")))
        return "not a line of a dump's manifest: tensor or name is missing";
    for (size_t i = 0; i < 2; i++) {
        const json_t *place = json_object_get(line, i ? "mtp_depth" : "layer");
        if (place && !json_is_null(place) &&
            (!json_is_integer(place) || json_integer_value(place) < 0 || json_integer_value(place) > 1 << 20))
            return "layer and mtp_depth are whole numbers from 0, or null";
    }
    const json_t *picked = json_object_get(line, "rows"), *dims = json_object_get(line, "row_dims");
    size_t rows = 0, width;
    if (e && dims && (!json_is_integer(dims) || json_integer_value(dims) < 1 || json_integer_value(dims) > e->ndim))
        return "row_dims is not from 1 to the number of the tensor's dimensions";
    if (e)
        shape_of(e, line, &rows, &width);
    for (size_t i = 0; e && picked && i < json_array_size(picked); i++)
        if (!json_is_integer(json_array_get(picked, i)) || json_integer_value(json_array_get(picked, i)) < 0 ||
            json_integer_value(json_array_get(picked, i)) >= (json_int_t)rows)
            return "rows has a number that is no row of the tensor";
    rows = picked ? json_array_size(picked) : rows;
    for (size_t i = 0; e && i < 3; i++) {
        const json_t *list = json_object_get(line, lists[i]), *number;
        size_t k;
        if (!json_is_array(list) || e->ndim < 1 || json_array_size(list) != rows)
            return "sequence, token or index has another number of rows than the tensor";
        json_array_foreach((json_t *)(uintptr_t)list, k, number)
            /* -1: the row of first-row=phantom */
            if (!json_is_integer(number) || json_integer_value(number) < (i == 2 ? -1 : 0) ||
                json_integer_value(number) > INT32_MAX)
                return "sequence, token and index are whole numbers from 0 (index: from -1)";
    }
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct diff_entry *const *)a)->name, (*(struct diff_entry *const *)b)->name);
}

static struct diff_entry *entry_named(const struct diff_reader *r, const char *name)
{
    struct diff_entry wanted = {.name = name}, *key = &wanted;
    struct diff_entry **found = bsearch(&key, r->by_name, r->count, sizeof *r->by_name, by_name);
    return found ? *found : NULL;
}

int diff_take_line(struct diff_reader *r, const struct diff_entry *e, const json_t *line)
{
    const json_t *depth = json_object_get(line, "mtp_depth"), *layer = json_object_get(line, "layer");
    int d = json_is_integer(depth) ? (int)json_integer_value(depth) : -1;
    if (d >= 0 && json_is_integer(layer))
        r->side->layers = (int)json_integer_value(layer) - d;
    char name[NAMING_ROOM]; /* a manifest has Verbatim's names, if no file maps them */
    const char *said = json_string_value(json_object_get(line, "name"));
    enum naming_answer answer = r->c->naming ? naming_file_from(r->c->naming, said, name) : NAMING_UNKNOWN;
    if (answer == NAMING_LEFT_OUT)
        return EXIT_DONE;
    return fill(r, e, diff_series_of(r->side, answer == NAMING_FOUND ? name : said, d), line);
}

static int manifest_line(struct diff_reader *r, const char *manifest, size_t number, const json_t *line,
                         size_t *missing, size_t *changed)
{
    const char *fault = diff_line_fault(line, NULL);
    struct diff_entry *e = fault ? NULL : entry_named(r, json_string_value(json_object_get(line, "tensor")));
    if (!fault && e)
        fault = diff_line_fault(line, e);
    if (fault)
        return bad_line(r, manifest, number, fault);
    if (!e) {
        ++*missing;
        return EXIT_DONE;
    }
    enum diff_dtype dtype;
    char digest[SHA256_DIGEST_STRING_LENGTH];
    const json_t *sha = json_object_get(line, "sha256");
    e->told = 1;
    if (json_is_string(sha))
        SHA256Data((const uint8_t *)e->data, e->bytes, digest);
    if (json_is_string(sha) && strcmp(json_string_value(sha), digest)) {
        if (!(*changed)++)
            note(r->side,
                 "%s: %s is not what its manifest has the SHA-256 of: the file was changed after it was dumped",
                 r->path, e->name);
    }
    if (!is_readable(r, e, &dtype))
        return EXIT_DONE;
    return diff_take_line(r, e, line);
}

static int read_manifest(struct diff_reader *r)
{
    size_t length = strlen(r->path),
           stem = length > 12 && !strcmp(r->path + length - 12, ".safetensors") ? length - 12 : length;
    size_t room = 0, number = 0, missing = 0, changed = 0;
    char *manifest = cli_must(malloc(length + 8)), *text = NULL;
    int code = EXIT_DONE;
    sprintf(manifest, "%.*s.jsonl", (int)stem, r->path);
    int fd = open(manifest, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd >= 0 && !fstat(fd, &st) && !S_ISREG(st.st_mode))
        code = cli_fail(r->c, EXIT_OTHER, "%s: not a regular file", manifest);
    FILE *f = fd >= 0 ? cli_must(fdopen(fd, "rb")) : NULL;
    r->by_name = cli_must(malloc((r->count + 1) * sizeof *r->by_name));
    for (size_t i = 0; i < r->count; i++)
        r->by_name[i] = &r->entries[i];
    qsort(r->by_name, r->count, sizeof *r->by_name, by_name);
    for (ssize_t n; f && code == EXIT_DONE && (n = getline(&text, &room, f)) > 0;) {
        struct json_trouble why;
        json_t *line = json_load_any_number(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
        r->side->has_manifest = 1;
        code = json_is_object(line)
                   ? manifest_line(r, manifest, ++number, line, &missing, &changed)
                   : bad_line(r, manifest, number + 1, "it is not a JSON object: is the manifest cut short?");
        json_decref(line);
    }
    if (f)
        fclose(f);
    if (missing)
        note(r->side, "%s lists %zu tensors that the file lacks: the dump is partial", manifest, missing);
    if (changed > 1)
        note(r->side, "%s: %zu tensors are not what the manifest has the SHA-256 of", r->path, changed);
    free(text);
    free(manifest);
    return code;
}

/* Rows of MTP modules are not used: row i of depth k reads token i + k + 1. */
void diff_find_tokens(struct diff_side *side)
{
    size_t most = 0;
    for (size_t i = 0; i < side->count; i++)
        for (size_t k = 0; k < side->series[i].count; k++)
            most = (size_t)side->series[i].rows[k].index + 1 > most ? (size_t)side->series[i].rows[k].index + 1 : most;
    if (most > 1 << 24)
        return;
    side->tokens = cli_must(malloc((most + 1) * sizeof *side->tokens));
    for (size_t i = 0; i < most; i++)
        side->tokens[i] = -1;
    for (size_t i = 0; i < side->count; i++)
        for (size_t k = 0; k < side->series[i].count && side->series[i].depth < 0; k++)
            if (side->series[i].rows[k].sequence == 0 && side->series[i].rows[k].index >= 0)
                side->tokens[side->series[i].rows[k].index] = side->series[i].rows[k].token;
    while (side->token_count < most && side->tokens[side->token_count] >= 0)
        side->token_count++;
}

/* --- without a manifest --- */

static int text_tokens(struct diff_side *side, const char *text)
{
    char *end;
    for (const char *p = text; p && *p; p = *end == ',' ? end + 1 : end) {
        long id = strtol(p, &end, 10);
        if (end == p || id < 0 || id > INT32_MAX || (*end && *end != ','))
            return -1;
        side->tokens = cli_must(realloc(side->tokens, (side->token_count + 1) * sizeof *side->tokens));
        side->tokens[side->token_count++] = (int32_t)id;
    }
    return 0;
}

/* Reads the tokens of a dump without manifest. tools/hf_dump.py writes them into __metadata__; the files in
 * golden/truth have a tensor of them. */
static void file_tokens(struct diff_reader *r, const struct diff_entry *e)
{
    struct diff_side *side = r->side;
    if (!e && text_tokens(side, vb_tensors_metadata(side->file, "tokens")))
        side->token_count = 0;
    for (int64_t i = 0; e && i < e->shape[0]; i++) {
        struct diff_series s = {.dtype = DIFF_INTEGERS, .item = e->dtype_name[1] == '6' ? 8 : 4, .width = 1};
        struct diff_row row = {.width = 1, .data = e->data + (size_t)i * s.item};
        double x;
        diff_numbers(&s, &row, &x);
        if (!(x >= 0 && x <= INT32_MAX)) {
            note(side, "%s: %s [%lld] is %.0f, which is no token: the tokens are left out", r->path, e->name,
                 (long long)i, x);
            side->token_count = 0;
            return;
        }
        side->tokens = cli_must(realloc(side->tokens, (side->token_count + 1) * sizeof *side->tokens));
        side->tokens[side->token_count++] = (int32_t)x;
    }
}

static int depth_of(const struct diff_side *side, const char *name)
{
    int step, last, layer = naming_place(name, &step, &last);
    return side->layers >= 0 && layer >= side->layers ? layer - side->layers : -1;
}

/* Guesses the number of the target's layers: the first layer that has a name of which only MTP modules have one is the
 * first MTP layer. */
static void guess_layers(struct diff_reader *r)
{
    static const char *const only_mtp[] = {".enorm.", ".hnorm.", ".eh_proj.", ".shared_head."};
    for (size_t i = 0; i < r->count && r->side->layers < 0; i++)
        for (size_t k = 0; k < 4; k++) {
            int step, last, layer = naming_place(r->entries[i].name, &step, &last);
            if (layer >= 0 && strstr(r->entries[i].name, only_mtp[k]) &&
                (r->side->layers < 0 || layer < r->side->layers))
                r->side->layers = layer;
        }
}

/* Translates a name. A hook may name the output of a module by the module alone: if nobody knows a name, ".output" is
 * added to it. */
static void translate(const struct diff_reader *r, const char *theirs, char name[NAMING_ROOM])
{
    const struct naming *of_file = r->c->naming ? naming_file_system(r->c->naming) : NULL;
    const struct naming *names = r->names ? r->names : of_file ? of_file : naming_find("hf");
    char longer[NAMING_ROOM];
    enum naming_answer answer = r->c->naming ? naming_file_from(r->c->naming, theirs, name) : NAMING_UNKNOWN;
    if (answer == NAMING_LEFT_OUT)
        *name = '\0';
    if (answer != NAMING_UNKNOWN)
        return;
    if (naming_from(names, theirs, r->side->layers, name) || naming_is_ours(theirs))
        return;
    snprintf(longer, sizeof longer, "%.300s.output", theirs);
    if (!entry_named(r, longer) && !naming_from(names, longer, r->side->layers, name))
        snprintf(name, NAMING_ROOM, "%s", naming_is_ours(longer) ? longer : theirs);
}

static int foreign(struct diff_reader *r, const struct diff_entry *e)
{
    enum diff_dtype dtype;
    char name[NAMING_ROOM], *at;
    if (!is_readable(r, e, &dtype))
        return EXIT_DONE;
    if (!strcmp(e->name, "tokens") && e->ndim == 1 && dtype == DIFF_INTEGERS) {
        if (!r->side->token_count)
            file_tokens(r, e);
        return EXIT_DONE;
    }
    if ((at = strrchr(e->name, '@')) && at[1]) {
        note(r->side, "%s is of a later pass, and no manifest says which rows it has: left out", e->name);
        return EXIT_DONE;
    }
    translate(r, e->name, name);
    if (!*name)
        return EXIT_DONE;
    size_t before = r->side->count;
    struct diff_series *s = diff_series_of(r->side, name, depth_of(r->side, name));
    if (r->side->count == before)
        return cli_fail(r->c, EXIT_OTHER, "%s: two tensors are %s, one of them is called %s", r->path, name, e->name);
    return fill(r, e, s, NULL);
}

/* --- a whole dump --- */

/* Adds a note about lines of --names FILE that match no tensor: they may be misspelled. */
static void note_unused(struct diff_reader *r)
{
    size_t line, unused = r->c->naming ? naming_file_unused(r->c->naming, &line) : 0;
    if (unused)
        note(r->side, "%s: line %zu matches no tensor of %s%s", r->c->names, line, r->side->path,
             unused > 1 ? ", nor do others" : "");
}

int diff_read(struct cli *c, struct diff_side *side, const char *path, const struct naming *names, int layers)
{
    struct diff_reader r = {.c = c, .side = side, .names = names};
    struct stat st;
    char *inside = vb_path(NULL, path, "dump.safetensors");
    if (c->naming)
        naming_file_forget(c->naming);
    int is_dir = !stat(path, &st) && S_ISDIR(st.st_mode), code;
    *side = (struct diff_side){.path = path, .kind = "dump", .layers = layers, .notes = json_array(),
                               .places = json_object()};
    r.path = is_dir ? cli_must(inside) : path;
    if (is_dir && !vb_file_exists(inside))
        code = cli_fail(c, EXIT_OTHER, "%s has neither config.json nor dump.safetensors: it is no model and no dump",
                        path);
    else if (diff_is_stats(path))
        code = c->command && c->command != &command_diff
                   ? cli_fail(c, EXIT_OTHER, "%s: it has statistics; only diff can use them", path)
                   : diff_read_stats(&r);
    else
        code = map_file(&r);
    if (code == EXIT_DONE && !side->is_stats)
        code = read_manifest(&r);
    for (size_t i = 0; i < side->count; i++)
        if (side->series[i].disordered)
            diff_keep_last_rows(&side->series[i]);
    if (code == EXIT_DONE && side->has_manifest)
        diff_find_tokens(side);
    else if (code == EXIT_DONE)
        file_tokens(&r, NULL);
    if (side->layers < 0)
        guess_layers(&r);
    for (size_t i = 0; i < r.count && code == EXIT_DONE; i++)
        if (!r.entries[i].told)
            code = foreign(&r, &r.entries[i]);
    if (code == EXIT_DONE)
        diff_sort(side);
    note_unused(&r);
    free(r.entries);
    free(r.by_name);
    vb_free(NULL, inside);
    return code;
}
