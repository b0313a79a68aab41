/* engine/export/gguf_write_tokenizer.c -- writes a tokenizer to the metadata of a GGUF file, as the counterpart of
 * text/gguf.c. A tiktoken.model or tekken.json is first converted to a tokenizer.json.
 *
 * GGUF stores only a name for the rule that splits text into words, and for an added token only whether it is special.
 * Therefore the keys are read back like a GGUF file, and the result is compared with the tokenizer of the directory. If
 * the tables differ, the file gets no tokenizer, because a tokenizer with other ids would be worse. */
#include "engine/export/gguf_write_internal.h"
#include "engine/base/json.h"
#include "engine/text/export.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 }; /* kinds of tokens, with llama.cpp's numbers */

struct putting {
    struct vb_quantize *p;
    const char *dir;
    const struct vb_tokenizer *t;
    json_t *json, *config; /* contents of tokenizer.json and of tokenizer_config.json; NULL if there is no such file */
    const char *why; /* why the file gets no tokenizer; NULL if it gets one */
    vb_error *err;
};

/* Reads DIR/NAME as JSON into *out. If there is no such file, *out does not change. */
static int read_json(const struct putting *s, const char *name, json_t **out)
{
    const vb_allocator *a = &s->p->allocator;
    char *path = vb_path(a, s->dir, name), *text = NULL;
    struct json_trouble why;
    size_t size;
    int rc = path ? VB_OK : gguf_no_memory(s->p->model, s->err);
    if (!rc && vb_file_exists(path) && !(rc = vb_read_file(a, path, &text, &size, s->err)) &&
        !(*out = json_load_any_number(text, size, 0, &why)))
        rc = json_fail(&why, size, path, s->err);
    vb_free(a, text);
    vb_free(a, path);
    return rc;
}

/* ---- tokens and merges ---- */

static int put_tokens(const struct putting *s, struct gguf_bytes *b)
{
    size_t V = s->p->model->config.dims.V, i;
    const char **words = vb_alloc(b->a, V, sizeof *words), *word;
    unsigned char *kinds = vb_alloc(b->a, V, 1);
    char unused[32];
    json_t *id, *entry;
    if (words && kinds) {
        json_object_foreach(json_object_get(json_object_get(s->json, "model"), "vocab"), word, id)
        {
            words[json_integer_value(id)] = word;
            kinds[json_integer_value(id)] = NORMAL;
        }
        json_array_foreach(json_object_get(s->json, "added_tokens"), i, entry)
        {
            json_int_t at = json_integer_value(json_object_get(entry, "id"));
            words[at] = json_string_value(json_object_get(entry, "content"));
            kinds[at] = json_is_true(json_object_get(entry, "special")) ? CONTROL : USER_DEFINED;
        }
        gguf_put_array(b, "tokenizer.ggml.tokens", GGUF_STRING, V);
        for (i = 0; i < V; i++) {
            snprintf(unused, sizeof unused, "[PAD%zu]", i); /* the vocabulary has ids without a token */
            word = words[i] ? words[i] : unused;
            gguf_put_text(b, word, strlen(word));
        }
        gguf_put_array(b, "tokenizer.ggml.token_type", GGUF_I32, V);
        for (i = 0; i < V; i++)
            gguf_put_number(b, words[i] ? kinds[i] : UNUSED, 4);
    }
    int failed = !words || !kinds;
    vb_free(b->a, words);
    vb_free(b->a, kinds);
    return failed ? gguf_no_memory(s->p->model, s->err) : VB_OK;
}

/* Writes the merges. In a tokenizer.json, a merge is "left right" in old files and ["left", "right"] in new files. */
static void put_merges(const struct putting *s, struct gguf_bytes *b)
{
    json_t *merges = json_object_get(json_object_get(s->json, "model"), "merges"), *merge;
    size_t i;
    gguf_put_array(b, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        if (json_is_string(merge)) {
            gguf_put_text(b, json_string_value(merge), json_string_length(merge));
            continue;
        }
        gguf_put_number(b, json_string_length(left) + 1 + json_string_length(right), 8);
        gguf_put(b, json_string_value(left), json_string_length(left));
        gguf_put(b, " ", 1);
        gguf_put(b, json_string_value(right), json_string_length(right));
    }
}

/* ---- special ids, chat template ---- */

/* Returns the id of the token that is the value of `key` in tokenizer_config.json, or -1. */
static int32_t named_token(const struct putting *s, const char *key)
{
    const json_t *value = json_object_get(s->config, key);
    const char *content = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    size_t size, n = content ? strlen(content) : 0;
    for (int32_t id = 0; content && id < tokenizer_size(s->t); id++) {
        const char *piece = tokenizer_piece(s->t, id, &size);
        if (piece && size == n && !memcmp(piece, content, n))
            return id;
    }
    return -1;
}

/* Returns the chat template: `value` is a string, or a list of named templates, of which "default" is returned. */
static const char *template_of(const json_t *value)
{
    const json_t *entry;
    size_t i;
    json_array_foreach(value, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(entry, "template"));
    }
    return json_string_value(value);
}

static int put_template(const struct putting *s, struct gguf_bytes *b)
{
    static const char key[] = "tokenizer.chat_template";
    const vb_allocator *a = &s->p->allocator;
    const char *inside = template_of(json_object_get(s->config, "chat_template"));
    char *path = vb_path(a, s->dir, "chat_template.jinja"), *text = NULL;
    size_t size = 0;
    int rc = path ? VB_OK : gguf_no_memory(s->p->model, s->err);
    if (!rc && inside)
        gguf_put_string(b, key, inside);
    else if (!rc && vb_file_exists(path) && !(rc = vb_read_file(a, path, &text, &size, s->err)) &&
             utf8_valid(text, size) == size)
        gguf_put_string(b, key, text);
    vb_free(a, text);
    vb_free(a, path);
    return rc;
}

/* Writes up to three end tokens, because GGUF has three keys for them. If the tokenizer's own end token is one of them,
 * it comes first. */
static void put_end_tokens(const struct putting *s, struct gguf_bytes *b)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const struct config *c = &s->p->model->config;
    int first = 0, used = 0;
    for (int i = 0; s->t && i < c->num_eos; i++)
        if (c->eos_token_ids[i] == tokenizer_eos(s->t))
            first = i;
    for (int i = 0; i < c->num_eos && used < 3; i++) {
        int id = c->eos_token_ids[i == 0 ? first : i == first ? 0 : i];
        if (id < c->vocab_size)
            gguf_put_u32(b, keys[used++], id);
    }
    if (used < c->num_eos)
        gguf_note(s->p, "of %d end tokens the file has %d: GGUF has keys for three, of the vocabulary", c->num_eos,
                  used);
}

static void put_special_ids(const struct putting *s, struct gguf_bytes *b)
{
    const struct config *c = &s->p->model->config;
    int32_t bos = s->t && tokenizer_bos(s->t) >= 0 ? tokenizer_bos(s->t) : c->bos_token_id;
    int32_t padding = s->t ? named_token(s, "pad_token") : -1, unknown = s->t ? named_token(s, "unk_token") : -1;
    if (bos >= 0 && bos < c->vocab_size)
        gguf_put_u32(b, "tokenizer.ggml.bos_token_id", bos);
    put_end_tokens(s, b);
    if (padding >= 0)
        gguf_put_u32(b, "tokenizer.ggml.padding_token_id", padding);
    if (unknown >= 0)
        gguf_put_u32(b, "tokenizer.ggml.unknown_token_id", unknown);
    if (s->t)
        gguf_put_bool(b, "tokenizer.ggml.add_bos_token", tokenizer_add_bos(s->t));
}

/* ---- reading it back ---- */

/* Sets *good to 1 if a GGUF file with these keys has the same tokenizer as the directory, else to 0. */
static int read_back(const struct putting *s, const struct gguf_bytes *keys, int *good)
{
    const vb_allocator *a = &s->p->allocator;
    struct gguf_bytes b = {.a = a};
    struct gguf *g = NULL;
    struct vb_tokenizer *t = NULL;
    vb_error err = {0};
    gguf_put(&b, "GGUF", 4);
    gguf_put_number(&b, 3, 4);
    gguf_put_number(&b, 0, 8);
    gguf_put_number(&b, keys->keys, 8);
    gguf_put(&b, keys->data, keys->size);
    int rc = b.failed || keys->failed ? gguf_no_memory(s->p->model, s->err) : VB_OK;
    *good = !rc && !(rc = gguf_parse(&g, b.data, b.size, s->dir, a, &err)) &&
            !(rc = tokenizer_parse_gguf(&t, g, a, &err)) && tokenizer_same_tables(s->t, t);
    if (*good && tokenizer_cuts_slices(t) && !tokenizer_cuts_slices(s->t))
        gguf_note(s->p, "a text of more than 25,000 characters without a blank, or of 400,000, is cut there, as Kimi's "
                        "Python code "
                        "does it, and tokenizer.json does not");
    if (rc == VB_NO_MEMORY)
        rc = gguf_no_memory(s->p->model, s->err);
    else
        rc = VB_OK; /* other errors mean only that the tokenizer cannot be read back, so *good is 0 */
    tokenizer_close(t);
    gguf_close(g);
    vb_free(a, b.data);
    return rc;
}

static void tell_stripping(const struct putting *s)
{
    int count = tokenizer_count_stripping(s->t);
    if (count)
        gguf_note(s->p,
                  "GGUF does not say which added tokens strip blanks or want to stand alone (%d here do): around them "
                  "ids "
                  "may differ",
                  count);
}

/* ---- all of it ---- */

/* Writes the keys of the tokenizer and sets p->pre. If GGUF cannot express the tokenizer, sets s->why instead. */
static int put_known(struct putting *s, struct gguf_bytes *b)
{
    const char *pre;
    int good, rc = tokenizer_pre_of(s->t, &pre, s->err);
    if (!rc && !pre)
        s->why = "GGUF has no name, that is known here, for how text is cut into words";
    else if (!rc && tokenizer_size(s->t) > s->p->model->config.vocab_size)
        s->why = "the tokenizer has tokens beyond the vocabulary of the model";
    if (rc || s->why)
        return rc;
    gguf_put_string(b, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(b, "tokenizer.ggml.pre", pre);
    if ((rc = put_tokens(s, b)))
        return rc;
    put_merges(s, b);
    put_special_ids(s, b);
    if ((rc = put_template(s, b)) || (rc = read_back(s, b, &good)))
        return rc;
    if (good) {
        s->p->pre = pre;
        tell_stripping(s);
    } else {
        s->why = "read back from GGUF's keys it would not be that of the directory";
    }
    return VB_OK;
}

/* Writes that the file has no tokenizer. Such a file can still be used with --tokens. */
static void put_none(struct putting *s, struct gguf_bytes *b)
{
    s->t = NULL;
    gguf_note(s->p, "no tokenizer: %s", s->why);
    gguf_put_string(b, "tokenizer.ggml.model", "none");
    put_special_ids(s, b);
}

/* Opens the tokenizer of the directory. A tiktoken.model or tekken.json is also converted to JSON, in s->json and
 * s->config. Reserved tokens beyond the vocabulary are left out: Kimi's Python code has two more of them than the model
 * has rows. */
static int open_tokenizer(struct putting *s, struct vb_tokenizer **t, vb_error *err)
{
    const vb_allocator *a = &s->p->allocator;
    int rc, ranks = tokenizer_has_ranks(s->dir, a, err);
    if (ranks <= 0)
        return ranks ? ranks : tokenizer_open(t, s->dir, a, err);
    if ((rc = tokenizer_say_ranks(&s->json, &s->config, s->dir, s->p->model->config.vocab_size, a, err)))
        return rc;
    return tokenizer_parse_said(t, s->json, s->config, s->dir, a, err);
}

static int read_files(struct putting *s)
{
    int rc = s->json ? VB_OK : read_json(s, "tokenizer.json", &s->json);
    return rc || s->config ? rc : read_json(s, "tokenizer_config.json", &s->config);
}

int gguf_put_tokenizer(struct gguf_bytes *b, struct vb_quantize *p, const char *dir, vb_error *err)
{
    struct putting s = {.p = p, .dir = dir, .err = err};
    struct gguf_bytes keys = {.a = &p->allocator};
    struct vb_tokenizer *t = NULL;
    vb_error why;
    int notes = p->num_notes, rc = open_tokenizer(&s, &t, &why);
    s.t = t;
    if (rc == VB_IO || rc == VB_UNSUPPORTED) {
        s.why = why.message;
        rc = VB_OK;
    } else if (rc) {
        rc = vb_fail(err, rc, "%s", why.message);
    } else if (!(rc = read_files(&s))) {
        rc = put_known(&s, &keys);
    }
    if (!rc && p->pre) {
        gguf_put(b, keys.data, keys.size);
        b->keys += keys.keys;
        b->failed |= keys.failed;
    } else if (!rc) {
        p->num_notes = notes; /* removes the notes about the tokenizer, which is left out */
        put_none(&s, b);
    }
    vb_free(&p->allocator, keys.data);
    json_decref(s.json);
    json_decref(s.config);
    tokenizer_close(t);
    return rc;
}
