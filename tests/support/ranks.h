/* tests/support/ranks.h -- a group of ranks in one process: each rank is a thread, and they exchange bytes in memory. */
#ifndef VB_TEST_RANKS_H
#define VB_TEST_RANKS_H

#include "engine/verbatim.h"

#define MOST_GROUP 8

struct group_options {
    int count;
    uint32_t weights[MOST_GROUP];  /* all 0: equal shares */
    const char *isa[MOST_GROUP];   /* of the ranks other than 0; NULL: the best one */
    int threads;                   /* of each rank; 0: 1 */
    vb_allocator allocator[MOST_GROUP]; /* of the ranks other than 0 */
};

struct group;
/* Starts the ranks, and returns what rank 0 uses. An error fails the test. */
vb_ranks *group_open(struct group **out, const struct group_options *o);
/* Ends all ranks. The test fails if one of them had an error, or if the ranks did not make the same exchanges. */
void group_close(struct group *g);

#endif
