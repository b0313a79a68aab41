/* tests/cuda/watch.cc -- see watch.h. For each byte it keeps the last write, and the reads since then. */
#include "tests/cuda/watch.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/lanes.h"

extern "C" char __start_lanes_shared[], __stop_lanes_shared[];

/* ---- one access ---- */

/* Who accessed a byte, and when. A barrier of the block or of the warp begins a new period. The number of a block is
 * not used again in the process. */
struct access {
    uint64_t block : 30, thread : 11, period : 11, warp_period : 12; /* periods modulo 2^11 and 2^12 */
};

/* In place of a thread: several that have read a byte, with no barrier between them. */
enum { LANES_OF_WARP = 1024 /* + warp */, THREADS_OF_BLOCK = LANES_OF_WARP + 32, THREADS_OF_BLOCKS, BY_READ_ONCE };

struct cell {
    struct access write, read;
};

static struct access now;
static unsigned first_block; /* of the present launch */
static unsigned warp_periods[32];

/* Whether an access of the same launch is meant: of the same block, if the memory is shared. */
static int is_recent(struct access a, int is_shared)
{
    return is_shared ? a.block == now.block : a.block >= first_block;
}
static unsigned warp_of(struct access a) { return a.thread < LANES_OF_WARP ? a.thread / 32 : a.thread - LANES_OF_WARP; }

/* Whether an earlier access of this launch is by the present thread, or a barrier lies between the two. */
static int is_before(struct access a)
{
    if (a.thread >= THREADS_OF_BLOCKS || a.block != now.block)
        return 0;
    return a.thread == now.thread || a.period != now.period ||
           (warp_of(a) == warp_of(now) && a.warp_period != now.warp_period);
}

/* What stands for the earlier reads and the present one. */
static struct access joined(struct access read)
{
    struct access all = now;
    if (is_before(read))
        return now;
    if (read.thread == BY_READ_ONCE)
        return read;
    if (read.block != now.block || read.thread == THREADS_OF_BLOCKS)
        all.thread = THREADS_OF_BLOCKS;
    else
        all.thread = warp_of(read) == warp_of(now) ? LANES_OF_WARP + warp_of(now) : (unsigned)THREADS_OF_BLOCK;
    return all;
}

/* ---- errors ---- */

enum kind { READ, WRITE, READ_ONCE };
static const char *const verb[] = {"reads", "writes", "reads by read_once"};

static void fail(enum kind kind, size_t bytes, const char *what)
{
    fprintf(stderr, "a thread %s %zu bytes: %s\n", verb[kind], bytes, what);
    abort();
}

static void fail_for(enum kind kind, size_t bytes, const char *did, struct access other)
{
    char what[200], who[80];
    if (other.thread < LANES_OF_WARP)
        snprintf(who, sizeof who, "thread %u of %s block has", (unsigned)other.thread,
                 other.block == now.block ? "this" : "another");
    else
        snprintf(who, sizeof who, "%s",
                 other.thread == BY_READ_ONCE ? "read_once has"
                 : other.thread == THREADS_OF_BLOCKS ? "threads of several blocks have"
                 : "threads of a block have");
    snprintf(what, sizeof what, "%s %s it, and no barrier is between", who, did);
    fail(kind, bytes, what);
}

/* ---- memory ---- */

struct range {
    const char *begin, *end, *readable_end;
    struct cell *cells; /* one for each byte */
};

static struct range *ranges, shared; /* ranges: ascending */
static size_t count, room;

static struct cell *cells_for(size_t bytes)
{
    void *at = mmap(NULL, bytes * sizeof(struct cell), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(at != MAP_FAILED);
    return (struct cell *)at;
}

/* The number of the first range that begins after the address. */
static size_t range_after(const char *at)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        *(ranges[middle].begin <= at ? &low : &high) = ranges[middle].begin <= at ? middle + 1 : middle;
    }
    return low;
}

void watch_allocated(const void *at, size_t bytes)
{
    if (count == room) {
        room = 2 * room + 16;
        ranges = (struct range *)realloc(ranges, room * sizeof *ranges);
        assert(ranges);
    }
    size_t i = range_after((const char *)at);
    memmove(ranges + i + 1, ranges + i, (count++ - i) * sizeof *ranges);
    size_t padded = (bytes + 15) & ~(size_t)15;
    ranges[i] = {(const char *)at, (const char *)at + bytes, (const char *)at + padded, cells_for(padded)};
}

void watch_released(const void *at)
{
    struct range *r = &ranges[range_after((const char *)at) - 1];
    munmap(r->cells, (size_t)(r->readable_end - r->begin) * sizeof(struct cell));
    memmove(r, r + 1, (size_t)(&ranges[count--] - (r + 1)) * sizeof *r);
}

/* The stacks, and what all threads may read. */
static const char *stacks, *stacks_end, *arguments, *arguments_end;

static int is_own(const char *at)
{
    return (at >= stacks && at < stacks_end) || (at >= arguments && at < arguments_end) ||
           at == (const char *)&threadIdx.x || at == (const char *)&blockIdx.x || at == (const char *)&blockIdx.y ||
           at == (const char *)&blockIdx.z || at == (const char *)&gridDim.x || at == (const char *)&gridDim.y ||
           at == (const char *)&gridDim.z;
}

static const struct range *range_of(enum kind kind, const char *at, size_t bytes)
{
    if (at >= shared.begin && at + bytes <= shared.end)
        return &shared;
    size_t i = range_after(at);
    return i && at + bytes <= (kind == WRITE ? ranges[i - 1].end : ranges[i - 1].readable_end) ? &ranges[i - 1] : NULL;
}

static void check(enum kind kind, const void *address, size_t bytes)
{
    const char *at = (const char *)address;
    if (is_own(at))
        return;
    const struct range *range = range_of(kind, at, bytes);
    if (!range) {
        fail(kind, bytes, "they are no memory of the device");
        return;
    }
    struct cell *cell = range->cells + (at - range->begin);
    int is_shared = range == &shared;
    for (size_t i = 0; i < bytes; i++) {
        struct cell *c = &cell[i];
        int written = is_recent(c->write, is_shared), read = is_recent(c->read, is_shared);
        if (written && (kind == READ_ONCE || !is_before(c->write)))
            fail_for(kind, bytes - i, "written", c->write);
        if (kind == WRITE) {
            if (read && !is_before(c->read))
                fail_for(kind, bytes - i, "read", c->read);
            c->write = now;
            continue;
        }
        if (is_shared && !written)
            fail(kind, bytes - i, "no thread of the block has written them");
        c->read = read ? joined(c->read) : now;
        if (kind == READ_ONCE)
            c->read.thread = BY_READ_ONCE;
    }
}

/* ---- what the emulator tells ---- */

void watch_launch(const void *args, size_t bytes, const void *all_stacks, size_t stack_bytes)
{
    if (!shared.cells)
        shared = {__start_lanes_shared, __stop_lanes_shared, __stop_lanes_shared,
                  cells_for((size_t)(__stop_lanes_shared - __start_lanes_shared))};
    arguments = (const char *)args, arguments_end = arguments + bytes;
    stacks = (const char *)all_stacks, stacks_end = stacks + stack_bytes;
    first_block = now.block + 1;
}

void watch_block(void)
{
    now.block++;
    assert(now.block); /* 0: nobody */
    now.period = 0;
    memset(warp_periods, 0, sizeof warp_periods);
}

void watch_thread(unsigned thread)
{
    now.thread = thread;
    now.warp_period = warp_periods[thread / 32];
}

void watch_block_barrier(void) { now.period++; }
void watch_warp_barrier(unsigned warp) { warp_periods[warp]++; }
void watch_read_once(const void *at, size_t bytes) { check(READ_ONCE, at, bytes); }

/* ---- what the compiler calls ---- */

#define CALLED extern "C" __attribute__((visibility("default")))
#define X(n)                                                                     \
    CALLED void __tsan_read##n(const void *at) { check(READ, at, n); }           \
    CALLED void __tsan_write##n(void *at) { check(WRITE, at, n); }               \
    CALLED void __tsan_unaligned_read##n(const void *at) { check(READ, at, n); } \
    CALLED void __tsan_unaligned_write##n(void *at) { check(WRITE, at, n); }
X(1) X(2) X(4) X(8) X(16)
#undef X
CALLED void __tsan_read_range(const void *at, size_t bytes) { check(READ, at, bytes); }
CALLED void __tsan_write_range(void *at, size_t bytes) { check(WRITE, at, bytes); }
CALLED void __tsan_init(void) {}
CALLED void __tsan_func_entry(void *) {}
CALLED void __tsan_func_exit(void) {}
