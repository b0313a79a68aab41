/* engine/open.c -- the public functions about a model and its tokenizer, and the library's version. */
#include <stdio.h>
#include <string.h>

#include "simd/fpenv.h"
#include "engine/base/options.h"
#include "engine/model/model.h"
#include "engine/model/numa.h"
#include "engine/model/offload.h"
#include "engine/model/ranks.h"
#include "engine/text/tokenizer.h"

const char *vb_version(void) { return VB_VERSION; }

static int place(struct vb_model **m, enum placement_mode mode, vb_error *err)
{
    (*m)->numa = vb_alloc((*m)->allocator, 1, sizeof *(*m)->numa);
    if ((*m)->numa) {
        numa_place(*m, mode);
        return VB_OK;
    }
    model_close(*m);
    *m = NULL;
    return vb_fail(err, VB_NO_MEMORY, "no memory for the plan of where threads and pages go");
}

static int repack_parse(int *off, const char *name, vb_error *err)
{
    *off = name && !strcmp(name, "off");
    if (!name || *off || !strcmp(name, "on"))
        return VB_OK;
    return vb_fail(err, VB_BAD_ARGUMENT, "unknown repack %s; known are on, off", name);
}

/* Tells the other ranks to open the model, too. */
static void tell_ranks(struct vb_ranks *r, const char *dir, const vb_model_options *o)
{
    const char *texts[] = {dir, o->precision, o->cache_type, o->conventions, o->repack, o->repack_cache};
    ranks_put_number(r, RANKS_MODEL);
    ranks_put_number(r, ++r->numbered);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        ranks_put_text(r, texts[i]);
    ranks_send(r);
}

/* `code` is the result of opening on this rank. If opening failed on any rank, or if the ranks have different models,
 * all ranks close the model. */
static int join_ranks(struct vb_model **m, struct vb_ranks *r, const char *dir, int code, vb_error *err)
{
    uint64_t fingerprint = 0;
    if (!code)
        code = ranks_room(r, sizeof(float) * ranks_longest_row(&(*m)->config), err);
    if (!code)
        code = vb_model_fingerprint(*m, 1, 1, &fingerprint, err);
    code = ranks_agree(r, code, err);
    int other = code ? 0 : ranks_differ(r, fingerprint);
    if (other)
        code = vb_fail(err, VB_BAD_CHECKPOINT,
                       "%s: rank %d has another model there than rank 0 (`verbatim inspect --fingerprint` tells them "
                       "apart)",
                       dir, other);
    if (code && *m) {
        (*m)->ranks = NULL; /* so that closing sends no message: the other ranks close the model themselves */
        model_close(*m);
        *m = NULL;
    }
    if (!code) {
        (*m)->number = r->numbered;
        r->weight_bytes += (*m)->stored_bytes + (*m)->widened_bytes + (*m)->copied_bytes;
    }
    return code;
}

static void own_device(struct vb_model *m, const vb_offload *o, size_t memory, const char *why_not)
{
    m->owns_device = m->device != NULL;
    m->device_is_optional = m->device && offload_is_auto(o);
    m->device_memory = memory;
    memcpy(m->device_note, why_not, sizeof m->device_note);
}

void vb_device_look_sized(const vb_model *model, vb_device_facts *out, size_t size)
{
    const struct device *d = model->device;
    vb_device_facts facts = {.memory = model->device_memory, .taken = d ? d->taken : 0,
                             .weight_bytes = model->device_weights,
                             .layers = d ? model->config.num_hidden_layers - model->offload.first_layer : 0,
                             .attentions = d ? model->config.num_hidden_layers - model->offload.first_attention : 0,
                             .all_layers = model->config.num_hidden_layers, .heads = model->offload.ends,
                             .no_memory = d && d->left_to_cpu};
    memcpy(facts.why_not, model->device_note, sizeof facts.why_not);
    if (d)
        memcpy(facts.name, d->name, sizeof facts.name);
    struct_fill(out, size, &facts, sizeof facts);
}

/* Other programs may take memory of the device after it was asked how much is free. Then the choice of VB_OFFLOAD_AUTO
 * is made again, for as much memory as it gave until it refused. With device "auto" the CPU computes everything if
 * nothing else is possible. */
static int open_with_less(struct vb_model **m, const char *dir, struct model_options *how,
                          struct offload_options *offload, const vb_model_options *o, char *why_not, vb_error *err)
{
    int code = VB_NO_MEMORY;
    while (code == VB_NO_MEMORY && offload->device && offload->device->refused) {
        size_t given = offload->device->given;
        if (offload->layers == VB_OFFLOAD_AUTO && given) {
            device_close(offload->device);
            if ((code = offload_open_device(&offload->device, o->offload, why_not, err)))
                return code;
        } else if (offload_is_auto(o->offload) && !how->tensor_cores) {
            snprintf(why_not, 256, "%.255s", err->message);
            device_close(offload->device);
            offload->device = NULL;
        } else {
            return code;
        }
        if (offload->device && offload->device->memory >= given)
            offload->device->memory = given - 1; /* less each time */
        how->offload = offload->device ? offload : NULL;
        code = model_open_under(m, dir, how, &o->allocator, err);
    }
    return code;
}

static int open_model(vb_model **out, const char *dir, const vb_model_options *o, vb_error *err)
{
    struct conventions conventions = {{0}};
    struct model_options how = {.conventions = &conventions, .threads = o->threads, .repack_cache = o->repack_cache,
                                .progress = o->progress, .ranks = o->ranks, .progress_context = o->progress_context};
    enum placement_mode mode;
    struct offload_options offload = {0};
    char why_not[256] = "";
    if (o->ranks && !o->ranks->op.rank)
        tell_ranks(o->ranks, dir, o);
    int code = precision_parse(&how.precision, &how.tensor_cores, o->precision, err);
    if (!code)
        code = cache_type_parse(&how.cache_type, o->cache_type, err);
    if (!code)
        code = conventions_parse(&conventions, o->conventions, err);
    if (!code)
        code = numa_mode(&mode, o->numa, err);
    if (!code)
        code = repack_parse(&how.from_file, o->repack, err);
    if (!code && (o->threads < 0 || o->threads > 4096))
        code = vb_fail(err, VB_BAD_ARGUMENT, "threads is %d, wanted 1 to 4096", o->threads);
    if (!code && o->ranks && mode != PLACEMENT_OFF)
        code = vb_fail(err, VB_BAD_ARGUMENT,
                       "numa %s is for one process, and this is one of %d ranks; run one rank on each node", o->numa,
                       o->ranks->op.count);
    if (!code && o->ranks && o->offload && o->offload->device)
        code = vb_fail(err, VB_BAD_ARGUMENT, "device %s is for one process, and this is one of %d ranks",
                       o->offload->device, o->ranks->op.count);
    if (!code)
        code = offload_open_device(&offload.device, o->offload, why_not, err);
    if (!code && how.tensor_cores && !offload.device)
        code = vb_fail(err, VB_BAD_ARGUMENT,
                       "precision tensor computes on a GPU, and there is none%s%s; device cuda gives the model one",
                       *why_not ? ": " : "", why_not);
    if (!code && how.tensor_cores && !offload.device->tensor_cores)
        code = vb_fail(err, VB_UNSUPPORTED,
                       "precision tensor needs tensor cores for BF16 (a GPU of compute capability 8.0 or later, and "
                       "kernels compiled for it), and %s has none",
                       offload.device->name);
    size_t device_memory = offload.device ? offload.device->memory : 0;
    if (!code && offload.device) {
        offload.layers = o->offload->layers;
        offload.without_experts = o->offload->without_experts;
        how.offload = &offload;
    }
    struct fpenv env = fpenv_enter();
    if (!code)
        code = model_open_under(out, dir, &how, &o->allocator, err);
    if (code == VB_NO_MEMORY && offload.device)
        code = open_with_less(out, dir, &how, &offload, o, why_not, err);
    if (code)
        device_close(offload.device);
    else
        own_device(*out, o->offload, device_memory, why_not);
    if (!code && mode != PLACEMENT_OFF)
        code = place(out, mode, err);
    if (o->ranks)
        code = join_ranks(out, o->ranks, dir, code, err);
    fpenv_leave(env);
    return code;
}

int vb_model_open(vb_model **out, const char *dir, const vb_model_options *options, vb_error *err)
{
    vb_model_options o;
    vb_offload offload;
    *out = NULL;
    if (OPTIONS_COPY(&o, vb_model_options, options, err) || OPTIONS_COPY(&offload, vb_offload, o.offload, err))
        return VB_BAD_ARGUMENT;
    o.offload = o.offload ? &offload : NULL;
    return open_model(out, dir, &o, err);
}

int vb_model_lock(const vb_model *model, vb_error *err)
{
    if (model->ranks)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "weights cannot be locked on several ranks: each rank uses only a part of the files");
    return checkpoint_lock(model->checkpoint, model->copied, model->copied_bytes, err);
}

void vb_model_close(vb_model *model)
{
    struct vb_ranks *r = model ? model->ranks : NULL;
    if (r)
        r->weight_bytes -= model->stored_bytes + model->widened_bytes + model->copied_bytes;
    if (r && !r->op.rank) {
        ranks_put_number(r, RANKS_NO_MODEL);
        ranks_put_number(r, model->number);
        ranks_send(r);
    }
    model_close(model);
}
int32_t vb_vocab_size(const vb_model *model) { return model->config.vocab_size; }
int32_t vb_hidden_size(const vb_model *model) { return model->config.hidden_size; }
int32_t vb_mtp_modules(const vb_model *model) { return model->num_mtp; }
int32_t vb_max_positions(const vb_model *model) { return model->config.max_position_embeddings; }

int vb_tokenizer_open(vb_tokenizer **out, const char *dir, const vb_allocator *allocator, vb_error *err)
{
    return tokenizer_open(out, dir, allocator, err);
}

void vb_tokenizer_close(vb_tokenizer *tokenizer) { tokenizer_close(tokenizer); }

static int encode(const vb_tokenizer *tokenizer, const char *text, size_t size, int parse_special, int32_t *ids,
                  size_t room, size_t *count, vb_error *err)
{
    int32_t *all;
    int code = tokenizer_encode(tokenizer, text, size, parse_special, &all, count, err);
    if (code)
        return code;
    if (*count) /* with none, ids may be NULL */
        memcpy(ids, all, (*count < room ? *count : room) * sizeof *ids);
    vb_free(tokenizer_allocator(tokenizer), all);
    return VB_OK;
}

int vb_encode(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room, size_t *count,
              vb_error *err)
{
    return encode(tokenizer, text, size, 1, ids, room, count, err);
}

int vb_encode_plain(const vb_tokenizer *tokenizer, const char *text, size_t size, int32_t *ids, size_t room,
                    size_t *count, vb_error *err)
{
    return encode(tokenizer, text, size, 0, ids, room, count, err);
}

const char *vb_piece(const vb_tokenizer *tokenizer, int32_t id, size_t *size)
{
    return tokenizer_piece(tokenizer, id, size);
}

int32_t vb_bos_token(const vb_tokenizer *tokenizer) { return tokenizer_bos(tokenizer); }
int32_t vb_tokenizer_size(const vb_tokenizer *tokenizer) { return tokenizer_size(tokenizer); }
int vb_add_bos(const vb_tokenizer *tokenizer) { return tokenizer_add_bos(tokenizer); }
