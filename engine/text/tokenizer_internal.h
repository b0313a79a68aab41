/* engine/text/tokenizer_internal.h -- types and functions that the tokenizer's own files share. No other file includes
 * it.
 *
 * Text passes through three stages:
 *
 *   text -> added tokens (added.c) -> words (split.c) -> ids (bpe.c)
 *
 * tokenizer.c has the public functions. model.c fills the tables from JSON; gguf.c and tiktoken.c convert their formats
 * to that JSON. pattern.c translates regular expressions from Oniguruma's syntax to PCRE2's. A struct vb_tokenizer does
 * not change once it is open; each call of tokenizer_encode has a struct encoding of its own for data that change. */
#ifndef VB_TOKENIZER_INTERNAL_H
#define VB_TOKENIZER_INTERNAL_H

#include "engine/text/tokenizer.h"
#include "engine/text/export.h"
#include "engine/base/names.h"
#include "engine/base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#define MAX_TOKEN_ID (1 << 24) /* token ids must be smaller than this; the largest vocabulary in use has 2^18 tokens */
#define MAX_STAGES 64

/* The bytes of one token: `size` bytes from arena[at] on. */
struct piece {
    uint32_t at;
    uint32_t size : 30;
    uint32_t used : 1;    /* 0: no token has this id */
    uint32_t special : 1;
};

/* A BPE merge: two adjacent tokens that become one. The pair with the lowest rank is merged first. */
struct merge {
    uint64_t key;         /* id of the left token << 32 | id of the right token */
    uint32_t rank_plus_1; /* 0: this entry of the hash table is free */
    int32_t joined;       /* id of the merged token */
};

struct added_token {
    int32_t id;
    unsigned size;
    int single_word, lstrip, rstrip, normalized, special;
};

/* A node of a trie that holds the added tokens byte by byte, each from its last byte to its first. The children of a
 * node are a linked list of siblings. Such lists are short, except for the list of all last bytes of tokens. A table
 * (`root` below) replaces this long list.
 *
 * With `shorter` the trie is the automaton of Aho and Corasick. It reads a text backwards, and at each byte it knows
 * the longest added token that begins there. */
struct trie_node {
    uint32_t child, sibling; /* indices of nodes; 0: none, since node 0 is never used */
    uint32_t shorter;        /* the node of the longest other string that ends like this node's string; 0: none, the
                                root */
    uint32_t token_plus_1;   /* 1 + index of the longest added token that ends like this node's string; 0: none */
    unsigned char byte;
};
struct added {
    struct added_token *tokens;
    size_t n_tokens;
    struct trie_node *nodes;
    uint32_t n_nodes;
    uint32_t root[2][256]; /* [flag `normalized` of the token][its last byte]: index of a node, or 0 */
    size_t longest[2];     /* [flag `normalized`]: bytes of the longest token; 0: there is none */
    pcre2_code *word;      /* pattern for one word character; NULL if no token has the flag single_word */
};

enum behavior { ISOLATED, REMOVED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

/* One pre-tokenizer, a step that cuts text at matches of a pattern. A stage without a pattern puts a space before
 * every piece of text that does not begin with a space. */
struct stage {
    pcre2_code *code;
    enum behavior behavior; /* what is done with a match; named as in Hugging Face's SplitDelimiterBehavior */
    int invert;             /* 1: the text between matches is treated as the match, and each match as the text
                               between */
};

/* The tokenizer's allocator, for the memory functions that PCRE2 calls. Every compiled pattern keeps a pointer to
 * it. */
struct pcre_memory {
    vb_allocator allocator;
    int failed; /* 1: PCRE2 could not allocate memory while the tokenizer was opened */
};

struct vb_tokenizer {
    struct pcre_memory memory;

    char *arena;
    struct piece *pieces; /* [size] */
    int32_t size;         /* the largest token id plus 1 */

    int32_t byte_id[256]; /* id of the token that is this single byte; -1: there is none */
    struct merge *merges; /* a hash table of merge_mask + 1 entries */
    size_t merge_mask;
    uint64_t merge_secret;   /* random odd factor of the hash function (bpe.c) */
    struct name_table words; /* maps the bytes of each token to its id; empty if ignore_merges is 0 */
    int ignore_merges;       /* 1: a whole word that is a token becomes this token, without merging its bytes */

    struct added added;
    struct stage stages[MAX_STAGES];
    int n_stages;
    uint64_t stages_hash; /* hash of the stages' patterns and flags */

    int32_t bos, eos;
    int add_bos;
    int slices; /* long texts are first cut into slices, as Kimi's Python code does (slices.c) */
};

/* Data that are needed only while a tokenizer is opened. */
struct tokenizer_loading {
    struct vb_tokenizer *t;
    const char *file; /* file name for error messages */
    vb_error *err;
    json_t *root;
    pcre2_general_context *pcre;
    struct name_table names; /* maps the strings of vocabulary and added tokens, as in tokenizer.json, to their ids */
    size_t arena_used;
};

struct symbol { /* a token of the word that is being encoded, in a doubly linked list; prev or next is -1 at its ends */
    int32_t id, prev, next;
};
struct candidate { /* a pair of adjacent tokens that may be merged, unless an earlier merge has changed one of them */
    uint32_t rank;
    int32_t at;                  /* index of the left symbol */
    int32_t left, right, joined; /* token ids: the pair, and the token that it becomes */
};

/* The working memory and the result of one call of tokenizer_encode. */
struct encoding {
    const struct vb_tokenizer *t;
    vb_error *err;
    int words; /* 1: the result is the size of each word in bytes; 0: token ids */
    int32_t *ids;
    size_t n_ids, ids_capacity;
    struct symbol *symbols;
    struct candidate *heap;
    size_t word_capacity;
    uint32_t *begins[2]; /* [flag `normalized`]: for each byte of a window of the text, 1 + index of the longest added
                            token that begins there, or 0 */
    size_t steps;        /* number of trie nodes that were looked at, for a test */
    char *spaced; /* a copy of a piece of text with a space before it */
    size_t spaced_capacity;
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

/* ---- tokenizer.c ---- */
int encoding_push(struct encoding *e, int32_t id);

struct shown { /* a string from a file, cleaned for an error message: one line, valid UTF-8, shortened */
    char text[96];
};
struct shown token_show(const char *s);
/* Returns a member of a JSON object, or NULL if it is missing or null. */
json_t *get_member(const json_t *object, const char *key);
/* Sets *flag to the value of a boolean member, or to `otherwise` if the member is missing. Returns VB_BAD_CHECKPOINT
 * if the value is not a boolean; the message contains `where`, the place of the object in the file. */
int get_flag(struct tokenizer_loading *l, const json_t *object, const char *where, const char *key, int otherwise,
             int *flag);

/* ---- model.c: reads vocabulary, merges and added tokens; checks that decoder and normalizer are supported ---- */
int tables_load(struct tokenizer_loading *l);

#define LAST_BYTE_CHARACTER 0x143
/* A byte-level vocabulary writes each byte as one printable character. Sets byte_of[c] to the byte that character c
 * represents, or to -1 if it represents none. */
void byte_characters(int byte_of[LAST_BYTE_CHARACTER + 1]);

/* ---- bpe.c ---- */
int merges_load(struct tokenizer_loading *l, const json_t *merges);
/* Returns 1 if both tokenizers have the same merges with the same ranks. Each tokenizer has its own hash function, so
 * equal merges are at different places of the two hash tables. Therefore each merge of one table is looked up in the
 * other table. */
int merges_same(const struct vb_tokenizer *a, const struct vb_tokenizer *b);
/* Returns a hash of all merges and their ranks. It does not depend on the places in the hash table. */
uint64_t merges_hash(const struct vb_tokenizer *t);
int bpe_encode(struct encoding *e, const char *word, size_t size);

/* ---- added.c ---- */
int added_load(struct tokenizer_loading *l, const json_t *list);
void added_close(struct vb_tokenizer *t);

/* An iterator that cuts a text into added tokens and the plain text between them. */
struct added_scan {
    struct encoding *e;
    const char *text;
    size_t size;
    int normalized;    /* search for added tokens whose flag `normalized` has this value */
    int parse_special; /* 0: tokens marked "special" are not recognised */
    size_t search;     /* offset at which the search for the next token continues */
    size_t window, window_end; /* offsets of the bytes for which encoding.begins is filled */
    size_t done;       /* offset up to which the text has been returned */
    size_t blank_from, blank_to;       /* the white space that was skipped last, so that it is not skipped twice */
    const struct added_token *waiting; /* the token to return after the plain text that precedes it */
    size_t token_end;                  /* offset of the first byte after that token */
};
/* Returns the next part of the text. For an added token, *id becomes its id. For plain text, *id becomes -1, and
 * *begin and *size are set to the bytes of the text. Parts are never empty. The result is 1, or 0 at the end of the
 * text, or a negative error code. */
int added_next(struct added_scan *s, const char **begin, size_t *size, int32_t *id);

/* ---- split.c ---- */
int split_load(struct tokenizer_loading *l, const json_t *pre_tokenizer);
void split_close(struct vb_tokenizer *t);
int split_and_encode(struct encoding *e, int stage, const char *text, size_t size);

/* ---- slices.c ---- */
struct slices { /* an iterator over the slices of a long text; at the start all fields but text and size are 0 */
    const char *text;
    size_t size, at;
    size_t block, run; /* characters so far in this block, and in the current run of white space or of other text */
    int blank;         /* 1: the last character was white space */
};
/* Returns the size of the next slice in bytes, or 0 at the end of the text. */
size_t slices_next(struct slices *s);

/* ---- gguf.c ---- */
/* Converts the tokenizer in a GGUF file's metadata to two JSON objects, with the contents that tokenizer.json and
 * tokenizer_config.json would have. The caller owns both objects. */
int tokenizer_from_gguf(json_t **json, json_t **config, const struct gguf *g, vb_error *err);
#define KIMI_K2 "kimi-k2"
/* Builds the JSON of a tokenizer.json from its parts, and takes over the references to them. `pre` is a known value of
 * tokenizer.ggml.pre and selects the patterns that cut text into words. Returns 0 if there is no memory. */
int tokenizer_said(json_t **out, const char *pre, json_t *vocab, json_t *added, json_t *merges);
/* Does the same with the pattern whose matches are the words. A word that is a token is not merged from its bytes. */
int tokenizer_said_with(json_t **out, const char *pattern, json_t *vocab, json_t *added, json_t *merges);

/* ---- tiktoken.c ---- */
struct tiktoken { /* the texts of tiktoken.model (`ranks`) and tokenizer_config.json, with their file names for
                     messages */
    const char *ranks, *config, *ranks_name, *config_name;
    size_t ranks_size, config_size;
    int32_t limit; /* reserved tokens with this id or a larger one are left out */
};
/* Converts a tokenizer in tiktoken's format to two JSON objects, with the contents that tokenizer.json and
 * tokenizer_config.json would have. The caller owns both objects. */
int tokenizer_from_tiktoken(json_t **json, json_t **config, const struct tiktoken *from, const vb_allocator *a,
                            vb_error *err);

int tokenizer_say_tiktoken(json_t **json, json_t **config, const char *dir, int32_t limit, const vb_allocator *a,
                           vb_error *err);

/* ---- tekken.c ---- */
/* Does the same with the text of a tekken.json, and with the file in a directory. */
int tokenizer_from_tekken(json_t **json, json_t **config, const char *text, size_t size, const char *name,
                          const vb_allocator *a, vb_error *err);
int tokenizer_say_tekken(json_t **json, json_t **config, const char *dir, const vb_allocator *a, vb_error *err);

/* ---- words.c: finds out whether two tokenizers cut text into the same words ---- */
/* Cuts a text into the words that BPE would encode, ignoring added tokens, and returns the size of each word in bytes.
 * The caller frees *sizes with vb_free and the tokenizer's allocator. */
int tokenizer_words(const struct vb_tokenizer *t, const char *text, size_t size, int32_t **sizes, size_t *count,
                    vb_error *err);
/* Sets *same to 1 if both tokenizers cut a set of test strings into the same words. One string is common text. The
 * other strings contain most Unicode characters; each of these characters appears beside letters, digits and spaces. */
int tokenizer_same_words(const struct vb_tokenizer *a, const struct vb_tokenizer *b, int *same, vb_error *err);

/* ---- pattern.c ---- */
/* Translates a regular expression of Oniguruma, `onig`, to a PCRE2 pattern that matches the same text. Returns
 * VB_UNSUPPORTED if a construct has another meaning in PCRE2 and cannot be translated; the message names the construct.
 * The caller frees *pcre with vb_free. */
int pattern_translate(struct tokenizer_loading *l, const char *onig, char **pcre);
int pattern_compile(struct tokenizer_loading *l, const char *pattern, uint32_t options, pcre2_code **code);
/* Searches for the pattern from offset `start` on. Returns 1 if it is found, 0 if not, or a negative error code. The
 * offsets of the match are in the ovector of e->match. */
int match_at(struct encoding *e, const pcre2_code *code, const char *text, size_t size, size_t start);

/* ---- unicode.c ---- */
/* Returns the characters of a Unicode category, such as "Lu", that were added after Unicode 14, in the syntax of a
 * PCRE2 character class. Returns "" if there are none. */
const char *unicode_since_14(const char *category, size_t size);
/* Returns the characters of the script Han in the same syntax. */
const char *unicode_han(void);

#endif
