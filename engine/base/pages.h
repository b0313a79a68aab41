/* engine/base/pages.h -- makes the kernel give new memory its pages shortly before the memory is written.
 *
 * The kernel clears each page of new memory when the page is first written. The threads that write the memory call
 * pages_want for the next megabytes, so that they clear pages side by side, and with few system calls.
 *
 * The pages are huge pages, because weights in huge pages are read faster. But some virtual machines have returned all
 * large free blocks to their host. There a huge page takes milliseconds, while the smaller free blocks are ready. If
 * most of the last requests were slow, pages_want changes to small pages, and back when these are slow. pages_close
 * allows the kernel to replace the small pages by huge pages later, in the background. */
#ifndef VB_PAGES_H
#define VB_PAGES_H

#include "engine/base/support.h"

struct pages {
    const vb_allocator *allocator;
    uintptr_t begin;        /* start of the first piece */
    size_t count;           /* number of pieces: parts of the memory that have the size and the alignment of a huge
                               page */
    unsigned char *claimed; /* one byte for each piece: 1 once a thread has asked for its pages; NULL: nothing is
                               done */
    int small;              /* 1: the next pieces get small pages */
    unsigned asked, slow;   /* the number of pieces whose pages were requested, and how many of the last few were
                               slow */
};

/* Begins with `bytes` bytes of memory that nobody has written. Returns VB_NO_MEMORY if there is no memory for the list
 * of pieces. If `bytes` are only a few megabytes, there is no list, and the other two functions do nothing. */
int pages_open(struct pages *p, const void *memory, size_t bytes, const vb_allocator *a);
/* Gives pages to all pieces that overlap [from, from + bytes), unless a thread has asked for them already. Threads may
 * call this at the same time, and may write the memory at any time. No byte changes. */
void pages_want(struct pages *p, const void *from, size_t bytes);
void pages_close(struct pages *p);

#endif
