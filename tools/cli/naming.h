/* tools/cli/naming.h -- translates the names of values between Verbatim and other engines. Verbatim's names follow the
 * modules of Hugging Face's implementation (docs/ORACLE.md). */
#ifndef VB_NAMING_H
#define VB_NAMING_H

#include <stddef.h>

#define NAMING_ROOM 320 /* large enough for a name of any engine, and for two names joined by '+' */

struct naming; /* the names that one engine uses */

/* Finds the names that the engine `system` uses, for example "llama.cpp". Returns NULL if the engine is unknown. */
const struct naming *naming_find(const char *system);
const char *naming_known(void); /* the known engines: "hf, llama.cpp, megatron, sglang, vllm" */

/* Translates Verbatim's name `ours` to the engine's name. If the engine has no name for this value, out is `ours`, even
 * if the engine uses that name for another value. `layers`: the number of layers of the target; the layers after these
 * are MTP modules. */
void naming_to(const struct naming *n, const char *ours, int layers, char out[NAMING_ROOM]);

/* Translates the engine's name `theirs` to Verbatim's name and returns 1. If the engine does not use the name `theirs`,
 * copies `theirs` to out and returns 0; `theirs` may then be one of Verbatim's own names. A fused projection gets two
 * names joined by '+'; the columns of the first come before those of the second. If `theirs` is one of Verbatim's
 * names, but the engine uses it for another value, out is `theirs` followed by " (of another value)". `layers`: as in
 * naming_to; negative if the number is not known. Then names that count MTP modules from 0 are not translated. */
int naming_from(const struct naming *n, const char *theirs, int layers, char out[NAMING_ROOM]);

/* Whether `name` is a name of Verbatim. */
int naming_is_ours(const char *name);

/* Whether `name` stands for attention scores or probabilities of one head, or for the scores or kept tokens of an
 * indexer. Their rows have one number for each token of the context, so later rows are longer. */
int naming_of_context(const char *name);

/* Finds the place of a value in the order of computation. Returns the layer of the value, or -1 if the value is not in
 * a layer. For a value that is not in a layer, *last is 1 if it is computed after all layers. *step orders the values
 * within a layer: a value with a larger *step is computed later. If Verbatim does not know the name `ours`, *step is
 * larger than for all known names. */
int naming_place(const char *ours, int *step, int *last);

#endif
