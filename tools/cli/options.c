/* tools/cli/options.c -- the command line: one table of options, checked strictly. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/cli.h"
#include "tools/cli/naming.h"

enum option_kind { TEXT_VALUE, FLAG, INT_VALUE, LONG_VALUE, AUTO_VALUE, FLOAT_VALUE, SIGNED_VALUE, DOUBLE_VALUE, SEED_VALUE, STOP_VALUE };

struct option {
    const char *name;
    unsigned groups; /* taken by a command that takes any of these; 0: by all */
    enum option_kind kind;
    size_t offset;   /* in struct cli */
    long long least, most;
};

#define AT(field) offsetof(struct cli, field)
static const struct option options[] = {
    {"--json", 0, FLAG, AT(json), 0, 0},
    {"--threads", TAKES_COMPUTE | TAKES_QUANTIZE, INT_VALUE, AT(session.threads), 1, 4096},
    {"--isa", TAKES_COMPUTE, TEXT_VALUE, AT(session.isa), 0, 0},
    {"--precision", TAKES_COMPUTE | TAKES_CHECK, TEXT_VALUE, AT(precision), 0, 0},
    {"--repack", TAKES_COMPUTE | TAKES_CHECK, TEXT_VALUE, AT(repack), 0, 0},
    {"--numa", TAKES_COMPUTE, TEXT_VALUE, AT(numa), 0, 0},
    {"--mlock", TAKES_COMPUTE, FLAG, AT(mlock), 0, 0},
    {"--convention", TAKES_COMPUTE, TEXT_VALUE, AT(convention), 0, 0},
    {"--as", TAKES_COMPUTE, TEXT_VALUE, AT(as), 0, 0},
    {"--prefill", TAKES_PREFILL, TEXT_VALUE, AT(session.prefill), 0, 0},
    {"--prefill-chunk", TAKES_COMPUTE, INT_VALUE, AT(session.prefill_chunk), 1, 1 << 20},
    {"--context", TAKES_COMPUTE, LONG_VALUE, AT(context), 1, 1 << 30},
    {"--prompt", TAKES_PROMPT, TEXT_VALUE, AT(prompt), 0, 0},
    {"--prompt-file", TAKES_PROMPT, TEXT_VALUE, AT(prompt_file), 0, 0},
    {"--tokens", TAKES_PROMPT | TAKES_TOKENS | TAKES_EVAL | TAKES_DIFF, TEXT_VALUE, AT(tokens), 0, 0},
    {"--bos", TAKES_PROMPT | TAKES_TEXT | TAKES_EVAL, FLAG, AT(bos), 0, 0},
    {"--no-bos", TAKES_PROMPT | TAKES_EVAL, FLAG, AT(no_bos), 0, 0},
    {"--chat", TAKES_PROMPT, FLAG, AT(chat), 0, 0},
    {"--system", TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(system), 0, 0},
    {"--messages", TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(messages), 0, 0},
    {"--chat-template-kwargs", TAKES_PROMPT | TAKES_CHAT, TEXT_VALUE, AT(template_kwargs), 0, 0},
    {"--temperature", TAKES_SAMPLING, FLOAT_VALUE, AT(session.sampling.temperature), 0, 0},
    {"--top-k", TAKES_SAMPLING, INT_VALUE, AT(session.sampling.top_k), 0, 1 << 30},
    {"--top-p", TAKES_SAMPLING, FLOAT_VALUE, AT(session.sampling.top_p), 0, 0},
    {"--min-p", TAKES_SAMPLING, FLOAT_VALUE, AT(session.sampling.min_p), 0, 0},
    {"--seed", TAKES_SAMPLING, SEED_VALUE, AT(session.sampling.seed), 0, 0},
    {"--repetition-penalty", TAKES_SAMPLING, FLOAT_VALUE, AT(session.sampling.repetition_penalty), 0, 0},
    {"--presence-penalty", TAKES_SAMPLING, SIGNED_VALUE, AT(session.sampling.presence_penalty), 0, 0},
    {"--frequency-penalty", TAKES_SAMPLING, SIGNED_VALUE, AT(session.sampling.frequency_penalty), 0, 0},
    {"--logit-bias", TAKES_SAMPLING, TEXT_VALUE, AT(sampling.logit_bias), 0, 0},
    {"--acceptance", TAKES_ACCEPTANCE, TEXT_VALUE, AT(session.sampling.acceptance), 0, 0},
    {"--draft-sample-method", TAKES_ACCEPTANCE, TEXT_VALUE, AT(session.sampling.draft_sample_method), 0, 0},
    {"--relaxed-topk", TAKES_ACCEPTANCE, INT_VALUE, AT(session.sampling.relaxed_topk), 1, 1 << 30},
    {"--relaxed-delta", TAKES_ACCEPTANCE, TEXT_VALUE, AT(sampling.relaxed_delta), 0, 0},
    {"--thinking-tokens", TAKES_ACCEPTANCE, TEXT_VALUE, AT(sampling.thinking), 0, 0},
    {"--draft", TAKES_DRAFT, TEXT_VALUE, AT(session.drafting.method), 0, 0},
    {"--draft-tokens", TAKES_DRAFT, AUTO_VALUE, AT(draft_tokens), 0, VB_MAX_DRAFT},
    {"--draft-topk", TAKES_DRAFT | TAKES_BENCH, INT_VALUE, AT(session.drafting.tree.topk), 1, VB_MAX_TOPK},
    {"--draft-nodes", TAKES_DRAFT | TAKES_BENCH, INT_VALUE, AT(session.drafting.tree.nodes), 1, VB_MAX_NODES},
    {"--padded", TAKES_DRAFT, FLAG, AT(session.padded), 0, 0},
    {"--speculative-config", TAKES_DRAFT, TEXT_VALUE, AT(foreign.vllm), 0, 0},
    {"--speculative_config", TAKES_DRAFT, TEXT_VALUE, AT(foreign.vllm), 0, 0}, /* its documents write both */
    {"--plugin-params", TAKES_DRAFT, TEXT_VALUE, AT(foreign.mindie), 0, 0},
    {"--spec_decode_algo", TAKES_DRAFT, TEXT_VALUE, AT(foreign.trt_algorithm), 0, 0},
    {"--spec_decode_max_draft_len", TAKES_DRAFT, TEXT_VALUE, AT(foreign.trt_length), 0, 0},
    {"--use_mtp_vanilla", TAKES_DRAFT, FLAG, AT(foreign.mtp_vanilla), 0, 0},
    {"--use_relaxed_acceptance_for_thinking", TAKES_DRAFT, FLAG, AT(foreign.relaxed), 0, 0},
    {"--relaxed_topk", TAKES_DRAFT, TEXT_VALUE, AT(foreign.relaxed_topk), 0, 0},
    {"--relaxed_delta", TAKES_DRAFT, TEXT_VALUE, AT(foreign.relaxed_delta), 0, 0},
    {"--spec-type", TAKES_DRAFT, TEXT_VALUE, AT(foreign.llama_type), 0, 0},
    {"--spec-draft-n-max", TAKES_DRAFT, TEXT_VALUE, AT(foreign.llama_length), 0, 0},
    {"--stop", TAKES_STOP, STOP_VALUE, AT(sampling.stop), 0, MOST_STOPS},
    {"--draft-p-min", TAKES_DRAFT, FLOAT_VALUE, AT(session.drafting.p_min), 0, 0},
    {"--ngram-min", TAKES_DRAFT, INT_VALUE, AT(drafting.ngram_min), 1, 64},
    {"--ngram-max", TAKES_DRAFT, INT_VALUE, AT(drafting.ngram_max), 1, 64},
    {"--draft-settings", TAKES_DRAFT, TEXT_VALUE, AT(drafting.given_settings), 0, 0},
    {"--draft-model", TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.model_dir), 0, 0},
    {"--draft-precision", TAKES_DRAFT | TAKES_BENCH, TEXT_VALUE, AT(drafting.precision), 0, 0},
    {"-n", TAKES_LENGTH, LONG_VALUE, AT(n), 0, 1 << 30},
    {"--ignore-eos", TAKES_LENGTH, FLAG, AT(ignore_eos), 0, 0},
    {"--logprobs", TAKES_LOGPROBS, LONG_VALUE, AT(logprobs), 0, 1000},
    {"-o", TAKES_OUT | TAKES_PROMPTS, TEXT_VALUE, AT(out), 0, 0},
    {"--prompts", TAKES_PROMPTS, TEXT_VALUE, AT(prompts), 0, 0},
    {"--max-sequences", TAKES_PROMPTS, INT_VALUE, AT(max_sequences), 1, 64},
    {"--cache-tokens", TAKES_PROMPTS, LONG_VALUE, AT(cache_tokens), 1, INT32_MAX},
    {"--rounds", TAKES_BENCH | TAKES_DEMO, LONG_VALUE, AT(rounds), 1, 1 << 20},
    {"--held-out", TAKES_DEMO, TEXT_VALUE, AT(held_out), 0, 0},
    {"--large", TAKES_DEMO, FLAG, AT(large), 0, 0},
    {"--force-accept", TAKES_BENCH, DOUBLE_VALUE, AT(force_accept), 0, 0},
    {"--only", TAKES_BENCH, TEXT_VALUE, AT(only), 0, 0},
    {"--long", TAKES_BENCH, FLAG, AT(longer), 0, 0},
    {"--svg", TAKES_BENCH, TEXT_VALUE, AT(svg), 0, 0},
    {"--type", TAKES_QUANTIZE, TEXT_VALUE, AT(type), 0, 0},
    {"--embedding-type", TAKES_QUANTIZE, TEXT_VALUE, AT(embedding_type), 0, 0},
    {"--head-type", TAKES_QUANTIZE, TEXT_VALUE, AT(head_type), 0, 0},
    {"--force", TAKES_QUANTIZE | TAKES_SAVE, FLAG, AT(force), 0, 0},
    {"--session", TAKES_SESSION, TEXT_VALUE, AT(load), 0, 0},
    {"--save-session", TAKES_SAVE_AFTER, TEXT_VALUE, AT(save), 0, 0},
    {"--without-hidden", TAKES_SAVE, FLAG, AT(without_hidden), 0, 0},
    {"--against", TAKES_AGAINST, TEXT_VALUE, AT(against), 0, 0},
    {"--html", TAKES_HTML, TEXT_VALUE, AT(html), 0, 0},
    {"--stats", TAKES_STATS, FLAG, AT(stats), 0, 0},
    {"--all", TAKES_ALL | TAKES_DIFF, FLAG, AT(all), 0, 0},
    {"--check", TAKES_CHECK, FLAG, AT(check), 0, 0},
    {"--file", TAKES_TEXT | TAKES_EVAL, TEXT_VALUE, AT(file), 0, 0},
    {"--decode", TAKES_TEXT, TEXT_VALUE, AT(decode), 0, 0},
    {"--mtp-loss-scaling-factor", TAKES_EVAL, DOUBLE_VALUE, AT(mtp_loss_scaling_factor), 0, 0},
    {"--taps", TAKES_TAPS, TEXT_VALUE, AT(taps), 0, 0},
    {"--reference", TAKES_REFERENCE, FLAG, AT(reference), 0, 0},
    {"--names", TAKES_NAMES | TAKES_AGAINST, TEXT_VALUE, AT(names), 0, 0},
    {"--bits", TAKES_DIFF, FLAG, AT(bits), 0, 0},
    {"--runs", TAKES_DIFF, LONG_VALUE, AT(runs), 0, 1000},
    {"--model", TAKES_DIFF, TEXT_VALUE, AT(model_of_bound), 0, 0},
    {"--arithmetic", TAKES_DIFF, TEXT_VALUE, AT(arithmetic), 0, 0},
    {"--layout-a", TAKES_DIFF | TAKES_AGAINST, TEXT_VALUE, AT(layout_a), 0, 0},
    {"--layout-b", TAKES_DIFF, TEXT_VALUE, AT(layout_b), 0, 0},
    {"--no-special", TAKES_TEXT, FLAG, AT(no_special), 0, 0},
};

static int store(struct cli *c, const struct option *o, const char *value)
{
    char *end = NULL, *field = (char *)c + o->offset;
    errno = 0;
    if (o->kind == FLAG) {
        *(int *)(void *)field = 1;
    } else if (o->kind == TEXT_VALUE) {
        *(const char **)(void *)field = value;
    } else if (o->kind == STOP_VALUE) { /* may be given again and again */
        if (c->sampling.num_stops == (int)o->most)
            return cli_fail(c, EXIT_USAGE, "%s is given more than %lld times", o->name, o->most);
        c->sampling.stop[c->sampling.num_stops++] = value;
    } else if (o->kind == DOUBLE_VALUE) {
        double f = strtod(value, &end);
        if (end == value || *end || !isfinite(f) || f < 0.0)
            return cli_fail(c, EXIT_USAGE, "%s is %s, wanted a number of 0 or more", o->name, value);
        *(double *)(void *)field = f;
    } else if (o->kind == FLOAT_VALUE || o->kind == SIGNED_VALUE) {
        float f = strtof(value, &end);
        if (end == value || *end || !isfinite(f) || (f < 0.0f && o->kind == FLOAT_VALUE))
            return cli_fail(c, EXIT_USAGE, "%s is %s, wanted a number%s", o->name, value,
                            o->kind == FLOAT_VALUE ? " of 0 or more" : "");
        *(float *)(void *)field = f;
    } else if (o->kind == SEED_VALUE) {
        unsigned long long u = strtoull(value, &end, 10);
        if (end == value || *end || errno || strchr(value, '-'))
            return cli_fail(c, EXIT_USAGE, "%s is %s, wanted an integer from 0 to 18446744073709551615", o->name, value);
        *(uint64_t *)(void *)field = u;
    } else {
        int is_auto = o->kind == AUTO_VALUE && !strcmp(value, "auto");
        long long i = is_auto ? CLI_AUTO : strtoll(value, &end, 10);
        if (!is_auto && (end == value || *end || errno || i < o->least || i > o->most))
            return cli_fail(c, EXIT_USAGE, "%s is %s, wanted %san integer from %lld to %lld", o->name, value,
                            o->kind == AUTO_VALUE ? "auto or " : "", o->least, o->most);
        if (o->kind == INT_VALUE)
            *(int32_t *)(void *)field = (int32_t)i;
        else
            *(long long *)(void *)field = i;
    }
    return EXIT_DONE;
}

static int positional(struct cli *c, const char *value)
{
    if (!c->model_dir)
        c->model_dir = value;
    else if (c->command->takes & TAKES_TEXT && !c->text)
        c->text = value;
    else if (c->command->takes & TAKES_DIFF && !c->other)
        c->other = value;
    else
        return cli_fail(c, EXIT_USAGE, "unexpected argument %s; see verbatim %s --help", value, c->command->name);
    return EXIT_DONE;
}

/* The option that an argument names; *length: of the name, *equals: where its value begins, or NULL. */
static const struct option *find(const char *arg, size_t *length, const char **equals)
{
    *equals = arg[0] == '-' ? strchr(arg, '=') : NULL;
    *length = *equals ? (size_t)(*equals - arg) : strlen(arg);
    for (size_t k = 0; k < sizeof options / sizeof *options; k++)
        if (strlen(options[k].name) == *length && !strncmp(options[k].name, arg, *length))
            return &options[k];
    return NULL;
}

/* --help and --json hold from wherever they stand: the one before all else, the other for the errors before it too.
 * A value that reads like them, and what follows --, is neither. */
static void look_ahead(struct cli *c, int argc, char **argv)
{
    size_t length;
    const char *equals;
    for (int i = 2; i < argc && strcmp(argv[i], "--"); i++) {
        const struct option *o = find(argv[i], &length, &equals);
        c->help |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
        c->json |= o && !strcmp(argv[i], "--json");
        if (o && o->kind != FLAG && !equals)
            i++;
    }
}

static int one_argument(struct cli *c, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *equals;
    size_t length;
    if (arg[0] != '-' || arg[1] == '\0')
        return positional(c, arg);
    const struct option *o = find(arg, &length, &equals);
    if (!o)
        return cli_fail(c, EXIT_USAGE, "unknown option %.*s; see verbatim %s --help", (int)length, arg, c->command->name);
    if (o->groups && !(o->groups & c->command->takes))
        return cli_fail(c, EXIT_USAGE, "verbatim %s has no option %s", c->command->name, o->name);
    if (o->kind == FLAG && equals)
        return cli_fail(c, EXIT_USAGE, "%s takes no value", o->name);
    if (o->kind == FLAG)
        return store(c, o, NULL);
    if (!equals && *i + 1 >= argc)
        return cli_fail(c, EXIT_USAGE, "%s wants a value", o->name);
    return store(c, o, equals ? equals + 1 : argv[++*i]);
}

/* Output is written beside its place and renamed: where a link or a device is, that would take its place (/dev/null!). */
static int check_output(const struct cli *c, const char *option, const char *path)
{
    struct stat link, end;
    if (path && !*path)
        return cli_fail(c, EXIT_USAGE, "%s is empty", option);
    if (!path || lstat(path, &link) || S_ISREG(link.st_mode) || S_ISDIR(link.st_mode) ||
        (S_ISLNK(link.st_mode) && !stat(path, &end) && S_ISDIR(end.st_mode)))
        return EXIT_DONE;
    return cli_fail(c, EXIT_OTHER, "%s %s: there is a link or a device, which a file would replace", option, path);
}

/* --prompts, and what is of no use with it or without. */
static int check_prompts(const struct cli *c)
{
    const char *with[] = {c->prompt ? "--prompt" : NULL, c->prompt_file ? "--prompt-file" : NULL, c->tokens ? "--tokens" : NULL,
                          c->messages ? "--messages" : NULL, c->load ? "--session" : NULL, c->save ? "--save-session" : NULL,
                          c->logprobs >= 0 ? "--logprobs" : NULL,
                          c->session.prefill && strcmp(c->session.prefill, "contract") ? "--prefill onednn" : NULL};
    const char *without = c->out ? "-o" : c->max_sequences ? "--max-sequences" : c->cache_tokens ? "--cache-tokens" : NULL;
    if (!c->prompts)
        return without ? cli_fail(c, EXIT_USAGE, "%s wants --prompts", without) : EXIT_DONE;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        if (with[i])
            return cli_fail(c, EXIT_USAGE, "--prompts and %s do not go together", with[i]);
    if (c->json && !c->out)
        return cli_fail(c, EXIT_USAGE, "--json wants -o with --prompts: without it the answers, which are JSON, are on stdout");
    return c->out && !*c->out ? cli_fail(c, EXIT_USAGE, "-o is empty") : EXIT_DONE;
}

/* What the table cannot say: which values go together. */
static int check(struct cli *c)
{
    int prompts = !!c->prompt + !!c->prompt_file + !!c->tokens;
    c->threads_given = c->session.threads != 0;
    c->isa_given = c->session.isa != NULL;
    c->draft_given = c->session.drafting.method != NULL;
    if (!c->model_dir && c->command->takes & TAKES_NO_MODEL)
        return EXIT_DONE;
    if (c->command->takes & TAKES_DIFF && !c->other)
        return cli_fail(c, EXIT_USAGE, "wanted two to compare, A and B; see verbatim %s --help", c->command->name);
    if (!c->model_dir)
        return cli_fail(c, EXIT_USAGE, "MODEL is missing; see verbatim %s --help", c->command->name);
    if (c->names && !naming_find(c->names))
        return cli_fail(c, EXIT_USAGE, "unknown system %s in --names; known are %s", c->names, naming_known());
    if (c->arithmetic && strcmp(c->arithmetic, "f32") && strcmp(c->arithmetic, "f16") && strcmp(c->arithmetic, "bf16"))
        return cli_fail(c, EXIT_USAGE, "--arithmetic is %s, wanted f32, f16 or bf16", c->arithmetic);
    for (int side = 0; side < 2; side++) {
        const char *layout = side ? c->layout_b : c->layout_a;
        if (layout && strcmp(layout, "interleaved") && strcmp(layout, "halves"))
            return cli_fail(c, EXIT_USAGE, "--layout-%c is %s, wanted interleaved or halves", "ab"[side], layout);
    }
    int many = c->command->takes & TAKES_PROMPTS ? check_prompts(c) : EXIT_DONE;
    if (many != EXIT_DONE)
        return many;
    int chat = cli_check_chat(c);
    if (chat != EXIT_DONE)
        return chat;
    if (c->command->takes & TAKES_PROMPT && prompts != 1 && !((c->chat || c->load || c->prompts) && !prompts))
        return cli_fail(c, EXIT_USAGE, "wanted one of --prompt, --prompt-file and --tokens, found %d", prompts);
    if (c->command->takes & TAKES_TOKENS && !c->tokens)
        return cli_fail(c, EXIT_USAGE, "--tokens is missing; see verbatim %s --help", c->command->name);
    if (c->command->takes & TAKES_OUT && !c->out)
        return cli_fail(c, EXIT_USAGE, "-o is missing; see verbatim %s --help", c->command->name);
    int output = c->prompts ? EXIT_DONE : check_output(c, "-o", c->out); /* answers are appended: a link is followed */
    if (output == EXIT_DONE)
        output = check_output(c, "--html", c->html);
    if (output == EXIT_DONE)
        output = check_output(c, "--svg", c->svg);
    if (output == EXIT_DONE)
        output = check_output(c, "--save-session", c->save);
    if (output != EXIT_DONE)
        return output;
    if (c->bos && c->no_bos)
        return cli_fail(c, EXIT_USAGE, "--bos and --no-bos contradict each other");
    if (c->logprobs >= 0 && !c->json)
        return cli_fail(c, EXIT_USAGE, "--logprobs wants --json");
    if (c->force_accept > 1.0)
        return cli_fail(c, EXIT_USAGE, "--force-accept is %g, wanted a number from 0 to 1", c->force_accept);
    int code = cli_sampling(c);
    return code == EXIT_DONE ? cli_drafting(c) : code;
}

/* `verbatim session` becomes the command "session ACTION", of argv[2]. */
static int find_action(struct cli *c, int argc, char **argv)
{
    const char *name = c->command->name, *found = argc > 2 ? argv[2] : "nothing";
    char known[128] = "";
    for (const struct command *const *a = session_actions; *a; a++) {
        const char *action = (*a)->name + strlen(name) + 1;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? " or " : "", action);
        if (argc > 2 && !strcmp(action, argv[2])) {
            c->command = *a;
            return EXIT_DONE;
        }
    }
    return cli_fail(c, EXIT_USAGE, "%s wants %s, found %.64s; see verbatim %s --help", name, known, found, name);
}

int cli_parse(struct cli *c, int argc, char **argv)
{
    int code = EXIT_DONE, only_arguments = 0, first = 2;
    look_ahead(c, argc, argv);
    if (!c->command)
        return cli_fail(c, EXIT_USAGE, "unknown command %s; see verbatim --help", argv[1]);
    if (c->help)
        return EXIT_DONE;
    if (c->command == &command_session) {
        code = find_action(c, argc, argv);
        first = 3;
    }
    for (int i = first; i < argc && code == EXIT_DONE; i++) {
        if (!only_arguments && !strcmp(argv[i], "--"))
            only_arguments = 1;
        else
            code = only_arguments ? positional(c, argv[i]) : one_argument(c, argc, argv, &i);
    }
    if (code == EXIT_DONE)
        code = cli_foreign_draft(c);
    return code == EXIT_DONE ? check(c) : code;
}
