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

static int has_query_rank(const struct config *c, int layer) { (void)layer; return c->q_lora_rank > 0; }
static int lacks_query_rank(const struct config *c, int layer) { (void)layer; return !c->q_lora_rank; }
static int has_indexer(const struct config *c, int layer) { return c->index_topk && !config_layer_is_shared(c, layer); }
static int is_moe(const struct config *c, int layer) { return config_layer_is_moe(c, layer); }
static int is_dense(const struct config *c, int layer) { return !config_layer_is_moe(c, layer); }
static int is_biased(const struct config *c, int layer) { return is_moe(c, layer) && c->topk_method == TOPK_NOAUX_TC; }
static int is_unbiased(const struct config *c, int layer) { return is_moe(c, layer) && !is_biased(c, layer); }
static int has_shared(const struct config *c, int layer) { return is_moe(c, layer) && c->n_shared_experts > 0; }
static int is_grouped(const struct config *c, int layer)
{
    return is_moe(c, layer) && c->topk_method != TOPK_GREEDY && c->topk_group < c->n_group;
}
static int biased_and_grouped(const struct config *c, int layer) { return is_biased(c, layer) && is_grouped(c, layer); }
static int unbiased_and_grouped(const struct config *c, int layer)
{
    return is_unbiased(c, layer) && is_grouped(c, layer);
}

#define WIDTH(name, expression) \
    static size_t name(const struct config *c, int layer) \
    { \
        (void)layer; \
        return (size_t)(expression); \
    }
WIDTH(wide_d, c->hidden_size)
WIDTH(wide_2d, 2 * c->hidden_size)
WIDTH(wide_q_a, c->q_lora_rank)
WIDTH(wide_q, c->num_attention_heads * (c->qk_nope_head_dim + c->qk_rope_head_dim))
WIDTH(wide_kv_a, c->kv_lora_rank + c->qk_rope_head_dim)
WIDTH(wide_c, c->kv_lora_rank)
WIDTH(wide_hr, c->num_attention_heads * c->qk_rope_head_dim)
WIDTH(wide_r, c->qk_rope_head_dim)
WIDTH(wide_hv, c->num_attention_heads * c->v_head_dim)
WIDTH(wide_e, c->n_routed_experts)
WIDTH(wide_g, c->n_group)
WIDTH(wide_kept, c->topk_group)
WIDTH(wide_x, c->num_experts_per_tok)
WIDTH(wide_xd, c->num_experts_per_tok * c->hidden_size)
WIDTH(wide_v, c->vocab_size)
WIDTH(wide_index_k, c->index_head_dim)
WIDTH(wide_index_q, c->index_n_heads * c->index_head_dim)
WIDTH(wide_index_w, c->index_n_heads)
WIDTH(wide_index_kept, c->index_topk)

#define OF_NORM "the normalised row, the weights, and the residual that was added just before"
#define OF_LINEAR "weights that the arithmetic cannot represent"
#define OF_MLP "gate, up, SiLU, their product, and weights that the arithmetic cannot represent"
#define OF_ATTENTION \
    "absorbed queries or keys and values of the heads, both parts of the scores, scores before and after the scale, " \
    "probabilities, mixed latents"
#define OF_SCORES "absorbed queries or keys of the head, both parts of the sum, the score before the scale"
#define Q_OUT \
    "self_attn.q_b_proj.output", "self_attn.q_rope", "self_attn.kv_a_layernorm.output", "self_attn.k_rope", "<kept"
#define QA_OUT \
    "self_attn.q_proj.output", "self_attn.q_rope", "self_attn.kv_a_layernorm.output", "self_attn.k_rope", "<kept"
#define NORMED "input_layernorm.output"
#define KV_A "self_attn.kv_a_proj_with_mqa.output"
#define FFN_IN "post_attention_layernorm.output"
#define IN_ROUTER .of_router = 1
#define IN_INDEXER(width, compute) REFERENCE_LAYER, has_indexer, width, ref_op_index_##compute
#define INDEXER "self_attn.indexer."
#define OF_CODES "the Hadamard transform, and codes that it moves to a neighbour; "
#define OF_HEAD(exists, compute) REFERENCE_LAYER, exists, NULL, compute, .all_rows = 2

static const struct reference_operator table[] = {
    {"embedding", "model.embed_tokens.output", {"tokens"}, REFERENCE_WHOLE, NULL, wide_d, embedding, .counted = ""},
    {"embedding", "embed_tokens.output", {"tokens"}, REFERENCE_MODULE, NULL, wide_d, embedding, .counted = ""},
    {"enorm", "enorm.output", {"embed_tokens.output"}, REFERENCE_MODULE, NULL, wide_d, enorm, .counted = OF_NORM},
    {"hidden", "hnorm.input", {"<hidden"}, REFERENCE_MODULE, NULL, wide_d, copy, .copies = 1, .counted = ""},
    {"hnorm", "hnorm.output", {"hnorm.input"}, REFERENCE_MODULE, NULL, wide_d, hnorm, .counted = OF_NORM},
    {"concat", "eh_proj.input", {"enorm.output", "hnorm.output"}, REFERENCE_MODULE, NULL, wide_2d, concat, .copies = 1,
     .counted = ""},
    {"eh_proj", "eh_proj.output", {"eh_proj.input"}, REFERENCE_MODULE, NULL, wide_d, eh_proj, .counted = OF_LINEAR},
    {"stream", "input_layernorm.input", {"<layer"}, REFERENCE_LAYER, NULL, wide_d, copy, .copies = 1, .counted = ""},
    {"input_layernorm", NORMED, {"input_layernorm.input"}, REFERENCE_LAYER, NULL, wide_d, input_norm,
     .counted = OF_NORM},
    {"q_a_proj", "self_attn.q_a_proj.output", {NORMED}, REFERENCE_LAYER, has_query_rank, wide_q_a, q_a,
     .counted = OF_LINEAR},
    {"q_a_layernorm", "self_attn.q_a_layernorm.output", {"self_attn.q_a_proj.output"}, REFERENCE_LAYER, has_query_rank,
     wide_q_a, query_norm, .counted = OF_NORM},
    {"q_b_proj", "self_attn.q_b_proj.output", {"self_attn.q_a_layernorm.output"}, REFERENCE_LAYER, has_query_rank,
     wide_q, q_b, .counted = OF_LINEAR},
    {"q_proj", "self_attn.q_proj.output", {NORMED}, REFERENCE_LAYER, lacks_query_rank, wide_q, q_alone,
     .counted = OF_LINEAR},
    {"kv_a_proj", KV_A, {NORMED}, REFERENCE_LAYER, NULL, wide_kv_a, kv_a, .counted = OF_LINEAR},
    {"kv_a_layernorm", "self_attn.kv_a_layernorm.output", {KV_A}, REFERENCE_LAYER, NULL, wide_c, latent_norm,
     .counted = OF_NORM},
    {"rope-q", "self_attn.q_rope", {"self_attn.q_b_proj.output"}, REFERENCE_LAYER, has_query_rank, wide_hr,
     rope_of_queries, .counted = "cosine and sine, and each product"},
    {"rope-q", "self_attn.q_rope", {"self_attn.q_proj.output"}, REFERENCE_LAYER, lacks_query_rank, wide_hr,
     rope_of_queries, .counted = "cosine and sine, and each product"},
    {"rope-k", "self_attn.k_rope", {KV_A}, REFERENCE_LAYER, NULL, wide_r, rope_of_keys,
     .counted = "cosine and sine, and each product"},
    {"indexer-wk", INDEXER "wk.output", {NORMED}, IN_INDEXER(wide_index_k, wk), .counted = OF_LINEAR},
    {"indexer-k_norm", INDEXER "k_norm.output", {INDEXER "wk.output"}, IN_INDEXER(wide_index_k, norm),
     .counted = "the mean, the distance from it, the normalised row, its product, weights and bias"},
    {"indexer-rope-k", INDEXER "k", {INDEXER "k_norm.output"}, IN_INDEXER(wide_index_k, rope_k),
     .counted = "cosine and sine, and each product"},
    {"indexer-wq_b", INDEXER "wq_b.output", {"self_attn.q_a_layernorm.output"}, IN_INDEXER(wide_index_q, wq_b),
     .counted = OF_LINEAR},
    {"indexer-weights_proj", INDEXER "weights_proj.output", {NORMED}, IN_INDEXER(wide_index_w, weights_proj), IN_ROUTER,
     .counted = ""},
    {"indexer-rope-q", INDEXER "q", {INDEXER "wq_b.output"}, IN_INDEXER(wide_index_q, rope_q),
     .counted = "cosine and sine, and each product"},
    {"indexer-weights", INDEXER "weights", {INDEXER "weights_proj.output", INDEXER "q"},
     IN_INDEXER(wide_index_w, weights),
     .counted = "the Hadamard transform, if it moves the scale of the codes; each product"},
    {"indexer-scores", INDEXER "scores", {INDEXER "q", INDEXER "weights", INDEXER "k"}, IN_INDEXER(NULL, scores),
     .all_rows = 2, .counted = OF_CODES "each product"},
    {"indexer-kept", INDEXER "kept", {INDEXER "scores"}, IN_INDEXER(wide_index_kept, kept), .chooses = 1,
     .counted = "each score"},
    {"attention-scores", "self_attn.scores.H", {Q_OUT}, OF_HEAD(has_query_rank, head_scores), .counted = OF_SCORES},
    {"attention-scores", "self_attn.scores.H", {QA_OUT}, OF_HEAD(lacks_query_rank, head_scores), .counted = OF_SCORES},
    {"attention-probabilities", "self_attn.probabilities.H", {Q_OUT}, OF_HEAD(has_query_rank, head_probabilities),
     .counted = OF_SCORES " and after it, the exponential, their sum, the quotient"},
    {"attention-probabilities", "self_attn.probabilities.H", {QA_OUT}, OF_HEAD(lacks_query_rank, head_probabilities),
     .counted = OF_SCORES " and after it, the exponential, their sum, the quotient"},
    {"attention", "self_attn.o_proj.input", {Q_OUT}, REFERENCE_LAYER, has_query_rank, wide_hv, attention, .all_rows = 2,
     .counted = OF_ATTENTION},
    {"attention", "self_attn.o_proj.input", {QA_OUT}, REFERENCE_LAYER, lacks_query_rank, wide_hv, attention,
     .all_rows = 2, .counted = OF_ATTENTION},
    {"o_proj", "self_attn.o_proj.output", {"self_attn.o_proj.input"}, REFERENCE_LAYER, NULL, wide_d, o_proj,
     .counted = OF_LINEAR},
    {"residual", "post_attention_layernorm.input", {"input_layernorm.input", "self_attn.o_proj.output"},
     REFERENCE_LAYER, NULL, wide_d, residual, .counted = "both terms"},
    {"post_attention_layernorm", FFN_IN, {"post_attention_layernorm.input"}, REFERENCE_LAYER, NULL, wide_d,
     attention_norm, .counted = OF_NORM},
    {"router-logits", "mlp.gate.output", {FFN_IN}, REFERENCE_LAYER, is_moe, wide_e, ref_op_gate, IN_ROUTER,
     .counted = ""},
    {"router-scores", "mlp.gate.scores", {"mlp.gate.output"}, REFERENCE_LAYER, is_moe, wide_e, ref_op_scores, IN_ROUTER,
     .counted = "the exponential, the sum, the quotient"},
    {"router-choice", "mlp.gate.choice", {"mlp.gate.scores"}, REFERENCE_LAYER, is_biased, wide_e, ref_op_choice,
     IN_ROUTER, .counted = "score and bias"},
    {"router-group-scores", "mlp.gate.group_scores", {"mlp.gate.choice"}, REFERENCE_LAYER, biased_and_grouped, wide_g,
     ref_op_group_scores, IN_ROUTER, .counted = "both terms"},
    {"router-group-scores", "mlp.gate.group_scores", {"mlp.gate.scores"}, REFERENCE_LAYER, unbiased_and_grouped, wide_g,
     ref_op_group_scores, IN_ROUTER, .counted = "both terms"},
    {"router-groups", "mlp.gate.groups", {"mlp.gate.group_scores"}, REFERENCE_LAYER, is_grouped, wide_kept,
     ref_op_groups, IN_ROUTER, .chooses = 1, .counted = "each group score"},
    {"router-experts", "mlp.gate.experts", {"mlp.gate.choice", "mlp.gate.groups?"}, REFERENCE_LAYER, is_biased, wide_x,
     ref_op_experts, IN_ROUTER, .chooses = 1, .counted = "each score plus bias"},
    {"router-experts", "mlp.gate.experts", {"mlp.gate.scores", "mlp.gate.groups?"}, REFERENCE_LAYER, is_unbiased,
     wide_x, ref_op_experts, IN_ROUTER, .chooses = 1, .counted = "each score"},
    {"router-weights", "mlp.gate.weights", {"mlp.gate.scores", "mlp.gate.experts"}, REFERENCE_LAYER, is_moe, wide_x,
     ref_op_weights, IN_ROUTER, .counted = "the score, the sum, the quotient, the factor"},
    {"expert", "mlp.experts.E.output", {FFN_IN}, REFERENCE_LAYER, is_moe, wide_d, ref_op_expert, .counted = OF_MLP},
    {"chosen-experts", "mlp.experts", {FFN_IN, "mlp.gate.experts"}, REFERENCE_LAYER, is_moe, wide_xd,
     ref_op_chosen_experts, .counted = OF_MLP},
    {"shared-expert", "mlp.shared_experts.output", {FFN_IN}, REFERENCE_LAYER, has_shared, wide_d, ref_op_shared_expert,
     .counted = OF_MLP},
    {"sum-of-experts", "mlp.output", {"mlp.experts", "mlp.gate.weights", "mlp.shared_experts.output?"}, REFERENCE_LAYER,
     is_moe, wide_d, ref_op_sum_of_experts,
     .counted = "each weight, each expert's output, each product, each partial sum"},
    {"mlp", "mlp.output", {FFN_IN}, REFERENCE_LAYER, is_dense, wide_d, ref_op_dense, .counted = OF_MLP},
    {"residual", "output", {"post_attention_layernorm.input", "mlp.output"}, REFERENCE_LAYER, NULL, wide_d, residual,
     .counted = "both terms"},
    {"stream", "shared_head.norm.input", {"output"}, REFERENCE_MODULE, NULL, wide_d, copy, .copies = 1, .counted = ""},
    {"shared_head-norm", "shared_head.norm.output", {"shared_head.norm.input"}, REFERENCE_MODULE, NULL, wide_d,
     head_norm, .counted = OF_NORM},
    {"shared_head-head", "shared_head.head.output", {"shared_head.norm.output"}, REFERENCE_MODULE, NULL, wide_v,
     module_head, .counted = OF_LINEAR},
    {"stream", "model.norm.input", {"<layer"}, REFERENCE_WHOLE, NULL, wide_d, copy, .copies = 1, .counted = ""},
    {"norm", "model.norm.output", {"model.norm.input"}, REFERENCE_WHOLE, NULL, wide_d, final_norm, .counted = OF_NORM},
    {"lm_head", "lm_head.output", {"model.norm.output"}, REFERENCE_WHOLE, NULL, wide_v, head, .counted = OF_LINEAR},
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
    k->run = &b->run;
    k->module = k->layer >= L ? &r->mtp[(k->layer - L) % modules] : NULL;
    k->w = k->module ? &k->module->layer : k->layer >= 0 ? &r->layers[k->layer] : NULL;
    k->inner = 0;
    k->terms = 1;
    b->run.layer = k->layer;
    b->run.result = "down"; /* the last value of an MLP; other operators pass no result to ref_value */
    if (k->slack)
        memset(k->slack, 0,
               (size_t)k->S * (k->op->width ? k->op->width(&r->config, k->layer) : (size_t)k->S) * sizeof *k->slack);
    k->op->compute(k);
}
