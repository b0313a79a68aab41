/* tools/cli/line.h -- a line from the user: on a terminal with editing and history (libedit, where it was there when this was
 * built), from anything else as it comes. */
#ifndef VB_LINE_H
#define VB_LINE_H

#include <stddef.h>

/* Whether lines come from a terminal and go to one. */
int line_is_interactive(void);

/* The next line without its newline, *size bytes and a 0 byte, freed by the caller with free; NULL at the end of the input, and
 * when a signal came. The prompt is shown on a terminal only. */
char *line_read(const char *prompt, size_t *size);

#endif
