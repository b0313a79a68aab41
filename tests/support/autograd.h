/* tests/support/autograd.h -- compares a training step with PyTorch's autograd: golden/truth/NAME.gradients.json and
 * NAME.losses.json. If the golden names a folder of parallel heads, these are the depths; in its part "after", they
 * read the rows after the last layer. */
#ifndef VB_TEST_AUTOGRAD_H
#define VB_TEST_AUTOGRAD_H

#include "reference/backward.h"

#include <jansson.h>

#define AUTOGRAD_SEQUENCES 4

/* The sequences of a golden, for its part `part`. */
struct autograd_step {
    struct reference_sequence list[AUTOGRAD_SEQUENCES];
    int count;
    int32_t tokens[128];
    unsigned char masks[128];
};
void autograd_read(struct autograd_step *s, const char *part, json_t *golden);
/* Compares losses and gradients with those of the golden's part. Tensors that it does not list have the gradient 0.
 * terms: not read if the golden has none. */
void autograd_compare(const char *name, const char *part, json_t *golden, const struct loss_terms *terms,
                      const struct reference_losses *losses, const struct reference_gradients *g);

/* Computes the golden's sequences, and compares losses and gradients with its part `part`. Tensors that it does not
 * list have the gradient 0. */
void check_autograd(const char *name, const char *part, json_t *golden, const struct reference_loss_options *options);

#endif
