/* tools/main.c -- the `verbatim` command: finds the subcommand. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

static const struct command *const commands[] = {
    &command_generate, &command_chat, &command_verify, &command_logits, &command_draft, &command_tokenize,
    &command_inspect,  &command_demo,   &command_eval,   &command_dump,  &command_diff,
    &command_conventions, &command_trace, &command_bench, &command_quantize,
    &command_session, NULL};

static void help(FILE *to)
{
    fputs("verbatim: a reference engine for DeepSeek-style models (MLA, MoE, MTP)\n"
          "Drafts tokens with the model's own MTP modules; the output is, bit for bit, that of plain decoding.\n\n"
          "usage: verbatim COMMAND MODEL [OPTIONS]\n\n",
          to);
    for (const struct command *const *c = commands; *c; c++)
        fprintf(to, "  %-11s %s\n", (*c)->name, (*c)->summary);
    fputs("\nMODEL is a directory in the Hugging Face layout, or a GGUF file (of a set, the first).\n"
          "`verbatim COMMAND --help` explains a command.\n"
          "Exit codes: 0 done, 1 an error, 2 the command line is wrong, 3 a difference was found, 130 Ctrl-C.\n",
          to);
}

/* Output that did not arrive is an error, said once. */
static int written(const struct cli *c, int code)
{
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    if (code == EXIT_DONE || c->json) /* else stderr has its sentence */
        fputs("verbatim: stdout cannot be written\n", stderr);
    return code == EXIT_DONE ? EXIT_OTHER : code;
}

static void print_help(const struct command *c)
{
    printf("verbatim %s: %s\n\n%s", c->name, c->summary, c->usage);
    if (c->takes & TAKES_DRAFT)
        cli_list_methods(stdout);
}

int main(int argc, char **argv)
{
    struct cli c = {.n = -1, .context = -1, .draft_tokens = -1, .runs = -1, .logprobs = -1, .mtp_loss_scaling_factor = 0.1, .force_accept = -1, .rounds = -1};
    c.started = cli_seconds();
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error like any other */
    if (argc < 2) {
        help(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help(stdout);
        return written(&c, EXIT_DONE);
    }
    if (!strcmp(argv[1], "--version")) {
        printf("verbatim %s\n", vb_version());
        return written(&c, EXIT_DONE);
    }
    for (const struct command *const *k = commands; *k; k++)
        if (!strcmp((*k)->name, argv[1]))
            c.command = *k;
    int code = cli_parse(&c, argc, argv);
    if (code == EXIT_DONE && c.help)
        print_help(c.command);
    else if (code == EXIT_DONE)
        code = c.command->run(&c);
    cli_close(&c);
    return written(&c, code);
}
