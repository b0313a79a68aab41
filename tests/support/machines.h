/* tests/support/machines.h -- machines that nobody here has: topologies for tests of ops/placement.h. */
#ifndef VB_TEST_MACHINES_H
#define VB_TEST_MACHINES_H

#include "ops/placement.h"

#include <string.h>

#define GB ((uint64_t)1 << 30)

/* `nodes` nodes of `cpus` processors and `gb` GB each; every other node is 21 away. */
static inline struct topology machine(int nodes, int cpus, uint64_t gb)
{
    struct topology t;
    memset(&t, 0, sizeof t);
    for (int c = 0; c < PLACEMENT_CPUS; c++)
        t.node_of_cpu[c] = c < nodes * cpus ? c / cpus : -1;
    for (int n = 0; n < nodes; n++) {
        t.memory[n] = gb * GB;
        for (int m = 0; m < nodes; m++)
            t.distance[n][m] = n == m ? 10 : 21;
    }
    return t;
}

#endif
