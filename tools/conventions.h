/* tools/conventions.h -- the part of `verbatim conventions` that handles --against. */
#ifndef VB_TOOLS_CONVENTIONS_H
#define VB_TOOLS_CONVENTIONS_H

#include "tools/cli/cli.h"

/* Finds the conventions with which c->model reproduces the dump c->against, and prints them. The model must be open.
 * Returns an exit code. */
int conventions_against(struct cli *c);
/* The same for a file of log-probabilities (scored_is): finds out whether they are raw or at the temperature. */
int conventions_against_scores(struct cli *c);

#endif
