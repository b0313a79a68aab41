/* tools/serve/conversation_internal.h -- functions for conversation.c about earlier tool calls. */
#ifndef VB_SERVE_CONVERSATION_INTERNAL_H
#define VB_SERVE_CONVERSATION_INTERNAL_H

#include "tools/serve/request.h"
#include "tools/serve/writer.h"

/* Converts tool_calls of a message, and its content if there are some, to the form that the template wants. The message
 * is a shallow copy. Calls that are no calls are refused. Returns 0 or the status of *f. */
int conversation_convert_calls(const struct server *s, size_t number, json_t *message, struct failure *f);
/* Writes a rendered text with the numbers of calls that jansson cannot hold, digit by digit as the client wrote
 * them. */
void conversation_put_numbers(const struct server *s, const char *text, size_t size, struct serve_writer *out);
/* Removes the members that are null, except content: clients send such, and templates take them for values. */
void conversation_drop_nulls(json_t *message);

#endif
