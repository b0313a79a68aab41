/* ops/op.h -- the context that every operator receives: kernels, threads, and working memory.
 *
 * An operator returns void and allocates nothing. The code that opens models and sessions has already checked every
 * shape, and has sized the scratch memory with the op_*_scratch functions. Operators split work over output rows, and
 * never split a sum. So the bits of a row do not depend on how many other rows are in the pass, nor on the number of
 * threads. */
#ifndef VB_OP_H
#define VB_OP_H

#include "simd/kernels.h"
#include "ops/clock.h"
#include "ops/pace.h"
#include "ops/placement.h"
#include "ops/probe.h"
#include "ops/ranks.h"

/* With OpenMP, the number of threads in a parallel region is limited so that each thread has at least this many
 * multiplications, which are about ten microseconds of work. A barrier of OpenMP takes a few microseconds, or
 * milliseconds when another program uses one of the cores. */
#define OP_THREAD_COST 131072.0
/* The same limit for the threads of a crew: one or two microseconds of work. A waiting member starts in a tenth of a
 * microsecond. */
#define OP_CREW_COST 16384.0
/* The same limit for op_each_row, also with a crew. Its regions are short, and lie between those of linear layers. In a
 * pass of up to about 16 rows, one thread does this work as fast as several, and no thread has to be woken for it. */
#define OP_ROWS_COST 131072.0

struct arithmetic;
struct device;
struct operators;

struct op_ctx {
    const struct kernels *k;
    int threads;                 /* threads for the next parallel regions; op_begin_pass sets it, up to most_threads */
    int most_threads;            /* the scratch is large enough for this many threads */
    struct crew *crew;           /* pool of threads (ops/crew.h), which may serve several op_ctx; NULL: parallel regions
                                    use threads of OpenMP */
    double thread_cost;          /* replaces OP_THREAD_COST and OP_CREW_COST unless it is 0 */
    const struct operators *op;  /* who computes, for callers that may compute on a device (ops/operators.h); operators
                                    themselves call their own kind directly */
    const struct arithmetic *arithmetic; /* how linear layers multiply (ops/arithmetic.h) */
    char *scratch;               /* 64-byte aligned */
    char *kernel_scratch;        /* 64-byte aligned: KERNEL_SCRATCH bytes for each of most_threads threads */
    size_t scratch_size, scratch_used;
    struct op_probe *probe;      /* NULL: nobody wants intermediate values */
    struct op_clock *clock;      /* measures the time of each part of a pass; NULL: nothing is measured */
    struct device *device;       /* for operators of a device, which read and write the twins of their arrays
                                    (ops/cuda/device.h); operators of the CPU do not look at it */
    struct op_ranks *ranks;      /* the processes that compute each pass together; NULL: this one is alone */
    const struct placement *placement; /* pins a crew's threads, and gives each of them tasks with data nearby (NUMA);
                                          NULL: the operating system chooses where threads run */
};

/* From now on, time belongs to this part of the pass (ops/clock.h). */
static inline void op_enter(const struct op_ctx *cx, int part)
{
    if (cx->clock)
        op_clock_next(cx->clock, part);
}

/* Scratch is a stack for the working memory of operators. op_take returns memory for `floats` floats, 64-byte aligned.
 * op_give frees everything that was taken since op_mark returned `mark`. An assert fails if the scratch is too
 * small. */
static inline size_t op_scratch_bytes(size_t floats) { return (floats * sizeof(float) + 63) & ~(size_t)63; }
float *op_take(struct op_ctx *cx, size_t floats);
static inline size_t op_mark(const struct op_ctx *cx) { return cx->scratch_used; }
static inline void op_give(struct op_ctx *cx, size_t mark) { cx->scratch_used = mark; }

/* Returns the working memory that kernels use when thread number `thread` calls them. */
static inline void *op_kernel_scratch(const struct op_ctx *cx, int thread)
{
    return cx->kernel_scratch + (size_t)thread * KERNEL_SCRATCH;
}

/* Calls work(arg, task, thread) for every task in [0, tasks), on at most cx->threads threads (thread < cx->threads).
 * All threads have the default floating-point environment (simd/fpenv.h). `cost` is the approximate number of
 * multiplications in all tasks; if it is small, all tasks run on the caller's thread. Tasks must write to different
 * memory, and must not call op_parallel. */
void op_parallel(const struct op_ctx *cx, size_t tasks, double cost, void (*work)(void *arg, size_t task, int thread),
                 void *arg);

/* Like op_parallel, but the tasks compute ranges of rows of several matrices. Tasks first[m] .. first[m + 1] - 1 belong
 * to matrix m, in the order of its rows. first[0] is 0, and first[matrices] is the number of tasks. With cx->placement,
 * every thread of a crew begins with the rows that are in its own NUMA node's memory. op_parallel assumes that all
 * tasks belong to one matrix. */
void op_parallel_matrices(const struct op_ctx *cx, const size_t *first, size_t matrices, double cost,
                          void (*work)(void *arg, size_t task, int thread), void *arg);

/* op_begin_pass and op_end_pass enclose the parallel regions of one forward pass over `rows` rows. op_begin_pass sets
 * cx->threads to the number of threads that `pace` chooses; cx->threads keeps this number after the pass. op_end_pass
 * reports the pass's time to `pace`. Without a crew, both do nothing. */
struct op_pass {
    double begun;
    size_t rows;
    struct pace *pace;
};
struct op_pass op_begin_pass(struct op_ctx *cx, struct pace *pace, size_t rows);
void op_end_pass(const struct op_ctx *cx, const struct op_pass *pass);

/* Sets the number of threads that OpenMP gives to a library when the calling thread calls the library. Returns the
 * number that was set before. */
int op_foreign_threads(int threads);

/* op_row_tasks and op_row_range divide the `rows` rows of a matrix into tasks. op_row_tasks returns the number of
 * tasks, and op_row_range sets [*begin, *end) to the rows of task number `task`. A task consists of whole groups of 32
 * rows (OP_ROW_GROUP). The outputs of such a group are 32 neighbouring inputs of the next layer, whose sums are
 * computed in chunks of 32 numbers. `after` is the total number of rows of the matrices that follow this one in the
 * same parallel region (0 for the last). */
size_t op_row_tasks(const struct op_ctx *cx, size_t rows, size_t after);
void op_row_range(const struct op_ctx *cx, size_t rows, size_t after, size_t task, size_t *begin, size_t *end);

/* Divides rows [0, S) into ranges, and calls work(arg, first, count) in parallel for the rows [first, first + count) of
 * each range. Rows must not depend on each other. `cost` is the approximate number of multiplications for one row. */
void op_each_row(const struct op_ctx *cx, size_t S, double cost, void (*work)(void *arg, size_t first, size_t count),
                 void *arg);

#endif
