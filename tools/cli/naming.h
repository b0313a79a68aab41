/* tools/cli/naming.h -- what other engines call the values that we name after Hugging Face's modules (docs/ORACLE.md). */
#ifndef VB_NAMING_H
#define VB_NAMING_H

#include <stddef.h>

#define NAMING_ROOM 320 /* for a name of either side; two joined ones included */

struct naming; /* of one engine */

/* "llama.cpp", ...; NULL when there is no such. */
const struct naming *naming_find(const char *system);
const char *naming_known(void); /* "hf, llama.cpp, megatron, sglang, vllm" */

/* The engine's name of `ours`; ours again where it has none, or has it for another value. `layers`: of the target, the MTP
 * modules follow them. */
void naming_to(const struct naming *n, const char *ours, int layers, char out[NAMING_ROOM]);

/* Our name of `theirs`, and 1; 0 and the same name where it is unknown: it may be ours. A fused projection gives two of
 * ours with a '+' between them: their columns stand side by side. A name of ours that the engine has for another value
 * comes back as "theirs (of another value)". layers < 0: not known; MTP modules counted from 0 are then not understood. */
int naming_from(const struct naming *n, const char *theirs, int layers, char out[NAMING_ROOM]);

/* Where a name stands in the order of computation: its layer (-1: before or outside the layers; *last is set for what comes
 * after all of them), *step within it, larger later. A name that is not ours comes last in its layer. */
int naming_place(const char *ours, int *step, int *last);

#endif
