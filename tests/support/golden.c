/* tests/support/golden.c -- reads golden/truth. */
#include "tests/support/golden.h"

struct golden golden_read(const char *path)
{
    struct golden g;
    vb_error err;
    uint64_t length;
    if (vb_read_file(NULL, path, &g.bytes, &g.size, &err))
        fail_msg("%s", err.message);
    memcpy(&length, g.bytes, sizeof length);
    g.header = json_loadb(g.bytes + 8, length, 0, NULL);
    assert_non_null(g.header);
    return g;
}

struct golden golden_open(const char *file)
{
    char path[256];
    snprintf(path, sizeof path, "golden/truth/%s.safetensors", file);
    return golden_read(path);
}

void *golden_data(const struct golden *g, const char *name, size_t *count)
{
    json_t *t = json_object_get(g->header, name), *size;
    uint64_t length;
    size_t i;
    if (!t)
        fail_msg("the golden has no %s", name);
    *count = 1;
    json_array_foreach(json_object_get(t, "shape"), i, size)
        *count *= (size_t)json_integer_value(size);
    memcpy(&length, g->bytes, sizeof length);
    return g->bytes + 8 + length + json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
}

void golden_close(struct golden *g)
{
    vb_free(NULL, g->bytes);
    json_decref(g->header);
}

json_t *golden_json(const char *file)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "golden/truth/%s.json", file);
    json_t *j = json_load_file(path, 0, &error);
    if (!j)
        fail_msg("%s: %s", path, error.text);
    return j;
}

int read_tokens(json_t *array, int32_t *out)
{
    size_t i;
    json_t *value;
    json_array_foreach(array, i, value)
        out[i] = (int32_t)json_integer_value(value);
    return (int)json_array_size(array);
}

double distance(const double *a, const void *golden, size_t count)
{
    double difference = 0, largest = 0, b;
    for (size_t i = 0; i < count; i++) {
        memcpy(&b, (const char *)golden + i * sizeof b, sizeof b);
        difference = fmax(difference, isnan(a[i]) ? INFINITY : fabs(a[i] - b));
        largest = fmax(largest, fabs(b));
    }
    return difference / largest;
}
