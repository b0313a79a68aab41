/* reference/indexer.c -- DeepSeek sparse attention: the indexer, which chooses the positions that a query attends to.
 *
 * The formulas are those of DeepSeek-V3.2-Exp (technical report, section 2.1, and its inference/model.py and
 * kernel.py). In this file, H and D are the number of heads of the indexer and the numbers per head (index_n_heads,
 * index_head_dim). */
#include "reference/layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* x[s] = (x[s] - mean) / sqrt(variance + 1e-6) * w + bias over D numbers; the variance is the mean square of x -
 * mean */
void ref_index_norm(struct reference_run *run, const char *name, double *y, const struct reference_indexer *w, int S)
{
    int D = w->k_norm.cols;
    double *x = y;
    for (int s = 0; s < S; s++, x += D) {
        double sum = 0, squares = 0;
        for (int d = 0; d < D; d++)
            sum += x[d];
        for (int d = 0; d < D; d++)
            squares += (x[d] - sum / D) * (x[d] - sum / D);
        double r = 1 / sqrt(squares / D + 1e-6);
        ref_row(&w->k_norm, 0, run->row);
        for (int d = 0; d < D; d++)
            x[d] = (x[d] - sum / D) * r * run->row[d];
        ref_row(&w->k_norm_bias, 0, run->row);
        for (int d = 0; d < D; d++)
            x[d] += run->row[d];
    }
    ref_value(run, name, -1, S, D, y);
}

/* x[i] = D^-1/2 sum_j (-1)^(number of bits that are set in both i and j) x[j], for each of `count` vectors: one step
 * for each bit */
void ref_index_hadamard(double *x, size_t count, int D)
{
    for (; count-- > 0; x += D) {
        for (int bit = 1; bit < D; bit *= 2)
            for (int i = 0; i < D; i++)
                if (!(i & bit)) {
                    double sum = x[i] + x[i | bit];
                    x[i | bit] = x[i] - x[i | bit];
                    x[i] = sum;
                }
        for (int i = 0; i < D; i++)
            x[i] /= sqrt(D);
    }
}

/* Transforms `count` vectors x and rounds them to codes, as indexer-codes says. scale [count] or NULL: the scales of
 * the codes; 1 without codes. */
void ref_index_encode(struct reference_run *run, double *x, double *scale, size_t count, int D)
{
    int codes = ref_convention(run, INDEXER_CODES); /* 0: hadamard-fp8, 1: fp8, 2: hadamard, 3: none */
    if (codes == 0 || codes == 2)
        ref_index_hadamard(x, count, D);
    for (size_t i = 0; i < count; i++) {
        double s = codes <= 1 ? ref_round_codes(run, x + i * (size_t)D, D) : 1;
        if (scale)
            scale[i] = s;
    }
}

double ref_index_round(const struct reference_run *run, double x)
{
    return ref_convention(run, INDEXER_WEIGHTS) ? ref_to_bf16(x) : x;
}

/* weights[s,h] = weights_proj(x[s])_h. With indexer-weights=bf16, x, W and the result are rounded to BF16. */
void ref_index_heads(struct reference_run *run, const char *name, const struct matrix *w, const double *x, int S)
{
    ref_product_exact(run, run->index_weights, w, x, S, ref_convention(run, INDEXER_WEIGHTS));
    ref_value(run, name, -1, S, w->rows, run->index_weights);
}

/* scores[s,t] = sum_h weights[s,h] max(q[s,h] . k[t] / scale[s,h], 0), t <= s. The weights include the scale of the
 * codes of q, which is a power of two. */
void ref_index_scores(struct reference_run *run, const char *name, int S)
{
    size_t H = run->c->dims.index_heads, D = run->c->dims.index_dim;
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t t = 0; t < (size_t)S; t++) {
            double sum = t > s ? -INFINITY : 0;
            for (size_t h = 0; h < H && t <= s; h++) {
                double dot = ref_dot(run->index_q + (s * H + h) * D, run->index_k + t * D, (int)D) /
                             run->index_scales[s * H + h];
                sum += run->index_weights[s * H + h] * (dot < 0 ? 0 : dot); /* NaN stays NaN */
            }
            run->index_scores[s * (size_t)S + t] = sum;
        }
    ref_value(run, name, -1, S, S, run->index_scores);
}

/* The best candidate first; NaN is worse than every number. */
static int compare(const void *left, const void *right)
{
    const struct place_score *a = left, *b = right;
    if (isnan(a->score) != isnan(b->score))
        return isnan(a->score) ? 1 : -1;
    if (a->score != b->score && !isnan(a->score))
        return a->score > b->score ? -1 : 1;
    return (a->place > b->place ? 1 : -1) * (a->highest ? -1 : 1);
}

/* Sets kept[t], t <= s, to 1 for the index_topk places with the best scores, and to 0 for the others. */
void ref_index_choose(struct reference_run *run, char *kept, const double *scores, int s)
{
    struct place_score *c = run->candidates;
    for (int t = 0; t <= s; t++)
        c[t] = (struct place_score){ref_convention(run, INDEXER_SCORES) ? ref_to_bf16(scores[t]) : scores[t], t,
                                  ref_convention(run, INDEXER_TIES)};
    qsort(c, (size_t)s + 1, sizeof *c, compare);
    for (int i = 0; i <= s; i++)
        kept[c[i].place] = i < run->c->index_topk;
}

/* Replaces the chosen places of row s by options.sets, if it has some for this row and layer. */
static void force(const struct reference_run *run, char *kept, int s)
{
    const struct reference_options *o = &run->options;
    int topk = run->c->index_topk,
        phantom = run->layer < run->c->num_hidden_layers ? 0 : ref_convention(run, FIRST_ROW);
    int token = s - phantom; /* with first-row=phantom, row 0 belongs to no token */
    if (!o->sets || token < 0 || token >= o->set_tokens || run->layer >= o->set_layers)
        return;
    const int32_t *forced = o->sets + ((size_t)token * (size_t)o->set_layers + (size_t)run->layer) * (size_t)topk;
    if (forced[0] < 0)
        return;
    memset(kept, 0, (size_t)s + 1);
    for (int i = 0; i < topk && forced[i] >= 0 && forced[i] <= s; i++)
        kept[forced[i]] = 1;
}

/* Sets run->kept [S,S]. Row s below index_topk keeps all places up to its own. With shared draft steps (mtp-set), rows
 * after run->last_row keep what that row keeps. */
static void choose_all(struct reference_run *run, int S)
{
    for (int s = 0; s < S; s++) {
        char *kept = run->kept + (size_t)s * (size_t)S;
        memset(kept, 0, (size_t)S);
        if (run->last_row >= 0 && s > run->last_row && s >= run->c->index_topk)
            memcpy(kept, run->kept + (size_t)run->last_row * (size_t)S, (size_t)S);
        else
            ref_index_choose(run, kept, run->index_scores + (size_t)s * (size_t)S, s);
        force(run, kept, s);
    }
}

/* The lowest score that row s keeps, minus the highest other one. */
static double margin(const struct reference_run *run, size_t s, size_t S)
{
    double least = INFINITY, next = -INFINITY;
    for (size_t t = 0; t <= s; t++)
        if (run->kept[s * S + t])
            least = fmin(least, run->index_scores[s * S + t]);
        else
            next = fmax(next, run->index_scores[s * S + t]);
    return least - next;
}

/* The hook receives the kept places of each row in ascending order, and then -1. */
static void show_sets(struct reference_run *run, int S)
{
    int topk = run->c->index_topk < S ? run->c->index_topk : S;
    for (size_t s = 0; s < (size_t)S; s++) {
        double *set = run->index_sets + s * (size_t)topk;
        int n = 0;
        for (int t = 0; t < S && n < topk; t++)
            if (run->kept[s * (size_t)S + (size_t)t])
                set[n++] = t;
        while (n < topk)
            set[n++] = -1;
    }
    ref_show(run, "index_set", -1, S, topk, run->index_sets);
    for (int s = topk; s < S; s++) /* rows that see no more than index_topk rows have no margin */
        run->index_sets[s - topk] = margin(run, (size_t)s, (size_t)S);
    if (S > topk)
        ref_show(run, "index_margin", -1, S - topk, 1, run->index_sets);
}

int ref_index_pairs(const struct reference_run *run)
{
    return ref_convention(run, INDEXER_ROPE) ? ref_convention(run, INDEXER_ROPE) == 1 : run->c->indexer_rope_interleave;
}

static void rotate(struct reference_run *run, const char *name, double *x, int S, int vectors)
{
    ref_rotate(run, x, S, vectors, run->c->index_head_dim, ref_index_pairs(run));
    ref_value(run, name, -1, S, vectors * run->c->index_head_dim, x);
}

/* The weight of each head: weights_proj(x) H^-1/2 D^-1/2, and the scale of its query's codes */
static void scale_weights(struct reference_run *run, int S)
{
    int H = run->c->index_n_heads, D = run->c->index_head_dim;
    for (size_t i = 0; i < (size_t)S * (size_t)H; i++)
        run->index_weights[i] = ref_index_round(run, run->index_weights[i] / sqrt(H)) * run->index_scales[i] / sqrt(D);
    ref_value(run, "index_weights", -1, S, H, run->index_weights);
}

void ref_positions(struct reference_run *run, const struct reference_indexer *w, const double *x,
                   const double *q_latent, int S)
{
    int H = run->c->index_n_heads, D = run->c->index_head_dim, is_mtp = run->layer >= run->c->num_hidden_layers;
    run->sparse = run->c->index_topk && !(is_mtp && ref_convention(run, MTP_INDEXER));
    if (!run->sparse || config_layer_is_shared(run->c, run->layer))
        return;
    ref_linear(run, "index_wk", run->index_k, &w->wk, x, S);
    ref_index_norm(run, "index_k_norm", run->index_k, w, S);
    rotate(run, "index_k", run->index_k, S, 1);
    ref_index_encode(run, run->index_k, NULL, (size_t)S, D);

    ref_linear(run, "index_wq_b", run->index_q, &w->wq_b, q_latent, S);
    ref_index_heads(run, "index_weights_proj", &w->weights_proj, x, S);
    rotate(run, "index_q", run->index_q, S, H);
    ref_index_encode(run, run->index_q, run->index_scales, (size_t)S * (size_t)H, D);
    scale_weights(run, S);

    ref_index_scores(run, "index_scores", S);
    choose_all(run, S);
    show_sets(run, S);
}
