/* ops/op.h -- what every operator is given: the kernels, the threads, and memory to work in.
 *
 * An operator returns void and allocates nothing: whoever opened the model and the session has checked every shape and
 * sized the scratch with the op_*_scratch functions. Work is split over output rows only, so that the bits of a row
 * depend on that row alone: not on how many others are in the pass, nor on the number of threads. */
#ifndef VB_OP_H
#define VB_OP_H

#include "simd/kernels.h"
#include "ops/pace.h"
#include "ops/placement.h"

/* Some ten microseconds of work: a barrier is a few microseconds, and milliseconds beside a busy neighbour. */
#define OP_THREAD_COST 131072.0
/* Of a thread that stands by, which is there in a tenth of a microsecond: a microsecond or two. */
#define OP_CREW_COST 16384.0

/* Somebody who wants to see what operators compute on the way to their result. Told on the caller's thread: rows
 * [first, first + count) of the operator's, each `width` numbers, int32_t if `integers`, else float, side by side. */
struct op_probe {
    void (*see)(struct op_probe *probe, const char *name, size_t first, size_t count, const void *data, int integers,
                size_t width);
    int scores; /* the scores of attention too, which are computed a second time for it */
};

struct op_ctx {
    const struct kernels *k;
    int threads;                 /* of the regions to come; op_begin_pass chooses how many, up to most_threads */
    int most_threads;            /* what the scratch is sized for */
    struct crew *crew;           /* threads that stand by (ops/crew.h), and may serve other op_ctx too; NULL: regions start
                                    threads of OpenMP */
    double thread_cost;          /* multiplications that are worth waking a thread for; 0: the above */
    int bf16;                    /* precision bf16: what linear layers take is rounded */
    struct onednn *const *onednn; /* NULL; else one for each thread, and linear layers are theirs instead of the kernels': every
                                    W is BF16 (bf16 is set then) or F32. For prompts; those are not the contract's bits */
    char *scratch;               /* 64-byte aligned */
    char *kernel_scratch;        /* 64-byte aligned: KERNEL_SCRATCH bytes for each of most_threads threads */
    size_t scratch_size, scratch_used;
    struct op_probe *probe;      /* NULL: nobody */
    const struct placement *placement; /* NULL: threads run where the kernel likes, and take tasks as they come;
                                          else a crew's are pinned */
};

/* Memory for the time of one operator: a stack. take returns 64-byte aligned floats; give returns to an earlier mark.
 * Asking for more than was sized is our own mistake (assert). */
static inline size_t op_scratch_bytes(size_t floats) { return (floats * sizeof(float) + 63) & ~(size_t)63; }
float *op_take(struct op_ctx *cx, size_t floats);
static inline size_t op_mark(const struct op_ctx *cx) { return cx->scratch_used; }
static inline void op_give(struct op_ctx *cx, size_t mark) { cx->scratch_used = mark; }

/* What a kernel that thread `thread` calls works in. */
static inline void *op_kernel_scratch(const struct op_ctx *cx, int thread)
{
    return cx->kernel_scratch + (size_t)thread * KERNEL_SCRATCH;
}

/* Calls work(arg, task, thread) for every task in [0, tasks), on at most cx->threads threads (thread < cx->threads).
 * Workers enter the default floating-point environment; the caller's own thread is in it already, since every entry
 * point of the engine enters it. `cost` is about how many multiplications all tasks make together: what is not worth
 * waking a thread for runs on the caller's. Tasks must write to different places, and call no op_parallel of theirs. */
void op_parallel(const struct op_ctx *cx, size_t tasks, double cost, void (*work)(void *arg, size_t task, int thread),
                 void *arg);

/* The same for the pieces of several matrices: tasks first[m] .. first[m + 1] - 1 are those of matrix m, first rows first;
 * first[0] is 0, first[matrices] the number of tasks. Where memory has places (cx->placement), every thread of a crew
 * begins with the pieces whose rows lie in its node's memory; op_parallel takes its tasks for one matrix. */
void op_parallel_matrices(const struct op_ctx *cx, const size_t *first, size_t matrices, double cost,
                          void (*work)(void *arg, size_t task, int thread), void *arg);

/* Passes: the regions between the two are one pass of `rows` rows, whose number of threads `pace` chooses and whose time it
 * is told. The choice stays for regions that come after the pass. Without a crew both do nothing. */
struct op_pass {
    double begun;
    size_t rows;
    struct pace *pace;
};
struct op_pass op_begin_pass(struct op_ctx *cx, struct pace *pace, size_t rows);
void op_end_pass(const struct op_ctx *cx, const struct op_pass *pass);

/* For libraries that use OpenMP themselves: how many threads they find when the calling thread calls them. Returns what was. */
int op_foreign_threads(int threads);

/* Rows [*begin, *end) of task `task` when `rows` rows are cut into op_row_tasks tasks of whole groups of 32 (OP_ROW_GROUP):
 * a chunk of those who sum over these rows next. after: the rows of the region's matrices behind this one, 0 for the last.
 * With op_ctx.onednn the cut does not depend on the threads, since its bits may depend on the cut. */
size_t op_row_tasks(const struct op_ctx *cx, size_t rows, size_t after);
void op_row_range(const struct op_ctx *cx, size_t rows, size_t after, size_t task, size_t *begin, size_t *end);

/* Calls work(arg, first, count) for rows [first, first + count) that together are [0, S): rows that do not know of one
 * another, `cost` multiplications each. */
void op_each_row(const struct op_ctx *cx, size_t S, double cost, void (*work)(void *arg, size_t first, size_t count), void *arg);

#endif
