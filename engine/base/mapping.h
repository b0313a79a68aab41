/* engine/base/mapping.h -- files mapped read-only: the bytes of weights, whatever the format around them. */
#ifndef VB_MAPPING_H
#define VB_MAPPING_H

#include "engine/base/support.h"

struct mapping {
    struct mapping *next;
    void *data;
    size_t size;
};

/* Maps the file at `path` and puts it at the head of *list. Not a regular file, or one that cannot be read, is VB_IO, naming
 * the path; one of fewer than 8 bytes is VB_BAD_CHECKPOINT: `file`: N bytes are no `kind` file. */
int mapping_open(struct mapping **list, const char *path, const char *file, const char *kind, const vb_allocator *a,
                 vb_error *err);
void mapping_close_all(struct mapping **list, const vb_allocator *a);

#endif
