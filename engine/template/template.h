/* engine/template/template.h -- renders chat templates as Hugging Face transformers does.
 *
 * Chat templates are written in Jinja2. This interpreter implements the part of Jinja2 that chat templates use:
 *
 *   Tags: if, elif, else; for (optionally with `if` and else); set (for a name or namespace.name, with a value or a
 *   body); macro; break; continue; generation; comments.
 *
 *   Values: strings, integers, floats, true, false, none, lists, dicts whose keys are strings, namespaces, undefined.
 *
 *   Operators: or and not, == != < <= > >= in, + - * / // % ~, is, |, x if y else z, .name [i] [a:b:c], calls.
 *
 * As in transformers, trim_blocks and lstrip_blocks are on, and tojson does not escape characters for HTML. call.c
 * lists the supported filters, tests, methods and functions. If a template uses anything else, parsing returns
 * VB_UNSUPPORTED, and the message names what is not supported.
 *
 * Templates come from untrusted files. The size and nesting of a template are limited, and so are the steps and the
 * memory of one rendering. Exceeding a limit is an error. */
#ifndef VB_TEMPLATE_H
#define VB_TEMPLATE_H

#include <jansson.h>

#include "engine/base/support.h"

struct vb_tokenizer;
struct vb_template; /* a parsed template; it is read-only, and threads may share it */

/* Parses the text of a template. `name` is the template's name for error messages. The caller closes *out with
 * template_close. */
int template_parse(struct vb_template **out, const char *text, size_t size, const char *name, const vb_allocator *a,
                   vb_error *err);
void template_close(struct vb_template *t);
/* Returns the text that was parsed, followed by a 0 byte, and sets *size to its size. */
const char *template_source(const struct vb_template *t, size_t *size);
const vb_allocator *template_allocator(const struct vb_template *t);

/* Renders a template. `variables` is a JSON object with the variables that the template can use. The result in *text
 * has *size bytes, followed by a 0 byte. The caller frees it with vb_free and the template's allocator. Returns
 * VB_BAD_ARGUMENT if the template calls raise_exception(), or if a computation in the template fails. The code is not
 * VB_BAD_CHECKPOINT, because the same template might work with other variables. */
int template_render(const struct vb_template *t, const json_t *variables, char **text, size_t *size, vb_error *err);

/* Parts of a rendered text: the bytes that blocks {% generation %} wrote, with which transformers finds what the
 * assistant said. */
struct template_marks {
    struct template_mark {
        size_t first, end; /* bytes [first, end) of the text */
    } *at;                 /* [count]: in the order in which the blocks ended; vb_free with the template's allocator */
    size_t count, room;
    int moved; /* nonzero: a block wrote into a variable or a macro's value, so that its place in the text is not
                  known */
};
/* As template_render, and sets *marks (NULL: not wanted); the caller frees marks->at, also after an error. */
int template_render_marked(const struct vb_template *t, const json_t *variables, struct template_marks *marks,
                           char **text, size_t *size, vb_error *err);

/* Opens the chat template of a checkpoint. In a GGUF file the template is the value of the key
 * tokenizer.chat_template. In a directory it is the file chat_template.jinja, or else the member chat_template of
 * tokenizer_config.json. This member is a string, or a list in which the entry named "default" is used. Returns
 * VB_IO if the checkpoint has no template. */
int chat_template_open(struct vb_template **out, const char *dir, const vb_allocator *a, vb_error *err);

/* Renders a conversation. `messages` is a JSON array of messages. The template can use these variables: messages,
 * add_generation_prompt, the tokenizer's bos_token and eos_token, tools and documents (both none), and the members of
 * the JSON object `more`. `more` may be NULL, and its members may replace every other variable except messages. *text
 * and *size are set as by template_render. */
int chat_template_render(const struct vb_template *t, const struct vb_tokenizer *tokenizer, const json_t *messages,
                         int add_generation_prompt, const json_t *more, char **text, size_t *size, vb_error *err);
/* As chat_template_render, with the marks of template_render_marked. */
int chat_template_render_marked(const struct vb_template *t, const struct vb_tokenizer *tokenizer,
                                const json_t *messages, int add_generation_prompt, const json_t *more,
                                struct template_marks *marks, char **text, size_t *size, vb_error *err);

#endif
