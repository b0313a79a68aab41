/* tools/training/initial.c -- --from-scratch: a checkpoint with random weights, from which the run begins as from any
 * other. */
#include <stdlib.h>
#include <string.h>

#include "tools/training/training.h"

/* The modules of the new model: what the options say, else as many as config.json announces. */
static struct trainer_options options_of(const struct cli_training *t, const struct vb_model *m)
{
    long long modules = t->modules > 0 ? t->modules
                        : t->depths >= 0 ? settings_new_modules(t)
                        : m->config.num_nextn_predict_layers;
    return (struct trainer_options){.part = TRAIN_MODEL, .new_model = 1, .modules = (int)modules,
                                    .depths = (int)modules,
                                    .ends = t->ends && !strcmp(t->ends, "own") ? ENDS_OWN : ENDS_SHARED, .threads = 1,
                                    .seed = (uint64_t)(t->seed < 0 ? TRAINING_SEED : t->seed)};
}

int initial_make(struct training *r)
{
    struct cli *c = r->c;
    struct vb_model *m;
    struct trainer_options o;
    vb_error err;
    int from_config;
    if (c->train.part && !is_whole(&c->train))
        return cli_fail(c, EXIT_USAGE, "--part is %s, and --from-scratch trains the whole model", c->train.part);
    c->train.part = c->train.part ? c->train.part : "model";
    if (model_open_shapes(&m, c->model_dir, NULL, &(struct model_options){0}, &from_config, NULL, &err))
        return cli_error(c, &err);
    o = options_of(&c->train, m);
    int code = trainer_open(&r->trainer, m, &o, &err) ? cli_error(c, &err) : output_write_initial(r, c->model_dir);
    trainer_close(r->trainer);
    r->trainer = NULL;
    model_close(m);
    r->initial_dir = cli_must(malloc(strlen(r->dir) + sizeof "/initial"));
    sprintf(r->initial_dir, "%s/initial", r->dir);
    c->model_dir = r->initial_dir;
    return code;
}
