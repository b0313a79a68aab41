/* tools/cli/cli.h -- what the subcommands of `verbatim` share: options, prompts, errors, output. */
#ifndef VB_CLI_H
#define VB_CLI_H

#include <jansson.h>
#include <stdio.h>

#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "engine/base/utf8.h"

/* Exit codes: 0 done; 2 the command line is wrong; 3 a difference was found; 130 Ctrl-C; 1 everything else. */
enum exit_code { EXIT_DONE = 0, EXIT_OTHER = 1, EXIT_USAGE = 2, EXIT_DIFFERENCE = 3, EXIT_INTERRUPTED = 130 };

/* Of a GGUF file: what the missing key means. */
#define CLI_NO_GROUPS                                                                                                     \
    "has no expert_group_count: experts are chosen among all; a model that looks for them in its best groups only "       \
    "(DeepSeek-V2, V3 and R1 do) chooses others"

#define CLI_AUTO (-2) /* --draft-tokens auto */

/* Groups of options that a subcommand takes; tools/cli/options.h has the options. */
enum option_group {
    TAKES_COMPUTE = 1 << 0,  /* how a model is run: precision, threads, context, conventions */
    TAKES_PROMPT = 1 << 1,
    TAKES_SAMPLING = 1 << 2,
    TAKES_DRAFT = 1 << 3,
    TAKES_LENGTH = 1 << 4,   /* -n --ignore-eos */
    TAKES_OUT = 1 << 5,      /* -o, which must be given */
    TAKES_STATS = 1 << 6,
    TAKES_ALL = 1 << 7,      /* --all of verify */
    TAKES_CHECK = 1 << 8,
    TAKES_TEXT = 1 << 9,     /* a TEXT as an argument, --file, --decode */
    TAKES_TOKENS = 1 << 10,  /* --tokens, which must be given */
    TAKES_TAPS = 1 << 11,
    TAKES_EVAL = 1 << 12,    /* a text to be read: --file or --tokens */
    TAKES_REFERENCE = 1 << 13,
    TAKES_NAMES = 1 << 14,
    TAKES_DIFF = 1 << 15,    /* A and B as arguments */
    TAKES_HTML = 1 << 16,
    TAKES_NO_MODEL = 1 << 17, /* MODEL may be left out */
    TAKES_AGAINST = 1 << 18,
    TAKES_BENCH = 1 << 19,
    TAKES_PREFILL = 1 << 20,
    TAKES_QUANTIZE = 1 << 21,
    TAKES_LOGPROBS = 1 << 22,
    TAKES_CHAT = 1 << 23,    /* messages without a prompt */
    TAKES_SESSION = 1 << 24, /* --session, with which the prompt may be left out, and --save-session */
    TAKES_SAVE = 1 << 25,
    TAKES_DEMO = 1 << 26,
    TAKES_PROMPTS = 1 << 27,
    TAKES_STOP = 1 << 28,
    TAKES_ACCEPTANCE = 1 << 29,
    TAKES_MODEL = 1 << 30    /* MODEL may also be given as --model */
};

#define MOST_STOPS 16

/* What the command line says of sampling and session.sampling does not hold as it stands; see tools/cli/sampling.c. */
struct cli_sampling {
    const char *logit_bias;
    const char *stop[MOST_STOPS];
    int num_stops;
    const char *relaxed_delta, *thinking; /* as given */
    int32_t *bias_tokens;
    float *bias_values;
};

/* Drafting in the words of other systems, as given; cli_foreign_draft understands them. */
struct foreign_draft {
    const char *vllm, *mindie;         /* JSON; @FILE of MindIE's */
    const char *words_system, *words;  /* --draft-words; the two stand one behind the other */
    char *model_dir;                   /* a path that they name; --draft-model then points to it */
    char *words_read;                  /* a copy of words, cut into pieces */
    const char *by;                    /* the option that chose the method; NULL: none of these */
    char ignored[128];                 /* their keys that nothing here depends on */
    int relaxed;                       /* they ask for --acceptance relaxed */
};

/* Of drafting, what session does not hold as it stands; see tools/cli/drafting.c. */
struct cli_drafting {
    const char *model_dir, *precision, *given_settings;
    int32_t ngram_min, ngram_max; /* 0: not given */
    char settings[512];           /* all of them, as vb_drafting has them */
    vb_model *model; /* opened by cli_open; session.drafting.model */
};

struct cli {
    const struct command *command;
    const struct command *const *commands; /* all of them; NULL ends the list */
    const char *model_option;              /* --model */
    const char *model_dir, *text, *file, *prompt, *prompt_file, *tokens, *decode, *out, *precision, *repack, *taps, *names;
    const char *load, *save; /* --session, --save-session */
    const char *numa, *as, *convention, *html, *against, *svg, *only;
    const char *other, *model_of_bound, *layout_a, *layout_b, *arithmetic; /* of diff; model_dir is A, other is B */
    const char *system, *messages, *template_kwargs; /* of a conversation */
    const char *prompts; /* of generate: a file of them; then max_sequences and cache_tokens (0: not given) */
    int32_t max_sequences;
    long long cache_tokens;
    const char *where; /* what errors begin with: a line of a file; NULL: nothing */
    const char *type, *embedding_type, *head_type; /* of quantize */
    int longer; /* bench --long */
    const char *held_out; /* of demo, */
    int large;            /* and this too */
    int x_as_is; /* of reference_options; diff's own affair */
    int force;  /* files that exist are replaced */
    int without_hidden;
    int help, json, bos, no_bos, no_special, stats, all, check, ignore_eos, reference, bits, mlock, chat; /* flags */
    double mtp_loss_scaling_factor;
    double force_accept;        /* -1: not given */
    long long rounds;           /* -1: not given */
    long long n;                /* -1: not given */
    long long context;          /* -1: not given */
    long long draft_tokens;     /* -1: not given; CLI_AUTO: auto */
    long long runs;             /* -1: not given */
    long long logprobs;         /* -1: not given */
    int threads_given, isa_given, draft_given;
    int draft_by_system;        /* --as chose the draft method */
    struct foreign_draft foreign;
    vb_session_options session; /* threads, isa, prefill chunk, draft method, sampling */
    struct cli_sampling sampling;
    struct cli_drafting drafting;

    char conventions[512];      /* --as and --convention, as vb_model_options takes them */
    vb_model *model;            /* opened by cli_open */
    struct tokenizer *tokenizer; /* NULL without one */
    vb_error tokenizer_error;   /* why there is none */
    struct chat_template *template;  /* the chat template, opened by cli_open_template */
    double started;             /* cli_seconds() when the command began */
    double open_seconds;        /* of the model and the tokenizer, --numa and --mlock included */
};

/* What a command says of an option in place of the table's text. */
struct note {
    const char *option, *text;
};

/* What else distinguishes a command from the others. */
enum command_trait {
    COMPARES_METHODS = 1,  /* runs draft methods in turn where none is given: what belongs to one of them may then be given alone */
    DRAFTS_UNASKED = 2,    /* has a draft method where the command line names none */
    COMPARES_SYSTEMS = 4,  /* --as is what its runs begin with: it chooses no draft method */
    REPORTS_GROUPS = 8     /* says in its own report that expert groups are not known */
};

struct command {
    const char *name, *summary;
    const char *usage;     /* a line for each way to use it, without "verbatim NAME" */
    const char *about;     /* lines as they are printed */
    unsigned takes;        /* enum option_group */
    int (*run)(struct cli *c); /* returns an exit code */
    const struct note *notes;  /* an option of NULL ends them; NULL: none */
    unsigned traits;
    const struct command *const *actions; /* NULL, or the word behind the name is the name of one of these; NULL ends the list */
};

extern const struct command command_generate, command_verify, command_logits, command_draft, command_tokenize,
    command_inspect, command_demo, command_dump, command_diff, command_eval, command_conventions,
    command_trace, command_bench, command_quantize, command_chat, command_session;

/* Reports one sentence: stderr, or with --json {"error": ...} on stdout. Returns the exit code that belongs to it. */
int cli_error(const struct cli *c, const vb_error *err);
int cli_fail(const struct cli *c, int exit_code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Parses argv[2..] for the command. EXIT_DONE, or the exit code after the error was reported. */
int cli_parse(struct cli *c, int argc, char **argv);

/* All commands and groups of options; a command and the options that it takes (short: their names alone); a topic of
 * `verbatim help`: a group, a command or an option. Returns an exit code. */
void cli_help(const struct cli *c, FILE *to);
void cli_help_command(FILE *to, const struct command *k, int is_short);
int cli_help_topic(const struct cli *c, const char *topic, int is_short);

/* How many letters have to be changed, put in, left out or swapped to make the one word of the other. */
size_t cli_distance(const char *a, size_t a_length, const char *b, size_t b_length);

/* The sampling options that were given, checked and read into session.sampling. Reports errors. */
int cli_sampling(struct cli *c);
void cli_sampling_close(struct cli *c);
/* The model and its tokenizer are open: relaxed acceptance gets its thinking tokens. Reports errors. */
int cli_thinking(struct cli *c);
const char *cli_acceptance(const struct cli *c); /* its name */
int cli_is_rejection(const struct cli *c);
int cli_is_relaxed(const struct cli *c);
/* The model and its tokenizer are open: stop strings go into o, with the tokenizer. Reports errors. */
int cli_stops(const struct cli *c, vb_generate_options *o);

/* The words of other systems, and --as, become --draft, --draft-tokens and so on; contradictions are refused. What was chosen is
 * told on stderr when the model is open. */
int cli_foreign_draft(struct cli *c);
void cli_tell_foreign_draft(const struct cli *c);
void cli_foreign_close(struct cli *c);
/* The system that writes this option, which is not ours; NULL: none that is known. */
const char *cli_foreign_option(const char *name, size_t length);

/* The options of drafting that were given, checked; then, by cli_open, --draft-model and what the method needs. Report errors. */
int cli_drafting(struct cli *c);
int cli_drafting_open(struct cli *c, const vb_model_options *options);
void cli_drafting_close(struct cli *c);

/* Opens the model and, when the directory has one, the tokenizer. Reports errors. */
int cli_open(struct cli *c);
void cli_close(struct cli *c);

/* The prompt's ids, by --prompt, --prompt-file or --tokens; BOS as add_bos_token, --bos and --no-bos say. Checks that
 * it is not empty, within the vocabulary and the context. The caller frees *ids. Reports errors. */
int cli_prompt(struct cli *c, int32_t **ids, size_t *count);

/* The chat template, unless it is open already. Reports that there is none, or no tokenizer. */
int cli_open_template(struct cli *c);
/* A conversation (tools/cli/messages.c). Its messages, by --messages, --system and --prompt or --prompt-file; one more; the text that
 * the chat template makes of them, which is asked for an answer: free it with vb_free; all of it for --chat. Report errors. */
int cli_messages(struct cli *c, json_t **messages);
int cli_add_message(const struct cli *c, json_t *messages, const char *role, const char *text, size_t size);
int cli_render(struct cli *c, const json_t *messages, char **text, size_t *size);
int cli_chat_text(struct cli *c, char **text, size_t *size);
/* The same of these messages (NULL: none), with --system in front and the prompt (NULL: none) behind, as the user's. */
int cli_render_given(struct cli *c, const json_t *messages, const char *prompt, char **text, size_t *size);
int cli_check_chat(const struct cli *c);

/* The ids of a text, with BOS in front where asked, as of --prompt (is_chat: the chat template has written it). */
int cli_encode_prompt(struct cli *c, const char *name, const char *text, size_t size, int is_chat, int32_t **ids, size_t *count);

/* 5,6,7 or @FILE: integers separated by commas or white space. */
int cli_ids(struct cli *c, const char *spec, int32_t **ids, size_t *count);

/* Session options with the context that the prompt and n ask for; and a session opened with them. */
int cli_session_options(struct cli *c, size_t prompt_tokens, long long n, vb_session_options *o);
int cli_session(struct cli *c, size_t prompt_tokens, long long n, vb_session **out);

/* tools/cli/process.c. Before all else: descriptors 0 to 2 are open, a mapped file that is cut short is an error with a sentence. */
void cli_begin(void);
/* From now on cli_must reports as JSON. */
void cli_say_json(void);
/* The block; without memory (NULL) the command ends with a sentence. Allocations of jansson go through it as well. */
void *cli_must(void *block);

/* Prints a JSON value on stdout, with a newline, and drops it. NULL, which json_pack gives for a name that is not
 * UTF-8, is reported. */
int cli_print_json(json_t *value);

/* tokenizer_encode; an error names where the text is from. The caller frees *ids with vb_free. */
int cli_encode(struct cli *c, const char *name, const char *text, size_t size, int special, int32_t **ids, size_t *count);

/* The text of ids as it would be shown, *size bytes (a token may be the character U+0000): invalid bytes as U+FFFD, the
 * end token left out, which with --ignore-eos ends nothing and is text. Of more than `most` bytes the first so many (before
 * a stop string). NULL without a tokenizer. */
char *cli_text(const struct cli *c, const int32_t *ids, size_t count, size_t most, size_t *size);

/* {forwards, tokens_per_forward, ...}; draft_tokens: entries of the arrays by depth. */
json_t *cli_stats(const vb_result *r, int draft_tokens);
const char *cli_reject_name(enum vb_reject why);

/* The draft method in force and its K (of auto the longest that is possible): none and 0 when no module runs. */
const char *cli_draft_name(const struct cli *c);
int cli_draft_tokens(const struct cli *c);
/* The K to report after a run: of auto, the longest draft that was verified. */
int cli_used_tokens(const struct cli *c, const vb_result *r);

/* tools/cli/file.c. Whether a file may be written to `path`, which an option names (NULL: none): a directory is refused, and so is a
 * file that exists without --force. Reports errors. */
int cli_check_file(const struct cli *c, const char *option, const char *path);
/* Signals that end a program are only remembered from now on, so that a file half written is removed. The one that came, or 0. A
 * signal that was ignored when the program began stays ignored. */
void cli_listen_to_signals(void);
int cli_stopped(void);
/* Reports that writing `path` was stopped by it. Returns an exit code. */
int cli_tell_stopped(const struct cli *c, const char *path);
/* Removes what is half written. For handlers of signals too. */
void cli_remove_parts(void);

/* tools/session.c: the session is written to a file; the session of --session, with room for n tokens after the `more` that are to be
 * appended. Reports errors. */
int cli_save_session(const struct cli *c, vb_session *session, const char *path);
int cli_load_session(struct cli *c, size_t more, long long n, vb_session **out);

double cli_seconds(void);
/* "label: 37 %" on a terminal's stderr, at most ten times a second; done == total erases the line. */
void cli_progress(const char *label, size_t done, size_t total);

#endif
