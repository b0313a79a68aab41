/* engine/verbatim.h -- the public C interface of Verbatim. The only header that programs include;
 * it includes the others: verbatim_text.h (tokenizers, chat templates), verbatim_model.h (facts, conventions, GGUF), verbatim_batch.h
 * (many sequences) and verbatim_files.h (saved sessions).
 *
 * Two nouns. A *model* is read-only once it is open and may be shared by threads. A *session* is one timeline of tokens
 * with its caches: append, truncate, generate, save, load. Functions that can fail return VB_OK (0) or a negative code and, when
 * `err` is not NULL, fill it with one sentence. Options that are all zero mean the defaults.
 *
 * The promise: for the same checkpoint, prompt, precision, sampling options and seed, the logits that chose each token
 * have the same bits whatever the draft method, draft length, number of sequences in a pass, prefill chunk, thread
 * count and instruction set.
 *
 * Stack. A function that computes (generate, evaluate, prefill, draft, a step of a batch) needs 64 KB of the calling thread's
 * stack, callbacks not counted. A function that opens, loads or saves something, or renders a template, needs 1 MB, and so do
 * passes by oneDNN and libraries built with a sanitizer or without optimisation. */
#ifndef VERBATIM_H
#define VERBATIM_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* What is declared from here to the end is all that the libraries export. */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* Of this header; vb_version() is that of the library. The two are compared by who loads the library at run time: before
 * 1.0 structs may grow from one version to the next. */
#define VB_VERSION "0.1.0"
const char *vb_version(void);
#define VB_MAX_DRAFT 15 /* the longest draft, K */
#define VB_MAX_TOPK 16  /* of a tree of drafts: the most that may follow one token, */
#define VB_MAX_NODES 64 /* and the most of all */

enum vb_code {
    VB_OK = 0,
    VB_BAD_ARGUMENT = -1,   /* the caller's mistake: an option, a token id, a length (the command exits with 2) */
    VB_IO = -2,             /* a file is missing or cannot be read */
    VB_BAD_CHECKPOINT = -3, /* a file is there and is wrong */
    VB_UNSUPPORTED = -4,    /* a file is right and asks for what this program does not do */
    VB_NO_MEMORY = -5,
    VB_NOT_FINITE = -6,     /* a logit that had to choose a token is NaN or infinite */
    VB_STOPPED = -7         /* a callback asked to stop */
};

typedef struct vb_error {
    int code;
    char message[512]; /* one sentence, UTF-8, no newline */
} vb_error;

/* Every allocation of a model and its sessions goes through one of these; NULL functions mean malloc and free. PCRE2
 * is given the same functions; jansson takes only process-wide ones, which a library must not set, so it uses malloc. */
typedef struct vb_allocator {
    void *(*alloc)(void *context, size_t size); /* at least 64-byte aligned memory is not required */
    void (*free)(void *context, void *block);
    void *context;
} vb_allocator;

/* ---- a model ---------------------------------------------------------------------------------------------------- */
typedef struct model vb_model;
typedef struct vb_model_options {
    vb_allocator allocator; /* must outlive the model and its sessions */
    const char *precision;  /* NULL or "f32": weights as stored, f32 activations; "bf16": what linear layers take is rounded
                               to bf16, and so are, once, weights that are not (a copy of them); "q8", "q4": weights become
                               Q8_0 or Q4_0, once (a copy). In each, a GGUF file's quantised weights stay as they are */
    const char *conventions; /* NULL: the defaults; else "as=vllm-2025,concat=hidden-embedding": `verbatim conventions` lists
                                them. Those of drafting change no output; those of the target change the bits. */
    const char *numa;       /* NULL or "off", "interleave", "bind": on machines with several memories (NUMA nodes), threads
                               are pinned and weights placed; reads them all. See vb_placement. No bit depends on it. */
    const char *repack;     /* NULL or "on": Q8_0 and Q4_0 weights are put into another order (a copy), in which they are read
                               faster; "off": they are used as they are stored. No bit depends on it */
    int32_t threads;        /* that make such copies; 0: the processors of the affinity mask */
    void (*progress)(void *context, size_t done, size_t total); /* bytes of copies made so far; NULL: silent */
    void *progress_context;
} vb_model_options;

/* Opens a checkpoint in the Hugging Face layout (config.json, model.safetensors or shards with an index), or a GGUF file
 * of architecture deepseek2 (of a set, the first). Weights are mapped, not read, but for those that are copied: see the options; and what a GGUF file
 * holds transposed. A mapped file must not be cut short while the model is open: reading what is gone raises SIGBUS, as with every
 * mapped file, and the library installs no handler (the command does: it names the file and exits). options may be NULL. Close it after
 * its last session. */
int vb_model_open(vb_model **out, const char *dir, const vb_model_options *options, vb_error *err);
void vb_model_close(vb_model *model);

/* What became of the option numa. interleave: pages of weights go round the memories. bind: the processors of a node compute
 * a range of rows of every matrix, and its pages lie in that node's memory. The pages are those of the mapped files, in
 * the kernel's cache: read to their place when nobody had read them, moved there otherwise. */
typedef struct vb_placement {
    int32_t nodes;     /* with processors or memory that this process may use; with 1 nothing changes */
    size_t pages;      /* of matrices, each with a node to lie on; 0: none was placed */
    size_t in_place;   /* that lay there when they were read in */
    size_t moved;      /* that lay elsewhere and were moved there; the rest lie elsewhere still */
    double seconds;    /* that placing took, reading included */
    int failed;        /* the machine or this build refused */
    char why_not[256]; /* empty, or why nothing (or not everything) was placed: a clause, no full stop */
} vb_placement;
/* Returns 0, and zeros, when the option was off. */
int vb_model_placement(const vb_model *model, vb_placement *out);

/* Locks the mapped weights into memory (mlock), which reads them all; they are unlocked when the model is closed. When the limit
 * (RLIMIT_MEMLOCK) is too low, VB_NO_MEMORY: nothing is locked then, and the model is as usable as before. */
int vb_model_lock(const vb_model *model, vb_error *err);

int32_t vb_vocab_size(const vb_model *model);
int32_t vb_hidden_size(const vb_model *model);
int32_t vb_mtp_modules(const vb_model *model);             /* MTP modules stored; 0: the mtp methods are refused */
int32_t vb_max_positions(const vb_model *model);           /* max_position_embeddings */
int vb_is_end_token(const vb_model *model, int32_t token); /* eos_token_id of generation_config.json, else config.json */

/* A model's tokenizer (verbatim_text.h). */
typedef struct tokenizer vb_tokenizer;

/* ---- a session: one timeline of tokens with its caches ------------------------------------------------------------ */
typedef struct vb_session vb_session;
/* How the target's token is chosen from its row of logits, in this order: bias, penalties, mask, temperature, top-k,
 * top-p, min-p, then one random number of Philox4x32-10 that depends on (seed, index of the token) alone. */
typedef struct vb_sampling {
    float temperature;        /* 0: argmax, lowest index; else at least 1e-5 */
    int32_t top_k;            /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    uint64_t seed;
    float repetition_penalty; /* over prompt and output: z > 0 ? z/r : z*r; 0 or 1: off */
    float presence_penalty, frequency_penalty; /* over the output */
    const int32_t *bias_tokens;                /* logit bias, bias_count pairs, each token once; copied */
    const float *bias_values;
    int32_t bias_count;
    /* Sets mask[t] to 0 for tokens that may not be chosen at this index; NULL: none. Must depend on its arguments alone. */
    void (*mask)(void *context, const int32_t *tokens, size_t count, unsigned char *mask);
    void *mask_context;
    /* Which drafts stand. NULL or "strict": a draft that is the target's token, chosen as above: the very path of plain
     * decoding. "rejection": drafts are drawn from their module's distribution q, as above from its own row and with a random
     * number of their own, and stand with probability min(1, p/q), else the token is drawn from max(p - q, 0): the same
     * distribution as plain decoding, another path; at temperature 0 as strict. "relaxed": between the model's thinking tokens
     * a draft stands also when it is close to the best; lossy. */
    const char *acceptance;
    const char *draft_sample_method; /* of rejection: NULL or "probabilistic"; "greedy": the best, a q that is sure of it */
    int32_t relaxed_topk;  /* of relaxed, at temperature 1 and whatever top-k, top-p, min-p: among so many best (0: 10), */
    float relaxed_delta;   /* and not more than this less probable than the best (0: 0.6) */
    int32_t thinking_begin, thinking_end; /* of relaxed: two tokens; they, and end tokens, are the target's own */
} vb_sampling;

/* ---- taps: every named intermediate value, as it is computed ----------------------------------------------------- */
/* What a row of a pass is. */
typedef struct vb_tap_row {
    int32_t sequence; /* the session's `sequence` option */
    int32_t token;    /* the one whose embedding the row starts from */
    int32_t index;    /* of the row in its cache's timeline: the target's row i and an MTP module's row i belong to h_i; -1:
                         the row that convention first-row=phantom puts before the others */
    int32_t position; /* of RoPE */
    int32_t slot;     /* where its cache row lies */
    int32_t draft;    /* 0: the token is committed; k: it is the k-th draft of this round; -1: padding */
    int32_t hidden_of; /* of a module's row, the row whose hidden vector it took: -1 none (zeros), else its index in */
    int32_t hidden_depth; /* the target (-1) or the module of an MTP depth (0..) */
    int32_t parent;   /* of the target's row of a draft: the number of the draft that it follows, 0: the committed token; else 0 */
} vb_tap_row;

/* Names are the module paths of Hugging Face's DeepseekV3ForCausalLM, then what of the module: `.input`, `.output`, or a
 * value that has no module of its own. docs/ORACLE.md lists them. RoPE rows hold adjacent pairs, or halves where
 * config.json has rope_interleave false. Data is valid during the call; the callback may not use the session. */
typedef struct vb_tap {
    const char *name;
    int32_t layer;          /* as the checkpoint counts; MTP module k is num_hidden_layers + k; -1: outside the layers */
    int32_t depth;          /* MTP depth, from 0: the module's number, but where module k mod D stands in; -1: the target */
    uint64_t pass;          /* passes of this session through the target and through modules, in order, from 0 */
    size_t rows;            /* rows side by side; a pass may tell a name in several pieces, rows ascending */
    const vb_tap_row *row;  /* [rows] */
    size_t outer, inner;    /* a row's shape; outer is 1 where there is but one dimension */
    size_t stride;          /* numbers from one row to the next; */
    size_t outer_stride;    /* and within a row from one outer index to the next */
    int integers;           /* data is int32_t, else float */
    const void *data;
} vb_tap;
typedef void (*vb_tap_callback)(void *context, const vb_tap *tap);

/* ---- a trace: the bookkeeping of every round ---------------------------------------------------------------------- */
enum vb_trace_kind {
    VB_TRACE_PASS,   /* rows went through the target (depth -1) or a module; their cache rows are written */
    VB_TRACE_CHOOSE, /* `token` was chosen from row `first` of that depth's last pass: by the target, or as a draft */
    VB_TRACE_HIDDEN, /* hidden rows first.. of the target, `count` of them, were handed to the drafter */
    VB_TRACE_CUT     /* a cache was cut to `first` rows; `count` are gone */
};
typedef struct vb_trace {
    enum vb_trace_kind kind;
    int32_t sequence, depth;  /* depth: of MTP, or -1 */
    uint64_t round;           /* 0: the prompt; a round is what ends with a pass through the target */
    size_t first, count;      /* PASS: count rows */
    const vb_tap_row *row;    /* PASS */
    int32_t token;            /* CHOOSE */
    int32_t draft;            /* CHOOSE: of a module the number of the draft, from 1; of the target as vb_event.draft_depth */
} vb_trace;
typedef void (*vb_trace_callback)(void *context, const vb_trace *trace);

/* ---- drafting: how tokens are proposed, which the target then verifies ------------------------------------------------ */
/* What may follow tokens [count], the timeline: writes at most `max` (up to VB_MAX_DRAFT) ids to draft and returns how many;
 * 0: nothing comes to mind. It has no say in the output, and may answer as it likes: the draft ends before an id outside the
 * vocabulary and at `max`, and either is counted in vb_result.draft_failures, as a negative answer is. It may not use the
 * session. Asked again about the same timeline it may answer differently. */
typedef int (*vb_draft_callback)(void *context, const int32_t *tokens, size_t count, int32_t *draft, int max);

/* Drafts as a tree (engine/draft/tree.h) in the place of a chain. */
typedef struct vb_tree_shape {
    int32_t topk;  /* 2 to VB_MAX_TOPK: how many drafts may follow each token; 0, 1: a chain */
    int32_t nodes; /* the most drafts of a round; 0: topk * K, at most VB_MAX_NODES */
} vb_tree_shape;

/* Drafts change the speed, and no bit of the output (but see vb_sampling.acceptance). All zero: none. */
typedef struct vb_drafting {
    const char *method;   /* NULL or "none", or a name that vb_draft_methods lists */
    int32_t tokens;       /* K, the longest draft, up to VB_MAX_DRAFT; 0: the number of MTP modules, or 3 where these do not draft;
                             negative: no drafts */
    int automatic;        /* 1: the length of each draft, from 0 to `tokens`, is chosen from how many were accepted so far and how
                             long passes took; with tokens 0 up to 15, of mtp-vanilla up to the number of MTP modules */
    float p_min;          /* a draft ends before a token whose probability, at temperature 1, is below; 0: off. ngram and
                             callbacks have no probabilities */
    vb_tree_shape tree;   /* for methods with `trees`, with strict acceptance */
    const char *settings; /* NULL, or what single methods want to know: "ngram-min=1,ngram-max=3". vb_draft_methods lists the keys. Those
                             of another method than this one are not looked at; one that no method has is refused */
    const vb_model *model; /* for methods with needs_model: a smaller model with the same tokens (vb_tokenizers_match), which must
                              outlive the session; ids that only one of them has are not drafted */
    const char *head;     /* for methods with needs_head: the directory of a published head, which is opened with the session */
    vb_draft_callback callback; /* for methods with needs_callback */
    void *context;        /* of the callback */
} vb_drafting;

typedef struct vb_draft_method {
    const char *name;
    const char *about;    /* what drafts, in one line */
    const char *settings; /* the keys of vb_drafting.settings that it reads, with their defaults: "ngram-min=2,ngram-max=4"; "": none */
    int needs_modules, needs_model, needs_head, needs_callback; /* without which it is refused. Modules: vb_mtp_modules */
    int trees;            /* it can draft trees */
} vb_draft_method;

/* The draft methods, one by one: fills *out with the one of this number, from 0 on. Returns 0 when there are no more. */
int vb_draft_methods(size_t number, vb_draft_method *out);

typedef struct vb_session_options {
    int32_t context;       /* tokens the caches hold; 0: max_position_embeddings */
    int32_t prefill_chunk; /* rows of the prompt in one pass; 0: 512 */
    const char *prefill;   /* NULL or "contract"; or "onednn": for speed, rows of the original prompt go through oneDNN's linear
                              layers, with BF16 weights rounded as in precision bf16. Not the contract's bits, and others with
                              another oneDNN or kind of CPU; the same with any draft, threads and isa. All weights BF16 or all
                              F32, chunks of 512. Tokens are of the original prompt until the first is generated or evaluated */
    int32_t threads;       /* the most; 0: the processors of the affinity mask. The session uses fewer where that is faster, or
                              while other programs use the cores */
    int32_t exact_threads; /* 1: always all of them */
    const char *isa;       /* NULL or "best", "scalar", "avx2", "avx512", "neon" */
    vb_sampling sampling;
    vb_drafting drafting;
    void (*progress)(void *context, size_t done, size_t total); /* tokens of the prompt computed so far; NULL: silent */
    void *progress_context;
    int (*stop)(void *context); /* asked before each layer of a pass through the model; NULL: never. Non-zero gives the pass up: its
                              rows leave the caches, no token is chosen, and the session is as it was before the pass. vb_generate
                              then ends as when its callback stops it, all else with VB_STOPPED. */
    void *stop_context;
    vb_tap_callback tap;   /* NULL: none */
    void *tap_context;
    int tap_scores;        /* attention scores too: as much again as the attention itself */
    vb_trace_callback trace; /* NULL: none */
    void *trace_context;
    int padded;            /* passes of a round are filled up to K+1 rows with token 0, as systems with fixed shapes do */
    int32_t sequence;      /* a number of the caller's, told to taps and traces */
    int poison_cut_rows;   /* for tests: cache rows beyond a cut become NaN, in the target's caches and the modules' */
} vb_session_options;

int vb_session_open(vb_session **out, const vb_model *model, const vb_session_options *options, vb_error *err);
void vb_session_close(vb_session *session);

/* Bytes that the session's draft method takes: caches, and of a draft model also the memory of its passes. */
size_t vb_draft_memory(const vb_session *session);

/* The threads of a session so far, or of its batch. */
typedef struct vb_thread_use {
    int32_t most;      /* as asked for */
    double mean;       /* how many computed, over its passes; 0 before the first */
    size_t passes;     /* of the target, of modules, heads and draft models */
    size_t left_out;   /* how often a thread was interrupted inside its work, and left out for a time: the cores were busy */
    double waited;     /* seconds of waiting for such threads */
} vb_thread_use;
void vb_session_threads(const vb_session *session, vb_thread_use *use);

/* Appends tokens to the timeline; nothing is computed yet. Ids outside the vocabulary and more tokens than the context
 * holds are refused, and nothing is appended. */
int vb_append(vb_session *session, const int32_t *tokens, size_t count, vb_error *err);
/* Cuts the timeline to its first `count` tokens; the caches are cut with it. More than there are is refused. */
int vb_truncate(vb_session *session, size_t count, vb_error *err);
/* The timeline: prompt and output. The memory belongs to the session and is valid until it changes. */
const int32_t *vb_tokens(const vb_session *session, size_t *count);

/* Told about each token as it is chosen. Non-zero ends the run after this token (VB_STOPPED is not an error then:
 * finish is VB_FINISH_STOPPED). */
typedef struct vb_event {
    int32_t token;
    size_t index;        /* in the timeline */
    int draft_depth;     /* 1..15: an accepted draft of that depth; 0: the target's own token */
    const float *logits; /* the row that chose it [V], as the model gave it */
    size_t text_bytes;   /* with a tokenizer: bytes of the run's text that no stop string can take back any more */
    int draft;           /* of an accepted draft: its number in its round, from 1: but in a tree the same as draft_depth; else 0 */
} vb_event;
typedef int (*vb_callback)(void *context, const vb_event *event);

/* Why a round's first draft that did not stand did not. */
enum vb_reject {
    VB_REJECT_OTHER_TOKEN, /* the target chose another one (strict) */
    VB_REJECT_CHANCE,      /* rejection: less probable to the target than to its module, and the random number was against it */
    VB_REJECT_MASKED,      /* the mask or a bias of -inf forbade it */
    VB_REJECT_CUT_OFF,     /* top-k, top-p or min-p left it out */
    VB_REJECT_RANK,        /* relaxed: another one was chosen, and it was not among the relaxed_topk best, */
    VB_REJECT_DELTA        /* or more than relaxed_delta less probable than the best */
};
#define VB_REJECT_REASONS 6 /* how many there are */

enum vb_finish { VB_FINISH_LENGTH, VB_FINISH_STOP, VB_FINISH_STOPPED };

typedef struct vb_result {
    size_t tokens;              /* how many were chosen, the end token included */
    enum vb_finish finish;      /* length (n or the context), stop (an end token, a stop string), stopped (the callback) */
    uint64_t fingerprint;       /* of the rows that chose the tokens, when asked for; see vb_fingerprint */
    size_t forwards;            /* target passes after prefill */
    size_t drafted, accepted;   /* drafts verified; those emitted */
    size_t accepted_by_depth[VB_MAX_DRAFT], drafted_by_depth[VB_MAX_DRAFT];
    size_t draft_failures;      /* drafts that ended at a row that was not finite, or because a callback said nonsense */
    size_t prefill_tokens;
    double prefill_seconds, decode_seconds;
    double draft_seconds;       /* of decode_seconds: proposing, and observing what stood */
    int32_t stop_string; /* the number, from 1, of the stop string that ended the run; 0: none did */
    size_t text_bytes;   /* with a tokenizer: of the run's text, which ends before the stop string and an end token */
    size_t rejected_by_depth[VB_MAX_DRAFT];  /* rounds whose first draft that did not stand was that deep, */
    size_t first_reject[VB_REJECT_REASONS];  /* and why */
    size_t relaxed;      /* of the accepted ones, those that are not the target's token */
    double relaxed_nats; /* what they cost: the sum of log p_best - log p over them */
} vb_result;

typedef struct vb_generate_options {
    size_t max_tokens;
    int ignore_eos;
    int fingerprint;      /* compute it */
    vb_callback callback; /* NULL: none */
    void *context;
    const vb_tokenizer *tokenizer; /* the model's, whose vb_piece are the run's text; NULL: the run has none */
    const char *const *stop; /* stop_count strings; the token that completes one of them in the run's text is the last: a */
    size_t stop_count;       /* finish of VB_FINISH_STOP. The text of the prompt, and of runs before, is not looked at */
} vb_generate_options;

/* Continues the timeline. On an error the tokens chosen before it stand in the timeline and were told to the callback. */
int vb_generate(vb_session *session, const vb_generate_options *options, vb_result *result, vb_error *err);

/* Computes what is due of the timeline, but for its last token, which chooses the next; with prefill onednn whole chunks
 * only. Nothing is chosen: what vb_generate gives afterwards is what it would have given. */
int vb_prefill(vb_session *session, vb_error *err);

/* Told about a row: of the target (depth -1) or of the module of an MTP depth (0..). logits [V] after token `index`, or for
 * a module after token index + depth + 1; hidden [d], after the norm. Non-zero stops (VB_STOPPED). */
typedef int (*vb_row_callback)(void *context, int depth, size_t index, const float *logits, const float *hidden);

/* Runs the tokens not yet computed through the target and, teacher forced, through `depths` MTP depths: row i of depth k
 * takes tok[i+k+1] of the timeline, and is left out where the timeline ends before. Depth k uses module k mod D. Rows are
 * told in ascending index, depth by depth within a chunk. With depths, the timeline must not have been computed before. */
int vb_evaluate(vb_session *session, int depths, vb_row_callback row, void *context, vb_error *err);

/* What would be proposed: *next is the target's token after the timeline, drafts [at most VB_MAX_DRAFT] those of the
 * session's method after it. *next is appended to the timeline. */
int vb_draft(vb_session *session, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err);
/* The same of a session that drafts trees, which vb_draft refuses: drafts, the number, from 1, of the draft that each follows (0:
 * *next), and their confidences, the most confident first. All [at most VB_MAX_NODES]. A chain is a tree too. */
int vb_draft_tree(vb_session *session, int32_t *next, int32_t *drafts, int32_t *parents, double *confidences, int32_t *count,
                  vb_error *err);

/* FNV-1a over 32-bit words: start with VB_FINGERPRINT_START; one call per row, in order. */
#define VB_FINGERPRINT_START 14695981039346656037u
uint64_t vb_fingerprint(uint64_t h, const float *logits, size_t count);

#include "verbatim_batch.h"
#include "verbatim_files.h"
#include "verbatim_model.h"
#include "verbatim_text.h"

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
