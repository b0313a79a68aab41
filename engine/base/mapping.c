/* engine/base/mapping.c -- maps files into memory and unmaps them. The kernel gets no advice about whole files. In
 * measurements with a checkpoint of 2.6 GB, neither WILLNEED, SEQUENTIAL and HUGEPAGE nor reading the whole file first
 * shortened the time to the first token. Reading the whole file first doubled this time if the file was not cached.
 * With several ranks, advice about parts of a file helps (engine/model/prefetch.h). */
#include "engine/base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int mapping_open(struct mapping **list, const char *path, const char *file, const char *kind, const vb_allocator *a,
                 vb_error *err)
{
    struct mapping *m = vb_alloc(a, 1, sizeof *m);
    struct stat st;
    int fd = -1, rc = VB_OK;

    if (!m)
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory to map it", path);
    else if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0 || fstat(fd, &st))
        rc = vb_fail(err, VB_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = vb_fail(err, VB_IO, "%s: not a regular file", path);
    else if (st.st_size < 8)
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: %lld bytes are no %s file", file, (long long)st.st_size, kind);
    else if ((m->data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        rc = vb_fail(err, VB_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (rc) {
        vb_free(a, m);
        return rc;
    }
    m->size = (size_t)st.st_size;
    m->changed = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    m->next = *list;
    *list = m;
    return VB_OK;
}

void mapping_close_all(struct mapping **list, const vb_allocator *a)
{
    while (*list) {
        struct mapping *m = *list;
        *list = m->next;
        munmap(m->data, m->size);
        vb_free(a, m);
    }
}
