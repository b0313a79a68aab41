/* engine/session/kept.c -- keeps the sessions of finished sequences, in the order of their last use. */
#include "engine/session/kept.h"

#include <string.h>

#include "engine/session/prefill.h"
#include "engine/session/routes.h"

static struct vb_session *take_out(struct kept *k, size_t i)
{
    struct vb_session *s = k->sessions[i];
    memmove(k->sessions + i, k->sessions + i + 1, (k->count - i - 1) * sizeof *k->sessions);
    k->count--;
    return s;
}

/* Returns whether `longer` has the same draft method as s and all computed rows of s, computed in the same way. */
static int begins(const struct vb_session *s, const struct vb_session *longer)
{
    return s->type == longer->type && s->cached <= longer->cached &&
           prefill_alike(longer, s->prompt, s->cached) == s->cached &&
           routes_alike(s->model, &s->options.routes, &longer->options.routes, s->cached) == s->cached &&
           !memcmp(s->tokens, longer->tokens, s->cached * sizeof *s->tokens);
}

void kept_add(struct kept *k, struct vb_session *s)
{
    for (size_t i = k->count; i-- > 0;)
        if (begins(k->sessions[i], s))
            vb_session_close(take_out(k, i));
    if (k->count == k->most)
        vb_session_close(take_out(k, 0));
    k->sessions[k->count++] = s;
}

void kept_use(struct kept *k, const struct vb_session *s)
{
    for (size_t i = 0; i < k->count; i++)
        if (k->sessions[i] == s) {
            struct vb_session *used = take_out(k, i);
            k->sessions[k->count++] = used;
            return;
        }
}

int kept_drop(struct kept *k, const struct vb_session *but)
{
    for (size_t i = 0; i < k->count; i++)
        if (k->sessions[i] != but) {
            vb_session_close(take_out(k, i));
            return 1;
        }
    return 0;
}
