/* engine/text/bpe.c -- byte pair encoding: a word's bytes become tokens, and of all neighbouring pairs that the
 * merges name the one of lowest rank is joined, the leftmost first, until no pair is left.
 *
 * Pairs wait in a heap by (rank, position); a joined pair leaves its neighbours' entries behind, and those are known
 * by their ids when their turn comes. So a word of n bytes costs n log n, also when it is 64 KB of one letter. */
#include "engine/text/tokenizer_internal.h"
#include "engine/base/hash64.h"
#include "numbers/numbers.h"

#include <string.h>

/* The uppermost bits of a product with a secret odd number: whoever writes a file cannot choose pairs that meet in one
 * place (Dietzfelbinger and others, 1997). */
static struct merge *find_slot(const struct vb_tokenizer *t, uint64_t key)
{
    size_t i = (size_t)(key * t->merge_secret >> __builtin_clzll(t->merge_mask));
    while (t->merges[i].rank_plus_1 && t->merges[i].key != key)
        i = (i + 1) & t->merge_mask;
    return &t->merges[i];
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* ---- opening ---- */

/* The two parts of a merge, written "a b" or ["a", "b"]. */
static int merge_parts(struct tokenizer_loading *l, size_t index, const json_t *merge, const char *part[2],
                       size_t size[2])
{
    if (json_is_string(merge)) {
        const char *s = json_string_value(merge), *space = strchr(s, ' ');
        if (!space || strchr(space + 1, ' '))
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: merge %zu is \"%s\", wanted two parts", l->file, index,
                           token_show(s).text);
        part[0] = s, size[0] = (size_t)(space - s);
        part[1] = space + 1, size[1] = strlen(space + 1);
        return VB_OK;
    }
    if (!json_is_array(merge) || json_array_size(merge) != 2 || !json_is_string(json_array_get(merge, 0)) ||
        !json_is_string(json_array_get(merge, 1)))
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: merge %zu is neither \"a b\" nor [\"a\", \"b\"]", l->file,
                       index);
    for (int k = 0; k < 2; k++) {
        part[k] = json_string_value(json_array_get(merge, (size_t)k));
        size[k] = strlen(part[k]);
    }
    return VB_OK;
}

/* `scratch` has room for both parts and a 0 byte. */
static int merge_load(struct tokenizer_loading *l, size_t index, const char *part[2], const size_t size[2],
                      char *scratch)
{
    struct vb_tokenizer *t = l->t;
    int32_t id[3]; /* left, right, joined */
    for (int k = 0; k < 3; k++) {
        size_t n = 0;
        for (int j = k == 1; j <= (k > 0); j++) {
            memcpy(scratch + n, part[j], size[j]);
            n += size[j];
        }
        scratch[n] = 0;
        if ((id[k] = names_find(&l->names, scratch, n)) < 0)
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: merge %zu %s \"%s\", which the vocabulary does not have",
                           l->file, index, k < 2 ? "names" : "makes", token_show(scratch).text);
    }
    struct merge *m = find_slot(t, pair_key(id[0], id[1]));
    m->key = pair_key(id[0], id[1]);
    m->rank_plus_1 = (uint32_t)index + 1; /* a pair written twice has its last rank, as in Hugging Face's map */
    m->joined = id[2];
    return VB_OK;
}

int merges_load(struct tokenizer_loading *l, const json_t *merges)
{
    struct vb_tokenizer *t = l->t;
    if (!json_is_array(merges))
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: model.merges is not an array", l->file);
    size_t n = json_array_size(merges), slots = 16, longest = 0;
    while (slots < 2 * n)
        slots *= 2;
    t->merge_mask = slots - 1;
    t->merge_secret = names_secret() | 1;
    if (n > INT32_MAX || !(t->merges = vb_alloc(&t->memory.allocator, slots, sizeof *t->merges)))
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for %zu merges", l->file, n);
    const char *part[2];
    size_t size[2];
    int rc = VB_OK;
    for (size_t i = 0; !rc && i < n; i++)
        if (!(rc = merge_parts(l, i, json_array_get(merges, i), part, size)) && size[0] + size[1] > longest)
            longest = size[0] + size[1];
    char *scratch = rc ? NULL : vb_alloc(&t->memory.allocator, longest + 1, 1);
    if (!rc && !scratch)
        rc = vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for %zu merges", l->file, n);
    for (size_t i = 0; !rc && i < n; i++)
        if (!(rc = merge_parts(l, i, json_array_get(merges, i), part, size)))
            rc = merge_load(l, i, part, size, scratch);
    vb_free(&t->memory.allocator, scratch);
    return rc;
}

static int merges_are_in(const struct vb_tokenizer *t, const struct vb_tokenizer *other)
{
    for (size_t i = 0; i <= t->merge_mask; i++) {
        const struct merge *m = &t->merges[i], *o = find_slot(other, m->key);
        if (m->rank_plus_1 && (o->rank_plus_1 != m->rank_plus_1 || o->joined != m->joined))
            return 0;
    }
    return 1;
}

int merges_same(const struct vb_tokenizer *a, const struct vb_tokenizer *b)
{
    return merges_are_in(a, b) && merges_are_in(b, a);
}

uint64_t merges_hash(const struct vb_tokenizer *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i <= t->merge_mask; i++) {
        const struct merge *m = &t->merges[i];
        if (m->rank_plus_1)
            sum += hash64(m->key, (uint32_t[]){m->rank_plus_1, (uint32_t)m->joined}, 2 * sizeof(uint32_t));
    }
    return sum;
}

/* ---- encoding ---- */

static int goes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->at < b->at);
}

static void heap_push(struct candidate *heap, size_t n, struct candidate c)
{
    size_t i = n;
    for (; i && goes_before(&c, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

/* Takes the first of n candidates; n - 1 are left. */
static struct candidate heap_pop(struct candidate *heap, size_t n)
{
    struct candidate first = heap[0], c = heap[--n];
    size_t i = 0;
    for (size_t child = 1; child < n; i = child, child = 2 * i + 1) {
        if (child + 1 < n && goes_before(&heap[child + 1], &heap[child]))
            child++;
        if (!goes_before(&heap[child], &c))
            break;
        heap[i] = heap[child];
    }
    heap[i] = c;
    return first;
}

/* The symbol at `at` and its right neighbour wait for their turn, if a merge joins them. Returns the heap's new
 * size. */
static size_t consider(const struct vb_tokenizer *t, const struct symbol *symbols, int32_t at, struct candidate *heap,
                       size_t n)
{
    int32_t next = at < 0 ? -1 : symbols[at].next;
    if (next < 0)
        return n;
    int32_t left = symbols[at].id, right = symbols[next].id;
    const struct merge *m = find_slot(t, pair_key(left, right));
    if (m->rank_plus_1)
        heap_push(heap, n++, (struct candidate){m->rank_plus_1, at, left, right, m->joined});
    return n;
}

static int make_room(struct encoding *e, size_t size)
{
    if (size <= e->word_capacity)
        return VB_OK;
    const vb_allocator *a = &e->t->memory.allocator;
    size_t capacity = max_size(size, 1024);
    vb_free(a, e->symbols);
    vb_free(a, e->heap);
    e->word_capacity = 0;
    e->symbols = vb_alloc(a, capacity, sizeof *e->symbols);
    e->heap = vb_alloc(a, 2 * capacity, sizeof *e->heap); /* size - 1 pairs at first; a join takes one and adds two */
    if (!e->symbols || !e->heap)
        return vb_fail(e->err, VB_NO_MEMORY, "no memory for a word of %zu bytes", size);
    e->word_capacity = capacity;
    return VB_OK;
}

/* word: UTF-8 that the pre-tokenizer cut out, size >= 1. Appends its tokens to e->ids. */
int bpe_encode(struct encoding *e, const char *word, size_t size)
{
    const struct vb_tokenizer *t = e->t;
    int32_t whole = t->ignore_merges ? names_find(&t->words, word, size) : -1;
    int rc = VB_OK;
    if (whole >= 0)
        return encoding_push(e, whole);
    if ((rc = make_room(e, size)))
        return rc;
    struct symbol *symbols = e->symbols;
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)word[i];
        if (t->byte_id[byte] < 0)
            return vb_fail(e->err, VB_UNSUPPORTED, "the vocabulary has no token for byte 0x%02X of the text", byte);
        symbols[i] = (struct symbol){t->byte_id[byte], (int32_t)i - 1, i + 1 < size ? (int32_t)i + 1 : -1};
    }
    size_t waiting = 0;
    for (size_t i = 0; i + 1 < size; i++)
        waiting = consider(t, symbols, (int32_t)i, e->heap, waiting);
    while (waiting) {
        struct candidate c = heap_pop(e->heap, waiting--);
        struct symbol *s = &symbols[c.at];
        if (s->id != c.left || s->next < 0 || symbols[s->next].id != c.right)
            continue; /* one of the two was joined with its other neighbour in the meantime */
        struct symbol *gone = &symbols[s->next];
        s->id = c.joined;
        s->next = gone->next;
        gone->id = -1;
        if (s->next >= 0)
            symbols[s->next].prev = c.at;
        waiting = consider(t, symbols, s->prev, e->heap, waiting);
        waiting = consider(t, symbols, c.at, e->heap, waiting);
    }
    for (int32_t i = 0; !rc && i >= 0; i = symbols[i].next)
        rc = encoding_push(e, symbols[i].id);
    return rc;
}
