/* engine/pass/plan.h -- the memory and the traffic of a pass on each of several machines that compute one model
 * together, from shapes alone.
 *
 * docs/RANKS.md ("Planning") derives the numbers. They are for decoding: passes of a few rows of one sequence. The
 * model may have been opened by model_open_shapes. A process that computes a part of the model is called a rank. Only
 * `count` and `before` of struct op_ranks are used; they determine the rows of each rank. */
#ifndef VB_PLAN_H
#define VB_PLAN_H

#include "engine/pass/reads.h"
#include "ops/ranks.h"

/* One pass, on one rank. */
struct plan_cost {
    double read;      /* bytes of weights, of scales and of the cache that the rank reads from its memory */
    double gathers;   /* exchanges in which each rank receives the outputs of the others; 0 if there is one rank */
    double gathered;  /* bytes of all ranks' outputs in these exchanges */
    double received;  /* the part of these bytes that this rank receives from the others */
};

/* Bytes in the memory of one rank. */
struct plan_memory {
    double own;   /* its rows of the matrices that are divided */
    double whole; /* the tensors that every rank has: other matrices, embedding, norms */
    double cache; /* KV cache and index cache for `context` tokens; every rank has all of them */
};

/* Computes a pass of the target: `rows` rows that attend to `depth` tokens, and the logits of `heads` rows. The rows
 * choose experts independently, and each expert has the same probability. So they read plan_experts(c, rows) different
 * experts of a layer. */
struct plan_cost plan_target(const struct vb_model *m, const struct op_ranks *ranks, int rank, double rows,
                             double depth, double heads);
/* Computes a pass of MTP module 0, whose last row has logits. */
struct plan_cost plan_module(const struct vb_model *m, const struct op_ranks *ranks, int rank, double rows,
                             double depth);

/* Returns the expected number of different experts that `rows` rows choose: E (1 - (1 - k/E)^rows), with k experts per
 * row. */
double plan_experts(const struct config *c, double rows);

/* drafts: 1 if MTP module 0 is used, with a cache of its own. */
struct plan_memory plan_memory(const struct vb_model *m, const struct op_ranks *ranks, int rank, double context,
                               int drafts);

#endif
