/* tools/cli/options_run.c -- the options of commands that run a model. */
#include <stddef.h>

#include "tools/cli/options.h"

#define AT(field) offsetof(struct cli, field)
#define SESSION(field) offsetof(struct cli, session.field)
#define SAMPLING(field) offsetof(struct cli, session.sampling.field)

const struct option options_to_run[] = {
    /* ---- the model ---- */
    {"--model", "-m", "DIR", MODEL_OPTIONS, TAKES_MODEL, TEXT_VALUE, AT(model_option), 0, 0,
     "Use this model: a directory in the Hugging Face layout, or a GGUF file (if the model is split, its first file). "
     "This option replaces the argument MODEL."},
    {"--precision", NULL, "MODE", MODEL_OPTIONS, TAKES_COMPUTE | TAKES_CHECK | TAKES_PLAN, TEXT_VALUE,
     AT(precision), 0, 0,
     "Set the precision of the weights and of the computation: f32, bf16, q8, q4 or tensor (default f32). With f32, "
     "weights are used as they are stored. With bf16, weights and the inputs of linear layers are rounded to BF16, and "
     "prompts are computed faster. With q8 or q4, weights are quantized to 8 or 4 bits when the model is opened, and "
     "tokens are generated faster. With tensor, which needs --device cuda, weights are those of bf16, and the GPU's "
     "tensor cores multiply them. Then the bits depend on the kind of GPU and on --gpu-layers. This has not yet run on "
     "a GPU."},
    {"--cache-type", NULL, "TYPE", MODEL_OPTIONS, TAKES_COMPUTE | TAKES_PLAN, TEXT_VALUE, AT(cache_type), 0, 0,
     "Set the type of the numbers in the KV cache: f32, bf16 or q8 (default f32). With bf16, the cache takes half as "
     "much memory. With q8, it takes a third. Each type gives other results, but with each type the results are the "
     "same on every machine."},
    {"--repack", NULL, "on|off", MODEL_OPTIONS, TAKES_COMPUTE | TAKES_CHECK, TEXT_VALUE, AT(repack), 0, 0,
     "Reorder quantized weights for speed when the model is opened (default on). With off, the model opens sooner and "
     "computes more slowly. This option does not change the output."},
    {"--repack-cache", NULL, "DIR", MODEL_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(repack_cache), 0, 0,
     "Keep the copies of weights that --repack and --precision make in a file in this directory. The first run writes "
     "the file, and later runs map it, so that the model opens faster. A file that cannot be used is reported. This "
     "option does not change the output."},
    {"--device", NULL, "NAME", MODEL_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(device), 0, 0,
     "Choose what computes the layers: cpu, cuda, cuda:N, auto or auto:N (default cpu). With cuda, NVIDIA GPU number N "
     "(0) computes layers, with the same bits as the CPU. With auto, the CPU computes everything if there is no GPU. A "
     "program that was built with `make CUDA=yes` can use GPUs. This has not yet run on a GPU: it was tested with an "
     "emulator."},
    {"--gpu-layers", "-ngl --n-gpu-layers", "N|all|auto", MODEL_OPTIONS, TAKES_COMPUTE, TEXT_VALUE,
     AT(gpu_layers), 0, 0,
     "With --device: let the GPU compute the last N layers. If N is more than the model has layers, or with all, it "
     "also computes the output head and the MTP modules. With auto, it computes these, and as many layers as fit into "
     "its memory (default auto). This option does not change the output."},
    {"--gpu-experts", NULL, "on|off", MODEL_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(gpu_experts), 0, 0,
     "With --device: let the GPU compute the layers' experts (default on). With off, the GPU computes the attention "
     "and the dense layers, and the CPU computes the experts. This option does not change the output."},
    {"--context", "-c --ctx-size", "N", MODEL_OPTIONS, TAKES_COMPUTE | TAKES_PLAN, LONG_VALUE, AT(context), 1, 1 << 30,
     "Set the maximum number of tokens, prompt and output together (default: the length of the prompt plus -n)."},
    {"--prefill", NULL, "KIND", MODEL_OPTIONS, TAKES_PREFILL, TEXT_VALUE, SESSION(prefill), 0, 0,
     "Choose how the prompt is computed: contract, expanded, onednn or cublas (default contract). With contract, the "
     "prompt is computed as all other tokens are. With expanded, attention computes keys and values for each head, "
     "which is faster for long prompts. With contract and with expanded, the bits are the same on every machine. With "
     "onednn, the oneDNN library multiplies the matrices. With onednn, the prompt is computed in chunks of 512 tokens. "
     "If the weights are BF16, onednn also rounds the inputs of linear layers as --precision bf16 does. With cublas, "
     "which needs --device cuda, the cuBLAS library multiplies the matrices of the GPU's layers, unless they are "
     "quantized, in chunks of 512 tokens too; inputs and weights are rounded to BF16. This has not yet run on a GPU. "
     "The results with the four kinds have different bits. The bits with onednn and cublas may differ between "
     "machines, and with cublas also with --gpu-layers, but do not depend on drafting, threads or --isa."},
    {"--prefill-chunk", NULL, "N", MODEL_OPTIONS, TAKES_COMPUTE, INT_VALUE, SESSION(prefill_chunk), 1, 1 << 20,
     "Compute N tokens of the prompt in one pass (default 512; 2048 with --prefill expanded). The output is the same "
     "for every N."},
    {"--convention", NULL, "NAME=VALUE,...", MODEL_OPTIONS, TAKES_COMPUTE | TAKES_TRAIN, TEXT_VALUE,
     AT(convention), 0, 0,
     "Choose how to compute a step on which implementations disagree. `verbatim conventions` lists the names and "
     "values. Conventions about drafting do not change the output."},
    {"--as", NULL, "SYSTEM", MODEL_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(as), 0, 0,
     "Follow all conventions of one system: vllm-2025, vllm-2026, sglang, tensorrt-llm, mindie, llama.cpp, paper, "
     "transformers, official or official-v3.2. If no draft method is given, this option also selects the draft method "
     "that this system uses; dump then needs -n."},
    {"--routes-in", NULL, "FILE", MODEL_OPTIONS, TAKES_ROUTES, TEXT_VALUE, AT(routes_in), 0, 0,
     "Force the experts of each token: in each layer, a token takes the experts in FILE and not those that the router "
     "would choose. Their weights come from the router's scores. FILE has the routed experts [tokens, layers, top_k] "
     "of all tokens, or of all but the last: a file that --routes-out has written, an array that numpy.save has "
     "written, or JSON with routed_experts as SGLang and vLLM return it. Tokens after those in FILE are not forced."},
    {"--kept-in", NULL, "FILE", MODEL_OPTIONS, TAKES_ROUTES, TEXT_VALUE, AT(kept_in), 0, 0,
     "For models with sparse attention: force the tokens to which each token attends. FILE has the kept sets [tokens, "
     "layers, index_topk]: a file that --kept-out has written, an array that numpy.save has written, or JSON with "
     "indexer_topk as SGLang returns it. The set of token t has min(index_topk, t + 1) of the tokens 0 to t, and then "
     "-1; if all its numbers are -1, the indexer chooses. Tokens after those in FILE are not forced."},

    /* ---- the prompt ---- */
    {"--prompt", "-p", "TEXT", PROMPT_OPTIONS, TAKES_PROMPT, TEXT_VALUE, AT(prompt), 0, 0,
     "Use TEXT as the prompt. Without --chat, TEXT is not changed and no chat template is applied."},
    {"--prompt-file", "-f", "FILE", PROMPT_OPTIONS, TAKES_PROMPT, TEXT_VALUE, AT(prompt_file), 0, 0,
     "Read the prompt from FILE. The bytes of FILE are not changed."},
    {"--tokens", NULL, "IDS", PROMPT_OPTIONS, TAKES_PROMPT | TAKES_TOKENS | TAKES_EVAL | TAKES_DIFF, TEXT_VALUE,
     AT(tokens), 0, 0,
     "Give token ids instead of text: 5,6,7, or @FILE for a file of integers separated by commas or white space. No "
     "BOS token is added."},
    {"--file", "-f", "FILE", PROMPT_OPTIONS, TAKES_TEXT | TAKES_EVAL | TAKES_SCORE, TEXT_VALUE, AT(file), 0, 0,
     "Read the text from FILE, which must be UTF-8. The bytes of FILE are not changed."},
    {"--bos", NULL, NULL, PROMPT_OPTIONS, TAKES_PROMPT | TAKES_TEXT | TAKES_EVAL | TAKES_SCORE | TAKES_TRAIN, FLAG,
     AT(bos), 0, 0, "Put the BOS token before the text."},
    {"--no-bos", NULL, NULL, PROMPT_OPTIONS, TAKES_PROMPT | TAKES_EVAL | TAKES_SCORE | TAKES_TRAIN, FLAG,
     AT(no_bos), 0, 0,
     "Do not put the BOS token before the text. If neither --bos nor --no-bos is given, add_bos_token in "
     "tokenizer_config.json decides."},
    {"--decode", NULL, "IDS", PROMPT_OPTIONS, TAKES_TEXT, TEXT_VALUE, AT(decode), 0, 0,
     "Print the text of these token ids: 5,6,7, or @FILE for a file of integers."},
    {"--most-frequent", NULL, "N", PROMPT_OPTIONS, TAKES_TEXT, INT_VALUE, AT(most_frequent), 1, 1 << 30,
     "Print only the N most frequent ids of the text, the most frequent first. --draft-vocab reads such a list."},
    {"--no-special", NULL, NULL, PROMPT_OPTIONS, TAKES_TEXT, FLAG, AT(no_special), 0, 0,
     "Encode special tokens that appear in the text as ordinary text."},

    /* ---- a conversation ---- */
    {"--chat", NULL, NULL, CHAT_OPTIONS, TAKES_PROMPT, FLAG, AT(chat), 0, 0,
     "Build the prompt with the checkpoint's chat template: chat_template.jinja, chat_template in "
     "tokenizer_config.json, or tokenizer.chat_template in a GGUF file. The template receives the messages of "
     "--messages, and then --prompt or --prompt-file as a user message. At least one of --messages, --prompt and "
     "--prompt-file is needed. The template writes the BOS token itself, so Verbatim adds a BOS token only with "
     "--bos."},
    {"--messages", NULL, "FILE", CHAT_OPTIONS, TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(messages), 0, 0,
     "Begin the conversation with the messages in FILE, a JSON array: [{\"role\": \"user\", \"content\": \"Hello\"}, "
     "...]."},
    {"--system", NULL, "TEXT", CHAT_OPTIONS, TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(system), 0, 0,
     "Begin the conversation with TEXT as the system message."},
    {"--chat-template-kwargs", NULL, "JSON", CHAT_OPTIONS, TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(template_kwargs),
     0, 0, "Pass more variables to the chat template, as a JSON object: {\"thinking\": true, \"tools\": [...]}."},

    /* ---- sampling ---- */
    {"--temperature", "--temp", "T", SAMPLING_OPTIONS, TAKES_SAMPLING | TAKES_SCORE, FLOAT_VALUE, SAMPLING(temperature),
     0, 0, "Divide the logits by T before sampling (default 0). With 0, the most likely token is always chosen."},
    {"--top-k", NULL, "N", SAMPLING_OPTIONS, TAKES_SAMPLING, INT_VALUE, SAMPLING(top_k), 0, 1 << 30,
     "Sample only from the N most likely tokens (default 0: from all tokens)."},
    {"--top-p", NULL, "P", SAMPLING_OPTIONS, TAKES_SAMPLING, FLOAT_VALUE, SAMPLING(top_p), 0, 0,
     "Sample only from the smallest set of most likely tokens whose probabilities sum to at least P (default 1: from "
     "all tokens)."},
    {"--min-p", NULL, "P", SAMPLING_OPTIONS, TAKES_SAMPLING, FLOAT_VALUE, SAMPLING(min_p), 0, 0,
     "Exclude tokens that are less likely than P times the most likely token (default 0: exclude none)."},
    {"--seed", "-s", "N", SAMPLING_OPTIONS, TAKES_SAMPLING, SEED_VALUE, SAMPLING(seed), 0, 0,
     "Set the seed of the random numbers (default 0). The same seed gives the same output."},
    {"--repetition-penalty", NULL, "R", SAMPLING_OPTIONS, TAKES_SAMPLING, FLOAT_VALUE,
     SAMPLING(repetition_penalty), 0, 0,
     "Make tokens that already occur in the prompt or the output less likely: divide their positive logits by R, and "
     "multiply their negative logits by R (default 1: no penalty). 0 also means no penalty."},
    {"--presence-penalty", NULL, "X", SAMPLING_OPTIONS, TAKES_SAMPLING, SIGNED_VALUE, SAMPLING(presence_penalty), 0, 0,
     "Subtract X from the logit of every token that already occurs in the output (default 0)."},
    {"--frequency-penalty", NULL, "X", SAMPLING_OPTIONS, TAKES_SAMPLING, SIGNED_VALUE, SAMPLING(frequency_penalty), 0,
     0, "Subtract X from the logit of a token once for each time that it already occurs in the output (default 0)."},
    {"--logit-bias", NULL, "ID:VALUE,...", SAMPLING_OPTIONS, TAKES_SAMPLING, TEXT_VALUE, AT(sampling.logit_bias), 0, 0,
     "Add VALUE to the logit of token ID, before every other sampling step. The value -inf forbids the token."},

    /* ---- drafting ---- */
    {"--draft", NULL, "METHOD", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, SESSION(drafting.method), 0, 0,
     "Choose the draft method (default none). The methods mtp-vanilla, mtp-eagle, eagle-reroll and eagle-keep use the "
     "model's MTP modules. The method ngram searches the text for an earlier occurrence of its last few tokens, and "
     "proposes the tokens that followed there. The methods draft-model, eagle, eagle3 and parallel-heads use the model "
     "of --draft-model. Drafting changes the speed but not the output, unless --acceptance is rejection or relaxed."},
    {"--draft-tokens", NULL, "K", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_PLAN, AUTO_VALUE, AT(draft_tokens), 0,
     VB_MAX_DRAFT,
     "Draft at most K tokens per round, 0 to 15 (default: one for each MTP module or parallel head; 3 for methods "
     "without them). In a round, tokens are drafted and one pass verifies them. 0 turns drafting off. With auto, "
     "Verbatim measures acceptance and pass times, and chooses the length of each draft from them. If drafts do not "
     "make decoding faster, it makes hardly any."},
    {"--draft-topk", NULL, "M", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, INT_VALUE, SESSION(drafting.tree.topk), 1,
     VB_MAX_TOPK,
     "Draft a tree that is K tokens deep, where up to M tokens (2 to 16) follow each token. The default is 1: a chain "
     "without branches. Only mtp-eagle, eagle, eagle3 and parallel-heads can draft trees."},
    {"--draft-nodes", NULL, "N", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, INT_VALUE, SESSION(drafting.tree.nodes), 1,
     VB_MAX_NODES,
     "Verify the N most probable tokens of the tree. N is between K (--draft-tokens) and 64 (default: --draft-topk "
     "times K)."},
    {"--draft-p-min", NULL, "P", DRAFT_OPTIONS, TAKES_DRAFT, FLOAT_VALUE, SESSION(drafting.p_min), 0, 0,
     "Draft no further token in a round when the probability of the next draft is below P (default 0: never)."},
    {"--draft-vocab", NULL, "N|@FILE", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.given_vocab),
     0, 0,
     "Let MTP modules draft only some tokens: the N tokens with the lowest ids, or those whose ids are in FILE. A "
     "draft then reads only the rows of these tokens from the output head. tokenize --most-frequent makes such a file "
     "from a text."},
    {"--ngram-min", NULL, "N", DRAFT_OPTIONS, TAKES_DRAFT, INT_VALUE, AT(drafting.ngram_min), 1, 64,
     "With --draft ngram: make drafts only if at least the last N tokens occur earlier in the text. N is 1 to 64 "
     "(default 2)."},
    {"--ngram-max", NULL, "N", DRAFT_OPTIONS, TAKES_DRAFT, INT_VALUE, AT(drafting.ngram_max), 1, 64,
     "With --draft ngram: search the text for an earlier occurrence of its last N tokens, or of fewer. N is 1 to 64 "
     "(default 4). The longest match is used."},
    {"--draft-settings", NULL, "KEY=VALUE,...", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, AT(drafting.given_settings), 0,
     0, "Change settings that only one draft method has, such as ngram-min=1,ngram-max=3."},
    {"--draft-model", NULL, "DIR", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.model_dir), 0, 0,
     "With --draft draft-model: use the smaller checkpoint in DIR, which must have the same vocabulary. With --draft "
     "eagle or eagle3: use the published draft head in DIR. With --draft parallel-heads: use the heads in DIR, which "
     "may be the model's own directory."},
    {"--draft-gpu-layers", "-ngld --n-gpu-layers-draft --gpu-layers-draft", "N|all|auto", DRAFT_OPTIONS,
     TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.gpu_layers), 0, 0,
     "With --draft draft-model and --device: let the GPU compute so many layers of the smaller model, as --gpu-layers "
     "does for the model (default auto). The smaller model gets its memory first. This option does not change the "
     "output."},
    {"--draft-precision", NULL, "MODE", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.precision), 0,
     0, "With --draft draft-model: set the precision of the smaller model (default: the same as --precision)."},
    {"--padded", NULL, NULL, DRAFT_OPTIONS, TAKES_DRAFT, FLAG, SESSION(padded), 0, 0,
     "Pad every pass of a round to K+1 rows (K: --draft-tokens), as systems with fixed tensor shapes do. This option "
     "does not change the output."},
    {"--speculative-config", NULL, "JSON", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, AT(foreign.vllm), 0, 0,
     "Set the drafting options in vLLM's format. The keys are method (mtp, deepseek_mtp, ngram, eagle, eagle3 or "
     "draft_model), num_speculative_tokens, model, prompt_lookup_min, prompt_lookup_max and "
     "disable_padded_drafter_batch. The resulting options of Verbatim are printed on stderr."},
    {"--plugin-params", NULL, "JSON|@FILE", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, AT(foreign.mindie), 0, 0,
     "Set the drafting options in MindIE's format. The keys are plugin_type, whose value must be mtp, and "
     "num_speculative_tokens. With @FILE, plugin_params is read from the config.json of MindIE's service. The "
     "resulting options of Verbatim are printed on stderr."},
    {"--draft-words", NULL, "SYSTEM 'WORDS'", DRAFT_OPTIONS, TAKES_DRAFT, WORDS_VALUE, AT(foreign.words_system), 0, 0,
     "Set the drafting options with the option names of sglang, tensorrt-llm or llama.cpp, quoted as one argument: "
     "--draft-words llama.cpp '--spec-type draft-mtp --spec-draft-n-max 2'. The resulting options of Verbatim are "
     "printed on stderr."},

    /* ---- acceptance ---- */
    {"--acceptance", NULL, "MODE", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE, SAMPLING(acceptance), 0, 0,
     "Choose which drafts are accepted: strict, rejection or relaxed (default strict). With strict, a draft is "
     "accepted only if it equals the token that plain decoding would choose. With rejection, drafts are sampled at the "
     "same temperature and accepted at random, by rejection sampling. The output then has the probability distribution "
     "of plain decoding, but it is not the same text. With relaxed, any sufficiently likely draft is also accepted "
     "while the model is thinking (see --thinking-tokens): this changes the distribution of the output."},
    {"--draft-sample-method", NULL, "METHOD", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE,
     SAMPLING(draft_sample_method), 0, 0,
     "With --acceptance rejection: choose how tokens are drafted, probabilistic or greedy (default probabilistic). If "
     "METHOD is probabilistic, each draft is drawn at random from the probabilities of the draft method. If METHOD is "
     "greedy, each draft is the most likely token."},
    {"--relaxed-topk", NULL, "N", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, INT_VALUE, SAMPLING(relaxed_topk), 1, 1 << 30,
     "With --acceptance relaxed: a draft is sufficiently likely only if it is among the N most likely tokens (default "
     "10)."},
    {"--relaxed-delta", NULL, "P", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE, AT(sampling.relaxed_delta), 0, 0,
     "With --acceptance relaxed: a draft is sufficiently likely only if its probability is at least the largest "
     "probability minus P (default 0.6). Both probabilities are taken at temperature 1."},
    {"--thinking-tokens", NULL, "BEGIN,END", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE,
     AT(sampling.thinking), 0, 0,
     "With --acceptance relaxed: set the two tokens that begin and end the model's thinking, as ids or as text "
     "(default <think>,</think>)."},

    /* ---- the output ---- */
    {"-n", "--predict --n-predict", "N", OUTPUT_OPTIONS, TAKES_LENGTH, LONG_VALUE, AT(n), 0, 1 << 30,
     "Generate at most N tokens. The default is 128 for generate, 160 for demo, 16 for trace, 0 for dump and 64 for "
     "the other commands. The command chat generates as many tokens as the context allows."},
    {"--ignore-eos", NULL, NULL, OUTPUT_OPTIONS, TAKES_LENGTH, FLAG, AT(ignore_eos), 0, 0,
     "Continue after an end-of-text token."},
    {"--stop", NULL, "TEXT", OUTPUT_OPTIONS, TAKES_STOP, STOP_VALUE, AT(sampling.stop), 0, MOST_STOPS,
     "Stop when TEXT appears in the output, and do not print TEXT itself. This option can be given up to 16 times."},
    {"-o", NULL, "FILE", OUTPUT_OPTIONS, TAKES_OUT, TEXT_VALUE, AT(out), 0, 0,
     "Write the result to FILE. FILE appears only when it is complete."},
    {"--json", NULL, NULL, OUTPUT_OPTIONS, 0, FLAG, AT(json), 0, 0,
     "Print the result as JSON on stdout. An error is then printed as an object with the key error."},
    {"--logprobs", NULL, "N", OUTPUT_OPTIONS, TAKES_LOGPROBS | TAKES_SCORE, LONG_VALUE, AT(logprobs), 0, 1000,
     "With --json: add the key logprobs. For each generated token, the key contains the log-probability of that token "
     "and the log-probabilities of the N most likely tokens (0 to 1000). All log-probabilities are computed from the "
     "logits before temperature, penalties, top-k and top-p."},
    {"--routes-out", NULL, "FILE", OUTPUT_OPTIONS, TAKES_ROUTES, TEXT_VALUE, AT(routes_out), 0, 0,
     "Write the experts that each token took, [tokens, layers, top_k], to FILE. The name of FILE chooses the format: "
     ".safetensors (tensor routed_experts), .npy (for numpy.load; as vLLM's CompletionOutput.routed_experts) or .json "
     "(as SGLang's meta_info.routed_experts). Dense layers contain 0. The last token of generate has no row, because "
     "its experts were not computed."},
    {"--kept-out", NULL, "FILE", OUTPUT_OPTIONS, TAKES_ROUTES, TEXT_VALUE, AT(kept_out), 0, 0,
     "Write the tokens to which each token attended, [tokens, layers, index_topk], to FILE: in ascending order, and "
     "then -1. The formats are those of --routes-out, and the name is indexer_topk. Layers without an indexer contain "
     "-1. This takes 4 * index_topk bytes for each token in each layer."},
    {"--routes", NULL, NULL, OUTPUT_OPTIONS, TAKES_SCORE, FLAG, AT(with_routes), 0, 0,
     "Add the key routed_experts: the experts that each token of the text but the last took, in base64, as SGLang "
     "returns them."},
    {"--stats", NULL, NULL, OUTPUT_OPTIONS, TAKES_STATS, FLAG, AT(stats), 0, 0,
     "Print more statistics on stderr: acceptance at each draft depth, time to open the model, time to the first "
     "token, threads and memory. With verbatim-mpi, also the weights, the memory and the waiting time of each "
     "process."},
    {"--html", NULL, "FILE", OUTPUT_OPTIONS, TAKES_TRACE, TEXT_VALUE, AT(html), 0, 0,
     "Write a web page to FILE that shows the rounds one after another. The page needs no network."},

    /* ---- the machine ---- */
    {"--threads", "-t", "N", MACHINE_OPTIONS, TAKES_COMPUTE | TAKES_QUANTIZE | TAKES_TRAIN, INT_VALUE, SESSION(threads),
     1, 4096,
     "Use at most N threads (default: one for each processor that this process may use). Verbatim uses fewer threads "
     "if that is faster. This option does not change the output."},
    {"--isa", NULL, "NAME", MACHINE_OPTIONS, TAKES_COMPUTE | TAKES_TRAIN, TEXT_VALUE, SESSION(isa), 0, 0,
     "Choose the instruction set: best, scalar, avx2, avx512 or neon (default best). This option does not change the "
     "output."},
    {"--numa", NULL, "MODE", MACHINE_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(numa), 0, 0,
     "Choose where threads and weights are placed on a machine with several NUMA nodes: off, interleave or bind "
     "(default off). With interleave, the weights are spread over the memories of all nodes. With bind, the threads of "
     "each node first compute with the weights in the memory of this node. In both modes, all weights are read when "
     "the model is opened. This option does not change the output."},
    {"--ranks-weights", NULL, "N,N,...", MACHINE_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(ranks_weights), 0, 0,
     "For verbatim-mpi, which computes one model in several processes (docs/RANKS.md): the relative size of each "
     "process's share of the weights, for example 2,1,1 (default: equal shares). With measured, each process first "
     "measures its memory bandwidth, which takes a fifth of a second, and its share is proportional to it. This option "
     "does not change the output."},
    {"--mlock", NULL, NULL, MACHINE_OPTIONS, TAKES_COMPUTE, FLAG, AT(mlock), 0, 0,
     "Read all weights when the model is opened, and lock them into memory. If the system's limit is too low for this, "
     "a warning is printed and the command continues."},

    /* ---- saved sessions ---- */
    {"--session", NULL, "FILE", SESSION_OPTIONS, TAKES_SESSION | TAKES_TRACE, TEXT_VALUE, AT(load), 0, 0,
     "Continue the session that was saved in FILE (see `verbatim session --help`). The prompt is then optional; if one "
     "is given, it is appended to the session."},
    {"--save-session", NULL, "FILE", SESSION_OPTIONS, TAKES_SESSION, TEXT_VALUE, AT(save), 0, 0,
     "Save the session to FILE when the output is complete."},
    {"--without-hidden", NULL, NULL, SESSION_OPTIONS, TAKES_SAVE, FLAG, AT(without_hidden), 0, 0,
     "Save the session without the hidden states that MTP modules need. The first draft after loading then uses zeros "
     "instead of a hidden state, in an extra cache row, as MindIE does. This option does not change the output."},
    {"--force", NULL, NULL, OUTPUT_OPTIONS,
     TAKES_OUT | TAKES_SAVE | TAKES_TRACE | TAKES_BENCH | TAKES_ROUTES | TAKES_DIFF, FLAG, AT(force), 0, 0,
     "Replace FILE if it exists."},

    /* ---- many prompts ---- */
    {"--prompts", NULL, "FILE", MANY_OPTIONS, TAKES_PROMPTS | TAKES_TRACE, TEXT_VALUE, AT(prompts), 0, 0,
     "Answer many prompts at the same time. Each line of FILE is a JSON object with one of the keys prompt, tokens and "
     "messages. (If FILE is -, stdin is read.) The object may also have id, max_tokens, seed, temperature, top_k, "
     "top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, stop, draft and draft_tokens, which "
     "replace the options of the command line, and routed_experts or routes_in: experts, or the name of a file as for "
     "--routes-in, and indexer_topk or kept_in: kept sets, or the name of a file as for --kept-in. Each answer is the "
     "same as that of a run with this prompt alone."},
    {"-o", NULL, "FILE", MANY_OPTIONS, TAKES_PROMPTS | TAKES_SCORE, TEXT_VALUE, AT(out), 0, 0,
     "With --prompts: append each answer to FILE when it is complete (default: stdout). Answers that are already in "
     "FILE are not computed again, so you can repeat the same command after Ctrl-C or a crash to continue."},
    {"--max-sequences", NULL, "N", MANY_OPTIONS, TAKES_PROMPTS | TAKES_SERVE | TAKES_SCORE | TAKES_TRACE, INT_VALUE,
     AT(max_sequences), 1, 64, "With --prompts: compute at most N prompts at the same time, 1 to 64 (default 8)."},
    {"--cache-tokens", NULL, "N", MANY_OPTIONS, TAKES_PROMPTS | TAKES_SERVE | TAKES_SCORE | TAKES_TRACE, LONG_VALUE,
     AT(cache_tokens), 1, INT32_MAX,
     "With --prompts: set the total size of the KV cache in tokens, shared by all sequences (default: --max-sequences "
     "times the longest prompt with its output). When the cache is full, the newest sequence is preempted and "
     "recomputed later."},

    /* ---- the server ---- */
    {"--host", NULL, "HOST", SERVE_OPTIONS, TAKES_SERVE, TEXT_VALUE, AT(host), 0, 0,
     "Listen at this address or name (default 127.0.0.1, which only this machine can reach). 0.0.0.0 listens at every "
     "IPv4 address."},
    {"--port", NULL, "PORT", SERVE_OPTIONS, TAKES_SERVE, LONG_VALUE, AT(port), 0, 65535,
     "Listen at this port (default 8080). With 0, the operating system chooses a free port, and the line `listening "
     "on` shows it."},
    {"--api-key-file", NULL, "FILE", SERVE_OPTIONS, TAKES_SERVE, TEXT_VALUE, AT(key_file), 0, 0,
     "Refuse requests without the key in FILE (Authorization: Bearer KEY). Only /health and the web page at / need no "
     "key."},
    {"--served-model-name", NULL, "NAME", SERVE_OPTIONS, TAKES_SERVE, TEXT_VALUE, AT(served_name), 0, 0,
     "Set the model's name, which requests may give as model (default: the last part of MODEL)."},
    {"--max-waiting", NULL, "N", SERVE_OPTIONS, TAKES_SERVE, LONG_VALUE, AT(max_waiting), 0, 1 << 20,
     "Refuse new requests with status 429 while N or more sequences wait (default 256). A client may send such a "
     "request again later."},
    {"--cors", NULL, "ORIGIN", SERVE_OPTIONS, TAKES_SERVE, TEXT_VALUE, AT(cors), 0, 0,
     "Let web pages of ORIGIN use this server from a browser. ORIGIN is for example https://example.org, or * for all "
     "origins (default: none)."},
    {"--metrics-prefix", NULL, "TEXT", SERVE_OPTIONS, TAKES_SERVE, TEXT_VALUE, AT(metrics_prefix), 0, 0,
     "Set the prefix of all names in /metrics (default verbatim:). For tools that need the names of vLLM, use vllm:."},
    {"--log", NULL, "FILE", SERVE_OPTIONS, TAKES_SERVE, TEXT_VALUE, AT(log), 0, 0,
     "Append one line for each request to FILE (default: to stderr): time, method, path, status, tokens, seconds. On "
     "SIGHUP, FILE is closed and opened again, so that another program can move the old file."},
    {"--log-prompts", NULL, NULL, SERVE_OPTIONS, TAKES_SERVE, FLAG, AT(log_prompts), 0, 0,
     "Add each request's prompts to its line in the log."},
    {"--fingerprint-sample", NULL, NULL, SERVE_OPTIONS, TAKES_SERVE, FLAG, AT(fingerprint_sample), 0, 0,
     "Compute system_fingerprint from a sample of the weights instead of all weights. The server then starts without "
     "reading the whole checkpoint, but models that differ in a few weights may have the same system_fingerprint."},
    {0},
};
