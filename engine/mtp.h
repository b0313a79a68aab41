/* engine/mtp.h -- what the drafters that use MTP modules share: the committed tokens, the hidden rows that missing rows
 * need, and one cache per depth.
 *
 * Let tok[0..N] be committed and the target's hidden rows h_0..h_{N-1} known. Row i of module k takes Emb(tok[i+k+1])
 * and h^k_i, where h^0 is the target's h and h^{k+1} is module k's own output g. Row N-1 proposes tok[N+k+1]. A row is
 * final when i+k+1 <= N: its token is committed. Other rows were computed from drafts and are dropped after each round;
 * the next round computes from the first missing row on. (DeepSeek-V3 report, 2.2.) */
#ifndef VB_MTP_H
#define VB_MTP_H

#include "drafter.h"

struct mtp_depth {
    const struct mtp_module *module;
    struct kvcache cache;  /* one layer; its length is the number of rows, all final between rounds */
    float *hidden_of_next; /* h^k of row cache.length, which the depth before computed as its last final row [d] */
};

struct mtp_state {
    const struct model *model;
    struct drafter_options options;
    int32_t *tokens;      /* committed, by index [context + 1] */
    size_t count;         /* N + 1 of them */
    float *pending;       /* the target's hidden rows first_pending.. [room, d] */
    size_t first_pending, pending_count, room;
    float *h, *g;         /* [room, d]: the rows that a pass takes and gives */
    float *logits;        /* [V] */
    struct row *rows;     /* [room] */
    size_t last_rows;     /* how many the last pass had */
    struct mtp_depth *depths;
    int num_depths;
};

/* num_depths caches; depth k has module k mod D. */
int mtp_state_open(struct mtp_state *s, const struct model *m, const struct drafter_options *o, int num_depths,
                   vb_error *err);
void mtp_state_close(struct mtp_state *s);

/* drafter_type.observe: forgets from pos on, keeps the tokens and hidden rows; the rows they make final are computed
 * now when they are many (a prompt), else with the next proposal. */
void mtp_observe(struct mtp_state *s, struct workspace *w, size_t pos, const int32_t *tokens, const float *hidden,
                 size_t n);

/* Computes the final rows of every depth, and for the depths k < max also the rows up to N-1, each proposing a draft
 * that the next depth's rows take. Returns the number of drafts; s->g then ends with the row that proposed the last.
 * Rows that are not final are cut again. */
int mtp_round(struct mtp_state *s, struct workspace *w, int32_t *draft, int max, size_t *failed);

/* Rows first.. of depth k's module, appended to its cache: s->h [n, d] -> s->g [n, d]. Row i takes tok[i+k+1], of which
 * those beyond tok[N] are drafts: draft[0] is tok[N+1]. */
void mtp_rows(struct mtp_state *s, struct workspace *w, int k, size_t n, const int32_t *draft);

/* argmax of depth k's head over a row g, lowest index; -1 when its logits are not finite. */
int32_t mtp_choose(struct mtp_state *s, struct workspace *w, int k, const float *g);

#endif
