/* engine/session/kept.h -- finished sequences of a batch. Their rows stay in the cache of the batch for requests that
 * begin with the same tokens. */
#ifndef VB_SESSION_KEPT_H
#define VB_SESSION_KEPT_H

#include "engine/session/session.h"

#define MOST_KEPT 64

/* The sessions are ordered by their last use; the least recently used one comes first. */
struct kept {
    struct vb_session *sessions[MOST_KEPT];
    size_t count, most;
};

/* Adds session s, which k then owns. Closes each kept session whose computed tokens are a prefix of the tokens of s. If
 * there are still k->most sessions, also closes the least recently used one. k->most must not be 0. */
void kept_add(struct kept *k, struct vb_session *s);
/* Makes s the most recently used session. If s is not a kept session, nothing changes. */
void kept_use(struct kept *k, const struct vb_session *s);
/* Closes the least recently used session, but never the session `but`, which may be NULL. Returns whether it has closed
 * a session. */
int kept_drop(struct kept *k, const struct vb_session *but);

#endif
