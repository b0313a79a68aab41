/* tests/support/quantized.c -- GGUF files of small models made of random blocks. */
#include "tests/support/quantized.h"

#include "ops/quantize.h"

#include <math.h>

const struct block_type block_types[26] = {
    {"F32", 0, 1, 4, 0, 0, 0, 0},
    {"F16", 1, 1, 2, 0, 0, 0, 0},
    {"BF16", 30, 1, 2, 0, 0, 0, 0},
    {"Q8_0", 8, 32, 34, 0, 0, 74, 0},
    {"Q4_0", 2, 32, 18, 0, 0, 4.6, 0},
    {"Q5_0", 6, 32, 22, 0, 0, 9.2, 0},
    {"Q5_1", 7, 32, 24, 0, 2, 9.2, -15.5},
    {"Q4_K", 12, 256, 144, 0, 2, 240, 7.5},
    {"Q5_K", 13, 256, 176, 0, 2, 480, 15.5},
    {"Q6_K", 14, 256, 210, 208, 0, 1330, 0},
    {"MXFP4", 39, 32, 17, 0, 0, 5.9, 0},
    {"IQ1_M", 29, 256, 56, 0, 0, 7.6, 0},
    {"IQ2_XS", 17, 256, 74, 0, 0, 56, 0},
    {"Q4_1", 3, 32, 20, 0, 2, 4.6, -7.5},
    {"IQ4_NL", 20, 32, 18, 0, 0, 70, 0},
    {"IQ4_XS", 23, 256, 136, 0, 0, 1300, 0},
    {"Q3_K", 11, 256, 110, 108, 0, 43, 0},
    {"Q2_K", 10, 256, 84, 80, 82, 18, 1.5},
    {"NVFP4", 40, 64, 36, 0, 0, 5.9, 0},
    {"IQ2_XXS", 16, 256, 66, 0, 0, 53, 0},
    {"IQ2_S", 22, 256, 82, 0, 0, 56, 0},
    {"IQ3_XXS", 18, 256, 98, 0, 0, 142, 0},
    {"IQ3_S", 21, 256, 110, 0, 0, 140, 0},
    {"IQ1_S", 19, 256, 50, 0, 0, 7.2, 0},
    {"TQ1_0", 34, 256, 54, 52, 0, 0.82, 0},
    {"TQ2_0", 35, 256, 66, 64, 0, 1.2, 0},
};

static const struct block_type *block_type(const char *name)
{
    for (size_t i = 0; i < COUNT(block_types); i++)
        if (!strcmp(block_types[i].name, name))
            return &block_types[i];
    fail_msg("no type %s", name);
    return NULL;
}

/* In [-1, 1). */
static double uniform(uint64_t *seed) { return (double)(next_random(seed) >> 11) * 0x1p-52 - 1.0; }

static void store(char *to, const struct block_type *t, double x)
{
    float f = (float)x;
    if (t->bytes == 4)
        memcpy(to, &f, sizeof f);
    else if (t->type == TYPE_F16)
        op_store_f16(to, &f, 1);
    else
        op_store_bf16(to, &f, 1);
}

/* n numbers of about this size, with mean 0, as blocks of type t. The caller frees them. */
static char *random_numbers(const struct block_type *t, size_t n, double size, uint64_t *seed, size_t *bytes)
{
    assert_int_equal(n % t->numbers, 0);
    *bytes = n / t->numbers * t->bytes;
    char *out = malloc(*bytes);
    assert_non_null(out);
    for (size_t i = 0; t->numbers > 1 && i < *bytes; i++)
        out[i] = (char)next_random(seed);
    for (char *b = out; b < out + *bytes; b += t->bytes) {
        double x = uniform(seed), d = size / t->spread * (1 + x / 2) * (next_random(seed) % 8 ? 1 : -1);
        if (t->numbers == 1)
            store(b, t, x * size * 1.7);
        else if (t->bytes == 36)
            for (int s = 0; s < 4; s++) /* 1 to 4 */
                b[s] = (char)(0x38 + next_random(seed) % 16);
        else if (t->bytes == 56) {
            uint16_t half;
            op_store_f16(&half, &(float){(float)d}, 1);
            for (int k = 0; k < 4; k++) /* four bits each in the upper halves of the bytes 49, 51, 53 and 55 */
                b[49 + 2 * k] = (char)((b[49 + 2 * k] & 15) | (half >> 4 * k & 15) << 4);
        } else if (t->bytes == 17)
            *b = (char)(128 + lrint(log2(fabs(d))));
        else
            op_store_f16(b + t->d_at, &(float){(float)d}, 1);
        if (t->minimum_at)
            op_store_f16(b + t->minimum_at, &(float){(float)(d * t->minimum * (1 + uniform(seed) / 8))}, 1);
    }
    return out;
}

static void put_random(struct gguf_writer *w, struct quantized_model *q, const char *prefix, const char *name,
                       const char *type, int ndim, const size_t *extents, double size)
{
    char whole[64];
    size_t n = 1, bytes, kinds = 0;
    for (int d = 0; d < ndim; d++)
        n *= extents[d];
    while (kinds < 4 && q->types[kinds])
        kinds++;
    const struct block_type *t = block_type(type ? type : q->types[q->taken++ % kinds]);
    char *numbers = random_numbers(t, n, size, &q->seed, &bytes);
    snprintf(whole, sizeof whole, "%s%s.weight", prefix, name);
    tensor(w, whole, t->type, ndim, extents, numbers, bytes);
    free(numbers);
    if (t->bytes == 36) { /* each expert has a number */
        float totals[16];
        size_t count = strstr(name, "_exps") ? extents[0] : 1;
        for (size_t i = 0; i < count; i++)
            totals[i] = (float)(size / t->spread * (1 + uniform(&q->seed) / 2));
        snprintf(whole, sizeof whole, "%s%s.scale", prefix, name);
        put_vector(w, "", whole, totals, count);
        snprintf(whole, sizeof whole, "%s%s.input_scale", prefix, name);
        put_vector(w, "", whole, totals, count);
    }
}

/* A matrix [rows, cols] of a linear layer. E > 0: those of so many experts, in one tensor. */
static void put_linear(struct gguf_writer *w, struct quantized_model *q, const char *prefix, const char *name,
                       const char *type, size_t E, int rows, int cols)
{
    size_t extents[] = {E, (size_t)rows, (size_t)cols};
    put_random(w, q, prefix, name, type, E ? 3 : 2, E ? extents : extents + 1, 1.5 / sqrt(cols));
}

static void put_norm(struct gguf_writer *w, struct quantized_model *q, const char *prefix, const char *name, int n)
{
    char whole[64];
    float v[512];
    for (int i = 0; i < n; i++)
        v[i] = (float)(1 + uniform(&q->seed) / 4);
    snprintf(whole, sizeof whole, "%s%s.weight", prefix, name);
    put_vector(w, "", whole, v, (size_t)n);
}

static void put_random_mlp(struct gguf_writer *w, struct quantized_model *q, const char *prefix, const char *ending,
                           size_t E, int D, int width)
{
    char name[32];
    snprintf(name, sizeof name, "ffn_gate%s", ending);
    put_linear(w, q, prefix, name, NULL, E, width, D);
    snprintf(name, sizeof name, "ffn_up%s", ending);
    put_linear(w, q, prefix, name, NULL, E, width, D);
    snprintf(name, sizeof name, "ffn_down%s", ending);
    put_linear(w, q, prefix, name, NULL, E, D, width);
}

static void put_random_attention(struct gguf_writer *w, struct quantized_model *q, const struct config *c,
                                 const char *p)
{
    int D = c->hidden_size, H = c->num_attention_heads, N = c->qk_nope_head_dim, R = c->qk_rope_head_dim,
        V = c->v_head_dim;
    int C = c->kv_lora_rank, Q = c->q_lora_rank;
    size_t h = (size_t)H;
    put_norm(w, q, p, "attn_norm", D);
    if (Q) {
        put_linear(w, q, p, "attn_q_a", NULL, 0, Q, D);
        put_norm(w, q, p, "attn_q_a_norm", Q);
        put_linear(w, q, p, "attn_q_b", NULL, 0, H * (N + R), Q);
    } else {
        put_linear(w, q, p, "attn_q", NULL, 0, H * (N + R), D);
    }
    put_linear(w, q, p, "attn_kv_a_mqa", NULL, 0, C + R, D);
    put_norm(w, q, p, "attn_kv_a_norm", C);
    if (q->k_b) {
        put_random(w, q, p, "attn_k_b", q->k_b, 3, (size_t[]){h, (size_t)C, (size_t)N}, 1.5 / sqrt(C));
        put_random(w, q, p, "attn_v_b", q->v_b, 3, (size_t[]){h, (size_t)V, (size_t)C}, 1.5 / sqrt(C));
    } else {
        put_linear(w, q, p, "attn_kv_b", NULL, 0, H * (N + V), C);
    }
    put_linear(w, q, p, "attn_output", NULL, 0, D, H * V);
}

static void put_random_layer(struct gguf_writer *w, struct quantized_model *q, const struct config *c, int index)
{
    int D = c->hidden_size, E = c->n_routed_experts, I = c->moe_intermediate_size;
    char p[16];
    float bias[16];
    snprintf(p, sizeof p, "blk.%d.", index);
    put_random_attention(w, q, c, p);
    put_norm(w, q, p, "ffn_norm", D);
    if (index < c->first_k_dense_replace) {
        put_random_mlp(w, q, p, "", 0, D, c->intermediate_size);
        return;
    }
    put_linear(w, q, p, "ffn_gate_inp", q->gate ? q->gate : "F32", 0, E, D);
    for (int e = 0; e < E; e++)
        bias[e] = (float)(uniform(&q->seed) / 16);
    put_vector(w, p, "exp_probs_b.bias", bias, (size_t)E);
    put_random_mlp(w, q, p, "_exps", (size_t)E, D, I);
    put_random_mlp(w, q, p, "_shexp", 0, D, I * c->n_shared_experts);
}

/* One dense layer, and an MTP module with experts. */
static struct config quantized_config(const struct quantized_model *q)
{
    struct config c = {
        .vocab_size = 96,
        .hidden_size = q->large ? 256 : 64,
        .num_hidden_layers = 1,
        .num_nextn_predict_layers = 1,
        .max_position_embeddings = 128,
        .rms_norm_eps = 1e-6,
        .num_attention_heads = 2,
        .q_lora_rank = q->large ? 0 : 32,
        .kv_lora_rank = q->large ? 256 : 64,
        .qk_nope_head_dim = q->large ? 256 : 32,
        .qk_rope_head_dim = 8,
        .v_head_dim = q->large ? 128 : 16,
        .rope_theta = 10000,
        .intermediate_size = q->large ? 256 : 96,
        .moe_intermediate_size = q->large ? 256 : 32,
        .n_routed_experts = 4,
        .n_shared_experts = 1,
        .num_experts_per_tok = 2,
        .n_group = 1,
        .topk_group = 1,
        .first_k_dense_replace = 1,
        .moe_layer_freq = 1,
        .norm_topk_prob = 1,
        .routed_scaling_factor = 1.5,
        .scoring_func = SCORING_SIGMOID,
        .bos_token_id = 0,
        .num_eos = 1,
        .eos_token_ids = {1},
        .tie_word_embeddings = q->tied,
    };
    config_set_dims(&c);
    return c;
}

void write_quantized(const char *dir, const char *name, struct quantized_model q)
{
    vb_model m = {.config = quantized_config(&q), .num_mtp = 1};
    const struct config *c = &m.config;
    int D = c->hidden_size;
    struct gguf_writer w = {0};
    q.seed += 1;
    put_config(&w, &m, &(struct gguf_choice){.unsplit = !q.k_b});
    put_random(&w, &q, "", "token_embd", q.embedding, 2, (size_t[]){(size_t)c->vocab_size, (size_t)D}, 1);
    put_norm(&w, &q, "", "output_norm", D);
    if (!q.tied)
        put_linear(&w, &q, "", "output", NULL, 0, c->vocab_size, D);
    put_random_layer(&w, &q, c, 0);
    put_random_layer(&w, &q, c, 1);
    put_norm(&w, &q, "blk.1.nextn.", "enorm", D);
    put_norm(&w, &q, "blk.1.nextn.", "hnorm", D);
    put_norm(&w, &q, "blk.1.nextn.", "shared_head_norm", D);
    put_linear(&w, &q, "blk.1.nextn.", "eh_proj", NULL, 0, D, 2 * D);
    gguf_write(&w, dir, name);
}
