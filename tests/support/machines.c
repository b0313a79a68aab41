/* tests/support/machines.c -- topologies with several NUMA nodes. */
#include "tests/support/machines.h"

struct topology machine(int nodes, int cpus, uint64_t gb)
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
