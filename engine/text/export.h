/* engine/text/export.h -- functions for converting a tokenizer to another file format, as `quantize` does for GGUF.
 *
 * The functions return a tokenizer of tiktoken.model or tekken.json as JSON, find GGUF's name for a pre-tokenizer (the
 * step that cuts text into words), and compare two tokenizers, for example an original and its converted form. */
#ifndef VB_TEXT_EXPORT_H
#define VB_TEXT_EXPORT_H

#include "engine/text/tokenizer.h"

#include <jansson.h>

/* Returns 1 if the directory has tiktoken.model or tekken.json and no tokenizer.json, else 0, or a negative error
 * code. */
int tokenizer_has_ranks(const char *dir, const vb_allocator *a, vb_error *err);

/* Reads the tokenizer of such a directory and returns it as two JSON objects, with the contents that tokenizer.json and
 * tokenizer_config.json would have. Reserved tokens of tiktoken.model with ids of `limit` or more are left out. The
 * caller owns both objects and releases them with json_decref. */
int tokenizer_say_ranks(json_t **json, json_t **config, const char *dir, int32_t limit, const vb_allocator *a,
                        vb_error *err);
/* Creates a tokenizer from two JSON objects such as tokenizer_say_ranks returns. The caller remains the owner of
 * the objects. `name` is the file name for error messages. */
int tokenizer_parse_said(struct vb_tokenizer **out, json_t *json, json_t *config, const char *name,
                         const vb_allocator *a, vb_error *err);

/* Finds the GGUF name (the value of tokenizer.ggml.pre) for the way in which a tokenizer cuts text into words. The
 * function compares the words of many test strings (words.c). *name becomes a string constant, or NULL if the
 * tokenizers of all known names cut text in another way. */
int tokenizer_pre_of(const struct vb_tokenizer *t, const char **name, vb_error *err);

/* Returns 1 if both tokenizers have the same tokens, merges and flags, else 0. The function does not compare the
 * patterns that cut text into words, and it does not compare whether added tokens remove the white space beside
 * them. */
int tokenizer_same_tables(const struct vb_tokenizer *a, const struct vb_tokenizer *b);
/* Returns how many added tokens remove the white space beside them or match only as whole words. */
int tokenizer_count_stripping(const struct vb_tokenizer *t);
/* Returns 1 if long texts are first cut into slices, as Kimi's Python code does (slices.c). */
int tokenizer_cuts_slices(const struct vb_tokenizer *t);

#endif
