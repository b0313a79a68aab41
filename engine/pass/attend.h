/* engine/pass/attend.h -- the steps of attention over the KV cache. */
#ifndef VB_ATTEND_H
#define VB_ATTEND_H

#include "engine/pass/pass.h"

/* Applies RoPE to the queries and scales them. Normalises the latents, applies RoPE to the keys, and writes both to the
 * cache. The cache may round them: callbacks receive the rounded numbers. Sets the tokens that each row sees. */
void cache_rows(struct pass *p);
/* Computes the output of each head. The latents of all rows are in the cache before, because a row also attends to
 * earlier rows of the same pass. */
void attend(struct pass *p);

/* The same for grouped-query attention: RoPE on queries and keys, keys and values to the cache, then each head with the
 * keys and values of its group. */
void cache_keys(struct pass *p);
void attend_grouped(struct pass *p);

/* The layer's attention, as its operators want it. */
struct attention attention_of(const struct pass *p);
/* Mistral 4: the queries of a row are multiplied by a factor that grows with its position; it is 1 in other models. */
float query_scale(const struct pass *p, const struct row *row);

#endif
