/* tests/support/lists.c -- tensors of a checkpoint as a list, and parameter counts. */
#include "tests/support/lists.h"

void list_open(struct list *l, const char *dir)
{
    vb_error err;
    if (config_read(&l->config, dir, NULL, &err) || checkpoint_open(&l->from, dir, NULL, &err))
        fail_msg("%s", err.message);
    l->count = checkpoint_count(l->from);
    assert_true(l->count < COUNT(l->tensors));
    for (size_t i = 0; i < l->count; i++)
        l->tensors[i] = *checkpoint_at(l->from, i);
}

struct tensor *list_find(struct list *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++)
        if (!strcmp(l->tensors[i].name, name))
            return &l->tensors[i];
    fail_msg("no %s", name);
    return NULL;
}

void list_remove_prefix(struct list *l, const char *prefix)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->count; i++)
        if (strncmp(l->tensors[i].name, prefix, strlen(prefix)))
            l->tensors[kept++] = l->tensors[i];
    l->count = kept;
}

int list_bind(const struct list *l, struct vb_model **m, vb_error *err)
{
    struct checkpoint *c;
    err->code = VB_OK;
    err->message[0] = 0;
    int rc = checkpoint_from_list(&c, l->tensors, l->count, NULL, err);
    if (!rc)
        rc = model_bind(m, &l->config, c, NULL, err);
    assert_int_equal(rc, err->code);
    return rc;
}

struct vb_model *bind_or_fail(const struct list *l)
{
    struct vb_model *m;
    vb_error err;
    if (list_bind(l, &m, &err))
        fail_msg("%s", err.message);
    return m;
}

void expect_bind(const struct list *l, int code, const char *format, ...)
{
    char wants[512];
    struct vb_model *m;
    vb_error err;
    va_list args;
    va_start(args, format);
    vsnprintf(wants, sizeof wants, format, args);
    va_end(args);
    int rc = list_bind(l, &m, &err);
    if (rc != code || strcmp(err.message, wants))
        fail_msg("code %d \"%s\", wanted %d \"%s\"", rc, err.message, code, wants);
}

int ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

int64_t layer_parameters(const struct config *c, int layer, int64_t *active)
{
    int64_t d = c->hidden_size, H = c->num_attention_heads, q = c->q_lora_rank, latent = c->kv_lora_rank;
    int64_t n = c->qk_nope_head_dim, r = c->qk_rope_head_dim, v = c->v_head_dim, E = c->n_routed_experts;
    int64_t expert = 3 * d * c->moe_intermediate_size;
    int64_t attention = (q ? q * d + q + H * (n + r) * q : H * (n + r) * d) + (latent + r) * d + latent +
                        H * (n + v) * latent + d * H * v;
    int64_t always = attention + 2 * d;
    if (!config_layer_is_moe(c, layer)) {
        *active = always + 3 * d * c->intermediate_size;
        return *active;
    }
    always += E * d + (c->topk_method == TOPK_NOAUX_TC ? E : 0) + expert * c->n_shared_experts;
    *active = always + expert * c->num_experts_per_tok;
    return always + expert * E;
}

void check_parameters(const struct vb_model *m)
{
    const struct config *c = &m->config;
    int64_t d = c->hidden_size, table = c->vocab_size * d, part, total = table + d,
            active = d + table + (c->tie_word_embeddings ? 0 : d);
    if (!c->tie_word_embeddings)
        total += table;
    for (int i = 0; i < c->num_hidden_layers; i++) {
        total += layer_parameters(c, i, &part);
        active += part;
    }
    for (int k = 0; k < m->num_mtp; k++) {
        total += layer_parameters(c, c->num_hidden_layers + k, &part) + 3 * d + 2 * d * d;
        for (int head = 0; head < 2; head++)
            total += model_mtp_copy(m, k, head) == MTP_COPY_DIFFERENT ? table : 0;
    }
    assert_int_equal(model_parameters(m), total);
    assert_int_equal(model_active_parameters(m), active);
}
