/* engine/template/lex.c -- cuts the source of a template into text and the tokens of its tags. White space is removed
 * by Jinja2's rules:
 *
 *     -%} -}} -#}  remove all white space after them,  {%- {{- {#- remove all white space before them
 *     %} #}        remove one newline after them (trim_blocks); +%} does not
 *     {% {#        remove the blanks before them if nothing else precedes them on their line (lstrip_blocks); {%+ does
 *                  not
 *
 * If the template ends with newlines, one of them is removed. "\r\n" and "\r" are replaced by "\n". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/decimal.h"
#include "engine/template/template_internal.h"

int template_fail(vb_error *err, int code, struct template_text name, int line, const char *format, ...)
{
    char what[320];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return vb_fail(err, code, "%.*s: line %d: %s", name.n > 160 ? 160 : (int)name.n, name.s, line, what);
}

static int fail(struct lexer *x, const char *what)
{
    return template_fail(x->err, VB_BAD_CHECKPOINT, x->name, x->line, "%s", what);
}

static int no_memory(struct lexer *x)
{
    return template_fail(x->err, VB_NO_MEMORY, x->name, x->line, "no memory for the template");
}

int lex_begin(struct lexer *x, const char *source, size_t size)
{
    char *to = arena_get(x->arena, size + 1, 1);
    if (!to)
        return no_memory(x);
    x->at = to;
    for (size_t i = 0; i < size; i++) {
        int carriage = source[i] == '\r';
        if (carriage && i + 1 < size && source[i + 1] == '\n')
            continue;
        *to++ = carriage ? '\n' : source[i];
    }
    x->end = to - (to > x->at && to[-1] == '\n');
    x->line = 1;
    x->after_newline = 1;
    return VB_OK;
}

static char peek(const struct lexer *x, size_t ahead)
{
    return (size_t)(x->end - x->at) > ahead ? x->at[ahead] : '\0';
}

static void step_over(struct lexer *x, size_t n)
{
    for (; n; n--)
        x->line += *x->at++ == '\n';
}

static void step_over_space(struct lexer *x)
{
    struct template_text rest = {x->at, (size_t)(x->end - x->at)};
    step_over(x, rest.n - text_strip(rest, 1, 0).n);
}

/* ---- text, and where tags begin and end -------------------------------------------------------------------------- */

/* Returns the rest of the text before a tag that begins at `tag`, after white space is removed. `sign` is the character
 * after the tag's brace. */
static struct template_text trimmed(const struct lexer *x, const char *tag, char sign)
{
    struct template_text t = {x->at, (size_t)(tag - x->at)};
    size_t line = t.n;
    if (sign == '-')
        return text_strip(t, 0, 1);
    if (sign == '+' || tag[1] == '{')
        return t;
    while (line && t.s[line - 1] != '\n')
        line--;
    if ((line || x->after_newline) && !text_strip((struct template_text){t.s + line, t.n - line}, 1, 0).n)
        t.n = line;
    return t;
}

/* Removes white space after the end of a tag or comment. */
static void after_end(struct lexer *x, char sign, int trims)
{
    if (sign == '-')
        step_over_space(x);
    else if (trims && sign != '+' && peek(x, 0) == '\n')
        step_over(x, 1);
    x->after_newline = x->at[-1] == '\n';
}

static int step_over_comment(struct lexer *x)
{
    step_over(x, peek(x, 2) == '-' || peek(x, 2) == '+' ? 3 : 2);
    const char *end = memmem(x->at, (size_t)(x->end - x->at), "#}", 2);
    if (!end)
        return fail(x, "a comment without an end");
    char sign = end > x->at && (end[-1] == '-' || end[-1] == '+') ? end[-1] : '\0';
    step_over(x, (size_t)(end - x->at) + 2);
    after_end(x, sign, 1);
    return VB_OK;
}

static const char *find_tag(const struct lexer *x)
{
    const char *s = x->at;
    for (; s + 1 < x->end; s++)
        if (*s == '{' && (s[1] == '%' || s[1] == '{' || s[1] == '#'))
            return s;
    return x->end;
}

static int lex_text(struct lexer *x, struct token *out)
{
    const char *tag = find_tag(x);
    char sign = x->end - tag > 2 ? tag[2] : '\0';
    if (tag > x->at) {
        out->kind = T_TEXT;
        out->text = tag == x->end ? (struct template_text){x->at, (size_t)(tag - x->at)} : trimmed(x, tag, sign);
        step_over(x, (size_t)(tag - x->at));
        x->after_newline = 0;
        return VB_OK;
    }
    if (tag == x->end)
        return VB_OK;
    if (tag[1] == '#') {
        out->kind = T_TEXT;
        return step_over_comment(x);
    }
    out->kind = tag[1] == '{' ? T_PRINT : T_TAG;
    step_over(x, sign == '-' || sign == '+' ? 3 : 2);
    x->inside = (int)out->kind;
    return VB_OK;
}

/* Returns 1 and moves to the position after the tag if the tag ends here, else returns 0. */
static int lex_end(struct lexer *x, struct token *out)
{
    char brace = x->inside == T_TAG ? '%' : '}', sign = peek(x, 0);
    size_t n = sign == '-' || (sign == '+' && brace == '%');
    if (x->brackets || peek(x, n) != brace || peek(x, n + 1) != '}')
        return 0;
    out->kind = x->inside == T_TAG ? T_TAG_END : T_PRINT_END;
    step_over(x, n + 2);
    after_end(x, n ? sign : '\0', brace == '%');
    x->inside = 0;
    return 1;
}

/* ---- words inside tags ------------------------------------------------------------------------------------------- */

static int word_character(char c, int first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (!first && c >= '0' && c <= '9');
}

static size_t digits_at(const struct lexer *x, size_t n)
{
    while (peek(x, n) >= '0' && peek(x, n) <= '9')
        n++;
    return n;
}

/* 12, 1.5, 1e9, 1.5e-9 */
static int lex_number(struct lexer *x, struct token *out)
{
    char number[64];
    size_t n = digits_at(x, 0), whole = n, more;
    if (peek(x, n) == '.' && (more = digits_at(x, n + 1)) > n + 1)
        n = more;
    if (peek(x, n) == 'e' || peek(x, n) == 'E') {
        size_t from = n + 1 + (peek(x, n + 1) == '+' || peek(x, n + 1) == '-');
        n = (more = digits_at(x, from)) > from ? more : n;
    }
    if (n >= sizeof number || word_character(peek(x, n), 0) || (n == whole && x->at[0] == '0' && n > 1))
        return fail(x, "a number that is not in plain decimal");
    memcpy(number, x->at, n);
    number[n] = '\0';
    errno = 0;
    out->kind = n > whole ? T_FLOAT : T_INT;
    out->text = (struct template_text){x->at, n};
    if (n > whole)
        out->f = decimal_parse(number, NULL);
    else
        out->i = strtoll(number, NULL, 10);
    step_over(x, n);
    return errno ? fail(x, "a number that is out of range") : VB_OK;
}

static int hex(struct lexer *x, const char *s, const char *end, size_t digits, uint32_t *c)
{
    *c = 0;
    for (size_t i = 0; i < digits; i++, s++) {
        const char *all = "0123456789abcdef", *at = s < end && *s ? strchr(all, *s | 0x20) : NULL;
        if (!at || *s < '0')
            return fail(x, "a string with a \\x, \\u or \\U that is not followed by its digits");
        *c = *c << 4 | (uint32_t)(at - all);
    }
    return *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000)
               ? fail(x, "a string with a character that Unicode does not have")
               : VB_OK;
}

/* Decodes the characters after a backslash as Python does. Moves *s to the end of the escape, and appends the decoded
 * character at *to. */
static int escape(struct lexer *x, const char **s, const char *end, char **to)
{
    static const char letters[] = "ntr\\'\"abfv", stand_for[] = "\n\t\r\\'\"\a\b\f\v";
    char letter = *(*s)++;
    const char *known = strchr(letters, letter);
    size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    uint32_t c;
    if (letter == '\n')
        return VB_OK;
    if (letter && known) {
        *(*to)++ = stand_for[known - letters];
        return VB_OK;
    }
    if ((letter >= '0' && letter <= '7') || letter == 'N')
        return fail(x, "a string with an escape that is not implemented (octal digits, \\N)");
    if (!digits) {
        *(*to)++ = '\\';
        (*s)--;
        return VB_OK;
    }
    int rc = hex(x, *s, end, digits, &c);
    if (!rc) {
        *s += digits;
        *to += text_put(c, *to);
    }
    return rc;
}

static int lex_string(struct lexer *x, struct token *out)
{
    const char *s = x->at + 1, *end = s;
    int rc = VB_OK;
    while (end < x->end && *end != *x->at)
        end += *end == '\\' && end + 1 < x->end ? 2 : 1;
    if (end >= x->end)
        return fail(x, "a string without an end");
    char *bytes = arena_get(x->arena, (size_t)(end - s) + 1, 1), *to = bytes;
    if (!bytes)
        return no_memory(x);
    while (s < end && !rc)
        if (*s == '\\') {
            s++;
            rc = escape(x, &s, end, &to);
        } else {
            *to++ = *s++;
        }
    out->kind = T_STRING;
    out->text = (struct template_text){bytes, (size_t)(to - bytes)};
    step_over(x, (size_t)(end - x->at) + 1);
    return rc;
}

static int lex_operator(struct lexer *x, struct token *out)
{
    static const char *const known[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<", ">", "=",
                                        ".", ",", ":", "|", "(", ")", "[", "]", "{", "}"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i]);
        if ((size_t)(x->end - x->at) < n || memcmp(x->at, known[i], n))
            continue;
        out->kind = T_OPERATOR;
        out->text = (struct template_text){x->at, n};
        x->brackets += strchr("([{", *x->at) != NULL;
        x->brackets -= strchr(")]}", *x->at) != NULL;
        if (x->brackets < 0)
            return fail(x, "a bracket is closed that was not opened");
        step_over(x, n);
        return VB_OK;
    }
    return fail(x, "a character that no tag has");
}

static int lex_word(struct lexer *x, struct token *out)
{
    step_over_space(x);
    out->line = x->line;
    if (x->at == x->end)
        return fail(x, "a tag without an end");
    if (lex_end(x, out))
        return VB_OK;
    char c = *x->at;
    if (word_character(c, 1)) {
        size_t n = 1;
        while (word_character(peek(x, n), 0))
            n++;
        out->kind = T_NAME;
        out->text = (struct template_text){x->at, n};
        step_over(x, n);
        return VB_OK;
    }
    if (c >= '0' && c <= '9')
        return lex_number(x, out);
    return c == '"' || c == '\'' ? lex_string(x, out) : lex_operator(x, out);
}

int lex_next(struct lexer *x, struct token *out)
{
    *out = (struct token){.kind = T_END, .line = x->line};
    return x->inside ? lex_word(x, out) : lex_text(x, out);
}
