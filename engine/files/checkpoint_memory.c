/* engine/files/checkpoint_memory.c -- locks bytes of the mapped files into memory, reads them in advance, or releases
 * them. */
#include "engine/files/checkpoint_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct mapping *mapping_of(const struct checkpoint *c, const void *data)
{
    const struct mapping *m = c->mappings;
    while (m && ((uintptr_t)data < (uintptr_t)m->data || (uintptr_t)data >= (uintptr_t)m->data + m->size))
        m = m->next;
    return m;
}

void checkpoint_release(const struct checkpoint *c, const void *data, size_t bytes)
{
    if (!bytes || !mapping_of(c, data)) /* copies are not mapped from a file */
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data / page * page;
    /* The first and the last page may also contain bytes of other tensors. The kernel reads these pages again when they
     * are needed. */
    madvise((void *)begin, (uintptr_t)data + bytes - begin, MADV_DONTNEED);
}

void checkpoint_read_ahead(const struct checkpoint *c, int on)
{
    for (const struct mapping *m = c->mappings; m; m = m->next)
        madvise(m->data, m->size, on ? MADV_NORMAL : MADV_RANDOM);
}

#define REQUEST ((uintptr_t)128 << 10) /* the kernel shortens larger requests to its read-ahead window, by default 128
                                          KB */

void checkpoint_prefetch(const struct checkpoint *c, const void *data, size_t bytes)
{
    if (!bytes || !mapping_of(c, data))
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = (uintptr_t)data + bytes;
    for (uintptr_t at = (uintptr_t)data / page * page; at < end; at += REQUEST)
        madvise((void *)at, end - at < REQUEST ? end - at : REQUEST, MADV_WILLNEED);
}

/* ---- locking ---- */

struct range { /* a range of bytes; the kernel extends it to whole pages */
    uintptr_t begin, end;
};

static struct range range_of(const void *data, size_t bytes)
{
    return (struct range){(uintptr_t)data, (uintptr_t)data + bytes};
}

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Lists the ranges of the mappings that the model reads. If no tensor was copied, these are the whole mappings.
 * Otherwise they are the tensors that were not copied. Returns the number of ranges. */
static size_t list_ranges(const struct checkpoint *c, struct range *r)
{
    size_t count = 0, merged = 0, copied = 0, page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < c->count; i++)
        copied += c->tensors[i].copied != 0;
    for (const struct mapping *m = c->mappings; m && !copied; m = m->next)
        r[count++] = range_of(m->data, m->size);
    for (size_t i = 0; i < c->count && copied; i++)
        if (!c->tensors[i].copied && c->tensors[i].bytes && mapping_of(c, c->tensors[i].data))
            r[count++] = range_of(c->tensors[i].data, c->tensors[i].bytes);
    if (count)
        qsort(r, count, sizeof *r, by_begin);
    for (size_t i = 0; i < count; i++) { /* adjacent ranges are merged, so that fewer calls of mlock are needed */
        if (merged && r[i].begin < r[merged - 1].end + page)
            r[merged - 1].end = r[i].end > r[merged - 1].end ? r[i].end : r[merged - 1].end;
        else
            r[merged++] = r[i];
    }
    return merged;
}

static int cannot_lock(const struct checkpoint *c, size_t total, int why, vb_error *err)
{
    struct rlimit limit;
    if ((why == ENOMEM || why == EPERM || why == EAGAIN) && !getrlimit(RLIMIT_MEMLOCK, &limit) &&
        limit.rlim_cur < total)
        return vb_fail(err, VB_NO_MEMORY,
                       "%s: its %zu bytes cannot be locked into memory: the limit (RLIMIT_MEMLOCK, ulimit -l) "
                       "is %llu bytes",
                       c->dir, total, (unsigned long long)limit.rlim_cur);
    return vb_fail(err, VB_NO_MEMORY, "%s: its %zu bytes cannot be locked into memory: %s", c->dir, total,
                   strerror(why));
}

int checkpoint_lock(const struct checkpoint *c, const void *copies, size_t more, vb_error *err)
{
    size_t mappings = 0, count, locked = 0, total = 0;
    for (const struct mapping *m = c->mappings; m; m = m->next)
        mappings++;
    struct range *r = vb_alloc(&c->allocator, c->count + mappings + 1, sizeof *r);
    if (!r)
        return checkpoint_no_memory(c, err);
    count = list_ranges(c, r);
    if (more)
        r[count++] = range_of(copies, more);
    for (size_t i = 0; i < count; i++)
        total += r[i].end - r[i].begin;
    while (locked < count && !mlock((void *)r[locked].begin, r[locked].end - r[locked].begin))
        locked++;
    int why = errno, failed = locked < count;
    for (size_t i = 0; failed && i < locked; i++)
        munlock((void *)r[i].begin, r[i].end - r[i].begin);
    vb_free(&c->allocator, r);
    return failed ? cannot_lock(c, total, why, err) : VB_OK;
}

void checkpoint_unlock(const void *copies, size_t more)
{
    munlock(copies, more);
}
