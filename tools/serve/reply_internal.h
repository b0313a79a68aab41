/* tools/serve/reply_internal.h -- parts of answers: a chat's message, and log-probabilities of completions, chats and
 * prompts. */
#ifndef VB_SERVE_REPLY_INTERNAL_H
#define VB_SERVE_REPLY_INTERNAL_H

#include "tools/serve/reply.h"

/* Writes a token's text as a JSON string. If the text is not valid UTF-8, writes its bytes in OpenAI's form,
 * "bytes:\xe2\x80". If the token has no text, writes "token_id:ID". */
void reply_token_name(struct serve_writer *w, const struct server *s, int32_t token);
/* Writes {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. If `echo` is nonzero, the prompt's tokens come
 * first. Then come the generated tokens from at->tokens to to - 1. */
void reply_completion_logprobs(struct serve_writer *w, struct serve_choice *choice, struct serve_cursor *at, size_t to,
                               int echo);
/* Writes {"content": [...], "refusal": null} for the generated tokens from..to-1. */
void reply_chat_logprobs(struct serve_writer *w, const struct serve_choice *choice, size_t from, size_t to);
/* Writes a comma and vLLM's field "prompt_logprobs": [null, {"ID": {"logprob", "rank", "decoded_token"}}, ...]. */
void reply_prompt_logprobs(struct serve_writer *w, const struct serve_choice *choice);

/* Reads the next piece of a chat answer's text with the cursor's parser, which it opens before the first piece. Writes
 * what the piece means: "reasoning_content", "content" and "tool_calls" of the message or, if `whole` is 0, of a delta.
 * `final`: the text ends. */
void reply_message(struct serve_writer *w, const struct serve_choice *choice, struct serve_cursor *at, const char *text,
                   size_t size, int final, int whole);

#endif
