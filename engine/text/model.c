/* engine/text/model.c -- the "model", "added_tokens", "normalizer" and "decoder" of tokenizer.json, into tables.
 *
 * A byte-level vocabulary writes each byte as one printable character (GPT-2's mapping: "G-breve t" is " t"), so that
 * JSON can hold any bytes. Here tokens are turned into their bytes once, at opening. A token with a character outside
 * the mapping stands for itself: <｜begin▁of▁sentence｜> is such a one in DeepSeek-V3's vocabulary. */
#include "engine/text/tokenizer_internal.h"

#include <string.h>

/* ---- bytes as characters ---- */

/* Printable Latin-1 stands for itself, the other 68 bytes are U+0100 to U+0143 in order. */
void byte_characters(int byte_of[LAST_BYTE_CHARACTER + 1])
{
    int next = 0x100;
    for (int c = 0; c <= LAST_BYTE_CHARACTER; c++)
        byte_of[c] = -1;
    for (int b = 0; b < 256; b++)
        byte_of[(b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad) ? b : next++] = b;
}

/* The bytes of a token of the vocabulary, not longer than its name; *mapped says whether every character is a byte. */
static size_t token_bytes(const int *byte_of, const char *name, size_t size, char *out, int *mapped)
{
    size_t n = 0;
    for (size_t i = 0, step; i < size; i += step) {
        uint32_t c = utf8_at(name + i, &step);
        if (c > LAST_BYTE_CHARACTER || byte_of[c] < 0) {
            memcpy(out, name, size);
            *mapped = 0;
            return size;
        }
        out[n++] = (char)byte_of[c];
    }
    *mapped = 1;
    return n;
}

/* ---- vocabulary ---- */

static int check_ids(struct tokenizer_loading *l, json_t *vocab, int32_t *size, size_t *bytes)
{
    const char *name;
    json_t *value;
    json_object_foreach(vocab, name, value)
    {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= MAX_TOKEN_ID)
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: token \"%s\" has no id from 0 to %d", l->file,
                           token_show(name).text, MAX_TOKEN_ID - 1);
        if (id >= *size)
            *size = (int32_t)id + 1;
        *bytes += strlen(name);
    }
    const struct added *d = &l->t->added;
    for (size_t i = 0; i < d->n_tokens; i++) {
        if (d->tokens[i].id >= *size)
            *size = d->tokens[i].id + 1;
        *bytes += d->tokens[i].size;
    }
    return *bytes < UINT32_MAX ? VB_OK : vb_fail(l->err, VB_UNSUPPORTED, "%s: 4 GiB of tokens", l->file);
}

/* The place of a new token; its bytes go to arena[at..], size bytes of them. */
static int claim(struct tokenizer_loading *l, int32_t id, const char *name, size_t size)
{
    struct piece *p = &l->t->pieces[id];
    if (p->used)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: token \"%s\" has id %d, which another token has", l->file,
                       token_show(name).text, id);
    *p = (struct piece){.at = (uint32_t)l->arena_used, .size = (uint32_t)size & 0x3fffffff, .used = 1};
    l->arena_used += size;
    return VB_OK;
}

static int vocab_load(struct tokenizer_loading *l, json_t *vocab)
{
    struct vb_tokenizer *t = l->t;
    size_t bytes = 1, n = json_object_size(vocab);
    int byte_of[LAST_BYTE_CHARACTER + 1], mapped, rc = check_ids(l, vocab, &t->size, &bytes);
    if (rc)
        return rc;
    t->arena = vb_alloc(&t->memory.allocator, bytes, 1);
    t->pieces = vb_alloc(&t->memory.allocator, (size_t)t->size + 1, sizeof *t->pieces);
    if (!t->arena || !t->pieces || !names_make(&l->names, n + t->added.n_tokens, &t->memory.allocator) ||
        (t->ignore_merges && !names_make(&t->words, n, &t->memory.allocator)))
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for %zu tokens", l->file, n);
    byte_characters(byte_of);
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    const char *name;
    json_t *value;
    json_object_foreach(vocab, name, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        char *at = t->arena + l->arena_used;
        size_t size = token_bytes(byte_of, name, strlen(name), at, &mapped);
        if ((rc = claim(l, id, name, size)))
            return rc;
        names_add(&l->names, name, strlen(name), id);
        if (mapped && size == 1)
            t->byte_id[(unsigned char)*at] = id;
        if (mapped && t->ignore_merges)
            names_add(&t->words, at, size, id);
    }
    return VB_OK;
}

/* Added tokens join the vocabulary after the merges are read, which speak of the vocabulary proper. One that is in
 * the vocabulary too must agree about the id; its piece is then its content, whatever its characters stand for. */
static int added_join(struct tokenizer_loading *l, const json_t *list)
{
    struct vb_tokenizer *t = l->t;
    for (size_t i = 0; i < t->added.n_tokens; i++) {
        const struct added_token *token = &t->added.tokens[i];
        const char *content = json_string_value(json_object_get(json_array_get(list, i), "content"));
        int32_t id = names_find(&l->names, content, token->size);
        if (id >= 0 && id != token->id)
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: added token \"%s\" has id %d, the vocabulary says %d",
                           l->file, token_show(content).text, token->id, id);
        if (id >= 0)
            t->pieces[id].used = 0;
        int rc = claim(l, token->id, content, token->size);
        if (rc)
            return rc;
        struct piece *p = &t->pieces[token->id];
        memcpy(t->arena + p->at, content, token->size);
        p->special = token->special ? 1 : 0;
        names_add(&l->names, content, token->size, token->id);
    }
    return VB_OK;
}

/* ---- the rest of the file ---- */

/* VB_UNSUPPORTED unless the member is missing, null, "" or (a number) 0. */
static int must_be_empty(struct tokenizer_loading *l, const json_t *model, const char *key)
{
    const json_t *value = get_member(model, key);
    if (!value || (json_is_string(value) && !json_string_length(value)) ||
        (json_is_number(value) && json_number_value(value) <= 0))
        return VB_OK;
    return vb_fail(l->err, VB_UNSUPPORTED, "%s: model.%s is not implemented", l->file, key);
}

static int normalizer_check(struct tokenizer_loading *l, const json_t *normalizer)
{
    if (!normalizer)
        return VB_OK;
    const char *type = json_string_value(get_member(normalizer, "type"));
    if (!type)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: the normalizer has no type", l->file);
    if (strcmp(type, "Sequence"))
        return vb_fail(l->err, VB_UNSUPPORTED, "%s: the normalizer %s is not implemented", l->file,
                       token_show(type).text);
    const json_t *list = get_member(normalizer, "normalizers");
    int rc = VB_OK;
    for (size_t i = 0; !rc && i < json_array_size(list); i++) {
        const json_t *inner = json_array_get(list, i);
        rc = json_is_object(inner)
                 ? normalizer_check(l, inner)
                 : vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: normalizer %zu is not an object", l->file, i);
    }
    return rc;
}

static int decoder_check(struct tokenizer_loading *l, const json_t *decoder)
{
    const char *type = json_string_value(get_member(decoder, "type"));
    if (type && !strcmp(type, "ByteLevel"))
        return VB_OK;
    return vb_fail(l->err, VB_UNSUPPORTED, "%s: the decoder %s is not implemented", l->file,
                   type ? token_show(type).text : "null");
}

/* unk_token, fuse_unk and byte_fallback say what becomes of a byte without a token. Byte-level vocabularies have all
 * bytes; where one has not, encoding that byte is an error instead. The post-processor is not used: whether BOS is put
 * before a text is for the caller to say. Truncation and padding are settings of a training run. */
int tables_load(struct tokenizer_loading *l)
{
    json_t *model = get_member(l->root, "model"), *vocab = get_member(model, "vocab");
    const json_t *added = get_member(l->root, "added_tokens");
    const char *type = json_string_value(get_member(model, "type"));
    int rc;
    if (!json_is_object(model))
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: there is no model", l->file);
    if (type && strcmp(type, "BPE"))
        return vb_fail(l->err, VB_UNSUPPORTED, "%s: the model %s is not implemented", l->file, token_show(type).text);
    if (!json_is_object(vocab))
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: model.vocab is not an object", l->file);
    if ((rc = must_be_empty(l, model, "dropout")) || (rc = must_be_empty(l, model, "continuing_subword_prefix")) ||
        (rc = must_be_empty(l, model, "end_of_word_suffix")) ||
        (rc = get_flag(l, model, "model", "ignore_merges", 0, &l->t->ignore_merges)) ||
        (rc = normalizer_check(l, get_member(l->root, "normalizer"))) ||
        (rc = decoder_check(l, get_member(l->root, "decoder"))) || (rc = added_load(l, added)) ||
        (rc = vocab_load(l, vocab)) || (rc = merges_load(l, get_member(model, "merges"))))
        return rc;
    return added_join(l, added);
}
