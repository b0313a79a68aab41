/* tests/support/toy_session.h -- a session without a model. The test sets the logits; the engine verifies drafts and
 * chooses tokens as usual (engine/session/decode.c, engine/choose/acceptance.c, engine/choose/sampler.c). */
#ifndef VB_TEST_TOY_SESSION_H
#define VB_TEST_TOY_SESSION_H

#include "engine/session/decode.h"
#include "tests/support/engine_support.h"

#define TOY_ROOM 64 /* tokens in the timeline */
#define TOY_V 64    /* the largest vocabulary */

struct toy {
    struct vb_model model;
    struct vb_session session;
    struct pass pass;
    struct run run;
    vb_generate_options options;
    vb_result result;
    vb_callback callback;
    int32_t tokens[TOY_ROOM];
    float logits[(VB_MAX_DRAFT + 1) * TOY_V]; /* the test writes them before each round */
};

/* V: the size of the vocabulary, at most TOY_V; K: the longest draft. */
void toy_open(struct toy *t, const vb_sampling *o, int V, int K);
void toy_close(struct toy *t);

/* Starts a new timeline with this prompt, and a run of at most `most` tokens. */
void toy_start(struct toy *t, const int32_t *prompt, size_t count, size_t most);

/* Runs one round: chooses tokens and appends them to the timeline. The first row of t->logits is for the token after
 * the timeline, and each further row is for the token after one of the drafts. Returns how many tokens were chosen. */
size_t toy_round(struct toy *t, const int32_t *drafts, int count);

#endif
