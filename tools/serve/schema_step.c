/* tools/serve/schema_step.c -- one byte after the other: see schema_internal.h. */
#include "tools/serve/schema_internal.h"

#include <stdlib.h>
#include <string.h>

int schema_grow(void *array, uint32_t count, uint32_t *room, size_t size)
{
    void *old, *grown;
    if (count < *room)
        return VB_OK;
    uint32_t more = *room ? 2 * *room : 8;
    memcpy(&old, array, sizeof old);
    grown = realloc(old, more * size);
    if (!grown)
        return VB_NO_MEMORY;
    memcpy(array, &grown, sizeof grown);
    *room = more;
    return VB_OK;
}

/* The threads that one step has made lie in [from, w->threads). */
struct step {
    struct walk *w;
    uint32_t from;
    int code; /* of the first failure */
};

static void emit(struct step *s, const struct thread *t)
{
    struct walk *w = s->w;
    if (w->threads - s->from >= SCHEMA_THREADS)
        s->code = VB_UNSUPPORTED;
    else if (schema_grow(&w->thread, w->threads, &w->thread_room, sizeof *w->thread))
        s->code = VB_NO_MEMORY;
    else
        w->thread[w->threads++] = *t;
}

/* Makes *t a thread at the child number `next` of a sequence. Behind the last child follows what follows the sequence.
 * Returns 0 if an alternative is there already, or after an error. */
static int enter_part(struct step *s, uint32_t sequence, uint32_t next, int32_t parent, uint32_t depth,
                      struct thread *t)
{
    struct walk *w = s->w;
    const struct schema_node *n = &w->schema->node[sequence];
    struct frame f = {parent, sequence, next + 1, depth};
    *t = (struct thread){.top = parent, .node = w->schema->child[n->first + next], .at = AT_VALUE, .count = NO_LIMIT};
    if (next + 1 == n->count)
        return 1;
    for (uint32_t i = s->from; i < w->threads; i++)
        if (w->thread[i].at == AT_VALUE && w->thread[i].node == t->node && w->thread[i].top >= 0 &&
            !memcmp(&w->frame[w->thread[i].top], &f, sizeof f))
            return 0;
    if (schema_grow(&w->frame, w->frames, &w->frame_room, sizeof *w->frame)) {
        s->code = VB_NO_MEMORY;
        return 0;
    }
    w->frame[w->frames] = f;
    t->top = (int32_t)w->frames++;
    return 1;
}

/* Alternatives that differed in a value that ended here become one. Nowhere else can two threads become equal, because
 * all of them have read the same tokens. Returns 0 if the thread is there already. */
static int emit_once(struct step *s, const struct thread *t)
{
    for (uint32_t i = s->from; i < s->w->threads; i++)
        if (!memcmp(&s->w->thread[i], t, sizeof *t))
            return 0;
    emit(s, t);
    return 1;
}

static void begin(struct step *s, const struct thread *t);
static void begin_pair(struct step *s, int32_t top, uint32_t node, uint32_t next);

/* A value is whole: the thread goes on after it. */
static void finish(struct step *s, int32_t top)
{
    struct walk *w = s->w;
    struct thread t = {.top = -1, .at = AT_END};
    if (top >= 0 && w->schema->node[w->frame[top].node].kind == NODE_SEQUENCE) {
        const struct frame f = w->frame[top];
        if (enter_part(s, f.node, f.next, f.parent, f.depth, &t))
            begin(s, &t);
        return;
    } else if (top >= 0 && w->schema->node[w->frame[top].node].kind == NODE_PAIRS) {
        const struct frame f = w->frame[top];
        begin_pair(s, f.parent, f.node, f.next);
        return;
    } else if (top >= 0) {
        const struct frame *f = &w->frame[top];
        int object = w->schema->node[f->node].kind == NODE_OBJECT;
        t = (struct thread){.top = f->parent, .node = f->node, .next = f->next, .at = object ? AT_MEMBER : AT_ITEM};
    }
    emit_once(s, &t);
}

static uint32_t depth_of(const struct walk *w, int32_t top) { return top < 0 ? 0 : w->frame[top].depth; }

/* Whether a value of this node may stand inside so many objects and arrays. */
static int fits(const struct schema *s, uint32_t node, uint32_t depth)
{
    return node != NO_NODE && s->node[node].height + depth <= SCHEMA_DEPTH;
}

static void blank(struct step *s, struct thread *t, uint32_t depth)
{
    if (t->count < SCHEMA_BLANKS + SCHEMA_INDENT * depth) {
        t->count++;
        emit(s, t);
    }
}

/* A value of `node` begins next, inside the object or array in which t is, which goes on with `next` after it. */
static int enter(struct step *s, const struct thread *t, uint32_t node, uint32_t next, struct thread *value)
{
    struct walk *w = s->w;
    if (schema_grow(&w->frame, w->frames, &w->frame_room, sizeof *w->frame)) {
        s->code = VB_NO_MEMORY;
        return 0;
    }
    w->frame[w->frames] = (struct frame){t->top, t->node, next, depth_of(w, t->top) + 1};
    *value = (struct thread){.top = (int32_t)w->frames++, .node = node, .at = AT_VALUE};
    return 1;
}

/* ---- strings ---- */

static void string_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema_node *n = &s->w->schema->node[t->node];
    int what = schema_string_byte(s->w->schema, t, c, n->least, n->most);
    if (what == CLOSED) {
        finish(s, t->top);
    } else if (what == GOES_ON) {
        t->code = t->sub == IN_TEXT ? 0 : t->code;
        emit(s, t);
    }
}

/* ---- numbers, and values that enum and const list ---- */

static int digit_counted(struct thread *t, unsigned char c, uint16_t sub, uint32_t most)
{
    int more = c >= '0' && c <= '9' && t->count < most;
    t->count += (uint32_t)more;
    return go(t, more, sub) == GOES_ON;
}

/* Where a fraction or an exponent may begin. */
static int begins_part(struct thread *t, unsigned char c, int fraction)
{
    t->count = 0;
    if (c == '.' && fraction)
        return go(t, 1, AFTER_POINT);
    return go(t, c == 'e' || c == 'E', AFTER_E);
}

static int number_byte(struct thread *t, unsigned char c, int whole)
{
    int digit = c >= '0' && c <= '9';
    switch (t->sub) {
    case AFTER_MINUS:
        t->count = 1;
        return go(t, digit, c == '0' ? AFTER_ZERO : IN_DIGITS);
    case AFTER_ZERO: return !whole && begins_part(t, c, 1);
    case IN_DIGITS: return digit ? digit_counted(t, c, IN_DIGITS, SCHEMA_DIGITS) : !whole && begins_part(t, c, 1);
    case AFTER_POINT: return digit_counted(t, c, IN_FRACTION, SCHEMA_FRACTION);
    case IN_FRACTION: return digit ? digit_counted(t, c, IN_FRACTION, SCHEMA_FRACTION) : begins_part(t, c, 0);
    case AFTER_E:
        if (c == '+' || c == '-')
            return go(t, 1, AFTER_SIGN);
        return digit_counted(t, c, IN_EXPONENT, SCHEMA_EXPONENT);
    default: return digit_counted(t, c, IN_EXPONENT, SCHEMA_EXPONENT);
    }
}

/* Whether a number ends shows only behind it: a thread inside the number goes on beside the one after it. */
static void number_went_on(struct step *s, const struct thread *t)
{
    emit(s, t);
    if (t->sub == AFTER_ZERO || t->sub == IN_DIGITS || t->sub == IN_FRACTION || t->sub == IN_EXPONENT)
        finish(s, t->top);
}

static void number_step(struct step *s, struct thread *t, unsigned char c)
{
    if (number_byte(t, c, s->w->schema->node[t->node].kind == NODE_INTEGER))
        number_went_on(s, t);
}

static void literal_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    uint32_t lo = literal_next(schema, n, t->lo, t->len, c);
    if (lo == NO_NAME)
        return;
    t->lo = lo;
    t->len++;
    /* the shortest of those that begin alike is the first */
    const struct literal *first = &schema->literal[n->first + lo], *second = first + 1;
    int whole = first->size == t->len;
    int more = !whole || (lo + 1 < n->count && second->size > t->len &&
                          !memcmp(schema->text + first->text, schema->text + second->text, t->len));
    if (more)
        emit(s, t);
    if (whole)
        finish(s, t->top);
}

/* ---- a value begins ---- */

static void value_step(struct step *s, struct thread *t, unsigned char c);

static void leaf_begins(struct step *s, int32_t top, uint32_t node, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    struct thread t = {.top = top, .node = node};
    if (!fits(schema, node, depth_of(s->w, top)))
        return;
    switch (schema->node[node].kind) {
    case NODE_STRING:
        t.at = AT_STRING;
        if (c == '"')
            emit(s, &t);
        return;
    case NODE_INTEGER:
    case NODE_NUMBER:
        t.at = AT_NUMBER;
        t.count = 1;
        t.sub = c == '-' ? AFTER_MINUS : c == '0' ? AFTER_ZERO : IN_DIGITS;
        if (c == '-' || (c >= '0' && c <= '9'))
            number_went_on(s, &t);
        return;
    case NODE_LITERAL:
        t.at = AT_LITERAL;
        literal_step(s, &t, c);
        return;
    case NODE_OBJECT:
    case NODE_ARRAY:
        t.at = c == '{' ? AT_OBJECT : AT_ARRAY;
        if (c == (schema->node[node].kind == NODE_OBJECT ? '{' : '['))
            emit(s, &t);
        return;
    case NODE_SEQUENCE:
        if (enter_part(s, node, 0, top, depth_of(s->w, top), &t))
            value_step(s, &t, c);
        return;
    default:
        return;
    }
}

static void value_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    if (is_blank(c) && t->count != NO_LIMIT)
        blank(s, t, depth_of(s->w, t->top));
    else if (n->kind != NODE_UNION)
        leaf_begins(s, t->top, t->node, c);
    else
        for (uint32_t i = 0; i < n->count && !s->code; i++)
            leaf_begins(s, t->top, schema->child[n->first + i], c);
}

/* ---- objects ---- */

/* The last property that may follow: a required one may not be left out. */
static uint32_t last_property(const struct schema *s, const struct schema_node *n, uint32_t next)
{
    return next < n->count ? s->property[n->first + next].stop : n->count;
}

static int may_follow(const struct schema *s, const struct schema_node *n, uint32_t number, uint32_t next,
                      uint32_t depth)
{
    return number >= next && number <= last_property(s, n, next) &&
           fits(s, s->property[n->first + number].child, depth);
}

static int key_may_follow(const struct schema *s, const struct schema_node *n, uint32_t next, uint32_t depth)
{
    uint32_t last = last_property(s, n, next);
    if (fits(s, n->rest, depth) || last < n->count)
        return 1;
    for (uint32_t i = next; i < n->count; i++)
        if (fits(s, s->property[n->first + i].child, depth))
            return 1;
    return 0;
}

static void object_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    uint32_t depth = depth_of(s->w, t->top) + 1;
    if (is_blank(c)) {
        blank(s, t, depth);
    } else if (c == '}' && t->at != AT_KEY) {
        if (last_property(schema, n, t->next) == n->count)
            finish(s, t->top);
    } else if (c == (t->at == AT_MEMBER ? ',' : '"') && key_may_follow(schema, n, t->next, depth)) {
        t->count = 0;
        t->lo = n->count || t->at == AT_MEMBER ? 0 : NO_NAME;
        t->at = t->at == AT_MEMBER ? AT_KEY : fits(schema, n->rest, depth) ? AT_OPEN : AT_CLOSED;
        emit(s, t);
    }
}

/* How number i in the order of keys (or of names) compares with the first `len` bytes of `prefix` and then c. */
static int key_compare(const struct schema *s, const struct schema_node *n, uint32_t i, int keys, const char *prefix,
                       uint32_t len, unsigned char c)
{
    const struct property *at = &s->property[n->first + i],
                          *p = &s->property[n->first + (keys ? at->by_key : at->by_name)];
    const char *text = s->text + (keys ? p->key : p->name);
    uint32_t size = keys ? p->key_size : p->name_size;
    int order = memcmp(text, prefix, size < len ? size : len);
    return order ? order : size <= len ? -1 : (int)(unsigned char)text[len] - (int)c;
}

/* The first from lo on that begins with the first `len` bytes of number lo and then c. */
static uint32_t key_next(const struct schema *s, const struct schema_node *n, uint32_t lo, uint32_t len, int keys,
                         unsigned char c)
{
    const struct property *at = &s->property[n->first + lo],
                          *p = &s->property[n->first + (keys ? at->by_key : at->by_name)];
    const char *prefix = s->text + (keys ? p->key : p->name);
    uint32_t hi = n->count;
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (key_compare(s, n, middle, keys, prefix, len, c) < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < n->count && !key_compare(s, n, lo, keys, prefix, len, c) ? lo : NO_NAME;
}

/* The key of property `number` is whole. */
static void end_key(struct step *s, struct thread *t, uint32_t number)
{
    const struct schema_node *n = &s->w->schema->node[t->node];
    struct thread value;
    if (n->kind == NODE_PAIRS) {
        if (number + 1 == n->count)
            finish(s, t->top);
        else if (enter(s, t, s->w->schema->property[n->first + number].child, number + 1, &value))
            begin(s, &value);
        return;
    }
    t->at = AT_COLON;
    t->lo = number;
    t->len = 0;
    emit(s, t);
}

static void closed_key_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    if (t->at == AT_PAIR && c == '\n' && !t->len && !t->count) { /* a line break, as some templates write it */
        t->count = 1;
        emit(s, t);
        return;
    }
    uint32_t depth = depth_of(s->w, t->top) + 1, lo = key_next(schema, n, t->lo, t->len, 1, c);
    if (lo == NO_NAME)
        return;
    const char *prefix = schema->text + schema->property[n->first + schema->property[n->first + lo].by_key].key;
    for (; lo < n->count; lo++) {
        uint32_t number = schema->property[n->first + lo].by_key;
        if (key_compare(schema, n, lo, 1, prefix, t->len, c))
            return;
        if (!may_follow(schema, n, number, t->next, depth))
            continue;
        t->lo = lo;
        t->len++;
        if (t->len == schema->property[n->first + number].key_size)
            end_key(s, t, number);
        else
            emit(s, t);
        return;
    }
}

static void name_goes_on(const struct schema *s, struct thread *t, unsigned char byte)
{
    if (t->lo != NO_NAME)
        t->lo = key_next(s, &s->node[t->node], t->lo, t->len, 0, byte);
    t->len = t->lo == NO_NAME ? 0 : t->len + 1;
}

static void name_goes_on_with(const struct schema *s, struct thread *t, uint32_t c)
{
    if (c >= 0x10000)
        name_goes_on(s, t, (unsigned char)(0xf0 | c >> 18));
    else if (c >= 0x800)
        name_goes_on(s, t, (unsigned char)(0xe0 | c >> 12));
    else
        name_goes_on(s, t, (unsigned char)(c >= 0x80 ? 0xc0 | c >> 6 : c));
    if (c >= 0x10000)
        name_goes_on(s, t, (unsigned char)(0x80 | (c >> 12 & 63)));
    if (c >= 0x800)
        name_goes_on(s, t, (unsigned char)(0x80 | (c >> 6 & 63)));
    if (c >= 0x80)
        name_goes_on(s, t, (unsigned char)(0x80 | (c & 63)));
}

/* What this byte of a string, read when t was at `was`, adds to the string that it means. */
static void name_step(const struct schema *s, struct thread *t, uint16_t was, unsigned char c)
{
    static const char escapes[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    if (was == IN_ESCAPE && c != 'u')
        name_goes_on(s, t, (unsigned char)means[strchr(escapes, c) - escapes]);
    else if (was >= IN_TAIL1 || (was == IN_TEXT && t->sub != IN_ESCAPE))
        name_goes_on(s, t, c);
    else if (was == IN_HEX4 && t->sub == IN_TEXT)
        name_goes_on_with(s, t, t->code & 0xffff);
    else if (was == IN_LOW4)
        name_goes_on_with(s, t, 0x10000 + ((t->code >> 16 & 0x3ff) << 10) + (t->code & 0x3ff));
    if (t->sub == IN_TEXT)
        t->code = 0;
}

static void open_key_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    uint16_t was = t->sub;
    int what = schema_string_byte(schema, t, c, 0, NO_LIMIT);
    if (what == GOES_ON) {
        name_step(schema, t, was, c);
        emit(s, t);
    } else if (what == CLOSED) {
        uint32_t number = t->lo == NO_NAME ? NO_NAME : schema->property[n->first + t->lo].by_name;
        if (number != NO_NAME && schema->property[n->first + number].name_size != t->len)
            number = NO_NAME;
        if (number != NO_NAME && !may_follow(schema, n, number, t->next, depth_of(s->w, t->top) + 1))
            return;
        t->at = AT_COLON;
        t->lo = number;
        t->len = 0;
        emit(s, t);
    }
}

static void colon_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    struct thread value;
    if (is_blank(c)) {
        blank(s, t, depth_of(s->w, t->top) + 1);
    } else if (c == ':') {
        int named = t->lo != NO_NAME;
        if (enter(s, t, named ? schema->property[n->first + t->lo].child : n->rest, named ? t->lo + 1 : t->next,
                  &value))
            emit(s, &value);
    }
}

/* ---- raw texts, and pairs of keys and values ---- */

/* What *t begins with is known before its first byte is read: masks treat the bytes of texts alike. */
static void begin(struct step *s, const struct thread *t)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    struct thread one = *t;
    if (n->kind == NODE_PAIRS) {
        begin_pair(s, t->top, t->node, 0);
    } else if (n->kind == NODE_SEQUENCE && !n->count) {
        finish(s, t->top);
    } else if (n->kind == NODE_SEQUENCE) {
        if (enter_part(s, t->node, 0, t->top, depth_of(s->w, t->top), &one))
            begin(s, &one);
    } else if (n->kind == NODE_UNION && n->spreads) {
        for (uint32_t i = 0; i < n->count && !s->code; i++) {
            one.node = schema->child[n->first + i];
            begin(s, &one);
        }
    } else {
        one.at = n->kind == NODE_RAW ? AT_RAW : n->kind == NODE_NAME ? AT_NAME : AT_VALUE;
        one.count = one.at == AT_VALUE ? NO_LIMIT : 0;
        emit_once(s, &one);
    }
}

/* A pair may follow, or what follows the pairs. */
static void begin_pair(struct step *s, int32_t top, uint32_t node, uint32_t next)
{
    struct walk *w = s->w;
    const struct thread t = {.top = top, .node = node, .next = next, .at = AT_PAIR};
    struct thread value;
    uint32_t rest = w->schema->node[node].rest;
    if (emit_once(s, &t) && fits(w->schema, rest, depth_of(w, top) + 1) && enter(s, &t, rest, next, &value))
        begin(s, &value);
}

static void raw_step(struct step *s, struct thread *t, unsigned char c)
{
    int what = schema_raw_byte(s->w->schema, t, c);
    if (what != REFUSED)
        emit(s, t);
    if (what == CLOSED)
        finish(s, t->top);
}

/* A key that is none of `properties`, without white space and <. */
static void name_in_pair_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    if (c <= ' ' || c == '<' || !schema_raw_byte(schema, t, c))
        return;
    name_goes_on(schema, t, c);
    emit(s, t);
    const struct schema_node *n = &schema->node[t->node];
    if (t->sub == IN_TEXT &&
        (t->lo == NO_NAME ||
         schema->property[n->first + schema->property[n->first + t->lo].by_name].name_size != t->len))
        finish(s, t->top);
}

/* ---- arrays ---- */

static void array_step(struct step *s, struct thread *t, unsigned char c)
{
    const struct schema *schema = s->w->schema;
    const struct schema_node *n = &schema->node[t->node];
    uint32_t depth = depth_of(s->w, t->top) + 1,
             item = t->next < n->count ? schema->child[n->first + t->next] : n->rest;
    struct thread value;
    if (is_blank(c)) {
        blank(s, t, depth);
        return;
    }
    if (c == ']') {
        if (t->next >= n->least)
            finish(s, t->top);
        return;
    }
    if (t->next >= n->most || !fits(schema, item, depth) || (t->at == AT_ITEM && c != ','))
        return;
    uint32_t counted = n->least > n->count ? n->least : n->count;
    int counts = n->most != NO_LIMIT || t->next < counted;
    if (!enter(s, t, item, t->next + (uint32_t)counts, &value))
        return;
    if (t->at == AT_ITEM)
        emit(s, &value);
    else
        value_step(s, &value, c);
}

/* ---- a set of threads ---- */

int walk_step(struct walk *w, uint32_t from, uint32_t to, unsigned char byte)
{
    struct step s = {w, w->threads, VB_OK};
    for (uint32_t i = from; i < to && !s.code; i++) {
        struct thread t = w->thread[i]; /* a copy: the array moves as it grows */
        switch (t.at) {
        case AT_VALUE: value_step(&s, &t, byte); break;
        case AT_STRING: string_step(&s, &t, byte); break;
        case AT_NUMBER: number_step(&s, &t, byte); break;
        case AT_LITERAL: literal_step(&s, &t, byte); break;
        case AT_OBJECT:
        case AT_KEY:
        case AT_MEMBER: object_step(&s, &t, byte); break;
        case AT_PAIR:
        case AT_CLOSED: closed_key_step(&s, &t, byte); break;
        case AT_RAW: raw_step(&s, &t, byte); break;
        case AT_NAME: name_in_pair_step(&s, &t, byte); break;
        case AT_OPEN: open_key_step(&s, &t, byte); break;
        case AT_COLON: colon_step(&s, &t, byte); break;
        case AT_ARRAY:
        case AT_ITEM: array_step(&s, &t, byte); break;
        default: break;
        }
    }
    return s.code;
}
