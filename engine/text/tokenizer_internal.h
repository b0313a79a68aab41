/* engine/text/tokenizer_internal.h -- what the files of the tokenizer share; nobody else includes it.
 *
 *   text -> added tokens (added.c) -> words (split.c) -> ids (bpe.c)
 *
 * model.c fills the tables from the JSON, which gguf.c and tiktoken.c make of other formats,
 * pattern.c carries Oniguruma patterns over to PCRE2,
 * tokenizer.c holds the public functions. Everything in a struct tokenizer is constant
 * once it is open; what an encoding needs to write lives in a struct encoding of its own. */
#ifndef VB_TOKENIZER_INTERNAL_H
#define VB_TOKENIZER_INTERNAL_H

#include "engine/text/tokenizer.h"
#include "engine/text/export.h"
#include "engine/base/names.h"
#include "engine/base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#define MAX_TOKEN_ID (1 << 24) /* exclusive; the largest vocabulary in use has 2^18 entries */
#define MAX_STAGES 64

/* One token's bytes as they stand in the text: arena[at .. at + size). */
struct piece {
    uint32_t at;
    uint32_t size : 30;
    uint32_t used : 1;
    uint32_t special : 1;
};

/* A pair of neighbours that BPE joins; the lowest rank goes first. key = left << 32 | right. */
struct merge {
    uint64_t key;
    uint32_t rank_plus_1; /* 0: a free slot of the table */
    int32_t joined;
};

struct added_token {
    int32_t id;
    unsigned size;
    int single_word, lstrip, rstrip, normalized, special;
};

/* A trie over bytes; children are a list of siblings, which is short everywhere but at the roots: those have a table. */
struct trie_node {
    uint32_t child, sibling; /* 0: none (node 0 is never a child) */
    uint32_t token_plus_1;   /* index into added_token, 0: no token ends here */
    unsigned char byte;
};
struct added {
    struct added_token *tokens;
    size_t n_tokens;
    struct trie_node *nodes;
    uint32_t n_nodes;
    uint32_t root[2][256]; /* [normalized][first byte]: a node or 0 */
    pcre2_code *word;      /* one word character, for single_word; NULL when no token asks for it */
};

enum behavior { ISOLATED, REMOVED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

/* One pre-tokenizer. A stage without a pattern puts a space before every piece that has none. */
struct stage {
    pcre2_code *code;
    enum behavior behavior;
    int invert;
};

/* Our allocator as PCRE2's; every compiled pattern points to the one in its tokenizer. */
struct pcre_memory {
    vb_allocator allocator;
    int failed; /* while opening: an allocation of PCRE2's did */
};

struct tokenizer {
    struct pcre_memory memory;

    char *arena;
    struct piece *pieces; /* [size] */
    int32_t size;         /* one more than the largest id */

    int32_t byte_id[256]; /* -1: this byte has no token */
    struct merge *merges;
    size_t merge_mask;
    uint64_t merge_secret; /* odd; see bpe.c */
    struct name_table words; /* the bytes of each token, only with ignore_merges */
    int ignore_merges;

    struct added added;
    struct stage stages[MAX_STAGES];
    int n_stages;

    int32_t bos, eos;
    int add_bos;
    int slices; /* long texts are cut first, as Kimi's Python code does (slices.c) */
};

/* What opening needs and the open tokenizer does not. */
struct tokenizer_loading {
    struct tokenizer *t;
    const char *file; /* for messages */
    vb_error *err;
    json_t *root;
    pcre2_general_context *pcre;
    struct name_table names; /* vocabulary and added tokens as tokenizer.json writes them */
    size_t arena_used;
};

struct symbol { /* a token of a word that is being joined; a list through prev and next, -1 at the ends */
    int32_t id, prev, next;
};
struct candidate { /* a pair that may be joined, if it is still there when its turn comes */
    uint32_t rank;
    int32_t at;
    int32_t left, right, joined;
};

/* What one call of tokenizer_encode writes. */
struct encoding {
    const struct tokenizer *t;
    vb_error *err;
    int words; /* what is pushed are the sizes of the words, not ids */
    int32_t *ids;
    size_t n_ids, ids_capacity;
    struct symbol *symbols;
    struct candidate *heap;
    size_t word_capacity;
    char *spaced; /* a piece with a space put before it */
    size_t spaced_capacity;
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

/* ---- tokenizer.c ---- */
int encoding_push(struct encoding *e, int32_t id);

struct shown { /* a string from a file made fit for a message: one line, whole characters, not long */
    char text[96];
};
struct shown token_show(const char *s);
/* `object`'s member or NULL; JSON null counts as missing. */
json_t *get_member(const json_t *object, const char *key);
/* A missing member is `otherwise`; one that is not a boolean is an error naming `where`. */
int get_flag(struct tokenizer_loading *l, const json_t *object, const char *where, const char *key, int otherwise, int *flag);

/* ---- model.c: vocabulary, merges, added tokens; decoder and normalizer are checked there too ---- */
int tables_load(struct tokenizer_loading *l);

#define LAST_BYTE_CHARACTER 0x143
/* byte_of[c]: the byte that character c stands for in a byte-level vocabulary, -1: none. */
void byte_characters(int byte_of[LAST_BYTE_CHARACTER + 1]);

/* ---- bpe.c ---- */
int merges_load(struct tokenizer_loading *l, const json_t *merges);
/* Whether both join the same pairs, in the same order: slots do not tell, since each table has a secret of its own. */
int merges_same(const struct tokenizer *a, const struct tokenizer *b);
int bpe_encode(struct encoding *e, const char *word, size_t size);

/* ---- added.c ---- */
int added_load(struct tokenizer_loading *l, const json_t *list);
void added_close(struct tokenizer *t);

/* Cuts text into stretches of plain text (id -1) and added tokens, in order; empty stretches are left out. */
struct added_scan {
    struct encoding *e;
    const char *text;
    size_t size;
    int normalized;    /* which of the two sets of tokens */
    int parse_special; /* 0: special tokens are text */
    size_t search;     /* the next match begins here or later */
    size_t done;       /* text before this has been handed out */
    size_t blank_from, blank_to; /* white space that was looked through last */
    const struct added_token *waiting; /* found behind plain text that had to go first */
    size_t token_end;
};
/* 1: there is one; 0: the end; else an error. */
int added_next(struct added_scan *s, const char **begin, size_t *size, int32_t *id);

/* ---- split.c ---- */
int split_load(struct tokenizer_loading *l, const json_t *pre_tokenizer);
void split_close(struct tokenizer *t);
int split_and_encode(struct encoding *e, int stage, const char *text, size_t size);

/* ---- slices.c ---- */
struct slices { /* all 0 at first but text and size */
    const char *text;
    size_t size, at;
    size_t block, run; /* characters since a block began, and alike in being white space */
    int blank;
};
/* The bytes of the next slice, 0: the end. */
size_t slices_next(struct slices *s);

/* ---- gguf.c ---- */
/* The tokenizer of a GGUF file's metadata as tokenizer.json and tokenizer_config.json would describe it; the caller owns both
 * objects. */
int tokenizer_from_gguf(json_t **json, json_t **config, const struct gguf *g, vb_error *err);
#define KIMI_K2 "kimi-k2"
/* *out: the parts of a tokenizer.json put together, with words cut as GGUF's name `pre`, one of those known, has it. Takes
 * the parts over. 0: no memory. */
int tokenizer_said(json_t **out, const char *pre, json_t *vocab, json_t *added, json_t *merges);

/* ---- tiktoken.c ---- */
struct tiktoken { /* the files */
    const char *ranks, *config, *ranks_name, *config_name;
    size_t ranks_size, config_size;
    int32_t limit; /* a reserved token from this id on is left out */
};
/* A tokenizer in tiktoken's format as tokenizer.json and tokenizer_config.json say it; the caller owns both objects. */
int tokenizer_from_tiktoken(json_t **json, json_t **config, const struct tiktoken *from, const vb_allocator *a, vb_error *err);

/* ---- words.c: which name a GGUF file has for how text is cut into words ---- */
/* As tokenizer_encode, without added tokens: the sizes in bytes of the words that BPE would see. */
int tokenizer_words(const struct tokenizer *t, const char *text, size_t size, int32_t **sizes, size_t *count, vb_error *err);
/* *same: whether both cut every text alike, by trial: all that is common, and every character among others. */
int tokenizer_same_words(const struct tokenizer *a, const struct tokenizer *b, int *same, vb_error *err);

/* ---- pattern.c ---- */
/* The PCRE2 pattern that matches what `onig` matches in Oniguruma, in memory of the allocator; a construct whose
 * meaning differs and is not translated is VB_UNSUPPORTED, by name. */
int pattern_translate(struct tokenizer_loading *l, const char *onig, char **pcre);
int pattern_compile(struct tokenizer_loading *l, const char *pattern, uint32_t options, pcre2_code **code);
/* Looks for the pattern from `start` on. 1: found, at match's ovector; 0: not there; else an error. */
int match_at(struct encoding *e, const pcre2_code *code, const char *text, size_t size, size_t start);

/* ---- unicode.c ---- */
const char *unicode_since_14(const char *category, size_t size);
const char *unicode_han(void);

#endif
