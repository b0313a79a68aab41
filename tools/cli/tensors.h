/* tools/cli/tensors.h -- writing a safetensors file whose tensors are not known beforehand.
 *
 * Data goes to a file without a name as it comes. The header is known at the end: the file is put together then, and is whole or is
 * not there (tools/cli/file.h). */
#ifndef VB_TENSORS_H
#define VB_TENSORS_H

#include <jansson.h>
#include <stddef.h>

#include "tools/cli/file.h"

struct tensors {
    struct cli_stream data; /* what is gathered so far, */
    size_t size;            /* and its bytes */
    json_t *header;
};

/* A file without a name in the directory of `path`, for tensors_close or to be read back. Returns 0, or an errno. */
int tensors_begin(struct tensors *t, const char *path);
/* dtype: "F32", "F64", "I32"; shape [rank]; size bytes of data, row-major, little-endian. A name may be used once. A failure is
 * kept in t->data.error. */
void tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank, const void *data,
                 size_t size);
/* Writes the whole file to `to`; progress (may be NULL) is told how much of it is there. Returns 0, or an errno. */
int tensors_write(struct tensors *t, FILE *to, void (*progress)(const char *label, size_t done, size_t total));
void tensors_close(struct tensors *t);

#endif
