/* reference/layers.c -- RMSNorm, linear, RoPE, multi-head latent attention, and the decoder layer around them.
 * Equation numbers are those of the DeepSeek-V3 report (arXiv 2412.19437); YaRN is arXiv 2309.00071. */
#include "reference/layers.h"

#include <math.h>
#include <string.h>

double ref_uniform(struct reference_run *run) /* SplitMix64 */
{
    uint64_t z = run->random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1.0;
}

void ref_show(struct reference_run *run, const char *name, int index, int rows, int cols, const double *data)
{
    struct reference_value value = {name, run->layer, index, rows, cols, data};
    if (run->options.hook)
        run->options.hook(run->options.hook_context, &value);
}

void ref_noise(struct reference_run *run, double *x, size_t n)
{
    for (size_t i = 0; i < n && run->noise > 0; i++)
        x[i] *= 1.0 + ref_uniform(run) * run->noise;
}

void ref_value(struct reference_run *run, const char *name, int index, int rows, int cols, double *data)
{
    if (run->options.perturb)
        for (size_t i = 0; i < (size_t)rows * cols; i++)
            data[i] *= 1.0 + ref_uniform(run) * 0x1p-24;
    if (!run->result || strcmp(name, run->result))
        ref_noise(run, data, (size_t)rows * (size_t)cols);
    ref_show(run, name, index, rows, cols, data);
}

/* x[s] = Emb(tok[s]) */
void ref_embed(struct reference_run *run, double *x, const struct matrix *embed, const int32_t *tokens, int S)
{
    for (int s = 0; s < S; s++)
        ref_row(embed, tokens[s], x + (size_t)s * embed->cols);
    ref_show(run, "embed", -1, S, embed->cols, x);
}

double ref_dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

double ref_sum_variance(double sum, double squares, size_t n)
{
    return (double)n * (sum * sum / 9 + squares / 6) * 0x1p-48;
}

double ref_sum(struct reference_run *run, const double *a, size_t step_a, const double *b, size_t step_b, size_t n)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        double product = a[i * step_a] * b[i * step_b];
        sum += product;
        squares += product * product;
    }
    if (run->noise == 0)
        return sum;
    return sum + ref_uniform(run) * sqrt(3 * ref_sum_variance(sum, squares, n)); /* 3: of a uniform number in [-1, 1),
                                                                                    1/3 */
}

/* y[s,d] = x[s,d] / sqrt(mean_d(x[s,d]^2) + eps) * w[d];  y may be x */
void ref_norm(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S, double eps)
{
    int D = w->cols;
    ref_row(w, 0, run->row);
    ref_coarsen(run, run->row, D);
    for (int s = 0; s < S; s++, x += D, y += D) {
        double squares = 0;
        for (int d = 0; d < D; d++)
            squares += x[d] * x[d];
        double r = 1 / sqrt(squares / D + eps);
        for (int d = 0; d < D; d++)
            y[d] = x[d] * r * run->row[d];
    }
}

/* y[s,i] = sum_j w[i,j] x[s,j]. The function `row` writes row i of W to run->row. */
static void product(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S,
                    void (*row)(struct reference_run *run, const struct matrix *w, int i))
{
    size_t rows = (size_t)w->rows, cols = (size_t)w->cols;
    for (size_t i = 0; i < rows; i++) {
        row(run, w, (int)i);
        for (size_t s = 0; s < (size_t)S; s++)
            y[s * rows + i] = ref_sum(run, run->row, 1, x + s * cols, 1, cols);
    }
}

static void row_as_stored(struct reference_run *run, const struct matrix *w, int i) { ref_row(w, i, run->row); }

void ref_product(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S)
{
    product(run, y, w, x, S, row_as_stored);
}

void ref_linear(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S)
{
    enum form form = ref_form(run, w);
    if (form != AS_IS) {
        ref_round_x(run, form, run->rounded, x, (size_t)S * (size_t)w->cols);
        x = run->rounded;
    } else if (run->noise > 0 && (run->noisy_x || ref_is_finer(w, run->noise))) {
        memcpy(run->rounded, x, (size_t)S * (size_t)w->cols * sizeof *x);
        ref_noise(run, run->rounded, (size_t)S * (size_t)w->cols);
        x = run->rounded;
    }
    product(run, y, w, x, S, ref_weights);
}

/* a[i] = x[i, 0..A),  b[i] = x[i, A..A+B) */
void ref_split(double *a, int A, double *b, int B, const double *x, size_t rows)
{
    for (size_t i = 0; i < rows; i++, x += A + B) {
        memcpy(a + i * A, x, sizeof *a * A);
        memcpy(b + i * B, x + A, sizeof *b * B);
    }
}

/* -- RoPE --------------------------------------------------------------------------------------------------------- */

static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/* With convention rope-angle=f32, rounds x to f32. The official code and transformers compute these numbers in f32. */
static double round_angle(const struct reference_run *run, double x)
{
    return ref_convention(run, ROPE_ANGLE) ? (float)x : x;
}

/* Returns YaRN's attention factor: m(mscale) = 0.1 mscale ln(factor) + 1, or 1 if factor <= 1. */
static double yarn_m(const struct config *c, double mscale)
{
    return c->rope_factor <= 1 ? 1 : 0.1 * mscale * log(c->rope_factor) + 1;
}

/* Returns the index i (not rounded) of the pair that makes `rotations` full turns over the original context L:
 *     theta^(-2i/R) L = 2 pi rotations */
static double yarn_correction_dim(const struct config *c, double rotations)
{
    double length = c->rope_original_max_position_embeddings;
    return c->qk_rope_head_dim * log(length / (rotations * 2 * M_PI)) / (2 * log(c->rope_theta));
}

/* Returns f_i = theta^(-2i/R). With YaRN, pairs that turn fast (i < low) keep f_i, and pairs that turn slowly (i >
 * high) get f_i / factor. The pairs between them get
 *     f_i (1 - ramp) + f_i / factor ramp,    ramp = (i - low) / (high - low), clamped to [0, 1]. */
static double rope_frequency(const struct reference_run *run, int i)
{
    const struct config *c = run->c;
    int R = c->qk_rope_head_dim;
    double wave = round_angle(run, pow(c->rope_theta, round_angle(run, 2.0 * i / R)));
    double f = round_angle(run, 1 / wave);
    if (!run->stretched)
        return f;
    double low = fmax(floor(yarn_correction_dim(c, c->rope_beta_fast)), 0);
    double high = fmin(ceil(yarn_correction_dim(c, c->rope_beta_slow)), R - 1);
    if (low == high)
        high += 0.001;
    double keep = round_angle(run, 1 - round_angle(run, clamp((i - low) / (high - low), 0, 1)));
    double slow = round_angle(run, 1 / round_angle(run, c->rope_factor * wave));
    return round_angle(run, round_angle(run, slow * round_angle(run, 1 - keep)) + round_angle(run, f * keep));
}

void ref_rope_tables(struct reference_run *run, int first, int S)
{
    const struct config *c = run->c;
    double m = run->stretched ? yarn_m(c, c->rope_mscale) / yarn_m(c, c->rope_mscale_all_dim) : 1;
    int half = c->qk_rope_head_dim / 2;
    for (int i = 0; i < half; i++) {
        double f = rope_frequency(run, i);
        for (int s = 0; s < S; s++) {
            double angle = round_angle(run, (first + (run->places ? run->places[s] : ref_index(run, s))) * f);
            run->cosine[(size_t)s * half + i] = round_angle(run, round_angle(run, cos(angle)) * m);
            run->sine[(size_t)s * half + i] = round_angle(run, round_angle(run, sin(angle)) * m);
        }
    }
    for (int s = 0; s < S; s++)
        run->query_scale[s] = 1 + c->query_beta *
                                      log(1 + floor((double)(first + s) / c->rope_original_max_position_embeddings));
}

/* Mistral 4 scales its queries by their position p, with L = original_max_position_embeddings:
 *     q = q (1 + llama_4_scaling_beta ln(1 + floor(p / L)))
 * Other models have beta 0. */
void ref_scale_queries(const struct reference_run *run, double *x, int S, size_t width)
{
    for (int s = 0; s < S; s++)
        for (size_t i = 0; i < width; i++)
            x[(size_t)s * width + i] *= run->query_scale[s];
}

/* Rotates pair number i of each vector, (x0, x1), at position p by the angle p f_i:
 *     y0 = x0 cos - x1 sin,   y1 = x1 cos + x0 sin
 * x is changed in place. */
void ref_rotate(struct reference_run *run, double *x, int S, int vectors, int width, int interleave)
{
    int half = run->c->qk_rope_head_dim / 2;
    for (int s = 0; s < S; s++)
        for (int h = 0; h < vectors; h++, x += width)
            for (int i = 0; i < half; i++) {
                double *x0 = x + (interleave ? 2 * i : i), *x1 = x + (interleave ? 2 * i + 1 : i + half);
                double cosine = run->cosine[(size_t)s * half + i], sine = run->sine[(size_t)s * half + i];
                double y0 = *x0 * cosine - *x1 * sine;
                *x1 = *x1 * cosine + *x0 * sine;
                *x0 = y0;
            }
}

void ref_rope(struct reference_run *run, double *x, int S, int vectors)
{
    ref_rotate(run, x, S, vectors, run->c->qk_rope_head_dim, run->c->rope_interleave);
}

/* -- attention ---------------------------------------------------------------------------------------------------- */

/* Returns how many of S rows are computed in the expanded form: rows of the target, but not of its MTP modules. */
static int expanded_rows(const struct reference_run *run, int S)
{
    int rows = run->layer < run->c->num_hidden_layers ? run->options.expanded : 0;
    return rows < S ? rows : S;
}

double ref_attention_scale(const struct reference_run *run)
{
    const struct config *c = run->c;
    int always = ref_convention(run, YARN_SCALE) == 1, never = ref_convention(run, YARN_SCALE) == 2;
    double m = run->stretched && !never && (always || !c->rope_unscaled) ? yarn_m(c, c->rope_mscale_all_dim) : 1;
    return m * m / sqrt(c->qk_nope_head_dim + c->qk_rope_head_dim);
}

/* heads[s] = sum_t p[s,t] v[t] for head h and the first `rows` rows s, with p [S,S] */
static void mix_values(struct reference_run *run, const double *p, int h, int rows, int S)
{
    int H = run->c->num_attention_heads, V = run->c->v_head_dim;
    for (size_t s = 0; s < (size_t)rows; s++)
        for (int v = 0; v < V; v++)
            run->heads[(s * H + h) * V + v] = ref_sum(run, p + s * S, 1, run->v + (size_t)h * V + v, (size_t)H * V,
                                                      s + 1);
}

/* Used instead of mix_values if the x of W_UV is rounded: heads[s] = W_UV[h] round(sum_t p[s,t] latent[t]). This is not
 * equal to the result of mix_values. */
static void mix_latents(struct reference_run *run, const struct reference_attention *w, const double *p, int h, int S)
{
    int H = run->c->num_attention_heads, V = run->c->v_head_dim, C = run->c->kv_lora_rank;
    for (size_t s = 0; s < (size_t)S; s++)
        for (int i = 0; i < C; i++)
            run->mixed[s * C + i] = ref_sum(run, p + s * S, 1, run->latent + i, (size_t)C, s + 1);
    ref_value(run, "mixed", h, S, C, run->mixed);
    ref_round_x(run, ref_values_form(run, w), run->mixed, run->mixed, (size_t)S * C);
    ref_values(run, w, h);
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t v = 0; v < (size_t)V; v++)
            run->heads[(s * H + h) * V + v] = ref_sum(run, run->w_uv + v * C, 1, run->mixed + s * C, 1, (size_t)C);
}

void ref_softmax(double *p, int S)
{
    for (size_t s = 0; s < (size_t)S; s++) {
        double max = -INFINITY, sum = 0;
        for (size_t t = 0; t <= s; t++)
            max = fmax(max, p[s * S + t]); /* exp(x - max) cannot overflow, and gives the same quotients */
        for (size_t t = 0; t <= s; t++)
            sum += exp(p[s * S + t] - max);
        for (size_t t = 0; t < (size_t)S; t++)
            p[s * S + t] = t > s ? 0 : exp(p[s * S + t] - max) / sum;
    }
}

/* mixed[s] = transpose(W_UK[h]) q_nope[s], so that k_nope[t] . q_nope[s] = latent[t] . mixed[s] */
static void absorb(struct reference_run *run, const struct reference_attention *w, int h, int S)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, C = run->c->dims.c;
    ref_keys(run, w, h);
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t i = 0; i < C; i++)
            run->mixed[s * C + i] = ref_sum(run, run->w_uk + i, C, run->q_nope + (s * H + (size_t)h) * N, 1, N);
    ref_noise(run, run->mixed, (size_t)S * C);
}

/* Returns whether the queries of head h are quantized before they are multiplied by cached latents. Then sets mixed
 * [S,C] to the quantized queries. */
static int quantized_queries(struct reference_run *run, const struct reference_attention *w, int h, int S)
{
    if (run->options.cache_type != CACHE_TYPE_Q8 || run->options.x_as_is)
        return 0;
    absorb(run, w, h, S);
    ref_round_x(run, TO_GROUPS, run->mixed, run->mixed, (size_t)S * run->c->dims.c);
    return 1;
}

/* Sets run->scores [S,S] of head h, -infinity for rows t that row s does not attend to. Rows s >= absorbed use
 * run->mixed, the absorbed queries; others the keys. */
static void scores_of_head(struct reference_run *run, size_t h, size_t S, size_t absorbed)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, R = run->c->dims.r, C = run->c->dims.c;
    double scale = ref_attention_scale(run);
    for (size_t s = 0; s < S; s++)
        for (size_t t = 0; t < S; t++) {
            double *p = run->scores + s * S + t;
            *p = -INFINITY;
            if (!ref_sees(run, s, t, (int)S))
                continue;
            *p = s >= absorbed ? ref_sum(run, run->mixed + s * C, 1, run->latent + t * C, 1, C)
                               : ref_sum(run, run->q_nope + (s * H + h) * N, 1, run->k_nope + (t * H + h) * N, 1, N);
            double rope = ref_sum(run, run->q_rope + (s * H + h) * R, 1, run->k_rope + t * R, 1, R);
            ref_noise(run, p, 1); /* DeepSeek's script rounds both parts before it adds them */
            ref_noise(run, &rope, 1);
            *p = (*p + rope) * scale;
        }
}

void ref_head_scores(struct reference_run *run, const struct reference_attention *w, int h, int S, int absorbed)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, C = run->c->dims.c;
    int first = absorbed ? 0 : quantized_queries(run, w, h, S) ? expanded_rows(run, S) : S; /* of the rows with absorbed
                                                                                               queries */
    if (absorbed)
        absorb(run, w, h, S);
    ref_keys(run, w, h);
    for (size_t s = 0; s < (size_t)S && first > 0; s++) {
        double *key = run->k_nope + (s * H + (size_t)h) * N;
        for (size_t n = 0; n < N; n++)
            key[n] = ref_sum(run, run->w_uk + n * C, 1, run->latent + s * C, 1, C);
        ref_noise(run, key, N);
    }
    scores_of_head(run, (size_t)h, (size_t)S, (size_t)first);
    ref_noise(run, run->scores, (size_t)S * (size_t)S);
}

/* eq. 10:  scores[s,t] = (q_nope[s] . k_nope[t] + q_rope[s] . k_rope[t]) scale,  t <= s, and in sparse attention only
 *          kept t p[s,t] = exp(scores[s,t]) / sum_t exp(scores[s,t]),   heads[s] = sum_t p[s,t] v[t] */
static void attend(struct reference_run *run, const struct reference_attention *w, int h, int S)
{
    double *p = run->scores;
    int quantized = quantized_queries(run, w, h, S);
    scores_of_head(run, (size_t)h, (size_t)S, (size_t)(quantized ? expanded_rows(run, S) : S));
    ref_value(run, "scores", h, S, S, p);
    ref_noise(run, p, (size_t)S * (size_t)S); /* the product with the scale may be rounded too */
    ref_softmax(p, S);
    ref_value(run, "probabilities", h, S, S, p);
    if (ref_values_form(run, w) != AS_IS)
        mix_latents(run, w, p, h, S);
    mix_values(run, p, h, ref_values_form(run, w) == AS_IS ? S : expanded_rows(run, S), S);
}

/* q_nope is the x of W_UK. The latent is not rounded when keys are computed */
void ref_round_queries(struct reference_run *run, const struct reference_attention *w, int S)
{
    size_t row = run->c->dims.H * run->c->dims.n, first = (size_t)expanded_rows(run, S) * row;
    if (ref_keys_form(run, w) != AS_IS)
        ref_round_x(run, ref_keys_form(run, w), run->q_nope + first, run->q_nope + first, (size_t)S * row - first);
}

double ref_latent_eps(const struct reference_run *run)
{
    return ref_convention(run, LATENT_EPS) ? run->c->rms_norm_eps : 1e-6;
}

/* kv[s,h] = [W_UK[h] latent[s] ; W_UV[h] latent[s]]. In expanded rows, the latent is the x of W_UV, and is rounded. */
static void keys_and_values(struct reference_run *run, const struct reference_attention *w, int S)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, V = run->c->dims.v;
    size_t C = run->c->dims.c, expanded = (size_t)expanded_rows(run, S);
    memcpy(run->mixed, run->latent, (size_t)S * C * sizeof *run->mixed);
    ref_round_x(run, ref_values_form(run, w), run->mixed, run->mixed, expanded * C);
    for (size_t h = 0; h < H; h++) {
        ref_keys(run, w, (int)h);
        ref_values(run, w, (int)h);
        for (size_t s = 0; s < (size_t)S; s++) {
            double *kv = run->kv + (s * H + h) * (N + V);
            for (size_t n = 0; n < N; n++)
                kv[n] = ref_sum(run, run->w_uk + n * C, 1, run->latent + s * C, 1, C);
            for (size_t v = 0; v < V; v++)
                kv[N + v] = ref_sum(run, run->w_uv + v * C, 1, run->mixed + s * C, 1, C);
        }
    }
}

void ref_attend(struct reference_run *run, const struct reference_attention *w, int S)
{
    int H = run->c->num_attention_heads, N = run->c->qk_nope_head_dim, V = run->c->v_head_dim;
    keys_and_values(run, w, S);
    ref_value(run, "kv", -1, S, H * (N + V), run->kv);
    ref_split(run->k_nope, N, run->v, V, run->kv, (size_t)S * H);
    for (int h = 0; h < H; h++)
        attend(run, w, h, S);
}

void ref_attend_absorbed(struct reference_run *run, const struct reference_attention *w, int S)
{
    double *p = run->scores;
    for (int h = 0; h < run->c->num_attention_heads; h++) {
        absorb(run, w, h, S);
        scores_of_head(run, (size_t)h, (size_t)S, 0);
        ref_noise(run, p, (size_t)S * (size_t)S);
        ref_noise(run, p, (size_t)S * (size_t)S);
        ref_softmax(p, S);
        ref_noise(run, p, (size_t)S * (size_t)S);
        mix_latents(run, w, p, h, S);
    }
}

/* Multi-head latent attention, section 2.1.1. Keys and values of all heads come from one latent per token; the rotated
 * part of the key is one vector for all heads. The published models put an RMSNorm on both latents.
 *     latent = RMSNorm(W_DKV x)      k_rope = RoPE(W_KR x)                   eq. 1, 3: both in kv_a_proj
 *     k_nope[h] = W_UK[h] latent     v[h] = W_UV[h] latent                   eq. 2, 5: both in kv_b_proj
 *     q_latent = RMSNorm(W_DQ x)                                             eq. 6: q_a_proj
 *     q_nope[h] = W_UQ[h] q_latent   q_rope[h] = RoPE(W_QR[h] q_latent)      eq. 7, 8: both in q_b_proj
 *     out = W_O [heads]                                                      eq. 11, after eq. 10 above
 * x, out [S, D] */
void ref_attention(struct reference_run *run, double *out, const struct reference_attention *w, const double *x, int S)
{
    const struct config *c = run->c;
    int H = c->num_attention_heads, N = c->qk_nope_head_dim, R = c->qk_rope_head_dim, V = c->v_head_dim;
    int C = c->kv_lora_rank, Q = c->q_lora_rank;
    double latent_eps = ref_latent_eps(run);

    if (Q) {
        ref_linear(run, run->q_a, &w->q_a_proj, x, S);
        ref_value(run, "q_a", -1, S, Q, run->q_a);
        ref_norm(run, run->q_a, &w->q_a_norm, run->q_a, S, latent_eps);
        ref_value(run, "q_a_norm", -1, S, Q, run->q_a);
        ref_linear(run, run->q, &w->q_b_proj, run->q_a, S);
    } else {
        ref_linear(run, run->q, &w->q_proj, x, S);
    }
    ref_value(run, "q", -1, S, H * (N + R), run->q);
    ref_split(run->q_nope, N, run->q_rope, R, run->q, (size_t)S * H);
    ref_scale_queries(run, run->q_nope, S, (size_t)H * N);
    ref_scale_queries(run, run->q_rope, S, (size_t)H * R);
    ref_round_queries(run, w, S);

    ref_linear(run, run->kv_a, &w->kv_a_proj, x, S);
    ref_value(run, "kv_a", -1, S, C + R, run->kv_a);
    ref_split(run->latent, C, run->k_rope, R, run->kv_a, (size_t)S);
    ref_norm(run, run->latent, &w->kv_a_norm, run->latent, S, latent_eps);
    ref_rope(run, run->k_rope, S, 1);
    ref_round_cache(run, S);
    ref_value(run, "latent", -1, S, C, run->latent);

    ref_rope(run, run->q_rope, S, H);
    ref_value(run, "q_rope", -1, S * H, R, run->q_rope);
    ref_value(run, "k_rope", -1, S, R, run->k_rope);

    ref_positions(run, &w->indexer, x, run->q_a, S);
    ref_attend(run, w, S);
    ref_value(run, "heads", -1, S, H * V, run->heads);
    ref_linear(run, out, &w->o_proj, run->heads, S);
    ref_value(run, "attention", -1, S, c->hidden_size, out);
}

/* -- the layer ---------------------------------------------------------------------------------------------------- */

static void add(struct reference_run *run, double *x, const double *delta, int S)
{
    int D = run->c->hidden_size;
    for (size_t i = 0; i < (size_t)S * D; i++)
        x[i] += delta[i];
    ref_value(run, "residual", -1, S, D, x);
}

/* x += attention(RMSNorm(x));  x += mlp(RMSNorm(x)) */
void ref_decoder_layer(struct reference_run *run, const struct reference_layer *w, double *x, int S)
{
    int D = run->c->hidden_size;
    ref_norm(run, run->normed, &w->input_norm, x, S, run->c->rms_norm_eps);
    ref_value(run, "input_layernorm", -1, S, D, run->normed);
    ref_attention(run, run->delta, &w->attention, run->normed, S);
    add(run, x, run->delta, S);

    ref_norm(run, run->normed, &w->post_attention_norm, x, S, run->c->rms_norm_eps);
    ref_value(run, "post_attention_layernorm", -1, S, D, run->normed);
    if (w->is_moe)
        ref_moe(run, run->delta, w, run->normed, S);
    else
        ref_mlp(run, run->delta, &w->mlp, -1, run->normed, S);
    add(run, x, run->delta, S);
}
