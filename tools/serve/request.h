/* tools/serve/request.h -- the JSON body of a request, read strictly: what is known is checked, what is known and not supported is
 * refused by name, what is unknown is ignored. Functions that can fail fill *f and return its status; 0: nothing failed. */
#ifndef VB_SERVE_REQUEST_H
#define VB_SERVE_REQUEST_H

#include <jansson.h>

#include "tools/serve/job.h"

#define REQUEST_MOST_VALUES ((size_t)2 << 20) /* of a body: numbers, strings, keys, brackets */
#define REQUEST_MOST_DEPTH 64

/* An object. Size and depth are bounded before anything is allocated. The caller owns *body. */
int request_parse(const char *text, size_t size, json_t **body, struct failure *f);

/* The member of this name; NULL: absent, or null. */
const json_t *request_member(const json_t *body, const char *name);
int request_flag(const json_t *body, const char *name, int *flag, struct failure *f); /* as it is where absent */
/* 400: "NAME is VALUE, wanted ..." */
int request_wrong(struct failure *f, const char *name, const json_t *value, const char *wanted);

/* `model` is this server's or absent; else 404. */
int request_model(const struct server *s, const json_t *body, struct failure *f);

/* A body of /v1/completions or /v1/chat/completions, as a job with its prompts encoded and its choices made. The caller owns *job. */
int request_job(struct server *s, enum serve_api api, const json_t *body, struct serve_job **job, struct failure *f);

/* The ids of a text, BOS in front if asked for and the tokenizer has one in front. Free p with request_drop_prompt. */
int request_encode(const struct server *s, const char *text, size_t size, int special, int bos, struct serve_prompt *p, struct failure *f);
/* The ids of an array. */
int request_ids(const struct server *s, const char *name, const json_t *array, struct serve_prompt *p, struct failure *f);
void request_drop_prompt(struct serve_prompt *p);

/* ---- a conversation (tools/serve/conversation.c) ---- */
/* The text that the chat template makes of `messages`, with tools and chat_template_kwargs, and its ids. Special tokens inside of messages are
 * text unless allow_special_tokens is true. */
int conversation_encode(const struct server *s, const json_t *body, struct serve_prompt *p, struct failure *f);

#endif
