/* engine/model/config.h -- config.json: what the model is. Every value comes from the file, else from the default of that
 * architecture's Hugging Face class (one table in config.c, printed by `inspect`); nothing is inferred from a size. */
#ifndef VB_CONFIG_H
#define VB_CONFIG_H

#include "engine/model/conventions.h"
#include "engine/base/support.h"

enum scoring_func { SCORING_SOFTMAX, SCORING_SIGMOID };
enum topk_method { TOPK_GREEDY, TOPK_GROUP_LIMITED_GREEDY, TOPK_NOAUX_TC };

enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_Q8, PRECISION_Q4 };

#define CONFIG_MAX_EOS 16

/* The extents of a model's tensors, as sizes: what config says as numbers of a file. */
struct dims {
    size_t V, d, H;             /* vocabulary, hidden size, attention heads */
    size_t q, c, n, r, v;       /* of latent attention: q_lora_rank, kv_lora_rank, and of a head qk_nope, qk_rope, v */
    size_t row;                 /* c + r: numbers in a row of the cache */
    size_t layers, positions;   /* main layers; max_position_embeddings */
    size_t dense, expert;       /* intermediate sizes, of dense layers and of one expert */
    size_t E, shared, chosen;   /* routed experts; how many experts wide the shared one is; chosen per token */
    size_t groups, chosen_groups;
};

struct config {
    char architecture[64]; /* DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM */
    char model_type[32];

    int vocab_size;        /* V */
    int hidden_size;       /* d */
    int num_hidden_layers; /* main layers; MTP layers come after them */
    int num_nextn_predict_layers; /* D, MTP modules that config.json promises */
    int max_position_embeddings;
    double rms_norm_eps;
    int tie_word_embeddings;

    int num_attention_heads; /* H */
    int q_lora_rank;         /* q; 0: q_proj instead of q_a_proj, q_b_proj */
    int kv_lora_rank;        /* c */
    int qk_nope_head_dim;    /* n */
    int qk_rope_head_dim;    /* r, even */
    int v_head_dim;          /* v */
    double latent_eps;       /* of q_a_layernorm and kv_a_layernorm: 1e-6, whatever rms_norm_eps says (docs/SEMANTICS.md, "Conventions": latent-eps) */

    double rope_theta;
    int rope_interleave; /* 1: adjacent pairs (2i, 2i+1) are rotated; 0: halves (i, i + r/2) */
    int rope_yarn;       /* 1: the fields below count; 0: they hold what changes nothing */
    double rope_factor, rope_beta_fast, rope_beta_slow, rope_mscale, rope_mscale_all_dim;
    int rope_original_max_position_embeddings;

    int intermediate_size;     /* of dense layers */
    int moe_intermediate_size; /* of one expert */
    int n_routed_experts;      /* E */
    int n_shared_experts;      /* the shared expert is this many times as wide as an expert; 0: none */
    int num_experts_per_tok;
    int n_group, topk_group;   /* both 1 when topk_method is greedy and the file gives none */
    int first_k_dense_replace, moe_layer_freq;
    int norm_topk_prob;
    double routed_scaling_factor;
    enum scoring_func scoring_func;
    enum topk_method topk_method;

    int fp8;                              /* quantization_config.quant_method is fp8 */
    int fp8_block_rows, fp8_block_cols;   /* weight_block_size; 0 without fp8 */

    int bos_token_id;                     /* -1: none; may lie beyond the vocabulary, as the end ids may */
    int eos_token_ids[CONFIG_MAX_EOS], num_eos; /* of generation_config.json when it has them, else of config.json */

    int gguf;      /* all this is from a GGUF file's metadata (gguf.h), not from a config.json */
    int no_groups; /* a GGUF file without expert_group_count: experts are chosen among all, whatever the original did */

    struct dims dims;               /* of the numbers above: config_set_dims */
    struct conventions conventions; /* not of the file: the defaults, unless somebody asked for others */
    enum precision precision;       /* likewise */
    uint64_t from_default;                /* bit i: row i of config_row's table was not in the file */
};

/* Reads the text of a config.json and, when not NULL, of a generation_config.json (only its eos_token_id is used).
 * What this program does not compute is VB_UNSUPPORTED, naming key and value (attention_bias true, hidden_act, sparse
 * indexer, zero experts, another architecture, scoring_func, topk_method, rope type...); a value of the wrong type or
 * out of range is VB_BAD_CHECKPOINT, naming key, what was wanted, what was found. `name` stands for the file. */
int config_parse(struct config *out, const char *json, size_t size, const char *generation, size_t generation_size,
                 const char *name, vb_error *err);

/* From the metadata of a GGUF file, with all checks of config.json (config_gguf.c). */
struct gguf;
int config_from_gguf(struct config *out, const struct gguf *g, vb_error *err);

/* DIR/config.json and DIR/generation_config.json (optional); or the metadata of a GGUF file (gguf.h). */
int config_read(struct config *out, const char *dir, const vb_allocator *a, vb_error *err);

/* Row i of the table of keys, as text, for `inspect`: 1, or 0 past the last row. *from_default says that the file was
 * silent and the class default stands. */
int config_row(const struct config *c, size_t i, const char **key, char value[32], int *from_default);

/* Where the values are from, for messages: "config.json", "the metadata". */
const char *config_origin(const struct config *c);

/* Whether layer L (main, or MTP from num_hidden_layers on) has experts. */
int config_layer_is_moe(const struct config *c, int layer);
/* Whether any layer, MTP modules included, is of the kind: what the others alone use may be of any size. */
int config_has_layers(const struct config *c, int moe);

/* Fills c->dims. Every function that reads a config does. */
void config_set_dims(struct config *c);

/* Takes the conventions over, and what follows from them for the values above (latent_eps). */
void config_follow(struct config *c, const struct conventions *conventions);

/* "f32", "bf16", "q8" or "q4"; NULL: f32. VB_BAD_ARGUMENT names the known ones. */
int precision_parse(enum precision *out, const char *name, vb_error *err);

/* (n+r)^-1/2, times m^2 under YaRN (docs/SEMANTICS.md, "Attention (MLA)"), in double, rounded once to f32. */
float config_attention_scale(const struct config *c);
/* the same before rounding: s = 1 / sqrt(n + r), m = 0.1 * mscale_all_dim * ln(factor) + 1, (s * m) * m */
double config_attention_scale_f64(const struct config *c);

#endif
