/* engine/text/compare.c -- whether two tokenizers speak of the same tokens. For a draft model: each id's bytes, BOS and
 * EOS; how text is cut into tokens does not matter to a model that only continues. For a tokenizer written to a GGUF
 * file: all tables. */
#include "engine/text/tokenizer_internal.h"
#include "engine/base/hash64.h"
#include "numbers/numbers.h"

#include <string.h>

/* A token's bytes, fit for a message. */
static struct shown shown_piece(const struct vb_tokenizer *t, int32_t id)
{
    char text[64], repaired[3 * (sizeof text + 4) + 12];
    struct utf8_stream stream = {0};
    size_t size, n;
    const char *piece = tokenizer_piece(t, id, &size);
    if (!piece)
        return token_show("no token");
    snprintf(text, sizeof text, "\"%.*s%s\"", (int)min_size(size, 48), piece, size > 48 ? "..." : "");
    n = utf8_stream_push(&stream, text, strlen(text), repaired);
    n += utf8_stream_finish(&stream, repaired + n);
    repaired[n] = '\0';
    return token_show(repaired);
}

int vb_tokenizers_match(const vb_tokenizer *a, const vb_tokenizer *b, vb_error *err)
{
    int32_t end = a->size > b->size ? a->size : b->size;
    for (int32_t id = 0; id < end; id++) {
        size_t size_a = 0, size_b = 0;
        const char *of_a = tokenizer_piece(a, id, &size_a), *of_b = tokenizer_piece(b, id, &size_b);
        if (!of_a != !of_b || size_a != size_b || (of_a && memcmp(of_a, of_b, size_a)))
            return vb_fail(err, VB_BAD_ARGUMENT, "the tokenizers differ: token %d is %s in one and %s in the other", id,
                           shown_piece(a, id).text, shown_piece(b, id).text);
    }
    if (a->bos != b->bos || a->eos != b->eos)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "the tokenizers differ: BOS and EOS are %d and %d in one and %d and %d in the other", a->bos,
                       a->eos, b->bos, b->eos);
    return VB_OK;
}

uint64_t vb_tokenizer_fingerprint(const vb_tokenizer *t)
{
    uint64_t h = hash64(t->stages_hash, t->byte_id, sizeof t->byte_id), merges = merges_hash(t);
    for (int32_t id = 0; id < t->size; id++) {
        size_t size = 0;
        const char *piece = tokenizer_piece(t, id, &size);
        h = hash64(h + (piece != NULL) + 2 * (uint64_t)tokenizer_is_special(t, id), piece, size);
    }
    for (size_t i = 0; i < t->added.n_tokens; i++) {
        const struct added_token *a = &t->added.tokens[i];
        h = hash64(h, (int32_t[]){a->id, a->single_word, a->lstrip, a->rstrip, a->normalized, a->special},
                   6 * sizeof(int32_t));
    }
    h = hash64(h, &merges, sizeof merges);
    return hash64(h, (int32_t[]){t->bos, t->eos, t->add_bos, t->slices, t->ignore_merges}, 5 * sizeof(int32_t));
}

static int same_pieces(const struct vb_tokenizer *a, const struct vb_tokenizer *b)
{
    if (a->size != b->size)
        return 0;
    for (int32_t id = 0; id < a->size; id++) {
        size_t n = 0, m = 0;
        const char *x = tokenizer_piece(a, id, &n), *y = tokenizer_piece(b, id, &m);
        if (!x != !y || n != m || (x && memcmp(x, y, n)) || tokenizer_is_special(a, id) != tokenizer_is_special(b, id))
            return 0;
    }
    return 1;
}

int tokenizer_same_tables(const struct vb_tokenizer *a, const struct vb_tokenizer *b)
{
    return same_pieces(a, b) && !memcmp(a->byte_id, b->byte_id, sizeof a->byte_id) && merges_same(a, b) &&
           a->added.n_tokens == b->added.n_tokens &&
           a->ignore_merges == b->ignore_merges && a->add_bos == b->add_bos;
}

int tokenizer_count_stripping(const struct vb_tokenizer *t)
{
    int count = 0;
    for (size_t i = 0; i < t->added.n_tokens; i++) {
        const struct added_token *token = &t->added.tokens[i];
        count += token->lstrip || token->rstrip || token->single_word;
    }
    return count;
}

int tokenizer_cuts_slices(const struct vb_tokenizer *t) { return t->slices; }
