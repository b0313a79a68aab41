/* engine/text/tokenizer.h -- text to token ids and back: byte-level BPE as a Hugging Face tokenizer.json defines it, or as
 * tiktoken.model and the Python code of Kimi-K2 and Moonlight do.
 *
 * A tokenizer is read-only once open and may be shared by threads. It needs tokenizer.json; tokenizer_config.json
 * (beside it, optional) says which tokens are BOS and EOS and whether add_bos_token is true. tiktoken.model needs
 * tokenizer_config.json, which names the special tokens and whose Python code it is. */
#ifndef VB_TOKENIZER_H
#define VB_TOKENIZER_H

#include "engine/base/support.h"

struct tokenizer;

/* Opens the tokenizer in a GGUF file's metadata (gguf.c), or DIR/tokenizer.json (and DIR/tokenizer_config.json),
 * or DIR/tiktoken.model (tiktoken.c). A directory with neither is VB_IO; a tokenizer.json that uses a model,
 * normalizer, pre-tokenizer or decoder that is not implemented, or a tiktoken.model of other Python code than what is
 * known, is VB_UNSUPPORTED, naming it. */
int tokenizer_open(struct tokenizer **out, const char *dir, const vb_allocator *a, vb_error *err);

/* The same from memory: config may be NULL. `name` stands for the file in messages. For tests and fuzzers. */
int tokenizer_parse(struct tokenizer **out, const char *json, size_t size, const char *config, size_t config_size,
                    const char *name, const vb_allocator *a, vb_error *err);
/* `ranks` is tiktoken.model; the config is needed. */
int tokenizer_parse_tiktoken(struct tokenizer **out, const char *ranks, size_t size, const char *config, size_t config_size,
                             const char *name, const vb_allocator *a, vb_error *err);
/* The one in a GGUF file's metadata. */
struct gguf;
int tokenizer_parse_gguf(struct tokenizer **out, const struct gguf *g, const vb_allocator *a, vb_error *err);
void tokenizer_close(struct tokenizer *t);

/* Ids of exactly this text (UTF-8; invalid UTF-8 is VB_BAD_ARGUMENT, naming the byte offset), without BOS.
 * With parse_special, added tokens written in the text are recognised, as Hugging Face does; without, tokens marked
 * "special" are treated as text. *ids is memory of the tokenizer's allocator; the caller frees it with vb_free. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, int parse_special, int32_t **ids,
                     size_t *count, vb_error *err);

/* The bytes of one token as they stand in the text (no UTF-8 repair). Added tokens give their content. NULL when id
 * has no token (a padded vocabulary): callers print nothing for it. The memory belongs to the tokenizer. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *size);

int32_t tokenizer_bos(const struct tokenizer *t);     /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t);     /* -1: none */
int tokenizer_add_bos(const struct tokenizer *t);     /* add_bos_token of tokenizer_config.json */
int32_t tokenizer_size(const struct tokenizer *t);    /* one more than the largest id */
int tokenizer_is_special(const struct tokenizer *t, int32_t id);
const vb_allocator *tokenizer_allocator(const struct tokenizer *t);

#endif
