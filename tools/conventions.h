/* tools/conventions.h -- the second half of `verbatim conventions`. */
#ifndef VB_TOOLS_CONVENTIONS_H
#define VB_TOOLS_CONVENTIONS_H

#include "tools/cli/cli.h"

/* Which conventions reproduce the dump c->against: c->model is open. Prints; returns an exit code. */
int conventions_against(struct cli *c);

#endif
