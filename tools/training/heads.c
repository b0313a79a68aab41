/* tools/training/heads.c -- parallel heads: their options, and the folder DIR/head, which opens with --draft
 * parallel-heads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/file.h"
#include "tools/training/training.h"

#define PATH_SIZE 4096

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* The number of `word` in two words; -1: it is neither, which is reported. NULL is the first. */
static int choice(const struct cli *c, const char *option, const char *word, const char *const words[2])
{
    for (int i = 0; i < 2; i++)
        if (!word || !strcmp(word, words[i]))
            return i;
    cli_fail(c, EXIT_USAGE, "%s is %.64s, wanted %s or %s", option, word, words[0], words[1]);
    return -1;
}

/* Opens the heads with which the run begins. */
static int open_stored(struct training *r)
{
    const struct cli_training *t = &r->c->train;
    struct vb_model *m;
    int trunk_layers;
    vb_error err;
    if (t->heads_init || t->heads_trunk || t->heads_mlp)
        return cli_fail(r->c, EXIT_USAGE, "%s is for new heads, and --heads names some",
                        t->heads_init ? "--heads-init"
                        : t->heads_trunk ? "--heads-trunk"
                        : "--heads-mlp");
    if (model_open_heads(&m, &trunk_layers, t->heads, r->c->model, &err))
        return cli_error(r->c, &err);
    r->heads.stored = m;
    r->heads.after_last = trunk_layers == m->config.num_hidden_layers;
    return EXIT_DONE;
}

/* Heads in the folder of the model have the kinds of layers that its config.json says. */
static int check_kinds(const struct training *r, int heads)
{
    const struct config *c = &r->c->model->config;
    int moe = config_layer_is_moe(c, c->num_hidden_layers - 1) && !r->heads.dense;
    for (int k = 0; k < heads && !r->heads.stored; k++)
        if (config_layer_is_moe(c, c->num_hidden_layers + k) != moe)
            return cli_fail(r->c, EXIT_USAGE,
                            "head %d would be %s, but by config.json layer %d is %s, and the heads share the model's "
                            "config.json",
                            k, moe ? "a layer with experts" : "dense", c->num_hidden_layers + k,
                            moe ? "dense" : "a layer with experts");
    return EXIT_DONE;
}

int heads_options(struct training *r)
{
    static const char *const init[] = {"copy", "zero"}, *const trunk[] = {"before", "after"},
                             *const mlp[] = {"same", "dense"};
    struct cli *c = r->c;
    struct cli_training *t = &c->train;
    int code = t->heads ? open_stored(r) : EXIT_DONE;
    if (code != EXIT_DONE)
        return code;
    if (!t->heads) {
        int start = choice(c, "--heads-init", t->heads_init, init),
            after = choice(c, "--heads-trunk", t->heads_trunk, trunk);
        int dense = choice(c, "--heads-mlp", t->heads_mlp, mlp);
        if (start < 0 || after < 0 || dense < 0)
            return EXIT_USAGE;
        r->heads = (struct trained_heads){.copied = start == 0, .after_last = after, .dense = dense};
    }
    if (t->depths < 0)
        t->depths = trainer_usual_depths(TRAIN_HEADS, NULL, r->heads.stored ? r->heads.stored->num_mtp : 0);
    if (!t->depths)
        return cli_fail(c, EXIT_USAGE, "--mtp-num-layers is 0, and --part %s trains parallel heads", t->part);
    t->loss = t->loss ? t->loss : trainer_usual_loss(TRAIN_HEADS);
    return is_whole(t) ? check_kinds(r, (int)t->depths) : EXIT_DONE;
}

void heads_close(struct training *r) { model_close((struct vb_model *)(uintptr_t)r->heads.stored); }

/* ---- config.json ------------------------------------------------------------------------------------------------- */

void heads_describe(const struct training *r, json_t *config)
{
    json_object_set_new(config, "n_future_tokens", json_integer(r->c->train.depths + 1));
    json_object_set_new(config, "trunk_layers",
                        json_integer(r->c->model->config.num_hidden_layers - !r->heads.after_last));
}

/* From that of the model, or of the heads with which the run began. */
static int write_config(const struct training *r, const char *dir)
{
    char path[PATH_SIZE + 32];
    json_error_t why;
    const struct config *c = &r->c->model->config;
    const struct trained_heads *h = &r->heads;
    int last = c->num_hidden_layers - 1, dense = h->dense || !config_layer_is_moe(c, last);
    snprintf(path, sizeof path, "%s/config.json", h->stored ? r->c->train.heads : r->model_dir);
    json_t *config = json_load_file(path, 0, &why);
    if (!config)
        return cli_fail(r->c, EXIT_OTHER, "%s: %s", path, why.text);
    heads_describe(r, config);
    json_object_del(config, "quantization_config"); /* what is written is BF16 or F32 */
    json_object_set_new(config, "torch_dtype", json_string(strcmp(r->c->train.type, "f32") ? "bfloat16" : "float32"));
    if (!h->stored) { /* layers L, L+1 .. are all dense, or all have experts */
        json_object_del(config, "mlp_layer_types");
        json_object_set_new(config, "num_nextn_predict_layers", json_integer(0));
        json_object_set_new(config, "first_k_dense_replace",
                            json_integer(dense ? last + 1 + r->c->train.depths : last + 1));
        json_object_set_new(config, "moe_layer_freq", json_integer(1));
    }
    snprintf(path, sizeof path, "%s/config.json", dir);
    int code = json_dump_file(config, path, JSON_INDENT(2) | JSON_REAL_PRECISION(15))
                   ? cli_fail(r->c, EXIT_OTHER, "%s: %s", path, strerror(errno))
                   : EXIT_DONE;
    json_decref(config);
    return code;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static int write_tensors(const struct training *r, const char *dir)
{
    char path[PATH_SIZE + 32];
    size_t count = trainer_count(r->trainer);
    vb_tensor *list = cli_must(calloc(count, sizeof *list));
    void **memory = cli_must(calloc(count, sizeof *memory));
    struct new_file file;
    vb_error err;
    for (size_t i = 0; i < count; i++) {
        const struct trained_tensor *t = trainer_tensor(r->trainer, i);
        list[i] = output_stored(t,
                                !strcmp(r->c->train.type, "f32") || cli_ends_with(t->name, ".e_score_correction_bias"),
                                &memory[i]);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int rc = new_file_begin(&file, path, 0, NULL, &err);
    if (!rc)
        rc = new_file_end(&file, vb_tensors_write(file.fd, path, list, count, NULL, NULL, &err), &err);
    for (size_t i = 0; i < count; i++)
        free(memory[i]);
    free(memory);
    free(list);
    return rc ? cli_error(r->c, &err) : EXIT_DONE;
}

int heads_write(struct training *r)
{
    char dir[PATH_SIZE], head[PATH_SIZE];
    if (snprintf(dir, sizeof dir, "%s/head.new", r->dir) >= PATH_SIZE - 32)
        return cli_fail(r->c, EXIT_OTHER, "%.200s: the path is too long", r->dir);
    snprintf(head, sizeof head, "%s/head", r->dir);
    output_remove(dir);
    int code = mkdir(dir, 0777) ? cli_fail(r->c, EXIT_OTHER, "%s: %s", dir, strerror(errno)) : EXIT_DONE;
    if (code == EXIT_DONE)
        code = write_config(r, dir);
    if (code == EXIT_DONE)
        code = write_tensors(r, dir);
    if (code == EXIT_DONE) {
        output_remove(head); /* of a run that has ended, and was then continued */
        code = rename(dir, head) ? cli_fail(r->c, EXIT_OTHER, "%s: %s", head, strerror(errno)) : EXIT_DONE;
    }
    if (code != EXIT_DONE)
        output_remove(dir);
    return code;
}
