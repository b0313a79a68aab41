/* tools/training/megatron.c -- weights of MTP modules under the names of Megatron-LM.
 *
 * A tensor of module k is called mtp.layers.K.NAME there, and model.layers.L+K.NAME in a checkpoint of L layers. The
 * table below has both NAMEs. They were read from Megatron-Bridge's mapping of DeepSeek models
 * (src/megatron/bridge/models/deepseek/common.py in November 2026), which uses the numbers as they are. Three things
 * differ in Megatron:
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
#include "tools/training/training.h"

#define NAME_SIZE 256

enum megatron_part { WHOLE, FIRST_HALF, SECOND_HALF }; /* the rows that a tensor of ours has in Megatron's */

static const struct {
    const char *ours, *theirs, *also; /* %d: the number of an expert. also: another name in Megatron; NULL: there is
                                         none */
    enum megatron_part half;
    int outside; /* not in the decoder layer */
} table[] = {
    {"enorm.weight", "enorm.weight", NULL, WHOLE, 1},
    {"hnorm.weight", "hnorm.weight", NULL, WHOLE, 1},
    {"eh_proj.weight", "eh_proj.weight", NULL, WHOLE, 1},
    {"shared_head.norm.weight", "final_layernorm.weight", NULL, WHOLE, 1},
    {"input_layernorm.weight", "input_layernorm.weight", "self_attention.linear_q_proj.layer_norm_weight", WHOLE, 0},
    {"self_attn.q_proj.weight", "self_attention.linear_q_proj.weight", NULL, WHOLE, 0},
    {"self_attn.q_a_proj.weight", "self_attention.linear_q_down_proj.weight", NULL, WHOLE, 0},
    {"self_attn.q_a_layernorm.weight", "self_attention.linear_q_up_proj.layer_norm_weight",
     "self_attention.q_layernorm.weight", WHOLE, 0},
    {"self_attn.q_b_proj.weight", "self_attention.linear_q_up_proj.weight", NULL, WHOLE, 0},
    {"self_attn.kv_a_proj_with_mqa.weight", "self_attention.linear_kv_down_proj.weight", NULL, WHOLE, 0},
    {"self_attn.kv_a_layernorm.weight", "self_attention.linear_kv_up_proj.layer_norm_weight",
     "self_attention.kv_layernorm.weight", WHOLE, 0},
    {"self_attn.kv_b_proj.weight", "self_attention.linear_kv_up_proj.weight", NULL, WHOLE, 0},
    {"self_attn.o_proj.weight", "self_attention.linear_proj.weight", NULL, WHOLE, 0},
    {"post_attention_layernorm.weight", "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight", WHOLE, 0},
    {"mlp.gate_proj.weight", "mlp.linear_fc1.weight", NULL, FIRST_HALF, 0},
    {"mlp.up_proj.weight", "mlp.linear_fc1.weight", NULL, SECOND_HALF, 0},
    {"mlp.down_proj.weight", "mlp.linear_fc2.weight", NULL, WHOLE, 0},
    {"mlp.gate.weight", "mlp.router.weight", NULL, WHOLE, 0},
    {"mlp.gate.e_score_correction_bias", "mlp.router.expert_bias", NULL, WHOLE, 0},
    {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.linear_fc1.weight", NULL, FIRST_HALF, 0},
    {"mlp.shared_experts.up_proj.weight", "mlp.shared_experts.linear_fc1.weight", NULL, SECOND_HALF, 0},
    {"mlp.shared_experts.down_proj.weight", "mlp.shared_experts.linear_fc2.weight", NULL, WHOLE, 0},
    {"mlp.experts.%d.gate_proj.weight", "mlp.experts.linear_fc1.weight%d",
     "mlp.experts.local_experts.%d.linear_fc1.weight", FIRST_HALF, 0},
    {"mlp.experts.%d.up_proj.weight", "mlp.experts.linear_fc1.weight%d",
     "mlp.experts.local_experts.%d.linear_fc1.weight", SECOND_HALF, 0},
    {"mlp.experts.%d.down_proj.weight", "mlp.experts.linear_fc2.weight%d",
     "mlp.experts.local_experts.%d.linear_fc2.weight", WHOLE, 0},
};
#define ROWS (sizeof table / sizeof *table)

/* A tensor of a module: its row of the table, its module and, for an expert, its number. */
struct megatron_place {
    size_t row;
    int module, expert;
};

/* Returns 0 if the tensor is none of a module's, or if Megatron has none such. */
static int find_place(const char *name, int layers, struct megatron_place *out)
{
    int layer, used = 0, end;
    if (sscanf(name, "model.layers.%d.%n", &layer, &used) != 1 || !used || layer < layers)
        return 0;
    for (size_t i = 0; i < ROWS; i++) {
        const char *rest = name + used, *number = strstr(table[i].ours, "%d");
        size_t head = number ? (size_t)(number - table[i].ours) : 0;
        *out = (struct megatron_place){i, layer - layers, -1};
        if (!number && !strcmp(rest, table[i].ours))
            return 1;
        if (number && !strncmp(rest, table[i].ours, head) && sscanf(rest + head, "%d%n", &out->expert, &end) == 1 &&
            !strcmp(rest + head + end, number + 2))
            return 1;
    }
    return 0;
}

/* Megatron's name number i of the tensor. Returns 0 if there are fewer. */
static int name_of(const struct megatron_place *p, int i, char name[NAME_SIZE])
{
    static const char *const layers[] = {"mtp_model_layer.", "transformer_layer."};
    int also = i % 2, old = i / 2, outside = table[p->row].outside;
    const char *theirs = also ? table[p->row].also : table[p->row].theirs, *number;
    if (i >= (outside ? 2 : 4))
        return 0;
    if (!theirs) /* the same name again */
        theirs = table[p->row].theirs;
    int size = snprintf(name, NAME_SIZE, "mtp.layers.%d.%s", p->module, outside ? "" : layers[old]);
    number = strstr(theirs, "%d");
    snprintf(name + size, NAME_SIZE - (size_t)size, "%.*s", number ? (int)(number - theirs) : (int)strlen(theirs),
             theirs);
    if (number)
        snprintf(name + strlen(name), NAME_SIZE - strlen(name), "%d%s", p->expert, number + 2);
    return 1;
}

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
    *half = WHOLE;
    if (vb_tensors_find(file, t->name, out))
        return 1;
    if (!find_place(t->name, layers, &p))
        return 0;
    *half = table[p.row].half;
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
    rows *= half == WHOLE ? 1 : 2;
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
    size_t count = t->rows * t->cols, halves = table[p->row].half == WHOLE ? 1 : 2;
    name_of(p, 0, name);
    vb_tensor *x = tensor_called(f, name);
    if (!x) {
        x = &f->list[f->count++];
        *x = (vb_tensor){.name = name, .dtype = "F32", .ndim = t->dimensions,
                         .shape = {(int64_t)(t->dimensions == 1 ? count : halves * t->rows), (int64_t)t->cols},
                         .bytes = halves * count * sizeof *t->w};
        x->data = cli_must(malloc(x->bytes + 1));
    }
    memcpy((char *)(uintptr_t)x->data + (table[p->row].half == SECOND_HALF ? count * sizeof *t->w : 0), t->w,
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
