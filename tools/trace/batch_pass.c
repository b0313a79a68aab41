/* tools/trace/batch_pass.c -- the lists of a pass of a batch, made from the parts of its sequences. */

#include "tools/trace/batch.h"

const char *const batch_event_names[BATCH_EVENTS] = {"started", "preempted", "finished"};

/* Appends the items of list `from`, each plus `offset`. */
static void append_all(json_t *to, const json_t *from, size_t offset)
{
    for (size_t i = 0; i < json_array_size(from); i++) {
        json_t *item = json_array_get(from, i);
        if (offset)
            json_array_append_new(to, json_integer(json_integer_value(item) + (json_int_t)offset));
        else
            json_array_append(to, item);
    }
}

/* Returns one list with the lists `key` of all parts. If the lists number the rows of their part (`numbers_rows`), the
 * result numbers the rows of the pass. */
static json_t *joined(const json_t *parts, const char *key, int numbers_rows)
{
    json_t *all = json_array();
    for (size_t i = 0, rows = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        append_all(all, json_object_get(part, key), numbers_rows ? rows : 0);
        rows += json_array_size(json_object_get(part, "input_ids"));
    }
    return all;
}

/* Returns the value `key` of each part. */
static json_t *each(const json_t *parts, const char *key)
{
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(parts); i++)
        json_array_append(all, json_object_get(json_array_get(parts, i), key));
    return all;
}

/* Sets the list `lengths` to the number of items that each part has in list `key`. */
static json_t *lengths_of(const json_t *parts, const char *key)
{
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(parts); i++)
        json_array_append_new(all, json_integer((json_int_t)json_array_size(json_object_get(json_array_get(parts, i),
                                                                                            key))));
    return all;
}

/* The drafts that a pass of the target verifies, and their number in each part. */
static void list_drafts(json_t *pass, const json_t *parts)
{
    json_t *drafts = json_array(), *counts = json_array();
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *ids = json_object_get(part, "input_ids");
        size_t before = json_array_size(drafts);
        for (size_t j = 0; j < json_array_size(ids); j++)
            if (json_integer_value(json_array_get(json_object_get(part, "draft"), j)) > 0)
                json_array_append(drafts, json_array_get(ids, j));
        json_array_append_new(counts, json_integer((json_int_t)(json_array_size(drafts) - before)));
    }
    json_object_set_new(pass, "drafts", drafts);
    json_object_set_new(pass, "num_drafts", counts);
}

/* The tokens that were chosen from a pass, and their number in each part. */
static void list_tokens(json_t *pass, const json_t *parts)
{
    json_t *tokens = json_array(), *item;
    for (size_t i = 0, j; i < json_array_size(parts); i++)
        json_array_foreach(json_object_get(json_array_get(parts, i), "chosen"), j, item)
            json_array_append(tokens, json_object_get(item, "token"));
    json_object_set_new(pass, "tokens", tokens);
    json_object_set_new(pass, "num_tokens", lengths_of(parts, "chosen"));
}

void batch_pass_finish(json_t *pass)
{
    static const char *const lists[] = {"input_ids", "index", "slots", "positions", "draft"};
    json_t *parts = json_incref(json_object_get(pass, "parts"));
    json_object_del(pass, "parts"); /* it goes to the end, behind the lists */
    json_object_set_new(pass, "sequences", each(parts, "sequence"));
    json_object_set_new(pass, "q_lens", lengths_of(parts, "input_ids"));
    json_object_set_new(pass, "context_lengths", each(parts, "context_length"));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        json_object_set_new(pass, lists[i], joined(parts, lists[i], 0));
    json_object_set_new(pass, "lm_head_indices", joined(parts, "lm_head_indices", 1));
    list_tokens(pass, parts);
    if (json_is_null(json_object_get(pass, "depth"))) {
        json_object_set_new(pass, "stages", each(parts, "stage"));
        list_drafts(pass, parts);
        json_object_set_new(pass, "accepted", each(parts, "accepted"));
    }
    json_object_set_new(pass, "parts", parts);
}
