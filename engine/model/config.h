/* engine/model/config.h -- the configuration of a model, read from config.json or from a GGUF file's metadata.
 *
 * A value that the file does not have gets the default of the architecture's Hugging Face class. The table of these
 * defaults is in config.c, and `verbatim inspect` prints it. No value is guessed from the size of a tensor. */
#ifndef VB_CONFIG_H
#define VB_CONFIG_H

#include "engine/model/conventions.h"
#include "engine/base/support.h"

enum scoring_func { SCORING_SOFTMAX, SCORING_SIGMOID };
/* The last one is Mistral 4's, whose config.json has no such key (ops/router.h, docs/SEMANTICS.md). */
enum topk_method { TOPK_GREEDY, TOPK_GROUP_LIMITED_GREEDY, TOPK_NOAUX_TC, TOPK_GROUP_LIMITED_TOP2 };

enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_Q8, PRECISION_Q4 };

enum cache_type { CACHE_TYPE_F32, CACHE_TYPE_BF16, CACHE_TYPE_Q8, CACHE_TYPES };

/* The kinds of attention. engine/pass/layer.c has a function for each. */
enum attention_kind { ATTENTION_MLA, ATTENTION_GQA };
/* What drafts with one decoder layer: an MTP module, a parallel head, an EAGLE-1 head, or an EAGLE-3 head. */
enum module_kind { MODULE_MTP, MODULE_PARALLEL, MODULE_EAGLE1, MODULE_EAGLE3 };

#define CONFIG_MAX_EOS 16
#define CONFIG_MAX_LAYERS 10000 /* main layers */

/* The sizes of a model's tensors, as size_t. The numbers are those of struct config; docs/SEMANTICS.md explains the
 * letters. */
struct dims {
    size_t V, d, H;             /* vocabulary size, hidden size, number of attention heads */
    size_t q, c, n, r, v;       /* q_lora_rank, kv_lora_rank; per head: qk_nope_head_dim, qk_rope_head_dim,
                                   v_head_dim */
    size_t G;                   /* num_key_value_heads; 1 in MLA, where all heads share one RoPE key */
    size_t row;                 /* numbers in one row of the KV cache: c + r with MLA, G(r+v) with GQA */
    size_t layers, positions;   /* main layers (without MTP); max_position_embeddings */
    size_t dense, expert;       /* intermediate size of a dense layer and of one expert */
    size_t E, shared, chosen;   /* n_routed_experts, n_shared_experts, num_experts_per_tok */
    size_t groups, chosen_groups; /* n_group, topk_group */
    size_t index_heads, index_dim, index_topk; /* index_n_heads, index_head_dim, index_topk; 0 without an indexer */
    size_t features;            /* feature_width */
};

struct config {
    char architecture[64]; /* DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM,
                              DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM, Mistral4ForCausalLM, YoutuForCausalLM */
    char model_type[32];

    int vocab_size;        /* V */
    int hidden_size;       /* d */
    int num_hidden_layers; /* number of main layers; MTP layers are numbered after them */
    int num_nextn_predict_layers; /* number of MTP modules according to config.json; the checkpoint may store fewer */
    enum module_kind module_kind; /* what these modules are */
    int feature_width;     /* numbers of the target's residual streams that an EAGLE-3 head reads for one row; else 0 */
    int max_position_embeddings;
    double rms_norm_eps;
    int tie_word_embeddings;

    int num_attention_heads; /* H */
    int q_lora_rank;         /* q; 0: the model has one matrix q_proj instead of q_a_proj and q_b_proj */
    int kv_lora_rank;        /* c */
    int qk_nope_head_dim;    /* n */
    int qk_rope_head_dim;    /* r, even */
    int v_head_dim;          /* v */
    int num_key_value_heads; /* G: the layers have grouped-query attention, whose heads have n = 0 and r = v numbers; 0:
                                they have MLA */
    double latent_eps;       /* eps of q_a_layernorm and kv_a_layernorm: 1e-6 by default, even if rms_norm_eps has
                                another value; see the convention latent-eps in docs/SEMANTICS.md */

    double rope_theta;
    int rope_interleave; /* 1: RoPE rotates the adjacent pairs (2i, 2i+1); 0: the pairs (i, i + r/2) */
    int rope_yarn;       /* 1: YaRN is used with the fields below; 0: YaRN is not used, and the fields below have values
                            that change nothing */
    double rope_factor, rope_beta_fast, rope_beta_slow, rope_mscale, rope_mscale_all_dim;
    int rope_original_max_position_embeddings;
    int rope_unscaled;     /* 1: YaRN does not scale attention scores by m^2 (Mistral 4, unless its file says
                              apply_yarn_scaling) */
    double query_beta;     /* llama_4_scaling_beta: queries are scaled by their position (config_query_scale); 0: they
                              are not */

    int intermediate_size;     /* intermediate size of dense layers */
    int moe_intermediate_size; /* intermediate size of one expert */
    int n_routed_experts;      /* E */
    int n_shared_experts;      /* the shared expert is this many times as wide as a routed one; 0: there is none */
    int num_experts_per_tok;
    int n_group, topk_group;   /* both are 1 if topk_method is greedy and the file does not set them */
    int first_k_dense_replace, moe_layer_freq;
    int norm_topk_prob;
    double routed_scaling_factor;
    enum scoring_func scoring_func;
    enum topk_method topk_method;

    /* DeepSeek sparse attention (docs/SEMANTICS.md, "Sparse attention (DSA)") */
    int index_topk;                    /* number of positions that a query attends to; 0: the model has no indexer */
    int index_n_heads, index_head_dim; /* heads of the indexer, and numbers per head, which must be 128 */
    int indexer_rope_interleave;       /* 1: the indexer's RoPE rotates the adjacent pairs (2i, 2i+1); 0: (i, i +
                                          r/2) */
    int index_share_for_mtp_iteration; /* 1: draft steps after the first attend to the positions that the first one
                                          chose */
    unsigned char shared_set[CONFIG_MAX_LAYERS / 8]; /* bit L is 1 if main layer L is shared (config_layer_is_shared) */

    int fp8;                              /* 1: quantization_config.quant_method is fp8 */
    int fp8_block_rows, fp8_block_cols;   /* weight_block_size: rows and columns that share a scale; 0 without fp8, and
                                             if all weights of a matrix share one */

    int int4;                             /* 1: quantization_config.quant_method is compressed-tensors, with codes of 4
                                             bits and a scale for each 32 of a row */
    int int8;                             /* 1: there may be codes of 8 bits with a scale for each row
                                             (compressed-tensors, ModelSlim) */
    int fp4_group;                        /* 16: quantization_config says NVFP4; 32: MXFP4; else 0. Used only if there
                                             are no tensors, which show by themselves how they are stored */
    int rotated;                          /* 1: is_rot_used of ModelSlim: the weights were rotated, and so is the
                                             residual stream */

    int bos_token_id;                     /* id of the BOS token, or -1; this id and the EOS ids may lie outside the
                                             vocabulary */
    int eos_token_ids[CONFIG_MAX_EOS], num_eos; /* from generation_config.json if it has eos_token_id, else from
                                                   config.json */

    int gguf;      /* 1: these values are from a GGUF file's metadata (gguf.h); 0: from config.json */
    int no_query_scale; /* 1: the GGUF file of Mistral 4 has no attention.temperature_scale, so queries are not
                           scaled */
    int params;    /* 1: these values are from Mistral's params.json */
    int no_groups; /* 1: the GGUF file has no expert_group_count, so the router chooses among the experts of all
                      groups */

    struct dims dims;               /* the sizes above as a struct dims; config_set_dims sets them */
    struct conventions conventions; /* chosen by the user, not by the file; initially the defaults */
    enum precision precision;       /* chosen by the user, not by the file; initially f32 */
    int tensor_cores;               /* 1: precision tensor. `precision` is bf16, which the CPU computes with; a device
                                       multiplies by its tensor cores */
    enum cache_type cache_type;     /* the type of the rows of the KV cache; chosen by the user, not by the file;
                                       initially f32 */
    uint64_t from_default;          /* bit i is 1 if key i (see config_row) is not in the file */
};

/* Reads the text of a config.json. `generation` is the text of generation_config.json, of which only eos_token_id is
 * used; it may be NULL. `name` is the file name for error messages.
 *
 * Returns VB_UNSUPPORTED if the model needs something that Verbatim does not compute, and the message names the key and
 * its value. Examples are: attention_bias is true; hidden_act, scoring_func, topk_method, the RoPE type or the
 * architecture is unknown; the model has hyper-connections; the model has experts without weights (the "zero experts"
 * of LongCat). Returns VB_BAD_CHECKPOINT if a value has the wrong type or is out of range. */
int config_parse(struct config *out, const char *json, size_t size, const char *generation, size_t generation_size,
                 const char *name, vb_error *err);

/* Reads the metadata of a GGUF file and makes the same checks as for a config.json (defined in config_gguf.c). */
struct gguf;
int config_from_gguf(struct config *out, const struct gguf *g, vb_error *err);

/* Reads config.json and, if present, generation_config.json of the directory `dir`. If there is a params.json instead
 * of a config.json, reads that (config_params.c). If `dir` is a GGUF file, reads its metadata. */
int config_read(struct config *out, const char *dir, const vb_allocator *a, vb_error *err);

/* Parallel heads (docs/SEMANTICS.md): the draft heads of Gloeckle et al. 2024. */
struct heads_config {
    int count;        /* n_future_tokens - 1: how many heads there are beside the model's own */
    int trunk_layers; /* the heads read the residual stream after this many main layers: num_hidden_layers - 1, the
                         default, or num_hidden_layers */
};
/* Does what config_read does for a directory with parallel heads, and reads what concerns these.
 * num_nextn_predict_layers becomes the number of heads: head i is numbered as MTP layer i would be, so
 * config_layer_is_moe and config_has_layers know its kind. */
int config_read_heads(struct config *out, struct heads_config *h, const char *dir, const vb_allocator *a,
                      vb_error *err);

/* The norms in which the EAGLE-3 heads of vllm-project/speculators differ: keys of their config.json
 * (docs/SEMANTICS.md, "EAGLE heads"). */
struct eagle_norms {
    int norm_before_residual;
    int norm_before_fc, fc_norm; /* not both */
    int norm_output;
};
/* Returns the name of the tensor of norm i before fc, or NULL if there are no more. With norm_before_fc there is one,
 * for three rows of the target together; with fc_norm there are three, each for one row. */
const char *config_feature_norm(const struct eagle_norms *norms, size_t i);
/* EAGLE heads (engine/draft/eagle_net.h). */
struct eagle_config {
    int vocab_size;  /* of the head's logits */
    struct eagle_norms norms;
};
/* Reads the config.json of the EAGLE-1 or EAGLE-3 head in `dir` (`version` is 1 or 3), and checks it against the
 * target's configuration; target_dir is for messages. *out, which the caller has cleared, becomes the configuration of
 * a model that has no main layers, and one module of kind MODULE_EAGLE1 or MODULE_EAGLE3. */
int config_read_eagle(struct config *out, struct eagle_config *e, const char *dir, int version,
                      const struct config *target, const char *target_dir, const vb_allocator *a, vb_error *err);
/* Sets layer[0..2] to three layer numbers in ascending order: EAGLE-3 heads read the residual stream before these
 * layers of a target with L layers. They are 2, L/2 and L-3, as in published heads, but 1, L/2 and L-1 if L is 4, 5 or
 * 6, where those are not three. Returns 0 if L is less than 3, else 1. */
int config_three_layers(int L, int layer[3]);

/* Returns key i of the configuration and its value as text, for `verbatim inspect`. If the file does not have the
 * key, the value is the default of the class, and *from_default becomes 1. The result is 1, or 0 if there is no key
 * i. */
int config_row(const struct config *c, size_t i, const char **key, char value[32], int *from_default);
/* Returns a hash of the values of all keys, with all their digits, of the end tokens, and of all conventions. */
uint64_t config_hash(const struct config *c);

/* Returns the source of the values for error messages: "config.json", "params.json", or "the metadata" of a GGUF
 * file. */
const char *config_origin(const struct config *c);

/* Returns the kind of attention of a layer. Layers from num_hidden_layers on are MTP layers. */
enum attention_kind config_attention(const struct config *c, int layer);

/* Returns 1 if a layer has experts. Layers from num_hidden_layers on are MTP layers. */
int config_layer_is_moe(const struct config *c, int layer);
/* Returns 1 if some layer, MTP layers included, has experts (moe = 1) or is dense (moe = 0). If the model lacks one of
 * these kinds of layers, the sizes that only this kind uses may be any numbers. */
int config_has_layers(const struct config *c, int moe);

/* Returns 1 if a layer has no indexer of its own and attends to the positions that the last full layer before it chose.
 * MTP layers are full, and so are all layers of a model without an indexer. */
int config_layer_is_shared(const struct config *c, int layer);

/* Sets c->dims. All functions above that read a configuration call config_set_dims. */
void config_set_dims(struct config *c);

/* Sets c->conventions and the values that depend on them (latent_eps). Without an indexer, its conventions keep their
 * defaults. */
void config_follow(struct config *c, const struct conventions *conventions);

/* Parses "f32", "bf16", "q8", "q4" or "tensor"; NULL means f32. For "tensor", *out is bf16 and *tensor_cores is 1; else
 * *tensor_cores is 0. tensor_cores may be NULL. Any other name is VB_BAD_ARGUMENT, and the message lists the known
 * names. */
int precision_parse(enum precision *out, int *tensor_cores, const char *name, vb_error *err);
/* Returns the name that was parsed. */
const char *precision_name(const struct config *c);

/* Parses "f32", "bf16" or "q8"; NULL means f32. Returns VB_BAD_ARGUMENT for any other name, and the message lists the
 * known names. */
int cache_type_parse(enum cache_type *out, const char *name, vb_error *err);
const char *cache_type_name(enum cache_type type);
/* Returns whether a cache can have this type: for q8, kv_lora_rank must be a multiple of 32. */
int cache_type_fits(const struct config *c, enum cache_type type);

/* Returns the factor of a query at this position, 1 + query_beta * ln(1 + floor(position /
 * original_max_position_embeddings)). The factor is computed in double and rounded once to f32. */
float config_query_scale(const struct config *c, int position);
/* Returns the factor of attention scores: (n+r)^-1/2, times m^2 with YaRN unless rope_unscaled is 1 (docs/SEMANTICS.md,
 * "Attention (MLA)"). The factor is computed in double and rounded once to f32. */
float config_attention_scale(const struct config *c);
/* Returns the factor before rounding: (s * m) * m with s = 1 / sqrt(n + r) and m = 0.1 * mscale_all_dim * ln(factor) +
 * 1. */
double config_attention_scale_f64(const struct config *c);

#endif
