/* ops/placement.h -- where threads run and where rows lie on a machine with several memories (NUMA): policy alone.
 *
 * A node is a group of processors with a memory of their own; other nodes' memory is farther. What the machine is comes
 * in (struct topology), what to do goes out (struct placement); nothing here asks or tells the machine, so that tests
 * invent machines nobody has. ops/parallel.c follows the plan with threads, engine/model/numa.c with pages.
 *
 * bind: the processors of a node are a part. Every matrix is cut by rows, in proportion to the parts' processors, and a
 * part's rows lie in its home: its node's memory, or the nearest one with room. A thread takes its own part's tasks first,
 * then helps the others, the nearest home first. interleave: one part; pages go round the memories.
 * Rows are cut, sums never: no bit depends on any of this. */
#ifndef VB_PLACEMENT_H
#define VB_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#define PLACEMENT_NODES 64  /* what lies beyond is not used */
#define PLACEMENT_CPUS 1024
#define OP_ROW_GROUP 32     /* rows that op_row_range keeps together */
#define PLACEMENT_SPREAD 16 /* pages that stay together when pages go round */

struct topology {
    int node_of_cpu[PLACEMENT_CPUS];                        /* -1: there is none, or it is offline, or not for us */
    int sibling[PLACEMENT_CPUS];                            /* 0: the first of its core, 1: shares it with an earlier one, .. */
    unsigned char distance[PLACEMENT_NODES][PLACEMENT_NODES]; /* [from a processor's node][to a memory's]; 0: unknown, far */
    uint64_t memory[PLACEMENT_NODES];                       /* bytes to be had; 0: no memory, or none for us */
};

enum placement_mode { PLACEMENT_OFF, PLACEMENT_INTERLEAVE, PLACEMENT_BIND };

struct placement {
    int parts;                                              /* 0: nothing to place */
    int nodes;                                              /* with processors or memory for us */
    int node[PLACEMENT_NODES], home[PLACEMENT_NODES];       /* of a part; -1 when pages go round */
    int cut[PLACEMENT_NODES + 1];                           /* part i has processors cpu[cut[i]] .. cpu[cut[i + 1] - 1] */
    int cpu[PLACEMENT_CPUS];
    unsigned char order[PLACEMENT_NODES][PLACEMENT_NODES];  /* [part][i]: itself, then whom to help, the nearest home first */
    int memories, memory[PLACEMENT_NODES];                  /* nodes with memory, ascending */
};

/* Plans for `bytes` of weights. Returns the parts: 0 when the mode is off or there is but one node. */
int placement_plan(struct placement *p, const struct topology *t, enum placement_mode mode, uint64_t bytes);

/* Where thread `thread` of `threads` runs. Threads are spread in proportion to the parts' processors, on whole cores first;
 * more threads than processors share them. */
struct place {
    int cpu, part;
};
struct place placement_of_thread(const struct placement *p, int thread, int threads);

/* A part's share [*begin, *end) of `count` tasks that run through the rows of a matrix. */
void placement_share(const struct placement *p, int part, size_t count, size_t *begin, size_t *end);

/* Tells which node each page should lie on: ranges of whole pages, ascending. A page belongs to the matrix, and to
 * the row, of its first byte, so that neighbours never quarrel about one. The rows are those of op_row_range. */
typedef void (*placement_pages)(void *context, uintptr_t begin, uintptr_t end, int node);
void placement_of_rows(const struct placement *p, uintptr_t data, size_t rows, size_t row_bytes, size_t page,
                       placement_pages each, void *context);
/* The same for bytes that no thread owns (embeddings): round the memories, PLACEMENT_SPREAD pages each, from the first on. */
void placement_of_bytes(const struct placement *p, uintptr_t data, size_t bytes, size_t page, placement_pages each,
                        void *context);

#endif
