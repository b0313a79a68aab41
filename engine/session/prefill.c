/* engine/session/prefill.c -- the kinds of prefill; which rows of a prompt a library computes, and whether it supports
 * the weights. */
#include "engine/session/prefill.h"
#include "engine/model/layer_tensors.h"
#include "engine/pass/offload.h"

#include <assert.h>
#include <string.h>

#include "ops/arithmetic.h"
#include "ops/cuda/device.h"
#include "ops/onednn.h"
#include "numbers/numbers.h"
#include "ops/weights.h"

/* ---- kinds ---- */

int prefill_expands(const vb_session_options *o) { return o->prefill && !strcmp(o->prefill, "expanded"); }

const char *prefill_kind(const struct vb_session *s)
{
    return prefill_expands(&s->options) ? "expanded"
           : s->pass->onednn ? "onednn"
           : s->pass->by_library.cublas ? "cublas"
           : "contract";
}

int prefill_has_chunks(const struct vb_session *s) { return s->pass->onednn || s->pass->by_library.cublas; }

size_t prefill_alike(const struct vb_session *s, size_t prompt, size_t rows)
{
    return !prefill_expands(&s->options) || prompt == s->prompt ? rows : min_size(rows, min_size(prompt, s->prompt));
}

/* ---- can oneDNN compute it? ---- */

struct check {
    enum weight_type type; /* the type that every matrix must have */
    int layer;             /* number of the layer in the checkpoint */
    const char *dir;
    vb_error *err;
};

static int check_matrix(const struct check *k, const struct weight_view *w, enum model_tensor t)
{
    const char *whole = tensor_names[t == TENSOR_K_B_PROJ || t == TENSOR_V_B_PROJ ? TENSOR_KV_B_PROJ : t].hf;
    const char *end = strstr(whole, ".weight"), *name = end;
    if (!w->rows || (w->type == k->type && (w->type == WEIGHT_BF16 || w->type == WEIGHT_F32)))
        return VB_OK;
    while (name > whole && name[-1] != '.')
        name--;
    return vb_fail(k->err, VB_UNSUPPORTED,
                   "%s: %.*s of layer %d is %s; prefill onednn wants all weights BF16, as precision bf16 makes them, "
                   "or all F32",
                   k->dir, (int)(end - name), name, k->layer, weight_type_name(w->type));
}

static int check_layer(const struct check *k, const struct layer *l, const struct config *c)
{
    int code = VB_OK;
    for (struct tensor_walk w = walk_layer(c, l->index, W_UK_AND_W_UV); !code && walk_next(&w);)
        if (layer_tensors[w.tensor].kind == KIND_LINEAR)
            code = check_matrix(k, tensor_matrix(w.tensor, l, w.expert), w.tensor);
    return code;
}

static enum weight_type type_of(const struct vb_model *m) { return m->layers[0].self_attn.o_proj.type; }

static int check_weights(const struct vb_session *s, vb_error *err)
{
    const struct vb_model *m = s->model;
    struct check k = {type_of(m), 0, checkpoint_dir(m->checkpoint), err};
    int code = VB_OK, modules = s->type && s->type->needs_modules ? m->num_mtp : 0;
    for (; k.layer < m->config.num_hidden_layers && !code; k.layer++)
        code = check_layer(&k, &m->layers[k.layer], &m->config);
    for (int i = 0; i < modules && !code; i++, k.layer++) {
        code = check_matrix(&k, &m->mtp[i].eh_proj, TENSOR_EH_PROJ);
        code = code ? code : check_layer(&k, &m->mtp[i].layer, &m->config);
    }
    return code;
}

static int check_type(const struct vb_session *s, vb_error *err)
{
    int bf16 = type_of(s->model) == WEIGHT_BF16;
    const char *why = onednn_lacks(s->pass->onednn[0], bf16 ? ONEDNN_BF16 : ONEDNN_F32);
    return why ? vb_fail(err, VB_UNSUPPORTED, "prefill onednn, weights %s: %s", bf16 ? "BF16" : "F32", why) : VB_OK;
}

/* Passes that the CPU computes in any case (engine/pass/offload.h) would have other bits. `what` names the option that
 * wants a GPU. */
static int check_routes(const vb_session_options *o, const char *what, vb_error *err)
{
    if (o->routes.tokens || o->record_routes || o->record_kept)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "%s computes on a GPU, but the CPU computes sessions with forced or recorded routes", what);
    return VB_OK;
}

int prefill_check_tensor_cores(const struct vb_model *m, const vb_session_options *o, vb_error *err)
{
    if (!m->config.tensor_cores)
        return VB_OK;
    if (prefill_expands(o) || (o->prefill && !strcmp(o->prefill, "onednn")))
        return vb_fail(err, VB_BAD_ARGUMENT, "precision tensor computes on a GPU, but the CPU computes prefill %s",
                       o->prefill);
    if (o->cpu_layers)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "cpu_layers is %d; with precision tensor it is 0, because the bits depend on which layers the "
                       "GPU computes",
                       (int)o->cpu_layers);
    return check_routes(o, "precision tensor", err);
}

static int open_cublas(struct vb_session *s, vb_error *err)
{
    char why[256];
    if (!s->model->device)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "prefill cublas computes on a GPU, and the model has none; --device cuda gives it one");
    if (s->options.tap)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "prefill cublas computes on a GPU, but the CPU computes sessions with taps");
    if (check_routes(&s->options, "prefill cublas", err))
        return VB_BAD_ARGUMENT;
    if (!s->pass->offload || !s->pass->offload->device)
        return vb_fail(err, VB_NO_MEMORY,
                       "prefill cublas computes on a GPU, and it has no memory for the passes of this session");
    if (device_open_gemm(s->model->device, why, sizeof why))
        return vb_fail(err, VB_UNSUPPORTED, "prefill cublas: %s", why);
    s->pass->by_library = (struct arithmetic){.bf16 = s->pass->arithmetic.bf16, .cublas = 1};
    return VB_OK;
}

int prefill_open(struct vb_session *s, vb_error *err)
{
    const char *name = s->options.prefill ? s->options.prefill : "contract", *why;
    if (prefill_check_tensor_cores(s->model, &s->options, err))
        return VB_BAD_ARGUMENT;
    if (!strcmp(name, "contract") || prefill_expands(&s->options))
        return VB_OK;
    if (strcmp(name, "onednn") && strcmp(name, "cublas"))
        return vb_fail(err, VB_BAD_ARGUMENT, "unknown prefill %s; known are contract, expanded, onednn and cublas",
                       name);
    if (s->options.prefill_chunk && s->options.prefill_chunk != PREFILL_CHUNK)
        return vb_fail(err, VB_BAD_ARGUMENT, "prefill chunk is %d; with prefill %s it is %d", s->options.prefill_chunk,
                       name, PREFILL_CHUNK);
    if (!strcmp(name, "cublas"))
        return open_cublas(s, err);
    if (s->model->ranks)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "prefill onednn is for one process: its bits would depend on the shares of the ranks");
    int code = check_weights(s, err), threads = s->pass->cx.most_threads;
    if (code)
        return code;
    s->pass->onednn = vb_alloc(s->model->allocator, (size_t)threads, sizeof *s->pass->onednn);
    if (!s->pass->onednn)
        return vb_fail(err, VB_NO_MEMORY, "no memory for oneDNN on %d threads", threads);
    for (int i = 0; i < threads; i++)
        if ((why = onednn_open(&s->pass->onednn[i], 1)))
            return vb_fail(err, VB_UNSUPPORTED, "prefill onednn: %s", why);
    s->pass->by_library = (struct arithmetic){.bf16 = type_of(s->model) == WEIGHT_BF16, .onednn = s->pass->onednn};
    return check_type(s, err);
}

void prefill_close(struct vb_session *s)
{
    for (int i = 0; s->pass->onednn && i < s->pass->cx.most_threads; i++)
        onednn_close(s->pass->onednn[i]);
    vb_free(s->model->allocator, s->pass->onednn);
    s->pass->onednn = NULL;
}

/* ---- which rows ---- */

size_t prefill_rewind(const struct vb_session *s, size_t row)
{
    return prefill_has_chunks(s) && row < s->prompt ? row - row % PREFILL_CHUNK : row;
}

size_t prefill_rows(const struct vb_session *s)
{
    if (!prefill_has_chunks(s) || s->cached >= s->prompt)
        return 0;
    assert(s->cached % PREFILL_CHUNK == 0 && s->prompt <= s->count);
    return s->prompt - s->cached < PREFILL_CHUNK ? s->prompt - s->cached : PREFILL_CHUNK;
}

/* ---- a pass ---- */

void prefill_begin(struct pass *w) { w->cx.arithmetic = &w->by_library; }

void prefill_end(struct pass *w) { w->cx.arithmetic = &w->arithmetic; }

int pass_failed(struct pass *w, vb_error *err)
{
    const char *why = NULL;
    for (int i = 0; w->onednn && i < w->cx.most_threads; i++) {
        const char *failure = onednn_failure(w->onednn[i]);
        why = why ? why : failure;
    }
    if (why)
        return vb_fail(err, VB_UNSUPPORTED, "prefill onednn: %s", why);
    why = offload_failed(w);
    return why ? vb_fail(err, VB_DEVICE, "%s", why) : VB_OK;
}
