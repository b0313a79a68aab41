/* tools/bench.h -- `verbatim bench`: what is measured, and what the machine allows. */
#ifndef VB_BENCH_H
#define VB_BENCH_H

#include "../engine/session.h"
#include "cli.h"

#define BENCH_ROUNDS 64

enum bench_kind { BENCH_READ, BENCH_FMA, BENCH_BF16, BENCH_PREFILL, BENCH_PASS, BENCH_GENERATE };

/* Work of a pass: bytes of weights that it reads at least, and floating-point operations. */
struct bench_work {
    double bytes, flops;
};

struct bench_item {
    enum bench_kind kind;
    char name[48];
    size_t rows, depth;    /* rows of a pass; tokens before it */
    const char *draft;     /* of GENERATE */
    int K;
    double force;          /* drafts are right with this probability; negative: as they come */
    vb_session *session;   /* kept open between rounds, PASS */
    struct bench_work work; /* of one run: a pass, or all of them */
    double seconds[BENCH_ROUNDS];
    size_t tokens, forwards; /* of one run of GENERATE */
};

struct bench {
    struct cli *c;
    struct bench_item *item;
    size_t count;
    int rounds, threads;
    const char *isa;       /* the table in use */
    void *data;            /* what BENCH_READ reads */
    size_t bytes;
    int32_t *text;         /* random tokens [text_count] */
    size_t text_count;
    int32_t *plain;        /* the target's own continuation of the prompt [prompt + length] */
    size_t prompt, length; /* of GENERATE */
};

/* Bytes and operations of a pass of rows tokens[first..first + rows) whose logits are asked for when `head`; experts are
 * counted as the router chose them, once per pass each. bench_work.c. Reports errors. */
int bench_pass_work(struct bench *b, const int32_t *tokens, size_t first, size_t rows, int head, struct bench_work *work);
/* The same for an MTP module's pass of `rows` rows, and its head on one. Experts: the most that the rows can choose. */
struct bench_work bench_module_work(const struct model *m, size_t depth, size_t rows);

/* Replaces the session's drafter by one that drafts with it and then says what `plain` has, with probability `force` for
 * each token, else another token. bench_forced.c. plain stays the caller's. */
int bench_force(vb_session *s, const int32_t *plain, size_t count, double force);

double bench_median(const struct bench_item *item, int rounds);
/* bench_svg.c: speed-up against acceptance and K, with the limit. Returns an exit code. */
int bench_svg(const struct bench *b, const char *path);

#endif
