/* tools/trace/trace.h -- ways to show a trace: an array of JSON objects, one per pass (tools/trace/trace.c makes them). */
#ifndef VB_TOOLS_TRACE_H
#define VB_TOOLS_TRACE_H

#include "tools/cli/cli.h"

/* A token's text as a JSON string, or null without a tokenizer. */
json_t *trace_piece(const struct cli *c, int32_t token);

/* Aligned columns. */
void trace_table(FILE *to, const json_t *passes);

/* The page at c->html, written under another name first. Returns an exit code. */
int trace_html(const struct cli *c, const json_t *begin, const json_t *passes, const json_t *end);

#endif
