/* engine/text/tiktoken.c -- a tokenizer in tiktoken's format, said as tokenizer.json says it, so that both give the
 * same ids.
 *
 * tiktoken.model has a line per token: its bytes in base64, and its rank, which is its id. Behind the ranks come 258 ids for
 * special tokens; tokenizer_config.json has the names of some, the rest are <|reserved_token_ID|>. How text is cut into
 * words is in the checkpoint's Python code, known here by the name of its class.
 *
 * tiktoken joins the neighbours whose bytes together are the token of lowest rank, the leftmost first; tokenizer.json
 * has pairs to be joined. One pair for each token is enough, that which tiktoken joins last when the token is all there is:
 * within the bytes of a token that came out of a longer word nothing was ever joined across their ends, so the same
 * pairs were joined, in the same order. (A token that its own bytes do not lead to is found as a whole word only.) */
#include "engine/base/json.h"
#include "engine/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST 1024 /* bytes of a token; the work goes with the square */
#define SPECIALS 258 /* num_reserved_special_tokens + 2 of the Python code */

struct reading {
    const struct tiktoken *from;
    const vb_allocator *a;
    vb_error *err;
    int32_t n;               /* tokens */
    char *arena;             /* their bytes */
    struct name_entry *token; /* [n], by rank */
    struct name_table ranks; /* of bytes */
    json_t **names;          /* [n]: as tokenizer.json writes them */
};

static int no_memory(const struct reading *r)
{
    return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for its tokens", r->from->ranks_name);
}

/* ---- tiktoken.model ---- */

static int digit_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* The bytes that base64 stands for, at least one; 0: it is none, or not as base64 is written. */
static size_t decode(const char *s, size_t size, char *out)
{
    size_t n = 0, padding = size > 2 && s[size - 1] == '=' ? 1 + (s[size - 2] == '=') : 0;
    uint32_t bits = 0;
    if (size % 4)
        return 0;
    for (size_t i = 0; i < size - padding; i++) {
        int digit = digit_of(s[i]);
        if (digit < 0)
            return 0;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4)
            out[n++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return (padding && (bits & ((1u << 2 * padding) - 1))) ? 0 : n;
}

/* A line of the file without its end; 0: there is none left. Blank lines are stepped over. */
static int next_line(const char **at, const char *end, const char **line, size_t *size, size_t *number)
{
    while (*at < end) {
        const char *stop = memchr(*at, '\n', (size_t)(end - *at));
        stop = stop ? stop : end;
        *line = *at;
        *size = (size_t)(stop - *at);
        *at = stop < end ? stop + 1 : end;
        ++*number;
        if (*size && (*line)[*size - 1] == '\r')
            --*size;
        if (*size)
            return 1;
    }
    return 0;
}

static int bad_line(const struct reading *r, size_t number)
{
    return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: line %zu is not a token in base64, a space and its rank", r->from->ranks_name,
                   number);
}

/* *at: where the bytes go, moved behind them. */
static int read_token(struct reading *r, const char *line, size_t size, size_t number, char **at)
{
    const char *name = r->from->ranks_name, *space = memchr(line, ' ', size);
    size_t n = space ? (size_t)(space - line) : 0, digits = space ? size - n - 1 : 0;
    int64_t rank = 0;
    if (!n || !digits || digits > 9)
        return bad_line(r, number);
    if (n > LONGEST / 3 * 4)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: line %zu has a token of more than %d bytes", name, number, LONGEST / 3 * 3);
    for (size_t i = 1; i <= digits; i++) {
        if (space[i] < '0' || space[i] > '9')
            return bad_line(r, number);
        rank = 10 * rank + space[i] - '0';
    }
    size_t bytes = decode(line, n, *at);
    if (!bytes)
        return bad_line(r, number);
    if (rank >= r->n)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: line %zu has rank %lld, but %d tokens have the ranks 0 to %d", name, number,
                       (long long)rank, r->n, r->n - 1);
    if (r->token[rank].s)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: line %zu has rank %lld, which another line has", name, number, (long long)rank);
    if (!names_add(&r->ranks, *at, bytes, (int32_t)rank))
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: line %zu has the token of rank %d once more", name, number,
                       names_find(&r->ranks, *at, bytes));
    r->token[rank] = (struct name_entry){.s = *at, .size = (uint32_t)bytes};
    *at += bytes;
    return VB_OK;
}

static int read_ranks(struct reading *r)
{
    const struct tiktoken *from = r->from;
    const char *at = from->ranks, *end = at + from->ranks_size, *line;
    size_t size, lines = 0, number = 0;
    int rc = VB_OK;
    while (next_line(&at, end, &line, &size, &number))
        lines++;
    if (lines > MAX_TOKEN_ID - SPECIALS)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: %zu tokens, more than %d", from->ranks_name, lines, MAX_TOKEN_ID - SPECIALS);
    r->n = (int32_t)lines;
    r->arena = vb_alloc(r->a, from->ranks_size + 1, 1);
    r->token = vb_alloc(r->a, lines + 1, sizeof *r->token);
    r->names = vb_alloc(r->a, lines + 1, sizeof *r->names);
    if (!r->arena || !r->token || !r->names || !names_make(&r->ranks, lines, r->a))
        return no_memory(r);
    char *bytes = r->arena;
    at = from->ranks;
    number = 0;
    while (!rc && next_line(&at, end, &line, &size, &number))
        rc = read_token(r, line, size, number, &bytes);
    for (int b = 0; !rc && b < 256; b++) {
        char byte = (char)b;
        if (names_find(&r->ranks, &byte, 1) < 0)
            rc = vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: there is no token for byte 0x%02X", from->ranks_name, b);
    }
    return rc;
}

/* ---- pairs ---- */

/* Tokens side by side whose bytes are those of one token. */
struct tiktoken_part {
    uint32_t at;
    int32_t joined; /* the rank of this part and the next as one, -1: they are none */
};

static int32_t joined_rank(const struct reading *r, const struct name_entry *token, const struct tiktoken_part *p)
{
    return names_find(&r->ranks, token->s + p[0].at, p[2].at - p[0].at);
}

/* How many of the token's bytes are the left one of the last pair; 0: its bytes do not lead to it. */
static uint32_t last_pair(const struct reading *r, const struct name_entry *token, struct tiktoken_part *part)
{
    uint32_t n = token->size;
    for (uint32_t i = 0; i <= n; i++)
        part[i].at = i; /* part[n]: the end */
    for (uint32_t i = 0; i + 1 < n; i++)
        part[i].joined = joined_rank(r, token, &part[i]);
    while (n > 2) {
        uint32_t best = n;
        for (uint32_t i = 0; i + 1 < n; i++)
            if (part[i].joined >= 0 && (best == n || part[i].joined < part[best].joined))
                best = i;
        if (best == n)
            return 0;
        memmove(&part[best + 1], &part[best + 2], (n - best - 1) * sizeof *part);
        n--;
        for (uint32_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++)
            part[i].joined = joined_rank(r, token, &part[i]);
    }
    return n == 2 ? part[1].at : 0;
}

static int say_merges(const struct reading *r, json_t *merges)
{
    struct tiktoken_part *part = vb_alloc(r->a, LONGEST + 2, sizeof *part);
    int failed = !part;
    for (int32_t i = 0; !failed && i < r->n; i++) {
        const struct name_entry *token = &r->token[i];
        uint32_t left = last_pair(r, token, part);
        if (!left)
            continue;
        int32_t a = names_find(&r->ranks, token->s, left), b = names_find(&r->ranks, token->s + left, token->size - left);
        failed = json_array_append_new(merges, json_pack("[O,O]", r->names[a], r->names[b]));
    }
    vb_free(r->a, part);
    return failed ? no_memory(r) : VB_OK;
}

/* ---- vocabulary ---- */

static void characters(char text[256][3])
{
    int byte_of[LAST_BYTE_CHARACTER + 1];
    byte_characters(byte_of);
    for (int c = 0; c <= LAST_BYTE_CHARACTER; c++)
        if (byte_of[c] >= 0) {
            char *s = text[byte_of[c]];
            s[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
            s[1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3f));
            s[2] = 0;
        }
}

static int say_vocabulary(struct reading *r, json_t *vocab)
{
    char text[256][3], name[2 * LONGEST];
    characters(text);
    for (int32_t i = 0; i < r->n; i++) {
        size_t n = 0;
        for (uint32_t k = 0; k < r->token[i].size; k++)
            for (const char *s = text[(unsigned char)r->token[i].s[k]]; *s; s++)
                name[n++] = *s;
        if (!(r->names[i] = json_stringn_nocheck(name, n)) ||
            json_object_set_new_nocheck(vocab, json_string_value(r->names[i]), json_integer(i)))
            return no_memory(r);
    }
    return VB_OK;
}

/* ---- tokenizer_config.json ---- */

/* The class whose Python code this is, "": not said. A copy on another hub has "owner/name--" in front of its file. */
static const char *class_of(const json_t *config)
{
    const json_t *value = get_member(get_member(config, "auto_map"), "AutoTokenizer");
    const char *name = json_string_value(json_is_array(value) ? json_array_get(value, 0) : value), *hub = name ? strstr(name, "--") : NULL;
    if (!name)
        name = json_string_value(get_member(config, "tokenizer_class"));
    return hub ? hub + 2 : name ? name : "";
}

static int check_class(const struct reading *r, const json_t *config)
{
    static const char *const known[] = {"tokenization_kimi.TikTokenTokenizer", "tokenization_moonshot.TikTokenTokenizer", "TikTokenTokenizer"};
    const char *name = class_of(config);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i]))
            return VB_OK;
    return vb_fail(r->err, VB_UNSUPPORTED, "%s: the tokenizer's class (auto_map or tokenizer_class) is \"%s\"; how words are cut is "
                   "known for TikTokenTokenizer of tokenization_kimi and tokenization_moonshot (Kimi-K2, Moonlight) only",
                   r->from->config_name, token_show(name).text);
}

/* name[i]: what the config calls token n + i. */
static int read_names(const struct reading *r, json_t *list, const char *name[SPECIALS])
{
    const char *key;
    json_t *entry;
    if (list && !json_is_object(list))
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: added_tokens_decoder is not an object", r->from->config_name);
    json_object_foreach(list, key, entry)
    {
        const char *content = json_string_value(get_member(entry, "content"));
        char *end;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || !content || !*content)
            return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: added_tokens_decoder.%s is not an id with a content", r->from->config_name,
                           token_show(key).text);
        if (id < r->n || id >= r->n + SPECIALS)
            return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: added token \"%s\" has id %.20s, wanted %d to %d, behind the ranks",
                           r->from->config_name, token_show(content).text, key, r->n, r->n + SPECIALS - 1);
        name[id - r->n] = content;
    }
    return VB_OK;
}

/* tiktoken knows no other kind than special ones; the flags for other libraries are not looked at. */
static int say_added(const struct reading *r, const json_t *config, json_t *added)
{
    const char *name[SPECIALS] = {NULL};
    int rc = read_names(r, get_member(config, "added_tokens_decoder"), name);
    for (int i = 0; !rc && i < SPECIALS; i++) {
        char reserved[40];
        snprintf(reserved, sizeof reserved, "<|reserved_token_%d|>", r->n + i);
        if (!name[i] && r->n + i >= r->from->limit)
            continue;
        if (json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b}", "id", r->n + i, "content", name[i] ? name[i] : reserved,
                                                   "normalized", 0, "special", 1)))
            rc = no_memory(r);
    }
    return rc;
}

static int read_config(const struct reading *r, json_t **config)
{
    struct json_trouble why;
    const struct tiktoken *from = r->from;
    *config = json_load_any_number(from->config, from->config_size, 0, &why);
    if (*config && json_is_object(*config))
        return check_class(r, *config);
    if (*config)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: not a JSON object", from->config_name);
    return json_fail(&why, from->config_size, from->config_name, r->err);
}

/* ---- all of it ---- */

int tokenizer_from_tiktoken(json_t **json, json_t **config, const struct tiktoken *from, const vb_allocator *a, vb_error *err)
{
    struct reading r = {.from = from, .a = a, .err = err};
    json_t *vocab = json_object(), *added = json_array(), *merges = json_array();
    int rc = vocab && added && merges ? VB_OK : no_memory(&r);
    *json = *config = NULL;
    if (!rc && !(rc = read_config(&r, config)) && !(rc = read_ranks(&r)) && !(rc = say_vocabulary(&r, vocab)) &&
        !(rc = say_merges(&r, merges)) && !(rc = say_added(&r, *config, added))) {
        rc = tokenizer_said(json, KIMI_K2, vocab, added, merges) ? VB_OK : no_memory(&r);
    } else {
        json_decref(vocab);
        json_decref(added);
        json_decref(merges);
    }
    for (int32_t i = 0; r.names && i < r.n; i++)
        json_decref(r.names[i]);
    vb_free(a, r.names);
    vb_free(a, r.ranks.entries);
    vb_free(a, r.token);
    vb_free(a, r.arena);
    return rc;
}

int tokenizer_say_tiktoken(json_t **json, json_t **config, const char *dir, int32_t limit, const vb_allocator *a, vb_error *err)
{
    char *path = vb_path(a, dir, "tiktoken.model"), *config_path = vb_path(a, dir, "tokenizer_config.json");
    char *ranks = NULL, *text = NULL;
    struct tiktoken from = {.ranks_name = path, .config_name = config_path, .limit = limit};
    int rc = path && config_path ? VB_OK : vb_fail(err, VB_NO_MEMORY, "%s: no memory for a path", dir);
    *json = *config = NULL;
    if (!rc && !vb_file_exists(config_path))
        rc = vb_fail(err, VB_IO, "%s: no tokenizer_config.json beside it, which names its special tokens", path);
    if (!rc && !(rc = vb_read_file(a, path, &ranks, &from.ranks_size, err)) &&
        !(rc = vb_read_file(a, config_path, &text, &from.config_size, err))) {
        from.ranks = ranks;
        from.config = text;
        rc = tokenizer_from_tiktoken(json, config, &from, a, err);
    }
    vb_free(a, path);
    vb_free(a, config_path);
    vb_free(a, ranks);
    vb_free(a, text);
    return rc;
}
