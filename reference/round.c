/* reference/round.c -- what linear layers make of their weights and of what they read, in the precisions that round.
 *
 * A quantised matrix is one of a GGUF file, in any precision, or one that precision q8 or q4 makes of another: where the sum's
 * length is a multiple of 32, by groups of 32 along it. Its x is rounded to groups of 32 as well. Sums of products of integers
 * and scales are then exact but for double's own error, so that nothing of their order or grouping is left to say:
 *
 *     sum over groups of  sw sx sum(q_w q_x) - mw sx sum(q_x)  =  sum_k w[k] x[k],   w = sw q_w - mw,  x = sx q_x */
#include "reference/layers.h"

#include <math.h>

#define GROUP 32

static int quantises(const struct reference_run *run)
{
    return run->options.precision == PRECISION_Q8 || run->options.precision == PRECISION_Q4;
}

/* -- x ------------------------------------------------------------------------------------------------------------ */

static enum form unquantised(const struct reference_run *run)
{
    return run->options.precision == PRECISION_BF16 && !run->options.x_as_is ? TO_BF16 : AS_IS;
}

/* of a matrix whose sums have so many terms */
static enum form form_of(const struct reference_run *run, int quantised, int length)
{
    int groups = (quantised || (quantises(run) && length % GROUP == 0)) && !run->options.x_as_is;
    return groups ? TO_GROUPS : unquantised(run);
}

enum form ref_form(const struct reference_run *run, const struct matrix *w) { return form_of(run, ref_is_quantised(w), w->cols); }

static const struct matrix *values_matrix(const struct reference_attention *w)
{
    return w->v_b_proj.tensor ? &w->v_b_proj : &w->kv_b_proj;
}

static const struct matrix *keys_matrix(const struct reference_attention *w)
{
    return w->k_b_transposed.tensor ? &w->k_b_transposed : w->k_b_proj.tensor ? &w->k_b_proj : &w->kv_b_proj;
}

enum form ref_values_form(const struct reference_run *run, const struct reference_attention *w) { return ref_form(run, values_matrix(w)); }

/* Blocks along c are of no use to a sum over n: a quantised kv_b_proj gives W_UK as numbers, which stay what they are. */
enum form ref_keys_form(const struct reference_run *run, const struct reference_attention *w)
{
    if (ref_is_quantised(keys_matrix(w)) && !w->k_b_transposed.tensor)
        return unquantised(run);
    return form_of(run, w->k_b_transposed.tensor != NULL, run->c->qk_nope_head_dim);
}

/* how far a number may be moved before it is rounded, in perturbed runs */
static double nudge(struct reference_run *run)
{
    return run->options.perturb ? ref_uniform(run) * 0x1p-18 : 0;
}

/* rounded to the nearest bf16, and then below 2^-56 to 0 */
static void round_bf16(struct reference_run *run, double *y, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = ref_to_bf16(x[i] * (1 + nudge(run)));
        y[i] = fabs(y[i]) < 0x1p-56 ? 0 : y[i];
    }
}

/* Rule 2 of simd/kernels.h: d = m / 127, m the largest |x|, and q the nearest to x (127 / m), ties to even: x becomes d q. These
 * few steps are f32, one rounding each: they say which number it is. */
static void round_group(struct reference_run *run, double *y, const double *x)
{
    float m = 0;
    int finite = 1;
    for (int i = 0; i < GROUP; i++) {
        finite &= isfinite((float)x[i]) != 0;
        m = fmaxf(m, fabsf((float)x[i]));
    }
    float d = m / 127.0f, inverse = 127.0f / m;
    for (int i = 0; i < GROUP; i++) {
        float moved = (float)(x[i] + nudge(run) * (double)m);
        y[i] = !finite ? NAN : m < 0x1p-100f ? 0 : (double)d * (double)rintf(moved * inverse);
    }
}

void ref_round_x(struct reference_run *run, enum form form, double *y, const double *x, size_t n)
{
    if (form == TO_BF16)
        round_bf16(run, y, x, n);
    for (size_t i = 0; form == TO_GROUPS && i < n; i += GROUP)
        round_group(run, y + i, x + i);
}

/* -- weights ------------------------------------------------------------------------------------------------------ */

/* The bytes that GGUF's Q8_0 and Q4_0 have for these 32 numbers of f32, read again. An inverse that f32 cannot hold is 0. */
static void round_weights_group(double *w, int q4)
{
    float largest = 0; /* with its sign, the first of them */
    int finite = 1;
    for (int i = 0; i < GROUP; i++) {
        finite &= isfinite(w[i]) != 0;
        largest = fabs(w[i]) > fabsf(largest) ? (float)w[i] : largest;
    }
    float d = q4 ? largest / -8.0f : fabsf(largest) / 127.0f;
    float inverse = d != 0 && isfinite(1.0f / d) ? 1.0f / d : 0;
    double stored = ref_to_f16(d);
    for (int i = 0; i < GROUP; i++) {
        float q = (float)w[i] * inverse;
        q = q4 ? fminf(15, truncf(q + 8.5f)) - 8 : roundf(q); /* roundf: halves away from 0 */
        w[i] = finite ? stored * (double)q : NAN;
    }
}

/* n weights along a sum as the precision has them */
static void round_weights(const struct reference_run *run, double *w, int n)
{
    for (int i = 0; run->options.precision == PRECISION_BF16 && i < n; i++)
        w[i] = ref_to_bf16(w[i]);
    for (int i = 0; quantises(run) && n % GROUP == 0 && i < n; i += GROUP)
        round_weights_group(w + i, run->options.precision == PRECISION_Q4);
}

static void matrix_row(const struct reference_run *run, const struct matrix *w, int i, double *out)
{
    if (ref_is_quantised(w)) {
        ref_quantised_row(w, i, out);
        return;
    }
    ref_row(w, i, out);
    round_weights(run, out, w->cols);
}

void ref_weights(struct reference_run *run, const struct matrix *w, int i) { matrix_row(run, w, i, run->row); }

void ref_values(struct reference_run *run, const struct reference_attention *w, int h)
{
    const struct matrix *m = values_matrix(w);
    int N = run->c->qk_nope_head_dim, V = run->c->v_head_dim, C = run->c->kv_lora_rank;
    int first = m == &w->kv_b_proj ? h * (N + V) + N : h * V;
    for (int v = 0; v < V; v++)
        matrix_row(run, m, first + v, run->w_uv + (size_t)v * (size_t)C);
}

/* column c of run->w_uk, to and from run->row */
static void take_column(struct reference_run *run, int c)
{
    for (int n = 0; n < run->c->qk_nope_head_dim; n++)
        run->row[n] = run->w_uk[(size_t)n * run->c->dims.c + (size_t)c];
}

static void put_column(struct reference_run *run, int c)
{
    for (int n = 0; n < run->c->qk_nope_head_dim; n++)
        run->w_uk[(size_t)n * run->c->dims.c + (size_t)c] = run->row[n];
}

/* The sum is over n, so weights are rounded along n: down the columns. */
void ref_keys(struct reference_run *run, const struct reference_attention *w, int h)
{
    const struct matrix *m = keys_matrix(w);
    int N = run->c->qk_nope_head_dim, V = run->c->v_head_dim, C = run->c->kv_lora_rank;
    int first = m == &w->kv_b_proj ? h * (N + V) : h * N;
    for (int n = 0; n < N && m != &w->k_b_transposed; n++)
        ref_row(m, first + n, run->w_uk + (size_t)n * (size_t)C);
    for (int c = 0; c < C; c++) {
        if (m == &w->k_b_transposed) {
            matrix_row(run, m, h * C + c, run->row);
        } else {
            take_column(run, c);
            if (!ref_is_quantised(m))
                round_weights(run, run->row, N);
        }
        put_column(run, c);
    }
}
