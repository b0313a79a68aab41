/* engine/model/model_count.c -- counts the parameters of a model. */
#include "engine/model/model_internal.h"

#include <stdio.h>
#include <string.h>

static int64_t numbers_of(const struct tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

/* Returns whether the model uses *t as a weight, and not as scales of FP8 weights. */
static int is_weight(const struct tensor *t)
{
    return t->taken && !vb_ends_with(t->name, "_scale_inv");
}

static int same_tensor(const struct tensor *a, const struct tensor *b)
{
    if (!a || !b)
        return a == b;
    return a->dtype == b->dtype && a->bytes == b->bytes && (!a->data || !memcmp(a->data, b->data, a->bytes));
}

static const struct tensor *of_module(const struct vb_model *m, int k, int head, const char *suffix)
{
    char name[64];
    snprintf(name, sizeof name, "model.layers.%d.%s.%s", m->config.num_hidden_layers + k,
             head ? "shared_head.head" : "embed_tokens", suffix);
    return checkpoint_find(m->checkpoint, name);
}

int model_mtp_stores(const struct vb_model *m, int k, int head) { return of_module(m, k, head, "weight") != NULL; }

/* Compares the stored tensors, not the copies that a precision makes of them. */
enum mtp_copy model_mtp_copy(const struct vb_model *m, int k, int head)
{
    static const char *const suffixes[] = {"weight", "weight_scale_inv"};
    const char *main = head && !m->config.tie_word_embeddings ? "lm_head" : "model.embed_tokens";
    for (size_t i = 0; i < 2; i++) {
        char main_name[64];
        snprintf(main_name, sizeof main_name, "%s.%s", main, suffixes[i]);
        const struct tensor *own = of_module(m, k, head, suffixes[i]);
        if (!i && !own)
            return MTP_COPY_ABSENT;
        if (!same_tensor(own, checkpoint_find(m->checkpoint, main_name)))
            return MTP_COPY_DIFFERENT;
    }
    return MTP_COPY_EQUAL;
}

int64_t model_parameters(const struct vb_model *m)
{
    int64_t total = 0, table = (int64_t)m->config.vocab_size * m->config.hidden_size;
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (is_weight(t))
            total += numbers_of(t);
    }
    for (int k = 0; k < m->num_mtp; k++)
        for (int head = 0; head < 2; head++)
            if (model_mtp_copy(m, k, head) == MTP_COPY_EQUAL)
                total -= table;
    return total;
}

int64_t model_active_parameters(const struct vb_model *m)
{
    const struct config *c = &m->config;
    int64_t always = c->tie_word_embeddings ? 0 : c->hidden_size, experts = 0; /* one row of embed_tokens, unless all
                                                                                  are read as head */
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (!is_weight(t) || model_layer_of(t->name) >= c->num_hidden_layers)
            continue;
        if (strstr(t->name, ".mlp.experts."))
            experts += numbers_of(t);
        else if (c->tie_word_embeddings ||
                 strcmp(t->name, "model.embed_tokens.weight")) /* tied: it is also the output head */
            always += numbers_of(t);
    }
    return always + experts / c->n_routed_experts * c->num_experts_per_tok;
}
