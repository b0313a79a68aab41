/* engine/draft/mtp.h -- the state of drafters with a network (MTP modules, an EAGLE head or parallel heads): committed
 * tokens, hidden states, and a cache per depth.
 *
 * Let tok[0..N] be the committed tokens, and h_0..h_{N-1} the known hidden states of the target. Row i of module k
 * reads Emb(tok[i+k+1]) and h^k_i. Here h^0 is the target's h, and h^{k+1} is the output g of module k. Row N-1
 * proposes tok[N+k+1] (DeepSeek-V3 report, 2.2). In other methods the depths read other tokens and hidden states. A
 * method is described by data, struct net_method.
 *
 * A row is final if all tokens that it depends on are committed. Rows that are not final were computed from drafts.
 * These rows are removed after each round, and the next round begins with the first row that is not in the cache.
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

/* Which hidden state row i of a depth reads: one of the target, or what the depth before gave in its row i. If the
 * target has not computed the state, because its token is a draft, the row reads what the row gave that proposed the
 * token after it. */
enum hidden_source { FROM_TARGET, FROM_DEPTH_BEFORE };

/* Row i of a depth reads token i + ahead, or no token if ahead is 0. From the target it takes the hidden state of token
 * i + ahead - 1, or of token i if ahead is 0. */
struct depth_facts {
    size_t ahead;
    enum hidden_source source;
};

/* Who makes the drafts of a round.
 *     DEPTH_AFTER_DEPTH  depth k makes draft k + 1, from its row N-1; a depth reads the draft of the depth before it
 *     TAKING_TURNS       depth 0 makes the first draft, from its row N-1. Then the depths take turns, beginning with
 *                        depth 1 (there may be one depth alone): each draft is made from the row that made the draft
 *                        before it, by a row which the cache keeps only for this round
 *     ALL_AT_ONCE        depth k makes draft k + 1, from its row N-1, and no depth reads a draft: one pass of the
 *                        output head makes all of them */
enum draft_order { DEPTH_AFTER_DEPTH, TAKING_TURNS, ALL_AT_ONCE };

/* A draft method that drafts with a network. Each depth has a cache of its own; the network says which of its modules
 * or heads computes a depth. */
struct net_method {
    int depths;
    enum draft_order order;
    struct depth_facts depth[VB_MAX_DRAFT];
};
/* One depth, which takes turns with itself: module 0 or an EAGLE head makes all drafts. */
extern const struct net_method net_method_one_depth;

/* A hidden state of the target that the drafter does not know: that of the token before the newest one. Zeros replace
 * it. Three functions of mtp_round.c handle it: lost_is, lost_put_aside and lost_put_back. */
struct lost_hidden {
    int now;        /* nonzero: it is unknown in this round */
    int for_good;   /* nonzero: it stays unknown in later rounds, too. The reason is the convention missing-hidden, or a
                       session file without hidden states */
    int32_t aside;  /* if for_good: depth 0 first computes a row from a known hidden state, and later again from zeros.
                       While the cache contains the row from zeros, slot aside - 1 keeps the first row. 0: no row is
                       kept */
};

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
    struct lost_hidden lost;
    struct net_method method;
    struct mtp_depth *depths; /* [method.depths], or as many as could be opened: num_depths */
    int num_depths;
    float *proposing;     /* [num_depths, d]: the rows that propose, for one pass of the output head; NULL unless the
                             method makes all drafts at once */
    float *given;         /* [num_depths, d]: what row N-1 of each depth gave in this round; NULL unless a depth reads
                             it in place of a hidden state that the target has not computed */
    struct mtp_tree tree; /* only if options.topk is more than 1 */
};

/* Opens the state of a method, with a cache for each depth. The state owns `net` and closes it, even if opening
 * fails. */
int mtp_state_open(struct mtp_state *s, struct draft_net *net, const struct vb_model *m,
                   const struct drafter_options *o, const struct net_method *method, vb_error *err);
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

/* Says which hidden states the rows of a pass read. AS_DESCRIBED: those that the method describes (depth_facts.source).
 * FROM_ITSELF: row i reads what row i-1 gave, which made the draft before. With both, the hidden states of padding are
 * zeros. ALL_FROM_ITSELF: as FROM_ITSELF, and rows of padding do so too. */
enum row_source { AS_DESCRIBED, FROM_ITSELF, ALL_FROM_ITSELF };

/* Computes the next n rows of depth k and appends them to its cache. The function reads the hidden states s->h [n +
 * pad, d] and writes s->g and s->next. Row i reads tok[i+k+1]. Tokens after tok[N] are drafts: tok[N+1] is draft[0],
 * tok[N+2] is draft[1], and so on. After the n rows, `pad` rows of padding (token 0) are computed and then removed from
 * the cache. */
void mtp_rows(struct mtp_state *s, struct pass *pass, int k, size_t n, size_t pad, enum row_source source,
              const int32_t *draft);

/* Makes more drafts with module 0, which reads its own output, until there are `max` drafts in total. `drafts` is the
 * number of drafts that the round has already. Row `last` of s->next is the output of the row that proposed the newest
 * draft. Returns the total number of drafts. */
int mtp_chain(struct mtp_state *s, struct pass *pass, int32_t *draft, int drafts, int max, size_t last,
              size_t *failed);

/* Row i of depth k reads token i + mtp_ahead(s, k), or no token if this is 0. If the target has computed the hidden
 * state that it reads from the target, it is that of token i + mtp_hidden_ahead(s, k). */
static inline size_t mtp_ahead(const struct mtp_state *s, int k) { return s->method.depth[k].ahead; }
static inline size_t mtp_hidden_ahead(const struct mtp_state *s, int k)
{
    return mtp_ahead(s, k) ? mtp_ahead(s, k) - 1 : 0;
}

/* Runs depth k on S rows. Reads rows [first, first + S) of s->rows and s->h, and writes rows [first, first + S) of s->g
 * and s->next. */
void mtp_pass(struct mtp_state *s, struct pass *pass, int k, size_t first, size_t S);
/* Appends a slot for row i to the cache of depth k, and returns a description of this row. The row reads `token`. */
struct row mtp_state_row(struct mtp_state *s, int k, size_t i, int32_t token);
/* Converts a token id of the network's vocabulary to the target's id of the same token. */
int32_t mtp_token(const struct mtp_state *s, int32_t drafted);

/* mtp_tree_open and mtp_tree_close allocate and free the memory for trees. mtp_propose_tree implements
 * drafter_type.propose_tree: depth 0 makes all drafts. If a method makes all drafts at once, depth k makes those of
 * level k + 1. */
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
 * state, the function removes the row that depth 0 computed from these zeros. The row that was put aside replaces it.
 * If there is none, the next round computes the removed row again. */
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
                     const struct drafter_options *o, const struct net_method *method, vb_error *err);
/* Opens a drafter with the model's MTP modules. */
int mtp_drafter_open_modules(struct drafter **out, const struct vb_model *m, const struct drafter_options *o,
                             const struct net_method *method, vb_error *err);
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
/* Implements drafter_type.propose_together, for each order of drafts.
 *
 * If depths take turns, the first draft is made as mtp_round does, and the others as mtp_chain does. At the end, all
 * rows that were computed for the second and later drafts are removed from the caches. */
void mtp_drafter_propose(struct proposal *proposals, size_t count, struct pass *pass);
/* Implements drafter_type.rewind. After a cut, the deepest depth needs rows which read tokens that are no longer there:
 * those of the last tokens, as many as it reads ahead of depth 0. */
size_t mtp_drafter_rewind(const struct drafter *d);

/* For methods that make all drafts at once. Computes the final rows of every depth that have not been computed yet, and
 * copies row N-1 of the first depths to s->proposing. Returns how many rows it copied: at most `max`, and 0 if the
 * hidden state that these rows read is not known. */
size_t mtp_proposing_rows(struct mtp_state *s, struct pass *pass, int max);

/* The members of drafter_type that methods with a network have in common: NET_STATE those of the state, NET_DRAFTS
 * those that follow the description of the method. */
#define NET_STATE                                                                                               \
    .rewind = mtp_drafter_rewind, .bytes = mtp_drafter_bytes, .begin_as = mtp_drafter_begin_as,                 \
    .save = mtp_drafter_save, .load = mtp_drafter_load, .close = mtp_drafter_close
#define NET_DRAFTS                                                                                              \
    .observe = mtp_drafter_observe, .propose_together = mtp_drafter_propose, .defer = mtp_drafter_defer

#endif
