/* engine/base/support.h -- what every file of engine/ needs: errors, memory, whole files. No global state. */
#ifndef VB_SUPPORT_H
#define VB_SUPPORT_H

#include "engine/verbatim.h"

#include <stdarg.h>

/* Fills *err (may be NULL) and returns `code`, so that a failing function can say `return vb_fail(err, ...)`.
 * An error already set is overwritten, and may be one of the arguments. The sentence is cut at the size of vb_error.message.
 * Names from outside may be anything: what is not UTF-8 becomes U+FFFD, a control character '?'. */
int vb_fail(vb_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Memory of `a` (NULL, or with NULL functions: malloc). vb_alloc returns 64-byte aligned memory, zeroed, or NULL;
 * count * size that overflows returns NULL. vb_free accepts NULL. */
void *vb_alloc(const vb_allocator *a, size_t count, size_t size);
void vb_free(const vb_allocator *a, void *block);
/* The same for much memory that is going to be written as a whole: not zeroed, in huge pages where the kernel has them
 * (measured: reading it back is twice as fast). */
void *vb_alloc_unset(const vb_allocator *a, size_t size);
char *vb_strdup(const vb_allocator *a, const char *s);

/* The bytes of a whole file, with a 0 byte appended that *size does not count. The caller frees *data with vb_free.
 * What is no regular file, a missing file or a short read is VB_IO, naming the path. */
int vb_read_file(const vb_allocator *a, const char *path, char **data, size_t *size, vb_error *err);
/* The same for what a user wrote: a pipe or a terminal is read to its end, at most 1 GiB. A NULL path is stdin. */
int vb_read_input(const vb_allocator *a, const char *path, char **data, size_t *size, vb_error *err);

/* "DIR/NAME" in memory of `a`, or NULL. */
char *vb_path(const vb_allocator *a, const char *dir, const char *name);

/* 0 when there is no such file, 1 when there is. */
int vb_file_exists(const char *path);

/* Those of the affinity mask. */
int vb_processors(void);

#endif
