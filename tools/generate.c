/* tools/generate.c -- `verbatim generate`: continues a prompt. */
#include <stdlib.h>

#include "tools/cli/answer.h"
#include "tools/prompts/prompts.h"

static int report(struct answer *a, const vb_session *s, size_t prompt, const vb_result *r, int code)
{
    if (code != EXIT_OTHER && a->c->json)
        return cli_print_json(answer_json(a, s, prompt, r)) == EXIT_DONE ? code : EXIT_OTHER;
    if (code != EXIT_OTHER && !ferror(stdout)) /* else main says so */
        answer_statistics(a, s, prompt, r);
    return code;
}

/* The session before the first new token: a prompt, a loaded session, or both; *count tokens. */
static int open_timeline(struct cli *c, long long n, vb_session **session, size_t *count)
{
    int32_t *prompt = NULL;
    vb_error err;
    int code = EXIT_DONE;
    *count = 0;
    c->no_bos |= c->load && !c->bos; /* the text goes on */
    if (!c->load || c->prompt || c->prompt_file || c->tokens || c->chat)
        code = cli_prompt(c, &prompt, count);
    if (code == EXIT_DONE)
        code = c->load ? cli_load_session(c, *count, n, session) : cli_session(c, *count, n, session);
    if (code == EXIT_DONE && *count && vb_append(*session, prompt, *count, &err))
        code = cli_error(c, &err);
    if (code == EXIT_DONE)
        vb_tokens(*session, count);
    free(prompt);
    return code;
}

static int run(struct cli *c)
{
    size_t count;
    long long n = c->n < 0 ? 128 : c->n;
    vb_session *session = NULL;
    vb_result result = {.fingerprint = VB_FINGERPRINT_START};
    if (c->prompts)
        return prompts_run(c);
    int code = cli_check_file(c, "--save-session", c->save);
    if (code == EXIT_DONE)
        code = cli_open(c);
    c->session.progress = answer_show_prefill;
    c->session.stop = answer_stop;
    if (code == EXIT_DONE)
        code = open_timeline(c, n, &session, &count);
    if (code == EXIT_DONE) {
        struct answer answer = {.c = c};
        code = answer_generate(&answer, session, (size_t)n, &result);
        int ended = code == EXIT_DONE || code == EXIT_INTERRUPTED;
        int saved = c->save && ended ? cli_save_session(c, session, c->save) : EXIT_DONE;
        if (saved == EXIT_DONE)
            code = report(&answer, session, count, &result, code);
        else
            json_decref(answer.logprobs), code = saved;
    }
    vb_session_close(session);
    return code;
}

const struct command command_generate = {
    "generate", "continue a prompt",
    "usage: verbatim generate MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) [OPTIONS]\n"
    "usage: verbatim generate MODEL --chat [--system TEXT] [--messages FILE.json] [--prompt TEXT | --prompt-file FILE] [OPTIONS]\n"
    "usage: verbatim generate MODEL --prompts FILE.jsonl [-o OUT.jsonl] [--max-sequences N] [--cache-tokens N] [OPTIONS]\n"
    "usage: verbatim generate MODEL --session FILE [--prompt TEXT | ...] [OPTIONS]\n\n"
    "The text goes to stdout as it comes (accepted drafts are green on a terminal), one line of statistics to stderr.\n\n"
    "  --prompt TEXT          the prompt, as it stands: without --chat no chat template is applied\n"
    "  --prompt-file FILE     its bytes, as they are\n"
    "  --tokens IDS           5,6,7 or @FILE (integers separated by commas or white space); never with BOS\n"
    "  --bos, --no-bos        put BOS in front or not; otherwise tokenizer_config.json's add_bos_token says\n"
    "  --chat                 the prompt is what the checkpoint's chat template (chat_template.jinja, tokenizer_config.json, or\n"
    "                         tokenizer.chat_template of a GGUF file) makes of these, with no BOS of ours in front:\n"
    "  --messages FILE        a JSON array of messages, [{\"role\": \"user\", \"content\": \"Hello\"}, ...]; then\n"
    "                         --prompt or --prompt-file, as the user's message; one of the three must be there\n"
    "  --system TEXT          a system message in front\n"
    "  --chat-template-kwargs JSON    more variables of the template: {\"thinking\": true, \"tools\": [...]}\n"
    "  --prompts FILE         many prompts, computed side by side: a JSON object a line (-: stdin) with prompt, tokens (ids) or\n"
    "                         messages (for the chat template, as is prompt with --chat), and if wanted id, max_tokens, seed,\n"
    "                         temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, stop,\n"
    "                         draft, draft_tokens, which otherwise are those of the command line; each answer is the one that the\n"
    "                         prompt has by itself\n"
    "  -o FILE                of --prompts: a line per answer, as it is done (stdout); what is there already is not computed\n"
    "                         again, so the same command goes on after Ctrl-C or a crash\n"
    "  --max-sequences N      of --prompts: so many side by side, 1 to 64 (8)\n"
    "  --cache-tokens N       of --prompts: tokens that the cache holds for all together (N times the longest with what it may\n"
    "                         become); when it is full the youngest waits, and is computed again\n"
    "  --session FILE         go on from a saved session (verbatim session --help), with the prompt, if there is one, behind it\n"
    "  --save-session FILE    save the session when the text is done; a file that exists is replaced only with --force\n"
    "  --without-hidden       save it without hidden rows\n"
    "  -n N                   new tokens at most (128)\n"
    "  --ignore-eos           go on after an end token\n"
    CLI_DRAFT_HELP
    "  --acceptance MODE      which drafts stand (strict). strict: those that are the target's tokens, chosen as without drafts;\n"
    "                         rejection: drafts are drawn at the same temperature and stand by chance: more of them at temperature\n"
    "                         1, the same distribution as without drafts, another text; relaxed: between the thinking tokens also\n"
    "                         what is close to the best; lossy\n"
    "  --draft-sample-method M   of rejection: probabilistic, greedy: drafts are the best of their rows (probabilistic)\n"
    "  --relaxed-topk N, --relaxed-delta P, --thinking-tokens BEGIN,END   of relaxed: among the N best and at most P less probable\n"
    "                         than the best, at temperature 1 (10, 0.6); ids or texts of one token each (<think>,</think>)\n"
    "  --padded               passes of a round are filled up to K+1 rows, as systems with fixed shapes do; same output\n"
    "  --convention LIST      NAME=VALUE,...: how other implementations do it; verbatim conventions lists them. Those of\n"
    "                         drafting change no output\n"
    "  --as SYSTEM            all conventions of vllm-2025, sglang, mindie, llama.cpp, ...\n"
    "  --temperature T        0 takes the most likely token (0)\n"
    "  --top-k N, --top-p P   0 and 1 are off (0, 1)\n"
    "  --min-p P              leaves out tokens less likely than P times the likeliest; 0 is off (0)\n"
    "  --seed N               of the random numbers (0)\n"
    "  --repetition-penalty R    of tokens in prompt or output: z > 0 ? z/R : z*R; 0 and 1 are off (1)\n"
    "  --presence-penalty X, --frequency-penalty X   minus X, minus X times its count, for a token in the output (0, 0)\n"
    "  --logit-bias ID:VALUE,..  added to logits before all else; -inf forbids a token\n"
    "  --stop TEXT            end with the token that completes TEXT in the output, which then ends before it; may be repeated\n"
    "  --threads N            at most N threads (the processors this process may use); fewer where that is faster\n"
    "  --isa NAME             best, scalar, avx2, avx512, neon (best)\n"
    "  --precision MODE       f32; bf16: what linear layers take is rounded to bf16, faster prompts; q8, q4: their weights are\n"
    "                         quantised to 8 or 4 bits, faster tokens (f32)\n"
    "  --repack WHETHER       on, off (on): quantised weights are put into a faster order when the model is opened; same output\n"
    "  --prefill-chunk N      rows of the prompt in one pass (512)\n"
    "  --prefill WHO          contract, or onednn: for speed, the prompt goes through oneDNN's linear layers in chunks of 512,\n"
    "                         with BF16 weights rounded as in --precision bf16. Other bits, and others on another kind of\n"
    "                         machine; drafts, threads and ISA change none of them (contract)\n"
    "  --context N            tokens that the caches hold (prompt + n)\n"
    "  --numa MODE            off, interleave, bind (off): where threads and pages of weights go on a machine with several\n"
    "                         memories; reads all weights first; same output\n"
    "  --mlock                lock the weights into memory: reads them all first; a warning where the limit is too low\n"
    "  --stats                more statistics, on stderr: by depth, load time, copies of weights, time to first token, peak\n"
    "                         memory, --numa\n"
    "  --json                 of --prompts with -o: the statistics as an object; else one object on stdout: prompt_tokens, tokens, text, finish_reason, stop_string, fingerprint,\n"
    "                         draft, draft_tokens, draft_topk, acceptance, lossy, stats\n"
    "  --logprobs N           with --json: `logprobs`, for each token its log-probability and the N likeliest tokens'\n"
    "                         (0 to 1000), from the logits it was chosen from, before temperature, top-k and top-p\n\n"
    "Ctrl-C ends the text before the next layer of the model, with its statistics (finish_reason `interrupted`) and exit code 130.\n",
    TAKES_LOGPROBS | TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH | TAKES_STATS | TAKES_PREFILL | TAKES_STOP |
        TAKES_ACCEPTANCE | TAKES_SESSION | TAKES_SAVE | TAKES_SAVE_AFTER | TAKES_PROMPTS,
    run};
