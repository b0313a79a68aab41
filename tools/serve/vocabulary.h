/* tools/serve/vocabulary.h -- the pieces of a vocabulary, as allowed.c walks them. */
#ifndef VB_VOCABULARY_H
#define VB_VOCABULARY_H

#include "tools/serve/allowed.h"

/* In the order of their bytes, each before those that it begins. */
struct vocabulary_node {
    uint32_t skip;  /* the first node that does not begin with the bytes of this one */
    int32_t token;  /* one whose piece ends here, see vocabulary.same; -1: none does */
    uint16_t depth; /* bytes before `byte` */
    unsigned char byte;
};

struct vocabulary_trie {
    struct vocabulary_node *node;
    uint32_t count, room;
};

struct vocabulary_bytes {
    size_t at, size; /* in `text`; size 0: never allowed */
};

struct vocabulary {
    int32_t size;
    struct vocabulary_bytes *piece;     /* [size]: what a schema reads of a token */
    struct vocabulary_bytes *said;      /* [size]: what the token adds to an answer's text */
    char *text;
    int32_t *same;           /* [size]: the next token with the same bytes, -1: none */
    struct vocabulary_trie all, not_plain, scalar;
    uint32_t longest;        /* bytes */
    uint32_t longest_in_string; /* the most bytes that a string may have of a piece that is not plain */
    unsigned char *is_plain; /* [size]: the piece is whole characters that stand in a string as they are, and neither <
                                nor > */
    unsigned char *is_name;  /* [size]: it is plain and has no space */
    unsigned char *is_scalar; /* [size]: it is plain, and may be a part of a number, true, false or null, or begin an
                                 object or an array */
    int32_t *plain;          /* those tokens, short ones first */
    uint32_t *plain_up_to;   /* [most_characters + 1]: how many of them have at most so many characters */
    uint32_t most_characters;
    int32_t *end;
    size_t ends;
    unsigned char *may_close; /* [size]: </think> may end in what the token says (thinking.h) */
    int32_t *closing;         /* tokens behind whose </think> there may be more bytes */
    size_t closings;
};

#endif
