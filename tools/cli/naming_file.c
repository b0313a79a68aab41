/* tools/cli/naming_file.c -- reads a file of names, and translates names by it. */
#include "tools/cli/naming_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WORDS 4      /* {words} in a line */
#define LONGEST 300       /* letters in a name */
#define MOST_DIGITS 7
#define ANY_LAYER 1000

struct naming_line {
    char *theirs, *ours; /* ours: NULL: the tensor is left out */
    size_t number;
    int used;
};

struct naming_file {
    struct naming_line *lines;
    size_t count;
    const struct naming *system;
};

struct naming_words { /* the {words} of a name, and the numbers that they stand for */
    struct { const char *text; size_t length; long number; } word[MOST_WORDS];
    size_t count;
};

/* --- matching --- */

/* The length of "{word}", "{word+N}" or "{word-N}" at p, with its braces, or 0. *name: the length of the word. *more: N
 * or -N. */
static size_t brace(const char *p, size_t *name, long *more)
{
    *name = 0;
    *more = 0;
    if (*p != '{')
        return 0;
    while (isalpha((unsigned char)p[1 + *name]) || p[1 + *name] == '_')
        ++*name;
    const char *end = p + 1 + *name;
    if (*name && (*end == '+' || *end == '-')) {
        size_t digits = strspn(end + 1, "0123456789");
        if (!digits || digits > MOST_DIGITS)
            return 0;
        *more = strtol(end, NULL, 10);
        end += 1 + digits;
    }
    return *name && *end == '}' ? (size_t)(end + 1 - p) : 0;
}

/* Matches from the last * on if a part after it does not match where it was tried. */
static int matches(const char *pattern, const char *name, struct naming_words *w)
{
    const char *star = NULL, *retry = NULL;
    size_t length, kept = 0, digits, brace_size;
    long more;
    w->count = 0;
    while (*name || *pattern) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
            kept = w->count;
        } else if ((brace_size = brace(pattern, &length, &more)) && (digits = strspn(name, "0123456789")) &&
                   digits <= MOST_DIGITS) {
            w->word[w->count].text = pattern + 1;
            w->word[w->count].length = length;
            w->word[w->count++].number = strtol(name, NULL, 10);
            pattern += brace_size;
            name += digits;
        } else if (*name && *pattern == *name) {
            pattern++;
            name++;
        } else if (star && *retry) {
            pattern = star;
            name = ++retry;
            w->count = kept;
        } else {
            return 0;
        }
    }
    return 1;
}

/* Replaces the {words}. Returns 0 if a word is not known, if a number is negative, or if the result is too long. */
static int fill_in(const char *ours, const struct naming_words *w, char out[NAMING_ROOM])
{
    size_t used = 0, length, size;
    long more;
    for (const char *p = ours; *p; p += size) {
        size = brace(p, &length, &more);
        size_t i = 0;
        while (size && i < w->count && (w->word[i].length != length || strncmp(w->word[i].text, p + 1, length)))
            i++;
        if (used + 2 * MOST_DIGITS >= NAMING_ROOM || (size && (i == w->count || w->word[i].number + more < 0)))
            return 0;
        if (size)
            used += (size_t)snprintf(out + used, NAMING_ROOM - used, "%ld", w->word[i].number + more);
        else
            out[used++] = *p;
        size = size ? size : 1;
    }
    out[used] = '\0';
    return 1;
}

enum naming_answer naming_file_from(struct naming_file *f, const char *theirs, char out[NAMING_ROOM])
{
    struct naming_words w;
    for (struct naming_line *line = f->lines; line < f->lines + f->count; line++)
        if (matches(line->theirs, theirs, &w)) {
            line->used = 1;
            return !line->ours ? NAMING_LEFT_OUT : fill_in(line->ours, &w, out) ? NAMING_FOUND : NAMING_UNKNOWN;
        }
    return NAMING_UNKNOWN;
}

/* --- the file --- */

static char *trim(char *text)
{
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1]))
        text[--n] = '\0';
    return text + strspn(text, " \t");
}

/* The {words} of the left side, with a number for a first check of the right side. Returns what is wrong with them, or
 * NULL. */
static const char *words_of(const char *theirs, struct naming_words *w)
{
    size_t length, size;
    long more;
    *w = (struct naming_words){.count = 0};
    for (const char *p = theirs; *p; p += size ? size : 1) {
        size = brace(p, &length, &more);
        if ((*p == '{' || *p == '}') && (!size || size != length + 2))
            return "braces are around a word, such as {layer}";
        for (size_t i = 0; size && i < w->count; i++)
            if (w->word[i].length == length && !strncmp(w->word[i].text, p + 1, length))
                return "the same word is in braces twice";
        if (size && w->count == MOST_WORDS)
            return "more than 4 words are in braces";
        if (size) {
            w->word[w->count].text = p + 1;
            w->word[w->count].length = length;
            w->word[w->count++].number = ANY_LAYER;
        }
    }
    return NULL;
}

/* What is wrong with the right side, or NULL. Removes the blanks around a '+' between two names. */
static const char *ours_fault(char *ours, const struct naming_words *w)
{
    char name[NAMING_ROOM], *plus = strstr(ours, " + ");
    if (plus)
        memmove(plus, plus + 1, strlen(plus));
    if (plus)
        memmove(plus + 1, plus + 2, strlen(plus + 1));
    if (!fill_in(ours, w, name))
        return "the right side has a word in braces that the left side lacks";
    char *second = plus ? strchr(name, '+') : NULL;
    if (second)
        *second++ = '\0';
    if (!naming_is_ours(name) || (second && !naming_is_ours(second)))
        return "the right side is no name of Verbatim; docs/ORACLE.md lists them";
    return NULL;
}

/* Reads a line, which is changed. Returns what is wrong with it, or NULL. */
static const char *read_line(struct naming_file *f, char *text, size_t number)
{
    struct naming_words w;
    char *equals = strstr(text, " = ");
    if (!*text || *text == '#')
        return NULL;
    if (!equals)
        return "wanted THEIRS = OURS, with blanks around the equals sign";
    if (strlen(text) > 2 * LONGEST)
        return "a name is longer than 300 letters";
    *equals = '\0';
    char *theirs = trim(text), *ours = trim(equals + 3);
    if (!strcmp(theirs, "system")) {
        f->system = naming_find(ours);
        return f->system ? NULL : "this system is unknown; known are hf, llama.cpp, megatron, sglang, vllm";
    }
    int left_out = !strcmp(ours, "-");
    if (strlen(theirs) > LONGEST || strlen(ours) > LONGEST)
        return "a name is longer than 300 letters";
    const char *fault = !*theirs ? "the left side is empty" : words_of(theirs, &w);
    fault = fault || left_out ? fault : ours_fault(ours, &w);
    if (fault)
        return fault;
    f->lines = cli_must(realloc(f->lines, (f->count + 1) * sizeof *f->lines));
    f->lines[f->count++] = (struct naming_line){cli_must(strdup(theirs)), left_out ? NULL : cli_must(strdup(ours)),
                                                number, 0};
    return NULL;
}

int naming_file_read(const struct cli *c, const char *path, struct naming_file **out)
{
    char *text, *rest;
    size_t size, number = 1;
    vb_error err;
    int code = EXIT_DONE;
    struct naming_file *f = *out = cli_must(calloc(1, sizeof *f));
    if (vb_read_input(NULL, path, &text, &size, &err))
        return cli_error(c, &err);
    if (memchr(text, 0, size))
        code = cli_fail(c, EXIT_OTHER, "%s: it contains a zero byte: wanted lines of text", path);
    for (char *line = text; code == EXIT_DONE && *line; line = rest, number++) {
        char *end = line + strcspn(line, "\n");
        rest = end + (*end == '\n');
        *end = '\0';
        const char *fault = read_line(f, trim(line), number);
        if (fault)
            code = cli_fail(c, EXIT_OTHER, "%s: line %zu: %s", path, number, fault);
    }
    if (code == EXIT_DONE && !f->count && !f->system)
        code = cli_fail(c, EXIT_OTHER, "%s: it has no names", path);
    vb_free(NULL, text);
    return code;
}

void naming_file_close(struct naming_file *f)
{
    for (size_t i = 0; f && i < f->count; i++) {
        free(f->lines[i].theirs);
        free(f->lines[i].ours);
    }
    if (f)
        free(f->lines);
    free(f);
}

const struct naming *naming_file_system(const struct naming_file *f) { return f->system; }

size_t naming_file_unused(const struct naming_file *f, size_t *line)
{
    size_t count = 0;
    for (size_t i = 0; i < f->count; i++)
        if (!f->lines[i].used && !count++)
            *line = f->lines[i].number;
    return count;
}

void naming_file_forget(struct naming_file *f)
{
    for (size_t i = 0; i < f->count; i++)
        f->lines[i].used = 0;
}
