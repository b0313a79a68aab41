/* tools/cli/options.h -- the table of all options. The parser, the help and the manual page use this table. */
#ifndef VB_CLI_OPTIONS_H
#define VB_CLI_OPTIONS_H

#include "tools/cli/cli.h"

/* The type of an option's value; it decides how the value is parsed. */
enum option_kind {
    TEXT_VALUE,
    FLAG,
    INT_VALUE,
    LONG_VALUE,
    AUTO_VALUE,
    FLOAT_VALUE,
    SIGNED_VALUE,
    DOUBLE_VALUE,
    SEED_VALUE,
    STOP_VALUE,
    WORDS_VALUE,
    LIST_VALUE /* may be given several times; the values are joined by commas */
};

/* The headings under which the help lists the options, in the order of the help. */
enum heading {
    MODEL_OPTIONS,
    PROMPT_OPTIONS,
    CHAT_OPTIONS,
    SAMPLING_OPTIONS,
    DRAFT_OPTIONS,
    ACCEPTANCE_OPTIONS,
    OUTPUT_OPTIONS,
    MACHINE_OPTIONS,
    SESSION_OPTIONS,
    MANY_OPTIONS,
    SERVE_OPTIONS,
    COMPARE_OPTIONS,
    MEASURE_OPTIONS,
    QUANTIZE_OPTIONS,
    PLAN_OPTIONS,
    TRAIN_OPTIONS,
    RUN_OPTIONS,
    HEADINGS
};

/* Two options may have the same name if no command takes both. */
struct option {
    const char *name, *also; /* also: other names of the option, separated by blanks; NULL: none */
    const char *value;       /* the word for the value in the help, such as FILE; NULL: the option has no value */
    enum heading heading;
    unsigned long long takes; /* bits of enum option_group: commands with any of these bits take the option; 0: all
                                 commands do */
    enum option_kind kind;
    size_t offset;           /* the offset of the value in struct cli, in bytes */
    long long least, most;   /* the smallest and the largest value, for integers */
    const char *help;        /* the help text, in sentences without line breaks */
};

/* The options of commands that run a model, of commands that compare, measure and convert, and of `train`. In each
 * table, the last entry has the name NULL. */
extern const struct option options_to_run[], options_to_inspect[], options_to_train[];

/* Option number i, counted over all tables; NULL after the last one. */
const struct option *option_at(size_t i);
/* Whether `name`, a string of `length` characters, is one of the option's names. */
int option_is_called(const struct option *o, const char *name, size_t length);
/* Whether the command takes the option. */
int option_is_taken(const struct option *o, const struct command *k);

#endif
