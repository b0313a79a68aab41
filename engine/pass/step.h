/* engine/pass/step.h -- the steps of a pass: each computes one value, or several, of all rows (engine/model/values.h).
 *
 * The table says what a step reads, where it writes, which weight it uses, and to which part of a pass its time
 * belongs. A step does nothing if the layer has no such value. When it has the value, it copies it for whoever keeps it
 * (struct keep), and reports it to the tap callback. */
#ifndef VB_STEP_H
#define VB_STEP_H

#include "engine/pass/pass.h"

/* RMSNorm of the value's input, with the value's weight. */
void norm(struct pass *p, enum pass_value v);
/* A linear layer. */
void linear(struct pass *p, enum pass_value v);
/* Several linear layers that read the same value; those that the layer lacks are left out. They share a parallel
 * region. */
#define linears(p, ...) step_linears(p, (const enum pass_value[]){__VA_ARGS__, VALUES})
void step_linears(struct pass *p, const enum pass_value *list);
/* The residual stream x += delta: what attention or the feed-forward part gave. */
void residual(struct pass *p, enum pass_value v);
/* The embeddings of the rows' tokens. */
void embed_tokens(struct pass *p, enum pass_value v);
/* The value consists of its inputs, beside each other. Those that are not there yet are copied. */
void join(struct pass *p, enum pass_value v);
/* The residual stream begins with the numbers of a value: x = from. */
void begin_stream(struct pass *p, enum pass_value from);
/* A module whose output has no norm: g = x. */
void give_stream(struct pass *p);

/* Whether this layer has the value, and it is to be computed. */
int step_is_computed(const struct pass *p, enum pass_value v);
/* For steps with an operator of their own: whether to compute the value in this layer; and then what follows: reporting
 * it. */
int step_begins(struct pass *p, enum pass_value v);
void step_ends(struct pass *p, enum pass_value v);

/* Where somebody keeps this value of the present layer; NULL: nowhere. For MLP_GATE and MLP_UP, which operators write
 * there. */
float *step_kept(const struct pass *p, enum pass_value v);

/* The array of a value, from its row 0 on. */
float *step_array(const struct pass *p, enum pass_value v);

#endif
