/* tools/serve/allowed.h -- which tokens may follow: a vocabulary's pieces read by the automaton of a schema (schema.h).
 *
 * A token is allowed when the automaton accepts all of its bytes. End tokens are allowed exactly when the value may
 * end. Special tokens and ids without a piece are never allowed. Since every accepted prefix can be completed, some
 * token is always allowed if the vocabulary has all single bytes.
 *
 * The pieces form a trie. Where the automaton refuses a byte, the branch below it is not visited. Inside a string most
 * tokens are allowed, so these are not visited one by one: pieces of whole ordinary characters are grouped beforehand
 * by their number of characters, because a schema can only limit the length of a string. Only pieces with quotation
 * marks, backslashes, < or >, control characters or incomplete characters are read by the automaton there, and in a
 * text that may be read as JSON (schema_pairs.c) pieces of numbers, too. Of strings that accept the same pieces, one
 * reads these for all. `build/tests/test_allowed --bench DIR` measures masks (docs/MEASUREMENTS.md). */
#ifndef VB_ALLOWED_H
#define VB_ALLOWED_H

#include "engine/verbatim.h"
#include "tools/serve/schema.h"

#define VOCABULARY_PIECE 4096 /* bytes; a longer piece is never allowed */
#define VOCABULARY_MARK 0xf8  /* see vocabulary_open */
#define VOCABULARY_MARKS 8

struct vocabulary; /* read-only once it is open; threads may share it */

struct vocabulary_piece {
    const char *bytes; /* what a schema reads of the token; NULL: never allowed; special tokens and end tokens too */
    size_t size;
    const char *said;  /* what the token adds to an answer's text; NULL: `bytes` */
    size_t said_size;
};

/* Finds the tokens whose text becomes the token only where special tokens are recognised: *out [size] is 1 for them,
 * and the caller frees it. Returns VB_OK, VB_NO_MEMORY or what the tokenizer returned. */
int vocabulary_special(unsigned char **out, const vb_tokenizer *tokenizer, int32_t size);

/* Opens the vocabulary of a model. `size` is vb_vocab_size; ids beyond the tokenizer's are never allowed. special
 * [size] is what vocabulary_special found; these tokens are never allowed. end [ends] are the model's end tokens. The
 * tokenizer is used during this call only. The array `mark` has `marks` elements, at most VOCABULARY_MARKS. They are
 * special tokens that the schemas of tool calls contain. In such a schema, the byte VOCABULARY_MARK + i stands for the
 * token mark[i]; no text in UTF-8 contains this byte. Returns VB_OK or VB_NO_MEMORY. */
int vocabulary_open(struct vocabulary **out, const vb_tokenizer *tokenizer, int32_t size, const unsigned char *special,
                    const int32_t *end, size_t ends, const int32_t *mark, size_t marks);
/* Opens a vocabulary of the given pieces. Parameters and return values are those of vocabulary_open. */
int vocabulary_of_pieces(struct vocabulary **out, const struct vocabulary_piece *piece, int32_t size,
                         const int32_t *end, size_t ends);
void vocabulary_close(struct vocabulary *v);

/* Sets mask[t], for all t below the vocabulary's size, to 1 or 0. VB_OK; VB_UNSUPPORTED: the schema is too ambiguous
 * (schema.h); VB_NO_MEMORY. */
int allowed_mask(const struct vocabulary *v, const struct schema_state *state, unsigned char *mask);

/* The mask of one sequence (vb_sampling.mask): follows the timeline, also back where drafts were rejected. One thread
 * at a time. */
struct allowed;
/* The value begins at index `from`, the first after the prompt. With `thinks`, the answer begins with reasoning, and
 * the value begins at the first byte behind the first </think>, whichever tokens write it. Before it everything is
 * allowed but end tokens, and tokens that end </think> and have bytes behind it with which the value cannot begin.
 * Vocabulary and schema must outlive *out. */
int allowed_open(struct allowed **out, const struct vocabulary *v, const struct schema *s, size_t from, int thinks);
void allowed_close(struct allowed *a);
/* context: a struct allowed. The mask depends on the tokens alone. Behind an end token everything is allowed.
 * VB_BAD_ARGUMENT: the tokens are no prefix of a value. */
int allowed_next(void *context, const int32_t *tokens, size_t count, unsigned char *mask);

#endif
