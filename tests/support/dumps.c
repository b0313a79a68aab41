/* tests/support/dumps.c -- for tests of `verbatim diff`: dumps that are changed, and checks of the verdict. */
#include "tests/support/dumps.h"

const char *const names[TINY_COUNT] = {TINY_CHECKPOINTS(TINY_NAME)};
char a[96], b[96];

int make_dumps_dir(void **unused)
{
    make_test_dir(unused);
    snprintf(a, sizeof a, "%s/a.safetensors", dir);
    snprintf(b, sizeof b, "%s/b.safetensors", dir);
    return 0;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

json_t *tap(const json_t *j, const char *name)
{
    size_t i;
    json_t *t;
    json_array_foreach(json_object_get(j, "taps"), i, t)
        if (!strcmp(string(t, "name"), name))
            return t;
    fail_msg("no tap %s", name);
    return NULL;
}

void expect_verdict(const char *what, const json_t *j, const char *verdict)
{
    const json_t *first = json_object_get(j, "first_structural");
    if (strcmp(string(j, "verdict"), verdict))
        fail_msg("%s: the verdict is %s, wanted %s; %s: %s", what, string(j, "verdict"), verdict, string(first, "tap"),
                 string(first, "why"));
}

void expect_structural_at(json_t *j, const char *name)
{
    expect_verdict(name, j, "structural");
    assert_string_equal(string(json_object_get(j, "first_structural"), "tap"), name);
    json_decref(j);
}

/* ---- changing a dump --------------------------------------------------------------------------------------------- */

struct edited edit(const char *path) { return (struct edited){golden_read(path), path}; }

float *floats(struct edited *e, const char *name, size_t *count)
{
    float *at = golden_data(&e->g, name, count);
    assert_string_equal(string(json_object_get(e->g.header, name), "dtype"), "F32");
    return at;
}

size_t width_of(const struct edited *e, const char *name)
{
    json_t *shape = json_object_get(json_object_get(e->g.header, name), "shape");
    size_t width = 1;
    for (size_t i = 1; i < json_array_size(shape); i++)
        width *= (size_t)json_integer_value(json_array_get(shape, i));
    return width;
}

void write_to(const char *path, const void *bytes, size_t size)
{
    char name[64];
    snprintf(name, sizeof name, "%s", strrchr(path, '/') + 1);
    write_file(dir, name, bytes, size);
}

void save(struct edited *e)
{
    write_to(e->path, e->g.bytes, e->g.size);
    golden_close(&e->g);
}

/* Rounds to nearest, ties to even. Some compilers that build this have no _Float16. */
static uint16_t to_f16(float x)
{
    uint32_t u, sign;
    float shifted = fabsf(x) + 0.5f; /* below 2^-14 an f16 is a multiple of 2^-24, which is one unit of 0.5f */
    memcpy(&u, &x, 4);
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u >= 0x477ff000)
        return (uint16_t)(sign | (u > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (u >= 0x38800000)
        return (uint16_t)(sign | (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13);
    memcpy(&u, &shifted, 4);
    return (uint16_t)(sign | (u - 0x3f000000));
}

static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void rewrite(const char *path, change how)
{
    struct edited e = edit(path);
    json_t *header = json_object(), *old;
    const char *key;
    char *data = malloc(e.g.size), name[256];
    size_t used = 0, total;
    assert_non_null(data);
    json_object_foreach(e.g.header, key, old) {
        size_t n, size;
        const char *dtype = string(old, "dtype"), *was = dtype, *from = golden_data(&e.g, key, &n);
        snprintf(name, sizeof name, "%s", key);
        if (!how(name, &dtype))
            continue;
        size = n * (!strcmp(dtype, "F64") ? 8 : !strcmp(dtype, "F8_E4M3") ? 1 : strchr(dtype, '1') ? 2 : 4);
        for (size_t i = 0; i < n && strcmp(dtype, was); i++) {
            float x;
            memcpy(&x, from + 4 * i, 4);
            uint16_t code = !strcmp(dtype, "F16") ? to_f16(x) : to_bf16(x);
            memcpy(data + used + size / n * i, &code, size / n);
        }
        if (!strcmp(dtype, was))
            memcpy(data + used, from, size);
        json_object_set_new(header, name,
                            json_pack("{s:s,s:O,s:[I,I]}", "dtype", dtype, "shape", json_object_get(old, "shape"),
                                      "data_offsets", (json_int_t)used, (json_int_t)(used + size)));
        used += size;
    }
    char *text = json_dumps(header, JSON_COMPACT), *padded, *bytes;
    int width = (int)((strlen(text) + 7) & ~(size_t)7); /* spaces, as other writers do it: tests read numbers where they
                                                           lie */
    assert_true(asprintf(&padded, "%-*s", width, text) == width);
    bytes = safetensors_bytes(padded, data, used, &total);
    write_to(path, bytes, total);
    free(padded);
    golden_close(&e.g);
    json_decref(header);
    free(text);
    free(bytes);
    free(data);
}

void copy_dump(const char *from, const char *to, int with_manifest)
{
    struct edited e = edit(from);
    e.path = to;
    save(&e);
    char source[128], target[32], *text;
    size_t size;
    snprintf(source, sizeof source, "%.*s.jsonl", (int)strlen(from) - 12, from);
    snprintf(target, sizeof target, "%c.jsonl", to[strlen(to) - 13]);
    if (with_manifest && !vb_read_file(NULL, source, &text, &size, NULL)) {
        write_file(dir, target, text, size);
        vb_free(NULL, text);
    }
}

void forget_manifest(const char *path)
{
    char manifest[128];
    snprintf(manifest, sizeof manifest, "%.*s.jsonl", (int)strlen(path) - 12, path);
    assert_int_equal(unlink(manifest), 0);
}

void expect_rounding(const json_t *j, const char *what)
{
    double most = 0;
    size_t i;
    const char *where = "";
    json_t *t;
    expect_verdict(what, j, "rounding");
    json_array_foreach(json_object_get(j, "taps"), i, t)
        if (json_is_number(json_object_get(t, "relative")) && real(t, "relative") / real(t, "bound") > most) {
            most = real(t, "relative") / real(t, "bound");
            where = string(t, "name");
        }
    print_message("%s: %.2f of the bound, %s\n", what, most, where);
    assert_true(most > 0.01); /* a bound far above every difference would prove nothing */
}
