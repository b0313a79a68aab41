/* tools/tensors.h -- writing a safetensors file whose tensors are not known beforehand.
 *
 * Data goes to FILE.<pid>.part as it comes; the header is known at the end, so the file is then put together and renamed:
 * FILE is whole or is not there. */
#ifndef VB_TENSORS_H
#define VB_TENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

struct tensors {
    char *path, *part;  /* the file, and where its data gathers */
    FILE *data;
    size_t size;        /* of the data so far */
    json_t *header;
    char error[512];    /* one sentence, once something failed; later calls do nothing */
};

/* All return 0, or -1 with a sentence in `error`. After begin, even a failed one, call end or abandon. */
int tensors_begin(struct tensors *t, const char *path);
/* dtype: "F32", "F64", "I32"; shape [rank]; size bytes of data, row-major, little-endian. A name may be used once. */
int tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank, const void *data,
                size_t size);
/* progress (may be NULL) is told how much of the file is there. */
int tensors_end(struct tensors *t, void (*progress)(const char *label, size_t done, size_t total));
void tensors_abandon(struct tensors *t);

#endif
