/* reference/model.c -- the target, its MTP modules, drafts, and autoregressive decoding. */
#include "reference/layers.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* -- a run -------------------------------------------------------------------------------------------------------- */

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

/* Allocates the memory of a run for S tokens. */
int ref_run_open(struct reference_run *run, const struct reference *r, const struct reference_options *options, int S,
                 vb_error *err)
{
    const struct config *c = &r->config;
    size_t s = (size_t)S + 1 /* one more row for convention first-row=phantom */, D = c->dims.d, H = c->dims.H,
           Q = c->dims.q;
    size_t N = c->dims.n, R = c->dims.r, V = c->dims.v;
    size_t C = c->dims.c, E = c->dims.E, X = c->dims.chosen;
    size_t G = c->dims.groups, moe = c->dims.expert;
    size_t W = max(config_has_layers(c, 0) ? c->dims.dense : 1,
                   config_has_layers(c, 1) ? max(1, c->dims.shared) * moe : 1);
    size_t HI = c->dims.index_heads, DI = c->dims.index_dim, sparse = c->index_topk > 0; /* all 0 without an indexer */
    size_t widest = max(max(max(2 * D, W), max(N, DI)), max(max(Q, C), max(H * V, E)));
    struct { double **at; size_t count;
    } part[] = {
        {&run->row, widest},
        {&run->rounded, s * widest},
        {&run->w_uk, N * C},
        {&run->w_uv, V * C},
        {&run->cosine, s * R / 2},
        {&run->sine, s * R / 2},
        {&run->query_scale, s},
        {&run->normed, s * D},
        {&run->delta, s * D},
        {&run->q_a, s * Q},
        {&run->q, s * H * (N + R)},
        {&run->q_nope, s * H * N},
        {&run->q_rope, s * H * R},
        {&run->kv_a, s * (C + R)},
        {&run->latent, s * C},
        {&run->k_rope, s * R},
        {&run->kv, s * H * (N + V)},
        {&run->k_nope, s * H * N},
        {&run->v, s * H * V},
        {&run->scores, s * s},
        {&run->mixed, s * C},
        {&run->heads, s * H * V},
        {&run->gate, s * W},
        {&run->up, s * W},
        {&run->router, s * E},
        {&run->choice, s * E},
        {&run->groups, s * G},
        {&run->experts, s * X},
        {&run->weights, s * X},
        {&run->expert_in, s * D},
        {&run->expert_out, s * D},
        {&run->routed, s * X * D},
        {&run->index_q, s * HI * DI},
        {&run->index_k, s * DI},
        {&run->index_weights, s * HI},
        {&run->index_scales, s * HI},
        {&run->index_moves, s * (HI + 1) * DI},
        {&run->index_scale_moves, s * HI},
        {&run->index_scores, s * s * sparse},
        {&run->index_sets, s * max(c->dims.index_topk, sparse)},
        {&run->embed, s * D},
        {&run->concat, s * 2 * D},
        {&run->taken, s * D},
        {&run->stream, s * D},
    };
    size_t parts = sizeof part / sizeof *part, total = 0;

    *run = (struct reference_run){.r = r, .c = c, .layer = -1, .last_row = -1};
    if (options)
        run->options = *options;
    int context = run->options.context ? run->options.context : S;
    run->random = run->options.perturb;
    run->stretched = c->rope_yarn &&
                     !(ref_convention(run, YARN) && context <= c->rope_original_max_position_embeddings);
    for (size_t i = 0; i < parts; i++)
        total += part[i].count;
    size_t candidates = sparse * s * sizeof *run->candidates / sizeof(double), bytes = max(E, G) + sparse * s * s;
    double *next = run->memory = vb_alloc(&r->allocator, total + candidates + bytes / sizeof(double) + 1,
                                          sizeof(double));
    if (!next)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the intermediate values of %d tokens", S);
    for (size_t i = 0; i < parts; next += part[i++].count)
        *part[i].at = next;
    run->candidates = (struct place_score *)next;
    run->chosen = (char *)(next + candidates);
    run->kept = run->chosen + max(E, G);
    return VB_OK;
}

void ref_run_close(struct reference_run *run) { vb_free(&run->r->allocator, run->memory); }

int ref_check_tokens(const struct reference *r, const int32_t *tokens, int S, vb_error *err)
{
    if (S < 1)
        return vb_fail(err, VB_BAD_ARGUMENT, "there are no tokens to read");
    for (int s = 0; s < S; s++)
        if (tokens[s] < 0 || tokens[s] >= r->config.vocab_size)
            return vb_fail(err, VB_BAD_ARGUMENT, "token %d is %d, the vocabulary has %d", s, (int)tokens[s],
                           r->config.vocab_size);
    return VB_OK;
}

int ref_argmax(const double *logits, int V)
{
    int best = 0;
    for (int v = 0; v < V; v++) {
        if (!isfinite(logits[v]))
            return -1;
        if (logits[v] > logits[best])
            best = v;
    }
    return best;
}

/* -- the target --------------------------------------------------------------------------------------------------- */

void ref_target(struct reference_run *run, double *hidden, double *features, const int32_t *tokens, int S)
{
    const struct reference *r = run->r;
    size_t bytes = (size_t)S * run->c->dims.d * sizeof *hidden;
    ref_rope_tables(run, 0, S);
    ref_embed(run, hidden, &r->embed, tokens, S);
    for (run->layer = 0; run->layer < run->c->num_hidden_layers; run->layer++) {
        if (run->trunk && run->layer == run->trunk_layers)
            memcpy(run->trunk, hidden, bytes);
        ref_decoder_layer(run, &r->layers[run->layer], hidden, S);
    }
    if (run->trunk && run->layer == run->trunk_layers)
        memcpy(run->trunk, hidden, bytes);
    run->layer = -1;
    if (features && ref_convention(run, MAIN_HIDDEN))
        memcpy(features, hidden, bytes);
    ref_norm(run, hidden, &r->norm, hidden, S, run->c->rms_norm_eps);
    ref_value(run, "norm", -1, S, run->c->hidden_size, hidden);
    if (features && features != hidden && !ref_convention(run, MAIN_HIDDEN))
        memcpy(features, hidden, bytes);
}

void ref_head(struct reference_run *run, double *logits, const struct matrix *w, const double *hidden, int S)
{
    ref_linear(run, logits, w, hidden, S);
    ref_value(run, "logits", -1, S, run->c->vocab_size, logits);
}

int reference_forward(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int S,
                      double *hidden, double *logits, vb_error *err)
{
    struct reference_run run;
    size_t D = r->config.dims.d;
    int rc = ref_check_tokens(r, tokens, S, err);
    if (rc || (rc = ref_run_open(&run, r, options, S, err)))
        return rc;
    double *h = hidden ? hidden : vb_alloc(&r->allocator, (size_t)S * D, sizeof *h);
    if (!h) {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for the hidden states of %d tokens", S);
    } else {
        ref_target(&run, h, NULL, tokens, S);
        if (logits)
            ref_head(&run, logits, &r->head, h, S);
    }
    if (h != hidden)
        vb_free(&r->allocator, h);
    ref_run_close(&run);
    return rc;
}

/* -- multi-token prediction --------------------------------------------------------------------------------------- */

/* Runs module k on rows 0..S-1 (section 2.2):
 *     x_i = eh_proj [ RMSNorm_e(Emb(tok_i)) ; RMSNorm_h(h_i) ],    g = RMSNorm_shared_head(decoder_layer(x))
 * Eq. 21 has the hidden state first and the embedding second; in every checkpoint the embedding comes first. tok_i is
 * tok[i+k+1], which is the last token that row i may depend on. h, g and next are [S,D]. `next` is what the next depth
 * reads: g, or decoder_layer(x) with draft-hidden=pre-norm. `next` may be h.
 *
 * `depth` is k, from which the hook's `layer` is computed, even if module k mod D is used. `ahead` is k + 1: row i
 * reads the token that is `ahead` tokens after token i. With first-row=phantom, row -1 comes before the others; it has
 * tok[k] and a hidden state of zeros. */
void ref_mtp(struct reference_run *run, double *g, double *next, const struct reference_mtp_module *w, int depth,
             int ahead, const int32_t *tok, const double *h, int S)
{
    int D = run->c->hidden_size, phantom = ref_convention(run, FIRST_ROW), rows = S + phantom;
    int swapped = ref_convention(run, CONCAT), first = ref_convention(run, DRAFT_POSITION) ? ahead - phantom : -phantom;
    size_t d = (size_t)D, row = d * sizeof(double);
    double eps = run->c->rms_norm_eps, *x = run->stream;
    run->layer = run->c->num_hidden_layers + depth;
    ref_rope_tables(run, first, rows);
    memset(run->taken, 0, (size_t)phantom * row);
    for (int i = 0; i < rows; i++) {
        int index = ref_index(run, i) - phantom;
        if (i >= phantom)
            memcpy(run->taken + (size_t)i * d, h + (size_t)index * d, row);
        ref_row(&w->embed, tok[index], run->embed + (size_t)i * d);
        if (ref_convention(run, FIRST_EMBEDDING) && first + i == 0)
            memset(run->embed + (size_t)i * d, 0, row);
    }
    ref_show(run, "embed", -1, rows, D, run->embed);
    ref_show(run, "taken", -1, rows, D, run->taken);
    ref_norm(run, run->embed, &w->enorm, run->embed, rows, eps);
    ref_value(run, "enorm", -1, rows, D, run->embed);
    ref_norm(run, run->normed, &w->hnorm, run->taken, rows, eps);
    ref_value(run, "hnorm", -1, rows, D, run->normed);
    for (size_t i = 0; i < (size_t)rows; i++) {
        memcpy(run->concat + i * 2 * d, (swapped ? run->normed : run->embed) + i * d, row);
        memcpy(run->concat + i * 2 * d + d, (swapped ? run->embed : run->normed) + i * d, row);
    }
    ref_show(run, "concat", -1, rows, 2 * D, run->concat);
    ref_linear(run, x, &w->eh_proj, run->concat, rows);
    ref_value(run, "eh_proj", -1, rows, D, x);
    ref_decoder_layer(run, &w->layer, x, rows);
    x += (size_t)phantom * d;
    if (ref_convention(run, DRAFT_HIDDEN))
        memcpy(next, x, (size_t)S * row);
    ref_norm(run, g, &w->norm, x, S, eps);
    ref_value(run, "shared_head_norm", -1, S, D, g);
    if (!ref_convention(run, DRAFT_HIDDEN) && next != g)
        memcpy(next, g, (size_t)S * row);
}

/* Sets *token to argmax(W_head g), and logits [V] to W_head g. */
static int propose(struct reference_run *run, int32_t *token, double *logits, const struct matrix *w, const double *g,
                   int k, vb_error *err)
{
    ref_head(run, logits, w, g, 1);
    if ((*token = ref_argmax(logits, run->c->vocab_size)) < 0)
        return vb_fail(err, VB_NOT_FINITE, "the logits of draft %d have a value that is not finite", k + 1);
    return VB_OK;
}

/* mtp-vanilla: depth k runs module k mod D on rows 0..N-1. Row i reads tok[i+k+1] and h^k_i, where h^0 are the target's
 * hidden states and h^k is the output of depth k-1. Row N-1 proposes tok[N+k+1]. The caller sets tok[0..N], and the
 * function writes tok[N+1..N+K] and logits [K,V]. It overwrites h [N,D], and uses g [N,D] as scratch memory.
 *
 * With module-hidden=target, row i of depth k reads by_token[i+k]. The first N rows of by_token [N+K,D] are the
 * target's hidden states, and row N+k is the output of row N-1 of depth k. */
static int draft_vanilla(struct reference_run *run, int N, int K, int32_t *tok, double *h, double *g, double *by_token,
                         double *logits, vb_error *err)
{
    size_t D = run->c->dims.d, V = run->c->dims.V;
    int rc = VB_OK, targets = ref_convention(run, MODULE_HIDDEN);
    memcpy(by_token, h, (size_t)N * D * sizeof *h);
    for (int k = 0; k < K && !rc; k++) {
        const struct reference_mtp_module *w = &run->r->mtp[k % run->c->num_nextn_predict_layers];
        ref_mtp(run, g, h, w, k, k + 1, tok + k + 1, targets ? by_token + (size_t)k * D : h, N);
        memcpy(by_token + (size_t)(N + k) * D, h + (size_t)(N - 1) * D, D * sizeof *h);
        rc = propose(run, &tok[N + k + 1], logits + (size_t)k * V, &w->head, g + (size_t)(N - 1) * D, k, err);
    }
    return rc;
}

/* mtp-eagle: module 0 makes all drafts. Rows up to N-1 read tok[i+1] and the target's hidden state h_i. For j > 0, row
 * N-1+j reads the draft d_j = tok[N+j] and the output of row N-2+j. Row N-1+j proposes tok[N+j+1]. h is [N+K,D]; the
 * caller sets its first N rows. If draft steps share positions, rows after N-1 attend to the positions that row N-1
 * chose.
 *
 * With chain-module=step, row N-1+j is a row of module j mod D. The rows of this module are rows 0..N-1, which read the
 * same as those of module 0, and the module's own rows N-1+j. */
static int draft_eagle(struct reference_run *run, int N, int K, int32_t *tok, double *h, double *g, double *next,
                       double *logits, vb_error *err)
{
    size_t D = run->c->dims.d, V = run->c->dims.V;
    int shares = ref_convention(run, MTP_SET) ? ref_convention(run, MTP_SET) == 2
                                              : run->c->index_share_for_mtp_iteration;
    int rc = VB_OK, modules = ref_convention(run, CHAIN_MODULE) ? run->c->num_nextn_predict_layers : 1;
    for (int j = 0; j < K && !rc; j++) {
        int k = j % modules, own = k ? j / modules + 1 : j / modules; /* rows after row N-1 */
        const struct reference_mtp_module *w = &run->r->mtp[k];
        size_t last = (size_t)(N - 1 + own) * D;
        run->gap.from = N + ref_convention(run, FIRST_ROW);
        run->gap.first = (k ? k : modules) - 1;
        run->gap.more = modules - 1;
        run->last_row = shares ? N - 1 + ref_convention(run, FIRST_ROW) : -1;
        ref_mtp(run, g, next, w, k, 1, tok + 1, h, N + own);
        run->last_row = -1;
        rc = propose(run, &tok[N + j + 1], logits + (size_t)j * V, &w->head, g + last, j, err);
        memcpy(h + (size_t)(N + j) * D, next + last, D * sizeof *h);
    }
    return rc;
}

int reference_draft(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int N,
                    int32_t next, enum reference_draft_method method, int K, int32_t *drafts, double *draft_logits,
                    vb_error *err)
{
    struct reference_run run;
    int rc = ref_check_tokens(r, tokens, N, err);
    if (rc || (rc = ref_check_tokens(r, &next, 1, err)))
        return rc;
    if (K < 0 || K > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "a draft of %d tokens; 0 to %d are possible", K, VB_MAX_DRAFT);
    if (!r->config.num_nextn_predict_layers)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s has no MTP modules", checkpoint_dir(r->checkpoint));
    if ((rc = ref_run_open(&run, r, options, N + K, err)))
        return rc;

    size_t D = r->config.dims.d, V = r->config.dims.V, S = (size_t)N + (size_t)K;
    double *h = vb_alloc(&r->allocator, S * D, sizeof *h), *g = vb_alloc(&r->allocator, S * D, sizeof *g);
    double *handed = vb_alloc(&r->allocator, S * D, sizeof *handed);
    double *logits = draft_logits ? draft_logits : vb_alloc(&r->allocator, (size_t)K * V, sizeof *logits);
    int32_t *tok = vb_alloc(&r->allocator, S + 1, sizeof *tok);
    if (h && g && handed && logits && tok) {
        memcpy(tok, tokens, (size_t)N * sizeof *tok);
        tok[N] = next;
        ref_target(&run, g, h, tokens, N);
        if (ref_convention(&run, MISSING_HIDDEN))
            memset(h + (size_t)(N - 1) * D, 0, D * sizeof *h);
        rc = method == REFERENCE_MTP_EAGLE ? draft_eagle(&run, N, K, tok, h, g, handed, logits, err)
                                           : draft_vanilla(&run, N, K, tok, h, g, handed, logits, err);
        if (!rc)
            memcpy(drafts, tok + N + 1, (size_t)K * sizeof *drafts);
    } else {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for a draft after %d tokens", N);
    }
    vb_free(&r->allocator, h);
    vb_free(&r->allocator, g);
    vb_free(&r->allocator, handed);
    if (logits != draft_logits)
        vb_free(&r->allocator, logits);
    vb_free(&r->allocator, tok);
    ref_run_close(&run);
    return rc;
}

int reference_modules(const struct reference *r, const struct reference_options *options, const int32_t *tokens, int S,
                      int depths, double *logits, vb_error *err)
{
    struct reference_run run;
    size_t D = r->config.dims.d, V = r->config.dims.V;
    int rc = ref_check_tokens(r, tokens, S, err);
    if (rc)
        return rc;
    if (depths < 0 || depths > VB_MAX_DRAFT || (depths && !r->config.num_nextn_predict_layers))
        return vb_fail(err, VB_BAD_ARGUMENT, "%d MTP depths, wanted 0 to %d", depths,
                       r->config.num_nextn_predict_layers ? VB_MAX_DRAFT : 0);
    if ((rc = ref_run_open(&run, r, options, S, err)))
        return rc;
    double *h = vb_alloc(&r->allocator, (size_t)S * D, sizeof *h),
           *row = vb_alloc(&r->allocator, (size_t)S * V, sizeof *row);
    double *g = vb_alloc(&r->allocator, (size_t)S * D, sizeof *g),
           *next = vb_alloc(&r->allocator, (size_t)S * D, sizeof *next);
    if (h && g && row && next) {
        int by_token = ref_convention(&run, MODULE_HIDDEN); /* then all depths read the target's hidden states */
        ref_target(&run, g, h, tokens, S);
        ref_head(&run, row, &r->head, g, S);
        for (int k = 0; k < depths && S - k - 1 > 0; k++) {
            const struct reference_mtp_module *w = &r->mtp[k % r->config.num_nextn_predict_layers];
            ref_mtp(&run, g, by_token ? next : h, w, k, k + 1, tokens + k + 1, by_token ? h + (size_t)k * D : h,
                    S - k - 1);
            ref_head(&run, logits ? logits + (size_t)k * S * V : row, &w->head, g, S - k - 1);
        }
    } else {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for the modules' rows of %d tokens", S);
    }
    vb_free(&r->allocator, h);
    vb_free(&r->allocator, g);
    vb_free(&r->allocator, next);
    vb_free(&r->allocator, row);
    ref_run_close(&run);
    return rc;
}

/* -- decoding ----------------------------------------------------------------------------------------------------- */

int reference_generate(const struct reference *r, const struct reference_options *options, const int32_t *prompt, int S,
                       int count, int32_t *out, vb_error *err)
{
    struct reference_run run;
    int rc = ref_check_tokens(r, prompt, S, err);
    if (rc)
        return rc;
    if (count < 0 || count > INT_MAX - S)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d tokens are wanted after %d", count, S);
    if ((rc = ref_run_open(&run, r, options, S + count, err)))
        return rc;

    size_t D = r->config.dims.d, V = r->config.dims.V, end = (size_t)S + (size_t)count;
    double *hidden = vb_alloc(&r->allocator, end * D, sizeof *hidden);
    double *logits = vb_alloc(&r->allocator, V, sizeof *logits);
    int32_t *tok = vb_alloc(&r->allocator, end, sizeof *tok);
    if (hidden && logits && tok) {
        memcpy(tok, prompt, (size_t)S * sizeof *tok);
        for (int n = S; n < S + count && !rc; n++) {
            ref_target(&run, hidden, NULL, tok, n);
            ref_head(&run, logits, &r->head, hidden + (size_t)(n - 1) * D, 1);
            if ((tok[n] = ref_argmax(logits, (int)V)) < 0)
                rc = vb_fail(err, VB_NOT_FINITE, "the logits that choose token %d have a value that is not finite", n);
        }
        if (!rc)
            memcpy(out, tok + S, (size_t)count * sizeof *out);
    } else {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory to continue %d tokens by %d", S, count);
    }
    vb_free(&r->allocator, hidden);
    vb_free(&r->allocator, logits);
    vb_free(&r->allocator, tok);
    ref_run_close(&run);
    return rc;
}
