/* tools/serve/request_format.c -- response_format: the schema that the answers satisfy. */
#include <string.h>

#include "tools/serve/request_internal.h"

static const char field[] = "response_format";

/* json_schema: {"name", "schema", "strict", "description"}; strict changes nothing, since the mask holds in any
 * case. */
static int find_schema(const json_t *format, const json_t **schema, struct failure *f)
{
    const json_t *given = request_member(format, "json_schema"), *name = request_member(given, "name");
    int strict = 0;
    if (!json_is_object(given))
        return fail_with(f, 400, NULL, field, "response_format.json_schema is missing or no object");
    if (name && !json_is_string(name))
        return fail_with(f, 400, NULL, field, "response_format.json_schema.name is not a string");
    if (request_flag(given, "strict", &strict, f))
        return fail_with(f, 400, NULL, field, "response_format.json_schema.strict is neither true nor false");
    *schema = json_object_get(given, "schema");
    if (!json_is_object(*schema) && !json_is_boolean(*schema))
        return fail_with(f, 400, NULL, field, "response_format.json_schema.schema is missing or no schema");
    return 0;
}

/* *wanted: whether there is a format other than text; *schema: NULL means any object. */
static int read_type(const json_t *body, int *wanted, const json_t **schema, struct failure *f)
{
    const json_t *format = request_member(body, field);
    const char *type = json_string_value(json_object_get(format, "type"));
    *wanted = 0;
    *schema = NULL;
    if (!format || (type && !strcmp(type, "text")))
        return 0;
    if (!type)
        return request_wrong(f, field, format, "an object with a type");
    *wanted = 1;
    if (!strcmp(type, "json_schema"))
        return find_schema(format, schema, f);
    if (strcmp(type, "json_object") != 0)
        return fail_with(f, 400, "unsupported_parameter", field,
                         "response_format %.48s is not supported by this server; text, json_object and json_schema are",
                         type);
    if (request_member(format, "schema") || request_member(format, "json_schema"))
        return fail_with(f, 400, NULL, field, "response_format json_object has no schema; json_schema has one");
    return 0;
}

int request_format(struct serve_job *job, const json_t *body, struct failure *f)
{
    const json_t *schema;
    int wanted;
    char error[512];
    if (read_type(body, &wanted, &schema, f) || !wanted)
        return f->status;
    if (!job->server->pieces)
        return fail_with(f, 400, "unsupported_parameter", field,
                         "response_format wants a model with a tokenizer and end tokens");
    if (job->ignore_eos)
        return fail_with(f, 400, NULL, "ignore_eos",
                         "ignore_eos cannot be combined with response_format, whose values end with an end token");
    int rc = schema_open(&job->schema, schema, error);
    if (!rc)
        return 0;
    return fail_with(f, rc == VB_NO_MEMORY ? 500 : 400, rc == VB_UNSUPPORTED ? "unsupported_parameter" : NULL, field,
                     "response_format: %.480s", error);
}
