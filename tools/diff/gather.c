/* tools/diff/gather.c -- joins the values of tensor-parallel ranks. diff.h says how.
 *
 * Rows are joined as soon as all ranks are read (ranks.c), because they say which tokens a model reads. All other
 * values are joined when the other side is known too, because its widths show which values are shards. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/filter.h"
#include "tools/diff/diff.h"

/* --- rules --- */

enum how { UNSAID, CONCAT_ROWS, CONCAT, SUM, ONE_RANK };
struct rule {
    enum how how;
    long rank; /* for ONE_RANK */
};

/* Parses an item of --gather, and sets *glob to the length of its pattern. The rule is UNSAID if the item is wrong. */
static struct rule rule_in(const char *item, size_t length, size_t *glob)
{
    static const struct {
        const char *text;
        enum how how;
    } known[] = {{"concat:0", CONCAT_ROWS}, {"concat:1", CONCAT}, {"sum", SUM}};
    char how[32];
    size_t equals = length;
    while (equals && item[equals - 1] != '=')
        equals--;
    *glob = equals ? equals - 1 : 0;
    snprintf(how, sizeof how, "%.*s", (int)(length - equals), item + equals);
    for (size_t i = 0; *glob && i < sizeof known / sizeof *known; i++)
        if (!strcmp(how, known[i].text))
            return (struct rule){known[i].how, -1};
    size_t digits = strncmp(how, "rank:", 5) ? 0 : strspn(how + 5, "0123456789");
    if (*glob && digits && digits < 7 && !how[5 + digits])
        return (struct rule){ONE_RANK, strtol(how + 5, NULL, 10)};
    return (struct rule){UNSAID, -1};
}

/* The first rule of --gather whose pattern matches the name. */
static struct rule rule_of(const struct cli *c, const char *name)
{
    const char *rest = c->gather, *item;
    size_t length, glob;
    while ((item = filter_next(&rest, &length))) {
        struct rule r = rule_in(item, length, &glob);
        if (filter_matches(item, glob, name))
            return r;
    }
    return (struct rule){UNSAID, -1};
}

int diff_joins_rows(const struct cli *c, const char *name) { return rule_of(c, name).how == CONCAT_ROWS; }

int diff_check_gather(struct cli *c, const struct diff_side *a, const struct diff_side *b)
{
    const struct diff_side *sides[2] = {a, b};
    const char *rest = c->gather, *item;
    size_t length, glob;
    if (c->gather && !a->rank_count && !b->rank_count)
        return cli_fail(c, EXIT_USAGE,
                        "--gather wants a dump of several ranks: a directory with a file for each rank, or files with "
                        "commas between them");
    while ((item = filter_next(&rest, &length))) {
        int known = 0;
        if (!rule_in(item, length, &glob).how)
            return cli_fail(c, EXIT_USAGE,
                            "--gather %.*s: wanted NAME=concat:0, NAME=concat:1, NAME=sum or NAME=rank:N", (int)length,
                            item);
        for (int i = 0; i < 2; i++)
            for (size_t k = 0; k < sides[i]->count && sides[i]->rank_count; k++)
                known |= filter_matches(item, glob, sides[i]->series[k].name);
        if (!known)
            return cli_fail(c, EXIT_USAGE, "--gather %.*s: no rank has a value of this name", (int)length, item);
    }
    return EXIT_DONE;
}

/* The rule for a value of which --gather says nothing, if the ranks differ: outputs of column-parallel layers are
 * concatenated, and outputs of row-parallel layers are added. */
static enum how usual(const char *name)
{
    static const struct { const char *glob; enum how how; } known[] = {
        {"*.self_attn.q_proj.output", CONCAT}, {"*.self_attn.q_b_proj.output", CONCAT}, {"*.self_attn.q_rope", CONCAT},
        {"*.self_attn.o_proj.input", CONCAT}, {"lm_head.output", CONCAT}, {"*.shared_head.head.output", CONCAT},
        {"*embed_tokens.output", SUM}, {"*.self_attn.o_proj.output", SUM}, {"*.mlp.experts.*.output", SUM},
        {"*.mlp.shared_experts.output", SUM}, {"*.mlp.output", SUM}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (filter_name(known[i].glob, name))
            return known[i].how;
    return UNSAID;
}

/* --- joining --- */

struct parts { /* one value, in the ranks that have it */
    struct cli *c;
    struct diff_side *side;
    struct diff_series *to;
    const struct diff_series **series;
    const struct diff_side **of;
    size_t count;
};

static void find_parts(struct parts *p, struct cli *c, struct diff_side *side, struct diff_series *to)
{
    *p = (struct parts){.c = c, .side = side, .to = to};
    p->series = cli_must(malloc(side->rank_count * sizeof *p->series));
    p->of = cli_must(malloc(side->rank_count * sizeof *p->of));
    for (size_t i = 0; i < side->rank_count; i++) {
        const struct diff_series *s = diff_find(&side->ranks[i], to->name, to->depth);
        if (s) {
            p->of[p->count] = &side->ranks[i];
            p->series[p->count++] = s;
        }
    }
}

static int same_rows(const struct diff_series *s, const struct diff_series *t)
{
    int same = s->count == t->count && s->dtype == t->dtype && s->item == t->item;
    for (size_t k = 0; same && k < s->count; k++)
        same = s->rows[k].sequence == t->rows[k].sequence && s->rows[k].index == t->rows[k].index;
    return same;
}

/* Finds the first number of part i that has other bits than in part 0. Returns 0 if there is none. */
static int first_other(const struct parts *p, size_t i, size_t *row, size_t *column)
{
    const struct diff_series *s = p->series[0], *t = p->series[i];
    for (*row = 0; *row < s->count; ++*row)
        for (*column = 0; *column < s->width; ++*column)
            if (s->rows[*row].width != t->rows[*row].width ||
                (*column < s->rows[*row].width &&
                 memcmp(s->rows[*row].data + *column * s->item, t->rows[*row].data + *column * s->item, s->item)))
                return 1;
    return 0;
}

/* The index of the first part that is not equal to part 0, or 0 if all are equal. */
static size_t other_part(const struct parts *p)
{
    size_t row, column;
    for (size_t i = 1; i < p->count; i++)
        if (!same_rows(p->series[0], p->series[i]) || p->series[i]->width != p->series[0]->width ||
            first_other(p, i, &row, &column))
            return i;
    return 0;
}

static int fail_other(const struct parts *p, size_t i)
{
    const struct diff_series *s = p->series[0], *t = p->series[i];
    size_t row, column;
    const char *name = p->to->name;
    if (!same_rows(s, t) || s->width != t->width)
        return cli_fail(p->c, EXIT_OTHER,
                        "%s: %s is %s in rank %d and %s in rank %d: --gather '%s=HOW' says how the ranks are joined",
                        p->side->path, name, s->shape, p->of[0]->rank, t->shape, p->of[i]->rank, name);
    first_other(p, i, &row, &column);
    double *x = cli_must(malloc((2 * s->width + 1) * sizeof *x)), *y = x + s->width;
    diff_numbers(s, &s->rows[row], x);
    diff_numbers(t, &t->rows[row], y);
    int code = cli_fail(p->c, EXIT_OTHER,
                        "%s: %s differs in rank %d: index %d, column %zu is %.9g, in rank %d %.9g; if the ranks have "
                        "parts of it, "
                        "--gather '%s=HOW' says how they are "
                        "joined",
                        p->side->path, name, p->of[i]->rank, s->rows[row].index, column, y[column], p->of[0]->rank,
                        x[column], name);
    free(x);
    return code;
}

/* Makes rows of `width` numbers for the joined value. Returns their data. */
static char *new_rows(const struct parts *p, size_t width)
{
    struct diff_series *s = p->to;
    char *data = diff_own(p->side, cli_must(calloc(s->count * width + 1, s->item)));
    s->width = width;
    for (size_t k = 0; k < s->count; k++) {
        s->rows[k].width = width;
        s->rows[k].data = data + k * width * s->item;
    }
    snprintf(s->shape, sizeof s->shape, "[%zu,%zu]", s->count, width);
    return data;
}

static void concatenate(const struct parts *p)
{
    size_t width = 0;
    for (size_t i = 0; i < p->count; i++)
        width += p->series[i]->width;
    char *to = new_rows(p, width);
    for (size_t k = 0; k < p->to->count; k++)
        for (size_t i = 0; i < p->count; i++) {
            size_t bytes = p->series[i]->width * p->to->item;
            memcpy(to, p->series[i]->rows[k].data, bytes);
            to += bytes;
        }
}

/* Adds the ranks in double, and rounds each sum once. */
static void add_up(const struct parts *p)
{
    size_t width = p->to->width, item = p->to->item;
    char *to = new_rows(p, width);
    double *x = cli_must(malloc((2 * width + 1) * sizeof *x)), *sum = x + width;
    for (size_t k = 0; k < p->to->count; k++) {
        memset(sum, 0, width * sizeof *sum);
        for (size_t i = 0; i < p->count; i++) {
            diff_numbers(p->series[i], &p->series[i]->rows[k], x);
            for (size_t j = 0; j < width; j++)
                sum[j] += x[j];
        }
        for (size_t j = 0; j < width; j++, to += item) {
            uint64_t bits = diff_bits(p->to->dtype, diff_round(p->to->dtype, sum[j]));
            memcpy(to, &bits, item);
        }
    }
    free(x);
}

/* Joins the parts. Reports an error if they do not fit. */
static int join(const struct parts *p, struct rule rule)
{
    for (size_t i = 0; rule.how == ONE_RANK && i < p->count; i++)
        if (p->of[i]->rank == rule.rank) {
            diff_copy_series(p->to, p->series[i]);
            return EXIT_DONE;
        }
    if (rule.how == ONE_RANK)
        return cli_fail(p->c, EXIT_USAGE, "--gather %s=rank:%ld: this rank has no such value", p->to->name, rule.rank);
    for (size_t i = 1; i < p->count; i++)
        if (!same_rows(p->series[0], p->series[i]) || (rule.how == SUM && p->series[i]->width != p->series[0]->width))
            return fail_other(p, i);
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->series[i]->count; k++)
            if (p->series[i]->rows[k].width != p->series[i]->width ||
                (rule.how == SUM && p->to->dtype == DIFF_INTEGERS))
                return cli_fail(p->c, EXIT_OTHER, "%s: %s cannot be joined: it has %s", p->side->path, p->to->name,
                                p->to->dtype == DIFF_INTEGERS ? "integers" : "rows of different widths");
    if (rule.how == CONCAT)
        concatenate(p);
    else
        add_up(p);
    return EXIT_DONE;
}

struct gathering {
    struct cli *c;
    struct diff_side *side;
    const struct diff_side *other;
    int sharded; /* whether the shapes of some value show that the ranks have shards */
    size_t concatenated, added, unsaid;
    char first[NAMING_ROOM]; /* a value that was joined without a rule of the user */
};

/* Decides how the parts are joined that are not equal, from the width on the other side: the widths of shards add up to
 * it. Sums have no such sign; they are added only if another value has. */
static enum how guess(struct gathering *g, const struct parts *p)
{
    const struct diff_series *whole = diff_find(g->other, p->to->name, p->to->depth);
    size_t width = 0;
    for (size_t i = 0; i < p->count; i++)
        width += p->series[i]->width;
    enum how how = usual(p->to->name);
    int fits = whole &&
               (how == CONCAT ? width == whole->width : how == SUM && g->sharded && p->to->width == whole->width);
    if (fits && !g->unsaid++)
        snprintf(g->first, sizeof g->first, "%s", p->to->name);
    return fits ? how : UNSAID;
}

/* pass 0: values that the user has a rule for, and shards; pass 1: the others. */
static int gather_one(struct gathering *g, struct diff_series *to, int pass)
{
    struct parts p;
    struct rule rule = rule_of(g->c, to->name);
    if (rule.how == CONCAT_ROWS || (pass == 0) != (rule.how || usual(to->name) == CONCAT))
        return EXIT_DONE;
    find_parts(&p, g->c, g->side, to);
    size_t other = other_part(&p);
    int code = EXIT_DONE;
    if (!rule.how && other)
        rule.how = guess(g, &p);
    if (rule.how)
        code = p.count > 1 || rule.how == ONE_RANK ? join(&p, rule) : EXIT_DONE;
    else if (other && diff_find(g->other, to->name, to->depth) && cli_wants(g->c, to->name, to->layer))
        code = fail_other(&p, other);
    g->concatenated += rule.how == CONCAT;
    g->added += rule.how == SUM;
    g->sharded |= rule.how == CONCAT;
    free(p.series);
    free(p.of);
    return code;
}

int diff_gather(struct cli *c, struct diff_side *side, const struct diff_side *other)
{
    struct gathering g = {.c = c, .side = side, .other = other};
    int code = EXIT_DONE;
    for (int pass = 0; pass < 2 && side->rank_count; pass++)
        for (size_t i = 0; i < side->count && code == EXIT_DONE; i++)
            code = gather_one(&g, &side->series[i], pass);
    if (code != EXIT_DONE || !side->rank_count)
        return code;
    json_t *note =
        json_sprintf("%s: %zu ranks; %zu values were concatenated, %zu were added, the others are those of one rank",
                     side->path, side->rank_count, g.concatenated, g.added);
    json_array_append_new(side->notes, note);
    if (g.unsaid)
        json_array_append_new(side->notes, json_sprintf("%s: %zu of these, the first is %s, were joined as usual for "
                                                        "their names, because the shapes "
                                                        "show shards; --gather says it "
                                                        "otherwise",
                                                        side->path, g.unsaid, g.first));
    return code;
}
