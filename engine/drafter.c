/* engine/drafter.c -- the list of drafters. */
#include "drafter.h"

#include <stdio.h>
#include <string.h>

const struct drafter_type *const drafter_types[] = {&draft_mtp_vanilla, &draft_mtp_eagle, &draft_eagle_reroll,
                                                     &draft_eagle_keep, NULL};

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
