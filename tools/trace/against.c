/* tools/trace/against.c -- `verbatim trace --against LOG`: finds the first pass of another engine's log that differs.
 *
 * LOG has one JSON object per line, one for each pass, in the order of the passes. It may have any of the keys below. A
 * key that is missing is not compared. If no line is a pass of a module, only the passes of the target are compared. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/trace/batch.h"
#include "tools/trace/slots.h"
#include "tools/trace/trace.h"

/* Keys from KEY_INPUT to KEY_NUM_TOKENS are lists. Those from KEY_SEQUENCES to KEY_NUM_TOKENS are for batches alone,
 * and those from KEY_PLANNED_IDS on for --schedule async alone. In a batch, the other keys of --schedule async and
 * `accepted` are lists as well. */
enum log_key {
    KEY_ROUND,
    KEY_PASS,
    KEY_DEPTH,
    KEY_MODULE,
    KEY_ACCEPTED,
    KEY_CONTEXT,
    KEY_INPUT,
    KEY_INDEX,
    KEY_POSITIONS,
    KEY_SLOTS,
    KEY_HEAD,
    KEY_DRAFTS,
    KEY_TOKENS,
    KEY_SEQUENCES,
    KEY_QUERIES,
    KEY_CONTEXTS,
    KEY_NUM_DRAFTS,
    KEY_NUM_TOKENS,
    KEY_PLANNED_IDS,
    KEY_PLANNED,
    KEY_COMPUTED,
    KEY_PLACEHOLDERS,
    KEY_REJECTED,
    KEY_COMMITTED,
    KEY_ALLOCATED,
    KEYS
};
static const char *const keys[KEYS] = {"round", "pass", "depth", "module", "accepted", "context_length", "input_ids",
                                       "index", "positions", "slots", "lm_head_indices", "drafts", "tokens",
                                       "sequences", "q_lens", "context_lengths", "num_drafts", "num_tokens",
                                       "planned_ids", "planned_positions", "num_computed_tokens",
                                       "num_output_placeholders", "rejected", "kv_committed_len", "kv_allocated_len"};

struct log_search {
    struct cli *c;
    const json_t *passes;        /* ours */
    json_t *log;                 /* theirs: objects with one more key "line" */
    struct slots slots;
    int seen[KEYS];
    size_t compared, place;      /* passes compared; the next of ours */
    json_t *difference;          /* {line, round, key, theirs, ours} */
};

/* ---- the log ---- */

static int is_list(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_integer(json_array_get(value, i)))
            return 0;
    return json_is_array(value);
}

/* Whether this trace has the key. */
static int has_key(const struct log_search *s, int key)
{
    return key < KEY_SEQUENCES || (key <= KEY_NUM_TOKENS ? s->c->prompts != NULL : trace_is_async(s->c));
}

/* Whether the key is a list in this log. */
static int wants_list(const struct log_search *s, int key)
{
    return (key >= KEY_INPUT && key <= KEY_PLANNED) || ((key == KEY_ACCEPTED || key > KEY_PLANNED) && s->c->prompts);
}

/* Adds a pass to the log. */
static int add_line(struct log_search *s, json_t *line, size_t number)
{
    if (!json_is_object(line))
        return cli_fail(s->c, EXIT_OTHER, "%s: line %zu is no JSON object", s->c->against, number);
    if (json_object_get(line, "event")) /* the first and the last line of `trace --json` */
        return EXIT_DONE;
    for (int k = 0; k < KEYS; k++) {
        const json_t *value = has_key(s, k) ? json_object_get(line, keys[k]) : NULL;
        int fits = !value || json_is_null(value) ||
                   (wants_list(s, k) ? is_list(value)
                    : k == KEY_PASS ? json_is_string(value)
                    : json_is_integer(value));
        if (!fits)
            return cli_fail(s->c, EXIT_OTHER, "%s: line %zu: %s must be %s", s->c->against, number, keys[k],
                            wants_list(s, k) ? "a list of integers"
                            : k == KEY_PASS ? "\"target\" or \"module\""
                            : "an integer");
        s->seen[k] |= value && !json_is_null(value);
    }
    json_object_set_new(line, "line", json_integer((json_int_t)number));
    json_array_append(s->log, line);
    return EXIT_DONE;
}

static int read_log(struct log_search *s)
{
    char *text = NULL;
    size_t room = 0, number = 0;
    ssize_t size;
    int code = EXIT_DONE;
    FILE *f = fopen(s->c->against, "r");
    if (!f)
        return cli_fail(s->c, EXIT_OTHER, "%s: cannot be read: %s", s->c->against, strerror(errno));
    while (code == EXIT_DONE && (size = getline(&text, &room, f)) >= 0) {
        number++;
        if (strspn(text, " \t\r\n") == (size_t)size)
            continue;
        json_t *line = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, NULL);
        code = add_line(s, line, number);
        json_decref(line);
    }
    if (code == EXIT_DONE && ferror(f))
        code = cli_fail(s->c, EXIT_OTHER, "%s: cannot be read: %s", s->c->against, strerror(errno));
    fclose(f);
    free(text);
    int known = 0;
    for (int k = 0; k < KEYS; k++)
        known |= k != KEY_ROUND && s->seen[k];
    if (code == EXIT_DONE && !known)
        code = cli_fail(s->c, EXIT_OTHER,
                        "%s: no line has one of the keys that `verbatim trace --json` prints, such as positions or "
                        "accepted",
                        s->c->against);
    return code;
}

/* ---- comparing ---- */

/* The tokens that a pass chose, or the drafts that it verified. Returns a new reference. */
static json_t *tokens_of(const json_t *pass, int drafts)
{
    const json_t *from = json_object_get(pass, drafts ? "input_ids" : "chosen"),
                 *draft = json_object_get(pass, "draft"), *item;
    json_t *out = json_array();
    size_t i;
    json_array_foreach(from, i, item)
        if (!drafts)
            json_array_append(out, json_object_get(item, "token"));
        else if (json_integer_value(json_array_get(draft, i)) > 0)
            json_array_append(out, (json_t *)item);
    return out;
}

/* A value of --schedule async: that of a pass, or one list with those of its parts. Returns a new reference. */
static json_t *planned(const json_t *pass, const char *key)
{
    const json_t *parts = json_object_get(pass, "parts");
    if (!parts) {
        json_t *value = json_object_get(json_object_get(pass, "async"), key);
        return value ? json_incref(value) : json_null();
    }
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *value = json_object_get(json_object_get(json_array_get(parts, i), "async"), key);
        json_is_array(value) ? json_array_extend(all, value) : json_array_append(all, value);
    }
    return all;
}

/* The value of one of our passes. Returns a new reference. */
static json_t *ours_at(const json_t *pass, enum log_key key)
{
    json_t *value = json_object_get(pass, keys[key]);
    if (key >= KEY_PLANNED_IDS)
        return planned(pass, keys[key]);
    if (!value && (key == KEY_DRAFTS || key == KEY_TOKENS))
        return tokens_of(pass, key == KEY_DRAFTS);
    return value ? json_incref(value) : json_null();
}

/* The target's pass of the same round and rank, or NULL. */
static const json_t *target_of(const struct log_search *s, const json_t *pass)
{
    const json_t *other;
    size_t i;
    json_array_foreach(s->passes, i, other)
        if (json_is_null(json_object_get(other, "depth")) &&
            json_equal(json_object_get(other, "round"), json_object_get(pass, "round")) &&
            json_integer_value(json_object_get(other, "rank")) == json_integer_value(json_object_get(pass, "rank")))
            return other;
    return NULL;
}

/* The part of a sequence, or NULL. A borrowed reference. */
static json_t *part_of(const json_t *parts, const json_t *sequence)
{
    json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
        if (json_equal(json_object_get(part, "sequence"), sequence))
            return part;
    return NULL;
}

/* The pass with its parts in the order in which the log lists the sequences, so that engines may order a batch as they
 * like. The pass itself if the log does not list each of its sequences once. Returns a new reference. */
static json_t *in_order_of(const json_t *pass, const json_t *sequences)
{
    const json_t *ours = json_object_get(pass, "parts"), *sequence;
    json_t *parts = json_array(), *copy = NULL;
    size_t i;
    json_array_foreach(sequences, i, sequence)
        if (part_of(ours, sequence) && !part_of(parts, sequence))
            json_array_append(parts, part_of(ours, sequence));
    if (ours && json_array_size(parts) == json_array_size(ours) &&
        json_array_size(sequences) == json_array_size(ours)) {
        copy = json_copy((json_t *)(uintptr_t)pass);
        json_object_set(copy, "parts", parts);
        batch_pass_finish(copy);
    }
    json_decref(parts);
    return copy ? copy : json_incref((json_t *)(uintptr_t)pass);
}

static void compare_pass(struct log_search *s, const json_t *theirs, const json_t *whole)
{
    json_t *pass = in_order_of(whole, json_object_get(theirs, "sequences"));
    slots_begin(&s->slots, pass, target_of(s, pass));
    for (int k = 0; k < KEYS && !s->difference; k++) {
        json_t *value = json_object_get(theirs, keys[k]), *ours;
        if (!value || json_is_null(value) || !has_key(s, k))
            continue;
        ours = ours_at(pass, (enum log_key)k);
        int same = k == KEY_SLOTS ? slots_agree(&s->slots, pass, value) : json_equal(value, ours);
        if (!same)
            s->difference = json_pack("{s:O,s:O,s:O,s:s,s:O,s:O}", "line", json_object_get(theirs, "line"), "round",
                                      json_object_get(pass, "round"), "pass", json_object_get(pass, "pass"), "key",
                                      keys[k], "theirs", value, "ours", ours);
        json_decref(ours);
    }
    slots_end(&s->slots, pass);
    json_decref(pass);
    s->compared++;
}

static int has_modules(const struct log_search *s)
{
    for (size_t i = 0; i < json_array_size(s->log); i++) {
        const char *pass = json_string_value(json_object_get(json_array_get(s->log, i), "pass"));
        if (pass && !strcmp(pass, "module"))
            return 1;
    }
    return 0;
}

static void compare_all(struct log_search *s)
{
    int modules = has_modules(s);
    for (size_t i = 0; i < json_array_size(s->log) && !s->difference; i++) {
        const json_t *pass = json_array_get(s->passes, s->place++);
        while (pass && !modules && json_is_integer(json_object_get(pass, "depth")))
            pass = json_array_get(s->passes, s->place++);
        if (!pass)
            return;
        compare_pass(s, json_array_get(s->log, i), pass);
    }
}

/* ---- telling ---- */

static void put_value(const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    fputs(cli_must(text), stdout);
    free(text);
}

/* The passes of the round that differs. */
static void put_round(const struct log_search *s)
{
    json_t *round = json_array();
    for (size_t i = 0; i < json_array_size(s->passes); i++)
        if (json_equal(json_object_get(json_array_get(s->passes, i), "round"), json_object_get(s->difference, "round")))
            json_array_append(round, json_array_get(s->passes, i));
    trace_table(stdout, round);
    json_decref(round);
}

static void tell(const struct log_search *s)
{
    size_t left = json_array_size(s->log) - s->compared;
    const json_t *d = s->difference;
    if (!d) {
        printf("%zu passes agree in", s->compared);
        for (int k = 0, n = 0; k < KEYS; k++)
            if (s->seen[k])
                printf("%s %s", n++ ? "," : "", keys[k]);
        putchar('\n');
        if (left)
            printf("%s has %zu more passes than this run of %zu; -n sets the number of tokens\n", s->c->against, left,
                   s->compared);
        return;
    }
    printf("round %lld, pass of the %s: %s is ", (long long)json_integer_value(json_object_get(d, "round")),
           json_string_value(json_object_get(d, "pass")), json_string_value(json_object_get(d, "key")));
    put_value(json_object_get(d, "theirs"));
    printf(" in line %lld of %s, and ", (long long)json_integer_value(json_object_get(d, "line")), s->c->against);
    put_value(json_object_get(d, "ours"));
    printf(" here%s\n\nThis round here:\n", strcmp(json_string_value(json_object_get(d, "key")), "slots") ? ""
                                            : s->c->prompts
                                                ? " (a slot of the log holds another row of a sequence)"
                                                : " (a slot of the log must always stand for the same slot here)");
    put_round(s);
}

int trace_against(struct cli *c, const json_t *passes)
{
    struct log_search s = {.c = c, .passes = passes, .log = json_array()};
    slots_open(&s.slots);
    int code = read_log(&s);
    if (code == EXIT_DONE) {
        compare_all(&s);
        if (c->json) {
            json_t *out = json_pack("{s:b,s:I,s:I,s:O*}", "agrees", !s.difference, "compared", (json_int_t)s.compared,
                                    "left", (json_int_t)(json_array_size(s.log) - s.compared), "difference",
                                    s.difference);
            json_dumpf(cli_must(out), stdout, JSON_COMPACT);
            putchar('\n');
            json_decref(out);
        } else {
            tell(&s);
        }
        code = s.difference ? EXIT_DIFFERENCE : EXIT_DONE;
    }
    json_decref(s.log);
    slots_close(&s.slots);
    json_decref(s.difference);
    return code;
}
