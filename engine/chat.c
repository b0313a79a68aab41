/* engine/chat.c -- the public functions about chat templates and conventions: lists and texts for whoever writes a
 * client. */
#include "engine/base/json.h"
#include "engine/base/options.h"
#include "engine/base/utf8.h"
#include "engine/model/model.h"
#include "engine/template/template.h"
#include "engine/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int vb_template_open(vb_template **out, const char *dir, const vb_allocator *allocator, vb_error *err)
{
    return chat_template_open(out, dir, allocator, err);
}

void vb_template_close(vb_template *t) { template_close(t); }

const char *vb_template_source(const vb_template *t, size_t *size)
{
    size_t unused;
    return template_source(t, size ? size : &unused);
}

/* A text of the caller's, not of a checkpoint. */
static int as_argument(vb_error *err)
{
    if (err && err->code == VB_NO_MEMORY)
        return VB_NO_MEMORY;
    if (err)
        err->code = VB_BAD_ARGUMENT;
    return VB_BAD_ARGUMENT;
}

static int read_array(json_t **out, const char *text, size_t size, vb_error *err)
{
    struct json_trouble why;
    *out = json_load_any_number(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why); /* a token may be U+0000 */
    if (!*out) {
        json_fail(&why, size, "messages", err);
        return as_argument(err);
    }
    if (!json_is_array(*out))
        return vb_fail(err, VB_BAD_ARGUMENT, "messages: not an array");
    for (size_t i = 0; i < json_array_size(*out); i++)
        if (!json_is_string(json_object_get(json_array_get(*out, i), "role")))
            return vb_fail(err, VB_BAD_ARGUMENT, "messages: message %zu is not an object with a role", i);
    return VB_OK;
}

static int read_more(json_t **out, const char *text, vb_error *err)
{
    if (!text)
        return VB_OK;
    *out = json_read(text, strlen(text), "template variables", err);
    if (!*out)
        return as_argument(err);
    return json_is_object(*out) ? VB_OK : vb_fail(err, VB_BAD_ARGUMENT, "template variables: not a JSON object");
}

int vb_template_render(const vb_template *t, const vb_tokenizer *tokenizer, const char *messages, size_t size,
                       int add_generation_prompt, const char *variables, char **text, size_t *text_size, vb_error *err)
{
    json_t *array = NULL, *more = NULL;
    char *rendered = NULL;
    *text = NULL;
    *text_size = 0;
    int code = read_array(&array, messages, size, err);
    if (!code)
        code = read_more(&more, variables, err);
    if (!code)
        code = chat_template_render(t, tokenizer, array, add_generation_prompt, more, &rendered, text_size, err);
    if (!code) {
        *text = malloc(*text_size + 1);
        if (*text)
            memcpy(*text, rendered, *text_size + 1);
        else
            code = vb_fail(err, VB_NO_MEMORY, "no memory for a prompt of %zu bytes", *text_size);
        vb_free(template_allocator(t), rendered);
    }
    json_decref(array);
    json_decref(more);
    return code;
}

int vb_convention_at_sized(size_t i, vb_convention *out, size_t size)
{
    const struct convention_row *r = convention_row(i);
    if (!r)
        return 0;
    vb_convention convention = {.name = r->name, .values = {r->values[0], r->values[1], r->values[2], r->values[3]},
                                .changes_output = i >= FIRST_TARGET_CONVENTION, .who = r->who};
    struct_fill(out, size, &convention, sizeof convention);
    return 1;
}

int vb_model_convention(const vb_model *model, size_t i)
{
    if (i >= CONVENTIONS)
        return 0;
    return convention_row(i)->of_indexer && !model->config.index_topk ? -1 : model->config.conventions.value[i];
}

int vb_system_at_sized(size_t i, vb_system *out, size_t size)
{
    const struct convention_preset *p = convention_preset(i);
    if (!p)
        return 0;
    struct conventions set = {{0}};
    vb_system system = {p->name, p->list, p->draft, p->evidence, 0};
    conventions_parse(&set, p->list, NULL);
    for (size_t k = FIRST_TARGET_CONVENTION; k < CONVENTIONS; k++)
        system.changes_output |= set.value[k] != 0;
    struct_fill(out, size, &system, sizeof system);
    return 1;
}

size_t vb_utf8_push(vb_utf8 *s, const char *bytes, size_t size, char *out)
{
    struct utf8_stream stream = {.n = s->count};
    memcpy(stream.pending, s->pending, sizeof stream.pending);
    size_t used = utf8_stream_push(&stream, bytes, size, out);
    memcpy(s->pending, stream.pending, sizeof stream.pending);
    s->count = stream.n;
    return used;
}

size_t vb_utf8_finish(vb_utf8 *s, char *out)
{
    struct utf8_stream stream = {.n = s->count};
    memcpy(stream.pending, s->pending, sizeof stream.pending);
    s->count = 0;
    return utf8_stream_finish(&stream, out);
}

size_t vb_utf8_valid(const char *text, size_t size) { return utf8_valid(text, size); }
