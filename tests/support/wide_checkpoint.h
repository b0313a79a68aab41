/* tests/support/wide_checkpoint.h -- a generated checkpoint with large matrices: a session with two or three threads
 * uses all of them even in a pass over a single row. With the matrices in golden/tiny, which are smaller, such a pass
 * uses one thread (ops/parallel.c).
 *
 * The model is a DeepseekV3 in BF16 with 3 layers (the first is dense), 2 MTP modules and about 9 million weights. The
 * weights are random, with two exceptions. First, the embedding is larger than what the layers add to it. Second, each
 * token t has an intended next token u, and row u of lm_head resembles the embedding of t. So greedy decoding visits
 * much of the vocabulary, and the MTP modules, which see the embedding too, often draft the right token. */
#ifndef VB_TEST_WIDE_CHECKPOINT_H
#define VB_TEST_WIDE_CHECKPOINT_H

/* Writes the checkpoint into a new directory, whose path is written to `dir`. */
void wide_checkpoint(char dir[64]);

#endif
