/* engine/draft/drafter.h -- one interface for every way to draft; one file per method. A drafter has no say in the output.
 *
 * The cycle: propose, verify the drafts as rows of one pass, cut the cache to what stands, observe. */
#ifndef VB_DRAFTER_H
#define VB_DRAFTER_H

#include "engine/draft/tree.h"
#include "engine/pass/forward.h"

struct drafter; /* each method's own, which casts */
struct session_writer;
struct session_reader;

struct drafter_options {
    const vb_session_options *asked; /* by the session's user: what only one method wants is read there */
    size_t context;          /* the most tokens of the timeline */
    const struct kernels *kernels;
    int threads;
    size_t most_observed;    /* the most tokens of one call of observe */
    enum target_rows takes;  /* the type's */
    int max_draft;           /* K, the longest draft that will be asked for; 1..VB_MAX_DRAFT */
    int topk, nodes;         /* of a tree; topk is 1 where drafts are chains */
    int poison;              /* cut cache rows become NaN */
    int padded;              /* passes of a round are filled up to max_draft + 1 rows */
    int32_t sequence;        /* whose drafts these are, for taps */
    struct tracer *tracer;   /* NULL: nobody listens */
    /* Draft `number` of the round, from 1, given its row of logits [V], finite; those before it were chosen so too. NULL: the
     * best. How many drafts there are may depend on the drafts chosen and on what was observed, and on no other draw. */
    int32_t (*choose)(void *context, const float *logits, int number);
    void *choose_context;
};

struct drafter_type {
    const char *name;
    const char *about;    /* what drafts, in one line */
    const char *settings; /* keys of vb_drafting.settings that it reads, with their defaults: "ngram-min=2,ngram-max=4"; NULL: none */

    /* Without which the method is refused. With modules K is their number, where none is given, else 3. */
    int needs_modules, needs_model, needs_head, needs_callback;
    int cache_per_draft;    /* K caches: automatic lengths end at the number of modules, where no number was given */
    enum target_rows takes; /* which rows of the target are handed to observe */
    int tokens_alone;       /* observe looks at tokens alone, and may be told them without hidden rows */
    int by_history;         /* drafts depend on how the timeline came about, round by round, and not on it alone */

    /* What else must be there, before anything is opened; NULL: nothing. */
    int (*check)(const struct model *m, const vb_session_options *o, vb_error *err);
    int (*open)(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err);

    /* Hands over n committed tokens, the first of index pos; hidden[j] [d] is the target's row of index
     * pos + j - 1 (of what the type takes); there is none for index -1, and hidden[0] is not read when pos is 0. The
     * drafter first forgets whatever it holds from index pos on, so that speculative rows vanish and undo needs no
     * function of its own. Rows are copied. w may be used as scratch, but for w->hidden, w->features and w->logits. */
    void (*observe)(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, const float *hidden,
                    size_t n);

    /* Proposes at most max drafts after the tokens observed; returns how many, each in the target's vocabulary. Changes
     * nothing that observe would not undo. *failed counts drafts that ended early because of a row that was not finite, or
     * of what a callback said. */
    int (*propose)(struct drafter *d, struct workspace *w, int32_t *draft, int max, size_t *failed);

    /* The same as a tree of at most o->nodes drafts and `depth` levels, all within the target's vocabulary; NULL: chains only. */
    void (*propose_tree)(struct drafter *d, struct workspace *w, struct draft_tree *tree, int depth, size_t *failed);

    /* The prompt is done and its next token observed; may be NULL. */
    void (*after_prompt)(struct drafter *d, struct workspace *w);

    /* How many tokens before a cut the target must hand over again, should the timeline be truncated: hidden rows from
     * index cut - 1 - rewind on are observed anew. */
    size_t (*rewind)(const struct drafter *d);

    /* A new drafter comes to know what another one of its type knows of tokens[0..n], where both have the same, and of the hidden
     * rows before n. Returns 0 if it cannot, from this one; NULL: from none. */
    int (*begin_as)(struct drafter *d, const struct drafter *other, size_t n);

    /* The state after `pos` observed tokens, of which what comes behind was cut, to a session file: hidden rows of the
     * target too, or only what does not need them. NULL where the tokens say all: after a load they are observed
     * again, with zeros for hidden rows. w: scratch, as for observe. */
    void (*save)(struct drafter *d, struct workspace *w, size_t pos, int hidden, struct session_writer *out);
    /* Into a drafter that has observed nothing: tokens [pos] and what save has written. DRAFTER_OTHER, and nothing was changed,
     * when it is of a drafter with other depths; DRAFTER_WRONG when no save can have written it. */
    int (*load)(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, struct session_reader *in);

    size_t (*bytes)(const struct drafter *d); /* what its caches and passes take; may be NULL: next to nothing */
    size_t (*weight_bytes)(const struct drafter *d); /* of weights that are not the target's, those that a drafted token reads; may be NULL */
    void (*close)(struct drafter *d);
};
enum drafter_loaded { DRAFTER_LOADED, DRAFTER_OTHER, DRAFTER_WRONG };

/* All methods, in the order in which they are listed. A new one is a file of its own that defines its type, and a word here. */
#define DRAFT_METHODS(METHOD) \
    METHOD(draft_mtp_vanilla) METHOD(draft_mtp_eagle) METHOD(draft_eagle_reroll) METHOD(draft_eagle_keep) METHOD(draft_ngram) \
    METHOD(draft_model) METHOD(draft_eagle) METHOD(draft_eagle3) METHOD(draft_callback)

#define DRAFT_METHOD_DECLARED(type) extern const struct drafter_type type;
DRAFT_METHODS(DRAFT_METHOD_DECLARED)
extern const struct drafter_type *const drafter_types[]; /* NULL ends the list */
/* By name; NULL and "none" give NULL. Another name is VB_BAD_ARGUMENT, and the known ones are told. */
int drafter_find(const struct drafter_type **out, const char *name, vb_error *err);
/* Whether there is what the method needs, and every setting is some method's; VB_BAD_ARGUMENT says what is missing or unknown. */
int drafter_check(const struct drafter_type *type, const struct model *m, const vb_session_options *o, vb_error *err);
/* VB_BAD_ARGUMENT: trees were asked for, which this method cannot draft; and which methods can. */
int drafter_without_trees(const struct drafter_type *type, int topk, vb_error *err);
/* K where none was given: the number of MTP modules where these draft, else 3. */
int drafter_default_tokens(const struct drafter_type *type, const struct model *m);
/* The longest automatic draft where no number was given. mtp-vanilla keeps a cache for each, whatever is asked for. */
int drafter_longest(const struct drafter_type *type, const struct model *m);

/* What vb_drafting.settings says of a key: a number from least to most, or `otherwise` where it says nothing. VB_BAD_ARGUMENT
 * names another value. */
int drafter_setting(const char *settings, const char *key, int least, int most, int otherwise, int *out, vb_error *err);

/* drafter_type.rewind of those that need nothing again. */
size_t drafter_no_rewind(const struct drafter *d);

/* The token that a row of logits [V] drafts as draft `number`, from 1: by o->choose, or argmax, lowest index. -1 ends the draft:
 * the row is not finite (*failed counts it), or its best probability, at temperature 1, is below the session's p_min. */
int32_t drafter_choose(const struct drafter_options *o, const float *logits, size_t V, int number, size_t *failed);
/* The n <= VB_MAX_TOPK best tokens of a row of logits [V], by value, then index, and their probabilities at temperature 1; those
 * below p_min are left out. Returns how many; none if the row is not finite, which *failed counts. */
int drafter_best(const struct drafter_options *o, const float *logits, size_t V, int n, int32_t *tokens, double *p, size_t *failed);

#endif
