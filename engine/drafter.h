/* engine/drafter.h -- one interface for every way to draft; one file per method. A drafter has no say in the output.
 *
 * The cycle: propose, verify the drafts as rows of one pass, cut the cache to what stands, observe. */
#ifndef VB_DRAFTER_H
#define VB_DRAFTER_H

#include "forward.h"

struct drafter;
struct session_writer;
struct session_reader;

struct drafter_options {
    size_t context;          /* the most tokens of the timeline */
    size_t most_observed;    /* the most tokens of one call of observe */
    int max_draft;           /* K, the longest draft that will be asked for; 1..VB_MAX_DRAFT */
    int poison;              /* cut cache rows become NaN */
    int padded;              /* passes of a round are filled up to max_draft + 1 rows */
    int32_t sequence;        /* whose drafts these are, for taps */
    struct tracer *tracer;   /* NULL: nobody listens */
};

struct drafter_type {
    const char *name;
    int needs_mtp; /* refused on a model without MTP modules */

    int (*open)(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err);

    /* Hands over n committed tokens, the first of index pos; hidden[j] [d] is the target's row of workspace.features
     * of index pos + j - 1; there is none for index -1, and hidden[0] is not read when pos is 0. The drafter first
     * forgets whatever it holds from index pos on, so that speculative rows vanish and undo needs no function of its
     * own. Rows are copied. w may be used as scratch, but for w->hidden, w->features and w->logits. */
    void (*observe)(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, const float *hidden,
                    size_t n);

    /* Proposes at most max drafts after the tokens observed; returns how many. Changes nothing that observe would not
     * undo. *failed counts rows that were not finite. */
    int (*propose)(struct drafter *d, struct workspace *w, int32_t *draft, int max, size_t *failed);

    /* The prompt is done and its next token observed; may be NULL. */
    void (*after_prompt)(struct drafter *d, struct workspace *w);

    /* How many tokens before a cut the target must hand over again, should the timeline be truncated: hidden rows from
     * index cut - 1 - rewind on are observed anew. */
    size_t (*rewind)(const struct drafter *d);

    /* The state after `pos` observed tokens, of which what comes behind was cut, to a session file: hidden rows of the
     * target too, or only what does not need them. A drafter without state of its own has NULL here: after a load it observes
     * the tokens again, with zeros for hidden rows. w: scratch, as for observe. */
    void (*save)(struct drafter *d, struct workspace *w, size_t pos, int hidden, struct session_writer *out);
    /* Into a drafter that has observed nothing: tokens [pos] and what save has written. DRAFTER_OTHER, and nothing was changed,
     * when it is of a drafter with other depths; DRAFTER_WRONG when no save can have written it. */
    int (*load)(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, struct session_reader *in);

    void (*close)(struct drafter *d);
};
enum drafter_loaded { DRAFTER_LOADED, DRAFTER_OTHER, DRAFTER_WRONG };

extern const struct drafter_type draft_mtp_vanilla, draft_mtp_eagle, draft_eagle_reroll, draft_eagle_keep;
extern const struct drafter_type *const drafter_types[]; /* NULL ends the list */
/* By name; NULL and "none" give NULL. Another name is VB_BAD_ARGUMENT, and the known ones are told. */
int drafter_find(const struct drafter_type **out, const char *name, vb_error *err);

#endif
