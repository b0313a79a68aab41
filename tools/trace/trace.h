/* tools/trace/trace.h -- prints a trace as a table or as a web page. A trace is a JSON array with one object per pass.
 * tools/trace/trace.c makes traces. */
#ifndef VB_TOOLS_TRACE_H
#define VB_TOOLS_TRACE_H

#include "tools/cli/cli.h"

/* Checks --html and opens the model. Without --draft, a model with MTP modules drafts with mtp-eagle. Reports
 * errors. */
int trace_open(struct cli *c);
int trace_is_async(const struct cli *c); /* --schedule async */
/* Prints the trace as the options want it. begin, end: the first and the last JSON line. Returns an exit code. */
int trace_show(struct cli *c, const json_t *begin, const json_t *passes, const json_t *end);

/* Prints the table, with aligned columns. */
void trace_table(FILE *to, const json_t *passes);

/* Writes the web page c->html. The file appears only when it is complete. Returns an exit code. */
int trace_html(const struct cli *c, const json_t *begin, const json_t *passes, const json_t *end);

/* Compares the passes with those in the file c->against, and prints the first difference. Returns an exit code:
 * EXIT_DIFFERENCE if there is one. */
int trace_against(struct cli *c, const json_t *passes);

#endif
