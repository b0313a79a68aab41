/* engine/quantize.c -- the public functions that write a model as a GGUF file. */
#include "engine/base/options.h"
#include "engine/base/support.h"
#include "engine/export/gguf_write.h"

#include <string.h>

static int read_type(enum gguf_as *as, const char *what, const char *name, vb_error *err)
{
    static const char *const names[] = {"as-stored", "f32", "bf16", "q8_0", "q4_0"};
    int first = strcmp(what, "type") ? 0 : 1; /* a file of as-stored matrices would not be another one */
    for (int i = first; i < 5; i++)
        if (!strcmp(name, names[i])) {
            *as = (enum gguf_as)i;
            return VB_OK;
        }
    return vb_fail(err, VB_BAD_ARGUMENT, "%s is %s, wanted %sf32, bf16, q8_0 or q4_0", what, name,
                   first ? "" : "as-stored, ");
}

int vb_quantize_open(vb_quantize **out, const vb_model *model, const char *dir, const vb_quantize_options *options,
                     vb_error *err)
{
    struct gguf_write_options as = {.embedding = GGUF_AS_STORED};
    vb_quantize_options o;
    *out = NULL;
    if (OPTIONS_COPY(&o, vb_quantize_options, options, err))
        return VB_BAD_ARGUMENT;
    if (model->ranks) /* it has a share of each matrix */
        return vb_fail(err, VB_BAD_ARGUMENT, "a GGUF file is written by one process, and this is one of several ranks");
    if (!o.type)
        return vb_fail(err, VB_BAD_ARGUMENT, "type is missing, wanted f32, bf16, q8_0 or q4_0");
    int code = read_type(&as.linear, "type", o.type, err);
    as.head = as.linear;
    if (!code && o.embedding_type)
        code = read_type(&as.embedding, "embedding type", o.embedding_type, err);
    if (!code && o.head_type)
        code = read_type(&as.head, "head type", o.head_type, err);
    return code ? code : gguf_plan_open(out, model, dir, &as, err);
}

void vb_quantize_close(vb_quantize *q) { gguf_plan_close(q); }

int vb_quantize_write(vb_quantize *q, int fd, const char *name, int32_t threads, vb_progress_or_stop progress,
                      void *context, vb_error *err)
{
    if (threads < 0 || threads > 4096)
        return vb_fail(err, VB_BAD_ARGUMENT, "threads is %d, wanted 1 to 4096", threads);
    return gguf_plan_write(q, fd, name, threads, progress, context, err);
}

size_t vb_quantize_bytes(const vb_quantize *q) { return q->header_bytes + q->data_bytes; }
const char *vb_quantize_tokenizer(const vb_quantize *q) { return q->pre; }
const char *vb_quantize_note(const vb_quantize *q, size_t i) { return i < (size_t)q->num_notes ? q->notes[i] : NULL; }

int vb_quantize_tensor_sized(const vb_quantize *q, size_t i, vb_quantized_tensor *out, size_t size)
{
    static const char *const roles[] = {"linear", "embedding", "head", "other"};
    if (i >= q->count)
        return 0;
    const struct gguf_planned *t = &q->tensors[i];
    vb_quantized_tensor tensor = {.name = t->name, .type = t->type->name, .role = roles[t->role], .kept = t->kept,
                                  .bytes = t->bytes, .ndim = t->ndim};
    memcpy(tensor.shape, t->shape, sizeof tensor.shape);
    struct_fill(out, size, &tensor, sizeof tensor);
    return 1;
}
