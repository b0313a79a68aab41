/* tools/trace/trace.c -- `verbatim trace`: shows what each round of drafting and verification computes.
 *
 * The engine reports passes, chosen tokens, hidden rows passed to the draft method, and truncations of caches
 * (vb_trace). Each pass becomes one JSON object, which also has the tokens that were chosen from the pass and the
 * truncations after it. The table, the JSON lines and the web page show these objects. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"
#include "tools/trace/trace.h"

struct recorder {
    const struct cli *c;
    json_t *passes;         /* an array with one object per pass; the last object is not complete yet */
    json_t *newest[VB_MAX_DRAFT + 1]; /* the newest pass of the target and of each depth; borrowed references */
    uint64_t round;         /* the round of the last pass */
    json_t *early;          /* truncations in a round that has no pass yet */
};

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

/* Returns the text of a token. Invalid bytes become U+FFFD. Returns JSON null if there is no tokenizer. */
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
static json_t *hidden_origin(const vb_tap_row *row, int depth)
{
    if (depth < 0 || row->hidden_of < 0)
        return json_null();
    if (row->hidden_depth < 0)
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

/* Returns the number of tokens to which the last row of a pass can attend. It is computed from the index of the row,
 * because the slot may be a dummy slot (convention missing-hidden=zeros). The rows of a tree share one cache; for them
 * it is computed from the slot. */
static json_int_t context_length(const struct cli *c, int depth, const vb_tap_row *last)
{
    int phantom = depth >= 0 && !c->session.drafting.head && begins_with_phantom(c->model);
    return c->session.drafting.tree.topk > 1 ? (json_int_t)last->slot + 1 : (json_int_t)last->index + 1 + phantom;
}

static void record_pass(struct recorder *r, const vb_trace *t)
{
    json_t *hidden = json_array(), *pieces = json_array();
    for (size_t i = 0; i < t->count; i++) {
        json_array_append_new(hidden, hidden_origin(&t->row[i], t->depth));
        json_array_append_new(pieces, t->row[i].draft < 0 ? json_null() : trace_piece(r->c, t->row[i].token));
    }
    json_t *pass = json_pack("{s:I,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:[],s:[],s:[]}", "round", (json_int_t)t->round, "pass",
                             t->depth < 0 ? "target" : "module", "depth", t->depth < 0 ? json_null() : json_integer(t->depth),
                             "input_ids", numbers(t, offsetof(vb_tap_row, token)), "pieces", pieces, "index",
                             numbers(t, offsetof(vb_tap_row, index)), "slots", numbers(t, offsetof(vb_tap_row, slot)),
                             "positions", numbers(t, offsetof(vb_tap_row, position)), "draft",
                             numbers(t, offsetof(vb_tap_row, draft)), "parents", numbers(t, offsetof(vb_tap_row, parent)), "hidden", hidden, "context_length",
                             context_length(r->c, t->depth, &t->row[t->count - 1]), "lm_head_indices", "chosen", "cut");
    cli_must(pass);
    if (t->depth < 0) {
        json_object_set_new(pass, "hidden_kept", json_array());
        json_object_set_new(pass, "accepted", json_integer(0));
    } else {
        json_object_set_new(pass, "module", json_integer(t->depth % (vb_mtp_modules(r->c->model) ? vb_mtp_modules(r->c->model) : 1)));
    }
    json_array_append_new(r->passes, pass);
    json_object_set_new(pass, "cut_before", r->early ? r->early : json_array());
    r->early = NULL;
    r->newest[t->depth + 1] = pass;
    r->round = t->round;
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

static void record_choice(struct recorder *r, const vb_trace *t)
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

static json_t *cuts_of(struct recorder *r, const vb_trace *t)
{
    if (t->round == r->round)
        return json_object_get(json_array_get(r->passes, json_array_size(r->passes) - 1), "cut");
    if (!r->early)
        r->early = json_array();
    return r->early;
}

static void record(void *context, const vb_trace *t)
{
    struct recorder *r = context;
    json_t *newest = r->newest[t->depth + 1];
    size_t passes = json_array_size(r->passes);
    if (t->kind == VB_TRACE_PASS)
        record_pass(r, t);
    else if (t->kind == VB_TRACE_CHOOSE)
        record_choice(r, t);
    else if (t->kind == VB_TRACE_HIDDEN)
        for (size_t i = 0; newest && i < t->count; i++)
            json_array_append_new(json_object_get(newest, "hidden_kept"), json_integer((json_int_t)(t->first + i)));
    /* a truncation is listed with the pass before it in the same round, or, if there is none, with the next pass */
    else if (passes)
        json_array_append_new(cuts_of(r, t), json_pack("{s:s,s:o,s:I,s:I}", "cache", t->depth < 0 ? "target" : "module", "depth",
                                                       t->depth < 0 ? json_null() : json_integer(t->depth), "first",
                                                       (json_int_t)t->first, "rows", (json_int_t)t->count));
}

static json_t *ids_and_pieces(const struct cli *c, const int32_t *ids, size_t count, json_t **pieces)
{
    json_t *a = json_array();
    *pieces = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(a, json_integer(ids[i]));
        json_array_append_new(*pieces, trace_piece(c, ids[i]));
    }
    return a;
}

static json_t *heading(const struct cli *c, const int32_t *ids, size_t count)
{
    json_t *pieces, *tokens = ids_and_pieces(c, ids, count, &pieces);
    return json_pack("{s:s,s:s,s:i,s:s,s:b,s:o,s:o}", "event", "begin", "draft", cli_draft_name(c), "draft_tokens",
                     cli_draft_tokens(c), "conventions", c->conventions, "padded", c->session.padded, "prompt", tokens,
                     "prompt_pieces", pieces);
}

static json_t *ending(const struct cli *c, const int32_t *ids, const vb_result *r)
{
    char fingerprint[17];
    json_t *pieces, *tokens = ids_and_pieces(c, ids, r->tokens, &pieces);
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)r->fingerprint);
    return json_pack("{s:s,s:o,s:o,s:s,s:s,s:o}", "event", "end", "tokens", tokens, "pieces", pieces, "finish_reason",
                     r->finish == VB_FINISH_STOP ? "stop" : "length", "fingerprint", fingerprint, "stats",
                     cli_stats(r, cli_draft_tokens(c)));
}

static int show(struct cli *c, json_t *begin, json_t *passes, json_t *end)
{
    size_t i;
    json_t *pass;
    int code = c->html ? trace_html(c, begin, passes, end) : EXIT_DONE;
    if (code == EXIT_DONE && c->against)
        return trace_against(c, passes);
    if (code != EXIT_DONE || (c->html && !c->json))
        return code;
    if (!c->json) {
        trace_table(stdout, passes);
        if (c->as && !strcmp(c->as, "mindie") && cli_draft_tokens(c))
            puts("MindIE's documentation shows the positions of the module's first pass in round 0 from 0; its code counts them from 1, as here.");
        return EXIT_DONE;
    }
    json_dumpf(begin, stdout, JSON_COMPACT);
    putchar('\n');
    json_array_foreach(passes, i, pass) {
        json_dumpf(pass, stdout, JSON_COMPACT);
        putchar('\n');
    }
    json_dumpf(end, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    struct recorder r = {.c = c, .passes = json_array()};
    vb_session *session = NULL;
    vb_error err = {0};
    int32_t *ids = NULL;
    size_t count, all;
    long long n = c->n >= 0 ? c->n : 16;
    int code = cli_check_file(c, "--html", c->html);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (!c->draft_given && code == EXIT_DONE && vb_mtp_modules(c->model))
        c->session.drafting.method = "mtp-eagle";
    if (code == EXIT_DONE)
        code = cli_prompt(c, &ids, &count);
    c->session.trace = record;
    c->session.trace_context = &r;
    if (code == EXIT_DONE)
        code = cli_session(c, count, n, &session);
    if (code == EXIT_DONE) {
        vb_result result;
        vb_generate_options g = {.max_tokens = (size_t)n, .ignore_eos = c->ignore_eos, .fingerprint = 1};
        if (vb_append(session, ids, count, &err) || vb_generate(session, &g, &result, &err)) {
            code = cli_error(c, &err);
        } else {
            json_t *begin = heading(c, ids, count), *end = ending(c, vb_tokens(session, &all) + count, &result);
            code = show(c, begin, r.passes, end);
            json_decref(begin);
            json_decref(end);
        }
    }
    vb_session_close(session);
    json_decref(r.early);
    json_decref(r.passes);
    free(ids);
    return code;
}

static const struct note notes[] = {
    {"--draft", "Use this draft method (default: mtp-eagle if the model has MTP modules, else none)."},
    {"--json", "Print JSON lines: one for the beginning, one for each pass, one for the end. With --html, the web page is written as "
               "well. With --against, print one object: agrees, compared, left and difference."},
    {NULL, NULL}};

const struct command command_trace = {
    "trace", "show what each round computes: token ids, cache slots, positions, hidden states, drafts and removed cache rows",
    "MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) [OPTIONS]",
    "Prints one line for each pass of the model (called target) or of an MTP module. In a round, tokens are drafted and one\n"
    "pass verifies them. Round 0 computes the prompt, or the first chunk of the prompt. The table has these columns.\n"
    "  `round`, `pass`        The number of the round, and whether the target or a module runs.\n"
    "  `input ids`            The input tokens of the pass. Tokens in (brackets) are padding.\n"
    "  `slots`, `positions`   The cache row and the RoPE position of each token.\n"
    "  `context`              The number of tokens to which the last row can attend.\n"
    "  `head`                 The rows for which logits are computed.\n"
    "  `hidden rows`          Where each row's hidden state comes from: h3 is row 3 of the target, m2 is row 2 of the module itself,\n"
    "                         m0:2 is row 2 of draft depth 0, and 0 is a row of zeros.\n"
    "  `result`               The tokens that were chosen, and the cache rows that were removed afterwards.\n"
    "With --against, the passes are compared with another engine's log, and the first difference is printed.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH | TAKES_HTML | TAKES_PREFILL,
    run, notes, DRAFTS_UNASKED, NULL};
