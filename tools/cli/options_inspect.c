/* tools/cli/options_inspect.c -- the options of commands that compare, measure and convert. */
#include <stddef.h>

#include "tools/cli/options.h"

#define AT(field) offsetof(struct cli, field)

const struct option options_to_inspect[] = {
    /* ---- dumps and comparisons ---- */
    {"--taps", NULL, "GLOB,...", COMPARE_OPTIONS, TAKES_TAPS, TEXT_VALUE, AT(taps), 0, 0,
     "Write only values whose names match: '*.mlp.gate.*,lm_head.output' (default: all but attention scores)."},
    {"--reference", NULL, NULL, COMPARE_OPTIONS, TAKES_REFERENCE, FLAG, AT(reference), 0, 0,
     "Compute with the reference in double precision instead of the engine."},
    {"--names", NULL, "SYSTEM", COMPARE_OPTIONS, TAKES_NAMES | TAKES_AGAINST, TEXT_VALUE, AT(names), 0, 0,
     "The values in the dump have the names of another system: hf, llama.cpp, megatron, sglang or vllm. Where that system has no name for a "
     "value, ours is used."},
    {"--against", NULL, "DUMP", COMPARE_OPTIONS, TAKES_AGAINST, TEXT_VALUE, AT(against), 0, 0,
     "Find the conventions that reproduce this dump. It may be ours or another engine's. The exit code is 3 when none do."},
    {"--bits", NULL, NULL, COMPARE_OPTIONS, TAKES_DIFF, FLAG, AT(bits), 0, 0,
     "Count rounding as a difference: the exit code is then 3."},
    {"--all", NULL, NULL, COMPARE_OPTIONS, TAKES_DIFF, FLAG, AT(all), 0, 0,
     "List every value in the table, not only those that differ."},
    {"--runs", NULL, "N", COMPARE_OPTIONS, TAKES_DIFF, LONG_VALUE, AT(runs), 0, 1000,
     "Measure the bound of rounding with N perturbed runs of the reference (default 8). 0 estimates it from dtype and depth."},
    {"--model", NULL, "DIR", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(model_of_bound), 0, 0,
     "Measure the bound with this model when A and B are both dumps."},
    {"--arithmetic", NULL, "DTYPE", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(arithmetic), 0, 0,
     "The arithmetic of the coarser side: f32, f16 or bf16 (default: the dtype in which its values are stored). Use bf16 also for an engine "
     "that rounds to groups of 8 bits."},
    {"--layout-a", NULL, "LAYOUT", COMPARE_OPTIONS, TAKES_DIFF | TAKES_AGAINST, TEXT_VALUE, AT(layout_a), 0, 0,
     "How the first dump stores q_rope and k_rope when it has no manifest: interleaved or halves."},
    {"--layout-b", NULL, "LAYOUT", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(layout_b), 0, 0, "How the second dump stores q_rope and k_rope when it has no manifest: interleaved or halves."},

    /* ---- checks and measurements ---- */
    {"--all", NULL, NULL, MEASURE_OPTIONS, TAKES_ALL, FLAG, AT(all), 0, 0,
     "Run every combination of the settings. This takes long."},
    {"--check", NULL, NULL, MEASURE_OPTIONS, TAKES_CHECK, FLAG, AT(check), 0, 0,
     "Read every byte: weights and scales must be finite, and copies in MTP layers are compared with the originals."},
    {"--mtp-loss-scaling-factor", NULL, "X", MEASURE_OPTIONS, TAKES_EVAL, DOUBLE_VALUE, AT(mtp_loss_scaling_factor), 0, 0,
     "The loss is main + X times the mean over the MTP depths (default 0.1, as in Megatron)."},
    {"--held-out", NULL, "TEXT", MEASURE_OPTIONS, TAKES_DEMO, TEXT_VALUE, AT(held_out), 0, 0,
     "Also measure a second prompt, one that the model has not read in training. It has a table of its own, and its text is not shown."},
    {"--large", NULL, NULL, MEASURE_OPTIONS, TAKES_DEMO, FLAG, AT(large), 0, 0,
     "Also measure drafting on a model that is larger than caches, in q8 and bf16. A checkpoint of 656 MB is generated in $TMPDIR, opened and "
     "removed. This takes half a minute."},
    {"--rounds", NULL, "N", MEASURE_OPTIONS, TAKES_BENCH | TAKES_DEMO, LONG_VALUE, AT(rounds), 1, 1 << 20,
     "Measure N times after one round that warms up, at most 64 (default 9)."},
    {"--only", NULL, "KIND,...", MEASURE_OPTIONS, TAKES_BENCH, TEXT_VALUE, AT(only), 0, 0,
     "Measure the machine and only these kinds: prefill, pass, linear, attention, generate."},
    {"--long", NULL, NULL, MEASURE_OPTIONS, TAKES_BENCH, FLAG, AT(longer), 0, 0,
     "Measure with up to 16384 tokens too. This takes minutes."},
    {"--force-accept", NULL, "P", MEASURE_OPTIONS, TAKES_BENCH, DOUBLE_VALUE, AT(force_accept), 0, 0,
     "Force only this probability that a draft is right (default: 0.6, 0.8 and 1 in turn)."},
    {"--svg", NULL, "FILE", MEASURE_OPTIONS, TAKES_BENCH, TEXT_VALUE, AT(svg), 0, 0,
     "Write a picture to FILE: speed-up against acceptance for each K, beside its limit."},

    /* ---- quantising ---- */
    {"--type", NULL, "TYPE", QUANTISE_OPTIONS, TAKES_QUANTIZE, TEXT_VALUE, AT(type), 0, 0,
     "How linear layers, experts and heads are stored: f32, bf16, q8_0 or q4_0. q8_0 and q4_0 store 32 integers of 8 or 4 bits with a "
     "scale; a matrix whose rows are no multiple of 32 numbers stays as it is stored (FP8 becomes F32) and is named."},
    {"--embedding-type", NULL, "TYPE", QUANTISE_OPTIONS, TAKES_QUANTIZE, TEXT_VALUE, AT(embedding_type), 0, 0,
     "How the embedding is stored: as-stored, f32, bf16, q8_0 or q4_0 (default as-stored)."},
    {"--head-type", NULL, "TYPE", QUANTISE_OPTIONS, TAKES_QUANTIZE, TEXT_VALUE, AT(head_type), 0, 0,
     "How the output heads are stored, those of MTP modules too: the same names (default: the same as --type)."},
    {0},
};
