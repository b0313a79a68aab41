/* tests/support/autograd.h -- compares a training step of a tiny checkpoint with PyTorch's autograd: golden/truth/NAME.gradients.json and
 * NAME.losses.json. If the golden names a folder of parallel heads, these are the depths; in its part "after", they read the rows after the last
 * layer. */
#ifndef VB_TEST_AUTOGRAD_H
#define VB_TEST_AUTOGRAD_H

#include "reference/backward.h"

#include <jansson.h>

/* Computes the golden's sequences, and compares losses and gradients with its part `part`. Tensors that it does not list have the gradient 0. */
void check_autograd(const char *name, const char *part, json_t *golden, const struct reference_loss_options *options);

#endif
