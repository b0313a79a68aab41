/* engine/base/support.h -- what every file of engine/ needs: errors, memory, reading whole files. There is no global
 * state. */
#ifndef VB_SUPPORT_H
#define VB_SUPPORT_H

#include "engine/verbatim.h"

#include <stdarg.h>

/* Fills *err and returns `code`, so that a function that fails can end with `return vb_fail(err, ...)`. err may be
 * NULL. An error that is already in *err is overwritten, and the arguments may include the old message. A message that
 * is longer than vb_error.message is cut. Arguments may come from untrusted files: bytes that are not UTF-8 become
 * U+FFFD, and control characters become '?'. */
int vb_fail(vb_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Allocate and free memory with the functions of `a`, or with malloc and free if `a` or its functions are NULL.
 * vb_alloc returns zeroed memory that is aligned to 64 bytes. It returns NULL if there is no memory or if count * size
 * overflows. vb_free accepts NULL. */
void *vb_alloc(const vb_allocator *a, size_t count, size_t size);
void vb_free(const vb_allocator *a, void *block);
/* Allocates a block that is not zeroed: the caller must write a byte before it reads it. A block of 8 MiB or more
 * consists of huge pages if the kernel provides them. In a measurement, weights in huge pages were read twice as fast.
 * vb_free frees the memory. */
void *vb_alloc_unset(const vb_allocator *a, size_t size);
char *vb_strdup(const vb_allocator *a, const char *s);

/* Reads a whole file into *data and its length into *size. A 0 byte, which *size does not count, follows the data.
 * The caller frees *data with vb_free. Returns VB_IO, with the path in the message, if the file is missing, cannot
 * be read to its end, or is not a regular file. */
int vb_read_file(const vb_allocator *a, const char *path, char **data, size_t *size, vb_error *err);
/* Does what vb_read_file does, but also reads a pipe or a terminal to its end, up to 1 GiB. It is meant for files that
 * a user names on the command line. A NULL path means stdin. */
int vb_read_input(const vb_allocator *a, const char *path, char **data, size_t *size, vb_error *err);

/* Returns "DIR/NAME" in memory of `a`, or NULL if there is no memory. */
char *vb_path(const vb_allocator *a, const char *dir, const char *name);

/* Returns 1 if a file or directory of this name exists, else 0. */
int vb_file_exists(const char *path);
int vb_ends_with(const char *s, const char *end); /* returns whether s ends with `end` */
/* Writes all bytes, and continues after a signal. Returns 0, or the value of errno. */
int vb_write_all(int fd, const void *bytes, size_t size);

/* Returns how many processors the affinity mask of the calling thread allows. */
int vb_processors(void);

#endif
