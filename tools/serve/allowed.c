/* tools/serve/allowed.c -- masks: see allowed.h. */
#include "tools/serve/allowed.h"
#include "tools/serve/schema_internal.h"
#include "tools/serve/thinking.h"

#include <stdlib.h>
#include <string.h>

/* ---- one mask ---- */

/* What the walk has at one depth of the trie: threads [first, first + count), and how many frames there are. */
struct level {
    uint32_t first, count, frames;
};

static void allow(const struct vocabulary *v, int32_t token, unsigned char *mask)
{
    for (; token >= 0; token = v->same[token])
        mask[token] = 1;
}

/* The threads of level 0, along every branch of the trie. */
static int walk_trie(const struct vocabulary *v, const struct vocabulary_trie *trie, struct walk *w, struct level *level, unsigned char *mask)
{
    for (uint32_t i = 0; i < trie->count;) {
        const struct vocabulary_node *n = &trie->node[i];
        const struct level *above = &level[n->depth];
        w->threads = above->first + above->count;
        w->frames = above->frames;
        int rc = walk_step(w, above->first, above->first + above->count, n->byte);
        if (rc)
            return rc;
        uint32_t first = above->first + above->count;
        if (w->threads == first) {
            i = n->skip;
            continue;
        }
        level[n->depth + 1] = (struct level){first, w->threads - first, w->frames};
        allow(v, n->token, mask);
        i++;
    }
    return VB_OK;
}

/* Where a thread is, which decides which tokens have to be read byte by byte. */
enum { ELSEWHERE = 1, IN_ONE = 2 /* a text that plain pieces continue */, IN_OTHER = 4 /* one that may be read as JSON */, IN_NAME = 8, IN_ANY = 14 };

static int place_of(const struct schema *s, const struct thread *t)
{
    if (t->sub != IN_TEXT || (t->at != AT_STRING && t->at != AT_OPEN && t->at != AT_RAW && t->at != AT_NAME))
        return ELSEWHERE;
    if (t->at == AT_NAME)
        return IN_NAME;
    return t->at == AT_RAW && s->node[t->node].unless_json && !json_scan_is_bad(t->lo) ? IN_OTHER : IN_ONE;
}

/* How many characters such a text may still have. */
static uint32_t characters_left(const struct schema *s, const struct thread *t)
{
    uint32_t most = t->at == AT_OPEN ? NO_LIMIT : s->node[t->node].most;
    return most == NO_LIMIT ? NO_LIMIT : most - t->count;
}

static void allow_plain(const struct vocabulary *v, uint32_t characters, unsigned char *mask)
{
    if (characters < v->most_characters)
        for (uint32_t i = 0; characters > 0 && i < v->plain_up_to[characters]; i++)
            mask[v->plain[i]] = 1;
    else
        for (int32_t t = 0; t < v->size; t++)
            mask[t] |= v->is_plain[t];
}

/* The tokens that a text allows whatever it contains so far. */
static void allow_texts(const struct vocabulary *v, const struct schema_state *state, unsigned char *mask)
{
    uint32_t one = 0, other = 0;
    int name = 0;
    for (uint32_t i = 0; i < state->w.threads; i++) {
        const struct thread *t = &state->w.thread[i];
        int place = place_of(state->w.schema, t);
        uint32_t left = place & (IN_ONE | IN_OTHER) ? characters_left(state->w.schema, t) : 0, *most = place == IN_ONE ? &one : &other;
        *most = left > *most ? left : *most;
        name |= place == IN_NAME;
    }
    memset(mask, 0, (size_t)v->size);
    if (other)
        allow_plain(v, other, mask);
    for (int32_t t = 0; other && t < v->size; t++)
        mask[t] &= !v->is_scalar[t];
    if (one)
        allow_plain(v, one, mask);
    for (int32_t t = 0; name && t < v->size; t++)
        mask[t] |= v->is_name[t];
}

/* What the threads of `state` at these places allow of the trie's tokens. */
static int walk_some(const struct vocabulary *v, const struct vocabulary_trie *trie, const struct schema_state *state, int places, struct walk *w,
                     struct level *level, unsigned char *mask)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < state->w.threads; i++)
        if (place_of(w->schema, &state->w.thread[i]) & places)
            w->thread[n++] = state->w.thread[i];
    level[0] = (struct level){0, n, state->w.frames};
    return n ? walk_trie(v, trie, w, level, mask) : VB_OK;
}

int allowed_mask(const struct vocabulary *v, const struct schema_state *state, unsigned char *mask)
{
    struct schema_state *copy = NULL;
    struct level *level = malloc((v->longest + 1) * sizeof *level);
    int rc = level ? schema_begin(&copy, state->w.schema) : VB_NO_MEMORY;
    allow_texts(v, state, mask);
    if (!rc)
        rc = schema_state_copy(copy, state);
    if (!rc)
        rc = walk_some(v, &v->not_plain, state, IN_ANY, &copy->w, level, mask);
    if (!rc)
        rc = walk_some(v, &v->scalar, state, IN_OTHER, &copy->w, level, mask);
    if (!rc)
        rc = walk_some(v, &v->all, state, ELSEWHERE, &copy->w, level, mask);
    for (size_t i = 0; !rc && i < v->ends; i++)
        mask[v->end[i]] = (unsigned char)schema_may_end(state);
    free(level);
    schema_state_close(copy);
    return rc;
}

/* ---- the masks of a sequence ---- */

#define KEPT 80 /* states: more than the rows of one pass, drafts as a tree included */

struct allowed_state {
    size_t count; /* tokens of the value; state is what was read of them */
    struct schema_state *state;
};

struct allowed {
    const struct vocabulary *v;
    const struct schema *s;
    size_t from;
    int thinks;
    size_t behind;     /* if it thinks: how many bytes of the first token belong to the value */
    int32_t *token;    /* those that the states have read */
    size_t count, room;
    struct allowed_state kept[KEPT]; /* the state after n <= count tokens is at n % KEPT, if it is there */
    struct schema_state *start, *work;
};

int allowed_open(struct allowed **out, const struct vocabulary *v, const struct schema *s, size_t from, int thinks)
{
    struct allowed *a = calloc(1, sizeof *a);
    int rc = a ? VB_OK : VB_NO_MEMORY;
    *out = NULL;
    if (rc)
        return rc;
    *a = (struct allowed){.v = v, .s = s, .from = from, .thinks = thinks};
    rc = schema_begin(&a->start, s);
    if (!rc)
        rc = schema_begin(&a->work, s);
    for (int i = 0; i < KEPT && !rc; i++) {
        a->kept[i].count = SIZE_MAX;
        rc = schema_begin(&a->kept[i].state, s);
    }
    if (rc)
        allowed_close(a);
    else
        *out = a;
    return rc;
}

void allowed_close(struct allowed *a)
{
    if (!a)
        return;
    for (int i = 0; i < KEPT; i++)
        schema_state_close(a->kept[i].state);
    schema_state_close(a->start);
    schema_state_close(a->work);
    free(a->token);
    free(a);
}

#define ENDED 2

/* VB_OK: the automaton accepts the bytes; VB_BAD_ARGUMENT: it refuses one. */
static int read_bytes(struct schema_state *state, const char *bytes, size_t size)
{
    int rc = 1;
    for (size_t i = 0; i < size && rc == 1; i++)
        rc = schema_byte(state, (unsigned char)bytes[i]);
    return rc == 1 ? VB_OK : rc ? rc : VB_BAD_ARGUMENT;
}

static int read_token(const struct vocabulary *v, struct schema_state *state, int32_t token)
{
    for (size_t i = 0; i < v->ends; i++)
        if (token == v->end[i])
            return ENDED;
    if (token < 0 || token >= v->size || !v->piece[token].size)
        return VB_BAD_ARGUMENT;
    return read_bytes(state, v->text + v->piece[token].at, v->piece[token].size);
}

/* The bytes of a token that come behind </think>. */
static int read_behind(const struct vocabulary *v, struct schema_state *state, int32_t token, size_t behind)
{
    return read_bytes(state, v->text + v->said[token].at + v->said[token].size - behind, behind);
}

static int keep(struct allowed *a, size_t count)
{
    struct allowed_state *k = &a->kept[count % KEPT];
    k->count = SIZE_MAX;
    int rc = schema_state_copy(k->state, a->work);
    if (!rc)
        k->count = count;
    return rc;
}

/* a->work becomes the state after these tokens of the value. ENDED: an end token is among them. */
static int follow(struct allowed *a, const int32_t *token, size_t count)
{
    size_t same = 0, at;
    int rc;
    while (same < count && same < a->count && token[same] == a->token[same])
        same++;
    a->count = same;
    for (at = same; at && same - at < KEPT && a->kept[at % KEPT].count != at;)
        at--;
    if (at && a->kept[at % KEPT].count != at)
        at = 0;
    rc = schema_state_copy(a->work, at ? a->kept[at % KEPT].state : a->start);
    for (; at < count && !rc; at++) {
        while (!rc && at >= a->room) {
            size_t room = a->room ? 2 * a->room : 256;
            int32_t *grown = realloc(a->token, room * sizeof *grown);
            rc = grown ? VB_OK : VB_NO_MEMORY;
            a->token = grown ? grown : a->token;
            a->room = grown ? room : a->room;
        }
        if (!rc)
            rc = a->thinks && !at ? read_behind(a->v, a->work, token[at], a->behind) : read_token(a->v, a->work, token[at]);
        if (!rc)
            rc = keep(a, at + 1);
        if (!rc) {
            a->token[at] = token[at];
            a->count = at + 1 > a->count ? at + 1 : a->count;
        }
    }
    return rc;
}

/* The mask inside of the reasoning. */
static int think(struct allowed *a, const int32_t *token, size_t count, unsigned char *mask)
{
    const struct vocabulary *v = a->v;
    size_t open = thinking_open_bytes(v, token, count);
    memset(mask, 1, (size_t)v->size);
    for (size_t i = 0; i < v->closings; i++) {
        long behind = thinking_behind(v, v->closing[i], open);
        int rc = behind > 0 ? schema_state_copy(a->work, a->start) : VB_OK;
        if (!rc && behind > 0)
            rc = read_behind(v, a->work, v->closing[i], (size_t)behind);
        if (rc && rc != VB_BAD_ARGUMENT)
            return rc;
        mask[v->closing[i]] = !rc;
    }
    for (size_t i = 0; i < v->ends; i++)
        mask[v->end[i]] = 0;
    return VB_OK;
}

int allowed_next(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    struct allowed *a = context;
    size_t from = a->from, at, behind;
    if (from > count)
        return VB_BAD_ARGUMENT;
    if (a->thinks) {
        if (!thinking_ends(a->v, tokens + from, count - from, &at, &behind))
            return think(a, tokens + from, count - from, mask);
        from += at;
        if (behind != a->behind)
            a->count = 0;
        a->behind = behind;
    }
    int rc = follow(a, tokens + from, count - from);
    if (rc != ENDED)
        return rc ? rc : allowed_mask(a->v, a->work, mask);
    memset(mask, 1, (size_t)a->v->size);
    return VB_OK;
}
