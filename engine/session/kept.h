/* engine/session/kept.h -- finished sequences of a batch whose rows stay in its cache for requests that begin alike. */
#ifndef VB_SESSION_KEPT_H
#define VB_SESSION_KEPT_H

#include "engine/session/session.h"

#define MOST_KEPT 64

/* The session that was used longest ago comes first. */
struct kept {
    struct vb_session *sessions[MOST_KEPT];
    size_t count, most;
};

/* Takes a session over. Sessions whose tokens begin this one's are closed, as is the oldest one where there are too many. most > 0. */
void kept_add(struct kept *k, struct vb_session *s);
/* The session was used just now. One that is not kept changes nothing. */
void kept_use(struct kept *k, const struct vb_session *s);
/* Closes the oldest session but `but` (may be NULL). Returns whether there was one. */
int kept_drop(struct kept *k, const struct vb_session *but);

#endif
