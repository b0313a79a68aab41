/* engine/verbatim.h -- the public C interface of Verbatim.
 *
 * Programs include only this header. This header includes the others: verbatim_text.h (tokenizers, chat templates),
 * verbatim_model.h (facts about a model, conventions, GGUF files), verbatim_batch.h (many sequences at once),
 * verbatim_files.h (saved sessions) and verbatim_tensors.h (files of tensors).
 *
 * There are two main objects. A *model* is read-only once it is open, and threads may share it. A *session* is one sequence
 * of tokens with its KV caches. A program can append tokens to it, truncate it, let it generate more tokens, save it and
 * load it. Only one thread at a time may use a session.
 *
 * Decoding works in rounds. In each round a fast method may propose some tokens, which together are a *draft*. The model
 * itself, called the *target*, computes all of them in one *pass* and keeps the tokens that it would have chosen. In a
 * pass, and in a KV cache, each token is one *row*.
 *
 * Functions that can fail return VB_OK (0) or a negative error code. If their argument `err` is not NULL, they also write a
 * message of one sentence to it. An option that is 0 or NULL has its default value, so options that are all zero are the
 * defaults.
 *
 * Verbatim promises the same bits: if checkpoint, prompt, precision, sampling options and seed are the same, then the
 * logits that chose each token are the same, bit for bit. The logits do not depend on the draft method, the draft length,
 * the number of sequences in a pass, the size of prefill chunks, the number of threads, or the instruction set.
 *
 * Stack size: a function that computes (generate, evaluate, prefill, draft, a step of a batch) needs 64 KB of the calling
 * thread's stack, plus what callbacks need. A function that opens, loads or saves something, or renders a chat template,
 * needs 1 MB of stack. Prefill with oneDNN, and libraries built with a sanitizer or without optimisation, also need 1 MB of
 * stack. */
#ifndef VERBATIM_H
#define VERBATIM_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* The libraries export only the functions that are declared between this line and the end of the file. */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* VB_VERSION is the version of this header, and vb_version returns the version of the library. A program that loads the
 * library at run time must compare the two, because structs may grow from one version to the next until version 1.0. */
#define VB_VERSION "0.1.0"
const char *vb_version(void);
#define VB_MAX_DRAFT 15 /* the largest number of tokens in a draft, K */
#define VB_MAX_TOPK 16  /* in a tree of drafts, the largest number of drafts that may follow one token */
#define VB_MAX_NODES 64 /* in a tree of drafts, the largest number of drafts in total */

enum vb_code {
    VB_OK = 0,
    VB_BAD_ARGUMENT = -1,   /* the caller passed a wrong option, token id or length */
    VB_IO = -2,             /* a file is missing or cannot be read or written */
    VB_BAD_CHECKPOINT = -3, /* the contents of a file are wrong */
    VB_UNSUPPORTED = -4,    /* a file is valid but needs a feature that Verbatim does not have */
    VB_NO_MEMORY = -5,
    VB_NOT_FINITE = -6,     /* a row of logits from which a token should be chosen has a NaN or an infinite value */
    VB_STOPPED = -7         /* a callback asked to stop */
};

typedef struct vb_error {
    int code;
    char message[512]; /* one sentence in UTF-8, without a newline */
} vb_error;

/* The functions with which a model and its sessions allocate memory. If alloc and free are NULL, malloc and free are used.
 * PCRE2 uses the same functions. The JSON library jansson always uses malloc, since its functions can be set only for the
 * whole process. */
typedef struct vb_allocator {
    void *(*alloc)(void *context, size_t size); /* returns memory of any alignment, or NULL if there is none */
    void (*free)(void *context, void *block);
    void *context;
} vb_allocator;

/* ---- a model ---------------------------------------------------------------------------------------------------- */
typedef struct model vb_model;
typedef struct vb_model_options {
    vb_allocator allocator; /* the library copies it; what `context` points to must outlive the model and its sessions */
    /* NULL or "f32": weights as stored, activations in f32. "bf16": the input of linear layers is rounded to BF16; weights
     * of other types are rounded to BF16 once, into a copy. "q8" and "q4": weights are quantised to Q8_0 or Q4_0 once, into
     * a copy. Weights that are quantised in a GGUF file stay as they are in every precision. */
    const char *precision;
    /* A list such as "as=vllm-2025,concat=hidden-embedding" that selects how the model follows another implementation;
     * NULL: the defaults. `verbatim conventions` prints all of them. Conventions of drafting do not change the output;
     * conventions of the target model change its bits. */
    const char *conventions;
    /* NULL or "off", "interleave" or "bind". On machines with several memories (NUMA nodes), the last two pin threads to
     * processors and place weights on nodes. Opening the model then reads all weights. See vb_placement. Results do not
     * depend on it. */
    const char *numa;
    /* NULL or "on": Q8_0 and Q4_0 weights are reordered into a copy that can be read faster. "off": they are used as
     * stored. Results do not depend on it. */
    const char *repack;
    int32_t threads;        /* number of threads that make such copies; 0: the number of processors in the affinity mask */
    void (*progress)(void *context, size_t done, size_t total); /* called with the bytes of copies made so far; may be NULL */
    void *progress_context;
} vb_model_options;

/* Opens a checkpoint in the Hugging Face layout (a directory with config.json, and model.safetensors or shards with an
 * index), or a GGUF file of architecture deepseek2. If a GGUF model consists of several files, `dir` is the first one.
 * `options` may be NULL. The strings in `options` are needed only during the call. On an error *out is NULL.
 *
 * Weights are memory-mapped and are read when they are needed. Some weights are copied instead, as the options say.
 * Matrices that a GGUF file stores transposed are copied as well.
 *
 * No other program may shorten a mapped file while the model is open. Reading a part that no longer exists raises SIGBUS,
 * as for every mapped file, and the library installs no signal handler. The caller closes the model after its last session. */
int vb_model_open(vb_model **out, const char *dir, const vb_model_options *options, vb_error *err);
void vb_model_close(vb_model *model);

/* The result of the option numa. With "interleave", the pages of weights are distributed over all nodes in turn. With
 * "bind", the processors of each node compute a range of rows of every matrix, and the pages of these rows are in that
 * node's memory.
 *
 * Mapped pages belong to the kernel's page cache. Pages that are in this cache already are moved to the memory of their
 * node, and other pages are read into it. */
typedef struct vb_placement {
    int32_t nodes;     /* number of nodes with processors or memory that this process may use; with 1 nothing is placed */
    size_t pages;      /* number of pages of matrices that have a node; 0: nothing was placed */
    size_t in_place;   /* number of these pages that were on their node already, or were read into its memory */
    size_t moved;      /* number of these pages that were moved to their node; the remaining ones are on other nodes */
    double seconds;    /* time that placing took, including reading the weights */
    int failed;        /* 1: the operating system refused, or the library was built without libnuma */
    char why_not[256]; /* the reason why some or all pages were not placed, as a clause without a full stop; or empty */
} vb_placement;
/* Fills *out and returns 1. If the option numa was "off", fills *out with zeros and returns 0. */
int vb_model_placement(const vb_model *model, vb_placement *out);

/* Reads all weights and locks them into memory (mlock) until the model is closed. If the limit RLIMIT_MEMLOCK is too low,
 * returns VB_NO_MEMORY. After this error nothing is locked, and the model can be used as before. */
int vb_model_lock(const vb_model *model, vb_error *err);

int32_t vb_vocab_size(const vb_model *model);
int32_t vb_hidden_size(const vb_model *model);
int32_t vb_mtp_modules(const vb_model *model);             /* number of MTP modules in the checkpoint; drafting with MTP needs one */
int32_t vb_max_positions(const vb_model *model);           /* max_position_embeddings */
/* Returns 1 if `token` ends a text: it is an eos_token_id of generation_config.json, or of config.json if that has none. */
int vb_is_end_token(const vb_model *model, int32_t token);

/* A model's tokenizer (verbatim_text.h). */
typedef struct tokenizer vb_tokenizer;

/* ---- a session: one sequence of tokens with its caches -------------------------------------------------------------- */
typedef struct vb_session vb_session;
/* How a token is chosen from the target's logits. The target is the model whose output is wanted, in contrast to drafting
 * models. The steps are, in this order: bias, penalties, mask, temperature, top-k, top-p, min-p. Finally one random number
 * selects the token. The random number is generated by Philox4x32-10 and depends only on the seed and on the index of the
 * token in the sequence. */
typedef struct vb_sampling {
    float temperature;        /* 0: the token with the largest logit, the lowest id among equals; else at least 1e-5 */
    int32_t top_k;            /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    uint64_t seed;
    float repetition_penalty; /* r: a logit z of a token in prompt or output becomes z > 0 ? z/r : z*r; 0 or 1: off */
    float presence_penalty, frequency_penalty; /* for tokens in the output: subtracted once; for each occurrence */
    const int32_t *bias_tokens;                /* logit bias: bias_count token ids, each only once; the session copies them */
    const float *bias_values;                  /* what is added to the logit of each of these tokens; copied as well */
    int32_t bias_count;
    /* Called before a token is chosen, to forbid tokens. `tokens` are the `count` tokens before it. All entries of `mask`,
     * one per token id, are 1; the callback sets those to 0 that must not be chosen. It returns VB_OK, or a negative error
     * code, with which the run then fails. The callback's result must depend only on its arguments. It may be NULL. */
    int (*mask)(void *context, const int32_t *tokens, size_t count, unsigned char *mask);
    void *mask_context;
    /* Which drafts are accepted.
     *
     * NULL or "strict": a draft is accepted if it is the token that the target chooses by the steps above. The output is
     * exactly that of decoding without drafts.
     *
     * "rejection": drafts are drawn from the distribution q of the drafting model, by the same steps and with random
     * numbers of their own. A draft is accepted with probability min(1, p/q), where p is the target's distribution. If a
     * draft is rejected, the token is drawn from max(p - q, 0). The output has the same distribution as without drafts, but
     * is another sample from it. At temperature 0, "rejection" is the same as "strict".
     *
     * "relaxed": between the tokens that begin and end the model's thinking, a draft is also accepted if it is nearly as
     * probable as the best token. This changes the output. Probabilities are compared at temperature 1, without top-k,
     * top-p and min-p. */
    const char *acceptance;
    const char *draft_sample_method; /* drafts for "rejection": NULL or "probabilistic": drawn from q; "greedy": best token, q = 1 */
    int32_t relaxed_topk;  /* for "relaxed": a draft must be one of this many most probable tokens; 0: 10 */
    float relaxed_delta;   /* for "relaxed": how much less probable than the best token a draft may be; 0: 0.6 */
    int32_t thinking_begin, thinking_end; /* for "relaxed": two token ids; these and end tokens are accepted strictly */
} vb_sampling;

/* ---- taps: every named intermediate value, as it is computed ----------------------------------------------------- */
/* Describes one row of a pass. A pass computes several rows at once, and each row is one token on its way through the
 * model. */
typedef struct vb_tap_row {
    int32_t sequence; /* the session's option `sequence` */
    int32_t token;    /* the token whose embedding is the input of the row */
    int32_t index;    /* index of the row in its cache; row i of an MTP module uses the target's hidden row i. The additional first row of
                         the convention first-row=phantom has index -1 */
    int32_t position; /* position that RoPE uses */
    int32_t slot;     /* place of the row's KV cache entry in memory */
    int32_t draft;    /* 0: the token is part of the output or prompt; k: it is draft k of this round; -1: padding */
    int32_t hidden_of; /* for a row of an MTP module: index of the row whose hidden vector is its input; -1: zeros */
    int32_t hidden_depth; /* what computed that hidden vector: the target (-1) or an MTP module (its depth, from 0) */
    int32_t parent;   /* for the target's row of a draft: number of the draft that it follows, or 0 if it follows none */
} vb_tap_row;

/* An intermediate value of some rows. `name` is the path of a module in Hugging Face's DeepseekV3ForCausalLM followed by
 * `.input`, `.output`, or a name for a value inside the module; docs/ORACLE.md lists all names. Vectors that RoPE rotates
 * contain adjacent pairs, or halves if config.json has rope_interleave false.
 *
 * Element [a, b] of row i is data[i * stride + a * outer_stride + b]. `data` and `row` are valid only during the call, and
 * the callback must not use the session. */
typedef struct vb_tap {
    const char *name;
    int32_t layer;          /* layer number in the checkpoint; MTP module k is layer num_hidden_layers + k; -1: not in a layer */
    int32_t depth;          /* MTP depth, from 0, or -1 for the target; depth k uses module k mod (number of modules) */
    uint64_t pass;          /* number of the pass, from 0, counting all passes of this session through target and MTP modules */
    size_t rows;            /* number of rows; a pass may report a value in several calls, with ascending rows */
    const vb_tap_row *row;  /* [rows] */
    size_t outer, inner;    /* shape of a row: a < outer, b < inner; outer is 1 for a vector */
    size_t stride;          /* distance from a row to the next, in numbers */
    size_t outer_stride;    /* distance from index a to a + 1 within a row, in numbers */
    int integers;           /* 1: data is int32_t; 0: float */
    const void *data;
} vb_tap;
typedef void (*vb_tap_callback)(void *context, const vb_tap *tap);

/* ---- a trace: the bookkeeping of every round ---------------------------------------------------------------------- */
enum vb_trace_kind {
    VB_TRACE_PASS,   /* rows were computed by the target (depth -1) or by an MTP module, and their cache rows were written */
    VB_TRACE_CHOOSE, /* `token` was chosen from row `first` of the last pass at this depth, by the target or as a draft */
    VB_TRACE_HIDDEN, /* `count` hidden rows of the target, from index `first` on, were passed to the draft method */
    VB_TRACE_CUT     /* the last `count` rows of a cache were removed; `first` rows are left */
};
typedef struct vb_trace {
    enum vb_trace_kind kind;
    int32_t sequence, depth;  /* the session's option `sequence`; the MTP depth, or -1 for the target */
    uint64_t round;           /* number of the round; 0 is the prompt, and every pass through the target ends a round */
    size_t first, count;      /* see enum vb_trace_kind; for PASS, count is the number of rows */
    const vb_tap_row *row;    /* for PASS: [count]; valid only during the call */
    int32_t token;            /* for CHOOSE */
    int32_t draft;            /* for CHOOSE: number of the draft, from 1, if a module chose; else like vb_event.draft_depth */
} vb_trace;
typedef void (*vb_trace_callback)(void *context, const vb_trace *trace);

/* ---- drafting: proposing tokens, which the target then verifies ------------------------------------------------ */
/* A draft method of the caller. `tokens` are the `count` tokens of the session so far. The function writes up to `max`
 * proposed ids to `draft` and returns their number, which may be 0. `max` is at most VB_MAX_DRAFT. The function must not
 * use the session.
 *
 * The drafts cannot change the output. If the function is called again for the same tokens, it may propose other drafts.
 * The draft ends before an id outside the vocabulary and after `max` ids. An id outside the vocabulary, more than `max`
 * ids, and a negative return value are counted in vb_result.draft_failures. */
typedef int (*vb_draft_callback)(void *context, const int32_t *tokens, size_t count, int32_t *draft, int max);

/* Drafts that form a tree instead of a chain, so that several drafts may follow one token (engine/draft/tree.h). */
typedef struct vb_tree_shape {
    int32_t topk;  /* how many drafts may follow each token, 2 to VB_MAX_TOPK; 0 or 1: drafts form a chain */
    int32_t nodes; /* largest number of drafts in a round, K to VB_MAX_NODES; 0: topk * K, but at most VB_MAX_NODES */
} vb_tree_shape;

/* How a session drafts. Drafts make decoding faster and do not change the output, except with vb_sampling.acceptance other
 * than "strict". A struct that is all zeros means no drafts. */
typedef struct vb_drafting {
    const char *method;   /* NULL or "none": no drafts; else a name that vb_draft_methods lists */
    int32_t tokens;       /* K, the length of a draft, at most VB_MAX_DRAFT; 0: the number of MTP modules, or 3 for a method that
                             does not use them; negative: no drafts */
    int automatic;        /* 1: the length of each draft, 0 to `tokens`, is chosen from measured acceptance and pass times. The
                             limit for tokens = 0 is then 15, or for mtp-vanilla the number of MTP modules */
    float p_min;          /* a draft ends before a token whose probability at temperature 1 is smaller; 0: off. p_min has no effect
                             on the methods ngram and callback, which have no probabilities */
    vb_tree_shape tree;   /* only for methods that can draft trees, with strict acceptance */
    const char *settings; /* settings of single methods, such as "ngram-min=1,ngram-max=3"; may be NULL. vb_draft_methods lists
                             them. Settings of other methods than this one are ignored; unknown ones are refused */
    const vb_model *model; /* for methods with needs_model: a smaller model with the same tokens (vb_tokenizers_match). The draft
                              model must outlive the session. Token ids that only one of the models has are not drafted */
    const char *head;     /* for methods with needs_head: the directory of a published EAGLE head, which the session opens */
    vb_draft_callback callback; /* for methods with needs_callback */
    void *context;        /* passed to the callback */
} vb_drafting;

typedef struct vb_draft_method {
    const char *name;
    const char *about;    /* a one-line description of what makes the drafts */
    const char *settings; /* settings that the method reads, with their defaults, as "ngram-min=2,ngram-max=4"; "" if none */
    int needs_modules, needs_model, needs_head, needs_callback; /* what must be given; modules are the model's MTP modules */
    int trees;            /* 1: the method can draft trees */
    int by_history;       /* 1: drafts also depend on earlier rounds, not only on the tokens */
    int keeps_state;      /* 1: session files store the method's state. Without it, the first drafts after a load are worse */
} vb_draft_method;

/* Fills *out with draft method `number`, counted from 0, and returns 1. Returns 0 if there are fewer methods. */
int vb_draft_methods(size_t number, vb_draft_method *out);

/* Fills *out with the draft method that has this name. For NULL and "none" it fills *out with zeros. Another unknown name is
 * VB_BAD_ARGUMENT; the message lists the known names. */
int vb_draft_method_find(vb_draft_method *out, const char *name, vb_error *err);
/* Checks whether a session of `model` can draft with this method: whether everything that the method needs is given, and
 * whether all settings are known. Otherwise it returns VB_BAD_ARGUMENT. It opens nothing; vb_session_open checks more. */
int vb_draft_check(const vb_model *model, const vb_drafting *drafting, vb_error *err);
/* The longest draft of a session with these options: `tokens`, or the number that 0 stands for. Returns 0 if the session
 * would not draft. */
int32_t vb_draft_tokens(const vb_model *model, const vb_drafting *drafting);
/* Sets *version to 1 or 3 if `dir` holds a published EAGLE-1 or EAGLE-3 head, or to 0 if it holds no head that can be read.
 * The only error is VB_NO_MEMORY. */
int vb_draft_head(int *version, const char *dir, vb_error *err);

/* The name of instruction set `number`, counted from 0, of those that this library has and this CPU can run, the best first.
 * Returns NULL if there are fewer. If there is none, no session can be opened. Use the name as vb_session_options.isa. */
const char *vb_isa(size_t number);

/* Options of a session. What the pointers refer to must stay valid until the session is closed, except the logit bias of
 * `sampling`, which is copied. */
typedef struct vb_session_options {
    int32_t context;       /* number of tokens that the caches can hold; 0: max_position_embeddings */
    int32_t prefill_chunk; /* number of prompt tokens that one pass computes; 0: 512 */
    /* How the prompt is computed. NULL or "contract": by the same code as all other tokens, with the bits that Verbatim
     * promises. "onednn": with oneDNN's linear layers, which is faster. The bits then differ from "contract" and depend on
     * the version of oneDNN and the kind of CPU, but not on drafts, threads or `isa`.
     *
     * For oneDNN all weights must be BF16 or all F32, and chunks have 512 tokens. With BF16 weights, the input of linear
     * layers is rounded to BF16 as in precision bf16. The prompt is what was appended before the first token was generated
     * or evaluated. */
    const char *prefill;
    int32_t threads;       /* largest number of threads; 0: the number of processors in the affinity mask. The session uses fewer if
                              that is faster, or while other programs use the cores */
    int32_t exact_threads; /* 1: the session always uses all these threads */
    const char *isa;       /* instruction set: NULL or "best", "scalar", "avx2", "avx512", "neon" */
    vb_sampling sampling;
    vb_drafting drafting;
    void (*progress)(void *context, size_t done, size_t total); /* called with the prompt tokens computed so far; may be NULL */
    void *progress_context;
    /* Called before each layer of a pass through the model or a draft model; may be NULL. A result other than 0 cancels the pass: no token
     * is chosen, and the session is as it was before the pass. vb_generate then returns VB_OK with VB_FINISH_STOPPED; every
     * other function returns VB_STOPPED. */
    int (*stop)(void *context);
    void *stop_context;
    vb_tap_callback tap;   /* called for every named intermediate value; may be NULL */
    void *tap_context;
    int tap_scores;        /* 1: taps also get attention scores; this doubles the work of attention */
    vb_trace_callback trace; /* called for every step of the bookkeeping; may be NULL */
    void *trace_context;
    int padded;            /* 1: passes that verify drafts always have K+1 rows, filled up with token 0, as in systems with fixed shapes */
    int32_t sequence;      /* a number of the caller's choice, which taps and traces report */
    int poison_cut_rows;   /* for tests: rows that are removed from a cache are filled with NaN */
} vb_session_options;

/* Opens a session without tokens. `options` may be NULL. The model must outlive the session. On an error *out is NULL.
 * Wrong options are VB_BAD_ARGUMENT; a CPU without FMA, or weights that `prefill` "onednn" cannot use, are VB_UNSUPPORTED. */
int vb_session_open(vb_session **out, const vb_model *model, const vb_session_options *options, vb_error *err);
void vb_session_close(vb_session *session);

/* Returns the bytes that the session's draft method uses: its caches and, for a draft model, the memory of its passes. */
size_t vb_draft_memory(const vb_session *session);

/* How many threads a session, or the batch that it belongs to, has used so far. */
typedef struct vb_thread_use {
    int32_t most;      /* largest number of threads, from the options */
    double mean;       /* average number of threads per pass; 0 before the first pass */
    size_t passes;     /* number of passes through the target, MTP modules, heads and draft models */
    size_t left_out;   /* how often a thread was interrupted while it computed, and was not used for some time after that */
    double waited;     /* seconds that the other threads waited for such threads */
} vb_thread_use;
void vb_session_threads(const vb_session *session, vb_thread_use *use);

/* Appends tokens to the session. Nothing is computed yet. An id outside the vocabulary, or more tokens than the context
 * holds, is VB_BAD_ARGUMENT; then nothing is appended. */
int vb_append(vb_session *session, const int32_t *tokens, size_t count, vb_error *err);
/* Keeps the first `count` tokens of the session and their cache rows, and removes the rest. If there are fewer tokens,
 * returns VB_BAD_ARGUMENT. */
int vb_truncate(vb_session *session, size_t count, vb_error *err);
/* Returns all tokens of the session, prompt and output, and their number in *count. The memory belongs to the session and
 * is valid until the session is changed or closed. */
const int32_t *vb_tokens(const vb_session *session, size_t *count);

/* Describes a token that vb_generate has just chosen. If the callback returns a value other than 0, the run ends after this
 * token: vb_generate returns VB_OK with VB_FINISH_STOPPED. */
typedef struct vb_event {
    int32_t token;
    size_t index;        /* index of the token in the session */
    int draft_depth;     /* 1 to 15: the token was drafted, at this place of the draft, and accepted; 0: the target's own token */
    const float *logits; /* [V], V = vocabulary size: the target's logits that chose the token; valid only during the call */
    size_t text_bytes;   /* with a tokenizer: bytes of the run's text that are certain not to become part of a stop string */
    int draft;           /* number of an accepted draft in its round, from 1; differs from draft_depth only in a tree. Else 0 */
} vb_event;
typedef int (*vb_callback)(void *context, const vb_event *event);

/* Why the first rejected draft of a round was rejected. */
enum vb_reject {
    VB_REJECT_OTHER_TOKEN, /* the target chose another token (strict) */
    VB_REJECT_CHANCE,      /* by chance: the draft is less probable for the target than for the drafting model (rejection) */
    VB_REJECT_MASKED,      /* the mask or a bias of minus infinity forbids the draft */
    VB_REJECT_CUT_OFF,     /* top-k, top-p or min-p removes the draft */
    VB_REJECT_RANK,        /* the target chose another token, and the draft is not among the relaxed_topk best (relaxed) */
    VB_REJECT_DELTA        /* the draft is more than relaxed_delta less probable than the best token (relaxed) */
};
#define VB_REJECT_REASONS 6 /* number of values of enum vb_reject */

enum vb_finish { VB_FINISH_LENGTH, VB_FINISH_STOP, VB_FINISH_STOPPED };

typedef struct vb_result {
    size_t tokens;              /* number of chosen tokens, including an end token */
    enum vb_finish finish;      /* LENGTH: by max_tokens or the context; STOP: end token or stop string; STOPPED: by a callback */
    uint64_t fingerprint;       /* hash of the logits that chose the tokens, if requested; see vb_fingerprint */
    size_t forwards;            /* passes through the target after the prompt */
    size_t drafted, accepted;   /* drafts that the target verified; drafts that were accepted and are part of the output */
    size_t accepted_by_depth[VB_MAX_DRAFT], drafted_by_depth[VB_MAX_DRAFT]; /* the two numbers for each place in the draft */
    size_t draft_failures;      /* drafts cut short by logits that were not finite, or by a wrong answer of a callback */
    size_t prefill_tokens;      /* prompt tokens that were computed */
    double prefill_seconds, decode_seconds;
    double draft_seconds;       /* the part of decode_seconds in which the draft method worked */
    int32_t stop_string; /* number, from 1, of the stop string that ended the run; 0: no stop string did */
    size_t text_bytes;   /* with a tokenizer: bytes of the run's text, without the stop string or end token */
    size_t rejected_by_depth[VB_MAX_DRAFT];  /* rounds whose first rejected draft was at this place; [0]: the first draft */
    size_t first_reject[VB_REJECT_REASONS];  /* rounds whose first rejected draft was rejected for this reason */
    size_t relaxed;      /* accepted drafts that are not the target's own token */
    size_t cached_tokens; /* in a batch: prompt tokens whose cache rows another sequence had computed already */
    size_t preemptions;  /* in a batch: how often the sequence lost its cache rows, which were then computed again */
    double relaxed_nats; /* sum of log p_best - log p over these drafts: what relaxed acceptance cost */
} vb_result;

typedef struct vb_generate_options {
    size_t max_tokens;
    int ignore_eos;       /* 1: end tokens do not end the run */
    int fingerprint;      /* 1: computes vb_result.fingerprint */
    vb_callback callback; /* called for each token as it is chosen; may be NULL */
    void *context;
    const vb_tokenizer *tokenizer; /* the model's tokenizer; the run's text is made of the vb_piece of its tokens. NULL: no text */
    const int32_t *stop_tokens; /* stop_token_count token ids. Each ends the run as an end token does, also with ignore_eos. Not copied */
    size_t stop_token_count;
    const char *const *stop; /* stop_count strings, which need a tokenizer. The run ends with VB_FINISH_STOP after the token that
                                completes one of them in the run's text. Text of the prompt and of earlier runs does not count */
    size_t stop_count;
} vb_generate_options;

/* Computes the tokens appended so far and generates up to max_tokens more, which are appended to the session. *result is
 * filled even on an error. A session without tokens, stop strings without a tokenizer, or a mask that forbids all tokens is
 * VB_BAD_ARGUMENT. Logits that are not finite are VB_NOT_FINITE; the message names the token and the first such layer.
 * Tokens that were chosen before an error stay in the session, and the callback has been called for them. */
int vb_generate(vb_session *session, const vb_generate_options *options, vb_result *result, vb_error *err);

/* Computes the tokens appended so far, except the last one, from whose logits the next token will be chosen. With `prefill`
 * "onednn" only whole chunks are computed. No token is chosen: a later vb_generate gives the same result as without this
 * call. */
int vb_prefill(vb_session *session, vb_error *err);

/* Called by vb_evaluate for each row of the target (depth -1) or of an MTP module (depth 0 and more). `logits` [vocabulary
 * size] predict the token that follows token `index` (target) or token index + depth + 1 (module). `hidden` [hidden size]
 * is the row after the final norm. `logits` and `hidden` are valid only during the call. A result other than 0 stops
 * vb_evaluate, which then returns VB_STOPPED. */
typedef int (*vb_row_callback)(void *context, int depth, size_t index, const float *logits, const float *hidden);

/* Computes the tokens that have not been computed yet, and reports the logits of every row. MTP modules are computed as
 * well, at the first `depths` depths, with the session's own tokens as input (teacher forcing): row i at depth k gets token
 * i+k+1. Rows for which the session has no such token are left out. Depth k uses module k mod D, where D is the number of
 * modules. `depths` is at most VB_MAX_DRAFT, and must be 0 if there are no modules.
 *
 * Rows are reported chunk by chunk; in a chunk first those of the target, then depth by depth, with ascending indices. With
 * depths > 0, no token of the session may have been computed before; otherwise the result is VB_BAD_ARGUMENT. */
int vb_evaluate(vb_session *session, int depths, vb_row_callback row, void *context, vb_error *err);

/* Generates one token and shows what the session's draft method would propose after it. The token is appended to the
 * session and written to *next. The drafts are written to `drafts`, which has room for VB_MAX_DRAFT, and their number to
 * *count. If the context is full, returns VB_BAD_ARGUMENT. */
int vb_draft(vb_session *session, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err);
/* Does what vb_draft does, for a session whose drafts form a tree (vb_draft refuses such sessions). For each drafts[i],
 * parents[i] is the number, from 1, of the draft that it follows, or 0 if it follows *next. The confidence of a draft is
 * the product of the drafting model's probabilities on the way to it. The most confident draft comes first. The arrays
 * drafts, parents and confidences each have room for VB_MAX_NODES. For a session that drafts chains, each draft follows the
 * one before it and all confidences are 0. */
int vb_draft_tree(vb_session *session, int32_t *next, int32_t *drafts, int32_t *parents, double *confidences, int32_t *count,
                  vb_error *err);

/* Adds the bits of a row of logits to a hash, FNV-1a over 32-bit words, and returns the new hash. `h` is
 * VB_FINGERPRINT_START for the first row, and the previous result for each following row. */
#define VB_FINGERPRINT_START 14695981039346656037u
uint64_t vb_fingerprint(uint64_t h, const float *logits, size_t count);

#include "verbatim_batch.h"
#include "verbatim_files.h"
#include "verbatim_model.h"
#include "verbatim_tensors.h"
#include "verbatim_text.h"

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
