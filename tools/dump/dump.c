/* tools/dump/dump.c -- `verbatim dump`: every named intermediate value, as safetensors with a manifest. */
#include <stdlib.h>

#include "tools/dump/dump.h"

static int run(struct cli *c)
{
    struct dump dump;
    int32_t *ids = NULL;
    size_t count, tensors;
    const char *wrong = c->reference && (c->n > 0 || c->draft_given || c->draft_tokens >= 0 || c->context > 0 || c->session.prefill)
                            ? "--reference computes one pass over the tokens; -n, --draft, --prefill and --context do not go with it"
                        : c->n <= 0 && c->draft_given ? "--draft wants -n: one pass drafts nothing"
                        : c->n <= 0 && c->session.prefill ? "--prefill wants -n: one pass that is not continued is the contract's"
                        : c->taps && !*c->taps        ? "--taps is empty"
                                                      : NULL;
    if (wrong)
        return cli_fail(c, EXIT_USAGE, "%s", wrong);
    int code = dump_begin(c, &dump, c->out, c->taps);
    if (code != EXIT_DONE)
        return code;
    code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &ids, &count);
    dump.naming = c->names ? naming_find(c->names) : NULL;
    if (code == EXIT_DONE)
        code = dump_values(c, &dump, ids, count, 0);
    if (code != EXIT_DONE)
        dump_abandon(&dump);
    else if ((code = dump_end(&dump, &tensors)) == EXIT_DONE && c->json)
        code = cli_print_json(json_pack("{s:s,s:I}", "out", c->out, "tensors", (json_int_t)tensors));
    free(ids);
    return code;
}

static const struct note notes[] = {
    {"-o", "Write to OUT: a name that ends in .safetensors, or a directory, which gets dump.safetensors. The manifest is written beside it and "
           "ends in .jsonl. The files appear under these names only when they are complete."},
    {"-n", "Also decode N tokens after the prompt (default 0): each pass then has tensors of its own, NAME@PASS."},
    {"--names", "Write tensors under the names of another system: hf, llama.cpp, megatron, sglang or vllm. Where it has no name, ours is used. "
                "The manifest has both."},
    {"--prefill-chunk", "Compute N tokens of the prompt in one pass (default: the whole prompt)."},
    {"--reference", "Write the values of the reference, in double precision (F64), of one pass."},
    {"--json", "Print {\"out\": ..., \"tensors\": n} on stdout."},
    {NULL, NULL}};

const struct command command_dump = {
    "dump", "write every intermediate value to a safetensors file with a manifest",
    "MODEL --tokens IDS -o OUT [-n N] [--taps GLOB,...] [--names SYSTEM] [--reference] [OPTIONS]",
    "Computes one pass over the tokens, and one of each MTP module over the same tokens; with -n it decodes after that. Values are\n"
    "named after Hugging Face's modules: model.layers.3.self_attn.q_a_layernorm.output. The manifest has a line for each tensor:\n"
    "name, layer, MTP depth, step, pass, shape, dtype, layout of RoPE rows, SHA-256, and for each row its sequence, token, index,\n"
    "position, slot, the number of the draft, whether it was accepted, and the draft that it follows (0: the last committed token).\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_TOKENS | TAKES_OUT | TAKES_LENGTH | TAKES_DRAFT | TAKES_TAPS | TAKES_REFERENCE | TAKES_NAMES |
        TAKES_PREFILL,
    run, notes, 0, NULL};
