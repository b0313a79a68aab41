/* engine/tokenizer_tiktoken.c -- tiktoken.model of Kimi-K2 and Moonlight, said as tokenizer.json says it.
 *
 * A line is a token's bytes in base64 and its rank, which is its id. There are no merges: two neighbours are joined when their
 * bytes together are a token, the lowest rank first (merges_of_ranks). How text is cut into words, and which ids above the ranks
 * are special tokens, stands in the program that these checkpoints bring along (class TikTokenTokenizer); the pattern is here, and
 * tokenizer_config.json has the names. What surprises: that program cuts long texts before anything else, see encode_slices.
 *
 * In the pattern, sets of the form [A&&[^B]] are (?![B])[A]. Han and the cased letters that Unicode 15 and 16 added are written
 * out, as in tokenizer_unicode.c: asked about every code point, tiktoken 0.14 cuts the same. */
#include <string.h>

#include "json.h"
#include "tokenizer_internal.h"

#define RESERVED 258 /* special tokens above the ranks */

#define HAN                                                                                                               \
    "\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}\\x{3038}-\\x{303b}"    \
    "\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}\\x{16fe2}-\\x{16fe3}\\x{16ff0}-\\x{16ff1}" \
    "\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b739}\\x{2b740}-\\x{2b81d}\\x{2b820}-\\x{2cea1}\\x{2ceb0}-\\x{2ebe0}"           \
    "\\x{2ebf0}-\\x{2ee5d}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{3134a}\\x{31350}-\\x{323af}"
#define UPPER "\\p{Lu}\\p{Lt}\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"
#define LOWER "\\p{Ll}\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"
#define NOT_LOWER "(?:(?![" HAN LOWER "])[\\p{L}\\p{M}])"
#define NOT_UPPER "(?:(?![" HAN UPPER "])[\\p{L}\\p{M}])"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
static const char words[] = "[" HAN "]+"
                            "|[^\\r\\n\\p{L}\\p{N}]?" NOT_LOWER "*" NOT_UPPER "+" SUFFIX
                            "|[^\\r\\n\\p{L}\\p{N}]?" NOT_LOWER "+" NOT_UPPER "*" SUFFIX
                            "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct ranks {
    const char *file, *text, *end;
    vb_error *err;
    size_t line, count;
    json_t *vocab;
    int character_of[256]; /* how tokenizer.json writes a byte */
};

static int no_memory(const struct ranks *r)
{
    return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for its tokens", r->file);
}

static int wrong(const struct ranks *r, const char *what)
{
    return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: line %zu: %s", r->file, r->line, what);
}

/* ---- a line -------------------------------------------------------------------------------------------------------- */

static int digit64(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    return c >= '0' && c <= '9' ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* n characters of base64 to bytes, in place of `out`, which has room for them; -1: they are not. */
static long decode64(const char *s, size_t n, unsigned char *out)
{
    size_t padding = n > 1 && s[n - 1] == '=' ? 1 + (s[n - 2] == '=') : 0, size = 0;
    uint32_t bits = 0;
    if (!n || n % 4)
        return -1;
    for (size_t i = 0; i < n; i++) {
        int digit = i < n - padding ? digit64(s[i]) : 0;
        if (digit < 0)
            return -1;
        bits = bits << 6 | (uint32_t)digit;
        for (int k = 2; i % 4 == 3 && k >= 0; k--)
            out[size++] = (unsigned char)(bits >> 8 * k);
    }
    return (long)(size - padding);
}

/* The token's name in tokenizer.json: each byte as a character, at most two bytes of UTF-8. */
static int add_token(struct ranks *r, const unsigned char *bytes, size_t size, json_int_t rank)
{
    char name[512], *to = name;
    if (2 * size + 1 > sizeof name)
        return wrong(r, "a token of more than 255 bytes");
    for (size_t i = 0; i < size; i++) {
        int c = r->character_of[bytes[i]];
        if (c >= 0x80)
            *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    *to = '\0';
    if (json_object_get(r->vocab, name))
        return wrong(r, "a token that is there already");
    r->count++;
    return json_object_set_new_nocheck(r->vocab, name, json_integer(rank)) ? no_memory(r) : VB_OK;
}

/* text..end: a line without its newline */
static int add_line(struct ranks *r, const char *text, size_t n)
{
    unsigned char bytes[384];
    const char *space = memchr(text, ' ', n);
    size_t length = space ? (size_t)(space - text) : n;
    json_int_t rank = 0;
    if (!space || space + 1 == text + n || length > 500)
        return wrong(r, "not a token in base64 and its rank");
    for (const char *s = space + 1; s < text + n; s++) {
        if (*s < '0' || *s > '9' || rank >= MAX_TOKEN_ID)
            return wrong(r, "a rank that is not an integer below 2^24");
        rank = 10 * rank + (*s - '0');
    }
    if (rank >= MAX_TOKEN_ID)
        return wrong(r, "a rank that is not an integer below 2^24");
    long size = decode64(text, length, bytes);
    return size < 1 ? wrong(r, "a token that is not base64") : add_token(r, bytes, (size_t)size, rank);
}

static int read_ranks(struct ranks *r)
{
    int byte_of[LAST_BYTE_CHARACTER + 1], rc = VB_OK;
    byte_characters(byte_of);
    for (int c = 0; c <= LAST_BYTE_CHARACTER; c++)
        if (byte_of[c] >= 0)
            r->character_of[byte_of[c]] = c;
    for (const char *s = r->text; s < r->end && !rc; s++) {
        const char *newline = memchr(s, '\n', (size_t)(r->end - s)), *stop = newline ? newline : r->end;
        size_t n = (size_t)(stop - s);
        r->line++;
        n -= n && s[n - 1] == '\r';
        if (n)
            rc = add_line(r, s, n);
        s = stop;
    }
    return rc || r->count ? rc : vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: there are no tokens", r->file);
}

/* ---- special tokens ------------------------------------------------------------------------------------------------ */

/* Of id: its name in added_tokens_decoder, else a reserved one. */
static int add_special(const struct ranks *r, const json_t *decoder, size_t id, json_t *added)
{
    char key[32], reserved[48];
    snprintf(key, sizeof key, "%zu", id);
    snprintf(reserved, sizeof reserved, "<|reserved_token_%zu|>", id);
    const json_t *entry = json_object_get(decoder, key), *content = json_object_get(entry, "content");
    if (entry && !json_is_string(content))
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "tokenizer_config.json: added_tokens_decoder.%s has no content", key);
    json_t *token = json_pack("{s:I,s:s,s:b,s:b}", "id", (json_int_t)id, "content", content ? json_string_value(content) : reserved,
                              "normalized", 0, "special", 1);
    return token && !json_array_append_new(added, token) ? VB_OK : no_memory(r);
}

static int add_specials(const struct ranks *r, const json_t *config, json_t *added)
{
    const json_t *decoder = get_member(config, "added_tokens_decoder");
    int rc = VB_OK;
    if (decoder && !json_is_object(decoder))
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "tokenizer_config.json: added_tokens_decoder is not an object");
    for (size_t i = 0; i < RESERVED && !rc; i++)
        rc = add_special(r, decoder, r->count + i, added);
    return rc;
}

static int check_class(const struct ranks *r, const json_t *config)
{
    const char *name = json_string_value(get_member(config, "tokenizer_class"));
    if (name && !strcmp(name, "TikTokenTokenizer"))
        return VB_OK;
    return vb_fail(r->err, VB_UNSUPPORTED, "%s: tokenizer_config.json's tokenizer_class is %s; how words are cut is known for "
                   "TikTokenTokenizer only (Kimi-K2, Moonlight)", r->file, name ? token_show(name).text : "missing");
}

int tokenizer_from_tiktoken(json_t **json, const char *text, size_t size, const json_t *config, const char *file, vb_error *err)
{
    struct ranks r = {.file = file, .text = text, .end = text + size, .err = err, .vocab = json_object()};
    json_t *added = json_array();
    int rc = r.vocab && added ? check_class(&r, config) : no_memory(&r);
    *json = NULL;
    if (!rc && !(rc = read_ranks(&r)))
        rc = add_specials(&r, config, added);
    if (!rc) {
        *json = json_pack("{s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]},s:O,s:{s:s},s:{s:s,s:b,s:O}}", "pre_tokenizer", "type", "Sequence",
                          "pretokenizers", "type", "Split", "pattern", "Regex", words, "behavior", "Isolated", "invert", 0, "type",
                          "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "added_tokens", added, "decoder", "type", "ByteLevel", "model",
                          "type", "BPE", "ignore_merges", 1, "vocab", r.vocab);
        rc = *json ? VB_OK : no_memory(&r);
    }
    json_decref(r.vocab);
    json_decref(added);
    return rc;
}
