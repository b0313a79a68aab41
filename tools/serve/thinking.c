/* tools/serve/thinking.c -- finds </think> in the texts of tokens: see thinking.h. */
#include "tools/serve/thinking.h"

#include <stdlib.h>
#include <string.h>

#define MARK "</think>" /* no proper end of it begins it */
#define MARK_SIZE 8

/* The text of a token, or nothing. */
static const char *text_of(const struct vocabulary *v, int32_t token, size_t *size)
{
    int known = token >= 0 && token < v->size;
    *size = known ? v->said[token].size : 0;
    return v->text + (known ? v->said[token].at : 0);
}

/* Whether the mark ends in this text, where any bytes may come before it. */
static int may_close(const char *text, size_t size, size_t *end)
{
    for (*end = 1; *end <= size; ++*end) {
        size_t n = *end < MARK_SIZE ? *end : MARK_SIZE;
        if (!memcmp(text + *end - n, &MARK[MARK_SIZE - n], n))
            return 1;
    }
    return 0;
}

int thinking_list(struct vocabulary *v)
{
    size_t size, end;
    v->may_close = calloc((size_t)v->size + 1, 1);
    v->closing = calloc((size_t)v->size + 1, sizeof *v->closing);
    if (!v->may_close || !v->closing)
        return VB_NO_MEMORY;
    for (int32_t t = 0; t < v->size; t++) {
        const char *text = text_of(v, t, &size);
        v->may_close[t] = (unsigned char)may_close(text, size, &end);
        if (v->may_close[t] && end < size)
            v->closing[v->closings++] = t;
    }
    return VB_OK;
}

long thinking_behind(const struct vocabulary *v, int32_t token, size_t open)
{
    size_t size, rest = MARK_SIZE - open;
    const char *text = text_of(v, token, &size);
    if (open && size >= rest && !memcmp(text, &MARK[open], rest))
        return (long)(size - rest);
    const char *found = memmem(text, size, MARK, MARK_SIZE);
    return found ? (long)(size - MARK_SIZE) - (found - text) : -1;
}

size_t thinking_open_bytes(const struct vocabulary *v, const int32_t *token, size_t count)
{
    char tail[MARK_SIZE];
    size_t from = MARK_SIZE, size;
    while (count && from) {
        const char *text = text_of(v, token[--count], &size);
        while (size && from)
            tail[--from] = text[--size];
    }
    for (size_t n = MARK_SIZE - from; n; n--)
        if (n < MARK_SIZE && !memcmp(tail + MARK_SIZE - n, MARK, n))
            return n;
    return 0;
}

int thinking_ends(const struct vocabulary *v, const int32_t *token, size_t count, size_t *at, size_t *behind)
{
    for (size_t i = 0; i < count; i++) {
        if (token[i] < 0 || token[i] >= v->size || !v->may_close[token[i]])
            continue;
        long rest = thinking_behind(v, token[i], thinking_open_bytes(v, token, i));
        if (rest >= 0) {
            *at = i;
            *behind = (size_t)rest;
            return 1;
        }
    }
    return 0;
}
