/* engine/text/gguf.c -- the tokenizer of a GGUF file's metadata, said as tokenizer.json says it, so that both give the
 * same ids.
 *
 * The metadata has tokens, their kinds and the merges; of how text is cut into words it has only a name
 * (tokenizer.ggml.pre), and the patterns of that name are here, as the tokenizer.json of those models have them. What
 * the metadata does not have: which added tokens are "normalized" (all are taken not to be; it matters only where two
 * of them overlap), and which of the "special" ones are so only by their looks, to llama.cpp's converter. */
#include "engine/files/gguf.h"
#include "engine/base/json.h"
#include "engine/text/tokenizer_internal.h"

#include <string.h>
#include <stdio.h>

enum token_kind { KIND_NORMAL = 1, KIND_UNKNOWN, KIND_CONTROL, KIND_USER_DEFINED, KIND_UNUSED, KIND_BYTE };

#define SPLIT(pattern) \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false},"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list BYTES "false}]}"

#define CASED_LETTERS /* of DeepSeek-V2's tokenizer.json: cased letters, as of one version of Unicode */ \
    "A-Za-z"                                                                                           \
    "\\\\x{b5}\\\\x{c0}-\\\\x{d6}\\\\x{d8}-\\\\x{f6}\\\\x{f8}-\\\\x{1ba}\\\\x{1bc}-\\\\x{1bf}" \
    "\\\\x{1c4}-\\\\x{293}\\\\x{295}-\\\\x{2af}\\\\x{370}-\\\\x{373}\\\\x{376}\\\\x{377}\\\\x{37b}-\\\\x{37d}" \
    "\\\\x{37f}\\\\x{386}\\\\x{388}-\\\\x{38a}\\\\x{38c}\\\\x{38e}-\\\\x{3a1}\\\\x{3a3}-\\\\x{3f5}" \
    "\\\\x{3f7}-\\\\x{481}\\\\x{48a}-\\\\x{52f}\\\\x{531}-\\\\x{556}\\\\x{10a0}-\\\\x{10c5}" \
    "\\\\x{13a0}-\\\\x{13f5}\\\\x{13f8}-\\\\x{13fd}\\\\x{1c90}-\\\\x{1cba}\\\\x{1cbd}-\\\\x{1cbf}" \
    "\\\\x{1d00}-\\\\x{1d2b}\\\\x{1d6b}-\\\\x{1d77}\\\\x{1d79}-\\\\x{1d9a}\\\\x{1e00}-\\\\x{1f15}" \
    "\\\\x{1f18}-\\\\x{1f1d}\\\\x{1f20}-\\\\x{1f45}\\\\x{1f48}-\\\\x{1f4d}\\\\x{1f50}-\\\\x{1f57}\\\\x{1f59}" \
    "\\\\x{1f5b}\\\\x{1f5d}\\\\x{1f5f}-\\\\x{1f7d}\\\\x{1f80}-\\\\x{1fb4}\\\\x{1fb6}-\\\\x{1fbc}\\\\x{1fbe}" \
    "\\\\x{1fc2}-\\\\x{1fc4}\\\\x{1fc6}-\\\\x{1fcc}\\\\x{1fd0}-\\\\x{1fd3}\\\\x{1fd6}-\\\\x{1fdb}" \
    "\\\\x{1fe0}-\\\\x{1fec}\\\\x{1ff2}-\\\\x{1ff4}\\\\x{1ff6}-\\\\x{1ffc}\\\\x{2102}\\\\x{2107}" \
    "\\\\x{210a}-\\\\x{2113}\\\\x{2115}\\\\x{2119}-\\\\x{211d}\\\\x{2124}\\\\x{2126}\\\\x{2128}" \
    "\\\\x{212a}-\\\\x{212d}\\\\x{212f}-\\\\x{2134}\\\\x{2139}\\\\x{213c}-\\\\x{213f}\\\\x{2145}-\\\\x{2149}" \
    "\\\\x{214e}\\\\x{2183}\\\\x{2184}\\\\x{2c00}-\\\\x{2c7b}\\\\x{2c7e}-\\\\x{2ce4}\\\\x{2ceb}-\\\\x{2cee}" \
    "\\\\x{2cf2}\\\\x{2cf3}\\\\x{a640}-\\\\x{a66d}\\\\x{a680}-\\\\x{a69b}\\\\x{a722}-\\\\x{a76f}" \
    "\\\\x{a771}-\\\\x{a787}\\\\x{a78b}-\\\\x{a78e}\\\\x{ab70}-\\\\x{abbf}\\\\x{fb00}-\\\\x{fb06}" \
    "\\\\x{fb13}-\\\\x{fb17}\\\\x{ff21}-\\\\x{ff3a}\\\\x{ff41}-\\\\x{ff5a}\\\\x{10400}-\\\\x{1044f}" \
    "\\\\x{104b0}-\\\\x{104d3}\\\\x{104d8}-\\\\x{104fb}\\\\x{10c80}-\\\\x{10cb2}\\\\x{10cc0}-\\\\x{10cf2}" \
    "\\\\x{118a0}-\\\\x{118df}\\\\x{1e900}-\\\\x{1e943}"

#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]" /* of Kimi's, where every letter but Han
                                                                                 is one or both */
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

/* Words of tokenizers that cut before a capital: letters with what may stand before them, as many as possible of them
 * capitals or small. */
#define CAPITALS "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define SMALL "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define BEFORE "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define CASED_WORDS(suffix) BEFORE CAPITALS "*" SMALL "+" suffix "|" BEFORE CAPITALS "+" SMALL "*" suffix
#define SIGNS_AND_SPACES "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const struct {
    const char *name, *pre_tokenizer;
    int ignore_merges;
} known[] = {
    {"gpt-2", BYTES "true}", 0},
    {"deepseek-v3", /* V3, R1, V3.1, V3.2 */
     SEQUENCE(SPLIT("\\\\p{N}{1,3}") SPLIT("[\\\\x{4e00}-\\\\x{9fa5}\\\\x{3040}-\\\\x{30ff}]+")
                  SPLIT("[!\\\"#$%&'()*+,\\\\-./"
                        ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}"
                        "]+"
                        "| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+")),
     0},
    {"deepseek-llm", /* V2, V2-Lite, V2.5 */
     SEQUENCE(SPLIT("[\\r\\n]")
                  SPLIT("\\\\s?[" CASED_LETTERS "]+")
                      SPLIT("\\\\s?[!-/"
                            ":-~\\\\x{ff01}-\\\\x{ff0f}\\\\x{ff1a}-\\\\x{ff5e}\\\\x{2018}-\\\\x{201f}\\\\x{3000}-\\\\x{"
                            "3002}]+")
                          SPLIT("\\\\s+$") SPLIT("[\\\\x{4e00}-\\\\x{9fa5}\\\\x{800}-\\\\x{4e00}\\\\x{ac00}-\\\\x{d7ff}"
                                                 "]+") "{\"type\":\"Digits\",\"individual_digits\":true},"),
     0},
    {"glm4", /* GLM-4.7-Flash, GLM-5 */
     SEQUENCE(SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
                    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*"
                    "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")),
     1},
    {KIMI_K2, /* Kimi-K2, Moonlight: pat_str of their tokenization_kimi.py and tokenization_moonshot.py */
     SEQUENCE(SPLIT("[\\\\p{Han}]+|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" SUFFIX
                    "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "+" LOWER "*" SUFFIX
                    "|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n"
                    "]+|\\\\s+(?!\\\\S)|\\\\s+")),
     1},
    {"tekken", /* Mistral 4, Mistral Large 3 */
     SEQUENCE(SPLIT(CASED_WORDS("") "|\\\\p{N}" SIGNS_AND_SPACES)), 1},
    {"youtu", /* Youtu-LLM: first Korean, Chinese punctuation, Bopomofo and Chinese with Japanese, then the rest */
     SEQUENCE(SPLIT("[\\\\x{ac00}-\\\\x{d7a3}\\\\x{3131}-\\\\x{318e}]+|[\\\\x{ff01}\\\\x{2026}\\\\x{201c}\\\\x{201d}"
                    "\\\\x{2018}\\\\x{2019}\\\\x{2014}"
                    "\\\\x{ff1a}\\\\x{ff1b}\\\\x{ff0c}\\\\x{3001}-\\\\x{303f}\\\\x{fe30}-\\\\x{fe4f}]+|[\\\\x{3105}-"
                    "\\\\x{312f}]+"
                    "|[\\\\x{4e00}-\\\\x{9fa5}\\\\x{3040}-\\\\x{30ff}]+")
                  SPLIT(CASED_WORDS(SUFFIX) "|\\\\p{N}" SIGNS_AND_SPACES)),
     1},
    {"kanana2", /* Kanana-2 */
     SEQUENCE(SPLIT(CASED_WORDS(SUFFIX) "|\\\\p{N}{1,3}" SIGNS_AND_SPACES)), 0},
};

/* Names of llama.cpp for words that are cut as with another name. */
static const struct {
    const char *name, *same_as;
} others[] = {
    {"gigachat", "gpt-2"}, {"joyai-llm", "deepseek-v3"},
};

struct gguf_saying {
    const struct gguf *g;
    vb_error *err;
    const struct gguf_value *tokens, *kinds;
    json_t *vocab, *added, *merges;
};

static int no_memory(const struct gguf_saying *s)
{
    return vb_fail(s->err, VB_NO_MEMORY, "%s: no memory for its tokenizer", gguf_name(s->g));
}

static int wrong(const struct gguf_saying *s, const char *key, const struct gguf_value *v, const char *wanted)
{
    char shown[32];
    return vb_fail(s->err, VB_BAD_CHECKPOINT, "%s: %s is %s, wanted %s", gguf_name(s->g), key, gguf_show_type(v, shown),
                   wanted);
}

static int is(struct gguf_text text, const char *name)
{
    return text.size == strlen(name) && !memcmp(text.s, name, text.size);
}

/* A new string: valid UTF-8 without zero characters, not empty. */
static int take_string(const struct gguf_saying *s, struct gguf_text text, const char *what, uint64_t index,
                       json_t **out)
{
    if (!text.size || memchr(text.s, 0, text.size) || utf8_valid(text.s, text.size) < text.size)
        return vb_fail(s->err, VB_BAD_CHECKPOINT, "%s: %s %llu is empty, not UTF-8, or holds a zero character",
                       gguf_name(s->g), what, (unsigned long long)index);
    *out = json_stringn_nocheck(text.s, text.size);
    return *out ? VB_OK : no_memory(s);
}

/* ---- tables ---- */

static int say_added(const struct gguf_saying *s, json_t *content, uint64_t id, int special)
{
    json_t *entry = json_pack("{s:I,s:O,s:b,s:b}", "id", (json_int_t)id, "content", content, "normalized", 0, "special",
                              special);
    return entry && !json_array_append_new(s->added, entry) ? VB_OK : no_memory(s);
}

static int say_word(const struct gguf_saying *s, json_t *content, uint64_t id)
{
    const char *word = json_string_value(content);
    const json_t *other = json_object_get(s->vocab, word);
    if (other)
        return vb_fail(s->err, VB_BAD_CHECKPOINT, "%s: token \"%s\" is there twice, as %lld and %llu", gguf_name(s->g),
                       token_show(word).text, (long long)json_integer_value(other), (unsigned long long)id);
    return json_object_set_new_nocheck(s->vocab, word, json_integer((json_int_t)id)) ? no_memory(s) : VB_OK;
}

/* A token of a padded vocabulary is none: no text has it. */
static int say_token(const struct gguf_saying *s, struct gguf_text text, uint64_t id)
{
    int64_t kind = s->kinds ? gguf_item(s->kinds, id) : KIND_NORMAL;
    json_t *content;
    int rc;
    if (kind == KIND_UNUSED)
        return VB_OK;
    if (kind < KIND_NORMAL || kind > KIND_BYTE)
        return vb_fail(s->err, VB_BAD_CHECKPOINT, "%s: token %llu is of kind %lld, wanted 1 to 6", gguf_name(s->g),
                       (unsigned long long)id, (long long)kind);
    if ((rc = take_string(s, text, "token", id, &content)))
        return rc;
    if (kind == KIND_CONTROL || kind == KIND_USER_DEFINED)
        rc = say_added(s, content, id, kind == KIND_CONTROL);
    else
        rc = say_word(s, content, id);
    json_decref(content);
    return rc;
}

static int say_tokens(struct gguf_saying *s)
{
    static const char tokens[] = "tokenizer.ggml.tokens", kinds[] = "tokenizer.ggml.token_type";
    int rc = VB_OK;
    s->tokens = gguf_find(s->g, tokens);
    s->kinds = gguf_find(s->g, kinds);
    if (!s->tokens || !s->tokens->is_array || s->tokens->type != GGUF_STRING)
        return wrong(s, tokens, s->tokens, "array of STRING");
    if (s->kinds && (!s->kinds->is_array || (s->kinds->type != GGUF_I32 && s->kinds->type != GGUF_U32)))
        return wrong(s, kinds, s->kinds, "array of I32");
    if (s->tokens->count >= MAX_TOKEN_ID || (s->kinds && s->kinds->count != s->tokens->count))
        return vb_fail(s->err, VB_BAD_CHECKPOINT, "%s: there are %llu tokens and %llu kinds of them", gguf_name(s->g),
                       (unsigned long long)s->tokens->count, (unsigned long long)(s->kinds ? s->kinds->count : 0));
    const unsigned char *at = s->tokens->data;
    for (uint64_t i = 0; !rc && i < s->tokens->count; i++)
        rc = say_token(s, gguf_next_string(&at), i);
    return rc;
}

static int say_merges(const struct gguf_saying *s)
{
    static const char key[] = "tokenizer.ggml.merges";
    const struct gguf_value *v = gguf_find(s->g, key);
    int rc = VB_OK;
    if (!v || !v->is_array || v->type != GGUF_STRING)
        return wrong(s, key, v, "array of STRING");
    const unsigned char *at = v->data;
    for (uint64_t i = 0; !rc && i < v->count; i++) {
        json_t *merge;
        if (!(rc = take_string(s, gguf_next_string(&at), "merge", i, &merge)) &&
            json_array_append_new(s->merges, merge))
            rc = no_memory(s);
    }
    return rc;
}

/* ---- names ---- */

static size_t index_of(const char *pre)
{
    size_t i = 0;
    while (strcmp(known[i].name, pre))
        i++;
    return i;
}

static int find_pre(const struct gguf_saying *s, size_t *out)
{
    static const char key[] = "tokenizer.ggml.pre";
    const struct gguf_value *v = gguf_find(s->g, key);
    struct gguf_text name;
    char shown[64], list[192] = "";
    if (!gguf_string(v, &name))
        return wrong(s, key, v, "the name of how words are cut");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (is(name, others[i].name)) {
            *out = index_of(others[i].same_as);
            return VB_OK;
        }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", known[i].name);
        *out = i;
        if (is(name, known[i].name))
            return VB_OK;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, ", %s", others[i].name);
    }
    snprintf(shown, sizeof shown, "%.*s", name.size > 40 ? 40 : (int)name.size, name.s);
    for (char *c = shown; *c; c++)
        *c = *c < 0x20 || *c >= 0x7f ? '?' : *c;
    return vb_fail(s->err, VB_UNSUPPORTED, "%s: %s \"%s\" is not supported, only %s", gguf_name(s->g), key, shown,
                   list);
}

static int check_model(const struct gguf_saying *s)
{
    static const char key[] = "tokenizer.ggml.model";
    const struct gguf_value *v = gguf_find(s->g, key);
    struct gguf_text name;
    if (v && !gguf_string(v, &name))
        return wrong(s, key, v, "STRING");
    if (!v || is(name, "none") || is(name, "no_vocab")) /* llama.cpp wants to be told */
        return vb_fail(s->err, VB_IO, "%s: it has no tokenizer", gguf_name(s->g));
    return is(name, "gpt2")
               ? VB_OK
               : vb_fail(s->err, VB_UNSUPPORTED, "%s: %s is not gpt2 (byte-level BPE), and no other is supported",
                         gguf_name(s->g), key);
}

/* The string of a token that is given by its id; missing: none. */
static int say_id(const struct gguf_saying *s, json_t *config, const char *key, const char *json)
{
    const struct gguf_value *v = gguf_find(s->g, key);
    int64_t id = 0;
    json_t *content;
    int rc;
    if (!v)
        return VB_OK;
    if (!gguf_integer(v, &id) || id < 0 || (uint64_t)id >= s->tokens->count)
        return wrong(s, key, v, "the id of a token");
    const unsigned char *at = s->tokens->data;
    struct gguf_text text = gguf_next_string(&at);
    for (int64_t i = 0; i < id; i++)
        text = gguf_next_string(&at);
    if ((rc = take_string(s, text, "token", (uint64_t)id, &content)))
        return rc;
    return json_object_set_new(config, json, content) ? no_memory(s) : VB_OK;
}

static int say_config(const struct gguf_saying *s, json_t *config)
{
    static const char key[] = "tokenizer.ggml.add_bos_token";
    const struct gguf_value *v = gguf_find(s->g, key);
    int flag = 0, rc;
    if (v && !gguf_bool(v, &flag))
        return wrong(s, key, v, "BOOL");
    if ((rc = say_id(s, config, "tokenizer.ggml.bos_token_id", "bos_token")) ||
        (rc = say_id(s, config, "tokenizer.ggml.eos_token_id", "eos_token")))
        return rc;
    return json_object_set_new(config, "add_bos_token", json_boolean(flag)) ? no_memory(s) : VB_OK;
}

static int put_together(json_t **out, json_t *pre_tokenizer, int slices, int ignore_merges, json_t *vocab,
                        json_t *added, json_t *merges)
{
    *out = json_pack("{s:b,s:o*,s:o,s:{s:s},s:{s:s,s:b,s:o,s:o}}", "slices", slices, "pre_tokenizer", pre_tokenizer,
                     "added_tokens", added, "decoder", "type", "ByteLevel", "model", "type", "BPE", "ignore_merges",
                     ignore_merges, "vocab", vocab, "merges", merges);
    return *out && pre_tokenizer;
}

int tokenizer_said(json_t **out, const char *pre, json_t *vocab, json_t *added, json_t *merges)
{
    size_t i = index_of(pre);
    json_error_t why;
    return put_together(out, json_loads(known[i].pre_tokenizer, 0, &why), !strcmp(pre, KIMI_K2), known[i].ignore_merges,
                        vocab, added, merges);
}

int tokenizer_said_with(json_t **out, const char *pattern, json_t *vocab, json_t *added, json_t *merges)
{
    json_t *pre_tokenizer = json_pack("{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]}", "type", "Sequence", "pretokenizers",
                                      "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "type",
                                      "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    return put_together(out, pre_tokenizer, 0, 1, vocab, added, merges);
}

int tokenizer_from_gguf(json_t **json, json_t **config, const struct gguf *g, vb_error *err)
{
    struct gguf_saying s = {.g = g, .err = err};
    size_t pre = 0;
    int rc;
    *json = *config = NULL;
    if ((rc = check_model(&s)) || (rc = find_pre(&s, &pre)))
        return rc;
    s.vocab = json_object();
    s.added = json_array();
    s.merges = json_array();
    *config = json_object();
    if (!s.vocab || !s.added || !s.merges || !*config)
        rc = no_memory(&s);
    if (!rc && !(rc = say_tokens(&s)) && !(rc = say_merges(&s)) && !(rc = say_config(&s, *config)))
        return tokenizer_said(json, known[pre].name, s.vocab, s.added, s.merges) ? VB_OK : no_memory(&s);
    json_decref(s.vocab);
    json_decref(s.added);
    json_decref(s.merges);
    return rc;
}

/* A tokenizer without a vocabulary that cuts words as the name says. */
static int open_pre(struct vb_tokenizer **out, size_t pre, const vb_allocator *a, vb_error *err)
{
    static const char
        rest[] = ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}";
    size_t room = strlen(known[pre].pre_tokenizer) + sizeof rest + 32;
    char *json = vb_alloc(a, room, 1);
    *out = NULL;
    if (!json)
        return vb_fail(err, VB_NO_MEMORY, "no memory to compare two tokenizers");
    int size = snprintf(json, room, "{\"pre_tokenizer\":%s%s", known[pre].pre_tokenizer, rest);
    int rc = tokenizer_parse(out, json, (size_t)size, NULL, 0, known[pre].name, a, err);
    vb_free(a, json);
    return rc;
}

int tokenizer_pre_of(const struct vb_tokenizer *t, const char **name, vb_error *err)
{
    const vb_allocator *a = tokenizer_allocator(t);
    int rc = VB_OK, same = 0;
    *name = NULL;
    for (size_t i = 0; !rc && !same && i < sizeof known / sizeof *known; i++) {
        struct vb_tokenizer *other;
        if (!known[i].ignore_merges != !t->ignore_merges || (rc = open_pre(&other, i, a, err)))
            continue;
        if (!(rc = tokenizer_same_words(t, other, &same, err)) && same)
            *name = known[i].name;
        tokenizer_close(other);
    }
    return rc;
}
