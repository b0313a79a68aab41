/* tests/support/machines.h -- topologies of machines with several NUMA nodes, for tests of ops/placement.h. The test
 * machine itself may have one node only. */
#ifndef VB_TEST_MACHINES_H
#define VB_TEST_MACHINES_H

#include "ops/placement.h"

#include <string.h>

#define GB ((uint64_t)1 << 30)

/* A machine of `nodes` nodes, each with `cpus` processors and `gb` GB. The distance between two nodes is 21. */
struct topology machine(int nodes, int cpus, uint64_t gb);

#endif
