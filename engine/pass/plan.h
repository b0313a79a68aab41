/* engine/pass/plan.h -- what a pass costs each of several machines that compute one model together, from shapes alone.
 *
 * docs/RANKS.md ("Planning") derives the numbers. They are for decoding: passes of a few rows of one sequence. The model may have been
 * opened by model_open_shapes. A process that computes a part of the model is called a rank. Of struct
 * op_ranks, `count` and `before` are used, which say who has which rows. */
#ifndef VB_PLAN_H
#define VB_PLAN_H

#include "engine/pass/reads.h"
#include "ops/ranks.h"

/* One pass, on one rank. */
struct plan_cost {
    double read;      /* bytes of weights, of scales and of the cache that the rank reads from its memory */
    double gathers;   /* exchanges in which each rank gets what the others have computed; 0 if there is one rank */
    double gathered;  /* bytes of all ranks' parts in these exchanges */
    double received;  /* those bytes that this rank does not have itself */
};

/* Bytes in the memory of one rank. */
struct plan_memory {
    double own;   /* its rows of the matrices that are divided */
    double whole; /* what every rank has: other matrices, embedding, norms */
    double cache; /* KV cache and index cache, for `context` tokens; each rank has all of it */
};

/* Computes a pass of the target: `rows` rows that attend to `depth` tokens, and the logits of `heads` rows. The rows choose experts
 * independently, each expert with the same probability. So they read plan_experts(c, rows) different experts of a layer. */
struct plan_cost plan_target(const struct model *m, const struct op_ranks *ranks, int rank, double rows, double depth, double heads);
/* Computes a pass of MTP module 0, whose last row has logits. */
struct plan_cost plan_module(const struct model *m, const struct op_ranks *ranks, int rank, double rows, double depth);

/* Returns the expected number of different experts that `rows` rows choose: E (1 - (1 - k/E)^rows), with k experts per row. */
double plan_experts(const struct config *c, double rows);

/* drafts: 1 if MTP module 0 is used, with a cache of its own. */
struct plan_memory plan_memory(const struct model *m, const struct op_ranks *ranks, int rank, double context, int drafts);

#endif
