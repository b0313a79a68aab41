/* engine/draft/mtp_save.c -- what a drafter with MTP modules holds, in a session file, and back.
 *
 *     u64 depths, d, numbers in a row (with its padding and the row of the index cache), fingerprint of the head (0:
 *     the model's modules draft);
 *         hidden (0 or 1), lost (0 or 1), first_pending, pending_count
 *     per depth   u64 length of its cache, FIRST_ROW's row included; f32 hidden_of_next [d]; f32 rows [length,
 *                 numbers]; then rows of the index cache, if the module has an indexer
 *     f32 pending [pending_count, d]
 *
 * Nothing is written if the caches do not begin with row 0 (mtp_defer).
 *
 * With the target's hidden states, the drafts that follow are those that would have followed. Without them (hidden 0,
 * pending_count 0) all rows that they make final are computed before; what is left to be without is the newest one,
 * from which the first draft is made: that takes zeros and the dummy slot, as MindIE does where another machine read
 * the prompt. */
#include <string.h>

#include "engine/pass/lead.h"
#include "engine/draft/mtp.h"
#include "numbers/numbers.h"
#include "engine/pass/session_file.h"

enum { DEPTHS, WIDTH, ROW, HEAD, HIDDEN, LOST, FIRST_PENDING, PENDING, NUMBERS };

/* Returns the numbers of a row and of its index row together. */
static size_t row_numbers(const struct mtp_state *s)
{
    const struct kvpool *p = s->depths[0].cache.pool;
    return p->row + p->layout.index_layers * p->layout.index_row / sizeof(float);
}

/* What the state of a drafter can be used by: one with as many depths or fewer, and the same in the rest. */
static void describe(const struct mtp_state *s, uint64_t head[NUMBERS])
{
    head[DEPTHS] = (uint64_t)s->num_depths;
    head[WIDTH] = s->net->width;
    head[ROW] = row_numbers(s);
    head[HEAD] = s->net->type->fingerprint ? s->net->type->fingerprint(s->net) : 0;
}

/* Back to a state between rounds: without proposals that nobody has verified, or rows that were cut from the
 * timeline. */
static void settle(struct mtp_drafter *d, struct pass *pass, size_t pos)
{
    if (d->count) /* eagle-keep's, which the next proposal would drop */
        mtp_cut(&d->state, 0, d->N);
    d->count = 0;
    if (pos < d->state.count)
        mtp_observe(&d->state, pass, pos, d->state.tokens, NULL, 0);
}

void mtp_drafter_save(struct drafter *drafter, struct pass *pass, size_t pos, int hidden, struct session_writer *out)
{
    struct mtp_state *s = &mtp_of(drafter)->state;
    size_t d = s->net->width, N = pos - 1, failed, needed;
    settle(mtp_of(drafter), pass, pos);
    if (s->base) /* without the rows before it the rest is of little use */
        return;
    if (N > mtp_row_count(s, 0) + VB_MAX_DRAFT + 1)
        mtp_round(s, pass, NULL, 0, &failed); /* so that what is pending fits into every drafter */
    needed = min_size(mtp_row_count(s, 0), N - 1); /* the row that proposes is computed once more */
    /* after a load without hidden states, and after a cut, they are not there */
    hidden = hidden && !s->lost.for_good && s->first_pending <= needed;
    if (!hidden) {
        int now = s->lost.now;
        s->lost.now = 0;
        mtp_round(s, pass, NULL, 0, &failed);
        s->lost.now = now;
        needed = N - 1;
    }
    uint64_t head[NUMBERS] = {[HIDDEN] = (uint64_t)hidden, [LOST] = hidden && s->lost.now, [FIRST_PENDING] = needed,
                              [PENDING] = hidden ? N - needed : 0};
    describe(s, head);
    session_write(out, head, sizeof head);
    for (int k = 0; k < s->num_depths; k++) {
        const struct mtp_depth *depth = &s->depths[k];
        session_write_u64(out, depth->cache.length);
        session_write(out, depth->hidden_of_next, d * sizeof *depth->hidden_of_next);
        session_write_rows(out, &depth->cache, 0, depth->cache.length, depth->cache.pool->row);
        if (depth->cache.pool->layout.index_layers)
            session_write_index_rows(out, &depth->cache, 0, depth->cache.length);
    }
    if (hidden)
        session_write(out, s->pending + (needed - s->first_pending) * d, (N - needed) * d * sizeof *s->pending);
}

/* ---- and back ---- */

/* Rows of a depth: all final, none missing before the depth behind it can go on, none that needs a hidden state which
 * is not there. */
static int fits(const struct mtp_state *s, int k, size_t N, size_t first_pending)
{
    size_t n = mtp_row_count(s, k), before = k ? mtp_row_count(s, k - 1) : N, ahead = mtp_hidden_ahead(s, k);
    if (k == 0)
        return n <= N && first_pending == min_size(n, N - 1);
    if (!ahead) /* its rows do not depend on those of the depth before */
        return n <= N && n >= first_pending;
    return n <= before && n + 1 >= before && n <= (N > ahead ? N - ahead : 0);
}

static int read_depth(struct mtp_state *s, int k, size_t most, struct session_reader *in)
{
    struct mtp_depth *depth = &s->depths[k];
    uint64_t length = session_read_u64(in);
    if (length > most || session_read(in, depth->hidden_of_next, s->net->width * sizeof(float)))
        return DRAFTER_WRONG;
    for (uint64_t i = 0; i < length; i++)
        kvcache_append(&depth->cache);
    if (session_read_rows(in, &depth->cache, 0, (size_t)length, depth->cache.pool->row) ||
        (depth->cache.pool->layout.index_layers && session_read_index_rows(in, &depth->cache, 0, (size_t)length)))
        return DRAFTER_WRONG;
    kvcache_changed(&depth->cache, 0, (size_t)length);
    return DRAFTER_LOADED;
}

/* Of a depth that this drafter does not have. */
static int skip_depth(const struct mtp_state *s, size_t most, struct session_reader *in)
{
    uint64_t length = session_read_u64(in);
    size_t numbers = length > most ? 0 : s->net->width + (size_t)length * row_numbers(s);
    int failed = length > most;
    for (float number; numbers && !failed; numbers--)
        failed = session_read(in, &number, sizeof number);
    return failed ? DRAFTER_WRONG : DRAFTER_LOADED;
}

static int read_depths(struct mtp_state *s, const uint64_t head[NUMBERS], size_t N, struct session_reader *in)
{
    int code = DRAFTER_LOADED;
    for (int k = 0; k < (int)head[DEPTHS] && !code; k++) /* at most N rows, and FIRST_ROW's */
        code = k < s->num_depths ? read_depth(s, k, N + 1, in) : skip_depth(s, N + 1, in);
    for (int k = 0; k < s->num_depths && !code; k++)
        code = fits(s, k, N, (size_t)head[FIRST_PENDING]) ? DRAFTER_LOADED : DRAFTER_WRONG;
    return code;
}

int mtp_drafter_load(struct drafter *drafter, struct pass *pass, size_t pos, const int32_t *tokens,
                     struct session_reader *in)
{
    struct mtp_state *s = &mtp_of(drafter)->state;
    size_t N = pos - 1;
    uint64_t head[NUMBERS], ours[NUMBERS];
    (void)pass;
    describe(s, ours);
    if (session_read(in, head, sizeof head) || head[DEPTHS] < 1 || head[DEPTHS] > VB_MAX_DRAFT)
        return DRAFTER_WRONG;
    if (head[DEPTHS] < ours[DEPTHS] || head[WIDTH] != ours[WIDTH] || head[ROW] != ours[ROW] || head[HEAD] != ours[HEAD])
        return DRAFTER_OTHER;
    if (head[HIDDEN] > 1 || head[LOST] > head[HIDDEN] || head[FIRST_PENDING] >= N ||
        head[PENDING] != (head[HIDDEN] ? N - head[FIRST_PENDING] : 0) || head[PENDING] > s->room)
        return DRAFTER_WRONG;
    if (read_depths(s, head, N, in) ||
        session_read(in, s->pending, (size_t)head[PENDING] * s->net->width * sizeof *s->pending) || in->left)
        return DRAFTER_WRONG;
    memcpy(s->tokens, tokens, pos * sizeof *tokens);
    s->count = pos;
    s->first_pending = (size_t)head[FIRST_PENDING];
    s->pending_count = N - s->first_pending; /* without hidden states the one that is missing: zeros */
    if (!head[HIDDEN])
        memset(s->pending, 0, s->net->width * sizeof *s->pending);
    s->lost.now = head[HIDDEN] ? (int)head[LOST] : 1;
    s->lost.for_good = !head[HIDDEN];
    return s->lost.for_good && s->pending_count != 1 ? DRAFTER_WRONG : DRAFTER_LOADED; /* all others were made final */
}
