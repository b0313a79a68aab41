/* engine/files/checkpoint_internal.h -- what the readers of the two file formats share: a checkpoint while it is being filled. */
#ifndef VB_CHECKPOINT_INTERNAL_H
#define VB_CHECKPOINT_INTERNAL_H

#include "engine/files/checkpoint.h"
#include "engine/base/mapping.h"
#include "engine/base/names.h"

struct checkpoint {
    vb_allocator allocator;
    char *dir;
    struct mapping *mappings;
    struct text *text;
    struct copy *copies;    /* what lies in the file in another order than it is used */
    size_t copied;          /* bytes of them */
    struct tensor *tensors; /* sorted by name once complete */
    size_t count, room;
    struct name_table names; /* of tensors: their index */
};

int checkpoint_create(struct checkpoint **out, const char *dir, const vb_allocator *a, vb_error *err);
int checkpoint_no_memory(const struct checkpoint *c, vb_error *err);

/* A copy of the string that lives as long as the checkpoint, or NULL. */
const char *checkpoint_keep_text(struct checkpoint *c, const char *s);
/* Memory that lives as long as the checkpoint, or NULL. */
void *checkpoint_keep_copy(struct checkpoint *c, size_t bytes);

/* Appends a copy of *t, its name too; t->file must outlive the checkpoint (checkpoint_keep_text). */
int checkpoint_add(struct checkpoint *c, const struct tensor *t, vb_error *err);
/* After the last: sorts, refuses a name that is there twice, and builds the hash table. */
int checkpoint_build_index(struct checkpoint *c, vb_error *err);

#endif
