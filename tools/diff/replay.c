/* tools/diff/replay.c -- `verbatim replay`: computes operators of the engine or of the reference on the inputs that a
 * file contains. */
#include "tools/diff/replay.h"

#include <string.h>

/* --- the list of operators --- */

static const char *const place_of[] = {[OF_PASS] = "model", [OF_LAYER] = "layer", [OF_MODULE] = "mtp"};

/* Prints one operator, or adds it to `all`. */
static void add(const struct cli *c, json_t *all, const char *operator, const char * place, const char *output,
                const char *const *inputs, size_t most, const char *roundings)
{
    json_t *list = json_array();
    char text[512] = "";
    for (size_t k = 0; k < most && inputs[k]; k++) {
        json_array_append_new(list, json_string(inputs[k]));
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", k ? ", " : "", inputs[k]);
    }
    if (!c->json)
        printf("%-26s %-6s %-38s %s\n", operator, place, output, text);
    json_array_append_new(all, json_pack("{s:s,s:s,s:s,s:o,s:s}", "operator", operator, "in", place, "output", output,
                                         "inputs", list, "roundings", roundings));
}

static int list(const struct cli *c)
{
    json_t *all = json_array();
    const struct reference_operator *o;
    if (!c->json)
        printf("%-26s %-6s %-38s %s\n", "operator", "in", "output", "inputs");
    for (size_t i = 0; (o = reference_operator_at(i)); i++) {
        char text[REFERENCE_INPUTS][128];
        const char *inputs[REFERENCE_INPUTS] = {NULL};
        for (size_t k = 0; k < REFERENCE_INPUTS && reference_operator_sources(o, k, text[k]); k++)
            inputs[k] = text[k];
        add(c, all, o->name, place_of[o->row->place], o->row->name, inputs, REFERENCE_INPUTS, o->counted);
    }
    const struct replay_choice *choice;
    for (size_t i = 0; (choice = replay_choice_at(i)); i++)
        add(c, all, choice->operator, "model", choice->output, choice->inputs, 8, "");
    if (c->json)
        return cli_print_json(json_pack("{s:o}", "operators", all));
    json_decref(all);
    puts("\n<kept: the positions to which each row attends, in models with sparse attention. <layer: what the layer "
         "reads. "
         "<hidden: the hidden states that an MTP module reads. NAME?: only if the model has it. NAME | OTHER: OTHER in "
         "models without NAME.");
    return EXIT_DONE;
}

/* --- one operator --- */

/* Finds the complete name of the result of the operator c->other in layer c->layer. */
static int find_output(const struct cli *c, const struct reference *r, char name[NAMING_ROOM])
{
    const struct reference_operator *o;
    int layer, expert;
    for (size_t i = 0; (o = reference_operator_at(i)); i++) {
        const char *output = o->row->name;
        if (strcmp(c->other, o->name) && strcmp(c->other, output))
            continue;
        snprintf(name, NAMING_ROOM, "%s", output);
        if (o->row->place != OF_PASS && c->layer >= 0)
            snprintf(name, NAMING_ROOM, "model.layers.%lld.%s", c->layer, output);
        const struct reference_operator *found = reference_operator_of(r, name, &layer, &expert);
        if (found && !strcmp(found->name, o->name) && (layer >= 0) == (c->layer >= 0))
            return EXIT_DONE;
    }
    snprintf(name, NAMING_ROOM, "model.layers.%lld.%.250s", c->layer, c->other); /* one of the experts */
    if (c->layer >= 0 && reference_operator_of(r, name, &layer, &expert))
        return EXIT_DONE;
    return cli_fail(c, EXIT_USAGE, "%s has no operator %s %s; `verbatim replay` lists them%s", c->model_dir, c->other,
                    c->layer < 0 ? "outside of the layers (--layer L says which layer)" : "in this layer",
                    strcmp(c->other, "expert") ? "" : ", and an expert is mlp.experts.E.output");
}

/* Writes the results to c->out, and releases *t. */
static int finish(const struct cli *c, struct tensors *t)
{
    struct cli_file file;
    vb_error err = {0};
    int code = cli_file_begin(c, &file, c->out) ? EXIT_DONE : EXIT_OTHER;
    if (code == EXIT_DONE) {
        int failed = tensors_write(t, file.stream.fd, c->out, &err);
        code = cli_file_end(c, &file, failed ? &err : NULL);
    }
    return code;
}

static int replay(struct cli *c, struct diff_side *side, struct reference *r)
{
    struct tensors t;
    char name[NAMING_ROOM];
    size_t left_out = 0;
    const struct replay_choice *choice = replay_choice_of(c->other);
    int all = !strcmp(c->other, "all"), code = all || choice ? EXIT_DONE : find_output(c, r, name), error;
    if (choice && (c->reference || c->layer >= 0))
        code = cli_fail(c, EXIT_USAGE, "%s does not go with %s, which the engine computes outside of the layers",
                        c->reference ? "--reference" : "--layer", c->other);
    if (code != EXIT_DONE)
        return code;
    if ((error = tensors_begin(&t, c->out)))
        return cli_fail(c, EXIT_OTHER, "%s: %s", c->out, strerror(error));
    code = choice ? replay_choose(c, side, choice, &t) : replay_values(c, side, r, all ? NULL : name, &t, &left_out);
    if (code == EXIT_DONE)
        code = finish(c, &t);
    if (code == EXIT_DONE && c->json)
        code = cli_print_json(json_pack("{s:s,s:I,s:I}", "out", c->out, "results", (json_int_t)t.count, "left_out",
                                        (json_int_t)left_out));
    else if (code == EXIT_DONE && all)
        printf("%zu results\n", t.count);
    if (code == EXIT_DONE && all && left_out && !c->json)
        printf("%zu values were left out: %s lacks inputs of their operators%s\n", left_out, c->input,
               c->reference ? "" : ", or the engine does not compute them alone");
    tensors_close(&t);
    return code;
}

static int run(struct cli *c)
{
    struct diff_side side = {0};
    struct reference *r = NULL;
    vb_error err = {0};
    if (!c->model_dir)
        return list(c);
    if (!c->other || !c->input)
        return cli_fail(c, EXIT_USAGE, "%s is missing; see verbatim replay --help", c->other ? "--input" : "OP");
    if (c->absorbed && c->expanded)
        return cli_fail(c, EXIT_USAGE, "--absorbed and --expanded are two forms of attention");
    int code = cli_check_file(c, "-o", c->out);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        code = diff_read(c, &side, c->input, c->names ? naming_find(c->names) : NULL, cli_facts(c).layers);
    if (code == EXIT_DONE && !replay_choice_of(c->other) && reference_open(&r, c->model_dir, NULL, &err))
        code = cli_error(c, &err);
    if (code == EXIT_DONE && r)
        replay_align(c, &side, r);
    if (code == EXIT_DONE)
        code = replay(c, &side, r);
    reference_close(r);
    diff_close(&side);
    return code;
}

static const struct note notes[] = {
    {"-o", "Write the result to OUT, a safetensors file. Numbers are F32, or F64 with --reference; tokens, experts and "
           "groups are I32."},
    {"--layout-a", "Specify the order of the RoPE dimensions in q_rope and k_rope of FILE, if it has no manifest: "
                   "interleaved or halves. In "
                   "OUT, they have the order of the checkpoint."},
    {"--layer", "Use the weights of layer L. With OP all: compute only the values of layer L."},
    {"--reference", "Compute in double precision with the reference. Without this option, the engine computes the "
                    "operator in f32, with the "
                    "bits of its passes."},
    {"--json", "Print {\"out\": OUT, \"results\": n, \"left_out\": n}. left_out: with OP all, how many values of FILE "
               "have an operator, "
               "but could not be computed. Without MODEL: print {\"operators\": [{operator, in, output, inputs, "
               "roundings}]}."},
    {NULL, NULL}};

const struct command command_replay = {
    "replay", "compute one operator on recorded inputs",
    "[--json]\nMODEL OP [--layer L] --input FILE -o OUT [--reference] [OPTIONS]",
    "Without MODEL, lists the operators, the name of the result of each, and the names of its inputs.\n"
    "With MODEL, computes the operator OP with the weights of layer L, on the inputs that FILE contains. FILE is a "
    "safetensors file\n"
    "with the inputs under their complete names, such as model.layers.1.input_layernorm.output: a dump of Verbatim or "
    "of another\n"
    "engine, or a file with these tensors only. OP is the name of an operator or of its result, for example q_a_proj, "
    "mlp.output or\n"
    "mlp.experts.3.output. Without --layer, OP is an operator outside of the layers. MTP module k is layer "
    "num_hidden_layers + k.\n"
    "If the inputs have the bits of a dump of the engine, the result has the bits of this dump too.\n"
    "OP may be `all`: each value of FILE is then computed from its inputs in FILE, and `diff` can compare OUT with "
    "FILE.\n"
    "OP may be `sampling` or `acceptance`: tokens are then chosen from logits, or drafts verified, by the rules of the "
    "engine. The\n"
    "options are those of `generate`. docs/ORACLE.md describes the tensors of FILE and OUT.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_OUT | TAKES_NAMES | TAKES_NO_MODEL | TAKES_REFERENCE | TAKES_REPLAY |
        TAKES_SAMPLING | TAKES_ACCEPTANCE,
    run, notes, 0, NULL};
