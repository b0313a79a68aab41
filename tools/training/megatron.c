/* tools/training/megatron.c -- weights of MTP modules under the names of Megatron-LM.
 *
 * A tensor of module k is called mtp.layers.K.NAME there, and model.layers.L+K.NAME in a checkpoint of L layers. The
 * table engine/files/tensor_names.c has both NAMEs. Three things differ in Megatron:
 *
 *   - The gate and up projections of an MLP are one matrix, gate first.
 *   - The norms before kv_b_proj and q_b_proj belong to these projections with Transformer Engine, and have names of
 *     their own without it. The same is true of the norm before a dense MLP. Experts are numbered in two ways.
 *   - The decoder layer is called mtp_model_layer; before, it was transformer_layer.
 *
 * Files are written with the first of these names. All are read. Modules have neither an embedding nor an output head
 * in Megatron. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/new_file.h"
#include "engine/files/tensor_names.h"
#include "tools/training/training.h"

#define NAME_SIZE 256

/* A tensor of a module: its module and, for an expert, its number. */
struct megatron_place {
    enum model_tensor tensor;
    int module;
    size_t expert;
};

/* Returns 0 if the tensor is none of a module's, or if Megatron has none such. */
static int find_place(const char *name, int layers, struct megatron_place *out)
{
    int layer, used = 0;
    if (sscanf(name, "model.layers.%d.%n", &layer, &used) != 1 || !used || layer < layers)
        return 0;
    out->module = layer - layers;
    for (out->tensor = 0; out->tensor < MODEL_TENSORS; out->tensor++)
        if (tensor_name_is(tensor_names[out->tensor].hf, name + used, &out->expert))
            return tensor_names[out->tensor].megatron != NULL;
    return 0;
}

/* Megatron's name number i of the tensor. Returns 0 if there are fewer. */
static int name_of(const struct megatron_place *p, int i, char name[NAME_SIZE])
{
    static const char *const layers[] = {"mtp_model_layer.", "transformer_layer."};
    const struct tensor_names *names = &tensor_names[p->tensor];
    int also = i % 2 && names->megatron_also, old = i / 2, outside = p->tensor >= TENSORS_OF_MODULE;
    if (i >= (outside ? 2 : 4))
        return 0;
    int size = snprintf(name, NAME_SIZE, "mtp.layers.%d.%s", p->module, outside ? "" : layers[old]);
    tensor_name(name + size, NAME_SIZE - (size_t)size, also ? names->megatron_also : names->megatron, p->expert, NULL);
    return 1;
}

static enum megatron_part part_of(const struct megatron_place *p) { return tensor_names[p->tensor].part; }

static int num_layers(const struct training *r)
{
    vb_model_facts facts;
    vb_model_look(r->c->model, &facts);
    return facts.layers;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Finds the tensor under its own name, or under one of Megatron's. */
static int find(const vb_tensors *file, const struct trained_tensor *t, int layers, vb_tensor *out,
                enum megatron_part *half)
{
    char name[NAME_SIZE];
    struct megatron_place p;
    *half = WHOLE_TENSOR;
    if (vb_tensors_find(file, t->name, out))
        return 1;
    if (!find_place(t->name, layers, &p))
        return 0;
    *half = part_of(&p);
    for (int i = 0; name_of(&p, i, name); i++)
        if (vb_tensors_find(file, name, out))
            return 1;
    return 0;
}

static int read_tensor(const struct training *r, const char *path, const vb_tensors *file, struct trained_tensor *t)
{
    char name[NAME_SIZE] = "";
    struct megatron_place p;
    vb_tensor x;
    enum megatron_part half;
    vb_error err;
    size_t count = t->rows * t->cols, rows = t->rows;
    int layers = num_layers(r);
    if (!find(file, t, layers, &x, &half)) {
        if (!find_place(t->name, layers, &p)) /* its own embedding or output head, or a tensor of the target */
            return EXIT_DONE;
        name_of(&p, 0, name);
        return cli_fail(r->c, EXIT_OTHER, "%s: there is neither %s nor %s", path, t->name, name);
    }
    rows *= half == WHOLE_TENSOR ? 1 : 2;
    if (x.ndim != t->dimensions || x.shape[x.ndim - 1] != (int64_t)(t->dimensions == 1 ? rows * t->cols : t->cols) ||
        (x.ndim == 2 && x.shape[0] != (int64_t)rows))
        return cli_fail(r->c, EXIT_OTHER, "%s: %s is [%lld,%lld], wanted [%zu,%zu]", path, x.name,
                        x.ndim == 2 ? (long long)x.shape[0] : 1LL, (long long)x.shape[x.ndim - 1], rows, t->cols);
    if (vb_tensor_f32(&x, half == SECOND_HALF ? count : 0, count, t->w, &err))
        return cli_fail(r->c, EXIT_OTHER, "%s: %s", path, err.message);
    return EXIT_DONE;
}

int megatron_read(struct training *r, const char *path)
{
    vb_tensors *file;
    vb_error err;
    int code = EXIT_DONE;
    if (vb_tensors_open(&file, path, NULL, &err))
        return cli_error(r->c, &err);
    for (size_t i = 0; i < trainer_count(r->trainer) && code == EXIT_DONE; i++)
        code = read_tensor(r, path, file, trainer_tensor(r->trainer, i));
    vb_tensors_close(file);
    return code;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

struct megatron_file {
    vb_tensor *list;
    size_t count;
    char (*names)[NAME_SIZE];
};

static vb_tensor *tensor_called(const struct megatron_file *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (!strcmp(f->list[i].name, name))
            return &f->list[i];
    return NULL;
}

/* Adds a tensor in F32; the two halves of a matrix become one tensor. */
static void add(struct megatron_file *f, const struct trained_tensor *t, const struct megatron_place *p)
{
    char *name = f->names[f->count];
    size_t count = t->rows * t->cols, halves = part_of(p) == WHOLE_TENSOR ? 1 : 2;
    name_of(p, 0, name);
    vb_tensor *x = tensor_called(f, name);
    if (!x) {
        x = &f->list[f->count++];
        *x = (vb_tensor){.name = name, .dtype = "F32", .ndim = t->dimensions,
                         .shape = {(int64_t)(t->dimensions == 1 ? count : halves * t->rows), (int64_t)t->cols},
                         .bytes = halves * count * sizeof *t->w};
        x->data = cli_must(malloc(x->bytes + 1));
    }
    memcpy((char *)(uintptr_t)x->data + (part_of(p) == SECOND_HALF ? count * sizeof *t->w : 0), t->w,
           count * sizeof *t->w);
}

int megatron_write(const struct training *r, const char *path)
{
    size_t count = trainer_count(r->trainer);
    struct megatron_file f = {.list = cli_must(calloc(count + 1, sizeof *f.list)),
                              .names = cli_must(calloc(count + 1, sizeof *f.names))};
    struct megatron_place p;
    struct new_file file;
    vb_error err;
    for (size_t i = 0; i < count; i++)
        if (find_place(trainer_tensor(r->trainer, i)->name, num_layers(r), &p))
            add(&f, trainer_tensor(r->trainer, i), &p);
    int rc = new_file_begin(&file, path, 1, NULL, &err);
    if (!rc)
        rc = new_file_end(&file, vb_tensors_write(file.fd, path, f.list, f.count, NULL, NULL, &err), &err);
    for (size_t i = 0; i < f.count; i++)
        free((void *)(uintptr_t)f.list[i].data);
    free(f.list);
    free(f.names);
    return rc ? cli_error(r->c, &err) : EXIT_DONE;
}
