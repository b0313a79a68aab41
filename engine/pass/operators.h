/* engine/pass/operators.h -- one value of a pass alone, from the values that it is computed from.
 *
 * The caller gives the inputs that engine/model/values.c lists for the value. If they have the bits that a pass
 * computed, then the result has the bits of that pass. Integers (tokens, experts, groups) are floats here, and a model
 * has fewer than 2^24 of each. */
#ifndef VB_OPERATORS_H
#define VB_OPERATORS_H

#include "engine/pass/pass.h"

struct operator_call {
    const char *result; /* the name of the value in its layer, such as "self_attn.q_rope"; "mlp.experts.E.output" and
                           "self_attn.scores.H" for one expert and one head */
    int layer, expert;  /* layer: -1 outside of the layers; MTP depth k is layer num_hidden_layers + k. expert: the
                           number E, or the head H */
    size_t S;           /* rows */
    int32_t first;      /* RoPE position of row 0; row s has position first + s, and attends to rows 0..s */
    int expanded;       /* attention: nonzero for the expanded form (ops/expanded.h), which needs workspace.expands */
    /* [S, width]; the inputs in the order of the table. NULL: the model has no such input. Tokens, experts and groups
     * must be in range, and a row must have no group twice. */
    const float *in[VALUE_INPUTS];
    size_t width[VALUE_INPUTS]; /* numbers in a row of each input. Attention: row s attends to the positions of in[4],
                                   which are in 0..s, if it is not among the first index_topk rows; numbers below 0 are
                                   left out. Scores have at least S numbers */
    float *out;         /* [S, width]; scores: [S, S]; kept positions: ascending, and then -1 */
};

/* Computes k->out in p, which has room for k->S rows. The value must exist in this layer of the model. Returns
 * VB_UNSUPPORTED if the engine does not compute it alone, and VB_NO_MEMORY if there is no memory for the rows. */
int operator_compute(struct pass *p, const struct operator_call *k, vb_error *err);

#endif
