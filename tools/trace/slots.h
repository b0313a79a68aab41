/* tools/trace/slots.h -- compares cache slots of another engine with those of a trace.
 *
 * Slots are numbers of rows in a cache, and engines place the same rows in different slots. In a trace of one sequence,
 * each slot of theirs must always stand for the same slot here. The sequences of a batch share slots, and engines may
 * free and take slots in another order. There, two rows that are in a cache at the same time must have different slots.
 * Caches of modules are compared for each sequence alone. */
#ifndef VB_TOOLS_TRACE_SLOTS_H
#define VB_TOOLS_TRACE_SLOTS_H

#include <jansson.h>

struct slots {
    json_t *theirs_of, *ours_of; /* slot here -> slot there, and back */
    json_t *live;                /* for batches: cache -> slot there -> the row that it holds, as [sequence, place in
                                    the cache] */
};

void slots_open(struct slots *s);
void slots_close(struct slots *s);

/* Compares the slots of a pass with `theirs`, and returns whether they agree. Negative slots (padding) are not
 * compared. */
int slots_agree(struct slots *s, const json_t *pass, const json_t *theirs);

/* Call slots_begin before the comparison of a pass, and slots_end after it. Both take note of the rows that are removed
 * from the caches. `target` is the target's pass of the same round, or NULL. */
void slots_begin(struct slots *s, const json_t *pass, const json_t *target);
void slots_end(struct slots *s, const json_t *pass);

#endif
