/* reference/eagle_run.c -- the memory of a computation with an EAGLE head, and drafts with it. */
#include "reference/eagle_layers.h"

#include <string.h>

int ref_eagle_run_open(struct ref_eagle_run *r, const struct reference_eagle *e,
                       const struct reference_options *options, struct reference_gradients *gradients, int S,
                       vb_error *err)
{
    const struct config *c = &e->own->config;
    size_t s = (size_t)S, d = c->dims.d, H = c->dims.H, G = (size_t)e->groups, D = (size_t)e->dim, W = c->dims.dense,
           largest = 0, widest = 0;
    size_t in = e->version == 3 ? 2 * d : d, three = e->feature_norms[0].tensor ? (size_t)e->fc.cols : 0;
    const struct matrix *each[] = {&e->fc, &e->o_proj, &e->mlp.down_proj, &e->q_proj};
    *r = (struct ref_eagle_run){.e = e};
    struct reference_back *b = &r->back;
    struct reference_run *run = &b->run;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        widest = (size_t)each[i]->cols > widest ? (size_t)each[i]->cols : widest;
    for (size_t i = 0; gradients && i < gradients->count; i++) {
        size_t numbers = (size_t)gradients->of[i].rows * (size_t)gradients->of[i].cols;
        largest = numbers > largest ? numbers : largest;
    }
    struct ref_part values[] = {
        {&run->row, widest}, {&run->cosine, s * D / 2}, {&run->sine, s * D / 2}, {&run->query_scale, s},
        {&run->normed, s * d}, {&run->delta, s * d}, {&run->embed, s * d}, {&run->concat, 2 * s * d},
        {&run->scores, s * s}, {&run->heads, s * H * D}, {&run->gate, s * W}, {&run->up, s * W},
        {&r->features, three * s}, {&r->x, s * d}, {&r->middle, s * d}, {&r->input, s * in}, {&r->rows.q, s * H * D},
        {&r->rows.k, s * G * D}, {&r->rows.v, s * G * D},
    };
    struct ref_part backward[] = {
        {&b->w, largest}, {&b->normed, s * d}, {&b->dnormed, s * d}, {&b->product, s * W}, {&b->dgate, s * W},
        {&b->dup, s * W}, {&b->dproduct, s * W}, {&b->dheads, s * H * D}, {&b->dp, s * s},
        {&b->dscores_of_head, s * s}, {&r->drows.q, s * H * D}, {&r->drows.k, s * G * D}, {&r->drows.v, s * G * D},
        {&r->dx, s * d}, {&r->dinput, s * in}, {&r->dconcat, 2 * s * d}, {&r->dembed, s * d}, {&r->dfeatures, three},
    };
    size_t n = sizeof values / sizeof *values, m = gradients ? sizeof backward / sizeof *backward : 0,
           total = ref_carve(values, n, NULL);
    int rc = ref_run_open(&r->target, e->target, options, S, err);
    if (rc)
        return rc;
    *run = (struct reference_run){.r = e->own, .c = c, .options = r->target.options, .random = r->target.random,
                                  .stretched = c->rope_yarn, .expert = -1, .last_row = -1,
                                  .layer = e->target->config.num_hidden_layers};
    run->options.precision = PRECISION_F32;
    run->options.conventions = (struct conventions){0}; /* they are about the target */
    b->gradients = gradients;
    r->rows.H = r->drows.H = (int)H;
    r->rows.G = r->drows.G = (int)G;
    r->rows.D = r->drows.D = (int)D;
    r->memory = vb_alloc(&e->own->allocator, total + ref_carve(backward, m, NULL), sizeof(double));
    if (!r->memory) {
        ref_run_close(&r->target);
        return vb_fail(err, VB_NO_MEMORY, "no memory for the intermediate values of %d tokens", S);
    }
    ref_carve(values, n, r->memory);
    ref_carve(backward, m, (double *)r->memory + total);
    return VB_OK;
}

void ref_eagle_run_close(struct ref_eagle_run *r)
{
    vb_free(&r->e->own->allocator, r->memory);
    ref_run_close(&r->target);
}

/* -- drafts -------------------------------------------------------------------------------------------------------- */

/* Row N-1+j, which has been computed last, proposes draft j, and hands on to the next row, whose hidden state h is. */
static int propose(const struct reference_eagle *e, int32_t *tok, double *h, const double *handed, const double *z,
                   int N, int j, vb_error *err)
{
    size_t d = e->own->config.dims.d, row = (size_t)(N + j);
    int id = ref_argmax(z, e->vocab);
    if (id < 0)
        return vb_fail(err, VB_NOT_FINITE, "the logits of draft %d have a value that is not finite", j + 1);
    tok[row] = reference_eagle_token(e, id);
    memcpy(h + row * d, handed + (row - 1) * d, d * sizeof *h);
    return VB_OK;
}

int reference_eagle_draft(const struct reference_eagle *e, const struct reference_options *options, const double *rows,
                          const int32_t *tokens, int N, int K, int32_t *drafts, double *hidden, double *logits,
                          vb_error *err)
{
    struct ref_eagle_run r;
    const vb_allocator *a = &e->own->allocator;
    int rc = ref_check_tokens(e->target, tokens, N, err), S = N + K;
    if (rc || (rc = ref_eagle_run_open(&r, e, options, NULL, S, err)))
        return rc;
    size_t d = e->own->config.dims.d, V = (size_t)e->vocab, all = (size_t)S;
    double *h = vb_alloc(a, all * d, sizeof *h), *y = vb_alloc(a, all * d, sizeof *y),
           *g = vb_alloc(a, all * d, sizeof *g);
    double *z = vb_alloc(a, all * V, sizeof *z);
    int32_t *tok = vb_alloc(a, all, sizeof *tok);
    if (h && y && g && z && tok) {
        memcpy(tok, tokens, (size_t)N * sizeof *tok);
        ref_eagle_first(&r, h, rows, N);
        for (int j = 0; j <= K && !rc; j++) { /* computes all rows again */
            size_t first = j ? (size_t)(N + j - 1) : 0, last = (size_t)(N + j - 1);
            ref_eagle_layer(&r, y, g, tok, h, N + j);
            ref_eagle_logits(&r, z + first * V, g + first * d, j ? 1 : N);
            rc = j < K ? propose(e, tok, h, ref_eagle_handed(e, y, g), z + last * V, N, j, err) : VB_OK;
        }
        if (!rc && drafts)
            memcpy(drafts, tok + N, (size_t)K * sizeof *drafts);
        if (!rc && hidden)
            memcpy(hidden, ref_eagle_handed(e, y, g), all * d * sizeof *hidden);
        if (!rc && logits)
            memcpy(logits, z, all * V * sizeof *logits);
    } else {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for drafts after %d tokens", N);
    }
    vb_free(a, h);
    vb_free(a, y);
    vb_free(a, g);
    vb_free(a, z);
    vb_free(a, tok);
    ref_eagle_run_close(&r);
    return rc;
}
