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

const struct command command_dump = {
    "dump", "every named intermediate value, to safetensors with a manifest",
    "usage: verbatim dump MODEL --tokens IDS -o OUT [-n N] [--taps GLOB,...] [--names SYSTEM] [--reference] [OPTIONS]\n\n"
    "One pass over IDS, also of the MTP modules, which read the tokens themselves; with -n, decoding after it. OUT is a file\n"
    "that ends in .safetensors or a directory, which gets dump.safetensors. Beside it the manifest, .jsonl: a line per tensor\n"
    "with its name, layer, MTP depth, step, pass, shape, dtype, layout of RoPE rows, SHA-256, and per row sequence, token,\n"
    "index, position, slot, number of the draft, accepted, the draft that it follows (0: the last committed token).\n"
    "Names are Hugging Face's module paths: model.layers.3.self_attn.q_a_layernorm.output.\n\n"
    "  --tokens IDS           5,6,7 or @FILE\n"
    "  -o OUT                 written under other names first, renamed when whole\n"
    "  --force                replace files that exist\n"
    "  --taps GLOB,...        only these names: '*.mlp.gate.*,lm_head.output'; without it all but attention scores\n"
    "  -n N                   also decode N tokens: a tensor per pass, NAME@PASS\n"
    "  --names SYSTEM         tensors under the names of hf, llama.cpp, megatron, sglang or vllm, ours where one has none;\n"
    "                         the manifest has both\n"
    "  --reference            the reference's values in double (F64), of one pass\n"
    "  --draft METHOD         with -n: none, mtp-vanilla, mtp-eagle, eagle-reroll, eagle-keep, ngram, ...; --draft-tokens K, --draft-topk, ...,\n"
    "                         as for generate\n"
    "  --speculative-config, --plugin-params, --spec_decode_algo, --spec-type, ...    the same, as generate takes it too\n"
    "  --prefill onednn       with -n: oneDNN reads the prompt\n"
    "  --ignore-eos           go on after an end token\n"
    "  --json                 {\"out\": ..., \"tensors\": n} on stdout\n"
    "--threads, --isa, --precision, --repack, --numa, --mlock, --prefill-chunk, --context, --convention, --as: as for generate; without --prefill-chunk the prompt is one pass.\n",
    TAKES_COMPUTE | TAKES_TOKENS | TAKES_OUT | TAKES_LENGTH | TAKES_DRAFT | TAKES_TAPS |
        TAKES_REFERENCE | TAKES_NAMES | TAKES_PREFILL,
    run};
