/* tools/cli/options.c -- parses the command line with the table of options, and checks it strictly. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/filter.h"
#include "tools/cli/naming_file.h"
#include "tools/cli/options.h"

const struct option *option_at(size_t i)
{
    static const struct option *const tables[] = {options_to_run, options_to_inspect, options_to_train};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct option *o = tables[t]; o->name; o++)
            if (!i--)
                return o;
    return NULL;
}

int option_is_called(const struct option *o, const char *name, size_t length)
{
    if (strlen(o->name) == length && !strncmp(o->name, name, length))
        return 1;
    for (const char *also = o->also; also && *also; also += strspn(also, " ")) {
        size_t size = strcspn(also, " ");
        if (size == length && !strncmp(also, name, length))
            return 1;
        also += size;
    }
    return 0;
}

int option_is_taken(const struct option *o, const struct command *k) { return !o->takes || o->takes & k->takes; }

static int store(struct cli *c, const struct option *o, const char *value)
{
    char *end = NULL, *field = (char *)c + o->offset;
    errno = 0;
    if (o->kind == FLAG) {
        *(int *)(void *)field = 1;
    } else if (o->kind == TEXT_VALUE || o->kind == WORDS_VALUE) {
        *(const char **)(void *)field = value;
    } else if (o->kind == LIST_VALUE) {
        char **list = (char **)(void *)field, *longer;
        cli_must(asprintf(&longer, "%s%s%s", *list ? *list : "", *list ? "," : "", value) < 0 ? NULL : longer);
        free(*list);
        *list = longer;
    } else if (o->kind == STOP_VALUE) { /* this option may be given several times */
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
            return cli_fail(c, EXIT_USAGE, "%s is %s, wanted an integer from 0 to 18446744073709551615", o->name,
                            value);
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

void cli_lists_close(struct cli *c)
{
    free(c->taps);
    free(c->gather);
    free(c->train.data);
    free(c->train.eval_data);
    c->taps = c->gather = c->train.data = c->train.eval_data = NULL;
    naming_file_close(c->naming);
    c->naming = NULL;
}

static int positional(struct cli *c, const char *value)
{
    if (!c->model_dir && !c->model_option)
        c->model_dir = value;
    else if (c->command->takes & TAKES_TEXT && !c->text)
        c->text = value;
    else if (c->command->takes & (TAKES_DIFF | TAKES_REPLAY) && !c->other)
        c->other = value;
    else
        return cli_fail(c, EXIT_USAGE, "unexpected argument %s; see verbatim %s --help", value, c->command->name);
    return EXIT_DONE;
}

/* Finds the option that an argument names. If several options have this name, prefers one that the command accepts.
 * *length: the length of the name; *equals: points to the equals sign before the value, or NULL. */
static const struct option *find(const struct cli *c, const char *arg, size_t *length, const char **equals)
{
    const struct option *o, *found = NULL;
    *equals = arg[0] == '-' ? strchr(arg, '=') : NULL;
    *length = *equals ? (size_t)(*equals - arg) : strlen(arg);
    for (size_t i = 0; (o = option_at(i)); i++)
        if (option_is_called(o, arg, *length) && (!found || (c->command && option_is_taken(o, c->command))))
            found = o;
    return found;
}

/* Looks for --help, --json and --model before the arguments are parsed, because their place does not matter. --help
 * takes precedence over everything else. --json also applies to errors in arguments before it. With --model, no
 * argument is MODEL. Values of other options and arguments after -- are not considered. */
static void look_ahead(struct cli *c, int argc, char **argv)
{
    size_t length;
    const char *equals;
    for (int i = 2; i < argc && strcmp(argv[i], "--"); i++) {
        const struct option *o = find(c, argv[i], &length, &equals);
        c->help |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
        c->json |= o && !strcmp(argv[i], "--json");
        if (o && o->offset == offsetof(struct cli, model_option))
            c->model_option = "";
        if (o && o->kind != FLAG)
            i += !equals + (o->kind == WORDS_VALUE);
    }
}

/* Returns the name of the option that is most similar to what the user wrote, among those that the command accepts, or
 * NULL if none is similar. */
static const char *nearest(const struct cli *c, const char *arg, size_t length)
{
    const struct option *o;
    const char *best = NULL;
    size_t least = length > 8 ? 3 : length > 4 ? 2 : 1; /* with more changes, any word can become any other */
    for (size_t i = 0; (o = option_at(i)); i++)
        if (option_is_taken(o, c->command)) {
            size_t d = cli_distance(o->name, strlen(o->name), arg, length);
            if (d <= least && (!best || d < least)) {
                best = o->name;
                least = d;
            }
        }
    return best;
}

static int unknown_option(const struct cli *c, const char *arg, size_t length)
{
    const char *best = nearest(c, arg, length), *system = cli_foreign_option(arg, length);
    if (system && c->command->takes & TAKES_DRAFT)
        return cli_fail(c, EXIT_USAGE, "unknown option %.*s; it is one of %s: write --draft-words %s '%.*s ...'",
                        (int)length, arg, system, system, (int)length, arg);
    if (best)
        return cli_fail(c, EXIT_USAGE, "unknown option %.*s; did you mean %s? See verbatim %s --help", (int)length, arg,
                        best, c->command->name);
    return cli_fail(c, EXIT_USAGE, "unknown option %.*s; see verbatim %s --help", (int)length, arg, c->command->name);
}

static int one_argument(struct cli *c, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *equals;
    size_t length;
    if (arg[0] != '-' || arg[1] == '\0')
        return positional(c, arg);
    const struct option *o = find(c, arg, &length, &equals);
    if (!o)
        return unknown_option(c, arg, length);
    if (!option_is_taken(o, c->command))
        return cli_fail(c, EXIT_USAGE, "verbatim %s has no option %.*s", c->command->name, (int)length, arg);
    if (o->kind == FLAG && equals)
        return cli_fail(c, EXIT_USAGE, "%.*s takes no value", (int)length, arg);
    if (o->kind == FLAG)
        return store(c, o, NULL);
    if (o->kind == WORDS_VALUE && *i + 1 + !equals >= argc)
        return cli_fail(c, EXIT_USAGE, "%s wants a system and, quoted as one argument, its words", o->name);
    if (!equals && *i + 1 >= argc)
        return cli_fail(c, EXIT_USAGE, "%.*s wants a value", (int)length, arg);
    int code = store(c, o, equals ? equals + 1 : argv[++*i]);
    if (o->kind == WORDS_VALUE)
        c->foreign.words = argv[++*i];
    return code;
}

/* A new file is written under another name and then renamed. A link or a device (/dev/null!) at this place would be
 * replaced, so it is refused. */
static int check_output(const struct cli *c, const char *option, const char *path)
{
    struct stat link, end;
    if (path && !*path)
        return cli_fail(c, EXIT_USAGE, "%s is empty", option);
    if (path && !strcmp(path, "-"))
        return cli_fail(c, EXIT_USAGE, "%s -: wanted the name of a file, not stdout", option);
    if (!path || lstat(path, &link) || S_ISREG(link.st_mode) || S_ISDIR(link.st_mode) ||
        (S_ISLNK(link.st_mode) && !stat(path, &end) && S_ISDIR(end.st_mode)))
        return EXIT_DONE;
    return cli_fail(c, EXIT_OTHER, "%s %s: there is a link or a device, which a file would replace", option, path);
}

/* Checks --prompts, the options that cannot be used with it, and the options that need it. */
static int check_prompts(const struct cli *c)
{
    const char *with[] = {c->prompt ? "--prompt" : NULL, c->prompt_file ? "--prompt-file" : NULL,
                          c->tokens ? "--tokens" : NULL, c->messages ? "--messages" : NULL,
                          c->load ? "--session" : NULL, c->save ? "--save-session" : NULL,
                          c->logprobs >= 0 ? "--logprobs" : NULL, c->routes_in ? "--routes-in" : NULL,
                          c->routes_out ? "--routes-out" : NULL, c->kept_in ? "--kept-in" : NULL,
                          c->kept_out ? "--kept-out" : NULL,
                          cli_has_prefill(c, "onednn") ? "--prefill onednn"
                          : cli_has_prefill(c, "cublas") ? "--prefill cublas"
                          : NULL};
    const char *without = c->out ? "-o"
                          : c->max_sequences ? "--max-sequences"
                          : c->cache_tokens ? "--cache-tokens"
                          : c->dp ? "--dp"
                          : NULL;
    if (!c->prompts)
        return without ? cli_fail(c, EXIT_USAGE, "%s wants --prompts", without) : EXIT_DONE;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        if (with[i])
            return cli_fail(c, EXIT_USAGE, "--prompts and %s do not go together", with[i]);
    if (c->json && !c->out && c->command->takes & TAKES_PROMPTS)
        return cli_fail(c, EXIT_USAGE,
                        "--json wants -o with --prompts: without it the answers, which are JSON, are on stdout");
    return c->out && !*c->out ? cli_fail(c, EXIT_USAGE, "-o is empty") : EXIT_DONE;
}

/* Reads the file of --names. Its lines translate to Verbatim's names only, so `dump` cannot use it. */
static int open_names(struct cli *c)
{
    struct stat st;
    if (c->command->takes & TAKES_TAPS || stat(c->names, &st))
        return cli_fail(c, EXIT_USAGE, "unknown system %s in --names; known are %s%s", c->names, naming_known(),
                        c->command->takes & TAKES_TAPS ? "" : ", and there is no such file");
    return naming_file_read(c, c->names, &c->naming);
}

/* Checks what the table of options cannot express: which options can be used together. */
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
    int named = c->names && !naming_find(c->names) ? open_names(c) : EXIT_DONE;
    if (named != EXIT_DONE)
        return named;
    if (c->arithmetic && strcmp(c->arithmetic, "f32") && strcmp(c->arithmetic, "f16") && strcmp(c->arithmetic, "bf16"))
        return cli_fail(c, EXIT_USAGE, "--arithmetic is %s, wanted f32, f16 or bf16", c->arithmetic);
    if (c->ties && strcmp(c->ties, "ok") && strcmp(c->ties, "report") && strcmp(c->ties, "fail"))
        return cli_fail(c, EXIT_USAGE, "--ties is %s, wanted ok, report or fail", c->ties);
    for (int i = 0; i < 2; i++) {
        const char *ranges = i ? c->steps : c->layers;
        if (ranges && !filter_is_ranges(ranges))
            return cli_fail(c, EXIT_USAGE, "%s is %s, wanted ranges of numbers, such as 0-3,7",
                            i ? "--steps" : "--layers", ranges);
    }
    for (int side = 0; side < 2; side++) {
        const char *layout = side ? c->layout_b : c->layout_a;
        if (layout && strcmp(layout, "interleaved") && strcmp(layout, "halves"))
            return cli_fail(c, EXIT_USAGE, "--layout-%c is %s, wanted interleaved or halves", "ab"[side], layout);
    }
    int many = c->command->takes & (TAKES_PROMPTS | TAKES_TRACE) ? check_prompts(c) : EXIT_DONE;
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
    /* with --prompts, answers are appended to the file, so a link is allowed */
    int appends = c->prompts || c->command->takes & TAKES_SCORE;
    if (appends && c->out && !strcmp(c->out, "-"))
        return cli_fail(c, EXIT_USAGE,
                        "-o -: wanted the name of a file; without -o, stdout gets the answers or scores");
    int output = appends ? EXIT_DONE : check_output(c, "-o", c->out);
    if (output == EXIT_DONE)
        output = check_output(c, "--html", c->html);
    if (output == EXIT_DONE)
        output = check_output(c, "--svg", c->svg);
    if (output == EXIT_DONE)
        output = check_output(c, "--save-session", c->save);
    if (output == EXIT_DONE)
        output = check_output(c, "--routes-out", c->routes_out);
    if (output == EXIT_DONE)
        output = check_output(c, "--kept-out", c->kept_out);
    if (output != EXIT_DONE)
        return output;
    if (c->bos && c->no_bos)
        return cli_fail(c, EXIT_USAGE, "--bos and --no-bos contradict each other");
    if (c->command->takes & TAKES_SCORE && c->json && !c->out)
        return cli_fail(c, EXIT_USAGE, "--json wants -o: without -o the scores, which are JSON, are on stdout");
    if (c->logprobs >= 0 && !c->json && !(c->command->takes & TAKES_SCORE))
        return cli_fail(c, EXIT_USAGE, "--logprobs wants --json");
    if (c->force_accept > 1.0)
        return cli_fail(c, EXIT_USAGE, "--force-accept is %g, wanted a number from 0 to 1", c->force_accept);
    int code = cli_sampling(c);
    return code == EXIT_DONE ? cli_drafting(c) : code;
}

/* Replaces a command by one of its actions: `verbatim session save` becomes the command "session save". The action is
 * argv[2]. */
static int find_action(struct cli *c, int argc, char **argv)
{
    const char *name = c->command->name, *found = argc > 2 ? argv[2] : "nothing";
    char known[128] = "";
    for (const struct command *const *a = c->command->actions; *a; a++) {
        const char *action = (*a)->name + strlen(name) + 1;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? " or " : "", action);
        if (argc > 2 && !strcmp(action, argv[2])) {
            c->command = *a;
            return EXIT_DONE;
        }
    }
    return cli_fail(c, EXIT_USAGE, "%s wants %s, found %.64s; see verbatim %s --help", name, known, found, name);
}

static int unknown_command(const struct cli *c, const char *name)
{
    size_t length = strlen(name);
    for (const struct command *const *k = c->commands; *k; k++)
        if (cli_distance((*k)->name, strlen((*k)->name), name, length) <= (length > 4 ? 2 : 1))
            return cli_fail(c, EXIT_USAGE, "unknown command %s; did you mean %s? See verbatim --help", name,
                            (*k)->name);
    return cli_fail(c, EXIT_USAGE, "unknown command %s; see verbatim --help", name);
}

int cli_parse(struct cli *c, int argc, char **argv)
{
    int code = EXIT_DONE, only_arguments = 0, first = 2;
    look_ahead(c, argc, argv);
    if (c->json)
        cli_say_json();
    if (!c->command)
        return unknown_command(c, argv[1]);
    if (c->help)
        return EXIT_DONE;
    if (c->command->actions) {
        code = find_action(c, argc, argv);
        first = 3;
        c->model_option = NULL; /* an action has other options than its command */
        look_ahead(c, argc, argv);
    }
    for (int i = first; i < argc && code == EXIT_DONE; i++) {
        if (!only_arguments && !strcmp(argv[i], "--"))
            only_arguments = 1;
        else
            code = only_arguments ? positional(c, argv[i]) : one_argument(c, argc, argv, &i);
    }
    if (c->model_option)
        c->model_dir = c->model_option;
    if (code == EXIT_DONE)
        code = cli_foreign_draft(c);
    return code == EXIT_DONE ? check(c) : code;
}
