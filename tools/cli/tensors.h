/* tools/cli/tensors.h -- writes a safetensors file when its tensors are not known in advance.
 *
 * The data of each tensor is first written to a temporary file without a name. At the end the header is known, and the complete
 * file is written through tools/cli/file.h, so that no partial file is left behind. */
#ifndef VB_TENSORS_H
#define VB_TENSORS_H

#include <jansson.h>
#include <stddef.h>

#include "tools/cli/file.h"

struct tensors {
    struct cli_stream data; /* the temporary file with the data so far */
    size_t size;            /* the number of bytes in it */
    json_t *header;         /* the entries of the tensors so far */
};

/* Creates the temporary file, in the directory of `path`. End with tensors_close. Returns 0, or an errno. */
int tensors_begin(struct tensors *t, const char *path);
/* Adds a tensor with `size` bytes of data, row-major and little-endian. `dtype`: "F32", "F64" or "I32". Each name may be used
 * once. If writing fails, t->data.error is set. */
void tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank, const void *data,
                 size_t size);
/* Writes the complete safetensors file to `to`. Calls progress, unless it is NULL, with the number of bytes so far. Returns 0,
 * or an errno. */
int tensors_write(struct tensors *t, FILE *to, void (*progress)(const char *label, size_t done, size_t total));
void tensors_close(struct tensors *t);

#endif
