/* engine/model/config_modelslim.c -- reads quant_model_description.json, which Huawei's ModelSlim writes beside the
 * weights that it has quantized for Ascend.
 *
 * For each tensor, the file has the scheme of the matrix to which the tensor belongs, for example
 *
 *     {"model_quant_type": "W8A8_DYNAMIC", "model.layers.0.mlp.gate_proj.weight": "W8A8_DYNAMIC", ...}
 *
 * The types of the tensors already show which matrices are quantized. So this file is read only to refuse unknown
 * schemes. Sources: msmodelslim, core/quant_service/modelslim_v1/save/ascendv1.py; vllm-ascend,
 * quantization/modelslim_config.py. */
#include "engine/model/config_reader.h"

#include <string.h>

/* Schemes in which int8 weights have one scale for each row. If a scheme quantizes activations, their scales are
 * dynamic. */
static const char *const known[] = {"FLOAT", "W8A8_DYNAMIC", "W8A16"};
#define KNOWN "FLOAT, W8A8_DYNAMIC and W8A16"

/* Matrices of a vision tower do not count, because they are not read. */
static int is_matrix(const char *name)
{
    static const char *const others[] = {"vision", "visual.", "model.vision", "model.visual.", "mm_projector."};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strncmp(name, others[i], strlen(others[i])))
            return 0;
    return vb_ends_with(name, ".weight") || vb_ends_with(name, ".weight_packed");
}

static int check_scheme(const struct config_reader *r, const char *name, const json_t *value)
{
    const char *scheme = json_string_value(value);
    char shown[JSON_SHOWN], shown_name[JSON_SHOWN];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (scheme && !strcmp(scheme, known[i])) {
            r->c->int8 |= i > 0;
            return VB_OK;
        }
    json_t *text = json_string(name);
    if (!text)
        return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for a name", r->name);
    vb_fail(r->err, VB_UNSUPPORTED, "%s: %s is %s%s, which is not supported, only " KNOWN, r->name,
            json_show(text, shown_name), json_show(value, shown),
            scheme && !strcmp(scheme, "W8A8") ? " (static quantization)" : "");
    json_decref(text);
    return VB_UNSUPPORTED;
}

static int read_description(const struct config_reader *r)
{
    const char *name;
    json_t *value;
    if (!json_is_object(r->root))
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: it is not an object", r->name);
    const json_t *rotations = json_object_get(json_object_get(r->root, "metadata"), "quarot");
    if (config_switched_on(rotations)) /* these rotate activations in each pass; other rotations are already applied to
                                          the weights */
        return config_unsupported(r, "metadata", "quarot", rotations, "null");
    r->c->rotated = json_is_true(json_object_get(r->root, "is_rot_used"));
    json_object_foreach(r->root, name, value)
    {
        int rc = is_matrix(name) ? check_scheme(r, name, value) : VB_OK;
        if (rc)
            return rc;
    }
    return VB_OK;
}

int config_read_description(struct config *c, const char *dir, const vb_allocator *a, vb_error *err)
{
    static const char *const names[] = {"quant_model_description.json", "quant_model_description_w8a8_dynamic.json",
                                        "quant_model_description_w8a8.json"};
    int rc = VB_OK;
    for (size_t i = 0, found = 0; !rc && !found && i < sizeof names / sizeof *names; i++) {
        struct config_reader r = {.c = c, .name = names[i], .err = err};
        char *path = vb_path(a, dir, names[i]), *text = NULL;
        size_t size;
        if (!path)
            return vb_fail(err, VB_NO_MEMORY, "%s: no memory for a path", dir);
        if ((found = (size_t)vb_file_exists(path)) && !(rc = vb_read_file(a, path, &text, &size, err))) {
            r.root = json_read(text, size, r.name, err);
            rc = r.root ? read_description(&r) : err ? err->code : VB_BAD_CHECKPOINT;
        }
        json_decref(r.root);
        vb_free(a, text);
        vb_free(a, path);
    }
    return rc;
}
