/* tools/serve/meaning_json.c -- reads one JSON value byte by byte, and says where it ends; writes numbers. */
#include <string.h>

#include "tools/serve/meaning_internal.h"

enum {
    AT_VALUE,
    AT_FIRST_KEY,
    AT_KEY,
    AT_FIRST_ITEM,
    AT_COLON,
    BEHIND_ITEM,
    IN_STRING,
    IN_ESCAPE,
    IN_HEX1,
    IN_HEX2,
    IN_HEX3,
    IN_HEX4,
    BEHIND_MINUS,
    BEHIND_ZERO,
    IN_DIGITS,
    BEHIND_POINT,
    IN_FRACTION,
    BEHIND_E,
    BEHIND_SIGN,
    IN_EXPONENT,
    IN_LITERAL,
    AT_END,
    IS_BAD
};

static const char literals[] = "true\0false\0null";

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

static int in_object(const struct json_scan *s) { return s->is_object[s->depth / 8] >> s->depth % 8 & 1; }

static int open_bracket(struct json_scan *s, int is_object)
{
    if (s->depth + 1 == 8 * (int)sizeof s->is_object)
        return IS_BAD;
    unsigned char bit = (unsigned char)(1 << ++s->depth % 8), *byte = &s->is_object[s->depth / 8];
    *byte = (unsigned char)(is_object ? *byte | bit : *byte & ~bit);
    return is_object ? AT_FIRST_KEY : AT_FIRST_ITEM;
}

static int behind_value(const struct json_scan *s) { return s->depth ? BEHIND_ITEM : AT_END; }

static int close_bracket(struct json_scan *s)
{
    s->depth--;
    return behind_value(s);
}

static int begin_value(struct json_scan *s, char c)
{
    if (c == 't' || c == 'f' || c == 'n') {
        s->literal = c == 't' ? 1 : c == 'f' ? 6 : 12;
        return IN_LITERAL;
    }
    s->is_key = 0;
    return c == '{' || c == '[' ? open_bracket(s, c == '{')
           : c == '"' ? IN_STRING
           : c == '-' ? BEHIND_MINUS
           : c == '0' ? BEHIND_ZERO
           : is_digit(c) ? IN_DIGITS
           : IS_BAD;
}

static int begin_key(struct json_scan *s, char c)
{
    s->is_key = 1;
    return c == '"' ? IN_STRING : IS_BAD;
}

static int in_string(struct json_scan *s, char c)
{
    switch (s->place) {
    case IN_STRING:
        return c == '"' ? (s->is_key ? AT_COLON : behind_value(s))
               : c == '\\' ? IN_ESCAPE
               : (unsigned char)c < 0x20 ? IS_BAD
               : IN_STRING;
    case IN_ESCAPE: return c == 'u' ? IN_HEX1 : c && strchr("\"\\/bfnrt", c) ? IN_STRING : IS_BAD;
    case IN_HEX4: return is_hex(c) ? IN_STRING : IS_BAD;
    default: return is_hex(c) ? s->place + 1 : IS_BAD;
    }
}

static int behind(struct json_scan *s, char c)
{
    if (!s->depth)
        return meaning_is_blank(c) ? AT_END : IS_BAD;
    if (meaning_is_blank(c))
        return BEHIND_ITEM;
    if (c == ',')
        return in_object(s) ? AT_KEY : AT_VALUE;
    return c == (in_object(s) ? '}' : ']') ? close_bracket(s) : IS_BAD;
}

/* A number ends where something else begins. */
static int in_number(struct json_scan *s, char c)
{
    int digit = is_digit(c), is_e = c == 'e' || c == 'E';
    switch (s->place) {
    case BEHIND_MINUS: return c == '0' ? BEHIND_ZERO : digit ? IN_DIGITS : IS_BAD;
    case BEHIND_ZERO: return c == '.' ? BEHIND_POINT : is_e ? BEHIND_E : behind(s, c);
    case IN_DIGITS: return digit ? IN_DIGITS : c == '.' ? BEHIND_POINT : is_e ? BEHIND_E : behind(s, c);
    case BEHIND_POINT: return digit ? IN_FRACTION : IS_BAD;
    case IN_FRACTION: return digit ? IN_FRACTION : is_e ? BEHIND_E : behind(s, c);
    case BEHIND_E: return c == '+' || c == '-' ? BEHIND_SIGN : digit ? IN_EXPONENT : IS_BAD;
    case BEHIND_SIGN: return digit ? IN_EXPONENT : IS_BAD;
    default: return digit ? IN_EXPONENT : behind(s, c);
    }
}

void json_scan_byte(struct json_scan *s, char c)
{
    int place = s->place;
    if (place <= AT_COLON && meaning_is_blank(c))
        return;
    switch (place) {
    case AT_VALUE: place = begin_value(s, c); break;
    case AT_FIRST_ITEM: place = c == ']' ? close_bracket(s) : begin_value(s, c); break;
    case AT_FIRST_KEY: place = c == '}' ? close_bracket(s) : begin_key(s, c); break;
    case AT_KEY: place = begin_key(s, c); break;
    case AT_COLON: place = c == ':' ? AT_VALUE : IS_BAD; break;
    case BEHIND_ITEM:
    case AT_END: place = behind(s, c); break;
    case IN_LITERAL:
        place = c != literals[s->literal++] ? IS_BAD : literals[s->literal] ? IN_LITERAL : behind_value(s);
        break;
    case IS_BAD: return;
    default: place = place < BEHIND_MINUS ? in_string(s, c) : in_number(s, c);
    }
    s->place = place;
}

int json_scan_in_string(const struct json_scan *s) { return s->place >= IN_STRING && s->place <= IN_HEX4; }

int json_scan_is_whole(const struct json_scan *s)
{
    return s->place == AT_END || (!s->depth && (s->place == BEHIND_ZERO || s->place == IN_DIGITS ||
                                                s->place == IN_FRACTION || s->place == IN_EXPONENT));
}

int json_scan_is_bad(uint32_t place) { return place == IS_BAD; }

size_t meaning_shortest(const json_t *number, char text[64])
{
    size_t n = 0, digits = 15;
    for (int is_same = 0; digits <= 17 && !is_same; digits++) { /* jansson writes a point whatever the locale */
        n = json_dumpb(number, text, 64, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        json_t *again = json_loadb(text, n, JSON_DECODE_ANY, NULL);
        is_same = json_equal(again, number);
        json_decref(again);
    }
    return n;
}
