/* tools/trace/async.c -- the bookkeeping of asynchronous scheduling. */
#include "tools/trace/async.h"

#include "tools/trace/columns.h"

static json_t *counting(long long first, long long count)
{
    json_t *list = json_array();
    for (long long i = 0; i < count; i++)
        json_array_append_new(list, json_integer(first + i));
    return list;
}

static long long at(const json_t *pass, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(pass, key), i));
}
static long long larger(long long a, long long b) { return a > b ? a : b; }

/* ---- a result ---- */

/* vLLM: update_from_output, then _update_request_with_output. SGLang: _resolve_spec_overlap_token_ids. */
static void process(struct async_book *b)
{
    long long rejected = b->flying_tokens ? b->flying_drafts - b->flying_accepted : 0;
    if (!b->flying)
        return;
    b->computed -= rejected;
    b->placeholders -= rejected + b->flying_tokens;
    b->tokens += b->flying_tokens;
    b->committed += b->flying_decodes && b->drafts ? b->flying_tokens : 0;
    json_object_set_new(b->flying, "rejected", json_integer(rejected));
    json_object_set_new(b->flying, "after",
                        json_pack("{s:I,s:I,s:I,s:I}", "num_tokens", (json_int_t)b->tokens, "num_computed_tokens",
                                  (json_int_t)b->computed, "num_output_placeholders", (json_int_t)b->placeholders,
                                  "kv_committed_len", (json_int_t)b->committed));
    b->flying = NULL;
}

/* ---- a plan ---- */

/* A sequence whose rows were removed begins again, when the results in flight are known. */
static void begin_again(struct async_book *b)
{
    process(b);
    b->computed = b->reserved = b->committed = b->allocated = 0;
}

static int is_preempted(const json_t *pass)
{
    const json_t *cut;
    size_t i;
    json_array_foreach(json_object_get(pass, "cut_before"), i, cut)
        if (json_is_null(json_object_get(cut, "depth")) && !json_integer_value(json_object_get(cut, "first")))
            return 1;
    return 0;
}

/* The rows of a pass that are not padding and not drafts. */
static long long committed_rows(const json_t *pass)
{
    long long rows = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(pass, "draft")); i++)
        rows += at(pass, "draft", i) == 0;
    return rows;
}

/* Returns the token ids of a planned pass. When the scheduler plans it, the previous round is still being computed. So
 * its new token and the drafts are not known yet, and each of them is a placeholder. */
static json_t *planned_ids(const struct async_book *b, const json_t *pass, long long rows)
{
    json_t *ids = json_array();
    for (long long i = 0; i < rows; i++)
        json_array_append_new(ids, json_integer(b->computed + i < b->tokens ? at(pass, "input_ids", (size_t)i) : -1));
    return ids;
}

/* SGLang: prepare_for_decode, which reserves rows for two rounds; without drafts, one row. A prompt's rows are
 * known. */
static void reserve(struct async_book *b, int decodes, long long rows)
{
    if (!decodes)
        b->committed = b->allocated = b->computed + rows;
    else if (b->drafts)
        b->allocated = larger(b->allocated, b->committed + 2 * (b->drafts + 1));
    else
        b->allocated = ++b->committed;
}

/* Whether the pass begins with the newest token, which is known or in flight. A loaded session may begin with such a
 * pass. */
static int decodes_now(const struct async_book *b, const json_t *pass)
{
    size_t rows = json_array_size(json_object_get(pass, "draft"));
    int drafts = 0;
    for (size_t i = 0; i < rows; i++)
        drafts |= at(pass, "draft", i) > 0;
    return (b->produced || drafts) && at(pass, "index", 0) == b->prompt + b->produced - 1;
}

void async_add(struct async_book *b, json_t *pass)
{
    if (is_preempted(pass))
        begin_again(b);
    long long first = at(pass, "index", 0), chosen = (long long)json_array_size(json_object_get(pass, "chosen"));
    int decodes = decodes_now(b, pass);
    if (!b->reserved) /* rows that another sequence has computed, or that were loaded */
        b->computed = b->committed = b->allocated = first;
    long long rows = decodes ? 1 + b->drafts : committed_rows(pass);
    b->reserved = larger(b->reserved, b->computed + rows + b->drafts);
    reserve(b, decodes, rows);
    json_t *plan = json_pack("{s:o,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "planned_ids", planned_ids(b, pass, rows),
                             "planned_positions", counting(b->computed, rows), "num_tokens", (json_int_t)b->tokens,
                             "num_computed_tokens", (json_int_t)b->computed, "num_output_placeholders",
                             (json_int_t)b->placeholders, "correction", (json_int_t)(first - b->computed), "reserved",
                             (json_int_t)b->reserved, "kv_committed_len", (json_int_t)b->committed, "kv_allocated_len",
                             (json_int_t)b->allocated);
    json_object_set_new(pass, "async", plan);
    b->computed += rows; /* _update_after_schedule */
    b->placeholders += chosen ? rows - committed_rows(pass) + 1 : 0;
    process(b);
    b->produced += chosen;
    b->flying = plan;
    b->flying_decodes = decodes;
    b->flying_drafts = rows - committed_rows(pass);
    b->flying_accepted = json_integer_value(json_object_get(pass, "accepted"));
    b->flying_tokens = chosen;
}

void async_end(struct async_book *b)
{
    /* schedule() plans no round if the one in flight surely chooses the last token */
    int ends = b->placeholders > 0 && b->computed + 2 - b->placeholders >= b->end;
    if (b->flying && !ends)
        json_object_set_new(b->flying, "planned_in_vain",
                            counting(b->computed, b->tokens + b->placeholders + b->drafts - b->computed));
    process(b);
}

/* ---- the table ---- */

enum {
    ROUND,
    SEQUENCE,
    IDS,
    PLANNED,
    REAL,
    TOKENS,
    COMPUTED,
    PLACEHOLDERS,
    RESERVED,
    REJECTED,
    AFTER,
    COMMITTED,
    ALLOCATED,
    COLUMNS
};
static const char *const titles[COLUMNS] = {"round", "seq", "planned ids", "planned", "positions", "tokens", "computed",
                                            "placeholders", "reserved", "rejected", "then", "committed", "allocated"};

/* The numbers of a list with blanks between them. A long list is shortened to "0 1 .. 9". */
static void set_list(struct columns *t, size_t column, const json_t *list)
{
    size_t n = json_array_size(list);
    char text[400] = "", *p = text;
    for (size_t i = 0; i < n; i++)
        if (n <= 16 || i < 2 || i + 1 == n)
            p += snprintf(p, sizeof text - (size_t)(p - text), "%s%lld", i ? " " : "",
                          (long long)json_integer_value(json_array_get(list, i)));
        else if (i == 2)
            p += snprintf(p, sizeof text - (size_t)(p - text), " ..");
    columns_set(t, column, "%s", text);
}

static void set_number(struct columns *t, size_t column, const json_t *object, const char *key)
{
    columns_set(t, column, "%lld", (long long)json_integer_value(json_object_get(object, key)));
}

static void add_row(struct columns *t, const json_t *pass, const json_t *round)
{
    const json_t *plan = json_object_get(pass, "async"), *after = json_object_get(plan, "after"),
                 *vain = json_object_get(plan, "planned_in_vain");
    columns_row(t);
    columns_set(t, ROUND, "%lld", (long long)json_integer_value(round));
    set_number(t, SEQUENCE, pass, "sequence");
    set_list(t, IDS, json_object_get(plan, "planned_ids"));
    set_list(t, PLANNED, json_object_get(plan, "planned_positions"));
    set_list(t, REAL, json_object_get(pass, "positions"));
    set_number(t, TOKENS, plan, "num_tokens");
    set_number(t, COMPUTED, plan, "num_computed_tokens");
    set_number(t, PLACEHOLDERS, plan, "num_output_placeholders");
    set_number(t, RESERVED, plan, "reserved");
    set_number(t, REJECTED, plan, "rejected");
    columns_set(t, AFTER, "%lld %lld %lld", (long long)json_integer_value(json_object_get(after, "num_tokens")),
                (long long)json_integer_value(json_object_get(after, "num_computed_tokens")),
                (long long)json_integer_value(json_object_get(after, "num_output_placeholders")));
    set_number(t, COMMITTED, plan, "kv_committed_len");
    set_number(t, ALLOCATED, plan, "kv_allocated_len");
    if (!vain)
        return;
    columns_row(t);
    columns_set(t, ROUND, "in vain");
    set_number(t, SEQUENCE, pass, "sequence");
    set_list(t, PLANNED, vain);
}

void async_table(FILE *to, const json_t *passes)
{
    int is_batch = json_object_get(json_array_get(passes, 0), "parts") != NULL;
    struct columns t = {.titles = titles, .count = COLUMNS, .hidden = is_batch ? 0 : SEQUENCE};
    const json_t *pass, *part;
    size_t i, p;
    json_array_foreach(passes, i, pass) {
        if (json_object_get(pass, "async"))
            add_row(&t, pass, json_object_get(pass, "round"));
        json_array_foreach(json_object_get(pass, "parts"), p, part)
            if (json_object_get(part, "async"))
                add_row(&t, part, json_object_get(pass, "round"));
    }
    columns_print(&t, to);
}
