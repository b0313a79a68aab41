/* engine/text/ranks.c -- tokens that are bytes with a rank, as the `tiktoken` package has them, said as tokenizer.json
 * says them.
 *
 * tiktoken joins the neighbours whose bytes together are the token of lowest rank, the leftmost first; tokenizer.json
 * has pairs to be joined. One pair for each token is enough, that which tiktoken joins last when the token is all there
 * is: within the bytes of a token that came out of a longer word nothing was ever joined across their ends, so the same
 * pairs were joined, in the same order. (A token that its own bytes do not lead to is found as a whole word only.) */
#include "engine/text/ranks_internal.h"

#include <string.h>

#define LONGEST 1024 /* bytes of a token; the work goes with the square */

int ranks_no_memory(const struct ranks *r)
{
    return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for its tokens", r->file);
}

int ranks_bad(const struct ranks *r, size_t number)
{
    return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s %zu is not %s", r->file, r->item, number, r->form);
}

/* ---- tokens ---- */

static int digit_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* The bytes that base64 stands for, at least one; 0: it is none, or not as base64 is written. */
static size_t decode(const char *s, size_t size, char *out)
{
    size_t n = 0, padding = size > 2 && s[size - 1] == '=' ? 1 + (s[size - 2] == '=') : 0;
    uint32_t bits = 0;
    if (size % 4)
        return 0;
    for (size_t i = 0; i < size - padding; i++) {
        int digit = digit_of(s[i]);
        if (digit < 0)
            return 0;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4)
            out[n++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return (padding && (bits & ((1u << 2 * padding) - 1))) ? 0 : n;
}

int ranks_make(struct ranks *r, size_t n, size_t bytes)
{
    r->n = (int32_t)n;
    r->arena = r->at = vb_alloc(r->a, bytes + 1, 1);
    r->token = vb_alloc(r->a, n + 1, sizeof *r->token);
    r->names = vb_alloc(r->a, n + 1, sizeof *r->names);
    return r->arena && r->token && r->names && names_make(&r->table, n, r->a) ? VB_OK : ranks_no_memory(r);
}

void ranks_free(struct ranks *r)
{
    for (int32_t i = 0; r->names && i < r->n; i++)
        json_decref(r->names[i]);
    vb_free(r->a, r->names);
    vb_free(r->a, r->table.entries);
    vb_free(r->a, r->token);
    vb_free(r->a, r->arena);
}

int ranks_add(struct ranks *r, size_t number, int64_t rank, const char *base64, size_t size)
{
    if (size > LONGEST / 3 * 4)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: %s %zu has a token of more than %d bytes", r->file, r->item, number,
                       LONGEST / 3 * 3);
    size_t bytes = decode(base64, size, r->at);
    if (!bytes)
        return ranks_bad(r, number);
    if (rank < 0 || rank >= r->n)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s %zu has rank %lld, but %d tokens have the ranks 0 to %d",
                       r->file, r->item, number, (long long)rank, r->n, r->n - 1);
    if (r->token[rank].s)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s %zu has rank %lld, which another %s has", r->file, r->item,
                       number, (long long)rank, r->item);
    if (!names_add(&r->table, r->at, bytes, (int32_t)rank))
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s %zu has the token of rank %d once more", r->file, r->item,
                       number, names_find(&r->table, r->at, bytes));
    r->token[rank] = (struct name_entry){.s = r->at, .size = (uint32_t)bytes};
    r->at += bytes;
    return VB_OK;
}

static int check_bytes(const struct ranks *r)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        if (names_find(&r->table, &byte, 1) < 0)
            return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: there is no token for byte 0x%02X", r->file, b);
    }
    return VB_OK;
}

/* ---- pairs ---- */

/* Tokens side by side whose bytes are those of one token. */
struct ranks_part {
    uint32_t at;
    int32_t joined; /* the rank of this part and the next as one, -1: they are none */
};

static int32_t joined_rank(const struct ranks *r, const struct name_entry *token, const struct ranks_part *p)
{
    return names_find(&r->table, token->s + p[0].at, p[2].at - p[0].at);
}

/* How many of the token's bytes are the left one of the last pair; 0: its bytes do not lead to it. */
static uint32_t last_pair(const struct ranks *r, const struct name_entry *token, struct ranks_part *part)
{
    uint32_t n = token->size;
    for (uint32_t i = 0; i <= n; i++)
        part[i].at = i; /* part[n]: the end */
    for (uint32_t i = 0; i + 1 < n; i++)
        part[i].joined = joined_rank(r, token, &part[i]);
    while (n > 2) {
        uint32_t best = n;
        for (uint32_t i = 0; i + 1 < n; i++)
            if (part[i].joined >= 0 && (best == n || part[i].joined < part[best].joined))
                best = i;
        if (best == n)
            return 0;
        memmove(&part[best + 1], &part[best + 2], (n - best - 1) * sizeof *part);
        n--;
        for (uint32_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++)
            part[i].joined = joined_rank(r, token, &part[i]);
    }
    return n == 2 ? part[1].at : 0;
}

static int say_merges(const struct ranks *r, json_t *merges)
{
    struct ranks_part *part = vb_alloc(r->a, LONGEST + 2, sizeof *part);
    int failed = !part;
    for (int32_t i = 0; !failed && i < r->n; i++) {
        const struct name_entry *token = &r->token[i];
        uint32_t left = last_pair(r, token, part);
        if (!left)
            continue;
        int32_t a = names_find(&r->table, token->s, left),
                b = names_find(&r->table, token->s + left, token->size - left);
        failed = json_array_append_new(merges, json_pack("[O,O]", r->names[a], r->names[b]));
    }
    vb_free(r->a, part);
    return failed ? ranks_no_memory(r) : VB_OK;
}

/* ---- vocabulary ---- */

static void characters(char text[256][3])
{
    int byte_of[LAST_BYTE_CHARACTER + 1];
    byte_characters(byte_of);
    for (int c = 0; c <= LAST_BYTE_CHARACTER; c++)
        if (byte_of[c] >= 0) {
            char *s = text[byte_of[c]];
            s[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
            s[1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3f));
            s[2] = 0;
        }
}

static int say_vocabulary(struct ranks *r, json_t *vocab)
{
    char text[256][3], name[2 * LONGEST];
    characters(text);
    for (int32_t i = 0; i < r->n; i++) {
        size_t n = 0;
        for (uint32_t k = 0; k < r->token[i].size; k++)
            for (const char *s = text[(unsigned char)r->token[i].s[k]]; *s; s++)
                name[n++] = *s;
        if (!(r->names[i] = json_stringn_nocheck(name, n)) ||
            json_object_set_new_nocheck(vocab, json_string_value(r->names[i]), json_integer(r->first_id + i)))
            return ranks_no_memory(r);
    }
    return VB_OK;
}

int ranks_say(struct ranks *r, json_t *vocab, json_t *merges)
{
    int rc = check_bytes(r);
    return rc || (rc = say_vocabulary(r, vocab)) ? rc : say_merges(r, merges);
}
