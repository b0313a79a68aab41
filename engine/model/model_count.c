/* engine/model/model_count.c -- counts the parameters of a model. */
#include "engine/model/layer_tensors.h"

#include <stdio.h>
#include <string.h>

static int64_t numbers_of(const struct config *c, enum model_tensor t)
{
    const struct layer_tensor *x = &layer_tensors[t];
    return (int64_t)(x->rows(&c->dims) * (x->cols ? x->cols(&c->dims) : 1));
}

/* Counts the tensors of a walk, with those of `experts` experts. */
static int64_t count(struct tensor_walk w, size_t experts)
{
    int64_t total = 0;
    for (w.experts = 1; walk_next(&w);)
        total += numbers_of(w.c, w.tensor) * (layer_tensors[w.tensor].owner == OWNER_EXPERT ? (int64_t)experts : 1);
    return total;
}

static int same_tensor(const struct tensor *a, const struct tensor *b)
{
    if (!a || !b)
        return a == b;
    return a->dtype == b->dtype && a->bytes == b->bytes && (!a->data || !memcmp(a->data, b->data, a->bytes));
}

/* Returns a tensor of module k or, for one outside of layers, of the model. `end` replaces "weight" in its name. */
static const struct tensor *find(const struct vb_model *m, int k, enum model_tensor t, const char *end)
{
    char part[64], name[96];
    tensor_name(part, sizeof part, tensor_names[t].hf, 0, end);
    if (t >= TENSORS_OUTSIDE)
        return checkpoint_find(m->checkpoint, part);
    snprintf(name, sizeof name, "model.layers.%d.%s", m->config.num_hidden_layers + k, part);
    return checkpoint_find(m->checkpoint, name);
}

static enum model_tensor of_module(int head) { return head ? TENSOR_MODULE_HEAD : TENSOR_MODULE_EMBED_TOKENS; }

int model_mtp_stores(const struct vb_model *m, int k, int head) { return find(m, k, of_module(head), NULL) != NULL; }

/* Compares the stored tensors, not the copies that a precision makes of them. */
enum mtp_copy model_mtp_copy(const struct vb_model *m, int k, int head)
{
    static const char *const ends[] = {"weight", "weight_scale_inv"};
    enum model_tensor main = head && !m->config.tie_word_embeddings ? TENSOR_LM_HEAD : TENSOR_EMBED_TOKENS;
    for (size_t i = 0; i < 2; i++) {
        const struct tensor *own = find(m, k, of_module(head), ends[i]);
        if (!i && !own)
            return MTP_COPY_ABSENT;
        if (!same_tensor(own, find(m, k, main, ends[i])))
            return MTP_COPY_DIFFERENT;
    }
    return MTP_COPY_EQUAL;
}

/* Counts the embedding, the layers up to number `layers`, the last norm and the output head. */
static int64_t count_layers(const struct config *c, int layers, size_t experts)
{
    int64_t total = count(walk_model(c), 0);
    for (int l = 0; l < layers; l++)
        total += count(walk_layer(c, l, ONE_KV_B), experts);
    return total;
}

int64_t model_parameters(const struct vb_model *m)
{
    const struct config *c = &m->config;
    int64_t total = count_layers(c, c->num_hidden_layers + m->num_mtp, c->dims.E);
    for (int k = 0; k < m->num_mtp; k++)
        for (struct tensor_walk w = walk_module(c); walk_next(&w);)
            if (!layer_tensors[w.tensor].optional ||
                model_mtp_copy(m, k, w.tensor == TENSOR_MODULE_HEAD) == MTP_COPY_DIFFERENT)
                total += numbers_of(c, w.tensor);
    return total;
}

int64_t model_active_parameters(const struct vb_model *m)
{
    const struct config *c = &m->config;
    /* one row is read */
    int64_t table = c->tie_word_embeddings ? 0 : numbers_of(c, TENSOR_EMBED_TOKENS) - c->hidden_size;
    return count_layers(c, c->num_hidden_layers, c->dims.chosen) - table;
}
