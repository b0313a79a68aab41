/* engine/draft/drafter.h -- the interface of all draft methods. Each method is a file of its own, and cannot change the
 * output.
 *
 * A decoding round has four steps. The drafter proposes drafts. The target verifies them as rows of one pass. The rows
 * of rejected drafts are removed from the KV cache. The drafter observes the tokens that were committed. */
#ifndef VB_DRAFTER_H
#define VB_DRAFTER_H

#include "engine/draft/tree.h"
#include "engine/pass/forward.h"

struct drafter; /* an opaque type; each method casts the pointer to a struct of its own */
struct session_writer;
struct session_reader;

struct drafter_options {
    const vb_session_options *asked; /* the user's options; a method reads options that it alone has from here */
    size_t context;          /* the most tokens in the sequence */
    const struct kernels *kernels;
    int threads;
    size_t most_observed;    /* the most tokens in one call of observe */
    enum target_rows takes;  /* the rows of the target that observe receives, as in drafter_type */
    int max_draft;           /* K, the length of the longest draft, 1..VB_MAX_DRAFT */
    int topk, nodes;         /* for trees: children per node, and nodes per round; topk is 1 if drafts are chains */
    int poison;              /* nonzero: removed cache rows are filled with NaN (for tests) */
    int padded;              /* nonzero: passes of a round are padded to max_draft + 1 rows */
    int32_t sequence;        /* number of the sequence, for taps */
    struct tracer *tracer;   /* NULL if no trace callback was set */
    /* Chooses draft `number` of the round, counted from 1, from its row of logits [V], which must be finite. It is
     * called for the drafts of a round in order. If it is NULL, the best token of the row is the draft. The number of
     * drafts in a round may depend on these drafts and on observed tokens, but on no other random draw. */
    int32_t (*choose)(void *context, const float *logits, int number);
    void *choose_context;
};

/* A request to one drafter for drafts, and its answer. */
#define MOST_PROPOSALS 64
struct proposal {
    struct drafter *drafter;
    int32_t *draft;  /* [max]: the drafts */
    int max;         /* the most drafts, at least 1 */
    size_t *failed;  /* as for drafter_type.propose */
    int drafts;      /* number of drafts; the caller sets it to 0 */
};

struct drafter_type {
    const char *name;
    const char *about;    /* describes the method in one line, for help texts */
    const char *settings; /* the keys of vb_drafting.settings that it reads, with defaults: "ngram-min=2,ngram-max=4"; NULL if none */

    /* What the method needs: MTP modules, a draft model, an EAGLE head, a callback. It is refused if one is missing. If
     * the user gives no K, then K is the number of modules for methods that need modules, else 3. */
    int needs_modules, needs_model, needs_head, needs_callback;
    int cache_per_draft;    /* it has a cache for each of K drafts; so unless the user gives K, automatic lengths end at the number of modules */
    enum target_rows takes; /* the rows of the target that observe receives */
    int tokens_alone;       /* observe reads tokens only, and may be called without hidden rows */
    int by_history;         /* drafts depend not only on the tokens, but also on the rounds in which they were generated */

    /* Checks, before anything is opened, for other things that the method needs. NULL if there are none. */
    int (*check)(const struct model *m, const vb_session_options *o, vb_error *err);
    int (*open)(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err);

    /* Receives n committed tokens; the first has index pos. hidden has n rows of the target, of the kind that `takes`
     * names: row j belongs to index pos + j - 1. If pos is 0, row 0 does not exist and is not read. The drafter first
     * forgets everything from index pos on. This also removes the state of drafts, so there is no separate function to
     * undo them. Rows are copied. The drafter may use w as scratch, except w->hidden, w->features and w->logits. */
    void (*observe)(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, const float *hidden,
                    size_t n);

    /* Proposes at most max drafts after the observed tokens, and returns how many. Each draft is in the target's
     * vocabulary. The next observe undoes every change of state that it makes. If a draft ends early because a row is
     * not finite, or because of an invalid answer of a callback, it adds 1 to *failed. */
    int (*propose)(struct drafter *d, struct workspace *w, int32_t *draft, int max, size_t *failed);

    /* Does what propose does, for up to MOST_PROPOSALS drafters of this type that draft for the same target. They may share
     * forward passes, and each proposes what it would propose alone. w->logits is scratch too. A type has either this function
     * or propose. */
    void (*propose_together)(struct proposal *proposals, size_t count, struct workspace *w);

    /* As propose, but makes a tree of at most o->nodes drafts in at most `depth` levels. NULL if the method drafts
     * chains only. */
    void (*propose_tree)(struct drafter *d, struct workspace *w, struct draft_tree *tree, int depth, size_t *failed);

    /* Called when the prompt is finished and the first generated token was observed. May be NULL. */
    void (*after_prompt)(struct drafter *d, struct workspace *w);

    /* Returns how many additional tokens must be observed again if the sequence is cut now. After a cut to n tokens,
     * the target computes the hidden rows from index n - 1 - rewind on again, and observe receives them. */
    size_t (*rewind)(const struct drafter *d);

    /* Copies to a new drafter what `other`, a drafter of the same type, knows about tokens[0..n] and about the hidden
     * rows before n. Both sequences have the same tokens there. Returns 0 if it cannot. NULL if the method never can. */
    int (*begin_as)(struct drafter *d, const struct drafter *other, size_t n);

    /* Writes the state after `pos` observed tokens to a session file; the state of later tokens is dropped. If `hidden`
     * is 0, it leaves out hidden rows of the target and everything that needs them. NULL if the tokens contain the
     * whole state: then they are observed again after a load, with zeros as hidden rows. w is scratch, as for observe. */
    void (*save)(struct drafter *d, struct workspace *w, size_t pos, int hidden, struct session_writer *out);
    /* Restores the state that save has written, in a drafter that has observed nothing. tokens [pos] are those of the
     * session. Returns DRAFTER_OTHER, and changes nothing, if a drafter with other depths has written it. Returns
     * DRAFTER_WRONG if it cannot be the output of save. */
    int (*load)(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, struct session_reader *in);

    size_t (*bytes)(const struct drafter *d); /* memory of its caches and passes; NULL if it is negligible */
    size_t (*weight_bytes)(const struct drafter *d); /* bytes of its own weights, not the target's, that one draft reads; may be NULL */
    void (*close)(struct drafter *d);
};
enum drafter_loaded { DRAFTER_LOADED, DRAFTER_OTHER, DRAFTER_WRONG };

/* All methods, in the order in which help texts list them. A new method needs a file that defines its drafter_type, and
 * a line here. */
#define DRAFT_METHODS(METHOD) \
    METHOD(draft_mtp_vanilla) METHOD(draft_mtp_eagle) METHOD(draft_eagle_reroll) METHOD(draft_eagle_keep) METHOD(draft_ngram) \
    METHOD(draft_model) METHOD(draft_eagle) METHOD(draft_eagle3) METHOD(draft_callback)

#define DRAFT_METHOD_DECLARED(type) extern const struct drafter_type type;
DRAFT_METHODS(DRAFT_METHOD_DECLARED)
extern const struct drafter_type *const drafter_types[]; /* NULL ends the list */
/* Finds a method by its name. For NULL and "none" it sets *out to NULL. If the name is unknown, it returns
 * VB_BAD_ARGUMENT, and the error lists the known names. */
int drafter_find(const struct drafter_type **out, const char *name, vb_error *err);
/* Checks that everything that the method needs is there, and that every setting is known to some method. Otherwise it
 * returns VB_BAD_ARGUMENT, and the error names what is missing or unknown. */
int drafter_check(const struct drafter_type *type, const struct model *m, const vb_session_options *o, vb_error *err);
/* Returns VB_BAD_ARGUMENT with the error that this method cannot draft trees, and which methods can. */
int drafter_without_trees(const struct drafter_type *type, int topk, vb_error *err);
/* Returns the default of K: the number of MTP modules if the method needs modules, else 3. */
int drafter_default_tokens(const struct drafter_type *type, const struct model *m);
/* Returns the length of the longest automatic draft if the user gave no number. For methods with a cache per draft it
 * is the default of K, because each cache takes memory even if it is not used. */
int drafter_longest(const struct drafter_type *type, const struct model *m);

/* Sets *out to the value of a key in vb_drafting.settings, a number from `least` to `most`, or to `otherwise` if the
 * key is not there. Returns VB_BAD_ARGUMENT, naming the value, if it is not such a number. */
int drafter_setting(const char *settings, const char *key, int least, int most, int otherwise, int *out, vb_error *err);

/* Makes proposals with the type's propose or propose_together. */
void drafter_propose(const struct drafter_type *type, struct proposal *proposals, size_t count, struct workspace *w);
/* Does the same for one drafter. Returns the number of drafts. */
int drafter_propose_one(const struct drafter_type *type, struct drafter *d, struct workspace *w, int32_t *draft, int max, size_t *failed);

/* A function for drafter_type.rewind that returns 0. */
size_t drafter_no_rewind(const struct drafter *d);

/* Chooses draft `number`, counted from 1, from its row of logits [V]: with o->choose, or the best token (the lowest
 * index among equals). Returns -1 to end the draft if the row is not finite, which adds 1 to *failed, or if the best
 * token's probability at temperature 1 is below the session's p_min. */
int32_t drafter_choose(const struct drafter_options *o, const float *logits, size_t V, int number, size_t *failed);
/* Finds the n <= VB_MAX_TOPK best tokens of a row of logits [V], the best first and the lower index first among equals,
 * and their probabilities p at temperature 1. Tokens with a probability below p_min are left out. Returns the number of
 * tokens. If the row is not finite, it returns 0 and adds 1 to *failed. */
int drafter_best(const struct drafter_options *o, const float *logits, size_t V, int n, int32_t *tokens, double *p, size_t *failed);

#endif
