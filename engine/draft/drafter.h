/* engine/draft/drafter.h -- the interface of all draft methods. Each method is implemented in a file of its own. In
 * acceptance mode strict, a draft method cannot change the output.
 *
 * A decoding round has four steps. The drafter proposes drafts. The target verifies the drafts as rows of one pass. The
 * rows of rejected drafts are removed from the KV cache. The drafter observes the tokens that were committed. */
#ifndef VB_DRAFTER_H
#define VB_DRAFTER_H

#include "engine/draft/tree.h"
#include "engine/pass/pass.h"

struct drafter; /* an opaque type; each method casts the pointer to a struct of its own */
struct session_writer;
struct session_reader;

struct drafter_options {
    const vb_session_options *asked; /* the user's options; a method reads its own settings and files from them */
    size_t context;          /* largest number of tokens in the sequence */
    const struct kernels *kernels;
    int threads;
    size_t most_observed;    /* largest number of tokens in one call of observe */
    enum target_rows takes;  /* the rows of the target that observe receives, as in drafter_type */
    int max_draft;           /* K, the length of the longest draft, 1..VB_MAX_DRAFT */
    int topk, nodes;         /* for trees: children per node, and nodes per round; topk is 1 if drafts are chains */
    int poison;              /* nonzero: removed cache rows are filled with NaN (for tests) */
    int padded;              /* nonzero: passes of a round are padded to max_draft + 1 rows */
    int32_t sequence;        /* number of the sequence, for taps */
    struct tracer *tracer;   /* NULL if no trace callback was set */
    /* Chooses draft `number` of the round, counted from 1, from its row of logits [V], which must be finite. `choose`
     * is called for the drafts of a round in order. If `choose` is NULL, the draft is the best token of the row. The
     * number of drafts in a round may depend on observed tokens and on the drafts that `choose` has returned. It must
     * depend on nothing else that is random. */
    int32_t (*choose)(void *context, const float *logits, int number);
    void *choose_context;
};

/* A request to one drafter for drafts, and the drafter's answer. */
#define MOST_PROPOSALS 64
struct proposal {
    struct drafter *drafter;
    int32_t *draft;  /* [max]: the drafts */
    int max;         /* largest number of drafts that may be proposed; at least 1 */
    size_t *failed;  /* as in drafter_type.propose */
    int drafts;      /* number of proposed drafts; the caller sets it to 0 before the request */
};

struct drafter_type {
    const char *name;
    const char *about;    /* a one-line description of the method, for help texts */
    const char *settings; /* the keys of vb_drafting.settings that the method reads, with their defaults, such as
                             "ngram-min=2,ngram-max=4"; NULL: it reads none */

    /* needs_modules: nonzero if the method needs MTP modules. The other three members are nonzero if the method needs a
     * draft model, an EAGLE head or a callback. If something that the method needs is missing, the session is not
     * opened. If the user gives no K, then K is the number of MTP modules if needs_modules is nonzero, else 3. */
    int needs_modules, needs_model, needs_head, needs_callback;
    int cache_per_draft;    /* nonzero: the method has a cache for each of the K drafts. If the draft length is chosen
                               automatically and the user gives no K, K is at most the number of MTP modules */
    enum target_rows takes; /* the rows of the target that observe receives */
    int tokens_alone;       /* nonzero: observe reads only the tokens, so `hidden` may be NULL */
    /* Sets *most to the length of the longest draft that the method can make with these options, which is also the
     * default of K. If a file cannot be read, *most is VB_MAX_DRAFT: `open` reports that. The only error is
     * VB_NO_MEMORY. NULL: there is no limit. */
    int (*longest)(int *most, const vb_drafting *drafting, const vb_allocator *a, vb_error *err);
    int by_history;         /* nonzero: drafts depend not only on the tokens, but also on the rounds in which the tokens
                               were generated */

    /* Checks further conditions of the method, before anything is opened. NULL if the method has no further
     * conditions. */
    int (*check)(const struct vb_model *m, const vb_session_options *o, vb_error *err);
    int (*open)(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err);

    /* Tells the drafter how to treat the rows of its own network that it could compute before they are needed. If
     * `rows` is 0, observe computes them as soon as they are many. Otherwise observe computes none of them, and propose
     * computes at most about the newest `rows` of them. If more of them are missing, the drafter may forget the older
     * ones; drafts then depend on when the drafter was asked. A new drafter has `rows` 0. NULL if the method defers
     * nothing. */
    void (*defer)(struct drafter *d, size_t rows);

    /* Receives n committed tokens; the first has index pos. `hidden` has n rows of the target, from the array that
     * `takes` names. Row j of `hidden` belongs to index pos + j - 1. If pos is 0, row 0 does not exist and is not read.
     * Before the drafter stores the tokens, it forgets everything from index pos on. So observe also removes the state
     * that making drafts has added. There is no separate function for this removal. The drafter copies the rows of
     * `hidden` that it keeps. It may use pass as scratch, except pass->w.hidden, pass->w.features and
     * pass->w.logits. */
    void (*observe)(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                    size_t n);

    /* Proposes at most `max` drafts after the observed tokens, and returns the number of drafts. Each draft is in the
     * target's vocabulary. The next call of observe undoes every change of state that propose makes. If the draft ends
     * early because a row is not finite or a callback gave an invalid answer, propose adds 1 to *failed. */
    int (*propose)(struct drafter *d, struct pass *pass, int32_t *draft, int max, size_t *failed);

    /* Does what propose does, for up to MOST_PROPOSALS drafters of this type that draft for the same target. The
     * drafters may share forward passes. Each of them proposes the same drafts as it would alone. The drafters may use
     * pass as scratch as in observe, and in addition pass->w.logits. A drafter_type has either propose_together or
     * propose. */
    void (*propose_together)(struct proposal *proposals, size_t count, struct pass *pass);

    /* Does what propose does, but makes a tree of at most o->nodes drafts in at most `depth` levels. NULL if the method
     * drafts chains only. The drafter may use pass as in propose_together. */
    void (*propose_tree)(struct drafter *d, struct pass *pass, struct draft_tree *tree, int depth, size_t *failed);

    /* Called after the prompt has been computed and the first generated token has been observed. May be NULL. */
    void (*after_prompt)(struct drafter *d, struct pass *pass);

    /* Returns a number R of hidden states. If the sequence is now cut to n tokens, the drafter needs some earlier
     * hidden states once more: those from index n - 1 - R on. The target then computes these rows again, and observe
     * receives them. */
    size_t (*rewind)(const struct drafter *d);

    /* Copies the state for tokens[0..n] and for the hidden states before index n from `other` to a new drafter of the
     * same type. tokens[0..n] are equal in the sequences of both drafters. Returns 1, or 0 if this state cannot be
     * copied. begin_as is NULL if the method can never copy its state. */
    int (*begin_as)(struct drafter *d, const struct drafter *other, size_t n);

    /* Writes the drafter's state for the first `pos` observed tokens to a session file. State that depends on later
     * tokens is not written. If `hidden` is 0, save leaves out hidden states of the target and everything that depends
     * on them. save is NULL if the state can be computed from the tokens alone. If save is NULL, the tokens are
     * observed again after a load, with zeros as hidden states. pass may be used as scratch as in observe. */
    void (*save)(struct drafter *d, struct pass *pass, size_t pos, int hidden, struct session_writer *out);
    /* Restores the state that save wrote to a file. The drafter d must not have observed any token before. tokens [pos]
     * are the tokens of the session. Returns DRAFTER_LOADED on success. Returns DRAFTER_OTHER if the state was written
     * by a drafter with fewer depths or with another network; d is then unchanged. Returns DRAFTER_WRONG if the data in
     * the file cannot be the output of save. */
    int (*load)(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, struct session_reader *in);

    size_t (*bytes)(const struct drafter *d); /* returns the bytes of memory for the drafter's caches and passes; NULL
                                                 if this memory is negligibly small */
    size_t (*weight_bytes)(const struct drafter *d); /* returns how many bytes of weights a draft head reads for one
                                                        draft, with its share of the output head; NULL for other
                                                        methods */
    void (*close)(struct drafter *d);
};
enum drafter_loaded { DRAFTER_LOADED, DRAFTER_OTHER, DRAFTER_WRONG };

/* All methods, in the order in which help texts list them. To add a method, define its drafter_type in a new file and
 * add the name of this drafter_type here. */
#define DRAFT_METHODS(METHOD) \
    METHOD(draft_mtp_vanilla) \
    METHOD(draft_mtp_eagle) METHOD(draft_eagle_reroll) METHOD(draft_eagle_keep) METHOD(draft_ngram) \
        METHOD(draft_model) METHOD(draft_eagle) METHOD(draft_eagle3) METHOD(draft_parallel_heads) \
            METHOD(draft_callback)

#define DRAFT_METHOD_DECLARED(type) extern const struct drafter_type type;
DRAFT_METHODS(DRAFT_METHOD_DECLARED)
extern const struct drafter_type *const drafter_types[]; /* NULL ends the list */
/* Finds a method by its name. If the name is NULL or "none", sets *out to NULL. Returns VB_BAD_ARGUMENT if the name is
 * unknown, and the message lists the known names. */
int drafter_find(const struct drafter_type **out, const char *name, vb_error *err);
/* Checks that everything that the method needs is present, and that at least one method knows each key in the settings.
 * Returns VB_BAD_ARGUMENT if something is missing or a key is unknown. The message names it. */
int drafter_check(const struct drafter_type *type, const struct vb_model *m, const vb_session_options *o,
                  vb_error *err);
/* Sets *kind to 1 or 3 if `dir` holds an EAGLE-1 or EAGLE-3 head, to VB_PARALLEL_HEADS if it holds parallel heads, or
 * to 0 if it holds no readable head. The only error is VB_NO_MEMORY, which the function returns if there is no
 * memory. */
int drafter_head_kind(int *kind, const char *dir, const vb_allocator *a, vb_error *err);
/* Returns VB_BAD_ARGUMENT if `dir` holds a head of another kind than `wanted`, which the method of this name needs.
 * Reports no other error than drafter_head_kind: whoever opens the head reports those. */
int drafter_check_head(const char *dir, int wanted, const char *method, const vb_allocator *a, vb_error *err);
/* Always returns VB_BAD_ARGUMENT. The message says that this method cannot draft trees, and which methods can. */
int drafter_without_trees(const struct drafter_type *type, int topk, vb_error *err);
/* Sets *tokens to K, the length of the longest draft. It is drafting->tokens, but at most what type->longest says. If
 * drafting->tokens is 0, the default is the number of MTP modules if the method needs modules, else what type->longest
 * says, or 3 without it. With drafting->automatic, the default is the limit on lengths: the same for methods with
 * cache_per_draft, because each cache uses memory even if it stays empty; for all other methods what type->longest
 * says, or VB_MAX_DRAFT without it. The only error is VB_NO_MEMORY. */
int drafter_tokens(int *tokens, const struct drafter_type *type, const struct vb_model *m, const vb_drafting *drafting,
                   vb_error *err);

/* Sets *out to the value of `key` in vb_drafting.settings, or to `otherwise` if `settings` does not have the key.
 * Returns VB_BAD_ARGUMENT if the value is not a number from `least` to `most`, and the message names the value. */
int drafter_setting(const char *settings, const char *key, int least, int most, int otherwise, int *out, vb_error *err);

/* Makes proposals with the type's propose or propose_together. */
void drafter_propose(const struct drafter_type *type, struct proposal *proposals, size_t count, struct pass *pass);
/* Does what drafter_propose does, for one drafter. Returns the number of drafts. */
int drafter_propose_one(const struct drafter_type *type, struct drafter *d, struct pass *pass, int32_t *draft,
                        int max, size_t *failed);

/* An implementation of drafter_type.rewind that always returns 0. */
size_t drafter_no_rewind(const struct drafter *d);

/* Chooses draft `number`, counted from 1, from its row of logits [V]. Calls o->choose if it is not NULL; otherwise
 * chooses the token with the largest logit. If several logits are equally large, the lowest token id is chosen. A
 * result of -1 ends the draft. Returns -1 and adds 1 to *failed if the row is not finite. Returns -1 if the best
 * token's probability at temperature 1 is below the session's p_min. */
int32_t drafter_choose(const struct drafter_options *o, const float *logits, size_t V, int number, size_t *failed);
/* Finds the n <= VB_MAX_TOPK best tokens of a row of logits [V], and their probabilities p at temperature 1. The best
 * token comes first. If two tokens have equal logits, the token with the lower id comes first. Tokens with a
 * probability below p_min are left out. Returns the number of tokens. If the row is not finite, returns 0 and adds 1 to
 * *failed. */
int drafter_best(const struct drafter_options *o, const float *logits, size_t V, int n, int32_t *tokens, double *p,
                 size_t *failed);

#endif
