/* engine/train/train_update.c -- a step: the norm of all gradients, clipping, AdamW, and the bias of the routers. */
#include "engine/train/train_internal.h"

#include <math.h>

#include "ops/backward/router.h"
#include "simd/fpenv.h"

/* The squares of all gradients, in the order of tensors. */
static int sum_squares(struct vb_trainer *t, double *squares, vb_error *err)
{
    *squares = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct trained_tensor *x = &t->tensors[i];
        if (x->g)
            op_squares(&t->cx, squares, x->g, x->rows * x->cols);
        if (!isfinite(*squares))
            return vb_fail(err, VB_NOT_FINITE, "the gradient of %s is not finite, or too large", x->name);
    }
    return VB_OK;
}

static void balance(struct train_layer *l, const struct vb_trainer *t)
{
    if (l->bias && t->o.bias_update_speed > 0)
        op_balance_bias(l->bias, l->load, t->c->dims.E, (float)t->o.bias_update_speed);
}

static void change(struct vb_trainer *t, int64_t step, double lr, float clip)
{
    struct adamw a = t->o.adamw;
    a.lr = lr;
    struct adamw_step decaying = op_adamw_step(&a, step), other;
    a.weight_decay = 0;
    other = op_adamw_step(&a, step);
    for (size_t i = 0; i < t->count; i++) {
        const struct trained_tensor *x = &t->tensors[i];
        if (x->g)
            op_adamw(&t->cx, x->w, x->m, x->v, x->g, x->decays ? &decaying : &other, clip, x->rows * x->cols);
    }
    for (int l = 0; t->layers && l < t->c->num_hidden_layers; l++)
        balance(&t->layers[l], t);
    for (int k = 0; k < t->used; k++)
        balance(&t->mtp[k].layer, t);
}

int trainer_update(struct vb_trainer *t, int64_t step, double lr, double *norm, vb_error *err)
{
    double squares;
    if (step < 1 || !(lr >= 0 && isfinite(lr)))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "step %lld with the learning rate %g, wanted a step from 1 and a rate of 0 or more",
                       (long long)step, lr);
    if (!((float)t->o.adamw.eps > 0)) /* v is 0 as long as all gradients of a weight are */
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "eps is %g, and weights without a gradient would become NaN, wanted a number above 0",
                       t->o.adamw.eps);
    if (!t->has_gradients)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "there are no gradients yet, or the newest ones failed, wanted a call of trainer_gradients "
                       "first");
    struct fpenv env = fpenv_enter();
    train_threads(t);
    int rc = sum_squares(t, &squares, err);
    if (!rc)
        change(t, step, lr, t->o.max_norm > 0 ? op_clip(squares, t->o.max_norm) : 1.0f);
    if (!rc && norm)
        *norm = sqrt(squares);
    fpenv_leave(env);
    return rc;
}
