/* tools/serve/request_tools.c -- tools and tool_choice: whether calls in the answer are parsed, and the schema of calls
 * that must be. */
#include <string.h>

#include "tools/serve/request_internal.h"
#include "tools/serve/schema_calls.h"
#include "numbers/numbers.h"

#define MOST_TOOLS 1024

static const json_t *name_of(const json_t *tool) { return json_object_get(json_object_get(tool, "function"), "name"); }

static int check_tools(const json_t *tools, struct failure *f)
{
    if (tools && !json_is_array(tools))
        return request_wrong(f, "tools", tools, "an array");
    if (json_array_size(tools) > MOST_TOOLS)
        return fail_with(f, 400, NULL, "tools", "there are %zu tools, wanted at most %d", json_array_size(tools),
                         MOST_TOOLS);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = request_member(tool, "type"), *name = name_of(tool);
        if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
            return fail_with(f, 400, NULL, "tools", "tool %zu has a type other than function", i);
        if (!json_is_string(name) || !json_string_length(name) || json_string_length(name) > MEANING_NAME)
            return fail_with(f, 400, NULL, "tools", "tool %zu has no function.name of 1 to %d bytes", i, MEANING_NAME);
    }
    return 0;
}

/* What tool_choice says. */
struct tool_choice {
    int parse;        /* calls are parsed */
    int forced;       /* the answer must be a call */
    const char *name; /* of this tool; NULL: of any */
};

static int read_named(const json_t *choice, const json_t *tools, struct tool_choice *out, struct failure *f)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    out->name = json_string_value(name_of(choice));
    if (!type || strcmp(type, "function") != 0 || !out->name)
        return request_wrong(f, "tool_choice", choice,
                             "auto, none, required or {\"type\": \"function\", \"function\": {\"name\": NAME}}");
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!strcmp(json_string_value(name_of(json_array_get(tools, i))), out->name))
            return 0;
    return fail_with(f, 400, NULL, "tool_choice", "tool_choice names %.64s, which is not among the tools", out->name);
}

static int read_choice(const json_t *body, const json_t *tools, struct tool_choice *out, struct failure *f)
{
    const json_t *choice = request_member(body, "tool_choice");
    const char *word = json_string_value(choice);
    *out = (struct tool_choice){.parse = json_array_size(tools) > 0 && !(word && !strcmp(word, "none"))};
    if (!choice || (word && (!strcmp(word, "auto") || !strcmp(word, "none"))))
        return 0;
    out->forced = 1;
    if (!word || strcmp(word, "required") != 0)
        return read_named(choice, tools, out, f);
    if (!out->parse)
        return fail_with(f, 400, NULL, "tool_choice", "tool_choice is required, and there are no tools");
    return 0;
}

/* ---- calls that must be ---- */

/* A name that a call can have, so that the forced call can be parsed. */
static int is_plain(const char *name)
{
    return name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./")] == '\0';
}

/* Whether a call can be forced here at all. */
static int check_forced(const struct serve_job *job, const json_t *tools, struct failure *f)
{
    const struct server *s = job->server;
    if (s->meaning.calls == MEANING_NO_CALLS)
        return fail_with(f, 400, "unsupported_parameter", "tool_choice",
                         "tool_choice can only be auto or none, because the model's chat template shows no "
                         "known format of tool calls");
    if (!s->pieces)
        return fail_with(f, 400, "unsupported_parameter", "tool_choice", "tool_choice wants a model with end tokens");
    if (job->schema)
        return fail_with(f, 400, NULL, "tool_choice", "tool_choice cannot force a call together with response_format");
    if (job->ignore_eos)
        return fail_with(f, 400, NULL, "ignore_eos",
                         "ignore_eos cannot be combined with a forced tool call, which ends with an end token");
    if (json_array_size(tools) > SCHEMA_TOOLS)
        return fail_with(f, 400, NULL, "tools", "there are %zu tools, and a call can be forced among at most %d",
                         json_array_size(tools), SCHEMA_TOOLS);
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!is_plain(json_string_value(name_of(json_array_get(tools, i)))))
            return fail_with(f, 400, NULL, "tools",
                             "tool %zu has a name with other characters than letters, digits, _, -, . and /", i);
    return 0;
}

static int force_call(struct serve_job *job, const json_t *tools, const struct tool_choice *choice, int parallel,
                      struct failure *f)
{
    char error[512];
    const struct schema_calls calls = {.calls = job->server->meaning.calls, .mark_byte = job->server->mark_byte,
                                       .tools = tools, .name = choice->name,
                                       .most = parallel && !choice->name ? SCHEMA_CALLS : 1};
    if (check_forced(job, tools, f))
        return f->status;
    int rc = schema_of_calls(&job->schema, &calls, error);
    job->meaning.valid = 1;
    if (!rc)
        return 0;
    return fail_with(f, rc == VB_NO_MEMORY ? 500 : 400, rc == VB_UNSUPPORTED ? "unsupported_parameter" : NULL, "tools",
                     "%.500s", error);
}

/* Equal requests have calls with equal ids. */
static uint64_t salt_of(const struct serve_job *job)
{
    uint64_t h = FNV1A_START ^ job->seed;
    for (size_t i = 0; i < job->prompts[0].count; i++)
        h = fnv1a_word(h, (uint32_t)job->prompts[0].tokens[i]);
    return h;
}

int request_tools(struct serve_job *job, const json_t *body, struct failure *f)
{
    const struct server *s = job->server;
    const json_t *tools = request_member(body, "tools");
    const struct serve_prompt *p = &job->prompts[0];
    struct tool_choice choice;
    int parallel = 1;
    if (check_tools(tools, f) || read_choice(body, tools, &choice, f) ||
        request_flag(body, "parallel_tool_calls", &parallel, f))
        return f->status;
    int parse = choice.parse && (choice.forced || !job->schema); /* with response_format the answer is content */
    job->meaning = (struct meaning_options){.kind = s->meaning, .parse_calls = parse, .most_calls = !parallel,
                                            .salt = salt_of(job)};
    job->meaning.start = meaning_start_of(&s->meaning, p->text ? p->text : "", p->text_size);
    if (choice.parse && s->meaning.calls == MEANING_GLM) /* only its arguments have types that the schema decides */
        job->meaning.tools = job->tools = json_deep_copy(tools);
    return choice.forced ? force_call(job, tools, &choice, parallel, f) : 0;
}
