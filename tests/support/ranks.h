/* tests/support/ranks.h -- a group of ranks in one process: each rank is a thread, and they exchange bytes in memory.
 * Also functions that record the results of a run, to compare a run on ranks with the same run in one process. */
#ifndef VB_TEST_RANKS_H
#define VB_TEST_RANKS_H

#include "tests/support/engine_support.h"

#define MOST_GROUP 8

struct group_options {
    int count;
    uint32_t weights[MOST_GROUP];  /* all 0: equal shares */
    const char *isa[MOST_GROUP];   /* of the ranks other than 0; NULL: the best one */
    int threads;                   /* of each rank; 0: 1 */
    vb_allocator allocator[MOST_GROUP];
    /* Called on each rank before an exchange, and after it with `done`. NULL: nothing is called. */
    void (*exchange)(void *context, int rank, int done, const void *buffer, const size_t *offset);
    void *context;
    /* Called on a rank whose vb_ranks_follow failed. Unless it ends the process, the other ranks wait for ever. NULL:
     * group_close fails. */
    void (*failed)(int rank, const vb_error *err);
};

struct group;
/* Starts the ranks, and returns what rank 0 uses. An error fails the test. */
vb_ranks *group_open(struct group **out, const struct group_options *o);
/* Ends all ranks. The test fails if one of them had an error, or if the ranks did not make the same exchanges. */
void group_close(struct group *g);
/* Starts the ranks. The test fails unless all of them fail with this code. *err receives the error of rank 0. */
void group_refused(const struct group_options *o, int code, vb_error *err);

/* ---- recorded runs ---- */

struct notes {
    size_t count, room;
    struct note {
        char what[72];
        uint64_t value;
    } *note;
};
__attribute__((format(printf, 3, 4))) void note(struct notes *n, uint64_t value, const char *what, ...);
/* Notes a hash of `size` bytes. */
__attribute__((format(printf, 4, 5))) void note_bytes(struct notes *n, const void *data, size_t size, const char *what,
                                                      ...);
/* Continues a session by `count` tokens, and notes the tokens, the logits from which they were chosen, and how many
 * drafts there were. */
void note_run(struct notes *n, vb_session *s, size_t count, const char *what);
/* Fails if two runs have different notes. */
void check_notes(const char *what, const struct notes *alone, const struct notes *together);

/* A run of a model. `context` is that of check_scenario. */
typedef void scenario(vb_model *m, struct notes *n, void *context);
/* Runs the scenario in one process and on a group of ranks, and compares the notes. */
void check_scenario(const char *what, const char *dir, const vb_model_options *o, const struct group_options *g,
                    scenario *compute, void *context);

#endif
