/* reference/run.c -- the memory of one computation, and the calls that compute the target and its MTP modules
 * (reference.h). */
#include "reference/layers.h"

#include <string.h>

/* -- memory -------------------------------------------------------------------------------------------------------- */

size_t ref_carve(const struct ref_part *part, size_t parts, double *next)
{
    size_t total = 0;
    for (size_t i = 0; i < parts; total += part[i++].count)
        if (next)
            *part[i].at = next + total;
    return total;
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

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
    struct ref_part part[] = {
        {&run->row, widest}, {&run->rounded, s * widest}, {&run->w_uk, N * C}, {&run->w_uv, V * C},
        {&run->cosine, s * R / 2}, {&run->sine, s * R / 2}, {&run->query_scale, s}, {&run->normed, s * D},
        {&run->delta, s * D}, {&run->q_a, s * Q}, {&run->q, s * H * (N + R)}, {&run->q_nope, s * H * N},
        {&run->q_rope, s * H * R}, {&run->kv_a, s * (C + R)}, {&run->latent, s * C}, {&run->k_rope, s * R},
        {&run->kv, s * H * (N + V)}, {&run->k_nope, s * H * N}, {&run->v, s * H * V}, {&run->scores, s * s},
        {&run->mixed, s * C}, {&run->heads, s * H * V}, {&run->gate, s * W}, {&run->up, s * W}, {&run->router, s * E},
        {&run->choice, s * E}, {&run->groups, s * G}, {&run->experts, s * X}, {&run->weights, s * X},
        {&run->expert_in, s * D}, {&run->expert_out, s * D}, {&run->routed, s * X * D}, {&run->index_q, s * HI * DI},
        {&run->index_k, s * DI}, {&run->index_weights, s * HI}, {&run->index_scales, s * HI},
        {&run->index_moves, s * (HI + 1) * DI}, {&run->index_scale_moves, s * HI},
        {&run->index_scores, s * s * sparse}, {&run->index_sets, s * max(c->dims.index_topk, sparse)},
        {&run->embed, s * D}, {&run->concat, s * 2 * D}, {&run->taken, s * D}, {&run->stream, s * D},
    };
    size_t parts = sizeof part / sizeof *part, total = ref_carve(part, parts, NULL);

    *run = (struct reference_run){.r = r, .c = c, .layer = -1, .expert = -1, .last_row = -1};
    if (options)
        run->options = *options;
    int context = run->options.context ? run->options.context : S;
    run->random = run->options.perturb;
    run->stretched = c->rope_yarn &&
                     !(ref_convention(run, YARN) && context <= c->rope_original_max_position_embeddings);
    size_t candidates = sparse * s * sizeof *run->candidates / sizeof(double), bytes = max(E, G) + sparse * s * s;
    double *next = run->memory = vb_alloc(&r->allocator, total + candidates + bytes / sizeof(double) + 1,
                                          sizeof(double));
    if (!next)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the intermediate values of %d tokens", S);
    next += ref_carve(part, parts, next);
    run->candidates = (struct place_score *)next;
    run->chosen = (char *)(next + candidates);
    run->kept = run->chosen + max(E, G);
    return VB_OK;
}

void ref_run_close(struct reference_run *run) { vb_free(&run->r->allocator, run->memory); }

/* -- calls --------------------------------------------------------------------------------------------------------- */

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

void ref_keep(void *context, int layer, const double *x, int S)
{
    const struct ref_kept *k = context;
    if (layer == k->layer)
        memcpy(k->to, x, (size_t)S * k->width * sizeof *x);
}

void ref_target_features(struct reference_run *run, double *hidden, double *features, const int32_t *tok, int S)
{
    struct ref_kept last = {features, run->c->num_hidden_layers, run->c->dims.d};
    run->watch = ref_convention(run, MAIN_HIDDEN) ? ref_keep : NULL;
    run->watch_context = &last;
    ref_target(run, hidden, tok, S);
    run->watch = NULL;
    if (!ref_convention(run, MAIN_HIDDEN))
        memcpy(features, hidden, (size_t)S * run->c->dims.d * sizeof *hidden);
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
        ref_target(&run, h, tokens, S);
        if (logits)
            ref_head(&run, logits, &r->head, h, S);
    }
    if (h != hidden)
        vb_free(&r->allocator, h);
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
        ref_target_features(&run, g, h, tokens, S);
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

