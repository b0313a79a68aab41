#include "engine/base/loss.h"

#include <math.h>
#include <string.h>

enum decay { SHARED,
                 GEOMETRIC_MEAN,
                 GEOMETRIC,
                 EACH };

static const struct published {
    const char *name;
    struct loss_terms terms;
    enum loss_chain chain;
    int detached, main;
    enum decay decay;
    double factor;
} table[] = {
    {"megatron", {.data = 1}, CHAIN_MODULES, 0, 1, SHARED, 0.1},
    {"fastmtp", {.data = 1}, CHAIN_UNROLLED, 0, 0, GEOMETRIC_MEAN, 0.6},
    {"sum", {.data = 1}, CHAIN_MODULES, 0, 1, EACH, 1},
    {"eagle", {.soft = 0.1, .features = 1}, CHAIN_MODULES, 0, 0, EACH, 1},
    {"eagle3", {.soft = 1}, CHAIN_ALIGNED, 0, 0, GEOMETRIC, 0.8},
    {"hass", {.soft = 0.1, .top = 1, .features = 1, .top_tokens = 10}, CHAIN_ALIGNED, 1, 0, EACH, 1},
};

#define NAMES "megatron, fastmtp, sum, eagle, eagle3 or hass"

static void weigh(struct loss *out, enum decay decay, double factor)
{
    double power = 1, sum = 0;
    for (int k = 0; k < out->depths; k++, power *= factor)
        sum += out->depth[k] = decay == EACH || decay == SHARED ? factor : power;
    double divisor = decay == SHARED ? out->depths : decay == GEOMETRIC_MEAN ? sum : 1;
    for (int k = 0; k < out->depths; k++)
        out->depth[k] /= divisor;
}

int loss_named(struct loss *out, const char *name, int depths, double factor, vb_error *err)
{
    const struct published *p = table, *end = table + sizeof table / sizeof *table;
    while (p < end && strcmp(p->name, name))
        p++;
    if (p == end)
        return vb_fail(err, VB_BAD_ARGUMENT, "there is no loss \"%s\", wanted %s", name, NAMES);
    if (depths < 0 || depths > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d depths of the loss %s, wanted 0 to %d", depths, name, VB_MAX_DRAFT);
    if (!isfinite(factor))
        return vb_fail(err, VB_BAD_ARGUMENT, "the factor of the loss %s is %g, wanted a finite number", name, factor);
    *out = (struct loss){.terms = p->terms, .chain = p->chain, .detached = p->detached, .depths = depths,
                         .main = p->main};
    weigh(out, p->decay, factor < 0 ? p->factor : factor);
    return VB_OK;
}
