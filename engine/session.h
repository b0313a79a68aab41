/* engine/session.h -- a session from the inside: the timeline, how far each cache has come, and one round of it.
 *
 * Between rounds: tokens[0..count) are committed, the target's cache holds `cached` < count rows (0 at the start), and
 * the drafter has observed tokens[0..cached] and the hidden rows before index `cached`. A round takes the tokens from
 * `cached` on: many of them are a prompt, a single one is decoding, and may bring drafts along. */
#ifndef VB_SESSION_H
#define VB_SESSION_H

#include "acceptance.h"
#include "draft_length.h"
#include "drafter.h"

struct vb_session {
    const struct model *model;
    vb_session_options options;
    struct workspace work;
    struct kvcache cache;
    int32_t *tokens;      /* [context] */
    size_t context, chunk, count, cached;
    size_t observed;      /* tokens the drafter knows */
    size_t prompt;        /* with prefill onednn, rows before this one are its; those not computed yet begin a chunk */
    size_t given;         /* tokens appended by the caller or left by a cut: passes over them are a prompt's, without drafts */
    const struct drafter_type *type; /* NULL: no drafts */
    struct drafter *drafter;
    int max_draft;        /* K, */
    struct draft_length length; /* or with draft_auto the longest, and what of it is asked for */
    struct sampler *sampler;
    struct acceptance *acceptance;
    struct tracer *tracer; /* NULL: nobody listens */
    struct row *rows;     /* [work.max_rows]: a pass, of this session or of several */
};

/* One session's part of a pass. */
struct plan {
    size_t committed;     /* rows of committed tokens, from index `cached` on */
    int32_t draft[VB_MAX_DRAFT];
    int drafts;           /* rows of drafts after them */
    int asked;            /* with draft_auto: as many drafts were asked for as it wanted */
    int padding;          /* rows of nothing after those */
    int by_onednn;        /* the rows are a chunk of prefill onednn, alone in their pass */
    int is_prompt;        /* the first of them was given, not chosen */
    int chooses;          /* the last committed token is among the rows: tokens are chosen */
    size_t first_row;     /* in the pass */
    const float *logits;  /* rows of the last committed token and of the drafts [1 + drafts, V] */
};

/* How many rows the next round brings at most, when a pass takes `chunk` rows of a prompt. */
size_t session_most_rows(const struct vb_session *s, size_t chunk);

/* Plans the next round, which may choose at most `most` tokens: a part of the prompt, or the last token and a draft.
 * *failed counts drafts ended by a row that was not finite. */
void session_plan(struct vb_session *s, struct plan *p, size_t chunk, size_t most, size_t *failed);
/* Writes the plan's rows to rows[p->first_row..] and appends to the cache; returns their number. */
size_t session_rows(struct vb_session *s, const struct plan *p, struct row *rows);

/* After the pass: cuts the caches to what stands, takes over the `chosen` tokens (0 for a part of a prompt) and lets
 * the drafter observe. hidden: the rows of this plan. */
void session_commit(struct vb_session *s, const struct plan *p, const int32_t *chosen, size_t n, const float *hidden);

/* How long the round took, as far as it was this session's. */
void session_took(struct vb_session *s, const struct plan *p, const int32_t *chosen, size_t n, double seconds);

#endif
