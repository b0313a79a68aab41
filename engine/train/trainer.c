/* engine/train/trainer.c -- opens a trainer, after checking what it shall train. */
#include "engine/train/train_eagle.h"

#include <math.h>
#include <string.h>

#include "numbers/numbers.h"
#include "ops/arithmetic.h"
#include "ops/crew.h"

static int is_eagle(const struct trainer_options *o) { return o->part == TRAIN_EAGLE || o->part == TRAIN_EAGLE3; }

/* With yarn=max-len, the bits of a text would depend on the longest text of its step. The other conventions have no
 * backward pass; the model of an EAGLE head needs none. */
static int check_conventions(const struct config *c, const struct trainer_options *o, vb_error *err)
{
    static const enum convention refused[] = {YARN, FIRST_EMBEDDING, FIRST_ROW, MODULE_HIDDEN, GATE, LATENT_CACHE};
    for (size_t i = 0; i < (is_eagle(o) ? 1 : sizeof refused / sizeof *refused); i++) {
        const struct convention_row *row = convention_row(refused[i]);
        int value = c->conventions.value[refused[i]];
        if (value)
            return vb_fail(err, VB_BAD_ARGUMENT, "%s=%s is not computed in training, wanted %s", row->name,
                           row->values[value], row->values[0]);
    }
    return VB_OK;
}

static int check_model(const struct vb_model *m, const struct trainer_options *o, vb_error *err)
{
    const struct config *c = &m->config;
    const char *dir = checkpoint_dir(m->checkpoint);
    if (c->precision != PRECISION_F32 || c->cache_type != CACHE_TYPE_F32)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "%s: the model has another precision or cache type than f32, and training wants f32", dir);
    if (m->ranks || m->device)
        return vb_fail(err, VB_UNSUPPORTED,
                       "%s: the model is computed by several processes or by a GPU, and training wants one process and "
                       "the CPU",
                       dir);
    if (c->index_topk && !is_eagle(o)) /* whose model is only run */
        return vb_fail(err, VB_UNSUPPORTED, "%s: index_topk is %d, and gradients are not computed for sparse attention",
                       dir, c->index_topk);
    if (o->new_model && o->part != TRAIN_MODEL)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s: a new model cannot be frozen, wanted that all of it is trained", dir);
    if (!o->new_model && !m->embed_tokens.data)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "%s: it has no weights, and training from them is asked for, wanted a new model", dir);
    return check_conventions(c, o, err);
}

/* Returns how many modules are computed, if there are at least as many. */
static int used_by(const struct trainer_options *o)
{
    return o->loss && o->loss->chain != CHAIN_MODULES ? min_int(1, o->depths) : o->depths;
}

static int check_eagle(const struct trainer_options *o, const struct loss *l, vb_error *err)
{
    if (!o->eagle)
        return vb_fail(err, VB_BAD_ARGUMENT, "an EAGLE head is trained, and no head is given");
    if (o->depths < 1 || o->depths > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d depths of an EAGLE head, wanted 1 to %d", o->depths, VB_MAX_DRAFT);
    if (o->depths > 1 && l->chain != CHAIN_ALIGNED)
        return vb_fail(err, VB_UNSUPPORTED,
                       "%d depths of an EAGLE head that are not aligned, wanted one depth, or a loss with aligned "
                       "depths",
                       o->depths);
    if (l->terms.features != 0 && o->part == TRAIN_EAGLE3)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "a loss of features, and the rows of an EAGLE-3 head are not hidden states of the model; wanted "
                       "a loss of tokens");
    return VB_OK;
}

static int check_depths(const struct vb_model *m, const struct trainer_options *o, vb_error *err)
{
    int modules = o->modules ? o->modules : m->num_mtp, news = o->new_modules ? modules : modules - m->num_mtp;
    if (o->heads)
        return VB_OK;
    if (o->depths < (o->part == TRAIN_MODULES) || o->depths > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d MTP depths, wanted %d to %d", o->depths, o->part == TRAIN_MODULES,
                       VB_MAX_DRAFT);
    if (o->modules < 0 || o->modules > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d MTP modules, wanted 0 to %d", o->modules, VB_MAX_DRAFT);
    if (o->depths && !modules)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s has no MTP modules, wanted a number of new ones",
                       checkpoint_dir(m->checkpoint));
    if (news > 0 && modules > used_by(o))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "%d MTP modules, of which some are new, and %d depths, which train no others than the first %d",
                       modules, o->depths, used_by(o));
    return VB_OK;
}

static int check_loss(const struct vb_model *m, const struct loss *l, int eagle, vb_error *err)
{
    size_t V = m->config.dims.V;
    double sum = l->main + l->terms.data + l->terms.soft + l->terms.top + l->terms.features;
    for (int k = 0; k < l->depths; k++)
        sum += l->depth[k];
    if (!isfinite(sum))
        return vb_fail(err, VB_BAD_ARGUMENT, "a loss has a weight that is not finite");
    if (l->chain == CHAIN_ALIGNED && !eagle && m->config.conventions.value[CHAIN_MODULE])
        return vb_fail(err, VB_BAD_ARGUMENT, "chain-module=step is not computed with aligned depths, wanted first");
    if (l->terms.top != 0 && (l->terms.top_tokens < 1 || (size_t)l->terms.top_tokens > V))
        return vb_fail(err, VB_BAD_ARGUMENT, "a loss of the top %d tokens, wanted 1 to %zu", l->terms.top_tokens, V);
    return VB_OK;
}

/* The loss that the options ask for */
static struct loss loss_of(const struct trainer_options *o)
{
    struct loss megatron = {.terms.data = 1, .chain = CHAIN_MODULES, .depths = o->depths, .main = 1};
    for (int k = 0; k < o->depths && k < VB_MAX_DRAFT; k++)
        megatron.depth[k] = o->mtp_loss_scaling_factor / o->depths;
    return o->loss ? *o->loss : megatron;
}

/* Wants numbers that are finite and at least 0; the two betas are also below 1. */
static int check_numbers(const struct trainer_options *o, vb_error *err)
{
    const struct {
        const char *name;
        double value, below;
    } numbers[] = {{"mtp_loss_scaling_factor", o->mtp_loss_scaling_factor, HUGE_VAL},
                   {"beta1", o->adamw.beta1, 1.0},
                   {"beta2", o->adamw.beta2, 1.0},
                   {"eps", o->adamw.eps, HUGE_VAL},
                   {"weight_decay", o->adamw.weight_decay, HUGE_VAL},
                   {"max_norm", o->max_norm, HUGE_VAL},
                   {"bias_update_speed", o->bias_update_speed, HUGE_VAL}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i].value >= 0 && numbers[i].value < numbers[i].below))
            return vb_fail(err, VB_BAD_ARGUMENT, "%s is %g, wanted a number from 0 to below %g", numbers[i].name,
                           numbers[i].value, numbers[i].below);
    if (o->threads < 0 || o->threads > 4096)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d threads, wanted 0 to 4096", o->threads);
    return VB_OK;
}

static int find_kernels(const struct kernels **k, const char *isa, vb_error *err)
{
    int known;
    *k = kernels_select(isa, &known);
    if (*k)
        return VB_OK;
    return known ? vb_fail(err, VB_UNSUPPORTED, "this CPU lacks %s", isa ? isa : "fused multiply-add (FMA)")
                 : vb_fail(err, VB_BAD_ARGUMENT, "unknown instruction set %s; known are best, " INSTRUCTION_SETS, isa);
}

static int open_threads(struct vb_trainer *t, vb_error *err)
{
    int threads = t->cx.threads;
    t->cx.kernel_scratch = vb_alloc(&t->allocator, (size_t)threads, KERNEL_SCRATCH);
    if (threads > 1)
        t->crew_memory = vb_alloc(&t->allocator, 1, crew_bytes(threads));
    if (!t->cx.kernel_scratch || (threads > 1 && !t->crew_memory))
        return vb_fail(err, VB_NO_MEMORY, "no memory for %d threads", threads);
    if (threads > 1)
        t->cx.crew = t->crew = crew_open(t->crew_memory, threads, NULL, 0);
    return VB_OK;
}

const char *trainer_usual_loss(enum trained_part part)
{
    static const char *const names[] = {[TRAIN_MODULES] = "megatron", [TRAIN_MODEL] = "megatron",
                                        [TRAIN_EAGLE] = "eagle", [TRAIN_EAGLE3] = "eagle3", [TRAIN_HEADS] = "sum"};
    return names[part];
}

int trainer_usual_depths(enum trained_part part, const char *loss, int stored)
{
    switch (part) {
    case TRAIN_EAGLE:
    case TRAIN_EAGLE3:
        return !strcmp(loss, "eagle3") || !strcmp(loss, "hass") ? 3 : 1;
    case TRAIN_HEADS:
        return stored ? stored : 3;
    default:
        return stored ? stored : part == TRAIN_MODULES;
    }
}

void train_threads(struct vb_trainer *t)
{
    if (t->crew)
        t->cx.threads = crew_use(t->crew, t->cx.most_threads);
}

int trainer_open(struct vb_trainer **out, const struct vb_model *m, const struct trainer_options *options,
                 vb_error *err)
{
    const struct kernels *k;
    struct trainer_options o = *options;
    struct loss loss = loss_of(options);
    int rc;
    o.depths = loss.depths;
    if ((rc = check_model(m, &o, err)) || (rc = train_check_heads(m, &o, err)) ||
        (rc = is_eagle(&o) ? check_eagle(&o, &loss, err) : check_depths(m, &o, err)) || (rc = check_numbers(&o, err)) ||
        (rc = check_loss(m, &loss, is_eagle(&o), err)) || (rc = find_kernels(&k, o.isa, err)))
        return rc;
    struct vb_trainer *t = vb_alloc(m->allocator, 1, sizeof *t);
    if (!t)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a trainer");
    t->model = m;
    t->c = &m->config;
    t->o = o;
    t->o.loss = NULL; /* the caller's */
    t->o.eagle = NULL;
    t->loss = loss;
    if (o.heads) {
        t->heads = *o.heads;
        t->o.heads = &t->heads;
    }
    t->o.micro_tokens = o.micro_tokens ? o.micro_tokens : 2048;
    t->allocator = m->allocator_copy;
    pass_set_up(&t->pass, m, k, o.threads ? o.threads : vb_processors(), t->c->dims.positions);
    t->cx = t->pass.cx;
    t->takes = o.part == TRAIN_HEADS ? ROWS_TRUNK : ROWS_FEATURES;
    t->width = (t->takes == ROWS_TRUNK ? 2 : 1) * t->c->dims.d;
    t->modules = is_eagle(&o) || o.heads ? 0 : o.modules ? o.modules : m->num_mtp;
    t->used = o.heads ? o.depths : min_int(t->modules, used_by(&o));
    if ((is_eagle(&o) && (rc = train_eagle_open(t, o.eagle, err))) || (rc = open_threads(t, err)) ||
        (rc = train_make_tensors(t, err))) {
        trainer_close(t);
        return rc;
    }
    *out = t;
    return VB_OK;
}

void trainer_close(struct vb_trainer *t)
{
    if (!t)
        return;
    vb_allocator a = t->allocator;
    train_target_close(t);
    train_eagle_close(t);
    train_close_pass(t);
    crew_close(t->crew);
    vb_free(&a, t->crew_memory);
    vb_free(&a, t->cx.kernel_scratch);
    vb_free(&a, t->values);
    train_free_tensors(t);
    vb_free(&a, t);
}

struct trained_tensor *trainer_tensor(struct vb_trainer *t, size_t i) { return i < t->count ? &t->tensors[i] : NULL; }
size_t trainer_count(const struct vb_trainer *t) { return t->count; }
int trainer_modules(const struct vb_trainer *t) { return t->modules; }

enum target_rows trainer_takes(const struct vb_trainer *t, size_t *width, int *final)
{
    *width = t->width;
    *final = t->takes == ROWS_EAGLE3 && train_is_soft(t);
    return t->takes;
}
