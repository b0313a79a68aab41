/* tools/serve/request_internal.h -- functions for request.c that read some of the fields. */
#ifndef VB_SERVE_REQUEST_INTERNAL_H
#define VB_SERVE_REQUEST_INTERNAL_H

#include "tools/serve/request.h"

/* Fails with status 400 if the body uses a field of OpenAI or vLLM that is not supported. The message names the
 * field. */
int request_refuse(const json_t *body, struct failure *f);
/* Reads tools, tool_choice and parallel_tool_calls, and sets how the answer's text is read (job->meaning). The prompt
 * is known. */
int request_tools(struct serve_job *job, const json_t *body, struct failure *f);
/* Reads the field response_format. Opens the job's schema, unless the format is text. Returns 0, or the HTTP status of
 * the failure. */
int request_format(struct serve_job *job, const json_t *body, struct failure *f);
/* Prints on stderr, once for each name, that an unknown field is ignored. */
void request_note_unknown(struct server *s, const json_t *body);

#endif
