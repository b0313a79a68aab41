/* engine/train/train.c -- the public functions of training steps (engine/verbatim_train.h). */
#include "engine/base/options.h"
#include "engine/train/train_internal.h"

#include <stdio.h>
#include <string.h>

/* The number of a word in a list that ends with NULL; -1: it is not there. NULL means the first. */
static int word_in(const char *const *list, const char *word)
{
    for (int i = 0; list[i]; i++)
        if (!word || !strcmp(list[i], word))
            return i;
    return -1;
}

static int wrong_word(const char *field, const char *const *list, const char *word, vb_error *err)
{
    char known[128] = "";
    for (int i = 0; list[i]; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? list[i + 1] ? ", " : " or " : "",
                 list[i]);
    return vb_fail(err, VB_BAD_ARGUMENT, "%s is %.64s, wanted %s", field, word, known);
}

/* 0: the default; -1: 0 */
static double number(double given, double otherwise) { return given == 0 ? otherwise : given == -1 ? 0 : given; }

/* By enum trained_part */
static const char *const parts[] = {"modules", "model", "eagle", "eagle3", "parallel-heads", NULL};

static int trains_head(int part) { return part == TRAIN_EAGLE || part == TRAIN_EAGLE3 || part == TRAIN_HEADS; }

static int loss_of(struct loss *out, const vb_trainer_options *o, int depths, vb_error *err)
{
    int rc = loss_named(out, o->loss, depths, o->loss_factor == 0 ? -1 : o->loss_factor, err);
    if (rc || o->soft_targets == 0)
        return rc;
    if (!(o->soft_targets > 0 && o->soft_targets <= 1))
        return vb_fail(err, VB_BAD_ARGUMENT, "soft_targets is %g, wanted a number from 0 to 1", o->soft_targets);
    if (out->terms.data == 0)
        return vb_fail(err, VB_BAD_ARGUMENT, "soft_targets is %g, and the loss %s has weights of its own",
                       o->soft_targets, o->loss);
    out->terms.soft = o->soft_targets;
    out->terms.data = 1 - o->soft_targets;
    return VB_OK;
}

/* Wants that no option belongs to another part. */
static int check_part(const vb_trainer_options *o, int part, vb_error *err)
{
    const char *name = parts[part];
    if (o->head && !trains_head(part))
        return vb_fail(err, VB_BAD_ARGUMENT, "head is %s, and part %s trains no head", o->head, name);
    if (o->head && o->new_weights)
        return vb_fail(err, VB_BAD_ARGUMENT, "head is %s, and new_weights asks for a new one", o->head);
    if ((o->draft_tokens || o->draft_vocab_size) && (part != TRAIN_EAGLE3 || o->head))
        return vb_fail(err, VB_BAD_ARGUMENT, "draft_tokens are for a new EAGLE-3 head, and part %s trains %s", name,
                       o->head ? o->head : "none");
    if (!o->draft_tokens != !o->draft_vocab_size)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft_vocab_size is %zu, and draft_tokens are %s", o->draft_vocab_size,
                       o->draft_tokens ? "given" : "not given");
    if (trains_head(part) && (o->modules || o->ends))
        return vb_fail(err, VB_BAD_ARGUMENT, "%s is for MTP modules, and part %s trains none",
                       o->modules ? "modules" : "ends", name);
    return VB_OK;
}

/* Parallel heads: those in `head`, which become *opened, or new ones. */
static int heads_of(struct trained_heads *out, struct vb_model **opened, const vb_trainer_options *o,
                    const vb_model *model, vb_error *err)
{
    int trunk_layers;
    *out = (struct trained_heads){.copied = !o->new_weights};
    if (!o->head)
        return VB_OK;
    int rc = model_open_heads(opened, &trunk_layers, o->head, model, err);
    if (!rc)
        *out = (struct trained_heads){.stored = *opened, .after_last = trunk_layers == model->config.num_hidden_layers};
    return rc;
}

static int open_part(vb_trainer **out, const vb_model *model, vb_trainer_options *o, int part, int end,
                     struct vb_model **opened, vb_error *err)
{
    int stored = model->num_mtp, whole = part == TRAIN_MODEL, rc = VB_OK;
    struct trainer_eagle eagle = {.dir = o->head, .tokens = o->draft_tokens, .vocab_size = o->draft_vocab_size};
    struct trained_heads heads;
    struct loss loss;
    o->loss = o->loss ? o->loss : trainer_usual_loss((enum trained_part)part);
    if ((rc = check_part(o, part, err)) || (part == TRAIN_HEADS && (rc = heads_of(&heads, opened, o, model, err))))
        return rc;
    int usual = trainer_usual_depths((enum trained_part)part, o->loss,
                                     part != TRAIN_HEADS ? stored
                                     : *opened ? (*opened)->num_mtp
                                     : 0);
    int depths = o->depths == -1 && whole ? 0 : o->depths ? o->depths : usual;
    if ((rc = loss_of(&loss, o, depths, err)))
        return rc;
    struct trainer_options inner = {
        .part = (enum trained_part)part,
        .ends = (enum module_ends)end,
        .depths = depths,
        .seed = o->seed,
        .loss = &loss,
        .heads = part == TRAIN_HEADS ? &heads : NULL,
        .eagle = &eagle,
        .modules = !depths || trains_head(part) ? 0
                   : o->modules ? o->modules
                   : stored ? stored
                   : loss.chain == CHAIN_MODULES ? depths
                   : 1,
        .new_modules = o->new_weights && part == TRAIN_MODULES,
        .new_model = o->new_weights && whole,
        .adamw = {.beta1 = number(o->beta1, 0.9), .beta2 = number(o->beta2, 0.999), .eps = o->eps == 0 ? 1e-8 : o->eps,
                  .weight_decay = number(o->weight_decay, 0.01)},
        .max_norm = number(o->clip_norm, 1),
        .bias_update_speed = whole ? number(o->bias_update_rate, 0.001) : 0,
        .micro_tokens = o->micro_tokens,
        .threads = o->threads,
        .isa = o->isa};
    rc = trainer_open(out, model, &inner, err);
    if (!rc)
        (*out)->opened_heads = *opened;
    return rc;
}

int vb_trainer_open(vb_trainer **out, const vb_model *model, const vb_trainer_options *options, vb_error *err)
{
    static const char *const ends[] = {"stored", "shared", "own", NULL};
    vb_trainer_options o;
    struct vb_model *opened = NULL;
    *out = NULL;
    if (OPTIONS_COPY(&o, vb_trainer_options, options, err))
        return VB_BAD_ARGUMENT;
    int part = word_in(parts, o.part), end = word_in(ends, o.ends);
    if (part < 0)
        return wrong_word("part", parts, o.part, err);
    if (end < 0)
        return wrong_word("ends", ends, o.ends, err);
    int rc = open_part(out, model, &o, part, end, &opened, err);
    if (rc)
        model_close(opened);
    return rc;
}

void vb_trainer_close(vb_trainer *t)
{
    struct vb_model *heads = t ? t->opened_heads : NULL;
    trainer_close(t);
    model_close(heads);
}

typedef int step_function(struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
                          struct training_losses *losses, vb_error *err);

static int step(step_function *compute, vb_trainer *t, const vb_train_sequence *sequences, size_t count,
                vb_train_losses *out, size_t size, vb_error *err)
{
    struct training_losses losses;
    for (size_t i = 0; i < count; i++)
        if (OPTIONS_RESERVED(vb_train_sequence, &sequences[i], err))
            return VB_BAD_ARGUMENT;
    struct training_sequence *list = vb_alloc(&t->allocator, count + 1, sizeof *list);
    if (!list)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a list of %zu sequences", count);
    for (size_t i = 0; i < count; i++)
        list[i] = (struct training_sequence){.tokens = sequences[i].tokens, .count = sequences[i].count,
                                             .loss_mask = sequences[i].loss_mask};
    int rc = compute(t, list, count, &losses, err);
    vb_free(&t->allocator, list);
    if (rc)
        return rc;
    vb_train_losses told = {.total = losses.total, .main = losses.main, .depths = t->loss.depths, .rows = losses.rows};
    memcpy(told.by_depth, losses.by_depth, sizeof told.by_depth);
    memcpy(told.depth_rows, losses.depth_rows, sizeof told.depth_rows);
    struct_fill(out, size, &told, sizeof told);
    return VB_OK;
}

int vb_trainer_gradients_sized(vb_trainer *t, const vb_train_sequence *sequences, size_t count, vb_train_losses *losses,
                               size_t size, vb_error *err)
{
    return step(trainer_gradients, t, sequences, count, losses, size, err);
}

int vb_trainer_losses_sized(vb_trainer *t, const vb_train_sequence *sequences, size_t count, vb_train_losses *losses,
                            size_t size, vb_error *err)
{
    return step(trainer_losses, t, sequences, count, losses, size, err);
}

int vb_trainer_update(vb_trainer *t, int64_t step, double lr, double *norm, vb_error *err)
{
    return trainer_update(t, step, lr, norm, err);
}

int vb_trainer_tensor_sized(vb_trainer *t, size_t number, vb_train_tensor *out, size_t size)
{
    const struct trained_tensor *x = trainer_tensor(t, number);
    if (!x)
        return 0;
    int is_vector = x->dimensions == 1;
    vb_train_tensor tensor = {.name = x->name, .ndim = x->dimensions,
                              .shape = {(int64_t)(is_vector ? x->cols : x->rows), is_vector ? 1 : (int64_t)x->cols},
                              .count = x->rows * x->cols, .decays = x->decays, .is_new = x->is_new, .w = x->w,
                              .g = x->g, .m = x->m, .v = x->v};
    struct_fill(out, size, &tensor, sizeof tensor);
    return 1;
}
