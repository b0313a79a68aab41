/* engine/draft/mtp.c -- the rows of MTP modules: which are final, which are missing, what they take. */
#include "engine/pass/lead.h"
#include "engine/draft/mtp.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "numbers/numbers.h"

#define ROWS_WORTH_A_PASS (VB_MAX_DRAFT + 1) /* more pending rows than a round leaves: a prompt */

/* Returns whether all draft steps after the first attend to the tokens that the first one chose. */
static int shares_tokens(const struct draft_net *net, const struct config *c)
{
    int convention = c->conventions.value[MTP_SET];
    return net->cache.index_layers && (convention ? convention == 2 : c->index_share_for_mtp_iteration);
}

/* Calls s->choose with a row of the target's vocabulary. Tokens that the network does not have get minus infinity.
 * Returns the network's id of the chosen token. */
static int32_t choose_widened(void *context, const float *logits, int number)
{
    struct mtp_state *s = context;
    int32_t i, n = (int32_t)s->net->vocab_size;
    for (size_t v = 0; v < s->model->config.dims.V; v++)
        s->widened[v] = -INFINITY;
    for (i = 0; i < n; i++)
        s->widened[mtp_token(s, i)] = logits[i];
    int32_t token = s->choose(s->choose_context, s->widened, number);
    for (i = 0; i < n && mtp_token(s, i) != token;)
        i++;
    return i < n ? i : -1;
}

const struct net_method net_method_one_depth = {
    .depths = 1, .order = TAKING_TURNS, .depth = {{.ahead = 1, .source = FROM_TARGET}}};

/* Whether a depth may read what another one gave, in place of a hidden state that the target has not computed. */
static int needs_given(const struct net_method *method)
{
    int needs = 0;
    for (int k = 0; k < method->depths; k++)
        needs |= method->depth[k].source == FROM_TARGET && method->depth[k].ahead > 1;
    return needs;
}

int mtp_state_open(struct mtp_state *s, struct draft_net *net, const struct vb_model *m,
                   const struct drafter_options *o, const struct net_method *method, vb_error *err)
{
    const vb_allocator *a = m->allocator;
    *s = (struct mtp_state){.model = m, .net = net, .options = *o, .method = *method,
                            .room = o->most_observed + 2 * ROWS_WORTH_A_PASS};
    size_t d = net->width, more = o->topk > 1 ? (size_t)(o->topk * o->max_draft) : 0;
    size_t rows = d > SIZE_MAX / sizeof(float) / s->room ? SIZE_MAX : s->room * d * sizeof(float);
    int widens = net->other_tokens && o->choose, at_once = method->order == ALL_AT_ONCE, gives = needs_given(method);
    size_t depths = (size_t)method->depths;
    if (widens) {
        s->options.choose = choose_widened;
        s->options.choose_context = s;
        s->widened = vb_alloc(a, m->config.dims.V, sizeof *s->widened);
    }
    s->choose = o->choose;
    s->choose_context = o->choose_context;
    s->tokens = vb_alloc(a, o->context + 1, sizeof *s->tokens);
    s->pending = vb_alloc_unset(a, rows); /* pages that a short sequence never needs stay untouched */
    s->h = vb_alloc_unset(a, rows);
    s->g = vb_alloc_unset(a, rows);
    s->next = vb_alloc_unset(a, rows);
    s->logits = vb_alloc(a, net->vocab_size, sizeof *s->logits);
    s->taken = net->type->take ? vb_alloc(a, o->most_observed * d, sizeof *s->taken) : NULL;
    s->rows = vb_alloc(a, s->room, sizeof *s->rows);
    s->depths = vb_alloc(a, depths, sizeof *s->depths);
    s->given = gives ? vb_alloc(a, depths * d, sizeof *s->given) : NULL;
    s->proposing = at_once ? vb_alloc(a, depths * d, sizeof *s->proposing) : NULL;
    int shares = shares_tokens(net, &m->config);
    int missing = !s->tokens || !s->pending || !s->h || !s->g || !s->next || !s->logits || !s->rows || !s->depths ||
                  (net->type->take && !s->taken) || (gives && !s->given) || (at_once && !s->proposing) ||
                  (widens && !s->widened),
        code = VB_OK;
    for (int k = 0; !missing && !code && k < method->depths; k++) {
        struct mtp_depth *depth = &s->depths[s->num_depths++];
        depth->hidden_of_next = vb_alloc(a, d, sizeof *depth->hidden_of_next);
        depth->kept.slots = shares ? vb_alloc(a, m->config.dims.index_topk, sizeof *depth->kept.slots) : NULL;
        missing = !depth->hidden_of_next || (shares && !depth->kept.slots);
        /* one of them for put_aside */
        code = kvcache_open(&depth->cache, 1, o->context + 2 * VB_MAX_DRAFT + 3 + more, net->cache, a, err);
        if (!code)
            code = lead_pool(&depth->cache.own, net->ranks, err);
        depth->cache.poison = o->poison;
        depth->cache.sequence = o->sequence;
        depth->cache.tracer = o->tracer;
        depth->cache.depth = k;
        depth->cache.first_row = -(int)net->rows_before;
    }
    if (missing)
        code = vb_fail(err, VB_NO_MEMORY, "no memory for %d MTP caches of %zu tokens", method->depths, o->context);
    if (!code && more)
        code = mtp_tree_open(s, err);
    if (code)
        mtp_state_close(s);
    return code;
}

void mtp_state_close(struct mtp_state *s)
{
    const vb_allocator *a = s->model->allocator;
    for (int k = 0; k < s->num_depths; k++) {
        vb_free(a, s->depths[k].hidden_of_next);
        vb_free(a, s->depths[k].kept.slots);
        kvcache_close(&s->depths[k].cache, a);
    }
    void *blocks[] = {s->tokens, s->widened, s->taken, s->pending, s->h, s->g, s->next, s->logits, s->rows, s->depths,
                      s->given, s->proposing};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        vb_free(a, blocks[i]);
    mtp_tree_close(s);
    if (s->net)
        s->net->type->close(s->net);
    *s = (struct mtp_state){.model = s->model}; /* a second time does nothing */
}

size_t mtp_row_count(const struct mtp_state *s, int k)
{
    size_t length = s->depths[k].cache.length;
    return s->base + (length ? length - s->net->rows_before : 0);
}

void mtp_cut(struct mtp_state *s, int k, size_t n)
{
    kvcache_truncate(&s->depths[k].cache, n > s->base ? n - s->base + s->net->rows_before : 0);
}

/* The caches, which are empty, begin with row n. */
static void set_base(struct mtp_state *s, size_t n)
{
    s->base = n;
    for (int k = 0; k < s->num_depths; k++) {
        assert(!s->depths[k].cache.length);
        s->depths[k].cache.base = n;
    }
}

/* Lets the oldest pending hidden states go, all but `left`. Rows of the caches that would come before a gap go too. */
static void let_go(struct mtp_state *s, size_t left)
{
    size_t d = s->net->width, gone = s->pending_count - left;
    memmove(s->pending, s->pending + gone * d, left * d * sizeof *s->pending);
    s->first_pending += gone;
    s->pending_count = left;
    if (mtp_row_count(s, 0) >= s->first_pending)
        return;
    for (int k = 0; k < s->num_depths; k++)
        mtp_cut(s, k, 0);
    set_base(s, s->first_pending);
}

/* Back to tok[0..pos-1] and the hidden states before h_{pos-1}. */
static void forget(struct mtp_state *s, size_t pos)
{
    size_t hidden = pos ? pos - 1 : 0;
    s->count = pos;
    for (int k = 0; k < s->num_depths; k++)
        mtp_cut(s, k, hidden);
    if (hidden < s->base)
        set_base(s, hidden);
    if (s->first_pending + s->pending_count > hidden) {
        s->pending_count = s->first_pending < hidden ? hidden - s->first_pending : 0;
        s->first_pending = min_size(s->first_pending, hidden);
    }
}

static void keep(struct mtp_state *s, size_t pos, const int32_t *tokens, const float *hidden, size_t n)
{
    size_t d = s->net->width, used = min_size(mtp_row_count(s, 0) - s->first_pending, s->pending_count);
    memmove(s->pending, s->pending + used * d, (s->pending_count - used) * d * sizeof *s->pending);
    s->first_pending += used;
    s->pending_count -= used;

    memcpy(s->tokens + pos, tokens, n * sizeof *tokens);
    s->count = pos + n;
    size_t none = pos == 0; /* there is no hidden state of index -1 */
    if (s->deferred && s->pending_count + n > s->room) /* more than now: else each token would move them all */
        let_go(s, min_size(s->room - n, s->room - s->room / 4));
    assert(s->first_pending + s->pending_count == (none ? 0 : pos - 1) && s->pending_count + n <= s->room);
    if (n > none)
        memcpy(s->pending + s->pending_count * d, hidden + none * d, (n - none) * d * sizeof *hidden);
    trace_hidden(s->options.tracer, s->first_pending + s->pending_count, n - none);
    s->pending_count += n - none;
}

void mtp_observe(struct mtp_state *s, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                 size_t n)
{
    size_t failed;
    assert(pos <= s->count);
    s->lost.now = s->lost.for_good = 0;
    if (pos < s->count)
        forget(s, pos);
    if (!s->deferred && s->pending_count + n > s->room) /* they were deferred before */
        mtp_round(s, pass, NULL, 0, &failed);
    keep(s, pos, tokens, hidden, n);
    if (!s->deferred && s->count - 1 - mtp_row_count(s, 0) > ROWS_WORTH_A_PASS)
        mtp_round(s, pass, NULL, 0, &failed);
}

void mtp_defer(struct mtp_state *s, size_t rows)
{
    const unsigned char *convention = s->model->config.conventions.value;
    size_t least = (size_t)s->num_depths + 1;
    s->deferred = convention[PREFILL_DRAFT] || convention[MISSING_HIDDEN] ? 0 : rows && rows < least ? least : rows;
}

void mtp_catch_up(struct mtp_state *s)
{
    size_t behind = s->count ? s->count - 1 - mtp_row_count(s, 0) : 0;
    if (s->deferred && behind > s->deferred)
        let_go(s, s->deferred);
}

int mtp_begin_as(struct mtp_state *s, const struct mtp_state *other, size_t n)
{
    size_t d = s->net->width, end = other->first_pending + other->pending_count,
           first = min_size(other->first_pending, n);
    if (s->num_depths > other->num_depths || (s->net->type->is_same && !s->net->type->is_same(s->net, other->net)))
        return 0;
    assert(s->count == 0 && n < other->count && end >= n);
    if (n - first > s->room)
        first = n - s->room;
    size_t base = first > mtp_row_count(other, 0) ? first : min_size(other->base, n);
    if (base && !s->options.asked->drafting.automatic) /* its drafts depend on the tokens alone */
        return 0;
    memcpy(s->tokens, other->tokens, (n + 1) * sizeof *s->tokens);
    s->count = n + 1;
    s->first_pending = first;
    s->pending_count = n - first;
    set_base(s, base);
    for (int k = 0; k < s->num_depths; k++) {
        size_t rows = min_size(mtp_row_count(other, k), n);
        if (rows > s->base)
            kvcache_begin_as(&s->depths[k].cache, &other->depths[k].cache, rows - s->base + s->net->rows_before);
        memcpy(s->depths[k].hidden_of_next, other->depths[k].hidden_of_next, d * sizeof *s->pending);
    }
    if (s->pending_count)
        memcpy(s->pending, other->pending + (s->first_pending - other->first_pending) * d,
               s->pending_count * d * sizeof *s->pending);
    return 1;
}

void mtp_after_prompt(struct mtp_state *s, struct pass *pass)
{
    const unsigned char *convention = s->model->config.conventions.value;
    int32_t discarded[VB_MAX_DRAFT];
    size_t failed;
    if (convention[PREFILL_DRAFT])
        mtp_round(s, pass, discarded, 1, &failed);
    if (convention[MISSING_HIDDEN]) { /* who computed the prompt computed the modules' rows too, and sent those without
                                         the hidden state */
        mtp_round(s, pass, NULL, 0, &failed);
        s->lost.now = s->lost.for_good = 1;
    }
}

int32_t mtp_token(const struct mtp_state *s, int32_t drafted)
{
    return s->net->type->token ? s->net->type->token(s->net, drafted) : drafted;
}

struct row mtp_state_row(struct mtp_state *s, int k, size_t i, int32_t token)
{
    struct row row = s->net->type->row(s->net, &s->depths[k].cache, k, i, mtp_ahead(s, k), token);
    struct kept_tokens *kept = &s->depths[k].kept;
    row.index -= (int32_t)s->base;
    if (kept->slots && i + 1 < s->count) /* the row that makes the first draft, or an earlier one */
        row.keep = i + 2 == s->count ? kept : NULL;
    else if (kept->slots)
        row.use = kept;
    return row;
}

void mtp_pass(struct mtp_state *s, struct pass *pass, int k, size_t first, size_t S)
{
    size_t at = first * s->net->width;
    s->net->type->pass(s->net, pass, k, s->rows + first, s->h + at, s->g + at, s->next + at, S);
    trace_pass(s->options.tracer, k, s->rows + first, S);
}

int mtp_drafter_open(struct drafter **out, struct draft_net *net, const struct vb_model *m,
                     const struct drafter_options *o, const struct net_method *method, vb_error *err)
{
    struct mtp_drafter *d = vb_alloc(m->allocator, 1, sizeof *d);
    *out = NULL;
    if (!d) {
        net->type->close(net);
        return vb_fail(err, VB_NO_MEMORY, "no memory for the drafter");
    }
    int code = mtp_state_open(&d->state, net, m, o, method, err);
    if (code)
        vb_free(m->allocator, d);
    else
        *out = (struct drafter *)d;
    return code;
}

int mtp_drafter_open_modules(struct drafter **out, const struct vb_model *m, const struct drafter_options *o,
                             const struct net_method *method, vb_error *err)
{
    struct draft_net *net;
    int code = mtp_net_open(&net, m, o->asked->drafting.vocab, err);
    return code ? code : mtp_drafter_open(out, net, m, o, method, err);
}

void mtp_drafter_observe(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                         size_t n)
{
    struct mtp_state *s = &mtp_of(d)->state;
    size_t none = pos == 0, width; /* there is no row of index -1 */
    if (s->taken && n > none) {
        assert(n <= s->options.most_observed);
        pass_rows(pass, s->options.takes, 0, &width);
        s->net->type->take(s->net, pass, s->taken + none * s->net->width, hidden + none * width, n - none);
    }
    mtp_observe(s, pass, pos, tokens, s->taken ? s->taken : hidden, n);
}

void mtp_drafter_defer(struct drafter *d, size_t rows) { mtp_defer(&mtp_of(d)->state, rows); }

int mtp_drafter_begin_as(struct drafter *d, const struct drafter *other, size_t n)
{
    return mtp_begin_as(&mtp_of(d)->state, &mtp_of(other)->state, n);
}

void mtp_drafter_after_prompt(struct drafter *d, struct pass *pass) { mtp_after_prompt(&mtp_of(d)->state, pass); }

size_t mtp_drafter_rewind(const struct drafter *d)
{
    const struct mtp_state *s = &mtp_of(d)->state;
    size_t most = 0;
    for (int k = 0; k < s->num_depths; k++)
        most = max_size(most, mtp_hidden_ahead(s, k));
    return most;
}

size_t mtp_drafter_bytes(const struct drafter *d)
{
    const struct mtp_state *s = &mtp_of(d)->state;
    size_t all = 0;
    for (int k = 0; k < s->num_depths; k++)
        all += kvcache_bytes(&s->depths[k].cache);
    return all + s->net->bytes + mtp_tree_bytes(s);
}

size_t mtp_drafter_weight_bytes(const struct drafter *d)
{
    const struct draft_net *net = mtp_of(d)->state.net;
    return net->type->weight_bytes ? net->type->weight_bytes(net) : 0;
}

void mtp_drafter_close(struct drafter *d)
{
    const vb_allocator *a = mtp_of(d)->state.model->allocator;
    mtp_state_close(&mtp_of(d)->state);
    vb_free(a, d);
}
