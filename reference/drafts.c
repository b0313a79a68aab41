/* reference/drafts.c -- drafts with MTP modules, and autoregressive decoding. All rows are computed again for each
 * token. */
#include "reference/layers.h"

#include <limits.h>
#include <math.h>
#include <string.h>

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

/* -- drafts -------------------------------------------------------------------------------------------------------- */

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
        ref_target_features(&run, g, h, tokens, N);
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

/* -- decoding ------------------------------------------------------------------------------------------------------ */

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
            ref_target(&run, hidden, tok, n);
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
