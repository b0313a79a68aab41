/* tools/training/settings.c -- the options of a training run: their defaults, what is kept when a run is resumed, and
 * the learning rate that follows from them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/options.h"
#include "tools/training/training.h"

/* ---- one option -------------------------------------------------------------------------------------------------- */

/* Whether a run keeps the option. -o and --resume name the run itself. */
static int is_kept(const struct option *o)
{
    return (o->takes == TAKES_TRAIN && strcmp(o->name, "-o") && strcmp(o->name, "--resume")) ||
           o->offset == offsetof(struct cli, convention);
}

static int may_change(const struct option *o) { return o->heading == RUN_OPTIONS; }

/* The option's value; NULL: it was not given. The caller releases it. */
static json_t *value_of(const struct cli *c, const struct option *o)
{
    const void *field = (const char *)c + o->offset;
    if (o->kind == FLAG)
        return *(const int *)field ? json_true() : NULL;
    if (o->kind == DOUBLE_VALUE)
        return *(const double *)field < 0 ? NULL : json_real(*(const double *)field);
    if (o->kind == LONG_VALUE)
        return *(const long long *)field < 0 ? NULL : json_integer(*(const long long *)field);
    return *(char *const *)field ? json_string(*(char *const *)field) : NULL;
}

static void set_value(struct cli *c, const struct option *o, const json_t *value)
{
    void *field = (char *)c + o->offset;
    if (o->kind == FLAG)
        *(int *)field = json_is_true(value);
    else if (o->kind == DOUBLE_VALUE)
        *(double *)field = json_number_value(value);
    else if (o->kind == LONG_VALUE)
        *(long long *)field = json_integer_value(value);
    else if (o->kind == LIST_VALUE)
        *(char **)field = cli_must(strdup(json_string_value(value)));
    else
        *(const char **)field = json_string_value(value); /* the run keeps the JSON object */
}

static int is_valid(const struct option *o, const json_t *value)
{
    return o->kind == FLAG ? json_is_true(value) : o->kind == DOUBLE_VALUE ? json_is_number(value)
         : o->kind == LONG_VALUE ? json_is_integer(value) : json_is_string(value);
}

/* ---- all options ------------------------------------------------------------------------------------------------- */

json_t *settings_json(const struct cli *c)
{
    const struct option *o;
    json_t *all = json_object();
    for (size_t i = 0; (o = option_at(i)); i++) {
        json_t *value = is_kept(o) && option_is_taken(o, c->command) ? value_of(c, o) : NULL;
        if (value)
            json_object_set_new(all, o->name, value);
    }
    return all;
}

int settings_resume(struct cli *c, const char *dir, const json_t *options)
{
    const struct option *o;
    char was[JSON_SHOWN], now[JSON_SHOWN];
    for (size_t i = 0; (o = option_at(i)); i++) {
        const json_t *kept = json_object_get(options, o->name);
        if (!is_kept(o) || !option_is_taken(o, c->command))
            continue;
        if (kept && !is_valid(o, kept))
            return cli_fail(c, EXIT_OTHER, "%s/state.safetensors: %s is %s, which is no value of it", dir, o->name,
                            json_show(kept, was));
        json_t *given = value_of(c, o);
        int differs = given && !(kept && json_equal(given, kept));
        if (differs && !may_change(o)) {
            int code = cli_fail(c, EXIT_USAGE, "%s is %s, the run in %s began with %s; it cannot change", o->name,
                                json_show(given, now), dir, kept ? json_show(kept, was) : "no such option");
            json_decref(given);
            return code;
        }
        if (kept && !given)
            set_value(c, o, kept);
        json_decref(given);
    }
    return EXIT_DONE;
}

static void real_default(double *field, double value) { *field = *field < 0 ? value : *field; }
static void whole_default(long long *field, long long value) { *field = *field < 0 ? value : *field; }

/* The number of the word in `known`, a list that ends with NULL; -1: it is none of them, which is reported. */
static int one_of(const struct cli *c, const char *option, const char *word, const char *const *known)
{
    char list[128] = "";
    for (int i = 0; known[i]; i++) {
        if (!strcmp(word, known[i]))
            return i;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? known[i + 1] ? ", " : " or " : "",
                 known[i]);
    }
    cli_fail(c, EXIT_USAGE, "%s is %.64s, wanted %s", option, word, list);
    return -1;
}

/* enum trained_part, and one more */
static const char *const parts[] = {"modules", "model", "eagle", "eagle3", "parallel-heads", "model-with-heads", NULL};
/* enum module_ends */
static const char *const ends[] = {"stored", "shared", "own", NULL};
static const char *const styles[] = {"constant", "linear", "cosine", "inverse-square-root", NULL};
static const char *const types[] = {"bf16", "f32", NULL};

/* EAGLE heads have losses and depths of their own, and no MTP modules. */
static void set_eagle_defaults(struct cli_training *t)
{
    if (!is_eagle(t))
        return;
    t->loss = t->loss ? t->loss : t->part; /* the names are the same */
    whole_default(&t->depths, trainer_usual_depths(TRAIN_EAGLE, t->loss, 0));
    whole_default(&t->modules, 0);
}

long long settings_new_modules(const struct cli_training *t)
{
    struct loss loss;
    vb_error err;
    int one = t->loss && !loss_named(&loss, t->loss, 1, -1, &err) && loss.chain != CHAIN_MODULES;
    return one && t->depths > 1 ? 1 : t->depths;
}

static void set_defaults(struct cli_training *t, int stored, long long positions)
{
    t->part = t->part ? t->part : "modules";
    set_eagle_defaults(t);
    t->ends = t->ends ? t->ends : "stored";
    t->lr_decay_style = t->lr_decay_style ? t->lr_decay_style : "linear";
    t->type = t->type ? t->type : "bf16";
    enum trained_part part = is_whole(t) ? TRAIN_MODEL : TRAIN_MODULES;
    whole_default(&t->depths, trainer_usual_depths(part, NULL, stored));
    long long new = settings_new_modules(t);
    whole_default(&t->modules, stored && (!t->new_modules || stored < new) ? stored : new);
    t->loss = t->loss ? t->loss : trainer_usual_loss(part);
    real_default(&t->eval_share, t->eval_data ? 0 : 0.05);
    whole_default(&t->seq_length, positions < 512 ? positions : 512);
    whole_default(&t->batch_tokens, t->seq_length > 4096 ? t->seq_length : 4096);
    whole_default(&t->seed, TRAINING_SEED);
    real_default(&t->lr, 3e-4);
    real_default(&t->min_lr, 0);
    whole_default(&t->warmup_iters, 0);
    whole_default(&t->decay_iters, t->train_iters > 0 ? t->train_iters : 1);
    real_default(&t->weight_decay, 0.01);
    real_default(&t->clip_grad, 1);
    real_default(&t->beta1, 0.9);
    real_default(&t->beta2, 0.999);
    real_default(&t->eps, 1e-8);
    real_default(&t->bias_rate, is_whole(t) ? 0.001 : 0);
    whole_default(&t->save_interval, 100);
    whole_default(&t->eval_interval, 100);
    whole_default(&t->eval_iters, 10);
    whole_default(&t->log_interval, 10);
    whole_default(&t->prompts, 8);
    whole_default(&t->micro_tokens, 2048);
}

/* Options that belong to another part, before they have defaults. Reports errors. */
static int check_part(const struct cli *c)
{
    const struct cli_training *t = &c->train;
    const char *part = t->part ? t->part : "modules";
    int eagle = is_eagle(t), eagle3 = !strcmp(part, "eagle3"), new = !t->eagle_head,
        modules = !strcmp(part, "modules") || !strcmp(part, "model");
    const struct {
        const char *name;
        int given, fits;
    } options[] = {{"--eagle-head", !new, eagle},
                   {"--num-attention-heads", t->attention_heads > 0, eagle && new},
                   {"--num-query-groups", t->query_groups > 0, eagle && new},
                   {"--kv-channels", t->kv_channels > 0, eagle && new},
                   {"--ffn-hidden-size", t->ffn_hidden_size > 0, eagle && new},
                   {"--draft-vocab-size", t->draft_vocab_size > 0, eagle3 && new},
                   {"--norm-before-residual", t->norm_before_residual, eagle3 && new},
                   {"--norm-before-fc", t->norm_before_fc, eagle3 && new},
                   {"--fc-norm", t->fc_norm, eagle3 && new},
                   {"--norm-output", t->norm_output, eagle3 && new},
                   {"--mtp-modules", t->modules > 0, modules},
                   {"--mtp-new", t->new_modules, modules},
                   {"--mtp-weights", t->mtp_weights != NULL, modules},
                   {"--mtp-ends", t->ends != NULL, modules},
                   {"--save-megatron", t->save_megatron, modules},
                   {"--copy-target", t->copy_target, !eagle}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].given && !options[i].fits)
            return cli_fail(c, EXIT_USAGE, "%s does not go together with --part %.64s%s", options[i].name, part,
                            eagle && !new ? " and --eagle-head" : "");
    return EXIT_DONE;
}

/* Options of modules, if a whole model is trained without any. Reports errors. */
static int check_no_modules(const struct cli *c)
{
    const struct cli_training *t = &c->train;
    const char *name = t->new_modules ? "--mtp-new"
                       : t->mtp_weights ? "--mtp-weights"
                       : t->save_megatron ? "--save-megatron"
                       : t->soft_targets >= 0 ? "--soft-targets"
                       : NULL;
    if (!is_whole(t) || t->depths || !name)
        return EXIT_DONE;
    return cli_fail(c, EXIT_USAGE, "%s is for MTP modules, and --mtp-num-layers is 0%s", name,
                    vb_mtp_modules(c->model) ? "" : ", the default for a model without modules");
}

int settings_check(struct training *r)
{
    struct cli *c = r->c;
    struct cli_training *t = &c->train;
    if (!t->resume && check_part(c) != EXIT_DONE)
        return EXIT_USAGE;
    if (t->train_iters < 0)
        return cli_fail(c, EXIT_USAGE, "--train-iters is missing; see verbatim train --help");
    if (!has_heads(t) && (t->heads || t->heads_init || t->heads_trunk || t->heads_mlp))
        return cli_fail(c, EXIT_USAGE, "%s is for --part parallel-heads and model-with-heads",
                        t->heads ? "--heads"
                        : t->heads_init ? "--heads-init"
                        : t->heads_trunk ? "--heads-trunk"
                        : "--heads-mlp");
    if (has_heads(t)) {
        int code = heads_options(r);
        if (code != EXIT_DONE)
            return code;
    }
    set_defaults(t, vb_mtp_modules(c->model), vb_max_positions(c->model));
    if (one_of(c, "--part", t->part, parts) < 0 || one_of(c, "--mtp-ends", t->ends, ends) < 0 ||
        one_of(c, "--type", t->type, types) < 0 || one_of(c, "--lr-decay-style", t->lr_decay_style, styles) < 0)
        return EXIT_USAGE;
    if (check_no_modules(c) != EXIT_DONE)
        return EXIT_USAGE;
    if (t->hidden_states && is_whole(t))
        return cli_fail(c, EXIT_USAGE,
                        "--hidden-states has what a frozen model computes, and --part %s trains all of it", t->part);
    if (t->hidden_states && (t->keep_hidden || t->assistant_only))
        return cli_fail(c, EXIT_USAGE, "--hidden-states and %s do not go together",
                        t->keep_hidden ? "--keep-hidden-states" : "--assistant-only-loss");
    if (t->hidden_layers && !t->hidden_states)
        return cli_fail(c, EXIT_USAGE,
                        "--hidden-states-layers describes the files of --hidden-states, which is missing");
    if (t->keep_hidden && is_whole(t))
        return cli_fail(c, EXIT_USAGE,
                        "--keep-hidden-states keeps what a frozen model computes, and --part %s trains all of it",
                        t->part);
    if (!t->depths && !is_whole(t))
        return cli_fail(c, EXIT_USAGE, "--mtp-num-layers is 0, and --part %s trains nothing else", t->part);
    if (t->seq_length < t->depths + 2)
        return cli_fail(c, EXIT_USAGE, "--seq-length is %lld; %lld depth%s sequences of %lld tokens or more",
                        t->seq_length, t->depths, t->depths == 1 ? " wants" : "s want", t->depths + 2);
    if (t->seq_length > vb_max_positions(c->model))
        return cli_fail(c, EXIT_USAGE, "--seq-length is %lld, the model has %d positions", t->seq_length,
                        vb_max_positions(c->model));
    if (t->draft_vocab_size > vb_vocab_size(c->model))
        return cli_fail(c, EXIT_USAGE, "--draft-vocab-size is %lld, the model has %d tokens", t->draft_vocab_size,
                        vb_vocab_size(c->model));
    if (t->batch_tokens < t->seq_length)
        return cli_fail(c, EXIT_USAGE, "--batch-tokens is %lld, --seq-length %lld: a step reads at least one sequence",
                        t->batch_tokens, t->seq_length);
    if (t->eval_share >= 1)
        return cli_fail(c, EXIT_USAGE, "--eval-share is %g, wanted a number below 1", t->eval_share);
    if (t->min_lr > t->lr)
        return cli_fail(c, EXIT_USAGE, "--min-lr is %g, wanted at most --lr, which is %g", t->min_lr, t->lr);
    if (!((float)t->eps > 0))
        return cli_fail(c, EXIT_USAGE, "--adam-eps is %g, wanted a number above 0", t->eps);
    if (t->beta1 >= 1 || t->beta2 >= 1)
        return cli_fail(c, EXIT_USAGE, "--adam-beta%d is %g, wanted a number below 1", t->beta1 >= 1 ? 1 : 2,
                        t->beta1 >= 1 ? t->beta1 : t->beta2);
    if (t->warmup_iters >= t->decay_iters && t->warmup_iters)
        return cli_fail(c, EXIT_USAGE,
                        "--lr-warmup-iters is %lld, --lr-decay-iters %lld: the warm-up has to end earlier",
                        t->warmup_iters, t->decay_iters);
    return EXIT_DONE;
}

/* Whether the part can be trained with the loss. Reports errors. */
static int check_loss(const struct cli *c, const struct loss *loss)
{
    const struct cli_training *t = &c->train;
    long long used = loss->chain == CHAIN_MODULES ? t->depths : 1;
    int is_new = t->new_modules || t->modules > vb_mtp_modules(c->model);
    if (!t->depths && loss->main == 0)
        return cli_fail(c, EXIT_USAGE,
                        "--loss %s has no main loss, and --mtp-num-layers is 0, so that there is nothing to learn",
                        t->loss);
    if (has_heads(t) && loss->chain != CHAIN_MODULES)
        return cli_fail(c, EXIT_USAGE,
                        "--loss %s runs one module at every depth, and --part %s trains a head for each depth", t->loss,
                        t->part);
    if ((has_heads(t) || !strcmp(t->part, "eagle3")) && loss->terms.features != 0)
        return cli_fail(c, EXIT_USAGE,
                        "--loss %s compares hidden states with those of the model, and --part %s has none to compare",
                        t->loss, t->part);
    if (!is_eagle(t) && !has_heads(t) && t->depths && is_new && t->modules > used)
        return cli_fail(c, EXIT_USAGE,
                        "--mtp-modules is %lld, and --mtp-num-layers %lld with --loss %s trains only %lld of them, so "
                        "that new ones would stay random",
                        t->modules, t->depths, t->loss, used);
    return EXIT_DONE;
}

int settings_loss(const struct cli *c, struct loss *out)
{
    const struct cli_training *t = &c->train;
    vb_error err;
    if (loss_named(out, t->loss, (int)t->depths, t->mtp_loss_scaling_factor, &err))
        return cli_fail(c, EXIT_USAGE, "--loss: %s", err.message);
    if (check_loss(c, out) != EXIT_DONE)
        return EXIT_USAGE;
    if (t->soft_targets < 0)
        return EXIT_DONE;
    if (t->soft_targets > 1 || out->terms.data == 0)
        return t->soft_targets > 1
                   ? cli_fail(c, EXIT_USAGE, "--soft-targets is %g, wanted a number from 0 to 1", t->soft_targets)
                   : cli_fail(c, EXIT_USAGE,
                              "--soft-targets does not go together with --loss %s, which has weights of its own",
                              t->loss);
    out->terms.soft = t->soft_targets;
    out->terms.data = 1 - t->soft_targets;
    return EXIT_DONE;
}

struct trainer_options settings_trainer(const struct training *r)
{
    const struct cli *c = r->c;
    const struct cli_training *t = &c->train;
    return (struct trainer_options){
        .part = is_whole(t) ? TRAIN_MODEL : (enum trained_part)one_of(c, "--part", t->part, parts),
        .heads = has_heads(t) ? &r->heads : NULL,
        .ends = (enum module_ends)one_of(c, "--mtp-ends", t->ends, ends),
        .depths = (int)t->depths,
        .modules = t->depths ? (int)t->modules : 0,
        .new_modules = t->new_modules,
        .seed = (uint64_t)t->seed,
        .loss = &r->loss,
        .eagle = &r->eagle,
        .max_norm = t->clip_grad,
        .bias_update_speed = t->bias_rate,
        .adamw = {.beta1 = t->beta1, .beta2 = t->beta2, .eps = t->eps, .weight_decay = t->weight_decay},
        .micro_tokens = (size_t)t->micro_tokens,
        .threads = c->session.threads,
        .isa = c->session.isa};
}

/* ---- the learning rate ------------------------------------------------------------------------------------------- */

/* cos(pi x) for x in [0, 1], by its power series: math libraries differ in the last bit. */
static double cos_pi(double x)
{
    double a = M_PI * (x > 0.5 ? 1 - x : x), term = 1, sum = 1;
    for (int n = 2; n <= 24; n += 2) {
        term *= -a * a / (n * (n - 1));
        sum += term;
    }
    return x > 0.5 ? -sum : sum;
}

/* As get_lr of OptimizerParamScheduler in megatron/core/optimizer_param_scheduler.py, whose num_steps is step - 1. */
double settings_lr(const struct cli_training *t, int64_t step)
{
    double done = (double)(step - 1), warm = (double)t->warmup_iters, end = (double)t->decay_iters;
    if (t->warmup_iters && done <= warm)
        return t->lr * done / warm;
    if (!strcmp(t->lr_decay_style, "constant"))
        return t->lr;
    if (done > end)
        return t->min_lr;
    if (!strcmp(t->lr_decay_style, "inverse-square-root"))
        return fmax(t->min_lr, t->lr * sqrt(fmax(warm, 1)) / sqrt(fmax(done, 1)));
    double ratio = (done - warm) / (end - warm);
    double share = !strcmp(t->lr_decay_style, "linear") ? 1 - ratio : 0.5 * (cos_pi(ratio) + 1);
    return t->min_lr + share * (t->lr - t->min_lr);
}
