/* tests/support/wide_checkpoint.c -- a generated checkpoint with matrices large enough for several threads. */
#include "tests/support/wide_checkpoint.h"

#include "tests/support/files.h"
#include "tests/support/random.h"

#define WIDE_D 512
#define WIDE_V 384

struct wide {
    char *header;
    uint16_t *data;
    size_t header_size, count, room; /* count, room: numbers in data */
    uint64_t random;
};

static uint16_t wide_bf16(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double wide_uniform(struct wide *w) { return (double)(next_random(&w->random) >> 11) * 0x1p-52 - 1.0; }

/* Adds a tensor [rows, cols], or [rows] when cols is 0, of uniform numbers in centre +- size. Returns the index of the
 * first in w->data. */
static size_t wide_tensor(struct wide *w, const char *prefix, const char *name, size_t rows, size_t cols, double centre,
                          double size)
{
    size_t n = rows * (cols ? cols : 1), at = w->count;
    char shape[64];
    assert_true(at + n <= w->room);
    snprintf(shape, sizeof shape, cols ? "[%zu,%zu]" : "[%zu]", rows, cols);
    w->header_size += (size_t)sprintf(w->header + w->header_size,
                                      "%s\"%s%s\":{\"dtype\":\"BF16\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                                      w->header_size ? "," : "{", prefix, name, shape, at * 2, (at + n) * 2);
    for (size_t i = 0; i < n; i++)
        w->data[at + i] = wide_bf16(centre + size * wide_uniform(w));
    w->count += n;
    return at;
}

static void wide_mlp(struct wide *w, const char *prefix, const char *of, size_t width)
{
    char name[96];
    snprintf(name, sizeof name, "%sgate_proj.weight", of);
    wide_tensor(w, prefix, name, width, WIDE_D, 0, 0.08);
    snprintf(name, sizeof name, "%sup_proj.weight", of);
    wide_tensor(w, prefix, name, width, WIDE_D, 0, 0.08);
    snprintf(name, sizeof name, "%sdown_proj.weight", of);
    wide_tensor(w, prefix, name, WIDE_D, width, 0, 0.3);
}

static void wide_layer(struct wide *w, int layer)
{
    char prefix[64], of[32];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    wide_tensor(w, prefix, "input_layernorm.weight", WIDE_D, 0, 1, 0.2);
    wide_tensor(w, prefix, "post_attention_layernorm.weight", WIDE_D, 0, 1, 0.2);
    wide_tensor(w, prefix, "self_attn.q_a_proj.weight", 96, WIDE_D, 0, 0.08);
    wide_tensor(w, prefix, "self_attn.q_a_layernorm.weight", 96, 0, 1, 0.2);
    wide_tensor(w, prefix, "self_attn.q_b_proj.weight", 4 * 48, 96, 0, 0.3);
    wide_tensor(w, prefix, "self_attn.kv_a_proj_with_mqa.weight", 64 + 16, WIDE_D, 0, 0.08);
    wide_tensor(w, prefix, "self_attn.kv_a_layernorm.weight", 64, 0, 1, 0.2);
    wide_tensor(w, prefix, "self_attn.kv_b_proj.weight", 4 * 64, 64, 0, 0.2);
    wide_tensor(w, prefix, "self_attn.o_proj.weight", WIDE_D, 4 * 32, 0, 0.3);
    if (layer == 0) {
        wide_mlp(w, prefix, "mlp.", 1536);
        return;
    }
    wide_tensor(w, prefix, "mlp.gate.weight", 4, WIDE_D, 0, 0.08);
    wide_tensor(w, prefix, "mlp.gate.e_score_correction_bias", 4, 0, 0, 0.1);
    for (int e = 0; e < 4; e++) {
        snprintf(of, sizeof of, "mlp.experts.%d.", e);
        wide_mlp(w, prefix, of, 128);
    }
    wide_mlp(w, prefix, "mlp.shared_experts.", 128);
}

static void wide_mtp(struct wide *w, int layer)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    wide_tensor(w, prefix, "enorm.weight", WIDE_D, 0, 1, 0.2);
    wide_tensor(w, prefix, "hnorm.weight", WIDE_D, 0, 1, 0.2);
    size_t at = wide_tensor(w, prefix, "eh_proj.weight", WIDE_D, 2 * WIDE_D, 0, 0.02);
    for (size_t i = 0; i < WIDE_D; i++)
        w->data[at + i * 2 * WIDE_D + i] = wide_bf16(1.0); /* eh_proj passes the embedding on */
    wide_layer(w, layer);
    wide_tensor(w, prefix, "shared_head.norm.weight", WIDE_D, 0, 1, 0.2);
}

void wide_checkpoint(char dir[64])
{
    struct wide w = {.room = 12u << 20, .random = 2026};
    size_t total;
    w.header = malloc(1 << 20);
    w.data = malloc(w.room * sizeof *w.data);
    assert_true(w.header && w.data);
    size_t embed = wide_tensor(&w, "", "model.embed_tokens.weight", WIDE_V, WIDE_D, 0, 1.5);
    for (int layer = 0; layer < 3; layer++)
        wide_layer(&w, layer);
    wide_mtp(&w, 3);
    wide_mtp(&w, 4);
    wide_tensor(&w, "", "model.norm.weight", WIDE_D, 0, 1, 0.2);
    size_t head = wide_tensor(&w, "", "lm_head.weight", WIDE_V, WIDE_D, 0, 0.05);
    for (size_t t = 0; t < WIDE_V; t++)
        for (size_t i = 0; i < WIDE_D; i++) {
            uint32_t bits = (uint32_t)w.data[embed + t * WIDE_D + i] << 16;
            float like;
            memcpy(&like, &bits, sizeof like);
            w.data[head + (t * 7 + 5) % WIDE_V * WIDE_D + i] = wide_bf16(0.02 * (double)like + 0.05 * wide_uniform(&w));
        }
    strcpy(w.header + w.header_size, "}");
    make_dir(dir);
    char *bytes = safetensors_bytes(w.header, w.data, w.count * 2, &total);
    write_file(dir, "model.safetensors", bytes, total);
    write_text(dir, "config.json",
               "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\",\"hidden_size\":512,"
               "\"vocab_size\":384,\"num_hidden_layers\":3,\"num_nextn_predict_layers\":2,\"first_k_dense_replace\":1,"
               "\"moe_layer_freq\":1,\"intermediate_size\":1536,\"moe_intermediate_size\":128,\"n_routed_experts\":4,"
               "\"n_shared_experts\":1,\"num_experts_per_tok\":2,\"n_group\":2,\"topk_group\":1,"
               "\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,\"scoring_func\":\"sigmoid\","
               "\"topk_method\":\"noaux_tc\",\"num_attention_heads\":4,\"num_key_value_heads\":4,\"q_lora_rank\":96,"
               "\"kv_lora_rank\":64,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,\"v_head_dim\":32,"
               "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"hidden_act\":\"silu\","
               "\"tie_word_embeddings\":false,\"bos_token_id\":0,\"eos_token_id\":1,\"attention_bias\":false}");
    free(bytes);
    free(w.header);
    free(w.data);
}
