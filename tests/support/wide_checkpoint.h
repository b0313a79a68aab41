/* tests/support/wide_checkpoint.h -- a generated checkpoint whose matrices are large enough that a pass over a single row uses
 * two and three threads. The matrices in golden/tiny are too small for that (ops/parallel.c).
 *
 * The model is a DeepseekV3 in BF16 with 3 layers (the first is dense), 2 MTP modules and about 9 million weights. The weights
 * are random, with two exceptions. The embedding is larger than what the layers add to it. And the row of lm_head for the token
 * that is to follow t resembles the embedding of t. So greedy decoding visits much of the vocabulary, and the MTP modules,
 * which see the embedding too, often draft the right token. */
#ifndef VB_TEST_WIDE_CHECKPOINT_H
#define VB_TEST_WIDE_CHECKPOINT_H

/* Writes the checkpoint into a new directory, whose path is written to `dir`. */
void wide_checkpoint(char dir[64]);

#endif
