/* ops/backward/backward.h -- what the gradients of all operators have in common.
 *
 * L is the loss of a training step, and dX stands for the gradient of L with respect to X: dx[s,j] = dL / dx[s,j]. All
 * gradients are f32. The letters are those of the operators in ops/. reference/backward_layers.h derives the formulas
 * and computes them in double.
 *
 * The promise: gradients have the same bits for any number of threads, any cut of a step into micro-batches, and any
 * instruction set. Three things make it hold.
 *
 * 1. A sum over numbers of one token (dx of a linear layer, of a norm) depends on this token alone, or on its sequence
 *    (attention).
 * 2. A sum over the tokens of a step (the gradient of a weight) starts at +0 and takes one token after another: the
 *    tokens of the first sequence in ascending order, then those of the second sequence, and so on. The caller clears
 *    the array before a step. Each operator continues the sums that the array holds, so a step may be computed in
 *    several calls. Attention takes a whole sequence, so a step can be cut only between sequences.
 * 3. The loss is a sum over tokens divided by the number of tokens of the step, which is known before the first token
 *    is computed (cross_entropy.h). So no gradient is divided later by a number that depends on a micro-batch.
 *
 * Arrays that are said to be "continued" hold sums to which an operator adds. All others are written. A part of a model
 * that is not trained has no array of gradients; the caller then leaves out the call, or passes NULL where a header
 * allows it.
 *
 * Weights may have any type that follows rule 1 (simd/kernels.h); their gradients are those of the decoded numbers.
 * Precision bf16 rounds nothing here: the gradient of the rounding is taken as 1. */
#ifndef VB_BACKWARD_H
#define VB_BACKWARD_H

#include "ops/op.h"

#endif
