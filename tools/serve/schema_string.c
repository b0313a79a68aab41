/* tools/serve/schema_string.c -- the bytes of JSON strings and of raw texts: see schema_internal.h. */
#include "tools/serve/schema_internal.h"

#include <string.h>

static int hex(unsigned char c)
{
    return c >= '0' && c <= '9' ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : -1;
}

/* \u and what follows it. A low half stands behind a high one, and nowhere else; U+0000, which many readers refuse,
 * nowhere. */
static int hex_byte(struct thread *t, unsigned char c)
{
    int digit = hex(c);
    if (t->sub == IN_PAIR)
        return go(t, c == '\\', IN_PAIR_U);
    if (t->sub == IN_PAIR_U)
        return go(t, c == 'u', IN_LOW1);
    if (digit < 0 || (t->sub == IN_HEX2 && (t->code & 15) == 13 && digit >= 12) || (t->sub == IN_LOW1 && digit != 13) ||
        (t->sub == IN_LOW2 && digit < 12) || (t->sub == IN_HEX4 && !t->code && !digit))
        return REFUSED;
    t->code = t->code << 4 | (uint32_t)digit;
    if (t->sub == IN_HEX4)
        return go(t, 1, t->code >> 10 == 0xd800 >> 10 ? IN_PAIR : IN_TEXT);
    return go(t, 1, t->sub == IN_LOW4 ? IN_TEXT : (uint16_t)(t->sub + 1));
}

/* The bytes of a character of several bytes, after the first. */
static int tail_byte(struct thread *t, unsigned char c)
{
    unsigned char least = t->sub == IN_E0 ? 0xa0
                          : t->sub == IN_F0 ? 0x90
                          : 0x80,
                  most = t->sub == IN_ED ? 0x9f
                         : t->sub == IN_F4 ? 0x8f
                         : 0xbf;
    uint16_t then = t->sub == IN_TAIL1 ? IN_TEXT
                    : t->sub == IN_TAIL2 || t->sub == IN_E0 || t->sub == IN_ED ? IN_TAIL1
                    : IN_TAIL2;
    return go(t, c >= least && c <= most, then);
}

static int first_byte(struct thread *t, unsigned char c)
{
    if (c < 0x80)
        return go(t, c >= 0x20, IN_TEXT);
    if (c < 0xe0)
        return go(t, c >= 0xc2, IN_TAIL1);
    if (c < 0xf0)
        return go(t, 1, c == 0xe0 ? IN_E0 : c == 0xed ? IN_ED : IN_TAIL2);
    return go(t, c <= 0xf4, c == 0xf0 ? IN_F0 : c == 0xf4 ? IN_F4 : IN_TAIL3);
}

/* Whether the text still avoids what no text may contain. */
static int avoids(const struct schema *s, struct thread *t, unsigned char c)
{
    uint32_t lo = NO_NAME, len = t->avoided & 0xffff;
    if (!s->avoid.count)
        return 1;
    if (len)
        lo = literal_next(s, &s->avoid, t->avoided >> 16, len, c);
    if (lo == NO_NAME) { /* no proper end of one begins another */
        len = 0;
        lo = literal_next(s, &s->avoid, 0, 0, c);
    }
    t->avoided = lo == NO_NAME ? 0 : lo << 16 | (len + 1);
    return lo == NO_NAME || s->literal[s->avoid.first + lo].size > len + 1;
}

int schema_string_byte(const struct schema *s, struct thread *t, unsigned char c, uint32_t least, uint32_t most)
{
    if (c == '"' && t->sub == IN_TEXT) {
        t->avoided = 0;
        return t->count >= least ? CLOSED : REFUSED;
    }
    if (!avoids(s, t, c))
        return REFUSED;
    if (t->sub >= IN_TAIL1)
        return tail_byte(t, c);
    if (t->sub >= IN_HEX1)
        return hex_byte(t, c);
    if (t->sub == IN_ESCAPE) {
        t->code = 0;
        return go(t, c && strchr("\"\\/bfnrtu", c), c == 'u' ? IN_HEX1 : IN_TEXT);
    }
    if (t->count >= most)
        return REFUSED;
    t->count += most != NO_LIMIT || t->count < least;
    return c == '\\' ? go(t, 1, IN_ESCAPE) : first_byte(t, c);
}

/* Reads one byte more of what may become a JSON value. Returns whether it is one so far. */
static int reads_json(struct thread *t, unsigned char c)
{
    struct json_scan scan = {.place = (int)t->lo, .literal = (int)t->len};
    json_scan_byte(&scan, (char)c);
    t->lo = (uint32_t)scan.place;
    t->len = (uint32_t)scan.literal;
    return json_scan_is_whole(&scan);
}

int schema_raw_byte(const struct schema *s, struct thread *t, unsigned char c)
{
    const struct schema_node *n = &s->node[t->node];
    int is_first = t->sub < IN_TAIL1;
    if (!avoids(s, t, c) ||
        (is_first && (!c || t->count >= n->most || (n->unless_json && !t->lo && strchr("\"[{", c)))))
        return REFUSED;
    t->count += is_first && (n->most != NO_LIMIT || t->count < n->least);
    if (is_first ? c >= 0x80 && !first_byte(t, c) : !tail_byte(t, c))
        return REFUSED;
    int is_json = n->unless_json && reads_json(t, c);
    if (t->sub != IN_TEXT)
        return GOES_ON;
    if (is_json)
        return t->count == n->most ? REFUSED : GOES_ON;
    return t->count >= n->least ? CLOSED : GOES_ON;
}
