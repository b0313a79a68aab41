/* engine/drafter.c -- the list of drafters, and what they need. */
#include "drafter.h"

#include <stdio.h>
#include <string.h>

const struct drafter_type *const drafter_types[] = {&draft_mtp_vanilla, &draft_mtp_eagle, &draft_eagle_reroll,
                                                     &draft_eagle_keep, &draft_ngram, &draft_callback, NULL};

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
