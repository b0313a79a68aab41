/* engine/draft/mtp_round.c -- one round of drafts by MTP modules or a head: which rows are computed, what they take,
 * what they propose.
 *
 * Drafters of many sequences take their turns together: the rows that they need of one depth go through one pass, and
 * the rows that propose through one head. A row's bits depend on its own sequence alone. */
#include "engine/draft/mtp.h"
#include "engine/pass/forward.h"

#include <assert.h>
#include <string.h>

#include "numbers/numbers.h"

/* One drafter's part of a round. */
struct mtp_turn {
    struct mtp_state *s;
    struct proposal *p;
    int ended;      /* no further draft: a row was not finite, or too unlikely */
    size_t n, pad;  /* rows of the newest pass: real ones, then padding */
    size_t chooser; /* the row of s->g that proposes, and of s->next that the next draft takes */
    size_t first_before, rows_before; /* the rows of the depth before: the index of the first, and how many */
};

static int32_t token_at(const struct mtp_state *s, size_t index, const int32_t *draft)
{
    return index < s->count ? s->tokens[index] : draft[index - s->count];
}

static int reads_target(const struct mtp_state *s, int k) { return s->method.depth[k].source == FROM_TARGET; }

/* ---- a hidden state that is not known ---------------------------------------------------------------------------- */

/* Whether zeros replace the target's hidden state of this token. */
static int lost_is(const struct mtp_state *s, size_t token) { return s->lost.now && token + 2 == s->count; }

/* A hidden state that will never be known must leave no cache row behind: MindIE gives its row a dummy slot. Where a
 * round takes zeros for it, depth 0's row, which was computed when it was known, is put aside; the row of zeros gets a
 * slot that it leaves again, and the other comes back. */
static void lost_put_aside(struct mtp_state *s, size_t row)
{
    int goes_with_first = !row && s->net->rows_before; /* FIRST_ROW's row, which is computed again */
    if (s->lost.for_good && !s->lost.aside && !goes_with_first)
        s->lost.aside = 1 + kvcache_put_aside(&s->depths[0].cache);
}

static void lost_put_back(struct mtp_state *s)
{
    if (s->lost.aside)
        kvcache_put_back(&s->depths[0].cache, s->lost.aside - 1);
    s->lost.aside = 0;
}

/* ---- rows and their passes --------------------------------------------------------------------------------------- */

/* Says in the row that it takes the hidden state of `token`: the target's, or, if token >= N, that of the row which
 * proposed the next token. */
static void name_hidden(struct row *row, size_t token, size_t N)
{
    row->hidden_of = (int32_t)min_size(token, N - 1);
    row->hidden_depth = token < N ? -1 : (int)(token - N);
}

/* Appends rows first.. (n of them) of depth k's module, and `pad` rows of padding, to its cache and to s->rows. The
 * cache may lack rows just before `first`. */
static void lay_rows(struct mtp_state *s, struct pass *pass, int k, size_t first, size_t n, size_t pad,
                     enum row_source source, const int32_t *draft)
{
    size_t ahead = mtp_ahead(s, k), hidden_ahead = mtp_hidden_ahead(s, k), skipped = first - mtp_row_count(s, k);
    if (n && first == s->base && s->net->type->first_row)
        s->net->type->first_row(s->net, pass, &s->depths[k].cache, k, ahead, token_at(s, first + ahead - 1, draft));
    for (size_t j = 0; j < n + pad; j++) {
        size_t i = first + j, token = i + ahead;
        struct row row = mtp_state_row(s, k, i, j < n ? token_at(s, token, draft) : 0);
        row.skipped = (int32_t)skipped;
        row.draft = j >= n ? -1 : token < s->count ? 0 : (int32_t)(token - s->count) + 1;
        if (source == ALL_FROM_ITSELF || (source == FROM_ITSELF && j < n))
            row.hidden_of = (int32_t)i - 1, row.hidden_depth = (int)(token - s->count) % s->num_depths;
        else if (j >= n || (reads_target(s, k) && lost_is(s, i + hidden_ahead)))
            row.hidden_of = -1;
        else if (reads_target(s, k))
            name_hidden(&row, i + hidden_ahead, s->count - 1);
        s->rows[j] = row;
    }
}

/* The rows of one drafter, in as many passes as they need. */
static void pass_alone(struct mtp_state *s, struct pass *pass, int k, size_t n, size_t pad)
{
    for (size_t done = 0; done < n + pad;) {
        size_t S = min_size(n + pad - done, s->net->type->most_rows(s->net, pass));
        mtp_pass(s, pass, k, done, S);
        s->head_row = S - pad - 1; /* padding goes with few rows: it never meets a second pass */
        done += S;
    }
}

void mtp_rows(struct mtp_state *s, struct pass *pass, int k, size_t n, size_t pad, enum row_source source,
              const int32_t *draft)
{
    size_t first = mtp_row_count(s, k);
    lay_rows(s, pass, k, first, n, pad, source, draft);
    pass_alone(s, pass, k, n, pad);
    if (pad)
        mtp_cut(s, k, first + n);
}

static int same_network(const struct mtp_turn *a, const struct mtp_turn *b)
{
    const struct draft_net *x = a->s->net, *y = b->s->net;
    return x->type == y->type && (!x->type->is_same || x->type->is_same(x, y));
}

/* One pass over the rows of turns[0], and of those after it that fit behind them in its memory. Returns how many turns
 * took part. */
static size_t pass_together(struct mtp_turn **turns, size_t count, struct pass *pass, int k)
{
    struct mtp_state *leader = turns[0]->s;
    size_t d = leader->net->width, first = turns[0]->n + turns[0]->pad, S = first, n = 1;
    size_t most = min_size(leader->room, leader->net->type->most_rows(leader->net, pass));
    for (; n < count && S + turns[n]->n + turns[n]->pad <= most && same_network(turns[0], turns[n]); n++) {
        const struct mtp_state *s = turns[n]->s;
        size_t rows = turns[n]->n + turns[n]->pad;
        memcpy(leader->rows + S, s->rows, rows * sizeof *s->rows);
        memcpy(leader->h + S * d, s->h, rows * d * sizeof *s->h);
        S += rows;
    }
    if (n == 1) {
        pass_alone(leader, pass, k, turns[0]->n, turns[0]->pad);
        return 1;
    }
    leader->net->type->pass(leader->net, pass, k, leader->rows, leader->h, leader->g, leader->next, S);
    S = 0;
    for (size_t i = 0; i < n; i++) {
        struct mtp_state *s = turns[i]->s;
        size_t rows = turns[i]->n + turns[i]->pad;
        if (i > 0) {
            memcpy(s->g, leader->g + S * d, rows * d * sizeof *s->g);
            memcpy(s->next, leader->next + S * d, rows * d * sizeof *s->next);
        }
        s->head_row = turns[i]->n - 1;
        trace_part_of_pass(s->options.tracer, k, S, s->rows, rows);
        S += rows;
    }
    return n;
}

static void pass_all(struct mtp_turn **turns, size_t count, struct pass *pass, int k)
{
    for (size_t i = 0; i < count;)
        i += pass_together(turns + i, count - i, pass, k);
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* Whether nobody wants to see more of the logits than the largest one. A device then sends only its token to the CPU.
 * Trees read the logits again. */
static int wants_best(const struct mtp_state *s)
{
    const struct drafter_options *o = &s->options;
    return !o->choose && o->asked->drafting.p_min <= 0 && o->topk <= 1 && s->net->type->best;
}

static int32_t counted(int32_t best, size_t *failed)
{
    *failed += best < 0;
    return best;
}

int32_t mtp_choose(struct mtp_state *s, struct pass *pass, int k, const float *g, int number, size_t *failed)
{
    int32_t best;
    if (wants_best(s) && s->net->type->best(s->net, pass, k, &best, g, 1)) {
        best = counted(best, failed);
    } else {
        s->net->type->logits(s->net, pass, k, s->logits, g, s->head_row, 1);
        best = drafter_choose(&s->options, s->logits, s->net->vocab_size, number, failed);
    }
    int32_t token = mtp_token(s, best);
    trace_choose(s->options.tracer, k, s->head_row, token, number);
    return token;
}

static void take_draft(struct mtp_turn *t, int32_t chosen)
{
    if (chosen < 0)
        t->ended = 1;
    else
        t->p->draft[t->p->drafts++] = chosen;
}

/* The drafts of turns that share a head: their rows side by side in the memory of the first, where h is free between
 * passes. */
static void choose_together(struct mtp_turn **turns, size_t count, struct pass *pass, int k)
{
    struct mtp_state *leader = turns[0]->s;
    size_t d = leader->net->width, V = leader->net->vocab_size;
    int32_t best[MOST_PROPOSALS];
    int alone = 1;
    for (size_t i = 0; i < count; i++)
        alone &= wants_best(turns[i]->s);
    for (size_t i = 0; i < count; i++)
        memcpy(leader->h + i * d, turns[i]->s->g + turns[i]->chooser * d, d * sizeof *leader->h);
    alone = alone && leader->net->type->best(leader->net, pass, k, best, leader->h, count);
    if (!alone)
        leader->net->type->logits(leader->net, pass, k, pass->w.logits, leader->h, 0, count);
    for (size_t i = 0; i < count; i++) {
        struct mtp_turn *t = turns[i];
        int number = t->p->drafts + 1;
        int32_t token = mtp_token(t->s, alone ? counted(best[i], t->p->failed)
                                              : drafter_choose(&t->s->options, pass->w.logits + i * V, V, number,
                                                               t->p->failed));
        trace_choose(t->s->options.tracer, k, t->s->head_row, token, number);
        take_draft(t, token);
    }
}

/* The next draft of each turn: depth k's head reads the row that proposes. */
static void choose_all(struct mtp_turn **turns, size_t count, struct pass *pass, int k)
{
    for (size_t i = 0, m; i < count; i += m) {
        struct mtp_turn *t = turns[i];
        size_t most = min_size(t->s->room, pass->w.max_logit_rows * pass->model->config.dims.V / t->s->net->vocab_size);
        for (m = 1; i + m < count && m < most && same_network(t, turns[i + m]);)
            m++;
        if (m > 1)
            choose_together(turns + i, m, pass, k);
        else
            take_draft(t, mtp_choose(t->s, pass, k, t->s->g + t->chooser * t->s->net->width, t->p->drafts + 1,
                                     t->p->failed));
    }
}

/* ---- a round ----------------------------------------------------------------------------------------------------- */

size_t mtp_padding(const struct mtp_state *s, size_t n)
{
    size_t full = (size_t)s->options.max_draft + 1;
    return s->options.padded && n && n < full ? full - n : 0;
}

/* The hidden states of tokens `first`.. -> s->h: the target's as far as it has computed them, then what row N-1 of the
 * depths gave in this round. */
static void gather_by_token(struct mtp_state *s, size_t first, size_t n)
{
    size_t d = s->net->width, N = s->count - 1;
    for (size_t token = first; token < first + n; token++) {
        assert(token >= s->first_pending && (s->given || token < s->first_pending + s->pending_count));
        const float *from = token < N ? s->pending + (token - s->first_pending) * d : s->given + (token - N) * d;
        memcpy(s->h + (token - first) * d, from, d * sizeof *s->h);
        if (lost_is(s, token))
            memset(s->h + (token - first) * d, 0, d * sizeof *s->h);
    }
}

/* The hidden states that depth k's rows `first`.. take -> s->h: those of the target, or what the depth before has just
 * handed on (s->next, from its row first_before on), and before that at most one row that it gave in an earlier
 * round. */
static void gather_hidden(struct mtp_state *s, int k, size_t first, size_t n, size_t pad, size_t first_before)
{
    size_t d = s->net->width, kept = 0;
    memset(s->h + n * d, 0, pad * d * sizeof *s->h);
    if (reads_target(s, k)) {
        gather_by_token(s, first + mtp_hidden_ahead(s, k), n);
        return;
    }
    if (n && first < first_before) {
        assert(first + 1 == first_before);
        memcpy(s->h, s->depths[k].hidden_of_next, d * sizeof *s->h);
        kept = 1;
    }
    if (n > kept)
        memcpy(s->h + kept * d, s->next + (first + kept - first_before) * d, (n - kept) * d * sizeof *s->h);
}

/* Whether a turn drafts at depth k, when the round drafts at `levels` depths at most. A depth that reads no token has
 * nothing else to draft from than the hidden state that may be unknown. */
static int drafts_at(const struct mtp_turn *t, int k, int levels)
{
    int has_source = mtp_ahead(t->s, k) || !t->s->lost.now;
    return !t->ended && k < t->p->max && k < levels && has_source;
}

/* The rows that a turn needs of depth k: the final ones that are missing, and up to N-1 where it drafts at this
 * depth. */
static void lay_depth(struct mtp_turn *t, struct pass *pass, int k, int levels)
{
    struct mtp_state *s = t->s;
    size_t d = s->net->width, N = s->count - 1, ahead = mtp_hidden_ahead(s, k),
           final = N > s->base + ahead ? N - ahead : s->base;
    size_t first = mtp_row_count(s, k), end = drafts_at(t, k, levels) ? N : final;
    t->n = end > first ? end - first : 0;
    t->pad = drafts_at(t, k, levels) ? mtp_padding(s, t->n) : 0;
    gather_hidden(s, k, first, t->n, t->pad, t->first_before);
    int zeros_before = s->lost.for_good && k == 1; /* what depth 0 handed on was made of zeros */
    if (k > 0 && final >= t->first_before && final < t->first_before + t->rows_before && !zeros_before)
        memcpy(s->depths[k].hidden_of_next, s->next + (final - t->first_before) * d, d * sizeof *s->next);
    lay_rows(s, pass, k, first, t->n, t->pad, AS_DESCRIBED, t->p->draft);
    t->first_before = first;
    t->rows_before = t->n;
    t->chooser = t->n - 1;
}

/* The rows of depth k that propose are kept until all depths are there. A tap callback hears of their logits with their
 * pass. */
static void keep_proposing(struct mtp_turn **turns, size_t count, struct pass *pass, int k)
{
    for (size_t i = 0; i < count; i++) {
        struct mtp_state *s = turns[i]->s;
        size_t d = s->net->width;
        memcpy(s->proposing + (size_t)k * d, s->g + turns[i]->chooser * d, d * sizeof *s->g);
        if (pass->tapper && count == 1) {
            s->net->type->logits(s->net, pass, k, s->logits, s->proposing + (size_t)k * d, s->head_row, 1);
            forward_tap_logits(pass, s->logits, s->net->vocab_size, s->head_row, 1);
        }
    }
}

/* Depth k of a round. */
static void round_at(struct mtp_turn *turns, size_t count, struct pass *pass, int k, int levels)
{
    struct mtp_turn *at_work[MOST_PROPOSALS], *with_rows[MOST_PROPOSALS], *drafting[MOST_PROPOSALS];
    size_t n = 0, rows = 0, drafts = 0;
    for (size_t i = 0; i < count; i++) {
        struct mtp_turn *t = &turns[i];
        if (t->s->count < 2 || k >= t->s->num_depths)
            continue; /* without a hidden state nothing can be proposed */
        lay_depth(t, pass, k, levels);
        at_work[n++] = t;
        if (t->n)
            with_rows[rows++] = t;
        if (drafts_at(t, k, levels))
            drafting[drafts++] = t;
    }
    pass_all(with_rows, rows, pass, k);
    for (size_t i = 0; i < n; i++) {
        struct mtp_state *s = at_work[i]->s;
        size_t d = s->net->width, N = s->count - 1, ahead = mtp_hidden_ahead(s, k);
        mtp_cut(s, k, N > ahead ? N - ahead : 0);
        if (s->given && drafts_at(at_work[i], k, levels))
            memcpy(s->given + (size_t)k * d, s->next + at_work[i]->chooser * d, d * sizeof *s->next);
    }
    if (drafts && drafting[0]->s->method.order == ALL_AT_ONCE)
        keep_proposing(drafting, drafts, pass, k);
    else
        choose_all(drafting, drafts, pass, k);
}

/* The final rows of every depth, and drafts at up to `levels` depths. */
static void round_together(struct mtp_turn *turns, size_t count, struct pass *pass, int levels)
{
    int depths = 0;
    for (size_t i = 0; i < count; i++) {
        struct mtp_state *s = turns[i].s;
        size_t N = s->count ? s->count - 1 : 0;
        depths = s->num_depths > depths ? s->num_depths : depths;
        if (N && drafts_at(&turns[i], 0, levels) && mtp_row_count(s, 0) == N) {
            lost_put_aside(s, N - 1);
            for (int k = 0; k < s->num_depths && k < levels; k++)
                mtp_cut(s, k, N - 1); /* the row that proposes is computed once more */
        }
    }
    int turns_taken = turns[0].s->method.order == TAKING_TURNS; /* then the next draft takes a row of depth 0 */
    for (int k = 0; k < depths; k++)
        round_at(turns, count, pass, turns_taken ? depths - 1 - k : k, levels);
}

/* More drafts, each from the row of the draft before it. The depths take turns: depth j mod D makes draft j + 1. */
static void chain_together(struct mtp_turn *turns, size_t count, struct pass *pass)
{
    for (;;) {
        struct mtp_turn *drafting[MOST_PROPOSALS];
        size_t n = 0;
        int k = 0;
        for (size_t i = 0; i < count; i++) {
            struct mtp_turn *t = &turns[i];
            struct mtp_state *s = t->s;
            size_t d = s->net->width;
            if (t->ended || !t->p->drafts || t->p->drafts >= t->p->max)
                continue;
            t->n = 1;
            t->pad = mtp_padding(s, 1);
            memcpy(s->h, s->next + t->chooser * d, d * sizeof *s->h);
            memset(s->h + d, 0, t->pad * d * sizeof *s->h);
            k = t->p->drafts % s->num_depths;
            lay_rows(s, pass, k, s->count - 2 + (size_t)t->p->drafts, 1, t->pad, FROM_ITSELF, t->p->draft);
            t->chooser = 0;
            drafting[n++] = t;
        }
        if (!n)
            return;
        pass_all(drafting, n, pass, k);
        for (size_t i = 0; i < n; i++)
            if (drafting[i]->pad)
                mtp_cut(drafting[i]->s, k, mtp_row_count(drafting[i]->s, k) - drafting[i]->pad);
        choose_all(drafting, n, pass, k);
    }
}

int mtp_round(struct mtp_state *s, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct proposal p = {.draft = draft, .max = max, .failed = failed};
    struct mtp_turn turn = {.s = s, .p = &p};
    round_together(&turn, 1, pass, max);
    return p.drafts;
}

int mtp_chain(struct mtp_state *s, struct pass *pass, int32_t *draft, int drafts, int max, size_t last,
              size_t *failed)
{
    struct proposal p = {.draft = draft, .max = max, .failed = failed, .drafts = drafts};
    struct mtp_turn turn = {.s = s, .p = &p, .chooser = last};
    chain_together(&turn, 1, pass);
    return p.drafts;
}

void mtp_round_ends(struct mtp_state *s)
{
    if (s->lost.now && s->count >= 2)
        mtp_cut(s, 0, s->count - 2);
    lost_put_back(s);
}

/* ---- all drafts at once ------------------------------------------------------------------------------------------ */

/* How many rows of s->proposing a round has filled. */
static size_t proposing_of(const struct mtp_turn *t)
{
    size_t n = 0;
    while (t->s->count >= 2 && (int)n < t->s->num_depths && drafts_at(t, (int)n, VB_MAX_DRAFT))
        n++;
    return n;
}

size_t mtp_proposing_rows(struct mtp_state *s, struct pass *pass, int max)
{
    struct proposal p = {.max = max};
    struct mtp_turn turn = {.s = s, .p = &p};
    round_together(&turn, 1, pass, VB_MAX_DRAFT);
    return proposing_of(&turn);
}

static void choose_from(struct mtp_turn *t, const float *logits, size_t n)
{
    struct mtp_state *s = t->s;
    size_t V = s->net->vocab_size;
    for (size_t k = 0; k < n && !t->ended; k++) {
        int32_t token = mtp_token(s, drafter_choose(&s->options, logits + k * V, V, (int)k + 1, t->p->failed));
        trace_choose(s->options.tracer, (int)k, s->head_row, token, (int)k + 1);
        take_draft(t, token);
    }
}

/* The drafts of the first turns, as many as there is memory for. Returns how many turns took part. */
static size_t choose_at_once(struct mtp_turn *turns, size_t count, struct pass *pass)
{
    struct mtp_state *leader = turns[0].s;
    size_t d = leader->net->width, V = leader->net->vocab_size, rows = 0, m = 0, n;
    size_t most = min_size(leader->room, pass->w.max_logit_rows);
    for (; m < count && same_network(&turns[0], &turns[m]); m++) {
        n = proposing_of(&turns[m]);
        if (rows + n > most)
            break;
        memcpy(leader->h + rows * d, turns[m].s->proposing, n * d * sizeof *leader->h);
        rows += n;
    }
    assert(m);
    if (rows)
        leader->net->type->logits(leader->net, pass, 0, pass->w.logits, leader->h, 0, rows);
    rows = 0;
    for (size_t i = 0; i < m; i++, rows += n) {
        n = proposing_of(&turns[i]);
        choose_from(&turns[i], pass->w.logits + rows * V, n);
    }
    return m;
}

/* ---- drafter_type.propose_together ------------------------------------------------------------------------------- */

static void begin_turns(struct mtp_turn *turns, struct proposal *proposals, size_t count)
{
    assert(count <= MOST_PROPOSALS);
    for (size_t i = 0; i < count; i++) {
        turns[i] = (struct mtp_turn){.s = &mtp_of(proposals[i].drafter)->state, .p = &proposals[i]};
        mtp_catch_up(turns[i].s);
    }
}

/* Drafts by depths that take turns, after those of the round. */
static void propose_in_turns(struct mtp_turn *turns, size_t count, struct pass *pass)
{
    size_t N[MOST_PROPOSALS];
    for (size_t i = 0; i < count; i++)
        N[i] = mtp_row_count(turns[i].s, 0);
    chain_together(turns, count, pass);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < turns[i].s->num_depths; k++)
            mtp_cut(turns[i].s, k, N[i]);
}

void mtp_drafter_propose(struct proposal *proposals, size_t count, struct pass *pass)
{
    struct mtp_turn turns[MOST_PROPOSALS];
    enum draft_order order = mtp_of(proposals[0].drafter)->state.method.order;
    begin_turns(turns, proposals, count);
    round_together(turns, count, pass, order == TAKING_TURNS ? 1 : VB_MAX_DRAFT);
    if (order == TAKING_TURNS)
        propose_in_turns(turns, count, pass);
    for (size_t i = 0; i < count && order == ALL_AT_ONCE;)
        i += choose_at_once(turns + i, count - i, pass);
    for (size_t i = 0; i < count && order != ALL_AT_ONCE; i++)
        mtp_round_ends(turns[i].s);
}
