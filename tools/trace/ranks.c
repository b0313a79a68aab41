/* tools/trace/ranks.c -- data-parallel ranks whose passes are padded to the same number of rows. */
#include "tools/trace/ranks.h"

#include "tools/trace/batch.h"

static size_t rows_of(const json_t *pass) { return json_array_size(json_object_get(pass, "input_ids")); }

/* The passes of a rank before the target's, the target's, and those after it. */
struct parts_of_round {
    size_t target; /* the number of passes before the target's */
    size_t count;
};

static struct parts_of_round divide(const json_t *passes)
{
    struct parts_of_round d = {0, json_array_size(passes)};
    while (d.target < d.count && !json_is_null(json_object_get(json_array_get(passes, d.target), "depth")))
        d.target++;
    return d;
}

/* A pass without sequences. It has the round, the model and the depth of a pass that another rank computes. */
static json_t *dummy_like(const json_t *pass)
{
    static const char *const keys[] = {"round", "pass", "depth", "module"};
    json_t *dummy = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(pass, keys[i]))
            json_object_set(dummy, keys[i], json_object_get(pass, keys[i]));
    json_object_set_new(dummy, "parts", json_array());
    batch_pass_finish(dummy);
    json_object_set_new(dummy, "dummy", json_true());
    return dummy;
}

/* Appends the passes that all ranks compute at the same time. passes[r] is NULL if rank r has none. */
static void add_together(json_t *all, json_t *const *passes, size_t count)
{
    const json_t *some = NULL;
    size_t most = 0;
    for (size_t r = 0; r < count; r++) {
        some = passes[r] ? passes[r] : some;
        most = passes[r] && rows_of(passes[r]) > most ? rows_of(passes[r]) : most;
    }
    for (size_t r = 0; some && r < count; r++) {
        json_t *pass = passes[r] ? json_incref(passes[r]) : dummy_like(some);
        json_object_set_new(pass, "rank", json_integer((json_int_t)r));
        json_object_set_new(pass, "rows", json_integer((json_int_t)rows_of(pass)));
        json_object_set_new(pass, "padded_to", json_integer((json_int_t)most));
        json_array_append_new(all, pass);
    }
}

void ranks_weave(json_t *all, json_t *const *ranks, size_t count)
{
    struct parts_of_round divided[MOST_RANKS];
    json_t *together[MOST_RANKS];
    size_t before = 0, after = 0;
    for (size_t r = 0; r < count; r++) {
        divided[r] = divide(ranks[r]);
        size_t behind = divided[r].count > divided[r].target ? divided[r].count - divided[r].target - 1 : 0;
        before = divided[r].target > before ? divided[r].target : before;
        after = behind > after ? behind : after;
    }
    for (size_t i = 0; i < before + 1 + after; i++) {
        for (size_t r = 0; r < count; r++) {
            size_t at = i < before ? i : divided[r].target + i - before;
            together[r] = i < before && i >= divided[r].target ? NULL : json_array_get(ranks[r], at);
        }
        add_together(all, together, count);
    }
}

json_t *ranks_summary(const json_t *passes, size_t count)
{
    json_t *ranks = json_array(), *pass;
    for (size_t r = 0; r < count; r++) {
        json_int_t number = 0, dummies = 0, rows = 0, padded = 0;
        size_t i;
        json_array_foreach(passes, i, pass) {
            if (json_integer_value(json_object_get(pass, "rank")) != (json_int_t)r)
                continue;
            number++;
            dummies += json_is_true(json_object_get(pass, "dummy"));
            rows += json_integer_value(json_object_get(pass, "rows"));
            padded += json_integer_value(json_object_get(pass, "padded_to"));
        }
        json_array_append_new(ranks, json_pack("{s:I,s:I,s:I,s:I,s:I}", "rank", (json_int_t)r, "passes", number,
                                               "dummy_passes", dummies, "rows", rows, "rows_with_padding", padded));
    }
    return ranks;
}
