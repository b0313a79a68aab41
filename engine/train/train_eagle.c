/* engine/train/train_eagle.c -- an EAGLE head to train: its sizes, tensors and memory. */
#include "engine/train/train_eagle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "numbers/numbers.h"
#include "ops/backward/gqa.h"
#include "ops/backward/linear.h"
#include "ops/backward/mlp.h"
#include "ops/backward/rmsnorm.h"
#include "ops/linear.h"
#include "ops/weights.h"
#include "simd/decode.h"

/* ---- the head ---- */

/* The length of one head of attention, if the options do not say it. */
static size_t usual_dim(const struct config *c)
{
    for (size_t dim = 128; dim >= 32; dim /= 2)
        if (c->dims.d % dim == 0)
            return dim;
    return c->dims.d / c->dims.H;
}

/* A new head: the sizes of the options, the norms and angles of the target. */
static int take_new(struct vb_trainer *t, const struct trainer_eagle *o, vb_error *err)
{
    struct train_eagle *e = t->eagle;
    e->d = t->c->dims.d;
    e->D = o->dim ? o->dim : usual_dim(t->c);
    e->H = o->heads ? o->heads : e->D ? e->d / e->D : 0;
    e->G = o->groups ? o->groups : e->H;
    e->intermediate = o->intermediate ? o->intermediate : t->c->dims.dense ? t->c->dims.dense : 4 * e->d;
    e->vocab_size = e->version == 3 && o->tokens ? o->vocab_size : t->c->dims.V;
    e->eps = (float)t->c->rms_norm_eps;
    e->norms = e->version == 3 ? o->norms : (struct eagle_norms){0};
    if (!e->H || e->H % e->G || e->D < 2 || e->D % 2 || e->D > ROPE_MAX_DIM)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "an EAGLE head with %zu attention heads of %zu numbers and %zu groups, wanted heads that the "
                       "groups divide, and an even number up to %d",
                       e->H, e->D, e->G, ROPE_MAX_DIM);
    if (e->norms.norm_before_fc && e->norms.fc_norm)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "an EAGLE-3 head with norm_before_fc and fc_norm, wanted at most one of them");
    rope_init(&e->rope, e->D, 0, t->c->rope_theta, NULL);
    e->embed = t->model->embed_tokens;
    return VB_OK;
}

static void take_sizes(struct train_eagle *e, const struct eagle_head *h)
{
    const struct config *c = &h->model.config;
    struct rope_yarn yarn = {c->rope_factor, c->rope_beta_fast, c->rope_beta_slow, c->rope_mscale,
                             c->rope_mscale_all_dim, (double)c->rope_original_max_position_embeddings};
    e->d = c->dims.d;
    e->H = c->dims.H;
    e->G = c->dims.G;
    e->D = c->dims.v;
    e->intermediate = c->dims.dense;
    e->vocab_size = h->vocab_size;
    e->norms = h->norms;
    e->eps = (float)c->rms_norm_eps;
    rope_init(&e->rope, e->D, 0, c->rope_theta, c->rope_yarn ? &yarn : NULL);
    e->embed = h->module.embed_tokens;
}

/* e->tokens and e->ids, from the tokens of the options or of the head */
static int take_vocabulary(struct vb_trainer *t, const int32_t *tokens, vb_error *err)
{
    struct train_eagle *e = t->eagle;
    size_t V = t->c->dims.V;
    if (!tokens || e->version != 3)
        return VB_OK;
    if (!e->vocab_size || e->vocab_size > V)
        return vb_fail(err, VB_BAD_ARGUMENT, "a draft vocabulary of %zu tokens, wanted 1 to %zu", e->vocab_size, V);
    if (!(e->tokens = vb_alloc(&t->allocator, e->vocab_size, sizeof *e->tokens)) ||
        !(e->ids = vb_alloc(&t->allocator, V, sizeof *e->ids)))
        return vb_fail(err, VB_NO_MEMORY, "no memory for a draft vocabulary of %zu tokens", e->vocab_size);
    memcpy(e->tokens, tokens, e->vocab_size * sizeof *tokens);
    for (size_t v = 0; v < V; v++)
        e->ids[v] = -1;
    for (size_t i = 0; i < e->vocab_size; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= V || (i && tokens[i] <= tokens[i - 1]))
            return vb_fail(err, VB_BAD_ARGUMENT,
                           "token %zu of the draft vocabulary is %d, wanted ascending tokens below %zu", i, tokens[i],
                           V);
        e->ids[tokens[i]] = (int32_t)i;
    }
    return VB_OK;
}

int train_eagle_open(struct vb_trainer *t, const struct trainer_eagle *o, vb_error *err)
{
    struct train_eagle *e = t->eagle = vb_alloc(&t->allocator, 1, sizeof *e);
    int layer[3], rc;
    if (!e)
        return vb_fail(err, VB_NO_MEMORY, "no memory for an EAGLE head to train");
    e->version = t->o.part == TRAIN_EAGLE3 ? 3 : 1;
    if (e->version == 3 && !config_three_layers(t->c->num_hidden_layers, layer))
        return vb_fail(err, VB_UNSUPPORTED, "%s has %d layers, and an EAGLE-3 head reads the rows before three of them",
                       checkpoint_dir(t->model->checkpoint), t->c->num_hidden_layers);
    t->takes = e->version == 3 ? ROWS_EAGLE3 : ROWS_HIDDEN;
    t->width = (e->version == 3 ? 3 : 1) * t->c->dims.d;
    if (o->dir &&
        ((rc = drafter_check_head(o->dir, e->version, e->version == 3 ? "eagle3" : "eagle", &t->allocator, err)) ||
         (rc = eagle_head_open(&e->head, o->dir, e->version, t->model, err))))
        return rc;
    if (e->head)
        take_sizes(e, e->head);
    else if ((rc = take_new(t, o, err)))
        return rc;
    if (t->loss.terms.top != 0 && (size_t)t->loss.terms.top_tokens > e->vocab_size)
        return vb_fail(err, VB_BAD_ARGUMENT, "a loss of the top %d tokens, and the EAGLE head has %zu",
                       t->loss.terms.top_tokens, e->vocab_size);
    if ((e->head ? e->head->d2t : o->tokens) && e->version == 3 && t->loss.terms.data != 0 && train_is_soft(t))
        return vb_fail(err, VB_UNSUPPORTED,
                       "a loss of the text's tokens and of the model's distribution together, and an EAGLE-3 head with "
                       "a vocabulary of its own; wanted one of the two, or all tokens");
    e->gqa = (struct gqa){.heads = e->H, .groups = e->G, .dim = e->D, .row = 2 * e->G * e->D,
                          .scale = (float)(1.0 / sqrt((double)e->D))};
    return take_vocabulary(t, e->head ? e->head->d2t : o->tokens, err);
}

void train_eagle_close(struct vb_trainer *t)
{
    struct train_eagle *e = t->eagle;
    if (!e)
        return;
    eagle_head_close(e->head);
    vb_free(&t->allocator, e->tokens);
    vb_free(&t->allocator, e->ids);
    vb_free(&t->allocator, e);
}

void trainer_eagle_look(const struct vb_trainer *t, struct trained_eagle *out)
{
    const struct train_eagle *e = t->eagle;
    const struct config *c = t->c, *of_head = e && e->head ? &e->head->model.config : c;
    *out = (struct trained_eagle){0};
    if (!e)
        return;
    *out = (struct trained_eagle){.version = e->version, .hidden_size = e->d, .heads = e->H, .groups = e->G,
                                  .dim = e->D, .intermediate = e->intermediate, .vocab_size = e->vocab_size,
                                  .target_vocab = c->dims.V, .target_hidden = c->dims.d, .positions = c->dims.positions,
                                  .rms_norm_eps = of_head->rms_norm_eps, .rope_theta = of_head->rope_theta,
                                  .norms = e->norms, .tokens = e->tokens};
    config_three_layers(c->num_hidden_layers, out->layer);
}

/* ---- tensors ---- */

struct eagle_tensor {
    const char *name; /* without the prefix of the layer */
    int in_layer;
    struct train_part *part;
    size_t rows, cols;  /* rows 0: a vector */
    const struct weight_view *matrix; /* of the head; NULL if it is new */
    const float *vector;
};

/* The first output head of a new EAGLE-3 has the rows of the target's, and its norm that of the target. */
static void copy_ends(struct vb_trainer *t)
{
    struct train_eagle *e = t->eagle;
    float *w = (float *)(uintptr_t)e->lm_head.w.data;
    for (size_t i = 0; i < e->vocab_size; i++)
        decode_weights(w + i * e->d, &t->model->lm_head, e->tokens ? (size_t)e->tokens[i] : i, 0, e->d);
    memcpy((float *)(uintptr_t)e->norm.w.data, t->model->norm, e->d * sizeof *w);
}

int train_eagle_tensors(struct vb_trainer *t, struct maker *b)
{
    static const struct eagle_head none;
    struct train_eagle *e = t->eagle;
    const struct eagle_head *h = e->head ? e->head : &none;
    const struct mtp_module *from = &h->module;
    const struct layer *l = &from->layer;
    int three = e->version == 3, rc = VB_OK;
    size_t d = e->d, i = e->intermediate, HD = e->H * e->D, GD = e->G * e->D, in = three ? 2 * d : d;
    const struct eagle_tensor tensors[] = {
        {"fc.weight", 0, &e->fc, d, three ? t->width : 2 * d, three ? &h->fc : &from->eh_proj, NULL},
        {"fc.bias", 0, from->eh_bias ? &e->fc_bias : NULL, 0, d, NULL, from->eh_bias},
        {"self_attn.q_proj.weight", 1, &e->q, HD, in, &l->self_attn.q_proj, NULL},
        {"self_attn.k_proj.weight", 1, &e->k, GD, in, &l->self_attn.k_proj, NULL},
        {"self_attn.v_proj.weight", 1, &e->v, GD, in, &l->self_attn.v_proj, NULL},
        {"self_attn.o_proj.weight", 1, &e->o, d, HD, &l->self_attn.o_proj, NULL},
        {"mlp.gate_proj.weight", 1, &e->mlp.gate, i, d, &l->mlp.gate_proj, NULL},
        {"mlp.up_proj.weight", 1, &e->mlp.up, i, d, &l->mlp.up_proj, NULL},
        {"mlp.down_proj.weight", 1, &e->mlp.down, d, i, &l->mlp.down_proj, NULL},
        {"input_layernorm.weight", 1, three ? &e->input_norm : NULL, 0, d, NULL, from->enorm},
        {"hidden_norm.weight", 1, three ? &e->hidden_norm : NULL, 0, d, NULL, from->hnorm},
        {"post_attention_layernorm.weight", 1, &e->post_norm, 0, d, NULL, l->post_attention_layernorm},
        {"norm.weight", 0, three ? &e->norm : NULL, 0, d, NULL, from->shared_head_norm},
        {"lm_head.weight", 0, three ? &e->lm_head : NULL, e->vocab_size, d, &from->head, NULL},
    };
    const char *name;
    b->is_new = !e->head;
    e->lm_head.w = t->model->lm_head;
    for (size_t n = 0; !rc && (name = config_feature_norm(&e->norms, n)); n++)
        rc = train_add(b, &e->feature_norms[n], name, 0, e->norms.fc_norm ? t->c->dims.d : t->width, NULL,
                       h->feature_norms[n]);
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors && !rc; n++) {
        const struct eagle_tensor *x = &tensors[n];
        snprintf(b->prefix, sizeof b->prefix, "%s", !x->in_layer ? "" : three ? "midlayer." : "layers.0.");
        if (x->part)
            rc = train_add(b, x->part, x->name, x->rows, x->cols, x->matrix && x->matrix->data ? x->matrix : NULL,
                           x->vector);
    }
    e->mlp.g = (struct mlp_gradients){e->mlp.gate.g, e->mlp.up.g, e->mlp.down.g};
    if (!rc && three && !e->head)
        copy_ends(t);
    return rc;
}

/* ---- memory ---- */

static float *floats(struct carver *c, size_t count) { return train_carve(c, count, sizeof(float)); }

static void carve_depth(struct carver *c, struct eagle_depth *x, const struct vb_trainer *t, int k)
{
    const struct train_eagle *e = t->eagle;
    size_t S = t->room, n = S * e->d, HD = e->H * e->D, GD = e->G * e->D;
    int three = e->version == 3;
    x->first = train_carve(c, t->most + 1, sizeof *x->first);
    x->tokens = train_carve(c, S, sizeof *x->tokens);
    x->labels = train_carve(c, S, sizeof *x->labels);
    x->cos_sin = floats(c, S * e->D);
    x->taken = floats(c, n);
    x->concat = floats(c, 2 * n);
    x->x = three && !e->norms.norm_before_residual ? x->taken : floats(c, n);
    x->q = floats(c, S * HD);
    x->kv = c->base ? e->kv + (size_t)k * S * 2 * GD : NULL;
    x->attended = floats(c, S * HD);
    x->middle = floats(c, n);
    x->gate = floats(c, S * e->intermediate);
    x->up = floats(c, S * e->intermediate);
    x->y = floats(c, n);
    x->g = three ? floats(c, n) : x->y;
    x->dg = floats(c, n);
    x->dk = floats(c, S * GD);
    x->dv = floats(c, S * GD);
}

void train_eagle_carve(struct carver *c, struct vb_trainer *t)
{
    struct train_eagle *e = t->eagle;
    size_t S = t->room, n = S * e->d, HD = e->H * e->D, GD = e->G * e->D, D = (size_t)t->o.depths,
           input = e->version == 3 ? 2 * e->d : e->d;
    e->kv = floats(c, D * S * 2 * GD);
    for (int k = 0; k < t->o.depths; k++)
        carve_depth(c, &e->depth[k], t, k);
    e->features = floats(c, e->version == 3 ? S * t->width : 0);
    e->fc_input = e->features;
    if (config_feature_norm(&e->norms, 0)) {
        e->fc_input = floats(c, S * t->width);
        e->dfeatures = floats(c, S * t->width);
        e->dfc_input = floats(c, S * t->width);
    }
    e->embedding = floats(c, n);
    e->k_out = floats(c, S * GD);
    e->v_out = floats(c, S * GD);
    e->normed = floats(c, n);
    e->delta = floats(c, n);
    e->product = floats(c, S * e->intermediate);
    e->dy = floats(c, n);
    e->dnormed = floats(c, n);
    e->dtaken = floats(c, n);
    e->dq = floats(c, S * HD);
    e->dheads = floats(c, S * HD);
    e->dinput = floats(c, S * input);
    e->dconcat = floats(c, 2 * n);
    e->slots = train_carve(c, EAGLE_QUERIES * (t->longest + D), sizeof *e->slots);
    e->seen = train_carve(c, EAGLE_QUERIES, sizeof *e->seen);
}

size_t train_eagle_scratch(const struct vb_trainer *t)
{
    const struct train_eagle *e = t->eagle;
    int threads = t->cx.most_threads;
    size_t S = t->room, widest = max_size(max_size(max_size(2 * e->d, t->width), e->H * e->D), e->intermediate);
    struct back_gqa back = {.heads = e->H, .groups = e->G, .dim = e->D, .row = e->gqa.row,
                            .depth = (size_t)t->o.depths - 1};
    size_t bytes = op_linear_scratch(S, widest);
    bytes = max_size(bytes,
                     max_size(op_gqa_scratch(&e->gqa, threads), op_back_gqa_scratch(&back, t->longest, threads)));
    bytes = max_size(bytes, op_back_rmsnorm_scratch(S, max_size(e->d, t->width), threads));
    return max_size(bytes, op_back_mlp_scratch(S, e->intermediate));
}
