/* engine/text/pattern.c -- regular expressions written for Oniguruma, matched by PCRE2.
 *
 * tokenizer.json's patterns are Oniguruma's (Ruby flavour, UTF-8). What both engines read alike passes as it is; what
 * they read differently is rewritten or, if no tokenizer that we know uses it, refused by name. The differences:
 *
 *   \s     Oniguruma: Unicode's White_Space. PCRE2's also has U+180E, so it is written out as a set.
 *   ^ $    Oniguruma: always at lines, which is PCRE2_MULTILINE with newline = LF.
 *   \v     Oniguruma: U+000B. PCRE2: any vertical space.            \uHHHH   is \x{HHHH} in PCRE2.
 *   [A&&[B]]  is (?:[A](?<=[B])), for PCRE2 has no intersections before 10.45; other forms of && are refused.
 *   \h \w \b \R \X, POSIX brackets, [a[b]], (?m), (?i) without a colon, x{,n}, x{n}?, x{n}+  : refused.
 *   (?i:)  Oniguruma also matches one character for several (U+FB06 for "st"); taken only where no such one exists.
 *   \p{..} general categories and Han only: a script's name means Script_Extensions in PCRE2 from 10.40 on, so Han is
 *          written out. One-letter categories and letters of all kinds get the characters that younger versions of
 *          Unicode added (unicode.c); for the others of two letters (\p{Nd}, also \d) the library's own version
 *          of Unicode decides. \p{C} and \p{Cn}, which hold what is not assigned yet, are refused. */
#include "engine/text/tokenizer_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define WHITE_SPACE \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NO_WHITE_SPACE \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define MAX_PATTERN 16384
#define MAX_EXPANSION 4096 /* no escape grows to more */

struct translation {
    struct tokenizer_loading *l;
    const char *whole; /* the pattern, for messages */
    const char *in;
    char *out;
};

static void put(struct translation *x, const char *s)
{
    size_t n = strlen(s);
    memcpy(x->out, s, n);
    x->out += n;
}

/* Copies n bytes and steps over them. */
static void copy(struct translation *x, size_t n)
{
    memcpy(x->out, x->in, n);
    x->out += n;
    x->in += n;
}

static int refuse(struct translation *x, size_t n)
{
    char what[16];
    size_t i = 0;
    for (; i < n && i + 1 < sizeof what && x->in[i]; i++)
        what[i] = x->in[i];
    what[i] = 0;
    return vb_fail(x->l->err, VB_UNSUPPORTED, "%s: the pattern \"%s\" uses %s, which is not implemented", x->l->file,
                   token_show(x->whole).text, token_show(what).text);
}

/* \p{L}, \P{Nd}, \p{^L}: general categories; \p{Han}. */
static int property(struct translation *x, int in_set)
{
    static const char known[] = " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So "
                                "Z Zs Zl Zp Cc Cf Co Cs ";
    const char *s = x->in + 2, *end = *s == '{' ? strchr(s, '}') : NULL;
    int negated = (x->in[1] == 'P') != (*s == '{' && s[1] == '^');
    char name[8] = "";
    s += *s == '{' && s[1] == '^' ? 2 : 1;
    int han = end && end - s == 3 && !memcmp(s, "Han", 3);
    if (end && end - s < 3)
        snprintf(name, sizeof name, " %.*s ", (int)(end - s), s);
    if (!han && (!end || end == s || !*name || !strstr(known, name)))
        return refuse(x, end && end - x->in < 15 ? (size_t)(end - x->in) + 1 : 3);
    const char *more = han ? unicode_han() : unicode_since_14(s, (size_t)(end - s));
    if (!*more) {
        copy(x, (size_t)(end - x->in) + 1);
        return VB_OK;
    }
    if (in_set && negated)
        return refuse(x, (size_t)(end - x->in) + 1);
    put(x, in_set ? "" : negated ? "[^" : "[");
    x->in = s;
    if (!han) {
        put(x, "\\p{");
        copy(x, (size_t)(end - s) + 1);
    }
    x->in = end + 1;
    put(x, more);
    put(x, in_set ? "" : "]");
    return VB_OK;
}

/* \x{20ac} \x7f \u20ac */
static int code_point(struct translation *x)
{
    int wide = x->in[1] == 'u', braces = !wide && x->in[2] == '{';
    const char *s = x->in + 2 + braces;
    char digits[8] = "";
    size_t n = 0, most = wide ? 4 : braces ? 6 : 2;
    for (; n < most && isxdigit((unsigned char)s[n]); n++)
        digits[n] = s[n];
    /* \xHH above 7F is a byte, not a character, to Oniguruma */
    if (!n || (wide && n < 4) || (braces && s[n] != '}') || (!wide && !braces && (n < 2 || s[0] > '7')))
        return refuse(x, 6);
    put(x, "\\x{");
    put(x, digits);
    put(x, "}");
    x->in = s + n + braces;
    return VB_OK;
}

/* *single: the escape is one character, so it may bound a range of a set. */
static int escape(struct translation *x, int in_set, int *single)
{
    char c = x->in[1];
    *single = 0;
    if (c == 'p' || c == 'P')
        return property(x, in_set);
    if (c == 's' || c == 'S') {
        put(x, in_set ? "" : "[");
        put(x, c == 's' ? WHITE_SPACE : NO_WHITE_SPACE);
        put(x, in_set ? "" : "]");
        x->in += 2;
        return VB_OK;
    }
    if (c == 'd' || c == 'D' || (!in_set && (c == 'A' || c == 'z'))) {
        copy(x, 2);
        return VB_OK;
    }
    *single = 1;
    if (c == 'x' || c == 'u')
        return code_point(x);
    if (c == 'v') {
        put(x, "\\x{b}");
        x->in += 2;
        return VB_OK;
    }
    if (!c || (isalnum((unsigned char)c) && !strchr("nrtfae", c)))
        return refuse(x, 2);
    copy(x, 2); /* of a longer character the rest follows as it is */
    return VB_OK;
}

/* One member of a set: an escape or a whole character. */
static int set_member(struct translation *x, int *single)
{
    if (!*x->in || *x->in == '[' || (*x->in == '&' && x->in[1] == '&'))
        return refuse(x, *x->in == '&' ? 2 : 1);
    *single = 1;
    if (*x->in == '\\') {
        int rc = escape(x, 1, single);
        if (rc)
            return rc;
    } else {
        copy(x, 1);
    }
    while (((unsigned char)*x->in & 0xc0) == 0x80)
        copy(x, 1);
    return VB_OK;
}

/* From "[" or "[^" to before "]" or "&&". */
static int set_members(struct translation *x)
{
    int rc, from, to;
    copy(x, x->in[1] == '^' ? 2 : 1);
    if (*x->in == ']')
        return refuse(x, 1);
    while (*x->in != ']' && (*x->in != '&' || x->in[1] != '&')) {
        if ((rc = set_member(x, &from)))
            return rc;
        if (*x->in != '-' || x->in[1] == ']')
            continue;
        /* a range; both engines agree only where it goes from one character to one: not \s-a, a-\d, a-b-c */
        if (!from)
            return refuse(x, 2);
        copy(x, 1);
        if ((rc = set_member(x, &to)))
            return rc;
        if (!to || (*x->in == '-' && x->in[1] != ']'))
            return refuse(x, 2);
    }
    return VB_OK;
}

/* [A] or [A&&[B]]: a character of A that, looked back at, is one of B too. */
static int set(struct translation *x)
{
    char *start = x->out;
    int rc = set_members(x);
    if (rc || *x->in == ']') {
        copy(x, rc ? 0 : 1);
        return rc;
    }
    if (start[1] == '^' || x->out == start + 1 || x->in[2] != '[')
        return refuse(x, 2);
    memmove(start + 3, start, (size_t)(x->out - start));
    memcpy(start, "(?:", 3);
    x->out += 3;
    x->in += 2;
    put(x, "](?<=");
    if ((rc = set_members(x)))
        return rc;
    if (strncmp(x->in, "]]", 2))
        return refuse(x, 2);
    copy(x, 1);
    put(x, "))");
    x->in++;
    return VB_OK;
}

/* "(" and what may stand behind it. */
static int group(struct translation *x)
{
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    static const char *const several[] = {"ff", "fi", "fl", "st", "ss", "'n", "wh"}; /* one character folds to these */
    if (x->in[1] != '?') {
        copy(x, 1);
        return VB_OK;
    }
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
        if (!strncmp(x->in, same[k], strlen(same[k]))) {
            copy(x, strlen(same[k]));
            return VB_OK;
        }
    if (strncmp(x->in, "(?i:", 4))
        return refuse(x, 4);
    size_t n = 4;
    for (; x->in[n] && x->in[n] != ')'; n++) {
        char low[3] = {(char)tolower((unsigned char)x->in[n]), (char)tolower((unsigned char)x->in[n + 1]), 0};
        if (!strchr("'|", low[0]) && !islower((unsigned char)low[0]))
            return refuse(x, n + 1);
        for (size_t k = 0; k < sizeof several / sizeof *several; k++)
            if (!strcmp(low, several[k]))
                return refuse(x, n + 2);
    }
    copy(x, n);
    return VB_OK;
}

/* "{": {n}, {n,} and {n,m} count, anything else is the character itself. */
static int braces(struct translation *x)
{
    size_t digits = strspn(x->in + 1, "0123456789"), n = 1 + digits;
    if (x->in[n] == ',')
        n += 1 + strspn(x->in + n + 1, "0123456789");
    if (x->in[n] != '}' || n == 1) {
        put(x, "\\");
        copy(x, 1);
        return VB_OK;
    }
    if (!digits || strchr("?+*", x->in[n + 1] ? x->in[n + 1] : 'x'))
        return refuse(x, n + 2);
    copy(x, n + 1);
    return VB_OK;
}

int pattern_translate(struct tokenizer_loading *l, const char *onig, char **pcre)
{
    size_t n = strlen(onig), escapes = 0;
    for (const char *s = onig; *s; s++)
        escapes += *s == '\\';
    *pcre = NULL;
    if (n > MAX_PATTERN)
        return vb_fail(l->err, VB_UNSUPPORTED, "%s: a pattern has %zu bytes, more than %d", l->file, n, MAX_PATTERN);
    if (!(*pcre = vb_alloc(&l->t->memory.allocator, 4 * n + 1 + escapes * MAX_EXPANSION, 1)))
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for a pattern", l->file);
    struct translation x = {l, onig, onig, *pcre};
    int rc = VB_OK, single;
    /* DeepSeek-V2's. Tried behind white space it can only match where it matched before that, and trying there makes
     * a run of n spaces in the middle of a text cost n^2: 40,000 of them took a second. */
    if (!strcmp(onig, "\\s+$"))
        put(&x, "(?:\\G|(?<![" WHITE_SPACE "]))");
    while (!rc && *x.in) {
        switch (*x.in) {
        case '\\':
            rc = escape(&x, 0, &single);
            break;
        case '[':
            rc = set(&x);
            break;
        case '(':
            rc = group(&x);
            break;
        case '{':
            rc = braces(&x);
            break;
        default:
            copy(&x, 1);
        }
    }
    if (rc) {
        vb_free(&l->t->memory.allocator, *pcre);
        *pcre = NULL;
    }
    return rc;
}

int pattern_compile(struct tokenizer_loading *l, const char *pattern, uint32_t options, pcre2_code **code)
{
    pcre2_compile_context *context = pcre2_compile_context_create(l->pcre);
    if (!context)
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for a pattern", l->file);
    int number;
    PCRE2_SIZE at;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | options, &number, &at, context);
    pcre2_compile_context_free(context);
    if (!*code && number == PCRE2_ERROR_HEAP_FAILED)
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for a pattern", l->file);
    if (!*code) {
        char why[128] = "";
        pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof why);
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: PCRE2 does not take the pattern \"%s\": %s", l->file,
                       token_show(pattern).text, why);
    }
    /* Without it (a system that lends no executable memory) matching is slower, not different. */
    (void)pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);
    return VB_OK;
}

int match_at(struct encoding *e, const pcre2_code *code, const char *text, size_t size, size_t start)
{
    int n = pcre2_match(code, (PCRE2_SPTR)text, size, start, PCRE2_NO_UTF_CHECK, e->match, e->limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its frames on the heap */
        n = pcre2_match(code, (PCRE2_SPTR)text, size, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match, e->limits);
    if (n >= 0)
        return 1;
    if (n == PCRE2_ERROR_NOMATCH)
        return 0;
    if (n == PCRE2_ERROR_NOMEMORY)
        return vb_fail(e->err, VB_NO_MEMORY, "no memory to cut %zu bytes of text into words", size);
    char why[128] = "";
    pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof why);
    return vb_fail(e->err, VB_UNSUPPORTED, "cutting %zu bytes of text into words: %s", size, why);
}
