/* tools/cli/page.h -- web pages of one file that show an object. */
#ifndef VB_CLI_PAGE_H
#define VB_CLI_PAGE_H

#include "tools/cli/cli.h"

/* Writes the page to a file, with the object as JSON in place of `mark`, which is inside of <script
 * type="application/json">. The file appears only when it is complete. Reports errors. Returns an exit code. */
int cli_page(const struct cli *c, const char *path, const char *page, const char *mark, const json_t *object);

#endif
