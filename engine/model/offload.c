/* engine/model/offload.c -- chooses what a device computes, and copies weights to it. */
#include "engine/model/offload.h"
#include "engine/model/layer_tensors.h"
#include "engine/model/model_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "ops/cuda/driver.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/operators.h"
#include "ops/weights.h"
#include "numbers/numbers.h"

/* ---- the device ---- */

int offload_is_auto(const vb_offload *o)
{
    return o && o->device && (!strcmp(o->device, "auto") || !strncmp(o->device, "auto:", 5));
}

int offload_open_device(struct device **out, const vb_offload *o, char *why_not, vb_error *err)
{
    int number = 0, is_auto = offload_is_auto(o);
    char name[32];
    *out = NULL;
    if (!o || !o->device || !strcmp(o->device, "cpu"))
        return VB_OK;
    snprintf(name, sizeof name, "%s%s", is_auto ? "cuda" : "", o->device + (is_auto ? strlen("auto") : 0));
    if (strlen(o->device) > 20 || !driver_parse(&number, name))
        return vb_fail(err, VB_BAD_ARGUMENT, "unknown device %s; known are cpu, cuda, cuda:N, auto and auto:N",
                       o->device);
    if (o->layers < VB_OFFLOAD_AUTO)
        return vb_fail(err, VB_BAD_ARGUMENT, "layers on the device is %d, wanted 0 or more, or -1 for as many as fit",
                       o->layers);
    *out = driver_open(number, why_not, 256);
    return *out || is_auto ? VB_OK : vb_fail(err, VB_DEVICE, "device %s: %s", o->device, why_not);
}

/* ---- what it computes ---- */

/* Returns about how many bytes a tensor takes in the form in which the model uses it. */
static size_t bytes_in_use(const struct config *c, const struct tensor *t)
{
    size_t numbers = 1;
    for (int i = 0; i < t->ndim; i++)
        numbers *= (size_t)t->shape[i];
    if (c->precision == PRECISION_F32 || t->ndim < 2 || c->gguf)
        return t->bytes;
    return c->precision == PRECISION_BF16 ? 2 * numbers
           : c->precision == PRECISION_Q8 ? numbers / 32 * 34
           : numbers / 32 * 18;
}

/* The two parts of a layer that the device can compute alone. */
struct layer_bytes {
    size_t attention, mlp;
    size_t read; /* of the mlp, bytes that are read for one token */
};

/* Returns the bytes of a layer or, if `layer` is num_hidden_layers, those of the head and of the MTP modules. */
static struct layer_bytes bytes_of_layer(const struct config *c, const struct checkpoint *checkpoint, int layer)
{
    struct layer_bytes of = {0, 0, 0};
    char prefix[40];
    size_t first = 0, count = checkpoint_count(checkpoint);
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    if (layer < c->num_hidden_layers)
        count = checkpoint_with_prefix(checkpoint, prefix, &first);
    for (size_t i = first; i < first + count; i++) {
        const struct tensor *t = checkpoint_at(checkpoint, i);
        int its = model_layer_of(t->name);
        size_t bytes = bytes_in_use(c, t);
        if ((its < 0 || its > c->num_hidden_layers ? c->num_hidden_layers : its) != layer)
            continue;
        *(strstr(t->name, ".mlp.") ? &of.mlp : &of.attention) += bytes;
        of.read += !strstr(t->name, ".mlp.") ? 0
                   : strstr(t->name, ".mlp.experts.") ? bytes * c->dims.chosen / c->dims.E
                   : bytes;
    }
    return of;
}

static int is_moe(const struct config *c, int layer)
{
    return layer < c->num_hidden_layers && config_layer_is_moe(c, layer);
}

/* Returns how many layers fit into *left bytes, from number `last` down to number `first`, and subtracts them. With
 * `attention`, and with `experts`, what is wanted of a layer with experts is its attention, or its experts, or both.
 * Layers without experts belong to their attention. */
static int fit(size_t *left, const struct config *c, const struct checkpoint *checkpoint, int last, int first,
               int attention, int experts)
{
    int count = 0;
    for (int l = last; l >= first; l--, count++) {
        struct layer_bytes b = bytes_of_layer(c, checkpoint, l);
        size_t wanted = (attention ? b.attention : 0) + ((is_moe(c, l) ? experts : attention) ? b.mlp : 0);
        if (wanted > *left)
            break;
        *left -= wanted;
    }
    return count;
}

/* Returns how many bytes of weights the CPU reads for one token. */
static size_t read_by_cpu(const struct offload_plan *plan, const struct config *c, const struct checkpoint *checkpoint)
{
    size_t bytes = 0;
    for (int l = 0; l < c->num_hidden_layers; l++) {
        struct layer_bytes b = bytes_of_layer(c, checkpoint, l);
        int experts_there = l >= plan->first_layer && !plan->without_experts;
        bytes += (l < plan->first_attention ? b.attention : 0) +
                 ((is_moe(c, l) ? experts_there : l >= plan->first_attention) ? 0 : b.read);
    }
    return bytes;
}

/* Chooses as many layers as fit. With attention_first, the attention of all layers comes before the experts of any. */
static struct offload_plan choose_fitting(const struct offload_options *o, const struct config *c,
                                          const struct checkpoint *checkpoint, int attention_first)
{
    int L = c->num_hidden_layers, experts = !o->without_experts;
    size_t room = o->device->memory - o->device->taken, left = room - room / 8; /* the rest is for caches and for the
                                                                                   numbers of a pass */
    int ends = fit(&left, c, checkpoint, L, L, 1, experts);
    int count = ends ? fit(&left, c, checkpoint, L - 1, 0, 1, experts && !attention_first) : 0, whole = count;
    if (attention_first && experts)
        whole = fit(&left, c, checkpoint, L - 1, L - count, 0, 1);
    return (struct offload_plan){.first_layer = L - whole, .first_attention = L - count, .ends = ends,
                                 .without_experts = o->without_experts};
}

struct offload_plan offload_choose(const struct offload_options *o, const struct config *c,
                                   const struct checkpoint *checkpoint)
{
    int L = c->num_hidden_layers, first = !o->device ? L : o->layers < L ? L - o->layers : 0;
    struct offload_plan plan = {.first_layer = first, .first_attention = first, .ends = o->device && o->layers > L,
                                .without_experts = o->without_experts};
    if (!o->device || o->layers != OFFLOAD_AUTO)
        return plan;
    struct offload_plan whole = choose_fitting(o, c, checkpoint, 0), parts = choose_fitting(o, c, checkpoint, 1);
    return read_by_cpu(&parts, c, checkpoint) < read_by_cpu(&whole, c, checkpoint) ? parts : whole;
}

/* ---- its weights ---- */

/* Counts the bytes of weights or, if `device` is set, copies them. */
struct upload {
    struct device *device;
    size_t done, total;
    void (*progress)(void *context, size_t done, size_t total);
    void *context;
    int failed;
};

static void put(struct upload *u, const void *host, size_t bytes)
{
    if (!host || !bytes || u->failed)
        return;
    if (!u->device) {
        u->total += bytes;
        return;
    }
    if (device_has(u->device, host)) /* matrices may share their numbers or scales */
        return;
    u->failed = device_add_copy(u->device, host, bytes);
    u->done += bytes;
    if (u->progress)
        u->progress(u->context, u->done, u->total > u->done ? u->total : u->done);
}

/* Makes the scales of a view begin at those of its first row, so that the copy has no others. */
static void begin_scales_at_row(struct weight_view *w)
{
    if (!w->scale || !w->block_rows)
        return;
    w->scale += w->scale_row / w->block_rows * w->scale_stride;
    w->scale_row %= w->block_rows;
}

static size_t row_bytes(const struct weight_view *w)
{
    struct weight_view row = *w;
    row.rows = 1;
    row.cols = w->stride;
    return weight_bytes(&row);
}

static void put_matrix(struct upload *u, struct weight_view *w)
{
    struct weight_view last = *w;
    last.rows = 1;
    if (!w->rows)
        return;
    assert(!w->panels);
    if (u->device && !u->failed)
        u->failed = device_add_tables(u->device, w->type);
    begin_scales_at_row(w);
    put(u, w->data, (w->rows - 1) * row_bytes(w) + weight_bytes(&last));
    if (w->scale)
        put(u, w->scale,
            ((divide_up(w->scale_row + w->rows, w->block_rows) - 1) * w->scale_stride +
             divide_up(w->scale_col + w->cols, w->block_cols)) *
                sizeof *w->scale);
    if (w->group_scale)
        put(u, w->group_scale,
            w->type == WEIGHT_I4 ? w->rows * (w->stride / 32) * 2 : w->rows * (w->stride / w->group_size));
}

/* A matrix kv_b_proj is put as w_uk, before w_uv, which is a part of it. */
static void put_tensor(struct upload *u, enum model_tensor t, const void *owner, size_t expert, const struct config *c)
{
    if (layer_tensors[t].kind == KIND_VECTOR)
        put(u, tensor_vector(t, owner), layer_tensors[t].rows(&c->dims) * sizeof(float));
    else
        put_matrix(u, tensor_matrix(t, owner, expert));
}

static void translate(struct device *d, struct weight_view *w)
{
    w->data = device_at(d, w->data);
    w->scale = device_at(d, w->scale);
    w->group_scale = device_at(d, w->group_scale);
    w->ahead = NULL;
    w->magnitudes = NULL;
}

/* The device gets the array of experts too, with its own addresses: the router's choice is known there alone. */
static void put_table(struct upload *u, const struct moe *m, size_t experts, const vb_allocator *a)
{
    size_t bytes = experts * sizeof *m->experts;
    if (!u->device || u->failed) {
        u->total += bytes;
        return;
    }
    struct mlp *table = vb_alloc(a, experts, sizeof *table);
    u->failed = !table || device_add(u->device, m->experts, bytes);
    for (size_t e = 0; e < experts && !u->failed; e++) {
        table[e] = m->experts[e];
        for (enum model_tensor t = TENSOR_EXPERT_GATE_PROJ; t <= TENSOR_EXPERT_DOWN_PROJ; t++)
            translate(u->device, expert_matrix(t, &table[e]));
    }
    if (!u->failed)
        device_put(u->device, m->experts, table, bytes);
    u->done += bytes;
    vb_free(a, table);
}

static int is_like(const struct weight_view *a, const struct weight_view *b)
{
    return a->type == b->type && a->rows == b->rows && a->group_size == b->group_size &&
           a->block_rows == b->block_rows && a->block_cols == b->block_cols;
}

/* Returns whether the device's operator can compute the experts: their matrices must have one type, and the router must
 * not have too many. */
static int may_have_experts(const struct moe *m, const struct config *c)
{
    int may = cuda_can_route(&(struct router){.experts = c->dims.E, .chosen = c->dims.chosen});
    for (size_t e = 1; e < c->dims.E && may; e++)
        for (enum model_tensor t = TENSOR_EXPERT_GATE_PROJ; t <= TENSOR_EXPERT_DOWN_PROJ; t++)
            may &= is_like(expert_matrix(t, &m->experts[e]), expert_matrix(t, m->experts));
    return may;
}

/* `experts`: whether the device computes the experts, if the layer has any. */
static void put_layer(struct upload *u, struct layer *l, int experts, const struct vb_model *m)
{
    const struct config *c = &m->config;
    l->attention_on_device = 1;
    l->mlp_on_device = !l->is_moe || (experts && may_have_experts(&l->moe, c));
    for (struct tensor_walk w = walk_layer(c, l->index, W_UK_AND_W_UV); walk_next(&w);) {
        enum tensor_group group = layer_tensors[w.tensor].group;
        if (group == GROUP_MLP ? l->mlp_on_device : group == GROUP_ATTENTION || l->self_attn.has_indexer)
            put_tensor(u, w.tensor, l, w.expert, c);
    }
    if (l->mlp_on_device && l->is_moe)
        put_table(u, &l->moe, c->dims.E, m->allocator);
}

static void put_all(struct upload *u, struct vb_model *m, const struct offload_plan *plan)
{
    const struct config *c = &m->config;
    for (int l = plan->first_attention; l < c->num_hidden_layers; l++)
        put_layer(u, &m->layers[l], l >= plan->first_layer && !plan->without_experts, m);
    for (int k = 0; plan->ends && k < m->num_mtp; k++) {
        put_layer(u, &m->mtp[k].layer, !plan->without_experts, m);
        put_matrix(u, &m->mtp[k].eh_proj);
        put_matrix(u, &m->mtp[k].head);
    }
    if (plan->ends)
        put_matrix(u, &m->lm_head);
}

int offload_model(struct vb_model *m, const struct offload_plan *plan, struct device *device,
                  void (*progress)(void *context, size_t done, size_t total), void *context, vb_error *err)
{
    struct upload counted = {0};
    if (!device)
        return VB_OK;
    put_all(&counted, m, plan);
    struct upload u = {.device = device, .total = counted.total, .progress = progress, .context = context};
    size_t before = device->memory - device->taken;
    m->device = device;
    put_all(&u, m, plan);
    m->offload = *plan;
    m->device_weights = u.done;
    if (device_wait(device))
        return vb_fail(err, VB_DEVICE, "%s", device_failure(device));
    return u.failed
               ? vb_fail(err, VB_NO_MEMORY,
                         "%s has no memory for %d layers%s: their weights take %.1f MB, and %.1f MB were free; offload "
                         "fewer layers",
                         device->name, m->config.num_hidden_layers - plan->first_attention,
                         plan->ends ? " and the output head" : "", 1e-6 * (double)counted.total, 1e-6 * (double)before)
               : VB_OK;
}
