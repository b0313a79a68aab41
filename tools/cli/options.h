/* tools/cli/options.h -- the table of options. The parser, the help and the manual page are made from it. */
#ifndef VB_CLI_OPTIONS_H
#define VB_CLI_OPTIONS_H

#include "tools/cli/cli.h"

enum option_kind {
    TEXT_VALUE, FLAG, INT_VALUE, LONG_VALUE, AUTO_VALUE, FLOAT_VALUE, SIGNED_VALUE, DOUBLE_VALUE, SEED_VALUE, STOP_VALUE, WORDS_VALUE
};

/* The headings of the help, in its order. */
enum heading {
    MODEL_OPTIONS, PROMPT_OPTIONS, CHAT_OPTIONS, SAMPLING_OPTIONS, DRAFT_OPTIONS, ACCEPTANCE_OPTIONS, OUTPUT_OPTIONS, MACHINE_OPTIONS,
    SESSION_OPTIONS, MANY_OPTIONS, COMPARE_OPTIONS, MEASURE_OPTIONS, QUANTISE_OPTIONS, HEADINGS
};

/* Two options may have the same name: then no command takes both. */
struct option {
    const char *name, *also; /* also: other names, separated by blanks; NULL: none */
    const char *value;       /* what the help calls the value; NULL: the option takes none */
    enum heading heading;
    unsigned takes;          /* a command takes the option when it takes any of these groups; 0: every command does */
    enum option_kind kind;
    size_t offset;           /* in struct cli */
    long long least, most;
    const char *help;        /* sentences; the help breaks the lines */
};

/* What runs a model; all the others. A name of NULL ends each. */
extern const struct option options_to_run[], options_to_inspect[];

/* Option i of both tables; NULL behind the last. */
const struct option *option_at(size_t i);
/* Whether one of the option's names has these characters. */
int option_is_called(const struct option *o, const char *name, size_t length);
int option_is_taken(const struct option *o, const struct command *k);

#endif
