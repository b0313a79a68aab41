/* engine/files/checkpoint.c -- opens and maps the files of a checkpoint, and finds tensors by name. The code here never
 * reads weights; it only stores pointers to them. */
#include "engine/files/checkpoint_internal.h"
#include "engine/files/gguf.h"
#include "engine/base/json.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_CHUNK 65536 /* names are stored in chunks of this size, so that they never move */
#define MAX_SHARDS 100000

/* Names of the files with the weights, the preferred ones first: Hugging Face, Mistral (which publishes most models
 * under both names), and ModelSlim, whose older versions wrote the last two. */
static const struct file_names {
    const char *single, *index;
} file_names[] = {{"model.safetensors", "model.safetensors.index.json"},
                  {"consolidated.safetensors", "consolidated.safetensors.index.json"},
                  {"quant_model_weights.safetensors", "quant_model_weights.safetensors.index.json"},
                  {"quant_model_weight_w8a8_dynamic.safetensors",
                   "quant_model_weight_w8a8_dynamic.safetensors.index.json"},
                  {"quant_model_weight_w8a8.safetensors", "quant_model_weight_w8a8.safetensors.index.json"}};

struct text {
    struct text *next;
    size_t used;
    char bytes[TEXT_CHUNK];
};

struct copy {
    struct copy *next;
    char pad[64 - sizeof(struct copy *)]; /* keeps the memory after this header aligned to 64 bytes */
};

int checkpoint_no_memory(const struct checkpoint *c, vb_error *err)
{
    return vb_fail(err, VB_NO_MEMORY, "%s: no memory for the names of its tensors (%zu so far)", c->dir, c->count);
}

const char *checkpoint_keep_text(struct checkpoint *c, const char *s)
{
    size_t n = strlen(s) + 1;
    assert(n <= TEXT_CHUNK);
    if (!c->text || c->text->used + n > TEXT_CHUNK) {
        struct text *chunk = vb_alloc(&c->allocator, 1, sizeof *chunk);
        if (!chunk)
            return NULL;
        chunk->next = c->text;
        c->text = chunk;
    }
    char *copy = memcpy(c->text->bytes + c->text->used, s, n);
    c->text->used += n;
    return copy;
}

void *checkpoint_keep_copy(struct checkpoint *c, size_t bytes)
{
    struct copy *copy = bytes <= SIZE_MAX - sizeof *copy ? vb_alloc(&c->allocator, 1, sizeof *copy + bytes) : NULL;
    if (!copy)
        return NULL;
    copy->next = c->copies;
    c->copies = copy;
    c->copied += bytes;
    return copy + 1;
}

int checkpoint_add(struct checkpoint *c, const struct tensor *t, vb_error *err)
{
    if (c->count == c->room) {
        size_t room = c->room ? 2 * c->room : 256;
        struct tensor *more = vb_alloc(&c->allocator, room, sizeof *more);
        if (!more)
            return checkpoint_no_memory(c, err);
        if (c->count)
            memcpy(more, c->tensors, c->count * sizeof *more);
        vb_free(&c->allocator, c->tensors);
        c->tensors = more;
        c->room = room;
    }
    const char *name = checkpoint_keep_text(c, t->name);
    if (!name)
        return checkpoint_no_memory(c, err);
    c->tensors[c->count] = *t;
    c->tensors[c->count++].name = name;
    return VB_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

int checkpoint_build_index(struct checkpoint *c, vb_error *err)
{
    if (c->count > INT32_MAX || !names_make(&c->names, c->count, &c->allocator))
        return checkpoint_no_memory(c, err);
    if (c->count)
        qsort(c->tensors, c->count, sizeof *c->tensors, by_name);
    for (size_t i = 0; i < c->count; i++) {
        struct tensor *t = &c->tensors[i];
        if (i && !strcmp(t->name, t[-1].name))
            return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s is there twice, also in %s", t->file, t->name, t[-1].file);
        names_add(&c->names, t->name, strlen(t->name), (int32_t)i);
    }
    return VB_OK;
}

int checkpoint_finish(struct checkpoint **out, struct checkpoint *c, int rc, vb_error *err)
{
    if (!rc && !c->names.entries)
        rc = checkpoint_build_index(c, err);
    if (rc)
        checkpoint_close(c);
    else
        *out = c;
    return rc;
}

int checkpoint_create(struct checkpoint **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    struct checkpoint *c = vb_alloc(a, 1, sizeof *c);
    if (c && a)
        c->allocator = *a;
    if (c && (c->dir = vb_strdup(a, dir))) {
        *out = c;
        return VB_OK;
    }
    vb_free(a, c);
    return vb_fail(err, VB_NO_MEMORY, "%s: no memory to open it", dir);
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    vb_allocator a = c->allocator;
    mapping_close_all(&c->mappings, &a);
    while (c->copies) {
        struct copy *copy = c->copies;
        c->copies = copy->next;
        vb_free(&a, copy);
    }
    while (c->text) {
        struct text *t = c->text;
        c->text = t->next;
        vb_free(&a, t);
    }
    vb_free(&a, c->names.entries);
    vb_free(&a, c->tensors);
    vb_free(&a, c->dir);
    vb_free(&a, c);
}

int checkpoint_from_list(struct checkpoint **out, const struct tensor *list, size_t count, const vb_allocator *a,
                         vb_error *err)
{
    struct checkpoint *c = NULL;
    const char *file = NULL;
    int rc = checkpoint_create(&c, "the list", a, err);
    if (rc)
        return rc;
    for (size_t i = 0; !rc && i < count; i++) {
        struct tensor t = list[i];
        if (!file || strcmp(file, t.file ? t.file : "")) /* in the list, tensors of the same file follow each other */
            file = checkpoint_keep_text(c, t.file ? t.file : "");
        t.file = file;
        t.data = NULL;
        t.taken = t.copied = 0;
        t.ignored = NULL;
        rc = file ? checkpoint_add(c, &t, err) : checkpoint_no_memory(c, err);
    }
    if (!rc && !(rc = checkpoint_build_index(c, err))) {
        *out = c;
        return VB_OK;
    }
    checkpoint_close(c);
    return rc;
}

/* Maps DIR/FILE. checkpoint_close unmaps it. */
static int map_file(struct checkpoint *c, const char *file, struct mapping **out, vb_error *err)
{
    char *path = vb_path(&c->allocator, c->dir, file);
    int rc = path ? mapping_open(&c->mappings, path, file, "safetensors", &c->allocator, err)
                  : checkpoint_no_memory(c, err);
    vb_free(&c->allocator, path);
    *out = c->mappings;
    return rc;
}

struct shard {
    struct checkpoint *c;
    const char *file; /* from checkpoint_keep_text */
    const char *data; /* the mapped file */
    const char *index_name;
    const json_t *weight_map; /* NULL: a single file without an index */
};

static int add_entry(void *context, const struct safetensors_entry *e, vb_error *err)
{
    const struct shard *s = context;
    struct tensor t = e->tensor;
    if (s->weight_map) {
        const char *said = json_string_value(json_object_get(s->weight_map, t.name));
        if (!said)
            return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s is not listed in %s", s->file, t.name, s->index_name);
        if (strcmp(said, s->file))
            return vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s is here, %s says it is in %s", s->file, t.name,
                           s->index_name, said);
    }
    t.file = s->file;
    t.data = s->data + e->begin;
    return checkpoint_add(s->c, &t, err);
}

/* `file` is the file's name for error messages. It must live as long as the checkpoint. */
static int parse_shard(struct checkpoint *c, const struct mapping *m, const char *file, const char *index_name,
                       const json_t *weight_map, vb_error *err)
{
    struct shard s = {c, file, m->data, index_name, weight_map};
    return safetensors_parse(m->data, m->size, m->size, file, add_entry, &s, &c->allocator, err);
}

static int open_shard(struct checkpoint *c, const char *file, const char *index_name, const json_t *weight_map,
                      vb_error *err)
{
    struct mapping *m = NULL;
    const char *name = checkpoint_keep_text(c, file);
    int rc = name ? map_file(c, file, &m, err) : checkpoint_no_memory(c, err);
    return rc ? rc : parse_shard(c, m, name, index_name, weight_map, err);
}

/* Returns whether `s` is an acceptable name of a shard. Shards are in the directory of their index, so the name
 * contains no slash. It is printable and does not begin with a dot. */
static int plain_file_name(const char *s)
{
    size_t n = strlen(s);
    if (!n || n > TENSOR_MAX_NAME || s[0] == '.')
        return 0;
    for (; *s; s++)
        if (*s == '/' || *s == '\\' || (unsigned char)*s < 0x20 || *s == 0x7f)
            return 0;
    return 1;
}

/* Writes the names of the shards to the keys of *files, in the order in which they first occur in the index. */
static int list_shards(const json_t *root, const char *index_name, json_t *files, const json_t **weight_map,
                       vb_error *err)
{
    const char *name;
    json_t *file;
    char shown[JSON_SHOWN];
    *weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(*weight_map) || !json_object_size(*weight_map))
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: weight_map is %s, wanted an object of tensor and file names",
                       index_name, json_show(*weight_map, shown));
    json_object_foreach((json_t *)*weight_map, name, file)
    {
        if (!json_is_string(file) || !plain_file_name(json_string_value(file)))
            return vb_fail(err, VB_BAD_CHECKPOINT, "%s: weight_map has %s as a file, wanted the plain name of a shard",
                           index_name, json_show(file, shown));
        if (json_object_set_new(files, json_string_value(file), json_true()))
            return vb_fail(err, VB_NO_MEMORY, "%s: no memory for its shards", index_name);
    }
    if (json_object_size(files) > MAX_SHARDS)
        return vb_fail(err, VB_UNSUPPORTED, "%s: %zu shards, the most is %d", index_name, json_object_size(files),
                       MAX_SHARDS);
    return VB_OK;
}

/* Checks that every tensor in the index is in a shard. add_entry has already checked that every tensor of a shard is in
 * the index. */
static int check_all_listed(const struct checkpoint *c, const char *index_name, const json_t *weight_map, vb_error *err)
{
    const char *name;
    json_t *file, *shown;
    char text[JSON_SHOWN];
    if (c->count == json_object_size(weight_map))
        return VB_OK;
    json_object_foreach((json_t *)weight_map, name, file)
    {
        if (checkpoint_find(c, name))
            continue;
        shown = json_string(name); /* this name is in no shard's header, so nothing has checked that it is printable */
        vb_fail(err, VB_BAD_CHECKPOINT, "%s: %s is not in %s, where %s says it is", c->dir, json_show(shown, text),
                json_string_value(file), index_name);
        json_decref(shown);
        return VB_BAD_CHECKPOINT;
    }
    return VB_OK;
}

static int open_sharded(struct checkpoint *c, const char *path, const char *index_name, vb_error *err)
{
    char *text = NULL;
    size_t size;
    const char *file;
    json_t *root = NULL, *files = json_object(), *value;
    const json_t *weight_map;
    int rc = files ? vb_read_file(&c->allocator, path, &text, &size, err) : checkpoint_no_memory(c, err);

    if (!rc && !(root = json_read(text, size, index_name, err)))
        rc = err ? err->code : VB_BAD_CHECKPOINT;
    if (rc || (rc = list_shards(root, index_name, files, &weight_map, err)))
        goto done;
    json_object_foreach(files, file, value)
        if ((rc = open_shard(c, file, index_name, weight_map, err)))
            goto done;
    if (!(rc = checkpoint_build_index(c, err)))
        rc = check_all_listed(c, index_name, weight_map, err);
done:
    json_decref(files);
    json_decref(root);
    vb_free(&c->allocator, text);
    return rc;
}

/* Opens the tensors of a GGUF file. The parsed header is freed, because it is not needed later. */
static int open_gguf(struct checkpoint **out, const char *path, const vb_allocator *a, vb_error *err)
{
    struct gguf *g;
    int rc = gguf_open(&g, path, a, err);
    if (rc)
        return rc;
    rc = checkpoint_from_gguf(out, g, a, err);
    gguf_close(g);
    return rc;
}

/* Opens the file or the shards of one pair of names. Sets *found to 0 if the directory has neither. */
static int open_named(struct checkpoint *c, const struct file_names *names, int *found, vb_error *err)
{
    char *single = vb_path(&c->allocator, c->dir, names->single), *index = vb_path(&c->allocator, c->dir, names->index);
    int rc = single && index ? VB_OK : checkpoint_no_memory(c, err), is_single = !rc && vb_file_exists(single);
    *found = !rc && (is_single || vb_file_exists(index));
    if (is_single) /* Hugging Face also prefers this file */
        rc = open_shard(c, names->single, NULL, NULL, err);
    else if (*found)
        rc = open_sharded(c, index, names->index, err);
    vb_free(&c->allocator, index);
    vb_free(&c->allocator, single);
    return rc;
}

int checkpoint_open(struct checkpoint **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    struct checkpoint *c = NULL;
    if (gguf_is_path(dir))
        return open_gguf(out, dir, a, err);
    int rc = checkpoint_create(&c, dir, a, err);
    if (rc)
        return rc;
    int found = 0;
    for (size_t i = 0; !rc && !found && i < sizeof file_names / sizeof *file_names; i++)
        rc = open_named(c, &file_names[i], &found, err);
    if (!rc && !found)
        rc = !vb_file_exists(dir) ? vb_fail(err, VB_IO, "%s: %s", dir, strerror(ENOENT))
                                  : vb_fail(err, VB_IO, "%s: there is neither %s nor %s", dir, file_names[0].single,
                                            file_names[0].index);
    if (!rc)
        rc = checkpoint_rename(c, err);
    return checkpoint_finish(out, c, rc, err);
}

int checkpoint_is_there(const char *dir)
{
    int found = gguf_is_path(dir);
    for (size_t i = 0; !found && i < 2 * sizeof file_names / sizeof *file_names; i++) {
        char *path = vb_path(NULL, dir, i % 2 ? file_names[i / 2].index : file_names[i / 2].single);
        found = path && vb_file_exists(path);
        vb_free(NULL, path);
    }
    return found;
}

static int begins_as_gguf(const void *begin, size_t size) { return size >= 4 && !memcmp(begin, "GGUF", 4); }

static int is_safetensors(const char *path)
{
    char begin[4] = "";
    struct stat st;
    if (stat(path, &st) || S_ISDIR(st.st_mode))
        return 0;
    int fd = S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    ssize_t n = fd >= 0 ? read(fd, begin, sizeof begin) : 0;
    if (fd >= 0)
        close(fd);
    return !begins_as_gguf(begin, n > 0 ? (size_t)n : 0);
}

int checkpoint_open_tensors(struct checkpoint **out, const char *path, const vb_allocator *a, vb_error *err)
{
    struct checkpoint *c = NULL;
    if (!is_safetensors(path))
        return checkpoint_open(out, path, a, err);
    int rc = checkpoint_create(&c, path, a, err);
    if (rc)
        return rc;
    rc = mapping_open(&c->mappings, path, path, "safetensors", a, err);
    if (!rc)
        rc = parse_shard(c, c->mappings, c->dir, NULL, NULL, err);
    return checkpoint_finish(out, c, rc, err);
}

int checkpoint_metadata(const struct checkpoint *c, struct json_t **out, vb_error *err)
{
    const struct mapping *m = c->mappings;
    struct json_trouble why = {0};
    uint64_t n = 0;
    *out = NULL;
    if (!m || m->next || begins_as_gguf(m->data, m->size))
        return VB_OK;
    const unsigned char *data = m->data;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | data[i];
    if (n > m->size - 8) /* n was valid when the file was opened, but the file may have changed since */
        return VB_OK;
    json_t *header = json_load_any_number((const char *)data + 8, n, 0, &why);
    *out = json_incref(json_object_get(header, "__metadata__"));
    json_decref(header);
    return why.no_memory ? json_fail(&why, n, c->dir, err) : VB_OK;
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    int32_t i = names_find(&c->names, name, strlen(name));
    return i >= 0 ? &c->tensors[i] : NULL;
}

const struct tensor *checkpoint_take(struct checkpoint *c, const char *name)
{
    int32_t i = names_find(&c->names, name, strlen(name));
    if (i < 0)
        return NULL;
    assert(!c->tensors[i].taken && !c->tensors[i].ignored);
    c->tensors[i].taken++;
    return &c->tensors[i];
}

void checkpoint_ignore(struct checkpoint *c, const struct tensor *t, const char *why)
{
    struct tensor *mine = &c->tensors[t - c->tensors];
    assert(!mine->taken && !mine->ignored);
    mine->ignored = why;
}

void checkpoint_set_copied(struct checkpoint *c, const struct tensor *t)
{
    c->tensors[t - c->tensors].copied = 1;
}

size_t checkpoint_count(const struct checkpoint *c)
{
    return c->count;
}

const struct tensor *checkpoint_at(const struct checkpoint *c, size_t i)
{
    assert(i < c->count);
    return &c->tensors[i];
}

size_t checkpoint_with_prefix(const struct checkpoint *c, const char *prefix, size_t *first)
{
    size_t n = strlen(prefix), low = 0, high = c->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(c->tensors[middle].name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *first = low;
    for (high = low; high < c->count && !strncmp(c->tensors[high].name, prefix, n); high++)
        ;
    return high - low;
}

size_t checkpoint_copied(const struct checkpoint *c)
{
    return c->copied;
}

const char *checkpoint_dir(const struct checkpoint *c)
{
    return c->dir;
}
