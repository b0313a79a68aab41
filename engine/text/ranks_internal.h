/* engine/text/ranks_internal.h -- tokens that are bytes with a rank (tiktoken.model, tekken.json), converted to the
 * vocabulary and the merges of a tokenizer.json. */
#ifndef VB_TEXT_RANKS_INTERNAL_H
#define VB_TEXT_RANKS_INTERNAL_H

#include "engine/text/tokenizer_internal.h"

struct ranks {
    const vb_allocator *a;
    vb_error *err;
    const char *file;         /* file name for error messages */
    const char *item, *form;  /* for error messages: what has one token of the file, and what it must be */
    int32_t first_id;         /* the token of rank i has the id first_id + i */

    int32_t n;                /* number of tokens */
    char *arena, *at;         /* the bytes of all tokens; where those of the next token go */
    struct name_entry *token; /* [n], by rank */
    struct name_table table;  /* maps the bytes of a token to its rank */
    json_t **names;           /* [n]: the tokens as tokenizer.json writes them */
};

/* Makes room for n tokens, whose base64 has at most `bytes` characters together. ranks_free releases it, also after an
 * error. */
int ranks_make(struct ranks *r, size_t n, size_t bytes);
void ranks_free(struct ranks *r);
/* Adds a token. `number` is the place of the token in the file, for error messages. */
int ranks_add(struct ranks *r, size_t number, int64_t rank, const char *base64, size_t size);
/* Adds all tokens to `vocab` (an object) and their merges to `merges` (an array). Each byte must be a token. */
int ranks_say(struct ranks *r, json_t *vocab, json_t *merges);

/* These two return the error codes that they store in r->err. ranks_bad says that an item is not as it must be. */
int ranks_no_memory(const struct ranks *r);
int ranks_bad(const struct ranks *r, size_t number);

#endif
