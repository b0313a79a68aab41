/* tests/support/small_checkpoint.c -- generated checkpoints that are small enough to compute them some thousand
 * times. */
#include "tests/support/small_checkpoint.h"

#include "tests/support/differences.h"
#include "tests/support/files.h"

enum { D = 8,
       H = 2,
       N = 4,
       R = 4,
       VALUE = 3,
       C = 6,
       Q = 5,
       E = 4,
       DENSE = 7,
       EXPERT = 3,
       LAYERS = 2 };

#define V3_KEYS \
    "\"n_group\":2,\"topk_group\":1,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"routed_scaling_" \
    "factor\":1.5,"
#define YARN \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":16,\"beta_fast\":4,\"beta_" \
    "slow\":1," \
    "\"mscale\":1.0,\"mscale_all_dim\":0.7},"

const struct small_checkpoint small_checkpoints[] = {
    {"v3", "DeepseekV3ForCausalLM", V3_KEYS YARN "\"norm_topk_prob\":true,", .bias = 1, .modules = 2},
    {"v2, tied, no q_lora", "DeepseekV2ForCausalLM",
     "\"n_group\":1,\"topk_group\":1,\"topk_method\":\"greedy\",\"norm_topk_prob\":false,"
     "\"routed_scaling_factor\":1.5,",
     .tied = 1, .no_q_lora = 1},
    {"v2", "DeepseekV2ForCausalLM",
     "\"n_group\":2,\"topk_group\":1,\"topk_method\":\"group_limited_greedy\",\"norm_topk_prob\":true,"
     "\"routed_scaling_factor\":1.5,", .modules = 0},
    {"mistral4", "Mistral4ForCausalLM",
     "\"n_group\":2,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,"
     "\"rope_parameters\":{\"type\":\"yarn\",\"rope_theta\":10000.0,\"factor\":4.0,"
     "\"original_max_position_embeddings\":4,\"max_position_embeddings\":64,\"beta_fast\":4.0,\"beta_slow\":1.0,"
     "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"llama_4_scaling_beta\":0.1},",
     .all_experts = 1},
    {"v3, halves", "DeepseekV3ForCausalLM", V3_KEYS "\"norm_topk_prob\":false,\"rope_interleave\":false,", .bias = 1,
     .modules = 1},
    {.name = NULL},
};

const struct small_checkpoint small_with_heads[] = {
    {"v3, heads", "DeepseekV3ForCausalLM", V3_KEYS YARN "\"norm_topk_prob\":true,\"n_future_tokens\":3,", .bias = 1,
     .heads = 2},
    {"v2, a head after the last layer", "DeepseekV2ForCausalLM",
     "\"n_group\":1,\"topk_group\":1,\"topk_method\":\"greedy\",\"norm_topk_prob\":false,\"routed_scaling_factor\":1.5,"
     "\"n_future_tokens\":2,\"trunk_layers\":2,",
     .tied = 1, .no_q_lora = 1, .heads = 1},
    {.name = NULL},
};

struct writer {
    char header[1 << 15];
    float data[1 << 13];
    size_t used, count;
    uint64_t state;
};

/* rows 0: a vector with cols numbers */
static void put(struct writer *w, const char *prefix, const char *name, size_t rows, size_t cols)
{
    char shape[64];
    size_t n = (rows ? rows : 1) * cols;
    assert_true(w->count + n <= COUNT(w->data) && w->used + 400 < sizeof w->header);
    if (rows)
        snprintf(shape, sizeof shape, "[%zu,%zu]", rows, cols);
    else
        snprintf(shape, sizeof shape, "[%zu]", cols);
    w->used += (size_t)sprintf(w->header + w->used,
                               "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                               w->used ? "," : "{", prefix, name, shape, 4 * w->count, 4 * (w->count + n));
    for (size_t i = 0; i < n; i++) { /* norms about 1 */
        double x = random_argument(&w->state);
        w->data[w->count++] = (float)(rows ? x : 1 + x / 2);
    }
}

static void put_mlp(struct writer *w, const char *prefix, const char *of, size_t width)
{
    char name[96];
    snprintf(name, sizeof name, "mlp.%sgate_proj.weight", of);
    put(w, prefix, name, width, D);
    snprintf(name, sizeof name, "mlp.%sup_proj.weight", of);
    put(w, prefix, name, width, D);
    snprintf(name, sizeof name, "mlp.%sdown_proj.weight", of);
    put(w, prefix, name, D, width);
}

static void put_layer(struct writer *w, const struct small_checkpoint *c, const char *prefix, int dense)
{
    put(w, prefix, "input_layernorm.weight", 0, D);
    put(w, prefix, "post_attention_layernorm.weight", 0, D);
    if (c->no_q_lora) {
        put(w, prefix, "self_attn.q_proj.weight", H * (N + R), D);
    } else {
        put(w, prefix, "self_attn.q_a_proj.weight", Q, D);
        put(w, prefix, "self_attn.q_a_layernorm.weight", 0, Q);
        put(w, prefix, "self_attn.q_b_proj.weight", H * (N + R), Q);
    }
    put(w, prefix, "self_attn.kv_a_proj_with_mqa.weight", C + R, D);
    put(w, prefix, "self_attn.kv_a_layernorm.weight", 0, C);
    put(w, prefix, "self_attn.kv_b_proj.weight", H * (N + VALUE), C);
    put(w, prefix, "self_attn.o_proj.weight", D, H * VALUE);
    if (dense) {
        put_mlp(w, prefix, "", DENSE);
        return;
    }
    put(w, prefix, "mlp.gate.weight", E, D);
    if (c->bias)
        put(w, prefix, "mlp.gate.e_score_correction_bias", 0, E);
    for (int e = 0; e < E; e++) {
        char of[32];
        snprintf(of, sizeof of, "experts.%d.", e);
        put_mlp(w, prefix, of, EXPERT);
    }
    put_mlp(w, prefix, "shared_experts.", EXPERT);
}

static void put_module(struct writer *w, const struct small_checkpoint *c, const char *prefix, int copies)
{
    put(w, prefix, "enorm.weight", 0, D);
    put(w, prefix, "hnorm.weight", 0, D);
    put(w, prefix, "eh_proj.weight", D, 2 * D);
    put_layer(w, c, prefix, 0);
    put(w, prefix, "shared_head.norm.weight", 0, D);
    if (copies) {
        put(w, prefix, "embed_tokens.weight", SMALL_V, D);
        put(w, prefix, "shared_head.head.weight", SMALL_V, D);
    }
}

void small_checkpoint(char dir[64], const struct small_checkpoint *c)
{
    static struct writer w;
    char prefix[64], config[2048];
    w = (struct writer){.state = 41};
    make_dir(dir);
    put(&w, "", "model.embed_tokens.weight", SMALL_V, D);
    put(&w, "", "model.norm.weight", 0, D);
    if (!c->tied)
        put(&w, "", "lm_head.weight", SMALL_V, D);
    for (int l = 0; l < LAYERS + c->modules; l++) {
        snprintf(prefix, sizeof prefix, "model.layers.%d.", l);
        if (l < LAYERS)
            put_layer(&w, c, prefix, l == 0 && !c->all_experts);
        else
            put_module(&w, c, prefix, l == LAYERS);
    }
    for (int k = 0; k < c->heads; k++) {
        snprintf(prefix, sizeof prefix, "extra_heads.%d.", k);
        put_layer(&w, c, prefix, 0);
    }
    strcpy(w.header + w.used, "}");
    write_safetensors(dir, "model.safetensors", w.header, w.data, w.count * sizeof *w.data);
    snprintf(config, sizeof config,
             "{\"architectures\":[\"%s\"],%s\"hidden_size\":%d,\"vocab_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_nextn_predict_layers\":%d,\"first_k_dense_replace\":%d,\"intermediate_size\":%d,"
             "\"moe_intermediate_size\":%d,\"n_routed_experts\":%d,\"n_shared_experts\":1,\"num_experts_per_tok\":2,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"q_lora_rank\":%s,\"kv_lora_rank\":%d,"
             "\"qk_nope_head_dim\":%d,\"qk_rope_head_dim\":%d,\"v_head_dim\":%d,\"max_position_embeddings\":64,"
             "\"rms_norm_eps\":0.001,\"hidden_act\":\"silu\",\"tie_word_embeddings\":%s}",
             c->architecture, c->keys, D, SMALL_V, LAYERS, c->modules, c->all_experts ? 0 : 1, DENSE, EXPERT, E, H, H,
             c->no_q_lora ? "null" : "5", C, N, R, VALUE, c->tied ? "true" : "false");
    write_text(dir, "config.json", config);
}
