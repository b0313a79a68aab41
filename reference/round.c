/* reference/round.c -- how linear layers round or quantize their weights and their input x.
 *
 * A matrix is quantized in two cases: a GGUF file stores it quantized (in any precision), or the precision is q8 or q4
 * and the length of its sums is a multiple of 32. In the second case, weights are quantized in groups of 32 along the
 * sum. The x of a quantized matrix is quantized in groups of 32 as well. The reference multiplies the decoded numbers w
 * and x:
 *
 *     sum over groups of  sw sx sum(q_w q_x) - mw sx sum(q_x)  =  sum_k w[k] x[k],   w = sw q_w - mw,  x = sx q_x
 *
 * Both sides are equal except for the rounding errors of double. So the order and the grouping of the engine's sums do
 * not matter here. */
#include "reference/layers.h"

#include <math.h>
#include <string.h>

#define GROUP 32

static int quantizes(const struct reference_run *run)
{
    return run->options.precision == PRECISION_Q8 || run->options.precision == PRECISION_Q4;
}

/* -- x ------------------------------------------------------------------------------------------------------------ */

static enum form unquantized(const struct reference_run *run)
{
    return run->options.precision == PRECISION_BF16 && !run->options.x_as_is ? TO_BF16 : AS_IS;
}

/* Returns the form of x for a matrix whose sums have `length` terms. */
static enum form form_of(const struct reference_run *run, int quantized, int length)
{
    int groups = (quantized || (quantizes(run) && length % GROUP == 0)) && !run->options.x_as_is;
    return groups ? TO_GROUPS : unquantized(run);
}

enum form ref_form(const struct reference_run *run, const struct matrix *w)
{
    return form_of(run, ref_is_quantized(w), w->cols);
}

static const struct matrix *values_matrix(const struct reference_attention *w)
{
    return w->v_b_proj.tensor ? &w->v_b_proj : &w->kv_b_proj;
}

static const struct matrix *keys_matrix(const struct reference_attention *w)
{
    return w->k_b_transposed.tensor ? &w->k_b_transposed : w->k_b_proj.tensor ? &w->k_b_proj : &w->kv_b_proj;
}

enum form ref_values_form(const struct reference_run *run, const struct reference_attention *w)
{
    return ref_form(run, values_matrix(w));
}

/* W_UK is used in sums over n. If kv_b_proj is stored quantized, its blocks lie along c, and cannot be used for sums
 * over n. W_UK is then decoded, its numbers are used as they are, and its x is not quantized. */
enum form ref_keys_form(const struct reference_run *run, const struct reference_attention *w)
{
    if (ref_is_quantized(keys_matrix(w)) && !w->k_b_transposed.tensor)
        return unquantized(run);
    return form_of(run, w->k_b_transposed.tensor != NULL, run->c->qk_nope_head_dim);
}

/* Returns a random number in [-2^-18, 2^-18) in perturbed runs, else 0. Numbers are changed by this fraction before
 * they are rounded. */
static double nudge(struct reference_run *run)
{
    return run->options.perturb ? ref_uniform(run) * 0x1p-18 : 0;
}

/* Rounds to the nearest BF16 number, and then replaces numbers smaller than 2^-56 in magnitude by 0. */
static void round_bf16(struct reference_run *run, double *y, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = ref_to_bf16(x[i] * (1 + nudge(run)));
        y[i] = fabs(y[i]) < 0x1p-56 ? 0 : y[i];
    }
}

/* Quantizes 32 numbers by rule 2 of simd/kernels.h. m is the largest |x|, d = m / 127, and q is the integer nearest to
 * x (127 / m), ties to even. x becomes d q. These few steps are computed in f32, with one rounding each, because they
 * decide which integer q is. */
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

const double *ref_x(struct reference_run *run, const struct matrix *w, const double *x, int S)
{
    size_t n = (size_t)S * (size_t)w->cols;
    enum form form = ref_form(run, w);
    int noisy = run->noise > 0 && (run->noisy_x || ref_is_finer(w, run->noise));
    if (form == AS_IS && !noisy)
        return x;
    if (form == AS_IS)
        memcpy(run->rounded, x, n * sizeof *x);
    ref_round_x(run, form, run->rounded, x, n);
    if (form == AS_IS)
        ref_noise(run, run->rounded, n);
    return run->rounded;
}

/* With convention gate=bf16, the router's input, matrix, logits, scores and weights are rounded to BF16. */
void ref_round_gate(const struct reference_run *run, double *x, int n)
{
    for (int i = 0; i < n && ref_convention(run, GATE); i++)
        x[i] = ref_to_bf16(x[i]);
}

void ref_product_exact(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S, int bf16)
{
    size_t rows = (size_t)w->rows, cols = (size_t)w->cols;
    for (size_t i = 0; i < rows; i++) {
        ref_row(w, (int)i, run->row);
        for (size_t s = 0; s < (size_t)S; s++) {
            double sum = 0;
            for (size_t j = 0; j < cols; j++)
                sum += bf16 ? ref_to_bf16(run->row[j]) * ref_to_bf16(x[s * cols + j]) : run->row[j] * x[s * cols + j];
            y[s * rows + i] = bf16 ? ref_to_bf16(sum) : sum;
        }
    }
}

/* The smallest power of two that is not below a / 448, where a is at least 1e-4 and the product a (1/448) is computed
 * in f32. */
double ref_code_scale(double a)
{
    int exponent;
    float fraction = frexpf(fmaxf((float)a, 1e-4f) * (1 / 448.0f), &exponent); /* in [1/2, 1) */
    return ldexp(1, fraction == 0.5f ? exponent - 1 : exponent);
}

/* a is the largest |x|. x becomes scale e4m3(x / scale). */
double ref_round_codes(struct reference_run *run, double *x, int n)
{
    float a = 1e-4f;
    int finite = 1;
    for (int i = 0; i < n; i++) {
        finite &= isfinite((float)x[i]) != 0;
        a = fmaxf(a, fabsf((float)x[i]));
    }
    double scale = finite ? ref_code_scale(a) : NAN;
    for (int i = 0; i < n; i++)
        x[i] = scale * ref_to_e4m3((x[i] + (run->options.x_as_is ? 0 : nudge(run)) * (double)a) / scale);
    return scale;
}

/* With latent-cache=fp8, rounds `rows` latents x [rows, C] to codes with a scale for each 128 numbers. */
static void round_latents(struct reference_run *run, double *x, size_t rows)
{
    size_t C = run->c->dims.c;
    for (size_t i = 0, n; i < rows * C && run->c->index_topk && ref_convention(run, LATENT_CACHE); i += n) {
        n = C - i % C < 128 ? C - i % C : 128;
        ref_round_codes(run, x + i, (int)n);
    }
}

static void round_row(struct reference_run *run, double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = ref_to_bf16(x[i] * (1 + nudge(run)));
}

void ref_round_cache(struct reference_run *run, int S)
{
    round_latents(run, run->latent, (size_t)S);
    if (run->options.x_as_is || run->options.cache_type == CACHE_TYPE_F32)
        return;
    if (run->options.cache_type == CACHE_TYPE_Q8)
        ref_round_x(run, TO_GROUPS, run->latent, run->latent, (size_t)S * run->c->dims.c);
    else
        round_row(run, run->latent, (size_t)S * run->c->dims.c);
    round_row(run, run->k_rope, (size_t)S * run->c->dims.r);
}

/* Each of `count` numbers gets the step of a group: its largest magnitude divided by 127. */
static void add_steps(double *slack, const double *x, size_t count)
{
    for (size_t g = 0; g < count; g += GROUP) {
        double largest = 0;
        for (size_t i = 0; i < GROUP; i++)
            largest = fmax(largest, fabs(x[g + i]));
        for (size_t i = 0; i < GROUP; i++)
            slack[g + i] += largest / 127;
    }
}

void ref_round_cached(struct reference_run *run, double *x, double *slack, size_t n, int is_latent)
{
    int is_q8 = is_latent && run->options.cache_type == CACHE_TYPE_Q8;
    if (is_q8)
        ref_round_x(run, TO_GROUPS, x, x, n);
    if (is_q8 && slack)
        add_steps(slack, x, n);
    for (size_t i = 0; i < n && !is_q8 && run->options.cache_type != CACHE_TYPE_F32; i++) {
        x[i] = ref_to_bf16(x[i]);
        if (slack)
            slack[i] += 0x1p-7 * fabs(x[i]);
    }
}

/* -- weights ------------------------------------------------------------------------------------------------------ */

/* Quantizes 32 f32 weights to GGUF's Q8_0 or Q4_0, and decodes them again. If 1/d is too large for f32, 0 is used
 * instead. */
static void round_weights_group(double *w, int q4)
{
    float largest = 0; /* the first number with the largest magnitude, with its sign */
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

void ref_coarsen(const struct reference_run *run, double *w, int n)
{
    for (int i = 0; i < n && run->weight_unit > 0; i++) {
        int exponent;
        frexp(w[i], &exponent);
        double ulp = ldexp(run->weight_unit, exponent); /* 2^exponent / 2 is at most |w|, and 2 weight_unit times that
                                                           is an ulp */
        w[i] = isfinite(w[i]) ? rint(w[i] / ulp) * ulp : w[i];
    }
}

/* Rounds or quantizes n weights of one sum, as the precision requires. */
static void round_weights(const struct reference_run *run, double *w, int n)
{
    ref_coarsen(run, w, n);
    for (int i = 0; run->options.precision == PRECISION_BF16 && i < n; i++)
        w[i] = ref_to_bf16(w[i]);
    for (int i = 0; quantizes(run) && n % GROUP == 0 && i < n; i += GROUP)
        round_weights_group(w + i, run->options.precision == PRECISION_Q4);
}

static void matrix_row(const struct reference_run *run, const struct matrix *w, int i, double *out)
{
    if (ref_is_quantized(w)) {
        ref_quantized_row(w, i, out);
        return;
    }
    ref_row(w, i, out);
    int packed = w->tensor->dtype == DTYPE_I4 || w->tensor->dtype == DTYPE_F4;
    int kept = packed ||
               (w->tensor->dtype == DTYPE_I8 && run->options.precision == PRECISION_Q8 && w->cols % GROUP == 0);
    if (!kept || !quantizes(run)) /* their codes are multiplied as they are */
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

/* take_column copies column c of run->w_uk to run->row, and put_column copies it back. */
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

/* W_UK is used in sums over n, so its weights are rounded or quantized along n, which means down the columns. */
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
            if (!ref_is_quantized(m))
                round_weights(run, run->row, N);
        }
        put_column(run, c);
    }
}
