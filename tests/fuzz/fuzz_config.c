/* tests/fuzz/fuzz_config.c -- config.json, and generation_config.json after the first zero byte. What is accepted must
 * keep the promises that the engine computes with: positive extents that fit an int, groups that divide, a finite
 * scale. */
#include "engine/model/config.h"

#include <math.h>

#include "tests/support/fuzz.h"

static void check_config(const struct config *c)
{
    int64_t H = c->num_attention_heads;
    const char *key;
    char value[32];
    int from_default;
    demand(c->vocab_size > 0 && c->hidden_size > 0 && c->num_hidden_layers > 0 && c->num_nextn_predict_layers >= 0);
    demand(c->kv_lora_rank > 0 && c->q_lora_rank >= 0 && c->v_head_dim > 0 && c->qk_rope_head_dim % 2 == 0);
    demand(H * (c->qk_nope_head_dim + c->qk_rope_head_dim) <= INT32_MAX / 2);
    demand(H * (c->qk_nope_head_dim + c->v_head_dim) <= INT32_MAX / 2);
    demand((int64_t)c->n_shared_experts * c->moe_intermediate_size <= INT32_MAX / 2);
    demand(c->n_group > 0 && c->topk_group > 0 && c->num_experts_per_tok > 0 && c->moe_layer_freq > 0);
    demand(c->num_experts_per_tok <= c->n_routed_experts);
    demand(c->topk_method == TOPK_GREEDY || (c->n_routed_experts % c->n_group == 0 && c->topk_group <= c->n_group &&
           c->num_experts_per_tok <= c->topk_group * (c->n_routed_experts / c->n_group)));
    demand(c->topk_method != TOPK_NOAUX_TC || c->n_routed_experts / c->n_group >= 2);
    demand(c->rope_theta > 1 && c->rope_factor > 0 && c->rope_original_max_position_embeddings > 0);
    demand(c->num_eos >= 0 && c->num_eos <= CONFIG_MAX_EOS && c->bos_token_id >= -1);
    demand(!c->fp8 || (c->fp8_block_rows > 0 && c->fp8_block_cols > 0 && c->fp8_block_cols % 32 == 0));
    demand(isfinite(config_attention_scale(c)) && config_attention_scale(c) > 0);
    for (size_t i = 0; config_row(c, i, &key, value, &from_default); i++)
        demand(value[0] != 0);
    config_layer_is_moe(c, c->num_hidden_layers + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t first = zero ? (size_t)(zero - data) : size;
    struct config c;
    vb_error err = {0};
    int rc = config_parse(&c, (const char *)data, first, zero ? (const char *)zero + 1 : NULL,
                          zero ? size - first - 1 : 0, "fuzz", &err);
    demand(rc == err.code);
    if (!check(rc, &err))
        check_config(&c);
    return 0;
}
