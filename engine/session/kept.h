/* engine/session/kept.h -- finished sequences of a batch whose cache rows are kept. A later request that begins with
 * the same tokens can share these rows. */
#ifndef VB_SESSION_KEPT_H
#define VB_SESSION_KEPT_H

#include "engine/session/session.h"

#define MOST_KEPT 64

/* The sessions are ordered by their last use; the least recently used one comes first. */
struct kept {
    struct vb_session *sessions[MOST_KEPT];
    size_t count, most;
};

/* Adds session s, which k then owns. Closes each kept session with the same draft method as s whose computed tokens are
 * a prefix of the computed tokens of s. If k then still has k->most sessions, closes the least recently used session
 * before s is added. k->most must not be 0. */
void kept_add(struct kept *k, struct vb_session *s);
/* Makes s the most recently used session. If s is not a kept session, nothing changes. */
void kept_use(struct kept *k, const struct vb_session *s);
/* Closes the least recently used session, but never the session `but`, which may be NULL. Returns 1 if a session was
 * closed, else 0. */
int kept_drop(struct kept *k, const struct vb_session *but);

#endif
