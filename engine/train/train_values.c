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
    x->cos_sin = floats(c, t->room * t->c->dims.r);
    x->places = carve(c, t->room, sizeof *x->places);
    x->seen = carve(c, t->room, sizeof *x->seen);
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

static void carve_kept(struct carver *c, struct kept_values *x, const struct vb_trainer *t, const struct train_layer *l)
{
    const struct dims *s = &t->c->dims;
    size_t S = t->room, i = intermediate_of(s, l), E = l->is_moe ? s->E : 0, chosen = l->is_moe ? s->chosen : 0;
    x->x = floats(c, S * s->d);
    x->q_a = floats(c, S * s->q);
    x->q = floats(c, S * s->H * (s->n + s->r));
    x->kv_a = floats(c, S * (s->c + s->r));
    x->kv_n = floats(c, S * (s->c + s->r));
    x->heads = floats(c, S * s->H * s->v);
    x->middle = floats(c, S * s->d);
    x->gate = floats(c, S * i);
    x->up = floats(c, S * i);
    x->scores = floats(c, S * E);
    x->weights = floats(c, S * chosen);
    x->experts = carve(c, S * chosen, sizeof *x->experts);
}

static void carve_depth(struct carver *c, struct train_depth *x, const struct vb_trainer *t, int k)
{
    size_t n = t->room * t->c->dims.d;
    carve_rows(c, &x->rows, t, train_is_aligned(t), k);
    carve_kept(c, &x->kept, t, &t->mtp[k % t->used].layer);
    x->taken = floats(c, n);
    x->y = floats(c, n);
    x->g = floats(c, n);
    x->dg = floats(c, n);
    x->dembed = floats(c, n);
}

static void carve_shared(struct carver *c, struct train_shared *x, const struct vb_trainer *t)
{
    const struct dims *s = &t->c->dims;
    size_t room = t->room, S = t->eagle ? 0 : room; /* an EAGLE head has values of its own */
    size_t d = s->d, H = s->H, E = config_has_layers(t->c, 1) || t->used ? s->E : 0, chosen = E ? s->chosen : 0;
    x->head_rows = min_size(room, max_size(16, LOGITS / s->V));
    x->cache = carve(c, S * (train_is_aligned(t) ? (size_t)t->o.depths : 1),
                     kv_row_bytes(&(struct kv_layout){.type = KV_F32, .latent = s->c, .rope = s->r}));
    x->slots = carve(c, room, sizeof *x->slots);
    x->normed = floats(c, S * d);
    x->delta = floats(c, S * d);
    x->q_n = floats(c, S * s->q);
    x->dq_n = floats(c, S * s->q);
    x->dq_a = floats(c, S * s->q);
    x->dq = floats(c, S * H * (s->n + s->r));
    x->latent = floats(c, S * s->c);
    x->dlatent = floats(c, S * s->c);
    x->dkv_a = floats(c, S * (s->c + s->r));
    carve_expanded(c, &x->expanded, t, S);
    x->dheads = floats(c, S * H * s->v);
    x->dnormed = floats(c, S * d);
    x->product = floats(c, S * widest_intermediate(t));
    x->dscores = floats(c, S * E);
    x->dweights = floats(c, S * chosen);
    x->concat = floats(c, t->o.depths ? S * 2 * d : 0);
    x->dconcat = floats(c, t->o.depths ? S * 2 * d : 0);
    x->embedding = floats(c, t->o.depths ? S * d : 0);
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
    struct attention forward = {.heads = s->H, .nope = s->n, .rope = s->r, .value = s->v, .latent = s->c,
                                .cache = KV_F32, .tail = tail};
    struct back_attention back = {.heads = s->H, .nope = s->n, .rope = s->r, .value = s->v, .depth = tail};
    struct router router = {.experts = s->E, .groups = s->groups, .chosen = s->chosen};
    size_t bytes = op_linear_scratch(S, widest);
    bytes = max_size(bytes, op_expanded_scratch(&forward, S, t->longest + tail, threads));
    bytes = max_size(bytes, op_back_attention_scratch(&back, S, t->longest, threads));
    bytes = max_size(bytes, op_back_rmsnorm_scratch(S, widest, threads));
    bytes = max_size(bytes, op_back_mlp_scratch(S, wide));
    if (!s->E)
        return bytes;
    bytes = max_size(bytes, max_size(op_moe_scratch(S, d, s->expert, 0, s->E, s->chosen),
                                     op_back_moe_scratch(S, d, s->expert)));
    return max_size(bytes, max_size(op_router_scratch(&router), op_back_router_scratch(&router)));
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
    t->depth = carve(c, (size_t)t->o.depths, sizeof *t->depth);
    struct kept_values nothing;
    struct train_depth nowhere;
    for (size_t l = 0; l < layers; l++)
        carve_kept(c, c->base ? &t->kept[l] : &nothing, t, &t->layers[l]);
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
    carve_shared(c, &t->shared, t);
    t->cx.scratch_size = scratch_bytes(t);
    t->cx.scratch = carve(c, t->cx.scratch_size, 1);
}

int train_reserve(struct vb_trainer *t, size_t tokens, size_t longest, size_t sequences, vb_error *err)
{
    if (t->values && tokens <= t->room && longest <= t->longest && sequences <= t->most)
        return VB_OK;
    struct carver c = {0};
    vb_free(&t->allocator, t->values);
    t->values = NULL;
    t->room = max_size(tokens, t->room);
    t->longest = max_size(longest, t->longest);
    t->most = max_size(sequences, t->most);
    carve_all(&c, t);
    if (!(c.base = t->values = vb_alloc_unset(&t->allocator, c.used))) {
        vb_fail(err, VB_NO_MEMORY, "no memory for a micro-batch of %zu tokens: it needs %zu bytes", t->room, c.used);
        t->room = t->longest = t->most = 0; /* a smaller one may fit */
        return VB_NO_MEMORY;
    }
    c.used = 0;
    carve_all(&c, t);
    for (size_t s = 0; s < t->room; s++)
        t->shared.slots[s] = (int32_t)s;
    for (size_t p = 0; p < t->longest + (size_t)t->o.depths + 1; p++)
        op_rope_angles(t->angles + p * t->c->dims.r, &t->rope, (int64_t)p);
    return VB_OK;
}
