/* tools/cli/tensors.h -- writes a safetensors file when its tensors are not known in advance.
 *
 * The data of each tensor is first written to a temporary file without a name. At the end the header is known, and the
 * complete file is written through tools/cli/file.h, so that no partial file is left behind. */
#ifndef VB_TENSORS_H
#define VB_TENSORS_H

#include <jansson.h>
#include <stddef.h>

#include "tools/cli/file.h"

struct tensors {
    struct cli_stream data; /* the temporary file with the data so far */
    size_t size;            /* the number of bytes in `data` */
    vb_tensor *list;        /* [count]: the tensors so far */
    size_t count;
    json_t *names;          /* an object whose keys are the names of the tensors */
};

/* Creates the temporary file, in the directory of `path`. End with tensors_close. Returns 0, or an errno. */
int tensors_begin(struct tensors *t, const char *path);
/* Adds a tensor with `size` bytes of data, row-major and little-endian. `dtype`: a string constant such as "F32". Each
 * name may be used once. If writing fails, t->data.error is set. */
void tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank,
                 const void *data, size_t size);
/* Writes the complete safetensors file to `fd`, an empty file; `path` is its name for error messages. Shows progress.
 * Stops with VB_STOPPED if cli_stopped() is nonzero. Returns VB_OK or an error code. */
int tensors_write(struct tensors *t, int fd, const char *path, vb_error *err);
void tensors_close(struct tensors *t);

#endif
