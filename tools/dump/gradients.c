/* tools/dump/gradients.c -- `verbatim dump --gradients`. */
#include "tools/dump/gradients.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/train/trainer.h"
#include "reference/backward.h"
#include "tools/cli/file.h"
#include "tools/cli/filter.h"

int gradients_depths(const struct cli *c)
{
    int modules = vb_mtp_modules(c->model) < VB_MAX_DRAFT ? vb_mtp_modules(c->model) : VB_MAX_DRAFT;
    return c->mtp_num_layers >= 0 ? (int)c->mtp_num_layers : modules;
}

void gradients_close(struct gradients *g)
{
    if (g->close)
        g->close(g->owner);
    free(g->list);
    *g = (struct gradients){0};
}

static vb_tensor tensor_of(const char *name, int is_vector, size_t rows, size_t cols, const char *dtype, size_t size,
                           const void *data)
{
    vb_tensor t = {.name = name, .dtype = dtype, .ndim = is_vector ? 1 : 2, .data = data, .bytes = rows * cols * size};
    t.shape[0] = (int64_t)(is_vector ? cols : rows);
    t.shape[1] = is_vector ? 0 : (int64_t)cols;
    return t;
}

/* ---- the trainer ---- */

static void close_trainer(void *owner) { trainer_close(owner); }

int gradients_of_trainer(const struct cli *c, const int32_t *ids, size_t count, int depths, struct gradients *g)
{
    struct trainer_options o = {.part = TRAIN_MODEL, .depths = depths,
                                .mtp_loss_scaling_factor = c->mtp_loss_scaling_factor, .threads = c->session.threads,
                                .isa = c->session.isa};
    struct training_sequence text = {.tokens = ids, .count = count};
    struct training_losses losses;
    struct vb_trainer *t;
    vb_error err = {0};
    *g = (struct gradients){.depths = depths};
    if (trainer_open(&t, c->model, &o, &err))
        return cli_error(c, &err);
    g->owner = t;
    g->close = close_trainer;
    if (trainer_gradients(t, &text, 1, &losses, &err))
        return cli_error(c, &err);
    g->loss = losses.total;
    g->main_loss = losses.main;
    memcpy(g->by_depth, losses.by_depth, sizeof g->by_depth);
    g->list = cli_must(calloc(trainer_count(t), sizeof *g->list));
    for (size_t i = 0; i < trainer_count(t); i++) {
        const struct trained_tensor *x = trainer_tensor(t, i);
        if (x->g)
            g->list[g->count++] = tensor_of(x->name, x->dimensions == 1, x->rows, x->cols, "F32", sizeof *x->g, x->g);
    }
    return EXIT_DONE;
}

/* ---- the reference ---- */

struct owned_reference {
    struct reference *r;
    struct reference_gradients of;
};

static void close_reference(void *owner)
{
    struct owned_reference *x = owner;
    reference_gradients_close(&x->of);
    reference_close(x->r);
    free(x);
}

static int is_vector(const char *name) { return strstr(name, "norm.weight") != NULL; }

int gradients_of_reference(const struct cli *c, const int32_t *ids, size_t count, int depths, uint64_t perturb,
                           struct gradients *g)
{
    struct reference_loss_options o = {.depths = depths, .mtp_loss_scaling_factor = c->mtp_loss_scaling_factor,
                                       .perturb = perturb};
    struct reference_sequence text = {ids, (int)count, NULL};
    struct reference_losses losses;
    struct owned_reference *x = cli_must(calloc(1, sizeof *x));
    vb_error err = {0};
    *g = (struct gradients){.depths = depths};
    if (reference_open(&x->r, c->model_dir, NULL, &err)) {
        free(x);
        return cli_error(c, &err);
    }
    g->owner = x;
    g->close = close_reference;
    if (conventions_parse(&o.conventions, cli_facts(c).conventions, &err) ||
        reference_gradients_open(&x->of, x->r, &err) || reference_backward(x->r, &o, &text, 1, &losses, &x->of, &err))
        return cli_error(c, &err);
    g->loss = losses.total;
    g->main_loss = losses.main;
    memcpy(g->by_depth, losses.by_depth, sizeof g->by_depth);
    g->list = cli_must(calloc(x->of.count, sizeof *g->list));
    for (size_t i = 0; i < x->of.count; i++) {
        const struct reference_gradient *one = &x->of.of[i];
        g->list[g->count++] = tensor_of(one->name, is_vector(one->name), (size_t)one->rows, (size_t)one->cols, "F64",
                                        sizeof *one->data, one->data);
    }
    return EXIT_DONE;
}

/* ---- the files ---- */

/* NAME.jsonl for NAME.safetensors. The caller frees it. */
static char *line_path(const char *path)
{
    size_t stem = strlen(path) - strlen(".safetensors");
    char *line = cli_must(malloc(stem + 8));
    sprintf(line, "%.*s.jsonl", (int)stem, path);
    return line;
}

json_t *gradients_line(const char *path)
{
    if (!cli_ends_with(path, ".safetensors"))
        return NULL;
    char *name = line_path(path);
    struct stat st;
    FILE *f = !stat(name, &st) && S_ISREG(st.st_mode) ? fopen(name, "r") : NULL; /* opening a pipe would wait for a
                                                                                    writer */
    json_t *line = f ? json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const char *format = json_string_value(json_object_get(line, "format"));
    if (f)
        fclose(f);
    free(name);
    if (format && !strcmp(format, "verbatim-gradients") && json_is_array(json_object_get(line, "tokens")))
        return line;
    json_decref(line);
    return NULL;
}

static json_t *line_of(const struct cli *c, const struct gradients *g, const int32_t *ids, size_t count)
{
    json_t *tokens = cli_must(json_array()), *depths = cli_must(json_array());
    for (size_t i = 0; i < count; i++)
        json_array_append_new(tokens, json_integer(ids[i]));
    for (int k = 0; k < g->depths; k++)
        json_array_append_new(depths, json_real(g->by_depth[k]));
    return cli_must(json_pack("{s:s,s:i,s:o,s:i,s:f,s:f,s:f,s:o}", "format", "verbatim-gradients", "version", 1,
                              "tokens", tokens, "mtp_num_layers", g->depths, "mtp_loss_scaling_factor",
                              c->mtp_loss_scaling_factor, "loss", g->loss, "main_loss", g->main_loss,
                              "mtp_loss_by_depth", depths));
}

/* Writes both files, or none. */
static int write_files(const struct cli *c, const struct gradients *g, json_t *line)
{
    struct cli_file tensors, text;
    vb_error err = {0};
    char *path = line_path(c->out);
    int code = cli_check_file(c, "-o", path);
    if (code == EXIT_DONE && !cli_file_begin(c, &tensors, c->out))
        code = EXIT_OTHER;
    if (code == EXIT_DONE) {
        int rc = vb_tensors_write(tensors.file.fd, c->out, g->list, g->count, NULL, NULL, &err);
        code = rc ? cli_file_end(c, &tensors, &err) : cli_file_name(c, &tensors);
        if (code == EXIT_DONE && !cli_file_begin(c, &text, path)) {
            cli_file_drop(&tensors);
            code = EXIT_OTHER;
        } else if (code == EXIT_DONE) {
            char *all = cli_must(json_dumps(line, JSON_COMPACT));
            fprintf(text.stream.f, "%s\n", all);
            free(all);
            code = cli_file_end(c, &text, NULL);
            if (code != EXIT_DONE)
                cli_file_drop(&tensors);
        }
    }
    free(path);
    return code;
}

/* Leaves out the tensors that --taps and --layers do not choose. */
static void choose(const struct cli *c, struct gradients *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->count; i++) {
        int layer = -1;
        sscanf(g->list[i].name, "model.layers.%d.", &layer);
        if (cli_wants(c, g->list[i].name, layer))
            g->list[n++] = g->list[i];
    }
    g->count = n;
}

static int report(const struct cli *c, const struct gradients *g)
{
    if (c->json)
        return cli_print_json(json_pack("{s:s,s:I,s:f}", "out", c->out, "tensors", (json_int_t)g->count, "loss",
                                        g->loss));
    return EXIT_DONE;
}

int gradients_dump(struct cli *c)
{
    struct gradients g = {0};
    int32_t *ids = NULL;
    size_t count;
    if (c->n > 0 || c->stats || c->steps || c->names || c->draft_given)
        return cli_fail(c, EXIT_USAGE,
                        "--gradients are those of one text; -n, --draft, --stats, --steps and --names do not go with "
                        "it");
    if (!cli_ends_with(c->out, ".safetensors"))
        return cli_fail(c, EXIT_USAGE,
                        "--gradients writes a file of tensors, and -o is %s: wanted a name that ends in .safetensors",
                        c->out);
    int code = cli_check_file(c, "-o", c->out);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &ids, &count);
    if (code == EXIT_DONE)
        code = c->reference ? gradients_of_reference(c, ids, count, gradients_depths(c), 0, &g)
                            : gradients_of_trainer(c, ids, count, gradients_depths(c), &g);
    if (code == EXIT_DONE) {
        json_t *line = line_of(c, &g, ids, count);
        choose(c, &g);
        code = g.count ? write_files(c, &g, line)
                       : cli_fail(c, EXIT_USAGE, "--taps and --layers choose none of the gradients");
        json_decref(line);
    }
    code = code == EXIT_DONE ? report(c, &g) : code;
    gradients_close(&g);
    free(ids);
    return code;
}
