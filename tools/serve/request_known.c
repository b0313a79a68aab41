/* tools/serve/request_known.c -- which fields are known, and which of them are refused; prompts as ids. */
#include <stdlib.h>
#include <string.h>

#include "tools/serve/request_internal.h"

/* Read elsewhere, or without meaning here and allowed to say anything. */
static const char *const known[] = {
    "model",
    "prompt",
    "messages",
    "temperature",
    "top_p",
    "min_p",
    "top_k",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "prompt_logprobs",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "echo",
    "ignore_eos",
    "return_token_ids",
    "add_special_tokens",
    "add_generation_prompt",
    "allow_special_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "logit_bias",
    "draft",
    "draft_tokens",
    "response_format",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
    "user",
    "best_of",
    "suffix",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "documents",
    NULL};

/* Would change the answer if they were honoured: refused unless they say what holds anyway. */
static const char *const refused[] = {"functions", "function_call", "audio", "prediction", "guided_json",
                                      "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                                      "logits_processors", "truncate_prompt_tokens", "allowed_token_ids",
                                      "web_search_options", "typical_p", "mirostat", "grammar", "json_schema", NULL};

static int is_among(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name))
        names++;
    return *names != NULL;
}

/* Its value is one that changes nothing: an empty text or array, false, or this number. */
static int says_nothing(const json_t *value, json_int_t number)
{
    return json_is_false(value) || (json_is_string(value) && !json_string_length(value)) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_integer(value) && json_integer_value(value) == number);
}

static int refuse_unless(const json_t *body, const char *name, json_int_t number, struct failure *f)
{
    const json_t *value = request_member(body, name);
    if (!value || says_nothing(value, number))
        return 0;
    return fail_with(f, 400, "unsupported_parameter", name, "%s is not supported by this server", name);
}

int request_refuse(const json_t *body, struct failure *f)
{
    const json_t *n = request_member(body, "n"), *modalities = request_member(body, "modalities");
    for (const char *const *name = refused; *name; name++)
        if (refuse_unless(body, *name, 0, f))
            return f->status;
    if (refuse_unless(body, "best_of", n ? json_integer_value(n) : 1, f) || refuse_unless(body, "suffix", 0, f) ||
        refuse_unless(body, "min_tokens", 0, f) || refuse_unless(body, "use_beam_search", 0, f) ||
        refuse_unless(body, "length_penalty", 1, f) || refuse_unless(body, "bad_words", 0, f) ||
        refuse_unless(body, "include_stop_str_in_output", 0, f))
        return f->status;
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *name = json_string_value(json_array_get(modalities, i));
        if (!name || strcmp(name, "text"))
            return fail_with(f, 400, "unsupported_parameter", "modalities", "modalities holds what is not text");
    }
    return 0;
}

void request_note_unknown(struct server *s, const json_t *body)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, name, value) {
        if (is_among(name, known) || is_among(name, refused) || strlen(name) > 64 ||
            vb_utf8_valid(name, strlen(name)) < strlen(name))
            continue;
        pthread_mutex_lock(&s->lock);
        size_t i = 0;
        while (i < SERVE_MOST_UNKNOWN && s->unknown[i] && strcmp(s->unknown[i], name))
            i++;
        if (i < SERVE_MOST_UNKNOWN && !s->unknown[i] && (s->unknown[i] = strdup(name))) {
            for (char *ch = s->unknown[i]; *ch; ch++)
                *ch = (unsigned char)*ch < 0x20 || *ch == 0x7f ? '?' : *ch;
            fprintf(stderr, "verbatim: the unknown field %s is ignored, here and in later requests\n", s->unknown[i]);
        }
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

void request_drop_prompt(struct serve_prompt *p)
{
    free(p->tokens);
    free(p->text);
    *p = (struct serve_prompt){0};
}

int request_ids(const struct server *s, const char *name, const json_t *array, struct serve_prompt *p,
                struct failure *f)
{
    size_t count = json_array_size(array);
    if (!array)
        return fail_with(f, 400, NULL, name, "%s is missing", name);
    if (!json_is_array(array) || !count)
        return request_wrong(f, name, array, "an array of token ids that is not empty");
    p->tokens = malloc(count * sizeof *p->tokens);
    if (!p->tokens)
        return fail_with(f, 500, NULL, name, "no memory for %zu tokens", count);
    for (p->count = 0; p->count < count; p->count++) {
        const json_t *id = json_array_get(array, p->count);
        json_int_t i = json_integer_value(id);
        if (!json_is_integer(id) || i < 0 || i >= s->vocabulary) {
            char wanted[64];
            snprintf(wanted, sizeof wanted, "token ids from 0 to %d", s->vocabulary - 1);
            int status = request_wrong(f, name, id, wanted);
            request_drop_prompt(p);
            return status;
        }
        p->tokens[p->count] = (int32_t)i;
    }
    return 0;
}

int request_encode(const struct server *s, const char *text, size_t size, int special, int bos, struct serve_prompt *p,
                   struct failure *f)
{
    vb_error err;
    size_t count = 0, room = size / 2 + 16;
    int code = VB_OK;
    if (!s->tokenizer)
        return fail_with(f, 400, NULL, "", "the model has no tokenizer: send token ids");
    bos = bos && vb_add_bos(s->tokenizer) && vb_bos_token(s->tokenizer) >= 0;
    p->tokens = NULL;
    do {
        room = count > room ? count : room;
        int32_t *tokens = realloc(p->tokens, (room + 1) * sizeof *tokens);
        if (!tokens) {
            request_drop_prompt(p);
            return fail_with(f, 500, NULL, "", "no memory for a text of %zu bytes", size);
        }
        p->tokens = tokens;
        tokens[0] = bos ? vb_bos_token(s->tokenizer) : 0;
        code = (special ? vb_encode : vb_encode_plain)(s->tokenizer, text, size, tokens + bos, room, &count, &err);
    } while (!code && count > room);
    p->count = count + (size_t)bos;
    for (size_t i = 0; i < p->count && !code; i++)
        if (p->tokens[i] >= s->vocabulary)
            code = fail_with(f, 400, NULL, "", "token %zu of the text is %d, outside the vocabulary of %d", i,
                             p->tokens[i], s->vocabulary);
    if (!code)
        return 0;
    request_drop_prompt(p);
    return f->status ? f->status : fail_by(f, &err);
}
