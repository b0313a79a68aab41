/* engine/session/session.h -- a session from the inside: the timeline, how far each cache has come, and one round of it.
 *
 * Between rounds: tokens[0..count) are committed, the target's cache holds `cached` < count rows (0 at the start), and
 * the drafter has observed tokens[0..cached] and the hidden rows before index `cached`. A round takes the tokens from
 * `cached` on: many of them are a prompt, a single one is decoding, and may bring drafts along. */
#ifndef VB_SESSION_H
#define VB_SESSION_H

#include "engine/choose/acceptance.h"
#include "engine/draft/length.h"
#include "engine/draft/drafter.h"

struct vb_session {
    const struct model *model;
    vb_session_options options;
    struct workspace *work, own; /* its own, or that of a batch */
    struct kvcache cache;
    int32_t *tokens;      /* [context] */
    size_t context, chunk, count, cached;
    size_t observed;      /* tokens the drafter knows */
    size_t prompt;        /* with prefill onednn, rows before this one are its; those not computed yet begin a chunk */
    size_t given;         /* tokens appended by the caller or left by a cut, or whose rows a batch took away: passes over them are a
                             prompt's, without drafts, and end with the last of them */
    const struct drafter_type *type; /* NULL: no drafts */
    struct drafter *drafter;
    int max_draft;        /* K: levels of drafts, */
    int max_drafts;       /* rows of drafts in a round: K, or the nodes of a tree */
    struct draft_tree *tree; /* of this round; NULL: drafts are chains */
    int32_t *tree_slots;  /* [max_drafts, context + VB_MAX_DRAFT]: of the tokens that each node sees */
    struct draft_length length; /* or with automatic lengths the longest, and what of it is asked for */
    struct sampler *sampler;
    struct acceptance *acceptance;
    struct tracer *tracer; /* NULL: nobody listens */
    struct row *rows;     /* [work->max_rows]: a pass, of this session or of several; NULL in a batch, which has them */
};

/* What the sessions of a batch have together. It outlives them. */
struct shared {
    struct workspace *work;
    struct kvpool *pool;
};
/* vb_session_open; shared may be NULL. Options of passes (isa, threads, prefill, taps) are those that shared->work was opened with. */
int session_open(vb_session **out, const vb_model *model, const vb_session_options *options, const struct shared *shared, vb_error *err);

/* Checks context, prefill_chunk and threads; *context is the tokens that the caches hold. */
int session_limits(const struct model *m, const vb_session_options *o, size_t *context, vb_error *err);
/* The kernels of an instruction set; NULL is the best one. Reports an unknown name, and a CPU that lacks it. */
int session_kernels(const struct kernels **k, const char *isa, vb_error *err);
/* Checks and opens a workspace as the options say, for passes of max_rows; the kernels and threads are in w->cx. */
int session_open_workspace(struct workspace *w, const vb_model *model, const vb_session_options *o, size_t max_rows, size_t max_logit_rows,
                           size_t context, vb_error *err);

/* Whether passes in w have room for the session's drafts; from now on they keep what its drafter takes. */
int session_fits(const struct vb_session *s, struct workspace *w, vb_error *err);

/* Lets go of every row of the cache and of the drafter; the timeline, the sampler's counts and the draft's length stay. The rounds
 * after session_return choose what they would have chosen. */
void session_leave(struct vb_session *s);
int session_return(struct vb_session *s, vb_error *err);
/* A session without rows of another one's pool takes over the rows of the first tokens, of which `same` are equal, and what its
 * drafter knows of them. Returns how many rows: 0 where the draft method cannot share. */
size_t session_begin_as(struct vb_session *s, const struct vb_session *other, size_t same);

/* One session's part of a pass. */
struct plan {
    size_t committed;     /* rows of committed tokens, from index `cached` on */
    int32_t draft[VB_MAX_NODES];
    int drafts;           /* rows of drafts after them */
    const struct draft_tree *tree; /* draft[i] is its node i; NULL: each draft follows the one before */
    int32_t path[VB_MAX_DRAFT]; /* the drafts that stood, of those that were chosen */
    int asked;            /* with automatic lengths: as many drafts were asked for as it wanted */
    int padding;          /* rows of nothing after those */
    int by_onednn;        /* the rows are a chunk of prefill onednn, alone in their pass */
    int is_prompt;        /* the first of them was given, not chosen */
    int chooses;          /* the last committed token is among the rows: tokens are chosen */
    size_t first_row;     /* in the pass */
    const float *logits;  /* rows of the last committed token and of the drafts [1 + drafts, V] */
};

/* Whether what is said depends on the drafts: acceptance rejection and relaxed. */
int session_drafts_lead(const struct vb_session *s);

/* How many rows the next round brings at most, when a pass takes `chunk` rows of a prompt. */
size_t session_most_rows(const struct vb_session *s, size_t chunk);

/* Plans the next round, which may choose at most `most` tokens: a part of the prompt, or the last token and a draft.
 * *failed counts drafts ended by a row that was not finite. */
void session_plan(struct vb_session *s, struct plan *p, size_t chunk, size_t most, size_t *failed);
/* Writes the plan's rows to rows[p->first_row..] and appends to the cache; returns their number. */
size_t session_rows(struct vb_session *s, const struct plan *p, struct row *rows);

/* After a pass that was given up: its rows leave the cache. VB_STOPPED. */
int session_give_up(struct vb_session *s, vb_error *err);

/* Ends a round after its pass in w: cuts the caches to what was accepted, takes over the `chosen` tokens (0 of them for a part of a
 * prompt), and hands the drafter their rows. `seconds`: what the round took so far, as far as it was this session's. Returns how many
 * more the drafter took. */
double session_finish(struct vb_session *s, struct workspace *w, const struct plan *p, const int32_t *chosen, size_t n, double seconds);

/* Seconds since some moment. */
double session_clock(void);

/* At most `most` levels of drafts, as a chain or in s->tree; how many drafts. */
int session_propose(struct vb_session *s, int32_t *draft, int most, size_t *failed);

/* The rows of a pass in w, from row `first` on, which s's drafter takes; *width: numbers in one. */
float *session_features(const struct vb_session *s, const struct workspace *w, size_t first, size_t *width);

#endif
