/* tools/serve/schema_build.c -- what is known of a schema once all of its nodes are there: sorted keys and constants,
 * lists of alternatives, heights. */
#include "tools/serve/schema_internal.h"

#include <stdlib.h>
#include <string.h>

#define MOST_STEPS (4u << 20) /* through alternatives of alternatives */
#define MOST_LITERALS (4u * SCHEMA_MEMBERS) /* with those of merged lists */

/* ---- the order of keys and constants ---- */

static int order_of(const char *a, size_t a_size, const char *b, size_t b_size)
{
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static int literal_order(const void *a, const void *b, void *text)
{
    const struct literal *x = a, *y = b;
    return order_of((const char *)text + x->text, x->size, (const char *)text + y->text, y->size);
}

void literals_sort(struct schema *s, struct schema_node *n)
{
    struct literal *list = s->literal + n->first;
    uint32_t kept = 0;
    if (!n->count)
        return;
    qsort_r(list, n->count, sizeof *list, literal_order, s->text);
    for (uint32_t i = 1; i < n->count; i++)
        if (literal_order(&list[kept], &list[i], s->text))
            list[++kept] = list[i];
    n->count = kept + 1;
}

uint32_t literal_next(const struct schema *s, const struct schema_node *n, uint32_t lo, uint32_t len,
                      unsigned char byte)
{
    const struct literal *list = s->literal + n->first;
    if (lo >= n->count)
        return NO_NAME;
    const char *prefix = s->text + list[lo].text;
    uint32_t hi = n->count;
    for (uint32_t from = lo; from < hi;) {
        lo = from + (hi - from) / 2;
        const char *text = s->text + list[lo].text;
        int order = memcmp(text, prefix, list[lo].size < len ? list[lo].size : len);
        order = order ? order : list[lo].size <= len ? -1 : (int)(unsigned char)text[len] - (int)byte;
        if (order < 0)
            from = lo + 1;
        else
            hi = lo;
    }
    const struct literal *found = list + hi;
    return hi < n->count && found->size > len && !memcmp(s->text + found->text, prefix, len) &&
                   (unsigned char)s->text[found->text + len] == byte
               ? hi
               : NO_NAME;
}

struct sorting {
    const struct schema *s;
    uint32_t first;
    int keys;
};

static int property_order(const void *a, const void *b, void *context)
{
    const struct sorting *c = context;
    const struct property *x = &c->s->property[c->first + *(const uint32_t *)a],
                          *y = &c->s->property[c->first + *(const uint32_t *)b];
    return c->keys ? order_of(c->s->text + x->key, x->key_size, c->s->text + y->key, y->key_size)
                   : order_of(c->s->text + x->name, x->name_size, c->s->text + y->name, y->name_size);
}

int properties_sort(struct schema *s, const struct schema_node *n, const unsigned char *required)
{
    uint32_t *number = malloc((n->count + !n->count) * sizeof *number), stop = n->count;
    if (!number)
        return VB_NO_MEMORY;
    struct property *p = s->property + n->first;
    for (int keys = 0; keys < 2; keys++) {
        struct sorting c = {s, n->first, keys};
        for (uint32_t i = 0; i < n->count; i++)
            number[i] = i;
        qsort_r(number, n->count, sizeof *number, property_order, &c);
        for (uint32_t i = 0; i < n->count; i++)
            *(keys ? &p[i].by_key : &p[i].by_name) = number[i];
    }
    for (uint32_t i = n->count; i--;)
        p[i].stop = stop = required[i] ? i : stop;
    free(number);
    return VB_OK;
}

/* ---- alternatives ---- */

struct flatten {
    struct schema *s;
    uint32_t *stamp, *stack; /* per node: the union that reached it last */
    uint32_t *first, *count; /* per node: the new list */
    uint32_t steps;
    const char *error;
};

/* All literals among the alternatives [first, ...) of `child` become one node. */
static int merge_literals(struct flatten *f, uint32_t first)
{
    struct schema *s = f->s;
    uint32_t kept = first, from = s->literals, n = 0, last = 0;
    for (uint32_t i = first; i < s->children; i++)
        n += s->node[s->child[i]].kind == NODE_LITERAL;
    if (n < 2)
        return VB_OK;
    for (uint32_t i = first; i < s->children; i++) {
        const struct schema_node *leaf = &s->node[s->child[i]];
        if (leaf->kind != NODE_LITERAL) {
            s->child[kept++] = s->child[i];
            continue;
        }
        last = s->child[i];
        for (uint32_t k = 0; k < leaf->count; k++) {
            if (s->literals >= MOST_LITERALS) {
                f->error = "too many constants in lists of alternatives";
                return VB_UNSUPPORTED;
            }
            if (schema_grow(&s->literal, s->literals, &s->literal_room, sizeof *s->literal))
                return VB_NO_MEMORY;
            s->literal[s->literals++] = s->literal[leaf->first + k];
        }
    }
    if (schema_grow(&s->node, s->nodes, &s->node_room, sizeof *s->node))
        return VB_NO_MEMORY;
    struct schema_node *merged = &s->node[s->nodes];
    *merged = s->node[last];
    merged->first = from;
    merged->count = s->literals - from;
    literals_sort(s, merged);
    s->child[kept++] = s->nodes++;
    s->children = kept;
    return VB_OK;
}

static int flatten_one(struct flatten *f, uint32_t node)
{
    struct schema *s = f->s;
    uint32_t n = 0, first = s->children;
    f->stack[n++] = node;
    f->stamp[node] = node;
    while (n) {
        uint32_t at = f->stack[--n];
        const struct schema_node *u = &s->node[at];
        for (uint32_t i = 0; i < u->count; i++) {
            uint32_t leaf = s->child[u->first + i];
            if (++f->steps > MOST_STEPS) {
                f->error = "too many alternatives of alternatives";
                return VB_UNSUPPORTED;
            }
            if (f->stamp[leaf] == node)
                continue;
            f->stamp[leaf] = node;
            if (s->node[leaf].kind == NODE_UNION) {
                f->stack[n++] = leaf;
            } else if (s->node[leaf].kind != NODE_NONE) {
                if (schema_grow(&s->child, s->children, &s->child_room, sizeof *s->child))
                    return VB_NO_MEMORY;
                s->child[s->children++] = leaf;
            }
        }
    }
    int rc = merge_literals(f, first);
    f->first[node] = first;
    f->count[node] = s->children - first;
    if (!rc && f->count[node] > SCHEMA_ALTERNATIVES) {
        f->error = "too many alternatives for one value";
        return VB_UNSUPPORTED;
    }
    return rc;
}

int schema_flatten(struct schema *s, const char **error)
{
    uint32_t nodes = s->nodes, *block = malloc(4 * (size_t)nodes * sizeof *block);
    int rc = VB_OK;
    if (!block)
        return VB_NO_MEMORY;
    struct flatten f = {s, block, block + nodes, block + 2 * (size_t)nodes, block + 3 * (size_t)nodes, 0, NULL};
    memset(f.stamp, 0xff, nodes * sizeof *f.stamp);
    for (uint32_t i = 0; i < nodes && !rc; i++)
        if (s->node[i].kind == NODE_UNION)
            rc = flatten_one(&f, i);
    for (uint32_t i = 0; i < nodes && !rc; i++)
        if (s->node[i].kind == NODE_UNION) {
            s->node[i].first = f.first[i];
            s->node[i].count = f.count[i];
        }
    free(block);
    *error = f.error;
    return rc;
}

/* ---- heights ---- */

static uint32_t height_of(const struct schema *s, const struct schema_node *n)
{
    uint32_t height = 0;
    if (n->kind == NODE_UNION) {
        height = SCHEMA_DEPTH + 1;
        for (uint32_t i = 0; i < n->count; i++) {
            uint32_t h = s->node[s->child[n->first + i]].height;
            height = h < height ? h : height;
        }
        return height;
    }
    if (n->kind == NODE_OBJECT)
        for (uint32_t i = n->count ? s->property[n->first].stop : 0; i < n->count;
             i = i + 1 < n->count ? s->property[n->first + i + 1].stop : n->count) {
            uint32_t h = s->node[s->property[n->first + i].child].height;
            height = h > height ? h : height;
        }
    if (n->kind == NODE_ARRAY)
        for (uint32_t i = 0; i < n->least && i <= n->count; i++) {
            uint32_t item = i < n->count ? s->child[n->first + i] : n->rest,
                     h = item == NO_NODE ? SCHEMA_DEPTH + 1 : s->node[item].height;
            height = h > height ? h : height;
        }
    if (n->kind == NODE_OBJECT || n->kind == NODE_ARRAY)
        height++;
    return height > SCHEMA_DEPTH || n->kind == NODE_NONE ? SCHEMA_DEPTH + 1 : height;
}

/* Heights begin as "none fits" and fall; a value of height h has its height after h + 1 rounds at the latest, because
 * alternatives are flat and the two kinds of nodes alternate. */
void schema_heights(struct schema *s)
{
    int changed = 1;
    for (uint32_t i = 0; i < s->nodes; i++)
        s->node[i].height = SCHEMA_DEPTH + 1;
    while (changed) {
        changed = 0;
        for (uint32_t i = 0; i < s->nodes; i++) {
            uint32_t h = height_of(s, &s->node[i]);
            changed |= h != s->node[i].height;
            s->node[i].height = h;
        }
    }
}

/* ---- oneOf ---- */

static uint32_t alternatives(const struct schema *s, const uint32_t *node, const uint32_t **list)
{
    const struct schema_node *n = &s->node[*node];
    *list = n->kind == NODE_UNION ? s->child + n->first : node;
    return n->kind == NODE_UNION ? n->count : 1;
}

/* Whether a constant, written as JSON, may be a value of kind `kind`. */
static int is_of(const char *text, enum schema_kind kind)
{
    return kind == NODE_STRING
               ? *text == '"'
               : (kind == NODE_NUMBER || kind == NODE_INTEGER) && (*text == '-' || (*text >= '0' && *text <= '9'));
}

static int literals_disjoint(const struct schema *s, const struct schema_node *a, const struct schema_node *b)
{
    for (uint32_t i = 0, k = 0; i < a->count && k < b->count;) {
        int order = literal_order(&s->literal[a->first + i], &s->literal[b->first + k], s->text);
        if (!order)
            return 0;
        i += order < 0;
        k += order > 0;
    }
    return 1;
}

static const struct property *property_named(const struct schema *s, const struct schema_node *n,
                                             const struct property *like)
{
    uint32_t lo = 0, hi = n->count;
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        const struct property *p = &s->property[n->first + s->property[n->first + middle].by_name];
        int order = order_of(s->text + p->name, p->name_size, s->text + like->name, like->name_size);
        if (!order)
            return p;
        lo = order < 0 ? middle + 1 : lo;
        hi = order < 0 ? hi : middle;
    }
    return NULL;
}

static int is_required(const struct schema *s, const struct schema_node *n, const struct property *p)
{
    return p->stop == (uint32_t)(p - s->property) - n->first;
}

static int only_literals(const struct schema *s, uint32_t node)
{
    const uint32_t *list;
    uint32_t n = alternatives(s, &node, &list);
    for (uint32_t i = 0; i < n; i++)
        if (s->node[list[i]].kind != NODE_LITERAL)
            return 0;
    return 1;
}

/* A property that both require tells them apart. */
static int objects_disjoint(const struct schema *s, const struct schema_node *a, const struct schema_node *b,
                            uint32_t *budget)
{
    for (uint32_t i = 0; i < a->count && *budget; i++) {
        const struct property *p = &s->property[a->first + i], *q;
        --*budget;
        if (!is_required(s, a, p))
            continue;
        q = property_named(s, b, p);
        if (!q && b->closed)
            return 1;
        if (q && is_required(s, b, q) && only_literals(s, p->child) && only_literals(s, q->child) &&
            schema_disjoint(s, p->child, q->child, budget))
            return 1;
    }
    return 0;
}

static int leaves_disjoint(const struct schema *s, const struct schema_node *a, const struct schema_node *b,
                           uint32_t *budget)
{
    if (a->inferred || b->inferred)
        return 0;
    if (a->kind == NODE_OBJECT && b->kind == NODE_OBJECT)
        return objects_disjoint(s, a, b, budget) || objects_disjoint(s, b, a, budget);
    if (a->kind == NODE_LITERAL && b->kind == NODE_LITERAL) {
        *budget -= *budget > a->count ? a->count : *budget;
        return literals_disjoint(s, a, b);
    }
    if (b->kind == NODE_LITERAL) {
        const struct schema_node *c = a;
        a = b;
        b = c;
    }
    if (a->kind == NODE_LITERAL) {
        for (uint32_t i = 0; i < a->count; i++)
            if (is_of(s->text + s->literal[a->first + i].text, b->kind))
                return 0;
        return 1;
    }
    int numbers = (a->kind == NODE_INTEGER || a->kind == NODE_NUMBER) &&
                  (b->kind == NODE_INTEGER || b->kind == NODE_NUMBER);
    return a->kind != b->kind && !numbers;
}

int schema_disjoint(const struct schema *s, uint32_t a, uint32_t b, uint32_t *budget)
{
    const uint32_t *x, *y;
    uint32_t n = alternatives(s, &a, &x), m = alternatives(s, &b, &y);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m; k++) {
            if (!*budget)
                return 0;
            --*budget;
            if (!leaves_disjoint(s, &s->node[x[i]], &s->node[y[k]], budget))
                return 0;
        }
    return 1;
}
