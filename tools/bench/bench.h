/* tools/bench/bench.h -- `verbatim bench`: measurements, and their comparison with the limits of the machine. */
#ifndef VB_BENCH_H
#define VB_BENCH_H

#include "engine/session/session.h"
#include "tools/bench/forced.h"
#include "tools/cli/cli.h"

#define BENCH_ROUNDS 64
#define BENCH_BEYOND_CACHES 128e6 /* if work reads more bytes than this, the CPU caches cannot hold them */

/* The first six kinds measure the machine itself. Measurements of the other kinds are compared with the machine's
 * limits. */
enum bench_kind {
    BENCH_READ, BENCH_FMA, BENCH_BF16, BENCH_INT8, BENCH_INT4, BENCH_GPU,
    BENCH_PREFILL, BENCH_PASS, BENCH_LINEAR, BENCH_ATTENTION, BENCH_GENERATE, BENCH_BATCH, BENCH_KINDS
};
extern const char *const bench_kinds[BENCH_KINDS];

/* The work and the times of each part of a pass (enum pass_part). */
struct bench_parts {
    struct bench_work part[PASS_PARTS];
};
struct bench_times {
    struct op_clock_part part[PASS_PARTS];
};

/* An item is one line of the printed table: a piece of work and its measured times. */
struct bench_item {
    enum bench_kind kind;
    char name[48];
    size_t rows, depth;    /* the number of rows in the pass; the number of tokens before it. For BATCH, rows is the
                              number of sequences */
    const char *draft;     /* for GENERATE: the draft method */
    int K, topk;           /* for GENERATE: --draft-tokens and --draft-topk; K negative: plain decoding; topk 0: no
                              tree */
    double force;          /* the probability that a draft is replaced by the correct token; negative: drafts are not
                              changed */
    size_t outputs, inputs; /* for LINEAR: the size [N,K] of the matrix */
    size_t calls;          /* for LINEAR and ATTENTION: how many times one run calls the operator */
    enum weight_type type; /* for LINEAR: the type of the weights; if oneDNN does the work, also the type of x */
    int onednn;            /* for LINEAR: whether oneDNN does the work; for PREFILL: whether --prefill onednn is used */
    int expanded;          /* for PREFILL: whether --prefill expanded is used */
    vb_session *session;   /* for PASS: stays open between rounds */
    int module;            /* for PASS: whether the first MTP module computes the pass */
    struct bench_work work; /* how many bytes one run reads, and how many operations it does */
    struct bench_parts parts; /* for PASS and PREFILL: the same work, divided among the parts of the pass */
    struct bench_times *times; /* [BENCH_ROUNDS]: the measured times of the parts; NULL: parts are not measured */
    double seconds[BENCH_ROUNDS];
    /* measured just before each run: the bytes that the machine reads per second, and its operations per second */
    double read[BENCH_ROUNDS], fma[BENCH_ROUNDS];
    double gpu[BENCH_ROUNDS]; /* the bytes that the GPU's memory reads and writes per second while it copies; 0: not
                                 measured */
    size_t tokens, forwards; /* for GENERATE: the number of tokens and of target passes in one run; tokens also for
                                BATCH */
};

struct onednn;
struct timeline;
struct bench_module;

struct bench {
    struct cli *c;
    struct bench_item *item;
    size_t count;
    int rounds, threads;
    int warm;              /* whether this is the first round, which only warms up */
    double read, fma;      /* newest measurement: the bytes that the machine reads per second, and its operations per
                              second */
    int gpu_copies;        /* whether a GPU computes parts of the model, and has room to measure copies in its memory */
    const char *isa;       /* name of the instruction set in use */
    void *data;            /* random BF16 numbers: READ reads them, LINEAR uses them as weights, ATTENTION as a cache */
    size_t bytes;
    int32_t *text;         /* [text_count]: random tokens */
    size_t text_count;
    int32_t *plain;        /* [prompt + length]: the prompt and its continuation by plain decoding */
    size_t prompt, length; /* for GENERATE: number of prompt tokens and of generated tokens */
    struct op_ctx cx;      /* for LINEAR and ATTENTION: the context of the operators */
    struct arithmetic arithmetic; /* its arithmetic: that of a session */
    void *memory;          /* one block that holds the scratch memory of cx, x, y, slots and seen */
    float *x, *y;
    int32_t *slots;
    struct timeline *seen;
    struct op_clock clock; /* for items with `times` */
    struct bench_module *module; /* for items with `module`; NULL before the first of them runs */
    struct onednn *onednn; /* NULL: oneDNN is not used */
    const char *no_onednn; /* why oneDNN is not used */
    const char *no_onednn_bf16; /* why oneDNN is not measured with BF16 weights; NULL: it is measured with them */
    int prefill_onednn;    /* whether oneDNN can compute prompts with this model's types of weights */
};

/* --- lines.c: the lines of the table --- */
/* Fills b->item with the items that the options ask for. */
void bench_choose(struct bench *b);
/* Whether items of this kind are wanted: --only lists the kind or was not given. */
int bench_wants(const struct bench *b, enum bench_kind kind);
/* Checks that --only lists only names of kinds. Reports errors. */
int bench_check_only(struct bench *b);

/* Appends an item whose name is printed as printf does. */
struct bench_item *bench_add(struct bench *b, enum bench_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether the random text has so many tokens. */
int bench_fits(const struct bench *b, size_t tokens);

/* --- plan.c: the passes of --plan, and what limits each part of them --- */
/* Checks the options --plan and --depth, and the options that exclude them. Reports errors. */
int bench_check_plan(struct bench *b);
/* Adds the items of --plan. */
void bench_choose_plan(struct bench *b);
/* Prints the parts of each pass, or with --json the object. Returns an exit code. */
int bench_tell_plan(const struct bench *b);

/* --- gpu.c: the memory of the GPU that computes parts of the model --- */
/* Sets b->gpu_copies. */
void bench_gpu_open(struct bench *b);
void bench_gpu_close(struct bench *b);
/* Copies blocks in the GPU's memory. Returns the number of bytes that were read and written in *seconds. */
double bench_gpu_copy(const struct bench *b, double *seconds);

/* --- batch.c: plain decoding of several sequences that share passes --- */
int bench_run_batch(struct bench *b, struct bench_item *i, vb_error *err);

/* --- module.c: one row through the first MTP module and its output head, for --plan --- */
/* Runs the pass of an item with `module`. */
int bench_run_module(struct bench *b, struct bench_item *i, vb_error *err);
void bench_close_module(struct bench *b);

/* --- run.c --- */
/* Returns the number of bytes that one pass of this item reads. For LINEAR and ATTENTION, returns the number of bytes
 * that one run reads. */
double bench_pass_bytes(const struct bench_item *i);
/* bench_clock_on starts b->clock for the next pass in w. bench_clock_off stops it, and stores the times of the parts
 * and their sum in i->times and i->seconds. For an item without `times`, both do nothing. */
void bench_clock_on(struct bench *b, const struct bench_item *i, struct pass *pass);
void bench_clock_off(struct bench *b, struct bench_item *i, struct pass *pass);
/* Measures the machine, then runs this item once and stores its time in i->seconds[b->rounds]. Returns nonzero on
 * error. */
int bench_run(struct bench *b, struct bench_item *i, vb_error *err);

/* --- ops.c: linear layers and attention alone --- */
#define BENCH_MOST_ROWS 512   /* the largest number of rows for a linear layer */
#define BENCH_MOST_QUERIES 32 /* the largest number of rows for attention */
/* Finds the size [*N,*K] of the largest matrix in the model's layers. lm_head is not counted, because few rows go
 * through it. */
void bench_largest_matrix(const struct vb_model *m, size_t *N, size_t *K);
/* Allocates memory and prepares oneDNN for all chosen items. Reports errors. */
int bench_ops_open(struct bench *b);
void bench_ops_close(struct bench *b);
/* Sets `calls` and `work` of an item of kind LINEAR or ATTENTION. */
void bench_ops_plan(const struct bench *b, struct bench_item *i);
int bench_run_linear(struct bench *b, const struct bench_item *i, vb_error *err);
void bench_run_attention(struct bench *b, const struct bench_item *i);

/* --- work.c --- */
/* The instructions that multiply weights of this type. `bf16`: precision bf16 rounds the inputs of linear layers. */
enum bench_loop bench_loop_of(enum weight_type type, int bf16);
struct bench_work bench_sum(const struct bench_parts *parts);
/* Counts bytes and operations of one pass over tokens[first .. first + rows). The output head computes logits of
 * `head_rows` rows. If `expanded` is nonzero, `first` is 0, and the operations are those of --prefill expanded, with
 * its chunks. The function runs the pass to see which experts the router chooses, unless it has one row. Each expert is
 * counted once per pass. Reports errors. */
int bench_pass_work(struct bench *b, const int32_t *tokens, size_t first, size_t rows, size_t head_rows, int expanded,
                    struct bench_parts *work);
/* Counts the same for a pass of `rows` rows through an MTP module, whose output head computes logits for one row.
 * Counts as many experts as the rows can choose at most. */
struct bench_parts bench_module_work(const struct vb_model *m, const vb_draft_vocab *vocab, size_t depth, size_t rows);
/* Counts the same for attention alone (from the queries to the output of each head), with `rows` queries that attend to
 * `depth` tokens. */
struct bench_work bench_attention_work(const struct vb_model *m, const struct layer *layer, double rows, double depth);

/* --- tell.c --- */
/* The quantile q of some numbers, one for each round. */
double bench_quantile(const double *numbers, int rounds, double q);
/* The median of the item's measured times, in seconds. */
double bench_median(const struct bench_item *item, int rounds);
/* The speed-up over plain decoding. A ratio is computed for each round, and the result is the median of the ratios. */
double bench_speed_up(const struct bench *b, const struct bench_item *i);
/* The speed-up that is possible if time depends only on the bytes read. It is tokens per pass x B(1) / (B(K+1) + M).
 * B(n) is the number of bytes that a pass of n rows reads in this run, and M the number that the modules' passes
 * read. */
double bench_limit(const struct bench *b, const struct bench_item *i);
/* Prints the table, or with --json the object. Returns an exit code. */
int bench_tell(struct bench *b);

/* --- svg.c --- */
/* Writes a diagram to the file `path`: for each K, the speed-up and its limit as functions of acceptance. Returns an
 * exit code. */
int bench_svg(const struct bench *b, const char *path);

#endif
