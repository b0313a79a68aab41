/* tools/trace/ranks.h -- data-parallel ranks (trace --dp N): in each pass, all ranks have the same number of rows.
 *
 * The ranks of a mixture of experts exchange rows between all of them (all-to-all), so all ranks take part in each
 * pass. Those with fewer rows than the largest add rows of padding, and those without rows compute a dummy pass. See
 * vLLM: vllm/v1/worker/dp_utils.py at 0074614 (_post_process_dp_padding) and execute_dummy_batch; and SGLang:
 * python/sglang/srt/layers/dp_attention.py at 0016109 (DpPaddingMode, MAX_LEN) and get_idle_batch. */
#ifndef VB_TOOLS_TRACE_RANKS_H
#define VB_TOOLS_TRACE_RANKS_H

#include <jansson.h>
#include <stddef.h>

#define MOST_RANKS 64

/* Appends the passes of one round to `all`. ranks[r] has those of rank r, in their order. The passes that the ranks
 * compute at the same time follow each other, and each gets the keys rank, rows and padded_to. A rank that has no such
 * pass gets one with the key dummy. */
void ranks_weave(json_t *all, json_t *const *ranks, size_t count);

/* Returns one object per rank: its passes, dummy passes, real rows and rows with padding. */
json_t *ranks_summary(const json_t *passes, size_t count);

#endif
