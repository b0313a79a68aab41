/* engine/template/template.h -- chat templates: the part of Jinja2 that they use, rendered as Hugging Face renders it.
 *
 *   tags      if elif else, for (also with `if` and else), set (a name, namespace.name), macro, break, continue, generation, comments
 *   values    strings, integers, floats, true, false, none, lists, dicts with keys that are strings, namespaces, undefined
 *   operators or and not, == != < <= > >= in, + - * / // % ~, is, |, x if y else z, .name [i] [a:b:c], calls
 *
 * with trim_blocks and lstrip_blocks, as transformers sets them. tojson is transformers' too: it escapes nothing for HTML.
 * Filters, tests, methods and functions are those in call.c. Whatever else is refused by its name when the template is
 * parsed (VB_UNSUPPORTED), which is before anything is computed.
 *
 * A template comes from outside. Its size, the depth of its nesting, the steps and the memory of a rendering are bounded: one
 * that asks for more ends in a sentence. */
#ifndef VB_TEMPLATE_H
#define VB_TEMPLATE_H

#include <jansson.h>

#include "engine/base/support.h"

struct tokenizer;
struct template; /* read-only once parsed; may be shared by threads */

/* `name` stands for the template in messages. */
int template_parse(struct template **out, const char *text, size_t size, const char *name, const vb_allocator *a, vb_error *err);
void template_close(struct template *t);
const vb_allocator *template_allocator(const struct template *t);

/* variables: an object. *text is *size bytes and a 0 byte behind, memory of the template's allocator; free it with vb_free.
 * raise_exception(), and what goes wrong in a computation, is VB_BAD_ARGUMENT: other messages might render. */
int template_render(const struct template *t, const json_t *variables, char **text, size_t *size, vb_error *err);

/* The template of a checkpoint: DIR/chat_template.jinja, else chat_template in tokenizer_config.json (a string, or of a list the
 * one named "default"), or tokenizer.chat_template of a GGUF file. None is VB_IO. */
int chat_template_open(struct template **out, const char *dir, const vb_allocator *a, vb_error *err);

/* messages: an array. Its variables are messages, add_generation_prompt, bos_token and eos_token of the tokenizer, tools and
 * documents (none), and then the members of `more` (may be NULL), which may replace any but messages. */
int chat_template_render(const struct template *t, const struct tokenizer *tokenizer, const json_t *messages,
                         int add_generation_prompt, const json_t *more, char **text, size_t *size, vb_error *err);

#endif
