/* tests/support/gguf.c -- writes GGUF files. */
#include "tests/support/gguf.h"

#include "simd/decode.h"

void put(struct bytes *b, const void *data, size_t n)
{
    if (b->used + n > b->room) {
        b->room = 2 * (b->used + n);
        b->data = realloc(b->data, b->room);
        assert_non_null(b->data);
    }
    if (n)
        memcpy(b->data + b->used, data, n);
    b->used += n;
}

void put_number(struct bytes *b, uint64_t x, size_t size)
{
    for (size_t i = 0; i < size; i++)
        put(b, &(char){(char)(x >> 8 * i)}, 1);
}

void put_text(struct bytes *b, const char *s)
{
    put_number(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static void pad(struct bytes *b, size_t to)
{
    while (b->used % to)
        put(b, "", 1);
}

/* ---- metadata ---- */

void end_dropping(struct gguf_writer *w)
{
    if (w->dropping) {
        w->keys.used = w->keep;
        w->n_keys--;
    }
    w->dropping = 0;
}

void key(struct gguf_writer *w, const char *name, uint32_t type)
{
    char other[96];
    end_dropping(w);
    w->dropping = w->without && !strcmp(w->without, name);
    w->keep = w->keys.used;
    if (!strncmp(name, OF, strlen(OF)) && w->architecture) {
        snprintf(other, sizeof other, "%s.%s", w->architecture, name + strlen(OF));
        name = other;
    }
    put_text(&w->keys, name);
    put_number(&w->keys, type, 4);
    w->n_keys++;
}

void key_number(struct gguf_writer *w, const char *name, uint32_t type, uint64_t x)
{
    static const size_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    key(w, name, type);
    put_number(&w->keys, x, size[type]);
}

void key_u32(struct gguf_writer *w, const char *name, int64_t x) { key_number(w, name, U32, (uint64_t)x); }

static void key_f32(struct gguf_writer *w, const char *name, double x)
{
    key_number(w, name, F32, f32_to_bits((float)x));
}

void key_string(struct gguf_writer *w, const char *name, const char *s)
{
    key(w, name, STRING);
    put_text(&w->keys, s);
}

void key_array(struct gguf_writer *w, const char *name, uint32_t type, uint64_t count)
{
    key(w, name, ARRAY);
    put_number(&w->keys, type, 4);
    put_number(&w->keys, count, 8);
}

/* ---- tensors ---- */

void tensor(struct gguf_writer *w, const char *name, uint32_t type, int ndim, const size_t *extents,
            const void *data, size_t bytes)
{
    size_t alignment = w->alignment ? w->alignment : 32;
    pad(&w->data, alignment);
    put_text(&w->infos, name);
    put_number(&w->infos, (uint64_t)ndim, 4);
    for (int d = ndim; d-- > 0;)
        put_number(&w->infos, extents[d], 8);
    put_number(&w->infos, type, 4);
    put_number(&w->infos, w->data.used, 8);
    put(&w->data, data, bytes);
    w->n_tensors++;
}

char *gguf_bytes(struct gguf_writer *w, size_t *size)
{
    struct bytes all = {0};
    end_dropping(w);
    put(&all, "GGUF", 4);
    put_number(&all, 3, 4);
    put_number(&all, w->n_tensors, 8);
    put_number(&all, w->n_keys, 8);
    put(&all, w->keys.data, w->keys.used);
    put(&all, w->infos.data, w->infos.used);
    pad(&all, w->alignment ? w->alignment : 32);
    put(&all, w->data.data, w->data.used);
    free(w->keys.data);
    free(w->infos.data);
    free(w->data.data);
    *w = (struct gguf_writer){0};
    *size = all.used;
    return all.data;
}

void gguf_write(struct gguf_writer *w, const char *dir, const char *name)
{
    size_t size;
    char *bytes = gguf_bytes(w, &size);
    write_file(dir, name, bytes, size);
    free(bytes);
}

/* ---- the file of a model ---- */

/* The numbers of a matrix, row after row without gaps, in a type of GGUF: *type. *size: bytes per number. The caller
 * frees them. */
static char *matrix_numbers(const struct weight_view *v, int all_f32, uint32_t *type, size_t *size)
{
    int keep = !all_f32 && (v->type == WEIGHT_BF16 || v->type == WEIGHT_F16);
    *type = !keep ? TYPE_F32 : v->type == WEIGHT_BF16 ? TYPE_BF16 : TYPE_F16;
    *size = keep ? 2 : 4;
    char *out = malloc(v->rows * v->cols * *size);
    assert_non_null(out);
    for (size_t i = 0; i < v->rows; i++)
        if (keep)
            memcpy(out + i * v->cols * 2, (const char *)v->data + i * v->stride * 2, v->cols * 2);
        else
            decode_weights((float *)(void *)out + i * v->cols, v, i, 0, v->cols);
    return out;
}

void put_matrix(struct gguf_writer *w, const char *prefix, const char *name, const struct weight_view *v, int all_f32)
{
    char whole[128];
    uint32_t type;
    size_t size;
    char *numbers = matrix_numbers(v, all_f32, &type, &size);
    snprintf(whole, sizeof whole, "%s%s.weight", prefix, name);
    tensor(w, whole, type, 2, (size_t[]){v->rows, v->cols}, numbers, v->rows * v->cols * size);
    free(numbers);
}

void put_vector(struct gguf_writer *w, const char *prefix, const char *name, const float *v, size_t n)
{
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    tensor(w, whole, TYPE_F32, 1, &n, v, n * sizeof *v);
}

/* Writes kv_b_proj [H(n+v), c] as attn_k_b [H, c, n] and attn_v_b [H, v, c]. */
static void put_kv_b(struct gguf_writer *w, const char *prefix, const struct config *c, const struct weight_view *kv_b,
                     const struct gguf_choice *o)
{
    size_t H = (size_t)c->num_attention_heads, N = (size_t)c->qk_nope_head_dim, V = (size_t)c->v_head_dim,
           C = kv_b->cols, size;
    size_t wide;
    uint32_t type, value_type;
    char *all = matrix_numbers(kv_b, o->all_f32, &type, &size);
    char *values = matrix_numbers(kv_b, o->all_f32 || o->mixed, &value_type, &wide);
    char *k = malloc(H * N * C * size), *v = malloc(H * V * C * wide), name[64];
    assert_true(k && v);
    for (size_t h = 0; h < H; h++) {
        for (size_t n = 0; n < N; n++)
            for (size_t i = 0; i < C; i++)
                memcpy(k + ((h * C + i) * N + n) * size, all + ((h * (N + V) + n) * C + i) * size, size);
        memcpy(v + h * V * C * wide, values + (h * (N + V) + N) * C * wide, V * C * wide);
    }
    snprintf(name, sizeof name, "%sattn_k_b.weight", prefix);
    tensor(w, name, type, 3 - o->flat, o->flat ? (size_t[]){H * C, N} : (size_t[]){H, C, N}, k, H * N * C * size);
    snprintf(name, sizeof name, "%sattn_v_b.weight", prefix);
    tensor(w, name, value_type, 3 - o->flat, o->flat ? (size_t[]){H * V, C} : (size_t[]){H, V, C}, v, H * V * C * wide);
    free(values);
    free(all);
    free(k);
    free(v);
}

static void put_mlp(struct gguf_writer *w, const char *prefix, const char *ending, const struct mlp *m, int all_f32)
{
    char name[64];
    snprintf(name, sizeof name, "ffn_gate%s", ending);
    put_matrix(w, prefix, name, &m->gate_proj, all_f32);
    snprintf(name, sizeof name, "ffn_up%s", ending);
    put_matrix(w, prefix, name, &m->up_proj, all_f32);
    snprintf(name, sizeof name, "ffn_down%s", ending);
    put_matrix(w, prefix, name, &m->down_proj, all_f32);
}

/* Writes the matrices `which` to `last` (0: gate, 1: up, 2: down) of all experts as one tensor. */
static void put_experts(struct gguf_writer *w, const char *prefix, const char *name, const struct moe *m, size_t E,
                        size_t which, size_t last, int all_f32)
{
    struct bytes all = {0};
    char whole[64];
    uint32_t type = 0;
    size_t size, rows = 0, cols = 0;
    for (size_t e = 0; e < E; e++)
        for (size_t i = which; i <= last; i++) {
            const struct weight_view *v = (const struct weight_view *)&m->experts[e] + i;
            char *numbers = matrix_numbers(v, all_f32, &type, &size);
            rows = v->rows * (last - which + 1);
            cols = v->cols;
            put(&all, numbers, v->rows * cols * size);
            free(numbers);
        }
    snprintf(whole, sizeof whole, "%sffn_%s_exps.weight", prefix, name);
    tensor(w, whole, type, 3, (size_t[]){E, rows, cols}, all.data, all.used);
    free(all.data);
}

static void put_indexer(struct gguf_writer *w, const char *prefix, const struct config *c, const struct mla *a,
                        int all_f32)
{
    put_matrix(w, prefix, "indexer.attn_q_b", &a->indexer.wq_b, all_f32);
    put_matrix(w, prefix, "indexer.attn_k", &a->indexer.wk, all_f32);
    put_vector(w, prefix, "indexer.k_norm.weight", a->indexer.k_norm, (size_t)c->index_head_dim);
    put_vector(w, prefix, "indexer.k_norm.bias", a->indexer.k_norm_bias, (size_t)c->index_head_dim);
    const struct weight_view *v = &a->indexer.weights_proj;
    char name[64];
    snprintf(name, sizeof name, "%sindexer.proj.weight", prefix);
    if (v->type == WEIGHT_Q8_0 && !all_f32)
        tensor(w, name, TYPE_Q8_0, 2, (size_t[]){v->rows, v->cols}, v->data, v->rows * v->cols / 32 * 34);
    else
        put_matrix(w, prefix, "indexer.proj", v, 1);
}

void put_layer(struct gguf_writer *w, const struct config *c, const struct layer *l, int index,
               const struct gguf_choice *o)
{
    size_t d = (size_t)c->hidden_size, E = (size_t)c->n_routed_experts;
    const struct mla *a = &l->self_attn;
    char p[32];
    snprintf(p, sizeof p, "blk.%d.", index);
    put_vector(w, p, "attn_norm.weight", l->input_layernorm, d);
    put_vector(w, p, "ffn_norm.weight", l->post_attention_layernorm, d);
    if (c->q_lora_rank) {
        put_matrix(w, p, "attn_q_a", &a->q_a_proj, o->all_f32);
        put_vector(w, p, "attn_q_a_norm.weight", a->q_a_layernorm, (size_t)c->q_lora_rank);
        put_matrix(w, p, "attn_q_b", &a->q_b_proj, o->all_f32);
    } else {
        put_matrix(w, p, "attn_q", &a->q_proj, o->all_f32);
    }
    put_matrix(w, p, "attn_kv_a_mqa", &a->kv_a_proj_with_mqa, o->all_f32);
    put_vector(w, p, "attn_kv_a_norm.weight", a->kv_a_layernorm, (size_t)c->kv_lora_rank);
    if (o->unsplit)
        put_matrix(w, p, "attn_kv_b", &a->w_uk, o->all_f32);
    else
        put_kv_b(w, p, c, &a->w_uk, o);
    put_matrix(w, p, "attn_output", &a->o_proj, o->all_f32);
    if (a->has_indexer)
        put_indexer(w, p, c, a, o->all_f32);
    if (!l->is_moe) {
        put_mlp(w, p, "", &l->mlp, o->all_f32);
        return;
    }
    put_matrix(w, p, "ffn_gate_inp", &l->moe.gate, 1);
    if (l->moe.e_score_correction_bias)
        put_vector(w, p, "exp_probs_b.bias", l->moe.e_score_correction_bias, E);
    put_experts(w, p, o->fused ? "gate_up" : "gate", &l->moe, E, 0, o->fused != 0, o->all_f32);
    if (!o->fused)
        put_experts(w, p, "up", &l->moe, E, 1, 1, o->all_f32);
    put_experts(w, p, "down", &l->moe, E, 2, 2, o->all_f32);
    if (c->n_shared_experts)
        put_mlp(w, p, "_shexp", &l->moe.shared_experts, o->all_f32);
}

void put_model(struct gguf_writer *w, const vb_model *m, const struct gguf_choice *o)
{
    const struct config *c = &m->config;
    size_t d = (size_t)c->hidden_size;
    put_matrix(w, "", "token_embd", &m->embed_tokens, o->all_f32);
    put_vector(w, "", "output_norm.weight", m->norm, d);
    if (!c->tie_word_embeddings)
        put_matrix(w, "", "output", &m->lm_head, o->all_f32);
    for (int i = 0; i < c->num_hidden_layers; i++)
        put_layer(w, c, &m->layers[i], i, o);
    for (int k = 0; k < m->num_mtp; k++) {
        char p[32];
        put_layer(w, c, &m->mtp[k].layer, c->num_hidden_layers + k, o);
        snprintf(p, sizeof p, "blk.%d.nextn.", c->num_hidden_layers + k);
        put_vector(w, p, "enorm.weight", m->mtp[k].enorm, d);
        put_vector(w, p, "hnorm.weight", m->mtp[k].hnorm, d);
        put_matrix(w, p, "eh_proj", &m->mtp[k].eh_proj, o->all_f32);
        put_vector(w, p, "shared_head_norm.weight", m->mtp[k].shared_head_norm, d);
        if (m->mtp[k].embed_tokens.data != m->embed_tokens.data)
            put_matrix(w, p, "embed_tokens", &m->mtp[k].embed_tokens, o->all_f32);
        if (m->mtp[k].head.data != m->lm_head.data)
            put_matrix(w, p, "shared_head_head", &m->mtp[k].head, o->all_f32);
    }
}

static void put_heads(struct gguf_writer *w, const struct config *c, int unsplit)
{
    int64_t n = c->qk_nope_head_dim, r = c->qk_rope_head_dim, latent = c->kv_lora_rank;
    key_u32(w, OF "attention.head_count", c->num_attention_heads);
    key_u32(w, OF "attention.head_count_kv", unsplit ? c->num_attention_heads : 1);
    key_u32(w, OF "attention.key_length", unsplit ? n + r : latent + r);
    key_u32(w, OF "attention.value_length", unsplit ? c->v_head_dim : latent);
    if (!unsplit) {
        key_u32(w, OF "attention.key_length_mla", n + r);
        key_u32(w, OF "attention.value_length_mla", c->v_head_dim);
    }
    if (c->q_lora_rank)
        key_u32(w, OF "attention.q_lora_rank", c->q_lora_rank);
    key_u32(w, OF "attention.kv_lora_rank", latent);
    key_f32(w, OF "attention.layer_norm_rms_epsilon", c->rms_norm_eps);
    key_u32(w, OF "rope.dimension_count", r);
    key_f32(w, OF "rope.freq_base", c->rope_theta);
}

static void put_expert_keys(struct gguf_writer *w, const struct config *c, const struct gguf_choice *o)
{
    key_u32(w, OF "leading_dense_block_count", c->first_k_dense_replace);
    key_u32(w, OF "expert_feed_forward_length", c->moe_intermediate_size);
    key_u32(w, OF "expert_count", c->n_routed_experts);
    key_u32(w, OF "expert_used_count", c->num_experts_per_tok);
    key_u32(w, OF "expert_shared_count", c->n_shared_experts);
    if (!o->no_groups) {
        key_u32(w, OF "expert_group_count", c->n_group);
        key_u32(w, OF "expert_group_used_count", c->topk_group);
    }
    key_f32(w, OF "expert_weights_scale", c->routed_scaling_factor);
    if (c->norm_topk_prob)
        key_number(w, OF "expert_weights_norm", BOOL, 1);
    if (!o->no_gating)
        key_u32(w, OF "expert_gating_func", c->scoring_func == SCORING_SIGMOID ? 2 : 1);
}

static void put_indexer_keys(struct gguf_writer *w, const struct config *c, const struct gguf_choice *o)
{
    key_u32(w, OF "attention.indexer.head_count", c->index_n_heads);
    key_u32(w, OF "attention.indexer.key_length", c->index_head_dim);
    key_u32(w, OF "attention.indexer.top_k", c->index_topk);
    if (c->index_share_for_mtp_iteration)
        key_number(w, "verbatim.index_share_for_mtp_iteration", BOOL, 1);
    if (o->no_types || !c->indexer_rope_interleave)
        return;
    key_array(w, OF "attention.indexer.types", BOOL, (uint64_t)c->num_hidden_layers);
    for (int i = 0; i < c->num_hidden_layers; i++)
        put_number(&w->keys, !config_layer_is_shared(c, i), 1);
}

void put_config(struct gguf_writer *w, const vb_model *m, const struct gguf_choice *o)
{
    const struct config *c = &m->config;
    w->architecture = c->index_topk ? c->indexer_rope_interleave ? "glm-dsa" : "deepseek32"
                      : c->query_beta > 0 ? "mistral4"
                      : "deepseek2";
    key_string(w, "general.architecture", w->architecture);
    if (o->alignment)
        key_u32(w, "general.alignment", (int64_t)o->alignment);
    key_u32(w, OF "vocab_size", c->vocab_size);
    key_u32(w, OF "context_length", c->max_position_embeddings);
    key_u32(w, OF "embedding_length", c->hidden_size);
    key_u32(w, OF "block_count", c->num_hidden_layers + m->num_mtp);
    key_u32(w, OF "feed_forward_length", c->intermediate_size);
    put_heads(w, c, o->unsplit);
    if (config_has_layers(c, 1))
        put_expert_keys(w, c, o);
    else
        key_u32(w, OF "leading_dense_block_count", c->num_hidden_layers); /* and no number of experts */
    if (c->index_topk)
        put_indexer_keys(w, c, o);
    if (m->num_mtp)
        key_u32(w, OF "nextn_predict_layers", m->num_mtp);
    if (c->rope_yarn) {
        key_string(w, OF "rope.scaling.type", "yarn");
        key_f32(w, OF "rope.scaling.factor", c->rope_factor);
        key_u32(w, OF "rope.scaling.original_context_length", c->rope_original_max_position_embeddings);
        key_f32(w, OF "rope.scaling.yarn_log_multiplier", 0.1 * c->rope_mscale_all_dim);
        if (c->query_beta > 0)
            key_f32(w, OF "attention.temperature_scale", c->query_beta);
        if (c->rope_beta_fast != 32)
            key_f32(w, OF "rope.scaling.yarn_beta_fast", c->rope_beta_fast);
    }
    for (int i = 0; i < c->num_eos && i < 3; i++)
        key_u32(w,
                i == 0 ? "tokenizer.ggml.eos_token_id"
                : i == 1 ? "tokenizer.ggml.eot_token_id"
                : "tokenizer.ggml.eom_token_id",
                c->eos_token_ids[i]);
    key_u32(w, "tokenizer.ggml.bos_token_id", c->bos_token_id);
}

/* ---- the tokenizer ---- */

void put_tokenizer(struct gguf_writer *w, const char *dir, const char *pre, size_t padded_to)
{
    char path[256], unused[32];
    const char *word;
    json_t *id, *entry;
    size_t i, n;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    json_t *root = json_load_file(path, 0, NULL), *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges"),
           *added = json_object_get(root, "added_tokens");
    assert_true(root && vocab && merges);
    const char **words = calloc(padded_to, sizeof *words);
    int32_t *kinds = calloc(padded_to, sizeof *kinds);
    assert_true(words && kinds);
    json_object_foreach(vocab, word, id)
    {
        n = (size_t)json_integer_value(id);
        assert_true(n < padded_to);
        words[n] = word;
        kinds[n] = 1;
    }
    json_array_foreach(added, i, entry)
    {
        n = (size_t)json_integer_value(json_object_get(entry, "id"));
        assert_true(n < padded_to);
        words[n] = json_string_value(json_object_get(entry, "content"));
        kinds[n] = json_is_true(json_object_get(entry, "special")) ? 3 : 4;
    }
    key_string(w, "tokenizer.ggml.model", "gpt2");
    key_string(w, "tokenizer.ggml.pre", pre);
    key_array(w, "tokenizer.ggml.tokens", STRING, padded_to);
    for (n = 0; n < padded_to; n++) {
        snprintf(unused, sizeof unused, "[PAD%zu]", n);
        put_text(&w->keys, words[n] ? words[n] : unused);
    }
    key_array(w, "tokenizer.ggml.token_type", I32, padded_to);
    for (n = 0; n < padded_to; n++)
        put_number(&w->keys, words[n] ? (uint64_t)kinds[n] : 5, 4);
    key_array(w, "tokenizer.ggml.merges", STRING, json_array_size(merges));
    json_array_foreach(merges, i, entry)
    {
        if (json_is_array(entry)) {
            const char *left = json_string_value(json_array_get(entry, 0)),
                       *right = json_string_value(json_array_get(entry, 1));
            snprintf(path, sizeof path, "%s %s", left, right);
        }
        put_text(&w->keys, json_is_array(entry) ? path : json_string_value(entry));
    }
    key_number(w, "tokenizer.ggml.add_bos_token", BOOL, 1);
    free(words);
    free(kinds);
    json_decref(root);
}

void write_model(const char *dir, const char *name, const vb_model *m, const struct gguf_choice *o)
{
    struct gguf_writer w = {.alignment = o->alignment};
    put_config(&w, m, o);
    if (o->tokenizer)
        put_tokenizer(&w, o->tokenizer, "deepseek-v3", (size_t)m->config.vocab_size);
    put_model(&w, m, o);
    gguf_write(&w, dir, name);
}
