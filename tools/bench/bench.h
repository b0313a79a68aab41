/* tools/bench/bench.h -- `verbatim bench`: what is measured, and what the machine allows. */
#ifndef VB_BENCH_H
#define VB_BENCH_H

#include "engine/session/session.h"
#include "tools/bench/forced.h"
#include "tools/cli/cli.h"

#define BENCH_ROUNDS 64
#define BENCH_BEYOND_CACHES 128e6 /* bytes: so many are read from memory, fewer may lie in the caches */

/* The first four are the machine's own: whatever else is measured is held against them. */
enum bench_kind {
    BENCH_READ, BENCH_FMA, BENCH_BF16, BENCH_INT8,
    BENCH_PREFILL, BENCH_PASS, BENCH_LINEAR, BENCH_ATTENTION, BENCH_GENERATE, BENCH_KINDS
};
extern const char *const bench_kinds[BENCH_KINDS];

struct bench_item {
    enum bench_kind kind;
    char name[48];
    size_t rows, depth;    /* rows of a pass; tokens before it */
    const char *draft;     /* of GENERATE */
    int K, topk;           /* topk: of a tree; 0: a chain */
    double force;          /* drafts are right with this probability; negative: as they come */
    size_t outputs, inputs, calls; /* of LINEAR: [N,K] of one matrix; how many calls a run is, of ATTENTION too */
    enum weight_type type; /* of LINEAR: of the weights, and for oneDNN of x as well */
    int onednn;            /* LINEAR: oneDNN's; PREFILL: with --prefill onednn */
    vb_session *session;   /* kept open between rounds, PASS */
    struct bench_work work; /* of one run */
    double seconds[BENCH_ROUNDS];
    double read[BENCH_ROUNDS], fma[BENCH_ROUNDS]; /* what the machine did right before, per second */
    size_t tokens, forwards; /* of one run of GENERATE */
};

struct onednn;
struct timeline;

struct bench {
    struct cli *c;
    struct bench_item *item;
    size_t count;
    int rounds, threads;
    int warm;              /* the round that is not counted */
    double read, fma;      /* what the machine did last, per second */
    const char *isa;       /* the table in use */
    void *data;            /* what BENCH_READ reads: BF16 numbers, and so F32 ones, the weights of LINEAR, the cache of ATTENTION */
    size_t bytes;
    int32_t *text;         /* random tokens [text_count] */
    size_t text_count;
    int32_t *plain;        /* the target's own continuation of the prompt [prompt + length] */
    size_t prompt, length; /* of GENERATE */
    struct op_ctx cx;      /* of LINEAR and ATTENTION, */
    void *memory;          /* its scratch and their x, y, slots and timelines */
    float *x, *y;
    int32_t *slots;
    struct timeline *seen;
    struct onednn *onednn; /* NULL: */
    const char *no_onednn; /* why */
    const char *no_onednn_bf16; /* why oneDNN has no lines with BF16 weights; NULL: it has them */
    int prefill_onednn;    /* whether it can read prompts: of every type of weight but two it cannot */
};

/* --- lines.c: which lines there are --- */
void bench_choose(struct bench *b);
/* Whether --only, a list of kinds, leaves this kind in. */
int bench_wants(const struct bench *b, enum bench_kind kind);
/* Reports a --only that names what is no kind. */
int bench_check_only(struct bench *b);

/* --- run.c --- */
/* Bytes that one pass of a line reads; of LINEAR and ATTENTION a whole run. */
double bench_pass_bytes(const struct bench_item *i);
int bench_run(struct bench *b, struct bench_item *i, vb_error *err);

/* --- ops.c: linear layers and attention alone --- */
#define BENCH_MOST_ROWS 512  /* of a linear layer, */
#define BENCH_MOST_QUERIES 32 /* and of attention */
/* The largest matrix [*N,*K] inside the model's layers; lm_head, which few rows meet, left out. */
void bench_largest_matrix(const struct model *m, size_t *N, size_t *K);
/* Memory and oneDNN for every line that was chosen. Reports errors. */
int bench_ops_open(struct bench *b);
void bench_ops_close(struct bench *b);
/* Sets calls and work of a line of these kinds. */
void bench_ops_plan(const struct bench *b, struct bench_item *i);
int bench_run_linear(struct bench *b, const struct bench_item *i, vb_error *err);
void bench_run_attention(struct bench *b, const struct bench_item *i);

/* --- work.c --- */
/* Bytes and operations of a pass of rows tokens[first..first + rows) whose logits are asked for when `head`; experts are
 * counted as the router chose them, once per pass each. Reports errors. */
int bench_pass_work(struct bench *b, const int32_t *tokens, size_t first, size_t rows, int head, struct bench_work *work);
/* The same for an MTP module's pass of `rows` rows, and its head on one. Experts: the most that the rows can choose. */
struct bench_work bench_module_work(const struct model *m, size_t depth, size_t rows);
/* Attention alone, from q to the heads' values, of `rows` queries that see `depth` tokens. */
struct bench_work bench_attention_work(const struct model *m, const struct mla *a, double rows, double depth);

/* --- tell.c --- */
double bench_median(const struct bench_item *item, int rounds);
/* Speed-up over plain decoding, median of the rounds' own ratios; and what it would be if time were bytes alone:
 * tokens per pass x B(1) / (B(K+1) + the modules' passes), B as they really were. */
double bench_speed_up(const struct bench *b, const struct bench_item *i);
double bench_limit(const struct bench *b, const struct bench_item *i);
/* The table, or the JSON object. Returns an exit code. */
int bench_tell(struct bench *b);

/* --- svg.c: speed-up against acceptance and K, with the limit. Returns an exit code. --- */
int bench_svg(const struct bench *b, const char *path);

#endif
