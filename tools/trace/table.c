/* tools/trace/table.c -- prints a trace as a table with aligned columns. A pass of a batch has one line for each
 * sequence, and then a line with the lists that other engines log. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/trace/batch.h"
#include "tools/trace/trace.h"

enum column { ROUND, PASS, RANK, SEQUENCE, STAGE, INPUT, SLOTS, POSITIONS, CONTEXT, HEAD, HIDDEN, RESULT, COLUMNS };
static const char *const titles[COLUMNS] = {"round", "pass", "rank", "seq", "stage", "input ids", "slots", "positions",
                                            "context", "head", "hidden rows", "result"};

struct line {
    char *cell[COLUMNS];
    char *note; /* printed below the line; NULL: nothing is printed */
};

struct table {
    struct line *lines;
    size_t count, room;
    size_t width[COLUMNS];
    int hidden[COLUMNS]; /* columns that only traces of batches have */
};

static char *joined(const json_t *array, int show_padding_of, const json_t *draft)
{
    char *text = calloc(json_array_size(array) * 24 + 1, 1), *p = text;
    cli_must(text);
    for (size_t i = 0; i < json_array_size(array); i++) {
        int padding = show_padding_of && json_integer_value(json_array_get(draft, i)) < 0;
        p += sprintf(p, padding ? "%s(%lld)" : "%s%lld", i ? " " : "",
                     (long long)json_integer_value(json_array_get(array, i)));
    }
    return text;
}

/* Returns where each row's hidden state comes from. h3: row 3 of the target; m3: row 3 of the same module; m0:3: row 3
 * of draft depth 0; 0: a row of zeros. */
static char *origins(const json_t *pass)
{
    const json_t *hidden = json_object_get(pass, "hidden"), *own = json_object_get(pass, "depth");
    char *text = calloc(json_array_size(hidden) * 40 + 1, 1), *p = text;
    cli_must(text);
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

/* Prints a token, for example "17 ' the'". */
static void add_token(FILE *to, const json_t *choice)
{
    const char *piece = json_string_value(json_object_get(choice, "piece"));
    fprintf(to, "%lld", (long long)json_integer_value(json_object_get(choice, "token")));
    for (const char *p = piece; p && *p; p++) { /* a newline is printed as \n, so that the text stays on one line */
        if (p == piece)
            fputs(" '", to);
        int is_control = (unsigned char)*p < 0x20 || *p == 0x7f ||
                         ((unsigned char)*p == 0xc2 && (unsigned char)p[1] < 0xa0);
        *p == '\n' ? fputs("\\n", to) : fputc(is_control ? '?' : *p, to);
        /* U+0080..U+009F are two bytes; terminals obey these control characters too */
        p += is_control && (unsigned char)*p == 0xc2;
    }
    if (piece && *piece)
        fputc('\'', to);
}

/* Prints the truncations of caches, for example "target cut to 5; module 0 cut to 4". If a cache was truncated twice in
 * succession, only the second truncation is printed. */
static void add_cuts(FILE *to, const json_t *cuts, const char *when, const char **separator)
{
    for (size_t i = 0; i < json_array_size(cuts); i++) {
        const json_t *cut = json_array_get(cuts, i), *depth = json_object_get(cut, "depth");
        if (json_equal(depth, json_object_get(json_array_get(cuts, i + 1), "depth")))
            continue;
        fprintf(to, "%s%s", *separator, when);
        json_is_null(depth) ? fputs("target", to) : fprintf(to, "module %lld", (long long)json_integer_value(depth));
        fprintf(to, " cut to %lld", (long long)json_integer_value(json_object_get(cut, "first")));
        *separator = "; ";
    }
}

static void add_kept(FILE *to, const json_t *kept, const char **separator)
{
    size_t count = json_array_size(kept);
    if (!count)
        return;
    fprintf(to, "%sh%lld", *separator, (long long)json_integer_value(json_array_get(kept, 0)));
    if (count > 1)
        fprintf(to, "..h%lld", (long long)json_integer_value(json_array_get(kept, count - 1)));
    fputs(" kept", to);
    *separator = "; ";
}

/* Prints the chosen tokens, for example "accepted 1 of 3: 557 ' time'; then 466 ' there'" or "draft 2: 466 '
 * there'". */
static void add_choices(FILE *to, const json_t *pass, const char **separator)
{
    const json_t *chosen = json_object_get(pass, "chosen"), *accepted = json_object_get(pass, "accepted"), *item;
    size_t drafts = json_array_size(json_object_get(pass, "lm_head_indices")), i;
    if (accepted && drafts > 1) {
        fprintf(to, "accepted %lld of %zu", (long long)json_integer_value(accepted), drafts - 1);
        *separator = ": ";
    }
    json_array_foreach(chosen, i, item) {
        long long draft = json_integer_value(json_object_get(item, "draft"));
        if (accepted && !draft && drafts > 1)
            *separator = "; then ";
        fputs(*separator, to);
        if (!accepted)
            fprintf(to, "draft %lld: ", draft);
        json_integer_value(json_object_get(item, "token")) < 0 ? fputs("none, its logits are not finite", to)
                                                               : add_token(to, item);
        *separator = ", ";
    }
    if (**separator)
        *separator = "; ";
}

static char *result(const json_t *pass)
{
    char *text = NULL;
    size_t size;
    const char *separator = "";
    FILE *to = open_memstream(&text, &size);
    cli_must(to);
    add_cuts(to, json_object_get(pass, "cut_before"), "first ", &separator);
    add_choices(to, pass, &separator);
    add_kept(to, json_object_get(pass, "hidden_kept"), &separator);
    add_cuts(to, json_object_get(pass, "cut"), "", &separator);
    return cli_must(fclose(to) ? NULL : text);
}

static char *text_of(const char *format, const char *name, long long number)
{
    char text[64];
    snprintf(text, sizeof text, format, name, number);
    char *copy = strdup(text);
    cli_must(copy);
    return copy;
}

static struct line line_of(const json_t *pass)
{
    const json_t *depth = json_object_get(pass, "depth"), *draft = json_object_get(pass, "draft"),
                 *stage = json_object_get(pass, "stage");
    struct line l = {.note = NULL};
    l.cell[ROUND] = text_of("%s%lld", "", (long long)json_integer_value(json_object_get(pass, "round")));
    l.cell[PASS] = json_is_null(depth) ? text_of("%s", "target", 0)
                                       : text_of("%s %lld", "module", (long long)json_integer_value(depth));
    l.cell[RANK] = text_of("%s", "", 0);
    l.cell[SEQUENCE] = text_of("%s%lld", "", (long long)json_integer_value(json_object_get(pass, "sequence")));
    l.cell[STAGE] = text_of("%s", stage ? json_string_value(stage) : "", 0);
    l.cell[INPUT] = joined(json_object_get(pass, "input_ids"), 1, draft);
    l.cell[SLOTS] = joined(json_object_get(pass, "slots"), 0, NULL);
    l.cell[POSITIONS] = joined(json_object_get(pass, "positions"), 0, NULL);
    l.cell[CONTEXT] = text_of("%s%lld", "", (long long)json_integer_value(json_object_get(pass, "context_length")));
    l.cell[HEAD] = joined(json_object_get(pass, "lm_head_indices"), 0, NULL);
    l.cell[HIDDEN] = origins(pass);
    l.cell[RESULT] = result(pass);
    return l;
}

/* Shortens a long list, such as the rows of a long prompt, to "0 1 2 .. 30 31 32". */
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

/* ---- batches ---- */

/* Prints a list, for example "; q_lens 3 1". Prints nothing if the pass has no such list or if it is empty. */
static void add_list(FILE *to, const json_t *pass, const char *key, const char **separator)
{
    const json_t *list = json_object_get(pass, key);
    if (!json_array_size(list))
        return;
    char *text = joined(list, 0, NULL);
    fprintf(to, "%s%s %s", *separator, key, text);
    *separator = "; ";
    free(text);
}

static char *note(const json_t *pass)
{
    static const char *const keys[] = {"q_lens", "lm_head_indices", "drafts", "accepted"};
    char *text = NULL;
    size_t size;
    const char *separator = "  ";
    FILE *to = open_memstream(&text, &size);
    cli_must(to);
    /* without drafts, none is accepted */
    size_t count = sizeof keys / sizeof *keys - !json_array_size(json_object_get(pass, "drafts"));
    for (size_t i = 0; i < count; i++)
        add_list(to, pass, keys[i], &separator);
    for (int e = 0; e < BATCH_EVENTS; e++)
        add_list(to, pass, batch_event_names[e], &separator);
    long long rows = json_integer_value(json_object_get(pass, "rows")),
              all = json_integer_value(json_object_get(pass, "padded_to"));
    if (all)
        fprintf(to, "%s%lld row%s, padded to %lld", separator, rows, rows == 1 ? "" : "s", all);
    return cli_must(fclose(to) ? NULL : text);
}

/* ---- the table ---- */

static void set_cell(struct line *l, enum column k, char *text)
{
    free(l->cell[k]);
    l->cell[k] = text;
}

static struct line *add_line(struct table *t, const json_t *pass)
{
    if (t->count == t->room) {
        t->room = 2 * t->room + 16;
        t->lines = cli_must(realloc(t->lines, t->room * sizeof *t->lines));
    }
    t->lines[t->count] = line_of(pass);
    return &t->lines[t->count++];
}

/* The columns that say which pass it is. */
static void name_pass(struct line *l, const json_t *pass)
{
    set_cell(l, ROUND, text_of("%s%lld", "", (long long)json_integer_value(json_object_get(pass, "round"))));
    if (json_object_get(pass, "rank"))
        set_cell(l, RANK, text_of("%s%lld", "", (long long)json_integer_value(json_object_get(pass, "rank"))));
}

static void add_dummy(struct table *t, const json_t *pass)
{
    struct line *l = add_line(t, pass);
    name_pass(l, pass);
    set_cell(l, SEQUENCE, text_of("%s", "", 0));
    set_cell(l, CONTEXT, text_of("%s", "", 0));
    set_cell(l, RESULT,
             text_of("%s%lld", "dummy pass, padded to ",
                     (long long)json_integer_value(json_object_get(pass, "padded_to"))));
}

/* One line for each part. Only the first one says which pass it is. */
static void add_batch(struct table *t, const json_t *pass)
{
    const json_t *parts = json_object_get(pass, "parts");
    t->hidden[SEQUENCE] = t->hidden[STAGE] = 0;
    t->hidden[RANK] &= !json_object_get(pass, "rank");
    if (!json_array_size(parts))
        add_dummy(t, pass);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        struct line *l = add_line(t, json_array_get(parts, i));
        set_cell(l, ROUND, text_of("%s", "", 0));
        if (!i)
            name_pass(l, pass);
        else
            set_cell(l, PASS, text_of("%s", "", 0));
        if (i + 1 == json_array_size(parts) && json_is_null(json_object_get(pass, "depth")))
            l->note = note(pass);
    }
}

static void measure(struct table *t)
{
    for (int k = 0; k < COLUMNS; k++)
        t->width[k] = strlen(titles[k]);
    for (size_t i = 0; i < t->count; i++)
        for (int k = 0; k < COLUMNS; k++) {
            char *cell = t->lines[i].cell[k];
            if (k != RESULT)
                shorten(cell);
            t->width[k] = strlen(cell) > t->width[k] ? strlen(cell) : t->width[k];
        }
}

static void put_cells(FILE *to, const struct table *t, char *const *cells)
{
    for (int k = 0; k < RESULT; k++)
        if (!t->hidden[k])
            fprintf(to, "%-*s  ", (int)t->width[k], cells[k]);
    fprintf(to, "%s\n", cells[RESULT]);
}

void trace_table(FILE *to, const json_t *passes)
{
    struct table t = {.hidden = {[RANK] = 1, [SEQUENCE] = 1, [STAGE] = 1}};
    const json_t *pass;
    size_t i;
    json_array_foreach(passes, i, pass)
        json_object_get(pass, "parts") ? add_batch(&t, pass) : (void)add_line(&t, pass);
    measure(&t);
    put_cells(to, &t, (char *const *)(uintptr_t)titles);
    for (i = 0; i < t.count; i++) {
        put_cells(to, &t, t.lines[i].cell);
        if (t.lines[i].note)
            fprintf(to, "%s\n", t.lines[i].note);
        free(t.lines[i].note);
        for (int k = 0; k < COLUMNS; k++)
            free(t.lines[i].cell[k]);
    }
    free(t.lines);
}
