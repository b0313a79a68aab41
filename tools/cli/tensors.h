/* tools/cli/tensors.h -- writing a safetensors file whose tensors are not known beforehand.
 *
 * Data goes to FILE.<pid>.part as it comes; the header is known at the end, so the file is then put together and renamed:
 * FILE is whole or is not there. */
#ifndef VB_TENSORS_H
#define VB_TENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

struct tensors {
    char *path, *part, *whole; /* the file, where its data gathers, and where it is put together */
    FILE *data;
    size_t size;        /* of the data so far */
    json_t *header;
    char error[512];    /* one sentence, once something failed; later calls do nothing */
};

/* All return 0, or -1 with a sentence in `error`. After begin, even a failed one, call close. */
int tensors_begin(struct tensors *t, const char *path);
/* dtype: "F32", "F64", "I32"; shape [rank]; size bytes of data, row-major, little-endian. A name may be used once. */
int tensors_add(struct tensors *t, const char *name, const char *dtype, const size_t *shape, size_t rank, const void *data,
                size_t size);
/* Writes the whole file beside its place; progress (may be NULL) is told how much of it is there. */
int tensors_finish(struct tensors *t, void (*progress)(const char *label, size_t done, size_t total));
/* Gives it its name. */
int tensors_rename(struct tensors *t);
/* Drops what has not got its name, and all memory. */
void tensors_close(struct tensors *t);

#endif
