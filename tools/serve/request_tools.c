/* tools/serve/request_tools.c -- tools and tool_choice: whether calls in the answer are parsed. */
#include <string.h>

#include "tools/serve/request_internal.h"

#define MOST_TOOLS 1024

static const json_t *name_of(const json_t *tool) { return json_object_get(json_object_get(tool, "function"), "name"); }

static int check_tools(const json_t *tools, struct failure *f)
{
    if (tools && !json_is_array(tools))
        return request_wrong(f, "tools", tools, "an array");
    if (json_array_size(tools) > MOST_TOOLS)
        return fail_with(f, 400, NULL, "tools", "there are %zu tools, wanted at most %d", json_array_size(tools), MOST_TOOLS);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = request_member(tool, "type"), *name = name_of(tool);
        if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
            return fail_with(f, 400, NULL, "tools", "tool %zu has a type other than function", i);
        if (!json_is_string(name) || !json_string_length(name) || json_string_length(name) > MEANING_NAME)
            return fail_with(f, 400, NULL, "tools", "tool %zu has no function.name of 1 to %d bytes", i, MEANING_NAME);
    }
    return 0;
}

/* *parse: whether calls are parsed. What would force a call is refused. */
static int read_choice(const json_t *body, const json_t *tools, int *parse, struct failure *f)
{
    const json_t *choice = request_member(body, "tool_choice");
    const char *name = json_string_value(choice);
    *parse = json_array_size(tools) > 0 && !(name && !strcmp(name, "none"));
    if (!choice || (name && (!strcmp(name, "auto") || !strcmp(name, "none"))))
        return 0;
    return fail_with(f, 400, "unsupported_parameter", "tool_choice", "tool_choice is not supported by this server but for auto and none");
}

/* Equal requests have calls with equal ids. */
static uint64_t salt_of(const struct serve_job *job)
{
    uint64_t h = 14695981039346656037u ^ job->seed;
    for (size_t i = 0; i < job->prompts[0].count; i++)
        h = (h ^ (uint32_t)job->prompts[0].tokens[i]) * 1099511628211u;
    return h;
}

int request_tools(struct serve_job *job, const json_t *body, struct failure *f)
{
    const struct server *s = job->server;
    const json_t *tools = request_member(body, "tools");
    const struct serve_prompt *p = &job->prompts[0];
    int parse, parallel = 1;
    if (check_tools(tools, f) || read_choice(body, tools, &parse, f) || request_flag(body, "parallel_tool_calls", &parallel, f))
        return f->status;
    job->meaning = (struct meaning_options){.kind = s->meaning, .parse_calls = parse, .most_calls = !parallel, .salt = salt_of(job)};
    job->meaning.start = meaning_start_of(&s->meaning, p->text ? p->text : "", p->text_size);
    if (parse)
        job->meaning.tools = job->tools = json_deep_copy(tools);
    if (job->schema && job->meaning.start == MEANING_THINKS && s->end_think < 0)
        return fail_with(f, 400, "unsupported_parameter", "response_format",
                         "response_format cannot be combined with thinking, because </think> is not one token of this model");
    return 0;
}
