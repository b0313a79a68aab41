/* engine/files/checkpoint_internal.h -- functions with which the readers of safetensors and GGUF files build a
 * checkpoint. */
#ifndef VB_CHECKPOINT_INTERNAL_H
#define VB_CHECKPOINT_INTERNAL_H

#include "engine/files/checkpoint.h"
#include "engine/base/mapping.h"
#include "engine/base/names.h"

struct checkpoint {
    vb_allocator allocator;
    char *dir;
    struct mapping *mappings;
    struct text *text;       /* chunks of memory that hold names */
    struct copy *copies;     /* memory of matrices that the file stores in another order than attention needs */
    size_t copied;           /* total bytes of the copies */
    struct tensor *tensors;  /* sorted by name after checkpoint_build_index */
    size_t count, room;
    struct name_table names; /* maps a tensor's name to its index in `tensors` */
};

int checkpoint_create(struct checkpoint **out, const char *dir, const vb_allocator *a, vb_error *err);
int checkpoint_no_memory(const struct checkpoint *c, vb_error *err);

/* Copies a string. The copy lives as long as the checkpoint. Returns NULL if there is no memory. */
const char *checkpoint_keep_text(struct checkpoint *c, const char *s);
/* Allocates zeroed memory that lives as long as the checkpoint. Returns NULL if there is no memory. */
void *checkpoint_keep_copy(struct checkpoint *c, size_t bytes);

/* Adds a copy of *t to the checkpoint. The name is copied as well. The string t->file is not copied and must live as
 * long as the checkpoint, as a string from checkpoint_keep_text does. */
int checkpoint_add(struct checkpoint *c, const struct tensor *t, vb_error *err);
/* Sorts the tensors and builds the hash table, after the last checkpoint_add. Returns VB_BAD_CHECKPOINT if two
 * tensors have the same name. */
int checkpoint_build_index(struct checkpoint *c, vb_error *err);
/* Gives tensors of other layouts the names and shapes of a DeepSeek checkpoint (checkpoint_names.c), and builds the
 * index again if it changed a name:
 *   - The prefix of a language model inside a larger model is replaced by "model.".
 *   - The names of Mistral's own files (layers.0.attention.wq_a.weight) are replaced.
 *   - The tensors mlp.experts.gate_up_proj and down_proj of all experts become one matrix for each expert.
 *   - NAME.weight_packed, I32 [rows, cols/8], becomes NAME.weight, I4 [rows, cols].
 *   - NAME.weight_packed or NAME.weight, U8 [rows, cols/2], becomes NAME.weight, F4 [rows, cols].
 *   - A number without dimensions, which is a scale for a whole FP8 matrix, gets the shape [1,1]. */
int checkpoint_rename(struct checkpoint *c, vb_error *err);
/* Ends the opening of a checkpoint. `rc` is the result so far. If rc is VB_OK, the function builds the index unless it
 * has been built, and sets *out to c. After an error, closes c. Returns the error code, or VB_OK. */
int checkpoint_finish(struct checkpoint **out, struct checkpoint *c, int rc, vb_error *err);

#endif
