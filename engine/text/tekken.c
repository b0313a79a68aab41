/* engine/text/tekken.c -- a tokenizer in Mistral's format, tekken.json, converted to the contents of a tokenizer.json,
 * so that both give the same ids.
 *
 *     config          pattern (cuts text into words), default_vocab_size V, default_num_special_tokens S
 *     vocab           [{rank, token_bytes (base64), token_str}], sorted by rank; the first V - S of them are used
 *     special_tokens  [{rank, token_str, is_control}], sorted by rank, at most S; the rest are <SPECIAL_i>
 *
 * The ids 0 to S-1 are the special tokens; the token of rank i has the id S + i. The rules are those of mistral-common
 * (tokens/tokenizers/tekken.py, version 1.13), which calls the `tiktoken` package. It treats every special token alike,
 * whatever is_control says, and puts <s> before a text. `version` and `image` only matter for the prompts of a chat. */
#include "engine/base/json.h"
#include "engine/text/ranks_internal.h"

#include <string.h>

struct tekken {
    const char *name;
    int32_t V, S;
    const char *pattern;
    struct ranks ranks;
};

/* Returns a string that is not empty and holds no zero character, else NULL. */
static const char *plain_string(const json_t *value)
{
    const char *s = json_string_value(value);
    return s && *s && strlen(s) == json_string_length(value) ? s : NULL;
}

static int read_number(const struct tekken *r, const json_t *config, const char *key, int32_t *out)
{
    char shown[JSON_SHOWN];
    const json_t *value = get_member(config, key);
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > MAX_TOKEN_ID)
        return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: config.%s is %s, wanted 1 to %d", r->name, key,
                       json_show(value, shown), MAX_TOKEN_ID);
    *out = (int32_t)json_integer_value(value);
    return VB_OK;
}

/* The pattern is in the syntax of the Rust crate fancy-regex, and split.c reads it as one of Oniguruma. The two engines
 * agree about all that pattern.c accepts, except that ^ and $ match at every line in Oniguruma only. */
static int check_pattern(const struct tekken *r)
{
    int sets = 0;
    for (const char *s = r->pattern; *s; s++) {
        if (*s == '\\' && s[1])
            s++;
        else if (*s == '[' || (*s == ']' && sets))
            sets += *s == '[' ? 1 : -1;
        else if ((*s == '^' || *s == '$') && !sets)
            return vb_fail(r->ranks.err, VB_UNSUPPORTED, "%s: config.pattern has a %c, which is not implemented",
                           r->name, *s);
    }
    return VB_OK;
}

static int read_config(struct tekken *r, const json_t *config)
{
    int rc;
    if (!json_is_object(config))
        return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: there is no config", r->name);
    if ((rc = read_number(r, config, "default_vocab_size", &r->V)) ||
        (rc = read_number(r, config, "default_num_special_tokens", &r->S)))
        return rc;
    if (!(r->pattern = plain_string(get_member(config, "pattern"))))
        return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: config.pattern is no string", r->name);
    r->ranks.first_id = r->S;
    return check_pattern(r);
}

static int read_vocab(struct tekken *r, const json_t *vocab)
{
    size_t count = json_array_size(vocab), bytes = 0, i;
    const json_t *entry;
    if (r->S >= r->V || (size_t)(r->V - r->S) > count)
        return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT,
                       "%s: default_vocab_size is %d with %d special tokens, and vocab has %zu tokens", r->name, r->V,
                       r->S, count);
    count = (size_t)(r->V - r->S);
    for (i = 0; i < count; i++)
        bytes += json_string_length(json_object_get(json_array_get(vocab, i), "token_bytes"));
    int rc = ranks_make(&r->ranks, count, bytes);
    for (i = 0; !rc && i < count; i++) {
        entry = json_array_get(vocab, i);
        const json_t *rank = json_object_get(entry, "rank"), *text = json_object_get(entry, "token_bytes");
        rc = json_is_integer(rank) && json_integer_value(rank) == (json_int_t)i && json_is_string(text)
                 ? ranks_add(&r->ranks, i, (int64_t)i, json_string_value(text), json_string_length(text))
                 : ranks_bad(&r->ranks, i);
    }
    return rc;
}

static int say_special(const struct tekken *r, const json_t *specials, json_t *added)
{
    size_t count = json_array_size(specials);
    int bos = 0, eos = 0;
    if (!json_is_array(specials)) /* mistral-common has a list of its own for such files, of version 7 and older */
        return vb_fail(r->ranks.err, VB_UNSUPPORTED,
                       "%s: there are no special_tokens; only files that list them are supported", r->name);
    if (count > (size_t)r->S)
        return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT,
                       "%s: there are %zu special_tokens, default_num_special_tokens is %d", r->name, count, r->S);
    for (int i = 0; i < r->S; i++) {
        char filler[40];
        const json_t *entry = json_array_get(specials, (size_t)i), *rank = json_object_get(entry, "rank");
        const char *name = plain_string(json_object_get(entry, "token_str"));
        if ((size_t)i < count && (!json_is_integer(rank) || json_integer_value(rank) != i || !name))
            return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT,
                           "%s: special_tokens[%d] has not the rank %d and a token_str", r->name, i, i);
        snprintf(filler, sizeof filler, "<SPECIAL_%d>", i);
        name = name ? name : filler;
        bos |= !strcmp(name, "<s>");
        eos |= !strcmp(name, "</s>");
        if (json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b}", "id", i, "content", name, "normalized", 0,
                                                   "special", 1)))
            return ranks_no_memory(&r->ranks);
    }
    return bos && eos
               ? VB_OK
               : vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: <s> or </s> is missing in special_tokens", r->name);
}

static int read_root(struct tekken *r, const char *text, size_t size, json_t **root)
{
    struct json_trouble why;
    *root = json_load_any_number(text, size, JSON_ALLOW_NUL, &why); /* token_str of rank 0 is a zero character */
    if (!*root)
        return json_fail(&why, size, r->name, r->ranks.err);
    return json_is_object(*root) ? read_config(r, get_member(*root, "config"))
                                 : vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: not a JSON object", r->name);
}

int tokenizer_from_tekken(json_t **json, json_t **config, const char *text, size_t size, const char *name,
                          const vb_allocator *a, vb_error *err)
{
    struct tekken r = {.name = name,
                       .ranks = {.a = a, .err = err, .file = name, .item = "vocab entry",
                                 .form = "an object with its own index as rank, and token_bytes in base64"}};
    json_t *vocab = json_object(), *added = json_array(), *merges = json_array(), *root = NULL;
    int rc = vocab && added && merges ? VB_OK : ranks_no_memory(&r.ranks);
    *json = *config = NULL;
    if (!rc && !(rc = read_root(&r, text, size, &root)) && !(rc = read_vocab(&r, json_object_get(root, "vocab"))) &&
        !(rc = ranks_say(&r.ranks, vocab, merges)) &&
        !(rc = say_special(&r, json_object_get(root, "special_tokens"), added))) {
        *config = json_pack("{s:s,s:s,s:s,s:s,s:b}", "bos_token", "<s>", "eos_token", "</s>", "unk_token", "<unk>",
                            "pad_token", "<pad>", "add_bos_token", 1);
        rc = tokenizer_said_with(json, r.pattern, vocab, added, merges) && *config ? VB_OK : ranks_no_memory(&r.ranks);
    } else {
        json_decref(vocab);
        json_decref(added);
        json_decref(merges);
    }
    json_decref(root);
    ranks_free(&r.ranks);
    return rc;
}

int tokenizer_say_tekken(json_t **json, json_t **config, const char *dir, const vb_allocator *a, vb_error *err)
{
    char *path = vb_path(a, dir, "tekken.json"), *text = NULL;
    size_t size;
    int rc = path ? vb_read_file(a, path, &text, &size, err)
                  : vb_fail(err, VB_NO_MEMORY, "%s: no memory for a path", dir);
    *json = *config = NULL;
    if (!rc)
        rc = tokenizer_from_tekken(json, config, text, size, path, a, err);
    vb_free(a, path);
    vb_free(a, text);
    return rc;
}
