/* reference/operators_indexer.c -- the operators of the indexer of sparse attention. The arithmetic is that of
 * indexer.c.
 *
 * A code jumps to its neighbour if rounding moves its number over the middle between them. So the bound of codes is the
 * distance of the codes of x - e and x + e, where e bounds the rounding of x in the Hadamard transform. `slack` of a
 * score counts these distances, and the roundings of its sums in f32; engines compute scores in f32. */
#include "reference/operators_internal.h"

#include <math.h>
#include <string.h>

#define TIMES 8 /* standard deviations, as in tools/diff/local.h */

void ref_op_index_wk(struct reference_call *k) { ref_op_linear(k, &k->w->attention.indexer.wk); }
void ref_op_index_wq_b(struct reference_call *k) { ref_op_linear(k, &k->w->attention.indexer.wq_b); }

/* The mean is a sum in f32; it, the distance from it, the normalised row, its product with the weights, and weights and
 * bias that the arithmetic cannot represent may be rounded. */
void ref_op_index_norm(struct reference_call *k)
{
    const struct reference_indexer *w = &k->w->attention.indexer;
    size_t D = (size_t)w->k_norm.cols;
    memcpy(k->out, k->in[0], (size_t)k->S * D * sizeof *k->out);
    ref_index_norm(k->run, NULL, k->out, w, k->S);
    for (size_t s = 0; s < (size_t)k->S && k->slack; s++) {
        const double *x = k->in[0] + s * D;
        double sum = 0, squares = 0, variance = 0, *slack = k->slack + s * D;
        for (size_t d = 0; d < D; d++) {
            sum += x[d];
            squares += x[d] * x[d];
        }
        double mean = sum / (double)D,
               of_mean = TIMES * sqrt(ref_sum_variance(sum, squares, D)) / (double)D + 0x1p-24 * fabs(mean);
        for (size_t d = 0; d < D; d++)
            variance += (x[d] - mean) * (x[d] - mean) / (double)D;
        ref_row(&w->k_norm_bias, 0, slack);
        ref_row(&w->k_norm, 0, k->run->row);
        for (size_t d = 0; d < D; d++) {
            double bias = fabs(slack[d]), product = fabs(k->out[s * D + d] - slack[d]);
            slack[d] = fabs(k->run->row[d]) * (of_mean + 0x1p-24 * fabs(x[d] - mean)) / sqrt(variance + 1e-6) +
                       k->unit * ((2 + ref_is_finer(&w->k_norm, k->unit)) * product +
                                  ref_is_finer(&w->k_norm_bias, k->unit) * bias);
        }
    }
    k->terms = D;
}

static void rotate(struct reference_call *k, int vectors)
{
    int D = k->run->c->index_head_dim;
    memcpy(k->out, k->in[0], (size_t)k->S * (size_t)vectors * (size_t)D * sizeof *k->out);
    ref_op_rotate(k, vectors, D, ref_index_pairs(k->run));
}

void ref_op_index_rope_k(struct reference_call *k) { rotate(k, 1); }
void ref_op_index_rope_q(struct reference_call *k) { rotate(k, k->run->c->index_n_heads); }

/* With indexer-weights=bf16, a number is rounded again: the slack is the distance of the rounded ends of its range. */
static void round_slack(struct reference_call *k, size_t i, double exact)
{
    if (k->slack && ref_convention(k->run, INDEXER_WEIGHTS))
        k->slack[i] = ref_index_round(k->run, exact + k->slack[i]) - ref_index_round(k->run, exact - k->slack[i]);
}

void ref_op_index_weights_proj(struct reference_call *k)
{
    const struct matrix *w = &k->w->attention.indexer.weights_proj;
    size_t n = (size_t)k->S * (size_t)w->rows;
    const double *x = k->in[0];
    if (k->run->noisy_x) {
        memcpy(k->run->rounded, x, (size_t)k->S * (size_t)w->cols * sizeof *x);
        ref_noise(k->run, k->run->rounded, (size_t)k->S * (size_t)w->cols);
        x = k->run->rounded;
    }
    ref_index_heads(k->run, NULL, w, x, k->S);
    memcpy(k->out, k->run->index_weights, n * sizeof *k->out);
    ref_op_slack_of_sums(k, w);
    for (size_t i = 0; i < n; i++)
        round_slack(k, i, k->out[i]);
}

/* --- codes --- */

/* Transforms `count` vectors x, rounds them to codes, and sets scale [count] (NULL: not wanted). moves [count, D]: how
 * far rounding moves each code; scale_moves [count] (or NULL): whether it can move the scale. */
static void encode(struct reference_call *k, double *x, double *scale, double *moves, double *scale_moves, size_t count)
{
    int n = k->run->c->index_head_dim, codes = ref_convention(k->run, INDEXER_CODES),
        transforms = codes == 0 || codes == 2;
    size_t D = (size_t)n;
    for (size_t v = 0; v < count; v++) {
        double y[128], least = 0, most = 0, squares = 0, *move = moves + v * D;
        memcpy(y, x + v * D, D * sizeof *y);
        if (transforms)
            ref_index_hadamard(y, 1, n);
        for (size_t i = 0; i < D; i++)
            squares += y[i] * y[i];
        /* Each of log2(D) steps rounds D numbers whose mean square is that of the result, and the result may be
         * stored. */
        double steps = transforms ? TIMES * 0x1p-24 * sqrt(log2((double)n) * squares / (double)n / 3) : 0;
        for (size_t i = 0; i < D; i++) {
            move[i] = transforms ? steps + (k->unit + 0x1p-24) * fabs(y[i]) : 0;
            least = fmax(least, fabs(y[i]) - move[i]);
            most = fmax(most, fabs(y[i]) + move[i]);
        }
        double scales[2] = {ref_code_scale(least), ref_code_scale(most)};
        for (size_t i = 0; i < D && codes <= 1; i++) { /* the codes of both ends, with both scales */
            double low = INFINITY, high = -INFINITY;
            for (int end = 0; end < 4; end++) {
                double s = scales[end / 2], code = s * ref_to_e4m3((y[i] + (end % 2 ? move[i] : -move[i])) / s);
                low = fmin(low, code);
                high = fmax(high, code);
            }
            move[i] = high - low;
        }
        if (scale_moves)
            scale_moves[v] = codes <= 1 && scales[0] != scales[1];
    }
    ref_index_encode(k->run, x, scale, count, n);
}

/* Three products are rounded. Another scale doubles or halves a weight. */
void ref_op_index_weights(struct reference_call *k)
{
    struct reference_run *run = k->run;
    size_t H = run->c->dims.index_heads, n = (size_t)k->S * H;
    double moves = 0;
    memcpy(run->index_q, k->in[1], n * run->c->dims.index_dim * sizeof *run->index_q);
    for (size_t i = 0; i < n; i++) {
        double x = k->in[0][i] / sqrt((double)H), other[128];
        encode(k, run->index_q + i * run->c->dims.index_dim, &run->index_scales[i], other, &moves, 1);
        if (k->slack)
            k->slack[i] = 0x1p-23 * fabs(x);
        round_slack(k, i, x);
        double factor = run->index_scales[i] / sqrt((double)run->c->dims.index_dim);
        k->out[i] = ref_index_round(run, x) * factor;
        if (k->slack)
            k->slack[i] = k->slack[i] * factor + (2 * k->unit + moves) * fabs(k->out[i]);
    }
}

/* --- scores --- */

/* How far the codes of q and k, and a sum in f32, move their dot product: at most the sum of all terms, and 8 standard
 * deviations. */
static double move_of_dot(const double *q, const double *q_moves, const double *key, const double *key_moves, size_t D)
{
    double dot = 0, sum = 0, squares = 0, products = 0;
    for (size_t i = 0; i < D; i++) {
        double move = q_moves[i] * (fabs(key[i]) + key_moves[i]) + fabs(q[i]) * key_moves[i];
        sum += move;
        squares += move * move;
        dot += q[i] * key[i];
        products += q[i] * key[i] * q[i] * key[i];
    }
    return fmin(sum, TIMES * sqrt(squares)) + TIMES * sqrt(ref_sum_variance(dot, products, D));
}

/* The slack of the score of token t: each head moves by its dot product after relu, and its product with the weight is
 * rounded. With another scale of its query, a head may be twice or half as large. */
static double slack_of_score(struct reference_call *k, const double *q_moves, const double *k_moves,
                             const double *scale_moves, size_t s, size_t t)
{
    const struct reference_run *run = k->run;
    size_t H = run->c->dims.index_heads, D = run->c->dims.index_dim;
    double slack = 0, sum = 0, squares = 0;
    for (size_t h = s * H; h < (s + 1) * H; h++) {
        const double *q = run->index_q + h * D, *key = run->index_k + t * D;
        double move = move_of_dot(q, q_moves + h * D, key, k_moves + t * D, D), dot = ref_dot(q, key, (int)D);
        double weight = run->index_weights[h] / run->index_scales[h], term = weight * fmax(dot, 0);
        double up = fmax(dot + move, 0) - fmax(dot, 0), down = fmax(dot, 0) - fmax(dot - move, 0);
        slack += fabs(weight) * fmax(up, down) + (0x1p-23 + scale_moves[h]) * fabs(term);
        sum += term;
        squares += term * term;
    }
    return slack + TIMES * sqrt(ref_sum_variance(sum, squares, H)) + 0x1p-24 * fabs(sum);
}

void ref_op_index_scores(struct reference_call *k)
{
    struct reference_run *run = k->run;
    size_t S = (size_t)k->S, H = run->c->dims.index_heads, D = run->c->dims.index_dim;
    memcpy(run->index_q, k->in[0], S * H * D * sizeof *run->index_q);
    memcpy(run->index_weights, k->in[1], S * H * sizeof *run->index_weights);
    memcpy(run->index_k, k->in[2], S * D * sizeof *run->index_k);
    encode(k, run->index_q, run->index_scales, run->index_moves, run->index_scale_moves, S * H);
    encode(k, run->index_k, NULL, run->index_moves + S * H * D, NULL, S);
    ref_index_scores(run, NULL, k->S);
    memcpy(k->out, run->index_scores, S * S * sizeof *k->out);
    for (size_t i = 0; i < S * S && k->slack; i++)
        k->slack[i] = i % S <= i / S ? slack_of_score(k, run->index_moves, run->index_moves + S * H * D,
                                                      run->index_scale_moves, i / S, i % S)
                                     : 0;
}

/* The kept positions, ascending, and then -1. */
void ref_op_index_kept(struct reference_call *k)
{
    size_t wide = k->in_width[0], most = k->run->c->dims.index_topk;
    for (int s = 0; s < k->S; s++) {
        double *out = k->out + (size_t)s * most;
        size_t n = 0;
        ref_index_choose(k->run, k->run->kept, k->in[0] + (size_t)s * wide, s);
        for (int t = 0; t <= s; t++)
            if (k->run->kept[t])
                out[n++] = t;
        while (n < most)
            out[n++] = -1;
    }
}
