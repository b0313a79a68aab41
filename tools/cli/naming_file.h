/* tools/cli/naming_file.h -- a user's file that maps the names of an engine to Verbatim's names, for --names FILE.
 *
 * Each line is THEIRS = OURS. Empty lines, and lines that begin with #, are ignored. In THEIRS, * matches any text, and
 * a word in braces, such as {layer}, matches a number. In OURS, {layer} is this number, {layer+61} is 61 more, and
 * {layer-1} is 1 less. OURS is one of Verbatim's names (docs/ORACLE.md), or two of them joined by " + " if the columns
 * of both are in one tensor, or "-" if the tensor is left out. The first line that matches counts. The line "system =
 * vllm" says whose names the other tensors have. */
#ifndef VB_NAMING_FILE_H
#define VB_NAMING_FILE_H

#include "tools/cli/cli.h"
#include "tools/cli/naming.h"

struct naming_file;

/* Reads a file. Reports errors: they name the file and the line. Free *out with naming_file_close. */
int naming_file_read(const struct cli *c, const char *path, struct naming_file **out);
void naming_file_close(struct naming_file *f);

enum naming_answer { NAMING_UNKNOWN, NAMING_FOUND, NAMING_LEFT_OUT };
/* Translates a name. If the answer is NAMING_FOUND, `out` is Verbatim's name; two names are joined by '+' without
 * blanks. */
enum naming_answer naming_file_from(struct naming_file *f, const char *theirs, char out[NAMING_ROOM]);

/* The system of the line "system = NAME"; NULL: there is none. */
const struct naming *naming_file_system(const struct naming_file *f);
/* Finds a line that has matched no name since the last call of naming_file_forget. Returns how many there are. *line:
 * the first one. */
size_t naming_file_unused(const struct naming_file *f, size_t *line);
void naming_file_forget(struct naming_file *f);

#endif
