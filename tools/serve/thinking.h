/* tools/serve/thinking.h -- where the reasoning of an answer ends: behind the text </think>, whichever tokens write it.
 *
 * The parser of meaning.h reads bytes. So the text may be one token, or several, and a token may have more bytes before
 * and behind it. */
#ifndef VB_THINKING_H
#define VB_THINKING_H

#include "tools/serve/vocabulary.h"

/* Fills v->may_close and v->closing. VB_OK or VB_NO_MEMORY. */
int thinking_list(struct vocabulary *v);

/* Finds the token that ends the reasoning in an answer that begins with reasoning. Returns 0 if none does. *at: its
 * index; *behind: how many of its bytes come behind </think>. */
int thinking_ends(const struct vocabulary *v, const int32_t *token, size_t count, size_t *at, size_t *behind);
/* How many bytes of </think> the text of these tokens ends with. None of them ends the reasoning. */
size_t thinking_open_bytes(const struct vocabulary *v, const int32_t *token, size_t count);
/* How many bytes of a token's text come behind </think>, if the token ends it where its first `open` bytes were written
 * already; -1: it does not. */
long thinking_behind(const struct vocabulary *v, int32_t token, size_t open);

#endif
