/* engine/model/numa.h -- the option `--numa`: puts weights into the memory of the NUMA node whose processors use them.
 *
 * ops/placement.h plans which rows of a matrix belong to which node; the code here reads the NUMA topology of the
 * machine and carries out the plan. Only engine/model/numa.c and topology.c read the topology.
 *
 * Weights are a read-only shared mapping of files, so their pages belong to the kernel's page cache. The kernel ignores
 * mbind for such pages (mbind(2), NOTES), and one mbind call per range would split the mapping into more pieces than
 * the kernel allows. Therefore the code does the following for each range of pages:
 *
 *   1. Set the memory policy of the calling thread to prefer the range's node, and read the range. Some of the pages
 *      are not yet in the page cache. The kernel allocates these pages on that node.
 *
 *   2. Move pages that an earlier run has cached on another node (move_pages). The kernel does not move a page that
 *      another process has mapped as well.
 *
 *   3. Ask the kernel where all pages are, and count them for struct vb_placement.
 *
 * Opening a model with this option therefore reads the whole checkpoint. If the weights do not fit into free memory,
 * nothing is placed. The kernel then allocates each page on the node of the first thread that reads the page, and each
 * pinned thread reads its own rows.
 *
 * Placement does not copy mapped weights, so two processes still share the pages of the weights. Some matrices have
 * been copied for other reasons (model_copy.c). The pages of these copies are moved in the same way. If rows of two
 * nodes share a huge page, the page is placed on the node of the later rows.
 *
 * The kernel may refuse the calls above, as it often does in containers. The library may have been built without
 * libnuma. In each of these cases, the model is opened without placement, and struct vb_placement says why. Results do
 * not depend on placement. */
#ifndef VB_NUMA_H
#define VB_NUMA_H

#include <sched.h>

#include "engine/model/model.h"
#include "ops/placement.h"

struct numa {
    struct placement placement; /* the plan; if placement.parts is 0, nothing is placed */
    vb_placement report;
};

/* Parses "off", "interleave" or "bind"; NULL means "off". Returns VB_BAD_ARGUMENT for any other name. */
int numa_mode(enum placement_mode *mode, const char *name, vb_error *err);

/* Reads the NUMA nodes of a machine from the folders ROOT/node and ROOT/cpu, where `root` is normally
 * /sys/devices/system. Reads the online processors of each node, the distances between nodes, and how much memory of
 * each node is free or holds cached files. If ROOT/node does not exist, the machine has one node. Returns the number
 * of online nodes. */
int topology_read(struct topology *t, const char *root);
/* Removes the processors that are not in `cpus`, and the memory of node n if bit n of `memories` is 0. */
void topology_allow(struct topology *t, const cpu_set_t *cpus, uint64_t memories);

/* Makes a plan for this machine and places the weights of m. Before the call, the caller sets m->numa to a struct that
 * is all zeros. */
void numa_place(struct vb_model *m, enum placement_mode mode);
/* Does what numa_place does, but plans for the machine *t. Tests use this to describe other machines. Pages can be
 * placed only on nodes that the real machine has. */
void numa_place_on(struct vb_model *m, enum placement_mode mode, const struct topology *t);

/* Returns the plan that sessions of m pass to their operators, or NULL if nothing is placed. */
const struct placement *numa_placement(const struct vb_model *m);

/* The thread that calls the library also computes. While it computes, it is pinned to a processor. Therefore each
 * public function that computes calls numa_enter first, which saves the thread's affinity mask. At its end, the public
 * function calls numa_leave, which restores the mask. OpenMP's worker threads stay pinned, since no other code uses
 * them. */
struct numa_visit {
    int moved;
    cpu_set_t before;
};
struct numa_visit numa_enter(const struct vb_model *m);
void numa_leave(const struct numa_visit *v);

#endif
