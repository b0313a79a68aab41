/* engine/text/tokenizer.h -- converts text to token ids and back, with byte-level BPE.
 *
 * A tokenizer is defined by a Hugging Face tokenizer.json, by the metadata of a GGUF file, or by a tiktoken.model
 * together with the Python code of Kimi-K2 and Moonlight, or by Mistral's tekken.json. Beside tokenizer.json, the
 * optional file tokenizer_config.json names the BOS and EOS tokens and sets add_bos_token. Beside tiktoken.model,
 * tokenizer_config.json is required: it names the special tokens, and the Python class that implements the tokenizer.
 *
 * An open tokenizer is read-only, and threads may share it. */
#ifndef VB_TOKENIZER_H
#define VB_TOKENIZER_H

#include "engine/base/support.h"

struct vb_tokenizer;

/* Opens the tokenizer of a GGUF file (gguf.c), or of a directory with tokenizer.json, tiktoken.model (tiktoken.c) or
 * tekken.json (tekken.c). If a directory has more than one of them, the first in this order is used. Returns VB_IO if
 * it has none. Returns VB_UNSUPPORTED if tokenizer.json uses a model, normalizer, pre-tokenizer or decoder that is not
 * implemented, or if tiktoken.model belongs to unknown Python code; the message names the unsupported part. The caller
 * closes *out with tokenizer_close. */
int tokenizer_open(struct vb_tokenizer **out, const char *dir, const vb_allocator *a, vb_error *err);

/* Creates a tokenizer from the text of tokenizer.json and of tokenizer_config.json in memory, for tests and fuzzers.
 * `config` may be NULL. `name` is the file name for error messages. */
int tokenizer_parse(struct vb_tokenizer **out, const char *json, size_t size, const char *config, size_t config_size,
                    const char *name, const vb_allocator *a, vb_error *err);
/* Creates a tokenizer from the text of tiktoken.model, `ranks`, and of tokenizer_config.json, `config`, which is
 * required. */
int tokenizer_parse_tiktoken(struct vb_tokenizer **out, const char *ranks, size_t size, const char *config,
                             size_t config_size, const char *name, const vb_allocator *a, vb_error *err);
/* Creates a tokenizer from the text of tekken.json. */
int tokenizer_parse_tekken(struct vb_tokenizer **out, const char *text, size_t size, const char *name,
                           const vb_allocator *a, vb_error *err);
/* Creates a tokenizer from the metadata of an open GGUF file. */
struct gguf;
int tokenizer_parse_gguf(struct vb_tokenizer **out, const struct gguf *g, const vb_allocator *a, vb_error *err);
void tokenizer_close(struct vb_tokenizer *t);

/* Converts text to token ids, without adding BOS. Returns VB_BAD_ARGUMENT if the text is not valid UTF-8, and the
 * message has the byte offset. If parse_special is 1, added tokens that are written in the text become single ids,
 * as with Hugging Face. If parse_special is 0, added tokens marked "special" are encoded like ordinary text. The
 * caller frees *ids with vb_free and the tokenizer's allocator. */
int tokenizer_encode(const struct vb_tokenizer *t, const char *text, size_t size, int parse_special, int32_t **ids,
                     size_t *count, vb_error *err);

/* Returns the bytes of one token, which may be an incomplete UTF-8 character. The bytes of an added token are its text.
 * Returns NULL if no token has this id, which occurs when a model's vocabulary is padded; callers then print nothing.
 * The memory belongs to the tokenizer. */
const char *tokenizer_piece(const struct vb_tokenizer *t, int32_t id, size_t *size);

int32_t tokenizer_bos(const struct vb_tokenizer *t);     /* id of the BOS token; -1: there is none */
int32_t tokenizer_eos(const struct vb_tokenizer *t);     /* id of the EOS token; -1: there is none */
int tokenizer_add_bos(const struct vb_tokenizer *t);     /* the value of add_bos_token in tokenizer_config.json: 1 or
                                                            0 */
int32_t tokenizer_size(const struct vb_tokenizer *t);    /* the largest token id plus 1 */
int tokenizer_is_special(const struct vb_tokenizer *t, int32_t id);
const vb_allocator *tokenizer_allocator(const struct vb_tokenizer *t);

#endif
