/* tools/trace/record.h -- the events of one sequence as JSON objects, one for each pass. */
#ifndef VB_TOOLS_TRACE_RECORD_H
#define VB_TOOLS_TRACE_RECORD_H

#include "tools/cli/cli.h"

struct record {
    const struct cli *c;
    json_t *newest[VB_MAX_DRAFT + 1]; /* the newest pass of the target and of each depth; borrowed references */
    json_t *last;                     /* the newest pass; a borrowed reference */
    uint64_t round;                   /* the round of the newest pass */
    json_t *early;                    /* truncations in a round that has no pass yet */
    size_t zeros;                     /* this many hidden states of the target are zeros: a session file did not have
                                         them */
};

/* Adds an event to the newest pass of its depth, and returns NULL. If the event is a new pass, returns its object, a
 * new reference. The caller must keep this object as long as the record, because later events are added to it. */
json_t *record_event(struct record *r, const vb_trace *t);
void record_close(struct record *r);

/* Returns the text of a token as a JSON string, with U+FFFD for invalid bytes; JSON null if there is no tokenizer. */
json_t *trace_piece(const struct cli *c, int32_t token);
/* Returns an array of token ids, and sets *pieces to the array of their texts. */
json_t *trace_ids(const struct cli *c, const int32_t *ids, size_t count, json_t **pieces);

#endif
