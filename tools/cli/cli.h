/* tools/cli/cli.h -- what the subcommands of `verbatim` share: options, prompts, errors, output.
 *
 * If a function "reports errors", it prints the error (with --json, as JSON) and returns the exit code of the error. If
 * there is no error, it returns EXIT_DONE. */
#ifndef VB_CLI_H
#define VB_CLI_H

#include <jansson.h>
#include <stdio.h>

#include "engine/base/json.h"
#include "engine/verbatim.h"

/* Exit codes: 0 success; 2 a wrong command line; 3 a difference was found; 130 interrupted by Ctrl-C; 1 any other
 * error. */
enum exit_code { EXIT_DONE = 0, EXIT_OTHER = 1, EXIT_USAGE = 2, EXIT_DIFFERENCE = 3, EXIT_INTERRUPTED = 130 };

/* The warning for a GGUF file without the key expert_group_count. */
#define CLI_NO_GROUPS \
    "has no expert_group_count: experts are chosen among all; a model that looks for them in its best groups only " \
    "(DeepSeek-V2, V3 and R1 do) chooses others"

/* The warning for a GGUF file of Mistral 4 without the key attention.temperature_scale. */
#define CLI_NO_QUERY_SCALE \
    "has no attention.temperature_scale: queries are not scaled; the published models scale them from position " \
    "original_max_position_embeddings on"

#define CLI_AUTO (-2) /* the value of cli.draft_tokens for --draft-tokens auto */

/* Groups of options. Each subcommand says which groups it takes; tools/cli/options.h has the options of each group. */
enum option_group {
    TAKES_COMPUTE = 1 << 0,  /* how the model is run: precision, threads, context, conventions */
    TAKES_PROMPT = 1 << 1,
    TAKES_SAMPLING = 1 << 2,
    TAKES_DRAFT = 1 << 3,
    TAKES_LENGTH = 1 << 4,   /* -n and --ignore-eos */
    TAKES_OUT = 1 << 5,      /* -o, which is required */
    TAKES_STATS = 1 << 6,
    TAKES_ALL = 1 << 7,      /* the option --all of verify */
    TAKES_CHECK = 1 << 8,
    TAKES_TEXT = 1 << 9,     /* the argument TEXT, or --file or --decode */
    TAKES_TOKENS = 1 << 10,  /* --tokens, which is required */
    TAKES_TAPS = 1 << 11,
    TAKES_EVAL = 1 << 12,    /* a text to evaluate: --file or --tokens */
    TAKES_REFERENCE = 1 << 13,
    TAKES_NAMES = 1 << 14,
    TAKES_DIFF = 1 << 15,    /* the arguments A and B */
    TAKES_TRACE = 1 << 16,   /* the options of trace alone, and --prompts */
    TAKES_NO_MODEL = 1 << 17, /* the argument MODEL is optional */
    TAKES_AGAINST = 1 << 18,
    TAKES_BENCH = 1 << 19,
    TAKES_PREFILL = 1 << 20,
    TAKES_QUANTIZE = 1 << 21,
    TAKES_LOGPROBS = 1 << 22,
    TAKES_CHAT = 1 << 23,    /* messages, but no prompt */
    TAKES_SESSION = 1 << 24, /* the options --session and --save-session; with --session, the prompt is optional */
    TAKES_SAVE = 1 << 25,
    TAKES_DEMO = 1 << 26,
    TAKES_PROMPTS = 1 << 27,
    TAKES_STOP = 1 << 28,
    TAKES_ACCEPTANCE = 1 << 29,
    TAKES_MODEL = 1 << 30    /* MODEL may also be given as --model */
};
/* An int has no more bits, and a set of groups is an unsigned long long. */
#define TAKES_SERVE (1ull << 31)
#define TAKES_ROUTES (1ull << 32) /* --routes-in, --routes-out, --kept-in and --kept-out */
#define TAKES_REPLAY (1ull << 34) /* the argument OP */
#define TAKES_PLAN (1ull << 35)
#define TAKES_TRAIN (1ull << 36)
#define TAKES_SCORE (1ull << 33) /* a file of texts, and scores as JSON Lines */

#define MOST_STOPS 16

/* The sampling options whose form in session.sampling differs from the form on the command line; see
 * tools/cli/sampling.c. */
struct cli_sampling {
    const char *logit_bias;
    const char *stop[MOST_STOPS];
    int num_stops;
    const char *relaxed_delta, *thinking; /* the texts of --relaxed-delta and --thinking-tokens */
    int32_t *bias_tokens; /* the token ids in --logit-bias */
    float *bias_values;   /* the values in --logit-bias, one for each of bias_tokens */
};

/* The drafting options in the formats of other systems, as they were given. cli_foreign_draft translates them. */
struct foreign_draft {
    const char *vllm, *mindie;         /* the values of --speculative-config (JSON) and --plugin-params (JSON or
                                          @FILE) */
    const char *words_system, *words;  /* the two arguments of --draft-words; the parser needs these fields side by
                                          side */
    char *model_dir;                   /* the model that one of these options names; drafting.model_dir then points to
                                          it */
    char *words_read;                  /* a copy of `words`, split into separate words */
    const char *by;                    /* the option that chose the draft method; NULL: none of these options did */
    char ignored[128];                 /* the keys in these options that have no effect in Verbatim */
    int relaxed;                       /* whether one of these options asks for --acceptance relaxed */
};

/* The drafting options whose form in the session options differs from the form on the command line; see
 * tools/cli/drafting.c. */
struct cli_drafting {
    const char *model_dir, *precision, *gpu_layers, *given_settings, *given_vocab;
    int32_t ngram_min, ngram_max; /* 0: not given */
    char settings[512];           /* all settings of the draft method, in the form that vb_drafting.settings wants */
    vb_draft_vocab *vocab;        /* the list of --draft-vocab; session.drafting.vocab points to it too */
    vb_model *model;              /* the model of --draft-model, opened by cli_open; session.drafting.model points to it
                                     too */
};

/* The options of `train`; see tools/training/settings.c. Until then, NULL, -1 and 0 (for flags) mean: not given. */
struct cli_training {
    char *data, *eval_data; /* lists with commas; cli_lists_close frees them */
    const char *resume, *part, *ends, *mtp_weights, *hidden_states, *hidden_layers, *heads, *heads_init, *heads_trunk,
        *heads_mlp, *eagle_head, *loss, *lr_decay_style, *type;
    double eval_share, mtp_loss_scaling_factor, soft_targets, lr, min_lr, weight_decay, clip_grad, beta1, beta2, eps,
        bias_rate;
    long long seq_length, batch_tokens, micro_tokens, depths, modules, seed, train_iters, warmup_iters, decay_iters;
    long long attention_heads, query_groups, kv_channels, ffn_hidden_size, draft_vocab_size; /* of a new EAGLE head */
    long long save_interval, eval_interval, eval_iters, log_interval, prompts;
    int new_modules, from_scratch, copy_target, save_megatron, assistant_only, keep_hidden, norm_before_residual,
        norm_before_fc, fc_norm, norm_output;
};
#define CLI_TRAINING_NOT_GIVEN \
    {.eval_share = -1, \
     .mtp_loss_scaling_factor = -1, \
     .soft_targets = -1, \
     .lr = -1, \
     .min_lr = -1, \
     .weight_decay = -1, \
     .clip_grad = -1, \
     .beta1 = -1, \
     .beta2 = -1, \
     .eps = -1, \
     .bias_rate = -1, \
     .seq_length = -1, \
     .batch_tokens = -1, \
     .micro_tokens = -1, \
     .depths = -1, \
     .modules = -1, \
     .seed = -1, \
     .train_iters = -1, \
     .warmup_iters = -1, \
     .decay_iters = -1, \
     .save_interval = -1, \
     .attention_heads = -1, \
     .query_groups = -1, \
     .kv_channels = -1, \
     .ffn_hidden_size = -1, \
     .draft_vocab_size = -1, \
     .eval_interval = -1, \
     .eval_iters = -1, \
     .log_interval = -1, \
     .prompts = -1}

struct cli {
    const struct command *command;
    const struct command *const *commands; /* all commands; NULL ends the list */
    const char *model_option;              /* the value of --model */
    const char *model_dir, *text, *file, *prompt, *prompt_file, *tokens, *decode, *out, *precision, *cache_type,
        *repack, *repack_cache, *names;
    const char *device, *gpu_layers, *gpu_experts;
    const char *routes_in, *routes_out, *kept_in, *kept_out;
    const char *load, *save; /* the values of --session and --save-session */
    const char *numa, *as, *convention, *html, *against, *svg, *only;
    const char *require, *junit; /* for diff */
    const char *schedule; /* for trace */
    long long dp;         /* for trace; 0: not given */
    char *taps, *gather;         /* lists with commas: --taps, --gather; cli_lists_close frees them */
    const char *layers, *steps;  /* ranges: --layers, --steps */
    struct naming_file *naming;  /* the file of --names, if it is no system; cli_lists_close closes it */
    const char *other, *model_of_bound, *layout_a, *layout_b, *arithmetic; /* for diff: side A is model_dir, side B is
                                                                              `other` */
    const char *system, *messages, *template_kwargs; /* for a conversation */
    const char *prompts; /* for generate: the file of --prompts */
    int32_t most_frequent;  /* for tokenize; 0: not given */
    int32_t max_sequences;  /* for --prompts; 0: not given */
    long long cache_tokens; /* for --prompts; 0: not given */
    const char *where; /* a prefix for error messages that names a line of a file; NULL: no prefix */
    const char *type, *embedding_type, *head_type; /* for quantize */
    const char *ties;   /* for diff: --ties */
    int follow_choices; /* for diff */
    int with_routes; /* for score: --routes */
    int longer, plan; /* for bench: --long, --plan */
    long long depth;  /* for bench; 0: not given */
    const char *held_out; /* for demo */
    int large;            /* for demo */
    const char *ranks_weights, *bandwidth, *weights, *acceptance_rates; /* for plan; the first also for
                                                                           tools/mpi/mpi.c */
    double net, latency; /* for plan, in GB/s and in microseconds; 0 and -1: not given */
    const char *host, *key_file, *served_name, *cors, *metrics_prefix, *log; /* for serve */
    int log_prompts, fingerprint_sample;                               /* for serve */
    long long port, max_waiting;                                       /* for serve; -1: not given */
    int gradients; /* for dump and diff: --gradients */
    long long mtp_num_layers; /* for gradients; -1: not given */
    int local;   /* for diff: --local */
    int greedy;  /* for diff: --greedy */
    long long layer;   /* for replay; -1: not given. There, `other` is the operator */
    const char *input;
    int absorbed, expanded; /* for replay: the form of attention */
    int x_as_is; /* for reference_options.x_as_is; no option sets it, only diff does */
    int force;  /* the option --force: existing files are replaced */
    int without_hidden;
    /* options without a value */
    int help, json, bos, no_bos, no_special, stats, all, check, ignore_eos, reference, bits, mlock, chat;
    double mtp_loss_scaling_factor;
    double force_accept;        /* -1: not given */
    long long rounds;           /* -1: not given */
    long long n;                /* -1: not given */
    long long context;          /* -1: not given */
    long long draft_tokens;     /* CLI_AUTO: auto; -1: not given */
    long long runs;             /* -1: not given */
    long long ranks;            /* for diff and plan; 0: not given */
    vb_ranks *group;            /* the processes that compute the model together; NULL: this one alone */
    int group_size;             /* how many there are */
    long long sequence;         /* for diff and conventions: which text of a batch is compared; -1: all; a model has
                                   text 0 */
    long long logprobs;         /* -1: not given */
    int threads_given, isa_given, draft_given;
    int draft_by_system;        /* whether --as chose the draft method */
    struct foreign_draft foreign;
    vb_session_options session; /* among others: threads, instruction set, prefill chunk, draft method, sampling */
    int32_t *routes, *kept;     /* the numbers of --routes-in and --kept-in, at which session.routes points */
    struct cli_sampling sampling;
    struct cli_drafting drafting;
    struct cli_training train;

    char conventions[512];      /* the values of --as and --convention, in the form that vb_model_options.conventions
                                   wants */
    vb_model *model;            /* opened by cli_open */
    vb_tokenizer *tokenizer; /* NULL if the model has none */
    vb_error tokenizer_error;   /* why tokenizer is NULL */
    vb_template *template; /* opened by cli_open_template */
    double started;             /* cli_seconds() when the command began */
    double open_seconds;        /* how long it took to open model and tokenizer, and to apply --numa and --mlock */
};

/* A text about an option. The help of one command prints it instead of the option's usual help text. */
struct note {
    const char *option, *text;
};

/* Other properties in which commands differ. */
enum command_trait {
    /* runs several draft methods if --draft is not given; options that only one of them uses are then allowed too */
    COMPARES_METHODS = 1,
    DRAFTS_UNASKED = 2,    /* uses a draft method even if --draft is not given */
    COMPARES_SYSTEMS = 4,  /* here --as sets conventions only, and does not choose the draft method */
    REPORTS_MISSING = 8    /* its output says which keys a GGUF file lacks, so no warning is needed */
};

struct command {
    const char *name, *summary;
    const char *usage;     /* one line for each way to use the command, without "verbatim NAME" */
    const char *about;     /* the description in the help, with its line breaks */
    unsigned long long takes; /* bits of enum option_group */
    int (*run)(struct cli *c); /* returns an exit code */
    const struct note *notes;  /* an array that ends with a note whose `option` is NULL; a NULL pointer: there are no
                                  notes */
    unsigned traits;           /* bits of enum command_trait */
    const struct command *const *actions; /* the subcommands, such as `save` of `session`, with a NULL at the end; a
                                           * NULL pointer: there are no subcommands */
};

extern const struct command command_generate, command_verify, command_logits, command_draft, command_tokenize,
    command_inspect, command_demo, command_dump, command_diff, command_eval, command_conventions, command_trace,
    command_bench, command_quantize, command_chat, command_session, command_serve, command_score, command_replay,
    command_plan, command_train;

/* Reports an error. Without --json, prints its message on stderr. With --json, prints the object {"error": ...} on
 * stdout. Returns the exit code for this error. */
int cli_error(const struct cli *c, const vb_error *err);
int cli_fail(const struct cli *c, int exit_code, const char *format, ...) __attribute__((format(printf, 3, 4)));

int cli_ends_with(const char *text, const char *end);

/* Parses the arguments from argv[2] on. Reports errors. */
int cli_parse(struct cli *c, int argc, char **argv);
/* Frees what cli_parse allocated for options. */
void cli_lists_close(struct cli *c);
/* Whether --taps and --layers choose the value of this name. */
int cli_wants(const struct cli *c, const char *name, int layer);

/* Prints a list of all commands and of the groups of options. */
void cli_help(const struct cli *c, FILE *to);
/* Prints the help of a command and of its options. If is_short, most options are listed by name only. */
void cli_help_command(FILE *to, const struct command *k, int is_short);
/* Prints the help on a topic: a group of options, a command or an option. Returns an exit code. */
int cli_help_topic(const struct cli *c, const char *topic, int is_short);

/* The edit distance of two words: how many letters must be changed, inserted, deleted or swapped with a neighbour. */
size_t cli_distance(const char *a, size_t a_length, const char *b, size_t b_length);
int cli_ends_with(const char *text, const char *end);

/* Checks the sampling options and stores them in session.sampling. Reports errors. */
int cli_sampling(struct cli *c);
void cli_sampling_close(struct cli *c);
/* For relaxed acceptance: finds the ids of the thinking tokens. Model and tokenizer must be open. Reports errors. */
int cli_thinking(struct cli *c);
const char *cli_acceptance(const struct cli *c); /* the name of the acceptance mode */
int cli_is_rejection(const struct cli *c);
int cli_is_relaxed(const struct cli *c);
/* Stores the stop strings and the tokenizer in *o. Model and tokenizer must be open. Reports errors. */
int cli_stops(const struct cli *c, vb_generate_options *o);

/* Translates --speculative-config, --plugin-params and --draft-words to Verbatim's own options (--draft, --draft-tokens
 * and so on). If no option names a draft method, --as chooses it. Options that contradict each other are refused.
 * Reports errors. */
int cli_foreign_draft(struct cli *c);
/* Prints to stderr the options that cli_foreign_draft has set. The model must be open. */
void cli_tell_foreign_draft(const struct cli *c);
void cli_foreign_close(struct cli *c);
/* Takes the name of an option that Verbatim does not have. Returns the name of a system that has it, or NULL if no
 * known system has it. */
const char *cli_foreign_option(const char *name, size_t length);

/* Checks the drafting options. Reports errors. */
int cli_drafting(struct cli *c);
/* Opens --draft-model. Reports errors. */
int cli_draft_model_open(struct cli *c, const vb_model_options *options);
/* Opens it, unless it is open, and checks what the draft method needs; cli_open calls it when the model is open.
 * Reports errors. */
int cli_drafting_open(struct cli *c, const vb_model_options *options);
void cli_drafting_close(struct cli *c);

/* Opens the model, and the tokenizer if the model has one. Reports errors. */
int cli_open(struct cli *c);
/* Returns whether --prefill is this kind. */
int cli_has_prefill(const struct cli *c, const char *kind);
/* Returns whether --precision is tensor. cli_tensor_split then writes what the bits depend on: the GPU, and what it
 * computes of the model; else "". */
int cli_has_tensor_cores(const struct cli *c);
void cli_tensor_split(const struct cli *c, char *text, size_t size);
/* Reports an error if --precision is tensor: the command computes on the CPU. */
int cli_without_tensor_cores(const struct cli *c);
/* Reports an error if --prefill is this kind: onednn computes no rows in vb_evaluate. */
int cli_without_prefill(const struct cli *c, const char *kind);
vb_model_facts cli_facts(const struct cli *c); /* of c->model */
void cli_close(struct cli *c);

/* Reads the prompt from --prompt, --prompt-file, --tokens or --chat, and returns its token ids. add_bos_token, --bos
 * and --no-bos decide whether BOS is added. Checks that the prompt is not empty and that every id is in the vocabulary.
 * The caller frees *ids. Reports errors. */
int cli_prompt(struct cli *c, int32_t **ids, size_t *count);

/* Opens the chat template unless it is open already. Reports errors; a missing template or tokenizer is one of them. */
int cli_open_template(struct cli *c);
/* The next six functions are in tools/cli/messages.c, and all six report errors. */
/* Builds the conversation from --system, --messages, and --prompt or --prompt-file. */
int cli_messages(struct cli *c, json_t **messages);
/* Appends one message to the conversation. */
int cli_add_message(const struct cli *c, json_t *messages, const char *role, const char *text, size_t size);
/* Applies the chat template to the messages so that the text ends where the model's answer begins. Free *text with
 * vb_free. */
int cli_render(struct cli *c, const json_t *messages, char **text, size_t *size);
/* Builds the conversation and applies the chat template, for --chat. */
int cli_chat_text(struct cli *c, char **text, size_t *size);
/* Like cli_chat_text, but the conversation consists of --system, `messages` (NULL: none), and `prompt` as a user
 * message (NULL: none). */
int cli_render_given(struct cli *c, const json_t *messages, const char *prompt, char **text, size_t *size);
/* Checks the options of a conversation. --system, --messages and --chat-template-kwargs need --chat, unless the command
 * is `chat`. --chat needs a message or --prompts, and excludes --tokens. */
int cli_check_chat(const struct cli *c);

/* Encodes a prompt. add_bos_token, --bos and --no-bos decide whether BOS is put before the prompt. `is_chat`: the text
 * comes from the chat template, which has already written BOS. Reports errors. */
int cli_encode_prompt(struct cli *c, const char *name, const char *text, size_t size, int is_chat, int32_t **ids,
                      size_t *count);

/* Reads token ids from a list such as 5,6,7 or from @FILE, separated by commas or white space. Reports errors. */
int cli_ids(struct cli *c, const char *spec, int32_t **ids, size_t *count);

/* Makes session options with enough context for the prompt and n generated tokens. Reports errors. */
int cli_session_options(struct cli *c, size_t prompt_tokens, long long n, vb_session_options *o);
/* Opens a session with these options. Reports errors. */
int cli_session(struct cli *c, size_t prompt_tokens, long long n, vb_session **out);

/* The next two functions are in tools/cli/ranks.c. They do nothing if one process computes the model alone. */
/* With --stats, prints on stderr what each rank has and, if `passed`, what it did. */
void cli_tell_ranks(const struct cli *c, int passed);
/* Adds the key ranks: {passes, gathers, gathered_bytes, gathers_per_pass, bytes_per_pass, ranks}. */
void cli_add_ranks(const struct cli *c, json_t *stats);

/* The next five functions are in tools/cli/process.c. */
/* Says that this process is a rank that a launcher has started, for example "rank 1 (host): ", which is put before some
 * errors. NULL: nothing is put before them. */
void cli_name_rank(const char *name);
/* Whether a file descriptor is a terminal of the user. Launchers connect ranks to terminals of their own. */
int cli_terminal(int fd);
/* The program calls this function first. It opens descriptors 0 to 2 if they are closed, and installs a signal handler.
 * If a mapped file is truncated while it is in use, the handler reports an error. */
void cli_begin(void);
/* From now on, cli_must reports its error as JSON. */
void cli_say_json(void);
/* Returns `block`. If `block` is NULL (an allocation failed), reports that memory is missing and ends the process.
 * Allocations by jansson are checked in the same way. */
void *cli_must(void *block);

/* Prints a JSON value and a newline on stdout, and releases the value. Reports errors. A NULL value is an error too:
 * json_pack returns NULL if a string is not UTF-8. */
int cli_print_json(json_t *value);

/* Calls vb_encode, or vb_encode_plain if `special` is 0. Error messages use `name` to say where the text comes from.
 * The caller frees *ids. Reports errors. */
int cli_encode(struct cli *c, const char *name, const char *text, size_t size, int special, int32_t **ids,
               size_t *count);

/* Returns the text of these tokens for printing, or NULL if there is no tokenizer. Invalid UTF-8 is replaced by U+FFFD.
 * An end token at the end is left out, unless --ignore-eos is given. Only the first `most` bytes are used, to cut the
 * text before a stop string. *size is the length of the result, which may contain zero bytes. */
char *cli_text(const struct cli *c, const int32_t *ids, size_t count, size_t most, size_t *size);

/* The statistics for --json: {forwards, tokens_per_forward, ...}. `draft_tokens`: the length of the arrays that have
 * one entry per depth. */
json_t *cli_stats(const vb_result *r, int draft_tokens);
/* The name of a reason why a draft was rejected, as --json prints it. */
const char *cli_reject_name(enum vb_reject why);

/* cli_draft_name returns the draft method in use, and cli_draft_tokens its K (with auto, the largest possible K).
 * Without drafting, cli_draft_name returns "none", and cli_draft_tokens 0. */
const char *cli_draft_name(const struct cli *c);
int cli_draft_tokens(const struct cli *c);
/* Returns the draft length K that is reported after a run. With auto, this is the length of the longest draft that was
 * verified. */
int cli_used_tokens(const struct cli *c, const vb_result *r);

/* The next five functions are in tools/cli/file.c. */
/* Checks that the file `path` can be written; `option` is the option that named it. If `path` is NULL, nothing is
 * checked. A directory is refused. An existing file is refused if --force is not given. Reports errors. */
int cli_check_file(const struct cli *c, const char *option, const char *path);
/* From now on, signals that would end the program (SIGINT, SIGTERM, SIGHUP) are only recorded, so that a partly written
 * file can be removed first. A signal that was ignored when the program began stays ignored. */
void cli_listen_to_signals(void);
/* Returns the number of the recorded signal, or 0. */
int cli_stopped(void);
/* Reports that the recorded signal stopped the writing of `path`. Returns an exit code. */
int cli_tell_stopped(const struct cli *c, const char *path);
/* Removes all partly written files. Signal handlers may call it. */
void cli_remove_parts(void);

/* The next three functions are in tools/cli/session.c. */
/* For vb_file_options.progress; `label` is a string. Shows the progress, and stops after a signal (cli_stopped). */
int cli_file_progress(void *label, size_t done, size_t total);
/* Saves the session to a file. Reports errors. */
int cli_save_session(const struct cli *c, vb_session *session, const char *path);
/* Loads the session from the file that --session names. The session gets enough context to append `more` tokens and
 * then generate
 * n. Reports errors. */
int cli_load_session(struct cli *c, size_t more, long long n, vb_session **out);

/* The time of a monotonic clock, in seconds. */
double cli_seconds(void);
/* If stderr is a terminal, prints "label: 37 %" on it, at most ten times per second. Erases the line when done ==
 * total. */
void cli_progress(const char *label, size_t done, size_t total);

/* Runs the command. `ranks`: the `count` processes that compute the model together; NULL: this one alone. Returns the
 * exit code. */
int cli_main(int argc, char **argv, vb_ranks *ranks, int count);

#endif
