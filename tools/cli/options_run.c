/* tools/cli/options_run.c -- the options of commands that run a model. */
#include <stddef.h>

#include "tools/cli/options.h"

#define AT(field) offsetof(struct cli, field)
#define SESSION(field) offsetof(struct cli, session.field)
#define SAMPLING(field) offsetof(struct cli, session.sampling.field)

const struct option options_to_run[] = {
    /* ---- the model ---- */
    {"--model", "-m", "DIR", MODEL_OPTIONS, TAKES_MODEL, TEXT_VALUE, AT(model_option), 0, 0,
     "The model, which may also be given as the argument MODEL: a directory in the Hugging Face layout, or a GGUF file (of a set of "
     "files, the first)."},
    {"--precision", NULL, "MODE", MODEL_OPTIONS, TAKES_COMPUTE | TAKES_CHECK, TEXT_VALUE, AT(precision), 0, 0,
     "f32, bf16, q8 or q4 (default f32). f32 computes with the weights as they are stored. bf16 rounds weights and the inputs of linear "
     "layers to BF16, which makes prompts faster. q8 and q4 quantise the weights to 8 or 4 bits, which makes decoding faster."},
    {"--repack", NULL, "on|off", MODEL_OPTIONS, TAKES_COMPUTE | TAKES_CHECK, TEXT_VALUE, AT(repack), 0, 0,
     "Put quantised weights into a faster order when the model is opened (default on). The output is the same; off opens the model sooner."},
    {"--context", "-c --ctx-size", "N", MODEL_OPTIONS, TAKES_COMPUTE, LONG_VALUE, AT(context), 1, 1 << 30,
     "Make room for N tokens of prompt and output (default: the prompt and -n)."},
    {"--prefill", NULL, "KIND", MODEL_OPTIONS, TAKES_PREFILL, TEXT_VALUE, SESSION(prefill), 0, 0,
     "What computes the prompt: contract or onednn (default contract). contract is our own kernels, which give the same bits on every "
     "machine. onednn is faster: the library oneDNN multiplies the matrices, in chunks of 512 tokens, and BF16 weights are rounded as with "
     "--precision bf16. Its bits are different, and may differ between machines; drafting, threads and --isa do not change them."},
    {"--prefill-chunk", NULL, "N", MODEL_OPTIONS, TAKES_COMPUTE, INT_VALUE, SESSION(prefill_chunk), 1, 1 << 20,
     "Compute N tokens of the prompt in one pass (default 512). The output is the same."},
    {"--convention", NULL, "NAME=VALUE,...", MODEL_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(convention), 0, 0,
     "Compute a disputed step as another implementation does. `verbatim conventions` lists the names and values. Conventions of drafting "
     "change no output."},
    {"--as", NULL, "SYSTEM", MODEL_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(as), 0, 0,
     "Follow all conventions of one system, and draft by its method unless a method is given: vllm-2025, vllm-2026, sglang, tensorrt-llm, "
     "mindie, llama.cpp, paper, transformers or official."},

    /* ---- the prompt ---- */
    {"--prompt", "-p", "TEXT", PROMPT_OPTIONS, TAKES_PROMPT, TEXT_VALUE, AT(prompt), 0, 0,
     "The prompt. Without --chat it is used as it is: no chat template is applied."},
    {"--prompt-file", "-f", "FILE", PROMPT_OPTIONS, TAKES_PROMPT, TEXT_VALUE, AT(prompt_file), 0, 0,
     "Read the prompt from FILE. Its bytes are used as they are."},
    {"--tokens", NULL, "IDS", PROMPT_OPTIONS, TAKES_PROMPT | TAKES_TOKENS | TAKES_EVAL | TAKES_DIFF, TEXT_VALUE, AT(tokens), 0, 0,
     "Token ids instead of text: 5,6,7, or @FILE for a file of integers that are separated by commas or blanks. No BOS token is added."},
    {"--file", "-f", "FILE", PROMPT_OPTIONS, TAKES_TEXT | TAKES_EVAL, TEXT_VALUE, AT(file), 0, 0,
     "Read the text from FILE, which is UTF-8. Its bytes are used as they are."},
    {"--bos", NULL, NULL, PROMPT_OPTIONS, TAKES_PROMPT | TAKES_TEXT | TAKES_EVAL, FLAG, AT(bos), 0, 0,
     "Put the BOS token in front of the text."},
    {"--no-bos", NULL, NULL, PROMPT_OPTIONS, TAKES_PROMPT | TAKES_EVAL, FLAG, AT(no_bos), 0, 0,
     "Do not put the BOS token in front. Without --bos and --no-bos, add_bos_token in tokenizer_config.json decides."},
    {"--decode", NULL, "IDS", PROMPT_OPTIONS, TAKES_TEXT, TEXT_VALUE, AT(decode), 0, 0,
     "Print the text of these token ids: 5,6,7 or @FILE."},
    {"--no-special", NULL, NULL, PROMPT_OPTIONS, TAKES_TEXT, FLAG, AT(no_special), 0, 0,
     "Treat special tokens that are written in the text as ordinary text."},

    /* ---- a conversation ---- */
    {"--chat", NULL, NULL, CHAT_OPTIONS, TAKES_PROMPT, FLAG, AT(chat), 0, 0,
     "Make the prompt with the chat template of the checkpoint (chat_template.jinja, tokenizer_config.json, or tokenizer.chat_template in "
     "a GGUF file). The template gets the messages of --messages, and then --prompt or --prompt-file as a message of the user. At least "
     "one of these is needed. The template itself writes BOS if the model wants it."},
    {"--messages", NULL, "FILE", CHAT_OPTIONS, TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(messages), 0, 0,
     "Begin the conversation with the messages in FILE: [{\"role\": \"user\", \"content\": \"Hello\"}, ...]."},
    {"--system", NULL, "TEXT", CHAT_OPTIONS, TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(system), 0, 0,
     "Put a system message with this text in front."},
    {"--chat-template-kwargs", NULL, "JSON", CHAT_OPTIONS, TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(template_kwargs), 0, 0,
     "Give the chat template more variables: {\"thinking\": true, \"tools\": [...]}."},

    /* ---- sampling ---- */
    {"--temperature", "--temp", "T", SAMPLING_OPTIONS, TAKES_SAMPLING, FLOAT_VALUE, SAMPLING(temperature), 0, 0,
     "Divide the logits by T before a token is drawn. 0 always takes the most likely token (default 0)."},
    {"--top-k", NULL, "N", SAMPLING_OPTIONS, TAKES_SAMPLING, INT_VALUE, SAMPLING(top_k), 0, 1 << 30,
     "Draw only among the N most likely tokens. 0 draws among all (default 0)."},
    {"--top-p", NULL, "P", SAMPLING_OPTIONS, TAKES_SAMPLING, FLOAT_VALUE, SAMPLING(top_p), 0, 0,
     "Draw only among the most likely tokens that together have the probability P. 1 draws among all (default 1)."},
    {"--min-p", NULL, "P", SAMPLING_OPTIONS, TAKES_SAMPLING, FLOAT_VALUE, SAMPLING(min_p), 0, 0,
     "Leave out tokens that are less likely than P times the most likely one. 0 leaves out none (default 0)."},
    {"--seed", "-s", "N", SAMPLING_OPTIONS, TAKES_SAMPLING, SEED_VALUE, SAMPLING(seed), 0, 0,
     "The seed of the random numbers (default 0). The same seed gives the same output."},
    {"--repetition-penalty", NULL, "R", SAMPLING_OPTIONS, TAKES_SAMPLING, FLOAT_VALUE, SAMPLING(repetition_penalty), 0, 0,
     "Make tokens of the prompt and the output less likely: their positive logits are divided by R, their negative logits multiplied "
     "by R. 0 and 1 change nothing (default 1)."},
    {"--presence-penalty", NULL, "X", SAMPLING_OPTIONS, TAKES_SAMPLING, SIGNED_VALUE, SAMPLING(presence_penalty), 0, 0,
     "Subtract X from the logit of each token that the output contains (default 0)."},
    {"--frequency-penalty", NULL, "X", SAMPLING_OPTIONS, TAKES_SAMPLING, SIGNED_VALUE, SAMPLING(frequency_penalty), 0, 0,
     "Subtract X from the logit of each token as many times as the output contains it (default 0)."},
    {"--logit-bias", NULL, "ID:VALUE,...", SAMPLING_OPTIONS, TAKES_SAMPLING, TEXT_VALUE, AT(sampling.logit_bias), 0, 0,
     "Add VALUE to the logit of token ID, before everything else. -inf forbids the token."},

    /* ---- drafting ---- */
    {"--draft", NULL, "METHOD", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, SESSION(drafting.method), 0, 0,
     "How tokens are drafted (default none). Drafting changes the speed and never the output. mtp-vanilla, mtp-eagle, eagle-reroll and "
     "eagle-keep use the model's MTP modules. ngram repeats what followed the last few tokens before. draft-model, eagle and eagle3 use "
     "--draft-model."},
    {"--draft-tokens", NULL, "K", DRAFT_OPTIONS, TAKES_DRAFT, AUTO_VALUE, AT(draft_tokens), 0, VB_MAX_DRAFT,
     "Draft at most K tokens in a round, 0 to 15 (default: one for each MTP module; 3 for methods without modules). 0 drafts nothing. "
     "auto chooses the length of each round from measured acceptance and pass times."},
    {"--draft-topk", NULL, "M", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, INT_VALUE, SESSION(drafting.tree.topk), 1, VB_MAX_TOPK,
     "Draft a tree: it is K tokens deep, and up to M tokens (2 to 16) follow each token. 1 is a chain (default 1). mtp-eagle, eagle and "
     "eagle3 can draft trees."},
    {"--draft-nodes", NULL, "N", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, INT_VALUE, SESSION(drafting.tree.nodes), 1, VB_MAX_NODES,
     "Verify the N most probable tokens of the tree, K to 64 (default M times K)."},
    {"--draft-p-min", NULL, "P", DRAFT_OPTIONS, TAKES_DRAFT, FLOAT_VALUE, SESSION(drafting.p_min), 0, 0,
     "End a draft before a token whose probability is below P (default 0: never)."},
    {"--ngram-min", NULL, "N", DRAFT_OPTIONS, TAKES_DRAFT, INT_VALUE, AT(drafting.ngram_min), 1, 64,
     "With --draft ngram: match at least the last N tokens, 1 to 64 (default 2)."},
    {"--ngram-max", NULL, "N", DRAFT_OPTIONS, TAKES_DRAFT, INT_VALUE, AT(drafting.ngram_max), 1, 64,
     "With --draft ngram: match at most the last N tokens, 1 to 64 (default 4). Longer matches are preferred."},
    {"--draft-settings", NULL, "KEY=VALUE,...", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, AT(drafting.given_settings), 0, 0,
     "Settings that only one draft method reads, such as ngram-min=1,ngram-max=3."},
    {"--draft-model", NULL, "DIR", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.model_dir), 0, 0,
     "With --draft draft-model: a smaller checkpoint with the same vocabulary. With --draft eagle or eagle3: a published draft head."},
    {"--draft-precision", NULL, "MODE", DRAFT_OPTIONS, TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.precision), 0, 0,
     "With --draft draft-model: the precision of that model (default: the same as --precision)."},
    {"--padded", NULL, NULL, DRAFT_OPTIONS, TAKES_DRAFT, FLAG, SESSION(padded), 0, 0,
     "Pad the passes of a round to K+1 rows, as systems with fixed shapes do. The output is the same."},
    {"--speculative-config", NULL, "JSON", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, AT(foreign.vllm), 0, 0,
     "Set the options of drafting as vLLM does: method (mtp, deepseek_mtp, ngram, eagle, eagle3 or draft_model), num_speculative_tokens, "
     "model, prompt_lookup_min, prompt_lookup_max and disable_padded_drafter_batch. stderr says what was chosen."},
    {"--plugin-params", NULL, "JSON|@FILE", DRAFT_OPTIONS, TAKES_DRAFT, TEXT_VALUE, AT(foreign.mindie), 0, 0,
     "Set the options of drafting as MindIE does: plugin_type (mtp) and num_speculative_tokens. @FILE reads plugin_params from the "
     "config.json of MindIE's service. stderr says what was chosen."},
    {"--draft-words", NULL, "SYSTEM 'WORDS'", DRAFT_OPTIONS, TAKES_DRAFT, WORDS_VALUE, AT(foreign.words_system), 0, 0,
     "Set the options of drafting in the words of sglang, tensorrt-llm or llama.cpp, quoted as one argument: --draft-words llama.cpp "
     "'--spec-type draft-mtp --spec-draft-n-max 2'. stderr says what was chosen."},

    /* ---- acceptance ---- */
    {"--acceptance", NULL, "MODE", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE, SAMPLING(acceptance), 0, 0,
     "Which drafts are accepted: strict, rejection or relaxed (default strict). strict accepts a draft that is the token chosen without "
     "drafting. rejection draws drafts at the same temperature and accepts them by chance: the distribution is the same, the text is not. "
     "relaxed also accepts likely drafts between the thinking tokens; it is lossy."},
    {"--draft-sample-method", NULL, "METHOD", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE, SAMPLING(draft_sample_method), 0, 0,
     "With --acceptance rejection: probabilistic draws drafts at random, greedy drafts the most likely tokens (default probabilistic)."},
    {"--relaxed-topk", NULL, "N", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, INT_VALUE, SAMPLING(relaxed_topk), 1, 1 << 30,
     "With --acceptance relaxed: a draft must be one of the N most likely tokens (default 10)."},
    {"--relaxed-delta", NULL, "P", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE, AT(sampling.relaxed_delta), 0, 0,
     "With --acceptance relaxed: a draft's probability may be at most P below that of the most likely token, at temperature 1 "
     "(default 0.6)."},
    {"--thinking-tokens", NULL, "BEGIN,END", ACCEPTANCE_OPTIONS, TAKES_ACCEPTANCE, TEXT_VALUE, AT(sampling.thinking), 0, 0,
     "With --acceptance relaxed: the two tokens that begin and end the thinking, as ids or as text (default <think>,</think>)."},

    /* ---- the output ---- */
    {"-n", "--predict --n-predict", "N", OUTPUT_OPTIONS, TAKES_LENGTH, LONG_VALUE, AT(n), 0, 1 << 30,
     "Generate at most N tokens (default: generate 128, demo 160, trace 16, dump 0, others 64; chat as many as the context allows)."},
    {"--ignore-eos", NULL, NULL, OUTPUT_OPTIONS, TAKES_LENGTH, FLAG, AT(ignore_eos), 0, 0, "Go on after an end-of-text token."},
    {"--stop", NULL, "TEXT", OUTPUT_OPTIONS, TAKES_STOP, STOP_VALUE, AT(sampling.stop), 0, MOST_STOPS,
     "End the output before TEXT when TEXT appears in it. The option may be given up to 16 times."},
    {"-o", NULL, "FILE", OUTPUT_OPTIONS, TAKES_OUT, TEXT_VALUE, AT(out), 0, 0,
     "Write the result to FILE. It appears under this name only when it is complete."},
    {"--json", NULL, NULL, OUTPUT_OPTIONS, 0, FLAG, AT(json), 0, 0,
     "Print the result as JSON on stdout. An error is then an object with the key error."},
    {"--logprobs", NULL, "N", OUTPUT_OPTIONS, TAKES_LOGPROBS, LONG_VALUE, AT(logprobs), 0, 1000,
     "With --json: add logprobs, which has for each token its log-probability and those of the N most likely tokens (0 to 1000). They are "
     "computed from the logits before temperature, top-k and top-p."},
    {"--stats", NULL, NULL, OUTPUT_OPTIONS, TAKES_STATS, FLAG, AT(stats), 0, 0,
     "Print more statistics on stderr: acceptance by depth, time to open the model, time to the first token, threads, memory."},
    {"--html", NULL, "FILE", OUTPUT_OPTIONS, TAKES_HTML, TEXT_VALUE, AT(html), 0, 0,
     "Write a web page to FILE that steps through the rounds. It needs no network."},

    /* ---- the machine ---- */
    {"--threads", "-t", "N", MACHINE_OPTIONS, TAKES_COMPUTE | TAKES_QUANTIZE, INT_VALUE, SESSION(threads), 1, 4096,
     "Use at most N threads (default: one for each processor that this process may use), and fewer where that is faster. The output is "
     "the same."},
    {"--isa", NULL, "NAME", MACHINE_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, SESSION(isa), 0, 0,
     "The instruction set: best, scalar, avx2, avx512 or neon (default best). The output is the same."},
    {"--numa", NULL, "MODE", MACHINE_OPTIONS, TAKES_COMPUTE, TEXT_VALUE, AT(numa), 0, 0,
     "On a machine with several memory nodes, place threads and weights: off, interleave or bind (default off). Reads all weights first. "
     "The output is the same."},
    {"--mlock", NULL, NULL, MACHINE_OPTIONS, TAKES_COMPUTE, FLAG, AT(mlock), 0, 0,
     "Lock the weights into memory, after reading all of them. If the limit is too low, a warning says so."},

    /* ---- saved sessions ---- */
    {"--session", NULL, "FILE", SESSION_OPTIONS, TAKES_SESSION, TEXT_VALUE, AT(load), 0, 0,
     "Go on from the session saved in FILE (see `verbatim session --help`). A prompt, if there is one, is appended to it."},
    {"--save-session", NULL, "FILE", SESSION_OPTIONS, TAKES_SESSION, TEXT_VALUE, AT(save), 0, 0,
     "Save the session to FILE when the output is complete."},
    {"--without-hidden", NULL, NULL, SESSION_OPTIONS, TAKES_SAVE, FLAG, AT(without_hidden), 0, 0,
     "Save the session without the hidden rows that MTP modules need. The first draft after loading then takes zeros for the missing row, "
     "in a dummy slot, as MindIE's does. The output is the same."},
    {"--force", NULL, NULL, OUTPUT_OPTIONS, TAKES_OUT | TAKES_SAVE | TAKES_HTML | TAKES_BENCH, FLAG, AT(force), 0, 0, "Replace a file that exists."},

    /* ---- many prompts ---- */
    {"--prompts", NULL, "FILE", MANY_OPTIONS, TAKES_PROMPTS, TEXT_VALUE, AT(prompts), 0, 0,
     "Answer many prompts side by side. Each line of FILE (- is stdin) is a JSON object with one of prompt, tokens and messages. It may also "
     "have id, max_tokens, seed, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, stop, draft and "
     "draft_tokens, which replace the options of the command line. Each answer is the same as that prompt has alone."},
    {"-o", NULL, "FILE", MANY_OPTIONS, TAKES_PROMPTS, TEXT_VALUE, AT(out), 0, 0,
     "With --prompts: append each answer to FILE when it is complete (default: stdout). Answers that FILE has already are not computed "
     "again, so the same command continues after Ctrl-C or a crash."},
    {"--max-sequences", NULL, "N", MANY_OPTIONS, TAKES_PROMPTS, INT_VALUE, AT(max_sequences), 1, 64,
     "With --prompts: compute at most N prompts at the same time, 1 to 64 (default 8)."},
    {"--cache-tokens", NULL, "N", MANY_OPTIONS, TAKES_PROMPTS, LONG_VALUE, AT(cache_tokens), 1, INT32_MAX,
     "With --prompts: the total cache size in tokens, shared by all sequences (default: --max-sequences times the longest prompt with its "
     "output). When the cache is full, the newest sequence is set aside and recomputed later."},
    {0},
};
