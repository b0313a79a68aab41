/* tools/diff/replay.c -- `verbatim replay`: computes one operator of the reference on the inputs that a file contains. */
#include "tools/diff/local.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/tensors.h"

/* --- the list of operators --- */

static const char *place_of(const struct reference_operator *o)
{
    return o->place == REFERENCE_WHOLE ? "model" : o->place == REFERENCE_MODULE ? "mtp" : "layer";
}

static int list(const struct cli *c)
{
    json_t *all = json_array();
    const struct reference_operator *o;
    if (!c->json)
        printf("%-26s %-6s %-38s %s\n", "operator", "in", "output", "inputs");
    for (size_t i = 0; (o = reference_operator_at(i)); i++) {
        json_t *inputs = json_array();
        char text[256] = "";
        for (int k = 0; k < REFERENCE_INPUTS && o->inputs[k]; k++) {
            json_array_append_new(inputs, json_string(o->inputs[k]));
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", k ? ", " : "", o->inputs[k]);
        }
        if (!c->json)
            printf("%-26s %-6s %-38s %s\n", o->name, place_of(o), o->output, text);
        json_array_append_new(all, json_pack("{s:s,s:s,s:s,s:o,s:s}", "operator", o->name, "in", place_of(o), "output", o->output, "inputs",
                                             inputs, "roundings", o->counted));
    }
    if (c->json)
        return cli_print_json(json_pack("{s:o}", "operators", all));
    json_decref(all);
    puts("\n<layer: what the layer reads. <hidden: the hidden states that an MTP module reads. NAME?: only if the model has it.");
    return EXIT_DONE;
}

/* --- one operator --- */

/* Finds the complete name of the result of the operator c->other in layer c->layer. */
static int find_output(const struct cli *c, const struct reference *r, char name[NAMING_ROOM])
{
    const struct reference_operator *o;
    int layer, expert;
    for (size_t i = 0; (o = reference_operator_at(i)); i++) {
        if (strcmp(c->other, o->name) && strcmp(c->other, o->output))
            continue;
        snprintf(name, NAMING_ROOM, "%s", o->output);
        if (o->place != REFERENCE_WHOLE && c->layer >= 0)
            snprintf(name, NAMING_ROOM, "model.layers.%lld.%s", c->layer, o->output);
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

/* Writes the rows from `base` to `end`, as F64, or as I32 if the operator chooses. */
static int write_rows(const struct cli *c, const struct reference_call *k, const char *name, size_t base, size_t end, size_t width)
{
    struct tensors t;
    struct cli_file file;
    vb_error err = {0};
    size_t shape[2] = {end - base, width}, n = shape[0] * width;
    int32_t *integers = cli_must(malloc((n + 1) * sizeof *integers));
    int error = tensors_begin(&t, c->out), chooses = k->op->chooses;
    for (size_t i = 0; i < n && chooses; i++)
        integers[i] = (int32_t)k->out[base * width + i];
    if (error) {
        free(integers);
        return cli_fail(c, EXIT_OTHER, "%s: %s", c->out, strerror(error));
    }
    tensors_add(&t, name, chooses ? "I32" : "F64", shape, 2, chooses ? (const void *)integers : k->out + base * width,
                n * (chooses ? sizeof *integers : sizeof *k->out));
    int code = cli_file_begin(c, &file, c->out) ? EXIT_DONE : EXIT_OTHER;
    if (code == EXIT_DONE) {
        int failed = tensors_write(&t, file.stream.fd, c->out, &err);
        code = cli_file_end(c, &file, failed ? &err : NULL);
    }
    tensors_close(&t);
    free(integers);
    return code;
}

static int compute(const struct cli *c, struct local_values *v, const char *name)
{
    struct reference_call k = {.absorbed = c->absorbed};
    int layer, depth = -1, L = reference_config(v->r)->num_hidden_layers, code = EXIT_DONE;
    char merged[200] = "";
    k.op = reference_operator_of(v->r, name, &layer, &k.expert);
    k.layer = layer;
    depth = layer >= L ? layer - L : -1;
    size_t width = k.op->width(reference_config(v->r), layer), base = local_base(v, depth);
    unsigned char *present = cli_must(calloc(v->rows + 1, 1));
    if (!local_inputs(v, 0, k.op, layer, &k, present, merged)) {
        free(present);
        return cli_fail(c, EXIT_OTHER, "%s has no %s, which is an input of %s", c->input, v->missing, name);
    }
    if (*merged)
        code = cli_fail(c, EXIT_OTHER, "%s lacks an input of %s: it would have to be computed by %s", c->input, name, merged);
    size_t end = base;
    for (size_t s = base; s < v->rows && code == EXIT_DONE; s++)
        if (present[s] && s > end)
            code = cli_fail(c, EXIT_OTHER, "%s: an input of %s has no row %zu", c->input, name, end - base);
        else
            end += present[s];
    if (code == EXIT_DONE && end == base)
        code = cli_fail(c, EXIT_OTHER, "%s: an input of %s has no row 0", c->input, name);
    k.out = cli_must(calloc(v->rows * width + 1, sizeof *k.out));
    if (code == EXIT_DONE) {
        local_compute(v, &k, depth, NULL);
        code = write_rows(c, &k, name, base, end, width);
    }
    for (int i = 0; i < REFERENCE_INPUTS; i++)
        free((void *)(uintptr_t)k.in[i]);
    free(k.out);
    free(present);
    return code;
}

static int replay(struct cli *c, struct diff_side *side, struct reference *r)
{
    struct local_values v = {.side = side, .r = r, .ids = side->tokens, .id_count = side->token_count, .arithmetic = 0x1p-24,
                             .dtype = DIFF_F32};
    vb_model_facts facts = cli_facts(c);
    struct reference_options o = {0};
    vb_error err = {0};
    char name[NAMING_ROOM];
    int code = find_output(c, r, name);
    if (code != EXIT_DONE)
        return code;
    for (size_t i = 0; i < side->count; i++)
        for (size_t k = 0; k < side->series[i].count; k++)
            if ((size_t)side->series[i].rows[k].index + 2 > v.rows)
                v.rows = (size_t)side->series[i].rows[k].index + 2;
    int layer, expert, L = reference_config(r)->num_hidden_layers; /* MTP depth k reads the tokens that are k + 1 places later */
    reference_operator_of(r, name, &layer, &expert);
    size_t ahead = layer >= L ? (size_t)(layer - L + 1) : 0;
    if (!v.rows && side->token_count > ahead)
        v.rows = side->token_count - ahead + 1;
    if (v.rows < 2)
        return cli_fail(c, EXIT_OTHER, "%s has no rows", c->input);
    if (conventions_parse(&o.conventions, facts.conventions, &err) || precision_parse(&o.precision, facts.precision, &err) ||
        cache_type_parse(&o.cache_type, facts.cache_type, &err))
        return cli_error(c, &err);
    v.conventions = o.conventions;
    if (reference_bench_open(&v.bench, r, &o, (int)v.rows, &err))
        return cli_error(c, &err);
    code = compute(c, &v, name);
    local_forget(&v, 0, INT_MAX);
    free(v.list[0]);
    reference_bench_close(v.bench);
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
    int code = cli_check_file(c, "-o", c->out);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE)
        code = diff_read(c, &side, c->input, c->names ? naming_find(c->names) : NULL, cli_facts(c).layers);
    if (code == EXIT_DONE && reference_open(&r, c->model_dir, NULL, &err))
        code = cli_error(c, &err);
    if (code == EXIT_DONE) {
        diff_expert_rows(&side);
        code = replay(c, &side, r);
    }
    if (code == EXIT_DONE && c->json)
        code = cli_print_json(json_pack("{s:s}", "out", c->out));
    reference_close(r);
    diff_close(&side);
    return code;
}

static const struct note notes[] = {
    {"-o", "Write the result to OUT, a safetensors file. Numbers are F64; chosen experts and groups are I32."},
    {"--names", "If FILE has no manifest: its tensors have the names of this system: hf, llama.cpp, megatron, sglang or vllm."},
    {"--json", "Print {\"out\": OUT}. Without MODEL: print {\"operators\": [{operator, in, output, inputs, roundings}]}."},
    {NULL, NULL}};

const struct command command_replay = {
    "replay", "compute one operator on recorded inputs, in double precision",
    "[--json]\nMODEL OP [--layer L] --input FILE -o OUT [OPTIONS]",
    "Without MODEL, lists the operators, the name of the result of each, and the names of its inputs.\n"
    "With MODEL, computes the operator OP with the weights of layer L, on the inputs that FILE contains. FILE is a safetensors file\n"
    "with the inputs under their complete names, such as model.layers.1.input_layernorm.output: a dump of Verbatim or of another\n"
    "engine, or a file with these tensors only. OP is the name of an operator or of its result, for example q_a_proj, mlp.output or\n"
    "mlp.experts.3.output. Without --layer, OP is an operator outside of the layers. MTP module k is layer num_hidden_layers + k.\n"
    "The reference computes the operator. `diff --local` judges a dump by the same functions.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_OUT | TAKES_NAMES | TAKES_NO_MODEL | TAKES_REPLAY, run, notes, 0, NULL};
