/* engine/base/utf8.c -- checks UTF-8, and joins characters that arrive in parts. */
#include "engine/base/utf8.h"

#include <string.h>

/* Returns how many bytes a character has that begins with `lead`, or 0 if no character begins with this byte (C0, C1
 * and F5-FF never occur). */
static int length_of(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
}

/* Returns whether `byte` is valid at index i >= 1 of a character that begins with `lead`. Checking the second byte
 * excludes overlong forms (lead E0 or F0), surrogates (ED) and code points above 10FFFF (F4). */
static int continues(unsigned char lead, int i, unsigned char byte)
{
    unsigned char low = 0x80, high = 0xbf;
    if (i == 1) {
        if (lead == 0xe0)
            low = 0xa0;
        else if (lead == 0xed)
            high = 0x9f;
        else if (lead == 0xf0)
            low = 0x90;
        else if (lead == 0xf4)
            high = 0x8f;
    }
    return byte >= low && byte <= high;
}

size_t utf8_valid(const char *text, size_t size)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < size) {
        uint64_t eight;
        if (size - i >= 8 && (memcpy(&eight, s + i, 8), (eight & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        int n = length_of(s[i]);
        if (!n || (size_t)n > size - i)
            return i;
        for (int k = 1; k < n; k++)
            if (!continues(s[i], k, s[i + (size_t)k]))
                return i;
        i += (size_t)n;
    }
    return size;
}

static size_t replace(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t size, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char b = (unsigned char)bytes[i];
        if (s->n && !continues(s->pending[0], s->n, b)) {
            n += replace(out + n);
            s->n = 0;
        }
        if (!s->n && !length_of(b)) {
            n += replace(out + n);
            continue;
        }
        s->pending[s->n++] = b;
        if (s->n == length_of(s->pending[0])) {
            memcpy(out + n, s->pending, (size_t)s->n);
            n += (size_t)s->n;
            s->n = 0;
        }
    }
    return n;
}

size_t utf8_stream_finish(struct utf8_stream *s, char *out)
{
    size_t n = s->n ? replace(out) : 0;
    s->n = 0;
    return n;
}

uint32_t utf8_at(const char *s, size_t *size)
{
    const unsigned char *u = (const unsigned char *)s;
    int n = length_of(u[0]);
    *size = (size_t)n;
    switch (n) {
    case 2:
        return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    case 3:
        return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    case 4:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
    default:
        return u[0];
    }
}

int is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
