/* tools/trace/batch.h -- traces of several sequences that share passes (trace --prompts).
 *
 * A pass of a batch is one JSON object. Its key `parts` has one object per sequence, with the keys of a pass of a
 * single sequence. The other keys list the rows of all sequences one after another (batch-major), as MindIE does:
 * q_lens and draft_tokens in its decoding_policy.py. */
#ifndef VB_TOOLS_TRACE_BATCH_H
#define VB_TOOLS_TRACE_BATCH_H

#include "tools/trace/record.h"

/* What happens to sequences in a round. */
enum batch_event { BATCH_STARTED, BATCH_PREEMPTED, BATCH_FINISHED, BATCH_EVENTS };
extern const char *const batch_event_names[BATCH_EVENTS]; /* their keys in the pass of the target */

/* Fills in the lists of a pass, such as q_lens and slots, from its parts. */
void batch_pass_finish(json_t *pass);

/* Runs the prompts of the file --prompts and shows the trace. Returns an exit code. */
int trace_batch(struct cli *c);

#endif
