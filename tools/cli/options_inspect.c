/* tools/cli/options_inspect.c -- the options of commands that compare, measure and convert. */
#include <stddef.h>

#include "tools/cli/options.h"

#define AT(field) offsetof(struct cli, field)

const struct option options_to_inspect[] = {
    /* ---- dumps and comparisons ---- */
    {"--taps", NULL, "GLOB,...", COMPARE_OPTIONS, TAKES_TAPS | TAKES_DIFF, LIST_VALUE, AT(taps), 0, 0,
     "Write only values whose names match one of these patterns, for example '*.mlp.gate.*,lm_head.output' (default: "
     "all values except attention scores). The option may be given several times."},
    {"--layers", NULL, "RANGES", COMPARE_OPTIONS, TAKES_TAPS | TAKES_DIFF, TEXT_VALUE, AT(layers), 0, 0,
     "Write or compare only values of these layers, for example 0-3,7. MTP module k is layer num_hidden_layers + k. "
     "Values outside of the layers are then left out."},
    {"--steps", NULL, "RANGES", COMPARE_OPTIONS, TAKES_TAPS | TAKES_DIFF, TEXT_VALUE, AT(steps), 0, 0,
     "Write or compare only values of these steps, for example 0,2-4. Step 0 computes the prompt, and step r is round "
     "r of decoding. `diff` finds the step of a row in the manifest: `step` or, if a line has none, `pass`."},
    {"--stats", NULL, NULL, COMPARE_OPTIONS, TAKES_TAPS, FLAG, AT(stats), 0, 0,
     "Write statistics of each row instead of the tensors: a file of kilobytes that `diff` can compare as far as "
     "statistics go."},
    {"--gradients", NULL, NULL, COMPARE_OPTIONS, TAKES_TAPS | TAKES_DIFF, FLAG, AT(gradients), 0, 0,
     "Write or compare the gradients of the loss of the tokens instead of values: a tensor for each tensor of the "
     "checkpoint, with the same name. `diff` needs this option only for files of other programs, beside which no file "
     "of Verbatim lies."},
    {"--mtp-num-layers", NULL, "D", COMPARE_OPTIONS, TAKES_TAPS | TAKES_DIFF, LONG_VALUE, AT(mtp_num_layers), 0,
     VB_MAX_DRAFT,
     "With gradients: the loss has D MTP depths (default: as many as the model has MTP modules, or as a file of "
     "gradients says)."},
    {"--mtp-loss-scaling-factor", NULL, "F", COMPARE_OPTIONS, TAKES_TAPS | TAKES_DIFF, DOUBLE_VALUE,
     AT(mtp_loss_scaling_factor), 0, 0,
     "With gradients: the loss is the main loss plus F times the mean loss of the MTP depths (default 0.1, as in "
     "Megatron, or as a file of gradients says)."},
    {"--reference", NULL, NULL, COMPARE_OPTIONS, TAKES_REFERENCE, FLAG, AT(reference), 0, 0,
     "Compute with the double-precision reference instead of the engine."},
    {"--names", NULL, "SYSTEM|FILE", COMPARE_OPTIONS, TAKES_NAMES | TAKES_AGAINST, TEXT_VALUE, AT(names), 0, 0,
     "Read or write the dump with the tensor names of another system: hf, llama.cpp, megatron, sglang or vllm. If the "
     "system has no name for a value, the value keeps Verbatim's name. To read a dump, a FILE may map names, with "
     "lines such as `blocks.{layer}.attn = model.layers.{layer}.self_attn.o_proj.output`."},
    {"--against", NULL, "DUMP", COMPARE_OPTIONS, TAKES_AGAINST, TEXT_VALUE, AT(against), 0, 0,
     "Find the conventions that reproduce DUMP, which Verbatim or another engine has written. The exit code is 3 if no "
     "conventions reproduce DUMP."},
    {"--against", NULL, "LOG", COMPARE_OPTIONS, TAKES_TRACE, TEXT_VALUE, AT(against), 0, 0,
     "Compare the passes with LOG, which another engine has written: a file of JSON lines, one object per pass. The "
     "keys are those of --json (round, pass, depth, module, accepted, context_length, input_ids, index, positions, "
     "slots, lm_head_indices), drafts (the drafts that the pass verifies) and tokens (those that it chooses). Missing "
     "keys are not compared. Slots may have other numbers, if each number always means the same slot. The exit code is "
     "3 if a pass differs."},
    {"--bits", NULL, NULL, COMPARE_OPTIONS, TAKES_DIFF, FLAG, AT(bits), 0, 0,
     "Treat rounding as a difference: the exit code is then 3 if any bit differs."},
    {"--require", NULL, "GLOB,...", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(require), 0, 0,
     "Each of these patterns must match the name of a value that was compared. If one matches none, the exit code is "
     "3. This finds names that the other engine spells differently."},
    {"--junit", NULL, "FILE", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(junit), 0, 0,
     "Also write the result to FILE in JUnit's XML format, with one test case per value and per operator."},
    {"--schedule", NULL, "KIND", COMPARE_OPTIONS, TAKES_TRACE, TEXT_VALUE, AT(schedule), 0, 0,
     "With async: simulate the bookkeeping of an asynchronous scheduler beside that of the passes: placeholders, "
     "computed tokens that assume accepted drafts, and reserved cache rows (default sync). Tokens and fingerprint are "
     "the same."},
    {"--dp", NULL, "N", COMPARE_OPTIONS, TAKES_TRACE, LONG_VALUE, AT(dp), 1, 64,
     "With --prompts: simulate N data-parallel ranks. Prompt i belongs to rank i modulo N, each rank has a batch and a "
     "cache of its own, and in each pass the ranks are padded to the same number of rows. Tokens and fingerprints are "
     "the same."},
    {"--html", NULL, "FILE", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(html), 0, 0,
     "Also write the result to FILE as a web page. The page needs no network."},
    {"--follow-choices", NULL, NULL, COMPARE_OPTIONS, TAKES_DIFF, FLAG, AT(follow_choices), 0, 0,
     "Let the MODEL take the experts that the other side chose, and attend to the tokens that the other side kept. "
     "Then all values are compared, also those after a tie-flip. A choice that "
     "rounding does not explain is structural."},
    {"--ties", NULL, "WHAT", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(ties), 0, 0,
     "Say what a tie-flip means: ok, report or fail. With ok, it counts as rounding. With report, it is listed, and "
     "the exit code is that of rounding. With fail, the exit code is 3. The default is report with --follow-choices, "
     "and else fail."},
    {"--layer", NULL, "L", COMPARE_OPTIONS, TAKES_REPLAY, LONG_VALUE, AT(layer), 0, 1 << 20,
     "Use the weights of layer L."},
    {"--input", NULL, "FILE", COMPARE_OPTIONS, TAKES_REPLAY, TEXT_VALUE, AT(input), 0, 0,
     "Read the inputs from this safetensors file."},
    {"--absorbed", NULL, NULL, COMPARE_OPTIONS, TAKES_REPLAY, FLAG, AT(absorbed), 0, 0,
     "Compute attention in the absorbed form, with the latents instead of keys and values of each head. This is the "
     "default of the engine."},
    {"--expanded", NULL, NULL, COMPARE_OPTIONS, TAKES_REPLAY, FLAG, AT(expanded), 0, 0,
     "Compute attention in the expanded form, with keys and values of each head. This is the default with "
     "--reference."},
    {"--local", NULL, NULL, COMPARE_OPTIONS, TAKES_DIFF, FLAG, AT(local), 0, 0,
     "Only judge each operator alone, on the dump's own inputs, and do not compare the values with those of the other "
     "side. This takes less time, and is not affected by a tie-flip."},
    {"--greedy", NULL, NULL, COMPARE_OPTIONS, TAKES_DIFF, FLAG, AT(greedy), 0, 0,
     "The dump's engine decoded greedily: a token of a later step is wrong if it does not have the largest logit of "
     "the row before it. The manifest must give the steps."},
    {"--all", NULL, NULL, COMPARE_OPTIONS, TAKES_DIFF, FLAG, AT(all), 0, 0,
     "List every value in the table, not only the values that differ."},
    {"--runs", NULL, "N", COMPARE_OPTIONS, TAKES_DIFF, LONG_VALUE, AT(runs), 0, 1000,
     "Measure how much rounding can change each value, with N runs of the reference that have small random "
     "perturbations (default 8). If N is 0, this bound is estimated from the dtype and the layer's depth, and no "
     "operator is judged alone."},
    {"--ranks", NULL, "N", COMPARE_OPTIONS, TAKES_DIFF, LONG_VALUE, AT(ranks), 1, 1 << 10,
     "The other engine has N tensor-parallel ranks (default 1). Each rank rounds its sums in o_proj and down_proj "
     "before they are added. When operators are judged alone, the bound then counts these roundings."},
    {"--gather", NULL, "NAME=HOW,...", COMPARE_OPTIONS, TAKES_DIFF, LIST_VALUE, AT(gather), 0, 0,
     "A dump has a file for each tensor-parallel rank: say how the ranks' values are joined whose names match the "
     "pattern NAME. HOW is concat:0 (rows), concat:1 (columns), sum, or rank:N (use rank N). The option may be given "
     "several times; the first pattern that matches counts. Values without a rule must be equal in all ranks, unless "
     "their shapes show shards."},
    {"--model", NULL, "DIR", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(model_of_bound), 0, 0,
     "When A and B are both dumps: measure the rounding bound with this model. When they are files of "
     "log-probabilities: measure how far BF16 moves the log-probabilities of this model."},
    {"--arithmetic", NULL, "DTYPE", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(arithmetic), 0, 0,
     "Specify the arithmetic of the less precise side: f32, f16 or bf16 (default: the dtype in which its values are "
     "stored). Also choose bf16 if one of the engines quantizes the inputs of linear layers to 8 bits."},
    {"--sequence", NULL, "N", COMPARE_OPTIONS, TAKES_DIFF | TAKES_AGAINST, LONG_VALUE, AT(sequence), 0, INT32_MAX,
     "Read only text N of dumps whose manifests list several texts, as batches have them, and compare it as text 0. "
     "Without this option, all texts of two dumps are compared; a model computes text 0."},
    {"--layout-a", NULL, "LAYOUT", COMPARE_OPTIONS, TAKES_DIFF | TAKES_AGAINST | TAKES_REPLAY, TEXT_VALUE, AT(layout_a),
     0, 0,
     "Specify the order of the RoPE dimensions in q_rope and k_rope of the first dump, if it has no manifest: "
     "interleaved or halves."},
    {"--layout-b", NULL, "LAYOUT", COMPARE_OPTIONS, TAKES_DIFF, TEXT_VALUE, AT(layout_b), 0, 0,
     "Specify the order of the RoPE dimensions in q_rope and k_rope of the second dump, if it has no manifest: "
     "interleaved or halves."},

    /* ---- checks and measurements ---- */
    {"--all", NULL, NULL, MEASURE_OPTIONS, TAKES_ALL, FLAG, AT(all), 0, 0,
     "Run every combination of the settings. This takes long."},
    {"--check", NULL, NULL, MEASURE_OPTIONS, TAKES_CHECK, FLAG, AT(check), 0, 0,
     "Read every byte. Check that all weights and scales are finite. If an MTP layer has its own copy of the embedding "
     "or of the output head, compare the copy with the tensor of the main model."},
    {"--mtp-loss-scaling-factor", NULL, "X", MEASURE_OPTIONS, TAKES_EVAL, DOUBLE_VALUE,
     AT(mtp_loss_scaling_factor), 0, 0,
     "Compute the total loss as the main loss plus X times the mean loss of the MTP depths (default 0.1, as in "
     "Megatron)."},
    {"--held-out", NULL, "TEXT", MEASURE_OPTIONS, TAKES_DEMO, TEXT_VALUE, AT(held_out), 0, 0,
     "Also measure with a second prompt, such as a text that the model has not seen in training. A separate table "
     "shows the results of the second prompt. The text that is generated after the second prompt is not printed."},
    {"--large", NULL, NULL, MEASURE_OPTIONS, TAKES_DEMO, FLAG, AT(large), 0, 0,
     "Also measure drafting on a model that is larger than the CPU caches, in q8 and bf16. For this, a checkpoint of "
     "656 MB is generated in $TMPDIR, opened and deleted, which takes half a minute."},
    {"--rounds", NULL, "N", MEASURE_OPTIONS, TAKES_BENCH | TAKES_DEMO, LONG_VALUE, AT(rounds), 1, 1 << 20,
     "Measure N times, at most 64 (default 9). One additional round before these warms up the machine."},
    {"--only", NULL, "KIND,...", MEASURE_OPTIONS, TAKES_BENCH, TEXT_VALUE, AT(only), 0, 0,
     "Measure the machine and only these kinds: prefill, pass, linear, attention, generate, batch."},
    {"--long", NULL, NULL, MEASURE_OPTIONS, TAKES_BENCH, FLAG, AT(longer), 0, 0,
     "Also measure with up to 16384 tokens. This takes minutes."},
    {"--plan", NULL, NULL, MEASURE_OPTIONS, TAKES_BENCH, FLAG, AT(plan), 0, 0,
     "Measure each operator inside of passes and print what limits it: bytes, arithmetic or waiting. Nothing else is "
     "measured."},
    {"--depth", NULL, "N", MEASURE_OPTIONS, TAKES_BENCH, LONG_VALUE, AT(depth), 1, 1 << 20,
     "With --plan, measure a pass of one row after N tokens (default 2048, if the context is long enough)."},
    {"--force-accept", NULL, "P", MEASURE_OPTIONS, TAKES_BENCH, DOUBLE_VALUE, AT(force_accept), 0, 0,
     "In the measurements with forced acceptance, make each draft correct with probability P (default: 0.6, 0.8 and 1 "
     "in turn)."},
    {"--svg", NULL, "FILE", MEASURE_OPTIONS, TAKES_BENCH, TEXT_VALUE, AT(svg), 0, 0,
     "Write a picture to FILE. For each K, the picture plots two curves against acceptance: the speed-up of drafting "
     "and the limit of the speed-up."},

    /* ---- quantizing ---- */
    {"--type", NULL, "TYPE", QUANTIZE_OPTIONS, TAKES_QUANTIZE, TEXT_VALUE, AT(type), 0, 0,
     "Store linear layers, experts and output heads as f32, bf16, q8_0 or q4_0. The types q8_0 and q4_0 store 32 "
     "weights as integers of 8 or 4 bits with one scale. A matrix whose row length is not a multiple of 32 keeps its "
     "type (FP8 becomes F32), and its name is printed."},
    {"--embedding-type", NULL, "TYPE", QUANTIZE_OPTIONS, TAKES_QUANTIZE, TEXT_VALUE, AT(embedding_type), 0, 0,
     "Store the embedding as f32, bf16, q8_0 or q4_0. With as-stored, the default, the embedding keeps its type."},
    {"--head-type", NULL, "TYPE", QUANTIZE_OPTIONS, TAKES_QUANTIZE, TEXT_VALUE, AT(head_type), 0, 0,
     "Store all output heads as f32, bf16, q8_0 or q4_0 (default: the value of --type). With as-stored, they keep "
     "their types. The output heads of MTP modules are included."},

    /* ---- planning ---- */
    {"--ranks", NULL, "N", PLAN_OPTIONS, TAKES_PLAN, LONG_VALUE, AT(ranks), 1, 1 << 10,
     "Plan for N ranks (default 1)."},
    {"--ranks-weights", NULL, "W,...", PLAN_OPTIONS, TAKES_PLAN, TEXT_VALUE, AT(ranks_weights), 0, 0,
     "Give the ranks shares of the rows that are proportional to these integers, for example 2,1,1 (default: equal "
     "shares)."},
    {"--bandwidth", NULL, "GB/S,...", PLAN_OPTIONS, TAKES_PLAN, TEXT_VALUE, AT(bandwidth), 0, 0,
     "Memory bandwidth of each rank in GB/s (10^9 bytes per second): one number, or one for each rank. `bench` "
     "measures it."},
    {"--net", NULL, "GB/S", PLAN_OPTIONS, TAKES_PLAN, DOUBLE_VALUE, AT(net), 0, 0,
     "Bandwidth in GB/s with which each rank receives data from the others: 12.5 for a network of 100 Gbit/s."},
    {"--latency", NULL, "US", PLAN_OPTIONS, TAKES_PLAN, DOUBLE_VALUE, AT(latency), 0, 0,
     "Latency of a gather in microseconds; the time that its bytes take is added."},
    {"--acceptance", NULL, "A,...", PLAN_OPTIONS, TAKES_PLAN, TEXT_VALUE, AT(acceptance_rates), 0, 0,
     "Acceptance rates: for each draft of a round, the fraction of rounds in which it is accepted, as --stats prints "
     "it. A single number is the probability that a draft is accepted if the drafts before it were."},
    {"--weights", NULL, "TYPE", PLAN_OPTIONS, TAKES_PLAN, TEXT_VALUE, AT(weights), 0, 0,
     "Type of the weights if MODEL is only a config.json: f32, bf16, fp8, int8, q8_0 or q4_0 for all linear layers, "
     "int4 for the routed experts, nvfp4 or mxfp4 for all MLPs (default: what quantization_config says, else bf16)."},
    {0},
};
