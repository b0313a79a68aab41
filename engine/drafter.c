/* engine/drafter.c -- the list of drafters, and what they need. */
#include "drafter.h"
#include "sampler.h"

#include <stdio.h>
#include <string.h>

const struct drafter_type *const drafter_types[] = {&draft_mtp_vanilla, &draft_mtp_eagle, &draft_eagle_reroll,
                                                     &draft_eagle_keep, &draft_ngram, &draft_model, &draft_callback, NULL};

int drafter_find(const struct drafter_type **out, const char *name, vb_error *err)
{
    char known[256] = "none";
    *out = NULL;
    if (!name || !strcmp(name, "none"))
        return VB_OK;
    for (const struct drafter_type *const *t = drafter_types; *t; t++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, ", %s", (*t)->name);
        if (!strcmp((*t)->name, name))
            *out = *t;
    }
    return *out ? VB_OK : vb_fail(err, VB_BAD_ARGUMENT, "unknown draft method %s; known are %s", name, known);
}

int drafter_check(const struct drafter_type *type, const struct model *m, const vb_session_options *o, vb_error *err)
{
    if (type->needs == NEEDS_MTP && !m->num_mtp)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s has no MTP modules, which %s needs", checkpoint_dir(m->checkpoint), type->name);
    if (type->needs == NEEDS_DRAFT_MODEL && !o->draft_model)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft method %s wants a draft model, and there is none", type->name);
    if (type->needs == NEEDS_CALLBACK && !o->draft_callback)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft method %s wants a function of the caller's, and there is none", type->name);
    return VB_OK;
}

int drafter_default_tokens(const struct drafter_type *type, const struct model *m)
{
    if (type->needs != NEEDS_MTP)
        return 3;
    return m->num_mtp < VB_MAX_DRAFT ? m->num_mtp : VB_MAX_DRAFT;
}

int drafter_longest(const struct drafter_type *type, const struct model *m)
{
    return type == &draft_mtp_vanilla ? drafter_default_tokens(type, m) : VB_MAX_DRAFT;
}

/* exp(0) over the sum of exp(z - z[best]), ascending: one of V terms is 1, so no sum is 0. */
static double probability(const struct kernels *k, const float *z, size_t V, int32_t best)
{
    double sum = 0.0;
    for (size_t i = 0; i < V; i += 256) {
        float e[256];
        size_t n = V - i < 256 ? V - i : 256;
        for (size_t j = 0; j < n; j++)
            e[j] = z[i + j] - z[best];
        k->exp(e, e, n);
        for (size_t j = 0; j < n; j++)
            sum += (double)e[j];
    }
    return 1.0 / sum;
}

int32_t drafter_choose(const struct drafter_options *o, const float *logits, size_t V, int number, size_t *failed)
{
    if (!all_finite(logits, V)) {
        ++*failed;
        return -1;
    }
    int32_t best = argmax(logits, V);
    double p_min = (double)o->asked->draft_p_min;
    if (p_min > 0.0 && probability(o->kernels, logits, V, best) < p_min)
        return -1;
    return o->choose ? o->choose(o->choose_context, logits, number) : best;
}
