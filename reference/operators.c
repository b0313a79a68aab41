/* reference/operators.c -- the table of operators, and what each of them computes. The arithmetic is that of layers.c.
 * operators_moe.c and operators_indexer.c have the operators of the feed-forward part and of the indexer. */
#include "reference/operators_internal.h"

#include <math.h>
#include <string.h>

struct reference_bench {
    const struct reference *r;
    struct reference_run run;
};

typedef struct reference_call call;

static const struct config *config_of(const call *k) { return k->run->c; }

/* --- norms and linear layers --- */

/* Norms: the normalised row may be rounded before it is multiplied by the weights, the weights may be rounded, and the
 * residual stream may have been added in f32 just before, so that the dump has a rounded copy of what the norm read. */
static void norm(call *k, const struct matrix *w, const double *x, double eps)
{
    size_t n = (size_t)k->S * (size_t)w->cols;
    ref_norm(k->run, NULL, k->out, w, x, k->S, eps);
    for (size_t i = 0; i < n && k->slack; i++)
        k->slack[i] = (2 + ref_is_finer(w, k->unit)) * k->unit * fabs(k->out[i]);
    k->terms = (size_t)w->cols;
}

static void input_norm(call *k) { norm(k, &k->w->input_norm, k->in[0], config_of(k)->rms_norm_eps); }
static void attention_norm(call *k) { norm(k, &k->w->post_attention_norm, k->in[0], config_of(k)->rms_norm_eps); }
static void query_norm(call *k) { norm(k, &k->w->attention.q_a_norm, k->in[0], ref_latent_eps(k->run)); }
static void enorm(call *k) { norm(k, &k->module->enorm, k->in[0], config_of(k)->rms_norm_eps); }
static void hnorm(call *k) { norm(k, &k->module->hnorm, k->in[0], config_of(k)->rms_norm_eps); }
static void head_norm(call *k) { norm(k, &k->module->norm, k->in[0], config_of(k)->rms_norm_eps); }
static void final_norm(call *k) { norm(k, &k->run->r->norm, k->in[0], config_of(k)->rms_norm_eps); }

static void latent_norm(call *k)
{
    const struct config *c = config_of(k);
    ref_split(k->run->latent, c->kv_lora_rank, k->run->k_rope, c->qk_rope_head_dim, k->in[0], (size_t)k->S);
    norm(k, &k->w->attention.kv_a_norm, k->run->latent, ref_latent_eps(k->run));
    ref_round_cached(k->run, k->out, k->slack, (size_t)k->S * (size_t)c->kv_lora_rank, 1);
}

/* Each sum is rounded as ref_sum_variance says. 8 standard deviations, as in local.h. */
void ref_op_slack_of_sums(struct reference_call *k, const struct matrix *w)
{
    size_t rows = (size_t)w->rows, cols = (size_t)w->cols;
    for (size_t i = 0; i < rows && k->slack; i++) {
        ref_row(w, (int)i, k->run->row);
        for (size_t s = 0; s < (size_t)k->S; s++) {
            double sum = 0, squares = 0;
            for (size_t c = 0; c < cols; c++) {
                double term = k->run->row[c] * k->in[0][s * cols + c];
                sum += term;
                squares += term * term;
            }
            k->slack[s * rows + i] = 8 * sqrt(ref_sum_variance(sum, squares, cols));
        }
    }
}

/* Each of `ranks` tensor-parallel ranks multiplies a slice of x [S, cols] with its columns of w, and rounds its sum.
 * These sums are added one after the other, and engines that add in the dtype round each sum of two. `slack` grows by
 * `unit` times the sizes of all numbers that are rounded; the last sum is the result. */
void ref_op_slack_of_ranks(struct reference_call *k, const struct matrix *w, const double *x, size_t S, double *slack)
{
    size_t rows = (size_t)w->rows, cols = (size_t)w->cols, ranks = (size_t)k->ranks;
    for (size_t i = 0; i < rows && slack && ranks > 1; i++) {
        ref_row(w, (int)i, k->run->row);
        for (size_t s = 0; s < S; s++) {
            double sum = 0;
            for (size_t r = 0; r < ranks; r++) {
                size_t from = cols * r / ranks, to = cols * (r + 1) / ranks;
                double part = ref_dot(k->run->row + from, x + s * cols + from, (int)(to - from));
                sum += part;
                slack[s * rows + i] += k->unit * (fabs(part) + (r > 0 && r + 1 < ranks ? fabs(sum) : 0));
            }
        }
    }
}

void ref_op_roundings(struct reference_call *k, double count, size_t n)
{
    for (size_t i = 0; i < n && k->slack; i++)
        k->slack[i] = count * k->unit * fabs(k->out[i]);
}

/* Linear layers: products of representable numbers are added in f32. Weights that the arithmetic cannot represent are
 * rounded. */
void ref_op_linear(struct reference_call *k, const struct matrix *w)
{
    k->inner = ref_is_finer(w, k->unit);
    ref_op_slack_of_sums(k, w);
    ref_linear(k->run, NULL, k->out, w, k->in[0], k->S);
}

static void q_a(call *k) { ref_op_linear(k, &k->w->attention.q_a_proj); }
static void q_b(call *k) { ref_op_linear(k, &k->w->attention.q_b_proj); }
static void q_alone(call *k) { ref_op_linear(k, &k->w->attention.q_proj); }
static void kv_a(call *k) { ref_op_linear(k, &k->w->attention.kv_a_proj); }
static void o_proj(call *k)
{
    ref_op_linear(k, &k->w->attention.o_proj);
    ref_op_slack_of_ranks(k, &k->w->attention.o_proj, k->in[0], (size_t)k->S, k->slack);
}
static void eh_proj(call *k) { ref_op_linear(k, &k->module->eh_proj); }
static void head(call *k) { ref_op_linear(k, &k->run->r->head); }
static void module_head(call *k) { ref_op_linear(k, &k->module->head); }

/* --- copies --- */

static void copy(call *k)
{
    memcpy(k->out, k->in[0], (size_t)k->S * k->in_width[0] * sizeof *k->out);
}

static void embedding(call *k)
{
    const struct matrix *embed = k->module ? &k->module->embed : &k->run->r->embed;
    for (int s = 0; s < k->S; s++) {
        double *row = k->out + (size_t)s * (size_t)embed->cols;
        int token = (int)k->in[0][s];
        memset(row, 0, (size_t)embed->cols * sizeof *row);
        if (token >= 0 && token < embed->rows &&
            !(k->module && ref_convention(k->run, FIRST_EMBEDDING) && k->first + s == 0))
            ref_row(embed, token, row);
    }
}

static void concat(call *k)
{
    size_t d = k->run->c->dims.d;
    int swapped = ref_convention(k->run, CONCAT);
    for (size_t s = 0; s < (size_t)k->S; s++) {
        memcpy(k->out + s * 2 * d, k->in[swapped] + s * d, d * sizeof *k->out);
        memcpy(k->out + s * 2 * d + d, k->in[!swapped] + s * d, d * sizeof *k->out);
    }
}

/* The sum may read a result of attention or of the MLP that is not rounded yet. */
static void residual(call *k)
{
    size_t n = (size_t)k->S * k->run->c->dims.d;
    for (size_t i = 0; i < n; i++) {
        k->out[i] = k->in[0][i] + k->in[1][i];
        if (k->slack)
            k->slack[i] = k->unit * (fabs(k->in[0][i]) + fabs(k->in[1][i]));
    }
}

/* --- attention --- */

/* Each product may be rounded, and so may cosine and sine. In f32, an angle is rounded before its cosine is taken. */
void ref_op_rotate(call *k, int vectors, int width, int pairs)
{
    int half = config_of(k)->qk_rope_head_dim / 2;
    ref_rope_tables(k->run, k->first, k->S);
    for (size_t i = 0; i < (size_t)k->S * vectors && k->slack; i++)
        for (int p = 0; p < half; p++) {
            int a = pairs ? 2 * p : p, b = pairs ? 2 * p + 1 : p + half, s = (int)(i / (size_t)vectors);
            const double *v = k->out + i * width;
            double cosine = fabs(k->run->cosine[(size_t)s * half + p]), sine = fabs(k->run->sine[(size_t)s * half + p]);
            double angle = (k->first + s + 1) * 0x1p-23 * (fabs(v[a]) + fabs(v[b])) * hypot(cosine, sine);
            k->slack[i * width + a] = 2 * k->unit * (fabs(v[a]) * cosine + fabs(v[b]) * sine) + angle;
            k->slack[i * width + b] = 2 * k->unit * (fabs(v[b]) * cosine + fabs(v[a]) * sine) + angle;
        }
    ref_rotate(k->run, k->out, k->S, vectors, width, pairs);
}

/* Rotates the numbers from `at` on of each vector of x [S, vectors, stride]. */
static void rotate(call *k, const double *x, int stride, int at, int vectors)
{
    int R = config_of(k)->qk_rope_head_dim;
    for (int i = 0; i < k->S * vectors; i++)
        memcpy(k->out + (size_t)i * R, x + (size_t)i * stride + at, (size_t)R * sizeof *x);
    ref_op_rotate(k, vectors, R, config_of(k)->rope_interleave);
}

static void rope_of_queries(call *k)
{
    const struct config *c = config_of(k);
    size_t width = c->dims.H * c->dims.r;
    rotate(k, k->in[0], c->qk_nope_head_dim + c->qk_rope_head_dim, c->qk_nope_head_dim, c->num_attention_heads);
    ref_scale_queries(k->run, k->out, k->S, width);
    if (k->slack)
        ref_scale_queries(k->run, k->slack, k->S, width);
    for (size_t i = 0; i < (size_t)k->S * width && k->slack && c->query_beta > 0; i++)
        k->slack[i] += k->unit * fabs(k->out[i]);
}

static void rope_of_keys(call *k)
{
    rotate(k, k->in[0], config_of(k)->kv_lora_rank + config_of(k)->qk_rope_head_dim, config_of(k)->kv_lora_rank, 1);
    ref_round_cached(k->run, k->out, k->slack, (size_t)k->S * (size_t)config_of(k)->qk_rope_head_dim, 0);
}

/* Sets run->kept from in[4]: the positions of each row, and -1 after them. The first index_topk rows see all rows. */
static void take_kept(call *k)
{
    struct reference_run *run = k->run;
    size_t S = (size_t)k->S;
    run->sparse = k->in[4] != NULL;
    for (size_t s = 0; s < S && run->sparse; s++) {
        memset(run->kept + s * S, s < (size_t)run->c->index_topk, S);
        for (size_t i = 0; i < k->in_width[4]; i++) {
            double t = k->in[4][s * k->in_width[4] + i];
            if (t >= 0 && t <= (double)s)
                run->kept[s * S + (size_t)t] = 1;
        }
    }
}

static void take_attention(call *k)
{
    const struct config *c = config_of(k);
    struct reference_run *run = k->run;
    size_t S = (size_t)k->S, H = c->dims.H, R = c->dims.r, C = c->dims.c;
    ref_split(run->q_nope, c->qk_nope_head_dim, run->q_rope, c->qk_rope_head_dim, k->in[0], S * H);
    ref_rope_tables(run, k->first, k->S);
    ref_scale_queries(run, run->q_nope, k->S, H * c->dims.n);
    ref_round_queries(run, &k->w->attention, k->S);
    memcpy(run->q_rope, k->in[1], S * H * R * sizeof *run->q_rope);
    memcpy(run->latent, k->in[2], S * C * sizeof *run->latent);
    memcpy(run->k_rope, k->in[3], S * R * sizeof *run->k_rope);
    take_kept(k);
    k->inner = 1;
}

static void attention(call *k)
{
    take_attention(k);
    if (k->absorbed)
        ref_attend_absorbed(k->run, &k->w->attention, k->S);
    else
        ref_attend(k->run, &k->w->attention, k->S);
    memcpy(k->out, k->run->heads, (size_t)k->S * config_of(k)->dims.H * config_of(k)->dims.v * sizeof *k->out);
}

static void head_scores(call *k)
{
    take_attention(k);
    ref_head_scores(k->run, &k->w->attention, k->expert, k->S, k->absorbed);
    memcpy(k->out, k->run->scores, (size_t)k->S * (size_t)k->S * sizeof *k->out);
}

/* The score may be rounded before and after the scale. Engines compute the exponential, their sum and the quotient in
 * f32. */
static void head_probabilities(call *k)
{
    size_t S = (size_t)k->S;
    take_attention(k);
    ref_head_scores(k->run, &k->w->attention, k->expert, k->S, k->absorbed);
    ref_noise(k->run, k->run->scores, S * S);
    ref_softmax(k->run->scores, k->S);
    memcpy(k->out, k->run->scores, S * S * sizeof *k->out);
    for (size_t i = 0; i < S * S && k->slack; i++)
        k->slack[i] = 4 * 0x1p-24 * k->out[i];
    k->terms = S;
}

/* --- the table --- */

#define OF_NORM "the normalised row, the weights, and the residual that was added just before"
#define OF_LINEAR "weights that the arithmetic cannot represent"
#define OF_ROPE "cosine and sine, and each product"
#define OF_MLP "gate, up, SiLU, their product, and weights that the arithmetic cannot represent"
#define OF_ATTENTION                                                                                                   \
    "absorbed queries or keys and values of the heads, both parts of the scores, scores before and after the scale, "  \
    "probabilities, mixed latents"
#define OF_SCORES "absorbed queries or keys of the head, both parts of the sum, the score before the scale"
#define OF_CODES "the Hadamard transform, and codes that it moves to a neighbour; "

#define ROW(value) &value_table[value]

static const struct reference_operator table[] = {
    {"embedding", ROW(EMBEDDING), embedding, "", 0},
    {"embedding", ROW(MODULE_EMBEDDING), embedding, "", 0},
    {"enorm", ROW(ENORM), enorm, OF_NORM, 0},
    {"hidden", ROW(HNORM_INPUT), copy, "", 0},
    {"hnorm", ROW(HNORM), hnorm, OF_NORM, 0},
    {"concat", ROW(EH_INPUT), concat, "", 0},
    {"eh_proj", ROW(EH_PROJ), eh_proj, OF_LINEAR, 0},
    {"stream", ROW(LAYER_INPUT), copy, "", 0},
    {"input_layernorm", ROW(INPUT_NORM), input_norm, OF_NORM, 0},
    {"q_a_proj", ROW(Q_A), q_a, OF_LINEAR, 0},
    {"q_a_layernorm", ROW(Q_A_NORM), query_norm, OF_NORM, 0},
    {"q_b_proj", ROW(Q_B), q_b, OF_LINEAR, 0},
    {"q_proj", ROW(Q_PROJ), q_alone, OF_LINEAR, 0},
    {"kv_a_proj", ROW(KV_A), kv_a, OF_LINEAR, 0},
    {"kv_a_layernorm", ROW(LATENT), latent_norm, OF_NORM, 0},
    {"rope-q", ROW(Q_ROPE), rope_of_queries, OF_ROPE, 0},
    {"rope-k", ROW(K_ROPE), rope_of_keys, OF_ROPE, 0},
    {"indexer-wk", ROW(INDEX_WK), ref_op_index_wk, OF_LINEAR, 0},
    {"indexer-k_norm", ROW(INDEX_K_NORM), ref_op_index_norm,
     "the mean, the distance from it, the normalised row, its product, weights and bias", 0},
    {"indexer-rope-k", ROW(INDEX_K), ref_op_index_rope_k, OF_ROPE, 0},
    {"indexer-wq_b", ROW(INDEX_WQ_B), ref_op_index_wq_b, OF_LINEAR, 0},
    {"indexer-weights_proj", ROW(INDEX_WEIGHTS_PROJ), ref_op_index_weights_proj, "", 0},
    {"indexer-rope-q", ROW(INDEX_Q), ref_op_index_rope_q, OF_ROPE, 0},
    {"indexer-weights", ROW(INDEX_WEIGHTS), ref_op_index_weights,
     "the Hadamard transform, if it moves the scale of the codes; each product", 0},
    {"indexer-scores", ROW(INDEX_SCORES), ref_op_index_scores, OF_CODES "each product", 0},
    {"indexer-kept", ROW(INDEX_KEPT), ref_op_index_kept, "each score", 0},
    {"attention-scores", ROW(ATTENTION_SCORES), head_scores, OF_SCORES, 0},
    {"attention-probabilities", ROW(ATTENTION_PROBABILITIES), head_probabilities,
     OF_SCORES " and after it, the exponential, their sum, the quotient", 0},
    {"attention", ROW(ATTENTION_HEADS), attention, OF_ATTENTION, 0},
    {"o_proj", ROW(O_PROJ), o_proj, OF_LINEAR, 0},
    {"residual", ROW(MIDDLE), residual, "both terms", 0},
    {"post_attention_layernorm", ROW(POST_ATTENTION_NORM), attention_norm, OF_NORM, 0},
    {"router-logits", ROW(ROUTER_LOGITS), ref_op_gate, "", 0},
    {"router-scores", ROW(ROUTER_SCORES), ref_op_scores, "the exponential, the sum, the quotient", 0},
    {"router-choice", ROW(ROUTER_CHOICE), ref_op_choice, "score and bias", 0},
    {"router-group-scores", ROW(ROUTER_GROUP_SCORES), ref_op_group_scores, "both terms", 0},
    {"router-groups", ROW(ROUTER_GROUPS), ref_op_groups, "each group score", 0},
    {"router-experts", ROW(ROUTER_EXPERTS), ref_op_experts, "each score plus bias", ROUTER_CHOICE},
    {"router-experts", ROW(ROUTER_EXPERTS), ref_op_experts, "each score", ROUTER_SCORES},
    {"router-weights", ROW(ROUTER_WEIGHTS), ref_op_weights, "the score, the sum, the quotient, the factor", 0},
    {"expert", ROW(EXPERT_OUTPUT), ref_op_expert, OF_MLP, 0},
    {"chosen-experts", ROW(EXPERT_OUTPUTS), ref_op_chosen_experts, OF_MLP, 0},
    {"shared-expert", ROW(SHARED_EXPERTS), ref_op_shared_expert, OF_MLP, 0},
    {"sum-of-experts", ROW(MLP_OUTPUT), ref_op_sum_of_experts,
     "each weight, each expert's output, each product, each partial sum", EXPERT_OUTPUTS},
    {"mlp", ROW(MLP_OUTPUT), ref_op_dense, OF_MLP, POST_ATTENTION_NORM},
    {"residual", ROW(LAYER_OUTPUT), residual, "both terms", 0},
    {"stream", ROW(MODULE_NORM_INPUT), copy, "", 0},
    {"shared_head-norm", ROW(MODULE_NORM), head_norm, OF_NORM, 0},
    {"shared_head-head", ROW(MODULE_LOGITS), module_head, OF_LINEAR, 0},
    {"stream", ROW(FINAL_NORM_INPUT), copy, "", 0},
    {"norm", ROW(FINAL_NORM), final_norm, OF_NORM, 0},
    {"lm_head", ROW(LOGITS), head, OF_LINEAR, 0},
};

const struct reference_operator *reference_operator_at(size_t i)
{
    return i < sizeof table / sizeof *table ? &table[i] : NULL;
}

/* --- calls --- */

int reference_bench_open(struct reference_bench **out, const struct reference *r,
                         const struct reference_options *options, int rows, vb_error *err)
{
    struct reference_bench *b = *out = vb_alloc(&r->allocator, 1, sizeof *b);
    if (!b)
        return vb_fail(err, VB_NO_MEMORY, "no memory for operators");
    b->r = r;
    int rc = ref_run_open(&b->run, r, options, rows, err);
    if (rc) {
        vb_free(&r->allocator, b);
        *out = NULL;
    }
    return rc;
}

void reference_bench_close(struct reference_bench *b)
{
    if (!b)
        return;
    const struct reference *r = b->r;
    ref_run_close(&b->run);
    vb_free(&r->allocator, b);
}

void reference_bench_noise(struct reference_bench *b, double noise, int noisy_x, uint64_t seed)
{
    b->run.noise = noise;
    b->run.noisy_x = noisy_x;
    b->run.random = seed;
}

void reference_bench_weights(struct reference_bench *b, double unit) { b->run.weight_unit = unit; }

double reference_bench_random(struct reference_bench *b) { return ref_uniform(&b->run); }

void reference_compute(struct reference_bench *b, struct reference_call *k)
{
    const struct reference *r = b->r;
    int L = r->config.num_hidden_layers, modules = r->config.num_nextn_predict_layers;
    size_t width = k->op->row->width ? k->op->row->width(&r->config) : (size_t)k->S;
    k->run = &b->run;
    k->module = k->layer >= L ? &r->mtp[(k->layer - L) % modules] : NULL;
    k->w = k->module ? &k->module->layer : k->layer >= 0 ? &r->layers[k->layer] : NULL;
    k->inner = 0;
    k->terms = 1;
    b->run.layer = k->layer;
    b->run.result = "down"; /* the last value of an MLP; other operators pass no result to ref_value */
    if (k->slack)
        memset(k->slack, 0, (size_t)k->S * width * sizeof *k->slack);
    k->op->compute(k);
}
