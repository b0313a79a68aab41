/* tools/serve/request.c -- from a body's fields to a job. */
#include "tools/serve/request.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "tools/serve/json_memory.h"
#include "tools/serve/request_internal.h"

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

static int in_word(char ch)
{
    return ch == '-' || ch == '+' || ch == '.' || (ch >= '0' && ch <= '9') || (ch >= 'A' && ch <= 'Z') ||
           (ch >= 'a' && ch <= 'z');
}

/* Brackets, commas and colons outside of strings: no fewer than the values and keys. Words: numbers, true, false and
 * null. */
static int measure(const char *text, size_t size, struct failure *f)
{
    size_t values = 0, depth = 0, deepest = 0, word = 0, longest = 0;
    int in_string = 0;
    for (size_t i = 0; i < size; i++) {
        char ch = text[i];
        if (in_string) {
            i += ch == '\\';
            in_string = ch != '"';
            continue;
        }
        in_string = ch == '"';
        word = in_word(ch) ? word + 1 : 0;
        longest = word > longest ? word : longest;
        values += ch == ',' || ch == ':' || ch == '[' || ch == '{';
        depth += ch == '[' || ch == '{';
        depth -= (ch == ']' || ch == '}') && depth;
        deepest = depth > deepest ? depth : deepest;
    }
    if (values > REQUEST_MOST_VALUES)
        return fail_with(f, 400, NULL, "", "the body has more than %zu values", REQUEST_MOST_VALUES);
    if (deepest > REQUEST_MOST_DEPTH)
        return fail_with(f, 400, NULL, "", "the body is nested more than %d deep", REQUEST_MOST_DEPTH);
    if (longest > JSON_MEMORY_MOST_WORD)
        return fail_with(f, 400, NULL, "", "the body has a number of more than %d characters", JSON_MEMORY_MOST_WORD);
    return 0;
}

int request_parse(const char *text, size_t size, json_t **body, struct failure *f)
{
    json_error_t why;
    *body = NULL;
    if (measure(text, size, f))
        return f->status;
    *body = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!*body)
        return fail_with(f, 400, NULL, "", "the body is not JSON: line %d, column %d: %s", why.line, why.column,
                         why.text);
    if (json_is_object(*body))
        return 0;
    json_decref(*body);
    *body = NULL;
    return fail_with(f, 400, NULL, "", "the body is JSON, and not an object");
}

const json_t *request_member(const json_t *body, const char *name)
{
    const json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

int request_wrong(struct failure *f, const char *name, const json_t *value, const char *wanted)
{
    char shown[64];
    size_t size = json_dumpb(value, shown, sizeof shown, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_COMPACT);
    if (size > sizeof shown - 1)
        memcpy(shown + sizeof shown - 4, "...", size = 3), size = sizeof shown - 1;
    return fail_with(f, 400, NULL, name, "%.64s is %.*s, wanted %s", name, (int)size, shown, wanted);
}

int request_flag(const json_t *body, const char *name, int *flag, struct failure *f)
{
    const json_t *value = request_member(body, name);
    if (value && !json_is_boolean(value))
        return request_wrong(f, name, value, "true or false");
    *flag = value ? json_is_true(value) : *flag;
    return 0;
}

int request_model(const struct server *s, const json_t *body, struct failure *f)
{
    const json_t *value = request_member(body, "model");
    if (value && !json_is_string(value))
        return request_wrong(f, "model", value, "a string");
    if (!value || !strcmp(json_string_value(value), s->name))
        return 0;
    return fail_with(f, 404, "model_not_found", "model", "there is no model %.128s here; this server has %.128s",
                     json_string_value(value), s->name);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

enum field_kind { FIELD_REAL, FIELD_WHOLE, FIELD_SIZE, FIELD_FLAG };
#define IN_BOTH 3
#define IN_COMPLETIONS (1 << API_COMPLETIONS)
#define IN_CHAT (1 << API_CHAT)
#define AT(field) offsetof(struct serve_job, field)

/* Fields that are a number or a flag at a place of the job. */
static const struct request_field {
    const char *name;
    int apis;
    enum field_kind kind;
    size_t offset;
    double least, most;
} fields[] = {
    {"temperature", IN_BOTH, FIELD_REAL, AT(sampling.temperature), 0, 1e6},
    {"top_p", IN_BOTH, FIELD_REAL, AT(sampling.top_p), 0, 1},
    {"min_p", IN_BOTH, FIELD_REAL, AT(sampling.min_p), 0, 1},
    {"top_k", IN_BOTH, FIELD_WHOLE, AT(sampling.top_k), -1, 1 << 30},
    {"repetition_penalty", IN_BOTH, FIELD_REAL, AT(sampling.repetition_penalty), 0, 1e6},
    {"presence_penalty", IN_BOTH, FIELD_REAL, AT(sampling.presence_penalty), -1e6, 1e6},
    {"frequency_penalty", IN_BOTH, FIELD_REAL, AT(sampling.frequency_penalty), -1e6, 1e6},
    {"n", IN_BOTH, FIELD_WHOLE, AT(n), 1, SERVE_MOST_CHOICES},
    {"max_tokens", IN_BOTH, FIELD_SIZE, AT(max_tokens), 0, 1 << 30},
    {"max_completion_tokens", IN_BOTH, FIELD_SIZE, AT(max_tokens), 0, 1 << 30},
    {"prompt_logprobs", IN_BOTH, FIELD_WHOLE, AT(prompt_logprobs), 0, SERVE_MOST_TOP},
    {"logprobs", IN_COMPLETIONS, FIELD_WHOLE, AT(logprobs), 0, SERVE_MOST_TOP},
    {"stream", IN_BOTH, FIELD_FLAG, AT(stream), 0, 0},
    {"echo", IN_COMPLETIONS, FIELD_FLAG, AT(echo), 0, 0},
    {"ignore_eos", IN_BOTH, FIELD_FLAG, AT(ignore_eos), 0, 0},
    {"return_token_ids", IN_BOTH, FIELD_FLAG, AT(return_tokens), 0, 0},
    {"add_special_tokens", IN_BOTH, FIELD_FLAG, AT(add_special_tokens), 0, 0},
    {"add_generation_prompt", IN_CHAT, FIELD_FLAG, AT(add_generation_prompt), 0, 0},
};

static int read_field(const struct request_field *field, struct serve_job *job, const json_t *body, struct failure *f)
{
    char wanted[80];
    const json_t *value = request_member(body, field->name);
    char *place = (char *)job + field->offset;
    if (field->kind == FIELD_FLAG)
        return request_flag(body, field->name, (int *)(void *)place, f);
    if (!value)
        return 0;
    double x = json_number_value(value);
    int is_whole = field->kind != FIELD_REAL;
    snprintf(wanted, sizeof wanted, "%s from %.10g to %.10g", is_whole ? "an integer" : "a number", field->least,
             field->most);
    if (!(is_whole ? json_is_integer(value) : json_is_number(value)) || !(x >= field->least && x <= field->most))
        return request_wrong(f, field->name, value, wanted);
    if (field->kind == FIELD_REAL)
        *(float *)(void *)place = (float)x;
    else if (field->kind == FIELD_WHOLE)
        *(int32_t *)(void *)place = (int32_t)json_integer_value(value);
    else
        *(size_t *)(void *)place = (size_t)json_integer_value(value);
    return 0;
}

static int read_fields(struct serve_job *job, const json_t *body, struct failure *f)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].apis & 1 << job->api && read_field(&fields[i], job, body, f))
            return f->status;
    job->has_max_tokens = request_member(body, "max_tokens") || request_member(body, "max_completion_tokens");
    if (job->sampling.temperature != 0.0f && job->sampling.temperature < 1e-5f)
        return request_wrong(f, "temperature", request_member(body, "temperature"), "0 or at least 1e-5");
    job->sampling.top_k = job->sampling.top_k < 0 ? 0 : job->sampling.top_k; /* vLLM's -1: off */
    return 0;
}

static int read_seed(struct serve_job *job, const json_t *body, struct failure *f)
{
    const json_t *value = request_member(body, "seed");
    if (value && (!json_is_integer(value) || json_integer_value(value) < 0))
        return request_wrong(f, "seed", value, "an integer of 0 or more");
    job->has_seed = value != NULL;
    job->seed = (uint64_t)json_integer_value(value);
    if (!value && getrandom(&job->seed, sizeof job->seed, 0) != sizeof job->seed)
        return fail_with(f, 500, NULL, "", "the system has no random numbers for a seed");
    job->seed &= value ? UINT64_MAX : ((uint64_t)1 << 53) - 1; /* which JavaScript can say again */
    return 0;
}

/* ---- stops and biases -------------------------------------------------------------------------------------------- */

static int add_stop(struct serve_job *job, const json_t *value, struct failure *f)
{
    if (!json_is_string(value) || !json_string_length(value) ||
        strlen(json_string_value(value)) != json_string_length(value))
        return request_wrong(f, "stop", value, "a string that is not empty, or an array of such");
    if (job->num_stops == SERVE_MOST_STOPS)
        return fail_with(f, 400, NULL, "stop", "stop holds more than %d strings", SERVE_MOST_STOPS);
    if (json_string_length(value) > 4096)
        return fail_with(f, 400, NULL, "stop", "a string of stop has %zu bytes, wanted at most 4096",
                         json_string_length(value));
    job->stop[job->num_stops] = strdup(json_string_value(value));
    if (!job->stop[job->num_stops])
        return fail_with(f, 500, NULL, "stop", "no memory for stop strings");
    job->num_stops++;
    return 0;
}

static int read_stops(struct serve_job *job, const json_t *body, struct failure *f)
{
    const json_t *value = request_member(body, "stop");
    size_t i;
    json_t *one;
    if (value && !json_is_array(value))
        add_stop(job, value, f);
    json_array_foreach(value, i, one)
        if (add_stop(job, one, f))
            break;
    if (!f->status && job->num_stops && !job->server->tokenizer)
        return fail_with(f, 400, NULL, "stop", "stop wants a tokenizer, and the model has none");
    return f->status;
}

static int read_stop_tokens(struct serve_job *job, const json_t *body, struct failure *f)
{
    const json_t *value = request_member(body, "stop_token_ids");
    struct serve_prompt ids = {0};
    if (!value || (json_is_array(value) && !json_array_size(value)))
        return 0;
    if (json_array_size(value) > 64)
        return fail_with(f, 400, NULL, "stop_token_ids", "stop_token_ids holds %zu ids, wanted at most 64",
                         json_array_size(value));
    if (request_ids(job->server, "stop_token_ids", value, &ids, f))
        return f->status;
    job->stop_tokens = ids.tokens;
    job->num_stop_tokens = (int32_t)ids.count;
    return 0;
}

static int read_bias(struct serve_job *job, const json_t *body, struct failure *f)
{
    const char *key;
    json_t *number;
    json_t *value = (json_t *)(uintptr_t)request_member(body, "logit_bias");
    if (value && !json_is_object(value))
        return request_wrong(f, "logit_bias", value, "an object of token ids and numbers");
    size_t count = json_object_size(value);
    if (!count)
        return 0;
    job->bias_tokens = malloc(count * sizeof *job->bias_tokens);
    job->bias_values = malloc(count * sizeof *job->bias_values);
    if (!job->bias_tokens || !job->bias_values)
        return fail_with(f, 500, NULL, "logit_bias", "no memory for logit_bias");
    json_object_foreach(value, key, number) {
        char *end;
        long id = strtol(key, &end, 10);
        double x = json_number_value(number);
        if (*key < '0' || *key > '9' || (*key == '0' && key[1]) || *end || id >= job->server->vocabulary)
            return fail_with(f, 400, NULL, "logit_bias", "logit_bias has the key %.32s, wanted a token id below %d",
                             key, job->server->vocabulary);
        if (!json_is_number(number) || !(x >= -100.0 && x <= 100.0))
            return request_wrong(f, "logit_bias", number, "numbers from -100 to 100");
        job->bias_tokens[job->sampling.bias_count] = (int32_t)id;
        job->bias_values[job->sampling.bias_count++] = (float)x;
    }
    job->sampling.bias_tokens = job->bias_tokens;
    job->sampling.bias_values = job->bias_values;
    return 0;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static int read_stream_options(struct serve_job *job, const json_t *body, struct failure *f)
{
    const json_t *value = request_member(body, "stream_options");
    if (value && !json_is_object(value))
        return request_wrong(f, "stream_options", value, "an object");
    if (value && !job->stream)
        return fail_with(f, 400, NULL, "stream_options", "stream_options wants stream to be true");
    return request_flag(value, "include_usage", &job->include_usage, f);
}

/* Chat's logprobs is a flag, and top_logprobs how many. */
static int read_chat_logprobs(struct serve_job *job, const json_t *body, struct failure *f)
{
    int wanted = 0;
    const json_t *top = request_member(body, "top_logprobs");
    json_int_t count = json_integer_value(top);
    if (request_flag(body, "logprobs", &wanted, f))
        return f->status;
    if (top && (!json_is_integer(top) || count < 0 || count > SERVE_MOST_TOP))
        return request_wrong(f, "top_logprobs", top, "an integer from 0 to 20");
    if (top && count && !wanted)
        return fail_with(f, 400, NULL, "top_logprobs", "top_logprobs wants logprobs to be true");
    job->logprobs = wanted ? (int32_t)count : -1;
    return 0;
}

static int method_fits(const struct serve_job *job, const vb_draft_method *m, struct failure *f)
{
    const struct server *s = job->server;
    if (m->needs_callback)
        return fail_with(f, 400, NULL, "draft", "draft is %s, which a request cannot have", m->name);
    if (m->needs_modules && !vb_mtp_modules(s->c->model))
        return fail_with(f, 400, NULL, "draft", "draft is %s, and the model has no MTP modules", m->name);
    if ((m->needs_model && !s->drafting.model) || (m->needs_head && !s->drafting.head))
        return fail_with(f, 400, NULL, "draft", "draft is %s, and the server was started without its --draft-model",
                         m->name);
    return 0;
}

static int read_draft_method(struct serve_job *job, const json_t *value, struct failure *f)
{
    vb_draft_method m;
    const vb_drafting *given = &job->server->drafting;
    const char *name = json_string_value(value);
    if (!name)
        return request_wrong(f, "draft", value, "the name of a draft method");
    if (!strcmp(name, "none")) {
        job->drafting.method = NULL;
        return 0;
    }
    size_t i = 0;
    while (vb_draft_methods(i, &m) && strcmp(m.name, name))
        i++;
    if (!vb_draft_methods(i, &m))
        return fail_with(f, 400, NULL, "draft", "draft is %.48s, which is no draft method", name);
    if (given->method && !strcmp(given->method, name))
        return 0;
    snprintf(job->draft_method, sizeof job->draft_method, "%s", name);
    job->drafting.method = job->draft_method;
    job->drafting.tokens = 0;
    job->drafting.tree = (vb_tree_shape){0};
    return method_fits(job, &m, f);
}

static int read_draft(struct serve_job *job, const json_t *body, struct failure *f)
{
    const json_t *method = request_member(body, "draft"), *tokens = request_member(body, "draft_tokens");
    if (method && read_draft_method(job, method, f))
        return f->status;
    if (!tokens)
        return 0;
    json_int_t K = json_integer_value(tokens);
    int is_auto = json_is_string(tokens) && !strcmp(json_string_value(tokens), "auto");
    if (!is_auto && (!json_is_integer(tokens) || K < 0 || K > VB_MAX_DRAFT))
        return request_wrong(f, "draft_tokens", tokens, "\"auto\" or an integer from 0 to 15");
    if (is_auto && server_drafts_lead(job->server))
        return fail_with(f, 400, NULL, "draft_tokens",
                         "draft_tokens is \"auto\", and with --acceptance %s the answer would depend on the server's "
                         "speed",
                         cli_acceptance(job->server->c));
    job->drafting.automatic = is_auto;
    job->drafting.tokens = is_auto ? 0 : K ? (int32_t)K : -1;
    if (job->drafting.tree.nodes && job->drafting.tree.nodes < job->drafting.tokens)
        return fail_with(f, 400, NULL, "draft_tokens", "draft_tokens is %d, and --draft-nodes is %d", (int)K,
                         job->drafting.tree.nodes);
    return 0;
}

static int read_text_prompt(struct serve_job *job, const json_t *value, struct serve_prompt *p, struct failure *f)
{
    size_t size = json_string_length(value);
    if (request_encode(job->server, json_string_value(value), size, 1, job->add_special_tokens, p, f))
        return f->status;
    if (!size)
        return fail_with(f, 400, NULL, "prompt", "the prompt is empty");
    p->text = malloc(size + 1);
    if (!p->text)
        return fail_with(f, 500, NULL, "prompt", "no memory for the prompt");
    memcpy(p->text, json_string_value(value), size);
    p->text_size = size;
    return 0;
}

static int read_one_prompt(struct serve_job *job, const json_t *value, struct failure *f)
{
    struct serve_prompt *p = &job->prompts[job->num_prompts++];
    if (json_is_string(value))
        return read_text_prompt(job, value, p, f);
    if (json_is_array(value))
        return request_ids(job->server, "prompt", value, p, f);
    return request_wrong(f, "prompt", value, "a text, an array of token ids, or an array of such");
}

static int read_prompts(struct serve_job *job, const json_t *body, struct failure *f)
{
    const json_t *value = request_member(body, "prompt");
    int is_list = json_is_array(value) && json_array_size(value) && !json_is_integer(json_array_get(value, 0));
    size_t count = is_list ? json_array_size(value) : 1;
    if (!value)
        return fail_with(f, 400, NULL, "prompt", "prompt is missing");
    if (count * (size_t)job->n > SERVE_MOST_SEQUENCES)
        return fail_with(f, 400, NULL, "prompt", "%zu prompts and n = %d are more than %d sequences", count, job->n,
                         SERVE_MOST_SEQUENCES);
    job->prompts = calloc(count, sizeof *job->prompts);
    if (!job->prompts)
        return fail_with(f, 500, NULL, "prompt", "no memory for %zu prompts", count);
    for (size_t i = 0; i < count && !f->status; i++)
        read_one_prompt(job, is_list ? json_array_get(value, i) : value, f);
    return f->status;
}

static int read_conversation(struct serve_job *job, const json_t *body, struct failure *f)
{
    job->prompts = calloc(1, sizeof *job->prompts);
    if (!job->prompts)
        return fail_with(f, 500, NULL, "messages", "no memory for the conversation");
    job->num_prompts = 1;
    return conversation_encode(job->server, body, &job->prompts[0], f);
}

/* What was counted and what is left of the context. */
static int check_lengths(struct serve_job *job, struct failure *f)
{
    const char *field = job->api == API_CHAT ? "messages" : "prompt";
    size_t context = job->server->context;
    int may_fill = job->has_max_tokens && !job->max_tokens; /* nothing is generated */
    for (size_t i = 0; i < job->num_prompts; i++) {
        size_t count = job->prompts[i].count;
        if (count + !may_fill > context)
            return fail_with(f, 400, "context_length_exceeded", field,
                             "the prompt has %zu tokens, and the context holds %zu with the answer", count, context);
        job->prompt_tokens += count;
    }
    if (job->api == API_CHAT && !job->has_max_tokens)
        job->max_tokens = context;
    return 0;
}

static int make_id(struct serve_job *job, struct failure *f)
{
    unsigned char bytes[12];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return fail_with(f, 500, NULL, "", "the system has no random numbers for an id");
    size_t used = (size_t)snprintf(job->id, sizeof job->id, "%s-", job->api == API_CHAT ? "chatcmpl" : "cmpl");
    for (size_t i = 0; i < sizeof bytes; i++)
        used += (size_t)snprintf(job->id + used, sizeof job->id - used, "%02x", bytes[i]);
    job->created = (long long)time(NULL);
    return 0;
}

static int read_all(struct serve_job *job, const json_t *body, struct failure *f)
{
    if (request_model(job->server, body, f) || request_refuse(body, f) || read_fields(job, body, f) ||
        read_seed(job, body, f) || read_stops(job, body, f) || read_stop_tokens(job, body, f) ||
        read_bias(job, body, f) || read_stream_options(job, body, f) || request_format(job, body, f) ||
        read_draft(job, body, f) || make_id(job, f))
        return f->status;
    if (job->api == API_CHAT &&
        (read_chat_logprobs(job, body, f) || read_conversation(job, body, f) || request_tools(job, body, f)))
        return f->status;
    if (job->api == API_COMPLETIONS && read_prompts(job, body, f))
        return f->status;
    if (check_lengths(job, f))
        return f->status;
    return job_make_choices(job) ? 0 : fail_with(f, 500, NULL, "", "no memory for the request");
}

int request_job(struct server *s, enum serve_api api, const json_t *body, struct serve_job **out, struct failure *f)
{
    struct serve_job *job = job_open(s, api);
    *out = NULL;
    if (!job)
        return fail_with(f, 500, NULL, "", "no memory for a request");
    if (read_all(job, body, f)) {
        job_release(job);
        return f->status;
    }
    request_note_unknown(s, body);
    *out = job;
    return 0;
}
