/* engine/template/text.c -- functions for characters and for memory. All text in the template interpreter is valid
 * UTF-8. */
#include <string.h>

#include "engine/template/template_internal.h"
#include "numbers/numbers.h"

/* ---- memory: blocks of one arena, given back together ------------------------------------------------------------ */

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    char bytes[];
};

void *arena_get(struct arena *a, size_t count, size_t size)
{
    if (size && count > a->limit / size)
        return a->full = 1, NULL;
    size_t bytes = (count * size + 15) & ~(size_t)15;
    struct arena_block *b = a->blocks;
    if (!b || b->size - b->used < bytes) {
        size_t room = b ? 2 * b->size : 4096;
        room = room > 1 << 20 ? 1 << 20 : room;
        room = max_size(room, bytes);
        a->full |= room > a->limit - a->total;
        if (a->full || !(b = vb_alloc(a->allocator, sizeof *b + room, 1)))
            return NULL;
        b->size = room;
        b->next = a->blocks;
        a->blocks = b;
        a->total += room;
    }
    void *out = b->bytes + b->used;
    b->used += bytes;
    return out;
}

void arena_free(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *next = a->blocks->next;
        vb_free(a->allocator, a->blocks);
        a->blocks = next;
    }
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

int text_is(struct template_text t, const char *word)
{
    return strlen(word) == t.n && !memcmp(t.s, word, t.n);
}

uint32_t text_character(const char *s, size_t *size)
{
    const unsigned char *u = (const unsigned char *)s;
    *size = u[0] < 0x80 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    switch (*size) {
    case 1: return u[0];
    case 2: return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    case 3: return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    default: return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
    }
}

size_t text_put(uint32_t c, char *out)
{
    if (c < 0x80)
        return out[0] = (char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

size_t text_length(struct template_text t)
{
    size_t n = 0;
    for (size_t i = 0; i < t.n; i++)
        n += ((unsigned char)t.s[i] & 0xc0) != 0x80;
    return n;
}

struct template_text text_from(struct template_text t, size_t skip)
{
    size_t at = 0, size;
    for (; skip && at < t.n; skip--, at += size)
        text_character(t.s + at, &size);
    return (struct template_text){t.s + at, t.n - at};
}

int text_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

struct template_text text_first(struct template_text t)
{
    size_t size;
    text_character(t.s, &size);
    return (struct template_text){t.s, size};
}

struct template_text text_last(struct template_text t)
{
    size_t size = 1;
    while (((unsigned char)t.s[t.n - size] & 0xc0) == 0x80)
        size++;
    return (struct template_text){t.s + t.n - size, size};
}

struct template_text text_strip(struct template_text t, int left, int right)
{
    size_t size;
    while (left && t.n && text_space(text_character(t.s, &size))) {
        t.s += size;
        t.n -= size;
    }
    while (right && t.n && text_space(text_character(text_last(t).s, &size)))
        t.n -= size;
    return t;
}

const char *text_find(struct template_text in, struct template_text what)
{
    return what.n ? memmem(in.s, in.n, what.s, what.n) : in.s;
}

struct text_shown text_show(struct template_text t)
{
    struct text_shown out = {""};
    size_t n = 0, size;
    for (size_t i = 0; i < t.n; i += size) {
        text_character(t.s + i, &size);
        if (n + size + 4 > sizeof out.s) {
            memcpy(out.s + n, "...", 4);
            break;
        }
        if ((unsigned char)t.s[i] < 0x20 || t.s[i] == 0x7f)
            out.s[n++] = '?';
        else
            for (size_t k = 0; k < size; k++)
                out.s[n++] = t.s[i + k];
    }
    return out;
}
