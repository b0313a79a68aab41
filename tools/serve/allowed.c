/* tools/serve/allowed.c -- masks: see allowed.h. */
#include "tools/serve/allowed.h"
#include "tools/serve/schema_internal.h"
#include "tools/serve/thinking.h"

#include <stdlib.h>
#include <string.h>

/* ---- one mask ---- */

/* What the walk has at one depth of the trie: threads [first, first + count), where the next ones go, and how many
 * frames there are. */
struct level {
    uint32_t first, count, end, frames;
    int is_one; /* the thread stands for all of `group` */
};

/* Threads that differ only in what follows the string in which they are. One of them reads the bytes of the string for
 * all. */
struct group {
    uint32_t first, count; /* what they are behind the quotation mark that ends the string */
};

static void allow(const struct vocabulary *v, int32_t token, unsigned char *mask)
{
    for (; token >= 0; token = v->same[token])
        mask[token] = 1;
}

/* Level `below` becomes what follows `byte` at `above`. 1: something does; 0: nothing; or an error. */
static int descend(struct walk *w, const struct level *above, struct level *below, unsigned char byte,
                   const struct group *group)
{
    w->threads = above->end;
    w->frames = above->frames;
    int rc = walk_step(w, above->first, above->first + above->count, byte);
    *below = (struct level){above->end, w->threads - above->end, w->threads, w->frames, above->is_one};
    if (!rc && below->is_one && below->count && w->thread[below->first].at == AT_END)
        *below = (struct level){group->first, group->count, above->end, above->frames, 0};
    return rc ? rc : below->count > 0;
}

/* The threads of level 0, along every branch of the trie. */
static int walk_trie(const struct vocabulary *v, const struct vocabulary_trie *trie, struct walk *w,
                     struct level *level, const struct group *group, unsigned char *mask)
{
    for (uint32_t i = 0; i < trie->count;) {
        const struct vocabulary_node *n = &trie->node[i];
        int rc = descend(w, &level[n->depth], &level[n->depth + 1], n->byte, group);
        if (rc < 0)
            return rc;
        if (rc)
            allow(v, n->token, mask);
        i = rc ? i + 1 : n->skip;
    }
    return VB_OK;
}

/* Where a thread is, which decides which tokens have to be read byte by byte. */
enum {
    ELSEWHERE = 1,
    IN_ONE = 2 /* a text that plain pieces continue */,
    IN_OTHER = 4 /* one that may be read as JSON */,
    IN_NAME = 8,
    IN_ANY = 14,
    IN_GROUP = 16
};

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
        memcpy(mask, v->is_plain, (size_t)v->size);
}

/* The tokens that a text allows whatever it contains so far. */
static void allow_texts(const struct vocabulary *v, const struct schema_state *state, unsigned char *mask)
{
    uint32_t one = 0, other = 0;
    int name = 0;
    for (uint32_t i = 0; i < state->w.threads; i++) {
        const struct thread *t = &state->w.thread[i];
        int place = place_of(state->w.schema, t);
        uint32_t left = place & (IN_ONE | IN_OTHER) ? characters_left(state->w.schema, t) : 0,
                 *most = place == IN_ONE ? &one : &other;
        *most = left > *most ? left : *most;
        name |= place == IN_NAME;
    }
    if (one >= v->most_characters) { /* all plain pieces */
        memcpy(mask, v->is_plain, (size_t)v->size);
        return;
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

/* Whether two strings accept the same pieces up to their ends, and may end. */
static int are_alike(const struct vocabulary *v, const struct schema *s, const struct thread *a, const struct thread *b)
{
    const struct schema_node *n = &s->node[a->node], *m = &s->node[b->node];
    if (a->at != AT_STRING || b->at != AT_STRING || a->count < n->least || b->count < m->least)
        return 0;
    uint32_t left = characters_left(s, a), other = characters_left(s, b);
    return a->avoided == b->avoided &&
           (left == other || (left >= v->longest_in_string && other >= v->longest_in_string));
}

/* Fills place [threads]: IN_GROUP for strings that are alike, if there are several. */
static void find_places(const struct vocabulary *v, const struct schema_state *state, int *place)
{
    const struct thread *t = state->w.thread, *first = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < state->w.threads; i++) {
        place[i] = place_of(state->w.schema, &t[i]);
        if (place[i] != IN_ONE || !are_alike(v, state->w.schema, first ? first : &t[i], &t[i]))
            continue;
        first = first ? first : &t[i];
        place[i] = IN_GROUP;
        count++;
    }
    if (count == 1)
        place[first - t] = IN_ONE;
}

/* What the threads of `state` at these places allow of the trie's tokens. */
static int walk_some(const struct vocabulary *v, const struct vocabulary_trie *trie, const struct schema_state *state,
                     const int *place, int places, struct walk *w, struct level *level, unsigned char *mask)
{
    struct group group = {0, 0};
    struct thread one = {.at = AT_END};
    int rc = VB_OK;
    w->threads = 0;
    w->frames = state->w.frames;
    for (uint32_t i = 0; i < state->w.threads; i++)
        if (place[i] & places)
            w->thread[w->threads++] = one = state->w.thread[i];
    level[0] = (struct level){0, w->threads, w->threads, w->frames, places == IN_GROUP};
    if (!w->threads)
        return VB_OK;
    if (places == IN_GROUP) {
        group.first = w->threads;
        rc = walk_step(w, 0, w->threads, '"');
        group.count = w->threads - group.first;
        one.top = -1;
        if (!rc && schema_grow(&w->thread, w->threads, &w->thread_room, sizeof one))
            rc = VB_NO_MEMORY;
        if (!rc)
            w->thread[w->threads] = one;
        level[0] = (struct level){w->threads, 1, w->threads + 1, w->frames, 1};
    }
    return rc ? rc : walk_trie(v, trie, w, level, &group, mask);
}

int allowed_mask(const struct vocabulary *v, const struct schema_state *state, unsigned char *mask)
{
    struct schema_state *copy = NULL;
    struct level *level = malloc((v->longest + 1) * sizeof *level);
    int place[SCHEMA_THREADS], rc = level ? schema_begin(&copy, state->w.schema) : VB_NO_MEMORY;
    const struct {
        const struct vocabulary_trie *trie;
        int places;
    } walks[] = {{&v->not_plain, IN_GROUP}, {&v->not_plain, IN_ANY}, {&v->scalar, IN_OTHER}, {&v->all, ELSEWHERE}};
    allow_texts(v, state, mask);
    find_places(v, state, place);
    if (!rc)
        rc = schema_state_copy(copy, state);
    for (size_t i = 0; !rc && i < sizeof walks / sizeof *walks; i++)
        rc = walk_some(v, walks[i].trie, state, place, walks[i].places, &copy->w, level, mask);
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
            rc = a->thinks && !at ? read_behind(a->v, a->work, token[at], a->behind)
                                  : read_token(a->v, a->work, token[at]);
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
