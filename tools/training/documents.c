/* tools/training/documents.c -- reads texts for training, and makes token ids of them. */
#include "tools/training/documents.h"

#include <stdlib.h>
#include <string.h>

#include "tools/training/turns.h"

#define SEPARATOR "<|endoftext|>"

void documents_add(struct documents *d, const int32_t *ids, const unsigned char *mask, size_t count)
{
    if (d->tokens + count > d->room) {
        d->room = 2 * (d->tokens + count);
        d->ids = cli_must(realloc(d->ids, d->room * sizeof *d->ids));
        d->mask = cli_must(realloc(d->mask, d->room));
    }
    if (d->count == d->end_room) {
        d->end_room = 2 * d->end_room + 64;
        d->end = cli_must(realloc(d->end, d->end_room * sizeof *d->end));
        d->file = cli_must(realloc(d->file, d->end_room * sizeof *d->file));
    }
    if (count)
        memcpy(d->ids + d->tokens, ids, count * sizeof *ids);
    for (size_t i = 0; i < count; i++) {
        d->mask[d->tokens + i] = !mask || mask[i];
        d->is_masked |= mask && !mask[i];
    }
    d->file[d->count] = (struct document_file){0};
    d->end[d->count++] = d->tokens += count;
}

void documents_close(struct documents *d)
{
    for (size_t i = 0; i < d->count; i++)
        free(d->file[i].name);
    free(d->file);
    free(d->ids);
    free(d->mask);
    free(d->end);
    *d = (struct documents){0};
}

/* The token that ends a text. If the model has several end tokens, the others end turns of a conversation; they have
 * larger ids in all models that we know. -1: there is none. */
static int32_t end_token(const struct cli *c)
{
    for (int32_t id = 0; id < vb_vocab_size(c->model); id++)
        if (vb_is_end_token(c->model, id))
            return id;
    return -1;
}

static int check_ids(const struct cli *c, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vb_vocab_size(c->model))
            return cli_fail(c, EXIT_OTHER, "token %zu is %d, the vocabulary of %s has %d", i, ids[i], c->model_dir,
                            vb_vocab_size(c->model));
    return EXIT_DONE;
}

/* Encodes a document and appends it. `name`: for messages. `is_chat`: the text comes from the chat template. */
static int add_text(struct cli *c, struct documents *d, const char *name, const char *text, size_t size, int is_chat)
{
    int32_t *ids;
    size_t count;
    if (!c->tokenizer)
        return cli_error(c, &c->tokenizer_error);
    if (!is_chat && c->train.assistant_only)
        return cli_fail(c, EXIT_OTHER,
                        "the document is a text, and --assistant-only-loss wants messages, or tokens with a loss_mask");
    int code = is_chat ? cli_encode(c, name, text, size, 1, &ids, &count)
                       : cli_encode_prompt(c, name, text, size, 0, &ids, &count);
    if (code != EXIT_DONE)
        return code;
    code = check_ids(c, ids, count);
    if (code == EXIT_DONE) {
        documents_add(d, ids, NULL, count);
        if (!is_chat && d->end_token >= 0) {
            documents_add(d, &d->end_token, NULL, 1); /* and makes one document of the two */
            d->end[--d->count - 1] = d->tokens;
        }
    }
    free(ids);
    return code;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* The next line that is SEPARATOR, or `end`. */
static const char *separator(const char *p, const char *end)
{
    size_t size = strlen(SEPARATOR);
    for (const char *line = p; line < end; line++) {
        if ((size_t)(end - line) >= size && !memcmp(line, SEPARATOR, size)) {
            const char *after = line + size;
            after += after < end && *after == '\r';
            if (after == end || *after == '\n')
                return line;
        }
        line = memchr(line, '\n', (size_t)(end - line));
        if (!line)
            break;
    }
    return end;
}

static int is_newline(char ch) { return ch == '\n' || ch == '\r'; }

static int add_texts(struct cli *c, struct documents *d, const char *file, const char *text, size_t size)
{
    const char *end = text + size;
    char name[40];
    size_t number = 0;
    int code = EXIT_DONE;
    for (const char *p = text, *last; p < end && code == EXIT_DONE; p = last + strlen(SEPARATOR)) {
        const char *first = p;
        last = separator(p, end);
        const char *behind = last;
        while (first < behind && is_newline(*first))
            first++;
        while (behind > first && is_newline(behind[-1]))
            behind--;
        snprintf(name, sizeof name, "document %zu", ++number);
        if (behind > first)
            code = add_text(c, d, name, first, (size_t)(behind - first), 0);
        if (last == end)
            break;
        cli_progress(file, (size_t)(last - text), size);
    }
    cli_progress(file, size, size);
    return code;
}

/* ---- JSON Lines -------------------------------------------------------------------------------------------------- */

/* A conversation in which the assistant's tokens are the labels. */
static int add_turns(struct cli *c, struct documents *d, const json_t *messages, const json_t *variables)
{
    int32_t *ids;
    unsigned char *mask;
    size_t count;
    int code = turns_encode(c, messages, variables, &ids, &mask, &count);
    if (code == EXIT_DONE)
        code = check_ids(c, ids, count);
    if (code == EXIT_DONE)
        documents_add(d, ids, mask, count);
    free(ids);
    free(mask);
    return code;
}

static int add_messages(struct cli *c, struct documents *d, const json_t *messages, const json_t *tools)
{
    vb_error err;
    char *text = NULL;
    size_t size;
    int code = turns_check(c, messages);
    if (code == EXIT_DONE)
        code = cli_open_template(c);
    if (code != EXIT_DONE)
        return code;
    json_t *variables = tools ? json_pack("{s:O}", "tools", tools) : NULL;
    if (c->train.assistant_only) {
        code = add_turns(c, d, messages, variables);
        json_decref(variables);
        return code;
    }
    char *said = cli_must(json_dumps(messages, JSON_COMPACT | JSON_ENCODE_ANY));
    char *more = variables ? cli_must(json_dumps(variables, JSON_COMPACT)) : NULL;
    if (vb_template_render(c->template, c->tokenizer, said, strlen(said), 0, more, &text, &size, &err))
        code = cli_fail(c, EXIT_OTHER, "%s", err.message);
    else
        code = add_text(c, d, "messages", text, size, 1);
    vb_text_free(text);
    free(more);
    json_decref(variables);
    free(said);
    return code;
}

/* mask [count]; `array` may be NULL */
static int read_mask(const struct cli *c, const json_t *array, unsigned char *mask, size_t count)
{
    char shown[JSON_SHOWN];
    if (!array)
        return c->train.assistant_only
                   ? cli_fail(c, EXIT_OTHER,
                              "tokens have no loss_mask, and --assistant-only-loss wants messages, or tokens with one")
                   : EXIT_DONE;
    if (!json_is_array(array) || json_array_size(array) != count)
        return cli_fail(c, EXIT_OTHER, "loss_mask is %s, wanted an array of %zu numbers, one for each token",
                        json_show(array, shown), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(array, i);
        if (!json_is_boolean(one) && !(json_is_integer(one) && (json_integer_value(one) & ~1) == 0))
            return cli_fail(c, EXIT_OTHER, "loss_mask of token %zu is %s, wanted 0 or 1", i, json_show(one, shown));
        mask[i] = json_is_true(one) || json_integer_value(one) == 1;
    }
    return EXIT_DONE;
}

static int add_tokens(struct cli *c, struct documents *d, const json_t *array, const json_t *mask_array)
{
    char shown[JSON_SHOWN];
    size_t count = json_array_size(array);
    int32_t *ids = cli_must(calloc(count + 1, sizeof *ids));
    unsigned char *mask = cli_must(calloc(count + 1, 1));
    int code = json_is_array(array)
                   ? EXIT_DONE
                   : cli_fail(c, EXIT_OTHER, "tokens is %s, wanted an array of integers", json_show(array, shown));
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        const json_t *id = json_array_get(array, i);
        json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number > INT32_MAX)
            code = cli_fail(c, EXIT_OTHER, "token %zu is %s, wanted a token id", i, json_show(id, shown));
        ids[i] = (int32_t)number;
    }
    if (code == EXIT_DONE)
        code = check_ids(c, ids, count);
    if (code == EXIT_DONE)
        code = read_mask(c, mask_array, mask, count);
    if (code == EXIT_DONE)
        documents_add(d, ids, mask_array ? mask : NULL, count);
    free(ids);
    free(mask);
    return code;
}

static int add_line(struct cli *c, struct documents *d, const char *line, size_t size)
{
    struct json_trouble why;
    char shown[JSON_SHOWN];
    json_t *json = json_load(line, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!json)
        return cli_fail(c, EXIT_OTHER, "column %d: %s", why.column, why.what);
    const json_t *text = json_object_get(json, "text"), *messages = json_object_get(json, "messages"),
                 *ids = json_object_get(json, "tokens");
    const json_t *mask = json_object_get(json, "loss_mask");
    int code, found = !!text + !!messages + !!ids;
    if (!json_is_object(json))
        code = cli_fail(c, EXIT_OTHER,
                        "the line is %s, wanted an object with one of the keys text, messages and tokens",
                        json_show(json, shown));
    else if (found != 1)
        code = cli_fail(c, EXIT_OTHER, "wanted one of the keys text, messages and tokens, found %d", found);
    else if (mask && !ids)
        code = cli_fail(c, EXIT_OTHER, "loss_mask is given without tokens, for which it is");
    else if (ids)
        code = add_tokens(c, d, ids, mask);
    else if (messages)
        code = add_messages(c, d, messages, json_object_get(json, "tools"));
    else if (!json_is_string(text))
        code = cli_fail(c, EXIT_OTHER, "text is %s, wanted a string", json_show(text, shown));
    else
        code = json_string_length(text) ? add_text(c, d, "text", json_string_value(text), json_string_length(text), 0)
                                        : EXIT_DONE;
    json_decref(json);
    return code;
}

static int add_lines(struct cli *c, struct documents *d, const char *file, const char *text, size_t size)
{
    char where[320];
    const char *end = text + size, *newline;
    size_t number = 1;
    int code = EXIT_DONE;
    for (const char *p = text; p < end && code == EXIT_DONE; p = newline + 1, number++) {
        newline = memchr(p, '\n', (size_t)(end - p));
        newline = newline ? newline : end;
        size_t blank = 0;
        while (blank < (size_t)(newline - p) && strchr(" \t\r", p[blank]))
            blank++;
        snprintf(where, sizeof where, "%.250s: line %zu", file, number);
        c->where = where;
        if (p + blank < newline)
            code = add_line(c, d, p, (size_t)(newline - p));
        cli_progress(file, (size_t)(newline - text), size);
    }
    cli_progress(file, size, size);
    return code;
}

int documents_read(struct cli *c, struct documents *d, const char *files)
{
    char name[4096];
    vb_error err;
    int code = EXIT_DONE;
    d->end_token = end_token(c);
    for (const char *p = files; *p && code == EXIT_DONE; p += *p == ',') {
        size_t length = strcspn(p, ","), size;
        char *text;
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), p);
        p += length;
        if (vb_read_input(NULL, name, &text, &size, &err))
            return cli_error(c, &err);
        c->where = name;
        if (cli_ends_with(name, ".jsonl"))
            code = add_lines(c, d, name, text, size);
        else
            code = add_texts(c, d, name, text, size);
        c->where = NULL;
        vb_free(NULL, text);
    }
    return code;
}
