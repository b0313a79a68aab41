/* tools/diff/gradients.h -- `verbatim diff` on files of gradients (tools/dump/gradients.h). */
#ifndef VB_DIFF_GRADIENTS_H
#define VB_DIFF_GRADIENTS_H

#include "tools/cli/cli.h"

/* Whether one of the two sides is a file of gradients, or --gradients says so. */
int diff_is_gradients(const struct cli *c);
/* Compares the gradients of A and B. Returns an exit code. */
int diff_gradients(struct cli *c);

#endif
