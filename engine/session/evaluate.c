/* engine/session/evaluate.c -- every row's logits, of the target and of MTP modules that read the text itself. */
#include <string.h>

#include "simd/fpenv.h"
#include "numbers/numbers.h"
#include "engine/pass/forward.h"
#include "engine/pass/lead.h"
#include "engine/draft/net.h"
#include "engine/model/numa.h"
#include "engine/session/prefill.h"
#include "engine/session/routes.h"

struct evaluation {
    struct vb_session *session;
    vb_row_callback row;
    void *context;
    int depths;
    struct draft_net *net;               /* the modules; NULL without depths */
    struct kvcache caches[VB_MAX_DRAFT]; /* one per depth */
    struct row *rows;                    /* of a module's pass [chunk] */
    int by_token;                        /* convention module-hidden=target: row i of depth k takes the target's hidden
                                            state i + k */
    int in_chunk;                        /* the pass is a chunk of prefill cublas */
    float *h, *g;                        /* what a depth takes and hands on; what its head takes [chunk, d] */
};

static int evaluation_open(struct evaluation *e, vb_error *err)
{
    const struct vb_session *s = e->session;
    const struct config *c = &s->model->config;
    if (e->depths < 0 || e->depths > VB_MAX_DRAFT || (e->depths && !s->model->num_mtp))
        return vb_fail(err, VB_BAD_ARGUMENT, "%d MTP depths, wanted 0 to %d", e->depths,
                       s->model->num_mtp ? VB_MAX_DRAFT : 0);
    if (e->depths && s->cached)
        return vb_fail(err, VB_BAD_ARGUMENT, "%zu tokens are computed already; MTP depths need all of them", s->cached);
    e->by_token = c->conventions.value[MODULE_HIDDEN];
    int code = e->depths ? mtp_net_open(&e->net, s->model, NULL, err) : VB_OK;
    for (int k = 0; k < e->depths && !code; k++) {
        code = kvcache_open(&e->caches[k], 1, s->context, e->net->cache, s->model->allocator, err);
        if (!code)
            code = lead_pool(&e->caches[k].own, e->net->ranks, err);
        e->caches[k].sequence = s->options.sequence;
        e->caches[k].first_row = -(int)e->net->rows_before;
    }
    if (code)
        return code;
    e->rows = vb_alloc(s->model->allocator, s->pass->w.max_rows, sizeof *e->rows);
    e->h = vb_alloc(s->model->allocator, s->pass->w.max_rows * c->dims.d, sizeof *e->h);
    e->g = vb_alloc(s->model->allocator, s->pass->w.max_rows * c->dims.d, sizeof *e->g);
    return e->rows && e->h && e->g ? VB_OK
                                   : vb_fail(err, VB_NO_MEMORY, "no memory to evaluate %zu rows", s->pass->w.max_rows);
}

static void evaluation_close(struct evaluation *e)
{
    const vb_allocator *a = e->session->model->allocator;
    for (int k = 0; k < VB_MAX_DRAFT; k++)
        kvcache_close(&e->caches[k], a);
    if (e->net)
        e->net->type->close(e->net);
    vb_free(a, e->rows);
    vb_free(a, e->h);
    vb_free(a, e->g);
}

/* Logits of rows index.. of the last pass, as many at a time as there is room for. */
static int tell(struct evaluation *e, int depth, size_t index, const float *hidden, size_t S, vb_error *err)
{
    struct pass *pass = e->session->pass;
    size_t d = pass->model->config.dims.d, V = pass->model->config.dims.V;
    for (size_t i = 0; i < S; i += pass->w.max_logit_rows) {
        size_t rows = min_size(S - i, pass->w.max_logit_rows);
        if (depth >= 0) {
            e->net->type->logits(e->net, pass, depth, pass->w.logits, hidden + i * d, i, rows);
        } else {
            forward_head(pass, &pass->model->lm_head, pass->w.logits, hidden + i * d, rows);
            forward_tap_logits(pass, pass->w.logits, V, i, rows);
        }
        int code = pass_failed(pass, err);
        if (code)
            return code;
        for (size_t j = 0; j < rows; j++)
            if (e->row(e->context, depth, index + i + j, pass->w.logits + j * V, hidden + (i + j) * d))
                return vb_fail(err, VB_STOPPED, "stopped by the caller");
    }
    return VB_OK;
}

/* Rows [first, first + n) of depth k, whose hidden states are in e->h. */
static int module_rows(struct evaluation *e, int k, size_t first, size_t n, vb_error *err)
{
    const struct vb_session *s = e->session;
    const struct draft_net_type *net = e->net->type;
    int32_t layer = s->model->config.num_hidden_layers + k;
    size_t ahead = (size_t)k + 1;
    if (first == 0)
        net->first_row(e->net, s->pass, &e->caches[k], k, ahead, s->tokens[k]);
    for (size_t j = 0; j < n; j++) {
        const vb_routes *r = &s->options.routes;
        const int32_t *forced = routes_forced(r, first + j), *kept = routes_kept(r, first + j);
        e->rows[j] = net->row(e->net, &e->caches[k], k, first + j, ahead, s->tokens[first + j + ahead]);
        e->rows[j].forced = forced && layer < r->layers ? forced + layer * r->top_k : NULL;
        e->rows[j].forced_kept = kept && layer < r->layers ? kept + (size_t)layer * (size_t)r->index_topk : NULL;
        if (e->by_token) {
            e->rows[j].hidden_of += k;
            e->rows[j].hidden_depth = -1;
        }
    }
    if (e->in_chunk)
        prefill_begin(s->pass);
    net->pass(e->net, s->pass, k, e->rows, e->h, e->g, e->h, n);
    if (e->in_chunk)
        prefill_end(s->pass);
    return tell(e, k, first, e->g, n, err);
}

/* The rows of every depth that follow from rows index.. of the target [S]. Depth k's hidden states are what depth k-1
 * handed on for the same rows; or, with module-hidden=target, the target's, which belong to the rows k places
 * before. */
static int modules(struct evaluation *e, size_t index, size_t S, vb_error *err)
{
    struct vb_session *s = e->session;
    size_t d = s->model->config.dims.d, n = S;
    int code = VB_OK;
    memcpy(e->h, s->pass->w.features, S * d * sizeof *e->h);
    for (int k = 0; k < e->depths && !code; k++) {
        size_t back = e->by_token ? (size_t)k : 0, none = index < back ? min_size(back - index, S) : 0,
               first = index + none - back;
        if (back) {
            n = S - none;
            memcpy(e->h, s->pass->w.features + none * d, n * d * sizeof *e->h);
        }
        while (n && first + n + (size_t)k >= s->count)
            n--;
        if (n)
            code = module_rows(e, k, first, n, err);
    }
    return code;
}

int vb_evaluate(vb_session *s, int depths, vb_row_callback row, void *context, vb_error *err)
{
    struct evaluation e = {.session = s, .row = row, .context = context, .depths = depths};
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(s->model);
    int code = evaluation_open(&e, err), last = 0;
    if (s->pass->onednn && s->prompt > s->cached) /* what was not computed yet stays on the contract's kernels */
        s->prompt = s->cached;
    /* the last token keeps its row unwritten, as between any two rounds: it is cut and computed again when needed */
    while (s->cached < s->count && !code && !last) {
        struct plan p;
        size_t index = s->cached;
        session_plan(s, &p, s->chunk, 0);
        p.padding = 0; /* its rows are no rows of the text */
        size_t S = session_rows(s, &p, s->rows);
        e.in_chunk = p.by_library;
        if (p.by_library)
            prefill_begin(s->pass);
        int stopped = forward_target(s->pass, s->rows, S);
        if (p.by_library)
            prefill_end(s->pass);
        if (stopped) {
            code = session_give_up(s, err);
            break;
        }
        trace_pass(s->tracer, -1, s->rows, S);
        code = tell(&e, -1, index, s->pass->w.hidden, S, err);
        if (!code)
            code = modules(&e, index, S, err);
        session_finish(s, s->pass, &p, NULL, 0);
        if (session_draft_stopped(s) && !code)
            code = vb_fail(err, VB_STOPPED, "stopped by the caller");
        last = p.chooses;
    }
    evaluation_close(&e);
    numa_leave(&visit);
    fpenv_leave(env);
    return code;
}
