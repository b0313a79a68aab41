/* tools/training/turns.c -- which tokens of a conversation the assistant wrote. */
#include "tools/training/turns.h"

#include <stdlib.h>
#include <string.h>

#include "engine/template/template.h"

struct turns {
    struct cli *c;
    const json_t *messages, *more;
    char *text;
    size_t size;
    unsigned char *said; /* [size]: 1: the assistant wrote this byte */
};

static int render(struct turns *t, const json_t *messages, int add_generation_prompt, struct template_marks *marks,
                  char **text, size_t *size)
{
    vb_error err;
    return chat_template_render_marked(t->c->template, t->c->tokenizer, messages, add_generation_prompt, t->more, marks,
                                       text, size, &err)
               ? cli_fail(t->c, EXIT_OTHER, "%s", err.message)
               : EXIT_DONE;
}

/* Renders the first n messages. */
static int render_first(struct turns *t, size_t n, int add_generation_prompt, char **text, size_t *size)
{
    json_t *some = cli_must(json_array());
    for (size_t i = 0; i < n; i++)
        json_array_append(some, json_array_get(t->messages, i));
    int code = render(t, some, add_generation_prompt, NULL, text, size);
    json_decref(some);
    return code;
}

static size_t common(const struct turns *t, const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && n < t->size && text[n] == t->text[n])
        n++;
    return n;
}

/* Marks the turn of message i. */
static int mark_turn(struct turns *t, size_t i)
{
    const vb_allocator *a = template_allocator(t->c->template);
    char *before, *upto = NULL;
    size_t size, first, end = t->size;
    int code = render_first(t, i, 1, &before, &size);
    if (code != EXIT_DONE)
        return code;
    first = common(t, before, size);
    vb_free(a, before);
    if (i + 1 < json_array_size(t->messages)) {
        if ((code = render_first(t, i + 1, 0, &upto, &end)) != EXIT_DONE)
            return code;
        if (common(t, upto, end) < end)
            code = cli_fail(t->c, EXIT_OTHER,
                            "the chat template writes message %zu differently when others follow, so "
                            "--assistant-only-loss cannot find its "
                            "end: end the conversation with it, or mark the assistant's text by {%% generation %%} in "
                            "the template",
                            i);
        vb_free(a, upto);
    }
    if (code == EXIT_DONE && first < end)
        memset(t->said + first, 1, end - first);
    return code;
}

static int mark_turns(struct turns *t)
{
    int code = EXIT_DONE;
    for (size_t i = 0; i < json_array_size(t->messages) && code == EXIT_DONE; i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(t->messages, i), "role")), "assistant"))
            code = mark_turn(t, i);
    return code;
}

/* Renders the conversation and marks what the assistant said. */
static int find_said(struct turns *t)
{
    const vb_allocator *a = template_allocator(t->c->template);
    struct template_marks marks;
    int code = render(t, t->messages, 0, &marks, &t->text, &t->size);
    if (code == EXIT_DONE) {
        t->said = cli_must(calloc(t->size + 1, 1));
        for (size_t i = 0; i < marks.count && !marks.moved; i++)
            memset(t->said + marks.at[i].first, 1, marks.at[i].end - marks.at[i].first);
        if (!marks.count || marks.moved)
            code = mark_turns(t);
    }
    vb_free(a, marks.at);
    return code;
}

/* The tokens' bytes, one after the other, must be the text. */
static int mask_tokens(const struct turns *t, const int32_t *ids, unsigned char *mask, size_t count)
{
    size_t at = 0, n;
    for (size_t i = 0; i < count; i++, at += n) {
        const char *piece = vb_piece(t->c->tokenizer, ids[i], &n);
        if (!piece || n > t->size - at || memcmp(piece, t->text + at, n))
            return cli_fail(t->c, EXIT_OTHER,
                            "token %zu of the conversation, %d, does not spell what the chat template wrote, so "
                            "--assistant-only-loss cannot "
                            "find the assistant's tokens: give tokens and loss_mask",
                            i, ids[i]);
        mask[i] = n && memchr(t->said + at, 1, n);
    }
    return EXIT_DONE;
}

int turns_check(const struct cli *c, const json_t *messages)
{
    char shown[JSON_SHOWN];
    if (!json_is_array(messages))
        return cli_fail(c, EXIT_OTHER, "messages is %s, wanted an array", json_show(messages, shown));
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return cli_fail(c, EXIT_OTHER, "message %zu is not an object with a role", i);
    return EXIT_DONE;
}

int turns_encode(struct cli *c, const json_t *messages, const json_t *more, int32_t **ids, unsigned char **mask,
                 size_t *count)
{
    struct turns t = {.c = c, .messages = messages, .more = more};
    *ids = NULL;
    *mask = NULL;
    int code = find_said(&t);
    if (code == EXIT_DONE)
        code = cli_encode(c, "the text", t.text, t.size, 1, ids, count);
    if (code == EXIT_DONE) {
        *mask = cli_must(malloc(*count + 1));
        code = mask_tokens(&t, *ids, *mask, *count);
    }
    free(t.said);
    vb_free(template_allocator(c->template), t.text);
    return code;
}
