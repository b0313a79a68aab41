/* tools/score/read.c -- reads log-probabilities that Verbatim, SGLang, vLLM or another program has written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/base64.h"
#include "tools/score/compare.h"

struct scored_reading {
    const struct cli *c;
    struct scored_file *f;
    struct scored *text;
    size_t room;
    int code;
};

static int fail(struct scored_reading *r, const char *what)
{
    if (r->code == EXIT_DONE)
        r->code = cli_fail(r->c, EXIT_OTHER, "%.256s: text %zu: %s", r->f->path, r->text->line + 1, what);
    return r->code;
}

/* Appends a token to the text. */
static void add(struct scored_reading *r, long long token, double logprob, int32_t rank, double best)
{
    struct scored *t = r->text;
    if (t->count == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        t->tokens = cli_must(realloc(t->tokens, r->room * sizeof *t->tokens));
        t->logprobs = cli_must(realloc(t->logprobs, r->room * sizeof *t->logprobs));
        t->ranks = cli_must(realloc(t->ranks, r->room * sizeof *t->ranks));
        t->best = cli_must(realloc(t->best, r->room * sizeof *t->best));
    }
    if (token < 0 || token > INT32_MAX)
        fail(r, "a token id is not an integer of 0 or more");
    t->tokens[t->count] = (int32_t)token;
    t->ranks[t->count] = rank;
    t->best[t->count] = best;
    t->logprobs[t->count++] = logprob;
}

static double number_of(const json_t *x) { return json_is_number(x) ? json_number_value(x) : NAN; }

static int32_t rank_of(const json_t *x)
{
    json_int_t i = json_integer_value(x);
    return i > 0 && i < INT32_MAX ? (int32_t)i : 0;
}

static const json_t *key(const json_t *o, const char *name)
{
    const json_t *value = json_object_get(o, name);
    return json_is_null(value) ? NULL : value;
}

/* ---- vLLM -------------------------------------------------------------------------------------------------------- */

/* The largest log-probability in {id: {logprob, rank}}. */
static double best_of(const json_t *o)
{
    const char *name;
    json_t *one;
    double best = NAN;
    json_object_foreach((json_t *)(uintptr_t)o, name, one) {
        double x = number_of(json_object_get(one, "logprob"));
        best = !(x <= best) ? x : best;
    }
    return json_object_size(o) > 1 ? best : NAN;
}

/* Appends the tokens of {id: {logprob, rank}}, ...; ids [count] are the tokens, or NULL: the first key of each
 * object. */
static void add_vllm(struct scored_reading *r, const json_t *list, const json_t *ids)
{
    for (size_t i = 0; i < json_array_size(list) && r->code == EXIT_DONE; i++) {
        const json_t *o = json_array_get(list, i), *id = json_array_get(ids, i), *one = NULL;
        char name[32] = "";
        if (json_is_integer(id))
            snprintf(name, sizeof name, "%lld", (long long)json_integer_value(id));
        else if (json_object_size(o))
            snprintf(name, sizeof name, "%.31s", json_object_iter_key(json_object_iter((json_t *)(uintptr_t)o)));
        else if (i == 0)
            continue; /* the first token of a prompt has no log-probability, and its id is not known */
        one = json_object_get(o, name);
        if (!*name || (o && !json_is_null(o) && !one))
            fail(r, "a token has no log-probability of its own");
        add(r, strtoll(name, NULL, 10), number_of(json_object_get(one, "logprob")),
            rank_of(json_object_get(one, "rank")), best_of(o));
    }
}

static void read_vllm(struct scored_reading *r, const json_t *o, const json_t *choice)
{
    const json_t *prompt = key(o, "prompt_logprobs"), *ids = key(o, "prompt_token_ids"), *out = key(choice, "logprobs");
    prompt = prompt ? prompt : key(choice, "prompt_logprobs");
    ids = ids ? ids : key(choice, "prompt_token_ids");
    add_vllm(r, prompt, ids);
    if (!prompt)
        for (size_t i = 0; i < json_array_size(ids); i++)
            add(r, json_integer_value(json_array_get(ids, i)), NAN, 0, NAN);
    if (json_is_array(out))
        add_vllm(r, out, key(choice, "token_ids"));
}

/* ---- SGLang ------------------------------------------------------------------------------------------------------ */

static void add_sglang(struct scored_reading *r, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && r->code == EXIT_DONE; i++) {
        const json_t *one = json_array_get(list, i), *id = json_array_get(one, 1);
        if (json_is_integer(id))
            add(r, json_integer_value(id), number_of(json_array_get(one, 0)), 0, NAN);
        else
            fail(r, "wanted [logprob, id, text] for each token");
    }
}

/* ---- Verbatim and others ----------------------------------------------------------------------------------------- */

/* Entry i of an array that describes the last tokens of `count`. */
static const json_t *of_token(const json_t *array, size_t i, size_t count)
{
    size_t missing = count - (json_array_size(array) < count ? json_array_size(array) : count);
    return i < missing ? NULL : json_array_get(array, i - missing);
}

static void read_plain(struct scored_reading *r, const json_t *o)
{
    const json_t *ids = key(o, "tokens"), *logprobs = key(o, "logprobs"), *ranks = key(o, "ranks"),
                 *top = key(o, "top");
    const json_t *others = key(o, "logprobs_at_temperature");
    size_t count = json_array_size(ids);
    if (!json_is_array(ids) || !json_is_array(logprobs) || json_array_size(logprobs) > count) {
        fail(r, "wanted arrays tokens and logprobs, or meta_info, or prompt_logprobs");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i), *first = json_array_get(of_token(top, i, count), 0),
                     *best = json_array_get(first, 0);
        int32_t rank = rank_of(of_token(ranks, i, count));
        if (!rank && json_is_integer(best))
            rank = json_integer_value(best) == json_integer_value(id) ? 1 : 2;
        add(r, json_is_integer(id) ? json_integer_value(id) : -1, number_of(of_token(logprobs, i, count)), rank,
            number_of(json_array_get(first, 1)));
    }
    r->text->temperature = json_number_value(key(o, "temperature"));
    if (!json_is_array(others))
        return;
    r->text->at_temperature = cli_must(malloc((count + 1) * sizeof *r->text->at_temperature));
    for (size_t i = 0; i < count; i++)
        r->text->at_temperature[i] = number_of(of_token(others, i, count));
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

static int compare_experts(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : *(const int32_t *)a > *(const int32_t *)b;
}

static size_t flatten(const json_t *value, int32_t *to)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(value); i++)
        n += flatten(json_array_get(value, i), to ? to + n : NULL);
    if (json_is_array(value))
        return n;
    if (to)
        *to = (int32_t)json_integer_value(value);
    return 1;
}

/* The number of layers is not known here. So the experts of a row are compared as one set over all layers. */
static void read_routes(struct scored_reading *r, const json_t *value, const json_t *start)
{
    struct scored *t = r->text;
    size_t size = 0, skipped = json_integer_value(start) > 0 ? (size_t)json_integer_value(start) : 0, n;
    if (json_is_string(value)) {
        t->routes = (int32_t *)(void *)base64_decode(json_string_value(value), json_string_length(value), &size);
        n = size / sizeof *t->routes;
    } else {
        n = flatten(value, NULL);
        t->routes = cli_must(malloc((n + 1) * sizeof *t->routes));
        flatten(value, t->routes);
    }
    size_t rows = t->count > skipped ? t->count - skipped : 0;
    rows -= rows && n % rows ? 1 : 0;
    if (!t->routes || skipped || !rows || !n || n % rows) { /* rows that begin later cannot be compared from the first
                                                               difference on */
        free(t->routes);
        t->routes = NULL;
        return;
    }
    t->rows = rows;
    t->width = n / rows;
    for (size_t i = 0; i < rows; i++)
        qsort(t->routes + i * t->width, t->width, sizeof *t->routes, compare_experts);
}

/* ---- a file ------------------------------------------------------------------------------------------------------ */

static void read_text(struct scored_reading *r, const json_t *o)
{
    const json_t *meta = key(o, "meta_info"), *choice = json_array_get(key(o, "outputs"), 0), *id = key(o, "id"),
                 *routes;
    struct scored_file *f = r->f;
    f->texts = cli_must(realloc(f->texts, (f->count + 1) * sizeof *f->texts));
    r->text = &f->texts[f->count];
    *r->text = (struct scored){.line = f->count};
    f->count++;
    r->room = 0;
    choice = choice ? choice : json_array_get(key(o, "choices"), 0);
    if (key(o, "error")) {
        fail(r, "it has an error in place of scores");
    } else if (meta) {
        add_sglang(r, key(meta, "input_token_logprobs"));
        add_sglang(r, key(meta, "output_token_logprobs"));
    } else if (choice || key(o, "prompt_logprobs")) {
        read_vllm(r, o, choice);
    } else {
        read_plain(r, o);
    }
    if (r->code == EXIT_DONE && !r->text->count)
        fail(r, "it has no log-probabilities");
    routes = key(o, "routed_experts") ? key(o, "routed_experts") : key(meta ? meta : choice, "routed_experts");
    if (routes && r->code == EXIT_DONE && !key(o, "prompt_routed_experts"))
        read_routes(r, routes, key(meta ? meta : o, "routed_experts_start_len"));
    char *text = id ? json_dumps(id, JSON_ENCODE_ANY) : NULL;
    r->text->id = text;
}

static int read_lines(struct scored_reading *r, const char *text, size_t size)
{
    const char *end = text + size, *newline;
    struct json_trouble why;
    size_t line = 1;
    for (const char *p = text; p < end && r->code == EXIT_DONE; p = newline + 1, line++) {
        newline = memchr(p, '\n', (size_t)(end - p));
        newline = newline ? newline : end;
        if (strspn(p, " \t\r\n") >= (size_t)(newline - p))
            continue;
        json_t *j = json_load_any_number(p, (size_t)(newline - p), JSON_REJECT_DUPLICATES, &why);
        if (!j)
            return cli_fail(r->c, EXIT_OTHER, "%.256s: line %zu: column %d: %s", r->f->path, line, why.column,
                            why.what);
        read_text(r, j);
        json_decref(j);
    }
    return r->code;
}

int scored_is(const char *path)
{
    size_t n = strlen(path);
    return (n > 6 && !strcmp(path + n - 6, ".jsonl")) || (n > 5 && !strcmp(path + n - 5, ".json"));
}

int scored_read(const struct cli *c, struct scored_file *f, const char *path)
{
    struct scored_reading r = {.c = c, .f = f};
    char *text;
    size_t size;
    vb_error err;
    *f = (struct scored_file){.path = path};
    if (vb_read_input(NULL, path, &text, &size, &err))
        return cli_error(c, &err);
    struct json_trouble why;
    json_t *whole = json_load_any_number(text, size, JSON_REJECT_DUPLICATES, &why);
    for (size_t i = 0; json_is_array(whole) && i < json_array_size(whole) && r.code == EXIT_DONE; i++)
        read_text(&r, json_array_get(whole, i));
    if (json_is_object(whole))
        read_text(&r, whole);
    if (!whole)
        r.code = read_lines(&r, text, size);
    json_decref(whole);
    vb_free(NULL, text);
    if (r.code == EXIT_DONE && !f->count)
        r.code = cli_fail(c, EXIT_OTHER, "%.256s: there is no text in it", path);
    return r.code;
}

void scored_close(struct scored_file *f)
{
    for (size_t i = 0; i < f->count; i++) {
        struct scored *t = &f->texts[i];
        free(t->id);
        free(t->tokens);
        free(t->logprobs);
        free(t->at_temperature);
        free(t->ranks);
        free(t->best);
        free(t->routes);
    }
    free(f->texts);
    *f = (struct scored_file){0};
}
