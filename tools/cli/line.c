/* tools/cli/line.c -- reads a line of input from the user (see line.h). */
#include "tools/cli/line.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "tools/cli/cli.h"

#ifdef HAVE_LIBEDIT
#include <editline/readline.h>
#endif

int line_is_interactive(void) { return cli_terminal(STDIN_FILENO) && cli_terminal(STDOUT_FILENO); }

#ifdef HAVE_LIBEDIT
static char *edited(const char *prompt, size_t *size)
{
    setlocale(LC_CTYPE, ""); /* so that the cursor moves over characters and not over bytes */
    char *line = readline(prompt);
    if (line && *line)
        add_history(line);
    if (!line)
        putchar('\n'); /* after Ctrl-D, the prompt of the shell begins on a new line */
    *size = line ? strlen(line) : 0;
    return line;
}
#endif

char *line_read(const char *prompt, size_t *size)
{
    char *line = NULL;
    size_t room = 0;
    if (line_is_interactive()) {
#ifdef HAVE_LIBEDIT
        return edited(prompt, size);
#endif
        fputs(prompt, stdout);
        fflush(stdout);
    }
    ssize_t n = getline(&line, &room, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    *size = (size_t)n - (n && line[n - 1] == '\n');
    line[*size] = '\0';
    return line;
}
