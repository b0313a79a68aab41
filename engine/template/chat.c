/* engine/template/chat.c -- where a checkpoint keeps its chat template, and what the template is given. */
#include <string.h>

#include "engine/files/gguf.h"
#include "engine/base/json.h"
#include "engine/template/template.h"
#include "engine/text/tokenizer.h"

static int none(vb_error *err, const char *where)
{
    return vb_fail(err, VB_IO, "%s: there is no chat template", where);
}

static int open_gguf(struct vb_template **out, const char *path, const vb_allocator *a, vb_error *err)
{
    struct gguf *g;
    struct gguf_text text;
    int rc = gguf_open(&g, path, a, err);
    const struct gguf_value *v = rc ? NULL : gguf_find(g, "tokenizer.chat_template");
    if (!rc && !v)
        rc = none(err, path);
    else if (!rc && !gguf_string(v, &text))
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: tokenizer.chat_template is no string", path);
    else if (!rc)
        rc = template_parse(out, text.s, text.size, "tokenizer.chat_template", a, err);
    gguf_close(g);
    return rc;
}

/* Returns the value if it is a string, or the template named "default" if it is a list [{"name": "default", "template":
 * "..."}, ...]. Returns NULL if it is neither. */
static const json_t *default_template(const json_t *value)
{
    if (!json_is_array(value))
        return value;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && !strcmp(name, "default"))
            return json_object_get(entry, "template");
    }
    return NULL;
}

static int parse_config(struct vb_template **out, const char *text, size_t size, const char *path,
                        const vb_allocator *a, vb_error *err)
{
    json_t *config = json_read(text, size, path, err);
    const json_t *value = json_object_get(config, "chat_template"), *chosen = default_template(value);
    int rc = VB_OK;
    if (!config)
        return err ? err->code : VB_BAD_CHECKPOINT;
    if (!value || json_is_null(value))
        rc = none(err, path);
    else if (!json_is_string(chosen))
        rc = vb_fail(err, VB_BAD_CHECKPOINT,
                     "%s: chat_template is neither a string nor a list with one named \"default\"", path);
    else
        rc = template_parse(out, json_string_value(chosen), json_string_length(chosen), "chat_template", a, err);
    json_decref(config);
    return rc;
}

int chat_template_open(struct vb_template **out, const char *dir, const vb_allocator *a, vb_error *err)
{
    *out = NULL;
    if (gguf_is_path(dir))
        return open_gguf(out, dir, a, err);
    char *jinja = vb_path(a, dir, "chat_template.jinja"), *config = vb_path(a, dir, "tokenizer_config.json"),
         *text = NULL;
    size_t size;
    int rc;
    if (!jinja || !config)
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for a path", dir);
    else if (vb_file_exists(jinja))
        rc = (rc = vb_read_file(a, jinja, &text, &size, err))
                 ? rc
                 : template_parse(out, text, size, "chat_template.jinja", a, err);
    else if (vb_file_exists(config))
        rc = (rc = vb_read_file(a, config, &text, &size, err)) ? rc : parse_config(out, text, size, config, a, err);
    else
        rc = vb_fail(err, VB_IO, "%s: there is no chat template: neither chat_template.jinja nor tokenizer_config.json",
                     dir);
    vb_free(a, text);
    vb_free(a, jinja);
    vb_free(a, config);
    return rc;
}

/* Sets a variable to the text of a token. If there is no such token, the variable is not set. */
static int set_token(json_t *variables, const char *name, const struct vb_tokenizer *t, int32_t id)
{
    size_t size;
    const char *piece = id < 0 ? NULL : tokenizer_piece(t, id, &size);
    return piece ? json_object_set_new(variables, name, json_stringn(piece, size)) : 0;
}

int chat_template_render(const struct vb_template *t, const struct vb_tokenizer *tokenizer, const json_t *messages,
                         int add_generation_prompt, const json_t *more, char **text, size_t *size, vb_error *err)
{
    return chat_template_render_marked(t, tokenizer, messages, add_generation_prompt, more, NULL, text, size, err);
}

int chat_template_render_marked(const struct vb_template *t, const struct vb_tokenizer *tokenizer,
                                const json_t *messages, int add_generation_prompt, const json_t *more,
                                struct template_marks *marks, char **text, size_t *size, vb_error *err)
{
    json_t *variables = json_pack("{s:n,s:n,s:b}", "tools", "documents", "add_generation_prompt",
                                  add_generation_prompt);
    int failed = !variables || (tokenizer && (set_token(variables, "bos_token", tokenizer, tokenizer_bos(tokenizer)) ||
                                              set_token(variables, "eos_token", tokenizer, tokenizer_eos(tokenizer))));
    failed = failed || (more && json_object_update(variables, (json_t *)(uintptr_t)more));
    /* const is cast away to count references */
    failed = failed || json_object_set(variables, "messages", (json_t *)(uintptr_t)messages);
    *text = NULL;
    if (marks)
        *marks = (struct template_marks){0};
    int rc = failed ? vb_fail(err, VB_NO_MEMORY, "no memory for a template's variables")
                    : template_render_marked(t, variables, marks, text, size, err);
    json_decref(variables);
    return rc;
}
