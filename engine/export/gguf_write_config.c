/* engine/export/gguf_write_config.c -- converts a struct config to the metadata of a GGUF file, as the counterpart of
 * config_gguf.c. A value that config_gguf.c would not read back unchanged is an error. */
#include "engine/export/gguf_write_internal.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes and keys ---- */

void gguf_put(struct gguf_bytes *b, const void *data, size_t size)
{
    if (b->size + size > b->room) {
        size_t room = 2 * (b->size + size);
        unsigned char *more = vb_alloc(b->a, room, 1);
        if (!more) {
            b->failed = 1;
            return;
        }
        if (b->size)
            memcpy(more, b->data, b->size);
        vb_free(b->a, b->data);
        b->data = more;
        b->room = room;
    }
    if (size)
        memcpy(b->data + b->size, data, size);
    b->size += size;
}

void gguf_put_number(struct gguf_bytes *b, uint64_t x, size_t bytes)
{
    unsigned char little[8];
    for (size_t i = 0; i < bytes; i++)
        little[i] = (unsigned char)(x >> 8 * i);
    gguf_put(b, little, bytes);
}

void gguf_put_text(struct gguf_bytes *b, const char *s, size_t size)
{
    gguf_put_number(b, size, 8);
    gguf_put(b, s, size);
}

void gguf_put_key(struct gguf_bytes *b, const char *key, enum gguf_type type)
{
    size_t before = *key == '.' ? strlen(b->architecture) : 0;
    gguf_put_number(b, before + strlen(key), 8);
    gguf_put(b, b->architecture, before);
    gguf_put(b, key, strlen(key));
    gguf_put_number(b, (uint64_t)type, 4);
    b->keys++;
}

void gguf_put_u32(struct gguf_bytes *b, const char *key, int64_t x)
{
    gguf_put_key(b, key, GGUF_U32);
    gguf_put_number(b, (uint64_t)x, 4);
}

void gguf_put_bool(struct gguf_bytes *b, const char *key, int x)
{
    gguf_put_key(b, key, GGUF_BOOL);
    gguf_put_number(b, x != 0, 1);
}

void gguf_put_string(struct gguf_bytes *b, const char *key, const char *s)
{
    gguf_put_key(b, key, GGUF_STRING);
    gguf_put_text(b, s, strlen(s));
}

void gguf_put_array(struct gguf_bytes *b, const char *key, enum gguf_type type, uint64_t count)
{
    gguf_put_key(b, key, GGUF_ARRAY);
    gguf_put_number(b, (uint64_t)type, 4);
    gguf_put_number(b, count, 8);
}

/* ---- numbers ---- */

struct saying {
    struct gguf_bytes *b;
    const struct vb_model *m;
    const struct config *c;
    vb_error *err;
};

/* Returns the float that is nearest to x times 10^-shift. The product is computed in decimal digits, because its
 * nearest double could be rounded to another float. */
static float shifted(double x, int shift)
{
    char text[64];
    int digits = 0;
    do
        snprintf(text, sizeof text, "%.*e", digits, x);
    while (strtod(text, NULL) != x && ++digits < 17);
    char *exponent = strchr(text, 'e') + 1;
    snprintf(exponent, sizeof text - (size_t)(exponent - text), "%d", atoi(exponent) - shift);
    return strtof(text, NULL);
}

/* Writes a number of config.json as a float. Returns an error if gguf_real would not convert this float back to x. */
static int say_real(const struct saying *s, const char *key, const char *json, double x, int shift)
{
    float f = shifted(x, shift);
    uint32_t bits;
    double back = 0;
    struct gguf_value v = {.type = GGUF_F32, .count = 1, .data = (const unsigned char *)&f};
    if (!gguf_real(&v, shift, &back) || back != x)
        return vb_fail(s->err, VB_UNSUPPORTED, "%s: %s is %.15g, of which the 32-bit float of a GGUF file makes %.15g",
                       checkpoint_dir(s->m->checkpoint), json, x, back);
    memcpy(&bits, &f, sizeof bits);
    gguf_put_key(s->b, key, GGUF_F32);
    gguf_put_number(s->b, bits, 4);
    return VB_OK;
}

/* ---- what can be said ---- */

static int cannot(const struct saying *s, const char *what, int value)
{
    return vb_fail(s->err, VB_UNSUPPORTED, "%s: %s %d cannot be said in a GGUF file of architecture %s",
                   checkpoint_dir(s->m->checkpoint), what, value, s->b->architecture);
}

static int check(const struct saying *s)
{
    const struct config *c = s->c;
    int dense = !config_has_layers(c, 1), layers = c->num_hidden_layers + s->m->num_mtp;
    if (dense && strcmp(s->b->architecture, "deepseek2"))
        return vb_fail(s->err, VB_UNSUPPORTED,
                       "%s: a model without experts cannot be said in a GGUF file of architecture %s",
                       checkpoint_dir(s->m->checkpoint), s->b->architecture);
    for (int i = 0; c->index_topk && !c->indexer_rope_interleave && i < c->num_hidden_layers; i++)
        if (config_layer_is_shared(c, i))
            return cannot(s, "indexer_rope_interleave 0 with the shared layer", i);
    for (int i = 0; i < layers; i++)
        if (!dense && config_layer_is_moe(c, i) != (i >= c->first_k_dense_replace))
            return cannot(s, "moe_layer_freq", c->moe_layer_freq);
    if (!c->rope_interleave)
        return cannot(s, "rope_interleave", c->rope_interleave);
    if (c->rope_yarn && c->rope_mscale != c->rope_mscale_all_dim)
        return vb_fail(s->err, VB_UNSUPPORTED,
                       "%s: mscale is %.9g and mscale_all_dim %.9g: a GGUF file has one number for both",
                       checkpoint_dir(s->m->checkpoint), c->rope_mscale, c->rope_mscale_all_dim);
    if (c->topk_method == TOPK_GROUP_LIMITED_TOP2 && (!c->rope_unscaled || !c->norm_topk_prob))
        return cannot(s, c->rope_unscaled ? "norm_topk_prob" : "apply_yarn_scaling", c->rope_unscaled ? 0 : 1);
    if ((c->scoring_func == SCORING_SIGMOID) != (c->topk_method == TOPK_NOAUX_TC))
        return vb_fail(s->err, VB_UNSUPPORTED,
                       "%s: in a GGUF file of architecture %s scoring_func sigmoid and topk_method "
                       "noaux_tc go together",
                       checkpoint_dir(s->m->checkpoint), s->b->architecture);
    return VB_OK;
}

/* ---- the keys ---- */

/* Writes the last component of the directory's path as general.name, like llama.cpp's converter. */
static void say_name(const struct saying *s)
{
    char *path = realpath(checkpoint_dir(s->m->checkpoint), NULL), *slash = path ? strrchr(path, '/') : NULL;
    size_t size = slash ? strlen(slash + 1) : 0;
    if (size && utf8_valid(slash + 1, size) == size)
        gguf_put_string(s->b, "general.name", slash + 1);
    free(path);
}

static void say_file(const struct saying *s, enum gguf_as linear)
{
    static const int file_types[] = {[GGUF_AS_F32] = 0, [GGUF_AS_BF16] = 32, [GGUF_AS_Q8_0] = 7, [GGUF_AS_Q4_0] = 2};
    gguf_put_string(s->b, "general.architecture", s->b->architecture);
    gguf_put_string(s->b, "general.type", "model");
    say_name(s);
    gguf_put_u32(s->b, "general.file_type", file_types[linear]); /* llama.cpp defines these numbers */
    gguf_put_u32(s->b, "general.quantization_version", 2);
}

static int say_attention(const struct saying *s)
{
    struct gguf_bytes *b = s->b;
    const struct config *c = s->c;
    int64_t n = c->qk_nope_head_dim, r = c->qk_rope_head_dim, latent = c->kv_lora_rank;
    gguf_put_u32(b, ".attention.head_count", c->num_attention_heads);
    gguf_put_u32(b, ".attention.head_count_kv", 1); /* in the absorbed form, all attention heads share one latent row */
    gguf_put_u32(b, ".attention.key_length", latent + r);
    gguf_put_u32(b, ".attention.value_length", latent);
    gguf_put_u32(b, ".attention.key_length_mla", n + r);
    gguf_put_u32(b, ".attention.value_length_mla", c->v_head_dim);
    if (c->q_lora_rank)
        gguf_put_u32(b, ".attention.q_lora_rank", c->q_lora_rank);
    gguf_put_u32(b, ".attention.kv_lora_rank", latent);
    gguf_put_u32(b, ".rope.dimension_count", r);
    return say_real(s, ".attention.layer_norm_rms_epsilon", "rms_norm_eps", c->rms_norm_eps, 0);
}

/* deepseek32 has no key for shared layers, because all of its layers are full. The indexer's RoPE depends on the
 * architecture. */
static void say_indexer(const struct saying *s)
{
    struct gguf_bytes *b = s->b;
    const struct config *c = s->c;
    if (!c->index_topk)
        return;
    gguf_put_u32(b, ".attention.indexer.head_count", c->index_n_heads);
    gguf_put_u32(b, ".attention.indexer.key_length", c->index_head_dim);
    gguf_put_u32(b, ".attention.indexer.top_k", c->index_topk);
    if (c->indexer_rope_interleave) {
        gguf_put_array(b, ".attention.indexer.types", GGUF_BOOL, (uint64_t)c->num_hidden_layers);
        for (int i = 0; i < c->num_hidden_layers; i++)
            gguf_put_number(b, !config_layer_is_shared(c, i), 1);
    }
    if (c->index_share_for_mtp_iteration)
        gguf_put_bool(b, GGUF_INDEX_SHARE, 1);
}

static int say_rope(const struct saying *s)
{
    const struct config *c = s->c;
    int rc = say_real(s, ".rope.freq_base", "rope_theta", c->rope_theta, 0);
    if (rc || !c->rope_yarn)
        return rc;
    gguf_put_string(s->b, ".rope.scaling.type", "yarn");
    gguf_put_u32(s->b, ".rope.scaling.original_context_length", c->rope_original_max_position_embeddings);
    if ((rc = say_real(s, ".rope.scaling.factor", "factor", c->rope_factor, 0)) ||
        (rc = say_real(s, ".rope.scaling.yarn_beta_fast", "beta_fast", c->rope_beta_fast, 0)) ||
        (rc = say_real(s, ".rope.scaling.yarn_beta_slow", "beta_slow", c->rope_beta_slow, 0)))
        return rc;
    if (c->query_beta > 0) /* llama.cpp needs both keys */
        gguf_put_u32(s->b, ".attention.temperature_length", c->rope_original_max_position_embeddings);
    if (c->query_beta > 0 &&
        (rc = say_real(s, ".attention.temperature_scale", "llama_4_scaling_beta", c->query_beta, 0)))
        return rc;
    return say_real(s, ".rope.scaling.yarn_log_multiplier", "mscale_all_dim", c->rope_mscale_all_dim, 1);
}

static int say_experts(const struct saying *s)
{
    struct gguf_bytes *b = s->b;
    const struct config *c = s->c;
    int greedy = c->topk_method == TOPK_GREEDY; /* this method uses no groups, even if config.json has n_group */
    if (!config_has_layers(c, 1)) { /* llama.cpp wants these three keys, and no number of experts */
        gguf_put_u32(b, ".leading_dense_block_count", c->num_hidden_layers + s->m->num_mtp);
        gguf_put_u32(b, ".expert_feed_forward_length", c->intermediate_size);
        gguf_put_u32(b, ".expert_shared_count", 0);
        return VB_OK;
    }
    gguf_put_u32(b, ".leading_dense_block_count", c->first_k_dense_replace);
    gguf_put_u32(b, ".expert_feed_forward_length", c->moe_intermediate_size);
    gguf_put_u32(b, ".expert_count", c->n_routed_experts);
    gguf_put_u32(b, ".expert_used_count", c->num_experts_per_tok);
    gguf_put_u32(b, ".expert_shared_count", c->n_shared_experts);
    gguf_put_u32(b, ".expert_group_count", greedy ? 1 : c->n_group);
    gguf_put_u32(b, ".expert_group_used_count", greedy ? 1 : c->topk_group);
    gguf_put_u32(b, ".expert_gating_func", c->scoring_func == SCORING_SIGMOID ? 2 : 1);
    if (c->norm_topk_prob)
        gguf_put_bool(b, ".expert_weights_norm", 1);
    return say_real(s, ".expert_weights_scale", "routed_scaling_factor", c->routed_scaling_factor, 0);
}

int gguf_put_config(struct gguf_bytes *b, const struct vb_model *m, const struct gguf_write_options *o, vb_error *err)
{
    const struct config *c = &m->config;
    const struct saying s = {b, m, c, err};
    int rc;
    b->architecture = c->index_topk ? c->indexer_rope_interleave ? "glm-dsa" : "deepseek32"
                                    : c->topk_method == TOPK_GROUP_LIMITED_TOP2 ? "mistral4" : "deepseek2";
    if ((rc = check(&s)))
        return rc;
    say_file(&s, o->linear);
    gguf_put_u32(b, ".vocab_size", c->vocab_size);
    gguf_put_u32(b, ".context_length", c->max_position_embeddings);
    gguf_put_u32(b, ".embedding_length", c->hidden_size);
    gguf_put_u32(b, ".block_count", c->num_hidden_layers + m->num_mtp);
    if (m->num_mtp)
        gguf_put_u32(b, ".nextn_predict_layers", m->num_mtp);
    gguf_put_u32(b, ".feed_forward_length", c->intermediate_size);
    if ((rc = say_attention(&s)) || (rc = say_rope(&s)))
        return rc;
    say_indexer(&s);
    return say_experts(&s);
}
