/* reference/backward.h -- the losses of a model and their gradient with respect to every tensor of its checkpoint, in
 * double.
 *
 * The formulas stand in backward_layers.h, beside each operator. docs/TRAINING.md states the losses. */
#ifndef VB_REFERENCE_BACKWARD_H
#define VB_REFERENCE_BACKWARD_H

#include "engine/base/loss.h"
#include "reference/reference.h"

/* The gradient of one tensor [rows, cols]; a vector is one row. The numbers of a tensor that is stored in FP8, or
 * quantized, are those that its codes represent. */
struct reference_gradient {
    const char *name; /* the checkpoint's */
    int rows, cols;
    double *data;
};

/* One entry for each matrix and vector that the model computes with, in the order of names, except
 * e_score_correction_bias: it chooses experts, and a choice has no gradient. The copies of the embedding and of the
 * output head that MTP modules may store have entries of their own. With tie_word_embeddings, the embedding's entry has
 * the gradient of both of its uses. */
struct reference_gradients {
    vb_allocator allocator;
    size_t count;
    struct reference_gradient *of;
};

/* Allocates gradients, all 0. Returns VB_UNSUPPORTED if the model has an indexer (sparse attention), or if a GGUF file
 * stores W_UK and W_UV as two tensors. The caller closes *g, also after an error. */
struct reference;
int reference_gradients_open(struct reference_gradients *g, const struct reference *r, vb_error *err);
/* The same for a model and its parallel heads, which reference_heads_open opened. */
int reference_gradients_open_with_heads(struct reference_gradients *g, const struct reference *r,
                                        const struct reference *heads, vb_error *err);
void reference_gradients_close(struct reference_gradients *g);
/* Returns the gradient of the tensor with this name, or NULL. */
const struct reference_gradient *reference_gradient(const struct reference_gradients *g, const char *name);

/* A text. Tokens of one sequence never attend to those of another. */
struct reference_sequence {
    const int32_t *tokens;
    int count;
    const unsigned char *loss_mask; /* [count]: a row that predicts a token whose entry is 0 has no loss. NULL: all rows
                                       have one */
};

struct reference_loss_options {
    /* The loss (docs/TRAINING.md). NULL: Megatron's, with the next two fields, which are not read otherwise */
    const struct loss *loss;
    int depths;                     /* number of MTP depths; depth k uses module k mod (number of modules). 0: the
                                       target alone */
    double mtp_loss_scaling_factor; /* 0.1 in Megatron */
    /* Parallel heads (docs/SEMANTICS.md): depth k is head k, of which there are as many as depths. g then also has
     * their tensors. NULL: MTP modules */
    const struct reference *heads;
    struct conventions conventions; /* those that change a training step; others must have their defaults */
    /* A seed for perturbed runs, as in reference_options; 0: none. Every value and every gradient of a value is
     * multiplied by 1 + u 2^-24, so the spread of several runs shows how far the gradients of an f32 program may be
     * from these. The backward pass recomputes the values of a layer, with other random numbers, so that the spread is
     * somewhat too large. */
    uint64_t perturb;
    /* Receive the values of the forward pass and their gradients; NULL: none. A gradient has the name, layer, index and
     * shape of its value (reference.h). It is the gradient of the total loss, by all ways from the value to the loss.
     * Gradients come in the reverse order of the values, but those of logits come right after the logits. These values
     * have no gradient here: silu, mixed, router_choice, router_groups, router_kept and router_experts. */
    void (*hook)(void *context, const struct reference_value *value);
    void (*gradient_hook)(void *context, const struct reference_value *gradient);
    void *hook_context;
};

/* The terms of a row's loss (struct loss_terms), without their weights. top and features are 0 if they have no
 * weight. */
struct reference_terms {
    double data, soft, top, features;
    double entropy; /* of the target's distribution: soft - entropy is the Kullback-Leibler divergence */
};

/* A mean is 0 if there is nothing to predict. */
struct reference_losses {
    double total;                   /* the weighted sum of main and by_depth; for Megatron, main +
                                       mtp_loss_scaling_factor * mean of by_depth */
    double main;                    /* mean cross entropy of tok[i+1], given the row of token i */
    double by_depth[VB_MAX_DRAFT];  /* mean of the rows of depth k; for Megatron, the cross entropy of tok[i+k+2], given
                                       row i of depth k */
    struct reference_terms terms[VB_MAX_DRAFT]; /* means of the terms of by_depth */
    long rows, depth_rows[VB_MAX_DRAFT]; /* how many rows with a loss these are means of */
};

/* Computes the losses of one training step: `count` sequences, whose rows are counted before the first is computed. If
 * g is not NULL, adds the gradient of losses->total to g.
 *
 * The main loss has the rows i < T-1 of a sequence of T tokens, and depth k the rows i < T-k-2. Every row counts as
 * much as any other of its depth, in whatever sequence it is. Row i of depth k takes row i of depth k-1, and the
 * gradient of every depth flows back through the depths before it into the target, unless the loss is detached. What
 * rows learn from the target, its logits and hidden states, is constant.
 *
 * If depths are aligned, depth k computes the rows of the depths before it again: hooks receive the values of the rows
 * of depths 0 to k, in this order, and logits of the rows of depth k alone. The gradient of such a value is that by way
 * of depth k.
 *
 * Returns VB_BAD_ARGUMENT if no row has a loss, if a token is outside of the vocabulary, if the number of depths is not
 * possible (reference_modules), if the loss is not possible, or for a convention that has no backward pass. Returns
 * VB_NOT_FINITE if a loss is not finite; then g is incomplete. Returns VB_NO_MEMORY if there is no memory. */
int reference_backward(const struct reference *r, const struct reference_loss_options *options,
                       const struct reference_sequence *sequences, int count, struct reference_losses *losses,
                       struct reference_gradients *g, vb_error *err);

#endif
