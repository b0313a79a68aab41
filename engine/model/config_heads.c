/* engine/model/config_heads.c -- what config.json says about parallel heads (docs/SEMANTICS.md, "Parallel heads"). */
#include "engine/model/config_reader.h"

/* z is the residual stream before the last layer, as Meta trains it, or after it. */
static int read_keys(const struct config_reader *r, struct heads_config *h)
{
    const json_t *trunk = json_object_get(r->root, "trunk_layers");
    double layers = r->c->num_hidden_layers, n, read = layers - 1;
    int rc = config_number(r, NULL, "n_future_tokens", json_object_get(r->root, "n_future_tokens"), INTEGER, 2,
                           VB_MAX_DRAFT + 1, &n);
    if (!rc && trunk)
        rc = config_number(r, NULL, "trunk_layers", trunk, INTEGER, layers - 1, layers, &read);
    if (rc)
        return rc;
    *h = (struct heads_config){.count = (int)n - 1, .trunk_layers = (int)read};
    return VB_OK;
}

static int read_file(struct config_reader *r, struct heads_config *h, const vb_allocator *a)
{
    char *text = NULL;
    size_t size;
    int rc = vb_read_file(a, r->name, &text, &size, r->err);
    if (!rc && !(r->root = json_read(text, size, r->name, r->err)))
        rc = r->err ? r->err->code : VB_BAD_CHECKPOINT;
    rc = rc ? rc : read_keys(r, h);
    json_decref(r->root);
    vb_free(a, text);
    return rc;
}

int config_read_heads(struct config *out, struct heads_config *h, const char *dir, const vb_allocator *a, vb_error *err)
{
    int rc = config_read(out, dir, a, err);
    char *path = rc ? NULL : vb_path(a, dir, "config.json");
    struct config_reader r = {.c = out, .name = path, .err = err};
    if (rc)
        return rc;
    rc = path ? read_file(&r, h, a) : vb_fail(err, VB_NO_MEMORY, "no memory to open %s", dir);
    vb_free(a, path);
    out->module_kind = MODULE_PARALLEL;
    if (!rc)
        out->num_nextn_predict_layers = h->count;
    return rc;
}
