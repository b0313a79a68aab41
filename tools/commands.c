/* tools/commands.c -- the `verbatim` command: finds the subcommand. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

static const struct command *const commands[] = {
    &command_generate, &command_chat, &command_verify, &command_logits, &command_draft, &command_tokenize,
    &command_inspect,  &command_demo,   &command_eval,   &command_dump,  &command_diff,
    &command_conventions, &command_trace, &command_bench, &command_quantize,
    &command_session, &command_serve, &command_score, &command_replay, &command_plan, &command_train, NULL};

/* `verbatim help [--short] [TOPIC]` */
static int help(const struct cli *c, int argc, char **argv)
{
    int is_short = argc > 2 && !strcmp(argv[2], "--short"), topic = 2 + is_short;
    if (argc > topic + 1)
        return cli_fail(c, EXIT_USAGE, "unexpected argument %.64s; help takes one topic", argv[topic + 1]);
    if (argc > topic)
        return cli_help_topic(c, argv[topic], is_short);
    cli_help(c, stdout);
    return EXIT_DONE;
}

/* If stdout could not be written, reports an error once. */
static int written(const struct cli *c, int code)
{
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    if (code == EXIT_DONE || c->json) /* in other cases, an error was already printed on stderr */
        fputs("verbatim: stdout cannot be written\n", stderr);
    return code == EXIT_DONE ? EXIT_OTHER : code;
}

int cli_main(int argc, char **argv, vb_ranks *ranks, int count)
{
    struct cli c = {.commands = commands, .group = ranks, .group_size = count, .n = -1, .context = -1,
                    .draft_tokens = -1, .runs = -1, .layer = -1, .mtp_num_layers = -1, .sequence = -1, .logprobs = -1,
                    .mtp_loss_scaling_factor = 0.1, .force_accept = -1, .rounds = -1, .port = -1, .max_waiting = -1,
                    .latency = -1, .train = CLI_TRAINING_NOT_GIVEN};
    cli_begin();
    c.started = cli_seconds();
    if (argc < 2) {
        cli_help(&c, stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "help"))
        return written(&c, help(&c, argc, argv));
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        cli_help(&c, stdout);
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
        cli_help_command(stdout, c.command, 0);
    else if (code == EXIT_DONE)
        code = c.command->run(&c);
    cli_close(&c);
    cli_lists_close(&c);
    return written(&c, code);
}
