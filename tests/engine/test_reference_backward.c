/* tests/engine/test_reference_backward.c -- the backward pass of each operator of the reference, against finite
 * differences of plain code in this file or of the reference's forward pass. The loss of every test is sum_i c[i] y[i],
 * with random c. Each test says why `roundings` roundings, one after the other, change a term of the loss
 * (differences.h): a sum of n terms rounds each of them at most n times, exp and log count as 2. */
#include "reference/backward_layers.h"
#include "tests/support/differences.h"

#include <math.h>
#include <string.h>

static uint64_t state = 2026;
static double c[128];

static void draw(double *x, size_t n) { random_arguments(&state, x, n); }

/* Adds c[i] y to the loss. size: the magnitudes of the terms whose sum y is */
static double weighted(size_t i, double y, double magnitude, double *size)
{
    *size += fabs(c[i]) * magnitude;
    return c[i] * y;
}

static void check(const char *name, double (*f)(void *context, double *size), void *context, double roundings,
                  double *x, const double *g, size_t n)
{
    check_differences(&(struct differences){name, f, context, roundings}, x, g, n, 1);
}

/* -- linear, norm, RoPE -------------------------------------------------------------------------------------------- */

enum { S = 3,
       I = 4,
       J = 5 };

struct layer {
    double x[S * J], w[I * J], dx[S * J], dw[I * J];
    double cosine[4], sine[4];
    int interleave;
};

static double linear_loss(void *context, double *size)
{
    const struct layer *o = context;
    double loss = 0;
    for (int s = 0; s < S; s++)
        for (int i = 0; i < I; i++) {
            double y = 0, magnitude = 0;
            for (int j = 0; j < J; j++) {
                y += o->w[i * J + j] * o->x[s * J + j];
                magnitude += fabs(o->w[i * J + j] * o->x[s * J + j]);
            }
            loss += weighted((size_t)(s * I + i), y, magnitude, size);
        }
    return loss;
}

TEST(the_gradient_of_linear_layers_is_that_of_differences)
{
    struct layer o = {0};
    draw(o.x, S * J);
    draw(o.w, I * J);
    ref_back_linear(o.dx, o.dw, c, o.w, o.x, S, I, J);
    double roundings = 1 + J + 1 + S * I; /* a product, its sum, the product with c, the loss */
    check("linear, x", linear_loss, &o, roundings, o.x, o.dx, S * J);
    check("linear, w", linear_loss, &o, roundings, o.w, o.dw, I * J);
}

static double norm_loss(void *context, double *size)
{
    const struct layer *o = context;
    double loss = 0;
    for (int s = 0; s < S; s++) {
        double squares = 0;
        for (int d = 0; d < J; d++)
            squares += o->x[s * J + d] * o->x[s * J + d];
        for (int d = 0; d < J; d++) {
            double y = o->x[s * J + d] / sqrt(squares / J + 0.01) * o->w[d];
            loss += weighted((size_t)(s * J + d), y, fabs(y), size);
        }
    }
    return loss;
}

TEST(the_gradient_of_rms_norm_is_that_of_differences)
{
    struct layer o = {0};
    draw(o.x, S * J);
    draw(o.w, J);
    ref_back_norm(o.dx, o.dw, c, o.w, o.x, S, J, 0.01);
    double roundings = 1 + J + 2 + 1 + 3 + S * J; /* the sum of squares, / and +, the root, three products, the loss */
    check("norm, x", norm_loss, &o, roundings, o.x, o.dx, S * J);
    check("norm, w", norm_loss, &o, roundings, o.w, o.dw, J);
}

/* two rows of one vector of two pairs */
static double rope_loss(void *context, double *size)
{
    const struct layer *o = context;
    double loss = 0;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 2; i++) {
            int a = o->interleave ? 2 * i : i, b = o->interleave ? 2 * i + 1 : i + 2, angle = s * 2 + i;
            double x0 = o->x[s * 4 + a], x1 = o->x[s * 4 + b], cosine = o->cosine[angle], sine = o->sine[angle];
            double magnitude = fabs(x0) + fabs(x1);
            loss += weighted((size_t)(s * 4 + a), x0 * cosine - x1 * sine, magnitude, size);
            loss += weighted((size_t)(s * 4 + b), x1 * cosine + x0 * sine, magnitude, size);
        }
    return loss;
}

TEST(the_gradient_of_rope_is_that_of_differences)
{
    for (int interleave = 0; interleave < 2; interleave++) {
        struct layer o = {.interleave = interleave};
        draw(o.x, 8);
        for (int i = 0; i < 4; i++) { /* with a factor as YaRN may have one */
            o.cosine[i] = 1.25 * cos(i + 1);
            o.sine[i] = 1.25 * sin(i + 1);
        }
        memcpy(o.dx, c, 8 * sizeof *c);
        ref_back_rope(o.dx, o.cosine, o.sine, 2, 1, 4, interleave);
        check("rope", rope_loss, &o, 1.25 * (3 + 8), o.x, o.dx, 8); /* |cos| and |sin| are below 1.25 */
    }
}

/* -- softmax, SwiGLU, embedding, cross entropy --------------------------------------------------------------------- */

enum { V = 6 };

struct vector {
    double x[V * 2], u[V], dx[V * 2], du[V];
    int32_t tok[2];
};

static double softmax_loss(void *context, double *size)
{
    const struct vector *o = context;
    double sum = 0, loss = 0;
    for (int i = 0; i < V; i++)
        sum += exp(o->x[i]);
    for (int i = 0; i < V; i++)
        loss += weighted((size_t)i, exp(o->x[i]) / sum, exp(o->x[i]) / sum, size);
    return loss;
}

TEST(the_gradient_of_softmax_is_that_of_differences)
{
    struct vector o = {0};
    double p[V], sum = 0;
    draw(o.x, V);
    for (int i = 0; i < V; i++)
        sum += exp(o.x[i]);
    for (int i = 0; i < V; i++)
        p[i] = exp(o.x[i]) / sum;
    ref_back_softmax(o.dx, c, p, V);
    check("softmax", softmax_loss, &o, 2 + 2 + V + 1 + 1 + V, o.x, o.dx, V); /* two exp, their sum, the quotient, the
                                                                                loss */
}

static double swiglu_loss(void *context, double *size)
{
    const struct vector *o = context;
    double loss = 0;
    for (int i = 0; i < V; i++) {
        double a = o->x[i] / (1 + exp(-o->x[i])) * o->u[i];
        loss += weighted((size_t)i, a, fabs(a), size);
    }
    return loss;
}

TEST(the_gradient_of_swiglu_is_that_of_differences)
{
    struct vector o = {0};
    draw(o.x, V);
    draw(o.u, V);
    ref_back_swiglu(o.dx, o.du, c, o.x, o.u, V);
    double roundings = 2 + 1 + 3 + V; /* exp, +, a quotient and two products, the loss */
    check("swiglu, gate", swiglu_loss, &o, roundings, o.x, o.dx, V);
    check("swiglu, up", swiglu_loss, &o, roundings, o.u, o.du, V);
}

/* three tokens of a vocabulary of 4, d = 3; token 2 occurs twice */
static const int32_t embedded[3] = {2, 0, 2};

static double embed_loss(void *context, double *size)
{
    const struct vector *o = context;
    double loss = 0;
    for (size_t s = 0; s < 3; s++)
        for (size_t d = 0; d < 3; d++)
            loss += weighted(s * 3 + d, o->x[embedded[s] * 3 + (int)d], fabs(o->x[embedded[s] * 3 + (int)d]), size);
    return loss;
}

TEST(the_gradient_of_embedding_is_that_of_differences)
{
    struct vector o = {0};
    draw(o.x, 12);
    ref_back_embed(o.dx, c, embedded, 3, 3);
    check("embedding", embed_loss, &o, 1 + 9, o.x, o.dx, 12);
}

/* The first two rows have the weights c[0], which ref_cross_entropy receives. */
static double entropy_loss(void *context, double *size)
{
    const struct vector *o = context;
    double loss = 0;
    for (int s = 0; s < 2; s++) {
        double sum = 0, label = o->x[s * V + o->tok[s]];
        for (int v = 0; v < V; v++)
            sum += exp(o->x[s * V + v]);
        loss += weighted(0, log(sum) - label, log(sum) + 1 + fabs(label), size);
    }
    return loss;
}

TEST(the_gradient_of_cross_entropy_is_that_of_differences)
{
    struct vector o = {.tok = {4, 1}};
    double size = 0;
    draw(o.x, 2 * V);
    double loss = ref_cross_entropy(o.dx, o.x, o.tok, 2, V, c[0]), want = entropy_loss(&o, &size);
    double roundings = 2 + V + 2 + 2 + 2; /* exp and its sum, which change log(sum) by as many 2^-53; log, two
                                             differences, the loss */
    if (!(fabs(c[0] * loss - want) <= 2 * roundings * 0x1p-53 * size))
        fail_msg("the loss is %.17g, and should be %.17g", c[0] * loss, want);
    check("cross entropy", entropy_loss, &o, roundings, o.x, o.dx, 2 * V);
    for (int i = 0; i < 2 * V; i++) /* log(sum exp) must not overflow */
        o.x[i] += 1e4;
    if (!(fabs(ref_cross_entropy(NULL, o.x, o.tok, 2, V, 1) - loss) <= 1e-9))
        fail_msg("with 10000 added to all logits, the loss is %g, and before it was %g",
                 ref_cross_entropy(NULL, o.x, o.tok, 2, V, 1), loss);
}

/* Of equal numbers, the lowest indices are the best: in row 0 two of three are among the top 3, in row 1 one of two. */
static const double targets[2 * V] = {0.5, -1, 0.5, 0.5, 1.25, -0.25, 2, 0.75, -1.5, 0.25, 0.25, -0.5};
static const int is_top[2 * V] = {1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0};
static struct loss_terms terms;

static double soft_loss(void *context, double *size)
{
    const struct vector *o = context;
    double loss = 0;
    for (int s = 0; s < 2; s++) {
        double sum = 0, target_sum = 0;
        for (int v = 0; v < V; v++) {
            sum += exp(o->x[s * V + v]);
            target_sum += exp(targets[s * V + v]);
        }
        for (int v = 0; v < V; v++) {
            double a = (v == o->tok[s]) * terms.data +
                       exp(targets[s * V + v]) / target_sum * (terms.soft + is_top[s * V + v] * terms.top);
            loss += weighted(0, a * (log(sum) - o->x[s * V + v]), a * (log(sum) + 1 + fabs(o->x[s * V + v])), size);
        }
    }
    return loss;
}

TEST(the_gradient_of_soft_targets_is_that_of_differences)
{
    static const struct loss_terms cases[] = {{.data = 0.5, .soft = 0.5}, {.soft = 0.1, .top = 1, .top_tokens = 3},
                                              {.data = 0.25, .top = 2, .top_tokens = 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct vector o = {.tok = {4, 1}};
        struct reference_terms sums = {0}, shifted = {0};
        double size = 0, entropy = 0;
        terms = cases[i];
        draw(o.x, 2 * V);
        ref_soft_cross_entropy(&sums, o.dx, o.x, targets, o.tok, 2, V, &terms, c[0]);
        double loss = c[0] * (terms.data * sums.data + terms.soft * sums.soft + terms.top * sums.top),
               want = soft_loss(&o, &size);
        /* exp and its sum, which change log(sum) by as many 2^-53; the same for p and its quotient; log, a difference,
         * three products, the loss */
        double roundings = 2 + V + 2 + V + 1 + 2 + 1 + 3 + 2 * V;
        if (!(fabs(loss - want) <= 2 * roundings * 0x1p-53 * size))
            fail_msg("case %zu: the loss is %.17g, and should be %.17g", i, loss, want);
        check("soft targets", soft_loss, &o, roundings, o.x, o.dx, 2 * V);
        for (int v = 0; v < 2 * V; v++) /* the loss of a row that is its target's is the entropy; no exp may overflow */
            o.x[v] = targets[v] + 1e4;
        ref_soft_cross_entropy(&shifted, NULL, o.x, targets, o.tok, 2, V, &terms, 1);
        if (!(fabs(shifted.soft - sums.entropy) <= 1e-9))
            fail_msg("case %zu: the soft loss of equal rows is %.17g, the entropy %.17g", i, shifted.soft,
                     sums.entropy);
        for (int s = 0; s < 2; s++)
            for (int v = 0; v < V; v++) {
                double sum = 0;
                for (int u = 0; u < V; u++)
                    sum += exp(targets[s * V + u] - targets[s * V + v]);
                entropy += log(sum) / sum;
            }
        if (!(fabs(entropy - sums.entropy) <= 1e-14))
            fail_msg("case %zu: the entropy is %.17g, and should be %.17g", i, sums.entropy, entropy);
    }
}

/* The differences with `targets` are below and above 1, but not near it. */
static double distance_loss(void *context, double *size)
{
    const struct vector *o = context;
    double loss = 0;
    for (int i = 0; i < 2 * V; i++) {
        double e = fabs(o->x[i] - targets[i]), l = e < 1 ? e * e / 2 : e - 0.5;
        loss += weighted(0, l / V, l / V + 1.0 / V, size);
    }
    return loss;
}

TEST(the_gradient_of_smooth_l1_is_that_of_differences)
{
    static const double moves[2 * V] = {0.5, -0.75, 1.5, -1.25, 0.125, 3, -2, 0.0625, 0.875, -0.5, -1.125, 1.75};
    struct vector o = {0};
    double size = 0;
    for (int i = 0; i < 2 * V; i++)
        o.x[i] = targets[i] + moves[i];
    double loss = c[0] * ref_smooth_l1(o.dx, o.x, targets, o.tok, 2, V, c[0]), want = distance_loss(&o, &size);
    double roundings = 1 + 2 + 1 + 1 + 2 * V; /* e, its square or a difference, / V, the product, the loss */
    if (!(fabs(loss - want) <= 2 * roundings * 0x1p-53 * size))
        fail_msg("the loss is %.17g, and should be %.17g", loss, want);
    check("smooth L1", distance_loss, &o, roundings, o.x, o.dx, 2 * V);
}

/* -- a head of attention ------------------------------------------------------------------------------------------- */

enum { H = 2,
       N = 3,
       R = 2,
       VALUE = 4 };

struct heads {
    double q_nope[S * H * N], q_rope[S * H * R], k_nope[S * H * N], k_rope[S * R], v[S * H * VALUE];
};

#define SCALE 0.75

/* p [S,S] of head h */
static void probabilities(double *p, const struct heads *o, int h)
{
    for (int s = 0; s < S; s++) {
        double sum = 0;
        for (int t = 0; t < S; t++) {
            double score = 0;
            for (int n = 0; n < N; n++)
                score += o->q_nope[(s * H + h) * N + n] * o->k_nope[(t * H + h) * N + n];
            for (int r = 0; r < R; r++)
                score += o->q_rope[(s * H + h) * R + r] * o->k_rope[t * R + r];
            p[s * S + t] = t > s ? 0 : exp(SCALE * score);
            sum += p[s * S + t];
        }
        for (int t = 0; t < S; t++)
            p[s * S + t] /= sum;
    }
}

static double head_loss(void *context, double *size)
{
    const struct heads *o = context;
    double loss = 0, p[S * S];
    for (int h = 0; h < H; h++) {
        probabilities(p, o, h);
        for (int s = 0; s < S; s++)
            for (int v = 0; v < VALUE; v++) {
                double y = 0, magnitude = 0;
                for (int t = 0; t <= s; t++) {
                    y += p[s * S + t] * o->v[(t * H + h) * VALUE + v];
                    magnitude += fabs(p[s * S + t] * o->v[(t * H + h) * VALUE + v]);
                }
                loss += weighted((size_t)((s * H + h) * VALUE + v), y, magnitude, size);
            }
    }
    return loss;
}

TEST(the_gradient_of_heads_of_attention_is_that_of_differences)
{
    struct heads o, g = {{0}, {0}, {0}, {0}, {0}};
    const struct dims dims = {.H = H, .n = N, .r = R, .v = VALUE};
    double p[S * S], dp[S * S], dscores[S * S];
    draw(o.q_nope, S * H * N);
    draw(o.q_rope, S * H * R);
    draw(o.k_nope, S * H * N);
    draw(o.k_rope, S * R);
    draw(o.v, S * H * VALUE);
    struct ref_heads x = {o.q_nope, o.q_rope, o.k_nope, o.k_rope, o.v},
                     d = {g.q_nope, g.q_rope, g.k_nope, g.k_rope, g.v};
    for (int h = 0; h < H; h++) {
        probabilities(p, &o, h);
        memset(dp, 0, sizeof dp);
        memset(dscores, 0, sizeof dscores);
        ref_back_mix(dp, &d, c, &x, p, h, S, &dims);
        for (int s = 0; s < S; s++)
            ref_back_softmax(dscores + s * S, dp + s * S, p + s * S, s + 1);
        ref_back_scores_of_head(&d, dscores, &x, SCALE, h, S, &dims);
    }
    /* A score is a sum of N + R products, all below 1, times the scale: an error of (N + R + 2) (N + R) SCALE 2^-53. It
     * changes exp by as much, relatively, and again by way of the sum in the denominator. Then two exp, their sum, the
     * quotient; the sum over t, the loss */
    double roundings = 2 * (N + R + 2) * (N + R) * SCALE + 2 + 2 + S + 1 + 1 + S + 1 + S * H * VALUE;
    check("head, q_nope", head_loss, &o, roundings, o.q_nope, g.q_nope, S * H * N);
    check("head, q_rope", head_loss, &o, roundings, o.q_rope, g.q_rope, S * H * R);
    check("head, k_nope", head_loss, &o, roundings, o.k_nope, g.k_nope, S * H * N);
    check("head, k_rope", head_loss, &o, roundings, o.k_rope, g.k_rope, S * R);
    check("head, v", head_loss, &o, roundings, o.v, g.v, S * H * VALUE);
}

/* -- router and experts -------------------------------------------------------------------------------------------- */

enum { E = 5,
       X = 3 };

struct router {
    struct reference_run run;
    struct config config;
    double x[E]; /* scores, or logits */
    double experts[X];
};

static double weights_loss(void *context, double *size)
{
    const struct router *o = context;
    double g[X], loss = 0;
    ref_expert_weights(&o->run, g, o->experts, o->x);
    for (size_t j = 0; j < X; j++)
        loss += weighted(j, g[j], fabs(g[j]), size);
    return loss;
}

static double scores_loss(void *context, double *size)
{
    const struct router *o = context;
    double s[E], loss = 0;
    memcpy(s, o->x, sizeof s);
    ref_scores(&o->run, s);
    for (size_t e = 0; e < E; e++)
        loss += weighted(e, s[e], s[e], size);
    return loss;
}

TEST(the_gradient_of_weights_of_experts_is_that_of_differences)
{
    for (int i = 0; i < 16; i++) {
        struct router o = {.experts = {0, 2, 3}};
        double dx[E] = {0};
        o.run.c = &o.config;
        o.config.n_routed_experts = E;
        o.config.num_experts_per_tok = X;
        o.config.routed_scaling_factor = 2.5;
        o.config.norm_topk_prob = i % 2;
        o.config.scoring_func = i / 2 % 2 ? SCORING_SIGMOID : SCORING_SOFTMAX;
        o.config.topk_method = i / 4 % 2 ? TOPK_GROUP_LIMITED_TOP2 : TOPK_GREEDY;
        o.run.options.conventions.value[NORMALISER_EPS] = i / 8 ? 1 : 0;
        for (int e = 0; e < E; e++)
            o.x[e] = fabs(random_argument(&state)) / 2 + 0.25;
        ref_back_expert_weights(&o.run, dx, c, o.experts, o.x);
        check("weights of experts", weights_loss, &o, X + 1 + 1 + 1 + 1 + X, o.x, dx, E); /* the sum, + eps, a quotient,
                                                                                             a product, the loss */
    }
}

/* With normaliser-eps=6.1e-5 the divisor of small scores is constant. */
TEST(small_scores_have_a_constant_divisor)
{
    struct router o = {.experts = {0, 2, 3}, .x = {0x1p-20, 0x1p-19, 0x1p-18, 0x1p-20, 0x1p-18}};
    double dx[E] = {0};
    o.run.c = &o.config;
    o.config = (struct config){.n_routed_experts = E, .num_experts_per_tok = X, .norm_topk_prob = 1,
                               .routed_scaling_factor = 2.5};
    o.config.scoring_func = SCORING_SIGMOID;
    o.run.options.conventions.value[NORMALISER_EPS] = 2;
    ref_back_expert_weights(&o.run, dx, c, o.experts, o.x);
    for (int e = 0; e < E; e++) {
        double want = e == 0 ? c[0] : e == 2 ? c[1]
                                  : e == 3   ? c[2]
                                             : 0;
        if (!(fabs(dx[e] - want * 2.5 * 0x1p14) <= 1e-15 * 2.5 * 0x1p14))
            fail_msg("the gradient of score %d is %g, the weight is %g times the score", e, dx[e], want * 2.5 * 0x1p14);
    }
}

TEST(the_gradient_of_scores_of_the_router_is_that_of_differences)
{
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        struct router o = {.experts = {0}};
        double dx[E] = {0}, s[E];
        o.run.c = &o.config;
        o.config.n_routed_experts = E;
        o.config.scoring_func = sigmoid ? SCORING_SIGMOID : SCORING_SOFTMAX;
        draw(o.x, E);
        memcpy(s, o.x, sizeof s);
        ref_scores(&o.run, s);
        ref_back_scores(&o.run, dx, c, s);
        /* two differences x - max, below 2, and their exp; the sum, a quotient, the loss */
        check(sigmoid ? "sigmoid scores" : "softmax scores", scores_loss, &o, 2 * (2 + 2) + E + 2 + E, o.x, dx, E);
    }
}

struct experts {
    double g[2 * X], y[2 * X * 2];
};

static double sum_loss(void *context, double *size)
{
    const struct experts *o = context;
    double loss = 0;
    for (size_t s = 0; s < 2; s++)
        for (size_t d = 0; d < 2; d++) {
            double sum = 0, magnitude = 0;
            for (size_t j = 0; j < X; j++) {
                sum += o->g[s * X + j] * o->y[(s * X + j) * 2 + d];
                magnitude += fabs(o->g[s * X + j] * o->y[(s * X + j) * 2 + d]);
            }
            loss += weighted(s * 2 + d, sum, magnitude, size);
        }
    return loss;
}

TEST(the_gradient_of_sum_of_experts_is_that_of_differences)
{
    struct experts o, d = {{0}, {0}};
    draw(o.g, 2 * X);
    draw(o.y, 2 * X * 2);
    ref_back_experts_sum(d.g, d.y, c, o.g, o.y, 2, X, 2);
    check("sum of experts, weights", sum_loss, &o, 1 + X + 1 + 4, o.g, d.g, 2 * X);
    check("sum of experts, outputs", sum_loss, &o, 1 + X + 1 + 4, o.y, d.y, 2 * X * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_of_linear_layers_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_rms_norm_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_rope_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_softmax_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_swiglu_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_embedding_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_cross_entropy_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_soft_targets_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_smooth_l1_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_heads_of_attention_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_weights_of_experts_is_that_of_differences),
        cmocka_unit_test(small_scores_have_a_constant_divisor),
        cmocka_unit_test(the_gradient_of_scores_of_the_router_is_that_of_differences),
        cmocka_unit_test(the_gradient_of_sum_of_experts_is_that_of_differences),
    };
    random_arguments(&state, c, COUNT(c));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
