/* engine/session/session.h -- the inside of a session: its tokens, its KV cache, its drafter, and the steps of a round.
 *
 * Between rounds, tokens[0..count) are committed. The target's cache has `cached` rows. `cached` is less than `count`,
 * except in a session without tokens, where both are 0. The drafter has observed the tokens up to index `cached`
 * (inclusive), and the target's hidden states before index `cached`. A round computes rows for tokens
 * from index `cached` on. If several tokens have no row yet, these tokens are a prompt. If only the last token has no
 * row yet, the session is decoding, and drafts may follow this token. */
#ifndef VB_SESSION_H
#define VB_SESSION_H

#include "engine/choose/acceptance.h"
#include "engine/draft/length.h"
#include "engine/draft/drafter.h"
#include "engine/pass/slot_lists.h"

struct vb_session {
    const struct vb_model *model;
    vb_session_options options;
    struct pass *pass, own; /* pass points to `own`, or to that of a batch */
    struct kvcache cache;
    int32_t *tokens;      /* [context] */
    size_t context, chunk, count, cached;
    size_t observed;      /* number of tokens that the drafter has observed */
    size_t held;          /* after a cut: the drafter still has the state of this many tokens as they were before; 0:
                             it has observed tokens since the cut */
    size_t prompt;        /* length of the original prompt (engine/session/prefill.h) */
    size_t given;         /* tokens[0..given) are treated as a prompt: each of them was appended, or its row was removed
                             and must be computed again. A pass that computes rows of these tokens has no drafts, and
                             computes no token from index `given` on */
    const struct drafter_type *type; /* NULL if there are no drafts */
    struct drafter *drafter;
    int max_draft;        /* K, the length of the longest draft (for trees, the number of levels) */
    int max_drafts;       /* the most rows of drafts in a round: K, or the number of nodes of a tree */
    struct draft_tree *tree; /* the tree of this round; NULL if drafts are chains */
    struct slot_lists node_slots; /* for each node of a tree, the slots of the tokens to which it attends */
    struct draft_length own_length; /* measurements from which automatic draft lengths are chosen */
    struct draft_length *length;    /* NULL if lengths are not automatic; else &own_length, or the measurements of a
                                       batch, which its sequences share */
    struct sampler *sampler;
    struct acceptance *acceptance;
    struct tracer *tracer; /* NULL if no trace callback was set */
    int has_routes;       /* options.routes is the session's own copy */
    int32_t *taken;       /* [as many rows as the cache, layers, experts per token], by place in the cache: the experts
                             that the rows took; NULL unless options.record_routes */
    int32_t *taken_kept;  /* [as many rows, layers, index_topk]: the tokens to which the rows attended; NULL unless
                             options.record_kept */
    size_t routed;        /* number of tokens whose rows are in `taken` and `taken_kept` */
    struct row *rows;     /* [pass->w.max_rows]: the rows of a pass; NULL in a batch, which has rows of its own */
};

/* Memory that the sessions of a batch share, and that must outlive them. */
struct shared {
    struct pass *pass;
    struct kvpool *pool;
};
/* Opens a session (vb_session_open). `shared` is NULL for a session that is in no batch. If `shared` is not NULL, the
 * session computes passes with shared->pass. The batch has opened it with its own options isa, threads, prefill
 * and tap. Of the argument `options`, isa, threads and tap then have no effect, and prefill is the batch's. */
int session_open(vb_session **out, const vb_model *model, const vb_session_options *options,
                 const struct shared *shared, vb_error *err);

/* Copies a program's options, and checks that this library knows them all. */
int session_options(vb_session_options *to, const vb_session_options *options, vb_error *err);
/* Checks the options context, prefill_chunk and threads. Sets *context to the number of tokens that the session can
 * hold. */
int session_limits(const struct vb_model *m, const vb_session_options *o, size_t *context, vb_error *err);
/* Finds the kernels of an instruction set; NULL means the best one. Returns an error if the name is unknown or the CPU
 * does not support this instruction set. */
int session_kernels(const struct kernels **k, const char *isa, vb_error *err);
/* Opens a struct pass with the kernels and threads that the options ask for, for passes of up to max_rows rows. */
int session_open_pass(struct pass *pass, const vb_model *model, const vb_session_options *o, size_t max_rows,
                      size_t max_logit_rows, size_t context, vb_error *err);

/* Returns VB_BAD_ARGUMENT if passes in pass have no room for the session's drafts, or if rows are due for which
 * attention has the expanded form and pass does not support it. Otherwise makes sure that pass has memory for the
 * vectors that the session's drafter reads (session_features); later passes in pass write these vectors. Returns
 * VB_NO_MEMORY if there is no memory for these vectors. */
int session_fits(const struct vb_session *s, struct pass *pass, vb_error *err);

/* session_leave frees all rows of the cache, and closes the drafter. The tokens, the sampler's counts and the measured
 * draft lengths remain. session_return opens the drafter again. Later rounds then compute the rows again. session_leave
 * and session_return do not change which tokens later rounds choose. */
void session_leave(struct vb_session *s);
int session_return(struct vb_session *s, vb_error *err);
/* Session s has no rows yet, and its cache and the cache of session `other` use the same pool. The first `same` tokens
 * of both sessions are equal. The function lets s share the rows that `other` has for these tokens. The drafter of s
 * copies the state of the drafter of `other` for the shared rows, or observes the tokens of the shared rows. Returns
 * the number of shared rows, which is 0 if the draft method cannot share. */
size_t session_begin_as(struct vb_session *s, const struct vb_session *other, size_t same);

/* The rows that one session has in the next pass. */
struct plan {
    size_t committed;     /* number of rows of committed tokens, from index `cached` on */
    int32_t draft[VB_MAX_NODES];
    int wanted;           /* largest length of the draft: tokens of a chain, or levels of a tree */
    int drafts;           /* number of rows of drafts, which follow the rows of committed tokens */
    const struct draft_tree *tree; /* draft[i] is node i of this tree; NULL: the drafts form a chain */
    int32_t path[VB_MAX_DRAFT]; /* indices of the accepted drafts in `draft` */
    int asked;            /* nonzero: the session's tokens had room for as many drafts as the automatic length wanted */
    int padding;          /* number of rows of padding, which follow the drafts */
    int by_library;       /* nonzero: the rows are a chunk of a prompt by prefill onednn or cublas; the pass has no rows
                             of other sessions */
    int is_prompt;        /* nonzero: the first row belongs to a token before index vb_session.given */
    int chooses;          /* nonzero: the last committed token is among the rows, so tokens will be chosen */
    size_t first_row;     /* index in the pass, from 0, of the plan's first row */
    const float *logits;  /* [1 + drafts, V]: logits of the last committed token and of the drafts */
};

/* Returns whether drafts can change the output. Drafts can change the output in acceptance mode relaxed, and in mode
 * rejection if the temperature is not 0. */
int session_drafts_lead(const struct vb_session *s);

/* Returns the most rows that the session's next round can have, if a pass may have `chunk` rows of a prompt. */
size_t session_most_rows(const struct vb_session *s, size_t chunk);

/* Returns the most drafts that the session may have in the next round. With automatic lengths, call it after
 * draft_length_next. */
int session_next_drafts(const struct vb_session *s);
/* Returns the most rows that a decoding session may have in the next round, rows of padding included. */
size_t session_next_rows(const struct vb_session *s);

/* Plans the next round, which may choose at most `most` tokens. The plan contains either rows of the prompt or the row
 * of the last token. After the last token, session_take_drafts may add at most p->wanted drafts. session_plan adds no
 * drafts. */
void session_plan(struct vb_session *s, struct plan *p, size_t chunk, size_t most);
/* Adds the first `drafts` tokens of p->draft to the plan as drafts. If the session drafts trees, s->tree describes the
 * tree that these drafts form. */
void session_take_drafts(struct vb_session *s, struct plan *p, int drafts);
/* Writes the plan's rows to `rows`, from index p->first_row on, and appends their slots to the cache. Returns the
 * number of rows. */
size_t session_rows(struct vb_session *s, const struct plan *p, struct row *rows);

/* Call this after a pass that the option `stop` ended early. The function removes the rows of this pass from the cache,
 * and returns VB_STOPPED. */
int session_give_up(struct vb_session *s, vb_error *err);
/* Returns whether vb_session_options.stop has ended a pass of the draft model since the last call of
 * session_draft_stopped. The draft model computes the rows of such a pass later. */
int session_draft_stopped(struct vb_session *s);

/* Ends a round after its pass in w. The function commits the n tokens in `chosen` (n is 0 if the pass computed only a
 * part of a prompt). It removes the rows of rejected drafts and of padding from the caches. Then the drafter observes
 * (receives) the committed tokens and their hidden states. Returns the seconds that the drafter needed for this. */
double session_finish(struct vb_session *s, struct pass *pass, const struct plan *p, const int32_t *chosen, size_t n);

/* Lets the drafter propose at most `most` levels of drafts, as a chain or as s->tree. Returns the number of drafts.
 * Adds 1 to *failed if the draft ended early because logits were not finite or a callback gave an invalid answer.
 * `pass` is of the session's model, and the drafter uses its arrays as scratch memory. */
int session_propose(struct vb_session *s, struct pass *pass, int32_t *draft, int most, size_t *failed);

/* Returns the vectors that the newest pass in pass has computed for the session's drafter: one vector for each row of
 * the pass, from row `first` on (drafter_type.takes says which vectors). Sets *width to the length of a vector. */
float *session_features(const struct vb_session *s, const struct pass *pass, size_t first, size_t *width);

#endif
