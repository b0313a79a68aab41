/* engine/files/gguf_value.c -- converts values of a GGUF file's metadata to numbers and strings of C. */
#include "engine/files/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int gguf_is_path(const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    if (!stat(path, &st))
        return S_ISREG(st.st_mode);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}

static uint64_t bits_at(const unsigned char *data, size_t size)
{
    uint64_t x = 0;
    for (size_t i = size; i-- > 0;)
        x = x << 8 | data[i];
    return x;
}

static int is_integer(enum gguf_type type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

int64_t gguf_item(const struct gguf_value *v, uint64_t i)
{
    switch (v->type) {
    case GGUF_U8:
    case GGUF_BOOL: return (int64_t)bits_at(v->data + i, 1);
    case GGUF_I8: return (int8_t)bits_at(v->data + i, 1);
    case GGUF_U16: return (int64_t)bits_at(v->data + 2 * i, 2);
    case GGUF_I16: return (int16_t)bits_at(v->data + 2 * i, 2);
    case GGUF_U32: return (int64_t)bits_at(v->data + 4 * i, 4);
    case GGUF_I32: return (int32_t)bits_at(v->data + 4 * i, 4);
    default: return (int64_t)bits_at(v->data + 8 * i, 8);
    }
}

int gguf_integer(const struct gguf_value *v, int64_t *out)
{
    if (!v || v->is_array || !is_integer(v->type) || (v->type == GGUF_U64 && gguf_item(v, 0) < 0))
        return 0;
    *out = gguf_item(v, 0);
    return 1;
}

/* Returns the shortest decimal number that rounds to x, times 10^shift. x is finite. The loop tries more and more
 * digits until the text is read back as x. */
static double shortest(float x, int shift)
{
    char text[48];
    for (int digits = 0; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*e", digits, (double)x);
        if (strtof(text, NULL) == x)
            break;
    }
    char *exponent = strchr(text, 'e') + 1;
    snprintf(exponent, sizeof text - (size_t)(exponent - text), "%d", atoi(exponent) + shift);
    return strtod(text, NULL);
}

int gguf_real(const struct gguf_value *v, int shift, double *out)
{
    int64_t integer;
    if (gguf_integer(v, &integer)) {
        *out = (double)integer;
        for (; shift > 0; shift--)
            *out *= 10;
        return 1;
    }
    if (!v || v->is_array || (v->type != GGUF_F32 && v->type != GGUF_F64))
        return 0;
    if (v->type == GGUF_F32) {
        uint32_t bits = (uint32_t)bits_at(v->data, 4);
        float x;
        memcpy(&x, &bits, sizeof x);
        *out = isfinite(x) ? shortest(x, shift) : NAN;
    } else {
        uint64_t bits = bits_at(v->data, 8);
        memcpy(out, &bits, sizeof bits);
        for (; shift > 0; shift--)
            *out *= 10;
    }
    return isfinite(*out) != 0;
}

int gguf_bool(const struct gguf_value *v, int *out)
{
    if (!v || v->is_array || v->type != GGUF_BOOL)
        return 0;
    *out = *v->data;
    return 1;
}

int gguf_string(const struct gguf_value *v, struct gguf_text *out)
{
    const unsigned char *at = v ? v->data : NULL;
    if (!v || v->is_array || v->type != GGUF_STRING)
        return 0;
    *out = gguf_next_string(&at);
    return 1;
}

struct gguf_text gguf_next_string(const unsigned char **at)
{
    struct gguf_text text = {(const char *)*at + 8, (size_t)bits_at(*at, 8)};
    *at += 8 + text.size;
    return text;
}

const char *gguf_show_type(const struct gguf_value *v, char text[32])
{
    static const char *const names[GGUF_TYPES] = {"U8",   "I8",     "U16",   "I16", "U32", "I32", "F32",
                                                  "BOOL", "STRING", "ARRAY", "U64", "I64", "F64"};
    if (!v)
        return "missing";
    snprintf(text, 32, "%s%s", v->is_array ? "array of " : "", names[v->type]);
    return text;
}
