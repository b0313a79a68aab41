/* engine/draft/mtp.h -- what the drafters that use MTP modules share: the committed tokens, the hidden rows that missing rows
 * need, and one cache per depth.
 *
 * Let tok[0..N] be committed and the target's hidden rows h_0..h_{N-1} known. Row i of module k takes Emb(tok[i+k+1])
 * and h^k_i, where h^0 is the target's h and h^{k+1} is module k's own output g. Row N-1 proposes tok[N+k+1]. A row is
 * final when i+k+1 <= N: its token is committed. Other rows were computed from drafts and are dropped after each round;
 * the next round computes from the first missing row on. (DeepSeek-V3 report, 2.2.) */
#ifndef VB_MTP_H
#define VB_MTP_H

#include "engine/draft/drafter.h"
#include "engine/draft/net.h"

struct mtp_depth {
    struct kvcache cache;  /* one layer; its rows are all final between rounds (but for eagle-reroll and eagle-keep) */
    float *hidden_of_next; /* h^k of the row that comes next, which the depth before computed as its last final row [d] */
};

/* What drafting trees takes (engine/draft/mtp_tree.c). */
struct mtp_tree {
    struct tree_builder builder;
    float *logits;   /* [topk, V] of depth 0 */
    int32_t *slots;  /* [topk, width]: of the tokens that each row of a level sees */
    size_t width;
};

struct mtp_state {
    const struct model *model;
    struct draft_net *net; /* the modules, or a head that takes the place of module 0 */
    struct drafter_options options;
    int32_t *tokens;      /* committed, by index [context + 1] */
    size_t count;         /* N + 1 of them */
    float *taken;         /* [most_observed, width] where net->type->take makes them of the target's; else NULL */
    float *pending;       /* the target's hidden rows first_pending.. [room, d] */
    size_t first_pending, pending_count, room;
    float *h, *g, *next;  /* [room, d]: what a pass takes, gives to the head, and hands to the next depth */
    float *logits;        /* [V] */
    struct row *rows;     /* [room] */
    size_t head_row;      /* of the last pass: its last row that is no padding */
    int missing;          /* in this round the target's newest hidden row is not known; */
    int never;            /* it never will be, and the module's row of it is in the cache: MISSING_HIDDEN, or a session loaded without it */
    int32_t aside;        /* 1 + the slot of that row, while a round's row of zeros stands in its place, in another one; else 0 */
    struct mtp_depth *depths;
    int num_depths;
    struct mtp_tree tree; /* where options.topk is more than 1 */
};

/* num_depths caches for depths of the network, which is the state's from now on, also on an error. */
int mtp_state_open(struct mtp_state *s, struct draft_net *net, const struct model *m, const struct drafter_options *o, int num_depths,
                   vb_error *err);
void mtp_state_close(struct mtp_state *s);

/* drafter_type.observe: forgets from pos on, keeps the tokens and hidden rows; the rows they make final are computed
 * now when they are many (a prompt), else with the next proposal. */
void mtp_observe(struct mtp_state *s, struct workspace *w, size_t pos, const int32_t *tokens, const float *hidden,
                 size_t n);

/* drafter_type.begin_as. The rows of the caches are copied: one layer's. */
int mtp_begin_as(struct mtp_state *s, const struct mtp_state *other, size_t n);

/* drafter_type.after_prompt: what PREFILL_DRAFT and MISSING_HIDDEN ask for. */
void mtp_after_prompt(struct mtp_state *s, struct workspace *w);

/* Computes the final rows of every depth, and for the depths k < max also the rows up to N-1, each proposing a draft
 * that the next depth's rows take. Returns the number of drafts; s->g and s->next then end with the row that proposed the
 * last. Rows that are not final are cut again. */
int mtp_round(struct mtp_state *s, struct workspace *w, int32_t *draft, int max, size_t *failed);

/* Whose hidden rows a pass takes: those of the target or the depth before, row i's for row i; or the module's own of the pass
 * before, row i-1's for row i. Rows of padding take zeros, or (ALL_FROM_ITSELF) what the padding before gave. */
enum mtp_source { FROM_DEPTH_BEFORE, FROM_ITSELF, ALL_FROM_ITSELF };

/* The next n rows of depth k's module, appended to its cache: s->h [n + pad, d] -> s->g, s->next. Row i takes tok[i+k+1], of
 * which those beyond tok[N] are drafts: draft[0] is tok[N+1]. Then `pad` rows of token 0, which leave the cache again. */
void mtp_rows(struct mtp_state *s, struct workspace *w, int k, size_t n, size_t pad, enum mtp_source source,
              const int32_t *draft);

/* More drafts by module 0, which takes its own row: `drafts` there are, at most max there may be. The row that proposed the
 * last is `last` of s->next. Returns how many there are then. */
int mtp_chain(struct mtp_state *s, struct workspace *w, int32_t *draft, int drafts, int max, size_t last, size_t *failed);

/* The rows mtp_rows has put together: s->rows, s->h [S, d] -> s->g, s->next. */
void mtp_pass(struct mtp_state *s, struct workspace *w, int k, size_t first, size_t S);
/* Row i of a state's depth k. */
struct row mtp_state_row(struct mtp_state *s, int k, size_t i, int32_t token);
/* The target's token for one that the head names. */
int32_t mtp_token(const struct mtp_state *s, int32_t drafted);

/* Memory for trees; and drafter_type.propose_tree for who drafts all by depth 0. */
int mtp_tree_open(struct mtp_state *s, vb_error *err);
void mtp_tree_close(struct mtp_state *s);
size_t mtp_tree_bytes(const struct mtp_state *s);
void mtp_propose_tree(struct drafter *d, struct workspace *w, struct draft_tree *tree, int depth, size_t *failed);

/* What depth k's head drafts from a row g (drafter_choose). number: of the draft, from 1. */
int32_t mtp_choose(struct mtp_state *s, struct workspace *w, int k, const float *g, int number, size_t *failed);

/* Rows of a depth's cache, without the phantom; and a cut to n of them. */
size_t mtp_row_count(const struct mtp_state *s, int k);
void mtp_cut(struct mtp_state *s, int k, size_t n);

/* After a round's drafts: what was made without the target's newest hidden row is made again in the next. */
void mtp_round_ends(struct mtp_state *s);

/* How many rows of padding a pass of n rows of a round gets. */
size_t mtp_padding(const struct mtp_state *s, size_t n);

/* What the drafters with MTP modules or a head have in common: drafter_type's functions, but for open (num_depths) and propose. */
struct mtp_drafter { /* handed around as a struct drafter */
    struct mtp_state state;
    int32_t drafted[VB_MAX_DRAFT]; /* eagle-keep: what the newest round drafted; */
    int count;
    size_t N;                      /* its rows N, N+1, .. took drafted[0], drafted[1], .. */
};
static inline struct mtp_drafter *mtp_of(const struct drafter *d) { return (struct mtp_drafter *)(uintptr_t)d; }

/* The network is the drafter's from now on, also on an error. */
int mtp_drafter_open(struct drafter **out, struct draft_net *net, const struct model *m, const struct drafter_options *o, int num_depths,
                     vb_error *err);
/* With the model's modules. */
int mtp_drafter_open_modules(struct drafter **out, const struct model *m, const struct drafter_options *o, int num_depths, vb_error *err);
void mtp_drafter_observe(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, const float *hidden,
                         size_t n);
int mtp_drafter_begin_as(struct drafter *d, const struct drafter *other, size_t n);
void mtp_drafter_after_prompt(struct drafter *d, struct workspace *w);
size_t mtp_drafter_bytes(const struct drafter *d);
size_t mtp_drafter_weight_bytes(const struct drafter *d);
void mtp_drafter_close(struct drafter *d);
/* mtp_save.c */
void mtp_drafter_save(struct drafter *d, struct workspace *w, size_t pos, int hidden, struct session_writer *out);
int mtp_drafter_load(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, struct session_reader *in);
/* All drafts by module 0, or a head in its place: the first as a row of mtp_round, the others by mtp_chain, whose rows go again. Of a
 * row i that holds tok[i+1] all before a cut are final: drafter_no_rewind. */
int mtp_drafter_propose_chain(struct drafter *d, struct workspace *w, int32_t *draft, int max, size_t *failed);

#endif
