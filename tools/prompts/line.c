/* tools/prompts/line.c -- parses one line of a file of prompts, such as {"prompt": "Once", "max_tokens": 20, ...}. */
#include "tools/cli/routes.h"
#include "tools/prompts/prompts.h"
#include "numbers/numbers.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>


/* The keys with numbers, and the members of struct prompt that receive them. A value of null is treated like a missing
 * key. */
enum prompt_kind { ELSEWHERE, REAL, WHOLE, SIZE, SEED };
static const struct prompt_key {
    const char *name;
    enum prompt_kind kind;
    size_t offset;
    double least, most;
} keys[] = {
    {"prompt", ELSEWHERE, 0, 0, 0},
    {"tokens", ELSEWHERE, 0, 0, 0},
    {"messages", ELSEWHERE, 0, 0, 0},
    {"id", ELSEWHERE, 0, 0, 0},
    {"max_tokens", SIZE, offsetof(struct prompt, max_tokens), 0, 1 << 30},
    {"seed", SEED, offsetof(struct prompt, sampling.seed), 0, 9223372036854775807.0},
    {"temperature", REAL, offsetof(struct prompt, sampling.temperature), 0, 1e30},
    {"top_k", WHOLE, offsetof(struct prompt, sampling.top_k), 0, 1 << 30},
    {"top_p", REAL, offsetof(struct prompt, sampling.top_p), 0, 1},
    {"min_p", REAL, offsetof(struct prompt, sampling.min_p), 0, 1},
    {"repetition_penalty", REAL, offsetof(struct prompt, sampling.repetition_penalty), 0, 1e30},
    {"presence_penalty", REAL, offsetof(struct prompt, sampling.presence_penalty), -1e30, 1e30},
    {"frequency_penalty", REAL, offsetof(struct prompt, sampling.frequency_penalty), -1e30, 1e30},
    {"stop", ELSEWHERE, 0, 0, 0},
    {"draft", ELSEWHERE, 0, 0, 0},
    {"routed_experts", ELSEWHERE, 0, 0, 0},
    {"routes_in", ELSEWHERE, 0, 0, 0},
    {"indexer_topk", ELSEWHERE, 0, 0, 0},
    {"kept_in", ELSEWHERE, 0, 0, 0},
    {"draft_tokens", WHOLE, offsetof(struct prompt, draft_tokens), 0, VB_MAX_DRAFT},
};
#define NUM_KEYS (sizeof keys / sizeof *keys)

static const struct prompt_key *find(const char *name)
{
    for (size_t i = 0; i < NUM_KEYS; i++)
        if (!strcmp(keys[i].name, name))
            return &keys[i];
    return NULL;
}

static int unknown(const struct cli *c, const char *name)
{
    char shown[JSON_SHOWN], known[400] = "";
    json_t *quoted = json_string(name);
    for (size_t i = 0; i < NUM_KEYS; i++) {
        strcat(known, i ? ", " : "");
        strcat(known, keys[i].name);
    }
    int code = cli_fail(c, EXIT_USAGE, "unknown key %s; known are %s", json_show(quoted, shown), known);
    json_decref(quoted);
    return code;
}

static int wrong(const struct cli *c, const char *name, const json_t *value, const char *wanted)
{
    char shown[JSON_SHOWN];
    return cli_fail(c, EXIT_USAGE, "%s is %s, wanted %s", name, json_show(value, shown), wanted);
}

static int read_number(const struct cli *c, struct prompt *p, const struct prompt_key *k, const json_t *value)
{
    char wanted[80];
    void *place = (char *)p + k->offset;
    double x = json_number_value(value);
    int is_whole = k->kind != REAL;
    snprintf(wanted, sizeof wanted, "%s from %.10g to %.10g", is_whole ? "an integer" : "a number", k->least, k->most);
    if (!(is_whole ? json_is_integer(value) : json_is_number(value)) || !(x >= k->least && x <= k->most))
        return wrong(c, k->name, value, wanted);
    if (k->kind == REAL)
        *(float *)place = (float)x;
    else if (k->kind == WHOLE)
        *(int32_t *)place = (int32_t)json_integer_value(value);
    else if (k->kind == SIZE)
        *(size_t *)place = (size_t)json_integer_value(value);
    else
        *(uint64_t *)place = (uint64_t)json_integer_value(value);
    return EXIT_DONE;
}

static int add_stop(const struct cli *c, struct prompt *p, const json_t *value)
{
    if (!json_is_string(value) || !json_string_length(value))
        return wrong(c, "stop", value, "a string that is not empty, or an array of such");
    if (p->num_stops == MOST_STOPS)
        return cli_fail(c, EXIT_USAGE, "stop holds more than %d strings", MOST_STOPS);
    p->stop[p->num_stops++] = json_string_value(value);
    return EXIT_DONE;
}

/* The stop strings of a line replace those of the command line. */
static int read_stops(const struct cli *c, struct prompt *p, const json_t *value)
{
    int code = EXIT_DONE;
    p->num_stops = 0;
    if (!json_is_array(value))
        code = add_stop(c, p, value);
    for (size_t i = 0; i < json_array_size(value) && code == EXIT_DONE; i++)
        code = add_stop(c, p, json_array_get(value, i));
    if (code == EXIT_DONE && p->num_stops && !c->tokenizer)
        code = cli_error(c, &c->tokenizer_error);
    return code;
}

static int read_draft(const struct cli *c, struct prompt *p, const json_t *value)
{
    vb_draft_method method;
    vb_error err;
    if (!json_is_string(value))
        return wrong(c, "draft", value, "the name of a draft method");
    p->draft = json_string_value(value);
    if (vb_draft_method_find(&method, p->draft, &err))
        return cli_fail(c, EXIT_USAGE, "%s", err.message);
    return EXIT_DONE;
}

static int read_ids(const struct cli *c, struct prompt *p, const json_t *value)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value) || !n)
        return wrong(c, "tokens", value, "an array of token ids that is not empty");
    p->tokens = malloc(n * sizeof *p->tokens);
    if (!p->tokens)
        return cli_fail(c, EXIT_OTHER, "no memory for %zu tokens", n);
    for (; p->count < n; p->count++) {
        const json_t *id = json_array_get(value, p->count);
        long long i = json_integer_value(id);
        char shown[JSON_SHOWN];
        if (!json_is_integer(id) || i < 0 || i >= vb_vocab_size(c->model))
            return cli_fail(c, EXIT_USAGE, "token %zu is %s, outside the vocabulary of %d", p->count,
                            json_show(id, shown), vb_vocab_size(c->model));
        p->tokens[p->count] = (int32_t)i;
    }
    return EXIT_DONE;
}

/* The ids of a prompt, or of what the chat template makes of messages, or with --chat of a prompt. */
static int encode(struct cli *c, struct prompt *p, const json_t *text, const json_t *messages)
{
    char *rendered = NULL;
    const char *bytes = json_string_value(text);
    size_t size = json_string_length(text);
    int is_chat = messages || c->chat, code = EXIT_DONE;
    if (text && !json_is_string(text))
        return wrong(c, "prompt", text, "a string");
    if (!c->tokenizer)
        return cli_error(c, &c->tokenizer_error);
    if (is_chat)
        code = cli_render_given(c, messages, bytes, &rendered, &size);
    if (code == EXIT_DONE)
        code = cli_encode_prompt(c, is_chat ? "the chat template's text" : "prompt", is_chat ? rendered : bytes, size,
                                 is_chat, &p->tokens, &p->count);
    vb_text_free(rendered);
    for (size_t i = 0; i < p->count && code == EXIT_DONE; i++)
        if (p->tokens[i] >= vb_vocab_size(c->model))
            code = cli_fail(c, EXIT_USAGE, "token %zu of the prompt is %d, outside the vocabulary of %d", i,
                            p->tokens[i], vb_vocab_size(c->model));
    return code;
}

static const json_t *member(const struct prompt *p, const char *name)
{
    const json_t *value = json_object_get(p->json, name);
    return json_is_null(value) ? NULL : value;
}

static int read_members(struct cli *c, struct prompt *p)
{
    const char *name;
    json_t *value;
    int code = EXIT_DONE;
    json_object_foreach(p->json, name, value) {
        const struct prompt_key *k = find(name);
        if (!k)
            return unknown(c, name);
        if (k->kind != ELSEWHERE && !json_is_null(value) && (code = read_number(c, p, k, value)) != EXIT_DONE)
            return code;
    }
    p->id = member(p, "id");
    if (p->id && !json_is_string(p->id) && !json_is_number(p->id))
        return wrong(c, "id", p->id, "a string or a number");
    if (member(p, "temperature") && p->sampling.temperature != 0.0f && p->sampling.temperature < 1e-5f)
        return wrong(c, "temperature", member(p, "temperature"), "0 or at least 1e-5");
    if (member(p, "draft_tokens") && p->draft_tokens == 0)
        p->draft_tokens = -1;
    if (member(p, "stop"))
        code = read_stops(c, p, member(p, "stop"));
    return code == EXIT_DONE && member(p, "draft") ? read_draft(c, p, member(p, "draft")) : code;
}

static int read_prompt(struct cli *c, struct prompt *p)
{
    const json_t *text = member(p, "prompt"), *ids = member(p, "tokens"), *messages = member(p, "messages");
    int found = !!text + !!ids + !!messages;
    if (found != 1)
        return cli_fail(c, EXIT_USAGE, "wanted one of prompt, tokens and messages, found %d", found);
    return ids ? read_ids(c, p, ids) : encode(c, p, text, messages);
}

/* Forced choices of one kind: in the line itself, as other engines return them, or in a file. */
static int read_choices(const struct cli *c, const struct prompt *p, enum routes_kind kind, const char *key,
                        const char *file_key, struct routes_array *out)
{
    const json_t *value = member(p, key), *file = member(p, file_key);
    const char *name = file ? json_string_value(file) : key;
    if (!value && !file)
        return EXIT_DONE;
    if (value && file)
        return cli_fail(c, EXIT_USAGE, "wanted one of %s and %s", key, file_key);
    if (!name)
        return wrong(c, file_key, file,
                     kind == ROUTES_EXPERTS ? "the name of a file of routes" : "the name of a file of kept sets");
    int code = file ? routes_array_of_file(c, kind, name, out) : routes_array_of_json(c, kind, name, p->json, out);
    return code == EXIT_DONE ? routes_array_check(c, name, out, p->count, SIZE_MAX) : code; /* as cli_routes_in for one
                                                                                               prompt */
}

static int read_routes(const struct cli *c, struct prompt *p)
{
    int code = read_choices(c, p, ROUTES_EXPERTS, "routed_experts", "routes_in", &p->experts);
    if (code == EXIT_DONE)
        code = read_choices(c, p, ROUTES_KEPT, "indexer_topk", "kept_in", &p->kept);
    if (code == EXIT_DONE)
        p->routes = routes_join(c, &p->experts, &p->kept);
    return code;
}

static uint64_t hash_choices(uint64_t hash, const struct routes_array *choices)
{
    for (size_t i = 0; i < choices->tokens * (size_t)choices->layers * (size_t)choices->width; i++)
        hash = fnv1a_word(hash, (uint32_t)choices->numbers[i]);
    return hash;
}

uint32_t prompt_routes_hash(const struct prompt *p)
{
    uint64_t hash = hash_choices(hash_choices(FNV1A_START, &p->experts), &p->kept);
    return (uint32_t)(hash ^ hash >> 32) | 1;
}

static int parse(const struct cli *c, const struct prompt_line *line, struct prompt *p)
{
    struct json_trouble why;
    p->json = json_load(line->text, line->size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!p->json)
        return why.no_memory ? cli_fail(c, EXIT_OTHER, "no memory to read it")
                             : cli_fail(c, EXIT_USAGE, "column %d: %s", why.column, why.what);
    return json_is_object(p->json) ? EXIT_DONE : wrong(c, "it", p->json, "an object");
}

int prompt_read(struct cli *c, const struct prompt_line *line, struct prompt *p)
{
    *p = (struct prompt){.max_tokens = c->n < 0 ? 128 : (size_t)c->n, .sampling = c->session.sampling,
                         .num_stops = (size_t)c->sampling.num_stops};
    memcpy(p->stop, c->sampling.stop, sizeof p->stop);
    int code = parse(c, line, p);
    if (code == EXIT_DONE)
        code = read_members(c, p);
    if (code == EXIT_DONE)
        code = read_prompt(c, p);
    if (code == EXIT_DONE)
        code = read_routes(c, p);
    if (code != EXIT_DONE)
        prompt_close(p);
    return code;
}

void prompt_close(struct prompt *p)
{
    json_decref(p->json);
    free(p->tokens);
    free(p->experts.numbers);
    free(p->kept.numbers);
    *p = (struct prompt){0};
}
