/* tools/serve/endpoints.c -- models, tokens, templates: answers that need no pass through the model. The shapes are
 * vLLM's. */
#include "tools/serve/endpoints.h"

#include <stdlib.h>
#include <string.h>

void endpoint_version(struct serve_writer *w) { writer_format(w, "{\"version\": \"%s\"}\n", vb_version()); }

int endpoint_health(const struct server *s, struct serve_writer *w, struct failure *f)
{
    int state = atomic_load(&s->state);
    if (state != SERVER_READY)
        return fail_with(f, 503, NULL, "",
                         state == SERVER_OPENING ? "the model is being opened" : "the server is stopping");
    writer_put(w, "{\"status\": \"ok\"}\n");
    return 0;
}

/* The draft methods that a request may name. */
static void put_draft_methods(const struct server *s, struct serve_writer *w)
{
    vb_draft_method m;
    vb_error err;
    writer_put(w, "[\"none\"");
    for (size_t i = 0; vb_draft_methods(i, &m); i++) {
        vb_drafting d = s->drafting;
        d.method = m.name;
        d.tokens = 0;
        d.tree = (vb_tree_shape){0};
        if (!m.needs_callback && !vb_draft_check(s->c->model, &d, &err))
            writer_format(w, ", \"%s\"", m.name);
    }
    writer_put(w, "]");
}

/* What a client can ask of this server. */
static void put_abilities(const struct server *s, struct serve_writer *w)
{
    const vb_drafting *d = &s->drafting;
    writer_format(w,
                  ", \"verbatim\": {\"tokenizer\": %s, \"chat\": %s, \"chat_error\": ", s->tokenizer ? "true" : "false",
                  s->chat ? "true" : "false");
    if (s->chat)
        writer_put(w, "null");
    else
        writer_string(w, s->chat_error.message, strlen(s->chat_error.message));
    writer_format(w, ", \"draft\": \"%s\", \"draft_tokens\": ", d->method ? d->method : "none");
    writer_format(w, d->automatic ? "\"auto\"" : "%d", (int)vb_draft_tokens(s->c->model, d));
    writer_put(w, ", \"draft_methods\": ");
    put_draft_methods(s, w);
    writer_put(w, "}");
}

static void put_model(const struct server *s, struct serve_writer *w)
{
    writer_put(w, "{\"id\": ");
    writer_string(w, s->name, strlen(s->name));
    writer_format(w, ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"verbatim\", \"max_model_len\": %zu",
                  s->created, s->context);
    writer_put(w, ", \"system_fingerprint\": ");
    writer_string(w, s->fingerprint, strlen(s->fingerprint));
    put_abilities(s, w);
    writer_put(w, "}");
}

int endpoint_models(const struct server *s, const char *path, struct serve_writer *w, struct failure *f)
{
    const char *name = path + strlen("/v1/models");
    if (*name && strcmp(name + 1, s->name))
        return fail_with(f, 404, "model_not_found", "model", "there is no model %.128s here; this server has %.128s",
                         name + 1, s->name);
    if (!*name)
        writer_put(w, "{\"object\": \"list\", \"data\": [");
    put_model(s, w);
    writer_put(w, *name ? "\n" : "]}\n");
    return 0;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static int want_tokenizer(const struct server *s, struct failure *f)
{
    return s->tokenizer ? 0
                        : fail_with(f, 400, NULL, "", "the model has no tokenizer: %s", s->c->tokenizer_error.message);
}

/* The token's text as a JSON string, invalid bytes as U+FFFD; null: there is none. */
static void put_piece(const struct server *s, struct serve_writer *w, int32_t token)
{
    size_t size;
    const char *piece = token >= 0 ? vb_piece(s->tokenizer, token, &size) : NULL;
    if (piece)
        writer_string(w, piece, size);
    else
        writer_put(w, "null");
}

int endpoint_tokenizer_info(const struct server *s, struct serve_writer *w, struct failure *f)
{
    int32_t end = 0;
    if (want_tokenizer(s, f))
        return f->status;
    while (end < s->vocabulary && !vb_is_end_token(s->c->model, end))
        end++;
    end = end < s->vocabulary ? end : -1;
    writer_put(w, "{\"tokenizer_class\": \"verbatim\", \"bos_token\": ");
    put_piece(s, w, vb_bos_token(s->tokenizer));
    writer_put(w, ", \"eos_token\": ");
    put_piece(s, w, end);
    writer_put(w, ", \"pad_token\": ");
    put_piece(s, w, end);
    writer_format(w, ", \"add_bos_token\": %s, \"vocab_size\": %d, \"model_max_length\": %zu, \"chat_template\": ",
                  vb_add_bos(s->tokenizer) ? "true" : "false", s->vocabulary, s->context);
    size_t size;
    const char *source = s->chat ? vb_template_source(s->chat, &size) : NULL;
    if (source)
        writer_string(w, source, size);
    else
        writer_put(w, "null");
    writer_put(w, "}\n");
    return 0;
}

static int encode_body(const struct server *s, const json_t *body, struct serve_prompt *p, struct failure *f)
{
    const json_t *prompt = request_member(body, "prompt");
    int bos = 1;
    if (request_model(s, body, f))
        return f->status;
    if (request_member(body, "messages"))
        return conversation_encode(s, body, p, f);
    if (!json_is_string(prompt))
        return prompt ? request_wrong(f, "prompt", prompt, "a text")
                      : fail_with(f, 400, NULL, "prompt", "prompt, or messages, is missing");
    if (request_flag(body, "add_special_tokens", &bos, f))
        return f->status;
    return request_encode(s, json_string_value(prompt), json_string_length(prompt), 1, bos, p, f);
}

int endpoint_tokenize(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f)
{
    struct serve_prompt p = {0};
    int strings = 0;
    if (want_tokenizer(s, f) || request_flag(body, "return_token_strs", &strings, f) || encode_body(s, body, &p, f))
        return f->status;
    writer_format(w, "{\"count\": %zu, \"max_model_len\": %zu, \"tokens\": [", p.count, s->context);
    for (size_t i = 0; i < p.count; i++)
        writer_format(w, "%s%d", i ? ", " : "", p.tokens[i]);
    writer_put(w, strings ? "], \"token_strs\": [" : "], \"token_strs\": null");
    for (size_t i = 0; strings && i < p.count; i++) {
        writer_put(w, i ? ", " : "");
        put_piece(s, w, p.tokens[i]);
    }
    writer_put(w, strings ? "]}\n" : "}\n");
    request_drop_prompt(&p);
    return 0;
}

int endpoint_detokenize(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f)
{
    struct serve_prompt p = {0};
    struct serve_writer text = {0};
    const json_t *tokens = request_member(body, "tokens");
    int empty = json_is_array(tokens) && !json_array_size(tokens);
    if (want_tokenizer(s, f) || request_model(s, body, f) || (!empty && request_ids(s, "tokens", tokens, &p, f)))
        return f->status;
    for (size_t i = 0; i < p.count; i++) {
        size_t size;
        const char *piece = vb_piece(s->tokenizer, p.tokens[i], &size);
        writer_bytes(&text, piece, piece ? size : 0);
    }
    writer_put(w, "{\"prompt\": ");
    writer_string(w, text.text, text.size);
    writer_put(w, "}\n");
    w->failed |= text.failed;
    writer_close(&text);
    request_drop_prompt(&p);
    return 0;
}

int endpoint_apply_template(const struct server *s, const json_t *body, struct serve_writer *w, struct failure *f)
{
    struct serve_prompt p = {0};
    if (request_model(s, body, f) || conversation_encode(s, body, &p, f))
        return f->status;
    writer_put(w, "{\"prompt\": ");
    writer_string(w, p.text, p.text_size);
    writer_put(w, "}\n");
    request_drop_prompt(&p);
    return 0;
}
