/* tools/serve/reply_internal.h -- log-probabilities in the formats of completions, of chats and of prompts. */
#ifndef VB_SERVE_REPLY_INTERNAL_H
#define VB_SERVE_REPLY_INTERNAL_H

#include "tools/serve/reply.h"

/* A token's text as a JSON string: its piece, or where that is not UTF-8, its bytes as OpenAI writes them, "bytes:\xe2\x80". */
void reply_token_name(struct serve_writer *w, const struct server *s, int32_t token);
/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: with echo the prompt's tokens, then those of the cursor up to `to`. */
void reply_completion_logprobs(struct serve_writer *w, struct serve_choice *choice, struct serve_cursor *at, size_t to, int echo);
/* {"content": [...], "refusal": null} */
void reply_chat_logprobs(struct serve_writer *w, const struct serve_choice *choice, size_t from, size_t to);
/* , "prompt_logprobs": [null, {"ID": {"logprob", "rank", "decoded_token"}}, ...], as vLLM writes them */
void reply_prompt_logprobs(struct serve_writer *w, const struct serve_choice *choice);

#endif
