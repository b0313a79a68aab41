/* engine/base/support.c -- errors, memory, whole files. */
#include "engine/base/support.h"
#include "engine/base/decimal.h"
#include "engine/base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_STREAMED ((size_t)1 << 30) /* most bytes that are read from a stream; for example, /dev/zero never ends */
#define HUGE_PAGES ((size_t)8 << 20) /* smallest size in bytes for which huge pages are requested */

/* Copies as many complete characters of a sentence as fit. The sentence may contain any bytes: bytes that are not UTF-8
 * become U+FFFD, and control characters become '?'. */
static void put_clean(char *out, size_t room, const char *sentence)
{
    char text[3 * (sizeof((vb_error *)0)->message + 4) + 12];
    struct utf8_stream stream = {0};
    size_t n = utf8_stream_push(&stream, sentence, strlen(sentence), text), used = 0, size;
    if (strlen(sentence) < room - 1) /* otherwise the sentence was cut, perhaps inside a character */
        n += utf8_stream_finish(&stream, text + n);
    for (size_t i = 0; i < n; i += size) {
        uint32_t c = utf8_at(text + i, &size);
        int control = c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029;
        if (used + size >= room)
            break;
        memcpy(out + used, control ? "?" : text + i, control ? 1 : size);
        used += control ? 1 : size;
    }
    out[used] = '\0';
}

int vb_fail(vb_error *err, int code, const char *format, ...)
{
    if (err) {
        char sentence[sizeof err->message];
        va_list args;
        va_start(args, format);
        decimal_vprint(sentence, sizeof sentence, format, args);
        va_end(args);
        put_clean(err->message, sizeof err->message, sentence);
        err->code = code;
    }
    return code;
}

#define BEFORE 128 /* a block begins at least 64 bytes before the address that the caller receives; the word before this
                      address is the address to free */

static void *align(char *block)
{
    char *aligned = (char *)(((uintptr_t)block + BEFORE - 1) & ~(uintptr_t)63);
    memcpy(aligned - sizeof block, &block, sizeof block);
    return aligned;
}

void *vb_alloc(const vb_allocator *a, size_t count, size_t size)
{
    if (size && count > (SIZE_MAX - BEFORE) / size)
        return NULL;
    size_t total = count * size + BEFORE;
    int given = a && a->alloc;
    char *block = given ? a->alloc(a->context, total) : calloc(1, total); /* calloc does not touch pages that are never
                                                                             used */
    if (block && given)
        memset(block, 0, total);
    return block ? align(block) : NULL;
}

void *vb_alloc_unset(const vb_allocator *a, size_t size)
{
    char *block = size > SIZE_MAX - BEFORE ? NULL
                  : a && a->alloc ? a->alloc(a->context, size + BEFORE)
                  : malloc(size + BEFORE);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)block + page - 1) / page * page;
    if (block && size >= HUGE_PAGES)
        madvise((void *)begin, ((uintptr_t)block + size - begin) / page * page, MADV_HUGEPAGE); /* may fail */
    return block ? align(block) : NULL;
}

void vb_free(const vb_allocator *a, void *aligned)
{
    if (!aligned)
        return;
    char *block;
    memcpy(&block, (char *)aligned - sizeof block, sizeof block);
    if (a && a->free)
        a->free(a->context, block);
    else
        free(block);
}

char *vb_strdup(const vb_allocator *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = vb_alloc(a, n, 1);
    return copy ? memcpy(copy, s, n) : NULL;
}

/* Reads until `size` bytes have been read or the file ends. Returns the number of bytes, or -1 with the reason in
 * errno. */
static ssize_t read_all(int fd, char *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, data + done, size - done);
        if (n < 0 && errno != EINTR)
            return -1;
        if (n == 0)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)done;
}

static int read_regular(int fd, size_t size, const vb_allocator *a, const char *path, char **data, vb_error *err)
{
    if (!(*data = vb_alloc(a, size + 1, 1)))
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for its %zu bytes", path, size);
    ssize_t n = read_all(fd, *data, size);
    if (n == (ssize_t)size)
        return VB_OK;
    int code = n < 0 ? vb_fail(err, VB_IO, "%s: %s", path, strerror(errno))
                     : vb_fail(err, VB_IO, "%s: read %zd of %zu bytes", path, n, size);
    vb_free(a, *data);
    *data = NULL;
    return code;
}

int vb_read_file(const vb_allocator *a, const char *path, char **data, size_t *size, vb_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code; /* O_NONBLOCK: otherwise opening a pipe would wait for
                                                                     a writer; pipes are refused below */
    *data = NULL;
    *size = 0;
    if (fd < 0 || fstat(fd, &st))
        code = vb_fail(err, VB_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        code = vb_fail(err, VB_IO, "%s: not a regular file", path);
    else
        code = read_regular(fd, *size = (size_t)st.st_size, a, path, data, err);
    if (fd >= 0)
        close(fd);
    return code;
}

/* Reads until the end. The size of the buffer doubles each time it is full. */
static int read_stream(int fd, const vb_allocator *a, const char *path, char **data, size_t *size, vb_error *err)
{
    for (size_t room = 1 << 16;; room *= 2) {
        char *more = room <= MOST_STREAMED ? vb_alloc(a, room + 1, 1) : NULL;
        if (more && *size)
            memcpy(more, *data, *size);
        vb_free(a, *data);
        *data = more;
        if (!more)
            return room <= MOST_STREAMED
                       ? vb_fail(err, VB_NO_MEMORY, "%s: no memory for more than %zu bytes", path, *size)
                       : vb_fail(err, VB_IO, "%s: more than %zu bytes", path, (size_t)MOST_STREAMED);
        ssize_t n = read_all(fd, *data + *size, room - *size);
        if (n < 0)
            return vb_fail(err, VB_IO, "%s: %s", path, strerror(errno));
        *size += (size_t)n;
        (*data)[*size] = '\0';
        if (*size < room)
            return VB_OK;
    }
}

int vb_read_input(const vb_allocator *a, const char *path, char **data, size_t *size, vb_error *err)
{
    struct stat st;
    int is_stdin = !path, fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC), code;
    const char *name = is_stdin ? "stdin" : path;
    *data = NULL;
    *size = 0;
    if (fd < 0 || fstat(fd, &st))
        code = vb_fail(err, VB_IO, "%s: %s", name, strerror(errno));
    else if (S_ISREG(st.st_mode) && !is_stdin)
        code = read_regular(fd, *size = (size_t)st.st_size, a, name, data, err);
    else
        code = read_stream(fd, a, name, data, size, err);
    if (code) {
        vb_free(a, *data);
        *data = NULL;
    }
    if (fd >= 0 && !is_stdin)
        close(fd);
    return code;
}

char *vb_path(const vb_allocator *a, const char *dir, const char *name)
{
    size_t n = strlen(dir), m = strlen(name);
    char *path = vb_alloc(a, n + m + 2, 1);
    if (path) {
        memcpy(path, dir, n);
        path[n] = '/';
        memcpy(path + n + 1, name, m);
    }
    return path;
}

int vb_ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

int vb_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

int vb_write_all(int fd, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)bytes + done, size - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return n ? errno : EIO;
    }
    return 0;
}

int vb_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}
