#include "tests/support/layout_checkpoint.h"

#include "tests/support/engine_support.h"

#define BLOCK_ROWS 48 /* of FP8 scales */
#define BLOCK_COLS 64
#define MODULES 1
#define LAYERS 2
#define EXPERTS 4
#define Q_LORA 64
#define LATENT 64
#define NOPE 32
#define ROPE 16

const char *const layout_names[LAYOUTS] = {"BF16", "FP8", "INT4", "NVFP4", "MXFP4", "I8"};

struct layout_file {
    struct layout_checkpoint c;
    json_t *header;
    unsigned char *data;
    size_t used, room;
    uint64_t random;
};

static size_t below(struct layout_file *f, size_t n) { return random_below(&f->random, n); }

/* Adds a tensor and returns its bytes, which the caller fills in. cols 0: it is a vector. */
static unsigned char *add(struct layout_file *f, const char *name, const char *more, const char *dtype, size_t rows,
                          size_t cols, size_t bytes)
{
    char full[160];
    size_t at = f->used;
    snprintf(full, sizeof full, "%s%s", name, more);
    assert_true(f->used + bytes <= f->room);
    json_t *shape = cols ? json_pack("[I,I]", (json_int_t)rows, (json_int_t)cols) : json_pack("[I]", (json_int_t)rows);
    json_object_set_new(f->header, full,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets", (json_int_t)at,
                                  (json_int_t)(at + bytes)));
    f->used += bytes;
    return f->data + at;
}

static void put_bf16(unsigned char *to, double x)
{
    float narrow = (float)x;
    memcpy(to, (unsigned char *)&narrow + 2, 2);
}

/* Numbers in centre +- size. */
static void add_bf16(struct layout_file *f, const char *name, const char *more, size_t rows, size_t cols, double centre,
                     double size)
{
    size_t n = rows * (cols ? cols : 1);
    unsigned char *to = add(f, name, more, "BF16", rows, cols, 2 * n);
    for (size_t i = 0; i < n; i++)
        put_bf16(to + 2 * i, centre + size * ((double)below(f, 20001) / 10000 - 1));
}

static void add_bytes(struct layout_file *f, const char *name, const char *more, const char *dtype, size_t rows,
                      size_t cols, size_t bytes)
{
    unsigned char *to = add(f, name, more, dtype, rows, cols, bytes);
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)below(f, 256);
}

/* Scales that are powers of two times 1 to 2, of a matrix whose codes are about `large`. */
static double some_scale(struct layout_file *f, double large)
{
    return 0.2 / large * (1 + (double)below(f, 128) / 128);
}

static void add_f8(struct layout_file *f, const char *name, size_t rows, size_t cols)
{
    size_t down = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, across = (cols + BLOCK_COLS - 1) / BLOCK_COLS;
    unsigned char *to = add(f, name, ".weight", "F8_E4M3", rows, cols, rows * cols);
    for (size_t i = 0; i < rows * cols; i++)
        to[i] = (unsigned char)(below(f, 0x70) | below(f, 2) << 7);
    to = add(f, name, ".weight_scale_inv", "F32", down, across, down * across * 4);
    for (size_t i = 0; i < down * across; i++) {
        float scale = (float)some_scale(f, 60);
        memcpy(to + 4 * i, &scale, 4);
    }
}

static void add_groups(struct layout_file *f, const char *name, size_t rows, size_t cols)
{
    size_t group = f->c.layout == LAYOUT_NVFP4 ? 16 : 32, groups = rows * cols / group;
    float global = 400;
    int32_t shape[2] = {(int32_t)rows, (int32_t)cols};
    if (f->c.layout == LAYOUT_I4)
        add_bytes(f, name, ".weight_packed", "I32", rows, cols / 8, rows * cols / 2);
    else
        add_bytes(f, name, ".weight_packed", "U8", rows, cols / 2, rows * cols / 2);
    if (f->c.layout == LAYOUT_I4) {
        unsigned char *to = add(f, name, ".weight_scale", "BF16", rows, cols / group, 2 * groups);
        for (size_t i = 0; i < groups; i++)
            put_bf16(to + 2 * i, some_scale(f, 5));
        memcpy(add(f, name, ".weight_shape", "I32", 2, 0, sizeof shape), shape, sizeof shape);
        return;
    }
    unsigned char *to = add(f, name, ".weight_scale", f->c.layout == LAYOUT_NVFP4 ? "F8_E4M3" : "U8", rows,
                            cols / group, groups);
    for (size_t i = 0; i < groups; i++)
        to[i] = (unsigned char)(f->c.layout == LAYOUT_NVFP4 ? 60 + below(f, 30) : 121 + below(f, 4));
    if (f->c.layout == LAYOUT_NVFP4)
        memcpy(add(f, name, ".weight_global_scale", "F32", 1, 0, sizeof global), &global, sizeof global);
}

static void add_matrix(struct layout_file *f, const char *prefix, const char *part, size_t rows, size_t cols)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, part);
    switch (f->c.layout) {
    case LAYOUT_FP8: add_f8(f, name, rows, cols); return;
    case LAYOUT_I8:
        add_bytes(f, name, ".weight", "I8", rows, cols, rows * cols);
        for (size_t i = 0, first = (add(f, name, ".weight_scale", "BF16", rows, 1, 2 * rows), f->used - 2 * rows);
             i < rows; i++)
            put_bf16(f->data + first + 2 * i, some_scale(f, 80));
        return;
    case LAYOUT_BF16: add_bf16(f, name, ".weight", rows, cols, 0, 0.3); return;
    default: add_groups(f, name, rows, cols);
    }
}

static void add_norm(struct layout_file *f, const char *prefix, const char *name, size_t n)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    add_bf16(f, full, "", n, 0, 1, 0.2);
}

static void add_mlp(struct layout_file *f, const char *prefix, const char *of, size_t width)
{
    char name[64];
    snprintf(name, sizeof name, "%sgate_proj", of);
    add_matrix(f, prefix, name, width, LAYOUT_D);
    snprintf(name, sizeof name, "%sup_proj", of);
    add_matrix(f, prefix, name, width, LAYOUT_D);
    snprintf(name, sizeof name, "%sdown_proj", of);
    add_matrix(f, prefix, name, LAYOUT_D, width);
}

static void add_layer(struct layout_file *f, const char *prefix, int is_moe)
{
    char of[32], name[64];
    size_t heads = LAYOUT_HEADS;
    add_norm(f, prefix, "input_layernorm", LAYOUT_D);
    add_norm(f, prefix, "post_attention_layernorm", LAYOUT_D);
    if (f->c.no_q_lora) {
        add_matrix(f, prefix, "self_attn.q_proj", heads * (NOPE + ROPE), LAYOUT_D);
    } else {
        add_matrix(f, prefix, "self_attn.q_a_proj", Q_LORA, LAYOUT_D);
        add_norm(f, prefix, "self_attn.q_a_layernorm", Q_LORA);
        add_matrix(f, prefix, "self_attn.q_b_proj", heads * (NOPE + ROPE), Q_LORA);
    }
    add_matrix(f, prefix, "self_attn.kv_a_proj_with_mqa", LATENT + ROPE, LAYOUT_D);
    add_norm(f, prefix, "self_attn.kv_a_layernorm", LATENT);
    add_matrix(f, prefix, "self_attn.kv_b_proj", heads * (NOPE + LAYOUT_VALUE), LATENT);
    add_matrix(f, prefix, "self_attn.o_proj", LAYOUT_D, heads * LAYOUT_VALUE);
    if (!is_moe) {
        add_mlp(f, prefix, "mlp.", LAYOUT_DENSE);
        return;
    }
    snprintf(name, sizeof name, "%smlp.gate", prefix);
    add_bf16(f, name, ".weight", EXPERTS, LAYOUT_D, 0, 0.1);
    add_bf16(f, name, ".e_score_correction_bias", EXPERTS, 0, 0, 0.1);
    for (int e = 0; e < EXPERTS; e++) {
        snprintf(of, sizeof of, "mlp.experts.%d.", e);
        add_mlp(f, prefix, of, LAYOUT_EXPERT);
    }
    add_mlp(f, prefix, "mlp.shared_experts.", LAYOUT_EXPERT);
}

static json_t *quantization(enum layout layout)
{
    json_t *weights = json_pack("{s:i,s:s,s:b,s:s,s:b}", "num_bits", layout == LAYOUT_I8 ? 8 : 4, "type",
                                layout == LAYOUT_NVFP4 || layout == LAYOUT_MXFP4 ? "float" : "int", "symmetric", 1,
                                "strategy",
                                layout == LAYOUT_I8 ? "channel"
                                : layout == LAYOUT_NVFP4 ? "tensor_group"
                                : "group",
                                "dynamic", 0);
    if (layout != LAYOUT_I8)
        json_object_set_new(weights, "group_size", json_integer(layout == LAYOUT_NVFP4 ? 16 : 32));
    static const char *const formats[LAYOUTS] = {"", "", "pack-quantized", "nvfp4-pack-quantized",
                                                 "mxfp4-pack-quantized", "int-quantized"};
    return json_pack("{s:s,s:s,s:{s:{s:o,s:n,s:[s]}},s:[s]}", "quant_method", "compressed-tensors", "format",
                     formats[layout], "config_groups", "group_0", "weights", weights, "input_activations", "targets",
                     "Linear", "ignore", "lm_head");
}

static void write_config(const char *dir, const struct layout_checkpoint *c)
{
    json_t *config = json_pack("{s:[s],s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:b,s:f,s:s,s:s,s:i,s:i,"
                               "s:i,s:i,s:i,s:i,s:i,"
                               "s:f,s:i,s:s,s:b,s:i,s:i,s:b}",
                               "architectures", "DeepseekV3ForCausalLM", "model_type", "deepseek_v3", "hidden_size",
                               LAYOUT_D, "vocab_size", LAYOUT_V, "num_hidden_layers", LAYERS,
                               "num_nextn_predict_layers", MODULES, "first_k_dense_replace", 1, "moe_layer_freq", 1,
                               "intermediate_size", LAYOUT_DENSE, "moe_intermediate_size", LAYOUT_EXPERT,
                               "n_routed_experts", EXPERTS, "n_shared_experts", 1, "num_experts_per_tok", LAYOUT_CHOSEN,
                               "n_group", 2, "topk_group", 1, "norm_topk_prob", 1, "routed_scaling_factor", 1.5,
                               "scoring_func", "sigmoid", "topk_method", "noaux_tc", "num_attention_heads",
                               LAYOUT_HEADS, "num_key_value_heads", LAYOUT_HEADS, "kv_lora_rank", LATENT,
                               "qk_nope_head_dim", NOPE, "qk_rope_head_dim", ROPE, "v_head_dim", LAYOUT_VALUE,
                               "max_position_embeddings", 512, "rms_norm_eps", 1e-6, "rope_theta", 10000, "hidden_act",
                               "silu", "tie_word_embeddings", c->tied, "bos_token_id", 0, "eos_token_id", 1,
                               "attention_bias", 0);
    char path[96];
    assert_non_null(config);
    json_object_set_new(config, "q_lora_rank", c->no_q_lora ? json_null() : json_integer(Q_LORA));
    if (c->layout == LAYOUT_FP8)
        json_object_set_new(config, "quantization_config",
                            json_pack("{s:s,s:s,s:s,s:[i,i]}", "quant_method", "fp8", "fmt", "e4m3",
                                      "activation_scheme", "dynamic", "weight_block_size", BLOCK_ROWS, BLOCK_COLS));
    else if (c->layout != LAYOUT_BF16)
        json_object_set_new(config, "quantization_config", quantization(c->layout));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

void layout_checkpoint(char dir[64], struct layout_checkpoint c)
{
    struct layout_file f = {.c = c, .room = 4u << 20, .random = 9 + (uint64_t)c.layout};
    char prefix[32], name[64];
    assert_true((f.header = json_object()) && (f.data = malloc(f.room)));
    add_bf16(&f, "model.embed_tokens", ".weight", LAYOUT_V, LAYOUT_D, 0, 1);
    for (int l = 0; l < LAYERS + MODULES; l++) {
        snprintf(prefix, sizeof prefix, "model.layers.%d.", l);
        add_layer(&f, prefix, l > 0);
        if (l < LAYERS)
            continue;
        add_norm(&f, prefix, "enorm", LAYOUT_D);
        add_norm(&f, prefix, "hnorm", LAYOUT_D);
        add_matrix(&f, prefix, "eh_proj", LAYOUT_D, 2 * LAYOUT_D);
        add_norm(&f, prefix, "shared_head.norm", LAYOUT_D);
        snprintf(name, sizeof name, "%sembed_tokens", prefix);
        add_bf16(&f, name, ".weight", LAYOUT_V, LAYOUT_D, 0, 1);
        snprintf(name, sizeof name, "%sshared_head.head", prefix);
        add_bf16(&f, name, ".weight", LAYOUT_V, LAYOUT_D, 0, 0.2);
    }
    add_norm(&f, "model.", "norm", LAYOUT_D);
    if (!c.tied)
        add_bf16(&f, "lm_head", ".weight", LAYOUT_V, LAYOUT_D, 0, 0.2);
    make_dir(dir);
    char *header = json_dumps(f.header, JSON_COMPACT);
    write_safetensors(dir, "model.safetensors", header, f.data, f.used);
    write_config(dir, &c);
    free(header);
    free(f.data);
    json_decref(f.header);
}
