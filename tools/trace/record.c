/* tools/trace/record.c -- makes JSON objects from the events that the engine reports (vb_trace).
 *
 * Each pass becomes one JSON object, which also has the tokens that were chosen from the pass and the truncations after
 * it. */
#include "tools/trace/record.h"

#include <stdlib.h>
#include <string.h>

static json_t *numbers(const vb_trace *t, size_t offset)
{
    json_t *a = json_array();
    for (size_t i = 0; i < t->count; i++) {
        int32_t value;
        memcpy(&value, (const char *)&t->row[i] + offset, sizeof value);
        json_array_append_new(a, json_integer(value));
    }
    return a;
}

json_t *trace_piece(const struct cli *c, int32_t token)
{
    vb_utf8 stream = {0};
    size_t size, used;
    const char *piece = c->tokenizer ? vb_piece(c->tokenizer, token, &size) : NULL;
    if (!piece)
        return json_null();
    char *text = malloc(3 * (size + 4) + 16);
    cli_must(text);
    used = vb_utf8_push(&stream, piece, size, text);
    used += vb_utf8_finish(&stream, text + used);
    json_t *out = json_stringn(text, used);
    free(text);
    return out ? out : json_null();
}

/* Returns where the hidden state of a row comes from: {"from": "target" or "module", "depth": the module's depth,
 * "row": its index}. Returns JSON null if it is a row of zeros or if the row needs no hidden state. */
static json_t *hidden_origin(const struct record *r, const vb_tap_row *row, int depth)
{
    int from_target = row->hidden_depth < 0;
    if (depth < 0 || row->hidden_of < 0 || (from_target && (size_t)row->hidden_of < r->zeros))
        return json_null();
    if (from_target)
        return json_pack("{s:s,s:i}", "from", "target", "row", row->hidden_of);
    return json_pack("{s:s,s:i,s:i}", "from", "module", "depth", row->hidden_depth, "row", row->hidden_of);
}

/* Returns whether the cache of a module begins with the row of index -1 (convention first-row=phantom). */
static int begins_with_phantom(const vb_model *model)
{
    vb_convention row;
    for (size_t i = 0; vb_convention_at(i, &row); i++)
        if (!strcmp(row.name, "first-row"))
            return vb_model_convention(model, i);
    return 0;
}

/* Returns the number of tokens to which the last row of a pass can attend. It is computed from the indices of the rows,
 * because a slot may be a dummy slot (convention missing-hidden=zeros) or belong to a pool. The rows of a tree share
 * one cache. There, rows of the target lie one after another, and rows of a module have slots of a cache of their
 * own. */
static json_int_t context_length(const struct cli *c, const vb_trace *t)
{
    const vb_tap_row *last = &t->row[t->count - 1];
    int phantom = t->depth >= 0 && !c->session.drafting.head && begins_with_phantom(c->model);
    if (c->session.drafting.tree.topk <= 1)
        return (json_int_t)last->index + 1 + phantom;
    return t->depth < 0 ? (json_int_t)t->row[0].index + (json_int_t)t->count : (json_int_t)last->slot + 1;
}

static json_t *record_pass(struct record *r, const vb_trace *t)
{
    json_t *hidden = json_array(), *pieces = json_array();
    for (size_t i = 0; i < t->count; i++) {
        json_array_append_new(hidden, hidden_origin(r, &t->row[i], t->depth));
        json_array_append_new(pieces, t->row[i].draft < 0 ? json_null() : trace_piece(r->c, t->row[i].token));
    }
    json_t *pass = json_pack("{s:I,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:[],s:[],s:[]}", "round",
                             (json_int_t)t->round, "pass", t->depth < 0 ? "target" : "module", "depth",
                             t->depth < 0 ? json_null() : json_integer(t->depth), "input_ids",
                             numbers(t, offsetof(vb_tap_row, token)), "pieces", pieces, "index",
                             numbers(t, offsetof(vb_tap_row, index)), "slots", numbers(t, offsetof(vb_tap_row, slot)),
                             "positions", numbers(t, offsetof(vb_tap_row, position)), "draft",
                             numbers(t, offsetof(vb_tap_row, draft)), "parents",
                             numbers(t, offsetof(vb_tap_row, parent)), "hidden", hidden, "context_length",
                             context_length(r->c, t), "lm_head_indices", "chosen", "cut");
    cli_must(pass);
    if (t->depth < 0) {
        json_object_set_new(pass, "hidden_kept", json_array());
        json_object_set_new(pass, "accepted", json_integer(0));
    } else {
        json_object_set_new(pass, "module",
                            json_integer(t->depth % (vb_mtp_modules(r->c->model) ? vb_mtp_modules(r->c->model) : 1)));
    }
    json_object_set_new(pass, "cut_before", r->early ? r->early : json_array());
    r->early = NULL;
    r->last = r->newest[t->depth + 1] = pass;
    r->round = t->round;
    return pass;
}

/* Lists the rows for which the target computes logits: the row of the last committed token, and the rows of all drafts
 * after it, whether they are accepted or not. */
static void head_of_target(json_t *pass)
{
    json_t *draft = json_object_get(pass, "draft"), *head = json_object_get(pass, "lm_head_indices");
    size_t first = 0;
    if (json_array_size(head))
        return;
    for (size_t i = 0; i < json_array_size(draft); i++)
        if (json_integer_value(json_array_get(draft, i)) == 0)
            first = i;
    for (size_t i = first; i < json_array_size(draft) && json_integer_value(json_array_get(draft, i)) >= 0; i++)
        json_array_append_new(head, json_integer((json_int_t)i));
}

static void record_choice(struct record *r, const vb_trace *t)
{
    json_t *pass = r->newest[t->depth + 1];
    if (t->depth < 0) {
        head_of_target(pass);
        if (t->draft)
            json_object_set_new(pass, "accepted", json_integer(t->draft));
    } else {
        json_array_append_new(json_object_get(pass, "lm_head_indices"), json_integer((json_int_t)t->first));
    }
    json_array_append_new(json_object_get(pass, "chosen"),
                          json_pack("{s:I,s:i,s:o,s:i}", "row", (json_int_t)t->first, "token", t->token, "piece",
                                    t->token < 0 ? json_null() : trace_piece(r->c, t->token), "draft", t->draft));
}

static json_t *cuts_of(struct record *r, const vb_trace *t)
{
    if (r->last && t->round == r->round)
        return json_object_get(r->last, "cut");
    if (!r->early)
        r->early = json_array();
    return r->early;
}

json_t *record_event(struct record *r, const vb_trace *t)
{
    json_t *newest = r->newest[t->depth + 1];
    if (t->kind == VB_TRACE_PASS)
        return record_pass(r, t);
    if (t->kind == VB_TRACE_CHOOSE)
        record_choice(r, t);
    else if (t->kind == VB_TRACE_HIDDEN && !r->newest[0]) /* before any pass: zeros, in place of those that a session
                                                             file lacks */
        r->zeros = t->first + t->count;
    else if (t->kind == VB_TRACE_HIDDEN)
        for (size_t i = 0; newest && i < t->count; i++)
            json_array_append_new(json_object_get(newest, "hidden_kept"), json_integer((json_int_t)(t->first + i)));
    /* a truncation is listed with the pass before it in the same round, or, if there is none, with the next pass */
    else if (r->last)
        json_array_append_new(cuts_of(r, t), json_pack("{s:s,s:o,s:I,s:I}", "cache", t->depth < 0 ? "target" : "module",
                                                       "depth", t->depth < 0 ? json_null() : json_integer(t->depth),
                                                       "first", (json_int_t)t->first, "rows", (json_int_t)t->count));
    return NULL;
}

void record_close(struct record *r)
{
    json_decref(r->early);
    r->early = NULL;
}

json_t *trace_ids(const struct cli *c, const int32_t *ids, size_t count, json_t **pieces)
{
    json_t *a = json_array();
    *pieces = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(a, json_integer(ids[i]));
        json_array_append_new(*pieces, trace_piece(c, ids[i]));
    }
    return a;
}
