/* tools/bench/bench.h -- `verbatim bench`: measurements, and their comparison with the limits of the machine. */
#ifndef VB_BENCH_H
#define VB_BENCH_H

#include "engine/session/session.h"
#include "tools/bench/forced.h"
#include "tools/cli/cli.h"

#define BENCH_ROUNDS 64
#define BENCH_BEYOND_CACHES 128e6 /* if work reads more bytes than this, the CPU caches cannot hold them */

/* The first five kinds measure the machine itself. Measurements of the other kinds are compared with the machine's limits. */
enum bench_kind {
    BENCH_READ, BENCH_FMA, BENCH_BF16, BENCH_INT8, BENCH_INT4,
    BENCH_PREFILL, BENCH_PASS, BENCH_LINEAR, BENCH_ATTENTION, BENCH_GENERATE, BENCH_KINDS
};
extern const char *const bench_kinds[BENCH_KINDS];

/* An item is one line of the printed table: a piece of work and its measured times. */
struct bench_item {
    enum bench_kind kind;
    char name[48];
    size_t rows, depth;    /* the number of rows in the pass; the number of tokens before it */
    const char *draft;     /* for GENERATE: the draft method */
    int K, topk;           /* for GENERATE: --draft-tokens and --draft-topk; K negative: plain decoding; topk 0: no tree */
    double force;          /* the probability that a draft is replaced by the correct token; negative: drafts are not changed */
    size_t outputs, inputs; /* for LINEAR: the size [N,K] of the matrix */
    size_t calls;          /* for LINEAR and ATTENTION: how many times one run calls the operator */
    enum weight_type type; /* for LINEAR: the type of the weights; if oneDNN does the work, also the type of x */
    int onednn;            /* for LINEAR: whether oneDNN does the work; for PREFILL: whether --prefill onednn is used */
    int expanded;          /* for PREFILL: whether --prefill expanded is used */
    vb_session *session;   /* for PASS: stays open between rounds */
    struct bench_work work; /* how many bytes one run reads, and how many operations it does */
    double seconds[BENCH_ROUNDS];
    /* measured just before each run: the bytes that the machine reads per second, and its operations per second */
    double read[BENCH_ROUNDS], fma[BENCH_ROUNDS];
    size_t tokens, forwards; /* for GENERATE: the number of tokens and of target passes in one run */
};

struct onednn;
struct timeline;

struct bench {
    struct cli *c;
    struct bench_item *item;
    size_t count;
    int rounds, threads;
    int warm;              /* whether this is the first round, which only warms up */
    double read, fma;      /* newest measurement: the bytes that the machine reads per second, and its operations per second */
    const char *isa;       /* name of the instruction set in use */
    void *data;            /* random BF16 numbers: READ reads them, LINEAR uses them as weights, ATTENTION (as F32) as a cache */
    size_t bytes;
    int32_t *text;         /* [text_count]: random tokens */
    size_t text_count;
    int32_t *plain;        /* [prompt + length]: the prompt and its continuation by plain decoding */
    size_t prompt, length; /* for GENERATE: number of prompt tokens and of generated tokens */
    struct op_ctx cx;      /* for LINEAR and ATTENTION: the context of the operators */
    void *memory;          /* one block that holds the scratch memory of cx, x, y, slots and seen */
    float *x, *y;
    int32_t *slots;
    struct timeline *seen;
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

/* --- run.c --- */
/* Returns the number of bytes that one pass of this item reads. For LINEAR and ATTENTION, returns the number of bytes that one run
 * reads. */
double bench_pass_bytes(const struct bench_item *i);
/* Measures the machine, then runs this item once and stores its time in i->seconds[b->rounds]. Returns nonzero on error. */
int bench_run(struct bench *b, struct bench_item *i, vb_error *err);

/* --- ops.c: linear layers and attention alone --- */
#define BENCH_MOST_ROWS 512   /* the largest number of rows for a linear layer */
#define BENCH_MOST_QUERIES 32 /* the largest number of rows for attention */
/* Finds the size [*N,*K] of the largest matrix in the model's layers. lm_head is not counted, because few rows go through it. */
void bench_largest_matrix(const struct model *m, size_t *N, size_t *K);
/* Allocates memory and prepares oneDNN for all chosen items. Reports errors. */
int bench_ops_open(struct bench *b);
void bench_ops_close(struct bench *b);
/* Sets `calls` and `work` of an item of kind LINEAR or ATTENTION. */
void bench_ops_plan(const struct bench *b, struct bench_item *i);
int bench_run_linear(struct bench *b, const struct bench_item *i, vb_error *err);
void bench_run_attention(struct bench *b, const struct bench_item *i);

/* --- work.c --- */
/* Counts bytes and operations of one pass over tokens[first .. first + rows). If `head` is nonzero, the output head is included.
 * If `expanded` is nonzero, `first` is 0, and the operations are those of --prefill expanded, with its chunks.
 * The function runs the pass to see which experts the router chooses. Each expert is counted once per pass. Reports errors. */
int bench_pass_work(struct bench *b, const int32_t *tokens, size_t first, size_t rows, int head, int expanded, struct bench_work *work);
/* Counts the same for a pass of `rows` rows through an MTP module, whose output head computes logits for one row. Counts as many
 * experts as the rows can choose at most. */
struct bench_work bench_module_work(const struct model *m, size_t depth, size_t rows);
/* Counts the same for attention alone (from the queries to the output of each head), with `rows` queries that attend to `depth`
 * tokens. */
struct bench_work bench_attention_work(const struct model *m, const struct mla *a, double rows, double depth);

/* --- tell.c --- */
/* The median of the item's measured times, in seconds. */
double bench_median(const struct bench_item *item, int rounds);
/* The speed-up over plain decoding. A ratio is computed for each round, and the result is the median of the ratios. */
double bench_speed_up(const struct bench *b, const struct bench_item *i);
/* The speed-up that is possible if time depends only on the bytes read. It is tokens per pass x B(1) / (B(K+1) + M). B(n) is the
 * number of bytes that a pass of n rows reads in this run, and M the number that the modules' passes read. */
double bench_limit(const struct bench *b, const struct bench_item *i);
/* Prints the table, or with --json the object. Returns an exit code. */
int bench_tell(struct bench *b);

/* --- svg.c --- */
/* Writes a diagram to the file `path`: for each K, the speed-up and its limit as functions of acceptance. Returns an exit code. */
int bench_svg(const struct bench *b, const char *path);

#endif
