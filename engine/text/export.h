/* engine/text/export.h -- what a program that writes a tokenizer in another format asks of it: its parts as JSON, and
 * comparisons with what was read back. */
#ifndef VB_TEXT_EXPORT_H
#define VB_TEXT_EXPORT_H

#include "engine/text/tokenizer.h"

#include <jansson.h>

/* 1: DIR has tiktoken.model, and no tokenizer.json; 0; else an error. */
int tokenizer_is_tiktoken(const char *dir, const vb_allocator *a, vb_error *err);

/* The files of a directory in tiktoken's format as tokenizer.json and tokenizer_config.json would say them; reserved tokens from
 * id `limit` on are left out. The caller owns both objects. */
int tokenizer_say_tiktoken(json_t **json, json_t **config, const char *dir, int32_t limit, const vb_allocator *a, vb_error *err);
/* The tokenizer that two such objects describe. */
int tokenizer_parse_said(struct tokenizer **out, json_t *json, json_t *config, const char *name, const vb_allocator *a,
                         vb_error *err);

/* The tokenizer.ggml.pre of how a tokenizer cuts words, by trial (words.c); NULL: none that is known here. */
int tokenizer_pre_of(const struct tokenizer *t, const char **name, vb_error *err);

/* Whether tokens, merges and flags are equal; patterns and what added tokens strip are not compared. */
int tokenizer_same_tables(const struct tokenizer *a, const struct tokenizer *b);
/* How many added tokens strip blanks beside them or match only as whole words. */
int tokenizer_count_stripping(const struct tokenizer *t);
/* Whether long texts are cut first, as Kimi's Python code does (slices.c). */
int tokenizer_cuts_slices(const struct tokenizer *t);

#endif
