/* engine/model/numa.h -- `--numa`: what ops/placement.h planned, done. The only place that asks the machine for its nodes.
 *
 * Weights are a read-only shared mapping of files: their pages belong to the kernel's page cache. mbind is ignored there
 * (mbind(2), NOTES), and a call for each range would split the mapping into more pieces than the kernel allows. What
 * works, and what is done, range by range:
 *   1. the calling thread's own policy is set to prefer the range's node, and the range read: pages that no program has
 *      read since start-up come to lie there;
 *   2. pages that lie elsewhere, cached by an earlier run, are moved (move_pages). The kernel moves no page that another
 *      process maps as well;
 *   3. all are asked where they are, and the count is reported.
 * So opening reads the whole checkpoint. Weights larger than the memory to be had are left to the first touch: pinned
 * threads read their own rows first.
 * No private copy is made for it: the promise "mapped, not copied" stays, and two runs share their pages. Matrices that are
 * copies already (model_copy.c) are moved in the same way; a huge page that two nodes' rows share lies with the second.
 *
 * A kernel that refuses (containers often forbid these calls), and a build without libnuma, are no errors: the output
 * does not depend on it. vb_placement says so. */
#ifndef VB_NUMA_H
#define VB_NUMA_H

#include <sched.h>

#include "engine/model/model.h"
#include "ops/placement.h"

struct numa {
    struct placement placement; /* parts 0: nothing to place */
    vb_placement report;
};

/* NULL and "off", "interleave", "bind"; another name is VB_BAD_ARGUMENT. */
int numa_mode(enum placement_mode *mode, const char *name, vb_error *err);

/* Reads ROOT/node and ROOT/cpu, where ROOT is /sys/devices/system: nodes, processors that are online, distances, memory
 * that is free or holds file pages. Without ROOT/node there is one node. Returns the number of nodes online. */
int topology_read(struct topology *t, const char *root);
/* Leaves out processors that are not in `cpus`, and the memory of nodes that are not in `memories` (a bit each). */
void topology_allow(struct topology *t, const cpu_set_t *cpus, uint64_t memories);

/* Plans for this machine and places the weights of m. m->numa is the caller's: all zero before. */
void numa_place(struct model *m, enum placement_mode mode);
/* The same on a machine that a test invents; its nodes must be there for pages to be placed. */
void numa_place_on(struct model *m, enum placement_mode mode, const struct topology *t);

/* What sessions of m hand to their operators: NULL when there is nothing to place. */
const struct placement *numa_placement(const struct model *m);

/* The caller's thread works too, on its own processor, from an entry point's begin to its end; afterwards it may run where
 * it might before. OpenMP's threads, which nobody else uses, stay where they were put. */
struct numa_visit {
    int moved;
    cpu_set_t before;
};
struct numa_visit numa_enter(const struct model *m);
void numa_leave(const struct numa_visit *v);

#endif
