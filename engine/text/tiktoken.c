/* engine/text/tiktoken.c -- a tokenizer in tiktoken's format, said as tokenizer.json says it, so that both give the
 * same ids.
 *
 * tiktoken.model has a line per token: its bytes in base64, and its rank, which is its id. Behind the ranks come 258
 * ids for special tokens; tokenizer_config.json has the names of some, the rest are <|reserved_token_ID|>. How text is
 * cut into words is in the checkpoint's Python code, known here by the name of its class. */
#include "engine/base/json.h"
#include "engine/text/ranks_internal.h"

#include <stdlib.h>
#include <string.h>

#define SPECIALS 258 /* num_reserved_special_tokens + 2 of the Python code */

struct reading {
    const struct tiktoken *from;
    struct ranks ranks;
};

/* ---- tiktoken.model ---- */

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

static int read_line(struct ranks *r, const char *line, size_t size, size_t number)
{
    const char *space = memchr(line, ' ', size);
    size_t n = space ? (size_t)(space - line) : 0, digits = space ? size - n - 1 : 0;
    int64_t rank = 0;
    if (!n || !digits || digits > 9)
        return ranks_bad(r, number);
    for (size_t i = 1; i <= digits; i++) {
        if (space[i] < '0' || space[i] > '9')
            return ranks_bad(r, number);
        rank = 10 * rank + space[i] - '0';
    }
    return ranks_add(r, number, rank, line, n);
}

static int read_ranks(struct reading *r)
{
    const struct tiktoken *from = r->from;
    const char *at = from->ranks, *end = at + from->ranks_size, *line;
    size_t size, lines = 0, number = 0;
    while (next_line(&at, end, &line, &size, &number))
        lines++;
    if (lines > MAX_TOKEN_ID - SPECIALS)
        return vb_fail(r->ranks.err, VB_UNSUPPORTED, "%s: %zu tokens, more than %d", from->ranks_name, lines,
                       MAX_TOKEN_ID - SPECIALS);
    int rc = ranks_make(&r->ranks, lines, from->ranks_size);
    at = from->ranks;
    number = 0;
    while (!rc && next_line(&at, end, &line, &size, &number))
        rc = read_line(&r->ranks, line, size, number);
    return rc;
}

/* ---- tokenizer_config.json ---- */

/* The class whose Python code this is, "": not said. A copy on another hub has "owner/name--" in front of its file. */
static const char *class_of(const json_t *config)
{
    const json_t *value = get_member(get_member(config, "auto_map"), "AutoTokenizer");
    const char *name = json_string_value(json_is_array(value) ? json_array_get(value, 0) : value),
               *hub = name ? strstr(name, "--") : NULL;
    if (!name)
        name = json_string_value(get_member(config, "tokenizer_class"));
    return hub ? hub + 2 : name ? name : "";
}

static int check_class(const struct reading *r, const json_t *config)
{
    static const char *const known[] = {"tokenization_kimi.TikTokenTokenizer",
                                        "tokenization_moonshot.TikTokenTokenizer", "TikTokenTokenizer"};
    const char *name = class_of(config);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i]))
            return VB_OK;
    return vb_fail(r->ranks.err, VB_UNSUPPORTED,
                   "%s: the tokenizer's class (auto_map or tokenizer_class) is \"%s\"; how words are cut is "
                   "known for TikTokenTokenizer of tokenization_kimi and tokenization_moonshot (Kimi-K2, Moonlight) "
                   "only",
                   r->from->config_name, token_show(name).text);
}

/* name[i]: what the config calls token n + i. */
static int read_names(const struct reading *r, json_t *list, const char *name[SPECIALS])
{
    const char *key;
    json_t *entry;
    if (list && !json_is_object(list))
        return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: added_tokens_decoder is not an object",
                       r->from->config_name);
    json_object_foreach(list, key, entry)
    {
        const char *content = json_string_value(get_member(entry, "content"));
        char *end;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || !content || !*content)
            return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: added_tokens_decoder.%s is not an id with a content",
                           r->from->config_name, token_show(key).text);
        if (id < r->ranks.n || id >= r->ranks.n + SPECIALS)
            return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT,
                           "%s: added token \"%s\" has id %.20s, wanted %d to %d, behind the ranks",
                           r->from->config_name, token_show(content).text, key, r->ranks.n, r->ranks.n + SPECIALS - 1);
        name[id - r->ranks.n] = content;
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
        snprintf(reserved, sizeof reserved, "<|reserved_token_%d|>", r->ranks.n + i);
        if (!name[i] && r->ranks.n + i >= r->from->limit)
            continue;
        if (json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b}", "id", r->ranks.n + i, "content",
                                                   name[i] ? name[i] : reserved, "normalized", 0, "special", 1)))
            rc = ranks_no_memory(&r->ranks);
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
        return vb_fail(r->ranks.err, VB_BAD_CHECKPOINT, "%s: not a JSON object", from->config_name);
    return json_fail(&why, from->config_size, from->config_name, r->ranks.err);
}

/* ---- all of it ---- */

int tokenizer_from_tiktoken(json_t **json, json_t **config, const struct tiktoken *from, const vb_allocator *a,
                            vb_error *err)
{
    struct reading r = {from, {.a = a, .err = err, .file = from->ranks_name, .item = "line",
                               .form = "a token in base64, a space and its rank"}};
    json_t *vocab = json_object(), *added = json_array(), *merges = json_array();
    int rc = vocab && added && merges ? VB_OK : ranks_no_memory(&r.ranks);
    *json = *config = NULL;
    if (!rc && !(rc = read_config(&r, config)) && !(rc = read_ranks(&r)) &&
        !(rc = ranks_say(&r.ranks, vocab, merges)) && !(rc = say_added(&r, *config, added))) {
        rc = tokenizer_said(json, KIMI_K2, vocab, added, merges) ? VB_OK : ranks_no_memory(&r.ranks);
    } else {
        json_decref(vocab);
        json_decref(added);
        json_decref(merges);
    }
    ranks_free(&r.ranks);
    return rc;
}

int tokenizer_say_tiktoken(json_t **json, json_t **config, const char *dir, int32_t limit, const vb_allocator *a,
                           vb_error *err)
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
