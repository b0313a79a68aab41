/* tools/serve/vocabulary.c -- sorts the pieces of a vocabulary into tries: see vocabulary.h. */
#include "tools/serve/schema_internal.h"
#include "tools/serve/thinking.h"

#include <stdlib.h>
#include <string.h>

/* ---- tries ---- */

static int piece_order(const void *a, const void *b, void *context)
{
    const struct vocabulary *v = context;
    const struct vocabulary_bytes *x = &v->piece[*(const int32_t *)a], *y = &v->piece[*(const int32_t *)b];
    int order = memcmp(v->text + x->at, v->text + y->at, x->size < y->size ? x->size : y->size);
    order = order ? order : (x->size > y->size) - (x->size < y->size);
    return order ? order : (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

/* token [n], sorted. `open` [longest]: the nodes above the one that is added. */
static int make_trie(struct vocabulary *v, struct vocabulary_trie *trie, const int32_t *token, uint32_t n,
                     uint32_t *open)
{
    const struct vocabulary_bytes *before = NULL;
    size_t depth = 0; /* of `open` */
    for (uint32_t i = 0; i < n; i++) {
        const struct vocabulary_bytes *p = &v->piece[token[i]];
        size_t same = 0;
        while (before && same < before->size && same < p->size && v->text[before->at + same] == v->text[p->at + same])
            same++;
        for (; depth > same; depth--)
            trie->node[open[depth - 1]].skip = trie->count;
        for (; depth < p->size; depth++) {
            if (schema_grow(&trie->node, trie->count, &trie->room, sizeof *trie->node))
                return VB_NO_MEMORY;
            trie->node[trie->count] = (struct vocabulary_node){0, -1, (uint16_t)depth,
                                                               (unsigned char)v->text[p->at + depth]};
            open[depth] = trie->count++;
        }
        v->same[token[i]] = trie->node[open[p->size - 1]].token;
        trie->node[open[p->size - 1]].token = token[i];
        before = p;
    }
    for (; depth; depth--)
        trie->node[open[depth - 1]].skip = trie->count;
    return VB_OK;
}

static int make_tries(struct vocabulary *v)
{
    int32_t *token = malloc((size_t)(v->size + !v->size) * sizeof *token),
            *some = malloc((size_t)(v->size + !v->size) * sizeof *some);
    uint32_t *open = malloc((v->longest + 1) * sizeof *open), n = 0, not_plain = 0, scalar = 0;
    int rc = token && some && open ? VB_OK : VB_NO_MEMORY;
    for (int32_t t = 0; t < v->size && !rc; t++)
        if (v->piece[t].size)
            token[n++] = t;
    if (!rc && n) {
        qsort_r(token, n, sizeof *token, piece_order, v);
        rc = make_trie(v, &v->all, token, n, open);
    }
    for (uint32_t i = 0; i < n && !rc; i++)
        if (!v->is_plain[token[i]])
            some[not_plain++] = token[i];
    if (!rc) /* of tokens with the same bytes all are plain or none: `same` becomes what it was */
        rc = make_trie(v, &v->not_plain, some, not_plain, open);
    for (uint32_t i = 0; i < n && !rc; i++)
        if (v->is_scalar[token[i]])
            some[scalar++] = token[i];
    if (!rc)
        rc = make_trie(v, &v->scalar, some, scalar, open);
    free(token);
    free(some);
    free(open);
    return rc;
}

/* ---- plain pieces ---- */

/* The number of characters of a piece that may stand in every text as it is; 0: it may not. */
static uint32_t plain_characters(const char *text, size_t size)
{
    uint32_t n = 0;
    if (vb_utf8_valid(text, size) != size)
        return 0;
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)text[i] < 0x20 || (text[i] && strchr("\"\\<>", text[i])))
            return 0;
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    }
    return n;
}

/* How many bytes of a piece a string may have. No string has a control character: one can only stand behind the end of
 * the string. */
static uint32_t bytes_in_string(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && (unsigned char)text[n] >= 0x20)
        n++;
    return n == size || memchr(text, '"', n) ? (uint32_t)n : 0;
}

/* Whether a plain piece may be read as JSON, if bytes come before and behind it. */
static int may_be_json(const char *text, size_t size)
{
    size_t n = 0, blanks = 0;
    while (blanks < size && text[blanks] == ' ')
        blanks++;
    while (n < size && text[n] && strchr("0123456789+-.eEtrufalsn ", text[n]))
        n++;
    return n == size || text[blanks] == '[' || text[blanks] == '{';
}

static int list_plain(struct vocabulary *v)
{
    for (int32_t t = 0; t < v->size; t++) {
        const char *text = v->text + v->piece[t].at;
        uint32_t n = plain_characters(text, v->piece[t].size), bytes = n ? 0 : bytes_in_string(text, v->piece[t].size);
        v->is_plain[t] = n > 0;
        v->longest_in_string = bytes > v->longest_in_string ? bytes : v->longest_in_string;
        v->is_name[t] = n > 0 && !memchr(text, ' ', v->piece[t].size);
        v->is_scalar[t] = n > 0 && may_be_json(text, v->piece[t].size);
        v->most_characters = n > v->most_characters ? n : v->most_characters;
    }
    v->plain_up_to = calloc(v->most_characters + 2, sizeof *v->plain_up_to);
    if (!v->plain_up_to)
        return VB_NO_MEMORY;
    uint32_t *place = v->plain_up_to;
    for (int32_t t = 0; t < v->size; t++) /* how many have n characters, at n + 1 */
        if (v->is_plain[t])
            place[plain_characters(v->text + v->piece[t].at, v->piece[t].size) + 1]++;
    for (uint32_t n = 1; n <= v->most_characters + 1; n++) /* how many have fewer than n: where those with n begin */
        place[n] += place[n - 1];
    for (int32_t t = 0; t < v->size; t++) /* and after this, at n, where they end */
        if (v->is_plain[t])
            v->plain[place[plain_characters(v->text + v->piece[t].at, v->piece[t].size)]++] = t;
    return VB_OK;
}

/* ---- opening ---- */

static struct vocabulary_bytes add_text(struct vocabulary *v, size_t *bytes, const char *text, size_t size)
{
    struct vocabulary_bytes added = {*bytes, text ? size : 0};
    if (added.size)
        memcpy(v->text + added.at, text, added.size);
    *bytes += added.size;
    return added;
}

static int take_pieces(struct vocabulary *v, const struct vocabulary_piece *piece)
{
    size_t bytes = 0;
    for (int32_t t = 0; t < v->size; t++)
        bytes += piece[t].size + piece[t].said_size;
    v->text = malloc(bytes + 1);
    if (!v->text)
        return VB_NO_MEMORY;
    bytes = 0;
    for (int32_t t = 0; t < v->size; t++) {
        const struct vocabulary_piece *p = &piece[t];
        v->piece[t] = v->said[t] = add_text(v, &bytes, p->bytes, p->size);
        if (p->said)
            v->said[t] = add_text(v, &bytes, p->said, p->said_size);
        if (p->size > VOCABULARY_PIECE)
            v->piece[t].size = 0;
        v->longest = v->piece[t].size > v->longest ? (uint32_t)v->piece[t].size : v->longest;
        v->same[t] = -1;
    }
    return VB_OK;
}

int vocabulary_of_pieces(struct vocabulary **out, const struct vocabulary_piece *piece, int32_t size,
                         const int32_t *end, size_t ends)
{
    struct vocabulary *v = calloc(1, sizeof *v);
    size_t n = (size_t)size + 1;
    int rc = VB_NO_MEMORY;
    *out = NULL;
    if (!v)
        return rc;
    v->size = size;
    v->piece = calloc(n, sizeof *v->piece);
    v->said = calloc(n, sizeof *v->said);
    v->same = calloc(n, sizeof *v->same);
    v->is_plain = calloc(n, 1);
    v->is_name = calloc(n, 1);
    v->is_scalar = calloc(n, 1);
    v->plain = calloc(n, sizeof *v->plain);
    v->end = calloc(ends + 1, sizeof *v->end);
    if (v->piece && v->said && v->same && v->is_plain && v->is_name && v->is_scalar && v->plain && v->end) {
        for (size_t i = 0; i < ends; i++)
            if (end[i] >= 0 && end[i] < size)
                v->end[v->ends++] = end[i];
        rc = take_pieces(v, piece);
        if (!rc)
            rc = list_plain(v);
        if (!rc)
            rc = make_tries(v);
        if (!rc)
            rc = thinking_list(v);
    }
    if (rc)
        vocabulary_close(v);
    else
        *out = v;
    return rc;
}

void vocabulary_close(struct vocabulary *v)
{
    if (!v)
        return;
    void *blocks[] = {v->piece, v->said, v->text, v->same, v->all.node, v->not_plain.node, v->scalar.node, v->is_plain,
                      v->is_name, v->is_scalar, v->plain, v->plain_up_to, v->end, v->may_close, v->closing, v};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

/* Whether a piece means its token where special tokens are recognised, and not where they are text. */
static int is_special(const vb_tokenizer *tokenizer, const char *bytes, size_t size, int32_t token, int *special)
{
    int32_t id[2];
    size_t count;
    *special = 0;
    if (vb_utf8_valid(bytes, size) < size)
        return VB_OK;
    int rc = vb_encode_plain(tokenizer, bytes, size, id, 2, &count, NULL);
    if (rc || (count == 1 && id[0] == token))
        return rc;
    rc = vb_encode(tokenizer, bytes, size, id, 2, &count, NULL);
    *special = !rc && count == 1 && id[0] == token;
    return rc;
}

int vocabulary_special(unsigned char **out, const vb_tokenizer *tokenizer, int32_t size)
{
    unsigned char *special = calloc((size_t)size + 1, sizeof *special);
    int rc = special ? VB_OK : VB_NO_MEMORY;
    for (int32_t t = 0; t < size && t < vb_tokenizer_size(tokenizer) && !rc; t++) {
        size_t bytes;
        int is = 0;
        const char *piece = vb_piece(tokenizer, t, &bytes);
        if (piece && bytes)
            rc = is_special(tokenizer, piece, bytes, t, &is);
        special[t] = (unsigned char)is;
    }
    if (rc)
        free(special);
    *out = rc ? NULL : special;
    return rc;
}

int vocabulary_open(struct vocabulary **out, const vb_tokenizer *tokenizer, int32_t size, const unsigned char *special,
                    const int32_t *end, size_t ends, const int32_t *mark, size_t marks)
{
    static const char bytes[VOCABULARY_MARKS] = "\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff";
    struct vocabulary_piece *piece = calloc((size_t)size + 1, sizeof *piece);
    int rc = piece ? VB_OK : VB_NO_MEMORY;
    *out = NULL;
    for (int32_t t = 0; t < size && t < vb_tokenizer_size(tokenizer) && !rc; t++) {
        piece[t].said = vb_piece(tokenizer, t, &piece[t].said_size);
        if (!special[t])
            piece[t] = (struct vocabulary_piece){.bytes = piece[t].said, .size = piece[t].said_size};
    }
    for (size_t i = 0; i < marks && !rc; i++) {
        piece[mark[i]].bytes = bytes + i;
        piece[mark[i]].size = 1;
    }
    if (!rc)
        rc = vocabulary_of_pieces(out, piece, size, end, ends);
    free(piece);
    return rc;
}
