/* ops/placement.h -- plans where threads run and where weights are stored on a machine with several memories (NUMA).
 *
 * A NUMA node is a group of processors with a memory of their own. Access to another node's memory is slower. The
 * functions below compute a plan (struct placement) from a description of the machine (struct topology). These
 * functions make no system calls, so tests can describe any machine. By this plan, ops/parallel.c pins threads, and
 * engine/model/numa.c moves pages.
 *
 * In mode bind, the processors of each node form a part. The rows of every matrix are divided among the parts, in
 * proportion to their processors. A part's rows are stored in its home: its own node's memory, or the nearest memory
 * with enough room. A thread does the tasks of its own part first. Then it does tasks of other parts, beginning with
 * the part whose home is nearest.
 *
 * In mode interleave, there is one part, and pages are distributed over all memories in turn. In both modes only rows
 * are divided, never a sum, so no bit depends on the plan. */
#ifndef VB_PLACEMENT_H
#define VB_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#define PLACEMENT_NODES 64  /* nodes and processors whose numbers reach these limits are not used */
#define PLACEMENT_CPUS 1024
#define OP_ROW_GROUP 32     /* the number of rows in a group; op_row_range never divides a group */
#define PLACEMENT_SPREAD 16 /* in mode interleave, this many consecutive pages are in the same memory */

struct topology {
    int node_of_cpu[PLACEMENT_CPUS];                        /* node number; -1 if absent, offline or not allowed */
    int sibling[PLACEMENT_CPUS];                            /* number of the hardware thread within its core, from 0 */
    unsigned char distance[PLACEMENT_NODES][PLACEMENT_NODES]; /* [node of a processor][node of a memory]; 0: unknown,
                                                                 treated as far */
    uint64_t memory[PLACEMENT_NODES];                       /* bytes available; 0: no memory, or not allowed */
};

enum placement_mode { PLACEMENT_OFF, PLACEMENT_INTERLEAVE, PLACEMENT_BIND };

struct placement {
    int parts;                                              /* number of parts; 0: nothing is placed */
    int nodes;                                              /* number of nodes with processors or memory that may be
                                                               used */
    /* for each part: its node, and the node whose memory holds its rows; node[0] and home[0] are -1 in mode
     * interleave */
    int node[PLACEMENT_NODES], home[PLACEMENT_NODES];
    int cut[PLACEMENT_NODES + 1];                           /* part i has processors cpu[cut[i]] .. cpu[cut[i + 1] -
                                                               1] */
    int cpu[PLACEMENT_CPUS];
    /* order[p]: part p, then the other parts; nearer homes come earlier (home: see above) */
    unsigned char order[PLACEMENT_NODES][PLACEMENT_NODES];
    int memories, memory[PLACEMENT_NODES];                  /* the nodes with memory: how many, and which, ascending */
};

/* Makes a plan for `bytes` bytes of weights. Returns the number of parts, or 0 if the mode is off or there is only one
 * node. */
int placement_plan(struct placement *p, const struct topology *t, enum placement_mode mode, uint64_t bytes);

/* Returns the processor and the part of thread number `thread` of `threads`. Each part gets threads in proportion to
 * its processors, and uses each core once before it uses a second hardware thread. If there are more threads than
 * processors, threads share processors. */
struct place {
    int cpu, part;
};
struct place placement_of_thread(const struct placement *p, int thread, int threads);

/* A matrix is divided into `count` equal tasks, in the order of its rows. Sets *begin and *end: the
 * tasks [*begin, *end) belong to this part. */
void placement_share(const struct placement *p, int part, size_t count, size_t *begin, size_t *end);

/* Calls each(context, begin, end, node) for ascending ranges of whole pages at `data`, with the node whose memory
 * should hold them. The matrix and the row that contain a page's first byte decide about the whole page, so each page
 * belongs to one matrix only. A part owns the rows that op_row_range gives to its tasks. */
typedef void (*placement_pages)(void *context, uintptr_t begin, uintptr_t end, int node);
void placement_of_rows(const struct placement *p, uintptr_t data, size_t rows, size_t row_bytes, size_t page,
                       placement_pages each, void *context);
/* Like placement_of_rows, but for data that belongs to no part (embeddings). The memories are used in turn, beginning
 * with the first, each for PLACEMENT_SPREAD pages. */
void placement_of_bytes(const struct placement *p, uintptr_t data, size_t bytes, size_t page, placement_pages each,
                        void *context);

#endif
