/* engine/base/pages.c -- requests pages piece by piece, and chooses between huge and small pages by the time they
 * take. */
#include "engine/base/pages.h"
#include "engine/base/seconds.h"

#include <sys/mman.h>

#define PIECE ((uintptr_t)2 << 20) /* the size of a huge page on x86-64, and on most Arm machines */
#define FEWEST 4                   /* smallest number of pieces for which pages are requested */
#define LAST_FEW 16                /* after so many pieces, the kind of pages is chosen again */
#define SLOW_SECONDS 2e-3          /* a thread clears a piece that the machine has at hand in 0.1 to 0.5 ms */

int pages_open(struct pages *p, const void *memory, size_t bytes, const vb_allocator *a)
{
    uintptr_t begin = ((uintptr_t)memory + PIECE - 1) / PIECE * PIECE,
              end = ((uintptr_t)memory + bytes) / PIECE * PIECE;
    *p = (struct pages){.allocator = a, .begin = begin, .count = end > begin ? (end - begin) / PIECE : 0};
    if (p->count < FEWEST)
        return VB_OK;
    p->claimed = vb_alloc(a, p->count, 1);
    return p->claimed ? VB_OK : VB_NO_MEMORY;
}

/* Notes whether a request was slow, and after every LAST_FEW requests chooses the kind of pages for the next ones. */
static void note(struct pages *p, int was_slow)
{
    if (was_slow)
        __atomic_add_fetch(&p->slow, 1, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&p->asked, 1, __ATOMIC_RELAXED) % LAST_FEW)
        return;
    if (__atomic_exchange_n(&p->slow, 0, __ATOMIC_RELAXED) > LAST_FEW / 2)
        __atomic_xor_fetch(&p->small, 1, __ATOMIC_RELAXED);
}

static void request(struct pages *p, size_t piece)
{
#ifdef MADV_POPULATE_WRITE /* older kernels refuse it; then each page is cleared when a thread writes it */
    void *at = (void *)(p->begin + piece * PIECE);
    double start = monotonic_seconds();
    madvise(at, PIECE, __atomic_load_n(&p->small, __ATOMIC_RELAXED) ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    if (!madvise(at, PIECE, MADV_POPULATE_WRITE))
        note(p, monotonic_seconds() - start > SLOW_SECONDS);
#else
    (void)p, (void)piece, (void)note;
#endif
}

void pages_want(struct pages *p, const void *from, size_t bytes)
{
    uintptr_t begin = (uintptr_t)from, end = begin + bytes;
    if (!p->claimed || end <= p->begin)
        return;
    size_t first = begin > p->begin ? (begin - p->begin) / PIECE : 0, last = (end - p->begin + PIECE - 1) / PIECE;
    for (size_t i = first; i < last && i < p->count; i++)
        if (!__atomic_exchange_n(&p->claimed[i], 1, __ATOMIC_RELAXED))
            request(p, i);
}

void pages_close(struct pages *p)
{
    if (p->claimed)
        madvise((void *)p->begin, p->count * PIECE, MADV_HUGEPAGE);
    vb_free(p->allocator, p->claimed);
    p->claimed = NULL;
}
