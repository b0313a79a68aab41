/* engine/train/train_values.c -- the memory of a step: the values of a micro-batch, and the scratch of the
 * operators. */
#include "engine/train/train_eagle.h"

#include "numbers/numbers.h"
#include "ops/backward/adamw.h"
#include "ops/backward/attention.h"
#include "ops/backward/cross_entropy.h"
#include "ops/backward/linear.h"
#include "ops/backward/moe.h"
#include "ops/backward/rmsnorm.h"
#include "ops/backward/router.h"
#include "ops/backward/smooth_l1.h"
#include "ops/expanded.h"
#include "ops/linear.h"
#include "ops/mlp.h"

#define LOGITS ((size_t)1 << 22) /* numbers of logits at once, but at least 16 rows */

void *train_carve(struct carver *c, size_t count, size_t size)
{
    char *p = c->base ? c->base + c->used : NULL;
    c->used += (count * size + 63) / 64 * 64;
    return p;
}

static void *carve(struct carver *c, size_t count, size_t size) { return train_carve(c, count, size); }
static float *floats(struct carver *c, size_t count) { return carve(c, count, sizeof(float)); }

/* The intermediate size of a layer's dense MLP or of its shared expert. */
static size_t intermediate_of(const struct dims *s, const struct train_layer *l)
{
    return l->is_moe ? s->expert * s->shared : s->dense;
}

static size_t widest_intermediate(const struct vb_trainer *t)
{
    size_t widest = 0;
    for (int i = 0; t->layers && i < t->c->num_hidden_layers; i++)
        widest = max_size(widest, intermediate_of(&t->c->dims, &t->layers[i]));
    for (int k = 0; k < t->used; k++)
        widest = max_size(widest, intermediate_of(&t->c->dims, &t->mtp[k].layer));
    return widest;
}

/* aligned: the rows of an aligned depth k */
static void carve_rows(struct carver *c, struct train_rows *x, const struct vb_trainer *t, int aligned, int k)
{
    x->first = carve(c, t->most + 1, sizeof *x->first);
    x->tokens = carve(c, t->room, sizeof *x->tokens);
    x->labels = carve(c, t->room, sizeof *x->labels);
    x->list = carve(c, t->room, sizeof *x->list);
    x->depth = aligned ? (size_t)k : 0;
    x->tail_slots = aligned ? carve(c, t->room * x->depth, sizeof *x->tail_slots) : NULL;
}

static void carve_expanded(struct carver *c, struct expanded_rows *x, const struct vb_trainer *t, size_t S)
{
    const struct dims *s = &t->c->dims;
    x->kv = floats(c, S * s->H * (s->n + s->v));
    x->k_rope = floats(c, S * s->r);
    x->dkv = floats(c, S * s->H * (s->n + s->v));
    x->dk_rope = floats(c, S * s->r);
}

/* Which values of a layer are kept. Q_ROPE stands for all numbers of the queries, which are in one array with it. */
static const struct {
    enum pass_value value;
    size_t at; /* offset in struct kept_values */
} kept_values[] = {
#define KEPT(member) offsetof(struct kept_values, member)
    {LAYER_INPUT, KEPT(x)}, {Q_A, KEPT(q_a)}, {Q_ROPE, KEPT(q)}, {KV_A, KEPT(kv_a)}, {ATTENTION_HEADS, KEPT(heads)},
    {MIDDLE, KEPT(middle)}, {MLP_GATE, KEPT(gate)}, {MLP_UP, KEPT(up)}, {ROUTER_LOGITS, KEPT(scores)}
#undef KEPT
};
_Static_assert(sizeof kept_values / sizeof *kept_values == KEPT_VALUES, "the table has all arrays");

/* Layer `number` of model m. keep [KEPT_VALUES] receives what its forward pass keeps. */
static void carve_kept(struct carver *c, struct kept_values *x, struct keep *keep, const struct vb_trainer *t,
                       const struct train_layer *l, const struct vb_model *m, size_t number)
{
    for (size_t i = 0; i < KEPT_VALUES; i++) {
        enum pass_value v = kept_values[i].value;
        size_t width = v == MLP_GATE || v == MLP_UP ? intermediate_of(&m->config.dims, l)
                       : value_exists(v, &m->config, (int)number) ? value_shape(v, &m->config).pitch : 0;
        float **array = (float **)(void *)((char *)x + kept_values[i].at);
        *array = floats(c, t->room * width);
        if (c->base)
            keep[i] = (struct keep){v, (int)number, *array, width};
    }
    x->cache_layer = number < m->config.dims.layers ? number : 0;
}

static void carve_depth(struct carver *c, struct train_depth *x, const struct vb_trainer *t, int k)
{
    size_t n = t->room * t->c->dims.d;
    carve_rows(c, &x->rows, t, train_is_aligned(t), k);
    int module = k % t->used, number = t->c->num_hidden_layers + module;
    x->keep = carve(c, KEPT_VALUES + 1, sizeof *x->keep);
    carve_kept(c, &x->kept, x->keep, t, &t->mtp[module].layer, train_drafts(t), (size_t)number);
    x->taken = floats(c, n);
    x->y = floats(c, n);
    if (c->base)
        x->keep[KEPT_VALUES] = (struct keep){LAYER_OUTPUT, number, x->y, t->c->dims.d};
    x->g = floats(c, n);
    x->dg = floats(c, n);
    x->dembed = floats(c, n);
}

/* The rows of all depths, or of the target. */
static size_t slots_of(const struct vb_trainer *t) { return t->room * max_size(1, (size_t)t->o.depths); }

static void carve_shared(struct carver *c, struct train_shared *x, const struct vb_trainer *t)
{
    const struct dims *s = &t->c->dims;
    size_t room = t->room, S = t->eagle ? 0 : room; /* an EAGLE head has values of its own */
    size_t d = s->d, H = s->H, E = config_has_layers(t->c, 1) || t->used ? s->E : 0, chosen = E ? s->chosen : 0;
    x->head_rows = min_size(room, max_size(16, LOGITS / s->V));
    x->slots = carve(c, slots_of(t), sizeof *x->slots);
    x->dq_n = floats(c, S * s->q);
    x->dq_a = floats(c, S * s->q);
    x->dq = floats(c, S * H * (s->n + s->r));
    x->latent = floats(c, S * s->c);
    x->dlatent = floats(c, S * s->c);
    x->dkv_a = floats(c, S * (s->c + s->r));
    carve_expanded(c, &x->expanded, t, S);
    x->dheads = floats(c, S * H * s->v);
    x->dnormed = floats(c, S * d);
    x->dscores = floats(c, S * E);
    x->dweights = floats(c, S * chosen);
    x->dconcat = floats(c, t->o.depths ? S * 2 * d : 0);
    x->dx = floats(c, S * d);
    x->dtaken = floats(c, t->o.depths ? S * d : 0);
    x->z = floats(c, x->head_rows * s->V);
    x->target_z = floats(c, train_is_soft(t) ? x->head_rows * s->V : 0);
    x->decoded = floats(c, DECODED_ROWS * d);
    x->some = floats(c, x->head_rows * DECODED_ROWS);
}

/* The scratch of the operators that compute one layer. */
static size_t layer_scratch(const struct vb_trainer *t)
{
    const struct dims *s = &t->c->dims;
    int threads = t->cx.most_threads;
    size_t tail = train_is_aligned(t) ? (size_t)t->o.depths - 1 : 0; /* of the deepest rows */
    size_t S = t->room, d = s->d, wide = max_size(widest_intermediate(t), s->expert),
           heads = s->H * max_size(s->n + s->r, s->n + s->v);
    size_t widest = max_size(max_size(max_size(2 * d, heads), max_size(wide, s->E)), max_size(s->q, s->c + s->r));
    struct back_attention back = {.heads = s->H, .nope = s->n, .rope = s->r, .value = s->v, .depth = tail};
    struct router router = {.experts = s->E, .groups = s->groups, .chosen = s->chosen};
    size_t bytes = max_size(t->forward_scratch, op_linear_scratch(S, widest));
    bytes = max_size(bytes, op_back_attention_scratch(&back, S, t->longest, threads));
    bytes = max_size(bytes, op_back_rmsnorm_scratch(S, widest, threads));
    bytes = max_size(bytes, op_back_mlp_scratch(S, wide));
    if (!s->E)
        return bytes;
    bytes = max_size(bytes, op_back_moe_scratch(S, d, s->expert));
    return max_size(bytes, op_back_router_scratch(&router));
}

static size_t scratch_bytes(const struct vb_trainer *t)
{
    const struct dims *s = &t->c->dims;
    size_t rows = t->shared.head_rows, bytes = t->eagle ? train_eagle_scratch(t) : layer_scratch(t);
    bytes = max_size(bytes, op_linear_scratch(rows, s->d));
    for (size_t i = 0; i < t->count; i++)
        bytes = max_size(bytes, op_squares_scratch(t->tensors[i].rows * t->tensors[i].cols));
    if (train_is_soft(t))
        bytes = max_size(bytes, op_soft_cross_entropy_scratch(rows, s->V, (size_t)t->loss.terms.top_tokens,
                                                              t->cx.most_threads));
    return max_size(bytes,
                    max_size(op_cross_entropy_scratch(rows, s->V, t->cx.most_threads), op_smooth_l1_scratch(t->room))) +
           4096;
}

static void carve_all(struct carver *c, struct vb_trainer *t)
{
    size_t layers = t->layers ? t->c->dims.layers : 0, n = t->room * t->c->dims.d;
    t->angles = floats(c, (t->longest + (size_t)t->o.depths + 1) * t->c->dims.r);
    carve_rows(c, &t->rows, t, 0, -1);
    t->batch = carve(c, t->most, sizeof *t->batch);
    t->kept = carve(c, layers, sizeof *t->kept);
    t->keep = carve(c, KEPT_VALUES * layers + 2, sizeof *t->keep);
    t->depth = carve(c, (size_t)t->o.depths, sizeof *t->depth);
    struct kept_values nothing;
    struct train_depth nowhere;
    for (size_t l = 0; l < layers; l++)
        carve_kept(c, c->base ? &t->kept[l] : &nothing, t->keep + l * KEPT_VALUES, t, &t->layers[l], &t->trained, l);
    for (int k = 0; k < t->o.depths && !t->eagle; k++)
        carve_depth(c, c->base ? &t->depth[k] : &nowhere, t, k);
    t->expanded = carve(c, (size_t)t->o.depths, sizeof *t->expanded);
    struct expanded_rows nothing_expanded;
    for (int k = 0; k < t->o.depths && train_is_aligned(t); k++)
        carve_expanded(c, c->base ? &t->expanded[k] : &nothing_expanded, t, t->room);
    if (t->eagle)
        train_eagle_carve(c, t);
    t->last = floats(c, layers ? n : 0);
    t->hidden = floats(c, t->room * t->width);
    t->final = train_takes_final(t) ? t->hidden : train_is_soft(t) ? floats(c, n) : NULL;
    t->dhidden = floats(c, layers ? n : 0);
    t->dtrunk = floats(c, layers && t->o.heads ? n : 0);
    if (c->base && layers) {
        t->keep[KEPT_VALUES * layers] = (struct keep){FINAL_NORM_INPUT, -1, t->last, t->c->dims.d};
        t->keep[KEPT_VALUES * layers + 1] = (struct keep){FINAL_NORM, -1, t->hidden, t->c->dims.d};
    }
    carve_shared(c, &t->shared, t);
    t->cx.scratch_size = scratch_bytes(t);
    t->cx.scratch = carve(c, t->cx.scratch_size, 1);
}

static void forget_values(struct vb_trainer *t)
{
    vb_free(&t->allocator, t->values);
    t->values = NULL;
    train_close_pass(t);
}

int train_reserve(struct vb_trainer *t, size_t tokens, size_t longest, size_t sequences, vb_error *err)
{
    if (t->values && tokens <= t->room && longest <= t->longest && sequences <= t->most)
        return VB_OK;
    struct carver c = {0};
    forget_values(t);
    t->room = max_size(tokens, t->room);
    t->longest = max_size(longest, t->longest);
    t->most = max_size(sequences, t->most);
    int rc = t->eagle ? VB_OK : train_open_pass(t, err);
    if (!rc)
        carve_all(&c, t);
    if (!rc && !(c.base = t->values = vb_alloc_unset(&t->allocator, c.used)))
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for a micro-batch of %zu tokens: it needs %zu bytes", t->room,
                     c.used);
    if (rc) {
        forget_values(t);
        t->room = t->longest = t->most = 0; /* a smaller one may fit */
        return rc;
    }
    c.used = 0;
    carve_all(&c, t);
    t->pass.cx = t->cx; /* they share scratch and threads */
    for (size_t s = 0; s < slots_of(t); s++)
        t->shared.slots[s] = (int32_t)s;
    for (size_t p = 0; p < t->longest + (size_t)t->o.depths + 1; p++)
        op_rope_angles(t->angles + p * t->c->dims.r, &t->pass.rope, (int64_t)p);
    return VB_OK;
}
