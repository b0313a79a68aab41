/* tests/fuzz/fuzz_schema.c -- any bytes as a JSON schema, and those after the first zero byte as a value. What is
 * accepted as a value is JSON, and the bytes of the input, taken as choices, never lead to a state that nothing may
 * follow. The same holds for forced calls with the schema as parameters. */
#include "tests/support/fuzz.h"
#include "tools/serve/schema_calls.h"

#define MOST_BYTES 512

static void read_value(struct schema_state *state, const uint8_t *data, size_t size)
{
    size_t i = 0;
    while (i < size && schema_byte(state, data[i]) == 1)
        i++;
    if (i == size && schema_may_end(state)) {
        json_t *value = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        demand(value != NULL);
        json_decref(value);
    }
}

/* From each choice on the first byte that is accepted. */
static void walk(struct schema_state *state, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size && i < MOST_BYTES; i++) {
        int rc = 0, may_end = schema_may_end(state);
        for (unsigned k = 0; k < 256 && !rc; k++)
            rc = schema_byte(state, (unsigned char)(data[i] + k));
        demand(rc == 1 || rc == VB_UNSUPPORTED || (!rc && may_end));
        if (rc != 1)
            return;
    }
}

static void force(json_t *parameters, const uint8_t *data, size_t size)
{
    static const unsigned char bytes[MEANING_MARKS] = {0};
    json_t *tools = json_pack("[{s:{s:s, s:O}}]", "function", "name", "f", "parameters", parameters);
    for (int calls = MEANING_DEEPSEEK_V3; calls <= MEANING_DEEPSEEK_V32; calls++) {
        struct schema *s;
        struct schema_state *state;
        char error[512];
        int rc = schema_of_calls(&s, &(struct schema_calls){(enum meaning_calls)calls, bytes, tools, NULL, 2}, error);
        demand(rc == VB_OK ? !*error && s : *error && !s);
        if (rc)
            continue;
        demand(!schema_begin(&state, s));
        walk(state, data, size);
        schema_state_close(state);
        schema_close(s);
    }
    json_decref(tools);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t first = zero ? (size_t)(zero - data) : size;
    json_t *json = json_loadb((const char *)data, first, JSON_DECODE_ANY, NULL);
    struct schema *s = NULL;
    struct schema_state *state;
    char error[512];
    if (!json)
        return 0;
    int rc = schema_open(&s, json, error);
    if (!rc)
        force(json, data, size);
    json_decref(json); /* the schema keeps nothing of it */
    demand(rc == VB_OK ? !*error && s : *error && !s);
    for (const char *c = error; *c; c++)
        demand((unsigned char)*c >= 0x20 && *c != 0x7f);
    demand(vb_utf8_valid(error, strlen(error)) == strlen(error));
    for (int i = 0; i < 2 && s; i++) {
        demand(!schema_begin(&state, s));
        if (i)
            walk(state, data, size);
        else if (zero)
            read_value(state, zero + 1, size - first - 1);
        schema_state_close(state);
    }
    schema_close(s);
    return 0;
}
