/* reference/model.c -- the model: the target (DeepSeek-V3 report, section 2.1) and its MTP modules (section 2.2).
 *
 * layers.c has the decoder layer, attention.c and moe.c its two halves (2.1.1, 2.1.2), drafts.c what is drafted with
 * MTP modules, and run.c the calls of reference.h and their memory. Equation numbers are those of the report. */
#include "reference/layers.h"

#include <string.h>

/* hidden = RMSNorm(x), where x = Emb(tok) has passed all layers. hidden [S,D] is x before. */
void ref_target(struct reference_run *run, double *hidden, const int32_t *tok, int S)
{
    const struct reference *r = run->r;
    ref_rope_tables(run, 0, S);
    ref_embed(run, hidden, &r->embed, tok, S);
    for (run->layer = 0; run->layer < run->c->num_hidden_layers; run->layer++) {
        ref_stream(run, hidden, S);
        ref_decoder_layer(run, &r->layers[run->layer], hidden, S);
    }
    ref_stream(run, hidden, S);
    run->layer = -1;
    ref_norm(run, "norm", hidden, &r->norm, hidden, S, run->c->rms_norm_eps);
}

/* logits = W_head hidden */
void ref_head(struct reference_run *run, double *logits, const struct matrix *w, const double *hidden, int S)
{
    ref_linear(run, "logits", logits, w, hidden, S);
}

/* MTP module k on rows 0..S-1. Row i reads tok_i = tok[i+k+1], the last token that it may depend on.
 *     x_i = eh_proj [ RMSNorm_e(Emb(tok_i)) ; RMSNorm_h(h_i) ]              equation 21; the report has h_i first
 *     g   = RMSNorm_shared_head(decoder_layer(x))                           equation 22; W_head g: equation 23
 * h, g and next are [S,D]. `next` is what the next depth reads: g, or decoder_layer(x) with draft-hidden=pre-norm. It
 * may be h. With first-row=phantom there is one row more, before the others, which has no g. */
void ref_mtp(struct reference_run *run, double *g, double *next, const struct reference_mtp_module *w, int depth,
             int ahead, const int32_t *tok, const double *h, int S)
{
    int rows = ref_mtp_rows(run, w, depth, ahead, tok, h, S);
    size_t d = run->c->dims.d;
    double eps = run->c->rms_norm_eps, *x = run->stream, *of_rows = x + (size_t)(rows - S) * d;
    ref_norm(run, "enorm", run->embed, &w->enorm, run->embed, rows, eps);
    ref_norm(run, "hnorm", run->normed, &w->hnorm, run->taken, rows, eps);
    ref_concat(run, run->embed, run->normed, rows);
    ref_linear(run, "eh_proj", x, &w->eh_proj, run->concat, rows);
    ref_decoder_layer(run, &w->layer, x, rows);
    ref_norm(run, "shared_head_norm", g, &w->norm, of_rows, S, eps);
    memcpy(next, ref_convention(run, DRAFT_HIDDEN) ? of_rows : g, (size_t)S * d * sizeof *next);
}

/* -- what the conventions say about the rows of an MTP module ------------------------------------------------------ */

/* `depth` is k, from which the hook's `layer` is computed, even if module k mod D is used. `ahead` is k + 1: row i
 * reads the token that is `ahead` tokens after token i. With first-row=phantom, row -1 has tok[k] and a hidden state of
 * zeros. */
int ref_mtp_rows(struct reference_run *run, const struct reference_mtp_module *w, int depth, int ahead,
                 const int32_t *tok, const double *h, int S)
{
    int D = run->c->hidden_size, phantom = ref_convention(run, FIRST_ROW), rows = S + phantom;
    int first = ref_convention(run, DRAFT_POSITION) ? ahead - phantom : -phantom;
    size_t d = (size_t)D, row = d * sizeof(double);
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
    return rows;
}

/* concat[i] = [e[i] ; h[i]], or with concat=hidden-embedding [h[i] ; e[i]] */
void ref_concat(struct reference_run *run, const double *e, const double *h, int S)
{
    size_t d = run->c->dims.d;
    int swapped = ref_convention(run, CONCAT);
    ref_join(run->concat, swapped ? h : e, d, swapped ? e : h, d, (size_t)S);
    ref_show(run, "concat", -1, S, 2 * run->c->hidden_size, run->concat);
}
