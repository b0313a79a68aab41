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

/* Lines of --help, of whatever takes --draft. */
#define CLI_DRAFT_HELP                                                                                                    \
    "  --draft METHOD         how to draft: a method of the list below, or none (none); changes the speed, never the output\n" \
    "  --draft-tokens K       longest draft, 0 to 15 (the number of MTP modules; 3 where these do not draft); 0 is none;\n" \
    "                         auto: as many, round by round, as what stood and what passes took makes fastest\n"             \
    "  --draft-topk M         drafts are a tree, K deep, in which up to M (2 to 16) follow each; of mtp-eagle, eagle, eagle3 (1: a chain)\n" \
    "  --draft-nodes N        the most drafts of a tree, K to 64 (M * K): the most probable ones\n"                          \
    "  --draft-p-min P        a draft ends before a token whose probability is below (0, which never ends one)\n"           \
    "  --ngram-min N, --ngram-max N    how many last tokens ngram looks for: from max down to min, 1 to 64 (2, 4)\n"        \
    "  --draft-settings K=V,K=V    what single methods want to know, see the list below\n"                                 \
    "  --draft-model DIR      of --draft draft-model a smaller checkpoint with the same tokens, in --draft-precision MODE\n" \
    "                         (that of --precision); of eagle and eagle3 a published head\n"                   \
    "  --speculative-config JSON, --plugin-params JSON, --spec_decode_algo MTP [--spec_decode_max_draft_len K]\n"           \
    "  [--use_mtp_vanilla] [--use_relaxed_acceptance_for_thinking --relaxed_topk N --relaxed_delta P], --spec-type draft-mtp\n" \
    "  [--spec-draft-n-max K]\n"                                                                                            \
    "                         the same in the words of vLLM (methods mtp, deepseek_mtp), MindIE, TensorRT-LLM, llama.cpp:\n" \
    "                         all are mtp-eagle, with --use_mtp_vanilla mtp-vanilla; stderr says what was chosen\n"

/* Groups of options that a subcommand takes. */
enum option_group {
    TAKES_COMPUTE = 1,   /* --threads --isa --precision --repack --prefill-chunk --context --convention --as --numa --mlock */
    TAKES_PROMPT = 2,    /* --prompt --prompt-file --tokens --bos --no-bos --chat, and what TAKES_CHAT has */
    TAKES_SAMPLING = 4,  /* --temperature --top-k --top-p --min-p --seed, penalties, --logit-bias */
    TAKES_DRAFT = 8,     /* --draft --draft-tokens --padded --draft-p-min --ngram-min --ngram-max --draft-settings --draft-model --draft-precision, and
                            drafting in the words of other systems */
    TAKES_LENGTH = 16,   /* -n --ignore-eos */
    TAKES_OUT = 32,      /* -o */
    TAKES_STATS = 64,    /* --stats */
    TAKES_ALL = 128,     /* --all */
    TAKES_CHECK = 256,   /* --check --precision --repack */
    TAKES_TEXT = 512,    /* TEXT --file --decode --bos --no-special */
    TAKES_TOKENS = 1024, /* --tokens alone */
    TAKES_TAPS = 2048,   /* --taps */
    TAKES_EVAL = 4096,   /* --file --tokens --bos --no-bos --mtp-loss-scaling-factor */
    TAKES_REFERENCE = 8192, /* --reference */
    TAKES_NAMES = 16384, /* --names */
    TAKES_DIFF = 32768,  /* A B --tokens --bits --all --runs --model --arithmetic --layout-a --layout-b */
    TAKES_HTML = 65536,  /* --html */
    TAKES_BENCH = 524288,  /* --rounds --only --long --force-accept --svg */
    TAKES_DEMO = 1 << 30,  /* --rounds --held-out --large */
    TAKES_AGAINST = 262144, /* --against --names --layout-a */
    TAKES_PREFILL = 1048576, /* --prefill */
    TAKES_QUANTIZE = 2097152, /* --type --embedding-type --head-type --force --threads */
    TAKES_STOP = 1 << 28, /* --stop */
    TAKES_ACCEPTANCE = 1 << 29, /* --acceptance --draft-sample-method --relaxed-topk --relaxed-delta --thinking-tokens */
    TAKES_LOGPROBS = 1 << 22, /* --logprobs */
    TAKES_PROMPTS = 1 << 27, /* --prompts -o --max-sequences --cache-tokens */
    TAKES_CHAT = 1 << 23, /* --system --messages --chat-template-kwargs */
    TAKES_SESSION = 1 << 24, /* --session: a prompt may be left out then */
    TAKES_SAVE = 1 << 25,    /* --without-hidden --force */
    TAKES_SAVE_AFTER = 1 << 26, /* --save-session */
    TAKES_NO_MODEL = 131072 /* MODEL may be left out */
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
    const char *vllm, *mindie;                            /* JSON */
    const char *trt_algorithm, *trt_length, *llama_type, *llama_length;
    const char *relaxed_topk, *relaxed_delta;
    int mtp_vanilla, relaxed;
    const char *by;    /* the option that chose the method; NULL: none of these */
    char ignored[128]; /* keys of the JSON that nothing here depends on */
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
    int force;  /* of quantize, and where sessions are saved */
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
    struct foreign_draft foreign;
    vb_session_options session; /* threads, isa, prefill chunk, draft method, sampling */
    struct cli_sampling sampling;
    struct cli_drafting drafting;

    char conventions[512];      /* --as and --convention, as vb_model_options takes them */
    vb_model *model;            /* opened by cli_open */
    struct tokenizer *tokenizer; /* NULL without one */
    vb_error tokenizer_error;   /* why there is none */
    struct template *template;  /* the chat template, opened by cli_open_template */
    double started;             /* cli_seconds() when the command began */
    double open_seconds;        /* of the model and the tokenizer, --numa and --mlock included */
};

struct command {
    const char *name, *summary, *usage;
    unsigned takes;
    int (*run)(struct cli *c); /* returns an exit code */
};

extern const struct command command_generate, command_verify, command_logits, command_draft, command_tokenize,
    command_inspect, command_demo, command_dump, command_diff, command_eval, command_conventions,
    command_trace, command_bench, command_quantize, command_chat, command_session;
extern const struct command *const session_actions[]; /* what argv[2] of `verbatim session` is; NULL ends the list */

/* Reports one sentence: stderr, or with --json {"error": ...} on stdout. Returns the exit code that belongs to it. */
int cli_error(const struct cli *c, const vb_error *err);
int cli_fail(const struct cli *c, int exit_code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Parses argv[2..] for the command. EXIT_DONE, or the exit code after the error was reported. */
int cli_parse(struct cli *c, int argc, char **argv);

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

/* The options of other systems become --draft and --draft-tokens; contradictions are refused. What was chosen is told on
 * stderr when the model is open. */
int cli_foreign_draft(struct cli *c);
void cli_tell_foreign_draft(const struct cli *c);

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

/* The draft method in force and its K (of auto the longest): none and 0 when no module runs. */
const char *cli_draft_name(const struct cli *c);
int cli_draft_tokens(const struct cli *c);
/* The methods and their settings, for the end of a help page. */
void cli_list_methods(FILE *to);

/* A file that takes the place of `path` when it is whole, and not before. begin gives NULL and end an exit code after the
 * error was reported. */
struct cli_file {
    FILE *f;
    char part[4096];
    const char *path;
};
FILE *cli_file_begin(const struct cli *c, struct cli_file *file, const char *path);
int cli_file_end(const struct cli *c, struct cli_file *file);

/* tools/session.c: a file that is to be written may be, or exists without --force; the session is written to it; the session of
 * --session, with room for n tokens after the `more` that are to be appended. Reports errors. */
int cli_check_session_file(const struct cli *c, const char *option, const char *path);
int cli_save_session(const struct cli *c, vb_session *session, const char *path);
int cli_load_session(struct cli *c, size_t more, long long n, vb_session **out);

/* So that a file half written is taken away: after this, signals that end a program are only remembered. The one that came, or 0. */
void cli_listen_to_signals(void);
int cli_stopped(void);

double cli_seconds(void);
/* "label: 37 %" on a terminal's stderr, at most ten times a second; done == total erases the line. */
void cli_progress(const char *label, size_t done, size_t total);

#endif
