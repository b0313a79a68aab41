/* reference/operators_internal.h -- what the files operators*.c share. */
#ifndef VB_REFERENCE_OPERATORS_INTERNAL_H
#define VB_REFERENCE_OPERATORS_INTERNAL_H

#include "reference/layers.h"
#include "reference/operators.h"

/* --- operators.c --- */

/* Sets the slack to the roundings of the sums W in[0] in f32: 8 standard deviations, as in tools/diff/local.h. */
void ref_op_slack_of_sums(struct reference_call *k, const struct matrix *w);
/* Adds to `slack` what tensor-parallel ranks round (call.ranks). */
void ref_op_slack_of_ranks(struct reference_call *k, const struct matrix *w, const double *x, size_t S, double *slack);
/* Sets the slack to `count` roundings of the n numbers of the result. */
void ref_op_roundings(struct reference_call *k, double count, size_t n);
void ref_op_linear(struct reference_call *k, const struct matrix *w);
/* Rotates the first r numbers of `vectors` vectors of k->out [S, vectors, width] by the angles of their rows, and sets
 * the slack. pairs: they are (2i, 2i+1), else (i, i + r/2). */
void ref_op_rotate(struct reference_call *k, int vectors, int width, int pairs);

/* --- operators_moe.c --- */

void ref_op_dense(struct reference_call *k);
void ref_op_expert(struct reference_call *k);
void ref_op_shared_expert(struct reference_call *k);
void ref_op_chosen_experts(struct reference_call *k);
void ref_op_sum_of_experts(struct reference_call *k);
void ref_op_gate(struct reference_call *k);
void ref_op_scores(struct reference_call *k);
void ref_op_choice(struct reference_call *k);
void ref_op_group_scores(struct reference_call *k);
void ref_op_groups(struct reference_call *k);
void ref_op_experts(struct reference_call *k);
void ref_op_weights(struct reference_call *k);

/* --- operators_indexer.c --- */

void ref_op_index_wk(struct reference_call *k);
void ref_op_index_norm(struct reference_call *k);
void ref_op_index_rope_k(struct reference_call *k);
void ref_op_index_wq_b(struct reference_call *k);
void ref_op_index_weights_proj(struct reference_call *k);
void ref_op_index_rope_q(struct reference_call *k);
void ref_op_index_weights(struct reference_call *k);
void ref_op_index_scores(struct reference_call *k);
void ref_op_index_kept(struct reference_call *k);

#endif
