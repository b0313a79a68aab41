/* tools/score/line.c -- one line of a file for `score`, such as {"prompt": "Once", "response": " upon a time"}. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/routes.h"
#include "tools/score/score.h"

static const char known[] = "id, prompt, response, temperature, routed_experts and indexer_topk";

static int wrong(const struct cli *c, const char *name, const json_t *value, const char *wanted)
{
    char shown[JSON_SHOWN];
    return cli_fail(c, EXIT_USAGE, "%s is %s, wanted %s", name, json_show(value, shown), wanted);
}

static int check_keys(const struct cli *c, const json_t *line)
{
    static const char *const keys[] = {"id", "prompt", "response", "temperature", "routed_experts",
                                       "routed_experts_start_len", "indexer_topk"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)line, name, value) {
        size_t i = 0;
        while (i < sizeof keys / sizeof *keys && strcmp(keys[i], name))
            i++;
        if (i < sizeof keys / sizeof *keys)
            continue;
        char shown[JSON_SHOWN];
        json_t *quoted = json_string(name);
        int code = cli_fail(c, EXIT_USAGE, "unknown key %s; known are %s", json_show(quoted, shown), known);
        json_decref(quoted);
        return code;
    }
    return EXIT_DONE;
}

static void append(struct score_line *l, const int32_t *ids, size_t count)
{
    l->tokens = cli_must(realloc(l->tokens, (l->count + count + 1) * sizeof *l->tokens));
    if (count)
        memcpy(l->tokens + l->count, ids, count * sizeof *ids);
    l->count += count;
}

static int add_ids(const struct cli *c, struct score_line *l, const char *name, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *id = json_array_get(value, i);
        long long token = json_integer_value(id);
        char shown[JSON_SHOWN];
        if (!json_is_integer(id) || token < 0 || token >= vb_vocab_size(c->model))
            return cli_fail(c, EXIT_USAGE, "token %zu of %s is %s, outside the vocabulary of %d", i, name,
                            json_show(id, shown), vb_vocab_size(c->model));
        append(l, &(int32_t){(int32_t)token}, 1);
    }
    return EXIT_DONE;
}

/* A text or an array of ids. BOS is put before the text of a prompt only. */
static int add_part(struct cli *c, struct score_line *l, const char *name, int is_prompt)
{
    const json_t *value = json_object_get(l->json, name);
    int32_t *ids;
    size_t count;
    if (!value || json_is_null(value))
        return EXIT_DONE;
    if (json_is_array(value))
        return add_ids(c, l, name, value);
    if (!json_is_string(value))
        return wrong(c, name, value, "a text or an array of token ids");
    if (!c->tokenizer)
        return cli_error(c, &c->tokenizer_error);
    const char *text = json_string_value(value);
    size_t size = json_string_length(value);
    int code = is_prompt ? cli_encode_prompt(c, name, text, size, 0, &ids, &count)
                         : cli_encode(c, name, text, size, 1, &ids, &count);
    if (code != EXIT_DONE)
        return code;
    for (size_t i = 0; i < count && code == EXIT_DONE; i++)
        if (ids[i] >= vb_vocab_size(c->model))
            code = cli_fail(c, EXIT_USAGE, "token %zu of %s is %d, outside the vocabulary of %d", i, name, ids[i],
                            vb_vocab_size(c->model));
    if (code == EXIT_DONE)
        append(l, ids, count);
    free(ids);
    return code;
}

static int read_choices(struct cli *c, struct score_line *l, enum routes_kind kind, const char *key,
                        struct routes_array *out)
{
    const json_t *value = json_object_get(l->json, key);
    if (!value || json_is_null(value))
        return EXIT_DONE;
    int code = routes_array_of_json(c, kind, key, l->json, out);
    if (code == EXIT_DONE && (out->tokens + 1 < l->count || out->tokens > l->count))
        code = cli_fail(c, EXIT_USAGE, "%s has rows for %zu tokens, the text has %zu", key, out->tokens, l->count);
    return code;
}

static int read_routes(struct cli *c, struct score_line *l)
{
    int code = read_choices(c, l, ROUTES_EXPERTS, "routed_experts", &l->experts);
    if (code == EXIT_DONE)
        code = read_choices(c, l, ROUTES_KEPT, "indexer_topk", &l->kept);
    if (code == EXIT_DONE)
        l->routes = routes_join(c, &l->experts, &l->kept);
    return code;
}

static int read_members(struct cli *c, struct score_line *l)
{
    const json_t *temperature = json_object_get(l->json, "temperature"),
                 *response = json_object_get(l->json, "response");
    int code = check_keys(c, l->json);
    l->id = json_object_get(l->json, "id");
    if (code == EXIT_DONE && l->id && !json_is_string(l->id) && !json_is_number(l->id))
        code = wrong(c, "id", l->id, "a string or a number");
    double T = json_number_value(temperature);
    if (code == EXIT_DONE && temperature && !json_is_null(temperature) &&
        (!json_is_number(temperature) || !(T == 0 || (T >= 1e-5 && T <= 1e30))))
        code = wrong(c, "temperature", temperature, "0 or a number of at least 1e-5");
    if (json_is_number(temperature))
        l->temperature = (float)T;
    if (code == EXIT_DONE)
        code = add_part(c, l, "prompt", 1);
    l->first = response && !json_is_null(response) && l->count ? l->count : 1;
    if (code == EXIT_DONE)
        code = add_part(c, l, "response", 0);
    if (code == EXIT_DONE && l->count <= l->first)
        code = cli_fail(c, EXIT_USAGE,
                        l->count < 2 ? "it has %zu tokens; a score wants 2 or more" : "the response is empty",
                        l->count);
    return code == EXIT_DONE ? read_routes(c, l) : code;
}

int score_line_read(struct cli *c, const struct prompt_line *line, struct score_line *l)
{
    struct json_trouble why;
    *l = (struct score_line){.temperature = c->session.sampling.temperature};
    l->json = json_load(line->text, line->size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    int code = EXIT_DONE;
    if (!l->json)
        code = why.no_memory ? cli_fail(c, EXIT_OTHER, "no memory to read it")
                             : cli_fail(c, EXIT_USAGE, "column %d: %s", why.column, why.what);
    else if (!json_is_object(l->json))
        code = wrong(c, "it", l->json, "an object");
    if (code == EXIT_DONE)
        code = read_members(c, l);
    if (code != EXIT_DONE)
        score_line_close(l);
    return code;
}

void score_line_close(struct score_line *l)
{
    json_decref(l->json);
    free(l->tokens);
    free(l->experts.numbers);
    free(l->kept.numbers);
    *l = (struct score_line){0};
}
