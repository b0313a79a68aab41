/* engine/verbatim.h -- the public C interface of Verbatim.
 *
 * Programs include only this header. This header includes the others: verbatim_text.h (tokenizers, chat templates),
 * verbatim_model.h (facts about a model, conventions, GGUF files), verbatim_routes.h (which experts tokens take),
 * verbatim_batch.h (many sequences at once), verbatim_files.h (saved sessions), verbatim_tensors.h (files of tensors),
 * verbatim_ranks.h (one model in several processes), verbatim_device.h (a GPU) and verbatim_train.h (training steps).
 *
 * There are two main objects. A *model* is read-only once it is open, and threads may share it. A *session* is one
 * sequence of tokens with its KV caches. A program can append tokens to a session, truncate it, let it generate more
 * tokens, save it and load it. Only one thread at a time may use a session.
 *
 * Decoding works in rounds. In each round a fast method may propose some tokens, which together are a *draft*. The
 * model itself, called the *target*, computes all tokens of the draft in one *pass*, and keeps those that it would have
 * chosen itself. In a pass, and in a KV cache, each token is one *row*. A *hidden state* is the
 * model's output vector for one token, before the output head.
 *
 * Functions that can fail return VB_OK (0) or a negative error code. After an error they also write the code and a
 * message of one sentence to *err, if `err` is not NULL. An option that is 0 or NULL has its default value, so a struct
 * of options that is all zeros selects all defaults.
 *
 * A program that was compiled with one version of these headers also runs with the libraries of other versions that
 * have the same soname, libverbatim.so.0. Later versions append members to structs, and change none. To let a library
 * know which members a program has, structs of options begin with a member `size`. A program sets it to the size of the
 * struct, or leaves it 0: then the struct has the members of version 0.1. Members that the program does not have get
 * their defaults. If a member that the library does not have is not 0, the function returns VB_BAD_ARGUMENT. Members
 * named `reserved` are room for later versions, and must be 0. A function that fills a struct passes the size of the
 * program's struct to a function of the library, whose name ends with _sized. vb_error, vb_allocator, vb_utf8 and
 * vb_tree_shape never change.
 *
 * Verbatim promises the same bits. Take two runs with the same checkpoint, prompt, precision, cache type, sampling
 * options and seed, and the same forced routes, if there are any. For each token, both runs compute logits with the
 * same bits, so both choose the same token. The runs may differ in draft method, draft length, number of sequences in a
 * pass, size of prefill chunks, number of threads, instruction set, and number of processes (verbatim_ranks.h).
 *
 * Stack size: a function that computes (generate, evaluate, prefill, draft, a step of a batch) needs 64 KB of the
 * calling thread's stack, plus the stack that callbacks use. A function that opens, loads or saves something, or
 * renders a chat template, needs 1 MB of stack. Prefill with oneDNN, and libraries built with a sanitizer or without
 * optimisation, also need 1 MB of stack. */
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

/* VB_VERSION is the version of this header, and vb_version returns the version of the library. */
#define VB_VERSION "0.1.0"
const char *vb_version(void);
#define VB_MAX_DRAFT 15 /* the largest number of tokens in a draft, K */
#define VB_MAX_TOPK 16  /* in a tree of drafts, the largest number of drafts that may follow one token */
#define VB_MAX_NODES 64 /* in a tree of drafts, the largest number of drafts in total */

enum vb_code {
    VB_OK = 0,
    VB_BAD_ARGUMENT = -1,   /* the caller passed an invalid option, token id or length */
    VB_IO = -2,             /* a file is missing or cannot be read or written */
    VB_BAD_CHECKPOINT = -3, /* the contents of a file are wrong */
    VB_UNSUPPORTED = -4,    /* a file is valid but needs a feature that Verbatim does not have */
    VB_NO_MEMORY = -5,
    VB_NOT_FINITE = -6,     /* a row of logits from which a token should be chosen has a NaN or an infinite value */
    VB_STOPPED = -7,        /* a callback asked to stop */
    VB_DEVICE = -8          /* a GPU cannot be used, or failed */
};

typedef struct vb_error {
    int code;
    char message[512]; /* one sentence in UTF-8, without a newline */
} vb_error;

/* The functions with which a model and its sessions allocate memory. If alloc and free are NULL, malloc and free are
 * used. PCRE2 uses the same functions. The JSON library jansson always uses malloc, because its allocation functions
 * can be set only for the whole process. */
typedef struct vb_allocator {
    void *(*alloc)(void *context, size_t size); /* returns memory of any alignment, or NULL if there is none */
    void (*free)(void *context, void *block);
    void *context;
} vb_allocator;

/* ---- a model ---------------------------------------------------------------------------------------------------- */
typedef struct vb_model vb_model;
typedef struct vb_model_options {
    size_t size;            /* sizeof(vb_model_options), or 0 */
    vb_allocator allocator; /* it is copied; what `context` points at must live until the model and its sessions are
                               closed */
    /* NULL or "f32": weights are used as stored, and activations are f32. "bf16": the input of linear layers is rounded
     * to BF16. Weights that are not stored as BF16 are rounded to BF16 into a copy when the model is opened. "q8",
     * "q4": weights are quantized to Q8_0 or Q4_0 into a copy when the model is opened. With "bf16", INT4 weights
     * (compressed-tensors) are rounded without a copy. With "q8" and "q4", they keep their codes and scales. In every
     * precision, weights that a GGUF file stores quantized are used as stored. "tensor": "bf16" with a GPU's tensor
     * cores (verbatim_device.h). */
    const char *precision;
    /* The type of the numbers in the KV caches. NULL or "f32": caches are not rounded. "bf16": each number is rounded
     * to BF16 when it is stored, so that caches take half as much memory. "q8": latents are quantized in groups of 32,
     * so that caches take 0.31 as much; kv_lora_rank must be a multiple of 32. Caches of EAGLE heads are f32 always. */
    const char *cache_type;
    /* A list such as "as=vllm-2025,concat=hidden-embedding" that selects the points on which the model follows another
     * implementation. NULL selects the defaults. `verbatim conventions` prints all conventions. Conventions of drafting
     * do not change the output. Conventions of the target model change the logits, and may therefore change the
     * output. */
    const char *conventions;
    /* One of NULL, "off", "interleave" and "bind". NULL is the same as "off". On machines with several memories (NUMA
     * nodes), "interleave" and "bind" pin threads to processors and place weights on nodes (see vb_placement). With
     * "interleave" and "bind", vb_model_open reads all weights. Results do not depend on `numa`. */
    const char *numa;
    /* NULL or "on": Q8_0, Q4_0 and IQ4_NL weights are reordered into a copy that can be read faster. "off": these
     * weights are not reordered. Results do not depend on `repack`. */
    const char *repack;
    /* NULL, or a directory in which copies of weights are kept: the weights that `precision` and `repack` change. If
     * the directory has no file for this model, vb_model_open writes one, as large as the copies, and waits until it is
     * on the disk. Later, the file is mapped instead of making the copies again. A file is used only if it was made
     * from model files of the same size and time of change. Only its header is checked: nobody else should be able to
     * write to the directory. If a file cannot be used or written, the model is opened without it, and
     * vb_model_facts.repack_cache_note says why. */
    const char *repack_cache;
    int32_t threads;        /* number of threads that make copies of weights; 0: the number of processors in the
                               affinity mask */
    /* Called while weights are copied. `done` is the number of bytes copied so far, and `total` the number of all bytes
     * to copy. NULL: never */
    void (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
    /* The processes that compute the model together (verbatim_ranks.h, which also says what is refused then); NULL:
     * this one alone */
    struct vb_ranks *ranks;
    const struct vb_offload *offload; /* a GPU that computes parts of the model (verbatim_device.h); NULL: none. Not
                                         with `ranks` */
} vb_model_options;

/* Opens a checkpoint in the Hugging Face layout (a directory with config.json, and model.safetensors or shards with an
 * index), or a GGUF file. If a GGUF model consists of several files, `dir` is the first file.
 * `options` may be NULL. The strings in `options` are needed only during the call. On an error *out is NULL.
 *
 * Weights are memory-mapped and are read when they are needed. Weights that the options `precision` and `repack` change
 * are copied when the model is opened. Matrices that a GGUF file stores transposed are copied as well.
 *
 * No other program may shorten a mapped file while the model is open. If a file was shortened and the library reads the
 * missing part, the operating system sends SIGBUS to the process. The library installs no handler for this signal.
 * Close all sessions of a model before you close the model. */
int vb_model_open(vb_model **out, const char *dir, const vb_model_options *options, vb_error *err);
void vb_model_close(vb_model *model);

/* Says how the option numa has placed the weights. With "interleave", the pages of weights are distributed over all
 * nodes in turn. With "bind", the rows of every matrix are divided among the nodes. The processors of a node compute
 * with the node's rows, and the pages of these rows are in the node's memory.
 *
 * Mapped pages belong to the kernel's page cache. A page that is already in the page cache is moved to the memory of
 * its node. A page that is not yet in the page cache is read into the memory of its node. */
typedef struct vb_placement {
    int32_t nodes;     /* number of nodes with processors or memory that this process may use; with only one node, no
                          page is placed */
    size_t pages;      /* number of pages of weights for which `numa` chose a node; 0: no page was placed */
    size_t in_place;   /* how many of these pages were already in the memory of their node, or were read into it */
    size_t moved;      /* how many of these pages were moved to their node; pages that are counted in neither in_place
                          nor moved are on another node */
    double seconds;    /* seconds that the placement took, including the time for reading the weights */
    int failed;        /* 1: the operating system refused, or the library was built without libnuma */
    char why_not[256]; /* the reason why some or all pages were not placed (no full stop at the end); empty if all pages
                          were placed */
} vb_placement;
/* Fills *out and returns 1. If the option numa was NULL or "off", fills *out with zeros and returns 0. */
int vb_model_placement_sized(const vb_model *model, vb_placement *out, size_t size);
static inline int vb_model_placement(const vb_model *model, vb_placement *out)
{
    return vb_model_placement_sized(model, out, sizeof *out);
}

/* Reads all weights and locks them into memory (mlock) until the model is closed. Returns VB_NO_MEMORY if the limit
 * RLIMIT_MEMLOCK is too low. After this error no weights are locked, and the model can be used as before. */
int vb_model_lock(const vb_model *model, vb_error *err);

int32_t vb_vocab_size(const vb_model *model);
int32_t vb_hidden_size(const vb_model *model);
int32_t vb_mtp_modules(const vb_model *model);             /* number of MTP modules in the checkpoint; drafting with MTP
                                                              needs one */
int32_t vb_max_positions(const vb_model *model);           /* max_position_embeddings */
/* Returns 1 if `token` ends a text, else 0. Such tokens are the eos_token_id of generation_config.json, or, if that
 * file has none, the eos_token_id of config.json. */
int vb_is_end_token(const vb_model *model, int32_t token);

/* A model's tokenizer (verbatim_text.h). */
typedef struct vb_tokenizer vb_tokenizer;

/* ---- a session: one sequence of tokens with its caches ----------------------------------------------------------- */
typedef struct vb_session vb_session;
/* Options that say how a token is chosen from the target's logits. The target is the model that generates the output,
 * in contrast to models that make drafts. The steps are, in this order: bias, penalties, mask, temperature, top-k,
 * top-p, min-p. Finally one random number selects the token. The random number is generated by Philox4x32-10 and
 * depends only on the seed and on the index of the token in the sequence. */
typedef struct vb_sampling {
    float temperature;        /* 0: the token with the largest logit is chosen, and the lowest id if several are equal;
                                 else at least 1e-5 */
    int32_t top_k;            /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    uint64_t seed;
    float repetition_penalty; /* r: the logit z of each token that is in the prompt or the output becomes z > 0 ? z/r :
                                 z*r; 0 or 1: off */
    float presence_penalty, frequency_penalty; /* for each token in the output: presence_penalty is subtracted once from
                                                  its logit, and frequency_penalty once for each occurrence */
    const int32_t *bias_tokens;                /* logit bias: bias_count token ids, each only once; the session copies
                                                  them */
    const float *bias_values;                  /* bias_values[i] is added to the logit of bias_tokens[i]; the session
                                                  copies them */
    int32_t bias_count;
    /* A callback that forbids tokens. It is called before each token is chosen. `tokens` are the `count` tokens before
     * this token. The array that it receives as `mask` has one entry per token id, and all entries are 1. The callback
     * sets the entries of forbidden tokens to 0. It returns VB_OK or a negative error code. After an error code, the
     * run ends with this error. The callback's result must depend only on its arguments. NULL: no token is
     * forbidden. */
    int (*mask)(void *context, const int32_t *tokens, size_t count, unsigned char *mask);
    void *mask_context;
    /* Which drafts are accepted.
     *
     * NULL or "strict": a draft is accepted if it is the token that the target chooses by the steps above. The output
     * is exactly the same as without drafts.
     *
     * "rejection": drafts are drawn from a distribution q. The model that makes drafts gives the logits, and the steps
     * above turn these logits into q. The target's random numbers and the random numbers for drafts are independent. A
     * draft is accepted with probability min(1, p/q), where p is the target's distribution. If a draft is rejected, the
     * token is drawn from the distribution max(p - q, 0), normalised to sum 1. The output has the same distribution as
     * without drafts, but with the same seed its tokens usually differ. At temperature 0, "rejection" is the same as
     * "strict".
     *
     * "relaxed": drafts are accepted as with "strict". Between the tokens thinking_begin and thinking_end, a draft is
     * also accepted if it is nearly as probable as the best token (relaxed_topk, relaxed_delta). This changes the
     * output. Probabilities are compared at temperature 1, without top-k, top-p and min-p. */
    const char *acceptance;
    const char *draft_sample_method; /* only for "rejection". NULL or "probabilistic": drafts are drawn from q;
                                        "greedy": the draft is the most probable token, and q gives this token the
                                        probability 1 */
    int32_t relaxed_topk;  /* for "relaxed": only the relaxed_topk most probable tokens can be accepted; 0: 10 tokens */
    float relaxed_delta;   /* for "relaxed": the best token's probability minus the draft's probability may be at most
                              this number; 0: 0.6 */
    int32_t thinking_begin, thinking_end; /* for "relaxed": ids of the tokens that begin and end the thinking. A draft
                                             that is one of these two tokens or an end token is accepted only as with
                                             "strict" */
    uint64_t reserved[8];
} vb_sampling;

/* ---- taps: every named intermediate value, as it is computed ----------------------------------------------------- */
/* Describes one row of a pass. A pass computes several rows at once, and each row is one token on its way through the
 * model. */
typedef struct vb_tap_row {
    int32_t sequence; /* the session's option `sequence` */
    int32_t token;    /* the token whose embedding is the input of the row */
    int32_t index;    /* index of the row in its cache. Row i of an MTP module combines a hidden state for token i (see
                         hidden_of) with the embedding of a later token. Convention first-row=phantom adds a row before
                         row 0; this row has index -1 */
    int32_t position; /* position that RoPE uses */
    int32_t slot;     /* place of the row's KV cache entry in memory */
    int32_t draft;    /* 0: the token is part of the prompt or the output; k: the token is draft k of this round; -1:
                         the row is padding */
    int32_t hidden_of; /* for a row of an MTP module: index of the row that computed this row's input, a hidden state;
                          -1: the input is zeros */
    int32_t hidden_depth; /* where the input was computed. -1: by the target; 0 or more: by the MTP module at this
                             depth */
    int32_t parent;   /* for a row of the target that verifies a draft: number of the draft that this draft follows, or
                         0 if it follows no draft */
    int32_t reserved[7];
} vb_tap_row;

/* Reports one intermediate value for some rows. `name` is the path of a module in Hugging Face's DeepseekV3ForCausalLM,
 * followed by `.input`, by `.output`, or by the name of a value inside the module. docs/ORACLE.md lists all names. In
 * vectors that RoPE rotates, the two numbers of a pair are adjacent. If config.json has rope_interleave false, the
 * first half of the vector holds the first numbers of all pairs.
 *
 * Element [a, b] of row i is data[i * stride + a * outer_stride + b]. `data` and `row` are valid only during the call,
 * and the callback must not use the session. */
typedef struct vb_tap {
    const char *name;
    int32_t layer;          /* layer number in the checkpoint; MTP module k is layer num_hidden_layers + k; -1: not in a
                               layer */
    int32_t depth;          /* MTP depth, from 0, or -1 for the target; depth k uses module k mod (number of modules) */
    uint64_t pass;          /* number of the pass, from 0; passes of this session through the target and through MTP
                               modules are counted together */
    size_t rows;            /* number of rows in this call; a pass may report a value in several calls, with ascending
                               rows */
    const vb_tap_row *row;  /* [rows] */
    size_t outer, inner;    /* shape of a row: a < outer, b < inner; outer is 1 for a vector */
    size_t stride;          /* distance from one row to the next, in numbers */
    size_t outer_stride;    /* distance from element [a, 0] to element [a + 1, 0] of a row, in numbers */
    int integers;           /* 1: data is int32_t; 0: float */
    const void *data;
} vb_tap;
typedef void (*vb_tap_callback)(void *context, const vb_tap *tap);

/* ---- a trace: the bookkeeping of every round --------------------------------------------------------------------- */
enum vb_trace_kind {
    VB_TRACE_PASS,   /* rows were computed by the target (depth -1) or by an MTP module, and their cache rows were
                        written */
    VB_TRACE_CHOOSE, /* `token` was chosen from row `first` of the newest pass at this depth. At depth -1 the target
                        chose it; at other depths it is a draft */
    VB_TRACE_HIDDEN, /* `count` hidden states of the target, from index `first` on, were passed to the draft method */
    VB_TRACE_CUT     /* the last `count` rows of a cache were removed; `first` rows are left */
};
typedef struct vb_trace {
    enum vb_trace_kind kind;
    int32_t sequence, depth;  /* the session's option `sequence`; the MTP depth, or -1 for the target */
    uint64_t round;           /* number of the round; 0 is the prompt, and every pass through the target ends a round */
    size_t first, count;      /* meaning: see enum vb_trace_kind. For VB_TRACE_PASS, `count` is the number of rows.
                                 `first` is 0, or, if sequences of a batch share the pass, the place of the first row
                                 among all rows of the pass */
    const vb_tap_row *row;    /* for VB_TRACE_PASS: [count]; valid only during the call */
    int32_t token;            /* for VB_TRACE_CHOOSE: the chosen token */
    int32_t draft;            /* for VB_TRACE_CHOOSE. If a module chose `token` as a draft: number of the draft, from 1.
                                 If the target chose `token`: the same as vb_event.draft_depth */
} vb_trace;
typedef void (*vb_trace_callback)(void *context, const vb_trace *trace);

/* ---- drafting: proposing tokens, which the target then verifies ------------------------------------------------ */
/* A draft method that the caller implements. `tokens` are the `count` tokens of the session so far. The function writes
 * up to `max` proposed ids to `draft` and returns their number, which may be 0. `max` is at most VB_MAX_DRAFT. The
 * function must not use the session.
 *
 * In acceptance mode strict, the drafts cannot change the output. If the function is called again for the same tokens,
 * it may propose different drafts. If the function writes an id outside the vocabulary, the draft ends before this id.
 * If it returns more than `max`, the first `max` ids are the draft. If it returns a negative number, there is no draft.
 * Each of these three errors adds 1 to vb_result.draft_failures. */
typedef int (*vb_draft_callback)(void *context, const int32_t *tokens, size_t count, int32_t *draft, int max);

/* The shape of a tree of drafts. In a tree, several drafts may follow the same token (engine/draft/tree.h). In a chain,
 * each draft follows the one before it. */
typedef struct vb_tree_shape {
    int32_t topk;  /* how many drafts may follow each token, 2 to VB_MAX_TOPK; 0 or 1: drafts form a chain */
    int32_t nodes; /* largest number of drafts in a round, K to VB_MAX_NODES; 0: topk * K, but at most VB_MAX_NODES */
} vb_tree_shape;

/* A list of the tokens that MTP modules may draft. Reading all rows of the output head takes a large part of the time
 * of a draft; with such a list, only the rows of its tokens are read. Drafts may differ. With strict acceptance the
 * output does not. In acceptance mode rejection, drafts are drawn from the tokens of the list.
 *
 * vb_draft_vocab_open copies rows of the output head, unless the tokens are 0 .. count-1. With vb_model_options.ranks,
 * each rank copies those that it has. Sessions may share a list. A list must be closed before its model is closed.
 * Returns VB_BAD_ARGUMENT if the model has no MTP modules, if the list is empty, or if it contains a token twice or an
 * id outside the vocabulary. */
typedef struct vb_draft_vocab vb_draft_vocab;
int vb_draft_vocab_open(vb_draft_vocab **out, const vb_model *model, const int32_t *tokens, size_t count,
                        vb_error *err);
size_t vb_draft_vocab_bytes(const vb_draft_vocab *vocab); /* size of the copied rows in bytes; with several ranks, of
                                                             this rank's */
void vb_draft_vocab_close(vb_draft_vocab *vocab);

/* Options that say how a session makes drafts. Drafts make decoding faster. If vb_sampling.acceptance is "strict", they
 * do not change the output. A struct that is all zeros means no drafts. */
typedef struct vb_drafting {
    const char *method;   /* NULL or "none": no drafts; else a name that vb_draft_methods lists */
    int32_t tokens;       /* K, the length of a draft, at most VB_MAX_DRAFT; 0: the number of MTP modules or parallel
                             heads, or 3 for a method that uses neither; negative: no drafts. With parallel-heads, at
                             most their number */
    int automatic;        /* 1: the session chooses the length of each draft, 0 to `tokens`, from measured rates of
                             acceptance and measured times. In a batch, sequences with the same method and `tokens`
                             share the measurements. If `tokens` is 0, the largest length is the number of MTP modules
                             with method mtp-vanilla, and 15 with every other method */
    float p_min;          /* a draft ends before a token to which the draft method gives a probability below p_min at
                             temperature 1; 0: off. p_min has no effect on the methods ngram and callback, because they
                             compute no probabilities */
    vb_tree_shape tree;   /* only for methods that can draft trees, with strict acceptance */
    const char *settings; /* settings that not every method has, such as "ngram-min=1,ngram-max=3"; may be NULL.
                             vb_draft_methods lists the settings of each method. A setting is ignored if only other
                             methods read it. A setting that no method reads is an error */
    const vb_model *model; /* for methods with needs_model: a smaller model with the same tokens (vb_tokenizers_match).
                              The draft model must outlive the session. Token ids that only one of the two models has
                              are not drafted */
    const vb_draft_vocab *vocab; /* for methods with needs_modules: the tokens that may be drafted; NULL: all. It must
                                    outlive the session */
    const char *head;     /* for methods with needs_head: the directory of a published EAGLE head, or of parallel heads,
                             which the session opens */
    vb_draft_callback callback; /* for methods with needs_callback */
    void *context;        /* passed to the callback */
    uint64_t reserved[8];
} vb_drafting;

typedef struct vb_draft_method {
    const char *name;
    const char *about;    /* describes in one line how the method makes drafts */
    const char *settings; /* settings that the method reads, with their defaults, such as "ngram-min=2,ngram-max=4"; ""
                             if it reads none */
    int needs_modules, needs_model, needs_head, needs_callback; /* needs_modules: 1 if the method needs MTP modules in
                                                                   the model. needs_model, needs_head, needs_callback: 1
                                                                   if vb_drafting.model, vb_drafting.head or
                                                                   vb_drafting.callback must be set */
    int trees;            /* 1: the method can draft trees */
    int by_history;       /* 1: drafts also depend on earlier rounds, not only on the tokens */
    int keeps_state;      /* 1: session files store the method's state. 0: session files do not store it, so fewer of
                             the first drafts after a load are accepted */
} vb_draft_method;

/* Fills *out with draft method `number`, counted from 0, and returns 1. Returns 0 if there are fewer methods. */
int vb_draft_methods_sized(size_t number, vb_draft_method *out, size_t size);
static inline int vb_draft_methods(size_t number, vb_draft_method *out)
{
    return vb_draft_methods_sized(number, out, sizeof *out);
}

/* Fills *out with the draft method that has this name. If `name` is NULL or "none", fills *out with zeros and returns
 * VB_OK. Returns VB_BAD_ARGUMENT if no method has this name; the message lists the known names. */
int vb_draft_method_find_sized(vb_draft_method *out, size_t size, const char *name, vb_error *err);
static inline int vb_draft_method_find(vb_draft_method *out, const char *name, vb_error *err)
{
    return vb_draft_method_find_sized(out, sizeof *out, name, err);
}
/* Checks whether a session of `model` can draft with these options. Returns VB_BAD_ARGUMENT if the method is unknown,
 * if something that the method needs is missing, or if a setting is unknown. This function opens no files but those of
 * a draft head, whose kind it checks; vb_session_open checks more. */
int vb_draft_check(const vb_model *model, const vb_drafting *drafting, vb_error *err);
/* Returns the length of the longest draft of a session with these options. This length is drafting->tokens, or the
 * default if drafting->tokens is 0. Returns 0 if such a session makes no drafts. */
int32_t vb_draft_tokens(const vb_model *model, const vb_drafting *drafting);
/* Sets *version to 1 or 3 if `dir` holds a published EAGLE-1 or EAGLE-3 head, to VB_PARALLEL_HEADS if it holds parallel
 * heads, or to 0 if it holds no readable head. The only error is VB_NO_MEMORY. */
#define VB_PARALLEL_HEADS 100
int vb_draft_head(int *version, const char *dir, vb_error *err);

/* Lists the instruction sets that this library supports and this CPU can run; the best one has number 0. Returns the
 * name of instruction set `number`, or NULL if there are not so many. The name is a valid value of
 * vb_session_options.isa. If vb_isa(0) is NULL, no session can be opened. */
const char *vb_isa(size_t number);

#include "verbatim_routes.h"

/* Options of a session. If a field is a pointer, the object at which it points must stay valid until the session is
 * closed. The logit bias of `sampling` is an exception: the session copies it. */
typedef struct vb_session_options {
    size_t size;           /* sizeof(vb_session_options), or 0 */
    int32_t context;       /* number of tokens that the caches can hold; 0: max_position_embeddings */
    int32_t prefill_chunk; /* number of prompt tokens that one pass computes; 0: 512, or 2048 with prefill "expanded" */
    /* Says how the prompt is computed. NULL or "contract": as all other tokens; the results have the bits that Verbatim
     * promises.
     *
     * "expanded": attention has the expanded form, which computes keys and values for each head (docs/ARITHMETIC.md,
     * rule 4e). For prompts of some hundred tokens and more this is faster. With "expanded" the results have other bits
     * than with "contract", and Verbatim makes the same promise for them. Batches support it. The rows of vb_evaluate
     * count as rows of a prompt. A draft model and MTP modules compute their rows as with "contract".
     *
     * "onednn": oneDNN computes the linear layers, which is faster. With "onednn" the results have other bits than with
     * "contract". These bits depend on the version of oneDNN and on the kind of CPU. They do not depend on drafts,
     * threads or `isa`. Either all weights must be BF16 or all weights must be F32, and prefill_chunk must be 0 or 512.
     * With BF16 weights, the input of linear layers is rounded to BF16 as in precision bf16. "cublas": the same by a
     * GPU (verbatim_device.h).
     *
     * Here, the prompt consists of the tokens that were appended before the first token was generated (with "onednn",
     * also before the first token was evaluated). If vb_truncate cuts inside the prompt or at its end, the tokens
     * that are appended next belong to the prompt too. */
    const char *prefill;
    int32_t threads; /* largest number of threads; 0: as many as processors in the affinity mask. Fewer are used if that
                        is faster, or the cores are busy */
    int32_t exact_threads; /* 1: the session always uses as many threads as `threads` says */
    const char *isa;       /* instruction set: NULL or "best", "scalar", "avx2", "avx512", "neon" */
    vb_sampling sampling;
    vb_drafting drafting;
    /* Called during prefill. `done` is the number of prompt tokens computed so far, and `total` that of all of them.
     * May be NULL */
    void (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
    /* Called before each layer of a pass through the target or a draft model; may be NULL. A result other than 0
     * cancels the pass. Then no token is chosen, and the session is as it was before the pass. vb_generate then returns
     * VB_OK with VB_FINISH_STOPPED; every other function returns VB_STOPPED. */
    int (*stop)(void *context);
    void *stop_context;
    vb_tap_callback tap;   /* called for every named intermediate value; may be NULL */
    void *tap_context;
    int tap_scores;        /* 1: taps also receive scores of attention and of indexers; this doubles the work of
                              attention */
    vb_trace_callback trace; /* called for every event in enum vb_trace_kind; may be NULL */
    void *trace_context;
    /* Forced routes: tokens 0 .. routes.tokens-1 take these experts and attend to these kept sets (verbatim_routes.h).
     * For later tokens, also generated ones, routers and indexers choose. The session copies both arrays. The router's
     * scores are computed as always, and the weights of the forced experts come from their scores, as in routing replay
     * for reinforcement learning. Forced routes that equal the chosen ones change no bit. Others change the output:
     * then they belong to the definition of the results, like the tokens. vb_session_open returns VB_BAD_ARGUMENT if
     * layers, top_k or index_topk are not the model's, if an expert does not exist or is there twice, or if a set
     * cannot belong to its token. */
    vb_routes routes;
    int record_routes;     /* 1: the session records the experts that its tokens take (vb_session_routes) */
    int record_kept;       /* 1: the session records the tokens to which its tokens attend (vb_session_routes): 4 *
                              index_topk bytes for each token in each layer */
    int32_t cpu_layers;    /* the CPU computes the first cpu_layers layers even if a GPU has them (verbatim_device.h);
                              more than there are: everything */
    int32_t sequence;      /* any number that the caller chooses; taps and traces report it */
    int padded;            /* 1: passes that verify drafts always have K+1 rows, as in systems with fixed shapes. Unused
                              rows have token 0 */
    int poison_cut_rows;   /* for tests: rows that are removed from a cache are filled with NaN */
} vb_session_options;

/* Opens a session without tokens. `options` may be NULL. The model must outlive the session. On an error *out is NULL.
 * Returns VB_BAD_ARGUMENT if an option is invalid. Returns VB_UNSUPPORTED if the CPU has no FMA instructions, if
 * `prefill` is "onednn" and oneDNN cannot use the weights, or if it is "cublas" and cuBLAS cannot be used. */
int vb_session_open(vb_session **out, const vb_model *model, const vb_session_options *options, vb_error *err);
void vb_session_close(vb_session *session);

/* Returns how many bytes of memory the session's draft method uses. This includes its caches and, for a draft model,
 * the memory of the draft model's passes. */
size_t vb_draft_memory(const vb_session *session);

/* Says how many threads a session has used so far. If the session belongs to a batch, the numbers describe the whole
 * batch. */
typedef struct vb_thread_use {
    int32_t most;      /* largest number of threads, from the options */
    double mean;       /* average number of threads per pass; 0 before the first pass */
    size_t passes;     /* number of passes; passes of the target, MTP modules, EAGLE heads and draft models are counted
                          together */
    size_t left_out;   /* how often a thread was not used for some time, because the operating system often interrupted
                          it while it computed */
    double waited;     /* seconds that threads waited for interrupted threads */
} vb_thread_use;
void vb_session_threads_sized(const vb_session *session, vb_thread_use *use, size_t size);
static inline void vb_session_threads(const vb_session *session, vb_thread_use *use)
{
    vb_session_threads_sized(session, use, sizeof *use);
}

/* Appends tokens to the session. Nothing is computed yet. Returns VB_BAD_ARGUMENT if an id is outside the vocabulary,
 * or if the context has no room for all tokens; then no token is appended. */
int vb_append(vb_session *session, const int32_t *tokens, size_t count, vb_error *err);
/* Keeps the first `count` tokens of the session and their cache rows, and removes the rest. Returns VB_BAD_ARGUMENT if
 * the session has fewer than `count` tokens. */
int vb_truncate(vb_session *session, size_t count, vb_error *err);
/* Returns all tokens of the session (prompt and output), and sets *count to their number. The memory belongs to the
 * session and is valid until the session is changed or closed. */
const int32_t *vb_tokens(const vb_session *session, size_t *count);

/* Describes a token that vb_generate has just chosen. If the callback returns a value other than 0, the run ends after
 * this token: vb_generate returns VB_OK with VB_FINISH_STOPPED. */
typedef struct vb_event {
    int32_t token;
    size_t index;        /* index of the token in the session */
    int draft_depth;     /* 0: the token is no draft; 1 to 15: the token is an accepted draft, and this is its place in
                            the draft */
    const float *logits; /* [vocabulary size]: the target's logits from which the token was chosen; valid only during
                            the call */
    size_t text_bytes;   /* with a tokenizer: bytes of the run's text that are certain not to become part of a stop
                            string */
    int draft;           /* 0: the token is no draft; else the number of this draft in its round, from 1. This number
                            differs from draft_depth only if drafts form a tree */
} vb_event;
typedef int (*vb_callback)(void *context, const vb_event *event);

/* The reason why the first rejected draft of a round was rejected. */
enum vb_reject {
    VB_REJECT_OTHER_TOKEN, /* the target chose another token (strict) */
    VB_REJECT_CHANCE,      /* (mode rejection) the target gives the draft a lower probability than the draft method
                              does, and the random number rejected the draft */
    VB_REJECT_MASKED,      /* the mask or a bias of minus infinity forbids the draft */
    VB_REJECT_CUT_OFF,     /* top-k, top-p or min-p removes the draft */
    VB_REJECT_RANK,        /* the target chose another token, and the draft is not one of the relaxed_topk most probable
                              tokens (relaxed) */
    VB_REJECT_DELTA        /* the draft's probability is below the best token's probability minus relaxed_delta
                              (relaxed) */
};
#define VB_REJECT_REASONS 6 /* number of values of enum vb_reject */

enum vb_finish { VB_FINISH_LENGTH, VB_FINISH_STOP, VB_FINISH_STOPPED };

typedef struct vb_result {
    size_t tokens;              /* number of chosen tokens, including an end token */
    enum vb_finish finish;      /* why the run ended. LENGTH: max_tokens was reached or the context was full; STOP: an
                                   end token, stop token or stop string; STOPPED: a callback */
    uint64_t fingerprint;       /* hash of the logits from which the tokens were chosen (vb_fingerprint), if
                                   vb_generate_options.fingerprint is 1 */
    size_t forwards;            /* number of passes through the target after the prompt */
    size_t drafted, accepted;   /* number of drafts that the target verified; number of drafts that were accepted and
                                   are part of the output */
    size_t accepted_by_depth[VB_MAX_DRAFT], drafted_by_depth[VB_MAX_DRAFT]; /* [i]: `accepted` and `drafted`, counted
                                                                               only for drafts at place i + 1 of the
                                                                               draft */
    size_t draft_failures;      /* number of drafts that ended early because logits were not finite or a callback gave
                                   an invalid answer */
    size_t prefill_tokens;      /* number of prompt tokens that were computed */
    double prefill_seconds, decode_seconds;
    double draft_seconds;       /* the part of decode_seconds in which the draft method worked */
    int32_t stop_string; /* number, from 1, of the stop string that ended the run; 0: no stop string did */
    size_t text_bytes;   /* with a tokenizer: bytes of the run's text, without the stop string or end token */
    size_t rejected_by_depth[VB_MAX_DRAFT];  /* [i]: number of rounds whose first rejected draft was at place i + 1 of
                                                the draft */
    size_t first_reject[VB_REJECT_REASONS];  /* [r]: number of rounds whose first rejected draft was rejected for reason
                                                r (enum vb_reject) */
    size_t relaxed;      /* number of accepted drafts that the target would not have chosen itself */
    size_t cached_tokens; /* in a batch: number of prompt tokens whose cache rows were reused from another sequence */
    size_t preemptions;  /* in a batch: how often the sequence lost its cache rows; each time the rows were computed
                            again */
    double relaxed_nats; /* sum of log p_best - log p over the drafts that `relaxed` counts. The target gives the
                            probability p to the draft, and p_best to the most likely token */
} vb_result;

typedef struct vb_generate_options {
    size_t size;          /* sizeof(vb_generate_options), or 0 */
    size_t max_tokens;
    int ignore_eos;       /* 1: end tokens do not end the run */
    int fingerprint;      /* 1: vb_generate computes vb_result.fingerprint */
    vb_callback callback; /* called after each token is chosen; may be NULL */
    void *context;
    const vb_tokenizer *tokenizer; /* the model's tokenizer, which makes the run's text from its tokens (vb_piece).
                                      NULL: the run has no text */
    const int32_t *stop_tokens; /* [stop_token_count]: token ids. Each of them ends the run like an end token, even if
                                   ignore_eos is
                                   1. They are not copied */
    size_t stop_token_count;
    const char *const *stop; /* [stop_count]: stop strings, which need a tokenizer. The run ends with VB_FINISH_STOP
                                after the token that completes a stop string in the run's text. The text of the prompt
                                and of earlier runs is not searched */
    size_t stop_count;
} vb_generate_options;

/* Computes the rows of all tokens that have no row yet. Then generates up to max_tokens more tokens, and appends them
 * to the session. *result is filled even on an error. Returns VB_BAD_ARGUMENT if the session has no tokens, if there
 * are stop strings but no tokenizer, or if a mask forbids all tokens. Returns VB_NOT_FINITE if logits are not finite;
 * the message names the index of the token and the first layer whose output was not finite. Tokens that were chosen
 * before an error stay in the session, and the callback has been called for each of them. */
int vb_generate_sized(vb_session *session, const vb_generate_options *options, vb_result *result, size_t size,
                      vb_error *err);
static inline int vb_generate(vb_session *session, const vb_generate_options *options, vb_result *result, vb_error *err)
{
    return vb_generate_sized(session, options, result, sizeof *result, err);
}

/* Computes the rows of all tokens appended so far, except the last token. vb_generate computes the last token's row
 * later, because it needs the logits of this row to choose the next token. With `prefill` "onednn" or "cublas",
 * vb_prefill computes only whole chunks of 512 rows. It chooses no token. A later vb_generate gives the same result as
 * without it. */
int vb_prefill(vb_session *session, vb_error *err);

/* Called by vb_evaluate for each row of the target (depth -1) or of an MTP module (depth 0 and more). The target's
 * `logits` [vocabulary size] predict the token with index `index` + 1. A module's `logits` predict the token with index
 * `index` + depth + 2. `hidden` [hidden size] is the hidden state after the last norm; the output head computes
 * `logits` from it. `logits` and `hidden` are valid only during the call. A result other than 0 stops vb_evaluate,
 * which then returns VB_STOPPED. */
typedef int (*vb_row_callback)(void *context, int depth, size_t index, const float *logits, const float *hidden);

/* Computes the rows of all tokens that have no row yet, and reports the logits of these rows. The function also runs
 * the MTP modules at depths 0 to `depths` - 1. The modules read the session's own tokens (teacher forcing): row i at
 * depth k reads token i+k+1. A row is left out if the session has no token i+k+1. Depth k uses module k mod D, where D
 * is the number of modules. `depths` is at most VB_MAX_DRAFT, and must be 0 if the model has no modules.
 *
 * Rows are reported chunk by chunk. For each chunk, the target's rows come first, then the rows of each depth, always
 * with ascending indices. Returns VB_BAD_ARGUMENT if depths > 0 and a row of the session has been computed before. */
int vb_evaluate(vb_session *session, int depths, vb_row_callback row, void *context, vb_error *err);

/* Generates one token, and returns the drafts that the session's draft method would propose after this token. The token
 * is appended to the session and written to *next. The drafts are written to `drafts`, which must have room for
 * VB_MAX_DRAFT ids. *count is set to the number of drafts. Returns VB_BAD_ARGUMENT if the context is full. */
int vb_draft(vb_session *session, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err);
/* Does what vb_draft does, for a session whose drafts form a tree (vb_draft refuses such sessions). parents[i] is the
 * number, from 1, of the draft that drafts[i] follows, or 0 if drafts[i] follows *next. The confidence of a draft is
 * the product of the probabilities that the draft method gives to the drafts on the path from *next to this draft. The
 * most confident draft comes first. The arrays drafts, parents and confidences must each have room for VB_MAX_NODES
 * entries. For a session that drafts chains, each draft follows the one before it and all confidences are 0. */
int vb_draft_tree(vb_session *session, int32_t *next, int32_t *drafts, int32_t *parents, double *confidences,
                  int32_t *count, vb_error *err);

/* Extends a hash with the bits of a row of `count` logits, and returns the new hash. The hash is FNV-1a over 32-bit
 * words. `h` is VB_FINGERPRINT_START for the first row, and the result of the previous call for each following row. */
#define VB_FINGERPRINT_START 14695981039346656037u
uint64_t vb_fingerprint(uint64_t h, const float *logits, size_t count);

#include "verbatim_batch.h"
#include "verbatim_device.h"
#include "verbatim_files.h"
#include "verbatim_model.h"
#include "verbatim_ranks.h"
#include "verbatim_tensors.h"
#include "verbatim_text.h"
#include "verbatim_train.h"

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
