/* tools/dump/dump.c -- `verbatim dump`: every named intermediate value, as safetensors with a manifest. */
#include <stdlib.h>
#include <string.h>

#include "tools/dump/dump.h"
#include "tools/dump/gradients.h"

static int has_heads(const struct cli *c)
{
    return c->session.drafting.method && !strcmp(c->session.drafting.method, "parallel-heads");
}

/* Returns why these options do not go together, or NULL. */
static const char *refused(const struct cli *c)
{
    int drafts = c->draft_given && !c->draft_by_system;
    if (c->reference && (c->n > 0 || (drafts && !has_heads(c)) || c->draft_tokens >= 0 || c->context > 0 ||
                         cli_has_prefill(c, "onednn")))
        return "--reference computes one pass over the tokens; -n, --draft, --prefill onednn and --context do not go "
               "with it";
    if (c->n <= 0 && drafts && !c->reference)
        return "--draft wants -n: one pass drafts nothing";
    if (cli_has_prefill(c, "cublas"))
        return "dump sees values that the CPU computes, and --prefill cublas computes on a GPU; logits and eval have "
               "it";
    if (cli_has_tensor_cores(c))
        return "dump sees values that the CPU computes, and --precision tensor computes on a GPU; logits and eval have "
               "it";
    if (c->n <= 0 && cli_has_prefill(c, "onednn"))
        return "--prefill onednn wants -n: one pass that is not continued is not computed by oneDNN";
    return c->taps && !*c->taps ? "--taps is empty" : NULL;
}

static int run(struct cli *c)
{
    struct dump dump;
    int32_t *ids = NULL;
    size_t count, tensors;
    const char *wrong = refused(c);
    if (c->gradients)
        return gradients_dump(c);
    if (wrong)
        return cli_fail(c, EXIT_USAGE, "%s", wrong);
    if (c->draft_by_system && (c->reference || c->n <= 0))
        return cli_fail(c, EXIT_USAGE,
                        "--as %s also selects --draft %s, which wants -n N%s; for one pass without drafts, give "
                        "--convention as=%s instead of --as",
                        c->as, c->session.drafting.method, c->reference ? " and no --reference" : "", c->as);
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
    {"-o", "Write to OUT. If the name OUT ends in .safetensors, OUT is a file. Otherwise OUT is a directory, and "
           "dump.safetensors is "
           "created in it. The manifest is written to the same directory, and its name ends in .jsonl instead of "
           ".safetensors. Both files appear only when they are complete."},
    {"--stats", "Write one file of JSON lines instead of tensors and manifest; its name OUT must end in .jsonl. For "
                "each row, it has a hash, the "
                "smallest and largest number, mean, root mean square and four random projections; rows of at most 16 "
                "numbers, and integers, are written as they are. `diff` can compare the file with a dump, a model or "
                "another such file."},
    {"-n",
     "Also decode N tokens after the prompt (default 0). Each pass then has tensors of its own, called NAME@PASS."},
    {"--names", "Name the tensors as another system does: hf, llama.cpp, megatron, sglang or vllm. If the system has "
                "no name for a "
                "value, the value keeps Verbatim's name. For each tensor, the manifest lists the names in both "
                "systems."},
    {"--prefill-chunk", "Compute N tokens of the prompt in one pass (default: the whole prompt)."},
    {"--reference", "Write the values of the double-precision reference (F64) instead of the engine's values. The "
                    "reference computes one "
                    "pass only. With --draft parallel-heads, it computes these heads on all tokens, instead of the MTP "
                    "modules."},
    {"--json", "Print {\"out\": ..., \"tensors\": n} on stdout."},
    {NULL, NULL}};

const struct command command_dump = {
    "dump", "write every intermediate value to a safetensors file with a manifest",
    "MODEL --tokens IDS -o OUT [-n N] [--taps GLOB,...] [--names SYSTEM] [--reference] [OPTIONS]",
    "Computes one pass of the model over the tokens, and one pass of each MTP module over the same tokens. With -n, "
    "decodes more\n"
    "tokens after that. Values are named after the modules of Hugging Face's implementation, for example\n"
    "model.layers.3.self_attn.q_a_layernorm.output.\n"
    "The manifest has one line of JSON for each tensor. The line contains the tensor's name, layer, MTP depth, step, "
    "pass, shape,\n"
    "dtype, order of the RoPE dimensions and SHA-256. For each row of the tensor, the line also contains the sequence, "
    "token,\n"
    "index, RoPE position and cache slot. If the row is a draft, the line contains the number of the draft, whether it "
    "was\n"
    "accepted, and the number of the draft that it follows. This number is 0 if the draft follows a token that is not "
    "a draft.\n"
    "With --gradients, writes the gradients of the loss of the tokens instead: a tensor for each tensor of the "
    "checkpoint.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_TOKENS | TAKES_OUT | TAKES_LENGTH | TAKES_DRAFT | TAKES_TAPS | TAKES_REFERENCE |
        TAKES_NAMES | TAKES_PREFILL,
    run, notes, 0, NULL};
