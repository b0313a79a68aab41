/* engine/text/tokenizer.c -- opening a tokenizer, asking it, encoding with it. */
#include "engine/base/json.h"
#include "engine/files/gguf.h"
#include "engine/text/tokenizer_internal.h"

#include <string.h>

#define HEAP_LIMIT_KIB (64 * 1024) /* of PCRE2's interpreter, for one match */

/* ---- messages and JSON ---- */

struct shown token_show(const char *s)
{
    struct shown out = {""};
    size_t n = 0, step;
    for (; *s; s += step) {
        utf8_at(s, &step);
        if (n + step + 4 > sizeof out.text) {
            memcpy(out.text + n, "...", 4);
            break;
        }
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            out.text[n++] = '?';
        else
            for (size_t i = 0; i < step; i++)
                out.text[n++] = s[i];
    }
    return out;
}

json_t *get_member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

int get_flag(struct tokenizer_loading *l, const json_t *object, const char *where, const char *key, int otherwise,
             int *flag)
{
    const json_t *value = get_member(object, key);
    if (value && !json_is_boolean(value))
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s.%s is not a boolean", l->file, where, key);
    *flag = value ? json_is_true(value) : otherwise;
    return VB_OK;
}

/* A text of a file; data NULL: there is no such file. Or what a GGUF file says as such a file would. */
struct source {
    const char *data, *name;
    size_t size;
    json_t *said;
};

static int load_json(struct tokenizer_loading *l, struct source from)
{
    struct json_trouble why;
    l->root = from.said ? json_incref(from.said) : json_load_any_number(from.data, from.size, 0, &why);
    if (l->root && json_is_object(l->root))
        return VB_OK;
    if (l->root)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: not a JSON object", l->file);
    return json_fail(&why, from.size, l->file, l->err);
}

/* ---- PCRE2's memory ---- */

static void *pcre_alloc(size_t size, void *memory)
{
    return vb_alloc(&((struct pcre_memory *)memory)->allocator, size, 1);
}

/* While opening. PCRE2's compiler for machine code does not say whether memory failed it or the system forbids
 * executable pages, which is no error. */
static void *pcre_alloc_and_tell(size_t size, void *memory)
{
    void *block = pcre_alloc(size, memory);
    if (!block)
        ((struct pcre_memory *)memory)->failed = 1;
    return block;
}

static void pcre_free(void *block, void *memory)
{
    vb_free(&((struct pcre_memory *)memory)->allocator, block);
}

/* ---- opening ---- */

/* bos_token or eos_token: a string, or an object with a content. *id stays -1 when there is none. */
static int config_token(struct tokenizer_loading *l, const char *key, int32_t *id)
{
    const json_t *value = get_member(l->root, key);
    if (!value)
        return VB_OK;
    const char *content = json_string_value(json_is_object(value) ? get_member(value, "content") : value);
    if (!content)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is neither a string nor an object with a content", l->file,
                       key);
    if ((*id = names_find(&l->names, content, strlen(content))) < 0)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is \"%s\", which is no token", l->file, key,
                       token_show(content).text);
    return VB_OK;
}

static int config_load(struct tokenizer_loading *l)
{
    struct vb_tokenizer *t = l->t;
    int rc;
    if ((rc = config_token(l, "bos_token", &t->bos)) || (rc = config_token(l, "eos_token", &t->eos)) ||
        (rc = get_flag(l, l->root, "the top", "add_bos_token", 0, &t->add_bos)))
        return rc;
    if (t->add_bos && t->bos < 0)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: add_bos_token is true and there is no bos_token", l->file);
    return VB_OK;
}

static int parse(struct vb_tokenizer **out, struct source json, struct source config, const vb_allocator *a,
                 vb_error *err)
{
    *out = NULL;
    struct vb_tokenizer *t = vb_alloc(a, 1, sizeof *t);
    if (!t)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for a tokenizer", json.name);
    if (a)
        t->memory.allocator = *a;
    t->bos = t->eos = -1;
    t->slices = json_is_true(json_object_get(json.said, "slices"));
    struct tokenizer_loading l = {.t = t, .file = json.name, .err = err};
    json_t *first = NULL; /* l.names points into it */
    int rc;
    if (!(l.pcre = pcre2_general_context_create(pcre_alloc_and_tell, pcre_free, &t->memory))) {
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for a tokenizer", json.name);
        goto done;
    }
    if ((rc = load_json(&l, json)) || (rc = tables_load(&l)) ||
        (rc = split_load(&l, get_member(l.root, "pre_tokenizer"))))
        goto done;
    if (config.data || config.said) {
        first = l.root;
        l.root = NULL;
        l.file = config.name;
        if ((rc = load_json(&l, config)) || (rc = config_load(&l)))
            goto done;
    }
    if (t->memory.failed)
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for its patterns", json.name);
done:
    json_decref(first);
    json_decref(l.root);
    vb_free(a, l.names.entries);
    pcre2_general_context_free(l.pcre);
    if (rc)
        tokenizer_close(t);
    else
        *out = t;
    return rc;
}

int tokenizer_parse(struct vb_tokenizer **out, const char *json, size_t size, const char *config, size_t config_size,
                    const char *name, const vb_allocator *a, vb_error *err)
{
    return parse(out, (struct source){json, name, size, NULL},
                 (struct source){config, "tokenizer_config.json", config_size, NULL}, a, err);
}

int tokenizer_parse_said(struct vb_tokenizer **out, json_t *json, json_t *config, const char *name,
                         const vb_allocator *a, vb_error *err)
{
    return parse(out, (struct source){.name = name, .said = json}, (struct source){.name = name, .said = config}, a,
                 err);
}

/* Takes over what was said, if rc says that it was. */
static int parse_and_forget(int rc, struct vb_tokenizer **out, json_t *json, json_t *config, const char *name,
                            const vb_allocator *a, vb_error *err)
{
    *out = NULL;
    if (!rc)
        rc = tokenizer_parse_said(out, json, config, name, a, err);
    json_decref(json);
    json_decref(config);
    return rc;
}

int tokenizer_parse_gguf(struct vb_tokenizer **out, const struct gguf *g, const vb_allocator *a, vb_error *err)
{
    json_t *json, *config;
    int rc = tokenizer_from_gguf(&json, &config, g, err);
    return parse_and_forget(rc, out, json, config, gguf_name(g), a, err);
}

int tokenizer_parse_tiktoken(struct vb_tokenizer **out, const char *ranks, size_t size, const char *config,
                             size_t config_size, const char *name, const vb_allocator *a, vb_error *err)
{
    struct tiktoken from = {ranks, config, name, "tokenizer_config.json", size, config_size, INT32_MAX};
    json_t *json, *said;
    int rc = tokenizer_from_tiktoken(&json, &said, &from, a, err);
    return parse_and_forget(rc, out, json, said, name, a, err);
}

static int open_gguf(struct vb_tokenizer **out, const char *path, const vb_allocator *a, vb_error *err)
{
    struct gguf *g;
    int rc = gguf_open(&g, path, a, err);
    if (!rc)
        rc = tokenizer_parse_gguf(out, g, a, err);
    gguf_close(g);
    return rc;
}

int tokenizer_parse_tekken(struct vb_tokenizer **out, const char *text, size_t size, const char *name,
                           const vb_allocator *a, vb_error *err)
{
    json_t *json, *config;
    int rc = tokenizer_from_tekken(&json, &config, text, size, name, a, err);
    return parse_and_forget(rc, out, json, config, name, a, err);
}

/* Returns 1 if the directory has the file, else 0, or a negative error code. */
static int has_file(const char *dir, const char *name, const vb_allocator *a, vb_error *err)
{
    char *path = vb_path(a, dir, name);
    int rc = path ? vb_file_exists(path) != 0 : vb_fail(err, VB_NO_MEMORY, "%s: no memory for a path", dir);
    vb_free(a, path);
    return rc;
}

int tokenizer_has_ranks(const char *dir, const vb_allocator *a, vb_error *err)
{
    int json = has_file(dir, "tokenizer.json", a, err);
    if (json)
        return json < 0 ? json : 0;
    int tiktoken = has_file(dir, "tiktoken.model", a, err);
    return tiktoken ? tiktoken : has_file(dir, "tekken.json", a, err);
}

int tokenizer_say_ranks(json_t **json, json_t **config, const char *dir, int32_t limit, const vb_allocator *a,
                        vb_error *err)
{
    int tiktoken = has_file(dir, "tiktoken.model", a, err);
    *json = *config = NULL;
    return tiktoken < 0 ? tiktoken
           : tiktoken   ? tokenizer_say_tiktoken(json, config, dir, limit, a, err)
                        : tokenizer_say_tekken(json, config, dir, a, err);
}

static int open_ranks(struct vb_tokenizer **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    json_t *json, *config;
    int rc = tokenizer_say_ranks(&json, &config, dir, INT32_MAX, a, err);
    return parse_and_forget(rc, out, json, config, dir, a, err);
}

int tokenizer_open(struct vb_tokenizer **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    *out = NULL;
    if (gguf_is_path(dir))
        return open_gguf(out, dir, a, err);
    int ranks = tokenizer_has_ranks(dir, a, err);
    if (ranks)
        return ranks < 0 ? ranks : open_ranks(out, dir, a, err);
    char *path = vb_path(a, dir, "tokenizer.json"), *config_path = vb_path(a, dir, "tokenizer_config.json");
    char *data = NULL, *config = NULL;
    size_t size = 0, config_size = 0;
    int rc;
    if (!path || !config_path) {
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for a path", dir);
        goto done;
    }
    if ((rc = vb_read_file(a, path, &data, &size, err)) ||
        (vb_file_exists(config_path) && (rc = vb_read_file(a, config_path, &config, &config_size, err))))
        goto done;
    rc = parse(out, (struct source){data, path, size, NULL}, (struct source){config, config_path, config_size, NULL}, a,
               err);
done:
    vb_free(a, path);
    vb_free(a, config_path);
    vb_free(a, data);
    vb_free(a, config);
    return rc;
}

void tokenizer_close(struct vb_tokenizer *t)
{
    if (!t)
        return;
    vb_allocator a = t->memory.allocator;
    split_close(t);
    added_close(t);
    vb_free(&a, t->arena);
    vb_free(&a, t->pieces);
    vb_free(&a, t->merges);
    vb_free(&a, t->words.entries);
    vb_free(&a, t);
}

/* ---- asking ---- */

const char *tokenizer_piece(const struct vb_tokenizer *t, int32_t id, size_t *size)
{
    if (id < 0 || id >= t->size || !t->pieces[id].used)
        return NULL;
    *size = t->pieces[id].size;
    return t->arena + t->pieces[id].at;
}

int32_t tokenizer_bos(const struct vb_tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct vb_tokenizer *t)
{
    return t->eos;
}

int tokenizer_add_bos(const struct vb_tokenizer *t)
{
    return t->add_bos;
}

int32_t tokenizer_size(const struct vb_tokenizer *t)
{
    return t->size;
}

int tokenizer_is_special(const struct vb_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size && t->pieces[id].special;
}

const vb_allocator *tokenizer_allocator(const struct vb_tokenizer *t)
{
    return &t->memory.allocator;
}

/* ---- encoding ---- */

int encoding_push(struct encoding *e, int32_t id)
{
    if (e->n_ids == e->ids_capacity) {
        const vb_allocator *a = tokenizer_allocator(e->t);
        size_t capacity = 2 * e->ids_capacity;
        int32_t *ids = vb_alloc(a, capacity, sizeof *ids);
        if (!ids)
            return vb_fail(e->err, VB_NO_MEMORY, "no memory for %zu tokens", capacity);
        memcpy(ids, e->ids, e->n_ids * sizeof *ids);
        vb_free(a, e->ids);
        e->ids = ids;
        e->ids_capacity = capacity;
    }
    e->ids[e->n_ids++] = id;
    return VB_OK;
}

/* Text in which the added tokens of one kind are looked for; in the rest, those of the other kind, then the words. */
static int encode_stretch(struct encoding *e, const char *text, size_t size, int normalized, int parse_special)
{
    struct added_scan scan = {
        .e = e, .text = text, .size = size, .normalized = normalized, .parse_special = parse_special};
    const char *part = NULL;
    size_t n = 0;
    int32_t id;
    int rc;
    while ((rc = added_next(&scan, &part, &n, &id)) > 0) {
        if (id >= 0)
            rc = encoding_push(e, id);
        else if (normalized)
            rc = split_and_encode(e, 0, part, n);
        else
            rc = encode_stretch(e, part, n, 1, parse_special);
        if (rc)
            return rc;
    }
    return rc;
}

static int encode_text(struct encoding *e, const char *text, size_t size, int parse_special)
{
    struct slices s = {.text = text, .size = size};
    int rc = VB_OK;
    if (!e->t->slices)
        return encode_stretch(e, text, size, 0, parse_special);
    for (size_t n; !rc && (n = slices_next(&s));)
        rc = encode_stretch(e, text + s.at - n, n, 0, parse_special);
    return rc;
}

static int encode(const struct vb_tokenizer *t, const char *text, size_t size, int parse_special, int words,
                  int32_t **ids, size_t *count, vb_error *err)
{
    *ids = NULL;
    *count = 0;
    size_t valid = utf8_valid(text, size);
    if (valid < size)
        return vb_fail(err, VB_BAD_ARGUMENT, "the text is not valid UTF-8 at byte %zu", valid);
    if (size > INT32_MAX - 64)
        return vb_fail(err, VB_BAD_ARGUMENT, "a text of %zu bytes is too long", size);
    const vb_allocator *a = tokenizer_allocator(t);
    struct pcre_memory memory = {*a, 0};
    struct encoding e = {.t = t, .err = err, .words = words, .ids_capacity = size / 3 + 16};
    pcre2_general_context *pcre = pcre2_general_context_create(pcre_alloc, pcre_free, &memory);
    int rc = VB_OK;
    if (!pcre || !(e.match = pcre2_match_data_create(1, pcre)) || !(e.limits = pcre2_match_context_create(pcre)) ||
        !(e.ids = vb_alloc(a, e.ids_capacity, sizeof *e.ids))) {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory to encode %zu bytes", size);
    } else {
        pcre2_set_heap_limit(e.limits, HEAP_LIMIT_KIB);
        rc = !words ? encode_text(&e, text, size, parse_special) : size ? split_and_encode(&e, 0, text, size) : VB_OK;
    }
    pcre2_match_data_free(e.match);
    pcre2_match_context_free(e.limits);
    pcre2_general_context_free(pcre);
    vb_free(a, e.symbols);
    vb_free(a, e.heap);
    vb_free(a, e.spaced);
    vb_free(a, e.begins[0]);
    vb_free(a, e.begins[1]);
    if (rc) {
        vb_free(a, e.ids);
        return rc;
    }
    *ids = e.ids;
    *count = e.n_ids;
    return VB_OK;
}

int tokenizer_encode(const struct vb_tokenizer *t, const char *text, size_t size, int parse_special, int32_t **ids,
                     size_t *count, vb_error *err)
{
    return encode(t, text, size, parse_special, 0, ids, count, err);
}

int tokenizer_words(const struct vb_tokenizer *t, const char *text, size_t size, int32_t **sizes, size_t *count,
                    vb_error *err)
{
    return encode(t, text, size, 0, 1, sizes, count, err);
}
