/* engine/base/mapping.h -- files that are memory-mapped read-only: the weights of a checkpoint, in any file format. */
#ifndef VB_MAPPING_H
#define VB_MAPPING_H

#include "engine/base/support.h"

struct mapping {
    struct mapping *next;
    void *data;
    size_t size;
    uint64_t changed; /* when the file was last changed, in nanoseconds since 1970 */
};

/* Maps the file at `path` and adds the mapping at the front of *list. Error messages use `file` as the name of the
 * file, and `kind` as the name of its format. Returns VB_IO, with the path in the message, if the file cannot be read
 * or is not a regular file. Returns VB_BAD_CHECKPOINT if the file has fewer than 8 bytes, and VB_NO_MEMORY if there
 * is no memory. */
int mapping_open(struct mapping **list, const char *path, const char *file, const char *kind, const vb_allocator *a,
                 vb_error *err);
void mapping_close_all(struct mapping **list, const vb_allocator *a);

#endif
