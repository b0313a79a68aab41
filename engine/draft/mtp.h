/* engine/draft/mtp.h -- the state that all drafters with MTP modules share: committed tokens, hidden states, and a
 * cache per depth.
 *
 * Let tok[0..N] be the committed tokens, and h_0..h_{N-1} the known hidden states of the target. Row i of module k
 * reads Emb(tok[i+k+1]) and h^k_i. Here h^0 is the target's h, and h^{k+1} is the output g of module k. Row N-1
 * proposes tok[N+k+1] (DeepSeek-V3 report, 2.2). The conventions module-hidden and chain-module change this
 * (docs/DRAFTING.md).
 *
 * Row i of module k is final if i+k+1 <= N, because all tokens that it depends on are then committed. Rows that are not
 * final were computed from drafts. These rows are removed after each round, and the next round begins with the first
 * row that is not in the cache.
 *
 * With automatic draft lengths, there may be many rounds without drafts. In such rounds the modules compute nothing, so
 * rows are missing from the caches (mtp_defer). The hidden states that these rows need are kept in `pending`, and the
 * next proposal computes the missing rows. If there are too many of them, the oldest hidden states are dropped. The
 * caches then begin with row `base` instead of row 0, and rows attend only to rows from `base` on. */
#ifndef VB_MTP_H
#define VB_MTP_H

#include "engine/draft/drafter.h"
#include "engine/draft/net.h"
#include "engine/pass/slot_lists.h"

struct mtp_depth {
    struct kvcache cache;  /* has one layer. Between rounds all its rows are final, except with the methods eagle-reroll
                              and eagle-keep */
    struct kept_tokens kept; /* with convention mtp-set, the tokens to which row N-1 attended; else slots is NULL */
    float *hidden_of_next; /* [d]: h^k of the first row that this depth has not computed yet; it is the output of the
                              last final row of depth k - 1 */
};

/* Memory for drafting trees (engine/draft/mtp_tree.c). */
struct mtp_tree {
    struct tree_builder builder;
    float *logits;   /* [topk, V]: logits of depth 0 */
    struct slot_lists slots; /* for each row of a level, the slots of the tokens to which the row attends */
};

struct mtp_state {
    const struct vb_model *model;
    struct draft_net *net; /* the MTP modules, or an EAGLE head in place of module 0 */
    struct drafter_options options;
    int32_t *tokens;      /* [context + 1]: the committed tokens */
    size_t count;         /* number of committed tokens, N + 1 */
    float *taken;         /* [most_observed, d]: rows that net->type->take computed from the target's rows; NULL if
                             `take` is NULL */
    float *pending;       /* [room, d]: the target's hidden states from index first_pending on */
    size_t first_pending, pending_count, room;
    size_t base;          /* index of the first row in the caches, or of the first row that will be in them */
    size_t deferred;      /* as `rows` in mtp_defer */
    float *h, *g, *next;  /* [room, d]: input of a pass, its output for the head, and its output for the next depth */
    float *logits;        /* [net->vocab_size] */
    int32_t (*choose)(void *context, const float *logits, int number); /* as in drafter_options */
    void *choose_context;
    float *widened;       /* [V]: a row of logits of the target's vocabulary, for `choose`; NULL if not needed */
    struct row *rows;     /* [room] */
    size_t head_row;      /* index of the newest pass's last row; rows of padding do not count */
    int missing;          /* nonzero: in this round, the target's newest hidden state is unknown, and zeros replace
                             it */
    int never;            /* nonzero: this hidden state stays unknown in later rounds too. The reason is the convention
                             missing-hidden, or a session file without hidden states */
    int32_t aside;        /* used only if `never` is nonzero. Module 0 first computes a row from a known hidden state,
                             and later again from zeros. While the cache contains the row from zeros, slot aside - 1
                             keeps the first row. 0: no row is kept */
    struct mtp_depth *depths;
    int num_depths;
    int by_step;          /* nonzero: mtp-eagle with convention chain-module=step. Depth k is module k, and its row i
                             reads tok[i+1] and the target's h_i */
    int parallel;         /* nonzero: depth k is parallel head k. Its row i reads the target's h_i and no token, and row
                             N-1 proposes tok[N+k+1], whatever the other heads propose */
    float *proposers;     /* [num_depths, d]: if `parallel`, row N-1 of each depth, for the output head; else NULL */
    float *proposed_from; /* [num_depths, d]: with convention module-hidden=target, what row N-1 of each depth gave to
                             the next depth in this round; NULL without this convention. by_step does not use it */
    struct mtp_tree tree; /* only if options.topk is more than 1 */
};

/* Opens the state with a cache for each of num_depths depths of the network. The state owns `net` and closes it, even
 * if opening fails. */
int mtp_state_open(struct mtp_state *s, struct draft_net *net, const struct vb_model *m,
                   const struct drafter_options *o, int num_depths, vb_error *err);
void mtp_state_close(struct mtp_state *s);

/* Implements drafter_type.observe. The function forgets everything from index pos on, and stores the tokens and hidden
 * states. After that, some final rows of the modules have not been computed yet. If there are many such rows, as after
 * a prompt, mtp_observe computes them. If there are few, the next proposal computes them. */
void mtp_observe(struct mtp_state *s, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                 size_t n);

/* Implements drafter_type.defer. With the conventions prefill-draft and missing-hidden, nothing is deferred. */
void mtp_defer(struct mtp_state *s, size_t rows);
/* Call this before a proposal. If more than s->deferred rows are missing, the function drops the oldest of them, and
 * all rows of the caches. */
void mtp_catch_up(struct mtp_state *s);

/* Implements drafter_type.begin_as. Copies the rows of all caches, each of which has one layer. If the oldest rows are
 * not there, only a session with automatic lengths can begin with the others; else the function returns 0. */
int mtp_begin_as(struct mtp_state *s, const struct mtp_state *other, size_t n);

/* Implements drafter_type.after_prompt, for the conventions prefill-draft and missing-hidden. */
void mtp_after_prompt(struct mtp_state *s, struct pass *pass);

/* Computes the final rows of every depth that have not been computed yet. Each depth k < max also computes rows that
 * are not final, up to row N-1, and proposes a draft from row N-1. The next depth reads this draft. At the end, rows
 * that are not final are removed from the caches. The row that proposed the newest draft wrote the last row of s->g and
 * of s->next. Returns the number of drafts. */
int mtp_round(struct mtp_state *s, struct pass *pass, int32_t *draft, int max, size_t *failed);

/* Says which hidden state is the input of row i. FROM_DEPTH_BEFORE: the output of row i of the target (for depth 0) or
 * of the previous depth. FROM_ITSELF: the output of row i-1 of the same depth. With FROM_DEPTH_BEFORE and FROM_ITSELF,
 * the hidden states of padding are zeros. ALL_FROM_ITSELF: the output of row i-1 of the same depth, for rows of padding
 * too. */
enum mtp_source { FROM_DEPTH_BEFORE, FROM_ITSELF, ALL_FROM_ITSELF };

/* Computes the next n rows of depth k and appends them to its cache. The function reads the hidden states s->h [n +
 * pad, d] and writes s->g and s->next. Row i reads tok[i+k+1]. Tokens after tok[N] are drafts: tok[N+1] is draft[0],
 * tok[N+2] is draft[1], and so on. After the n rows, `pad` rows of padding (token 0) are computed and then removed from
 * the cache. */
void mtp_rows(struct mtp_state *s, struct pass *pass, int k, size_t n, size_t pad, enum mtp_source source,
              const int32_t *draft);

/* Makes more drafts with module 0, which reads its own output, until there are `max` drafts in total. `drafts` is the
 * number of drafts that the round has already. Row `last` of s->next is the output of the row that proposed the newest
 * draft. Returns the total number of drafts. */
int mtp_chain(struct mtp_state *s, struct pass *pass, int32_t *draft, int drafts, int max, size_t last,
              size_t *failed);

/* Row i of depth k depends on the tokens before token i + mtp_ahead(s, k), and, unless `parallel`, on that token,
 * too. */
static inline size_t mtp_ahead(const struct mtp_state *s, int k)
{
    return s->by_step || s->parallel ? 1 : (size_t)k + 1;
}

/* Runs depth k on S rows. Reads rows [first, first + S) of s->rows and s->h, and writes rows [first, first + S) of s->g
 * and s->next. */
void mtp_pass(struct mtp_state *s, struct pass *pass, int k, size_t first, size_t S);
/* Appends a slot for row i to the cache of depth k, and returns a description of this row. The row reads `token`. */
struct row mtp_state_row(struct mtp_state *s, int k, size_t i, int32_t token);
/* Converts a token id of the network's vocabulary to the target's id of the same token. */
int32_t mtp_token(const struct mtp_state *s, int32_t drafted);

/* mtp_tree_open and mtp_tree_close allocate and free the memory for trees. mtp_propose_tree implements
 * drafter_type.propose_tree for methods that make all drafts with depth 0. */
int mtp_tree_open(struct mtp_state *s, vb_error *err);
void mtp_tree_close(struct mtp_state *s);
size_t mtp_tree_bytes(const struct mtp_state *s);
void mtp_propose_tree(struct drafter *d, struct pass *pass, struct draft_tree *tree, int depth, size_t *failed);

/* Computes the logits of a row g at depth k. Then calls drafter_choose to choose draft `number`, counted from 1, from
 * these logits. */
int32_t mtp_choose(struct mtp_state *s, struct pass *pass, int k, const float *g, int number, size_t *failed);

/* mtp_row_count returns the index after the last row in the cache of depth k; it is the number of rows if s->base is 0.
 * mtp_cut keeps the rows before index n and removes the others. With convention first-row=phantom there is a row before
 * the first row; both functions leave this row out of their counts. */
size_t mtp_row_count(const struct mtp_state *s, int k);
void mtp_cut(struct mtp_state *s, int k, size_t n);

/* Call this after the drafts of a round have been made. If zeros were used in place of the target's newest hidden
 * state, the function removes the row that module 0 computed from these zeros. If s->aside is not 0, the row in slot
 * s->aside - 1 replaces the removed row. Otherwise the next round computes the removed row again. */
void mtp_round_ends(struct mtp_state *s);

/* Returns the number of rows of padding for a pass of n rows in a round. */
size_t mtp_padding(const struct mtp_state *s, size_t n);

/* A drafter with MTP modules or an EAGLE head. The draft methods with MTP modules and the methods with EAGLE heads
 * share the functions below. These functions implement members of drafter_type. */
struct mtp_drafter { /* pointers to it are cast to struct drafter */
    struct mtp_state state;
    int32_t drafted[VB_MAX_DRAFT]; /* for eagle-keep: the drafts of the newest round */
    int count;                     /* for eagle-keep: the number of drafts in `drafted` */
    size_t N;                      /* for eagle-keep: row N read drafted[0], row N + 1 read drafted[1], and so on */
};
static inline struct mtp_drafter *mtp_of(const struct drafter *d) { return (struct mtp_drafter *)(uintptr_t)d; }

/* Opens a drafter with a network. The drafter owns `net` and closes it, even if opening fails. */
int mtp_drafter_open(struct drafter **out, struct draft_net *net, const struct vb_model *m,
                     const struct drafter_options *o, int num_depths, vb_error *err);
/* Opens a drafter with the model's MTP modules. */
int mtp_drafter_open_modules(struct drafter **out, const struct vb_model *m, const struct drafter_options *o,
                             int num_depths, vb_error *err);
void mtp_drafter_observe(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                         size_t n);
void mtp_drafter_defer(struct drafter *d, size_t rows);
int mtp_drafter_begin_as(struct drafter *d, const struct drafter *other, size_t n);
void mtp_drafter_after_prompt(struct drafter *d, struct pass *pass);
size_t mtp_drafter_bytes(const struct drafter *d);
size_t mtp_drafter_weight_bytes(const struct drafter *d);
void mtp_drafter_close(struct drafter *d);
/* Defined in mtp_save.c. */
void mtp_drafter_save(struct drafter *d, struct pass *pass, size_t pos, int hidden, struct session_writer *out);
int mtp_drafter_load(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens,
                     struct session_reader *in);
/* Two implementations of drafter_type.propose_together. mtp_drafter_propose_levels makes draft k, counted from 1, with
 * the module of depth k - 1.
 *
 * mtp_drafter_propose_chains makes all drafts with module 0, or with an EAGLE head in place of module 0. With by_step,
 * the modules take turns. It makes the first draft as mtp_round does, and the second and later drafts as mtp_chain
 * does. At the end it removes from the caches all rows that were computed for the second and later drafts. Row i reads
 * tok[i+1], so after a cut to n tokens the rows before row n - 1 are still final. Therefore methods with
 * mtp_drafter_propose_chains use drafter_no_rewind. */
void mtp_drafter_propose_levels(struct proposal *proposals, size_t count, struct pass *pass);
void mtp_drafter_propose_chains(struct proposal *proposals, size_t count, struct pass *pass);

/* For parallel heads, whose drafts do not depend on each other. mtp_proposers computes the final rows of every depth
 * that have not been computed yet, and copies row N-1 of the first depths to s->proposers. Returns how many rows it
 * copied: at most `max`, and 0 if the hidden state that these rows read is not known. mtp_drafter_propose_at_once
 * implements drafter_type.propose_together: one pass of the output head makes all drafts of a round. */
size_t mtp_proposers(struct mtp_state *s, struct pass *pass, int max);
void mtp_drafter_propose_at_once(struct proposal *proposals, size_t count, struct pass *pass);

#endif
