/* tools/cli/line.h -- reads a line of input from the user. On a terminal the line can be edited and has a history, if
 * libedit was found at build time. */
#ifndef VB_LINE_H
#define VB_LINE_H

#include <stddef.h>

/* Whether stdin and stdout are both terminals. */
int line_is_interactive(void);

/* Returns the next line without its newline: *size bytes and a terminating 0 byte, which the caller frees with free.
 * Returns NULL at the end of the input and when a signal interrupts. The prompt is shown only on a terminal. */
char *line_read(const char *prompt, size_t *size);

#endif
