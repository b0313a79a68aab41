/* tools/cli/messages.c -- builds a conversation from the command line, and applies the chat template of the checkpoint
 * to it. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

/* Adds a message to the conversation, at the front if `first` is nonzero. If the text is not UTF-8, reports an error
 * that names `from`, the place where the text comes from. */
static int add_message(const struct cli *c, json_t *messages, int first, const char *role, const char *from,
                       const char *text, size_t size)
{
    json_t *message = json_pack("{s:s,s:s%}", "role", role, "content", text, size);
    if (!message)
        return cli_fail(c, EXIT_OTHER, "%.256s is not valid UTF-8 at byte %zu", from, vb_utf8_valid(text, size));
    if (first)
        json_array_insert_new(messages, 0, message);
    else
        json_array_append_new(messages, message);
    return EXIT_DONE;
}

static int check_messages(const struct cli *c, const char *name, const json_t *messages)
{
    if (!json_is_array(messages))
        return cli_fail(c, EXIT_OTHER, "%s: not an array of messages", name);
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return cli_fail(c, EXIT_OTHER, "%s: message %zu is not an object with a role", name, i);
    return EXIT_DONE;
}

static int read_messages(struct cli *c, json_t **out)
{
    char *text;
    size_t size;
    vb_error err;
    if (vb_read_input(NULL, c->messages, &text, &size, &err))
        return cli_error(c, &err);
    *out = json_read_exact(text, size, c->messages, &err);
    vb_free(NULL, text);
    return *out ? check_messages(c, c->messages, *out) : cli_error(c, &err);
}

/* Adds the text of --system at the front. This is an error if the messages already begin with a system message. */
static int add_system(const struct cli *c, const char *name, json_t *messages)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    if (role && !strcmp(role, "system"))
        return cli_fail(c, EXIT_USAGE, "%s begins with a system message: --system would be a second one", name);
    return add_message(c, messages, 1, "system", "--system", c->system, strlen(c->system));
}

static int add_prompt(struct cli *c, json_t *messages)
{
    char *text;
    size_t size;
    vb_error err;
    if (c->prompt)
        return add_message(c, messages, 0, "user", "--prompt", c->prompt, strlen(c->prompt));
    if (!c->prompt_file)
        return EXIT_DONE;
    if (vb_read_input(NULL, c->prompt_file, &text, &size, &err))
        return cli_error(c, &err);
    int code = add_message(c, messages, 0, "user", c->prompt_file, text, size);
    vb_free(NULL, text);
    return code;
}

int cli_messages(struct cli *c, json_t **out)
{
    int code = EXIT_DONE;
    *out = NULL;
    if (c->messages)
        code = read_messages(c, out);
    else
        *out = json_array();
    if (code == EXIT_DONE && c->system)
        code = add_system(c, c->messages, *out);
    if (code == EXIT_DONE)
        code = add_prompt(c, *out);
    if (code == EXIT_DONE)
        return code;
    json_decref(*out);
    *out = NULL;
    return code;
}

int cli_add_message(const struct cli *c, json_t *messages, const char *role, const char *text, size_t size)
{
    return add_message(c, messages, 0, role, "the message", text, size);
}

/* Reads --chat-template-kwargs. */
static int read_kwargs(const struct cli *c, json_t **out)
{
    vb_error err;
    *out = NULL;
    if (!c->template_kwargs)
        return EXIT_DONE;
    *out = json_read_exact(c->template_kwargs, strlen(c->template_kwargs), "--chat-template-kwargs", &err);
    if (!*out)
        return cli_fail(c, EXIT_USAGE, "%s", err.message);
    return json_is_object(*out) ? EXIT_DONE : cli_fail(c, EXIT_USAGE, "--chat-template-kwargs: not a JSON object");
}

int cli_open_template(struct cli *c)
{
    vb_error err;
    if (!c->tokenizer)
        return cli_error(c, &c->tokenizer_error);
    return !c->template && vb_template_open(&c->template, c->model_dir, NULL, &err) ? cli_error(c, &err) : EXIT_DONE;
}

int cli_render(struct cli *c, const json_t *messages, char **text, size_t *size)
{
    vb_error err;
    json_t *kwargs = NULL;
    *text = NULL;
    int code = cli_open_template(c);
    if (code == EXIT_DONE)
        code = read_kwargs(c, &kwargs);
    char *said = code == EXIT_DONE ? cli_must(json_dumps(messages, JSON_COMPACT)) : NULL;
    char *more = code == EXIT_DONE && kwargs ? cli_must(json_dumps(kwargs, JSON_COMPACT)) : NULL;
    if (code == EXIT_DONE &&
        vb_template_render(c->template, c->tokenizer, said, strlen(said), 1, more, text, size, &err))
        code = cli_fail(c, EXIT_OTHER, "%s", err.message); /* the error is in the messages, not in the command line */
    free(more);
    free(said);
    json_decref(kwargs);
    return code;
}

int cli_chat_text(struct cli *c, char **text, size_t *size)
{
    json_t *messages;
    int code = cli_messages(c, &messages);
    *text = NULL;
    if (code == EXIT_DONE)
        code = cli_render(c, messages, text, size);
    json_decref(messages);
    return code;
}

int cli_render_given(struct cli *c, const json_t *messages, const char *prompt, char **text, size_t *size)
{
    /* a shallow copy is enough, because only the array changes */
    json_t *all = messages ? json_copy((json_t *)(uintptr_t)messages) : json_array();
    int code = check_messages(c, "messages", all);
    *text = NULL;
    if (code == EXIT_DONE && c->system)
        code = add_system(c, "messages", all);
    if (code == EXIT_DONE && prompt)
        code = add_message(c, all, 0, "user", "prompt", prompt, strlen(prompt));
    if (code == EXIT_DONE)
        code = cli_render(c, all, text, size);
    json_decref(all);
    return code;
}

int cli_check_chat(const struct cli *c)
{
    int wanted = c->command->takes & TAKES_PROMPT;
    const char *option = c->system ? "--system"
                         : c->messages ? "--messages"
                         : c->template_kwargs ? "--chat-template-kwargs"
                         : NULL;
    if (wanted && option && !c->chat)
        return cli_fail(c, EXIT_USAGE, "%s wants --chat", option);
    if (c->chat && c->tokens)
        return cli_fail(c, EXIT_USAGE, "--chat makes the prompt's tokens, --tokens gives them: wanted one of them");
    if (c->chat && !c->messages && !c->prompt && !c->prompt_file && !c->prompts)
        return cli_fail(c, EXIT_USAGE, "--chat wants --messages, or the user's message as --prompt or --prompt-file");
    return EXIT_DONE;
}
