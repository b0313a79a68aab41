/* engine/choose/stop.c -- one automaton per stop string (Knuth, Morris, Pratt 1977). */
#include "engine/choose/stop.h"
#include "numbers/numbers.h"

#include <string.h>

#include "engine/base/utf8.h"

struct word {
    char *bytes;
    size_t size;
    size_t *border; /* [size]: border[i] is the length of the longest proper prefix of bytes[0..i] that is also a suffix
                       of bytes[0..i] */
    size_t matched; /* length of the longest prefix of `bytes` with which the text ends */
};

struct stop {
    struct word *words;
    size_t count, text, safe; /* number of words; length of the text in bytes; the result of stop_safe */
};

static void advance(struct word *w, char byte)
{
    while (w->matched && (w->matched == w->size || w->bytes[w->matched] != byte))
        w->matched = w->border[w->matched - 1];
    w->matched += w->bytes[w->matched] == byte;
}

/* If the automaton of a word reads this word from its second byte on, its state after byte i is border[i]. */
static int prepare(struct word *w, const char *string, const vb_allocator *a)
{
    w->size = strlen(string);
    w->bytes = vb_strdup(a, string);
    w->border = vb_alloc(a, w->size, sizeof *w->border);
    if (!w->bytes || !w->border)
        return 0;
    for (size_t i = 1; i < w->size; i++) {
        advance(w, string[i]);
        w->border[i] = w->matched;
    }
    w->matched = 0;
    return 1;
}

static int check(const char *const *strings, size_t count, vb_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!strings[i] || !*strings[i])
            return vb_fail(err, VB_BAD_ARGUMENT, "stop string %zu is empty", i + 1);
        if (utf8_valid(strings[i], strlen(strings[i])) < strlen(strings[i]))
            return vb_fail(err, VB_BAD_ARGUMENT, "stop string %zu is not UTF-8", i + 1);
    }
    return VB_OK;
}

int stop_open(struct stop **out, const char *const *strings, size_t count, const vb_allocator *a, vb_error *err)
{
    int code = check(strings, count, err), whole;
    *out = NULL;
    if (code || !count)
        return code;
    struct stop *s = vb_alloc(a, 1, sizeof *s);
    if (s && (s->words = vb_alloc(a, count, sizeof *s->words)))
        s->count = count;
    whole = s && s->words;
    for (size_t i = 0; i < count && whole; i++)
        whole = prepare(&s->words[i], strings[i], a);
    if (!whole) {
        stop_close(s, a);
        return vb_fail(err, VB_NO_MEMORY, "no memory for %zu stop strings", count);
    }
    *out = s;
    return VB_OK;
}

void stop_close(struct stop *s, const vb_allocator *a)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++) {
        vb_free(a, s->words[i].bytes);
        vb_free(a, s->words[i].border);
    }
    vb_free(a, s->words);
    vb_free(a, s);
}

int stop_push(struct stop *s, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        size_t longest = 0, found = 0;
        s->text++;
        for (size_t k = 0; k < s->count; k++) {
            struct word *w = &s->words[k];
            advance(w, bytes[i]);
            if (w->matched == w->size && (!found || w->size > s->words[found - 1].size))
                found = k + 1;
            longest = max_size(w->matched, longest);
        }
        s->safe = s->text - (found ? s->words[found - 1].size : longest);
        if (found)
            return (int)found;
    }
    return 0;
}

size_t stop_safe(const struct stop *s) { return s->safe; }
