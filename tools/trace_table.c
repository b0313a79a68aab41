/* tools/trace_table.c -- a trace as an aligned table: the columns of a worked example on paper. */
#include <stdlib.h>
#include <string.h>

#include "trace.h"

enum column { ROUND, PASS, INPUT, SLOTS, POSITIONS, CONTEXT, HEAD, HIDDEN, RESULT, COLUMNS };
static const char *const titles[COLUMNS] = {"round", "pass", "input ids", "slots", "positions", "context", "head", "hidden rows", "result"};

struct line {
    char *cell[COLUMNS];
};

static char *joined(const json_t *array, int show_padding_of, const json_t *draft)
{
    char *text = calloc(json_array_size(array) * 24 + 1, 1), *p = text;
    if (!text)
        abort();
    for (size_t i = 0; i < json_array_size(array); i++) {
        int padding = show_padding_of && json_integer_value(json_array_get(draft, i)) < 0;
        p += sprintf(p, padding ? "%s(%lld)" : "%s%lld", i ? " " : "", (long long)json_integer_value(json_array_get(array, i)));
    }
    return text;
}

/* h3: row 3 of the target; m3: row 3 of this module; m0:3: of module 0; 0: zeros */
static char *origins(const json_t *pass)
{
    const json_t *hidden = json_object_get(pass, "hidden"), *own = json_object_get(pass, "depth");
    char *text = calloc(json_array_size(hidden) * 40 + 1, 1), *p = text;
    if (!text)
        abort();
    for (size_t i = 0; json_is_integer(own) && i < json_array_size(hidden); i++) {
        const json_t *o = json_array_get(hidden, i), *depth = json_object_get(o, "depth");
        long long row = json_integer_value(json_object_get(o, "row"));
        p += sprintf(p, "%s", i ? " " : "");
        if (json_is_null(o))
            p += sprintf(p, "0");
        else if (!depth)
            p += sprintf(p, "h%lld", row);
        else if (json_equal(depth, own))
            p += sprintf(p, "m%lld", row);
        else
            p += sprintf(p, "m%lld:%lld", (long long)json_integer_value(depth), row);
    }
    return text;
}

/* "17 ' the'": at most twice the piece and 24 characters more */
static int add_token(char *p, const json_t *choice)
{
    const char *piece = json_string_value(json_object_get(choice, "piece"));
    int used = sprintf(p, "%lld", (long long)json_integer_value(json_object_get(choice, "token")));
    if (!piece)
        return used;
    used += sprintf(p + used, " '");
    for (; *piece; piece++) /* one line stays one */
        used += (unsigned char)*piece < 0x20 ? sprintf(p + used, *piece == '\n' ? "\\n" : "?") : sprintf(p + used, "%c", *piece);
    return used + sprintf(p + used, "'");
}

static char *result(const json_t *pass)
{
    const json_t *chosen = json_object_get(pass, "chosen"), *cuts = json_object_get(pass, "cut"), *item;
    const json_t *kept = json_object_get(pass, "hidden_kept");
    int is_target = kept != NULL;
    size_t drafts = json_array_size(json_object_get(pass, "lm_head_indices")) - 1;
    size_t room = 256 + 160 * (json_array_size(chosen) + json_array_size(cuts)), i;
    json_array_foreach(chosen, i, item)
        room += 2 * json_string_length(json_object_get(item, "piece"));
    char *text = calloc(room, 1), *p = text;
    if (!text)
        abort();
    json_array_foreach(chosen, i, item) {
        int draft = (int)json_integer_value(json_object_get(item, "draft"));
        p += sprintf(p, "%s", i ? ", " : "");
        if (!is_target)
            p += sprintf(p, "draft ");
        p += add_token(p, item);
        if (is_target && draft)
            p += sprintf(p, " = draft %d", draft);
        else if (is_target && i < drafts)
            p += sprintf(p, ", not draft %zu", i + 1);
    }
    if (json_array_size(kept))
        p += sprintf(p, "%sh%lld..h%lld kept", p > text ? "; " : "", (long long)json_integer_value(json_array_get(kept, 0)),
                     (long long)json_integer_value(json_array_get(kept, json_array_size(kept) - 1)));
    json_array_foreach(cuts, i, item) {
        const json_t *depth = json_object_get(item, "depth");
        p += sprintf(p, "%s", p > text ? "; " : "");
        p += json_is_null(depth) ? sprintf(p, "target") : sprintf(p, "module %lld", (long long)json_integer_value(depth));
        p += sprintf(p, " cut to %lld", (long long)json_integer_value(json_object_get(item, "first")));
    }
    return text;
}

static char *text_of(const char *format, const char *name, long long number)
{
    char text[64];
    snprintf(text, sizeof text, format, name, number);
    char *copy = strdup(text);
    if (!copy)
        abort();
    return copy;
}

static struct line line_of(const json_t *pass)
{
    const json_t *depth = json_object_get(pass, "depth"), *draft = json_object_get(pass, "draft");
    struct line l;
    l.cell[ROUND] = text_of("%s%lld", "", (long long)json_integer_value(json_object_get(pass, "round")));
    l.cell[PASS] = json_is_null(depth) ? text_of("%s", "target", 0) : text_of("%s %lld", "module", (long long)json_integer_value(depth));
    l.cell[INPUT] = joined(json_object_get(pass, "input_ids"), 1, draft);
    l.cell[SLOTS] = joined(json_object_get(pass, "slots"), 0, NULL);
    l.cell[POSITIONS] = joined(json_object_get(pass, "positions"), 0, NULL);
    l.cell[CONTEXT] = text_of("%s%lld", "", (long long)json_integer_value(json_object_get(pass, "context_length")));
    l.cell[HEAD] = joined(json_object_get(pass, "lm_head_indices"), 0, NULL);
    l.cell[HIDDEN] = origins(pass);
    l.cell[RESULT] = result(pass);
    return l;
}

/* A long prompt's rows: "0 1 2 .. 30 31 32" */
static void shorten(char *text)
{
    size_t size = strlen(text);
    if (size <= 44)
        return;
    char *left = text + 16, *right = text + size - 20;
    while (*left != ' ')
        left++;
    while (*right != ' ')
        right++;
    if (right > left + 3) {
        memcpy(left, " ..", 3);
        memmove(left + 3, right, strlen(right) + 1);
    }
}

void trace_table(FILE *to, const json_t *passes)
{
    size_t count = json_array_size(passes), width[COLUMNS];
    struct line *lines = calloc(count + 1, sizeof *lines);
    if (!lines)
        abort();
    for (int k = 0; k < COLUMNS; k++)
        width[k] = strlen(titles[k]);
    for (size_t i = 0; i < count; i++) {
        lines[i] = line_of(json_array_get(passes, i));
        for (int k = 0; k < COLUMNS; k++) {
            if (k != RESULT)
                shorten(lines[i].cell[k]);
            width[k] = strlen(lines[i].cell[k]) > width[k] ? strlen(lines[i].cell[k]) : width[k];
        }
    }
    for (int k = 0; k < COLUMNS; k++)
        k == RESULT ? fprintf(to, "%s\n", titles[k]) : fprintf(to, "%-*s  ", (int)width[k], titles[k]);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < COLUMNS; k++) {
            if (k == RESULT)
                fprintf(to, "%s\n", lines[i].cell[k]);
            else
                fprintf(to, "%-*s  ", (int)width[k], lines[i].cell[k]);
            free(lines[i].cell[k]);
        }
    free(lines);
}
