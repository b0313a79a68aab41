/* tests/support/layout_checkpoint.h -- a generated checkpoint in each layout of published files. It is small, but each
 * of its matrices has several groups of 32 rows, and it has several attention heads, so that several ranks have a share
 * of each matrix. Its weights are random codes. The shares of equal ranks begin inside blocks of FP8 scales.
 *
 * A DeepseekV3 with 2 layers (the first is dense), one MTP module with its own embedding and output head, 5 attention
 * heads, and 4 experts, of which each token takes 2. */
#ifndef VB_TEST_LAYOUT_CHECKPOINT_H
#define VB_TEST_LAYOUT_CHECKPOINT_H

/* I4, NVFP4 and MXFP4 in the layout of compressed-tensors; I8: with a scale for each row. */
enum layout { LAYOUT_BF16, LAYOUT_FP8, LAYOUT_I4, LAYOUT_NVFP4, LAYOUT_MXFP4, LAYOUT_I8, LAYOUTS };
extern const char *const layout_names[LAYOUTS];

/* Dimensions that tests compute with. */
enum {
    LAYOUT_D = 160,
    LAYOUT_V = 200,
    LAYOUT_HEADS = 5,
    LAYOUT_VALUE = 32,
    LAYOUT_DENSE = 224,
    LAYOUT_EXPERT = 96,
    LAYOUT_CHOSEN = 2
};

struct layout_checkpoint {
    enum layout layout;
    int no_q_lora; /* 1: one matrix q_proj */
    int tied;      /* 1: the embedding is the output head */
};
/* Writes the checkpoint into a new directory, whose path is written to `dir`. */
void layout_checkpoint(char dir[64], struct layout_checkpoint c);

#endif
