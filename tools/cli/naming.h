/* tools/cli/naming.h -- translates the names of values between Verbatim and other engines. Verbatim's names follow the modules
 * of Hugging Face's implementation (docs/ORACLE.md). */
#ifndef VB_NAMING_H
#define VB_NAMING_H

#include <stddef.h>

#define NAMING_ROOM 320 /* large enough for a name of any engine, and for two names joined by '+' */

struct naming; /* the names that one engine uses */

/* Finds the names of an engine, such as "llama.cpp". Returns NULL if the engine is unknown. */
const struct naming *naming_find(const char *system);
const char *naming_known(void); /* the known engines: "hf, llama.cpp, megatron, sglang, vllm" */

/* Translates Verbatim's name `ours` to the engine's name. If the engine has no name for this value, or uses its name for
 * another value, out is `ours`. `layers`: the number of layers of the target; the layers after these are MTP modules. */
void naming_to(const struct naming *n, const char *ours, int layers, char out[NAMING_ROOM]);

/* Translates the engine's name `theirs` to Verbatim's name and returns 1. If the other engine does not use the name `theirs` at
 * all, copies `theirs` to out unchanged and returns 0; `theirs` may then be one of Verbatim's own names. For a fused projection, out is two names joined by '+'; the
 * columns of the first come before those of the second. If the engine uses one of Verbatim's names for another value, out is that
 * name followed by " (of another value)". `layers`: as in naming_to. If `layers` is negative, the number is not known, and names
 * that count MTP modules from 0 are not translated. */
int naming_from(const struct naming *n, const char *theirs, int layers, char out[NAMING_ROOM]);

/* Finds the place of a value in the order of computation. Returns the layer of the value, or -1 if the value is not in a layer. For
 * a value that is not in a layer, *last is 1 if it is computed after all layers. Within a layer, a value with a larger *step is
 * computed later. A name that is not Verbatim's gets the last step. */
int naming_place(const char *ours, int *step, int *last);

#endif
