/* tools/training/turns.h -- which tokens of a conversation the assistant wrote: the labels of --assistant-only-loss. */
#ifndef VB_TRAINING_TURNS_H
#define VB_TRAINING_TURNS_H

#include "tools/cli/cli.h"

/* Reports messages that are not an array of objects with a role. */
int turns_check(const struct cli *c, const json_t *messages);
/* Renders a conversation that turns_check found right with the chat template, which must be open, and encodes it.
 * mask[i] is 1 if token i has a byte that the assistant wrote, else 0. These bytes are those of the template's {%
 * generation %} blocks, as in transformers' return_assistant_tokens_mask. If it has no such blocks, the turn of message
 * i begins where the text stops being that of the messages before it with the generation prompt, and ends with the text
 * of the messages up to it; if this text goes on differently when other messages follow, the conversation is refused.
 *
 * `more`: variables for the template, or NULL. The caller frees *ids and *mask. Reports errors. */
int turns_encode(struct cli *c, const json_t *messages, const json_t *more, int32_t **ids, unsigned char **mask,
                 size_t *count);

#endif
