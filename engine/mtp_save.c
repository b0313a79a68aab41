/* engine/mtp_save.c -- what a drafter with MTP modules holds, in a session file, and back.
 *
 *     u64 depths, hidden (0 or 1), missing (0 or 1), first_pending, pending_count
 *     per depth   u64 length of its cache, FIRST_ROW's row included; f32 hidden_of_next [d]; f32 rows [length, c + r]
 *     f32 pending [pending_count, d]
 *
 * With the target's hidden rows, the drafts that follow are those that would have followed. Without them (hidden 0,
 * pending_count 0) all rows that they make final are computed before; what is left to be without is the newest one, from which the
 * first draft is made: that takes zeros and the dummy slot, as MindIE does where another machine read the prompt. */
#include <string.h>

#include "mtp.h"
#include "session_file.h"

static size_t at_most(size_t a, size_t b) { return a < b ? a : b; }

/* Back to a state between rounds: without proposals that nobody has verified, or rows that were cut from the timeline. */
static void settle(struct drafter *d, struct workspace *w, size_t pos)
{
    if (d->count) /* eagle-keep's, which the next proposal would drop */
        mtp_cut(&d->state, 0, d->N);
    d->count = 0;
    if (pos < d->state.count)
        mtp_observe(&d->state, w, pos, d->state.tokens, NULL, 0);
}

void mtp_drafter_save(struct drafter *drafter, struct workspace *w, size_t pos, int hidden, struct session_writer *out)
{
    struct mtp_state *s = &drafter->state;
    size_t d = mtp_width(s), N = pos - 1, failed, needed;
    settle(drafter, w, pos);
    needed = at_most(mtp_row_count(s, 0), N - 1); /* the row that proposes is computed once more */
    hidden = hidden && !s->never && s->first_pending <= needed; /* after a load without them, and after a cut, they are not there */
    if (!hidden) {
        int missing = s->missing;
        s->missing = 0;
        mtp_round(s, w, NULL, 0, &failed);
        s->missing = missing;
        needed = N - 1;
    }
    const uint64_t head[] = {(uint64_t)s->num_depths, (uint64_t)hidden, hidden && s->missing, needed, hidden ? N - needed : 0};
    session_write(out, head, sizeof head);
    for (int k = 0; k < s->num_depths; k++) {
        const struct mtp_depth *depth = &s->depths[k];
        session_write_u64(out, depth->cache.length);
        session_write(out, depth->hidden_of_next, d * sizeof *depth->hidden_of_next);
        session_write_rows(out, &depth->cache, 0, depth->cache.length);
    }
    if (hidden)
        session_write(out, s->pending + (needed - s->first_pending) * d, (N - needed) * d * sizeof *s->pending);
}

/* ---- and back ---- */

/* Rows of a depth: all final, none missing before the depth behind it can go on, none that needs a hidden row which is not there. */
static int fits(const struct mtp_state *s, int k, size_t N, size_t first_pending)
{
    size_t n = mtp_row_count(s, k), before = k ? mtp_row_count(s, k - 1) : N;
    if (k == 0)
        return n <= N && first_pending == at_most(n, N - 1);
    return n <= before && n + 1 >= before && n <= (N > (size_t)k ? N - (size_t)k : 0);
}

static int read_depth(struct mtp_state *s, struct workspace *w, int k, size_t most, struct session_reader *in)
{
    struct mtp_depth *depth = &s->depths[k];
    uint64_t length = session_read_u64(in);
    if (length > most || session_read(in, depth->hidden_of_next, mtp_width(s) * sizeof(float)))
        return DRAFTER_WRONG;
    for (uint64_t i = 0; i < length; i++)
        kvcache_append(&depth->cache);
    return session_read_rows(in, &depth->cache, 0, (size_t)length, w->cx.k) ? DRAFTER_WRONG : DRAFTER_LOADED;
}

/* Of a depth that this drafter does not have. */
static int skip_depth(const struct mtp_state *s, size_t most, struct session_reader *in)
{
    uint64_t length = session_read_u64(in);
    for (int32_t i = 0; i < s->model->config.hidden_size; i++)
        session_read(in, in->row, sizeof *in->row);
    for (uint64_t i = 0; i < length && length <= most; i++)
        session_read(in, in->row, in->head.width * sizeof *in->row);
    return length > most ? DRAFTER_WRONG : DRAFTER_LOADED;
}

int mtp_drafter_load(struct drafter *drafter, struct workspace *w, size_t pos, const int32_t *tokens, struct session_reader *in)
{
    struct mtp_state *s = &drafter->state;
    size_t d = mtp_width(s), N = pos - 1, most = N + 1; /* FIRST_ROW's */
    uint64_t head[5];
    int code = session_read(in, head, sizeof head) ? DRAFTER_WRONG : DRAFTER_LOADED;
    if (code || head[0] < 1 || head[0] > VB_MAX_DRAFT || head[1] > 1 || head[2] > head[1] || head[3] >= N ||
        head[4] != (head[1] ? N - head[3] : 0) || head[4] > s->room)
        return DRAFTER_WRONG;
    if (head[0] < (uint64_t)s->num_depths)
        return DRAFTER_OTHER;
    for (int k = 0; k < (int)head[0] && !code; k++)
        code = k < s->num_depths ? read_depth(s, w, k, most, in) : skip_depth(s, most, in);
    for (int k = 0; k < s->num_depths && !code; k++)
        code = fits(s, k, N, (size_t)head[3]) ? DRAFTER_LOADED : DRAFTER_WRONG;
    if (code || session_read(in, s->pending, (size_t)head[4] * d * sizeof *s->pending) || in->left)
        return DRAFTER_WRONG;
    memcpy(s->tokens, tokens, pos * sizeof *tokens);
    s->count = pos;
    s->first_pending = (size_t)head[3];
    s->pending_count = N - (size_t)head[3];
    s->missing = head[1] ? (int)head[2] : 1;
    s->never = !head[1];
    if (s->never && s->pending_count != 1) /* all others were made final */
        return DRAFTER_WRONG;
    return DRAFTER_LOADED;
}
