/* engine/text/added.c -- added tokens: strings that are looked for in the text before anything else.
 *
 * As in Hugging Face's AddedVocabulary the tokens with normalized = false are looked for first and the others in what
 * is left, each time the leftmost match and of several there the longest. What surprises: a match that is then not
 * taken (not a single word, or a special token that is to be text) is stepped over whole. */
#include "engine/text/tokenizer_internal.h"
#include "engine/base/json.h"
#include "numbers/numbers.h"

#include <string.h>

/* ---- opening ---- */

static int token_load(struct tokenizer_loading *l, size_t index, const json_t *entry, struct added_token *token,
                      const char **content)
{
    char where[48];
    snprintf(where, sizeof where, "added_tokens[%zu]", index);
    const json_t *id = get_member(entry, "id"), *text = get_member(entry, "content");
    char shown[JSON_SHOWN];
    if (!json_is_object(entry) || !json_is_number(id) || !json_is_string(text) || !json_string_length(text))
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is not an object with an id and a content", l->file, where);
    json_int_t n = json_integer_value(id);
    *content = json_string_value(text);
    if (!json_is_integer(id) || n < 0 || n >= MAX_TOKEN_ID)
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: added token \"%s\" has id %s, wanted 0 to %d", l->file,
                       token_show(*content).text, json_show(id, shown), MAX_TOKEN_ID - 1);
    static const char *const keys[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    int flag[5], rc;
    for (int k = 0; k < 5; k++)
        if ((rc = get_flag(l, entry, where, keys[k], k == 3, &flag[k])))
            return rc;
    *token = (struct added_token){(int32_t)n, (unsigned)json_string_length(text), flag[0], flag[1], flag[2],
                                  flag[3], flag[4]};
    return VB_OK;
}

/* Returns the node for `byte` below *first, making it if need be. */
static uint32_t child_for(struct added *d, uint32_t *first, unsigned char byte)
{
    for (uint32_t node = *first; node; node = d->nodes[node].sibling)
        if (d->nodes[node].byte == byte)
            return node;
    uint32_t node = d->n_nodes++;
    d->nodes[node].byte = byte;
    d->nodes[node].sibling = *first;
    return *first = node;
}

static int trie_add(struct added *d, size_t index, const char *content)
{
    const struct added_token *token = &d->tokens[index];
    unsigned last = token->size - 1;
    uint32_t *root = &d->root[token->normalized][(unsigned char)content[last]];
    uint32_t node = child_for(d, root, (unsigned char)content[last]);
    for (unsigned i = last; i-- > 0;)
        node = child_for(d, &d->nodes[node].child, (unsigned char)content[i]);
    if (d->nodes[node].token_plus_1)
        return 0;
    d->nodes[node].token_plus_1 = (uint32_t)index + 1;
    d->longest[token->normalized] = max_size(d->longest[token->normalized], token->size);
    return 1;
}

/* The child of a node, or of the root (0), for this byte; 0: none. */
static uint32_t child_of(const struct added *d, int normalized, uint32_t node, unsigned char byte, size_t *steps)
{
    ++*steps;
    if (!node)
        return d->root[normalized][byte];
    for (node = d->nodes[node].child; node && d->nodes[node].byte != byte; ++*steps)
        node = d->nodes[node].sibling;
    return node;
}

/* Where the automaton is after one more byte: with the longest string of the trie that the bytes read so far end
 * with. */
static uint32_t next_node(const struct added *d, int normalized, uint32_t node, unsigned char byte, size_t *steps)
{
    uint32_t next;
    while (!(next = child_of(d, normalized, node, byte, steps)) && node)
        node = d->nodes[node].shorter;
    return next;
}

/* Fills `shorter` of all nodes below one root, the short strings first. queue: room for all nodes. */
static void link_nodes(struct added *d, int normalized, uint32_t *queue)
{
    size_t begin = 0, end = 0, steps = 0;
    for (int byte = 0; byte < 256; byte++)
        if (d->root[normalized][byte])
            queue[end++] = d->root[normalized][byte];
    for (; begin < end; begin++) {
        uint32_t node = queue[begin], shorter = d->nodes[node].shorter;
        if (!d->nodes[node].token_plus_1)
            d->nodes[node].token_plus_1 = d->nodes[shorter].token_plus_1;
        for (uint32_t child = d->nodes[node].child; child; child = d->nodes[child].sibling) {
            d->nodes[child].shorter = next_node(d, normalized, shorter, d->nodes[child].byte, &steps);
            queue[end++] = child;
        }
    }
}

static int link_all(struct tokenizer_loading *l)
{
    struct added *d = &l->t->added;
    uint32_t *queue = vb_alloc(&l->t->memory.allocator, d->n_nodes, sizeof *queue);
    if (!queue)
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for %zu added tokens", l->file, d->n_tokens);
    link_nodes(d, 0, queue);
    link_nodes(d, 1, queue);
    vb_free(&l->t->memory.allocator, queue);
    return VB_OK;
}

int added_load(struct tokenizer_loading *l, const json_t *list)
{
    struct vb_tokenizer *t = l->t;
    struct added *d = &t->added;
    if (!list)
        return VB_OK;
    if (!json_is_array(list))
        return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: added_tokens is not an array", l->file);
    size_t n = json_array_size(list), bytes = 1; /* node 0 stays unused */
    for (size_t i = 0; i < n; i++)
        bytes += json_string_length(json_object_get(json_array_get(list, i), "content"));
    d->tokens = vb_alloc(&t->memory.allocator, n + 1, sizeof *d->tokens);
    d->nodes = vb_alloc(&t->memory.allocator, bytes, sizeof *d->nodes);
    if (!d->tokens || !d->nodes)
        return vb_fail(l->err, VB_NO_MEMORY, "%s: no memory for %zu added tokens", l->file, n);
    d->n_nodes = 1;
    for (size_t i = 0; i < n; i++) {
        const char *content = NULL;
        int rc = token_load(l, i, json_array_get(list, i), &d->tokens[i], &content);
        if (rc)
            return rc;
        struct added_token *token = &d->tokens[i];
        d->n_tokens++;
        if (!trie_add(d, i, content))
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: added token \"%s\" is there twice", l->file,
                           token_show(content).text);
        if (token->single_word && !d->word &&
            (rc = pattern_compile(l, "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]", 0, &d->word)))
            return rc;
    }
    return link_all(l);
}

void added_close(struct vb_tokenizer *t)
{
    pcre2_code_free(t->added.word);
    vb_free(&t->memory.allocator, t->added.tokens);
    vb_free(&t->memory.allocator, t->added.nodes);
}

/* ---- scanning ---- */

/* Bytes of a window. Beside them the longest token's are read, so that all of the text is read at most twice. */
static size_t window_size(const struct added *d, int normalized) { return max_size(d->longest[normalized], 4096); }

/* Fills encoding.begins for the window from s->search on. */
static int look(struct added_scan *s)
{
    const struct added *d = &s->e->t->added;
    int k = s->normalized;
    size_t room = window_size(d, k), end = min_size(s->size, s->search + room),
           read = min_size(s->size, end + d->longest[k] - 1);
    uint32_t node = 0, *begins = s->e->begins[k];
    if (!begins && !(begins = s->e->begins[k] = vb_alloc(tokenizer_allocator(s->e->t), room, sizeof *begins)))
        return vb_fail(s->e->err, VB_NO_MEMORY, "no memory to look for added tokens");
    s->window = s->search;
    s->window_end = end;
    for (size_t at = read; at-- > s->window;) {
        node = next_node(d, k, node, (unsigned char)s->text[at], &s->e->steps);
        if (at < end)
            begins[at - s->window] = d->nodes[node].token_plus_1;
    }
    return VB_OK;
}

/* Moves s->search to the next byte at which a token begins. *token: the longest of those; NULL: there is none. */
static int find(struct added_scan *s, const struct added_token **token)
{
    const struct added *d = &s->e->t->added;
    *token = NULL;
    if (!d->longest[s->normalized])
        s->search = s->size;
    for (; s->search < s->size; s->search++) {
        int rc = s->search < s->window_end ? VB_OK : look(s);
        if (rc)
            return rc;
        uint32_t found = s->e->begins[s->normalized][s->search - s->window];
        if (!found)
            continue;
        *token = &d->tokens[found - 1];
        return VB_OK;
    }
    return VB_OK;
}

/* The start of the character that ends before s. */
static const char *character_before(const char *s)
{
    do
        s--;
    while (((unsigned char)*s & 0xc0) == 0x80);
    return s;
}

/* 1, 0 or an error. */
static int is_word_character(struct encoding *e, const char *s)
{
    size_t size;
    utf8_at(s, &size);
    return match_at(e, e->t->added.word, s, size, 0);
}

/* Whether the token at [begin, end) stands alone: 1, 0 or an error. */
static int is_single_word(struct added_scan *s, size_t begin, size_t end)
{
    int joined = begin ? is_word_character(s->e, character_before(s->text + begin)) : 0;
    if (!joined && end < s->size)
        joined = is_word_character(s->e, s->text + end);
    return joined < 0 ? joined : !joined;
}

/* White space before a token with lstrip belongs to it, down to what has been handed out already. */
static size_t strip_left(const struct added_scan *s, size_t begin)
{
    while (begin > s->done) {
        const char *before = character_before(s->text + begin);
        size_t size;
        if (!is_white_space(utf8_at(before, &size)))
            break;
        begin = (size_t)(before - s->text);
    }
    return begin < s->done ? s->done : begin;
}

static size_t strip_right(struct added_scan *s, size_t end)
{
    size_t at = end, size;
    if (s->blank_from <= end && end < s->blank_to) /* a token in the white space that another one took */
        return s->blank_to;
    while (at < s->size && is_white_space(utf8_at(s->text + at, &size)))
        at += size;
    s->blank_from = end;
    return s->blank_to = at;
}

int added_next(struct added_scan *s, const char **begin, size_t *size, int32_t *id)
{
    const struct added_token *token;
    int rc;
    *id = -1;
    if (s->waiting) {
        *id = s->waiting->id;
        s->waiting = NULL;
        s->done = s->token_end;
        return 1;
    }
    while (!(rc = find(s, &token)) && token) {
        size_t from = s->search, to = from + token->size;
        s->search = to;
        if (token->special && !s->parse_special)
            continue;
        if (token->single_word) {
            rc = is_single_word(s, from, to);
            if (rc < 0)
                return rc;
            if (!rc)
                continue;
        }
        if (token->lstrip)
            from = strip_left(s, from);
        s->token_end = token->rstrip ? strip_right(s, to) : to;
        if (from > s->done) {
            *begin = s->text + s->done;
            *size = from - s->done;
            s->waiting = token;
            return 1;
        }
        *id = token->id;
        s->done = s->token_end;
        return 1;
    }
    if (rc)
        return rc;
    *begin = s->text + s->done;
    *size = s->done < s->size ? s->size - s->done : 0;
    s->done = s->size;
    return *size > 0;
}
