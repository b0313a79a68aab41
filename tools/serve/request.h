/* tools/serve/request.h -- reads the JSON body of a request.
 *
 * The values of supported fields are checked. A field of OpenAI or vLLM that is not supported is refused, and the
 * message names it. Unknown fields are ignored. A function with a parameter f returns 0 on success. On failure it fills
 * *f and returns the HTTP status. */
#ifndef VB_SERVE_REQUEST_H
#define VB_SERVE_REQUEST_H

#include <jansson.h>

#include "tools/serve/job.h"

#define REQUEST_MOST_VALUES ((size_t)2 << 20) /* the most numbers, strings, keys and brackets in a body, counted
                                                 together */
#define REQUEST_MOST_DEPTH 64

/* Parses a body, which must be a JSON object. Counts its values and its depth before it allocates memory. The caller
 * owns *body. */
int request_parse(const char *text, size_t size, json_t **body, struct failure *f);

/* Returns the member `name`, or NULL if it is absent or null. */
const json_t *request_member(const json_t *body, const char *name);
int request_flag(const json_t *body, const char *name, int *flag, struct failure *f); /* if absent, *flag keeps its
                                                                                         value */
/* Fills *f with status 400 and the message "NAME is VALUE, wanted ...". */
int request_wrong(struct failure *f, const char *name, const json_t *value, const char *wanted);

/* Fails with status 404 if `model` names another model than the server's. `model` may be absent. */
int request_model(const struct server *s, const json_t *body, struct failure *f);

/* Makes a job from the body of a request to /v1/completions or /v1/chat/completions: encodes its prompts and makes its
 * choices. The caller owns *job. */
int request_job(struct server *s, enum serve_api api, const json_t *body, struct serve_job **job, struct failure *f);

/* Encodes a text. If `bos` is nonzero and the tokenizer adds BOS, BOS comes first. Free p with request_drop_prompt. */
int request_encode(const struct server *s, const char *text, size_t size, int special, int bos, struct serve_prompt *p,
                   struct failure *f);
/* Copies token ids from a JSON array and checks that each id is in the vocabulary. `name` is the field's name, for
 * messages. */
int request_ids(const struct server *s, const char *name, const json_t *array, struct serve_prompt *p,
                struct failure *f);
void request_drop_prompt(struct serve_prompt *p);

/* ---- a conversation (tools/serve/conversation.c) ---- */
/* Finds out which form of earlier tool calls the chat template wants. Call it once, before the others. */
void conversation_probe(struct server *s);
/* Applies the chat template to `messages`, `tools`, `chat_template_kwargs` and so on. Stores the text and its token ids
 * in *p. If a message contains the name of a special token, the name is encoded as plain text, unless
 * allow_special_tokens is true. */
int conversation_encode(const struct server *s, const json_t *body, struct serve_prompt *p, struct failure *f);

#endif
