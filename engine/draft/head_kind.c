/* engine/draft/head_kind.c -- which draft heads a directory holds, by the names of its tensors. */
#include "engine/draft/drafter.h"

#include <stdio.h>
#include <string.h>

static int has(struct checkpoint *c, const char *layer, const char *part)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", layer, part);
    return checkpoint_find(c, name) != NULL;
}

int drafter_head_kind(int *kind, const char *dir, const vb_allocator *a, vb_error *err)
{
    struct checkpoint *c;
    vb_error why;
    size_t first;
    int rc = checkpoint_open(&c, dir, a, &why);
    *kind = 0;
    if (rc == VB_NO_MEMORY)
        return vb_fail(err, rc, "%s", why.message);
    if (rc)
        return VB_OK;
    if (checkpoint_with_prefix(c, "extra_heads.0.", &first))
        *kind = VB_PARALLEL_HEADS;
    else if (has(c, "", "fc.weight"))
        *kind = has(c, "midlayer.", "hidden_norm.weight") || has(c, "layers.0.", "hidden_norm.weight") ? 3 : 1;
    checkpoint_close(c);
    return VB_OK;
}

int drafter_check_head(const char *dir, int wanted, const char *method, const vb_allocator *a, vb_error *err)
{
    int kind, code = drafter_head_kind(&kind, dir, a, err);
    if (code || !kind || kind == wanted)
        return code;
    if (kind == VB_PARALLEL_HEADS)
        return vb_fail(err, VB_BAD_ARGUMENT, "%s has parallel heads, draft method %s wants another kind of head", dir,
                       method);
    return vb_fail(err, VB_BAD_ARGUMENT, "%s is an EAGLE-%d head, draft method %s wants the other kind", dir, kind,
                   method);
}

int vb_draft_head(int *version, const char *dir, vb_error *err) { return drafter_head_kind(version, dir, NULL, err); }
