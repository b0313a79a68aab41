/* reference/operators.h -- each operator of a model alone, in double precision, on inputs that the caller gives.
 *
 * An operator computes one named value from other named values. The names are those of a dump (docs/ORACLE.md).
 * `verbatim diff --local` gives the operators the values of a dump, and `verbatim replay` gives them the values of a
 * file. The numbers have the order of the checkpoint, also in q_rope and k_rope. Integers (tokens, experts, groups) are
 * doubles here.
 *
 * An operator also says how far rounding may move its result. Engines round at other places than this program does: one
 * rounds the probabilities before they are multiplied by the values, another does not. So the bound counts every
 * rounding that some engine makes inside of the operator. `counted` lists them, and `ranks` adds those of
 * tensor-parallel ranks. They are counted in two ways. If a formula gives their effect on a number of the result,
 * `slack` is an upper bound of their sum. Otherwise (`inner`) the caller computes the operator again with noise, and
 * sees how far the result moves. Neither includes the rounding of the result itself. */
#ifndef VB_REFERENCE_OPERATORS_H
#define VB_REFERENCE_OPERATORS_H

#include <stddef.h>

#include "engine/model/values.h"
#include "reference/reference.h"

#define REFERENCE_INPUTS VALUE_INPUTS

struct reference_call;

/* What is computed is a row of the table of values: its name, inputs, width, and in which layers it exists
 * (engine/model/values.h). E in a name stands for the number of an expert, and H for that of a head. The input
 * EXPERT_OUTPUTS has the outputs of the chosen experts, [X, D] per row. */
struct reference_operator {
    const char *name;
    const struct value_row *row; /* of value_table: the result */
    void (*compute)(struct reference_call *call);
    const char *counted; /* the roundings that the bound counts, besides the one of the result */
    enum pass_value first; /* of two operators with the same result, each computes it where this is its first input; 0:
                              there is one operator */
};

/* The table of all operators, in the order of computation. Returns NULL if there is no operator i. */
const struct reference_operator *reference_operator_at(size_t i);
/* Finds the operator whose output is `name`, a complete name such as model.layers.3.mlp.output. *layer: its layer, or
 * -1. mlp.experts.E.output is computed by the operator "expert", and *expert is then E; in self_attn.scores.H it is the
 * head. *expert is -1 for other names. NULL: no operator computes such a value in this model. */
const struct reference_operator *reference_operator_of(const struct reference *r, const char *name, int *layer,
                                                       int *expert);
/* Writes the names of the sources of input i, for example "mlp.gate.choice | mlp.gate.scores": the first counts that a
 * model has. "NAME?": a model may have none. Special names: "tokens"; "<layer" for the input of the layer; "<hidden"
 * for the hidden states that an MTP module reads; "<kept" for the positions to which a row attends in sparse attention.
 * Returns 0 if the operator has no input i. */
int reference_operator_sources(const struct reference_operator *o, size_t i, char text[128]);
/* Writes the complete name of input i. Returns 0 if this model has no such input in this layer. *depth: the MTP depth
 * of the input, -1 for the target. */
int reference_operator_input(const struct reference *r, const struct reference_operator *o, int i, int layer,
                             const struct conventions *conventions, char name[128], int *depth);

/* One computation of an operator. S rows; row s has the position first + s. */
struct reference_call {
    const struct reference_operator *op;
    int layer, expert, S, first; /* expert: for an operator of one head, the head */
    const double *in[REFERENCE_INPUTS];
    size_t in_width[REFERENCE_INPUTS];
    double *out;   /* [S, width] */
    double *slack; /* NULL, or [S, width], set to the bound of the inner roundings; 0 where noise shows them */
    double unit;   /* the unit roundoff of the inner roundings, for slack */
    int absorbed;  /* attention: without keys and values of each head */
    int ranks;     /* number of tensor-parallel ranks, which round their sums before they are added; 0 counts as 1 */
    /* set by the operator: whether it has inner roundings that noise shows; the length of its longest sum */
    int inner;
    size_t terms;
    /* for the functions of operators.c */
    struct reference_run *run;
    const struct reference_layer *w;
    const struct reference_mtp_module *module;
};

struct reference_bench; /* memory for calls of up to `rows` rows */

int reference_bench_open(struct reference_bench **out, const struct reference *r,
                         const struct reference_options *options, int rows, vb_error *err);
void reference_bench_close(struct reference_bench *b);
/* From now on, calls make inner roundings at random: values are multiplied by 1 + u noise, u in [-1, 1). noise 0: exact
 * calls again. noisy_x: linear layers round their input. The same seed gives the same numbers. */
void reference_bench_noise(struct reference_bench *b, double noise, int noisy_x, uint64_t seed);
/* From now on, calls round the weights of norms and linear layers to numbers with this unit roundoff. unit 0: exact
 * calls again. */
void reference_bench_weights(struct reference_bench *b, double unit);
/* A random number in [-1, 1), of the same sequence. */
double reference_bench_random(struct reference_bench *b);
void reference_compute(struct reference_bench *b, struct reference_call *call);

#endif
